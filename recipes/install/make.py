"""Generate the files in this folder from cudadoctor's tables: `python recipes/install/make.py`."""

from __future__ import annotations

import sys
from pathlib import Path

import texts

from cudadoctor import knowledge
from cudadoctor.installers.registry import TOOLS

HERE = Path(__file__).resolve().parent


def main(folder: Path = HERE) -> int:
    """Write the files that changed, and remove the files of obsolete variants."""
    found = texts.files(knowledge.load())
    changed = 0
    for path, text in found.items():
        file = folder / path
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8", newline="\n")
            changed += 1
    for tool in TOOLS:
        for file in folder.glob(f"*/{tool.file}"):
            if file.relative_to(folder).as_posix() not in found:
                file.unlink()
                changed += 1
    sys.stdout.write(f"{len(found)} files, {changed} changed\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
