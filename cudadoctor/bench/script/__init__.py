"""`cudadoctor bench -- python train.py ...`: run a user's training and say what starves the GPU.

The script runs as it is, beside its sampler; stdout is the script's, so the report goes to stderr,
or to the file of --output. After --minutes the report is printed and the script runs on, not
sampled any more, unless --stop ends it then. The exit code is the script's; one that --stop ended
gives 0.

Nothing of the script is changed: its words, folder, environment, stdin and stdout are those of the
doctor. It leads a process group of its own, so that --stop reaches its workers too; where stdin is
a terminal it stays in the doctor's group, as under `time`: the terminal's keys (Ctrl-C, Ctrl-Z)
reach the script, which decides.
"""

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from subprocess import Popen, TimeoutExpired

from cudadoctor.bench import page, results
from cudadoctor.bench.results import Line
from cudadoctor.bench.script import stacks, starved
from cudadoctor.bench.script.starved import Figures
from cudadoctor.cli.options import Options, refuse
from cudadoctor.cli.output import width
from cudadoctor.cli.speech import current, say
from cudadoctor.host import children, signals
from cudadoctor.model.machine import OptStr, Strings
from cudadoctor.probes.nvml import module_folder
from cudadoctor.probes.streamed import line_of

SAMPLER = Path(__file__).parent / "inside" / "sampler.py"
PERIOD_S = 0.4
YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
PR_SET_PTRACER = 0x59616D61
MOST_SOURCE = 1 << 20
MISSING, FORBIDDEN = 127, 126
"""Exit codes of a shell for a program that is not there, or may not be run."""
PATIENCE_S = 10.0
"""After each of --stop's signals: a training may write a checkpoint first."""
_PASSED_ON = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")


def run(words: Strings, asked: Options) -> int:
    """Run the command under the sampler, report, and pass on its exit code."""
    for name in ("workloads", "only", "chart", "python", "device"):
        if getattr(asked, name):
            option = name.removesuffix("s")
            refuse("--{option} cannot be used with a command after --", option=option)
    try:
        script = start(words)
    except FileNotFoundError:
        text = say("command not found: {name}", name=words[0])
        _to_stderr(f"cudadoctor: {text}\n")
        return MISSING
    except OSError as error:
        reason = error.strerror
        text = say("cannot start {program}: {reason}", program=words[0], reason=reason)
        _to_stderr(f"cudadoctor: {text}\n")
        return FORBIDDEN
    at_a_terminal = _at_a_terminal()

    def pass_on(number: int) -> None:
        """To the script, which decides; at a terminal it has heard Ctrl-C already."""
        if not (at_a_terminal and number == signal.SIGINT):
            send(script, number)

    with signals.Interrupts(pass_on, pass_on, _PASSED_ON):
        try:
            sampler = Sampler(script.pid)
        except OSError as error:
            _to_stderr(
                f"cudadoctor: running your script without taking measurements: {error.strerror}\n"
            )
            return exit_code(script.wait())
        code = None
        with suppress(TimeoutExpired):
            code = exit_code(script.wait(asked.minutes * 60))
        figures = starved.figures(*readable(sampler.end()))
        why, remedy = no_stacks(figures, sampler.spy)
        report = starved.ScriptReport(
            figures=figures,
            starved=starved.judge(figures),
            code=code,
            stopped=asked.stop and code is None,
            no_stacks=why,
            remedy=remedy,
        )
        _report(report, asked)
        if report.stopped:
            stop(script)
            return 0
        return exit_code(script.wait())


def _report(report: starved.ScriptReport, asked: Options) -> None:
    """A report that cannot be written never ends the script."""
    if asked.as_json:
        text = results.dumps(report) + "\n"
    elif asked.markdown:
        text = starved.markdown(report, current())
    else:
        text = "".join(
            f"{line.text}\n" for line in page.labelled(starved.rows(report), width(), say=current())
        )
    if asked.output is None:
        _to_stderr(text)
        return
    try:
        Path(asked.output).write_text(text, encoding="utf-8")
    except OSError as error:
        _to_stderr(f"cudadoctor: cannot write {asked.output}: {error.strerror}\n{text}")


def _imported(file: Path) -> list[Path]:
    """The modules beside a file that it imports: a training may call its steps from there."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    names = re.findall(r"^\s*(?:from|import)\s+\.*(\w+(?:\.\w+)*)", text, re.MULTILINE)
    paths = [file.parent / name.replace(".", "/") for name in names]
    return [
        path
        for place in paths
        for path in (place.with_suffix(".py"), place / "__init__.py")
        if path.is_file()
    ]


def _to_stderr(text: str) -> None:
    with suppress(OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()


def start(words: Strings) -> Popen[bytes]:
    """Start the script. Raises OSError."""
    leads = hasattr(os, "setpgid") and not _at_a_terminal()
    allow = _reading_allowed()

    def prepare() -> None:
        # setpgid in the child alone: a session of its own would cut it off from the terminal.
        if leads:
            os.setpgid(0, 0)
        if allow:
            allow()

    return Popen(words, preexec_fn=prepare if leads or allow else None)  # noqa: PLW1509


def _reading_allowed() -> Callable[[], object] | None:
    """What lets this process and its children read the script's stacks; None if that is not needed.

    With Yama's ptrace_scope 1, the default of Ubuntu, a program may read its descendants only, and
    py-spy is none of the script's ancestors. The exception holds for the script, not its workers.
    """
    if _yama() != "1":
        return None
    try:
        prctl = ctypes.CDLL(None).prctl
    except (OSError, AttributeError):
        return None
    doctor = os.getpid()
    return lambda: prctl(PR_SET_PTRACER, doctor, 0, 0, 0)


def _yama() -> str:
    try:
        return YAMA.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def py_spy() -> OptStr:
    """py-spy of the doctor's own environment."""
    return shutil.which("py-spy", path=sysconfig.get_path("scripts"))


def no_stacks(figures: Figures, spy: OptStr) -> tuple[str, OptStr]:
    """Why the lines of the script are not known, and the command that changes this."""
    found = figures.stacks
    if sys.platform != "linux" or figures.torch is False:
        return "", None
    if spy is None:
        pip = f"{sys.executable} -m pip install py-spy"
        uv = f"uv pip install --python {sys.executable} py-spy"
        return (
            "py-spy is not installed, so the line of your script that costs the time is not known",
            pip if find_spec("pip") else uv,
        )
    why = found.refused or found.refused_workers
    if not why:
        return "", None
    whose = "your script" if found.refused else "the DataLoader workers"
    if "ermission" not in why:
        return f"py-spy cannot read the stacks of {whose}: {why.splitlines()[0]}", None
    scope = _yama()
    if scope in ("1", "2"):
        return (
            f"the system does not let py-spy read the stacks of {whose} (ptrace_scope is {scope}); "
            "to allow this until the next reboot:",
            "sudo sysctl kernel.yama.ptrace_scope=0",
        )
    if os.geteuid() == 0:
        return (
            f"the container does not let py-spy read the stacks of {whose}; start it with:",
            "docker run --cap-add SYS_PTRACE ...",
        )
    return (
        f"py-spy may not read the stacks of {whose}: run cudadoctor as the user that runs the "
        "script, or as root",
        None,
    )


def readable(lines: list[Line]) -> tuple[list[Line], dict[str, str]]:
    """The lines with the user's files named as a person names them, and the texts of these."""
    short, texts = {}, {}
    files = stacks.user_files(lines)
    for file in files | {str(path) for name in files for path in _imported(Path(name))}:
        path = Path(file)
        short[file] = file
        for folder, name in ((Path.cwd(), ""), (Path.home(), "~/")):
            if path.is_relative_to(folder):
                short[file] = f"{name}{path.relative_to(folder)}"
                break
        with suppress(OSError):
            if path.is_file() and path.stat().st_size <= MOST_SOURCE:
                texts[short[file]] = path.read_text(encoding="utf-8", errors="replace")
    for line in lines:
        for thread in line.get("threads", ()):
            thread["frames"] = [[short.get(file, file), *rest] for file, *rest in thread["frames"]]
    return lines, texts


def _at_a_terminal() -> bool:
    try:
        return os.isatty(0)
    except OSError:
        return False


class Sampler:
    """The light process beside the script; what it prints is collected until it ends."""

    def __init__(self, pid: int, period_s: float = PERIOD_S) -> None:
        self.lines: list[Line] = []
        argv = [sys.executable, "-I", "-S", str(SAMPLER), str(pid), str(period_s)]
        self.spy = py_spy()
        self._child = children.start(
            [*argv, module_folder() or "", self.spy or ""],
            env=os.environ,
            cwd=children.neutral_folder(),
            stderr=subprocess.DEVNULL,
        )
        self.pid = self._child.pid
        self._reader = children.start_thread(self._read)

    def _read(self) -> None:
        assert self._child.stdout is not None
        self.lines.extend(filter(None, map(line_of, self._child.stdout)))

    def end(self) -> list[Line]:
        """Its lines; one that hangs inside the driver is left behind."""
        children.kill(self._child, "SIGTERM", patience_s=1.0)
        if self._reader is not None:
            self._reader.join(1.0)
        return list(self.lines)


def exit_code(returned: int) -> int:
    """As a shell passes it on: 128 and the signal's number for one that a signal ended."""
    return 128 - returned if returned < 0 else returned


def stop(script: Popen[bytes]) -> None:
    """End the script and its workers: asked twice, with patience, before it is made to."""
    for name in ("SIGINT", "SIGTERM", "SIGKILL"):
        number = getattr(signal, name, None)
        if number is None or script.poll() is not None:
            continue
        send(script, number)
        with suppress(TimeoutExpired):
            script.wait(PATIENCE_S)


def send(script: Popen[bytes], number: int) -> None:
    """To the script's group where it leads one, else to the script."""
    with suppress(OSError, ValueError):  # Windows knows few signals
        if hasattr(os, "getpgid") and os.getpgid(script.pid) == script.pid:
            os.killpg(script.pid, number)
        else:
            script.send_signal(number)
