"""Every benchmark can be started: what it imports is still where it looks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
WITHOUT_TORCH = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "atheris"):
            raise
"""


def test_every_benchmark_imports() -> None:
    names = [path.stem for path in sorted((ROOT / "benchmarks").glob("*.py"))]
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *names],
        cwd=ROOT / "benchmarks",
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert len(names) > 20
    assert ran.returncode == 0, ran.stderr
