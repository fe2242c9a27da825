"""Count the words of labelled reports for ranking, and show what that is worth.

benchmarks/likeness.py FOLDER [--write]: FOLDER holds one folder a report (report.txt, case.json).
Counted are these reports but those kept aside (see cases.py), the examples of the table of
symptoms, and wordings.tsv beside this script: how people put the same trouble in other words. With
--write the counts go into the package and the figures into benchmarks/results.

Each figure is of texts that were not counted for it: a fifth of the reports and of the symptoms,
with all their wordings, is left out in turn.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec
from cases import kept_aside, primary_of, share
from measuring import saved
from msgspec.structs import replace

from cudadoctor import knowledge
from cudadoctor.knowledge.symptoms import symptoms
from cudadoctor.knowledge.tables import FOLDER as TABLES
from cudadoctor.model.machine import Machine
from cudadoctor.privacy.redact import Redactor
from cudadoctor.reports.likeness import FEWEST, Counts, counts_of, likeness, words_of
from cudadoctor.reports.reading import read_report
from cudadoctor.rules.diagnose import diagnose

WORDINGS = Path(__file__).parent / "wordings.tsv"
FOLDS = 5


class Text(NamedTuple):
    """A labelled text. of: the report, symptom or wording; texts of one are left out together."""

    kind: str
    of: str
    causes: tuple[str, ...]
    text: str
    words: frozenset[str]
    sufficient: bool = True


def of_reports(folder: Path) -> Iterable[Text]:
    for path in sorted(folder.glob("*/case.json")):
        if not kept_aside(path):
            case = json.loads(path.read_text("utf-8"))
            text = (path.parent / "report.txt").read_text("utf-8", "replace")
            words = words_of(Redactor(Machine(), text).text(text))
            causes = tuple(case["causes"])
            yield Text("report", path.parent.name, causes, text, words, case["report_sufficient"])


def of_symptoms() -> Iterable[Text]:
    """The table's own texts: the example of each symptom and the cause that it means first."""
    for row in symptoms().rows:
        if row.means:
            cause = (row.means[0].cause,)
            yield Text("example", row.key, cause, row.example, words_of(row.example))


def of_wordings() -> Iterable[Text]:
    with WORDINGS.open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        for number, (cause, key, wording) in enumerate(rows):
            text = wording.replace("\\n", "\n")
            kind = "wording of a symptom" if key else "wording"
            yield Text(kind, key or f"wording {number}", (cause,), text, words_of(text))


def counted(texts: Iterable[Text]) -> Counts:
    texts = tuple(texts)
    held = Counter(word for text in texts for word in text.words)
    by_word: dict[str, Counter[str]] = defaultdict(Counter)
    for text in texts:
        for word in text.words:
            if held[word] >= FEWEST:
                by_word[word][text.causes[0]] += 1
    return counts_of(by_word)


def figures(texts: list[Text]) -> dict[str, object]:
    """Of each kind of text: right and among three, by the rules, the words, and both."""
    tables = knowledge.load()
    answers: dict[str, list[bool]] = defaultdict(list)
    groups = sorted({text.of for text in texts})
    fold = {of: number * 7919 % len(groups) % FOLDS for number, of in enumerate(groups)}
    for left_out in range(FOLDS):
        counts = counted(text for text in texts if fold[text.of] != left_out)
        for text in texts:
            if fold[text.of] != left_out or not text.sufficient or text.kind == "example":
                continue
            alike = likeness(text.words, counts)
            machine = read_report(text.text, tables)
            for by, weights in (("rules", {}), ("rules and words", alike)):
                said = diagnose(replace(machine, likeness=weights), tables)
                named = primary_of(said)
                ranked = [*filter(None, [named]), *(found.cause for found in said.candidates)]
                three = list(dict.fromkeys(ranked))[:3]
                answers[f"{text.kind}, {by}: right"].append(named in text.causes)
                answers[f"{text.kind}, {by}: wrong"].append(
                    named is not None and named not in text.causes
                )
                answers[f"{text.kind}, {by}: among three"].append(
                    not set(three).isdisjoint(text.causes)
                )
            first = next(iter(alike), None)
            answers[f"{text.kind}, words: right"].append(first in text.causes)
    return {name: share(found) for name, found in sorted(answers.items())}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    texts = [*of_reports(asked.folder), *of_symptoms(), *of_wordings()]
    if asked.write:
        plain = msgspec.json.encode(counted(texts)).replace(b'",', b'",\n')
        Path(TABLES, "rules/likeness.json").write_bytes(plain + b"\n")
    found = {"texts": Counter(text.kind for text in texts), **figures(texts)}
    if asked.write:
        saved("likeness", found)
    else:
        print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
