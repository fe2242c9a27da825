"""A parser of outside text, how it is run, and what counts as facts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
from packaging.version import Version

from cudadoctor.model import factfile, versions
from cudadoctor.model.machine import Machine, Section
from cudadoctor.probes import Looked
from cudadoctor.probes.examine import assembled


class Parser(NamedTuple):
    """One parser. covers: the functions that it runs, as module.function; or whole packages.

    slow: it reads many texts of a host, or works on the text for long: it gets fewer inputs.
    """

    covers: tuple[str, ...]
    parse: Callable[[bytes], object]
    refusals: tuple[type[Exception], ...] = ()
    slow: bool = False


def run(parser: Parser, data: bytes) -> None:
    """Parse it; raises what is no refusal, and AssertionError for facts that are none."""
    try:
        found = parser.parse(data)
    except parser.refusals:
        return
    check(found)


def check(value: object) -> None:
    """Check that a document can hold these facts and returns them unchanged."""
    if isinstance(value, Looked):
        value = assembled([value])
    if isinstance(value, Machine):
        written = factfile.dumps(value)
        reread = factfile.dumps(factfile.loads(written))
        assert _told(reread) == _told(json.dumps(_as_read(json.loads(written))))
    elif isinstance(value, Section):
        plain = msgspec.json.decode(factfile.compact(value))
        again = msgspec.convert(plain, type(value), dec_hook=_versions, str_keys=True)
        assert _told(factfile.compact(again)) == _told(factfile.compact(value))
    elif isinstance(value, msgspec.Struct):
        check(msgspec.structs.astuple(value))
    elif isinstance(value, dict):
        check(tuple(value.values()))
    elif isinstance(value, (tuple, list)):
        for item in value:
            check(item)
    elif isinstance(value, int):
        assert -(1 << 63) <= value < 1 << 63, "no JSON holds this number"
    elif isinstance(value, (Version, versions.DriverVersion)):
        assert type(value)(str(value)) == value


def _told(document: str) -> object:
    """What it says. Python 3.10 makes empty tuples that are not the one which is left out."""
    empty: tuple[object, ...] = ([], None)
    return json.loads(
        document, object_hook=lambda row: {k: v for k, v in row.items() if v not in empty}
    )


def _as_read(data: Any) -> Any:
    """The data as documents are read: no endless digits, no number beyond 64 bits."""
    if isinstance(data, str):
        return re.sub(r"\d{41,}", lambda digits: digits[0][:40], data)
    if isinstance(data, dict):
        return {_as_read(key): _as_read(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_as_read(item) for item in data]
    too_large = isinstance(data, (int, float)) and not -(1 << 63) <= data < 1 << 63
    return None if too_large else data


def _versions(kind: type, value: object) -> Any:
    return kind(value)


def text_of(data: bytes) -> str:
    """As a program's output or a file is decoded."""
    return data.decode("utf-8", "replace")


def any_text(data: bytes) -> str:
    """As a variable or the name of a file is decoded, lone surrogates and all."""
    return data.decode("utf-8", "surrogateescape")


def of_text(parse: Callable[[str], object]) -> Callable[[bytes], object]:
    def both(data: bytes) -> object:
        found = parse(text_of(data))
        return found if data.isascii() else (found, parse(any_text(data)))

    return both
