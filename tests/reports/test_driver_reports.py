"""Reports about the driver, the GPU and the box end in their cause."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cudadoctor.knowledge import load
from cudadoctor.reports.reading import read_report
from cudadoctor.rules.diagnose import by_rules, diagnose

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REPORTS = tomllib.loads(Path(__file__).with_name("driver_reports.toml").read_text("utf-8"))
HARMLESS = ("not-environment", "torch-bug", None)


def named(report: dict[str, str]) -> str:
    return f"{report['cause']}: {' '.join(report['text'].split())[:60]}"


@pytest.mark.parametrize("report", REPORTS["report"], ids=named)
def test_a_report_ends_in_its_cause(report: dict[str, str]) -> None:
    knowledge = load()
    diagnosis = by_rules(read_report(report["text"], knowledge), knowledge)
    if report["cause"]:
        assert diagnosis.primary == report["cause"]
    else:
        assert diagnosis.primary in HARMLESS


def test_a_gpu_that_only_the_author_names_is_no_answer_of_the_driver() -> None:
    knowledge = load()
    text = (
        "My RTX 3080. NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    )
    machine = read_report(text, knowledge)
    assert machine.gpus
    assert diagnose(machine, knowledge).primary == "driver-not-loaded"


def test_lspci_names_the_gpus_and_their_drivers() -> None:
    text = """
01:00.0 VGA compatible controller [0300]: NVIDIA Corporation GA104 [GeForce RTX 3070] [10de:2484]
        Kernel driver in use: nvidia
06:00.0 VGA compatible controller: Advanced Micro Devices, Inc. [AMD/ATI] Cezanne (rev c6)
        Kernel driver in use: amdgpu
"""
    pci = read_report(text, load()).pci
    assert pci is not None
    assert [(device.vendor, device.device_id, device.bound) for device in pci] == [
        ("nvidia", "2484", "nvidia"),
        ("amd", "?", "amdgpu"),
    ]


def test_paths_tell_the_python_and_prompts_the_box() -> None:
    text = """
root@4f1f0a9b8c7d:/workspace# python train.py
  File "/opt/conda/lib/python3.10/site-packages/torch/cuda/__init__.py", line 247, in _lazy_init
"""
    machine = read_report(text, load())
    assert str(machine.python.version) == "3.10"
    assert machine.python.kind == "conda"
    assert machine.container.kind == "docker"
    assert machine.platform.system == "Linux"


def test_both_versions_of_a_mismatch_are_read() -> None:
    text = (
        "NVRM: API mismatch: the client has the version 535.129.03, but "
        "NVRM: this kernel module has the version 535.113.01."
    )
    driver = read_report(text, load()).driver
    assert (str(driver.library), str(driver.kernel)) == ("535.129.03", "535.113.01")
