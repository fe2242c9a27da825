"""Do the tests see a fault? Places of the judging code are changed, one at a time.

Run: python benchmarks/mutants.py [--places 500] [--seed 12] [--only FILE] [--survivors]
     [--tests FILE ...] [--all-tests]
Each mutant runs in a fork of one test session, on the tests that reach the changed place: those
that go deepest into its function first, one of each way through it in turn. A mutant that nothing
can tell from the original stands with its reason in mutants_equivalent.toml.
"""

from __future__ import annotations

import argparse
import ast
import functools
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import types
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import measuring
import msgspec
import pytest
from _pytest.runner import runtestprotocol
from mutations import ROOT, Mutant, Place, Source, mutants

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from cudadoctor.model.rule import Rule
from cudadoctor.rules.registry import RULES

HERE = Path(__file__).parent
TARGETS = ("cudadoctor/rules/**/*.py", "cudadoctor/probes/target.py")
TESTS = (
    *("test_scenarios.py", "test_judged.py", "test_diagnose.py", "test_rules_*.py"),
    *("test_raw_driver*.py", "test_raw_torch_build.py", "test_raw_torch_windows.py"),
    *("test_raw_torch_toolkit.py", "test_user_damage.py", "test_user_interpreter.py"),
    *("test_user_remedies.py", "test_user_visible.py", "reports", "test_plan_scenarios.py"),
    *("test_resolver_target.py", "test_gallery.py", "test_probe_target.py", "test_unknowns.py"),
    *("test_builds_wishes.py", "test_builds_mixed.py", "test_healthy.py"),
)
"""Tests that judge in this process; a child's lines are not seen from here."""
_ELSEWHERE = frozenset({"broken", "sound"})
"""Fixtures of tests that judge in another process."""
SLOWEST_TEST_S = 4.0
TESTS_S = 60.0
"""A mutant's tests together, as measured while they are traced: up to ten times their time."""
ANSWER_S = 120.0
EQUIVALENT = HERE / "mutants_equivalent.toml"

# --- which tests reach it ----------------------------------------------------------------------


class Reached(NamedTuple):
    """What a test ran of the targets: of each file the lines, as bits. seconds: its time."""

    lines: dict[str, int]
    seconds: float


class Tracer:
    """Notes the lines of the targets that run."""

    def __init__(self, files: dict[str, str]) -> None:
        self.files = files
        self.seen: set[tuple[str, int]] = set()

    def __enter__(self) -> Tracer:
        self.seen.clear()
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _called(self, frame: types.FrameType, _event: str, _arg: object) -> Any:
        return self._ran if frame.f_code.co_filename in self.files else None

    def _ran(self, frame: types.FrameType, event: str, _arg: object) -> Any:
        if event == "line":
            self.seen.add((frame.f_code.co_filename, frame.f_lineno))
        return self._ran

    def lines(self) -> dict[str, int]:
        found: dict[str, int] = defaultdict(int)
        for path, line in self.seen:
            found[self.files[path]] |= 1 << line
        return dict(found)


def bits(first: int, last: int) -> int:
    return (1 << (last + 1)) - (1 << first)


class Tests:
    """The tests of a session, by the lines that they reach."""

    def __init__(self, items: list[pytest.Item], sources: dict[str, Source]) -> None:
        self.items = items
        self.sources = sources
        self.reached: dict[int, Reached] = {}

    def look(self) -> None:
        """Run each test once on unchanged code. A test that fails here is not used later."""
        tracer = Tracer({str(source.path): source.file for source in self.sources.values()})
        for n, item in enumerate(self.items):
            # A next test, even after the last one, keeps the fixtures of the session alive.
            following = self.items[(n + 1) % len(self.items)]
            started = time.perf_counter()
            with tracer:
                reports = runtestprotocol(item, log=False, nextitem=following)
            seconds = time.perf_counter() - started
            if any(report.failed for report in reports):
                print(f"fails unchanged, left out: {item.nodeid}")
            elif seconds < SLOWEST_TEST_S:
                self.reached[n] = Reached(tracer.lines(), seconds)

    def for_mutant(self, mutant: Mutant, limit_s: float) -> list[pytest.Item]:
        """The tests that reach a place, the deepest first, alternating between the paths to it."""
        file, lines = mutant.place.file, self._lines(mutant.place)
        function = mutant.place.function
        around = bits(function.lineno, function.end_lineno or 0) if function else -1
        of_a_rule = function is not None and mutant.place.header is function
        named = f"[{function.name.replace('_', '-')}]" if function and of_a_rule else ""
        ways: dict[int, list[int]] = defaultdict(list)
        for n, reached in self.reached.items():
            about = named and named in self.items[n].nodeid
            if about or any(reached.lines.get(path, 0) & some for path, some in lines.items()):
                ways[reached.lines.get(file, 0) & around].append(n)
        turns = [
            (turn, -way.bit_count() if way >= 0 else 0, n)
            for way, some in ways.items()
            for turn, n in enumerate(sorted(some, key=lambda n: self.reached[n].seconds))
        ]
        chosen, left_s = [], limit_s
        for _, _, n in sorted(turns):
            left_s -= self.reached[n].seconds
            if left_s < 0:
                break
            chosen.append(self.items[n])
        return chosen

    def _lines(self, place: Place) -> dict[str, int]:
        """The lines that execute the place: its own, or those that use the constant it defines."""
        function, header = place.function, place.header
        if function is not None and header is not function:
            end = header.end_lineno or header.lineno
            body = getattr(header, "body", None)
            if isinstance(body, list) and body:
                end = body[0].lineno - 1
            return {place.file: bits(header.lineno, max(end, header.lineno))}
        if function is not None:  # a default or the arguments of its decorator
            return {place.file: bits(function.body[0].lineno, function.end_lineno or 0)}
        names = {node.id for node in ast.walk(header) if isinstance(node, ast.Name)}
        if not isinstance(header, ast.ClassDef):
            stored = (node for node in ast.walk(header) if isinstance(node, ast.Name))
            names = {node.id for node in stored if isinstance(node.ctx, ast.Store)}
        found: dict[str, int] = defaultdict(int)
        for source in self.sources.values():
            for node in ast.walk(source.tree):
                if (
                    isinstance(node, ast.Name)
                    and node.id in names
                    and isinstance(node.ctx, ast.Load)
                ):
                    found[source.file] |= 1 << node.lineno
        return found


# --- one mutant --------------------------------------------------------------------------------


def put_in(source: Source, tree: ast.Module) -> None:
    """Make the running module the changed one: its functions, constants and rules, in place."""
    old = importlib.import_module(source.name)
    new = types.ModuleType(source.name)
    new.__dict__.update(__file__=str(source.path), __package__=old.__package__)
    if hasattr(old, "__path__"):
        new.__path__ = old.__path__
    sys.modules[source.name] = new  # for what looks its own module up while it is made
    try:
        exec(compile(tree, str(source.path), "exec"), new.__dict__)
    finally:
        sys.modules[source.name] = old
    for name, value in vars(new).items():
        was = vars(old).get(name)
        if not name.startswith("__") and was is not None:
            _put(name, was, value)


def _put(name: str, was: Any, value: Any) -> None:
    if isinstance(was, Rule) and isinstance(value, Rule):
        _put(name, function_of(was), function_of(value))
        # The registry holds copies, which know what explains them.
        for rule in (was, *(rule for rule in RULES if rule.name == was.name)):
            for field in {*was.__struct_fields__} - {"judge", "yields_to"}:
                msgspec.structs.force_setattr(rule, field, getattr(value, field))
    elif isinstance(was, types.FunctionType):
        if isinstance(value, types.FunctionType):
            was.__code__, was.__defaults__ = value.__code__, value.__defaults__
            was.__kwdefaults__ = value.__kwdefaults__
    elif isinstance(was, type):
        for inner, member in vars(was).items():
            _put(inner, member, vars(value).get(inner))
    elif isinstance(was, property):
        _put(name, was.fget, getattr(value, "fget", None))
    elif isinstance(was, (staticmethod, classmethod)) or hasattr(was, "__wrapped__"):
        _put(name, was.__wrapped__, getattr(value, "__wrapped__", None))
    elif not isinstance(was, types.ModuleType) and name != "RULES" and repr(was) != repr(value):
        for module in list(sys.modules.values()):
            if getattr(module, "__dict__", {}).get(name) is was:
                setattr(module, name, value)


def function_of(changed: Rule) -> Any:
    """The function that a rule was made of: its judge holds it, to hand over what it takes."""
    (held,) = changed.judge.__closure__ or ()
    return held.cell_contents


def remembered() -> Iterator[Any]:
    """Caches, except those of the tables, that may hold results of the unchanged code."""
    for found in gc.get_objects():
        if isinstance(found, _Cached) and not found.__module__.startswith("cudadoctor.knowledge"):
            yield found


_Cached: Any = type(functools.lru_cache(len))


def killed_by(
    source: Source, tree: ast.Module, items: list[pytest.Item], caches: list[Any]
) -> str | None:
    """The test that detects the change, None if all pass; runs in its own process."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        quiet = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(quiet, stream)
        answer = b""
        try:
            put_in(source, tree)
            for cache in caches:
                cache.cache_clear()
            for item, following in zip(items, (*items[1:], items[0]), strict=True):
                reports = runtestprotocol(item, log=False, nextitem=following)
                if any(report.failed for report in reports):
                    answer = item.nodeid.encode()
                    break
        except BaseException as error:
            answer = f"{type(error).__name__} in {source.name}".encode()
        os.write(writing, answer or b"-")
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answers:
        word = _answer(answers.fileno(), pid)
    return None if word == "-" else word or "no answer"


def _answer(reading: int, pid: int) -> str:
    import select

    try:
        ready, _, _ = select.select([reading], [], [], ANSWER_S)
        return os.read(reading, 65536).decode() if ready else f"no answer in {ANSWER_S:.0f} s"
    finally:
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _fixtures(item: pytest.Item) -> list[str]:
    return getattr(item, "fixturenames", [])


class Runner:
    """In the place of pytest's own loop over the tests."""

    def __init__(self, wanted: argparse.Namespace, sources: dict[str, Source]) -> None:
        self.wanted, self.sources = wanted, sources
        self.figures: dict[str, Any] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        sample = mutants(self.sources, self.wanted.seed, self.wanted.places)
        before: dict[str, Any] = {}
        if self.wanted.only:
            sample = [mutant for mutant in sample if self.wanted.only in mutant.where]
        elif self.wanted.survivors:
            before = json.loads((measuring.RESULTS / "mutants.json").read_text(encoding="utf-8"))
            sample = [mutant for mutant in sample if described(mutant) in before["survivors"]]
        items = [item for item in session.items if not _ELSEWHERE & set(_fixtures(item))]
        tests = Tests(items, self.sources)
        started = time.monotonic()
        tests.look()
        reach, seconds = (
            sum(bool(reached.lines) for reached in tests.reached.values()),
            time.monotonic(),
        )
        print(f"{reach} of {len(items)} tests reach the targets ({seconds - started:.0f} s)")
        print(f"{len(sample)} places are changed", flush=True)
        gc.collect()
        caches = list(remembered())  # frozen objects are no longer listed
        gc.freeze()
        self.figures = _figures(self.wanted, before, *self._all(sample, tests, caches))
        return True

    def _all(
        self, sample: list[Mutant], tests: Tests, caches: list[Any]
    ) -> tuple[int, int, list[Mutant]]:
        """How many are killed, how many are known to be equivalent, and those that survive."""
        known = {
            (row["file"], row["was"], row["now"]): row["reason"]
            for row in tomllib.loads(EQUIVALENT.read_text(encoding="utf-8")).get("mutant", ())
        }
        survived: list[Mutant] = []
        equivalent, killed = 0, 0
        limit_s = 1e9 if self.wanted.all_tests else TESTS_S
        for n, mutant in enumerate(sample):
            source = self.sources[mutant.place.file]
            items = tests.for_mutant(mutant, limit_s)
            tree, _ = source.mutated(mutant.place, mutant.kind)
            if mutant.key in known:
                equivalent += 1
            elif items and killed_by(source, tree, items, caches):
                killed += 1
            else:
                survived.append(mutant)
                print(
                    f"{mutant.where}  ({mutant.kind}; {len(items)} tests)\n{mutant.diff()}",
                    flush=True,
                )
            if n % 50 == 49:
                print(f"... {n + 1}: {killed} killed, {len(survived)} survived", flush=True)
        return killed, equivalent, survived


def described(mutant: Mutant) -> str:
    return f"{mutant.where}: {mutant.diff().strip()}"


def _figures(
    wanted: argparse.Namespace,
    before: dict[str, Any],
    killed: int,
    equivalent: int,
    survived: list[Mutant],
) -> dict[str, Any]:
    """before: the figures of the run whose survivors were tried again; its kills still count."""
    killed, equivalent = killed + before.get("killed", 0), equivalent + before.get("equivalent", 0)
    counted = killed + len(survived)
    return {
        "seed": wanted.seed,
        "places": counted + equivalent,
        "killed": killed,
        "survived": len(survived),
        "equivalent": equivalent,
        "score": round(killed / counted, 4) if counted else None,
        "survivors": [described(mutant) for mutant in survived],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--places", type=int, default=500)
    parser.add_argument("--seed", type=int, default=12)
    parser.add_argument("--only", help="change only those of the sample whose FILE:LINE holds this")
    words = "only those that survived the run whose result is kept; tests were only added since"
    parser.add_argument("--survivors", action="store_true", help=words)
    parser.add_argument("--tests", nargs="+", default=TESTS, help="files below tests/, patterns")
    parser.add_argument("--all-tests", action="store_true", help="no limit of time for a mutant")
    wanted = parser.parse_args()
    files = sorted({path for pattern in TARGETS for path in ROOT.glob(pattern)})
    sources = {source.file: source for source in map(Source, files)}
    modules = sorted(
        {str(path) for pattern in wanted.tests for path in (ROOT / "tests").rglob(pattern)}
    )
    runner = Runner(wanted, sources)
    os.chdir(ROOT)
    options = ["-p", "no:cacheprovider", "-o", "timeout=0"]
    code = pytest.main([*options, "--hypothesis-seed=0", "-s", *modules], plugins=[runner])
    if not runner.figures:
        return int(code) or 1
    commit = subprocess.run(
        ("git", "rev-parse", "--short", "HEAD"), capture_output=True, text=True, check=False
    ).stdout.strip()
    if wanted.only:
        print({name: value for name, value in runner.figures.items() if name != "survivors"})
    else:
        measuring.saved("mutants", {"commit": commit, **runner.figures})
    return 0


if __name__ == "__main__":
    sys.exit(main())
