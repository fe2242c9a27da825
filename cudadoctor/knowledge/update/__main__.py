"""The command: `python -m cudadoctor.knowledge.update [--check] [--write] [--only torch,...]`."""

import argparse
import json
import sys
from datetime import datetime, timezone
from pathlib import Path

from packaging.version import Version

from cudadoctor.knowledge.torch_builds import TORCH_INDEX
from cudadoctor.knowledge.update import places, torch_rows
from cudadoctor.knowledge.update.fetching import LIMIT_S, Fetcher, NotRead, Web
from cudadoctor.knowledge.update.rows import PYPI, TITLES, Update, written
from cudadoctor.knowledge.update.writing import replaced

TABLES = Path(__file__).parent.parent / "tables"
NOT_ASKED = 3
CHECK_LIMIT_S = 15.0
AFTERWARDS = "Now regenerate the files of recipes/install: python recipes/install/make.py"

EXITS = """\
Exit code: 0 if every source was read (with --check: if the tables have the newest torch), 1 if
--check found a newer torch, 2 for wrong use, 3 if a source could not be read. Such a source
changes nothing."""


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
    tables = {path.stem: json.loads(path.read_bytes()) for path in sorted(folder.glob("*.json"))}
    update = Update(
        tables=tables,
        fetch=fetch or Web(limit_s=CHECK_LIMIT_S if asked.check else LIMIT_S),
        day=day or datetime.now(timezone.utc).date().isoformat(),
        index=asked.index.rstrip("/"),
        torch_index=asked.torch_index.rstrip("/"),
        only=tuple(name.strip() for name in asked.only.split(",") if name.strip()),
        deep=asked.deep,
    )
    known = ("torch", *torch_rows.packages(tables), *TITLES)
    for name in update.only:
        if name not in known:
            parser.error(f"--only: {name!a} is not a source; choose from {', '.join(known)}")
    if asked.check:
        return _check(update)
    places.ask(update)
    if update.failures and not update.reached:
        sys.stderr.write(f"No source could be read; nothing was changed: {update.failures[0]}\n")
        return NOT_ASKED
    for text in update.failures:
        sys.stderr.write(f"could not be read: {text}\n")
    sys.stdout.write(update.shown())
    if asked.write:
        if not (update.only or update.failures):
            tables["torch"]["collected"] = max(update.day, tables["torch"]["collected"])
        files = _write(update, folder)
        sys.stdout.write(f"Written: {', '.join(files) if files else 'nothing'}.\n")
        if files:
            sys.stdout.write(f"{AFTERWARDS}\n")
    elif update.changes:
        sys.stdout.write("To write these changes, add --write.\n")
    return NOT_ASKED if update.failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m cudadoctor.knowledge.update",
        description="Compare the tables with the package index and public tables.",
        epilog=EXITS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for flag, words in (
        ("--check", "only check for a newer torch"),
        ("--write", "write the changed rows to the tables"),
        ("--deep", "read which GPUs a new torch supports (about 30 MB)"),
    ):
        parser.add_argument(flag, action="store_true", help=words)
    for option, default, metavar, words in (
        ("--only", "", "NAMES", "packages and sources, separated by commas"),
        ("--index", PYPI, "URL", f"package index (default: {PYPI})"),
        ("--torch-index", TORCH_INDEX, "URL", f"torch's index (default: {TORCH_INDEX})"),
    ):
        parser.add_argument(option, default=default, metavar=metavar, help=words)
    return parser


def _check(update: Update) -> int:
    known = update.newest
    try:
        listed = torch_rows.newest_torch(update)
    except NotRead as error:
        sys.stderr.write(f"Could not check for a torch newer than {known}: {error}\n")
        return NOT_ASKED
    if Version(listed) <= Version(known):
        sys.stdout.write(f"The tables have the newest torch ({listed}).\n")
        return 0
    sys.stdout.write(f"torch {listed} is on the index; the newest in the tables is {known}.\n")
    return 1


def _write(update: Update, folder: Path) -> list[str]:
    """Write the tables that differ; returns their names."""
    tables = {folder / f"{name}.json": table for name, table in update.tables.items()}
    changed = [path for path, table in tables.items() if json.loads(path.read_bytes()) != table]
    for path in changed:
        replaced(path, written(tables[path]).encode())
    return [path.name for path in changed]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
