"""What inside/look.py tells, typed: its lines in, values out."""

from __future__ import annotations

from typing import Union

import msgspec


class Line(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """The base of all lines; `kind` says which one it is."""


class PythonLine(Line, frozen=True, kw_only=True, tag="python"):
    """The interpreter itself. pyvenv: text of its pyvenv.cfg, None where there is none."""

    executable: str
    version: str
    implementation: str
    free_threaded: bool
    bits: int
    prefix: str
    base_prefix: str
    site_packages: str
    user_site: str
    pyvenv: str | None
    conda: bool
    conda_base: bool
    embedded: bool
    externally_managed: bool
    abi: str | None
    headers: bool
    ensurepip: bool
    env_free_bytes: int | None


class PathLine(Line, frozen=True, kw_only=True, tag="path"):
    """The path of the user's programs: (folder, cwd | PYTHONPATH | user | own).

    nowhere: the working folder was deleted.
    """

    entries: tuple[tuple[str, str], ...]
    nowhere: bool = False


class DistLine(Line, frozen=True, kw_only=True, tag="dist"):
    """A distribution. folder: its dist-info. texts: small files that tell what it was built for."""

    name: str
    version: str
    entry: str
    folder: str
    installer: str
    requires: tuple[str, ...]
    texts: dict[str, str | None]


class DistFolder(msgspec.Struct, frozen=True, kw_only=True):
    """A dist-info of torch that stands beside a copy of it."""

    folder: str
    version: str


class CopyLine(Line, frozen=True, kw_only=True, tag="copy"):
    """A folder of the path that holds something named torch, or torch's dist-info.

    shape: package, module (torch.py), remains (a package without __init__.py), "" (nothing).
    text: its version.py.
    """

    path: str
    entry: str
    origin: str
    shape: str
    dists: tuple[DistFolder, ...]
    text: str | None
    lib: bool


class LeftoversLine(Line, frozen=True, kw_only=True, tag="leftovers"):
    """What a killed pip left in a folder of the path."""

    entry: str
    names: tuple[str, ...]


class CondaLine(Line, frozen=True, kw_only=True, tag="conda"):
    """File names of conda's records: name-version-build.json."""

    folder: str
    records: tuple[str, ...]


class PipLine(Line, frozen=True, kw_only=True, tag="pip"):
    """pip can be imported from this folder."""

    entry: str


class ShadowsLine(Line, frozen=True, kw_only=True, tag="shadows"):
    """Files of the working folder with the names of modules that torch imports."""

    files: tuple[str, ...]


class EndLine(Line, frozen=True, kw_only=True, tag="end"):
    """Nothing was cut off."""


_ANY = Union[  # noqa: UP007
    PythonLine,
    PathLine,
    DistLine,
    CopyLine,
    LeftoversLine,
    CondaLine,
    PipLine,
    ShadowsLine,
    EndLine,
]


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """All that came. complete False: it was cut off by a crash, a hang or a flood."""

    python: PythonLine | None = None
    path: tuple[tuple[str, str], ...] = ()
    nowhere: bool = False
    dists: tuple[DistLine, ...] = ()
    copies: tuple[CopyLine, ...] = ()
    leftovers: tuple[str, ...] = ()
    conda: CondaLine | None = None
    pip: bool = False
    shadows: tuple[str, ...] | None = None
    complete: bool = False


def parse(stdout: str) -> Told:
    """The lines among whatever else the interpreter printed."""
    decoder = msgspec.json.Decoder(_ANY)
    lines: list[Line] = []
    for text in stdout.splitlines():
        if not text.startswith('{"kind": '):
            continue
        try:
            lines.append(decoder.decode(text))
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            continue
    return Told(
        python=next((one for one in lines if isinstance(one, PythonLine)), None),
        path=next((one.entries for one in lines if isinstance(one, PathLine)), ()),
        nowhere=any(isinstance(one, PathLine) and one.nowhere for one in lines),
        dists=tuple(one for one in lines if isinstance(one, DistLine)),
        copies=tuple(one for one in lines if isinstance(one, CopyLine)),
        leftovers=tuple(n for one in lines if isinstance(one, LeftoversLine) for n in one.names),
        conda=next((one for one in lines if isinstance(one, CondaLine)), None),
        pip=any(isinstance(one, PipLine) for one in lines),
        shadows=next((one.files for one in lines if isinstance(one, ShadowsLine)), None),
        complete=any(isinstance(one, EndLine) for one in lines),
    )
