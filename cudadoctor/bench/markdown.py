"""A result of the bench as Markdown, for an issue or a README. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from cudadoctor.bench import words
from cudadoctor.bench.results import BenchResult, Gain, WorkloadResult
from cudadoctor.bench.words import Hints
from cudadoctor.render.markdown import code, escaped


def report(result: BenchResult, hints: Hints | None = None) -> str:
    """The whole report."""
    return "\n".join(_lines(result, hints or {})) + "\n"


def _lines(result: BenchResult, hints: Hints) -> Iterator[str]:
    yield f"### cudadoctor bench: {escaped(result.hardware)}"
    yield ""
    for label, text in words.rows(result):
        yield f"- {label}: {escaped(text)}"
    for text in words.notes(result):
        yield f"- **{escaped(text)}**"
    for workload in result.workloads:
        yield ""
        yield from _workload(workload, hints)
    if not result.workloads:
        yield ""
        yield "No workload was measured."


def _workload(one: WorkloadResult, hints: Hints) -> Iterator[str]:
    shape = f": {escaped(one.shape)}" if one.shape else ""
    yield f"#### {escaped(one.name)}{shape}"
    yield ""
    yield f"- baseline: {escaped(words.step(one.baseline, one.samples_unit))}"
    yield f"- time: {escaped(words.bottleneck(one))}"
    if noise := words.noise(one):
        yield f"- noise: {escaped(noise)}"
    yield f"- **best: {escaped(words.best(one))}**"
    for text in words.settings(one):
        yield f"- setting: {code(text)}"
    for text in words.not_here(one):
        yield f"- not here: {escaped(text)}"
    if one.ended:
        yield f"- ended: {escaped(one.ended)}"
    if words.tried(one):
        yield ""
        yield from _table(one, hints)
    yield from _recipes(one, hints)


def _table(one: WorkloadResult, hints: Hints) -> Iterator[str]:
    yield "| technique | times the baseline | interval | memory | verdict | recipe |"
    yield "| --- | ---: | --- | ---: | --- | --- |"
    for gain in words.tried(one):
        yield _row(gain, hints)
    if len(one.best) > 1 and one.best_gain is not None:
        yield _row(one.best_gain, hints)


def _row(gain: Gain, hints: Hints) -> str:
    counted = words.counts(gain) and gain.ratio is not None
    ratio = words.times(gain.ratio) if counted and gain.ratio is not None else ""
    known = counted and gain.low is not None and gain.high is not None
    between = f"{gain.low:.2f} to {gain.high:.2f}" if known else ""
    memory = words.times(gain.memory_ratio) if counted and gain.memory_ratio is not None else ""
    told = _told(gain)
    hint = hints.get(gain.technique)
    recipe = code(hint.recipe) if hint else ""
    cells = (escaped(gain.technique, cell=True), ratio, between, memory, told, recipe)
    return f"| {' | '.join(cells)} |"


def _told(gain: Gain) -> str:
    if gain.verdict in ("faster", "slower"):
        return gain.verdict
    if gain.verdict == "same":
        return "no difference that can be told"
    return escaped(words.verdict(gain), cell=True)


def _recipes(one: WorkloadResult, hints: Hints) -> Iterator[str]:
    """The lines to copy, as one block."""
    lines: list[str] = []
    for name, hint in words.taken_over(one, hints):
        lines += [f"# {name}: {hint.recipe}", *hint.code]
    if lines:
        yield ""
        yield "```python"
        yield from lines
        yield "```"
