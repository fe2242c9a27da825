"""What pasted commands and logs of installers prove: rules for reports only.

Hosts have no such texts, so these rules stand apart from those that judge hosts too.
"""

import re
from typing import NamedTuple

from packaging.version import Version

from cudadoctor.knowledge import Knowledge
from cudadoctor.knowledge.offers import PYPI
from cudadoctor.model.findings import LIKELY, POSSIBLE, Confidence, Remedies
from cudadoctor.model.machine import Install, Machine, OptInt, OptStr, Strings
from cudadoctor.model.rule import Answer, Found, rule
from cudadoctor.plan.remedies import by_hand, install_packages, install_python, install_torch
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
    found = [] if _network_broken(m) else [*refusals(m, kb), *conda_refusals(m, kb)]
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
    title="No build of {wanted} exists for this system or processor",
    essential=False,
)
def refused_for_platform(m: Machine, kb: Knowledge) -> Answer:
    """Nobody publishes this release for the system that asked for it.

    CUDA builds are made for 64-bit Linux with glibc and for Windows. Macs with Intel processors
    got their last release with torch 2.2, and 32-bit systems, Windows on ARM, musl and other
    processors never had one of these.

    Way out: another release, a build for the CPU, or a system that torch is built for.
    """
    words = by_hand(
        "other-platform",
        "Use a system that has builds",
        (
            "Use a 64-bit Python on a system that torch is built for, or a container of one. "
            "On a Mac ask for the plain release without a CUDA variant."
        ),
    )
    return _found(_refused(m, kb, PLATFORM), m, words)


@rule(
    "torch-python-unsupported",
    title="{wanted} is not made for the Python that asked for it",
    essential=False,
)
def refused_for_python(m: Machine, kb: Knowledge) -> Answer:
    """This release exists on this system, for other Pythons only: {pythons}.

    pip and uv pass over the wheels of other Pythons, and say then that no version satisfies the
    requirement. Told from the Python where the report names it, else from the versions that were
    offered instead: each Python is offered others.

    Cured by an environment with one of those Pythons, or by a release that is made for this one.
    """
    refused = _refused(m, kb, PYTHON)
    if refused is None:
        return None
    pythons = refused.values.get("pythons", "")
    plain = "Each release of torch is made for a few versions of Python, and not for this one."
    made = f" ({pythons})" if pythons else ""
    by_words = by_hand(
        "other-python",
        "Use a Python that this release is made for",
        (
            f"Make an environment with one of the Pythons it is made for{made}, or ask for a "
            "release that is made for this one."
        ),
    )
    name, _, release = refused.values["wanted"].partition("==")
    pin = release if name == "torch" and release else None
    remedies: Remedies = ()
    if pythons and m.platform.system is not None and m.python.kind is not None:
        remedies = install_python(m, kb, pythons.split(", "), pin)
    if pin:
        # Into the new environment comes that very release, and no other one.
        pins = {f"torch=={pin}", f"torch=={pin.partition('+')[0]}"}
        brings = [not pins.isdisjoint(argv) for remedy in remedies for argv in remedy.commands]
        remedies = remedies if any(brings) else ()
    return _found(refused, m, remedies or by_words, None if pythons else plain)


@rule(
    "torch-index-wrong",
    title="The index that was asked does not have {wanted}",
    essential=False,
)
def refused_by_index(m: Machine, kb: Knowledge) -> Answer:
    """This release exists for this Python and system, in another index than the one asked.

    Every CUDA variant of torch has an index of its own, and not each release was built for each
    variant. A release with a local version (+cu118) is never on PyPI, nightly builds are deleted
    after some weeks, and some CUDA versions never had an index.

    Cured by the index of a variant that this release was built for.
    """
    refused = _refused(m, kb, INDEX)
    if refused is None:
        return None
    remedies = _torch_here(m, kb) or _named_index(refused.values.get("variants", ""))
    if refused.kind.startswith("conda"):
        remedies = by_hand(
            "right-channel",
            "Ask a channel that has it",
            (
                "The pytorch channel ended with torch 2.5.1, for CUDA 11.8, 12.1 and 12.4. Take "
                "pytorch-gpu from conda-forge with cuda-version, or pip's wheel from torch's own "
                "index."
            ),
        )
    return _found(refused, m, remedies)


def _torch_here(m: Machine, kb: Knowledge) -> Remedies:
    """The build for this machine, where the report says enough of it."""
    return install_torch(m, kb) if m.platform.system and m.gpus else ()


def _named_index(variants: str) -> Remedies:
    text = (
        "Take the index of a CUDA version that this release was built for: "
        "--index-url https://download.pytorch.org/whl/ followed by "
    )
    text += f"one of {variants}." if "," in variants else f"{variants or 'its name'}."
    return by_hand("right-index", "Ask the index that has it", text)


_WHY = {
    "no-such-index": "There never was an index of torch for {variant}: torch is built for a few "
    "CUDA versions only.",
    "no-such-variant": "No release of torch was ever built as {variant}.",
    "no-such-build": "This release was built as {variants}, and not as what was asked for.",
    "other-variants": "The index that was asked has this release as {had} only.",
    "wall": "Nobody builds this release of torch for {what}.",
    "wheel": "The wheel is made for {tags}.",
    "no-such-release": "No release of that number is known.",
    "nightly-deleted": "Nightly builds are deleted after some weeks, and that of {day} is gone.",
    "nightly-elsewhere": "Nightly builds are in an index of their own, which was not asked.",
    "conda-variant": "The package pytorch-cuda was made for CUDA {variants} only.",
    "conda-channel": "None of the channels that were searched has it for this system.",
}


@rule(
    "torch-cpu-build",
    title="{command} gives a CPU build of torch",
    essential=False,
)
def cpu_build_chosen(m: Machine, kb: Knowledge) -> Answer:
    """Which build comes depends on the index: this one gives a build without CUDA.

    PyPI has CPU builds only for Windows, and had only such for Linux on ARM before torch 2.11. The
    index /whl/cpu, the conda package cpuonly and build strings of cpu name it outright. Judged
    where the report shows that CUDA was wanted and not found.

    Cured by the build for the GPU from its own index, after the CPU build is uninstalled.
    """
    chosen = cpu_chosen(m, kb)
    if chosen is None:
        return None
    words = by_hand(
        "cuda-build",
        "Install the CUDA build of torch",
        (
            "Uninstall torch, then install it with --index-url https://download.pytorch.org/whl/ "
            "followed by the variant for this driver and GPU, such as cu126 or cu130."
        ),
    )
    return Found(
        evidence=(f"installs.{chosen.place}.requirements", *chosen.evidence),
        values={"command": chosen.command},
        confidence=chosen.confidence,
        why=chosen.why,
        remedies=_torch_here(m, kb) or words,
    )


@rule(
    "torch-index-wrong",
    title="There is no index of torch for {variant}, so pip took PyPI's build",
    essential=False,
)
def fallen_back_to_pypi(m: Machine, kb: Knowledge) -> Answer:
    """torch is built for a few CUDA versions only; an extra index that is not there is passed over.

    With --extra-index-url or -f pip says nothing, and installs what PyPI has: on Windows a CPU
    build, on Linux a build for another CUDA version than was asked for.

    Cured by --index-url with a variant that exists.
    """
    chosen = cpu_chosen(m, kb)
    if chosen is None or not chosen.unknown_index:
        return None
    return Found(
        evidence=(f"installs.{chosen.place}.indexes",),
        values={"variant": chosen.unknown_index},
        sure=False,
        remedies=_named_index(""),
    )


@rule(
    "torch-index-wrong",
    title="The index for {variant} gave no torch, so pip took PyPI's build",
    essential=False,
)
def variant_not_given(m: Machine, kb: Knowledge) -> Answer:
    """pip passes over an extra index that has nothing, and says no word of it.

    What came in bears no variant behind its version and no day, so it is PyPI's build, which may
    be made for another CUDA version than was asked for.

    Cured by --index-url with a variant that exists.
    """
    got = fallen_back(m, kb)
    if got is None or cpu_chosen(m, kb) is not None:
        return None
    place, name = got
    return Found(
        evidence=(f"installs.{place}.indexes", f"installs.{place}.installed"),
        values={"variant": name},
        sure=False,
        remedies=_named_index(""),
    )


@rule(
    "triton-broken",
    title="{wanted} was asked for on a system for which it has no build",
    essential=False,
)
def triton_refused(m: Machine) -> Answer:
    """The package triton is built for Linux only, each release for a few versions of Python.

    pip says that no version satisfies the requirement. On Windows the package triton-windows takes
    its place; on a Mac there is none, and what asks for it must be installed without it.

    On Linux, triton comes with torch from the same index and needs no step of its own.
    """
    place = _refused_place(m, r"(pytorch-)?triton(?![\w-])")
    if place is None:
        return None
    words = by_hand(
        "no-triton",
        "Install without the package triton",
        "On Linux, leave it to torch, which brings the release that it needs.",
    )
    windows = m.platform.system == "Windows"
    return Found(
        evidence=(f"installs.{place}.refused",),
        values={"wanted": (m.installs or ())[place].refused or "triton"},
        confidence=LIKELY if m.platform.system in (None, "Windows") else POSSIBLE,
        remedies=(
            windows
            and install_packages("triton-windows", "Install Triton for Windows", "triton-windows")
        )
        or words,
    )


@rule(
    "platform-unsupported",
    title="{wanted} is a library of NVIDIA's that this system has none of",
    essential=False,
)
def cuda_library_refused(m: Machine) -> Answer:
    """NVIDIA's library wheels are made for Linux and Windows on 64-bit processors.

    A list of requirements that was frozen on Linux names them, and cannot be installed on a Mac.

    Cured by requirements without the nvidia-* packages: torch asks for those it needs by itself.
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
            "Install without the nvidia-* packages",
            "Take the nvidia-* lines out of the requirements. torch asks for those it needs.",
        ),
    )


@rule(
    "torch-extension-abi",
    title="The wheel of {wanted} is made for another Python, system or torch",
    essential=False,
)
def extension_wheel_refused(m: Machine, kb: Knowledge) -> Answer:
    """The name of a wheel says which Python and which system it is for: here {tags}.

    pip refuses a wheel whose tags do not fit. Wheels of compiled extensions are also made for one
    release of torch and one CUDA version each, which their names may tell too.

    Cured by the wheel for this Python, this system and this torch.
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
                    "Take the wheel that fits",
                    (
                        "Take the wheel whose name has the tag of this Python (cp312 for Python "
                        "3.12), of this system, and of the installed torch and CUDA. Where there "
                        "is none, build it."
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


_BY_NAME = "It asks for the build without CUDA by its name."
_CPU_INDEX = "The index /whl/cpu holds builds without CUDA only."
_WINDOWS = "The builds of torch that PyPI has for Windows are made without CUDA."


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


_ARM = "Before torch 2.11 (March 2026) the builds that PyPI had for Linux on ARM were without CUDA."
_ARM_UNDATED = (
    "Before torch 2.11 (March 2026) the builds that PyPI had for Linux on ARM were without CUDA, "
    "and the report does not say when it was written."
)


def _command(install: Install) -> str:
    return f"{install.tool} install {' '.join(install.requirements[:3]) or 'torch'}"
