"""Versions and numbers as outside texts write them; driver releases print as they were read."""

from __future__ import annotations

import re
from functools import total_ordering

from packaging.version import Version

_DRIVER = re.compile(r"[0-9]{2,4}(?:\.[0-9]{1,4}){0,3}")
_CUDA_TAG = re.compile(r"cu([0-9]{2,3})(?![0-9])")
_TORCH_TAG = re.compile(r"(?:torch|pt)([0-9]+(?:\.[0-9]+)*)")
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


def tagged_for(text: str) -> tuple[Version | None, Version | None]:
    """The CUDA and the torch that a version names: 2.1.2+pt22cu121, 2.5.8+cu12torch2.3cxx11abi."""
    tag = text.partition("+")[2].lower()
    cuda, torch = _CUDA_TAG.search(tag), _TORCH_TAG.search(tag)
    return cuda_from_tag(cuda[1]) if cuda else None, torch_from_tag(torch[1]) if torch else None


def cuda_from_tag(digits: str) -> Version:
    """CUDA 12.1 for 121, 9.2 for 92, and the whole major for 12."""
    whole_major = len(digits) == 2 and digits[0] == "1"
    return Version(digits if whole_major else f"{digits[:-1]}.{digits[-1]}")


def torch_from_tag(text: str) -> Version | None:
    """torch 2.4 for 2.4 and 24, 2.10 for 210, 2.6.0 for 260, 1.13 for 113, 2.10.0 for 2100."""
    if "." in text:
        return version_of(text)
    rest = text[1:]
    if len(rest) == 3 or (len(rest) == 2 and rest[0] != "1"):
        return version_of(f"{text[0]}.{rest[:-1]}.{rest[-1]}")
    return version_of(f"{text[0]}.{rest}") if rest else None
