"""Forged documents, many of them: what foreign ever stands in a line that a reader may run.

Run: python benchmarks/forged_documents.py [--documents 20000] [--seed 12]
Each document is a machine of the tests with payloads in some of its fields, now and then of a wrong
type; it is read as --from reads it (every third out of a pasted thread) and written in every way.
Bars: 0 foreign hosts, programs, packages or other words in a runnable line, 0 failures (exit 4).
"""

from __future__ import annotations

import argparse
import collections
import json
import sys
import tempfile
import time
import traceback
from pathlib import Path

import measuring

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

SHOWN = 20
THREAD = "It says no kernel image is available.\n\n```json\n{text}\n```\n\nAny ideas?\n"


def main(documents: int, seed: int) -> int:
    from forged import documents as forged
    from forged import faults_of

    from cudadoctor.cli import saved

    counts: collections.Counter[str] = collections.Counter()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "facts.json"
        for turn, plain in enumerate(forged(documents, seed)):
            text = json.dumps(plain, indent=1)
            file.write_text(THREAD.format(text=text) if turn % 3 == 2 else text, encoding="utf-8")
            try:
                machine = next(saved.machines((str(file),))).machine
                faults = faults_of(machine, turn) if machine else []
            except saved.SavedError:
                counts["refused"] += 1
                continue
            except Exception:
                counts["failed"] += 1
                if counts["failed"] < SHOWN:
                    traceback.print_exc()
                    print(f"document {turn} of seed {seed}")
                continue
            counts["judged"] += 1
            counts.update(fault.kind for fault in faults)
            for fault in faults[:1] if sum(counts[kind] for kind in KINDS) < SHOWN else ():
                print(f"document {turn} of seed {seed}: {fault}")
    figures = {
        "bars": dict.fromkeys((*KINDS, "failed"), 0),
        "seed": seed,
        "documents": documents,
        **{name: counts[name] for name in ("judged", "refused", "failed", *KINDS)},
        "seconds": round(time.monotonic() - started, 1),
    }
    measuring.saved("forged_documents", figures)
    return 1 if any(counts[name] for name in ("failed", *KINDS)) else 0


KINDS = ("host", "program", "package", "word", "mark")

if __name__ == "__main__":
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--documents", type=int, default=20_000)
    asked.add_argument("--seed", type=int, default=12)
    options = asked.parse_args()
    sys.exit(main(options.documents, options.seed))
