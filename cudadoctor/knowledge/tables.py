"""Reads a table that lies beside this module."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TypeVar

import msgspec
from packaging.version import Version

from cudadoctor.knowledge.model import KnowledgeError

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tables")

T = TypeVar("T")


class Row(msgspec.Struct, frozen=True):
    """A row as it lies in its file: words and numbers, versions still as text.

    Each module declares the rows of its own table, so that no look pays for the others.
    """


def table(name: str, kind: type[T]) -> T:
    """One table, decoded. Raises KnowledgeError where the file is missing or of another shape."""
    try:
        with open(os.path.join(FOLDER, f"{name}.json"), "rb") as file:
            return msgspec.json.decode(file.read(), type=kind)
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
