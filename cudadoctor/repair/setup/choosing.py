"""Which Python and which tool a new environment is made with, and which build goes into it."""

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from os.path import isabs, join

from msgspec import Struct
from msgspec.structs import replace
from packaging.version import Version

from cudadoctor.cli.speech import say
from cudadoctor.host import children
from cudadoctor.host.local import Host
from cudadoctor.installers.registry import TOOLS
from cudadoctor.installers.tool import Tool
from cudadoctor.knowledge import Knowledge, TorchBuild
from cudadoctor.model.machine import Machine, OptBool, OptStr, Strings
from cudadoctor.plan.remedies.torch import emptied
from cudadoctor.solver.builds import Choice, best_build
from cudadoctor.solver.demand import platform_of, python_of

_BRING_PYTHON = {tool.name for tool in TOOLS if tool.brings_python}
_FETCHERS = ("uv", "conda")
"""Who brings a Python if no tool was asked for, the preferred one first."""
USUAL = Version("3.12")
"""The Python to be near to where that of the machine is older, or not known."""


class Base(Struct, frozen=True, kw_only=True):
    """A Python that an environment can be made from.

    pip: whether the environments that it makes have pip, None not known.
    """

    path: str
    version: Version
    pip: OptBool = None


class Known(Struct, frozen=True, kw_only=True):
    """What is chosen from.

    tools: names -> paths of the install tools that are there. named: the user named the Python.
    others: more Pythons found here.
    """

    machine: Machine
    tools: Mapping[str, str] = {}
    torch: OptStr = None
    tool: OptStr = None
    named: bool = False
    others: tuple[Base, ...] = ()


class _Offer(Struct, frozen=True, kw_only=True):
    """A Python with the build that it would get.

    base None: a tool fetches it. machine: this machine with that Python and an empty environment.
    """

    base: Base | None
    machine: Machine
    choice: Choice

    @property
    def build(self) -> TorchBuild | None:
        return self.choice.build

    @property
    def brings_pip(self) -> bool:
        return self.base is None or self.base.pip is not False


class Chosen(_Offer, frozen=True, kw_only=True):
    """What is to be made. because: why not what one would expect, as sentences."""

    tool: str
    because: Strings = ()

    @property
    def python(self) -> str:
        """Its release: "3.12"."""
        return python_of(self.machine) or ""


class NoWay(Struct, frozen=True, kw_only=True):
    """Why nothing can be made: sentences, and what would help."""

    why: Strings
    ways_out: Strings = ()
    choice: Choice | None = None


def suffices(known: Known, kb: Knowledge) -> bool:
    """Whether the machine's own Python serves, so that no other has to be looked for."""
    if known.named or known.tool in _BRING_PYTHON:
        return True
    choosing = _Choosing(known, kb)
    own, python = choosing.own, known.machine.python
    if own is None or own.build is None or python.version is None:
        return False
    by_uv = known.tool == "uv" or (known.tool is None and "uv" in known.tools)
    newest = _best(choosing.fetchable, python.version)
    return (python.ensurepip is True or by_uv) and not _is_newer(newest, own)


def choose(known: Known, kb: Knowledge) -> Chosen | NoWay:
    """What is to be made on this machine, or why nothing can be."""
    return _Choosing(known, kb).chosen()


class _Choosing:
    """All that is weighed for one machine."""

    def __init__(self, known: Known, kb: Knowledge) -> None:
        self.known = known
        self.kb = kb
        # What another Python is to be near to: an old one is no measure for a new environment.
        self.near = max(known.machine.python.version or USUAL, USUAL)

    def chosen(self) -> Chosen | NoWay:
        known, own = self.known, self.own
        if known.tool in _BRING_PYTHON:
            return self._fetched(known.tool)
        found = None if known.named else _best(self.others, self.near)
        other = found if found and (known.tool == "uv" or found.brings_pip) else None
        if own and own.build:
            if other and _is_newer(other, own):
                version = own.machine.python.version
                template = "The newest torch you can use with Python {version} is {torch}."
                only = say(template, version=version, torch=own.build.torch)
                return _made(known.tool or "pip", other, only)
            return self._from_own(own, other)
        if known.named:
            return self._named_unusable()
        if other:
            return _made(known.tool or "pip", other, self._instead())
        fetcher = next((name for name in _FETCHERS if name in known.tools), None)
        return self._fetched(known.tool or fetcher)

    # --- the Pythons, each with its build ----------------------------------------------------

    @cached_property
    def own(self) -> _Offer | None:
        """The examined Python; None where there is none that runs."""
        python = self.known.machine.python
        if python.executable is None or python.version is None:
            return None
        base = Base(path=python.executable, version=python.version, pip=python.ensurepip)
        return self._offer(emptied(self.known.machine), base)

    @cached_property
    def others(self) -> list[_Offer]:
        """The other Pythons of this machine."""
        offers = []
        for base in self.known.others:
            machine = emptied(self.known.machine, base.version)
            python = replace(machine.python, executable=base.path, ensurepip=base.pip, kind="user")
            offers.append(self._offer(replace(machine, python=python), base))
        return offers

    @cached_property
    def fetchable(self) -> list[_Offer]:
        """Every Python that torch was ever built for on this platform."""
        machine = self.known.machine
        platform = platform_of(emptied(machine, USUAL))
        builds = self.kb.builds_on(platform) if platform else ()
        versions = {python for build in builds for python in build.pythons if python[-1].isdigit()}
        return [self._offer(emptied(machine, Version(version))) for version in sorted(versions)]

    def _offer(self, machine: Machine, base: Base | None = None) -> _Offer:
        choice = best_build(machine, self.kb, keep=self.known.torch)
        return _Offer(base=base, machine=machine, choice=choice)

    # --- what follows ------------------------------------------------------------------------

    def _from_own(self, own: _Offer, other: _Offer | None) -> Chosen | NoWay:
        """With the machine's own Python: only how its environment gets packages is open."""
        tool, python = self.known.tool, own.machine.python
        if tool == "uv" or own.brings_pip:
            return _made(tool or "pip", own)
        without = say(
            "{python} (Python {version}) cannot create an environment with pip because it "
            "has no ensurepip.",
            python=python.executable,
            version=python.version,
        )
        if tool is None and "uv" in self.known.tools:
            return _made("uv", own, without)
        if other is not None:
            return _made("pip", other, without)
        package = f"python{python_of(own.machine)}-venv"
        template = (
            "Install ensurepip (on Debian or Ubuntu: sudo apt install {package}), or install uv."
        )
        out = say(template, package=package)
        return NoWay(why=(without,), ways_out=(out,), choice=own.choice)

    def _instead(self) -> str:
        """Why the machine's own Python is not taken."""
        if self.own is None:
            return say("The active Python does not work.")
        wanted = f"torch {self.known.torch}" if self.known.torch else "torch"
        version = python_of(self.own.machine)
        return say(
            "No build of {wanted} for this system supports Python {version}.",
            wanted=wanted,
            version=version,
        )

    def _fetched(self, tool: OptStr) -> Chosen | NoWay:
        """With a Python that the tool brings: this machine's version where it fits."""
        if self.own and self.own.build:
            return _made(tool or "pip", replace(self.own, base=None))
        found = _best(self.fetchable, self.near)
        if found is None:
            return self._nothing()
        version = python_of(found.machine)
        if tool is None:
            template = "Install Python {version}, or install uv, which downloads Python for you."
            return self._nothing(say(template, version=version))
        return _made(tool, found, self._instead())

    def _named_unusable(self) -> NoWay:
        """A Python that was named is not changed for another behind the user's back."""
        found = _best([*self.others, *self.fetchable], self.near)
        if found is None:
            return self._nothing()
        version = python_of(found.machine)
        template = "Specify Python {version} with --python, or omit --python."
        return self._nothing(say(template, version=version))

    def _nothing(self, *ways_out: str) -> NoWay:
        if self.own is None:
            return NoWay(
                why=(say("No working Python was found on this system."),), ways_out=ways_out
            )
        choice = self.own.choice
        others = (alternative.text for alternative in choice.alternatives)
        return NoWay(why=choice.why, ways_out=(*others, *ways_out), choice=choice)


def _is_newer(offer: _Offer | None, own: _Offer) -> bool:
    """Whether another Python would get a newer torch, and one that is known to exist."""
    if offer is None or offer.build is None or own.build is None:
        return False
    return bool(offer.build.published) and offer.build.torch > own.build.torch


def _best(offers: list[_Offer], near: Version) -> _Offer | None:
    """The newest torch; of several Pythons for it one that brings pip, nearest to this version.

    What is known to exist comes before what is only announced.
    """

    def rank(offer: _Offer) -> tuple[bool, Version, bool, int, Version]:
        build, version = offer.build, offer.machine.python.version
        assert build is not None
        assert version is not None
        nearness = -abs(version.minor - near.minor)
        return build.published is True, build.torch, offer.brings_pip, nearness, version

    return max((offer for offer in offers if offer.build), key=rank, default=None)


def _made(tool: str, offer: _Offer, *because: str) -> Chosen:
    base, machine, choice = offer.base, offer.machine, offer.choice
    return Chosen(tool=tool, base=base, machine=machine, choice=choice, because=because)


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


def tools(host: Host) -> dict[str, str]:
    """Names and paths of the install tools that are there and make environments."""
    found = {tool.name: _program(host, tool) for tool in TOOLS if tool.new}
    return {name: path for name, path in found.items() if path}


def found(host: Host) -> tuple[Base, ...]:
    """Every Python that answers, each program once, the first place first."""
    seen: dict[str, Base] = {}
    for path in _places(host):
        real = host.stat(path).real
        if real and real not in seen and len(seen) < MOST_ASKED:
            ran = host.run(path, "-I", "-c", _QUESTION, timeout_s=ASKING_S)
            if base := parse_answer(ran.stdout, path):
                seen[real] = base
    return tuple(seen.values())


def parse_answer(answer: str, path: str) -> Base | None:
    """A Python from its answer; None for those that torch has no wheels for anyway."""
    read = _ANSWER.match(answer)
    return Base(path=path, version=Version(read[1]), pip=read[2] == "1") if read else None


def _places(host: Host) -> Iterator[str]:
    """Where Pythons lie: PATH, pyenv, uv, the launcher and installer of Windows, Homebrew."""
    windows = host.system == "Windows"
    launcher = host.which("py") if windows else None
    if launcher:
        # What the launcher of Windows knows: `py -0p` prints a tag and a path a line.
        yield from launched(host.run(launcher, "-0p", timeout_s=ASKING_S).stdout)
    on_path = (*children.path_folders(host.env.get("PATH", "")), "/usr/bin", "/usr/local/bin")
    places = [
        join(folder, name + (".exe" if windows else ""))
        for folder in on_path
        # A shim answers for whatever is set where it is called: behind it are pyenv's own folders.
        if not folder.rstrip("/\\").endswith("shims")
        for name in _NAMES
    ]
    program = ("python.exe",) if windows else ("bin", "python3")
    for folder in _kept(host):
        places += [join(folder, name, *program) for name in reversed(host.listing(folder).names)]
    yield from (path for path in places if host.stat(path).exists)


def _kept(host: Host) -> list[str]:
    """Folders of which each holds many Pythons: of pyenv, of uv, of python.org's installer."""
    env = host.env
    home = _home(host)
    folders = (
        (env.get("PYENV_ROOT") or (home and join(home, ".pyenv")), "versions"),
        (env.get("UV_PYTHON_INSTALL_DIR"), ""),
        (home, ".local/share/uv/python"),
        (env.get("APPDATA"), "uv/python"),
        (env.get("LOCALAPPDATA"), "Programs/Python"),
    )
    return [join(root, *below.split("/")) for root, below in folders if root]


def launched(text: str) -> list[str]:
    """The paths in what `py -0p` says."""
    found = [_LAUNCHED.fullmatch(line.strip()) for line in text.splitlines()]
    return list(dict.fromkeys(match[1] for match in found if match))


def _home(host: Host) -> OptStr:
    return host.env.get("HOME") or host.env.get("USERPROFILE")


def _program(host: Host, tool: Tool) -> OptStr:
    """By the tool's own variable, on PATH, or under the home."""
    home = _home(host)
    places = [host.env.get(name[1:]) for name in tool.found if name.startswith("$")]
    places += map(host.which, tool.programs)
    places += [join(home, name) for name in tool.found if "/" in name and home]
    # A relative one would be a file of the current folder.
    return next((path for path in places if path and isabs(path) and host.stat(path).exists), None)
