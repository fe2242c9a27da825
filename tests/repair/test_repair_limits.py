"""A disk that is full, another file system, odd places for the doctor and its patient."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import pytest
from repair_fixtures import (
    FITTING,
    STRANGE,
    TORCH,
    TORCH_FILES,
    Environment,
    broken_environment,
    torchvision,
    write_index,
)

import cudadoctor
from cudadoctor.repair.session import process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits and mounts as on Linux")

LIMITED = """\
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
os.execv(sys.argv[1], sys.argv[1:])
"""
BLOWN_UP = "# so many words\n" * 6_000_000
"""96 MB that a wheel holds in a few hundred kilobytes."""
SOME = BLOWN_UP[:8_000_000]
"""More than a limited process may write."""


@cache
def mounts() -> bool:
    argv = ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"]
    try:
        return subprocess.run(argv, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def large_index(folder: Path, large: str = BLOWN_UP) -> str:
    """The cure, in a wheel that takes far more room than it seems to."""
    files = torchvision(FITTING, large=large)
    return write_index(
        folder,
        ("torch", TORCH, TORCH_FILES, ()),
        ("torchvision", FITTING, files, (f"torch=={TORCH}",)),
    )


def words_after_plan(ran: subprocess.CompletedProcess[str]) -> str:
    """What it prints after the plan, on one line."""
    return " ".join(ran.stdout.rpartition("--undo\n\n")[2].split())


def test_files_that_may_not_grow_bring_everything_back(broken: Environment, tmp_path: Path) -> None:
    broken.index = large_index(tmp_path / "large", SOME)
    before = broken.tree()
    argv = [sys.executable, "-c", LIMITED, *broken.words("--yes")]
    ran = subprocess.run(argv, env=broken.env(), capture_output=True, text=True, check=False)
    assert ran.returncode == 1, ran
    assert "Everything is as it was before" in words_after_plan(ran)
    assert broken.tree() == before


FULL = """\
set -e
mount -t tmpfs -o size={megabytes}M none "{place}"
cp -a "{sound}" "{place}/venv"
cp -a "{place}/venv" "{seen}"
rc=0
{words} || rc=$?
cp -a "{place}/venv" "{after}"
exit $rc
"""


def in_a_small_place(
    sound: Path, tmp_path: Path, megabytes: int, index: str
) -> tuple[subprocess.CompletedProcess[str], bool]:
    """A repair in a file system of that size; what it said, and whether all is as before."""
    place, seen, after = (tmp_path / name for name in ("place", "seen", "after"))
    place.mkdir()
    origin = broken_environment(sound, tmp_path / "origin", index)
    acting = Environment.__new__(Environment)
    acting.folder = place / "venv"
    words = " ".join(acting.words("--yes"))
    script = FULL.format(
        megabytes=megabytes, place=place, sound=origin.folder, seen=seen, after=after, words=words
    )
    ran = subprocess.run(
        ["unshare", "-m", "sh", "-c", script],
        env=origin.env(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return ran, _faces(seen) == _faces(after)


def _faces(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
        if ".cudadoctor" not in path.parts
    }


@pytest.mark.skipif(sys.platform != "linux" or not mounts(), reason="no mounts may be made here")
def test_a_disk_that_fills_up_brings_everything_back(sound: Path, tmp_path: Path) -> None:
    ran, same = in_a_small_place(sound, tmp_path, 90, large_index(tmp_path / "large"))
    assert (ran.returncode, same) == (1, True), ran
    assert "No space left" in words_after_plan(ran)
    assert "Everything is as it was before" in words_after_plan(ran)


@pytest.mark.skipif(sys.platform != "linux" or not mounts(), reason="no mounts may be made here")
def test_a_disk_that_is_too_small_is_told_before_anything_changes(
    sound: Path, index: str, tmp_path: Path
) -> None:
    ran, same = in_a_small_place(sound, tmp_path, 50, index)
    assert (ran.returncode, same) == (1, True), ran
    assert words_after_plan(ran).startswith("Nothing was changed: ")
    assert "free up space first" in words_after_plan(ran)


def test_the_doctor_may_live_in_what_it_repairs(broken: Environment) -> None:
    home = Path(cudadoctor.__file__).parent.parent
    own = "\n".join(
        [str(home), *(folder for folder in sys.path if folder.endswith("site-packages"))]
    )
    (broken.site / "doctor.pth").write_text(f"{own}\n")
    before = broken.tree()
    argv = [str(broken.python), *broken.words("--yes")[1:]]
    ran = subprocess.run(argv, env=broken.env(), capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran
    assert broken.imports() == FITTING
    assert broken.fix("--undo").returncode == 0
    assert broken.tree() == before


def test_the_environment_of_a_project_keeps_the_work_of_its_user(broken: Environment) -> None:
    """A venv made in the folder of a project: what is written there later is not undone."""
    (broken.folder / "pyproject.toml").write_text("[project]\n")
    broken.fix("--yes")
    for name in ("train.py", "share", "lib/notes.txt"):
        path = broken.folder / name
        if name == "share":
            path.mkdir()
            path = path / "figures.txt"
        path.write_text("work\n")
    assert broken.fix("--undo").returncode == 0
    assert broken.imports() == STRANGE
    for name in ("train.py", "share/figures.txt", "lib/notes.txt"):
        assert (broken.folder / name).read_text() == "work\n"


def test_a_system_python_gets_a_new_environment_that_an_undo_removes(
    index: str, tmp_path: Path
) -> None:
    """PEP 668: Debian's own Python takes no packages."""
    python = Path("/usr/bin/python3")
    if not list(Path("/usr/lib").glob("python3*/EXTERNALLY-MANAGED")):
        pytest.skip("no Python here that takes no packages")
    if subprocess.run([python, "-c", "import ensurepip"], check=False).returncode:
        pytest.skip("no python3-venv here")
    acting = Environment.__new__(Environment)
    acting.folder, acting.index = python, index
    home = tmp_path / "home"
    home.mkdir()
    ran = acting.fix("--yes", HOME=str(home))
    assert ran.returncode == 0, ran
    made = home / ".venvs" / "torch"
    assert Environment(made, index).imports() == FITTING
    assert acting.fix("--undo", HOME=str(home)).returncode == 0
    assert not (home / ".venvs").exists()


def test_a_later_journal_is_not_acted_upon(broken: Environment) -> None:
    broken.fix("--yes")
    text = broken.journal.read_text()
    broken.journal.write_text(text.replace('"schema": 1', '"schema": 2', 1))
    before = broken.tree()
    for word in ("--undo", "--yes"):
        ran = broken.fix(word)
        assert ran.returncode == 2
        assert "the fix journal was written by a newer version of cudadoctor" in ran.stderr
    assert broken.tree() == before


def test_a_killed_doctor_takes_its_pip_along(broken: Environment, tmp_path: Path) -> None:
    broken.index = large_index(tmp_path / "large")
    before = broken.tree()
    quiet = subprocess.DEVNULL
    with subprocess.Popen(
        broken.words("--yes"), env=broken.env(), stdin=quiet, stdout=quiet, stderr=quiet
    ) as child:
        while "step-begun" not in broken.records():
            time.sleep(0.002)
        begun = json.loads(broken.journal.read_text().splitlines()[-1])
        time.sleep(0.3)
        child.kill()
    deadline = time.monotonic() + 20
    while (pip := process(begun["pid"])) and pip.state != "Z" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert pip is None or pip.state == "Z" or pip.started != begun["started"]
    assert broken.fix("--undo").returncode == 0
    assert broken.tree() == before
