"""A snapshot of a real tree, and bringing it back whatever has happened to the tree."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import sys
from pathlib import Path

import pytest
from repair_fixtures import tree

from cudadoctor.repair.journal import Root
from cudadoctor.repair.snapshot import MANIFEST, ManifestError, RestoreError, Snapshot

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a tree as POSIX has it")

SITE = "lib/python3.11/site-packages"


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A tree with all that a real one can hold."""
    env = tmp_path / "env"
    site = env / SITE
    (site / "torch").mkdir(parents=True)
    (site / "torch" / "lib.so").write_bytes(b"machine code" * 1000)
    (site / "torch" / "empty").mkdir()
    (site / "torch" / "nothing.py").write_bytes(b"")
    (site / "torch-2.0.dist-info").mkdir()
    (site / "torch-2.0.dist-info" / "RECORD").write_text("torch/lib.so,,\n")
    (site / "paths.pth").write_text("/somewhere\n")
    (site / "na\udcefve.py").write_text("LATIN = 1\n")
    (env / "bin").mkdir()
    script = env / "bin" / "torchrun"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    (env / "bin" / "python").symlink_to("/nowhere/python3")
    (env / "lib64").symlink_to("lib")
    (env / "pyvenv.cfg").write_text("home = /nowhere\n")
    closed = site / "closed"
    closed.mkdir()
    (closed / "kept.py").write_text("KEPT = 1\n")
    closed.chmod(0o555)
    os.link(site / "torch" / "lib.so", site / "torch" / "same.so")
    return env


def snapshot_of(environment: Path) -> Snapshot:
    folder = environment / ".cudadoctor"
    folder.mkdir(exist_ok=True)
    snapshot = Snapshot(str(folder), "1", (Root(path=str(environment), but=("data",)),))
    snapshot.take()
    return snapshot


def test_an_untouched_tree_stays_untouched(environment: Path) -> None:
    before = tree(environment)
    numbers = {path: path.lstat().st_ino for path in (environment / "lib").rglob("*")}
    done = snapshot_of(environment).restore()
    assert (done.brought, done.removed, done.edited) == (0, 0, ())
    assert tree(environment) == before
    assert {path: path.lstat().st_ino for path in numbers} == numbers


def test_large_files_are_links_and_metadata_is_copied(environment: Path) -> None:
    snapshot = snapshot_of(environment)
    kinds = {entry.path: entry.kind for entry in snapshot.entries()}
    assert kinds[f"{SITE}/torch/lib.so"] == "linked"
    for path in ("paths.pth", "torch-2.0.dist-info/RECORD"):
        assert kinds[f"{SITE}/{path}"] == "copied"
    assert kinds["bin/torchrun"] == kinds["pyvenv.cfg"] == "copied"
    assert kinds["lib64"] == kinds["bin/python"] == "symlink"


def ruin(environment: Path) -> None:
    """All that an installer, a user and a kill can do to it."""
    site = environment / SITE
    (site / "torch" / "lib.so").unlink()
    (site / "torch" / "lib.so").write_bytes(b"newer")
    (site / "torch" / "same.so").unlink()
    (site / "torch" / "empty").rmdir()
    (site / "torch" / "empty").write_text("a file now\n")
    (site / "torch" / "nothing.py").unlink()
    (site / "torch" / "nothing.py").mkdir()
    (site / "torch" / "nothing.py" / "inside").write_text("")
    (site / "torch-2.0.dist-info").rename(site / "~orch-2.0.dist-info")
    (site / "paths.pth").write_text("/elsewhere\n")
    (site / "na\udcefve.py").unlink()
    (site / "added").mkdir()
    (site / "added" / "deep").mkdir()
    (site / "added" / "deep" / "file.py").write_text("")
    (site / "torch" / "lib.so.cudadoctor-new").write_text("half brought back")
    shutil.rmtree(environment / "bin")
    (environment / "lib64").unlink()
    (environment / "lib64").mkdir()
    (environment / "pyvenv.cfg").chmod(0o600)
    (site / "closed").chmod(0o755)
    (site / "closed" / "kept.py").unlink()
    (site / "closed").chmod(0o555)


def test_all_comes_back_whatever_was_done(environment: Path) -> None:
    before = tree(environment)
    snapshot = snapshot_of(environment)
    ruin(environment)
    snapshot.restore()
    assert tree(environment) == before
    assert stat.S_IMODE((environment / SITE / "closed").stat().st_mode) == 0o555
    again = snapshot.restore()
    assert (again.brought, again.removed) == (0, 0)


def test_no_link_leads_out_of_the_tree(environment: Path, tmp_path: Path) -> None:
    """A folder became a link to somebody's data: the link goes, the data stays."""
    before = tree(environment)
    snapshot = snapshot_of(environment)
    outside = tmp_path / "outside"
    shutil.copytree(environment / SITE / "torch", outside)
    (outside / "precious.txt").write_text("mine\n")
    seen = tree(outside)
    shutil.rmtree(environment / SITE / "torch")
    (environment / SITE / "torch").symlink_to(outside)
    (environment / SITE / "other").symlink_to(outside)
    snapshot.restore()
    assert tree(outside) == seen
    assert tree(environment) == before


def test_what_is_not_recorded_is_not_touched(environment: Path) -> None:
    (environment / "data").mkdir()
    (environment / "data" / "one").write_text("1")
    snapshot = snapshot_of(environment)
    (environment / "data" / "two").write_text("2")
    (environment / "data" / "one").unlink()
    snapshot.restore()
    assert sorted(path.name for path in (environment / "data").iterdir()) == ["two"]


def test_a_socket_is_neither_brought_back_nor_in_the_way(environment: Path) -> None:
    snapshot = snapshot_of(environment)
    path = environment / "bin" / "socket"
    short = os.path.relpath(path)
    with socket.socket(socket.AF_UNIX) as unix_socket:
        unix_socket.bind(min(short, str(path), key=len))
        snapshot.restore()
        assert path.exists()


def test_what_was_written_into_in_place_is_told(environment: Path) -> None:
    """A link cannot keep the old bytes of such a file: honesty is all there is."""
    snapshot = snapshot_of(environment)
    path = environment / SITE / "torch" / "lib.so"
    with path.open("ab") as file:
        file.write(b"!")
    done = snapshot.restore()
    assert set(done.edited) == {str(path), str(path.with_name("same.so"))}


def test_a_manifest_that_is_not_whole_is_not_acted_upon(environment: Path) -> None:
    snapshot = snapshot_of(environment)
    manifest = Path(snapshot.folder, MANIFEST)
    lines = manifest.read_bytes().split(b"\n")
    manifest.write_bytes(b"\n".join(lines[:5]) + b"\n")
    (environment / SITE / "paths.pth").unlink()
    with pytest.raises(ManifestError, match="is incomplete"):
        snapshot.restore()
    assert (environment / SITE / "torch" / "lib.so").exists()


def test_a_kept_file_that_is_gone_is_said(environment: Path) -> None:
    snapshot = snapshot_of(environment)
    Path(snapshot.folder, "0", "pyvenv.cfg").unlink()
    (environment / "pyvenv.cfg").write_text("changed")
    with pytest.raises(RestoreError, match="pyvenv"):
        snapshot.restore()


def test_across_file_systems_it_is_a_copy(environment: Path) -> None:
    """The second root lies on another file system than the snapshot."""
    shared = Path("/dev/shm")
    if not shared.is_dir() or shared.stat().st_dev == environment.stat().st_dev:
        pytest.skip("no second file system here")
    other = shared / f"cudadoctor-test-{os.getpid()}"
    shutil.copytree(environment / SITE / "torch", other)
    try:
        before = tree(other)
        folder = environment / ".cudadoctor"
        folder.mkdir()
        snapshot = Snapshot(str(folder), "1", (Root(path=str(other)),))
        snapshot.take()
        assert {entry.kind for entry in snapshot.entries()} <= {"copied", "folder"}
        shutil.rmtree(other)
        snapshot.restore()
        assert tree(other) == before
        assert snapshot.held_bytes() > 0
    finally:
        shutil.rmtree(other)
