"""What torch requires of other packages, and which files answer to the names of its libraries."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace
from packaging.version import Version

from cudadoctor.knowledge import Knowledge
from cudadoctor.model.findings import (
    ERROR,
    WARNING,
    Remedies,
    Severity,
)
from cudadoctor.model.machine import (
    Distribution,
    Library,
    Machine,
    OptInt,
    OptStr,
    OptVersion,
    Strings,
)
from cudadoctor.model.requirements import (
    TORCH_FAMILY,
    Asked,
    admits,
    cut,
    marker_holds,
    marker_variables,
)
from cudadoctor.model.rule import need
from cudadoctor.model.versions import version_of
from cudadoctor.plan.remedies import (
    off_search_path,
    reinstall_torch,
    remove_conda_library,
    set_variables,
    torch_with_cudnn,
    unset_variables,
)
from cudadoctor.rules.evidence.signs import cuda_works, variable
from cudadoctor.solver.demand import listed, platform_of

META = "cuda-toolkit"
"""The package without files through which torch pins its CUDA libraries from 2.11 on."""


_ONLY_FOR = re.compile(r"(?:;|\)\s*and|; [^()]*\band)\s*extra == ['\"]([\w.-]+)['\"]\s*$")
"""A marker that ends by asking for one extra, whatever stands before it."""


class Pin(NamedTuple):
    """One requirement that holds on this machine. installed: None where the package is absent."""

    name: str
    wanted: str
    installed: OptVersion
    met: bool

    @property
    def requirement(self) -> str:
        return f"{self.name}{self.wanted}"


def torch_pins(m: Machine, kb: Knowledge) -> tuple[Pin, ...]:
    """What torch requires here, through the meta-package of CUDA libraries too."""
    if m.look != "report":  # of a report's Python only what depends on it stays open
        need(m.python.version, "python.version")
    need(m.platform.system, "platform.system")
    need(m.platform.machine, "platform.machine")
    environment = marker_variables(m)
    need(m.packages, "packages")
    found = {}
    for asked, extras in _required(m, kb):
        if asked.name in found or (m.python.version is None and "python_" in asked.marker):
            continue
        present = m.package(asked.name)
        version = version_of(present.version) if present else None
        met = present is not None and (version is None or admits(asked.specifier, version))
        # What is met needs no look at its marker, a grammar's cost.
        if (
            met
            or not asked.marker
            or any(marker_holds(asked.marker, environment | {"extra": extra}) for extra in extras)
        ):
            found[asked.name] = Pin(asked.name, asked.specifier, version, met)
    return tuple(found.values())


def _required(m: Machine, kb: Knowledge) -> Iterator[tuple[Asked, Strings]]:
    """Its requirements, and those of the meta-package, with the extras that are asked of each.

    By its metadata; where that was not read, what the default index's wheel of it is known for.
    """
    lines, version, platform = m.torch.requires, m.torch.version, platform_of(m)
    if lines is None and version is not None and platform is not None:
        own = kb.build_of(version, version.local or "", platform)
        if version.local is None or (own and own.default):
            lines = kb.default_pins(version, platform)
            # What a report does not list may be there all the same.
            if m.look == "report":
                lines = lines and tuple(line for line in lines if _is_listed(line, m))
        elif pin := kb.cudnn_pin(version, m.torch.cuda, platform):
            lines = (pin, *(kb.toolkit_pins(own) if own and m.look == "report" else ()))
    meta = m.package(META)
    for asked in _asked(need(lines, "torch.requires"), ("",)):
        yield asked, ("",)
        if asked.name == META and meta:
            extras = asked.extras or ("",)
            yield from ((below, extras) for below in _asked(meta.requires, extras))


def library_pins(m: Machine, kb: Knowledge) -> tuple[Pin, ...]:
    """The pins of CUDA libraries."""
    return tuple(
        pin for pin in torch_pins(m, kb) if pin.name.startswith("nvidia-") or pin.name == META
    )


class Need(NamedTuple):
    """A program beside torch, and what it needs of a wheel that torch pins."""

    program: Distribution
    wheel: str
    wanted: str


def needs_of_others(m: Machine, kb: Knowledge, wheel: str) -> tuple[Need, ...]:
    """What other programs need of that wheel: by their metadata, else by the tables."""
    found = []
    for package in m.packages or ():
        release = version_of(package.version)
        lines = package.requires or (kb.needs_of(package.name, release) if release else ())
        if package.name not in TORCH_FAMILY and not package.name.startswith("nvidia-"):
            named = (asked for asked in map(cut, lines) if asked and asked.name == wheel)
            found += [Need(package, wheel, asked.specifier) for asked in named if asked.specifier]
    return tuple(found)


def torch_beside(m: Machine, kb: Knowledge, needs: Sequence[Need]) -> Remedies:
    """The torch that brings a cuDNN which these programs admit, too; () where none does."""
    if not needs or any("cudnn" not in need.wheel for need in needs):
        return ()

    def admitted(cudnn: str) -> bool:
        return all(admits(need.wanted, Version(cudnn)) for need in needs)

    found = torch_with_cudnn(m, kb, admitted)
    title = "Install torch {torch}, whose cuDNN also works for " + programs(needs)
    return tuple(
        replace(way, title=title.format(torch=way.packages.install[0].partition("==")[2]))
        for way in found
        if way.packages
    )


def others_needing(m: Machine, kb: Knowledge, pin: str) -> tuple[Need, ...]:
    """What other programs need that the release which torch pins of a wheel is not."""
    wheel, _, release = pin.partition("==")
    needs = needs_of_others(m, kb, wheel) if release else ()
    return tuple(need for need in needs if not admits(need.wanted, Version(release)))


def releases_beside(m: Machine, kb: Knowledge, needs: Sequence[Need], pin: str) -> Strings:
    """The requirements by which these programs work with what torch pins; () if one has none."""
    found = [release_beside(m, kb, need.program.name, pin) for need in needs]
    return tuple(filter(None, found)) if all(found) else ()


def release_beside(m: Machine, kb: Knowledge, program: str, pin: str) -> OptStr:
    """The requirement on a program by which it works with the cuDNN that torch pins.

    The nearest release where the tables know which torch each one admits; else a range.
    """
    if program not in kb.brings:  # it is one of several that move together
        return None
    wheel, _, release = pin.partition("==")
    cudnn, torch, package = Version(release), m.torch.version, m.package(program)
    if program in kb.companion_names and torch is not None and package is not None:
        own = Version(package.version)
        known = sorted(map(Version, kb.companion(program, Version(torch.base_version))))
        fits = [
            other
            for other in known
            for line in kb.needs_of(program, other)
            if admits(line.removeprefix(wheel), cudnn)
        ]
        near = [other for other in fits if other > own][:1] or [o for o in fits if o < own][-1:]
        return f"{program}=={near[0]}" if near else None
    ways = kb.releases_needing(program, wheel)
    return next((line for line, wanted in ways if admits(wanted, cudnn)), None)


def apart(needs: Sequence[Need]) -> OptStr:
    """That both cannot be right in one environment; None where nobody else is known to ask."""
    if not needs:
        return None
    first = needs[0]
    return (
        f"{programs(needs[:1])} needs {first.wheel}{first.wanted} instead, so it may lose the GPU. "
        "To use both on the GPU, install one of them in a separate environment."
    )


def programs(needs: Sequence[Need]) -> str:
    """The programs by name and version, for a sentence."""
    names = dict.fromkeys(f"{need.program.name} {need.program.version}" for need in needs)
    return listed(list(names))


def specifier_on(line: str, name: str) -> OptStr:
    """The specifier of a line where it names that package and has no extra; else None."""
    asked = cut(line)
    if asked is None or asked.name != name or "extra" in asked.marker:
        return None
    return asked.specifier


def _is_listed(line: str, m: Machine) -> bool:
    asked = cut(line)
    return asked is not None and m.package(asked.name) is not None


def _asked(lines: Strings, extras: Strings) -> Iterator[Asked]:
    """The requirements in these lines, without those of other extras."""
    for line in lines:
        only_for = _ONLY_FOR.search(line)
        asked = cut(line)
        if asked is not None and not (only_for and only_for[1] not in extras):
            yield asked


_NUMBERED_BY_YEAR = 2000
"""CUPTI's files are numbered by year; such a number says nothing of the CUDA version."""


class Use(NamedTuple):
    """A library that torch gets. path: its fact; proven: seen in a process, not predicted."""

    path: str
    library: Library
    proven: bool


class Foreign(NamedTuple):
    """A library from outside torch's own set. own: version of the copy that torch brought."""

    use: Use
    own: OptStr


def in_use(m: Machine) -> tuple[Use, ...]:
    """What is mapped, and of the rest what the loader's rules predict."""
    mapped, predicted = m.libraries.mapped or (), m.libraries.predicted
    if not mapped:
        need(predicted, "libraries.predicted")
    seen = {library.soname for library in mapped}
    return (
        *(Use(f"libraries.mapped.{n}", file, True) for n, file in enumerate(mapped)),
        *(
            Use(f"libraries.predicted.{n}", file, False)
            for n, file in enumerate(predicted or ())
            if file.soname not in seen
        ),
    )


def applies(m: Machine) -> bool:
    """Whether there is a CUDA build of torch whose libraries could be wrong."""
    return m.torch.installed is not False and need(m.torch.build, "torch.build") == "cuda"


def is_own(m: Machine, library: Library) -> bool:
    """Whether a file belongs to torch or to the wheels beside it."""
    folder = library.path.rpartition("/")[0]
    return library.owner in ("torch", "wheel") or folder in (m.libraries.own or ())


def foreign(m: Machine, pattern: str) -> tuple[Foreign, ...]:
    """The libraries of that name from outside, where torch brings a set of its own.

    A torch of the system, of conda or of a vendor's image brings none: there nothing is shadowed.
    """
    uses = [use for use in in_use(m) if re.match(pattern, use.library.soname)]
    known = (*(use.library for use in uses), *(m.libraries.copies or ()))
    own = [file for file in known if re.match(pattern, file.soname) and is_own(m, file)]
    if not own:
        return ()
    version = {_product(file.soname): file.version for file in own if file.version}
    version |= {file.soname: file.version for file in own if file.version}
    return tuple(
        Foreign(use, version.get(use.library.soname, version.get(_product(use.library.soname))))
        for use in uses
        if not is_own(m, use.library)
    )


def _product(soname: str) -> str:
    """What shares one version: the parts of cuDNN, cuBLAS with cuBLASLt; all else is alone."""
    return next((name for name in ("libcudnn", "libcublas") if soname.startswith(name)), soname)


def compared(text: OptStr, other: OptStr, parts: int = 4) -> OptInt:
    """-1, 0 or 1 as the first version is older, equal or newer in its first parts; None unknown."""
    left, right = version_of(text), version_of(other)
    if left is None or right is None:
        return None
    length = min(len(left.release), len(right.release), parts)
    a, b = left.release[:length], right.release[:length]
    if max(a[0], b[0]) >= _NUMBERED_BY_YEAR and min(a[0], b[0]) < _NUMBERED_BY_YEAR:
        return None
    return (a > b) - (a < b)


def import_fails(m: Machine) -> bool:
    """Whether torch was imported and that failed."""
    return m.torch.imported is not None and m.torch.imported.ok is False


def need_import(m: Machine) -> bool:
    """Whether torch imports; the end of the rule as undecided where that is not known."""
    return need(m.torch.imported.ok if m.torch.imported else None, "torch.imported.ok")


def proven_sound(m: Machine) -> bool:
    """Whether a training step went through on the GPU with the libraries as they are."""
    if m.smoke is None or not m.smoke.device.startswith("cuda"):
        return False
    ran = {stage.status for stage in m.smoke.stages} - {"skipped"}
    return ran == {"passed"} and cuda_works(m)


def gravity(m: Machine, found: Foreign, parts: int = 4) -> Severity | None:
    """How bad a foreign copy is; None where it is the very same version, which harms nobody.

    An older one lacks what torch was compiled against. A newer one of the same soname keeps the
    promises of the older, so it is merely fragile; so is one whose version nobody knows.
    """
    order = compared(found.use.library.version, found.own, parts)
    if import_fails(m) and order != 0:
        return ERROR
    if order == 0 and compared(found.use.library.version, found.own) == 0:
        return None
    return ERROR if order == -1 and not proven_sound(m) else WARNING


def _not_preloaded(m: Machine, path: str, preloaded: list[str]) -> Remedies:
    """LD_PRELOAD without that file: what else is preloaded, such as an allocator, stays."""
    rest = [entry for entry in preloaded if entry != path]
    if not rest or path not in preloaded:
        return unset_variables(m, "LD_PRELOAD")
    title = f"Remove {path} from LD_PRELOAD"
    return set_variables("trim-ld-preload", title, {"LD_PRELOAD": ":".join(rest)})


def way_out(m: Machine, kb: Knowledge, library: Library) -> Remedies:
    """By the rule of the loader that brought the file in."""
    preloaded = [entry for entry in re.split("[: ]", variable(m, "LD_PRELOAD")) if entry]
    if library.how == "LD_PRELOAD" or library.path in preloaded:
        return _not_preloaded(m, library.path, preloaded)
    if named := off_search_path(m, library.path.rpartition("/")[0]):
        return named
    predicted = {file.how for file in m.libraries.predicted or () if file.path == library.path}
    if "LD_LIBRARY_PATH" in (library.how, *predicted):
        return unset_variables(m, "LD_LIBRARY_PATH")
    if library.owner == "conda":
        return remove_conda_library(m, library)
    return reinstall_torch(m, kb)
