"""From samples to figures, and from figures to what starves the GPU: pure, at the thresholds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudadoctor.bench import page, results
from cudadoctor.bench.script import starved
from cudadoctor.bench.script.stacks import Stacks, Where
from cudadoctor.bench.script.starved import Figures, GpuFigures
from cudadoctor.probes.streamed import line_of

REPOSITORY = Path(__file__).parent.parent.parent
HZ = 100


def process(pid: int, **more: Any) -> dict[str, Any]:
    usual = {"ppid": 1, "worker": False, "state": "S", "major": 0, "ticks": 0, "rss": 100}
    return {"pid": pid, **usual, **more}


def tick(at: float, *processes: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"kind": "procs", "t": at, "procs": list(processes), **more}


def busy(at: float, *gpus: dict[str, Any]) -> dict[str, Any]:
    numbered = [{"index": index, **gpu} for index, gpu in enumerate(gpus)]
    return {"kind": "busy", "t": at, "gpus": numbered}


HOST = {"kind": "host", "t": 0.0, "ticks": HZ, "page": 4096, "cpus": 8, "proc": True}
GPU = {"name": "H100", "memory_total": 80 << 30, "power_limit": 700000, "clock_max": 1980}


def gpus(count: int) -> dict[str, Any]:
    numbered = [{"index": index, **GPU, "generation": 5, "width": 16} for index in range(count)]
    return {"kind": "gpus", "t": 0.0, "gpus": numbered}


def trained(seconds: int = 10, **of_gpu: Any) -> list[dict[str, Any]]:
    """A script that burns a core and has two workers at half a core, and one GPU."""
    lines: list[dict[str, Any]] = [HOST, gpus(1)]
    for at in range(seconds + 1):
        thread = {"7": at * HZ}
        lines.append(
            tick(
                at,
                process(7, ticks=at * HZ, busy=thread, delays={"7": 0}),
                process(8, ppid=7, worker=True, ticks=at * HZ // 2, delay=0),
                process(9, ppid=7, worker=True, ticks=at * HZ // 2, delay=at * 250_000_000),
            )
        )
        lines.append(busy(at, {"busy": 50, "memory": 40 << 30, "power": 350000, **of_gpu}))
    return lines


def test_counters_become_rates() -> None:
    found = starved.figures(trained())
    assert found.main_thread == pytest.approx(1.0)
    assert found.main_cores == pytest.approx(1.0)
    assert found.cores == pytest.approx(2.0)
    assert found.workers == 2
    assert found.workers_cpu == pytest.approx(0.5)
    assert found.workers_wait == pytest.approx(0.125)
    (gpu,) = found.gpus
    assert (gpu.busy, gpu.memory, gpu.power) == (0.5, 0.5, 0.5)


def test_bytes_of_the_link_are_a_share_of_what_it_can_carry() -> None:
    (gpu,) = starved.figures(trained(rx=31_504_000, tx=1000)).gpus
    assert gpu.pcie == pytest.approx(0.5, abs=0.001)


def test_bits_of_the_clock_are_told_apart() -> None:
    (gpu,) = starved.figures(trained(throttle=0x4)).gpus
    assert (gpu.capped, gpu.hot) == (1.0, 0.0)
    (gpu,) = starved.figures(trained(throttle=0x40)).gpus
    assert (gpu.capped, gpu.hot) == (0.0, 1.0)
    (gpu,) = starved.figures(trained(throttle=0x1)).gpus
    assert (gpu.capped, gpu.hot) == (0.0, 0.0)


def test_the_start_is_left_out_until_the_gpu_works() -> None:
    lines: list[dict[str, Any]] = [HOST, gpus(1)]
    for at in range(20):
        lines.append(tick(at, process(7, ticks=at)))
        lines.append(busy(at, {"busy": 90 if at >= 12 else 0}))
    found = starved.figures(lines)
    assert found.judged_s == 7
    assert found.gpus[0].busy == pytest.approx(0.9)


def test_of_several_gpus_those_count_that_the_script_uses() -> None:
    ours = [busy(at, {"busy": 0, "pids": []}, {"busy": 80, "pids": [7]}) for at in range(5)]
    lines = [HOST, gpus(2), *ours, *(tick(at, process(7)) for at in range(5))]
    found = starved.figures(lines)
    assert (found.gpus_by, [gpu.index for gpu in found.gpus]) == ("processes", [1])


def test_in_a_container_the_gpu_whose_memory_grew_is_ours() -> None:
    lines: list[dict[str, Any]] = [HOST, gpus(2)]
    for at in range(5):
        lines.append(busy(at, {"memory": 1 << 30, "pids": [999]}, {"memory": (at + 1) << 30}))
        lines.append(tick(at, process(7)))
    found = starved.figures(lines)
    assert (found.gpus_by, [gpu.index for gpu in found.gpus]) == ("memory", [1])


def test_where_nothing_tells_them_apart_all_are_shown_and_that_is_said() -> None:
    lines: list[dict[str, Any]] = [HOST, gpus(2)]
    for at in range(5):
        lines.append(busy(at, {"busy": 0, "memory": 1}, {"busy": 95, "memory": 1}))
        lines.append(tick(at, process(7)))
    found = starved.figures(lines)
    assert found.gpus_by == "all"
    judged = starved.judge(found)
    assert judged.by == "not starved"
    assert any("all GPUs are shown" in note for note in judged.notes)


def test_lines_that_were_cut_off_are_left_out() -> None:
    whole = [json.dumps(event).encode() for event in trained()]
    cut = [*whole, whole[3][:40], b"", b"\xff", b"[]", b"3"]
    assert [*filter(None, map(line_of, cut))] == trained() == [*map(line_of, whole)]


@given(st.data())
def test_any_part_of_the_lines_gives_figures_and_a_judgement(data: st.DataObject) -> None:
    lines = trained()
    kept = data.draw(st.lists(st.sampled_from(lines), max_size=30))
    judged = starved.judge(starved.figures(sorted(kept, key=lambda event: event["t"])))
    assert judged.by in {*starved.CAUSES, "not known"}


# --- the judgement at its thresholds ------------------------------------------------------------


def figures(gpu: dict[str, Any] | None, **more: Any) -> Figures:
    usual: dict[str, Any] = {"seconds": 20.0, "judged_s": 15.0, "ticks": 40, "cpus": 8}
    if gpu is None:
        return Figures(**usual, no_gpu_figures="NVML is not here", **more)
    return Figures(**usual, gpus=(GpuFigures(index=0, **gpu),), gpus_by="only one", **more)


WAITING, WORKING = {"busy": 0.84}, {"busy": 0.85}


@pytest.mark.parametrize(
    ("found", "by"),
    [
        (figures(WORKING), "not starved"),
        (figures(WORKING, workers=4, workers_cpu=1.0, waiting=1.0), "not starved"),
        (figures({**WORKING, "memory": 0.95}), "memory nearly full"),
        (figures({**WORKING, "memory": 0.949}), "not starved"),
        (figures({**WORKING, "capped": 0.5}), "power or thermal cap"),
        (figures({**WORKING, "capped": 0.49}), "not starved"),
        (figures({**WORKING, "hot": 0.25}), "power or thermal cap"),
        (figures(WAITING), "not known"),
        (figures(WAITING, workers=4, workers_cpu=0.8), "data loading"),
        (figures(WAITING, workers=4, workers_cpu=0.5, workers_wait=0.3), "data loading"),
        (figures(WAITING, workers=4, workers_cpu=0.79), "not known"),
        (figures(WAITING, workers=0, workers_cpu=None, main_thread=0.85), starved.ONE_THREAD),
        (figures(WAITING, main_thread=0.5, main_thread_wait=0.4), starved.FEW_CORES),
        (figures(WAITING, main_thread=0.5, main_thread_wait=0.4, others=2.0), starved.SHARED),
        (figures(WAITING, main_thread=0.5, main_thread_wait=0.4, others=1.5), starved.FEW_CORES),
        (figures(WAITING, main_thread=0.3, main_thread_wait=0.19, others=8.0), "not known"),
        (
            figures(WAITING, main_thread=0.66, main_thread_wait=0.34, others=8.0),
            "one thread of the main process",
        ),
        (
            figures(WAITING, workers=2, workers_cpu=0.3, workers_wait=0.6, others=4.0),
            starved.SHARED,
        ),
        (figures(WAITING, workers=8, workers_cpu=0.3, workers_wait=0.6), "data loading"),
        (figures(WAITING, workers=2, workers_cpu=0.05, workers_asleep=0.5), starved.STORAGE),
        (figures(WAITING, workers=2, workers_cpu=0.05, workers_asleep=0.4), "not known"),
        (figures(WAITING, main_thread=0.84), "not known"),
        (figures(WAITING, waiting=0.25, workers=4, workers_cpu=1.0), "disk reads"),
        (figures(WAITING, waiting=0.24), "not known"),
        (figures({**WAITING, "pcie": 0.5}, main_thread=1.0), "PCIe transfers"),
        (figures({**WAITING, "pcie": 0.49}), "not known"),
        (figures({**WAITING, "hot": 0.3}), "power or thermal cap"),
        (figures({**WAITING, "capped": 1.0}), "not known"),
        (figures(None, workers=4, workers_cpu=1.0), "not known"),
        (figures({}), "not known"),
    ],
)
def test_what_starves_the_gpu(found: Figures, by: str) -> None:
    assert starved.judge(found).by == by


def test_the_gpu_that_waits_most_decides_of_several() -> None:
    two = (GpuFigures(index=0, busy=0.95), GpuFigures(index=1, busy=0.4))
    found = msgspec.structs.replace(figures(WAITING), gpus=two, main_thread=1.0)
    assert starved.judge(found).by == starved.ONE_THREAD


def test_without_a_gpu_the_processes_only_point() -> None:
    judged = starved.judge(figures(None, workers=4, workers_cpu=1.0))
    assert (judged.by, judged.likely) == ("not known", "data loading")
    assert any("GPU utilization is unknown: NVML is not here" in note for note in judged.notes)


def test_too_few_samples_are_no_judgement() -> None:
    short = msgspec.structs.replace(figures(WORKING), judged_s=1.4)
    assert starved.judge(short).by == "not known"


def test_a_system_without_proc_is_told_and_its_gpu_still_judged() -> None:
    host = HOST | {"proc": False}
    alone = [host, gpus(1), *(busy(at, {"busy": 95}) for at in range(9))]
    judged = starved.judge(starved.figures(alone))
    assert judged.by == "not starved"
    assert any("no /proc" in note for note in judged.notes)
    nothing = starved.judge(starved.figures([host, {"kind": "no-gpus", "t": 0.1, "why": "none"}]))
    assert "neither the processes nor the GPU" in nothing.why


def test_the_tip_fits_what_is_there() -> None:
    def tip(found: Figures) -> str:
        (setting,) = starved.judge(found).settings
        return setting.text

    assert tip(figures(WAITING, workers=4, workers_cpu=1.0)).startswith("increase num_workers")
    assert tip(figures(WAITING, workers=8, workers_cpu=1.0)).startswith("keep decoded")
    assert tip(figures(WAITING, workers=0, main_thread=1.0)).startswith("load the data in DataL")
    assert tip(figures(WAITING, workers=2, main_thread=1.0)).startswith("use a larger batch")
    crowded = figures(WAITING, main_thread=0.4, main_thread_wait=0.6, quota=0.5, throttled=0.3)
    assert tip(crowded).startswith("raise the CPU limit")


# --- what the stacks add ------------------------------------------------------------------------


def seen(
    gpu: dict[str, Any] | None, shares: dict[str, float], *, cuda: bool = False, **more: Any
) -> Figures:
    lines = {
        kind: Where(file="train.py", line=line, function="f", share=1.0)
        for line, kind in enumerate(shares, 1)
    }
    found = Stacks(
        looks=20, all_looks=25, seen="training", shares=shares, lines=lines, **more.pop("of", {})
    )
    return figures(gpu, stacks=found, cuda=cuda, torch=True, began_by="stacks", **more)


@pytest.mark.parametrize(
    ("found", "by", "line"),
    [
        (seen(WORKING, {"sync": 0.9, "torch": 0.1}), "not starved", 1),
        (seen(WAITING, {"torch": 0.4, "sync": 0.6}), starved.SYNC, 2),
        (seen(WAITING, {"torch": 0.4, "copy": 0.6}), starved.SYNC, 2),
        (seen(WAITING, {"sync": 0.45, "python": 0.55}), starved.PYTHON, 2),
        (seen(None, {"workers": 0.6, "torch": 0.4}, of={"loading_busy": 0.9, "worker_looks": 9}),
         "data loading", 1),
        (seen(None, {"workers": 0.6, "torch": 0.4}, of={"loading_busy": 0.4, "worker_looks": 9}),
         starved.STORAGE, 1),
        (seen(None, {"load": 0.3, "load-wait": 0.4, "torch": 0.3}), starved.STORAGE, 2),
        (seen(None, {"load-wait": 0.9}, waiting=0.3), "disk reads", 1),
        (seen(None, {"start": 0.5, "torch": 0.5}), "data loading", 1),
        (seen(None, {"wait": 0.6, "torch": 0.4}), starved.WAITING, 1),
        (seen(None, {"wait": 0.6, "torch": 0.4}, main_cores=1.5), starved.COMPUTING, 1),
        (seen(None, {"library": 0.6, "torch": 0.4}), starved.PREPARING, 1),
        (seen(None, {"torch": 0.4, "sync": 0.3, "python": 0.3}), starved.COMPUTING, 1),
        (seen(None, {"torch-wait": 0.6, "python": 0.4}, ranks=2), starved.RANKS, 1),
        (seen(None, {"torch-wait": 0.6, "python": 0.4}), starved.COMPUTING, 1),
        # With a GPU that does not answer the host's own work is known, and what waits for it not.
        (seen(None, {"python": 0.9}, cuda=True), starved.PYTHON, 1),
        (seen(None, {"sync": 0.9}, cuda=True), "not known", 1),
        (seen({"busy": 0.4}, {"torch": 0.9}, main_cores=0.9), starved.ONE_THREAD, 1),
        (seen({"busy": 0.4}, {"torch": 0.9}, main_cores=0.5), "not known", 1),
        # What sleeps did not wait for a core.
        (seen(None, {"wait": 0.7, "python": 0.3}, main_thread=0.1, main_thread_wait=0.25,
              others=8.0), starved.WAITING, 1),
        (seen(None, {"python": 1.0}, main_thread=0.5, main_thread_wait=0.45, others=8.0),
         starved.SHARED, 1),
    ],
)  # fmt: skip
def test_what_the_stacks_decide(found: Figures, by: str, line: int) -> None:
    judged = starved.judge(found)
    assert judged.by == by
    assert judged.line is not None and judged.line.line == line
    assert len(judged.settings) <= 1


def test_a_gpu_that_nobody_uses_gives_the_tip_to_use_it() -> None:
    (setting,) = starved.judge(seen({"busy": 0.0}, {"torch": 0.9})).settings
    assert setting.text.startswith("move the model")


def test_a_script_that_did_not_train_is_not_judged() -> None:
    found = figures(None, stacks=Stacks(all_looks=9), torch=True, main_thread=1.0)
    judged = starved.judge(found)
    assert (judged.by, judged.likely, judged.settings) == ("not known", None, ())
    assert "has not trained" in judged.why


def test_the_training_is_what_the_stacks_say() -> None:
    torch = "/v/lib/python3.11/site-packages/torch/"
    frames = [[torch + "optim/sgd.py", 1, "SGD.step"], ["train.py", 2, "<module>"]]
    thread = {"main": True, "active": True, "gil": True, "frames": frames}
    looks = [{"kind": "stacks", "t": t, "pid": 7, "worker": False, "threads": [thread]}
             for t in (4.0, 7.0)]  # fmt: skip
    found = starved.figures(trained() + looks)
    assert (found.began_by, found.judged_s) == ("stacks", 4.0)


def test_without_stacks_the_training_begins_after_the_import_of_torch() -> None:
    lines = [HOST, *(tick(at, process(7, ticks=at, torch=at >= 20)) for at in range(41))]
    found = starved.figures(lines)
    assert found.judged_s == 15  # a quarter of what follows is left out
    gradients = [HOST, *(tick(at, process(7, torch=True, backward=at >= 30)) for at in range(41))]
    assert starved.figures(gradients).judged_s == 10


def test_the_use_of_other_programs_is_what_the_script_does_not_use() -> None:
    lines = [HOST, *(tick(at, process(7, ticks=at * HZ), machine=at * 3 * HZ) for at in range(9))]
    assert starved.figures(lines).others == pytest.approx(2.0)


def test_each_recipe_is_there() -> None:
    named = {tip.recipe for cause in starved.CAUSES.values() for tip in cause.tips}
    assert not {path for path in named if path and not (REPOSITORY / path).exists()}


@pytest.mark.parametrize("width", [40, 80, 100])
def test_the_report_keeps_to_the_width_and_to_plain_letters(width: int) -> None:
    for found in (figures(WORKING), figures(None, main_thread=1.0), figures(WAITING, waiting=0.5)):
        report = starved.ScriptReport(figures=found, starved=starved.judge(found), code=0)
        lines = [line.text for line in page.labelled(starved.rows(report), width)]
        assert not [line for line in lines if len(line) > width and "recipes/" not in line]
        assert all(line.isascii() for line in lines)


KEYS = {
    "figures": "seconds judged_s ticks cpus gpus gpus_by no_gpu_figures no_process_figures"
    " processes cores main_cores"
    " main_thread main_thread_wait workers workers_cpu workers_wait waiting read_mb_s asked_mb_s"
    " major_faults_s switches_s rss_bytes shm sampler_s workers_asleep quota throttled others torch"
    " cuda began_by one_thread ranks stacks",
    "starved": "by why evidence settings likely notes line",
}
"""The contract of `bench --json -- COMMAND`, schema 1: fields may be added, none change or go."""


def test_the_document_has_its_keys() -> None:
    found = figures(WAITING)
    report = starved.ScriptReport(figures=found, starved=starved.judge(found))
    document = json.loads(results.dumps(report))
    assert document["schema"] == 1
    assert {"figures", "starved", "code", "stopped"} <= set(document)
    for name, keys in KEYS.items():
        assert set(keys.split()) <= set(document[name])
