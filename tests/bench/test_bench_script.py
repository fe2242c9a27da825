"""A user's own training under the sampler: real children that burn, read and sleep, and NVML's
stand-in; the script's words, streams and exit code stay as they are."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from standin_fixtures import StandIns

from cudadoctor.bench.script import exit_code, no_stacks, py_spy, readable
from cudadoctor.bench.script.stacks import Stacks
from cudadoctor.bench.script.starved import LEAST_LOOKS, LEAST_TICKS, Figures

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")

BURN = "import time, sys\nend = time.time() + float(sys.argv[1])\nwhile time.time() < end: pass"
WORKERS = """
import multiprocessing, time, sys
def load(end):
    while time.time() < end: pass
if __name__ == "__main__":
    end = time.time() + 3
    context = multiprocessing.get_context(sys.argv[1])
    workers = [context.Process(target=load, args=(end,)) for _ in range(2)]
    [one.start() for one in workers]
    [one.join() for one in workers]
"""
READ = """
import os, sys, time
path, end = sys.argv[1], time.time() + 3
number = os.open(path, os.O_RDONLY)
while time.time() < end:
    os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
    os.lseek(number, 0, os.SEEK_SET)
    while os.read(number, 1 << 20): pass
"""


def bench(
    *words: str, options: tuple[str, ...] = (), env: dict[str, str] | None = None, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "cudadoctor", "bench", *options, "--", *words]
    return subprocess.run(
        argv,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "COLUMNS": "100", **(env or {})},
        input=stdin,
    )


def document_of(*words: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    """The document of a run."""
    ran = bench(*words, options=("--json",), env=env)
    document: dict[str, Any] = json.loads(ran.stderr)
    assert document["schema"] == 1
    return document


SHARED = "other programs on the CPU"
"""The true answer wherever other tests keep the cores busy meanwhile."""


def answer(document: dict[str, Any]) -> str:
    """What it is, or what the processes point to."""
    starved = document["starved"]
    return str(starved["likely"] or starved["by"])


def sampled(document: dict[str, Any]) -> dict[str, Any]:
    """The document, where this machine lets a sampler of so little cost look often enough."""
    ticks = document["figures"]["ticks"]
    if ticks < LEAST_TICKS:
        pytest.skip(f"looking costs too much here: {ticks} samples")
    return document


def python(code: str, *words: str) -> tuple[str, ...]:
    return (sys.executable, "-c", textwrap.dedent(code), *words)


# --- the script stays as it is ------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 7])
def test_the_exit_code_and_the_streams_are_the_scripts(code: int) -> None:
    echo = f"import sys; print(sys.stdin.read()[::-1], sys.argv[1:]); sys.exit({code})"
    ran = bench(*python(echo, "--lr", "0.1"), stdin="abc")
    assert ran.returncode == code
    assert ran.stdout == "cba ['--lr', '0.1']\n"
    assert "measured" in ran.stderr


def test_a_script_that_a_signal_ended_gives_the_code_of_a_shell() -> None:
    ran = bench(*python("import os; os.kill(os.getpid(), 9)"))
    assert ran.returncode == 137


def test_a_program_that_is_not_there_or_no_program_is_a_sentence(tmp_path: Path) -> None:
    plain = tmp_path / "plain.txt"
    plain.write_text("x")
    for word, code in (("no-such-program", 127), (str(plain), 126)):
        ran = bench(word)
        assert ran.returncode == code
        assert len(ran.stderr.splitlines()) == 1


@pytest.mark.parametrize("option", ["--only=amp-bf16", "--chart=a.svg", "--workload=cnn"])
def test_what_belongs_to_the_workloads_is_refused(option: str) -> None:
    ran = bench("true", options=(option,))
    assert ran.returncode == 2
    assert "cannot be used with a command" in ran.stderr


def test_after_the_minutes_the_script_runs_on() -> None:
    ran = bench(*python("import time; time.sleep(4.5); print('done')"), options=("--minutes=0.05",))
    assert ran.returncode == 0
    assert ran.stdout == "done\n"
    assert "the script is still running" in ran.stderr


def test_stop_ends_the_script_and_its_workers(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    code = (
        "import os, time, sys\nchild = os.fork()\n"
        "open(sys.argv[1], 'a').write(f'{os.getpid()} ')\ntime.sleep(60)"
    )
    began = time.monotonic()
    ran = bench(*python(code, str(pids)), options=("--minutes=0.05", "--stop"))
    assert ran.returncode == 0
    assert time.monotonic() - began < 30
    assert "then the script was stopped" in ran.stderr
    time.sleep(0.3)
    for pid in pids.read_text().split():
        assert not Path(f"/proc/{pid}").exists() or " Z " in Path(f"/proc/{pid}/stat").read_text()


def test_a_signal_for_the_doctor_reaches_the_script_which_decides() -> None:
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
        "print('ready', flush=True)\ntime.sleep(60)"
    )
    argv = [sys.executable, "-m", "cudadoctor", "bench", "--", *python(code)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        child.send_signal(signal.SIGTERM)
        assert child.wait(30) == 5


def test_a_script_at_a_terminal_reads_from_it_and_hears_ctrl_c() -> None:
    code = "print(input(), flush=True)\nimport time; time.sleep(60)"
    argv = [sys.executable, "-m", "cudadoctor", "bench", "--", *python(code)]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(argv[0], argv)
    os.write(terminal, b"hello\n")
    seen = b""
    while seen.count(b"hello") < 2:  # the terminal's echo, and the script's answer
        seen += os.read(terminal, 1024)
    os.write(terminal, b"\x03")
    began = time.monotonic()
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        assert time.monotonic() - began < 30
        try:
            seen += os.read(terminal, 1024)
        except OSError:
            break
    os.close(terminal)
    assert b"KeyboardInterrupt" in seen


# --- what is told -------------------------------------------------------------------------------


def test_a_burning_thread_is_seen_and_without_a_gpu_nothing_is_claimed() -> None:
    ran = bench(*python(BURN, "3"))
    text = " ".join(ran.stderr.split())
    if "GPU utilization is unknown" not in text:
        pytest.skip("NVML answers here")
    assert "points to one thread of the main process" in text or SHARED in text
    assert "bottleneck: one thread" not in text
    assert "the script did not load torch" in text


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_are_told_from_the_process_that_trains(tmp_path: Path, method: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(WORKERS)
    document = sampled(document_of(sys.executable, str(script), method))
    assert document["figures"]["workers"] == 2
    assert answer(document) in ("data loading", SHARED)


def test_what_compiles_for_torch_is_no_worker(tmp_path: Path) -> None:
    """Inductor's pool: a process of its own whose forks idle."""
    pool = tmp_path / "compile_worker.py"
    pool.write_text("import os, time\n[os.fork() for _ in range(2)]\ntime.sleep(4)")
    code = "import subprocess, sys\npool = subprocess.Popen([sys.executable, sys.argv[2]])\n"
    document = sampled(document_of(*python(code + BURN, "3", str(pool))))
    assert document["figures"]["processes"] == 5
    assert document["figures"]["workers"] == 0
    assert document["figures"]["main_thread"] > 0.05  # of a core: others may take the rest


def test_a_launcher_is_not_taken_for_the_training(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(BURN)
    document = sampled(document_of("sh", "-c", f"{sys.executable} {script} 3; true"))
    assert document["figures"]["processes"] == 2
    assert document["figures"]["workers"] == 0
    share = document["figures"]["main_thread"]
    assert isinstance(share, float) and share > 0.05  # of a core: others may take the rest


def test_a_sleeping_script_points_to_nothing() -> None:
    document = document_of(*python("import time; time.sleep(3)"))
    assert document["starved"]["by"] == "not known"
    assert document["starved"]["likely"] is None
    assert document["starved"]["settings"] == []


def test_reads_from_a_disk_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_bytes(os.urandom(1 << 20) * 16)
    os.sync()
    document = sampled(document_of(*python(READ, str(file))))
    asked = document["figures"]["asked_mb_s"]
    assert isinstance(asked, float) and asked > 1


def test_a_short_script_is_no_judgement() -> None:
    document = document_of("true")
    assert document["starved"]["by"] == "not known"
    assert "ended too soon" in str(document["starved"]["why"])


SLOW = """
import time, torch
from torch.utils.data import DataLoader, Dataset
class Photos(Dataset):
    def __len__(self):
        return 100000
    def __getitem__(self, index):
        return self.read(index)
    def read(self, index):
        time.sleep(0.02)
        return torch.randn(8)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
end = time.monotonic() + 5
for batch in DataLoader(Photos(), batch_size=8):
    model(batch).sum().backward()
    optimizer.step()
    if time.monotonic() > end:
        break
print(len(batch))
"""


@pytest.mark.torch
@pytest.mark.skipif(py_spy() is None, reason="py-spy is not installed")
def test_the_line_that_costs_the_time_is_named(python_cpu: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SLOW)
    ran = bench(python_cpu, str(script), options=("--json",))
    assert (ran.returncode, ran.stdout) == (0, "8\n")
    document = json.loads(ran.stderr)
    found = document["figures"]["stacks"]
    if found["refused"] or found["looks"] < LEAST_LOOKS:
        pytest.skip(f"stacks cannot be read here: {found}")
    assert document["starved"]["by"] in ("storage or network", SHARED)
    line = document["starved"]["line"]
    assert (line["code"], line["function"].rpartition(".")[2]) == ("time.sleep(0.02)", "read")
    assert document["figures"]["judged_s"] < 7  # the import of torch is no training


def test_without_py_spy_the_command_that_installs_it_is_shown() -> None:
    why, remedy = no_stacks(Figures(seconds=9.0, judged_s=9.0, ticks=9, torch=True), None)
    assert "py-spy is not installed" in why
    assert remedy is not None and sys.executable in remedy and remedy.endswith("py-spy")


@pytest.mark.parametrize(
    ("scope", "remedy"),
    [("1", "sudo sysctl kernel.yama.ptrace_scope=0"), ("", None)],
)
def test_what_forbids_py_spy_is_named_with_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scope: str, remedy: str | None
) -> None:
    file = tmp_path / "ptrace_scope"
    file.write_text(scope)
    monkeypatch.setattr("cudadoctor.bench.script.YAMA", file)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    found = Figures(
        seconds=9.0,
        judged_s=9.0,
        ticks=9,
        torch=True,
        stacks=Stacks(refused_workers="Permission Denied: Try running again"),
    )
    why, shown = no_stacks(found, "/venv/bin/py-spy")
    assert "the stacks of the DataLoader workers" in why
    assert shown == remedy


def test_files_are_named_from_the_working_folder_and_without_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a module that a script imports is read too: its steps may never be seen on a stack."""
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    files = [folder / "train.py", tmp_path / "shared.py"]
    for file in (*files, folder / "steps.py"):
        file.write_text("from steps import step\n")
    frames = [[str(file), 1, "f"] for file in files]
    stack = {"kind": "stacks", "threads": [{"frames": frames}]}
    lines, texts = readable([stack])
    assert [frame[0] for frame in lines[0]["threads"][0]["frames"]] == ["train.py", "~/shared.py"]
    assert set(texts) == {"train.py", "~/shared.py", "steps.py"}


GPU = "power_limit = 400000\npower = 100000\nmemory = 16000000000\nused = 4000000000\n"


def with_gpu(standins: StandIns, scenario: str, *words: str) -> dict[str, Any]:
    return sampled(document_of(*words, env=standins.environment(scenario + GPU, standins.nvml())))


def test_a_waiting_gpu_and_busy_workers_are_data_loading(
    standins: StandIns, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(WORKERS)
    document = with_gpu(standins, "utilization = 20\n", sys.executable, str(script), "fork")
    starved = document["starved"]
    assert starved["by"] in ("data loading", SHARED)
    assert "GPU 0: busy 20% of the time" in str(starved["evidence"])
    assert len(starved["settings"]) == 1


def test_a_waiting_gpu_and_a_burning_thread_are_host_overhead(standins: StandIns) -> None:
    document = with_gpu(standins, "utilization = 30\n", *python(BURN, "3"))
    assert document["starved"]["by"] in ("one thread of the main process", SHARED)


@pytest.mark.parametrize(
    ("scenario", "by"),
    [
        ("utilization = 97\n", "not starved"),
        ("utilization = 97\nthrottle = 0x4\n", "power or thermal cap"),
        ("utilization = 97\nused = 15800000000\n", "memory nearly full"),
        ("utilization = 40\npcie_rx = 40000000\n", "PCIe transfers"),
        ("utilization = 40\nthrottle = 0x40\n", "power or thermal cap"),
        ("utilization = 40\n", "not known"),
    ],
)
def test_what_the_gpu_tells_decides(standins: StandIns, scenario: str, by: str) -> None:
    document = with_gpu(standins, scenario, *python("import time; time.sleep(2.5)"))
    assert document["starved"]["by"] == by


def test_a_driver_that_hangs_leaves_what_the_processes_tell(standins: StandIns) -> None:
    scenario = "nvmlDeviceGetUtilizationRates = hang\n"
    began = time.monotonic()
    document = with_gpu(standins, scenario, *python(BURN, "3"))
    assert time.monotonic() - began < 30
    assert answer(document) in ("one thread of the main process", SHARED)


def test_a_driver_that_crashes_the_sampler_does_not_touch_the_script(standins: StandIns) -> None:
    env = standins.environment("nvmlDeviceGetUtilizationRates = crash\n", standins.nvml())
    ran = bench(*python("import time; time.sleep(2); print('done')"), env=env)
    assert (ran.returncode, ran.stdout) == (0, "done\n")


def test_the_report_may_go_to_a_file(tmp_path: Path) -> None:
    file = tmp_path / "report.md"
    ran = bench("true", options=("--markdown", f"--output={file}"))
    assert ran.returncode == 0
    assert ran.stderr == ""
    assert file.read_text().startswith("**bottleneck unknown")


def test_exit_codes_are_those_of_a_shell() -> None:
    assert [exit_code(code) for code in (0, 3, -9, -15)] == [0, 3, 137, 143]
