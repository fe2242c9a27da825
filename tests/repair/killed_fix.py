"""The doctor with a journal that kills it, run as a program by the tests.

Its arguments: a count of records, the environment, and yes, undo or resume.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from unittest import mock

from cudadoctor.cli.options import Options
from cudadoctor.repair import fix as repairing
from cudadoctor.repair.journal import Journal, Record

LAST, FOLDER, WORD = int(sys.argv[1]), sys.argv[2], sys.argv[3]


written = itertools.count(1)
append = Journal.append


def append_and_kill(journal: Journal, record: Record, identity: str) -> None:
    """Kills its own process once so many records are on disk."""
    append(journal, record, identity)
    if next(written) == LAST:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    wish = Options(
        fast=True,
        python=FOLDER,
        yes=WORD == "yes",
        undo=WORD == "undo",
        resume=WORD == "resume",
    )
    with mock.patch.object(Journal, "append", append_and_kill):
        sys.exit(repairing.fix(wish))
