"""Scenario files: a healthy machine, what is different about it, and what must be found."""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from cudadoctor.model import factfile
from cudadoctor.model.machine import Machine

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent.parent
KEYS = {"like", "machine", "unknown", "expect"}


class Expected(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a scenario demands of the diagnosis; see DESIGN of the scenarios in CONTRIBUTING."""

    primary: str | None = None
    findings: tuple[str, ...] = ()
    folded: tuple[str, ...] = ()
    infos: tuple[str, ...] = ()
    passes: tuple[str, ...] = ()
    undecided: tuple[str, ...] = ()
    verdict: str | None = None
    plan: tuple[str, ...] | None = None
    near: str | None = None


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    machine: Machine
    expect: Expected


@cache
def _plain_machine(name: str) -> str:
    return (HERE / "machines" / f"{name}.json").read_text(encoding="utf-8")


def healthy_machine(name: str) -> Machine:
    """One of the healthy machines, by its file's name."""
    return factfile.loads(_plain_machine(name))


def machine_like(name: str, changes: dict[str, Any], unknown: tuple[str, ...] = ()) -> Machine:
    """A healthy machine with changes merged in and some facts taken away."""
    plain = merged(json.loads(_plain_machine(name)), changes)
    for path in unknown:
        _forget(plain, path.split("."))
    return factfile.from_plain(plain)


def merged(base: Any, changes: Any) -> Any:
    """Tables merge, integer keys reach into lists, all else replaces."""
    if isinstance(base, dict) and isinstance(changes, dict):
        return base | {key: merged(base.get(key), value) for key, value in changes.items()}
    if isinstance(base, list) and isinstance(changes, dict) and all(k.isdigit() for k in changes):
        out = list(base)
        for key, value in changes.items():
            if int(key) == len(out):
                out.append(value)
            else:
                out[int(key)] = merged(out[int(key)], value)
        return out
    return changes


def _forget(plain: Any, path: list[str]) -> None:
    for part in path[:-1]:
        plain = plain[int(part)] if isinstance(plain, list) else plain.get(part, {})
    if isinstance(plain, dict):
        plain.pop(path[-1], None)


def read_scenario(path: Path) -> Scenario:
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    strange = set(data) - KEYS
    assert not strange, f"{path.name}: unknown keys {sorted(strange)}"
    return Scenario(
        name=path.stem,
        machine=machine_like(data["like"], data.get("machine", {}), tuple(data.get("unknown", ()))),
        expect=msgspec.convert(data["expect"], Expected),
    )


def scenario_paths() -> list[Path]:
    return sorted((HERE / "scenarios").glob("*.toml"))
