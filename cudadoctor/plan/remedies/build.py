"""Remedies that put a fitting torch, with what belongs to it, into the examined environment."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
from packaging.version import Version

from cudadoctor.knowledge.companions import NUMPY_2_SINCE
from cudadoctor.model.findings import PackageChange, Remedy, Risk
from cudadoctor.plan.remedies.caveats import EXTENSIONS, caveats, size_of
from cudadoctor.plan.remedies.wheels import (
    COMPANIONS,
    TORCH_FAMILY,
    colliding,
    kept_by_others,
    only_for_torch,
)
from cudadoctor.solver.builds import best_build, platform_of, python_of
from cudadoctor.solver.demand import SERVER_BUILDS_FROM_L4T, wall_of

if TYPE_CHECKING:
    from cudadoctor.knowledge import Knowledge, TorchBuild
    from cudadoctor.model.machine import Machine
    from cudadoctor.plan.remedies.companions import Fate

__all__ = [
    "EXTENSIONS",
    "install_companion",
    "install_torch",
    "jetson_torch",
    "matching",
    "reinstall_torch",
    "remedy_for",
]

INDEX = "https://download.pytorch.org/whl"


def install_torch(m: Machine, kb: Knowledge, keep: str | None = None) -> tuple[Remedy, ...]:
    """The build of torch that fits this machine, with its companions.

    Where none fits, what would let one fit; () where nothing would.
    """
    if _needs_jetson_wheel(m):
        return jetson_torch(m, kb)
    choice = best_build(m, kb, keep=keep)
    if choice.build is not None:
        return (remedy_for(choice.build, m, kb),)
    from cudadoctor.plan.remedies.instead import instead

    return instead(m, kb, choice.ways_out, keep)


def remedy_for(build: TorchBuild, m: Machine, kb: Knowledge) -> Remedy:
    """The step that installs exactly this build, with what belongs to it."""
    found = companions_for(build, m, kb)
    fitting = {name: version for name, version in found.items() if version}
    lost = tuple(name for name, version in found.items() if version is None)
    pins = (f"torch=={build.torch}", *(f"{name}=={one}" for name, one in fitting.items()))
    fates = _fates(build, m, kb)
    beside = tuple(one.pin for one in fates.values() if one.pin and one.with_torch)
    leaving = (*lost, *(name for name, one in fates.items() if one.leaves))
    change = PackageChange(
        install=(*pins, *beside),
        remove=_to_remove(build, m, leaving),
        index=_index(build, own=bool(beside)),
        then=_afterwards(build, m, fates),
        variant=build.variant,
        cuda=str(build.cuda) if build.cuda else None,
        download_bytes=build.download_bytes,
        find_links=next((one.find_links for one in fates.values() if one.find_links), None),
        size=size_of(build, kb),
    )
    kind = "CPU" if build.variant == "cpu" else build.variant
    notes = (*caveats(build, m, kb, lost), *(one.note for one in fates.values() if one.note))
    return Remedy(
        id="install-torch",
        title=f"Install the {kind} build of torch {build.torch}",
        risk=Risk.ENVIRONMENT,
        packages=change,
        note=" ".join(notes) or None,
    )


def _afterwards(build: TorchBuild, m: Machine, fates: dict[str, Fate]) -> tuple[str, ...]:
    """What comes from the default index: other companions, and a numpy that the torch can use."""
    pins = tuple(one.pin for one in fates.values() if one.pin and not one.with_torch)
    numpy = m.package("numpy")
    # torchvision brings the newest numpy into an environment that has none.
    newer = numpy is None or not numpy.version.startswith(("0.", "1."))
    old = build.torch < NUMPY_2_SINCE and newer and m.packages is not None
    return (*pins, "numpy<2") if old else pins


def _fates(build: TorchBuild, m: Machine, kb: Knowledge) -> dict[str, Fate]:
    """What becomes of the other packages that are bound to a torch, by their names."""
    if not m.packages:
        return {}
    from cudadoctor.plan.remedies.companions import fate_of

    found = ((one.name, fate_of(one, build, m, kb)) for one in m.packages)
    return {name: fate for name, fate in found if fate is not None}


def _index(build: TorchBuild, *, own: bool) -> str | None:
    """Torch's own index, also for a default build where a companion has its CUDA only there."""
    if build.default and not own:
        return None
    return f"{INDEX}/{build.variant}" if build.default else build.index


def reinstall_torch(m: Machine, kb: Knowledge) -> tuple[Remedy, ...]:
    """The same torch again, with the libraries that it pins; () where its index is not known."""
    if m.torch.version is None or _needs_jetson_wheel(m) or m.torch.version.is_devrelease:
        return ()
    source = _origin(m, kb)
    if source is None:
        return ()
    variant, index = source
    present = [name for name in COMPANIONS if m.package(name)]
    release = m.torch.version.public
    change = PackageChange(
        install=(f"torch=={release}", *_pinned(m, present)),
        remove=_installed(m, ("torch", *present)) + only_for_torch(m.packages or ()),
        index=index,
        variant=variant,
        cuda=str(m.torch.cuda) if m.torch.cuda else None,
    )
    left = ", ".join(m.torch.leftovers or ())
    note = f"A killed pip left {left} in site-packages; nothing needs it." if left else None
    return (
        Remedy(
            id="reinstall-torch",
            title=f"Install torch {release} again, with its own libraries",
            risk=Risk.ENVIRONMENT,
            packages=change,
            note=note,
        ),
    )


def install_companion(m: Machine, kb: Knowledge, *names: str) -> tuple[Remedy, ...]:
    """The releases of these packages that belong to the installed torch; () where none is known."""
    if m.torch.version is None or _needs_jetson_wheel(m):
        return ()
    found = {name: _release_for(name, m, kb) for name in names}
    pins = tuple(f"{name}=={version}" for name, version in found.items() if version)
    if not pins:
        return ()
    variant, index = _origin(m, kb) or (None, None)
    # PyPI has xformers for one CUDA only; torch's own index has it for each.
    beside = variant is not None and any(pin.startswith("xformers==") for pin in pins)
    index = f"{INDEX}/{variant}" if beside else index
    own = (*COMPANIONS, "xformers") if beside else COMPANIONS
    ours = tuple(pin for pin in pins if pin.split("==")[0] in own)
    change = PackageChange(
        install=ours or pins,
        then=tuple(pin for pin in pins if pin not in ours) if ours else (),
        remove=tuple(name for name, version in found.items() if _is_that(m, name, version)),
        index=index if ours else None,
        variant=variant,
        cuda=str(m.torch.cuda) if m.torch.cuda else None,
    )
    listed = ", ".join(pin.replace("==", " ") for pin in pins)
    title = f"Install {listed} for torch {m.torch.version.public}"
    lost = [name for name, version in found.items() if not version]
    note = f"No release of {', '.join(lost)} is known for this torch." if lost else None
    return (
        Remedy(
            id="install-companion",
            title=title,
            risk=Risk.ENVIRONMENT,
            packages=change,
            note=note,
        ),
    )


def _is_that(m: Machine, name: str, version: str | None) -> bool:
    """Whether that release is installed: of another variant, it satisfies pip and is kept."""
    present = m.package(name)
    return present is not None and present.version.partition("+")[0] == version


def jetson_torch(m: Machine, kb: Knowledge | None = None) -> tuple[Remedy, ...]:
    """NVIDIA's own build for this JetPack, or from JetPack 7 on the general one."""
    release = m.platform.l4t.major if m.platform.l4t else None
    if release is not None and release >= SERVER_BUILDS_FROM_L4T:
        build = best_build(m, kb).build if kb else None
        if build is None or kb is None:
            return ()
        if build.cuda is not None:
            return (remedy_for(build, m, kb),)
    from cudadoctor import knowledge

    found = (kb or knowledge.load()).jetson_build(release) if release is not None else None
    if found is None:
        text = "Install NVIDIA's torch wheel for this release of JetPack (or use its container "
        text += "image for it); builds for other computers have no code for this board."
        return (
            Remedy(
                id="jetson-torch",
                title="Install NVIDIA's build of torch for this JetPack",
                risk=Risk.ENVIRONMENT,
                manual=text,
            ),
        )
    change = PackageChange(
        install=("torch", "torchvision"),
        remove=_installed(m, TORCH_FAMILY) + only_for_torch(m.packages or ()),
        index=found.index,
        variant=found.variant,
        cuda=found.cuda,
    )
    made_for = f"The wheels are made for the Python of JetPack {found.jetpack}, "
    made_for += f"which is {found.python}."
    remedy = Remedy(
        id="jetson-torch",
        title=f"Install the build of torch for JetPack {found.jetpack}",
        risk=Risk.ENVIRONMENT,
        packages=change,
        note=made_for,
    )
    if python_of(m) in (None, found.python) and wall_of(m) is None:
        return (remedy,)
    from cudadoctor.installers import environment

    made = environment.new_environment(m, found.python, msgspec.structs.replace(change, remove=()))
    return (
        msgspec.structs.replace(
            remedy,
            title=f"{remedy.title} in a new environment with Python {found.python}",
            packages=None,
            commands=made.commands,
            manual=made.manual,
            tool=made.tool,
            note=f"{made_for} {made.note}",
        ),
    )


def companions_for(build: TorchBuild, m: Machine, kb: Knowledge) -> dict[str, str | None]:
    """The companions to install with a build -> their release, None where there is none."""
    wanted = [name for name in COMPANIONS if m.package(name)]
    if m.torch.installed is False and not wanted:
        wanted = ["torchvision"] if build.torchvision else []
    return {name: _taken(name, build, m, kb) for name in wanted}


def _taken(name: str, build: TorchBuild, m: Machine, kb: Knowledge) -> str | None:
    """The release; None where it refuses this very Python, or has no wheel for it here."""
    release, python = matching(name, build, kb), m.python.version
    if release is None or python is None:
        return release
    if kb.lacks_wheel(name, release, python_of(m) or "", build.platform):
        return None
    wanted = kb.companion_python(name, release)
    if not wanted or len(python.release) < 3:
        return release
    from cudadoctor.model.specifiers import admits

    return release if admits(wanted, python) else None


def matching(name: str, build: TorchBuild, kb: Knowledge) -> str | None:
    """The release of a companion that belongs to a build, None where there is none."""
    if name == "torchvision":
        return build.torchvision
    if name == "torchaudio":
        return build.torchaudio
    return next(iter(kb.companion(name, build.torch)), None)


def _to_remove(build: TorchBuild, m: Machine, lost: tuple[str, ...]) -> tuple[str, ...]:
    """What must go before the build comes.

    Within one variant the package manager replaces what differs. Another variant of the same
    release looks satisfied to it, and its libraries would collide: there the old set goes first.
    """
    packages = m.packages or ()
    major = build.cuda.major if build.cuda else None
    strays = colliding(packages, major) if major else ()
    kept = kept_by_others(packages)
    strays = tuple(name for name in strays if name not in kept)
    if not (_changes_variant(build, m) or strays or _same_release(build, m)):
        return _installed(m, lost)
    family = _installed(m, TORCH_FAMILY)
    beside = tuple(name for name in _installed(m, lost) if name not in family)
    rest = {*only_for_torch(packages), *strays} - {*beside}
    return (*family, *beside, *sorted(rest))


def _changes_variant(build: TorchBuild, m: Machine) -> bool:
    if m.torch.installed is False:
        return False
    kind = "cpu" if build.cuda is None else "cuda"
    return m.torch.build != kind or (build.cuda is not None and m.torch.cuda != build.cuda)


def _same_release(build: TorchBuild, m: Machine) -> bool:
    version = m.torch.version
    return version is not None and version.public == build.torch.public


def _release_for(name: str, m: Machine, kb: Knowledge) -> str | None:
    version = m.torch.version
    if version is None:
        return None
    build = installed_row(m, kb)
    if build is not None and name in ("torchvision", "torchaudio"):
        return matching(name, build, kb)
    fitting = kb.companion(name, Version(version.public))
    cuda = m.torch.cuda
    made = {one: kb.companion_cuda(name, one) for one in fitting}
    return next((one for one in fitting if cuda is None or cuda in (made[one] or (cuda,))), None)


def installed_row(m: Machine, kb: Knowledge) -> TorchBuild | None:
    """The row of the installed build in the tables."""
    platform, version = platform_of(m), m.torch.version
    variant = installed_variant(m)
    if platform is None or version is None or variant is None:
        return None
    return kb.build_of(Version(version.public), variant, platform)


def installed_variant(m: Machine) -> str | None:
    """The variant that is installed, None for a build of somebody else's."""
    local = m.torch.version.local if m.torch.version else None
    if local is None and m.torch.text and "+" in m.torch.text:
        local = m.torch.text.partition("+")[2]
    if local:
        return local if re.fullmatch(r"cu\d+|cpu", local) else None
    if m.torch.build == "cpu":
        return "cpu"
    return f"cu{str(m.torch.cuda).replace('.', '')}" if m.torch.cuda else None


def _origin(m: Machine, kb: Knowledge) -> tuple[str, str | None] | None:
    """Variant and index of the installed build; index None for the default one."""
    variant = installed_variant(m)
    if variant is None or m.torch.build not in ("cuda", "cpu"):
        return None
    row = installed_row(m, kb)
    if row is not None:
        return variant, None if row.default else row.index
    return variant, f"{INDEX}/{variant}"


def _pinned(m: Machine, names: list[str]) -> tuple[str, ...]:
    found = (m.package(name) for name in names)
    return tuple(f"{one.name}=={one.version.partition('+')[0]}" for one in found if one)


def _installed(m: Machine, names: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the names that are installed; torch also where the list lacks it.

    A torch without metadata is unknown to pip, which cannot uninstall it.
    """
    bare = (
        m.torch.copies and m.torch.copies[0].kind in ("folder", "local") and m.packages is not None
    )
    torch = bool(m.torch.installed and not bare)
    return tuple(name for name in names if m.package(name) or (name == "torch" and torch))


def _needs_jetson_wheel(m: Machine) -> bool:
    release = m.platform.l4t
    return bool(m.platform.jetson) and not (
        release is not None and release.major >= SERVER_BUILDS_FROM_L4T
    )
