"""Whether `bench -- COMMAND` names the right bottleneck and line: trainings with known answers.

Run: python benchmarks/script_answers.py [NAME ...] [--fresh] [--only-proc]
Bar: every script gets its answer and its line. --fresh: the set of script_answers_fresh.toml, which
was written after the logic was finished. --only-proc: without py-spy, no bar.

Each script runs in the Python of CUDADOCTOR_TEST_CPU, with torch for the CPU; a stand-in for NVML
plays the GPU where the script asks for one. Neighbours are processes that fill a core each. A quota
needs root, to make a control group. On a machine that others use, run it in a control group with
more shares than theirs, or every script is starved by neighbours, as it truly is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import measuring

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests" / "support"))

from standin_fixtures import StandIns  # noqa: E402

GPU = "power_limit = 400000\npower = 100000\nmemory = 16000000000\nused = 4000000000\n"
SPIN = "while True: pass"
GROUPS = Path("/sys/fs/cgroup")
COMMON = """
import ctypes, functools, math, sys, time
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset
START = time.monotonic()
MODEL = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
OPTIMIZER = torch.optim.SGD(MODEL.parameters(), lr=0.01)
def train_step(images, labels):
    loss = F.cross_entropy(MODEL(images), labels)
    OPTIMIZER.zero_grad()
    loss.backward()
    OPTIMIZER.step()
    return loss
def batch(size):
    return torch.randn(size, 64), torch.randint(10, (size,))
def until(seconds, began=START):
    if time.monotonic() - began > seconds:
        sys.exit()
class on_device:
    # Reading it waits for the queue of a GPU: blocked in the kernel, or spinning.
    def __init__(self, loss, spins=False):
        wait = functools.partial(ctypes.CDLL(None).usleep, 60000)
        if spins:
            wait = functools.partial(torch.mm, SQUARE, SQUARE)
        self.item = self.cpu = wait
SQUARE = torch.randn(1200, 1200)
"""


def answer(
    script: dict[str, Any], folder: Path, standins: StandIns, *, spy: bool
) -> dict[str, Any]:
    """What the doctor says of one script."""
    file = folder / f"{script['name'].replace('-', '_')}.py"
    file.write_text(COMMON + script["code"])
    env = dict(os.environ)
    if "gpu" in script:
        env = standins.environment(script["gpu"] + GPU, standins.nvml())
    python = os.environ["CUDADOCTOR_TEST_CPU"]
    words = [python, str(file)]
    if ranks := script.get("torchrun"):
        words = [python, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", str(file)]
    doctor = (
        "import sys; from cudadoctor.bench import script; from cudadoctor.__main__ import main\n"
    )
    doctor += "script.py_spy = lambda: None\n" if not spy else ""
    argv = [sys.executable, "-c", doctor + "main()", "bench", "--json"]
    output = folder / "report.json"
    group = _limited(script.get("quota"))
    # The first word joins the group, so that only the script is limited.
    if group:
        words = ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh", *words]
    neighbours = [
        subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(script.get("neighbours", 0))
    ]
    try:
        ran = subprocess.run(
            [*argv, f"--output={output}", "--minutes=1", "--stop", "--", *words],
            env={**env, "PYTHONPATH": f"{HERE.parent}{os.pathsep}{env.get('PYTHONPATH', '')}"},
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    finally:
        for process in neighbours:
            process.kill()
            process.wait()
        if group:
            group.rmdir()
    document = json.loads(output.read_text())
    lines = file.read_text().splitlines()
    wanted = [number for number, line in enumerate(lines, 1) if line.endswith("# HERE")]
    starved, line = document["starved"], document["starved"]["line"]
    found = {
        "by": starved["by"] if spy else starved["likely"] or starved["by"],
        "line": line and f"{line['line']}: {line['code']}",
        "share": line and round(line["share"], 2),
        "tip": starved["settings"][0]["text"] if starved["settings"] else None,
        "training_s": round(document["figures"]["judged_s"], 1),
        "looks": document["figures"]["stacks"]["looks"],
        "shares": {
            kind: round(share, 2) for kind, share in document["figures"]["stacks"]["shares"].items()
        },
    }
    right = {
        "answer": found["by"] == script["by"] and script.get("why", "") in starved["why"],
        "line": not wanted or bool(line and line["line"] in wanted),
        "tip": script.get("tip", "") in (found["tip"] or ""),
        "exit": script.get("code_of_exit", 0) in (ran.returncode, "any"),
    }
    if "-v" in sys.argv:
        print(json.dumps(document, indent=1), ran.stderr)
    return {"name": script["name"], "wanted": script["by"], **found, "right": right}


def _limited(cpus: float | None) -> Path | None:
    """A control group with a quota."""
    if cpus is None:
        return None
    own = Path("/proc/self/cgroup").read_text().splitlines()
    places = [line.rpartition(":")[2] for line in own if ":cpu:" in line or ":cpu,cpuacct:" in line]
    second = not places
    group = (GROUPS if second else GROUPS / f"cpu{places[0]}") / "cudadoctor-benchmark"
    group.mkdir()
    name, value = ("cpu.max", "{} 100000") if second else ("cpu.cfs_quota_us", "{}")
    (group / name).write_text(value.format(int(cpus * 100000)))
    return group


def main(words: list[str]) -> int:
    names = {word for word in words if not word.startswith("-")}
    fresh, spy = "--fresh" in words, "--only-proc" not in words
    name = "script_answers_fresh" if fresh else "script_answers"
    scripts = tomllib.loads((HERE / f"{name}.toml").read_text())["script"]
    python = os.environ["CUDADOCTOR_TEST_CPU"]
    rows = []
    with tempfile.TemporaryDirectory() as place:
        standins = StandIns(Path(place))
        for script in scripts:
            if names and script["name"] not in names:
                continue
            needs = script.get("needs", "torch")
            if subprocess.run([python, "-c", f"import {needs}"], check=False).returncode:
                print(f"{script['name']}: skipped, it needs {needs}")
                continue
            row = answer(script, Path(place), standins, spy=spy)
            rows.append(row)
            wrong = [what for what, held in row["right"].items() if not held]
            print(f"{row['name']}: {'right' if not wrong else f'WRONG {wrong}'}: {row}", flush=True)
    right = sum(all(row["right"].values()) for row in rows)
    print(f"{right} of {len(rows)} right")
    if not names and spy:
        held = right == len(rows)
        load = [round(load, 2) for load in os.getloadavg()]
        figures = {
            "held": held,
            "right": right,
            "of": len(rows),
            "load_average": load,
            "rows": rows,
        }
        measuring.saved(name, figures)
    return 0 if right == len(rows) else 1


if __name__ == "__main__":
    if find_spec("cudadoctor") is None:
        raise SystemExit("run it in the environment of cudadoctor, with the bench extra")
    raise SystemExit(main(sys.argv[1:]))
