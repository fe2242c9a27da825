"""What a resolver said of a package change, as values and as sentences."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from cudadoctor.render import inert

_FIRST = ("torch", "torchvision", "torchaudio")
_LONGEST = 300
_SECRET = re.compile(r"://[^/\s@]+@")


class File(msgspec.Struct, frozen=True, kw_only=True):
    """A file that the resolver chose. url: without credentials. size_bytes: None not known."""

    url: str
    name: str
    version: str
    sha256: str | None = None
    size_bytes: int | None = None


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a package change can be had for an interpreter.

    resolves: None where that could not be learnt. found: name and version of all that it comes to
    in an empty environment. tool: the resolver with its version, "" where none was asked.
    why: the sentence that is shown. unreached: the host that gave no answer, "" where all did.
    """

    resolves: bool | None
    found: tuple[tuple[str, str], ...] = ()
    files: tuple[File, ...] = ()
    tool: str = ""
    why: str = ""
    unreached: str = ""


Kind = Literal["resolved", "refused", "unreached", "source", "unfit"]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What one run of a resolver comes to.

    refused: the index answered, and there is no solution; text: the resolver's reason.
    unreached: an index gave no answer; host: which, how: what it did instead, text: what keeps
    every index from answering. source: text comes as source only.
    unfit: this resolver cannot be asked so (too old, broken); text: why.
    """

    kind: Kind
    files: tuple[File, ...] = ()
    text: str = ""
    host: str = ""
    how: str = ""


def resolved(files: tuple[File, ...], tool: str, left_out: tuple[str, ...] = ()) -> Verdict:
    """left_out: packages that come as source and were not asked for."""
    found = _ordered({one.name: one.version for one in files})
    named = [f"{name} {version}" for name, version in found if name in _FIRST]
    named = named or [f"{name} {version}" for name, version in found[:3]]
    more = len(found) - len(named)
    text = f"resolves: {', '.join(named)}{f' and {more} more' if more else ''} ({tool})"
    if left_out:
        text += f"; not verified: {', '.join(left_out)}, which {_comes(left_out)} as source"
    return Verdict(resolves=True, found=found, files=files, tool=tool, why=inert(text))


def _comes(names: tuple[str, ...]) -> str:
    return "come" if len(names) > 1 else "comes"


def _ordered(found: dict[str, str]) -> tuple[tuple[str, str], ...]:
    first = [name for name in _FIRST if name in found]
    return tuple((name, found[name]) for name in (*first, *sorted(found.keys() - {*first})))


def refused(reason: str, tool: str) -> Verdict:
    """The index answered, and the packages cannot be had together."""
    why = f"does not resolve: {shortened(reason)} ({tool})"
    return Verdict(resolves=False, tool=tool, why=why)


def unverified(reason: str, tool: str = "", *, unreached: str = "") -> Verdict:
    """Nothing is known of whether they can be had."""
    why = f"could not be verified: {shortened(reason)}"
    return Verdict(resolves=None, tool=tool, why=why, unreached=unreached)


SWITCHED_OFF = "package indexes are switched off (no-index)"


def unanswered(host: str, how: str = "did not answer") -> str:
    """The sentence about an index that could not be asked."""
    return f"the index {host} {how}"


def shortened(text: str) -> str:
    """A resolver's words on one line, inert, cut at a word."""
    line = inert(_SECRET.sub("://", " ".join(text.split())))
    if len(line) <= _LONGEST:
        return line
    return line[:_LONGEST].rsplit(" ", 1)[0] + " ..."
