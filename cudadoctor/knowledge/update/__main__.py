"""The command: `python -m cudadoctor.knowledge.update [--check] [--write] [--only torch,...]`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from packaging.version import Version

from cudadoctor.knowledge.update.asking import (
    PYPI,
    TITLES,
    TORCH_INDEX_URL,
    Answer,
    Asked,
    ask,
    newest_torch,
)
from cudadoctor.knowledge.update.companions import packages
from cudadoctor.knowledge.update.fetching import Fetcher, NotRead, Web
from cudadoctor.knowledge.update.index import Unreadable
from cudadoctor.knowledge.update.rows import shown, written

TABLES = Path(__file__).parent.parent / "tables"
NOT_ASKED = 3
CHECK_LIMIT_S = 15.0
AFTERWARDS = "The files of recipes/install are made from the tables: python recipes/install/make.py"

EXITS = """\
Exit codes: 0 everything that was asked for was read; with --check, the newest torch is in the
tables. 1 with --check: it is not. 2 wrong usage. 3 something could not be read; a place that
gave no answer changes nothing, and where none answered no file is touched."""


def main(
    arguments: list[str],
    *,
    folder: Path = TABLES,
    fetch: Fetcher | None = None,
    day: str | None = None,
) -> int:
    """Run the command on the tables in that folder; returns its exit code.

    fetch: who answers for the network; day: today, ISO 8601. Exits with 2 for wrong usage.
    """
    parser = _parser()
    asked = parser.parse_args(arguments)
    tables = {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(folder.glob("*.json"))
    }
    only = tuple(name.strip() for name in asked.only.split(",") if name.strip())
    known = ("torch", *packages(tables), *TITLES)
    unknown = next((name for name in only if name not in known), None)
    if unknown is not None:
        parser.error(f"--only knows {', '.join(known)}; {unknown!a} is none of them")
    if asked.check:
        return _check(tables, asked.index, fetch or Web(limit_s=CHECK_LIMIT_S))
    wanted = Asked(index=asked.index, torch_index=asked.torch_index, only=only, deep=asked.deep)
    today = day or datetime.now(timezone.utc).date().isoformat()
    answer = ask(fetch or Web(), tables, wanted, today)
    if answer.failures and not answer.reached:
        sys.stderr.write(f"Nothing was read, the tables stay as they are: {answer.failures[0]}\n")
        return NOT_ASKED
    for text in answer.failures:
        sys.stderr.write(f"not read: {text}\n")
    sys.stdout.write(shown(answer.changes, answer.remarks, today))
    if asked.write:
        whole = not only and not answer.failures
        files = _write(answer, folder, max(today, tables["torch"]["collected"]) if whole else None)
        sys.stdout.write(f"Written: {', '.join(files) if files else 'nothing'}.\n")
        if files:
            sys.stdout.write(f"{AFTERWARDS}\n")
    elif answer.changes:
        sys.stdout.write("Nothing is written without --write.\n")
    return NOT_ASKED if answer.failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m cudadoctor.knowledge.update",
        description="Compare the tables with the package index and public tables.",
        epilog=EXITS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--check", action="store_true", help="only look for a newer torch")
    parser.add_argument("--write", action="store_true", help="write the rows that differ")
    parser.add_argument(
        "--deep", action="store_true", help="read which GPUs a new torch has code for (some 30 MB)"
    )
    parser.add_argument(
        "--only", default="", metavar="NAMES", help="packages and places, separated by commas"
    )
    parser.add_argument("--index", default=PYPI, metavar="URL", help=f"default {PYPI}")
    parser.add_argument(
        "--torch-index", default=TORCH_INDEX_URL, metavar="URL", help=TORCH_INDEX_URL
    )
    return parser


def _check(tables: Mapping[str, Any], index: str, fetch: Fetcher) -> int:
    known = str(tables["torch"]["releases"][0]["torch"])
    try:
        newest = newest_torch(fetch, index)
    except (NotRead, Unreadable) as error:
        sys.stderr.write(f"Whether torch {known} is the newest could not be asked: {error}\n")
        return NOT_ASKED
    if Version(newest) <= Version(known):
        sys.stdout.write(f"The newest torch on the index, {newest}, is in the tables.\n")
        return 0
    sys.stdout.write(f"torch {newest} is on the index; the tables end with {known}.\n")
    return 1


def _write(answer: Answer, folder: Path, collected: str | None) -> list[str]:
    """Write the tables that differ; returns their names. collected: the new day of them all."""
    tables = dict(answer.tables)
    if collected:
        tables["torch"] = {**tables["torch"], "collected": collected}
    files = {folder / f"{name}.json": written(table) for name, table in tables.items()}
    changed = {path: text for path, text in files.items() if path.read_bytes() != text.encode()}
    for path, text in changed.items():
        _replaced(path, text)
    return [path.name for path in changed]


def _replaced(path: Path, text: str) -> None:
    """The file with another content: all of it, or as it was."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(path.stat().st_mode & 0o777)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
