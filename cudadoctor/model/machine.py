"""Facts about one machine, as plain values.

The rules of this file:

- ``None`` means not known, always. Absence is a value: ``()``, ``False``, ``""``, ``"cpu"``.
- Why a thing is not known stands in ``Machine.gaps``; where a known thing came from, in
  ``Machine.origins`` (fact path -> source; the longest matching prefix counts).
- Two sources that can disagree are two facts: the disagreement is a diagnosis.
- The word CUDA never stands alone: ``driver.cuda`` is the newest the driver runs, ``torch.cuda``
  what torch was built with, ``toolkits[].cuda`` what nvcc compiles for.
- "Not supported" is a third answer: the field stays None and its name stands in
  ``Gpu.unsupported``. It is no fault and no gap.
- Bytes are bytes, watts are watts, seconds are seconds: units are converted where they are shown.

A fact path is dotted: ``driver.kernel``, ``gpus.0.capability``, ``torch.imported.error``.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from packaging.version import Version

from cudadoctor.model.versions import DriverVersion

SCHEMA = 1


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


class Toolkit(Section, frozen=True, kw_only=True):
    """A CUDA toolkit. origin: PATH, CUDA_HOME, CUDA_PATH, /usr/local, conda or wheel."""

    path: str
    origin: str
    cuda: Version | None = None
    nvcc: str | None = None


class Compiler(Section, frozen=True, kw_only=True):
    """The host C++ compiler that nvcc and torch.compile would call. present False: none on PATH."""

    present: bool | None = None
    name: str | None = None
    version: Version | None = None
    path: str | None = None


class Build(Section, frozen=True, kw_only=True):
    """What a compilation of an extension would find.

    toolkits: all that were found. used: path of the toolkit that torch's own search would take
    (CUDA_HOME, CUDA_PATH, nvcc on PATH, /usr/local/cuda), "" none.
    needed_by: installed packages that compile at run time (deepspeed ...), or "--compile".
    headers: Python.h is there for the examined interpreter.
    """

    toolkits: tuple[Toolkit, ...] | None = None
    used: str | None = None
    cuda_home: str | None = None
    cuda_home_exists: bool | None = None
    compiler: Compiler = Compiler()
    needed_by: tuple[str, ...] | None = None
    headers: bool | None = None


class Library(Section, frozen=True, kw_only=True):
    """A shared library: which file answers to a soname, and by which rule of the loader.

    how: "DT_RPATH", "DT_RUNPATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "ld.so.cache", "default",
    "preloaded by torch", "mapped"; of a copy, where it was found. via: the library whose tag
    decided, else the one that asked.
    owner: "torch" (inside the torch package), "wheel" (nvidia-* of the same environment),
    "conda", "system", "toolkit", "other".
    """

    soname: str
    path: str
    how: str | None = None
    via: str | None = None
    owner: str | None = None
    version: str | None = None


class SearchFolder(Section, frozen=True, kw_only=True):
    """A folder of LD_LIBRARY_PATH as it is spelled there, and as it is with all links followed."""

    entry: str
    real: str


class Libraries(Section, frozen=True, kw_only=True):
    """Which libraries torch gets.

    own: directories that belong to the examined torch and its own wheels.
    predicted: by the loader's rules, without running anything. mapped: in a real process.
    copies: every copy found anywhere of cuDNN, cuBLAS, NCCL, nvJitLink ... with its version.
    missing: sonames that nothing provides. search: what LD_LIBRARY_PATH names, as far as it exists.
    """

    own: tuple[str, ...] | None = None
    predicted: tuple[Library, ...] | None = None
    mapped: tuple[Library, ...] | None = None
    copies: tuple[Library, ...] | None = None
    missing: tuple[str, ...] | None = None
    search: tuple[SearchFolder, ...] | None = None


class Gap(Section, frozen=True, kw_only=True):
    """A fact that could not be learnt, and why.

    asked: False where nobody looked because of an option (--fast, --no-smoke): such a gap makes a
    rule "not checked" but never makes the verdict undecided.
    """

    fact: str
    why: str
    asked: bool = True


class Identity(Section, frozen=True, kw_only=True):
    """What redaction must hide."""

    user: str | None = None
    home: str | None = None
    host: str | None = None


class Platform(Section, frozen=True, kw_only=True):
    """The operating system under everything.

    system: Linux, Windows or Darwin. machine: x86_64, aarch64, ... (normalised, lower case).
    distro: ID of os-release (ubuntu, debian, rhel, fedora, arch, opensuse-leap ...).
    libc: "glibc" or "musl"; glibc: its version. wsl: 0 not WSL, else 1 or 2.
    jetson: a Tegra board; l4t: its Linux for Tegra release. virtual: "" bare metal, else kvm ...
    product: DMI product name (DGXH100, NVIDIA_DGX_Spark, p5.48xlarge ...).
    root: whether the doctor runs as root. secure_boot: None where unreadable.
    """

    system: Literal["Linux", "Windows", "Darwin"] | None = None
    machine: str | None = None
    kernel: str | None = None
    distro: str | None = None
    distro_version: str | None = None
    distro_like: tuple[str, ...] | None = None
    libc: Literal["glibc", "musl"] | None = None
    glibc: Version | None = None
    wsl: int | None = None
    jetson: bool | None = None
    l4t: Version | None = None
    virtual: str | None = None
    product: str | None = None
    root: bool | None = None
    secure_boot: bool | None = None


class Container(Section, frozen=True, kw_only=True):
    """Where the process is boxed in.

    kind: "" none, else docker, podman, kubernetes, apptainer, lxc, enroot, containerd, other.
    scheduler: "" none, else slurm, kubernetes, lsf, pbs.
    dxg: /dev/dxg is there (WSL2's GPU device), wsl_libs: /usr/lib/wsl/lib/libcuda.so.1 is there.
    """

    kind: str | None = None
    scheduler: str | None = None
    dxg: bool | None = None
    wsl_libs: bool | None = None


class Limits(Section, frozen=True, kw_only=True):
    """Limits of this process and its file systems, in bytes; -1 means unlimited.

    interfaces: names of the network interfaces; read only where a variable names one.
    """

    shm_bytes: int | None = None
    shm_free_bytes: int | None = None
    memlock_bytes: int | None = None
    nofile: int | None = None
    memory_bytes: int | None = None
    cgroup_memory_bytes: int | None = None
    cpus: int | None = None
    tmp_free_bytes: int | None = None
    env_free_bytes: int | None = None
    interfaces: tuple[str, ...] | None = None


class Distribution(Section, frozen=True, kw_only=True):
    """An installed Python distribution that matters here.

    requires: its Requires-Dist lines that name torch, numpy, triton, nvidia-* or cuda-*.
    cuda: CUDA that its files say they were built for (xformers, torchvision ...), where known.
    torch: the torch release that its files say they were built for, where known. A version of one
    part means that whole major (flash-attn names CUDA 12 only).
    """

    name: str
    version: str
    location: str | None = None
    installer: str | None = None
    requires: tuple[str, ...] = ()
    cuda: Version | None = None
    torch: Version | None = None


class TorchCopy(Section, frozen=True, kw_only=True):
    """A torch that the examined interpreter could import, in order of its path.

    kind: "distribution" (has dist-info), "folder" (files without), "local" (a torch.py or torch/
    of the user's), "conda" (conda-meta record).
    """

    path: str
    kind: Literal["distribution", "folder", "local", "conda"]
    version: str | None = None
    where: str | None = None


class Imported(Section, frozen=True, kw_only=True):
    """What `import torch` and a first look at CUDA said in a child of the examined interpreter.

    ok: the import succeeded. error: type and text of the exception. signal: what killed it.
    cuda_error: text of the first failing CUDA call, or of torch's warning. capabilities: of the
    visible devices, in torch's order. companion_errors: of the packages beside torch whose import
    was tried, "" where it succeeded. libraries of the process are in Machine.libraries.mapped.
    shadows: where it failed, files of the user's that hid a module of Python's own from it.
    """

    ok: bool | None = None
    error: str | None = None
    signal: int | None = None
    hung: bool | None = None
    seconds: float | None = None
    cuda_available: bool | None = None
    cuda_error: str | None = None
    device_count: int | None = None
    capabilities: tuple[Version, ...] | None = None
    cudnn: str | None = None
    nccl: str | None = None
    numpy_error: str | None = None
    companion_errors: dict[str, str] | None = None
    shadows: tuple[str, ...] | None = None


class Torch(Section, frozen=True, kw_only=True):
    """The torch of the examined interpreter, read without importing it.

    build: "cuda", "cpu", "rocm" or "xpu". cuda: CUDA version it was built with (None for others).
    text: version as torch prints it (2.14.1+cu130). archs: what it has machine code for (sm_90)
    and PTX (compute_90). requires: its Requires-Dist lines.
    installer: pip, uv, conda, ... copies: all that the path holds, the imported one first.
    missing_files, empty_files: files of its RECORD that are absent or empty, relative.
    short_files: libraries that are shorter than its RECORD says. Empty and short libraries of
    NVIDIA's wheels count as its own. leftovers: folders that a killed
    pip left behind in site-packages (~orch).
    """

    installed: bool | None = None
    version: Version | None = None
    text: str | None = None
    build: Literal["cuda", "cpu", "rocm", "xpu"] | None = None
    cuda: Version | None = None
    hip: str | None = None
    archs: tuple[str, ...] | None = None
    path: str | None = None
    installer: str | None = None
    requires: tuple[str, ...] | None = None
    copies: tuple[TorchCopy, ...] | None = None
    missing_files: tuple[str, ...] | None = None
    empty_files: tuple[str, ...] | None = None
    short_files: tuple[str, ...] | None = None
    leftovers: tuple[str, ...] | None = None
    imported: Imported | None = None


class Manager(Section, frozen=True, kw_only=True):
    """A program that can install packages into the examined environment."""

    name: Literal["pip", "uv", "conda", "mamba", "micromamba", "pixi", "poetry", "pipx", "pdm"]
    path: str
    version: str | None = None


class Index(Section, frozen=True, kw_only=True):
    """Where pip or uv of this user look for packages. Credentials in URLs stay in memory.

    url: None where the tool's own default is used. no_index: indexes are switched off, so that
    only find_links (folders, pages) is searched. origin: the file or variable that decided.
    """

    url: str | None = None
    extra: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    no_index: bool = False
    origin: str | None = None


class Interpreter(Section, frozen=True, kw_only=True):
    """The examined interpreter.

    chosen_by: --python, VIRTUAL_ENV, CONDA_PREFIX, ./.venv, PATH, own.
    kind: venv, uv, conda, conda-base, pipx, poetry, system, user (pyenv and the like), embedded.
    externally_managed: PEP 668. tags_free_threaded: a free-threaded build.
    bits: 64 or 32. pip: pip is importable there. user_site: its directory where it is in use, "".
    pip_python, path_python: the interpreters that `pip` and `python3` or `python` on PATH belong
    to; "" where there is none. path: folders that its programs import from, in order, the working
    folder first. abi: tag of its compiled modules (cpython-311-x86_64-linux-gnu). ensurepip: it
    can install a pip of its own. passed_over: what named an interpreter that is not there or not
    trusted, as sentences. nowhere: the working folder was deleted. shadows: files of the working
    folder with the names of modules that torch imports. project: the folder of the project whose
    tool (project_tool: uv, pdm, poetry, pixi) writes this environment from a lock; both "" where
    there is none. repair: "unfinished" where `fix` was cut off here, else "". own: it is the
    environment that the doctor itself runs in.
    """

    executable: str | None = None
    chosen_by: str | None = None
    passed_over: tuple[str, ...] | None = None
    version: Version | None = None
    implementation: str | None = None
    free_threaded: bool | None = None
    bits: int | None = None
    prefix: str | None = None
    base_prefix: str | None = None
    site_packages: str | None = None
    kind: str | None = None
    externally_managed: bool | None = None
    user_site: str | None = None
    pip: bool | None = None
    managers: tuple[Manager, ...] | None = None
    index: Index | None = None
    pip_python: str | None = None
    path_python: str | None = None
    path: tuple[str, ...] | None = None
    abi: str | None = None
    ensurepip: bool | None = None
    nowhere: bool | None = None
    shadows: tuple[str, ...] | None = None
    project: str | None = None
    project_tool: str | None = None
    repair: Literal["", "unfinished"] | None = None
    own: bool | None = None


class Stage(Section, frozen=True, kw_only=True):
    """One stage of the smoke step. figures: numbers with their unit in the name."""

    name: str
    status: Literal["passed", "failed", "skipped", "timed-out"]
    seconds: float | None = None
    detail: str | None = None
    figures: dict[str, float | int | str | bool] = {}


class Smoke(Section, frozen=True, kw_only=True):
    """The training step. device: cuda:0 or cpu. ended: how the child ended where that was bad."""

    device: str
    stages: tuple[Stage, ...] = ()
    ended: str | None = None


class Symptom(Section, frozen=True, kw_only=True):
    """An error text that was recognised in a pasted report: its key in the table of symptoms."""

    key: str
    text: str
    values: dict[str, str] = {}
    line: int | None = None


class Install(Section, frozen=True, kw_only=True):
    """A command that installs packages, or what its log says, as a report shows it.

    tool: pip, uv, conda, mamba, poetry, pixi ... requirements: as they were asked for.
    indexes: every index, channel and page of links that was named or searched, in order.
    options: its other switches (--user, --no-build-isolation, --no-cache-dir ...).
    refused: the requirement that nothing satisfied. offered: the versions that were found instead,
    () where the log says that there were none. installed: what the log says it put there
    (name==version). failed: whether the log ends in an error. lacks: what the tool says that is
    missing: a build for this Python, for this platform, or that release. made_for: tags of the
    wheels that it found instead (cp310, manylinux2014_x86_64, win_amd64).
    """

    tool: str
    requirements: tuple[str, ...] = ()
    indexes: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    refused: str | None = None
    offered: tuple[str, ...] | None = None
    installed: tuple[str, ...] = ()
    failed: bool | None = None
    lacks: Literal["python", "platform", "release"] | None = None
    made_for: tuple[str, ...] = ()
    line: int | None = None


class Told(Section, frozen=True, kw_only=True):
    """What a part of a report says of a fact for which a stronger part says something else."""

    fact: str
    value: str
    source: str


class Machine(Section, frozen=True, kw_only=True):
    """Everything known about one machine, at one time, for one examined interpreter.

    look: how the facts were gathered: full, no-smoke, fast or report.
    date: day of the facts, ISO 8601. pci and gpus: None not known, () none.
    packages: distributions that matter. env: allow-listed environment variables that are set.
    redacted: names and secrets were replaced, so paths of this document do not exist anywhere.
    symptoms: error texts of a pasted report, None on a host. installs, disagreements: of a report.
    """

    schema: int = SCHEMA
    look: Literal["full", "no-smoke", "fast", "report"] = "full"
    date: str | None = None
    redacted: bool = False
    identity: Identity = Identity()
    platform: Platform = Platform()
    container: Container = Container()
    limits: Limits = Limits()
    driver: Driver = Driver()
    pci: tuple[PciGpu, ...] | None = None
    gpus: tuple[Gpu, ...] | None = None
    python: Interpreter = Interpreter()
    torch: Torch = Torch()
    packages: tuple[Distribution, ...] | None = None
    libraries: Libraries = Libraries()
    build: Build = Build()
    env: dict[str, str] | None = None
    smoke: Smoke | None = None
    symptoms: tuple[Symptom, ...] | None = None
    installs: tuple[Install, ...] | None = None
    disagreements: tuple[Told, ...] | None = None
    origins: dict[str, str] = {}
    gaps: tuple[Gap, ...] = ()

    def package(self, name: str) -> Distribution | None:
        """The installed distribution of that (normalised) name, the first on the path."""
        return next((one for one in self.packages or () if one.name == name), None)


def lookup(machine: Machine, path: str) -> Any:
    """The value at a dotted fact path; None where any step is not known.

    Raises AttributeError for a path that no machine can have: that is our own mistake.
    """
    value: Any = machine
    for part in path.split("."):
        if value is None:
            return None
        if isinstance(value, tuple):
            value = value[int(part)] if int(part) < len(value) else None
        elif isinstance(value, dict):
            value = value.get(part)
        else:
            value = getattr(value, part)
    return value


def origin_of(machine: Machine, path: str) -> str | None:
    """Where the fact at that path came from: the origin of its longest known prefix."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        source = machine.origins.get(".".join(parts[:length]))
        if source is not None:
            return source
    return None


def gap_of(machine: Machine, path: str) -> Gap | None:
    """Why the fact at that path is not known: the gap of its longest prefix."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        prefix = ".".join(parts[:length])
        for gap in machine.gaps:
            if gap.fact == prefix:
                return gap
    return None
