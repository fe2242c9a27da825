"""Remedies that put a fitting torch, with what belongs to it, into the examined environment."""

import re
from collections.abc import Collection, Iterable

import msgspec
from packaging.version import Version

from cudadoctor.installers import environment
from cudadoctor.installers.tool import manager
from cudadoctor.knowledge import Knowledge, TorchBuild, load
from cudadoctor.knowledge.companions import NUMPY_2_SINCE
from cudadoctor.model.findings import PackageChange, Remedies, Remedy, Risk
from cudadoctor.model.machine import Machine, Release, Strings, Text
from cudadoctor.model.requirements import COMPANIONS, TORCH_FAMILY, admits
from cudadoctor.plan.remedies.companions import (
    caveats,
    colliding,
    fate_of,
    kept_by_others,
    only_for_torch,
    size_of,
)
from cudadoctor.plan.remedies.driver import forward_compat, upgrade_driver
from cudadoctor.solver.alternatives import Alternative
from cudadoctor.solver.builds import Choice, best_build
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

INDEX = "https://download.pytorch.org/whl"


def install_torch(m: Machine, kb: Knowledge, keep: Text = None) -> Remedies:
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
    pins = (f"torch=={build.torch}", *(f"{name}=={wanted}" for name, wanted in fitting.items()))
    found_fates = ((package.name, fate_of(package, build, m, kb)) for package in m.packages or ())
    fates = {name: fate for name, fate in found_fates if fate is not None}
    beside = tuple(fate.pin for fate in fates.values() if fate.pin and fate.with_torch)
    then = tuple(fate.pin for fate in fates.values() if fate.pin and not fate.with_torch)
    # torchvision brings the newest numpy into an environment that has none.
    numpy = m.package("numpy")
    newer = numpy is None or not numpy.version.startswith(("0.", "1."))
    old = build.torch < NUMPY_2_SINCE and newer and m.packages is not None
    leaving = (*lost, *(name for name, fate in fates.items() if fate.leaves))
    # Torch's own index, also for a default build where a companion has its CUDA only there.
    own = f"{INDEX}/{build.variant}" if beside else None
    change = PackageChange(
        install=(*pins, *beside),
        remove=_to_remove(build, m, leaving),
        index=own if build.default else build.index,
        then=(*then, "numpy<2") if old else then,
        variant=build.variant,
        cuda=str(build.cuda) if build.cuda else None,
        download_bytes=build.download_bytes,
        find_links=next((fate.find_links for fate in fates.values() if fate.find_links), None),
        size=size_of(build, kb),
    )
    kind = "CPU" if build.variant == "cpu" else build.variant
    notes = (*caveats(build, m, kb, lost), *(fate.note for fate in fates.values() if fate.note))
    return Remedy(
        id="install-torch",
        title=f"Install the {kind} build of torch {build.torch}",
        risk=Risk.ENVIRONMENT,
        packages=change,
        note=" ".join(notes) or None,
    )


def reinstall_torch(m: Machine, kb: Knowledge) -> Remedies:
    """The same torch again, with the libraries that it pins; () where its index is not known."""
    if m.torch.version is None or _needs_jetson_wheel(m) or m.torch.version.is_devrelease:
        return ()
    if (source := _origin(m, kb)) is None:
        return ()
    variant, index = source
    present = [name for name in COMPANIONS if m.package(name)]
    release = m.torch.version.public
    pinned = (package for package in map(m.package, present) if package)
    change = PackageChange(
        install=(
            f"torch=={release}",
            *(f"{package.name}=={package.version.partition('+')[0]}" for package in pinned),
        ),
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


def install_companion(m: Machine, kb: Knowledge, *names: str) -> Remedies:
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
        # Of another variant, the same release satisfies pip and would be kept.
        remove=tuple(
            name
            for name, version in found.items()
            if (package := m.package(name)) and package.version.partition("+")[0] == version
        ),
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


def jetson_torch(m: Machine, kb: Knowledge | None = None) -> Remedies:
    """NVIDIA's own build for this JetPack, or from JetPack 7 on the general one."""
    release = m.platform.l4t.major if m.platform.l4t else None
    if release is not None and release >= SERVER_BUILDS_FROM_L4T:
        build = best_build(m, kb).build if kb else None
        if build is None or kb is None:
            return ()
        if build.cuda is not None:
            return (remedy_for(build, m, kb),)
    found = (kb or load()).jetson_build(release) if release is not None else None
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


def companions_for(build: TorchBuild, m: Machine, kb: Knowledge) -> dict[str, Text]:
    """The companions to install with a build -> their release, None where there is none."""
    wanted = [name for name in COMPANIONS if m.package(name)]
    if m.torch.installed is False and not wanted:
        wanted = ["torchvision"] if build.torchvision else []
    return {name: _taken(name, build, m, kb) for name in wanted}


def _taken(name: str, build: TorchBuild, m: Machine, kb: Knowledge) -> Text:
    """The release; None where it refuses this very Python, or has no wheel for it here."""
    release, python = companion_of(name, build, kb), m.python.version
    if release is None or python is None:
        return release
    if kb.lacks_wheel(name, release, python_of(m) or "", build.platform):
        return None
    wanted = kb.companion_python(name, release)
    if not wanted or len(python.release) < 3:
        return release
    return release if admits(wanted, python) else None


def _to_remove(build: TorchBuild, m: Machine, lost: Strings) -> Strings:
    """What must go before the build comes.

    Within one variant the package manager replaces what differs. Another variant of the same
    release looks satisfied to it, and its libraries would collide: there the old set goes first.
    """
    packages, version = m.packages or (), m.torch.version
    strays = colliding(packages, build.cuda.major) if build.cuda else ()
    strays = tuple(name for name in strays if name not in kept_by_others(packages))
    kind = "cpu" if build.cuda is None else "cuda"
    other = m.torch.build != kind or (build.cuda is not None and m.torch.cuda != build.cuda)
    changes = other and m.torch.installed is not False
    if not (changes or strays or (version and version.public == build.torch.public)):
        return _installed(m, lost)
    family = _installed(m, TORCH_FAMILY)
    beside = tuple(name for name in _installed(m, lost) if name not in family)
    rest = {*only_for_torch(packages), *strays}.difference(beside)
    return (*family, *beside, *sorted(rest))


def _release_for(name: str, m: Machine, kb: Knowledge) -> Text:
    version = m.torch.version
    if version is None:
        return None
    build = installed_row(m, kb)
    if build is not None and name in ("torchvision", "torchaudio"):
        return companion_of(name, build, kb)
    fitting = kb.companion(name, Version(version.public))
    cuda = m.torch.cuda
    made = ((release, kb.companion_cuda(name, release)) for release in fitting)
    return next((release for release, cudas in made if cuda in (None, *(cudas or (cuda,)))), None)


def installed_row(m: Machine, kb: Knowledge) -> TorchBuild | None:
    """The row of the installed build in the tables."""
    platform, version, variant = platform_of(m), m.torch.version, installed_variant(m)
    if platform is None or version is None or variant is None:
        return None
    return kb.build_of(Version(version.public), variant, platform)


def installed_variant(m: Machine) -> Text:
    """The variant that is installed, None for a build of somebody else's."""
    local = m.torch.version.local if m.torch.version else None
    if local is None and m.torch.text and "+" in m.torch.text:
        local = m.torch.text.partition("+")[2]
    if local:
        return local if re.fullmatch(r"cu\d+|cpu", local) else None
    if m.torch.build == "cpu":
        return "cpu"
    return f"cu{str(m.torch.cuda).replace('.', '')}" if m.torch.cuda else None


def _origin(m: Machine, kb: Knowledge) -> tuple[str, Text] | None:
    """Variant and index of the installed build; index None for the default one."""
    variant = installed_variant(m)
    if variant is None or m.torch.build not in ("cuda", "cpu"):
        return None
    row = installed_row(m, kb)
    if row is not None:
        return variant, None if row.default else row.index
    return variant, f"{INDEX}/{variant}"


def _installed(m: Machine, names: Strings) -> Strings:
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
    m: Machine, kb: Knowledge, alternatives: Iterable[Alternative], keep: Text = None
) -> Remedies:
    """A remedy for each alternative that has one; each id once, the solver's order kept.

    keep: the constraint that the alternatives are for.
    """
    found: dict[str, Remedy] = {}
    for change in alternatives:
        for remedy in _as_remedies(change, m, kb, keep):
            if remedy.id in found and change.kind == "one-gpu" and change.build is not None:
                remedy = msgspec.structs.replace(  # noqa: PLW2901
                    remedy, id=f"install-torch-{change.build.variant}"
                )
            found.setdefault(remedy.id, remedy)
    return tuple(found.values())


def _as_remedies(change: Alternative, m: Machine, kb: Knowledge, keep: Text) -> Remedies:
    build = change.build
    match change.kind:
        case "one-gpu" if platform_blocker(m) is None:
            return _for_some_gpus(change, m, kb)
        case "driver" if change.branch is not None:
            return _noted(upgrade_driver(m, kb, change.branch), change)
        case "compat" if build is not None:
            return _noted(forward_compat(m, kb, build.cuda), change)
        case "python":
            return install_python(m, kb, change.pythons, keep)
        case "platform" if m.platform.libc != "musl" and build is not None:
            return install_python(m, kb, build.pythons, keep)
        case "conda" if change.cuda is not None:
            return (_from_conda_forge(change, m, kb),)
        case "glibc" | "platform" | "one-gpu":
            title = "Run torch on a system that has builds"
            return (Remedy(id="other-platform", title=title, where="admin", manual=change.text),)
        case "cpu" if build is None or m.torch.installed is not False:
            # An installed torch runs on the CPU as it is.
            title, risk = "Train without this GPU", Risk.ENVIRONMENT
            return (Remedy(id="other-gpu", title=title, risk=risk, manual=change.text),)
        case "cpu" if build is not None:
            return _noted((remedy_for(build, m, kb),), change)
    return ()


def _from_conda_forge(change: Alternative, m: Machine, kb: Knowledge) -> Remedy:
    """An environment of its own, with the build of another publisher."""
    torch = kb.newest_on_conda("conda-forge")
    conda = manager(m, "mamba", "micromamba", "conda")
    specs = (f"pytorch-gpu={torch}", f"cuda-version={change.cuda}")
    argv = (conda or "conda", "create", "-y", "-n", "torch", "-c", "conda-forge", *specs)
    return Remedy(
        id="conda-torch",
        title=f"Make a conda environment with conda-forge's torch {torch} and CUDA {change.cuda}",
        risk=Risk.ENVIRONMENT,
        commands=(argv,) if conda else (),
        manual=None if conda else f"With conda or mamba (Miniforge): {' '.join(argv)}",
        tool="conda",
        note=change.text,
    )


def _noted(remedies: Remedies, change: Alternative) -> Remedies:
    """The remedies with what they make possible: torch itself is the step after them."""
    return tuple(
        msgspec.structs.replace(remedy, note=" ".join(filter(None, (change.text, remedy.note))))
        for remedy in remedies
    )


def install_python(
    m: Machine, kb: Knowledge, versions: Iterable[str], keep: Text = None
) -> Remedies:
    """A new environment with the nearest of these Pythons ("3.12"), and torch in it.

    keep: a wish for a release of torch.
    """
    known = [Version(name) for name in versions if not name.endswith("t")]
    if not known:
        return ()
    # The closest to the present Python: the newest below it, else the oldest above it.
    present = m.python.version
    below = [
        version for version in known if present is None or version.release <= present.release[:2]
    ]
    wanted = max(below) if below else min(known)
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


def emptied(m: Machine, python: Release = None) -> Machine:
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


_SCHEDULED = "A job's own list of GPUs is the scheduler's: ask it for GPUs of one kind instead."


def leave_out(m: Machine, kb: Knowledge, hidden: Collection[Version]) -> Remedies:
    """Hide the GPUs of these capabilities from programs; () where none or all of them would go."""
    gpus = seen_gpus(m, kb)
    gone = [gpu for gpu in gpus if gpu.capability in hidden]
    stay = [gpu for gpu in gpus if gpu.capability not in hidden]
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


def _for_some_gpus(change: Alternative, m: Machine, kb: Knowledge) -> Remedies:
    """The build that fits without some of the GPUs, and what hides those."""
    hiding = leave_out(m, kb, change.hidden)
    if change.build is None or not hiding:
        return ()
    install = remedy_for(change.build, m, kb)
    gone = hiding[0].title.removeprefix("Leave out ")
    notes = (f"No one build serves all GPUs here: this leaves out {gone}.", install.note)
    return (
        msgspec.structs.replace(
            install,
            title=f"{install.title} without {gone}",
            variables=hiding[0].variables,
            note=" ".join(filter(None, notes)),
        ),
    )


_BACKENDS = {"rocm": "ROCm", "xpu": "Intel XPU"}
_MOST_REASONS = 6


def wished_torch(m: Machine, kb: Knowledge, choice: Choice, wish: str) -> Remedies:
    """Alternatives that keep to the wish, the preferred one first."""
    backend = _BACKENDS.get(m.torch.build or "")
    if backend is not None and not (choice.build and choice.build.cuda):
        title = f"Install the {backend} build of torch {wish}"
        text = f"This environment has a {backend} build, and the tables hold builds for NVIDIA's "
        text += f"GPUs and for the CPU only: take torch {wish} from the {backend} index of PyTorch."
        return (Remedy(id="install-torch", title=title, risk=Risk.ENVIRONMENT, manual=text),)
    if choice.build is not None:
        return (remedy_for(choice.build, m, kb),)
    others = ("release", "cpu", "jetson")
    keeping = [change for change in choice.alternatives if change.kind not in others]
    remedies = instead(m, kb, keeping, wish)
    if any(remedy.id == "install-torch" for remedy in remedies):
        return remedies
    # Why it cannot be, and what would help, as words: another release is nobody's wish.
    shown, more = choice.why_not[:_MOST_REASONS], len(choice.why_not) - _MOST_REASONS
    texts = [
        f"Give up the wish for torch {wish}, or change what stands against it.",
        *choice.why[:1],
        *(f"{rejection.variant}: {rejection.reason}" for rejection in shown),
        *([f"{more} older variants do not fit either."] if more > 0 else []),
        *(change.text for change in choice.alternatives),
    ]
    title = f"No build of torch {wish} fits this machine"
    manual = " ".join(texts)
    return (
        Remedy(id="install-torch", title=title, risk=Risk.ENVIRONMENT, manual=manual),
        *remedies,
    )
