"""`fix`: applies the plan to the examined environment as a transaction that can be undone.

look, judge, plan, choose, show, ask, look for what stands in the way, record, apply, look again,
keep or bring back.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from cudadoctor.cli.options import Asked
from cudadoctor.cli.usage import refuse
from cudadoctor.repair.following import Following
from cudadoctor.repair.interrupts import Interrupts
from cudadoctor.repair.journal import Busy, Journal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cudadoctor.pipeline import Judged
    from cudadoctor.render.shells import ShellName
    from cudadoctor.repair.chosen import Chosen
    from cudadoctor.repair.place import Place
    from cudadoctor.repair.records import Begun, Opinion, Task
    from cudadoctor.repair.room import Download
    from cudadoctor.repair.words import Outcome

NOBODY = "there is no terminal to ask on: add --yes to apply the repair, or --print to print it"


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One call of `fix`. open_journal: makes the journal of an environment."""

    asked: Asked
    following: Following
    open_journal: Callable[[str], Journal]


def fix(asked: Asked, open_journal: Callable[[str], Journal] = Journal.of) -> int:
    """Apply, resume, undo or forget a repair. 0 cured or nothing to do, 1 not cured."""
    _hold_streams()
    _refuse_what_needs_a_word(asked)
    following = Following(verbose=asked.verbose > 0)
    call = Call(asked=asked, following=following, open_journal=open_journal)
    if asked.undo or asked.resume or asked.forget:
        from cudadoctor.repair import earlier

        with Interrupts() as interrupts:
            ended = earlier.act(asked, open_journal, following, interrupts, _agreed_to(asked))
        return _shown(ended, asked, None, None)
    return _repair(call)


def _hold_streams() -> None:
    """Stand in for streams that were closed, or the journal would be opened in their place."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            stream = os.fdopen(number, mode, encoding="utf-8", closefd=False)
            setattr(sys, name, stream)


def _refuse_what_needs_a_word(asked: Asked) -> None:
    if asked.saved:
        refuse("--from judges saved facts, which cannot be repaired: add --print")
    if asked.manager == "docker":
        refuse("--with docker writes an image and repairs none: add --print")
    if asked.as_json and not asked.yes and not (asked.undo or asked.resume or asked.forget):
        refuse("--json leaves no place for a question: add --yes, or --print")
    if not (asked.yes or asked.undo or asked.resume or asked.forget or sys.stdin.isatty()):
        refuse(NOBODY)


def _repair(call: Call) -> int:
    from cudadoctor.repair import begin, chosen, earlier, place, refused

    asked = call.asked
    prefix = earlier.with_journal(asked.python)
    _refuse_unfinished(prefix, call)
    known = _repairs_in(prefix, call)
    judged, before = _looked(asked)
    steps = chosen.chosen(judged.plan)
    home = judged.machine.python.prefix
    project = home is not None and refused.holds_a_project(home)
    where = place.place_of(judged.machine, steps.steps, project=project)
    _tell(_plan_lines(judged, steps, where), asked)
    tasks = chosen.tasks_of(steps, judged.machine, _shell(asked, judged))
    if where is None or not any(task.commands or task.files for task in tasks):
        return _shown(_nothing_applied(judged, steps, asked), asked, judged, before)
    _refuse_place(judged, where, call)
    if prefix is None or not os.path.samefile(prefix, _nearest(where.prefix)):
        known = _repairs_in(where.prefix, call)
    if not _agreed_to(asked)("Apply", ""):
        return _shown(_unchanged("Nothing was changed.", 1), asked, judged, before)
    first = begin.begun(where, judged.machine, tasks, before, begin.options_of(asked))
    why, download = _in_the_way(where, judged, steps, call)
    why = why or _led_elsewhere(tasks, call)
    ended = _unchanged(why, 1) if why else _begin(first, where, download, known, call)
    return _shown(ended, asked, judged, before)


def _looked(asked: Asked) -> tuple[Judged, Opinion]:
    """The machine, judged and planned for, and the verdict in short."""
    from cudadoctor import pipeline as checkup
    from cudadoctor.cli import commands, printing
    from cudadoctor.render import json_v1
    from cudadoctor.repair.better import opinion

    machine = commands.told(commands.this_machine(asked)[0], asked)
    wishes = printing.wishes_of(asked, machine)
    judged = checkup.judge(machine, wishes, ignore=asked.ignore)
    return judged, opinion(json_v1.report(checkup.report(judged, full=True)))


def _refuse_place(judged: Judged, where: Place, call: Call) -> None:
    from cudadoctor.repair import begin

    if sentence := begin.refusal(judged.machine, where, allow_shared=call.asked.shared):
        refuse(sentence)
    _refuse_unfinished(where.prefix, call)
    if where.limits:
        call.following.say(where.limits)


def _refuse_unfinished(prefix: str | None, call: Call) -> None:
    """What an interrupted repair left is neither judged nor built upon."""
    from cudadoctor.repair import words
    from cudadoctor.repair.records import JournalError

    try:
        story = call.open_journal(prefix).open_story() if prefix else None
    except JournalError as error:
        refuse(f"{prefix}: {error}")
    if story is not None and story.unfinished:
        resume, undo = (words.command(one, prefix or "") for one in ("--resume", "--undo"))
        refuse(f"an earlier repair was interrupted: end it with {resume}, or take it back: {undo}")


def _in_the_way(
    where: Place, judged: Judged, steps: Chosen, call: Call
) -> tuple[str | None, Download | None]:
    """Why nothing may be changed (None: it may), and what will be downloaded."""
    from cudadoctor.repair import begin, refused

    if sentence := refused.in_use(where, call.following.say):
        return f"Nothing was changed: {sentence}.", None
    with call.following.doing("asking a resolver"):
        why, download = begin.dry_run(steps.steps, judged.machine, call.asked, call.following.say)
    return (f"Nothing was changed: {why}." if why else None), download


def _led_elsewhere(tasks: tuple[Task, ...], call: Call) -> str | None:
    from cudadoctor.repair import refused
    from cudadoctor.repair.applied import not_heeded

    if names := not_heeded(os.environ):
        call.following.say(f"not heeded, to change this environment only: {', '.join(names)}")
    sentence = refused.elsewhere_by_configuration(tasks, os.environ)
    return f"Nothing was changed: {sentence}." if sentence else None


def _nearest(folder: str) -> str:
    return folder if os.path.isdir(folder) else os.curdir


def _repairs_in(prefix: str | None, call: Call) -> tuple[str, ...]:
    """The names of the repairs that are known."""
    return tuple(one.id for one in call.open_journal(prefix).stories()) if prefix else ()


def _begin(
    first: Begun, where: Place, download: Download | None, known: tuple[str, ...], call: Call
) -> Outcome:
    """Repair, where no other repair runs and the disk suffices."""
    from cudadoctor.repair import begin
    from cudadoctor.repair.journal import FOLDER
    from cudadoctor.repair.records import JournalError
    from cudadoctor.repair.restore import remove_made
    from cudadoctor.repair.transaction import Transaction

    try:
        with Interrupts() as interrupts, call.open_journal(where.prefix) as journal:
            if tuple(one.id for one in journal.stories()) != known:
                return _unchanged(
                    "Nothing was changed: another cudadoctor repaired it meanwhile.", 1
                )
            if sentence := begin.no_room(where, download, journal.folder):
                remove_made(first.made)
                return _unchanged(f"Nothing was changed: {sentence}.", 1)
            return Transaction(journal, first, call.following, interrupts, os.environ).run()
    except Busy:
        return _unchanged(f"Nothing was changed: another cudadoctor repairs {where.prefix}.", 1)
    except JournalError as error:
        return _unchanged(f"Nothing was changed: {where.prefix}/{FOLDER}: {error}.", 1)
    except OSError as error:
        return _unchanged(f"Nothing was changed: {where.prefix}: {error.strerror}.", 1)


def _agreed_to(asked: Asked) -> Callable[[str, str], bool]:
    """How the user is asked (a word, a sentence before it); --yes answers all questions."""

    def ask(word: str, sentence: str) -> bool:
        if asked.yes:
            return True
        if not sys.stdin.isatty():
            refuse(f"{sentence}: add --yes, since there is no terminal to ask on")
        sys.stdout.flush()
        before = "".join(f"{line}\n" for line in words.wrapped(sentence, _width(), 0))
        sys.stderr.write(f"\n{before}{word}? [y/N] ")
        sys.stderr.flush()
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    from cudadoctor.repair import words

    return ask


def _nothing_applied(judged: Judged, steps: Chosen, asked: Asked) -> Outcome:
    from cudadoctor.repair.words import Outcome, what_remains

    diagnosis = judged.diagnosis
    if diagnosis.verdict == "healthy" or not (judged.plan.steps or diagnosis.primary):
        if diagnosis.verdict != "undecided":
            return Outcome(kind="nothing", code=0, why="Nothing to do.")
        return _unchanged("Not enough is known for a repair: see cudadoctor check.", 1)
    _tell(what_remains(judged, steps, _width()), asked)
    return Outcome(kind="unchanged", code=1, why="Nothing was changed.")


def _unchanged(why: str, code: int) -> Outcome:
    from cudadoctor.repair.words import Outcome

    return Outcome(kind="unchanged", code=code, why=why)


def _shell(asked: Asked, judged: Judged) -> ShellName:
    from cudadoctor.cli import printing

    return printing.wishes_of(asked, judged.machine).shell


def _plan_lines(judged: Judged, steps: Chosen, where: Place | None) -> Iterable[str]:
    from cudadoctor.repair import words

    return words.plan(judged, steps, where, _width())


def _width() -> int:
    from cudadoctor.cli import commands, painting

    return painting.width(commands.NARROWEST, commands.WIDEST)


def _tell(lines: Iterable[str], asked: Asked) -> None:
    """Lines for people, on stdout; with --json there is only the document."""
    if not asked.as_json:
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        sys.stdout.flush()


def _shown(one: Outcome, asked: Asked, judged: Judged | None, before: Opinion | None) -> int:
    from cudadoctor.cli import commands
    from cudadoctor.repair import words

    if asked.as_json:
        from cudadoctor import __version__, knowledge
        from cudadoctor.render import json_v1

        versions = (__version__, str(knowledge.load().date))
        document = words.document(one, judged, before, versions)
        commands.written(json_v1.dumps(document) + "\n", asked.output)
    else:
        _tell(["", *words.outcome(one, _width())], asked)
    return one.code
