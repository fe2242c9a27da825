"""Do the packages around torch fit it?"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from msgspec.structs import replace
from packaging.version import Version

from cudadoctor.installers.requirement import name_of
from cudadoctor.knowledge import Knowledge
from cudadoctor.knowledge.companions import NUMPY_2_SINCE
from cudadoctor.model.catalogue import CATALOGUE
from cudadoctor.model.findings import (
    CERTAIN,
    ERROR,
    INFO,
    WARNING,
    Remedies,
)
from cudadoctor.model.machine import Distribution, Machine, OptStr, lookup
from cudadoctor.model.requirements import COMPANIONS, EXTENSIONS, admits
from cudadoctor.model.rule import Answer, Found, need, rule
from cudadoctor.model.versions import version_of
from cudadoctor.plan.remedies import (
    by_hand,
    c_compiler,
    install_companion,
    install_packages,
    install_torch,
    pinned_torch,
    python_headers,
    rebuild_extension,
)
from cudadoctor.plan.remedies.process import builds_here
from cudadoctor.rules.evidence.devices import devices
from cudadoctor.rules.evidence.libraries import Pin, specifier_on, torch_pins
from cudadoctor.rules.evidence.signs import WORDS, error_with, gpu_present
from cudadoctor.solver.builds import best_build
from cudadoctor.solver.companions import asked_by
from cudadoctor.solver.demand import listed, platform_of

COMPILES_SINCE = Version("2.0")
"""The first torch with torch.compile."""
TRITON_FLOOR = Version("7.0")
"""The oldest GPU for which Triton generates code."""
KERNELS_AT_RUN_TIME = WORDS["kernels-at-run-time"]
"""Packages whose own kernels are Triton's, or that call torch.compile unasked."""
_BROKEN = WORDS["broken-companion"]


class Misfit(NamedTuple):
    """A package that does not fit torch, how that shows, and whether it is certain."""

    name: str
    version: str
    why: str
    evidence: str
    sure: bool


@rule(
    "torch-companion-mismatch",
    title="{package} {version} does not match torch {torch}",
    essential=False,
)
def torch_companion_mismatch(m: Machine, kb: Knowledge) -> Answer:
    """{package} works only with the torch version it was compiled for: {why}.

    Typical errors are "operator torchvision::nms does not exist", undefined symbols with c10 in
    their names, and "custom C++ ops" that cannot be loaded. The package's metadata usually
    specifies the torch version that the package needs. The metadata of torchvision 0.29.1 and newer
    and of torchaudio 2.11.0 does not, so cudadoctor relies on its built-in compatibility tables and
    a test import for these releases. A build for a different CUDA version (+cu118 next to +cu126)
    is also a mismatch, and so is a CPU build next to a CUDA build.

    Fix: install torch and its companion packages together, from one index.
    """
    if m.torch.installed is False or not need(m.packages, "packages"):
        return None
    torch = need(m.torch.version, "torch.version")
    present = filter(None, map(m.package, (*COMPANIONS, "torchcodec")))
    found = [misfit for package in present if (misfit := _misfit(m, kb, package, torch))]
    if not found:
        return None
    first, names = found[0], tuple(misfit.name for misfit in found)
    title = f"Remove {listed(names)} (no release matches this torch)"
    return Found(
        evidence=("torch.text", first.evidence),
        values={
            "package": first.name,
            "version": first.version,
            "torch": m.torch.named,
            "why": first.why,
        },
        sure=first.sure,
        severity=WARNING if names == ("torchcodec",) else None,
        # Where no release fits: another torch with its companions, or without.
        remedies=pinned_torch(m, kb)
        + (
            install_companion(m, kb, *names)
            or install_packages("remove-companion", title, remove=names)
            or install_torch(m, kb)
        ),
    )


def _misfit(m: Machine, kb: Knowledge, package: Distribution, torch: Version) -> Misfit | None:
    imported, name, version = m.torch.imported, package.name, package.version
    errors = (imported.companion_errors or {}) if imported and imported.ok is not False else {}
    error = errors.get(name, "")
    if any(words in error for words in _BROKEN):
        fact = f"torch.imported.companion_errors.{name}"
        return Misfit(name, version, f"importing it fails with {error[:160]}", fact, sure=True)
    asked = _asked_torches(package)
    if refusal := _refusal(asked, torch) or _other_build(m, package):
        return Misfit(name, version, refusal, "packages", sure=True)
    reason = None
    # That it imports tells more than a table.
    if errors.get(name) != "" and not asked:
        reason = _by_tables(package, torch, kb)
    return Misfit(name, version, reason, "packages", sure=False) if reason else None


def _asked_torches(package: Distribution) -> list[str]:
    """The torch that its metadata asks for, as specifiers."""
    return [
        found for line in package.requires if (found := specifier_on(line, "torch")) is not None
    ]


def _refusal(asked: list[str], torch: Version) -> OptStr:
    return next((f"it requires torch{text}" for text in asked if not admits(text, torch)), None)


def _by_tables(package: Distribution, torch: Version, kb: Knowledge) -> OptStr:
    """What the tables have against it, where its own metadata says nothing; None for nothing."""
    name, public = package.name, package.version.partition("+")[0]
    release = version_of(public)
    if release is None or release.is_prerelease:
        return None  # it may be a nightly build itself
    if torch.is_devrelease and name == "torchvision":
        return "torch is a nightly build, but this package is a release"
    if torch.is_prerelease:
        return None
    if known := kb.companion_torch(name, public):
        return None if admits(known, torch) else f"it was built for torch{known}"
    if name == "torchtext" and known is not None and kb.has_wheel(name, public, "any", None):
        return None  # before 0.7 it has no compiled code
    fitting = kb.companion(name, Version(torch.public))
    if not fitting or release.release[:2] in {Version(found).release[:2] for found in fitting}:
        return None
    return f"the release for torch {torch.public} is {name} {fitting[0]}"


def _other_build(m: Machine, package: Distribution) -> OptStr:
    """How its build differs from torch's: CPU or CUDA, and which CUDA; None where it does not.

    torchvision accepts every minor of one CUDA major; torchaudio wants the very same version.
    """
    cpu, torch_cuda, own_cuda = (
        package.version.partition("+")[2].startswith("cpu"),
        m.torch.cuda,
        package.cuda,
    )
    if m.torch.build == "cuda" and cpu:
        return f"it is a CPU build, but torch was built for CUDA {torch_cuda}"
    if own_cuda is None or cpu:
        return None
    if m.torch.build == "cpu":
        return f"it was built for CUDA {own_cuda}, but torch is a CPU build"
    strict = package.name == "torchaudio" and len(own_cuda.release) > 1
    parts = 2 if strict else 1
    if torch_cuda is None or own_cuda.release[:parts] == torch_cuda.release[:parts]:
        return None
    return f"it was built for CUDA {own_cuda}, but torch was built for CUDA {torch_cuda}"


@rule(
    "torch-extension-abi",
    title="{package} {version} was not built for your torch {torch}",
    severity=WARNING,
)
def torch_extension_abi(m: Machine, kb: Knowledge) -> Answer:
    """Compiled extensions work only with the torch version and CUDA major version they were built
    for: {why}.

    Typical symptoms are an undefined symbol with `c10` or `at` in its name, an error saying that
    libcudart for a different CUDA major version cannot be opened, and a warning from xformers that
    its extensions cannot be loaded.

    Look-alikes: if the failing file is in torch's own folder, the cause is torch-install-corrupt.

    Fix: install the package release that was built for this torch, or rebuild the package with
    `--no-build-isolation --no-cache-dir`. Changing torch alone does not help.
    """
    if m.torch.installed is False or not need(m.packages, "packages"):
        return None
    torch = need(m.torch.version, "torch.version")
    found: dict[str, tuple[Distribution, str]] = {}
    for package in m.packages or ():
        fact, error = _import_error(m, package.name)
        if not found and (symbol := _GLIBC.search(error)):
            return _for_newer_glibc(m, package, symbol[0], fact)
        why = built_for_other(m, kb, package, torch) if package.name in EXTENSIONS else None
        if package.name in EXTENSIONS and any(words in error for words in _OF_ANOTHER_BUILD):
            why = why or f"importing it fails with {error[:160]}"
        if why:
            found[package.name] = package, why
    if not found:
        return _not_imported(m)
    package, why = next(iter(found.values()))
    fact, error = _import_error(m, package.name)
    proof = any(words in error for words in _OF_ANOTHER_BUILD)
    return Found(
        evidence=("packages", fact if proof else "torch.text"),
        values={
            "package": package.name,
            "version": package.version,
            "torch": m.torch.named,
            "why": why,
        },
        sure=proof,
        severity=ERROR if error_with(m, "undefined symbol: _ZN") else None,
        remedies=_matched(m, kb, package, torch, dict.fromkeys((*found, *_also_named(m)))),
    )


def _also_named(m: Machine) -> list[str]:
    """The listed extensions that the error texts of a report name, whatever their versions say."""
    errors = (s.text.lower() for s in m.symptoms or () if "undefined symbol" in s.text)
    text = "\n".join(errors).replace("-", "_")
    present = (package.name for package in m.packages or () if package.name in EXTENSIONS)
    return [name for name in present if re.search(rf"(?<!\w){name.replace('-', '_')}", text)]


def _import_error(m: Machine, name: str) -> tuple[str, str]:
    """The fact of a package's import, and the error that it ended with; "" for none."""
    fact = f"torch.imported.companion_errors.{name.replace('-', '_')}"
    return fact, str(lookup(m, fact) or "")


def _not_imported(m: Machine) -> Answer:
    """A companion that cannot be imported, for a reason that no rule knows."""
    imported = m.torch.imported
    errors = (imported.companion_errors or {}) if imported and imported.ok is not False else {}
    failed = (
        (name, text)
        for name, text in errors.items()
        if text.strip() and not any(words in text for words in (*_BROKEN, "GLIBCXX_"))
    )
    name, text = next(failed, ("", ""))
    if not name:
        return None
    package = m.package(name) or m.package(name.replace("_", "-"))
    lost = _NO_MODULE.search(text)
    required = {name_of(line) for line in package.requires} if package else set()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    shown = package.name if package else name
    away = "If you do not need {package}, uninstall it. Otherwise, reinstall the release that was "
    away += "made for this torch."
    return Found(
        evidence=(f"torch.imported.companion_errors.{name}",),
        title="{package} cannot be imported: {error}",
        why="A program that imports {package} stops with this error. torch itself is not affected.",
        values={
            "package": shown,
            "error": lost[0] if lost else lines[-1][:160],
        },
        severity=INFO if lost else WARNING,
        sure=bool(lost),
        yields_to=_EXPLAINED_BY,
        remedies=by_hand("mend-companion", f"Reinstall {shown}", away.format(package=shown))
        if not lost
        else install_packages("install-module", f"Install {module}", module)
        if (module := lost[1].lower()) in required
        else (),
    )


_NO_MODULE = re.compile(r"No module named '([\w.]+)'")
_EXPLAINED_BY = tuple(
    cause
    for cause in CATALOGUE
    if cause not in {*WORDS["explains-no-failure"], "torch-extension-abi"}
)
_GLIBC = re.compile(r"\bGLIBC_[\d.]*\d")
_OF_ANOTHER_BUILD = ("undefined symbol", "libcudart.so", "libtorch", "libc10")
_COMPILES_TORCH = 9
"""The first g++ that compiles torch's headers."""


def _for_newer_glibc(m: Machine, package: Distribution, symbol: str, fact: str) -> Found:
    """A wheel that was made on a newer system; another wheel of the package would be, too."""
    name, version = package.name, package.version.partition("+")[0]
    compiler = m.build.compiler.version
    text = (
        "Install g++ 9 or newer and an nvcc with the same CUDA major version as torch. Then "
        "reinstall the package from its source, not from a wheel, with --no-build-isolation "
        "--no-cache-dir."
    )
    away = install_packages("remove-extension", f"Remove {name}", remove=(name,))
    ways = away + by_hand("rebuild-extension", f"Compile {name} {version} on this system", text)
    if name == "flash-attn" and builds_here(m) and compiler and compiler.major >= _COMPILES_TORCH:
        title = f"Compile {name} {version} on this system"
        built = install_packages("rebuild-extension", title, f"{name}=={version}", remove=(name,))
        forced = {"FLASH_ATTENTION_FORCE_BUILD": "TRUE"}
        ways = tuple(replace(step, variables=forced) for step in built) + away
    return Found(
        evidence=("packages", fact, "platform.glibc"),
        title="{package} {version} needs a newer glibc than this system has",
        values={
            "package": name,
            "version": package.version,
            "symbol": symbol,
            "glibc": m.platform.glibc or "older",
        },
        why="Its wheel needs {symbol}, but this system's glibc is {glibc}. Never replace the "
        "system's glibc: every program on the system depends on it. torch itself is not affected.",
        remedies=ways,
    )


def _matched(
    m: Machine, kb: Knowledge, package: Distribution, torch: Version, names: Iterable[str]
) -> Remedies:
    """The extension and torch brought together; nothing is removed where a torch serves it.

    names: of all extensions that do not fit; those with a release for this torch come along.
    """
    back, release = pinned_torch(m, kb), install_companion(m, kb, package.name)
    if release:
        fitting = (name for name in names if install_companion(m, kb, name))
        release = install_companion(m, kb, *fitting)
    return back + (release or (() if back else _without_release(m, kb, package, torch)))


def _without_release(m: Machine, kb: Knowledge, package: Distribution, torch: Version) -> Remedies:
    """An extension without a wheel for this torch: rebuilt where that can work, else removed.

    A build ends at once without nvcc of torch's CUDA major, and then the old one is gone as well.
    """
    name = package.name
    if builds_here(m) and (rebuilt := rebuild_extension(m, name)):
        return rebuilt
    title = f"Remove {name}: there is no known wheel for torch {torch.public}"
    text = (
        f"To build {name} for torch {torch.public}, follow the package's build instructions and "
        "add --no-build-isolation --no-cache-dir. The build needs an nvcc with the same CUDA "
        "major version as torch."
    )
    away = install_packages("remove-extension", title, remove=(name,))
    back = _torch_it_was_built_for(m, kb, package)
    return back + away + by_hand("rebuild-extension", f"Build {name} from source", text)


def _torch_it_was_built_for(m: Machine, kb: Knowledge, package: Distribution) -> Remedies:
    """torch's release that the extension names, if there is a build of it for this machine."""
    if package.torch is None or len(package.torch.release) < 2:
        return ()
    release = f"{package.torch.major}.{package.torch.minor}"
    build = best_build(m, kb, keep=release).build
    if build is None or build.cuda is None:
        return ()
    title = (
        f"Install torch {build.torch}, the version that {package.name} {package.version} was "
        "built for"
    )
    return tuple(replace(remedy, title=title) for remedy in install_torch(m, kb, release))


def built_for_other(m: Machine, kb: Knowledge, package: Distribution, torch: Version) -> OptStr:
    """Why compiled code of a package does not fit this torch; None where nothing shows it."""
    length = min(len(package.torch.release), 2) if package.torch else 0
    if package.torch and package.torch.release[:length] != torch.release[:length]:
        return f"it was built against torch {package.torch}"
    if package.cuda and m.torch.cuda and package.cuda.major != m.torch.cuda.major:
        return f"it was built for CUDA {package.cuda}, but torch was built for CUDA {m.torch.cuda}"
    release = package.version.partition("+")[0]
    unsaid = package.cuda is None and package.torch is None
    cudas = kb.companion_cuda(package.name, release, platform_of(m)) if unsaid else None
    if cudas and m.torch.cuda and m.torch.cuda > max(cudas):
        newest = f"its newest binary is for CUDA {max(cudas)}"
        return f"{newest}, but torch was built for CUDA {m.torch.cuda}"
    if asked := _asked_torches(package):
        return _refusal(asked, torch)
    known = kb.companion_torch(package.name, release)
    fits = torch.is_prerelease or not known or admits(known, torch)
    return None if fits else f"it was built for torch{known}"


@rule("numpy-abi", title="torch {torch} does not support NumPy {numpy}", essential=False)
def numpy_abi(m: Machine, kb: Knowledge) -> Answer:
    """This torch was compiled for NumPy 1. With NumPy 2, converting arrays fails with "Numpy is not
    available".

    Importing torch prints the warning "A module that was compiled using NumPy 1.x cannot be run in
    NumPy 2". torch 2.3 and newer support NumPy 1 and NumPy 2. If the warning appears with torch
    2.3 or newer, another package in the traceback was compiled for NumPy 1.

    Fix: in this environment, install NumPy 1.x, or upgrade to torch 2.3 or newer.
    """
    if m.torch.installed is False:
        return None
    need(m.packages, "packages")
    package = m.package("numpy")
    if package is None:
        return None
    numpy = need(version_of(package.version), "packages")
    torch = need(m.torch.version, "torch.version")
    proof = m.torch.imported.numpy_error if m.torch.imported else None
    if numpy.major < 2 or (torch.release >= NUMPY_2_SINCE.release and not proof):
        return None
    return Found(
        evidence=("packages", "torch.imported.numpy_error" if proof else "torch.version"),
        values={"torch": m.torch.named, "numpy": numpy},
        remedies=_numpy_1(m, kb, numpy) + install_torch(m, kb),
    )


_LAST_NUMPY_1 = Version("1.26.4")


def _numpy_1(m: Machine, kb: Knowledge, numpy: Version) -> Remedies:
    """NumPy 1.x, with releases that work with it of the packages that need NumPy 2."""
    older, unknown = [], []
    for package in m.packages or ():
        since, release = kb.numpy_2_since(package.name), version_of(package.version)
        asked = [line.specifier for line in asked_by(package, ("numpy",), m)]
        refuses = any(admits(text, numpy) and not admits(text, _LAST_NUMPY_1) for text in asked)
        if since and release and release >= Version(since):
            older.append(f"{package.name}<{since}")
        elif refuses:
            unknown.append(f"{package.name} {package.version}")
    note = (
        f"{listed(unknown)} requires NumPy 2: also install an older release of it, or upgrade "
        "torch instead."
    )
    ways = install_packages("numpy-1", "Install NumPy 1.x", "numpy<2", *older)
    return tuple(replace(way, note=note) for way in ways) if unknown else ways


_OF_PACKAGE = (
    "{package} and torch.compile use Triton, which compiles a small launcher with the system's C "
    "compiler and the Python headers."
)


@rule("triton-broken", title="torch.compile will not work: {what}", severity=WARNING)
def triton_broken(m: Machine, kb: Knowledge) -> Answer:
    """torch.compile uses Triton, which compiles a small launcher with the system's C compiler and
    Python's headers. Training without torch.compile needs neither.

    Without a C compiler, Triton fails with "Failed to find C compiler". Without Python's headers,
    it fails with "Python.h: No such file". Each torch release pins the Triton version that it works
    with. GPUs below compute capability 7.0 cannot use Triton at all.

    Fix: install whatever is missing: the Triton version that torch pins, or your distribution's
    packages for the C compiler and the Python headers.
    """
    if (tried := _not_compiled(m, kb)) is not None:
        return tried
    # Whether Triton could work here at all.
    if (
        m.torch.installed is False
        or m.platform.system != "Linux"
        or need(m.torch.build, "torch.build") != "cuda"
        or gpu_present(m) is False
        or need(m.torch.version, "torch.version").release < COMPILES_SINCE.release
        or max((gpu.capability for gpu in devices(m, kb)), default=TRITON_FLOOR) < TRITON_FLOOR
    ):
        return None
    pin = _triton_pin(m, kb)
    if pin is None:
        return None
    if not pin.met:
        have = f"triton {pin.installed} is" if pin.installed else "triton is not"
        return Found(
            evidence=("packages", "torch.requires"),
            values={"what": f"torch needs triton{pin.wanted}, but {have} installed"},
            remedies=_pinned_triton(pin),
        )
    compiler = need(m.build.compiler.present, "build.compiler.present")
    if compiler and need(m.build.headers, "build.headers"):
        return None
    kernels = next(filter(m.package, KERNELS_AT_RUN_TIME), None)
    used = m.build.needed_by or kernels
    return Found(
        why=_OF_PACKAGE if kernels else None,
        evidence=("build.headers" if compiler else "build.compiler.present",),
        values={
            "what": "Python.h is not installed" if compiler else "no C compiler is installed",
            "package": kernels or "",
        },
        title="{package} and torch.compile will not work: {what}" if kernels else None,
        severity=WARNING if used else INFO,
        remedies=python_headers(m) if compiler else c_compiler(m),
    )


_LACKS = {
    "no C compiler was found": "no C compiler is installed",
    "no C++ compiler was found": "no C++ compiler is installed",
    "Python.h is missing": "Python.h is not installed",
    "triton is not installed": "triton is not installed",
}
"""How the stage of torch.compile says what is missing, and how the title does."""


def _triton_pin(m: Machine, kb: Knowledge) -> Pin | None:
    """What torch requires of Triton; None where it requires none."""
    pins = torch_pins(m, kb)
    return next((pin for pin in pins if pin.name in ("triton", "pytorch-triton")), None)


def _pinned_triton(pin: Pin) -> Remedies:
    title = "Install the Triton version that torch needs"
    return install_packages("install-triton", title, pin.requirement)


def _not_compiled(m: Machine, kb: Knowledge) -> Found | None:
    """What the training step lacked where it tried torch.compile; None where it lacked nothing."""
    for number, stage in enumerate(m.smoke.stages if m.smoke else ()):
        lack = (stage.detail or "").partition(":")[0]
        if stage.name != "compile" or stage.status != "failed" or lack not in _LACKS:
            continue
        remedies = python_headers(m) if "Python.h" in lack else c_compiler(m)
        if "triton" in lack:
            pin = _triton_pin(m, kb)
            remedies = _pinned_triton(pin) if pin else ()
        return Found(
            evidence=(f"smoke.stages.{number}.detail",),
            values={"what": _LACKS[lack]},
            why="The training step tried to compile a small model with torch.compile and failed.",
            severity=ERROR,
            confidence=CERTAIN,
            remedies=remedies,
        )
    return None
