"""Conditions of the table of symptoms: a word, a comparison of versions, or another symptom.

    windows                  a circumstance by name, from FACTS or CIRCUMSTANCES
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

from msgspec.structs import replace
from packaging.version import Version

from cudadoctor.knowledge import GpuModel, Knowledge
from cudadoctor.knowledge.tables import table
from cudadoctor.model.machine import (
    Machine,
    OptBool,
    OptInt,
    OptStr,
    OptVersion,
    Strings,
    StrPair,
    lookup,
    origin_of,
)
from cudadoctor.model.rule import NotKnown, apply, remembered
from cudadoctor.model.versions import cuda_from_tag, torch_from_tag, version_of
from cudadoctor.plan.remedies.torch import below_floors
from cudadoctor.rules.evidence.devices import code_version, compiled, devices, way_to_run
from cudadoctor.rules.evidence.libraries import others_needing
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
from cudadoctor.solver.demand import capability_of, platform_of
from cudadoctor.solver.supposed import as_listed, supposed

Circumstance = Callable[..., OptBool]
"""Of the machine, or of the machine and the knowledge."""
_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_VERSIONS = {
    "torch": "torch.version",
    "torch.cuda": "torch.cuda",
    "driver": "driver.version",
    "driver.cuda": "driver.cuda",
    "python": "python.version",
    "glibc": "platform.glibc",
}
"""The facts whose versions are compared; every other name is that of a package."""


def holds(condition: str, m: Machine, kb: Knowledge) -> bool:
    """Whether a condition of the table is known to hold for this machine.

    Raises KeyError for a circumstance that nobody defined: that is our own mistake.
    """
    told = _told(m, kb)
    if condition not in told:
        told[condition] = _holds(condition, m, kb)
    return told[condition]


_told: Callable[[Machine, Knowledge], dict[str, bool]] = remembered(lambda *_: {})
"""What was asked of a machine before: many texts and rules ask for the same."""


def _holds(condition: str, m: Machine, kb: Knowledge) -> bool:
    if condition.startswith("not "):
        return not holds(condition[4:], m, kb)
    kind, _, name = condition.partition(":")
    if kind == "seen":
        return any(symptom.key == name for symptom in m.symptoms or ())
    if kind == "has":
        return m.package(name) is not None
    if condition in FACTS:
        path, *values = FACTS[condition]
        value = lookup(m, str(path))
        return value in values if values else bool(value)
    words = condition.split()
    if len(words) == 3:
        return _compares(m, *words)
    return apply(CIRCUMSTANCES[condition], m, kb) is True


def _compares(m: Machine, fact: str, sign: str, bound: str) -> bool:
    if fact in _VERSIONS:
        value = lookup(m, _VERSIONS[fact])
    else:
        package = m.package(fact)
        value = version_of(package.version) if package else None
    return value is not None and _COMPARED[sign](value, type(value)(bound))


def _models(m: Machine, kb: Knowledge) -> list[GpuModel]:
    """The models of the GPUs, as far as the tables know them."""
    found = (kb.gpu_by_name(gpu.name or "") for gpu in live_gpus(m))
    return [model for model in found if model is not None]


def _arch(*names: str) -> Circumstance:
    return lambda m, kb: any(model.architecture in names for model in _models(m, kb))


def _data_center(m: Machine, kb: Knowledge) -> OptBool:
    known = [model.data_center for model in _models(m, kb)]
    return any(known) if known else None


def _env(name: str) -> Circumstance:
    return lambda m: name in (m.env or {})


def named_in(m: Machine, name: str) -> Strings:
    """The values of that name in the symptoms of the report."""
    return tuple(
        value
        for symptom in m.symptoms or ()
        for place, value in symptom.values.items()
        if place.startswith(name)
    )


def _too_many_processes(m: Machine) -> bool:
    """Whether the report asks for more processes on a node than it shows GPUs."""
    asked = (int(text) for text in named_in(m, "processes") if text.isdecimal())
    return 0 < len(live_gpus(m)) < max(asked, default=0)


def _driver_answers(m: Machine) -> bool:
    """Whether a program named the driver or its GPUs; that the author has them proves nothing."""
    origin = origin_of(m, "driver.kernel" if m.driver.kernel else "driver.reported") or ""
    return (m.driver.version is not None and not origin.startswith(AUTHOR)) or bool(named_gpus(m))


def _driver_runs_torch(m: Machine) -> bool:
    """Whether the newest CUDA of the driver is known to be enough for torch's."""
    level, cuda = m.driver.cuda, m.torch.cuda
    return level is not None and cuda is not None and driver_runs(level, cuda)


def _build_is(how: str) -> Circumstance:
    """Whether torch has code for all GPUs ("fitting"), or the first is newer or older than it."""

    def judged(m: Machine, kb: Knowledge) -> bool:
        try:
            present, archs = devices(m, kb), compiled(m, kb).archs
        except NotKnown:
            return False
        if present and all(way_to_run(archs, gpu.capability, m, kb) for gpu in present):
            return how == "fitting"
        newest = max(filter(None, map(code_version, archs)), default=None)
        newer = bool(present and newest and present[0].capability > newest)
        return bool(present) and how == ("newer" if newer else "older")

    return judged


def _torch_fits_machine(m: Machine, kb: Knowledge) -> bool:
    """Whether torch is seen to use the GPUs, its driver is new enough, and it has their code."""
    imported, cuda, driver = m.torch.imported, m.torch.cuda, m.driver.version
    floor = kb.driver_floor(cuda, driver_system(m)) if cuda else None
    served = driver is not None and floor is not None and driver >= floor.driver
    used = imported is not None and imported.cuda_available is True
    return used and served and _build_is("fitting")(m, kb) is True


def _wheel_for_other_torch(m: Machine) -> bool:
    """Whether the report names a wheel of an extension that is made for another torch than this."""
    torch, named = m.torch.version, map(torch_from_tag, named_in(m, "wheel_torch"))
    other = (wheel for wheel in named if wheel and torch and wheel.release[:2] != torch.release[:2])
    return any(other)


def cudnn_pin(m: Machine, kb: Knowledge) -> OptStr:
    """The wheel of cuDNN that torch pins, with its release; None where that is not known.

    Of a release of which neither the variant nor the platform is told: what a listed wheel fits,
    else what PyPI's build pins, since a wheel for another CUDA has a tag in its release.
    """
    m = as_listed(m, kb)
    if m.platform.system is None and any(_OF_LINUX.search(s.text) for s in m.symptoms or ()):
        m = replace(m, platform=replace(m.platform, system="Linux"))
    (m, *_) = supposed(m, kb).machines
    # Windows builds contain the cuDNN of the Linux build beside them.
    torch, place = m.torch, (platform_of(m) or "").replace("windows_amd64", "linux_x86_64")
    known = kb.cudnn_pin(torch.version, torch.cuda, place)
    if known or torch.build or torch.installer == "conda" or torch.version is None:
        return known
    builds = [build for build in kb.builds_on(place or "") if build.torch == torch.version]
    builds.sort(key=lambda build: not build.default)
    pins = [kb.cudnn_pin(build.torch, build.cuda, place) for build in builds if build.cuda]
    listed = {f"{package.name}=={package.version}" for package in m.packages or ()}
    usual = pins[0] if builds and builds[0].default and builds[0].cuda else None
    return next((pin for pin in pins if pin in listed), usual)


_OF_LINUX = re.compile(r"\blib\w{2,40}\.so\b")


def _cudnn_of_torch(m: Machine, kb: Knowledge) -> StrPair:
    """The wheel of cuDNN that torch pins, and its release; "" each where that is not known."""
    name, _, release = (cudnn_pin(m, kb) or "").partition("==")
    return name, release


def _cudnn_not_as_pinned(m: Machine, kb: Knowledge) -> bool:
    """Whether the report lists another cuDNN wheel than the one that torch pins.

    Where the one that torch pins is not listed, the wheel for another CUDA counts, which is put
    into the same folder.
    """
    name, release = _cudnn_of_torch(m, kb)
    package = m.package(name) if name else None
    if package is not None:
        return package.version != release
    beside = (other.name for other in m.packages or () if name)
    return any(re.fullmatch(r"nvidia-cudnn-cu\d\d", other) for other in beside)


def _other_cudnn_listed(m: Machine, kb: Knowledge) -> bool:
    """The same, where the library that is missing is cuDNN's."""
    missing = any("cudnn" in name for name in named_in(m, "library"))
    return missing and _cudnn_not_as_pinned(m, kb)


def _program_needs_another_cudnn(m: Machine, kb: Knowledge) -> bool:
    """Whether a listed program needs another cuDNN than torch pins."""
    return bool(others_needing(m, kb, cudnn_pin(m, kb) or ""))


def _cudnn_of_another_major(m: Machine, kb: Knowledge) -> bool:
    """Whether the part of cuDNN that is missing is of a major that torch does not bring."""
    whole = (name.partition("libcudnn.so.")[2] for name in named_in(m, "library"))
    named = {*named_in(m, "cudnn_major"), *(rest.split(".")[0] for rest in whole if rest)}
    own = _cudnn_of_torch(m, kb)[1].partition(".")[0]
    return bool(own and named) and own not in named


def torch_asked(m: Machine) -> OptVersion:
    """The oldest torch that the programs of the error texts accept, where one of them says so."""
    return max(map(Version, named_in(m, "needs")), default=None)


def _torch_older_than_asked(m: Machine) -> bool:
    asked, torch = torch_asked(m), m.torch.version
    return asked is not None and torch is not None and torch < asked


_UNINSTALLED = re.compile(r"\b(?:uninstall|remov)\w{0,3}\b[^\n]{0,200}")
_WHEEL = re.compile(r"nvidia[-_]([a-z]{3,20})[-_](cu1\d)")


def _uninstalled_wheel_shared(m: Machine) -> bool:
    """Whether the missing library's wheel for another CUDA was uninstalled: both own its files."""
    missing = {re.split(r"[_.]", value.removeprefix("lib"))[0] for value in named_in(m, "library")}
    listed = {package.name for package in m.packages or ()}
    texts = (symptom.text.lower() for symptom in m.symptoms or ())
    gone = (
        found.groups()
        for text in texts
        for said in _UNINSTALLED.findall(text)
        for found in _WHEEL.finditer(said)
    )
    return any(
        base in missing
        and f"nvidia-{base}-{cuda}" not in listed
        and any(name.startswith(f"nvidia-{base}-cu1") for name in listed)
        for base, cuda in gone
    )


_SONAME = re.compile(r"lib(?:cudart|cublas|cublasLt|nvrtc|nvJitLink)\.so\.(\d+)")
"""CUDA's libraries whose number in their file name is the major version of their CUDA."""


def _library_of_another_cuda(m: Machine) -> bool:
    """Whether the library of CUDA that is missing is of another major than torch's CUDA."""
    cuda, named = m.torch.cuda, filter(None, map(_SONAME.match, named_in(m, "library")))
    return cuda is not None and any(int(found[1]) != cuda.major for found in named)


_NUMBERED_BY_CUDA = re.compile(
    r"(?:lib(?:cublas|cusparse|npp|nvjitlink)|cuda-(?:cudart|nvrtc|cupti|runtime|libraries|nvtx))"
    r"(?:-dev)?|cudatoolkit"
)
"""conda's packages whose major version is that of the CUDA that they belong to."""


def _packages_of_another_cuda(m: Machine) -> bool:
    """Whether conda's packages of CUDA's libraries are of another major than torch's CUDA."""
    cuda = m.torch.cuda or _asked_of_conda(m, r"pytorch-cuda={1,2}(\d\d\.\d)\*?")
    return cuda is not None and any(
        package.version.split(".")[0] != str(cuda.major)
        for package in m.packages or ()
        if _NUMBERED_BY_CUDA.fullmatch(package.name)
    )


def _asked_of_conda(m: Machine, pattern: str) -> OptVersion:
    """The CUDA of torch that conda was asked for: pytorch-cuda=11.7."""
    asked = (text for install in m.installs or () for text in install.requirements)
    found = (re.fullmatch(rf"(?:[\w.-]+::)?{pattern}", text) for text in asked)
    return next((Version(match[1]) for match in found if match), None)


def _beyond_driver(cuda: OptVersion, system: str, m: Machine, kb: Knowledge) -> bool:
    """Whether the driver named is known not to run this CUDA."""
    floor, driver = kb.oldest_driver(cuda, system) if cuda else None, m.driver.version
    return floor is not None and driver is not None and driver < floor.driver


def _conda_cuda_beyond_driver(m: Machine, kb: Knowledge) -> bool:
    """Whether conda was asked for a torch of a CUDA that the driver named does not run."""
    asked = _asked_of_conda(m, r"(?:pytorch-cuda|cudatoolkit)={1,2}(\d{1,2}\.\d)[\d.*]{0,6}")
    return _beyond_driver(asked, driver_system(m), m, kb)


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
    torch, here = m.torch.version, m.platform
    elsewhere = here.system not in (None, "Linux") or here.wsl or here.machine == "aarch64"
    if torch is None or torch.local or m.torch.cuda or elsewhere:
        return False
    builds = kb.builds_on("linux_x86_64")
    known = next((offer.cuda for offer in builds if offer.default and offer.torch == torch), None)
    older = version_of(_OLDER_DEFAULTS.get(f"{torch.major}.{torch.minor}"))
    return _beyond_driver(known or older, "Linux", m, kb)


def _bare_torch_of_windows(m: Machine) -> bool:
    """Whether torch is of Windows with a version that names no build, as PyPI's CPU build's."""
    windows = m.platform.system == "Windows" and not m.platform.wsl
    plain = m.torch.version is not None and m.torch.version.local is None
    return windows and plain and m.torch.build in (None, "cpu")


def _walled_platform(m: Machine) -> bool:
    """Whether nobody publishes torch for this system or processor at all."""
    machine = (m.platform.machine or "").lower()
    arm = m.platform.system == "Windows" and machine in ("aarch64", "arm64")
    return (
        machine in WORDS["without-builds"]
        or m.platform.libc == "musl"
        or m.python.bits == 32
        or arm
    )


def toolkit_used(m: Machine) -> OptVersion:
    """The CUDA version of the toolkit that a build takes, if the report names just one."""
    versions = {toolkit.cuda for toolkit in m.build.toolkits or () if toolkit.cuda is not None}
    return versions.pop() if len(versions) == 1 else None


def _toolkit_differs(m: Machine, kb: Knowledge) -> bool:
    """Whether that toolkit is of another CUDA than torch: of another major, below 11 at all.

    Where only torch's release is known, none of its builds may be for that CUDA.
    """
    used, built = toolkit_used(m), m.torch.cuda
    if used is None:
        return False
    if built is not None:
        return used.major != built.major or (built.major < 11 and used != built)
    places = {offer.place for offer in offers_of(kb).torch if offer.release == m.torch.version}
    known = {cuda_from_tag(place[2:]) for place in places if place.startswith("cu")}
    if used.major > 10:
        return bool(known) and used.major not in {cuda.major for cuda in known}
    return bool(known) and used not in known


def _toolkit_older_than_gpu(m: Machine, kb: Knowledge) -> bool:
    """Whether nvcc of that toolkit knows only GPUs that are older than one of those here."""
    used = toolkit_used(m)
    known = kb.nvcc_capabilities(used) if used is not None else None
    present = [capability_of(gpu, kb) for gpu in live_gpus(m)]
    return bool(known) and any(gpu is not None and gpu > max(known or ()) for gpu in present)


def _fitting_toolkit_not_used(m: Machine) -> bool:
    """Whether one of several toolkits is of torch's CUDA, and the others are not."""
    versions = {toolkit.cuda for toolkit in m.build.toolkits or ()} - {None}
    return len(versions) > 1 and m.torch.cuda in versions


_OLDEST_GCC = 5
"""torch 1.5 and later are written in C++14, which GCC knows well from 5 on."""


def _gcc(m: Machine) -> OptInt:
    """The major version of the C++ compiler, where that is GNU's."""
    compiler = m.build.compiler
    gnu = compiler.name in ("g++", "gcc", "c++")
    return compiler.version.major if gnu and compiler.version else None


def _compiler_too_new(m: Machine, kb: Knowledge) -> bool:
    """Whether the C++ compiler is newer than nvcc of that toolkit accepts."""
    used, gcc = toolkit_used(m), _gcc(m)
    newest = kb.gcc_max(used) if used is not None else None
    return newest is not None and gcc is not None and gcc > newest


def _compiler_too_old(m: Machine) -> bool:
    """Whether the C++ compiler is older than the headers of any torch with extensions accept."""
    gcc = _gcc(m)
    return gcc is not None and gcc < _OLDEST_GCC


FACTS = table("rules/circumstances", dict[str, tuple[str | bool, ...]])
"""Circumstances that one fact shows: its path and its values, without values that it says yes."""
CIRCUMSTANCES: dict[str, Circumstance] = {
    "conda-cuda-beyond-driver": _conda_cuda_beyond_driver,
    "default-cuda-beyond-driver": _default_cuda_beyond_driver,
    "toolkit-differs": _toolkit_differs,
    "fitting-toolkit-not-used": _fitting_toolkit_not_used,
    "toolkit-older-than-gpu": _toolkit_older_than_gpu,
    "compiler-too-new": _compiler_too_new,
    "compiler-too-old": _compiler_too_old,
    "no-builds-here": _walled_platform,
    "kubernetes": lambda m: "kubernetes" in (m.container.kind, m.container.scheduler),
    "gpu": gpu_present,
    "no-gpu": lambda m: gpu_present(m) is False,
    "several-gpus": lambda m: len(live_gpus(m)) > 1,
    "gpus-differ": lambda m: len({gpu.name for gpu in live_gpus(m) if gpu.name}) > 1,
    "data-center-gpu": _data_center,
    "uvm-loaded": lambda m: "nvidia_uvm" in (m.driver.modules or ()),
    "no-fabric": lambda m, kb: has_fabric(m, kb) is False,
    "consumer-gpu": lambda m, kb: _data_center(m, kb) is False,
    "no-tensor-cores": lambda m, kb: any(model.tensor_cores is False for model in _models(m, kb)),
    "nvidia-on-bus-unbound": lambda m: any(
        device.vendor == "nvidia" and device.bound not in ("nvidia", "vfio-pci")
        for device in m.pci or ()
    ),
    "amd-gpu": lambda m: any(device.vendor == "amd" for device in m.pci or ()),
    "blackwell": _arch("Blackwell"),
    "turing-to-hopper": _arch("Turing", "Ampere", "Ada Lovelace", "Hopper"),
    "since-ampere": _arch("Ampere", "Ada Lovelace", "Hopper", "Blackwell"),
    "before-turing": _arch("Kepler", "Maxwell", "Pascal", "Volta"),
    "mig": lambda m: any(gpu.mig for gpu in m.gpus or ()),
    "driver-answers": _driver_answers,
    "driver-runs-torch": _driver_runs_torch,
    "build-serves-gpu": _build_is("fitting"),
    "torch-fits-machine": _torch_fits_machine,
    "torch-older-than-asked": _torch_older_than_asked,
    "gpu-too-old-for-program": lambda m, kb: bool(below_floors(m, kb)),
    "gpu-newer-than-build": _build_is("newer"),
    "gpu-older-than-build": _build_is("older"),
    "torch-release": lambda m: (
        m.torch.version is not None
        and not m.torch.version.is_prerelease
        and re.match(r"(?:cu|cpu|$)", m.torch.version.local or "") is not None
    ),
    "more-processes-than-gpus": _too_many_processes,
    "wheel-for-other-torch": _wheel_for_other_torch,
    "cudnn-not-as-pinned": _cudnn_not_as_pinned,
    "other-cudnn-listed": _other_cudnn_listed,
    "cudnn-of-another-major": _cudnn_of_another_major,
    "program-needs-another-cudnn": _program_needs_another_cudnn,
    "library-shared-with-uninstalled": _uninstalled_wheel_shared,
    "library-of-another-cuda": _library_of_another_cuda,
    "packages-of-another-cuda": _packages_of_another_cuda,
    "bare-torch-of-windows": _bare_torch_of_windows,
    "visible-devices-set": _env("CUDA_VISIBLE_DEVICES"),
    "cuda-home-set": _env("CUDA_HOME"),
    "ld-library-path-set": _env("LD_LIBRARY_PATH"),
}
"""The other circumstances by name. Add one here rather than a special case in a rule."""


def refuted(conditions: Strings, m: Machine, kb: Knowledge) -> bool:
    """Whether one of the conditions is known not to hold, not merely not known to hold."""
    return any(not holds(condition, m, kb) and _is_known(condition, m) for condition in conditions)


def _is_known(condition: str, m: Machine) -> bool:
    """Whether the contrary of this can be known, and is where it does not hold."""
    if condition.startswith("not ") or condition in _NAMED_WHERE_SO:
        return True  # what is denied holds; what is special is named where there is one
    if condition in ("amd-gpu", "seen:amd-card-named"):
        return gpu_present(m) is True
    if condition == "no-gpu":
        return gpu_present(m) is not None
    other = m.platform.system not in (None, "Linux")
    if condition == "wsl":
        return other or m.platform.kernel is not None
    if condition == "jetson":
        return other or bool(m.platform.machine not in (None, "aarch64") or m.platform.wsl)
    if condition.startswith("torch "):
        return m.torch.version is not None
    return condition in _DENIABLE and lookup(m, str(FACTS[condition][0])) is not None


_NAMED_WHERE_SO = ("no-builds-here", "bare-torch-of-windows", "macos", "gpus-differ")
"""Circumstances that a report shows where they hold: they are as good as denied elsewhere."""
_DENIABLE = ("windows", "macos", "aarch64", "torch-cpu", "torch-cuda", "torch-rocm")
"""Circumstances whose contrary is known wherever their fact is."""
