"""Secrets stay at home: nothing that identifies is shown, and what is shown means the same."""

from __future__ import annotations

import json

import msgspec
import planted_secrets
import pytest
from planted_secrets import ALL, ASSIGNED, GPU, HOST, TOKENS, USER, VARIABLES, leaked
from scenario_reader import HERE, healthy_machine, read_scenario, scenario_paths
from share import share_of_each_cause

from cudadoctor import pipeline
from cudadoctor.model import factfile
from cudadoctor.model.findings import Plan
from cudadoctor.model.machine import Identity, Machine
from cudadoctor.privacy.conceal import Concealer
from cudadoctor.privacy.redact import Redactor
from cudadoctor.render import json_v1, markdown, terminal

SCENARIOS = scenario_paths()
MACHINES = sorted(path.stem for path in (HERE / "machines").glob("*.json"))
TEXTS = tuple(planted.text for planted in ALL)
OPEN_KEYS = ("plan", "examined", "next_command")
"""What a program must be able to run stands unredacted in JSON."""


def sick(name: str) -> Machine:
    path = HERE / "scenarios" / f"{name}.toml"
    machine = read_scenario(path).machine if path.exists() else healthy_machine(name)
    return planted_secrets.with_texts(planted_secrets.moved(machine), TEXTS)


NAMES = share_of_each_cause([path.stem for path in SCENARIOS] + MACHINES, 3)


def test_a_text_with_a_secret_is_shown_without_it() -> None:
    for planted in ALL:
        machine = Machine(gaps=planted_secrets.gaps_of(planted.text))
        text = factfile.dumps(Redactor(machine).machine(machine))
        assert not [secret for secret in planted.secrets if secret in text], text


def test_a_raw_answer_with_a_secret_is_recorded_without_it() -> None:
    for planted in ALL:
        words = Concealer(Machine(), planted.text)
        line = json.dumps({"kind": "said", "text": planted.text}, ensure_ascii=False)
        for text in (planted.text, line):
            kept = words.output(text, "nvidia-smi")
            assert not [secret for secret in planted.secrets if secret in kept], kept
            assert words.output(kept, "nvidia-smi") == kept
        assert json.loads(words.output(line))["kind"] == "said"
        wide = words.data(b"\xff\xfe" + planted.text.encode("utf-16-le"))
        assert not [secret for secret in planted.secrets if secret.encode("utf-16-le") in wide]


def test_settings_in_an_old_encoding_are_recorded_without_their_secrets() -> None:
    for planted in (*TOKENS, *ASSIGNED):
        data = planted.text.encode() + b"\n# caf\xe9\n"
        kept = Concealer(Machine()).data(data)
        assert len(kept) == len(data)
        assert not [secret for secret in planted.secrets if secret.encode() in kept], kept


def test_a_variable_with_a_secret_is_shown_without_it() -> None:
    for name, planted in VARIABLES.items():
        machine = Machine(env={name: planted.text}, identity=Identity(user=USER))
        text = factfile.dumps(Redactor(machine).machine(machine))
        assert not [secret for secret in planted.secrets if secret in text], text
        assert name in text


@pytest.mark.parametrize("name", NAMES)
def test_no_secret_is_shown_and_a_redacted_document_is_judged_the_same(name: str) -> None:
    machine = sick(name)
    first = pipeline.judge(machine)
    report = pipeline.report(first)
    document = json_v1.report(report)
    closed = {key: value for key, value in document.items() if key not in OPEN_KEYS}
    assert leaked(json.dumps(closed, ensure_ascii=False)) == []
    assert leaked(markdown.report(pipeline.shareable(report))) == []
    diagnosis = msgspec.structs.replace(report.diagnosis, next_command=None)
    without_plan = msgspec.structs.replace(report, plan=Plan(), diagnosis=diagnosis)
    layout = terminal.Layout(width=400, verbose=True)
    assert leaked("\n".join(line.text for line in terminal.report(without_plan, layout))) == []
    facts = factfile.dumps(Redactor(machine).machine(machine))
    assert leaked(facts) == []
    second = pipeline.judge(factfile.loads(facts))
    assert [finding.cause for finding in first.diagnosis.findings] == [
        finding.cause for finding in second.diagnosis.findings
    ]
    assert first.diagnosis.primary == second.diagnosis.primary
    assert first.diagnosis.verdict == second.diagnosis.verdict
    assert [step.id for step in first.plan.steps] == [step.id for step in second.plan.steps]


def test_full_hides_nothing() -> None:
    machine = sick("rtx4090-linux")
    text = json_v1.dumps(json_v1.report(pipeline.report(pipeline.judge(machine), full=True)))
    for word in (USER, HOST, GPU, "hunter2222!"):
        assert word in text


LONG = ("a@", "token_", "://a:", "/home/", "C:\\Users\\", "ssh a@", "fe80::", "1.2.3.", "[a@b ")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("part", LONG)
def test_a_long_text_is_searched_to_its_end(part: str) -> None:
    text = part * 20_000 + f" /home/{USER}/x"
    machine = Machine(gaps=planted_secrets.gaps_of(text))
    assert USER not in Redactor(machine).text(text)
    assert USER not in Concealer(machine).output(text)
    assert "@" not in markdown.escaped(text.replace("@", " "))
