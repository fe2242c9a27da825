"""The processes of a repair: the package manager, the second look, and who else runs there."""

import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from os.path import basename, dirname, isdir, join, normpath, realpath
from pathlib import Path
from time import monotonic

import msgspec
from msgspec import Struct

from cudadoctor.cli.options import Options
from cudadoctor.cli.speech import say
from cudadoctor.host import children
from cudadoctor.host.children import Environment
from cudadoctor.host.signals import Interrupts
from cudadoctor.model.machine import Json, OptInt, OptStr, Strings
from cudadoctor.privacy.patterns import bare
from cudadoctor.render import inert
from cudadoctor.repair.journal import Begun, Root

SILENCE_S = 1800.0
"""A command that says nothing for so long is ended: a build of an extension can take that long."""
POLL_S = 0.05
GONE_S = 10.0
GRACE_S = 3.0
KEPT_LINES = 200
MOST_LINE = 1 << 16

_WAITING = """\
import os, sys
if sys.platform.startswith("linux"):
    import ctypes
    ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
    if os.getppid() != int(sys.argv[1]):
        os._exit(1)
if os.read(0, 1) != b"!":
    os._exit(1)
null = os.open(os.devnull, os.O_RDONLY)
os.dup2(null, 0)
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.stderr.write("%s: %s\\n" % (sys.argv[2], error.strerror))
    os._exit(127)
"""
"""Waits for the word that its record is on disk, then becomes the command. On Linux the kernel
kills it where the doctor is killed."""


def private(path: str, flags: int) -> int:
    """Opens a file that only its owner reads: package managers print the addresses of indexes."""
    return os.open(path, flags, 0o600)


class Failed(Exception):  # noqa: N818 - told in one sentence
    """The work cannot go on. tail: the last lines of the tool."""

    def __init__(self, why: str, tail: Strings = ()) -> None:
        super().__init__(why)
        self.tail = tail


class Command:
    """A command that has been started and waits; `go` lets it run. Raises OSError or ValueError.

    folder: where it runs, the doctor's own: `python -m pip` in the user's would run a pip.py that
    lies there. on_line: called with each line, in a thread. held: files that stay open, and locked,
    as long as it lives.
    """

    def __init__(
        self,
        argv: Strings,
        env: Environment,
        folder: str,
        on_line: Callable[[str], None],
        held: tuple[int, ...] = (),
    ) -> None:
        self.lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._on_line = on_line
        self._last_output = monotonic()
        waits = os.name == "posix"
        words = (sys.executable, "-I", "-S", "-B", "-c", _WAITING, str(os.getpid()), *argv)
        self.child = children.start(
            words if waits else argv,
            env=children.environment(env, folder),
            cwd=folder,
            stdin=subprocess.PIPE if waits else None,
            stderr=subprocess.STDOUT,
            pass_fds=held if waits else (),
        )
        reader = children.start_thread(self._read)
        if reader is None:
            children.kill(self.child)
            raise OSError(errno.EAGAIN, "could not start a thread to read its output")
        self._reader = reader

    def _read(self) -> None:
        assert self.child.stdout is not None
        rest = b""
        with self.child.stdout as pipe, suppress(OSError, ValueError):
            # Any byte is a sign of life: a progress bar may end no line for an hour.
            while piece := os.read(pipe.fileno(), MOST_LINE):
                self._last_output = monotonic()
                *lines, rest = (rest[-MOST_LINE:] + piece).split(b"\n")
                for line in lines:
                    self._take(line)
        self._take(rest)

    def _take(self, raw: bytes) -> None:
        # A carriage return overwrites a progress bar: only what came last counts.
        line = bare(raw.decode("utf-8", "replace").rstrip().rpartition("\r")[2])
        if line.strip():
            self.lines.append(line)
            self._on_line(line)

    def go(self) -> None:
        """Let it run."""
        if self.child.stdin is not None:
            with suppress(OSError):
                self.child.stdin.write(b"!")
                self.child.stdin.close()

    def wait(self, stopped: Callable[[], bool], silence_s: float = SILENCE_S) -> OptInt:
        """Its exit status; None where it was ended: `stopped` said so, or it said nothing."""
        code = children.wait(
            self.child, lambda: stopped() or monotonic() - self._last_output > silence_s, POLL_S
        )
        self.end()
        return code

    def end(self) -> None:
        """End it and all that it started; asked first, so that it removes its temporary files."""
        if self.child.poll() is None:
            children.kill(self.child, "SIGINT", patience_s=GRACE_S, grace_s=GRACE_S)
        end_group(self.child.pid, None)
        self._reader.join(GRACE_S)


ELSEWHERE = (
    *("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_PYTHON", "PIP_REQUIREMENT", "PIP_EDITABLE"),
    *("UV_SYSTEM_PYTHON", "UV_PYTHON", "UV_PROJECT", "UV_WORKING_DIRECTORY", "UV_DRY_RUN"),
    *("PYTHONPATH", "PYTHONSTARTUP", "PYTHONUSERBASE"),
)
"""Variables with which a package manager changes something else than the examined environment; of
PYTHONPATH pip uninstalls what lies there, where it runs in no virtual environment."""
_OFF = ("PIP_USER", "PIP_DRY_RUN", "PIP_REQUIRE_VIRTUALENV", "PIP_IGNORE_INSTALLED")
"""The same as switches, which also a configuration file may turn on."""


def ignored_variables(own: Environment) -> Strings:
    """The user's variables that a package manager is not told of."""
    on = (
        name for name in _OFF if own.get(name, "0").lower() not in ("", "0", "false", "no", "off")
    )
    return (*(name for name in ELSEWHERE if own.get(name)), *on)


def environment(own: Environment, variables: Mapping[str, OptStr]) -> dict[str, str]:
    """The environment for a package manager: the user's own, with nothing that would ask or lead
    out of the examined environment. variables: of the steps (None: unset)."""
    found = {name: value for name, value in own.items() if name not in ELSEWHERE}
    found |= dict.fromkeys(_OFF, "0")
    found |= {
        "PIP_NO_INPUT": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PYTHONNOUSERSITE": "1",
        "PYTHONUNBUFFERED": "1",
        "UV_NO_PROGRESS": "1",
        "CONDA_ALWAYS_YES": "true",
    }
    return changed(found, variables)


def changed(own: Environment, variables: Mapping[str, OptStr]) -> dict[str, str]:
    """An environment with some variables set, and others (None) unset."""
    return {name: value for name, value in {**own, **variables}.items() if value is not None}


# --- processes that a killed doctor left behind -----------------------------------------------


class Process(Struct, frozen=True, array_like=True):
    """A line of /proc/PID/stat. started: clock ticks after boot."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    started: int


def parse_stat(text: str) -> Process | None:
    """The process of a /proc/PID/stat; its name may hold spaces and brackets."""
    head, _, rest = text.rpartition(")")
    words = (head.partition(" ")[0], *rest.split())
    with suppress(msgspec.ValidationError, IndexError):
        return msgspec.convert((*words[:5], words[20]), Process, strict=False)
    return None


def processes() -> Iterator[Process]:
    """All processes of this system; none where they cannot be listed."""
    with suppress(OSError):
        yield from filter(None, map(process, map(int, filter(str.isdigit, os.listdir("/proc")))))


def process(pid: int) -> Process | None:
    """One process, None where it is gone or nobody can tell."""
    with suppress(OSError):
        return parse_stat(_read(pid, "stat"))
    return None


def end_group(pid: int, started: OptInt) -> bool:
    """End the group that a process leads, and wait until it is gone; whether it is.

    started: the leader's start time; another process under the same number is left alone. None:
    a child of ours, whose number nobody else can have.
    """
    if sys.platform != "linux":
        # There is no /proc: by the group's number, or on Windows the process alone.
        with suppress(OSError):
            if hasattr(os, "killpg"):
                os.killpg(pid, signal.SIGKILL)
            else:
                os.kill(pid, signal.SIGTERM)
        return True
    deadline = monotonic() + GONE_S
    while monotonic() < deadline:
        leader = process(pid)
        if leader and started is not None and leader.started != started:
            return True
        members = (seen for seen in processes() if pid in (seen.group, seen.session))
        alive = [member.pid for member in members if member.state not in "ZX"]
        if not alive:
            return True
        for number in alive:
            with suppress(OSError):
                os.kill(number, signal.SIGKILL)
        time.sleep(0.02)
    return False


def left_behind(pid: int, started: OptInt) -> bool:
    """Whether the group of a doctor that was killed may still run, after it was ended here.

    Only Linux tells a process from another one that got its number: elsewhere it is not ended.
    """
    if sys.platform == "linux":
        return started is not None and not end_group(pid, started)
    if not hasattr(os, "killpg"):
        return False
    try:
        os.killpg(pid, 0)
    except OSError:
        return False
    return True


def patient_interrupts() -> Interrupts:
    """Signals while an environment is changed: noted, and acted upon between two steps."""
    text = say("restoring the environment before exiting")
    line = f"\ncudadoctor: {text}\n".encode("utf-8", "replace")

    def tell(_: int) -> None:
        # Not through sys.stderr, in the middle of whose own work the signal may have come.
        with suppress(OSError):
            os.write(2, line)

    return Interrupts(on_first=tell)


MOST_BYTES = 16 << 20
KERNEL = 2
"""The parent of the kernel's own threads, which map nothing."""


class Seen(Struct, frozen=True, kw_only=True):
    """What one process shows of itself. mapped: the paths of /proc/PID/maps."""

    argv: Strings = ()
    mapped: Strings = ()
    folder: str = ""
    path: str = ""


def used_by(prefix: str, roots: tuple[Root, ...], tell: Callable[[str], None]) -> list[str]:
    """The processes that run in an environment, but for the doctor and what it started.

    tell: gets a sentence on what could not be looked at.
    """
    if sys.platform != "linux" or not isdir("/proc/self"):
        tell(
            say(
                "Cannot check which programs are using this environment. If any are, stop them "
                "first."
            )
        )
        return []
    everyone = tuple(processes())
    own = family(os.getpid(), everyone)
    others = [
        other.pid
        for other in everyone
        if not (other.pid in own or other.state in "ZX" or KERNEL in (other.pid, other.parent))
    ]
    # Maps name files behind all links; a program is called by the path that the user has.
    roots += tuple(msgspec.structs.replace(root, path=realpath(root.path)) for root in roots)
    looks = [(pid, _seen(pid)) for pid in others]
    # Those of root are the system's: nobody's environment is told of them.
    unread = [pid for pid, seen in looks if seen is None and _owner(pid) != 0]
    if unread:
        tell(
            say(
                "Could not check 1 process owned by another user; it may be using this environment."
                if len(unread) == 1
                else "Could not check {count} processes owned by other users; they may be using "
                "this environment.",
                count=len(unread),
            )
        )
    return [
        f"{inert(' '.join(seen.argv)[:80] or '?')} ({pid})"
        for pid, seen in looks
        if seen and runs_in(seen, prefix, roots)
    ]


def _owner(pid: int) -> OptInt:
    with suppress(OSError):
        return os.stat(f"/proc/{pid}").st_uid
    return None


def family(pid: int, everyone: tuple[Process, ...]) -> frozenset[int]:
    """A process and all that descend from it."""
    found = {pid}
    while more := {child.pid for child in everyone if child.parent in found} - found:
        found |= more
    return frozenset(found)


def runs_in(seen: Seen, prefix: str, roots: tuple[Root, ...]) -> bool:
    """Whether a process was started by the environment's Python, or has a file of it mapped."""
    if any(_holds(root, path) for root in roots for path in seen.mapped):
        return True
    program = _program(seen)
    scripts = (f"{prefix}/bin", f"{prefix}/Scripts")
    return dirname(program) in scripts and "python" in basename(program)


def _holds(root: Root, path: str) -> bool:
    below = path.removeprefix(root.path.rstrip("/") + "/")
    return below != path and root.has(below.partition("/")[0])


def _program(seen: Seen) -> str:
    """The program's path as it was called: the link of a venv, not what lies behind it."""
    word = seen.argv[0] if seen.argv else ""
    if "/" in word:
        return normpath(join(seen.folder or "/", word))
    for folder in seen.path.split(os.pathsep):
        path = join(folder, word)
        if word and folder and os.path.exists(path):
            return path
    return word


def _seen(pid: int) -> Seen | None:
    """What a process shows; None where it is another user's. One that has ended shows nothing."""
    try:
        mapped = parse_maps(_read(pid, "maps"))
        env = _read(pid, "environ").split("\0")
        argv = tuple(word for word in _read(pid, "cmdline").split("\0") if word)
        folder = ""
        with suppress(OSError):
            folder = os.readlink(f"/proc/{pid}/cwd")
    except PermissionError:
        return None
    except OSError:
        return Seen()
    path = next((line[5:] for line in env if line.startswith("PATH=")), "")
    return Seen(argv=argv, mapped=mapped, folder=folder, path=path)


def parse_maps(text: str) -> Strings:
    """The files that a process has mapped, each once, those deleted since without the mark."""
    lines = (line.split(maxsplit=5) for line in text.splitlines() if " /" in line)
    named = (words[5].removesuffix(" (deleted)") for words in lines if len(words) > 5)
    return tuple(dict.fromkeys(named))


def _read(pid: int, name: str) -> str:
    with open(f"/proc/{pid}/{name}", "rb") as file:
        return file.read(MOST_BYTES).decode("utf-8", "surrogateescape")


_START = (
    "import sys; sys.path[:] = sys.argv.pop(1).split('\\n');"
    " from cudadoctor.__main__ import main; main()"
)
"""Isolated, and with the path that this process has settled: it starts in the user's folder."""


def check(begun: Begun, log: str, stopped: Callable[[], bool]) -> Json | None:
    """The JSON document of a check of the repaired environment.

    None where there is none, also because `stopped` said so. log: gets what it says beside it.
    """
    path = "\n".join((str(Path(__file__).absolute().parents[2]), *sys.path))
    look = look_words(begun.options, begun.afterwards)
    argv = [sys.executable, "-I", "-B", "-c", _START, path, "check", *look]
    variables = {name: value for task in begun.tasks for name, value in task.variables.items()}
    with (
        tempfile.TemporaryFile(dir=dirname(log)) as out,
        open(log, "ab", opener=private) as err,
    ):
        child = children.start(
            argv, env=changed(os.environ, variables), cwd=os.curdir, stdout=out, stderr=err
        )
        if children.wait(child, stopped, POLL_S) is None:
            end_group(child.pid, None)
            child.wait()
            return None
        out.seek(0)
        with suppress(ValueError):
            found = json.load(out)
            return found if isinstance(found, dict) and "verdict" in found else None
    return None


def look_words(options: Options, python: str) -> list[str]:
    """The command line of the look; pure."""
    flags = {
        "--fast": options.fast,
        "--no-smoke": options.no_smoke,
        "--compile": options.compiles,
    }
    valued = [("--device", options.device), ("--timeout", options.timeout)]
    valued += [("--ignore", cause) for cause in options.ignore]
    return [
        *("--json", "--full", "--python", python),
        *(flag for flag, on in flags.items() if on),
        *(word for flag, value in valued if value for word in (flag, str(value))),
    ]
