"""What the bench measured, in words that terminal, Markdown and chart share. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from cudadoctor.bench.results import BenchResult, Gain, Measured, WorkloadResult
from cudadoctor.render import inert

ON_A_CPU = "measured on a CPU: these figures say nothing about a GPU"
CUT_SHORT = "the bench was cut short: what it did not reach is missing here"


class Hint(msgspec.Struct, frozen=True, kw_only=True):
    """How a technique is taken over: the recipe that shows it and the lines that switch it on."""

    recipe: str
    code: tuple[str, ...] = ()
    cost: str = ""


Hints = Mapping[str, Hint]


def rows(result: BenchResult) -> Iterator[tuple[str, str]]:
    """What was measured on, a label and a text a row."""
    if result.gpu is None:
        cores = f", {result.cores} cores" if result.cores else ""
        yield "machine", f"{inert(result.cpu)}{cores}, no GPU was used"
    else:
        more = [
            f"capability {result.capability}" if result.capability else "",
            f"driver {result.driver}" if result.driver else "",
        ]
        yield "machine", ", ".join([inert(result.gpu), *(inert(one) for one in more if one)])
        yield "host", inert(result.cpu)
    cuda = f" (CUDA {result.cuda})" if result.cuda else ""
    yield "torch", inert(f"{result.torch}{cuda}, Python {result.python}")
    yield "measured", inert(f"{result.date[:10]} {_took(result)}, cudadoctor {result.cudadoctor}")


def _took(result: BenchResult) -> str:
    asked = f"{result.minutes:g} min"
    if result.seconds is None:
        return f"within {asked}"
    return f"in {result.seconds / 60:.1f} min of {asked}"


def notes(result: BenchResult) -> list[str]:
    """Sentences that the reader must know, the most important first."""
    found = [ON_A_CPU] if result.gpu is None else []
    if not result.complete:
        found.append(CUT_SHORT)
    return [*found, *(inert(one) for one in result.notes)]


def verdict(gain: Gain) -> str:
    """The verdict of a gain, with its interval where there is one."""
    between = _between(gain)
    if gain.verdict == "faster" and gain.ratio is not None:
        return f"{times(gain.ratio)} faster{between}" + memory(gain)
    if gain.verdict == "slower" and gain.ratio is not None:
        return f"slower: {times(gain.ratio)}{between}" + memory(gain)
    if gain.verdict == "same":
        return f"no difference that can be told{between}" + memory(gain)
    label = {"loss-differs": "loss differs", "failed": "failed", "not-here": "not here"}
    why = inert(gain.why)
    return f"{label.get(gain.verdict, gain.verdict)}{': ' if why else ''}{why}"


def _between(gain: Gain) -> str:
    if gain.low is None or gain.high is None:
        return ""
    return f" ({gain.low:.2f} to {gain.high:.2f})"


def times(ratio: float) -> str:
    return f"{ratio:.2f}x"


def memory(gain: Gain) -> str:
    """Only where it matters: a twentieth more or less is told by nobody."""
    if gain.memory_ratio is None or abs(gain.memory_ratio - 1) < 0.05:
        return ""
    return f", memory {times(gain.memory_ratio)}"


def counts(gain: Gain) -> bool:
    """Whether a bar may show it: what failed or computed something else has no speed."""
    return gain.ratio is not None and gain.verdict in ("faster", "slower", "same")


def duration(seconds: float) -> str:
    """Seconds with three figures that count."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * factor >= 1 or unit == "us":
            value = seconds * factor
            places = 2 if value < 10 else 1 if value < 100 else 0
            return f"{value:.{places}f} {unit}"
    raise AssertionError("every duration has a unit")


def size(number: float) -> str:
    """Bytes as MiB or GiB."""
    return f"{number / 2**30:.1f} GiB" if number >= 2**30 else f"{number / 2**20:.0f} MiB"


def step(measured: Measured, unit: str) -> str:
    """The figures of one configuration: a step, samples a second, memory, compiling."""
    if measured.step_s is None:
        return f"not measured: {inert(measured.error or 'it gave no figures')}"
    text = f"{duration(measured.step_s)} a step"
    if measured.spread_s is not None and len(measured.rounds) > 1:
        low, high = measured.spread_s
        text += f" (half of the rounds: {duration(low)} to {duration(high)})"
    if measured.samples_s is not None:
        text += f", {rate(measured.samples_s)} {inert(unit)}/s"
    if measured.peak_bytes is not None:
        text += f", peak memory {size(measured.peak_bytes)}"
    if measured.compile_s:
        text += f", {duration(measured.compile_s)} to compile"
    return text


def brief(measured: Measured, unit: str) -> str:
    """A step and samples a second, for a heading."""
    if measured.step_s is None or measured.samples_s is None:
        return "not measured"
    return f"{duration(measured.step_s)} a step, {rate(measured.samples_s)} {inert(unit)}/s"


def rate(number: float) -> str:
    """Samples a second: below a hundred with the figures that count."""
    places = 2 if number < 10 else 1 if number < 100 else 0
    return f"{number:.{places}f}"


def bottleneck(workload: WorkloadResult) -> str:
    """Where the time of the baseline goes, as a sentence."""
    found = workload.bottleneck
    kind = "cannot be told" if found.kind == "not known" else f"goes to {found.kind}"
    return f"{kind}{': ' if found.why else ''}{inert(found.why)}"


def best_name(workload: WorkloadResult) -> str:
    return " + ".join(map(inert, workload.best)) or "the baseline itself"


def best(workload: WorkloadResult) -> str:
    """The best combination and what it is worth."""
    if not workload.best and not any(counts(one) for one in workload.alone):
        return "not known: no technique could be measured"
    gain = workload.best_gain
    if not workload.best and gain is not None:
        again = f"{inert(gain.technique)}, measured again in new processes: {verdict(gain)}"
        return f"none that held: {again}"
    if not workload.best:
        return "the baseline itself: no technique gained more than the noise"
    told = _unproven(workload.unproven) if gain is None else verdict(gain)
    return f"{best_name(workload)}: {told}"


def _unproven(gain: Gain | None) -> str:
    """What the best was worth where it was found, and that nothing proved it since."""
    if gain is None:
        return "not measured again"
    _, _, reference = gain.technique.partition(", against ")
    against = f", against {inert(reference)}" if reference else ""
    return f"{verdict(gain)}{against}, where it was found; {inert(gain.why)}"


def tried(workload: WorkloadResult) -> list[Gain]:
    """What was tried alone: what counts first, by its gain; then the rest, as it came."""
    found = [one for one in workload.alone if one.verdict != "not-here"]
    return sorted(found, key=lambda one: -(one.ratio or 0.0) if counts(one) else 1.0)


def not_here(workload: WorkloadResult) -> list[str]:
    """What was not tried, by its reason: "why: names"."""
    reasons: dict[str, list[str]] = {}
    for one in workload.alone:
        if one.verdict == "not-here":
            reasons.setdefault(inert(one.why), []).append(inert(one.technique))
    return [f"{why}: {', '.join(names)}" for why, names in reasons.items()]


def noise(workload: WorkloadResult) -> str:
    """How far apart two runs of the same thing were: gains below it are not claimed."""
    if workload.noise is None:
        return ""
    return f"less than {(workload.noise - 1) * 100:.1f} % is not told from the baseline itself"


def settings(workload: WorkloadResult) -> list[str]:
    """What running it chose, such as the number of workers, as name = value."""
    gain = workload.best_gain or workload.unproven
    measured = gain.measured if gain else None
    chosen = measured.settings if measured else {}
    return [inert(f"{name} = {value}") for name, value in sorted(chosen.items())]


def taken_over(workload: WorkloadResult, hints: Hints) -> list[tuple[str, Hint]]:
    """Each technique of the best combination with the recipe to copy."""
    return [(name, hints[name]) for name in workload.best if name in hints]
