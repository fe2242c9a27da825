"""Whether conda-forge is known to have a stack: that release, for those GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from packaging.version import Version

from cudadoctor.installers.files.stack import serving
from cudadoctor.solver.fit import served

if TYPE_CHECKING:
    from cudadoctor.installers.files.stack import Stack
    from cudadoctor.knowledge import Knowledge, TorchBuild

OVERRIDE = "CONDA_OVERRIDE_CUDA"


def specs(stack: Stack, kb: Knowledge) -> dict[str, str] | None:
    """conda-forge's packages -> their constraint; None where it is not known to have the stack."""
    if not all(_has(build, stack, kb) for build in stack.builds):
        return None
    release = f"{stack.torch}.*"
    if stack.lead.cuda is None:
        return {"pytorch-cpu": release}
    return {"pytorch-gpu": release, "cuda-version": cuda_range(stack, kb)}


def cuda_range(stack: Stack, kb: Knowledge) -> str:
    """The CUDA versions of conda-forge's builds, kept within the major that the driver runs."""
    found = [cuda for build in stack.builds for cuda in _made(build, kb)]
    lowest = min(found)
    return f">={lowest.major}.{lowest.minor},<{lowest.major + 1}"


def as_made(stack: Stack, kb: Knowledge) -> Stack:
    """The stack as conda-forge builds it, for what is said of it: its CUDA, its GPUs.

    For which Pythons it builds is not in the tables.
    """
    return msgspec.structs.replace(stack, builds=tuple(_as_made(one, kb) for one in stack.builds))


def _as_made(build: TorchBuild, kb: Knowledge) -> TorchBuild:
    cuda = max(_made(build, kb), default=None)
    archs = (kb.conda_archs(cuda, build.platform) or ()) if cuda else build.archs
    taken = tuple(one for one in archs or () if not _refused(one, kb))
    linux = build.platform.startswith("linux")
    return msgspec.structs.replace(
        build,
        cuda=cuda,
        variant="conda-forge",
        archs=taken,
        archs_uncertain=False,
        pythons=(),
        glibc=kb.conda_glibc(cuda) if cuda and linux else None,
    )


def _refused(code: str, kb: Knowledge) -> bool:
    """Whether the newest cuDNN refuses the GPUs of a code such as sm_70."""
    digits = code.partition("_")[2]
    newest = _newest_cudnn(kb)
    capability = Version(f"{digits[:-1]}.{digits[-1]}")
    return newest is None or bool(kb.cudnn_refuses(newest, capability))


def _newest_cudnn(kb: Knowledge) -> Version | None:
    """What conda takes where nothing holds it back."""
    return next((Version(one.cudnn) for one in kb.builds if one.cudnn), None)


def companions(stack: Stack) -> tuple[str, ...]:
    """The companions by conda-forge's names; it pairs them with the torch that it chooses."""
    return tuple(name for name, _ in stack.companions)


def _made(build: TorchBuild, kb: Knowledge) -> tuple[Version, ...]:
    """The CUDA versions of the build's major that conda-forge made that release with."""
    made = kb.conda_cuda("conda-forge", build.torch, build.platform) or ()
    return tuple(one for one in made if build.cuda and one.major == build.cuda.major)


def _has(build: TorchBuild, stack: Stack, kb: Knowledge) -> bool:
    if build.platform.startswith(("macos", "windows_arm")):
        return False
    if build.cuda is None:
        return kb.conda_cuda("conda-forge", build.torch, build.platform) is not None
    wanted = serving(build, kb) if stack.capabilities is None else stack.capabilities
    made = _made(build, kb)
    return (
        bool(made)
        and wanted is not None
        and all(_serves(one, cuda, build, kb) for one in wanted for cuda in made)
    )


def _serves(capability: Version, cuda: Version, build: TorchBuild, kb: Knowledge) -> bool:
    """Whether conda-forge's build has code for a GPU that the newest cuDNN does not refuse."""
    archs = kb.conda_archs(cuda, build.platform)
    if archs is None or served(archs, capability, build.torch, cuda, kb) is None:
        return False
    newest = _newest_cudnn(kb)
    return newest is not None and not kb.cudnn_refuses(newest, capability)
