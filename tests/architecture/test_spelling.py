"""How the user texts are written: American spelling, and none of the phrases that were replaced."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import cudadoctor
from cudadoctor.locale.language import language
from cudadoctor.render.pages import PAGES
from cudadoctor.rules.registry import explained_rules

PACKAGE = Path(cudadoctor.__file__).parent
ROOT = PACKAGE.parent
BRITISH = re.compile(
    r"""\b(?:
    behaviour|colour|favour|flavour|neighbour|honour|centre|metre|licence|catalogue|judgement
    |learnt|spelt|whilst|towards|grey|artefact|fulfil\b|analyse|labelled|cancelled|modelled
    |enrol(?:s|ling)?\b|data-cent|defence|programme\b
    |(?:un)?recognis|initialis|optimis|utilis|synchronis|normalis|organis|virtualis|serialis
    |minimis|maximis|customis|authoris|parallelis(?!m)|quantis|tokenis|containeris|summaris|prioritis
    )""",
    re.IGNORECASE | re.VERBOSE,
)
REPLACED = re.compile(
    r"""\b(?:
    is\ told|are\ told|told\ from|anew|one's\ own|names\ nobody|takes\ it\ back|the\ present\ \w+
    |stands?\ (?:in|under|there)|lies\ (?:in|on)|brings?\ (?:(?:its|their)\ own|another|no)\b
    |is\ no\ (?:version|folder|number|Python)(?!\ of)
    )""",
    re.IGNORECASE | re.VERBOSE,
)
"""Phrases that no native speaker would write in their place: see what the tests below look at."""
NAMES = re.compile(r"driver-wrong-flavour|model[./]catalogue|CATALOGUE|`[^`]*`|https?://\S+")
"""Names that are a contract, commands and addresses."""
PLACES = ("README.md", "CHANGELOG.md", "docs", "recipes")


def _files() -> Iterator[Path]:
    for place in PLACES:
        path = ROOT / place
        found = path.rglob("*") if path.is_dir() else (path,)
        yield from (file for file in found if file.suffix in (".md", ".py"))


def texts() -> Iterator[tuple[str, str]]:
    """All that a user reads, with the place of each."""
    yield from (("a sentence", text) for text in language("es", "explain")._table)
    yield from ((rule.name, f"{rule.title}. {rule.why} {rule.page}") for rule in explained_rules())
    yield from PAGES.items()
    for file in _files():
        lines = file.read_text("utf-8").splitlines()
        yield from (
            (f"{file.relative_to(ROOT)}:{number}", line) for number, line in enumerate(lines, 1)
        )


@pytest.mark.parametrize("wrong", [BRITISH, REPLACED], ids=["spelling", "phrases"])
def test_user_texts_are_written_in_one_voice(wrong: re.Pattern[str]) -> None:
    seen = list(texts())
    assert len(seen) > 3000
    found = ((place, wrong.search(NAMES.sub("", text))) for place, text in seen)
    assert not [f"{place}: {match[0]}" for place, match in found if match]


def test_the_words_are_found_where_they_stand() -> None:
    assert BRITISH.search("the behaviour of a data-centre GPU")
    assert BRITISH.search("Enrol the key") and not BRITISH.search("Enroll the key")
    assert REPLACED.search("torch lies in a folder")
