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

from collections.abc import Iterator
from typing import Any, Literal, TypeVar, get_args

from msgspec import Struct
from packaging.version import Version

from cudadoctor.model.versions import DriverVersion

SCHEMA = 1

# What may be known or not: None says not known.
T = TypeVar("T")
OptBool = bool | None
OptInt = int | None
OptStr = str | None
OptFloat = float | None
OptVersion = Version | None
OptDriverVersion = DriverVersion | None
OptTuple = tuple[T, ...] | None
Strings = tuple[str, ...]
StrPair = tuple[str, str]
Versions = tuple[Version, ...]
OptStrings = OptTuple[str]
Json = dict[str, Any]
"""Facts or a document as plain data: field -> value."""


class Section(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The base of all facts: immutable, by keyword only, unknown keys refused."""


class Node(Section, frozen=True, kw_only=True):
    """A device node and what opening it said: errno 0 is success, None not tried.

    EACCES 13 is permission bits, EPERM 1 a cgroup rule, ENXIO 6 and ENODEV 19 a node without a
    driver behind it, EIO 5 a GPU that did not start.
    """

    path: str
    errno: OptInt = None
    mode: OptInt = None
    group: OptStr = None


class ModuleFile(Section, frozen=True, kw_only=True):
    """An nvidia kernel module file on disk: for which kernel, which version and flavour."""

    path: str
    kernel: str
    version: OptDriverVersion = None
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
    pid: OptInt = None
    process: OptStr = None
    text: OptStr = None


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

    loads: OptBool = None
    why: OptStr = None
    path: OptStr = None
    code: OptInt = None
    call: OptStr = None
    message: OptStr = None
    version: OptDriverVersion = None
    hung: OptStr = None
    hung_gpu: OptInt = None
    signal: OptInt = None
    count: OptInt = None

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

    loads: OptBool = None
    why: OptStr = None
    path: OptStr = None
    file_version: OptDriverVersion = None
    code: OptInt = None
    version: OptVersion = None
    count: OptInt = None
    count_code: OptInt = None
    hung: OptStr = None
    signal: OptInt = None
    clean_code: OptInt = None
    clean_path: OptStr = None
    clean_count: OptInt = None


class Smi(Section, frozen=True, kw_only=True):
    """What nvidia-smi said; asked only where NVML gave no answer.

    found: False where it is not on PATH. code: exit status. message: its first line of words where
    it failed. hung: it gave no answer within the limit.
    """

    found: OptBool = None
    path: OptStr = None
    code: OptInt = None
    message: OptStr = None
    hung: OptBool = None


class Fabric(Section, frozen=True, kw_only=True):
    """NVSwitch and its daemon. nvswitches: how many on the PCI bus.

    manager: "absent", "inactive", "failed" or "active". version: of its package or binary.
    """

    nvswitches: OptInt = None
    manager: Literal["absent", "inactive", "failed", "active"] | None = None
    version: OptDriverVersion = None


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
    nvlink: OptBool = None
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

    installed: OptBool = None
    loaded: OptBool = None
    kernel: OptDriverVersion = None
    flavour: Literal["open", "proprietary"] | None = None
    reported: OptDriverVersion = None
    library: OptDriverVersion = None
    cuda: OptVersion = None
    nvml: Nvml = Nvml()
    libcuda: Libcuda = Libcuda()
    smi: Smi = Smi()
    modules: OptStrings = None
    module_files: OptTuple[ModuleFile] = None
    dkms: OptStrings = None
    blacklisted_by: OptStrings = None
    packages: OptTuple[SystemPackage] = None
    nodes: OptTuple[Node] = None
    log: OptStrings = None
    xids: OptTuple[Xid] = None
    stuck: OptStrings = None
    fabric: Fabric = Fabric()
    pairs: OptTuple[GpuPair] = None
    excluded: OptInt = None
    confidential: OptBool = None
    confidential_ready: OptBool = None

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
    class_id: OptStr = None
    bound: OptStr = None
    lost: OptBool = None
    power: OptStr = None
    bars_missing: OptBool = None
    numa: OptInt = None
    iommu: Literal["off", "identity", "translated"] | None = None
    acs: OptBool = None


class GpuProcess(Section, frozen=True, kw_only=True):
    """A process that holds memory of a GPU. name is None where it belongs to somebody else."""

    pid: int
    name: OptStr = None
    memory_bytes: OptInt = None


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
    name: OptStr = None
    uuid: OptStr = None
    bus_id: OptStr = None
    device_id: OptStr = None
    capability: OptVersion = None
    code: OptInt = None
    failed: OptInt = None
    memory_bytes: OptInt = None
    memory_used_bytes: OptInt = None
    memory_reserved_bytes: OptInt = None
    compute_mode: Literal["default", "exclusive", "prohibited"] | None = None
    persistence: OptBool = None
    mig: OptBool = None
    mig_pending: OptBool = None
    mig_devices: OptStrings = None
    ecc: OptBool = None
    ecc_pending: OptBool = None
    ecc_uncorrected: OptInt = None
    ecc_aggregate: OptInt = None
    remap_pending: OptBool = None
    remap_failed: OptBool = None
    remapped_rows: OptInt = None
    retired_pending: OptBool = None
    throttle: OptInt = None
    performance_state: OptInt = None
    utilization: OptInt = None
    temperature_c: OptInt = None
    slowdown_c: OptInt = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None
    sm_clock_mhz: OptInt = None
    sm_clock_max_mhz: OptInt = None
    sm_clock_set_mhz: OptInt = None
    sm_clock_default_mhz: OptInt = None
    pcie_width: OptInt = None
    pcie_width_max: OptInt = None
    pcie_generation: OptInt = None
    pcie_generation_max: OptInt = None
    pcie_generation_gpu_max: OptInt = None
    fabric_state: OptInt = None
    nvlink_down: OptInt = None
    virtualization: Literal["none", "passthrough", "vgpu", "host"] | None = None
    display: OptBool = None
    processes: OptTuple[GpuProcess] = None
    unsupported: Strings = ()


class Toolkit(Section, frozen=True, kw_only=True):
    """A CUDA toolkit. origin: PATH, CUDA_HOME, CUDA_PATH, /usr/local, conda or wheel."""

    path: str
    origin: str
    cuda: OptVersion = None
    nvcc: OptStr = None


class Compiler(Section, frozen=True, kw_only=True):
    """The host C++ compiler that nvcc and torch.compile would call. present False: none on PATH."""

    present: OptBool = None
    name: OptStr = None
    version: OptVersion = None
    path: OptStr = None


class Build(Section, frozen=True, kw_only=True):
    """What a compilation of an extension would find.

    toolkits: all that were found. used: path of the toolkit that torch's own search would take
    (CUDA_HOME, CUDA_PATH, nvcc on PATH, /usr/local/cuda), "" none.
    needed_by: installed packages that compile at run time (deepspeed ...), or "--compile".
    headers: Python.h is there for the examined interpreter.
    """

    toolkits: OptTuple[Toolkit] = None
    used: OptStr = None
    cuda_home: OptStr = None
    cuda_home_exists: OptBool = None
    compiler: Compiler = Compiler()
    needed_by: OptStrings = None
    headers: OptBool = None


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
    how: OptStr = None
    via: OptStr = None
    owner: OptStr = None
    version: OptStr = None


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

    own: OptStrings = None
    predicted: OptTuple[Library] = None
    mapped: OptTuple[Library] = None
    copies: OptTuple[Library] = None
    missing: OptStrings = None
    search: OptTuple[SearchFolder] = None


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

    user: OptStr = None
    home: OptStr = None
    host: OptStr = None


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
    machine: OptStr = None
    kernel: OptStr = None
    distro: OptStr = None
    distro_version: OptStr = None
    distro_like: OptStrings = None
    libc: Literal["glibc", "musl"] | None = None
    glibc: OptVersion = None
    wsl: OptInt = None
    jetson: OptBool = None
    l4t: OptVersion = None
    virtual: OptStr = None
    product: OptStr = None
    root: OptBool = None
    secure_boot: OptBool = None


class Container(Section, frozen=True, kw_only=True):
    """Where the process is boxed in.

    kind: "" none, else docker, podman, kubernetes, apptainer, lxc, enroot, containerd, other.
    scheduler: "" none, else slurm, kubernetes, lsf, pbs.
    dxg: /dev/dxg is there (WSL2's GPU device), wsl_libs: /usr/lib/wsl/lib/libcuda.so.1 is there.
    """

    kind: OptStr = None
    scheduler: OptStr = None
    dxg: OptBool = None
    wsl_libs: OptBool = None


class Limits(Section, frozen=True, kw_only=True):
    """Limits of this process and its file systems, in bytes; -1 means unlimited.

    memlock_bytes is the soft limit, which a process may raise up to memlock_hard_bytes.
    interfaces: names of the network interfaces; read only where a variable names one.
    """

    shm_bytes: OptInt = None
    shm_free_bytes: OptInt = None
    memlock_bytes: OptInt = None
    memlock_hard_bytes: OptInt = None
    nofile: OptInt = None
    memory_bytes: OptInt = None
    cgroup_memory_bytes: OptInt = None
    cpus: OptInt = None
    tmp_free_bytes: OptInt = None
    env_free_bytes: OptInt = None
    interfaces: OptStrings = None


class Distribution(Section, frozen=True, kw_only=True):
    """An installed Python distribution that matters here.

    requires: its Requires-Dist lines that name torch, a companion of it, numpy, triton, nvidia-* or
    cuda-*.
    cuda: CUDA that its files say they were built for (xformers, torchvision ...), where known.
    torch: the torch release that its files say they were built for, where known. A version of one
    part means that whole major (flash-attn names CUDA 12 only).
    """

    name: str
    version: str
    location: OptStr = None
    installer: OptStr = None
    requires: Strings = ()
    cuda: OptVersion = None
    torch: OptVersion = None


class TorchCopy(Section, frozen=True, kw_only=True):
    """A torch that the examined interpreter could import, in order of its path.

    kind: "distribution" (has dist-info), "folder" (files without), "local" (a torch.py or torch/
    of the user's), "conda" (conda-meta record).
    """

    path: str
    kind: Literal["distribution", "folder", "local", "conda"]
    version: OptStr = None
    where: OptStr = None


class Imported(Section, frozen=True, kw_only=True):
    """What `import torch` and a first look at CUDA said in a child of the examined interpreter.

    ok: the import succeeded. error: type and text of the exception. signal: what killed it.
    cuda_error: text of the first failing CUDA call, or of torch's warning. capabilities: of the
    visible devices, in torch's order. companion_errors: of the packages beside torch whose import
    was tried, "" where it succeeded. libraries of the process are in Machine.libraries.mapped.
    shadows: where it failed, files of the user's that hid a module of Python's own from it.
    """

    ok: OptBool = None
    error: OptStr = None
    signal: OptInt = None
    hung: OptBool = None
    seconds: float | None = None
    cuda_available: OptBool = None
    cuda_error: OptStr = None
    device_count: OptInt = None
    capabilities: Versions | None = None
    cudnn: OptStr = None
    nccl: OptStr = None
    numpy_error: OptStr = None
    companion_errors: dict[str, str] | None = None
    shadows: OptStrings = None


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

    installed: OptBool = None
    version: OptVersion = None
    text: OptStr = None
    build: Literal["cuda", "cpu", "rocm", "xpu"] | None = None
    cuda: OptVersion = None
    hip: OptStr = None
    archs: OptStrings = None
    path: OptStr = None
    installer: OptStr = None
    requires: OptStrings = None
    copies: OptTuple[TorchCopy] = None
    missing_files: OptStrings = None
    empty_files: OptStrings = None
    short_files: OptStrings = None
    leftovers: OptStrings = None
    imported: Imported | None = None

    @property
    def named(self) -> str:
        """The version as torch prints it, or as far as it is known; empty where it is not."""
        return self.text or str(self.version or "")


class Manager(Section, frozen=True, kw_only=True):
    """A program that can install packages into the examined environment."""

    name: Literal["pip", "uv", "conda", "mamba", "micromamba", "pixi", "poetry", "pipx", "pdm"]
    path: str
    version: OptStr = None


class Index(Section, frozen=True, kw_only=True):
    """Where pip or uv of this user look for packages. Credentials in URLs stay in memory.

    url: None where the tool's own default is used. no_index: indexes are switched off, so that
    only find_links (folders, pages) is searched. origin: the file or variable that decided.
    """

    url: OptStr = None
    extra: Strings = ()
    find_links: Strings = ()
    no_index: bool = False
    origin: OptStr = None


_FileName = Literal["pyproject.toml", "requirements.txt", "uv.lock", "poetry.lock", "pdm.lock"]
PROJECT_FILES: tuple[_FileName, ...] = get_args(_FileName)
AUTHOR: Literal["the versions you asked for"] = "the versions you asked for"
"""The author of a report, who says which releases must stay."""
BEFORE: Literal["the versions of before"] = "the versions of before"
"""The same, of what worked before something was upgraded."""
ProjectName = _FileName | Literal["the versions you asked for", "the versions of before"]


class ProjectFile(Section, frozen=True, kw_only=True):
    """A file of the project that an environment belongs to, which says what is installed there.

    requires: its requirements on torch and packages that belong to it, as pip writes them; a lock
    file requires the releases it holds. What the author of a report requires in words stands under
    a name that is no file's.
    """

    name: ProjectName
    requires: Strings


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
    there is none. files: those beside the environment that require torch. repair: "unfinished"
    where `fix` was cut off here, else "". own: it is the environment that the doctor itself runs
    in.
    """

    executable: OptStr = None
    chosen_by: OptStr = None
    passed_over: OptStrings = None
    version: OptVersion = None
    implementation: OptStr = None
    free_threaded: OptBool = None
    bits: OptInt = None
    prefix: OptStr = None
    base_prefix: OptStr = None
    site_packages: OptStr = None
    kind: OptStr = None
    externally_managed: OptBool = None
    user_site: OptStr = None
    pip: OptBool = None
    managers: OptTuple[Manager] = None
    index: Index | None = None
    pip_python: OptStr = None
    path_python: OptStr = None
    path: OptStrings = None
    abi: OptStr = None
    ensurepip: OptBool = None
    nowhere: OptBool = None
    shadows: OptStrings = None
    project: OptStr = None
    project_tool: OptStr = None
    files: OptTuple[ProjectFile] = None
    repair: Literal["", "unfinished"] | None = None
    own: OptBool = None


class Stage(Section, frozen=True, kw_only=True):
    """One stage of the smoke step. figures: numbers with their unit in the name."""

    name: str
    status: Literal["passed", "failed", "skipped", "timed-out"]
    seconds: float | None = None
    detail: OptStr = None
    figures: dict[str, float | int | str | bool] = {}


class Smoke(Section, frozen=True, kw_only=True):
    """The training step. device: cuda:0 or cpu. ended: how the child ended where that was bad."""

    device: str
    stages: tuple[Stage, ...] = ()
    ended: OptStr = None


class Symptom(Section, frozen=True, kw_only=True):
    """An error text that was recognised in a pasted report: its key in the table of symptoms."""

    key: str
    text: str
    values: dict[str, str] = {}
    line: OptInt = None


IN_FILE = "--requirement"
"""The option of an install that stands in a requirements file, in place of the file's name."""


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
    requirements: Strings = ()
    indexes: Strings = ()
    options: Strings = ()
    refused: OptStr = None
    offered: OptStrings = None
    installed: Strings = ()
    failed: OptBool = None
    lacks: Literal["python", "platform", "release"] | None = None
    made_for: Strings = ()
    line: OptInt = None


class Disagreement(Section, frozen=True, kw_only=True):
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
    likeness: cause -> how much the words of a report are like those of reports about it, in nats
    over the root of the number of words; for ranking only.
    """

    schema: int = SCHEMA
    look: Literal["full", "no-smoke", "fast", "report"] = "full"
    date: OptStr = None
    redacted: bool = False
    identity: Identity = Identity()
    platform: Platform = Platform()
    container: Container = Container()
    limits: Limits = Limits()
    driver: Driver = Driver()
    pci: OptTuple[PciGpu] = None
    gpus: OptTuple[Gpu] = None
    python: Interpreter = Interpreter()
    torch: Torch = Torch()
    packages: OptTuple[Distribution] = None
    libraries: Libraries = Libraries()
    build: Build = Build()
    env: dict[str, str] | None = None
    smoke: Smoke | None = None
    symptoms: OptTuple[Symptom] = None
    installs: OptTuple[Install] = None
    disagreements: OptTuple[Disagreement] = None
    likeness: dict[str, float] | None = None
    origins: dict[str, str] = {}
    gaps: tuple[Gap, ...] = ()

    def package(self, name: str) -> Distribution | None:
        """The installed distribution of that (normalised) name, the first on the path."""
        return next((package for package in self.packages or () if package.name == name), None)


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


def origin_of(machine: Machine, path: str) -> OptStr:
    """Where the fact at that path came from: the origin of its longest known prefix."""
    return next(filter(None, map(machine.origins.get, _prefixes(path))), None)


def gap_of(machine: Machine, path: str) -> Gap | None:
    """Why the fact at that path is not known: the gap of its longest prefix."""
    if not machine.gaps:
        return None
    return next((gap for name in _prefixes(path) for gap in machine.gaps if gap.fact == name), None)


def _prefixes(path: str) -> Iterator[str]:
    """The path itself, then what it lies in, outwards."""
    while path:
        yield path
        path = path.rpartition(".")[0]
