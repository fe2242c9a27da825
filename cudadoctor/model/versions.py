"""Versions and numbers as outside texts write them; driver releases print as they were read."""

from __future__ import annotations

import re
from functools import total_ordering

from packaging.version import Version

_DRIVER = re.compile(r"[0-9]{2,4}(?:\.[0-9]{1,4}){0,3}")
_LONGEST = 200
_MOST_DIGITS = 18


@total_ordering
class DriverVersion:
    """An NVIDIA driver release such as 535.104.05, kept as it was written.

    `packaging.version.Version` would print 535.104.5. A missing part counts as zero, so the branch
    `580` is older than `580.65.06` and equal to `580.00`. Windows drivers look alike (591.44).

    Raises ValueError for a text that is no driver release.
    """

    __slots__ = ("_key", "text")

    def __init__(self, text: str) -> None:
        if not _DRIVER.fullmatch(text):
            raise ValueError(f"not a driver version: {text!r}")
        self.text = text
        key = [int(part) for part in text.split(".")]
        while key and key[-1] == 0:
            key.pop()
        self._key = tuple(key)

    @property
    def branch(self) -> int:
        """The driver branch: 535 for 535.104.05."""
        return int(self.text.split(".")[0])

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"DriverVersion({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DriverVersion) and self._key == other._key

    def __lt__(self, other: DriverVersion) -> bool:
        return self._key < other._key

    def __hash__(self) -> int:
        return hash(self._key)


def driver_of(text: str) -> DriverVersion | None:
    """The driver release that a text is; None where it is none."""
    try:
        return DriverVersion(text)
    except ValueError:
        return None


def version_of(text: str | None) -> Version | None:
    """The version that a text is; None where it is none, or longer than any."""
    try:
        return Version(text) if text and len(text) <= _LONGEST else None
    except ValueError:
        return None


def whole(text: str) -> int | None:
    """The number that a text is; None for other digits than ours (²), and for what no machine has.

    str.isdigit() holds for digits that int() refuses, and int() refuses 4,301 of the others.
    """
    text = text.strip()
    known = text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS
    return int(text) if known else None


def cuda_from_int(number: int) -> Version:
    """The CUDA version behind cuDriverGetVersion's number (13020 is 13.2)."""
    return Version(f"{number // 1000}.{number % 1000 // 10}")
