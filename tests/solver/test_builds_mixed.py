"""GPUs of different age in one machine, and NVIDIA's compatibility package, as remedies."""

from __future__ import annotations

from typing import Any

import pytest
from packaging.version import Version
from remedy_fixtures import KB, machine

from cudadoctor.model.machine import Machine
from cudadoctor.plan import remedies
from cudadoctor.plan.planner import plan
from cudadoctor.rules.diagnose import diagnose
from cudadoctor.solver.demand import named, seen_gpus
from cudadoctor.solver.fit import compat_lifts

NONE: dict[str, Any] = {
    "installed": False,
    "version": None,
    "text": None,
    "build": None,
    "cuda": None,
    "archs": None,
    "imported": None,
}
DRIVER_535 = {
    "kernel": "535.183.01",
    "reported": "535.183.01",
    "library": "535.183.01",
    "cuda": "12.2",
}
H100 = {"name": "NVIDIA H100 80GB HBM3", "capability": "9.0", "device_id": "2330"}
RTX_4090 = {"name": "NVIDIA GeForce RTX 4090", "capability": "8.9", "device_id": "2684"}
GTX_1080 = {"name": "NVIDIA GeForce GTX 1080", "capability": "6.1", "device_id": "1b80"}
RTX_5090 = {"name": "NVIDIA GeForce RTX 5090", "capability": "12.0", "device_id": "2b85"}
GT_710 = {"name": "NVIDIA GeForce GT 710", "capability": "3.5", "device_id": "128b"}


def gpus(*found: dict[str, Any], uuids: bool = True) -> list[dict[str, Any]]:
    return [
        {"index": n, **gpu} | ({"uuid": f"GPU-{n}"} if uuids else {}) for n, gpu in enumerate(found)
    ]


def bare(*found: dict[str, Any], uuids: bool = True, **more: Any) -> Machine:
    """A machine with these GPUs and no torch."""
    return machine(gpus=gpus(*found, uuids=uuids), pci=[], torch=NONE, packages=[], **more)


def test_gpus_are_named_by_their_place_on_the_bus() -> None:
    found = seen_gpus(bare(GTX_1080, RTX_5090), KB)
    assert named(found) == "the GeForce GTX 1080 (GPU 0) and the GeForce RTX 5090 (GPU 1)"


def test_where_no_build_serves_both_each_way_hides_the_other_gpu() -> None:
    m = bare(GTX_1080, RTX_5090)
    steps = plan(m, KB, diagnose(m, KB)).steps
    newest, older = (step for step in steps if step.id.startswith("install-torch"))
    assert newest.variables == {"CUDA_VISIBLE_DEVICES": "GPU-1"}
    assert older.variables == {"CUDA_VISIBLE_DEVICES": "GPU-0"}
    assert "torch==2.15.0" in (newest.packages.install if newest.packages else ())
    assert "torch==2.14.1" in (older.packages.install if older.packages else ())
    assert newest.group == older.group
    assert "this one does not support the GeForce GTX 1080 (GPU 0)" in (newest.note or "")


def test_without_uuids_the_place_on_the_bus_is_given_and_the_order_with_it() -> None:
    (remedy,) = remedies.leave_out(bare(GTX_1080, RTX_5090, uuids=False), KB, [Version("6.1")])
    assert remedy.variables == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1"}


def test_in_a_job_the_list_is_the_schedulers() -> None:
    m = bare(GTX_1080, RTX_5090, container={"scheduler": "slurm"})
    (remedy,) = remedies.leave_out(m, KB, [Version("6.1")])
    assert remedy.variables == {}
    assert remedy.where == "admin"


def test_nobody_is_left_out_where_nobody_would_stay() -> None:
    m = bare(GTX_1080)
    assert remedies.leave_out(m, KB, [Version("6.1")]) == ()
    assert remedies.leave_out(m, KB, [Version("8.9")]) == ()


def test_a_gpu_that_no_torch_serves_is_named_beside_the_installation() -> None:
    (remedy,) = remedies.install_torch(bare(GT_710, RTX_4090), KB)
    assert (
        "No torch build supports the GeForce GT 710 (GPU 0); to use only the other GPUs, set "
        "CUDA_VISIBLE_DEVICES=GPU-1" in (remedy.note or "")
    )


# NVIDIA's forward-compatibility package


def test_cuda_compat_is_for_data_centre_gpus_on_the_branches_of_the_table() -> None:
    on_h100 = machine(gpus=gpus(H100), pci=[], driver=DRIVER_535)
    assert compat_lifts(on_h100, KB, Version("13.0"))
    assert not compat_lifts(on_h100, KB, Version("12.2"))  # the driver is that itself
    assert not compat_lifts(
        machine(gpus=gpus(RTX_4090), pci=[], driver=DRIVER_535), KB, Version("13.0")
    )
    both = machine(gpus=gpus(H100, RTX_4090), pci=[], driver=DRIVER_535)
    assert not compat_lifts(both, KB, Version("13.0"))


@pytest.mark.parametrize(
    "section",
    [
        {"platform": {"wsl": 2}},
        {"platform": {"jetson": True}},
        {"platform": {"system": "Windows"}},
        {"container": {"dxg": True}},
        {"driver": {"kernel": "550.90.07", "reported": "550.90.07", "library": "550.90.07"}},
    ],
)
def test_cuda_compat_is_for_nobody_else(section: dict[str, Any]) -> None:
    driver = {"driver": DRIVER_535 | section.get("driver", {})}
    m = machine(gpus=gpus(H100), pci=[], **(section | driver))
    assert not compat_lifts(m, KB, Version("13.0"))


def test_a_share_of_a_gpu_gets_no_compat_package() -> None:
    shared = [gpus(H100)[0] | {"virtualization": "vgpu"}]
    assert not compat_lifts(machine(gpus=shared, pci=[], driver=DRIVER_535), KB, Version("13.0"))


def on_h100(**more: Any) -> Machine:
    torch = {"version": "2.14.1+cu130", "build": "cuda", "cuda": "13.0", "imported": None}
    return machine(gpus=gpus(H100), pci=[], driver=DRIVER_535, torch=torch, **more)


@pytest.mark.parametrize(
    ("distro", "like", "first"),
    [("ubuntu", ["debian"], "apt-get"), ("debian", [], "apt-get"), ("rocky", ["rhel"], "dnf")],
)
def test_the_package_comes_by_the_systems_own_tool(
    distro: str, like: list[str], first: str
) -> None:
    release = {"ubuntu": "24.04", "debian": "13", "rocky": "9.4"}[distro]
    m = on_h100(platform={"distro": distro, "distro_like": like, "distro_version": release})
    (remedy,) = remedies.forward_compat(m, KB, Version("13.0"))
    assert any("developer.download.nvidia.com" in word for argv in remedy.commands for word in argv)
    assert remedy.commands[-1] == (first, "install", "-y", "cuda-compat-13-0")
    assert remedy.needs_root
    assert "LD_LIBRARY_PATH=/usr/local/cuda-13.0/compat" in (remedy.manual or "")
    assert "not for graphics" in (remedy.note or "")
    assert remedy.variables == {}


def test_in_a_container_it_is_part_of_the_image() -> None:
    (remedy,) = remedies.forward_compat(on_h100(container={"kind": "docker"}), KB, Version("13.0"))
    assert remedy.where == "container"
    assert remedy.commands == ()
    assert "nvidia/cuda:13.0" in (remedy.manual or "")


def test_on_a_system_without_such_packages_only_words_are_given() -> None:
    m = on_h100(platform={"distro": "arch", "distro_like": []})
    (remedy,) = remedies.forward_compat(m, KB, Version("13.0"))
    assert remedy.commands == ()


def test_a_torch_without_code_for_the_gpu_is_not_helped_by_a_driver() -> None:
    m = machine(
        gpus=gpus(H100),
        pci=[],
        driver=DRIVER_535,
        torch={"cuda": "13.0", "archs": ["sm_120"], "imported": None},
    )
    assert remedies.forward_compat(m, KB, Version("13.0")) == ()
