"""What is measured next: the order of a search, what it adds, and when it stops."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import msgspec
import pytest
from bench_grounds import CPU, H200

from cudadoctor.bench import judging, techniques
from cudadoctor.bench.heats import ROUNDS
from cudadoctor.bench.results import Bottleneck, Config, Kind, Measured, WorkloadResult, config
from cudadoctor.bench.search import MOST_COMBINED, NO_TIME, Heat, Raced, Search

Speed = Callable[[tuple[str, ...]], float]


def measured(wanted: Config, step_s: float, error: str | None = None) -> Measured:
    return Measured(
        config=wanted,
        rounds=() if error else (step_s,) * 5,
        processes=() if error else (step_s,),
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


def ran(search: Search, race: Callable[[Heat], Raced]) -> list[Heat]:
    """The heats of a search; each takes four seconds."""
    heats: list[Heat] = []

    def counted(heat: Heat) -> Raced:
        heats.append(heat)
        assert len(heats) < 400
        return race(heat)

    search.run(counted, lambda: 4.0 * len(heats))
    return heats


def searched(search: Search, speed: Speed, kind: Kind = "compute") -> list[Heat]:
    return ran(search, lambda heat: raced(heat, speed, kind))


def verdicts(search: Search) -> dict[str, str]:
    return {gain.technique: gain.verdict for gain in search.result().alone}


def test_the_baseline_beside_itself_comes_first() -> None:
    heats = searched(Search("decoder", CPU, 600.0), product())
    assert heats[0].twins
    assert heats[0].candidates == ()


def test_every_technique_gets_a_first_pair_before_any_gets_many() -> None:
    search = Search("cnn", CPU, 600.0)
    heats = searched(search, product())
    wanted = {
        (technique.name,)
        for technique in techniques.TECHNIQUES
        if not techniques.why_not(technique, CPU, "cnn")
    }
    alone = [candidate.techniques for heat in heats[1:] for candidate in heat.candidates]
    assert set(alone[: len(wanted)]) == wanted
    assert {gain.technique for gain in search.result().alone} == set(techniques.BY_NAME)


def test_a_claim_rests_on_three_pairs_of_fresh_processes_at_least() -> None:
    search = Search("decoder", H200, 900.0)
    searched(search, product(amp_bf16=3.0, compile=1.4, sdpa=0.5))
    claims = [gain for gain in search.result().alone if gain.verdict in ("faster", "slower")]
    assert {gain.technique for gain in claims} == {"amp-bf16", "compile", "sdpa"}
    for gain in claims:
        assert len(gain.pairs) >= 3
        assert gain.measured is not None and len(gain.measured.processes) == len(gain.pairs)
    best = search.result().best_gain
    assert best is not None and len(best.pairs) >= 3


def test_what_waits_for_data_begins_with_the_loader() -> None:
    search = Search("cnn", H200, 600.0)
    heats = searched(search, product(), "data loading")
    first = [candidate.techniques[0] for candidate in heats[1].candidates]
    assert set(first) <= {"loader-workers", "cached-data", "pinned-memory", "prefetch-to-device"}


def test_what_computes_begins_with_precision() -> None:
    heats = searched(Search("decoder", H200, 600.0), product(), "compute")
    assert heats[1].candidates[0].techniques == ("amp-bf16",)


def test_the_best_combination_is_what_multiplies() -> None:
    search = Search("decoder", H200, 1800.0)
    speed = product(amp_bf16=3.0, compile=1.4, sdpa=1.2, fused_optimizer=1.1, tf32=2.0)
    searched(search, speed)
    found = search.result()
    assert set(found.best) == {"amp-bf16", "compile", "sdpa", "fused-optimizer", "tf32"}
    assert found.best_gain is not None
    assert found.best_gain.ratio == pytest.approx(3.0 * 1.4 * 1.2 * 1.1 * 2.0, rel=0.01)


def test_a_combination_is_measured_against_the_baseline() -> None:
    search = Search("decoder", H200, 900.0)
    heats = searched(search, product(amp_bf16=3.0, sdpa=1.2))
    both = [heat for heat in heats if config("decoder", "amp-bf16", "sdpa") in heat.candidates]
    assert len(both) >= 3
    assert {heat.reference.techniques for heat in both} == {()}


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


def test_what_does_not_multiply_is_not_the_best() -> None:
    """Together they are no faster than the better one alone: the simpler one is advised."""
    search = Search("decoder", H200, 900.0)
    searched(search, lambda names: 2.0 if "amp-bf16" in names else 1.5 if "sdpa" in names else 1.0)
    assert search.result().best == ("amp-bf16",)


def test_techniques_that_slow_each_other_down_are_not_combined() -> None:
    search = Search("decoder", H200, 900.0)

    def speed(names: tuple[str, ...]) -> float:
        if {"amp-bf16", "sdpa"} <= set(names):
            return 0.8
        return 2.0 if "amp-bf16" in names else 1.5 if "sdpa" in names else 1.0

    searched(search, speed)
    found = search.result()
    assert found.best == ("amp-bf16",)
    denied = {gain.technique: gain.verdict for gain in found.combined}
    assert denied["amp-bf16 + sdpa"] == "slower"


@pytest.mark.parametrize(("share", "at_once"), [(0.05, 3), (0.13, 3), (0.15, 2), (0.3, 1)])
def test_only_so_many_run_at_once_as_the_gpu_can_hold(share: float, at_once: int) -> None:
    search = Search("decoder", H200, 900.0, memory_bytes=1000)

    def race(heat: Heat) -> Raced:
        found = raced(heat, product())
        peak = msgspec.structs.replace(found.reference, peak_bytes=round(1000 * share))
        return msgspec.structs.replace(found, reference=peak)

    assert len(ran(search, race)[1].candidates) == at_once


def test_where_nothing_gains_the_best_is_the_baseline() -> None:
    search = Search("encoder", CPU, 600.0)
    searched(search, product(compile=0.7))
    found = search.result()
    assert (found.best, found.best_gain) == ((), None)
    assert found.combined == ()


def test_one_process_that_is_faster_by_luck_is_no_gain() -> None:
    """The next processes deny what the first ones showed: the mean of all of them counts."""
    search = Search("encoder", CPU, 600.0, only=("sdpa",))
    heats: list[Heat] = []

    def race(heat: Heat) -> Raced:
        heats.append(heat)
        return raced(heat, product(sdpa=1.3 if len(heats) <= 3 else 1.0))

    ran(search, race)
    assert verdicts(search) == {"sdpa": "undecided"}
    assert search.result().best == ()


def test_processes_that_differ_get_more_of_them() -> None:
    def pairs(spread: float) -> int:
        search = Search("decoder", CPU, 600.0, only=("sdpa",))
        chance = random.Random(1)
        ran(search, lambda heat: raced(heat, lambda _: math.exp(chance.gauss(0.0, spread))))
        return len(search.result().alone[0].pairs)

    assert pairs(0.001) < pairs(0.1) == judging.MOST_PAIRS


def test_one_that_fails_ends_nothing() -> None:
    search = Search("encoder", CPU, 600.0)
    searched(search, product(larger_batch=0.0, sdpa=1.5))
    found = {gain.technique: gain for gain in search.result().alone}
    assert found["larger-batch"].verdict == "failed"
    assert found["larger-batch"].why == "out of memory"
    assert search.result().best == ("sdpa",)


def test_a_baseline_that_fails_ends_its_workload_with_the_reason() -> None:
    search = Search("encoder", CPU, 600.0)
    assert len(searched(search, lambda _: 0.0)) == 1
    assert search.result().ended == "the baseline: out of memory"


def test_a_short_time_reaches_what_matters_most() -> None:
    search = Search("encoder", CPU, 60.0)
    heats = searched(search, product(amp_bf16=1.5, sdpa=1.3))
    assert 4.0 * len(heats) <= 64.0
    assert verdicts(search)["amp-bf16"] == "faster"


def test_no_time_at_all_measures_the_baseline_only() -> None:
    search = Search("encoder", CPU, 3.0)
    assert len(searched(search, product())) == 1


def test_where_no_technique_applies_no_time_is_spent() -> None:
    search = Search("encoder", CPU, 600.0, only=("channels-last",))
    assert searched(search, product()) == []
    assert "does not apply" in search.result().alone[0].why


def test_the_error_of_a_whole_bench_is_shared_by_all_its_comparisons() -> None:
    search = Search("decoder", H200, 900.0)
    search.share(60, 3)
    searched(search, product(amp_bf16=3.0, sdpa=1.2, tf32=1.2))
    alone = 60 * max(trial.error for trial in search.alone.values())
    combined = 3 * MOST_COMBINED * max(trial.error for trial in search.combined.values())
    assert len(search.combined) <= MOST_COMBINED
    assert alone + combined == pytest.approx(judging.FAMILY)


def test_only_what_was_asked_for_is_tried() -> None:
    search = Search("decoder", CPU, 600.0, only=("sdpa", "tf32"))
    heats = searched(search, product())
    tried = {candidate.techniques for heat in heats for candidate in heat.candidates}
    assert tried == {("sdpa",)}
    assert {gain.technique: gain.verdict for gain in search.result().alone} == {
        "tf32": "not-here",
        "sdpa": "same",
    }


def test_the_found_batch_is_not_sought_again() -> None:
    search = Search("decoder", H200, 600.0)
    seen: list[object] = []

    def race(heat: Heat) -> Raced:
        seen.extend(
            search.settings(candidate).get("batch")
            for candidate in heat.candidates
            if _larger(candidate)
        )
        outcome = raced(heat, product(larger_batch=1.5, sdpa=1.3))
        some = tuple(
            msgspec.structs.replace(
                candidate, settings={"batch_factor": 8 if _larger(candidate.config) else 1}
            )
            for candidate in outcome.candidates
        )
        return msgspec.structs.replace(outcome, candidates=some)

    ran(search, race)
    assert seen[0] == 0
    assert set(seen[1:]) == {8}


def _larger(wanted: Config) -> bool:
    return "larger-batch" in wanted.techniques


# --- time ----------------------------------------------------------------------------------------


class Clock:
    """Runs the heats of a search on a GPU of its own, in seconds that nobody waits for."""

    start_s, compile_s, turn_s, profile_s = 5.5, 30.0, 0.3, 4.0

    def __init__(self, search: Search, speed: Speed, kind: Kind = "compute") -> None:
        self.search = search
        self.speed = speed
        self.kind: Kind = kind
        self.spent = 0.0
        self.heats: list[Heat] = []

    def run(self) -> WorkloadResult:
        self.search.run(self._raced, lambda: self.spent)
        return self.search.result()

    def _raced(self, heat: Heat) -> Raced:
        self.heats.append(heat)
        assert len(self.heats) < 400
        started = [*heat.candidates, *[heat.reference] * (heat.twins + 1)]
        rounds_s = ROUNDS * self.turn_s * len(started)
        needed_s = max(map(self._start_s, started)) + rounds_s + self.profile_s * bool(heat.twins)
        seconds = min(needed_s, heat.limit_s)
        self.spent += seconds
        found = raced(heat, self.speed, self.kind, seconds)
        if seconds == needed_s:
            return found
        return msgspec.structs.replace(found, candidates=tuple(map(cut_off, found.candidates)))

    def _start_s(self, wanted: Config) -> float:
        compiles = any(
            "compile" in techniques.KNOWN[technique].changes for technique in wanted.techniques
        )
        return self.start_s + self.compile_s * compiles

    @property
    def alone(self) -> list[str]:
        """The techniques that ran alone in time, in order."""
        names = [candidate.techniques for heat in self.heats for candidate in heat.candidates]
        ran = {name for name, trial in self.search.alone.items() if trial.pairs}
        return [name[0] for name in dict.fromkeys(names) if len(name) == 1 and name[0] in ran]


def cut_off(candidate: Measured) -> Measured:
    return msgspec.structs.replace(candidate, rounds=(), error=f"{NO_TIME} during startup")


REAL = product(
    amp_bf16=3.0, sdpa=1.2, shorter_sequences=1.3, compile=1.4, tf32=2.0, channels_last=1.1
)


@pytest.mark.parametrize("slice_s", [170.0, 180.0, 190.0])
def test_three_minutes_on_a_gpu_decide_what_matters(slice_s: float) -> None:
    clock = Clock(Search("encoder", H200, slice_s), REAL)
    found = clock.run()
    assert {"amp-bf16", "tf32", "sdpa"} <= set(clock.alone)
    assert found.best_gain is not None
    assert {"amp-bf16", "tf32"} <= set(found.best)
    assert clock.spent <= slice_s


@pytest.mark.parametrize("slice_s", range(30, 900, 60))
@pytest.mark.parametrize("compiling", [1.0, 1.4, 5.0])
def test_the_time_is_kept(slice_s: int, compiling: float) -> None:
    """Even if the best technique compiles and its process is slow to start."""
    speed = product(amp_bf16=3.0, sdpa=1.2, compile=compiling, tf32=2.0, larger_batch=1.5)
    clock = Clock(Search("decoder", H200, float(slice_s)), speed)
    found = clock.run()
    assert (found.best_gain is not None) == any(gain.verdict == "faster" for gain in found.alone)
    assert clock.spent <= slice_s


def test_what_compiles_takes_its_turns_alone_also_beside_the_best() -> None:
    clock = Clock(Search("decoder", H200, 900.0), product(compile=5.0, amp_bf16=3.0, sdpa=1.2))
    found = clock.run()
    compiling = [
        heat
        for heat in clock.heats
        for candidate in heat.candidates
        if "compile" in candidate.techniques
    ]
    assert {len(heat.candidates) for heat in compiling} == {1}
    assert {"compile", "amp-bf16", "sdpa"} <= set(found.best)


def test_a_slow_one_without_room_lets_the_others_pass() -> None:
    clock = Clock(Search("decoder", H200, 80.0), REAL)
    clock.run()
    assert "compile" not in clock.alone
    assert {"amp-bf16", "sdpa"} <= set(clock.alone)


def test_a_search_that_is_interrupted_tells_what_gained_most_by_then() -> None:
    search = Search("decoder", H200, 900.0)
    heats: list[Heat] = []

    def race(heat: Heat) -> Raced:
        heats.append(heat)
        if len(heats) > 20:
            raise KeyboardInterrupt
        return raced(heat, product(amp_bf16=3.0))

    with pytest.raises(KeyboardInterrupt):
        ran(search, race)
    search.ended = "interrupted"
    found = search.result()
    assert found.best == ("amp-bf16",)
    assert found.ended == "interrupted"


def test_twins_that_failed_are_why_there_is_no_baseline() -> None:
    search = Search("decoder", H200, 900.0)

    def race(heat: Heat) -> Raced:
        found = raced(heat, product())
        bare = msgspec.structs.replace(found.reference, rounds=())
        twins = tuple(measured(heat.reference, 0.1, "out of memory") for _ in found.twins)
        return msgspec.structs.replace(found, reference=bare, twins=twins)

    assert len(ran(search, race)) == 1
    assert search.result().ended == "the baseline: out of memory"
