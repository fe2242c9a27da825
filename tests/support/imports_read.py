"""The imports of the package as its source says them, for the tests that keep their direction."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import cudadoctor

ROOT = Path(cudadoctor.__file__).parent
NAME = ROOT.name


class Module(NamedTuple):
    """A module of the package. early: imported with it; all: also by its functions, when called."""

    name: str
    path: Path
    early: frozenset[str]
    all: frozenset[str]

    @property
    def foreign(self) -> set[str]:
        """The top-level names of imported packages that are not ours."""
        return {name.split(".")[0] for name in self.all} - {NAME, "__future__"}


@cache
def modules() -> Mapping[str, Module]:
    """Every module of the package by its dotted name without `cudadoctor.`."""
    paths = {_name(path): path for path in sorted(ROOT.rglob("*.py"))}
    return {name: _module(name, path, paths) for name, path in paths.items()}


def _name(path: Path) -> str:
    parts = [*path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _module(name: str, path: Path, paths: Mapping[str, Path]) -> Module:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    early = {imported for found in _run_at_once(tree) for imported in _names(found, package, paths)}
    anywhere = {imported for found in _walked(tree) for imported in _names(found, package, paths)}
    return Module(name, path, frozenset(early), frozenset(anywhere))


def _walked(tree: ast.AST) -> Iterator[ast.AST]:
    """All of the tree without what only a type checker reads."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and _is_type_checking(node.test):
            for other in node.orelse:
                yield other
                yield from _walked(other)
            continue
        yield node
        yield from _walked(node)


def _run_at_once(tree: ast.AST) -> Iterator[ast.AST]:
    """The same without the bodies of functions."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(node, ast.If) and _is_type_checking(node.test):
            continue
        yield node
        yield from _run_at_once(node)


def _is_type_checking(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def _names(node: ast.AST, package: str, paths: Mapping[str, Path]) -> Iterator[str]:
    """What an import statement names; ours in full, such as `cudadoctor.model.machine`."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        origin = node.module or ""
        if node.level:
            parts = package.split(".")[: len(package.split(".")) - node.level + 1]
            origin = ".".join([NAME, *parts, *([origin] if origin else [])])
        for alias in node.names:
            inner = f"{origin}.{alias.name}"
            yield inner if inner.removeprefix(f"{NAME}.") in paths else origin


def ours(names: frozenset[str]) -> set[str]:
    """The modules of our package, without its name; `` is the package itself."""
    return {
        name.removeprefix(NAME).removeprefix(".") for name in names if name.split(".")[0] == NAME
    }


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Every circle of imports that a walk from any module runs into, as the names on its way."""
    found: list[list[str]] = []
    done: set[str] = set()

    def walk(name: str, way: list[str]) -> None:
        if name in way:
            found.append([*way[way.index(name) :], name])
            return
        if name in done:
            return
        for other in sorted(graph.get(name, ())):
            walk(other, [*way, name])
        done.add(name)

    for name in sorted(graph):
        walk(name, [])
    return found
