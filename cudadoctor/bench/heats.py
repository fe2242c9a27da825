"""A heat: some configurations in processes of their own that take turns, round by round."""

import time
from collections.abc import Callable
from typing import Any

import msgspec

from cudadoctor.bench import ground, judging
from cudadoctor.bench.results import Bottleneck, Config, Measured
from cudadoctor.bench.search import Heat, Raced
from cudadoctor.bench.stable import Line, Stable
from cudadoctor.bench.techniques import KNOWN, Value

ROUNDS = 10
LONGEST_START_S = 300.0
ROUND_PATIENCE = 20.0
STOP_S = 20.0
ENDED_S = 3.0
"""For a process that said its last word to end: until then it holds its memory, and the next one
looks at what is free."""
RECOMPILE_S = 90.0
"""Compiling again inside of a round is no hang."""
PROFILE_S = 60.0
MOST_STEPS = 200
Say = Callable[[str], None]


class Track(msgspec.Struct, frozen=True, kw_only=True):
    """Where it runs. round_s: seconds on the clock in a round. warm_s: warming up at most.

    share: of the GPU's free memory that a process may take. peaks: of the device by the tables.
    start_s: a lower limit for a start, for tests.
    """

    device: str
    shape: dict[str, Any]
    round_s: float = 0.4
    warm_s: float = 3.0
    share: float = 0.9
    peaks: judging.Peaks | None = None
    start_s: float = LONGEST_START_S
    faults: dict[str, str] = {}


class Runner:
    """One configuration in its process, from its start to its figures."""

    def __init__(
        self, stable: Stable, track: Track, wanted: Config, settings: dict[str, Value]
    ) -> None:
        self.stable = stable
        self.track = track
        self.config = wanted
        self.rounds: list[float] = []
        self.waits: list[float] = []
        self.error: str | None = None
        self.ready: Line = {}
        self.memory: Line = {}
        self.steps = 1
        self.gone = False
        fault = next((track.faults[one] for one in wanted.techniques if one in track.faults), "")
        self.number = stable.start(
            what="train",
            workload=wanted.workload,
            shape=track.shape,
            settings={**settings, "fault": fault},
            device=track.device,
            warm_s=track.warm_s,
            share=track.share,
        )

    def warm(self, limit_s: float, over: str) -> None:
        """Wait until it is warm. over: what is said where the limit passes."""
        line = self._next("ready", limit_s, over)
        if line is not None:
            self.ready = line
            self._set_steps(float(line["step_s"]))

    def turn(self, over: str, limit_s: float) -> bool:
        """One round; False where it did not come to its end."""
        self.stable.send(self.number, "round", steps=self.steps)
        line = self._next("round", limit_s, over)
        if line is None:
            return False
        self.rounds.append(float(line["seconds"]))
        self.waits.append(float(line["wait_s"]))
        self._set_steps(sorted(self.rounds)[len(self.rounds) // 2])
        return True

    def _set_steps(self, step_s: float) -> None:
        """Steps of the next round: what lasts as long as a round should.

        Workers of a loader hand over their batches together: at least one of each is counted.
        """
        least = max(1, self.workers)
        self.steps = max(least, min(MOST_STEPS, round(self.track.round_s / max(1e-6, step_s))))

    @property
    def patience_s(self) -> float:
        """How long a round may take: many times what its steps should."""
        step_s = float(self.ready.get("step_s") or 1.0)
        lead_in = 3 * self.workers + 1
        compiles = any(KNOWN[one].group == "compile" for one in self.config.techniques)
        more = RECOMPILE_S if compiles else 0.0
        return 10.0 + more + ROUND_PATIENCE * step_s * (self.steps + lead_in)

    @property
    def turn_s(self) -> float:
        """What the next round takes: its steps, those before it, and the workers' rest after it."""
        if not self.rounds:
            return 0.0
        steps = self.steps + 1 + 2 * self.workers
        return 1.2 * self.rounds[-1] * steps + (1.0 if self.workers else 0.0)

    @property
    def workers(self) -> int:
        """Of its loader."""
        return int(self.ready.get("workers") or 0)

    @property
    def start_s(self) -> float:
        """Seconds of its start that no step needs: building the model, loading libraries, more."""
        ready = self.ready
        return float(ready.get("extra_s") or 0.0) + float(ready.get("setup_s") or 0.0)

    def profile(self, limit_s: float) -> Line | None:
        """What its operations compute and move."""
        self.stable.send(self.number, "profile")
        return self._next("profile", limit_s, "the profile took too long")

    def ask_memory(self) -> None:
        """What it holds at most; its rounds stand, also where it does not tell."""
        self.stable.send(self.number, "memory")
        self.memory = self._next("memory", STOP_S, "it did not tell its memory") or {}
        self.error = None

    def stop(self, limit_s: float = STOP_S) -> None:
        """Its memory, and its end."""
        if self.gone:
            return
        before = self.error
        self.stable.send(self.number, "stop")
        self.memory = self._next("done", limit_s, "it did not end") or {}
        self.error = before
        if self.memory:
            self.stable.hear(self.number, ENDED_S)

    def _next(self, kind: str, limit_s: float, over: str) -> Line | None:
        """Its next line of that kind; else it is told why there is none, and it is ended."""
        line = self.stable.hear(self.number, max(0.0, limit_s))
        if line is not None and line["kind"] == kind:
            return line
        self.gone = True
        if line is None:
            self.error = over
            self.stable.kill(self.number)
        elif line["kind"] == "failed":
            self.error = _failure(line)
            self.stable.hear(self.number, ENDED_S)
        else:
            self.error = str(line.get("detail") or "the process ended")
        return None

    def measured(self, rounds: int | None = None) -> Measured:
        """Its figures; rounds: of the last so many only."""
        some = self.rounds if rounds is None else self.rounds[len(self.rounds) - rounds :]
        ready = self.ready
        waits = sorted(self.waits)
        settings: dict[str, str | int | float | bool] = {}
        if ready:
            settings["batch_factor"] = int(ready["factor"])
            settings["workers"] = self.workers
            if why := str(ready.get("why_no_workers") or ""):
                settings[judging.NO_WORKERS] = why
        return Measured(
            config=self.config,
            rounds=tuple(some) if self.error is None else (),
            steps=self.steps,
            samples_a_step=int(ready.get("samples") or 0),
            peak_bytes=self.memory.get("peak_bytes"),
            driver_bytes=self.memory.get("driver_bytes"),
            # Infinity and nan travel as words.
            losses=tuple(
                None if isinstance(loss, str) else loss for loss in ready.get("losses") or ()
            ),
            error=self.error,
            loader_wait_s=waits[len(waits) // 2] if waits else None,
            settings=settings,
        )


class Heats:
    """Runs heats of one workload, and keeps the reference's process from one to the next.

    settings: what a configuration changes, from the search. until: when the whole time is over.
    """

    def __init__(
        self,
        stable: Stable,
        track: Track,
        settings: Callable[[Config], dict[str, Value]],
        until: float,
    ) -> None:
        self.stable = stable
        self.track = track
        self.settings = settings
        self.until = until
        self._kept: Runner | None = None
        self._compiled = False

    def run(self, heat: Heat, say: Say) -> Raced:
        """Start, take turns, stop. What fails is a result with a reason."""
        began = time.monotonic()
        end = min(self.until, began + heat.limit_s)
        if heat.fresh:
            self.close()
        kept = self._kept
        if kept is not None and kept.config == heat.reference and not kept.gone:
            reference = kept
        else:
            self.close()
            reference = self._started(heat.reference, end, say)
        if reference.error is not None:
            why = reference.error
            if not why.startswith(judging.OVER):
                why = f"{heat.reference.name}: {why}"
            return Raced(
                reference=reference.measured(),
                candidates=tuple(Measured(config=run, error=why) for run in heat.candidates),
                seconds=time.monotonic() - began,
            )
        wanted = [*heat.candidates, *[heat.reference] * heat.twins]
        rivals = [self._started(run, end, say) for run in wanted]
        before = len(reference.rounds)
        self._take_turns(reference, rivals, end, say)
        found = self._profiled(rivals, reference) if heat.twins else None
        for rival in rivals:
            rival.stop()
        number = len(heat.candidates)
        # It is kept, since the next heat's reference is often the same.
        self._kept = None if reference.error is not None else reference
        if reference.error is None and not reference.memory:
            reference.ask_memory()
        main = reference.measured(len(reference.rounds) - before)
        if found is not None and found.figures.get("device_s"):
            main = msgspec.structs.replace(main, device_s=found.figures["device_s"])
        return Raced(
            reference=main,
            candidates=tuple(self._figures(one, reference) for one in rivals[:number]),
            twins=tuple(one.measured() for one in rivals[number:]),
            bottleneck=found,
            seconds=time.monotonic() - began,
        )

    def close(self) -> None:
        """End what was kept."""
        if self._kept is not None:
            self._kept.stop(2.0)
            self._kept = None

    def _started(self, wanted: Config, end: float, say: Say) -> Runner:
        say(f"{wanted.workload}: {wanted.name}: starting")
        runner = Runner(self.stable, self.track, wanted, self.settings(wanted))
        left = end - time.monotonic()
        limit = self.track.start_s
        over = f"no answer within {limit:.0f} s" if limit < left else _over("while it started")
        runner.warm(min(limit, left), over)
        return runner

    def _figures(self, one: Runner, reference: Runner) -> Measured:
        """Its figures, and what compiling took where that was the first in this bench."""
        found, names = one.measured(), one.config.techniques
        if not one.ready:
            return found
        changes = self.settings(one.config)
        warm, self._compiled = self._compiled, self._compiled or "compile" in changes
        alone = len(names) == 1 and KNOWN[names[0]].prepares
        if not alone or {"batch", "cached"} & changes.keys():
            return found
        if warm and "compile" in changes:
            return found
        compile_s = max(0.0, one.start_s - reference.start_s)
        return msgspec.structs.replace(found, compile_s=compile_s)

    def _take_turns(self, reference: Runner, rivals: list[Runner], end: float, say: Say) -> None:
        """Everybody once a round, in another order each time, so that drift hits all alike."""
        names = ", ".join(dict.fromkeys(one.config.name for one in rivals))
        for number in range(ROUNDS):
            going = [reference, *(one for one in rivals if one.error is None)]
            if len(going) < 2 or reference.error is not None:
                break
            say(f"{reference.config.workload}: {names}: round {number + 1} of {ROUNDS}")
            if time.monotonic() + sum(run.turn_s for run in going) > end:
                break
            place = number % len(going)
            for one in going[place:] + going[:place]:
                left = self.until - time.monotonic()
                over = f"no answer within {one.patience_s:.0f} s"
                if left < one.patience_s:
                    over = _over("in its rounds")
                if not one.turn(over, min(left, one.patience_s)) and one is reference:
                    return
        # The time of a heat may end before its rounds can tell anything.
        for one in rivals:
            if one.error is None and len(one.rounds) < judging.LEAST_ROUNDS and reference.rounds:
                one.error = _over(f"after {len(one.rounds)} of its rounds")

    def _profiled(self, rivals: list[Runner], reference: Runner) -> Bottleneck | None:
        """Where the time goes: of a twin, after its rounds."""
        sound = [one for one in rivals if one.rounds and one.error is None]
        if not sound or not reference.rounds:
            return None
        twin = sound[-1]
        left = self.until - time.monotonic()
        line = twin.profile(min(PROFILE_S, left)) or {}
        twin.error = None  # its rounds stand, also where the profile failed
        measured = reference.measured()
        peaks = None
        if line.get("peak_flops") and line.get("peak_bytes_s"):
            flops, bytes_s = float(line["peak_flops"]), float(line["peak_bytes_s"])
            peaks = judging.Peaks(flops, bytes_s, "as measured here")
        figures = judging.Figures(
            step_s=measured.step_s or 1.0,
            wait_s=measured.loader_wait_s or 0.0,
            device_s=line.get("device_s"),
            operations=tuple(tuple(one) for one in line.get("operations") or ()),
            peaks=ground.believed(self.track.peaks, peaks, twin.config.workload),
        )
        return judging.bottleneck_of(figures)


def _over(when: str) -> str:
    return f"{judging.OVER} {when}"


def _failure(line: Line) -> str:
    error = " ".join(str(line.get("error") or "it failed").split())
    return f"out of memory ({error})"[:400] if line.get("oom") else error[:400]
