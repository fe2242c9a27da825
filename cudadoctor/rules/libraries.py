"""Do torch's libraries come from its own set, whole and in the versions that it pins?"""

from __future__ import annotations

import re

from cudadoctor.knowledge import Knowledge
from cudadoctor.model.findings import (
    ERROR,
    WARNING,
    Remedies,
)
from cudadoctor.model.machine import Machine, OptStr, lookup
from cudadoctor.model.rule import Answer, Found, rule
from cudadoctor.model.versions import version_of
from cudadoctor.plan.remedies import by_hand, install_packages, reinstall_torch
from cudadoctor.rules.evidence.devices import refused
from cudadoctor.rules.evidence.libraries import (
    META,
    Pin,
    applies,
    compared,
    foreign,
    gravity,
    import_fails,
    in_use,
    is_own,
    library_pins,
    need_import,
    proven_sound,
    way_out,
)
from cudadoctor.rules.evidence.signs import error_with

_LIBRARY = re.compile(r"nvidia-(?P<base>[a-z][a-z-]*?)(?:-cu(?P<major>\d+))?")
_ONE_NAME_IN_ALL_CUDA_12 = frozenset({"curand", "cusolver", "nvtx"})
"""Libraries whose soname is the same in CUDA 11 and 12, in the same folder."""
_ONE_NAME_IN_ALL = frozenset({"nccl", "cusparselt", "nvshmem"})
"""Libraries whose soname and folder are the same for every CUDA."""
_OTHERS = r"lib(cudart|nvrtc|cupti|cusparse|cufft|curand|cusolver|cufile|nvToolsExt|nvshmem)"


@rule(
    "nvidia-wheels-mixed",
    title="{what}",
    essential=False,
)
def nvidia_wheels_mixed(m: Machine, kb: Knowledge) -> Answer:
    """torch was compiled against exact versions of CUDA's libraries, and others lie in their place.

    torch pins them in its metadata: one by one up to 2.10, from 2.11 on through the package
    cuda-toolkit. Another package, an upgrade or a requirements file replaced one of them, or
    wheels for two CUDA majors write into the same folder: cuDNN, NCCL, cuSPARSELt and NVSHMEM of
    every CUDA, and cuRAND, cuSOLVER and NVTX of 11 and 12. What is only left over from an older
    torch, under names of its own, is harmless.

    Told from the shadowed libraries, whose wrong copy lies outside of this environment. Cured by
    uninstalling the strangers first and then installing torch's pinned set, or by a new
    environment: uninstalling afterwards deletes files of both.
    """
    if not applies(m) or m.platform.system != "Linux":
        return None
    pins = library_pins(m, kb)
    wrong = [pin for pin in pins if pin.installed is not None and not pin.met]
    overwriting = _overwriting(m, pins)
    if overwriting:
        wheel, pin = overwriting[0]
        what = f"{wheel} and {pin.name} of two CUDA versions write into one folder"
    elif wrong:
        what = f"torch pins {wrong[0].requirement}, and {wrong[0].installed} is installed"
    else:
        return None
    return Found(
        evidence=("packages", "torch.requires"),
        values={"what": what},
        sure=False,
        severity=None if _breaks(m, kb, wrong, overwriting) else WARNING,
        remedies=_pinned_again(m, kb, wrong, overwriting),
    )


def _overwriting(m: Machine, pins: tuple[Pin, ...]) -> list[tuple[str, Pin]]:
    """Installed wheels that overwrite files of a pinned one, each with the pinned one."""
    ours = {base: pin for pin in pins if (base := _base(pin.name)[0])}
    found = []
    for package in m.packages or ():
        base, major = _base(package.name)
        pin = ours.get(base)
        if pin is not None and package.name != pin.name:
            version, pinned = version_of(package.version), pin.installed
            same_cudnn = base == "cudnn" and version and pinned and version.major == pinned.major
            twelve = base in _ONE_NAME_IN_ALL_CUDA_12 and _base(pin.name)[1] == "12"
            if base in _ONE_NAME_IN_ALL or same_cudnn or (twelve and major == "11"):
                found.append((package.name, pin))
    return found


def _base(name: str) -> tuple[str, OptStr]:
    """The product of a wheel's name, and its CUDA major."""
    found = _LIBRARY.fullmatch(name)
    return (found["base"], found["major"]) if found else ("", None)


def _breaks(
    m: Machine, kb: Knowledge, wrong: list[Pin], overwriting: list[tuple[str, Pin]]
) -> bool:
    """Whether torch cannot work so; a newer version of the same major is merely fragile."""
    if import_fails(m):
        return True
    if proven_sound(m):
        return False
    return any(
        _is_older(pin) or (_base(pin.name)[0] == "cudnn" and refused(pin.installed, m, kb))
        for pin in wrong
    ) or any(not _kept_its_file(m, pin) for _, pin in overwriting)


def _is_older(pin: Pin) -> bool:
    if pin.name == META:
        return False
    wanted = re.search(r"==\s*([\d.]+?)(?:\.\*)?$", pin.wanted)
    if wanted is None or pin.installed is None:
        return True
    least = version_of(wanted[1])
    return least is not None and (pin.installed < least or pin.installed.major != least.major)


def _kept_its_file(m: Machine, pin: Pin) -> bool:
    """Whether the file in the shared folder is still the pinned wheel's."""
    stem = f"lib{_base(pin.name)[0]}".lower()
    uses = in_use(m) if m.libraries.mapped or m.libraries.predicted else ()
    own = [
        use.library.version
        for use in uses
        if use.library.soname.lower().startswith(stem)
        and use.library.version
        and is_own(m, use.library)
    ]
    return bool(own) and all(compared(version, str(pin.installed)) == 0 for version in own)


def _pinned_again(
    m: Machine, kb: Knowledge, wrong: list[Pin], overwriting: list[tuple[str, Pin]]
) -> Remedies:
    hurt = {pin.name: pin for pin in (*wrong, *(pin for _, pin in overwriting))}
    if META in hurt:
        return reinstall_torch(m, kb)
    remove = (*(name for name, _ in overwriting), *(pin.name for _, pin in overwriting))
    return install_packages(
        "pinned-libraries",
        "Install the versions that torch pins",
        *(pin.requirement for pin in hurt.values()),
        remove=tuple(dict.fromkeys(remove)),
    ) + reinstall_torch(m, kb)


@rule(
    "cudnn-shadowed",
    title="cuDNN{version} comes from {path}, not from torch's own set{own}",
    essential=False,
)
def cudnn_shadowed(m: Machine, kb: Knowledge) -> Answer:
    """torch brings the cuDNN that it was compiled against; with an older one it refuses to run.

    The files of the process (its maps) prove it; before that, the loader's rules predict it:
    LD_PRELOAD, RPATH of the library that asks, LD_LIBRARY_PATH, RUNPATH, the loader's cache. A
    newer minor version of the same major works and is a warning, for cuDNN loads further parts
    of itself by name and mixed parts fail. A torch of conda, the system or a vendor's image that
    brings no cuDNN uses theirs rightly.

    Told from cudnn-missing-sublib, where all parts come from one place. Cured by starting the
    program without the variable. Installing cuDNN into the system cures nothing.
    """
    return _shadowed(
        m, kb, r"libcudnn", "cuDNN version incompatibility", "version of cudnn", parts=2
    )


@rule(
    "cublas-mismatch",
    title="{soname}{version} comes from {path}, not from torch's own set{own}",
    essential=False,
)
def cublas_mismatch(m: Machine, kb: Knowledge) -> Answer:
    """cuBLAS and cuBLASLt call each other by exact version, and one of them is not torch's.

    An older copy lacks functions ("undefined symbol: cublasLt..."), or matrix products fail.
    CUBLAS_STATUS_NOT_INITIALIZED alone is mostly lack of memory. A toolkit's lib64 on
    LD_LIBRARY_PATH is the usual way in, since torch reaches cuBLASLt by RUNPATH.

    Cured by starting the program without the variable.
    """
    return _shadowed(m, kb, r"libcublas", "undefined symbol: cublas", "symbol cublas")


@rule(
    "nccl-shadowed",
    title="NCCL{version} comes from {path}, not from torch's own set{own}",
    essential=False,
)
def nccl_shadowed(m: Machine, kb: Knowledge) -> Answer:
    """torch brings its own NCCL; an older one in its place lacks functions that torch calls.

    It shows as "undefined symbol: ncclCommWindowRegister" or another new function while torch is
    imported, or as ranks that disagree about the version. A newer one works, and is a warning
    since nobody tested the pair. Images for a cluster set it on purpose with their own network
    plug-ins.

    Cured by starting the program without the variable, or by removing the other copy's path.
    """
    return _shadowed(m, kb, r"libnccl\.", "undefined symbol: nccl")


@rule(
    "nvjitlink-mismatch",
    title="nvJitLink{version} comes from {path}, not from torch's own set{own}",
    essential=False,
)
def nvjitlink_mismatch(m: Machine, kb: Knowledge) -> Answer:
    """cuSPARSE asks nvJitLink for a function by its CUDA version, and an older copy lacks it.

    The words are "undefined symbol: __nvJitLinkComplete_12_4, version libnvJitLink.so.12"; the
    number is the CUDA of the cuSPARSE that asks. Mostly the lib64 of an older toolkit stands on
    LD_LIBRARY_PATH. A newer nvJitLink of the same major serves older callers.

    Told from nvidia-wheels-mixed, where the old copy is a wheel of this environment.
    """
    return _shadowed(m, kb, r"libnvJitLink", "__nvJitLink")


@rule(
    "cuda-lib-shadowed",
    title="{soname}{version} comes from {path}, not from torch's own set{own}",
    essential=False,
)
def cuda_lib_shadowed(m: Machine, kb: Knowledge) -> Answer:
    """A library of another CUDA is loaded in place of the one that torch was compiled against.

    This is about the CUDA runtime, NVRTC, CUPTI, cuSPARSE, cuSPARSELt, cuFFT, cuRAND, cuSOLVER and
    NVSHMEM. An older copy lacks functions; a newer one of the same major works and is a warning.
    LD_LIBRARY_PATH does not win over DT_RPATH, but does over DT_RUNPATH: the tags of each library
    were read before this was said.

    Cured by starting the program without the variable.
    """
    words = ("undefined symbol: cusparse", "undefined symbol: cupti", "undefined symbol: cuda")
    return _shadowed(m, kb, _OTHERS, *words)


def _shadowed(m: Machine, kb: Knowledge, pattern: str, *words: str, parts: int = 4) -> Answer:
    spoken, here = error_with(m, *words), error_with(m, *words, pasted=False)
    if here and not (m.libraries.mapped or m.libraries.predicted):
        return _by_words(here, pattern)
    if not applies(m):
        return None
    graded = [
        (rank, use) for use in foreign(m, pattern) if (rank := gravity(m, use, parts)) is not None
    ]
    if not graded:
        return _by_words(here, pattern) if here and not m.libraries.missing else None
    rank, worst = min(graded, key=lambda pair: pair[0])
    library = worst.use.library
    if library.soname.startswith("libcudnn") and refused(version_of(library.version), m, kb):
        rank = ERROR
    return Found(
        evidence=(worst.use.path, "libraries.own", spoken),
        values={
            "soname": library.soname,
            "version": f" {library.version}" if library.version else "",
            "path": library.path,
            "own": f" ({worst.own})" if worst.own else "",
        },
        sure=spoken or worst.use.proven,
        severity=ERROR if spoken else rank,
        remedies=way_out(m, kb, library),
    )


def _by_words(spoken: str, pattern: str) -> Found:
    """The loader's own words prove it where the files are not known."""
    name = pattern.replace("\\.", "")
    return Found(
        evidence=(spoken,),
        values={"soname": name, "version": "", "path": "another CUDA", "own": ""},
        sure=False,
        title=None if name.isidentifier() else "A library of another CUDA is loaded before torch's",
        remedies=by_hand(
            "own-libraries",
            "Let torch load its own libraries",
            "Start the program with LD_LIBRARY_PATH and LD_PRELOAD unset.",
        ),
    )


@rule(
    "cudnn-missing-sublib",
    title="The parts of cuDNN do not belong together: {what}",
    essential=False,
)
def cudnn_missing_sublib(m: Machine, kb: Knowledge) -> Answer:
    """cuDNN loads its parts when they are first needed, and one is absent or of another version.

    "Unable to load any of libcudnn_ops.so.9" and CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH say so.
    The files were deleted, or two wheels wrote them one after the other. Told from cudnn-shadowed,
    where some part lies outside of torch's own set. CUDNN_STATUS_NOT_INITIALIZED and
    INTERNAL_ERROR alone are often lack of memory.

    Cured by installing torch's own cuDNN wheel again.
    """
    words = ("Unable to load any of {libcudnn", "SUBLIBRARY_VERSION_MISMATCH", "library libcudnn_")
    spoken = error_with(m, *words, pasted=False)
    what, evidence = "it says so itself", spoken
    if not spoken and applies(m):
        what, evidence = _odd_part(m)
    if not evidence:
        return None
    wheel = next((p for p in m.packages or () if _base(p.name)[0] == "cudnn"), None)
    remedies = reinstall_torch(m, kb)
    if wheel:
        again, name = f"{wheel.name}=={wheel.version}", wheel.name
        remedies = install_packages("reinstall-cudnn", "Install cuDNN again", again, remove=(name,))
    return Found(evidence=(evidence,), values={"what": what}, sure=spoken, remedies=remedies)


def _odd_part(m: Machine) -> tuple[str, OptStr]:
    """A part of cuDNN that is missing or of another version than the rest, and its fact."""
    parts = [use for use in in_use(m) if use.library.soname.startswith("libcudnn")]
    gone = [name for name in m.libraries.missing or () if name.startswith("libcudnn_")]
    if gone and parts:
        return f"nothing provides {gone[0]}", "libraries.missing"
    if all(is_own(m, part.library) for part in parts):
        for part in parts[1:]:
            this, other = part.library, parts[0].library
            if compared(this.version, other.version) not in (0, None):
                return f"{this.soname} is {this.version}, {other.soname} {other.version}", part.path
    return "", None


@rule("libstdcxx-old", title="{path} is too old for this torch", essential=False)
def libstdcxx_old(m: Machine) -> Answer:
    """A compiled file asks for {symbol}, which the libstdc++ that is loaded first does not have.

    The loader names the file in its words. In conda environments it is often conda's own older
    copy, or the system's where conda's newer one was expected. GLIBC in place of GLIBCXX is
    another matter: then the whole system is too old, which is platform-unsupported.

    Cured by a newer libstdcxx-ng of conda-forge in that environment, or by starting the program
    without the LD_LIBRARY_PATH that brings the old copy.
    """
    if m.torch.installed is False:
        return None
    spoken = error_with(m, "GLIBCXX_", "CXXABI_", pasted=False)
    if spoken is None:
        need_import(m)
        return None
    text = _words(m, spoken)
    named = re.search(r"(/[^\s:'\"]*libstdc\+\+[^\s:'\"]*)", text)
    symbol = re.search(r"(?:GLIBCXX|CXXABI)_[\d.]*\d", text)
    return Found(
        evidence=(spoken,),
        values={
            "path": named[1] if named else "libstdc++.so.6",
            "symbol": symbol[0] if symbol else "a newer GLIBCXX",
        },
        remedies=by_hand(
            "newer-libstdcxx",
            "Load a newer libstdc++",
            (
                "In a conda environment, run conda install -c conda-forge 'libstdcxx-ng>=13'; "
                "otherwise "
                "start the program without LD_LIBRARY_PATH, or use a newer system or image."
            ),
        ),
    )


def _words(m: Machine, path: str) -> str:
    return str(lookup(m, path) or "")
