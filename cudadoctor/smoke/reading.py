"""From the lines of the child to facts. Pure: text and an ending in, facts out."""

from __future__ import annotations

import signal
from typing import Any

import msgspec
from packaging.version import Version

from cudadoctor.host.children import Ran
from cudadoctor.model.machine import Imported, Smoke, Stage
from cudadoctor.model.versions import version_of
from cudadoctor.probes import Looked, Notes
from cudadoctor.smoke.lines import read_line
from cudadoctor.smoke.mapped import libraries

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


def read(ran: Ran, mode: str, python: str) -> Looked:
    """Everything that the child told before it ended, however it ended."""
    lines = parse(ran.stdout)
    notes = Notes()
    source = f"import torch in {python}"
    imported = _imported(lines, ran, notes)
    notes.fact("torch.imported", imported, source)
    notes.fact("libraries.mapped", _mapped(lines), f"/proc/self/maps of {source}")
    if mode == "full":
        _smoke_facts(lines, ran, imported, notes, python)
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
        notes.gap("torch.imported", _never_ran(ran))
        return None
    if ran.timed_out:
        notes.gap("torch.imported.cuda_available", f"import torch: {ran.why}")
        return Imported(hung=True, seconds=round(ran.seconds, 3))
    number = ran.signal or (ran.code - 128 if ran.code and 128 < ran.code < 160 else None)
    said = f"killed by {signal_name(number)}" if number else (ran.why or _last_words(ran))
    return Imported(ok=False, error=f"import torch: {said}", hung=False, signal=number)


def _never_ran(ran: Ran) -> str:
    if ran.missing:
        return "there is no such interpreter"
    return ran.why or f"the interpreter ended with status {ran.code}: {_last_words(ran)}"


def _last_words(ran: Ran) -> str:
    return next((one for one in reversed(ran.stderr.splitlines()) if one.strip()), "no words")[:300]


def _cuda(lines: list[Line], notes: Notes) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    cuda, answered = _first(lines, "cuda"), _first(lines, "libraries")
    if cuda is not None:
        facts["cuda_available"] = cuda["available"]
        facts["device_count"] = cuda["count"]
        facts["cuda_error"] = cuda["error"] or _later_error(lines)
        facts["capabilities"] = _versions([one["capability"] for one in cuda["devices"]])
    if answered is not None:
        facts["nccl"] = answered["nccl"]
        if answered["cudnn_error"]:
            notes.gap("torch.imported.cudnn", answered["cudnn_error"])
        else:
            facts["cudnn"] = answered["cudnn"]
    return facts


def _later_error(lines: list[Line]) -> str:
    """CUDA's own words of a stage, where the first look went well."""
    for line in lines:
        if line["kind"] == "end" and line.get("status") == "failed":
            detail = str(line.get("detail") or "")
            if "CUDA" in detail and "Error" in detail:
                return detail
    return ""


def _versions(texts: list[str]) -> tuple[Version, ...]:
    found = tuple(map(version_of, texts))
    return tuple(one for one in found if one is not None) if all(found) else ()


def _neighbours(lines: list[Line]) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    numpy, ended = _first(lines, "numpy"), _end_of(lines, "numpy")
    if numpy is not None:
        facts["numpy_error"] = numpy["error"]
    elif ended is not None and not _from_outside(ended) and ended["status"] != "timed-out":
        facts["numpy_error"] = ended["detail"]
    errors = {one["name"]: one["error"] for one in lines if one["kind"] == "companion"}
    for line in lines:
        name = str(line.get("stage", "")).partition("companion ")[2]
        if line["kind"] == "end" and name and name not in errors and not _from_outside(line):
            errors[name] = line["detail"]
    facts["companion_errors"] = errors
    return facts


def _from_outside(end: Line) -> bool:
    """Whether somebody ended it, as the out-of-memory killer does: no library does that."""
    return end.get("signal") in (9, 15)


def _mapped(lines: list[Line]) -> Any:
    """Of all processes that told: some libraries come only when they are used."""
    told = [one for one in lines if one["kind"] == "maps"]
    if not told:
        return None
    first = told[0]
    paths = dict.fromkeys(path for one in told for path in one["paths"])
    return libraries(paths, first["torch"], first["prefix"], first["conda"])


def _smoke_facts(
    lines: list[Line], ran: Ran, imported: Imported | None, notes: Notes, python: str
) -> None:
    if imported is None or not imported.ok:
        notes.gap("smoke", "torch could not be imported")
        return
    device = _first(lines, "device")
    stages = _skipped_gpus(lines) + tuple(
        stage for name in STAGES if (stage := stage_of(name, lines, ran)) is not None
    )
    notes.fact(
        "smoke",
        Smoke(
            device=device["device"] if device else "cpu",
            stages=stages,
            ended=_ended(stages, lines, ran),
        ),
        f"training step in {python}",
    )


def _skipped_gpus(lines: list[Line]) -> tuple[Stage, ...]:
    device = _first(lines, "device") or {"skipped": []}
    return tuple(
        Stage(name=f"gpu-{index}", status="skipped", detail=f"GPU {index} is left alone: {reason}")
        for index, reason in device["skipped"]
    )


def stage_of(name: str, lines: list[Line], ran: Ran) -> Stage | None:
    """One stage, of all ranks that ran it; lost stages are told by the child or by its end."""
    mine = [line for line in lines if line.get("stage") == name]
    ends = [line for line in mine if line["kind"] == "end"]
    begun = [line for line in mine if line["kind"] == "start"]
    if not ends and not begun:
        return _never_begun(name, ran, lines)
    if len(ends) < len({line.get("rank") for line in begun}):
        status, why = _cut_off(ran)
        ends = [*ends, {"status": status, "detail": why, "figures": {}, "seconds": None}]
    return _joined(name, ends)


def _joined(name: str, ends: list[Line]) -> Stage:
    """One stage of all its ranks: the worst decides, and every rank that did not pass is named."""
    status = min((one["status"] for one in ends), key=WORST.index)
    # A rank that was killed comes first: what the others say follows from it.
    bad = sorted((one for one in ends if one["status"] != "passed"), key=_cause_first)
    detail = _told(bad) if status in ("failed", "timed-out") else (bad or ends)[0]["detail"]
    if status == "passed" and len({one["figures"].get("digest") for one in ends}) > 1:
        status, detail = "failed", "the gradients of the ranks are not equal"
    figures = {key: value for key, value in ends[0]["figures"].items() if key != "digest"}
    seconds = [one["seconds"] for one in ends if one["seconds"] is not None]
    return Stage(
        name=name,
        status=status,
        seconds=max(seconds, default=None),
        detail=detail or None,
        figures=figures,
    )


def _cause_first(end: Line) -> tuple[bool, bool, bool]:
    return "signal" not in end, end["detail"].startswith("ended, since"), not end.get("lost")


def _told(bad: list[Line]) -> str:
    said = [
        f"rank {one['rank']}: {one['detail']}" if "rank" in one else one["detail"] for one in bad
    ]
    return "; ".join(said[:4])


def _never_begun(name: str, ran: Ran, lines: list[Line]) -> Stage | None:
    """A stage that nobody reached, because the child ended before."""
    broken = _first(lines, "broken")
    if ran.ok and broken is None:
        return None
    why = broken["error"] if broken else _cut_off(ran)[1]
    return Stage(name=name, status="skipped", detail=f"not reached: {why}")


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
