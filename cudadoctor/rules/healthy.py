"""What must be known before a machine is called healthy: a conjunction, in one place.

Healthy is the presence of these facts, not the absence of findings. Each requirement asks for its
facts with `need`: a missing one leaves the verdict undecided. What contradicts a requirement is a
shortfall, which the rule `unknown` reports if no known cause explains it.
"""

from __future__ import annotations

from collections.abc import Callable
from errno import EPERM

from cudadoctor.knowledge import Knowledge
from cudadoctor.model.catalogue import CATALOGUE
from cudadoctor.model.findings import LIKELY, POSSIBLE, Remedies
from cudadoctor.model.machine import Gpu, Machine, OptBool, OptInt, OptStr, PciGpu, Strings, gap_of
from cudadoctor.model.rule import Answer, Found, NotKnown, apply, need, remembered, rule
from cudadoctor.plan.remedies import by_hand, license_vgpu, reboot, reload_uvm
from cudadoctor.plan.remedies.process import keeper_of, notebook_of
from cudadoctor.rules import gpu as left_out
from cudadoctor.rules.evidence.devices import compiled, devices, way_to_run
from cudadoctor.rules.evidence.libraries import import_fails
from cudadoctor.rules.evidence.signs import (
    NO_LIBRARY,
    NOT_FOUND,
    NOT_LOADED,
    NOT_READY,
    NOT_READY_WORDS,
    SUCCESS,
    UNKNOWN,
    UNKNOWN_WORDS,
    WORDS,
    answered,
    code_path,
    cpu_on_purpose,
    cuda_works,
    driver_code,
    error_with,
    given_away,
    gpu_nodes,
    gpu_present,
    has_fabric,
    host_error_with,
    is_fenced,
    is_gpu_node,
    live_gpus,
    named_gpus,
    no_nvml,
    on_linux,
    only_smi_answers,
    silent_gpus,
    somebody_trains_here,
    torch_fails,
    torch_works,
    training_passed,
    uvm_missing,
)
from cudadoctor.rules.process import promised_by_scheduler, visible

_NONE_REPORTED = "The driver does not report any GPU"
_UNSUPPORTED = 3
_JETSON_WITHOUT_NVML = frozenset({_UNSUPPORTED, NOT_FOUND, NOT_LOADED, NO_LIBRARY})
"""How NVML refuses on a Jetson, whose driver is not nvidia.ko."""
_NAMES_NONE = ("", "all", "void", "none")
"""Values of NVIDIA_VISIBLE_DEVICES that promise no GPU: many images set `all`."""


class Shortfall(Exception):  # noqa: N818 - not an error: it ends a requirement as contradicted
    """What contradicts a requirement, and the fact that shows it."""

    def __init__(self, what: str, fact: str) -> None:
        super().__init__(what)
        self.what = what
        self.fact = fact


Requirement = Callable[[Machine], None] | Callable[[Machine, Knowledge], None]
"""It raises NotKnown where a fact is missing, and Shortfall where one contradicts it."""


def refuse(contradicted: object, what: str, fact: str) -> None:
    """End the requirement as contradicted where this holds."""
    if contradicted:
        raise Shortfall(what, fact)


def wait(unknown: object, fact: str, why: OptStr = None) -> None:
    """End the requirement as undecided where this holds."""
    need(None if unknown else fact, fact, why)


@remembered
def shortfalls(m: Machine, kb: Knowledge) -> tuple[list[Shortfall], list[NotKnown]]:
    """What contradicts that this machine is healthy, and what is missing to say so."""
    if m.look == "report":
        # It need not show all that a host is asked for.
        _, silent = _judged((everything_answered,), m, kb)
        return _judged(SEEN_IN_REPORTS, m, kb)[0], silent + _judged(REPORT, m, kb)[1]
    return _judged((*ALWAYS, *(WITH_GPU if _wants_gpu(m) else WITHOUT_GPU)), m, kb)


def _judged(
    requirements: tuple[Requirement, ...], m: Machine, kb: Knowledge
) -> tuple[list[Shortfall], list[NotKnown]]:
    found = []
    missing = []
    for requirement in requirements:
        try:
            apply(requirement, m, kb)
        except NotKnown as gap:
            missing.append(gap)
        except Shortfall as shortfall:
            found.append(shortfall)
    return found, missing


def _wants_gpu(m: Machine) -> OptBool:
    """Whether an NVIDIA GPU is there or promised to this process; None if nobody knows."""
    if m.torch.build in ("rocm", "xpu") and not m.gpus:
        return False  # schedulers lend the GPUs of other vendors by the same variables
    if _promise(m):
        return True
    present = gpu_present(m)
    on_cpu = cpu_on_purpose(m) and not (m.gpus or m.platform.jetson or m.platform.wsl)
    # A container shows its host's bus; a virtual machine may own the GPU.
    elsewhere = given_away(m) or (m.container.kind and not gpu_nodes(m))
    return False if present and on_cpu and elsewhere else present


def _promise(m: Machine) -> OptStr:
    """The variable by which a scheduler or a container promises an NVIDIA GPU to this process."""
    if m.container.kind and (m.env or {}).get("NVIDIA_VISIBLE_DEVICES", "") not in _NAMES_NONE:
        return "NVIDIA_VISIBLE_DEVICES"
    return promised_by_scheduler(m)


# --- on every host ---------------------------------------------------------------------------


def everything_answered(m: Machine) -> None:
    """No child hung, and none was killed by a signal: what it would have said is missing.

    The rule `driver_hangs` says when silence proves a sick driver or GPU.
    """
    nvml, libcuda, torch = m.driver.nvml, m.driver.libcuda, m.torch.imported
    stuck = "torch hangs on import or while initializing CUDA"
    refuse(torch and torch.hung, stuck, "torch.imported.hung")
    for name, fact, number in (
        ("libcuda", "driver.libcuda.signal", libcuda.signal),
        ("torch", "torch.imported.signal", torch and torch.signal),
    ):
        refuse(number, f"{name} crashes (signal {number})", fact)
    ended = f"the NVML query was killed (signal {nvml.signal})"
    wait(nvml.signal, "driver.nvml.signal", ended)
    calls = {
        "driver.nvml.hung": nvml.hung,
        "driver.libcuda.hung": libcuda.hung,
        "driver.smi.hung": m.driver.smi.hung and "nvidia-smi",
    }
    for fact, call in calls.items():
        wait(call, fact, f"{call} does not return")
    for fact in calls:
        gap = gap_of(m, fact)
        wait(gap and gap.fact == fact, fact)  # silence too short to prove anything


def torch_imports(m: Machine) -> None:
    """With a look that imports torch, the import succeeded."""
    refuse(import_fails(m), "torch cannot be imported", "torch.imported.error")
    if m.torch.installed is not False and m.look in ("full", "no-smoke"):
        imported = need(m.torch.imported, "torch.imported")
        need(imported.ok or imported.hung, "torch.imported.ok")


def training_step_passed(m: Machine) -> None:
    """With a full look, stages ran and none of them failed."""
    for number, stage in enumerate(m.smoke.stages if m.smoke else ()):
        what = f"The training step failed ({stage.name})"
        refuse(stage.status in ("failed", "timed-out"), what, f"smoke.stages.{number}")
    refuse(m.smoke and m.smoke.ended, "The training step ended early", "smoke.ended")
    if m.look == "full" and m.torch.installed is not False:
        passed = training_passed(need(m.smoke, "smoke"))
        wait(not passed, "smoke.stages", "no stage of the training step passed")


def torch_is_known(m: Machine) -> None:
    """Which torch it is, and for what it was built."""
    if need(m.torch.installed, "torch.installed"):
        need(m.torch.version, "torch.version")
        need(m.torch.build, "torch.build")


# --- without a GPU ---------------------------------------------------------------------------


def bus_was_read(m: Machine) -> None:
    """WSL and macOS have no bus to read: there the driver's libraries and the system decide."""
    unseen = "neither the PCI bus nor the driver shows whether there is an NVIDIA GPU"
    wait(gpu_present(m) is None, "pci", unseen)
    if not (m.platform.wsl or m.platform.system == "Darwin"):
        wait(gap_of(m, "pci") or m.pci is None, "pci")


_VENDOR = {"rocm": ("amd", "AMD"), "xpu": ("intel", "Intel")}


def torch_fits_the_accelerator(m: Machine) -> None:
    """A build for another vendor's GPU has one there, and uses it."""
    vendor, name = _VENDOR.get(m.torch.build or "", ("", ""))
    if vendor and m.pci:
        absent = all(device.vendor != vendor for device in m.pci)
        refuse(absent, f"torch was built for {name} GPUs, but none was found", "torch.build")
        unseen = vendor == "amd" and torch_fails(m)
        refuse(unseen, "torch does not see the GPU", "torch.imported.cuda_available")


# --- with a GPU ------------------------------------------------------------------------------


def promise_is_kept(m: Machine) -> None:
    broken = gpu_present(m) is False and _promise(m)
    refuse(broken, f"{broken} indicates a GPU, but none was found", f"env.{broken}")


def driver_is_known(m: Machine) -> None:
    """A Jetson's driver is known by its Linux for Tegra."""
    if not m.platform.jetson or m.platform.l4t is None:
        need(m.driver.version, "driver.reported")


def every_gpu_is_named(m: Machine, kb: Knowledge) -> None:
    """What the bus, the device nodes and NVML's own count promise, the driver describes."""
    code = driver_code(m) if no_nvml(m) else need(m.driver.nvml.code, "driver.nvml.code")
    if _does_without_nvml(m, code):
        named = need(m.driver.libcuda.count, "driver.libcuda.count")
    else:
        named = _described(m, code)
    if on_linux(m) and m.container.kind:
        few = "The container has device nodes for more GPUs than the driver reports"
        refuse(named < len(need(gpu_nodes(m), "driver.nodes")), few, "driver.nodes")
    elif on_linux(m) and (silent := _unreported(m)) and not _named_as_left_out(m, kb):
        what = f"The GPU at {silent[0].address} is on the PCI bus, but the driver does not report"
        raise Shortfall(f"{what} it", "pci")
    refuse(not named, _NONE_REPORTED, "gpus")


def _named_as_left_out(m: Machine, kb: Knowledge) -> bool:
    """Whether a warning says already why the driver leaves a GPU out beside one that works."""
    rules = (left_out.driver_unsupported_gpu, left_out.driver_wrong_flavour, left_out.pci_bar_bios)
    return torch_works(m) and any(found.judge(m, kb) is not None for found in rules)


def _described(m: Machine, code: OptInt) -> int:
    """How many GPUs the driver describes: all that it counts, and each of them."""
    silent = no_nvml(m) and m.driver.smi.code is None
    wait(silent, "gpus", "NVML cannot be loaded, and nothing else can list the GPUs")
    code = need(code, "driver.smi.code")
    if code != SUCCESS:
        # Where training works, the GPUs are merely unnamed.
        wait(cuda_works(m), "driver.nvml.code", _refusal(code))
        raise Shortfall(_refusal(code), code_path(m))
    gpus = _whole_list(m)
    for number, gpu in enumerate(gpus):
        dead = not _answers(gpu) and not is_fenced(gpu, m)
        what = f"The driver does not report GPU {gpu.index} (NVML error {gpu.code})"
        refuse(dead, what, f"gpus.{number}.code")
        if _answers(gpu):
            need(gpu.name or gpu.uuid or gpu.bus_id, f"gpus.{number}.name")
        asked = f"NVML returns error {gpu.failed} for GPU {gpu.index}"
        wait(gpu.failed, f"gpus.{number}.failed", asked)
    refuse(gpus and not live_gpus(m), _NONE_REPORTED, "gpus.0.code")
    if not no_nvml(m):
        count = need(m.driver.nvml.count, "driver.nvml.count")
        what = f"NVML counts {_gpus(count)} but lists {len(gpus)}"
        refuse(len(gpus) != count, what, "driver.nvml.count")
    return len(gpus)


def _does_without_nvml(m: Machine, code: OptInt) -> bool:
    """A Jetson may have none, and neither has a container that asked for compute alone."""
    if m.platform.jetson:
        return code is None or code in _JETSON_WITHOUT_NVML
    asked = (m.env or {}).get("NVIDIA_DRIVER_CAPABILITIES", "utility").split(",")
    return bool(m.container.kind) and no_nvml(m) and not {"utility", "all"} & set(asked)


def _whole_list(m: Machine) -> tuple[Gpu, ...]:
    """NVML's GPUs, if its list did not end where its process did."""
    gap = gap_of(m, "gpus")
    wait(gap and gap.asked, "gpus")
    cut = m.driver.nvml.hung or m.driver.nvml.signal
    wait(cut, "gpus", "the NVML query did not finish")
    return need(m.gpus, "gpus")


def _refusal(code: int) -> str:
    if code == NOT_FOUND:
        return "The driver did not initialize any GPU"
    return f"The driver is not responding (NVML error {code})"


def _answers(gpu: Gpu) -> bool:
    return gpu.code in (None, SUCCESS)


def _unreported(m: Machine) -> tuple[PciGpu, ...]:
    """GPUs on the bus that nobody keeps from this process, and the driver does not name."""
    wait(gap_of(m, "pci") or m.pci is None, "pci")
    # The device rules of a job or a container answer so.
    fenced = sum(node.errno == EPERM for node in m.driver.nodes or () if is_gpu_node(node.path))
    silent = silent_gpus(m)
    return silent if len(silent) > (m.driver.excluded or 0) + fenced else ()


def cuda_starts(m: Machine) -> None:
    libcuda, absent = m.driver.libcuda, "libcuda cannot be loaded"
    if libcuda.loads is False:
        wrapped = only_smi_answers(m) and not torch_fails(m)  # smi may be a wrapper
        wait(wrapped, "driver.libcuda.code", absent)
        raise Shortfall(absent, "driver.libcuda.why")
    _starts(need(libcuda.code, "driver.libcuda.code"))


def _starts(code: OptInt) -> None:
    refuse(code, f"CUDA cannot initialize (cuInit error {code})", "driver.libcuda.code")


def cuda_counts_them_all(m: Machine) -> None:
    """CUDA counts the GPUs that this process may see, no fewer and no more."""
    libcuda = m.driver.libcuda
    if libcuda.loads is False or libcuda.code not in (None, SUCCESS):
        return
    uncounted = f"CUDA cannot count the GPUs (cuDeviceGetCount error {libcuda.count_code})"
    refuse(libcuda.count_code, uncounted, "driver.libcuda.count_code")
    count = need(libcuda.count, "driver.libcuda.count")
    fewest, most = _may_be_seen(m)
    listed = "CUDA_VISIBLE_DEVICES" in (m.env or {})
    by = "CUDA_VISIBLE_DEVICES allows" if listed else "the driver lists"
    what = f"CUDA sees {_gpus(count)}, but {by} {most}"
    refuse(not fewest <= count <= most, what, "driver.libcuda.count")


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def _may_be_seen(m: Machine) -> tuple[int, int]:
    """The smallest and the largest number of devices that CUDA should count here.

    A program sees one MIG instance at a time, or all of them with newer drivers.
    """
    if _does_without_nvml(m, m.driver.nvml.code):
        return 1, max(1, m.driver.libcuda.count or 1)
    left, live = visible(m), len(live_gpus(m))
    slices = [
        len(need(gpu.mig_devices, f"gpus.{number}.mig_devices"))
        for number, gpu in enumerate(_whole_list(m))
        if gpu.mig and _answers(gpu)
    ]
    if slices:
        return 1, max(1, sum(slices) + live - len(slices))
    need(m.env, "env")
    expected = max(1, live if left is None else len(left.indexes))
    return expected, expected


def torch_serves_the_gpus(m: Machine, kb: Knowledge) -> None:
    """The architectures of the build were compared with those of the GPUs."""
    if m.torch.installed is False or m.torch.build != "cuda":
        return
    need(m.torch.cuda, "torch.cuda")
    need(m.torch.archs, "torch.archs")
    present = devices(m, kb)
    wait(not present, "gpus.0.capability", "the compute capability of the GPUs is unknown")
    archs = compiled(m, kb).archs
    served = torch_works(m) or any(way_to_run(archs, gpu.capability, m, kb) for gpu in present)
    refuse(not served, f"torch was not built for the {present[0].name}", "torch.archs")


def torch_sees_the_gpus(m: Machine) -> None:
    """With a look that imports torch, its count agrees with CUDA's."""
    imported, pasted = m.torch.imported, m.look == "report"
    if (
        m.torch.build != "cuda"
        or imported is None
        or imported.ok is False
        or imported.hung
        or (pasted and not (gpu_present(m) or answered(m)))
    ):
        return
    available = need(imported.cuda_available, "torch.imported.cuda_available")
    shown = "cuda_error" if imported.cuda_error else "cuda_available"
    refuse(not available, "torch does not see the GPU", f"torch.imported.{shown}")
    error = imported.cuda_error or ""
    # A warning about one GPU that this build leaves out, which torch-arch-unsupported tells.
    failed = error and not ("Found GPU" in error and "capability" in error)
    refuse(failed and not pasted, "CUDA fails in torch", "torch.imported.cuda_error")
    count = need(imported.device_count, fact := "torch.imported.device_count")
    counted = None if pasted else m.driver.libcuda.count
    what = f"torch sees {_gpus(count)}" + (f", but CUDA sees {counted}" if counted else "")
    refuse(not count or counted not in (None, count), what, fact)


# --- in a pasted report ----------------------------------------------------------------------


def driver_answers(m: Machine) -> None:
    """NVML only watches: if CUDA reaches a GPU, no training fails for its silence."""
    if m.torch.build == "cuda" and (gpu_present(m) or answered(m)):
        _starts(m.driver.libcuda.code)
        code = SUCCESS if cuda_works(m) else driver_code(m)
        if code not in (None, SUCCESS, NO_LIBRARY):
            raise Shortfall(_refusal(code), code_path(m))


def torch_used_a_gpu(m: Machine, kb: Knowledge) -> None:
    """A report need not show all of a machine, but torch at work on its GPU it must.

    Unless what it complains of has nothing to do with the environment.
    """
    from cudadoctor.rules.pasted.reported import complains_of_no_environment

    if complains_of_no_environment(m, kb):
        return
    imported = m.torch.imported
    available = imported is not None and imported.cuda_available and named_gpus(m)
    unseen = "the report does not show torch using a GPU"
    wait(not (available or torch_works(m)), "torch.imported.cuda_available", unseen)


def nobody_complains(m: Machine, kb: Knowledge) -> None:
    """Neither an error text, nor words of the author's that no reader understood."""
    from cudadoctor.rules.pasted.reported import complains_of_no_environment, complaints

    if complains_of_no_environment(m, kb):
        return
    failed = any(install.failed for install in m.installs or ()) or complaints(m, kb)
    wait(failed, "symptoms", "the report shows an error but nothing that explains it")
    wait(gap_of(m, "symptoms"), "symptoms")


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
    cuda_starts,
    torch_sees_the_gpus,
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


_EXPLAINED_BY = tuple(cause for cause in CATALOGUE if cause not in WORDS["explains-no-failure"])
"""Every cause that can make training fail. An explanation counts only where it is as grave."""
_802 = "CUDA is not ready (error 802: system not yet initialized)"
_NO_SWITCH = "This system has no NVSwitch, so it does not need the fabric manager."
_STUCK_UVM = "CUDA fails with error 999 even though the nvidia_uvm module is loaded"
_AFTER_SUSPEND = (
    "After the system suspends, the nvidia_uvm module can stop working until it is reloaded."
)
_WAIT = (
    "The driver may still be starting, or a MIG change may be in progress. If the error "
    "persists, check the license service (on a vGPU) or the attestation (with confidential "
    "computing; `nvidia-smi conf-compute -grs` shows the state)."
)
_UNLICENSED = "The vGPU has no license"
_LICENSED_FIRST = "CUDA does not run on an NVIDIA vGPU until nvidia-gridd has obtained a license."

_LOG = (
    "Check the kernel log for the driver's error message",
    "Run `sudo dmesg | grep -i nvrm` and search the web for the errors it prints. If you file a "
    "bug report, include the output of `cudadoctor facts`.",
)

_KNOWN = (
    "Search the web for the driver's error message",
    "Search the web for the lines of the kernel log in the evidence. If you file a bug report, "
    "include the output of `cudadoctor facts`.",
)


@rule("unknown", title="{what}, and no known cause explains it", yields_to=_EXPLAINED_BY)
def unknown(m: Machine, kb: Knowledge) -> Answer:
    """Something that should work on this system failed. The evidence contains the error message.

    This cause is reported only if no other cause is certain or likely. Either torch itself fails,
    or something else fails while the driver and the GPU respond.

    Fix: run `cudadoctor check` without --fast and --no-smoke, and read the first error in your
    program's log: later errors are often caused by the first. If you report a bug, include the
    output of `cudadoctor facts`, which lists the facts about this machine.
    """
    failures, _ = shortfalls(m, kb)
    if not failures:
        return None
    # A report that hints at a cause is worth more than one that only shows a failure.
    sure = POSSIBLE if m.look == "report" else LIKELY
    title, why, remedies = _hint(m, kb, failures[0].fact)
    return Found(
        evidence=(*(failure.fact for failure in failures[:2]), *told_by_the_driver(m)),
        values={"what": failures[0].what},
        confidence=sure,
        title=title,
        why=why,
        remedies=remedies,
    )


def _hint(m: Machine, kb: Knowledge, fact: str) -> tuple[OptStr, OptStr, Remedies]:
    """Title, why and what to try, where the code that CUDA answers leaves only a few reasons."""
    libcuda = m.driver.libcuda
    codes = (libcuda.code, libcuda.clean_code)
    if has_fabric(m, kb) is False and (NOT_READY in codes or host_error_with(m, *NOT_READY_WORDS)):
        return _802, _NO_SWITCH, by_hand("wait-for-driver", "Wait a minute and check again", _WAIT)
    if uvm_missing(m) is False and (UNKNOWN in codes or host_error_with(m, *UNKNOWN_WORDS)):
        return _STUCK_UVM, _AFTER_SUSPEND, reload_uvm(m)
    if error_with(m, "valid Grid license"):
        return _UNLICENSED, _LICENSED_FIRST, license_vgpu(m)
    of_the_driver = fact.startswith(("driver.", "gpus", "torch.imported.cuda_"))
    if m.look == "report" or not (of_the_driver and on_linux(m)):
        return None, None, ()
    if notebook_of(m):
        return None, None, reboot(m)
    return (
        None,
        None,
        by_hand("driver-log", *(_KNOWN if told_by_the_driver(m) else _LOG), keeper_of(m)),
    )


def told_by_the_driver(m: Machine) -> Strings:
    """What the kernel log holds of the driver's own errors."""
    lines = any("NVRM" in line or "nvidia" in line.lower() for line in m.driver.log or ())
    return ("driver.xids",) * bool(m.driver.xids) + ("driver.log",) * lines
