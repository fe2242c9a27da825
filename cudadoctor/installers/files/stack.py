"""What a project file is to hold: one build of torch on one or several platforms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
from packaging.version import Version

from cudadoctor.installers.index import TORCH_INDEX
from cudadoctor.installers.pip import sound
from cudadoctor.knowledge import TorchBuild
from cudadoctor.knowledge.companions import NUMPY_2_SINCE
from cudadoctor.model.versions import DriverVersion
from cudadoctor.solver.builds import capabilities_of
from cudadoctor.solver.fit import served

if TYPE_CHECKING:
    from cudadoctor.knowledge import Knowledge
    from cudadoctor.model.machine import Machine

Hashes = Mapping[tuple[str, str], tuple[str, ...]]
"""(name, version) -> SHA-256 digests of the files of that release, in hexadecimal."""

_USUAL = ("3.12", "3.11", "3.13", "3.10")
"""Pythons for a file that has to name one and was told none, the preferred one first."""
IN_DOCKER = {
    "windows_amd64": "linux_x86_64",
    "macos_x86_64": "linux_x86_64",
    "windows_arm64": "linux_aarch64",
    "macos_arm64": "linux_aarch64",
}


class Stack(msgspec.Struct, frozen=True, kw_only=True):
    """One release and variant of torch, with what belongs to it.

    builds: its build on each platform, the leading one first. python: the one that is fixed
    ("3.11"), None where it is left open. companions: (name, release); left_out: those without a
    wheel for that Python. then: further requirements.
    capabilities: of the GPUs that it was chosen for, None where it is for all that it serves.
    driver: that it was chosen for; driver_cuda: the newest CUDA that this one runs.
    """

    builds: tuple[TorchBuild, ...]
    python: str | None = None
    companions: tuple[tuple[str, str], ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()
    then: tuple[str, ...] = ()
    capabilities: tuple[Version, ...] | None = None
    driver: DriverVersion | None = None
    driver_cuda: Version | None = None

    @property
    def lead(self) -> TorchBuild:
        return self.builds[0]

    @property
    def platforms(self) -> tuple[str, ...]:
        return tuple(build.platform for build in self.builds)

    @property
    def torch(self) -> str:
        return str(self.lead.torch)

    @property
    def name(self) -> str:
        """A name for the project or environment: torch-cu126."""
        cuda = self.lead.cuda
        return f"torch-cu{cuda.major}{cuda.minor}" if cuda else "torch-cpu"

    @property
    def index(self) -> str | None:
        """torch's own index, None where the default index has all of these builds."""
        if all(build.default for build in self.builds):
            return None
        return f"{TORCH_INDEX}/{self.lead.variant}"

    @property
    def indexed(self) -> tuple[str, ...]:
        """The platforms whose build only torch's own index has."""
        return tuple(build.platform for build in self.builds if not build.default)

    @property
    def pythons(self) -> tuple[str, ...]:
        """The Pythons that all the builds are made for, oldest first, without free-threaded."""
        shared = [set(build.pythons) for build in self.builds]
        return tuple(
            one
            for one in self.lead.pythons
            if all(one in each for each in shared) and one[-1] != "t"
        )

    @property
    def one_python(self) -> str:
        """The Python for a file that has to name one."""
        if self.python:
            return self.python
        made = self.pythons
        return next((one for one in _USUAL if one in made), made[-1] if made else _USUAL[0])

    @property
    def pins(self) -> tuple[tuple[str, str], ...]:
        """torch and its companions, (name, release)."""
        return (("torch", self.torch), *self.companions)


def stack_for(
    kind: str,
    m: Machine,
    kb: Knowledge,
    build: TorchBuild,
    *,
    python: str | None,
    then: tuple[str, ...] = (),
) -> Stack:
    """The stack of that build for one machine; an image always holds a build for Linux."""
    if kind == "dockerfile" and build.platform in IN_DOCKER:
        other = kb.build_of(build.torch, build.variant, IN_DOCKER[build.platform])
        build = other if other is not None and other.published else build
    companions = _companions(m, build)
    lost = _without_wheel(companions, build, python, kb)
    return Stack(
        builds=(build,),
        python=python,
        companions=tuple(one for one in companions if one not in lost),
        left_out=lost,
        then=(*numpy_for(build), *sound(then)),
        capabilities=capabilities_of(m, kb),
        driver=m.driver.kernel or m.driver.library,
        driver_cuda=m.driver.cuda,
    )


def numpy_for(build: TorchBuild) -> tuple[str, ...]:
    """The requirement on numpy: torchvision would bring one that an old torch cannot use."""
    return ("numpy<2",) if build.torch < NUMPY_2_SINCE else ()


def serving(build: TorchBuild, kb: Knowledge) -> tuple[Version, ...] | None:
    """The compute capabilities that a build has code for, lowest first; None not known.

    Contested code does not count, nor does PTX: whether it runs is a matter of the driver.
    """
    if build.archs is None:
        return None
    codes = tuple(one for one in build.archs if one not in build.contested)
    found = ((one, served(codes, one, build.torch, build.cuda, kb)) for one in kb.capabilities)
    return tuple(one for one, how in found if how is not None and how[0] == "native")


def _companions(m: Machine, build: TorchBuild) -> tuple[tuple[str, str], ...]:
    """torchvision always, torchaudio where it is there already, as far as they exist."""
    audio = build.torchaudio if m.package("torchaudio") else None
    found = (("torchvision", build.torchvision), ("torchaudio", audio))
    return tuple((name, release) for name, release in found if release)


def _without_wheel(
    companions: tuple[tuple[str, str], ...], build: TorchBuild, python: str | None, kb: Knowledge
) -> tuple[tuple[str, str], ...]:
    """The companions that are known to have no wheel for that Python."""
    wanted = python or ""
    return tuple(
        one for one in companions if wanted and kb.lacks_wheel(*one, wanted, build.platform)
    )
