"""Causes in the driver and the GPU: from raw answers through the probes to the finding."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from raw_checks import told_as, told_nothing
from raw_hosts import BUS, KERNEL, LIBRARIES, SECURE_BOOT, RawHost, healthy
from raw_texts import loader_cache, modules
from standin_fixtures import StandIns

from cudadoctor.rules import container, driver, gpu, health, libcuda, modes, platforms, process
from cudadoctor.rules.registry import rules_in

FELL = (
    "NVRM: Xid (PCI:0000:a0:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
)
MISMATCH = (
    "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.105\n"
)
NOT_FOUND = "No devices were found\n"
LOST = (
    "Unable to determine the device handle for GPU0: 0000:A0:00.0: GPU is lost.  "
    "Reboot the system to recover this GPU\n"
)
NO_PASCAL = ("torch-arch-unsupported-old",)
"""The torch of these tests is built with CUDA 13.0, which a GTX 1080 cannot run at all."""
NEEDS_OPEN = (
    "NVRM: The NVIDIA GPU 0000:a0:00.0 (PCI ID: 10de:2b85)",
    "NVRM: installed in this system requires use of the NVIDIA open kernel modules.",
)


@pytest.fixture
def host(standins: StandIns, python_cu130: str) -> RawHost:
    """A healthy machine; each test changes what it answers."""
    return healthy(standins, python_cu130)


def test_the_machine_that_all_are_made_from_is_healthy(host: RawHost) -> None:
    told_nothing(host)


def test_every_cause_of_driver_gpu_box_and_process_is_reached_from_raw_answers() -> None:
    """A test in these files names each cause, so none rests on facts that no probe reports."""
    families = (driver, gpu, health, modes, container, platforms, process, libcuda)
    causes = {rule.cause for rule in rules_in(families)}
    here = Path(__file__).parent
    tests = "".join(path.read_text(encoding="utf-8") for path in here.glob("test_raw_driver*.py"))
    asked = set(re.findall(r'told_as\([^"]*"(?:[^"]*", "){0,2}([\w-]+)"', tests))
    asked |= set(re.findall(r'^    told_as\(.*, "([\w-]+)"', tests, re.M))
    assert causes <= asked, causes - asked


# --- is there a GPU, is there a driver -----------------------------------------------------------


def test_a_bus_without_an_nvidia_gpu_is_gpu_not_detected(host: RawHost) -> None:
    told_as(host.not_installed().without(f"{BUS}/0000:a0:00.0"), "gpu-not-detected")


def test_a_gpu_that_left_an_installed_driver_alone_is_gpu_not_detected(host: RawHost) -> None:
    told_as(host.unloaded().without(f"{BUS}/0000:a0:00.0"), "gpu-not-detected")


@pytest.mark.parametrize("bound", ["", "nouveau"])
def test_a_gpu_without_any_file_of_a_driver_is_driver_not_installed(
    host: RawHost, bound: str
) -> None:
    host.not_installed().on_the_bus("2684", driver=bound)
    host.told.files["/proc/modules"] = modules(*([bound] if bound else []))
    told_as(host, "driver-not-installed")


def test_nouveau_on_the_gpu_keeps_an_installed_driver_out(host: RawHost) -> None:
    host.unloaded().on_the_bus("2684", driver="nouveau")
    host.told.files["/proc/modules"] = modules("nouveau")
    assert "nouveau" in told_as(host, "driver-not-loaded").title


def test_a_refused_signature_keeps_the_driver_out(host: RawHost) -> None:
    host.unloaded().on_the_bus("2684", driver="")
    host.told.files[SECURE_BOOT] = b"\x06\0\0\0\x01"
    host.log("Loading of module with unavailable key is rejected")
    assert "Secure Boot" in told_as(host, "driver-not-loaded").title


def test_secure_boot_is_blamed_where_no_log_can_be_read(host: RawHost) -> None:
    host.unloaded().on_the_bus("2684", driver="")
    host.told.files[SECURE_BOOT] = b"\x06\0\0\0\x01"
    host.told.programs.pop("dmesg")
    assert "Secure Boot" in told_as(host, "driver-not-loaded").title


def test_modules_for_another_kernel_only_are_named(host: RawHost) -> None:
    host.unloaded().on_disk("580.95.05", kernel="6.8.0-86-generic").on_the_bus("2684", driver="")
    assert f"running kernel ({KERNEL})" in told_as(host, "driver-not-loaded").title


@pytest.mark.parametrize("line", ["blacklist nvidia", "install nvidia /bin/false"])
def test_a_file_that_forbids_the_module_is_named(host: RawHost, line: str) -> None:
    host.unloaded().on_the_bus("2684", driver="")
    host.told.files["/etc/modprobe.d/nope.conf"] = f"# as asked\n{line}\n"
    found = told_as(host, "driver-not-loaded")
    assert "/etc/modprobe.d/nope.conf" in found.why


def test_a_kernel_parameter_that_forbids_the_module_is_named(host: RawHost) -> None:
    host.unloaded().on_the_bus("2684", driver="")
    host.told.files["/proc/cmdline"] = "ro modprobe.blacklist=nvidia,nvidia_drm quiet\n"
    assert "/proc/cmdline" in told_as(host, "driver-not-loaded").why


def test_a_module_that_nothing_keeps_out_is_not_loaded_all_the_same(host: RawHost) -> None:
    found = told_as(host.unloaded().on_the_bus("2684", driver=""), "driver-not-loaded")
    assert found.title == "The NVIDIA driver is installed but not loaded"


def test_nvidia_smi_alone_can_say_that_the_driver_is_not_loaded(host: RawHost) -> None:
    host.unloaded().on_the_bus("2684", driver="").smi(
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure "
        "that the latest NVIDIA driver is installed and running.\n",
        code=9,
    )
    host.nvml = None
    told_as(host, "driver-not-loaded")


def test_a_gpu_given_to_a_virtual_machine_is_called_so(host: RawHost) -> None:
    host.unloaded().on_the_bus("2684", driver="vfio-pci")
    assert "virtual machine" in told_as(host, "driver-not-loaded").title


# --- is the driver whole and new enough ----------------------------------------------------------


def test_new_libraries_over_an_old_module_are_a_mismatch(host: RawHost) -> None:
    host.libraries("580.105.08")
    host.nvml, host.cuda = "version = 13.580.105.08\nnvmlInitWithFlags = 18", "cuInit = 803"
    host.log("NVRM: API mismatch: the client has the version 580.105.08, but")
    found = told_as(host, "driver-library-mismatch")
    assert (found.values["kernel"], found.values["library"]) == ("580.95.05", "580.105.08")


def test_the_words_of_nvidia_smi_are_enough_for_a_mismatch(host: RawHost) -> None:
    host.smi(MISMATCH, code=18)
    host.nvml, host.cuda = None, "cuInit = 803"
    told_as(host, "driver-library-mismatch")


def test_two_versions_on_disk_are_no_mismatch_while_nvml_answers(host: RawHost) -> None:
    """The loader may take a file of the module's own release from elsewhere."""
    host.told.files[f"{LIBRARIES}/libnvidia-ml.so.580.105.08"] = b"\x7fELF"
    told_nothing(host)


@pytest.mark.parametrize("version", ["570.172.08", "575.57.08", "580.65.05"])
def test_a_driver_before_the_first_of_cuda_13_is_too_old(host: RawHost, version: str) -> None:
    host.loaded(version).cuda_level = 12080
    found = told_as(host, "driver-too-old")
    assert (found.values["driver"], found.values["cuda"]) == (version, "13.0")


@pytest.mark.parametrize("version", ["580.65.06", "610.43.02"])
def test_the_first_driver_of_cuda_13_is_new_enough(host: RawHost, version: str) -> None:
    told_nothing(host.loaded(version))


def test_a_module_without_libcuda_lacks_its_userspace(host: RawHost) -> None:
    host.without(f"{LIBRARIES}/libcuda").cuda = None
    host.told.files["/etc/ld.so.cache"] = loader_cache(
        {"libnvidia-ml.so.1": f"{LIBRARIES}/libnvidia-ml.so.1"}
    )
    told_as(host, "driver-userspace-missing")


# --- does the driver take this GPU ---------------------------------------------------------------


def silent(host: RawHost, *log: str) -> RawHost:
    """The module is loaded and starts no GPU."""
    host.nvml, host.cuda = "count = 0", "cuInit = 100"
    return host.smi(NOT_FOUND, code=6).log(*log)


@pytest.mark.parametrize("log", [NEEDS_OPEN, ()])
def test_blackwell_under_proprietary_modules_is_the_wrong_flavour(
    host: RawHost, log: tuple[str, ...]
) -> None:
    silent(host.on_the_bus("2b85").loaded("580.95.05", "proprietary"), *log)
    assert told_as(host, "driver-wrong-flavour").remedies[0].id == "open-modules"


def test_a_geforce_of_pascal_under_open_modules_is_the_wrong_flavour(host: RawHost) -> None:
    silent(
        host.on_the_bus("1b80").loaded("580.95.05"),
        "NVRM: The NVIDIA GPU 0000:a0:00.0 (PCI ID: 10de:1b80)",
        "NVRM: installed in this system is not supported by open",
        "NVRM: nvidia.ko because it does not include the required GPU",
        "NVRM: System Processor (GSP).",
    )
    told_as(host, "driver-wrong-flavour", beside=NO_PASCAL)


def test_a_card_newer_than_the_branch_is_unsupported(host: RawHost) -> None:
    host.cuda_level = 12070
    silent(
        host.on_the_bus("2b85").loaded("565.57.01"),
        "NVRM: The NVIDIA GPU 0000:a0:00.0 (PCI ID: 10de:2b85)",
        "NVRM: installed in this system is not supported by the",
        "NVRM: NVIDIA 565.57.01 driver release.",
    )
    told_as(host, "driver-unsupported-gpu", folded=("driver-too-old",))


def test_a_card_older_than_the_branch_is_unsupported(host: RawHost) -> None:
    silent(
        host.on_the_bus("1b80").loaded("590.48.01", "proprietary"),
        "NVRM: The NVIDIA GeForce GTX 1080 GPU installed in this system is",
        "NVRM:  supported through the NVIDIA 580.xx Legacy drivers. Please",
        "NVRM:  visit http://www.nvidia.com/object/unix.html for more",
    )
    told_as(host, "driver-unsupported-gpu", beside=NO_PASCAL)


def test_a_gpu_without_address_space_is_the_firmwares_matter(host: RawHost) -> None:
    silent(
        host,
        "NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:",
        "NVRM: BAR1 is 0M @ 0x0 (PCI:0000:a0:00.0)",
    )
    host.told.files[f"{BUS}/0000:a0:00.0/resource"] = (
        "0x00000000de000000 0x00000000deffffff 0x0000000000040200\n"
        + "0x0000000000000000 0x0000000000000000 0x0000000000000000\n" * 5
    )
    told_as(host, "pci-bar-bios")


# --- is the GPU alive ----------------------------------------------------------------------------


def test_a_gpu_that_fell_off_the_bus_is_lost(host: RawHost) -> None:
    host.nvml, host.cuda = "nvmlDeviceGetHandleByIndex_v2 = 15", "cuInit = 999"
    host.smi(LOST, code=15).log(FELL)
    host.told.files[f"{BUS}/0000:a0:00.0/config"] = b"\xff" * 64
    assert told_as(host, "gpu-lost").values["which"] == "0"


def test_the_words_of_nvidia_smi_are_enough_for_a_lost_gpu(host: RawHost) -> None:
    host.smi(LOST, code=15).nvml = None
    host.cuda = "cuInit = 999"
    told_as(host, "gpu-lost")


def test_one_lost_gpu_of_two_is_named(host: RawHost) -> None:
    host.on_the_bus("2684", "0000:a1:00.0").node("/dev/nvidia1")
    host.nvml = "count = 2\ngpu1.nvmlDeviceGetHandleByIndex_v2 = 15"
    host.cuda = "cuInit = 999"
    assert told_as(host, "gpu-lost").values["which"] == "1"


def test_a_gpu_that_waits_for_its_reset_is_lost_until_then(host: RawHost) -> None:
    host.nvml, host.cuda = "nvmlDeviceGetHandleByIndex_v2 = 16", "cuInit = 100"
    told_as(host, "gpu-lost")


def test_a_sleeping_gpu_is_not_lost(host: RawHost) -> None:
    """Its configuration reads all ones; the driver wakes it when it is asked."""
    folder = f"{BUS}/0000:a0:00.0"
    host.told.files |= {
        f"{folder}/config": b"\xff" * 64,
        f"{folder}/power_state": "D3cold\n",
        f"{folder}/power/runtime_status": "suspended\n",
    }
    told_nothing(host)


def server(host: RawHost, *first: str) -> RawHost:
    """The machine has an H100 in the place of the GeForce."""
    host.on_the_bus("2330", kind="30200").nvml = "\n".join(first)
    host.gpus = ""
    return host


def test_an_h100_is_healthy(host: RawHost) -> None:
    told_nothing(server(host))


def test_a_row_of_memory_that_cannot_be_remapped_is_an_error(host: RawHost) -> None:
    told_as(server(host, "remap_failed = 1"), "gpu-ecc")


def test_uncorrected_errors_since_the_start_are_an_error(host: RawHost) -> None:
    told_as(server(host, "ecc_uncorrected = 3"), "gpu-ecc")


def test_a_remapping_that_waits_is_a_warning(host: RawHost) -> None:
    told_as(server(host, "remap_pending = 1"), "gpu-ecc", verdict="warnings")


def test_remapped_rows_and_corrected_errors_are_history(host: RawHost) -> None:
    told_nothing(server(host, "remap_corrected = 4\nremap_uncorrected = 1\necc_aggregate = 9"))


def test_an_xid_of_the_firmware_is_a_warning(host: RawHost) -> None:
    host.log(
        "NVRM: Xid (PCI:0000:a0:00): 119, pid=77, name=python, Timeout waiting for RPC from GSP"
    )
    told_as(host, "gpu-unhealthy-hardware", verdict="warnings")


def test_an_xid_of_a_program_is_none_of_the_hardware(host: RawHost) -> None:
    host.log("NVRM: Xid (PCI:0000:a0:00): 31, pid=77, name=python, Ch 00000008, MMU Fault")
    told_nothing(host)


# --- is the GPU open for computing ---------------------------------------------------------------


def test_a_prohibited_gpu_is_its_compute_mode(host: RawHost) -> None:
    host.nvml = "compute_mode = 2"
    told_as(host, "compute-mode")


def test_an_exclusive_gpu_that_is_in_use_is_its_compute_mode(host: RawHost) -> None:
    host.nvml = "compute_mode = 3\nprocesses = 1"
    told_as(host, "compute-mode")


def test_an_exclusive_gpu_that_is_free_is_fine(host: RawHost) -> None:
    host.nvml = "compute_mode = 3"
    told_nothing(host)


def test_mig_without_an_instance_is_misconfigured(host: RawHost) -> None:
    server(host, "mig = 1").cuda = "count = 0"
    told_as(host, "mig-misconfigured")


def test_a_stale_mig_uuid_is_misconfigured(host: RawHost) -> None:
    server(host, "mig = 1\nmig_devices = 2").variables["CUDA_VISIBLE_DEVICES"] = "MIG-dead"
    host.cuda, host.clean_cuda = "cuInit = 100", ""
    told_as(host, "mig-misconfigured")


def test_mig_with_instances_is_fine(host: RawHost) -> None:
    told_nothing(server(host, "mig = 1\nmig_devices = 2"))


def nvswitch(host: RawHost) -> RawHost:
    """A machine with four NVSwitches, whose CUDA does not start."""
    server(host)
    for number in range(4):
        host.on_the_bus("22a3", f"0000:0{number}:00.0", "nvidia-nvswitch", "68000")
    host.cuda = "cuInit = 802"
    return host


def test_nvswitch_without_its_daemon_lacks_the_fabric_manager(host: RawHost) -> None:
    told_as(nvswitch(host), "fabric-manager")


def test_a_fabric_manager_of_another_release_is_told(host: RawHost) -> None:
    nvswitch(host).told.files["/usr/bin/nv-fabricmanager"] = b"\x7fELF"
    host.package("nvidia-fabricmanager-580", "580.82.07-1")
    host.told.runs[("systemctl", "show", "nvidia-fabricmanager", "-p", "ActiveState,LoadState")] = (
        "LoadState=loaded\nActiveState=failed\n"
    )
    machine = host.machine()
    assert (str(machine.driver.fabric.version), machine.driver.fabric.manager) == (
        "580.82.07",
        "failed",
    )
    told_as(host, "fabric-manager")


# --- libcuda and the device nodes ----------------------------------------------------------------


def test_a_missing_uvm_module_is_told_by_cuinit(host: RawHost) -> None:
    host.without("/dev/nvidia-uvm").cuda = "cuInit = 999"
    host.told.files["/proc/modules"] = modules("nvidia", "nvidia_modeset", "nvidia_drm")
    told_as(host, "uvm-not-loaded")


def test_a_uvm_broken_by_a_suspend_is_loaded_and_told_by_cuinit(host: RawHost) -> None:
    host.log("PM: suspend exit").cuda = "cuInit = 999"
    told = [remedy.id for remedy in told_as(host, "unknown").remedies]
    assert told == ["reload-uvm", "keep-through-suspend"]


def test_a_missing_node_of_uvm_alone_is_normal(host: RawHost) -> None:
    host.without("/dev/nvidia-uvm")
    host.told.files["/proc/modules"] = modules("nvidia", "nvidia_modeset", "nvidia_drm")
    told_nothing(host)


def test_nodes_of_a_group_without_this_user_are_a_permission(host: RawHost) -> None:
    for name in ("nvidiactl", "nvidia0", "nvidia-uvm"):
        host.node(f"/dev/{name}", errno=13, mode=0o660, gid=44)
    host.nvml, host.cuda = "nvmlInitWithFlags = 4", "cuInit = 100"
    told_as(host, "device-permission")


def test_a_refused_node_of_tools_is_none(host: RawHost) -> None:
    told_nothing(host.node("/dev/nvidia-uvm-tools", errno=13, mode=0o660, gid=44))


def test_the_stub_of_a_toolkit_on_the_path_is_told_by_its_place(host: RawHost) -> None:
    folder = "/usr/local/cuda/lib64/stubs"
    host.variables["LD_LIBRARY_PATH"] = folder
    host.cuda, host.cuda_path = "cuInit = 34\ncuDriverGetVersion = 34", f"{folder}/libcuda.so"
    host.clean_cuda, host.clean_path = "", f"{LIBRARIES}/libcuda.so.580.95.05"
    assert told_as(host, "libcuda-stub").values["path"] == f"{folder}/libcuda.so"


def test_a_stale_copy_of_libcuda_is_told_by_its_release(host: RawHost) -> None:
    host.variables["LD_LIBRARY_PATH"] = "/opt/old/lib"
    host.cuda, host.cuda_path = "cuInit = 803", "/opt/old/lib/libcuda.so.550.54.15"
    host.clean_cuda, host.clean_path = "", f"{LIBRARIES}/libcuda.so.580.95.05"
    told_as(host, "libcuda-stub")


def test_a_stub_for_linking_only_is_left_alone(host: RawHost) -> None:
    host.variables["LIBRARY_PATH"] = "/usr/local/cuda/lib64/stubs"
    host.told.files["/usr/local/cuda/lib64/stubs/libcuda.so"] = b"\x7fELF"
    told_nothing(host)


@pytest.mark.parametrize("code", [803, 804])
def test_forward_compatibility_on_a_geforce_is_a_conflict(host: RawHost, code: int) -> None:
    folder = "/usr/local/cuda-13.0/compat"
    host.variables["LD_LIBRARY_PATH"] = folder
    host.cuda, host.cuda_path = f"cuInit = {code}", f"{folder}/libcuda.so.580.82.07"
    host.clean_cuda, host.clean_path = "", f"{LIBRARIES}/libcuda.so.580.95.05"
    told_as(host, "cuda-compat-conflict")


def test_forward_compatibility_on_a_server_card_is_fine(host: RawHost) -> None:
    folder = "/usr/local/cuda-13.0/compat"
    server(host).loaded("570.172.08").cuda_level = 12080
    host.variables["LD_LIBRARY_PATH"] = folder
    host.cuda, host.cuda_path = "cuda = 13000", f"{folder}/libcuda.so.580.82.07"
    told_nothing(host)


# --- known faults, settings of the module, several GPUs ------------------------------------------


def test_a_kernel_that_hmm_does_not_get_along_with_is_a_driver_bug(host: RawHost) -> None:
    host.cuda = host.clean_cuda = "cuInit = 3"
    host.log(
        "nvidia-uvm: uvm_pmm_gpu.c:3176 devmem_alloc_pagemap request_free_mem_region() err -34"
    )
    assert "HMM" in told_as(host, "driver-bug").title


def test_a_gpu_that_the_module_leaves_out_is_gpu_excluded(host: RawHost) -> None:
    host.nvml, host.cuda = "count = 0\nexcluded = 1", "cuInit = 100"
    host.clean_cuda = host.cuda
    told_as(host, "gpu-excluded")


def test_gpus_that_wait_for_their_attestation_are_confidential_computing(host: RawHost) -> None:
    host.nvml = "confidential = 1\nconfidential_ready = 0"
    host.cuda = host.clean_cuda = "cuInit = 802"
    told_as(host, "confidential-computing", folded=("fabric-manager",))


def test_servers_gpus_that_are_denied_p2p_are_p2p_not_possible(host: RawHost) -> None:
    server(host, "count = 2\np2p = 1\ntopology = 20").on_the_bus("2330", "0000:a1:00.0")
    host.cuda = "count = 2"
    told_as(host, "p2p-not-possible", verdict="warnings")


def test_a_gpu_whose_recovery_is_wanted_is_unhealthy_hardware(host: RawHost) -> None:
    host.log(
        "NVRM: Xid (PCI:0000:a0:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 "
        "(GPU Reset Required)"
    )
    assert "Reset" in told_as(host, "gpu-unhealthy-hardware", verdict="warnings").title
