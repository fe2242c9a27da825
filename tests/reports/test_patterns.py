"""A pattern finds the same where its words are looked for first as it does alone."""

from __future__ import annotations

import re

import pytest

from cudadoctor.knowledge.patterns import Pattern, Words, alternatives, lower
from cudadoctor.knowledge.symptoms import pattern_of, symptoms
from cudadoctor.reports.document import document
from cudadoctor.reports.phrases import PHRASES

EXAMPLES = [document(text) for row in symptoms().rows for text in (row.example, row.near) if text]
PATTERNS = {row.pattern for row in symptoms().rows if row.pattern}


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("CUDA error", [("cuda error",)]),
        (r"(?i)\bfoo\b(?: bar)?baz", [("foo", "baz")]),
        (r"ab?cd*ef+gh{2}ij{0,2}kl", [("ef", "gh", "kl")]),
        (r"no (?:kernel|device) image", [("no ", ["kernel", "device"], " image")]),
        (r"no (?:kernel \d found|device)", [("no ", [("kernel ", " found"), "device"])]),
        (r"(?:x|device) gone", [(" gone",)]),
        (r"(?P<name>left)|right (?=ahead)(?!up)(?<=on)(?<!of)", [("left",), ("right ",)]),
        (r"a\.b\\c\d12[xy|)]34\x4156", [("a.b\\c", "12", "34", "56")]),
        (r"(?:(?:one|two) ){1,3}(?:three )?", [(["one", "two"],)]),
        (r"的|[Ii]nit", [("的",), ("nit",)]),
        (r"(?im)^line$", [("line",)]),
    ],
)
def test_the_words_of_each_alternative(pattern: str, words: list[Words]) -> None:
    found = list(alternatives(pattern))
    assert [each.words for each in found] == words
    assert all(re.compile(each.text) for each in found)


def test_letters_that_ignored_case_makes_one_are_one() -> None:
    assert [re.search("(?i)nvidia is", text) is not None for text in ("NVıDıA iſ", "NVIDIA IS")]
    assert lower("NVıDıA iſ") == lower("NVIDIA IS") == "nvidia is"


@pytest.mark.parametrize("text", sorted(PATTERNS))
def test_the_first_match_is_that_of_the_whole_pattern(text: str) -> None:
    whole, pattern = re.compile(text, re.IGNORECASE), pattern_of(text)
    for doc in EXAMPLES:
        found, same = whole.search(doc.told), pattern.search(doc.told, doc.low_told, [(0, 4000)])
        assert (found and found[0]) == (same and same[0])
        if found and same:
            assert {k: v for k, v in found.groupdict().items() if v is not None} == {
                k: v for k, v in same.groupdict().items() if v is not None
            }


@pytest.mark.parametrize("text", sorted({row.pattern for rows in PHRASES.values() for row in rows}))
def test_all_matches_are_those_of_the_whole_pattern(text: str) -> None:
    whole, pattern = re.compile(text), Pattern(text)
    for doc in EXAMPLES:
        seen = (doc.text, doc.low_text) if pattern.of_lines else (doc.told, doc.low_told)
        assert pattern.of_lines == bool(whole.flags & re.MULTILINE)
        assert [found.span() for found in pattern.finditer(*seen)] == [
            found.span() for found in whole.finditer(seen[0])
        ]
