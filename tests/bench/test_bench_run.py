"""The bench as its user runs it, on a real torch with the smallest workloads.

No GPU here: the settings of a GPU and its share of memory are not exercised.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench_results_made import loads

from cudadoctor.bench.heats import ROUNDS, Heats, Track
from cudadoctor.bench.results import BenchResult, config
from cudadoctor.bench.search import Heat, Raced
from cudadoctor.bench.stable import Stable
from cudadoctor.bench.techniques import settings_of

TEXT = {"length": 32, "width": 32, "heads": 2, "layers": 1, "vocabulary": 100, "batch": 4}
SHAPES: dict[str, dict[str, Any]] = {
    "cnn": {"image": 16, "width": 8, "blocks": [1, 1], "classes": 4, "batch": 8, "samples": 64},
    "encoder": {**TEXT, "samples": 64},
    "decoder": {**TEXT, "samples": 64},
}


def environment(tmp_path: Path) -> dict[str, str]:
    state = {"XDG_STATE_HOME": str(tmp_path / "state"), "OMP_NUM_THREADS": "1"}
    return {**os.environ, **state, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}


def track(workload: str, **more: Any) -> Track:
    return Track(device="cpu", shape=SHAPES[workload], round_s=0.01, warm_s=0.2, **more)


@pytest.fixture(scope="module")
def stable(python_cpu: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stable]:
    """One torch, imported once; every heat forks its runners from it."""
    found = Stable(python_cpu, environment(tmp_path_factory.mktemp("stable")), forks=True)
    try:
        assert found.hear(found.start(what="look"), 90.0) is not None, "torch is imported first"
        yield found
    finally:
        found.end()


def race(
    stable: Stable, heat: Heat, *, settings: dict[str, Any] | None = None, **more: Any
) -> Raced:
    heats = Heats(
        stable,
        track(heat.reference.workload, **more),
        lambda candidate: settings or settings_of(candidate.techniques),
        time.monotonic() + 180.0,
    )
    return heats.run(heat)


def command(python: str, *words: str) -> list[str]:
    return [sys.executable, "-m", "cudadoctor", "bench", "--python", python, *words]


def ran(
    python: str, tmp_path: Path, *words: str, code: int = 0, **more: str
) -> subprocess.CompletedProcess[str]:
    """The command; more: variables of its environment."""
    found = subprocess.run(
        command(python, "--scale", "tiny", *words),
        capture_output=True,
        text=True,
        timeout=150,
        env={**environment(tmp_path), **more},
        check=False,
    )
    assert found.returncode == code, found.stderr
    return found


# --- settings, each in a process of its own ------------------------------------------------------

ON_A_CPU = {
    "cnn": ("amp-bf16", "channels-last", "cached-data", "larger-batch", "fused-optimizer"),
    "encoder": ("sdpa", "shorter-sequences", "matmul-precision", "foreach-optimizer"),
    "decoder": ("gradient-accumulation", "activation-checkpointing", "loader-workers"),
}


@pytest.mark.parametrize("workload", sorted(ON_A_CPU))
def test_techniques_train_and_keep_the_loss(workload: str, stable: Stable) -> None:
    from cudadoctor.bench import judging, techniques

    some = tuple(config(workload, name) for name in ON_A_CPU[workload])
    found = race(stable, Heat(reference=config(workload), candidates=some))
    assert found.reference.error is None
    for candidate in found.candidates:
        name = candidate.config.techniques[0]
        ratio = judging.pair(found.reference, candidate)
        assert ratio is not None, candidate.error
        gain = judging.gain(
            name,
            found.reference,
            candidate,
            [ratio],
            spread=0.1,
            error=0.01,
            tolerance=techniques.tolerance_of((name,)),
            losses=techniques.losses_of((name,)),
        )
        assert gain.verdict == "undecided", gain.why
        assert len(candidate.rounds) == len(found.reference.rounds)
        assert candidate.losses


def test_every_loader_yields_the_same_batches(stable: Stable) -> None:
    some = tuple(config("cnn", name) for name in ("loader-workers", "cached-data"))
    found = race(stable, Heat(reference=config("cnn"), candidates=some))
    assert [candidate.losses for candidate in found.candidates] == [found.reference.losses] * 2


def test_batches_that_are_fetched_ahead_come_in_their_order(stable: Stable) -> None:
    """On a CPU nothing is copied; the order of things is that of a GPU."""
    plain = race(stable, Heat(reference=config("decoder"), twins=1))
    ahead = race(stable, Heat(reference=config("decoder"), twins=1), settings={"prefetch": True})
    assert ahead.reference.losses == plain.reference.losses


def test_a_loader_whose_workers_outlive_it_is_ended_at_once(stable: Stable) -> None:
    """Its workers hold its pipe open: that must not look like a process that cannot be killed."""
    order = {"workload": "cnn", "shape": SHAPES["cnn"], "settings": {"workers": 1}}
    number = stable.start(what="train", **order)
    assert (stable.hear(number, 60.0) or {})["kind"] == "ready"
    began = time.monotonic()
    stable.kill(number)
    assert time.monotonic() - began < 4.0
    other = stable.start(what="look")
    assert (stable.hear(other, 30.0) or {})["kind"] == "look"


def test_the_larger_batch_is_counted_in_samples(stable: Stable) -> None:
    heat = Heat(reference=config("decoder"), candidates=(config("decoder", "larger-batch"),))
    found = race(stable, heat)
    factor = found.candidates[0].settings["batch_factor"]
    assert int(factor) > 1
    assert found.candidates[0].samples_a_step == 4 * int(factor)


def test_without_a_fork_every_process_imports_torch(python_cpu: str, tmp_path: Path) -> None:
    candidates = (config("decoder", "sdpa"),)
    heat = Heat(reference=config("decoder"), candidates=candidates, limit_s=180.0)
    alone = Stable(python_cpu, environment(tmp_path), forks=False)
    try:
        found = race(alone, heat)
    finally:
        alone.end()
    assert [found.reference.error, found.candidates[0].error] == [None, None]
    assert len(found.candidates[0].rounds) == ROUNDS


def test_the_twin_tells_where_the_time_goes(stable: Stable) -> None:
    found = race(stable, Heat(reference=config("cnn"), twins=1))
    assert found.twins[0].losses == found.reference.losses
    assert found.bottleneck is not None
    assert found.bottleneck.figures["tflops"] > 0
    assert found.reference.device_s is None


# --- what goes wrong is a result -----------------------------------------------------------------


BREAKS = {
    "sdpa": ("error", "RuntimeError: a planted error"),
    "fused-optimizer": ("oom", "out of memory (MemoryError: CUDA out of memory (planted))"),
    "matmul-precision": ("crash", "killed by SIGSEGV, in planted (process.py, line"),
    "amp-bf16": ("hang", "no response within 6 s"),
}


def test_one_that_breaks_ends_nothing(stable: Stable) -> None:
    some = tuple(config("decoder", name) for name in (*BREAKS, "foreach-optimizer"))
    faults = {name: fault for name, (fault, _) in BREAKS.items()}
    heat = Heat(reference=config("decoder"), candidates=some)
    found = race(stable, heat, faults=faults, start_s=6.0)
    for candidate, (_, said) in zip(found.candidates, BREAKS.values(), strict=False):
        assert (candidate.error or "").startswith(said)
    assert found.candidates[-1].error is None
    assert found.reference.rounds


def test_what_sleeps_in_every_step_is_slower(stable: Stable) -> None:
    """The planted sleep is several steps long, and its process does nothing else."""
    from cudadoctor.bench import judging

    heat = Heat(reference=config("decoder"), candidates=(config("decoder", "sdpa"),))
    found = race(stable, heat, faults={"sdpa": "slow"})
    (candidate,) = found.candidates
    ratio = judging.pair(found.reference, candidate)
    assert ratio is not None and ratio < 0


# --- the command -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(
    python_cpu: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[BenchResult, str, float]:
    """A whole search with one technique that is slowed: its result, its text, its seconds."""
    words = ("--minutes", "1", "--workload", "decoder", "--plant", "sdpa:slow", "--json")
    only = ("--only", "sdpa", "--only", "nothing", "--only", "tf32")
    began = time.monotonic()
    found = ran(python_cpu, tmp_path_factory.mktemp("whole"), *words, *only)
    return loads(found.stdout), found.stdout, time.monotonic() - began


def test_a_whole_search_keeps_its_time_and_claims_no_gpu(
    whole: tuple[BenchResult, str, float],
) -> None:
    found, _, seconds = whole
    assert seconds < 100.0
    assert (found.device, found.gpu, found.cuda, found.driver) == ("cpu", None, None, None)
    (workload,) = found.workloads
    assert workload.baseline.rounds
    verdicts = {gain.technique: gain.verdict for gain in workload.alone}
    assert verdicts["tf32"] == "not-here"
    assert verdicts["nothing"] in ("same", "undecided")
    (nothing,) = [gain for gain in workload.alone if gain.technique == "nothing"]
    assert len(nothing.pairs) >= 3
    assert found.method == "processes"
    assert workload.conditions is not None and workload.conditions.load is not None


def test_what_slows_is_never_called_a_gain(whole: tuple[BenchResult, str, float]) -> None:
    (workload,) = whole[0].workloads
    (slowed,) = [gain for gain in workload.alone if gain.technique == "sdpa"]
    assert slowed.verdict != "faster"
    assert slowed.ratio is not None and slowed.ratio < 1
    assert (workload.best, workload.best_gain) == ((), None)


def test_json_begins_with_its_schema(whole: tuple[BenchResult, str, float]) -> None:
    assert next(iter(json.loads(whole[1]))) == "schema"


def test_ctrl_c_prints_what_is_known(python_cpu: str, tmp_path: Path) -> None:
    child = subprocess.Popen(
        command(python_cpu, "--scale", "tiny", "--json", "--minutes", "5", "--workload", "decoder"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(tmp_path),
    )
    assert child.stderr is not None
    for line in child.stderr:
        if "sdpa" in line:
            break
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=30)
    assert child.returncode == 130
    found = loads(out)
    assert not found.complete
    assert found.workloads[0].baseline.rounds
    assert found.workloads[0].ended == "interrupted"


def test_the_terminal_says_cpu_and_what_is_missing(python_cpu: str, tmp_path: Path) -> None:
    """Without a compiler on PATH torch.compile is not tried, and the rest is."""
    bare, chart = tmp_path / "bin", tmp_path / "chart.svg"
    bare.mkdir()
    for name in ("sh", "uname"):
        if (path := shutil.which(name)) is not None:
            (bare / name).symlink_to(path)
    words = (
        "--minutes",
        "1.5",
        "--workload",
        "cnn",
        "--only",
        "channels-last",
        "--only",
        "compile",
        "--plant",
        "channels-last:error",
    )
    found = ran(python_cpu, tmp_path, *words, "--chart", str(chart), PATH=str(bare))
    assert "no GPU used" in found.stdout
    assert "channels-last" in found.stdout
    text = " ".join(found.stdout.split())
    assert "skipped torch.compile needs a C++ compiler, but none is on PATH: compile" in text
    assert chart.read_text(encoding="utf-8").startswith("<")
    assert not (tmp_path / "state").exists(), "tiny figures are nobody's advice"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--only", "sdpaa"), "did you mean sdpa"),
        (("--json", "--markdown"), "cannot be combined"),
        (("--chart", "x.gif"), ".svg or .png"),
        (("--device", "gpu"), "is not a valid device"),
        (("--minutes", "0"), "not a valid value for --minutes"),
    ],
)
def test_wrong_use_is_one_sentence(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    found = ran(sys.executable, tmp_path, *words, code=2)
    assert said in found.stderr
    assert found.stdout == ""


def test_no_torch_is_one_sentence(tmp_path: Path) -> None:
    found = ran(sys.executable, tmp_path, code=1)
    assert "cannot run the benchmark: torch is not installed" in found.stderr


def test_a_gpu_that_is_not_there_is_no_cpu_run(python_cpu: str, tmp_path: Path) -> None:
    found = ran(python_cpu, tmp_path, "--device", "cuda", "--minutes", "1.5", code=1)
    assert "torch sees no GPU" in found.stderr
    assert found.stdout == ""
