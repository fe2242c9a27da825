"""A pasted report of any kind -> the machine that it shows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec.structs import replace
from packaging.version import Version

from cudadoctor.knowledge.symptoms import symptoms
from cudadoctor.model.machine import Gap
from cudadoctor.reports import (
    demands,
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
from cudadoctor.reports.likeness import likeness, weights, words_of
from cudadoctor.reports.statements import Reader, Statement, machine_of, of_one_torch
from cudadoctor.reports.symptoms import symptoms_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cudadoctor.knowledge import Knowledge
    from cudadoctor.knowledge.software import TegraRelease
    from cudadoctor.model.machine import Machine

PROGRAM_READERS: tuple[Reader, ...] = (
    tools.read_nvidia_smi,
    tools.read_kernel_log,
    phrases.reader("kernel_module"),
    dumps.read_collect_env,
    packages.read_packages,
    packages.read_lock,
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
    tools.read_paths,
    phrases.reader("authors"),
    demands.read_demands,
    tools.read_lspci,
)
"""Each finds what it knows in a document, however little. Of two statements of one rank that
disagree the earlier counts."""


def read_report(data: bytes | str, knowledge: Knowledge) -> Machine:
    """The machine behind a report: what its parts state, and the error texts that are known.

    Raises NotTextError for what is no text. Never raises for any text.
    """
    whole = document(data)
    author = prose.authors_own(whole)
    doc = doctor.without_own_words(author)
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
        # This doctor's own words are like those of no report.
        likeness=likeness(words_of(doc.text), weights()) if doc is author else {},
        gaps=tuple(gaps),
    )
    machine = demands.with_installed(_with_l4t(machine, knowledge))
    lines = {f"symptoms.{n}": f"line {symptom.line}" for n, symptom in enumerate(found)}
    return replace(machine, origins=machine.origins | lines)


def _with_l4t(m: Machine, knowledge: Knowledge) -> Machine:
    """A Jetson with the release of Linux for Tegra that its kernel, driver or board tells."""
    here, driver, names = m.platform, m.driver, {gpu.name for gpu in m.gpus or ()}
    if not here.jetson or here.l4t is not None:
        return m
    found = re.match(r"(\d+\.\d+)\.\S*-tegra", here.kernel or "")
    kernel, branch = found and found[1], driver.version and driver.version.branch
    ubuntu = here.distro_version if here.distro == "ubuntu" and not m.container.kind else None
    # The surest sign first: of two that differ, what the kernel says of itself counts.
    signs: tuple[tuple[str, Callable[[TegraRelease], bool]], ...] = (
        ("platform.kernel", lambda row: row.kernel == kernel),
        ("driver.reported", lambda row: row.driver is not None and row.driver == branch),
        ("gpus.0.name", lambda row: not names.isdisjoint(row.gpus)),
        ("driver.cuda", lambda row: str(driver.cuda) in row.cuda),
        ("platform.distro_version", lambda row: row.ubuntu == ubuntu),
    )
    for path, is_shown in signs:
        for row in knowledge.tegra_releases:
            if is_shown(row):
                origins = m.origins | {"platform.l4t": m.origins.get(path, "the board")}
                platform = replace(here, l4t=Version(f"{row.l4t}"))
                return replace(m, platform=platform, origins=origins)
    return m
