"""`fix`: applies the plan to the examined environment as a transaction that can be undone.

look, judge, plan, choose, show, ask, look for what stands in the way, record, apply, look again,
keep or bring back.
"""

import os
import sys
from collections.abc import Callable, Iterable

from cudadoctor import __version__, knowledge, pipeline
from cudadoctor.cli import output
from cudadoctor.cli.looking import this_machine
from cudadoctor.cli.options import Options, refuse
from cudadoctor.pipeline import Judged
from cudadoctor.render import json_v1
from cudadoctor.repair import begin, earlier, words
from cudadoctor.repair.following import Following
from cudadoctor.repair.journal import FOLDER, Begun, Busy, Journal, JournalError, Opinion
from cudadoctor.repair.session import not_heeded, patient_interrupts
from cudadoctor.repair.snapshot import remove_made
from cudadoctor.repair.transaction import Transaction, opinion
from cudadoctor.repair.words import Outcome, unchanged

NOBODY = "there is no terminal to ask on: add --yes to apply the repair, or --print to print it"


def fix(options: Options, open_journal: Callable[[str], Journal] = Journal.of) -> int:
    """Apply, resume, undo or forget a repair. 0 cured or nothing to do, 1 not cured."""
    _hold_streams()
    if options.saved:
        refuse("--from judges saved facts, which cannot be repaired: add --print")
    if options.manager == "docker":
        refuse("--with docker writes an image and repairs none: add --print")
    call = _Fix(options, open_journal)
    if options.undo or options.resume or options.forget:
        with patient_interrupts() as interrupts:
            return call.show(
                earlier.act(options, open_journal, call.following, interrupts, call.agreed)
            )
    if options.as_json and not options.yes:
        refuse("--json leaves no place for a question: add --yes, or --print")
    if not (options.yes or sys.stdin.isatty()):
        refuse(NOBODY)
    return call.show(call.repaired())


def _hold_streams() -> None:
    """Stand in for streams that were closed, or the journal would be opened in their place."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


class _Fix:
    """One call of `fix`. open_journal: makes the journal of an environment."""

    def __init__(self, options: Options, open_journal: Callable[[str], Journal]) -> None:
        self.options = options
        self.open_journal = open_journal
        self.following = Following(verbose=options.verbose > 0)
        self.judged: Judged | None = None
        self.before: Opinion | None = None

    def repaired(self) -> Outcome:
        """Look, judge, choose, ask; then the transaction."""
        options = self.options
        prefix = earlier.with_journal(options.python)
        self._refuse_unfinished(prefix)
        known = self._repairs_in(prefix)
        machine = pipeline.with_options(this_machine(options), options)
        wishes = pipeline.wishes_of(options, machine)
        judged = self.judged = pipeline.judge(machine, wishes, ignore=options.ignore)
        machine = judged.machine
        self.before = opinion(json_v1.report(pipeline.report(judged, full=True)))
        steps = begin.chosen(judged.plan)
        home = machine.python.prefix
        project = home is not None and begin.holds_a_project(home)
        where = begin.place_of(machine, steps.steps, project=project)
        self._print(words.plan(judged, steps, where, output.width()))
        tasks = begin.tasks_of(steps, machine, wishes.shell)
        if where is None or not any(task.commands or task.files for task in tasks):
            return self._nothing_applied(judged, steps)
        if sentence := begin.refusal(machine, where, allow_shared=options.shared):
            refuse(sentence)
        self._refuse_unfinished(where.prefix)
        if where.limits:
            self.following.say(where.limits)
        there = where.prefix if os.path.isdir(where.prefix) else os.curdir
        if prefix is None or not os.path.samefile(prefix, there):
            known = self._repairs_in(where.prefix)
        if not self.agreed("Apply", ""):
            return unchanged("Nothing was changed.")
        first = begin.begun(where, machine, tasks, self.before, options)
        if sentence := begin.in_use(where, self.following.say):
            return unchanged(f"Nothing was changed: {sentence}.")
        with self.following.doing("asking a resolver"):
            why, download = begin.dry_run(steps.steps, machine, options, self.following.say)
        if why:
            return unchanged(f"Nothing was changed: {why}.")
        if names := not_heeded(os.environ):
            named = ", ".join(names)
            self.following.say(f"not heeded, to change this environment only: {named}")
        if sentence := begin.elsewhere_by_configuration(tasks, os.environ):
            return unchanged(f"Nothing was changed: {sentence}.")
        return self._applied(first, where, download, known)

    def _refuse_unfinished(self, prefix: str | None) -> None:
        """What an interrupted repair left is neither judged nor built upon."""
        try:
            story = self.open_journal(prefix).open_story() if prefix else None
        except JournalError as error:
            refuse(f"{prefix}: {error}")
        if story is not None and story.unfinished:
            resume, undo = (words.command(word, prefix or "") for word in ("--resume", "--undo"))
            refuse(
                f"an earlier repair was interrupted: end it with {resume}, or take it back: {undo}"
            )

    def _repairs_in(self, prefix: str | None) -> tuple[str, ...]:
        """The names of the repairs that are known."""
        return tuple(story.id for story in self.open_journal(prefix).stories()) if prefix else ()

    def _applied(
        self,
        first: Begun,
        where: begin.Place,
        download: begin.Download | None,
        known: tuple[str, ...],
    ) -> Outcome:
        """Repair, if no other repair runs and the disk suffices."""
        prefix = where.prefix
        try:
            with patient_interrupts() as interrupts, self.open_journal(prefix) as journal:
                if tuple(story.id for story in journal.stories()) != known:
                    return unchanged(
                        "Nothing was changed: another cudadoctor repaired it meanwhile."
                    )
                if sentence := begin.no_room(where, download, journal.folder):
                    remove_made(first.made)
                    return unchanged(f"Nothing was changed: {sentence}.")
                return Transaction(journal, first, self.following, interrupts, os.environ).run()
        except Busy:
            return unchanged(f"Nothing was changed: another cudadoctor repairs {prefix}.")
        except JournalError as error:
            return unchanged(f"Nothing was changed: {prefix}/{FOLDER}: {error}.")
        except OSError as error:
            return unchanged(f"Nothing was changed: {prefix}: {error.strerror}.")

    def agreed(self, word: str, sentence: str) -> bool:
        """Ask the user (a word, a sentence before it); --yes answers all questions."""
        if self.options.yes:
            return True
        if not sys.stdin.isatty():
            refuse(f"{sentence}: add --yes, since there is no terminal to ask on")
        sys.stdout.flush()
        before = "".join(f"{line}\n" for line in words.wrapped(sentence, output.width(), 0))
        sys.stderr.write(f"\n{before}{word}? [y/N] ")
        sys.stderr.flush()
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    def _nothing_applied(self, judged: Judged, steps: begin.Chosen) -> Outcome:
        diagnosis = judged.diagnosis
        if diagnosis.verdict == "healthy" or not (judged.plan.steps or diagnosis.primary):
            if diagnosis.verdict != "undecided":
                return Outcome(kind="nothing", code=0, why="Nothing to do.")
            return unchanged("Not enough is known for a repair: see cudadoctor check.")
        self._print(words.what_remains(judged, steps, output.width()))
        return unchanged("Nothing was changed.")

    def _print(self, lines: Iterable[str]) -> None:
        """Lines for people, on stdout; with --json there is only the document."""
        if not self.options.as_json:
            sys.stdout.write("".join(f"{line}\n" for line in lines))
            sys.stdout.flush()

    def show(self, outcome: Outcome) -> int:
        """The last words, or the document; the exit code."""
        if self.options.as_json:
            versions = (__version__, str(knowledge.load().date))
            document = words.document(outcome, self.judged, self.before, versions)
            output.written(json_v1.dumps(document) + "\n", self.options.output)
        else:
            self._print(["", *words.outcome(outcome, output.width())])
        return outcome.code
