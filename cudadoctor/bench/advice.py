"""What is expected to make training faster on this machine, corrected by what was measured. Pure.

An expectation comes from what the tables know of a GPU; it carries no number. A number stands only
where the bench measured it on this machine, with this driver and this torch: then a technique that
did not help is not advised, and that is said.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from cudadoctor.bench import advice_rows
from cudadoctor.bench.advice_rows import Row, Seen, seen_of
from cudadoctor.bench.kept import Kept, KeptGain
from cudadoctor.bench.techniques import BY_NAME, NOTHING
from cudadoctor.knowledge import Knowledge
from cudadoctor.model.machine import Machine

Standing = Literal["expected", "measured", "not advised"]

EXPECTED = "expected, not measured here (cudadoctor bench measures it)"
ASSUMED = "expected, not measured here"
FASTER = "measured here: {ratio}x on the {workload} workload, {date}"
SLOWER = "measured here: slower, {ratio}x on the {workload} workload, {date}"
SAME = "measured here: no difference that can be told on the {workload} workload, {date}"
LOSS = "measured here: the loss differs on the {workload} workload, {date}"
FAILED = "measured here: it failed on the {workload} workload, {date}"
NOT_ADVISED = "Not advised here: {technique}"
NOT_ADVISED_WHY = "It is expected to help on such a machine, but it did not where it was measured."
TOGETHER = "Use {techniques} together"
TOGETHER_WHY = "The bench found this combination the fastest for that workload."
FOUND = "Use {techniques}"
FOUND_WHY = "The bench measured that it helps, although nothing else here made it expected."

TEXTS = (
    *(EXPECTED, ASSUMED, FASTER, SLOWER, SAME, LOSS, FAILED, NOT_ADVISED, NOT_ADVISED_WHY),
    *(TOGETHER, TOGETHER_WHY, FOUND, FOUND_WHY),
    *(text for row in advice_rows.ROWS for text in (row.text, row.why)),
)
"""Every template that a user may read."""


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """What the bench measured of it on one workload of this machine."""

    technique: str
    workload: str
    date: str
    verdict: str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of advice.

    recipe: the script that shows it, a path of the project's repository. expected: how sure it is,
    a sentence for each workload that was measured. standing: "not advised" where it was expected
    and did not help.
    """

    id: str
    text: str
    why: str
    recipe: str | None
    expected: tuple[str, ...]
    standing: Standing
    technique: str | None = None
    measured: tuple[Figure, ...] = ()


def advise(
    machine: Machine, kb: Knowledge, kept: tuple[Kept, ...] = (), cpu: str | None = None
) -> tuple[Advice, ...]:
    """The advice for a machine; kept: results of the bench; cpu: the name of the CPU, if known."""
    seen = seen_of(machine, kb)
    here = tuple(one for one in kept if _of_this_machine(one, machine, cpu))
    rows = [row for row in advice_rows.ROWS if row.when(seen)]
    told = [_advice(row, seen, here) for row in rows]
    known = {name for row in rows for name in row.techniques}
    found = [*_together(here), *_beyond(here, known)]
    return tuple(sorted([*found, *told], key=lambda one: _PLACE[one.standing]))


_PLACE: dict[Standing, int] = {"measured": 0, "expected": 1, "not advised": 2}


def _of_this_machine(one: Kept, machine: Machine, cpu: str | None) -> bool:
    """The same GPU, driver and torch: what another of them did says nothing here."""
    if one.torch != machine.torch.text:
        return False
    if not one.gpus:
        return not machine.gpus and cpu is not None and one.cpu == cpu
    names = {gpu.name for gpu in machine.gpus or ()}
    told = machine.driver
    drivers = {str(each) for each in (told.kernel, told.library, told.reported) if each is not None}
    return set(one.gpus) <= names and one.driver in drivers


def _advice(row: Row, seen: Seen, here: tuple[Kept, ...]) -> Advice:
    figures = tuple(_figures(row.techniques, here))
    recipe = f"recipes/train/{row.recipe}.py" if row.recipe else None
    values = seen.values()
    if figures and row.pays_in == "time" and not any(_helps(one) for one in figures):
        names = dict.fromkeys(one.technique for one in figures)
        return Advice(
            id=row.id,
            text=NOT_ADVISED.format(technique=", ".join(names)),
            why=NOT_ADVISED_WHY,
            recipe=recipe,
            expected=tuple(map(figure_words, figures)),
            standing="not advised",
            technique=row.techniques[0],
            measured=figures,
        )
    return Advice(
        id=row.id,
        text=row.text.format_map(values),
        why=row.why.format_map(values),
        recipe=recipe,
        expected=tuple(map(figure_words, figures)) or (EXPECTED if row.techniques else ASSUMED,),
        standing="measured" if figures else "expected",
        technique=row.techniques[0] if row.techniques else None,
        measured=figures,
    )


def _helps(one: Figure) -> bool:
    return one.verdict == "faster"


def _figures(techniques: tuple[str, ...], here: tuple[Kept, ...]) -> Iterator[Figure]:
    for one in here:
        for technique in techniques:
            gain = one.of(technique)
            if gain is not None:
                yield _figure(one, gain)


def _figure(one: Kept, gain: KeptGain) -> Figure:
    return Figure(
        technique=gain.technique,
        workload=one.workload,
        date=one.date,
        verdict=gain.verdict,
        ratio=gain.ratio,
        low=gain.low,
        high=gain.high,
    )


def figure_words(one: Figure) -> str:
    """A measured figure as a sentence."""
    known = {"faster": FASTER, "slower": SLOWER, "same": SAME, "loss-differs": LOSS}
    template = known.get(one.verdict, FAILED)
    if "{ratio}" in template and one.ratio is None:
        template = SAME
    ratio = f"{one.ratio:.2f}" if one.ratio is not None else ""
    return template.format(ratio=ratio, workload=one.workload, date=one.date)


def _together(here: tuple[Kept, ...]) -> Iterator[Advice]:
    """The best combination of each workload, where it is more than one technique."""
    for one in here:
        gain = one.best_gain
        if len(one.best) < 2 or gain is None or gain.verdict != "faster":
            continue
        figure = _figure(one, gain)
        yield Advice(
            id=f"best-{one.workload}",
            text=TOGETHER.format(techniques=", ".join(one.best)),
            why=TOGETHER_WHY,
            recipe=None,
            expected=(figure_words(figure),),
            standing="measured",
            measured=(figure,),
        )


def _recipe(technique: str) -> str | None:
    known = BY_NAME.get(technique)
    return f"recipes/train/{known.recipe}" if known and known.recipe else None


def _beyond(here: tuple[Kept, ...], known: set[str]) -> Iterator[Advice]:
    """What was measured to help although no row expected it."""
    names = {gain.technique for one in here for gain in one.gains if gain.verdict == "faster"}
    for name in sorted(names - known - {NOTHING}):
        figures = tuple(_figures((name,), here))
        yield Advice(
            id=f"measured-{name}",
            text=FOUND.format(techniques=name),
            why=FOUND_WHY,
            recipe=_recipe(name),
            expected=tuple(map(figure_words, figures)),
            standing="measured",
            technique=name,
            measured=figures,
        )
