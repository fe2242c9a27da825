"""Every cause that has remedies, on every platform: the machines, and what is advised on each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
from scenario_reader import read_scenario, scenario_paths
from share import share_of_each_cause

from cudadoctor import knowledge
from cudadoctor.model.findings import Remedy
from cudadoctor.model.machine import Container, Machine, Platform
from cudadoctor.rules.diagnose import diagnose

KB = knowledge.load()


class Place(NamedTuple):
    """A platform: what it says of itself, and of the box around the process."""

    system: dict[str, Any]
    box: Mapping[str, Any] = MappingProxyType({})
    variables: Mapping[str, str] = MappingProxyType({})


def _linux(distro: str, version: str | None, *like: str, kernel: str, **more: Any) -> Place:
    system: dict[str, Any] = {"system": "Linux", "machine": "x86_64", "wsl": 0, "jetson": False}
    names = {"distro": distro, "distro_version": version, "distro_like": like, "kernel": kernel}
    return Place(system | names | {"virtual": "", "product": "", "l4t": None} | more)


_UBUNTU = _linux("ubuntu", "24.04", "debian", kernel="6.8.0-87-generic")
_ROCKY = _linux("rocky", "9.6", "rhel", "centos", "fedora", kernel="5.14.0-570.el9.x86_64")


def _boxed(place: Place, **box: Any) -> Place:
    return Place(place.system, box)


def _jetson(l4t: str, version: str, kernel: str) -> Place:
    product = "NVIDIA Jetson AGX Orin Developer Kit"
    more = {"machine": "aarch64", "jetson": True, "l4t": l4t, "product": product}
    return _linux("ubuntu", version, "debian", kernel=kernel, **more)


def _wsl(distro: str, version: str | None, number: int, *like: str) -> Place:
    kernel = "6.6.87.2-microsoft-standard-WSL2" if number == 2 else "4.4.0-26100-Microsoft"
    place = _linux(distro, version, *like, kernel=kernel, virtual="microsoft")
    return Place(place.system | {"wsl": number}, {"dxg": number == 2, "wsl_libs": number == 2})


def _windows(version: str) -> Place:
    names = {"distro": None, "distro_version": version, "distro_like": None, "kernel": None}
    return Place({"system": "Windows", "machine": "x86_64", "wsl": 0, "jetson": False} | names)


PLATFORMS: dict[str, Place] = {
    "ubuntu-20.04": _linux("ubuntu", "20.04", "debian", kernel="5.4.0-216-generic"),
    "ubuntu-22.04": _linux("ubuntu", "22.04", "debian", kernel="5.15.0-160-generic"),
    "ubuntu-24.04": _UBUNTU,
    "debian-12": _linux("debian", "12", kernel="6.1.0-40-amd64"),
    "debian-12-cloud": _linux("debian", "12", kernel="6.1.0-40-cloud-amd64", virtual="kvm"),
    "proxmox-8": _linux("debian", "12", kernel="6.8.12-15-pve"),
    "rhel-8": _linux("rhel", "8.10", "fedora", kernel="4.18.0-553.el8_10.x86_64"),
    "rhel-9": _linux("rhel", "9.6", "fedora", kernel="5.14.0-570.el9_6.x86_64"),
    "rocky-9": _ROCKY,
    "fedora-43": _linux("fedora", "43", kernel="6.17.7-300.fc43.x86_64"),
    "amazon-2023": _linux(
        "amzn", "2023", "fedora", kernel="6.1.158-180.294.amzn2023.x86_64", product="p5.48xlarge"
    ),
    "amazon-2": _linux("amzn", "2", "centos", "rhel", "fedora", kernel="5.10.245.amzn2.x86_64"),
    "arch": _linux("arch", None, kernel="6.17.8-arch1-1"),
    "manjaro": _linux("manjaro", None, "arch", kernel="6.12.58-1-MANJARO"),
    "endeavouros": _linux("endeavouros", None, "arch", kernel="6.17.8-arch1-1"),
    "opensuse-15.6": _linux(
        "opensuse-leap", "15.6", "suse", "opensuse", kernel="6.4.0-150600.23.73-default"
    ),
    "nixos-25.11": _linux("nixos", "25.11", kernel="6.12.58"),
    "windows-10": _windows("10.0.19045"),
    "windows-11": _windows("10.0.26100"),
    "wsl2-ubuntu": _wsl("ubuntu", "24.04", 2, "debian"),
    "wsl2-fedora": _wsl("fedora", "43", 2),
    "wsl1": _wsl("ubuntu", "22.04", 1, "debian"),
    "docker": _boxed(_UBUNTU, kind="docker"),
    "docker-on-rocky": _boxed(_ROCKY, kind="docker"),
    "docker-on-wsl": Place(
        _wsl("ubuntu", "24.04", 2, "debian").system, {"kind": "docker", "dxg": True}
    ),
    "podman": _boxed(_ROCKY, kind="podman"),
    "kubernetes": _boxed(_UBUNTU, kind="kubernetes"),
    "slurm": _boxed(_ROCKY, scheduler="slurm"),
    "slurm-pyxis": _boxed(_UBUNTU, kind="enroot", scheduler="slurm"),
    "slurm-apptainer": _boxed(_UBUNTU, kind="apptainer", scheduler="slurm"),
    "lxc": _boxed(_linux("debian", "12", kernel="6.8.12-15-pve"), kind="lxc"),
    "jetpack-5": _jetson("35.6.0", "20.04", "5.10.216-tegra"),
    "jetpack-6": _jetson("36.4.3", "22.04", "5.15.148-tegra"),
    "jetpack-7": _jetson("39.0.0", "24.04", "6.8.12-tegra"),
    "docker-on-jetson": Place(
        _jetson("36.4.3", "22.04", "5.15.148-tegra").system, {"kind": "docker"}
    ),
    "dgx-os": _linux("ubuntu", "24.04", "debian", kernel="6.8.0-87-generic", product="DGXH100"),
    "dgx-on-rhel": _linux(
        "rhel", "9.6", "fedora", kernel="5.14.0-570.el9_6.x86_64", product="DGXH100"
    ),
    "dgx-spark": _linux(
        "ubuntu",
        "24.04",
        "debian",
        kernel="6.14.0-1015-nvidia",
        product="NVIDIA_DGX_Spark",
        machine="aarch64",
    ),
    "colab": Place(
        _linux("ubuntu", "22.04", "debian", kernel="6.6.105+", virtual="kvm").system,
        {"kind": "docker"},
        {"COLAB_RELEASE_TAG": "release-colab_20261115", "COLAB_GPU": ""},
    ),
    "kaggle": Place(
        _UBUNTU.system,
        {"kind": "docker"},
        {"KAGGLE_KERNEL_RUN_TYPE": "Interactive", "COLAB_RELEASE_TAG": "release"},
    ),
}


class Advice(NamedTuple):
    """What is advised for a cause on a platform, and how it came to be."""

    platform: str
    cause: str
    scenario: str
    remedy: Remedy
    machine: Machine


def moved(m: Machine, place: Place) -> Machine:
    """The machine with the facts of another platform; what is wrong with it stays."""
    system = {**msgspec.structs.asdict(m.platform), **place.system}
    kind = {"kind": "", "scheduler": "", "dxg": False, "wsl_libs": False, **place.box}
    box = {**msgspec.structs.asdict(m.container), **kind}
    l4t = system.get("l4t")
    system["l4t"] = _version(l4t) if isinstance(l4t, str) else l4t
    env = m.env if m.env is None and not place.variables else {**(m.env or {}), **place.variables}
    return msgspec.structs.replace(
        m, platform=Platform(**system), container=Container(**box), env=env
    )


def _version(text: str) -> Any:
    from packaging.version import Version

    return Version(text)


@cache
def _carriers() -> Mapping[str, Machine]:
    """The machines of all scenarios in which something is found."""
    read = (read_scenario(path) for path in scenario_paths())
    return {
        scenario.name: scenario.machine
        for scenario in read
        if scenario.expect.findings or scenario.expect.infos
    }


def advice(platform: str) -> Iterator[Advice]:
    """What is advised on that platform, for whatever is still found there of each cause."""
    carriers = _carriers()
    chosen = {*share_of_each_cause(carriers, 4, [*PLATFORMS].index(platform))}
    for name in chosen | {name for name in carriers if name.startswith("driver-")}:
        m = moved(carriers[name], PLATFORMS[platform])
        for found in diagnose(m, KB).findings:
            for remedy in found.remedies:
                yield Advice(platform, found.cause, name, remedy, m)
