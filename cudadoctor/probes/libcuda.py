"""What libcuda answers: asked in a child with the user's environment, then in a clean one."""

from __future__ import annotations

import re
import time

from packaging.version import Version

from cudadoctor.facts import Libcuda
from cudadoctor.host import Host
from cudadoctor.probes import Looked, Notes
from cudadoctor.probes.streamed import Streamed, streamed
from cudadoctor.versions import DriverVersion, cuda_from_int, driver_of

UNCLEAN = ("LD_LIBRARY_PATH", "LD_PRELOAD", "CUDA_VISIBLE_DEVICES")
"""What can turn a sound driver into one that fails, and is left out of the second look."""

_FILE_VERSION = re.compile(r"\.so\.(\d{3}\.\d{1,4}(?:\.\d{1,4})?)$")


def read_libcuda(
    host: Host, timeout_s: float, *, conclusive: bool = True, total_s: float | None = None
) -> Looked:
    """Ask libcuda to start and to count GPUs; where that fails, ask again in a clean environment.

    conclusive: the limit is so long that silence means a sick driver; else it is only a gap.
    total_s: for both looks together.
    """
    notes = Notes()
    until = time.monotonic() + (total_s or 2 * timeout_s)
    said = streamed(host.inside("cuda.py", timeout_s=timeout_s))
    values = _values(said)
    clean = None
    spoiled = any(host.env.get(name) is not None for name in UNCLEAN)
    if not (values.get("code") == 0 and values.get("count")) and not said.hung and spoiled:
        env = {name: value for name, value in host.env.items() if name not in UNCLEAN}
        left = min(timeout_s, max(0.1, until - time.monotonic()))
        clean = streamed(host.inside("cuda.py", timeout_s=left, env=env))
    elif not said.hung and not spoiled and values.get("code") is not None:
        clean = said  # the environment was clean already
    notes.fact("driver.libcuda", libcuda_from(said, clean, conclusive), "libcuda")
    why = _why_not(said, timeout_s)
    if why:
        notes.gap("driver.libcuda.code", why)
        notes.gap("driver.libcuda.count", why)
    return notes.looked()


def libcuda_from(said: Streamed, clean: Streamed | None, conclusive: bool = True) -> Libcuda:
    """The facts in what the first child and the clean one printed."""
    values = _values(said)
    path = _path(said)
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
        hung=(said.call or "starting the process") if said.hung and conclusive else None,
        signal=said.signal,
        clean_code=cleaned.get("code"),
        clean_path=_path(clean) if clean is not None and failed else None,
        clean_count=_count(cleaned.get("count")),
    )


def file_version(path: str) -> DriverVersion | None:
    """The driver release in the real name of one of its libraries."""
    found = _FILE_VERSION.search(path)
    return driver_of(found[1]) if found else None


def _values(said: Streamed) -> dict[str, int]:
    pairs = ((str(line.get("name")), line.get("value")) for line in said.of("value"))
    return {name: value for name, value in pairs if type(value) is int}


def _path(said: Streamed) -> str | None:
    path = said.last("loaded").get("path")
    return str(path) if path else None


def _cuda(value: int | None) -> Version | None:
    return cuda_from_int(value) if value is not None and 1000 <= value < 100_000 else None


def _count(value: int | None) -> int | None:
    return value if value is not None and 0 <= value <= 256 else None


def _why_not(said: Streamed, timeout_s: float) -> str | None:
    if said.last("not-loaded"):
        return f"libcuda cannot be loaded: {said.last('not-loaded').get('why')}"
    if said.hung:
        return f"{said.call or 'libcuda'}: no answer within {timeout_s:g} s"
    if not said.done:
        return f"{said.call or 'the process that asks libcuda'}: {said.why}"
    return None
