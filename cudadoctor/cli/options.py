"""What the user asked for on the command line, as one typed value, and wrong use of it."""

from __future__ import annotations

import datetime
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal, NoReturn, get_args

from msgspec import Struct

from cudadoctor.model.catalogue import CATALOGUE

EXIT = 2
SHORTEST_S, LONGEST_S = 0.1, 86_400.0
"""What --timeout may be: below, no child has time to start; above, nobody waits."""


Form = Literal["text", "json", "markdown", "github", "sarif", "junit", "prometheus"]
FORMS: tuple[Form, ...] = get_args(Form)


class Options(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The options of one call; a command leaves those that it does not have at their default.

    saved: what --from named. compiles: --compile. torch_compile: the
    training step also tries torch.compile. manager: --with. printed: --print.
    timeout: seconds for each probe. ranks: processes of the DDP stage. kind: --as, the file that
    fix --print writes in place of a script. shared: --allow-shared. advice: of check, what makes
    training faster here. newer: --check of update. soak: seconds that health goes on.
    format: --format of check; html: the file of its page.
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
    torch_compile: bool = False
    full: bool = False
    output: str | None = None
    as_json: bool = False
    markdown: bool = False
    strict: bool = False
    verbose: int = 0
    quiet: bool = False
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
    newer: bool = False
    soak: float = 0.0
    prometheus: str | None = None
    exit_zero: bool = False
    format: Form | None = None
    html: str | None = None

    @property
    def form(self) -> Form:
        """The form of the result: --format, or a flag that means the same."""
        return self.format or ("json" if self.as_json else "markdown" if self.markdown else "text")


class WrongUse(Exception):  # noqa: N818 - the user's, not ours
    """What the user asked for cannot be done, in one sentence."""

    def report(self) -> int:
        """Say it on stderr, on one line; the exit code."""
        from cudadoctor.render import inert

        # What the user typed, or a file is named, may hold colours and worse: shown, not obeyed.
        with suppress(OSError):  # a full disk behind stderr: the exit code says it
            sys.stderr.write(f"cudadoctor: {inert(' '.join(str(self).split()))}\n")
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
        refuse(
            "'{value}' is not a valid limit: enter a value in seconds from {least} to {most}",
            value=text,
            least=f"{SHORTEST_S:g}",
            most=f"{LONGEST_S:.0f}",
        )
    return found


_EXCLUSIVE = (
    ("json", "markdown"),
    ("as", "json"),
    ("undo", "resume"),
    ("undo", "forget"),
    ("resume", "forget"),
    ("check", "output"),
    ("quiet", "verbose"),
    ("quiet", "json"),
    ("quiet", "markdown"),
)
_WITHOUT_EFFECT = (
    (
        "from",
        ("python", "fast", "no-smoke", "device", "torch-compile"),
        "--{option} cannot be used with --from, which reads a saved report",
    ),
    (
        "from",
        ("undo", "resume", "forget"),
        "--{option} changes an environment, so it cannot be used with --from",
    ),
    (
        "fast",
        ("device", "torch-compile"),
        "--{option} cannot be used with --fast, which skips the training step",
    ),
    (
        "no-smoke",
        ("torch-compile",),
        "--{option} cannot be used with --no-smoke, which skips the training step",
    ),
    *(
        (
            printing,
            ("undo", "resume", "forget", "yes"),
            "--{option} cannot be used with --print or --as, which change nothing",
        )
        for printing in ("print", "as")
    ),
)
_FIELDS = {"from": "saved", "as": "kind", "check": "newer", "json": "as_json", "print": "printed"}
"""Of an option that is no name in Python, or means something there."""


def refuse_contradictions(options: Options) -> None:
    """Refuse what excludes each other, and values that mean nothing."""

    def given(name: str) -> bool:
        return bool(getattr(options, _FIELDS.get(name, name.replace("-", "_"))))

    for giver, names, sentence in _WITHOUT_EFFECT:
        for name in filter(given, names if given(giver) else ()):
            refuse(sentence, option=name)
    for first, second in _EXCLUSIVE:
        if given(first) and given(second):
            refuse(
                "--{first} and --{second} cannot be combined: choose one",
                first=first,
                second=second,
            )
    _refuse_two_forms(options)
    if options.hashes and options.kind != "requirements":
        refuse("--hashes works only with --as requirements; add that option or remove --hashes")
    refuse_device(options)
    _refuse_unknown(options)


def _refuse_two_forms(options: Options) -> None:
    """A form is named once, and what it has no place for is not asked of it."""
    if options.format is None:
        return
    others = {"json": options.as_json, "markdown": options.markdown}
    others = {name: given and name != options.format for name, given in others.items()}
    others["quiet"] = options.quiet and options.format != "text"
    others["advice"] = options.advice and options.format not in ("text", "json", "markdown")
    for name in (name for name, given in others.items() if given):
        refuse(
            "--{first} and --{second} cannot be combined: choose one",
            first=name,
            second=f"format {options.format}",
        )


def _refuse_unknown(options: Options) -> None:
    for cause in options.ignore:
        refuse_unknown_cause(cause)
    if options.torch is not None:
        from cudadoctor.solver.demand import constraint_of

        if constraint_of(options.torch) is None:
            refuse(
                "'{value}' is not a valid version: use a form such as 2.6, 2.6.0 or '>=2.6,<2.8'",
                value=options.torch,
            )
    if options.as_of:
        try:
            datetime.date.fromisoformat(options.as_of)
        except ValueError:
            refuse("'{value}' is not a valid date: write it as YYYY-MM-DD", value=options.as_of)


def refuse_device(options: Options) -> None:
    if options.device and not device_is_sound(options.device):
        refuse(
            "'{value}' is not a valid device: use cpu, cuda or cuda:N, where N is a GPU index",
            value=options.device,
        )


def refuse(template: str, **values: object) -> NoReturn:
    """End the command as wrong use. template: a sentence to be translated, or already is."""
    from cudadoctor.cli.speech import say

    raise WrongUse(say(template, **values))


def refuse_unknown_cause(cause: str) -> None:
    """Refuse a name that is not in the catalogue, with the one that may have been meant."""
    if cause not in CATALOGUE:
        refuse_unknown(cause, CATALOGUE, "'{name}' is not a known cause", "cudadoctor explain")


def cause_of(text: str) -> str | None:
    """The cause that a text names, written with spaces or misspelled too; None if it names none."""
    name = "-".join(re.findall(r"[a-z0-9]+", text.lower()))
    if name in CATALOGUE:
        return name
    if "-" not in text and "_" not in text:
        return None  # words of an error text may be like a name by chance
    import difflib

    return next(iter(difflib.get_close_matches(name, CATALOGUE, n=1, cutoff=_SAME_NAME)), None)


_SAME_NAME = 0.85


def refuse_unknown(name: str, known: Sequence[str], template: str, lister: str) -> NoReturn:
    """Refuse a name that is none of those that there are."""
    raise WrongUse(unknown(name, known, template, lister))


def unknown(name: str, known: Sequence[str], template: str, lister: str) -> str:
    """The sentence with the nearest of the known names. lister: the command that lists them."""
    from cudadoctor.cli.speech import say

    close = nearest(name, known)
    meant = say("; did you mean {close}?", close=close) if close else "."
    return say(template, name=name) + meant + say(" For a list, run: {command}", command=lister)


def nearest(word: str, known: Sequence[str]) -> str | None:
    """The known word that the user may have meant."""
    import difflib

    return next(iter(difflib.get_close_matches(word, known, n=1)), None)


def device_is_sound(device: str) -> bool:
    """Whether it is a device name that torch would take here."""
    return re.fullmatch(r"cpu|cuda(:\d{1,3})?", device) is not None
