"""The folder that an environment is to be made in: what is there, and whether it may be used."""

# Paths are texts here: what the user typed is shown as it was typed.

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator

import msgspec

MARKER = ".cudadoctor-setup"
"""A file in the folder from before the first command until the last has ended: it is ours."""

_SYSTEM = re.compile(
    r"/(?:(?:usr/(?:local/)?)?(?:bin|sbin|lib(?:32|64|x32|exec)?|include)"
    r"|etc|boot|dev(?!/shm)|proc|sys|System|Library)(?:/|$)"
)
_WINDOWS_SYSTEM = re.compile(r"(?i)[a-z]:[/\\](?:windows|program files(?: \(x86\))?)(?:[/\\]|$)")
_OF_PACKAGES = ("site-packages", "dist-packages")


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """What is at a path, and around it.

    path: absolute, as it was named. real: behind all links. kind: absent, folder, file, link.
    entries: what lies in the folder. parent: of the folder; None where the parent is not there.
    owner, parent_owner: user numbers, None where there are none (Windows) or nothing is there.
    user: who runs the doctor. inside: an environment that the path lies in. why: it cannot be
    looked at.
    """

    path: str
    real: str
    kind: str = "absent"
    entries: tuple[str, ...] = ()
    parent: str = ""
    parent_there: bool = True
    parent_writable: bool = True
    writable: bool = True
    owner: int | None = None
    parent_owner: int | None = None
    user: int | None = None
    inside: str | None = None
    why: str | None = None

    @property
    def ours(self) -> bool:
        """Whether a setup that did not come to its end has left this folder."""
        return self.kind == "folder" and MARKER in self.entries


def refusal(place: Place) -> str | None:
    """Why no environment may be made there, as one sentence; None where one may."""
    name = place.path
    if place.why:
        return f"{name} cannot be looked at ({place.why}): name another folder"
    return _by_name(place) or _by_kind(place, name) or _by_rights(place, name)


def _by_name(place: Place) -> str | None:
    """Names that no environment can live under."""
    name = place.path
    if not name.isprintable():
        return f"{name!r} holds characters that no terminal shows: name another folder"
    separator = ";" if re.match(r"[A-Za-z]:", name) else ":"
    if separator in name:
        return f"{name} holds a {separator!r}, which separates folders in PATH: name another folder"
    parts = re.split(r"[/\\]", place.real)
    for one in _OF_PACKAGES:
        if one in parts:
            return f"{name} lies in the {one} of an environment: name a folder outside of it"
    if _SYSTEM.match(place.real) or _WINDOWS_SYSTEM.match(place.real):
        return f"{name} belongs to the system: name a folder of your own"
    if place.inside and place.inside != place.real:
        return f"{name} lies in the environment {place.inside}: name a folder outside of it"
    return None


def _by_kind(place: Place, name: str) -> str | None:
    if place.kind == "link":
        return f"{name} is a link to {place.real}: name the folder itself"
    if place.kind == "file":
        return f"{name} is a file: name a folder that is not there yet"
    if not place.parent_there:
        return f"{place.parent} is no folder: make it first, then {name} can be made in it"
    if place.kind == "folder" and place.entries and not place.ours:
        found = ", ".join(place.entries[:3]) + (", ..." if len(place.entries) > 3 else "")
        return f"{name} is not empty ({found}): name a folder that is not there yet"
    return None


def _by_rights(place: Place, name: str) -> str | None:
    """Root could write everywhere, and would leave files that their owner cannot remove."""
    there = place.kind == "folder"
    owner = place.owner if there else place.parent_owner
    if place.user == 0 and owner not in (None, 0):
        whose = name if there else place.parent
        return f"{whose} belongs to user {owner} and this runs as root: run it as that user"
    if there and not place.writable:
        return f"{name} cannot be written to: name another folder"
    if not there and not place.parent_writable:
        return f"{place.parent} cannot be written to, so {name} cannot be made"
    return None


def looked_at(folder: str) -> Place:
    """What is at that path now."""
    try:
        path = os.path.abspath(os.path.expanduser(folder))
    except OSError as error:
        return Place(path=folder, real=folder, why=error.strerror or type(error).__name__)
    parent = os.path.dirname(path)
    try:
        return _seen(path, parent)
    except (OSError, ValueError) as error:
        words = getattr(error, "strerror", None) or str(error)
        return Place(path=path, real=path, parent=parent, why=words)


def _seen(path: str, parent: str) -> Place:
    real, kind, owner = os.path.realpath(path), "absent", None
    entries: tuple[str, ...] = ()
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        pass
    else:
        owner, kind = found.st_uid, _kind(found.st_mode)
        entries = tuple(sorted(os.listdir(path))) if kind == "folder" else ()
    there = os.path.isdir(parent)
    posix = hasattr(os, "geteuid")
    return Place(
        path=path,
        real=real,
        kind=kind,
        entries=entries,
        parent=parent,
        parent_there=there,
        parent_writable=os.access(parent, os.W_OK | os.X_OK),
        writable=kind != "folder" or os.access(path, os.W_OK | os.X_OK),
        owner=owner if posix else None,
        parent_owner=os.stat(parent).st_uid if there and posix else None,
        user=os.geteuid() if posix else None,
        inside=next(_environments(real), None),
    )


def _kind(mode: int) -> str:
    if stat.S_ISLNK(mode):
        return "link"
    return "folder" if stat.S_ISDIR(mode) else "file"


def _environments(real: str) -> Iterator[str]:
    """The environments that a path lies in; those of conda hold others under envs."""
    folder = real
    while (above := os.path.dirname(folder)) != folder:
        last, folder = os.path.basename(folder), above
        if os.path.exists(os.path.join(folder, "pyvenv.cfg")):
            yield folder
        if last != "envs" and os.path.isdir(os.path.join(folder, "conda-meta")):
            yield folder
