"""uv projects made for real: uv, and an index of small wheels in a folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from setup_fixtures import BROKEN, document, environment, index, publish, setup

from cudadoctor.repair.setup.making import MARKER

TORCH, VISION = "2.14.1", "0.29.1"
WISH = ("--yes", "--json", "--with", "uv", "--torch", f"{TORCH}+cu130")
"""The default of the platform, which comes from the user's own index."""


@pytest.fixture(scope="module")
def uv() -> str:
    found = os.environ.get("CUDADOCTOR_TEST_UV") or shutil.which("uv")
    if found is None:
        pytest.skip("no uv for this test: CUDADOCTOR_TEST_UV is not set and none is on PATH")
    return found


def variables(home: Path, uv: str) -> dict[str, str]:
    path = f"{Path(uv).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return environment(home, PATH=path, UV_PYTHON_DOWNLOADS="never")


def test_a_project_with_its_environment_is_made_and_judged(uv: str, tmp_path: Path) -> None:
    home = index(tmp_path, "simple")
    publish(home, "torch", TORCH, BROKEN)
    publish(home, "torchvision", VISION, {"torchvision/__init__.py": ""})
    folder = tmp_path / "my project"
    ran = setup(folder, variables(home, uv), *WISH)
    report = document(ran)
    outcome = (ran.returncode, report["outcome"], report["tool"])
    assert outcome == (1, "unproven", "uv"), report["why"]
    assert report["python"] == str(folder / ".venv" / "bin" / "python")
    assert Path(report["python"]).exists()
    assert (folder / "uv.lock").exists()
    assert (folder / "pyproject.toml").read_text() == report["files"]["pyproject.toml"]
    assert not (folder / MARKER).exists()


def test_packages_that_uv_cannot_find_leave_nothing(uv: str, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    ran = setup(folder, variables(index(tmp_path, "simple"), uv), *WISH)
    assert document(ran)["outcome"] == "failed"
    assert any("torch" in reason for reason in document(ran)["why"])
    assert not folder.exists()


def test_with_verify_what_does_not_resolve_is_never_begun(uv: str, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    home = index(tmp_path, "simple")
    publish(home, "torch", TORCH, BROKEN, "no-such-package==1")
    publish(home, "torchvision", VISION, {})
    ran = setup(folder, variables(home, uv), *WISH, "--verify")
    report = document(ran)
    assert (ran.returncode, report["outcome"], report["verified"]) == (1, "unresolved", False)
    assert not folder.exists()
