"""Every function of NVML with every error: nothing breaks the probe, and nothing false is said.

The fixed part of the product; benchmarks/nvml_product.py runs all of it.
"""

from __future__ import annotations

import re
import shutil
import sys

import pytest
from fault_fixtures import (
    CODES,
    ESSENTIAL,
    GARBAGE,
    Fault,
    Seen,
    all_injected,
    functions,
    played,
    product,
    standing,
    unexplained,
    wrong,
)
from share import share
from standin_fixtures import HostWith, StandIns

from cudadoctor.probes.nvml import module_folder

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the stand-ins are made for Linux"),
    pytest.mark.skipif(not (shutil.which("gcc") or shutil.which("cc")), reason="no C compiler"),
]

STEP = 31
"""Coprime with the numbers of codes and functions: each of them comes up, with 1 and 8 GPUs."""
SOME = ("nvmlSystemGetDriverVersion", "nvmlDeviceGetUUID", "nvmlDeviceGetNvLinkState")
IDENTITY = {
    *ESSENTIAL,
    "nvmlSystemGetNVMLVersion",
    "nvmlSystemGetDriverVersion",
    "nvmlSystemGetCudaDriverVersion_v2",
    "nvmlSystemGetCudaDriverVersion",
    "nvmlDeviceGetName",
    "nvmlDeviceGetUUID",
}
"""Asked before the first GPU is known: a process that ends there has told of none."""


def faulty(kinds: tuple[str, ...], gpus: int = 1) -> list[Fault]:
    return [Fault(function, kind, gpus) for function in functions() for kind in kinds]


def all_right(standins: StandIns, faults: list[Fault]) -> list[tuple[Fault, Seen]]:
    runs = all_injected(standins, faults)
    sys.stdout.write(f"{len(runs)} runs of the real probe\n")
    bad = [words for fault, seen in runs if (words := wrong(fault, seen))]
    assert not bad, "\n".join(bad)
    return runs


def test_the_product_names_every_function_that_the_probe_calls(standins: StandIns) -> None:
    host = HostWith(standins.environment("mig = 1\nprocesses = 1", standins.nvml()))
    said = host.inside("nvml.py", module_folder() or "", timeout_s=60).stdout
    called = set(re.findall(r'"call": "(nvml\w+)"', said))
    known = set(functions())
    assert len(called) > 40
    forms = ("", "_v2", "_v3", "WithFlags")
    assert not [name for name in called if not known & {name + form for form in forms}]


def test_the_machine_of_these_tests_is_healthy(standins: StandIns) -> None:
    runs = all_right(standins, [Fault("nothing", "0", count) for count in (1, 8)])
    assert [seen.whole.verdict for _, seen in runs] == ["healthy"] * 2
    assert not [gap for _, seen in runs for gap in seen.looked.gaps]


@pytest.mark.parametrize("gpus", [1, 8])
@pytest.mark.parametrize("function", ESSENTIAL)
def test_what_everything_hangs_on_fails_under_its_own_name(
    standins: StandIns, function: str, gpus: int
) -> None:
    """Every code once, with one GPU or with eight."""
    codes = sorted(CODES)[gpus % 2 :: 2]
    all_right(standins, [Fault(function, str(code), gpus) for code in codes])


def test_a_question_that_fails_is_a_gap_and_no_fault(standins: StandIns) -> None:
    chosen = [fault for fault in product() if not fault.essential][::STEP]
    assert {fault.function for fault in chosen} == {*functions()} - {*ESSENTIAL}
    assert {fault.does for fault in chosen} == {str(code) for code in CODES}
    for fault, seen in all_right(standins, chosen):
        assert len(seen.gpus) == fault.gpus
        gone = fault.does in ("15", "16")
        assert not [gpu for gpu in seen.gpus if gpu.code and not gone]


def test_a_driver_not_loaded_is_called_so(standins: StandIns) -> None:
    seen = played(standins, "nvmlInitWithFlags = 9", 1, loaded=False)
    assert seen.alone.primary == "driver-not-loaded"
    assert standing(seen.whole) == []


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_is_refused_or_harmless(standins: StandIns, kind: str) -> None:
    for fault, seen in all_injected(standins, share(faulty((kind,)), 4, GARBAGE.index(kind))):
        assert seen.nvml.signal is None, fault
        assert seen.nvml.hung is None, fault
        assert not unexplained(seen.looked), fault
        words = [str(getattr(gpu, "name", "")) for gpu in seen.gpus]
        assert all(word.isprintable() for word in words), fault


def test_a_missing_function_is_an_older_driver_and_no_fault(standins: StandIns) -> None:
    for fault, seen in all_right(standins, share(faulty(("missing",)), 3)):
        assert seen.nvml.signal is None, fault
        assert seen.nvml.loads is True, fault


def test_a_crash_in_any_function_keeps_what_was_told_before(standins: StandIns) -> None:
    some = share(faulty(("crash",), 2), 3, 1)
    asked = [fault for fault in some if "Mig" not in fault.function]
    for fault, seen in all_injected(standins, asked):
        if seen.nvml.signal is None:  # a fallback that was not asked for
            assert seen.looked.gaps == (), fault
            continue
        assert seen.nvml.signal == 11, fault
        assert str(seen.nvml.call).partition("_v")[0] in fault.function, fault
        assert not unexplained(seen.looked), fault
        if fault.function not in IDENTITY:
            assert seen.gpus[0].name, fault
        assert set(standing(seen.whole)) <= {"unknown"}, fault


@pytest.mark.parametrize("function", [*ESSENTIAL, *SOME])
def test_a_hang_in_any_function_is_named(standins: StandIns, function: str) -> None:
    [(fault, seen)] = all_injected(standins, [Fault(function, "hang", 2)], limit_s=1.5)
    assert str(seen.nvml.hung) in function, fault
    assert not unexplained(seen.looked), fault
    assert seen.false_alarms() <= {"gpu-unhealthy-hardware"}
    assert seen.alone.primary is None, "a fast look draws no conclusion from silence"


def of_a_gpu() -> list[str]:
    return [
        function
        for function in functions()
        if function.startswith("nvmlDevice") and "Count" not in function
    ]


@pytest.mark.parametrize("does", [*GARBAGE, "crash", "2", "3", "13", "16", "17", "25", "28", "999"])
def test_a_fault_of_one_gpu_takes_nothing_from_the_other(standins: StandIns, does: str) -> None:
    healthy = played(standins, "count = 2\nprocesses = 1", 2).gpus[0]
    for function in share(of_a_gpu(), 8, len(does)):
        seen = played(standins, f"count = 2\nprocesses = 1\ngpu1.{function} = {does}", 2)
        assert len(seen.gpus) == 2, function
        assert seen.gpus[0] == healthy, function
        assert not unexplained(seen.looked), function
        failed = function in ESSENTIAL and does.isdecimal()
        codes = {int(does)} if failed else {None, 16} if does == "16" else {None}
        assert seen.gpus[1].code in codes, function


@pytest.mark.parametrize("function", ["nvmlDeviceGetName", "nvmlDeviceGetHandleByIndex_v2"])
def test_what_the_others_are_is_asked_without_a_gpu_that_hangs(
    standins: StandIns, function: str
) -> None:
    said = f"count = 4\ngpu1.{function} = hang\ngpu2.{function} = hang"
    seen = played(standins, said, 4, limit_s=1.5)
    assert (seen.nvml.hung, seen.nvml.hung_gpu) == (function.partition("_")[0], 1)
    assert [bool(gpu.power_w) for gpu in seen.gpus] == [True, False, False, True]
    assert not unexplained(seen.looked)


# --- a GPU that goes away while it is asked ------------------------------------------------


@pytest.mark.parametrize("calls", [0, 1, 2, 5, 9, 14, 20, 30, 42])
@pytest.mark.parametrize("code", [15, 16])
def test_a_gpu_that_goes_between_two_calls_is_lost(
    standins: StandIns, calls: int, code: int
) -> None:
    seen = played(standins, f"count = 4\ngpu2.after = {calls} {code}", 4)
    assert [gpu.code for gpu in seen.gpus] == [None, None, code, None]
    assert seen.alone.primary == "gpu-lost"
    assert seen.alone.findings[0].values["which"] == "2"
    assert all(gpu.power_w for gpu in seen.gpus if gpu.index != 2)


@pytest.mark.parametrize("calls", range(3, 9))
def test_a_driver_that_goes_between_two_calls_is_no_crash(standins: StandIns, calls: int) -> None:
    seen = played(standins, f"count = 2\nafter = {calls} 15", 2)
    assert seen.nvml.loads is True
    assert seen.false_alarms() <= {"gpu-lost"}


@pytest.mark.parametrize("does", ["hang", "crash"])
def test_a_gpu_that_ends_the_process_leaves_the_others_known(standins: StandIns, does: str) -> None:
    seen = played(standins, f"count = 4\ngpu1.after = 25 {does}", 4, limit_s=2.5)
    assert all(gpu.capability for gpu in seen.gpus)
    assert len(seen.gpus) == 4
    assert bool(seen.nvml.hung) == (does == "hang")
    assert standing(seen.alone) == []
