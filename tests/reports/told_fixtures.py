"""The diagnosis of a pasted text, and the texts in told/."""

from __future__ import annotations

import sys
from pathlib import Path

from msgspec.structs import replace

from cudadoctor import knowledge
from cudadoctor.model.findings import Diagnosis
from cudadoctor.model.machine import Machine
from cudadoctor.reports.reading import read_report
from cudadoctor.rules.diagnose import by_rules

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path(__file__).parent / "told"
HARMLESS = ("not-environment", "torch-bug")
HEALTHY = (FOLDER / "healthy.txt").read_text("utf-8")
"""What collect_env prints in a healthy environment."""


def without_words(text: str) -> Machine:
    """The machine of a report without what its words read like: the rules alone judge it."""
    return replace(read_report(text, knowledge.load()), likeness={})


def diagnosis_of(text: str) -> Diagnosis:
    """What the rules alone say: they have to be right without words that merely read alike."""
    tables = knowledge.load()
    return by_rules(read_report(text, tables), tables)


def root_of(text: str) -> str | None:
    """The root cause, or else what the text is about if not a fault of the environment."""
    diagnosis = diagnosis_of(text)
    if diagnosis.primary is not None:
        return diagnosis.primary
    return next(
        (finding.cause for finding in diagnosis.findings if finding.cause in HARMLESS), None
    )


def cases(name: str, kind: str) -> list[tuple[str, str]]:
    """The texts of one kind from a file, each with its cause ("" if the kind has none)."""
    with (FOLDER / f"{name}.toml").open("rb") as file:
        rows = tomllib.load(file)[kind]
    return [(row.get("cause", ""), row["text"].replace("{healthy}", HEALTHY)) for row in rows]
