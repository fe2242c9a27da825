"""What the installed torch requires of other packages, held against what is installed."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from cudadoctor.builds import platform_of
from cudadoctor.rule import need

if TYPE_CHECKING:
    from cudadoctor.facts import Machine
    from cudadoctor.knowledge import Knowledge

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
    environment = _environment(m)
    need(m.packages, "packages")
    found: dict[str, Pin] = {}
    for one in _active(_required(m, kb), environment, ("",)):
        found.setdefault(one.name, _pin(m, one))
        meta = m.package(META)
        if canonicalize_name(one.name) == META and meta:
            for below in _active(meta.requires, environment, tuple(sorted(one.extras)) or ("",)):
                found.setdefault(below.name, _pin(m, below))
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


def requirement_on(line: str, name: str) -> Requirement | None:
    """The requirement of a line where it names that package and has no extra; else None."""
    try:
        asked = Requirement(line)
    except InvalidRequirement:
        return None
    optional = asked.marker is not None and "extra" in str(asked.marker)
    return asked if canonicalize_name(asked.name) == name and not optional else None


def version_of(text: str | None) -> Version | None:
    """The version that a text is; None where it is none."""
    try:
        return Version(text) if text else None
    except InvalidVersion:
        return None


def _pin(m: Machine, asked: Requirement) -> Pin:
    name = canonicalize_name(asked.name)
    present = m.package(name)
    version = version_of(present.version) if present else None
    met = present is not None and (
        version is None or asked.specifier.contains(version, prereleases=True)
    )
    return Pin(name, str(asked.specifier), version, met)


def _active(
    lines: tuple[str, ...], environment: dict[str, str], extras: tuple[str, ...]
) -> tuple[Requirement, ...]:
    """The requirements whose markers hold with one of these extras."""
    return _holding(lines, tuple(environment.items()), extras)


@lru_cache(maxsize=32)
def _holding(
    lines: tuple[str, ...], environment: tuple[tuple[str, str], ...], extras: tuple[str, ...]
) -> tuple[Requirement, ...]:
    """Kept, since several rules ask for it: the meta-package has over a hundred long markers."""
    variables = dict(environment)
    holding = []
    for line in lines:
        only_for = _ONLY_FOR.search(line)
        if only_for and only_for[1] not in extras:
            continue
        try:
            asked = Requirement(line)
        except InvalidRequirement:
            continue
        marker = asked.marker
        if marker is None or any(marker.evaluate(variables | {"extra": e}) for e in extras):
            holding.append(asked)
    return tuple(holding)


def _environment(m: Machine) -> dict[str, str]:
    """The marker variables of the examined interpreter, of which nothing is taken from ours."""
    version = need(m.python.version, "python.version")
    system = need(m.platform.system, "platform.system")
    machine = need(m.platform.machine, "platform.machine")
    if system == "Windows":
        machine = {"x86_64": "AMD64", "aarch64": "ARM64"}.get(machine, machine)
    name = m.python.implementation or "CPython"
    return {
        "implementation_name": name.lower(),
        "implementation_version": str(version),
        "os_name": "nt" if system == "Windows" else "posix",
        "platform_machine": machine,
        "platform_python_implementation": name,
        "platform_release": m.platform.kernel or "",
        "platform_system": system,
        "platform_version": "",
        "python_full_version": str(version),
        "python_version": f"{version.major}.{version.minor}",
        "sys_platform": {"Windows": "win32", "Darwin": "darwin"}.get(system, "linux"),
    }
