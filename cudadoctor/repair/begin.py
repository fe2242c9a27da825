"""Before anything changes: which steps, in which folders, with what room, and what forbids it."""

import os
import re
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from os.path import isdir, join, realpath
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace
from packaging.utils import canonicalize_name

from cudadoctor import __version__, knowledge
from cudadoctor.cli.options import Options
from cudadoctor.cli.speech import say, spoken
from cudadoctor.host import local
from cudadoctor.installers.verify import Verdict, verify
from cudadoctor.model.findings import PackageChange, Plan, Risk, Step
from cudadoctor.model.machine import Machine, OptStr, Strings
from cudadoctor.model.trust import typed
from cudadoctor.render import inert
from cudadoctor.render.shells import ShellName, edits_by_hand, has_lines, kept_by_conda, shell_of
from cudadoctor.render.summary import is_runnable
from cudadoctor.repair.journal import (
    OF_A_PROJECT,
    SCHEMA,
    Begun,
    Opinion,
    Root,
    Task,
    is_below,
    pixi_project,
)
from cudadoctor.repair.session import environment, used_by
from cudadoctor.repair.snapshot import Snapshot

_OF_AN_ENVIRONMENT = (
    *("bin", "lib", "lib64", "include", "share", "etc", "man", "pyvenv.cfg"),
    *("Scripts", "Lib", "Include", ".gitignore", ".lock", "CACHEDIR.TAG"),
)
"""What package managers write at the top of a virtual environment."""
_OF_CONDA_ELSEWHERE = ("envs", "pkgs", "conda-bld", ".cudadoctor")
"""What lies in conda's prefix and belongs to other environments."""


class Place(Struct, frozen=True, kw_only=True):
    """Where a repair takes place.

    prefix: the folder with the journal. python: the interpreter to look at afterwards. made: the
    prefix is a new environment. limited: packages may put files outside of the roots.
    """

    prefix: str
    roots: tuple[Root, ...]
    python: str
    made: bool = False
    limited: bool = False


def place_of(machine: Machine, steps: tuple[Step, ...], *, project: bool = False) -> Place | None:
    """The place of these steps; None where the environment's folder is not known.

    project: somebody's own files lie in the environment's folder too.
    """
    python = machine.python
    if not python.executable or not python.prefix:
        return None
    if folder := next(filter(None, map(folder_made, steps)), None):
        return Place(
            prefix=folder,
            roots=(Root(path=folder, only=_OF_AN_ENVIRONMENT),),
            python=python_made(steps, folder),
            made=True,
        )
    return Place(
        prefix=python.prefix,
        roots=_roots(machine, python.prefix, project=project),
        python=python.executable,
        limited=python.kind == "system",
    )


def _roots(machine: Machine, prefix: str, *, project: bool) -> tuple[Root, ...]:
    kind = machine.python.kind or ""
    if kind == "system":
        return _system(machine, prefix)
    if kind.startswith("conda"):
        # pixi writes into the files of its project too.
        home = pixi_project(prefix)
        beside = () if home is None else (Root(path=home, only=OF_A_PROJECT),)
        return (Root(path=prefix, but=_OF_CONDA_ELSEWHERE), *beside)
    if not project:
        return (Root(path=prefix, only=_OF_AN_ENVIRONMENT),)
    # Of `lib` and its like only what is Python's: the rest is somebody's work.
    own = ("pyvenv.cfg", "lib64", "Scripts", "Lib")
    return (Root(path=prefix, only=own), *_system(machine, prefix))


def _system(machine: Machine, prefix: str) -> tuple[Root, ...]:
    """The library folder of that one Python, and the scripts."""
    if machine.platform.system == "Windows":
        return (Root(path=f"{prefix}/Lib"), Root(path=f"{prefix}/Scripts"))
    library, _, packages = (machine.python.site_packages or "").replace("\\", "/").rpartition("/")
    scripts = Root(path=f"{prefix}/bin")
    if not library:
        return (scripts,)
    # Debian's Python is /usr, and what pip installs for it goes to /usr/local.
    base = re.sub(r"/lib(64)?/.*", "", library)
    beside = () if base in (library, prefix) else (Root(path=f"{base}/bin"),)
    return (Root(path=library, only=(packages,)), scripts, *beside)


def folder_made(step: Step) -> OptStr:
    """The folder of the new environment that a step makes, None where it makes none."""
    # The last: a venv before it holds the uv that makes this one.
    for argv in reversed(step.commands):
        if "venv" in argv[:4] and len(argv) > 2:
            return argv[-1]
        if argv[1:2] == ("create",) and "-p" in argv[:-1]:
            return argv[argv.index("-p") + 1]
    return None


def python_made(steps: tuple[Step, ...], folder: str) -> str:
    """The interpreter of that environment, as the commands name it."""
    words = (word for step in steps for argv in step.commands for word in argv)
    inside = re.compile(re.escape(folder) + r"[/\\](?:(?:bin|Scripts)[/\\])?python(?:\.exe)?")
    return next((word for word in words if inside.fullmatch(word)), f"{folder}/bin/python")


class Left(Struct, frozen=True, kw_only=True):
    """A step that is not taken. why: a key of `words.LEFT`."""

    step: Step
    why: str


class Chosen(Struct, frozen=True, kw_only=True):
    """steps: run or written here. shell: variables for the second look, told for the user's shell.

    left: of each other group the preferred step, for the user.
    """

    steps: tuple[Step, ...] = ()
    shell: tuple[Step, ...] = ()
    left: tuple[Left, ...] = ()


def chosen(plan: Plan) -> Chosen:
    """Of each group the first step that can be taken here and undone."""
    groups: dict[str, list[Step]] = {}
    for step in plan.steps:
        groups.setdefault(step.group, []).append(step)
    taken = {
        group: next(
            (
                step
                for step in steps
                # It may stand in a script, and an undo covers what it changes.
                if is_runnable(step) and (not step.commands or step.risk is Risk.ENVIRONMENT)
            ),
            None,
        )
        for group, steps in groups.items()
    }
    first = [steps[0] for group, steps in groups.items() if taken[group] is None]
    left = [Left(step=step, why=why_left(step)) for step in first]
    steps = [step for step in taken.values() if step and step.commands]
    # If a new environment is made, steps that change the old one are left.
    if folder := next(filter(None, map(folder_made, steps)), None):
        other = [step for step in steps if folder_made(step) != folder]
        left += [Left(step=step, why="other") for step in other]
        steps = [step for step in steps if step not in other]
    shell = tuple(step for step in taken.values() if step and not step.commands)
    return Chosen(steps=tuple(steps), shell=shell, left=tuple(left))


def why_left(step: Step) -> str:
    """Why a step is left for the user: a key of `words.LEFT`."""
    if is_runnable(step):
        return "more"
    if step.where != "here":
        return step.where
    if step.verified is False:
        return "unresolved"
    if edits_by_hand(step) or not has_lines(step):
        return "hand"
    return "root" if step.needs_root else "more"


def tasks_of(found: Chosen, machine: Machine, shell: ShellName) -> tuple[Task, ...]:
    """The steps as the journal keeps them; a conda environment keeps variables in files."""
    return tuple(
        Task(
            id=step.id,
            title=step.title,
            commands=step.commands,
            cures=step.cures,
            variables=dict(step.variables),
            files=tuple(
                (edit.file, edit.what + "\n")
                for edit in kept_by_conda(machine, step.variables, shell)
                if step in found.shell
            ),
        )
        for step in (*found.steps, *found.shell)
    )


UNPACKED_MANY = 2.3
"""Installed bytes for each byte of the wheels, with torch's CUDA libraries (measured: 1.81 to 2.27,
the former for torch 2.14.1: 3.07 GB of wheels are 5.56 GB installed)."""
UNPACKED_FEW = 4.5
"""The same for a CPU build and for single wheels, which pack better: triton 3.8, sympy 4.2."""
MANY_BYTES = 1_000_000_000
SPARE_BYTES = 50_000_000
"""For byte code, the journal and the log."""


class Need(NamedTuple):
    """Bytes that a folder's file system must have free. what: a key of _PURPOSES."""

    folder: str
    bytes: int
    what: str


_PURPOSES = {
    "packages": "the packages",
    "copy": "a copy of the environment",
    "downloads": "the downloads",
    "cache": "the package cache",
}


def unpacked(download: int) -> int:
    """Bytes that wheels of so many bytes take when they are installed, estimated from above."""
    return int(download * (UNPACKED_MANY if download >= MANY_BYTES else UNPACKED_FEW))


def needs(
    size: int, prefix: str, temporary: str, cache: OptStr, copied_bytes: int
) -> tuple[Need, ...]:
    """What is needed where. size: bytes of the downloads. cache: pip's, None where it is switched
    off. copied_bytes: of the environment, where the snapshot cannot consist of links."""
    found = (
        Need(prefix, unpacked(size) + SPARE_BYTES, "packages"),
        Need(prefix, copied_bytes, "copy"),
        Need(temporary, size, "downloads"),
        Need(cache or "", size, "cache"),
    )
    return tuple(need for need in found if need.folder and need.bytes)


def lacking(wanted: tuple[Need, ...]) -> OptStr:
    """A sentence about the first file system that is too small, None where all fits."""
    systems = defaultdict(list)
    for need in wanted:
        with suppress(OSError):
            systems[os.stat(nearest_folder(need.folder)).st_dev].append(need)
    for needed in systems.values():
        total, folder = sum(need.bytes for need in needed), needed[0].folder
        free = total
        with suppress(OSError):
            free = shutil.disk_usage(nearest_folder(folder)).free
        if free < total:
            return say(
                "{needed} is needed in {folder} for {purposes}, but only {free} is "
                "available; free up space first",
                folder=folder,
                needed=shown(total),
                free=shown(free),
                purposes=", ".join(dict.fromkeys(say(_PURPOSES[need.what]) for need in needed)),
            )
    return None


def shown(size: int) -> str:
    """Bytes as people say them."""
    if size >= 1_000_000_000:
        return f"{size / 1e9:.1f} GB"
    return f"{max(1, round(size / 1e6))} MB"


def cache_folder(env: Mapping[str, str]) -> OptStr:
    """pip's cache, None where it is switched off."""
    if env.get("PIP_NO_CACHE_DIR", "").lower() in ("1", "true", "yes", "on"):
        return None
    home = env.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return env.get("PIP_CACHE_DIR") or join(home, "pip")


MOST_NAMED = 3
CONFIG_S = 20.0
_PROJECT_FILES = (
    *(".git", ".hg", "pyproject.toml", "setup.py", "package.json", "Makefile"),
    *(".profile", ".bashrc", ".bash_history"),
)
"""Signs of a project, or of somebody's home."""


def is_project(machine: Machine) -> bool:
    """Whether somebody's own files lie in the environment's folder."""
    home = machine.python.prefix
    return home is not None and any(os.path.exists(f"{home}/{name}") for name in _PROJECT_FILES)


def shared(machine: Machine, place: Place) -> OptStr:
    """Why an environment that others share is not touched; pure."""
    kind, python = machine.python.kind, machine.python.executable
    inside = machine.container.kind not in (None, "none")
    # In an image /usr/local is the environment, as in Docker's own Python images.
    image = inside and (machine.python.prefix or "").rstrip("/") == "/usr/local"
    if place.made or (kind == "system" and image):
        return None
    template = {
        "conda-base": "{python} belongs to conda's base environment, which conda itself needs. "
        "Create your own environment with cudadoctor setup DIR, or add --allow-shared",
        "system": "{python} belongs to the system, and other programs use it. Create your own "
        "environment with cudadoctor setup DIR, or add --allow-shared",
        "pipx": "{python} belongs to a program installed with pipx; reinstall that program "
        "with pipx",
        "embedded": "{python} is part of another program; use that program's own installer",
    }.get(kind or "")
    return template and say(template, python=python)


def owned_by_another(place: Place) -> OptStr:
    """Files that root writes into a user's environment would be root's."""
    if sys.platform == "win32" or os.geteuid() != 0:
        return None
    for path in _existing(place):
        owner = os.stat(path).st_uid
        if owner != 0:
            name = f"UID {owner}"
            with suppress(KeyError, ImportError):
                import pwd

                name = pwd.getpwuid(owner).pw_name
            return say(
                "you are root, but {path} belongs to {name}; run this as {name}",
                path=path,
                name=name,
            )
    return None


def _existing(place: Place) -> Iterator[str]:
    """The folders that are written into; of a new environment the one that it is made in."""
    yield nearest_folder(place.prefix)
    for root in place.roots:
        for name in ("bin", "Scripts", "lib", "Lib"):
            path = join(root.path, name)
            if isdir(path) and not os.path.islink(path):
                yield path


def nearest_folder(folder: str) -> str:
    """The folder, or the nearest one above it that exists."""
    path = Path(folder)
    return next((str(above) for above in (path, *path.parents) if above.is_dir()), os.curdir)


def unwritable(place: Place, site_packages: OptStr) -> OptStr:
    """Why nothing can be installed there: another owner, a read-only file system."""
    site = site_packages if site_packages and not place.made else place.prefix
    for folder in (place.prefix, *(root.path for root in place.roots), site):
        if not os.access(nearest_folder(folder), os.W_OK | os.X_OK):
            return say(
                "you cannot write to {folder}; run this as its owner, or create your own "
                "environment with cudadoctor setup DIR",
                folder=folder,
            )
    return None


def leads_out(place: Place, site_packages: OptStr) -> OptStr:
    """Why what a link leads to is not touched: the record follows none, and pip does."""
    if place.made:
        return None
    folders = [site_packages, *(f"{place.prefix}/{name}" for name in ("bin", "Scripts"))]
    for folder in (folder for folder in folders if folder and isdir(folder)):
        links = [folder]
        with suppress(OSError), os.scandir(folder) as found:
            links += sorted(entry.path for entry in found if entry.is_symlink() and entry.is_dir())
        for path in links:
            real = realpath(path)
            if not _is_recorded(place, real):
                return say(
                    "{path} links to {real}, outside this environment, so a fix there could not "
                    "be undone; create a new environment with cudadoctor setup DIR",
                    path=path,
                    real=real,
                )
    return None


def _is_recorded(place: Place, real: str) -> bool:
    for root in place.roots:
        folder = realpath(root.path)
        if real == folder or (
            is_below(real, folder) and root.has(os.path.relpath(real, folder).split(os.sep)[0])
        ):
            return True
    return False


def elsewhere_by_configuration(tasks: tuple[Task, ...]) -> OptStr:
    """Why pip would change something else: its configuration file says so, which no variable can
    take back."""
    env = environment(os.environ, {})
    for argv in dict.fromkeys(argv[:3] for task in tasks for argv in task.commands):
        if argv[1:] == ("-m", "pip"):
            ran = local.this_host().run(*argv, "config", "list", timeout_s=CONFIG_S, env=env)
            if sentence := led_elsewhere(ran.stdout, argv[0]):
                return sentence
    return None


def led_elsewhere(listed: str, python: str) -> OptStr:
    """The sentence about such a line of `pip config list`; pure."""
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        if re.fullmatch(r"(global|install|uninstall)\.(target|prefix|root|python)", name.strip()):
            argv = typed(python, "-m", "pip", "config", "unset", name.strip())
            return say(
                "pip is configured to install elsewhere ({setting}). To remove that setting: "
                "{command}",
                setting=f"{inert(name.strip())}={inert(value)}",
                command=shell_of("bash").shown(argv),
            )
    return None


def in_use(prefix: str, roots: tuple[Root, ...], tell: Callable[[str], None]) -> OptStr:
    """Who runs in the environment; what could not be looked at is told."""
    return running(used_by(prefix, roots, tell))


def running(users: list[str]) -> OptStr:
    """The sentence about the processes that run in it; pure."""
    if not users:
        return None
    named = ", ".join(users[:MOST_NAMED])
    if (more := len(users) - MOST_NAMED) > 0:
        named += say(" and {count} more", count=more)
    return say(
        "{programs} is running in this environment; stop it first"
        if len(users) == 1
        else "{programs} are running in this environment; stop them first",
        programs=named,
    )


def can_link(folder: str) -> bool:
    """Whether this file system takes hard links."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            os.link(file.name, f"{file.name}-2")
            os.unlink(f"{file.name}-2")
    except OSError:
        return False
    return True


def begun(
    place: Place, machine: Machine, tasks: tuple[Task, ...], before: Opinion, options: Options
) -> Begun:
    """The first record of a repair."""
    return Begun(
        schema=SCHEMA,
        id=os.urandom(6).hex(),
        doctor=__version__,
        examined=machine.python.executable or "",
        afterwards=place.python,
        prefix=place.prefix,
        roots=place.roots,
        tasks=tasks,
        before=before,
        options=options,
        made=_not_there(place.prefix) if place.made else (),
    )


def prepared(earlier: Begun) -> Begun:
    """The same repair once more, under a name of its own."""
    prefix = earlier.made[-1] if earlier.made else None
    return replace(
        earlier, id=os.urandom(6).hex(), at="", made=_not_there(prefix) if prefix else ()
    )


def _not_there(folder: str) -> Strings:
    """The folders on the way that do not exist yet, the outermost first."""
    path = Path(folder)
    return tuple(str(above) for above in (*reversed(path.parents), path) if not above.is_dir())


def refusal(machine: Machine, place: Place, *, allow_shared: bool) -> OptStr:
    """Why this environment is not touched at all: wrong use, whatever its state."""
    site = machine.python.site_packages
    return (
        (None if allow_shared else shared(machine, place))
        or owned_by_another(place)
        or leads_out(place, site)
        or unwritable(place, site)
    )


def dry_run(
    steps: tuple[Step, ...], machine: Machine, options: Options, tell: Callable[[str], None]
) -> tuple[OptStr, int]:
    """Ask a resolver before anything is touched.

    Returns why it cannot be had (None: it can, or nobody could tell), and the bytes that will be
    downloaded, as far as they are known.
    """
    size, tables = 0, knowledge.load()
    try:
        for change in (step.packages for step in steps if step.packages):
            found = verify(change, machine, tables, here=True, tool_name=options.manager)
            if found.resolves is False:
                return spoken(found.why), 0
            if found.resolves is None:
                tell(say("{why}; continuing because the fix can be undone", why=spoken(found.why)))
            size += download_of(found, change, installed(machine))
    finally:
        local.close_host()
    return None, size


def download_of(found: Verdict, change: PackageChange, present: frozenset[str]) -> int:
    """Bytes of the resolver's files that are not there yet; pure. present: "name==version" each."""
    gone = {canonicalize_name(name) for name in change.remove}
    sizes = [
        file.size_bytes
        for file in found.files
        if f"{canonicalize_name(file.name)}=={file.version}" not in present
        or canonicalize_name(file.name) in gone
    ]
    least = 0 if found.files and None not in sizes else change.download_bytes or 0
    return max(least, sum(size or 0 for size in sizes))


def installed(machine: Machine) -> frozenset[str]:
    """All distributions of the environment as "name==version", by their metadata folders."""
    folder = machine.python.site_packages
    names = os.listdir(folder) if folder and isdir(folder) else []
    stems = (name.removesuffix(".dist-info") for name in names if name.endswith(".dist-info"))
    pairs = (stem.partition("-")[::2] for stem in stems)
    return frozenset(f"{canonicalize_name(name)}=={version}" for name, version in pairs)


def no_room(place: Place, size: int, folder: str) -> OptStr:
    """The sentence about a disk that is too small, None where all fits.

    size: bytes of the downloads. folder: the journal's.
    """
    copied = 0
    if not (place.made or can_link(folder)):
        copied = sum(entry.size for entry in Snapshot(folder, "", place.roots).present())
    temporary = os.environ.get("TMPDIR") or tempfile.gettempdir()  # pip's downloads
    return lacking(needs(size, place.prefix, temporary, cache_folder(os.environ), copied))
