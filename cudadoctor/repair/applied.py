"""Running the commands of a step: in a group of their own, that ends where the doctor ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping

import msgspec

from cudadoctor.host import children
from cudadoctor.privacy.telltale import bare

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
            self.child = subprocess.Popen(
                words if waits else argv,
                stdin=subprocess.PIPE if waits else subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=children.environment(env, cwd),
                cwd=cwd,
                start_new_session=waits,
            )

    @property
    def pid(self) -> int:
        return self.child.pid

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
        while (code := self._polled()) is None:
            if stopped() or time.monotonic() - heard > silence_s:
                break
            now = os.path.getsize(self.log)
            if now > size:
                size, heard = now, time.monotonic()
                on_line(next(reversed(self.tail()), ""))
        self.end()
        return Ended(code=code, tail=self.tail())

    def _polled(self) -> int | None:
        try:
            return self.child.wait(POLL_S)
        except subprocess.TimeoutExpired:
            return None

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
    found = dict(own)
    for name, value in variables.items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = value
    return found


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
            if name.isdigit() and (one := process(int(name))):
                found.append(one)
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
        return _ended_elsewhere(pid)
    deadline = time.monotonic() + GONE_S
    while time.monotonic() < deadline:
        leader = process(pid)
        if leader and started is not None and leader.started != started:
            return True
        members = [one for one in processes() if pid in (one.group, one.session)]
        alive = [one for one in members if one.state not in "ZX"]
        if not alive:
            return True
        for one in alive:
            with contextlib.suppress(OSError):
                os.kill(one.pid, signal.SIGKILL)
        time.sleep(0.02)
    return False


def _ended_elsewhere(pid: int) -> bool:
    """Where there is no /proc: by the group's number, or on Windows the process alone."""
    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(pid, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGTERM)
    return True


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
