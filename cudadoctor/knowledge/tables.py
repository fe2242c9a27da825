"""Reads a table that lies beside this module."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import msgspec
from packaging.version import Version

from cudadoctor.knowledge.model import KnowledgeError

FOLDER = Path(__file__).parent / "tables"

T = TypeVar("T")


class Row(msgspec.Struct, frozen=True):
    """A row as it lies in its file: words and numbers, versions still as text.

    Each module declares the rows of its own table, so that no look pays for the others.
    """


def table(name: str, kind: type[T]) -> T:
    """One table, decoded. Raises KnowledgeError where the file is missing or of another shape."""
    try:
        return msgspec.json.decode((FOLDER / f"{name}.json").read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        raise KnowledgeError(f"The table {name}.json cannot be read: {error}") from error


@lru_cache(maxsize=1024)
def version(text: str) -> Version:
    """A version; the tables repeat a few dozen of them many hundred times."""
    return Version(text)


class _Dated(msgspec.Struct):
    collected: str


def day() -> str:
    """The day the tables were collected, read without the rest."""
    return table("torch", _Dated).collected
