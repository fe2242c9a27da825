"""What the installed torch requires of other packages, held against what is installed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from packaging.version import Version

from cudadoctor.model.requirements import Asked, admits, cut, marker_holds, marker_variables
from cudadoctor.model.rule import need
from cudadoctor.model.versions import version_of
from cudadoctor.solver.builds import platform_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cudadoctor.knowledge import Knowledge
    from cudadoctor.model.machine import Machine

META = "cuda-toolkit"
"""The package without files through which torch pins its CUDA libraries from 2.11 on."""


_ONLY_FOR = re.compile(r"(?:;|\)\s*and|; [^()]*\band)\s*extra == ['\"]([\w.-]+)['\"]\s*$")
"""A marker that ends by asking for one extra, whatever stands before it."""


class Pin(NamedTuple):
    """One requirement that holds on this machine. installed: None where the package is absent."""

    name: str
    wanted: str
    installed: Version | None
    met: bool

    @property
    def requirement(self) -> str:
        return f"{self.name}{self.wanted}"


def torch_pins(m: Machine, kb: Knowledge) -> tuple[Pin, ...]:
    """What torch requires here, through the meta-package of CUDA libraries too."""
    need(m.python.version, "python.version")
    need(m.platform.system, "platform.system")
    need(m.platform.machine, "platform.machine")
    environment = marker_variables(m)
    need(m.packages, "packages")
    found: dict[str, Pin] = {}
    for asked in _asked(_required(m, kb), ("",)):
        _note(found, m, asked, environment, ("",))
        meta = m.package(META)
        if asked.name == META and meta:
            extras = asked.extras or ("",)
            for below in _asked(meta.requires, extras):
                _note(found, m, below, environment, extras)
    return tuple(found.values())


def _required(m: Machine, kb: Knowledge) -> tuple[str, ...]:
    """Its metadata; where that was not read, what the default index's wheel of it is known for."""
    version, platform = m.torch.version, platform_of(m)
    if m.torch.requires is not None or version is None or version.local or platform is None:
        return need(m.torch.requires, "torch.requires")
    return need(kb.default_pins(version, platform), "torch.requires")


def library_pins(m: Machine, kb: Knowledge) -> tuple[Pin, ...]:
    """The pins of CUDA libraries."""
    return tuple(
        pin for pin in torch_pins(m, kb) if pin.name.startswith("nvidia-") or pin.name == META
    )


def specifier_on(line: str, name: str) -> str | None:
    """The specifier of a line where it names that package and has no extra; else None."""
    asked = cut(line)
    if asked is None or asked.name != name or "extra" in asked.marker:
        return None
    return asked.specifier


def _asked(lines: tuple[str, ...], extras: tuple[str, ...]) -> Iterator[Asked]:
    """The requirements in these lines, without those of other extras."""
    for line in lines:
        only_for = _ONLY_FOR.search(line)
        if only_for and only_for[1] not in extras:
            continue
        asked = cut(line)
        if asked is not None:
            yield asked


def _note(
    found: dict[str, Pin],
    m: Machine,
    asked: Asked,
    environment: dict[str, str],
    extras: tuple[str, ...],
) -> None:
    """Note a pin that holds here. What is met needs no look at its marker, a grammar's cost."""
    pin = _pin(m, asked)
    if asked.name in found:
        return
    if pin.met or not asked.marker or _holds(asked.marker, environment, extras):
        found[asked.name] = pin


def _holds(marker: str, environment: dict[str, str], extras: tuple[str, ...]) -> bool:
    return any(marker_holds(marker, environment | {"extra": extra}) for extra in extras)


def _pin(m: Machine, asked: Asked) -> Pin:
    present = m.package(asked.name)
    version = version_of(present.version) if present else None
    met = present is not None and (version is None or admits(asked.specifier, version))
    return Pin(asked.name, asked.specifier, version, met)
