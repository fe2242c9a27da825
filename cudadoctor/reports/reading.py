"""A pasted report of any kind -> the machine that it shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import msgspec

from cudadoctor.knowledge.symptoms import symptoms
from cudadoctor.model.machine import Gap
from cudadoctor.reports import (
    assignments,
    doctor,
    installs,
    messages,
    prose,
    told_compilers,
    traces,
)
from cudadoctor.reports.agreement import of_one_torch
from cudadoctor.reports.document import Document, document
from cudadoctor.reports.programs import PROGRAM_READERS
from cudadoctor.reports.symptoms import symptoms_of
from cudadoctor.reports.telling import Said, machine_of

if TYPE_CHECKING:
    from cudadoctor.knowledge import Knowledge
    from cudadoctor.model.machine import Machine

Reader = Callable[[Document, "Knowledge"], Iterable[Said]]

READERS: tuple[Reader, ...] = (
    doctor.read_doctor,
    *PROGRAM_READERS,
    installs.read_installs,
    assignments.read_assignments,
    messages.read_messages,
    traces.read_paths,
    traces.read_lspci,
    prose.read_prose,
    told_compilers.read_told_compilers,
)
"""Each finds what it knows in a document, however little, and tells it. Of two of
one rank that disagree the earlier counts."""


def read_report(data: bytes | str, knowledge: Knowledge) -> Machine:
    """The machine behind a report: what its parts tell, and the error texts that are known.

    Raises NotTextError for what is no text. Never raises for any text.
    """
    whole = document(data)
    doc = doctor.without_own_words(whole)
    said: list[Said] = []
    gaps: list[Gap] = []
    for reader in READERS:
        try:
            said += reader(whole if reader is doctor.read_doctor else doc, knowledge)
        except Exception as error:
            name, kind = reader.__name__.replace("_", " "), type(error).__name__
            gaps.append(Gap(fact=reader.__name__, why=f"{name} failed: {kind}", asked=False))
    found = symptoms_of(doc, symptoms())
    if prose.may_complain(doc):
        why = "the report may complain of something that no reader understood"
        gaps.append(Gap(fact="symptoms", why=why, asked=False))
    machine = machine_of(
        of_one_torch(said), look="report", date=doc.day or None, symptoms=found, gaps=tuple(gaps)
    )
    lines = {f"symptoms.{number}": f"line {one.line}" for number, one in enumerate(found)}
    return msgspec.structs.replace(machine, origins=machine.origins | lines)
