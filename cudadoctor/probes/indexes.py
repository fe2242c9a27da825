"""Where pip and uv of this user look for packages: their files and variables, read as they do."""

from __future__ import annotations

# Paths are texts here: links stay unresolved, as the user wrote them.
# ruff: noqa: PTH111, PTH118, PTH120
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

from cudadoctor.host.local import Host
from cudadoctor.model.machine import Index
from cudadoctor.probes.target import upwards

_SETTING = re.compile(r"([A-Za-z][\w \t-]*)[=:]\s*(.*)")
_KEYS = ("index-url", "extra-index-url", "find-links", "no-index")
_TRUE = {"1", "true", "yes", "on", "y", "t"}


def read_index(host: Host, prefix: str, uv_first: bool) -> Index:
    """The settings of the tool that serves the environment, else of the other one."""
    pip, uv = read_pip(host, prefix), read_uv(host, prefix)
    first, second = (uv, pip) if uv_first else (pip, uv)
    return first if first != Index() or second == Index() else second


def read_pip(host: Host, prefix: str) -> Index:
    """pip's settings. A later file wins, [install] wins over [global], the environment over all."""
    found: dict[str, tuple[str, str]] = {}
    for section in ("global", "install"):
        for path in _pip_files(host, prefix):
            answer = host.read(path, 1 << 16)
            for key, value in ini_section(answer.text, section).items():
                found[key] = (value, path)
    for key in _KEYS:
        name = "PIP_" + key.upper().replace("-", "_")
        if given := host.env.get(name):
            found[key] = (given, name)
    return _index(found)


def ini_section(text: str, section: str) -> dict[str, str]:
    """The settings of one section; indented lines go on with the value before."""
    values: dict[str, str] = {}
    within, key = False, ""
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped or stripped[0] in "#;":
            continue
        if line[0] in " \t" and within and key:
            values[key] = f"{values[key]} {stripped}".strip()
        elif stripped.startswith("["):
            within, key = stripped.strip("[]").strip().lower() == section, ""
        elif within and (setting := _SETTING.match(stripped)):
            key = setting[1].strip().lower().replace("_", "-")
            values[key] = setting[2].strip()
    return values


def read_uv(host: Host, prefix: str) -> Index:
    """uv's settings: the environment, then the project's file, the user's and the system's.

    The project is the one that the environment lies in: a uv.toml of the folder that somebody
    happens to stand in names no index for another environment.
    """
    found: dict[str, tuple[str, str]] = {}
    for path in reversed(tuple(_uv_files(host, prefix))):
        _take_uv(found, _uv_table(host, path), path)
    for key, names in _UV_VARIABLES:
        for name in names:
            if value := host.env.get(name):
                found[key] = (value, name)
    return _index(found)


# Of several variables the last wins: the newer name.
_UV_VARIABLES = (
    ("index-url", ("UV_INDEX_URL", "UV_DEFAULT_INDEX")),
    ("extra-index-url", ("UV_EXTRA_INDEX_URL", "UV_INDEX")),
    ("find-links", ("UV_FIND_LINKS",)),
    ("no-index", ("UV_NO_INDEX",)),
)


def _index(found: dict[str, tuple[str, str]]) -> Index:
    url = found.get("index-url")
    extra = found.get("extra-index-url", ("", ""))
    links = found.get("find-links", ("", ""))
    no_index = found.get("no-index", ("", ""))
    off = no_index[0].lower() in _TRUE
    origin = next((one[1] for one in (url, extra, links) if one and one[0]), None)
    return Index(
        url=url[0] if url and url[0] else None,
        extra=tuple(_bare(one) for one in extra[0].split()),
        find_links=tuple(links[0].split()),
        no_index=off,
        origin=(no_index[1] if off else origin) or None,
    )


def _bare(entry: str) -> str:
    """The URL of a uv index, which can have a name: torch=https://..."""
    name, sign, url = entry.partition("=")
    return url if sign and re.fullmatch(r"[\w.-]+", name) else entry


def _home(host: Host) -> str:
    return host.env.get("HOME") or host.env.get("USERPROFILE") or os.path.expanduser("~")


def _pip_files(host: Host, prefix: str) -> Iterator[str]:
    given = host.env.get("PIP_CONFIG_FILE")
    if given == os.devnull:
        return
    home, env = _home(host), host.env
    if host.system == "Windows":
        yield os.path.join(env.get("PROGRAMDATA", r"C:\ProgramData"), "pip", "pip.ini")
        user = (f"{home}/pip/pip.ini", os.path.join(env.get("APPDATA", home), "pip", "pip.ini"))
    else:
        if host.system == "Darwin":
            yield "/Library/Application Support/pip/pip.conf"
        for folder in reversed((env.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")):
            yield f"{folder}/pip/pip.conf"
        yield "/etc/pip.conf"
        modern = env.get("XDG_CONFIG_HOME") or f"{home}/.config"
        mac = f"{home}/Library/Application Support"
        if host.system == "Darwin" and host.stat(f"{mac}/pip").is_dir:
            modern = mac
        user = (f"{home}/.pip/pip.conf", f"{modern}/pip/pip.conf")
    if not (given and host.stat(given).exists):
        yield from user
    yield os.path.join(prefix, "pip.ini" if host.system == "Windows" else "pip.conf")
    if given:
        yield given


def _uv_files(host: Host, prefix: str) -> Iterator[str]:
    """uv's files, the one that wins first."""
    env = host.env
    if env.get("UV_NO_CONFIG"):
        return
    if given := env.get("UV_CONFIG_FILE"):
        yield given
        return
    if project := _project_file(host, prefix):
        yield project
    home = env.get("APPDATA") if host.system == "Windows" else env.get("XDG_CONFIG_HOME")
    yield os.path.join(home or os.path.join(_home(host), ".config"), "uv", "uv.toml")
    if host.system != "Windows":
        yield from ("/etc/xdg/uv/uv.toml", "/etc/uv/uv.toml")


def _project_file(host: Host, prefix: str) -> str | None:
    """The nearest file above the environment, of its owner's, with a project's settings for uv."""
    owner = host.stat(prefix).uid
    for folder in upwards(os.path.dirname(prefix)):
        for name in ("uv.toml", "pyproject.toml"):
            path = os.path.join(folder, name)
            found = host.stat(path)
            if found.exists and found.uid == owner and _uv_table(host, path) is not None:
                return path
    return None


def _uv_table(host: Host, path: str) -> dict[str, Any] | None:
    """uv's settings in a file; None where it has none. A broken file is uv's own to report."""
    answer = host.read(path)
    project = path.endswith("pyproject.toml")
    if not answer.known or (project and "[tool.uv" not in answer.text):
        return None
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        table: Any = tomllib.loads(answer.text)
        return dict(table["tool"]["uv"] if project else table)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _take_uv(found: dict[str, tuple[str, str]], table: dict[str, Any] | None, path: str) -> None:
    if not table:
        return
    pip = table.get("pip")
    for source in (table, pip if isinstance(pip, dict) else {}):
        for key in _KEYS:
            value = source.get(key)
            if isinstance(value, list):
                found[key] = (" ".join(map(str, value)), path)
            elif value is not None:
                found[key] = (str(value), path)
    rows = table.get("index")
    for row in rows if isinstance(rows, list) else ():
        # An explicit index serves only the packages that are pinned to it.
        if not isinstance(row, dict) or "url" not in row or row.get("explicit"):
            continue
        if row.get("default"):
            found["index-url"] = (str(row["url"]), path)
        else:
            before = found.get("extra-index-url", ("", path))[0]
            found["extra-index-url"] = (f"{before} {row['url']}".strip(), path)
