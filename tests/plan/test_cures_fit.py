"""A cure fits what the facts say: the folder that is meant, the card that has the part."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from scenario_reader import machine_like

from cudadoctor import knowledge
from cudadoctor.host.local import LocalHost
from cudadoctor.model.findings import Severity
from cudadoctor.model.machine import Machine
from cudadoctor.model.rule import Found
from cudadoctor.plan.remedies.process import off_search_path
from cudadoctor.probes.libraries import read_libraries
from cudadoctor.rules.evidence.signs import has_fabric, uvm_missing
from cudadoctor.rules.health import gpu_ecc
from cudadoctor.rules.modes import fabric_manager, mig_misconfigured
from cudadoctor.rules.speed import pcie_degraded, pcie_slow_under_load

KB = knowledge.load()
STUBS = "/usr/local/cuda-12.6/targets/x86_64-linux/lib/stubs"
NOT_READY = ("torch.imported", "smoke", "driver.libcuda.count")


def found(rule: Any, m: Machine) -> Found | None:
    answer: Found | None = rule.judge(m, KB)
    return answer


def searching(path: str, *followed: tuple[str, str]) -> Machine:
    """followed: entries of the variable with the folder behind; none at all: nobody looked."""
    search = [{"entry": entry, "real": real} for entry, real in followed]
    return machine_like(
        "rtx4090-linux",
        {"env": {"LD_LIBRARY_PATH": path}} | ({"libraries": {"search": search}} if search else {}),
    )


@pytest.mark.parametrize(
    ("path", "folder", "rest"),
    [
        (f"{STUBS}:/opt", STUBS, "/opt"),
        (f"{STUBS}/:/opt", STUBS, "/opt"),
        ("/usr/local/cuda/lib64/stubs:/opt", STUBS, "/opt"),
        ("/usr/local/cuda-12/lib64/stubs:/opt", STUBS, "/opt"),
        ("/usr/local/cuda-12.6/lib64/stubs;/opt", STUBS, "/opt"),
        ("/usr/lib64:/opt", "/lib64", "/opt"),
        ("/usr/local/cuda/compat:/opt", "/usr/local/cuda-13.0/compat", "/opt"),
        ("/my/stubs:/opt", STUBS, "/opt"),
        ("/usr/local/cuda/lib64/stubs:/opt", "", "/opt"),
        ("/usr/local/cuda-11.8/lib64:/opt", "/usr/local/cuda-12.6/lib64", None),
        ("/usr/local/cuda-1/lib64:/opt", "/usr/local/cuda-12.6/lib64", None),
        ("/usr/local/cuda/lib64:/opt", STUBS, None),
        ("/opt", "", None),
    ],
)
def test_a_folder_is_found_however_it_is_spelled(path: str, folder: str, rest: str | None) -> None:
    remedies = off_search_path(searching(path), folder)
    assert [remedy.variables for remedy in remedies] == (
        [{"LD_LIBRARY_PATH": rest}] if rest else []
    )


def test_what_was_followed_counts_and_not_what_is_usual() -> None:
    """/usr/local/cuda leads to another toolkit here, and a link of the user's to this one."""
    m = searching(
        "/usr/local/cuda/lib64/stubs:/home/ada/new",
        ("/usr/local/cuda/lib64/stubs", "/usr/local/cuda-13.0/targets/x86_64-linux/lib/stubs"),
        ("/home/ada/new", STUBS),
    )
    (remedy,) = off_search_path(m, STUBS)
    assert remedy.variables == {"LD_LIBRARY_PATH": "/usr/local/cuda/lib64/stubs"}
    assert "/home/ada/new" in remedy.title


def test_a_variable_with_nothing_else_in_it_is_unset() -> None:
    (remedy,) = off_search_path(searching("/usr/local/cuda/lib64/stubs"), STUBS)
    assert remedy.variables == {"LD_LIBRARY_PATH": None}


@pytest.mark.skipif(os.name == "nt", reason="library loading is only checked on Linux")
def test_the_probe_follows_the_links_of_the_search_path(tmp_path: Path) -> None:
    real = tmp_path / "cuda-12.6" / "lib" / "stubs"
    real.mkdir(parents=True)
    (tmp_path / "cuda").symlink_to("cuda-12.6")
    entry = f"{tmp_path}/cuda/lib/stubs"
    env = {"LD_LIBRARY_PATH": f"{entry}:{tmp_path}/absent"}
    looked = read_libraries(LocalHost(), None, (), None, env)
    (folder,) = looked.facts["libraries.search"]
    assert (folder.entry, folder.real) == (entry, os.path.realpath(real))


def not_ready(name: str, nvswitches: int | None, state: int | None = None, **more: Any) -> Machine:
    gpu = {"name": name} | ({"fabric_state": state} if state is not None else {})
    fabric = {} if nvswitches is None else {"nvswitches": nvswitches}
    changes = {"gpus": {"0": gpu}, "driver": {"fabric": fabric, "libcuda": {"code": 802}}} | more
    unknown = (*NOT_READY, *(("driver.fabric",) if nvswitches is None else ()))
    return machine_like("gtx1080-linux", changes, unknown)


@pytest.mark.parametrize(
    ("name", "nvswitches", "state", "fabric"),
    [
        ("NVIDIA GeForce RTX 5090", None, None, False),
        ("NVIDIA H100 PCIe", None, None, False),
        ("NVIDIA H100 NVL", None, None, False),
        ("NVIDIA L40S", None, None, False),
        ("Tesla T4", None, None, False),
        ("NVIDIA GB10", None, None, False),
        ("NVIDIA A100-SXM4-80GB", 0, None, False),
        ("NVIDIA H100 80GB HBM3", 0, None, False),
        ("NVIDIA H100 80GB HBM3", None, None, True),
        ("NVIDIA A100-SXM4-80GB", 6, None, True),
        ("NVIDIA H200", None, None, True),
        ("NVIDIA B200", 0, None, True),
        ("NVIDIA GB200", 0, None, True),
        ("NVIDIA H100 80GB HBM3", 0, 1, True),
        ("NVIDIA of tomorrow", None, None, None),
    ],
)
def test_a_fabric_manager_belongs_to_nvswitches(
    name: str, nvswitches: int | None, state: int | None, fabric: bool | None
) -> None:
    m = not_ready(name, nvswitches, state)
    assert has_fabric(m, KB) is fabric
    assert (found(fabric_manager, m) is None) is (fabric is False)


def test_a_virtual_machine_does_not_see_the_switches_of_its_host() -> None:
    m = not_ready("NVIDIA A100-SXM4-80GB", 0, platform={"virtual": "kvm"})
    assert has_fabric(m, KB) is True


@pytest.mark.parametrize(
    ("modules", "errno", "missing"),
    [
        (["nvidia", "nvidia_uvm"], 0, False),
        (["nvidia", "nvidia_uvm"], None, False),
        (["nvidia", "nvidia_uvm"], 6, True),
        (["nvidia"], None, True),
        (None, 0, False),
        (None, 2, True),
        (None, None, None),
    ],
)
def test_a_loaded_uvm_whose_node_opens_is_not_missing(
    modules: list[str] | None, errno: int | None, missing: bool | None
) -> None:
    node = {"path": "/dev/nvidia-uvm"} | ({} if errno is None else {"errno": errno})
    changes = {"driver": {"nodes": [node]} | ({"modules": modules} if modules else {})}
    unknown = () if modules else ("driver.modules",)
    assert uvm_missing(machine_like("rtx4090-linux", changes, unknown)) is missing


def linked(**gpu: Any) -> Machine:
    return machine_like("rtx4090-linux", {"gpus": {"0": gpu}})


BUSY = {"utilization": 50, "performance_state": 2}


@pytest.mark.parametrize(
    ("gpu", "severity"),
    [
        ({"pcie_width": 1, "virtualization": "passthrough"} | BUSY, Severity.WARNING),
        ({"pcie_width": 1, "virtualization": "passthrough"}, Severity.INFO),
        ({"pcie_width": 2, "virtualization": "passthrough"} | BUSY, Severity.INFO),
        ({"pcie_width": 1} | BUSY, Severity.WARNING),
        ({"pcie_width": 16} | BUSY, None),
        ({"name": "NVIDIA GB10", "pcie_width": 1} | BUSY, None),
        ({"name": "NVIDIA GH200 480GB", "pcie_width": 1} | BUSY, None),
        ({"name": "NVIDIA Thor", "pcie_width": 1} | BUSY, None),
    ],
)
def test_one_lane_at_work_is_nobodys_design(gpu: dict[str, Any], severity: Severity | None) -> None:
    answer = found(pcie_degraded, linked(**gpu))
    assert (answer and (answer.severity or pcie_degraded.severity)) == severity
    assert bool(answer and answer.remedies) is (severity is Severity.WARNING)


@pytest.mark.parametrize("name", ["NVIDIA GB10", "NVIDIA GH200 480GB", "NVIDIA Thor"])
def test_a_gpu_in_a_package_has_no_generation_either(name: str) -> None:
    slow = {"pcie_generation": 1, "pcie_generation_max": 3, "pcie_generation_gpu_max": 5} | BUSY
    assert found(pcie_slow_under_load, linked(name=name, **slow)) is None
    assert found(pcie_slow_under_load, linked(**slow)) is not None


@pytest.mark.parametrize(
    ("gpu", "steps"),
    [
        ({"remap_failed": True}, ["hide-gpu", "replace-gpu"]),
        ({"remap_failed": True, "remap_pending": True}, ["hide-gpu", "replace-gpu"]),
        ({"remap_pending": True}, ["reset-gpu", "reboot"]),
        ({"ecc_uncorrected": 3}, ["reset-gpu", "reboot"]),
    ],
)
def test_what_is_worn_out_is_replaced_and_not_reset(gpu: dict[str, Any], steps: list[str]) -> None:
    m = machine_like("h100x8-linux", {"gpus": {"0": gpu}})
    answer = found(gpu_ecc, m)
    assert answer is not None
    assert [remedy.id for remedy in answer.remedies] == steps


def sliced(asked: str, live: list[str], **more: Any) -> Found | None:
    gpu = {"mig": True, "mig_devices": live}
    changes = {"env": {"CUDA_VISIBLE_DEVICES": asked}, "gpus": {"0": gpu}} | more
    return found(mig_misconfigured, machine_like("a100-docker", changes, NOT_READY))


def test_a_dead_mig_instance_is_replaced_by_a_living_one() -> None:
    answer = sliced("MIG-aaaa", ["MIG-bbbb", "MIG-cccc"])
    assert answer is not None
    (remedy,) = answer.remedies
    assert remedy.variables == {"CUDA_VISIBLE_DEVICES": "MIG-bbbb"}
    assert "MIG-cccc" in (remedy.note or "")


def test_without_any_instance_there_is_none_to_name() -> None:
    answer = sliced("MIG-aaaa", [])
    assert answer is not None
    assert [remedy.id for remedy in answer.remedies] == ["mig-instances", "mig-off"]


def test_the_list_of_a_job_is_the_schedulers_to_make() -> None:
    answer = sliced("MIG-aaaa", ["MIG-bbbb"], container={"scheduler": "slurm", "kind": ""})
    assert answer is not None
    assert not any(remedy.variables for remedy in answer.remedies)
