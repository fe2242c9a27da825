"""The sweeps of which the tests take a share, with all their cases.

Run: python benchmarks/whole_sweeps.py [PYTEST'S OPTIONS]
It needs what the tests need. See tests/support/share.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent.parent / "tests"


def sweeps() -> list[str]:
    """The files of tests that take a share of something, themselves or through what they import."""
    found = {"share"}
    texts = {path: path.read_text(encoding="utf-8") for path in TESTS.glob("*/*.py")}
    while (
        more := {
            path.stem
            for path, text in texts.items()
            if any(f"from {name} import" in text for name in found)
        }
        - found
    ):
        found |= more
    return sorted(str(path) for path in texts if path.stem in found and path.match("test_*.py"))


def main() -> None:
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *sys.argv[1:], *sweeps()]
    env = {**os.environ, "CUDADOCTOR_TEST_WHOLE": "1"}
    sys.exit(subprocess.run(argv, env=env, check=False).returncode)


if __name__ == "__main__":
    main()
