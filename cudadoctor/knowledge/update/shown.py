"""The difference as a person reads it; pure. What came from outside is shown as JSON: inert."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from cudadoctor.knowledge.update.asking import Answer
from cudadoctor.knowledge.update.rows import Change

_MOST_LISTED = 12


def shown(answer: Answer, day: str) -> str:
    """Each row that is new or differs, with its source, the day, and the remarks."""
    lines: list[str] = []
    for one in answer.changes:
        lines += _change(one, day)
    lines += [f"note     {_plain(text)}" for text in answer.remarks]
    count = len(answer.changes)
    differ = (
        "1 row differs" if count == 1 else f"{count} rows differ" if count else "No row differs"
    )
    lines.append(f"{differ} from the tables.")
    return "\n".join(lines) + "\n"


def _change(change: Change, day: str) -> Iterator[str]:
    row = change.row
    name = " ".join(row.key.values())
    yield _plain(f"{'new' if change.before is None else 'changed':8} {row.table} {name}".rstrip())
    for column, value in row.values.items():
        if change.before is None:
            if value is not None:
                yield f"         {column}: {_json(value)}"
        else:
            yield f"         {column}: {_difference(change.before[column], value)}"
    yield f"         seen on {_plain(row.url)}, {day}"


def _difference(old: Any, new: Any) -> str:
    if isinstance(old, dict) and isinstance(new, dict):
        parts = {key: (old.get(key), value) for key, value in new.items() if old.get(key) != value}
        return "; ".join(f"{_json(key)} {_difference(*both)}" for key, both in parts.items())
    if isinstance(old, list) and isinstance(new, list):
        signs = [f"+{_json(one)}" for one in new if one not in old]
        signs += [f"-{_json(one)}" for one in old if one not in new]
        return " ".join(_short(signs))
    return f"{_json(old)} -> {_json(new)}"


def _short(words: list[str]) -> Iterable[str]:
    more = len(words) - _MOST_LISTED
    return words if more <= 0 else [*words[:_MOST_LISTED], f"and {more} more"]


def _json(value: Any) -> str:
    return json.dumps(value)


def _plain(text: str) -> str:
    """Text that cannot act on a terminal."""
    return json.dumps(text)[1:-1].replace('\\"', '"')
