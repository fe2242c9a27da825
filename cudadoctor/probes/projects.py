"""Which project an environment belongs to: its tool writes the environment anew from a lock."""

from __future__ import annotations

# Paths are texts here: links stay unresolved, as the user wrote them.
# ruff: noqa: PTH118
import os
import re

from cudadoctor.host.local import Host

_LOCKS = (("uv.lock", "uv"), ("pdm.lock", "pdm"), ("poetry.lock", "poetry"))
_TABLE = re.compile(r"(?m)^[ \t]*\[+[ \t]*tool\.(uv|pdm|poetry)\b")
_UNMANAGED = re.compile(r"(?m)^[ \t]*managed[ \t]*=[ \t]*false\b")
_PROJECT_BYTES = 1 << 18
NONE = ("", "")


def project_of(host: Host, prefix: str, kind: str) -> tuple[str, str] | None:
    """The project's folder and its tool (uv, pdm, poetry, pixi); ("", "") none, None not known.

    uv and pdm keep a project's environment in .venv beside pyproject.toml, poetry may too.
    """
    folder, mark, _ = prefix.replace("\\", "/").partition("/.pixi/envs/")
    if mark:
        return prefix[: len(folder)], "pixi"
    if "/pypoetry/virtualenvs/" in prefix.replace("\\", "/"):
        return None  # its name holds a hash of the folder only
    folder, name = os.path.split(prefix)
    if kind not in ("venv", "uv", "poetry") or not _is_own(host, prefix, name):
        return NONE
    there = host.stat(os.path.join(folder, "pyproject.toml")).exists
    if not there:
        return NONE if there is False else None
    for lock, tool in _LOCKS:
        if host.stat(os.path.join(folder, lock)).exists:
            return folder, tool
    return _by_table(host, folder)


def _is_own(host: Host, prefix: str, name: str) -> bool:
    """Whether a project's tool would take that folder for its environment."""
    return name == ".venv" or host.env.get("UV_PROJECT_ENVIRONMENT") in (prefix, name)


def _by_table(host: Host, folder: str) -> tuple[str, str] | None:
    """The tool that has a table in pyproject.toml, where nothing is locked yet."""
    answer = host.read(os.path.join(folder, "pyproject.toml"), limit=_PROJECT_BYTES)
    if not answer.known:
        return None
    found = _TABLE.search(answer.text)
    if found is None or (found[1] == "uv" and _UNMANAGED.search(answer.text)):
        return NONE
    return folder, found[1]
