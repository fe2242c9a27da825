"""Every cause has a page that says what it is and what cures it."""

from __future__ import annotations

import pytest

from cudadoctor.locale.language import Language, language
from cudadoctor.model.catalogue import CATALOGUE
from cudadoctor.model.rule import Rule
from cudadoctor.render.pages import PAGES, listing, page
from cudadoctor.rules.registry import RULES, explained_rules, pasted_rules

ENGLISH = Language({})


@pytest.mark.parametrize("cause", [cause for cause in CATALOGUE if cause != "unknown"])
def test_a_page_says_what_it_is_and_what_cures_it(cause: str) -> None:
    text = page(cause, explained_rules(), ENGLISH)
    assert text.startswith(f"{cause}\n\n")
    assert len(text.split("\n\n")) >= 3
    assert max(map(len, text.splitlines())) <= 100


def test_the_list_has_every_cause_and_only_rules_for_reports_need_a_page_of_their_own() -> None:
    assert PAGES.keys() <= set(CATALOGUE)
    assert [
        line.split()[0] for line in listing(CATALOGUE, explained_rules(), ENGLISH).splitlines()
    ] == list(CATALOGUE)
    assert set(CATALOGUE) == {rule.cause for rule in explained_rules()}


@pytest.mark.parametrize("rule", pasted_rules(), ids=lambda rule: rule.name)
def test_what_a_report_is_told_has_its_title_and_why_in_explain(rule: Rule) -> None:
    if rule.cause in {judged.cause for judged in RULES} or "{" in rule.title + rule.why:
        return
    assert f"{rule.title}\n\n{rule.why}\n" in page(rule.cause, explained_rules(), ENGLISH, 10_000)


def test_a_page_speaks_the_language_as_far_as_its_words_are_there() -> None:
    rule = next(rule for rule in RULES if rule.cause == "driver-too-old")
    spanish = language("es")
    text = page(rule.cause, explained_rules(), spanish, 10_000)
    assert rule.title not in text
    assert spanish(rule.title).partition("{")[0] in text
