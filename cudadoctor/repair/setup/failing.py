"""What the last lines of a package manager say of its failure."""

from __future__ import annotations

import re

MOST_LINES = 8
_NOISE = re.compile(r"(?i)\s*(?:warning|info|\[notice\]|hint)\b")
_UNREACHED = re.compile(
    r"(?i)failed to establish a new connection|name or service not known|name resolution"
    r"|connection (?:refused|timed out|reset)|max retries exceeded|network is unreachable"
    r"|dns error|error sending request|nodename nor servname|proxyerror|read timed out"
)
_FULL = re.compile(r"(?i)no space left on device|disk quota exceeded|file too large|errno 28\b")


def telling(said: tuple[str, ...]) -> tuple[str, ...]:
    """The lines worth showing: the errors, or the last ones where none is marked as an error."""
    lines = [one for one in said if not _NOISE.match(one)]
    for number, line in enumerate(lines):
        if re.match(r"(?i)\s*(?:error|\u00d7|x )", line) and number >= len(lines) - MOST_LINES:
            return tuple(lines[number:])
    return tuple(lines[-MOST_LINES:])


def reason(said: tuple[str, ...]) -> str | None:
    """What lies behind it, where that is known: no network, or no room."""
    text = "\n".join(said)
    if _FULL.search(text):
        return "the disk is full"
    if _UNREACHED.search(text):
        return "a package index could not be reached"
    return None
