"""How often `cudadoctor explain TEXT` finds the cause of an error text among its first three.

python benchmarks/explain_search.py

Every error text of the symptom tables that means a cause is searched for: the examples and the
search words, whole, with other paths and numbers, and by halves. The result is
benchmarks/results/explain_search.json.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from time import perf_counter

from cudadoctor import knowledge
from cudadoctor.knowledge.symptoms import SymptomRow, symptoms
from cudadoctor.rules.pasted.search import search

RESULT = Path(__file__).parent / "results" / "explain_search.json"
FIRST = 3
_SHORT = 4
"""Half of a text with fewer words may be one word, which means anything."""


def whole(text: str) -> str:
    """The text as the table has it."""
    return text


def elsewhere(text: str) -> str:
    """The text as another machine prints it: other folders, addresses, process ids and sizes."""
    text = re.sub(r"(?<![\w.])/(?:[\w.+-]+/)+", "/opt/lab7/deploy/", text)
    text = re.sub(r"\b0x[0-9a-f]+", "0x7f3a91c2", text)
    text = re.sub(r"\bline \d+", "line 4711", text)
    text = re.sub(r"\b(pid[ =:]*)\d+", r"\g<1>90210", text)
    text = re.sub(r"\b[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}", "0000:c1:00", text)
    return re.sub(r"\b\d+\.\d+ ([KMG]i?B)", r"17.25 \1", text)


def first_half(text: str) -> str:
    """What is left where the end was cut off."""
    words = text.split()
    return " ".join(words[: (len(words) + 1) // 2])


def second_half(text: str) -> str:
    """What is left where the beginning was cut off."""
    words = text.split()
    return " ".join(words[len(words) // 2 :])


Change = Callable[[str], str]
CHANGES: tuple[Change, ...] = (whole, elsewhere, first_half, second_half)


def expected(row: SymptomRow) -> frozenset[str]:
    """The cause that the text alone means; where it takes more to decide, each that it can mean."""
    alone = next((way.cause for way in row.means if not way.when), None)
    return frozenset([alone] if alone else [way.cause for way in row.means])


def asked(change: Change) -> Iterator[tuple[SymptomRow, str, bool]]:
    """The rows, what is searched for, and whether it is an example (else one of its words)."""
    for row in symptoms().rows:
        alone = () if row.pattern or row.also else row.words
        for number, text in enumerate((row.example, *alone) if row.means else ()):
            if change in (whole, elsewhere) or len(text.split()) >= _SHORT:
                yield row, change(text), number == 0


def example(key: str) -> str:
    """The example of a row."""
    return symptoms().by_key[key].example


def main() -> None:
    kb = knowledge.load()
    search("warm up", kb)
    result: dict[str, object] = {}
    seconds, missed = [], []
    for change in CHANGES:
        counts = {"examples": [0, 0, 0], "words": [0, 0, 0]}
        for row, text, of_example in asked(change):
            started = perf_counter()
            names = [hit.cause for hit in search(text, kb)]
            seconds.append(perf_counter() - started)
            count = counts["examples" if of_example else "words"]
            count[0] += 1
            count[1] += not expected(row).isdisjoint(names[:1])
            if expected(row).isdisjoint(names[:FIRST]):
                missed.append((change.__name__, row.key, text, sorted(expected(row)), names))
            else:
                count[2] += 1
        result[change.__name__] = {
            kind: {"texts": texts, "first": first, "first_three": three}
            for kind, (texts, first, three) in counts.items()
        }
        print(change.__name__, result[change.__name__], flush=True)
    halves = [
        {
            key
            for kind, key, text, _, _ in missed
            if kind == half.__name__ and text == half(example(key))
        }
        for half in (first_half, second_half)
    ]
    result["examples_missed_by_both_halves"] = len(halves[0] & halves[1])
    result["median_ms"] = round(median(seconds) * 1000, 1)
    result["missed"] = [f"{kind} {key}: {text}" for kind, key, text, _, _ in missed]
    RESULT.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    if "-v" in sys.argv:
        for line in missed:
            print(*line, sep=" | ")


if __name__ == "__main__":
    main()
