"""Where children start, what their environment leads to, and what killed runs leave behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cudadoctor.host import children, local
from cudadoctor.host.local import LocalHost

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="paths and locks as on POSIX")

# --- where a child starts -----------------------------------------------------------------------

TELLING = (
    "import json, os, sys; e = os.environ;"
    "print(json.dumps([os.getcwd(), sys.path[0], e.get('PATH'), e.get('PYTHONPATH'),"
    " e.get('PYTHONSAFEPATH'), e.get('PYTHONHOME'), e.get('PIP_CONSTRAINT')]))"
)


def told_there(host: LocalHost, **env: str) -> list[str | None]:
    own = {"HOME": "/", "LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", "")}
    ran = host.run(sys.executable, "-c", TELLING, timeout_s=20, env=own | env)
    found: list[str | None] = json.loads(ran.stdout)
    return found


def test_a_child_starts_in_a_folder_of_ours_else_in_the_root(tmp_path: Path) -> None:
    for scratch, where in ((str(tmp_path), tmp_path), (f"{tmp_path}/gone", "/"), (None, "/")):
        assert told_there(LocalHost(scratch=scratch))[0] == str(where)


def test_the_environment_of_a_child_leads_nowhere_into_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, other = tmp_path / "here", tmp_path / "other"
    here.mkdir()
    (tmp_path / "link").symlink_to(here)
    (here / "pins.txt").write_text("")
    monkeypatch.chdir(here)
    path = os.pathsep.join(("", ".", "src", str(here), f"{tmp_path}/link", f"{here}/", str(other)))
    found = told_there(
        LocalHost(scratch=str(tmp_path)),
        PATH=f".:bin::{other}",
        PYTHONPATH=path,
        PYTHONHOME=".",
        PIP_CONSTRAINT="pins.txt",
    )
    assert found[2:] == [str(other), str(other), "1", None, f"{here}/pins.txt"]


def test_what_look_is_told_of_the_user_is_not_what_a_child_got(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = children.examined_environment({"PYTHONPATH": "src", "PYTHONSAFEPATH": ""}, "/")
    assert first[f"{children.OWN}PYTHONPATH"] == "src"
    assert first[f"{children.OWN}PWD"] == str(tmp_path)
    assert f"{children.OWN}PYTHONSAFEPATH" not in first
    # One doctor inside of another is not told what the other one was.
    second = children.examined_environment(
        {f"{children.OWN}PYTHONPATH": "older", "PATH": "/bin"}, "/"
    )
    assert f"{children.OWN}PYTHONPATH" not in second


def test_a_windows_path_keeps_its_absolute_folders() -> None:
    absolute = (r"C:\Windows", r"\\server\share", "D:/tools")
    path = ";".join(("", ".", "bin", "C:bin", *absolute))
    assert children.path_folders(path, windows=True) == absolute


# --- folders of runs that were killed -------------------------------------------------------------

NAME = "cudadoctor-0123456789abcdef"


def left(folder: Path, name: str = NAME) -> Path:
    path = folder / name
    (path / "cache").mkdir(parents=True)
    (path / "cache" / "file").write_text("")
    return path


def test_what_a_killed_run_left_is_swept(tmp_path: Path) -> None:
    path = left(tmp_path)
    local.sweep(str(tmp_path))
    assert not path.exists()


@pytest.mark.parametrize(
    "name",
    [
        "cudadoctor-",
        "cudadoctor-0123456789abcde",
        "cudadoctor-0123456789abcdef0",
        "cudadoctor-0123456789abcdeg",
        "cudadoctor-smoke-0123456789",
        "cudadoctor_0123456789abcdef",
        "xcudadoctor-0123456789abcdef",
    ],
)
def test_what_has_another_name_stays(tmp_path: Path, name: str) -> None:
    path = left(tmp_path, name)
    local.sweep(str(tmp_path))
    assert path.exists()


def test_a_link_and_a_file_and_what_a_link_leads_to_stay(tmp_path: Path) -> None:
    kept = left(tmp_path / "elsewhere", "data")
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp" / NAME).symlink_to(kept)
    (tmp_path / "tmp" / NAME.replace("0", "1")).write_text("")
    inner = left(tmp_path / "tmp", NAME.replace("0", "2"))
    (inner / "link").symlink_to(kept)
    local.sweep(str(tmp_path / "tmp"))
    assert (kept / "cache" / "file").exists()
    assert sorted(path.name[11] for path in (tmp_path / "tmp").iterdir()) == ["0", "1"]


def test_the_folder_of_another_user_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = left(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    local.sweep(str(tmp_path))
    assert path.exists()


def test_the_folder_of_a_run_that_lives_stays_until_it_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "from cudadoctor.host import local; local.this_host(); print(1, flush=True); input()"
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    argv = [sys.executable, "-c", code]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        (folder,) = tmp_path.iterdir()
        local.sweep(str(tmp_path))
        assert folder.exists()
        child.kill()
        child.wait()
    local.sweep(str(tmp_path))
    assert not folder.exists()


def test_a_start_sweeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = left(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    argv = [sys.executable, "-m", "cudadoctor", "check", "--fast", "--python", sys.executable]
    subprocess.run(argv, capture_output=True, timeout=60, check=False)
    assert not path.exists()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_listed_is_left_alone(tmp_path: Path) -> None:
    local.sweep(str(tmp_path / "gone"))
