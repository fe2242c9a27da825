"""One driver has several voices, and any of them may prove it."""

from __future__ import annotations

import json

import pytest
from scenario_reader import machine_like

from cudadoctor import knowledge
from cudadoctor.model import factfile
from cudadoctor.model.rule import NotKnown
from cudadoctor.rules.diagnose import diagnose
from cudadoctor.rules.evidence.signs import (
    bus_key,
    cuda_works,
    driver_code,
    gpu_present,
    log_text,
    named_gpus,
    wait_for_table,
)

SILENT = (
    "driver.nvml.code",
    "driver.nvml.count",
    "driver.reported",
    "driver.cuda",
    "gpus",
    "driver.libcuda.code",
    "driver.libcuda.count",
    "driver.libcuda.version",
    "driver.kernel",
    "torch.imported",
    "smoke",
)


@pytest.mark.parametrize(
    ("message", "code", "found"),
    [
        ("Failed to initialize NVML: Driver/library version mismatch", 18, 18),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", 9, 9),
        ("No devices were found", 6, 6),
        ("Failed to initialize NVML: Insufficient Permissions", 4, 4),
        ("Unable to determine the device handle for GPU0000:B3:00.0: Unknown Error", 255, 15),
        ("Unable to determine the device handle for GPU2: GPU requires reset", 255, 16),
        ("Failed to initialize NVML: GPU requires reset", 16, 16),
        ("Failed to initialize NVML: GPU is lost", 15, 15),
        ("Failed to initialize NVML: Unknown Error", 255, 999),
        ("", 15, 15),
        ("", 255, 999),
    ],
)
def test_nvidia_smi_speaks_for_nvml(message: str, code: int, found: int) -> None:
    smi = {"found": True, "code": code, "message": message}
    nvml = {"loads": False, "why": "not found"}
    machine = machine_like("rtx4090-linux", {"driver": {"smi": smi, "nvml": nvml}}, SILENT)
    assert driver_code(machine) == found


def test_nvml_counts_before_nvidia_smi() -> None:
    smi = {"found": True, "code": 9, "message": "couldn't communicate with the NVIDIA driver"}
    assert driver_code(machine_like("rtx4090-linux", {"driver": {"smi": smi}})) == 0


def test_a_refusal_of_the_module_proves_a_gpu_that_the_bus_does_not_show() -> None:
    nvml = {"code": 18}
    hidden = {"pci": [], "driver": {"nvml": nvml, "loaded": False}}
    quiet = tuple(path for path in SILENT if path != "driver.nvml.code")
    assert gpu_present(machine_like("rtx4090-linux", hidden, quiet)) is True


def test_one_place_on_the_bus_is_written_in_several_ways() -> None:
    assert bus_key("00000000:B3:00.0") == bus_key("0000:b3:00.0") == bus_key("b3:00")
    assert bus_key("000f:01:00.0") != bus_key("0000:01:00.0")
    assert bus_key("not an address") is None


def test_a_sentence_of_the_kernel_log_may_run_over_lines() -> None:
    log = [
        "[ 1843.308145] NVRM: The NVIDIA GPU 0000:b3:00.0",
        "               NVRM: (PCI ID: 10de:26b5) installed in this system has",
        "               NVRM: fallen off the bus and is not responding to commands.",
    ]
    machine = machine_like("rtx4090-linux", {"driver": {"log": log}})
    assert "installed in this system has fallen off the bus" in log_text(machine)


def test_a_less_grave_cause_does_not_explain_an_error_away() -> None:
    failed = {"name": "matmul", "status": "failed", "detail": "relative error 0.4"}
    machine = machine_like(
        "h100x8-linux",
        {
            "limits": {"shm_bytes": 64 << 20},
            "smoke": {"device": "cuda:0", "stages": [failed]},
        },
    )
    found = {finding.cause: finding for finding in diagnose(machine, knowledge.load()).findings}
    assert found["shm-too-small"].severity.label == "warning"
    assert found["unknown"].because_of == ()


@pytest.mark.parametrize(
    ("code", "count", "works"),
    [(0, 1, True), (0, 8, True), (0, 0, False), (0, None, False), (100, 1, False)],
)
def test_cuda_works_where_libcuda_counts_a_gpu(code: int, count: int | None, works: bool) -> None:
    libcuda = {"code": code, "count": count}
    quiet = ("torch.imported", "smoke")
    machine = machine_like("rtx4090-linux", {"driver": {"libcuda": libcuda}}, quiet)
    assert cuda_works(machine) is works


@pytest.mark.parametrize(
    ("nvml", "smi", "code"),
    [
        ({"code": 12}, {"found": False}, 12),
        ({"loads": False}, {"found": False}, 12),
        ({"loads": True}, {"found": False}, None),
        ({}, {}, None),
        ({"code": 12}, {"found": True, "code": 9}, 9),
        ({"code": 12}, {"found": True, "code": 0}, 0),
        (
            {"code": 12},
            {"found": True, "message": "NVIDIA-SMI couldn’t communicate with the NVIDIA driver"},
            9,
        ),
        ({"code": 12}, {"found": True, "message": "NVIDIA driver is not loaded"}, 9),
        ({"code": 12}, {"found": True, "message": "NVIDIA: Driver Not Loaded"}, 9),
        (
            {"code": 12},
            {"found": True, "message": "GPU access blocked by the operating system"},
            17,
        ),
    ],
)
def test_without_a_library_nvidia_smi_counts_and_then_its_absence(
    nvml: dict[str, object], smi: dict[str, object], code: int | None
) -> None:
    quiet = (*SILENT, "driver.nvml", "driver.smi")
    plain = json.loads(factfile.dumps(machine_like("rtx4090-linux", {}, quiet)))
    plain["driver"] |= {"nvml": nvml, "smi": smi}
    assert driver_code(factfile.from_plain(plain)) == code


@pytest.mark.parametrize(
    ("look", "system", "present"),
    [
        ("full", "Linux", None),
        ("fast", "Linux", None),
        ("fast", "Windows", False),
        ("report", "Windows", None),
        ("report", "Linux", None),
    ],
)
def test_what_was_not_seen_on_the_bus_may_be_there(
    look: str, system: str, present: bool | None
) -> None:
    unseen = {
        "look": look,
        "platform": {"system": system},
        "driver": {"loaded": False, "nvml": {"loads": False}},
    }
    machine = machine_like("cpu-linux", unseen, ("pci", "driver.nvml.code"))
    assert gpu_present(machine) is present


def test_only_in_a_report_a_gpu_may_be_of_the_authors_telling() -> None:
    changes = {"origins": {"gpus": "the author (line 1)"}}
    assert named_gpus(machine_like("rtx4090-linux", changes))
    assert not named_gpus(machine_like("rtx4090-linux", {**changes, "look": "report"}))


def test_a_table_that_was_cut_off_leaves_the_gpus_open() -> None:
    smi = {"code": 0, "found": True}
    unknown = ("gpus", "driver.nvml", "torch.imported", "smoke")
    cut = machine_like("rtx4090-linux", {"driver": {"smi": smi}}, unknown)
    with pytest.raises(NotKnown, match=r"^gpus$"):
        wait_for_table(cut)
    wait_for_table(machine_like("rtx4090-linux", {"driver": {"smi": smi}}))
