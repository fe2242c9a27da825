"""The command `bench`: look, measure within the time, print. Ctrl-C prints what is known."""

import datetime
import os
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import Any

from msgspec import Struct, convert
from msgspec.structs import replace
from packaging.version import Version

from cudadoctor import __version__, knowledge
from cudadoctor.bench import conditions, judging, page, results, script, store, techniques
from cudadoctor.bench.heats import Heats, Track
from cudadoctor.bench.results import BenchResult, Line, WorkloadResult
from cudadoctor.bench.search import Search
from cudadoctor.bench.stable import Interrupted, Stable
from cudadoctor.bench.techniques import Ground
from cudadoctor.cli.options import Options, nearest, refuse, refuse_contradictions
from cudadoctor.cli.output import Waiting, painted, width, written
from cudadoctor.cli.speech import current, say, spoken
from cudadoctor.host import local
from cudadoctor.host.signals import Interrupts, end_now
from cudadoctor.model.machine import Gpu, Json, Machine, OptInt, OptStr, Strings
from cudadoctor.model.versions import version_of
from cudadoctor.probes.examine import Look, NoInterpreter, examine
from cudadoctor.probes.nvml import module_folder
from cudadoctor.smoke import short_bus_id, skipped
from cudadoctor.smoke.inside.spec import choose

TIERS_GPU, TIERS_CPU, TIERS_TINY = ("large", "small"), ("cpu", "tiny"), ("tiny",)
LOOK_S, SIZE_S = 200.0, 120.0
CLOSING_S, AGAIN_S = 1.0, 60.0
"""Kept back of the budget: processes need a moment to end."""


def run(asked: Options) -> int:
    """With words after `--` a user's own script, else the workloads.

    0 where something was measured, 1 where nothing could be, 130 after Ctrl-C (143 TERM).
    """
    refuse_contradictions(asked)
    if asked.words:
        return script.run(asked.words, asked)
    _refuse(asked)
    try:
        with Waiting() as waiting:
            machine = examine(Look(python=asked.python, depth="fast", device=asked.device), waiting)
    except NoInterpreter as error:
        refuse(spoken(str(error)))
    python = machine.python.executable
    if python is None or machine.torch.installed is False:
        why = say(
            "torch is not installed in {python}" if python else "no Python found", python=python
        )
        sys.stderr.write(f"cudadoctor: {say('cannot run the benchmark: {why}', why=why)}\n")
        return 1
    host = local.this_host()
    stable = Stable(python, host.quiet(host.env, host.place), host.place)

    def end(number: int) -> None:
        stable.end()
        end_now(number)

    # The first Ctrl-C ends the measuring, the second the process.
    interrupts = Interrupts(stable.stop, end, ("SIGINT", "SIGTERM"))
    try:
        with interrupts:
            result = Bench(asked, machine, stable, Progress(asked.minutes)).measured()
    except NotMeasured as error:
        sys.stderr.write(f"cudadoctor: {say('no results: {why}', why=spoken(str(error)))}\n")
        return interrupts.code if interrupts() else 1
    finally:
        stable.end()
    measured = any(workload.baseline.rounds for workload in result.workloads)
    written(_text(result, asked), asked.output)
    if asked.chart:
        drawn = page.png(result) if asked.chart.endswith(".png") else page.svg(result).encode()
        try:
            Path(asked.chart).write_bytes(drawn)
        except OSError as error:
            refuse("cannot write to {path}: {reason}", path=asked.chart, reason=error.strerror)
    if measured and asked.scale != "tiny" and (lost := store.keep(result, os.environ)):
        sys.stderr.write(f"cudadoctor: {lost}\n")
    return interrupts.code if interrupts() else int(not measured)


def _refuse(asked: Options) -> None:
    for name in asked.only:
        if name not in techniques.ORDER:
            close, known = nearest(name, techniques.ORDER), ", ".join(techniques.ORDER)
            if close:
                refuse("'{name}' is not a technique; did you mean {close}?", name=name, close=close)
            refuse("'{name}' is not a technique; choose one of {choices}", name=name, choices=known)
    if asked.chart and not asked.chart.endswith((".svg", ".png")):
        refuse(
            "'{name}' is not a chart file; use a name that ends in .svg or .png", name=asked.chart
        )
    if asked.chart and asked.chart.endswith(".png") and find_spec("PIL") is None:
        refuse("a PNG chart needs Pillow, which is not installed; use an .svg file name instead")
    for file in (asked.chart, asked.output):
        # Told before the measuring, not after it.
        if file and not Path(file).absolute().parent.is_dir():
            refuse("cannot write to {path}: the folder does not exist", path=file)


def _text(result: BenchResult, asked: Options) -> str:
    if asked.as_json:
        return results.dumps(result) + "\n"
    if asked.markdown:
        return page.markdown(result, current())
    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    layout = page.Layout(width=width(), blocks=encoding == "utf8", say=current())
    return painted(list(page.report(result, layout)), to_file=asked.output is not None)


class Progress:
    """One line that moves on a terminal; elsewhere a line for each new thing that is begun, and one
    now and then while it is repeated.
    """

    def __init__(self, minutes: float) -> None:
        self.began = monotonic()
        self.until = self.began + 60.0 * minutes
        self._said: dict[str, float] = {}

    def say(self, text: str) -> None:
        """Show it; "" at the end."""
        now, what = monotonic(), text.partition(": round ")[0]
        with suppress(OSError):  # a full disk behind stderr
            if sys.stderr.isatty():
                left_s = max(0.0, self.until - now)
                left = say("{time} left", time=f"{left_s // 60:.0f}:{left_s % 60:02.0f}")
                line = text and f"{left}  {spoken(text)}"
                columns = os.get_terminal_size(sys.stderr.fileno()).columns
                sys.stderr.write(f"\r\x1b[2K{line[: columns - 1]}")
            elif what and now - self._said.get(what, 0.0) > AGAIN_S:
                self._said[what] = now
                sys.stderr.write(f"[{now - self.began:4.0f} s] {spoken(what)}\n")
            sys.stderr.flush()


# --- on what it is measured ---------------------------------------------------------------------

NOT_COMPILED = "torch.compile does nothing, so its results are meaningless"
FALSIFIED = {
    "CUDA_LAUNCH_BLOCKING=1": "every operation waits for the GPU, so all measured speeds are lower "
    "than normal",
    "TORCHDYNAMO_DISABLE=1": NOT_COMPILED,
    "TORCH_COMPILE_DISABLE=1": NOT_COMPILED,
    "NVIDIA_TF32_OVERRIDE=0": "TF32 stays off, even for techniques that enable it",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1": "TF32 is already on by default, so your scripts"
    " already get the tf32 gain shown below",
}


class NotMeasured(Exception):  # noqa: N818 - told in one sentence
    """Why nothing can be measured."""


class Place(Struct, frozen=True, kw_only=True):
    """The device. name, total_bytes: of the GPU, None on a CPU."""

    device: str
    name: OptStr = None
    capability: OptStr = None
    total_bytes: OptInt = None
    notes: Strings = ()


def place_of(look: Line, asked: OptStr, gpus: tuple[Gpu, ...] | None) -> Place:
    """The first GPU that nobody else is using, or what was asked for; else the CPU.

    Raises NotMeasured where what was asked for cannot be had.
    """
    chosen = choose(asked or "", skipped(gpus), look)
    if chosen.error:
        raise NotMeasured(chosen.error)
    notes = tuple(f"GPU {index} is not used: {reason}" for index, reason in chosen.skipped)
    for setting in look["environment"]:
        why = FALSIFIED.get(setting, "")
        if why and (chosen.devices or why == NOT_COMPILED):
            notes += (f"{setting} is set: {why}",)
    if not chosen.devices:
        if look["error"]:
            notes += (f"torch finds no GPU: {look['error']}",)
        return Place(device="cpu", notes=notes)
    index = chosen.devices[0]
    known = next(device for device in look["devices"] if device["index"] == index)
    bus_id = known["bus_id"]
    modes = {short_bus_id(gpu.bus_id): gpu.compute_mode for gpu in gpus or ()}
    if bus_id and modes.get(bus_id) == "exclusive":
        why = (
            f"GPU {index} is in exclusive compute mode, which allows one process at a time, but "
            "the benchmark runs several; an administrator can change the mode with `sudo "
            f"nvidia-smi -i {bus_id} -c DEFAULT`"
        )
        if look["count"] > 1:
            why += ", or you can use another GPU: --device cuda:N"
        raise NotMeasured(why)
    return convert({**known, "device": f"cuda:{index}", "notes": notes}, Place)


def ground_of(look: Line, place: Place) -> Ground:
    """What decides where a technique can work. compiler: C for a GPU, C++ for a CPU."""
    gpu = place.device != "cpu"
    return Ground(
        gpu=gpu,
        capability=version_of(place.capability),
        torch=version_of(look["torch"].partition("+")[0]) or Version("2.4"),
        compiler=bool(look["c_compiler" if gpu else "compiler"]),
        **{name: look[name] for name in ("triton", "cores", "forks", "cpu_bf16")},
    )


# --- the measuring -------------------------------------------------------------------------------


class Bench(Struct):
    """One call: the workloads one after the other, each with its share of the time."""

    asked: Options
    machine: Machine
    stable: Stable
    progress: Progress
    look: Line = {}
    place: Place = Place(device="cpu")
    ground: Ground = Ground(gpu=False)
    done: list[WorkloadResult] = []
    warned: list[str] = []

    def measured(self) -> BenchResult:
        """The result, also of what an interruption left. Raises NotMeasured."""
        try:
            # What others do is seen before anything of ours runs.
            host = local.this_host()
            quota = self.machine.limits.cpus
            begun = conditions.before(host, None, quota)
            likely_gpu = bool(self.machine.gpus) and self.asked.device != "cpu"
            self._warn(conditions.warnings(begun, gpu=likely_gpu, cores=os.cpu_count() or 1))
            self.progress.say("import torch")
            self.look = self._answer("look", min(LOOK_S, self._left_s()))
            self.place = place_of(self.look, self.asked.device, self.machine.gpus)
            self.ground = ground_of(self.look, self.place)
            cores = self.look["cores"]
            begun = replace(begun, quota_cores=quota if quota and quota < cores else None)
            less = replace(begun, busy=None)
            self._warn(conditions.warnings(less, gpu=self.ground.gpu, cores=cores))
            names = tuple(dict.fromkeys(self.asked.workloads)) or techniques.WORKLOADS
            searches = [
                Search(
                    name,
                    self.ground,
                    0.0,
                    only=self.asked.only,
                    memory_bytes=self.place.total_bytes,
                )
                for name in names
            ]
            # What cannot run on a workload takes no time from those on which it can.
            waiting = [search for search in searches if search.alone]
            for search in waiting:
                search.share(sum(len(each.alone) for each in waiting), len(waiting))
            for place, search in enumerate(waiting):
                search.slice_s = max(0.0, self._left_s() / (len(waiting) - place))
                search.conditions = begun if not place else conditions.before(host, cores, quota)
                self._workload(search)
            self.done += [search.result() for search in searches if not search.alone]
        except Interrupted:
            if not self.look:
                raise NotMeasured("interrupted") from None
        finally:
            self.progress.say("")
        return self._result()

    def _left_s(self) -> float:
        return self.progress.until - CLOSING_S - monotonic()

    def _answer(self, what: str, limit_s: float, **order: Any) -> Line:
        """The answer of a runner of its own to one question. Raises NotMeasured."""
        number = self.stable.start(what=what, **order)
        line = self.stable.hear(number, limit_s)
        if line is None:
            self.stable.kill(number)
            raise NotMeasured(f"no response within {limit_s:.0f} s")
        if line["kind"] != what:
            why = line.get("error") or line.get("detail") or "torch did not respond"
            raise NotMeasured(str(why))
        return line

    def _warn(self, texts: list[str]) -> None:
        """Say at once what will spoil the figures, while the user can still stop it."""
        for text in texts:
            self.warned.append(text)
            self.progress.say("")
            sys.stderr.write(f"cudadoctor: {spoken(text)}\n")

    def _workload(self, search: Search) -> None:
        """Measure one workload in its share of what is left; what is known stays when it ends."""
        began, tiny = monotonic(), self.asked.scale == "tiny"
        device, gpu, name = self.place.device, self.ground.gpu, search.workload
        self.progress.say(f"{name}: finding a suitable model size")
        tiers = TIERS_TINY if tiny else TIERS_GPU if gpu else TIERS_CPU
        limit_s = min(SIZE_S, search.slice_s)
        try:
            shape = self._answer(
                "size", limit_s, workload=name, tiers=tiers, device=device, share=0.5
            )["shape"]
        except NotMeasured as error:
            search.ended = str(error)
            self.done.append(search.result())
            return
        search.shape = _described(name, shape)
        track = Track(
            device=device,
            shape=shape,
            round_s=0.03 if tiny else 0.25 if gpu else 0.4,
            warm_s=0.5 if tiny else 3.0,
            peaks=judging.peaks_of(self.place.name, knowledge.load(), name),
            faults=dict(fault.split(":", 1) for fault in self.asked.plant),
            cores=self.look["cores"],
            nvml=module_folder() or "" if gpu else "",
            reimports=not tiny,
        )
        until = began + search.slice_s
        host = local.this_host()
        stopped = conditions.throttled(host)
        heats = Heats(self.stable, track, search.settings, until, self.progress.say)
        try:
            search.run(heats.run, lambda: monotonic() - began)
        except Interrupted:
            search.ended = "interrupted"
            raise
        finally:
            if search.conditions:
                search.conditions = conditions.after(search.conditions, stopped, host, heats.live)
            self.done.append(search.result())

    def _result(self) -> BenchResult:
        gpu = self.place.name
        release = self.machine.driver.kernel or self.machine.driver.library
        notes = [f"{done.name}: {done.ended}" for done in self.done if done.ended]
        notes += self.warned
        for done in self.done:
            if done.conditions:
                during = replace(done.conditions, busy=None, quota_cores=None)
                more = conditions.warnings(during, gpu=self.ground.gpu, cores=self.look["cores"])
                notes += [f"{done.name}: {text}" for text in more]
            if done.noise and done.noise > 1.1 and done.baseline.rounds:
                apart = f"{100 * (done.noise - 1):.0f}%"
                notes.append(
                    f"{done.name}: processes that ran the same code differed by {apart}, so small"
                    " gains could not be measured"
                )
        return BenchResult(
            cudadoctor=__version__,
            date=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
            device=self.place.device,
            gpu=gpu,
            capability=self.place.capability,
            driver=str(release) if gpu and release is not None else None,
            torch=self.look["torch"],
            cuda=self.look["cuda"] or None if gpu else None,
            python=self.look["python"],
            cpu=store.cpu_name() or "a CPU",
            cores=self.look["cores"],
            minutes=self.asked.minutes,
            seconds=round(monotonic() - self.progress.began, 1),
            workloads=tuple(self.done),
            complete=not self.stable.stopped and not any(done.ended for done in self.done),
            notes=(*self.place.notes, *notes),
            method="processes",
        )


def _described(name: str, shape: Json) -> str:
    """What the workload is made of, in a sentence."""
    if name == "cnn":
        made = "ResNet, {0} blocks, width {width}, {image}x{image} images, batch size {batch}"
        return made.format(sum(shape["blocks"]), **shape)
    what = "Encoder with a classifier" if name == "encoder" else "Decoder-only language model"
    made = "{0}, {layers} layers of width {width}, {length} tokens, batch size {batch}"
    return made.format(what, **shape)
