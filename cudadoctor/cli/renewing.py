"""`cudadoctor update`: asks the places, and saves what they say for every later command."""

from __future__ import annotations

import os
import sys
from copy import deepcopy
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import Version

from cudadoctor import __version__
from cudadoctor.cli.looking import note, tables_in
from cudadoctor.cli.options import Options, refuse
from cudadoctor.cli.output import Waiting
from cudadoctor.cli.speech import say, spoken
from cudadoctor.host import local
from cudadoctor.knowledge import renewed
from cudadoctor.knowledge.renewed import BadFile, Tables
from cudadoctor.render import inert

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cudadoctor.knowledge.update.fetching import Fetcher
    from cudadoctor.knowledge.update.rows import Update

NEWER, NOT_ASKED = 1, 3
SILENT_S = 5.0
"""For a place that says nothing at all: the others are waiting."""


def update(options: Options, *, fetch: Fetcher | None = None, day: str | None = None) -> int:
    """Ask the places, and save what they say. fetch: who answers for the network; day: today."""
    from cudadoctor.knowledge.update.fetching import Web
    from cudadoctor.knowledge.update.rows import Update

    target = options.output or local.saved_tables(os.environ)
    if target is None:
        refuse("no home folder found; name a file with --output")
    own = renewed.packaged()
    known = _known(own)
    asked = Update(
        tables=deepcopy(known),
        fetch=fetch or Web(silent_s=SILENT_S),
        day=day or datetime.now(timezone.utc).date().isoformat(),
        deep=True,
    )
    return _check(asked) if options.newer else _renew(asked, own, known, Path(target), options)


def _known(own: Tables) -> Tables:
    """Our tables with what an earlier update has saved, where that can be used and is newer."""
    saved = local.saved_tables(os.environ)
    if saved and Path(saved).exists():
        try:
            file = renewed.read(tables_in(saved), own)
        except BadFile:
            return own
        if file.collected >= own["torch"]["collected"]:
            return {**own, **renewed.merged(own, file)}
    return own


def _check(asked: Update) -> int:
    from cudadoctor.knowledge.update import torch_rows
    from cudadoctor.knowledge.update.fetching import NotRead

    try:
        listed = torch_rows.newest_torch(asked)
    except NotRead as error:
        note(say("cannot check for a newer PyTorch release: {reason}", reason=str(error)))
        return NOT_ASKED
    if Version(listed) <= Version(asked.newest):
        text = say("The tables have the newest PyTorch release, {torch}.", torch=asked.newest)
        sys.stdout.write(f"{text}\n")
        return 0
    text = say(
        "PyTorch {torch} is out; the newest in the tables is {known}.",
        torch=listed,
        known=asked.newest,
    )
    sys.stdout.write(f"{text} {say('To update them, run: cudadoctor update')}\n")
    return NEWER


def _renew(asked: Update, own: Tables, known: Tables, target: Path, options: Options) -> int:
    from cudadoctor.knowledge.update import places
    from cudadoctor.knowledge.update.writing import replaced

    with Waiting(lead="reading {what}") as progress:
        place = ""

        def begin(name: str) -> None:
            nonlocal place
            progress(place, False)
            place = places.NAMES[name]
            progress(place, True)

        places.ask(asked, begin)
    for text in asked.failures:
        note(spoken(text))
    whole = places.INDEX not in asked.unread
    if not whole and asked.tables == known:
        note(say("PyPI could not be read, so the tables are still from {date}", date=_day(known)))
        return NOT_ASKED
    day = max(asked.day, _day(known)) if whole else _day(known)
    rows = renewed.difference({} if options.output else own, asked.tables)
    rows = renewed.without_strangers(rows, own)
    data = renewed.document(rows, day, __version__)
    try:
        renewed.sign(data, own)
    except BadFile as error:
        reason = spoken(str(error))
        note(
            say("what was downloaded cannot be used, so nothing was saved: {reason}", reason=reason)
        )
        return NOT_ASKED
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replaced(target, data)
    except OSError as error:
        refuse("cannot write to {path}: {reason}", path=str(target), reason=error.strerror)
    lines = _told(asked, known, day, target)
    sys.stdout.writelines(f"{inert(line)}\n" for line in [*lines][: 1 if options.quiet else None])
    return 0 if whole else NOT_ASKED


def _day(tables: Tables) -> str:
    day: str = tables["torch"]["collected"]
    return day


def _told(asked: Update, known: Tables, day: str, target: Path) -> Iterator[str]:
    """What an update has brought, and what it could not learn."""
    from cudadoctor.knowledge.update import places

    new = renewed.difference(known, asked.tables)
    count = sum(len(part) for table in new.values() for part in table.values() if part)
    if new:
        yield say("Tables updated to {date}. New or changed rows: {count}.", date=day, count=count)
    else:
        yield say("The tables are up to date ({date}).", date=day)
    releases = [f"torch {row['torch']}" for row in new.get("torch", {}).get("releases", ())]
    releases += [
        f"{row['package']} {row['version']}"
        for row in new.get("companions", {}).get("releases", ())
    ]
    if releases:
        yield f"  {say('New: {releases}', releases=', '.join(releases))}"
    if gaps := [*places.gaps(asked.tables)]:
        yield f"  {say('Not known yet (these builds are not installed where it matters):')}"
        yield from (f"    {gap.fact}" for gap in gaps)
    yield f"  {say('Saved in {path}', path=target)}"
