"""Many saved machines and pasted reports, judged one after the other as they are read."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from cudadoctor.cli import saved
from cudadoctor.cli.commands import Source, checked, written
from cudadoctor.cli.usage import EXIT, refuse

if TYPE_CHECKING:
    from cudadoctor.cli.options import Asked

FAILED = 4
_ORDER = (0, 3, 1, EXIT, FAILED)
"""Exit codes from the best to the worst: unreadable outranks broken, broken undecided."""


def check(asked: Asked) -> int:
    """Judge what --from names, and print each result as soon as it is there; the worst code."""
    gc.enable()  # many documents are no short life
    many = saved.are_many(asked.saved)
    worst = 0
    try:
        with _sink(asked.output, many=many) as write:
            for one in saved.machines(asked.saved):
                code, text = _judged(one, asked, many=many)
                write(text)
                worst = max(worst, code, key=_ORDER.index)
    except saved.SavedError as error:
        refuse(str(error))
    return worst


def _judged(one: saved.Saved, asked: Asked, *, many: bool) -> tuple[int, str]:
    if one.machine is None:
        return EXIT, _unread(one.name, one.error or "", asked)
    source = Source(one.machine, one.name)
    if not many:
        return checked(source, asked)
    try:
        return checked(source, asked, many=True)
    except Exception as error:
        why = f"{one.name}: cudadoctor itself failed ({type(error).__name__}: {error})"
        return FAILED, _unread(one.name, why, asked)


def _unread(name: str, why: str, asked: Asked) -> str:
    """Say why there is no verdict; its line where lines are asked for."""
    sys.stderr.write(f"cudadoctor: {_plain(why)}\n")
    if not asked.as_json:
        return ""
    from cudadoctor.render import json_v1

    return json_v1.line({"schema": 1, "source": name, "error": why}) + "\n"


def _plain(text: str) -> str:
    return " ".join(text.split()).encode("ascii", "backslashreplace").decode()


@contextlib.contextmanager
def _sink(output: str | None, *, many: bool) -> Iterator[Callable[[str], None]]:
    """Where results go: stdout or one file, which all results share."""
    if output is None or not many:
        yield lambda text: written(text, output)
        return
    try:
        with open(output, "w", encoding="utf-8") as file:  # noqa: PTH123 - as elsewhere
            yield lambda text: print(text, end="", file=file)
    except OSError as error:
        refuse(f"cannot write {output}: {error.strerror}")
