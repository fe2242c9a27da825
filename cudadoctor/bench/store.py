"""Results kept on this machine, for the advice of later checks: no path, no user, no host.

A file a machine and workload under XDG_STATE_HOME/cudadoctor/bench (Windows: LOCALAPPDATA). Only
the bench writes it; `check --advice` reads it.
"""

import contextlib
import hashlib
import os
import platform
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from cudadoctor.bench.results import BenchResult, Gain

SCHEMA = 1
MOST_FILES = 200
MOST_BYTES = 1 << 20


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """One workload measured on one machine.

    gpus: names of the GPUs that were measured on, () for a CPU; cpu: its name, then only. driver:
    None on a CPU. date: a day, ISO 8601. gains: without figures, and without the words that an
    error may have brought. best: what was proven in fresh processes, else ().
    """

    workload: str
    torch: str
    date: str
    gpus: tuple[str, ...] = ()
    driver: str | None = None
    cpu: str | None = None
    gains: tuple[Gain, ...] = ()
    best: tuple[str, ...] = ()
    best_gain: Gain | None = None
    schema: int = SCHEMA

    @property
    def name(self) -> str:
        """A file name that tells machine, torch and workload apart and names none of them."""
        parts = (*self.gpus, self.driver or "", self.torch, self.cpu or "", self.workload)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20] + ".json"


class Read(msgspec.Struct, frozen=True):
    """What was found: results, and a sentence for each file that could not be used."""

    kept: tuple[Kept, ...] = ()
    ignored: tuple[str, ...] = ()


def from_result(result: BenchResult) -> tuple[Kept, ...]:
    """What to keep: of each workload whose baseline was measured."""

    def bare(gain: Gain) -> Gain:
        return msgspec.structs.replace(gain, why="", measured=None)

    return tuple(
        Kept(
            workload=workload.name,
            torch=result.torch,
            date=result.date[:10],
            gpus=(result.gpu,) if result.gpu is not None else (),
            driver=result.driver,
            cpu=result.cpu if result.gpu is None else None,
            gains=tuple(bare(gain) for gain in workload.alone if gain.verdict != "not-here"),
            best=workload.best if workload.unproven is None else (),
            best_gain=bare(workload.best_gain) if workload.best_gain is not None else None,
        )
        for workload in result.workloads
        if workload.baseline.rounds
    )


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
        for kept in from_result(result):
            _write(place / kept.name, msgspec.json.encode(kept))
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
        paths = sorted(path for path in place.iterdir() if path.suffix == ".json")
    except FileNotFoundError:
        return Read()
    except OSError as error:
        return Read((), (f"{place}: {error.strerror or type(error).__name__}",))
    found = {path: _read(path) for path in paths[:MOST_FILES]}
    return Read(
        tuple(kept for kept in found.values() if isinstance(kept, Kept)),
        tuple(f"{path}: {why}" for path, why in found.items() if isinstance(why, str)),
    )


def _read(path: Path) -> Kept | str:
    """What a file holds, or why it is left out. A pipe or a device is not opened."""
    try:
        if not path.is_file():
            return "it is no file"
        with path.open("rb") as file:
            text = file.read(MOST_BYTES)
    except OSError as error:
        return error.strerror or type(error).__name__
    return decoded(text) or "it is no result of cudadoctor bench that this version knows"


def decoded(text: bytes) -> Kept | None:
    """What was kept; None for anything else, and for another schema."""
    try:
        found = msgspec.json.decode(text, type=Kept)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return found if found.schema == SCHEMA else None


def cpu_name() -> str | None:
    """The name of this CPU, as results measured on a CPU bear it; None where no file tells."""
    with contextlib.suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        for line in text.splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return " ".join(value.split())
    return platform.processor() or platform.machine() or None
