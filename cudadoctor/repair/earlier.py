"""`fix --undo`, `--resume` and `--forget`: what follows from the journal of an earlier repair."""

import contextlib
import os
from collections.abc import Callable, Iterator

from cudadoctor.cli.options import Options, refuse
from cudadoctor.host import local
from cudadoctor.host.signals import Interrupts
from cudadoctor.probes import target
from cudadoctor.repair import begin
from cudadoctor.repair.begin import Place
from cudadoctor.repair.following import Following
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
    Aside,
    Entry,
    ManifestError,
    RestoreError,
    differing,
    packages_of,
    set_aside,
    told_of,
)
from cudadoctor.repair.transaction import Transaction, edited, still_running
from cudadoctor.repair.words import Outcome, command, kept_aside, lost, unchanged

_ACTIVE = ("VIRTUAL_ENV", "CONDA_PREFIX")
_SCRIPTS = ("bin", "Scripts")


def act(
    options: Options,
    open_journal: Callable[[str], Journal],
    following: Following,
    interrupts: Interrupts,
    ask: Callable[[str, str], bool],
) -> Outcome:
    """Undo, resume or forget the last repair of the environment that is meant."""
    prefix = with_journal(options.python)
    word = "undo" if options.undo else "resume" if options.resume else "forget"
    if prefix is None:
        where = f" in {options.python}" if options.python else " in this environment"
        return Outcome(kind="nothing", code=0, why=f"Nothing to {word}{where}: no repair is known.")
    journal = open_journal(prefix)
    try:
        with journal:
            story = journal.open_story()
            if story is None or (options.resume and not story.unfinished):
                told = journal.stories()
                ends = {"kept": "was kept", "over": "has been taken back"}
                end = ends.get(told[-1].stage, "is over") if told else ""
                known = f"the last repair {end}" if told else "no repair is known"
                why = f"Nothing to {word}: {known}."
                return Outcome(kind="nothing", code=0, why=why, journal=journal.path)
            begun = in_its_place(story.begun, prefix)
            place = Place(prefix=prefix, roots=begun.roots, python=begun.afterwards)
            if sentence := begin.owned_by_another(place) or begin.unwritable(place, None):
                refuse(sentence)
            acting = Transaction(journal, begun, following, interrupts, os.environ)
            if options.undo:
                return _undo(acting, story, ask)
            if options.forget:
                return _forget(acting, story)
            if was_moved(story.begun, prefix) and story.stage in ("untouched", "changing"):
                undo = command("--undo", begun.afterwards)
                refuse(
                    f"the repair was begun in {story.begun.prefix}: take it back here with {undo}"
                )
            return _resume(acting, story)
    except Busy:
        refuse(f"another cudadoctor is repairing {prefix}: wait for it")
    except JournalError as error:
        refuse(f"{journal.path}: {error}")
    except OSError as error:
        refuse(f"{error.filename or journal.path}: {error.strerror or error}")


def with_journal(python: str | None) -> str | None:
    """The folder of the environment that is meant, where it has a journal.

    Nothing is run: the Python of a half repaired environment may not start.
    """
    path = _meant(python)
    for folder in (*_environments(path), *_made_for(path)):
        if os.path.isfile(os.path.join(folder, FOLDER, NAME)):
            return folder
    return None


def _meant(python: str | None) -> str:
    """The interpreter, or the environment's folder, that is meant; in a broken one there may be
    no interpreter left."""
    named = [python] if python else [*map(os.environ.get, _ACTIVE), ".venv"]
    for name in named:
        path = os.path.abspath(os.path.expanduser(name)) if name else ""
        if os.path.isdir(path) or (python and (os.sep in python or os.path.lexists(path))):
            return path
    try:
        return target.choose(local.this_host(), python).executable
    except target.UsageError as error:
        refuse(str(error))


def _environments(path: str) -> Iterator[str]:
    """The folders whose environment a path may stand for."""
    above, name = os.path.split(path)
    if os.path.isdir(path):
        yield above if name in _SCRIPTS else path
        return
    yield os.path.dirname(above) if os.path.basename(above) in _SCRIPTS else above


def _made_for(path: str) -> Iterator[str]:
    """Environments that the doctor made because this interpreter takes no packages."""
    home = os.path.join(os.path.expanduser("~"), ".venvs")
    names = os.listdir(home) if os.path.isdir(home) else []
    for name in sorted(names):
        try:
            told = Journal.of(os.path.join(home, name)).stories()
        except JournalError:
            continue
        if told and told[-1].begun.examined == path:
            yield os.path.join(home, name)


def _undo(acting: Transaction, story: Story, ask: Callable[[str, str], bool]) -> Outcome:
    if (pid := still_running(story)) is not None:
        return _not_yet(acting, pid)
    silent = _changed_silently(acting) if story.stage == "untouched" else None
    if story.stage == "untouched" and silent is None:
        return _never_begun(acting)
    if silent and not ask("Undo", silent):
        return unchanged("Nothing was changed.")
    if _recorded(acting) is None:
        return _gone(acting)
    kept = story.stage == "kept"
    if kept and (sentence := _in_use(acting)):
        return unchanged(f"Nothing was changed: {sentence}.")
    if kept and (sentence := _would_be_lost(acting)) and not ask("Undo", sentence):
        return unchanged("Nothing was changed.")
    return _restored(acting, undo=kept or story.undoing, code=0)


def _in_use(acting: Transaction) -> str | None:
    prefix = os.path.dirname(acting.journal.folder)
    place = Place(prefix=prefix, roots=acting.begun.roots, python=acting.begun.afterwards)
    return begin.in_use(place, acting.following.say)


def _recorded(acting: Transaction) -> tuple[Entry, ...] | None:
    """What was there, None if its record is not whole. Raises OSError if it cannot be read now."""
    try:
        return acting.snapshot.entries()
    except (FileNotFoundError, NotADirectoryError, ManifestError):
        return None


def _gone(acting: Transaction) -> Outcome:
    """Somebody removed what was kept: the repair is closed, so that another may begin."""
    acting.journal.append(Forgotten(id=acting.begun.id))
    folder = acting.snapshot.folder
    rest = f"{folder} is gone"
    if os.path.isdir(folder):  # what is left of it may be of use to a person
        away = os.path.join(acting.journal.folder, f"damaged-{acting.begun.id}")
        os.rename(folder, away)
        rest = f"the record is damaged (its files lie under {away})"
    why = f"{rest}, so nothing can be brought back: make the environment anew."
    return acting.outcome("stuck", 1, why)


def _changed_silently(acting: Transaction) -> str | None:
    """Where the journal tells of no change: whether there is one, as its end may have been lost."""
    entries = _recorded(acting)
    if entries is None or not (paths := list(differing(entries, acting.snapshot.present()))):
        return None
    number = "1 file differs" if len(paths) == 1 else f"{len(paths)} files differ"
    return f"the journal tells of no change, and yet {number} from what was recorded"


def _would_be_lost(acting: Transaction) -> str | None:
    left = acting.snapshot.left()
    if left is None:
        return None
    with acting.following.doing("comparing with what the repair left"):
        paths = list(differing(left, acting.snapshot.present()))
    return lost(packages_of(paths), len(paths)) if paths else None


def _restored(acting: Transaction, *, undo: bool, code: int) -> Outcome:
    aside = Aside()
    try:
        with acting.following.doing("bringing back what was there"):
            aside = set_aside(acting.snapshot, _last_word_ns(acting))
            restored = acting.bring_back("asked for", undo=undo)
    except (RestoreError, OSError) as error:
        said = told_of(error) if isinstance(error, OSError) else str(error)
        why = f"Not all could be brought back: {said}. Cure that, then run the same again."
        return acting.outcome("stuck", 1, why)
    counts = f"{restored.brought} files brought back, {restored.removed} removed"
    why = f"All is as it was before the repair ({counts})."
    notes = (*edited(restored), *kept_aside(aside.paths, aside.folder))
    return acting.outcome("undone", code, why, notes=notes)


def _last_word_ns(acting: Transaction) -> int:
    """When the repair last said or did something, as the file system dates it."""
    if acting.snapshot.left() is not None:
        return 0
    for path in (acting.log, os.path.join(acting.snapshot.folder, MANIFEST)):
        with contextlib.suppress(OSError):
            return os.stat(path).st_mtime_ns
    return 0


def _never_begun(acting: Transaction) -> Outcome:
    acting.snapshot.remove()
    acting.journal.append(RolledBack(id=acting.begun.id))
    why = "The repair had changed nothing yet; its beginnings were removed."
    return acting.outcome("undone", 0, why)


def _not_yet(acting: Transaction, pid: int) -> Outcome:
    why = f"Process {pid} of the interrupted repair still runs: end it, then run the same again."
    return acting.outcome("unchanged", 1, why)


def _resume(acting: Transaction, story: Story) -> Outcome:
    """Half installed state is never built upon: it is taken back, and the plan begun anew."""
    if (pid := still_running(story)) is not None:
        return _not_yet(acting, pid)
    if story.stage == "changed":
        return acting.judge()
    if story.stage == "checked":
        last = story.of(Judged)[-1]
        return acting.keep(last.after, last.why)
    if story.stage == "untouched":
        if sentence := _changed_silently(acting):
            undo = command("--undo", acting.begun.afterwards)
            refuse(f"{sentence}: take it back with {undo} first")
        back = _never_begun(acting)
    elif _recorded(acting) is None:
        return _gone(acting)
    elif story.stage == "restoring":
        return _restored(acting, undo=story.undoing, code=0 if story.undoing else 1)
    else:
        back = _restored(acting, undo=False, code=0)
    if back.kind != "undone":
        return back
    # The same plan from the start, as a repair of its own.
    if sentence := _in_use(acting):
        why = f"The interrupted repair was taken back, and not begun anew: {sentence}."
        return unchanged(why)
    acting.following.say("the interrupted repair was taken back; it begins anew")
    os.makedirs(acting.journal.folder, exist_ok=True)
    anew = begin.prepared(story.begun)
    journal, following = acting.journal, acting.following
    return Transaction(journal, anew, following, acting.interrupts, acting.env).run()


def _forget(acting: Transaction, story: Story) -> Outcome:
    if story.unfinished:
        refuse("the last repair is unfinished: end it with --resume or --undo first")
    acting.journal.append(Forgotten(id=story.id))
    acting.snapshot.remove()
    why = "What was there before the last repair is forgotten; it can no longer be undone."
    return acting.outcome("forgotten", 0, why)
