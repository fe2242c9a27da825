"""Interpreters that crash, flood, hang, lie or are none, through the real command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from interpreter_fixtures import make_venv, plant_torch, pythons, site

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="signals and scripts of Linux")

START = {
    "noise": ("import sys; print('{\"kind\":\"python\"}'); sys.stdout.write('no end')", True),
    "raises": ("raise RuntimeError('boom')", True),
    "segv": ("import os; os.kill(os.getpid(), 11)", False),
    "kill": ("import os; os.kill(os.getpid(), 9)", False),
    "abort": ("import os; os.abort()", False),
    "silent": ("import os; os._exit(0)", False),
    "flood": ("while True: print('x' * 10000)", False),
    "never": ("import time; time.sleep(600)", False),
    "closed": ("import os; os.close(1)", False),
    "replaced": ("import sys, io; sys.stdout = io.StringIO()", False),
}
"""What sitecustomize does, and whether the interpreter can still tell what it holds."""

IMPORT = {
    "segv": "import os; os.kill(os.getpid(), 11)",
    "kill": "import os; os.kill(os.getpid(), 9)",
    "abort": "import os; os.abort()",
    "flood": "while True: print('x' * 10000)",
    "never": "import time; time.sleep(600)",
    "closed": "import os; os.close(1)",
    "exit": "import sys; sys.exit(0)",
    "ctrl-c": "raise KeyboardInterrupt",
    "empty": "",
    "deep": "def f(): f()\nf()",
}
SCRIPTS = {
    "says hi": "#!/bin/sh\necho hi\n",
    "no such shell": "#!/nonexistent\n",
    "empty": "",
    "binary": "\x7fELF nonsense",
    "leaves a child": "#!/bin/sh\n(sleep 600 &)\nexit 0\n",
}


def ran(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "cudadoctor", "check", *words]
    found = subprocess.run(argv, capture_output=True, text=True, timeout=90, check=False)
    assert "Traceback" not in found.stderr
    assert "itself failed" not in found.stderr
    return found


def report(*words: str) -> dict[str, Any]:
    found = ran("--json", *words)
    assert found.returncode in (0, 1, 3), found.stderr
    document = json.loads(found.stdout)
    assert isinstance(document, dict)
    return document


@pytest.mark.parametrize("name", START)
def test_an_interpreter_that_breaks_at_its_start_is_told_so(tmp_path: Path, name: str) -> None:
    code, tells = START[name]
    venv = make_venv(tmp_path / "venv")
    (site(venv) / "sitecustomize.py").write_text(code + "\n")
    document = report("--fast", "--timeout", "4", "--python", str(venv))
    gaps = [gap["why"] for gap in document["facts"]["gaps"] if gap["fact"] == "python"]
    assert bool(gaps) is not tells
    assert not [why for why in gaps if "is not a working Python" in why]
    assert tells or "torch-missing" not in {finding["cause"] for finding in document["findings"]}


@pytest.mark.parametrize("name", IMPORT)
def test_a_torch_that_breaks_at_its_import_is_told_so(tmp_path: Path, name: str) -> None:
    venv = make_venv(tmp_path / "venv")
    (plant_torch(site(venv)) / "__init__.py").write_text(IMPORT[name] + "\n")
    document = report("--timeout", "4", "--python", str(venv))
    imported = document["facts"]["torch"].get("imported") or {}
    assert imported.get("ok") is not True
    assert document["verdict"] != "healthy"
    damaged = "torch-install-corrupt" in {finding["cause"] for finding in document["findings"]}
    assert not (damaged and name in ("kill", "never"))


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_program_that_is_no_python_is_wrong_use(tmp_path: Path, name: str) -> None:
    program = tmp_path / "python"
    program.write_text(SCRIPTS[name])
    program.chmod(0o755)
    found = ran("--fast", "--python", str(program))
    assert (found.returncode, found.stdout) == (2, "")
    assert "is not a working Python" in found.stderr
    assert len(found.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("", "has no value"),
        ("/nonexistent/venv", "there is no such file or folder"),
        ("C:\\Python311\\python.exe", "there is no such program"),
        ("/dev/null", "is not executable"),
        ("/dev/zero", "is not executable"),
        ("/bin/cat", "is not Python"),
        ("a\x1b[31mb", "there is no such program"),
    ],
)
def test_a_name_of_nothing_that_runs_is_refused(named: str, said: str) -> None:
    found = ran("--fast", "--python", named)
    assert found.returncode == 2
    assert said in found.stderr
    assert found.stderr.count("\n") == 1
    assert found.stderr.strip("\n").isprintable()


def test_an_environment_whose_base_is_gone_is_to_be_made_anew(tmp_path: Path) -> None:
    venv = make_venv(tmp_path / "venv")
    for link in (venv / "bin").glob("python*"):
        link.unlink()
        link.symlink_to("/nowhere/python3")
    found = ran("--fast", "--python", str(venv))
    assert found.returncode == 2
    assert (
        "is a link to a Python executable that no longer exists; recreate the environment that it "
        "belongs to" in found.stderr
    )


@pytest.mark.parametrize("kind", ["pipe", "pipe that runs", "not executable"])
def test_a_file_that_cannot_run_is_not_run(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "interpreter"
    os.mkfifo(path) if "pipe" in kind else path.write_bytes(Path(sys.executable).read_bytes())
    path.chmod(0o755 if "runs" in kind else 0o644)
    found = ran("--fast", "--python", str(path))
    assert found.returncode == 2
    assert len(found.stderr.splitlines()) == 1


@pytest.mark.parametrize("python", pythons(), ids=lambda path: Path(path).parents[1].name)
def test_every_python_here_can_be_examined(python: str) -> None:
    document = report("--fast", "--python", python)
    assert document["facts"]["python"]["version"]
    assert not [gap for gap in document["facts"]["gaps"] if gap["fact"] == "python"]
