"""What a pasted text comes to."""

from __future__ import annotations

from cudadoctor import knowledge
from cudadoctor.diagnose import diagnose
from cudadoctor.findings import Diagnosis
from cudadoctor.reports.reading import read_report

HARMLESS = ("not-environment", "torch-bug")


def told(text: str) -> Diagnosis:
    tables = knowledge.load()
    return diagnose(read_report(text, tables), tables)


def root_of(text: str) -> str | None:
    """The root cause; without one, what the text is instead of a fault of the environment."""
    diagnosis = told(text)
    if diagnosis.primary is not None:
        return diagnosis.primary
    return next((one.cause for one in diagnosis.findings if one.cause in HARMLESS), None)
