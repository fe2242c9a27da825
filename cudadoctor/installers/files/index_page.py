"""The page of `recipes/install/` that says which files are for which driver and GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudadoctor.installers.files import heading
from cudadoctor.installers.files.heading import PLATFORM_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cudadoctor.installers.files.recipes import Recipe
    from cudadoctor.knowledge import Knowledge, TorchBuild

_TOP = """\
# Environments with torch, ready to copy

`cudadoctor fix --as requirements` (or `environment`, `pyproject`, `pixi`, `dockerfile`) writes the
file for the machine that it runs on, `cudadoctor setup DIR` makes the environment. These folders
hold the same for whoever cannot run it there: for an image, a cluster, a colleague.

**Take the first line of your platform whose driver, GPU, Python and glibc fit.** `nvidia-smi`
shows the driver; the compute capability of a GPU stands in brackets behind its generation.

Each folder holds `requirements.txt` (pip, uv), `environment.yml` (conda, mamba), `pyproject.toml`
(a uv project), `pixi.toml` and a `Dockerfile`. conda and pixi take conda-forge's packages where it
is known to have the release for all of the GPUs, else torch's own wheels; every file says at its
top what it needs.
"""
_END = """\
The driver is the oldest that runs the CUDA major of the build. Only GPUs with machine code in the
build are listed; PTX, which a driver compiles while a program starts, is not counted.

Made from the doctor's tables of {date} by `python recipes/install/make.py`, with the doctor of
the same checkout installed; a test compares every byte, so these files are as new as the tables.
"""
_HEAD = ("files", "torch", "oldest driver", "GPUs (compute capability)", "Python", "glibc")


def text(recipes: Sequence[Recipe], kb: Knowledge) -> str:
    """The whole page, in Markdown."""
    platforms = list(dict.fromkeys(name for one in recipes for name in one.newest))
    sections = [_section(platform, recipes, kb) for platform in platforms]
    return "\n".join((_TOP, *("\n".join(one) for one in sections), _END.format(date=kb.date)))


def _section(platform: str, recipes: Sequence[Recipe], kb: Knowledge) -> Iterator[str]:
    yield f"## {PLATFORM_NAMES[platform]}\n"
    yield _row(_HEAD)
    yield _row("---" for _ in _HEAD)
    for recipe in recipes:
        build = next((one for one in recipe.stack.builds if one.platform == platform), None)
        if build is not None:
            yield _row(_cells(build, kb))
    yield ""
    for sentence in (*_elsewhere(platform, recipes), *_announced(platform, kb)):
        yield f"{sentence}\n"


def _cells(build: TorchBuild, kb: Knowledge) -> tuple[str, ...]:
    none = build.cuda is None
    return (
        f"[{build.variant}]({build.variant})",
        str(build.torch),
        "none" if none else heading.driver_floor(build, kb),
        "none needed" if none else heading.gpus(build, kb),
        heading.span(heading.plain_pythons(build)),
        str(build.glibc or "any") if build.platform.startswith("linux") else "",
    )


def _row(cells: Iterator[str] | Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _elsewhere(platform: str, recipes: Sequence[Recipe]) -> Iterator[str]:
    """Builds of this platform whose release is another one than that of the files."""
    others = [
        f"{one.variant} (torch {one.newest[platform].torch})"
        for one in recipes
        if platform in one.newest and one.newest[platform].torch != one.stack.lead.torch
    ]
    if others:
        yield f"Known in another release than the files hold: {', '.join(others)}."


def _announced(platform: str, kb: Knowledge) -> Iterator[str]:
    """What may have been published, and was not seen."""
    builds = kb.builds_on(platform)
    newest = max((one.torch for one in builds), default=None)
    open_ones = [one.variant for one in builds if one.torch == newest and one.published is None]
    if open_ones:
        listed = ", ".join(sorted(open_ones))
        yield f"Announced, but not known to be published for it: torch {newest} {listed}."
