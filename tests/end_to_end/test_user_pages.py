"""Every cause has a page that says what it is and what cures it."""

from __future__ import annotations

import pytest

from cudadoctor.knowledge.symptoms import symptoms
from cudadoctor.locale.language import language
from cudadoctor.model.catalogue import CATALOGUE
from cudadoctor.render.pages import SECTIONS, contents, explained, listing, page, separated
from cudadoctor.reports.document import document
from cudadoctor.reports.symptoms import symptoms_of
from cudadoctor.rules.registry import explained_rules

ERRORS = [(cause, error) for cause, about in explained().causes.items() for error in about.errors]


@pytest.mark.parametrize("cause", CATALOGUE)
def test_a_page_says_what_the_cause_means(cause: str) -> None:
    text = page(cause, explained_rules())
    assert text.startswith(f"{cause}\n")
    assert "\n\nWhat it means\n  " in text
    assert "\n\nHow to fix it\n  " in text
    assert "{" not in text.partition("\nCommands\n")[0].replace("{libcudnn_ops", "")
    prose = text.partition("\nCommands\n")[0]
    long = [line for line in prose.splitlines() if len(line) > 80]
    assert all(len(line.split()) <= 2 or "`" in line for line in long), long


@pytest.mark.parametrize("cause", CATALOGUE)
def test_a_page_has_commands_look_alikes_and_a_source(cause: str) -> None:
    found = contents(cause, explained_rules())
    checks = [*found.sections["Check by hand"], *found.sections["Fix"]]
    assert found.commands or any("`" in text for text in checks)
    assert found.sections["Look-alikes"]
    assert found.links
    assert all(link.url.startswith("https://") for link in found.links)


def test_what_separates_causes_names_causes_and_sources_that_exist() -> None:
    table = separated()
    assert [*table.decide] == [*table.cites] == [*CATALOGUE]
    assert {cause for near in table.apart for cause in near.causes} <= {*CATALOGUE}
    assert {name for names in table.cites.values() for name in names} == table.sources.keys()
    for near in table.apart:  # a text that leaves one of its causes out says nothing of it
        assert all(cause in near.text for cause in near.causes), near.text


def test_the_list_has_every_cause_once_and_fits_the_terminal() -> None:
    for say in (language("en"), language("es")):
        lines = listing(say).splitlines()
        names = [line.split()[0] for line in lines if line.startswith("  ")]
        assert sorted(names) == sorted(CATALOGUE)
        assert max(map(len, lines)) <= 80
    assert explained().causes.keys() == set(CATALOGUE) == {rule.cause for rule in explained_rules()}


def test_headings_and_titles_are_translated() -> None:
    say = language("es")
    told = [about.title for about in explained().causes.values()] + list(SECTIONS.values())
    assert all(say(text) != text for text in told if text != "TF32")
    shown = page("torch-arch-unsupported-new", explained_rules(), say)
    assert "\n\nQué significa\n  Por ejemplo: " in shown
    assert "\n\nÓrdenes\n  Son ejemplos. " in shown
    assert "\n\nCómo arreglarlo\n" in shown


@pytest.mark.parametrize(("cause", "error"), ERRORS)
def test_an_error_text_of_a_page_is_one_that_means_this_cause(cause: str, error: str) -> None:
    found = {symptom.key for symptom in symptoms_of(document(error), symptoms())}
    if "installer-refused" in found:
        return  # the rules for installers read the whole command, and judge by the tables
    rows = [row for row in symptoms().rows if row.key in found]
    assert any(meaning.cause == cause for row in rows for meaning in row.means), found


def test_a_command_on_a_page_is_never_broken() -> None:
    text = page("nccl-other", explained_rules(), width=60)
    assert all(line.count("`") % 2 == 0 for line in text.splitlines())
