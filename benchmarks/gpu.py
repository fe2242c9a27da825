"""Everything that only a GPU can show, in parts of at most 8 minutes that can be resumed.

    python benchmarks/gpu.py [--part NAME] [--python ENV/bin/python] [--output FILE]

Parts, the most valuable first: smoke, health, faults, bench, recipes, gains. Without --part they
follow each other while the time lasts; the next call goes on where this one stopped, as long as
GPU, driver, torch and cudadoctor are the same. Nothing is downloaded. Where cudadoctor's own
requirements are not installed, put them beside it first, with the same Python version:

    python -m pip install --target .cache/gpu click msgspec nvidia-ml-py packaging rich tomli

--stand-in lets a CPU play the GPU, to try the script itself; its results say so and are never
written to results/.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).resolve().parent / "results" / "gpu.json"
BESIDE = ROOT / ".cache" / "gpu"
RUNS = 20
PART_S = 480.0
LOOK = """\
import json, sys, torch
gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
json.dump({"torch": torch.__version__, "cuda": torch.version.cuda, "gpus": gpus,
           "python": sys.version.split()[0]}, sys.stdout)
"""
HOLD = """\
import sys, time, torch
free, _ = torch.cuda.mem_get_info()
kept = torch.empty(int(0.9 * free), dtype=torch.uint8, device="cuda")
print("held", flush=True)
time.sleep(float(sys.argv[1]))
"""
Json = dict[str, Any]


class Ended(NamedTuple):
    """A program that came to its end. code: 124 where it did not in time."""

    code: int
    out: str
    err: str
    seconds: float


class Machine(NamedTuple):
    """Where it runs. stand_in: a CPU plays the GPU. until: when to stop, by time.monotonic()."""

    python: str
    stand_in: bool
    runs: int
    until: float

    def run(self, argv: Sequence[str], limit_s: float = 300.0, **variables: str) -> Ended:
        """Run a program with what is left of the time at most; all its children end with it."""
        env = {**os.environ, **variables}
        began = time.monotonic()
        limit_s = max(1.0, min(limit_s, self.until - began))
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        child = subprocess.Popen(argv, text=True, env=env, start_new_session=True, **pipes)  # type: ignore[call-overload]
        try:
            out, err = child.communicate(timeout=limit_s)
            code = child.returncode
        except subprocess.TimeoutExpired:
            # Asked first: cudadoctor ends its own children, which have sessions of their own.
            for number in (signal.SIGTERM, signal.SIGKILL):
                with suppress(OSError, subprocess.TimeoutExpired):
                    os.killpg(child.pid, number)
                    child.wait(5.0)
            out, err = child.communicate()
            code = 124
        return Ended(code, out, err, round(time.monotonic() - began, 2))

    def doctor(self, *words: str, limit_s: float = 300.0, **variables: str) -> Ended:
        """Run cudadoctor on the examined Python."""
        path = os.pathsep.join(filter(None, [str(ROOT), str(BESIDE), os.environ.get("PYTHONPATH")]))
        argv = [sys.executable, "-m", "cudadoctor", *words, "--python", self.python]
        return self.run(argv, limit_s, PYTHONPATH=path, **variables)

    def health(self, *words: str) -> Ended:
        """`health --json`, of a GPU or of two that the CPU plays."""
        played = ("--plant", "pretend=2") if self.stand_in else ()
        return self.doctor("health", "--json", *played, *words)

    @property
    def device(self) -> tuple[str, ...]:
        return ("--device", "cpu") if self.stand_in else ()


Unit = Callable[[], Json]


# --- parts: names of units -> what each measures; a name that is there already is not run again ---


def smoke(machine: Machine) -> Iterator[tuple[str, Unit]]:
    """The training step, the check, and false alarms of many checks."""

    def step() -> Json:
        ended = machine.doctor("smoke", "--json", "--torch-compile", *machine.device)
        return {**_brief(ended), "smoke": _loaded(ended).get("smoke")}

    def check() -> Json:
        ended = machine.doctor("check", "--json", *machine.device)
        document = _loaded(ended)
        findings = [
            {name: finding[name] for name in ("cause", "severity", "confidence", "title")}
            for finding in document.get("findings", ())
        ]
        verdict = {name: document.get(name) for name in ("verdict", "primary", "undecided")}
        return {**_brief(ended), **verdict, "findings": findings}

    yield "smoke", step
    yield from ((f"check {number + 1}", check) for number in range(machine.runs))


def health(machine: Machine) -> Iterator[tuple[str, Unit]]:
    """Health again and again: anomalies on a sound machine are false alarms."""

    def once() -> Json:
        ended = machine.health()
        document = _loaded(ended)
        names = ("verdict", "anomalies", "gpus", "speeds", "troubles", "seconds")
        return {**_brief(ended), **{name: document.get(name) for name in names}}

    yield from ((f"health {number + 1}", once) for number in range(machine.runs))


def faults(machine: Machine) -> Iterator[tuple[str, Unit]]:
    """Faults that need no root: each must be named."""

    def named(cause: str, *words: str, **variables: str) -> Json:
        ended = machine.doctor("check", "--json", *words, limit_s=120.0, **variables)
        document = _loaded(ended)
        found = [finding["cause"] for finding in document.get("findings", ())]
        found += [other["cause"] for other in document.get("candidates") or ()]
        verdict = document.get("verdict")
        return {**_brief(ended), "verdict": verdict, "found": found, "named": cause in found}

    def odd(plant: str, kind: str) -> Json:
        ended = machine.health("--plant", f"plant={plant}", "--plant", "limit=5")
        kinds = [anomaly["kind"] for anomaly in _loaded(ended).get("anomalies", ())]
        return {**_brief(ended), "found": kinds, "named": kind in kinds}

    def held() -> Json:
        argv = [machine.python, "-c", HOLD, "240"]
        holder = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        try:
            assert holder.stdout is not None
            holder.stdout.readline()
            checked = machine.doctor("check", "--json")
            measured = machine.health()
        finally:
            holder.kill()
        stages = (_loaded(checked).get("smoke") or {}).get("stages", ())
        left = [stage["name"] for stage in stages if stage["status"] == "skipped"]
        skipped = _loaded(measured).get("skipped", ())
        return {**_brief(checked), "left alone": left, "skipped": skipped, "named": bool(skipped)}

    hidden = {"no GPU visible": "", "a GPU that is not there": "99", "index -1": "-1"}
    if not machine.stand_in:
        for name, value in hidden.items():
            cause = "visible-devices-hides-gpu"
            yield name, partial(named, cause, CUDA_VISIBLE_DEVICES=value)
        yield "memory in use", held
    yield (
        "CUDA_HOME leads nowhere",
        lambda: named("toolkit-env-wrong", *machine.device, CUDA_HOME="/nowhere/at/all"),
    )
    yield "wrong results", lambda: odd("wrong:0", "wrong-results")
    yield "damaged copies", lambda: odd("torn:0", "damaged-data")
    if machine.stand_in:
        yield "straggler", lambda: odd("slow:1", "straggler")
        yield "hang", lambda: odd("hang:1", "lost")


def bench(machine: Machine) -> Iterator[tuple[str, Unit]]:
    """What each technique brings, one workload a unit."""

    def workload(name: str) -> Json:
        minutes = "0.5" if machine.stand_in else "2.4"
        words = ("--scale", "tiny") if machine.stand_in else ()
        given = ("bench", "--json", "--workload", name, "--minutes", minutes, *words)
        ended = machine.doctor(*given, *machine.device)
        return {**_brief(ended), "bench": _loaded(ended)}

    for name in ("cnn", "encoder", "decoder"):
        yield name, partial(workload, name)


def recipes(machine: Machine) -> Iterator[tuple[str, Unit]]:
    """Every recipe with its own proof."""

    def recipe(path: Path) -> Json:
        words = ("--device", "cpu", "--steps", "40") if machine.stand_in else ()
        ended = machine.run([machine.python, str(path), *words], 90.0)
        return {**_brief(ended), "lines": ended.out.splitlines()[-6:]}

    for path in sorted((ROOT / "recipes" / "train").glob("*.py")):
        yield path.stem, partial(recipe, path)


PARTS: dict[str, Callable[[Machine], Iterator[tuple[str, Unit]]]] = {
    "smoke": smoke,
    "health": health,
    "faults": faults,
    "bench": bench,
    "recipes": recipes,
}


def gains(parts: Mapping[str, Mapping[str, Json]]) -> list[Json]:
    """A row for each technique and workload, of what `bench` measured."""
    rows = []
    for measured in parts.get("bench", {}).values():
        for workload in measured["bench"].get("workloads", ()):
            for gain in workload.get("alone", ()):
                row = {"workload": workload["name"], "technique": gain["technique"]}
                rows.append(
                    row | {name: gain.get(name) for name in ("verdict", "ratio", "low", "high")}
                )
    return rows


def summary(parts: Mapping[str, Mapping[str, Json]]) -> Json:
    """What is said of a part in one line."""
    checks = [unit for name, unit in parts.get("smoke", {}).items() if name.startswith("check")]
    alarms = [
        finding["cause"]
        for unit in checks
        for finding in unit["findings"]
        if finding["severity"] in ("error", "warning")
    ]
    runs = list(parts.get("health", {}).values())
    odd = [anomaly["kind"] for unit in runs for anomaly in unit["anomalies"] or ()]
    planted = parts.get("faults", {})
    proofs = parts.get("recipes", {})
    return {
        "checks": len(checks),
        "checks_with_other_verdicts": sum(unit["verdict"] != "healthy" for unit in checks),
        "alarms_of_checks": {cause: alarms.count(cause) for cause in sorted(set(alarms))},
        "health_runs": len(runs),
        "alarms_of_health": {kind: odd.count(kind) for kind in sorted(set(odd))},
        "health_median_s": statistics.median(unit["wall_s"] for unit in runs) if runs else None,
        "faults_named": f"{sum(unit['named'] for unit in planted.values())} of {len(planted)}",
        "recipes_passed": f"{sum(not unit['code'] for unit in proofs.values())} of {len(proofs)}",
    }


# --- how it is kept -------------------------------------------------------------------------------


def _brief(ended: Ended) -> Json:
    said = {"code": ended.code, "wall_s": ended.seconds}
    return said | ({"stderr": ended.err[-600:]} if ended.err.strip() else {})


def _loaded(ended: Ended) -> Json:
    try:
        found = json.loads(ended.out)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def about(machine: Machine) -> Json:
    """What the figures belong to. Ends the program where there is no GPU and none is played."""
    looked = machine.run([machine.python, "-c", LOOK], 120.0)
    found = _loaded(looked)
    if not found:
        raise SystemExit(
            f"gpu.py: {machine.python} has no torch that can be used: {looked.err[-300:]}"
        )
    if not found["gpus"] and not machine.stand_in:
        raise SystemExit("gpu.py: torch sees no GPU; --stand-in tries the script with a CPU")
    smi = "nvidia-smi --query-gpu=driver_version --format=csv,noheader"
    driver = None
    with suppress(OSError):
        driver = next(iter(machine.run(smi.split(), 60.0).out.split()), None)
    return found | {"driver": driver, "stand_in": machine.stand_in}


def main() -> int:
    """Run what is not there yet; 0 if all of it is, 1 if the time was over before."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--part", choices=[*PARTS, "gains"])
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--output", type=Path, default=None)
    parser.add_argument("--minutes", type=float, default=PART_S / 60)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--stand-in", action="store_true")
    asked = parser.parse_args()
    if asked.stand_in and asked.output is None:
        parser.error("--stand-in needs --output: its results are no results of a GPU")
    output: Path = asked.output or RESULTS
    until = time.monotonic() + 60.0 * asked.minutes
    machine = Machine(asked.python, asked.stand_in, asked.runs, until)
    described = about(machine)
    known = next((path for path in (output, RESULTS) if path.exists()), None)
    document: Json = json.loads(known.read_text(encoding="utf-8")) if known else {}
    if document.get("machine") != described:
        document = {"machine": described, "parts": {}}
    complete = True
    for name in [asked.part] if asked.part else [*PARTS]:
        if name in PARTS:
            complete = _continued(name, machine, document, output) and complete
    document["gains"] = gains(document["parts"])
    _kept(document, output)
    print(json.dumps({"complete": complete, **document["summary"]}, indent=1))
    return 0 if complete else 1


def _continued(name: str, machine: Machine, document: Json, output: Path) -> bool:
    """Run the units of a part that are missing, and keep each at once; whether all are there."""
    done = document["parts"].setdefault(name, {})
    for unit, measure in PARTS[name](machine):
        if unit in done:
            continue
        if time.monotonic() > machine.until - 5:
            return False
        print(f"{name}: {unit}", file=sys.stderr, flush=True)
        found = measure()
        if found["code"] == 124 and time.monotonic() > machine.until - 1:
            return False  # cut off by the end of the time, not by a limit of its own
        done[unit] = {"date": time.strftime("%Y-%m-%d"), **found}
        _kept(document, output)
    return True


def _kept(document: Json, output: Path) -> None:
    """Written beside it and renamed: a call that is cut off leaves what was there."""
    document["summary"] = summary(document["parts"])
    output.parent.mkdir(parents=True, exist_ok=True)
    made = output.with_suffix(".tmp")
    made.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    made.replace(output)


if __name__ == "__main__":
    raise SystemExit(main())
