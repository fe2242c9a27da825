"""What libcuda answers: asked in a child with the user's environment, then in a clean one."""

from __future__ import annotations

import re
import time

from packaging.version import Version

from cudadoctor.host.local import Host
from cudadoctor.model.machine import Libcuda
from cudadoctor.model.versions import DriverVersion, cuda_from_int, driver_of
from cudadoctor.probes import Looked, Notes
from cudadoctor.probes.streamed import Patience, Progress, Streamed, asked, unheard

UNCLEAN = ("LD_LIBRARY_PATH", "LD_PRELOAD", "CUDA_VISIBLE_DEVICES")
"""What can turn a sound driver into one that fails, and is left out of the second look."""

_FILE_VERSION = re.compile(r"\.so\.(\d{3}\.\d{1,4}(?:\.\d{1,4})?)$")


def read_libcuda(host: Host, patience: Patience, progress: Progress = unheard) -> Looked:
    """Ask libcuda to start and to count GPUs; where that fails, ask again in a clean environment.

    Both children together stay within the limit of all.
    """
    notes = Notes()
    until = time.monotonic() + 0.95 * patience.total_s
    limit_s = patience.nvml_s
    said = asked(host, "cuda.py", patience=patience, timeout_s=limit_s, progress=progress)
    values = _values(said)
    clean = None
    spoiled = any(host.env.get(name) is not None for name in UNCLEAN)
    if not (values.get("code") == 0 and values.get("count")) and not said.timed_out and spoiled:
        env = {name: value for name, value in host.env.items() if name not in UNCLEAN}
        left = min(limit_s, max(0.1, until - time.monotonic()))
        clean = asked(host, "cuda.py", patience=patience, timeout_s=left, env=env)
    elif not said.timed_out and not spoiled and values.get("code") is not None:
        clean = said  # the environment was clean already
    notes.fact("driver.libcuda", libcuda_from(said, clean), "libcuda")
    for fact in ("code", "count", "version"):
        why = _why_not(said, fact)
        if why:
            notes.gap(f"driver.libcuda.{fact}", why)
    if said.unsure:
        notes.gap("driver.libcuda.hung", said.stopped("libcuda"))
    if clean is not None and not clean.done:
        notes.gap("driver.libcuda.clean_code", clean.stopped("libcuda"))
    return notes.looked()


def libcuda_from(said: Streamed, clean: Streamed | None) -> Libcuda:
    """The facts in what the first child and the clean one printed."""
    values = _values(said)
    path = said.text("loaded", "path")
    failed = values.get("code") != 0 or not values.get("count")
    cleaned = _values(clean) if clean is not None and failed else {}
    unloaded = said.last("not-loaded")
    return Libcuda(
        loads=True if path else False if unloaded else None,
        why=str(unloaded.get("why")) if unloaded else None,
        path=path,
        file_version=file_version(path or ""),
        code=values.get("code"),
        version=_cuda(values.get("version")),
        count=_count(values.get("count")),
        count_code=values.get("count-code"),
        hung=said.call if said.hung else None,
        signal=said.signal,
        clean_code=cleaned.get("code"),
        clean_path=clean.text("loaded", "path") if clean is not None and failed else None,
        clean_count=_count(cleaned.get("count")),
    )


def file_version(path: str) -> DriverVersion | None:
    """The driver release in the real name of one of its libraries."""
    found = _FILE_VERSION.search(path)
    return driver_of(found[1]) if found else None


def _values(said: Streamed) -> dict[str, int]:
    pairs = ((str(line.get("name")), line.get("value")) for line in said.of("value"))
    return {name: value for name, value in pairs if type(value) is int}


def _cuda(value: int | None) -> Version | None:
    return cuda_from_int(value) if value is not None and 1000 <= value < 100_000 else None


def _count(value: int | None) -> int | None:
    return value if value is not None and 0 <= value <= 256 else None


_CALLS = {"code": "cuInit", "count": "cuDeviceGetCount", "version": "cuDriverGetVersion"}


def _why_not(said: Streamed, fact: str) -> str | None:
    """Why libcuda did not tell this; None where it did."""
    values, call = _values(said), _CALLS[fact]
    value = values.get(fact)
    if value is not None:
        known = {"code": value, "count": _count(value), "version": _cuda(value)}[fact]
        return f"{call} answered {value}, which cannot be" if known is None else None
    if said.last("not-loaded"):
        return f"libcuda cannot be loaded: {said.last('not-loaded').get('why')}"
    refused = values.get(f"{fact}-code")
    if refused is not None:
        return f"{call} failed with {refused}"
    if not said.done:
        return said.stopped("libcuda")
    code = values.get("code")
    return f"cuInit failed with {code}" if fact == "count" and code else f"libcuda has no {call}"
