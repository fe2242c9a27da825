"""Would a compilation of an extension find a toolkit and a compiler that fit torch?"""

from __future__ import annotations

import re

from msgspec.structs import replace
from packaging.version import Version

from cudadoctor.installers.tool import joined
from cudadoctor.knowledge import Knowledge
from cudadoctor.knowledge.software import Glibc
from cudadoctor.model.findings import ERROR, INFO, WARNING, Remedies, Severity
from cudadoctor.model.machine import Machine, OptStr, Strings, Toolkit
from cudadoctor.model.rule import Answer, Found, need, rule
from cudadoctor.plan.remedies import (
    c_compiler,
    install_toolkit,
    newer_cuda,
    older_compiler,
    older_glibc,
    set_arch_list,
    set_variables,
    unset_variables,
)
from cudadoctor.plan.remedies.process import family_of, lasting
from cudadoctor.rules.evidence.libraries import applies
from cudadoctor.solver.demand import capabilities_of, listed
from cudadoctor.solver.supposed import supposed

Wrong = tuple[OptStr, dict[str, object]]
"""A title in place of the rule's own, and the values."""
_CODE = re.compile(r"(\d{1,2})\.(\d)([af]?)(?:\+PTX)?")
_FLAT = re.compile(r"(?:sm_|compute_)?\d{2,3}[af]?|\d[\d.,]*,[\d.,]+")


_TRITON_ONLY = {"flash-linear-attention", "liger-kernel", "unsloth"}
"""Their kernels are Triton's, which needs a C compiler and never nvcc."""


@rule(
    "toolkit-missing",
    title="{package} needs a CUDA toolkit to compile its kernels, but none is installed",
    severity=WARNING,
)
def toolkit_missing(m: Machine, kb: Knowledge) -> Answer:
    """{package} compiles kernels with nvcc on first use. torch itself needs no toolkit.

    The error is "CUDA_HOME environment variable is not set" or "nvcc not found". cudadoctor reports
    a missing toolkit only if an installed package compiles kernels at run time, or if a compilation
    failed. Installing a toolkit does not make torch.cuda.is_available() return True.

    Fix: install a CUDA toolkit whose major version matches the one that torch was built with. Do
    not install the driver that the toolkit's installer offers.
    """
    asked = need(m.build.needed_by, "build.needed_by")
    needed = [name for name in asked if name not in _TRITON_ONLY]
    if not needed or not applies(m) or any(toolkit.nvcc for toolkit in _all(m)):
        return None
    return Found(
        evidence=("build.needed_by", "build.toolkits"),
        values={"package": needed[0]},
        severity=_gravity(m),
        remedies=fitting_toolkit(m, kb),
    )


@rule(
    "toolkit-torch-mismatch",
    title="The CUDA toolkit is version {toolkit}, but torch was built with CUDA {torch}",
    severity=WARNING,
)
def toolkit_torch_mismatch(m: Machine, kb: Knowledge) -> Answer:
    """torch refuses to compile extensions with a toolkit from a different CUDA major version.

    The error is "The detected CUDA version mismatches the version that was used to compile
    PyTorch". If only the minor versions differ, torch shows a warning, and cudadoctor reports
    nothing. The toolkit matters only when extensions are compiled; otherwise, this finding is for
    information only.

    Look-alikes: if a matching toolkit is installed but a different one is used, the cause is
    toolkit-env-wrong.

    Fix: alongside the current CUDA toolkit, install one whose major version matches the one that
    torch was built with. Installing a different driver does not help.
    """
    taken = _taken(m)
    if taken is None or _same_major(taken[1], taken[0]):
        return None
    cuda, used, fact = taken
    toolkit = need(used.cuda, fact)
    if any(_same_major(other, cuda) for other in _all(m)):
        return None
    asked = need(m.build.needed_by, "build.needed_by") or m.build.cuda_home
    return Found(
        evidence=("build.used", fact, "torch.cuda"),
        values={"toolkit": toolkit, "torch": cuda},
        title=None
        if asked
        else "To compile CUDA extensions, you need a toolkit of CUDA {torch}; yours is {toolkit}",
        severity=_gravity(m) if asked else INFO,
        remedies=fitting_toolkit(m, kb),
    )


@rule("toolkit-env-wrong", title="{what}", severity=WARNING)
def toolkit_env_wrong(m: Machine) -> Answer:
    """To compile CUDA code, torch uses the first toolkit that it finds through CUDA_HOME,
    CUDA_PATH, nvcc on PATH or /usr/local/cuda, in that order.

    If CUDA_HOME or CUDA_PATH points to a folder that does not exist, extensions cannot be compiled.
    If the first toolkit that torch finds has a different CUDA version than the one that torch was
    built with, torch rejects that toolkit. Check by hand: run `python -c "from
    torch.utils.cpp_extension import CUDA_HOME; print(CUDA_HOME)"`.

    Look-alikes: if no toolkit is installed anywhere, the cause is toolkit-missing. If none of the
    installed toolkits has torch's CUDA major version, the cause is toolkit-torch-mismatch.

    Fix: unset the variable that selects the wrong toolkit, or set it to the folder of the toolkit
    that matches torch.
    """
    home = need(m.build.cuda_home, "build.cuda_home")
    fitting = [toolkit.path for _, toolkit in _fitting(m)]
    env = m.env or {}
    variable = "CUDA_PATH" if "CUDA_PATH" in env and not env.get("CUDA_HOME") else "CUDA_HOME"
    evidence: Strings = ("build.cuda_home", "build.cuda_home_exists")
    if home and not need(m.build.cuda_home_exists, "build.cuda_home_exists"):
        what = f"{variable} points to {home}, which does not exist"
    else:
        taken = _taken(m)
        if taken is None or not fitting:
            return None
        cuda, used, fact = taken
        if _same_major(used, cuda) or (used.cuda is None and used.nvcc):
            return None
        other = f"CUDA {used.cuda}" if used.cuda else "without nvcc"
        what = (
            f"CUDA extensions are compiled with {used.path} ({other}), but torch needs the "
            f"toolkit in {fitting[0]}"
        )
        evidence = ("build.used", fact, "torch.cuda")
    asked = home or need(m.build.needed_by, "build.needed_by")
    remedies = unset_variables(m, variable)
    if fitting:
        title, values = f"Set CUDA_HOME to {fitting[0]}", {"CUDA_HOME": fitting[0]}
        (remedy,) = set_variables("set-cuda-home", title, values)
        remedies = (replace(remedy, note=lasting(m, variable) if home else None),)
    return Found(
        evidence=evidence,
        values={"what": what},
        severity=_gravity(m) if asked else INFO,
        remedies=remedies,
    )


@rule(
    "host-compiler-unsupported",
    title="nvcc from CUDA {toolkit} does not support {compiler}",
    severity=WARNING,
)
def host_compiler_unsupported(m: Machine, kb: Knowledge) -> Answer:
    """This nvcc supports compilers up to {limit}; newer ones fail with "unsupported GNU version!".

    nvcc uses the system's C++ compiler for the host part of CUDA code. cudadoctor reports an
    unsupported compiler only if something on this machine needs to compile CUDA code. An older g++
    can be installed alongside the current one.

    torch passes CC to nvcc with -ccbin, which makes nvcc ignore NVCC_CCBIN.

    Fix: install an older g++ and point CC, CXX and NVCC_CCBIN to it. Use
    -allow-unsupported-compiler only as a last resort, because the compiled code may be wrong.
    """
    taken = _to_be_taken(m) if need(m.build.needed_by, "build.needed_by") else None
    if taken is None or not taken[1].nvcc:
        return None
    _, used, fact = taken
    compiler, toolkit = m.build.compiler, need(used.cuda, fact)
    if _against_glibc(used, m, kb):
        return None  # No other compiler helps.
    limit, shown = kb.gcc_max(toolkit), ""
    if need(compiler.present, "build.compiler.present"):
        if compiler.name not in ("g++", "gcc", "c++"):
            return None
        version = need(compiler.version, "build.compiler.version")
        most = need(
            limit, "build.compiler.version", "cudadoctor's tables do not include this CUDA version"
        )
        if version.major <= most or _handed_over(m, most):
            return None
        shown = f"g++ {version}"
    newest = f"g++ {limit or ''}".strip()
    return Found(
        evidence=("build.compiler", fact),
        values={"toolkit": toolkit, "compiler": shown, "limit": newest},
        title=None if shown else "nvcc from CUDA {toolkit} cannot find a C++ compiler",
        why=None
        if shown
        else "nvcc compiles the host code in CUDA sources with g++, which is not installed.",
        severity=_gravity(m),
        remedies=older_compiler(m, limit) if shown else c_compiler(m),
    )


@rule(
    "host-compiler-unsupported",
    title="nvcc from CUDA {toolkit} cannot compile with glibc {glibc}",
    severity=WARNING,
)
def glibc_unsupported(m: Machine, kb: Knowledge) -> Answer:
    """The headers of CUDA {toolkit} and of glibc {glibc} declare {functions} differently, so every
    compilation fails with "exception specification is incompatible". An older g++ does not help.

    glibc 2.41 brought cospi and sinpi, which fit the headers of CUDA 13.0 and newer. glibc 2.42
    brought rsqrt, which fits CUDA 13.2 and newer. Some distributions change the headers of their
    own CUDA packages, so cudadoctor reports this only for NVIDIA's packages.

    Fix: install a newer CUDA toolkit, with a torch that was built for the same CUDA major version,
    or compile in a conda environment.
    """
    taken = _to_be_taken(m) if need(m.build.needed_by, "build.needed_by") else None
    row = _against_glibc(taken[1], m, kb) if taken else None
    if taken is None or row is None:
        return None
    _, used, fact = taken
    return Found(
        evidence=(fact, "platform.glibc"),
        values={
            "toolkit": used.cuda,
            "glibc": m.platform.glibc,
            "functions": listed(row.functions),
        },
        # The headers may have been changed by hand.
        sure=False,
        severity=_gravity(m),
        remedies=fitting_toolkit(m, kb),
    )


def _against_glibc(used: Toolkit, m: Machine, kb: Knowledge) -> Glibc | None:
    """Why the headers of NVIDIA's own toolkit do not go with those of the system's glibc."""
    glibc, compiler = m.platform.glibc, m.build.compiler.path or ""
    systems = "/" not in compiler or compiler.startswith(("/usr/", "/bin/", "/opt/rh/"))
    if not (systems and used.nvcc and used.path.startswith("/usr/local/cuda")):
        return None
    return kb.glibc_conflict(used.cuda, glibc) if used.cuda and glibc else None


_NEXT = (
    "Then run `cudadoctor check` again: it prints the commands that install the toolkit for this "
    "torch."
)


def fitting_toolkit(m: Machine, kb: Knowledge) -> Remedies:
    """A toolkit that compiles here; another torch or glibc where none of its CUDA does."""
    if m.platform.system is not None:
        (m, *_) = supposed(m, kb).machines
    cuda, glibc, own = m.torch.cuda, m.platform.glibc, (m.python.kind or "").startswith("conda")
    row = kb.glibc_conflict(cuda, glibc) if cuda and glibc and not own else None
    if row is None or cuda is None or family_of(m) == "nixos":
        return install_toolkit(m)
    if row.cuda.major == cuda.major:
        return install_toolkit(m, row.cuda)
    newer = newer_cuda(m, kb, row.cuda)
    said = (replace(step, note=joined(step.note, _NEXT)) for step in newer)
    return tuple(said) + older_glibc(m, kb.gcc_max(cuda)) or install_toolkit(m)


def _handed_over(m: Machine, limit: int) -> bool:
    """Whether nvcc is given an older g++ by name: by CC, which torch hands on, else NVCC_CCBIN."""
    env = m.env or {}
    named = _NAMED.search(env.get("CC") or env.get("NVCC_CCBIN", ""))
    return named is not None and int(named[1] or named[2]) <= limit


_NAMED = re.compile(r"g(?:cc|\+\+)-(\d{1,2})$|/gcc-toolset-(\d{1,2})/root/usr/bin/g(?:cc|\+\+)$")


@rule(
    "arch-list-wrong",
    title="TORCH_CUDA_ARCH_LIST contains {entry}, which nvcc from CUDA {toolkit} does not support",
    severity=WARNING,
)
def arch_list_wrong(m: Machine, kb: Knowledge) -> Answer:
    """Extensions are compiled for the architectures in TORCH_CUDA_ARCH_LIST. torch itself and
    prebuilt wheels ignore this variable.

    nvcc stops with "Unsupported gpu architecture" if it does not support an architecture in
    TORCH_CUDA_ARCH_LIST. torch stops with "Unknown CUDA arch" unless every entry has the form 8.6
    or 8.6+PTX and entries are separated by semicolons or spaces. If the list does not cover the
    GPU, the build succeeds, but the first kernel fails with "no kernel image is available for
    execution on the device".

    If TORCH_CUDA_ARCH_LIST is not set, torch compiles for the GPUs that it detects. If nvcc does
    not support one of these GPUs, only a newer toolkit helps.

    Fix: set TORCH_CUDA_ARCH_LIST to the compute capabilities of your GPUs, or unset it.
    """
    codes = need(m.env, "env").get("TORCH_CUDA_ARCH_LIST", "").replace(";", " ").split()
    if not codes or not applies(m):
        return None
    asked = need(m.build.needed_by, "build.needed_by")
    found = _ill_formed(codes) or _unknown_to_nvcc(codes, m, kb) or _without_the_gpu(codes, m, kb)
    if found is None:
        return None
    title, values = found
    return Found(
        evidence=("env.TORCH_CUDA_ARCH_LIST", "build.needed_by"),
        values=values,
        title=title,
        severity=_gravity(m) if asked else INFO,
        remedies=_without_the_list(m, kb),
    )


def _without_the_list(m: Machine, kb: Knowledge) -> Remedies:
    """The GPUs that are there, where nvcc knows them; unset, torch takes those that it sees."""
    taken = _taken(m)
    known = kb.nvcc_capabilities(taken[1].cuda) if taken and taken[1].cuda else None
    present = capabilities_of(m, kb) or ()
    if known and not set(present) <= set(known):
        return install_toolkit(m)
    if present:
        return set_arch_list(present)
    return unset_variables(m, "TORCH_CUDA_ARCH_LIST")


def _ill_formed(codes: list[str]) -> Wrong | None:
    """8.0,8.6 and 86 and sm_86: torch refuses them. Names of generations it knows are left."""
    bad = [arch for arch in codes if _FLAT.fullmatch(arch.removesuffix("+PTX"))]
    title = "TORCH_CUDA_ARCH_LIST contains {entry}, a format that torch does not accept"
    return (title, {"entry": bad[0][:40]}) if bad else None


def _unknown_to_nvcc(codes: list[str], m: Machine, kb: Knowledge) -> Wrong | None:
    taken = _taken(m)
    if taken is None or not taken[1].nvcc or taken[1].cuda is None:
        return None
    known = {capability.release[:2] for capability in kb.nvcc_capabilities(taken[1].cuda) or ()}
    for arch in codes if known else ():
        named = _CODE.fullmatch(arch)
        if named and (int(named[1]), int(named[2])) not in known:
            return None, {"entry": arch, "toolkit": taken[1].cuda}
    return None


def _without_the_gpu(codes: list[str], m: Machine, kb: Knowledge) -> Wrong | None:
    code = []
    for arch in codes:
        named = _CODE.fullmatch(arch)
        if named is None:
            return None
        code.append(f"sm_{named[1]}{named[2]}{named[3]}")
        if arch.endswith("+PTX"):
            code.append(f"compute_{named[1]}{named[2]}")
    for device in capabilities_of(m, kb) or ():
        if not any(kb.serves(arch, device, m.torch.version, m.torch.cuda) for arch in code):
            title = "TORCH_CUDA_ARCH_LIST is {entry}, which does not cover your GPU ({device})"
            return title, {"entry": ";".join(codes)[:60], "device": device}
    return None


def _taken(m: Machine) -> tuple[Version, Toolkit, str] | None:
    """torch's CUDA, the toolkit that a build would take, and the fact of that one's CUDA."""
    if not applies(m):
        return None
    path, toolkits = need(m.build.used, "build.used"), _all(m)
    cuda = need(m.torch.cuda, "torch.cuda")
    for number, toolkit in enumerate(toolkits):
        if toolkit.path == path:
            return cuda, toolkit, f"build.toolkits.{number}.cuda"
    return None


def _to_be_taken(m: Machine) -> tuple[Version, Toolkit, str] | None:
    """The same, once toolkit-env-wrong is cured: its advice leads to the first that fits torch."""
    taken, fitting = _taken(m), _fitting(m)
    gone = m.build.cuda_home and m.build.cuda_home_exists is False
    wrong = taken and not _same_major(taken[1], taken[0]) and (taken[1].cuda or not taken[1].nvcc)
    if fitting and m.torch.cuda and (gone or wrong):
        number, toolkit = fitting[0]
        return m.torch.cuda, toolkit, f"build.toolkits.{number}.cuda"
    return taken


def _fitting(m: Machine) -> list[tuple[int, Toolkit]]:
    """The toolkits with nvcc of torch's CUDA major, and their places among all."""
    cuda = m.torch.cuda if m.torch.build == "cuda" else None
    return [
        (number, toolkit)
        for number, toolkit in enumerate(_all(m))
        if toolkit.nvcc and cuda and _same_major(toolkit, cuda)
    ]


def _all(m: Machine) -> tuple[Toolkit, ...]:
    return need(m.build.toolkits, "build.toolkits")


def _same_major(toolkit: Toolkit, cuda: Version) -> bool:
    return toolkit.cuda is not None and toolkit.cuda.major == cuda.major


def _gravity(m: Machine) -> Severity:
    """What made the action of a report fail is an error; a local look only warns of it."""
    return ERROR if m.look == "report" and m.build.needed_by else WARNING
