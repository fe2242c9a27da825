"""Whether a journal speaks of the environment that it lies in: it may have been copied, moved or
planted there, and whatever it says, nothing outside of that environment is changed."""

from __future__ import annotations

import os
import stat

import msgspec

from cudadoctor.repair.place import OF_A_PROJECT
from cudadoctor.repair.records import Begun, JournalError, Root

_PIXI = "/.pixi/envs/"


def in_its_place(begun: Begun, prefix: str) -> Begun:
    """The repair, speaking of the environment where it lies now.

    Raises JournalError where it speaks of anything else.
    """
    recorded = os.path.normpath(begun.prefix or prefix)
    if not os.path.isabs(recorded):
        raise _strange(recorded)
    if begun.made and os.path.normpath(begun.made[-1]) != recorded:
        raise _strange(begun.made[-1])
    for path in begun.made:
        if not (os.path.isabs(path) and is_below(recorded, os.path.normpath(path))):
            raise _strange(path)
    for root in begun.roots:
        if not (is_below(root.path, recorded) or _is_pixis(root, recorded)):
            raise _strange(root.path)
    for path in (path for task in begun.tasks for path, _ in task.files):
        if not is_below(path, recorded):
            raise _strange(path)
    here = begun if _is_one(recorded, prefix) else _moved(begun, recorded, prefix)
    for root in here.roots:
        _demand_inside(root, prefix)
    return here


def was_moved(begun: Begun, prefix: str) -> bool:
    """Whether the environment was copied or moved since, so that its commands name another."""
    return not _is_one(os.path.normpath(begun.prefix or prefix), prefix)


def is_below(path: str, folder: str) -> bool:
    """Whether a path is that folder or lies in it, by its words."""
    plain = os.path.normpath(path)
    return os.path.isabs(path) and (
        plain == folder or plain.startswith(folder.rstrip("/\\") + os.sep)
    )


def _is_pixis(root: Root, prefix: str) -> bool:
    """pixi keeps its environments in the folder of a project, whose files it writes too."""
    project, mark, _ = prefix.replace("\\", "/").partition(_PIXI)
    named = root.only is not None and set(root.only) <= set(OF_A_PROJECT)
    return bool(mark) and named and root.path == project


def _is_one(recorded: str, prefix: str) -> bool:
    try:
        return os.path.samefile(recorded, prefix)
    except OSError:
        return False


def _moved(begun: Begun, recorded: str, prefix: str) -> Begun:
    def there(path: str) -> str:
        return os.path.normpath(os.path.join(prefix, os.path.relpath(path, recorded)))

    def root_there(root: Root) -> Root:
        if is_below(root.path, recorded):
            return msgspec.structs.replace(root, path=there(root.path))
        project, mark, _ = prefix.replace("\\", "/").partition(_PIXI)
        if not mark:
            raise _strange(root.path)
        return msgspec.structs.replace(root, path=project)

    after = begun.afterwards
    return msgspec.structs.replace(
        begun,
        roots=tuple(root_there(root) for root in begun.roots),
        afterwards=there(after) if is_below(after, recorded) else after,
        made=(),
    )


def _demand_inside(root: Root, prefix: str) -> None:
    """No link may lead out of the environment."""
    real, inside = os.path.realpath(root.path), os.path.realpath(prefix)
    if not (is_below(real, inside) or _is_pixis(root, os.path.normpath(prefix))):
        raise _strange(root.path)


def _strange(path: str) -> JournalError:
    return JournalError(f"it speaks of {path}, which is no part of this environment")


def demand_own(folder: str) -> None:
    """Raise JournalError where others can have planted something in the journal's folder."""
    if stat.S_ISLNK(os.lstat(folder).st_mode):
        raise JournalError("it is a link, which would lead the repair elsewhere: remove it")
    if os.name != "posix":
        return
    own = os.geteuid()
    if os.lstat(folder).st_uid != own:
        raise JournalError("it belongs to another user: run this as its owner")
    with os.scandir(folder) as found:
        for one in found:
            if one.is_symlink() or one.stat(follow_symlinks=False).st_uid != own:
                raise JournalError(f"{one.name} in it is a link or another user's: remove it")
