"""The script that the examined interpreter runs: on every Python, whatever lies around it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import interpreter_fixtures as envs
import pytest

from cudadoctor.host.children import OWN
from cudadoctor.host.local import INSIDE
from cudadoctor.probes.installed import parse

LOOK = f"{INSIDE}/look.py"


def run(python: str, cwd: Path, **env: str) -> list[dict[str, Any]]:
    """Run look.py in the user's folder `cwd`; its lines are JSON objects, `kind` first."""
    argv = [python, "-I", LOOK]
    users = {OWN + name: value for name, value in env.items()} | {OWN + "PWD": str(cwd)}
    variables = {"PYTHONDONTWRITEBYTECODE": "1", **env, **users}
    ran = subprocess.run(argv, cwd=cwd, env=variables, capture_output=True, check=True)
    assert ran.stderr == b""
    lines = [json.loads(line) for line in ran.stdout.decode("ascii").splitlines() if line]
    assert all(next(iter(line)) == "kind" for line in lines)
    assert lines[-1] == {"kind": "end"}
    return lines


@pytest.mark.parametrize("python", envs.pythons())
def test_every_python_tells_what_it_is_and_holds(python: str, tmp_path: Path) -> None:
    venv = envs.make_venv(tmp_path / "venv", python)
    envs.plant_torch(envs.site(venv), "1.10.0+cu113", "11.3")
    envs.plant(envs.site(venv), "model", "1", "torch>=1.10")
    lines = run(str(venv / "bin" / "python"), tmp_path)
    seen = parse("\n".join(json.dumps(line) for line in lines))
    assert seen.complete
    assert seen.python is not None
    version = subprocess.run([python, "--version"], capture_output=True, check=True).stdout
    assert version.decode().split()[1] == seen.python.version
    assert seen.python.implementation == "cpython"
    assert seen.python.bits == 64
    assert seen.python.prefix == str(venv)
    assert seen.python.base_prefix == str(Path(python).parent.parent)
    assert seen.python.headers
    assert seen.python.site_packages == str(envs.site(venv))
    assert [dist.name for dist in seen.dists] == ["model", "torch"]
    assert [copy.shape for copy in seen.copies] == ["package"]


def test_nothing_of_the_working_folder_or_pythonpath_is_run(tmp_path: Path) -> None:
    for name in ("json", "site", "os", "_json", "sitecustomize", "torch"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('shadowed')\n")
    venv = envs.make_venv(tmp_path / "venv")
    lines = run(str(venv / "bin" / "python"), tmp_path, PYTHONPATH=str(tmp_path))
    assert [line["origin"] for line in lines if line["kind"] == "copy"] == ["cwd"]


def test_no_byte_code_is_left_behind(tmp_path: Path) -> None:
    venv = envs.make_venv(tmp_path / "venv")
    envs.plant_torch(envs.site(venv))
    before = sorted(tmp_path.rglob("*"))
    run(str(venv / "bin" / "python"), tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


def test_names_that_are_no_text_are_told_in_ascii(tmp_path: Path) -> None:
    venv = envs.make_venv(tmp_path / "vénv")
    odd = tmp_path / "here"
    odd.mkdir()
    (odd / b"bad\xff.dist-info".decode("utf-8", "surrogateescape")).mkdir()
    (odd / 'quote"d-1.0.dist-info').mkdir()
    (odd / 'quote"d-1.0.dist-info' / "METADATA").write_text('Name: q\nRequires-Dist: torch;"\\\n')
    lines = run(str(venv / "bin" / "python"), odd)
    assert lines[0]["prefix"] == str(tmp_path / "vénv")
    assert [line["requires"] for line in lines if line["kind"] == "dist"] == [['torch;"\\']]


def test_a_working_folder_that_is_gone_is_no_entry(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-I", LOOK],
        cwd=tmp_path,
        env={OWN + "PWD": "", OWN + "PYTHONPATH": "src:."},
        capture_output=True,
        check=True,
        text=True,
    )
    seen = parse(ran.stdout)
    assert seen.complete
    assert "cwd" not in {origin for _, origin in seen.path}


def test_a_pipe_in_the_place_of_metadata_does_not_hold_it_up(tmp_path: Path) -> None:
    import os

    venv = envs.make_venv(tmp_path / "venv")
    folder = envs.site(venv) / "torch-2.0.dist-info"
    folder.mkdir()
    os.mkfifo(folder / "METADATA")
    lines = run(str(venv / "bin" / "python"), tmp_path)
    assert [line["version"] for line in lines if line["kind"] == "dist"] == ["2.0"]


def test_the_same_folder_by_two_names_is_one_entry(tmp_path: Path) -> None:
    venv = envs.make_venv(tmp_path / "venv")
    envs.plant_torch(envs.site(venv))
    (tmp_path / "alias").symlink_to(envs.site(venv))
    lines = run(str(venv / "bin" / "python"), tmp_path, PYTHONPATH=str(tmp_path / "alias"))
    assert len([line for line in lines if line["kind"] == "copy"]) == 1


def test_a_working_folder_that_is_on_the_path_anyway_counts_as_such(tmp_path: Path) -> None:
    venv = envs.make_venv(tmp_path / "venv")
    (envs.site(venv) / "pip").mkdir()
    (envs.site(venv) / "pip" / "__init__.py").write_text("")
    lines = run(str(venv / "bin" / "python"), envs.site(venv))
    assert {"kind": "pip", "entry": str(envs.site(venv))} in lines
    path = next(line["entries"] for line in lines if line["kind"] == "path")
    assert path[0] == [str(envs.site(venv)), "own"]
