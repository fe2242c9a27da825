"""What to measure next. Pure: facts, results so far and the time left in, a job out.

Order: the size of the workload; the baseline against itself, which gives the noise, and where its
time goes; each technique alone, what can help there first; the best combination, by adding what
helps most as long as that is more than noise; and that combination in fresh processes at the end.
"""

import itertools

import msgspec

from cudadoctor.bench import judging, techniques
from cudadoctor.bench.results import Bottleneck, Config, Gain, Measured, WorkloadResult, config
from cudadoctor.bench.techniques import Ground, slowness

ALONE_UNTIL, COMBINED_UNTIL = 0.7, 0.87
"""Shares of a workload's time: then the combination is sought, and then it is proven."""
SLOW_GPU_S, SLOW_CPU_S = 45.0, 25.0
"""What a process that compiles, or seeks its batch, is taken to need before one was seen."""
ITS_ROUNDS = 0.4
"""Part of a process's time that its rounds take, where it has started in an earlier heat."""
PROOF = 1.3
"""The time kept for the proof, over what the baseline and the best took before."""
TWINS = 2
AT_ONCE = 3
"""Candidates that take turns with one reference."""
ROOM, LARGER = 0.8, 1.5
"""Part of a GPU's memory for all of them; how much larger than the baseline they are taken for."""
NO_TIME = judging.OVER
NOT_REACHED = f"{NO_TIME} before it was tried"


class Heat(msgspec.Struct, frozen=True, kw_only=True):
    """Some that take turns. reference: what the others are compared with. twins: processes in
    which the reference runs once more. fresh: in a new process, also of the reference. limit_s:
    seconds it may take.
    """

    reference: Config
    candidates: tuple[Config, ...] = ()
    twins: int = 0
    fresh: bool = False
    limit_s: float = 60.0


class Raced(msgspec.Struct, frozen=True, kw_only=True):
    """What a heat gave, in its order; the reference's rounds are those of this heat."""

    reference: Measured
    candidates: tuple[Measured, ...] = ()
    twins: tuple[Measured, ...] = ()
    bottleneck: Bottleneck | None = None
    seconds: float = 0.0


class Search:
    """The search for one workload. `next` gives a heat, `take` its outcome, `result` what is known.

    slice_s: the time for it. memory_bytes: of the GPU, None on a CPU.
    """

    def __init__(
        self,
        workload: str,
        ground: Ground,
        slice_s: float,
        *,
        only: tuple[str, ...] = (),
        memory_bytes: int | None = None,
        shape: str = "",
    ) -> None:
        self.workload = workload
        self.ground = ground
        self.slice_s = slice_s
        self.memory_bytes = memory_bytes
        self.at_once = AT_ONCE
        self.shape = shape
        self.noise = judging.noise_of((), gpu=ground.gpu)
        self.baseline: Measured | None = None
        self.bottleneck = Bottleneck(kind="not known", why=NOT_REACHED)
        self.alone: dict[str, Gain] = {}
        self.combined: list[Gain] = []
        self.best: tuple[str, ...] = ()
        self.best_gain: Gain | None = None
        self.found: Gain | None = None
        self.untried: list[str] = []
        self.ended = ""
        self._phase = "first"
        self._lost = ""
        self._first_s = self._each_s = 0.0
        self._slow_s: dict[str, float] = {}
        self._took_s: dict[tuple[str, ...], float] = {}
        self._running: tuple[str, ...] | None = None
        self._pending: Heat | None = None
        self._left_over: list[str] = []
        self._dropped: list[str] = []
        self._added = False
        for name in only or techniques.BY_NAME:
            why = techniques.why_not(techniques.KNOWN[name], ground, workload)
            if why:
                self.alone[name] = Gain(technique=name, verdict="not-here", why=why)
            else:
                self.untried.append(name)

    # --- what comes next -----------------------------------------------------------------------

    def next(self, spent_s: float) -> Heat | None:
        """The next heat, where this much of the slice is spent; None where all is done."""
        left_s = self.slice_s - spent_s
        first = self._phase == "first"
        if self.ended or (left_s <= 0.0 and not first):
            self._phase, self._pending = "over", None
        elif first:
            self._pending = Heat(reference=config(self.workload), twins=TWINS, limit_s=left_s)
        else:
            self._pending = self._heat(spent_s, left_s)
        return self._pending

    def _heat(self, spent_s: float, left_s: float) -> Heat | None:
        if self._phase == "alone":
            if (heat := self._turns(self.untried, spent_s)) is not None:
                return heat
            # From the best one alone; what could not be told alone may count once that is in.
            self._phase = "combine"
            faster, same = self._with("faster"), self._with("same")
            self.best, self.found = self._best_alone()
            # What only saves memory has shown that it speeds up nothing.
            rest = faster[1:] + [name for name in same if techniques.KNOWN[name].helps]
            self._left_over = [name for name in rest if techniques.fits(name, self.best)]
        if self._phase == "combine":
            if (heat := self._combine(spent_s)) is not None:
                return heat
            self._phase = "confirm"
        if self._phase == "confirm" and self.best:
            best = config(self.workload, *self.best)
            return Heat(
                reference=config(self.workload), candidates=(best,), fresh=True, limit_s=left_s
            )
        self._phase = "over"
        return None

    def _turns(self, names: list[str], spent_s: float) -> Heat | None:
        """The next few beside the best so far, which they take turns with; None: no time for any.

        What compiles or fills the memory takes its turns alone.
        """
        at_s = spent_s + self._reference_s(self.best)
        takes_s = {name: self._process_s((*self.best, name)) for name in names}
        fitting = [name for name in names if at_s + takes_s[name] <= self._until_s(name)]
        if any(slowness(name) for name in (*self.best, *fitting[:1])):
            some = fitting[:1]
        else:
            some = list(itertools.takewhile(lambda one: not slowness(one), fitting))
            some = some[: self.at_once]
        while some and at_s + sum(takes_s[one] for one in some) > min(map(self._until_s, some)):
            some.pop()
        if not some:
            return None
        return Heat(
            reference=config(self.workload, *self.best),
            candidates=tuple(config(self.workload, *self.best, name) for name in some),
            limit_s=min(map(self._until_s, some)) - spent_s,
        )

    def _until_s(self, name: str) -> float:
        """When the heat of a technique must have ended, so that it can be proven beside the best.

        Alone it may end later: its own gain stands also where nothing is left for the proof.
        """
        if not self.best:
            return ALONE_UNTIL * self.slice_s
        proof_s = PROOF * (self._process_s((*self.best, name)) + self._each_s)
        return min(COMBINED_UNTIL * self.slice_s, self.slice_s - proof_s)

    # --- what it takes -------------------------------------------------------------------------

    def _process_s(self, names: tuple[str, ...]) -> float:
        """Seconds that a process with these techniques takes, by what such ones took."""
        usual_s = SLOW_GPU_S if self.ground.gpu else SLOW_CPU_S
        slow = [
            slowness(name) * self._slow_s.get(techniques.KNOWN[name].group, usual_s)
            for name in names
        ]
        return max([self._each_s, self._took_s.get(tuple(sorted(names)), 0.0), *slow])

    def _reference_s(self, names: tuple[str, ...]) -> float:
        """Seconds of a heat's reference: that of the heat before is there already."""
        there = names == self._running
        return ITS_ROUNDS * self._each_s if there else self._process_s(names)

    def _learn(self, heat: Heat, raced: Raced) -> None:
        """What a process took: of the quick ones, of the slow ones by kind, and of each beside."""
        beside = heat.reference.techniques
        number = len(heat.candidates) + heat.twins
        slow = [name for one in heat.candidates for name in one.techniques if slowness(name)]
        if not slow:
            self._first_s = self._first_s or raced.seconds / (number + 1)
            self._each_s = max(self._first_s, raced.seconds / (number + 1))
        if slow and not any(map(slowness, beside)):
            took_s = raced.seconds - self._reference_s(beside)
        else:
            took_s = raced.seconds / (number + (beside != self._running))
        for candidate in raced.candidates:
            names = candidate.config.techniques
            self._took_s[names] = max(took_s, self._took_s.get(names, 0.0))
            for name in slow if candidate.error is None else ():
                self._slow_s[techniques.KNOWN[name].group] = took_s / slowness(name)
        self._running = beside if raced.reference.error is None else None

    # --- the combination -----------------------------------------------------------------------

    def _best_alone(self) -> tuple[tuple[str, ...], Gain | None]:
        names = tuple(self._with("faster")[:1])
        return names, self.alone[names[0]] if names else None

    def _with(self, verdict: str) -> list[str]:
        found = [gain for gain in self.alone.values() if gain.verdict == verdict]
        found.sort(key=lambda gain: -(gain.ratio or 0.0))
        return [gain.technique for gain in found if gain.technique != techniques.NOTHING]

    def _combine(self, spent_s: float) -> Heat | None:
        """Some additions to the best so far; None where there are none, or no time for them."""
        if not self.best:
            return None
        heat = self._turns(self._left_over, spent_s)
        if heat is None and self._added:
            # What did not help before may help beside what came in since.
            self._left_over += self._dropped
            self._dropped, self._added = [], False
            heat = self._turns(self._left_over, spent_s)
        return heat

    def _add(self, gained: list[Gain], others: list[str]) -> None:
        """Add what gained most; what gained less is tried beside it next, the others at the end."""
        gained = sorted(gained, key=lambda one: -(one.ratio or 0.0))
        winner, before = gained[0].technique, " + ".join(self.best)
        self.best = tuple(sorted((*self.best, winner)))
        shown = f"{' + '.join(self.best)}, against {before}"
        self.found = msgspec.structs.replace(gained[0], technique=shown)
        self._added = True
        waiting = [one.technique for one in gained[1:]] + self._left_over
        self._left_over = [one for one in waiting if techniques.fits(one, self.best)]
        self._dropped = [one for one in self._dropped + others if techniques.fits(one, self.best)]

    # --- what came out -------------------------------------------------------------------------

    def take(self, raced: Raced) -> None:
        """Learn from the heat that `next` gave."""
        heat, self._pending = self._pending, None
        assert heat is not None, "an outcome without a heat"
        self._learn(heat, raced)
        took = {
            "first": self._took_first,
            "alone": self._took_alone,
            "combine": self._took_combined,
            "confirm": self._took_confirmed,
        }
        took[self._phase](heat, raced)

    def _took_first(self, _: Heat, raced: Raced) -> None:
        self.baseline = raced.reference
        if raced.reference.error is not None or not raced.reference.rounds:
            errors = [run.error for run in (raced.reference, *raced.twins) if run.error]
            self.ended = f"the baseline: {errors[0] if errors else 'nothing was measured'}"
            return
        if self.memory_bytes and raced.reference.peak_bytes:
            fit = int(ROOM * self.memory_bytes / (LARGER * raced.reference.peak_bytes))
            self.at_once = max(1, min(AT_ONCE, fit - 1))
        self.noise = judging.noise_of((raced.reference, *raced.twins), gpu=self.ground.gpu)
        if raced.bottleneck is not None:
            self.bottleneck = raced.bottleneck
        kind = self.bottleneck.kind
        self.untried = list(techniques.ordered(tuple(self.untried), kind, self.ground))
        self._phase = "alone"

    def _took_alone(self, _: Heat, raced: Raced) -> None:
        for candidate in raced.candidates:
            name = candidate.config.techniques[0]
            self.untried.remove(name)
            self.alone[name] = self._gain(name, raced.reference, candidate, (name,))
        # The baseline's figures are of all its rounds.
        if self.baseline is not None and raced.reference.rounds:
            rounds = self.baseline.rounds + raced.reference.rounds
            self.baseline = msgspec.structs.replace(self.baseline, rounds=rounds)

    def _took_combined(self, heat: Heat, raced: Raced) -> None:
        gained: list[Gain] = []
        others: list[str] = []
        late = False
        for wanted, candidate in zip(heat.candidates, raced.candidates, strict=True):
            added = next(one for one in wanted.techniques if one not in heat.reference.techniques)
            found = self._gain(added, raced.reference, candidate, (added,))
            over = found.verdict == "not-here" and found.why.startswith(NO_TIME)
            self._left_over.remove(added)
            if found.verdict == "faster":
                gained.append(found)
            elif found.verdict == "same":
                others.append(added)
            elif over and len(heat.candidates) > 1:
                self._left_over.append(added)  # with fewer beside it there may be time
            shown = f"{wanted.name}, against {heat.reference.name}"
            self.combined.append(msgspec.structs.replace(found, technique=shown))
            late |= over
        if late:
            self.at_once = max(1, self.at_once - 1)
        if gained:
            self._add(gained, others)
        else:
            self._dropped += others
        if raced.reference.error is not None:
            self._left_over, self._added = [], False

    def _took_confirmed(self, _: Heat, raced: Raced) -> None:
        """What is denied is no best any more; what could not be measured again stays unproven."""
        self._phase = "over"
        names = self.best
        found = self._gain(" + ".join(names), raced.reference, raced.candidates[0], names)
        if found.verdict == "not-here" or raced.reference.error is not None:
            self._lost = raced.reference.error or found.why
            return
        self.best_gain = found
        if found.verdict != "faster":
            self.best = ()

    def _gain(
        self, name: str, reference: Measured, candidate: Measured, names: tuple[str, ...]
    ) -> Gain:
        if reference.error is not None and candidate.error is None:
            why = f"what it took turns with ended: {reference.error}"
            return Gain(technique=name, verdict="failed", why=why, measured=candidate)
        return judging.gain(
            name,
            reference,
            candidate,
            noise=self.noise,
            tolerance=techniques.tolerance_of(names),
            losses=techniques.losses_of(names),
        )

    def settings(self, wanted: Config) -> dict[str, techniques.Value]:
        """The settings of a configuration; what was sought once is not sought again."""
        found = techniques.settings_of(wanted.techniques)
        known = self.alone.get("larger-batch")
        if "batch" in found and known is not None:
            chosen = known.measured.settings if known.measured else {}
            found["batch"] = max(1, int(chosen.get("batch_factor", 1)))
        return found

    def result(self) -> WorkloadResult:
        """What is known by now."""
        untried = [
            Gain(technique=name, verdict="not-here", why=NOT_REACHED) for name in self.untried
        ]
        alone = sorted(
            [*self.alone.values(), *untried],
            key=lambda gain: techniques.ORDER.index(gain.technique),
        )
        decided = self.best or self.best_gain is not None
        best, found = (self.best, self.found) if decided else self._best_alone()
        unproven = None
        if self.best_gain is None and found is not None:
            why = f"not measured again: {self._lost or self.ended or NO_TIME}"
            unproven = msgspec.structs.replace(found, why=why)
        return WorkloadResult(
            name=self.workload,
            samples_unit=techniques.UNITS[self.workload],
            baseline=self.baseline or Measured(config=config(self.workload), error=NO_TIME),
            bottleneck=self.bottleneck,
            alone=tuple(alone),
            best=best,
            best_gain=self.best_gain,
            unproven=unproven,
            noise=self.noise,
            combined=tuple(self.combined),
            ended=self.ended or self._lost or (NO_TIME if self.untried or unproven else ""),
            shape=self.shape,
        )
