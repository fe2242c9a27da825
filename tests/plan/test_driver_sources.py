"""Where a driver's packages come from, and what is done to those that are there."""

from __future__ import annotations

from typing import Any

import pytest
from scenario_reader import machine_like

from cudadoctor import knowledge
from cudadoctor.model.findings import Remedy
from cudadoctor.model.trust import typed
from cudadoctor.plan import remedies
from cudadoctor.render.shells import elevated

KB = knowledge.load()


def _packages(versions: dict[str, str], manager: str = "dpkg") -> list[dict[str, str]]:
    return [
        {"name": name, "version": version, "manager": manager} for name, version in versions.items()
    ]


def _first(function: Any, platform: dict[str, Any], driver: dict[str, Any], *more: Any) -> Remedy:
    machine = machine_like("rtx4090-linux", {"platform": platform, "driver": driver})
    found: Remedy = function(machine, *more)[0]
    return found


def _lines(step: Remedy) -> list[str]:
    return [" ".join(argv) for argv in step.commands]


SUSE = {"distro": "opensuse-leap", "distro_version": "15.6", "kernel": "6.4.0-150600.23.70-default"}
UBUNTU = {"distro": "ubuntu", "distro_version": "22.04", "kernel": "6.8.0-60-generic"}
DEBIAN = {"distro": "debian", "distro_version": "12", "kernel": "6.1.0-40-amd64"}
ROCKY = {"distro": "rocky", "distro_version": "9.5", "distro_like": ["rhel"]}


def test_a_module_behind_its_libraries_is_met_within_its_generation() -> None:
    names = {
        "nvidia-open-driver-G06-signed-kmp-default": "570.124.06_k6.4.0_150600.21-1",
        "nvidia-compute-G06": "570.153.02-lp156.1",
        "nvidia-compute-utils-G06": "570.153.02-lp156.1",
    }
    driver = {"kernel": "570.124.06", "library": "570.153.02", "packages": _packages(names, "rpm")}
    step = _first(remedies.one_version, SUSE, driver, KB)
    assert _lines(step) == [
        "zypper install -y --oldpackage nvidia-compute-G06=570.124.06 "
        "nvidia-compute-utils-G06=570.124.06",
        "zypper addlock nvidia-compute-G06 nvidia-compute-utils-G06",
    ]
    assert not step.reboot, "the loaded module is of that version"


def test_of_the_packages_of_one_repository_the_one_behind_is_updated() -> None:
    names = {
        "kmod-nvidia-latest-dkms": "3:570.124.06-1.el9",
        "nvidia-driver-cuda": "3:570.153.02-1.el9",
    }
    driver = {"kernel": "570.124.06", "library": "570.153.02", "packages": _packages(names, "rpm")}
    step = _first(remedies.one_version, ROCKY, driver, KB)
    assert _lines(step) == ["dnf upgrade -y --refresh kmod-nvidia-latest-dkms"]
    assert "versionlock" in (step.note or "")


def test_packages_of_nvidias_repository_go_by_its_names() -> None:
    names = {
        "libnvidia-compute": "595.45.04-1ubuntu1",
        "nvidia-dkms-575-open": "575.57.08-0ubuntu1",
    }
    driver = {"kernel": "575.57.08", "library": "595.45.04", "packages": _packages(names)}
    lines = _lines(_first(remedies.one_version, UBUNTU, driver, KB))
    assert "apt-get install -y nvidia-open" in lines
    assert not any("nvidia-driver-" in line for line in lines)


def test_debians_own_open_modules_prove_no_repository_of_nvidia() -> None:
    names = {"nvidia-open-kernel-dkms": "535.216.01-1", "libcuda1": "535.216.01-1"}
    driver = {"kernel": "535.216.01", "library": "535.216.01", "packages": _packages(names)}
    lines = _lines(_first(remedies.upgrade_driver, DEBIAN, driver, KB, 570))
    keyring = next(i for i, line in enumerate(lines) if "cuda-keyring" in line)
    assert keyring < lines.index("apt-get install -y --allow-downgrades nvidia-open")


@pytest.mark.parametrize(("branch", "package"), [(580, "580-server-open"), (595, "595-open")])
def test_ubuntu_has_server_packages_of_production_branches_only(branch: int, package: str) -> None:
    names = {"nvidia-driver-535-server-open": "535.216.01-0ubuntu0.22.04.1"}
    driver = {"kernel": "535.216.01", "library": "535.216.01", "packages": _packages(names)}
    lines = _lines(_first(remedies.upgrade_driver, UBUNTU, driver, KB, branch))
    assert f"nvidia-driver-{package}" in lines[-1]


def test_a_run_file_over_packages_goes_first() -> None:
    names = {
        "nvidia-driver-570-open": "570.86.15-0ubuntu1",
        "libnvidia-compute-570": "570.86.15-0ubuntu1",
    }
    driver = {"kernel": "570.86.15", "library": "575.51.02", "packages": _packages(names)}
    lines = _lines(_first(remedies.one_version, UBUNTU, driver, KB))
    assert lines[0] == "nvidia-uninstall --silent"


def test_nixos_keeps_what_the_search_path_holds() -> None:
    machine = machine_like(
        "rtx4090-linux",
        {"platform": {"distro": "nixos"}, "env": {"LD_LIBRARY_PATH": "/opt/mine/lib:/opt/own"}},
    )
    (step,) = remedies.install_libcuda(machine)
    assert step.variables == {"LD_LIBRARY_PATH": "/run/opengl-driver/lib:/opt/mine/lib:/opt/own"}


def test_what_a_switcher_wrote_is_changed_by_the_switcher() -> None:
    driver = {"loaded": False, "blacklisted_by": ["/etc/modprobe.d/supergfxd.conf"]}
    step = _first(remedies.load_driver, UBUNTU, driver, "blacklisted")
    assert _lines(step) == ["supergfxctl --mode Hybrid"]


def test_nobody_sees_the_screen_of_a_machine_in_a_cloud() -> None:
    cloud = UBUNTU | {"kernel": "6.8.0-1021-aws", "virtual": "kvm"}
    driver = {
        "loaded": False,
        "packages": _packages({"nvidia-dkms-570-open": "570.86.15-0ubuntu1"}),
    }
    lines = _lines(_first(remedies.load_driver, cloud, driver, "secure-boot"))
    assert "apt-get install -y linux-modules-nvidia-570-open-aws" in lines
    other = cloud | {"kernel": "6.8.0-60-generic"}
    assert "serial console" in (
        _first(remedies.load_driver, other, driver, "secure-boot").note or ""
    )


def test_what_builds_packages_is_not_run_as_root() -> None:
    assert elevated(typed("makepkg", "-siD", "nvidia-580xx-utils"), "sudo ") == ""
    assert elevated(typed("pacman", "-Syu"), "sudo ") == "sudo "


# --- signed modules, precompiled ones, and keys ---------------------------------------------------

PRECOMPILED = {
    "nvidia-driver": "3:570.172.08-1.el9",
    "kmod-nvidia-570.172.08-5.14.0-570.58.1": "3:570.172.08-3.el9_6",
}
MINT = {"distro": "linuxmint", "distro_version": "21.3", "distro_like": ["ubuntu"]}
BLACKWELL = {"name": "NVIDIA RTX PRO 6000", "device_id": "2bb5", "capability": "12.0"}


def _newer(
    platform: dict[str, Any], names: dict[str, str], manager: str, *, loaded: bool, **more: Any
) -> Remedy:
    driver = {"loaded": loaded, "packages": _packages(names, manager), "dkms": []}
    changes = {"platform": platform | {"secure_boot": True}, "driver": driver, **more}
    found: Remedy = remedies.upgrade_driver(machine_like("rtx4090-linux", changes), KB, 580)[0]
    return found


def test_precompiled_modules_stay_precompiled() -> None:
    step = _newer(ROCKY, PRECOMPILED, "rpm", loaded=True)
    assert _lines(step) == ["dnf module switch-to -y nvidia-driver:580 --allowerasing"]
    assert "MOK" not in (step.note or ""), "they are signed"


def test_a_gpu_for_open_modules_alone_leaves_the_precompiled_ones_with_its_key() -> None:
    pci = {"0": {"device_id": "2bb5"}}
    lines = _lines(_newer(ROCKY, PRECOMPILED, "rpm", loaded=True, gpus={"0": BLACKWELL}, pci=pci))
    assert "dnf module enable -y nvidia-driver:580-open" in lines
    assert any("epel-release" in line for line in lines), "dkms is in EPEL"
    assert lines[-1] == "mokutil --import /var/lib/dkms/mok.pub"


@pytest.mark.parametrize(("loaded", "keys"), [(True, 0), (False, 1)])
def test_a_key_that_works_is_not_enrolled_again(loaded: bool, keys: int) -> None:
    names = {"kmod-nvidia-open-dkms": "3:570.172.08-1.el9", "nvidia-driver": "3:570.172.08-1.el9"}
    step = _newer(ROCKY, names, "rpm", loaded=loaded)
    assert sum("mokutil" in line for line in _lines(step)) == keys
    assert ("Enroll MOK" in (step.note or "")) == bool(keys)


def test_akmods_builds_with_the_key_that_is_enrolled() -> None:
    fedora = {"distro": "fedora", "distro_version": "43", "distro_like": []}
    lines = _lines(_newer(fedora, {}, "rpm", loaded=False))
    key = lines.index("mokutil --import /etc/pki/akmods/certs/public_key.der")
    assert lines[key + 1 :] == ["akmods --force --rebuild"]


@pytest.mark.parametrize(
    ("platform", "names", "loaded", "expected"),
    [
        ({}, {"nvidia-dkms-570": "570.1"}, False, "570-open-generic-hwe-22.04"),
        ({"kernel": "5.15.0-60-generic"}, {}, False, "570-open-generic"),
        (MINT, {}, False, "570-open-generic-hwe-22.04"),
        (
            {},
            {"linux-modules-nvidia-550-generic-hwe-22.04": "1"},
            True,
            "570-open-generic-hwe-22.04",
        ),
        # A key that works stays in use, and other kernels have no such modules.
        ({}, {"nvidia-dkms-570": "570.1"}, True, ""),
        ({"kernel": "6.8.0-60-mine"}, {}, False, ""),
    ],
)
def test_ubuntu_brings_signed_modules_where_no_other_key_is_known(
    platform: dict[str, Any], names: dict[str, str], loaded: bool, expected: str
) -> None:
    lines = _lines(_newer(UBUNTU | platform, names, "dpkg", loaded=loaded))
    package = expected.replace("570", "580")
    signed = f"apt-get install -y linux-modules-nvidia-{package}"
    assert (signed in lines) == bool(expected)
    assert not expected or lines.index(signed) < lines.index(
        "apt-get install -y nvidia-driver-580-open"
    ), "else apt takes the module that DKMS builds"
    removed = "apt-get remove -y nvidia-dkms-570"
    assert (removed in lines) == bool(expected and "nvidia-dkms-570" in names)


@pytest.mark.parametrize(("distro", "opened"), [(DEBIAN, True), (UBUNTU, False)])
def test_firmware_comes_from_a_part_of_debian_that_is_opened_first(
    distro: dict[str, Any], opened: bool
) -> None:
    lines = _lines(_first(remedies.install_firmware, distro, {"kernel": "535.247.01"}))
    assert any("non-free-firmware" in line for line in lines[:2]) == opened


def test_debians_own_driver_takes_firmware_from_the_same_part() -> None:
    driver = {"packages": _packages({"libcuda1": "535.1"}), "kernel": "535.1", "library": "535.1"}
    changes = {"platform": DEBIAN, "driver": driver, "torch": {"cuda": "12.8"}}
    (step,) = remedies.install_driver(machine_like("rtx4090-linux", changes), KB)
    assert "firmware-misc-nonfree" in _lines(step)[-1]
    assert "non-free-firmware" in _lines(step)[0]


@pytest.mark.parametrize(
    ("kernel", "series"),
    [
        ("6.12.57+deb13-amd64", "linux-headers-amd64"),
        ("6.1.0-40-cloud-amd64", "linux-headers-cloud-amd64"),
        # Proxmox's and one's own kernels have no such package.
        ("6.8.12-4-pve", ""),
        ("6.12.9-mine", ""),
    ],
)
def test_dkms_finds_the_headers_of_debians_next_kernel_too(kernel: str, series: str) -> None:
    platform = DEBIAN | {"distro_version": "13", "kernel": kernel}
    lines = _lines(_first(remedies.install_driver, platform, {"packages": []}, KB))
    (headers,) = (line for line in lines if "-headers-" in line)
    assert headers.split()[4:] == ([series] if series else [])


def test_suses_keys_lie_in_one_of_two_folders() -> None:
    step = _first(remedies.load_driver, SUSE, {"loaded": False}, "secure-boot")
    assert _lines(step)[0].startswith("find /var/lib /usr/share -path */nvidia-pubkeys/")
