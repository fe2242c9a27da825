"""The mutants that the tests are measured with: what is changed, and what is not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "benchmarks"))

from mutants import function_of
from mutations import ROOT, Source, mutants, shown

from cudadoctor.rules.registry import RULES


def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Source:
    monkeypatch.setattr("mutations.ROOT", tmp_path)
    path = tmp_path / "one.py"
    path.write_text(text)
    return Source(path)


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("x = a < 3", {"x = a <= 3", "x = a > 3", "x = a < 4", "x = a < 2"}),
        ("x = a and b", {"x = a or b", "x = b", "x = a"}),
        ("x = not a", {"x = a"}),
        ("x = a is None", {"x = a is not None"}),
        (
            "x = ('a', 'b')",
            {"x = ('b',)", "x = ('a',)", "x = ('a-changed', 'b')", "x = ('a', 'b-changed')"},
        ),
        ("if a:\n    b()", {"if True:", "if False:"}),
        ("def f():\n    return False", {"return True"}),
        ("def f():\n    return a", {"return None"}),
        ("x = [a for a in b if c]", {"x = [a for a in b]", "x = [a for a in b if False]"}),
        ("title = 'a'", set()),
        ("by_hand(text='a')", set()),
        ("x = 'A sentence of many words.'", set()),
        ("x: Literal['a', 'b'] = y", set()),
        ("RULES = (a, b)", set()),
    ],
)
def test_a_place_is_changed_in_each_of_its_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, changes: set[str]
) -> None:
    source = made(tmp_path, monkeypatch, text)
    found = set()
    for place in source.places:
        for kind in place.kinds:
            tree, header = source.mutated(place, kind)
            compile(tree, "one.py", "exec")
            found.add(shown(header))
    assert found == changes


def test_a_sample_is_the_same_for_the_same_seed() -> None:
    path = ROOT / "cudadoctor" / "rules" / "diagnose.py"
    first, again, other = (
        [mutant.key for mutant in mutants({"cudadoctor/rules/diagnose.py": Source(path)}, seed, 20)]
        for seed in (1, 1, 2)
    )
    assert first == again != other
    assert all(was != now for _, was, now in first)


def test_a_mutant_reaches_the_function_of_every_rule() -> None:
    for rule in RULES:
        assert function_of(rule).__name__.replace("_", "-") == rule.name
