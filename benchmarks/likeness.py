"""Fit the ranking of causes to labelled texts, and show what that is worth.

benchmarks/likeness.py FOLDER [--write]: FOLDER holds one folder a report (report.txt, case.json).
Learned from are these reports but those kept aside (see cases.py), the examples of the table of
symptoms, wordings.tsv beside this script (how people put the same trouble in other words), and
reports/*.jsonl (whole reports, made up or retold; no rule was made for them). With --write the
weights go into the package and the figures into benchmarks/results. Needs scikit-learn.

1. The words: a linear support vector machine over words, pairs and signs (reports/likeness.py).
2. The voices: how much its answer counts beside the findings of the rules
   (rules/pasted/ranking.py), by a conditional logit over the reports for which no rule was made.

Each figure is of texts that were not learned from: a fifth of the reports and of the symptoms, with
all their wordings, is left out in turn.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from hashlib import sha1
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from cases import kept_aside, primary_of, share
from measuring import saved
from msgspec.structs import replace
from mutated import LINES

from cudadoctor import knowledge
from cudadoctor.knowledge.symptoms import symptoms
from cudadoctor.knowledge.tables import FOLDER as TABLES
from cudadoctor.model.catalogue import CATALOGUE
from cudadoctor.model.findings import Diagnosis
from cudadoctor.model.machine import Machine
from cudadoctor.privacy.redact import Redactor
from cudadoctor.reports import likeness as words_model
from cudadoctor.reports.likeness import FEWEST, Weights, likeness, rareness, row_of, words_of
from cudadoctor.reports.reading import read_report
from cudadoctor.rules.diagnose import by_rules
from cudadoctor.rules.pasted import ranking

HERE = Path(__file__).parent
FOLDS = 5
MOST_WORDS, WEIGHTS_OF_WORDS, WEIGHTS_OF_SIGNS = 7300, 49_000, 10_400
"""So many of the words, and of the weights, stay: the table is smaller than 300 KB."""
HEED = 0.5
"""How much signs count beside words."""
COST = 0.5
STEPS = 40
"""The largest weight has so many steps."""
RIDGE = 0.3
SHORT = 80
"""Fewer words and pairs than a title and two sentences hold."""
Heard = dict[str, dict[str, float]]


class Text(NamedTuple):
    """A labelled text. of: the report, symptom or wording; texts of one are left out together."""

    kind: str
    of: str
    causes: tuple[str, ...]
    text: str
    words: frozenset[str]
    sufficient: bool = True


class Read(NamedTuple):
    """What the doctor reads of a text and what its rules say, without the ranking."""

    machine: Machine
    signs: frozenset[str]
    said: Diagnosis


def of_reports(folder: Path) -> Iterable[Text]:
    for path in sorted(folder.glob("*/case.json")):
        if not kept_aside(path):
            case = json.loads(path.read_text("utf-8"))
            text = (path.parent / "report.txt").read_text("utf-8", "replace")
            words = words_of(Redactor(Machine(), text).text(text))
            causes = tuple(case["causes"])
            yield Text("thread", path.parent.name, causes, text, words, case["report_sufficient"])


def of_symptoms() -> Iterable[Text]:
    """The table's own texts: the example of each symptom and the cause that it means first."""
    for row in symptoms().rows:
        if row.means:
            cause = (row.means[0].cause,)
            yield Text("example", row.key, cause, row.example, words_of(row.example))


def of_wordings() -> Iterable[Text]:
    with (HERE / "wordings.tsv").open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        for number, (cause, key, wording) in enumerate(rows):
            text = wording.replace("\\n", "\n")
            kind = "wording of a symptom" if key else "wording"
            yield Text(kind, key or f"wording {number}", (cause,), text, words_of(text))


def of_made() -> Iterable[Text]:
    for path in sorted((HERE / "reports").glob("*.jsonl")):
        for number, line in enumerate(path.read_text("utf-8").splitlines()):
            row = json.loads(line)
            of = f"{path.stem} {number}"
            yield Text(path.stem, of, (row["cause"],), row["text"], words_of(row["text"]))


def read(text: Text, tables: knowledge.Knowledge) -> Read:
    machine = replace(read_report(text.text, tables), likeness={})
    return Read(machine, ranking.signs(machine, tables), by_rules(machine, tables))


def beside_idle_talk(texts: Sequence[Text], reads: Sequence[Read]) -> list[tuple[Text, Read]]:
    """Every other short text once more, with a line that says nothing of its cause."""
    lines = sorted(line for kind in LINES.values() for line in kind)
    return [
        (text._replace(words=text.words | words_of(lines[number % len(lines)])), seen)
        for number, (text, seen) in enumerate(zip(texts, reads, strict=True))
        if number % 2 and len(text.words) < SHORT
    ]


# --- the words -------------------------------------------------------------------------------


class Vocabulary:
    """The words that count, with their rareness, and texts as rows of a matrix."""

    def __init__(self, texts: Sequence[frozenset[str]], only: frozenset[str] | None = None) -> None:
        held = Counter(word for words in texts for word in words)
        kept = sorted(
            word
            for word, number in held.items()
            if number >= FEWEST and (only is None or word in only)
        )
        self.place = {word: place for place, word in enumerate(kept)}
        self.rare = [rareness(len(texts), held[word]) for word in kept]

    def rows(self, texts: Sequence[frozenset[str]], scale: float) -> Any:
        import numpy as np
        from scipy.sparse import csr_matrix

        places, values, ends = [], [], [0]
        for words in texts:
            own = sorted(self.place[word] for word in words if word in self.place)
            rare = np.array([self.rare[place] for place in own])
            places += own
            values += list(scale * rare / max(1e-9, float(np.sqrt(rare @ rare))))
            ends.append(len(places))
        return csr_matrix((values, places, ends), shape=(len(texts), len(self.place)))


def fitted(texts: Sequence[Text], reads: Sequence[Read]) -> Weights:
    """The weights of words and signs that tell the causes of these texts apart best."""
    import numpy as np
    from scipy.sparse import hstack
    from sklearn.svm import LinearSVC

    more = beside_idle_talk(texts, reads)
    texts, reads = [*texts, *(text for text, _ in more)], [*reads, *(seen for _, seen in more)]
    causes = sorted({text.causes[0] for text in texts})
    labels = [causes.index(text.causes[0]) for text in texts]
    words, found = [text.words for text in texts], [seen.signs for seen in reads]
    known, marks = Vocabulary(words), Vocabulary(found)

    def fit() -> Any:
        rows = hstack([known.rows(words, 1), marks.rows(found, HEED)]).tocsr()
        return LinearSVC(C=COST, random_state=0).fit(rows, labels)

    told = np.abs(fit().coef_[:, : len(known.place)]).max(0)
    strongest = set(np.argsort(-told)[:MOST_WORDS].tolist())
    kept = frozenset(word for word, place in known.place.items() if place in strongest)
    known = Vocabulary(words, kept)
    model = fit()
    own = model.coef_[:, : len(known.place)] * np.array(known.rare)
    of_signs = model.coef_[:, len(known.place) :] * np.array(marks.rare)
    for weights, most in ((own, WEIGHTS_OF_WORDS), (of_signs, WEIGHTS_OF_SIGNS)):
        if weights.size > most:
            weights[np.abs(weights) < np.sort(np.abs(weights), axis=None)[-most]] = 0
    step = float(max(np.abs(own).max(), np.abs(of_signs).max()) / STEPS)

    def table(vocabulary: Vocabulary, weights: Any) -> dict[str, str]:
        return {
            word: row_of(
                vocabulary.rare[place],
                {
                    cause: weights[cause, place]
                    for cause in np.flatnonzero(weights[:, place]).tolist()
                },
                step,
            )
            for word, place in vocabulary.place.items()
        }

    return Weights(
        causes=tuple(causes),
        start=tuple(round(float(start), 3) for start in model.intercept_),
        step=round(step, 5),
        heed=HEED,
        words=table(known, own),
        signs=table(marks, of_signs),
    )


# --- the voices ------------------------------------------------------------------------------


def heard_in(text: Text, seen: Read, weights: Weights, tables: knowledge.Knowledge) -> Heard:
    machine = replace(seen.machine, likeness=likeness(text.words, weights))
    said = seen.said
    return ranking.voices(machine, tables, said.findings, said.primary, weights)


def counted(heard: Sequence[Heard], causes: Sequence[tuple[str, ...]]) -> dict[str, float]:
    """How much each voice counts: the chances of the known causes are the largest."""
    import numpy as np
    from scipy.optimize import minimize

    names = sorted({name for voices in heard for of in voices.values() for name in of})
    place = {name: number for number, name in enumerate(names)}
    told: Any = np.zeros((len(heard), len(CATALOGUE), len(names)), dtype=np.float32)
    right: Any = np.zeros((len(heard), len(CATALOGUE)))
    for number, voices in enumerate(heard):
        for row, cause in enumerate(CATALOGUE):
            right[number, row] = cause in causes[number]
            for name, value in voices[cause].items():
                told[number, row, place[name]] = value

    def loss(counts: Any) -> tuple[float, Any]:
        sums = told @ counts
        shares = np.exp(sums - sums.max(1, keepdims=True))
        shares /= shares.sum(1, keepdims=True)
        hit = (shares * right).sum(1) + 1e-300
        wanted = shares * right / hit[:, None]
        slope = np.einsum("ic,icf->f", wanted - shares, told)
        return -np.log(hit).sum() + RIDGE * counts @ counts / 2, RIDGE * counts - slope

    best = minimize(loss, np.zeros(len(names)), jac=True, method="L-BFGS-B").x
    return {name: round(float(count), 2) for name, count in zip(names, best, strict=True)}


# --- the figures -----------------------------------------------------------------------------

LEARNED_BY_RULES = ("thread", "example", "wording", "wording of a symptom", "common")
"""Texts that rules were made for, or that tell less than a report: the voices are not fitted to
them."""


def fold_of(text: Text) -> int:
    return int(sha1(text.of.encode()).hexdigest(), 16) % FOLDS


def figures(
    texts: Sequence[Text], reads: Sequence[Read], tables: knowledge.Knowledge
) -> tuple[dict[str, object], dict[str, float]]:
    """Of each kind of text: right and among three, by rules, words and both; and the voices."""
    heard: dict[int, Heard] = {}
    answers: dict[str, list[bool]] = defaultdict(list)
    for left_out in range(FOLDS):
        learned = [number for number, text in enumerate(texts) if fold_of(text) != left_out]
        weights = fitted([texts[n] for n in learned], [reads[n] for n in learned])
        for number, (text, seen) in enumerate(zip(texts, reads, strict=True)):
            if fold_of(text) == left_out and text.kind != "example":
                heard[number] = heard_in(text, seen, weights, tables)
    honest = [number for number in heard if texts[number].kind not in LEARNED_BY_RULES]
    calibration: dict[str, list[bool]] = defaultdict(list)
    for left_out in range(FOLDS):
        learned = [number for number in honest if fold_of(texts[number]) != left_out]
        counts = counted([heard[n] for n in learned], [texts[n].causes for n in learned])
        for number in (n for n in heard if fold_of(texts[n]) == left_out):
            text = texts[number]
            if not text.sufficient:
                continue
            chance = ranking.weighed(heard[number], counts)
            named = primary_of(reads[number].said)
            three = list(chance)[:3]
            answers[f"{text.kind}, rules alone: right"].append(named in text.causes)
            answers[f"{text.kind}, rules alone: wrong"].append(
                named is not None and named not in text.causes
            )
            answers[f"{text.kind}: right"].append(three[0] in text.causes)
            answers[f"{text.kind}: among three"].append(not set(three).isdisjoint(text.causes))
            if number in honest:
                share_ = next(iter(chance.values()))
                calibration[f"chance {int(share_ * 10) / 10:.1f}"].append(three[0] in text.causes)
    counts = counted([heard[n] for n in honest], [texts[n].causes for n in honest])
    shown: dict[str, object] = {
        name: share(found) for name, found in sorted((answers | calibration).items())
    }
    return shown, counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    tables = knowledge.load()
    texts = [*of_reports(asked.folder), *of_symptoms(), *of_wordings(), *of_made()]
    reads = [read(text, tables) for text in texts]
    shown, counts = figures(texts, reads, tables)
    found: dict[str, object] = {"texts": Counter(text.kind for text in texts), **shown}
    if asked.write:
        for name, table in (
            ("likeness", fitted(texts, reads)),
            ("voices", ranking.Voices(counts=counts)),
        ):
            plain = msgspec.json.encode(table).replace(b'",', b'",\n')
            Path(TABLES, f"rules/{name}.json").write_bytes(plain + b"\n")
        words_model.weights.cache_clear()
        saved("likeness", found)
    else:
        print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
