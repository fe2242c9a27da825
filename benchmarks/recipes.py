"""The on/off table of the recipes: `python benchmarks/recipes.py PYTHON [SCRIPT...]`.

PYTHON has torch. Each recipe runs at its default size as it is, with --off, and with what its
technique calls switched off, each time in a process of its own. Writes the verdicts and seconds
(with the import of torch) to benchmarks/results/recipes.json. Scripts that are named replace only
their own rows.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from recipe_runs import SCRIPTS, SWITCHED_OFF, TRAIN, Ran

FILE = Path(__file__).parent / "results" / "recipes.json"
PRELUDE = f"""
import contextlib, runpy, sys, torch
script, code, *options = sys.argv[1:]
sys.argv, sys.path[0] = [script, *options], {str(TRAIN)!r}
exec(code, dict(torch=torch, contextlib=contextlib))
runpy.run_path(script, run_name="__main__")
"""


def timed(python: str, script: str, *options: str, before: str = "") -> dict[str, Any]:
    path = str(TRAIN / f"{script}.py")
    argv = [python, "-c", PRELUDE, path, before, *options] if before else [python, path, *options]
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "TMPDIR": folder, "TORCHINDUCTOR_CACHE_DIR": folder}
        began = time.perf_counter()
        child = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - began
    ran = Ran(child.returncode, tuple(child.stdout.splitlines()), child.stderr)
    if ran.verdict not in ("proved", "not proved", "skipped"):
        print(child.stdout, child.stderr, file=sys.stderr)
    return {"verdict": ran.verdict, "last": ran.last[:200], "seconds": round(seconds, 1)}


def main() -> None:
    python, *named = sys.argv[1:]
    asked = "import torch; print(torch.__version__, torch.cuda.is_available())"
    version, cuda = subprocess.check_output([python, "-c", asked], text=True).split()
    kept = json.loads(FILE.read_text("utf-8"))["recipes"] if FILE.exists() and named else {}
    rows: dict[str, Any] = {name: row for name, row in kept.items() if name in SCRIPTS}
    for script in named or SCRIPTS:
        row = {"as it is": timed(python, script), "--off": timed(python, script, "--off")}
        if script in SWITCHED_OFF:
            row["calls switched off"] = timed(python, script, before=SWITCHED_OFF[script])
        rows[script] = row
        told = {way: f"{run['verdict']} ({run['seconds']} s)" for way, run in row.items()}
        print(f"{script}: {told}", flush=True)
        wrong = [
            name
            for name, ways in rows.items()
            for way, run in ways.items()
            if run["verdict"] not in ("skipped", "proved" if way == "as it is" else "not proved")
        ]
        result = {
            "torch": version,
            "cuda": cuda == "True",
            "processor": f"{platform.machine()}, {os.cpu_count()} cores",
            "skipped": sorted(
                n for n, ways in rows.items() if ways["as it is"]["verdict"] == "skipped"
            ),
            "wrong": wrong,
            "slowest_s": max(run["seconds"] for ways in rows.values() for run in ways.values()),
        }
        FILE.write_text(json.dumps({**result, "recipes": rows}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
