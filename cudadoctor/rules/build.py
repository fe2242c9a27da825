"""Is there a torch, is it made for this machine's GPU, and for this Python?"""

from __future__ import annotations

from msgspec.structs import replace
from packaging.version import Version

from cudadoctor.knowledge import Knowledge
from cudadoctor.model.findings import (
    CERTAIN,
    ERROR,
    INFO,
    WARNING,
    Remedies,
    Severity,
)
from cudadoctor.model.machine import Machine, Strings
from cudadoctor.model.rule import Answer, Found, NotKnown, need, rule
from cudadoctor.model.versions import version_of
from cudadoctor.plan.remedies import by_hand, install_python, install_torch, leave_out
from cudadoctor.rules.evidence.devices import (
    Device,
    code_version,
    compiled,
    devices,
    refused,
    row_of,
    way_to_run,
)
from cudadoctor.rules.evidence.libraries import applies, foreign, in_use, library_pins
from cudadoctor.rules.evidence.signs import WORDS, error_with, gpu_present, live_gpus
from cudadoctor.rules.healthy import somebody_trains_here
from cudadoctor.solver.builds import best_build
from cudadoctor.solver.demand import platform_of, python_of
from cudadoctor.solver.fit import is_installed

NO_IMAGE = ("no kernel image is available", "not compatible with the current PyTorch installation")


@rule(
    "torch-missing",
    title="torch is not installed in {python}",
)
def torch_missing(m: Machine, kb: Knowledge) -> Answer:
    """No folder on the path of this Python holds a torch, so nothing can be trained with it.

    Told from wrong-interpreter, where pip of another Python installed it, from torch-duplicate,
    where a file of your own by that name is in the way, and from torch-python-unsupported, where
    pip finds no wheel for this Python. What counts is the metadata of installed packages and the
    folders beside it: an empty folder named torch is no torch.

    Cured by the build that fits driver and GPU, installed by this very interpreter with
    `python -m pip`. Not by the CUDA toolkit, which torch does not need.
    """
    if need(m.torch.installed, "torch.installed"):
        return None
    somebody_trains_here(m)
    return Found(
        evidence=("torch.installed", "python.executable"),
        values={"python": m.python.executable or "the examined Python"},
        remedies=install_torch(m, kb),
    )


@rule(
    "torch-cpu-build",
    title="{torch} is a CPU build, and this machine has {gpu}",
)
def torch_cpu_build(m: Machine, kb: Knowledge) -> Answer:
    """This build has no CUDA code at all: torch.cuda.is_available() is False with any driver.

    It comes from PyPI on Windows and macOS, from PyPI on ARM up to torch 2.10, from the index
    `/whl/cpu`, from a conda solver that saw no GPU, or from a package that pulled torch in anew.
    On a machine without an NVIDIA GPU it is the right build, and no finding; so it is where no
    build serves the GPU any more. Where torch.version.cuda has a value and CUDA is not available,
    the cause is another one: a driver, a container, a variable.

    Cured by the CUDA build for this driver and GPU from its own index. A toolkit or another driver
    changes nothing.
    """
    if m.torch.installed is False or need(m.torch.build, "torch.build") != "cpu":
        return None
    # Where only the bus tells of a GPU, it is the host's, and not given to a container.
    dxg = m.container.dxg and m.container.wsl_libs
    given = not m.container.kind or live_gpus(m) or m.platform.jetson or dxg or m.gpus
    # A CUDA build further down the path is torch-duplicate's.
    copied = any("+cu" in (copy.version or "") for copy in (m.torch.copies or ())[1:])
    if not need(gpu_present(m), "gpus") or not given or copied:
        return None
    served = _served_by_some_build(m, kb)
    left = "No CUDA build of torch has code for this GPU: the CPU is what is left."
    return Found(
        evidence=("torch.build", "torch.text", "gpus" if m.gpus else "pci"),
        values={"torch": _this_torch(m), "gpu": _first_name(m, kb)},
        severity=_cpu_severity(m) if served else INFO,
        why=None if served else left,
        remedies=install_torch(m, kb) if served else (),
    )


_OTHER_ERRORS = WORDS["other-errors"]
"""Symptoms that have nothing to do with the build being one for the CPU."""


def _cpu_severity(m: Machine) -> Severity | None:
    """Less grave where nobody missed the GPU: a report is of another error."""
    seen = {symptom.key for symptom in m.symptoms or ()}
    missed = seen & {"cuda-complaint", "torch-not-compiled-with-cuda", "torch-c-without-cuda"}
    return WARNING if seen.intersection(_OTHER_ERRORS) and not missed else None


def _served_by_some_build(m: Machine, kb: Knowledge) -> bool:
    """Whether any CUDA build serves one of the GPUs; taken for granted where they are not known."""
    platform = platform_of(m)
    try:
        capabilities = {device.capability for device in devices(m, kb)}
    except NotKnown:
        return True
    return (
        platform is None
        or not capabilities
        or any(
            kb.serves(code, capability, row.torch, row.cuda)
            for row in kb.builds_on(platform)
            for code in (row.cuda and row.archs) or ()
            for capability in capabilities
        )
    )


def _first_name(m: Machine, kb: Knowledge) -> str:
    try:
        found = [gpu.name for gpu in devices(m, kb)]
    except NotKnown:
        found = []
    name = next(iter([*(gpu.name for gpu in m.gpus or () if gpu.name), *found]), "")
    return f"an {name}" if name.startswith("NVIDIA") else name or "an NVIDIA GPU"


@rule(
    "torch-wrong-backend",
    title="{torch} is built for {backend}, and the GPU here is {vendor}'s",
    essential=False,
)
def torch_wrong_backend(m: Machine, kb: Knowledge) -> Answer:
    """Each build of torch drives the GPUs of one maker, and this one is for another maker's.

    A ROCm build drives AMD's GPUs, an XPU build Intel's, a CUDA build NVIDIA's; none of them finds
    a device of the other kinds. Told from gpu-not-detected, where no other GPU is there either, and
    from torch-cpu-build. A graphics unit of AMD inside the processor makes this likely at best.

    Cured by the build for the GPU that is there, from its own index.
    """
    if m.torch.installed is False:
        return None
    build, nvidia = need(m.torch.build, "torch.build"), gpu_present(m)
    works = m.torch.imported is not None and m.torch.imported.cuda_available
    if build == "cpu" or works or (build == "cuda" and nvidia):
        return None
    amd = nvidia is not True and any(device.vendor == "amd" for device in need(m.pci, "pci"))
    if (build == "cuda") != amd or (build != "cuda" and not need(nvidia, "gpus")):
        return None
    backend = {"cuda": "CUDA", "rocm": "ROCm", "xpu": "Intel XPU"}[build]
    rocm = by_hand(
        "install-rocm-torch",
        "Install the ROCm build of torch",
        "On Linux, take the ROCm build of this torch release: its index is "
        "https://download.pytorch.org/whl/ followed by rocm and the ROCm version.",
    )
    return Found(
        evidence=("torch.build", "torch.text", "pci" if amd else "gpus"),
        values={
            "torch": _this_torch(m),
            "backend": backend,
            "vendor": "AMD" if amd else "NVIDIA",
        },
        sure=not amd,
        remedies=rocm if amd else install_torch(m, kb),
    )


@rule(
    "torch-arch-unsupported-new",
    title="{torch} has no code for the {gpu} (compute capability {capability})",
)
def torch_arch_unsupported_new(m: Machine, kb: Knowledge) -> Answer:
    """The GPU is newer than anything in this build ({archs}), so kernels end in "no kernel image".

    Code for one generation runs on the same generation with an equal or higher minor number only:
    sm_86 serves 8.6 and 8.9, sm_120 serves 12.0 and 12.1. is_available() is True all the same.
    PTX (compute_90) can be compiled by the driver for a newer GPU where the driver is as new as
    the toolkit; then torch starts slowly, its libraries may lack kernels, and this is a warning.

    Cured by a build with code for the GPU: 12.8 or newer for Blackwell. Never by a newer driver,
    a toolkit or TORCH_CUDA_ARCH_LIST, which a wheel that is already built does not read.
    """
    return _unserved(m, kb, newer=True)


@rule(
    "torch-arch-unsupported-old",
    title="{torch} has no code for the {gpu} (compute capability {capability})",
)
def torch_arch_unsupported_old(m: Machine, kb: Knowledge) -> Answer:
    """The build was compiled for other GPUs only ({archs}): kernels end in "no kernel image".

    Builds drop old generations. Maxwell and Pascal are served by the cu126 builds only, which end
    with torch 2.14.1; Volta by those and by some cu128 builds; Kepler by builds of CUDA 11. An old
    card beside one that is served is a warning: it must be left out with CUDA_VISIBLE_DEVICES.

    Cured by a build with code for the GPU. Never by another driver: a newer one may drop the GPU.
    """
    return _unserved(m, kb, newer=False)


def _unserved(m: Machine, kb: Knowledge, *, newer: bool) -> Answer:
    if not applies(m):
        return None
    present = devices(m, kb)
    if not present and not m.pci:
        need(m.gpus, "gpus")
    if not present:
        return None
    have = compiled(m, kb)
    newest = max(filter(None, map(code_version, have.archs)), default=Version("0"))
    of_kind = [gpu for gpu in present if (gpu.capability > newest) == newer]
    ways = {gpu: way_to_run(have.archs, gpu.capability, m, kb) for gpu in present}
    slow = [gpu for gpu in of_kind if ways[gpu] == "ptx"]
    unserved = [gpu for gpu in of_kind if ways[gpu] is None]
    if not (slow or unserved):
        return None
    worst = (unserved or slow)[0]
    unpublished, proven = kb.known_bad_arch(worst.capability), error_with(m, *NO_IMAGE)
    if unserved and unpublished and not proven:
        why = f"compute capability {worst.capability} is newer than the tables"
        raise NotKnown(f"{worst.path}.capability", why)
    others = "native" in ways.values()
    # Newer than every published build: PTX is how such a GPU is meant to be served.
    ahead = not unserved and unpublished
    # Only a GPU that torch uses matters; the newest comes first in torch's own order.
    seen = m.torch.imported.capabilities if m.torch.imported else None
    unused = others and seen and worst.capability not in seen
    severity = WARNING if not unserved or (others and not newer) else ERROR
    row = row_of(m, kb)
    return Found(
        evidence=(worst.path, have.evidence),
        values={
            "torch": _this_torch(m),
            "gpu": worst.name,
            "capability": worst.capability,
            "archs": have.archs,
        },
        cites=have.sources or (row.sources if row else ()),
        confidence=CERTAIN if proven else have.confidence,
        severity=INFO if ahead or unused else severity,
        title=None if unserved else "{torch} runs on the {gpu} only through PTX",
        why=None if unserved else _PTX,
        remedies=()
        if ahead
        else _served_otherwise(m, kb, unserved if others else []) or _other_way(m, kb, worst),
    )


@rule(
    "torch-arch-unsupported-old",
    title="cuDNN {cudnn} of this torch refuses the {gpu} (compute capability {capability})",
    essential=False,
)
def cudnn_refuses_gpu(m: Machine, kb: Knowledge) -> Answer:
    """torch has code for the GPU, but cuDNN has dropped it: convolutions and RNNs end in an error.

    cuDNN 9.11 and later do not run below compute capability 7.5. The cu126 builds of torch keep an
    older one for that reason; builds of conda, of distributions and an upgraded cuDNN do not.

    Told from cudnn-shadowed and nvidia-wheels-mixed, where torch's own cuDNN would do. Cured by a
    build of torch with an older cuDNN.
    """
    if not applies(m) or foreign(m, "libcudnn"):
        return None
    pins = library_pins(m, kb) if m.torch.requires is not None else ()
    if any("cudnn" in pin.name and not pin.met for pin in pins):
        return None
    found = next((use for use in in_use(m) if use.library.soname.startswith("libcudnn.so")), None)
    cudnn = version_of(found.library.version) if found else None
    lost = refused(cudnn, m, kb)
    if not (found and lost and way_to_run(compiled(m, kb).archs, lost[0].capability, m, kb)):
        return None
    gpu = lost[0]
    return Found(
        evidence=(found.path, gpu.path),
        values={"cudnn": cudnn, "gpu": gpu.name, "capability": gpu.capability},
        sure=False,
        remedies=install_torch(m, kb),
    )


_PTX = (
    "The build has no code for compute capability {capability} ({archs}): the driver compiles its "
    "PTX at the first use, which takes minutes, and libraries such as cuDNN may lack kernels."
)


def _this_torch(m: Machine) -> str:
    """The installed torch at the beginning of a sentence."""
    release = m.torch.text or m.torch.version
    return f"torch {release}" if release else "This torch"


def _served_otherwise(m: Machine, kb: Knowledge, left: list[Device]) -> Remedies:
    """A build for all GPUs; where the installed one is best, without those that nobody serves."""
    build = best_build(m, kb).build
    if build is not None and left and is_installed(build, m):
        return leave_out(m, kb, {gpu.capability for gpu in left}) or install_torch(m, kb)
    return install_torch(m, kb)


def _other_way(m: Machine, kb: Knowledge, device: Device) -> Remedies:
    """Where nothing can be installed as a command: the newest build with code for the GPU."""
    name = device.name
    for row in kb.builds_on(platform_of(m) or "linux_x86_64"):
        ways = (kb.serves(arch, device.capability, row.torch, row.cuda) for arch in row.archs or ())
        if row.published and row.cuda and "native" in ways:
            text = (
                f"The newest one is torch {row.torch} as {row.variant}, from {row.index}; it must "
                "also be made for this Python and run with this driver."
            )
            return by_hand("fitting-torch", f"Install a torch with code for the {name}", text)
    return by_hand(
        "other-gpu",
        "Use another GPU",
        f"No published build of torch has code for the {name}. Train on the CPU or on another GPU.",
    )


@rule(
    "torch-python-unsupported",
    title="No build of torch for this machine is made for Python {python}",
)
def torch_python_unsupported(m: Machine, kb: Knowledge) -> Answer:
    """Wheels are made for single Python versions ({pythons}), so pip finds none for this one.

    pip says "No matching distribution found" and lists no versions. A wrong index, a 32-bit
    Python, musl and a free-threaded Python give the same words: platform-unsupported is where no
    Python of this system would do, torch-index-wrong where another index has the wheel.

    Cured by an environment with a Python that has wheels. Building torch from source is not worth
    it for this, and neither is changing the Python that the system itself uses.
    """
    ancient = _is_ancient(m, kb)
    if not ancient and need(m.torch.installed, "torch.installed"):
        return None
    need(m.platform.system, "platform.system")
    platform = platform_of(m)
    if platform is None or (not ancient and need(m.python.bits, "python.bits") == 32):
        return None
    python, pythons = need(python_of(m), "python.version"), _pythons(kb, platform)
    implementation = m.python.implementation or "CPython"
    other = implementation != "CPython"
    if not pythons or not (ancient or other or _only_python_hinders(m, kb, pythons, python)):
        return None
    return Found(
        evidence=("python.version", "python.implementation", "platform.machine"),
        values={
            "python": f"{python} ({implementation})" if other else python,
            "pythons": pythons,
        },
        remedies=install_python(m, kb, pythons),
    )


def _is_ancient(m: Machine, kb: Knowledge) -> bool:
    """Whether this Python is older than any that a known build is made for.

    It is not looked into, so whether it holds a torch of those days stays unknown.
    """
    if m.torch.installed is not None or m.python.version is None:
        return False
    refused = error_with(
        m, "no matching distribution", "could not find a version", "no module named"
    )
    failed = refused or any(install.failed for install in m.installs or ())
    if m.look == "report" and not failed:
        return False  # A path with an old Python is of the days when torch was made for it.
    oldest = min(Version(name.rstrip("t")) for row in kb.builds for name in row.pythons or ())
    return m.python.version < oldest


def _pythons(kb: Knowledge, platform: str) -> Strings:
    """The Pythons of the newest torch for the platform, oldest first."""
    rows = [row for row in kb.builds if row.platform == platform and row.pythons]
    newest = max((row.torch for row in rows), default=None)
    names = {name for row in rows if row.torch == newest for name in row.pythons}
    return tuple(sorted(names, key=lambda name: (Version(name.rstrip("t")), name)))


def _only_python_hinders(m: Machine, kb: Knowledge, pythons: Strings, python: str) -> bool:
    """Whether nothing fits here, and something would with one of the other Pythons."""
    if python in pythons or best_build(m, kb).build is not None:
        return False
    plain = next(name for name in pythons if not name.endswith("t"))
    other = replace(m.python, version=Version(plain), free_threaded=False, implementation="CPython")
    return best_build(replace(m, python=other), kb).build is not None
