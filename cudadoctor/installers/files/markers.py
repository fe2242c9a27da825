"""Platforms as each tool writes them: environment markers, and conda's names."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

CONDA = {
    "linux_x86_64": "linux-64",
    "linux_aarch64": "linux-aarch64",
    "windows_amd64": "win-64",
    "windows_arm64": "win-arm64",
    "macos_arm64": "osx-arm64",
    "macos_x86_64": "osx-64",
}

_SYSTEMS = {
    "linux": ("linux_x86_64", "linux_aarch64"),
    "win32": ("windows_amd64", "windows_arm64"),
    "darwin": ("macos_arm64", "macos_x86_64"),
}
_MACHINES = {
    "linux_x86_64": "x86_64",
    "linux_aarch64": "aarch64",
    "windows_amd64": "AMD64",
    "windows_arm64": "ARM64",
    "macos_arm64": "arm64",
    "macos_x86_64": "x86_64",
}


def system_of(platform: str) -> str:
    """sys_platform of a platform."""
    return next(name for name, some in _SYSTEMS.items() if platform in some)


def marker(platform: str) -> str:
    """The marker of exactly one platform."""
    return (
        f"sys_platform == '{system_of(platform)}' and platform_machine == '{_MACHINES[platform]}'"
    )


def marker_of(platforms: Iterable[str], among: Iterable[str]) -> str | None:
    """The shortest marker that tells these platforms from the others of a project.

    None where they are all of them.
    """
    wanted, all_of_them = set(platforms), set(among)
    if wanted >= all_of_them:
        return None
    parts: list[str] = []
    for system, some in _SYSTEMS.items():
        here = [one for one in some if one in wanted]
        if here and not [one for one in some if one in all_of_them - wanted]:
            parts.append(f"sys_platform == '{system}'")
        else:
            parts += [f"({marker(one)})" for one in here]
    return " or ".join(parts)
