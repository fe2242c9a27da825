"""Tables that users renew themselves: rows in one file, beside the tables of this package.

A row of the file is new, or names the cells of one of ours that it knows and we do not, or knows
better. A cell that is null or left out says nothing. Only what an update writes can be in it.

The file is data, whoever made it. It is read as a closed list of tables, of columns and of what may
stand in each: a version, a platform, a day. It can name no index and no package that is to be
installed beside those that our tables know, and no text that could act on a shell or a terminal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from cudadoctor.knowledge import tables
from cudadoctor.knowledge.tables import version
from cudadoctor.model.machine import OptStr, Strings
from cudadoctor.model.requirements import SHARED, cut

FORMAT = 1
MOST_BYTES = 16 << 20

Values = dict[str, Any]
Tables = dict[str, Values]

# --- the lists that an update writes ------------------------------------------------------------

KEYS: dict[str, Strings] = {
    "torch.releases": ("torch",),
    "torch.builds": ("torch", "variant", "platform"),
    "pins.pins": ("torch", "platform"),
    "companions.releases": ("package", "version"),
    "companions.pins": ("package", "version"),
    "images.tags": ("cuda", "distro"),
    "conda.conda_forge": ("torch",),
    "libraries.nccl": ("torch",),
    "drivers.toolkits": ("toolkit",),
    "drivers.branches": ("branch",),
}
"""The columns that make a row that row."""


def variant_of(cuda: OptStr) -> str:
    """12.6 is "cu126", none is "cpu"."""
    return "cpu" if cuda is None else f"cu{cuda.replace('.', '')}"


def by_variant(variant: str) -> int:
    """Orders cu92 before cu126; cpu has no number."""
    return int(re.sub(r"\D", "", variant) or 0)


NEVER_NULL: dict[str, Strings] = {
    "torch.releases": ("released", "pythons", "sources"),
    "torch.builds": ("uncertain", "contested", "default", "sources"),
    "pins.pins": ("requires", "sources"),
    "companions.pins": ("requires", "sources"),
    "images.tags": ("flavours", "sources"),
    "conda.conda_forge": ("cuda",),
    "libraries.nccl": ("uncertain", "sources"),
    "drivers.toolkits": ("uncertain", "sources"),
}
"""What is known of every row."""


def newest_first(text: str) -> tuple[int, ...]:
    """Orders versions, the newest first."""
    return tuple([*(-part for part in version(text).release), 0, 0, 0, 0][:4])


ORDER: dict[str, Callable[[Values], Any]] = {
    "torch.releases": lambda row: newest_first(row["torch"]),
    "torch.builds": lambda row: (
        newest_first(row["torch"]),
        row["variant"] == "cpu",
        by_variant(row["variant"]),
        row["platform"],
    ),
    "pins.pins": lambda row: (newest_first(row["torch"]), row["platform"]),
    "companions.releases": lambda row: version(row["version"]),
    "companions.pins": lambda row: version(row["version"]),
    "images.tags": lambda row: (newest_first(row["cuda"]), row["distro"]),
    "conda.conda_forge": lambda row: version(row["torch"]),
    "libraries.nccl": lambda row: version(row["torch"]),
    "drivers.toolkits": lambda row: newest_first(row["toolkit"]),
    "drivers.branches": lambda row: -row["branch"],
}
"""The order of their rows (of a package, where a list has one)."""


def in_order(name: str, rows: Iterable[Values]) -> list[Values]:
    """The rows of a list in its order; packages stay in the order of their first row."""
    rows = list(rows)
    packages = {row.get("package"): place for place, row in reversed([*enumerate(rows)])}
    order = ORDER[name]
    return sorted(rows, key=lambda row: (packages[row.get("package")], order(row)))


# --- what may stand in a file -------------------------------------------------------------------
#
# A pattern is what a text must be as a whole; a list or a dict says what its items must be. A cell
# may be null, which is "not known", unless it is one of those that make the row that row.

_N = r"[0-9]{1,9}"
_RELEASE = rf"{_N}(?:\.{_N}){{1,3}}"
_NUMBER = rf"{_N}(?:\.{_N}){{0,5}}"
_VERSION = rf"{_NUMBER}(?:(?:a|b|rc){_N})?(?:\.post{_N})?(?:\.dev{_N})?"
_CLAUSE = rf"(?:[=!]=(?:{_NUMBER}\.\*|{_VERSION})|[<>]=?{_VERSION}|~={_N}(?:\.{_N}){{1,4}})"
_SPECIFIERS = rf"(?:{_CLAUSE}(?:,{_CLAUSE}){{0,9}})?"
_MARKER = r"(?:; ?[A-Za-z0-9_.,<>=!~ \"'()]{1,200})?"
_LIBRARY = (
    rf"(?:(?:cuda|nvidia)-[a-z0-9-]{{1,60}}|triton)(?:\[[a-z0-9,-]{{1,200}}\])?"
    rf"{_SPECIFIERS}{_MARKER}"
)
_DAY = r"20[0-9]{2}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])"
_PLATFORM = r"(?:linux|windows|macos)_(?:x86_64|aarch64|amd64|arm64)"
_PYTHON = r"any|[23]\.[0-9]{1,2}[t+]?"
_VARIANT = r"cpu|cu[0-9]{2,3}"
_CODE = r"(?:sm|compute)_[0-9]{2,3}[af]?"
_NAME = r"[a-z0-9]+(?:-[a-z0-9]+){0,9}"
_CITED = r"[a-z0-9]{1,30}\.[A-Za-z0-9_.-]{1,60}"
_DRIVER = r"[0-9]{3}(?:\.[0-9]{1,3}){0,2}"
_URL = r"https://[A-Za-z0-9./_~%+#=&?@:-]{1,300}"
_PROSE = r"[^\x00-\x1f\x7f-\x9f]{1,400}"


class _Cells(dict[str, Any]):
    """The columns of a row, and what may stand in each."""


CELLS: dict[str, Any] = {
    "torch.releases": [
        _Cells(
            torch=_RELEASE,
            released=_DAY,
            pythons={_PLATFORM: [_PYTHON]},
            torchvision=_VERSION,
            torchaudio=_VERSION,
            torchtext=_VERSION,
            sources=[_CITED],
        )
    ],
    "torch.builds": [
        _Cells(
            torch=_RELEASE,
            variant=_VARIANT,
            platform=_PLATFORM,
            cuda=_RELEASE,
            toolkit=_RELEASE,
            cudnn=_RELEASE,
            published=bool,
            archs=[_CODE],
            uncertain=bool,
            contested=[_CODE],
            glibc=_RELEASE,
            default=bool,
            bytes=int,
            sources=[_CITED],
        )
    ],
    "pins.pins": [
        _Cells(torch=_RELEASE, platform=_PLATFORM, requires=[_LIBRARY], sources=[_CITED])
    ],
    "companions.releases": [
        _Cells(
            package=_NAME,
            version=_VERSION,
            torch=_SPECIFIERS,
            python=_SPECIFIERS,
            platforms=[rf"any|{_PLATFORM}"],
            pythons=[_PYTHON],
            sources=[_CITED],
        )
    ],
    "companions.pins": [
        _Cells(
            package=_NAME,
            version=_VERSION,
            requires=[rf"{_NAME}{_SPECIFIERS}{_MARKER}"],
            sources=[_CITED],
        )
    ],
    "companions.triton": {_RELEASE: _SPECIFIERS},
    "companions.prebuilt_sources": [_CITED],
    "images.tags": [
        _Cells(
            cuda=_RELEASE,
            distro=r"[a-z]{2,20}[0-9][0-9.]{0,7}",
            flavours=[r"(?:(?:cudnn[0-9]?|tensorrt)-)?(?:base|runtime|devel)"],
            sources=[_CITED],
        )
    ],
    "images.complete_to": _RELEASE,
    "conda.conda_forge": [
        _Cells(
            torch=_RELEASE,
            cuda=[r"(?:linux_64|linux_aarch64|win_64):[0-9]{1,2}\.[0-9]{1,2}"],
        )
    ],
    "conda.conda_forge_sources": [_CITED],
    "libraries.nccl": [
        _Cells(
            torch=_RELEASE,
            default_variant=_VARIANT,
            default=_RELEASE,
            variants={_VARIANT: _RELEASE},
            bundled=_RELEASE,
            uncertain=bool,
            sources=[_CITED],
        )
    ],
    "drivers.toolkits": [
        _Cells(
            toolkit=_RELEASE,
            linux=_DRIVER,
            windows=_DRIVER,
            bundled=_DRIVER,
            uncertain=bool,
            sources=[_CITED],
        )
    ],
    "drivers.branches": [
        _Cells(branch=int, cuda=_RELEASE, current=bool, note=_PROSE, sources=[_CITED])
    ],
    "sources.sources": {_CITED: _Cells(title=_PROSE, url=_URL, date=r"[0-9a-z -]{4,40}")},
}
"""Each part that an update writes, and what may stand in it."""
TABLES = tuple(dict.fromkeys(name.partition(".")[0] for name in CELLS))


T = TypeVar("T")


class BadFile(ValueError):  # noqa: N818 - the user's, not ours
    """A file of tables that cannot be used: why, as the end of a sentence."""


class Renewed(Struct, frozen=True):
    """What a file holds. collected: the day on which the package index was read."""

    collected: str
    tables: Tables


class _Ours(dict[str, Values]):
    """Our own tables that a file can renew, each read when it is first asked for."""

    def __missing__(self, name: str) -> Values:
        return self.setdefault(name, tables.packaged(name, dict[str, Any]))

    def __contains__(self, name: object) -> bool:
        return name in TABLES


def packaged() -> Tables:
    """The same, all of them."""
    ours = _Ours()
    return {name: ours[name] for name in TABLES}


def use(data: bytes, *, signed: bool) -> bool:
    """From now on, our tables with what a file says; False where ours are newer. Raises BadFile.

    signed: what comes of it was checked as a whole when the file was written.
    """
    own = _Ours()
    file = read(data, own)
    if file.collected < own["torch"]["collected"]:
        return False
    found = merged(own, file)
    if not signed:
        _sign({**packaged(), **found})
    tables.RENEWED.update(found)
    return True


def sign(data: bytes, own: Tables) -> None:
    """Whether a file can be used, and what comes of it holds together. Raises BadFile."""
    _sign({**own, **merged(own, read(data, own))})


def _sign(whole: Tables) -> None:
    for problem in problems(whole):
        raise BadFile(problem)


class _File(Struct, forbid_unknown_fields=True):
    format: int
    cudadoctor: str
    collected: str
    tables: Tables


class _Head(Struct):
    format: int
    cudadoctor: str


def read(data: bytes, own: Tables) -> Renewed:
    """The rows of a file, each checked against what its cells may hold and against our own tables.

    Raises BadFile.
    """
    head = _decoded(data, _Head)
    if head.format != FORMAT:
        raise BadFile("it has the format of another cudadoctor version")
    file = _decoded(data, _File)
    _check(file.collected, _DAY, "collected")
    for table, parts in file.tables.items():
        if table not in TABLES:
            raise BadFile(f"{_shown(table)} is not a table that can be updated")
        for part, value in parts.items():
            _check_part(f"{table}.{part}", value)
    _check_against(file.tables, own)
    return Renewed(file.collected, file.tables)


def _decoded(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (ValueError, RecursionError) as error:
        raise BadFile("`cudadoctor update` did not write it") from error


def _check_part(name: str, value: Any) -> None:
    if name not in CELLS:
        raise BadFile(f"{_shown(name)} is not a table that can be updated")
    _check(value, CELLS[name], name)
    seen = set()
    for row in value if name in KEYS else ():
        key = tuple(row.get(column) for column in KEYS[name])
        if None in key or key in seen:
            raise BadFile(f"a row of {name} has no unique key: {_shown(key)}")
        seen.add(key)


def _check(value: Any, shape: Any, where: str) -> None:
    """Raises BadFile for what is not of that shape."""
    if isinstance(shape, str):
        text = isinstance(value, str) and value.isprintable()
        fits = text and re.fullmatch(shape, value) is not None
    elif isinstance(shape, dict):
        fits = type(value) is dict and not (isinstance(shape, _Cells) and value.keys() - shape)
    else:
        fits = type(value) is (list if isinstance(shape, list) else shape)
    if not fits:
        raise BadFile(f"{_shown(value)} is not allowed in {where}")
    if isinstance(shape, list):
        for item in value:
            _check(item, shape[0], where)
    elif isinstance(shape, _Cells):
        for column, cell in value.items():
            if cell is not None:
                _check(cell, shape[column], f"{where}.{column}")
    elif isinstance(shape, dict):
        ((names, item_shape),) = shape.items()
        for name, item in value.items():
            _check(name, names, where)
            _check(item, item_shape, where)


def problems(of: Tables) -> Iterator[str]:
    """What is wrong with whole tables, ours or merged ones, sentence by sentence."""
    for name in CELLS:
        try:
            _check_part(name, _part(of, name))
        except BadFile as error:
            yield str(error)
            return  # what is of another shape is not looked at further
    sources = of["sources"]["sources"]
    for name in KEYS:
        rows = _part(of, name)
        if rows != in_order(name, rows):
            yield f"the rows of {name} are out of order"
        if len({tuple(row) for row in rows}) > 1:
            yield f"the rows of {name} differ in their columns"
        for row in rows:
            cited = row.get("sources", ("",) if "sources" in rows[0] else None)
            if cited is not None and (not cited or not sources.keys() >= set(cited)):
                yield f"a row of {name} cites no known source: {_shown(row)}"
    releases, defaults = _keys_of(of, "torch.releases"), set()
    for build in of["torch"]["builds"]:
        key = _shown((build["torch"], build["variant"], build["platform"]))
        if (build["torch"],) not in releases:
            yield f"the build {key} belongs to no release"
        if build["variant"] != variant_of(build["cuda"]):
            yield f"the build {key} is not of CUDA {build['cuda']}"
        if build["default"]:
            if (build["torch"], build["platform"]) in defaults:
                yield f"the build {key} is a second default of its platform"
            defaults.add((build["torch"], build["platform"]))


def _check_against(rows: Tables, own: Tables) -> None:
    """What a row rests on is in the file or in our tables; a new row has what every row has."""
    named = [name for name in KEYS if _part(rows, name)]
    if not named:
        return
    sources = own["sources"]["sources"].keys() | (_part(rows, "sources.sources") or {}).keys()
    releases = _keys_of(own, "torch.releases") | _keys_of(rows, "torch.releases")
    packages = SHARED | {row["package"] for row in own["companions"]["releases"]}
    wheels = _wheels(own)
    for name in named:
        needed, known = NEVER_NULL.get(name, ("sources",)), _keys_of(own, name)
        for row in _part(rows, name):
            key = tuple(row[column] for column in KEYS[name])
            lacking = [] if key in known else [c for c in needed if row.get(c) is None]
            lacking += [cited for cited in row.get("sources") or () if cited not in sources]
            if row.get("package", "triton") not in packages - SHARED:
                lacking.append(row["package"])
            if name == "companions.pins":
                asked = [cut(line) for line in row["requires"] or ()]
                lacking += [one.name for one in asked if one and one.name not in packages]
            if name == "pins.pins":
                wanted = filter(None, map(_wheel, row["requires"] or ()))
                lacking += [one for one in wanted if one not in wheels]
            if name == "torch.builds" and (row["torch"],) not in releases:
                lacking.append("torch.releases")
            if lacking:
                raise BadFile(
                    f"the row {_shown(key)} of {name} needs {_shown(lacking[0])}, which is missing"
                )


def _shown(value: object) -> str:
    return ascii(value)[:80]


def _wheel(line: str) -> OptStr:
    asked = cut(line)
    return asked and asked.name


def _wheels(own: Tables) -> set[OptStr]:
    """What a torch of our tables requires: no other name may come with a file."""
    return {_wheel(line) for row in own["pins"]["pins"] for line in row["requires"]}


def without_strangers(rows: Tables, own: Tables) -> Tables:
    """The rows without the wheels of which only an index says that a torch requires them."""
    wheels, pins = _wheels(own), _part(rows, "pins.pins")
    if not pins:
        return rows
    known = [
        {**row, "requires": [line for line in row["requires"] if _wheel(line) in wheels]}
        if row.get("requires")
        else row
        for row in pins
    ]
    return {**rows, "pins": {**rows["pins"], "pins": known}}


# --- rows on rows -------------------------------------------------------------------------------


def _part(of: Tables, name: str) -> Any:
    table, _, part = name.partition(".")
    return of[table].get(part) if table in of else None


def _keys_of(of: Tables, name: str) -> set[tuple[Any, ...]]:
    return {tuple(row[column] for column in KEYS[name]) for row in _part(of, name) or ()}


def merged(own: Tables, file: Renewed) -> Tables:
    """Our tables with what a file says of them; those that it does not name are left out."""
    found = {table: _merged(table, own[table], rows) for table, rows in file.tables.items()}
    found["torch"] = {**found.get("torch", own["torch"]), "collected": file.collected}
    return found


def _merged(table: str, own: Values, rows: Values) -> Values:
    parts: Values = {
        part: _merged_rows(f"{table}.{part}", own[part], value)
        if f"{table}.{part}" in KEYS
        else _joined(own.get(part), value)
        for part, value in rows.items()
    }
    if table == "sources":  # what stands behind our own rows is not for a file to say
        ours = {key: row for key, row in own[table].items() if not key.startswith("seen.")}
        parts = {table: {**own[table], **parts.get(table, {}), **ours}}
    return {**own, **parts}


def _merged_rows(name: str, own: list[Values], rows: list[Values]) -> list[Values]:
    keys = KEYS[name]
    places = {tuple(row[column] for column in keys): at for at, row in enumerate(own)}
    found, new = [*own], []
    for row in rows:
        place = places.get(tuple(row[column] for column in keys))
        if place is None:
            new.append({column: row.get(column) for column in own[0]})
        else:
            known = {column: cell for column, cell in row.items() if cell is not None}
            sources = _joined(own[place].get("sources"), row.get("sources"))
            found[place] = {**own[place], **known} | ({"sources": sources} if sources else {})
    return in_order(name, [*found, *new]) if new else found


def _joined(own: Any, value: Any) -> Any:
    """Both where both are lists or dicts, else the one that the file names."""
    if isinstance(own, list) and value is not None:
        return [*own, *(item for item in value if item not in own)]
    if isinstance(own, dict) and value is not None:
        return {**own, **value}
    return own if value is None else value


def difference(own: Tables, new: Tables) -> Tables:
    """The rows that make new tables of ours, each with the cells that differ."""
    found: Tables = {}
    for name in CELLS:
        table, _, part = name.partition(".")
        before, after = _part(own, name), _part(new, name)
        if name in KEYS:
            value: Any = _differing(KEYS[name], before or [], after or [])
        elif isinstance(after, dict):
            value = {key: item for key, item in after.items() if (before or {}).get(key) != item}
        else:
            value = after if after != before else None
        if value:
            found.setdefault(table, {})[part] = value
    return found


def _differing(keys: Strings, own: list[Values], new: list[Values]) -> list[Values]:
    known = {tuple(row[column] for column in keys): row for row in own}
    found = []
    for row in new:
        before = known.get(tuple(row[column] for column in keys))
        if before is None:
            found.append(row)
        elif before != row:
            kept = {column: cell for column, cell in row.items() if before[column] != cell}
            found.append({**{column: row[column] for column in keys}, **kept})
    return found


def document(rows: Tables, collected: str, version: str) -> bytes:
    """A file with these rows."""
    file = _File(format=FORMAT, cudadoctor=version, collected=collected, tables=rows)
    return msgspec.json.format(msgspec.json.encode(file), indent=0) + b"\n"
