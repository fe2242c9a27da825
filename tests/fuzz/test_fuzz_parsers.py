"""No outside text breaks a parser: real texts damaged in many ways, noise, and endless lines."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fuzz_apart import NOT_PARSERS
from fuzz_parser import Parser, run
from fuzz_registry import parsers
from fuzz_seeds import DAMAGES, MORE, binaries, stretched, texts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from share import share

ROOT = Path(__file__).parent.parent.parent / "cudadoctor"
QUIET = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def damaged() -> st.SearchStrategy[bytes]:
    """A real text with up to four damages, sometimes two texts in one."""
    real = st.sampled_from((*texts(), *binaries()))
    number = st.integers(0, 1 << 20)
    damage = st.tuples(st.sampled_from(DAMAGES), number, number)
    return st.builds(_with, real, st.lists(damage, max_size=4))


def _with(data: bytes, damages: list[tuple[Any, int, int]]) -> bytes:
    for damage, at, which in damages:
        data = damage(data, at, which)
    return data


def noise() -> st.SearchStrategy[bytes]:
    anything = st.text(max_size=300).map(lambda text: text.encode("utf-8", "surrogatepass"))
    return st.one_of(st.binary(max_size=300), anything)


ENDLESS = tuple(data for text in MORE[::6] for data in stretched(text.encode()))[::3]

NAMED = [pytest.param(parser, id=name) for name, parser in parsers().items()]


@pytest.mark.parametrize("parser", NAMED)
def test_a_damaged_text_gives_facts_or_the_documented_refusal(parser: Parser) -> None:
    @settings(QUIET, max_examples=12 if parser.slow else 50)
    @given(st.one_of(damaged(), damaged(), noise()))
    def holds(data: bytes) -> None:
        run(parser, data)

    holds()


@pytest.mark.parametrize("parser", NAMED)
def test_every_real_text_is_survived_as_it_is(parser: Parser) -> None:
    for data in texts()[:: 40 if parser.slow else 5]:
        run(parser, data)


@pytest.mark.parametrize("parser", NAMED)
def test_an_endless_line_comes_to_an_end(parser: Parser) -> None:
    """Not how fast: a parser that tries every way to share out 200,000 blanks never comes back."""
    for data in share(ENDLESS, 5 if parser.slow else 2, sum(map(len, parser.covers))):
        run(parser, data)


# --- that no parser is forgotten ------------------------------------------------------------------

_FIRST = {"text", "data", "line", "stdout", "raw", "document", "init", "marker", "specifier"}
_TYPES = {"str", "bytes"}


def outside(function: ast.FunctionDef) -> bool:
    """Whether a function looks like one that parses: by its name, or by what it takes first."""
    if function.name.startswith(("parse", "read_")):
        return True
    taken = [
        argument
        for argument in function.args.posonlyargs + function.args.args
        if argument.arg != "self"
    ]
    if not taken or taken[0].annotation is None or taken[0].arg not in _FIRST:
        return False
    return bool(_TYPES & set(re.findall(r"\w+", ast.unparse(taken[0].annotation))))


def candidates() -> Iterator[str]:
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
                continue
            # What runs inside of another interpreter is asked by the probes that are registered.
            if "inside" not in parts and outside(node):
                yield ".".join((*(part for part in parts if part != "__init__"), node.name))


def test_every_function_that_takes_outside_text_is_registered_or_says_why_not() -> None:
    covered = {name for parser in parsers().values() for name in parser.covers}
    packages = tuple(f"{name}." for name in covered if name.count(".") == 0)
    unknown = [
        name
        for name in candidates()
        if name not in covered and name not in NOT_PARSERS and not name.startswith(packages)
    ]
    assert not unknown, "register them in fuzz_registry.py"


def test_the_registry_names_functions_that_are_there() -> None:
    known = set(candidates())
    assert not set(NOT_PARSERS) - known
    assert all(reason for reason in NOT_PARSERS.values())
