"""CUDA toolkits on this machine, and the one that a build of a torch extension would take."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from packaging.version import Version

from cudadoctor.host import children
from cudadoctor.host.local import Host
from cudadoctor.model.machine import Distribution, Toolkit
from cudadoctor.model.versions import version_of
from cudadoctor.probes import Looked, Notes

NVCC_S = 5.0

_PATTERNS = (
    "/usr/local/cuda*",
    "/opt/cuda*",
    "/usr/lib/cuda",
    "/usr/lib/nvidia-cuda-toolkit",
    "/opt/nvidia/hpc_sdk/Linux_*/*/cuda/[0-9]*",
)
_HEADERS = (
    "include/cuda_runtime_api.h",
    "include/cuda.h",
    "targets/x86_64-linux/include/cuda_runtime_api.h",
    "targets/sbsa-linux/include/cuda_runtime_api.h",
)
_DEFINED = re.compile(r"^#define CUDA(?:RT)?_VERSION +(\d{1,9})\b", re.M)


_HANDS_OVER = re.compile(
    rb"#![^\n]*sh[ \t\r]*\n(?:[ \t]*(?:#[^\n]*|\r)?\n)*exec \"?/[\w./+-]+/nvcc\"? \"\$@\"\s*"
)
"""A script that is one nvcc under another name."""


class _Place(NamedTuple):
    """A folder that may hold a toolkit. nvcc: the program that led here."""

    folder: str
    origin: str
    nvcc: str | None = None


def read_toolkits(  # noqa: PLR0917
    host: Host,
    env: Mapping[str, str],
    conda_prefix: str | None,
    site_packages: tuple[str, ...],
    packages: tuple[Distribution, ...] | None,
    fast: bool,
    compiles: tuple[str, ...] = (),
) -> Looked:
    """All toolkits, which one torch would build with, the C++ compiler, and who needs them.

    compiles: packages that are known to call nvcc while a program runs.

    env: the environment that the examined interpreter's programs run with. fast: read versions
    from files and run nvcc only where no file tells.
    """
    notes = Notes()
    found = _Toolkits(host, fast)
    for place in _places(host, env, conda_prefix, site_packages):
        found.add(place)
    toolkits = found.all()
    notes.fact("build.toolkits", toolkits, "CUDA_HOME, PATH and the usual folders")
    for index, one in enumerate(toolkits):
        if one.cuda is None:
            why = found.why.get(one.path, "no file of it tells its CUDA version")
            notes.gap(f"build.toolkits.{index}.cuda", why)
    _note_used(notes, host, env, found)
    note_compiler(notes, host, env, fast)
    needed_by = _needed_by(host, site_packages, packages, compiles)
    notes.fact("build.needed_by", needed_by, "installed packages")
    return notes.looked()


def _note_used(notes: Notes, host: Host, env: Mapping[str, str], found: _Toolkits) -> None:
    """torch's own search: CUDA_HOME, CUDA_PATH, nvcc on PATH, /usr/local/cuda."""
    name = "CUDA_HOME" if env.get("CUDA_HOME") else "CUDA_PATH"
    home = env.get(name, "")
    exists = bool(home) and host.stat(home).is_dir
    notes.fact("build.cuda_home", home, name if home else "environment")
    notes.fact("build.cuda_home_exists", exists, name if home else "environment")
    programs = tuple(_programs(env, host))
    if home:
        used, source = (found.path_of(home) if exists else home), name
    elif programs:
        used, source = found.path_of(_home_of(host, programs[0])), f"{programs[0]} on PATH"
    elif host.stat("/usr/local/cuda").exists:
        used, source = found.path_of("/usr/local/cuda"), "/usr/local/cuda"
    else:
        used, source = "", "CUDA_HOME, CUDA_PATH, PATH and /usr/local/cuda"
    notes.fact("build.used", used, source)


class _Toolkits:
    """Toolkits by their real folder: the first way that led to one names its origin."""

    def __init__(self, host: Host, fast: bool) -> None:
        self.host = host
        self.fast = fast
        self.why: dict[str, str] = {}
        self._found: dict[str, Toolkit] = {}

    def all(self) -> tuple[Toolkit, ...]:
        return tuple(self._found.values())

    def path_of(self, folder: str) -> str:
        """The path under which the toolkit in a folder stands among the facts."""
        return self.host.stat(folder).real or folder

    def add(self, place: _Place) -> None:
        path = self.path_of(place.folder)
        if path in self._found or not self.host.stat(path).is_dir:
            return
        nvcc = place.nvcc or self._nvcc(path)
        cuda = self._version(path, nvcc)
        if nvcc or cuda:
            self._found[path] = Toolkit(path=path, origin=place.origin, cuda=cuda, nvcc=nvcc)

    def _nvcc(self, path: str) -> str | None:
        name = f"{path}/bin/nvcc.exe" if self.host.system == "Windows" else f"{path}/bin/nvcc"
        found = self.host.stat(name)
        return name if found.exists and not found.is_dir else None

    def _version(self, path: str, nvcc: str | None) -> Version | None:
        """What nvcc says where it is asked, else what the files of the toolkit say."""
        written = None if self._asks(nvcc) else _written_version(self.host, path)
        if written is not None or nvcc is None:
            return written
        ran = self.host.run(nvcc, "--version", timeout_s=NVCC_S)
        said = parse_nvcc(ran.stdout)
        if said is None:
            self.why[path] = ran.why or f"{nvcc} --version: no release in its answer"
        return said or _written_version(self.host, path)

    def _asks(self, nvcc: str | None) -> bool:
        """A script in the place of nvcc may run any other: only its answer counts.

        Where it does nothing but hand over to one nvcc, a fast look need not run it.
        """
        if nvcc is None or not self.fast:
            return nvcc is not None
        head = self.host.read(nvcc, 1 << 12).data
        return head.startswith(b"#!") and _HANDS_OVER.fullmatch(head) is None


def parse_nvcc(text: str) -> Version | None:
    """The CUDA release of what `nvcc --version` prints."""
    found = re.search(r"release (\d+\.\d+)", text)
    return version_of(found[1]) if found else None


def _written_version(host: Host, path: str) -> Version | None:
    """From version.json (11.1 and later), version.txt (before) or the headers."""
    named = _json_version(host.read(f"{path}/version.json", 1 << 16).text)
    if named is None:
        old = re.search(r"CUDA Version (\d+\.\d+)", host.read(f"{path}/version.txt", 1 << 12).text)
        named = old[1] if old else None
    if (version := version_of(named)) is not None:
        return version
    for header in _HEADERS:
        found = _DEFINED.search(host.read(f"{path}/{header}", 1 << 16).text)
        if found:
            number = int(found[1])
            return Version(f"{number // 1000}.{number % 1000 // 10}")
    return None


def _json_version(text: str) -> str | None:
    """The release of nvcc in version.json, else of the whole: patches of nvcc can be newer."""
    try:
        import json

        rows = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return None
    for key in ("cuda_nvcc", "cuda"):
        row = rows.get(key) if isinstance(rows, dict) else None
        version = row.get("version") if isinstance(row, dict) else None
        found = re.match(r"\d+\.\d+", version) if isinstance(version, str) else None
        if found:
            return found[0]
    return None


def _places(
    host: Host, env: Mapping[str, str], conda: str | None, sites: tuple[str, ...]
) -> Iterator[_Place]:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if env.get(name):
            yield _Place(env[name], name)
    for program in _programs(env, host):
        yield _Place(_home_of(host, program), "PATH", program)
    if conda:
        yield _Place(conda, "conda", _existing(host, f"{conda}/bin/nvcc"))
        yield _Place(f"{conda}/Library", "conda", _existing(host, f"{conda}/Library/bin/nvcc.exe"))
    for pattern in _PATTERNS:
        yield from (_Place(folder, "/usr/local") for folder in host.glob(pattern))
    for site in sites:
        names = host.listing(f"{site}/nvidia").names
        wheels = (f"{site}/nvidia/{n}" for n in names if n == "cuda_nvcc" or n.startswith("cu1"))
        yield from (
            _Place(w, "wheel", n) for w in wheels if (n := _existing(host, f"{w}/bin/nvcc"))
        )


def _existing(host: Host, path: str) -> str | None:
    return path if host.stat(path).exists else None


def _programs(env: Mapping[str, str], host: Host) -> Iterator[str]:
    """Every nvcc on PATH, in its order; only what may be executed counts."""
    windows = host.system == "Windows"
    folders = children.path_folders(env.get("PATH", ""), windows=windows)
    for folder in dict.fromkeys(folders[:4096]):
        path = f"{folder.rstrip('/')}/{'nvcc.exe' if windows else 'nvcc'}"
        found = host.stat(path)
        if found.exists and not found.is_dir and (windows or found.mode & 0o111):
            yield path


def _home_of(host: Host, program: str) -> str:
    """The toolkit behind an nvcc: through links and wrapper scripts, then two levels up."""
    for _ in range(4):
        real = host.stat(program).real or program
        head = host.read(real, 1 << 12).data
        if not head.startswith(b"#!"):
            break
        named = re.findall(r"(/[\w./+-]+/nvcc)\b", head.decode("utf-8", "replace"))
        other = next((n for n in named if n != real and host.stat(n).exists), None)
        if other is None:
            break
        program = other
    if not real.endswith(("/nvcc", "\\nvcc.exe", "/nvcc.exe")):
        real = program  # a link to a compiler cache says nothing about the toolkit
    return re.split(r"[/\\][^/\\]*[/\\][^/\\]*$", real)[0] or "/"


def _needed_by(
    host: Host,
    sites: tuple[str, ...],
    packages: tuple[Distribution, ...] | None,
    compiles: tuple[str, ...],
) -> tuple[str, ...]:
    names = {re.sub(r"[-_.]+", "-", one.name).lower() for one in packages or ()}
    for site in sites:
        for name in host.listing(site).names:
            if name.endswith((".dist-info", ".egg-info")):
                names.add(re.sub(r"[-_.]+", "-", name.partition("-")[0]).lower())
    return tuple(one for one in compiles if one in names)


# --- the C++ compiler that torch and nvcc would call for a build --------------------------------

COMPILER_S = 5.0
_LONGEST = 1000
_CACHES = ("ccache", "sccache", "distcc", "icecc")


def note_compiler(notes: Notes, host: Host, env: Mapping[str, str], fast: bool) -> None:
    """Note the compiler: CXX, else c++ and g++ (cl on Windows) on PATH."""
    wanted = _wanted_compiler(env)
    names = (wanted,) if wanted else ("cl",) if host.system == "Windows" else ("c++", "g++")
    path = next((found for name in names if (found := host.which(name))), None)
    source = "CXX" if wanted else "PATH"
    notes.fact("build.compiler.present", path is not None, source)
    if path is None:
        notes.fact("build.compiler.name", wanted, source)
        return
    notes.fact("build.compiler.path", path, source)
    real = host.stat(path).real or path
    name, version = _compiler_read(host, real) if fast else _compiler_asked(host, path)
    notes.fact("build.compiler.name", name or family(real) or family(path))
    notes.fact("build.compiler.version", version)
    if version is None:
        why = "its version is asked without --fast" if fast else f"{path} did not tell its version"
        notes.gap("build.compiler.version", why, asked=not fast)


def _wanted_compiler(env: Mapping[str, str]) -> str | None:
    """The program in CXX, which may stand behind a compiler cache and before options."""
    try:
        words = shlex.split(env.get("CXX", ""))
    except ValueError:
        words = env.get("CXX", "").split()
    words = [word for word in words if word.rpartition("/")[2] not in _CACHES]
    return words[0] if words else None


def family(path: str) -> str | None:
    """g++, clang++, icpx or cl, from the name of the program."""
    name = path.replace("\\", "/").rpartition("/")[2].removesuffix(".exe")
    found = re.search(r"(clang\+\+|clang|g\+\+|gcc|icpx|nvc\+\+|cl)(?:-[\d.]+)?$", name)
    return found[1] if found else None


def parse_version(text: str) -> tuple[str | None, Version | None]:
    """Family and version of what `c++ --version` (or cl without arguments) prints."""
    first = text.partition("\n")[0][:_LONGEST]
    clang = re.search(r"clang version (\d+(?:\.\d+)*)", first)
    if clang:
        return "clang++", version_of(clang[1])
    msvc = re.search(r"Microsoft .* Version (\d+(?:\.\d+)+)", first)
    if msvc:
        return "cl", version_of(msvc[1])
    # The distribution's own numbers stand in brackets before the version: it comes last.
    gcc = re.search(r"\) (\d+\.\d+(?:\.\d+)?)", first) or re.search(r"\b(\d+\.\d+\.\d+)", first)
    return ("g++" if gcc else None), (version_of(gcc[1]) if gcc else None)


def _compiler_asked(host: Host, path: str) -> tuple[str | None, Version | None]:
    if host.system == "Windows":
        ran = host.run(path, timeout_s=COMPILER_S)
        return parse_version(ran.stderr or ran.stdout)
    return parse_version(host.run(path, "--version", timeout_s=COMPILER_S).stdout)


def _compiler_read(host: Host, real: str) -> tuple[str | None, Version | None]:
    """The major version, from the name of the program or from gcc's own folder."""
    kind = family(real)
    suffix = re.search(r"\+\+-(\d+(?:\.\d+)?)$", real)
    if suffix:
        return kind, version_of(suffix[1])
    if kind not in ("g++", "gcc") and not real.endswith("/c++"):
        return kind, None
    folders = host.glob(f"{real.rpartition('/bin/')[0]}/lib/gcc/*/[0-9]*")
    majors = {folder.rpartition("/")[2] for folder in folders}
    only = majors.pop() if len(majors) == 1 else ""
    return "g++", version_of(only) if re.fullmatch(r"\d+(\.\d+)*", only) else None
