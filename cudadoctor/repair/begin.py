"""From a judged machine to a repair that may begin: what is looked at before anything changes."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import msgspec

from cudadoctor import __version__
from cudadoctor.repair import refused, room
from cudadoctor.repair.records import SCHEMA, Begun, Options

if TYPE_CHECKING:
    from collections.abc import Callable

    from cudadoctor.cli.options import Asked
    from cudadoctor.installers.verify import Verdict
    from cudadoctor.model.findings import PackageChange, Step
    from cudadoctor.model.machine import Machine
    from cudadoctor.repair.place import Place
    from cudadoctor.repair.records import Opinion, Task

Say = "Callable[[str], None]"


def new_id() -> str:
    """A name for a repair that no other has."""
    return os.urandom(6).hex()


def options_of(asked: Asked) -> Options:
    """How to look again: as it was looked at first."""
    return Options(
        fast=asked.fast,
        no_smoke=asked.no_smoke,
        device=asked.device,
        timeout=asked.timeout,
        compiles=asked.compiles,
        ignore=asked.ignore,
    )


def begun(
    place: Place, machine: Machine, tasks: tuple[Task, ...], before: Opinion, options: Options
) -> Begun:
    """The first record of a repair."""
    return Begun(
        schema=SCHEMA,
        id=new_id(),
        doctor=__version__,
        examined=machine.python.executable or "",
        afterwards=place.python,
        prefix=place.prefix,
        roots=place.roots,
        tasks=tasks,
        before=before,
        options=options,
        made=_not_there(place.prefix) if place.made else (),
    )


def prepared(earlier: Begun, identity: str) -> Begun:
    """The same repair once more, under a name of its own."""
    prefix = earlier.made[-1] if earlier.made else None
    return msgspec.structs.replace(
        earlier, id=identity, at="", made=_not_there(prefix) if prefix else ()
    )


def _not_there(folder: str) -> tuple[str, ...]:
    """The folders on the way that do not exist yet, the outermost first."""
    found: list[str] = []
    while not os.path.isdir(folder) and os.path.dirname(folder) != folder:
        found.append(folder)
        folder = os.path.dirname(folder)
    return tuple(reversed(found))


def refusal(machine: Machine, place: Place, *, allow_shared: bool) -> str | None:
    """Why this environment is not touched at all: wrong use, whatever its state."""
    reasons = (
        None if allow_shared else refused.shared(machine, place),
        refused.owned_by_another(place),
        refused.leads_out(place, machine.python.site_packages),
        refused.unwritable(place, machine.python.site_packages),
    )
    return next((one for one in reasons if one), None)


def dry_run(
    steps: tuple[Step, ...], machine: Machine, asked: Asked, say: Callable[[str], None]
) -> tuple[str | None, room.Download | None]:
    """Ask a resolver before anything is touched.

    Returns why it cannot be had (None: it can, or nobody could tell), and what will be downloaded.
    """
    from cudadoctor import knowledge
    from cudadoctor.host import local
    from cudadoctor.installers.verify import verify

    downloads: list[room.Download] = []
    try:
        for step in steps:
            if step.packages is None:
                continue
            found = verify(step.packages, machine, knowledge.load(), here=True, wish=asked.manager)
            if found.resolves is False:
                return found.why, None
            if found.resolves is None:
                say(f"{found.why}; going on, since all can be brought back")
            downloads.append(download_of(found, step.packages, installed(machine)))
    finally:
        local.close_host()
    return None, _summed(downloads)


def download_of(found: Verdict, change: PackageChange, present: frozenset[str]) -> room.Download:
    """What of the resolver's files is not there yet; pure. present: "name==version" each."""
    gone = {_canonical(one) for one in change.remove}
    files = [
        one
        for one in found.files
        if f"{_canonical(one.name)}=={one.version}" not in present or _canonical(one.name) in gone
    ]
    size = sum(one.size_bytes or 0 for one in files)
    known = bool(found.files) and all(one.size_bytes is not None for one in files)
    return room.Download(
        bytes=size if known else max(size, change.download_bytes or 0), known=known
    )


def installed(machine: Machine) -> frozenset[str]:
    """All distributions of the environment as "name==version", by their metadata folders."""
    folder = machine.python.site_packages
    names = os.listdir(folder) if folder and os.path.isdir(folder) else []
    stems = (name.removesuffix(".dist-info") for name in names if name.endswith(".dist-info"))
    pairs = (stem.partition("-")[::2] for stem in stems)
    return frozenset(f"{_canonical(name)}=={version}" for name, version in pairs)


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _summed(downloads: list[room.Download]) -> room.Download | None:
    if not downloads:
        return None
    return room.Download(
        bytes=sum(one.bytes for one in downloads), known=all(one.known for one in downloads)
    )


def no_room(place: Place, download: room.Download | None, folder: str) -> str | None:
    """The sentence about a disk that is too small, None where all fits. folder: the journal's."""
    copied = 0 if place.made or refused.can_link(folder) else refused.bytes_of(place)
    temporary, cache = room.temporary_folder(os.environ), room.cache_folder(os.environ)
    return room.lacking(room.needs(download, place.prefix, temporary, cache, copied))
