"""NVIDIA's package repositories, for the driver, the toolkit and containers alike."""

from __future__ import annotations

from msgspec import Struct

from cudadoctor.knowledge.tables import texts
from cudadoctor.model.findings import Edit
from cudadoctor.model.machine import Machine, Strings
from cudadoctor.plan.remedies.process import commands_in, family_of, major_of

_CUDA = "https://developer.download.nvidia.com/compute/cuda/repos"
_ARCHITECTURES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "sbsa", "arm64": "sbsa"}


class Release(Struct, frozen=True):
    """A release's repository (see repositories.toml)."""

    distros: Strings
    add: str
    folder: str
    release: str = ""
    toolkits: Strings = ()
    driver: bool = True


class Added(Struct, frozen=True):
    """How the Container Toolkit's repository is added for one package manager."""

    commands: str
    file: str = ""
    line: str = ""


class Repositories(Struct, frozen=True):
    """All of repositories.toml."""

    add: dict[str, str]
    releases: tuple[Release, ...]
    container_toolkit: dict[str, Added]


_TABLE = texts("repositories", Repositories)


def repository_of(m: Machine, *, toolkit: bool = False) -> Release | None:
    """The repository for this release that has the driver, or the CUDA toolkits."""
    wsl = m.platform.wsl and family_of(m) == "ubuntu"
    names = {m.platform.distro, family_of(m), "wsl" if wsl else None}
    versions = {"", m.platform.distro_version, str(major_of(m))}
    found = (
        row
        for row in _TABLE.releases
        if names & {*row.distros} and row.release in versions
        if (row.toolkits if toolkit else row.driver)
    )
    return next(found, None)


def is_ended(m: Machine) -> bool:
    """Whether this release is older than every one that NVIDIA has packages for."""
    rows = (row.release for row in _TABLE.releases if m.platform.distro in row.distros)
    first = min((int(release) for release in rows if release.isdecimal()), default=0)
    return (major_of(m) or first) < first


def adding(m: Machine, release: Release | None) -> str:
    """The commands that add it, separated by semicolons; "" if this machine has none."""
    arch = _ARCHITECTURES.get(m.platform.machine or "")
    if release is None or arch is None:
        return ""
    url = f"{_CUDA}/{release.folder}/{arch}"
    return _TABLE.add[release.add].format(url=url, folder=release.folder)


def container_toolkits(manager: str) -> tuple[tuple[Edit, ...], tuple[Strings, ...]]:
    """The file and the commands that add the Container Toolkit's; nothing if not known."""
    row = _TABLE.container_toolkit.get(manager)
    if row is None:
        return (), ()
    edits = (Edit(file=row.file, what=row.line, mode="write"),) * bool(row.file)
    return edits, commands_in(row.commands)
