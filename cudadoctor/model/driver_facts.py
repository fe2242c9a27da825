"""Facts about driver and GPUs: the lower half of facts.py, whose rules hold here too.

Everybody else takes these names from facts.py.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from packaging.version import Version

from cudadoctor.model.versions import DriverVersion


class Section(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """The base of all facts: immutable, by keyword only, unknown keys refused."""


class Node(Section, frozen=True, kw_only=True):
    """A device node and what opening it said: errno 0 is success, None not tried.

    EACCES 13 is permission bits, EPERM 1 a cgroup rule, ENXIO 6 and ENODEV 19 a node without a
    driver behind it, EIO 5 a GPU that did not start.
    """

    path: str
    errno: int | None = None
    mode: int | None = None
    group: str | None = None


class ModuleFile(Section, frozen=True, kw_only=True):
    """An nvidia kernel module file on disk: for which kernel, which version and flavour."""

    path: str
    kernel: str
    version: DriverVersion | None = None
    flavour: Literal["open", "proprietary"] | None = None


class SystemPackage(Section, frozen=True, kw_only=True):
    """A package of the operating system that belongs to the driver, CUDA, cuDNN or NCCL."""

    name: str
    version: str
    manager: Literal["dpkg", "rpm", "pacman"]


class Xid(Section, frozen=True, kw_only=True):
    """One kind of Xid of one GPU in the kernel log: the newest line, and how often it was seen.

    bus_id: 0000:41:00 as the log wrote it. age_s: seconds since the newest, where the log has
    times. pid, process: the program that the driver named.
    """

    code: int
    bus_id: str
    count: int = 1
    age_s: float | None = None
    pid: int | None = None
    process: str | None = None
    text: str | None = None


_STARTS = ("loading", "nvmlSystemGetNVMLVersion", "nvmlInit", "cuDriverGetVersion", "cuInit")


def is_start(call: str) -> bool:
    """Whether a call is one up to the init, which starts every GPU and can take half a minute.

    Any later call, of a driver that has started, comes back at once.
    """
    return call.startswith(_STARTS)


class Nvml(Section, frozen=True, kw_only=True):
    """What libnvidia-ml.so.1 (nvml.dll) answered in a child process.

    loads: False where the dynamic loader found no such library; why: its own words.
    code: NVML's code of the first call that decided (0 is success); call: its name.
    hung: the call that did not return, which no healthy driver needs so long for; hung_gpu: index
    of the GPU that it was about. signal: the signal that killed the child.
    version: user-space driver version of the library (nvmlSystemGetNVMLVersion needs no init).
    """

    loads: bool | None = None
    why: str | None = None
    path: str | None = None
    code: int | None = None
    call: str | None = None
    message: str | None = None
    version: DriverVersion | None = None
    hung: str | None = None
    hung_gpu: int | None = None
    signal: int | None = None
    count: int | None = None

    @property
    def started(self) -> bool:
        """Whether its init succeeded: whoever was let on to count the GPUs has started."""
        return self.code is not None and (self.code == 0 or "GetCount" in (self.call or ""))


class Libcuda(Section, frozen=True, kw_only=True):
    """What libcuda.so.1 (nvcuda.dll) answered in a child process with the user's environment.

    code: result of cuInit (0 is success). version: cuDriverGetVersion as a CUDA version.
    count: cuDeviceGetCount; count_code: its result where that is not 0. path: the file that was
    mapped; file_version: from its real name. clean_code: result of cuInit in a second child without
    LD_LIBRARY_PATH, LD_PRELOAD and CUDA_VISIBLE_DEVICES; asked only where code is not 0.
    clean_path, clean_count: likewise.
    """

    loads: bool | None = None
    why: str | None = None
    path: str | None = None
    file_version: DriverVersion | None = None
    code: int | None = None
    version: Version | None = None
    count: int | None = None
    count_code: int | None = None
    hung: str | None = None
    signal: int | None = None
    clean_code: int | None = None
    clean_path: str | None = None
    clean_count: int | None = None


class Smi(Section, frozen=True, kw_only=True):
    """What nvidia-smi said; asked only where NVML gave no answer.

    found: False where it is not on PATH. code: exit status. message: its first line of words where
    it failed. hung: it gave no answer within the limit.
    """

    found: bool | None = None
    path: str | None = None
    code: int | None = None
    message: str | None = None
    hung: bool | None = None


class Fabric(Section, frozen=True, kw_only=True):
    """NVSwitch and its daemon. nvswitches: how many on the PCI bus.

    manager: "absent", "inactive", "failed" or "active". version: of its package or binary.
    """

    nvswitches: int | None = None
    manager: Literal["absent", "inactive", "failed", "active"] | None = None
    version: DriverVersion | None = None


class GpuPair(Section, frozen=True, kw_only=True):
    """Two GPUs of one machine, by their index, and what NVML says lies between them.

    p2p: whether one reads and writes the other's memory: ok, or what forbids it. "gpu" and
    "unsupported" are said of GPUs that have none, "chipset" and "topology" of the board between
    them, "disabled" of a setting of the driver. nvlink: their P2P goes over NVLink. level: the
    lowest part of the PCI tree above both: internal (one board), switch, switches, bridge (one
    root port complex), node (one NUMA node), system (between processors).
    """

    first: int
    second: int
    p2p: (
        Literal["ok", "chipset", "gpu", "topology", "disabled", "unsupported", "unknown"] | None
    ) = None
    nvlink: bool | None = None
    level: Literal["internal", "switch", "switches", "bridge", "node", "system"] | None = None


class Driver(Section, frozen=True, kw_only=True):
    """The NVIDIA driver.

    installed: a module file for any kernel, a driver package or a driver library is there.
    loaded: the kernel module is loaded (never true on WSL, where it lives in Windows).
    kernel: version of the loaded kernel module. flavour: of the loaded kernel module.
    reported: version that NVML or nvidia-smi name (on WSL the Windows driver's).
    library: version of the user-space driver libraries.
    cuda: newest CUDA version that the driver runs.
    modules: names of loaded kernel modules that matter (nvidia, nvidia_uvm, nouveau, nvgpu ...).
    module_files: nvidia modules on disk, for any kernel. dkms: status lines for nvidia.
    blacklisted_by: files of modprobe.d that keep nvidia from loading.
    log: lines of the kernel log that matter, None where it is not readable.
    stuck: processes in state D that hold the driver ("name (pid)").
    pairs: every two GPUs that answer, () with less than two of them.
    excluded: GPUs that a setting of the module keeps from use (NVreg_ExcludedGpus).
    confidential: confidential computing is on; confidential_ready: and its GPUs take work.
    """

    installed: bool | None = None
    loaded: bool | None = None
    kernel: DriverVersion | None = None
    flavour: Literal["open", "proprietary"] | None = None
    reported: DriverVersion | None = None
    library: DriverVersion | None = None
    cuda: Version | None = None
    nvml: Nvml = Nvml()
    libcuda: Libcuda = Libcuda()
    smi: Smi = Smi()
    modules: tuple[str, ...] | None = None
    module_files: tuple[ModuleFile, ...] | None = None
    dkms: tuple[str, ...] | None = None
    blacklisted_by: tuple[str, ...] | None = None
    packages: tuple[SystemPackage, ...] | None = None
    nodes: tuple[Node, ...] | None = None
    log: tuple[str, ...] | None = None
    xids: tuple[Xid, ...] | None = None
    stuck: tuple[str, ...] | None = None
    fabric: Fabric = Fabric()
    pairs: tuple[GpuPair, ...] | None = None
    excluded: int | None = None
    confidential: bool | None = None
    confidential_ready: bool | None = None

    @property
    def version(self) -> DriverVersion | None:
        """The driver in use: the loaded module's version, else what NVML or nvidia-smi report."""
        return self.kernel or self.reported


class PciGpu(Section, frozen=True, kw_only=True):
    """A display or compute device on the PCI bus, seen without any driver.

    vendor: "nvidia", "amd", "intel" or the id in hex. device_id: four hex digits, lower case.
    bound: the kernel driver that owns it ("" none). lost: its configuration space reads all ones.
    power: runtime power state (D0, D3cold ...). bars_missing: an address range was not assigned.
    numa: its NUMA node, -1 where the firmware names none. iommu: whether its memory accesses are
    translated; acs: a bridge above it sends what it tells a neighbour to the root first. The last
    three are read where there are several GPUs.
    """

    address: str
    vendor: str
    device_id: str
    class_id: str | None = None
    bound: str | None = None
    lost: bool | None = None
    power: str | None = None
    bars_missing: bool | None = None
    numa: int | None = None
    iommu: Literal["off", "identity", "translated"] | None = None
    acs: bool | None = None


class GpuProcess(Section, frozen=True, kw_only=True):
    """A process that holds memory of a GPU. name is None where it belongs to somebody else."""

    pid: int
    name: str | None = None
    memory_bytes: int | None = None


class Gpu(Section, frozen=True, kw_only=True):
    """One NVIDIA GPU as the driver describes it.

    index: position in PCI bus order, from 0; not the position in CUDA_VISIBLE_DEVICES.
    code: NVML's code where its handle failed (15 is "GPU is lost"); then little else is known.
    failed: NVML's code (10 timeout, 14 corrupted infoROM, 999) of a vital question that failed
    though the handle works.
    capability: compute capability, None where an old driver did not tell (knowledge may).
    throttle: clock event bits of NVML. compute_mode: default, exclusive, prohibited.
    mig, mig_pending: MIG mode now and after the next reset. mig_devices: instances there.
    ecc_uncorrected: uncorrected errors since the driver loaded; ecc_aggregate: in its life.
    sm_clock_set_mhz: the application clock that somebody chose; sm_clock_default_mhz: its default.
    pcie_*: link generation and width now, at most with this slot, and at most for the GPU.
    unsupported: names of fields here that this GPU or driver does not have.
    """

    index: int
    name: str | None = None
    uuid: str | None = None
    bus_id: str | None = None
    device_id: str | None = None
    capability: Version | None = None
    code: int | None = None
    failed: int | None = None
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    compute_mode: Literal["default", "exclusive", "prohibited"] | None = None
    persistence: bool | None = None
    mig: bool | None = None
    mig_pending: bool | None = None
    mig_devices: tuple[str, ...] | None = None
    ecc: bool | None = None
    ecc_pending: bool | None = None
    ecc_uncorrected: int | None = None
    ecc_aggregate: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    remapped_rows: int | None = None
    retired_pending: bool | None = None
    throttle: int | None = None
    performance_state: int | None = None
    utilization: int | None = None
    temperature_c: int | None = None
    slowdown_c: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    sm_clock_set_mhz: int | None = None
    sm_clock_default_mhz: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_generation_gpu_max: int | None = None
    fabric_state: int | None = None
    nvlink_down: int | None = None
    virtualization: Literal["none", "passthrough", "vgpu", "host"] | None = None
    display: bool | None = None
    processes: tuple[GpuProcess, ...] | None = None
    unsupported: tuple[str, ...] = ()
