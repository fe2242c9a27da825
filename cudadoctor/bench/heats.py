"""A heat: some configurations in processes of their own that take turns, round by round."""

import math
import random
import statistics
from collections.abc import Callable
from time import monotonic

from msgspec import Struct, convert
from msgspec.structs import replace

from cudadoctor.bench import judging, techniques
from cudadoctor.bench.results import Bottleneck, Config, Line, Measured
from cudadoctor.bench.search import Heat, Raced
from cudadoctor.bench.stable import Stable
from cudadoctor.bench.techniques import Value
from cudadoctor.model.machine import Json, OptStr

ROUNDS, MOST_STEPS = 5, 200
LONGEST_START_S, PROFILE_S, STOP_S = 300.0, 60.0, 20.0
ROUND_PATIENCE = 20.0
CORES_TO_START = 2
"""Cores that a process needs so that its start does not slow down another's."""
ENDED_S = 3.0
"""For a process that said its last word to end: until then it holds its memory, and the next one
looks at what is free."""
RECOMPILE_S = 90.0
"""Compiling again inside of a round is no hang."""


class Track(Struct, frozen=True, kw_only=True):
    """Where it runs. round_s: seconds on the clock in a round. warm_s: warming up at most.

    share: of the GPU's free memory that a process may take. peaks: of the device by the tables.
    start_s: a lower limit for a start, for tests. cores: of the machine. nvml: the folder of a
    pynvml, which reports the clocks. reimports: import torch once for each heat: forks of one
    process have its memory's layout, and so its luck.
    """

    device: str
    shape: Json
    round_s: float = 0.4
    warm_s: float = 3.0
    share: float = 0.9
    peaks: judging.Peaks | None = None
    start_s: float = LONGEST_START_S
    faults: dict[str, str] = {}
    cores: int = 1
    nvml: str = ""
    reimports: bool = False


class Ready(Struct, frozen=True):
    """What a runner says when it is warm.

    step_s: of its last steps. extra_s, setup_s: seconds of its start that no step needs: loading
    libraries and compiling, and building the model. losses: infinity and nan travel as words.
    samples: of a step, 0 as long as it said nothing. factor: of the usual batch. workers: of its
    loader.
    """

    step_s: float = 1.0
    extra_s: float = 0.0
    setup_s: float = 0.0
    losses: tuple[float | str, ...] = ()
    samples: int = 0
    factor: int = 1
    workers: int = 0
    why_no_workers: str = ""

    @property
    def start_s(self) -> float:
        return self.extra_s + self.setup_s


class Runner(Struct):
    """One configuration in its process, from its start to its figures.

    gone: its process ended, or was ended; then `error` says why where its rounds do not stand.
    """

    stable: Stable
    track: Track
    config: Config
    settings: dict[str, Value]
    rounds: list[float] = []
    waits: list[float] = []
    live: list[Line] = []
    error: OptStr = None
    ready: Ready = Ready()
    memory: Line = {}
    gone: bool = False
    number: int = 0

    def __post_init__(self) -> None:
        track = self.track
        faults = [track.faults[name] for name in self.config.techniques if name in track.faults]
        self.number = self.stable.start(
            what="train",
            workload=self.config.workload,
            shape=track.shape,
            settings={**self.settings, "fault": "".join(faults[:1])},
            device=track.device,
            warm_s=track.warm_s,
            share=track.share,
            nvml=track.nvml,
        )

    def warm(self, until: float) -> None:
        """Wait until it is warm."""
        if line := self._next("ready", self.track.start_s, until, "during startup"):
            self.ready = convert(line, Ready)

    def turn(self, until: float) -> None:
        """One round."""
        self.stable.send(self.number, "round", steps=self.steps)
        if line := self._next("round", self.patience_s, until, "during the rounds"):
            self.rounds.append(line["seconds"])
            self.waits.append(line["wait_s"])
            self.live.append(line.get("live") or {})

    @property
    def steps(self) -> int:
        """Steps of the next round: what lasts as long as a round should.

        Workers of a loader hand over their batches together: at least one of each is counted.
        """
        step_s = statistics.median_high(self.rounds or [self.ready.step_s])
        some = min(MOST_STEPS, round(self.track.round_s / max(1e-6, step_s)))
        return max(1, self.ready.workers, some)

    @property
    def patience_s(self) -> float:
        """How long a round may take: many times what its steps should."""
        compiles = any(techniques.KNOWN[name].group == "compile" for name in self.config.techniques)
        steps = self.steps + 3 * self.ready.workers + 1
        return 10.0 + RECOMPILE_S * compiles + ROUND_PATIENCE * self.ready.step_s * steps

    @property
    def turn_s(self) -> float:
        """What the next round takes: its steps, those before it, and the workers' rest after it."""
        if not self.rounds:
            return 0.0
        workers = self.ready.workers
        return 1.2 * self.rounds[-1] * (self.steps + 1 + 2 * workers) + bool(workers)

    def ask(self, do: str, limit_s: float = STOP_S, until: float = math.inf) -> Line:
        """What it answers; {} where it does not, and its rounds stand all the same."""
        self.stable.send(self.number, do)
        return self._next("done" if do == "stop" else do, limit_s, until)

    def stop(self, limit_s: float = STOP_S) -> None:
        """Its memory, and its end."""
        if self.gone:
            return
        self.memory = self.ask("stop", limit_s)
        if self.memory:
            self.stable.hear(self.number, ENDED_S)

    def _next(self, kind: str, limit_s: float, until: float, when: str = "") -> Line:
        """Its next line of that kind; else it is ended, and {}.

        until: when the time is over. when: what it was at; "" where its rounds stand without it.
        """
        left_s = until - monotonic()
        line = self.stable.hear(self.number, max(0.0, min(limit_s, left_s)))
        if line is not None and line["kind"] == kind:
            return line
        self.gone = True
        if line is None:
            over = f"{judging.OVER} {when}"
            error = f"no response within {limit_s:.0f} s" if limit_s < left_s else over
            self.stable.kill(self.number)
        elif line["kind"] == "failed":
            error = " ".join(str(line.get("error") or "it failed").split())
            error = (f"out of memory ({error})" if line.get("oom") else error)[:400]
            self.stable.hear(self.number, ENDED_S)
        else:
            error = str(line.get("detail") or "the process exited")
        if when:
            self.error = error
        return {}

    def measured(self) -> Measured:
        """Its figures."""
        settings: dict[str, str | int | float | bool] = {}
        if self.ready.samples:
            settings = {"batch_factor": self.ready.factor, "workers": self.ready.workers}
            if why := self.ready.why_no_workers:
                settings[judging.NO_WORKERS] = why
        return Measured(
            config=self.config,
            rounds=tuple(self.rounds) if self.error is None else (),
            processes=(statistics.median(self.rounds),) if self.rounds and not self.error else (),
            steps=self.steps,
            samples_a_step=self.ready.samples,
            peak_bytes=self.memory.get("peak_bytes"),
            driver_bytes=self.memory.get("driver_bytes"),
            losses=tuple(None if isinstance(loss, str) else loss for loss in self.ready.losses),
            error=self.error,
            loader_wait_s=statistics.median_high(self.waits) if self.waits else None,
            settings=settings,
        )


class Heats(Struct):
    """Runs heats of one workload, every configuration in a fresh process.

    settings: what a configuration changes, from the search. until: when the whole time is over.
    say: shows what is done. chance: draws who comes first. live: what NVML said in the rounds.
    """

    stable: Stable
    track: Track
    settings: Callable[[Config], dict[str, Value]]
    until: float
    say: Callable[[str], object] = lambda _: None
    chance: random.Random = random.Random()
    live: list[Line] = []
    _compiled: bool = False

    def run(self, heat: Heat) -> Raced:
        """Start, take turns, stop. What fails is a result with a reason."""
        began = monotonic()
        end = min(self.until, began + heat.limit_s)
        if self.track.reimports:
            self.stable.end()
        wanted = [heat.reference, *heat.candidates, *[heat.reference] * heat.twins]
        runners = self._started(wanted, end)
        reference, rivals = runners[0], runners[1:]
        if (why := reference.error) is not None and not why.startswith(judging.OVER):
            why = f"{heat.reference.name}: {why}"
        found = None
        if why is None:
            self._take_turns(reference, rivals, end)
            found = self._profiled(runners[len(heat.candidates) + 1 :], reference)
        for runner in runners:
            self.live += filter(None, runner.live)
            runner.stop()
        device_s = found.figures.get("device_s") if found else None
        measured = replace(reference.measured(), device_s=device_s)
        if why is not None:
            lost = tuple(Measured(config=run, error=why) for run in heat.candidates)
            return Raced(reference=measured, candidates=lost, seconds=monotonic() - began)
        figures = tuple(self._figures(runner, reference) for runner in rivals)
        return Raced(
            reference=measured,
            candidates=figures[: len(heat.candidates)],
            twins=figures[len(heat.candidates) :],
            bottleneck=found,
            seconds=monotonic() - began,
        )

    def _started(self, wanted: list[Config], end: float) -> list[Runner]:
        """In a random order, since the first may get the better memory; side by side where there
        are cores for that, but for what compiles: that is timed.
        """
        names = ", ".join(dict.fromkeys(run.name for run in wanted[1:] or wanted))
        self.say(f"{wanted[0].workload}: {names}: starting")
        order = list(range(len(wanted)))
        self.chance.shuffle(order)
        slow = any(techniques.slowness(name) for run in wanted for name in run.techniques)
        together = not slow and self.track.cores >= CORES_TO_START * len(wanted)
        runners: dict[int, Runner] = {}
        for place in order:
            settings = self.settings(wanted[place])
            runners[place] = Runner(self.stable, self.track, wanted[place], settings)
            if not together:
                runners[place].warm(end)
        if together:
            for runner in runners.values():
                runner.warm(end)
        return [runners[place] for place in range(len(wanted))]

    def _figures(self, runner: Runner, reference: Runner) -> Measured:
        """Its figures, and what compiling took where that was the first in this bench."""
        measured, names = runner.measured(), runner.config.techniques
        if not runner.ready.samples:
            return measured
        changes = self.settings(runner.config)
        compiles = "compile" in changes
        again, self._compiled = compiles and self._compiled, compiles or self._compiled
        alone = len(names) == 1 and techniques.KNOWN[names[0]].prepares
        if again or not alone or {"batch", "cached"} & changes.keys():
            return measured
        compile_s = runner.ready.start_s - reference.ready.start_s
        return replace(measured, compile_s=max(0.0, compile_s))

    def _take_turns(self, reference: Runner, rivals: list[Runner], end: float) -> None:
        """Everybody once a round, in a random order each time, so that drift hits all alike."""
        names = ", ".join(dict.fromkeys(rival.config.name for rival in rivals))
        for number in range(ROUNDS):
            going = [runner for runner in (reference, *rivals) if runner.error is None]
            if len(going) < 2:
                break
            self.say(f"{reference.config.workload}: {names}: round {number + 1} of {ROUNDS}")
            if monotonic() + sum(runner.turn_s for runner in going) > end:
                break
            for runner in self.chance.sample(going, len(going)):
                runner.turn(self.until)
                if reference.error is not None:
                    return
        # The time of a heat may end before its rounds can tell anything.
        for rival in rivals:
            few = len(rival.rounds) < judging.LEAST_ROUNDS and reference.rounds
            if rival.error is None and few:
                rival.error = f"{judging.OVER} (rounds completed: {len(rival.rounds)})"

    def _profiled(self, rivals: list[Runner], reference: Runner) -> Bottleneck | None:
        """Where the time goes: of a twin, after its rounds."""
        sound = [rival for rival in rivals if rival.rounds and rival.error is None]
        if not sound or not reference.rounds:
            return None
        line = sound[-1].ask("profile", PROFILE_S, self.until)
        flops, bytes_s = line.get("peak_flops"), line.get("peak_bytes_s")
        peaks = (
            judging.Peaks(flops, bytes_s, "measured on this machine") if flops and bytes_s else None
        )
        measured = reference.measured()
        return judging.bottleneck_of(
            step_s=measured.step_s or 1.0,
            wait_s=measured.loader_wait_s or 0.0,
            device_s=line.get("device_s"),
            operations=line.get("operations") or (),
            peaks=judging.believed(self.track.peaks, peaks, reference.config.workload),
        )
