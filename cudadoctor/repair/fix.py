"""`fix`: applies the plan to the examined environment as a transaction that can be undone.

look, judge, plan, choose, show, ask, look for what stands in the way, record, apply, look again,
keep or bring back.
"""

import os
import sys
from collections.abc import Iterable
from os.path import isdir

from msgspec import Struct
from msgspec.structs import replace

from cudadoctor import __version__, knowledge, pipeline
from cudadoctor.cli.looking import this_machine
from cudadoctor.cli.options import Options, refuse
from cudadoctor.cli.output import Waiting, asked, painted, signs, width, written
from cudadoctor.cli.speech import current, say
from cudadoctor.installers.registry import BY_NAME
from cudadoctor.model.machine import OptStr, Strings
from cudadoctor.pipeline import Judged
from cudadoctor.render import json_v1
from cudadoctor.render.terminal import Layout, Line
from cudadoctor.repair import begin, earlier, words
from cudadoctor.repair.journal import FOLDER, Begun, Busy, Journal, JournalError, Opinion
from cudadoctor.repair.session import ignored_variables, patient_interrupts
from cudadoctor.repair.snapshot import remove_made
from cudadoctor.repair.transaction import Transaction, opinion
from cudadoctor.repair.words import Outcome, unchanged


def fix(options: Options) -> int:
    """Apply, resume, undo or forget a repair. 0 cured or nothing to do, 1 not cured."""
    if options.saved:
        refuse("a fix cannot be applied to a saved report; add --print to print the fix")
    if options.manager and BY_NAME[options.manager].new is None:
        refuse("fixes for --with {tool} can only be printed; add --print", tool=options.manager)
    with Waiting(lead="") as waiting:
        call = _Fix(options, waiting)
        if options.undo or options.resume or options.forget:
            with patient_interrupts() as interrupts:
                return call.show(earlier.act(options, waiting, interrupts, call.agreed))
        if options.as_json and not options.yes:
            refuse("cannot prompt with --json; add --yes to apply the fix or --print to print it")
        if not (options.yes or sys.stdin.isatty()):
            refuse(
                "cannot prompt without a terminal; add --yes to apply the fix or --print to "
                "print it"
            )
        return call.show(call.repaired())


_LIMITS = (
    "Undoing the fix restores only this Python's library folder and scripts; files that packages "
    "installed elsewhere (in share/ or etc/) are left in place."
)


def _layout() -> Layout:
    return Layout(width=width(), signs=signs(), say=current())


class _Fix(Struct):
    """One call of `fix`."""

    options: Options
    waiting: Waiting
    judged: Judged | None = None
    before: Opinion | None = None

    def repaired(self) -> Outcome:
        """Look, judge, choose, ask; then the transaction."""
        options, tell = self.options, self.waiting.say
        prefix = earlier.with_journal(options.python)
        known = _known(prefix)
        machine = pipeline.with_options(this_machine(options), options)
        wishes = pipeline.wishes_of(options, machine)
        judged = self.judged = pipeline.judge(machine, wishes, ignore=options.ignore)
        machine = judged.machine
        self.before = opinion(json_v1.report(pipeline.report(judged, full=True)))
        steps = begin.chosen(judged.plan)
        where = begin.place_of(machine, steps.steps, project=begin.is_project(machine))
        self._print(words.plan(judged, steps, where, _layout()))
        tasks = begin.tasks_of(steps, machine, wishes.shell)
        if where is None or not any(task.commands or task.files for task in tasks):
            return self._nothing_applied(judged, steps)
        if sentence := begin.refusal(machine, where, allow_shared=options.shared):
            refuse(sentence)
        there = _known(where.prefix)
        if where.limited:
            tell(say(_LIMITS))
        folder = where.prefix if isdir(where.prefix) else os.curdir
        if prefix is None or not os.path.samefile(prefix, folder):
            known = there
        if not self.agreed("Apply these changes?", ""):
            return unchanged()
        first = begin.begun(where, machine, tasks, self.before, options)
        if sentence := begin.in_use(where.prefix, where.roots, tell):
            return unchanged(sentence)
        with self.waiting.doing(say("checking that the packages can be installed")):
            why, size = begin.dry_run(steps.steps, machine, options, tell)
        if why:
            return unchanged(why)
        if names := ignored_variables(os.environ):
            template = "Ignoring these variables so that only this environment is changed: {names}"
            tell(say(template, names=", ".join(names)))
        if sentence := begin.elsewhere_by_configuration(tasks):
            return unchanged(sentence)
        return self._applied(first, where, size, known)

    def _applied(self, first: Begun, where: begin.Place, size: int, known: Strings) -> Outcome:
        """Repair, if no other repair runs and the disk suffices."""
        prefix = where.prefix
        try:
            with patient_interrupts() as interrupts, Journal(prefix) as journal:
                if _ids(journal) != known:
                    why = say("another cudadoctor process changed the environment in the meantime")
                elif sentence := begin.no_room(where, size, journal.folder):
                    remove_made(first.made)
                    why = sentence
                else:
                    return Transaction(journal, first, self.waiting, interrupts).run()
        except Busy:
            why = say("another cudadoctor process is working on {folder}", folder=prefix)
        except JournalError as error:
            why = f"{prefix}/{FOLDER}: {error}"
        except OSError as error:
            why = f"{prefix}: {error.strerror}"
        return unchanged(why)

    def agreed(self, question: str, sentence: str) -> bool:
        """Ask the user, after a sentence on what is at stake; --yes answers all questions."""
        if self.options.yes:
            return True
        if not sys.stdin.isatty():
            refuse("{problem} To continue without a prompt, add --yes", problem=sentence)
        sys.stdout.flush()
        before = "".join(f"{line}\n" for line in words.wrapped(sentence, width(), 0))
        return asked(f"\n{before}{say(question)}")

    def _nothing_applied(self, judged: Judged, steps: begin.Chosen) -> Outcome:
        diagnosis = judged.diagnosis
        healthy = diagnosis.verdict == "healthy"
        if healthy or not (
            judged.plan.steps or diagnosis.primary or diagnosis.verdict == "undecided"
        ):
            return Outcome(kind="nothing", code=0, why=say("Nothing to fix."))
        return replace(unchanged(), why=words.what_remains(judged, steps))

    def _print(self, lines: Iterable[Line]) -> None:
        """Lines for people, on stdout; with --json there is only the document."""
        if not self.options.as_json:
            written(painted([*lines]), None)

    def show(self, outcome: Outcome) -> int:
        """The last words, or the document; the exit code."""
        if self.options.as_json:
            versions = (__version__, str(knowledge.load().date))
            document = words.document(outcome, self.judged, self.before, versions)
            written(json_v1.dumps(document) + "\n", self.options.output)
        else:
            self._print([Line(()), *words.outcome(outcome, self.before, width())])
        return outcome.code


def _ids(journal: Journal) -> Strings:
    return tuple(story.id for story in journal.stories())


def _known(prefix: OptStr) -> Strings:
    """The earlier repairs. What an interrupted one left is neither judged nor built upon."""
    if prefix is None:
        return ()
    try:
        story = Journal(prefix).open_story()
    except JournalError as error:
        refuse("{folder}: {problem}", folder=prefix, problem=error)
    if story is not None and story.unfinished:
        resume, undo = (words.command(word, prefix) for word in ("--resume", "--undo"))
        refuse(
            "an earlier fix was interrupted. To finish it: {resume}. To undo it: {undo}",
            resume=resume,
            undo=undo,
        )
    return _ids(Journal(prefix))
