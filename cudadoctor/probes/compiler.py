"""The C++ compiler that torch and nvcc would call for a build."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from packaging.version import Version

from cudadoctor.host.local import Host
from cudadoctor.model.versions import version_of
from cudadoctor.probes import Notes

COMPILER_S = 5.0
_LONGEST = 1000
_CACHES = ("ccache", "sccache", "distcc", "icecc")


def note_compiler(notes: Notes, host: Host, env: Mapping[str, str], fast: bool) -> None:
    """Note the compiler: CXX, else c++ and g++ (cl on Windows) on PATH."""
    wanted = _wanted(env)
    names = (wanted,) if wanted else ("cl",) if host.system == "Windows" else ("c++", "g++")
    path = next((found for name in names if (found := host.which(name))), None)
    source = "CXX" if wanted else "PATH"
    notes.fact("build.compiler.present", path is not None, source)
    if path is None:
        notes.fact("build.compiler.name", wanted, source)
        return
    notes.fact("build.compiler.path", path, source)
    real = host.stat(path).real or path
    name, version = _read(host, real) if fast else _asked(host, path)
    notes.fact("build.compiler.name", name or family(real) or family(path))
    notes.fact("build.compiler.version", version)
    if version is None:
        why = "its version is asked without --fast" if fast else f"{path} did not tell its version"
        notes.gap("build.compiler.version", why, asked=not fast)


def _wanted(env: Mapping[str, str]) -> str | None:
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


def _asked(host: Host, path: str) -> tuple[str | None, Version | None]:
    if host.system == "Windows":
        ran = host.run(path, timeout_s=COMPILER_S)
        return parse_version(ran.stderr or ran.stdout)
    return parse_version(host.run(path, "--version", timeout_s=COMPILER_S).stdout)


def _read(host: Host, real: str) -> tuple[str | None, Version | None]:
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
