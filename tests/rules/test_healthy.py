"""Healthy is earned: without one of the facts that it rests on, no machine is called so."""

from __future__ import annotations

import json
from itertools import combinations
from typing import Any

import pytest
from scenario_reader import HERE, merged

from cudadoctor import knowledge
from cudadoctor.model import factfile
from cudadoctor.model.findings import Diagnosis
from cudadoctor.rules.diagnose import diagnose

KB = knowledge.load()
GREEN = ("healthy", "warnings")
MACHINES: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text(encoding="utf-8"))
    for path in sorted((HERE / "machines").glob("*.json"))
}
WITH_GPU = [name for name, plain in MACHINES.items() if plain["torch"]["build"] == "cuda"]
WITHOUT = [name for name in MACHINES if name not in WITH_GPU]

EVERYWHERE: tuple[tuple[str, ...], ...] = (
    ("torch.installed",),
    ("torch.version",),
    ("torch.build",),
    ("torch.imported",),
    ("torch.imported.ok",),
    ("smoke",),
)
ON_A_GPU = (
    *EVERYWHERE,
    ("driver.libcuda.code",),
    ("driver.libcuda.count",),
    ("gpus",),
    ("torch.cuda",),
    ("torch.archs",),
    ("torch.imported.cuda_available",),
    ("torch.imported.device_count",),
)
WHERE_NVML_MUST_BE = (
    ("driver.kernel", "driver.reported"),
    ("driver.nvml.code",),
    ("driver.nvml.count",),
    ("gpus.0.name", "gpus.0.uuid", "gpus.0.bus_id"),
)
"""Facts that stand for one requirement each: without all of a row's, it is not known."""


def _conjunction(name: str) -> tuple[tuple[str, ...], ...]:
    if name in WITHOUT:
        return EVERYWHERE if name == "macbook" else (*EVERYWHERE, ("pci",))
    if name == "orin-jetson":
        return tuple(row for row in ON_A_GPU if row != ("gpus",))
    bus = {"a100-docker": ("driver.nodes",), "rtx3060-wsl": (), "rtx4090-windows": ()}
    place = bus.get(name, ("pci",))
    return (*ON_A_GPU, *WHERE_NVML_MUST_BE, *((place,) if place else ()))


ZERO: tuple[dict[str, Any], ...] = (
    {"driver": {"libcuda": {"loads": False, "code": None, "count": None}}},
    {"driver": {"libcuda": {"loads": False}}},
    *({"driver": {"libcuda": {"code": code}}} for code in (1, 3, 34, 46, 100, 304, 802, 999)),
    {"driver": {"libcuda": {"count": 0}}},
    {"driver": {"libcuda": {"count": 31}}},
    {"driver": {"libcuda": {"signal": 11}}},
    {"driver": {"libcuda": {"hung": "cuInit"}}},
    {"driver": {"nvml": {"signal": 11}}},
    {"driver": {"nvml": {"hung": "nvmlDeviceGetUUID"}}},
    {"driver": {"smi": {"hung": True}}},
    {"torch": {"imported": {"hung": True}}},
    {"torch": {"imported": {"signal": 11}}},
    {"torch": {"imported": {"ok": False, "error": "ImportError: odd"}}},
    {"torch": {"imported": {"cuda_available": False}}},
    {"torch": {"imported": {"device_count": 0}}},
    {"torch": {"imported": {"device_count": 31}}},
    {"torch": {"imported": {"cuda_error": "CUDA unknown error"}}},
    {"torch": {"build": "cpu"}},
    {"torch": {"installed": False}},
    {"smoke": {"stages": {"1": {"status": "failed"}}}},
    {"smoke": {"stages": {"1": {"status": "timed-out"}}}},
    {"smoke": {"stages": []}},
    {"smoke": {"ended": "killed by signal 9"}},
)
NVML: tuple[dict[str, Any], ...] = (
    *({"driver": {"nvml": {"code": code}}} for code in (1, 4, 9, 12, 15, 16, 17, 18, 27, 999)),
    {"driver": {"nvml": {"count": 31}}},
    {"driver": {"nvml": {"count": 0}}},
    {"gpus": {"0": {"failed": 999}}},
    *({"gpus": {"0": {"code": code}}} for code in (1, 2, 8, 11, 15, 16, 17, 18, 23, 25)),
    {"gpus": []},
)


def _judged(plain: dict[str, Any]) -> Diagnosis:
    return diagnose(factfile.from_plain(plain), KB)


def _without(plain: dict[str, Any], *paths: str) -> dict[str, Any]:
    copy: dict[str, Any] = json.loads(json.dumps(plain))
    for path in paths:
        place: Any = copy
        *parents, last = path.split(".")
        for part in parents:
            place = place[int(part)] if isinstance(place, list) else place.get(part, {})
        if isinstance(place, dict):
            place.pop(last, None)
    return copy


def _contradictions(name: str) -> tuple[dict[str, Any], ...]:
    plain = MACHINES[name]
    found = ZERO if name == "orin-jetson" else (*ZERO, *NVML)
    if plain.get("pci") and not plain["container"]["kind"]:
        second = plain["pci"][0] | {"address": "0000:e1:00.0"}
        found += ({"pci": [*plain["pci"], second]},)
    if plain["container"]["kind"]:
        nodes = plain["driver"]["nodes"]
        found += ({"driver": {"nodes": [*nodes, {"path": "/dev/nvidia1", "errno": 0}]}},)
    return found


@pytest.mark.parametrize("name", MACHINES)
def test_no_fact_of_the_conjunction_may_be_missing(name: str) -> None:
    green = [
        row
        for row in _conjunction(name)
        if _judged(_without(MACHINES[name], *row)).verdict in GREEN
    ]
    assert green == []


@pytest.mark.parametrize("name", MACHINES)
def test_no_two_facts_of_the_conjunction_may_be_missing(name: str) -> None:
    rows = _conjunction(name)
    green = [
        pair
        for pair in combinations(rows, 2)
        if _judged(_without(MACHINES[name], *pair[0], *pair[1])).verdict in GREEN
    ]
    assert green == []


@pytest.mark.parametrize("name", WITH_GPU)
def test_what_contradicts_the_conjunction_is_never_green(name: str) -> None:
    plain = MACHINES[name]
    green = [
        contradiction
        for contradiction in _contradictions(name)
        if _judged(merged(plain, contradiction)).verdict in GREEN
    ]
    assert green == []


@pytest.mark.parametrize("name", WITH_GPU)
def test_neither_is_it_in_a_fast_look(name: str) -> None:
    fast = _without(MACHINES[name], "torch.imported", "smoke") | {"look": "fast"}
    assert _judged(fast).verdict == "healthy"
    asked = [row for row in _conjunction(name) if not row[0].startswith(("torch.imp", "smoke"))]
    assert [row for row in asked if _judged(_without(fast, *row)).verdict in GREEN] == []
    driver = [
        contradiction
        for contradiction in _contradictions(name)
        if {"driver", "gpus", "pci"} & contradiction.keys()
    ]
    assert [
        contradiction
        for contradiction in driver
        if _judged(merged(fast, contradiction)).verdict in GREEN
    ] == []


@pytest.mark.parametrize("name", MACHINES)
def test_what_is_missing_is_named_with_the_command_that_decides(name: str) -> None:
    for row in _conjunction(name):
        diagnosis = _judged(_without(MACHINES[name], *row))
        if diagnosis.verdict == "undecided":
            assert any(undecided.matters for undecided in diagnosis.undecided), row
            assert diagnosis.next_command, row
            assert diagnosis.next_command not in (("env",), ("printenv",)), "it prints secrets"


def test_a_gpu_whose_node_opens_is_not_fenced_in() -> None:
    plain = MACHINES["a100-docker"]
    for code in (4, 999):
        second = plain["gpus"][0] | {"index": 1, "code": code, "bus_id": "00000000:02:00.0"}
        nodes = [*plain["driver"]["nodes"], {"path": "/dev/nvidia1", "errno": 0}]
        driver = {"nvml": {"count": 2}, "nodes": nodes}
        changed = merged(plain, {"gpus": [plain["gpus"][0], second], "driver": driver})
        assert _judged(changed).verdict not in GREEN


@pytest.mark.parametrize("name", WITH_GPU)
def test_a_document_that_calls_itself_a_report_is_not_trusted_more(name: str) -> None:
    contradictions = [
        {"driver": {"nvml": {"signal": 11}}},
        {"driver": {"nvml": {"hung": "nvmlInit_v2"}}},
        {"driver": {"libcuda": {"hung": "cuInit"}}},
        {"driver": {"libcuda": {"count": 0}}},
        {"driver": {"libcuda": {"code": 999}}},
        {"torch": {"imported": {"cuda_available": False}}},
    ]
    report = MACHINES[name] | {"look": "report"}
    assert [
        contradiction
        for contradiction in contradictions
        if _judged(merged(report, contradiction)).verdict in GREEN
    ] == []


@pytest.mark.parametrize(
    "promise", [{"SLURM_JOB_GPUS": "0"}, {"SLURM_GPUS_ON_NODE": "2"}, {"PBS_GPUFILE": "/f"}]
)
def test_a_promised_gpu_that_is_not_there_is_missed(promise: dict[str, str]) -> None:
    diagnosis = _judged(merged(MACHINES["cpu-linux"], {"env": promise}))
    assert diagnosis.verdict == "broken"
    assert "indicates a GPU" in diagnosis.findings[0].title


@pytest.mark.parametrize(
    "torch",
    [
        {"build": "rocm", "version": "2.9.1+rocm6.4", "text": "2.9.1+rocm6.4"},
        {"build": "xpu", "version": "2.9.1+xpu", "text": "2.9.1+xpu"},
    ],
)
def test_a_torch_for_a_gpu_that_is_not_there_is_not_healthy(torch: dict[str, str]) -> None:
    matrox = [{"address": "0000:03:00.0", "vendor": "102b", "device_id": "0538"}]
    changes = {"torch": torch, "pci": matrox, "packages": []}
    assert _judged(merged(MACHINES["cpu-linux"], changes)).verdict not in GREEN


def test_unknown_variables_are_asked_for_without_the_secrets_among_them() -> None:
    diagnosis = _judged(_without(MACHINES["rtx4090-linux"], "env"))
    assert diagnosis.next_command == ("printenv", "CUDA_VISIBLE_DEVICES")


def test_ignoring_what_is_unexplained_does_not_make_it_healthy() -> None:
    plain = merged(MACHINES["rtx4090-linux"], {"driver": {"libcuda": {"count": 31}}})
    machine = factfile.from_plain(plain)
    assert diagnose(machine, KB, ignore=("unknown",)).verdict == "undecided"


def test_a_catch_all_is_the_root_only_where_nothing_else_is() -> None:
    changes = {
        "driver": {"libcuda": {"count": 31}, "xids": [{"code": 119, "bus_id": "0000:01:00"}]}
    }
    diagnosis = _judged(merged(MACHINES["rtx4090-linux"], changes))
    assert (diagnosis.verdict, diagnosis.primary) == ("broken", "gpu-unhealthy-hardware")


# --- sound, however odd -------------------------------------------------------------------------

_NODES = [{"path": f"/dev/nvidia{n}", "errno": 0 if n == 3 else 1} for n in range(8)]
_ONE = {"torch": {"imported": {"device_count": 1, "capabilities": ["9.0"]}}}
_AMD = [{"address": "0000:03:00.0", "vendor": "amd", "device_id": "744c", "bound": "amdgpu"}]
SOUND: dict[str, tuple[str, dict[str, Any]]] = {
    "one of eight GPUs, by CUDA_VISIBLE_DEVICES": (
        "h100x8-linux",
        {"env": {"CUDA_VISIBLE_DEVICES": "3"}, "driver": {"libcuda": {"count": 1}}, **_ONE},
    ),
    "a job whose handles of other GPUs are refused": (
        "h100x8-linux",
        {
            "container": {"scheduler": "slurm"},
            "env": {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "3", "CUDA_VISIBLE_DEVICES": "0"},
            "gpus": {str(n): {"code": 4} for n in range(8) if n != 3},
            "driver": {"nodes": _NODES, "libcuda": {"count": 1}},
            **_ONE,
        },
    ),
    "a container without NVML, since it asked for compute alone": (
        "a100-docker",
        {
            "env": {"NVIDIA_DRIVER_CAPABILITIES": "compute", "NVIDIA_VISIBLE_DEVICES": "0"},
            "driver": {"nvml": {"loads": False, "code": None}},
            "gpus": None,
        },
    ),
    "a second GPU that belongs to a virtual machine": (
        "rtx4090-linux",
        {
            "pci": {
                "1": {
                    "address": "0000:02:00.0",
                    "vendor": "nvidia",
                    "device_id": "2684",
                    "bound": "vfio-pci",
                }
            }
        },
    ),
    "a MIG slice": (
        "a100-docker",
        {"gpus": {"0": {"mig": True, "mig_devices": ["MIG-a", "MIG-b"]}}},
    ),
    "Tegra without NVML": (
        "orin-jetson",
        {"driver": {"nvml": {"loads": False, "code": None}}, "gpus": []},
    ),
    "an AMD GPU and its torch": (
        "cpu-linux",
        {
            "pci": _AMD,
            "packages": [],
            "torch": {
                "build": "rocm",
                "version": "2.9.1+rocm6.4",
                "text": "2.9.1+rocm6.4",
                "hip": "6.4",
                "imported": {"cuda_available": True, "device_count": 1},
            },
            "smoke": {"device": "cuda:0"},
        },
    ),
    "an AMD GPU and its torch in a job": (
        "cpu-linux",
        {
            "pci": _AMD,
            "packages": [],
            "container": {"scheduler": "slurm"},
            "env": {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0"},
            "torch": {
                "build": "rocm",
                "version": "2.9.1+rocm6.4",
                "text": "2.9.1+rocm6.4",
                "imported": {"cuda_available": True, "device_count": 1},
            },
        },
    ),
    "an AMD GPU at work beside an old card on nouveau": (
        "cpu-linux",
        {
            "pci": [
                *_AMD,
                {
                    "address": "0000:04:00.0",
                    "vendor": "nvidia",
                    "device_id": "128b",
                    "bound": "nouveau",
                },
            ],
            "packages": [],
            "torch": {
                "build": "rocm",
                "version": "2.9.1+rocm6.4",
                "text": "2.9.1+rocm6.4",
                "imported": {"cuda_available": True, "device_count": 1},
            },
        },
    ),
    "an AMD GPU and torch for the CPU": ("cpu-linux", {"pci": _AMD}),
}


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_machine_is_healthy_however_odd_it_is(name: str) -> None:
    like, changes = SOUND[name]
    diagnosis = _judged(merged(MACHINES[like], changes))
    assert diagnosis.verdict == "healthy", [finding.title for finding in diagnosis.findings]
