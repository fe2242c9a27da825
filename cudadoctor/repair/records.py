"""What the journal of a repair says, one record a line, and what follows from it."""

from __future__ import annotations

import json
import re
from typing import Literal, TypeVar

import msgspec

SCHEMA = 1
"""Of the records; a journal of a later schema is not acted upon."""


class Root(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A folder that a repair may change. only: what of it (top-level names); but: what not."""

    path: str
    only: tuple[str, ...] | None = None
    but: tuple[str, ...] = ()

    def has(self, name: str) -> bool:
        """Whether that top-level name belongs to what is recorded and brought back."""
        return name not in self.but and (self.only is None or name in self.only)


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the plan as it is applied. files: path and text of what the doctor writes."""

    id: str
    title: str
    commands: tuple[tuple[str, ...], ...]
    cures: tuple[str, ...] = ()
    variables: dict[str, str | None] = {}
    files: tuple[tuple[str, str], ...] = ()


class Options(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the environment is looked at, before and after: what the user asked of `fix`."""

    fast: bool = False
    no_smoke: bool = False
    device: str | None = None
    timeout: float | None = None
    compiles: bool = False
    ignore: tuple[str, ...] = ()


class Opinion(msgspec.Struct, frozen=True, kw_only=True):
    """A check in short. grave: causes of all errors and warnings, `told` those nothing explains.

    undecided: causes that could not be told. smoke_passed, smoke_failed: stages of the training
    step; both 0 where none was run.
    """

    verdict: str
    primary: str | None = None
    grave: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    undecided: tuple[str, ...] = ()
    smoke_passed: tuple[str, ...] = ()
    smoke_failed: tuple[str, ...] = ()


class _Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="what", omit_defaults=True):
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
    made: tuple[str, ...] = ()
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
    argv: tuple[str, ...]
    pid: int | None = None
    started: int | None = None


class StepEnded(_Record, frozen=True, kw_only=True, tag="step-ended"):
    """code: exit status, negative for a signal; None where it was ended for its silence."""

    number: int
    code: int | None


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


class Story(msgspec.Struct, frozen=True, kw_only=True):
    """One repair, from its first record to its last."""

    begun: Begun
    records: tuple[Record, ...]

    @property
    def id(self) -> str:
        return self.begun.id

    @property
    def stage(self) -> Stage:
        last = self.records[-1]
        if isinstance(last, (RolledBack, Undone, Forgotten)):
            return "over"
        if isinstance(last, RollingBack):
            return "restoring"
        if isinstance(last, Kept):
            return "kept"
        if isinstance(last, Judged):
            return "checked" if last.better else "changed"
        if isinstance(last, Checking):
            return "changed"
        return "changing" if self.of(SnapshotDone) else "untouched"

    @property
    def unfinished(self) -> bool:
        return self.stage not in ("kept", "over")

    @property
    def undoing(self) -> bool:
        """Whether it is on its way back because the user asked for it after it had been kept."""
        return any(one.undo for one in self.of(RollingBack))

    _Some = TypeVar("_Some")

    def of(self, kind: type[_Some]) -> tuple[_Some, ...]:
        """The records of one kind, in order."""
        return tuple(one for one in self.records if isinstance(one, kind))


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
        if not isinstance(schema, int) or schema > SCHEMA:
            raise JournalError("the journal was written by a later cudadoctor: use that one")
        record: Record = msgspec.convert(found, Record)
        if not re.fullmatch(r"[0-9a-z]{1,40}", record.id):  # it becomes the name of a folder
            raise JournalError(f"line {number} of the journal names no repair")
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        if isinstance(error, JournalError):
            raise
        raise JournalError(f"line {number} of the journal cannot be read ({error})") from error
    return record


def stories(records: tuple[Record, ...]) -> tuple[Story, ...]:
    """The repairs that a journal tells of, the oldest first."""
    begun = [one for one in records if isinstance(one, Begun)]
    return tuple(
        Story(begun=one, records=tuple(each for each in records if each.id == one.id))
        for one in begun
    )


def open_story(told: tuple[Story, ...]) -> Story | None:
    """The repair that can be undone: the unfinished one, else the last one that was kept."""
    unfinished = [one for one in told if one.unfinished]
    kept = [one for one in told if one.stage == "kept"]
    return next(iter((*reversed(unfinished), *reversed(kept))), None)
