"""Requirements as they stand in commands and project files, with their environment markers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from cudadoctor.model.machine import OptStr, Strings

COMPILED_HERE = frozenset(
    """
    apex causal-conv1d deepspeed detectron2 flash-attn mamba-ssm pytorch3d torch-cluster
    torch-scatter torch-sparse torch-spline-conv transformer-engine transformer-engine-torch
    """.split()  # noqa: SIM905
)
"""Packages that come as source and must be built against the torch that is installed."""

CONDA = {
    "linux_x86_64": "linux-64",
    "linux_aarch64": "linux-aarch64",
    "windows_amd64": "win-64",
    "windows_arm64": "win-arm64",
    "macos_arm64": "osx-arm64",
    "macos_x86_64": "osx-64",
}
"""conda's names of the platforms."""
_MACHINES = {
    "linux": {"linux_x86_64": "x86_64", "linux_aarch64": "aarch64"},
    "win32": {"windows_amd64": "AMD64", "windows_arm64": "ARM64"},
    "darwin": {"macos_arm64": "arm64", "macos_x86_64": "x86_64"},
}
"""sys_platform -> the platforms with their platform_machine."""


def sound(words: Strings) -> Strings:
    """The names and requirements that cannot be taken for options."""
    return tuple(
        word for word in words if re.fullmatch(r"[A-Za-z0-9]\S*", word) and word.isprintable()
    )


def name_of(requirement: str) -> str:
    """The name that a requirement begins with."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    return found[0].lower() if found else requirement


def constraint_of(requirement: str) -> str:
    """What follows the name: ==2.14.1; "" if every release will do."""
    return requirement[len(name_of(requirement)) :]


def pin_of(requirements: Iterable[str], name: str = "torch") -> str:
    """The release that one of the requirements pins a package to; "" if none does."""
    pins = (word.partition("==")[2] for word in requirements if name_of(word) == name)
    return next(pins, "")


def split_compiled(requirements: Strings) -> tuple[Strings, Strings]:
    """Requirements that come as wheels, and those that are compiled against torch.

    A release with a tag (+pt26cu124) is a wheel: the package index has none with one.
    """
    compiled = tuple(
        word for word in requirements if name_of(word) in COMPILED_HERE and "+" not in word
    )
    return tuple(word for word in requirements if word not in compiled), compiled


def quoted(word: str) -> str:
    """The word as a basic string of TOML; JSON's escapes are a part of those."""
    return json.dumps(word.replace("\x7f", ""))


def listed(names: Iterable[str]) -> str:
    """The words as an array of TOML."""
    return f"[{', '.join(map(quoted, names))}]"


def entry(requirement: str, *keys: str) -> str:
    """The line of a table of TOML that asks for a package. keys: what stands beside its version."""
    name, constraint = name_of(requirement), quoted(constraint_of(requirement) or "*")
    if keys:
        constraint = f"{{ {', '.join((f'version = {constraint}', *keys))} }}"
    return f"{quoted(name) if '.' in name else name} = {constraint}"  # a dot would open a table


def marker(platform: str) -> str:
    """The environment marker of exactly one platform."""
    system = next(system for system, some in _MACHINES.items() if platform in some)
    return f"sys_platform == '{system}' and platform_machine == '{_MACHINES[system][platform]}'"


def marker_of(platforms: Iterable[str], among: Iterable[str]) -> OptStr:
    """The shortest marker that tells these platforms from the others of a project.

    None if they are all of them.
    """
    wanted = set(platforms)
    others = set(among) - wanted
    if not others:
        return None
    parts = []
    for system, some in _MACHINES.items():
        here = [platform for platform in some if platform in wanted]
        whole = here and others.isdisjoint(some)
        parts += (
            [f"sys_platform == '{system}'"]
            if whole
            else [f"({marker(platform)})" for platform in here]
        )
    return " or ".join(parts)
