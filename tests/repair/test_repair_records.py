"""The journal and the manifest as values: read as written, torn, damaged, of a later doctor."""

from __future__ import annotations

import json

import msgspec
import pytest

from cudadoctor.repair.journal import (
    SCHEMA,
    Begun,
    Checking,
    Forgotten,
    JournalError,
    Judged,
    Kept,
    Opinion,
    Record,
    RolledBack,
    RollingBack,
    Root,
    SnapshotBegun,
    SnapshotDone,
    StepBegun,
    StepEnded,
    Undone,
    line_of,
    open_story,
    read,
    stories,
)
from cudadoctor.repair.snapshot import Entry, differing, dumps, loads, packages_of
from cudadoctor.repair.words import lost

# --- the journal -------------------------------------------------------------------------------

BEGUN = Begun(
    id="1",
    schema=SCHEMA,
    doctor="0.1.0",
    examined="/v/bin/python",
    afterwards="/v/bin/python",
    roots=(Root(path="/v\udcff", only=("lib",)),),
    tasks=(),
    before=Opinion(verdict="broken"),
)
STORY: tuple[tuple[Record, str], ...] = (
    (BEGUN, "untouched"),
    (SnapshotBegun(id="1"), "untouched"),
    (SnapshotDone(id="1", entries=3), "changing"),
    (StepBegun(id="1", number=0, argv=("pip",), pid=5, started=6), "changing"),
    (StepEnded(id="1", number=0, code=0), "changing"),
    (Checking(id="1"), "changed"),
    (Judged(id="1", better=True, why="w", after=Opinion(verdict="healthy")), "checked"),
    (Kept(id="1"), "kept"),
    (RollingBack(id="1", undo=True), "restoring"),
    (Undone(id="1"), "over"),
)


def test_a_journal_tells_how_far_a_repair_has_come() -> None:
    data = b""
    for record, stage in STORY:
        data += line_of(record)
        (story,) = stories(read(data))
        assert story.stage == stage
        assert story.unfinished is (stage not in ("kept", "over"))
    assert read(data) == tuple(record for record, _ in STORY)


def test_a_last_line_that_was_cut_off_is_none() -> None:
    data = line_of(BEGUN) + line_of(SnapshotBegun(id="1"))
    for size in range(len(line_of(BEGUN)), len(data)):
        assert read(data[:size]) == (BEGUN,)
    assert read(b"") == read(data[:10]) == ()


def test_a_journal_of_a_later_doctor_is_not_acted_upon() -> None:
    plain = json.loads(line_of(BEGUN))
    for change in ({"schema": SCHEMA + 1}, {"schema": "2"}):
        with pytest.raises(JournalError, match="newer version of cudadoctor"):
            read(json.dumps({**plain, **change}).encode() + b"\n")
    with pytest.raises(JournalError, match="line 1"):
        read(json.dumps({**plain, "what": "teleported"}).encode() + b"\n")
    with pytest.raises(JournalError, match="line 2"):
        read(line_of(BEGUN) + b"[[[[\n")


def test_the_unfinished_repair_comes_before_the_last_kept_one() -> None:
    def of(name: str, *records: Record) -> bytes:
        both = (msgspec.structs.replace(BEGUN, id=name), *records)
        return b"".join(line_of(msgspec.structs.replace(record, id=name)) for record in both)

    def opened(data: bytes) -> str | None:
        story = open_story(stories(read(data)))
        return story.id if story else None

    kept = of("1", Kept()) + of("2", Kept())
    assert opened(kept) == "2"
    assert opened(kept + of("3")) == "3"
    assert opened(kept + of("3", RolledBack())) == "2"
    assert opened(kept + line_of(Undone(id="2"))) == "1"
    assert opened(kept + line_of(Forgotten(id="1")) + line_of(Undone(id="2"))) is None
    assert opened(b"") is None


# --- what changed since ------------------------------------------------------------------------

ENTRIES = (
    Entry(0, "lib", "folder", 0o755),
    Entry(0, "lib/na\udcefve.py", "linked", 0o644, 5, 6),
    Entry(0, "lib/torch-2.dist-info", "folder", 0o755),
    Entry(0, "lib/torch-2.dist-info/RECORD", "copied", 0o644, 1, 2, sha256="ab"),
    Entry(0, "lib64", "symlink", target="lib"),
)


def test_a_manifest_is_read_as_it_was_written_or_not_at_all() -> None:
    data = dumps(ENTRIES)
    assert loads(data) == ENTRIES
    for size in range(len(data)):
        with pytest.raises(ValueError, match="list of saved files"):
            loads(data[:size])


def test_byte_code_is_no_change_and_packages_are_named() -> None:
    more = (
        *ENTRIES[:2],
        Entry(0, "lib/__pycache__", "folder"),
        Entry(0, "lib/__pycache__/x.pyc", "linked", 0o644, 1, 1),
        Entry(0, "lib/torch-3.dist-info", "folder"),
        *ENTRIES[4:],
    )
    paths = differing(ENTRIES, more)
    assert len(paths) == 3
    assert packages_of(paths) == ("torch",)
    assert lost(("torch",), 3, "/kept").startswith(
        "3 files have changed since the fix (packages: torch). Undoing the fix removes packages"
    )
    assert lost((), 1, "/kept").startswith("1 file has changed since the fix. ")
