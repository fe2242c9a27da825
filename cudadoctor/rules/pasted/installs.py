"""What pasted commands and logs of installers prove: rules for reports only.

Hosts have no such texts, so these rules stand apart from those that judge hosts too.
"""

import re
from typing import NamedTuple

from packaging.version import Version

from cudadoctor.knowledge import Knowledge
from cudadoctor.knowledge.offers import PYPI
from cudadoctor.model.findings import LIKELY, POSSIBLE, Confidence, Remedies, Remedy, Risk
from cudadoctor.model.machine import Install, Machine, OptInt, OptStr, Strings
from cudadoctor.model.requirements import COMPANIONS
from cudadoctor.model.rule import Answer, Found, rule
from cudadoctor.model.trust import PLACEHOLDER
from cudadoctor.plan.remedies import (
    by_hand,
    install_companion,
    install_packages,
    install_python,
    install_torch,
)
from cudadoctor.rules.evidence.signs import WORDS, gpu_present
from cudadoctor.rules.pasted.refusals import (
    CONDA,
    INDEX,
    PLATFORM,
    PYTHON,
    Refused,
    conda_refusals,
    index_of,
    offers_of,
    refusals,
    searched_by,
    wanted_by,
)
from cudadoctor.solver.demand import platform_of

_BROKEN_NETWORK = frozenset({"download-failed", "hashes-differ"})
"""Symptoms after which what an installer says of versions means nothing."""


def _network_broken(m: Machine) -> bool:
    return any(symptom.key in _BROKEN_NETWORK for symptom in m.symptoms or ())


def _refused(m: Machine, kb: Knowledge, cause: str) -> Refused | None:
    """The refusal with that cause, where it is the one that counts."""
    # A Jetson's torch is in no index that a refusal speaks of.
    found = (
        []
        if _network_broken(m) or m.platform.jetson
        else [*refusals(m, kb), *conda_refusals(m, kb)]
    )
    best = min(found, key=lambda refused: (refused.confidence, refused.place), default=None)
    return best if best is not None and best.cause == cause else None


def _found(refused: Refused | None, m: Machine, remedies: Remedies, why: OptStr = None) -> Answer:
    if refused is None:
        return None
    evidence = {"refused": True, "indexes": (m.installs or ())[refused.place].indexes}
    paths = [f"installs.{refused.place}.{fact}" for fact, known in evidence.items() if known]
    return Found(
        evidence=(*paths, *(("python.version",) if m.python.version else ())),
        values={**refused.values},
        confidence=refused.confidence,
        why=_WHY.get(refused.kind, why),
        remedies=remedies,
    )


@rule(
    "platform-unsupported",
    title="{wanted} is not available for this operating system or CPU",
    essential=False,
)
def refused_for_platform(m: Machine, kb: Knowledge) -> Answer:
    """This release has no wheel for this system.

    CUDA builds exist for 64-bit Linux with glibc and for Windows. torch 2.2 was the last release
    for Macs with Intel processors. There have never been CUDA builds for 32-bit systems, Windows on
    ARM or musl (Alpine).

    Fix: use another release, a CPU build, or a system that torch supports.
    """
    words = by_hand(
        "other-platform",
        "Use a system that torch supports",
        (
            "Use a 64-bit Python on Windows or on a Linux system (or container) with glibc. On a "
            "Mac, install torch from PyPI, without a CUDA variant."
        ),
    )
    return _found(_refused(m, kb, PLATFORM), m, words)


@rule(
    "torch-python-unsupported",
    title="{wanted} does not support this Python version",
    essential=False,
)
def refused_for_python(m: Machine, kb: Knowledge) -> Answer:
    """On this system, this release has wheels only for Python {pythons}.

    pip and uv ignore wheels for other Python versions and then say "Could not find a version that
    satisfies the requirement". Check by hand: compare `python --version` with the cpXY tags on
    https://download.pytorch.org/whl/torch/.

    Fix: create an environment with a Python version that this release supports, or use a release
    that supports your Python version.
    """
    refused = _refused(m, kb, PYTHON)
    if refused is None:
        return None
    pythons = refused.values.get("pythons", "")
    plain = (
        "Each torch release has wheels for only a few Python versions; this release has none for "
        "your Python."
    )
    name, _, release = refused.values["wanted"].partition("==")
    pin = release if name == "torch" and release else None
    remedies = with_other_python(m, kb, pythons, pin)
    return _found(refused, m, remedies, None if pythons else plain)


def with_other_python(m: Machine, kb: Knowledge, pythons: str, pin: OptStr) -> Remedies:
    """An environment with one of these Pythons ("3.9, 3.10"), and that release of torch in it."""
    remedies: Remedies = ()
    if pythons and m.platform.system is not None and (m.python.kind is not None or pin):
        remedies = install_python(m, kb, pythons.split(", "), pin)
    if pin:
        # Into the new environment comes that very release, and no other one.
        wanted = f"torch=={pin.partition('+')[0]}"
        words = (word for remedy in remedies for argv in remedy.commands for word in argv)
        brings = [word.partition("+")[0] == wanted for word in words]
        remedies = remedies if any(brings) else ()
    return remedies or _other_python(pythons)


def _other_python(pythons: str) -> Remedies:
    """An environment with the newest of these Pythons, made by uv, which brings them itself."""
    then = "then repeat the installation. Or use a release that supports your Python version."
    newest = pythons.rpartition(", ")[2]
    if not newest:
        title = "Use a Python version that this release supports"
        what = "Activate an environment with a Python version that this release supports"
        return by_hand("other-python", title, f"{what}, {then}")
    return (
        Remedy(
            id="other-python",
            title=f"Create an environment with Python {newest}",
            commands=(("uv", "venv", "--python", newest, ".venv-torch"),),
            note=f"Activate the environment, {then}",
        ),
    )


@rule(
    "torch-index-wrong",
    title="This package index does not have {wanted}",
    essential=False,
)
def refused_by_index(m: Machine, kb: Knowledge) -> Answer:
    """This release exists for this Python and system, but in another index.

    Each CUDA version has its own torch index, and not every release was built for every CUDA
    version. Releases with a local version (+cu118) are never on PyPI, nightly builds are deleted
    after a few weeks, and some CUDA versions never had an index.

    Fix: use the index for a CUDA version that your torch release was built for.
    """
    refused = _refused(m, kb, INDEX)
    if refused is None:
        return None
    variants = tuple(filter(None, refused.values.get("variants", "").split(", ")))
    name = refused.values["wanted"].partition("==")[0]
    paired = install_companion(m, kb, name) if name in COMPANIONS else ()
    remedies = paired or _torch_here(m, kb) or _named_index(refused.values["wanted"], variants)
    if refused.kind.startswith("conda"):
        remedies = (
            Remedy(
                id="right-channel",
                title="Install torch from conda-forge",
                commands=(("conda", "install", "-c", "conda-forge", "pytorch-gpu"),),
                note="The last torch release in the pytorch channel is 2.5.1, for CUDA 11.8, 12.1 "
                "and 12.4.",
            ),
        )
    return _found(refused, m, remedies)


def _torch_here(m: Machine, kb: Knowledge) -> Remedies:
    """The build for this machine, where the report says enough of it."""
    known = m.gpus or m.platform.system == "Darwin"
    return install_torch(m, kb) if m.platform.system and known else ()


def _named_index(wanted: str = "torch", variants: Strings = ()) -> Remedies:
    """The release from the index of the variant that most drivers run, of those that it has."""
    name, _, variant = wanted.partition("+")
    for_most = [known for known in variants if known < "cu130"] or list(variants) or ["cu126"]
    asked = [known for known in variants if known[:4] == variant[:4]]
    chosen = (asked or for_most)[-1]
    url = f"https://download.pytorch.org/whl/{chosen}"
    others = ", ".join(known for known in variants if known != chosen)
    return (
        Remedy(
            id="right-index",
            title=f"Install the package from the {chosen} index",
            risk=Risk.ENVIRONMENT,
            commands=((PLACEHOLDER, "-m", "pip", "install", name, "--index-url", url),),
            note=f"Also available: {others}." if others else None,
        ),
    )


_WHY = {
    "no-such-index": "torch has no index for {variant}: it is built for only a few CUDA versions.",
    "no-such-variant": "No torch release was ever built for {variant}.",
    "no-such-build": "This release was built for {variants}, but not for the requested variant.",
    "other-variants": "The index provides this release only as {had}.",
    "wall": "This release has no wheel for {what}.",
    "wheel": "The wheel is for {tags}.",
    "no-such-release": "There is no release with this version number.",
    "nightly-deleted": "Nightly builds are deleted after a few weeks; the one from {day} is gone.",
    "nightly-elsewhere": "Nightly builds are in a separate index, /whl/nightly.",
    "conda-variant": "The pytorch-cuda package exists only for CUDA {variants}.",
    "conda-channel": "None of the searched channels has this package for this system.",
}


@rule(
    "torch-cpu-build",
    title="`{command}` installs a CPU-only build of torch",
    essential=False,
)
def cpu_build_chosen(m: Machine, kb: Knowledge) -> Answer:
    """The package index determines which build you get, and this index provides a CPU-only build.

    For Windows, PyPI has only CPU builds. Before torch 2.11, it also had only CPU builds for Linux
    on ARM. The /whl/cpu index and the conda package cpuonly always provide CPU builds.

    Fix: uninstall the CPU build, then install the CUDA build from its own index.
    """
    chosen = cpu_chosen(m, kb)
    if chosen is None:
        return None
    url = "https://download.pytorch.org/whl/cu126"
    pip = (PLACEHOLDER, "-m", "pip")
    words = Remedy(
        id="cuda-build",
        title="Install a CUDA build of torch",
        risk=Risk.ENVIRONMENT,
        commands=(
            (*pip, "uninstall", "-y", "torch"),
            (*pip, "install", "torch", "--index-url", url),
        ),
        note="For Blackwell GPUs (RTX 50, B200), use cu128 instead of cu126.",
    )
    return Found(
        evidence=(f"installs.{chosen.place}.requirements", *chosen.evidence),
        values={"command": chosen.command},
        confidence=chosen.confidence,
        why=chosen.why,
        remedies=_torch_here(m, kb) or (words,),
    )


@rule(
    "torch-index-wrong",
    title="torch has no index for {variant}, so pip installed the build from PyPI",
    essential=False,
)
def fallen_back_to_pypi(m: Machine, kb: Knowledge) -> Answer:
    """torch is built for only a few CUDA versions, and pip silently ignores an extra index that
    does not exist.

    With --extra-index-url or -f, pip falls back to PyPI. On Windows, PyPI has a CPU build; on
    Linux, it has a build for a CUDA version that may not be the one you wanted.

    Fix: use --index-url with the index for a CUDA version that this release was built for.
    """
    chosen = cpu_chosen(m, kb)
    if chosen is None or not chosen.unknown_index:
        return None
    return Found(
        evidence=(f"installs.{chosen.place}.indexes",),
        values={"variant": chosen.unknown_index},
        sure=False,
        remedies=_named_index(),
    )


@rule(
    "torch-index-wrong",
    title="The index for {variant} has no torch build, so pip installed the build from PyPI",
    essential=False,
)
def variant_not_given(m: Machine, kb: Knowledge) -> Answer:
    """pip silently ignores an extra index that has no matching file.

    The installed version has no suffix such as +cu126, so it is the build from PyPI, which may be
    for a different CUDA version than the one you wanted.

    Fix: use --index-url with the index for a CUDA version that this release was built for.
    """
    got = fallen_back(m, kb)
    if got is None or cpu_chosen(m, kb) is not None:
        return None
    place, name = got
    return Found(
        evidence=(f"installs.{place}.indexes", f"installs.{place}.installed"),
        values={"variant": name},
        sure=False,
        remedies=_named_index(),
    )


@rule(
    "triton-broken",
    title="{wanted} has no wheel for this system",
    essential=False,
)
def triton_refused(m: Machine, kb: Knowledge) -> Answer:
    """The triton package exists only for Linux, and each release supports only a few Python
    versions.

    pip says "Could not find a version that satisfies the requirement triton".

    Fix: on Windows, install triton-windows instead. Triton is not available on a Mac; install the
    package that requires Triton without this dependency. On Linux, installing torch also installs
    the matching Triton version.
    """
    place = _refused_place(m, r"(pytorch-)?triton(?![\w-])")
    if place is None:
        return None
    words = by_hand(
        "no-triton",
        "Install without triton",
        "Remove triton from the requirements. On Linux, torch pulls in the right version.",
    )
    windows = m.platform.system == "Windows"
    return Found(
        evidence=(f"installs.{place}.refused",),
        values={"wanted": (m.installs or ())[place].refused or "triton"},
        confidence=LIKELY if m.platform.system in (None, "Windows") else POSSIBLE,
        remedies=(
            windows
            and (
                install_companion(m, kb, "triton-windows")
                or install_packages(
                    "triton-windows", "Install Triton for Windows", "triton-windows"
                )
            )
        )
        or words,
    )


@rule(
    "platform-unsupported",
    title="{wanted} is an NVIDIA library that is not available for this system",
    essential=False,
)
def cuda_library_refused(m: Machine) -> Answer:
    """NVIDIA's library wheels exist only for 64-bit Linux and Windows.

    A requirements file made with `pip freeze` on Linux lists these wheels, so it cannot be
    installed on a Mac.

    Fix: remove the nvidia-* lines from the requirements file. Installing torch also installs the
    libraries that it needs.
    """
    place = _refused_place(m, "nvidia-")
    if place is None or m.platform.system not in ("Darwin", "Windows"):
        return None
    mac = m.platform.system == "Darwin"
    return Found(
        evidence=(f"installs.{place}.refused", "platform.system"),
        values={"wanted": (m.installs or ())[place].refused or ""},
        confidence=LIKELY if mac else POSSIBLE,
        remedies=by_hand(
            "no-nvidia-wheels",
            "Remove the nvidia-* lines from the requirements",
            "Run `sed '/^nvidia-/d' requirements.txt > requirements-here.txt` and install from "
            "the new file. torch pulls in the libraries that it needs.",
        ),
    )


@rule(
    "torch-extension-abi",
    title="The wheel {wanted} was built for a different Python, system or torch",
    essential=False,
)
def extension_wheel_refused(m: Machine, kb: Knowledge) -> Answer:
    """A wheel's file name shows which Python and system it was built for: here, {tags}.

    pip refuses a wheel whose tags do not match your Python and system ("is not a supported wheel on
    this platform"). Wheels of compiled extensions are also built for one torch release and one CUDA
    version.

    Fix: install the wheel that was built for your Python version, system and torch release.
    """
    for place, install in enumerate(m.installs or ()):
        refused = install.refused if install.tool == "pip" else None
        wanted = wanted_by(refused) if refused else None
        compiled = any(tag.startswith("cp") for tag in install.made_for)
        if wanted is not None and compiled and not offers_of(kb).of(wanted.name):
            return Found(
                evidence=(f"installs.{place}.refused",),
                values={"wanted": refused, "tags": ", ".join(install.made_for)},
                sure=False,
                remedies=by_hand(
                    "fitting-wheel",
                    "Install the wheel built for this Python, system and torch",
                    (
                        "`python -m pip debug --verbose` lists the compatible tags (cp312 for "
                        "Python 3.12). The torch and CUDA versions in the wheel's name must "
                        "match the installed torch. If there is no such wheel, build the package "
                        "from source."
                    ),
                ),
            )
    return None


def _refused_place(m: Machine, name: str) -> OptInt:
    """The first install that was refused a package whose name matches."""
    for place, install in enumerate((not _network_broken(m) and m.installs) or ()):
        if re.match(name, (install.refused or "").lower().replace("_", "-")):
            return place
    return None


CUDA_ON_ARM = Version("2.11")
"""The first release whose Linux wheel for ARM on PyPI is a CUDA build."""
CUDA_ON_ARM_SINCE = "2026-03-23"
_WANTED_CUDA = WORDS["cuda-wanted"]
_CPU_SEEN = WORDS["cpu-build-seen"]
"""Symptoms that show a CPU build, whatever the day of the report."""
_COMPLAINTS = ("compiled with cuda", "cuda is not available", "is_available() false")


_OF_A_VARIANT = re.compile(r"/whl/(?P<name>(?P<nightly>nightly/)?cu\d{2,3})\b")
_PLAIN = re.compile(r"torch==\d[\d.]*")
"""torch as PyPI names it: the builds of torch's own indexes carry their variant, or a day."""


class Chosen(NamedTuple):
    """An install that gives a CPU build, and how that is known.

    unknown_index: an index it names that never was.
    """

    place: int
    command: str
    why: str
    confidence: Confidence
    evidence: Strings
    unknown_index: str = ""


def _latest_first(m: Machine) -> list[tuple[int, Install]]:
    return list(enumerate(m.installs or ()))[::-1]


def cpu_chosen(m: Machine, kb: Knowledge) -> Chosen | None:
    """The last install of torch, where it gives a CPU build and CUDA was wanted."""
    if m.torch.build not in (None, "cpu") or not (m.installs and _cuda_wanted(m)):
        return None
    for place, install in _latest_first(m):
        asked = [text for text in (*install.requirements, *install.installed) if _is_torch(text)]
        if asked and not install.failed and not _unsolved(install, m):
            found = _outright(install, place) or _by_index(install, place, asked[0], m, kb)
            if found is not None and m.torch.build == "cpu":
                return found._replace(confidence=min(found.confidence, LIKELY))
            return found
    return None


def fallen_back(m: Machine, kb: Knowledge) -> tuple[int, str] | None:
    """The last install that named a variant and got PyPI's torch, and that variant."""
    for place, install in _latest_first(m):
        if any(_PLAIN.fullmatch(text) for text in install.installed):
            for found in filter(None, map(_OF_A_VARIANT.search, install.indexes)):
                if found["nightly"] or found["name"] not in offers_of(kb).indexes:
                    return place, found["name"]
    return None


def _unsolved(install: Install, m: Machine) -> bool:
    """Whether conda found no solution: then nothing of that command came in."""
    unsolved = any(symptom.key == "conda-cannot-install" for symptom in m.symptoms or ())
    return unsolved and install.tool in CONDA and not install.installed


def _cuda_wanted(m: Machine) -> bool:
    """Whether the report shows that CUDA was looked for and not found, or a GPU beside it."""
    seen = m.torch.imported
    if seen is not None and seen.cuda_available is not None:
        return not seen.cuda_available
    if gpu_present(m) is True and m.torch.build == "cpu":
        return True
    return any(
        symptom.key in _WANTED_CUDA or any(words in symptom.text.lower() for words in _COMPLAINTS)
        for symptom in m.symptoms or ()
    )


def _is_torch(text: str) -> bool:
    return re.match(r"(?:[\w.-]+::)?(?:py)?torch(?:-cpu|-gpu)?(?![\w-])", text) is not None


def _outright(install: Install, place: int) -> Chosen | None:
    """CPU builds that were named as such."""
    words = (*install.requirements, *install.installed)
    if any(
        re.match(r"(?:[\w.-]+::)?(?:cpuonly|pytorch-cpu)\b", text)
        or (_is_torch(text) and re.search(r"\+cpu|[=_*]cpu[_*]", text))
        for text in words
    ):
        why = _BY_NAME
    elif "--torch-backend=cpu" in install.options or "cpu" in map(index_of, install.indexes):
        why = _CPU_INDEX
    else:
        return None
    evidence = (f"installs.{place}.indexes",) if install.indexes else ()
    return Chosen(place, _command(install), why, LIKELY, evidence)


_BY_NAME = "The command requests a CPU-only build."
_CPU_INDEX = "The /whl/cpu index contains only builds without CUDA."
_WINDOWS = "For Windows, PyPI only has torch builds without CUDA."


def _by_index(install: Install, place: int, asked: str, m: Machine, kb: Knowledge) -> Chosen | None:
    """What PyPI gives on this platform, where pip fell back on it or was given nothing else."""
    searched, known = searched_by(install).indexes, offers_of(kb).indexes
    unknown = sorted(name for name in searched if name[2:].isdigit() and name not in known)
    backend = any(option.startswith("--torch-backend") for option in install.options)
    if install.tool in CONDA or PYPI not in searched or backend or searched - {PYPI, *unknown}:
        return None
    platform = platform_of(m)
    why, sure, fact = _WINDOWS, LIKELY, "platform.system"
    if platform == "linux_aarch64":
        why, fact = _ARM, "platform.machine"
        wanted = wanted_by(asked)
        if wanted is not None and wanted.version is not None:
            cuda = wanted.version.release >= CUDA_ON_ARM.release
        else:
            cuda = (m.date or "") >= CUDA_ON_ARM_SINCE
            seen = {symptom.key for symptom in m.symptoms or ()}
            if m.date is None and seen.isdisjoint(_CPU_SEEN):
                why, sure = _ARM_UNDATED, POSSIBLE
        if cuda:
            return None
    elif platform != "windows_amd64" and (platform or m.platform.system != "Windows"):
        return None
    return Chosen(place, _command(install), why, sure, (fact,), next(iter(unknown), ""))


_ARM = "Before torch 2.11 (March 2026), PyPI's builds for Linux on ARM had no CUDA support."
_ARM_UNDATED = (
    "Before torch 2.11 (March 2026), PyPI's builds for Linux on ARM had no CUDA support; this "
    "report is undated."
)


def _command(install: Install) -> str:
    return f"{install.tool} install {' '.join(install.requirements[:3]) or 'torch'}"
