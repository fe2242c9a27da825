"""CUDA toolkits on this machine, and the one that a build of a torch extension would take."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from cudadoctor.host import children
from cudadoctor.host.children import Environment
from cudadoctor.host.local import Host, existing
from cudadoctor.model.machine import Distribution, Json, OptStr, OptVersion, Strings, Toolkit
from cudadoctor.model.versions import cuda_from_int, version_of
from cudadoctor.probes import Looked, extract
from cudadoctor.probes.target import programs

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
_DEFINED = re.compile(r"(?m)^#define CUDA(?:RT)?_VERSION +(\d{1,9})\b")


_HANDS_OVER = re.compile(
    rb"#![^\n]*sh[ \t\r]*\n(?:[ \t]*(?:#[^\n]*|\r)?\n)*exec \"?/[\w./+-]+/nvcc\"? \"\$@\"\s*"
)
"""A script that is one nvcc under another name."""


class _Place(NamedTuple):
    """A folder that may hold a toolkit. nvcc: the program that led here."""

    folder: str
    origin: str
    nvcc: OptStr = None


def read_toolkits(  # noqa: PLR0917
    host: Host,
    env: Environment,
    conda_prefix: OptStr,
    site_packages: Strings,
    packages: tuple[Distribution, ...] | None,
    fast: bool,
    compiles: Strings = (),
) -> Looked:
    """All toolkits, which one torch would build with, the C++ compiler, and who needs them.

    compiles: packages that are known to call nvcc while a program runs.

    env: the environment that the examined interpreter's programs run with. fast: read versions
    from files and run nvcc only where no file tells.
    """
    notes = Looked()
    why: dict[str, str] = {}
    toolkits = _toolkits(host, _places(host, env, conda_prefix, site_packages), fast, why)
    notes.fact("build.toolkits", toolkits, "CUDA_HOME, PATH and the usual folders")
    for index, toolkit in enumerate(toolkits):
        if toolkit.cuda is None:
            reason = why.get(
                toolkit.path, "none of the files in the CUDA toolkit shows the toolkit's version"
            )
            notes.gap(f"build.toolkits.{index}.cuda", reason)
    _note_used(notes, host, env)
    note_compiler(notes, host, env, fast)
    names = [package.name for package in packages or ()]
    for site in site_packages:
        infos = (
            name for name in host.listing(site).names if name.endswith((".dist-info", ".egg-info"))
        )
        names += (info.partition("-")[0] for info in infos)
    here = {re.sub(r"[-_.]+", "-", name).lower() for name in names}
    needed_by = tuple(name for name in compiles if name in here)
    notes.fact("build.needed_by", needed_by, "installed packages")
    return notes


def _note_used(notes: Looked, host: Host, env: Environment) -> None:
    """torch's own search: CUDA_HOME, CUDA_PATH, nvcc on PATH, /usr/local/cuda."""
    name = "CUDA_HOME" if env.get("CUDA_HOME") else "CUDA_PATH"
    home = env.get(name, "")
    exists = bool(home) and host.stat(home).is_dir
    source = name if home else "environment"
    notes.section("build", source, cuda_home=home, cuda_home_exists=exists)
    on_path = () if home else tuple(_programs(env, host))
    if home:
        used = _real(host, home) if exists else home
    elif on_path:
        used, source = _real(host, _home_of(host, on_path[0])), f"{on_path[0]} on PATH"
    elif host.stat("/usr/local/cuda").exists:
        used, source = _real(host, "/usr/local/cuda"), "/usr/local/cuda"
    else:
        used, source = "", "CUDA_HOME, CUDA_PATH, PATH and /usr/local/cuda"
    notes.fact("build.used", used, source)


def _real(host: Host, path: str) -> str:
    """The path under which a toolkit stands among the facts, or a program: behind all links."""
    return host.stat(path).real or path


def _toolkits(
    host: Host, places: Iterator[_Place], fast: bool, why: dict[str, str]
) -> tuple[Toolkit, ...]:
    """Toolkits by their real folder: the first way that led to one names its origin.

    why: of those whose nvcc does not tell its version, by folder.
    """
    known = {}
    for place in places:
        path = _real(host, place.folder)
        if path in known or not host.stat(path).is_dir:
            continue
        program = f"{path}/bin/nvcc.exe" if host.system == "Windows" else f"{path}/bin/nvcc"
        there = host.stat(program)
        nvcc = place.nvcc or (program if there.exists and not there.is_dir else None)
        cuda = _version(host, path, nvcc, fast, why)
        if nvcc or cuda:
            known[path] = Toolkit(path=path, origin=place.origin, cuda=cuda, nvcc=nvcc)
    return tuple(known.values())


def _version(host: Host, path: str, nvcc: OptStr, fast: bool, why: dict[str, str]) -> OptVersion:
    """What nvcc says where it is asked, else what the files of the toolkit say.

    A script in the place of nvcc may run any other: only its answer counts. Where it does
    nothing but hand over to one nvcc, a fast look need not run it.
    """
    asks = nvcc is not None
    if nvcc and fast:
        head = host.read(nvcc, 1 << 12).data
        asks = head.startswith(b"#!") and _HANDS_OVER.fullmatch(head) is None
    written = None if asks else _written_version(host, path)
    if written is not None or nvcc is None:
        return written
    ran = host.run(nvcc, "--version", timeout_s=NVCC_S)
    release = parse_nvcc(ran.stdout)
    if release is None:
        why[path] = ran.why or f"the output of {nvcc} --version contains no version number"
    return release or _written_version(host, path)


def parse_nvcc(text: str) -> OptVersion:
    """The CUDA release of what `nvcc --version` prints."""
    return version_of(extract(r"release (\d+\.\d+)", text))


def _written_version(host: Host, path: str) -> OptVersion:
    """From version.json (11.1 and later), version.txt (before) or the headers."""
    named = _json_version(host.read(f"{path}/version.json", 1 << 16).text)
    if named is None:
        named = extract(r"CUDA Version (\d+\.\d+)", host.read(f"{path}/version.txt", 1 << 12).text)
    if (version := version_of(named)) is not None:
        return version
    texts = (host.read(f"{path}/{header}", 1 << 16).text for header in _HEADERS)
    found = next(filter(None, (extract(_DEFINED, text) for text in texts)), None)
    return cuda_from_int(int(found)) if found else None


class _Row(msgspec.Struct):
    version: str = ""


def _json_version(text: str) -> OptStr:
    """The release of nvcc in version.json, else of the whole: patches of nvcc can be newer."""
    rows: Json = {}
    with suppress(ValueError, RecursionError):
        rows = msgspec.json.decode(text, type=dict[str, Any])
    for key in ("cuda_nvcc", "cuda"):
        with suppress(ValueError):
            found = re.match(r"\d+\.\d+", msgspec.convert(rows.get(key), _Row).version)
            if found:
                return found[0]
    return None


def _places(host: Host, env: Environment, conda: OptStr, sites: Strings) -> Iterator[_Place]:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if env.get(name):
            yield _Place(env[name], name)
    for program in _programs(env, host):
        yield _Place(_home_of(host, program), "PATH", program)
    for root, program in ((conda, "bin/nvcc"), (f"{conda}/Library", "bin/nvcc.exe")):
        if conda and root:
            yield _Place(root, "conda", existing(host, (f"{root}/{program}",)))
    for pattern in _PATTERNS:
        yield from (_Place(folder, "/usr/local") for folder in host.glob(pattern))
    for site in sites:
        for name in host.listing(f"{site}/nvidia").names:
            ours = name == "cuda_nvcc" or name.startswith("cu1")
            wheel = f"{site}/nvidia/{name}"
            if ours and (nvcc := existing(host, (f"{wheel}/bin/nvcc",))):
                yield _Place(wheel, "wheel", nvcc)


def _programs(env: Environment, host: Host) -> Iterator[str]:
    windows = host.system == "Windows"
    folders = children.path_folders(env.get("PATH", ""), windows=windows)
    return programs(host, "nvcc.exe" if windows else "nvcc", folders)


def _home_of(host: Host, program: str) -> str:
    """The toolkit behind an nvcc: through links and wrapper scripts, then two levels up."""
    for _ in range(4):
        real = _real(host, program)
        head = host.read(real, 1 << 12)
        script = head.text if head.data.startswith(b"#!") else ""
        named = (path for path in re.findall(r"(/[\w./+-]+/nvcc)\b", script) if path != real)
        other = existing(host, named)
        if other is None:
            break
        program = other
    if not real.endswith(("/nvcc", "\\nvcc.exe", "/nvcc.exe")):
        real = program  # a link to a compiler cache says nothing about the toolkit
    return re.split(r"[/\\][^/\\]*[/\\][^/\\]*$", real)[0] or "/"


# --- the C++ compiler that torch and nvcc would call for a build --------------------------------

COMPILER_S = 5.0
_LONGEST = 1000
_CACHES = ("ccache", "sccache", "distcc", "icecc")


def note_compiler(notes: Looked, host: Host, env: Environment, fast: bool) -> None:
    """Note the compiler: CXX, else c++ and g++ (cl on Windows) on PATH."""
    try:
        words = shlex.split(env.get("CXX", ""))
    except ValueError:
        words = env.get("CXX", "").split()
    # The program in CXX may stand behind a compiler cache and before options.
    wanted = next((word for word in words if word.rpartition("/")[2] not in _CACHES), None)
    names = (wanted,) if wanted else ("cl",) if host.system == "Windows" else ("c++", "g++")
    path = next(filter(None, map(host.which, names)), None)
    source = "CXX" if wanted else "PATH"
    if path is None:
        notes.section("build.compiler", source, present=False, name=wanted)
        return
    notes.section("build.compiler", source, present=True, path=path)
    real = _real(host, path)
    name, version = _compiler_read(host, real) if fast else _compiler_asked(host, path)
    name = name or family(real) or family(path)
    notes.fact("build.compiler.name", name)
    why = (
        "the compiler version is not checked with --fast"
        if fast
        else f"{path} did not report its version"
    )
    notes.fact("build.compiler.version", version, None, why, asked=not fast)


def family(path: str) -> OptStr:
    """g++, clang++, icpx or cl, from the name of the program."""
    name = path.replace("\\", "/").rpartition("/")[2].removesuffix(".exe")
    return extract(r"(clang\+\+|clang|g\+\+|gcc|icpx|nvc\+\+|cl)(?:-[\d.]+)?$", name)


def parse_version(text: str) -> tuple[OptStr, OptVersion]:
    """Family and version of what `c++ --version` (or cl without arguments) prints."""
    first = text.partition("\n")[0][:_LONGEST]
    for name, pattern in COMPILER_VERSIONS:
        if found := extract(pattern, first):
            return name, version_of(found)
    return None, None


COMPILER_VERSIONS = (
    ("clang++", r"clang version (\d+(?:\.\d+)*)"),
    ("cl", r"Microsoft .* Version (\d+(?:\.\d+)+)"),
    # The distribution's own numbers stand in brackets before the version: it comes last.
    ("g++", r"\) (\d+\.\d+(?:\.\d+)?)"),
    ("g++", r"\b(\d+\.\d+\.\d+)"),
)


def _compiler_asked(host: Host, path: str) -> tuple[OptStr, OptVersion]:
    options = () if host.system == "Windows" else ("--version",)
    ran = host.run(path, *options, timeout_s=COMPILER_S)
    return parse_version(ran.stdout if options else ran.stderr or ran.stdout)


def _compiler_read(host: Host, real: str) -> tuple[OptStr, OptVersion]:
    """The major version, from the name of the program or from gcc's own folder."""
    kind = family(real)
    if suffix := extract(r"\+\+-(\d+(?:\.\d+)?)$", real):
        return kind, version_of(suffix)
    if kind not in ("g++", "gcc") and not real.endswith("/c++"):
        return kind, None
    folders = host.glob(f"{real.rpartition('/bin/')[0]}/lib/gcc/*/[0-9]*")
    majors = {folder.rpartition("/")[2] for folder in folders}
    only = majors.pop() if len(majors) == 1 else ""
    return "g++", version_of(only) if re.fullmatch(r"\d+(\.\d+)*", only) else None
