"""Text from outside is inert: whatever a host says, it acts on no terminal, forge or shell."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator

import poison
import pytest
from markdown_it import MarkdownIt
from printed_scripts import without_printing
from scenario_reader import HERE, healthy_machine, read_scenario, scenario_paths
from share import share_of_each_cause

from cudadoctor import pipeline
from cudadoctor.cli import output
from cudadoctor.locale.language import language
from cudadoctor.model import factfile
from cudadoctor.model.findings import Severity
from cudadoctor.model.machine import Machine
from cudadoctor.privacy.redact import Redactor
from cudadoctor.render import Report, json_v1, markdown, shells, summary, terminal
from cudadoctor.render.script import script
from cudadoctor.render.shells import ShellName, shell_of

CARRIERS = [path.stem for path in scenario_paths()]
CARRIERS += sorted(path.stem for path in (HERE / "machines").glob("*.json"))
ALONE = {*share_of_each_cause(CARRIERS, 4)}
"""Of these carriers single places are poisoned alone: together they are every place often."""
SHELLS: tuple[ShellName, ...] = ("bash", "fish", "powershell")
MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])
# What GitHub takes for the end of a table's cell; markdown-it reads the backslashes otherwise.
GITHUB_CELL = re.compile(r"(?:\\[!-/:-@\[-`{-~]|[^|\r\n])+")
LINKED = re.compile(r"@\w|(?<!\w)#\d|GH-\d|://|www\.|:[a-z]+:|\$")


def carrier(name: str) -> Machine:
    path = HERE / "scenarios" / f"{name}.toml"
    return read_scenario(path).machine if path.exists() else healthy_machine(name)


def variants(name: str) -> Iterator[Machine]:
    """The machine with every place poisoned, then, of a share of them, with one place at a time."""
    machine = carrier(name)
    yield poison.everywhere(machine)
    if name in ALONE:
        start = sum(map(ord, name))
        places = [path for path in poison.places(machine) if told_of(path)]
        for number in range(start, start + 2):
            place = places[number * 13 % len(places)]
            yield poison.poisoned(machine, place, poison.WORDS[number % len(poison.WORDS)], number)


def told_of(place: tuple[object, ...]) -> bool:
    """Of long lists the first item stands for all."""
    return all(not isinstance(part, int) or part < 1 for part in place)


# --- what each output must be --------------------------------------------------------------


def assert_calm(text: str) -> None:
    """Nothing acts on a terminal, beside the ends of lines."""
    assert text.replace("\n", "").isprintable(), repr(text)


def check_terminal(shown: Report) -> None:
    layout = terminal.Layout(width=60, verbose=True)
    lines = terminal.report(shown, layout)
    assert not any("\n" in line.text for line in lines)
    assert_calm("\n".join(line.text for line in lines))
    assert_calm("\n".join(summary.stage_lines(shown.machine, language("en"))))


def check_json(shown: Report) -> None:
    document = json_v1.report(shown)
    for text in (json_v1.dumps(document), json_v1.line(document)):
        assert text.isascii()
        assert_calm(text)
        assert json.loads(text)["verdict"] == shown.diagnosis.verdict
    facts = factfile.dumps(Redactor(shown.machine).machine(shown.machine))
    assert_calm(facts)
    assert facts.isascii()
    factfile.loads(facts)


def check_script(judged: pipeline.Judged) -> None:
    for name in SHELLS:
        text = script(
            judged.plan,
            judged.machine,
            judged.diagnosis,
            shell=name,
            version="0",
            knowledge="2026-01-01",
        )
        assert_calm(text)
        words = shell_of(name)
        known = {words.command(argv) for step in judged.plan.steps for argv in step.commands}
        known |= {
            words.variable(*variable)
            for step in judged.plan.steps
            for variable in step.variables.items()
        }
        known |= {"", *words.start(text), *words.start(text, apart=True), "exit 1"}
        lines = without_printing(text.split("\n"), name)
        assert not [line for line in lines if not line.startswith("#") and line not in known]


def check_markdown(shown: Report) -> None:
    text = markdown.report(pipeline.shareable(shown))
    assert_calm(text)
    blocks = [token for token in MARKDOWN.parse(text) if token.nesting >= 0]
    kinds = [block.type for block in blocks]
    roots = [finding for finding in summary.shown_findings(shown) if not finding.because_of]
    of_report = shown.machine.look == "report"
    detailed = [finding for finding in roots if finding.severity is not Severity.INFO or of_report]
    steps = [
        step for finding in detailed for step in shown.plan.steps if finding.cause in step.cures
    ]
    first = shown.diagnosis.primary or summary.outside(shown)  # shown without a heading
    asked = bool(shown.diagnosis.next_command)
    assert set(kinds) <= ALLOWED
    assert kinds.count("heading_open") == sum(finding.cause != first for finding in roots)
    assert kinds.count("table_open") == sum(bool(finding.evidence) for finding in detailed)
    assert kinds.count("fence") == asked + sum(len(fences(step, shown.machine)) for step in steps)
    assert [block.content.strip() for block in blocks if block.type == "html_block"] == [
        "<details><summary>machine details</summary>",
        "</details>",
    ]
    for block in blocks:
        check_inline(block.children or ())
    check_tables(text)


ALLOWED = {
    *("inline", "paragraph_open", "heading_open", "html_block", "fence"),
    *("bullet_list_open", "list_item_open"),
    *("table_open", "thead_open", "tbody_open", "tr_open", "th_open", "td_open"),
}


def fences(step: object, machine: Machine) -> list[object]:
    from cudadoctor.model.findings import Step

    assert isinstance(step, Step)
    edits = [edit for edit in shells.edits_by_hand(step) if edit.what.splitlines()]
    return [*edits, *([1] if shells.step_lines(step, machine) else [])]


def check_inline(children: object) -> None:
    allowed = {"text", "code_inline", "softbreak", "strong_open", "strong_close", "text_special"}
    for child in children:  # type: ignore[attr-defined]
        if child.type == "html_inline":
            assert child.content in ("<sub>", "</sub>")
        else:
            assert child.type in allowed, child
        if child.type == "text":
            assert not LINKED.search(child.content), child.content


def check_tables(text: str) -> None:
    """Every row has three cells for GitHub too."""
    for line in text.splitlines():
        if line.startswith("|"):
            assert len(GITHUB_CELL.findall(line)) == 3, line


# --- the whole proof -----------------------------------------------------------------------


@pytest.mark.parametrize("name", CARRIERS)
def test_a_poisoned_machine_acts_nowhere(name: str) -> None:
    for number, machine in enumerate(variants(name)):
        judged = pipeline.judge(machine)
        shown = pipeline.report(judged, full=number % 2 == 0)
        check_terminal(shown)
        check_markdown(shown)
        check_json(shown)
        check_script(judged)


@pytest.mark.parametrize("name", CARRIERS[::10])
def test_a_poisoned_machine_acts_nowhere_in_spanish(name: str) -> None:
    import msgspec

    say = language("es")
    shown = pipeline.report(pipeline.judge(poison.everywhere(carrier(name))))
    shown = msgspec.structs.replace(shown, diagnosis=say.diagnosis(shown.diagnosis))
    lines = terminal.report(shown, terminal.Layout(width=80, verbose=True, say=say))
    assert_calm("\n".join(line.text for line in lines))
    assert_calm(markdown.report(shown, say))


class Screen:
    """A stdout that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("name", CARRIERS[::10])
def test_in_colour_the_only_codes_are_our_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Screen())
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    shown = pipeline.report(pipeline.judge(poison.everywhere(carrier(name))))
    text = output.painted(terminal.report(shown, terminal.Layout(width=80, verbose=True)))
    assert "\x1b[" in text
    assert_calm(re.sub(r"\x1b\[(?:1|2|1;3\d|3\d)m|\x1b\[0m", "", text))
