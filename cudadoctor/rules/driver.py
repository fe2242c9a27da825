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
from cudadoctor.model.machine import (
    Machine,
    OptDriverVersion,
    OptInt,
    Strings,
    StrPair,
    lookup,
)
from cudadoctor.model.rule import Answer, Found, need, rule
from cudadoctor.model.versions import cuda_from_int
from cudadoctor.plan.remedies import (
    by_hand,
    forward_compat,
    hmm_off,
    host_libraries,
    install_driver,
    install_firmware,
    install_libcuda,
    install_torch,
    load_driver,
    one_version,
    reboot,
    reload_driver,
    upgrade_driver,
)
from cudadoctor.plan.remedies.process import family_of, refuses_key
from cudadoctor.rules.evidence.devices import row_of
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
    given_away,
    graver_with_cuda,
    live_gpus,
    log_text,
    module_spoke,
    nvidia_pci,
    on_linux,
    on_the_bus,
    only_smi_answers,
    torch_fails,
    torch_works,
    wait_for_answer,
)
from cudadoctor.solver.builds import best_build
from cudadoctor.solver.companions import given_up
from cudadoctor.solver.demand import capabilities_of, serves_all

if TYPE_CHECKING:
    from cudadoctor.plan.remedies.driver import Reason

_REASONS: dict[Reason, StrPair] = {
    "nouveau": (
        "nouveau is using the GPU, so the NVIDIA driver cannot load",
        "Only one driver can use a GPU at a time. CUDA needs the NVIDIA driver, which is "
        "already installed.",
    ),
    "secure-boot": (
        "Secure Boot blocks the NVIDIA driver",
        "The key that signs the driver's module is not enrolled in this machine's firmware.",
    ),
    "not-built": (
        "The NVIDIA driver has no module for the running kernel ({kernel})",
        "Each kernel version needs its own NVIDIA module, and there is none on disk for the "
        "running kernel.",
    ),
    "blacklisted": (
        "The nvidia module is blacklisted, so the driver does not load",
        "The driver is installed, but {files} prevents its module from loading.",
    ),
    "modprobe": (
        "The NVIDIA driver is installed but not loaded",
        "Without the driver's kernel module, neither nvidia-smi nor CUDA can reach the GPU.",
    ),
}
TOLD: dict[str, Reason] = {
    "module-not-signed": "secure-boot",
    "gpu-without-its-driver": "nouveau",
    "module-not-built": "not-built",
    "after-kernel-update": "not-built",
}
"""What a report says of a module that does not load -> what keeps it out."""
_TOO_OLD = re.compile(r"driver on your system is too old \(found version (\d+)\)")


@rule("driver-not-installed", title="No NVIDIA driver is installed for your {gpu}")
def driver_not_installed(m: Machine, kb: Knowledge) -> Answer:
    """The GPU is on the PCI bus, but this system has no NVIDIA kernel module, package or library.

    nvidia-smi is missing ("command not found"), and torch says "Found no NVIDIA driver on your
    system". To check by hand: `lspci -nn | grep -i nvidia` shows the GPU, but `modinfo nvidia`
    finds no module. The open-source driver nouveau may be in use; it can drive a display, but CUDA
    does not run on it.

    Look-alikes: if the driver is installed but its kernel module is not loaded, the cause is
    driver-not-loaded. A container uses the host's driver, WSL uses the Windows driver, and on a
    Jetson the driver is part of L4T, so these environments have no driver package of their own.

    Fix: install your distribution's package for a driver branch that supports the GPU. torch does
    not need the CUDA toolkit. Do not combine NVIDIA's .run installer with driver packages.
    """
    devices = [device for device in nvidia_pci(m) if device.bound not in GIVEN_AWAY]
    if not bare(m) or module_spoke(m) or not devices or m.driver.loaded:
        return None
    wait_for_answer(m)
    if need(m.driver.installed, "driver.installed") or m.driver.smi.found:
        return None
    models = kb.gpus_by_pci(devices[0].device_id)
    return Found(
        evidence=(*on_the_bus(m, devices[:1]), "driver.installed", "driver.nvml.why"),
        values={"gpu": models[0].name.removeprefix("NVIDIA ") if models else "NVIDIA GPU"},
        remedies=install_driver(m, kb),
    )


@rule(
    "driver-not-loaded",
    title="The NVIDIA driver is installed but not loaded",
)
def driver_not_loaded(m: Machine, kb: Knowledge) -> Answer:
    """Without the driver's kernel module, neither nvidia-smi nor CUDA can reach the GPU.

    nvidia-smi says that it "has failed because it couldn't communicate with the NVIDIA driver", and
    NVML returns "Driver Not Loaded" (error 9). To check by hand: `lsmod | grep nvidia` prints
    nothing, and `sudo modprobe nvidia` shows why the module does not load.

    The driver's kernel module usually fails to load for one of four reasons: no module was built
    for the running kernel (often after a kernel update), Secure Boot rejected the module's
    signature, nouveau claimed the GPU first, or a file in /etc/modprobe.d blacklists the module. If
    none of these applies, load the module with `sudo modprobe nvidia` and read the error message.

    Look-alikes: if the module loads but rejects the GPU, the cause is driver-unsupported-gpu or
    driver-wrong-flavour. A GPU that is bound to vfio-pci has been deliberately reserved for a
    virtual machine.

    Fix: build the module for the running kernel, enroll the signing key, or remove whatever blocks
    the module. Keep Secure Boot on; turn it off only as a last resort.
    """
    return _not_loaded(m, kb)


@rule(
    "driver-not-loaded",
    title="Secure Boot blocks the NVIDIA driver",
)
def secure_boot_refuses(m: Machine, kb: Knowledge) -> Answer:
    """The key that signs the driver's module is not enrolled in this machine's firmware.

    The kernel log says "Loading of module with unavailable key is rejected", or modprobe says "Key
    was rejected by service". Secure Boot blocks every locally built module whose signing key is not
    enrolled, so the key must be enrolled even if the driver also has other problems.

    Fix: enroll the key with `mokutil --import`. Keep Secure Boot on.
    """
    if m.driver.loaded or not refuses_key(m):
        return None
    found = _not_loaded(m, kb)
    return found if found and found.title == _REASONS["secure-boot"][0] else None


def _not_loaded(m: Machine, kb: Knowledge) -> Answer:
    """What keeps an installed driver from loading."""
    devices, refused = nvidia_pci(m), driver_code(m) == NOT_LOADED
    if not bare(m) or module_spoke(m) or m.driver.loaded or (m.pci is not None and not devices):
        return None
    wait_for_answer(m)
    given = given_away(m)
    if not (refused or given or need(m.driver.installed, "driver.installed")):
        return None
    need(False if refused else m.driver.loaded, "driver.loaded")
    if given:
        models = kb.gpus_by_pci(devices[0].device_id)
        return Found(
            title="The {gpu} is reserved for a virtual machine ({bound})",
            why="While the GPU is bound to {bound}, only the virtual machine it is assigned to "
            "can use it.",
            evidence=on_the_bus(m, devices),
            values={
                "gpu": models[0].name.removeprefix("NVIDIA ") if models else "GPU",
                "bound": devices[0].bound,
            },
            severity=graver_with_cuda(m),
            remedies=_in_the_guest(),
        )
    reason, evidence = _what_keeps_it_out(m)
    title, why = _REASONS[reason]
    proven = m.driver.loaded is False
    # A driver out of a .run file is never rebuilt: packages that are take its place.
    bare_files = (m.driver.packages, m.driver.dkms) == ((), ())
    replaced = reason == "not-built" and bare_files
    return Found(
        title=title,
        why=why,
        evidence=(*evidence, "driver.loaded" if proven else code_path(m)),
        values={"kernel": m.platform.kernel, "files": m.driver.blacklisted_by or ()},
        sure=proven,
        remedies=install_driver(m, kb) if replaced else load_driver(m, reason, kb),
    )


def _in_the_guest() -> Remedies:
    return by_hand(
        "use-guest",
        "Run PyTorch in the virtual machine that has the GPU",
        "Install the NVIDIA driver and PyTorch in that virtual machine. The host itself "
        "needs neither the driver nor PyTorch.",
    ) + by_hand(
        "release-gpu",
        "Take the GPU back from the virtual machine",
        "Detach the GPU from the virtual machine. Remove its PCI IDs and any nvidia blacklist "
        "entries from /etc/modprobe.d and the kernel command line. Then install the driver on "
        "this machine.",
        note="The virtual machine will then no longer have a GPU.",
    )


def _what_keeps_it_out(m: Machine) -> tuple[Reason, Strings]:
    driver, kernel = m.driver, m.platform.kernel
    files = driver.module_files
    taken = [
        device for device in nvidia_pci(m) if (device.bound or "").startswith(("nouveau", "nova"))
    ]
    if files is not None and kernel and all(module.kernel != kernel for module in files):
        return "not-built", ("driver.module_files", "platform.kernel", *on_the_bus(m, taken))
    if refuses_key(m):
        return "secure-boot", ("driver.log",)
    if taken:
        return "nouveau", on_the_bus(m, taken)
    if driver.blacklisted_by:
        return "blacklisted", ("driver.blacklisted_by",)
    if m.platform.secure_boot and driver.log is None:
        return "secure-boot", ("platform.secure_boot",)
    for place, symptom in enumerate(m.symptoms or ()):
        if (told := TOLD.get(symptom.key)) and (kernel or told != "not-built"):
            return told, (f"symptoms.{place}.text",)
    return "modprobe", ()


@rule(
    "driver-not-loaded",
    title="The container's host has no NVIDIA driver loaded",
)
def host_driver_not_loaded(m: Machine) -> Answer:
    """The host has an NVIDIA GPU on its PCI bus, but its kernel has no NVIDIA driver loaded.

    A container sees the host's /proc/driver/nvidia even if it was started without a GPU. If
    /proc/driver/nvidia is missing, the driver is not loaded on the host, and no container option
    helps.

    Fix: install or load the driver on the host. Installing a driver in the image has no effect.
    """
    boxed = m.container.kind and not (m.platform.wsl or m.platform.jetson)
    if not boxed or module_spoke(m) or not nvidia_pci(m) or need(m.driver.loaded, "driver.loaded"):
        return None
    return Found(
        evidence=(*on_the_bus(m, nvidia_pci(m)), "driver.loaded", "container.kind"),
        severity=graver_with_cuda(m),
        sure=False,
        remedies=load_driver(m, "modprobe"),
    )


@rule(
    "driver-library-mismatch",
    title="Driver/library version mismatch (module {kernel}, libraries {library})",
)
def driver_library_mismatch(m: Machine, kb: Knowledge) -> Answer:
    """The driver was updated, but the machine has not been restarted since.

    nvidia-smi says "Failed to initialize NVML: Driver/library version mismatch" (NVML error 18),
    and CUDA fails with error 803. To check by hand: `cat /proc/driver/nvidia/version` shows the
    version of the loaded module. `modinfo -F version nvidia` shows the version of the module on
    disk.

    Usually, an update (often by unattended-upgrades) replaced the driver's files while the old
    module stayed loaded; a restart fixes this. If the module on disk does not match the libraries
    either, a restart does not help; install all driver packages at the same version. In a
    container, the libraries may come from the image instead of the host.

    Look-alikes: if nvidia-smi works and only CUDA fails, the cause is cuda-compat-conflict. In WSL,
    the module and library versions always differ, which is normal.

    Fix: restart the machine, or reload the module while nothing is using the GPU. Removing
    packages does not help.
    """
    if m.platform.wsl or m.platform.system in ("Windows", "Darwin") or answered(m):
        return None
    code, kernel, library = driver_code(m), m.driver.kernel, m.driver.library
    fact = "driver.nvml.version" if m.driver.nvml.version else "driver.library"
    library = m.driver.nvml.version or library
    differ = kernel is not None and library is not None and kernel != library
    if code != MISMATCH and not (code is None and (differ or "api mismatch" in log_text(m))):
        return None
    mixed = _differ_on_disk(m)
    files = ("driver.module_files",) if mixed else ()
    return Found(
        evidence=(*(("driver.kernel", fact) if kernel or library else ()), *files, code_path(m)),
        values={
            "kernel": kernel or "(unknown)",
            "library": library or "(unknown)",
        },
        title=None if differ else "Driver/library version mismatch (NVML error 18)",
        why="The kernel module comes from the host, but this container's libraries are a "
        "different version. The container must use the host's libraries."
        if m.container.kind
        else "The kernel module on disk is also a different version than the installed libraries, "
        "so a restart will not help."
        if mixed
        else None,
        sure=code == MISMATCH,
        remedies=one_version(m, kb) if mixed else _one_version_again(m),
    )


def _differ_on_disk(m: Machine) -> bool:
    """Whether no module that a restart can load, of this kernel or another, fits the libraries."""
    library = m.driver.library
    on_disk = {file.version for file in m.driver.module_files or ()}
    known = library is not None and bool(on_disk) and None not in on_disk
    return known and library not in on_disk and not m.container.kind


def _one_version_again(m: Machine) -> Remedies:
    if m.container.kind:
        way = host_libraries(m)
        return reboot(m) + way if m.look == "report" else way
    here = [file for file in m.driver.module_files or () if file.kernel == m.platform.kernel]
    fits = m.driver.library is not None and m.driver.library in {file.version for file in here}
    return reboot(m) + (reload_driver(m) if fits else ())


@rule(
    "driver-too-old",
    title="The NVIDIA driver ({driver}) is too old for a torch built with CUDA {cuda}",
)
def driver_too_old(m: Machine, kb: Knowledge) -> Answer:
    """CUDA {major} needs driver {floor} or newer.

    torch says "The NVIDIA driver on your system is too old (found version 12040)", and
    torch.cuda.is_available() is False. To check by hand: `nvidia-smi` shows the driver version.
    `python -c "import torch; print(torch.version.cuda)"` shows the CUDA version that torch was
    built with.

    Only the major CUDA version matters: a driver that reports CUDA 12.2 also runs a torch build for
    CUDA 12.8, but a driver that reports CUDA 12.9 does not run a build for CUDA 13.0. (Before CUDA
    11, each CUDA release had its own minimum driver version.) The "CUDA Version" in nvidia-smi is
    the newest CUDA version that the driver supports, not the version of an installed toolkit.

    Fix: install a torch build that works with this driver (no root needed), or a newer driver that
    still supports the GPU. Data center GPUs can also use NVIDIA's forward-compatibility package.
    Upgrading torch makes the problem worse, and installing a CUDA toolkit has no effect.
    """
    if cpu_on_purpose(m) or torch_works(m) or _newer_libcuda(m):
        return None
    driver = _to_come(m)
    if driver is None or m.platform.jetson:
        return _by_cuda_level(m, kb)
    cuda = m.torch.cuda
    if cuda is None:
        return None
    unknown = f"cudadoctor's tables do not include CUDA {cuda}"
    floor = need(kb.oldest_driver(cuda, driver_system(m)), "torch.cuda", unknown)
    oldest = floor.driver
    # Who names a branch alone has one of its releases.
    branch = "." not in driver.text and driver.branch == oldest.branch
    if (
        driver >= oldest
        or branch
        or (_replaced_anyway(m) and upgrade_driver(m, kb, oldest.branch or 0))
    ):
        return None
    kernel = "driver.kernel" if m.driver.kernel else "driver.reported"
    return Found(
        evidence=(kernel if driver == m.driver.version else "driver.library", "torch.cuda"),
        values={"driver": driver, "cuda": cuda, "major": cuda.major, "floor": oldest},
        cites=(floor.source,),
        sure=not floor.uncertain,
        yields_to=_past_every_driver(m, kb, oldest.branch) + _newer_modules(m, kb, oldest.branch),
        remedies=_for_an_old_driver(m, kb, oldest.branch),
    )


def _to_come(m: Machine) -> OptDriverVersion:
    """The driver that runs, or that will once its installed files load: its libraries decide."""
    waits = bare(m) and (m.driver.loaded is False or driver_code(m) == MISMATCH)
    given = all(device.bound in GIVEN_AWAY for device in nvidia_pci(m))
    return (waits and not given and m.driver.library) or m.driver.version


def _replaced_anyway(m: Machine) -> bool:
    """Whether the cure of something else puts another driver in the place of this one."""
    unbuilt = m.driver.loaded is False and (m.driver.packages, m.driver.dkms) == ((), ())
    return bare(m) and (unbuilt or (driver_code(m) == MISMATCH and _differ_on_disk(m)))


def _newer_modules(m: Machine, kb: Knowledge, branch: OptInt) -> Strings:
    """Other modules come with a driver that torch can use, where one supports the GPUs."""
    there = branch is not None and bare(m) and upgrade_driver(m, kb, branch)
    return ("driver-wrong-flavour",) if there else ()


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
        title="The NVIDIA driver, which supports CUDA up to {level}, is too old for this torch"
        if cuda is None
        else "The NVIDIA driver supports CUDA up to {level}, but torch needs CUDA {cuda}",
        why="This torch was built with a newer major version of CUDA than the driver supports."
        if cuda is None
        else "A driver supports CUDA builds up to its own CUDA major version.",
        evidence=(path, "torch.cuda") if cuda else (path,),
        values={
            "level": level,
            "cuda": cuda or "",
            "driver": "",
            "major": "",
            "floor": floor.driver if floor else "",
        },
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
    torch, row, capabilities = install_torch(m, kb), row_of(m, kb), capabilities_of(m, kb)
    archs = m.torch.archs or (row and row.archs)
    own, cuda = m.torch.version, m.torch.cuda
    known = torch and archs and capabilities is not None
    if known and not serves_all(archs or (), capabilities or (), own, cuda, kb):
        # With no code for a GPU this torch has to go anyway, and a driver alone changes nothing.
        return torch
    newer = upgrade_driver(m, kb, branch) if branch is not None else ()
    build = best_build(m, kb).build if newer else None
    if build is not None and any(given_up(build, m, kb)) and newer[0].commands:
        # The driver changes nothing in the environment, another torch does.
        torch, newer = newer, torch
    return each_once(*torch, *newer, *forward_compat(m, kb, m.torch.cuda))


def each_once(*remedies: Remedy) -> Remedies:
    """These remedies; of those with one id the first."""
    return tuple({remedy.id: remedy for remedy in reversed(remedies)}.values())[::-1]


@rule(
    "driver-userspace-missing",
    title="libcuda.so.1 for driver {driver} is missing",
)
def driver_userspace_missing(m: Machine) -> Answer:
    """The driver's kernel module is loaded, but its CUDA library is not installed.

    torch says "Found no NVIDIA driver on your system". If nvidia-smi is installed, it may show
    "CUDA Version: N/A". To check by hand: `ldconfig -p | grep libcuda.so.1` prints nothing.

    Distributions split the driver into several packages, and the package with the CUDA library is
    missing: libnvidia-compute on Ubuntu, libcuda1 on Debian, nvidia-driver-cuda on RHEL,
    xorg-x11-drv-nvidia-cuda with RPM Fusion, nvidia-compute-utils on SUSE, or nvidia-utils on
    Arch.

    Look-alikes: in a container, libcuda is mounted from the host; see container-no-gpu. The
    libcuda in the CUDA toolkit is only a stub and cannot replace the driver's libcuda.

    Fix: install the package that contains libcuda, at the same version as the loaded kernel module.
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
    title = "nvidia-smi shows driver {driver}, but libcuda.so.1 is missing"
    nix = family_of(m) == "nixos"
    return Found(
        title=title if hearsay else _ON_NIXOS[0] if nix else None,
        why=_ON_NIXOS[1] if nix else None,
        evidence=("driver.reported" if hearsay else "driver.loaded", "driver.libcuda.why"),
        values={"driver": version or ""},
        confidence=POSSIBLE if shaky else CERTAIN,
        severity=WARNING if shaky else ERROR,
        remedies=install_libcuda(m),
    )


_ON_NIXOS = (
    "This Python cannot find NixOS's libcuda.so.1",
    "NixOS keeps the driver libraries in /run/opengl-driver/lib, where this Python does not "
    "look for them.",
)
_NO_FIRMWARE = re.compile(
    r"firmware load for nvidia/(?P<driver>\d[\d.]{2,15})/(?P<file>gsp_\w{1,20}\.bin) failed"
)


@rule(
    "driver-userspace-missing",
    title="The GPU firmware file {file} for driver {driver} is missing",
)
def gsp_firmware_missing(m: Machine) -> Answer:
    """The driver loads this file into the GPU at startup, but the kernel could not find it.

    nvidia-smi says "No devices were found". The kernel log shows "Direct firmware load for
    nvidia/.../gsp_....bin failed with error -2", followed by "RmInitAdapter failed".

    To check by hand: `ls /lib/firmware/nvidia` shows which firmware versions are installed.

    Look-alikes: if the kernel log mentions the GSP but no failed firmware load, the firmware file
    was found but the GPU is not responding, and the cause is gpu-unhealthy-hardware or driver-bug.

    Fix: reinstall the firmware package at the same version as the loaded kernel module, then
    restart the machine.
    """
    seen = _NO_FIRMWARE.search(log_text(m))
    if seen is None or not bare(m) or cuda_works(m) or live_gpus(m):
        return None
    return Found(
        evidence=("driver.log",),
        values={"file": seen["file"], "driver": seen["driver"]},
        remedies=install_firmware(m),
    )


@rule(
    "driver-bug",
    title="Driver {driver} has a known bug",
    severity=WARNING,
)
def driver_bug(m: Machine, kb: Knowledge) -> Answer:
    """This driver release has a known bug that affects machines like this one.

    cudadoctor recognizes some bugs by the driver version and others by their symptoms: messages in
    the kernel log or the error code of cuInit. It reports a bug that involves several GPUs only if
    the machine has several GPUs, and a P2P bug only if the driver offers P2P. If cudadoctor reports
    a bug as information, the bug has been seen on machines like this one, but not on this machine.

    Look-alikes: if the driver is too old for torch's CUDA version, the cause is driver-too-old. If
    another torch release fixes the error, the cause is torch-bug.

    Fix: update to a driver release without the bug. If the bug is in HMM (heterogeneous memory
    management), you can turn HMM off with an option of the nvidia_uvm module.
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
    return hmm_off(m)
