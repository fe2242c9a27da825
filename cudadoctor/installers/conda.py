"""conda, mamba and micromamba, by the names of conda-forge; and environment.yml."""

import json
import re
from functools import cached_property, partial
from typing import Literal

from msgspec.structs import replace
from packaging.version import Version

from cudadoctor.installers import pip
from cudadoctor.installers.index import TAGGED, is_foreign
from cudadoctor.installers.requirement import (
    constraint_of,
    name_of,
    pin_of,
    sound,
)
from cudadoctor.installers.stack import Stack, heading, serving
from cudadoctor.installers.tool import (
    Command,
    Hashes,
    Recipe,
    Tool,
    Wanted,
    Written,
    folder_for,
    joined,
    manager,
    within,
)
from cudadoctor.knowledge import Knowledge, TorchBuild
from cudadoctor.model.findings import PackageChange
from cudadoctor.model.machine import Machine, OptStr, OptVersion, Strings, Versions
from cudadoctor.model.requirements import TORCH_FAMILY
from cudadoctor.solver.demand import capabilities_of, platform_of, python_of, served
from cudadoctor.solver.supposed import supposed

PROGRAMS = ("mamba", "micromamba", "conda")
_NAMES = {"torch": "pytorch", "opencv-python": "opencv", "faiss-gpu": "faiss"}
_FROM_TORCH = ("nvidia-", "cuda-", "triton")
_PLATFORMS = ("linux_x86_64", "windows_amd64")
"""Where the pytorch channel had CUDA builds."""
_KINDS = ("pytorch-cuda", "cpuonly", "cudatoolkit")
"""What a user of the pytorch channel names beside torch: the kind of build."""
_OF_CHANNEL = (*_KINDS, "pytorch-mutex", "torchtriton")
"""All that this channel has with torch; beside them conda keeps its torch, or finds no solution."""
_META_FROM = Version("1.13")
"""From this release on the pytorch channel names the CUDA version by pytorch-cuda."""
_OLD_MKL = "mkl<2024.1"
"""Its builds for Linux use a function that newer MKL does not have (pytorch issue 123097)."""
_NO_GPU_SEEN = (
    "conda selects a CUDA build only if it detects the driver. If conda does not detect the "
    "driver, set CONDA_OVERRIDE_CUDA={cuda} before you run the command."
)
_OLD_CUDNN = (
    "Newer cuDNN releases do not support this GPU, so the command requests an older one. If "
    "conda cannot find a matching build, use PyTorch's own wheels (--with pip)."
)
_NO_SUCH = "No conda channel has builds for this board, so pip installs wheels made for it."
_ENDED = (
    "The pytorch channel was discontinued after torch {newest}, and conda-forge does not have "
    "this build of torch {torch}."
)
_NEAREST = (
    "conda-forge is not known to have torch {torch} with CUDA {major} for these GPUs; the nearest "
    "release that it has is {nearest}."
)
_OF_A_PAGE = "conda cannot install the wheels from {page}: they are not made for conda's torch."
_PERHAPS_OF_CHANNEL = (
    "If `conda list` shows pytorch-cuda, pytorch-mutex, cpuonly or cudatoolkit, remove those of "
    "them that it shows, and pytorch, before you run the command (conda remove --force)."
)
_SINCE_ENDED = (
    "The command uses conda-forge because the pytorch channel was discontinued after torch "
    "{newest}."
)
_BY_PIP = (
    "No conda channel is known to have torch {torch} with CUDA {major}, so pip installs PyTorch's "
    "own wheels."
)
_CPU_BY_PIP = (
    "No conda channel is known to have the CPU build of torch {torch}, so pip installs PyTorch's "
    "own wheels."
)
_PLAIN = r"[A-Za-z][A-Za-z0-9_.=<>,*+-]*"
"""What YAML takes for a text without quotes: no space, no # and no colon in it."""


# --- commands ----------------------------------------------------------------------------------


def write(m: Machine, kb: Knowledge, change: PackageChange) -> Written:
    """The change in the examined conda environment; in a new one if it is not conda's."""
    conda, step = manager(m, *PROGRAMS) or "conda", partial(Written, tool="conda", wheels=False)
    if is_foreign(change.index):
        made = pip.write(m, kb, change)
        return replace(made, note=joined(made.note, _NO_SUCH))
    order = Order(m, kb, change)
    if order.is_nowhere and (m.python.kind or "").startswith("conda"):
        return _by_pip(m, kb, change)
    channels, specs = packages_of(m, kb, change)
    note = note_on(m, kb, change, specs)
    if change.find_links:
        note = joined(note, _OF_A_PAGE.format(page=change.find_links))
    if specs and m.python.kind is not None and not m.python.kind.startswith("conda"):
        folder, version = folder_for(m, "torch-conda"), m.python.version
        own = within(m, folder, conda=True)
        python = f"python={version.major}.{version.minor}" if version else "python"
        create = (conda, "create", "-y", "-p", folder, *channels, python, *specs)
        new = f"This step creates a conda environment. Run your programs with {own}."
        return step(commands=(create,), note=joined(new, note))
    prefix = m.python.prefix
    where = () if not prefix or prefix.startswith(("~", "<")) else ("-p", prefix)
    commands: list[Command] = []
    former = _of_channel(m, channels, specs)
    # What pip had put into the conda environment, pip must take out again.
    installed = {package.name: package.installer for package in m.packages or ()}
    by_pip = tuple(name for name in change.remove if installed.get(name) in ("pip", "uv"))
    gone = tuple(map(conda_name, sound(change.remove)))
    if by_pip:
        # conda does not see what pip installed: its answer holds for the time after it went.
        dry = (conda, "install", "--dry-run", *where, *channels, *specs)
        uninstall = pip.write(m, kb, type(change)(install=(), remove=by_pip)).commands
        commands = [*([dry] if specs and not former else []), *uninstall]
    elif gone and not specs:
        commands.append((conda, "remove", "-y", *where, *gone))
    if former:
        # What needs torch stays: the torch that comes next serves it.
        commands.append((conda, "remove", "-y", "--force", *where, *former))
    elif "pytorch" not in channels and _may_be_of_channel(m, kb, specs):
        note = joined(note, _PERHAPS_OF_CHANNEL)
    if specs:
        commands.append((conda, "install", "-y", *where, *channels, *specs))
    return step(commands=tuple(commands), note=note)


def _by_conda(m: Machine) -> Strings:
    return tuple(item.name for item in m.packages or () if item.installer == "conda")


def _of_channel(m: Machine, channels: Command, specs: Command) -> Command:
    """What the pytorch channel put here that the new torch cannot stand beside.

    For a build of the same channel, the other kind of build; else its torch as a whole.
    """
    here, named = _by_conda(m), {re.split(r"[=<>]", spec)[0] for spec in specs}
    if "pytorch" in channels:
        others = (name for name in _KINDS if name in here and name not in named)
        return tuple(others) if "pytorch" in named else ()
    moves = any(name.startswith("pytorch-") for name in named)
    found = tuple(name for name in _OF_CHANNEL if name in here)
    if not moves or not found:
        return ()
    family = (conda_name(name) for name in TORCH_FAMILY if name in here)
    # A cupy of conda's may need that toolkit.
    kept = {"cudatoolkit"} if "cupy" in here else set()
    return (*family, *(name for name in found if name not in kept))


def _may_be_of_channel(m: Machine, kb: Knowledge, specs: Command) -> bool:
    """Whether torch moves to conda-forge, and what conda installed here is not listed."""
    version, place = m.torch.version, platform_of(m)
    moves = any(spec.startswith("pytorch-") for spec in specs)
    if not moves or m.torch.installer != "conda" or version is None or _by_conda(m):
        return False
    return bool(kb.conda_cuda("pytorch", version, place or ""))


def _by_pip(m: Machine, kb: Knowledge, change: PackageChange) -> Written:
    """Torch's own wheels in the conda environment, after what conda installed has gone."""
    there = {*_by_conda(m)} | ({"torch"} if m.torch.installer == "conda" else set())
    gone = tuple(name for name in (*TORCH_FAMILY, *_OF_CHANNEL, *change.remove) if name in there)
    conda, prefix = manager(m, *PROGRAMS) or "conda", m.python.prefix
    where = () if not prefix or prefix.startswith(("~", "<")) else ("-p", prefix)
    remove = (conda, "remove", "-y", "--force", *where, *map(conda_name, dict.fromkeys(gone)))
    rest = tuple(name for name in change.remove if name not in gone)
    made = pip.write(m, kb, replace(change, remove=rest))
    major = (change.cuda or "").partition(".")[0]
    said = (_BY_PIP if major else _CPU_BY_PIP).format(torch=pin_of(change.install), major=major)
    commands = (remove, *made.commands) if gone else made.commands
    return replace(made, commands=commands, note=joined(made.note, said))


class Order:
    """A change in the terms of conda's channels. release: of torch, "" any."""

    def __init__(self, m: Machine, kb: Knowledge, change: PackageChange) -> None:
        self.kb = kb
        # Where a report names no processor, the usual one.
        platforms = {platform_of(one) for one in supposed(m, kb).machines}
        self.platform = platforms.pop() if len(platforms) == 1 else None
        # A tag (+pt26cu124) is a wheel's: no package of conda's has one.
        self.wanted = tuple(w for w in sound((*change.install, *change.then)) if "+" not in w)
        self.release = pin_of(sound(change.install))
        self.cuda = Version(change.cuda) if change.cuda else None
        self.capabilities = capabilities_of(m, kb)
        self.python = python_of(m)
        self.newest = kb.newest_on_conda("conda-forge")

    def made(self, release: str, *, ended: bool = False) -> list[Version]:
        """The CUDA versions, of the wanted major, that conda-forge built that torch with.

        ended: the pytorch channel, which ended.
        """
        if not release or self.platform is None:
            return []
        channel: Literal["pytorch", "conda-forge"] = "pytorch" if ended else "conda-forge"
        found = self.kb.conda_cuda(channel, Version(release), self.platform) or ()
        if self.cuda is None:
            return [*found]
        gpus = self.capabilities or ()
        return [
            cuda
            for cuda in found
            if cuda.major == self.cuda.major
            and all(
                _has_code(cuda, Version(release), gpu, self.platform, self.kb, ended=ended)
                for gpu in gpus
            )
        ]

    @property
    def is_nowhere(self) -> bool:
        """Whether no channel has that release, and conda-forge went past it."""
        release = self.release
        if not release or Version(release) > self.newest or self.platform is None:
            return False
        return not self.made(release) and not self.made(release, ended=True)

    def _serves(self, release: Version) -> bool:
        """Whether a release was made for this Python at all, as far as that is known."""
        builds = self.kb.builds_on(self.platform or "")
        pythons = next((build.pythons for build in builds if build.torch == release), ())
        return not pythons or self.python in (None, *pythons)

    @cached_property
    def pinned(self) -> OptVersion:
        """The release to ask conda-forge for: the wished one, or the nearest that serves the GPUs.

        Of several as near, the newer. None leaves it to conda: the newest release that is known
        serves, and no older one was wished for; or none is known to serve.
        """
        if self.made(self.release):
            return Version(self.release)
        if self.cuda is None:
            return None
        known = [*filter(self._serves, self.kb.torch_releases())]
        fitting = [release for release in known if self.made(str(release))]
        newest = self.newest in fitting or self.made(str(self.newest))
        wished = Version(self.release) if self.release else None
        if newest and (wished is None or wished > self.newest):
            return None
        if wished is None:
            return next(iter(fitting), None)
        later = (release for release in reversed(fitting) if release > wished)
        return next(later, next(iter(fitting), None))

    def of_pytorch_channel(self) -> Command | None:
        """The pytorch channel's packages for a release that conda-forge lacks, None elsewhere."""
        release, asked = self.release, self.cuda
        if not release or self.platform is None or self.platform not in _PLATFORMS:
            return None
        same = self.made(release, ended=True)
        if not same or self.made(release):
            return None
        cuda = asked if asked in same else max(same)
        name = "pytorch-cuda" if Version(release) >= _META_FROM else "cudatoolkit"
        kind = f"{name}={cuda.major}.{cuda.minor}" if asked else "cpuonly"
        pins = ((name, pin_of(self.wanted, name)) for name in map(name_of, self.wanted))
        family = (f"{conda_name(name)}=={pin}" for name, pin in pins if name in TAGGED and pin)
        mkl = (_OLD_MKL,) if self.platform.startswith("linux") else ()
        return (*family, kind, *mkl)

    def specs(self) -> Strings:
        """The change's requirements as conda-forge's packages."""
        if "torch" not in map(name_of, self.wanted):
            return tuple(map(conda_spec, self.wanted))
        asked, torch, limits = self.cuda, "pytorch-gpu" if self.cuda else "pytorch-cpu", list[str]()
        if asked is not None:
            # conda-forge builds for fewer minors than torch's index: the lower end is one that it
            # has, and the upper keeps the environment on the CUDA major which the driver runs.
            same = self.made(str(self.pinned or self.newest))
            lowest = min(asked, *same) if same else Version(f"{asked.major}.0")
            limits = [f"cuda-version>={lowest.major}.{lowest.minor},<{asked.major + 1}"]
            # Newer cuDNN refuses some GPUs, and conda would take the newest.
            gpus = self.capabilities
            if below := gpus and self.kb.cudnn_below(min(gpus)):
                limits.append(f"cudnn<{below.major}.{below.minor}")
        for requirement in self.wanted:
            name = name_of(requirement)
            if name != "torch" and not name.startswith(_FROM_TORCH):
                # Companions without a version: conda-forge pairs them with the torch it chooses.
                limits.append(conda_name(name) if name in TAGGED else conda_spec(requirement))
        return (f"{torch}={self.pinned}" if self.pinned else torch, *limits)


def packages_of(m: Machine, kb: Knowledge, change: PackageChange) -> tuple[Command, Command]:
    """The options that name the channels, and the packages.

    From conda-forge; from the pytorch channel, which ended, only what it alone has.
    """
    order = Order(m, kb, change)
    found = order.of_pytorch_channel()
    names = set(map(name_of, order.wanted))
    if names and names <= {*TAGGED} - {"torch"} and {*_OF_CHANNEL} & {*_by_conda(m)}:
        # What conda-forge pairs with its own torch would replace this one.
        return ("-c", "pytorch"), tuple(map(conda_spec, order.wanted))
    if found is None:
        return ("-c", "conda-forge"), order.specs()
    nvidia = ("-c", "nvidia") if any(spec.startswith("pytorch-cuda") for spec in found) else ()
    return ("-c", "pytorch", *nvidia), found


def note_on(m: Machine, kb: Knowledge, change: PackageChange, specs: Command) -> OptStr:
    """What may surprise: another release, no driver in sight, an older cuDNN, an ended channel."""
    order, other = Order(m, kb, change), None
    release, pinned = order.release, order.pinned
    if any(spec.startswith(("pytorch-cuda", "cudatoolkit", "cpuonly")) for spec in specs):
        return _ENDED.format(newest=kb.newest_on_conda("pytorch"), torch=release)
    if str(pinned) == release and order.made(release, ended=True):
        other = _SINCE_ENDED.format(newest=kb.newest_on_conda("pytorch"))
    if not any(spec.startswith("pytorch-gpu") for spec in specs):
        return other
    if release and pinned is None:
        other = (
            f"conda-forge may not have torch {release} (newest known: {order.newest}), so conda "
            "installs the newest compatible release."
        )
    elif release and str(pinned) != release:
        major = order.cuda.major if order.cuda else ""
        known = order.kb.torch_releases()
        if pinned and any(later > pinned and order.made(str(later)) for later in known):
            other = _NEAREST.format(torch=release, major=major, nearest=pinned)
        else:
            other = f"The last torch release that conda-forge built for CUDA {major} is {pinned}."
    old = any(spec.startswith("cudnn<") for spec in specs)
    # A job has what the login node lacks, where environments are usually made.
    seen = m.driver.cuda and not m.container.scheduler
    blind = None if seen else _NO_GPU_SEEN.format(cuda=change.cuda)
    return joined(other, _OLD_CUDNN if old else None, blind)


def conda_name(name: str) -> str:
    """The conda-forge package behind a distribution's name."""
    return _NAMES.get(name, name)


def conda_spec(requirement: str) -> str:
    """A requirement by conda-forge's name."""
    return conda_name(name_of(requirement)) + constraint_of(requirement)


# --- what conda-forge has of a stack -----------------------------------------------------------


def forge_specs(stack: Stack, kb: Knowledge) -> dict[str, str] | None:
    """conda-forge's packages -> their constraint; None if it is not known to have the stack.

    The CUDA versions are those of its builds, kept within the major that the driver runs.
    """
    if not all(_has(build, stack, kb) for build in stack.builds):
        return None
    release = f"{stack.lead.torch}.*"
    if stack.lead.cuda is None:
        return {"pytorch-cpu": release}
    lowest = min(cuda for build in stack.builds for cuda in _serving(build, stack, kb))
    cuda = f">={lowest.major}.{lowest.minor},<{lowest.major + 1}"
    return {"pytorch-gpu": release, "cuda-version": cuda}


def as_made(stack: Stack, kb: Knowledge) -> Stack:
    """The stack as conda-forge builds it, for what is said of it: its CUDA, its GPUs.

    For which Pythons it builds is not in the tables.
    """
    return replace(stack, builds=tuple(_as_made(build, kb) for build in stack.builds))


def _as_made(build: TorchBuild, kb: Knowledge) -> TorchBuild:
    cuda = max(_made_for(build, kb), default=None)
    archs = (kb.conda_archs(cuda, build.platform) or ()) if cuda else build.archs
    return replace(
        build,
        cuda=cuda,
        variant="conda-forge",
        archs=tuple(
            arch
            for arch in archs or ()
            if _cudnn_takes(Version(re.sub(r".*_(\d*)(\d)", r"\1.\2", arch)), kb)
        ),
        archs_uncertain=False,
        pythons=(),
        glibc=kb.conda_glibc(cuda) if cuda and build.platform.startswith("linux") else None,
    )


def _has_code(
    cuda: Version, release: Version, gpu: Version, platform: str, kb: Knowledge, *, ended: bool
) -> bool:
    """Whether a channel's build with that CUDA has code for a GPU of that capability.

    Of a build whose code is not known (ended: of the pytorch channel), whether its CUDA can have
    it: from the one on with which torch's own wheels had it first.
    """
    archs = None if ended else kb.conda_archs(cuda, platform)
    if archs is not None:
        return served(archs, gpu, release, cuda, kb) is not None
    found = (
        (build.cuda, served(build.archs or (), gpu, build.torch, build.cuda, kb))
        for build in kb.builds_on(platform)
    )
    first = (made for made, how in found if made and how and how[0] == "native")
    return min(first, default=cuda) <= cuda


def _cudnn_takes(capability: Version, kb: Knowledge) -> bool:
    """Whether the newest cuDNN takes a GPU: conda installs that one if nothing holds it back."""
    newest = next((build.cudnn for build in kb.builds if build.cudnn), None)
    return newest is not None and not kb.cudnn_refuses(Version(newest), capability)


def _made_for(build: TorchBuild, kb: Knowledge) -> Versions:
    """The CUDA versions of the build's major that conda-forge made that release with."""
    made = kb.conda_cuda("conda-forge", build.torch, build.platform) or ()
    return tuple(cuda for cuda in made if build.cuda and cuda.major == build.cuda.major)


def _has(build: TorchBuild, stack: Stack, kb: Knowledge) -> bool:
    """Whether conda-forge's build has code for the GPUs, and the newest cuDNN takes them."""
    if build.platform.startswith(("macos", "windows_arm")):
        return False
    if build.cuda is None:
        return kb.conda_cuda("conda-forge", build.torch, build.platform) is not None
    return bool(_serving(build, stack, kb))


def _serving(build: TorchBuild, stack: Stack, kb: Knowledge) -> Versions:
    """Those of the CUDA versions with which conda-forge has code for all GPUs of the stack."""
    wanted = serving(build, kb) if stack.capabilities is None else stack.capabilities
    if wanted is None or not all(_cudnn_takes(capability, kb) for capability in wanted):
        return ()
    archs = {cuda: kb.conda_archs(cuda, build.platform) for cuda in _made_for(build, kb)}
    return tuple(
        cuda
        for cuda, codes in archs.items()
        if codes is not None
        and all(served(codes, capability, build.torch, cuda, kb) for capability in wanted)
    )


# --- environment.yml ---------------------------------------------------------------------------


def text(stack: Stack, kb: Knowledge, _: Hashes | None = None) -> str:
    """environment.yml: from conda-forge if it has the stack, else torch's own wheels by pip."""
    found, python = forge_specs(stack, kb), stack.one_python
    notes = ["Make it with: conda env create -f environment.yml"]
    if found is None:
        notes.append(not_there(stack, "pip installs"))
        index = (f"--extra-index-url {stack.index}",) if stack.index else ()
        wheels = (*index, *pip.torch_lines(stack), *stack.then)
        packages = ["  - pip", "  - pip:", *(f"      - {_scalar(wheel)}" for wheel in wheels)]
    else:
        if stack.lead.cuda is not None:
            cuda = re.sub(r"^>=|,.*", "", found["cuda-version"])
            notes.append(
                "Where no driver is seen while this is installed (a login node, CI), put "
                f"CONDA_OVERRIDE_CUDA={cuda} before the command."
            )
        # 2.13.0.* needs an equals sign to follow a name.
        specs = (
            f"{name}{'' if limit.startswith(('>', '<')) else '='}{limit}"
            for name, limit in found.items()
        )
        # Companions without a version: conda-forge pairs them with the torch that it chooses.
        others = (name for name, _ in stack.companions)
        wanted = (*specs, *others, *map(conda_spec, stack.then))
        packages = [f"  - {_scalar(spec)}" for spec in wanted]
        stack = as_made(stack, kb)
    lines = [*heading(stack, kb, *notes), "", f"name: {stack.name}", "channels:"]
    lines += ["  - conda-forge", "  - nodefaults", "dependencies:"]
    return "\n".join((*lines, f"  - {conda_python(python)}", *packages)) + "\n"


def not_there(stack: Stack, what_is_done: str) -> str:
    """Why torch's own wheels are taken."""
    of = " for all of these GPUs" if stack.lead.cuda else ""
    return f"conda-forge may not have this release{of}, so {what_is_done} torch's own wheels."


def conda_python(version: str) -> str:
    """conda-forge's package of that Python; the free-threaded one has a name of its own."""
    name = "python-freethreading" if version.endswith("t") else "python"
    return f"{name}={version.removesuffix('t')}.*"


def _scalar(word: str) -> str:
    """The word as YAML: plain if that is safe, else in double quotes as JSON writes them."""
    return word if re.fullmatch(_PLAIN, word) else json.dumps(word)


def owns(m: Machine) -> bool:
    """Whether conda installed the torch of the examined environment.

    What conda installed is changed by conda; a torch that pip put into a conda environment, by pip.
    """
    if not (m.python.kind or "").startswith("conda"):
        return False
    if m.torch.installer:
        return m.torch.installer == "conda"
    if m.torch.copies:
        return m.torch.copies[0].kind == "conda"
    # Nothing is there yet: pip serves where it is, since the tables are about its wheels.
    return m.python.pip is False and manager(m, "uv") is None


def new(wanted: Wanted) -> Recipe:
    """An environment with a channel's build of the same release and CUDA."""
    m, folder = wanted.machine, wanted.folder
    channels, specs = packages_of(m, wanted.kb, wanted.change)
    start = (wanted.program, "create", "-y", "-p", folder, *channels)
    return Recipe(
        wanted=wanted,
        python=within(m, folder, conda=True),
        commands=((*start, f"python={wanted.python}", *specs),),
        alone=True,
        note=note_on(m, wanted.kb, wanted.change, specs),
        use={"conda": ("conda", "activate", folder)},
        scripts=False,
    )


TOOL = Tool(
    name="conda",
    programs=PROGRAMS,
    fits=owns,
    write=write,
    kind="environment",
    file="environment.yml",
    text=text,
    new=new,
    makes="a conda environment",
    found=("$MAMBA_EXE", "$CONDA_EXE"),
    brings_python=True,
)
