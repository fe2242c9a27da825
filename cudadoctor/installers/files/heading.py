"""What stands at the top of every file: what it is for, and since when that is known."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from cudadoctor.installers.files.stack import serving

if TYPE_CHECKING:
    from collections.abc import Iterable

    from packaging.version import Version

    from cudadoctor.installers.files.stack import Stack
    from cudadoctor.knowledge import Knowledge, TorchBuild

WIDTH = 96

PLATFORM_NAMES = {
    "linux_x86_64": "Linux x86_64",
    "linux_aarch64": "Linux aarch64",
    "windows_amd64": "Windows",
    "windows_arm64": "Windows on ARM",
    "macos_arm64": "macOS on Apple silicon",
    "macos_x86_64": "macOS on Intel",
}


def heading(stack: Stack, kb: Knowledge, *more: str) -> list[str]:
    """The comment lines; more: sentences of the file's own."""
    lines = comments(f"torch {stack.torch} {kind_of(stack.lead)}.")
    for build in stack.builds:
        lines += comments(f"{PLATFORM_NAMES[build.platform]}: {demands(build, kb)}.", hang=2)
    if chosen := chosen_for(stack):
        lines += comments(chosen)
    for name, release in stack.left_out:
        lines += comments(f"No wheel of {name} {release} for Python {stack.python} is known.")
    for sentence in more:
        lines += comments(sentence)
    lines += comments(
        f"Released {stack.lead.released}. Made by cudadoctor from its tables of {kb.date}."
    )
    return lines


def kind_of(build: TorchBuild) -> str:
    """What the build is for: the CUDA version, or no GPU."""
    if build.cuda is None:
        return "without CUDA (cpu)"
    return f"for CUDA {build.cuda} ({build.variant})"


def demands(build: TorchBuild, kb: Knowledge) -> str:
    """The driver, GPUs, Pythons and C library that a build needs."""
    parts = [] if build.cuda is None else [_driver(build, kb), gpus(build, kb)]
    parts += [f"Python {span(plain_pythons(build))}"] if build.pythons else []
    if build.glibc is not None:
        parts.append(f"glibc {build.glibc} or newer")
    return "; ".join(parts)


def driver_floor(build: TorchBuild, kb: Knowledge) -> str:
    """The oldest driver for a build, "not known" where the tables are silent."""
    system = "Windows" if build.platform.startswith("windows") else "Linux"
    floor = kb.driver_floor(build.cuda, system) if build.cuda else None
    return str(floor.driver) if floor else "not known"


def gpus(build: TorchBuild, kb: Knowledge) -> str:
    """The generations with code in the build, each with its capabilities."""
    found = serving(build, kb)
    if found is None:
        return "which GPUs it has code for is not known"
    named = ", ".join(f"{name} ({listed(ones)})" for name, ones in generations(found, kb).items())
    return f"{named} by build scripts, not read from the wheel" if build.archs_uncertain else named


def generations(capabilities: tuple[Version, ...], kb: Knowledge) -> dict[str, list[Version]]:
    """Generation -> its capabilities, in their order."""
    found: dict[str, list[Version]] = {}
    for one in capabilities:
        generation = kb.architecture(one)
        found.setdefault(generation.name if generation else "other", []).append(one)
    return found


def plain_pythons(build: TorchBuild) -> tuple[str, ...]:
    """The Pythons of a build but for the free-threaded ones."""
    return tuple(one for one in build.pythons if not one.endswith("t"))


def span(pythons: tuple[str, ...]) -> str:
    """The first to the last, or that none is known."""
    if not pythons:
        return "not known"
    return pythons[0] if len(pythons) == 1 else f"{pythons[0]} to {pythons[-1]}"


def chosen_for(stack: Stack) -> str | None:
    """The machine that the build was chosen for, by its kind alone."""
    parts = []
    if found := sorted(set(stack.capabilities or ())):
        parts.append(f"{'a GPU' if len(found) == 1 else 'GPUs'} of capability {listed(found)}")
        parts += [f"driver {stack.driver}"] if stack.driver else []
    parts += [f"Python {stack.python}"] if stack.python else []
    return f"Chosen for {', '.join(parts)}." if parts else None


def listed(capabilities: Iterable[Version]) -> str:
    """Compute capabilities as they are shown: 7.5, 8.0."""
    return ", ".join(map(str, capabilities))


def _driver(build: TorchBuild, kb: Knowledge) -> str:
    floor = driver_floor(build, kb)
    return "the oldest driver is not known" if floor == "not known" else f"driver {floor} or newer"


def comments(*sentences: str, hang: int = 0) -> list[str]:
    """The sentences as comment lines, each begun on a line of its own; hang: indents the rest."""
    return [
        f"# {line}"
        for sentence in sentences
        for line in textwrap.wrap(
            sentence,
            WIDTH - 2,
            subsequent_indent=" " * hang,
            break_long_words=False,
            break_on_hyphens=False,
        )
    ]
