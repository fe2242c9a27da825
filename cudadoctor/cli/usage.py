"""Wrong use of the command line, told in one sentence each."""

from __future__ import annotations

import contextlib
import datetime
import re
import sys
from typing import TYPE_CHECKING, NoReturn

from cudadoctor.model.catalogue import CATALOGUE

if TYPE_CHECKING:
    from cudadoctor.cli.options import Asked

EXIT = 2
SHORTEST_S, LONGEST_S = 0.1, 86_400.0
"""What --timeout may be: below, no child has time to start; above, nobody waits."""


class WrongUse(Exception):  # noqa: N818 - the user's, not ours
    """What the user asked for cannot be done, in one sentence."""

    def told(self) -> int:
        """Say it on stderr, in plain ASCII on one line; the exit code."""
        text = " ".join(str(self).split()).encode("ascii", "backslashreplace").decode()
        # What the user typed, or a file is named, may hold colours and worse: shown, not obeyed.
        text = "".join(one if one.isprintable() else f"\\x{ord(one):02x}" for one in text)
        with contextlib.suppress(OSError):  # a full disk behind stderr: the exit code says it
            sys.stderr.write(f"cudadoctor: {text}\n")
        return EXIT


def seconds(text: str | None) -> float | None:
    """The limit that --timeout names; nan and endless are none."""
    if text is None:
        return None
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not SHORTEST_S <= found <= LONGEST_S:
        most = f"{LONGEST_S:.0f}"
        refuse(f"--timeout {text!r} is no limit: give seconds from {SHORTEST_S:g} to {most}")
    return found


def refuse_contradictions(asked: Asked) -> None:
    if asked.saved:
        for name in ("python", "fast", "no-smoke", "device"):
            if getattr(asked, name.replace("-", "_")):
                refuse(f"--from judges saved facts, so --{name} has nothing to act on: drop one")
        if asked.undo or asked.resume or asked.forget:
            refuse("--undo, --resume and --forget act on an environment, not on saved facts")
    if asked.as_json and asked.markdown:
        refuse("--json and --markdown exclude each other: choose one")
    if asked.fast and asked.device:
        refuse("--fast runs no training step, so --device has nothing to act on: drop one")
    _refuse_mixed_repairs(asked)
    refuse_device(asked)
    _refuse_strangers(asked)
    _refuse_date(asked)


def _refuse_mixed_repairs(asked: Asked) -> None:
    """Printing changes nothing; of what acts on an earlier repair, one at a time."""
    acting = [name for name in ("undo", "resume", "forget") if getattr(asked, name)]
    if len(acting) > 1:
        refuse(f"--{acting[0]} and --{acting[1]} exclude each other: choose one")
    if asked.printed or asked.kind:
        for name in (*acting, *(["yes"] if asked.yes else [])):
            refuse(f"--print changes nothing, so --{name} has nothing to act on: drop one")
    if asked.kind and asked.as_json:
        refuse("--as prints a file and --json a document: choose one")
    if asked.hashes and asked.kind != "requirements":
        refuse("--hashes belongs to --as requirements")


def refuse_device(asked: Asked) -> None:
    if asked.device and not device_is_sound(asked.device):
        refuse(f"--device {asked.device!r} is no device: use cpu, cuda or cuda:N")


def _refuse_strangers(asked: Asked) -> None:
    for cause in asked.ignore:
        refuse_strange_cause(cause, f"--ignore {cause!r} is no cause")
    if asked.torch is not None:
        from cudadoctor.solver.constraint import wish_of

        if wish_of(asked.torch) is None:
            refuse(
                f"--torch {asked.torch!r} is no version: give one such as 2.6, 2.6.0 or >=2.6,<2.8"
            )


def _refuse_date(asked: Asked) -> None:
    if asked.as_of:
        with contextlib.suppress(ValueError):
            datetime.date.fromisoformat(asked.as_of)
            return
        refuse(f"--as-of {asked.as_of!r} is no date: write it as YYYY-MM-DD")


def refuse(sentence: str) -> NoReturn:
    """End the command as wrong use."""
    raise WrongUse(sentence)


def refuse_strange_cause(cause: str, sentence: str) -> None:
    """Refuse a name that is not in the catalogue, with the one that may have been meant."""
    if cause not in CATALOGUE:
        close = nearest(cause, CATALOGUE)
        meant = f"; did you mean {close}" if close else ""
        refuse(f"{sentence}{meant} (cudadoctor explain lists them)")


def nearest(word: str, known: tuple[str, ...]) -> str | None:
    """The known word that the user may have meant."""
    import difflib

    close = difflib.get_close_matches(word, known, n=1)
    return close[0] if close else None


def device_is_sound(device: str) -> bool:
    """Whether it is a device name that torch would take here."""
    return re.fullmatch(r"cpu|cuda(:\d{1,3})?", device) is not None
