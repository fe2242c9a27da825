"""CUDA_VISIBLE_DEVICES against a driver library that counts GPUs without heeding it."""

from __future__ import annotations

import pytest
from scenario_reader import machine_like

from cudadoctor.pipeline import judge

HIDES = "visible-devices-hides-gpu"


@pytest.mark.parametrize("value", ["", "-1", "1", "1,0", '"0"', "NoDevFiles", " "])
def test_a_value_that_leaves_no_gpu_is_the_cause_whatever_libcuda_counts(value: str) -> None:
    changes = {"env": {"CUDA_VISIBLE_DEVICES": value}, "look": "fast"}
    machine = machine_like("rtx4090-linux", changes, ("smoke", "torch.imported"))
    assert machine.driver.libcuda.count == 1
    assert judge(machine).diagnosis.primary == HIDES


@pytest.mark.parametrize("value", ["0", "GPU-of-a-driver-that-names-them-anew", "MIG-1"])
def test_a_value_under_which_cuda_finds_a_gpu_hides_none(value: str) -> None:
    changes = {"env": {"CUDA_VISIBLE_DEVICES": value}, "look": "fast"}
    machine = machine_like("rtx4090-linux", changes, ("smoke", "torch.imported"))
    assert judge(machine).diagnosis.primary is None


def test_a_gpu_that_torch_has_trained_on_is_not_hidden() -> None:
    machine = machine_like("rtx4090-linux", {"env": {"CUDA_VISIBLE_DEVICES": "1"}})
    assert judge(machine).diagnosis.primary != HIDES
