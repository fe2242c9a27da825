"""A pasted report of any kind -> the machine that it shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from cudadoctor.knowledge.symptoms import symptoms
from cudadoctor.model.machine import Gap
from cudadoctor.reports import (
    doctor,
    dumps,
    installs,
    packages,
    phrases,
    prose,
    tools,
    transcripts,
)
from cudadoctor.reports.document import document
from cudadoctor.reports.statements import Reader, Statement, machine_of, of_one_torch
from cudadoctor.reports.symptoms import symptoms_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cudadoctor.knowledge import Knowledge
    from cudadoctor.model.machine import Machine

PROGRAM_READERS: tuple[Reader, ...] = (
    tools.read_nvidia_smi,
    tools.read_kernel_log,
    phrases.reader("kernel_module"),
    dumps.read_collect_env,
    packages.read_packages,
    packages.read_pip_show,
    packages.read_pip_check,
    phrases.reader("toolchain"),
    dumps.read_environment_dumps,
    phrases.reader("listed_gpus"),
    phrases.read_xformers,
    phrases.reader("banners"),
    phrases.reader("numbered_gpus"),
    transcripts.read_transcripts,
    phrases.reader("messages"),
    tools.read_system_packages,
    phrases.reader("limits"),
    tools.read_module_file,
    phrases.reader("lists"),
    tools.read_loader_lines,
)
"""The readers of what programs print about an environment."""
READERS: tuple[Reader, ...] = (
    *PROGRAM_READERS,
    installs.read_installs,
    prose.read_assignments,
    phrases.reader("boards"),
    tools.read_paths,
    phrases.reader("authors"),
    tools.read_lspci,
)
"""Each finds what it knows in a document, however little. Of two statements of one rank that
disagree the earlier counts."""


def read_report(data: bytes | str, knowledge: Knowledge) -> Machine:
    """The machine behind a report: what its parts state, and the error texts that are known.

    Raises NotTextError for what is no text. Never raises for any text.
    """
    whole = document(data)
    doc = doctor.without_own_words(whole)
    statements: list[Statement] = []
    gaps: list[Gap] = []

    def read(reader: Callable[..., Iterable[Statement]], *given: object) -> None:
        try:
            statements.extend(reader(*given))
        except Exception as error:
            name, kind = reader.__name__.replace("_", " "), type(error).__name__
            gaps.append(Gap(fact=reader.__name__, why=f"{name} failed: {kind}", asked=False))

    read(doctor.read_doctor, whole)
    for reader in READERS:
        read(reader, doc)
    read(prose.read_prose, doc, knowledge)
    found = symptoms_of(doc, symptoms())
    if prose.may_complain(doc):
        why = "the report may mention a problem that cudadoctor did not recognize"
        gaps.append(Gap(fact="symptoms", why=why, asked=False))
    machine = machine_of(
        of_one_torch(statements),
        look="report",
        date=doc.day or None,
        symptoms=found,
        gaps=tuple(gaps),
    )
    lines = {f"symptoms.{n}": f"line {symptom.line}" for n, symptom in enumerate(found)}
    return replace(machine, origins=machine.origins | lines)
