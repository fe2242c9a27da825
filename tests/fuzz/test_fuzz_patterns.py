"""Patterns of the package, read for what makes a search take for ever."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cudadoctor.probes.installed import BUILT_FOR
from cudadoctor.probes.toolkit import COMPILER_VERSIONS
from cudadoctor.reports.installs import SENTENCES
from cudadoctor.reports.phrases import PHRASES

ROOT = Path(__file__).parent.parent.parent / "cudadoctor"
PARSER = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
SAMPLE = frozenset(map(chr, range(128))) | {"²", "٣", "é"}
MANY = 64
REPEATS = ("MAX_REPEAT", "MIN_REPEAT")
CLASSES = {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w"}


def patterns() -> Iterator[tuple[str, str]]:
    """Every pattern that stands in the package's source as a text: where, and which."""
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and node.args and _takes_pattern(node):
                several = "found_in" in ast.unparse(node.func)
                for argument in node.args if several else node.args[:1]:
                    pattern = getattr(argument, "value", None)
                    text = pattern.decode("latin-1") if isinstance(pattern, bytes) else pattern
                    if isinstance(text, str):
                        yield f"{path.name}:{argument.lineno}", text
    phrases = [row for rows in PHRASES.values() for row in rows]
    texts = [row.pattern for row in phrases] + [
        row.pattern for rows in SENTENCES.values() for row in rows
    ]
    texts += [row.unless for row in phrases if row.unless]
    texts += [pattern for _, pattern in COMPILER_VERSIONS]
    texts += [pattern for both in BUILT_FOR.values() for pattern in both]
    yield from zip(texts, texts, strict=True)


def _takes_pattern(node: ast.Call) -> bool:
    called = ast.unparse(node.func)
    return (
        re.fullmatch(r"re\.[a-z]+|values\.(?:matching|found_in)|extract|Pattern", called)
        is not None
    )


def _kind(item: Any) -> str:
    return str(item[0])


def letters(item: Any) -> set[str]:
    """The letters of a sample alphabet that one item of a parsed pattern can match."""
    kind, value = _kind(item), item[1]
    if kind == "LITERAL":
        return {chr(value)}
    if kind in ("NOT_LITERAL", "ANY"):
        return set(SAMPLE) - {chr(value) if kind == "NOT_LITERAL" else "\n"}
    if kind == "IN":
        named = [member for member in value if _kind(member) != "NEGATE"]
        found = set().union(*map(_of_class, named))
        return set(SAMPLE) - found if len(named) < len(value) else found
    parts: list[Any] = []
    if kind == "SUBPATTERN":
        parts = list(value[-1])
    elif kind == "BRANCH":
        parts = [part for way in value[1] for part in way]
    elif kind in REPEATS:
        parts = list(value[2])
    return set().union(*map(letters, parts))


def _of_class(item: Any) -> set[str]:
    kind, value = _kind(item), item[1]
    if kind == "RANGE":
        return {letter for letter in SAMPLE if value[0] <= ord(letter) <= value[1]}
    if kind == "CATEGORY":
        word = CLASSES[str(value).rpartition("_")[2]]
        word = word.upper() if "_NOT_" in str(value) else word
        return {letter for letter in SAMPLE if re.match(word, letter)}
    return letters(item)


def explodes(items: Any) -> bool:
    """Whether a repeat without end holds another one that can take what begins its next turn.

    (a+)* and (\\s*\\n)* are such; (\\.\\d+)* is none, since no turn begins with a digit.
    """
    return any(_explodes(item) for item in items)


def _explodes(item: Any) -> bool:
    kind, value = _kind(item), item[1]
    if kind in REPEATS:
        return (_is_endless(item) and _is_ambiguous(_turn(item))) or explodes(value[2])
    if kind == "BRANCH":
        return any(explodes(way) for way in value[1])
    return kind in ("SUBPATTERN", "ASSERT", "ASSERT_NOT") and explodes(value[-1])


def _turn(item: Any) -> list[Any]:
    """What is repeated, without a group around it."""
    turn = list(item[1][2])
    while len(turn) == 1 and _kind(turn[0]) == "SUBPATTERN":
        turn = list(turn[0][1][-1])
    return turn


def _is_endless(item: Any) -> bool:
    return _kind(item) in REPEATS and int(item[1][1]) > MANY


def _is_ambiguous(turn: list[Any]) -> bool:
    if len(turn) == 1 and _kind(turn[0]) == "BRANCH":
        return any(_is_ambiguous(list(way)) for way in turn[0][1][1])
    endless = [letters(item) for item in turn if _is_endless(item)]
    if not endless or not any(letters(turn[0]) & matched for matched in endless):
        return False
    # If every turn ends with a mark that nothing else in it can match, there is only one way.
    marked = _kind(turn[-1]) in ("LITERAL", "IN") and set().union(*map(letters, turn[:-1]))
    return not marked or bool(letters(turn[-1]) & marked)


def test_no_pattern_of_the_package_can_share_out_a_text_in_endless_ways() -> None:
    found = dict(patterns())
    assert len(found) > 100
    assert not [f"{where}: {text}" for where, text in found.items() if explodes(PARSER.parse(text))]


@pytest.mark.parametrize("text", [r"(a+)*b", r"(?:\s*\n|\s*#.*\n)*x", r"(\w+\s?)*$", r"(?:a|b+)*c"])
def test_the_reading_of_patterns_knows_one_that_explodes(text: str) -> None:
    assert explodes(PARSER.parse(text))


@pytest.mark.parametrize(
    "text", [r"(?:\.\d+)*", r"\s*\d+", r"(?:-[0-9a-f]+)*x", r"(?:[ ;]sm_\d+)*"]
)
def test_the_reading_of_patterns_lets_a_sound_one_pass(text: str) -> None:
    assert not explodes(PARSER.parse(text))
