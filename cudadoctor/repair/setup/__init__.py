"""`setup DIR`: a new environment with the best build for this machine.

It looks at the machine, chooses, shows what it will do, asks, makes the environment and proves it
by the training step. Where installing fails or is interrupted, what was made is removed. Where it
is installed and the step fails (no driver yet, say), it is kept: the report says what is wrong.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec

from cudadoctor.cli.commands import NARROWEST, WIDEST, examined, written
from cudadoctor.cli.usage import refuse, refuse_contradictions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cudadoctor.cli.options import Asked
    from cudadoctor.knowledge import Knowledge
    from cudadoctor.model.machine import Machine
    from cudadoctor.render.terminal import Line
    from cudadoctor.repair.setup.choosing import Known
    from cudadoctor.repair.setup.document import Told
    from cudadoctor.repair.setup.job import Job
    from cudadoctor.repair.setup.making import Made, Workplace
    from cudadoctor.repair.setup.place import Place


def setup(folder: str, asked: Asked) -> int:
    """Make the environment and prove it. 0 where the training step passed in it, else 1."""
    refuse_contradictions(asked)
    if asked.manager == "docker":
        refuse("setup makes folders, no images: cudadoctor fix --as dockerfile prints a Dockerfile")
    place = _place(folder)
    from cudadoctor import knowledge
    from cudadoctor.repair.setup import choosing, job

    tables = knowledge.load()
    known = _known(asked, tables)
    chosen = choosing.choose(known, tables)
    if isinstance(chosen, choosing.NoWay):
        return _no_way(chosen, known.machine, place, asked)
    work = job.planned(chosen, place, known.tools, tables, asked)
    _say(job.shown(work, _width()), asked, aloud=not asked.yes)
    if told := job.refused(work):
        return _ended(told, asked)
    if not asked.yes and not _agreed(place):
        return _ended(job.told(work, "declined", ("Nothing was made.",)), asked)
    return _made(work, asked)


def _place(folder: str) -> Place:
    from cudadoctor.repair.setup import place

    if not folder.strip():
        refuse("DIR is empty: name a folder that is not there yet")
    found = place.looked_at(folder)
    if sentence := place.refusal(found):
        refuse(sentence)
    return found


def _known(asked: Asked, tables: Knowledge) -> Known:
    """The machine, its tools, and more of its Pythons where its own does not serve."""
    from cudadoctor.cli.progress import shown_on_stderr
    from cudadoctor.host import local
    from cudadoctor.repair.setup import choosing, pythons

    machine = _machine(asked, tables)
    try:
        tools = pythons.tools(local.this_host())
        tool = asked.manager if asked.manager != "docker" else None
        if tool is not None and tool != "pip" and getattr(tools, tool) is None:
            names = "conda, mamba or micromamba" if tool == "conda" else tool
            refuse(f"--with {tool}: there is no {names} on PATH")
        known = choosing.Known(
            machine=machine,
            tools=tools,
            torch=asked.torch,
            tool=tool,
            named=asked.python is not None,
        )
        if choosing.suffices(known, tables):
            return known
        with shown_on_stderr() as progress:
            progress("the Pythons of this machine", True)
            return msgspec.structs.replace(known, others=pythons.found(local.this_host()))
    finally:
        local.close_host()


def _machine(asked: Asked, tables: Knowledge) -> Machine:
    """This machine without its torch; a driver that is slow to answer is asked once more."""
    from cudadoctor.solver.builds import capabilities_of

    quick = msgspec.structs.replace(asked, fast=True, device=None)
    machine = examined(quick)
    if machine.driver.nvml.hung or capabilities_of(machine, tables) is None:
        machine = examined(msgspec.structs.replace(quick, fast=False, no_smoke=True))
    return machine


def _no_way(found: object, machine: Machine, place: Place, asked: Asked) -> int:
    from cudadoctor.repair.setup import choosing, saying
    from cudadoctor.repair.setup.document import Told

    assert isinstance(found, choosing.NoWay)
    _say(saying.no_way(found, machine, _width()), asked, aloud=False)
    why = (*found.why, "Nothing was made.")
    told = Told(outcome="no-build", folder=place.path, why=why, ways_out=found.ways_out)
    return _ended(told, asked, last="nothing was made")


def _agreed(place: Place) -> bool:
    """Whether the user lets it be made; where nobody can be asked, that is wrong use."""
    if not sys.stdin.isatty():
        refuse("nothing was made, since nobody can be asked here: add --yes")
    from cudadoctor.render import inert

    name = inert(place.path)
    first = f"Type y to make {name}"
    if place.ours:
        first = f"{name} was left by a setup that did not end. Type y to make it anew"
    sys.stderr.write(f"{first}; anything else leaves all as it is: ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _made(work: Job, asked: Asked) -> int:
    """Make it with the signals in our hands; then prove it with them given back."""
    from cudadoctor.cli.progress import shown_on_stderr
    from cudadoctor.repair.setup import making, running

    with running.listening() as ear:
        workplace = _workplace(work)
        try:
            with shown_on_stderr() as progress:
                run = running.Runner(ear, progress, workplace)
                made = making.make(workplace, work.recipe, run)
        except BaseException:
            workplace.remove()
            raise
        if made.why is not None or ear.heard is not None:
            return _unmade(work, made, workplace, ear.heard, asked)
        workplace.finish()
    return _proven(work, asked)


def _workplace(work: Job) -> Workplace:
    from cudadoctor.repair.setup import making

    try:
        return making.Workplace(work.place, alone=work.recipe.alone)
    except making.Busy:
        refuse(f"another setup is at work in {work.place.path}: wait for its end")
    except OSError as error:
        refuse(f"{work.place.path} cannot be made: {error.strerror or error}")


def _unmade(work: Job, made: Made, workplace: Workplace, heard: int | None, asked: Asked) -> int:
    """Remove what was made, and say why."""
    from cudadoctor.render import inert
    from cudadoctor.repair.setup import failing, job

    lines = failing.telling(made.said)
    for line in lines if made.why and not asked.as_json else ():
        sys.stderr.write(f"  {inert(line)}\n")
    left = workplace.remove()
    end = f"what was made is removed, except {left}" if left else "what was made is removed"
    if heard is not None:
        told = job.told(work, "interrupted", (f"Interrupted; {end}.",))
        return _ended(told, asked, last=f"interrupted; {end}", code=128 + heard)
    behind = failing.reason(made.said)
    why = f"{made.why}, since {behind}" if behind else f"{made.why}"
    told = job.told(work, "failed", (f"{why}; {end}.", *lines))
    return _ended(told, asked, last=f"{why}; {end}")


def _proven(work: Job, asked: Asked) -> int:
    """Look at the new environment as `check` does, and show its report."""
    from cudadoctor import pipeline as checkup
    from cudadoctor.render import inert, terminal
    from cudadoctor.repair.setup import job, saying

    path = work.recipe.python
    sys.stderr.write(f"{inert(work.place.path)} is made; the training step is to prove it\n")
    look = msgspec.structs.replace(asked, python=path, fast=False, no_smoke=False)
    judged = checkup.judge(examined(look))
    layout = terminal.Layout(width=_width())
    shown = checkup.report(judged, full=True)
    _say([terminal.Line(()), *terminal.report(shown, layout), terminal.Line(())], asked)
    _say(saying.use(work.recipe, work.place.path, work.chosen.machine, _width()), asked)
    return _ended(job.judged(work, judged), asked)


def _ended(told: Told, asked: Asked, *, last: str | None = None, code: int | None = None) -> int:
    """The document or the last sentence, and the exit code."""
    if asked.as_json:
        from cudadoctor import __version__, knowledge
        from cudadoctor.render.json_v1 import dumps
        from cudadoctor.repair.setup.document import document

        written(dumps(document(told, __version__, knowledge.load().date)) + "\n", None)
    else:
        from cudadoctor.render import inert

        sentence = last or " ".join(told.why)
        if sentence:
            sys.stderr.write(f"cudadoctor: {inert(sentence)}\n")
    return code if code is not None else 0 if told.outcome == "proven" else 1


def _say(lines: Iterable[Line], asked: Asked, *, aloud: bool = False) -> None:
    """Lines on stdout; where a document goes there, on stderr if they must be read (aloud)."""
    from cudadoctor.cli import painting

    if not asked.as_json:
        written(painting.painted(list(lines)), None)
    elif aloud:
        sys.stderr.write(painting.painted(list(lines), to_file=True))


def _width() -> int:
    from cudadoctor.cli import painting

    return painting.width(NARROWEST, WIDEST)
