"""SIGKILL at random moments of a repair, of its undo and of its resumption; what comes back.

Run: python benchmarks/repair_kills.py [KILLS] [ENVIRONMENT]
A real environment, the real pip and small real wheels, as in tests/repair. After each kill
`cudadoctor fix --undo` must give the same files, the same `pip freeze` and a working import.
ENVIRONMENT: a large one (torch with its CUDA libraries), of which a copy made of hard links is
recorded and brought back, timed.
"""

from __future__ import annotations

import collections
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import measuring

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "repair"))

from repair_fixtures import Environment, broken_environment, fitting_index, sound_environment

from cudadoctor.repair.journal import Root
from cudadoctor.repair.snapshot import Snapshot

SEED = 5
KINDS = ("fix", "fix", "fix", "undo", "resume", "twice")
"""What is killed; twice: the repair, then the undo of what it left."""


class Seen:
    """What the environment was, and how often it was not that again."""

    def __init__(self, broken: Environment) -> None:
        self.broken = broken
        self.tree, self.listed = broken.tree(), broken.listed()
        self.freeze, self.imported = broken.freeze(), broken.imports()
        self.wrong: list[str] = []
        self.after: collections.Counter[str] = collections.Counter()

    def hold(self, number: int, what: str) -> None:
        """Undo, and compare with what was there before all."""
        ran = self.broken.fix("--undo", "--yes")
        if ran.returncode != 0:
            self.wrong.append(f"{number} {what}: {ran.stdout} {ran.stderr}")
            return
        same = {
            "files": self.broken.tree() == self.tree,
            "packages": self.broken.listed() == self.listed,
            "import": self.broken.imports() == self.imported,
            "freeze": number % 5 != 0 or self.broken.freeze() == self.freeze,
        }
        self.wrong += [f"{number} {what}: {name}" for name, good in same.items() if not good]


def main(kills: int, environment: str | None) -> int:
    moments = random.Random(SEED)
    with tempfile.TemporaryDirectory() as folder:
        index = fitting_index(Path(folder) / "index")
        sound = sound_environment(Path(folder) / "sound")
        seen = Seen(broken_environment(sound, Path(folder) / "venv", index))
        whole_s, started = _whole_repair(seen.broken), time.monotonic()
        for number in range(kills):
            what = KINDS[number % len(KINDS)]
            _killed(seen, what, moments, whole_s)
            seen.hold(number, what)
        seconds = time.monotonic() - started
    for failure in seen.wrong:
        print(failure)
    measuring.saved(
        "repair_kills",
        {
            "bars": {"not_as_before": 0},
            "kills": kills,
            "seed": SEED,
            "not_as_before": len(seen.wrong),
            "whole_repair_s": round(whole_s, 2),
            "seconds": round(seconds, 1),
            "last_record_when_killed": dict(seen.after.most_common()),
            "large_environment": _timed(environment) if environment else None,
        },
    )
    return 1 if seen.wrong else 0


def _whole_repair(broken: Environment) -> float:
    """Seconds from the start to the end of a repair; it is undone."""
    started = time.monotonic()
    broken.fix("--yes")
    took = time.monotonic() - started
    broken.fix("--undo")
    return took


def _killed(seen: Seen, what: str, moments: random.Random, whole_s: float) -> None:
    """One kill of that kind (twice: two), somewhere between start and end."""
    broken = seen.broken
    if what == "undo":
        broken.fix("--yes")
        _kill(broken, moments.uniform(0, whole_s * 0.6), "--undo", "--yes")
    else:
        _kill(broken, moments.uniform(0.1, whole_s * 1.05), "--yes")
    seen.after[_last(broken)] += 1
    if what in ("resume", "twice"):
        word = "--resume" if what == "resume" else "--undo"
        _kill(broken, moments.uniform(0, whole_s), word, "--yes")
        seen.after[f"{_last(broken)} ({word})"] += 1


def _last(broken: Environment) -> str:
    records = broken.records()
    return records[-1] if records else "none"


def _kill(broken: Environment, after_s: float, *options: str) -> None:
    """Start the doctor and kill it so many seconds later, whatever it does then."""
    quiet = subprocess.DEVNULL
    with subprocess.Popen(
        broken.words(*options), env=broken.env(), stdin=quiet, stdout=quiet, stderr=quiet
    ) as child:
        time.sleep(after_s)
        child.send_signal(signal.SIGKILL)


def _timed(environment: str) -> dict[str, Any]:
    """Seconds to record a large environment, and to restore torch with its libraries."""
    copy = Path(f"{environment}-copy-of-links")
    subprocess.run(["cp", "-al", environment, str(copy)], check=True)
    try:
        folder = copy / ".cudadoctor"
        folder.mkdir()
        snapshot = Snapshot(str(folder), "1", (Root(path=str(copy)),))
        take_s, entries = _took(snapshot.take)
        untouched_s, _ = _took(snapshot.restore)
        site = next(copy.glob("lib/python*/site-packages"))
        for name in ("torch", "nvidia"):
            shutil.rmtree(site / name)
        back_s, done = _took(snapshot.restore)
        size = sum(entry.size for entry in snapshot.entries())
        return {
            "entries": entries,
            "bytes": size,
            "record_s": take_s,
            "compare_s": untouched_s,
            "bring_back_s": back_s,
            "brought_back": done.brought,
        }
    finally:
        shutil.rmtree(copy)


def _took(work: Any) -> tuple[float, Any]:
    started = time.monotonic()
    answer = work()
    return round(time.monotonic() - started, 2), answer


if __name__ == "__main__":
    counted = int(sys.argv[1]) if len(sys.argv) > 1 else 240
    sys.exit(main(counted, sys.argv[2] if len(sys.argv) > 2 else None))
