"""Results kept on this machine, for the advice of later checks: no path, no user, no host.

A file a machine and workload under XDG_STATE_HOME/cudadoctor/bench (Windows: LOCALAPPDATA). Only
the bench writes it; `check --advice` reads it.
"""

import hashlib
import platform
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from cudadoctor.bench.results import BenchResult, Gain, Method
from cudadoctor.host.children import Environment
from cudadoctor.host.local import state_folder
from cudadoctor.model.machine import OptStr, Strings

MOST_FILES, MOST_BYTES = 200, 1 << 20
BEST = "best combination"
"""Under this name the day of the best combination stands among the dates."""


class Kept(Struct, frozen=True, kw_only=True):
    """One workload measured on one machine.

    gpus: names of the GPUs that were measured on, () for a CPU; cpu: its name, then only. driver:
    None on a CPU. date: a day, ISO 8601; dates: of techniques that were measured on another day.
    gains: without figures, and without the words that an error may have brought. best: what was
    proven in fresh processes, else (). method: what the intervals rest on.
    """

    workload: str
    torch: str
    date: str
    gpus: Strings = ()
    driver: OptStr = None
    cpu: OptStr = None
    gains: tuple[Gain, ...] = ()
    best: Strings = ()
    best_gain: Gain | None = None
    dates: dict[str, str] = {}
    method: Method = "rounds"
    schema: Literal[1] = 1

    @property
    def name(self) -> str:
        """A file name that tells machine, torch and workload apart and names none of them."""
        parts = (*self.gpus, self.driver or "", self.torch, self.cpu or "", self.workload)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20] + ".json"


class Read(Struct, frozen=True):
    """What was found: results, and a sentence for each file that could not be used."""

    kept: tuple[Kept, ...] = ()
    ignored: Strings = ()


def from_result(result: BenchResult) -> tuple[Kept, ...]:
    """What to keep: of each workload whose baseline was measured."""

    def bare(gain: Gain) -> Gain:
        return replace(gain, why="", measured=None, pairs=())

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
            best_gain=workload.best_gain and bare(workload.best_gain),
            method=result.method,
        )
        for workload in result.workloads
        if workload.baseline.rounds
    )


DECIDED = ("faster", "slower", "same", "loss-differs", "failed")


def merged(earlier: Kept, later: Kept) -> Kept:
    """The later result, and of the earlier one what was not measured again.

    What was measured again stands as it came out: an earlier gain that does not hold is lost, also
    as a part of a combination. Where a technique got fewer processes than can decide anything, it
    was not measured again.
    """
    tried = {gain.technique for gain in later.gains if gain.verdict in DECIDED or gain.low}
    gains = tuple(gain for gain in later.gains if gain.technique in tried)
    left = tuple(gain for gain in earlier.gains if gain.technique not in tried)
    known = {gain.technique for gain in (*gains, *left)}
    found = replace(
        later,
        gains=(*gains, *left, *(gain for gain in later.gains if gain.technique not in known)),
        dates={gain.technique: earlier.dates.get(gain.technique, earlier.date) for gain in left},
    )
    denied = {gain.technique for gain in gains if gain.verdict != "faster"}
    if not later.best and not denied & {*earlier.best}:
        date = earlier.dates.get(BEST, earlier.date)
        found = replace(found, best=earlier.best, best_gain=earlier.best_gain)
        found = replace(found, dates={**found.dates, BEST: date} if earlier.best else found.dates)
    return found


def folder(env: Environment) -> Path | None:
    """Where results lie; None where no variable and no home says."""
    place = state_folder(env)
    return Path(place, "bench") if place else None


def keep(result: BenchResult, env: Environment) -> OptStr:
    """Keep a result; None where that went well, else why not, as a sentence."""
    place = folder(env)
    if place is None:
        return "the result was not saved for later recommendations: no home folder found"
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Whole or not at all: a reader never sees half of it.
        with tempfile.TemporaryDirectory(dir=place, prefix=".new-") as new:
            for kept in from_result(result):
                file, known = Path(new, kept.name), place / kept.name
                earlier = decoded(known.read_bytes()) if known.is_file() else None
                sound = earlier is not None and earlier.method == kept.method
                both = merged(earlier, kept) if earlier is not None and sound else kept
                file.write_bytes(msgspec.json.encode(both))
                file.replace(known)
    except OSError as error:
        return f"the result was not saved for later recommendations: {place}: {error.strerror}"
    return None


def read(env: Environment) -> Read:
    """All that was kept; a file that cannot be used is left out, with a word."""
    place = folder(env)
    kept = []
    ignored = []
    try:
        paths = sorted(place.iterdir()) if place else []
    except FileNotFoundError:
        return Read()
    except OSError as error:
        return Read((), (f"{place}: {error.strerror}",))
    for path in [path for path in paths if path.suffix == ".json"][:MOST_FILES]:
        why = "the file is not a cudadoctor bench result that this version can read"
        try:
            # A pipe or a device is not opened.
            sound = path.is_file() and path.stat().st_size <= MOST_BYTES
            found = decoded(path.read_bytes()) if sound else None
        except OSError as error:
            found, why = None, str(error.strerror)
        if found is not None and found.method != "processes":
            # Its intervals rest on the rounds of single processes, which claim too much.
            why = "measured by an earlier version of cudadoctor bench; run it again"
            found = None
        if found is None:
            ignored.append(f"{path}: {why}")
        else:
            kept.append(found)
    return Read(tuple(kept), tuple(ignored))


def decoded(text: bytes) -> Kept | None:
    """What was kept; None for anything else, and for another schema."""
    with suppress(msgspec.MsgspecError, UnicodeDecodeError):
        return msgspec.json.decode(text, type=Kept)
    return None


def cpu_name() -> OptStr:
    """The name of this CPU, as results measured on a CPU bear it; None where no file tells."""
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        for line in text.splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return " ".join(value.split())
    return platform.processor() or platform.machine() or None
