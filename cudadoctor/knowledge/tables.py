"""Reads the tables that lie beside this module, straight into the types that the rules use."""

from __future__ import annotations

from functools import cached_property, lru_cache
from os.path import abspath, dirname, join
from typing import Any, TypeVar

import msgspec
from packaging.version import Version

from cudadoctor.model.versions import DriverVersion

FOLDER = join(dirname(abspath(__file__)), "tables")

T = TypeVar("T")


class KnowledgeError(ValueError):
    """A table contradicts itself: our own mistake, in one sentence."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a table. Columns that no rule asks for are left out."""


class Source(Row, frozen=True):
    """Where a number comes from. url None: the package index itself. date: last looked up."""

    title: str
    url: str | None
    date: str | None


RENEWED: dict[str, dict[str, Any]] = {}
"""The tables that a file of the user's renews, whole; they stand in place of ours."""


def table(name: str, kind: type[T]) -> T:
    """One table, decoded. Raises KnowledgeError if the file is missing or of another shape."""
    try:
        if name in RENEWED:
            return msgspec.convert(RENEWED[name], kind, dec_hook=_decoded)
        return packaged(name, kind)
    except (OSError, msgspec.DecodeError) as error:
        raise KnowledgeError(f"The table {name}.json cannot be read: {error}") from error


def packaged(name: str, kind: type[T]) -> T:
    """One table as it lies beside this module."""
    with open(join(FOLDER, f"{name}.json"), "rb") as file:
        return msgspec.json.decode(file.read(), type=kind, dec_hook=_decoded)


def texts(name: str, kind: type[T]) -> T:
    """One table of commands and sentences, which are easier to read as TOML."""
    with open(join(FOLDER, f"{name}.toml"), "rb") as file:
        return msgspec.toml.decode(file.read(), type=kind)


def kept(name: str, kind: type[T]) -> cached_property[T]:
    """A table as an attribute, which is read when it is first asked for."""
    return cached_property(lambda _: table(name, kind))


def _decoded(kind: type, value: Any) -> object:
    return version(value) if kind is Version else DriverVersion(value)


@lru_cache(maxsize=1024)
def version(text: str) -> Version:
    """A version; the tables repeat a few dozen of them many hundred times."""
    return Version(text)


def minor(cuda: Version) -> str:
    """The major.minor of a version, as the tables name a toolkit or a generation."""
    return f"{cuda.major}.{cuda.minor}"
