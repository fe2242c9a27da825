"""Which steps of a plan the doctor takes itself, and which it leaves to the user. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from cudadoctor.model.findings import Risk
from cudadoctor.render.activation import kept_by_conda
from cudadoctor.render.script import is_runnable
from cudadoctor.render.summary import cost_of
from cudadoctor.repair.place import folder_made
from cudadoctor.repair.records import Task

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cudadoctor.model.findings import Plan, Step
    from cudadoctor.model.machine import Machine
    from cudadoctor.render.shells import ShellName


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """A step that is not taken, and why not, in a few words."""

    step: Step
    why: str


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """steps: run or written here. variables: set for the second look, told for the user's shell.

    left: of each other group the preferred step, for the user.
    """

    steps: tuple[Step, ...] = ()
    shell: tuple[Step, ...] = ()
    left: tuple[Left, ...] = ()

    @property
    def variables(self) -> dict[str, str | None]:
        """All that the taken steps and those for the shell set (None: unset)."""
        found: dict[str, str | None] = {}
        for step in (*self.steps, *self.shell):
            found.update(step.variables)
        return found

    @property
    def cures(self) -> tuple[str, ...]:
        return tuple(
            dict.fromkeys(cause for step in (*self.steps, *self.shell) for cause in step.cures)
        )


def chosen(plan: Plan) -> Chosen:
    """Of each group the first step that can be taken here and undone."""
    steps: list[Step] = []
    shell: list[Step] = []
    left: list[Left] = []
    for group in _groups(plan):
        taken = next((step for step in group if can_be_taken(step)), None)
        if taken is None:
            left.append(Left(step=group[0], why=why_left(group[0])))
        elif taken.commands:
            steps.append(taken)
        else:
            shell.append(taken)
    return _in_one_place(Chosen(steps=tuple(steps), shell=tuple(shell), left=tuple(left)))


def can_be_taken(step: Step) -> bool:
    """Whether it may stand in a script, and an undo covers what it changes."""
    return is_runnable(step) and (not step.commands or step.risk is Risk.ENVIRONMENT)


def why_left(step: Step) -> str:
    """Why a step is left for the user."""
    if is_runnable(step):
        return "it changes more than this environment"
    if step.verified is False:
        return "it does not resolve"
    if step.edits and step.commands:
        return "a file is changed by hand first"
    return cost_of(step)


def _in_one_place(found: Chosen) -> Chosen:
    """Where a new environment is made, steps that change the old one are left."""
    folders = [folder_made(step) for step in found.steps]
    first = next((one for one in folders if one), None)
    if first is None:
        return found
    there = tuple(step for step, one in zip(found.steps, folders, strict=True) if one == first)
    other = tuple(step for step, one in zip(found.steps, folders, strict=True) if one != first)
    left = tuple(Left(step=step, why="it belongs to another environment") for step in other)
    return Chosen(steps=there, shell=found.shell, left=(*found.left, *left))


def _groups(plan: Plan) -> Iterator[list[Step]]:
    groups: dict[str, list[Step]] = {}
    for step in plan.steps:
        groups.setdefault(step.group, []).append(step)
    yield from groups.values()


def tasks_of(found: Chosen, machine: Machine, shell: ShellName) -> tuple[Task, ...]:
    """The steps as the journal keeps them; a conda environment keeps variables in files."""
    tasks = [_task(step) for step in found.steps]
    for step in found.shell:
        kept = kept_by_conda(machine, step.variables, shell)
        files = tuple((one.file, one.what + "\n") for one in kept)
        tasks.append(msgspec.structs.replace(_task(step), files=files))
    return tuple(tasks)


def _task(step: Step) -> Task:
    return Task(
        id=step.id,
        title=step.title,
        commands=step.commands,
        cures=step.cures,
        variables=dict(step.variables),
    )
