"""What this doctor printed elsewhere is read like any other program's output."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from scenario_reader import healthy_machine
from told_fixtures import HEALTHY

from cudadoctor import knowledge, pipeline
from cudadoctor.cli import saved
from cudadoctor.cli.saved import facts_in
from cudadoctor.locale.language import Language
from cudadoctor.model import factfile
from cudadoctor.render import Report, evidence, json_v1, markdown, terminal
from cudadoctor.reports import doctor
from cudadoctor.reports.reading import read_report

ERRORS = {
    "container-no-gpu": 'could not select device driver "" with capabilities: [[gpu]]',
    "driver-too-old": "The NVIDIA driver on your system is too old (found version 11040).",
    "fork-after-init": "RuntimeError: Cannot re-initialize CUDA in forked subprocess.",
    "windows-runtime-dll": "[WinError 126] Error loading fbgemm.dll or one of its dependencies.",
}
GALLERY = Path(__file__).parents[1] / "gallery"


def report_of(text: str) -> Report:
    return pipeline.report(pipeline.judge(read_report(text, knowledge.load())))


def on_terminal(shown: Report, width: int) -> str:
    lines = terminal.report(shown, terminal.Layout(width=width, say=Language({})))
    return "\n".join(line.text for line in lines)


def as_comment(shown: Report) -> str:
    text = markdown.report(pipeline.shareable(shown))
    return "This is what it says:\n\n" + "\n".join(f"> {line}" for line in text.split("\n"))


@pytest.mark.parametrize("cause", ERRORS)
def test_a_pasted_verdict_names_the_same_cause_again(cause: str) -> None:
    shown = report_of(ERRORS[cause])
    assert shown.diagnosis.primary == cause
    for text in (on_terminal(shown, 80), on_terminal(shown, 60), as_comment(shown)):
        again = report_of(text).diagnosis
        assert (again.primary, again.verdict) == (cause, shown.diagnosis.verdict)


@pytest.mark.parametrize("name", ["driver-too-old", "torch-cpu-build-on-windows"])
@pytest.mark.parametrize("form", ["60.txt", "80.txt", "md"])
def test_the_report_of_a_host_yields_its_facts_again(name: str, form: str) -> None:
    machine = read_report((GALLERY / f"{name}.{form}").read_bytes(), knowledge.load())
    judged = pipeline.judge(machine)
    assert judged.diagnosis.primary == name.removesuffix("-on-windows")
    assert machine.torch.text is not None
    assert [(gpu.name or "")[-8:] for gpu in machine.gpus or ()] == ["RTX 4090"]
    assert machine.driver.version is not None


@pytest.mark.parametrize("name", ["rtx4090-linux", "cpu-linux", "h100x8-linux", "rtx3060-wsl"])
def test_a_healthy_report_names_no_cause(name: str) -> None:
    shown = pipeline.report(pipeline.judge(healthy_machine(name)))
    for text in (on_terminal(shown, 80), as_comment(shown)):
        assert report_of(text).diagnosis.primary is None


PAGE = """\
I updated yesterday.

✗ {answer}

  Why       Some reason: CUDA error: out of memory.
  Evidence  loaded kernel module  575.64.05  /proc/driver/nvidia/version
            torch CUDA version    12.4       torch/version.py
  More      cudadoctor explain wsl-setup

  {status}
  1 error · 80 causes ruled out · ~/venv/bin/python (3.12.3) · 4.2 s
"""


@pytest.mark.parametrize(
    ("answer", "primary", "verdict"),
    [
        ("WSL does not reach the GPU.", "wsl-setup", "broken"),
        ("Probably: WSL does not reach the GPU.", "wsl-setup", "broken"),
        ("Possibly: WSL does not reach the GPU.", "wsl-setup", "undecided"),
        ("Not enough information for a diagnosis. Most likely: WSL.", "wsl-setup", "undecided"),
    ],
)
def test_the_answer_says_how_sure_a_pasted_cause_is(
    answer: str, primary: str, verdict: str
) -> None:
    again = report_of(PAGE.format(answer=answer, status="")).diagnosis
    assert (again.primary, again.verdict) == (primary, verdict)
    assert [finding.cause for finding in again.roots] == [primary]


@pytest.mark.parametrize(
    "status",
    [
        "✗ driver 575.64.05 (open)   ✓ GPU 2 × RTX 4090, 24 GiB   ✓ torch 2.6.0 (CUDA 12.4)",
        "error driver 575.64.05 (open)   ok GPU 2 x RTX 4090, 24 GiB   ok torch 2.6.0 (CUDA 12.4)",
    ],
)
def test_the_line_of_signs_is_read(status: str) -> None:
    machine = read_report(PAGE.format(answer="It fails.", status=status), knowledge.load())
    assert str(machine.driver.kernel) == "575.64.05"
    assert machine.driver.flavour == "open"
    assert str(machine.torch.text) == "2.6.0"
    assert [(gpu.name, gpu.memory_bytes) for gpu in machine.gpus or ()] == 2 * [
        ("NVIDIA GeForce RTX 4090", 24 << 30)
    ]


def test_what_the_line_of_signs_lacks_is_absent() -> None:
    status = "– no driver   – no NVIDIA GPU   ✗ torch not installed"
    machine = read_report(PAGE.format(answer="It fails.", status=status), knowledge.load())
    assert (machine.gpus, machine.driver.installed, machine.torch.installed) == ((), False, False)


def test_the_labels_that_are_read_are_those_of_evidence() -> None:
    shown = {path: fact.label for path, fact in evidence.facts().fact.items()}
    assert {label: path for path, label in shown.items() if label in doctor.LABELS} == doctor.LABELS


def test_what_is_merely_possible_is_not_made_likely_by_pasting_it() -> None:
    shown = report_of(HEALTHY)
    assert report_of(on_terminal(shown, 80)).diagnosis.primary in (None, "not-environment")
    text = "**Possibly: WSL does not reach the GPU.** (`wsl-setup`)\n\n"
    for words in ("knowledge of", "knowledge base of"):
        again = report_of(f"{text}<sub>cudadoctor 0.1.0, {words} 2026-11-21</sub>").diagnosis
        assert (again.primary, again.verdict) == ("wsl-setup", "undecided")


def test_words_of_the_doctor_alone_are_no_verdict() -> None:
    said = report_of("The root cause: nobody knows (driver-too-old)").diagnosis
    assert (said.verdict, said.findings) == ("undecided", ())


# --- facts inside other text -----------------------------------------------------------------------


def in_a_thread(document: str) -> bytes:
    return f"It fails, see below.\n\n```json\n{document}\n```\nThanks {{x}}".encode()


def quoted(document: str) -> bytes:
    return "\n".join(f"> {line}" for line in document.split("\n")).encode()


def from_powershell(document: str) -> bytes:
    return document.encode("utf-16")


def from_notepad(document: str) -> bytes:
    return b"\xef\xbb\xbf" + document.encode()


@pytest.mark.parametrize("pasted", [in_a_thread, quoted, from_powershell, from_notepad])
@pytest.mark.parametrize("whole", [True, False])
def test_facts_are_facts_wherever_they_were_pasted(
    pasted: Callable[[str], bytes], tmp_path: Path, *, whole: bool
) -> None:
    machine = read_report(ERRORS["driver-too-old"], knowledge.load())
    check = json_v1.report(pipeline.report(pipeline.judge(machine)))
    document = json_v1.dumps(check if whole else check["facts"])
    file = tmp_path / "thread.md"
    file.write_bytes(pasted(document))
    found = next(saved.machines((str(file),))).machine
    assert found is not None
    assert pipeline.judge(found).diagnosis.primary == "driver-too-old"
    assert found.symptoms == machine.symptoms


def test_several_checks_in_one_file_are_no_machine() -> None:
    document = factfile.dumps(healthy_machine("rtx4090-linux"))
    assert facts_in(f"{document}\n{document}".encode()) is None
    assert facts_in(b'{"schema": {"type": "object"}} and a text') is None
