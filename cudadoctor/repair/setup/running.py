"""Running a package manager: its last line as progress, its end in a sentence, its end by Ctrl-C.

A package manager may take an hour, so nothing limits it but the user. It runs in a session of its
own: what interrupts the doctor is passed on, and the doctor tidies up after it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import IO

from cudadoctor.cli.progress import Progress
from cudadoctor.host import children, local
from cudadoctor.privacy.telltale import bare
from cudadoctor.render import inert
from cudadoctor.repair.setup.making import Ended, Workplace

KEPT_LINES = 200
SHOWN_COLUMNS = 70
HEARING_S = 0.2
GRACE_S = 3.0
_HEEDED = ("SIGINT", "SIGTERM", "SIGHUP")
_MISLEADING = frozenset(
    {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PIP_USER", "PIP_TARGET", "PIP_PREFIX"}
    | {"PIP_ROOT", "PIP_DRY_RUN", "PIP_PYTHON", "PIP_REQUIREMENT", "PIP_REPORT", "PIP_QUIET"}
    | {"UV_PROJECT_ENVIRONMENT", "UV_PROJECT", "UV_SYSTEM_PYTHON", "UV_PYTHON", "UV_WORKING_DIR"}
    | {"UV_FROZEN", "UV_NO_SYNC", "CONDA_PREFIX", "__PYVENV_LAUNCHER__"}
)
"""Variables that lead an installation to another place than the new environment."""


class Ear:
    """Hears the signals that would end the doctor, until the environment is made or removed."""

    def __init__(self) -> None:
        self.heard: int | None = None

    def note(self, number: int, _: FrameType | None) -> None:
        """The second one ends the doctor at once; the marker says what it left."""
        if self.heard is not None:
            os._exit(128 + number)
        self.heard = number


@contextmanager
def listening() -> Iterator[Ear]:
    """Take the signals over, and give them back at the end."""
    ear, before = Ear(), {}
    for name in _HEEDED:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, ear.note)
    try:
        yield ear
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def clean(env: Mapping[str, str], scratch: str | None = None) -> dict[str, str]:
    """The environment for a package manager: nothing that leads it elsewhere or lets it ask.

    scratch: for its temporary files, where the user has named no place for them: /tmp may be small.
    """
    kept = {name: value for name, value in env.items() if name not in _MISLEADING}
    if scratch is not None:
        kept.setdefault("TMPDIR", scratch)
    return kept | {"PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def name_of(argv: tuple[str, ...]) -> str:
    """What a command is called while it is waited for: the module that a Python runs, else it."""
    if "-m" in argv[:-1]:
        return argv[argv.index("-m") + 1]
    return os.path.basename(argv[0])


class Runner:
    """Runs one command after the other in the workplace."""

    def __init__(self, ear: Ear, progress: Progress, workplace: Workplace) -> None:
        self.ear = ear
        self.progress = progress
        self.workplace = workplace

    def __call__(self, argv: tuple[str, ...]) -> Ended:
        if self.ear.heard is not None:
            return Ended(signal=self.ear.heard)
        try:
            child = self._started(argv)
        except (OSError, ValueError) as error:
            words = getattr(error, "strerror", None) or str(error)
            return Ended(why=f"{argv[0]} cannot be started: {words}")
        assert child.stdout is not None
        teller = _Teller(child.stdout, self.progress, name_of(argv))
        code = self._waited(child)
        teller.join(GRACE_S)
        teller.quiet()
        if self.ear.heard is not None:
            return Ended(signal=self.ear.heard, said=teller.said)
        return Ended(why=_why(argv, code), said=teller.said)

    def _started(self, argv: tuple[str, ...]) -> subprocess.Popen[bytes]:
        handle, place = self.workplace.lock, self.workplace
        scratch = str(place.scratch) if place.scratch.is_dir() else None
        # Never in the folder that the user stands in: a venv.py may lie there.
        cwd = scratch or local.this_host().place
        # The lock stays held while this child lives, also where the doctor is killed.
        inherited = (handle,) if handle is not None and sys.platform != "win32" else ()
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=children.environment(clean(os.environ, scratch), cwd),
            cwd=cwd,
            start_new_session=True,
            pass_fds=inherited,
        )

    def _waited(self, child: subprocess.Popen[bytes]) -> int:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return child.wait(HEARING_S)
            self.workplace.mark_late()
            if self.ear.heard is not None:
                return _stopped(child)


class _Teller(threading.Thread):
    """Reads what a command says; its newest line is what is being waited for."""

    def __init__(self, pipe: IO[bytes], progress: Progress, name: str) -> None:
        super().__init__(daemon=True)
        self._pipe, self._progress, self._name = pipe, progress, name
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._told = name
        progress(name, True)
        self.start()

    def run(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            for raw in self._pipe:
                # A bar draws itself anew after a carriage return: the last state counts.
                line = bare(raw.decode("utf-8", "replace").rstrip().rpartition("\r")[2])
                if not line.strip():
                    continue
                self._lines.append(line)
                # What is over is not what is waited for.
                if "uninstall" not in line.lower():
                    self._tell(f"{self._name}: {inert(line.strip())}"[:SHOWN_COLUMNS])

    def _tell(self, text: str) -> None:
        self._progress(self._told, False)
        self._told = text
        self._progress(text, True)

    def quiet(self) -> None:
        self._progress(self._told, False)

    @property
    def said(self) -> tuple[str, ...]:
        return tuple(self._lines)


def _stopped(child: subprocess.Popen[bytes]) -> int:
    """Ask it to stop, so that it removes its temporary files; then end it with all its own."""
    for name in ("SIGINT", "SIGKILL"):
        number = getattr(signal, name, signal.SIGTERM)
        with contextlib.suppress(OSError):
            if hasattr(os, "killpg"):
                os.killpg(child.pid, number)
            else:
                child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.wait(GRACE_S)
    return -signal.SIGTERM


def _why(argv: tuple[str, ...], code: int) -> str | None:
    if code == 0:
        return None
    if code < 0:
        return f"{argv[0]} was ended by signal {-code}"
    return f"{argv[0]} ended with exit status {code}"
