"""Remedies on every platform, and what none of them may ever say."""

from __future__ import annotations

import re

import msgspec
import pytest
from packaging.version import Version
from remedy_fixtures import (
    BLACKWELL,
    KB,
    PASCAL,
    every_machine,
    every_remedy,
    machine,
    never,
    with_gpu,
    words_of,
)

from cudadoctor.installers import registry
from cudadoctor.model.findings import PackageChange, Remedy, Risk
from cudadoctor.model.machine import Machine
from cudadoctor.plan import remedies
from cudadoctor.plan.remedies.process import side_of
from cudadoctor.plan.remedies.torch import remedy_for, with_own_torch

ALL = list(every_machine())

DRIVER = re.compile(
    r"(apt-get|dnf|zypper|pacman|ubuntu-drivers|akmods|dkms) .*"
    r"(install|-S\w*|enable|upgrade|autoinstall|--force)(?!.* nvidia-container-toolkit$)"
)
SHARED = re.compile(r"nvidia-smi|modprobe|systemctl|reboot|apt-get|dnf|usermod")


@pytest.mark.parametrize("m", [m for _, m in ALL], ids=[name for name, _ in ALL])
def test_a_remedy_is_whole_harmless_and_in_its_place(m: Machine) -> None:
    side = side_of(m)
    for function, found in every_remedy(m):
        ids = [remedy.id for remedy in found]
        assert len(ids) == len(set(ids)), function
        for remedy in found:
            check_that_a_step_can_be_made_of(remedy, function)
            check_that_it_never_says_what_must_not_be_said(remedy, m, function)
            if side in ("wsl", "container", "jetson", "cluster"):
                check_that_no_driver_is_installed(remedy, m, function)


def check_that_it_never_says_what_must_not_be_said(
    remedy: Remedy, m: Machine, function: str
) -> None:
    text = words_of(remedy)
    if remedy.packages is not None:
        written = registry.write(m, KB, remedy.packages)
        text += "\n" + "\n".join(" ".join(argv) for argv in written.commands)
    for pattern, why in never(remedy.id):
        assert not re.search(pattern, text), f"{function}: {why}: {text}"


def check_that_no_driver_is_installed(remedy: Remedy, m: Machine, function: str) -> None:
    """Not into WSL, a container, a Jetson or a shared node."""
    for argv in remedy.commands:
        line = " ".join(argv)
        jetpack = m.platform.jetson and line == "apt-get dist-upgrade -y"
        if remedy.where != "host" and not jetpack:
            assert not DRIVER.search(line), f"{function}: {line}"
        if remedy.where != "admin" and m.container.scheduler:
            assert not SHARED.search(line), f"{function}: {line}"


def check_that_a_step_can_be_made_of(remedy: Remedy, function: str) -> None:
    assert re.fullmatch(r"[a-z0-9][a-z0-9-]*", remedy.id), remedy.id
    assert remedy.title and not remedy.title.endswith("."), remedy.title
    says = (remedy.commands, remedy.manual, remedy.edits, remedy.packages, remedy.variables)
    assert any(says), f"{function} says nothing"
    assert all(word for argv in remedy.commands for word in argv)
    assert not any("sudo" in argv for argv in remedy.commands)
    assert not any(re.search(r"[|;`]|\$\(|&&", " ".join(argv)) for argv in remedy.commands)
    if remedy.commands and remedy.where == "here" and remedy.risk is Risk.SYSTEM:
        assert remedy.needs_root, f"{function} changes the system without root"


def packages_of(found: tuple[Remedy, ...]) -> tuple[tuple[str, ...], tuple[str, ...], str | None]:
    change = found[0].packages
    assert change is not None
    return change.install, change.remove, change.index


OLD_DRIVER = {"kernel": "535.104.05", "reported": "535.104.05", "library": "535.104.05"}


def test_cuda_13_to_12_first_removes_all_that_only_torch_needed() -> None:
    m = machine(driver=OLD_DRIVER | {"cuda": "12.2"})
    install, remove, index = packages_of(remedies.install_torch(m, KB))
    assert install[0] == "torch==2.14.1"
    assert index == "https://download.pytorch.org/whl/cu126"
    assert remove[0] == "torch"
    libraries = {
        package.name
        for package in m.packages or ()
        if package.name.startswith(("nvidia-", "cuda-"))
    }
    assert libraries - set(remove) <= {"nvidia-ml-py", "cuda-pathfinder"}
    assert "triton" in remove
    assert not {"numpy", "accelerate", "nvidia-ml-py"} & set(remove)


def test_a_wheel_that_another_package_needs_stays() -> None:
    m = machine(driver=OLD_DRIVER | {"cuda": "12.2"})
    assert m.packages is not None
    other = type(m.packages[0])(
        name="cupy-cuda13x", version="14.0", requires=("nvidia-cublas; extra == 'ctk'",)
    )
    m = msgspec.structs.replace(m, packages=(*m.packages, other))
    _, remove, _ = packages_of(remedies.install_torch(m, KB))
    assert "nvidia-cublas" not in remove
    assert "nvidia-cudnn-cu13" in remove


def test_a_library_that_would_collide_is_named_with_its_owner() -> None:
    m = machine(driver=OLD_DRIVER | {"cuda": "12.2"})
    assert m.packages is not None
    other = type(m.packages[0])(name="jax-plugin", version="1", requires=("nvidia-cudnn-cu13",))
    m = msgspec.structs.replace(m, packages=(*m.packages, other))
    (found,) = remedies.install_torch(m, KB)
    assert "jax-plugin needs nvidia-cudnn-cu13" in (found.note or "")


def test_a_newer_release_of_the_same_variant_removes_nothing() -> None:
    m = machine(torch={"version": "2.13.0", "text": "2.13.0+cu130"})
    _, remove, _ = packages_of(remedies.install_torch(m, KB, keep="2.14.1"))
    assert remove == ()


def test_a_cpu_build_goes_before_the_cuda_build_of_the_same_release_comes() -> None:
    m = machine("cpu-linux")
    m4090 = machine()
    m = msgspec.structs.replace(m, gpus=m4090.gpus, pci=m4090.pci, driver=m4090.driver)
    install, remove, _ = packages_of(remedies.install_torch(m, KB))
    assert install[0] == "torch==2.14.1"
    assert "torch" in remove


def test_a_fresh_install_brings_torchvision_too() -> None:
    torch = {"installed": False, "version": None, "build": None, "cuda": None, "text": None}
    install, remove, _ = packages_of(remedies.install_torch(machine(torch=torch, packages=[]), KB))
    assert [requirement.split("==")[0] for requirement in install] == ["torch", "torchvision"]
    assert remove == ()


@pytest.mark.parametrize(
    ("keep", "kept"),
    [("2.14.1+cu126", True), ("2.14.1+cu130", True), ("2.15.0+cu132", False)],
)
def test_the_last_torchaudio_stays_with_the_cuda_that_it_was_built_for(
    keep: str, kept: bool
) -> None:
    m = machine(torch={"version": "2.11.0", "text": "2.11.0+cu130"})
    assert m.packages is not None
    audio = type(m.packages[0])(name="torchaudio", version="2.11.0", requires=("torch",))
    m = msgspec.structs.replace(m, packages=(*m.packages, audio))
    (found,) = remedies.install_torch(m, KB, keep=keep)
    assert found.packages is not None
    assert ("torchaudio==2.11.0" in found.packages.install) is kept
    assert ("The last torchaudio release, 2.11.0," in (found.note or "")) is not kept
    assert kept or "torchaudio" in found.packages.remove


@pytest.mark.parametrize("installed", ["0.29.1", "0.21.0"])
def test_torch_comes_back_with_the_companion_that_belongs_to_it(installed: str) -> None:
    m = machine()
    assert m.packages is not None
    vision = type(m.packages[0])(name="torchvision", version=installed)
    rest = tuple(package for package in m.packages if package.name != "torchvision")
    (found,) = remedies.reinstall_torch(msgspec.structs.replace(m, packages=(*rest, vision)), KB)
    assert found.packages is not None
    assert found.packages.install == ("torch==2.14.1", "torchvision==0.29.1")


def test_an_environment_that_is_made_for_a_companion_gets_the_installed_torch_too() -> None:
    m = machine()
    alone = PackageChange(install=("torchvision==0.29.1",), then=("numpy<2",))
    found = with_own_torch(alone, m, KB)
    assert found.install == ("torch==2.14.1", "torchvision==0.29.1")
    assert found.then == ("numpy<2",)
    whole = PackageChange(install=("torch==2.13.0",))
    assert with_own_torch(whole, m, KB) is whole
    none = machine(torch={"installed": False, "version": None, "build": None, "cuda": None})
    assert with_own_torch(alone, none, KB) is alone


def test_a_companion_without_a_release_for_that_torch_is_taken_out_and_named() -> None:
    m = machine()
    assert m.packages is not None
    text = type(m.packages[0])(name="torchtext", version="0.18.0", requires=("torch>=2.3.0",))
    m = msgspec.structs.replace(m, packages=(*m.packages, text))
    build = KB.build_of(Version("2.15.0"), "cu132", "linux_x86_64")
    assert build is not None
    found = remedy_for(build, m, KB)
    assert found.packages is not None
    assert not any("torchtext" in requirement for requirement in found.packages.install)
    assert "torchtext" in found.packages.remove
    assert "torchtext has no release" in (found.note or "")


def test_an_extension_that_breaks_with_the_new_torch_is_named() -> None:
    m = machine()
    assert m.packages is not None
    flash = type(m.packages[0])(name="flash-attn", version="2.8.3", requires=("torch",))
    m = msgspec.structs.replace(m, packages=(*m.packages, flash))
    build = KB.build_of(Version("2.15.0"), "cu126", "linux_x86_64")
    assert build is not None
    assert "flash-attn 2.8.3" in (remedy_for(build, m, KB).note or "")


def test_the_download_is_announced() -> None:
    torch = {"installed": False, "version": None, "build": None, "cuda": None, "text": None}
    (found,) = remedies.install_torch(machine(torch=torch, packages=[]), KB)
    assert found.packages is not None
    assert (found.packages.download_bytes or 0) > 2 * 10**9, "the CUDA libraries count"


def test_what_is_wrong_with_a_last_resort_is_said() -> None:
    kepler = [{"index": 0, "name": "Tesla K80", "capability": "3.7"}]
    torch = {"installed": False, "version": None, "build": None, "cuda": None, "text": None}
    driver = {"kernel": "470.256.02", "library": "470.256.02", "cuda": "11.4"}
    m = machine(gpus=kepler, pci=[], driver=driver, torch=torch, packages=[])
    (disputed,) = remedies.install_torch(m, KB, "2.6")
    assert "Sources disagree" in (disputed.note or "")
    assert "torch.backends.cudnn.enabled = False" in (disputed.note or "")
    (sound,) = remedies.install_torch(m, KB)
    assert "cudnn" not in (sound.note or "")


def test_no_caveat_is_about_a_gpu_that_a_build_leaves_out() -> None:
    two = [("NVIDIA GeForce GTX 1080", "6.1"), ("NVIDIA GeForce RTX 5090", "12.0")]
    gpus = [{"index": n, "name": name, "capability": of} for n, (name, of) in enumerate(two)]
    torch = {"installed": False, "version": None, "build": None, "cuda": None, "text": None}
    m = machine(gpus=gpus, pci=[], torch=torch, packages=[])
    found = remedies.install_torch(m, KB)
    assert any("does not support the GeForce GTX 1080" in (remedy.note or "") for remedy in found)
    assert not any("cudnn.enabled" in (remedy.note or "") for remedy in found)


def test_a_pascal_owner_is_never_told_to_go_past_the_last_branch() -> None:
    m = with_gpu(PASCAL)
    assert remedies.upgrade_driver(m, KB, 590) == ()
    (found,) = remedies.upgrade_driver(m, KB, 580)
    assert "nvidia-driver-580" in found.commands[-1]
    assert not any("open" in word for argv in found.commands for word in argv)


def test_a_branch_without_updates_is_not_installed_anew() -> None:
    (found,) = remedies.upgrade_driver(machine(), KB, 525)
    assert found.title == "Install NVIDIA driver 580"
    kepler = {"name": "Tesla K80", "device_id": "102d", "capability": "3.7"}
    (found,) = remedies.upgrade_driver(with_gpu(kepler), KB, 450)
    assert found.title == "Install NVIDIA driver 470"


def test_blackwell_gets_the_open_modules() -> None:
    (found,) = remedies.upgrade_driver(with_gpu(BLACKWELL), KB, 580)
    assert found.commands[-1][-1] == "nvidia-driver-580-open"
    assert found.reboot and found.needs_root


def test_pascal_and_blackwell_together_have_no_common_driver() -> None:
    two = [{"index": 0} | PASCAL, {"index": 1} | BLACKWELL]
    assert remedies.install_driver(machine(gpus=two, pci=[]), KB) == ()


@pytest.mark.parametrize(
    ("distro", "version", "expected"),
    [
        ("ubuntu", "24.04", "apt-get install -y nvidia-driver-580-open"),
        ("debian", "13", "apt-get install -y nvidia-driver-pinning-580"),
        ("rocky", "9.4", "dnf module enable -y nvidia-driver:580-open"),
        ("almalinux", "10.0", "dnf install -y --allowerasing nvidia-open"),
        ("fedora", "43", "dnf install -y akmod-nvidia xorg-x11-drv-nvidia-cuda"),
        (
            *("opensuse-leap", "15.6"),
            "zypper install -y --auto-agree-with-licenses nvidia-open-driver-G07-signed-kmp-meta",
        ),
        ("arch", None, "pacman -Syu nvidia-open nvidia-utils"),
    ],
)
def test_each_distribution_has_its_own_packages(
    distro: str, version: str | None, expected: str
) -> None:
    system: dict[str, object] = {"distro": distro, "distro_version": version, "distro_like": []}
    (found,) = remedies.upgrade_driver(machine(platform=system), KB, 580)
    assert any(" ".join(argv).startswith(expected) for argv in found.commands), found.commands


def test_the_kernel_headers_are_those_of_the_running_kernel() -> None:
    m = machine(platform={"kernel": "6.8.0-31-generic"})
    (found,) = remedies.load_driver(m, "not-built")
    assert ("apt-get", "install", "-y", "linux-headers-6.8.0-31-generic") in found.commands


def test_a_share_of_a_gpu_gets_no_public_driver() -> None:
    m = with_gpu({"virtualization": "vgpu", "device_id": "2684"})
    (found,) = remedies.upgrade_driver(m, KB, 580)
    assert found.where == "admin" and not found.commands


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("docker", "--gpus all"),
        ("podman", "--device nvidia.com/gpu=all"),
        ("containerd", "--gpus all"),
        ("enroot", "NVIDIA_VISIBLE_DEVICES=all"),
        ("apptainer", "--nv"),
        ("other", "DeviceAllow=/dev/nvidia0"),
        ("kubernetes", "nvidia.com/gpu: 1"),
    ],
)
def test_each_box_is_given_its_gpu_in_its_own_way(kind: str, said: str) -> None:
    found = remedies.grant_gpu(machine(container={"kind": kind}))[0]
    assert found.where == "container"
    assert said in words_of(found)


def test_a_slurm_job_asks_for_its_gpu_and_its_variable_is_left_alone() -> None:
    m = machine(container={"scheduler": "slurm"})
    assert remedies.unset_variables(m, "CUDA_VISIBLE_DEVICES") == ()
    (found,) = remedies.grant_gpu(m)
    assert found.commands == (("srun", "--gres=gpu:1", "--pty", "bash"),)
    assert found.edits[0].what == "#SBATCH --gres=gpu:1"


def test_shared_memory_in_a_pod_is_a_volume() -> None:
    m = machine(container={"kind": "kubernetes"})
    (found,) = remedies.container_option(m, "shm", "More shared memory", "--shm-size=8g")
    assert "sizeLimit: 8Gi" in found.edits[0].what


def test_there_is_no_container_option_without_a_container() -> None:
    assert remedies.container_option(machine(), "shm", "More", "--shm-size=8g") == ()


def test_groups_are_those_that_own_the_nodes() -> None:
    nodes = [{"path": "/dev/nvidia0", "errno": 13, "mode": 432, "group": "gpuusers"}]
    (found,) = remedies.device_groups(machine(driver={"nodes": nodes}))
    assert found.commands == (("usermod", "-aG", "gpuusers", "ada"),)


def test_jetpack_6_takes_its_wheels_from_its_own_index() -> None:
    m = machine("orin-jetson", platform={"l4t": "36.3"})
    for found in (remedies.jetson_torch(m, KB), remedies.install_torch(m, KB)):
        assert found[0].packages is not None
        assert "/jp6/cu126/" in (found[0].packages.index or "")


def test_the_wrong_python_is_left_for_the_nearest_one() -> None:
    m = machine(python={"version": "3.9.2"})
    (found,) = remedies.install_python(m, KB, ("3.10", "3.11", "3.12"))
    assert "3.10" in found.commands[2]
    m = machine(python={"version": "3.15.0"})
    (found,) = remedies.install_python(m, KB, ("3.10", "3.11", "3.12", "3.13t"))
    assert "3.12" in found.commands[2]
    assert any("torch==" in word for argv in found.commands for word in argv)


def test_the_installed_release_comes_back_with_its_libraries() -> None:
    m = machine()
    install, remove, index = packages_of(remedies.reinstall_torch(m, KB))
    assert install[0] == f"torch=={Version('2.14.1')}"
    assert index is None
    assert {"torch", "nvidia-cublas", "nvidia-cudnn-cu13"} <= set(remove)


@pytest.mark.parametrize("text", ["2.9.0a0+git1234", "2.8.0a0+nv25.06", "2.14.0.dev20260801+cu130"])
def test_a_build_of_unknown_origin_is_not_reinstalled(text: str) -> None:
    m = machine(torch={"version": text, "text": text})
    assert remedies.reinstall_torch(m, KB) == ()


UBUNTUS = [{"name": "nvidia-driver-570-server", "version": "570.133.20-0ubuntu0.24.04.1"}]
NVIDIAS = [{"name": "nvidia-open", "version": "580.95.05-1"}]


@pytest.mark.parametrize(
    ("distro", "driver", "packages", "installs"),
    [
        ("ubuntu", "570.133.20", UBUNTUS, "nvidia-fabricmanager-570=570.133.20-*"),
        ("ubuntu", "580.95.05", NVIDIAS, "nvidia-fabricmanager=580.95.05-*"),
        ("ubuntu", "580.95.05", None, "nvidia-fabricmanager-580=580.95.05-*"),
        ("debian", "570.133.20", [], "nvidia-fabricmanager-570=570.133.20-*"),
        ("rocky", "570.133.20", [], "nvidia-fabric-manager-570.133.20"),
        ("rocky", "580.95.05", [], "nvidia-fabricmanager-580.95.05"),
        ("sles", "580.95.05", [], "nvidia-fabricmanager=580.95.05"),
    ],
)
def test_the_fabric_manager_is_of_the_drivers_very_version(
    distro: str, driver: str, packages: list[dict[str, str]] | None, installs: str
) -> None:
    if packages is not None:
        packages = [package | {"manager": "dpkg"} for package in packages]
    m = machine(
        platform={"distro": distro, "distro_version": "9", "distro_like": []},
        driver={"kernel": driver, "packages": packages, "fabric": {"manager": "absent"}},
    )
    commands = [" ".join(argv) for argv in remedies.fabric_manager(m)]
    assert commands[-2].split()[1:] == ["install", "-y", installs]
    assert commands[-1] == "systemctl enable --now nvidia-fabricmanager"


def test_a_fabric_manager_of_the_right_version_is_only_started() -> None:
    fabric = {"manager": "failed", "version": "580.95.05"}
    m = machine(driver={"kernel": "580.95.05", "fabric": fabric})
    (command,) = remedies.fabric_manager(m)
    assert command == ("systemctl", "enable", "--now", "nvidia-fabricmanager")
    assert remedies.fabric_manager(machine(platform={"distro": "arch"})) == ()


def _of_dpkg(*names: str) -> list[dict[str, str]]:
    return [{"name": name, "version": "580.95.05-1", "manager": "dpkg"} for name in names]


@pytest.mark.parametrize(
    ("distro", "kernel", "names", "expected"),
    [
        (
            *("ubuntu", "6.8.0-90-generic"),
            ("linux-modules-nvidia-580-open-6.8.0-87-generic",),
            "apt-get install -y linux-modules-nvidia-580-open-6.8.0-90-generic",
        ),
        ("ubuntu", "6.8.0-90-generic", ("nvidia-dkms-580-open",), "dkms autoinstall"),
        ("fedora", "6.17.7-300.fc43.x86_64", ("akmod-nvidia",), "akmods --force"),
        (
            "rocky",
            "5.14.0-570.el9.x86_64",
            ("kmod-nvidia-580.95.05-5.14.0-503.11.1",),
            "dnf install -y --refresh kmod-nvidia-580.95.05-5.14.0-570",
        ),
        ("rocky", "5.14.0-570.el9.x86_64", ("kmod-nvidia",), "dnf upgrade -y"),
        (
            *("ol", "5.15.0-300.163.18.el9uek.x86_64"),
            ("kmod-nvidia-open-dkms",),
            "dnf install -y kernel-uek-devel-5.15.0-300.163.18.el9uek.x86_64",
        ),
        ("arch", "6.17.8-arch1-1", ("nvidia-open",), "pacman -Syu"),
        ("arch", "6.17.8-zen1-1-zen", ("nvidia-open-dkms",), "pacman -Syu linux-zen-headers"),
    ],
)
def test_a_module_comes_for_this_kernel_in_the_form_that_the_driver_has(
    distro: str, kernel: str, names: tuple[str, ...], expected: str
) -> None:
    system = {"distro": distro, "distro_version": "9", "distro_like": [], "kernel": kernel}
    m = machine(platform=system, driver={"packages": _of_dpkg(*names), "dkms": []})
    (found,) = remedies.load_driver(m, "not-built")
    lines = [" ".join(argv) for argv in found.commands]
    assert any(line.startswith(expected) for line in lines), lines


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("/etc/modprobe.d/gpu.conf", "sed -i -e"),
        ("/lib/modprobe.d/blacklist-nvidia.conf", "prime-select on-demand"),
        ("/proc/cmdline", "update-grub"),
    ],
)
def test_what_blocks_the_module_goes_by_where_it_stands(file: str, expected: str) -> None:
    (found,) = remedies.load_driver(machine(driver={"blacklisted_by": [file]}), "blacklisted")
    lines = [" ".join(argv) for argv in found.commands]
    assert any(line.startswith(expected) for line in lines), lines


def test_a_packages_own_blacklist_is_replaced_by_a_file_of_that_name() -> None:
    driver = {"blacklisted_by": ["/usr/lib/modprobe.d/50-vendor.conf"]}
    (found,) = remedies.load_driver(machine(driver=driver), "blacklisted")
    (edit,) = found.edits
    assert (edit.file, edit.mode) == ("/etc/modprobe.d/50-vendor.conf", "write")


def test_a_driver_of_no_package_goes_before_the_packages_come() -> None:
    (found,) = remedies.upgrade_driver(machine(driver={"packages": []}), KB, 580)
    assert found.commands[0] == ("nvidia-uninstall", "--silent")
    (found,) = remedies.upgrade_driver(machine(driver={"packages": None}), KB, 580)
    assert ("nvidia-uninstall", "--silent") not in found.commands


def test_debians_own_driver_does_where_it_is_new_enough() -> None:
    debian = {"distro": "debian", "distro_version": "12", "kernel": "6.1.0-40-amd64"}
    sick: dict[str, object] = {"installed": False, "kernel": None, "reported": None}
    sick |= {"library": None, "packages": []}
    torch = {"cuda": "12.6", "version": "2.14.1", "text": "2.14.1+cu126"}
    (found,) = remedies.install_driver(machine(platform=debian, driver=sick, torch=torch), KB)
    assert found.title == "Install Debian's own NVIDIA driver (535)"
    (found,) = remedies.install_driver(machine(platform=debian, driver=sick), KB)
    assert "nvidia-driver-pinning-580" in found.commands[-2]


def test_a_host_that_runs_ubuntu_gets_ubuntus_commands() -> None:
    m = machine(container={"kind": "docker"}, platform={"distro": "debian"})
    (found,) = remedies.upgrade_driver(m, KB, 580)
    assert found.where == "host"
    assert found.commands[-1][-1] == "nvidia-driver-580-open"
    m = machine(container={"kind": "docker"}, platform={"kernel": "5.14.0-570.el9.x86_64"})
    (found,) = remedies.upgrade_driver(m, KB, 580)
    assert not found.commands


@pytest.mark.parametrize(
    ("module", "package", "expected"),
    [
        ("580.95.05", "580.105.08", "dkms autoinstall"),
        ("575.64.05", "575.64.05", "apt-get install -y nvidia-driver-580-open"),
    ],
)
def test_module_and_libraries_of_two_versions_become_one(
    module: str, package: str, expected: str
) -> None:
    packages = [{"name": "nvidia-dkms-580-open", "version": package, "manager": "dpkg"}]
    loaded = {"kernel": module, "library": "580.105.08", "packages": packages}
    (found,) = remedies.one_version(machine(driver=loaded), KB)
    assert expected in [" ".join(argv) for argv in found.commands]
