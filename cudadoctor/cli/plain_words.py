"""The commonest calls, read without click: loading it takes a sixth of a whole `check --fast`.

Only `check` with options of this table is read here. Any other word, right or wrong, goes to
the real command line; a test holds the two against each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_FLAGS = {
    "--fast": "fast",
    "--no-smoke": "no_smoke",
    "--json": "as_json",
    "--markdown": "markdown",
    "--full": "full",
    "--strict": "strict",
}


def options_of(argv: Sequence[str]) -> dict[str, Any] | None:
    """The options of a `check` as click would give them; None where click is to read them."""
    if not argv or argv[0] != "check":
        return None
    options: dict[str, Any] = {}
    words = iter(argv[1:])
    for word in words:
        if word in _FLAGS:
            options[_FLAGS[word]] = True
        elif word == "--python":
            options["python"] = next(words, None)
            if options["python"] is None:
                return None
        else:
            return None
    return options
