"""What makes `check --fast` quick before anything of weight is loaded.

`settle` decides where modules come from, so it runs first. `options_of` reads the commonest calls
without click: loading it takes a sixth of a whole `check --fast`. `begin_look` starts the first
child before the command line is parsed. And `cli.commands` imports what only some calls need inside
of functions.
"""

# Paths are texts here, and pathlib would be imported before the path is settled. So would
# __future__ and typing be: nothing but what Python's start has already imported may be named here.
# ruff: noqa: PTH100, PTH117, PTH118, PTH120

import os
import site
import sys
from os.path import abspath, dirname, join, realpath

_FLAGS = {
    "--fast": "fast",
    "--no-smoke": "no_smoke",
    "--json": "as_json",
    "--markdown": "markdown",
    "--full": "full",
    "--strict": "strict",
}
"""Any other word, right or wrong, goes to the real command line; a test compares the two."""


def settle() -> None:
    """Take the current folder off the path, and put the folders of PYTHONPATH behind our own.

    A json.py of the user's, or packages for another Python, must not end the doctor, and a module
    that we look for in vain must not be found beside the user. Children get the user's PYTHONPATH.
    What it names elsewhere stays at the end: some module systems bring our requirements so.
    """
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    here = {_absolute(folder) for folder in ("", *named) if not os.path.isabs(folder)}
    ours = _own_folders()
    foreign = {_absolute(folder) for folder in named} | here
    kept = [folder for folder in sys.path if _absolute(folder) not in here - ours]
    sys.path[:] = sorted(kept, key=lambda folder: _absolute(folder) in foreign - ours)


def _own_folders() -> set[str]:
    """Our own folder, and those of this Python: one may stand in them."""
    library = dirname(os.__file__)
    home = dirname(dirname(dirname(abspath(__file__))))
    installed: list[str] = getattr(site, "getsitepackages", list)()
    user = getattr(site, "USER_SITE", None) or home
    return {home, library, join(library, "lib-dynload"), *installed, user}


def _absolute(folder: str) -> str:
    try:
        return realpath(folder)
    except OSError:
        return folder  # the working folder is gone


def options_of(argv: list[str]) -> dict[str, object] | None:
    """The options of a `check` as click would give them; None where click is to read them."""
    if command_of(argv) != "check":
        return None
    options: dict[str, object] = {}
    words = iter(argv[argv[:1] == ["check"] :])
    for word in words:
        if word in _FLAGS:
            options[_FLAGS[word]] = True
        elif word == "--python" and (path := next(words, None)) is not None:
            options["python"] = path
        else:
            return None
    return options


def command_of(argv: list[str]) -> str:
    """The command of a call: a check where none is named; a shell that completes calls for none."""
    if "_CUDADOCTOR_COMPLETE" in os.environ:
        return ""
    return argv[0] if argv and not argv[0].startswith("-") else "check"


def begin_look(argv: list[str]) -> None:
    """The head start: the first child starts before the command line is parsed.

    The look at the interpreter that these words will most likely examine takes the longest of all,
    so it runs while the rest of the doctor is still being imported. `LocalHost.inside` takes over
    the child that was begun here. What is guessed wrong costs a child that nobody listens to.
    """
    if command_of(argv) not in ("check", "fix", "facts", "smoke") or any(
        word.startswith(("--from", "--help", "-h", "--version", "-V")) for word in argv
    ):
        return
    import contextlib

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
