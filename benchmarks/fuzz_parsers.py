"""A coverage-guided fuzzer (atheris) over every parser of outside text, each in its own process.

Run: python benchmarks/fuzz_parsers.py [INPUTS_IN_ALL] [NAME_OF_A_PARSER]
Needs the extra `fuzz`. The parsers and the texts to begin with are those of the tests: see
fuzz_registry.py and fuzz_seeds.py in tests/support. Bars: no exception, no crash, no input of 30 s.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import measuring

TESTS = Path(__file__).parent.parent / "tests" / "support"
sys.path.insert(0, str(TESTS))

INPUTS = 1_050_000
SLOW_WEIGHT = 0.25
"""Of the inputs of the others, what a parser gets that reads a whole host."""
MOST_BYTES = 4096
SLOWEST_S = 30
SIDE_BY_SIDE = 2
MOST_FINDS = 50


def main(inputs: int, only: str) -> int:
    from fuzz_registry import parsers

    chosen = {name: parser for name, parser in parsers().items() if only in name}
    weights = {name: SLOW_WEIGHT if parser.slow else 1.0 for name, parser in chosen.items()}
    share = inputs / sum(weights.values())
    started = time.monotonic()
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        jobs = {
            name: pool.submit(_fuzzed, name, -(-int(share * weight) // 1) + 1)
            for name, weight in weights.items()
        }
        results = {name: job.result() for name, job in jobs.items()}
    seconds = time.monotonic() - started
    return _saved(results, seconds, whole=not only)


def _saved(results: dict[str, dict[str, Any]], seconds: float, *, whole: bool) -> int:
    for name, result in results.items():
        print(f"{name:40} {result['inputs']:>9,} {result['seconds']:>7.1f} s  {result['ended']}")
        for find in result["finds"]:
            print(f"    {find['error']} at {find['where']}: {find['input']}")
    finds = sum(len(result["finds"]) for result in results.values())
    badly = sum(result["ended"] != "well" for result in results.values())
    figures = {
        "bars": {"inputs": 1_000_000, "exceptions": 0, "ended_badly": 0},
        "inputs": sum(result["inputs"] for result in results.values()),
        "parsers": len(results),
        "seconds": round(seconds, 1),
        "side_by_side": SIDE_BY_SIDE,
        "exceptions": finds,
        "ended_badly": badly,
        "per_parser": results,
    }
    if whole:
        measuring.saved("fuzz_parsers", figures)
    print(f"{figures['inputs']:,} inputs, {finds} exceptions, {badly} ended badly, {seconds:.0f} s")
    return 1 if finds or badly else 0


def _fuzzed(name: str, runs: int) -> dict[str, Any]:
    """Fuzz one parser in its own process, so that a crash or a hang is attributed to it."""
    with tempfile.TemporaryDirectory() as folder:
        tally = Path(folder) / "told.json"
        argv = [sys.executable, __file__, "--child", name, str(runs), folder]
        ended = "well"
        started = time.monotonic()
        with (Path(folder) / "log").open("wb") as log:
            code = subprocess.run(argv, stdout=log, stderr=log, cwd=folder, check=False).returncode
        if code:
            words = (Path(folder) / "log").read_text("utf-8", "replace").splitlines()
            known = [line for line in words if "ERROR" in line or "SUMMARY" in line] or words[-3:]
            ended = f"status {code}: {' | '.join(known)[:300]}"
            left = next(iter(Path(folder).glob("*-*")), None)  # libFuzzer keeps the input
            ended += f"; input {left.read_bytes()!r}" if left else ""
        found = json.loads(tally.read_text()) if tally.exists() else {"inputs": 0, "finds": []}
    return {**found, "seconds": round(time.monotonic() - started, 1), "ended": ended}


# --- in the child -----------------------------------------------------------------------------


def child(name: str, runs: int, folder: str) -> None:
    """Fuzz one parser. libFuzzer ends the process, so the count is written as it grows."""
    import atheris

    with atheris.instrument_imports(include=["cudadoctor"], enable_loader_override=False):
        import fuzz_parser
        import fuzz_registry
    import fuzz_seeds

    parser = fuzz_registry.parsers()[name]
    tally = _Told(Path(folder) / "told.json", runs)

    def one_input(data: bytes) -> None:
        try:
            fuzz_parser.run(parser, data)
        except Exception as error:
            tally.find(error, data)
        tally.another()

    def mutated(data: bytes, most: int, seed: int) -> bytes:
        """Half of the inputs are damaged as libFuzzer does, half as texts break."""
        if seed % 2:
            return bytes(atheris.Mutate(data, most))
        damage = fuzz_seeds.DAMAGES[seed // 2 % len(fuzz_seeds.DAMAGES)]
        return damage(bytes(data), seed // 7 % (1 << 20), seed // 11)[:most]

    corpus = Path(folder) / "corpus"
    corpus.mkdir()
    for number, text in enumerate((*fuzz_seeds.texts(), *fuzz_seeds.binaries())):
        (corpus / f"{number:05}").write_bytes(text[:MOST_BYTES])
    options = [
        f"-runs={runs}",
        f"-max_len={MOST_BYTES}",
        f"-timeout={SLOWEST_S}",
        "-rss_limit_mb=4096",
        "-seed=1",
        "-verbosity=0",
    ]
    atheris.Setup([sys.argv[0], *options, str(corpus)], one_input, custom_mutator=mutated)
    atheris.Fuzz()


class _Told:
    """What the child tells: how many inputs, and each kind of exception once."""

    def __init__(self, path: Path, runs: int) -> None:
        self.path = path
        self.runs = runs
        self.inputs = 0
        self.finds: dict[tuple[str, str], dict[str, str]] = {}

    def another(self) -> None:
        self.inputs += 1
        if self.inputs % 500 == 0 or self.inputs >= self.runs:
            self._write()

    def find(self, error: Exception, data: bytes) -> None:
        frames = traceback.extract_tb(error.__traceback__)
        own = [
            frame for frame in frames if "cudadoctor" in Path(frame.filename).parts[-4:]
        ] or frames
        where = f"{Path(own[-1].filename).name}:{own[-1].lineno}"
        key = type(error).__name__, where
        if key not in self.finds and len(self.finds) < MOST_FINDS:
            words = f"{type(error).__name__}: {error}"[:200]
            self.finds[key] = {"error": words, "where": where, "input": repr(data[:400])}
            self._write()

    def _write(self) -> None:
        text = json.dumps({"inputs": self.inputs, "finds": list(self.finds.values())})
        new = self.path.with_suffix(".new")
        new.write_text(text)
        os.replace(new, self.path)  # noqa: PTH105 - a reader sees the old or the new


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        number = int(sys.argv[1]) if len(sys.argv) > 1 else INPUTS
        raise SystemExit(main(number, sys.argv[2] if len(sys.argv) > 2 else ""))
