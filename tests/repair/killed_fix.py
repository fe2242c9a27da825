"""The doctor with a journal that kills it, run as a program by the tests.

Its arguments: a count of records, the environment, and yes, undo or resume.
"""

from __future__ import annotations

import os
import signal
import sys

from cudadoctor.cli.options import Options
from cudadoctor.repair import fix as repairing
from cudadoctor.repair.journal import Journal, Record

LAST, FOLDER, WORD = int(sys.argv[1]), sys.argv[2], sys.argv[3]


class KillingJournal(Journal):
    """Kills its own process once so many records are on disk."""

    count = 0

    def append(self, record: Record) -> None:
        super().append(record)
        type(self).count += 1
        if self.count == LAST:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    wish = Options(
        fast=True,
        python=FOLDER,
        yes=WORD == "yes",
        undo=WORD == "undo",
        resume=WORD == "resume",
    )
    sys.exit(repairing.fix(wish, KillingJournal.of))
