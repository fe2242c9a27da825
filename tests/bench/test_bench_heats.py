"""Heats with runners that are told what to say: what is started, ended, waited for and reckoned."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from cudadoctor.bench.heats import ROUNDS, Heats, Runner, Track
from cudadoctor.bench.results import Config, Line, config
from cudadoctor.bench.search import Heat, Raced
from cudadoctor.bench.stable import Stable
from cudadoctor.bench.techniques import settings_of

TRACK = Track(device="cuda:0", shape={}, round_s=0.001)
BASE = config("decoder")
READY = {"kind": "ready", "step_s": 0.001, "samples": 4, "factor": 1, "losses": [1.0]}
ROUND = {"kind": "round", "seconds": 0.001, "wait_s": 0.0}


class Scripted(Stable):
    """Runners that answer at once. alive: those whose end was not heard yet.

    ready: the first line of a runner, by its order. answer: of the others, by what is asked.
    """

    def __init__(
        self,
        ready: Callable[[Line], Line] = lambda _: {},
        answer: Callable[[int, str], Line] = lambda _number, _do: {},
    ) -> None:
        super().__init__("python", {}, forks=True)
        self.ready = ready
        self.answer = answer
        self.lines: dict[int, deque[Line]] = {}
        self.alive: set[int] = set()
        self.beside: list[set[int]] = []
        self.asked: list[tuple[int, str]] = []
        self.steps: list[int] = []

    def start(self, **order: Any) -> int:
        number = len(self.lines) + 1
        self.lines[number] = deque([{**READY, "workers": 0, **self.ready(order)}])
        self.beside.append(set(self.alive))
        self.alive.add(number)
        return number

    def send(self, number: int, do: str, **more: Any) -> None:
        self.asked.append((number, do))
        self.steps += more.values()
        usual = {**ROUND, "kind": {"stop": "done"}.get(do, do), "peak_bytes": 1}
        self.lines[number].append({**usual, **self.answer(number, do)})
        if do == "stop":
            self.lines[number].append({"kind": "over", "detail": ""})

    def hear(self, number: int, timeout_s: float) -> Line | None:
        assert timeout_s >= 0.0
        if not self.lines[number]:
            return None
        line = self.lines[number].popleft()
        if line["kind"] in ("over", "failed"):
            self.alive.discard(number)
        return line

    def kill(self, number: int) -> None:
        self.alive.discard(number)


def heats_of(stable: Stable, **more: Any) -> Heats:
    def settings(candidate: Config) -> dict[str, Any]:
        return settings_of(candidate.techniques)

    return Heats(stable, replace(TRACK, **more), settings, time.monotonic() + 600.0)


def run(heats: Heats, heat: Heat) -> Raced:
    return heats.run(heat)


def test_every_heat_has_fresh_processes_and_leaves_none() -> None:
    stable = Scripted()
    heats = heats_of(stable)
    run(heats, Heat(reference=BASE, twins=1))
    for number in (2, 4):
        found = run(heats, Heat(reference=BASE, candidates=(config("decoder", "sdpa"),)))
        assert len(stable.lines) == number + 2
        assert stable.beside[number] == set(), "nothing of the heat before holds memory"
        assert len(found.reference.processes) == len(found.candidates[0].processes) == 1
    assert stable.alive == set()


def test_who_starts_and_who_is_first_in_a_round_is_drawn() -> None:
    """Always the same place would be a gain, or a loss, of the place."""
    begun: set[str] = set()
    rounds: set[int] = set()
    for _ in range(40):
        names: list[str] = []

        def ready(order: Line, names: list[str] = names) -> Line:
            names.append(str(order["settings"].get("attention", "baseline")))
            return {}

        stable = Scripted(ready)
        run(heats_of(stable), Heat(reference=BASE, candidates=(config("decoder", "sdpa"),)))
        begun.add(names[0])
        rounds.add(next(number for number, do in stable.asked if do == "round"))
    assert begun == {"baseline", "sdpa"}
    assert rounds == {1, 2}


class Waiting(Scripted):
    """waited: how many runners there were when the first line of one was heard."""

    waited = 0

    def hear(self, number: int, timeout_s: float) -> Line | None:
        self.waited = self.waited or len(self.lines)
        return super().hear(number, timeout_s)


@pytest.mark.parametrize(
    ("name", "cores", "side_by_side"),
    [("sdpa", 64, True), ("sdpa", 2, False), ("compile", 64, False)],
)
def test_on_many_cores_they_start_side_by_side_but_for_what_compiles(
    name: str, cores: int, side_by_side: bool
) -> None:
    stable = Waiting()
    heats = heats_of(stable, cores=cores)
    run(heats, Heat(reference=BASE, candidates=(config("decoder", name),)))
    assert (stable.waited == 2) is side_by_side


def test_each_heat_imports_torch_again_if_asked() -> None:
    """Forks of one process have its memory's layout: its luck would be that of all of them."""
    stable = Scripted()
    ended: list[int] = []
    stable.end = lambda: ended.append(len(stable.lines))  # type: ignore[method-assign]
    heats = heats_of(stable, reimports=True)
    for _ in range(2):
        run(heats, Heat(reference=BASE, candidates=(config("decoder", "sdpa"),)))
    assert ended == [0, 2]


def test_the_end_of_a_process_is_waited_for_after_its_last_figures() -> None:
    stable = Scripted()
    run(heats_of(stable), Heat(reference=BASE, candidates=(config("decoder", "sdpa"),)))
    assert stable.alive == set(), "both have told their memory, and have ended"


def starting(seconds: dict[str, float]) -> Callable[[Line], Line]:
    def ready(order: Line) -> Line:
        mode = str(order["settings"].get("compile", order["settings"].get("batch", "")))
        return {"extra_s": seconds.get(mode, 0.5), "setup_s": 1.0}

    return ready


@pytest.mark.parametrize(
    ("names", "seconds"),
    [
        (("compile",), 29.5),
        (("compile-max-autotune",), 0.0),  # ready before the baseline
        (("amp-bf16", "compile"), None),
        (("larger-batch",), None),  # that is a search
        (("sdpa",), None),
    ],
)
def test_compiling_is_what_the_baseline_did_not_need(
    names: tuple[str, ...], seconds: float | None
) -> None:
    heats = heats_of(Scripted(starting({"default": 30.0, "max-autotune": 0.1, "0": 9.0})))
    found = run(heats, Heat(reference=BASE, candidates=(config("decoder", *names),)))
    assert found.candidates[0].compile_s == seconds


def test_only_the_first_that_compiles_tells_what_it_took() -> None:
    heats = heats_of(Scripted(starting({"default": 30.0, "reduce-overhead": 12.0})))
    for name, seconds in (("compile", 29.5), ("compile-reduce-overhead", None)):
        found = run(heats, Heat(reference=BASE, candidates=(config("decoder", name),)))
        assert found.candidates[0].compile_s == seconds


def runner(workers: int, *names: str) -> Runner:
    stable = Scripted(lambda _: {"workers": workers})
    found = Runner(stable, TRACK, config("cnn", *names), {})
    found.warm(time.monotonic() + 1.0)
    found.turn(time.monotonic() + 1.0)
    assert found.error is None
    return found


def test_a_round_counts_the_stock_of_the_workers_and_their_rest() -> None:
    assert runner(0).turn_s == pytest.approx(1.2 * 0.001 * 2)
    assert runner(4).turn_s == pytest.approx(1.2 * 0.001 * (4 + 1 + 8) + 1.0)


def test_a_round_that_compiles_again_is_no_hang() -> None:
    usual = runner(0, "channels-last").patience_s
    assert runner(0, "compile").patience_s == pytest.approx(usual + 90.0)


def test_a_process_that_failed_does_not_hide_where_the_time_goes() -> None:
    def answer(number: int, do: str) -> Line:
        last = number == 3 and do == "round"
        return {"kind": "failed", "error": "lost"} if last else {"operations": [[10**9, 1, 1]]}

    heats, seen = heats_of(stable := Scripted(answer=answer)), []
    for _ in range(20):
        stable.lines.clear()
        found = run(heats, Heat(reference=BASE, twins=2))
        seen.append([twin.error for twin in found.twins])
        if "lost" in seen[-1]:
            assert found.bottleneck is not None
    assert [None, "lost"] in seen


def test_what_the_gpu_said_in_the_rounds_is_kept() -> None:
    live = {"clock_mhz": 1410, "power_mw": 300_000, "throttle": 0x4}
    heats = heats_of(Scripted(answer=lambda _, do: {"live": live} if do == "round" else {}))
    run(heats, Heat(reference=BASE, twins=1))
    assert heats.live == [live] * 2 * ROUNDS


def test_a_profile_that_fails_costs_no_round() -> None:
    def answer(_: int, do: str) -> Line:
        return {"kind": "failed", "error": "no profiler"} if do == "profile" else {}

    found = run(heats_of(Scripted(answer=answer)), Heat(reference=BASE, twins=2))
    assert [twin.error for twin in found.twins] == [None, None]
    assert len(found.twins[1].rounds) == ROUNDS
