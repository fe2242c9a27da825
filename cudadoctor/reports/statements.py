"""Facts as the parts of a report state them, and one machine out of all of them."""

from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from functools import cache, wraps
from typing import Any, NamedTuple, get_args, get_type_hints

from msgspec import convert
from msgspec.structs import asdict, replace

from cudadoctor.model.machine import Disagreement, Distribution, Gpu, Imported, Machine
from cudadoctor.reports.document import Document


class Rank(IntEnum):
    """How much a part of a report is worth where two disagree."""

    TOOL = 0
    """A program made for the question: nvidia-smi, collect_env, pip list."""
    MESSAGE = 1
    """An error message that names it in passing, or a path."""
    COMMAND = 2
    """What the author asked for with a command."""
    PROSE = 3
    """What the author says."""


class Statement(NamedTuple):
    """One fact as a part of the report states it. source: who says it; line: where."""

    path: str
    value: Any
    line: int
    rank: Rank
    source: str

    @property
    def origin(self) -> str:
        return f"{self.source}, line {self.line}"


Reader = Callable[[Document], Iterable[Statement]]
Statements = Iterator[Statement]
Facts = dict[str, Any]
"""Path of a fact -> its value, or a text or plain data of which its type can be made."""
_types = cache(get_type_hints)


@cache
def _type_at(path: str) -> Any:
    """The type that the model gives to a fact."""
    kind: Any = Machine
    for name in path.split("."):
        sections = (section for section in (kind, *get_args(kind)) if hasattr(section, name))
        kind = _types(next(sections))[name]
    return kind


def _typed(kind: type, value: Any) -> object:
    return value if isinstance(value, kind) else kind(value)


def stated(line: int, source: str, facts: Facts, rank: Rank = Rank.TOOL) -> Statements:
    """The facts that one line of the report states, each as the model holds it."""
    for path, value in facts.items():
        fact = convert(value, _type_at(path), strict=False, dec_hook=_typed)
        yield Statement(path, fact, line, rank, source)


def gated(*words: str) -> Callable[[Reader], Reader]:
    """A reader that looks only at reports with one of these words, so that it costs little."""

    def gate(read: Reader) -> Reader:
        @wraps(read)
        def reader(doc: Document) -> Iterable[Statement]:
            return read(doc) if doc.mentions(*words) else ()

        return reader

    return gate


JOINED = ("packages", "gpus", "installs", "driver.log", "driver.xids", "build.toolkits", "env")
"""Facts that several parts of a report make up together."""


def machine_of(parts: Iterable[Statement], **own: Any) -> Machine:
    """One machine: for each fact the strongest part, of equals the first.

    own: fields of the machine that no part states (look, symptoms). What other programs said
    otherwise stands in `disagreements`.
    """
    by_path: dict[str, list[Statement]] = {}
    for part in parts:
        if part.value is not None:
            by_path.setdefault(part.path, []).append(part)
    machine = Machine(**own)
    others: list[Disagreement] = []
    for path, statements in by_path.items():
        statements.sort(key=lambda part: part.rank)
        machine = _with(machine, path.split("."), _joined(path, statements))
        others += _otherwise(path, statements)
    return replace(
        machine,
        origins={path: statements[0].origin for path, statements in by_path.items()},
        disagreements=tuple(dict.fromkeys(others)) or None,
    )


def _with(section: Any, path: list[str], value: object) -> Any:
    name, *rest = path
    if rest:
        inner = getattr(section, name)
        value = _with(Imported() if inner is None and name == "imported" else inner, rest, value)
    return replace(section, **{name: value})


def _otherwise(path: str, statements: list[Statement]) -> Iterator[Disagreement]:
    """What programs and messages said otherwise; of packages, other releases of one."""
    if path == "packages":
        first: dict[str, str] = {}
        for part in statements:
            for package in part.value:
                known = first.setdefault(package.name, package.version)
                if known != package.version and part.rank <= Rank.MESSAGE:
                    path = f"packages.{package.name}"
                    yield Disagreement(fact=path, value=package.version, source=part.origin)
    elif path not in JOINED:
        for part in statements[1:]:
            if part.rank <= Rank.MESSAGE and str(part.value) != str(statements[0].value):
                yield Disagreement(fact=path, value=str(part.value), source=part.origin)


def _joined(path: str, statements: list[Statement]) -> object:
    """The strongest value, or for a fact of several parts all of them together."""
    if path not in JOINED:
        return statements[0].value
    if path == "env":
        return {name: value for part in reversed(statements) for name, value in part.value.items()}
    if path == "gpus":
        return _gpus(statements)
    values = [value for part in statements for value in part.value]
    if path == "packages":
        found: dict[str, Distribution] = {}
        # A list of a program shows every release: what is not in it is not there.
        listed = statements[0].rank is Rank.TOOL
        for package in values:
            if listed and not package.version:
                continue
            known = found.setdefault(package.name, package)
            if known.version == package.version:
                found[package.name] = _completed(known, package)
        return tuple(found.values())
    return tuple(dict.fromkeys(values))


def _completed(known: Any, other: Any) -> Any:
    """A struct with what only the other knows of the same thing."""
    lacking = {
        name: value
        for name, value in asdict(other).items()
        if getattr(known, name) in (None, ()) and value is not None and name != "unsupported"
    }
    return replace(known, **lacking)


def _gpus(statements: list[Statement]) -> tuple[Gpu, ...]:
    """The strongest list; what it lacks is filled in from the others."""
    best = list(statements[0].value)
    for other in (gpu for part in statements[1:] for gpu in part.value):
        for place, gpu in enumerate(best):
            if _same(gpu, other, alone=len(best) == 1):
                best[place] = _completed(gpu, other)
    return tuple(best)


def _same(gpu: Gpu, other: Gpu, *, alone: bool) -> bool:
    if gpu.name is None or other.name is None:
        return alone
    mine, its = gpu.name.lower(), other.name.lower()
    return mine in its or its in mine


OF_ONE_BUILD = ("torch.text", "torch.build", "torch.cuda", "torch.hip", "torch.installer")
"""Facts that are stated together with the release that they belong to."""


def of_one_torch(statements: list[Statement]) -> list[Statement]:
    """Without what was said of another release of torch than the one that will be believed.

    People paste the environment that works beside the one that does not, and the list from before
    the upgrade. A CUDA version or a build of the one must not be taken for the other's.
    """
    releases = [
        part for part in statements if part.path == "torch.version" and part.value is not None
    ]
    best = min(releases, key=lambda part: part.rank, default=None)
    others = {
        (part.source, part.line)
        for part in releases
        if best and part.value.release != best.value.release
    }
    return [
        part
        for part in statements
        if part.path not in OF_ONE_BUILD or (part.source, part.line) not in others
    ]
