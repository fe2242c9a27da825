"""`fix --undo`, `--resume` and `--forget`: what follows from the journal of an earlier repair."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from os.path import abspath, dirname, isdir, isfile, join, lexists

from msgspec.structs import replace

from cudadoctor.cli.options import Options, refuse
from cudadoctor.cli.output import Waiting
from cudadoctor.cli.speech import say, spoken
from cudadoctor.host import local
from cudadoctor.host.signals import Interrupts
from cudadoctor.model.machine import OptStr
from cudadoctor.probes import target
from cudadoctor.repair import begin
from cudadoctor.repair.begin import Place
from cudadoctor.repair.journal import (
    FOLDER,
    NAME,
    Busy,
    Forgotten,
    Journal,
    JournalError,
    Judged,
    RolledBack,
    Story,
    Undone,
    in_its_place,
    was_moved,
)
from cudadoctor.repair.snapshot import (
    MANIFEST,
    Entry,
    ManifestError,
    RestoreError,
    differing,
    file_and_reason,
    packages_of,
)
from cudadoctor.repair.transaction import Transaction, edited, still_running
from cudadoctor.repair.words import Outcome, command, kept_aside, lost, unchanged

_NOTHING = {
    "undo": "Nothing to undo: {why}.",
    "resume": "Nothing to resume: {why}.",
    "forget": "Nothing to delete: {why}.",
}
_ACTIVE = ("VIRTUAL_ENV", "CONDA_PREFIX")
_SCRIPTS = ("bin", "Scripts")


def act(
    options: Options, waiting: Waiting, interrupts: Interrupts, ask: Callable[[str, str], bool]
) -> Outcome:
    """Undo, resume or forget the last repair of the environment that is meant."""
    prefix = with_journal(options.python)
    word = "undo" if options.undo else "resume" if options.resume else "forget"
    if prefix is None:
        place = options.python or say("this environment")
        why = say("no fix has been applied to {place}", place=place)
        return Outcome(kind="nothing", code=0, why=say(_NOTHING[word], why=why))
    journal = Journal(prefix)
    try:
        with journal:
            story = journal.open_story()
            if story is None or (options.resume and not story.unfinished):
                why = say(_NOTHING[word], why=_last_end(journal.stories()))
                return Outcome(kind="nothing", code=0, why=why, journal=journal.path)
            begun = in_its_place(story.begun, prefix)
            where = Place(prefix=prefix, roots=begun.roots, python=begun.afterwards)
            if sentence := begin.owned_by_another(where) or begin.unwritable(where, None):
                refuse(sentence)
            earlier = _Earlier(journal, begun, waiting, interrupts)
            earlier.story = story
            if options.undo:
                with_signals = interrupts.given_back(ask)
                return earlier.undone(with_signals)
            return earlier.resumed() if options.resume else earlier.forgotten()
    except Busy:
        refuse(
            "another cudadoctor process is working on {folder}; wait until it finishes",
            folder=prefix,
        )
    except JournalError as error:
        refuse(f"{journal.path}: {error}")
    except OSError as error:
        refuse(f"{error.filename or journal.path}: {error.strerror or error}")


def _last_end(stories: tuple[Story, ...]) -> str:
    """How the last repair ended, if none is left to act upon."""
    if not stories:
        return say("no fix has been applied to {place}", place=say("this environment"))
    last = stories[-1].records[-1]
    if isinstance(last, Forgotten):
        return say("the files saved by the last fix were deleted")
    if isinstance(last, (RolledBack, Undone)):
        return say("the last fix was already undone")
    return say("the last fix was completed")


def with_journal(python: OptStr) -> OptStr:
    """The folder of the environment that is meant, where it has a journal.

    Nothing is run: the Python of a half repaired environment may not start.
    """
    path = _meant(python)
    for folder in (_environment(path), *_made_for(path)):
        if isfile(join(folder, FOLDER, NAME)):
            return folder
    return None


def _meant(python: OptStr) -> str:
    """The interpreter, or the environment's folder, that is meant; in a broken one there may be
    no interpreter left."""
    for name in [python] if python else [*map(os.environ.get, _ACTIVE), ".venv"]:
        path = abspath(os.path.expanduser(name)) if name else ""
        if isdir(path) or (python and (os.sep in python or lexists(path))):
            return path
    try:
        return target.choose(local.this_host(), python).executable
    except target.UsageError as error:
        refuse(spoken(str(error)))


def _environment(path: str) -> str:
    """The folder whose environment a path may stand for."""
    folder = path if isdir(path) else dirname(path)
    above, name = os.path.split(folder)
    return above if name in _SCRIPTS else folder


def _made_for(path: str) -> Iterator[str]:
    """Environments that the doctor made because this interpreter takes no packages."""
    home = join(os.path.expanduser("~"), ".venvs")
    for name in sorted(os.listdir(home) if isdir(home) else []):
        folder = join(home, name)
        with suppress(JournalError, IndexError):
            if Journal(folder).stories()[-1].begun.examined == path:
                yield folder


class _Earlier(Transaction):
    """A repair of an earlier call. story: what the journal tells of it."""

    story: Story

    def undone(self, ask: Callable[[str, str], bool]) -> Outcome:
        """Bring back what was there; ask: a question, where something would be lost."""
        if waits := self._still_running():
            return waits
        kept, untouched = self.story.stage == "kept", self.story.stage == "untouched"
        silent = self._changed_silently() if untouched else None
        if untouched and silent is None:
            return self._never_begun()
        if silent and not ask("Undo these changes?", silent):
            return unchanged()
        if self._recorded() is None:
            return self._snapshot_lost()
        if kept and (sentence := self._in_use()):
            return unchanged(sentence)
        if kept and (sentence := self._would_be_lost()) and not ask("Undo the last fix?", sentence):
            return unchanged()
        return self._restored(undo=kept or self.story.undoing)

    def resumed(self) -> Outcome:
        """Half installed state is never built upon: it is taken back, and the plan begun anew."""
        story, undo = self.story, command("--undo", self.begun.afterwards)
        if was_moved(story.begun, dirname(self.journal.folder)) and story.stage in (
            "untouched",
            "changing",
        ):
            refuse(
                "the interrupted fix was started in {folder}. To undo it here: {command}",
                folder=story.begun.prefix,
                command=undo,
            )
        if waits := self._still_running():
            return waits
        if story.stage == "changed":
            return self.judge()
        if story.stage == "checked":
            last = story.of(Judged)[-1]
            return self.keep(last.after, last.why)
        if story.stage == "untouched":
            if sentence := self._changed_silently():
                refuse("{problem} Undo that fix first: {command}", problem=sentence, command=undo)
            back = self._never_begun()
        elif self._recorded() is None:
            return self._snapshot_lost()
        elif story.stage == "restoring":
            return self._restored(undo=story.undoing, code=int(not story.undoing))
        else:
            back = self._restored(undo=False)
        if back.kind != "undone":
            return back
        # The same plan from the start, as a repair of its own.
        if sentence := self._in_use():
            template = "The interrupted fix was undone but not started again: {why}."
            return replace(unchanged(), why=say(template, why=sentence))
        self.waiting.say(say("The interrupted fix was undone; starting it again."))
        os.makedirs(self.journal.folder, exist_ok=True)
        begun = begin.prepared(story.begun)
        return Transaction(self.journal, begun, self.waiting, self.interrupts).run()

    def forgotten(self) -> Outcome:
        """Remove what an undo would bring back."""
        if self.story.unfinished:
            refuse("the last fix was interrupted; use --resume or --undo first")
        self.note(Forgotten())
        self.snapshot.remove()
        why = say("The saved files were deleted. The last fix can no longer be undone.")
        return self.outcome("forgotten", 0, why)

    def _still_running(self) -> Outcome | None:
        if (pid := still_running(self.story)) is None:
            return None
        template = (
            "Process {pid} of the interrupted fix is still running. Stop it, then run this "
            "command again."
        )
        why = say(template, pid=pid)
        return self.outcome("unchanged", 1, why)

    def _in_use(self) -> OptStr:
        return begin.in_use(dirname(self.journal.folder), self.begun.roots, self.waiting.say)

    def _recorded(self) -> tuple[Entry, ...] | None:
        """What was there, None if its record is not whole. Raises OSError if it cannot be read."""
        try:
            return self.snapshot.entries()
        except (FileNotFoundError, NotADirectoryError, ManifestError):
            return None

    def _snapshot_lost(self) -> Outcome:
        """Somebody removed what was kept: the repair is closed, so that another may begin."""
        self.note(Forgotten())
        folder = self.snapshot.folder
        template = "The saved files are missing ({folder}), so nothing can be restored."
        if isdir(folder):  # what is left of it may be of use to a person
            away = join(self.journal.folder, f"damaged-{self.begun.id}")
            os.rename(folder, away)
            folder = away
            template = "The saved files are damaged ({folder}), so nothing can be restored."
        way_out = say("Create a new environment: cudadoctor setup DIR")
        why = f"{say(template, folder=folder)} {way_out}"
        return self.outcome("stuck", 1, why)

    def _changed_silently(self) -> OptStr:
        """Whether there is a change where the journal tells of none: its end may have been lost."""
        entries = self._recorded()
        if entries is None or not (paths := differing(entries, self.snapshot.present())):
            return None
        return say(
            "The last fix stopped before its first step, but 1 file has changed since then."
            if len(paths) == 1
            else "The last fix stopped before its first step, but {count} files have changed "
            "since then.",
            count=len(paths),
        )

    def _would_be_lost(self) -> OptStr:
        left = self.snapshot.left()
        if left is None:
            return None
        with self.waiting.doing(say("looking for files changed since the fix")):
            paths = differing(left, self.snapshot.present())
        return lost(packages_of(paths), len(paths), self.snapshot.aside) if paths else None

    def _restored(self, *, undo: bool, code: int = 0) -> Outcome:
        try:
            with self.waiting.doing(say("restoring the environment")):
                folder, paths = self.snapshot.set_aside(self._last_word_ns())
                restored = self.bring_back("asked for", undo=undo)
        except (RestoreError, OSError) as error:
            reason = file_and_reason(error) if isinstance(error, OSError) else str(error)
            template = (
                "Not everything could be restored: {reason}. Resolve that problem, then run "
                "this command again."
            )
            why = say(template, reason=reason)
            return self.outcome("stuck", 1, why)
        why = say(
            "Undone: everything is as it was before the fix ({restored} files restored,"
            " {removed} removed).",
            restored=restored.brought,
            removed=restored.removed,
        )
        notes = (*edited(restored), *kept_aside(paths, folder))
        return self.outcome("undone", code, why, notes=notes)

    def _last_word_ns(self) -> int:
        """When the repair last said or did something, as the file system dates it."""
        if self.snapshot.left() is not None:
            return 0
        for path in (self.log, join(self.snapshot.folder, MANIFEST)):
            with suppress(OSError):
                return os.stat(path).st_mtime_ns
        return 0

    def _never_begun(self) -> Outcome:
        self.snapshot.remove()
        self.note(RolledBack())
        return self.outcome("undone", 0, say("The interrupted fix had not changed anything yet."))
