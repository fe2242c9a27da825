"""Remedies that put a fitting torch, with what belongs to it, into the examined environment."""

import re
from collections.abc import Callable, Collection, Iterable
from functools import partial
from operator import itemgetter

from msgspec.structs import replace
from packaging.version import Version

from cudadoctor.installers import environment
from cudadoctor.installers.requirement import COMPILED_HERE, name_of
from cudadoctor.installers.tool import Written, joined, manager
from cudadoctor.knowledge import Knowledge, TorchBuild
from cudadoctor.knowledge.companions import NUMPY_2_SINCE
from cudadoctor.knowledge.torch_builds import TORCH_INDEX
from cudadoctor.model.findings import Edit, PackageChange, Remedies, Remedy, Risk
from cudadoctor.model.machine import (
    AUTHOR,
    Distribution,
    Install,
    Json,
    Machine,
    OptStr,
    OptVersion,
    Strings,
)
from cudadoctor.model.requirements import (
    BUILT_AS,
    COMPANIONS,
    SHARED,
    TORCH_FAMILY,
    USUAL,
    cut,
    exactly,
)
from cudadoctor.plan.remedies.driver import forward_compat, upgrade_driver
from cudadoctor.plan.remedies.process import builds_here, by_hand, install_packages, keeper_of
from cudadoctor.solver.builds import Alternative, Choice, best_build, wanted_torch
from cudadoctor.solver.companions import (
    PYG,
    Question,
    admitted,
    asked_by,
    below_floor,
    caveats,
    collides,
    companions_for,
    download_of,
    fate_of,
    given_up,
    kept_by_others,
    moved_along,
    nearest,
    only_for_torch,
    pyg_page,
    told,
    unmet_by_author,
    unserved,
)
from cudadoctor.solver.demand import (
    SERVER_BUILDS_FROM_L4T,
    demand_of,
    listed,
    named,
    platform_blocker,
    platform_of,
    python_of,
    seen_gpus,
    variables_for,
)
from cudadoctor.solver.fit import block
from cudadoctor.solver.reasons import companion_of
from cudadoctor.solver.supposed import supposed

_step = partial(Remedy, risk=Risk.ENVIRONMENT)

NEWEST = "install-newest-torch"
"""The id of the other way to `install-torch`, dropped where that one is not the preferred way."""


def install_torch(m: Machine, kb: Knowledge, keep: OptStr = None) -> Remedies:
    """The build of torch that fits this machine, with its companions; the newest as another way.

    Where none fits, what would let one fit; () where nothing would.
    """
    if _needs_jetson_wheel(m):
        return jetson_torch(m, kb)
    if impossible := refused(m, kb):
        return impossible
    choice = best_build(m, kb, keep=keep)
    floors = below_floors(m, kb) if m.look == "report" else {}
    if choice.build and floors:
        return _without_program(floors, f"{choice.build.torch} ({choice.build.variant})")
    if choice.build is not None:
        remedy = remedy_for(choice.build, m, kb)
        if _is_there(remedy, choice.build, m, kb):
            return ()
        if _leaves_release_open(choice.build, m, kb):
            remedy = _of_any_release(remedy)
        others = (choice.newest,) if choice.newest else ()
        title = "Install the newest compatible build, torch {0.torch} ({0.variant})"
        newest = (
            replace(remedy_for(build, m, kb), id=NEWEST, title=title.format(build))
            for build in others
        )
        return (remedy, *newest)
    return instead(m, kb, choice.alternatives, keep)


def refused(m: Machine, kb: Knowledge) -> Remedies:
    """That no build serves what the author of a report demands; () where one does."""
    build = best_build(m, kb).build if m.look == "report" else None
    if build is None or not (wishes := listed([*unmet_by_author(build, m, kb)])):
        return ()
    text = (
        "With this GPU and driver no build of torch serves that release: the requirement, the "
        f"driver or the GPU has to change. Without the requirement, torch {build.torch} "
        f"({build.variant}) is the closest one that is compatible."
    )
    return by_hand("other-demand", f"No published build of torch works with {wishes} here", text)


def _is_there(remedy: Remedy, build: TorchBuild, m: Machine, kb: Knowledge) -> bool:
    """Whether a report shows that very build, and nothing comes with it: it is not the cure."""
    change = remedy.packages
    alone = change is not None and (len(change.install), change.then) == (1, ())
    own = m.torch.version
    if m.look != "report" or not alone or own is None or own.is_prerelease:
        return False
    return installed_row(_of_known_platform(m, kb), kb) == build


def below_floors(m: Machine, kb: Knowledge) -> dict[str, Version]:
    """The packages, there or asked for, that run on none of the GPUs -> the oldest they serve."""
    lines = (line for install in m.installs or () for line in install.requirements)
    names = dict.fromkeys((*(one.name for one in m.packages or ()), *map(name_of, lines)))
    floors = {name: below_floor(name, m, kb) for name in names}
    return {name: floor for name, floor in floors.items() if floor}


def _without_program(floors: dict[str, Version], build: str) -> Remedies:
    """What a report asks about runs on none of its GPUs: another torch would not help it.

    floors: packages -> the oldest GPU that they serve.
    """
    texts = [unserved(name, floor) for name, floor in floors.items()]
    texts.append(f"torch {build} does run on them: use a program that needs nothing but torch.")
    title = f"Run {listed(list(floors))} on a newer GPU"
    return by_hand("other-gpu", title, " ".join(texts))


def _leaves_release_open(build: TorchBuild, m: Machine, kb: Knowledge) -> bool:
    """Whether a report tells neither Python nor torch, and the index has nothing newer."""
    if m.look != "report" or m.python.version or m.torch.version:
        return False
    return not any(
        other.published and other.torch > build.torch
        for other in kb.builds_on(build.platform)
        if build.default or other.variant == build.variant
    )


def _of_any_release(remedy: Remedy) -> Remedy:
    """Without a release: pip takes the newest one that has a wheel for the unknown Python."""
    change = remedy.packages
    if change is None:
        return remedy
    kind = "CPU" if change.variant == "cpu" else change.variant
    names = tuple(name_of(requirement) for requirement in change.install)
    title = f"Install the {kind} build of torch"
    return replace(remedy, title=title, packages=replace(change, install=names, then=()))


def older_cuda(m: Machine, kb: Knowledge) -> Remedies:
    """The build whose CUDA the driver brings itself: its PTX is never too new; () if none is."""
    level = m.driver.cuda or (kb.native_cuda(m.driver.version) if m.driver.version else None)
    return _of_cuda(m, kb, lambda cuda: cuda <= level) if level else ()


def newer_cuda(m: Machine, kb: Knowledge, least: Version) -> Remedies:
    """The build of that CUDA major or a newer one; () if none fits."""
    return _of_cuda(m, kb, lambda cuda: cuda.major >= least.major)


def _of_cuda(m: Machine, kb: Knowledge, allowed: Callable[[Version], bool]) -> Remedies:
    (here, *_) = supposed(m, kb).machines
    if platform_of(here) is None:
        return ()
    demand, own = demand_of(here, kb), m.torch.version and m.torch.version.release
    fitting = [
        (build.torch.release == own, build.torch, build.cuda, build)
        for build in kb.builds_on(demand.platform)
        if build.cuda and allowed(build.cuda) and block(build, demand) is None
    ]
    # Of the same release if there is one, else of the newest; of a release the newest CUDA.
    best = max(fitting, key=itemgetter(0, 1, 2), default=None)
    return (remedy_for(best[3], m, kb),) if best else ()


def torch_with_cudnn(m: Machine, kb: Knowledge, admitted: Callable[[str], bool]) -> Remedies:
    """The nearest later torch whose own cuDNN other programs admit; () if none fits here."""
    (here, *_) = supposed(m, kb).machines
    own = m.torch.version
    if own is None or platform_of(here) is None:
        return ()
    demand = demand_of(here, kb)
    fitting = [
        (build.torch.release[:2], -build.torch.micro, not build.default, build.cuda, build)
        for build in kb.builds_on(demand.platform)
        if build.cuda
        and build.cudnn
        and build.torch.release > own.release
        and admitted(build.cudnn)
        and block(build, demand) is None
    ]
    best = min(fitting, key=itemgetter(0, 1, 2, 3), default=None)
    return (remedy_for(best[4], here, kb),) if best else ()


def for_other_maker(m: Machine, kb: Knowledge, maker: str) -> Remedies:
    """The builds for AMD's or Intel's GPUs, from torch's index of that name."""
    backend = kb.backend_of(maker)
    step = _step(
        id=f"install-{backend.name}-torch", title=f"Install the {backend.label} build of torch"
    )
    if m.platform.system not in backend.systems or m.platform.machine in ("aarch64", "arm64"):
        text = (
            f"Select {backend.label} on https://pytorch.org/get-started/locally/, then run the "
            "command shown there in this environment."
        )
        return (replace(step, manual=text),)
    change = PackageChange(
        install=("torch", "torchvision"),
        remove=_installed(m, TORCH_FAMILY) + only_for_torch(m.packages or ()),
        index=backend.index,
    )
    return (replace(step, packages=change),)


def pinned_torch(m: Machine, kb: Knowledge) -> Remedies:
    """The torch that installed packages require which refuse the present one; () where none is."""
    wanted = wanted_torch(m, kb)
    if wanted is None:
        return ()
    exact = {
        line.name: line.specifier[2:]
        for package in m.packages or ()
        if package.name in wanted.packages
        for line in asked_by(told(package, kb), COMPANIONS, m)
        if _EXACT.fullmatch(line.specifier)
    }
    present = [(name, m.package(name)) for name in wanted.packages]
    names = [f"{name} {package.version if package else ''}".strip() for name, package in present]
    verb = "requires" if len(names) == 1 and AUTHOR not in names else "require"
    title = f"Install torch {wanted.build.torch}, which {listed(names)} {verb}"
    return (replace(remedy_for(wanted.build, m, kb, exact), title=title),)


_EXACT = re.compile(r"==\d+(?:\.\d+){1,3}(?:\.post\d+)?")


def remedy_for(
    build: TorchBuild, m: Machine, kb: Knowledge, pinned: dict[str, str] | None = None
) -> Remedy:
    """The step that installs exactly this build, with what belongs to it.

    pinned: releases of companions that another package requires.
    """
    m = _of_known_platform(m, kb)  # Requirements often hold for one processor only.
    there, moved = moved_along(build, m, kb)
    companions, packages = companions_for(build, there, kb) | (pinned or {}), there.packages or ()
    pins = (f"{name}=={release}" for name, release in companions.items() if release)
    lost = tuple(name for name, release in companions.items() if release is None)
    found = ((package.name, fate_of(package, build, there, kb)) for package in packages)
    fates = {name: fate for name, fate in found if fate is not None}
    beside = tuple(fate.pin for fate in fates.values() if fate.pin and fate.with_torch)
    then = tuple(fate.pin for fate in fates.values() if fate.pin and not fate.with_torch)
    # torchvision brings the newest numpy into an environment that has none.
    numpy = m.package("numpy")
    newer = numpy is None or not numpy.version.startswith(("0.", "1."))
    if build.torch < NUMPY_2_SINCE and newer:
        then += ("numpy<2",)
    then += moved
    leaving = (*lost, *(name for name, fate in fates.items() if fate.leaves))
    # Torch's own index, also for a default build where a companion is only there.
    own = (
        f"{TORCH_INDEX}/{build.variant}" if beside or _off_pypi(companions, build, m, kb) else None
    )
    kind = "CPU" if build.variant == "cpu" else build.variant
    keys = {symptom.key for symptom in m.symptoms or ()}
    return _step(
        id="install-torch",
        title=f"Install the {kind} build of torch {build.torch}",
        packages=PackageChange(
            install=(f"torch=={build.torch}", *pins, *beside),
            remove=_to_remove(build, m, leaving),
            index=own if build.default else build.index,
            then=then,
            variant=build.variant,
            cuda=str(build.cuda) if build.cuda else None,
            download_bytes=download_of(build, kb),
            find_links=next(filter(None, (fate.find_links for fate in fates.values())), None),
        ),
        variables=_temporary(build, m) | _unforced((package.name for package in packages), m),
        note=joined(
            _PURGED if m.platform.wsl and _DRIVER_IN_WSL in keys else None,
            *(_replaced(pin, m, build) for pin in moved),
            *caveats(build, there, kb, lost),
            *(fate.note for fate in fates.values()),
        ),
    )


_DRIVER_IN_WSL = "linux-driver-put-into-wsl"
_PURGED = (
    "First take the Linux driver out of WSL: run `sudo apt-get purge 'nvidia-driver-*' "
    "'libnvidia-compute-*' 'cuda-drivers*'` in WSL, then `wsl --shutdown` in Windows."
)


def _off_pypi(companions: dict[str, OptStr], build: TorchBuild, m: Machine, kb: Knowledge) -> bool:
    """Whether the package index lacks torch or one of these, which torch's own index has."""
    python = python_of(m) or ""
    return any(
        release and kb.lacks_wheel(name, release, python, build.platform, pypi=True)
        for name, release in {"torch": str(build.torch), **companions}.items()
    )


def _replaced(pin: str, m: Machine, build: TorchBuild) -> str:
    name = name_of(pin)
    package, specifier = m.package(name), pin.removeprefix(name)
    present = f"{name} {package and package.version}"
    if name in SHARED:
        return f"{present} will be replaced as well: {name}{specifier} is needed."
    release = specifier.removeprefix("==")
    return f"{present} will be replaced with {release}, which works with torch {build.torch}."


def _temporary(build: TorchBuild, m: Machine) -> dict[str, OptStr]:
    """Where pip unpacks, if the usual place is too small and the environment's disk is not."""
    wheel, prefix, limits = build.download_bytes or 0, m.python.prefix or "", m.limits
    free = limits.tmp_free_bytes
    tight = free is not None and free < wheel <= (limits.env_free_bytes or 0)
    return {"TMPDIR": prefix} if tight and prefix.startswith("/") and m.python.pip else {}


def reinstall_torch(m: Machine, kb: Knowledge) -> Remedies:
    """The same torch again, with the libraries that it pins; () where its index is not known."""
    version, origin = m.torch.version, _origin(m, kb)
    if version is None or version.is_devrelease or _needs_jetson_wheel(m) or not origin.variant:
        return ()
    release = version.public
    present = [package for package in map(m.package, COMPANIONS) if package]
    # A companion of another release would keep pip from installing torch again.
    fitting = {package.name: _release_for(package.name, version, m, kb) for package in present}
    pins = (
        f"{package.name}=={fitting[package.name] or package.version.partition('+')[0]}"
        for package in present
    )
    left = ", ".join(m.torch.leftovers or ())
    return (
        _step(
            id="reinstall-torch",
            title=f"Reinstall torch {release} with its own libraries",
            packages=replace(
                origin,
                install=(f"torch=={release}", *pins),
                remove=_installed(m, ("torch", *COMPANIONS)) + _own_wheels(m, kb),
            ),
            note=f"An interrupted pip run left unused files in site-packages: {left}."
            if left
            else None,
        ),
    )


def _own_wheels(m: Machine, kb: Knowledge) -> Strings:
    """The wheels that only torch needs; of a report, which shows no metadata, by their names."""
    packages, cuda = m.packages or (), m.torch.cuda
    if m.look != "report" or cuda is None:
        return only_for_torch(packages)
    ours = f"-cu{cuda.major}"
    names = (package.name for package in packages if package.name in kb.pinned_names)
    wheels = (name for name in names if name.startswith("nvidia-"))
    return tuple(sorted(name for name in wheels if name.endswith(ours) or "-cu1" not in name))


def install_companion(m: Machine, kb: Knowledge, *names: str) -> Remedies:
    """The releases of these packages that belong to the installed torch; () where none is known."""
    m = _of_known_platform(m, kb)
    version, origin = m.torch.version, _origin(m, kb)
    if impossible := refused(m, kb):
        return impossible
    # No package index has wheels for the torch of NVIDIA's images, or for ROCm.
    if version is None or _needs_jetson_wheel(m) or (version.local and not origin.variant):
        return ()
    if version.is_devrelease:  # What is compiled against torch can be so against this one.
        return _off_nightlies(m, kb) if {*names} - COMPILED_HERE else ()
    floors = {name: floor for name in names if (floor := below_floor(name, m, kb))}
    names = tuple(name for name in names if name not in floors)
    if floors and not names:
        return _without_program(floors, f"{version.public}")
    found = {name: _release_for(name, version, m, kb) for name in names}
    pins = {
        name: f"{name}=={release}"
        for name, release in found.items()
        if release and (name not in COMPILED_HERE - {*PYG} or _comes(name, release, m, kb))
    }
    if not pins:
        return ()
    # PyPI has xformers for one CUDA only; torch's own index has it for each.
    beside = origin.variant is not None and any(
        kb.on_torch_index(name, release) for name, release in found.items() if release
    )
    own = (*COMPANIONS, "xformers") if beside else COMPANIONS
    ours = tuple(pin for name, pin in pins.items() if name in own)
    others = tuple(pin for name, pin in pins.items() if name not in own)
    index = f"{TORCH_INDEX}/{origin.variant}" if beside else origin.index
    change = replace(
        origin,
        install=ours or others,
        then=others if ours else (),
        # Of another variant, the same release satisfies pip and would be kept.
        remove=tuple(
            package.name
            for package in map(m.package, names)
            if package and _public(package.version) == _public(found[package.name])
        ),
        index=index if ours else None,
        find_links=pyg_page(version, origin.variant or "") if {*PYG} & {*pins} else None,
    )
    words = ", ".join(pins.values()).replace("==", " ")
    title = f"Install {words} for torch {version.public}"
    lost = ", ".join(name for name in found if name not in pins)
    absent = f"There is no known release of {lost} for this torch version." if lost else None
    wheel = None
    if found.get("flash-attn") in _prebuilt_flash(m, kb) and m.torch.cuda:
        # torch's wheels have the new ABI of C++ since 2.6.0+cu126.
        new = (*version.release[:2], *m.torch.cuda.release) >= (2, 6, 12, 6)
        kind = f"torch{version.major}.{version.minor}cxx11abi{'TRUE' if new else 'FALSE'}"
        wheel = f"flash-attn downloads its own wheel ({kind}); nothing is compiled."
    note = joined(absent, wheel)
    variables = _unforced(pins, m)
    return (
        _step(id="install-companion", title=title, packages=change, note=note, variables=variables),
    )


def _unforced(names: Iterable[str], m: Machine) -> dict[str, OptStr]:
    """The variables to unset that somebody set to get along with the old builds of these."""
    names, env = {*names}, m.env or {}
    return {name: None for name, package in _FORCED.items() if package in names and name in env}


_FORCED = {
    "BNB_CUDA_VERSION": "bitsandbytes",
    "FLASH_ATTENTION_FORCE_BUILD": "flash-attn",
    "FLASH_ATTENTION_SKIP_CUDA_BUILD": "flash-attn",
}
"""Variables that choose another build of a package than the one for torch -> the package."""


def _off_nightlies(m: Machine, kb: Knowledge) -> Remedies:
    """A release of torch with all that belongs to it: companions of a nightly are of its day."""
    variant = installed_variant(m)
    note = (
        "To keep a nightly build, install torch and its companions together from "
        f"https://download.pytorch.org/whl/nightly/{variant}."
    )
    return tuple(replace(way, note=joined(note, way.note)) for way in install_torch(m, kb)[:1])


def _of_known_platform(m: Machine, kb: Knowledge) -> Machine:
    """The machine with the processor that is supposed where only its system is known."""
    return supposed(m, kb).machines[0] if m.platform.system else m


def extension_wheel(m: Machine, kb: Knowledge, name: str) -> Remedies:
    """The wheel of the installed release, with the nearest torch that its project compiled it for.

    () where nobody knows of one that runs here, or somebody asks for another torch.
    """
    (here, *_) = supposed(m, kb).machines
    package, torch = here.package(name), here.torch.version
    if package is None or torch is None or platform_of(here) is None or _needs_jetson_wheel(m):
        return ()
    release, python, demand = _public(package.version) or "", python_of(here), demand_of(here, kb)
    builds, own = kb.builds_on(demand.platform), torch.release
    minors = sorted({build.torch.release[:2] for build in builds} | {own[:2]})
    fitting = [
        (
            build.torch.release != own,
            abs(minors.index(build.torch.release[:2]) - minors.index(own[:2])),
            build.cuda not in (here.torch.cuda, None) and here.torch.cuda is not None,
            -build.torch.micro,
            not build.default,
            build,
        )
        for build in builds
        if kb.wheel_on_page(name, release, build, python)
        and block(build, demand) is None
        and not given_up(build, here, kb).unmet
    ]
    if not fitting:
        return ()
    build = min(fitting, key=itemgetter(0, 1, 2, 3, 4))[-1]
    same = here.torch.cuda == build.cuda if here.torch.cuda else build.default
    if build.torch.release != own or not same:
        return (remedy_for(build, here, kb),)
    wheel, page = kb.wheel_on_page(name, release, build, python) or (release, "")
    title, pin = f"Install {name} {wheel} for torch {build.torch}", f"{name}=={wheel}"
    change = PackageChange(install=(pin,), remove=(name,), find_links=page or None)
    return (_step(id="install-companion", title=title, packages=change),)


def rebuild_extension(m: Machine, name: str) -> Remedies:
    """The installed release compiled anew, where PyPI has its source; () where it has none."""
    package, torch = m.package(name), m.torch.version
    if package is None or torch is None or name not in _BUILT_FROM_PYPI:
        return ()
    release = _public(package.version) or ""
    title = f"Rebuild {name} {release} for torch {torch.public}"
    parts = BUILT_AS[name][1] if name in BUILT_AS else ()
    ways = install_packages(
        "rebuild-extension", title, exactly(name, release), remove=(name, *parts)
    )
    note = None if builds_here(m) else _NEEDS_NVCC
    return tuple(replace(way, note=note) for way in ways)


_BUILT_FROM_PYPI = COMPILED_HERE - {"apex", "detectron2", "pytorch3d"}
"""PyPI has their sources; what it has of those three is another project, or nothing."""
_NEEDS_NVCC = "The build needs an nvcc with the same CUDA major version as torch."


def _public(release: OptStr) -> OptStr:
    return release and release.partition("+")[0]


def _comes(name: str, release: str, m: Machine, kb: Knowledge) -> bool:
    """Whether the source of an extension can become one here: by a wheel of its own, or by nvcc."""
    return (name == "flash-attn" and release in _prebuilt_flash(m, kb)) or builds_here(m)


def _prebuilt_flash(m: Machine, kb: Knowledge) -> Strings:
    """The flash-attn whose installation fetches a wheel for this torch; () where unknown."""
    torch, cuda, python = m.torch.version, m.torch.cuda, python_of(m)
    if torch is None or cuda is None or python is None or platform_of(m) != "linux_x86_64":
        return ()
    return kb.prebuilt_flash(Version(torch.public), cuda, python)


def with_own_torch(change: PackageChange, m: Machine, kb: Knowledge) -> PackageChange:
    """A change for an environment that is yet to be made: the installed torch goes there too."""
    wanted = {name_of(requirement): requirement for requirement in (*change.install, *change.then)}
    version, origin = m.torch.version, _origin(m, kb)
    if "torch" in wanted or not wanted or version is None or not origin.variant:
        return change
    present = (package for package in map(m.package, COMPANIONS) if package)
    pins = {item.name: f"{item.name}=={item.version.partition('+')[0]}" for item in present}
    family = pins | {name: wanted[name] for name in (*COMPANIONS, "xformers") if name in wanted}
    row = installed_row(m, kb)
    return replace(
        origin,
        install=(f"torch=={version.public}", *family.values()),
        then=tuple(wanted[name] for name in wanted if name not in family),
        index=origin.index or change.index,
        download_bytes=download_of(row, kb) if row else None,
    )


def jetson_torch(m: Machine, kb: Knowledge) -> Remedies:
    """NVIDIA's own build for this JetPack, or from JetPack 7 on the general one."""
    release = m.platform.l4t.major if m.platform.l4t else None
    step = partial(_step, id="jetson-torch")
    if release is not None and release >= SERVER_BUILDS_FROM_L4T:
        build = best_build(m, kb).build
        if build is None or build.cuda is not None:
            return (remedy_for(build, m, kb),) if build else ()
    found = kb.jetson_build(release) if release is not None else None
    if found is None:
        text = (
            "Install NVIDIA's torch wheel for your JetPack version, as described under "
            '"Installing PyTorch for Jetson Platform" on docs.nvidia.com. Builds for other '
            "computers do not run on a Jetson."
        )
        row = next((row for row in kb.tegra_releases if row.l4t == release), None)
        if row and row.wheel:
            python = re.sub(r".*-cp(\d)(\d+)-.*", r"\1.\2", row.wheel)
            title = f"Install NVIDIA's torch wheel for L4T {release}"
            text = (
                f"With Python {python}, the version of this JetPack, run `python3 -m pip install "
                f"--no-cache-dir {row.wheel}`. NVIDIA has no such wheel for another Python. "
                "Builds for other computers do not run on a Jetson."
            )
            torch = re.sub(r".*/torch-(\d+\.\d+\.\d+).*", r"\1", row.wheel)
            vision = next(iter(kb.companion("torchvision", Version(torch))), None)
            if vision:
                text += f" Build torchvision from its source of release v{vision}."
            if row.last_for and python_of(m) not in (None, python):
                title = (
                    f"No published build of torch uses this board's GPU with Python {python_of(m)}"
                )
            if row.last_for:
                text += _LAST_JETPACK.format(boards=listed(row.last_for), python=python)
            return (step(title=title, manual=text),)
        known = (kb.jetson_build(row.l4t) for row in reversed(kb.tegra_releases))
        if release is None and (newest := next(filter(None, known), None)):
            pins = " ".join(f"{name}=={newest.pins[name]}" for name in ("torch", "torchvision"))
            text = (
                f"First run `cat /etc/nv_tegra_release`. For R{newest.l4t} (JetPack "
                f"{newest.jetpack}) and Python {newest.python}, run `python -m pip install {pins} "
                f"--index-url {newest.index}`. For another release: {text}"
            )
        return (step(title="Install NVIDIA's torch build for this JetPack release", manual=text),)
    here = ("torch", "torchvision", *filter(m.package, found.pins))
    numpy = m.package("numpy")
    change = PackageChange(
        install=tuple(f"{name}=={found.pins[name]}" for name in dict.fromkeys(here)),
        remove=_installed(m, TORCH_FAMILY) + only_for_torch(m.packages or ()),
        # These wheels were compiled for numpy 1.
        then=() if numpy and numpy.version.startswith("1.") else ("numpy<2",),
        index=found.index,
        variant=found.variant,
        cuda=found.cuda,
    )
    jetpack, python = found.jetpack, found.python
    note = f"These wheels are for Python {python}, the version that ships with JetPack {jetpack}."
    if found.system:
        note += f" They also need this system package: run `sudo apt-get install {found.system}`."
        note += " If apt does not find it, first install cuda-keyring for NVIDIA's repository."
    title = f"Install torch {found.pins['torch']} for JetPack {jetpack}"
    if python_of(m) in (None, python) and platform_blocker(m) is None:
        return (step(title=title, packages=change, note=note),)
    made = environment.new_environment(m, python, replace(change, remove=()))
    title = f"{title} in a new environment with Python {python}"
    return (step(title=title, **_made(made, note)),)


_LAST_JETPACK = (
    " No newer JetPack supports {boards}: there a program that needs a newer Python than {python} "
    "cannot use torch on the GPU. Export its model to ONNX and run it with TensorRT, or use a "
    "newer board."
)


def _made(made: Written, note: OptStr = None) -> Json:
    """The fields of a step that makes an environment. note: what is said first."""
    note = joined(note, made.note)
    return {"commands": made.commands, "manual": made.manual, "tool": made.tool, "note": note}


def _to_remove(build: TorchBuild, m: Machine, lost: Strings) -> Strings:
    """What must go before the build comes.

    Within one variant the package manager replaces what differs. Another variant of the same
    release looks satisfied to it, and its libraries would collide: there the old set goes first.
    """
    packages, torch, cuda = m.packages or (), m.torch, build.cuda
    strays = {package.name for package in packages if cuda and collides(package.name, cuda.major)}
    strays = strays.difference(kept_by_others(packages))
    if m.package("pytorch-triton"):
        # Triton of the nightlies: it owns the same folder as the release's.
        strays.update(package.name for package in packages if package.name in _TRITONS)
    other = torch.build != ("cuda" if cuda else "cpu") or (cuda is not None and torch.cuda != cuda)
    same = torch.version is not None and torch.version.public == build.torch.public
    beside = _installed(m, lost)
    if not (strays or same or (other and torch.installed is not False)):
        return beside
    family = _installed(m, TORCH_FAMILY)
    rest = {*only_for_torch(packages), *strays}.difference(beside)
    return tuple(dict.fromkeys((*family, *beside, *sorted(rest))))


_TRITONS = ("pytorch-triton", "triton")


def _release_for(name: str, torch: Version, m: Machine, kb: Knowledge) -> OptStr:
    build, bare = installed_row(m, kb), Version(torch.public)
    (here, *_) = supposed(m, kb).machines
    same = (row for row in kb.builds_on(platform_of(here) or "linux_x86_64") if row.torch == bare)
    usual = build or next((row for row in same if row.default), None)
    if usual is not None and name in ("torchvision", "torchaudio"):
        return companion_of(name, usual, kb)
    place, python = platform_of(m), python_of(m)
    if name in PYG:
        # PyG's wheels fit torch from PyPI and the pytorch channel, not conda-forge's own build.
        foreign = m.torch.installer == "conda" and not kb.conda_cuda("pytorch", torch, place or "")
        variant = None if foreign else _origin(m, kb).variant
        return kb.pyg_release(name, torch, variant, place, python) if variant else None
    package = m.package(name) or _asked_for(name, m)
    if name == "flash-attn" and (prebuilt := _prebuilt_flash(m, kb)):
        return nearest(prebuilt, package.version if package else prebuilt[0])
    stays = build or TorchBuild(
        torch=bare,
        variant="",
        platform=place or "",
        cuda=m.torch.cuda,
        published=None,
        archs=None,
        archs_uncertain=True,
        glibc=None,
        default=True,
        download_bytes=None,
        sources=(),
    )
    question = Question(package or Distribution(name=name, version=""), stays, m, kb)
    runs = question.takes_python if name in COMPILED_HERE else question.runs_here
    fitting = (release for release in kb.companion(name, bare) if runs(release))
    serving = tuple(release for release in fitting if question.serves_cuda(release) is not False)
    found = admitted(name, serving, m, kb)
    # Of one made for each torch the last build is taken.
    if package is None or name == "xformers":
        return next(iter(found), None)
    if name == "bitsandbytes":  # Its one wheel is for every torch: the same again cures nothing.
        found = tuple(one for one in found if one != _public(package.version)) or found
    return nearest(found, package.version)


def _asked_for(name: str, m: Machine) -> Distribution | None:
    """The release that a command of the report installs, where no list shows the package."""
    lines = (line for install in m.installs or () for line in install.requirements)
    asked = next((one for one in map(cut, lines) if one and one.name == name), None)
    exact = asked and _EXACT.fullmatch(asked.specifier)
    return Distribution(name=name, version=asked.specifier[2:]) if asked and exact else None


def installed_row(m: Machine, kb: Knowledge) -> TorchBuild | None:
    """The row of the installed build in the tables."""
    platform, version, variant = platform_of(m), m.torch.version, installed_variant(m)
    if platform is None or version is None or variant is None:
        return None
    return kb.build_of(Version(version.public), variant, platform)


def installed_variant(m: Machine) -> OptStr:
    """The variant that is installed, None for a build of somebody else's."""
    torch = m.torch
    local = torch.version.local if torch.version else None
    if local := local or (torch.text or "").partition("+")[2]:
        return local if re.fullmatch(r"cu\d+|cpu", local) else None
    if torch.build == "cpu":
        return "cpu"
    return f"cu{str(torch.cuda).replace('.', '')}" if torch.cuda else None


def _origin(m: Machine, kb: Knowledge) -> PackageChange:
    """Variant, CUDA and index of the installed build; no variant for somebody else's."""
    cuda = str(m.torch.cuda) if m.torch.cuda else None
    variant, row = installed_variant(m), installed_row(m, kb)
    if variant is None or m.torch.build not in ("cuda", "cpu"):
        return PackageChange(install=(), cuda=cuda)
    index: OptStr = row.index if row else f"{TORCH_INDEX}/{variant}"
    index = None if row and row.default else index
    return PackageChange(install=(), variant=variant, index=index, cuda=cuda)


def _installed(m: Machine, names: Strings) -> Strings:
    """Those of the names that are installed; torch also where the list lacks it.

    A torch without metadata is unknown to pip, which cannot uninstall it.
    """
    copies = m.torch.copies
    bare = copies and copies[0].kind in ("folder", "local") and m.packages is not None
    torch = m.torch.installed and not bare
    return tuple(name for name in names if m.package(name) or (name == "torch" and torch))


def _needs_jetson_wheel(m: Machine) -> bool:
    release = m.platform.l4t
    general = release is not None and release.major >= SERVER_BUILDS_FROM_L4T
    return bool(m.platform.jetson) and not general


def instead(
    m: Machine, kb: Knowledge, alternatives: Iterable[Alternative], keep: OptStr = None
) -> Remedies:
    """A remedy for each alternative that has one; each id once, the solver's order kept.

    keep: the constraint that the alternatives are for.
    """
    found: dict[str, Remedy] = {}
    for change in alternatives:
        for remedy in _as_remedies(change, m, kb, keep):
            name = remedy.id
            if name in found and change.kind == "one-gpu" and change.build is not None:
                name = f"install-torch-{change.build.variant}"
            found.setdefault(name, replace(remedy, id=name))
    return tuple(found.values())


def _as_remedies(change: Alternative, m: Machine, kb: Knowledge, keep: OptStr) -> Remedies:
    build = change.build
    match change.kind:
        case "one-gpu" if platform_blocker(m) is None:
            return _for_some_gpus(change, m, kb)
        case "driver" if change.branch is not None:
            return _noted(change, *upgrade_driver(m, kb, change.branch))
        case "compat" if build is not None:
            return _noted(change, *forward_compat(m, kb, build.cuda))
        case "python":
            return install_python(m, kb, change.pythons, keep)
        case "platform" if m.platform.libc != "musl" and build is not None:
            return install_python(m, kb, build.pythons, keep)
        case "conda" if change.cuda is not None:
            return (_from_conda_forge(change, m, kb),)
        case "glibc" | "platform" | "one-gpu":
            title = "Run torch on a supported system"
            return (Remedy(id="other-platform", title=title, where="admin", manual=change.text),)
        case "cpu" if build is None or m.torch.installed is not False:
            # An installed torch runs on the CPU as it is.
            return (_step(id="other-gpu", title="Train without this GPU", manual=change.text),)
        case "cpu" if build is not None:
            return _noted(change, remedy_for(build, m, kb))
    return ()


def _from_conda_forge(change: Alternative, m: Machine, kb: Knowledge) -> Remedy:
    """An environment of its own, with the build of another publisher."""
    torch, conda = kb.newest_on_conda("conda-forge"), manager(m, "mamba", "micromamba", "conda")
    create = f"create -y -n torch -c conda-forge pytorch-gpu={torch} cuda-version={change.cuda}"
    beside = (name for name in ("torchvision", "torchaudio") if m.package(name))
    argv = (conda or "conda", *create.split(), *beside)
    return _step(
        id="conda-torch",
        title=f"Create a conda environment with conda-forge's torch {torch} and CUDA {change.cuda}",
        commands=(argv,) if conda else (),
        manual=None if conda else f"With conda or mamba (from Miniforge), run: {' '.join(argv)}",
        tool="conda",
        note=change.text,
    )


def _noted(change: Alternative, *remedies: Remedy) -> Remedies:
    """The remedies with what they make possible: torch itself is the step after them."""
    return tuple(replace(remedy, note=joined(change.text, remedy.note)) for remedy in remedies)


def install_python(
    m: Machine, kb: Knowledge, versions: Iterable[str], keep: OptStr = None
) -> Remedies:
    """A new environment with the nearest of these Pythons ("3.12"), and torch in it.

    Of those that have wheels of most of what is wanted there. keep: a wish for a release of torch.
    """
    known = [Version(name) for name in versions if not name.endswith("t")]
    if not known:
        return ()
    # The closest to the present Python: the newest below it, else the oldest above it.
    present = m.python.version.release[:2] if m.python.version else (99,)
    near = sorted(known, reverse=True)
    near.sort(key=lambda version: version.release > present)
    near = near if near[0].release <= present else sorted(known)
    others = _wanted_beside(m, kb)
    made_of = {
        python: _new_change(m, kb, python, keep, others)
        for python in (near if others else near[:1])
    }
    wanted = max(made_of, key=lambda python: made_of[python][1])
    change = made_of[wanted][0]
    if change and (rest := _asked_beside(m, kb)):
        own = [line for line in change.then if name_of(line) != "numpy" or "numpy" not in rest]
        handled = {*map(name_of, (*change.install, *own)), *TORCH_FAMILY}
        more = (line for name, line in rest.items() if name not in handled)
        change = replace(change, then=(*own, *more))
    made = environment.new_environment(
        m, str(wanted), replace(change, remove=()) if change else None
    )
    title = f"Create a new environment with Python {wanted}"
    files = (line for install in m.installs or () for line in install.requirements)
    named = change is not None and any(line.startswith("-r ") for line in files)
    again = any(install.refused and _wants_more(install) for install in m.installs or ())
    note = _REST if named else _AGAIN if again else None
    return (_step(id="install-python", title=title, **_made(made, note)),)


def _wants_more(install: Install) -> bool:
    """Whether what somebody wanted to install is more than torch and its companions."""
    return bool({*map(name_of, install.requirements)} - {*TORCH_FAMILY})


_AGAIN = "Then repeat your installation in the new environment."
_REST = "Then install the rest of your requirements file in the new environment."


def _wanted_beside(m: Machine, kb: Knowledge) -> dict[str, str]:
    """The programs with wheels of their own that are installed or asked for -> their release.

    "" for one that is asked for without a release.
    """
    names = kb.companion_names - COMPILED_HERE - {"torch", "triton", "cuda-bindings"}
    lines = (cut(line) for install in m.installs or () for line in install.requirements)
    wanted = {
        line.name: line.specifier[2:] if _EXACT.fullmatch(line.specifier) else ""
        for line in lines
        if line and line.name in names
    }
    present = (package for package in m.packages or () if package.name in names)
    return wanted | {package.name: _public(package.version) or "" for package in present}


def _asked_beside(m: Machine, kb: Knowledge) -> dict[str, str]:
    """What the author pins in one file, or command, with torch: name -> requirement."""
    texts = [install.requirements for install in m.installs or ()]
    files = [lines for lines in texts if any(name_of(line) == "torch" for line in lines)]
    pins = filter(None, (cut(line) for lines in files for line in lines))
    return {
        asked.name: f"{asked.name}{asked.specifier}"
        for asked in pins
        if asked.name in USUAL | kb.companion_names and _EXACT.fullmatch(asked.specifier)
    }


def _new_change(
    m: Machine, kb: Knowledge, python: Version, keep: OptStr, others: dict[str, str]
) -> tuple[PackageChange | None, int]:
    """What is installed with that Python, and how many of the other packages have a wheel there."""
    changed = emptied(m, python)
    # The release nearest to the one that is there, with the companions that are.
    build = best_build(replace(changed, torch=m.torch), kb, keep=keep).build
    if build is None:
        return None, -1
    family = (Distribution(name=name, version="") for name in COMPANIONS if name in others)
    change = remedy_for(build, replace(changed, packages=tuple(family)), kb).packages
    pins: dict[str, str] = {}
    for name, release in others.items():
        if name in COMPANIONS:
            continue
        question = Question(Distribution(name=name, version=release), build, changed, kb)
        fitting = [one for one in question.fitting() if question.serves_cuda(one) is not False]
        best = nearest(fitting, release) if release else next(iter(fitting), None)
        if best and question.successor():
            pins[name] = f"{name}=={release if release in fitting else best}"
    beside = [
        pins.pop(name) for name in [*pins] if kb.on_torch_index(name, pins[name].partition("==")[2])
    ]
    if change is not None and beside:
        index = change.index or f"{TORCH_INDEX}/{build.variant}"
        change = replace(change, install=(*change.install, *beside), index=index)
    if change is not None and pins:
        change = replace(change, then=(*change.then, *pins.values()))
    return change, len(beside) + len(pins)


def emptied(m: Machine, python: OptVersion = None) -> Machine:
    """The same machine with an empty environment: no torch, no packages.

    python: its Python where it is another than the examined one, then a common 64-bit one. What
    the old torch saw of the GPUs stays known.
    """
    own = m.python
    if python is not None:
        own = replace(own, version=python, free_threaded=False, bits=64, implementation="CPython")
    torch = type(m.torch)(installed=False, imported=m.torch.imported)
    return replace(m, python=own, torch=torch, packages=())


def run_elsewhere(m: Machine, kb: Knowledge) -> Remedies:
    """A system that torch is built for: of a container another image, else another computer."""
    step = partial(Remedy, id="other-platform", risk=Risk.PROCESS)
    if m.container.kind not in ("docker", "podman", "containerd") or m.platform.libc != "musl":
        text = (
            "Use a system with glibc and a 64-bit Python: for example, another computer or a "
            "container from the python:3.12-slim image."
        )
        return (step(title="Run torch on a supported platform", where="admin", manual=text),)
    platform = replace(m.platform, libc="glibc", glibc=_OF_THE_IMAGE)
    version = m.python.version and Version(f"{m.python.version.major}.{m.python.version.minor}")
    there = emptied(replace(m, platform=platform), version)
    if (build := best_build(there, kb).build) is None:
        there = emptied(there, Version("3.12"))
        build = best_build(there, kb).build
    pins, index = "torch", None
    if build is not None:
        paired = f" torchvision=={build.torchvision}" if build.torchvision else ""
        pins, index = f"torch=={build.torch}{paired}", None if build.default else build.index
    source = f" --index-url {index}" if index else ""
    image = f"python:{python_of(there) or '3.12'}-slim"
    lines = f"FROM {image}\nRUN pip install {pins}{source}"
    return (
        step(
            title=f"Base the image on {image}, which has glibc",
            where="container",
            edits=(Edit(file="Dockerfile", what=lines),),
            manual="Replace the FROM line and the line that installs torch, build the image again, "
            "and run it with the same options as before.",
        ),
    )


_OF_THE_IMAGE = Version("2.36")
"""The glibc of the python images, which are Debian 12 or newer."""
_SCHEDULED = "The scheduler assigns a job's GPUs: request GPUs of a single type."


def leave_out(m: Machine, kb: Knowledge, hidden: Collection[Version]) -> Remedies:
    """Hide the GPUs of these capabilities from programs; () where none or all of them would go."""
    gpus = seen_gpus(m, kb)
    gone = [gpu for gpu in gpus if gpu.capability in hidden]
    stay = [gpu for gpu in gpus if gpu.capability not in hidden]
    if not gone or not stay:
        return ()
    step = partial(Remedy, id="hide-gpu", title=f"Hide {named(gone)} from programs")
    if keeper_of(m) == "admin":
        return (step(where="admin", manual=_SCHEDULED),)
    note = "Programs started with this setting see only the remaining GPUs."
    return (step(risk=Risk.PROCESS, variables=variables_for(stay, redacted=m.redacted), note=note),)


def _for_some_gpus(change: Alternative, m: Machine, kb: Knowledge) -> Remedies:
    """The build that fits without some of the GPUs, and what hides those."""
    hiding = leave_out(m, kb, change.hidden)
    if change.build is None or not hiding:
        return ()
    install = remedy_for(change.build, m, kb)
    gone = hiding[0].title.removeprefix("Hide ").removesuffix(" from programs")
    note = joined(
        f"No single build supports all GPUs in this machine; this one does not support {gone}.",
        install.note,
    )
    settings = hiding[0].variables
    return (
        replace(
            install,
            title=f"{install.title} for all GPUs except {gone}",
            variables=settings,
            note=note,
        ),
    )


_BACKENDS = {"rocm": "ROCm", "xpu": "Intel XPU"}
_MOST_REASONS = 6


def wished_torch(m: Machine, kb: Knowledge, choice: Choice, wish: str) -> Remedies:
    """Alternatives that keep to the wish, the preferred one first."""
    backend, build = _BACKENDS.get(m.torch.build or ""), choice.build
    step = partial(_step, id="install-torch")
    if backend is not None and not (build and build.cuda):
        text = (
            f"This environment has a {backend} build, but cudadoctor only has data about builds "
            f"for NVIDIA GPUs and for the CPU. Install torch {wish} from PyTorch's {backend} "
            "index."
        )
        return (step(title=f"Install the {backend} build of torch {wish}", manual=text),)
    if build is not None:
        return (remedy_for(build, m, kb),)
    keeping = (
        change for change in choice.alternatives if change.kind not in ("release", "cpu", "jetson")
    )
    remedies = instead(m, kb, keeping, wish)
    if any(remedy.id == "install-torch" for remedy in remedies):
        return remedies
    # Why it cannot be, and what would help, as words: another release is nobody's wish.
    more = len(choice.why_not) - _MOST_REASONS
    texts = (
        f"Choose a release other than torch {wish}, or fix the problem that keeps that "
        "release from running on this machine.",
        *choice.why[:1],
        *(f"{other.variant}: {other.reason}" for other in choice.why_not[:_MOST_REASONS]),
        f"{more} older variants are not compatible either." if more > 0 else None,
        *(change.text for change in choice.alternatives),
    )
    title = f"No build of torch {wish} is compatible with this machine"
    return (step(title=title, manual=joined(*texts)), *remedies)
