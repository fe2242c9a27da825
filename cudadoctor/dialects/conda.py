"""conda, mamba and micromamba, by the names of conda-forge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.version import Version

from cudadoctor.builds import platform_of
from cudadoctor.dialects import pip
from cudadoctor.dialects.address import manager
from cudadoctor.dialects.written import Command, Written

if TYPE_CHECKING:
    from cudadoctor.facts import Machine
    from cudadoctor.findings import PackageChange
    from cudadoctor.knowledge import Knowledge

_NAMES = {"torch": "pytorch", "opencv-python": "opencv", "faiss-gpu": "faiss"}
_FROM_TORCH = ("nvidia-", "cuda-", "triton")
_NOTE = (
    "conda-forge makes its own builds and may not have this exact release yet; the newest one that "
    "fits is taken."
)
_NO_GPU_SEEN = (
    "conda picks a CUDA build only where it sees the driver; where it does not, set "
    "CONDA_OVERRIDE_CUDA to the CUDA version of the target machine."
)


def write(m: Machine, kb: Knowledge, change: PackageChange) -> Written:
    """The change in the examined conda environment."""
    conda = manager(m, "mamba", "micromamba", "conda") or "conda"
    where = _where(m)
    commands: list[Command] = []
    wheels = wheels_to_remove(m, change)
    if wheels:
        commands += pip.write(m, wheels).commands
    specs = specs_of(m, kb, change)
    gone = tuple(conda_name(name) for name in pip.sound(change.remove))
    if not specs and gone and not wheels:
        commands.append((conda, "remove", "-y", *where, *gone))
    if specs:
        commands.append((conda, "install", "-y", *where, "-c", "conda-forge", *specs))
    note = (
        f"{_NOTE} {_NO_GPU_SEEN}" if any(one.startswith("pytorch-gpu") for one in specs) else None
    )
    return Written(tool="conda", commands=tuple(commands), note=note)


def specs_of(m: Machine, kb: Knowledge, change: PackageChange) -> tuple[str, ...]:
    """The change's requirements as conda-forge's packages."""
    wanted = pip.sound((*change.install, *change.then))
    names = [pip.name_of(one) for one in wanted]
    if "torch" not in names:
        return tuple(_spec(one) for one in wanted)
    release = wanted[names.index("torch")].partition("==")[2]
    made = _made(m, kb, release)
    flavour = "pytorch-gpu" if change.cuda else "pytorch-cpu"
    if change.cuda:
        major = Version(change.cuda).major
        known = any(cuda.major == major for cuda in made)
    else:
        known = bool(made)
    # Companions without a version: conda-forge pairs them with the torch that it chooses.
    others = tuple(
        conda_name(name) if name in ("torchvision", "torchaudio") else _spec(one)
        for name, one in zip(names, wanted, strict=True)
        if name != "torch" and not name.startswith(_FROM_TORCH)
    )
    torch = f"{flavour}={release}" if known else flavour
    return (torch, *cuda_range(m, kb, change), *others)


def cuda_range(m: Machine, kb: Knowledge, change: PackageChange) -> tuple[str, ...]:
    """The constraint that keeps the environment on the CUDA major which the driver runs.

    conda-forge builds for fewer minors than torch's index: the lower end is one that it has.
    """
    if change.cuda is None:
        return ()
    wanted = Version(change.cuda)
    newest = _made(m, kb, str(kb.newest_on_conda("conda-forge")))
    same = [cuda for cuda in newest if cuda.major == wanted.major]
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
