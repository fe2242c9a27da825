"""What to measure next, until the techniques of one workload are decided and combined.

Order: the baseline beside itself, and where its time goes; a first pair of processes of each
technique, what can help there first; more pairs of what looks faster, until it is decided; then
what is faster together; and more pairs of all others as long as there is time. Pure but for `race`.

A technique is judged at fixed numbers of pairs (judging.LOOKS), so what is measured next may follow
what came out so far: that makes no false claim more likely.
"""

import math
import statistics
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from cudadoctor.bench import judging, techniques
from cudadoctor.bench.results import (
    Bottleneck,
    Conditions,
    Config,
    Gain,
    Measured,
    WorkloadResult,
    config,
)
from cudadoctor.bench.techniques import Ground, slowness
from cudadoctor.model.machine import OptInt, Strings

FIRST_UNTIL, ALONE_UNTIL = 0.45, 0.65
"""Shares of a workload's time: each gets a first pair, then what looks faster gets more; from then
on combinations come first."""
PROMISING, PROMISING_PAIRS = 0.02, 8
"""From so much on it looks faster, and for so many pairs it is measured before others for that."""
MOST_COMBINED, MOST_BESIDE = 12, 4
"""Comparisons of combinations, each with a part of the error that is allowed, and how many of them
at once of what did not help alone."""
SLOW_GPU_S, SLOW_CPU_S = 45.0, 25.0
"""What a process that compiles, or seeks its batch, is taken to need before one was seen."""
AT_ONCE = 3
"""Candidates that take turns with one reference."""
ROOM, LARGER = 0.8, 1.5
"""Part of a GPU's memory for all of them; how much larger than the baseline they are taken for."""
NO_TIME = judging.OVER
NOT_REACHED = f"{NO_TIME} before this was measured"


class Heat(Struct, frozen=True, kw_only=True):
    """Some that take turns, each in a fresh process. reference: what the others are compared with.

    twins: processes in which the reference runs once more. limit_s: seconds it may take.
    """

    reference: Config
    candidates: tuple[Config, ...] = ()
    twins: int = 0
    limit_s: float = 60.0


class Raced(Struct, frozen=True, kw_only=True):
    """What a heat gave, in its order."""

    reference: Measured
    candidates: tuple[Measured, ...] = ()
    twins: tuple[Measured, ...] = ()
    bottleneck: Bottleneck | None = None
    seconds: float = 0.0


class Trial(Struct):
    """One configuration against another, pair by pair of processes.

    error: how often it may make a false claim. gain: what is known. late: the time ended a process.
    """

    reference: Config
    candidate: Config
    error: float
    label: str
    pairs: list[float] = []
    gain: Gain | None = None
    late: bool = False
    _theirs: Measured | None = None
    _own: Measured | None = None

    @property
    def added(self) -> Strings:
        return tuple(sorted({*self.candidate.techniques} - {*self.reference.techniques}))

    @property
    def open(self) -> bool:
        """Whether another pair could tell more."""
        decided = self.gain is not None and self.gain.verdict != "undecided"
        return not decided and not self.late and len(self.pairs) < judging.MOST_PAIRS

    @property
    def promising(self) -> bool:
        few = 0 < len(self.pairs) < PROMISING_PAIRS
        return self.open and few and statistics.mean(self.pairs) >= PROMISING

    def took(self, reference: Measured, candidate: Measured) -> None:
        """One pair more; where there is none, why."""
        ratio = judging.pair(reference, candidate)
        if ratio is not None and not candidate.error:
            self.pairs.append(ratio)
            self._theirs = _together(self._theirs, reference)
            self._own = _together(self._own, candidate)
        elif reference.error or (candidate.error or NO_TIME).startswith(NO_TIME):
            self.late = True
            why = reference.error or candidate.error or NO_TIME
            lost = Gain(technique=self.label, verdict="not-here", why=why, measured=candidate)
            self.gain = self.gain or lost
        else:
            self._theirs, self._own = reference, candidate

    def judge(self, spread: float) -> None:
        """By the pairs so far."""
        if self._theirs is None or self._own is None:
            return
        self.gain = judging.gain(
            self.label,
            self._theirs,
            self._own,
            self.pairs,
            spread=spread,
            error=self.error,
            tolerance=techniques.tolerance_of(self.added),
            losses=techniques.losses_of(self.added),
        )


def _together(before: Measured | None, now: Measured) -> Measured:
    """The figures of several processes with one configuration."""
    if before is None:
        return now
    peaks = [one.peak_bytes for one in (before, now) if one.peak_bytes is not None]
    return replace(
        before,
        rounds=before.rounds + now.rounds,
        processes=before.processes + now.processes,
        peak_bytes=max(peaks, default=None),
        device_s=before.device_s if before.device_s is not None else now.device_s,
    )


class Search(Struct):
    """The search for one workload. `run` measures; `result` is what is known, also in between.

    slice_s: the time for it. comparisons: techniques that the whole bench compares, and workloads:
    in how many. memory_bytes: of the GPU, None on a CPU. ended: why it was cut short.
    """

    workload: str
    ground: Ground
    slice_s: float
    only: Strings = ()
    memory_bytes: OptInt = None
    comparisons: int = 0
    workloads: int = 1
    shape: str = ""
    ended: str = ""
    baseline: Measured = Measured(config=Config(""), error=NO_TIME)
    bottleneck: Bottleneck = Bottleneck(kind="not known", why=NOT_REACHED)
    conditions: Conditions | None = None
    alone: dict[str, Trial] = {}
    combined: dict[tuple[Config, Config], Trial] = {}
    at_once: int = AT_ONCE
    _not_here: dict[str, str] = {}
    _each_s: float = 0.0
    _slow_s: dict[str, float] = {}

    def __post_init__(self) -> None:
        base = config(self.workload)
        self.baseline = replace(self.baseline, config=base)
        for name in self.only or techniques.BY_NAME:
            why = techniques.why_not(techniques.KNOWN[name], self.ground, self.workload)
            if why:
                self._not_here[name] = why
            else:
                self.alone[name] = Trial(base, config(self.workload, name), 0.0, name)
        self.share(self.comparisons or len(self.alone), self.workloads)

    def share(self, comparisons: int, workloads: int) -> None:
        """Divide the error of the whole bench among its comparisons."""
        self.comparisons, self.workloads = comparisons, workloads
        for trial in self.alone.values():
            trial.error = judging.FAMILY * (1 - judging.COMBINED) / max(1, comparisons)

    def run(self, race: Callable[[Heat], Raced], spent_s: Callable[[], float]) -> None:
        """Measure until all is done or the time is over.

        race: runs a heat. spent_s: the seconds of the slice that are over.
        """
        if not self.alone:
            return
        base = config(self.workload)
        first = race(Heat(reference=base, twins=1, limit_s=self.slice_s - spent_s()))
        self._took_first(first)
        while not self.ended and (heat := self._next(spent_s())):
            self._took(heat, race(heat))

    # --- what comes next, and what it takes ----------------------------------------------------

    def _next(self, spent_s: float) -> Heat | None:
        """The first that there is time for, and others beside it; None: no time for any.

        What compiles or fills the memory takes its turns alone.
        """
        left_s = self.slice_s - spent_s
        several = {wanted for _, wanted in self.combined}
        some: list[Trial] = []
        alone = False
        for trial in self._queue(spent_s):
            # Every process beside it would make its next pair come later.
            if some and alone and not (trial.promising or trial.candidate in several):
                break
            same = not some or trial.reference == some[0].reference
            slow = self._slow(trial.candidate) or self._slow(trial.reference)
            if same and not (some and slow) and self._takes_s([*some, trial]) <= left_s:
                some.append(trial)
                alone = trial.promising or trial.candidate in several
                if slow or len(some) == self.at_once:
                    break
        if not some:
            return None
        until_s = self.slice_s
        if len(self._with("faster")) > 1:
            # The last part of the time is kept for what is faster together.
            until_s = max(ALONE_UNTIL * self.slice_s, spent_s + 2 * self._takes_s(some))
        return Heat(
            reference=some[0].reference,
            candidates=tuple(trial.candidate for trial in some),
            limit_s=min(until_s, self.slice_s) - spent_s,
        )

    def _queue(self, spent_s: float) -> list[Trial]:
        """All that another pair could tell more about, the most important first."""
        kind, ground = self.bottleneck.kind, self.ground
        ordered = [self.alone[name] for name in techniques.ordered(self.alone, kind, ground)]
        some = [trial for trial in ordered if trial.open]
        new = [trial for trial in some if not trial.pairs]
        new.sort(key=lambda trial: self._slow(trial.candidate))
        likely = sorted(
            (trial for trial in some if trial.promising), key=lambda t: -statistics.mean(t.pairs)
        )
        early = spent_s < FIRST_UNTIL * self.slice_s
        late = spent_s >= ALONE_UNTIL * self.slice_s
        # What is faster together depends on all that is faster alone.
        wait = not late and (likely or (early and new))
        together = [] if wait else self._combinations()
        first = [*new, *likely, *together] if early else [*together, *likely, *new]
        beside = [] if together or likely or new else self._beside_the_best()
        # One that is decided says more than two that are not.
        rest = sorted(some, key=lambda t: (len(t.pairs) >= PROMISING_PAIRS, -len(t.pairs)))
        return [*first, *beside, *(trial for trial in rest if trial not in first)]

    def _combinations(self) -> list[Trial]:
        """Of what is faster alone: the best with the next, with the next two, and so on."""
        base = config(self.workload)
        chosen: Strings = ()
        chain: list[Config] = []
        for name in self._with("faster"):
            if techniques.fits(name, chosen):
                chosen = (*chosen, name)
                chain.append(config(self.workload, *chosen))
        # What was added to the best is measured against the baseline too.
        found = (trial for trial in self.combined.values() if trial.reference.techniques)
        chain += [trial.candidate for trial in found if _is(trial, "faster")]
        several = [wanted for wanted in chain if len(wanted.techniques) > 1][-self.at_once :]
        return [trial for wanted in several if (trial := self._trial(base, wanted))]

    def _beside_the_best(self) -> list[Trial]:
        """What did not help alone may help beside what does, where that took its place."""
        best, _ = self._best()
        if not best:
            return []
        kind = self.bottleneck.kind
        helped = any(kind in techniques.KNOWN[name].helps for name in best)
        # What only saves memory has shown that it speeds up nothing.
        names = [
            name
            for name in techniques.ordered(self.alone, "not known" if helped else kind, self.ground)
            if _is(self.alone[name], "same", "undecided")
            and techniques.KNOWN[name].helps
            and techniques.fits(name, best)
        ][:MOST_BESIDE]
        reference = config(self.workload, *best)
        wanted = (config(self.workload, *best, name) for name in names)
        trials = (self._trial(reference, each) for each in wanted)
        return [trial for trial in trials if trial and len(trial.pairs) < PROMISING_PAIRS]

    def _trial(self, reference: Config, candidate: Config) -> Trial | None:
        """The comparison, if it is open; a new one as long as there is error left for it."""
        key = reference, candidate
        if key not in self.combined:
            if len(self.combined) >= MOST_COMBINED:
                return None
            against = f", against {reference.name}" if reference.techniques else ""
            error = judging.FAMILY * judging.COMBINED / (max(1, self.workloads) * MOST_COMBINED)
            self.combined[key] = Trial(reference, candidate, error, candidate.name + against)
        trial = self.combined[key]
        return trial if trial.open else None

    def _takes_s(self, some: list[Trial]) -> float:
        """Seconds of a heat, by what such ones took."""
        configs = [some[0].reference, *(trial.candidate for trial in some)]
        return sum(map(self._process_s, configs))

    def _process_s(self, wanted: Config) -> float:
        usual_s = SLOW_GPU_S if self.ground.gpu else SLOW_CPU_S
        slow = (
            self._slow_s.get(techniques.KNOWN[name].group, usual_s) * slowness(name)
            for name in wanted.techniques
        )
        return max(self._each_s, sum(slow))

    def _slow(self, wanted: Config) -> bool:
        return any(map(slowness, wanted.techniques))

    def _learn(self, raced: Raced) -> None:
        """What a process took: of the quick ones, and of the slow ones by kind."""
        processes = [raced.reference, *raced.candidates, *raced.twins]
        slow = [name for one in processes for name in one.config.techniques if slowness(name)]
        if not slow:
            self._each_s = raced.seconds / len(processes)
        quick = sum(not self._slow(one.config) for one in processes)
        for name in slow:
            took_s = (raced.seconds - quick * self._each_s) / len(slow)
            self._slow_s[techniques.KNOWN[name].group] = max(0.0, took_s) / slowness(name)

    # --- what came out -------------------------------------------------------------------------

    def _took_first(self, raced: Raced) -> None:
        self._learn(raced)
        self.baseline = raced.reference
        if raced.reference.error is not None or not raced.reference.rounds:
            errors = [run.error for run in (raced.reference, *raced.twins) if run.error]
            self.ended = f"the baseline: {errors[0] if errors else 'nothing was measured'}"
            return
        if self.memory_bytes and raced.reference.peak_bytes:
            fit = int(ROOM * self.memory_bytes / (LARGER * raced.reference.peak_bytes))
            self.at_once = max(1, min(AT_ONCE, fit - 1))
        self.bottleneck = raced.bottleneck or self.bottleneck

    def _took(self, heat: Heat, raced: Raced) -> None:
        why = raced.reference.error or NO_TIME
        if not why.startswith(NO_TIME) and not heat.reference.techniques:
            self.ended = f"the baseline: {why}"
            return
        self._learn(raced)
        known = {(trial.reference, trial.candidate): trial for trial in self._trials()}
        tried = [known[heat.reference, wanted] for wanted in heat.candidates]
        for trial, candidate in zip(tried, raced.candidates, strict=True):
            trial.took(raced.reference, candidate)
        spread = self._spread()
        for trial in tried:
            trial.judge(spread)
        if heat.reference == self.baseline.config and raced.reference.rounds:
            self.baseline = _together(self.baseline, raced.reference)

    def _trials(self) -> list[Trial]:
        return [*self.alone.values(), *self.combined.values()]

    def _spread(self) -> float:
        pairs = (trial.pairs for trial in self._trials())
        return judging.spread_of(pairs, gpu=self.ground.gpu)

    def _with(self, verdict: str) -> list[str]:
        """The techniques that were so alone, what gained most first."""
        gains = [trial.gain for trial in self.alone.values() if trial.gain and _is(trial, verdict)]
        gains.sort(key=lambda gain: -(gain.ratio or 0.0))
        return [gain.technique for gain in gains if gain.technique != techniques.NOTHING]

    def _best(self) -> tuple[Strings, Gain | None]:
        """What gained most against the baseline, of all that is decided."""
        tried = [self.alone[name] for name in self._with("faster")]
        tried += [trial for trial in self.combined.values() if _is(trial, "faster")]
        against = self.baseline.config
        found = [
            (trial.candidate.techniques, trial.gain)
            for trial in tried
            if trial.gain and trial.reference == against
        ]
        return max(found, key=lambda each: each[1].ratio or 0.0, default=((), None))

    def settings(self, wanted: Config) -> dict[str, techniques.Value]:
        """The settings of a configuration; what was sought once is not sought again."""
        settings = techniques.settings_of(wanted.techniques)
        known = self.alone.get("larger-batch")
        if "batch" in settings and known is not None and known._own is not None:
            settings["batch"] = max(1, int(known._own.settings.get("batch_factor", 1)))
        return settings

    def result(self) -> WorkloadResult:
        """What is known by now."""
        gains = {name: trial.gain for name, trial in self.alone.items()}
        known = {
            name: gain or Gain(technique=name, verdict="not-here", why=NOT_REACHED)
            for name, gain in gains.items()
        }
        for name, why in self._not_here.items():
            known[name] = Gain(technique=name, verdict="not-here", why=why)
        best, best_gain = self._best()
        late = any(not trial.pairs and trial.open for trial in self.alone.values())
        tried = any(trial.pairs for trial in self.alone.values())
        return WorkloadResult(
            name=self.workload,
            samples_unit=techniques.UNITS[self.workload],
            baseline=self.baseline,
            bottleneck=self.bottleneck,
            alone=tuple(known[name] for name in techniques.ORDER if name in known),
            best=best,
            best_gain=best_gain,
            noise=math.exp(self._spread()) if tried else None,
            combined=tuple(trial.gain for trial in self.combined.values() if trial.gain),
            ended=self.ended or (NO_TIME if late else ""),
            shape=self.shape,
            conditions=self.conditions,
        )


def _is(trial: Trial, *verdicts: str) -> bool:
    return trial.gain is not None and trial.gain.verdict in verdicts
