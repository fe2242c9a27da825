"""What to measure next, until the best combination of one workload is found and proven.

Order: the baseline against itself, which gives the noise, and where its time goes; each technique
alone, what can help there first; the best combination, by adding what helps most as long as that is
more than noise; and that combination in fresh processes at the end. Pure but for `race`.
"""

import itertools
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from cudadoctor.bench import judging, techniques
from cudadoctor.bench.results import Bottleneck, Config, Gain, Measured, WorkloadResult, config
from cudadoctor.bench.techniques import Ground, slowness
from cudadoctor.model.machine import OptInt, Strings

ALONE_UNTIL, COMBINED_UNTIL = 0.7, 0.87
"""Shares of a workload's time: then the combination is sought, and then it is proven."""
SLOW_GPU_S, SLOW_CPU_S = 45.0, 25.0
"""What a process that compiles, or seeks its batch, is taken to need before one was seen."""
ITS_ROUNDS = 0.4
"""Part of a process's time that its rounds take, where it has started in an earlier heat."""
PROOF = 1.3
"""The time kept for the proof, over what the baseline and the best took before."""
TWINS, AT_ONCE = 2, 3
"""Processes of the baseline beside itself, and candidates that take turns with one reference."""
ROOM, LARGER = 0.8, 1.5
"""Part of a GPU's memory for all of them; how much larger than the baseline they are taken for."""
NO_TIME = judging.OVER
NOT_REACHED = f"{NO_TIME} before this was measured"


class Heat(Struct, frozen=True, kw_only=True):
    """Some that take turns. reference: what the others are compared with. twins: processes in
    which the reference runs once more. fresh: in a new process, also of the reference. limit_s:
    seconds it may take.
    """

    reference: Config
    candidates: tuple[Config, ...] = ()
    twins: int = 0
    fresh: bool = False
    limit_s: float = 60.0


class Raced(Struct, frozen=True, kw_only=True):
    """What a heat gave, in its order; the reference's rounds are those of this heat."""

    reference: Measured
    candidates: tuple[Measured, ...] = ()
    twins: tuple[Measured, ...] = ()
    bottleneck: Bottleneck | None = None
    seconds: float = 0.0


class Search(Struct):
    """The search for one workload. `run` measures; `result` is what is known, also in between.

    slice_s: the time for it. memory_bytes: of the GPU, None on a CPU. ended: why it was cut short.
    """

    workload: str
    ground: Ground
    slice_s: float
    only: Strings = ()
    memory_bytes: OptInt = None
    shape: str = ""
    ended: str = ""
    noise: float = 0.0
    baseline: Measured = Measured(config=Config(""), error=NO_TIME)
    bottleneck: Bottleneck = Bottleneck(kind="not known", why=NOT_REACHED)
    alone: dict[str, Gain] = {}
    combined: list[Gain] = []
    best: Strings = ()
    best_gain: Gain | None = None
    found: Gain | None = None
    untried: list[str] = []
    at_once: int = AT_ONCE
    _lost: str = ""
    _first_s: float = 0.0
    _each_s: float = 0.0
    _slow_s: dict[str, float] = {}
    _took_s: dict[Strings, float] = {}
    _running: Strings | None = None
    _left_over: list[str] = []
    _dropped: list[str] = []
    _added: bool = False

    def __post_init__(self) -> None:
        self.baseline = replace(self.baseline, config=config(self.workload))
        self.noise = judging.noise_of((), gpu=self.ground.gpu)
        for name in self.only or techniques.BY_NAME:
            if why := techniques.why_not(techniques.KNOWN[name], self.ground, self.workload):
                self.alone[name] = Gain(technique=name, verdict="not-here", why=why)
            else:
                self.untried.append(name)

    def run(self, race: Callable[[Heat], Raced], spent_s: Callable[[], float]) -> None:
        """Measure until all is done or the time is over.

        race: runs a heat. spent_s: the seconds of the slice that are over.
        """

        def raced(heat: Heat) -> Raced:
            outcome = race(heat)
            self._learn(outcome)
            return outcome

        base = config(self.workload)
        self._took_first(raced(Heat(reference=base, twins=TWINS, limit_s=self.slice_s - spent_s())))
        if self.ended:
            return
        while heat := self._turns(self.untried, spent_s()):
            self._took_alone(raced(heat))
        # From the best one alone; what could not be told alone may count once that is in.
        self.best, self.found = self._best_alone()
        if not self.best:
            return
        # What only saves memory has shown that it speeds up nothing.
        same = [name for name in self._with("same") if techniques.KNOWN[name].helps]
        self._left_over = self._fitting(self._with("faster")[1:] + same)
        while heat := self._combination(spent_s()):
            self._took_combined(raced(heat))
        if (left_s := self.slice_s - spent_s()) > 0.0:
            best = (config(self.workload, *self.best),)
            proof = Heat(reference=base, candidates=best, fresh=True, limit_s=left_s)
            self._took_proof(raced(proof))

    # --- what comes next, and what it takes ----------------------------------------------------

    def _turns(self, names: list[str], spent_s: float) -> Heat | None:
        """The next few beside the best so far, which they take turns with; None: no time for any.

        What compiles or fills the memory takes its turns alone.
        """
        at_s = spent_s + self._reference_s(self.best)
        takes_s = {name: self._process_s((*self.best, name)) for name in names}
        some = [name for name in names if at_s + takes_s[name] <= self._until_s(name)]
        if any(map(slowness, (*self.best, *some[:1]))):
            some = some[:1]
        else:
            some = list(itertools.takewhile(lambda name: not slowness(name), some))[: self.at_once]
        while some and at_s + sum(takes_s[name] for name in some) > min(map(self._until_s, some)):
            some.pop()
        if not some:
            return None
        return Heat(
            reference=config(self.workload, *self.best),
            candidates=tuple(config(self.workload, *self.best, name) for name in some),
            limit_s=min(map(self._until_s, some)) - spent_s,
        )

    def _combination(self, spent_s: float) -> Heat | None:
        """Some additions to the best so far; None where there are none, or no time for them."""
        heat = self._turns(self._left_over, spent_s)
        if heat is None and self._added:
            # What did not help before may help beside what came in since.
            self._left_over += self._dropped
            self._dropped, self._added = [], False
            return self._combination(spent_s)
        return heat

    def _until_s(self, name: str) -> float:
        """When the heat of a technique must have ended, so that it can be proven beside the best.

        Alone it may end later: its own gain stands also where nothing is left for the proof.
        """
        if not self.best:
            return ALONE_UNTIL * self.slice_s
        proof_s = PROOF * (self._process_s((*self.best, name)) + self._each_s)
        return min(COMBINED_UNTIL * self.slice_s, self.slice_s - proof_s)

    def _process_s(self, names: Strings) -> float:
        """Seconds that a process with these techniques takes, by what such ones took."""
        usual_s = SLOW_GPU_S if self.ground.gpu else SLOW_CPU_S
        slow = (
            slowness(name) * self._slow_s.get(techniques.KNOWN[name].group, usual_s)
            for name in names
        )
        return max(self._each_s, self._took_s.get(tuple(sorted(names)), 0.0), *slow)

    def _reference_s(self, names: Strings) -> float:
        """Seconds of a heat's reference: that of the heat before is there already."""
        return ITS_ROUNDS * self._each_s if names == self._running else self._process_s(names)

    def _learn(self, raced: Raced) -> None:
        """What a process took: of the quick ones, of the slow ones by kind, and of each beside."""
        beside = raced.reference.config.techniques
        number = len(raced.candidates) + len(raced.twins)
        tried = [candidate.config.techniques for candidate in raced.candidates]
        slow = [name for names in tried for name in names if slowness(name)]
        if not slow:
            each_s = raced.seconds / (number + 1)
            self._first_s = self._first_s or each_s
            self._each_s = max(self._first_s, each_s)
        if slow and not any(map(slowness, beside)):
            took_s = raced.seconds - self._reference_s(beside)
        else:
            took_s = raced.seconds / (number + (beside != self._running))
        for names in tried:
            self._took_s[names] = max(took_s, self._took_s.get(names, 0.0))
        if any(candidate.error is None for candidate in raced.candidates):
            for name in slow:
                self._slow_s[techniques.KNOWN[name].group] = took_s / slowness(name)
        self._running = beside if raced.reference.error is None else None

    # --- what came out -------------------------------------------------------------------------

    def _took_first(self, raced: Raced) -> None:
        self.baseline = raced.reference
        if raced.reference.error is not None or not raced.reference.rounds:
            errors = [run.error for run in (raced.reference, *raced.twins) if run.error]
            self.ended = f"the baseline: {errors[0] if errors else 'nothing was measured'}"
            return
        if self.memory_bytes and raced.reference.peak_bytes:
            fit = int(ROOM * self.memory_bytes / (LARGER * raced.reference.peak_bytes))
            self.at_once = max(1, min(AT_ONCE, fit - 1))
        self.noise = judging.noise_of((raced.reference, *raced.twins), gpu=self.ground.gpu)
        self.bottleneck = raced.bottleneck or self.bottleneck
        self.untried = techniques.ordered(self.untried, self.bottleneck.kind, self.ground)

    def _took_alone(self, raced: Raced) -> None:
        for candidate in raced.candidates:
            (name,) = candidate.config.techniques
            self.untried.remove(name)
            self.alone[name] = self._gain(raced, candidate, name)
        # The baseline's figures are of all its rounds.
        rounds = self.baseline.rounds + raced.reference.rounds
        self.baseline = replace(self.baseline, rounds=rounds)

    def _took_combined(self, raced: Raced) -> None:
        """Add what gained most; what gained less is tried beside it next, the others at the end."""
        before = raced.reference.config
        gained = []
        others = []
        late = False
        for candidate in raced.candidates:
            (added,) = {*candidate.config.techniques} - {*before.techniques}
            gain = self._gain(raced, candidate, added)
            over = gain.why.startswith(NO_TIME)
            late |= over
            self._left_over.remove(added)
            if gain.verdict == "faster":
                gained.append(gain)
            elif gain.verdict == "same":
                others.append(added)
            elif over and len(raced.candidates) > 1:
                self._left_over.append(added)  # with fewer beside it there may be time
            shown = f"{candidate.config.name}, against {before.name}"
            self.combined.append(replace(gain, technique=shown))
        self.at_once = max(1, self.at_once - late)
        self._dropped += others
        if gained:
            gained.sort(key=lambda gain: -(gain.ratio or 0.0))
            first, *less = [gain.technique for gain in gained]
            self.best = tuple(sorted((*self.best, first)))
            shown = f"{' + '.join(self.best)}, against {before.name}"
            self.found = replace(gained[0], technique=shown)
            self._added = True
            self._left_over = self._fitting(less + self._left_over)
            self._dropped = self._fitting(self._dropped)
        if raced.reference.error is not None:
            self._left_over, self._added = [], False

    def _took_proof(self, raced: Raced) -> None:
        """What is denied is no best any more; what could not be measured again stays unproven."""
        gain = self._gain(raced, raced.candidates[0], *self.best)
        if gain.verdict == "not-here" or raced.reference.error is not None:
            self._lost = raced.reference.error or gain.why
            return
        self.best_gain = gain
        if gain.verdict != "faster":
            self.best = ()

    def _gain(self, raced: Raced, candidate: Measured, *names: str) -> Gain:
        technique, lost = " + ".join(names), raced.reference.error
        if lost is not None and candidate.error is None:
            why = f"the reference configuration failed: {lost}"
            return Gain(technique=technique, verdict="failed", why=why, measured=candidate)
        return judging.gain(
            technique,
            raced.reference,
            candidate,
            noise=self.noise,
            tolerance=techniques.tolerance_of(names),
            losses=techniques.losses_of(names),
        )

    def _fitting(self, names: list[str]) -> list[str]:
        """Those that can be added to the best so far."""
        return [name for name in names if techniques.fits(name, self.best)]

    def _best_alone(self) -> tuple[Strings, Gain | None]:
        names = tuple(self._with("faster")[:1])
        return names, self.alone[names[0]] if names else None

    def _with(self, verdict: str) -> list[str]:
        """The techniques that were so alone, what gained most first."""
        gains = [gain for gain in self.alone.values() if gain.verdict == verdict]
        gains.sort(key=lambda gain: -(gain.ratio or 0.0))
        return [gain.technique for gain in gains if gain.technique != techniques.NOTHING]

    def settings(self, wanted: Config) -> dict[str, techniques.Value]:
        """The settings of a configuration; what was sought once is not sought again."""
        settings = techniques.settings_of(wanted.techniques)
        known = self.alone.get("larger-batch")
        if "batch" in settings and known is not None:
            chosen = known.measured.settings if known.measured else {}
            settings["batch"] = max(1, int(chosen.get("batch_factor", 1)))
        return settings

    def result(self) -> WorkloadResult:
        """What is known by now."""
        known = dict(self.alone)
        for name in self.untried:
            known[name] = Gain(technique=name, verdict="not-here", why=NOT_REACHED)
        best, found = self.best, self.found
        if not best and self.best_gain is None:
            best, found = self._best_alone()
        unproven = None
        if self.best_gain is None and found is not None:
            why = f"not measured again: {self._lost or self.ended or NO_TIME}"
            unproven = replace(found, why=why)
        return WorkloadResult(
            name=self.workload,
            samples_unit=techniques.UNITS[self.workload],
            baseline=self.baseline,
            bottleneck=self.bottleneck,
            alone=tuple(known[name] for name in techniques.ORDER if name in known),
            best=best,
            best_gain=self.best_gain,
            unproven=unproven,
            noise=self.noise,
            combined=tuple(self.combined),
            ended=self.ended or self._lost or (NO_TIME if self.untried or unproven else ""),
            shape=self.shape,
        )
