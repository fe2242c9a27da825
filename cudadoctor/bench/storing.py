"""Results kept on this machine, for the advice of later checks.

A file a machine and workload under XDG_STATE_HOME/cudadoctor/bench (Windows: LOCALAPPDATA). Only
the bench writes it; `check --advice` reads it. What it holds is said in kept.py.
"""

from __future__ import annotations

import contextlib
import os
import platform
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from cudadoctor.bench import kept
from cudadoctor.bench.kept import Kept
from cudadoctor.bench.results import BenchResult

MOST_FILES = 200
MOST_BYTES = 1 << 20


class Read(msgspec.Struct, frozen=True):
    """What was found: results, and a sentence for each file that could not be used."""

    kept: tuple[Kept, ...] = ()
    ignored: tuple[str, ...] = ()


def folder(env: Mapping[str, str]) -> Path | None:
    """Where results lie; None where no variable and no home says."""
    if os.name == "nt" and (local := env.get("LOCALAPPDATA")):
        return Path(local) / "cudadoctor" / "bench"
    state = env.get("XDG_STATE_HOME", "")
    if state and Path(state).is_absolute():  # a relative one is to be ignored, says XDG
        return Path(state) / "cudadoctor" / "bench"
    home = env.get("HOME") or env.get("USERPROFILE") or ""
    return Path(home) / ".local" / "state" / "cudadoctor" / "bench" if home else None


def keep(result: BenchResult, env: Mapping[str, str]) -> str | None:
    """Keep a result; None where that went well, else why not, as a sentence."""
    place = folder(env)
    if place is None:
        return "the result is not kept for later advice: no home folder is known"
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        for one in kept.from_result(result):
            _write(place / one.name, kept.dumps(one))
    except OSError as error:
        why = error.strerror or type(error).__name__
        return f"the result is not kept for later advice: {place}: {why}"
    return None


def _write(path: Path, text: bytes) -> None:
    """Whole or not at all: a reader never sees half of it."""
    number, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(number, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise


def read(env: Mapping[str, str]) -> Read:
    """All that was kept; a file that cannot be used is left out, with a word."""
    place = folder(env)
    if place is None:
        return Read()
    try:
        paths = sorted(one for one in place.iterdir() if one.suffix == ".json")
    except FileNotFoundError:
        return Read()
    except OSError as error:
        return Read((), (f"{place}: {error.strerror or type(error).__name__}",))
    found: list[Kept] = []
    ignored: list[str] = []
    for path in paths[:MOST_FILES]:
        one = _read(path)
        if isinstance(one, Kept):
            found.append(one)
        else:
            ignored.append(f"{path}: {one}")
    return Read(tuple(found), tuple(ignored))


def _read(path: Path) -> Kept | str:
    """What a file holds, or why it is left out. A pipe or a device is not opened."""
    try:
        if not path.is_file():
            return "it is no file"
        with path.open("rb") as file:
            text = file.read(MOST_BYTES)
    except OSError as error:
        return error.strerror or type(error).__name__
    return kept.loads(text) or "it is no result of cudadoctor bench that this version knows"


def cpu_name() -> str | None:
    """The name of this CPU, as results measured on a CPU bear it; None where no file tells."""
    with contextlib.suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        for line in text.splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return " ".join(value.split())
    return platform.processor() or platform.machine() or None
