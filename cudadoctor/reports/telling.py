"""What the parts of a report tell of a machine, and one machine out of all of it."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Any, NamedTuple

import msgspec

from cudadoctor.model.machine import Distribution, Gpu, Imported, Machine, Told


class Rank(IntEnum):
    """How much a part of a report is worth where two disagree."""

    TOOL = 0
    """A program made to tell it: nvidia-smi, collect_env, pip list."""
    MESSAGE = 1
    """An error message that names it in passing, or a path."""
    COMMAND = 2
    """What the author asked for with a command."""
    PROSE = 3
    """What the author says."""


class Said(NamedTuple):
    """One fact as a part of the report tells it. source: who says it; line: where."""

    path: str
    value: Any
    line: int
    rank: Rank
    source: str

    @property
    def origin(self) -> str:
        return f"{self.source}, line {self.line}"


JOINED = ("packages", "gpus", "installs", "driver.log", "driver.xids", "build.toolkits", "env")
"""Facts that several parts of a report make up together."""


def machine_of(parts: Iterable[Said], **own: Any) -> Machine:
    """One machine: for each fact the strongest part, of equals the first.

    own: fields of the machine that no part tells (look, symptoms). What weaker parts that are still
    a program's say otherwise stands in `disagreements`.
    """
    told: dict[str, list[Said]] = {}
    for one in parts:
        if one.value is not None:
            told.setdefault(one.path, []).append(one)
    machine = Machine(**own)
    origins: dict[str, str] = {}
    others: list[Told] = []
    for path, said in told.items():
        said.sort(key=lambda one: one.rank)
        value = _joined(path, said) if path in JOINED else said[0].value
        machine = _with(machine, path.split("."), value)
        origins[path] = said[0].origin
        others += _otherwise(path, said)
    return msgspec.structs.replace(
        machine, origins=origins, disagreements=tuple(dict.fromkeys(others)) or None
    )


def _with(section: Any, path: list[str], value: object) -> Any:
    name, rest = path[0], path[1:]
    if rest:
        inner = getattr(section, name)
        value = _with(Imported() if inner is None and name == "imported" else inner, rest, value)
    return msgspec.structs.replace(section, **{name: value})


def _otherwise(path: str, said: list[Said]) -> list[Told]:
    if path == "packages":
        return _other_releases(said)
    if path in JOINED:
        return []
    return [
        Told(fact=path, value=str(one.value), source=one.origin)
        for one in said[1:]
        if one.rank <= Rank.MESSAGE and str(one.value) != str(said[0].value)
    ]


def _other_releases(said: list[Said]) -> list[Told]:
    """Releases of one distribution that differ between two lists of a report."""
    first: dict[str, str] = {}
    out = []
    for part in said:
        for one in part.value:
            known = first.setdefault(one.name, one.version)
            if known != one.version and part.rank <= Rank.MESSAGE:
                out.append(Told(fact=f"packages.{one.name}", value=one.version, source=part.origin))
    return out


def _joined(path: str, said: list[Said]) -> object:
    if path == "env":
        return {name: value for part in reversed(said) for name, value in part.value.items()}
    if path == "packages":
        found: dict[str, Distribution] = {}
        for part in said:
            for one in part.value:
                known = found.get(one.name)
                found[one.name] = _completed(known, one) if known else one
        return tuple(found.values())
    if path == "gpus":
        return _gpus(said)
    return tuple(dict.fromkeys(one for part in said for one in part.value))


def _completed(known: Distribution, other: Distribution) -> Distribution:
    """What a weaker part tells more of the same release."""
    if other.version != known.version:
        return known
    return msgspec.structs.replace(
        known,
        location=known.location or other.location,
        installer=known.installer or other.installer,
        requires=known.requires or other.requires,
        cuda=known.cuda or other.cuda,
        torch=known.torch or other.torch,
    )


def _gpus(said: list[Said]) -> tuple[Gpu, ...]:
    """The strongest list; what it lacks is filled in from the others."""
    best: tuple[Gpu, ...] = said[0].value
    weaker = [gpu for part in said[1:] for gpu in part.value]
    return tuple(_filled(gpu, weaker, alone=len(best) == 1) for gpu in best)


def _filled(gpu: Gpu, weaker: list[Gpu], *, alone: bool) -> Gpu:
    for other in weaker:
        if not _same(gpu, other, alone=alone):
            continue
        known = msgspec.structs.asdict(gpu)
        lacking = {
            name: value
            for name, value in msgspec.structs.asdict(other).items()
            if known[name] is None and value is not None
        }
        gpu = msgspec.structs.replace(gpu, **lacking)
    return gpu


def _same(gpu: Gpu, other: Gpu, *, alone: bool) -> bool:
    if gpu.name is None or other.name is None:
        return alone
    mine, its = gpu.name.lower(), other.name.lower()
    return mine in its or its in mine
