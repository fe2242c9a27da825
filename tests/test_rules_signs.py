"""One driver has several voices, and any of them may prove it."""

from __future__ import annotations

import pytest
from scenario_reader import machine_like

from cudadoctor import knowledge
from cudadoctor.diagnose import diagnose
from cudadoctor.rules.signs import bus_key, driver_code, gpu_present, log_text

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
    found = {f.cause: f for f in diagnose(machine, knowledge.load()).findings}
    assert found["shm-too-small"].severity.label == "warning"
    assert found["unknown"].because_of == ()
