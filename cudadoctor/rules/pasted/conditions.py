"""Conditions of the table of symptoms: a word, a comparison of versions, or another symptom.

    windows                  a circumstance by name, from CIRCUMSTANCES
    torch < 2.3              a fact that is known and compares so (==, !=, <, <=, >, >=)
    has:torchvision          a package that the report lists
    seen:after-suspend       another symptom of the report
    not windows              the contrary: the fact is known otherwise or not known at all

A condition on what is not known does not hold.
"""

import operator
import re
from collections.abc import Callable
from typing import Any

from packaging.version import Version

from cudadoctor.knowledge import GpuModel, Knowledge
from cudadoctor.model.findings import Texts
from cudadoctor.model.machine import Machine, lookup, origin_of
from cudadoctor.model.rule import NotKnown
from cudadoctor.model.versions import DriverVersion
from cudadoctor.rules.evidence.devices import code_version, compiled, devices, way_to_run
from cudadoctor.rules.evidence.signs import (
    AUTHOR,
    WORDS,
    driver_runs,
    driver_system,
    gpu_present,
    has_fabric,
    live_gpus,
    named_gpus,
)
from cudadoctor.rules.pasted.refusals import offers_of

Circumstance = "Callable[[Machine, Knowledge], bool]"
_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}


def holds(condition: str, m: Machine, kb: Knowledge) -> bool:
    """Whether a condition of the table is known to hold for this machine.

    Raises KeyError for a circumstance that nobody defined: that is our own mistake.
    """
    if condition.startswith("not "):
        return not holds(condition[4:], m, kb)
    if condition.startswith("seen:"):
        return any(symptom.key == condition[5:] for symptom in m.symptoms or ())
    if condition.startswith("has:"):
        return m.package(condition[4:]) is not None
    words = condition.split()
    if len(words) == 3:
        return _compares(words[0], words[1], words[2], m)
    return CIRCUMSTANCES[condition](m, kb)


def _compares(fact: str, sign: str, bound: str, m: Machine) -> bool:
    value = _version_of(fact, m)
    if value is None:
        return False
    other = DriverVersion(bound) if isinstance(value, DriverVersion) else Version(bound)
    return _COMPARED[sign](value, other)


def _version_of(fact: str, m: Machine) -> Version | DriverVersion | None:
    known: dict[str, Version | DriverVersion | None] = {
        "torch": m.torch.version,
        "torch.cuda": m.torch.cuda,
        "driver": m.driver.version,
        "driver.cuda": m.driver.cuda,
        "python": m.python.version,
        "glibc": m.platform.glibc,
    }
    if fact in known:
        return known[fact]
    package = m.package(fact)
    try:
        return Version(package.version) if package else None
    except ValueError:
        return None


def _is(path: str, *values: object) -> Callable[[Machine, Knowledge], bool]:
    """Whether that fact has one of these values; without values, whether it says yes at all."""
    return lambda m, _: lookup(m, path) in values if values else bool(lookup(m, path))


def _models(m: Machine, kb: Knowledge) -> list[GpuModel]:
    """The models of the GPUs, as far as the tables know them."""
    found = (kb.gpu_by_name(gpu.name or "") for gpu in live_gpus(m))
    return [model for model in found if model is not None]


def _arch(*names: str) -> Callable[[Machine, Knowledge], bool]:
    return lambda m, kb: any(model.architecture in names for model in _models(m, kb))


def _data_center(m: Machine, kb: Knowledge) -> bool | None:
    known = [model.data_center for model in _models(m, kb)]
    return any(known) if known else None


def _env(name: str) -> Callable[[Machine, Knowledge], bool]:
    return lambda m, _: name in (m.env or {})


def _too_many_processes(m: Machine, _: Knowledge) -> bool:
    """Whether the report asks for more processes on a node than it shows GPUs."""
    asked = [symptom.values.get("processes", "") for symptom in m.symptoms or ()]
    counts = [int(one) for one in asked if one.isdecimal()]
    return bool(counts) and bool(live_gpus(m)) and max(counts) > len(live_gpus(m))


def _driver_answers(m: Machine, _: Knowledge) -> bool:
    """Whether a program named the driver or its GPUs; that the author has them proves nothing."""
    told = origin_of(m, "driver.kernel" if m.driver.kernel else "driver.reported") or ""
    return (m.driver.version is not None and not told.startswith(AUTHOR)) or bool(named_gpus(m))


def _driver_runs_torch(m: Machine, _: Knowledge) -> bool:
    """Whether the newest CUDA of the driver is known to be enough for torch's."""
    level, cuda = m.driver.cuda, m.torch.cuda
    return level is not None and cuda is not None and driver_runs(level, cuda)


def _served(m: Machine, kb: Knowledge) -> tuple[bool, bool] | None:
    """Whether torch has code for all GPUs, and whether the first is newer than that code."""
    try:
        present, have = devices(m, kb), compiled(m, kb)
    except NotKnown:
        return None
    if not present:
        return None
    served = all(way_to_run(have.archs, one.capability, m, kb) for one in present)
    newest = max((found for code in have.archs if (found := code_version(code))), default=None)
    return served, newest is not None and present[0].capability > newest


def _wheel_for_other_torch(m: Machine, _: Knowledge) -> bool:
    """Whether the report names a wheel of an extension that is made for another torch than this."""
    torch = m.torch.version
    named = [
        symptom.values["wheel_torch"]
        for symptom in m.symptoms or ()
        if "wheel_torch" in symptom.values
    ]
    return torch is not None and any(Version(one).release[:2] != torch.release[:2] for one in named)


_SONAME = re.compile(r"lib(?:cudart|cublas|cublasLt|nvrtc|nvJitLink)\.so\.(\d+)")
"""CUDA's libraries whose number in their file name is the major version of their CUDA."""


def _library_of_another_cuda(m: Machine, _: Knowledge) -> bool:
    """Whether the library of CUDA that is missing is of another major than torch's CUDA."""
    if m.torch.cuda is None:
        return False
    named = [
        _SONAME.match(value)
        for symptom in m.symptoms or ()
        for name, value in symptom.values.items()
        if name.startswith("library")
    ]
    return any(found and int(found[1]) != m.torch.cuda.major for found in named)


_NUMBERED_BY_CUDA = re.compile(
    r"(?:lib(?:cublas|cusparse|npp|nvjitlink)|cuda-(?:cudart|nvrtc|cupti|runtime|libraries|nvtx))"
    r"(?:-dev)?|cudatoolkit"
)
"""conda's packages whose major version is that of the CUDA that they belong to."""


def _packages_of_another_cuda(m: Machine, _: Knowledge) -> bool:
    """Whether conda's packages of CUDA's libraries are of another major than torch's CUDA."""
    cuda = m.torch.cuda or _asked_cuda(m)
    if cuda is None:
        return False
    majors = {
        package.version.split(".")[0]
        for package in m.packages or ()
        if _NUMBERED_BY_CUDA.fullmatch(package.name)
    }
    return bool(majors - {str(cuda.major)})


def _asked_cuda(m: Machine) -> Version | None:
    """The CUDA of torch that conda was asked for: pytorch-cuda=11.7."""
    for install in m.installs or ():
        for text in install.requirements:
            if found := re.fullmatch(r"(?:[\w.-]+::)?pytorch-cuda={1,2}(\d\d\.\d)\*?", text):
                return Version(found[1])
    return None


_CONDA_CUDA = re.compile(
    r"(?:[\w.-]+::)?(?:pytorch-cuda|cudatoolkit)={1,2}(\d{1,2}\.\d)[\d.*]{0,6}"
)


def _conda_cuda_beyond_driver(m: Machine, kb: Knowledge) -> bool:
    """Whether conda was asked for a torch of a CUDA that the driver named does not run."""
    driver = m.driver.version
    asked = [text for install in m.installs or () for text in install.requirements]
    found = next((match for text in asked if (match := _CONDA_CUDA.fullmatch(text))), None)
    if driver is None or found is None:
        return False
    floor = kb.oldest_driver(Version(found[1]), driver_system(m))
    return floor is not None and driver < floor.driver


_OLDER_DEFAULTS = {
    "1.0": "9.0",
    "1.1": "9.0",
    "1.2": "10.0",
    "1.3": "10.1",
    "1.4": "10.1",
    "1.5": "10.2",
    "1.6": "10.2",
}
"""CUDA of PyPI's torch for Linux in releases that the table of builds does not reach back to."""


def _default_cuda_beyond_driver(m: Machine, kb: Knowledge) -> bool:
    """Whether PyPI's torch of that release has a CUDA that the driver named does not run.

    Only where the report says a release and no build, on Linux: elsewhere PyPI's torch has no CUDA.
    """
    torch, driver = m.torch.version, m.driver.version
    bare = torch is not None and torch.local is None and m.torch.cuda is None
    if (
        not bare
        or torch is None
        or driver is None
        or m.platform.system not in (None, "Linux")
        or m.platform.wsl
        or m.platform.machine == "aarch64"
    ):
        return False
    builds = kb.builds_on("linux_x86_64")
    known = next((offer.cuda for offer in builds if offer.default and offer.torch == torch), None)
    older = _OLDER_DEFAULTS.get(f"{torch.major}.{torch.minor}")
    cuda = known or (Version(older) if older else None)
    floor = kb.oldest_driver(cuda, "Linux") if cuda else None
    return floor is not None and driver < floor.driver


def _bare_torch_of_windows(m: Machine, _: Knowledge) -> bool:
    """Whether torch is of Windows with a version that names no build, as PyPI's CPU build's."""
    windows = m.platform.system == "Windows" and not m.platform.wsl
    plain = m.torch.version is not None and m.torch.version.local is None
    return windows and plain and m.torch.build in (None, "cpu")


_WITHOUT_BUILDS = WORDS["without-builds"]


def _walled_platform(m: Machine, _: Knowledge) -> bool:
    """Whether nobody publishes torch for this system or processor at all."""
    machine = (m.platform.machine or "").lower()
    arm = m.platform.system == "Windows" and machine in ("aarch64", "arm64")
    return machine in _WITHOUT_BUILDS or m.platform.libc == "musl" or m.python.bits == 32 or arm


def _toolkit_used(m: Machine) -> Version | None:
    """The CUDA version of the toolkit that a build takes, where the report tells one."""
    told = {toolkit.cuda for toolkit in m.build.toolkits or () if toolkit.cuda is not None}
    return told.pop() if len(told) == 1 else None


def _toolkit_differs(m: Machine, kb: Knowledge) -> bool:
    """Whether that toolkit is of another CUDA than torch: of another major, below 11 at all."""
    used, built = _toolkit_used(m), m.torch.cuda
    if used is None:
        return False
    if built is not None:
        return used.major != built.major or (built.major < 11 and used != built)
    return m.torch.version is not None and not _built_for(m.torch.version, used, kb)


def _built_for(release: Version, cuda: Version, kb: Knowledge) -> bool:
    """Whether that release exists as a build for this CUDA, or no build of it is known."""
    places = {offer.place for offer in offers_of(kb).torch if offer.release == release}
    known = {place for place in places if place.startswith("cu")}
    return not known or f"cu{cuda.major}{cuda.minor}" in known or cuda.major > 10


_OLDEST_GCC = 5
"""torch 1.5 and later are written in C++14, which GCC knows well from 5 on."""


def _compiler_too_new(m: Machine, kb: Knowledge) -> bool:
    """Whether the C++ compiler is newer than nvcc of that toolkit accepts."""
    used, compiler = _toolkit_used(m), m.build.compiler
    newest = kb.gcc_max(used) if used is not None else None
    if newest is None or compiler.version is None:
        return False
    return compiler.name in ("g++", "gcc", "c++") and compiler.version.major > newest


def _compiler_too_old(m: Machine, _: Knowledge) -> bool:
    """Whether the C++ compiler is older than the headers of any torch with extensions accept."""
    compiler = m.build.compiler
    gnu = compiler.name in ("g++", "gcc", "c++")
    return gnu and compiler.version is not None and compiler.version.major < _OLDEST_GCC


CIRCUMSTANCES: dict[str, Callable[[Machine, Knowledge], bool]] = {
    "windows": _is("platform.system", "Windows"),
    "conda-cuda-beyond-driver": _conda_cuda_beyond_driver,
    "default-cuda-beyond-driver": _default_cuda_beyond_driver,
    "linux": _is("platform.system", "Linux"),
    "macos": _is("platform.system", "Darwin"),
    "wsl": _is("platform.wsl"),
    "toolkit-differs": _toolkit_differs,
    "compiler-too-new": _compiler_too_new,
    "compiler-too-old": _compiler_too_old,
    "no-builds-here": _walled_platform,
    "aarch64": _is("platform.machine", "aarch64"),
    "jetson": _is("platform.jetson"),
    "container": _is("container.kind"),
    "slurm": _is("container.scheduler", "slurm"),
    "kubernetes": lambda m, _: "kubernetes" in (m.container.kind, m.container.scheduler),
    "gpu": lambda m, _: gpu_present(m) is True,
    "no-gpu": lambda m, _: gpu_present(m) is False,
    "several-gpus": lambda m, _: len(live_gpus(m)) > 1,
    "data-center-gpu": lambda m, kb: _data_center(m, kb) is True,
    "uvm-loaded": lambda m, _: "nvidia_uvm" in (m.driver.modules or ()),
    "no-fabric": lambda m, kb: has_fabric(m, kb) is False,
    "consumer-gpu": lambda m, kb: _data_center(m, kb) is False,
    "no-tensor-cores": lambda m, kb: any(model.tensor_cores is False for model in _models(m, kb)),
    "nvidia-on-bus-unbound": lambda m, _: any(
        one.vendor == "nvidia" and one.bound not in ("nvidia", "vfio-pci") for one in m.pci or ()
    ),
    "amd-gpu": lambda m, _: any(one.vendor == "amd" for one in m.pci or ()),
    "blackwell": _arch("Blackwell"),
    "turing-to-hopper": _arch("Turing", "Ampere", "Ada Lovelace", "Hopper"),
    "since-ampere": _arch("Ampere", "Ada Lovelace", "Hopper", "Blackwell"),
    "before-turing": _arch("Kepler", "Maxwell", "Pascal", "Volta"),
    "mig": lambda m, _: any(gpu.mig for gpu in m.gpus or ()),
    "torch-cpu": _is("torch.build", "cpu"),
    "torch-cuda": _is("torch.build", "cuda"),
    "torch-rocm": _is("torch.build", "rocm"),
    "torch-installed": _is("torch.installed"),
    "cuda-available": _is("torch.imported.cuda_available"),
    "cuda-not-available": _is("torch.imported.cuda_available", False),
    "driver-answers": _driver_answers,
    "driver-runs-torch": _driver_runs_torch,
    "build-serves-gpu": lambda m, kb: (_served(m, kb) or (False, False))[0],
    "gpu-newer-than-build": lambda m, kb: _served(m, kb) == (False, True),
    "gpu-older-than-build": lambda m, kb: _served(m, kb) == (False, False),
    "conda": lambda m, _: m.python.kind in ("conda", "conda-base"),
    "more-processes-than-gpus": _too_many_processes,
    "wheel-for-other-torch": _wheel_for_other_torch,
    "library-of-another-cuda": _library_of_another_cuda,
    "packages-of-another-cuda": _packages_of_another_cuda,
    "bare-torch-of-windows": _bare_torch_of_windows,
    "visible-devices-set": _env("CUDA_VISIBLE_DEVICES"),
    "cuda-home-set": _env("CUDA_HOME"),
    "ld-library-path-set": _env("LD_LIBRARY_PATH"),
}
"""Circumstances by name. Add one here rather than a special case in a rule."""


def refuted(conditions: Texts, m: Machine, kb: Knowledge) -> bool:
    """Whether one of the conditions is known not to hold, not merely not known to hold."""
    return any(not holds(one, m, kb) and _is_known(one, m) for one in conditions)


def _is_known(condition: str, m: Machine) -> bool:
    if condition.startswith("not "):
        return True  # what it denies holds
    words = condition.split()
    if len(words) == 3:
        return words[0] == "torch" and m.torch.version is not None
    known = _KNOWN.get(condition)
    return known is not None and known(m)


_KNOWN: dict[str, Callable[[Machine], bool]] = {
    **dict.fromkeys(("windows", "macos"), lambda m: m.platform.system is not None),
    "wsl": lambda m: m.platform.system not in (None, "Linux") or m.platform.kernel is not None,
    "aarch64": lambda m: m.platform.machine is not None,
    "jetson": lambda m: (
        m.platform.system not in (None, "Linux")
        or m.platform.machine not in (None, "aarch64")
        or bool(m.platform.wsl)
    ),
    "no-builds-here": lambda _: True,  # a processor without builds is named where there is one
    "amd-gpu": lambda m: gpu_present(m) is True,
    "seen:amd-card-named": lambda m: gpu_present(m) is True,
    "no-gpu": lambda m: gpu_present(m) is not None,
    **dict.fromkeys(("torch-cpu", "torch-cuda", "torch-rocm"), lambda m: m.torch.build is not None),
    "bare-torch-of-windows": lambda _: True,
}
"""Circumstances whose contrary can be known, and where it is."""
