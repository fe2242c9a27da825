"""No outside text breaks a parser: real texts damaged in many ways, noise, and endless lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fuzz_registry import Parser, parsers, run
from fuzz_seeds import DAMAGES, binaries, texts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).parent.parent / "cudadoctor"
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
    for one, at, which in damages:
        data = one(data, at, which)
    return data


def noise() -> st.SearchStrategy[bytes]:
    anything = st.text(max_size=300).map(lambda text: text.encode("utf-8", "surrogatepass"))
    return st.one_of(st.binary(max_size=300), anything)


NAMED = [pytest.param(one, id=name) for name, one in parsers().items()]


@pytest.mark.parametrize("parser", NAMED)
def test_a_damaged_text_gives_facts_or_the_documented_refusal(parser: Parser) -> None:
    @settings(QUIET, max_examples=12 if parser.host else 50)
    @given(st.one_of(damaged(), damaged(), noise()))
    def holds(data: bytes) -> None:
        run(parser, data)

    holds()


@pytest.mark.parametrize("parser", NAMED)
def test_every_real_text_is_survived_as_it_is(parser: Parser) -> None:
    for data in texts()[:: 40 if parser.host else 5]:
        run(parser, data)
