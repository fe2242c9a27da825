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
from cudadoctor.plan.remedies import (
    by_hand,
    for_other_maker,
    install_python,
    install_torch,
    leave_out,
)
from cudadoctor.plan.remedies.process import keeper_of
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
from cudadoctor.rules.evidence.signs import (
    WORDS,
    error_with,
    given_away,
    gpu_present,
    live_gpus,
    somebody_trains_here,
)
from cudadoctor.solver.builds import best_build
from cudadoctor.solver.demand import ever_served, platform_of, python_of
from cudadoctor.solver.fit import is_installed

NO_IMAGE = ("no kernel image is available", "not compatible with the current PyTorch installation")


@rule(
    "torch-missing",
    title="This Python has no torch package ({python})",
)
def torch_missing(m: Machine, kb: Knowledge) -> Answer:
    """`import torch` fails with "No module named 'torch'".

    Check by hand: run `python -m pip show torch` with the same Python that runs your program. An
    empty folder named torch does not count as an installation.

    Look-alikes: if torch was installed with another Python's pip, the cause is wrong-interpreter.
    If one of your own files is named torch, the cause is torch-duplicate. If pip finds no wheel for
    this Python, the cause is torch-python-unsupported.

    Fix: install the torch build that works with your driver and GPU. Use `python -m pip install`
    with the Python that runs your program. torch does not need the CUDA toolkit: its wheels
    include the CUDA libraries.
    """
    if need(m.torch.installed, "torch.installed"):
        return None
    somebody_trains_here(m)
    return Found(
        evidence=("torch.installed", "python.executable"),
        values={"python": m.python.executable or "the Python being checked"},
        remedies=install_torch(m, kb),
    )


@rule(
    "torch-cpu-build",
    title="{torch} is a CPU-only build and cannot use your {gpu}",
)
def torch_cpu_build(m: Machine, kb: Knowledge) -> Answer:
    """A CPU build contains no CUDA code, so torch.cuda.is_available() is False with any driver.

    PyPI provides CPU builds for Windows and macOS and, through torch 2.10, for Linux on ARM. The
    `/whl/cpu` index always provides CPU builds. A CPU build is also installed if conda's solver
    detects no GPU, and another package that depends on torch can replace a CUDA build with a CPU
    build. Check by hand: `python -c "import torch; print(torch.version.cuda)"` prints None for a
    CPU build. cudadoctor does not report a CPU build on a machine without an NVIDIA GPU, where a
    CPU build is correct, or on a machine whose GPU no current build supports.

    Look-alikes: if torch.version.cuda has a value but CUDA is still not available, the problem is
    in the driver, the container setup or an environment variable.

    Fix: install the CUDA build for your driver and GPU from the matching PyTorch index. Installing
    a CUDA toolkit or a different driver does not help.
    """
    if m.torch.installed is False or need(m.torch.build, "torch.build") != "cpu":
        return None
    # Where only the bus tells of a GPU, it is the host's, and not given to a container.
    dxg = m.container.dxg and m.container.wsl_libs
    here = not m.container.kind and not given_away(m)
    given = here or live_gpus(m) or m.platform.jetson or dxg or m.gpus
    # A CUDA build further down the path is torch-duplicate's.
    copied = any("+cu" in (copy.version or "") for copy in (m.torch.copies or ())[1:])
    if not need(gpu_present(m), "gpus") or not given or copied:
        return None
    served = _served_by_some_build(m, kb)
    left = "No published CUDA build of torch supports this GPU, so torch can use only the CPU."
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
    return _model(name) or "NVIDIA GPU"


def _model(name: str) -> str:
    """The GPU as people call it: RTX 5090 for NVIDIA GeForce RTX 5090."""
    return name.removeprefix("NVIDIA ").removeprefix("GeForce ")


@rule(
    "torch-wrong-backend",
    title="{torch} is a {backend} build, but your GPU is from {vendor}",
    essential=False,
)
def torch_wrong_backend(m: Machine, kb: Knowledge) -> Answer:
    """A {backend} build supports only {maker} GPUs.

    A ROCm build runs on AMD GPUs, an XPU build on Intel GPUs, and a CUDA build on NVIDIA GPUs. If
    the CPU has integrated AMD graphics, this finding is likely rather than certain.

    Look-alikes: if this machine has no GPU from any vendor, the cause is gpu-not-detected. If torch
    is a CPU build, the cause is torch-cpu-build.

    Fix: install the torch build for your GPU's vendor from the matching PyTorch index.
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
    return Found(
        evidence=("torch.build", "torch.text", "pci" if amd else "gpus"),
        values={
            "torch": _this_torch(m),
            "backend": backend,
            "maker": {"cuda": "NVIDIA", "rocm": "AMD", "xpu": "Intel"}[build],
            "vendor": "AMD" if amd else "NVIDIA",
        },
        sure=not amd,
        remedies=for_other_maker(m, kb, "amd") if amd else install_torch(m, kb),
    )


@rule(
    "torch-arch-unsupported-new",
    title="{torch} was not built for your {gpu}",
)
def torch_arch_unsupported_new(m: Machine, kb: Knowledge) -> Answer:
    """Your {gpu} is {sm}; this build contains only {archs}. Kernels fail with "no kernel image is
    available for execution on the device".

    Code compiled for one compute capability also runs on GPUs with the same major version and the
    same or a higher minor version: sm_86 code runs on GPUs with compute capability 8.6 or 8.9, and
    sm_120 code runs on GPUs with 12.0 or 12.1. torch.cuda.is_available() is True even if the build
    does not support the GPU. Check by hand: compare `torch.cuda.get_arch_list()` with
    `torch.cuda.get_device_capability()`.

    If the build contains PTX (compute_90) and the driver is new enough, the driver compiles the PTX
    for a newer GPU. In this case, torch starts slowly and its libraries may lack kernels for the
    GPU, so cudadoctor reports a warning instead of an error.

    Fix: install a build with code for the GPU. Blackwell GPUs need a build for CUDA 12.8 or newer.
    Installing a newer driver or a CUDA toolkit does not help, and neither does setting
    TORCH_CUDA_ARCH_LIST, because a prebuilt wheel contains only the code that it was built with.
    """
    return _unserved(m, kb, newer=True)


@rule(
    "torch-arch-unsupported-old",
    title="{torch} was not built for your {gpu}",
)
def torch_arch_unsupported_old(m: Machine, kb: Knowledge) -> Answer:
    """Your {gpu} is {sm}; this build contains only {archs}. Kernels fail with "no kernel image is
    available for execution on the device".

    Newer builds drop support for older GPUs. Maxwell and Pascal are supported by the cu126 builds
    (up to torch 2.14.1), Volta by the cu126 builds and some cu128 builds, and Kepler by CUDA 11
    builds. If a supported GPU is also installed, cudadoctor reports only a warning; in that case,
    hide the older GPU with CUDA_VISIBLE_DEVICES.

    Fix: install a build with code for the GPU. Do not change the driver: a newer driver may drop
    support for the GPU altogether.
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
        why = f"compute capability {worst.capability} is newer than any in cudadoctor's tables"
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
            "gpu": _model(worst.name),
            "sm": f"sm_{str(worst.capability).replace('.', '')}",
            "archs": _span(have.archs, worst.capability),
            "oldest": f"{kb.torch_releases()[-1].major}.{kb.torch_releases()[-1].minor}",
        },
        cites=have.sources or (row.sources if row else ()),
        confidence=CERTAIN if proven else have.confidence,
        severity=INFO if ahead or unused else severity,
        title=None if unserved else "{torch} runs on your {gpu} only by compiling PTX",
        why=_PTX
        if not unserved
        else None
        if newer or ever_served(worst.capability, kb)
        else _NEVER,
        remedies=()
        if ahead
        else _served_otherwise(m, kb, unserved if others else []) or _other_way(m, kb, worst),
    )


@rule(
    "torch-arch-unsupported-old",
    title="cuDNN {cudnn} no longer supports your {gpu}",
    essential=False,
)
def cudnn_refuses_gpu(m: Machine, kb: Knowledge) -> Answer:
    """torch itself contains code for this GPU, but convolutions and RNNs fail: cuDNN 9.11 and later
    need compute capability 7.5 or higher, and this GPU has {capability}.

    To support GPUs below compute capability 7.5, the cu126 builds of torch include a cuDNN older
    than 9.11. torch packages from conda or a distribution come with a newer cuDNN, and an
    environment in which cuDNN was upgraded also has a newer one.

    Look-alikes: if torch's own cuDNN supports the GPU but another copy is used, the cause is
    cudnn-shadowed or nvidia-wheels-mixed.

    Fix: install a torch build that includes a cuDNN older than 9.11.
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
        values={"cudnn": cudnn, "gpu": _model(gpu.name), "capability": gpu.capability},
        sure=False,
        remedies=install_torch(m, kb),
    )


_NEVER = (
    "No published build since torch {oldest} has code for your {gpu}, so no other torch, driver or "
    "CUDA version helps."
)
_PTX = (
    "This build has no {sm} code, only {archs}. The driver compiles the PTX on first use, which "
    "takes minutes, and libraries such as cuDNN may lack kernels for this GPU."
)


def _span(archs: Strings, capability: Version) -> str:
    """The architectures of a build that lacks this one: the first and last, if it is outside."""
    known = sorted((version, code) for code in archs if (version := code_version(code)))
    plain = all(code.startswith("sm_") for code in archs)
    if plain and len(known) > 3 and not known[0][0] <= capability <= known[-1][0]:
        return f"{known[0][1]} to {known[-1][1]}"
    return ", ".join(archs)


def _this_torch(m: Machine) -> str:
    """The installed torch at the beginning of a sentence."""
    # A report of a CPU build that names a CUDA one speaks of two.
    other = m.torch.build == "cpu" and "+cu" in (m.torch.named or "")
    return f"torch {m.torch.named}" if m.torch.named and not other else "This torch"


def _served_otherwise(m: Machine, kb: Knowledge, left: list[Device]) -> Remedies:
    """A build for all GPUs; where the installed one is best, without those that nobody serves."""
    build = best_build(m, kb).build
    stays = left and (build is None or is_installed(build, m))
    own = left and (stays or keeper_of(m) != "admin")
    hidden = leave_out(m, kb, {gpu.capability for gpu in left}) if own else ()
    if stays:
        return hidden if hidden and build else hidden + install_torch(m, kb)
    return install_torch(m, kb) + hidden


def _other_way(m: Machine, kb: Knowledge, device: Device) -> Remedies:
    """Where nothing can be installed as a command: the newest build with code for the GPU."""
    name = device.name
    for row in kb.builds_on(platform_of(m) or "linux_x86_64"):
        ways = (kb.serves(arch, device.capability, row.torch, row.cuda) for arch in row.archs or ())
        if row.published and row.cuda and "native" in ways:
            text = (
                f"torch {row.torch}+{row.variant} from {row.index} works on this GPU, provided "
                "that your Python and driver are compatible with that build."
            )
            return by_hand("fitting-torch", f"Install a torch build that supports the {name}", text)
    return by_hand(
        "other-gpu",
        "Use another GPU",
        f"No published build of torch supports the {name}. Train on the CPU or on another GPU.",
    )


@rule(
    "torch-python-unsupported",
    title="torch has no wheel for Python {python} on this system",
)
def torch_python_unsupported(m: Machine, kb: Knowledge) -> Answer:
    """Each wheel is built for one Python version, and the newest torch has wheels for {pythons}.
    With any other version, pip says "No matching distribution found".

    pip also says "No matching distribution found" if the package index is wrong, if Python is a
    32-bit or free-threaded build, or if the system uses musl.

    Look-alikes: if no Python version would work on this system, the cause is platform-unsupported.
    If another index has the wheel, the cause is torch-index-wrong.

    Fix: create an environment with a Python version that has wheels. Building torch from source for
    an unsupported Python version is not worth the effort. Do not replace the system's own Python.
    """
    if m.platform.jetson:  # the wheels of other computers do not serve it
        return None
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
            "pythons": [name for name in pythons if not name.endswith("t")],
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
