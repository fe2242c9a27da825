"""The journal of a repair: its records, what follows from them, and the file on disk."""

from __future__ import annotations

import datetime
import json
import os
import re
import shutil
import stat
import sys
from contextlib import suppress
from os.path import join, normpath, realpath
from typing import Literal, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from cudadoctor.cli.options import Options
from cudadoctor.cli.speech import say
from cudadoctor.model.machine import OptInt, OptStr, OptStrings, Strings, StrPair

OF_A_PROJECT = ("pixi.toml", "pixi.lock", "pyproject.toml")
"""Files of a pixi project, whose environments lie below it."""
SCHEMA = 1
"""Of the records; a journal of a later schema is not acted upon."""


class Root(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A folder that a repair may change. only: what of it (top-level names); but: what not."""

    path: str
    only: OptStrings = None
    but: Strings = ()

    def has(self, name: str) -> bool:
        """Whether that top-level name belongs to what is recorded and brought back."""
        return name not in self.but and (self.only is None or name in self.only)


class Task(Struct, frozen=True, kw_only=True):
    """One step of the plan as it is applied. files: path and text of what the doctor writes."""

    id: str
    title: str
    commands: tuple[Strings, ...]
    cures: Strings = ()
    variables: dict[str, OptStr] = {}
    files: tuple[StrPair, ...] = ()


class Opinion(Struct, frozen=True, kw_only=True):
    """A check in short. grave: causes of all errors and warnings, `told` those nothing explains.

    undecided: causes that could not be told. smoke_passed, smoke_failed: stages of the training
    step; both 0 where none was run.
    """

    verdict: str
    primary: OptStr = None
    grave: Strings = ()
    told: Strings = ()
    undecided: Strings = ()
    smoke_passed: Strings = ()
    smoke_failed: Strings = ()


class _Record(Struct, frozen=True, kw_only=True, tag_field="what", omit_defaults=True):
    """at: UTC, as text. id: of the repair that the record belongs to."""

    at: str = ""
    id: str = ""


class Begun(_Record, frozen=True, kw_only=True, tag="begun"):
    """A repair starts. examined: the interpreter that was looked at; afterwards: the one to check
    again. made: folders that did not exist and are made by it. prefix: the environment's folder."""

    schema: int
    doctor: str
    examined: str
    afterwards: str
    roots: tuple[Root, ...]
    tasks: tuple[Task, ...]
    before: Opinion
    options: Options = Options()
    made: Strings = ()
    prefix: str = ""


class SnapshotBegun(_Record, frozen=True, kw_only=True, tag="snapshot-begun"):
    """Nothing has been changed yet."""


class SnapshotDone(_Record, frozen=True, kw_only=True, tag="snapshot-done"):
    """The manifest stands on disk: from here on the environment may change."""

    entries: int


class StepBegun(_Record, frozen=True, kw_only=True, tag="step-begun"):
    """A command was started; it waits until this record is on disk.

    pid: of the leader of its process group; started: its start time in clock ticks after boot.
    """

    number: int
    argv: Strings
    pid: OptInt = None
    started: OptInt = None


class StepEnded(_Record, frozen=True, kw_only=True, tag="step-ended"):
    """code: exit status, negative for a signal; None where it was ended for its silence."""

    number: int
    code: OptInt


class Checking(_Record, frozen=True, kw_only=True, tag="checking"):
    """All commands have ended well; the environment is looked at again."""


class Judged(_Record, frozen=True, kw_only=True, tag="verdict"):
    """What the second look said. why: the reason why it is better, or not."""

    better: bool
    why: str
    after: Opinion


class Kept(_Record, frozen=True, kw_only=True, tag="kept"):
    """The repair stays; the snapshot waits for --undo."""


class RollingBack(_Record, frozen=True, kw_only=True, tag="rolling-back"):
    """The state before is being brought back. undo: because the user asked for it."""

    why: str = ""
    undo: bool = False


class RolledBack(_Record, frozen=True, kw_only=True, tag="rolled-back"):
    """All is as it was before the repair."""


class Undone(_Record, frozen=True, kw_only=True, tag="undone"):
    """The same, of a repair that had been kept."""


class Forgotten(_Record, frozen=True, kw_only=True, tag="forgotten"):
    """The snapshot was removed: this repair can no longer be undone."""


Record = (
    Begun
    | SnapshotBegun
    | SnapshotDone
    | StepBegun
    | StepEnded
    | Checking
    | Judged
    | Kept
    | RollingBack
    | RolledBack
    | Undone
    | Forgotten
)

Stage = Literal["untouched", "changing", "changed", "checked", "kept", "restoring", "over"]
"""How far a repair has come.

untouched: nothing was changed yet. changing: commands run or were cut off. changed: all commands
have ended well. checked: the second look found it better. restoring: under way back. over: nothing
is left to do or to bring back.
"""


class JournalError(ValueError):
    """The journal cannot be acted upon; its text is a sentence for the user."""


class Story(Struct, frozen=True, kw_only=True):
    """One repair, from its first record to its last."""

    begun: Begun
    records: tuple[Record, ...]

    @property
    def id(self) -> str:
        return self.begun.id

    @property
    def stage(self) -> Stage:
        match self.records[-1]:
            case RolledBack() | Undone() | Forgotten():
                return "over"
            case RollingBack():
                return "restoring"
            case Kept():
                return "kept"
            case Judged(better=True):
                return "checked"
            case Judged() | Checking():
                return "changed"
        return "changing" if self.of(SnapshotDone) else "untouched"

    @property
    def unfinished(self) -> bool:
        return self.stage not in ("kept", "over")

    @property
    def undoing(self) -> bool:
        """Whether it is on its way back because the user asked for it after it had been kept."""
        return any(record.undo for record in self.of(RollingBack))

    _Some = TypeVar("_Some")

    def of(self, kind: type[_Some]) -> tuple[_Some, ...]:
        """The records of one kind, in order."""
        return tuple(record for record in self.records if isinstance(record, kind))


def line_of(record: Record) -> bytes:
    """The record as a line of the journal; names of any bytes survive it."""
    return json.dumps(msgspec.to_builtins(record)).encode("ascii") + b"\n"


def read(data: bytes) -> tuple[Record, ...]:
    """The records of a journal. A last line that was cut off is none.

    Raises JournalError where a later doctor wrote it, or where it is damaged.
    """
    whole, _, _ = data.rpartition(b"\n")
    lines = whole.split(b"\n") if whole else []
    return tuple(_record(number, line) for number, line in enumerate(lines, 1))


def _record(number: int, line: bytes) -> Record:
    try:
        found = json.loads(line)
        schema = found.get("schema", SCHEMA) if isinstance(found, dict) else SCHEMA
        later = not isinstance(schema, int) or schema > SCHEMA
        record: Record | None = None if later else msgspec.convert(found, Record)
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        why = say(
            "line {number} of the fix journal cannot be read ({error})", number=number, error=error
        )
        raise JournalError(why) from error
    if record is None:
        raise JournalError(
            say("the fix journal was written by a newer version of cudadoctor; use that version")
        )
    if not re.fullmatch(r"[0-9a-z]{1,40}", record.id):  # it becomes the name of a folder
        raise JournalError(
            say("line {number} of the fix journal has no valid fix ID", number=number)
        )
    return record


def stories(records: tuple[Record, ...]) -> tuple[Story, ...]:
    """The repairs that a journal tells of, the oldest first."""
    return tuple(
        Story(begun=begun, records=tuple(record for record in records if record.id == begun.id))
        for begun in records
        if isinstance(begun, Begun)
    )


def open_story(repairs: tuple[Story, ...]) -> Story | None:
    """The repair that can be undone: the unfinished one, else the last one that was kept."""
    still_open = [story for story in repairs if story.stage != "over"]
    return max(reversed(still_open), key=lambda story: story.unfinished, default=None)


FOLDER = ".cudadoctor"
NAME = "journal.jsonl"


class Busy(Exception):  # noqa: N818 - told in one sentence
    """Another repair of the same environment is running."""


class Journal:
    """The journal of one environment, in `<prefix>/.cudadoctor`.

    Held as a context, it is locked against other repairs of the same environment.
    """

    def __init__(self, prefix: str) -> None:
        self.folder = join(prefix, FOLDER)
        self.path = join(self.folder, NAME)
        self._lock = -1

    def stories(self) -> tuple[Story, ...]:
        """The repairs that it tells of. Raises JournalError where it cannot be acted upon."""
        try:
            with open(self.path, "rb") as file:
                return stories(read(file.read()))
        except FileNotFoundError:
            return ()
        except OSError as error:
            reason = error.strerror
            why = say("cannot read {path}: {reason}", path=self.path, reason=reason)
            raise JournalError(why) from error

    def open_story(self) -> Story | None:
        """The repair that can be undone, if any."""
        return open_story(self.stories())

    def append(self, record: Record, identity: str) -> None:
        """Write a record of that repair and wait until it is on disk, before what it announces."""
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
        new = not os.path.exists(self.path)
        # A copy of the environment made of hard links must not write into this one's journal.
        with suppress(FileNotFoundError):
            if os.lstat(self.path).st_nlink > 1:
                shutil.copy2(self.path, f"{self.path}.new")
                os.replace(f"{self.path}.new", self.path)
                new = True
        with open(self.path, "a+b", opener=_public) as file:
            # What a kill cut off after the last whole line goes.
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
            file.write(line_of(replace(record, at=now, id=identity)))
            file.flush()
            os.fsync(file.fileno())
        if new:
            synced_folder(self.folder)

    def __enter__(self) -> Journal:
        os.makedirs(self.folder, mode=0o755, exist_ok=True)
        demand_own(self.folder)
        self._lock = os.open(join(self.folder, "lock"), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            lock(self._lock)
        except BlockingIOError as error:
            os.close(self._lock)
            raise Busy(self.folder) from error
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)


def _public(path: str, flags: int) -> int:
    """Opens a file that others may read and never write, whatever the user's mask."""
    return os.open(path, flags, 0o644)


def lock(number: int) -> None:
    """Lock the file for as long as this handle, or a child that inherited it, is open.

    Raises BlockingIOError if another process holds it.
    """
    if sys.platform == "win32":
        import msvcrt

        try:
            msvcrt.locking(number, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            raise BlockingIOError from error
        return
    import fcntl

    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:  # a file system without locks: nothing keeps two repairs apart there
        if isinstance(error, BlockingIOError):
            raise


def synced_folder(path: str) -> None:
    """Wait until the names in a folder are on disk."""
    with suppress(OSError):  # Windows opens no folders
        number = os.open(path, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def pixi_project(prefix: str) -> OptStr:
    """The folder of the project whose environment pixi keeps there, None for any other folder."""
    project, mark, _ = prefix.replace("\\", "/").partition("/.pixi/envs/")
    return project if mark else None


def in_its_place(begun: Begun, prefix: str) -> Begun:
    """The repair, speaking of the environment where it lies now.

    Raises JournalError where it speaks of anything else.
    """
    recorded = normpath(begun.prefix or prefix)
    made = [normpath(path) for path in begun.made]
    written = [path for task in begun.tasks for path, _ in task.files]
    outside = [
        *([] if os.path.isabs(recorded) else [recorded]),
        *(path for path in made[-1:] if path != recorded),
        *(path for path in made if not is_below(recorded, path)),
        *(
            root.path
            for root in begun.roots
            if not (is_below(root.path, recorded) or _is_pixis(root, recorded))
        ),
        *(path for path in written if not is_below(path, recorded)),
    ]
    if outside:
        raise _outside(outside[0])
    here = _moved(begun, recorded, prefix) if was_moved(begun, prefix) else begun
    for root in here.roots:
        # No link may lead out of the environment.
        inside = is_below(realpath(root.path), realpath(prefix))
        if not (inside or _is_pixis(root, normpath(prefix))):
            raise _outside(root.path)
    return here


def was_moved(begun: Begun, prefix: str) -> bool:
    """Whether the environment was copied or moved since, so that its commands name another."""
    try:
        return not os.path.samefile(normpath(begun.prefix or prefix), prefix)
    except OSError:
        return True


def is_below(path: str, folder: str) -> bool:
    """Whether a path is that folder or lies in it, by its words."""
    plain = normpath(path)
    return os.path.isabs(path) and (
        plain == folder or plain.startswith(folder.rstrip("/\\") + os.sep)
    )


def _is_pixis(root: Root, prefix: str) -> bool:
    """pixi keeps its environments in the folder of a project, whose files it writes too."""
    named = root.only is not None and set(root.only) <= set(OF_A_PROJECT)
    return named and root.path == pixi_project(prefix)


def _moved(begun: Begun, recorded: str, prefix: str) -> Begun:
    def there(path: str) -> str:
        return normpath(join(prefix, os.path.relpath(path, recorded)))

    def root_there(root: Root) -> Root:
        if is_below(root.path, recorded):
            return replace(root, path=there(root.path))
        if (project := pixi_project(prefix)) is None:
            raise _outside(root.path)
        return replace(root, path=project)

    after = begun.afterwards
    return replace(
        begun,
        roots=tuple(root_there(root) for root in begun.roots),
        afterwards=there(after) if is_below(after, recorded) else after,
        made=(),
    )


def _outside(path: str) -> JournalError:
    template = "the fix journal refers to {path}, which is not part of this environment"
    return JournalError(say(template, path=path))


def demand_own(folder: str) -> None:
    """Raise JournalError where others can have planted something in the journal's folder."""
    if stat.S_ISLNK(os.lstat(folder).st_mode):
        raise JournalError(
            say("the journal folder is a symbolic link to another location; remove that link")
        )
    if os.name != "posix":
        return
    own = os.geteuid()
    if os.lstat(folder).st_uid != own:
        raise JournalError(say("the journal folder belongs to another user; run this as its owner"))
    with os.scandir(folder) as found:
        for entry in found:
            if entry.is_symlink() or entry.stat(follow_symlinks=False).st_uid != own:
                template = (
                    "{name} in the journal folder is a link or belongs to another user; "
                    "remove that entry"
                )
                raise JournalError(say(template, name=entry.name))
