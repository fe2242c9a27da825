"""Makes the tables of this package from a folder of collected facts.

    python -m cudadoctor.knowledge.build FOLDER

The folder holds the collected JSON files, one subject each; those that the folder lacks lie in
`own` beside this module, and so do the rows that updates saw since (`seen`), which come last. The
tables are a function of them alone: the same facts give the same bytes. What is thrown away is
what no rule and no plan asks for; what is kept keeps the keys of its sources, made unique by the
name of the table.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cudadoctor.knowledge.build import gpus, habits, libraries, packages, peaks, releases, toolkits
from cudadoctor.knowledge.build.seen import merged
from cudadoctor.knowledge.build.sources import all_sources, collected

Facts = Callable[[str], dict[str, Any]]
OWN = Path(__file__).parent / "own"


def make(folder: Path, own: Path = OWN) -> dict[str, dict[str, Any]]:
    """Every table by its name, as plain data, from the collected facts in a folder.

    own: the folder of what the facts lack.
    """
    read = _reader(folder, own)
    return merged(_collected(read), read("seen"))


def _collected(read: Facts) -> dict[str, dict[str, Any]]:
    return {
        "torch": {"collected": collected(read), **releases.torch(read)},
        "pins": releases.pins(read),
        "drivers": toolkits.drivers(read),
        "compilers": toolkits.compilers(read),
        "gpus": gpus.gpus(read),
        "peaks": peaks.peaks(read),
        "architectures": gpus.architectures(read),
        "companions": packages.companions(read),
        "images": packages.images(read),
        "conda": packages.conda(read),
        "libraries": libraries.libraries(read),
        "driver_faults": habits.driver_faults(read),
        "practice": habits.practice(read),
        "sources": {"sources": all_sources(read)},
    }


def written(table: dict[str, Any]) -> str:
    """A table as text: one row a line, so that a change shows as the rows that changed."""
    parts = [f"{_text(name)}:{_rows(value)}" for name, value in table.items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _rows(value: Any) -> str:
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(_text(row) for row in value) + "\n]"
    if isinstance(value, dict) and value:
        return "{\n" + ",\n".join(f"{_text(k)}:{_text(v)}" for k, v in value.items()) + "\n}"
    return _text(value)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _reader(folder: Path, own: Path) -> Facts:
    seen: dict[str, dict[str, Any]] = {}

    def read(name: str) -> dict[str, Any]:
        if name not in seen:
            file = folder / f"{name}.json"
            file = file if file.exists() else own / f"{name}.json"
            text = file.read_text(encoding="utf-8")
            seen[name] = json.loads(text)
        return seen[name]

    return read
