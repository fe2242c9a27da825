"""Whole outputs as a user sees them, compared exactly.

REWRITE_GALLERY=1 python -m pytest tests/render/test_gallery.py writes them anew: read the diff.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import cache

import msgspec
import pytest
from scenario_reader import HERE, healthy_machine, read_scenario

from cudadoctor import pipeline
from cudadoctor.locale.language import language
from cudadoctor.model.machine import Machine
from cudadoctor.render import Report, json_v1, markdown, terminal
from cudadoctor.render.script import script
from cudadoctor.render.shells import ShellName

GALLERY = HERE / "gallery"
VERSION, DAY = "0.0.0", "2026-01-01"
"""In place of those of the doctor and its tables, which change without a word changing."""

SCENARIOS = {
    "driver-too-old": "driver-too-old--cu130-on-branch-575",
    "torch-cpu-build-on-windows": "torch-cpu-build--pip-on-windows",
    "container-no-gpu": "container-no-gpu--docker-without-gpus",
    "driver-library-mismatch": "driver-library-mismatch--unattended-upgrade",
    "gtx1080-with-cu130": "torch-arch-unsupported-old--gtx-1080-on-cu130",
    "nouveau-was-first": "driver-not-loaded--nouveau-was-first",
}
HEALTHY = {"healthy-rtx4090": "rtx4090-linux", "healthy-cpu": "cpu-linux"}
OWN = ("several-findings", "nvml-is-silent")
CASES = (*HEALTHY, *SCENARIOS, *OWN)


@cache
def _judged(case: str) -> pipeline.Judged:
    return pipeline.judge(_machine(case))


def _machine(case: str) -> Machine:
    if case in HEALTHY:
        return healthy_machine(HEALTHY[case])
    folder, name = ("scenarios", SCENARIOS[case]) if case in SCENARIOS else ("gallery", case)
    return read_scenario(HERE / folder / f"{name}.toml").machine


def _report(case: str) -> Report:
    shown = pipeline.report(_judged(case), seconds=4.2)
    sources = {
        key: re.sub(r"looked up .*", f"looked up {DAY}", text)
        for key, text in shown.sources.items()
    }
    return msgspec.structs.replace(shown, version=VERSION, knowledge=DAY, sources=sources)


def _on_terminal(width: int, *, verbose: bool = False, lang: str = "en") -> Callable[[str], str]:
    def written(case: str) -> str:
        say = language(lang)
        shown = _report(case)
        shown = msgspec.structs.replace(shown, diagnosis=say.diagnosis(shown.diagnosis))
        layout = terminal.Layout(width=width, verbose=verbose, say=say)
        lines = [line.text.rstrip() for line in terminal.report(shown, layout)]

        return "\n".join(lines) + "\n"

    return written


def _markdown(case: str) -> str:
    return markdown.report(pipeline.shareable(_report(case)))


def _script(shell: ShellName) -> Callable[[str], str]:
    def written(case: str) -> str:
        judged = _judged(case)
        return script(
            judged.plan,
            judged.machine,
            judged.diagnosis,
            shell=shell,
            version=VERSION,
            knowledge=DAY,
        )

    return written


def _json(case: str) -> str:
    """All but the facts, which are the document that went in."""
    document = json_v1.report(_report(case))
    return json_v1.dumps({name: value for name, value in document.items() if name != "facts"})


FORMS: dict[str, Callable[[str], str]] = {
    "80.txt": _on_terminal(80),
    "60.txt": _on_terminal(60),
    "v.txt": _on_terminal(80, verbose=True),
    "es.txt": _on_terminal(80, lang="es"),
    "md": _markdown,
    "sh": _script("bash"),
    "fish": _script("fish"),
    "ps1": _script("powershell"),
    "json": _json,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", CASES)
def test_an_output_is_as_the_gallery_shows_it(case: str, form: str) -> None:
    file = GALLERY / f"{case}.{form}"
    written = FORMS[form](case).rstrip("\n") + "\n"
    if os.environ.get("REWRITE_GALLERY"):
        file.write_text(written, encoding="utf-8")
    assert written == file.read_text(encoding="utf-8")


def test_the_gallery_holds_nothing_else() -> None:
    expected = {f"{case}.{form}" for case in CASES for form in FORMS}
    expected |= {f"{case}.toml" for case in OWN}
    assert {file.name for file in GALLERY.iterdir()} == expected


@pytest.mark.parametrize("width", [40, 60, 80, 100])
@pytest.mark.parametrize("case", CASES)
def test_only_commands_and_long_words_are_wider_than_the_terminal(case: str, width: int) -> None:
    shown = _report(case)
    for line in terminal.report(shown, terminal.Layout(width=width, verbose=True)):
        text = line.text.strip().removesuffix(" \\")
        is_command = line.spans and line.spans[-1][1] == "green"
        # cmd and PowerShell have no common way to fold a line.
        if is_command and shown.machine.platform.system == "Windows":
            continue
        # A word stays whole, behind its label too, and so does an option with its value.
        whole = len(re.findall(r"'[^']*'|\S+", text)) <= (4 if is_command else 2)
        assert len(line.text) <= width or whole, line.text


@pytest.mark.parametrize("case", [*SCENARIOS, *OWN])
def test_the_answer_stands_first_and_what_to_type_right_below(case: str) -> None:
    shown = _report(case)
    lines = terminal.report(shown, terminal.Layout(width=80))
    assert lines[0].text.startswith(("✗ ", "! ", "? "))
    steps = shown.plan.steps
    typed = [
        number
        for number, line in enumerate(lines, 1)
        if ("green" in {style for _, style in line.spans})
    ]
    assert not any(step.commands for step in steps) or typed[0] <= 10
