"""The commands `compare` and `cluster`: gather the facts of machines, show what differs."""

from __future__ import annotations

import gc
import sys

from cudadoctor.cli import saved
from cudadoctor.cli.looking import note
from cudadoctor.cli.options import Options, refuse
from cudadoctor.cli.output import width, written
from cudadoctor.cli.speech import current, say
from cudadoctor.cluster import page
from cudadoctor.cluster.differences import Tally, table_of
from cudadoctor.model.machine import Strings


def compare(files: Strings, options: Options) -> int:
    """0 where the machines behind the files do not differ, 1 where they do."""
    gc.enable()  # many documents are no short life
    tally = Tally()
    unread = 0
    seen: set[str] = set()
    try:
        for found in saved.machines(files):
            if found.machine is None:
                unread += 1
                note(found.error or found.name)
                continue
            table = table_of(found.machine)
            if not table:
                unread += 1
                note(say("{name} tells nothing about a machine", name=found.name))
                continue
            host = found.machine.identity.host
            name = host if host and host not in seen else found.name
            seen.add(name)
            tally.add(name, table)
    except saved.SavedError as error:
        refuse(str(error))
    if len(tally.hosts) < 2:
        refuse("compare needs the facts of at least two hosts; save them with: cudadoctor facts")
    if not tally.shared():
        refuse("these hosts have no known fact in common; save them with: cudadoctor facts")
    differences = tally.differences()
    if options.as_json:
        from cudadoctor.render import json_v1

        written(json_v1.dumps(page.document(differences, tally.hosts)) + "\n", options.output)
    else:
        lines = [page.answer(differences, tally, current())]
        lines += page.rows(differences, width(), current())
        written("".join(f"{line}\n" for line in lines), options.output)
    sys.stdout.flush()
    return 2 if unread else int(bool(differences))
