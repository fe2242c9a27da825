"""The system, the machine under it, and what boxes the process in."""

from __future__ import annotations

import pytest
from packaging.version import Version
from recorded_host import RecordedHost

from cudadoctor.host.local import Answer, LocalHost
from cudadoctor.model.machine import Container, Identity, Platform
from cudadoctor.model.variables import allowed
from cudadoctor.probes.examine import read_environment
from cudadoctor.probes.platform import (
    SECURE_BOOT,
    container_kind,
    hypervisor,
    parse_l4t,
    read_platform,
    scheduler,
)

UBUNTU = 'NAME="Ubuntu"\nID=ubuntu\nVERSION_ID="24.04"\nID_LIKE=debian\n'
KERNEL = "/proc/sys/kernel/osrelease"
LIBC = b"...GNU C Library (Ubuntu GLIBC 2.39-0ubuntu8.6) stable release version 2.39.\n..."
FILES: dict[str, str | bytes | Answer] = {
    "/etc/os-release": UBUNTU,
    KERNEL: "6.8.0-87-generic\n",
    "/proc/sys/kernel/arch": "x86_64\n",
    "/proc/sys/kernel/hostname": "engine\n",
    "/lib/x86_64-linux-gnu/libc.so.6": LIBC,
    "/proc/self/status": "Name:\tpython\nUid:\t1000\t1000\t1000\t1000\n",
    "/etc/passwd": "root:x:0:0::/root:/bin/sh\nada:x:1000:1000::/home/ada:/bin/bash\n",
    "/sys/class/dmi/id/product_name": "DGXH100\n",
    "/proc/cpuinfo": "processor\t: 0\nflags\t\t: fpu vme\n",
    SECURE_BOOT: b"\x06\x00\x00\x00\x01",
}


def platform(
    files: dict[str, str | bytes | Answer] | None = None, **more: str | bytes | Answer
) -> Platform:
    known = FILES if files is None else files
    found = read_platform(RecordedHost(files={**known, **more})).facts["platform"]
    assert isinstance(found, Platform)
    return found


def test_a_bare_linux_is_described_whole() -> None:
    assert platform() == Platform(
        system="Linux",
        machine="x86_64",
        kernel="6.8.0-87-generic",
        distro="ubuntu",
        distro_version="24.04",
        distro_like=("debian",),
        libc="glibc",
        glibc=Version("2.39"),
        wsl=0,
        jetson=False,
        virtual="",
        product="DGXH100",
        root=False,
        secure_boot=True,
    )


def test_the_user_is_known_without_variables() -> None:
    seen = read_platform(RecordedHost(files=FILES))
    assert seen.facts["identity"] == Identity(user="ada", home=None, host="engine")


@pytest.mark.parametrize(
    ("kernel", "wsl"),
    [
        ("6.6.87.2-microsoft-standard-WSL2", 2),
        ("5.10.16.3-microsoft-standard-WSL2", 2),
        ("4.4.0-19041-Microsoft", 1),
        ("4.4.0-generic", 0),
        ("6.8.0-1021-azure", 0),
    ],
)
def test_wsl_is_told_by_its_kernel(kernel: str, wsl: int) -> None:
    assert platform({**FILES, KERNEL: kernel}).wsl == wsl


def test_wsl_with_a_kernel_of_ones_own_is_told_by_its_device() -> None:
    host = RecordedHost(files={**FILES, "/dev/dxg": "", "/usr/lib/wsl/lib/libcuda.so.1": ""})
    seen = read_platform(host)
    assert seen.facts["platform"].wsl == 2
    box = seen.facts["container"]
    assert (box.dxg, box.wsl_libs) == (True, True)


def test_a_jetson_is_told_by_its_board() -> None:
    found = platform(
        {
            **FILES,
            "/etc/nv_tegra_release": "# R36 (release), REVISION: 4.3, GCID: 38968081",
            "/proc/device-tree/model": "NVIDIA Jetson AGX Orin Developer Kit\x00",
            "/proc/sys/kernel/arch": "aarch64",
        }
    )
    assert (found.jetson, found.l4t) == (True, Version("36.4.3"))
    assert found.product == "NVIDIA Jetson AGX Orin Developer Kit"


def test_a_jetson_in_a_container_keeps_its_device_tree() -> None:
    found = platform(
        {**FILES, "/proc/device-tree/compatible": "nvidia,p3737\x00nvidia,tegra234\x00"}
    )
    assert (found.jetson, found.l4t) == (True, None)


@pytest.mark.parametrize("text", ["", "garbage", "# R (release), REVISION: x"])
def test_no_l4t_release_is_made_up(text: str) -> None:
    assert parse_l4t(text) is None


def test_musl_is_told_by_its_loader() -> None:
    files = {name: said for name, said in FILES.items() if "libc.so.6" not in name}
    found = platform({**files, "/lib/ld-musl-x86_64.so.1": ""})
    assert (found.libc, found.glibc) == ("musl", None)


def test_an_older_kernel_tells_its_processor_by_our_own_program() -> None:
    header = b"\x7fELF\x02\x01\x01" + bytes(11) + (183).to_bytes(2, "little")
    files = {name: said for name, said in FILES.items() if "arch" not in name}
    assert platform({**files, "/proc/self/exe": header}).machine == "aarch64"


@pytest.mark.parametrize(
    ("data", "folder", "state"),
    [
        (b"\x06\x00\x00\x00\x01", "efi/x", True),
        (b"\x06\x00\x00\x00\x00", "efi/x", False),
        (b"", "acpi/x", False),
        (b"", "efi/x", None),
        (b"", "", None),
    ],
)
def test_secure_boot_is_the_fifth_byte(data: bytes, folder: str, state: bool | None) -> None:
    files = {name: said for name, said in FILES.items() if name != SECURE_BOOT}
    if data:
        files[SECURE_BOOT] = data
    if folder:
        files[f"/sys/firmware/{folder}"] = ""
    assert platform(files).secure_boot is state


@pytest.mark.parametrize(
    ("files", "env", "kind"),
    [
        ({}, {}, ""),
        ({"/.dockerenv": ""}, {}, "docker"),
        ({"/run/.containerenv": ""}, {}, "podman"),
        ({"/.dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ({}, {"APPTAINER_CONTAINER": "/x.sif"}, "apptainer"),
        ({}, {"SINGULARITY_CONTAINER": "/x.sif"}, "apptainer"),
        ({"/.singularity.d/env": ""}, {}, "apptainer"),
        ({"/dev/lxd/sock": ""}, {}, "lxc"),
        ({"/proc/1/environ": "a=b\x00container=lxc\x00"}, {}, "lxc"),
        ({}, {"container": "podman"}, "podman"),
        ({}, {"container": "systemd-nspawn"}, "other"),
        ({}, {"ENROOT_ROOTFS": "/x"}, "enroot"),
        ({"/proc/1/cgroup": "4:memory:/docker/abc\n"}, {}, "docker"),
        ({"/proc/1/cgroup": "4:memory:/kubepods/besteffort/pod1\n"}, {}, "kubernetes"),
        (
            {
                "/proc/self/mountinfo": "1 2 0:3 / / rw - overlay overlay rw,"
                "upperdir=/run/containerd/io.containerd.snapshotter.v1.overlayfs/x"
            },
            {},
            "containerd",
        ),
        ({"/proc/self/mountinfo": "1 2 0:3 / / rw - ext4 /dev/vda1 rw"}, {}, ""),
        ({"/proc/self/mountinfo": "1 2 0:3 / /x rw - overlay o rw,upperdir=/docker/x"}, {}, ""),
    ],
)
def test_each_container_is_told_by_its_traces(
    files: dict[str, str], env: dict[str, str], kind: str
) -> None:
    assert container_kind(RecordedHost(files=files, env=env)) == kind


@pytest.mark.parametrize(
    ("env", "kind"),
    [
        ({}, ""),
        ({"SLURM_JOB_ID": "7"}, "slurm"),
        ({"KUBERNETES_SERVICE_HOST": "x"}, "kubernetes"),
        ({"LSB_JOBID": "7"}, "lsf"),
        ({"PBS_JOBID": "7"}, "pbs"),
    ],
)
def test_each_scheduler_is_told_by_its_variable(env: dict[str, str], kind: str) -> None:
    assert scheduler(env) == kind


@pytest.mark.parametrize(
    ("flags", "vendor", "product", "expected"),
    [
        ("fpu", "Dell Inc.", "PowerEdge", ""),
        ("fpu", "Microsoft Corporation", "Surface", ""),
        ("fpu hypervisor", "QEMU", "Standard PC", "kvm"),
        ("fpu hypervisor", "Microsoft Corporation", "Virtual Machine", "microsoft"),
        ("fpu hypervisor", "VMware, Inc.", "VMware7,1", "vmware"),
        ("fpu hypervisor", "Amazon EC2", "p5.48xlarge", "kvm"),
        ("fpu", "Amazon EC2", "g5.metal", ""),
        ("fpu hypervisor", "", "", "other"),
    ],
)
def test_a_virtual_machine_is_told_by_processor_and_maker(
    flags: str, vendor: str, product: str, expected: str
) -> None:
    files = {
        "/proc/cpuinfo": f"processor : 0\nflags\t: {flags}\n",
        "/sys/class/dmi/id/sys_vendor": vendor,
        "/sys/class/dmi/id/product_name": product,
    }
    assert hypervisor(RecordedHost(files=files), "6.8.0-generic") == expected


def test_the_sickest_machine_still_answers() -> None:
    seen = read_platform(RecordedHost())
    assert seen.facts["platform"].system == "Linux"
    assert seen.facts["platform"].glibc is None
    assert seen.facts["container"] == Container(kind="", scheduler="", dxg=False, wsl_libs=False)


@pytest.mark.parametrize("system", ["Windows", "Darwin"])
def test_other_systems_do_not_end_the_probe(system: str) -> None:
    env = {"PROCESSOR_ARCHITECTURE": "AMD64", "USERNAME": "ada", "COMPUTERNAME": "pc"}
    seen = read_platform(RecordedHost(system=system, env=env))
    assert seen.facts["platform"].system == system
    assert seen.facts["container"].kind == ""
    assert seen.facts["identity"].user == "ada"
    if system == "Windows":
        assert seen.facts["platform"].machine == "x86_64"


def test_this_machine_is_read_without_a_gap_in_what_pip_needs() -> None:
    found = read_platform(LocalHost()).facts["platform"]
    assert found.machine
    assert found.kernel


# --- environment ---------------------------------------------------------------------------------


def test_only_variables_that_matter_are_kept() -> None:
    env = {"CUDA_VISIBLE_DEVICES": "", "HOME": "/home/ada", "PATH": "/bin", "NCCL_DEBUG": "INFO"}
    assert read_environment(RecordedHost(env=env)).facts["env"] == {
        "CUDA_VISIBLE_DEVICES": "",
        "NCCL_DEBUG": "INFO",
    }


@pytest.mark.parametrize(
    "name",
    ["NVIDIA_API_KEY", "TORCH_HUB_TOKEN", "CUDA_SECRET", "UV_INDEX_HOME_PASSWORD", "AWS_TOKEN"],
)
def test_a_secret_is_never_kept(name: str) -> None:
    assert allowed({name: "value"}) == {}


def test_credentials_inside_of_an_index_are_not_kept() -> None:
    env = {"PIP_INDEX_URL": "https://ada:s3cret@host/simple", "UV_INDEX": "x=https://t@host/simple"}
    assert allowed(env) == {
        "PIP_INDEX_URL": "https://***@host/simple",
        "UV_INDEX": "x=https://***@host/simple",
    }
