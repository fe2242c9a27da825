"""Which meanings of an error text the facts of a report rule out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudadoctor.rules.evidence.conditions import holds
from cudadoctor.rules.evidence.signs import gpu_present

if TYPE_CHECKING:
    from collections.abc import Callable

    from cudadoctor.knowledge import Knowledge
    from cudadoctor.model.machine import Machine


def refuted(conditions: tuple[str, ...], m: Machine, kb: Knowledge) -> bool:
    """Whether one of the conditions is known not to hold, not merely not known to hold."""
    return any(not holds(one, m, kb) and _is_known(one, m) for one in conditions)


def _is_known(condition: str, m: Machine) -> bool:
    if condition.startswith("not "):
        return True  # what it denies holds
    words = condition.split()
    if len(words) == 3:
        return words[0] == "torch" and m.torch.version is not None
    known = _KNOWN.get(condition)
    return known is not None and known(m)


def _system(m: Machine) -> bool:
    return m.platform.system is not None


def _build(m: Machine) -> bool:
    return m.torch.build is not None


_KNOWN: dict[str, Callable[[Machine], bool]] = {
    "windows": _system,
    "macos": _system,
    "wsl": lambda m: m.platform.system not in (None, "Linux") or m.platform.kernel is not None,
    "aarch64": lambda m: m.platform.machine is not None,
    "jetson": lambda m: (
        m.platform.system not in (None, "Linux")
        or m.platform.machine not in (None, "aarch64")
        or bool(m.platform.wsl)
    ),
    "no-builds-here": lambda _: True,  # a processor without builds is named where there is one
    "amd-gpu": lambda m: gpu_present(m) is True,
    "seen:amd-card-named": lambda m: gpu_present(m) is True,
    "no-gpu": lambda m: gpu_present(m) is not None,
    "torch-cpu": _build,
    "torch-cuda": _build,
    "torch-rocm": _build,
    "bare-torch-of-windows": lambda _: True,
}
"""Circumstances whose contrary can be known, and where it is."""
