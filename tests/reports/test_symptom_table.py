"""Every row of the table of symptoms: it matches its example, not its neighbour, and ends."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from cudadoctor.knowledge import load
from cudadoctor.knowledge.symptoms import SymptomRow, symptoms
from cudadoctor.model.catalogue import CATALOGUE
from cudadoctor.model.machine import Machine
from cudadoctor.reports.document import document
from cudadoctor.reports.symptoms import symptoms_of
from cudadoctor.rules.evidence.conditions import CIRCUMSTANCES, holds
from cudadoctor.rules.pasted.reported import VERDICT

TABLE = symptoms()
EMPTY = Machine(look="report", symptoms=())
PRINTED_BY_NOBODY = re.compile(r"[A-Z]")
HARMLESS = {"not-environment", "torch-bug"}
UNBOUNDED = re.compile(r"(?<!\\)(?:\)|\]|\.|\\[swdSWD])[*+]")
"""A repetition without an end, of a group, a class or a dot."""


def ids(row: SymptomRow) -> str:
    return row.key


def keys_in(text: str) -> set[str]:
    return {one.key for one in symptoms_of(document(text), TABLE)}


def test_no_two_rows_have_one_key() -> None:
    assert [key for key, times in Counter(row.key for row in TABLE.rows).items() if times > 1] == []


@pytest.mark.parametrize("row", TABLE.rows, ids=ids)
def test_a_row_finds_its_example_and_not_its_neighbour(row: SymptomRow) -> None:
    assert row.key in keys_in(row.example)
    assert row.near is None or row.key not in keys_in(row.near)


@pytest.mark.parametrize("row", TABLE.rows, ids=ids)
def test_the_words_of_a_row_can_be_found(row: SymptomRow) -> None:
    for word in (*row.words, *row.also):
        assert word == " ".join(word.lower().split()) or word.strip() != word
        assert not PRINTED_BY_NOBODY.search(word)


@pytest.mark.parametrize("row", [row for row in TABLE.rows if row.pattern], ids=ids)
def test_a_pattern_is_bounded(row: SymptomRow) -> None:
    assert row.pattern is not None
    re.compile(row.pattern, re.IGNORECASE)
    assert not UNBOUNDED.search(row.pattern), "write {0,200} in place of * and +"


@pytest.mark.parametrize("row", [row for row in TABLE.rows if row.means], ids=ids)
def test_a_meaning_names_a_cause_that_has_its_words(row: SymptomRow) -> None:
    for one in row.means:
        assert one.cause in CATALOGUE
        assert one.cause in TABLE.causes


@pytest.mark.parametrize("row", [row for row in TABLE.rows if row.means], ids=ids)
def test_the_conditions_of_a_meaning_exist(row: SymptomRow) -> None:
    for one in row.means:
        for condition in one.when:
            holds(condition, EMPTY, load())  # a KeyError names what nobody defined
            if "seen:" in condition:
                assert condition.partition("seen:")[2] in TABLE.by_key


@pytest.mark.parametrize("row", [row for row in TABLE.rows if row.means], ids=ids)
def test_a_text_alone_is_never_certain(row: SymptomRow) -> None:
    for one in row.means:
        compared = any(len(condition.split()) >= 3 for condition in one.when)
        assert one.confidence != "certain" or compared


@pytest.mark.parametrize("row", [row for row in TABLE.rows if row.means], ids=ids)
def test_only_the_last_meaning_may_be_without_conditions(row: SymptomRow) -> None:
    assert all(one.when for one in row.means[:-1]), "what stands behind it is never reached"


@pytest.mark.parametrize("cause", sorted(TABLE.causes))
def test_a_cause_of_the_table_can_be_meant(cause: str) -> None:
    assert cause in CATALOGUE
    assert cause in TABLE.meaning
    assert (TABLE.causes[cause].severity == "info") == (cause in HARMLESS)


def test_every_circumstance_is_asked_for() -> None:
    asked = {
        condition.removeprefix("not ")
        for row in TABLE.rows
        for one in row.means
        for condition in one.when
    }
    assert not [name for name in CIRCUMSTANCES if name not in asked]


@pytest.mark.parametrize("row", [row for row in TABLE.rows if not row.means], ids=ids)
def test_every_row_without_a_meaning_is_asked_for(row: SymptomRow) -> None:
    asked = {
        condition.partition("seen:")[2]
        for other in TABLE.rows
        for one in other.means
        for condition in one.when
    }
    assert row.key in asked or row.key == VERDICT
