"""What a pasted text comes to, and the texts that lie beside in told/."""

from __future__ import annotations

import sys
from pathlib import Path

from cudadoctor import knowledge
from cudadoctor.model.findings import Diagnosis
from cudadoctor.reports.reading import read_report
from cudadoctor.rules.diagnose import diagnose

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path(__file__).parent / "told"
HARMLESS = ("not-environment", "torch-bug")
HEALTHY = (FOLDER / "healthy.txt").read_text("utf-8")
"""What collect_env says of an environment in which nothing is wrong."""


def told(text: str) -> Diagnosis:
    tables = knowledge.load()
    return diagnose(read_report(text, tables), tables)


def root_of(text: str) -> str | None:
    """The root cause; without one, what the text is instead of a fault of the environment."""
    diagnosis = told(text)
    if diagnosis.primary is not None:
        return diagnosis.primary
    return next((one.cause for one in diagnosis.findings if one.cause in HARMLESS), None)


def cases(name: str, kind: str) -> list[tuple[str, str]]:
    """The texts of one kind out of a file, each with its cause ("" where the kind has none)."""
    with (FOLDER / f"{name}.toml").open("rb") as file:
        rows = tomllib.load(file)[kind]
    return [(row.get("cause", ""), row["text"].replace("{healthy}", HEALTHY)) for row in rows]
