"""Every cause has a page that says what it is and what cures it."""

from __future__ import annotations

import pytest

from cudadoctor.model.catalogue import CATALOGUE
from cudadoctor.render.pages import listing, page
from cudadoctor.render.unjudged import PAGES
from cudadoctor.rules.registry import RULES


@pytest.mark.parametrize("cause", [one for one in CATALOGUE if one != "unknown"])
def test_a_page_says_what_it_is_and_what_cures_it(cause: str) -> None:
    text = page(cause, RULES)
    assert text.startswith(f"{cause}\n\n")
    assert len(text.split("\n\n")) >= 3
    assert max(map(len, text.splitlines())) <= 160


def test_pages_without_a_rule_name_causes_and_the_list_marks_them() -> None:
    assert PAGES.keys() <= set(CATALOGUE)
    judged = {rule.cause for rule in RULES}
    marked = {line.split()[0] for line in listing(CATALOGUE, RULES).splitlines() if "(not " in line}
    assert marked == set(CATALOGUE) - judged
