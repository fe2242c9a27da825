"""The tables beside this module: words and phrases of reports, and what they state."""

from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T")


def wording(name: str, kind: type[T]) -> T:
    """One table, decoded. Raises msgspec.ValidationError if it is of another shape."""
    text = Path(__file__).with_name(f"{name}.toml").read_text(encoding="utf-8")
    return msgspec.toml.decode(text, type=kind)
