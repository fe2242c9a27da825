"""The JSON document of setup, printed once at its end.

{"schema": 1, "cudadoctor", "knowledge",
 "outcome": "proven"       the training step passed in the new environment
          | "unproven"     it is installed and kept, and something is still wrong: see verdict
          | "failed"       a command failed; what was made is removed
          | "interrupted"  so did the user; what was made is removed
          | "declined" | "no-room" | "unresolved" | "no-build",   nothing was made
 "why": sentences, none where it is proven, "ways_out": sentences,
 "environment": the folder | null where none is left, "python": its interpreter | null,
 "base": the interpreter that it is made from | null where the tool fetches one,
 "tool": "pip" | "uv" | "conda" | "pixi" | null,
 "build": as in the plan of `check` | null, "commands": [[argv..]], "files": {name: text},
 "size": {"download_bytes", "installed_bytes", "free_bytes", "counted": from the real files},
 "verified": true | false | null not asked or not known,
 "activate": {shell or tool: line},
 "verdict", "primary": of the new environment | null, "smoke": as in `check` | null}
Fields may be added, none change or go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from cudadoctor.repair.setup.saying import activation

if TYPE_CHECKING:
    from cudadoctor.pipeline import Judged
    from cudadoctor.repair.setup.choosing import Chosen
    from cudadoctor.repair.setup.recipe import Recipe
    from cudadoctor.repair.setup.room import Room

Outcome = Literal[
    "proven",
    "unproven",
    "failed",
    "interrupted",
    "declined",
    "no-room",
    "unresolved",
    "no-build",
]


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known at the end of a setup. folder: where it was to be, absolute."""

    outcome: Outcome
    folder: str
    why: tuple[str, ...] = ()
    ways_out: tuple[str, ...] = ()
    chosen: Chosen | None = None
    recipe: Recipe | None = None
    room: Room | None = None
    verified: bool | None = None
    judged: Judged | None = None


def document(told: Told, version: str, knowledge: str) -> dict[str, Any]:
    """The document as plain data."""
    return {
        "schema": 1,
        "cudadoctor": version,
        "knowledge": knowledge,
        "outcome": told.outcome,
        "why": list(told.why),
        "ways_out": list(told.ways_out),
        **_made(told),
        **_planned(told),
        **_proof(told),
    }


def _made(told: Told) -> dict[str, Any]:
    there = told.outcome in ("proven", "unproven") and told.recipe is not None
    recipe, chosen = told.recipe, told.chosen
    activate = {}
    if there and recipe is not None and chosen is not None:
        activate = activation(recipe, told.folder, chosen.machine)
    return {
        "environment": told.folder if there else None,
        "python": recipe.python if there and recipe else None,
        "activate": activate,
    }


def _planned(told: Told) -> dict[str, Any]:
    from cudadoctor.plan.planner import build_choice

    recipe, chosen = told.recipe, told.chosen
    choice = chosen and build_choice(chosen.machine, chosen.choice)
    return {
        "base": chosen.base.path if chosen and chosen.base else None,
        "tool": recipe.tool if recipe else None,
        "build": msgspec.to_builtins(choice) if choice else None,
        "commands": [list(one) for one in recipe.commands] if recipe else [],
        "files": recipe.files if recipe else {},
        "size": msgspec.to_builtins(told.room) if told.room else None,
        "verified": told.verified,
    }


def _proof(told: Told) -> dict[str, Any]:
    if told.judged is None:
        return {"verdict": None, "primary": None, "smoke": None}
    from cudadoctor.render.json_v1 import smoke

    diagnosis = told.judged.diagnosis
    return {
        "verdict": diagnosis.verdict,
        "primary": diagnosis.primary,
        "smoke": smoke(told.judged.machine),
    }
