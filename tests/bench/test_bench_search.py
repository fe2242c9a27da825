"""What is measured next: the order of a search, what it adds, and when it stops."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.version import Version

from cudadoctor.bench import techniques
from cudadoctor.bench.results import Bottleneck, Config, Kind, Measured
from cudadoctor.bench.search import Heat, Raced, Search
from cudadoctor.bench.techniques import Ground

CPU = Ground(gpu=False, torch=Version("2.13"), compiler=True, cores=4, cpu_bf16=True)
H200 = Ground(
    gpu=True,
    capability=Version("9.0"),
    torch=Version("2.14"),
    compiler=True,
    triton=True,
    cores=16,
)
Speed = Callable[[tuple[str, ...]], float]


def measured(wanted: Config, step_s: float, error: str | None = None) -> Measured:
    wobble = [1.0 + 0.002 * (number % 3) for number in range(10)]
    return Measured(
        config=wanted,
        rounds=() if error else tuple(step_s * one for one in wobble),
        samples_a_step=8,
        losses=(1.0, 0.9),
        error=error,
    )


def raced(heat: Heat, speed: Speed, kind: Kind = "compute", seconds: float = 4.0) -> Raced:
    def figures(wanted: Config) -> Measured:
        fast = speed(wanted.techniques)
        return measured(wanted, 0.1 / fast if fast else 0.1, None if fast else "out of memory")

    return Raced(
        reference=figures(heat.reference),
        candidates=tuple(map(figures, heat.candidates)),
        twins=(figures(heat.reference),) * heat.twins,
        bottleneck=Bottleneck(kind=kind, why="told") if heat.twins else None,
        seconds=seconds,
    )


def product(**gains: float) -> Speed:
    """Each technique is worth its factor, also beside others."""

    def speed(names: tuple[str, ...]) -> float:
        found = 1.0
        for name in names:
            found *= gains.get(name.replace("-", "_"), 1.0)
        return found

    return speed


def searched(search: Search, speed: Speed, kind: Kind = "compute") -> list[Heat]:
    heats: list[Heat] = []
    spent = 0.0
    while (heat := search.next(spent)) is not None:
        heats.append(heat)
        search.take(raced(heat, speed, kind))
        spent += 4.0
        assert len(heats) < 100
    return heats


def test_the_baseline_against_itself_comes_first() -> None:
    heats = searched(Search("decoder", CPU, 600.0), product())
    assert heats[0].twins
    assert heats[0].candidates == ()


def test_every_technique_that_can_be_tried_is_tried_once_alone() -> None:
    search = Search("cnn", CPU, 600.0)
    heats = searched(search, product())
    alone = [one.techniques for heat in heats[1:] for one in heat.candidates]
    wanted = {
        (one.name,) for one in techniques.TECHNIQUES if not techniques.why_not(one, CPU, "cnn")
    }
    assert set(alone) == wanted
    assert len(alone) == len(wanted)
    assert {one.technique for one in search.result().alone} == set(techniques.BY_NAME)


def test_what_waits_for_data_begins_with_the_loader() -> None:
    search = Search("cnn", H200, 600.0)
    heats = searched(search, product(), "data loading")
    first = [one.techniques[0] for one in heats[1].candidates]
    assert set(first) <= {"loader-workers", "cached-data", "pinned-memory", "prefetch-to-device"}


def test_what_computes_begins_with_precision() -> None:
    heats = searched(Search("decoder", H200, 600.0), product(), "compute")
    assert heats[1].candidates[0].techniques == ("amp-bf16",)


def test_the_best_combination_is_what_multiplies() -> None:
    search = Search("decoder", H200, 600.0)
    speed = product(amp_bf16=3.0, compile=1.4, sdpa=1.2, fused_optimizer=1.1, tf32=2.0)
    heats = searched(search, speed)
    found = search.result()
    assert set(found.best) == {"amp-bf16", "compile", "sdpa", "fused-optimizer", "tf32"}
    assert found.best_gain is not None
    assert found.best_gain.ratio == pytest.approx(3.0 * 1.4 * 1.2 * 1.1 * 2.0, rel=0.01)
    assert heats[-1].fresh
    assert heats[-1].reference.techniques == ()


def test_only_one_of_a_group_is_in_the_best() -> None:
    search = Search("decoder", H200, 600.0)
    searched(search, product(amp_bf16=3.0, amp_fp16=2.9, compile=1.4, cuda_graphs=1.3))
    assert set(search.result().best) == {"amp-bf16", "compile"}


def test_what_gains_only_beside_the_best_is_found() -> None:
    """Precision shows nothing as long as the loader is the slowest part."""

    def speed(names: tuple[str, ...]) -> float:
        loader = 3.0 if "loader-workers" in names else 1.0
        return min(loader, 2.5 if "amp-bf16" in names else 1.5)

    search = Search("cnn", H200, 900.0)
    searched(search, speed, "data loading")
    assert {"loader-workers", "amp-bf16"} <= set(search.result().best)


def test_what_was_added_stays_where_the_time_ends() -> None:
    search = Search("decoder", H200, 64.0, only=("amp-bf16", "sdpa", "fused-optimizer", "tf32"))
    speed = product(amp_bf16=3.0, sdpa=1.2, fused_optimizer=1.1, tf32=1.5)
    heats = searched(search, speed)
    assert {"amp-bf16", "tf32"} <= set(search.result().best)
    assert set(heats[-1].candidates[0].techniques) == set(search.result().best)


def test_a_second_chance_comes_after_what_was_added() -> None:
    """Of three that are tried together only one counts at first, and a second beside it."""

    def speed(names: tuple[str, ...]) -> float:
        graphs = 1.5 if {"amp-bf16", "fused-optimizer"} <= set(names) else 1.0
        return graphs * (2.0 if "sdpa" in names else 1.0) * (1.3 if "amp-bf16" in names else 1.0)

    search = Search("decoder", H200, 900.0)
    searched(search, speed)
    assert {"sdpa", "amp-bf16", "fused-optimizer"} <= set(search.result().best)


@pytest.mark.parametrize(("share", "at_once"), [(0.05, 3), (0.13, 3), (0.15, 2), (0.3, 1)])
def test_only_so_many_run_at_once_as_the_gpu_can_hold(share: float, at_once: int) -> None:
    import msgspec

    search = Search("decoder", H200, 900.0, memory_bytes=1000)
    heat = search.next(0.0)
    assert heat is not None
    first = raced(heat, product())
    peak = msgspec.structs.replace(first.reference, peak_bytes=round(1000 * share))
    search.take(msgspec.structs.replace(first, reference=peak))
    following = search.next(4.0)
    assert following is not None
    assert len(following.candidates) == at_once


def test_where_nothing_gains_the_best_is_the_baseline() -> None:
    search = Search("encoder", CPU, 600.0)
    heats = searched(search, product(compile=0.7))
    found = search.result()
    assert (found.best, found.best_gain) == ((), None)
    assert not any(heat.fresh for heat in heats)


def test_a_best_that_fresh_processes_deny_is_none() -> None:
    search = Search("encoder", CPU, 600.0)
    spent = 0.0
    while (heat := search.next(spent)) is not None:
        speed = product() if heat.fresh else product(sdpa=1.3)
        search.take(raced(heat, speed))
        spent += 4.0
    found = search.result()
    assert found.best == ()
    assert found.best_gain is not None
    assert found.best_gain.verdict == "same"


def test_one_that_fails_ends_nothing() -> None:
    search = Search("encoder", CPU, 600.0)
    searched(search, product(larger_batch=0.0, sdpa=1.5))
    found = {one.technique: one for one in search.result().alone}
    assert found["larger-batch"].verdict == "failed"
    assert found["larger-batch"].why == "out of memory"
    assert search.result().best == ("sdpa",)


def test_a_baseline_that_fails_ends_its_workload_with_the_reason() -> None:
    search = Search("encoder", CPU, 600.0)
    assert len(searched(search, lambda _: 0.0)) == 1
    assert search.result().ended == "the baseline: out of memory"


def test_a_short_time_leaves_room_for_the_proof() -> None:
    search = Search("encoder", CPU, 40.0)
    heats = searched(search, product(amp_bf16=1.5, sdpa=1.3))
    assert heats[-1].fresh
    assert 4.0 * len(heats) <= 44.0
    late = [one for one in search.result().alone if "time was over" in one.why]
    assert late


def test_no_time_at_all_measures_the_baseline_only() -> None:
    search = Search("encoder", CPU, 3.0)
    assert len(searched(search, product())) == 1


def test_only_what_was_asked_for_is_tried() -> None:
    search = Search("decoder", CPU, 600.0, only=("sdpa", "tf32"))
    heats = searched(search, product())
    assert [one.techniques for heat in heats for one in heat.candidates] == [("sdpa",)]
    assert {one.technique: one.verdict for one in search.result().alone} == {
        "tf32": "not-here",
        "sdpa": "same",
    }


def test_the_found_batch_is_not_sought_again() -> None:
    import msgspec

    search = Search("decoder", H200, 600.0)
    spent, seen = 0.0, []
    while (heat := search.next(spent)) is not None:
        seen += [search.settings(one).get("batch") for one in heat.candidates if _larger(one)]
        outcome = raced(heat, product(larger_batch=1.5, sdpa=1.3))
        some = tuple(
            msgspec.structs.replace(one, settings={"batch_factor": 8 if _larger(one.config) else 1})
            for one in outcome.candidates
        )
        search.take(msgspec.structs.replace(outcome, candidates=some))
        spent += 4.0
    assert seen[0] == 0
    assert set(seen[1:]) == {8}


def _larger(wanted: Config) -> bool:
    return "larger-batch" in wanted.techniques


# --- the catalogue -----------------------------------------------------------------------------


def why_not(name: str, ground: Ground, workload: str = "cnn") -> str:
    return techniques.why_not(techniques.technique(name), ground, workload)


def test_on_a_cpu_nothing_of_cuda_is_tried() -> None:
    tried = {one.name for one in techniques.TECHNIQUES if not why_not(one.name, CPU)}
    assert not tried & {"amp-fp16", "cuda-graphs", "pinned-memory", "prefetch-to-device"}
    assert {"amp-bf16", "compile", "channels-last", "loader-workers"} <= tried


def test_a_missing_compiler_is_a_reason() -> None:
    import msgspec

    bare = msgspec.structs.replace(CPU, compiler=False)
    assert "C++ compiler" in why_not("compile", bare)
    without = msgspec.structs.replace(H200, triton=False)
    assert "triton" in why_not("compile", without)


@pytest.mark.parametrize(("capability", "tried"), [("7.5", False), ("8.0", True)])
def test_tf32_begins_with_ampere(capability: str, tried: bool) -> None:
    import msgspec

    ground = msgspec.structs.replace(H200, capability=Version(capability))
    assert (why_not("tf32", ground) == "") is tried


def test_every_recipe_that_is_named_lies_in_the_folder() -> None:
    folder = Path(techniques.__file__).parents[2] / "recipes" / "train"
    missing = {one.recipe for one in techniques.TECHNIQUES if one.recipe} - {
        path.name for path in folder.glob("*.py")
    }
    assert not missing


def test_checkpointing_says_that_it_costs_time() -> None:
    assert "Time for memory" in techniques.technique("activation-checkpointing").cost


def test_groups_and_clashes_exclude_each_other() -> None:
    assert not techniques.fits("amp-fp16", ("amp-bf16",))
    assert not techniques.fits("cuda-graphs", ("amp-fp16",))
    assert not techniques.fits("amp-fp16", ("cuda-graphs",))
    assert techniques.fits("sdpa", ("amp-bf16", "compile"))
