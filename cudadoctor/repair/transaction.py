"""One repair as a transaction: recorded, applied, looked at again, kept or brought back."""

import os
from contextlib import suppress
from os.path import dirname, join
from typing import Any

from cudadoctor.cli.output import Waiting
from cudadoctor.cli.speech import english, say, spoken
from cudadoctor.host.signals import Interrupts
from cudadoctor.model.machine import Json, OptInt, Strings
from cudadoctor.repair.begin import shown
from cudadoctor.repair.journal import (
    Begun,
    Checking,
    Forgotten,
    Journal,
    Judged,
    Kept,
    Opinion,
    Record,
    RolledBack,
    RollingBack,
    SnapshotBegun,
    SnapshotDone,
    StepBegun,
    StepEnded,
    Story,
    Task,
    Undone,
)
from cudadoctor.repair.session import (
    Command,
    Failed,
    check,
    environment,
    left_behind,
    private,
    process,
)
from cudadoctor.repair.snapshot import (
    ManifestError,
    Restored,
    RestoreError,
    Snapshot,
    remove_made,
    synced_system,
)
from cudadoctor.repair.words import Outcome, command, unchanged

_RANK = {"broken": 0, "undecided": 1, "warnings": 2, "healthy": 3}
_GRAVE = ("error", "warning")


def opinion(document: Json) -> Opinion:
    """A check in short, from its JSON document."""
    grave = [finding for finding in document["findings"] if finding["severity"] in _GRAVE]
    stages = (document.get("smoke") or {}).get("stages", ())

    def stage_names(*statuses: str) -> Strings:
        return tuple(stage["name"] for stage in stages if stage["status"] in statuses)

    def causes(findings: list[Json]) -> Strings:
        return tuple(dict.fromkeys(finding["cause"] for finding in findings))

    return Opinion(
        verdict=document["verdict"],
        primary=document["primary"],
        grave=causes(grave),
        told=causes([finding for finding in grave if not finding["because_of"]]),
        undecided=causes(document["undecided"]),
        smoke_passed=stage_names("passed"),
        smoke_failed=stage_names("failed", "timed-out"),
    )


def better(before: Opinion, after: Opinion, cured: Strings) -> tuple[bool, str]:
    """Whether the repair is worth keeping, and why; cured: what its steps were to cure."""
    failing = [stage for stage in after.smoke_failed if stage not in before.smoke_failed]
    if lost := [stage for stage in failing if stage in before.smoke_passed]:
        return False, english("the training step now fails at {stages}", stages=", ".join(lost))
    if before.smoke_passed and not (after.smoke_passed or after.smoke_failed):
        return False, english("the training step ran before the fix but no longer runs")
    if new := [cause for cause in after.told if cause not in before.grave]:
        return False, english("there is a new problem: {causes}", causes=", ".join(new))
    there = (*after.grave, *after.undecided)
    still = [cause for cause in cured if cause in there and cause in before.grave]
    gone = [cause for cause in before.grave if cause not in there]
    helped = set(gone) & set(cured)
    # From undecided to more may be a fact that was not told before: no merit of the repair.
    by_chance = before.verdict == "undecided" and still and not helped
    if not by_chance and _RANK[after.verdict] > max(_RANK[before.verdict], _RANK["undecided"]):
        template = "the verdict changed from {before} to {after}"
        return True, english(template, before=before.verdict, after=after.verdict)
    cured_now, uncured = ", ".join(gone), ", ".join(still)
    if not still and gone:
        return True, english("{causes} is fixed", causes=cured_now)
    if helped:
        return True, english(
            "{causes} is fixed, but {others} is not", causes=cured_now, others=uncured
        )
    if still:
        return False, english("{causes} is still reported", causes=uncured)
    return False, english("the verdict is still {after}", after=after.verdict)


SMALL_BYTES = 100_000_000
"""What is not worth a word."""
SHOWN_LINES = 8


class Transaction:
    """A repair of one environment. journal: locked by the caller."""

    def __init__(
        self, journal: Journal, begun: Begun, waiting: Waiting, interrupts: Interrupts
    ) -> None:
        self.journal = journal
        self.begun = begun
        self.waiting = waiting
        self.interrupts = interrupts
        self.snapshot = Snapshot(journal.folder, begun.id, begun.roots)
        self.log = join(journal.folder, "log.txt")
        self.touched = True  # unless `run` knows better

    def note(self, record: Record) -> None:
        """The next record of this repair."""
        self.journal.append(record, self.begun.id)

    def run(self) -> Outcome:
        """From the beginning to the end."""
        self.touched = False
        tasks = self.begun.tasks
        try:
            # What a kill left of snapshots that nobody needs any more.
            stages = {story.id: story.stage for story in self.journal.stories()}
            for identity in (identity for identity, stage in stages.items() if stage == "over"):
                Snapshot(self.journal.folder, identity, ()).remove()
            self.note(self.begun)
            self._record()
            for number, task in enumerate(tasks):
                what = say(
                    "step {number} of {steps}: {title}",
                    number=number + 1,
                    steps=len(tasks),
                    title=spoken(task.title),
                )
                for which, argv in enumerate(task.commands, 1):
                    self._fail_if_interrupted()
                    many = f" ({which} of {len(task.commands)})" if len(task.commands) > 1 else ""
                    self._run(number, task, argv, what + many)
                if task.files:
                    self._write(number, task)
        except (Failed, OSError) as error:
            return self._back(error)
        return self.judge()

    def judge(self) -> Outcome:
        """Look again, then keep it or bring back what was there."""
        try:
            self.note(Checking())
            after = self._looked()
            cured = tuple(cause for task in self.begun.tasks for cause in task.cures)
            good, why = better(self.begun.before, after, cured)
            self.note(Judged(better=good, why=why, after=after))
        except (Failed, OSError) as error:
            return self._back(error)
        return self.keep(after, why) if good else self._back(spoken(why), after=after)

    def keep(self, after: Opinion, why: str) -> Outcome:
        """The repair stays."""
        try:
            self.snapshot.note_left()
            self.note(Kept())
        except OSError as error:
            return self._back(error)
        # Only the last repair can be undone: what was kept for earlier ones goes.
        for story in self.journal.stories():
            if story.stage == "kept" and story.id != self.begun.id:
                with suppress(OSError):
                    self.journal.append(Forgotten(), story.id)
                    Snapshot(self.journal.folder, story.id, ()).remove()
        broken = after.verdict == "broken"
        template = "Fixed: {why}."
        if broken:
            template = "Partly fixed: {why}. Still reported: {causes}."
        return self.outcome(
            "kept",
            int(broken),
            say(template, why=spoken(why), causes=", ".join(after.told)),
            after=after,
            notes=self._way_back(),
            applied=tuple(task.id for task in self.begun.tasks),
        )

    def bring_back(self, why: str, *, undo: bool = False) -> Restored:
        """Bring back what was there, whatever has been done. Raises RestoreError."""
        with suppress(OSError):  # a full disk: there is room once the new has gone
            self.note(RollingBack(why=why, undo=undo))
        restored = self.snapshot.restore()
        synced_system(self.journal.folder)
        try:
            self.note(Undone() if undo else RolledBack())
            self.snapshot.remove()
        except OSError as error:
            raise RestoreError(f"{self.journal.path}: {error.strerror}") from error
        remove_made(self.begun.made)
        return restored

    # --- the steps ---------------------------------------------------------------------------

    def _record(self) -> None:
        """The snapshot; nothing has been changed before it is on disk."""
        self.note(SnapshotBegun())
        with self.waiting.doing(say("saving the environment")):
            try:
                count = self.snapshot.take()
            except OSError as error:
                reason = _words(error)
                raise Failed(
                    say("the environment could not be saved ({reason})", reason=reason)
                ) from error
        self._fail_if_interrupted()
        self.note(SnapshotDone(entries=count))
        self.touched = True

    def _run(self, number: int, task: Task, argv: Strings, what: str) -> None:
        env = environment(os.environ, task.variables)
        try:
            command = Command(argv, env, self.journal.folder, self._line)
        except OSError as error:
            reason = error.strerror
            raise Failed(
                say("cannot start {program}: {reason}", program=argv[0], reason=reason)
            ) from error
        pid = command.child.pid
        started = seen.started if (seen := process(pid)) else None
        try:
            self.note(StepBegun(number=number, argv=argv, pid=pid, started=started))
        except OSError:
            command.end()
            raise
        command.go()
        with self.waiting.doing(what):
            code = command.wait(self.interrupts)
        self._fail_if_interrupted()
        self.note(StepEnded(number=number, code=code))
        if code == 0:
            return
        name = argv[0] if code is None else f"{' '.join(argv[:4])} ..."
        template = "`{command}` failed with exit code {code}"
        if code is None:
            template = "`{command}` printed nothing for 30 minutes and was stopped"
        elif code < 0:
            template, code = "`{command}` was killed by signal {code}", -code
        raise Failed(say(template, command=name, code=code), tuple(command.lines)[-SHOWN_LINES:])

    def _line(self, text: str) -> None:
        """A tool said this."""
        self.waiting.line(text)
        with (
            suppress(OSError),  # a full disk
            open(self.log, "a", encoding="utf-8", opener=private) as log,
        ):
            log.write(f"{text}\n")

    def _write(self, number: int, task: Task) -> None:
        """Files of the doctor's own: the variables of a conda environment."""
        self.note(StepBegun(number=number, argv=("write", *(path for path, _ in task.files))))
        for path, text in task.files:
            os.makedirs(dirname(path), exist_ok=True)
            with open(f"{path}.new", "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
            os.replace(f"{path}.new", path)
        self.note(StepEnded(number=number, code=0))

    def _looked(self) -> Opinion:
        with self.waiting.doing(say("checking again")):
            found = check(self.begun, self.log, self.interrupts)
        self._fail_if_interrupted()
        if found is None:
            raise Failed(say("the check after the fix produced no result"))
        return opinion(found)

    def _fail_if_interrupted(self) -> None:
        if self.interrupts():
            raise Failed(say("interrupted"))

    # --- the ends ----------------------------------------------------------------------------

    def _back(self, why: str | Failed | OSError, *, after: Opinion | None = None) -> Outcome:
        code = self.interrupts.code if self.interrupts() else 1
        tail = why.tail if isinstance(why, Failed) else ()
        reason = _words(why)
        notes: Strings = ()
        if not self.touched:
            with suppress(OSError):
                self.snapshot.remove()
                self.note(RolledBack())
                remove_made(self.begun.made)
            kind, text = "unchanged", unchanged(reason).why
        else:
            try:
                with self.waiting.doing(say("restoring the environment")):
                    notes = edited(self.bring_back(reason))
                kind = "rolled-back"
                text = say("Not fixed: {why}. Everything is as it was before.", why=reason)
            except RestoreError as error:
                undo = command("--undo", self.begun.afterwards)
                kind = "stuck"
                text = say(
                    "Not fixed ({why}), and not everything could be restored: {reason}. The "
                    "saved files have been kept. Resolve that problem, then run {undo}.",
                    why=reason,
                    reason=error,
                    undo=undo,
                )
        return self.outcome(kind, code, text, after=after, tail=tail, notes=notes)

    def _way_back(self) -> Strings:
        with suppress(OSError, ManifestError):
            undo = say("To undo: {command}", command=command("--undo", self.begun.afterwards))
            if (held := self.snapshot.held_bytes()) <= SMALL_BYTES:
                return (undo,)
            size = say(
                "The saved files take up {size}; to delete them, use --forget instead of --undo.",
                size=shown(held),
            )
            return (undo, size)
        return ()

    def outcome(self, kind: str, code: int, why: str, **more: Any) -> Outcome:
        """How this call ended, with the journal that says more."""
        return Outcome(kind=kind, code=code, why=why, journal=self.journal.path, **more)


def edited(restored: Restored) -> Strings:
    """A note on files whose old content is nowhere."""
    if not restored.edited:
        return ()
    files = ", ".join(restored.edited[:5])
    return (
        say("These files were edited in place and could not be restored: {files}.", files=files),
    )


def still_running(story: Story) -> OptInt:
    """The number of the package manager of a doctor that was killed, where it cannot be ended."""
    begun, ended = story.of(StepBegun), story.of(StepEnded)
    if not begun or len(ended) >= len(begun) or begun[-1].pid is None:
        return None
    return begun[-1].pid if left_behind(begun[-1].pid, begun[-1].started) else None


def _words(error: str | Failed | OSError) -> str:
    if isinstance(error, OSError):
        where = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror or error}{where}"
    return str(error)
