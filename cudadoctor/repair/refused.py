"""What a repair does not touch, each in one sentence with the next step."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from cudadoctor.model.trust import typed
from cudadoctor.render import inert
from cudadoctor.render.shells import shell_of
from cudadoctor.repair.applied import environment
from cudadoctor.repair.running import used_by
from cudadoctor.repair.snapshot import walked

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cudadoctor.model.machine import Machine
    from cudadoctor.repair.place import Place
    from cudadoctor.repair.records import Task
    from cudadoctor.repair.running import Use

MOST_NAMED = 3
_PROJECT_FILES = (
    *(".git", ".hg", "pyproject.toml", "setup.py", "package.json", "Makefile"),
    *(".profile", ".bashrc", ".bash_history"),
)
"""Signs of a project, or of somebody's home."""


def holds_a_project(prefix: str) -> bool:
    """Whether somebody's own files lie in the environment's folder."""
    return any(os.path.exists(os.path.join(prefix, name)) for name in _PROJECT_FILES)


def shared(machine: Machine, place: Place) -> str | None:
    """Why an environment that others share is not touched; pure."""
    kind, python = machine.python.kind, machine.python.executable
    if place.made:
        return None
    way = "make an environment of your own and name it with --python, or add --allow-shared"
    if kind == "conda-base":
        return f"{python} is conda's base, which conda itself runs in: {way}"
    if kind == "system" and not _is_an_image(machine):
        return f"{python} belongs to the system, and other programs run in it: {way}"
    if kind == "pipx":
        return f"{python} belongs to a program that pipx installed: reinstall it with pipx"
    if kind == "embedded":
        return f"{python} is part of a program: repair it with that program's own installer"
    return None


def _is_an_image(machine: Machine) -> bool:
    """In an image /usr/local is the environment, as in Docker's own Python images."""
    inside = machine.container.kind not in (None, "none")
    prefix = machine.python.prefix or ""
    return inside and prefix.rstrip("/") == "/usr/local"


def owned_by_another(place: Place) -> str | None:
    """Files that root writes into a user's environment would be root's."""
    if sys.platform == "win32" or os.geteuid() != 0:
        return None
    for path in _existing(place):
        owner = os.stat(path).st_uid
        if owner != 0:
            name = _user_name(owner)
            return (
                f"{path} belongs to {name}, and its files would become root's: run this as {name}"
            )
    return None


def _user_name(number: int) -> str:
    with contextlib.suppress(KeyError, ImportError):
        import pwd

        return pwd.getpwuid(number).pw_name
    return f"the user with the number {number}"


def _existing(place: Place) -> Iterator[str]:
    """The folders that are written into; of a new environment the one that it is made in."""
    yield _nearest(place.prefix)
    for root in place.roots:
        for name in ("bin", "Scripts", "lib", "Lib"):
            path = os.path.join(root.path, name)
            if os.path.isdir(path) and not os.path.islink(path):
                yield path


def _nearest(folder: str) -> str:
    """The folder, or the nearest one above it that exists."""
    while not os.path.isdir(folder) and os.path.dirname(folder) != folder:
        folder = os.path.dirname(folder)
    return folder


def unwritable(place: Place, site_packages: str | None) -> str | None:
    """Why nothing can be installed there: another owner, a read-only file system."""
    folders = [place.prefix, *(root.path for root in place.roots)]
    if site_packages and not place.made:
        folders.append(site_packages)
    for folder in dict.fromkeys(folders):
        if not os.access(_nearest(folder), os.W_OK | os.X_OK):
            return (
                f"{folder} cannot be written to by this user: run this as its owner, or make an"
                " environment of your own"
            )
    return None


def leads_out(place: Place, site_packages: str | None) -> str | None:
    """Why what a link leads to is not touched: the record follows none, and pip does."""
    if place.made:
        return None
    folders = [site_packages, *(f"{place.prefix}/{name}" for name in ("bin", "Scripts"))]
    for folder in (one for one in folders if one and os.path.isdir(one)):
        links = [folder]
        with contextlib.suppress(OSError), os.scandir(folder) as found:
            links += sorted(one.path for one in found if one.is_symlink() and one.is_dir())
        for path in links:
            real = os.path.realpath(path)
            if not _is_recorded(place, real):
                return (
                    f"{path} leads to {real}, outside of the environment, where an undo could not"
                    " bring anything back: repair that place itself, or make an environment of"
                    " your own"
                )
    return None


def _is_recorded(place: Place, real: str) -> bool:
    for root in place.roots:
        folder = os.path.realpath(root.path).rstrip(os.sep) + os.sep
        rest = (real + os.sep).removeprefix(folder)
        if real + os.sep == folder or (
            rest != real + os.sep and root.has(rest.partition(os.sep)[0])
        ):
            return True
    return False


def elsewhere_by_configuration(
    tasks: tuple[Task, ...], env: Mapping[str, str], limit_s: float = 20.0
) -> str | None:
    """Why pip would change something else: its configuration file says so, which no variable can
    take back."""
    from cudadoctor.host import children, local

    cwd = local.this_host().place
    for argv in dict.fromkeys(argv[:3] for task in tasks for argv in task.commands):
        if argv[1:] != ("-m", "pip"):
            continue
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            ran = subprocess.run(
                (*argv, "config", "list"),
                env=children.environment(environment(env, {}), cwd),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
                timeout=limit_s,
            )
            if sentence := led_elsewhere(ran.stdout.decode("utf-8", "replace"), argv[0]):
                return sentence
    return None


def led_elsewhere(listed: str, python: str) -> str | None:
    """The sentence about such a line of `pip config list`; pure."""
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        if re.fullmatch(r"(global|install|uninstall)\.(target|prefix|root|python)", name.strip()):
            argv = typed(python, "-m", "pip", "config", "unset", name.strip())
            unset = shell_of("bash").shown(argv)
            return (
                f"pip's configuration says {inert(name.strip())}={inert(value)}, which leads out of"
                f" this environment: remove it with {unset}"
            )
    return None


def in_use(place: Place, say: Callable[[str], None]) -> str | None:
    """Who runs in the environment; what could not be looked at is said."""
    use = used_by(place.prefix, place.roots)
    if not use.known:
        say("not checked: whether programs run in this environment; end them first")
    elif use.unread:
        some = f"{use.unread} process{'es' if use.unread > 1 else ''}"
        say(f"not checked: {some} of other users, which may run in this environment")
    return running(use)


def running(use: Use) -> str | None:
    """The sentence about the processes that run in it; pure."""
    if not use.users:
        return None
    some = [f"{inert(one.words)} ({one.pid})" for one in use.users[:MOST_NAMED]]
    more = len(use.users) - len(some)
    named = ", ".join(some) + (f" and {more} more" if more else "")
    verb = "runs" if len(use.users) == 1 else "run"
    return f"{named} {verb} in this environment, whose files would change under it: end it first"


def can_link(folder: str) -> bool:
    """Whether this file system takes hard links."""
    one, other = (os.path.join(folder, name) for name in ("link-1", "link-2"))
    try:
        with open(one, "wb"):
            pass
        os.link(one, other)
    except OSError:
        return False
    finally:
        for path in (one, other):
            with contextlib.suppress(OSError):
                os.unlink(path)
    return True


def bytes_of(place: Place) -> int:
    """What the files of the environment hold, in bytes."""
    return sum(found.st_size for root in place.roots for _, found in walked(root))
