"""A program in a terminal of its own, with what a user would type."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import sys
import termios
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

DOCTOR = (sys.executable, "-m", "cudadoctor")


class Shown(NamedTuple):
    """What stood on the terminal, and the exit code."""

    text: str
    code: int


def in_terminal(
    *argv: str,
    columns: int = 80,
    env: Mapping[str, str] | None = None,
    answers: Mapping[str, bytes] | None = None,
    limit_s: float = 60.0,
) -> Shown:
    """Run it there. answers: what is typed as soon as such a text stands at the end.

    Of the locale, COLUMNS and the like only what env holds is set.
    """
    own = {name: value for name, value in os.environ.items() if name not in _OF_THE_TERMINAL}
    pid, terminal = pty.fork()
    if pid == 0:
        with suppress(OSError):
            os.execvpe(
                argv[0],
                argv,
                own | {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8"} | dict(env or {}),
            )
        os._exit(127)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    said, waiting = b"", dict(answers or {})
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        ready, _, _ = select.select([terminal], [], [], 0.2)
        try:
            piece = os.read(terminal, 1 << 16) if ready else b"?"
        except OSError:  # how Linux says that nobody holds the other end
            break
        if not piece:
            break
        said += piece if ready else b""
        for question in [
            name for name in waiting if said.decode(errors="replace").rstrip().endswith(name)
        ]:
            os.write(terminal, waiting.pop(question))
    else:
        os.kill(pid, 9)
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    return Shown(
        said.decode(errors="replace").replace("\r\n", "\n"), os.waitstatus_to_exitcode(status)
    )


_OF_THE_TERMINAL = (
    *("COLUMNS", "LINES", "NO_COLOR", "TERM", "LANG", "LC_ALL", "LC_MESSAGES", "LC_CTYPE"),
    *("CUDADOCTOR_LANG", "PYTHONUNBUFFERED", "PYTHONIOENCODING", "PYTHONUTF8"),
)
