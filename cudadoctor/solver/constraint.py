"""A wish for a release of torch: "2.6", "2.6.0", "2.6.0+cu124" or ">=2.6,<2.8"."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
from packaging.version import Version

from cudadoctor.model.requirements import admits
from cudadoctor.model.versions import version_of

if TYPE_CHECKING:
    from cudadoctor.knowledge import TorchBuild
    from cudadoctor.model.machine import Torch

_CLAUSE = re.compile(r"(==|!=|>=|<=|~=|>|<)\s*[0-9]{1,9}(\.[0-9]{1,9}){0,5}(\.\*)?")
_MOST_CLAUSES = 6


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What releases are allowed. Of `release` and `specifier` one is set.

    release: as far as it was given ("2.6" is any 2.6.x). variant: None any.
    """

    text: str
    release: tuple[int, ...] = ()
    variant: str | None = None
    specifier: str = ""

    def allows(self, version: Version, variant: str | None) -> bool:
        """Whether that release, in that variant, is what was wished. variant None: not known."""
        if self.specifier:
            return admits(self.specifier, Version(version.public))
        # A release of two parts is one with a zero behind them.
        have = version.release + (0,) * len(self.release)
        same = have[: len(self.release)] == self.release and not version.is_prerelease
        return same and self.variant in (None, variant)


def wish_of(text: str) -> Wish | None:
    """The wish that a text is; None where it is none."""
    text = text.strip()
    clauses = [one.strip() for one in text.split(",")]
    if len(clauses) <= _MOST_CLAUSES and all(_CLAUSE.fullmatch(one) for one in clauses):
        return Wish(text=text, specifier=",".join(clauses))
    version = version_of(text)
    if version is None:
        return None
    if version.is_prerelease:  # The tables hold none; only the very same one would do.
        return Wish(text=text, specifier=f"=={version.public}")
    return Wish(text=text, release=version.release, variant=version.local)


def wished(text: str, builds: tuple[TorchBuild, ...]) -> tuple[TorchBuild, ...]:
    """Those of the builds that the wish allows."""
    wish = wish_of(text)
    if wish is None:
        return ()
    return tuple(one for one in builds if wish.allows(one.torch, one.variant))


def is_met(text: str, torch: Torch) -> bool | None:
    """Whether the installed torch is what was wished, None where it is not known."""
    wish = wish_of(text)
    if torch.installed is False or wish is None:
        return False
    if torch.version is None:
        return None
    variant = torch.version.local
    if variant is None and torch.build in ("cuda", "cpu"):
        cuda = str(torch.cuda).replace(".", "")
        variant = "cpu" if torch.build == "cpu" else f"cu{cuda}" if torch.cuda else None
    return wish.allows(torch.version, variant)
