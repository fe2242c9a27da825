"""The smoke step and a whole `check` beside `accelerate test`, in the same environment.

    python benchmarks/smoke_vs_accelerate.py --python ENV/bin/python [--rounds 10] [--minutes 60]

The environment needs torch and accelerate. All are run in turn, and each is compared with the
`accelerate test` of its own round; the median of these shares counts. `accelerate test` uses one
core and `check` two: a round begins when the machine is idle, and does not count where other
programs then used a tenth of it. The bars, on a machine without a GPU: `check` at most 0.38, and at
most 0.30 without the stage that tests torch.optim, no other stage that a CPU can do left out.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from cudadoctor.host.local import LocalHost
from cudadoctor.model.machine import Smoke
from cudadoctor.smoke import run_smoke
from cudadoctor.smoke.reading import STAGES

QUIET = 0.1
BARS = {"check": 0.38, "check without optimizer": 0.30}
ON_CPU = {*STAGES} - {"cuda-graph"}
LEAVING_OUT = """\
import functools, sys
import cudadoctor.smoke
from cudadoctor.__main__ import main
run = functools.partial(cudadoctor.smoke.run_smoke, without="optimizer")
cudadoctor.smoke.run_smoke = run
sys.argv[0] = "cudadoctor"
main()
"""


def main() -> int:
    """Measure, print one JSON document; 1 where the bar is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--python", default="/tmp/envs/cu130/bin/python")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=60.0)
    asked = parser.parse_args()
    runs: dict[str, Callable[[], object]] = {
        "accelerate": lambda: accelerate(asked.python),
        "smoke": lambda: smoke(asked.python),
        "check": lambda: check(asked.python, ON_CPU, "-m", "cudadoctor"),
        "check without optimizer": lambda: check(
            asked.python, ON_CPU - {"optimizer"}, "-c", LEAVING_OUT
        ),
    }
    taken: dict[str, list[float]] = {name: [] for name in runs}
    until = time.monotonic() + 60 * asked.minutes
    seconds(runs["accelerate"])  # warms the caches
    disturbed = 0
    while len(taken["check"]) < asked.rounds and time.monotonic() < until:
        if others(lambda: time.sleep(2.0)) > QUIET:
            continue
        began = len(taken["check"])

        def round_of() -> None:
            for name, run in runs.items():
                taken[name].append(seconds(run))

        if others(round_of) > QUIET:
            disturbed += 1
            for values in taken.values():
                del values[began:]
    if not taken["check"]:
        raise SystemExit(f"no round was undisturbed ({disturbed} were begun)")
    shares = {
        name: [value / whole for value, whole in zip(values, taken["accelerate"], strict=True)]
        for name, values in taken.items()
    }
    report(taken, shares, asked.python, disturbed)
    return int(not all(statistics.median(shares[name]) <= bar for name, bar in BARS.items()))


def others(run: Callable[[], object]) -> float:
    """The share of all cores that other programs used during a run."""

    def busy() -> tuple[float, float]:
        # The first line: user, nice, system, idle, waiting, ... in hundredths of a second.
        numbers = [int(word) for word in Path("/proc/stat").read_text().split()[1:9]]
        used = sum(numbers) - numbers[3] - numbers[4]
        own = os.times()
        return (
            used / os.sysconf("SC_CLK_TCK"),
            own.user + own.system + own.children_user + own.children_system,
        )

    (used, own), began = busy(), time.monotonic()
    run()
    (later, owns), took = busy(), time.monotonic() - began
    return (later - used - (owns - own)) / took / (os.cpu_count() or 1)


def accelerate(python: str) -> None:
    """`accelerate test` of that environment, which must succeed."""
    folder = Path(python).parent
    path = f"{folder}{os.pathsep}{os.environ.get('PATH', '')}"
    with tempfile.TemporaryDirectory() as home:
        env = {**os.environ, "PATH": path, "HF_HOME": home}
        done = subprocess.run(
            [str(folder / "accelerate"), "test"], env=env, capture_output=True, check=True
        )
    assert b"Test is a success" in done.stdout


def smoke(python: str) -> None:
    """The smoke step alone, every stage of which must pass."""
    found = run_smoke(LocalHost(), python, mode="full").facts["smoke"]
    assert isinstance(found, Smoke)
    assert {stage.name for stage in found.stages if stage.status == "passed"} == ON_CPU, found


def check(python: str, stages: set[str], *program: str) -> None:
    """The command of a user: probes, import, smoke, diagnosis."""
    argv = [sys.executable, *program, "check", "--json", "--python", python]
    done = subprocess.run(argv, capture_output=True, check=False)
    found = json.loads(done.stdout)["smoke"]["stages"]
    assert {stage["name"] for stage in found if stage["status"] == "passed"} == stages, found


def seconds(run: Callable[[], object]) -> float:
    """Wall time of one run; nan where it does not work (a command line that is not there yet)."""
    began = time.perf_counter()
    try:
        run()
    except (AssertionError, KeyError, TypeError, ValueError, OSError) as error:
        print(f"not measured: {error}", file=sys.stderr)
        return float("nan")
    return time.perf_counter() - began


def report(
    taken: dict[str, list[float]], shares: dict[str, list[float]], python: str, disturbed: int
) -> None:
    """The figures, and on what they were taken."""
    document = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
        "torch": subprocess.run(
            [python, "-c", "import torch; print(torch.__version__)"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip(),
        "rounds": len(taken["check"]),
        "rounds_disturbed_by_others": disturbed,
        "median_s": {name: round(statistics.median(each), 3) for name, each in taken.items()},
        "share_of_accelerate_test": {
            name: {
                "median": round(statistics.median(each), 3),
                "least": round(min(each), 3),
                "most": round(max(each), 3),
            }
            for name, each in shares.items()
        },
        "bars": BARS,
    }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    sys.exit(main())
