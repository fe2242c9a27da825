"""From the lines of the child to facts. Pure: text and an ending in, facts out."""

import functools
import operator
import re
import signal
from collections.abc import Iterable
from typing import Any, Literal, TypeVar, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from cudadoctor.host.children import Ran
from cudadoctor.model.machine import (
    Imported,
    Json,
    Library,
    OptFloat,
    OptInt,
    OptStr,
    Smoke,
    Stage,
    Strings,
)
from cudadoctor.model.versions import version_of
from cudadoctor.probes import Looked
from cudadoctor.smoke.inside.spec import COMPILE, WITHOUT

STAGES = (
    "allocate",
    "matmul",
    "conv",
    "attention",
    "train-fp32",
    "amp-fp16",
    "amp-bf16",
    "cuda-graph",
    "optimizer",
    "ddp",
    "checkpoint",
)
Status = Literal["failed", "timed-out", "skipped", "passed"]
WORST = get_args(Status)


# --- lines ----------------------------------------------------------------------------------------


class Line(Struct, tag_field="kind", tag=str.lower):
    """One line of the child; its kind is the name of the class."""


class Start(Line):
    stage: str
    rank: OptInt = None
    device: str = "cpu"


class Torch(Line):
    ok: bool
    error: str
    seconds: float
    shadows: Strings = ()


class Seen(Struct):
    capability: str


class Cuda(Line):
    available: bool
    count: int
    error: str
    devices: tuple[Seen, ...]


class Libraries(Line):
    nccl: OptStr
    cudnn: OptStr
    cudnn_error: str


class Numpy(Line):
    error: str


class Companion(Line):
    name: str
    error: str


class Maps(Line):
    paths: Strings
    torch: str
    prefix: str
    conda: bool


class Device(Line):
    device: str
    skipped: tuple[tuple[int, str], ...]


class End(Line):
    """lost: told by whoever watched the worker, since that could not."""

    stage: str
    status: Status
    seconds: OptFloat
    detail: str
    figures: dict[str, float | int | str | bool] = {}
    rank: OptInt = None
    device: str = "cpu"
    signal: OptInt = None
    lost: bool = False


class Broken(Line):
    error: str


_LINE: Any = functools.reduce(operator.or_, Line.__subclasses__())
L = TypeVar("L", bound=Line)


def read_line(text: str) -> Line | None:
    """The line that a text is; None for what the examined interpreter prints beside ours."""
    try:
        # Unlike the library's own reader it refuses NaN and 1e999, which no document can hold.
        line: Line = msgspec.json.decode(text, type=_LINE)
    except (ValueError, RecursionError):
        return None
    return line


def parse(stdout: str) -> list[Line]:
    """The lines of ours; whatever else was printed is left out."""
    return [line for line in map(read_line, stdout.splitlines()) if line is not None]


# --- facts ----------------------------------------------------------------------------------------


def read(ran: Ran, mode: str, python: str) -> Looked:
    """Everything that the child reported before it ended, however it ended."""
    notes, reading = Looked(), Reading(ran)
    source = f"import torch in {python}"
    imported = reading.imported(notes)
    notes.fact("torch.imported", imported, source)
    if maps := reading.all(Maps):
        # Of all processes that said so: some libraries come only when they are used.
        paths = [path for line in maps for path in line.paths]
        mapped = libraries(paths, maps[0].torch, maps[0].prefix, maps[0].conda)
        notes.fact("libraries.mapped", mapped, f"/proc/self/maps of {source}")
    if mode == "full" and (imported is None or not imported.ok):
        notes.gap("smoke", "torch could not be imported")
    elif mode == "full":
        notes.fact("smoke", reading.smoke(), f"training step in {python}")
    return notes


class Reading:
    """What the child told. cut_off: how it ended, as the end of a stage that has none."""

    def __init__(self, ran: Ran) -> None:
        self.ran = ran
        self.lines = parse(ran.stdout)
        self.ends = self.all(End)
        status: Status = "timed-out" if ran.timed_out else "failed"
        why = ran.why or (
            "no response" if ran.timed_out else f"the process exited with status {ran.code}"
        )
        if ran.signal and not ran.timed_out:
            why = f"killed by {signal_name(ran.signal)}"
        self.cut_off = End(stage="", status=status, seconds=None, detail=why)

    def all(self, kind: type[L]) -> list[L]:
        return [line for line in self.lines if isinstance(line, kind)]

    def first(self, kind: type[L]) -> L | None:
        return next(iter(self.all(kind)), None)

    def imported(self, notes: Looked) -> Imported | None:
        """The import and the first look at CUDA; None where the interpreter did not run."""
        torch = self.first(Torch)
        if torch is None:
            return self._not_imported(notes)
        found = Imported(ok=torch.ok, error=torch.error, hung=False, seconds=torch.seconds)
        if not torch.ok:
            return replace(found, shadows=torch.shadows)
        facts = self._cuda(notes) | self._neighbours()
        lost = next((end for end in self.ends if end.stage == "cuda" and end.lost), None)
        if lost is not None:
            notes.gap("torch.imported.cuda_available", f"torch.cuda: {lost.detail}")
            facts |= {"hung": lost.status == "timed-out", "signal": lost.signal}
        return replace(found, **facts)

    def _not_imported(self, notes: Looked) -> Imported | None:
        """The import itself never came back: it hung, was killed, or no interpreter ran."""
        ran = self.ran
        words = [line for line in ran.stderr.splitlines() if line.strip()] or ["no words"]
        last = words[-1][:300]
        if not self.all(Start):
            why = ran.why or f"Python exited with status {ran.code}: {last}"
            notes.gap(
                "torch.imported", "the Python executable does not exist" if ran.missing else why
            )
            return None
        if ran.timed_out:
            notes.gap("torch.imported.cuda_available", f"import torch: {ran.why}")
            return Imported(hung=True, seconds=round(ran.seconds, 3))
        number = ran.signal or (ran.code - 128 if ran.code and 128 < ran.code < 160 else None)
        reason = f"killed by {signal_name(number)}" if number else (ran.why or last)
        return Imported(ok=False, error=f"import torch: {reason}", hung=False, signal=number)

    def _cuda(self, notes: Looked) -> Json:
        """What CUDA and the libraries beside it answered."""
        facts: Json = {}
        if cuda := self.first(Cuda):
            # CUDA's own words of a stage, where the first look went well.
            details = [end.detail for end in self.ends if end.status == "failed"]
            later = next((text for text in details if "CUDA" in text and "Error" in text), "")
            versions = [version_of(device.capability) for device in cuda.devices]
            facts["cuda_available"] = cuda.available
            facts["device_count"] = cuda.count
            facts["cuda_error"] = cuda.error or later
            facts["capabilities"] = tuple(versions) if all(versions) else ()
        if answered := self.first(Libraries):
            facts["nccl"] = answered.nccl
            if answered.cudnn_error:
                notes.gap("torch.imported.cudnn", answered.cudnn_error)
            else:
                facts["cudnn"] = answered.cudnn
        return facts

    def _neighbours(self) -> Json:
        """What numpy and torch's companions answered, or died of."""
        errors = {line.name: line.error for line in self.all(Companion)}
        if numpy := self.first(Numpy):
            errors["numpy"] = numpy.error
        for end in self.ends:
            name = end.stage.removeprefix("companion ")
            tried = name != end.stage or (name == "numpy" and end.status != "timed-out")
            # Somebody ended it, as the out-of-memory killer does: no library does that.
            if tried and end.signal not in (9, 15):
                errors.setdefault(name, end.detail)
        return {"numpy_error": errors.pop("numpy", None), "companion_errors": errors}

    def smoke(self) -> Smoke:
        """All stages, and how the child, or a worker of it, ended where that was bad."""
        device = self.first(Device) or Device(device="cpu", skipped=())
        stages = [
            Stage(name=f"gpu-{gpu}", status="skipped", detail=f"GPU {gpu} was not used: {reason}")
            for gpu, reason in device.skipped
        ]
        stages += filter(None, map(self.stage, (*STAGES, COMPILE, *WITHOUT)))
        lost = {end.stage for end in self.ends if end.lost}
        bad = [
            stage
            for stage in stages
            if stage.name in lost and stage.status in ("failed", "timed-out")
        ]
        ended = f"{bad[0].name}: {bad[0].detail}" if bad else None
        return Smoke(
            device=device.device,
            stages=tuple(stages),
            ended=ended if self.ran.ok else self._why(),
        )

    def stage(self, name: str) -> Stage | None:
        """One stage, of all ranks that ran it; lost stages are told by the child or by its end."""
        ends = [end for end in self.ends if end.stage == name]
        begun = {(line.rank, line.device) for line in self.all(Start) if line.stage == name}
        if len(ends) < len(begun):
            ends.append(self.cut_off)
        if ends:
            return _joined(name, sorted(ends, key=lambda end: (end.device, end.rank or 0)))
        # Nobody reached it, because the child ended before. Others run only sometimes.
        if name not in STAGES or (self.ran.ok and not self.all(Broken)):
            return None
        return Stage(name=name, status="skipped", detail=f"not reached: {self._why()}")

    def _why(self) -> str:
        broken = self.first(Broken)
        return broken.error if broken else self.cut_off.detail


def _joined(name: str, ends: list[End]) -> Stage:
    """One stage of all its ranks or GPUs: the worst decides, all that did not pass are named."""
    status = min((end.status for end in ends), key=WORST.index)
    # A rank that was killed comes first: what the others say follows from it.
    bad = sorted((end for end in ends if end.status != "passed"), key=_cause_first)
    detail = (bad or ends)[0].detail
    if status in ("failed", "timed-out"):
        several = len({end.device for end in ends}) > 1
        detail = "; ".join(_whose(end, several) + end.detail for end in bad[:4])
    if status == "passed" and len({end.figures.get("digest") for end in ends}) > 1:
        status, detail = "failed", "the gradients are not equal across ranks"
    return Stage(
        name=name,
        status=status,
        seconds=max((end.seconds for end in ends if end.seconds is not None), default=None),
        detail=detail or None,
        figures={key: value for key, value in ends[0].figures.items() if key != "digest"},
    )


def _whose(end: End, several: bool) -> str:
    """The rank or, of several GPUs, the GPU at the beginning of what is said of it."""
    if end.rank is not None:
        return f"rank {end.rank}: "
    return f"{end.device}: " if several else ""


def _cause_first(end: End) -> tuple[bool, bool, bool]:
    followed = end.detail.startswith(("ended, since", "stopped because"))
    return end.signal is None, followed, not end.lost


def signal_name(number: int) -> str:
    """SIGSEGV for 11."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# --- libraries ------------------------------------------------------------------------------------

_WANTED = re.compile(
    r"lib(cuda|cudart|cudnn|cublas|cufft|curand|cusolver|cusparse|cupti|cufile|cudss|caffe2"
    r"|nv|nccl|torch|c10|stdc\+\+|gcc_s|gomp|iomp|omp|mkl|amdhip|hsa|rccl)"
)
_NAME = re.compile(r"(lib.+?)(?:-[0-9a-f]{8})?\.so((?:\.\d+)*)$")
# Their files carry the driver's release where the soname has 1.
_DRIVERS = re.compile(r"lib(cuda|nvidia-.+|nvcuvid|nvoptix)$")
_TOOLKIT = re.compile(r"/cuda(-[\d.]+)?/")


def libraries(paths: Iterable[str], torch: str, prefix: str, conda: bool) -> tuple[Library, ...]:
    """Those that CUDA, torch and the C++ runtime are made of, each once, in order."""
    return tuple(
        Library(
            soname=soname(path),
            path=path,
            how="mapped",
            owner=_owner(path, torch, prefix, conda),
        )
        for path in dict.fromkeys(paths)
        if _WANTED.match(path.rpartition("/")[2])
    )


def soname(path: str) -> str:
    """The name a program asks the loader for, from the name of the file that answered."""
    name = path.rpartition("/")[2]
    match = _NAME.fullmatch(name)
    if match is None:
        return name
    stem, numbers = match[1], match[2].split(".")[1:]
    if _DRIVERS.fullmatch(stem) and numbers:
        return f"{stem}.so.1"
    # CUDA 11 and older runtimes have two numbers in the soname, and so has what nvrtc builds in.
    old = stem in ("libcudart", "libnvrtc") and numbers and int(numbers[0]) < 12
    kept = 2 if old or stem == "libnvrtc-builtins" else 1
    return ".".join((f"{stem}.so", *numbers[:kept]))


def _owner(path: str, torch: str, prefix: str, conda: bool) -> str:
    folders = {"torch": torch, "wheel": torch.rpartition("/")[0], "conda": prefix if conda else ""}
    for owner, folder in folders.items():
        if folder and path.startswith(folder + "/"):
            return owner
    if _TOOLKIT.search(path):
        return "toolkit"
    return "system" if path.startswith(("/lib", "/usr/lib")) else "other"
