"""Access to the GPU in the words of each runtime, by what a container tells of its host."""

from __future__ import annotations

from typing import Any

import pytest
from remedy_fixtures import machine, words_of

from cudadoctor.model.findings import Remedy
from cudadoctor.model.machine import Machine
from cudadoctor.plan import remedies
from cudadoctor.plan.remedies.process import lasting
from cudadoctor.render.shells import step_lines


def boxed(kind: str, kernel: str = "6.8.0-31-generic", host: str | None = None) -> Machine:
    return machine(
        container={"kind": kind},
        platform={"kernel": kernel, "root": True},
        identity={"user": "root", "host": host},
    )


def commands(remedy: Remedy) -> list[str]:
    return [" ".join(argv) for argv in remedy.commands]


@pytest.mark.parametrize(
    ("kernel", "manager"),
    [
        ("6.8.0-31-generic", "apt-get"),
        ("6.8.0-1015-azure", "apt-get"),
        ("6.1.0-18-cloud-amd64", "apt-get"),
        ("6.12.38+deb13-amd64", "apt-get"),
        ("5.14.0-427.el9.x86_64", "dnf"),
        ("6.11.4-301.fc41.x86_64", "dnf"),
        ("6.1.102-108.177.amzn2023.x86_64", "dnf"),
        ("6.4.0-150600.23-default", "zypper"),
        ("5.14.21-150400.14.10-azure", None),
        ("6.6.54-1-lts", None),
    ],
)
def test_the_kernel_tells_how_the_host_installs_the_toolkit(
    kernel: str, manager: str | None
) -> None:
    _, toolkit = remedies.grant_gpu(boxed("docker", kernel))
    installs = [line for line in commands(toolkit) if "install" in line]
    assert [line.split()[0] for line in installs] == ([manager] if manager else [])
    assert commands(toolkit)[-1] == "systemctl restart docker"
    assert bool(toolkit.manual) == (manager is None)
    assert toolkit.where == "host" and toolkit.needs_root


def test_root_of_a_container_is_not_root_of_its_host() -> None:
    m = boxed("docker")
    _, toolkit = remedies.grant_gpu(m)
    step: Any = toolkit
    assert all(
        line.startswith("sudo ")
        for line in step_lines(step, m)
        if line.startswith(("sudo ", "apt-get", "nvidia-ctk", "systemctl"))
    )
    assert "sudo systemctl restart docker" in step_lines(step, m)


def test_docker_desktop_needs_no_toolkit() -> None:
    found = remedies.grant_gpu(machine("rtx3060-wsl", container={"kind": "docker"}))
    assert [remedy.id for remedy in found] == ["grant-gpu"]


@pytest.mark.parametrize(
    ("kernel", "ids"),
    [
        ("6.8.12-4-pve", ["grant-gpu"]),
        ("6.8.0-31-generic", ["grant-gpu", "grant-gpu-incus", "grant-gpu-lxc"]),
    ],
)
def test_proxmox_is_not_lxd(kernel: str, ids: list[str]) -> None:
    found = remedies.grant_gpu(boxed("lxc", kernel, "trainer"))
    assert [remedy.id for remedy in found] == ids
    words = words_of(found[0])
    assert ("lxc config" in words) != ("dev0: /dev/nvidia0" in words)
    assert ("lxc config device add trainer gpu gpu" in commands(found[0])) == (len(ids) > 1)


def test_an_older_proxmox_gets_the_lines_of_lxc() -> None:
    (found,) = remedies.grant_gpu(boxed("lxc", "5.15.108-1-pve"))
    assert "lxc.cgroup2.devices.allow: c 195:* rwm" in found.edits[0].what
    assert "dev0" not in found.edits[0].what


@pytest.mark.parametrize(("host", "known"), [("3f2a9c1b7d5e", True), ("gpu-box", False)])
def test_a_container_is_restarted_by_its_id(host: str, known: bool) -> None:
    first, links = remedies.restart_container(boxed("docker", host=host))
    assert commands(first) == (["docker restart 3f2a9c1b7d5e"] if known else [])
    assert "create-dev-char-symlinks" in commands(links)[0]


def test_podman_on_fedora_needs_a_label() -> None:
    fedora = remedies.grant_gpu(boxed("podman", "6.11.4-301.fc41.x86_64"))[0]
    debian = remedies.grant_gpu(boxed("podman", "6.1.0-18-amd64"))[0]
    assert "--security-opt=label=disable" in commands(fedora)[0]
    assert "--security-opt" not in words_of(debian)


def refused(group: str, distro: str = "ubuntu") -> Machine:
    nodes = [{"path": "/dev/nvidia0", "errno": 13, "mode": 384, "group": group}]
    return machine(driver={"nodes": nodes}, platform={"distro": distro, "distro_like": []})


def test_nodes_of_root_alone_need_an_option_of_the_module() -> None:
    (found,) = remedies.device_groups(refused("root"))
    assert "NVreg_DeviceFileGID=44" in found.edits[0].what and found.edits[0].mode == "write"
    assert found.reboot and commands(found)[0] == "usermod -aG video ada"
    (found,) = remedies.device_groups(refused("root", "arch"))
    assert not found.commands and "getent group video" in (found.manual or "")
    (found,) = remedies.device_groups(refused("video"))
    assert not found.edits and not found.reboot


@pytest.mark.parametrize(
    ("kernel", "command"),
    [("6.8.0-31-generic", ("update-grub",)), ("5.14.0-427.13.1.el9_4.x86_64", ("grubby",))],
)
def test_the_host_of_a_container_gets_the_kernel_line_of_its_own_distribution(
    kernel: str, command: tuple[str, ...]
) -> None:
    m = machine(container={"kind": "docker"}, platform={"kernel": kernel, "virtual": None})
    step = remedies.without_p2p(m, None)[-1]
    assert step.where == "host"
    assert step.commands[0][: len(command)] == command


@pytest.mark.parametrize(
    ("distro", "said"),
    [
        ("debian", 'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX pci=realloc"'),
        ("rocky", "--args=pci=realloc"),
        ("nixos", 'boot.kernelParams = [ "pci=realloc" ];'),
        ("arch", "With systemd-boot, add pci=realloc to the options line"),
        ("sles", "grub2-mkconfig"),
        ("opensuse-tumbleweed", "With systemd-boot"),
    ],
)
def test_an_option_gets_onto_the_kernel_line_of_each_distribution(distro: str, said: str) -> None:
    m = machine(platform={"distro": distro, "distro_like": [], "virtual": None})
    (step,) = remedies.kernel_option(m, "pci-realloc", "Reassign", "pci=realloc", "It may help.")
    written = [edit.what for edit in step.edits]
    assert said in " ".join([*written, *commands(step), step.manual or ""])
    assert step.reboot and step.needs_root
    assert bool(step.commands) is (distro in ("debian", "rocky", "sles"))


def test_a_limit_that_may_be_raised_is_raised_and_one_of_slurmd_is_not() -> None:
    job: dict[str, Any] = {"container": {"scheduler": "slurm"}}
    (own,) = remedies.raise_memlock(machine(**job, limits={"memlock_hard_bytes": -1}))
    assert commands(own) == ["ulimit -l unlimited"]
    (theirs,) = remedies.raise_memlock(machine(**job, limits={"memlock_hard_bytes": 65536}))
    assert theirs.where == "admin"
    first, second = remedies.raise_memlock(machine(**job))
    assert "ulimit -Hl" in (first.note or "")
    assert (first.edits[0].what, second.where) == ("#SBATCH --propagate=NONE", "admin")


NCCL = "/apps/software/NCCL/2.18.3-GCCcore-12.3.0/lib/libnccl.so.2"


def test_a_module_is_named_only_if_it_is_loaded() -> None:
    job: dict[str, Any] = {"container": {"scheduler": "lsf"}}
    loaded = {"LD_PRELOAD": NCCL, "LOADEDMODULES": "GCC/12.3.0:NCCL/2.18.3-GCCcore-12.3.0"}
    said = lasting(machine(**job, env=loaded), "LD_PRELOAD")
    assert "`module unload NCCL/2.18.3-GCCcore-12.3.0`" in said
    assert "grep -n LD_PRELOAD" in said
    for env in (
        {"LD_PRELOAD": NCCL},
        {"LD_PRELOAD": NCCL, "LOADEDMODULES": "GCC/12.3.0:NCCL/2.20.5-GCCcore-13.2.0"},
        {"LD_PRELOAD": NCCL, "LOADEDMODULES": "NCCL/2.18.3-GCCcore-12.3.0;reboot"},
    ):
        said = lasting(machine(**job, env=env), "LD_PRELOAD")
        assert "module unload" not in said
        assert "grep -n LD_PRELOAD" in said


@pytest.mark.parametrize(
    ("changes", "first"),
    [
        ({}, "p2p-way"),
        # Nobody here restarts the host, or it is not known how that one starts.
        ({"container": {"kind": "docker"}}, "without-p2p"),
        ({"container": {"scheduler": "slurm"}}, "without-p2p"),
        ({"platform": {"kernel": "6.8.12-4-pve"}}, "without-p2p"),
        ({"platform": {"distro": "opensuse-tumbleweed"}}, "without-p2p"),
    ],
)
def test_what_the_log_proves_is_cured_for_good_where_a_command_can(
    changes: dict[str, Any], first: str
) -> None:
    found = remedies.without_p2p(machine(**changes), "pci.0.iommu", proven=True)
    assert found[0].id == first
    assert sorted(step.id for step in found) == ["p2p-way", "without-p2p"]
    quick = next(step for step in found if step.id == "without-p2p")
    assert ("until you can reboot" in (quick.note or "")) == (first == "p2p-way")


@pytest.mark.parametrize(
    ("acs", "advised"),
    [((False, False), False), ((False, True), True), ((None,), True), ((), True)],
)
def test_acs_is_turned_off_only_where_it_may_be_on(
    acs: tuple[bool | None, ...], advised: bool
) -> None:
    card = {"address": "01:00.0", "vendor": "nvidia", "device_id": "26b1", "class_id": "0300"}
    m = machine(pci=[card | {"acs": known} for known in acs])
    assert ("ACS" in (remedies.without_p2p(m, None)[-1].note or "")) == advised


@pytest.mark.parametrize(
    ("platform", "size", "said", "ways"),
    [
        (
            {"virtual": "kvm", "product": "Standard PC (i440FX + PIIX, 1996)"},
            64,
            "hole64-size=128G",
            2,
        ),
        (
            {"virtual": "kvm", "product": "Standard PC (Q35 + ICH9, 2009)"},
            24,
            "set VMID --cpu host",
            2,
        ),
        ({"virtual": "kvm", "secure_boot": False}, 80, "X-PciMmio64Mb,string=262144", 1),
        ({"virtual": "vmware"}, 32, "64bitMMIOSizeGB to 64", 1),
        ({"virtual": "microsoft"}, 0, "HighMemoryMappedIoSpace 128GB", 1),
        # Who rents a machine has no hypervisor to command.
        ({"virtual": "kvm", "product": "g5.xlarge"}, 64, "In the hypervisor", 1),
        ({"virtual": "xen"}, 64, "In the hypervisor", 1),
    ],
)
def test_a_virtual_machine_gets_a_window_in_the_words_of_its_hypervisor(
    platform: dict[str, Any], size: int, said: str, ways: int
) -> None:
    m = machine(platform={"secure_boot": None, "product": "", **platform})
    found = remedies.larger_window(m, size << 30)
    assert said in (found[0].manual or "")
    assert len(found) == ways
    assert all("EFI system partition" in (step.note or "") for step in found[1:]), "or no boot"
    moves = "--machine q35" in (found[0].manual or "")
    assert moves == ("i440FX" in platform.get("product", ""))
    assert ("network interfaces" in (found[0].note or "")) == moves
