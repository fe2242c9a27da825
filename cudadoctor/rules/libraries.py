"""Do torch's libraries come from its own set, whole and in the versions that it pins?"""

from __future__ import annotations

import re

from msgspec.structs import replace

from cudadoctor.knowledge import Knowledge
from cudadoctor.model.findings import (
    ERROR,
    WARNING,
    Remedies,
)
from cudadoctor.model.machine import Machine, OptStr, lookup
from cudadoctor.model.requirements import admits
from cudadoctor.model.rule import Answer, Found, rule
from cudadoctor.model.versions import version_of
from cudadoctor.plan.remedies import (
    install_packages,
    newer_libstdcxx,
    off_search_path,
    reinstall_torch,
    unset_variables,
)
from cudadoctor.rules.evidence.devices import refused
from cudadoctor.rules.evidence.libraries import (
    META,
    Need,
    Pin,
    apart,
    applies,
    compared,
    foreign,
    gravity,
    import_fails,
    in_use,
    is_own,
    library_pins,
    need_import,
    needs_of_others,
    proven_sound,
    releases_beside,
    torch_beside,
    way_out,
)
from cudadoctor.rules.evidence.signs import error_with, variable
from cudadoctor.solver.supposed import as_listed

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
    """torch was built against specific versions of the CUDA libraries, and one of them has been
    replaced by a different version.

    torch's metadata pins the versions of the CUDA library wheels: each one individually up to torch
    2.10, and through the cuda-toolkit package since torch 2.11. Two things can go wrong: another
    package, an upgrade or a requirements file replaces one of the wheels, or wheels for two CUDA
    major versions install files into the same folder. The second case affects cuDNN, NCCL,
    cuSPARSELt and NVSHMEM for every CUDA version, and cuRAND, cuSOLVER and NVTX for CUDA 11 and 12.
    Wheels that an older torch release left behind under other names are harmless. Check by hand:
    run `python -m pip check`.

    Look-alikes: if the wrong copy of a library is outside this environment, the cause is
    cudnn-shadowed, nccl-shadowed, cublas-mismatch, nvjitlink-mismatch or cuda-lib-shadowed.

    Fix: first uninstall the wrong wheels, then install the versions that torch pins, or create a
    new environment. The order matters: uninstalling a wrong wheel after you install the right one
    also deletes files that belong to the right one.
    """
    m = as_listed(m, kb)
    if not applies(m) or m.platform.system != "Linux":
        return None
    pins = library_pins(m, kb)
    wrong = [pin for pin in pins if pin.installed is not None and not pin.met]
    overwriting = _overwriting(m, pins)
    if overwriting:
        wheel, pin = overwriting[0]
        what = f"{wheel} and {pin.name} overwrite each other's files"
    elif wrong:
        what = f"torch needs {wrong[0].requirement}, but {wrong[0].installed} is installed"
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
        mine = m.package(pin.name) if pin else None
        folders = {package.location, mine and mine.location} - {None}
        # The user's folder and the environment: neither writes into the other.
        if pin is not None and package.name != pin.name and len(folders) < 2:
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
    others = [
        need
        for pin in wrong
        for need in needs_of_others(m, kb, pin.name)
        if pin.installed and admits(need.wanted, pin.installed) and not _serves(pin, need)
    ]
    remove = (*(name for name, _ in overwriting), *(pin.name for _, pin in overwriting))
    pins = {pin.name: pin.requirement for pin in hurt.values()}
    # Another program's own release is the smaller change, where one works with what torch pins.
    moves = releases_beside(m, kb, others, pins[others[0].wheel]) if others else ()
    pinned = install_packages(
        "pinned-libraries",
        "Install the library versions that torch needs",
        *pins.values(),
        *moves,
        remove=tuple(dict.fromkeys(remove)),
    )
    return (
        *(() if moves else torch_beside(m, kb, others)),
        *(replace(way, note=None if moves else apart(others)) for way in pinned),
        *reinstall_torch(m, kb),
    )


def _serves(pin: Pin, need: Need) -> bool:
    """Whether a program also works with what torch pins."""
    wanted = version_of(pin.wanted.removeprefix("=="))
    return wanted is not None and admits(need.wanted, wanted)


@rule(
    "cudnn-shadowed",
    title="torch loads cuDNN{version} from {path} instead of its own{own}",
    essential=False,
)
def cudnn_shadowed(m: Machine, kb: Knowledge) -> Answer:
    """torch is built against its own cuDNN and refuses to run with an older one.

    Once torch has been imported, the files mapped into the process show which cuDNN is loaded.
    Before that, cudadoctor predicts it from the loader's search order: LD_PRELOAD, the RPATH of the
    library that needs cuDNN, LD_LIBRARY_PATH, RUNPATH, and the loader's cache. A newer minor
    version of cuDNN works, but cudadoctor reports it as a warning, because cuDNN later loads its
    sublibraries by name, and mixed versions fail. A torch build from conda, a Linux distribution or
    a vendor's image may not contain its own cuDNN; it is meant to use the cuDNN that conda, the
    distribution or the image provides.

    Look-alikes: if all parts of cuDNN are loaded from the same location, the cause is
    cudnn-missing-sublib.

    Fix: start the program without the environment variable that points to the wrong cuDNN.
    Installing cuDNN system-wide does not help.
    """
    return _shadowed(
        m, kb, r"libcudnn", "cuDNN version incompatibility", "version of cudnn", parts=2
    )


@rule(
    "cublas-mismatch",
    title="torch loads {soname}{version} from {path} instead of its own{own}",
    essential=False,
)
def cublas_mismatch(m: Machine, kb: Knowledge) -> Answer:
    """cuBLAS and cuBLASLt must be exactly the same version, but one of them is not the copy that
    ships with torch.

    An older copy of cuBLAS or cuBLASLt either lacks required functions ("undefined symbol:
    cublasLt...") or makes matrix products fail. CUBLAS_STATUS_NOT_INITIALIZED alone usually means
    that the GPU is out of memory. The wrong copy usually comes from a toolkit's lib64 folder on
    LD_LIBRARY_PATH, which takes precedence over the RUNPATH that torch uses to find cuBLASLt.

    Fix: start the program without the environment variable that points to the wrong copy of the
    library.
    """
    return _shadowed(m, kb, r"libcublas", "undefined symbol: cublas", "symbol cublas")


@rule(
    "nccl-shadowed",
    title="torch loads NCCL{version} from {path} instead of its own{own}",
    essential=False,
)
def nccl_shadowed(m: Machine, kb: Knowledge) -> Answer:
    """torch ships with its own NCCL; an older copy lacks functions that torch calls.

    Importing torch fails with "undefined symbol: ncclCommWindowRegister" or another undefined
    symbol, or the ranks of a job report different NCCL versions. A newer NCCL works, but cudadoctor
    reports it as a warning, because it has not been tested with this torch release. Some cluster
    images replace NCCL on purpose and add their own network plugins.

    Fix: start the program without the environment variable that points to the wrong NCCL, or remove
    that NCCL's folder from the variable.
    """
    return _shadowed(m, kb, r"libnccl\.", "undefined symbol: nccl")


@rule(
    "nvjitlink-mismatch",
    title="torch loads nvJitLink{version} from {path} instead of its own{own}",
    essential=False,
)
def nvjitlink_mismatch(m: Machine, kb: Knowledge) -> Answer:
    """cuSPARSE needs an nvJitLink function whose name contains the CUDA version, and an older
    nvJitLink lacks that function.

    The error is "undefined symbol: __nvJitLinkComplete_12_4, version libnvJitLink.so.12". The
    number at the end of the symbol (12_4) is the CUDA version of the cuSPARSE that needs the
    function. The usual cause is the lib64 folder of an older toolkit on LD_LIBRARY_PATH. A newer
    nvJitLink of the same major version works.

    Look-alikes: if the old nvJitLink is a wheel in this environment, the cause is
    nvidia-wheels-mixed.

    Fix: start the program without the environment variable that points to the wrong copy of the
    library.
    """
    return _shadowed(m, kb, r"libnvJitLink", "__nvJitLink")


@rule(
    "cuda-lib-shadowed",
    title="torch loads {soname}{version} from {path} instead of its own{own}",
    essential=False,
)
def cuda_lib_shadowed(m: Machine, kb: Knowledge) -> Answer:
    """torch was built against its own copy of this library, but the copy from another CUDA
    installation is loaded first.

    cuda-lib-shadowed covers the CUDA runtime, NVRTC, CUPTI, cuSPARSE, cuSPARSELt, cuFFT, cuRAND,
    cuSOLVER and NVSHMEM. An older copy of one of these libraries may lack functions that torch
    needs; a newer copy of the same major version works, and cudadoctor reports it as a warning.
    LD_LIBRARY_PATH overrides a library's DT_RUNPATH tag but not its DT_RPATH tag, so cudadoctor
    reads these two tags to determine which copy is loaded.

    Fix: start the program without the environment variable that points to the wrong copy of the
    library.
    """
    words = ("undefined symbol: cusparse", "undefined symbol: cupti", "undefined symbol: cuda")
    return _shadowed(m, kb, _OTHERS, *words)


def _shadowed(m: Machine, kb: Knowledge, pattern: str, *words: str, parts: int = 4) -> Answer:
    spoken, here = error_with(m, *words), error_with(m, *words, pasted=False)
    if here and not (m.libraries.mapped or m.libraries.predicted):
        return _by_words(m, kb, here, pattern)
    if not applies(m):
        return None
    graded = [
        (rank, use) for use in foreign(m, pattern) if (rank := gravity(m, use, parts)) is not None
    ]
    if not graded:
        return _by_words(m, kb, here, pattern) if here and not m.libraries.missing else None
    rank, worst = min(graded, key=lambda pair: pair[0])
    library = worst.use.library
    order = compared(library.version, worst.own)
    if library.soname.startswith("libcudnn") and refused(version_of(library.version), m, kb):
        rank = ERROR
    return Found(
        evidence=(worst.use.path, "libraries.own", spoken),
        values={
            "soname": library.soname,
            "version": f" {library.version}" if library.version else "",
            "path": library.path.rpartition("/")[0] or library.path,
            "own": f" {worst.own}" if worst.own else "",
        },
        sure=spoken or worst.use.proven,
        severity=ERROR if spoken else rank,
        why=_NEWER if order == 1 and not spoken else None,
        remedies=way_out(m, kb, library),
    )


_NEWER = "A newer version usually works, but this torch was not tested with it."


def _search_variables(m: Machine) -> list[str]:
    """The variables that lead the loader elsewhere: those that are set, both if nobody knows."""
    names = ("LD_LIBRARY_PATH", "LD_PRELOAD")
    return [name for name in names if m.env is None or variable(m, name)]


def _by_words(m: Machine, kb: Knowledge, spoken: str, pattern: str) -> Found:
    """The loader's own words prove it where the files are not known."""
    name = pattern.replace("\\.", "")
    return Found(
        evidence=(spoken,),
        values={"soname": name, "version": "", "path": "another CUDA installation", "own": ""},
        sure=False,
        title=None
        if name.isidentifier()
        else "torch loads a library from another CUDA installation",
        remedies=unset_variables(m, *_search_variables(m)) or reinstall_torch(m, kb),
    )


@rule(
    "cudnn-missing-sublib",
    title="cuDNN is incomplete or mixes versions: {what}",
    essential=False,
)
def cudnn_missing_sublib(m: Machine, kb: Knowledge) -> Answer:
    """cuDNN loads its sublibraries on first use, and all of them must be the same version.

    The error is "Unable to load any of libcudnn_ops.so.9" or
    CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH. It occurs if cuDNN's files were deleted, or if two
    wheels overwrote each other's files. CUDNN_STATUS_NOT_INITIALIZED or CUDNN_STATUS_INTERNAL_ERROR
    alone often only means that the GPU is out of memory.

    Look-alikes: if part of cuDNN is loaded from outside torch's own copy, the cause is
    cudnn-shadowed.

    Fix: reinstall the cuDNN wheel that torch requires.
    """
    words = ("Unable to load any of {libcudnn", "SUBLIBRARY_VERSION_MISMATCH", "library libcudnn_")
    spoken = error_with(m, *words, pasted=False)
    what, evidence = "cuDNN's own error message says so", spoken
    if not spoken and applies(m):
        what, evidence = _odd_part(m)
    if not evidence:
        return None
    wheel = next((p for p in m.packages or () if _base(p.name)[0] == "cudnn"), None)
    remedies = reinstall_torch(m, kb)
    if wheel:
        again, name = f"{wheel.name}=={wheel.version}", wheel.name
        remedies = install_packages("reinstall-cudnn", "Reinstall cuDNN", again, remove=(name,))
    return Found(evidence=(evidence,), values={"what": what}, sure=spoken, remedies=remedies)


def _odd_part(m: Machine) -> tuple[str, OptStr]:
    """A part of cuDNN that is missing or of another version than the rest, and its fact."""
    parts = [use for use in in_use(m) if use.library.soname.startswith("libcudnn")]
    gone = [name for name in m.libraries.missing or () if name.startswith("libcudnn_")]
    if gone and parts:
        return f"{gone[0]} is missing", "libraries.missing"
    if all(is_own(m, part.library) for part in parts):
        for part in parts[1:]:
            this, other = part.library, parts[0].library
            if compared(this.version, other.version) not in (0, None):
                what = f"{this.soname} is {this.version}, but {other.soname} is {other.version}"
                return what, part.path
    return "", None


@rule("libstdcxx-old", title="{path} is too old: it lacks {symbol}", essential=False)
def libstdcxx_old(m: Machine) -> Answer:
    """A library that torch needs was compiled with a newer GCC, but the loader finds this older
    libstdc++ first.

    The error is "version `GLIBCXX_...' not found" and names the library file that is too old. In a
    conda environment, this file is often either an old libstdc++ from conda itself, or the system's
    libstdc++, loaded instead of conda's newer one.

    Look-alikes: if the message says GLIBC instead of GLIBCXX, the whole system is too old, and the
    cause is platform-unsupported.

    Fix: install a newer libstdcxx-ng from conda-forge in the conda environment, or start the
    program without the LD_LIBRARY_PATH that points to the old libstdc++.
    """
    if m.torch.installed is False:
        return None
    spoken = error_with(m, "GLIBCXX_", "CXXABI_", pasted=False)
    if spoken is None:
        need_import(m)
        return None
    text = _words(m, spoken)
    named = re.search(r"(/[^\s:'\"]*libstdc\+\+[^\s:'\"]*)", text)
    path = named[1] if named else "libstdc++.so.6"
    symbol = re.search(r"(?:GLIBCXX|CXXABI)_[\d.]*\d", text)
    return Found(
        evidence=(spoken,),
        values={
            "path": path,
            "symbol": symbol[0] if symbol else "the required GLIBCXX version",
        },
        remedies=(off_search_path(m, path.rpartition("/")[0]) if "/" in path else ())
        or newer_libstdcxx(m, path),
    )


def _words(m: Machine, path: str) -> str:
    return str(lookup(m, path) or "")
