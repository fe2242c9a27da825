"""The door to the host: nothing behind it hangs, crashes or floods the doctor."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from cudadoctor.host.children import MOST_BYTES
from cudadoctor.host.local import LocalHost

HOST = LocalHost()
PYTHON = sys.executable


def test_a_program_that_answers_is_heard() -> None:
    ran = HOST.run(PYTHON, "-c", "print('yes')", timeout_s=20)
    assert ran.ok
    assert ran.stdout == "yes\n"


def test_a_missing_program_is_missing_and_not_broken() -> None:
    assert HOST.run("no-such-program-anywhere", timeout_s=5).missing


def test_a_hanging_program_is_left_behind_with_what_it_said() -> None:
    code = "import time; print('first', flush=True); time.sleep(600)"
    ran = HOST.run(PYTHON, "-c", code, timeout_s=1)
    assert ran.timed_out
    assert ran.code is None
    assert ran.stdout == "first\n"


def test_a_program_that_ignores_sigterm_does_not_hold_us() -> None:
    code = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    assert HOST.run(PYTHON, "-c", code, timeout_s=1).timed_out


def test_a_grandchild_that_keeps_the_pipe_open_is_not_waited_for() -> None:
    code = "import subprocess; subprocess.Popen(['sleep', '600']); print('done')"
    started = time.monotonic()
    ran = HOST.run(PYTHON, "-c", code, timeout_s=60)
    assert ran.stdout == "done\n"
    assert ran.code == 0
    assert time.monotonic() - started < 50


def test_a_flood_is_cut() -> None:
    code = "import sys\nwhile True: sys.stdout.write('x' * 65536)"
    ran = HOST.run(PYTHON, "-c", code, timeout_s=60)
    assert ran.why is not None
    assert "MiB" in ran.why
    assert len(ran.stdout) < MOST_BYTES + (1 << 20)


def test_a_crash_names_its_signal() -> None:
    ran = HOST.run(PYTHON, "-c", "import os; os.kill(os.getpid(), 11)", timeout_s=20)
    assert ran.signal == 11
    assert not ran.ok


def test_noise_that_is_no_text_is_survived() -> None:
    code = "import sys; sys.stdout.buffer.write(bytes(range(256)))"
    assert HOST.run(PYTHON, "-c", code, timeout_s=20).code == 0


def test_a_program_that_closes_its_pipes_and_goes_on_is_ended() -> None:
    code = "import os,time; os.close(1); os.close(2); time.sleep(600)"
    assert HOST.run(PYTHON, "-c", code, timeout_s=1).timed_out


def test_a_folder_is_no_file_and_a_missing_file_is_missing(tmp_path: Path) -> None:
    assert HOST.read(str(tmp_path)).why is not None
    assert HOST.read(str(tmp_path / "none")).missing


def test_a_pipe_in_the_place_of_a_file_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert not HOST.read(str(tmp_path / "pipe")).data


@pytest.mark.parametrize("path", ["a\x00b", "/proc/self/mem", ""])
def test_a_path_that_cannot_be_read_is_an_answer(path: str) -> None:
    answer = HOST.read(path)
    assert answer.missing or answer.why or not answer.data


def test_no_child_outlives_a_closed_host() -> None:
    import threading

    host = LocalHost()
    answers = []
    thread = threading.Thread(
        target=lambda: answers.append(
            host.run(PYTHON, "-c", "import time; time.sleep(600)", timeout_s=300)
        )
    )
    thread.start()
    time.sleep(0.5)
    host.close()
    thread.join(30)
    assert not thread.is_alive()
    assert answers


def test_each_line_gives_the_next_its_time() -> None:
    late = "import time; time.sleep(2); print('x', flush=True); time.sleep(1.5)"
    ran = LocalHost().run(sys.executable, "-c", late, timeout_s=60, on_line=lambda _: 3.0)
    assert (ran.code, ran.stdout, ran.timed_out) == (0, "x\n", False)


def test_silence_after_a_line_ends_the_wait_long_before_the_limit_of_all() -> None:
    stuck = "import time; print('x', flush=True); time.sleep(600)"
    ran = LocalHost().run(sys.executable, "-c", stuck, timeout_s=300, on_line=lambda _: 0.5)
    assert (ran.why, ran.timed_out, ran.stdout) == ("no response within 0.5 s", True, "x\n")
    assert ran.silent_s is not None
    assert 0.5 <= ran.silent_s <= ran.seconds


def test_a_line_without_a_limit_of_its_own_leaves_that_of_all() -> None:
    stuck = "import time; print('x', flush=True); time.sleep(600)"
    ran = LocalHost().run(sys.executable, "-c", stuck, timeout_s=1, on_line=lambda _: None)
    assert (ran.why, ran.timed_out) == ("no response within 1 s", True)
