"""Where the time goes, from figures: each kind, and thresholds where the next kind begins."""

from __future__ import annotations

import pytest

from cudadoctor.bench.judging import Peaks
from cudadoctor.bench.judging import bottleneck_of as judge

PEAKS = Peaks(flops=10e12, bytes_s=1e12, source="measured on this machine")
PRODUCT = (10**11, 10**8, 1)
"""10 ms of arithmetic, 0.1 ms of traffic."""
ADDITION = (10**6, 10**10, 1)
"""10 ms of traffic."""


def kind(**figures: object) -> str:
    return judge(**{"step_s": 0.02, "wait_s": 0.0, "peaks": PEAKS, **figures}).kind  # type: ignore[arg-type]


def test_a_quarter_of_waiting_is_data_loading() -> None:
    assert kind(wait_s=0.005, operations=(PRODUCT,)) == "data loading"
    assert kind(wait_s=0.0049, operations=(PRODUCT,)) == "compute"


def test_a_gpu_that_stands_still_waits_for_the_host() -> None:
    assert kind(device_s=0.015, operations=(PRODUCT,)) == "host overhead"
    assert kind(device_s=0.0151, operations=(PRODUCT,)) == "compute"


def test_copies_that_are_waited_for_are_not_blamed_on_the_host_alone() -> None:
    """What is measured of the GPU leaves them out: the figures cannot tell them apart."""
    assert (
        "waiting for the CPU or for data copies"
        in judge(step_s=0.02, wait_s=0.0, device_s=0.01, peaks=PEAKS).why
    )


def test_the_larger_wait_decides() -> None:
    assert kind(wait_s=0.006, device_s=0.004) == "host overhead"
    assert kind(wait_s=0.009, device_s=0.004) == "data loading"


def test_traffic_is_memory_bandwidth() -> None:
    assert kind(operations=(ADDITION,)) == "memory bandwidth"


@pytest.mark.parametrize(
    "figures",
    [{}, {"operations": (PRODUCT,), "peaks": None}, {"operations": ((10**9, 10**5, 1),)}],
)
def test_what_does_not_add_up_is_not_known(figures: dict[str, object]) -> None:
    assert kind(**figures) == "not known"


def test_on_a_cpu_no_share_of_a_gpu_is_told() -> None:
    found = judge(step_s=0.02, wait_s=0.0, operations=(PRODUCT,), peaks=PEAKS)
    assert not {"device_share", "host_share"} & found.figures.keys()
    assert found.figures["tflops"] == pytest.approx(5.0)
