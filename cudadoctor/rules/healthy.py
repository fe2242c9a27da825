"""What must be known before a machine is called healthy: a conjunction, in one place.

Healthy is the presence of these facts, not the absence of findings. Each requirement asks for its
facts with `need`: a missing one leaves the verdict undecided. What contradicts a requirement is a
shortfall, which the rule `unknown` reports if no known cause explains it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from cudadoctor.knowledge import Knowledge
from cudadoctor.model.catalogue import CATALOGUE
from cudadoctor.model.findings import LIKELY, POSSIBLE, Remedies
from cudadoctor.model.machine import Gpu, Machine, PciGpu, gap_of
from cudadoctor.model.rule import Answer, Found, NotKnown, need, rule
from cudadoctor.model.trust import is_doctors_own
from cudadoctor.plan.remedies import by_hand, reload_uvm
from cudadoctor.rules.evidence.devices import compiled, devices, way_to_run
from cudadoctor.rules.evidence.signs import (
    NO_LIBRARY,
    NOT_FOUND,
    NOT_LOADED,
    NOT_READY,
    NOT_READY_WORDS,
    SUCCESS,
    UNKNOWN,
    UNKNOWN_WORDS,
    answered,
    code_path,
    cpu_on_purpose,
    cuda_works,
    driver_code,
    gpu_nodes,
    gpu_present,
    has_fabric,
    heard,
    is_fenced,
    is_gpu_node,
    live_gpus,
    named_gpus,
    nvidia_pci,
    only_smi_speaks,
    silent_gpus,
    torch_fails,
    torch_works,
    training_passed,
    uvm_missing,
)
from cudadoctor.rules.process import promised_by_scheduler, visible

_EPERM = 1
"""What opening a device node says to a process that the device rules of its job keep out."""
_UNSUPPORTED = 3
_JETSON_WITHOUT_NVML = frozenset({_UNSUPPORTED, NOT_FOUND, NOT_LOADED, NO_LIBRARY})
"""How NVML refuses on a Jetson, whose driver is not nvidia.ko."""
_GIVEN_AWAY = ("vfio-pci", "pci-stub")
_NAMES_NONE = ("", "all", "void", "none")
"""Values of NVIDIA_VISIBLE_DEVICES that promise no GPU: many images set `all`."""


class Shortfall(NamedTuple):
    """What contradicts a requirement, and the fact that shows it."""

    what: str
    fact: str


Requirement = Callable[["Machine", "Knowledge"], "Shortfall | None"]


def shortfalls(m: Machine, kb: Knowledge) -> tuple[tuple[Shortfall, ...], tuple[NotKnown, ...]]:
    """What contradicts that this machine is healthy, and what is missing to say so."""
    if m.look == "report":
        # It need not show all that a host is asked for.
        silent = _judged((everything_answered,), m, kb)[1]
        return _judged(SEEN_IN_REPORTS, m, kb)[0], (*silent, *_judged(REPORT, m, kb)[1])
    return _judged((*ALWAYS, *(WITH_GPU if _wants_gpu(m) else WITHOUT_GPU)), m, kb)


def _judged(
    requirements: tuple[Requirement, ...], m: Machine, kb: Knowledge
) -> tuple[tuple[Shortfall, ...], tuple[NotKnown, ...]]:
    found: list[Shortfall] = []
    missing: list[NotKnown] = []
    for requirement in requirements:
        try:
            shortfall = requirement(m, kb)
        except NotKnown as gap:
            missing.append(gap)
            continue
        if shortfall is not None:
            found.append(shortfall)
    return tuple(found), tuple(missing)


def _wants_gpu(m: Machine) -> bool | None:
    """Whether an NVIDIA GPU is there or promised to this process; None if nobody knows."""
    if m.torch.build in ("rocm", "xpu") and not m.gpus:
        return False  # schedulers lend the GPUs of other vendors by the same variables
    if _promise(m):
        return True
    present = gpu_present(m)
    if present and cpu_on_purpose(m) and not (m.gpus or m.platform.jetson or m.platform.wsl):
        # A container shows its host's bus; a virtual machine may own the GPU.
        devices = nvidia_pci(m)
        boxed = m.container.kind and not gpu_nodes(m)
        if boxed or (devices and all(device.bound in _GIVEN_AWAY for device in devices)):
            return False
    return present


def _promise(m: Machine) -> str | None:
    """The variable by which a scheduler or a container promises an NVIDIA GPU to this process."""
    if m.container.kind and (m.env or {}).get("NVIDIA_VISIBLE_DEVICES", "") not in _NAMES_NONE:
        return "NVIDIA_VISIBLE_DEVICES"
    return promised_by_scheduler(m)


# --- on every host ---------------------------------------------------------------------------


def everything_answered(m: Machine, kb: Knowledge) -> Shortfall | None:
    """No child hung, and none was killed by a signal: what it would have said is missing.

    The rule `driver_hangs` says when silence proves a sick driver or GPU.
    """
    imported = m.torch.imported
    if imported is not None and imported.hung:
        return Shortfall(
            "torch does not come back from its import or first look", "torch.imported.hung"
        )
    for name, fact, number in (
        ("libcuda", "driver.libcuda.signal", m.driver.libcuda.signal),
        ("torch", "torch.imported.signal", imported.signal if imported else None),
    ):
        if number:
            return Shortfall(f"{name} crashes the process that asks it (signal {number})", fact)
    nvml, libcuda, smi = m.driver.nvml, m.driver.libcuda, m.driver.smi
    if nvml.signal:
        need(None, "driver.nvml.signal", f"signal {nvml.signal} ended the process that asked NVML")
    for fact, call in (("driver.nvml.hung", nvml.hung), ("driver.libcuda.hung", libcuda.hung)):
        if call:
            need(None, fact, f"{call} gave no answer")
    if smi.hung:
        need(None, "driver.smi.hung", "nvidia-smi gave no answer")
    for fact in ("driver.nvml.hung", "driver.libcuda.hung", "driver.smi.hung"):
        if (gap := gap_of(m, fact)) and gap.fact == fact:
            need(None, fact)  # silence too short to prove anything
    return None


def somebody_trains_here(m: Machine, kb: Knowledge) -> Shortfall | None:
    if is_doctors_own(m):
        need(None, "torch.installed", "this is cudadoctor's own environment, which has no torch")
    return None


def torch_imports(m: Machine, kb: Knowledge) -> Shortfall | None:
    """With a look that imports torch, the import succeeded."""
    imported = m.torch.imported
    if imported is not None and imported.ok is False:
        return Shortfall("torch cannot be imported", "torch.imported.error")
    if m.torch.installed is not False and m.look in ("full", "no-smoke"):
        imported = need(imported, "torch.imported")
        need(imported.ok or imported.hung, "torch.imported.ok")
    return None


def training_step_passed(m: Machine, kb: Knowledge) -> Shortfall | None:
    """With a full look, stages ran and none of them failed."""
    for number, stage in enumerate(m.smoke.stages if m.smoke else ()):
        if stage.status in ("failed", "timed-out"):
            return Shortfall(
                f"The stage {stage.name} of the training step failed", f"smoke.stages.{number}"
            )
    if m.smoke and m.smoke.ended:
        return Shortfall("The training step ended early", "smoke.ended")
    if m.look != "full" or m.torch.installed is False:
        return None
    if not training_passed(need(m.smoke, "smoke")):
        need(None, "smoke.stages", "no stage of the training step passed")
    return None


def torch_is_known(m: Machine, kb: Knowledge) -> Shortfall | None:
    """Which torch it is, and for what it was built."""
    if need(m.torch.installed, "torch.installed"):
        need(m.torch.version, "torch.version")
        need(m.torch.build, "torch.build")
    return None


# --- without a GPU ---------------------------------------------------------------------------


def bus_was_read(m: Machine, kb: Knowledge) -> Shortfall | None:
    """WSL and macOS have no bus to read: there the driver's libraries and the system decide."""
    if gpu_present(m) is None:
        need(None, "pci", "neither the PCI bus nor the driver shows if there is an NVIDIA GPU")
    if not (m.platform.wsl or m.platform.system == "Darwin"):
        need(None if gap_of(m, "pci") else m.pci, "pci")
    return None


_VENDOR = {"rocm": "amd", "xpu": "intel"}


def torch_fits_the_accelerator(m: Machine, kb: Knowledge) -> Shortfall | None:
    """A build for another vendor's GPU has one there, and uses it."""
    vendor = _VENDOR.get(m.torch.build or "")
    if vendor is None or not m.pci:
        return None
    if all(device.vendor != vendor for device in m.pci):
        what = f"torch was built for {vendor.upper()}'s GPUs, and there is none"
        return Shortfall(what.replace("INTEL", "Intel"), "torch.build")
    imported = m.torch.imported
    if vendor == "amd" and imported is not None and imported.cuda_available is False:
        return Shortfall("torch does not see the GPU", "torch.imported.cuda_available")
    return None


# --- with a GPU ------------------------------------------------------------------------------


def promise_is_kept(m: Machine, kb: Knowledge) -> Shortfall | None:
    if gpu_present(m) is False and (name := _promise(m)):
        return Shortfall(f"{name} promises a GPU, and there is none", f"env.{name}")
    return None


def driver_is_known(m: Machine, kb: Knowledge) -> Shortfall | None:
    """A Jetson's driver is known by its Linux for Tegra."""
    if m.platform.jetson and m.platform.l4t is not None:
        return None
    need(m.driver.version, "driver.reported")
    return None


def every_gpu_is_named(m: Machine, kb: Knowledge) -> Shortfall | None:
    """What the bus, the device nodes and NVML's own count promise, the driver describes."""
    nvml = m.driver.nvml
    code = driver_code(m) if _has_no_nvml(m) else need(nvml.code, "driver.nvml.code")
    if _does_without_nvml(m, code):
        return _all_promised(m, need(m.driver.libcuda.count, "driver.libcuda.count"))
    if _has_no_nvml(m) and m.driver.smi.code is None:
        need(None, "gpus", "NVML cannot be loaded, and nothing else names the GPUs")
    code = need(code, "driver.smi.code")
    if code != SUCCESS:
        if cuda_works(m):
            need(None, "driver.nvml.code", _refusal(code))  # training works; the GPUs are unnamed
        return Shortfall(_refusal(code), code_path(m))
    gpus = _whole_list(m)
    for number, gpu in enumerate(gpus):
        if not _answers(gpu) and not is_fenced(gpu, m):
            return Shortfall(
                f"The driver does not report GPU {gpu.index} (NVML error {gpu.code})",
                f"gpus.{number}.code",
            )
        if _answers(gpu):
            need(gpu.name or gpu.uuid or gpu.bus_id, f"gpus.{number}.name")
        if gpu.failed:
            need(
                None,
                f"gpus.{number}.failed",
                f"NVML fails with code {gpu.failed} when it is asked about GPU {gpu.index}",
            )
    if gpus and not live_gpus(m):
        return Shortfall("The driver does not report any GPU", "gpus.0.code")
    if not _has_no_nvml(m) and len(gpus) != need(nvml.count, "driver.nvml.count"):
        return Shortfall(
            f"NVML counts {_gpus(nvml.count or 0)} and names {len(gpus)}", "driver.nvml.count"
        )
    return _all_promised(m, len(gpus))


def _has_no_nvml(m: Machine) -> bool:
    return m.driver.nvml.loads is False or m.driver.nvml.code == NO_LIBRARY


def _does_without_nvml(m: Machine, code: int | None) -> bool:
    """A Jetson may have none, and neither has a container that asked for compute alone."""
    if m.platform.jetson:
        return code is None or code in _JETSON_WITHOUT_NVML
    asked = (m.env or {}).get("NVIDIA_DRIVER_CAPABILITIES", "utility")
    return (
        bool(m.container.kind)
        and _has_no_nvml(m)
        and not {"utility", "all"} & set(asked.split(","))
    )


def _whole_list(m: Machine) -> tuple[Gpu, ...]:
    """NVML's GPUs, if its list did not end where its process did."""
    gap = gap_of(m, "gpus")
    if gap is not None and gap.asked:
        need(None, "gpus")
    if m.driver.nvml.hung or m.driver.nvml.signal:
        need(None, "gpus", "the process that asked NVML did not come to its end")
    return need(m.gpus, "gpus")


def _refusal(code: int) -> str:
    if code == NOT_FOUND:
        return "The driver did not start any GPU"
    return f"The driver does not answer (NVML error {code})"


def _answers(gpu: Gpu) -> bool:
    return gpu.code in (None, SUCCESS)


def _all_promised(m: Machine, named: int) -> Shortfall | None:
    """Whether as many GPUs are named as the bus and the device nodes show."""
    linux = m.platform.system in (None, "Linux")
    if linux and not (m.platform.wsl or m.platform.jetson):
        nodes = need(gpu_nodes(m), "driver.nodes") if m.container.kind else ()
        if named < len(nodes):
            what = "The container has more GPU device nodes than the driver names GPUs"
            return Shortfall(what, "driver.nodes")
        silent = () if m.container.kind else _unreported(m)
        if silent:
            what = f"The GPU at {silent[0].address} is on the PCI bus, but the driver does not"
            return Shortfall(f"{what} report it", "pci")
    return Shortfall("The driver does not report any GPU", "gpus") if not named else None


def _unreported(m: Machine) -> tuple[PciGpu, ...]:
    """GPUs on the bus that nobody keeps from this process, and the driver does not name."""
    need(m.pci, "pci")
    if gap_of(m, "pci"):
        need(None, "pci")
    fenced = sum(node.errno == _EPERM for node in m.driver.nodes or () if is_gpu_node(node.path))
    silent = silent_gpus(m)
    return silent if len(silent) > (m.driver.excluded or 0) + fenced else ()


def cuda_starts(m: Machine, kb: Knowledge) -> Shortfall | None:
    libcuda = m.driver.libcuda
    if libcuda.loads is False:
        if only_smi_speaks(m) and not torch_fails(m):
            need(None, "driver.libcuda.code", "libcuda cannot be loaded")  # smi may be a wrapper
        return Shortfall("libcuda cannot be loaded", "driver.libcuda.why")
    code = need(libcuda.code, "driver.libcuda.code")
    return (
        Shortfall(f"CUDA does not start (cuInit: {code})", "driver.libcuda.code") if code else None
    )


def cuda_counts_them_all(m: Machine, kb: Knowledge) -> Shortfall | None:
    """CUDA counts the GPUs that this process may see, no fewer and no more."""
    libcuda = m.driver.libcuda
    if libcuda.loads is False or libcuda.code not in (None, SUCCESS):
        return None
    if libcuda.count_code:
        return Shortfall(
            f"CUDA does not count the GPUs (cuDeviceGetCount: {libcuda.count_code})",
            "driver.libcuda.count_code",
        )
    count = need(libcuda.count, "driver.libcuda.count")
    fewest, most = _may_be_seen(m)
    if fewest <= count <= most:
        return None
    by = "the driver names"
    if (m.env or {}).get("CUDA_VISIBLE_DEVICES") is not None:
        by = "CUDA_VISIBLE_DEVICES allows"
    return Shortfall(f"CUDA counts {_gpus(count)}, and {by} {most}", "driver.libcuda.count")


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def _may_be_seen(m: Machine) -> tuple[int, int]:
    """The smallest and the largest number of devices that CUDA should count here.

    A program sees one MIG instance at a time, or all of them with newer drivers.
    """
    if _does_without_nvml(m, m.driver.nvml.code):
        return 1, max(1, m.driver.libcuda.count or 1)
    left = visible(m)
    live = live_gpus(m)
    slices = [
        len(need(gpu.mig_devices, f"gpus.{number}.mig_devices"))
        for number, gpu in enumerate(_whole_list(m))
        if gpu.mig and _answers(gpu)
    ]
    if slices:
        return 1, max(1, sum(slices) + len(live) - len(slices))
    need(m.env, "env")
    expected = len(live) if left is None else len(left.indexes)
    return max(1, expected), max(1, expected)


def torch_serves_the_gpus(m: Machine, kb: Knowledge) -> Shortfall | None:
    """The architectures of the build were compared with those of the GPUs."""
    if m.torch.installed is False or m.torch.build != "cuda":
        return None
    need(m.torch.cuda, "torch.cuda")
    need(m.torch.archs, "torch.archs")
    present = devices(m, kb)
    if not present:
        need(None, "gpus.0.capability", "nothing shows what the GPUs can run")
    archs = compiled(m, kb).archs
    if torch_works(m) or any(way_to_run(archs, gpu.capability, m, kb) for gpu in present):
        return None
    return Shortfall(f"torch has no code for the {present[0].name}", "torch.archs")


def torch_sees_the_gpus(m: Machine, kb: Knowledge) -> Shortfall | None:
    """With a look that imports torch, its count agrees with CUDA's."""
    imported = m.torch.imported
    if m.torch.build != "cuda" or imported is None or imported.ok is False or imported.hung:
        return None
    if m.look == "report" and not (gpu_present(m) or answered(m)):
        return None
    if not need(imported.cuda_available, "torch.imported.cuda_available"):
        shown = "cuda_error" if imported.cuda_error else "cuda_available"
        return Shortfall("torch does not see the GPU", f"torch.imported.{shown}")
    if imported.cuda_error and m.look != "report":
        return Shortfall("CUDA fails in torch", "torch.imported.cuda_error")
    count = need(imported.device_count, "torch.imported.device_count")
    counted = m.driver.libcuda.count if m.look != "report" else None
    if not count or (counted is not None and count != counted):
        what = f"torch counts {_gpus(count)}" + (f", CUDA {counted}" if counted else "")
        return Shortfall(what, "torch.imported.device_count")
    return None


# --- in a pasted report ----------------------------------------------------------------------


def driver_answers(m: Machine, kb: Knowledge) -> Shortfall | None:
    """NVML only watches: if CUDA reaches a GPU, no training fails for its silence."""
    if m.torch.build != "cuda" or not (gpu_present(m) or answered(m)):
        return None
    libcuda = m.driver.libcuda.code
    if libcuda not in (None, SUCCESS):
        return Shortfall(f"CUDA does not start (cuInit: {libcuda})", "driver.libcuda.code")
    code = SUCCESS if cuda_works(m) else driver_code(m)
    if code in (None, SUCCESS, NO_LIBRARY):
        return None
    return Shortfall(_refusal(code), code_path(m))


def torch_used_a_gpu(m: Machine, kb: Knowledge) -> Shortfall | None:
    """A report need not show all of a machine, but torch at work on its GPU it must."""
    imported = m.torch.imported
    available = imported is not None and imported.cuda_available and named_gpus(m)
    if not (available or torch_works(m)):
        need(None, "torch.imported.cuda_available", "the report does not show torch using a GPU")
    return None


def nobody_complains(m: Machine, kb: Knowledge) -> Shortfall | None:
    """Neither an error text, nor words of the author's that no reader understood."""
    from cudadoctor.rules.pasted.reported import complaints

    if any(install.failed for install in m.installs or ()) or complaints(m, kb):
        need(None, "symptoms", "the report shows an error that nothing in it explains")
    if gap_of(m, "symptoms"):
        need(None, "symptoms")
    return None


ALWAYS: tuple[Requirement, ...] = (
    somebody_trains_here,
    everything_answered,
    torch_imports,
    training_step_passed,
    torch_is_known,
)
WITHOUT_GPU: tuple[Requirement, ...] = (bus_was_read, torch_fits_the_accelerator)
WITH_GPU: tuple[Requirement, ...] = (
    promise_is_kept,
    driver_is_known,
    torch_sees_the_gpus,
    cuda_starts,
    every_gpu_is_named,
    cuda_counts_them_all,
    torch_serves_the_gpus,
)
SEEN_IN_REPORTS: tuple[Requirement, ...] = (
    everything_answered,
    torch_imports,
    training_step_passed,
    torch_sees_the_gpus,
    driver_answers,
    cuda_counts_them_all,
)
REPORT: tuple[Requirement, ...] = (torch_used_a_gpu, nobody_complains)


_EXPLAINS_NO_FAILURE = frozenset(
    {
        "wrong-interpreter",
        "torch-index-wrong",
        "build-isolation",
        "pynvml-conflict",
        "toolkit-missing",
        "toolkit-torch-mismatch",
        "toolkit-env-wrong",
        "host-compiler-unsupported",
        "arch-list-wrong",
        "amp-no-benefit",
        "tf32-off",
        "slow-dataloader",
        "pcie-degraded",
        "thermal-throttle",
        "clocks-capped",
        "gpu-topology",
        "p2p-not-possible",
        "cpu-bound",
        "not-environment",
        "unknown",
    }
)
_EXPLAINED_BY = tuple(cause for cause in CATALOGUE if cause not in _EXPLAINS_NO_FAILURE)
"""Every cause that can make training fail. An explanation counts only where it is as grave."""
_NOT_READY = "CUDA answers 802 (system not yet initialized), and there is no NVSwitch here."
_STUCK_UVM = "CUDA fails to start (error 999), though the module nvidia_uvm is loaded"
_AFTER_SUSPEND = "After a suspend this module can stop working until it is loaded again."
_WAIT = (
    "The driver may still be starting, or a MIG change may be under way. If it stays: a vGPU needs "
    "its licence service, and confidential computing its attestation (`nvidia-smi conf-compute "
    "-grs` shows that state)."
)


@rule("unknown", title="{what}, and no known cause explains it", yields_to=_EXPLAINED_BY)
def unknown(m: Machine, kb: Knowledge) -> Answer:
    """Something that ought to work on this machine failed; the evidence shows its own words.

    It is said only where the driver and the GPU answer, or where torch itself fails, and where no
    other cause is at least likely. A look with all probes (without --fast and --no-smoke) and the
    first error of the program's own log decide most of these. `cudadoctor facts` keeps what
    is known of this machine for a bug report.
    """
    failures, _ = shortfalls(m, kb)
    if not failures:
        return None
    # A report that hints at a cause is worth more than one that only shows a failure.
    sure = POSSIBLE if m.look == "report" else LIKELY
    title, why, remedies = _hint(m, kb)
    return Found(
        evidence=(failures[0].fact,),
        values={"what": failures[0].what},
        confidence=sure,
        title=title,
        why=why,
        remedies=remedies,
    )


def _hint(m: Machine, kb: Knowledge) -> tuple[str | None, str | None, Remedies]:
    """Title, why and what to try, where the code that CUDA answers leaves only a few reasons."""
    codes = (m.driver.libcuda.code, m.driver.libcuda.clean_code)
    if has_fabric(m, kb) is False and (NOT_READY in codes or heard(m, *NOT_READY_WORDS)):
        return None, _NOT_READY, by_hand("wait-for-driver", "Wait a minute and check again", _WAIT)
    if uvm_missing(m) is False and (UNKNOWN in codes or heard(m, *UNKNOWN_WORDS)):
        return _STUCK_UVM, _AFTER_SUSPEND, reload_uvm(m)
    return None, None, ()
