"""Outputs about the system, its limits, devices, packages and libraries -> facts."""

from __future__ import annotations

import pytest
from packaging.version import Version
from reader_fixtures import shown

from cudadoctor.model.machine import Machine, lookup


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        (
            "Linux box 5.15.0-91-generic #101-Ubuntu SMP Tue Nov 14 2023 x86_64 x86_64 GNU/Linux",
            "platform.kernel",
            "5.15.0-91-generic",
        ),
        (
            "Linux pc 5.15.90.1-microsoft-standard-WSL2 #1 SMP Fri Jan 27 x86_64 GNU/Linux",
            "platform.wsl",
            2,
        ),
        ("Linux jet 5.10.104-tegra #1 SMP PREEMPT 2023 aarch64 GNU/Linux", "platform.jetson", True),
        ("Linux version 4.4.0-19041-Microsoft (Microsoft@Microsoft.com) (gcc)", "platform.wsl", 1),
        ('PRETTY_NAME="Rocky Linux 9.3 (Blue Onyx)"\n', "platform.distro", "rocky"),
        (
            'PRETTY_NAME="Debian GNU/Linux 12"\nVERSION_ID="12"\nID=debian\n',
            "platform.distro_version",
            "12",
        ),
        ("Description:\tUbuntu 20.04.6 LTS\n", "platform.distro_version", "20.04"),
        (
            "  Operating System: Fedora Linux 39\n  Kernel: Linux 6.6.8-200.fc39.x86_64",
            "platform.distro",
            "fedora",
        ),
        ("    Architecture: x86-64\n", "platform.machine", "x86_64"),
        ("Microsoft Windows [Version 10.0.19045.3693]", "platform.system", "Windows"),
        ("OS Name:                   Microsoft Windows 11 Pro", "platform.system", "Windows"),
        ("ldd (Ubuntu GLIBC 2.31-0ubuntu9.9) 2.31", "platform.glibc", Version("2.31")),
        ("ldd (GNU libc) 2.17", "platform.glibc", Version("2.17")),
        ("musl libc (x86_64)\nVersion 1.2.4", "platform.libc", "musl"),
        ("# R35 (release), REVISION: 4.1, GCID: 33958178", "platform.l4t", Version("35.4.1")),
        ("$ python --version\nPython 3.9.18\n", "python.version", Version("3.9.18")),
        ("SecureBoot enabled\n", "platform.secure_boot", True),
        ("open files                      (-n) 1024", "limits.nofile", 1024),
        ("max locked memory       (kbytes, -l) unlimited", "limits.memlock_bytes", -1),
        ("shm              64M     0   64M   0% /dev/shm", "limits.shm_bytes", 64 << 20),
        ("/dev/sda2       234G  234G     0 100% /", "limits.env_free_bytes", 0),
        ("Mem:            62Gi   12Gi\nSwap:          2.0Gi  0B", "limits.memory_bytes", 62 << 30),
        (
            "Unit nvidia-fabricmanager.service could not be found.",
            "driver.fabric.manager",
            "absent",
        ),
        (
            "● nvidia-fabricmanager.service - NVIDIA fabric manager service\n   Loaded: loaded\n"
            "   Active: failed (Result: exit-code) since Mon",
            "driver.fabric.manager",
            "failed",
        ),
        ("ls: cannot access '/dev/nvidia*': No such file or directory", "driver.nodes", ()),
        ("modinfo: ERROR: Module nvidia not found.", "driver.module_files", ()),
        ("\tlibcudart.so.11.0 => not found\n", "libraries.missing", ("libcudart.so.11.0",)),
        (
            "nvidia/535.104.05, 6.2.0-39-generic, x86_64: installed\n",
            "driver.dkms",
            ("nvidia/535.104.05, 6.2.0-39-generic, x86_64: installed",),
        ),
        (
            "Device-1: NVIDIA GA106 [GeForce RTX 3060] driver: nouveau v: kernel",
            "driver.modules",
            ("nouveau",),
        ),
    ],
)
def test_an_output_tells_its_fact(text: str, path: str, value: object) -> None:
    assert lookup(shown(text), path) == value


def names(m: Machine) -> list[tuple[str, str]]:
    return [(package.name, package.version) for package in m.driver.packages or ()]


@pytest.mark.parametrize(
    ("text", "name", "version"),
    [
        (
            "ii  nvidia-driver-535   535.104.05-0ubuntu0.22.04.4   amd64   NVIDIA",
            "nvidia-driver-535",
            "535.104.05-0ubuntu0.22.04.4",
        ),
        (
            "nvidia-driver-535/jammy-updates,now 535.104.05-0ubuntu0 amd64 [installed]",
            "nvidia-driver-535",
            "535.104.05-0ubuntu0",
        ),
        (
            "kmod-nvidia-latest-dkms-535.104.05-1.el8.x86_64",
            "kmod-nvidia-latest-dkms",
            "535.104.05-1.el8",
        ),
        ("nvidia-dkms 545.29.06-1", "nvidia-dkms", "545.29.06-1"),
    ],
)
def test_lists_of_system_packages_are_read(text: str, name: str, version: str) -> None:
    m = shown(text)
    assert names(m) == [(name, version)]
    assert m.driver.installed is True


def test_a_removed_package_is_not_installed() -> None:
    assert shown("rc  nvidia-dkms-470   470.1   amd64   gone").driver.packages is None


def test_modules_and_nodes_are_read() -> None:
    m = shown(
        "$ lsmod | grep nv\nnvidia_uvm           1527808  0\n"
        "nvidia              56717312  90 nvidia_uvm\n"
        "crw-rw---- 1 root video 195,   0 Jan 10 10:00 /dev/nvidia0\n"
    )
    assert (m.driver.modules, m.driver.loaded) == (("nvidia", "nvidia_uvm"), True)
    assert [(node.path, node.mode, node.group) for node in m.driver.nodes or ()] == [
        ("/dev/nvidia0", 0o660, "video")
    ]


def test_the_module_on_disk_is_read() -> None:
    m = shown(
        "filename:       /lib/modules/6.8.0-40-generic/updates/dkms/nvidia.ko\n"
        "version:        560.35.03\nlicense:        Dual MIT/GPL\n"
    )
    assert m.driver.module_files is not None
    module = m.driver.module_files[0]
    assert (module.kernel, str(module.version), module.flavour) == (
        "6.8.0-40-generic",
        "560.35.03",
        "open",
    )


def test_the_loaders_lines_tell_owner_and_version() -> None:
    m = shown("\tlibcudnn.so.8 => /usr/lib/x86_64-linux-gnu/libcudnn.so.8.9.7 (0x00007f)\n")
    assert [(library.owner, library.version) for library in m.libraries.copies or ()] == [
        ("system", "8.9.7")
    ]


def test_containers_own_tool_and_gpustat_are_read() -> None:
    m = shown(
        "NVRM version:   535.104.05\nCUDA version:   12.2\n\nDevice Index:   0\nDevice Minor:   0\n"
        "Model:          NVIDIA L4\nBrand:          NVIDIA\nGPU UUID:       GPU-1\n"
        "Architecture:   8.9\n"
    )
    assert m.driver.cuda == Version("12.2")
    assert [gpu.capability for gpu in m.gpus or ()] == [Version("8.9")]
    stat = shown("[0] NVIDIA GeForce RTX 3090 | 45'C,  12 % |  1024 / 24576 MB | ada(900M)")
    assert [gpu.memory_bytes for gpu in stat.gpus or ()] == [24576 << 20]


def test_no_text_makes_a_reader_fail() -> None:
    for text in (
        "",
        "\n\n",
        "PyTorch version:",
        "GPU 0:",
        "Name: torch",
        "|  0",
        "torch==",
        "nvcc",
        "%% /",
    ):
        shown(text)
