"""What somebody should know before another torch is installed, as sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudadoctor.model.requirements import EXTENSIONS
from cudadoctor.plan.remedies.wheels import collides, kept_by_others

if TYPE_CHECKING:
    from packaging.version import Version

    from cudadoctor.knowledge import Knowledge, TorchBuild
    from cudadoctor.model.machine import Distribution, Machine


def caveats(build: TorchBuild, m: Machine, kb: Knowledge, lost: tuple[str, ...]) -> list[str]:
    """A sentence for each thing to know first. lost: companions that have no release for it."""
    notes = [_lost(name, build, m) for name in lost]
    notes += _broken_extensions(build, m, kb)
    notes += _unserved(build, m, kb)
    notes += _last_resort(build, m, kb)
    if build.cuda:
        for wheel, owner in kept_by_others(m.packages or ()).items():
            if collides(wheel, build.cuda.major):
                notes.append(
                    f"{owner} needs {wheel}, which shares its folder with the new libraries: "
                    "a new environment keeps both sound."
                )
    return notes


def _lost(name: str, build: TorchBuild, m: Machine) -> str:
    """A companion that has no release for this torch, or none for this Python."""
    paired = {"torchvision": build.torchvision, "torchaudio": build.torchaudio}.get(name)
    away = "it is taken out" if m.package(name) else "it is left out"
    if paired is None:
        return f"No {name} exists for torch {build.torch}: {away}."
    return f"No wheel of {name} {paired} for Python {m.python.version} is known: {away}."


def _unserved(build: TorchBuild, m: Machine, kb: Knowledge) -> list[str]:
    """A GPU that no torch serves while others are served."""
    if build.cuda is None or len(m.gpus or ()) < 2:
        return []
    from cudadoctor.solver.builds import demand_of
    from cudadoctor.solver.mixed_gpus import named, of_capability, seen_gpus, variables_for

    aside = demand_of(m, kb).aside
    gpus = seen_gpus(m, kb)
    gone = of_capability(gpus, aside)
    if not gone:
        return []
    stay = [one for one in gpus if one not in gone]
    settings = variables_for(stay, redacted=m.redacted).items()
    words = " and ".join(f"{name}={value}" for name, value in settings)
    return [f"No torch serves {named(gone)}: {words} leaves it out."]


def _last_resort(build: TorchBuild, m: Machine, kb: Knowledge) -> list[str]:
    """What is wrong with a build that is taken because no sounder one fits."""
    from cudadoctor.solver.build_reasons import without_cudnn
    from cudadoctor.solver.builds import demand_of, platform_of
    from cudadoctor.solver.refusals import block

    if build.cuda is None or platform_of(m) is None:
        return []
    demand = demand_of(m, kb)
    notes = []
    if block(build, demand, kb) == "contested":
        disputed = "Sources disagree on whether this build has code for the GPU"
        notes.append(f"{disputed}: cudadoctor check shows it.")
    return [*notes, *filter(None, [without_cudnn(build, demand, kb)])]


def size_of(build: TorchBuild, kb: Knowledge) -> str | None:
    """How much is to be downloaded, as far as the tables know."""
    more = "; the CUDA libraries come on top" if _has_library_wheels(build) else ""
    if build.download_bytes:
        return f"The torch wheel is {_mb(build.download_bytes)} to download{more}."
    for other in kb.builds_on(build.platform):
        same_kind = (other.cuda is None) == (build.cuda is None)
        if other.torch == build.torch and other.download_bytes and same_kind:
            size = _mb(other.download_bytes)
            wheel = f"the {other.variant} wheel: {size}"
            return f"The size of the download is not known ({wheel}){more}."
    return "The size of the download is not known." if build.cuda else None


def _has_library_wheels(build: TorchBuild) -> bool:
    return build.cuda is not None and build.platform.startswith("linux")


def _mb(number: int) -> str:
    return f"{number / 1e6:.0f} MB"


def _broken_extensions(build: TorchBuild, m: Machine, kb: Knowledge) -> list[str]:
    """A sentence for each installed package whose compiled code will not fit the new torch."""
    if m.torch.version is None:
        return []
    from cudadoctor.plan.remedies.companions import JUDGED

    other_cuda = _major(m.torch.cuda) != _major(build.cuda)
    other_torch = m.torch.version.release[:2] != build.torch.release[:2]
    if not (other_cuda or other_torch):
        return []
    return [
        _broken(one, build, kb)
        for one in m.packages or ()
        if one.name in EXTENSIONS - JUDGED and not _made_for(one, build)
    ]


def _broken(one: Distribution, build: TorchBuild, kb: Knowledge) -> str:
    fitting = next(iter(kb.companion(one.name, build.torch)), None)
    if fitting and fitting != one.version:
        after = f"{one.name} {fitting} is made for torch {build.torch}."
    else:
        after = f"install it again for torch {build.torch} afterwards."
    return f"{one.name} {one.version} was compiled for the present torch: {after}"


def _made_for(one: Distribution, build: TorchBuild) -> bool:
    same_torch = one.torch is not None and one.torch.release[:2] == build.torch.release[:2]
    return same_torch and (one.cuda is None or _major(one.cuda) == _major(build.cuda))


def _major(version: Version | None) -> int | None:
    return version.major if version else None
