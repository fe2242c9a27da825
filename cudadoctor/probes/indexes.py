"""Where pip and uv of this user look for packages: their files and variables, read as they do."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping

# Paths are texts here: links stay unresolved, as the user wrote them.
# ruff: noqa: PTH111, PTH118, PTH120
from os.path import dirname, join
from typing import Any

from cudadoctor.host.local import Host, home_of
from cudadoctor.model.machine import Index, Json, OptStr
from cudadoctor.probes.target import upwards

_SETTING = re.compile(r"([A-Za-z][\w \t-]*)[=:]\s*(.*)")
_KEYS = ("index-url", "extra-index-url", "find-links", "no-index")
_TRUE = {"1", "true", "yes", "on", "y", "t"}
_UV_VARIABLES = {
    "UV_INDEX_URL": "index-url",
    "UV_DEFAULT_INDEX": "index-url",
    "UV_EXTRA_INDEX_URL": "extra-index-url",
    "UV_INDEX": "extra-index-url",
    "UV_FIND_LINKS": "find-links",
    "UV_NO_INDEX": "no-index",
}
"""Of several for one setting the last wins: the newer name."""
_PIP_VARIABLES = {"PIP_" + key.upper().replace("-", "_"): key for key in _KEYS}

_Settings = dict[str, tuple[str, str]]
"""By key, the value and the file or variable that it is from."""


def read_index(host: Host, prefix: str, uv_first: bool) -> Index:
    """The settings of the tool that serves the environment, else of the other one."""
    pip, uv = read_pip(host, prefix), read_uv(host, prefix)
    first, second = (uv, pip) if uv_first else (pip, uv)
    return first if first != Index() or second == Index() else second


def read_pip(host: Host, prefix: str) -> Index:
    """pip's settings. A later file wins, [install] wins over [global], the environment over all."""
    found: _Settings = {}
    texts = {path: host.read(path, 1 << 16).text for path in _pip_files(host, prefix)}
    for section in ("global", "install"):
        for path, text in texts.items():
            found |= {key: (value, path) for key, value in ini_section(text, section).items()}
    return _index(host, found, _PIP_VARIABLES)


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
    found: _Settings = {}
    for path in reversed(tuple(_uv_files(host, prefix))):
        _take_uv(found, _uv_table(host, path) or {}, path)
    return _index(host, found, _UV_VARIABLES)


def _index(host: Host, found: _Settings, variables: Mapping[str, str]) -> Index:
    for variable, key in variables.items():
        if value := host.env.get(variable):
            found[key] = (value, variable)
    (url, _), (extra, _), (links, _), (no_index, off_by) = settings = [
        found.get(key, ("", "")) for key in _KEYS
    ]
    off = no_index.lower() in _TRUE
    origin = next((origin for value, origin in settings[:3] if value), "")
    return Index(
        url=url or None,
        extra=tuple(map(_bare, extra.split())),
        find_links=tuple(links.split()),
        no_index=off,
        origin=(off_by if off else origin) or None,
    )


def _bare(entry: str) -> str:
    """The URL of a uv index, which can have a name: torch=https://..."""
    name, sign, url = entry.partition("=")
    return url if sign and re.fullmatch(r"[\w.-]+", name) else entry


def _home(host: Host) -> str:
    return home_of(host) or os.path.expanduser("~")


def _pip_files(host: Host, prefix: str) -> Iterator[str]:
    given = host.env.get("PIP_CONFIG_FILE")
    if given == os.devnull:
        return
    home, env, mac = _home(host), host.env, host.system == "Darwin"
    if host.system == "Windows":
        name = "pip.ini"
        yield join(env.get("PROGRAMDATA", r"C:\ProgramData"), "pip", name)
        user = (f"{home}/pip/{name}", join(env.get("APPDATA", home), "pip", name))
    else:
        name, library = "pip.conf", "Library/Application Support/pip"
        shared = reversed((env.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":"))
        yield from (f"/{library}/{name}",) if mac else ()
        yield from (f"{folder}/pip/{name}" for folder in shared)
        yield f"/etc/{name}"
        modern = f"{env.get('XDG_CONFIG_HOME') or f'{home}/.config'}/pip"
        if mac and host.stat(f"{home}/{library}").is_dir:
            modern = f"{home}/{library}"
        user = (f"{home}/.pip/{name}", f"{modern}/{name}")
    if not (given and host.stat(given).exists):
        yield from user
    yield join(prefix, name)
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
    yield join(home or join(_home(host), ".config"), "uv", "uv.toml")
    if host.system != "Windows":
        yield from ("/etc/xdg/uv/uv.toml", "/etc/uv/uv.toml")


def _project_file(host: Host, prefix: str) -> OptStr:
    """The nearest file above the environment, of its owner's, with a project's settings for uv."""
    owner = host.stat(prefix).uid
    for folder in upwards(dirname(prefix)):
        for name in ("uv.toml", "pyproject.toml"):
            path = join(folder, name)
            found = host.stat(path)
            if found.exists and found.uid == owner and _uv_table(host, path) is not None:
                return path
    return None


def _uv_table(host: Host, path: str) -> Json | None:
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


def _take_uv(found: _Settings, table: Json, path: str) -> None:
    pip, rows = table.get("pip"), table.get("index")
    for source in (table, pip if isinstance(pip, dict) else {}):
        for key in filter(source.__contains__, _KEYS):
            value = source[key]
            found[key] = (" ".join(map(str, value if isinstance(value, list) else [value])), path)
    for row in rows if isinstance(rows, list) else ():
        # An explicit index serves only the packages that are pinned to it.
        if not isinstance(row, dict) or "url" not in row or row.get("explicit"):
            continue
        if row.get("default"):
            found["index-url"] = (str(row["url"]), path)
        else:
            before = found.get("extra-index-url", ("", path))[0]
            found["extra-index-url"] = (f"{before} {row['url']}".strip(), path)
