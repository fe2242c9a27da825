"""Ways out that look right from afar: what is offered must help on that very machine."""

from __future__ import annotations

import pytest
from scenario_reader import machine_like

from cudadoctor.pipeline import judge

_LEVELS = ("driver.cuda", "driver.libcuda", "driver.nvml.version")


def _offered(name: str, capability: str, driver: str) -> list[str]:
    """The steps on a machine with that GPU under an old driver, and a torch of CUDA 13."""
    changes = {
        "gpus": {"0": {"name": name, "capability": capability, "device_id": None}},
        "pci": None,
        "driver": {"kernel": driver, "library": driver, "reported": driver},
    }
    machine = machine_like("rtx4090-linux", changes, ("smoke", "torch.imported", *_LEVELS))
    return [step.id for step in judge(machine).plan.steps]


@pytest.mark.parametrize(
    ("name", "capability", "driver", "helps"),
    [
        ("NVIDIA H100 80GB HBM3", "9.0", "535.183.01", True),
        ("NVIDIA H100 80GB HBM3", "9.0", "575.57.08", False),  # a branch that has ended
        ("NVIDIA GeForce RTX 4090", "8.9", "535.183.01", False),
        ("Tesla V100-SXM2-16GB", "7.0", "535.183.01", False),  # torch has no code for it
        ("Tesla K80", "3.7", "470.256.02", False),
    ],
)
def test_forward_compatibility_is_offered_only_where_it_helps(
    name: str, capability: str, driver: str, helps: bool
) -> None:
    assert ("cuda-compat" in _offered(name, capability, driver)) is helps
