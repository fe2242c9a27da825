"""`fix --undo`, `--resume` and `--forget`: what follows from the journal of an earlier repair."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from os.path import abspath, dirname, isdir, isfile, join, lexists

from cudadoctor.cli.options import Options, refuse
from cudadoctor.cli.output import Waiting
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

NONE = "no repair is known"
_ACTIVE = ("VIRTUAL_ENV", "CONDA_PREFIX")
_SCRIPTS = ("bin", "Scripts")


def act(
    options: Options, waiting: Waiting, interrupts: Interrupts, ask: Callable[[str, str], bool]
) -> Outcome:
    """Undo, resume or forget the last repair of the environment that is meant."""
    prefix = with_journal(options.python)
    word = "undo" if options.undo else "resume" if options.resume else "forget"
    if prefix is None:
        where = f" in {options.python}" if options.python else " in this environment"
        return Outcome(kind="nothing", code=0, why=f"Nothing to {word}{where}: {NONE}.")
    journal = Journal(prefix)
    try:
        with journal:
            story = journal.open_story()
            if story is None or (options.resume and not story.unfinished):
                ends = {"kept": "was kept", "over": "has been taken back"}
                stages = [story.stage for story in journal.stories()]
                known = f"the last repair {ends.get(stages[-1], 'is over')}" if stages else NONE
                return Outcome(
                    kind="nothing",
                    code=0,
                    why=f"Nothing to {word}: {known}.",
                    journal=journal.path,
                )
            begun = in_its_place(story.begun, prefix)
            place = Place(prefix=prefix, roots=begun.roots, python=begun.afterwards)
            if sentence := begin.owned_by_another(place) or begin.unwritable(place, None):
                refuse(sentence)
            earlier = _Earlier(journal, begun, waiting, interrupts)
            earlier.story = story
            if options.undo:
                return earlier.undone(ask)
            return earlier.resumed() if options.resume else earlier.forgotten()
    except Busy:
        refuse(f"another cudadoctor is repairing {prefix}: wait for it")
    except JournalError as error:
        refuse(f"{journal.path}: {error}")
    except OSError as error:
        refuse(f"{error.filename or journal.path}: {error.strerror or error}")


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
        refuse(str(error))


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
        if silent and not ask("Undo", silent):
            return unchanged("Nothing was changed.")
        if self._recorded() is None:
            return self._snapshot_lost()
        if kept and (sentence := self._in_use()):
            return unchanged(f"Nothing was changed: {sentence}.")
        if kept and (sentence := self._would_be_lost()) and not ask("Undo", sentence):
            return unchanged("Nothing was changed.")
        return self._restored(undo=kept or self.story.undoing)

    def resumed(self) -> Outcome:
        """Half installed state is never built upon: it is taken back, and the plan begun anew."""
        story, undo = self.story, command("--undo", self.begun.afterwards)
        if was_moved(story.begun, dirname(self.journal.folder)) and story.stage in (
            "untouched",
            "changing",
        ):
            refuse(f"the repair was begun in {story.begun.prefix}: take it back here with {undo}")
        if waits := self._still_running():
            return waits
        if story.stage == "changed":
            return self.judge()
        if story.stage == "checked":
            last = story.of(Judged)[-1]
            return self.keep(last.after, last.why)
        if story.stage == "untouched":
            if sentence := self._changed_silently():
                refuse(f"{sentence}: take it back with {undo} first")
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
            return unchanged(
                f"The interrupted repair was taken back, and not begun anew: {sentence}."
            )
        self.waiting.say("the interrupted repair was taken back; it begins anew")
        os.makedirs(self.journal.folder, exist_ok=True)
        begun = begin.prepared(story.begun)
        return Transaction(self.journal, begun, self.waiting, self.interrupts).run()

    def forgotten(self) -> Outcome:
        """Remove what an undo would bring back."""
        if self.story.unfinished:
            refuse("the last repair is unfinished: end it with --resume or --undo first")
        self.note(Forgotten())
        self.snapshot.remove()
        why = "What was there before the last repair is forgotten; it can no longer be undone."
        return self.outcome("forgotten", 0, why)

    def _still_running(self) -> Outcome | None:
        if (pid := still_running(self.story)) is None:
            return None
        why = (
            f"Process {pid} of the interrupted repair still runs: end it, then run the same again."
        )
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
        rest = f"{folder} is gone"
        if isdir(folder):  # what is left of it may be of use to a person
            away = join(self.journal.folder, f"damaged-{self.begun.id}")
            os.rename(folder, away)
            rest = f"the record is damaged (its files lie under {away})"
        why = f"{rest}, so nothing can be brought back: make the environment anew."
        return self.outcome("stuck", 1, why)

    def _changed_silently(self) -> OptStr:
        """Whether there is a change where the journal tells of none: its end may have been lost."""
        entries = self._recorded()
        if entries is None or not (paths := differing(entries, self.snapshot.present())):
            return None
        number = "1 file differs" if len(paths) == 1 else f"{len(paths)} files differ"
        return f"the journal tells of no change, and yet {number} from what was recorded"

    def _would_be_lost(self) -> OptStr:
        left = self.snapshot.left()
        if left is None:
            return None
        with self.waiting.doing("comparing with what the repair left"):
            paths = differing(left, self.snapshot.present())
        return lost(packages_of(paths), len(paths)) if paths else None

    def _restored(self, *, undo: bool, code: int = 0) -> Outcome:
        try:
            with self.waiting.doing("bringing back what was there"):
                folder, paths = self.snapshot.set_aside(self._last_word_ns())
                restored = self.bring_back("asked for", undo=undo)
        except (RestoreError, OSError) as error:
            reason = file_and_reason(error) if isinstance(error, OSError) else str(error)
            why = f"Not all could be brought back: {reason}. Cure that, then run the same again."
            return self.outcome("stuck", 1, why)
        counts = f"{restored.brought} files brought back, {restored.removed} removed"
        why = f"All is as it was before the repair ({counts})."
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
        return self.outcome(
            "undone", 0, "The repair had changed nothing yet; its beginnings were removed."
        )
