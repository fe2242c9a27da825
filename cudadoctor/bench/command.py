"""The command `bench`: look, measure within the time, print. Ctrl-C prints what is known."""

from __future__ import annotations

import datetime
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cudadoctor import __version__
from cudadoctor.bench import ground, techniques
from cudadoctor.bench.heats import Heats, Track
from cudadoctor.bench.results import BenchResult, WorkloadResult
from cudadoctor.bench.search import Search
from cudadoctor.bench.showing import Progress, shown
from cudadoctor.bench.stable import Interrupted, Line, Stable
from cudadoctor.cli.usage import nearest, refuse, refuse_device

if TYPE_CHECKING:
    from cudadoctor.cli.options import Asked
    from cudadoctor.model.machine import Machine

TIERS_GPU, TIERS_CPU, TIERS_TINY = ("large", "small"), ("cpu", "tiny"), ("tiny",)
LOOK_S = 200.0
SIZE_S = 120.0
CLOSING_S = 1.0
"""Kept back of the budget: processes need a moment to end."""


def run(asked: Asked) -> int:
    """0 where something was measured, 1 where nothing could be, 130 after Ctrl-C (143 TERM)."""
    _refuse(asked)
    from cudadoctor.cli.progress import shown_on_stderr
    from cudadoctor.host import local
    from cudadoctor.probes.examine import Look, NoInterpreter, examine

    try:
        with shown_on_stderr() as told:
            machine = examine(Look(python=asked.python, depth="fast", device=asked.device), told)
    except NoInterpreter as error:
        refuse(str(error))
    python = machine.python.executable
    if python is None or machine.torch.installed is False:
        why = "torch is not installed" if python else "there is no Python to examine"
        sys.stderr.write(f"cudadoctor: nothing can be measured: {why} ({python})\n")
        return 1
    host = local.this_host()
    stable = Stable(python, host.quiet(host.env, host.place), host.place)
    try:
        with _interruptible(stable):
            result = Bench(asked, machine, stable).measured()
    finally:
        stable.end()
    return _ended(result, asked, stable.stopped)


def _refuse(asked: Asked) -> None:
    refuse_device(asked)
    if asked.as_json and asked.markdown:
        refuse("--json and --markdown exclude each other: choose one")
    known = (*techniques.BY_NAME, techniques.NOTHING)
    for name in asked.only:
        if name not in known:
            close = nearest(name, known)
            meant = f"; did you mean {close}" if close else f"; there are {', '.join(known)}"
            refuse(f"--only {name!r} is no technique{meant}")
    if asked.chart and not asked.chart.endswith((".svg", ".png")):
        refuse(f"--chart {asked.chart!r} names neither an SVG nor a PNG: end it in .svg or .png")
    if asked.chart and asked.chart.endswith(".png") and find_spec("PIL") is None:
        refuse("--chart: a PNG needs Pillow, which is not installed: name a file that ends in .svg")
    for file in (asked.chart, asked.output):
        # Told before the measuring, not after it.
        if file and not Path(file).absolute().parent.is_dir():
            refuse(f"cannot write to {file}: there is no such folder")
    if asked.chart and asked.chart.endswith(".png"):
        from cudadoctor.bench import charts

        if why := charts.why_no_png():  # told before the minutes are spent
            refuse(why)


def _ended(result: BenchResult | str, asked: Asked, stopped: int) -> int:
    """Print what there is; the exit code. stopped: that of the signal which ended it, else 0."""
    if isinstance(result, str):
        sys.stderr.write(f"cudadoctor: nothing was measured: {result}\n")
        return stopped or 1
    measured = any(one.baseline.rounds for one in result.workloads)
    shown(result, asked, keep=measured)
    return stopped or (0 if measured else 1)


@contextmanager
def _interruptible(stable: Stable) -> Iterator[None]:
    """The first Ctrl-C ends the measuring, the second the process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def heard(number: int, _: object) -> None:
        if stable.stopped:
            stable.end()
            os._exit(128 + number)
        stable.stop(128 + number)

    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    for one, old in before.items():
        if old is not signal.SIG_IGN:
            signal.signal(one, heard)
    try:
        yield
    finally:
        for one, old in before.items():
            signal.signal(one, old)


class Bench:
    """One call: the workloads one after the other, each with its share of the time."""

    def __init__(self, asked: Asked, machine: Machine, stable: Stable) -> None:
        self.asked = asked
        self.machine = machine
        self.stable = stable
        self.began = time.monotonic()
        self.until = self.began + 60.0 * asked.minutes - CLOSING_S
        self.progress = Progress(self.began, 60.0 * asked.minutes)
        self.look: Line = {}
        self.place = ground.Place(device="cpu")
        self.done: list[WorkloadResult] = []

    def measured(self) -> BenchResult | str:
        """The result, also of what an interruption left; why there is none."""
        try:
            if why := self._looked():
                return why
            names = tuple(dict.fromkeys(self.asked.workloads)) or techniques.WORKLOADS
            for place, name in enumerate(names):
                self._workload(name, len(names) - place)
        except Interrupted:
            if not self.look:
                return "interrupted"
        finally:
            self.progress.end()
        return self._result()

    def _looked(self) -> str:
        """Ask the examined torch what there is; why that failed."""
        self.progress.say("import torch")
        line = self._asked("look", min(LOOK_S, self.until - time.monotonic()))
        if line["kind"] != "look":
            return str(line.get("detail") or line.get("error") or "torch gave no answer")
        self.look = line
        self.place = ground.place_of(line, self.asked.device, self.machine.gpus)
        return self.place.error

    def _asked(self, what: str, limit_s: float, **order: Any) -> Line:
        """One question to a runner of its own."""
        number = self.stable.start(what=what, **order)
        line = self.stable.hear(number, limit_s)
        if line is None:
            self.stable.kill(number)
            return {"kind": "over", "detail": f"no answer within {limit_s:.0f} s"}
        return line

    def _workload(self, name: str, left: int) -> None:
        """Measure one workload in its share of what is left; what is known stays when it ends."""
        began = time.monotonic()
        slice_s = max(0.0, (self.until - began) / left)
        shape = self._shape(name, slice_s)
        known = ground.ground_of(self.look, self.place)
        search = Search(
            name,
            known,
            slice_s,
            only=self.asked.only,
            memory_bytes=self.place.total_bytes,
            shape=_described(name, shape),
        )
        if "error" in shape:
            search.ended = str(shape["error"])
            self.done.append(search.result())
            return
        heats = Heats(self.stable, self._track(name, shape), search.settings, began + slice_s)
        try:
            while (heat := search.next(time.monotonic() - began)) is not None:
                search.take(heats.run(heat, self.progress.say))
        except Interrupted:
            search.ended = "interrupted"
            raise
        finally:
            self.done.append(search.result())
            if not self.stable.stopped:
                heats.close()

    def _shape(self, name: str, slice_s: float) -> dict[str, Any]:
        """How large the workload is here."""
        self.progress.say(f"{name}: how large it can be")
        gpu = self.place.device != "cpu"
        tiers = TIERS_TINY if self.asked.scale == "tiny" else TIERS_GPU if gpu else TIERS_CPU
        limit_s = min(SIZE_S, slice_s)
        line = self._asked(
            "size", limit_s, workload=name, tiers=tiers, device=self.place.device, share=0.5
        )
        if line["kind"] != "size":
            return {"error": line.get("error") or line.get("detail") or "no size was found"}
        return dict(line["shape"])

    def _track(self, name: str, shape: dict[str, Any]) -> Track:
        from cudadoctor import knowledge

        tiny = self.asked.scale == "tiny"
        return Track(
            device=self.place.device,
            shape=shape,
            round_s=0.03 if tiny else 0.4 if self.place.device == "cpu" else 0.25,
            warm_s=0.5 if tiny else 3.0,
            share=ground.SHARE_OF_FREE,
            peaks=ground.peaks_of(self.place, knowledge.load(), name),
            faults=dict(one.split(":", 1) for one in self.asked.plant),
        )

    def _result(self) -> BenchResult:
        from cudadoctor.bench.storing import cpu_name

        gpu = self.place.name
        driver = self.machine.driver
        release = driver.kernel or driver.library
        notes = (*self.place.notes, *_notes(self.done))
        return BenchResult(
            cudadoctor=__version__,
            date=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
            device=self.place.device,
            gpu=gpu,
            capability=self.place.capability,
            driver=str(release) if gpu and release is not None else None,
            torch=str(self.look.get("torch", "")),
            cuda=(str(self.look.get("cuda") or "") or None) if gpu else None,
            python=str(self.look.get("python", "")),
            cpu=cpu_name() or "a CPU",
            cores=self.look.get("cores"),
            minutes=self.asked.minutes,
            seconds=round(time.monotonic() - self.began, 1),
            workloads=tuple(self.done),
            complete=not self.stable.stopped and not any(one.ended for one in self.done),
            notes=notes,
        )


def _described(name: str, shape: dict[str, Any]) -> str:
    """What the workload is made of, in a sentence."""
    if "error" in shape:
        return ""
    batch = f"batches of {shape['batch']}"
    if name == "cnn":
        side = shape["image"]
        blocks = sum(shape["blocks"])
        return f"ResNet of {blocks} blocks from {shape['width']} channels, {side}x{side}, {batch}"
    what = "Encoder with a classifier" if name == "encoder" else "Decoder-only language model"
    size = f"{shape['layers']} layers of width {shape['width']}, {shape['length']} tokens"
    return f"{what}, {size}, {batch}"


def _notes(done: list[WorkloadResult]) -> tuple[str, ...]:
    found = [f"{one.name}: {one.ended}" for one in done if one.ended]
    loud = [one for one in done if (one.noise or 1.0) > 1.1 and one.baseline.rounds]
    found += [
        f"{one.name}: the machine was busy or unsteady: smaller gains than"
        f" {100 * ((one.noise or 1.0) - 1):.0f} % could not be told"
        for one in loud
    ]
    return tuple(found)
