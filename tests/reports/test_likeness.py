"""Ranking by the words of a report: what is counted, and what is never said by it."""

import re
from pathlib import Path

import pytest

from cudadoctor import knowledge
from cudadoctor.knowledge.tables import FOLDER
from cudadoctor.model.catalogue import CATALOGUE
from cudadoctor.reports.likeness import counts, counts_of, likeness, words_of
from cudadoctor.reports.reading import read_report
from cudadoctor.rules.diagnose import diagnose

MADE = counts_of(
    {
        "bus": {"gpu-lost": 4, "shm-too-small": 3},
        "fallen off": {"gpu-lost": 5},
        "dev shm": {"shm-too-small": 6},
        "the": {"gpu-lost": 3, "shm-too-small": 3, "torch-bug": 1},
    }
)


def test_counts_stand_in_letters_and_come_back() -> None:
    assert MADE.causes == ("gpu-lost", "shm-too-small", "torch-bug")
    assert MADE.row("the") == [(0, 3), (1, 3), (2, 1)]
    assert MADE.row("no such word") == []
    assert MADE.sums == (12, 12, 1)


def test_words_and_neighbouring_pairs_count_within_a_line() -> None:
    assert words_of("GPU has\nfallen off") == {
        "gpu",
        "has",
        "gpu has",
        "fallen",
        "off",
        "fallen off",
    }


def test_a_script_without_spaces_is_cut_into_pairs_of_letters() -> None:
    assert {"显卡", "卡驱", "驱动"} <= words_of("显卡驱动")


@pytest.mark.parametrize(
    ("text", "first"),
    [("the bus error: dev shm", "shm-too-small"), ("the GPU has fallen off the bus", "gpu-lost")],
)
def test_rare_words_decide(text: str, first: str) -> None:
    assert next(iter(likeness(words_of(text), MADE))) == first


def test_words_that_nobody_knows_speak_for_nothing() -> None:
    assert likeness(words_of("entirely other matters"), MADE) == {}


def test_the_counts_of_the_package_hold_known_causes_and_no_names() -> None:
    assert set(counts().causes) <= set(CATALOGUE)
    assert Path(FOLDER, "rules/likeness.json").stat().st_size < 300_000
    private = re.compile(r"/|@|\b\d{1,3}(?:\.\d{1,3}){3}\b")
    assert [word for word in counts().words if private.search(word)] == []


def test_likeness_makes_no_finding() -> None:
    tables = knowledge.load()
    machine = read_report("It became slow after a while, and then the fan stopped.", tables)
    assert machine.likeness is not None
    assert diagnose(machine, tables).findings == ()
