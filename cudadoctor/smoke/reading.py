"""From the lines of the child to facts. Pure: text and an ending in, facts out."""

import re
import signal
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from cudadoctor.host.children import Ran
from cudadoctor.model.machine import Imported, Library, Smoke, Stage
from cudadoctor.model.versions import version_of
from cudadoctor.probes import Looked, Notes

STAGES = (
    "allocate",
    "matmul",
    "conv",
    "train-fp32",
    "amp-fp16",
    "amp-bf16",
    "ddp",
    "checkpoint",
)
WORST = ("failed", "timed-out", "skipped", "passed")
Line = dict[str, Any]


class _Device(msgspec.Struct):
    capability: str


_FIELDS: dict[str, list[Any]] = {
    "start": [("stage", str), ("rank", int | None, None)],
    "torch": [
        *(("ok", bool), ("error", str), ("seconds", float)),
        ("shadows", tuple[str, ...] | None, None),
    ],
    "cuda": [
        *(("available", bool), ("count", int), ("error", str)),
        ("devices", tuple[_Device, ...]),
    ],
    "libraries": [("nccl", str | None), ("cudnn", str | None), ("cudnn_error", str)],
    "numpy": [("error", str)],
    "companion": [("name", str), ("error", str)],
    "maps": [("paths", tuple[str, ...]), ("torch", str), ("prefix", str), ("conda", bool)],
    "device": [("device", str), ("skipped", tuple[tuple[int, str], ...])],
    "end": [
        *(("stage", str), ("status", Literal["passed", "failed", "skipped", "timed-out"])),
        *(("seconds", float | None), ("detail", str)),
        ("figures", dict[str, float | int | str | bool]),
        *(("rank", int | None, None), ("signal", int | None, None)),
    ],
    "broken": [("error", str)],
}
_SHAPES: dict[str, type] = {
    kind: msgspec.defstruct(kind, fields) for kind, fields in _FIELDS.items()
}


def read_line(text: str) -> Line | None:
    """The line that a text is; None for what the examined interpreter prints beside ours."""
    if not text.startswith("{"):
        return None
    try:
        # Unlike the library's own reader it refuses NaN and 1e999, which no document can hold.
        line = msgspec.json.decode(text)
        if not isinstance(line, dict) or not isinstance(line.get("kind"), str):
            return None
        shaped: Any = msgspec.convert(line, _SHAPES.get(line["kind"], dict[str, Any]))
    except (ValueError, RecursionError):
        return None
    if getattr(shaped, "seconds", None) is not None:
        line["seconds"] = shaped.seconds
    return line


def read(ran: Ran, mode: str, python: str) -> Looked:
    """Everything that the child told before it ended, however it ended."""
    lines = parse(ran.stdout)
    notes = Notes()
    source = f"import torch in {python}"
    imported = _imported(lines, ran, notes)
    notes.fact("torch.imported", imported, source)
    # Of all processes that said so: some libraries come only when they are used.
    maps = [line for line in lines if line["kind"] == "maps"]
    paths = [path for line in maps for path in line["paths"]]
    where = [maps[0][name] for name in ("torch", "prefix", "conda")] if maps else []
    mapped = libraries(paths, *where) if maps else None
    notes.fact("libraries.mapped", mapped, f"/proc/self/maps of {source}")
    if mode == "full" and (imported is None or not imported.ok):
        notes.gap("smoke", "torch could not be imported")
    elif mode == "full":
        device = _first(lines, "device") or {"device": "cpu", "skipped": ()}
        alone = [
            Stage(name=f"gpu-{gpu}", status="skipped", detail=f"GPU {gpu} is left alone: {reason}")
            for gpu, reason in device["skipped"]
        ]
        stages = (*alone, *filter(None, (stage_of(name, lines, ran) for name in STAGES)))
        smoke = Smoke(device=device["device"], stages=stages, ended=_ended(stages, lines, ran))
        notes.fact("smoke", smoke, f"training step in {python}")
    return notes.looked()


def parse(stdout: str) -> list[Line]:
    """The lines of ours; whatever else was printed is left out."""
    lines = (read_line(text) for text in stdout.splitlines())
    return [line for line in lines if line is not None]


def _imported(lines: list[Line], ran: Ran, notes: Notes) -> Imported | None:
    torch = _first(lines, "torch")
    if torch is None:
        return _not_imported(lines, ran, notes)
    if not torch["ok"]:
        return Imported(
            ok=False,
            error=torch["error"],
            hung=False,
            seconds=torch["seconds"],
            shadows=tuple(torch.get("shadows") or ()),
        )
    found = Imported(ok=True, error="", hung=False, seconds=torch["seconds"])
    found = msgspec.structs.replace(found, **_cuda(lines, notes), **_neighbours(lines))
    lost = _end_of(lines, "cuda")
    if lost is not None and lost.get("lost"):
        why = f"the first look at CUDA: {lost['detail']}"
        notes.gap("torch.imported.cuda_available", why)
        hung = lost["status"] == "timed-out"
        found = msgspec.structs.replace(found, hung=hung, signal=lost.get("signal"))
    return found


def _not_imported(lines: list[Line], ran: Ran, notes: Notes) -> Imported | None:
    """The import itself never came back: it hung, was killed, or the interpreter did not run."""
    if _first(lines, "start") is None:
        ended = f"the interpreter ended with status {ran.code}: {_last_words(ran)}"
        notes.gap(
            "torch.imported", "there is no such interpreter" if ran.missing else ran.why or ended
        )
        return None
    if ran.timed_out:
        notes.gap("torch.imported.cuda_available", f"import torch: {ran.why}")
        return Imported(hung=True, seconds=round(ran.seconds, 3))
    number = ran.signal or (ran.code - 128 if ran.code and 128 < ran.code < 160 else None)
    said = f"killed by {signal_name(number)}" if number else (ran.why or _last_words(ran))
    return Imported(ok=False, error=f"import torch: {said}", hung=False, signal=number)


def _last_words(ran: Ran) -> str:
    lines = reversed(ran.stderr.splitlines())
    return next((line for line in lines if line.strip()), "no words")[:300]


def _cuda(lines: list[Line], notes: Notes) -> dict[str, Any]:
    """What CUDA and the libraries beside it answered."""
    facts: dict[str, Any] = {}
    cuda, answered = _first(lines, "cuda"), _first(lines, "libraries")
    if cuda is not None:
        # CUDA's own words of a stage, where the first look went well.
        details = [
            str(line.get("detail") or "")
            for line in lines
            if line["kind"] == "end" and line.get("status") == "failed"
        ]
        later = next((text for text in details if "CUDA" in text and "Error" in text), "")
        versions = [version_of(device["capability"]) for device in cuda["devices"]]
        facts["cuda_available"] = cuda["available"]
        facts["device_count"] = cuda["count"]
        facts["cuda_error"] = cuda["error"] or later
        facts["capabilities"] = tuple(versions) if all(versions) else ()
    if answered is not None:
        facts["nccl"] = answered["nccl"]
        if answered["cudnn_error"]:
            notes.gap("torch.imported.cudnn", answered["cudnn_error"])
        else:
            facts["cudnn"] = answered["cudnn"]
    return facts


def _neighbours(lines: list[Line]) -> dict[str, Any]:
    """What numpy and torch's companions answered, or died of."""
    facts: dict[str, Any] = {}
    numpy, ended = _first(lines, "numpy"), _end_of(lines, "numpy")
    if numpy is not None:
        facts["numpy_error"] = numpy["error"]
    elif ended is not None and not _from_outside(ended) and ended["status"] != "timed-out":
        facts["numpy_error"] = ended["detail"]
    errors = {line["name"]: line["error"] for line in lines if line["kind"] == "companion"}
    for line in lines:
        name = str(line.get("stage", "")).partition("companion ")[2]
        if line["kind"] == "end" and name and name not in errors and not _from_outside(line):
            errors[name] = line["detail"]
    facts["companion_errors"] = errors
    return facts


def _from_outside(end: Line) -> bool:
    """Whether somebody ended it, as the out-of-memory killer does: no library does that."""
    return end.get("signal") in (9, 15)


def stage_of(name: str, lines: list[Line], ran: Ran) -> Stage | None:
    """One stage, of all ranks that ran it; lost stages are told by the child or by its end."""
    mine = [line for line in lines if line.get("stage") == name]
    ends = [line for line in mine if line["kind"] == "end"]
    begun = [line for line in mine if line["kind"] == "start"]
    if not ends and not begun:
        # Nobody reached it, because the child ended before.
        broken = _first(lines, "broken")
        if ran.ok and broken is None:
            return None
        why = broken["error"] if broken else _cut_off(ran)[1]
        return Stage(name=name, status="skipped", detail=f"not reached: {why}")
    if len(ends) < len({line.get("rank") for line in begun}):
        status, why = _cut_off(ran)
        ends = [*ends, {"status": status, "detail": why, "figures": {}, "seconds": None}]
    return _joined(name, ends)


def _joined(name: str, ends: list[Line]) -> Stage:
    """One stage of all its ranks: the worst decides, and every rank that did not pass is named."""
    status = min((end["status"] for end in ends), key=WORST.index)
    # A rank that was killed comes first: what the others say follows from it.
    bad = sorted((end for end in ends if end["status"] != "passed"), key=_cause_first)
    detail = (bad or ends)[0]["detail"]
    if status in ("failed", "timed-out"):
        ranks = [f"rank {end['rank']}: " if "rank" in end else "" for end in bad[:4]]
        detail = "; ".join(rank + end["detail"] for rank, end in zip(ranks, bad, strict=False))
    if status == "passed" and len({end["figures"].get("digest") for end in ends}) > 1:
        status, detail = "failed", "the gradients of the ranks are not equal"
    figures = {key: value for key, value in ends[0]["figures"].items() if key != "digest"}
    seconds = [end["seconds"] for end in ends if end["seconds"] is not None]
    return Stage(
        name=name,
        status=status,
        seconds=max(seconds, default=None),
        detail=detail or None,
        figures=figures,
    )


def _cause_first(end: Line) -> tuple[bool, bool, bool]:
    return "signal" not in end, end["detail"].startswith("ended, since"), not end.get("lost")


def _cut_off(ran: Ran) -> tuple[Any, str]:
    if ran.timed_out:
        return "timed-out", ran.why or "no answer"
    if ran.signal:
        return "failed", f"killed by {signal_name(ran.signal)}"
    return "failed", ran.why or f"the process ended with status {ran.code}"


def _ended(stages: tuple[Stage, ...], lines: list[Line], ran: Ran) -> str | None:
    """How the child, or a worker of it, ended where that was bad."""
    if not ran.ok:
        broken = _first(lines, "broken")
        return str(broken["error"]) if broken else _cut_off(ran)[1]
    lost = {line["stage"] for line in lines if line["kind"] == "end" and line.get("lost")}
    for stage in stages:
        if stage.name in lost and stage.status in ("failed", "timed-out"):
            return f"{stage.name}: {stage.detail}"
    return None


def signal_name(number: int | None) -> str:
    """SIGSEGV for 11."""
    try:
        return signal.Signals(number or 0).name
    except ValueError:
        return f"signal {number}"


def _first(lines: list[Line], kind: str) -> Line | None:
    return next((line for line in lines if line["kind"] == kind), None)


def _end_of(lines: list[Line], stage: str) -> Line | None:
    return next(
        (line for line in lines if line["kind"] == "end" and line.get("stage") == stage), None
    )


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
    packages = torch.rpartition("/")[0]
    if torch and path.startswith(torch + "/"):
        return "torch"
    if packages and path.startswith(packages + "/"):
        return "wheel"
    if conda and path.startswith(prefix + "/"):
        return "conda"
    if _TOOLKIT.search(path):
        return "toolkit"
    if path.startswith(("/lib", "/usr/lib", "/lib64")):
        return "system"
    return "other"
