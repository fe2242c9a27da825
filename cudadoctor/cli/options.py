"""What the user asked for on the command line, as one typed value, and wrong use of it."""

from __future__ import annotations

import datetime
import re
import sys
from contextlib import suppress
from typing import Literal, NoReturn

from msgspec import Struct

from cudadoctor.model.catalogue import CATALOGUE

EXIT = 2
SHORTEST_S, LONGEST_S = 0.1, 86_400.0
"""What --timeout may be: below, no child has time to start; above, nobody waits."""


class Options(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The options of one call; a command leaves those that it does not have at their default.

    saved: what --from named. compiles: --compile. manager: --with. printed: --print.
    timeout: seconds for each probe. ranks: processes of the DDP stage. kind: --as, the file that
    fix --print writes in place of a script. shared: --allow-shared. advice: of check, what makes
    training faster here.
    """

    python: str | None = None
    fast: bool = False
    no_smoke: bool = False
    device: str | None = None
    timeout: float | None = None
    ranks: int | None = None
    saved: tuple[str, ...] = ()
    as_of: str | None = None
    ignore: tuple[str, ...] = ()
    compiles: bool = False
    lang: str = "en"
    full: bool = False
    output: str | None = None
    as_json: bool = False
    markdown: bool = False
    strict: bool = False
    verbose: int = 0
    printed: bool = False
    manager: str | None = None
    shell: Literal["bash", "fish", "powershell"] | None = None
    torch: str | None = None
    verify: bool = False
    kind: str | None = None
    hashes: bool = False
    yes: bool = False
    undo: bool = False
    resume: bool = False
    forget: bool = False
    shared: bool = False
    advice: bool = False
    minutes: float = 10.0
    workloads: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    chart: str | None = None
    words: tuple[str, ...] = ()
    stop: bool = False
    scale: str | None = None
    plant: tuple[str, ...] = ()


class WrongUse(Exception):  # noqa: N818 - the user's, not ours
    """What the user asked for cannot be done, in one sentence."""

    def report(self) -> int:
        """Say it on stderr, in plain ASCII on one line; the exit code."""
        text = " ".join(str(self).split()).encode("ascii", "backslashreplace").decode()
        # What the user typed, or a file is named, may hold colours and worse: shown, not obeyed.
        text = "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text)
        with suppress(OSError):  # a full disk behind stderr: the exit code says it
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
        limits = f"{SHORTEST_S:g} to {LONGEST_S:.0f}"
        refuse(f"--timeout {text!r} is no limit: give seconds from {limits}")
    return found


def refuse_contradictions(options: Options) -> None:
    """Refuse what excludes each other, and values that mean nothing."""
    acting = [name for name in ("undo", "resume", "forget") if getattr(options, name)]
    looking = [name for name in ("python", "fast", "no_smoke", "device") if getattr(options, name)]
    rows = (
        *(
            (
                options.saved,
                f"--from judges saved facts, so --{name.replace('_', '-')} has nothing to act on:"
                " drop one",
            )
            for name in looking
        ),
        (
            options.saved and acting,
            "--undo, --resume and --forget act on an environment, not on saved facts",
        ),
        (
            options.as_json and options.markdown,
            "--json and --markdown exclude each other: choose one",
        ),
        (
            options.fast and options.device,
            "--fast runs no training step, so --device has nothing to act on: drop one",
        ),
        (
            acting[1:],
            f"{' and '.join(f'--{name}' for name in acting[:2])} exclude each other: choose one",
        ),
        *(
            (
                options.printed or options.kind,
                f"--print changes nothing, so --{name} has nothing to act on: drop one",
            )
            for name in (*acting, *(["yes"] if options.yes else []))
        ),
        (
            options.kind and options.as_json,
            "--as prints a file and --json a document: choose one",
        ),
        (
            options.hashes and options.kind != "requirements",
            "--hashes belongs to --as requirements",
        ),
    )
    for wrong, sentence in rows:
        if wrong:
            refuse(sentence)
    refuse_device(options)
    _refuse_unknown(options)


def _refuse_unknown(options: Options) -> None:
    for cause in options.ignore:
        refuse_unknown_cause(cause, f"--ignore {cause!r} is no cause")
    if options.torch is not None:
        from cudadoctor.solver.demand import constraint_of

        if constraint_of(options.torch) is None:
            such = "give one such as 2.6, 2.6.0 or >=2.6,<2.8"
            refuse(f"--torch {options.torch!r} is no version: {such}")
    if options.as_of:
        try:
            datetime.date.fromisoformat(options.as_of)
        except ValueError:
            refuse(f"--as-of {options.as_of!r} is no date: write it as YYYY-MM-DD")


def refuse_device(options: Options) -> None:
    if options.device and not device_is_sound(options.device):
        refuse(f"--device {options.device!r} is no device: use cpu, cuda or cuda:N")


def refuse(sentence: str) -> NoReturn:
    """End the command as wrong use."""
    raise WrongUse(sentence)


def refuse_unknown_cause(cause: str, sentence: str) -> None:
    """Refuse a name that is not in the catalogue, with the one that may have been meant."""
    if cause not in CATALOGUE:
        close = nearest(cause, CATALOGUE)
        meant = f"; did you mean {close}" if close else ""
        refuse(f"{sentence}{meant} (cudadoctor explain lists them)")


def nearest(word: str, known: tuple[str, ...]) -> str | None:
    """The known word that the user may have meant."""
    import difflib

    return next(iter(difflib.get_close_matches(word, known, n=1)), None)


def device_is_sound(device: str) -> bool:
    """Whether it is a device name that torch would take here."""
    return re.fullmatch(r"cpu|cuda(:\d{1,3})?", device) is not None
