"""What is measured next: the order of a search, what it adds, and when it stops."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from bench_grounds import CPU, H200

from cudadoctor.bench import techniques
from cudadoctor.bench.results import Bottleneck, Config, Kind, Measured, WorkloadResult
from cudadoctor.bench.search import NO_TIME, Heat, Raced, Search

Speed = Callable[[tuple[str, ...]], float]


def measured(wanted: Config, step_s: float, error: str | None = None) -> Measured:
    wobble = [1.0 + 0.002 * (number % 3) for number in range(10)]
    return Measured(
        config=wanted,
        rounds=() if error else tuple(step_s * factor for factor in wobble),
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
        assert len(heats) < 100
        return race(heat)

    search.run(counted, lambda: 4.0 * len(heats))
    return heats


def searched(search: Search, speed: Speed, kind: Kind = "compute") -> list[Heat]:
    return ran(search, lambda heat: raced(heat, speed, kind))


def test_the_baseline_against_itself_comes_first() -> None:
    heats = searched(Search("decoder", CPU, 600.0), product())
    assert heats[0].twins
    assert heats[0].candidates == ()


def test_every_technique_that_can_be_tried_is_tried_once_alone() -> None:
    search = Search("cnn", CPU, 600.0)
    heats = searched(search, product())
    alone = [candidate.techniques for heat in heats[1:] for candidate in heat.candidates]
    wanted = {
        (technique.name,)
        for technique in techniques.TECHNIQUES
        if not techniques.why_not(technique, CPU, "cnn")
    }
    assert set(alone) == wanted
    assert len(alone) == len(wanted)
    assert {gain.technique for gain in search.result().alone} == set(techniques.BY_NAME)


def test_what_waits_for_data_begins_with_the_loader() -> None:
    search = Search("cnn", H200, 600.0)
    heats = searched(search, product(), "data loading")
    first = [candidate.techniques[0] for candidate in heats[1].candidates]
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
    search = Search("decoder", H200, 900.0, memory_bytes=1000)

    def race(heat: Heat) -> Raced:
        found = raced(heat, product())
        peak = msgspec.structs.replace(found.reference, peak_bytes=round(1000 * share))
        return msgspec.structs.replace(found, reference=peak)

    assert len(ran(search, race)[1].candidates) == at_once


def test_where_nothing_gains_the_best_is_the_baseline() -> None:
    search = Search("encoder", CPU, 600.0)
    heats = searched(search, product(compile=0.7))
    found = search.result()
    assert (found.best, found.best_gain) == ((), None)
    assert not any(heat.fresh for heat in heats)


def test_a_best_that_fresh_processes_deny_is_none() -> None:
    search = Search("encoder", CPU, 600.0)
    ran(search, lambda heat: raced(heat, product() if heat.fresh else product(sdpa=1.3)))
    found = search.result()
    assert found.best == ()
    assert found.best_gain is not None
    assert found.best_gain.verdict == "same"


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


def test_a_short_time_leaves_room_for_the_proof() -> None:
    search = Search("encoder", CPU, 40.0)
    heats = searched(search, product(amp_bf16=1.5, sdpa=1.3))
    assert heats[-1].fresh
    assert 4.0 * len(heats) <= 44.0
    late = [gain for gain in search.result().alone if "time limit was reached" in gain.why]
    assert late


def test_no_time_at_all_measures_the_baseline_only() -> None:
    search = Search("encoder", CPU, 3.0)
    assert len(searched(search, product())) == 1


def test_only_what_was_asked_for_is_tried() -> None:
    search = Search("decoder", CPU, 600.0, only=("sdpa", "tf32"))
    heats = searched(search, product())
    assert [candidate.techniques for heat in heats for candidate in heat.candidates] == [("sdpa",)]
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
        self.kept: Config | None = None

    def run(self) -> WorkloadResult:
        self.search.run(self._raced, lambda: self.spent)
        return self.search.result()

    def _raced(self, heat: Heat) -> Raced:
        self.heats.append(heat)
        assert len(self.heats) < 100
        there = self.kept == heat.reference and not heat.fresh
        self.kept = heat.reference
        started = [*heat.candidates, *[heat.reference] * (heat.twins + (not there))]
        rounds_s = 10 * self.turn_s * (len(started) + there)
        needed_s = sum(map(self._start_s, started)) + rounds_s + self.profile_s * bool(heat.twins)
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
        ran = {gain.technique for gain in self.search.alone.values() if gain.verdict != "not-here"}
        return [name[0] for name in dict.fromkeys(names) if len(name) == 1 and name[0] in ran]


def cut_off(candidate: Measured) -> Measured:
    return msgspec.structs.replace(candidate, rounds=(), error=f"{NO_TIME} during startup")


REAL = product(
    amp_bf16=3.0, sdpa=1.2, shorter_sequences=1.3, compile=1.4, tf32=2.0, channels_last=1.1
)


@pytest.mark.parametrize("slice_s", [170.0, 180.0, 190.0])
def test_three_minutes_on_a_gpu_reach_what_matters_and_its_proof(slice_s: float) -> None:
    clock = Clock(Search("encoder", H200, slice_s), REAL)
    found = clock.run()
    assert {"amp-bf16", "sdpa", "shorter-sequences", "compile"} <= set(clock.alone)
    assert found.best_gain is not None
    assert found.best_gain.verdict == "faster"
    assert {"amp-bf16"} < set(found.best)
    assert clock.spent <= slice_s


@pytest.mark.parametrize("workload", techniques.WORKLOADS)
@pytest.mark.parametrize("kind", ["compute", "host overhead", "data loading", "not known"])
def test_compile_is_reached_on_every_workload(workload: str, kind: Kind) -> None:
    clock = Clock(Search(workload, H200, 180.0), REAL, kind)
    clock.run()
    assert "compile" in clock.alone


@pytest.mark.parametrize("slice_s", range(45, 900, 15))
@pytest.mark.parametrize("compiling", [1.0, 1.4, 5.0])
def test_time_for_the_proof_is_kept(slice_s: int, compiling: float) -> None:
    """Even if the best technique compiles and its process is slow to start."""
    speed = product(amp_bf16=3.0, sdpa=1.2, compile=compiling, tf32=2.0, larger_batch=1.5)
    clock = Clock(Search("decoder", H200, float(slice_s)), speed)
    found = clock.run()
    assert (found.best_gain is not None) == any(gain.verdict == "faster" for gain in found.alone)
    assert found.unproven is None
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
    clock = Clock(Search("decoder", H200, 90.0), REAL)
    clock.run()
    assert "compile" not in clock.alone
    assert {"amp-bf16", "sdpa"} <= set(clock.alone)


def test_what_the_time_ended_is_tried_again_with_fewer_beside_it() -> None:
    search = Search("decoder", H200, 900.0, only=("amp-bf16", "sdpa", "fused-optimizer", "tf32"))
    speed = product(amp_bf16=3.0, sdpa=1.2, fused_optimizer=1.1)
    combined: list[Heat] = []

    def race(heat: Heat) -> Raced:
        found = raced(heat, speed)
        if not heat.reference.techniques:
            return found
        combined.append(heat)
        late = tuple(map(cut_off, found.candidates))
        return msgspec.structs.replace(found, candidates=late) if len(combined) == 1 else found

    ran(search, race)
    assert {"amp-bf16", "sdpa", "fused-optimizer"} <= set(search.result().best)


def proof_ended(search: Search, speed: Speed) -> WorkloadResult:
    """As `searched`, but the time ends in the proof."""

    def race(heat: Heat) -> Raced:
        found = raced(heat, speed)
        late = tuple(map(cut_off, found.candidates))
        return msgspec.structs.replace(found, candidates=late) if heat.fresh else found

    ran(search, race)
    return search.result()


def test_a_best_that_could_not_be_measured_again_stays_unproven() -> None:
    found = proof_ended(Search("decoder", H200, 900.0), product(amp_bf16=3.0, sdpa=1.2))
    assert found.best == ("amp-bf16", "sdpa")
    assert found.best_gain is None
    assert found.unproven is not None
    assert found.unproven.why == "not measured again: the time limit was reached during startup"
    assert found.unproven.technique == "amp-bf16 + sdpa, against amp-bf16"
    assert found.unproven.ratio == pytest.approx(1.2, rel=0.01)
    assert found.ended


def test_one_technique_that_is_unproven_keeps_its_own_gain() -> None:
    found = proof_ended(Search("decoder", H200, 900.0), product(sdpa=1.2))
    assert found.best == ("sdpa",)
    assert found.unproven is not None
    assert found.unproven.technique == "sdpa"
    assert found.unproven.ratio == pytest.approx(1.2, rel=0.01)


def test_a_search_that_is_interrupted_tells_what_gained_most_by_then() -> None:
    search = Search("decoder", H200, 900.0)
    heats: list[Heat] = []

    def race(heat: Heat) -> Raced:
        heats.append(heat)
        if len(heats) > 2:
            raise KeyboardInterrupt
        return raced(heat, product(amp_bf16=3.0))

    with pytest.raises(KeyboardInterrupt):
        ran(search, race)
    search.ended = "interrupted"
    found = search.result()
    assert found.best == ("amp-bf16",)
    assert found.unproven is not None
    assert found.unproven.why == "not measured again: interrupted"


def test_twins_that_failed_are_why_there_is_no_baseline() -> None:
    search = Search("decoder", H200, 900.0)

    def race(heat: Heat) -> Raced:
        found = raced(heat, product())
        bare = msgspec.structs.replace(found.reference, rounds=())
        twins = tuple(measured(heat.reference, 0.1, "out of memory") for _ in found.twins)
        return msgspec.structs.replace(found, reference=bare, twins=twins)

    assert len(ran(search, race)) == 1
    assert search.result().ended == "the baseline: out of memory"
