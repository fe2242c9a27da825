"""The commonest calls, read without click: loading it takes a sixth of a whole `check --fast`.

Only `check` with options of this table is read here. Any other word, right or wrong, goes to
the real command line; a test holds the two against each other.
"""

from __future__ import annotations

import contextlib
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


def begin_look(argv: Sequence[str]) -> None:
    """The head start: the first child starts before the command line is parsed.

    The look at the interpreter that these words will most likely examine takes the longest of all,
    so it runs while the rest of the doctor is still being imported. `LocalHost.inside` takes over
    the child that was begun here. What is guessed wrong costs a child that nobody listens to.
    """
    if argv[:1] not in [[command] for command in ("check", "fix", "facts", "smoke")]:
        return
    if any(word.startswith(("--from", "--help", "-h")) for word in argv):
        return
    from cudadoctor.host.local import this_host
    from cudadoctor.probes import target

    words = iter(argv)
    named = (
        word.partition("=")[2] or (next(words, None) if word == "--python" else "")
        for word in words
        if word.partition("=")[0] == "--python"
    )
    host = this_host()
    with contextlib.suppress(target.UsageError):  # said in its turn
        host.begin("look.py", target.choose(host, next(named, None)).executable)
