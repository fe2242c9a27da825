"""A harmless line in a report changes nothing of what the rules say of it.

benchmarks/mutated.py counts how often it moves the ranking by words.
"""

from __future__ import annotations

import random
import sys
from functools import cache
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "benchmarks"))

from mutated import LINES, Report, made, mutants, told_by_rules

EACH = 5
"""So many reports are drawn for each line."""
LEFT = [(kind, line) for kind, lines in LINES.items() for line in lines]


@cache
def reports() -> tuple[Report, ...]:
    return tuple(made(told_by_rules))


@pytest.mark.parametrize("line", [line for _, line in LEFT])
def test_the_answer_stays(line: str) -> None:
    dice = random.Random(line)
    changed = [
        (report.name, where, said)
        for report in dice.sample(reports(), EACH)
        for where, text in mutants(report, line, dice)
        if (said := told_by_rules(text)) != report.said
    ]
    assert changed == []


def test_a_line_that_says_something_does_move_an_answer() -> None:
    report = next(report for report in reports() if report.said == "torch-bug")
    line = "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus."
    assert {told_by_rules(text) for _, text in mutants(report, line, random.Random(1))} == {
        "gpu-lost"
    }


def test_a_linked_page_and_a_condition_of_a_program_tell_nothing_of_this_machine() -> None:
    from cudadoctor.reports.document import document

    doc = document(
        "See https://example.org/t/cuda-out-of-memory and\n"
        "pip install torch --index-url https://download.pytorch.org/whl/cu118\n"
        "if torch.cuda.is_available():\n"
        "torch.cuda.is_available() is False\n"
        "assert torch.cuda.is_available(), 'no GPU'"
    )
    assert len(doc.told) == len(doc.flat)
    assert "out-of-memory" not in doc.told
    assert "example.org" in doc.told
    assert "whl/cu118" in doc.told
    assert doc.told.count("is_available()") == 1
    assert "no GPU" not in doc.told


def test_an_assertion_that_failed_is_told() -> None:
    from cudadoctor.reports.document import document

    doc = document("    assert torch.cuda.is_available(), 'no GPU'\nAssertionError: no GPU")
    assert doc.told == doc.flat
