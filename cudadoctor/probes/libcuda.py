"""What libcuda answers: asked in a child with the user's environment, then in a clean one."""

from __future__ import annotations

import re
from time import monotonic

from cudadoctor.host.local import Host
from cudadoctor.model.machine import Libcuda, OptDriverVersion, OptInt, OptVersion
from cudadoctor.model.versions import cuda_from_int, driver_of
from cudadoctor.probes import Looked, extract
from cudadoctor.probes.streamed import Patience, Progress, Streamed, asked, no_progress

UNCLEAN = ("LD_LIBRARY_PATH", "LD_PRELOAD", "CUDA_VISIBLE_DEVICES")
"""What can turn a sound driver into one that fails, and is left out of the second look."""

MOST_GPUS = 256
_FILE_VERSION = re.compile(r"\.so\.(\d{3}\.\d{1,4}(?:\.\d{1,4})?)$")


def read_libcuda(host: Host, patience: Patience, progress: Progress = no_progress) -> Looked:
    """Ask libcuda to start and to count GPUs; where that fails, ask again in a clean environment.

    Both children together stay within the limit of all.
    """
    notes = Looked()
    until = monotonic() + 0.95 * patience.total_s
    limit_s = patience.nvml_s
    answer = asked(host, "cuda.py", patience=patience, timeout_s=limit_s, progress=progress)
    values = _values(answer)
    clean = None
    spoiled = any(host.env.get(name) is not None for name in UNCLEAN)
    failed = values.get("code") != 0 or not values.get("count")
    if failed and not answer.timed_out and spoiled:
        env = {name: value for name, value in host.env.items() if name not in UNCLEAN}
        left = min(limit_s, max(0.1, until - monotonic()))
        clean = asked(host, "cuda.py", patience=patience, timeout_s=left, env=env)
    elif not answer.timed_out and not spoiled and values.get("code") is not None:
        clean = answer  # the environment was clean already
    facts = libcuda_from(answer, clean)
    notes.fact("driver.libcuda", facts, "libcuda")
    for fact, call in _CALLS.items():
        if getattr(facts, fact) is None:
            notes.gap(f"driver.libcuda.{fact}", _why_not(answer, values, fact, call))
    if answer.unsure:
        notes.gap("driver.libcuda.hung", answer.stopped("libcuda"))
    if clean is not None and not clean.done:
        notes.gap("driver.libcuda.clean_code", clean.stopped("libcuda"))
    return notes


def libcuda_from(answer: Streamed, clean: Streamed | None) -> Libcuda:
    """The facts in what the first child and the clean one printed."""
    values = _values(answer)
    if values.get("code") == 0 and values.get("count"):
        clean = None
    cleaned = _values(clean) if clean else {}
    return Libcuda(
        loads=answer.loads,
        why=answer.unloaded,
        path=(path := answer.text("loaded", "path")),
        file_version=file_version(path or ""),
        code=values.get("code"),
        version=possible_cuda(values.get("version")),
        count=possible_count(values.get("count")),
        count_code=values.get("count-code"),
        hung=answer.call if answer.hung else None,
        signal=answer.signal,
        clean_code=cleaned.get("code"),
        clean_path=clean.text("loaded", "path") if clean else None,
        clean_count=possible_count(cleaned.get("count")),
    )


def file_version(path: str) -> OptDriverVersion:
    """The driver release in the real name of one of its libraries."""
    return driver_of(extract(_FILE_VERSION, path) or "")


def possible_cuda(value: object) -> OptVersion:
    """13000 as CUDA 13.0; None for what no driver can say."""
    return cuda_from_int(value) if type(value) is int and 1000 <= value < 100_000 else None


def possible_count(value: object) -> OptInt:
    """How many GPUs there are; None for what cannot be."""
    return value if type(value) is int and 0 <= value <= MOST_GPUS else None


def _values(answer: Streamed) -> dict[str, int]:
    pairs = ((str(line.get("name")), line.get("value")) for line in answer.of("value"))
    return {name: value for name, value in pairs if type(value) is int}


_CALLS = {"code": "cuInit", "count": "cuDeviceGetCount", "version": "cuDriverGetVersion"}


def _why_not(answer: Streamed, values: dict[str, int], fact: str, call: str) -> str:
    """Why libcuda did not tell this."""
    if fact in values:
        return f"{call} returned {values[fact]}, which cannot be right"
    if answer.unloaded:
        return f"libcuda cannot be loaded: {answer.unloaded}"
    if (refused := values.get(f"{fact}-code")) is not None:
        return f"{call} failed with {refused}"
    if not answer.done:
        return answer.stopped("libcuda")
    code = values.get("code")
    return f"cuInit failed with {code}" if fact == "count" and code else f"libcuda has no {call}"
