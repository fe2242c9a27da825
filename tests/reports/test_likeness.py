"""Ranking by the words of a report: what is learned, how it is weighed, and what it never does."""

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from cudadoctor import knowledge
from cudadoctor.knowledge.tables import FOLDER
from cudadoctor.model.catalogue import CATALOGUE
from cudadoctor.model.machine import Machine, Symptom
from cudadoctor.reports.likeness import (
    Weights,
    likeness,
    rareness,
    row_of,
    spoken,
    weights,
    words_of,
)
from cudadoctor.reports.reading import read_report
from cudadoctor.rules.diagnose import by_rules, diagnose
from cudadoctor.rules.pasted.ranking import chances, signs, weighed

LOST, SHM, OTHER = 0, 1, 2
MADE = Weights(
    causes=("gpu-lost", "shm-too-small", "not-environment"),
    start=(-1.0, -1.0, -0.5),
    step=0.1,
    heed=0.5,
    words={
        "bus": row_of(rareness(100, 30), {LOST: 0.4, SHM: 0.3}, 0.1),
        "fallen off": row_of(rareness(100, 5), {LOST: 3.0, SHM: -1.0}, 0.1),
        "dev shm": row_of(rareness(100, 6), {SHM: 2.6}, 0.1),
        "the": row_of(rareness(100, 100), {}, 0.1),
    },
    signs={"text bus-error": row_of(rareness(100, 5), {SHM: 1.5}, 0.1)},
)
VAGUE = "Something does not work with torch."


def test_words_and_neighbouring_pairs_count_within_a_line() -> None:
    found = {"gpu", "has", "gpu has", "fallen", "off", "fallen off"}
    assert words_of("GPU has\nfallen off") == found


def test_a_script_without_spaces_is_cut_into_pairs_of_letters() -> None:
    assert {"显卡", "卡驱", "驱动"} <= words_of("显卡驱动")


def test_a_weight_comes_back_from_its_letters() -> None:
    alone = spoken({"fallen off"}, MADE.words, MADE)
    of_pair = rareness(100, 5)
    assert alone == pytest.approx(
        {"gpu-lost": 3.0 / of_pair, "shm-too-small": -1.0 / of_pair, "not-environment": 0},
        abs=0.001,
    )


@pytest.mark.parametrize(
    ("text", "first"),
    [("the bus error: dev shm", "shm-too-small"), ("the GPU has fallen off the bus", "gpu-lost")],
)
def test_rare_words_decide(text: str, first: str) -> None:
    said = likeness(words_of(text), MADE)
    assert max(said, key=said.__getitem__) == first


def test_saying_it_at_length_is_not_saying_it_louder() -> None:
    """A word that tells nothing makes the others quieter, and never louder."""
    alone = spoken({"dev shm"}, MADE.words, MADE)["shm-too-small"]
    assert 0 < spoken({"dev shm", "the"}, MADE.words, MADE)["shm-too-small"] < alone


def test_words_that_nobody_knows_speak_for_nothing() -> None:
    assert likeness(words_of("entirely other matters"), MADE) == {}


def test_the_table_of_the_package_holds_known_causes_and_no_names() -> None:
    assert set(weights().causes) <= set(CATALOGUE)
    assert Path(FOLDER, "rules/likeness.json").stat().st_size < 300_000
    private = re.compile(r"/|@|\b\d{1,3}(?:\.\d{1,3}){3}\b")
    assert [word for word in weights().words if private.search(word)] == []


def test_error_texts_and_circumstances_are_signs() -> None:
    tables = knowledge.load()
    found = signs(read_report("CUDA_HOME=/usr\nOS: Windows 11\ntorch 2.6.0+cpu\n", tables), tables)
    assert {"windows", "torch-cpu", "not torch-cuda", "variable CUDA_HOME"} <= found
    titled = Machine(look="report", symptoms=(Symptom(key="bus-error", text="Bus error", line=1),))
    assert {"text bus-error", "title bus-error"} <= signs(titled, tables)


def test_chances_are_shares_of_one_whole() -> None:
    heard = {"gpu-lost": {"words, for": 1.0}, "ulimit": {"words, for": 0.0}}
    shares = weighed(heard, {"words, for": 2.0, "never heard": 9.0})
    assert list(shares) == ["gpu-lost", "ulimit"]
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["gpu-lost"] == pytest.approx(0.881, abs=0.001)


def test_words_make_no_finding() -> None:
    tables = knowledge.load()
    machine = read_report("It became slow after a while, and then the fan stopped.", tables)
    assert machine.likeness
    assert diagnose(machine, tables).findings == ()


def test_what_tells_too_little_is_named_nothing() -> None:
    tables = knowledge.load()
    machine = read_report(VAGUE, tables)
    said = diagnose(machine, tables)
    assert (said.verdict, said.primary) == ("undecided", None)
    assert "unknown" not in {candidate.cause for candidate in said.candidates}


def test_without_words_the_rules_stand() -> None:
    """This doctor's own page, or a language that no table knows."""
    tables = knowledge.load()
    machine = read_report("CUDA driver version is insufficient for CUDA runtime version", tables)
    silent = replace(machine, likeness={})
    assert diagnose(silent, tables).primary == by_rules(silent, tables).primary is not None


def test_a_verdict_that_the_words_deny_is_none() -> None:
    """A likely error becomes possible, and none of it is graver than a warning beside a mistake."""
    tables = knowledge.load()
    machine = read_report("CUDA driver version is insufficient for CUDA runtime version", tables)
    against = dict.fromkeys(weights().causes, -2.0) | {"not-environment": 2.5}
    said = diagnose(replace(machine, likeness=against), tables)
    assert (said.verdict, said.primary) == ("undecided", "not-environment")
    assert said.candidates[0].cause == "not-environment"
    assert {(f.confidence.name, f.severity.name) for f in said.findings} == {
        ("POSSIBLE", "WARNING")
    }


@pytest.mark.parametrize("weight", [0.0, -1.0, 21.0, 1e300, float("inf"), float("nan")])
def test_made_up_weights_of_words_speak_for_nothing(weight: float) -> None:
    tables = knowledge.load()
    machine = read_report(VAGUE, tables)
    forged = replace(machine, likeness={**(machine.likeness or {}), "torch-missing": weight})
    assert diagnose(forged, tables).primary is None
    said = by_rules(machine, tables)
    share = chances(forged, tables, said.findings, said.primary)["torch-missing"]
    assert 0 <= share < 0.5
