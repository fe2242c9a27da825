"""Packages that belong to torch and are installed: what becomes of each when torch changes.

The release that the tables hold for the new torch goes into the same change. Where they hold none,
a package whose code is bound to the old torch is taken out (its import would end in an error) or,
with the fitting nvcc at hand, rebuilt; a sentence says which.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace
from packaging.version import Version

from cudadoctor.knowledge import Knowledge, TorchBuild
from cudadoctor.knowledge.companions import LAST_AUDIO
from cudadoctor.model.machine import (
    AUTHOR,
    BEFORE,
    Distribution,
    Machine,
    OptBool,
    OptInt,
    OptStr,
    OptVersion,
    ProjectFile,
    Strings,
)
from cudadoctor.model.requirements import (
    COMPANIONS,
    EXTENSIONS,
    SHARED,
    TORCH_FAMILY,
    Asked,
    admits,
    cut,
    exactly,
    marker_holds,
    marker_variables,
)
from cudadoctor.model.versions import version_of
from cudadoctor.solver.demand import (
    demand_of,
    named,
    of_capability,
    platform_of,
    python_of,
    seen_gpus,
    variables_for,
)
from cudadoctor.solver.fit import block
from cudadoctor.solver.reasons import companion_of, last_audio, without_cudnn

PYG = ("pyg-lib", "torch-cluster", "torch-scatter", "torch-sparse", "torch-spline-conv")
"""The compiled parts of torch-geometric, which itself is plain Python and stays."""


def pyg_page(torch: Version, variant: str) -> str:
    """Where PyG's wheels for that torch and variant lie."""
    return f"https://data.pyg.org/whl/torch-{torch.major}.{torch.minor}.0+{variant}.html"


_GIT = "git+https://github.com"
_SOURCES = {
    "apex": f"{_GIT}/NVIDIA/apex.git",
    "detectron2": f"{_GIT}/facebookresearch/detectron2.git",
    "nvdiffrast": f"{_GIT}/NVlabs/nvdiffrast.git",
    "pytorch3d": f"{_GIT}/facebookresearch/pytorch3d.git@stable",
    "tinycudann": f"{_GIT}/NVlabs/tiny-cuda-nn.git#subdirectory=bindings/torch",
}
"""Extensions that PyPI has not; a package of that name there is another project."""
FROM_SOURCE = frozenset({*_SOURCES, "causal-conv1d", "deepspeed", "mamba-ssm", "mmcv", "mmcv-full"})
_OPTIONS = {
    "apex": " --config-settings '--build-option=--cpp_ext' --config-settings "
    "'--build-option=--cuda_ext'",
}


def rebuilt(name: str, release: str, torch: Version, cuda: OptVersion, m: Machine) -> str:
    """How an extension comes anew for a torch and its CUDA, as a sentence with the commands.

    release: the installed one, "" where it is not known.
    """
    if name in ("mmcv", "mmcv-full"):
        name = "mmcv-full" if release.startswith("1.") else name
        variant = f"cu{cuda.major}{cuda.minor}" if cuda else "cpu"
        page = f"https://download.openmmlab.com/mmcv/dist/{variant}"
        page += f"/torch{torch.major}.{torch.minor}.0/index.html"
        pin = f"{name}=={release}" if release else name
        return (
            "run `python -m pip uninstall -y mmcv mmcv-full` and `python -m pip install "
            f"--no-cache-dir --no-build-isolation {pin} -f {page}`."
        )
    pin = _SOURCES.get(name) or (f"{name}=={release}" if release else name)
    command = "python -m pip install --force-reinstall --no-deps --no-build-isolation "
    command += f"--no-cache-dir{_OPTIONS.get(name, '')} '{pin}'"
    if cuda is None or m.platform.system == "Windows":
        return f"run `{command}`."
    kits = (kit for kit in m.build.toolkits or () if kit.cuda and kit.cuda.major == cuda.major)
    home = next((kit.path for kit in kits if kit.path and not m.redacted), None)
    home = home or f"/usr/local/cuda-{cuda}"
    return f"run `CUDA_HOME={home} {command}`. The build needs the nvcc of CUDA {cuda.major}."


class Fate(Struct, frozen=True, kw_only=True):
    """What becomes of one package. pin: to install; with_torch: from torch's index, in one go.

    leaves: the old one must go first. find_links: the page that has the wheel.
    """

    pin: OptStr = None
    with_torch: bool = False
    leaves: bool = False
    find_links: OptStr = None
    note: OptStr = None


class Question(NamedTuple):
    """One installed package beside the torch that is to come."""

    package: Distribution
    build: TorchBuild
    machine: Machine
    kb: Knowledge

    @property
    def place(self) -> OptStr:
        """The platform of the wheels, None where it is not known."""
        return self.build.platform or None

    @property
    def changes(self) -> bool:
        """Whether compiled code of the old torch will not run with the new one."""
        return _changes(self.build, self.machine)

    @property
    def made_for_it(self) -> bool:
        """Whether the package says itself that it was compiled for the new torch and its CUDA."""
        torch, cuda = self.package.torch, self.package.cuda
        same = torch is not None and torch.release[:2] == self.build.torch.release[:2]
        return same and cuda is not None and _major(cuda) == _major(self.build.cuda)

    @property
    def name(self) -> str:
        """The package with its version, for a sentence."""
        return f"{self.package.name} {self.package.version}"

    def runs_here(self, release: str) -> bool:
        """Whether a release and what it pins have wheels for this Python here, as far as known."""
        name, place, python = self.package.name, self.place, python_of(self.machine)
        new = told(Distribution(name=name, version=release), self.kb)
        pins = (
            (asked.name, asked.specifier[2:])
            for asked in asked_by(new, self.kb.companion_names, self.machine)
            if asked.specifier.startswith("==") and asked.name not in TORCH_FAMILY
        )
        wheels = ((name, release), *pins)
        here = all(self.kb.has_wheel(*wheel, place, python) for wheel in wheels)
        return here and self.takes_python(release)

    def takes_python(self, release: str) -> bool:
        """Whether a release takes this Python, as far as that is known."""
        wanted = self.kb.companion_python(self.package.name, release)
        python = self.machine.python.version
        return not wanted or python is None or admits(wanted, python)

    def serves_cuda(self, release: str) -> OptBool:
        """Whether a release has binaries for the build's CUDA, None where that is not known.

        What was compiled for one torch alone has those of its default build.
        """
        name = self.package.name
        known = self.kb.companion_cuda(name, release, self.place)
        if known is not None:
            return self.build.cuda in (None, *known)
        bound = name not in COMPANIONS and self.kb.built_against(name, release)
        return False if bound and not has_usual_cuda(self.build, self.kb) else None

    def fitting(self) -> Strings:
        """The releases for the new torch that run here: the installed one, then the newest first.

        Those that are asked for, where there are any.
        """
        name = self.package.name
        found = tuple(filter(self.runs_here, self.kb.companion(name, self.build.torch)))
        here = self.package.version.partition("+")[0]
        found = admitted(name, found, self.machine, self.kb)
        return tuple(sorted(found, key=lambda one: one != here))

    def successor(self) -> OptStr:
        """The release that comes in its place, None where none does.

        What is bound to a CUDA has its wheels for the default build of that torch alone.
        """
        if self.package.name in EXTENSIONS and not has_usual_cuda(self.build, self.kb):
            return None
        beside = companions_for(self.build, self.machine, self.kb).items()
        lines = (self.kb.companion_pins(name, release) for name, release in beside if release)
        asked = filter(None, map(cut, chain.from_iterable(lines)))
        pins = [one.specifier for one in asked if one.name == self.package.name]
        found = self.fitting()
        fitting = [one for one in found if all(_admitted(pin, one) for pin in pins)] or found
        keeping = [one for one in fitting if not self.displaced_by(one)] or fitting
        return nearest(keeping, self.package.version)

    def displaced_by(self, release: str) -> dict[str, str]:
        """What is installed and shared, and this release refuses -> what it requires of it."""
        new = told(Distribution(name=self.package.name, version=release), self.kb)
        return {
            asked.name: _with_end(asked.specifier, present.version)
            for asked in asked_by(new, SHARED, self.machine)
            for present in filter(None, [self.machine.package(asked.name)])
            if not _admitted(asked.specifier, present.version)
        }

    def pinned(self, release: str, **more: Any) -> Fate:
        """That release in place of the installed one."""
        return Fate(pin=exactly(self.package.name, release), leaves=True, **more)

    def stays(self) -> Fate:
        """It stays, and nobody knows whether it fits."""
        text = f"{self.name} will be kept, but it may not work with torch {self.build.torch}."
        return Fate(note=text)

    def goes(self) -> Fate:
        """It is taken out."""
        kind = f"CUDA {self.build.cuda}" if self.build.cuda else "the CPU"
        text = (
            f"{self.name} will be removed: it was compiled for a different torch version, and "
            f"there is no known release for torch {self.build.torch} with {kind} on this "
            "platform."
        )
        return Fate(leaves=True, note=text)


def fate_of(package: Distribution, build: TorchBuild, m: Machine, kb: Knowledge) -> Fate | None:
    """What becomes of an installed package, None for one that is nobody's companion here."""
    judge = _JUDGES.get(package.name, _on_a_page)
    return judge(Question(package, build, m, kb))


def _on_a_page(q: Question) -> Fate | None:
    """The same release for another build of torch, where its project compiled it for that one."""
    release, python = _public(q.package.version), python_of(q.machine)
    wheel = q.kb.wheel_on_page(q.package.name, release, q.build, python) if q.changes else None
    return q.pinned(wheel[0], find_links=wheel[1] or None) if wheel else None


def _xformers(q: Question) -> Fate:
    """One release for one torch; from 0.0.22.post7 on its builds lie on torch's own index.

    From 0.0.35 on it keeps to torch's stable ABI: one release serves that torch and each later one.
    """
    made_for = q.kb.built_against("xformers", q.package.version)
    fits = _public(q.package.version) in q.kb.companion("xformers", q.build.torch)
    if not q.changes and (q.build.cuda is None or not (made_for or fits)):
        return q.stays()
    if not q.changes and fits and q.serves_cuda(q.package.version):
        return Fate()
    release = next(filter(q.serves_cuda, q.fitting()), None)
    beside = release is not None and q.kb.on_torch_index("xformers", release)
    return q.pinned(release, with_torch=beside) if release else q.goes()


def _flash_attn(q: Question) -> Fate:
    """Source on PyPI; its installation fetches a wheel where one was made for torch and CUDA."""
    if q.made_for_it:
        return Fate()
    if not q.changes:
        known = q.package.version in q.kb.companion("flash-attn", q.build.torch)
        return Fate() if known and q.takes_python(q.package.version) else q.stays()
    python, cuda = python_of(q.machine), q.build.cuda
    if q.build.platform == "linux_x86_64" and python is not None and cuda is not None:
        wheels = q.kb.prebuilt_flash(q.build.torch, cuda, python)
        if release := nearest(wheels, q.package.version):
            return q.pinned(release)
    return _compiled(q)


def _compiled(q: Question) -> Fate:
    """Source only, and no table of wheels: compiled where an nvcc of the CUDA major is at hand."""
    if not q.changes or q.made_for_it:
        return Fate()
    known = (toolkit.cuda for toolkit in q.machine.build.toolkits or ())
    nvcc = next((cuda for cuda in known if cuda and _major(cuda) == _major(q.build.cuda)), None)
    if nvcc is None or q.build.platform.startswith("windows"):
        return q.goes()
    text = f"{q.name} will be rebuilt for torch {q.build.torch} with nvcc {nvcc}, "
    return q.pinned(q.package.version.partition("+")[0], note=f"{text}which can take an hour.")


def _bitsandbytes(q: Question) -> Fate:
    """One wheel with binaries for many CUDA releases: it stays while it has the right one."""
    wanted = q.kb.companion_torch("bitsandbytes", q.package.version)
    serves = q.serves_cuda(q.package.version)
    if wanted is None and serves is None:
        return q.stays() if q.changes else Fate()
    admitted = wanted is None or admits(wanted, q.build.torch)
    if admitted and serves is not False and q.runs_here(q.package.version):
        return Fate()
    fitting = (release for release in q.fitting() if q.serves_cuda(release) is not False)
    release = nearest(fitting, q.package.version)
    return q.pinned(release) if release else q.goes()


def _triton_windows(q: Question) -> Fate:
    """On Windows triton is a project of its own, and one minor release belongs to one torch."""
    fitting, minor = q.fitting(), q.package.version.split(".")[:2]
    if any(release.split(".")[:2] == minor for release in fitting):
        return Fate()
    if fitting:
        return q.pinned(max(fitting, key=_order))
    if not q.changes:
        return q.stays()
    text = (
        f"{q.name} will be removed, because there is no known release for torch {q.build.torch}; "
        "torch.compile does not work without it."
    )
    return Fate(leaves=True, note=text)


def _torchcodec(q: Question) -> Fate:
    """Its library loads with one minor release of torch, which its metadata does not name.

    Some releases on PyPI are for one CUDA major alone; torch's own index has each for every CUDA.
    """
    old, here = q.machine.torch.version, _public(q.package.version)
    same = not q.changes or (old and old.release[:2] == q.build.torch.release[:2])
    fitting = q.fitting()
    if not fitting:
        return Fate() if same else q.stays()
    on_pypi = q.kb.companion_cuda("torchcodec", fitting[0], q.place) or (None,)
    cudas = (q.package.cuda,) if "+" in q.package.version else on_pypi
    other = _major(q.build.cuda) not in {_major(cuda or q.build.cuda) for cuda in cudas}
    return q.pinned(fitting[0], with_torch=other) if other or fitting[0] != here else Fate()


def _torchao(q: Question) -> Fate:
    """It declares no torch, and so does every release of it."""
    return q.stays() if q.changes else Fate()


def _pyg(q: Question) -> Fate:
    """Wheels for each torch and variant on a page of PyG's own."""
    if not q.changes:
        return Fate()
    torch, variant, place = q.build.torch, q.build.variant, q.build.platform
    page = pyg_page(torch, variant)
    release = q.kb.pyg_release(q.package.name, torch, variant, place, python_of(q.machine))
    if release is not None:
        return q.pinned(release, find_links=page)
    text = (
        f"{q.name} will be removed: there is no known wheel for torch {torch} {variant}. If {page} "
        "has a matching wheel, install it with --find-links and that URL."
    )
    return Fate(leaves=True, note=text)


def _transformer_engine_torch(q: Question) -> Fate:
    """The part of transformer-engine that is compiled: it comes with that package."""
    whole = q.machine.package("transformer-engine")
    return Fate(leaves=q.changes and not q.made_for_it) if whole else _compiled(q)


def _torch_tensorrt(q: Question) -> Fate:
    """One minor release for one of torch, compiled for the CUDA of its default build."""
    asked = q.kb.companion_torch("torch-tensorrt", q.package.version)
    if asked and admits(asked, q.build.torch) and (not q.changes or has_usual_cuda(q.build, q.kb)):
        return Fate()
    release = q.successor()
    if release:
        return q.pinned(release)
    return q.goes() if q.changes else q.stays()


def nearest(releases: Iterable[str], installed: str) -> OptStr:
    """The installed release, else the newest patch of the nearest minor one: above, else below."""
    found, here = sorted(releases, key=_order), _order(installed)
    if installed.partition("+")[0] in found:
        return installed.partition("+")[0]
    above = [_order(release)[:2] for release in found if _order(release) > here]
    last = (release for release in reversed(found) if _order(release)[:2] in above[:1] or not above)
    return next(last, None)


def _order(text: str) -> tuple[int, ...]:
    version = version_of(text)
    return (*version.release, version.post or 0) if version else ()


_JUDGES: dict[str, Callable[[Question], Fate | None]] = {
    "bitsandbytes": _bitsandbytes,
    "causal-conv1d": _compiled,
    "flash-attn": _flash_attn,
    "mamba-ssm": _compiled,
    "torch-tensorrt": _torch_tensorrt,
    "torchao": _torchao,
    "torchcodec": _torchcodec,
    "transformer-engine": _compiled,
    "transformer-engine-torch": _transformer_engine_torch,
    "triton-windows": _triton_windows,
    "xformers": _xformers,
    **dict.fromkeys(PYG, _pyg),
}

JUDGED = frozenset(_JUDGES)
"""Packages whose fate is decided here; of others with compiled code a sentence warns."""


def companions_for(build: TorchBuild, m: Machine, kb: Knowledge) -> dict[str, OptStr]:
    """The companions to install with a build -> their release, None where there is none."""
    wanted = [name for name in COMPANIONS if m.package(name) or name in _pinned_along(m, kb)]
    if m.torch.installed is False and not wanted:
        wanted = ["torchvision"] if build.torchvision else []
    return {name: _taken(name, build, m, kb) for name in wanted}


def _pinned_along(m: Machine, kb: Knowledge) -> set[str]:
    """What packages of a report pin beside torch, and so brought: few reports list everything.

    A package that refuses the torch that is there brought nothing.
    """
    packages = m.packages or () if m.look == "report" else ()
    here = str(m.torch.version) if m.torch.version else None
    return {
        asked.name
        for package in (told(one, kb) for one in packages)
        if all(_admitted(one.specifier, here) for one in asked_by(package, ("torch",), m))
        for asked in asked_by(package, COMPANIONS, m)
        if asked.specifier.startswith("==")
    }


def _taken(name: str, build: TorchBuild, m: Machine, kb: Knowledge) -> OptStr:
    """The release; None where it refuses this very Python, or has no wheel for it here."""
    release, python = companion_of(name, build, kb), m.python.version
    if release is None or python is None:
        return release
    last = last_audio(build, kb) if name == "torchaudio" else None
    if last and python_of(m) not in (None, *last.pythons):
        return None
    if kb.lacks_wheel(name, release, python_of(m) or "", build.platform):
        return None
    wanted = kb.companion_python(name, release)
    return release if not wanted or len(python.release) < 3 or admits(wanted, python) else None


class GivenUp(NamedTuple):
    """What does not work beside a build any more.

    unmet: what asks for other releases: a file of the project, or its author. lost: no release of
    it fits. moved: another release of its own comes in its place.
    """

    unmet: Strings = ()
    lost: Strings = ()
    moved: Strings = ()


def _each_once(m: Machine) -> list[Distribution]:
    """The packages; of several of one name the first, which an import finds."""
    first = {package.name: package for package in reversed(m.packages or ())}
    return [*first.values()][::-1]


def given_up(build: TorchBuild, m: Machine, kb: Knowledge) -> GivenUp:
    """The installed packages that a change to this build costs.

    A companion that comes along in another release costs nothing, unless another package pins it.
    """
    releases = {"torch": _installed_as(build)} | companions_for(build, m, kb)
    fates = {package.name: fate_of(package, build, m, kb) for package in _each_once(m)}
    for name, fate in fates.items():
        if fate and fate.leaves:
            releases[name] = fate.pin and fate.pin.partition("==")[2]
    found: dict[bool, list[str]] = {True: [], False: []}
    others: dict[str, OptStr] = {}
    for package in _each_once(m):
        other = package.name not in TORCH_FAMILY and not fates[package.name]
        if other and not below_floor(package.name, m, kb):
            refuses = any(
                not _admitted(asked.specifier, releases[asked.name])
                for asked in asked_by(told(package, kb), releases, m)
            )
            if refuses or _was_compiled_for_other(told(package, kb), build, m, kb):
                question = Question(package, build, m, kb)
                comes = question.successor()
                found[comes is not None].append(package.name)
                others[package.name] = comes
                shared = question.displaced_by(comes) if comes else {}
                found[True] += shared
                others |= {name: _least(specifier) for name, specifier in shared.items()}
    lost = (name for name, release in releases.items() if release is None and m.package(name))
    files = (file.name for file, _ in unmet(m, releases | others))
    return GivenUp(tuple(files), (*lost, *found[False]), tuple(dict.fromkeys(found[True])))


def _installed_as(build: TorchBuild) -> str:
    """The version that its wheel has in the environment: with its variant, unless from PyPI."""
    return str(build.torch) if build.default else f"{build.torch}+{build.variant}"


def unmet(m: Machine, releases: dict[str, OptStr]) -> Iterator[tuple[ProjectFile, Asked]]:
    """What files of the project require that these releases do not meet. None: it is not there."""
    for file in files_of(m):
        for asked in asked_by(file, releases, m):
            if not _admitted(asked.specifier, releases[asked.name]):
                yield file, asked


def files_of(m: Machine) -> tuple[ProjectFile, ...]:
    """What is required of the environment; what worked in it before is only preferred."""
    return tuple(file for file in m.python.files or () if file.name != BEFORE)


def admitted(name: str, releases: Strings, m: Machine, kb: Knowledge) -> Strings:
    """Those of a package's releases that are asked for; all of them where none is.

    The project's files and its author count before the other packages, what worked before last.
    """
    before = (file for file in m.python.files or () if file.name == BEFORE)
    packages = (told(package, kb) for package in m.packages or ())
    askers: tuple[Distribution | ProjectFile, ...] = (*files_of(m), *packages, *before)
    for who in askers:
        for asked in asked_by(who, (name,), m):
            releases = tuple(one for one in releases if _admitted(asked.specifier, one)) or releases
    return releases


def _least(specifier: str) -> OptStr:
    """The release that comes where a package that does not meet a specifier is replaced."""
    found = re.search(r"[>=]=([\d.]+\d)", specifier)
    return found[1] if found else None


def _with_end(specifier: str, installed: str) -> str:
    """The specifier up to the next minor release, or major one where it asks for another major.

    What came out later than the program that asks (transformers 5) may not work with it.
    """
    least = version_of(_least(specifier) or "")
    if least is None or re.search(r"<|==|~=", specifier):
        return specifier
    same = installed.partition(".")[0] == str(least.major)
    return (
        f"{specifier},<{least.major}.{least.minor + 1}"
        if same
        else f"{specifier},<{least.major + 1}"
    )


def told(package: Distribution, kb: Knowledge) -> Distribution:
    """The package with what its release requires, where only its name and version are known."""
    torch = None if package.requires else kb.companion_torch(package.name, package.version)
    pins = kb.companion_pins(package.name, package.version)
    return replace(package, requires=(f"torch{torch}", *pins)) if torch else package


def moved_along(build: TorchBuild, m: Machine, kb: Knowledge) -> tuple[Machine, Strings]:
    """The machine with each program that refuses this build in a release for it; their pins.

    With them what those require of the packages that programs share.
    """
    packages, moved, torch = [], [], _installed_as(build)
    shared: dict[str, str] = {}
    for package in _each_once(m):
        asked = asked_by(told(package, kb), ("torch",), m)
        here = package.name in TORCH_FAMILY or package.name in JUDGED
        here = here or below_floor(package.name, m, kb) is not None
        away = not here and not all(_admitted(line.specifier, torch) for line in asked)
        question = Question(package, build, m, kb)
        release = question.successor() if away else None
        if release is None:
            packages.append(package)
        else:
            moved.append(f"{package.name}=={release}")
            packages.append(told(Distribution(name=package.name, version=release), kb))
            shared |= question.displaced_by(release)
    packages = [
        replace(package, version=_least(shared[package.name]) or package.version)
        if package.name in shared
        else package
        for package in packages
    ]
    moved += [f"{name}{specifier}" for name, specifier in shared.items()]
    return replace(m, packages=tuple(packages)) if moved else m, tuple(moved)


def usual_build(build: TorchBuild, kb: Knowledge) -> TorchBuild:
    """The default build for CUDA of the same torch; the build itself where none is known."""
    same = (other for other in kb.builds_on(build.platform) if other.torch == build.torch)
    return next((other for other in same if other.default and other.cuda), build)


def has_usual_cuda(build: TorchBuild, kb: Knowledge) -> bool:
    """Whether a build has the CUDA major of its torch's default build.

    What pins one torch has wheels for that one only.
    """
    return _major(usual_build(build, kb).cuda) == _major(build.cuda)


def _admitted(specifier: str, release: OptStr) -> bool:
    """Whether a package that asks for this works with that release; None for one that goes."""
    version = version_of(release) if release else None
    return version is not None and admits(specifier, version)


def asked_by(
    who: Distribution | ProjectFile, names: Collection[str], m: Machine
) -> Iterator[Asked]:
    """What a package or file requires of these here, without what only its extras ask for."""
    for asked in filter(None, map(_cut, who.requires)):
        counts = asked.name in names and "extra" not in asked.marker
        if counts and (not asked.marker or marker_holds(asked.marker, marker_variables(m))):
            yield asked


_cut = lru_cache(maxsize=4096)(cut)


_COMPILED_AT_RUN_TIME = frozenset({"deepspeed"})
"""Nothing is bound to torch until the first run, except where an installation noted it."""


def _was_compiled_for_other(
    package: Distribution, build: TorchBuild, m: Machine, kb: Knowledge
) -> bool:
    """Whether it has compiled code that is bound to another torch than the build."""
    if package.name not in EXTENSIONS or not _changes(build, m) or fate_of(package, build, m, kb):
        return False
    if _major(package.cuda) not in (None, _major(build.cuda)):
        return True
    if package.torch is None:
        if package.name in _COMPILED_AT_RUN_TIME:
            return False
        # Who requires exactly one torch was built for it: for the build that its index has.
        exact = (asked.specifier for asked in asked_by(package, ("torch",), m))
        same = any(text.startswith("==") and admits(text, build.torch) for text in exact)
        return not same or not has_usual_cuda(build, kb)
    return package.torch.release[:2] != build.torch.release[:2]


_EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")
_LIBRARY = re.compile(r"nvidia-(?P<base>[a-z][a-z-]*?)-cu(?P<major>\d+)")
_TORCH_WHEELS = ("nvidia-", "cuda-", "triton", "pytorch-triton")
_SHARED = frozenset({"cudnn", "cusparselt", "nccl", "nvshmem"})
_FIRST_MAJOR_APART = 13  # From CUDA 13 on, the toolkit's own parts lie in a folder of their own.


def only_for_torch(packages: Iterable[Distribution]) -> Strings:
    """The nvidia-*, cuda-* and triton wheels that nothing but torch and its companions need."""
    packages = tuple(packages)
    below = _needed_by(TORCH_FAMILY, {package.name: package for package in packages})
    kept = kept_by_others(packages)
    return tuple(sorted(name for name in below - {*kept} if name.startswith(_TORCH_WHEELS)))


def kept_by_others(packages: Iterable[Distribution]) -> dict[str, str]:
    """Wheels of torch that another package needs as well -> that package."""
    installed = {package.name: package for package in packages}
    below = _needed_by(TORCH_FAMILY, installed)
    kept: dict[str, str] = {}
    for name in installed:
        if name not in below and name not in TORCH_FAMILY:
            needed = _needed_by((name,), installed, every_extra=True) & below
            wheels = (wheel for wheel in needed if wheel.startswith(_TORCH_WHEELS))
            kept |= {wheel: name for wheel in wheels if wheel not in kept}
    return kept


def collides(name: str, major: int) -> bool:
    """Whether a library's wheel shares its folder with its counterpart for another CUDA major."""
    found = _LIBRARY.fullmatch(name)
    if not found or int(found["major"]) == major:
        return False
    return found["base"] in _SHARED or max(int(found["major"]), major) < _FIRST_MAJOR_APART


def _needed_by(
    roots: Iterable[str], installed: dict[str, Distribution], *, every_extra: bool = False
) -> set[str]:
    """All that the roots require, directly or through others; torch itself is not entered.

    every_extra: count the roots' optional requirements too, since nobody knows whether they were
    asked for. Below the roots, only the extras that were asked for count.
    """
    roots = tuple(roots)
    seen = set()
    open_ends = [(name, frozenset({"*"} if every_extra else ())) for name in roots]
    while open_ends:
        end = name, extras = open_ends.pop()
        if end in seen or name not in installed:
            continue
        seen.add(end)
        for asked in filter(None, map(cut, installed[name].requires)):
            wanted = set(_EXTRA.findall(asked.marker))
            if asked.name not in TORCH_FAMILY and (not wanted or {"*", *wanted} & extras):
                open_ends.append((asked.name, frozenset(asked.extras)))
    return {name for name, _ in seen} - {*roots}


def _broken_extensions(build: TorchBuild, m: Machine, kb: Knowledge) -> Iterator[str]:
    """Installed packages whose compiled code will not fit the new torch."""
    for package in m.packages or ():
        alive = below_floor(package.name, m, kb) is None
        if alive and _was_compiled_for_other(told(package, kb), build, m, kb):
            release = _public(package.version)
            fitting = next(iter(kb.companion(package.name, build.torch)), release)
            after = f"for torch {build.torch}, install {package.name} {fitting}."
            if fitting == release:
                after = rebuilt(package.name, release, build.torch, build.cuda, m)
                after = f"after you switch to torch {build.torch}, {after}"
            for_usual = kb.companion_pins(package.name, package.version)
            if for_usual and not has_usual_cuda(build, kb):
                after = f"its wheels do not work with torch {build.torch} ({build.variant})."
            present = f"{package.name} {package.version} was compiled for the installed torch"
            yield f"{present}; {after}"


def _conflicts(build: TorchBuild, m: Machine, kb: Knowledge) -> Iterator[str]:
    """Installed programs that refuse what will be there, and did not refuse what is there now."""
    releases: dict[str, OptStr] = {"torch": _installed_as(build), **companions_for(build, m, kb)}
    here = {name: package.version for name in releases if (package := m.package(name))}
    here["torch"] = m.torch.named
    for package in m.packages or ():
        if package.name in TORCH_FAMILY or package.name in JUDGED:
            continue
        if below_floor(package.name, m, kb) or _was_compiled_for_other(
            told(package, kb), build, m, kb
        ):
            continue  # That says more.
        for asked in asked_by(told(package, kb), releases, m):
            release, now = releases[asked.name], here.get(asked.name)
            if _admitted(asked.specifier, release) or not _admitted(asked.specifier, now):
                continue
            beside = f"with {asked.name} {release}" if release else f"without {asked.name}"
            wanted = f"{package.name} {package.version} requires {asked.name}{asked.specifier}"
            yield f"{wanted}; it may not work {beside}."
            break


def _lines_to_change(build: TorchBuild, m: Machine, kb: Knowledge) -> Iterator[str]:
    """Lines of the project's files that ask for another release; its own tool rewrites them."""
    for file, asked in () if m.python.project else unmet(m, _beside(build, m, kb)):
        wanted = f"{asked.name}{asked.specifier}"
        if file.name == AUTHOR:
            yield f"You asked for {wanted}; with torch {build.torch}, that is not possible."
        elif file.name.endswith(".lock"):
            yield f"{file.name} pins {wanted}: update it as well."
        else:
            yield f"{file.name} requires {wanted}: change that requirement as well."


def _beside(build: TorchBuild, m: Machine, kb: Knowledge) -> dict[str, OptStr]:
    """What is there with a build -> its release; None for what goes."""
    releases: dict[str, OptStr] = {package.name: package.version for package in _each_once(m)}
    return releases | {"torch": _installed_as(build), **companions_for(build, m, kb)}


def unmet_by_author(build: TorchBuild, m: Machine, kb: Knowledge) -> Iterator[str]:
    """What a report's author demands and a build takes away, or has in an older release only."""
    there, _ = moved_along(build, m, kb)
    releases = _beside(build, there, kb)
    for file, asked in unmet(there, releases):
        older = _order(releases[asked.name] or "") < _order(_least(asked.specifier) or "")
        if file.name == AUTHOR and asked.name != "torch" and older:
            yield f"{asked.name}{asked.specifier}"


def _below_floors(m: Machine, kb: Knowledge) -> Iterator[str]:
    """Installed packages that serve none of the GPUs, whichever torch is beside them."""
    for package in m.packages or ():
        if floor := below_floor(package.name, m, kb):
            yield unserved(package.name, floor)


def below_floor(name: str, m: Machine, kb: Knowledge) -> OptVersion:
    """The oldest GPU that a package serves, where all that are here are older; else None."""
    floor = kb.capability_floor(name)
    gpus = seen_gpus(m, kb) if floor else []
    old = floor and gpus and all(gpu.capability < floor for gpu in gpus if gpu.capability)
    return floor if old else None


def unserved(name: str, floor: Version) -> str:
    """The sentence for it."""
    return (
        f"{name} needs a GPU with compute capability {floor} or higher: it will not run on the "
        "GPUs in this machine, whichever torch is installed."
    )


def caveats(build: TorchBuild, m: Machine, kb: Knowledge, lost: Strings) -> Iterator[str]:
    """A sentence for each thing to know first. lost: companions that have no release for it."""
    for name in lost:
        paired = {"torchvision": build.torchvision, "torchaudio": build.torchaudio}.get(name)
        away = "removed" if m.package(name) else "left out"
        if name == "torchaudio" and build.cuda and build.torch > Version(LAST_AUDIO):
            yield (
                f"The last torchaudio release, {LAST_AUDIO}, has no wheel for this Python with "
                f"CUDA {build.cuda}, so torchaudio is {away}."
            )
        elif paired is None:
            yield f"{name} has no release for torch {build.torch}, so it is {away}."
        else:
            python = f"{m.python.version}{'t' if m.python.free_threaded else ''}"
            yield f"No wheel of {name} {paired} for Python {python} is known, so it is {away}."
    yield from _broken_extensions(build, m, kb)
    yield from _conflicts(build, m, kb)
    yield from _lines_to_change(build, m, kb)
    if build.cuda is None:
        return
    yield from _below_floors(m, kb)
    demand = demand_of(m, kb) if platform_of(m) else None
    if demand and len(m.gpus or ()) > 1:
        # A GPU that no torch serves while others are served.
        gpus = seen_gpus(m, kb)
        if gone := of_capability(gpus, demand.aside):
            stay = [gpu for gpu in gpus if gpu not in gone]
            settings = variables_for(stay, redacted=m.redacted).items()
            words = " and ".join(f"{name}={value}" for name, value in settings)
            yield f"No torch build supports {named(gone)}; to use only the other GPUs, set {words}."
    if demand:
        # What is wrong with a build that is taken because no sounder one fits.
        if block(build, demand) == "contested":
            disputed = "Sources disagree on whether this build has code for the GPU"
            yield f"{disputed}: run cudadoctor check after you install it."
        yield from filter(None, [without_cudnn(build, demand)])
    for wheel, owner in kept_by_others(m.packages or ()).items():
        if collides(wheel, build.cuda.major):
            yield (
                f"{owner} needs {wheel}, which installs into the same folder as the new "
                f"libraries. If you need {owner} as well, use a new environment."
            )


LIBRARIES_BYTES = 2_000_000_000
"""Wheels of the CUDA libraries that a CUDA build for Linux brings (measured: 1.8 to 2.2 GB)."""


def download_of(build: TorchBuild, kb: Knowledge) -> OptInt:
    """About how many bytes: the wheel, or that of a like variant, and its libraries."""
    wheel = build.download_bytes or next(
        (
            like.download_bytes
            for like in kb.builds_on(build.platform)
            if like.download_bytes
            and like.torch == build.torch
            and (like.cuda is None) == (build.cuda is None)
        ),
        None,
    )
    if wheel is None:
        return None
    libraries = build.cuda is not None and build.platform.startswith("linux")
    return wheel + (LIBRARIES_BYTES if libraries else 0)


def _changes(build: TorchBuild, m: Machine) -> bool:
    """Whether compiled code of the installed torch will not run with the build."""
    old = m.torch
    if old.version is None:
        return False
    # A nightly is of no release, whichever it bears the number of.
    other = old.version.is_devrelease or old.version.release[:2] != build.torch.release[:2]
    return other or _major(old.cuda) != _major(build.cuda)


def _public(release: str) -> str:
    return release.partition("+")[0]


def _major(version: OptVersion) -> OptInt:
    return version.major if version else None
