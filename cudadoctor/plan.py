"""Findings and wishes -> ordered steps."""

from __future__ import annotations

from typing import Literal

import msgspec

from cudadoctor.findings import Edit, Risk, Where

Dialect = Literal["pip", "uv", "conda", "pixi", "docker"]


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked of the plan. manager None: the one that fits the examined environment."""

    manager: Dialect | None = None
    torch: str | None = None
    shell: Literal["bash", "fish", "powershell"] = "bash"


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the plan, the contract's shape. Steps of the same group are alternatives.

    commands: argument vectors without sudo, fully expanded. verified: None not tried.
    """

    id: str
    title: str
    group: str
    where: Where
    risk: Risk
    needs_root: bool
    reboot: bool
    commands: tuple[tuple[str, ...], ...]
    manual: str | None
    variables: dict[str, str | None]
    edits: tuple[Edit, ...]
    cures: tuple[str, ...]
    tool: str | None
    verified: bool | None = None
    note: str | None = None


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A variant that was passed over, and why."""

    variant: str
    reason: str


class BuildChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The torch build that the solver chose for this machine, the contract's shape."""

    torch: str
    variant: str
    torchvision: str | None
    torchaudio: str | None
    python: str
    index: str
    why: tuple[str, ...]
    why_not: tuple[Refusal, ...]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The steps in the order they are to be taken, and the build that they install."""

    steps: tuple[Step, ...] = ()
    build: BuildChoice | None = None
