"""What a project file is to hold: one build of torch on one or several platforms.

The file is made from the tables alone: it names no path, no host and no user, and can be committed
as it is.
"""

import textwrap

from msgspec import Struct
from packaging.version import Version

from cudadoctor.knowledge import Knowledge, TorchBuild
from cudadoctor.knowledge.companions import NUMPY_2_SINCE
from cudadoctor.knowledge.torch_builds import TORCH_INDEX
from cudadoctor.model.machine import (
    Machine,
    OptDriverVersion,
    OptStr,
    OptVersion,
    Strings,
    StrPair,
    Versions,
)
from cudadoctor.solver.demand import capabilities_of, driver_level, served

WIDTH = 96
PLATFORM_NAMES = {
    "linux_x86_64": "Linux x86_64",
    "linux_aarch64": "Linux aarch64",
    "windows_amd64": "Windows",
    "windows_arm64": "Windows on ARM",
    "macos_arm64": "macOS on Apple silicon",
    "macos_x86_64": "macOS on Intel",
}
IN_DOCKER = {
    "windows_amd64": "linux_x86_64",
    "macos_x86_64": "linux_x86_64",
    "windows_arm64": "linux_aarch64",
    "macos_arm64": "linux_aarch64",
}
_USUAL = ("3.12", "3.11", "3.13", "3.10")
"""Pythons for a file that has to name one if none is given, the preferred one first."""


class Stack(Struct, frozen=True, kw_only=True):
    """One release and variant of torch, with what belongs to it.

    builds: its build on each platform, the leading one first. python: the one that is fixed
    ("3.11"), None if it is left open. companions: (name, release); left_out: those without a
    wheel for that Python. then: requirements beside these.
    capabilities: of the GPUs that it was chosen for, None if it is for all that it serves.
    driver: that it was chosen for; driver_cuda: the newest CUDA that this one runs.
    """

    builds: tuple[TorchBuild, ...]
    python: OptStr = None
    companions: tuple[StrPair, ...] = ()
    left_out: tuple[StrPair, ...] = ()
    then: Strings = ()
    capabilities: Versions | None = None
    driver: OptDriverVersion = None
    driver_cuda: OptVersion = None

    @property
    def lead(self) -> TorchBuild:
        return self.builds[0]

    @property
    def platforms(self) -> Strings:
        return tuple(build.platform for build in self.builds)

    @property
    def name(self) -> str:
        """A name for the project or environment: torch-cu126."""
        cuda = self.lead.cuda
        return f"torch-cu{cuda.major}{cuda.minor}" if cuda else "torch-cpu"

    @property
    def index(self) -> OptStr:
        """torch's own index, None if the default index has all of these builds."""
        all_default = all(build.default for build in self.builds)
        return None if all_default else f"{TORCH_INDEX}/{self.lead.variant}"

    @property
    def tagged(self) -> list[str]:
        """The platforms where torch bears its local version (+cu126): macOS has none."""
        platforms = self.platforms if self.index else ()
        return [platform for platform in platforms if not platform.startswith("macos")]

    @property
    def pythons(self) -> Strings:
        """The Pythons that all the builds are made for, oldest first, without free-threaded."""
        common = set.intersection(*(set(build.pythons) for build in self.builds))
        return tuple(filter(common.__contains__, plain_pythons(self.lead)))

    @property
    def one_python(self) -> str:
        """The Python for a file that has to name one."""
        made = self.pythons or _USUAL[:1]
        return self.python or next((usual for usual in _USUAL if usual in made), made[-1])

    @property
    def pins(self) -> Strings:
        """torch and its companions as requirements."""
        pairs = (("torch", self.lead.torch), *self.companions)
        return tuple(f"{name}=={release}" for name, release in pairs)


def stack_for(kind: str, m: Machine, kb: Knowledge, build: TorchBuild, *, python: OptStr) -> Stack:
    """The stack of that build for one machine; an image always holds a build for Linux.

    torchaudio goes along if it is there already, torchvision always.
    """
    if kind == "dockerfile" and build.platform in IN_DOCKER:
        other = kb.build_of(build.torch, build.variant, IN_DOCKER[build.platform])
        build = other if other is not None and other.published else build
    audio = build.torchaudio if m.package("torchaudio") else None
    family = (("torchvision", build.torchvision), ("torchaudio", audio))
    companions = tuple((name, release) for name, release in family if release)
    lost = tuple(
        pair
        for pair in companions
        if python and kb.lacks_wheel(*pair, python, build.platform, pypi=build.default)
    )
    return Stack(
        builds=(build,),
        python=python,
        companions=tuple(pair for pair in companions if pair not in lost),
        left_out=lost,
        then=numpy_for(build),
        capabilities=capabilities_of(m, kb),
        driver=m.driver.kernel or m.driver.library,
        driver_cuda=driver_level(m, kb),
    )


def numpy_for(build: TorchBuild) -> Strings:
    """The requirement on numpy: torchvision would bring one that an old torch cannot use."""
    return ("numpy<2",) if build.torch < NUMPY_2_SINCE else ()


def serving(build: TorchBuild, kb: Knowledge) -> Versions | None:
    """The compute capabilities that a build has code for, lowest first; None not known.

    Contested code does not count, nor does PTX: whether it runs is a matter of the driver.
    """
    if build.archs is None:
        return None
    codes = tuple(arch for arch in build.archs if arch not in build.contested)
    found = (
        (capability, served(codes, capability, build.torch, build.cuda, kb))
        for capability in kb.capabilities
    )
    return tuple(capability for capability, how in found if how is not None and how[0] == "native")


def heading(stack: Stack, kb: Knowledge, *more: str) -> list[str]:
    """The comment lines at the top of a file; more: sentences of the file's own."""
    lead = stack.lead
    what = f"for CUDA {lead.cuda} ({lead.variant})" if lead.cuda else "without CUDA (cpu)"
    return [
        *comments(f"torch {lead.torch} {what}."),
        *comments(
            *(
                f"{PLATFORM_NAMES[build.platform]}: {_demands(build, kb)}."
                for build in stack.builds
            ),
            hang=2,
        ),
        *comments(
            *_chosen_for(stack),
            *(
                f"No wheel of {name} {release} for Python {stack.python} is known."
                for name, release in stack.left_out
            ),
            *more,
            f"Released {lead.released}. Made by cudadoctor from its tables of {kb.date}.",
        ),
    ]


def _demands(build: TorchBuild, kb: Knowledge) -> str:
    """The driver, GPUs, Pythons and C library that a build needs."""
    parts = []
    if build.cuda is not None:
        floor = driver_floor(build, kb)
        parts = [f"driver {floor} or newer" if floor else "the oldest driver is not known"]
        parts.append(gpus(build, kb))
    parts += [f"Python {span(plain_pythons(build))}"] if build.pythons else []
    parts += [f"glibc {build.glibc} or newer"] if build.glibc is not None else []
    return "; ".join(parts)


def driver_floor(build: TorchBuild, kb: Knowledge) -> OptDriverVersion:
    """The oldest driver for a CUDA build, None if the tables are silent."""
    system = "Windows" if build.platform.startswith("windows") else "Linux"
    floor = kb.driver_floor(build.cuda, system) if build.cuda else None
    return floor.driver if floor else None


def gpus(build: TorchBuild, kb: Knowledge) -> str:
    """The generations with code in the build, each with its capabilities."""
    capabilities = serving(build, kb)
    if capabilities is None:
        return "which GPUs it has code for is not known"
    found: dict[str, list[Version]] = {}
    for capability in capabilities:
        generation = kb.architecture(capability)
        found.setdefault(generation.name if generation else "other", []).append(capability)
    named = ", ".join(f"{name} ({', '.join(map(str, some))})" for name, some in found.items())
    return f"{named} by build scripts, not read from the wheel" if build.archs_uncertain else named


def plain_pythons(build: TorchBuild) -> Strings:
    """The Pythons of a build but for the free-threaded ones."""
    return tuple(python for python in build.pythons if not python.endswith("t"))


def span(pythons: Strings) -> str:
    """The first to the last, or that none is known."""
    if not pythons:
        return "not known"
    return pythons[0] if len(pythons) == 1 else f"{pythons[0]} to {pythons[-1]}"


def _chosen_for(stack: Stack) -> list[str]:
    """The machine that the build was chosen for, by its kind alone."""
    parts = []
    if found := sorted(set(stack.capabilities or ())):
        gpus = "a GPU" if len(found) == 1 else "GPUs"
        parts.append(f"{gpus} of capability {', '.join(map(str, found))}")
        parts += [f"driver {stack.driver}"] if stack.driver else []
    parts += [f"Python {stack.python}"] if stack.python else []
    return [f"Chosen for {', '.join(parts)}."] if parts else []


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
