"""Which project files `recipes/install/` holds, and their texts: all of it from the tables.

A variant has its files where some machine gets no newer build: of an older driver, an older GPU,
an older C library or another platform, with a Python that is still maintained.
"""

from __future__ import annotations

import datetime
from functools import cache
from typing import TYPE_CHECKING

import msgspec

from cudadoctor.installers.files import NAMES, index_page, written
from cudadoctor.installers.files.stack import Stack, numpy_for, serving
from cudadoctor.knowledge import TorchBuild
from cudadoctor.knowledge.offers import PYTHON_RELEASED
from cudadoctor.model.versions import DriverVersion

if TYPE_CHECKING:
    from cudadoctor.knowledge import Knowledge

PLATFORMS = ("linux_x86_64", "linux_aarch64", "windows_amd64", "macos_arm64")
MAINTAINED_YEARS = 5
"""How long a Python gets updates after it came out."""


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """The files of one variant. newest: per platform, the newest build that is known published."""

    stack: Stack
    newest: dict[str, TorchBuild]

    @property
    def variant(self) -> str:
        return self.stack.lead.variant


def files(kb: Knowledge) -> dict[str, str]:
    """Every file under recipes/install: path with forward slashes -> text."""
    found = recipes(kb)
    made = {
        f"{one.variant}/{name}": written(kind, one.stack, kb)
        for one in found
        for kind, name in NAMES.items()
    }
    return {"README.md": index_page.text(found, kb), **made}


def recipes(kb: Knowledge) -> tuple[Recipe, ...]:
    """The recipes: the CPU build last, before it newest release first, then newest CUDA."""
    newest = {platform: _newest(kb, platform) for platform in PLATFORMS}
    wanted = {
        variant
        for found in newest.values()
        for variant, build in found.items()
        if _is_maintained(build, kb)
        and not any(_outdoes(other, build, kb) for other in found.values() if other is not build)
    }
    return tuple(sorted((_recipe(variant, newest, kb) for variant in wanted), key=_order))


def _recipe(variant: str, newest: dict[str, dict[str, TorchBuild]], kb: Knowledge) -> Recipe:
    """The newest release of the leading platform, with the platforms that have it too."""
    found = {name: some[variant] for name, some in newest.items() if variant in some}
    lead = next(iter(found.values()))
    same = (kb.build_of(lead.torch, variant, name) for name in PLATFORMS)
    builds = tuple(one for one in same if one is not None and one.published)
    vision = lead.torchvision
    companions = (("torchvision", vision),) if vision else ()
    return Recipe(
        stack=Stack(builds=builds, companions=companions, then=numpy_for(lead)), newest=found
    )


def _newest(kb: Knowledge, platform: str) -> dict[str, TorchBuild]:
    """Variant -> its newest build on a platform that is known published."""
    found: dict[str, TorchBuild] = {}
    for build in kb.builds_on(platform):
        if build.published:
            found.setdefault(build.variant, build)
    return found


def _is_maintained(build: TorchBuild, kb: Knowledge) -> bool:
    return bool(set(build.pythons) & set(_maintained(kb.date)))


@cache
def _maintained(day: str) -> tuple[str, ...]:
    """The Pythons that got updates on that day."""
    today = datetime.date.fromisoformat(day)
    oldest = today.replace(year=today.year - MAINTAINED_YEARS, day=1).isoformat()
    return tuple(name for name, came in PYTHON_RELEASED.items() if oldest <= came <= day)


def _outdoes(other: TorchBuild, build: TorchBuild, kb: Knowledge) -> bool:
    """Whether every machine that takes the build does better, or as well, with the other one."""
    if (other.cuda is None) != (build.cuda is None) or other.torch < build.torch:
        return False
    if other.glibc and build.glibc and other.glibc > build.glibc:
        return False
    if set(serving(build, kb) or ()) - set(serving(other, kb) or ()):
        return False
    older, newer = _floor(build, kb), _floor(other, kb)
    if older is None or newer is None or newer > older:
        return False
    # Of one release, which CUDA is best depends on the driver's own: all of them stay.
    return other.torch > build.torch


def _floor(build: TorchBuild, kb: Knowledge) -> DriverVersion | None:
    """The oldest driver, 0 where none is needed, None where it is not known."""
    if build.cuda is None:
        return DriverVersion("0")
    system = "Windows" if build.platform.startswith("windows") else "Linux"
    floor = kb.driver_floor(build.cuda, system)
    return None if floor is None else floor.driver


def _order(recipe: Recipe) -> tuple[bool, tuple[int, ...], tuple[int, ...]]:
    lead = recipe.stack.lead
    newest = tuple(-one for one in lead.torch.release)
    return lead.cuda is None, newest, tuple(-one for one in lead.cuda.release) if lead.cuda else ()
