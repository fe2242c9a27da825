"""The doctor's own modules come first: what lies about where it is started is the patient's."""

# Paths are texts here, and pathlib would be imported before the path is settled. So would
# __future__ be: nothing but what Python's start has already imported may be named here.
# ruff: noqa: PTH100, PTH117, PTH118, PTH120

import os
import site
import sys


def settle() -> None:
    """Take the current folder off the path, and put the folders of PYTHONPATH behind our own.

    A json.py of the user's, or packages for another Python, must not end the doctor, and a module
    that we look for in vain must not be found beside the user. Children get the user's PYTHONPATH.
    What it names elsewhere stays at the end: some module systems bring our requirements so.
    """
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    here = {_absolute(one) for one in ("", *named) if not os.path.isabs(one)}
    foreign = {_absolute(one) for one in named} | here
    ours = _ours()
    sys.path[:] = sorted(
        (one for one in sys.path if _absolute(one) in ours or _absolute(one) not in here),
        key=lambda one: _absolute(one) in foreign - ours,
    )


def _ours() -> set[str]:
    """Our own folder, and those of this Python: one may stand in them."""
    library = os.path.dirname(os.__file__)
    home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    installed: list[str] = getattr(site, "getsitepackages", list)()
    own = {home, library, os.path.join(library, "lib-dynload"), *installed}
    return own | {one for one in (getattr(site, "USER_SITE", None),) if one}


def _absolute(folder: str) -> str:
    try:
        return os.path.realpath(folder)
    except OSError:
        return folder  # the working folder is gone
