"""From lines to facts, and the choices of a guest: no interpreter is started here."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from packaging.version import Version

import cudadoctor.smoke
from cudadoctor.host.children import Ran
from cudadoctor.model.machine import Gpu, GpuProcess, Imported, Smoke
from cudadoctor.smoke import short_bus_id, skipped
from cudadoctor.smoke.inside import wire
from cudadoctor.smoke.inside.spec import Chosen, choose
from cudadoctor.smoke.reading import Broken, libraries, parse, read, soname

GIB = 1 << 30
INSIDE = Path(cudadoctor.smoke.__file__).parent / "inside"


def lines(*objects: Mapping[str, object]) -> str:
    return "".join(json.dumps(line) + "\n" for line in objects)


BEGUN = {"kind": "start", "stage": "import"}
TORCH = {"kind": "torch", "ok": True, "error": "", "seconds": 1.0, "version": "2.14.1"}


def end(stage: str, status: str, **more: object) -> dict[str, object]:
    usual = {"seconds": 0.1, "detail": "", "figures": {}}
    return {"kind": "end", "stage": stage, "status": status, **usual, **more}


def start(stage: str, **more: object) -> dict[str, object]:
    return {"kind": "start", "stage": stage, **more}


def imported_of(ran: Ran) -> Imported:
    found = read(ran, "import", "python").facts["torch.imported"]
    assert isinstance(found, Imported)
    return found


def smoke_of(ran: Ran) -> Smoke:
    found = read(ran, "full", "python").facts["smoke"]
    assert isinstance(found, Smoke)
    return found


def test_a_stage_without_an_end_was_ended_by_the_signal() -> None:
    ran = Ran(code=-11, stdout=lines(BEGUN, TORCH, start("matmul")))
    smoke = smoke_of(ran)
    matmul = next(stage for stage in smoke.stages if stage.name == "matmul")
    assert (matmul.status, matmul.detail) == ("failed", "killed by SIGSEGV")
    assert smoke.ended == "killed by SIGSEGV"


def test_a_stage_without_an_end_timed_out_where_the_child_did() -> None:
    out = lines(BEGUN, TORCH, start("allocate"), end("allocate", "passed"), start("conv"))
    ran = Ran(stdout=out, why="no response within 60 s", timed_out=True)
    stages = {stage.name: stage for stage in smoke_of(ran).stages}
    assert stages["allocate"].status == "passed"
    assert (stages["conv"].status, stages["conv"].detail) == (
        "timed-out",
        "no response within 60 s",
    )
    assert stages["ddp"].status == "skipped"


def test_an_import_that_hangs_is_no_failed_import() -> None:
    ran = Ran(stdout=lines(BEGUN), why="no response within 5 s", timed_out=True, seconds=5.0)
    imported = imported_of(ran)
    assert imported.hung is True
    assert imported.ok is None
    (gap,) = read(ran, "import", "python").gaps
    assert gap.fact == "torch.imported.cuda_available"
    assert gap.why == "import torch: no response within 5 s"


@pytest.mark.parametrize("code", [-11, 139])
def test_an_import_that_is_killed_has_its_signal_also_through_a_shell(code: int) -> None:
    imported = imported_of(Ran(code=code, stdout=lines(BEGUN)))
    assert (imported.ok, imported.signal) == (False, 11)
    assert imported.error == "import torch: killed by SIGSEGV"


@pytest.mark.parametrize(
    ("ran", "why"),
    [
        (Ran(missing=True), "the Python executable does not exist"),
        (Ran(why="EACCES: Permission denied"), "EACCES: Permission denied"),
        (
            Ran(code=0, stdout="hello\n"),
            "Python exited with status 0: no words",
        ),
        (
            Ran(code=2, stderr="Unknown option: -c\nusage: x\n\n"),
            "Python exited with status 2: usage: x",
        ),
    ],
)
def test_a_program_that_is_no_python_is_a_gap(ran: Ran, why: str) -> None:
    looked = read(ran, "full", "python")
    assert "torch.imported" not in looked.facts
    assert [gap.fact for gap in looked.gaps] == ["torch.imported", "smoke"]
    assert looked.gaps[0].why == why


@pytest.mark.parametrize(
    ("ran", "error"),
    [
        (Ran(code=1, stderr="Fatal error\n\n"), "import torch: Fatal error"),
        (Ran(code=1), "import torch: no words"),
        (Ran(code=128, why="its output was too long"), "import torch: its output was too long"),
        (Ran(code=160, stderr="Aborted\n"), "import torch: Aborted"),
        (Ran(code=137), "import torch: killed by SIGKILL"),
    ],
)
def test_why_an_import_did_not_come_back_is_said(ran: Ran, error: str) -> None:
    imported = imported_of(msgspec.structs.replace(ran, stdout=lines(BEGUN)))
    assert (imported.ok, imported.hung, imported.error) == (False, False, error)


def test_ranks_with_unequal_gradients_fail_though_each_has_passed() -> None:
    out = lines(
        BEGUN,
        TORCH,
        end("ddp", "passed", rank=0, figures={"digest": "aa"}),
        end("ddp", "passed", rank=1, figures={"digest": "ab"}),
    )
    ddp = next(stage for stage in smoke_of(Ran(code=0, stdout=out)).stages if stage.name == "ddp")
    assert (ddp.status, ddp.detail) == ("failed", "the gradients are not equal across ranks")


def test_the_rank_that_was_killed_is_named_before_those_that_suffered() -> None:
    out = lines(
        BEGUN,
        TORCH,
        end("ddp", "failed", rank=0, detail="RuntimeError: Connection closed by peer"),
        end("ddp", "failed", rank=1, detail="killed by SIGKILL", signal=9, lost=True),
    )
    ddp = next(stage for stage in smoke_of(Ran(code=0, stdout=out)).stages if stage.name == "ddp")
    assert ddp.detail is not None
    assert ddp.detail.startswith("rank 1: killed by SIGKILL; rank 0: RuntimeError")


def test_a_dead_first_look_at_cuda_is_a_gap_with_its_signal() -> None:
    lost = end("cuda", "failed", detail="killed by SIGABRT", signal=6, lost=True)
    looked = read(Ran(code=0, stdout=lines(BEGUN, TORCH, lost)), "import", "python")
    imported = looked.facts["torch.imported"]
    assert (imported.ok, imported.signal, imported.cuda_available) == (True, 6, None)
    assert [gap.fact for gap in looked.gaps] == ["torch.imported.cuda_available"]


def test_the_first_cuda_error_of_a_stage_is_kept_where_the_look_went_well() -> None:
    cuda = {"kind": "cuda", "available": True, "count": 1, "error": ""}
    cuda["devices"] = [{"index": 0, "capability": "8.6"}]
    busy = "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable"
    out = lines(BEGUN, TORCH, cuda, end("allocate", "failed", detail=busy))
    imported = imported_of(Ran(code=0, stdout=out))
    assert imported.cuda_error == busy
    assert imported.capabilities == (Version("8.6"),)


def test_what_others_print_is_left_out() -> None:
    ours = lines({"kind": "broken", "error": "OSError: no space"})
    out = "noise\n" + ours + '{broken\n[1]\n{"other": 1}\n{"kind": "torch"}\n'
    assert parse(out) == [Broken(error="OSError: no space")]


@pytest.mark.parametrize(
    "text", ["plain", 'quote " and \\', "tab\tnewline\n\x1b[31m", "ünïcode 漢字 🙂", ""]
)
def test_the_wire_carries_any_text_in_ascii(text: str) -> None:
    written = wire.encoded({"text": text, "more": [1, 0.5, True, None, {"a": ()}]})
    assert written.isascii()
    assert json.loads(written) == {"text": text, "more": [1, 0.5, True, None, {"a": []}]}


def test_the_wire_survives_bytes_that_are_no_text_and_numbers_that_are_none() -> None:
    assert json.loads(wire.encoded("\udcff")) == "�"
    assert json.loads(wire.encoded([float("nan"), float("-inf")])) == ["nan", "-inf"]


@pytest.mark.parametrize("script", sorted(INSIDE.glob("*.py")), ids=lambda path: path.name)
def test_the_scripts_inside_can_be_read_by_python_3_6(script: Path) -> None:
    tree = ast.parse(script.read_text(), feature_version=(3, 6))
    named = [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
    modules = {alias.name.split(".")[0] for node in named for alias in node.names}
    assert modules <= {"torch", "numpy", "pynvml", *sys.stdlib_module_names}


def gpu(index: int = 0, **more: object) -> Gpu:
    usual = {"bus_id": f"00000000:4{index}:00.0", "memory_bytes": 10 * GIB}
    return Gpu(index=index, **{**usual, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (
            {"utilization": 26, "processes": (GpuProcess(pid=7, name="python"),)},
            "the GPU is busy (26% by python (7))",
        ),
        ({"utilization": 100}, "the GPU is busy (100%)"),
        (
            {"processes": (GpuProcess(pid=7, memory_bytes=3 * GIB),)},
            "the GPU's memory is used by a process (7)",
        ),
        ({"memory_used_bytes": 8 * GIB + 1}, "80% of the GPU's memory is in use"),
        ({"compute_mode": "prohibited"}, "the GPU's compute mode is prohibited"),
        (
            {"compute_mode": "exclusive", "processes": (GpuProcess(pid=7),)},
            "the GPU's compute mode is exclusive, and it is used by a process (7)",
        ),
        ({"code": 15}, "the driver cannot reach the GPU"),
    ],
)
def test_a_guest_leaves_a_gpu_alone(more: dict[str, object], reason: str) -> None:
    assert skipped((gpu(0), gpu(1, **more))) == (("0000:41:00.0", 1, reason),)


@pytest.mark.parametrize(
    "more",
    [
        {"memory_used_bytes": 8 * GIB},
        {"utilization": 25, "processes": (GpuProcess(pid=7, name="python"),)},
        {"processes": (GpuProcess(pid=7, name="/usr/lib/firefox", memory_bytes=GIB),)},
        {"compute_mode": "exclusive", "processes": ()},
        {
            "compute_mode": "exclusive",
            "processes": (GpuProcess(pid=7, name="nvidia-cuda-mps-server"), GpuProcess(pid=8)),
        },
        {"mig": True, "memory_used_bytes": 10 * GIB},
        {},
    ],
)
def test_a_guest_uses_a_gpu_that_has_room(more: dict[str, object]) -> None:
    assert skipped((gpu(0, **more),)) == ()


def test_the_address_of_nvml_is_that_of_cuda() -> None:
    assert short_bus_id("00000000:C1:00.0") == "0000:c1:00.0"
    assert short_bus_id("0000:c1:00.0") == "0000:c1:00.0"
    assert short_bus_id(None) == ""


SEEN = {
    "built": "13.0",
    "available": True,
    "count": 2,
    "devices": [{"index": 0, "bus_id": "0000:41:00.0"}, {"index": 1, "bus_id": "0000:40:00.0"}],
}


def chosen_of(device: str = "", gpus: tuple[Gpu, ...] = ()) -> Chosen:
    return choose(device, skipped(gpus), SEEN)


def test_a_gpu_in_use_is_found_by_its_address_where_torch_counts_otherwise() -> None:
    chosen = chosen_of(gpus=(gpu(0, compute_mode="prohibited"), gpu(1)))
    assert chosen.devices == (0,)
    assert chosen.skipped == ((1, "the GPU's compute mode is prohibited"),)


def test_where_every_gpu_is_in_use_the_cpu_is_left() -> None:
    busy = (gpu(0, compute_mode="prohibited"), gpu(1, compute_mode="prohibited"))
    chosen = chosen_of(gpus=busy)
    assert (chosen.devices, chosen.device(), len(chosen.skipped)) == ((), "cpu", 2)


@pytest.mark.parametrize(
    ("free", "more", "devices"),
    [
        (3 * GIB, {"memory_used_bytes": 9 * GIB}, (0, 1)),
        (GIB, {"memory_used_bytes": 9 * GIB}, (1,)),
        (None, {"memory_used_bytes": 9 * GIB}, (1,)),
        (3 * GIB, {"utilization": 90}, (1,)),
    ],
)
def test_cached_files_in_memory_that_the_system_shares_do_not_fill_a_gpu(
    free: int | None, more: dict[str, object], devices: tuple[int, ...]
) -> None:
    shared = {"total_bytes": 10 * GIB, "unified_bytes": free}
    about = [{**SEEN["devices"][0], **shared}, SEEN["devices"][1]]  # type: ignore[index]
    full = skipped((gpu(1, **more), gpu(0)))
    assert choose("", full, {**SEEN, "devices": about}).devices == devices


def test_a_device_that_is_asked_for_is_used_whoever_uses_it() -> None:
    chosen = chosen_of("cuda:1", gpus=(gpu(0, compute_mode="prohibited"), gpu(1)))
    assert (chosen.devices, chosen.device(), chosen.skipped) == ((1,), "cuda:1", ())


@pytest.mark.parametrize(
    ("look", "error"),
    [
        (SEEN, "there is no cuda:2; number of GPUs visible to torch: 2"),
        (
            {"built": "13.0", "available": False, "error": "no driver"},
            "torch sees no GPU: no driver",
        ),
        (
            {"built": "", "available": False},
            "torch sees no GPU: this torch build is CPU-only",
        ),
        ({}, "torch sees no GPU: the first CUDA check did not finish"),
    ],
)
def test_a_device_that_is_not_there_is_an_error(look: dict[str, object], error: str) -> None:
    assert choose("cuda:2", (), look).error == error


@pytest.mark.parametrize(("asked", "world"), [(0, 2), (1, 1), (2, 2), (5, 2)])
def test_no_two_ranks_share_a_gpu(asked: int, world: int) -> None:
    assert chosen_of().world(asked) == world


def test_the_cpu_takes_as_many_ranks_as_are_asked_for() -> None:
    assert chosen_of("cpu").world(0) == 2
    assert chosen_of("cpu").world(3) == 3


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/w/nvidia/cublas/lib/libcublas.so.12", "libcublas.so.12"),
        ("/usr/lib/x86_64-linux-gnu/libcuda.so.580.65.06", "libcuda.so.1"),
        ("/usr/lib/libnvidia-ptxjitcompiler.so.580.65.06", "libnvidia-ptxjitcompiler.so.1"),
        ("/usr/lib/libcudnn.so.9.10.2", "libcudnn.so.9"),
        ("/t/lib/libcudart-80664282.so.10.2", "libcudart.so.10.2"),
        ("/usr/local/cuda/lib64/libcudart.so.12.4.127", "libcudart.so.12"),
        ("/t/lib/libnvrtc.so.11.2", "libnvrtc.so.11.2"),
        ("/usr/lib/libstdc++.so.6.0.30", "libstdc++.so.6"),
        ("/t/lib/libtorch_cuda.so", "libtorch_cuda.so"),
    ],
)
def test_a_mapped_file_has_the_soname_that_was_asked_for(path: str, name: str) -> None:
    assert soname(path) == name


def test_a_mapped_library_belongs_to_where_it_lies() -> None:
    torch = "/v/lib/python3.11/site-packages/torch"
    paths = {
        f"{torch}/lib/libc10.so": "torch",
        "/v/lib/python3.11/site-packages/nvidia/cudnn/lib/libcudnn.so.9": "wheel",
        "/v/lib/libstdc++.so.6.0.33": "conda",
        "/usr/local/cuda-12.4/lib64/libcublas.so.12.4.5.8": "toolkit",
        "/usr/lib/x86_64-linux-gnu/libcuda.so.580.65.06": "system",
        "/opt/own/libnccl.so.2": "other",
    }
    found = libraries([*paths, "/usr/lib/libcurl.so.4", "/usr/lib/libz.so.1"], torch, "/v", True)
    assert {library.path: library.owner for library in found} == paths
    assert {library.how for library in found} == {"mapped"}
