"""Files of the user's that are named like a module of Python, and a torch that imports it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import interpreter_fixtures as envs
import pytest

from cudadoctor import pipeline
from cudadoctor.host.local import LocalHost
from cudadoctor.model.machine import Imported
from cudadoctor.probes.examine import Look, examine_host
from cudadoctor.smoke import run_smoke


def _imported(folder: Path, torch: str, **files: str) -> Imported:
    """What an import of that torch says where those files come first on PYTHONPATH."""
    package = folder / "packages" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(torch)
    here = folder / "here"
    here.mkdir(exist_ok=True)
    for name, text in files.items():
        (here / f"{name}.py").write_text(text)
    env = {**os.environ, "PYTHONPATH": f"{here}{os.pathsep}{package.parent}"}
    ran = run_smoke(LocalHost(), sys.executable, mode="import", env=env)
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


# --- the current folder: told from names, and nothing there is run -------------------------------


def _judged(folder: Path, monkeypatch: pytest.MonkeyPatch, *names: str) -> dict[str, str]:
    """The findings, with their titles, where those files lie in the current folder."""
    python = envs.make_venv(folder / "venv")
    envs.plant_torch(envs.site(python))
    here = folder / "here"
    for name in names:
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(f"open({str(folder / 'ran')!r}, 'w')\n")
    here.mkdir(exist_ok=True)
    monkeypatch.chdir(here)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    look = Look(python=str(python), depth="no-smoke")
    machine = examine_host(LocalHost(), look, lambda *_: None)
    assert not (folder / "ran").exists()
    return {finding.cause: finding.title for finding in pipeline.judge(machine).diagnosis.findings}


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("random.py", "random"),
        ("numpy.py", "numpy"),
        ("json/__init__.py", "json"),
        ("queue.abi3.so", "queue"),
        ("typing_extensions.pyc", "typing_extensions"),
    ],
)
def test_a_file_of_the_current_folder_is_told_from_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, module: str
) -> None:
    found = _judged(tmp_path, monkeypatch, name)
    path = tmp_path / "here" / name.partition("/")[0]
    assert found["module-shadowed"] == f"Your file {path} hides the module {module}"


@pytest.mark.parametrize("name", ["torch.py", "torch/__init__.py", "torch.abi3.so"])
def test_a_torch_of_the_current_folder_is_told_from_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    found = _judged(tmp_path, monkeypatch, name)
    path = tmp_path / "here" / name.partition("/")[0]
    assert found["torch-duplicate"] == f"Your own {path} is imported instead of torch"


@pytest.mark.parametrize(
    "name",
    # No module of torch's; a folder that is no package; no module at all; imported before it.
    ["train.py", "this.py", "random/notes.txt", "random.txt", "random.py.bak", "os.py", "sys.py"],
)
def test_a_file_that_torch_would_not_import_is_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    assert not {"module-shadowed", "torch-duplicate"} & _judged(tmp_path, monkeypatch, name).keys()


def test_where_the_user_keeps_the_folder_off_the_path_nothing_is_shadowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    found = _judged(tmp_path, monkeypatch, "random.py", "torch.py")
    assert not {"module-shadowed", "torch-duplicate"} & found.keys()


@pytest.mark.parametrize("path", [".", "lib", "{here}", ":/elsewhere"])
def test_a_pythonpath_that_leads_here_is_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    monkeypatch.setenv("PYTHONPATH", path.format(here=tmp_path / "here"))
    found = _judged(tmp_path, monkeypatch, "random.py", "lib/random.py")
    assert "module-shadowed" in found


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
    assert "torch-install-corrupt" not in {finding["cause"] for finding in said["findings"]}
    assert "not-environment" in {finding["cause"] for finding in said["findings"]}
    assert said["verdict"] == "healthy"
