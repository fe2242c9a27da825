"""The doctor's own modules come first: what lies about where it is started is the patient's."""

# Paths are texts here, and pathlib would be imported before the path is settled.
# ruff: noqa: PTH100, PTH120

from __future__ import annotations

import os
import sys


def settle() -> None:
    """Move the working folder and the folders of PYTHONPATH behind our own.

    A json.py of the user's, or packages for another Python, must not end the doctor. Children get
    the environment as it is. They stay at the end: some module systems bring our requirements so.
    """
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    foreign = {_absolute(one) for one in ("", *named)} - {home}
    sys.path.sort(key=lambda one: _absolute(one) in foreign)


def _absolute(folder: str) -> str:
    try:
        return os.path.abspath(folder)
    except OSError:
        return folder  # the working folder is gone
