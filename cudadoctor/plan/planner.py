"""Findings and wishes -> ordered steps: each remedy once, and none that undoes another."""

from collections.abc import Iterable

import msgspec
from packaging.version import Version

from cudadoctor.installers import registry
from cudadoctor.installers.index import is_foreign, own_host
from cudadoctor.installers.requirement import name_of
from cudadoctor.knowledge import Knowledge, TorchBuild
from cudadoctor.model.findings import (
    BuildChoice,
    Diagnosis,
    PackageChange,
    Plan,
    Remedy,
    Step,
    Wishes,
)
from cudadoctor.model.machine import Machine
from cudadoctor.model.requirements import COMPANIONS, EXTENSIONS
from cudadoctor.model.trust import NOT_TAKEN, Exit, acting
from cudadoctor.plan.remedies.torch import (
    install_torch,
    installed_row,
    installed_variant,
    wished_torch,
)
from cudadoctor.render import activation
from cudadoctor.solver.builds import Choice, best_build
from cudadoctor.solver.constraint import is_met
from cudadoctor.solver.demand import platform_blocker, platform_of, python_of
from cudadoctor.solver.reasons import companion_of

Prescribed = list[tuple[str, tuple[Remedy, ...]]]
"""Causes with their remedies; "" where something was asked for that cures no cause."""

_TORCH_STEPS = ("install-torch", "jetson-torch", "reinstall-torch")
_PART_OF_TORCH = ("nvidia-", "cuda-", "triton", "pytorch-triton")
_NEEDED = (
    "No wheel of {wanted} is known for this Python and this system, so the torch that is here "
    "stays. Make a new environment with a Python that has one; this environment stays as it is."
)


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """A remedy with its place: alternatives share a group, whose first one is preferred."""

    remedy: Remedy
    group: str
    cures: tuple[str, ...] = ()


def plan(
    machine: Machine, knowledge: Knowledge, diagnosis: Diagnosis, wishes: Wishes | None = None
) -> Plan:
    """The steps that cure what nothing deeper explains, in causal order, each only once.

    Package changes that belong together are one step, so that none undoes another.
    """
    wishes = wishes or Wishes()
    way_out, machine = Exit(machine, knowledge, own_host(machine)), acting(machine)
    prescribed: Prescribed = [
        (finding.cause, harmless(finding.remedies, machine, knowledge))
        for finding in diagnosis.roots
    ]
    cures = any(remedy.id == "install-torch" for _, found in prescribed for remedy in found)
    choice = None
    if cures or (wishes.torch and is_met(wishes.torch, machine.torch) is not True):
        choice = best_build(machine, knowledge, keep=wishes.torch)
    if wishes.torch and choice:
        wished = wished_torch(machine, knowledge, choice, wishes.torch)
        wanted = harmless(wished, machine, knowledge)
        prescribed = [
            (
                cause,
                _each_once(
                    new
                    for remedy in found
                    for new in (wanted if remedy.id == "install-torch" else (remedy,))
                ),
            )
            for cause, found in prescribed
        ]
        prescribed += [] if cures else [("", wanted)]
    planned = merged(prescribed, knowledge, choice.build if choice else None)
    return Plan(
        steps=tuple(_step(entry, machine, knowledge, wishes, way_out) for entry in planned),
        build=build_choice(machine, choice) if choice else None,
    )


def _each_once(remedies: Iterable[Remedy]) -> tuple[Remedy, ...]:
    found: dict[str, Remedy] = {}
    for remedy in remedies:
        found.setdefault(remedy.id, remedy)
    return tuple(found.values())


def build_choice(machine: Machine, choice: Choice) -> BuildChoice | None:
    """The solver's answer in the contract's shape; None where no build fits."""
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
    planned: Planned, machine: Machine, knowledge: Knowledge, wishes: Wishes, way_out: Exit
) -> Step:
    remedy = planned.remedy
    wanted, edits, tool = remedy.commands, remedy.edits, remedy.tool
    manual, notes = remedy.manual, [remedy.note]
    change = remedy.packages and way_out.change(remedy.packages)
    if change is not None:
        written = registry.write(machine, knowledge, change, wishes.manager)
        wanted, edits = wanted + written.commands, edits + written.edits
        tool, manual = written.tool, manual or written.manual
        notes += (
            change.size if written.wheels else None,
            written.note,
            way_out.own_index if change.install or change.then else None,
        )
    if remedy.variables and remedy.where == "here":
        notes.append(activation.note(machine, remedy.variables, wishes.shell))
    commands, variables = way_out.commands(wanted), way_out.variables(remedy.variables)
    if commands is None or variables is None or (remedy.packages and change is None):
        commands, variables, edits, change = (), {}, (), None
        notes.append(NOT_TAKEN)
    return Step(
        id=remedy.id,
        title=remedy.title,
        group=planned.group,
        where=remedy.where,
        risk=remedy.risk,
        needs_root=remedy.needs_root,
        reboot=remedy.reboot,
        commands=commands,
        manual=manual,
        variables=variables,
        edits=edits,
        cures=planned.cures,
        tool=tool,
        note=" ".join(filter(None, notes)) or None,
        packages=change,
    )


# --- many prescriptions as one list -------------------------------------------------------------


def merged(prescribed: Prescribed, knowledge: Knowledge, build: TorchBuild | None) -> list[Planned]:
    """The prescriptions of all causes (the gravest first) as steps.

    build: the torch that is going to be installed, where that is known.
    """
    found: dict[str, Planned] = {}
    entries = [
        (cause, remedies[0].id, remedy) for cause, remedies in prescribed for remedy in remedies
    ]
    # What some cause prefers is nobody's alternative.
    for cause, group, remedy in sorted(entries, key=lambda entry: entry[1] != entry[2].id):
        known = found.setdefault(remedy.id, Planned(remedy=remedy, group=group))
        if cause and cause not in known.cures:
            found[remedy.id] = msgspec.structs.replace(known, cures=(*known.cures, cause))
    main = next(
        (found[name] for name in _TORCH_STEPS if name in found and found[name].group == name), None
    )
    steps = list(found.values())
    if main is not None:
        steps = _absorbed(steps, main, knowledge, build)
    order = list(dict.fromkeys(step.group for step in steps))
    return sorted(steps, key=lambda step: (order.index(step.group), step.remedy.id != step.group))


def _absorbed(
    steps: list[Planned], main: Planned, knowledge: Knowledge, build: TorchBuild | None
) -> list[Planned]:
    """The other preferred package changes, made part of the step that installs torch."""
    change = main.remedy.packages
    if change is None:
        return steps
    cures, gone = dict.fromkeys(main.cures), set()
    for step in steps:
        if step is not main and step.remedy.packages and step.group == step.remedy.id:
            change = _joined(change, step.remedy.packages, knowledge, build)
            cures |= dict.fromkeys(step.cures)
            gone.add(step.group)
    whole = Planned(
        remedy=msgspec.structs.replace(main.remedy, packages=change),
        group=main.group,
        cures=tuple(cures),
    )
    return [
        whole
        if step is main
        else msgspec.structs.replace(step, group=main.group)
        if step.group in gone
        else step
        for step in steps
        if step.remedy.id not in gone
    ]


def _joined(
    change: PackageChange, other: PackageChange, knowledge: Knowledge, build: TorchBuild | None
) -> PackageChange:
    """A change of torch together with another change of the same environment."""
    install = {name_of(requirement): requirement for requirement in change.install}
    then = {name_of(requirement): requirement for requirement in change.then}
    for requirement in (*other.install, *other.then):
        name = name_of(requirement)
        if name == "torch" or name.startswith(_PART_OF_TORCH):
            continue
        if name in COMPANIONS:
            fitting = companion_of(name, build, knowledge) if build else None
            install.setdefault(name, f"{name}=={fitting}" if fitting else requirement)
        elif name in install or name in then:
            continue  # The change of torch has its release already.
        elif name in EXTENSIONS and build is not None:
            fitting = companion_of(name, build, knowledge)
            if fitting is not None or name not in change.remove:
                then[name] = f"{name}=={fitting}" if fitting else name
        else:
            then[name] = requirement
    return msgspec.structs.replace(
        change,
        install=tuple(install.values()),
        then=tuple(then.values()),
        remove=tuple(dict.fromkeys(change.remove + other.remove)),
    )


# --- no torch is given up for one that cannot be had, nor for the very same one ------------------


def harmless(remedies: tuple[Remedy, ...], m: Machine, kb: Knowledge) -> tuple[Remedy, ...]:
    """The remedies of one cause without what would harm, or leave all as it is.

    Every package change is asked here, so that no single rule has to answer for it.
    """
    return _each_once(sound for remedy in remedies for sound in _harmless(remedy, m, kb))


def _harmless(remedy: Remedy, m: Machine, kb: Knowledge) -> tuple[Remedy, ...]:
    change = remedy.packages
    if change is None or "torch" not in map(name_of, change.install):
        return (remedy,)
    if remedy.id == "install-torch" and _is_there(change, m, kb):
        return ()
    sure = _installable(change, m, kb)
    if sure or "torch" not in change.remove:
        return (remedy,)
    if sure is None:
        asking = msgspec.structs.replace(change, ask=True)
        return (msgspec.structs.replace(remedy, packages=asking),)
    others = install_torch(m, kb) if remedy.id == "reinstall-torch" else ()
    text = _NEEDED.format(wanted=f"torch {_release_of(change)}".rstrip())
    return others or (msgspec.structs.replace(remedy, packages=None, manual=text),)


def _installable(change: PackageChange, m: Machine, kb: Knowledge) -> bool | None:
    """Whether the tables have this torch as a wheel for this interpreter and system.

    None where they do not know the build, or a fact that decides is missing. What the wheel that
    is installed needs is there: that stands in for an unknown Python and an unknown glibc.
    """
    if m.platform.system and m.platform.machine and platform_blocker(m):
        return False
    python, board = python_of(m), m.platform.l4t
    if is_foreign(change.index):
        made = kb.jetson_build(board.major) if board else None
        return python == made.python if made and python else None
    build = _build_of(change, m, kb)
    if build is None:
        release = _release_of(change)
        elsewhere = bool(release and platform_of(m) and change.variant)
        return False if elsewhere and Version(release) in kb.torch_releases() else None
    own = installed_row(m, kb) if m.torch.installed else None
    pythons = {python} if python else set(own.pythons if own else ())
    glibc = m.platform.glibc or (own.glibc if own else None)
    old = build.glibc is not None and (glibc is None or glibc < build.glibc)
    if build.published and pythons and pythons <= set(build.pythons) and not old:
        return True
    refused = python not in (None, *build.pythons) or (old and m.platform.glibc is not None)
    return False if refused or build.published is False else None


def _is_there(change: PackageChange, m: Machine, kb: Knowledge) -> bool:
    """Whether exactly this torch is installed; one with other code than the tables' is another."""
    build, version = _build_of(change, m, kb), m.torch.version
    if m.torch.installed is False or build is None or version is None:
        return False
    if version.public != build.torch.public or installed_variant(m) != build.variant:
        return False
    unsure = build.archs_uncertain or None in (build.archs, m.torch.archs)
    return unsure or set(build.archs or ()) == set(m.torch.archs or ())


def _build_of(change: PackageChange, m: Machine, kb: Knowledge) -> TorchBuild | None:
    release, platform = _release_of(change), platform_of(m)
    if not release or platform is None or change.variant is None:
        return None
    return kb.build_of(Version(release), change.variant, platform)


def _release_of(change: PackageChange) -> str:
    """The release of torch that is to be installed, "" for any."""
    torch = next(wanted for wanted in change.install if name_of(wanted) == "torch")
    return torch.partition("==")[2]
