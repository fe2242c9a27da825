"""Is the driver there, loaded, whole, sound, and new enough for the examined torch?"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from packaging.version import Version

from cudadoctor.knowledge import DriverFault, Knowledge
from cudadoctor.model.findings import (
    CERTAIN,
    ERROR,
    LIKELY,
    POSSIBLE,
    WARNING,
    Remedies,
    Remedy,
    Severity,
)
from cudadoctor.model.machine import Machine, OptInt, Strings, StrPair, lookup
from cudadoctor.model.rule import Answer, Found, need, rule
from cudadoctor.model.versions import cuda_from_int
from cudadoctor.plan.remedies import (
    by_hand,
    forward_compat,
    install_driver,
    install_torch,
    load_driver,
    reboot,
    upgrade_driver,
)
from cudadoctor.rules.evidence.signs import (
    GIVEN_AWAY,
    MISMATCH,
    NOT_LOADED,
    SUCCESS,
    answered,
    bare,
    code_path,
    cpu_on_purpose,
    cuda_works,
    driver_code,
    driver_runs,
    driver_system,
    error_with,
    graver_with_cuda,
    live_gpus,
    log_text,
    module_spoke,
    nvidia_pci,
    on_linux,
    only_smi_answers,
    torch_fails,
    torch_works,
    wait_for_answer,
)
from cudadoctor.solver.demand import capabilities_of

if TYPE_CHECKING:
    from cudadoctor.plan.remedies.driver import Reason

_REASONS: dict[Reason, StrPair] = {
    "nouveau": (
        "The nouveau driver holds the GPU, so NVIDIA's driver is not loaded",
        "NVIDIA's driver is installed, and CUDA needs it; a GPU has one driver at a time.",
    ),
    "secure-boot": (
        "Secure Boot keeps the NVIDIA driver from loading",
        "The kernel refuses a module whose signing key the firmware does not know.",
    ),
    "not-built": (
        "The NVIDIA driver has no module for the running kernel {kernel}",
        "The driver's module has to be built for each kernel, and for this one it was not.",
    ),
    "blacklisted": (
        "A file of modprobe.d keeps the NVIDIA driver from loading",
        "The driver is installed, and {files} forbids its module.",
    ),
    "modprobe": (
        "The NVIDIA driver is installed and not loaded",
        "Without its kernel module neither nvidia-smi nor CUDA reaches the GPU.",
    ),
}
_REFUSED_KEY = (
    "key was rejected by service",
    "required key not available",
    "loading of module with unavailable key",
    "module verification failed",
)
_TOO_OLD = re.compile(r"driver on your system is too old \(found version (\d+)\)")


@rule("driver-not-installed", title="No NVIDIA driver is installed for the {gpu}")
def driver_not_installed(m: Machine, kb: Knowledge) -> Answer:
    """The GPU is on the PCI bus, and this system has neither a kernel module nor a library for it.

    Told from driver-not-loaded by what is on disk: a module file for any kernel, a driver package,
    a DKMS entry or a driver library means that it is installed. Not asked in a container, in WSL or
    on a Jetson, where the driver comes from elsewhere and none may be installed.

    Cured by the distribution's own driver package, of a branch that supports the GPU. A CUDA
    toolkit is not needed, and NVIDIA's .run installer does not mix with packages.
    """
    devices = [device for device in nvidia_pci(m) if device.bound not in GIVEN_AWAY]
    if not bare(m) or module_spoke(m) or not devices or m.driver.loaded:
        return None
    wait_for_answer(m)
    if need(m.driver.installed, "driver.installed") or m.driver.smi.found:
        return None
    models = kb.gpus_by_pci(devices[0].device_id)
    return Found(
        evidence=("pci.0", "driver.installed", "driver.nvml.why"),
        values={"gpu": models[0].name if models else "NVIDIA GPU"},
        remedies=install_driver(m, kb),
    )


@rule(
    "driver-not-loaded",
    title="The NVIDIA driver is installed and not loaded",
)
def driver_not_loaded(m: Machine) -> Answer:
    """Without its kernel module neither nvidia-smi nor CUDA reaches the GPU.

    What keeps the module out is looked for in this order: no module was built for the running
    kernel (after a kernel update), Secure Boot refused its signature, nouveau took the GPU first, a
    file of modprobe.d forbids it. Where none of these is seen, loading it by hand says why.

    A GPU that is bound to vfio-pci was given to a virtual machine on purpose and is left alone.
    Where the module is loaded and refuses the GPU, driver-unsupported-gpu and driver-wrong-flavour
    say so. Turning Secure Boot off is the last way out, not the first.
    """
    devices, refused = nvidia_pci(m), driver_code(m) == NOT_LOADED
    if not bare(m) or module_spoke(m) or m.driver.loaded or (m.pci is not None and not devices):
        return None
    wait_for_answer(m)
    if not (refused or need(m.driver.installed, "driver.installed")):
        return None
    need(False if refused else m.driver.loaded, "driver.loaded")
    if devices and all(device.bound in GIVEN_AWAY for device in devices):
        return Found(
            title="The GPU is reserved for a virtual machine (vfio-pci)",
            why="A GPU that is bound to vfio-pci can be used inside that virtual machine only.",
            evidence=("pci",),
            severity=graver_with_cuda(m),
            remedies=by_hand(
                "release-gpu",
                "Take the GPU back from the virtual machine",
                "Detach the GPU from the virtual machine and bind it to nvidia, if it is to be "
                "used here.",
            ),
        )
    reason, evidence = _what_keeps_it_out(m)
    title, why = _REASONS[reason]
    proven = m.driver.loaded is False
    return Found(
        title=title,
        why=why,
        evidence=(*evidence, "driver.loaded" if proven else code_path(m)),
        values={"kernel": m.platform.kernel, "files": m.driver.blacklisted_by or ()},
        sure=proven,
        remedies=load_driver(m, reason),
    )


def _what_keeps_it_out(m: Machine) -> tuple[Reason, Strings]:
    driver, kernel, log = m.driver, m.platform.kernel, log_text(m)
    files = driver.module_files
    if files is not None and kernel and all(module.kernel != kernel for module in files):
        return "not-built", ("driver.module_files", "platform.kernel")
    if any(words in log for words in _REFUSED_KEY):
        return "secure-boot", ("driver.log",)
    if any((device.bound or "").startswith(("nouveau", "nova")) for device in nvidia_pci(m)):
        return "nouveau", ("pci",)
    if driver.blacklisted_by:
        return "blacklisted", ("driver.blacklisted_by",)
    if m.platform.secure_boot and driver.log is None:
        return "secure-boot", ("platform.secure_boot",)
    return "modprobe", ()


@rule(
    "driver-not-loaded",
    title="The host of this container has no NVIDIA driver loaded",
)
def host_driver_not_loaded(m: Machine) -> Answer:
    """The PCI bus shows an NVIDIA GPU, and the kernel, which is the host's, has no driver for it.

    A container sees the host's /proc/driver/nvidia whether or not it was given a GPU. Where that is
    missing, no option of the container helps: the host needs its driver first, and installing one
    in the image changes nothing.
    """
    boxed = m.container.kind and not (m.platform.wsl or m.platform.jetson)
    if not boxed or module_spoke(m) or not nvidia_pci(m) or need(m.driver.loaded, "driver.loaded"):
        return None
    return Found(
        evidence=("pci", "driver.loaded", "container.kind"),
        severity=graver_with_cuda(m),
        sure=False,
        remedies=load_driver(m, "modprobe"),
    )


@rule(
    "driver-library-mismatch",
    title="The NVIDIA driver's library {library} does not match its loaded module {kernel}",
)
def driver_library_mismatch(m: Machine) -> Answer:
    """The module refuses libraries of another version, so nothing reaches the GPU.

    It follows an update of the driver's packages without a reboot: the files are new and the loaded
    module is the old one. NVML then answers with code 18. In a container the libraries may have
    been baked into the image instead of being mounted from the host.

    In WSL the two versions always differ and nothing is wrong. Where NVML works and only cuInit
    refuses, the cause is cuda-compat-conflict. A reboot cures it; removing packages does not.
    """
    if m.platform.wsl or m.platform.system in ("Windows", "Darwin") or answered(m):
        return None
    code, kernel, library = driver_code(m), m.driver.kernel, m.driver.library
    fact = "driver.nvml.version" if m.driver.nvml.version else "driver.library"
    library = m.driver.nvml.version or library
    differ = kernel is not None and library is not None and kernel != library
    if code != MISMATCH and not (code is None and (differ or "api mismatch" in log_text(m))):
        return None
    return Found(
        evidence=(*(("driver.kernel", fact) if kernel or library else ()), code_path(m)),
        values={"kernel": kernel or "(not known)", "library": library or "(not known)"},
        title=None if differ else "The NVIDIA driver's library and module differ",
        sure=code == MISMATCH,
        remedies=_one_version_again(m),
    )


def _one_version_again(m: Machine) -> Remedies:
    if m.container.kind:
        way = by_hand(
            "driver-out-of-image",
            "Use the host's driver libraries",
            "Take the driver's libraries (libcuda.so.*, libnvidia-*.so.*) out of the image: "
            "the container toolkit mounts those of the host. After a driver update on the host, "
            "start the container anew.",
            "container",
        )
        return reboot(m) + way if m.look == "report" else way
    return reboot(m) + by_hand(
        "reload-driver",
        "Load the new module instead",
        "Without a reboot: end all programs that use the GPU (`lsof /dev/nvidia*` names them), "
        "then, as root, `modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia` and "
        "`modprobe nvidia`.",
        "admin",
    )


@rule(
    "driver-too-old",
    title="Driver {driver} is too old for a torch built with CUDA {cuda}",
)
def driver_too_old(m: Machine, kb: Knowledge) -> Answer:
    """CUDA {major} calls functions that drivers before {floor} lack, so torch sees no GPU.

    What counts is the major version: a driver runs every CUDA of its own major, so CUDA 12.8 works
    on a driver that reports 12.2, and CUDA 13.0 does not work on one that reports 12.9. (Before
    CUDA 11 each release had a floor of its own.) The CUDA version that nvidia-smi prints is the
    newest that the driver runs, not an installed toolkit.

    Two ways out: a torch build for the driver changes one environment and needs no root; a newer
    driver needs root and must still support the GPU. Data-centre GPUs have a third, NVIDIA's
    forward-compatibility package. A newer torch or a toolkit makes it worse or changes nothing.
    """
    if cpu_on_purpose(m) or torch_works(m) or _newer_libcuda(m):
        return None
    if m.driver.version is None or m.platform.jetson:
        return _by_cuda_level(m, kb)
    cuda = m.torch.cuda
    if cuda is None:
        return None
    unknown = f"no table knows CUDA {cuda}"
    floor = need(kb.oldest_driver(cuda, driver_system(m)), "torch.cuda", unknown)
    oldest = floor.driver
    if m.driver.version >= oldest:
        return None
    return Found(
        evidence=("driver.kernel" if m.driver.kernel else "driver.reported", "torch.cuda"),
        values={"driver": m.driver.version, "cuda": cuda, "major": cuda.major, "floor": oldest},
        cites=(floor.source,),
        sure=not floor.uncertain,
        yields_to=_past_every_driver(m, kb, oldest.branch),
        remedies=_for_an_old_driver(m, kb, oldest.branch),
    )


def _past_every_driver(m: Machine, kb: Knowledge, branch: OptInt) -> Strings:
    """Where no driver of that branch supports a GPU of this machine, the GPU is the deeper cause.

    A torch with code for it is the only way out, and such a torch runs with its drivers.
    """
    families = [kb.architecture(capability) for capability in capabilities_of(m, kb) or ()]
    last = [family.last_branch if family else None for family in families]
    lost = branch and last and all(end is not None and end < branch for end in last)
    return ("torch-arch-unsupported-old",) if lost else ()


def _newer_libcuda(m: Machine) -> bool:
    """Whether the libcuda in use runs torch's CUDA: a forward-compatibility package can."""
    libcuda, cuda = m.driver.libcuda, m.torch.cuda
    if libcuda.code != SUCCESS or libcuda.version is None or cuda is None:
        return False
    return libcuda.version.major >= cuda.major >= 11


def _by_cuda_level(m: Machine, kb: Knowledge) -> Answer:
    """Judge by the newest CUDA that the driver runs, where its release is not known."""
    cuda, level, path = m.torch.cuda, m.driver.cuda, "driver.cuda"
    if level is None and (reported := _level_by_torch(m)):
        level, path = reported
    if level is None and cuda is not None:
        wait_for_answer(m)
    if level is None or (driver_runs(level, cuda) if cuda else path == "driver.cuda"):
        return None
    floor = kb.oldest_driver(cuda, "Linux") if cuda else None
    branch = floor.driver.branch if floor else None
    return Found(
        title="The driver runs CUDA {level} at most, too old for this torch"
        if cuda is None
        else "The driver runs CUDA {level} at most, and torch was built with CUDA {cuda}",
        why="This torch calls functions that the driver lacks, so it sees no GPU."
        if cuda is None
        else "A driver runs the CUDA versions up to its own major only, so torch sees no GPU.",
        evidence=(path, "torch.cuda") if cuda else (path,),
        values={"level": level, "cuda": cuda or "", "driver": "", "major": "", "floor": ""},
        cites=(floor.source,) if floor else (),
        # In WSL, a Linux driver installed inside names the level of its own.
        yields_to=("wsl-setup",) if m.platform.wsl else _past_every_driver(m, kb, branch),
        remedies=_for_an_old_driver(m, kb, branch),
    )


def _level_by_torch(m: Machine) -> tuple[Version, str] | None:
    path = error_with(m, "driver on your system is too old")
    number = _TOO_OLD.search(str(lookup(m, path))) if path else None
    return (cuda_from_int(int(number[1])), path) if path and number else None


def _for_an_old_driver(m: Machine, kb: Knowledge, branch: OptInt) -> Remedies:
    """A torch for the driver, a driver for the torch, or what lifts the driver; each once."""
    newer = upgrade_driver(m, kb, branch) if branch is not None else ()
    return each_once(*install_torch(m, kb), *newer, *forward_compat(m, kb, m.torch.cuda))


def each_once(*remedies: Remedy) -> Remedies:
    """These remedies; of those with one id the first."""
    return tuple({remedy.id: remedy for remedy in reversed(remedies)}.values())[::-1]


@rule(
    "driver-userspace-missing",
    title="The driver's module {driver} is loaded and libcuda.so.1 is missing",
)
def driver_userspace_missing(m: Machine) -> Answer:
    """torch reaches the GPU through the driver's libcuda, and the loader finds none.

    Distributions split the driver: the kernel module may be installed without the library for
    computing (libnvidia-compute on Ubuntu, nvidia-driver-cuda or xorg-x11-drv-nvidia-cuda on Fedora
    and RHEL, nvidia-utils on Arch, libcuda1 on Debian). nvidia-smi may then print N/A as the CUDA
    version. In a container the library is mounted from the host: see container-no-gpu.

    Cured by the package of the same version as the module. The CUDA toolkit holds only a stub of
    this library, which does not replace it.
    """
    if (
        not bare(m)
        or m.driver.loaded is False
        or cuda_works(m)
        or m.driver.libcuda.hung
        or need(m.driver.libcuda.loads, "driver.libcuda.loads")
        or not need(m.driver.loaded, "driver.loaded")
    ):
        return None
    version, hearsay = m.driver.version, only_smi_answers(m)
    shaky = hearsay and not torch_fails(m)
    title = "nvidia-smi reaches driver {driver}, and libcuda.so.1 is missing"
    return Found(
        title=title if hearsay else None,
        evidence=("driver.reported" if hearsay else "driver.loaded", "driver.libcuda.why"),
        values={"driver": version or ""},
        confidence=POSSIBLE if shaky else CERTAIN,
        severity=WARNING if shaky else ERROR,
        remedies=by_hand(
            "install-libcuda",
            "Install the driver's libcuda",
            f"Install the driver's library for computing in version {version or 'of the module'}: "
            "libnvidia-compute-BRANCH (Ubuntu), libcuda1 (Debian), nvidia-driver-cuda or "
            "xorg-x11-drv-nvidia-cuda (RHEL, Fedora), nvidia-utils (Arch).",
            "admin",
        ),
    )


@rule(
    "driver-bug",
    title="Driver {driver} has a known fault",
    severity=WARNING,
)
def driver_bug(m: Machine, kb: Knowledge) -> Answer:
    """A fault of this release is known, and this machine is of the kind that meets it.

    Told by the release where the source names the first and the last with the fault, and by its
    signs (words in the kernel log, the code of cuInit) where it does not hang on the release. A
    fault between GPUs is told only where there are several, and one of P2P only where the driver
    offers it. An information means that it was seen on such machines, not on this one.

    Told from driver-too-old by the CUDA version, which fits, and from torch-bug, where another
    torch cures it. Cured by the release that its source names; HMM, where that is the fault, is
    switched off by an option of the module.
    """
    for fault in kb.driver_faults if on_linux(m) else ():
        seen = _signs(fault, m) if fault.log else _of_release(fault, m, kb)
        if seen:
            return Found(
                title=fault.title,
                why=fault.why,
                evidence=seen,
                values={"driver": m.driver.version or ""},
                cites=fault.sources,
                severity=Severity[fault.severity.upper()],
                confidence=POSSIBLE if fault.uncertain else LIKELY,
                remedies=_cure(fault, m, kb),
            )
    return None


def _signs(fault: DriverFault, m: Machine) -> Strings:
    """The facts that show it: the words in the log, and the code of cuInit where one is named."""
    if not any(words in log_text(m) for words in fault.log):
        return ()
    code = m.driver.libcuda.code
    if fault.cuinit is None:
        return ("driver.log",)
    if cuda_works(m) or code not in (None, fault.cuinit) or not answered(m):
        return ()
    return ("driver.log",) if code is None else ("driver.log", "driver.libcuda.code")


def _of_release(fault: DriverFault, m: Machine, kb: Knowledge) -> Strings:
    """The facts that show it: the release, and what else the fault hangs on."""
    version, gpus = m.driver.version, live_gpus(m)
    if version is None or fault.first is None or fault.below is None:
        return ()
    named = [gpu for gpu in gpus if fault.gpus is None or fault.gpus in (gpu.name or "")]
    indexes = {gpu.index for gpu in named}
    offered = any(
        pair.p2p == "ok" and {pair.first, pair.second} <= indexes for pair in m.driver.pairs or ()
    )
    models = [kb.gpu_by_name(gpu.name) for gpu in named if gpu.name]
    if (
        not fault.first <= version < fault.below
        or len(named) < 1 + fault.several
        or (fault.p2p and not offered)
        or (fault.data_center and not any(model and model.data_center for model in models))
    ):
        return ()
    release = "driver.kernel" if m.driver.kernel else "driver.reported"
    return (release, *(("driver.pairs",) if fault.p2p else ()), *(("gpus",) if fault.gpus else ()))


def _cure(fault: DriverFault, m: Machine, kb: Knowledge) -> Remedies:
    if fault.cure == "upgrade":
        return upgrade_driver(m, kb, fault.fixed_branch) if fault.fixed_branch else ()
    return by_hand(
        "hmm-off",
        "Switch HMM off in the module nvidia_uvm",
        "As root, write `options nvidia_uvm uvm_disable_hmm=1` into /etc/modprobe.d/uvm.conf, "
        "then reboot. A newer kernel may do as well. Only programs that let the GPU read "
        "ordinary memory of the host need HMM, and torch does not.",
        "admin",
    )
