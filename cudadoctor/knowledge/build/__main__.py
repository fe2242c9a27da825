"""Writes the tables: `python -m cudadoctor.knowledge.build FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from cudadoctor.knowledge.build import make, written

TABLES = Path(__file__).parent.parent / "tables"


def main(arguments: list[str]) -> int:
    """Write every table beside this package. Returns 2 where the folder is not given."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m cudadoctor.knowledge.build FOLDER\n")
        return 2
    TABLES.mkdir(exist_ok=True)
    for name, table in make(Path(arguments[0])).items():
        text = written(table)
        (TABLES / f"{name}.json").write_text(text, encoding="utf-8", newline="\n")
        sys.stdout.write(f"{name}.json  {len(text.encode()):>7} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
