"""Do the packages around torch fit it?"""

from __future__ import annotations

import re
from typing import NamedTuple

from packaging.version import Version

from cudadoctor.knowledge import Knowledge
from cudadoctor.knowledge.companions import NUMPY_2_SINCE
from cudadoctor.model.findings import (
    CERTAIN,
    ERROR,
    INFO,
    LIKELY,
    WARNING,
    Confidence,
    Remedies,
)
from cudadoctor.model.machine import Distribution, Machine, Strings, Text
from cudadoctor.model.requirements import EXTENSIONS, admits
from cudadoctor.model.rule import Answer, Found, need, rule
from cudadoctor.model.versions import version_of
from cudadoctor.plan.remedies import (
    by_hand,
    install_companion,
    install_packages,
    install_torch,
    remove_packages,
)
from cudadoctor.rules.evidence.devices import devices
from cudadoctor.rules.evidence.libraries import specifier_on, torch_pins
from cudadoctor.rules.evidence.signs import WORDS, gpu_present, said

COMPANIONS = ("torchvision", "torchaudio", "torchtext")
COMPILES_SINCE = Version("2.0")
"""The first torch with torch.compile."""
TRITON_FLOOR = Version("7.0")
"""The oldest GPU for which Triton generates code."""
KERNELS_AT_RUN_TIME = WORDS["kernels-at-run-time"]
"""Packages whose own kernels are Triton's, or that call torch.compile unasked."""
_BROKEN = WORDS["broken-companion"]


class Misfit(NamedTuple):
    """A package that does not fit torch, how that shows, and how sure it is."""

    name: str
    version: str
    why: str
    evidence: str
    confidence: Confidence


@rule(
    "torch-companion-mismatch",
    title="{package} {version} does not fit torch {torch}",
    essential=False,
)
def torch_companion_mismatch(m: Machine, kb: Knowledge) -> Answer:
    """{package} fits only the torch that it was compiled against, and this is another: {why}.

    "operator torchvision::nms does not exist", undefined symbols with c10 in their name, and
    "custom C++ ops" that cannot be loaded all say this. The requirement in the package's metadata
    tells it where there is one; torchvision from 0.29.1 on and torchaudio 2.11.0 require no exact
    torch, and there the tables and an import tell. A build for another CUDA (+cu118 beside
    +cu126), or a CPU build beside a CUDA build, does not fit either.

    Cured by installing torch and its companions together, from one index.
    """
    if m.torch.installed is False or not need(m.packages, "packages"):
        return None
    torch = need(m.torch.version, "torch.version")
    present = [one for one in (m.package(name) for name in COMPANIONS) if one]
    found = [misfit for one in present if (misfit := _misfit(m, kb, one, torch))]
    if not found:
        return None
    first = found[0]
    names = tuple(one.name for one in found)
    return Found(
        evidence=("torch.text", first.evidence),
        values={
            "package": first.name,
            "version": first.version,
            "torch": m.torch.text or torch,
            "why": first.why,
        },
        confidence=first.confidence,
        remedies=install_companion(m, kb, *names) or _without(m, kb, names),
    )


def _without(m: Machine, kb: Knowledge, names: Strings) -> Remedies:
    """Where no release fits the installed torch: another torch with its companions, or without."""
    return remove_packages(
        "remove-companion",
        f"Remove {', '.join(names)}, of which no release fits this torch",
        *names,
    ) or install_torch(m, kb)


def _misfit(m: Machine, kb: Knowledge, one: Distribution, torch: Version) -> Misfit | None:
    imported = m.torch.imported
    errors = (imported.companion_errors or {}) if imported and imported.ok is not False else {}
    error = errors.get(one.name, "")
    if any(words in error for words in _BROKEN):
        return _as_misfit(
            one,
            f"its import fails with {error[:160]}",
            f"torch.imported.companion_errors.{one.name}",
            CERTAIN,
        )
    asked = _asked_torches(one)
    if refusal := _refusal(asked, torch) or _other_build(m, one):
        return _as_misfit(one, refusal, "packages", CERTAIN)
    if errors.get(one.name) == "":
        return None  # It imports, which tells more than a table.
    if not asked and torch.is_devrelease:
        told = _of_a_release(one)
    else:
        told = None if asked or torch.is_prerelease else _by_tables(one, torch, kb)
    return _as_misfit(one, told, "packages", LIKELY) if told else None


def _asked_torches(one: Distribution) -> list[str]:
    """The torch that its metadata asks for, as specifiers."""
    return [found for line in one.requires if (found := specifier_on(line, "torch")) is not None]


def _refusal(asked: list[str], torch: Version) -> Text:
    return next((f"it requires torch{text}" for text in asked if not admits(text, torch)), None)


def _of_a_release(one: Distribution) -> Text:
    """Why it does not fit a nightly build; None where it may be one itself."""
    release = version_of(one.version.partition("+")[0])
    if one.name != "torchvision" or release is None or release.is_prerelease:
        return None
    return "torch is a nightly build, and it is of a release"


def _by_tables(one: Distribution, torch: Version, kb: Knowledge) -> Text:
    """What the tables have against it, where its own metadata says nothing; None for nothing."""
    release = version_of(one.version.partition("+")[0])
    known = kb.companion_torch(one.name, one.version.partition("+")[0])
    if release is None or release.is_prerelease:
        return None
    if known:
        return None if admits(known, torch) else f"it belongs to torch{known}"
    fitting = kb.companion(one.name, Version(torch.public))
    minors = {version.release[:2] for version in map(Version, fitting)}
    if not fitting or release.release[:2] in minors:
        return None
    return f"{one.name} {fitting[0]} belongs to torch {torch.public}"


def _as_misfit(one: Distribution, why: str, evidence: str, sure: Confidence) -> Misfit:
    return Misfit(one.name, one.version, why, evidence, sure)


def _other_build(m: Machine, one: Distribution) -> Text:
    """How its build differs from torch's: CPU or CUDA, and which CUDA; None where it does not.

    torchvision accepts every minor of one CUDA major; torchaudio wants the very same version.
    """
    cpu = one.version.partition("+")[2].startswith("cpu")
    if m.torch.build == "cuda" and cpu:
        return f"it is a CPU build, and torch is one for CUDA {m.torch.cuda}"
    if one.cuda is None or cpu:
        return None
    if m.torch.build == "cpu":
        return f"it is built for CUDA {one.cuda}, and torch for the CPU"
    if m.torch.cuda is None:
        return None
    strict = one.name == "torchaudio" and len(one.cuda.release) > 1
    ours, its = m.torch.cuda.release, one.cuda.release
    if its[:2] == ours[:2] or (its[0] == ours[0] and not strict):
        return None
    return f"it is built for CUDA {one.cuda}, and torch for CUDA {m.torch.cuda}"


@rule(
    "torch-extension-abi",
    title="{package} {version} is built for another torch",
    severity=WARNING,
)
def torch_extension_abi(m: Machine, kb: Knowledge) -> Answer:
    """Compiled code fits the torch and the CUDA major it was built against, and here {why}.

    It shows as an undefined symbol with c10 or at in its name, as a libcudart of another major
    that cannot be opened, or as a warning of xformers that its extensions are not loaded. The
    failing file lies in the folder of the extension; in torch-install-corrupt it lies in torch's.

    Cured by the release that is made for this torch, or by building it again with
    `--no-build-isolation --no-cache-dir`. Not by changing torch alone.
    """
    if m.torch.installed is False or not need(m.packages, "packages"):
        return None
    torch = need(m.torch.version, "torch.version")
    for package in m.packages or ():
        why = _built_for_other(m, kb, package, torch) if package.name in EXTENSIONS else None
        if why is None:
            continue
        return Found(
            evidence=("packages", "torch.text"),
            values={"package": package.name, "version": package.version, "why": why},
            sure=False,
            severity=ERROR if said(m, "undefined symbol: _ZN") else None,
            remedies=install_companion(m, kb, package.name)
            or by_hand(
                "rebuild-extension",
                f"Install {package.name} again",
                (
                    f"Install {package.name} again for torch {torch.public}: a wheel that is made "
                    "for it, or a build with --no-build-isolation --no-cache-dir."
                ),
            ),
        )
    return None


def _built_for_other(m: Machine, kb: Knowledge, one: Distribution, torch: Version) -> Text:
    length = min(len(one.torch.release), 2) if one.torch else 0
    if one.torch and one.torch.release[:length] != torch.release[:length]:
        return f"it was built against torch {one.torch}"
    if one.cuda and m.torch.cuda and one.cuda.major != m.torch.cuda.major:
        return f"it was built for CUDA {one.cuda}, and torch for {m.torch.cuda}"
    asked = _asked_torches(one)
    if refusal := _refusal(asked, torch):
        return refusal
    known = None if asked else kb.companion_torch(one.name, one.version.partition("+")[0])
    if known and not torch.is_prerelease and not admits(known, torch):
        return f"it belongs to torch{known}"
    return None


@rule("numpy-abi", title="torch {torch} cannot use numpy {numpy}", essential=False)
def numpy_abi(m: Machine, kb: Knowledge) -> Answer:
    """This torch was compiled for numpy 1: with numpy 2 every exchange of arrays fails.

    The import warns that a module compiled for NumPy 1.x cannot be run in NumPy 2, and later
    `Numpy is not available` is raised. torch 2.3 and later are compiled for both. Where torch is
    newer and the same words come, another package in the traceback was compiled for numpy 1.

    Cured by numpy below 2 in this environment, or by torch 2.3 or newer.
    """
    if m.torch.installed is False:
        return None
    need(m.packages, "packages")
    one = m.package("numpy")
    if one is None:
        return None
    numpy = need(version_of(one.version), "packages")
    torch = need(m.torch.version, "torch.version")
    proof = m.torch.imported.numpy_error if m.torch.imported else None
    if numpy.major < 2 or (torch.release >= NUMPY_2_SINCE.release and not proof):
        return None
    first = install_packages("numpy-1", "Install numpy below 2", "numpy<2")
    return Found(
        evidence=("packages", "torch.imported.numpy_error" if proof else "torch.version"),
        values={"torch": m.torch.text or torch, "numpy": numpy},
        remedies=first + install_torch(m, kb),
    )


@rule("triton-broken", title="torch.compile will not work: {what}", severity=WARNING)
def triton_broken(m: Machine, kb: Knowledge) -> Answer:
    """torch.compile hands its kernels to Triton, which needs a C compiler and Python.h to run them.

    Triton compiles a small launcher for each kernel with the system's C compiler. Without one it
    says "Failed to find C compiler", without headers "Python.h: No such file". torch pins the
    Triton that it works with. Training without torch.compile needs none of them, and GPUs below
    7.0 cannot use Triton at all.

    Cured by the Triton that torch pins, and by the distribution's compiler and Python headers.
    """
    if m.torch.installed is False or m.platform.system != "Linux" or not _compiles(m, kb):
        return None
    pin = next((pin for pin in torch_pins(m, kb) if pin.name in ("triton", "pytorch-triton")), None)
    if pin is None:
        return None
    if not pin.met:
        have = f"triton {pin.installed}" if pin.installed else "no triton"
        return Found(
            evidence=("packages", "torch.requires"),
            values={"what": f"torch requires triton{pin.wanted}, and there is {have}"},
            remedies=install_packages(
                "install-triton", "Install the Triton that torch pins", pin.requirement
            ),
        )
    compiler = need(m.build.compiler.present, "build.compiler.present")
    if compiler and need(m.build.headers, "build.headers"):
        return None
    what = "Python.h is not installed" if compiler else "there is no C compiler"
    return Found(
        evidence=("build.headers" if compiler else "build.compiler.present",),
        values={"what": what},
        severity=WARNING
        if (bool(m.build.needed_by) or any(m.package(name) for name in KERNELS_AT_RUN_TIME))
        else INFO,
        remedies=_development(m, headers=bool(compiler)),
    )


def _compiles(m: Machine, kb: Knowledge) -> bool:
    """Whether Triton could work here at all: a CUDA build from 2.0 on, and a GPU from 7.0 on."""
    if need(m.torch.build, "torch.build") != "cuda" or gpu_present(m) is False:
        return False
    if need(m.torch.version, "torch.version").release < COMPILES_SINCE.release:
        return False
    present = devices(m, kb)
    return not present or any(one.capability >= TRITON_FLOOR for one in present)


def _development(m: Machine, *, headers: bool) -> Remedies:
    """The distribution's package, by name where it is known."""
    python = m.python.version
    number = f"{python.major}.{python.minor}" if python else "3"
    family = " ".join((m.platform.distro or "", *(m.platform.distro_like or ())))
    known = next((packages for words, packages in _PACKAGES if re.search(words, family)), None)
    if known is None:
        name = "with the headers of this Python" if headers else "with a C and C++ compiler"
    else:
        name = known[0].format(number, number.replace(".", "")) if headers else known[1]
    title = "Install the headers of this Python" if headers else "Install a C compiler"
    text = (
        f"Install the package {name} with the system's package manager (it needs root), or ask "
        "the administrator for it; in an image, add it where the image is built."
    )
    if headers and known is not None and known[0] == _WITH_PYTHON:
        text = (
            "The headers of this distribution's own Python are in its package python. For another "
            "Python, make the environment with uv or conda, which bring them."
        )
    return by_hand("python-headers" if headers else "c-compiler", title, text)


_WITH_PYTHON = "python"
_PACKAGES: tuple[tuple[str, tuple[str, str]], ...] = (
    (r"debian|ubuntu", ("python{0}-dev", "build-essential")),
    (r"suse|sles", ("python{1}-devel", "gcc-c++")),
    (r"fedora|rhel|centos|rocky|almalinux|\bol\b|\bamzn\b", ("python{0}-devel", "gcc-c++")),
    (r"\barch|manjaro|cachyos|endeavouros", (_WITH_PYTHON, "base-devel")),
    (r"alpine", ("python3-dev", "build-base")),
    (r"void", ("python3-devel", "base-devel")),
    (r"gentoo", (_WITH_PYTHON, "sys-devel/gcc")),
)
"""The packages of each family of distributions: Python's headers, and a C compiler with C++."""
