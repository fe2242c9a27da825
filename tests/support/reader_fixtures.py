"""What the readers of programs' outputs tell of a text, without the table of symptoms."""

from __future__ import annotations

from cudadoctor.knowledge import load
from cudadoctor.model.machine import Machine
from cudadoctor.reports.document import document
from cudadoctor.reports.programs import PROGRAM_READERS
from cudadoctor.reports.telling import machine_of


def shown(text: str) -> Machine:
    """The machine that a text shows."""
    doc, knowledge = document(text), load()
    said = [one for reader in PROGRAM_READERS for one in reader(doc, knowledge)]
    return machine_of(said, look="report")
