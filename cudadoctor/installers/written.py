"""A package change in the words of one package manager."""

from __future__ import annotations

import msgspec

from cudadoctor.model.findings import Edit

Command = tuple[str, ...]


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """Commands (or edits) that make a package change, and which tool they are for.

    wheels: it takes wheels, not a channel's packages.
    """

    tool: str
    commands: tuple[Command, ...] = ()
    edits: tuple[Edit, ...] = ()
    manual: str | None = None
    note: str | None = None
    wheels: bool = True


def joined(*notes: str | None) -> str | None:
    """Several notes as one, None where there are none."""
    return " ".join(note for note in notes if note) or None
