"""What the readers of programs' outputs tell of a text, without the table of symptoms."""

from __future__ import annotations

from cudadoctor.model.machine import Machine
from cudadoctor.reports.document import document
from cudadoctor.reports.reading import PROGRAM_READERS
from cudadoctor.reports.statements import machine_of


def shown(text: str) -> Machine:
    """The machine that a text shows."""
    doc = document(text)
    said = [fact for reader in PROGRAM_READERS for fact in reader(doc)]
    return machine_of(said, look="report")
