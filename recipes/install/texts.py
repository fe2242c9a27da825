"""What `recipes/install/` holds: the project files of each variant, and the page about them.

All of it from the tables. A variant has its files if some machine gets no newer build: of an older
driver, an older GPU, an older C library or another platform, with a Python that is still
maintained.
"""

import datetime
from collections.abc import Iterable, Iterator

import msgspec

from cudadoctor.installers.registry import BY_KIND
from cudadoctor.installers.stack import (
    PLATFORM_NAMES,
    Stack,
    driver_floor,
    gpus,
    numpy_for,
    plain_pythons,
    serving,
    span,
)
from cudadoctor.knowledge import Knowledge, TorchBuild
from cudadoctor.knowledge.offers import PYTHON_RELEASED
from cudadoctor.model.machine import Strings

PLATFORMS = ("linux_x86_64", "linux_aarch64", "windows_amd64", "macos_arm64")
MAINTAINED_YEARS = 5
"""How long a Python gets updates after it came out."""

_TOP = """\
# Environments with torch, ready to copy

`cudadoctor fix --as requirements` (or `environment`, `pyproject`, `pixi`, `dockerfile`) writes such
a file for your machine, and `cudadoctor setup DIR` creates the environment. Copy from these folders
if you cannot run cudadoctor there: for an image, a cluster or a colleague.

**Use the first row of your platform that fits your driver, GPU, Python and glibc.** `nvidia-smi`
shows the driver. The numbers after each GPU generation are its compute capabilities.

Each folder contains `requirements.txt` (pip, uv), `environment.yml` (conda, mamba),
`pyproject.toml` (a uv project), `pixi.toml` and a `Dockerfile`. The files for conda and pixi use
conda-forge if it has the release for all these GPUs, or else torch's own wheels. Each file begins
with its requirements.
"""
_END = """\
The oldest driver is the one that the CUDA major version of the build needs. The GPUs are those that
the build has machine code for; PTX, which the driver compiles at start-up, is not counted.

Generated from cudadoctor's tables of {date} by `python recipes/install/make.py`. Do not edit.
"""
_HEAD = ("files", "torch", "oldest driver", "GPUs (compute capability)", "Python", "glibc")


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
        f"{recipe.variant}/{tool.file}": tool.text(recipe.stack, kb, None)
        for recipe in found
        for tool in BY_KIND.values()
    }
    return {"README.md": "\n".join(_page(found, kb)), **made}


def recipes(kb: Knowledge) -> tuple[Recipe, ...]:
    """The recipes: the CPU build last, before it newest release first, then newest CUDA."""
    newest: dict[str, dict[str, TorchBuild]] = {platform: {} for platform in PLATFORMS}
    for platform, found in newest.items():
        for build in kb.builds_on(platform):
            if build.published:
                found.setdefault(build.variant, build)
    today = datetime.date.fromisoformat(kb.date)
    oldest = today.replace(year=today.year - MAINTAINED_YEARS, day=1).isoformat()
    pythons = {name for name, came in PYTHON_RELEASED.items() if oldest <= came <= kb.date}
    wanted = {
        variant
        for found in newest.values()
        for variant, build in found.items()
        if pythons.intersection(build.pythons)
        and not any(_outdoes(other, build, kb) for other in found.values() if other is not build)
    }
    return tuple(sorted((_recipe(variant, newest, kb) for variant in wanted), key=_order))


def _recipe(variant: str, newest: dict[str, dict[str, TorchBuild]], kb: Knowledge) -> Recipe:
    """The newest release of the leading platform, with the platforms that have it too."""
    found = {name: some[variant] for name, some in newest.items() if variant in some}
    lead = next(iter(found.values()))
    same = (kb.build_of(lead.torch, variant, platform) for platform in PLATFORMS)
    return Recipe(
        stack=Stack(
            builds=tuple(build for build in same if build is not None and build.published),
            companions=(("torchvision", lead.torchvision),) if lead.torchvision else (),
            then=numpy_for(lead),
        ),
        newest=found,
    )


def _outdoes(other: TorchBuild, build: TorchBuild, kb: Knowledge) -> bool:
    """Whether every machine that takes the build does better with the other one.

    Of one release, which CUDA is best depends on the driver's own: all of them stay.
    """
    if (other.cuda is None) != (build.cuda is None) or other.torch <= build.torch:
        return False
    if other.glibc and build.glibc and other.glibc > build.glibc:
        return False
    if set(serving(build, kb) or ()) - set(serving(other, kb) or ()):
        return False
    if build.cuda is None:
        return True
    older, newer = driver_floor(build, kb), driver_floor(other, kb)
    return older is not None and newer is not None and newer <= older


def _order(recipe: Recipe) -> tuple[bool, list[int], list[int]]:
    lead = recipe.stack.lead
    cuda = lead.cuda.release if lead.cuda else ()
    return lead.cuda is None, [-part for part in lead.torch.release], [-part for part in cuda]


def _page(recipes: tuple[Recipe, ...], kb: Knowledge) -> Iterator[str]:
    """README.md: which files are for which driver and GPU."""
    yield _TOP
    for platform in dict.fromkeys(name for recipe in recipes for name in recipe.newest):
        yield f"## {PLATFORM_NAMES[platform]}\n"
        yield _row(_HEAD)
        yield _row("---" for _ in _HEAD)
        builds = [build for recipe in recipes for build in recipe.stack.builds]
        yield from (_row(_cells(build, kb)) for build in builds if build.platform == platform)
        yield ""
        others = [
            f"{recipe.variant} (torch {recipe.newest[platform].torch})"
            for recipe in recipes
            if platform in recipe.newest
            and recipe.newest[platform].torch != recipe.stack.lead.torch
        ]
        if others:
            yield f"The newest release here is not the one in the files: {', '.join(others)}.\n"
        known = kb.builds_on(platform)
        newest = max((build.torch for build in known), default=None)
        announced = sorted(
            build.variant for build in known if build.torch == newest and build.published is None
        )
        if announced:
            yield "Announced, but not seen on an index for this platform: torch " + (
                f"{newest} {', '.join(announced)}.\n"
            )
    yield _END.format(date=kb.date)


def _cells(build: TorchBuild, kb: Knowledge) -> Strings:
    floor, served = driver_floor(build, kb) or "not known", gpus(build, kb)
    if build.cuda is None:
        floor, served = "none", "none needed"
    return (
        f"[{build.variant}]({build.variant})",
        str(build.torch),
        str(floor),
        served,
        span(plain_pythons(build)),
        str(build.glibc or "any") if build.platform.startswith("linux") else "",
    )


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
