"""Files of the user's that are named like a module of Python, and a torch that imports it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cudadoctor.facts import Imported
from cudadoctor.host import LocalHost
from cudadoctor.smoke import run_smoke


def _imported(folder: Path, torch: str, **files: str) -> Imported:
    """What an import of that torch says in a folder with those files."""
    package = folder / "packages" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(torch)
    here = folder / "here"
    here.mkdir(exist_ok=True)
    for name, text in files.items():
        (here / f"{name}.py").write_text(text)
    env = {**os.environ, "PYTHONPATH": str(package.parent)}
    ran = run_smoke(LocalHost(), sys.executable, mode="import", env=env, cwd=str(here))
    imported: Imported = ran.facts["torch.imported"]
    return imported


@pytest.mark.parametrize(
    ("torch", "theirs"),
    [
        ("from colorsys import rgb_to_hls", "x = 1"),
        ("import colorsys; colorsys.rgb_to_hls", "x = 1"),
        ("import colorsys", "raise RuntimeError('their own')"),
    ],
)
def test_a_file_that_hides_a_module_of_python_is_named(
    tmp_path: Path, torch: str, theirs: str
) -> None:
    imported = _imported(tmp_path, torch, colorsys=theirs, chunk="x = 1")
    assert imported.ok is False
    assert imported.shadows == (str(tmp_path / "here" / "colorsys.py"),)


def test_a_file_that_had_no_part_in_the_failure_is_not_named(tmp_path: Path) -> None:
    imported = _imported(tmp_path, "raise OSError('libc10.so')", colorsys="x = 1", mine="x = 1")
    assert (imported.ok, imported.shadows) == (False, ())


@pytest.mark.parametrize(
    ("name", "torch"),
    [
        ("typing", "from typing import Any"),
        ("types", "import types; types.SimpleNamespace"),
        ("functools", "from functools import wraps"),
        ("enum", "import enum; enum.Enum"),
        ("math", "import math; math.floor"),
    ],
)
def test_a_file_that_hides_what_the_doctor_needs_itself_is_named(
    tmp_path: Path, name: str, torch: str
) -> None:
    imported = _imported(tmp_path, torch, **{name: "x = 1"})
    assert imported.ok is False
    assert imported.shadows == (str(tmp_path / "here" / f"{name}.py"),)


def test_a_file_that_is_no_python_and_a_folder_are_named(tmp_path: Path) -> None:
    imported = _imported(tmp_path / "a", "import colorsys", colorsys="def (")
    assert imported.shadows == (str(tmp_path / "a" / "here" / "colorsys.py"),)
    folder = tmp_path / "b" / "here" / "colorsys"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    imported = _imported(tmp_path / "b", "from colorsys import rgb_to_hls")
    assert imported.shadows == (str(folder),)


@pytest.mark.parametrize("module", ["json", "subprocess", "msgspec", "click"])
def test_the_doctor_imports_its_own_modules_whatever_pythonpath_holds(
    tmp_path: Path, module: str
) -> None:
    (tmp_path / f"{module}.py").write_text("raise RuntimeError('not ours')\n")
    argv = [sys.executable, "-m", "cudadoctor", "check", "--fast", "--from", "nothing"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ran = subprocess.run(
        argv, env=env, capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False
    )
    assert "Traceback" not in ran.stderr
    assert ran.returncode == 2


def test_a_working_folder_that_is_gone_does_not_end_the_doctor(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    command = f"rmdir {gone}; exec {sys.executable} -m cudadoctor check --fast --json"
    argv = ["sh", "-c", f"{command} --python {sys.executable}"]
    ran = subprocess.run(argv, capture_output=True, text=True, cwd=gone, timeout=60, check=False)
    assert "itself failed" not in ran.stderr
    assert ran.stdout.startswith("{")


def test_a_deleted_working_folder_is_no_fault_of_torch(tmp_path: Path, python_cpu: str) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    command = f"rmdir {gone}; exec {sys.executable} -m cudadoctor check --no-smoke --json"
    argv = ["sh", "-c", f"{command} --python {python_cpu}"]
    ran = subprocess.run(argv, capture_output=True, text=True, cwd=gone, timeout=120, check=False)
    said = json.loads(ran.stdout)
    assert "torch-install-corrupt" not in {one["cause"] for one in said["findings"]}
    assert "not-environment" in {one["cause"] for one in said["findings"]}
    assert said["verdict"] == "healthy"
