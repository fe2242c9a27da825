"""`setup DIR`: a new environment with the best build for this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudadoctor.wrong_use import refuse

if TYPE_CHECKING:
    from cudadoctor.asked import Asked


def setup(folder: str, asked: Asked) -> int:
    """Make the environment and prove it. 0 where the training step passed in it, else 1."""
    refuse(f"setup is not there yet: {folder} stays as it is{' ' * asked.verbose}")
