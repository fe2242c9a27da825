"""PowerShell as its grammar reads it: no PowerShell runs here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


def mistakes(text: str) -> list[str]:
    """The places of a script that are not PowerShell; none in one that only has comments."""
    if all(not line or line.startswith("#") for line in text.splitlines()):
        return []  # the grammar knows no empty program
    return [f"{node.start_point.row + 1}: {node.text.decode()}" for node in _wrong(_root(text))]


def commands(text: str) -> int:
    """How many commands a script runs."""
    return sum(node.type == "command" for node in _all(_root(text)))


def _root(text: str):  # type: ignore[no-untyped-def]
    tree_sitter = pytest.importorskip("tree_sitter")
    grammar = pytest.importorskip("tree_sitter_powershell")
    parser = tree_sitter.Parser(tree_sitter.Language(grammar.language()))
    return parser.parse(text.encode()).root_node


def _all(node) -> Iterator:  # type: ignore[no-untyped-def, type-arg]
    yield node
    for child in node.children:
        yield from _all(child)


def _wrong(root) -> Iterator:  # type: ignore[no-untyped-def, type-arg]
    return (node for node in _all(root) if node.type == "ERROR" or node.is_missing)
