"""Every row of the table of symptoms: it matches its example, not its neighbour, and ends."""

from __future__ import annotations

import re
from collections import Counter

from cudadoctor.knowledge import load
from cudadoctor.knowledge.symptoms import symptoms
from cudadoctor.model.catalogue import CATALOGUE
from cudadoctor.model.machine import Machine
from cudadoctor.model.trust import Exit, foreign
from cudadoctor.reports.document import document
from cudadoctor.reports.symptoms import symptoms_of
from cudadoctor.rules.evidence.signs import WORDS
from cudadoctor.rules.pasted.conditions import CIRCUMSTANCES, FACTS, holds
from cudadoctor.rules.pasted.reported import VERDICT, cures

TABLE = symptoms()
EMPTY = Machine(look="report", symptoms=())
HARMLESS = {"not-environment", "torch-bug"}
UNBOUNDED = re.compile(r"(?<!\\)(?:\)|\]|\.|\\[swdSWD])[*+]")
"""A repetition without an end, of a group, a class or a dot."""


MEANINGS = [(row, means.cause, means.when) for row in TABLE.rows for means in row.means]
CONDITIONS = {condition for *_, conditions in MEANINGS for condition in conditions}


def keys_in(text: str) -> set[str]:
    return {symptom.key for symptom in symptoms_of(document(text), TABLE)}


def test_no_two_rows_have_one_key() -> None:
    assert [key for key, times in Counter(row.key for row in TABLE.rows).items() if times > 1] == []


def test_a_row_finds_its_example_and_not_its_neighbour() -> None:
    deaf = [row.key for row in TABLE.rows if row.key not in keys_in(row.example)]
    greedy = [row.key for row in TABLE.rows if row.near and row.key in keys_in(row.near)]
    assert (deaf, greedy) == ([], [])


def test_the_words_of_a_row_can_be_found() -> None:
    """A text is searched in lower case, with single spaces between its words."""
    lost = [
        (row.key, word)
        for row in TABLE.rows
        for word in (*row.words, *row.also)
        if re.search("[A-Z]", word)
        or (word.strip() == word and word != " ".join(word.lower().split()))
    ]
    assert lost == []


def test_a_pattern_is_bounded() -> None:
    """Write {0,200} in place of * and +."""
    patterns = {row.key: row.pattern for row in TABLE.rows if row.pattern}
    assert all(re.compile(pattern, re.IGNORECASE) for pattern in patterns.values())
    assert [key for key, pattern in patterns.items() if UNBOUNDED.search(pattern)] == []


def test_a_meaning_names_a_cause_that_has_its_words() -> None:
    causes = set(CATALOGUE) & TABLE.causes.keys()
    assert [(row.key, cause) for row, cause, _ in MEANINGS if cause not in causes] == []


def test_the_conditions_of_a_meaning_exist() -> None:
    for row, _, conditions in MEANINGS:
        for condition in conditions:
            holds(condition, EMPTY, load())  # a KeyError names what nobody defined
            seen = condition.partition("seen:")[2]
            assert not seen or seen in TABLE.by_key, row.key


def test_a_text_alone_is_never_certain() -> None:
    certain = [
        row.key
        for row in TABLE.rows
        for meaning in row.means
        if meaning.confidence == "certain"
        and not any(len(condition.split()) >= 3 for condition in meaning.when)
    ]
    assert certain == []


def test_only_the_last_meaning_may_be_without_conditions() -> None:
    """A meaning after one without conditions is never reached."""
    found = [(row, [way for way in row.means if way.confidence != "open"]) for row in TABLE.rows]
    hiding = [row.key for row, ways in found if not all(way.when for way in ways[:-1])]
    assert hiding == []


def test_a_cause_of_the_table_can_be_meant() -> None:
    assert TABLE.causes.keys() <= set(CATALOGUE) & TABLE.meaning.keys()
    harmless = {cause for cause, row in TABLE.causes.items() if row.severity == "info"}
    assert harmless == HARMLESS


def test_every_circumstance_is_asked_for() -> None:
    assert {*FACTS, *CIRCUMSTANCES} <= {condition.removeprefix("not ") for condition in CONDITIONS}


def test_every_row_without_a_meaning_is_asked_for() -> None:
    asked = {condition.partition("seen:")[2] for condition in CONDITIONS} | {VERDICT}
    asked |= {*WORDS["speaks-of-environment"]}
    assert [row.key for row in TABLE.rows if not row.means and row.key not in asked] == []


def test_a_command_of_a_cure_is_one_that_a_document_may_lead_to() -> None:
    """A word that the grammar lacks would leave the reader without the command."""
    machine, kb = foreign(EMPTY), load()
    way_out = Exit(machine, kb, None)
    texts = [(cause, text.cure) for cause, text in TABLE.causes.items()]
    texts += [(means.cause, means.cure) for row in TABLE.rows for means in row.means if means.cure]
    ways = [(text, way) for cause, text in texts for way in cures(cause, text, machine, kb)]
    assert sum(bool(way.commands) for _, way in ways) > 15
    for text, way in ways:
        assert way_out.commands(way.commands) is not None, text
        assert way_out.variables(way.variables) is not None, text
        assert way.commands or way.variables or way.manual, text


def test_a_cure_with_a_shell_s_own_signs_stays_a_sentence() -> None:
    (way,) = cures("x", "Look at it: `lspci | grep -i nvidia`. Then go on.", foreign(EMPTY), load())
    assert (way.title, way.commands) == ("Look at it", ())
    assert way.manual == "Run `lspci | grep -i nvidia`. Then go on."
    (way,) = cures("x", "Do it: `sudo a b`, then `sudo c`. Wait.", foreign(EMPTY), load())
    assert (way.commands, way.needs_root, way.note) == ((("a", "b"), ("c",)), True, "Wait.")


def test_no_search_text_holds_a_mark_that_readers_replace() -> None:
    texts = (text for row in TABLE.rows for text in (*row.words, *row.also))
    assert [text for text in texts if "`" in text] == []
