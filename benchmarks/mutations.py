"""The places of a module that a mutant may change, and the ways to change each."""

from __future__ import annotations

import ast
import copy
import difflib
import random
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent

_OPPOSITE: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
_WORDING = frozenset({"title", "why", "text", "what", "page", "doc", "words_for"})


class Place(NamedTuple):
    """A node of a file and the ways to change it. header: the statement, for a block its head."""

    file: str
    node: int
    line: int
    header: ast.stmt
    function: ast.FunctionDef | None
    kinds: tuple[str, ...]


def kinds_of(node: ast.AST) -> tuple[str, ...]:
    """The ways to change this node; the wording of texts is never changed."""
    if isinstance(node, ast.Compare):
        every = (
            (n, opposite) for n, used in enumerate(node.ops) for opposite in _OPPOSITE[type(used)]
        )
        return tuple(f"compare {n} {other.__name__}" for n, other in every)
    if isinstance(node, ast.BoolOp):
        return ("and/or", *(f"drop {n}" for n in range(len(node.values))))
    if isinstance(node, (ast.Tuple, ast.Set, ast.List)):
        read = isinstance(getattr(node, "ctx", None), (ast.Load, type(None)))
        some = len(node.elts) if read else 0
        return tuple(f"drop {n}" for n in range(some)) if some > 1 else ()
    if isinstance(node, ast.Constant):
        return _of_a_value(node.value)
    for kind, (fits, names) in _SIMPLE.items():
        if isinstance(node, kind):
            return names if fits(node) else ()
    return ()


_SIMPLE: dict[type[ast.AST], tuple[Callable[[Any], bool], tuple[str, ...]]] = {
    ast.UnaryOp: (lambda node: isinstance(node.op, ast.Not), ("not",)),
    ast.BinOp: (
        lambda node: type(node.op) in _ARITHMETIC and not (_text(node.left) or _text(node.right)),
        ("arithmetic",),
    ),
    ast.Return: (lambda node: not (node.value is None or _is(node.value, None)), ("none",)),
    ast.If: (lambda _: True, ("true", "false")),
    ast.IfExp: (lambda _: True, ("true", "false")),
    ast.comprehension: (lambda node: bool(node.ifs), ("true", "false")),
}


def _of_a_value(value: object) -> tuple[str, ...]:
    if isinstance(value, bool):
        return ("flip",)
    if isinstance(value, (int, float)):
        return ("plus", "minus")
    return ("text",) if isinstance(value, str) and _sign(value) else ()


def _text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or isinstance(getattr(node, "value", None), str)


def _is(node: ast.AST, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def _sign(text: str) -> bool:
    """Whether a program reads that text: a path, a name, a beginning; no sentence for people."""
    return (
        bool(text)
        and not (" " in text and (text[0].isupper() or text[-1] in " .,"))
        and (" " not in text or text == text.lower())
    )


def changed(node: ast.AST, kind: str) -> ast.AST:
    """The node that stands in its place."""
    new: Any = copy.deepcopy(node)
    what, _, rest = kind.partition(" ")
    if what == "compare":
        where, name = rest.split()
        new.ops[int(where)] = getattr(ast, name)()
    elif what == "and/or":
        new.op = ast.Or() if isinstance(new.op, ast.And) else ast.And()
    elif what == "drop":
        some = new.values if isinstance(new, ast.BoolOp) else new.elts
        del some[int(rest)]
        if isinstance(new, ast.BoolOp) and len(some) == 1:
            return some[0]
    elif what == "not":
        return new.operand  # type: ignore[no-any-return]
    elif what == "arithmetic":
        new.op = _ARITHMETIC[type(new.op)]()
    elif what == "flip":
        new.value = not new.value
    elif what in ("plus", "minus"):
        new.value += 1 if what == "plus" else -1
    elif what == "text":
        new.value = f"{new.value}-changed"
    elif what == "none":
        # Where a condition is answered, None would say the same as False.
        other = True if _is(new.value, False) else None
        new.value = ast.copy_location(ast.Constant(other), new)
    elif isinstance(new, ast.comprehension):
        new.ifs = [] if what == "true" else [ast.copy_location(ast.Constant(False), new.ifs[0])]
    else:
        new.test = ast.copy_location(ast.Constant(what == "true"), new.test)
    return new  # type: ignore[no-any-return]


class _Reader(ast.NodeVisitor):
    """The places of one file: no annotation, docstring, wording, message or list of rules."""

    def __init__(self, file: str, tree: ast.Module) -> None:
        self.file, self.places = file, list[Place]()
        self.number = {id(node): n for n, node in enumerate(ast.walk(tree))}
        self.header: ast.stmt | None = None
        self.function: ast.FunctionDef | None = None
        self.visit(tree)

    def visit(self, node: ast.AST) -> None:
        if _left_out(node):
            return
        before = self.header, self.function
        if isinstance(node, ast.stmt):
            self.header = node
        if isinstance(node, ast.FunctionDef) and self.function is None:
            self.function = node
        kinds = kinds_of(node)
        if kinds and self.header is not None:
            line = getattr(node, "lineno", 0) or self.header.lineno
            if isinstance(node, ast.comprehension):
                line = node.ifs[0].lineno
            place = Place(self.file, self.number[id(node)], line, self.header, self.function, kinds)
            self.places.append(place)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "type_comment"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    self.visit(child)
        self.header, self.function = before


def _left_out(node: ast.AST) -> bool:
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name):
        return node.test.id == "TYPE_CHECKING"
    if isinstance(node, ast.Expr) and _text(node.value):
        return True
    if isinstance(node, ast.keyword):
        return node.arg in _WORDING
    if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        first = node.targets[0] if isinstance(node, ast.Assign) else node.target
        name = getattr(first, "id", "")
        return name in _WORDING or name in ("RULES", "__all__") or "Literal" in ast.dump(node)
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("TypeVar", "NewType"):
        return True
    return isinstance(node, (ast.Import, ast.ImportFrom, ast.JoinedStr, ast.Raise))


class Source:
    """A file, what may be changed in it, and a module made of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = str(path.relative_to(ROOT))
        self.name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        self.text = path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def places(self) -> list[Place]:
        return _Reader(self.file, self.tree).places

    def mutated(self, place: Place, kind: str) -> tuple[ast.Module, ast.stmt]:
        """The tree with one change, and the statement that holds it."""
        tree = ast.parse(self.text)
        nodes = list(ast.walk(tree))
        old = nodes[place.node]
        header = next(
            node for node in nodes if isinstance(node, ast.stmt) and _same(node, place.header)
        )
        _Swap(old, changed(old, kind)).visit(tree)
        ast.fix_missing_locations(tree)
        # A statement that is itself the place was swapped for its copy.
        header = next(
            (node for node in ast.walk(tree) if isinstance(node, ast.stmt) and _same(node, header)),
            header,
        )
        return tree, header


def _same(statement: ast.stmt, other: ast.stmt) -> bool:
    return type(statement) is type(other) and (statement.lineno, statement.col_offset) == (
        other.lineno,
        other.col_offset,
    )


class _Swap(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> Any:
        return self.new if node is self.old else self.generic_visit(node)


def shown(statement: ast.stmt) -> str:
    """A statement; of a block its head alone."""
    bare: Any = copy.deepcopy(statement)
    if isinstance(bare, ast.FunctionDef):
        bare.name, bare.returns = bare.name, None
    for name in ("body", "orelse", "finalbody"):
        if isinstance(getattr(bare, name, None), list):
            setattr(bare, name, [ast.Pass()] if name == "body" else [])
    return ast.unparse(bare).removesuffix("\n    pass")


class Mutant(NamedTuple):
    place: Place
    kind: str
    was: str
    now: str

    @property
    def where(self) -> str:
        return f"{self.place.file}:{self.place.line}"

    @property
    def key(self) -> tuple[str, str, str]:
        return self.place.file, self.was, self.now

    def diff(self) -> str:
        lines = difflib.ndiff(self.was.splitlines(), self.now.splitlines())
        return "\n".join(f"    {line}" for line in lines if line[0] in "+-")


def mutants(sources: dict[str, Source], seed: int, places: int) -> list[Mutant]:
    """A random sample of places, each with one of its changes."""
    every = [place for file in sorted(sources) for place in sources[file].places]
    chance = random.Random(seed)
    sample = sorted(
        chance.sample(every, min(places, len(every))), key=lambda candidate: candidate[:3]
    )
    found = []
    for place in sample:
        kind = chance.choice(place.kinds)
        _, header = sources[place.file].mutated(place, kind)
        found.append(Mutant(place, kind, shown(place.header), shown(header)))
    return found
