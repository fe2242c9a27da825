"""What the probes saw, merged into one machine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from cudadoctor.model.machine import Gap, Machine, Section
from cudadoctor.probes import Looked


def assembled(seen: Iterable[Looked], **own: Any) -> Machine:
    """One machine out of what each probe saw. own: facts of the examination itself (look, date).

    Raises TypeError for a path that no machine has: that is our own mistake.
    """
    tree: dict[str, Any] = dict(own)
    origins: dict[str, str] = {}
    gaps: list[Gap] = []
    for one in seen:
        for path, value in one.facts.items():
            _put(tree, path.split("."), value)
        origins.update(one.origins)
        gaps.extend(one.gaps)
    known = tuple(gap for gap in gaps if not _is_known(tree, gap.fact))
    machine: Machine = _built(Machine(), tree)
    return msgspec.structs.replace(machine, origins=origins, gaps=known)


class _Node(dict[str, Any]):
    """Facts of a section that is being put together; a plain dict is a value."""


def _put(tree: dict[str, Any], path: list[str], value: object) -> None:
    """Put a value at its path; a section merges with what other probes said of it."""
    for part in path[:-1]:
        tree[part] = _opened(tree.get(part))
        tree = tree[part]
    last = path[-1]
    there = tree.get(last)
    if isinstance(value, Section) and isinstance(there, (_Node, Section)):
        tree[last] = _Node({**_opened(there), **_opened(value)})
    else:
        tree[last] = value


def _opened(value: object) -> _Node:
    """A section as a node, with the fields that it knows."""
    if isinstance(value, _Node):
        return value
    if isinstance(value, Section):
        fields = msgspec.structs.asdict(value)
        return _Node({name: one for name, one in fields.items() if one is not None})
    return _Node()


def _is_known(tree: dict[str, Any], path: str) -> bool:
    """Whether another probe knows the fact that this one could not learn."""
    value: Any = tree
    for part in path.split("."):
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, Section):
            value = getattr(value, part, None)
        else:
            return False
    return value is not None and not isinstance(value, _Node)


def _built(section: Any, node: dict[str, Any]) -> Any:
    changes = {
        name: _built(getattr(section, name), value) if isinstance(value, _Node) else value
        for name, value in node.items()
    }
    return msgspec.structs.replace(section, **changes)
