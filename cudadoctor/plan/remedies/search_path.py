"""A folder that brings a wrong library, taken out of LD_LIBRARY_PATH however it is spelled."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cudadoctor.plan.remedies.manual import set_variables, unset_variables

if TYPE_CHECKING:
    from cudadoctor.model.findings import Remedy
    from cudadoctor.model.machine import Machine

_NAME = "LD_LIBRARY_PATH"
_TOOLKIT = re.compile(r"(/usr/local/cuda|/opt/cuda)(?:-([\d.]+))?(?=/|$)")
_TARGET = re.compile(r"/targets/[\w-]+-linux/lib(?=/|$)")
_TELLING = ("stubs", "compat")


def off_search_path(m: Machine, folder: str) -> tuple[Remedy, ...]:
    """The variable without the entries that lead to that folder; () where none does.

    A folder of "" is not known: then entries that are stubs by their name are meant.
    """
    entries = [one for one in re.split("[:;]", (m.env or {}).get(_NAME, "")) if one]
    gone = [one for one in entries if _leads_to(one, folder, m)]
    if not gone:
        return ()
    rest = [one for one in entries if one not in gone]
    if not rest:
        return unset_variables(m, _NAME)
    title = f"Take {' and '.join(dict.fromkeys(gone))} out of {_NAME}"
    return set_variables(m, "trim-ld-library-path", title, {_NAME: ":".join(rest)})


def _leads_to(entry: str, folder: str, m: Machine) -> bool:
    """Whether an entry is that folder: as it was resolved there, else by the usual links."""
    if not folder:
        return "stubs" in entry.split("/")
    search = m.libraries.search
    real = next((one.real for one in search or () if one.entry == entry), entry)
    if _alike(real, folder):
        return True
    # Where nobody followed the links, an entry of that kind is the way to it.
    kind = next((word for word in _TELLING if word in folder.split("/")), None)
    return search is None and kind is not None and kind in entry.split("/")


def _alike(one: str, other: str) -> bool:
    """The same folder, with or without CUDA's version in its name, or as lib64."""
    first, second = _plain(one), _plain(other)
    versions = _version(one), _version(other)
    # /usr/local/cuda-12 is a link to one of the 12.x, /usr/local/cuda to any.
    same = versions[0].startswith(versions[1]) or versions[1].startswith(versions[0])
    return first == second and same


def _plain(folder: str) -> str:
    plain = _TARGET.sub("/lib64", _TOOLKIT.sub(r"\1", re.sub("/+", "/", folder).rstrip("/")))
    return plain.removeprefix("/usr") if plain.startswith("/usr/lib") else plain


def _version(folder: str) -> str:
    found = _TOOLKIT.match(folder)
    return f"{found[2]}." if found and found[2] else ""
