"""Journals that were copied, planted or damaged; links that lead away; files of the user's own."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from repair_fixtures import FITTING, STRANGE, Environment, tree

from cudadoctor.repair.begin import led_elsewhere
from cudadoctor.repair.journal import Opinion
from cudadoctor.repair.session import environment, ignored_variables
from cudadoctor.repair.snapshot import Entry, ManifestError, dumps, loads, parse_record
from cudadoctor.repair.transaction import better

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links and owners as on POSIX")


def said(ran: subprocess.CompletedProcess[str]) -> str:
    return " ".join((ran.stdout + ran.stderr).split())


# --- an environment that was copied, moved, or shares its files -------------------------------


@pytest.mark.parametrize("how", ["-a", "-al"])
def test_an_undo_in_a_copy_leaves_the_original_alone(
    broken: Environment, tmp_path: Path, how: str
) -> None:
    before = broken.tree()
    broken.fix("--yes")
    copy = tmp_path / "copy"
    subprocess.run(["cp", how, broken.folder, copy], check=True)
    original, journal = broken.tree(), broken.journal.read_bytes()
    there = Environment(copy, broken.index)
    ran = there.fix("--undo", "--yes")
    assert ran.returncode == 0, ran
    assert tree(copy) == before
    assert (broken.tree(), broken.journal.read_bytes()) == (original, journal)
    assert broken.fix("--undo").returncode == 0
    assert broken.tree() == before


def test_a_repair_is_not_resumed_where_its_commands_name_another_place(
    broken: Environment, tmp_path: Path
) -> None:
    before = broken.tree()
    broken.killed_after(4)
    broken.folder.rename(tmp_path / "moved")
    there = Environment(tmp_path / "moved", broken.index)
    ran = there.fix("--resume")
    assert ran.returncode == 2
    assert "To undo it here: cudadoctor fix --undo" in said(ran)
    assert str(there.folder) in said(ran)
    assert there.fix("--undo").returncode == 0
    assert there.tree() == before


def test_an_undo_leaves_hard_links_from_elsewhere_as_they_are(
    broken: Environment, tmp_path: Path
) -> None:
    """As uv's cache: every file has a name outside of the environment too."""
    cache = tmp_path / "cache"
    subprocess.run(["cp", "-al", broken.folder, cache], check=True)
    seen = tree(cache)
    broken.fix("--yes")
    broken.fix("--undo", "--yes")
    assert tree(cache) == seen


# --- planted -----------------------------------------------------------------------------------


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    folder = tmp_path / "precious"
    (folder / ".cudadoctor").mkdir(parents=True)
    (folder / "thesis.tex").write_text("years of work")
    (folder / "before-the-war").mkdir()
    (folder / "before-the-war" / "letters").write_text("dear")
    return folder


def planted(broken: Environment, **changes: object) -> None:
    """Rewrite the first record of a journal."""
    lines = broken.journal.read_bytes().splitlines()
    first = {**json.loads(lines[0]), **changes}
    broken.journal.write_bytes(b"\n".join([json.dumps(first).encode(), *lines[1:], b""]))


def test_a_planted_journal_leads_nowhere(broken: Environment, precious: Path) -> None:
    """Each is refused before anything is done, so one environment serves for all."""
    broken.killed_after(3)
    (broken.folder / "way").symlink_to(precious)
    own, seen = broken.journal.read_bytes(), tree(precious)
    ways = (str(precious), f"{broken.folder}/../precious", f"{broken.folder}/way")
    changes: list[dict[str, object]] = [{"roots": [{"path": way}]} for way in ways]
    changes += [{"made": [str(precious)]}, {"id": "../../precious"}]
    for change in changes:
        for word in ("--undo", "--resume"):
            broken.journal.write_bytes(own)
            planted(broken, **change)
            ran = broken.fix(word, "--yes")
            assert ran.returncode == 2, (change, ran)
            assert "not part of this environment" in said(ran) or "has no valid fix ID" in said(ran)
            assert tree(precious) == seen, (change, word)
            assert (precious / ".cudadoctor").exists(), (change, word)


@pytest.mark.parametrize(
    "entries",
    [
        (Entry(0, "../x", "linked"),),
        (Entry(0, "/etc/x", "linked"),),
        (Entry(0, "", "folder"),),
        (Entry(-1, "x", "folder"),),
        (Entry(0, "way", "symlink", target="/home"), Entry(0, "way/x", "linked")),
        (Entry(0, "file", "linked"), Entry(0, "file/x", "linked")),
    ],
)
def test_a_planted_manifest_is_not_acted_upon(entries: tuple[Entry, ...]) -> None:
    with pytest.raises(ManifestError, match=r"points outside the folder|is not a folder"):
        loads(dumps(entries))


def test_a_folder_of_records_that_is_a_link_is_not_followed(
    broken: Environment, precious: Path
) -> None:
    (broken.folder / ".cudadoctor").symlink_to(precious)
    seen, before = tree(precious), broken.tree()
    ran = broken.fix("--yes")
    assert ran.returncode == 1
    assert "the journal folder is a symbolic link" in said(ran)
    assert (tree(precious), broken.tree()) == (seen, before)


def test_a_link_in_the_folder_of_records_is_not_written_through(
    broken: Environment, precious: Path
) -> None:
    (broken.folder / ".cudadoctor").mkdir()
    for name in ("log.txt", "check.json"):
        (broken.folder / ".cudadoctor" / name).symlink_to(precious / "thesis.tex")
    ran = broken.fix("--yes")
    assert ran.returncode == 1
    assert (precious / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize("link", ["site-packages", "package", "bin"])
def test_what_a_link_leads_to_cannot_be_brought_back_and_is_not_touched(
    broken: Environment, tmp_path: Path, link: str
) -> None:
    path = {
        "site-packages": broken.site,
        "package": broken.site / "torchvision",
        "bin": broken.folder / "bin",
    }[link]
    outside = tmp_path / "outside"
    shutil.move(path, outside)
    path.symlink_to(outside)
    seen = tree(outside)
    ran = broken.fix("--yes")
    assert ran.returncode == 2, ran
    assert f"{path} links to {outside}" in said(ran)
    assert tree(outside) == seen


def test_an_environment_may_be_named_through_a_link(broken: Environment, tmp_path: Path) -> None:
    before = broken.tree()
    link = tmp_path / "link"
    link.symlink_to(broken.folder)
    there = Environment(link, broken.index)
    assert there.fix("--yes").returncode == 0
    assert broken.imports() == FITTING
    assert broken.fix("--undo").returncode == 0
    assert broken.tree() == before


def test_a_snapshot_that_no_journal_tells_of_stays(broken: Environment) -> None:
    """The journal was lost: what was kept is all that is left of the state before."""
    broken.fix("--yes")
    (kept,) = broken.journal.parent.glob("before-*")
    broken.journal.unlink()
    metadata = broken.site / f"torchvision-{FITTING}.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace(FITTING, "0.19.0"))
    broken.fix("--yes")
    assert (kept / "manifest").exists()


# --- files of the user -------------------------------------------------------------------------


def test_what_the_user_wrote_since_is_moved_aside_and_never_lost(broken: Environment) -> None:
    before = broken.tree()
    broken.fix("--yes")
    (broken.folder / "share").mkdir(exist_ok=True)
    written = {
        broken.folder / "share" / "results.csv": "a,b\n",
        broken.site / "mine\udcff.py": "MINE = 1\n",
        broken.site / "torchvision" / "__init__.py": "from .version import __version__  # mine\n",
    }
    for path, text in written.items():
        path.write_text(text)
    ran = broken.fix("--undo", "--yes")
    assert ran.returncode == 0, ran
    assert "3 files that you had changed" in said(ran)
    (aside,) = broken.journal.parent.glob("set-aside-*")
    for path, text in written.items():
        assert (aside / "0" / path.relative_to(broken.folder)).read_text() == text
    assert broken.tree() == before
    broken.fix("--yes")
    broken.fix("--forget")
    assert aside.exists()


def test_work_done_long_after_a_kill_is_kept_too(broken: Environment) -> None:
    before = broken.tree()
    broken.killed_after(5)
    log = broken.journal.parent / "log.txt"
    earlier = time.time() - 3600
    os.utime(log, (earlier, earlier))
    (broken.site / "mine.py").write_text("MINE = 1\n")
    ran = broken.fix("--undo", "--yes")
    assert "1 file that you had changed" in said(ran)
    assert list(broken.journal.parent.glob("set-aside-*/0/lib/**/mine.py"))
    assert not list(broken.journal.parent.glob("set-aside-*/0/lib/**/torchvision/*"))
    assert broken.tree() == before


def test_a_socket_in_a_new_folder_does_not_stop_an_undo(broken: Environment) -> None:
    broken.fix("--yes")
    folder = broken.folder / "share" / "run"
    folder.mkdir(parents=True)
    short = os.path.relpath(folder / "s")
    with socket.socket(socket.AF_UNIX) as unix_socket:
        unix_socket.bind(min(short, str(folder / "s"), key=len))
        os.mkfifo(folder / "pipe")
        ran = broken.fix("--undo", "--yes")
    assert ran.returncode == 0, ran
    assert broken.imports() == STRANGE
    assert (folder / "pipe").exists()


def test_a_record_tells_digests_as_they_are_counted() -> None:
    rows = parse_record(
        "a.py,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0\nb/RECORD,,\n,\n"
    )
    assert next(iter(rows)) == (
        "a.py",
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        0,
    )


# --- the folder that the user stands in ---------------------------------------------------------


def test_a_repair_runs_nothing_of_the_folder_it_is_started_in(
    broken: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    way = {"PATH": f".:{os.environ['PATH']}", "PYTHONPATH": "."}
    here = tmp_path / "here"
    here.mkdir()
    for name in ("pip", "ensurepip", "setuptools", "planted", "wheel", "click", "ctypes_"):
        (here / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    for name in ("python", "python3", "uv", "sh"):
        (here / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
        (here / name).chmod(0o755)
    monkeypatch.chdir(here)
    for word, variables in (("--yes", way), ("--undo", {})):
        ran = broken.fix(word, **variables)
        assert ran.returncode == 0, ran
    assert not (tmp_path / "ran").exists()
    assert broken.imports() == STRANGE


def test_a_second_look_names_the_files_of_the_folder_as_the_first_did(
    broken: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "random.py").write_text("x = 1\n")
    monkeypatch.chdir(tmp_path)
    ran = broken.fix("--yes", "--json")
    document = json.loads(ran.stdout)
    assert "module-shadowed" in json.dumps(document)
    assert broken.imports() == FITTING


# --- what would lead a package manager away ----------------------------------------------------


def test_variables_that_lead_elsewhere_are_not_heeded(broken: Environment, tmp_path: Path) -> None:
    away = {
        name: str(tmp_path / name)
        for name in ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PYTHONUSERBASE")
    }
    on = dict.fromkeys(("PIP_USER", "PIP_DRY_RUN", "PIP_REQUIRE_VIRTUALENV"), "1")
    ran = broken.fix("--yes", **away, **on)
    assert ran.returncode == 0, ran
    assert (
        "Ignoring these variables so that only this environment is changed: PIP_TARGET, PIP_PREFIX"
        in said(ran)
    )
    assert broken.imports() == FITTING
    assert not any(Path(path).exists() for path in away.values())


def test_pip_sees_neither_the_users_packages_nor_those_of_a_path() -> None:
    own = {"PYTHONPATH": "/other", "PIP_USER": "1", "PIP_INDEX_URL": "i", "PIP_DRY_RUN": "0"}
    found = environment(own, {})
    assert (found["PYTHONNOUSERSITE"], found["PIP_USER"]) == ("1", "0")
    assert "PYTHONPATH" not in found
    assert found["PIP_INDEX_URL"] == "i"
    assert ignored_variables(own) == ("PYTHONPATH", "PIP_USER")


def test_a_configuration_that_leads_elsewhere_is_named_with_its_cure(
    broken: Environment, tmp_path: Path
) -> None:
    away, before = tmp_path / "away", broken.tree()
    (tmp_path / "pip.conf").write_text(f"[install]\ntarget = {away}\n")
    ran = broken.fix("--yes", PIP_CONFIG_FILE=str(tmp_path / "pip.conf"))
    assert ran.returncode == 1, ran
    assert f"{broken.python} -m pip config unset install.target" in said(ran)
    assert broken.tree() == before
    assert not away.exists()
    assert led_elsewhere("global.index-url='x'\ninstall.user='true'\n", "python") is None


# --- streams, and two at once ------------------------------------------------------------------


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_closed_streams_do_not_get_into_the_journal(broken: Environment, closed: str) -> None:
    words = " ".join(broken.words("--yes"))
    ran = subprocess.run(["sh", "-c", f"exec {words} {closed}"], env=broken.env(), check=False)
    assert ran.returncode == 0
    assert broken.records()[-1] == "kept"


def test_a_reader_that_leaves_early_leaves_no_half_state(broken: Environment) -> None:
    words = " ".join(broken.words("--yes"))
    subprocess.run(["sh", "-c", f"{words} | head -1"], env=broken.env(), check=False)
    assert broken.records()[-1:] in ([], ["kept"], ["rolled-back"])


def test_two_at_once_do_not_lose_the_way_back(broken: Environment) -> None:
    before = broken.tree()
    quiet = subprocess.DEVNULL
    children = [
        subprocess.Popen(
            broken.words("--yes"), env=broken.env(), stdin=quiet, stdout=quiet, stderr=quiet
        )
        for _ in range(3)
    ]
    for child in children:
        child.wait(120)
    assert broken.imports() == FITTING
    assert broken.records().count("kept") == 1
    assert broken.fix("--undo").returncode == 0
    assert broken.tree() == before


# --- a verdict that is better by chance --------------------------------------------------------

PASSED = Opinion(verdict="warnings", grave=("w",), told=("w",), smoke_passed=("forward",))


def test_a_training_step_that_no_longer_runs_is_not_better() -> None:
    after = Opinion(verdict="healthy")
    assert better(PASSED, after, ("w",)) == (
        False,
        "the training step ran before the fix but no longer runs",
    )


def test_a_stranger_that_went_away_does_not_excuse_what_was_to_be_cured() -> None:
    before = Opinion(verdict="broken", grave=("a", "b"), told=("a", "b"))
    after = msgspec.structs.replace(before, grave=("a",), told=("a",))
    assert better(before, after, ("a",)) == (False, "a is still reported")
    assert better(before, after, ("a", "b"))[0]


# --- a journal or a record that lost its end ---------------------------------------------------


@pytest.mark.parametrize("lines", [1, 2])
def test_a_journal_that_lost_its_end_does_not_cost_the_state_before(
    broken: Environment, lines: int
) -> None:
    """The journal names no change, yet the environment has changed."""
    before = broken.tree()
    broken.killed_after(5)
    journal_lines = broken.journal.read_bytes().splitlines(keepends=True)
    broken.journal.write_bytes(b"".join(journal_lines[:lines]))
    for word in ("--undo", "--resume"):
        ran = broken.fix(word)
        assert ran.returncode == 2, ran
        assert "The last fix stopped before its first step, but" in said(ran)
    assert broken.fix("--undo", "--yes").returncode == 0
    assert broken.tree() == before


def test_of_a_damaged_record_the_kept_files_stay(broken: Environment) -> None:
    broken.killed_after(5)
    (kept,) = broken.journal.parent.glob("before-*")
    with (kept / "manifest").open("r+b") as manifest:
        manifest.truncate(1000)
    ran = broken.fix("--undo")
    assert ran.returncode == 1
    assert "The saved files are damaged (" in said(ran)
    broken.fix("--yes")
    assert list(broken.journal.parent.glob("damaged-*/0/lib/python*/site-packages/torchvision*"))


def test_a_record_that_cannot_be_read_now_is_not_given_up(broken: Environment) -> None:
    broken.killed_after(5)
    (kept,) = broken.journal.parent.glob("before-*")
    (kept / "manifest").rename(kept / "away")
    (kept / "manifest").mkdir()
    assert broken.fix("--undo").returncode == 2
    assert "forgotten" not in broken.records()


def test_a_fact_that_was_not_told_before_is_no_cure() -> None:
    before = Opinion(verdict="undecided", grave=("w",), told=("w",), undecided=("gpu",))
    after = Opinion(verdict="warnings", grave=("w",), told=("w",))
    assert better(before, after, ("w",)) == (False, "w is still reported")
