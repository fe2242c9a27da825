"""Causes around a process, from raw answers to the finding: boxes, jobs, limits, variables."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from raw_checks import told_as, told_nothing
from raw_hosts import BUS, GIB, LIBRARIES, RawHost, healthy
from raw_texts import dpkg, limits, loader_cache, modules
from standin_fixtures import StandIns

from cudadoctor.host.local import Space

BLIND = {"available": False, "count": 0, "devices": []}


@pytest.fixture
def host(standins: StandIns, python_cu130: str) -> RawHost:
    """A healthy machine; each test changes what it answers."""
    return healthy(standins, python_cu130)


@pytest.fixture(scope="session")
def python_alone(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A real environment without torch."""
    folder = tmp_path_factory.mktemp("alone")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return str(folder / "bin" / "python")


# --- containers ----------------------------------------------------------------------------------


def test_a_container_with_its_gpu_is_healthy(host: RawHost) -> None:
    told_nothing(host.in_docker())


def test_a_container_without_the_hosts_gpu_was_not_given_it(host: RawHost) -> None:
    told_as(host.in_docker(granted=False), "container-no-gpu")


def test_an_image_that_asks_for_gpus_proves_no_grant(host: RawHost) -> None:
    host.variables["NVIDIA_VISIBLE_DEVICES"] = "all"
    host.variables["NVIDIA_DRIVER_CAPABILITIES"] = "compute,utility"
    told_as(host.in_docker(granted=False), "container-no-gpu")


def test_a_pod_without_a_gpu_in_its_limits_was_not_given_it(host: RawHost) -> None:
    host.variables["KUBERNETES_SERVICE_HOST"] = "10.0.0.1"
    told_as(host.in_docker(granted=False), "container-no-gpu")


def test_a_container_without_the_compute_library_lacks_a_capability(host: RawHost) -> None:
    host.in_docker().without(f"{LIBRARIES}/libcuda").cuda = None
    host.told.files["/etc/ld.so.cache"] = loader_cache(
        {"libnvidia-ml.so.1": f"{LIBRARIES}/libnvidia-ml.so.1"}
    )
    host.variables["NVIDIA_DRIVER_CAPABILITIES"] = "graphics,utility"
    told_as(host, "container-driver-caps")


def test_a_container_whose_files_lack_libcuda_is_told_without_a_variable(host: RawHost) -> None:
    host.in_docker().without(f"{LIBRARIES}/libcuda").cuda = None
    host.told.files["/etc/ld.so.cache"] = loader_cache(
        {"libnvidia-ml.so.1": f"{LIBRARIES}/libnvidia-ml.so.1"}
    )
    found = told_as(host, "container-driver-caps")
    assert found.rule == "container-without-libcuda"


def of_smi_alone(host: RawHost) -> RawHost:
    """Nothing of the driver is seen but the words of nvidia-smi."""
    host.not_installed().without(f"{BUS}/0000:a0", "/sys/bus/pci")
    table = "| NVIDIA-SMI 580.95.05    Driver Version: 580.95.05    CUDA Version: 13.0 |\n"
    table += "|   0  NVIDIA GeForce RTX 4090    Off |   00000000:01:00.0  On |      N/A |\n"
    table += "|  0%   41C    P8    21W /  450W |   812MiB /  24564MiB |   3%   Default |\n"
    return host.smi(table)


def test_what_nvidia_smi_alone_says_leaves_a_missing_libcuda_a_possibility(host: RawHost) -> None:
    found = of_smi_alone(host).diagnosed()
    assert (found.verdict, found.primary) == ("undecided", "driver-userspace-missing")


def test_torchs_own_failure_makes_a_missing_libcuda_the_cause(host: RawHost) -> None:
    of_smi_alone(host).torch_says = {**BLIND, "error": "Found no NVIDIA driver on your system."}
    told_as(host, "driver-userspace-missing", depth="no-smoke")


def test_device_rules_that_were_forgotten_lose_a_containers_gpu(host: RawHost) -> None:
    for name in ("nvidiactl", "nvidia0", "nvidia-uvm"):
        host.node(f"/dev/{name}", errno=1)
    host.in_docker().nvml = "nvmlInitWithFlags = 999"
    host.cuda = "cuInit = 100"
    told_as(host, "container-gpu-lost")


def test_permission_bits_in_a_container_are_no_lost_gpu(host: RawHost) -> None:
    for name in ("nvidiactl", "nvidia0", "nvidia-uvm"):
        host.node(f"/dev/{name}", errno=13, mode=0o660, gid=44)
    host.in_docker().nvml = "nvmlInitWithFlags = 4"
    host.cuda = "cuInit = 100"
    told_as(host, "device-permission")


def test_a_host_without_its_driver_is_told_from_within(host: RawHost) -> None:
    host.unloaded().in_docker(granted=False).on_the_bus("2684", driver="")
    assert told_as(host, "driver-not-loaded").rule == "host-driver-not-loaded"


def test_a_host_without_a_gpu_is_told_from_within(host: RawHost) -> None:
    host.unloaded().in_docker(granted=False).without(f"{BUS}/0000:a0:00.0")
    told_as(host, "gpu-not-detected")


def test_driver_libraries_in_an_image_are_a_mismatch(host: RawHost) -> None:
    host.in_docker().libraries("550.54.15")
    host.nvml, host.cuda = "version = 12.550.54.15\nnvmlInitWithFlags = 18", "cuInit = 803"
    found = told_as(host, "driver-library-mismatch")
    assert found.remedies[0].id == "driver-out-of-image"


def test_an_old_driver_of_the_host_is_too_old_in_a_container(host: RawHost) -> None:
    host.loaded("535.104.05").in_docker().cuda_level = 12020
    told_as(host, "driver-too-old")


# --- shared memory, files, memory ----------------------------------------------------------------


def two(host: RawHost) -> RawHost:
    """A second GPU, known to all."""
    host.on_the_bus("2684", "0000:a1:00.0").node("/dev/nvidia1").nvml = "count = 2"
    host.cuda = "count = 2"
    return host


def shared(host: RawHost, size: int) -> RawHost:
    host.told.spaces["/dev/shm"] = Space(total_bytes=size, free_bytes=size)
    return host


def test_the_shared_memory_of_docker_is_small_for_two_gpus(host: RawHost) -> None:
    told_as(shared(two(host).in_docker(), 64 << 20), "shm-too-small", verdict="warnings")


def test_a_little_more_shared_memory_is_told_of_no_more(host: RawHost) -> None:
    told_nothing(shared(two(host).in_docker(), (64 << 20) + 4096))


def test_one_gpu_needs_no_shared_memory(host: RawHost) -> None:
    told_nothing(shared(host.in_docker(), 64 << 20))


def test_few_open_files_are_a_limit(host: RawHost) -> None:
    host.told.files["/proc/self/limits"] = limits(nofile=1023)
    told_as(host, "ulimit", verdict="warnings")


def test_the_usual_number_of_open_files_is_enough(host: RawHost) -> None:
    host.told.files["/proc/self/limits"] = limits(nofile=1024)
    told_nothing(host)


def test_memory_that_others_hold_is_told_with_who_holds_it(host: RawHost) -> None:
    host.nvml = f"used = {23 * GIB}\nprocesses = 1\nprocess = /opt/blender/blender"
    found = told_as(host, "out-of-memory", verdict="warnings")
    assert "blender" in str(found.remedies)


def test_memory_that_is_half_taken_is_enough(host: RawHost) -> None:
    host.nvml = f"used = {12 * GIB}\nprocesses = 1"
    told_nothing(host)


# --- variables and jobs --------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["", "-1", "1", "0,0", "'0'", "GPU-beef"])
def test_a_variable_that_leaves_no_gpu_hides_them(host: RawHost, value: str) -> None:
    host.variables["CUDA_VISIBLE_DEVICES"] = value
    host.cuda, host.clean_cuda = "cuInit = 100", ""
    told_as(host, "visible-devices-hides-gpu")


def test_a_list_that_is_cut_is_a_warning(host: RawHost) -> None:
    two(host).variables["CUDA_VISIBLE_DEVICES"] = "0,2"
    host.cuda = "count = 1"
    told_as(host, "visible-devices-hides-gpu", verdict="warnings")


@pytest.mark.parametrize("value", ["0", "0,1", "1,0", "GPU-00000000"])
def test_a_variable_that_leaves_a_gpu_is_fine(host: RawHost, value: str) -> None:
    two(host).variables["CUDA_VISIBLE_DEVICES"] = value
    host.cuda = f"count = {len(value.split(','))}"
    told_nothing(host)


@pytest.mark.parametrize(
    ("nvml", "errno"),
    [("count = 0", 1), ("nvmlDeviceGetHandleByIndex_v2 = 4", 1), ("nvmlInitWithFlags = 999", 1)],
)
def test_a_job_that_asked_for_no_gpu_was_given_none(host: RawHost, nvml: str, errno: int) -> None:
    host.variables |= {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "1"}
    host.node("/dev/nvidia0", errno=errno).nvml = nvml
    host.cuda = "cuInit = 100"
    told_as(host, "scheduler-no-gpu")


@pytest.mark.parametrize(
    "job",
    [
        {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0"},
        {"LSB_JOBID": "7", "LSB_GPU_ALLOC": "0"},
        {"PBS_JOBID": "7", "PBS_GPUFILE": "/x"},
    ],
)
def test_a_job_that_lists_its_gpu_was_given_one(host: RawHost, job: dict[str, str]) -> None:
    """Its CUDA fails for a reason of its own."""
    host.variables |= job
    host.without("/dev/nvidia-uvm").cuda = "cuInit = 999"
    host.told.files["/proc/modules"] = modules("nvidia", "nvidia_modeset", "nvidia_drm")
    told_as(host, "uvm-not-loaded")


def test_a_job_with_a_gpu_is_fine(host: RawHost) -> None:
    host.variables |= {"SLURM_JOB_ID": "77", "SLURM_JOB_GPUS": "0", "CUDA_VISIBLE_DEVICES": "0"}
    told_nothing(host)


def test_an_option_of_the_allocator_with_an_equals_sign_is_malformed(host: RawHost) -> None:
    host.variables["PYTORCH_CUDA_ALLOC_CONF"] = "max_split_size_mb=128"
    told_as(host, "env-var-misconfigured")


def test_options_of_the_allocator_in_their_form_are_fine(host: RawHost) -> None:
    host.variables["PYTORCH_CUDA_ALLOC_CONF"] = "max_split_size_mb:128,expandable_segments:True"
    told_nothing(host)


def test_a_switch_for_debugging_that_was_left_on_is_a_warning(host: RawHost) -> None:
    host.variables["CUDA_LAUNCH_BLOCKING"] = "1"
    told_as(host, "env-var-misconfigured", verdict="warnings")


def test_a_preloaded_library_that_breaks_cuda_is_told_by_the_clean_look(host: RawHost) -> None:
    host.variables["LD_PRELOAD"] = "/opt/hook/libhook.so"
    host.cuda, host.clean_cuda = "cuInit = 3", ""
    told_as(host, "env-var-misconfigured")


# --- WSL, Jetson, platforms ----------------------------------------------------------------------


def test_wsl_with_the_driver_of_windows_is_healthy(host: RawHost) -> None:
    told_nothing(host.in_wsl())


def test_wsl_is_judged_by_the_driver_of_windows(host: RawHost) -> None:
    host.in_wsl().driver, host.cuda_level = "537.13", 12020
    told_as(host, "driver-too-old")


def test_a_linux_driver_in_wsl_is_told_by_its_package(host: RawHost) -> None:
    host.in_wsl().libraries("580.95.05").package("libnvidia-compute-580", "580.95.05-0ubuntu1")
    host.cuda, host.nvml = "cuInit = 100", "nvmlInitWithFlags = 9"
    told_as(host, "wsl-setup")


def test_wsl_without_its_device_is_told(host: RawHost) -> None:
    del host.in_wsl().told.stats["/dev/dxg"]
    host.cuda, host.nvml = "cuInit = 100", "nvmlInitWithFlags = 9"
    told_as(host, "wsl-setup")


def no_windows_driver(host: RawHost) -> RawHost:
    host.in_wsl().without("/usr/lib/wsl/").told.programs.pop("nvidia-smi")
    host.told.files["/etc/ld.so.cache"] = loader_cache({"libz.so.1": "/lib/libz.so.1"})
    host.cuda = host.nvml = None
    return host


def test_wsl_on_a_windows_without_a_driver_is_told(host: RawHost) -> None:
    told_as(no_windows_driver(host), "wsl-setup")


def test_the_first_wsl_has_no_gpu(host: RawHost) -> None:
    del no_windows_driver(host).told.stats["/dev/dxg"]
    host.told.files["/proc/sys/kernel/osrelease"] = "4.4.0-19041-Microsoft\n"
    assert "WSL 1" in told_as(host, "wsl-setup").title


def orin(host: RawHost) -> RawHost:
    """An Orin with JetPack 6: no PCI GPU, nvgpu in the place of nvidia."""
    host.without("/proc/driver/", "/sys/module/nvidia", f"{BUS}/0000:a0", "/dev/nvidia")
    host.told.files |= {
        "/etc/nv_tegra_release": "# R36 (release), REVISION: 4.3, GCID: 38968081\n",
        "/proc/sys/kernel/osrelease": "5.15.148-tegra\n",
        "/proc/sys/kernel/arch": "aarch64\n",
        "/proc/device-tree/compatible": "nvidia,p3768-0000+p3767-0000\0nvidia,tegra234\0",
        "/proc/device-tree/model": "NVIDIA Jetson Orin Nano Developer Kit\0",
        "/proc/modules": modules("nvgpu", "nvmap"),
        "/var/lib/dpkg/status": dpkg(),
    }
    host.node("/dev/nvmap").node("/dev/nvhost-gpu")
    return host


def test_a_generic_torch_on_an_orin_is_no_jetson_build(host: RawHost) -> None:
    orin(host).nvml = "name = Orin\ncapability = 87\nnvmlDeviceGetPciInfo_v3 = 3"
    told_as(host, "jetson-build")


def test_an_orin_without_nvml_is_known_by_its_board(host: RawHost) -> None:
    orin(host).without(f"{LIBRARIES}/libnvidia").nvml = None
    host.told.programs.pop("nvidia-smi")
    host.told.files["/etc/ld.so.cache"] = loader_cache(
        {"libcuda.so.1": f"{LIBRARIES}/libcuda.so.1"}
    )
    told_as(host, "jetson-build")


def test_musl_has_no_build_of_torch(standins: StandIns, python_alone: str) -> None:
    host = healthy(standins, python_alone)
    host.hidden = re.compile(r".*/libc\.so\.6")
    host.told.files["/lib/ld-musl-x86_64.so.1"] = b"\x7fELF"
    host.told.files["/etc/os-release"] = "ID=alpine\nVERSION_ID=3.20.3\n"
    told_as(host, "platform-unsupported")


@pytest.mark.parametrize("processor", ["riscv64", "ppc64le", "armv7l"])
def test_other_processors_have_no_build_of_torch(
    standins: StandIns, python_alone: str, processor: str
) -> None:
    host = healthy(standins, python_alone)
    host.told.files["/proc/sys/kernel/arch"] = f"{processor}\n"
    told_as(host, "platform-unsupported")


def test_an_environment_without_torch_is_no_matter_of_its_platform(
    standins: StandIns, python_alone: str
) -> None:
    told_as(healthy(standins, python_alone), "torch-missing")


# --- what only a longer look tells ---------------------------------------------------------------


def test_a_healthy_machine_stays_so_after_an_import(host: RawHost) -> None:
    told_nothing(host, depth="no-smoke")


def test_a_driver_that_hangs_is_told_by_a_patient_look(host: RawHost) -> None:
    host.hangs, host.torch_says = True, {**BLIND, "error": ""}
    host.told.programs.pop("nvidia-smi")
    told_as(host, "gpu-unhealthy-hardware", depth="no-smoke")


def test_torchs_own_words_name_a_driver_that_is_too_old(host: RawHost) -> None:
    words = "The NVIDIA driver on your system is too old (found version 12080). Please update"
    host.without("/proc/driver/", "/sys/", "/lib/modules/", "/var/lib/dkms/", "/dev/")
    host.told.programs.pop("nvidia-smi")
    host.nvml, host.cuda = None, "cuInit = 999\ncuDriverGetVersion = 999"
    host.torch_says = {**BLIND, "error": words}
    told_as(host, "driver-too-old", depth="no-smoke")


def test_a_code_that_nobody_knows_is_unknown(host: RawHost) -> None:
    host.cuda, host.torch_says = "cuInit = 304", {**BLIND, "error": "OS call failed"}
    found = host.diagnosed("no-smoke")
    assert (found.primary, found.verdict) == ("unknown", "broken")
