"""Packages with code for one torch that are installed: what becomes of each when torch changes.

The release that the tables hold for the new torch goes into the same change. Where they hold none,
a package whose code is bound to the old torch is taken out (its import would end in an error) or,
with the fitting nvcc at hand, built anew; a sentence says which.
"""

import re
from collections.abc import Callable, Iterable, Iterator

import msgspec

from cudadoctor.knowledge import Knowledge, TorchBuild
from cudadoctor.model.machine import Distribution, Flag, Machine, Number, Release, Strings, Text
from cudadoctor.model.requirements import EXTENSIONS, TORCH_FAMILY, admits, normal
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
from cudadoctor.solver.reasons import without_cudnn

PYG = ("pyg-lib", "torch-cluster", "torch-scatter", "torch-sparse", "torch-spline-conv")
"""The compiled parts of torch-geometric, which itself is plain Python and stays."""

PYG_PAGE = "https://data.pyg.org/whl/torch-{minor}.0+{variant}.html"


class Fate(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of one package. pin: to install; with_torch: from torch's index, in one go.

    leaves: the old one must go first. find_links: the page that has the wheel.
    """

    pin: Text = None
    with_torch: bool = False
    leaves: bool = False
    find_links: Text = None
    note: Text = None


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """One installed package beside the torch that is to come."""

    one: Distribution
    build: TorchBuild
    machine: Machine
    kb: Knowledge

    @property
    def changes(self) -> bool:
        """Whether compiled code of the old torch will not run with the new one."""
        return _changes(self.build, self.machine)

    @property
    def name(self) -> str:
        """The package with its version, for a sentence."""
        return f"{self.one.name} {self.one.version}"

    def runs_here(self, release: str) -> bool:
        """Whether a release takes this Python and has wheels for this platform, as far as known."""
        if not self.takes_python(release):
            return False
        places = self.kb.companion_platforms(self.one.name, release)
        return places is None or self.build.platform in places or "any" in places

    def takes_python(self, release: str) -> bool:
        """Whether a release takes this Python, as far as that is known."""
        wanted = self.kb.companion_python(self.one.name, release)
        python = self.machine.python.version
        return not wanted or python is None or admits(wanted, python)

    def serves_cuda(self, release: str) -> Flag:
        """Whether a release has binaries for the build's CUDA, None where that is not known."""
        known = self.kb.companion_cuda(self.one.name, release)
        if self.build.cuda is None or known is None:
            return None if known is None else True
        return self.build.cuda in known


def fate_of(one: Distribution, build: TorchBuild, m: Machine, kb: Knowledge) -> Fate | None:
    """What becomes of an installed package, None for one that is nobody's companion here."""
    judge = _JUDGES.get(one.name)
    if judge is None:
        return None
    return judge(Question(one=one, build=build, machine=m, kb=kb))


def _xformers(q: Question) -> Fate:
    """One release for one torch; its builds for each CUDA lie on torch's own index."""
    made_for = q.kb.built_against("xformers", q.one.version)
    if not q.changes and (made_for is None or q.build.cuda is None):
        return Fate(note=_stays(q))
    if not q.changes and made_for == q.build.torch and q.serves_cuda(q.one.version):
        return Fate()
    for release in q.kb.companion("xformers", q.build.torch):
        if q.serves_cuda(release) and q.runs_here(release):
            return Fate(pin=f"xformers=={release}", with_torch=True, leaves=True)
    return _gone(q)


def _flash_attn(q: Question) -> Fate:
    """Source on PyPI; its installation fetches a wheel where one was made for torch and CUDA."""
    if not q.changes:
        known = q.one.version in q.kb.companion("flash-attn", q.build.torch)
        return Fate() if known and q.takes_python(q.one.version) else Fate(note=_stays(q))
    python, cuda = python_of(q.machine), q.build.cuda
    if q.build.platform == "linux_x86_64" and python is not None and cuda is not None:
        release = q.kb.prebuilt_flash(q.build.torch, cuda, python)
        if release is not None:
            return Fate(pin=f"flash-attn=={release}", leaves=True)
    return _anew(q) or _gone(q)


def _compiled(q: Question) -> Fate:
    """Source only, and no table of wheels."""
    return (_anew(q) or _gone(q)) if q.changes else Fate()


def _bitsandbytes(q: Question) -> Fate:
    """One wheel with binaries for many CUDA releases: it stays while it has the right one."""
    wanted = q.kb.companion_torch("bitsandbytes", q.one.version)
    serves = q.serves_cuda(q.one.version)
    admitted = wanted is None or admits(wanted, q.build.torch)
    if wanted is None and serves is None:
        return Fate(note=_stays(q)) if q.changes else Fate()
    if admitted and serves is not False and q.runs_here(q.one.version):
        return Fate()
    for release in q.kb.companion("bitsandbytes", q.build.torch):
        if q.serves_cuda(release) is not False and q.runs_here(release):
            return Fate(pin=f"bitsandbytes=={release}", leaves=True)
    return _gone(q)


def _triton_windows(q: Question) -> Fate:
    """On Windows triton is a project of its own, and one minor release belongs to one torch."""
    fitting = [one for one in q.kb.companion("triton-windows", q.build.torch) if q.runs_here(one)]
    minor = q.one.version.split(".")[:2]
    if any(one.split(".")[:2] == minor for one in fitting):
        return Fate()
    if fitting:
        return Fate(pin=f"triton-windows=={max(fitting, key=_order)}", leaves=True)
    if not q.changes:
        return Fate(note=_stays(q))
    text = f"{q.name} is taken out: none is known for torch {q.build.torch}, and torch.compile "
    return Fate(leaves=True, note=f"{text}does not work without it.")


def _torchao(q: Question) -> Fate:
    """It declares no torch, and so does every release of it."""
    return Fate(note=_stays(q)) if q.changes else Fate()


def _pyg(q: Question) -> Fate:
    """Wheels for each torch and variant on a page of PyG's own."""
    if not q.changes:
        return Fate()
    minor = f"{q.build.torch.major}.{q.build.torch.minor}"
    page = PYG_PAGE.format(minor=minor, variant=q.build.variant)
    python = python_of(q.machine)
    for wheel in q.kb.pyg_wheels(q.build.torch, q.build.variant):
        here = q.build.platform in wheel.platforms and python in wheel.pythons
        if wheel.package == q.one.name and here:
            tag = f"pt{minor.replace('.', '')}{q.build.variant}"
            return Fate(pin=f"{q.one.name}=={wheel.version}+{tag}", leaves=True, find_links=page)
    text = f"{q.name} is taken out: no wheel of it for torch {q.build.torch} {q.build.variant} "
    text += f"was seen. Where {page} has one, install it with --find-links and that address."
    return Fate(leaves=True, note=text)


def _anew(q: Question) -> Fate | None:
    """Compiled here, where an nvcc of the new CUDA's major is at hand."""
    cuda = q.build.cuda
    known = (toolkit.cuda for toolkit in q.machine.build.toolkits or ())
    nvcc = next((found for found in known if found and _major(found) == _major(cuda)), None)
    if nvcc is None or q.build.platform.startswith("windows"):
        return None
    text = f"{q.name} is built anew for torch {q.build.torch} with nvcc {nvcc}, "
    return Fate(
        pin=f"{q.one.name}=={q.one.version.partition('+')[0]}",
        leaves=True,
        note=f"{text}which can take an hour.",
    )


def _gone(q: Question) -> Fate:
    kind = "the CPU" if q.build.cuda is None else f"CUDA {q.build.cuda}"
    text = f"{q.name} is taken out: its code is bound to another torch, and none is known for "
    return Fate(leaves=True, note=f"{text}torch {q.build.torch} with {kind} on this platform.")


def _stays(q: Question) -> str:
    return f"Whether {q.name} fits torch {q.build.torch} is not in the tables: it stays."


def _order(text: str) -> tuple[int, ...]:
    version = version_of(text)
    return (*version.release, version.post or 0) if version else ()


_JUDGES: dict[str, Callable[[Question], Fate]] = {
    "bitsandbytes": _bitsandbytes,
    "causal-conv1d": _compiled,
    "flash-attn": _flash_attn,
    "mamba-ssm": _compiled,
    "torchao": _torchao,
    "triton-windows": _triton_windows,
    "xformers": _xformers,
    **dict.fromkeys(PYG, _pyg),
}

JUDGED = frozenset(_JUDGES)
"""Packages whose fate is decided here; of others with compiled code a sentence warns."""


_NAME = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\]]*)\])?")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")
_LIBRARY = re.compile(r"nvidia-(?P<base>[a-z][a-z-]*?)(?:-cu(?P<major>\d+))?")
_TORCH_WHEELS = ("nvidia-", "cuda-", "triton", "pytorch-triton")
_SHARED = frozenset({"cudnn", "cusparselt", "nccl", "nvshmem"})
_FIRST_MAJOR_APART = 13  # From CUDA 13 on, the toolkit's own parts lie in a folder of their own.


def only_for_torch(packages: Iterable[Distribution]) -> Strings:
    """The nvidia-*, cuda-* and triton wheels that nothing but torch and its companions need."""
    installed = {package.name: package for package in packages}
    below = _needed_by(TORCH_FAMILY, installed)
    others = [name for name in installed if name not in below and name not in TORCH_FAMILY]
    kept = _needed_by(others, installed, every_extra=True)
    return tuple(sorted(name for name in below - kept if name.startswith(_TORCH_WHEELS)))


def kept_by_others(packages: Iterable[Distribution]) -> dict[str, str]:
    """Wheels of torch that another package needs as well -> that package."""
    installed = {package.name: package for package in packages}
    below = _needed_by(TORCH_FAMILY, installed)
    kept: dict[str, str] = {}
    for name in installed:
        if name in below or name in TORCH_FAMILY:
            continue
        needed = _needed_by((name,), installed, every_extra=True) & below
        kept |= {
            wheel: name for wheel in needed if wheel.startswith(_TORCH_WHEELS) and wheel not in kept
        }
    return kept


def colliding(packages: Iterable[Distribution], major: int) -> Strings:
    """Installed library wheels that write into the folders of those for this CUDA major."""
    return tuple(sorted(package.name for package in packages if _collides(package.name, major)))


def _collides(name: str, major: int) -> bool:
    """Whether a wheel shares its folder with its counterpart for another CUDA major."""
    found = _LIBRARY.fullmatch(name)
    if not found or not found["major"] or int(found["major"]) == major:
        return False
    if found["base"] in _SHARED:
        return True
    return max(int(found["major"]), major) < _FIRST_MAJOR_APART


def _needed_by(
    roots: Iterable[str], installed: dict[str, Distribution], *, every_extra: bool = False
) -> set[str]:
    """All that the roots require, directly or through others; torch itself is not entered.

    every_extra: count the roots' optional requirements too, since nobody knows whether they were
    asked for. Below the roots, only the extras that were asked for count.
    """
    seen: set[tuple[str, frozenset[str]]] = set()
    start = [(name, frozenset({"*"} if every_extra else ())) for name in roots]
    open_ends = list(start)
    while open_ends:
        name, extras = open_ends.pop()
        if (name, extras) in seen or name not in installed:
            continue
        seen.add((name, extras))
        followed = _requirements(installed[name], extras)
        open_ends += [one for one in followed if one[0] not in TORCH_FAMILY]
    return {name for name, _ in seen} - {name for name, _ in start}


def _requirements(
    one: Distribution, extras: frozenset[str]
) -> Iterator[tuple[str, frozenset[str]]]:
    for line in one.requires:
        found = _NAME.match(line)
        wanted = set(_EXTRA.findall(line))
        if found and (not wanted or "*" in extras or wanted & extras):
            asked = (extra.strip() for extra in (found[2] or "").split(","))
            yield normal(found[1]), frozenset(extra for extra in asked if extra)


def caveats(build: TorchBuild, m: Machine, kb: Knowledge, lost: Strings) -> list[str]:
    """A sentence for each thing to know first. lost: companions that have no release for it."""
    notes = [_lost(name, build, m) for name in lost]
    notes += _broken_extensions(build, m, kb)
    notes += _unserved(build, m, kb)
    notes += _last_resort(build, m, kb)
    if build.cuda:
        for wheel, owner in kept_by_others(m.packages or ()).items():
            if _collides(wheel, build.cuda.major):
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
    aside = demand_of(m, kb).aside
    gpus = seen_gpus(m, kb)
    gone = of_capability(gpus, aside)
    if not gone:
        return []
    stay = [gpu for gpu in gpus if gpu not in gone]
    settings = variables_for(stay, redacted=m.redacted).items()
    words = " and ".join(f"{name}={value}" for name, value in settings)
    return [f"No torch serves {named(gone)}: {words} leaves it out."]


def _last_resort(build: TorchBuild, m: Machine, kb: Knowledge) -> list[str]:
    """What is wrong with a build that is taken because no sounder one fits."""
    if build.cuda is None or platform_of(m) is None:
        return []
    demand = demand_of(m, kb)
    contested = block(build, demand, kb) == "contested"
    disputed = "Sources disagree on whether this build has code for the GPU"
    notes = [f"{disputed}: cudadoctor check shows it."] if contested else []
    return [*notes, *filter(None, [without_cudnn(build, demand, kb)])]


def size_of(build: TorchBuild, kb: Knowledge) -> Text:
    """How much is to be downloaded, as far as the tables know."""
    wheels = build.cuda is not None and build.platform.startswith("linux")
    more = "; the CUDA libraries come on top" if wheels else ""
    if build.download_bytes:
        return f"The torch wheel is {build.download_bytes / 1e6:.0f} MB to download{more}."
    for other in kb.builds_on(build.platform):
        same_kind = (other.cuda is None) == (build.cuda is None)
        if other.torch == build.torch and other.download_bytes and same_kind:
            wheel = f"the {other.variant} wheel: {other.download_bytes / 1e6:.0f} MB"
            return f"The size of the download is not known ({wheel}){more}."
    return "The size of the download is not known." if build.cuda else None


def _broken_extensions(build: TorchBuild, m: Machine, kb: Knowledge) -> list[str]:
    """A sentence for each installed package whose compiled code will not fit the new torch."""
    if not _changes(build, m):
        return []
    notes = []
    for package in m.packages or ():
        made_for = (
            package.torch is not None and package.torch.release[:2] == build.torch.release[:2]
        )
        fits = made_for and _major(package.cuda) in (None, _major(build.cuda))
        if package.name not in EXTENSIONS - JUDGED or fits:
            continue
        fitting = next(iter(kb.companion(package.name, build.torch)), None)
        after = f"install it again for torch {build.torch} afterwards."
        if fitting and fitting != package.version:
            after = f"{package.name} {fitting} is made for torch {build.torch}."
        present = f"{package.name} {package.version} was compiled for the present torch"
        notes.append(f"{present}: {after}")
    return notes


def _changes(build: TorchBuild, m: Machine) -> bool:
    """Whether compiled code of the installed torch will not run with the build."""
    old = m.torch
    if old.version is None:
        return False
    other_cuda = _major(old.cuda) != _major(build.cuda)
    return other_cuda or old.version.release[:2] != build.torch.release[:2]


def _major(version: Release) -> Number:
    return version.major if version else None
