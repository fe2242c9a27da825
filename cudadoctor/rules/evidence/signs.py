"""What the facts prove together: the signs that several rules about the driver and the GPU read.

NVML, nvidia-smi, libcuda and torch are voices of one driver. Where one of them was not asked or
could not answer, another may have said the same, and an answer of a higher layer proves the lower.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from errno import ENOENT
from itertools import islice
from typing import Literal

from packaging.version import Version

from cudadoctor.knowledge import Knowledge
from cudadoctor.knowledge.tables import table
from cudadoctor.model.findings import ERROR, INFO, Severity
from cudadoctor.model.machine import Gpu, Machine, OptBool, OptInt, OptStr, PciGpu, Smoke, Strings
from cudadoctor.model.rule import need
from cudadoctor.model.trust import is_doctors_own
from cudadoctor.reports.smi import MEANINGS

WORDS = table("rules/words", dict[str, Strings])
"""Words, keys of symptoms and causes that rules compare with; each list has one reader.

Symptoms: `complains` shows that the author asks about an error and not about a hint;
`cpu-build-seen` shows a CPU build whatever the day of the report; `cuda-wanted` shows that a GPU
was expected; `other-errors` has nothing to do with a build for the CPU. Causes: `costs-no-result`
still lets a program end well; `explains-no-failure` slows or warns only. Texts: `passing` stands
in a line after which the program went on; `broken-companion` and `spoken-for` stand in import
errors that rules of their own judge. Names: `kernels-at-run-time` are packages whose kernels are
Triton's or that call torch.compile by themselves; `linux-programs` exist on no Windows;
`without-builds` are processors for which nobody builds torch.
"""
SUCCESS, NO_PERMISSION, NOT_FOUND, NOT_LOADED = 0, 4, 6, 9
NO_LIBRARY, LOST, RESET_REQUIRED, BLOCKED, MISMATCH, UNKNOWN = 12, 15, 16, 17, 18, 999
"""NVML's codes, which are also nvidia-smi's exit status (255 stands for 999)."""
UNKNOWN_WORDS = ("CUDA unknown error", "Error 999: unknown error")
NOT_READY, NOT_READY_WORDS = 802, ("system not yet initialized",)
"""CUDA's code and words for a system whose daemons are not ready."""
SMI_MESSAGES: tuple[tuple[str, int], ...] = (
    *MEANINGS[:-1],
    ("unable to determine the device handle", LOST),
    ("failed to initialize nvml: unknown error", UNKNOWN),
)
"""What nvidia-smi prints, in lower case, and the code that it stands for."""
AUTHOR = "the author"
"""How the origin of a fact begins that only the words of a report's author tell."""
GIVEN_AWAY = ("vfio-pci", "pci-stub")
"""Drivers that hold a GPU for a virtual machine."""
_MODULE_ANSWERED = frozenset({NO_PERMISSION, LOST, RESET_REQUIRED, BLOCKED, MISMATCH, UNKNOWN})


def driver_code(m: Machine) -> OptInt:
    """The code with which NVML started, or nvidia-smi's in its place; None where neither spoke."""
    nvml, smi = m.driver.nvml, m.driver.smi
    if nvml.code not in (None, NO_LIBRARY):
        return nvml.code
    if smi.found is not False:
        message = (smi.message or "").lower().replace("’", "'")
        for words, code in SMI_MESSAGES:
            if words in message:
                return code
        # Its table with the GPUs proves more than its exit status, which warnings change too.
        if smi.code is not None and not live_gpus(m):
            return UNKNOWN if smi.code == 255 else smi.code
    if named_gpus(m):
        return SUCCESS
    return NO_LIBRARY if no_nvml(m) else None


def no_nvml(m: Machine) -> bool:
    """Whether the library behind NVML cannot be loaded here."""
    return m.driver.nvml.loads is False or m.driver.nvml.code == NO_LIBRARY


def code_path(m: Machine) -> str:
    """The fact that `driver_code` rests on, as evidence."""
    if m.driver.nvml.code not in (None, NO_LIBRARY):
        return "driver.nvml.code"
    return "driver.smi.message" if m.driver.smi.message else "driver.smi.code"


def in_passing(text: str) -> bool:
    """Whether a line only warns, or says of a program that its child failed."""
    line = f" {text.lower()}"
    return any(word in line for word in (*WORDS["passing"], *WORDS["wrapping"]))


def torch_works(m: Machine) -> bool:
    """Whether the examined torch reached a GPU. The driver may work where torch does not."""
    torch, smoke = m.torch.imported, m.smoke
    if torch is not None and torch.cuda_available and torch.device_count != 0:
        return True
    return smoke is not None and smoke.device.startswith("cuda") and training_passed(smoke)


def torch_fails(m: Machine) -> bool:
    """Whether a real import of torch saw no GPU."""
    return m.torch.imported is not None and m.torch.imported.cuda_available is False


def only_smi_answers(m: Machine) -> bool:
    """Whether nvidia-smi names a driver of which this process sees nothing else.

    It may be a wrapper, or a library path that nvidia-smi has and this process has not.
    """
    seen = m.driver.kernel or m.driver.library or m.driver.nodes or m.driver.nvml.loads
    return not seen and m.driver.reported is not None


def cuda_works(m: Machine) -> bool:
    """Whether CUDA reached a GPU in this environment: libcuda counted one, or torch used one."""
    return torch_works(m) or cuda_counts(m)


def cuda_counts(m: Machine) -> bool:
    """Whether libcuda counted a GPU in this environment."""
    return m.driver.libcuda.code == SUCCESS and (m.driver.libcuda.count or 0) > 0


def training_passed(smoke: Smoke) -> bool:
    """Whether a stage of the training step passed."""
    return any(stage.status == "passed" for stage in smoke.stages)


def live_gpus(m: Machine) -> tuple[Gpu, ...]:
    """The GPUs that the driver named without an error."""
    return tuple(gpu for gpu in m.gpus or () if gpu.code in (None, SUCCESS))


def gpu_nodes(m: Machine) -> Strings | None:
    """The device nodes of GPUs that this process may open; None if they are not known."""
    if m.driver.nodes is None:
        return None
    paths = (node.path for node in m.driver.nodes if node.errno in (None, 0))
    return tuple(path for path in paths if is_gpu_node(path))


def is_gpu_node(path: str) -> bool:
    return path.removeprefix("/dev/nvidia").isdigit()


def is_fenced(gpu: Gpu, m: Machine) -> bool:
    """Whether a job or a container keeps this process from that GPU of others.

    Then its handle is refused, and there are no more openable nodes than GPUs that answer.
    """
    if not (m.container.kind or m.container.scheduler) or gpu.code not in (NO_PERMISSION, UNKNOWN):
        return False
    nodes = gpu_nodes(m)
    return nodes is None or len(nodes) <= len(live_gpus(m))


def named_gpus(m: Machine) -> tuple[Gpu, ...]:
    """The live GPUs, as far as a program named them: a pasted report may only speak of its GPU."""
    origin = m.origins.get("gpus", "") if m.look == "report" else ""
    return () if origin.startswith(AUTHOR) else live_gpus(m)


def answered(m: Machine) -> bool:
    """Whether the driver answered any of its voices, with or without a GPU behind it."""
    return (
        driver_code(m) in (SUCCESS, NOT_FOUND)
        or bool(named_gpus(m))
        or SUCCESS in (m.driver.libcuda.code, m.driver.libcuda.clean_code)
        or cuda_works(m)
    )


def module_spoke(m: Machine) -> bool:
    """Whether the kernel module is proven by an answer, be it a refusal."""
    return answered(m) or driver_code(m) in _MODULE_ANSWERED


def somebody_trains_here(m: Machine) -> None:
    """End the rule as undecided in the doctor's own environment, where no torch belongs."""
    own = "this is cudadoctor's own environment, which has no torch"
    need(None if is_doctors_own(m) else own, "torch.installed", own)


def wait_for_answer(m: Machine) -> None:
    """End the rule as undecided where the driver was asked and has not answered."""
    nvml, smi = m.driver.nvml, m.driver.smi
    if answered(m) or driver_code(m) not in (None, NO_LIBRARY):
        return
    silent_smi = smi.found is True and smi.code is None and not smi.message
    if (nvml.loads and nvml.code is None) or nvml.hung or silent_smi:
        need(None, "driver.smi.code" if no_nvml(m) else "driver.nvml.code")


def wait_for_table(m: Machine) -> None:
    """End the rule as undecided where nvidia-smi's banner came without its table of GPUs.

    It prints a banner only where it has found a GPU; what was cut off is not known.
    """
    if m.driver.smi.code == SUCCESS and m.driver.reported is not None and not m.driver.nvml.loads:
        need(m.gpus, "gpus")


def started(m: Machine) -> bool:
    """Whether at least one GPU was started by the driver."""
    if m.torch.build == "rocm" and not m.driver.libcuda.count:
        return bool(named_gpus(m))  # ROCm answers by the functions that CUDA has
    return bool(named_gpus(m)) or cuda_works(m)


def uvm_missing(m: Machine) -> OptBool:
    """Whether nvidia_uvm is not loaded, or its device node does not open; None not known."""
    modules, nodes = m.driver.modules, m.driver.nodes
    loaded = None if modules is None else "nvidia_uvm" in modules
    opened = {node.path: node.errno for node in nodes or ()}.get("/dev/nvidia-uvm", ENOENT)
    errno = None if nodes is None else opened
    if loaded is False or errno:
        return True
    return False if loaded or errno == 0 else None


def has_fabric(m: Machine, kb: Knowledge) -> OptBool:
    """Whether NVSwitches join the GPUs; None where that is not known.

    A switch on the bus or a fabric state proves it. None on the bus disproves it, except for boards
    whose switches are not there, and in a virtual machine, whose host keeps them; where the bus was
    not read, the names of the GPUs count.
    """
    switches, gpus = m.driver.fabric.nvswitches, m.gpus or ()
    if switches or any(gpu.fabric_state for gpu in gpus):
        return True
    kinds = {_nvswitch(gpu.name or "", kb) for gpu in gpus}
    if "hidden" in kinds:
        return True
    if (switches == 0 and not m.platform.virtual) or kinds == {"none"}:
        return False
    return True if "bus" in kinds else None


def _nvswitch(name: str, kb: Knowledge) -> OptStr:
    model, board = kb.gpu_by_name(name), kb.board(name)
    if model is not None and not model.data_center:
        return "none"
    return board.nvswitch if board else None


def nvidia_pci(m: Machine) -> tuple[PciGpu, ...]:
    """NVIDIA's GPUs on the PCI bus, as far as it was read."""
    return tuple(device for device in m.pci or () if device.vendor == "nvidia")


def on_the_bus(m: Machine, devices: Collection[PciGpu]) -> Strings:
    """The facts that show these GPUs on the bus: of many that are alike, the first ones do."""
    paths = (f"pci.{number}" for number, device in enumerate(m.pci or ()) if device in devices)
    return tuple(islice(paths, _MOST_SHOWN))


_MOST_SHOWN = 3


def given_away(m: Machine) -> bool:
    """Whether every NVIDIA GPU on the bus is reserved for virtual machines."""
    devices = nvidia_pci(m)
    return bool(devices) and all(device.bound in GIVEN_AWAY for device in devices)


def silent_gpus(m: Machine) -> tuple[PciGpu, ...]:
    """NVIDIA's GPUs on the bus that the driver does not name, though nobody else owns them.

    In a container the bus shows the host's GPUs, so silence means nothing there.
    """
    if m.container.kind or (cuda_works(m) and m.gpus is None):
        return ()
    named = {bus_key(gpu.bus_id or "") for gpu in m.gpus or ()} - {None}
    free = [device for device in nvidia_pci(m) if device.bound in (None, "", "nvidia")]
    if len(live_gpus(m)) >= len(free):
        return ()
    return tuple(device for device in free if bus_key(device.address) not in named)


def bus_key(address: str) -> tuple[int, ...] | None:
    """A PCI address as numbers: 00000000:01:00.0, 0000:01:00 and 01:00.0 are the same place."""
    parts = re.fullmatch(
        r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.\d)?", address, re.I
    )
    return tuple(int(part or "0", 16) for part in parts.groups()) if parts else None


def gpu_present(m: Machine) -> OptBool:
    """Whether the machine has an NVIDIA GPU; None where that is not known."""
    if (
        started(m)
        or m.gpus
        or m.driver.nvml.count
        or m.platform.jetson
        or nvidia_pci(m)
        or driver_code(m) in _MODULE_ANSWERED
    ):
        return True
    if m.platform.wsl:
        return _wsl_gpu(m)
    if m.pci is not None or m.platform.system == "Darwin":
        return False
    if m.platform.system == "Linux" and m.look != "report":
        return None  # the bus was not read, and a GPU needs no driver to be there
    unseen = m.driver.loaded is not True and m.driver.nvml.loads is False
    return False if unseen and m.look != "report" else None


def _wsl_gpu(m: Machine) -> OptBool:
    """In WSL the libraries that Windows mounts show NVIDIA's driver; the bus shows nothing."""
    if m.container.kind:
        return False if m.container.dxg is False else None
    return m.container.wsl_libs if m.container.dxg is not False else False


def on_linux(m: Machine) -> bool:
    """Whether the driver is that of a PC's Linux: WSL uses that of Windows, a Jetson its own."""
    return m.platform.system in (None, "Linux") and not (m.platform.wsl or m.platform.jetson)


def bare(m: Machine) -> bool:
    """Whether the driver of this Linux belongs to it: no container, no WSL, no Jetson."""
    return on_linux(m) and not m.container.kind


def driver_system(m: Machine) -> Literal["Linux", "Windows"]:
    """The system whose driver this is: WSL uses that of Windows."""
    return "Windows" if m.platform.wsl or m.platform.system == "Windows" else "Linux"


def driver_runs(level: Version, cuda: Version) -> bool:
    """Whether a driver whose newest CUDA is `level` runs this one."""
    return level.major >= cuda.major if cuda.major >= 11 else level >= cuda


def cpu_on_purpose(m: Machine) -> bool:
    """Whether torch is there and made for something else than an NVIDIA GPU."""
    return m.torch.build in ("cpu", "rocm", "xpu")


def graver_with_cuda(m: Machine) -> Severity:
    """Error, or information where torch was not made for an NVIDIA GPU and nobody asked for one."""
    asked = (m.env or {}).get("NVIDIA_VISIBLE_DEVICES", "") not in ("", "void", "none")
    return INFO if cpu_on_purpose(m) and not asked else ERROR


def variable(m: Machine, name: str) -> str:
    """An environment variable, "" where it is not set or not known."""
    return (m.env or {}).get(name, "")


def log_text(m: Machine) -> str:
    """The kernel log as one line in lower case: the driver breaks its sentences over lines."""
    lines = (re.sub(r"^.*?NVRM:\s*", "", line) for line in m.driver.log or ())
    return re.sub(r"\s+", " ", " ".join(lines)).replace("NVRM:", "").lower()


def error_with(m: Machine, *words: str, pasted: bool = True) -> OptStr:
    """The fact whose error text holds one of these words, None where no text does.

    pasted: the error texts of a report count too. They have rules of their own (reported), which
    know what stands around them; here they count where they confirm what other facts show.
    """
    for path, text in _texts(m):
        low = (text or "").lower()
        counts = pasted or not path.startswith("symptoms.")
        if counts and any(word.lower() in low for word in words):
            return path
    return None


def host_error_with(m: Machine, *words: str) -> OptStr:
    """As `error_with`, None for a pasted report: its texts are judged by the table of symptoms."""
    return None if m.look == "report" else error_with(m, *words)


def _texts(m: Machine) -> Iterator[tuple[str, OptStr]]:
    if torch := m.torch.imported:
        yield "torch.imported.cuda_error", torch.cuda_error
        yield "torch.imported.error", torch.error
        for name, error in (torch.companion_errors or {}).items():
            yield f"torch.imported.companion_errors.{name}", error
    if m.smoke:
        yield "smoke.ended", m.smoke.ended
        for n, stage in enumerate(m.smoke.stages):
            if stage.status in ("failed", "timed-out"):
                yield f"smoke.stages.{n}.detail", stage.detail
    for n, symptom in enumerate(m.symptoms or ()):
        yield f"symptoms.{n}.text", symptom.text
