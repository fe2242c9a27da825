"""conda makes its folder itself: a stand-in for it that is a shell script around a venv."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from setup_fixtures import document, environment, index, setup

from cudadoctor.repair.setup.making import MARKER

SCRIPT = """#!/bin/sh
test "$1 $2 $3" = "create -y -p" || exit 9
test ! -e "$4" || exit 8
{python} -m venv --without-pip "$4"
sleep 0.5
echo "$@"
exit {code}
"""


@pytest.mark.parametrize("code", [0, 7])
def test_a_folder_of_conda_is_kept_or_removed_as_any_other(tmp_path: Path, code: int) -> None:
    program = tmp_path / "bin" / "mamba"
    program.parent.mkdir()
    program.write_text(SCRIPT.format(python=sys.executable, code=code))
    program.chmod(0o755)
    folder = tmp_path / "new env"
    folder.mkdir()
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    env = environment(index(tmp_path), PATH=path)
    report = document(setup(folder, env, "--yes", "--json", "--with", "conda"))
    assert report["commands"][0][:5] == [str(program), "create", "-y", "-p", str(folder)]
    assert report["outcome"] == ("failed" if code else "unproven"), report["why"]
    assert folder.exists() is (code == 0)
    assert not (folder / MARKER).exists()
