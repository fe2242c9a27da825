"""Remedies that put a fitting torch, with what belongs to it, into the examined environment."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
from packaging.version import Version

from cudadoctor.installers import environment
from cudadoctor.knowledge.companions import NUMPY_2_SINCE
from cudadoctor.model.findings import PackageChange, Remedy, Risk
from cudadoctor.model.requirements import COMPANIONS, TORCH_FAMILY
from cudadoctor.plan.remedies.companions import (
    caveats,
    colliding,
    kept_by_others,
    only_for_torch,
    size_of,
)
from cudadoctor.solver.builds import best_build
from cudadoctor.solver.demand import (
    SERVER_BUILDS_FROM_L4T,
    named,
    platform_blocker,
    platform_of,
    python_of,
    seen_gpus,
    variables_for,
)
from cudadoctor.solver.reasons import companion_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from cudadoctor.knowledge import Knowledge, TorchBuild
    from cudadoctor.model.machine import Machine
    from cudadoctor.plan.remedies.companions import Fate
    from cudadoctor.solver.alternatives import Alternative
    from cudadoctor.solver.builds import Choice

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
    return instead(m, kb, choice.alternatives, keep)


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
    if python_of(m) in (None, found.python) and platform_blocker(m) is None:
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
    release, python = companion_of(name, build, kb), m.python.version
    if release is None or python is None:
        return release
    if kb.lacks_wheel(name, release, python_of(m) or "", build.platform):
        return None
    wanted = kb.companion_python(name, release)
    if not wanted or len(python.release) < 3:
        return release
    from cudadoctor.model.requirements import admits

    return release if admits(wanted, python) else None


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
        return companion_of(name, build, kb)
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


def instead(
    m: Machine, kb: Knowledge, ways: Iterable[Alternative], keep: str | None = None
) -> tuple[Remedy, ...]:
    """A remedy for each way out that is one; each id once, the solver's order kept.

    keep: the wish that the ways out are for.
    """
    found: dict[str, Remedy] = {}
    for way in ways:
        for remedy in _as_remedies(way, m, kb, keep):
            named = remedy
            if remedy.id in found and way.kind == "one-gpu" and way.build is not None:
                named = msgspec.structs.replace(remedy, id=f"install-torch-{way.build.variant}")
            found.setdefault(named.id, named)
    return tuple(found.values())


def _as_remedies(
    way: Alternative, m: Machine, kb: Knowledge, keep: str | None
) -> tuple[Remedy, ...]:
    from cudadoctor.plan.remedies.driver import forward_compat, upgrade_driver

    if way.kind == "one-gpu" and platform_blocker(m) is None:
        return for_some_gpus(way, m, kb)
    if way.kind == "driver" and way.branch is not None:
        newer = upgrade_driver(m, kb, way.branch)
        return tuple(_noted(one, way) for one in newer)
    if way.kind == "python":
        return install_python(m, kb, way.pythons, keep)
    if way.kind == "compat" and way.build is not None:
        return tuple(_noted(one, way) for one in forward_compat(m, kb, way.build.cuda))
    if way.kind == "conda" and way.cuda is not None:
        return (_from_conda_forge(way, m, kb),)
    if way.kind == "platform" and m.platform.libc != "musl" and way.build is not None:
        return install_python(m, kb, way.build.pythons, keep)
    if way.kind in ("glibc", "platform", "one-gpu"):
        title = "Run torch on a system that has builds"
        return (Remedy(id="other-platform", title=title, where="admin", manual=way.text),)
    return _on_the_cpu(way, m, kb) if way.kind == "cpu" else ()


def _on_the_cpu(way: Alternative, m: Machine, kb: Knowledge) -> tuple[Remedy, ...]:
    """What is left where nothing serves the GPU; an installed torch runs on the CPU as it is."""
    if way.build is None or m.torch.installed is not False:
        title = "Train without this GPU"
        return (Remedy(id="other-gpu", title=title, risk=Risk.ENVIRONMENT, manual=way.text),)
    return (_noted(remedy_for(way.build, m, kb), way),)


def _from_conda_forge(way: Alternative, m: Machine, kb: Knowledge) -> Remedy:
    """An environment of its own, with the build of another publisher."""
    from cudadoctor.installers.tool import manager

    torch = kb.newest_on_conda("conda-forge")
    conda = manager(m, "mamba", "micromamba", "conda")
    specs = (f"pytorch-gpu={torch}", f"cuda-version={way.cuda}")
    argv = (conda or "conda", "create", "-y", "-n", "torch", "-c", "conda-forge", *specs)
    return Remedy(
        id="conda-torch",
        title=f"Make a conda environment with conda-forge's torch {torch} and CUDA {way.cuda}",
        risk=Risk.ENVIRONMENT,
        commands=(argv,) if conda else (),
        manual=None if conda else f"With conda or mamba (Miniforge): {' '.join(argv)}",
        tool="conda",
        note=way.text,
    )


def _noted(remedy: Remedy, way: Alternative) -> Remedy:
    """The remedy with what it makes possible: torch itself is the step after it."""
    note = " ".join(text for text in (way.text, remedy.note) if text)
    return msgspec.structs.replace(remedy, note=note)


def install_python(
    m: Machine, kb: Knowledge, versions: Iterable[str], keep: str | None = None
) -> tuple[Remedy, ...]:
    """A new environment with the nearest of these Pythons ("3.12"), and torch in it.

    keep: a wish for a release of torch.
    """
    wanted = _nearest(m, [Version(one) for one in versions if not one.endswith("t")])
    if wanted is None:
        return ()
    changed = emptied(m, wanted)
    build = best_build(changed, kb, keep=keep).build
    change = remedy_for(build, changed, kb).packages if build else None
    made = environment.new_environment(m, str(wanted), change)
    return (
        Remedy(
            id="install-python",
            title=f"Make a new environment with Python {wanted}",
            risk=Risk.ENVIRONMENT,
            commands=made.commands,
            manual=made.manual,
            tool=made.tool,
            note=made.note,
        ),
    )


def emptied(m: Machine, python: Version | None = None) -> Machine:
    """The same machine with an empty environment: no torch, no packages.

    python: its Python where it is another than the examined one, then a common 64-bit one. What
    the old torch saw of the GPUs stays known.
    """
    own = m.python
    if python is not None:
        own = msgspec.structs.replace(
            own, version=python, free_threaded=False, bits=64, implementation="CPython"
        )
    torch = type(m.torch)(installed=False, imported=m.torch.imported)
    return msgspec.structs.replace(m, python=own, torch=torch, packages=())


def _nearest(m: Machine, versions: list[Version]) -> Version | None:
    """The closest to the present Python: the newest below it, else the oldest above it."""
    present = m.python.version
    if not versions:
        return None
    if present is None:
        return max(versions)
    same = Version(f"{present.major}.{present.minor}")
    below = [one for one in versions if one <= same]
    return max(below) if below else min(versions)


_SCHEDULED = "A job's own list of GPUs is the scheduler's: ask it for GPUs of one kind instead."


def leave_out(m: Machine, kb: Knowledge, hidden: Collection[Version]) -> tuple[Remedy, ...]:
    """Hide the GPUs of these capabilities from programs; () where none or all of them would go."""
    gpus = seen_gpus(m, kb)
    gone = [one for one in gpus if one.capability in hidden]
    stay = [one for one in gpus if one.capability not in hidden]
    if not gone or not stay:
        return ()
    title = f"Leave out {named(gone)}"
    if m.container.scheduler or m.container.kind == "kubernetes":
        return (Remedy(id="hide-gpu", title=title, where="admin", manual=_SCHEDULED),)
    return (
        Remedy(
            id="hide-gpu",
            title=title,
            risk=Risk.PROCESS,
            variables=variables_for(stay, redacted=m.redacted),
            note="Programs that are started with it see the other GPUs only.",
        ),
    )


def for_some_gpus(way: Alternative, m: Machine, kb: Knowledge) -> tuple[Remedy, ...]:
    """The build that fits without some of the GPUs, and what hides those."""
    hiding = leave_out(m, kb, way.hidden)
    if way.build is None or not hiding:
        return ()
    install = remedy_for(way.build, m, kb)
    gone = hiding[0].title.removeprefix("Leave out ")
    notes = (f"No one build serves all GPUs here: this leaves out {gone}.", install.note)
    return (
        msgspec.structs.replace(
            install,
            title=f"{install.title} without {gone}",
            variables=hiding[0].variables,
            note=" ".join(note for note in notes if note),
        ),
    )


_BACKENDS = {"rocm": "ROCm", "xpu": "Intel XPU"}
_MOST_REASONS = 6


def wished_torch(m: Machine, kb: Knowledge, choice: Choice, wish: str) -> tuple[Remedy, ...]:
    """Alternatives that keep to the wish, the preferred one first."""
    backend = _BACKENDS.get(m.torch.build or "")
    if backend is not None and not (choice.build and choice.build.cuda):
        return (_of_another_maker(wish, backend),)
    if choice.build is not None:
        return (remedy_for(choice.build, m, kb),)
    keeping = [one for one in choice.alternatives if one.kind not in ("release", "cpu", "jetson")]
    ways = instead(m, kb, keeping, wish)
    if any(one.id == "install-torch" for one in ways):
        return ways
    return (_impossible(wish, choice), *ways)


def _impossible(wish: str, choice: Choice) -> Remedy:
    """Why the wish cannot be, and what would help, as words: another release is nobody's wish."""
    reasons = [f"{one.variant}: {one.reason}" for one in choice.why_not[:_MOST_REASONS]]
    more = len(choice.why_not) - len(reasons)
    reasons += [f"{more} older variants do not fit either."] if more > 0 else []
    texts = [*choice.why[:1], *reasons, *(one.text for one in choice.alternatives)]
    return Remedy(
        id="install-torch",
        title=f"No build of torch {wish} fits this machine",
        risk=Risk.ENVIRONMENT,
        manual=f"Give up the wish for torch {wish}, or change what stands against it. "
        + " ".join(texts),
    )


def _of_another_maker(wish: str, backend: str) -> Remedy:
    text = f"This environment has a {backend} build, and the tables hold builds for NVIDIA's GPUs "
    text += f"and for the CPU only: take torch {wish} from the {backend} index of PyTorch."
    return Remedy(
        id="install-torch",
        title=f"Install the {backend} build of torch {wish}",
        risk=Risk.ENVIRONMENT,
        manual=text,
    )
