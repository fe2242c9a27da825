"""The notebook for Colab: generated from the recipes, and its cells run on a CPU."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
from pathlib import Path

from recipe_runs import LIMIT_S, QUIET, TRAIN

SCRIPT = TRAIN.parent / "notebook.py"


def cells() -> list[str]:
    """The source of each code cell, as Python: shell lines become calls, %pip is left out."""
    found = json.loads((TRAIN.parent / "colab.ipynb").read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in found if cell["cell_type"] == "code"]
    shell = r"subprocess.run(f'''\1''', shell=True)"
    return [
        re.sub(r"^%pip.*$", "", re.sub(r"^!(.*)$", shell, cell, flags=re.M), flags=re.M)
        for cell in code
    ]


def test_the_notebook_is_what_the_recipes_give() -> None:
    """If this fails, a recipe has changed: run python recipes/notebook.py."""
    spec = importlib.util.spec_from_file_location("recipes_notebook", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (TRAIN.parent / "colab.ipynb").read_text(encoding="utf-8") == module.written()


def test_its_cells_check_and_train(python_cpu: str, tmp_path: Path) -> None:
    script = tmp_path / "notebook.py"
    script.write_text("\n\n".join(["import subprocess", *cells()]), encoding="utf-8")
    (tmp_path / "cudadoctor").write_text("#!/bin/sh\necho asked: $*\n", encoding="utf-8")
    (tmp_path / "cudadoctor").chmod(0o755)
    child = subprocess.run(
        [python_cpu, str(script)],
        env={**os.environ, **QUIET, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    assert f"asked: check --python {python_cpu}" in child.stdout
    assert re.search(r"fp16: loss .* ms per step", child.stdout)
    assert "8 batches from 2 worker processes" in child.stdout
