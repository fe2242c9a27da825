"""Every remedy of every cause on every platform: nothing that must never be said, nothing absurd.

The machines of all scenarios are moved to each platform, and whatever is still found there is
walked with all its ways out, written for the shell as `fix --print` does.
"""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache

import pytest
from matrix_fixtures import KB, PLATFORMS, Advice, advice
from remedy_fixtures import MACHINES, never, words_of

from cudadoctor.installers import registry
from cudadoctor.locale.language import language
from cudadoctor.model.catalogue import CATALOGUE

TOOLS: dict[str, set[str]] = {
    "apt": {"ubuntu", "debian", "dgx", "wsl2-ubuntu", "jetpack", "proxmox"},
    "apt-get": {"ubuntu", "debian", "dgx", "wsl2-ubuntu", "jetpack", "proxmox"},
    "ubuntu-drivers": {"ubuntu"},
    "update-initramfs": {"ubuntu", "debian", "dgx", "proxmox"},
    "dnf": {"rhel", "rocky", "fedora", "amazon-2023", "dgx-on-rhel", "wsl2-fedora"},
    "akmods": {"fedora"},
    "dracut": {"rhel", "rocky", "fedora", "amazon", "opensuse", "dgx-on-rhel"},
    "zypper": {"opensuse"},
    "pacman": {"arch", "manjaro", "endeavouros"},
    "mhwd": {"manjaro"},
    "mkinitcpio": {"arch", "manjaro"},
    "nixos-rebuild": {"nixos"},
    "dkms": {"ubuntu", "debian", "proxmox", "rhel", "rocky", "fedora", "amazon-2023", "dgx"}
    | {"arch", "manjaro", "endeavouros", "opensuse"},
    "prime-select": {"ubuntu", "dgx"},
    "wsl.exe": {"wsl", "docker-on-wsl"},
    "py": {"windows"},
}
"""Programs that only some systems have, by how the names of those platforms begin."""

KERNEL = {"modprobe", "systemctl", "usermod", "nvidia-modprobe", "mokutil", "dkms", "ldconfig"}
WINDOWS_LACKS = KERNEL | {"apt-get", "dnf", "zypper", "pacman", "reboot"}
BOXED = {name for name, place in PLATFORMS.items() if place.box.get("kind")}
SHARED = {name for name, place in PLATFORMS.items() if place.box.get("scheduler")} | {"kubernetes"}
DRIVER = re.compile(
    r"\b(nvidia-driver|nvidia-open|cuda-drivers|akmod-nvidia|nvidia-dkms|libnvidia-compute)"
)
NO_LINUX_DRIVER = {name for name in PLATFORMS if name.startswith(("wsl", "jetpack"))} | BOXED


@cache
def all_of(platform: str) -> tuple[Advice, ...]:
    return tuple(advice(platform))


def lines(advised: Advice) -> list[str]:
    """All commands of a remedy, including those that install packages into the environment."""
    found = [" ".join(argv) for argv in advised.remedy.commands]
    if advised.remedy.packages is not None:
        written = registry.write(advised.machine, KB, advised.remedy.packages)
        found += [" ".join(argv) for argv in written.commands]
    return found


def test_every_cause_with_a_cure_is_in_the_matrix() -> None:
    causes = {advised.cause for name in PLATFORMS for advised in all_of(name)}
    assert len(causes) > 55
    assert causes <= {*CATALOGUE}
    number = sum(len(all_of(name)) for name in PLATFORMS)
    sys.stdout.write(f"{number} remedies, {len(causes)} causes, {len(PLATFORMS)} platforms\n")


@pytest.mark.parametrize("platform", PLATFORMS)
def test_nothing_is_ever_said_that_must_not_be_said(platform: str) -> None:
    for advised in all_of(platform):
        text = "\n".join([words_of(advised.remedy), *lines(advised)])
        for pattern, why in never(advised.remedy.id):
            if "TORCH_CUDA_ARCH_LIST" in pattern:
                continue  # unset where it does not fit what is compiled
            assert not re.search(pattern, text), (
                f"{advised.cause} ({advised.scenario}): {why}: {text}"
            )


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_command_belongs_to_the_system_that_it_is_for(platform: str) -> None:
    for advised in all_of(platform):
        for argv in advised.remedy.commands:
            fitting = TOOLS.get(argv[0])
            # In a container the distribution inside of it counts.
            outside = advised.remedy.where == "host"  # it has a distribution of its own
            names = (platform, advised.machine.platform.distro or "")
            fits = any(name.startswith(tuple(fitting or ())) for name in names)
            assert fitting is None or outside or fits, (advised.cause, argv)
            assert "sudo" not in argv
            if platform.startswith("windows"):
                assert argv[0] not in WINDOWS_LACKS, (advised.cause, argv)
            if platform in BOXED and advised.remedy.where == "here":
                assert argv[0] not in KERNEL, (advised.cause, argv)
            if platform.startswith("wsl") and advised.remedy.where == "here":
                assert argv[0] not in {"modprobe", "systemctl", "dkms"}, (advised.cause, argv)


@pytest.mark.parametrize("platform", sorted(NO_LINUX_DRIVER))
def test_no_linux_driver_goes_where_none_belongs(platform: str) -> None:
    for advised in all_of(platform):
        if advised.remedy.where == "host":
            continue
        for line in lines(advised):
            installs = re.search(r"\b(install|-Syu?|-S)\b", line)
            assert not (installs and DRIVER.search(line)), (advised.cause, advised.scenario, line)


@pytest.mark.parametrize("platform", sorted(SHARED))
def test_nobody_restarts_a_machine_that_others_use(platform: str) -> None:
    for advised in all_of(platform):
        # What goes into a container is its own root's.
        own = advised.machine.container.kind and advised.machine.platform.root
        inside = own and advised.remedy.id in ("c-compiler", "python-headers", "older-compiler")
        if advised.remedy.reboot or (advised.remedy.needs_root and not inside):
            assert advised.remedy.where == "admin", (advised.cause, advised.remedy.title)
        if advised.remedy.reboot:
            assert not advised.remedy.commands, (advised.cause, advised.remedy.commands)


@pytest.mark.parametrize("platform", ["jetpack-5", "jetpack-6", "docker-on-jetson"])
def test_a_jetson_gets_no_wheel_of_other_computers(platform: str) -> None:
    for advised in all_of(platform):
        for line in lines(advised):
            if re.search(r"(?<!un)install .*\storch\b", line):
                assert "jetson" in line or "nvidia" in line, (advised.cause, advised.scenario, line)


@pytest.mark.parametrize("platform", ["windows-10", "windows-11"])
def test_under_windows_nothing_speaks_of_linux_packages(platform: str) -> None:
    for advised in all_of(platform):
        if advised.cause in ("platform-unsupported", "torch-wrong-backend"):
            continue  # the way out is another system
        text = words_of(advised.remedy)
        assert not re.search(r"\b(apt|apt-get|dnf|akmods|initramfs|modprobe -r)\b", text), (
            advised.cause,
            text,
        )


@pytest.mark.parametrize(
    ("platform", "said"),
    [
        ("ubuntu-20.04", "out of standard support"),
        ("debian-12", "debian12/x86_64/cuda-keyring_1.1-1_all.deb"),
        ("debian-12", "contrib non-free non-free-firmware"),
        ("debian-12-cloud", "linux-headers-6.1.0-40-cloud-amd64"),
        ("proxmox-8", "proxmox-headers-6.8.12-15-pve"),
        ("rhel-9", "codeready-builder-for-rhel-9-x86_64-rpms"),
        ("rocky-9", "dnf config-manager --set-enabled crb"),
        ("amazon-2023", "dnf module enable -y nvidia-driver:580-open"),
        ("amazon-2023", "kernel-modules-extra-6.1.158-180.294.amzn2023.x86_64"),
        ("amazon-2", "Switch to Amazon Linux 2023"),
        ("manjaro", "mhwd -a pci nonfree 0300"),
        ("nixos-25.11", "nixos-rebuild boot"),
        ("fedora-43", "%_with_kmod_nvidia_open 1"),
        ("fedora-43", "rpmfusion-nonfree-release-43.noarch.rpm"),
        ("opensuse-15.6", "https://download.nvidia.com/opensuse/leap/15.6"),
        ("dgx-on-rhel", "dnf upgrade -y --refresh"),
        ("dgx-spark", "apt-get full-upgrade"),
        ("slurm", "Ask the administrator"),
    ],
)
def test_a_driver_is_installed_in_the_way_of_the_system(platform: str, said: str) -> None:
    found = [
        words_of(advised.remedy)
        for advised in all_of(platform)
        if advised.remedy.id == "install-driver"
    ]
    assert any(said in text for text in found), found


def test_a_container_of_a_slurm_job_gets_its_gpu_from_both() -> None:
    found = {advised.remedy.id: advised for advised in all_of("slurm-apptainer")}
    assert "--nv" in (found["gpu-into-container"].remedy.manual or "")
    pyxis = [
        advised.remedy.manual or ""
        for advised in all_of("slurm-pyxis")
        if "grant" in advised.remedy.id
    ]
    assert pyxis and all("--container-image" in text for text in pyxis)


@pytest.mark.parametrize(("platform", "said"), [("colab", "Runtime"), ("kaggle", "Accelerator")])
def test_a_notebook_gets_its_gpu_in_the_menu_of_its_service(platform: str, said: str) -> None:
    found = [
        advised.remedy
        for advised in all_of(platform)
        if advised.remedy.id in ("grant-gpu", "reboot")
    ]
    granted = [remedy.manual or "" for remedy in found if remedy.id == "grant-gpu"]
    assert granted and all(said in text for text in granted)
    assert not [remedy for remedy in found if remedy.commands]


def test_packages_leave_wsl_by_the_manager_that_brought_them() -> None:
    for platform, tool in (("wsl2-ubuntu", "apt-get"), ("wsl2-fedora", "dnf")):
        out = [advised.remedy for advised in all_of(platform) if advised.remedy.id == "wsl-driver"]
        assert out
        assert {remedy.commands[0][0] for remedy in out} == {tool}


@pytest.mark.parametrize(("machine", "shell"), [("windows", "powershell"), ("linux", "bash")])
def test_the_script_is_for_the_shell_of_the_machine(machine: str, shell: str) -> None:
    def printed(*more: str) -> str:
        argv = [sys.executable, "-m", "cudadoctor", "fix", "--print", "--from"]
        argv += [str(MACHINES / f"rtx4090-{machine}.json"), *more]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout

    assert printed() == printed("--shell", shell)
    assert printed() != printed("--shell", "bash" if shell != "bash" else "powershell")


@pytest.mark.parametrize("platform", PLATFORMS)
def test_every_way_out_is_told_in_spanish(platform: str) -> None:
    say = language("es")
    for advised in all_of(platform):
        texts = (advised.remedy.title, advised.remedy.manual, advised.remedy.note)
        for text in filter(None, texts):
            spoken = say.spoken(text)
            assert spoken != text, (advised.cause, text)
            left = [part for part in re.split(r"(?<=\.) (?=[A-Z])", text) if part in spoken]
            assert not [part for part in left if say.spoken(part) == part], (advised.cause, text)
