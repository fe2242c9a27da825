"""Unknown is not absent: a rule never fires because a fact is missing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scenario_reader import HERE

from cudadoctor import knowledge
from cudadoctor.model import factfile
from cudadoctor.model.findings import Confidence, Severity
from cudadoctor.model.machine import lookup
from cudadoctor.rules.diagnose import diagnose

MACHINES = {
    path.stem: json.loads(path.read_text(encoding="utf-8"))
    for path in sorted((HERE / "machines").glob("*.json"))
}
KB = knowledge.load()
# These say how the facts were gathered, not what the machine is.
OURS = {"schema", "look", "origins", "gaps", "identity", "date", "redacted"}


WHOLE = {("env",), ("smoke",)}


def _paths(plain: Any, prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every fact and every section of a document; members of lists stay together."""
    for key, value in plain.items():
        if prefix or key not in OURS:
            yield (*prefix, key)
            if isinstance(value, dict) and (*prefix, key) not in WHOLE:
                yield from _paths(value, (*prefix, key))


def _without(plain: Any, *gone: tuple[str, ...]) -> Any:
    copy = json.loads(json.dumps(plain))
    for path in gone:
        place = copy
        for part in path[:-1]:
            place = place.get(part, {})
        place.pop(path[-1], None)
    return copy


def _alarms(plain: Any) -> list[str]:
    machine = factfile.from_plain(plain)
    diagnosis = diagnose(machine, KB)
    values = {
        undecided.missing: lookup(machine, undecided.missing) for undecided in diagnosis.undecided
    }
    # An empty list of GPUs says nothing while the driver itself is unknown.
    known = [fact for fact, value in values.items() if value not in (None, ())]
    assert known == [], "said to be missing, and known"
    return [
        finding.cause
        for finding in diagnosis.findings
        if finding.severity < Severity.INFO
        and not finding.because_of
        and finding.confidence <= Confidence.LIKELY
    ]


@pytest.mark.parametrize("name", MACHINES)
def test_no_single_unknown_makes_a_healthy_machine_sick(name: str) -> None:
    plain = MACHINES[name]
    wrong = {
        ".".join(path): alarms
        for path in _paths(plain)
        if (alarms := _alarms(_without(plain, path)))
    }
    assert wrong == {}


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_set_of_unknowns_makes_a_healthy_machine_sick(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(MACHINES)))
    plain = MACHINES[name]
    gone = data.draw(st.lists(st.sampled_from(sorted(_paths(plain))), min_size=2, max_size=25))
    assert _alarms(_without(plain, *gone)) == []


def test_a_machine_of_which_nothing_is_known_is_undecided() -> None:
    diagnosis = diagnose(factfile.from_plain({"schema": 1}), KB)
    assert diagnosis.verdict == "undecided"
    assert diagnosis.primary is None
