"""Facts as a document: JSON out, JSON or TOML in."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, get_args, get_origin

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from packaging.version import InvalidVersion, Version

from cudadoctor.model.machine import SCHEMA, Gap, Json, Machine
from cudadoctor.model.versions import DriverVersion

MOST_BYTES = 32 << 20
TOO_LONG = f"A facts document can be at most {MOST_BYTES >> 20} MiB in size"
MOST_VALUES = 200_000
MOST_IN_ONE = 20_000
"""Entries of one list or table: the rules look through some of them for each of the others."""
MOST_REPORTED = 200
"""Symptoms and installs: each is weighed against all others. A report that is read has fewer."""
MOST_DEPTH = 40
_TOO_MANY = f"A list in a facts document can have at most {MOST_IN_ONE} entries"
_TOO_DEEP = f"A facts document can be nested at most {MOST_DEPTH} levels deep"
_LONGEST_VERSION = 200
_MOST_DIGITS = 40
_ENDLESS = re.compile(r"\d{41,}")
"""More digits in a row than any version, size or identifier has."""
_MOST_GPUS = 256
_LONGEST_NAME = 4096
_LARGEST = 1 << 63
"""What no JSON reader that keeps to 64 bits can hold."""


class FactsError(ValueError):
    """A document that cannot be read as facts, in one sentence."""


def encode(value: Any) -> Any:
    """Plain JSON data of any facts: versions as they were written, the schema number first."""
    plain = msgspec.to_builtins(value, enc_hook=_plain)
    return {"schema": value.schema, **plain} if isinstance(value, Machine) else plain


def json_safe(plain: Any) -> Any:
    """Plain data that JSON can hold.

    A variable or a file name can hold bytes that are no text: they are shown as escapes.
    """
    try:
        msgspec.json.encode(plain)
    except UnicodeEncodeError:
        return _as_text(plain)
    return plain


def _as_text(plain: Any) -> Any:
    if isinstance(plain, str):
        return plain.encode("utf-8", "backslashreplace").decode()
    if isinstance(plain, dict):
        return {_as_text(key): _as_text(value) for key, value in plain.items()}
    return [_as_text(item) for item in plain] if isinstance(plain, (list, tuple)) else plain


def compact(value: Any) -> str:
    """One line of JSON, for evidence."""
    return msgspec.json.encode(json_safe(encode(value))).decode()


def ascii_json(plain: Any, indent: int) -> str:
    """Indented JSON in plain ASCII, without a character that acts on a terminal."""
    plain = json_safe(plain)
    quick = msgspec.json.format(msgspec.json.encode(plain), indent=indent).decode()
    if quick.isascii() and "\x7f" not in quick:
        return quick
    import json

    return json.dumps(plain, indent=indent).replace("\x7f", "\\u007f")


def dumps(machine: Machine) -> str:
    """The machine as an indented JSON document."""
    return ascii_json(encode(machine), 1)


def from_plain(data: Any) -> Machine:
    """A machine from plain data whose every key must be known (scenarios, our own probes).

    Raises FactsError with the path of what does not fit.
    """
    try:
        return msgspec.convert(data, Machine, dec_hook=_typed, str_keys=True)
    except (msgspec.ValidationError, InvalidVersion, ValueError) as error:
        raise FactsError(f"These facts cannot be read: {error}") from error


def loads(text: str | bytes) -> Machine:
    """A machine from a saved document, also from one that a newer doctor wrote.

    Keys that this version does not know become gaps. Raises FactsError for anything else.
    """
    if len(text) > MOST_BYTES:
        raise FactsError(TOO_LONG)
    try:
        data = msgspec.json.decode(text)
    except RecursionError as error:
        raise FactsError(_TOO_DEEP) from error
    except (msgspec.DecodeError, UnicodeError) as error:
        raise FactsError(f"This is not a facts document: {error}") from error
    return from_document(data)


def from_document(data: Any) -> Machine:
    """The same from the document's plain data: facts, or a check that holds them."""
    if not isinstance(data, dict):
        raise FactsError("This is not a facts document: it is not a JSON object")
    _demand_measure(data)
    data = _shortened(data)
    if isinstance(data.get("facts"), dict) and "verdict" in data:
        data = data["facts"]
    for name in ("symptoms", "installs"):
        if isinstance(data.get(name), list) and len(data[name]) > MOST_REPORTED:
            raise FactsError(f"A facts document can have at most {MOST_REPORTED} {name}")
    if "schema" not in data:
        raise FactsError("This is not a facts document: it has no schema number")
    unknown: list[str] = []
    machine = from_plain(_known(Machine, data, "", unknown))
    if max(len(machine.gpus or ()), len(machine.pci or ())) > _MOST_GPUS:
        raise FactsError(f"A facts document can list at most {_MOST_GPUS} GPUs")
    own = machine.identity
    if max(len(name or "") for name in (own.user, own.home, own.host)) > _LONGEST_NAME:
        raise FactsError(
            f"A name in a facts document can have at most {_LONGEST_NAME:,} characters"
        )
    if not unknown:
        return machine
    newer = " from a newer cudadoctor" if machine.schema > SCHEMA else ""
    gaps = tuple(
        Gap(
            fact=path,
            why=f"this version of cudadoctor does not recognize this key{newer}",
            asked=False,
        )
        for path in unknown
    )
    return replace(machine, gaps=machine.gaps + gaps)


def _shortened(data: Any) -> Any:
    """The data with no more digits in a row than anything has: int() refuses 4,301 of them.

    A number that 64 bits do not hold is not known.
    """
    if isinstance(data, (int, float)) and not -_LARGEST <= data < _LARGEST:
        return None
    if isinstance(data, str):
        return _ENDLESS.sub(lambda digits: digits[0][:_MOST_DIGITS], data)
    if isinstance(data, dict):
        return {_shortened(key): _shortened(value) for key, value in data.items()}
    return [_shortened(item) for item in data] if isinstance(data, list) else data


def _demand_measure(data: Any) -> None:
    """Raise FactsError for a document that no machine can be behind: too much, too deep."""
    values, level = 0, [data]
    for _ in range(MOST_DEPTH):
        below: list[Any] = []
        for part in level:
            if isinstance(part, (dict, list)):
                if len(part) > MOST_IN_ONE:
                    raise FactsError(_TOO_MANY)
                below += part.values() if isinstance(part, dict) else part
        values += len(below)
        if values > MOST_VALUES:
            raise FactsError(f"A facts document can contain at most {MOST_VALUES} values")
        level = below
    if level:
        raise FactsError(_TOO_DEEP)


def _plain(value: object) -> str:
    if isinstance(value, (Version, DriverVersion)):
        return str(value)
    raise NotImplementedError(f"no plain form for {type(value).__name__}")


def _typed(kind: type, value: object) -> Any:
    if kind not in (Version, DriverVersion):
        raise NotImplementedError(f"no {kind.__name__} from {value!r}")
    if not isinstance(value, str) or len(value) > _LONGEST_VERSION:
        raise ValueError("Expected a version as text")
    return kind(value)


def _known(kind: Any, data: Any, path: str, unknown: list[str]) -> Any:
    """The data without the keys that the type does not have; their paths go into `unknown`."""
    for sort in (kind, *get_args(kind)):
        if isinstance(data, dict) and isinstance(sort, type) and issubclass(sort, Struct):
            fields, kept = _fields(sort), {}
            for key, value in data.items():
                if key in fields:
                    kept[key] = _known(fields[key], value, f"{path}{key}.", unknown)
                else:
                    unknown.append(f"{path}{key}")
            return kept
        if isinstance(data, list) and get_origin(sort) is tuple:
            item = get_args(sort)[0]
            return [_known(item, part, f"{path}{n}.", unknown) for n, part in enumerate(data)]
    return data


@cache
def _fields(struct: type[Struct]) -> Json:
    """Types by name; msgspec works them out anew each time, which takes 3 ms for a GPU."""
    return {field.name: field.type for field in msgspec.structs.fields(struct)}
