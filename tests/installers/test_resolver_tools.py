"""Which resolver is asked, with programs on PATH that stand for those which are not here."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from index_fixtures import Shelf, Wheel, served
from resolver_fixtures import machine, setting, wanted

from cudadoctor import knowledge
from cudadoctor.installers.verify import bundled, pip_of, resolvers, verify
from cudadoctor.model.findings import PackageChange

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the stand-ins are scripts of a shell")
TORCH = Shelf(Wheel("torch", "2.14.1"))
CHANGE = PackageChange(install=("torch==2.14.1",), variant="cu130", cuda="13.0")


def stand_in(folder: Path, name: str, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_a_uv_that_is_too_old_leaves_the_question_to_pip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = '[ "$1" = --version ] && echo uv 0.4.30 && exit\n'
    body += 'echo "error: unexpected argument" >&2\nexit 2'
    stand_in(tmp_path, "uv", body, monkeypatch)
    with served(TORCH) as url:
        found = verify(wanted(url, "torch==2.14.1"), machine(), knowledge.load(), here=False)
    assert found.resolves is True
    assert found.tool.startswith("pip ")


def test_a_program_that_is_no_uv_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, "uv", "echo something else entirely", monkeypatch)
    assert str(tmp_path / "uv") not in [
        resolver.program for resolver in resolvers(setting(machine()))
    ]


def test_a_uv_that_hangs_costs_no_more_than_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = '[ "$1" = --version ] && echo uv 0.13.9 && exit\nsleep 100 & sleep 100'
    stand_in(tmp_path, "uv", body, monkeypatch)
    change = wanted("https://download.pytorch.org/whl/cu126", "torch==2.14.1")
    found = verify(change, machine(), knowledge.load(), here=False, limit_s=1.0)
    assert found.resolves is None
    assert found.why == (
        "the packages could not be checked: the index download.pytorch.org did not respond "
        "within 1 s"
    )


def test_wheels_are_sought_where_a_plan_for_conda_or_pixi_takes_wheels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = f"touch {tmp_path}/called"
    for name in ("conda", "pixi"):
        stand_in(tmp_path, name, body, monkeypatch)
    with served(Shelf(Wheel("torch", "2.14.1"))) as url:
        foreign = PackageChange(install=("torch",), index=url, variant="cu126", cuda="12.6")
        for wish in ("conda", "pixi"):
            found = verify(foreign, machine(), knowledge.load(), here=False, tool_name=wish)
            assert "torch 2.14.1" in found.why
    assert not (tmp_path / "called").exists()


def test_the_pip_that_python_brings_along_can_be_asked() -> None:
    at = setting(machine())
    if not bundled():
        pytest.skip("this Python brings no pip along")
    found = pip_of(at, sys.executable, bundled()[0])
    assert found is not None
    assert found.name.startswith("pip ")
