"""Looking again after the change: in a process of its own, since the doctor's modules may have
changed with the environment."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from cudadoctor.repair.applied import POLL_S, changed, end_group, private

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cudadoctor.repair.records import Begun, Options

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
    look = words(begun.options, begun.afterwards)
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
        _waited(child, stopped)
    return _document(answer)


def words(options: Options, python: str) -> list[str]:
    """The command line of the look; pure."""
    found = ["--json", "--full", "--python", python]
    found += ["--fast"] if options.fast else []
    found += ["--no-smoke"] if options.no_smoke else []
    found += ["--compile"] if options.compiles else []
    found += ["--device", options.device] if options.device else []
    found += ["--timeout", str(options.timeout)] if options.timeout else []
    return found + [word for cause in options.ignore for word in ("--ignore", cause)]


def _waited(child: subprocess.Popen[bytes], stopped: Callable[[], bool]) -> None:
    while child.returncode is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(POLL_S)
        if child.returncode is None and stopped():
            end_group(child.pid, None)
            child.wait()
            raise NoAnswer("it was interrupted")


def _document(path: str) -> dict[str, Any]:
    with open(path, "rb") as file:
        data = file.read()
    os.unlink(path)
    try:
        found = json.loads(data)
    except ValueError as error:
        raise NoAnswer("the second look gave no report") from error
    if not isinstance(found, dict) or "verdict" not in found:
        raise NoAnswer("the second look gave no report")
    return found
