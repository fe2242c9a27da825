"""Which Python and which tool a new environment is made with, and which build goes into it."""

import os
import re
from collections.abc import Iterator
from typing import Literal

import msgspec
from packaging.version import Version

from cudadoctor.host import children
from cudadoctor.host.local import Host
from cudadoctor.knowledge import Knowledge
from cudadoctor.model.machine import Machine
from cudadoctor.model.versions import version_of
from cudadoctor.plan.remedies.torch import emptied
from cudadoctor.solver.builds import Choice, best_build
from cudadoctor.solver.demand import platform_of, python_of

Tool = Literal["pip", "uv", "conda", "pixi"]
USUAL = Version("3.12")
"""The Python to be near to where that of the machine is older, or not known."""


class Base(msgspec.Struct, frozen=True, kw_only=True):
    """A Python that an environment can be made from.

    origin: chosen (the doctor's choice or --python), pyenv, uv, PATH, py. pip: whether the
    environments that it makes have pip, None not known.
    """

    path: str
    version: Version
    origin: str
    pip: bool | None = None


class Tools(msgspec.Struct, frozen=True, kw_only=True):
    """Paths of the programs that are there; conda stands for mamba and micromamba too."""

    uv: str | None = None
    conda: str | None = None
    pixi: str | None = None


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What is chosen from. named: the user named the Python. others: more Pythons found here."""

    machine: Machine
    tools: Tools = Tools()
    torch: str | None = None
    tool: Tool | None = None
    named: bool = False
    others: tuple[Base, ...] = ()


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be made. base None: the tool fetches that Python.

    machine: this machine with that Python and an empty environment. python: "3.12".
    because: why not what one would expect, as sentences.
    """

    tool: Tool
    python: str
    base: Base | None
    machine: Machine
    choice: Choice
    because: tuple[str, ...] = ()


class NoWay(msgspec.Struct, frozen=True, kw_only=True):
    """Why nothing can be made: sentences, and what would help."""

    why: tuple[str, ...]
    ways_out: tuple[str, ...] = ()
    choice: Choice | None = None


class _Offer(msgspec.Struct, frozen=True, kw_only=True):
    """A Python with the build that it would get."""

    base: Base | None
    machine: Machine
    choice: Choice


def suffices(known: Known, kb: Knowledge) -> bool:
    """Whether the machine's own Python serves, so that no other has to be looked for."""
    if known.named or known.tool in ("conda", "pixi"):
        return True
    own = _own(known, kb)
    if own is None or own.base is None or own.choice.build is None:
        return False
    by_uv = known.tool == "uv" or (known.tool is None and known.tools.uv is not None)
    newest = _best(_fetchable(known, kb), own.base.version)
    return (own.base.pip is True or by_uv) and not _is_newer(newest, own)


def choose(known: Known, kb: Knowledge) -> Chosen | NoWay:
    """What is to be made on this machine, or why nothing can be."""
    own = _own(known, kb)
    if known.tool in ("conda", "pixi"):
        return _fetched(known, kb, known.tool, own)
    found = None if known.named else _best(_offers(known, kb), _version(known))
    brings_pip = found is not None and found.base is not None and found.base.pip is not False
    serves = found is not None and (known.tool == "uv" or brings_pip)
    if own is not None and own.choice.build is not None and own.base is not None:
        if found is not None and serves and _is_newer(found, own):
            text = f"Python {own.base.version} would get torch {own.choice.build.torch} only."
            return _made(known.tool or "pip", found, (text,))
        return _from_own(known, own, own.base, found if serves else None)
    if known.named:
        return _named_in_vain(known, kb, own)
    if found is not None and serves:
        return _made(known.tool or "pip", found, _instead(known, own))
    fetcher: Tool | None = "uv" if known.tools.uv else "conda" if known.tools.conda else None
    return _fetched(known, kb, known.tool or fetcher, own)


def _is_newer(one: _Offer | None, own: _Offer) -> bool:
    """Whether another Python would get a newer torch, and one that is known to exist."""
    if one is None or one.choice.build is None or own.choice.build is None:
        return False
    return bool(one.choice.build.published) and one.choice.build.torch > own.choice.build.torch


def _own(known: Known, kb: Knowledge) -> _Offer | None:
    """The examined Python; None where there is none that runs."""
    python = known.machine.python
    if python.executable is None or python.version is None:
        return None
    path, version, pip = python.executable, python.version, python.ensurepip
    base = Base(path=path, version=version, origin="chosen", pip=pip)
    machine = emptied(known.machine)
    return _Offer(base=base, machine=machine, choice=best_build(machine, kb, keep=known.torch))


def _version(known: Known) -> Version:
    """What another Python is to be near to: an old one is no measure for a new environment."""
    return max(known.machine.python.version or USUAL, USUAL)


def _from_own(known: Known, own: _Offer, base: Base, other: _Offer | None) -> Chosen | NoWay:
    """With the machine's own Python: only how its environment gets packages is open."""
    if known.tool == "uv" or base.pip is not False:
        return _made(known.tool or "pip", own)
    without = f"Python {base.version} at {base.path} makes no environment with pip (no ensurepip)"
    if known.tool is None and known.tools.uv:
        return _made("uv", own, (f"{without}, so uv makes it.",))
    if other is not None:
        return _made("pip", other, (f"{without}, so another one is taken.",))
    package = f"python{base.version.major}.{base.version.minor}-venv"
    out = f"Install what is missing (Debian and Ubuntu: the package {package}, as root), or uv."
    return NoWay(why=(f"{without}.",), ways_out=(out,), choice=own.choice)


def _offers(known: Known, kb: Knowledge) -> list[_Offer]:
    """The other Pythons of this machine, each with its build."""
    return [_offer(known, kb, base.version, base) for base in known.others]


def _offer(known: Known, kb: Knowledge, version: Version, base: Base | None = None) -> _Offer:
    machine = emptied(known.machine, version)
    if base is not None:
        python = msgspec.structs.replace(
            machine.python, executable=base.path, ensurepip=base.pip, kind="user"
        )
        machine = msgspec.structs.replace(machine, python=python)
    return _Offer(base=base, machine=machine, choice=best_build(machine, kb, keep=known.torch))


def _best(offers: list[_Offer], near: Version) -> _Offer | None:
    """The newest torch; of several Pythons for it one that brings pip, nearest to this version."""
    fitting = [offer for offer in offers if offer.choice.build is not None]
    return max(fitting, key=lambda offer: _rank(offer, near), default=None)


def _rank(offer: _Offer, near: Version) -> tuple[bool, Version, bool, int, Version]:
    """What is known to exist comes before what is only announced."""
    build, version = offer.choice.build, offer.machine.python.version
    assert build is not None
    assert version is not None
    brings = offer.base is None or offer.base.pip is not False
    distance = abs(version.minor - near.minor)
    return build.published is True, build.torch, brings, -distance, version


def _instead(known: Known, own: _Offer | None) -> tuple[str, ...]:
    """Why the machine's own Python is not taken."""
    if own is None:
        return ("No Python that runs was chosen on this machine.",)
    wanted = f"torch {known.torch}" if known.torch else "torch"
    return (f"{wanted} has no build that fits for Python {python_of(own.machine)} here.",)


def _fetched(known: Known, kb: Knowledge, tool: Tool | None, own: _Offer | None) -> Chosen | NoWay:
    """With a Python that the tool brings: this machine's version where it fits."""
    if own is not None and own.choice.build is not None:
        brought = msgspec.structs.replace(own, base=None)
        return _made(tool or "pip", brought)
    found = _best(_fetchable(known, kb), _version(known))
    if found is None or tool is None:
        return _nothing(own, found)
    because = f"{tool} fetches Python {python_of(found.machine)}."
    return _made(tool, found, (*_instead(known, own), because))


def _fetchable(known: Known, kb: Knowledge) -> list[_Offer]:
    """Every Python that torch was ever built for on this platform, with the build it would get."""
    platform = platform_of(emptied(known.machine, USUAL))
    builds = kb.builds_on(platform) if platform else ()
    versions = {python for build in builds for python in build.pythons if python[-1].isdigit()}
    return [_offer(known, kb, Version(version)) for version in sorted(versions)]


def _nothing(own: _Offer | None, found: _Offer | None) -> NoWay:
    none = NoWay(why=("No Python that runs was found here.",))
    if own is not None:
        out = tuple(alternative.text for alternative in own.choice.alternatives)
        none = NoWay(why=own.choice.why, ways_out=out, choice=own.choice)
    if found is None:
        return none
    text = f"Install Python {python_of(found.machine)}, or uv, which fetches it."
    return msgspec.structs.replace(none, ways_out=(*none.ways_out, text))


def _named_in_vain(known: Known, kb: Knowledge, own: _Offer | None) -> NoWay:
    """A Python that was named is not changed for another behind the user's back."""
    found = _best([*_offers(known, kb), *_fetchable(known, kb)], _version(known))
    none = _nothing(own, None)
    if found is None:
        return none
    text = f"Name a Python {python_of(found.machine)} with --python, or leave --python out."
    return msgspec.structs.replace(none, ways_out=(*none.ways_out, text))


def _made(tool: Tool, offer: _Offer, because: tuple[str, ...] = ()) -> Chosen:
    return Chosen(
        tool=tool,
        python=python_of(offer.machine) or "",
        base=offer.base,
        machine=offer.machine,
        choice=offer.choice,
        because=because,
    )


# Paths are texts here: links stay unresolved, as the user knows them.


ASKING_S = 5.0
MOST_ASKED = 24
_NAMES = tuple(f"python3.{minor}" for minor in range(15, 7, -1))
_QUESTION = (
    "import sys,struct,importlib.util as u;"
    "print('%d.%d.%d'%sys.version_info[:3],sys.implementation.name,struct.calcsize('P')*8,"
    "int(bool(u.find_spec('ensurepip')) and bool(u.find_spec('venv'))),"
    "int('free-threading' in sys.version),int(sys.prefix==sys.base_prefix))"
)
_ANSWER = re.compile(r"(\d+\.\d+\.\d+) cpython 64 ([01]) 0 1\s*$")
"""Of what may be taken: a common Python of 64 bits that is no environment itself."""
_LAUNCHED = re.compile(r"-\S+\s+(?:\*\s*)?([A-Za-z]:\\.*\.exe)")


def tools(host: Host) -> Tools:
    """The package managers that are there."""
    conda = host.env.get("MAMBA_EXE") or host.env.get("CONDA_EXE")
    return Tools(
        uv=_program(host, "uv", ".local/bin/uv", ".cargo/bin/uv"),
        conda=conda or _program(host, "mamba", "conda", "micromamba"),
        pixi=_program(host, "pixi", ".pixi/bin/pixi"),
    )


def found(host: Host) -> tuple[Base, ...]:
    """Every Python that answers, each program once, the first place first."""
    seen: dict[str, Base] = {}
    for path, origin in _places(host):
        real = host.stat(path).real
        if not real or real in seen or len(seen) >= MOST_ASKED:
            continue
        ran = host.run(path, "-I", "-c", _QUESTION, timeout_s=ASKING_S)
        if base := told(ran.stdout, path, origin):
            seen[real] = base
    return tuple(seen.values())


def told(answer: str, path: str, origin: str) -> Base | None:
    """A Python from its answer; None for those that torch has no wheels for anyway."""
    read = _ANSWER.match(answer)
    version = version_of(read[1]) if read else None
    if read is None or version is None:
        return None
    return Base(path=path, version=version, origin=origin, pip=read[2] == "1")


def _places(host: Host) -> Iterator[tuple[str, str]]:
    """Where Pythons lie: PATH, pyenv, uv, the launcher and installer of Windows, Homebrew."""
    windows = host.system == "Windows"
    if windows:
        # What the launcher of Windows knows: `py -0p` prints a tag and a path a line.
        launcher = host.which("py")
        said = host.run(launcher, "-0p", timeout_s=ASKING_S).stdout if launcher else ""
        yield from ((path, "py") for path in launched(said))
    for folder in (*children.path_folders(host.env.get("PATH", "")), "/usr/bin", "/usr/local/bin"):
        # A shim answers for whatever is set where it is called: behind it are pyenv's own folders.
        if folder.rstrip("/\\").endswith("shims"):
            continue
        for name in _NAMES:
            path = os.path.join(folder, name + (".exe" if windows else ""))
            if host.stat(path).exists:
                yield path, "PATH"
    program = ("python.exe",) if windows else ("bin", "python3")
    for folder, origin in _kept(host):
        for name in reversed(host.listing(folder).names):
            path = os.path.join(folder, name, *program)
            if host.stat(path).exists:
                yield path, origin


def _kept(host: Host) -> Iterator[tuple[str, str]]:
    """Folders of which each holds many Pythons."""
    env = host.env
    home = env.get("HOME") or env.get("USERPROFILE")
    if root := env.get("PYENV_ROOT") or (home and os.path.join(home, ".pyenv")):
        yield os.path.join(root, "versions"), "pyenv"
    if named := env.get("UV_PYTHON_INSTALL_DIR"):
        yield named, "uv"
    if home:
        yield os.path.join(home, ".local", "share", "uv", "python"), "uv"
    if roaming := env.get("APPDATA"):
        yield os.path.join(roaming, "uv", "python"), "uv"
    if local := env.get("LOCALAPPDATA"):
        yield os.path.join(local, "Programs", "Python"), "python.org"


def launched(text: str) -> list[str]:
    """The paths in what `py -0p` says."""
    found = [_LAUNCHED.fullmatch(line.strip()) for line in text.splitlines()]
    return list(dict.fromkeys(match[1] for match in found if match))


def _program(host: Host, *names: str) -> str | None:
    """The first that is on PATH, or (with a slash) under the home."""
    home = host.env.get("HOME") or host.env.get("USERPROFILE") or ""
    for name in names:
        path = os.path.join(home, *name.split("/")) if "/" in name else host.which(name)
        if path and (home or "/" not in name) and host.stat(path).exists:
            return os.path.abspath(path)
    return None
