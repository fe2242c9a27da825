"""Findings and wishes -> ordered steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudadoctor.model.findings import BuildChoice, Plan, Severity, Step, Wishes
from cudadoctor.model.trust import NOT_TAKEN, Exit, Foreign, acting

if TYPE_CHECKING:
    from cudadoctor.knowledge import Knowledge
    from cudadoctor.model.findings import Diagnosis, Finding, Remedy
    from cudadoctor.model.machine import Machine
    from cudadoctor.plan.remedies.merging import Planned
    from cudadoctor.solver.builds import Choice

    Prescribed = list[tuple[str, tuple[Remedy, ...]]]
    """Causes with their remedies; "" where something was asked for that cures no cause."""

_OWN_INDEX = (
    "The package index of that machine ({host}) is not taken from a document; if the packages "
    "must come from there, add it to the command yourself."
)


def plan(
    machine: Machine,
    knowledge: Knowledge,
    diagnosis: Diagnosis,
    wishes: Wishes | None = None,
) -> Plan:
    """The steps that cure what nothing deeper explains, in causal order, each only once.

    Package changes that belong together are one step, so that none undoes another.
    """
    wishes = wishes or Wishes()
    roots = [one for one in diagnosis.findings if _is_root(one)]
    if not roots and wishes.torch is None:
        return Plan()  # a healthy machine loads nothing that writes commands
    from cudadoctor.plan.remedies.merging import merged
    from cudadoctor.plan.remedies.proven import harmless

    own_index, way_out = _own_index(machine), Exit(machine, knowledge)
    machine = acting(machine)
    given = [(one.cause, harmless(one.remedies, machine, knowledge)) for one in roots]
    choice = _choice(machine, knowledge, given, wishes)
    prescribed = _prescribed(machine, knowledge, given, choice, wishes)
    planned = merged(prescribed, knowledge, choice.build if choice else None)
    return Plan(
        steps=tuple(
            _step(one, machine, knowledge, wishes, way_out, own_index=own_index) for one in planned
        ),
        build=build_choice(machine, choice) if choice else None,
    )


def _own_index(machine: Machine) -> str | None:
    """What is said of an index that a foreign machine has of its own."""
    if not isinstance(machine, Foreign):
        return None
    from cudadoctor.installers.index import own_host

    host = own_host(machine)
    return host and _OWN_INDEX.format(host=host)


def _is_root(finding: Finding) -> bool:
    return not finding.because_of and finding.severity < Severity.INFO


def _choice(
    machine: Machine, knowledge: Knowledge, given: Prescribed, wishes: Wishes
) -> Choice | None:
    """The solver's answer, where any way out installs torch or a wish is not met yet."""
    from cudadoctor.solver.builds import best_build

    cures = any(remedy.id == "install-torch" for _, ways in given for remedy in ways)
    if not cures and not _is_open(machine, wishes):
        return None
    return best_build(machine, knowledge, keep=wishes.torch)


def _is_open(machine: Machine, wishes: Wishes) -> bool:
    """Whether another torch was asked for than the one that is installed."""
    if wishes.torch is None:
        return False
    from cudadoctor.solver.wish import is_met

    return is_met(wishes.torch, machine.torch) is not True


def _prescribed(
    machine: Machine,
    knowledge: Knowledge,
    given: Prescribed,
    choice: Choice | None,
    wishes: Wishes,
) -> Prescribed:
    """The same with the torch that the user asked for."""
    if wishes.torch is None or choice is None:
        return given
    from cudadoctor.plan.remedies.proven import harmless
    from cudadoctor.plan.remedies.torch import wished_torch

    asked = wished_torch(machine, knowledge, choice, wishes.torch)
    wanted = harmless(asked, machine, knowledge)
    found = [(cause, _in_place_of_torch(remedies, wanted)) for cause, remedies in given]
    if not any(one.id == "install-torch" for _, remedies in given for one in remedies):
        found.append(("", wanted))
    return found


def _in_place_of_torch(
    remedies: tuple[Remedy, ...], wanted: tuple[Remedy, ...]
) -> tuple[Remedy, ...]:
    found: dict[str, Remedy] = {}
    for one in remedies:
        for remedy in wanted if one.id == "install-torch" else (one,):
            found.setdefault(remedy.id, remedy)
    return tuple(found.values())


def build_choice(machine: Machine, choice: Choice) -> BuildChoice | None:
    """The solver's answer in the contract's shape; None where no build fits."""
    from cudadoctor.solver.builds import python_of

    build = choice.build
    if build is None:
        return None
    return BuildChoice(
        torch=str(build.torch),
        variant=build.variant,
        torchvision=build.torchvision,
        torchaudio=build.torchaudio,
        python=python_of(machine) or "",
        index=build.index,
        why=choice.why,
        why_not=choice.why_not,
    )


def _step(
    one: Planned,
    machine: Machine,
    knowledge: Knowledge,
    wishes: Wishes,
    way_out: Exit,
    *,
    own_index: str | None,
) -> Step:
    remedy = one.remedy
    wanted, edits, tool = remedy.commands, remedy.edits, remedy.tool
    manual, notes = remedy.manual, [remedy.note]
    change = remedy.packages and way_out.change(remedy.packages)
    if change is not None:
        from cudadoctor import installers as dialects

        written = dialects.write(machine, knowledge, change, wishes.manager)
        wanted, edits = wanted + written.commands, edits + written.edits
        tool, manual = written.tool, manual or written.manual
        if written.wheels:
            notes.append(change.size)
        notes += (written.note, own_index if change.install or change.then else None)
    if remedy.variables and remedy.where == "here":
        from cudadoctor.render import activation

        notes.append(activation.note(machine, remedy.variables, wishes.shell))
    commands, variables = way_out.commands(wanted), way_out.variables(remedy.variables)
    if commands is None or variables is None or (remedy.packages and change is None):
        commands, variables, edits, change = (), {}, (), None
        notes.append(NOT_TAKEN)
    return Step(
        id=remedy.id,
        title=remedy.title,
        group=one.group,
        where=remedy.where,
        risk=remedy.risk,
        needs_root=remedy.needs_root,
        reboot=remedy.reboot,
        commands=commands,
        manual=manual,
        variables=variables,
        edits=edits,
        cures=one.cures,
        tool=tool,
        note=" ".join(note for note in notes if note) or None,
        packages=change,
    )
