"""Text that tries to act: planted into every string of a machine, one kind after another."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache
from typing import Any, get_args, get_origin

import msgspec

from cudadoctor.model import factfile
from cudadoctor.model.machine import Machine

WORDS = (
    "[red]x[/red][link=http://evil.example]y[/link]",
    "\x1b[31m\x1b[2J\x1b[10A\x9b31m",
    "\x1b]8;;http://evil.example\x07link\x1b]8;;\x07\x1b]52;c;cHduZWQ=\x07\x1b]0;owned\x07",
    "\x1bP$q\x1b\\\x90\x9d0;t\x9c\x85\x84\x7f\x00\x08\x0e",
    "cr\rlf\nvt\x0bff\x0c\r\n\u2028\u2029rm -rf PWNED",
    "\u202eevil\u202c\u2066x\u2069\u200b\u200d\ufeff\u00ad",
    "`touch PWNED` ``` ```` ~~~",
    "\n```\n\n# broken out\n\n<script>alert(1)</script>\n",
    "a|b\\|[l](http://evil.example)|\\\\|<img src=x>|",
    "<script>alert(1)</script></details><!-- --><b>x</b>&lt;i&gt;&#60;",
    "@mention #123 GH-7 org/repo#4 http://evil.example www.evil.example a@b.example :tada: $x$",
    "![i](http://evil.example/i.png)[ref]: http://evil.example \n\n[ref]: <http://evil.example>",
    "$(touch PWNED);touch PWNED&&touch PWNED|touch PWNED&touch PWNED",
    "'; touch PWNED; '\"; touch PWNED; \"\\",
    "%PATH% %COMSPEC% ^& calc.exe & $(calc) `n$env:X {0} {name} %s",
    "\nEOF\ntouch PWNED\n'@\ntouch PWNED\n",
    "-rf ~ ~root * ? [a-z] {a,b} !x =ls",
    "* item\n- item\n1. item\n> quote\n    code\n---\n===\n| a |\n| - |",
    "\udce9\ud800",
    "\\",
)
MARK = "PWNED"
fields_of = cache(msgspec.structs.fields)


def leaves(kind: Any, path: tuple[Any, ...], data: Any) -> Iterator[tuple[Any, ...]]:
    """The paths of every free string in plain data of that type (of a Literal or a version, none).

    Keys of tables count too: their path ends with None.
    """
    for member in (kind, *get_args(kind)):
        if (
            isinstance(member, type)
            and issubclass(member, msgspec.Struct)
            and isinstance(data, dict)
        ):
            for field in fields_of(member):
                if field.name in data:
                    yield from leaves(field.type, (*path, field.name), data[field.name])
        elif get_origin(member) is tuple and isinstance(data, (list, tuple)):
            for number, item in enumerate(data):
                yield from leaves(get_args(member)[0], (*path, number), item)
        elif get_origin(member) is dict and isinstance(data, dict):
            yield (*path, None)
            for key, item in data.items():
                yield from leaves(get_args(member)[1], (*path, key), item)
        elif member is str and isinstance(data, str):
            yield path


def poisoned(machine: Machine, path: tuple[Any, ...], word: str, how: int) -> Machine:
    """The machine with a word in that place: behind what stands there, before it, or alone."""
    plain = msgspec.json.decode(factfile.dumps(machine))
    place: Any = plain
    for part in path[:-1]:
        place = place[part]
    last = path[-1]
    if last is None:
        place[word] = next(iter(place.values()), word)
    else:
        was = place[last]
        place[last] = (f"{was}{word}", f"{word}{was}", word)[how % 3]
    return factfile.from_plain(plain)


def everywhere(machine: Machine, words: tuple[str, ...] = WORDS) -> Machine:
    """The machine with a word behind every one of its strings."""
    plain = msgspec.json.decode(factfile.dumps(machine))
    turn = itertools.cycle(words)
    for path in list(leaves(Machine, (), plain)):
        place: Any = plain
        for part in path[:-1]:
            place = place[part]
        if path[-1] is not None:
            place[path[-1]] += next(turn)
        else:
            place[next(turn)] = "x"
    return factfile.from_plain(plain)


def places(machine: Machine) -> list[tuple[Any, ...]]:
    """Every place of the machine that can be poisoned."""
    return list(leaves(Machine, (), msgspec.json.decode(factfile.dumps(machine))))
