"""What a rule is: a pure function of the machine and the knowledge, with its text."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from cudadoctor.model.findings import Confidence, Remedies, Severity

if TYPE_CHECKING:
    from cudadoctor.knowledge import Knowledge
    from cudadoctor.model.machine import Machine, OptBool, OptStr, Strings

T = TypeVar("T")


class NotKnown(Exception):  # noqa: N818 - not an error: it ends a rule as undecided
    """A rule needs a fact that is not known."""

    def __init__(self, fact: str, why: OptStr = None) -> None:
        super().__init__(fact)
        self.fact = fact
        self.why = why


def need(value: T | None, fact: str, why: OptStr = None) -> T:
    """The value, or the end of the rule as undecided where it is None.

    fact: the dotted path that is missing; why: said where no gap of the machine explains it
    (for instance that the tables are silent).
    """
    if value is None:
        raise NotKnown(fact, why)
    return value


class Found(Struct, frozen=True, kw_only=True):
    """A rule's yes.

    evidence: fact paths that prove it; None stands for none. values: for the placeholders of title
    and text. cites: keys of sources in the knowledge. sure: whether it is certain, else likely;
    confidence: in its place where it may be a mere possibility. severity, title, why: in place of
    the rule's own.
    yields_to: causes that explain this finding away, beside those of the rule.
    remedies: alternatives, the least invasive first.
    """

    evidence: tuple[OptStr, ...]
    values: dict[str, object] = {}
    cites: Strings = ()
    sure: object = True
    confidence: Confidence | None = None
    severity: Severity | None = None
    title: OptStr = None
    why: OptStr = None
    yields_to: Strings = ()
    remedies: Remedies = ()


Answer = Found | None
Judge = Callable[["Machine", "Knowledge"], Answer]
Judging = Judge | Callable[["Machine"], Answer]


class Rule(Struct, frozen=True, kw_only=True):
    """A rule as a value.

    yields_to: causes that explain this one away where they are found too.
    essential: whether the verdict is undecided while this rule is. page: text for `explain`.
    """

    name: str
    cause: str
    title: str
    severity: Severity
    judge: Judge
    yields_to: Strings = ()
    essential: bool = False
    why: str
    page: str


def rule(
    cause: str,
    *,
    title: str,
    severity: Severity = Severity.ERROR,
    yields_to: Strings = (),
    essential: OptBool = None,
) -> Callable[[Judging], Rule]:
    """Make a rule of a function of the machine, or of the machine and the knowledge.

    Its docstring's first paragraph is what the user reads.

    title and the first paragraph may hold placeholders ({driver}) for the values of Found.
    essential defaults to whether the severity is ERROR.
    """

    def make(judge: Judging) -> Rule:
        why, _, rest = (judge.__doc__ or "").partition("\n\n")
        return Rule(
            name=judge.__name__.replace("_", "-"),
            cause=cause,
            title=title,
            severity=severity,
            judge=lambda m, kb: apply(judge, m, kb),
            yields_to=yields_to,
            essential=severity is Severity.ERROR if essential is None else essential,
            why=" ".join(why.split()),
            # Without its indentation (inspect would cost 4 ms to import).
            page="\n".join(line.removeprefix("    ") for line in rest.splitlines()).strip(),
        )

    return make


def remembered(function: Callable[[Machine, Knowledge], T]) -> Callable[[Machine, Knowledge], T]:
    """A function that many rules ask about one machine: what it said of the last few is kept."""
    kept: tuple[tuple[Machine, Knowledge, T], ...] = ()

    @wraps(function)
    def answer(m: Machine, kb: Knowledge) -> T:
        nonlocal kept
        for machine, knowledge, said in kept:
            if machine is m and knowledge is kb:
                return said
        said = function(m, kb)
        kept = ((m, kb, said), *kept[: _KEPT - 1])
        return said

    return answer


_KEPT = 3
"""A report, and the machines that it is taken to mean."""


def apply(function: Callable[..., T], *known: object) -> T:
    """Call a function with as many of these arguments as it takes."""
    return function(*known[: function.__code__.co_argcount])
