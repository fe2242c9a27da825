"""Starting a user's own training as it is, beside its sampler, and passing on how it ends.

Nothing of the script is changed: its words, folder, environment, stdin and stdout are those of the
doctor. It leads a process group of its own, so that --stop reaches its workers too; where stdin is
a terminal it stays in the doctor's group, as under `time`: the terminal's keys (Ctrl-C, Ctrl-Z)
reach the script, which decides.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import msgspec

from cudadoctor.host import children
from cudadoctor.probes.nvml import module_folder

SAMPLER = Path(__file__).parent / "inside" / "sampler.py"
PERIOD_S = 0.4
MISSING, FORBIDDEN = 127, 126
"""Exit codes of a shell for a program that is not there, or may not be run."""
PATIENCE_S = 10.0
"""After each of --stop's signals: a training may write a checkpoint first."""
_PASSED_ON = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")


class NoStart(Exception):  # noqa: N818 - told in one sentence
    """The script could not be started. code: what a shell would exit with."""

    def __init__(self, sentence: str, code: int) -> None:
        super().__init__(sentence)
        self.code = code


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it. code: the script's exit code, None while it runs on. lines: samples."""

    lines: tuple[bytes, ...]
    code: int | None
    seconds: float


def start(words: tuple[str, ...]) -> subprocess.Popen[bytes]:
    """Start the script. Raises NoStart, in one sentence."""
    apart = hasattr(os, "setpgid") and not _at_a_terminal()
    try:
        # setpgid in the child alone: a session of its own would cut it off from the terminal.
        return subprocess.Popen(words, preexec_fn=_lead_a_group if apart else None)  # noqa: PLW1509
    except FileNotFoundError:
        raise NoStart(f"there is no program {words[0]!r}", MISSING) from None
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise NoStart(f"{words[0]!r} cannot be started: {why}", FORBIDDEN) from None


def _lead_a_group() -> None:
    os.setpgid(0, 0)


def _at_a_terminal() -> bool:
    try:
        return os.isatty(0)
    except OSError:
        return False


class Sampler:
    """The light process beside the script; what it prints is collected until it ends."""

    def __init__(self, pid: int, period_s: float = PERIOD_S) -> None:
        self.lines: list[bytes] = []
        argv = [sys.executable, "-I", "-S", str(SAMPLER), str(pid), str(period_s)]
        self._child = subprocess.Popen(
            [*argv, module_folder() or ""],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=children.neutral_folder(),
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._child.pid

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            self.lines.append(line)

    def end(self) -> tuple[bytes, ...]:
        """Its lines; one that hangs inside the driver is left behind."""
        with contextlib.suppress(OSError):
            self._child.terminate()
        try:
            self._child.wait(1.0)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.returncode = -1  # abandoned on purpose: Python would wait at exit
        self._reader.join(1.0)
        return tuple(self.lines)


def watch(script: subprocess.Popen[bytes], sampler: Sampler, limit_s: float) -> Watched:
    """Sample until the script ends, or for so long."""
    began = time.monotonic()
    code: int | None = None
    with contextlib.suppress(subprocess.TimeoutExpired):
        code = script.wait(limit_s)
    lines = sampler.end()
    return Watched(lines=lines, code=code, seconds=time.monotonic() - began)


def exit_code(returned: int) -> int:
    """As a shell passes it on: 128 and the signal's number for one that a signal ended."""
    return 128 - returned if returned < 0 else returned


def stop(script: subprocess.Popen[bytes]) -> None:
    """End the script and its workers: asked twice, with patience, before it is made to."""
    for name in ("SIGINT", "SIGTERM", "SIGKILL"):
        number = getattr(signal, name, None)
        if number is None or script.poll() is not None:
            continue
        send(script, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            script.wait(PATIENCE_S)


def send(script: subprocess.Popen[bytes], number: int) -> None:
    """To the script's group where it leads one, else to the script."""
    with contextlib.suppress(OSError, ValueError):  # Windows knows few signals
        if hasattr(os, "getpgid") and os.getpgid(script.pid) == script.pid:
            os.killpg(script.pid, number)
        else:
            script.send_signal(number)


@contextlib.contextmanager
def passing_signals_on(script: subprocess.Popen[bytes]) -> Iterator[None]:
    """What would end the doctor goes to the script, which decides; at a terminal it has it."""
    told_already = _at_a_terminal()

    def pass_on(number: int, _: FrameType | None) -> None:
        if not (told_already and number == signal.SIGINT):
            send(script, number)

    before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}
    for name in _PASSED_ON:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, pass_on)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
