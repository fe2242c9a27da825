"""The command `bench`: look, measure within the time, print. Ctrl-C prints what is known."""

from __future__ import annotations

import contextlib
import datetime
import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cudadoctor import __version__, knowledge
from cudadoctor.bench import ground, page, results, store, techniques
from cudadoctor.bench.heats import Heats, Track
from cudadoctor.bench.results import BenchResult, WorkloadResult
from cudadoctor.bench.search import Search
from cudadoctor.bench.stable import Interrupted, Line, Stable
from cudadoctor.cli.options import nearest, refuse, refuse_device
from cudadoctor.cli.output import painted, shown_on_stderr, width, written
from cudadoctor.host import local
from cudadoctor.host.signals import Interrupts, end_now
from cudadoctor.probes.examine import Look, NoInterpreter, examine

if TYPE_CHECKING:
    from cudadoctor.cli.options import Options
    from cudadoctor.model.machine import Machine

TIERS_GPU, TIERS_CPU, TIERS_TINY = ("large", "small"), ("cpu", "tiny"), ("tiny",)
LOOK_S = 200.0
SIZE_S = 120.0
BAR = 20
CLOSING_S = 1.0
"""Kept back of the budget: processes need a moment to end."""


def run(asked: Options) -> int:
    """0 where something was measured, 1 where nothing could be, 130 after Ctrl-C (143 TERM)."""
    _refuse(asked)
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

    def end(number: int) -> None:
        stable.end()
        end_now(number)

    try:
        # The first Ctrl-C ends the measuring, the second the process.
        with Interrupts(stable.stop, end, ("SIGINT", "SIGTERM")) as interrupts:
            result = Bench(asked, machine, stable).measured()
    finally:
        stable.end()
    return _ended(result, asked, interrupts.code if interrupts() else 0)


def _refuse(asked: Options) -> None:
    refuse_device(asked)
    if asked.as_json and asked.markdown:
        refuse("--json and --markdown exclude each other: choose one")
    for name in asked.only:
        if name not in techniques.ORDER:
            close = nearest(name, techniques.ORDER)
            known = ", ".join(techniques.ORDER)
            meant = f"; did you mean {close}" if close else f"; there are {known}"
            refuse(f"--only {name!r} is no technique{meant}")
    if asked.chart and not asked.chart.endswith((".svg", ".png")):
        refuse(f"--chart {asked.chart!r} names neither an SVG nor a PNG: end it in .svg or .png")
    if asked.chart and asked.chart.endswith(".png") and find_spec("PIL") is None:
        refuse("--chart: a PNG needs Pillow, which is not installed: name a file that ends in .svg")
    for file in (asked.chart, asked.output):
        # Told before the measuring, not after it.
        if file and not Path(file).absolute().parent.is_dir():
            refuse(f"cannot write to {file}: there is no such folder")


def _ended(result: BenchResult | str, asked: Options, stopped: int) -> int:
    """Print what there is; the exit code. stopped: that of the signal which ended it, else 0."""
    if isinstance(result, str):
        sys.stderr.write(f"cudadoctor: nothing was measured: {result}\n")
        return stopped or 1
    measured = any(workload.baseline.rounds for workload in result.workloads)
    written(_text(result, asked), asked.output)
    try:
        if asked.chart and asked.chart.endswith(".png"):
            Path(asked.chart).write_bytes(page.png(result))
        elif asked.chart:
            Path(asked.chart).write_text(page.svg(result), encoding="utf-8")
    except OSError as error:
        refuse(f"cannot write to {asked.chart}: {error.strerror}")
    if measured and asked.scale != "tiny" and (why := store.keep(result, os.environ)) is not None:
        sys.stderr.write(f"cudadoctor: {why}\n")
    return stopped or (0 if measured else 1)


def _text(result: BenchResult, asked: Options) -> str:
    if asked.as_json:
        return results.dumps(result) + "\n"
    if asked.markdown:
        return page.markdown(result)
    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    layout = page.Layout(width=width(), blocks=encoding == "utf8")
    return painted(list(page.report(result, layout)), to_file=asked.output is not None)


class Progress:
    """One line that moves on a terminal; elsewhere a line for each new thing that is begun."""

    def __init__(self, began: float, seconds: float) -> None:
        self.began = began
        self.seconds = max(1.0, seconds)
        self.live = sys.stderr.isatty()
        self._last = ""

    def say(self, text: str) -> None:
        spent = time.monotonic() - self.began
        left, done = max(0.0, self.seconds - spent), min(BAR, round(BAR * spent / self.seconds))
        with contextlib.suppress(OSError):  # a full disk behind stderr
            if self.live:
                bar = "#" * done + "." * (BAR - done)
                line = f"[{bar}] {left // 60:.0f}:{left % 60:02.0f} at most  {text}"
                columns = os.get_terminal_size(sys.stderr.fileno()).columns
                sys.stderr.write("\r\x1b[2K" + line[: columns - 1])
            elif (what := text.partition(": round ")[0]) != self._last:
                self._last = what
                sys.stderr.write(f"[{spent:4.0f} s] {what}\n")
            sys.stderr.flush()

    def end(self) -> None:
        if self.live:
            with contextlib.suppress(OSError):
                sys.stderr.write("\r\x1b[2K")
                sys.stderr.flush()


class Bench:
    """One call: the workloads one after the other, each with its share of the time."""

    def __init__(self, asked: Options, machine: Machine, stable: Stable) -> None:
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
        tiny = self.asked.scale == "tiny"
        track = Track(
            device=self.place.device,
            shape=shape,
            round_s=0.03 if tiny else 0.4 if self.place.device == "cpu" else 0.25,
            warm_s=0.5 if tiny else 3.0,
            share=ground.SHARE_OF_FREE,
            peaks=ground.peaks_of(self.place, knowledge.load(), name),
            faults=dict(fault.split(":", 1) for fault in self.asked.plant),
        )
        heats = Heats(self.stable, track, search.settings, began + slice_s)
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

    def _result(self) -> BenchResult:
        gpu = self.place.name
        release = self.machine.driver.kernel or self.machine.driver.library
        notes = [f"{done.name}: {done.ended}" for done in self.done if done.ended]
        notes += [
            f"{done.name}: the machine was busy or unsteady: smaller gains than"
            f" {100 * ((done.noise or 1.0) - 1):.0f} % could not be told"
            for done in self.done
            if (done.noise or 1.0) > 1.1 and done.baseline.rounds
        ]
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
            cpu=store.cpu_name() or "a CPU",
            cores=self.look.get("cores"),
            minutes=self.asked.minutes,
            seconds=round(time.monotonic() - self.began, 1),
            workloads=tuple(self.done),
            complete=not self.stable.stopped and not any(one.ended for one in self.done),
            notes=(*self.place.notes, *notes),
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
