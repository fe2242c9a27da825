"""Where it is measured: a GPU that nobody uses, what was asked for, or the CPU, and why."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from packaging.version import Version

from cudadoctor import knowledge
from cudadoctor.bench import command, judging
from cudadoctor.bench.command import NotMeasured
from cudadoctor.bench.judging import Peaks
from cudadoctor.model.machine import Gpu, GpuProcess


def look(*names: str) -> dict[str, Any]:
    devices = [
        {
            "index": index,
            "name": name,
            "capability": "9.0",
            "bus_id": f"0000:{index + 1:02x}:00.0",
            "total_bytes": 1 << 37,
        }
        for index, name in enumerate(names)
    ]
    return {
        "available": bool(names),
        "count": len(names),
        "built": True,
        "error": "",
        "devices": devices,
        "torch": "2.14.1+cu130",
        "triton": True,
        "compiler": "/usr/bin/g++",
        "c_compiler": "/usr/bin/gcc",
        "environment": [],
        "cores": 16,
        "forks": True,
        "cpu_bf16": False,
    }


def gpu(index: int, *busy: str) -> Gpu:
    processes = tuple(GpuProcess(pid=7, name=name) for name in busy)
    bus_id = f"00000000:{index + 1:02X}:00.0"
    return Gpu(index=index, bus_id=bus_id, processes=processes, utilization=90 if busy else 0)


def test_a_gpu_that_others_use_is_left_alone_and_told() -> None:
    found = command.place_of(look("H200", "H200"), None, (gpu(0, "python"), gpu(1)))
    assert found.device == "cuda:1"
    assert found.notes == ("GPU 0 is not used: the GPU is busy (90% by python (7))",)


def test_what_is_asked_for_is_used_whoever_else_uses_it() -> None:
    found = command.place_of(look("H200"), "cuda:0", (gpu(0, "python"),))
    assert (found.device, found.name) == ("cuda:0", "H200")


def test_where_all_gpus_are_in_use_the_cpu_is_measured_and_says_so() -> None:
    found = command.place_of(look("H200"), None, (gpu(0, "python"),))
    assert (found.device, found.name) == ("cpu", None)
    assert found.notes


def test_without_a_gpu_it_is_the_cpu() -> None:
    assert command.place_of(look(), None, ()).device == "cpu"


def test_a_gpu_that_is_not_there_is_an_error() -> None:
    with pytest.raises(NotMeasured, match="there is no cuda:3"):
        command.place_of(look("H200"), "cuda:3", None)


def test_a_gpu_for_one_process_at_a_time_is_refused_in_a_sentence() -> None:
    taken = msgspec.structs.replace(gpu(0), compute_mode="exclusive")
    cure = "exclusive compute mode.*nvidia-smi -i 0000:01:00.0 -c DEFAULT"
    with pytest.raises(NotMeasured, match=cure):
        command.place_of(look("H200"), "cuda:0", (taken,))
    other = msgspec.structs.replace(gpu(1), compute_mode="exclusive")
    assert command.place_of(look("H200"), "cuda:0", (gpu(0), other)).device == "cuda:0"


def test_what_can_be_tried_follows_from_the_device() -> None:
    place = command.place_of(look("NVIDIA H200"), None, None)
    found = command.ground_of(look("NVIDIA H200"), place)
    assert (found.gpu, found.capability, found.torch) == (True, Version("9.0"), Version("2.14.1"))
    assert (found.triton, found.compiler, found.cores) == (True, True, 16)


def test_peaks_are_those_of_the_type_that_torch_computes_in() -> None:
    place = command.place_of(look("NVIDIA H200"), None, None)
    kb = knowledge.load()
    products = judging.peaks_of(place.name, kb, "decoder")
    convolutions = judging.peaks_of(place.name, kb, "cnn")
    assert products is not None
    assert convolutions is not None
    assert (products.flops, convolutions.flops) == (67e12, 494.7e12)
    assert judging.peaks_of(None, kb, "cnn") is None


def test_a_name_that_stands_for_two_boards_has_no_peaks() -> None:
    kb = knowledge.load()
    assert kb.peaks("NVIDIA A100-SXM4") is None
    assert kb.peaks("NVIDIA A100-SXM4-80GB") is not None
    assert kb.peaks("Tesla V100-SXM2-16GB") is not None


def test_a_slice_of_a_card_is_not_judged_by_the_whole_card() -> None:
    kb = knowledge.load()
    for name in ("NVIDIA H200 MIG 1g.18gb", "NVIDIA A100-SXM4-80GB MIG 3g.40gb"):
        place = command.place_of(look(name), None, None)
        assert judging.peaks_of(place.name, kb, "decoder") is None


def test_what_is_measured_far_below_the_data_sheet_is_believed() -> None:
    table = Peaks(13e12, 360e9, "according to the GPU's data sheet")
    same = Peaks(12e12, 330e9, "measured on this machine")
    narrow = Peaks(9e12, 215e9, "measured on this machine")
    assert judging.believed(table, same, "decoder") == table
    found = judging.believed(table, narrow, "decoder")
    assert found is not None
    assert (found.flops, found.bytes_s) == (13e12, 215e9)
    assert "well below" in found.source
    assert judging.believed(None, same, "cnn") == same
    assert judging.believed(table, None, "cnn") == table
    assert judging.believed(None, None, "cnn") is None


def test_a_measured_product_says_nothing_of_convolutions() -> None:
    tf32 = Peaks(156e12, 1555e9, "according to the GPU's data sheet")
    assert judging.believed(tf32, Peaks(19e12, 1400e9, "measured on this machine"), "cnn") == tf32


def test_a_variable_that_falsifies_is_told() -> None:
    changed = {"environment": ["CUDA_LAUNCH_BLOCKING=1", "TORCHDYNAMO_DISABLE=1"]}
    on_a_gpu = command.place_of(look("NVIDIA H200") | changed, None, None)
    assert on_a_gpu.notes == (
        "CUDA_LAUNCH_BLOCKING=1 is set: every operation waits for the GPU, so all measured "
        "speeds are lower than normal",
        "TORCHDYNAMO_DISABLE=1 is set: torch.compile does nothing, so its results are meaningless",
    )
    on_a_cpu = command.place_of(look() | changed, None, None)
    assert [note.split(" ")[0] for note in on_a_cpu.notes] == ["TORCHDYNAMO_DISABLE=1"]


@pytest.mark.parametrize(
    ("names", "compiler", "c_compiler", "compiles"),
    [
        (("NVIDIA H200",), "", "/usr/bin/gcc", True),
        (("NVIDIA H200",), "/usr/bin/g++", "", False),
        ((), "", "/usr/bin/gcc", False),
        ((), "/usr/bin/g++", "", True),
    ],
)
def test_a_gpu_needs_a_c_compiler_and_a_cpu_one_for_cpp(
    names: tuple[str, ...], compiler: str, c_compiler: str, compiles: bool
) -> None:
    found = look(*names) | {"compiler": compiler, "c_compiler": c_compiler}
    assert command.ground_of(found, command.place_of(found, None, None)).compiler is compiles
