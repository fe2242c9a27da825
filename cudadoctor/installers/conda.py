"""conda, mamba and micromamba, by the names of conda-forge."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from packaging.version import Version

from cudadoctor.installers import pip
from cudadoctor.installers.address import manager
from cudadoctor.installers.environment import folder_for
from cudadoctor.installers.index import TAGGED, is_foreign
from cudadoctor.installers.written import Command, Written, joined
from cudadoctor.solver.builds import capabilities_of, platform_of

if TYPE_CHECKING:
    from cudadoctor.knowledge import Knowledge
    from cudadoctor.model.findings import PackageChange
    from cudadoctor.model.machine import Machine

_NAMES = {"torch": "pytorch", "opencv-python": "opencv", "faiss-gpu": "faiss"}
_FROM_TORCH = ("nvidia-", "cuda-", "triton")
_PLATFORMS = ("linux_x86_64", "windows_amd64")
"""Where the pytorch channel had CUDA builds."""
_META_FROM = Version("1.13")
"""From this release on the pytorch channel names the CUDA version by pytorch-cuda."""
_OLD_MKL = "mkl<2024.1"
"""Its builds for Linux use a function that newer MKL does not have (pytorch issue 123097)."""
_NO_GPU_SEEN = (
    "A CUDA build is taken only where conda sees the driver; where it does not, set "
    "CONDA_OVERRIDE_CUDA={cuda} for the command."
)
_OLD_CUDNN = (
    "Newer cuDNN refuses this GPU, so an older one is asked for; where conda finds no set with it, "
    "torch's own wheels (--with pip) serve."
)
_NO_SUCH = "No conda channel has such builds, so pip takes them from the index made for them."
_ENDED = "The pytorch channel ended with torch {newest}; conda-forge has no such build of {torch}."


def write(m: Machine, kb: Knowledge, change: PackageChange) -> Written:
    """The change in the examined conda environment; in a new one where it is not conda's."""
    conda = manager(m, "mamba", "micromamba", "conda") or "conda"
    if is_foreign(change.index):
        made = pip.write(m, change)
        return msgspec.structs.replace(made, note=joined(made.note, _NO_SUCH))
    channels, specs = packages_of(m, kb, change)
    note = note_on(m, kb, change, specs)
    if specs and not is_condas(m):
        return _anew(m, conda, channels, specs, note)
    where = _where(m)
    commands: list[Command] = []
    wheels = wheels_to_remove(m, change)
    if wheels and specs:
        # conda does not see what pip installed: its answer holds for the time after it went.
        commands.append((conda, "install", "--dry-run", *where, *channels, *specs))
    if wheels:
        commands += pip.write(m, wheels).commands
    gone = tuple(conda_name(name) for name in pip.sound(change.remove))
    if not specs and gone and not wheels:
        commands.append((conda, "remove", "-y", *where, *gone))
    if specs:
        commands.append((conda, "install", "-y", *where, *channels, *specs))
    return Written(tool="conda", commands=tuple(commands), note=note, wheels=False)


def is_condas(m: Machine) -> bool:
    """Whether conda can change the examined environment; where nothing is known, it is tried."""
    return m.python.kind is None or m.python.kind.startswith("conda")


def _anew(m: Machine, conda: str, channels: Command, specs: Command, note: str | None) -> Written:
    folder = folder_for(m, "torch-conda")
    version = m.python.version
    python = f"python={version.major}.{version.minor}" if version else "python"
    made = (conda, "create", "-y", "-p", folder, *channels, python, *specs)
    new = f"The examined environment is not conda's, so this makes one in {folder}; run programs "
    said = joined(f"{new}with its python.", note)
    return Written(tool="conda", commands=(made,), note=said, wheels=False)


def packages_of(m: Machine, kb: Knowledge, change: PackageChange) -> tuple[Command, Command]:
    """The options that name the channels, and the packages.

    From conda-forge; from the pytorch channel, which ended, only what it alone has.
    """
    found = _of_pytorch_channel(m, kb, change)
    if found is None:
        return ("-c", "conda-forge"), specs_of(m, kb, change)
    nvidia = ("-c", "nvidia") if any(one.startswith("pytorch-cuda") for one in found) else ()
    return ("-c", "pytorch", *nvidia), found


def _of_pytorch_channel(m: Machine, kb: Knowledge, change: PackageChange) -> Command | None:
    """The pytorch channel's packages for a release that conda-forge lacks, None elsewhere."""
    pins = {pip.name_of(one): one.partition("==")[2] for one in pip.sound(change.install)}
    release, platform = pins.get("torch"), platform_of(m)
    if not release or change.cuda is None or platform not in _PLATFORMS:
        return None
    wanted = Version(change.cuda)
    made = kb.conda_cuda("pytorch", Version(release), platform) or ()
    same = [one for one in made if one.major == wanted.major]
    if not same or any(one.major == wanted.major for one in _made(m, kb, release)):
        return None
    cuda = wanted if wanted in same else max(same)
    name = "pytorch-cuda" if Version(release) >= _META_FROM else "cudatoolkit"
    family = (f"{conda_name(one)}=={pin}" for one, pin in pins.items() if one in TAGGED and pin)
    mkl = (_OLD_MKL,) if platform.startswith("linux") else ()
    return (*family, f"{name}={cuda.major}.{cuda.minor}", *mkl)


def note_on(m: Machine, kb: Knowledge, change: PackageChange, specs: Command) -> str | None:
    """What may surprise: another release, no driver in sight, an older cuDNN, an ended channel."""
    release = _release(change)
    if any(one.startswith(("pytorch-cuda", "cudatoolkit")) for one in specs):
        return _ENDED.format(newest=kb.newest_on_conda("pytorch"), torch=release)
    if not any(one.startswith("pytorch-gpu") for one in specs):
        return None
    old = any(one.startswith("cudnn<") for one in specs)
    blind = None if m.driver.cuda else _NO_GPU_SEEN.format(cuda=change.cuda)
    return joined(_other_release(m, kb, change), _OLD_CUDNN if old else None, blind)


def _other_release(m: Machine, kb: Knowledge, change: PackageChange) -> str | None:
    """That conda-forge has another release than the wished one, None where it has that."""
    release, pinned = _release(change), _pinned(m, kb, change)
    if not release or str(pinned) == release:
        return None
    major = change.cuda.partition(".")[0] if change.cuda else ""
    if pinned is not None:
        return f"The last torch that conda-forge made for CUDA {major} is {pinned}."
    return (
        f"The builds of conda-forge are its own, and torch {release} was not seen there yet (the "
        f"newest seen is {kb.newest_on_conda('conda-forge')}): the newest that fits is taken."
    )


def _release(change: PackageChange) -> str:
    pins = (one.partition("==")[2] for one in change.install if pip.name_of(one) == "torch")
    return next(pins, "")


def specs_of(m: Machine, kb: Knowledge, change: PackageChange) -> tuple[str, ...]:
    """The change's requirements as conda-forge's packages."""
    wanted = pip.sound((*change.install, *change.then))
    names = [pip.name_of(one) for one in wanted]
    if "torch" not in names:
        return tuple(_spec(one) for one in wanted)
    flavour = "pytorch-gpu" if change.cuda else "pytorch-cpu"
    pinned = _pinned(m, kb, change)
    # Companions without a version: conda-forge pairs them with the torch that it chooses.
    others = tuple(
        conda_name(name) if name in ("torchvision", "torchaudio") else _spec(one)
        for name, one in zip(names, wanted, strict=True)
        if name != "torch" and not name.startswith(_FROM_TORCH)
    )
    torch = f"{flavour}={pinned}" if pinned else flavour
    return (torch, *cuda_range(m, kb, change), *_old_cudnn(m, kb, change), *others)


def _pinned(m: Machine, kb: Knowledge, change: PackageChange) -> Version | None:
    """The release to ask conda-forge for: the wished one, or the last with that CUDA major.

    None leaves it to conda: the newest release has that major, or none is known to have it.
    """
    release = _release(change)
    wished = Version(release) if release else None
    if wished is not None and _has(m, kb, wished, change):
        return wished
    if change.cuda is None or _has(m, kb, kb.newest_on_conda("conda-forge"), change):
        return None
    return next((one for one in kb.torch_releases() if _has(m, kb, one, change)), None)


def _has(m: Machine, kb: Knowledge, release: Version, change: PackageChange) -> bool:
    """Whether conda-forge is known to have that release, with the change's CUDA major."""
    made = _made(m, kb, str(release))
    if change.cuda is None:
        return bool(made)
    return any(one.major == Version(change.cuda).major for one in made)


def _old_cudnn(m: Machine, kb: Knowledge, change: PackageChange) -> tuple[str, ...]:
    """The constraint for GPUs that newer cuDNN refuses: conda would take the newest."""
    found = capabilities_of(m, kb) if change.cuda else None
    below = kb.cudnn_below(min(found)) if found else None
    return (f"cudnn<{below.major}.{below.minor}",) if below else ()


def cuda_range(m: Machine, kb: Knowledge, change: PackageChange) -> tuple[str, ...]:
    """The constraint that keeps the environment on the CUDA major which the driver runs.

    conda-forge builds for fewer minors than torch's index: the lower end is one that it has.
    """
    if change.cuda is None:
        return ()
    wanted = Version(change.cuda)
    release = _pinned(m, kb, change) or kb.newest_on_conda("conda-forge")
    same = [cuda for cuda in _made(m, kb, str(release)) if cuda.major == wanted.major]
    lowest = min(wanted, *same) if same else Version(f"{wanted.major}.0")
    return (f"cuda-version>={lowest.major}.{lowest.minor},<{wanted.major + 1}",)


def _made(m: Machine, kb: Knowledge, release: str) -> tuple[Version, ...]:
    """The CUDA versions that conda-forge built that torch release with."""
    platform = platform_of(m)
    if not release or platform is None:
        return ()
    return kb.conda_cuda("conda-forge", Version(release), platform) or ()


def conda_name(name: str) -> str:
    """The conda-forge package behind a distribution's name."""
    return _NAMES.get(name, name)


def wheels_to_remove(m: Machine, change: PackageChange) -> PackageChange | None:
    """What pip had put into the conda environment and pip must take out again."""
    installed = {one.name: one.installer for one in m.packages or ()}
    by_pip = tuple(name for name in change.remove if installed.get(name) in ("pip", "uv"))
    if not by_pip:
        return None
    return type(change)(install=(), remove=by_pip)


def _spec(requirement: str) -> str:
    name = pip.name_of(requirement)
    return conda_name(name) + requirement[len(name) :]


def _where(m: Machine) -> Command:
    prefix = m.python.prefix
    if not prefix or prefix.startswith(("~", "<")):
        return ()
    return ("-p", prefix)
