"""The forms that other programs read, and the web page: valid, complete, and inert."""

from __future__ import annotations

import json
import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import poison
import pytest
from scenario_reader import HERE, healthy_machine, read_scenario

from cudadoctor import pipeline
from cudadoctor.locale.language import Language, language
from cudadoctor.model.machine import Machine
from cudadoctor.render import Checked, Report, github, html, json_schema, json_v1, junit, sarif
from cudadoctor.render import prometheus as metrics
from cudadoctor.render.page_style import SCRIPT, STYLE

SCHEMA = HERE.parent / "docs" / "check.schema.json"
PLAIN = Language({})
CASES = {
    "healthy": "h100x8-linux",
    "too-old": "scenarios/driver-too-old--cu130-on-branch-575",
    "arch": "scenarios/torch-arch-unsupported-old--gtx-1080-on-cu130",
    "several": "gallery/several-findings",
    "silent": "gallery/nvml-is-silent",
}


def machine_of(case: str) -> Machine:
    name = CASES[case]
    if "/" not in name:
        return healthy_machine(name)
    return read_scenario(HERE / f"{name}.toml").machine


def judged(machine: Machine, name: str | None = None) -> Checked:
    shown = pipeline.report(pipeline.judge(machine), seconds=4.2)
    return Checked(name=name, shown=pipeline.shareable(shown))


@cache
def checked(case: str) -> Checked:
    return judged(machine_of(case))


@cache
def hostile() -> tuple[Checked, ...]:
    """Machines with something that tries to act in every string, and such a file name."""
    word = (
        "\n::error::x\n##[error]y\n</script></style><img src=x onerror=PWNED> & \" ' %0A::set-env::"
    )
    machines = [poison.everywhere(machine_of(case)) for case in ("too-old", "several")]
    machines.append(poison.everywhere(machine_of("silent"), (word,)))
    shown = [pipeline.report(pipeline.judge(machine), full=True) for machine in machines]
    unreadable = Checked(name=word, error=word)
    return (*(Checked(name=word, shown=report) for report in shown), unreadable)


def report_of(case: str) -> Report:
    shown = checked(case).shown
    assert shown is not None
    return shown


# --- JSON -----------------------------------------------------------------------------------------


def test_the_published_schema_is_that_of_the_types() -> None:
    text = json_schema.dumps()
    assert SCHEMA.read_text(encoding="utf-8") == text, (
        "cudadoctor check --json-schema > docs/check.schema.json rewrites it"
    )


@pytest.mark.parametrize("case", CASES)
def test_every_document_is_valid_by_the_schema(case: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(json_schema.document())
    document = json.loads(json_v1.dumps(json_v1.report(report_of(case))))
    validator.validate(document)
    validator.validate({"schema": 1, "source": "x", "error": "cannot read x"})
    # A contract says which fields are always there.
    for field in document:
        lacking = {name: value for name, value in document.items() if name != field}
        assert not validator.is_valid(lacking), field


@pytest.mark.parametrize("file", sorted((HERE / "gallery").glob("*.json")), ids=lambda f: f.stem)
def test_the_gallery_is_valid_by_the_schema(file: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    document = json.loads(file.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(json_schema.document()).validate({**document, "facts": {}})


# --- SARIF ----------------------------------------------------------------------------------------


def test_sarif_has_a_result_for_each_finding_with_a_place_and_a_rule() -> None:
    log = json.loads(sarif.report([checked("several"), checked("healthy")]))
    several, healthy = log["runs"]
    found = report_of("several").diagnosis.findings
    assert [result["ruleId"] for result in several["results"]] == [each.cause for each in found]
    for result in several["results"]:
        rule = several["tool"]["driver"]["rules"][result["ruleIndex"]]
        assert rule["id"] == result["ruleId"]
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"]
        assert place["region"]["startLine"] >= 1
    assert not [result for result in healthy["results"] if result["level"] == "error"]
    assert healthy["properties"]["verdict"] == "healthy"


def test_sarif_points_to_the_line_of_a_log(tmp_path: Path) -> None:
    from cudadoctor.cli import saved

    log = tmp_path / "train.log"
    text = "epoch 1\nepoch 2\nRuntimeError: The NVIDIA driver on your system is too old (found "
    log.write_text(f"{text}version 11040).\n", encoding="utf-8")
    (found,) = saved.machines((str(log),))
    assert found.machine is not None
    (run,) = json.loads(sarif.report([judged(found.machine, "train.log")]))["runs"]
    place = run["results"][0]["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": "train.log"}, "region": {"startLine": 3}}


# --- JUnit ----------------------------------------------------------------------------------------


def suite_of(check: Checked, *, strict: bool = False) -> ET.Element:
    suite = ET.fromstring(junit.report([check], strict=strict)).find("testsuite")
    assert suite is not None
    return suite


def ends(suite: ET.Element, kind: str) -> set[str | None]:
    return {case.get("name") for case in suite.iter("testcase") if case.find(kind) is not None}


def test_junit_fails_for_errors_and_only_if_strict_for_warnings() -> None:
    found = report_of("several").diagnosis.findings
    by = {level: {each.cause for each in found if each.severity.label == level} for level in LEVELS}
    assert by["error"]
    assert by["warning"]
    assert ends(suite_of(checked("several")), "failure") == by["error"]
    strict = ends(suite_of(checked("several"), strict=True), "failure")
    assert strict == by["error"] | by["warning"]
    assert not ends(suite_of(checked("healthy")), "failure")


LEVELS = ("error", "warning", "info")


def test_junit_skips_what_was_not_checked_and_passes_no_undecided_verdict() -> None:
    suite = suite_of(checked("silent"))
    diagnosis = report_of("silent").diagnosis
    assert diagnosis.verdict == "undecided"
    assert ends(suite, "error") == {"verdict"}
    assert {each.cause for each in diagnosis.undecided} <= ends(suite, "skipped")
    cases = [case.get("name") for case in suite.iter("testcase")]
    assert set(diagnosis.passed) <= set(cases)
    counted = {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
    assert counted["tests"] == len(cases)
    assert counted["errors"] == 1


def test_a_hostile_document_is_well_formed_xml() -> None:
    suites = ET.fromstring(junit.report(hostile()))
    assert len(suites) == len(hostile())


# --- GitHub ---------------------------------------------------------------------------------------


def test_github_gets_one_annotation_a_finding_and_nothing_else_that_it_obeys() -> None:
    lines = github.commands(hostile(), PLAIN)
    for line in lines.splitlines():
        assert re.fullmatch(r"::(?:error|warning|notice) title=[^:,\r\n]*::[^\r\n]*", line), line
    assert not re.search(r"%(?!25|0A|0D|3A|2C)", lines)


def test_github_says_how_it_went_and_what_to_type() -> None:
    assert github.commands([checked("healthy")], PLAIN).startswith("::notice title=cudadoctor::")
    assert "::error" in github.commands([checked("silent")], PLAIN)
    broken = github.commands([checked("too-old")], PLAIN)
    assert broken.startswith("::error title=cudadoctor%3A driver-too-old::")
    assert "pip install torch" in broken


def test_a_summary_is_no_larger_than_github_takes() -> None:
    many = [checked("several")] * 400
    text = github.job_summary(many, PLAIN)
    assert len(text.encode()) < github.MOST_BYTES
    assert "more reports" in text


# --- Prometheus -----------------------------------------------------------------------------------


def samples_of(*checks: Checked) -> dict[str, list[tuple[dict[str, str], float]]]:
    parser = pytest.importorskip("prometheus_client.parser")
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in parser.text_string_to_metric_families(metrics.report(checks, 1.5e9)):
        assert family.documentation
        for sample in family.samples:
            found.setdefault(sample.name.removeprefix("cudadoctor_"), []).append(
                (sample.labels, sample.value)
            )
    return found


def test_metrics_say_the_verdict_the_causes_and_the_versions() -> None:
    found = samples_of(checked("too-old"))
    verdicts = {labels["verdict"]: value for labels, value in found["verdict"]}
    assert verdicts == {"healthy": 0, "warnings": 0, "broken": 1, "undecided": 0}
    causes = {labels["cause"] for labels, _ in found["finding"]}
    assert causes == {each.cause for each in report_of("too-old").diagnosis.findings}
    assert found["info"][0][0]["driver"] == "575.64.05"
    assert found["checked_timestamp_seconds"] == [({}, 1.5e9)]


def test_what_is_not_known_is_no_number() -> None:
    seen = {labels["seen_by"] for labels, _ in samples_of(checked("silent")).get("gpus", [])}
    machine = machine_of("silent")
    assert machine.gpus is None
    assert not seen & {"driver", "responding"}


def test_a_sample_stands_once_and_hostile_labels_are_read_back_whole() -> None:
    names = ("a", "b")
    several = [judged(machine_of("several"), name) for name in names]
    found = samples_of(*several, *hostile())
    for family, samples in found.items():
        keys = [
            tuple(sorted(labels.items())) for labels, _ in samples if labels.get("source") in names
        ]
        assert len(keys) == len(set(keys)), family
    assert {labels["source"] for labels, _ in found["verdict"]} > set(names)


# --- the page -------------------------------------------------------------------------------------


class _Read(HTMLParser):
    """What a browser makes of a page: its elements with their attributes, and its scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {"script": [], "style": []}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        last = self.elements[-1][0] if self.elements else ""
        if last in self.texts:
            self.texts[last].append(data)


def read(page: str) -> _Read:
    parser = _Read()
    parser.feed(page)
    return parser


def test_nothing_of_a_document_is_markup_or_script() -> None:
    page = read(html.page(hostile(), PLAIN))
    sound = read(html.page([checked(case) for case in CASES], PLAIN))
    assert {tag for tag, _ in page.elements} <= {tag for tag, _ in sound.elements}
    ours = {name for _, attributes in sound.elements for name in attributes}
    assert {name for _, attributes in page.elements for name in attributes} <= {*ours, "open"}
    assert not [name for name in ours if name.startswith("on")]
    assert "".join(page.texts["script"]).startswith(SCRIPT)
    assert page.elements.count(("script", {})) == 1
    assert page.elements.count(("style", {})) == 1
    links = {attributes["href"] for tag, attributes in page.elements if tag == "a"}
    assert links == {f"#report-{number}" for number in range(1, len(hostile()) + 1)}
    assert not set("\x1b\u202e\u2066") & set(html.page(hostile(), PLAIN))


def test_a_page_asks_for_nothing_from_a_network() -> None:
    text = html.page([checked(case) for case in CASES], PLAIN)
    assert "default-src 'none'" in text
    assert not re.search(r"url\(|@import|\bsrc=|<link", text)
    assert not re.search(r"https?:", STYLE + SCRIPT)


def test_a_page_opens_with_the_answer_and_the_command() -> None:
    text = html.page([checked("too-old")], PLAIN).partition("<body>")[2]
    order = ["<h1", "too old", "pip install torch", "Evidence", 'class="stack"']
    places = [text.index(word) for word in order]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("case", "layers", "mark"),
    [
        ("too-old", {"NVIDIA driver", "CUDA runtime"}, 'class="gap"'),
        ("arch", {"GPU", "torch"}, 'class="against"'),
        ("healthy", set(), ""),
    ],
)
def test_what_does_not_match_is_marked_in_the_stack(case: str, layers: set[str], mark: str) -> None:
    text = html.page([checked(case)], PLAIN)
    stack = text[text.index('<ol class="stack">') : text.index("</ol>")]
    items = re.findall(r'<li class="([^"]*)">(.*?)</li>', stack)
    sick = {
        found[1]
        for sign, item in items
        if "error" in sign and (found := re.search(r"</span> ([^<]+)</span>", item))
    }
    assert len(items) == 5
    assert sick == layers
    assert mark in stack
    assert mark or "does not match" not in stack


def test_a_page_hides_what_a_report_hides() -> None:
    machine = machine_of("too-old")
    identity = msgspec.structs.replace(machine.identity, host="secret-host-7")
    gpus = tuple(
        msgspec.structs.replace(gpu, uuid="GPU-8d2c1f0e-1111-2222-3333-444455556666")
        for gpu in machine.gpus or ()
    )
    check = judged(msgspec.structs.replace(machine, identity=identity, gpus=gpus))
    text = html.page([check], PLAIN) + metrics.report([check], 1.0) + sarif.report([check])
    text += junit.report([check]) + github.commands([check], PLAIN)
    for secret in ("secret-host-7", "8d2c1f0e", "/home/alice"):
        assert secret not in text


def test_the_page_speaks_spanish() -> None:
    say = language("es")
    shown = report_of("too-old")
    spoken = msgspec.structs.replace(shown, diagnosis=say.diagnosis(shown.diagnosis))
    text = html.page([Checked(shown=spoken)], say, "es")
    assert '<html lang="es">' in text
    assert "Las capas, desde la GPU" in text
