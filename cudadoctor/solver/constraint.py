"""A constraint on the release of torch: "2.6", "2.6.0", "2.6.0+cu124" or ">=2.6,<2.8"."""

from __future__ import annotations

import re

import msgspec
from packaging.version import Version

from cudadoctor.knowledge import TorchBuild
from cudadoctor.model.machine import Flag, Text, Torch
from cudadoctor.model.requirements import admits
from cudadoctor.model.versions import version_of

_CLAUSE = re.compile(r"(==|!=|>=|<=|~=|>|<)\s*[0-9]{1,9}(\.[0-9]{1,9}){0,5}(\.\*)?")
_MOST_CLAUSES = 6


class Constraint(msgspec.Struct, frozen=True, kw_only=True):
    """What releases are allowed. Of `release` and `specifier` one is set.

    release: as far as it was given ("2.6" is any 2.6.x). variant: None any.
    """

    text: str
    release: tuple[int, ...] = ()
    variant: Text = None
    specifier: str = ""

    def allows(self, version: Version, variant: Text) -> bool:
        """Whether that release, in that variant, is what was asked for. variant None: not known."""
        if self.specifier:
            return admits(self.specifier, Version(version.public))
        # A release of two parts is one with a zero behind them.
        have = version.release + (0,) * len(self.release)
        same = have[: len(self.release)] == self.release and not version.is_prerelease
        return same and self.variant in (None, variant)


def constraint_of(text: str) -> Constraint | None:
    """The constraint that a text is; None where it is none."""
    text = text.strip()
    clauses = [clause.strip() for clause in text.split(",")]
    if len(clauses) <= _MOST_CLAUSES and all(map(_CLAUSE.fullmatch, clauses)):
        return Constraint(text=text, specifier=",".join(clauses))
    version = version_of(text)
    if version is None:
        return None
    if version.is_prerelease:  # The tables hold none; only the very same one would do.
        return Constraint(text=text, specifier=f"=={version.public}")
    return Constraint(text=text, release=version.release, variant=version.local)


def allowed(text: str, builds: tuple[TorchBuild, ...]) -> tuple[TorchBuild, ...]:
    """Those of the builds that the constraint allows."""
    constraint = constraint_of(text)
    return tuple(
        build for build in builds if constraint and constraint.allows(build.torch, build.variant)
    )


def is_met(text: str, torch: Torch) -> Flag:
    """Whether the installed torch is what was asked for, None where it is not known."""
    constraint = constraint_of(text)
    if torch.installed is False or constraint is None:
        return False
    if torch.version is None:
        return None
    variant = torch.version.local
    if variant is None and torch.build in ("cuda", "cpu"):
        cuda = str(torch.cuda).replace(".", "")
        variant = "cpu" if torch.build == "cpu" else f"cu{cuda}" if torch.cuda else None
    return constraint.allows(torch.version, variant)
