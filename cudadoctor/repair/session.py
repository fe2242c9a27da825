"""The processes of a repair: the package manager, the second look, and who else runs there."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from cudadoctor.cli.options import Options
from cudadoctor.host import children
from cudadoctor.host.signals import Interrupts
from cudadoctor.privacy.patterns import bare
from cudadoctor.repair.journal import Begun, Root

SILENCE_S = 1800.0
"""A command that says nothing for so long is ended: a build of an extension can take that long."""
POLL_S = 0.05
GONE_S = 10.0
TAIL_BYTES = 4096

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


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended. code: None where it was ended for its silence. tail: its last lines."""

    code: int | None
    tail: tuple[str, ...]


class Command:
    """A command that has been started and waits; `go` lets it run.

    log: where its words go. It runs in that folder, which is the doctor's own: `python -m pip` in
    the user's would run a pip.py that lies there.
    """

    def __init__(self, argv: tuple[str, ...], env: Mapping[str, str], log: str) -> None:
        self.argv = argv
        self.log = log
        self._from = os.path.getsize(log) if os.path.exists(log) else 0
        waits = os.name == "posix"
        cwd = os.path.dirname(os.path.abspath(log))
        words = (sys.executable, "-I", "-S", "-B", "-c", _WAITING, str(os.getpid()), *argv)
        with open(log, "ab", opener=private) as file:
            self.child = children.start(
                words if waits else argv,
                env=children.environment(env, cwd),
                cwd=cwd,
                stdin=subprocess.PIPE if waits else None,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def go(self) -> None:
        """Let it run."""
        if self.child.stdin is not None:
            with contextlib.suppress(OSError):
                self.child.stdin.write(b"!")
                self.child.stdin.close()

    def wait(
        self,
        on_line: Callable[[str], None],
        stopped: Callable[[], bool],
        silence_s: float = SILENCE_S,
    ) -> Ended:
        """Wait for its end. on_line: told its last line. stopped: whether to end it now."""
        size, heard = self._from, time.monotonic()

        def enough() -> bool:
            nonlocal size, heard
            if (now := os.path.getsize(self.log)) > size:
                size, heard = now, time.monotonic()
                on_line(next(reversed(self.tail()), ""))
            return stopped() or time.monotonic() - heard > silence_s

        code = children.wait(self.child, enough, POLL_S)
        self.end()
        return Ended(code=code, tail=self.tail())

    def end(self) -> None:
        """End it and all that it started."""
        end_group(self.child.pid, None)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.child.wait(GONE_S)

    def tail(self, most: int = 8) -> tuple[str, ...]:
        """The last lines that it has said."""
        with open(self.log, "rb") as file:
            file.seek(max(self._from, os.path.getsize(self.log) - TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
        # A carriage return starts a progress bar anew: what came last is what counts.
        lines = [bare(line.rstrip().rpartition("\r")[2]) for line in text.split("\n")]
        return tuple(line for line in lines if line.strip())[-most:]


ELSEWHERE = (
    *("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_PYTHON", "PIP_REQUIREMENT", "PIP_EDITABLE"),
    *("UV_SYSTEM_PYTHON", "UV_PYTHON", "UV_PROJECT", "UV_WORKING_DIRECTORY", "UV_DRY_RUN"),
    *("PYTHONPATH", "PYTHONSTARTUP", "PYTHONUSERBASE"),
)
"""Variables with which a package manager changes something else than the examined environment; of
PYTHONPATH pip uninstalls what lies there, where it runs in no virtual environment."""
_OFF = ("PIP_USER", "PIP_DRY_RUN", "PIP_REQUIRE_VIRTUALENV", "PIP_IGNORE_INSTALLED")
"""The same as switches, which also a configuration file may turn on."""


def not_heeded(own: Mapping[str, str]) -> tuple[str, ...]:
    """The user's variables that a package manager is not told of."""
    on = (
        name for name in _OFF if own.get(name, "0").lower() not in ("", "0", "false", "no", "off")
    )
    return (*(name for name in ELSEWHERE if own.get(name)), *on)


def environment(own: Mapping[str, str], variables: Mapping[str, str | None]) -> dict[str, str]:
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


def changed(own: Mapping[str, str], variables: Mapping[str, str | None]) -> dict[str, str]:
    """An environment with some variables set, and others (None) unset."""
    return {name: value for name, value in {**own, **variables}.items() if value is not None}


# --- processes that a killed doctor left behind -----------------------------------------------


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """A line of /proc/PID/stat. started: clock ticks after boot."""

    pid: int
    parent: int
    group: int
    session: int
    started: int
    state: str


def parse_stat(text: str) -> Process | None:
    """The process of a /proc/PID/stat; its name may hold spaces and brackets."""
    head, _, rest = text.rpartition(")")
    words = rest.split()
    pid = head.partition(" ")[0]
    if len(words) < 20 or not pid.isdigit():
        return None
    state, parent, group, session = words[0], *map(int, words[1:4])
    return Process(
        pid=int(pid),
        parent=parent,
        group=group,
        session=session,
        started=int(words[19]),
        state=state,
    )


def processes() -> tuple[Process, ...]:
    """All processes of this system; () where they cannot be listed."""
    found = []
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            if name.isdigit() and (seen := process(int(name))):
                found.append(seen)
    return tuple(found)


def process(pid: int) -> Process | None:
    """One process, None where it is gone or nobody can tell."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/stat", "rb") as file:
        return parse_stat(file.read().decode("utf-8", "replace"))
    return None


def end_group(pid: int, started: int | None) -> bool:
    """End the group that a process leads, and wait until it is gone; whether it is.

    started: the leader's start time; another process under the same number is left alone. None:
    a child of ours, whose number nobody else can have.
    """
    if sys.platform != "linux":
        # There is no /proc: by the group's number, or on Windows the process alone.
        with contextlib.suppress(OSError):
            if hasattr(os, "killpg"):
                os.killpg(pid, signal.SIGKILL)
            else:
                os.kill(pid, signal.SIGTERM)
        return True
    deadline = time.monotonic() + GONE_S
    while time.monotonic() < deadline:
        leader = process(pid)
        if leader and started is not None and leader.started != started:
            return True
        members = [seen for seen in processes() if pid in (seen.group, seen.session)]
        alive = [member for member in members if member.state not in "ZX"]
        if not alive:
            return True
        for member in alive:
            with contextlib.suppress(OSError):
                os.kill(member.pid, signal.SIGKILL)
        time.sleep(0.02)
    return False


def left_behind(pid: int, started: int | None) -> bool:
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
    return Interrupts(on_first=_say_stopping)


def _say_stopping(_: int) -> None:
    # Not through sys.stderr, in the middle of whose own work the signal may have come.
    with contextlib.suppress(OSError):
        os.write(2, b"\ncudadoctor: stopping as soon as the environment is whole\n")


MOST_BYTES = 16 << 20
KERNEL = 2
"""The parent of the kernel's own threads, which map nothing."""


class User(msgspec.Struct, frozen=True, kw_only=True):
    """A process that runs in the environment. words: what it was started as, shortened."""

    pid: int
    words: str


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """known: whether it could be looked at. unread: how many processes would not be read."""

    known: bool = True
    users: tuple[User, ...] = ()
    unread: int = 0


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What one process shows of itself. mapped: the paths of /proc/PID/maps."""

    argv: tuple[str, ...] = ()
    mapped: tuple[str, ...] = ()
    folder: str = ""
    path: str = ""


def used_by(prefix: str, roots: tuple[Root, ...]) -> Use:
    """The processes that run in an environment, but for the doctor and what it started."""
    if sys.platform != "linux" or not os.path.isdir("/proc/self"):
        return Use(known=False)
    users, unread = [], 0
    everyone = processes()
    own = family(os.getpid(), everyone)
    # Maps name files behind all links; a program is called by the path that the user has.
    replace = msgspec.structs.replace
    roots += tuple(replace(root, path=os.path.realpath(root.path)) for root in roots)
    for other in everyone:
        if other.pid in own or other.state in "ZX" or KERNEL in (other.pid, other.parent):
            continue
        seen = _seen(other.pid)
        if seen is None:
            unread += 1
        elif runs_in(seen, prefix, roots):
            users.append(User(pid=other.pid, words=" ".join(seen.argv)[:80] or "?"))
    return Use(users=tuple(users), unread=unread)


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
    return os.path.dirname(program) in scripts and "python" in os.path.basename(program)


def _holds(root: Root, path: str) -> bool:
    folder = root.path.rstrip("/") + "/"
    return path.startswith(folder) and root.has(path[len(folder) :].split("/", maxsplit=1)[0])


def _program(seen: Seen) -> str:
    """The program's path as it was called: the link of a venv, not what lies behind it."""
    word = seen.argv[0] if seen.argv else ""
    if "/" in word:
        return os.path.normpath(os.path.join(seen.folder or "/", word))
    for folder in seen.path.split(os.pathsep):
        path = os.path.join(folder, word)
        if word and folder and os.path.exists(path):
            return path
    return word


def _seen(pid: int) -> Seen | None:
    """What a process shows; None where it is another user's. One that has ended shows nothing."""
    try:
        maps = _read(pid, "maps")
        env = _read(pid, "environ").split("\0")
        argv = tuple(word for word in _read(pid, "cmdline").split("\0") if word)
        folder = ""
        with contextlib.suppress(OSError):
            folder = os.readlink(f"/proc/{pid}/cwd")
    except PermissionError:
        return None
    except OSError:
        return Seen()
    path = next((line[5:] for line in env if line.startswith("PATH=")), "")
    return Seen(argv=argv, mapped=parse_maps(maps), folder=folder, path=path)


def parse_maps(text: str) -> tuple[str, ...]:
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


class NoAnswer(Exception):  # noqa: N818 - told in one sentence
    """The second look gave no report."""


def check(
    begun: Begun, folder: str, env: Mapping[str, str], stopped: Callable[[], bool]
) -> dict[str, Any]:
    """The JSON document of a check of the repaired environment.

    Raises NoAnswer where there is none, also because `stopped` said so.
    """
    home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    path = "\n".join((home, *sys.path))
    look = look_words(begun.options, begun.afterwards)
    argv = [sys.executable, "-I", "-B", "-c", _START, path, "check", *look]
    variables = {name: value for task in begun.tasks for name, value in task.variables.items()}
    answer = os.path.join(folder, "check.json")
    with (
        open(answer, "wb") as out,
        open(os.path.join(folder, "log.txt"), "ab", opener=private) as log,
    ):
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=log,
            env=changed(env, variables),
            start_new_session=os.name == "posix",
        )
        if children.wait(child, stopped, POLL_S) is None:
            end_group(child.pid, None)
            child.wait()
            raise NoAnswer("it was interrupted")
    with open(answer, "rb") as file:
        data = file.read()
    os.unlink(answer)
    with contextlib.suppress(ValueError):
        found = json.loads(data)
        if isinstance(found, dict) and "verdict" in found:
            return found
    raise NoAnswer("the second look gave no report")


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
