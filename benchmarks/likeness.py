"""Count the words of labelled reports for ranking, and show what that is worth.

benchmarks/likeness.py FOLDER [--write]: FOLDER holds one folder a report (report.txt, case.json).
Each report is ranked by the counts of all the others. With --write the counts go into the package,
and the figures into benchmarks/results.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from measuring import RESULTS

from cudadoctor.knowledge.symptoms import symptoms
from cudadoctor.knowledge.tables import FOLDER as TABLES
from cudadoctor.model.machine import Machine
from cudadoctor.privacy.redact import Redactor
from cudadoctor.reports.document import document
from cudadoctor.reports.likeness import FEWEST, Counts, likeness, words_of


class Read(NamedTuple):
    """A labelled report: its causes, and the words that stand in it."""

    causes: list[str]
    sufficient: bool
    words: frozenset[str]


def read(folder: Path) -> list[Read]:
    found = []
    for path in sorted(folder.glob("*/case.json")):
        case = json.loads(path.read_text("utf-8"))
        text = document((path.parent / "report.txt").read_bytes()).text
        words = words_of(Redactor(Machine(), text).text(text))
        found.append(Read(case["causes"], case["report_sufficient"], words))
    return found


def examples() -> Iterable[tuple[str, frozenset[str]]]:
    """The table's own texts: the example of each symptom and the cause that it means first."""
    for row in symptoms().rows:
        if row.means:
            yield row.means[0].cause, words_of(row.example)


def counted(reports: list[Read]) -> Counts:
    held = Counter(word for report in reports for word in report.words)
    known = {word for word, number in held.items() if number >= FEWEST}
    by_word: dict[str, Counter[str]] = defaultdict(Counter)
    for cause, words in [(report.causes[0], report.words) for report in reports] + [*examples()]:
        for word in words & known:
            by_word[word][cause] += 1
    causes = sorted({cause for row in by_word.values() for cause in row})
    place = {cause: number for number, cause in enumerate(causes)}
    rows = {
        word: tuple(sorted((place[cause], number) for cause, number in row.items()))
        for word, row in sorted(by_word.items())
    }
    return Counts(tuple(causes), rows)


def without(counts: Counts, report: Read) -> Counts:
    """The counts without one report: what it is ranked by."""
    mine = counts.causes.index(report.causes[0])
    left = dict(counts.words)
    for word in report.words & left.keys():
        row = ((place, number - (place == mine)) for place, number in left[word])
        left[word] = tuple((place, number) for place, number in row if number)
    return Counts(counts.causes, left)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    reports = read(asked.folder)
    counts = counted(reports)
    right = top3 = 0
    margins: list[tuple[float, bool]] = []
    for report in reports:
        if report.sufficient:
            ranking = likeness(report.words, without(counts, report))
            first, second, *_ = [*ranking.items(), ("", 0.0), ("", 0.0)]
            right += first[0] in report.causes
            top3 += not set(report.causes).isdisjoint(list(ranking)[:3])
            margins.append((first[1] - second[1], first[0] in report.causes))
    sufficient = len(margins)
    above = {
        str(least): [
            sum(good for margin, good in margins if margin >= least),
            sum(margin >= least for margin, _ in margins),
        ]
        for least in (0.0, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.5)
    }
    figures = {
        "reports": len(reports),
        "sufficient": sufficient,
        "words": len(counts.words),
        "right_alone": right,
        "top3_alone": top3,
        "right_of_those_above_margin": above,
    }
    print(json.dumps(figures, indent=1))
    if asked.write:
        packed = {"causes": counts.causes, "words": counts.words}
        text = json.dumps(packed, ensure_ascii=True, separators=(",", ":"))
        Path(TABLES, "rules/likeness.json").write_text(text.replace("]],", "]],\n") + "\n", "utf-8")
        (RESULTS / "likeness.json").write_text(json.dumps(figures, indent=1) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
