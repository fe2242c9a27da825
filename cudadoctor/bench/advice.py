"""What is expected to make training faster on this machine, corrected by what was measured. Pure.

An expectation comes from what the tables know of a GPU; it carries no number. A number stands only
where the bench measured it on this machine, with this driver and this torch: then a technique that
did not help is not advised, and that is said. What the bench could not decide changes nothing.
"""

from collections.abc import Iterable, Iterator
from typing import Literal

from msgspec import Struct, convert
from msgspec.structs import asdict
from packaging.version import Version

from cudadoctor.bench.results import Amount, Gain
from cudadoctor.bench.store import BEST, Kept
from cudadoctor.bench.techniques import BY_NAME, NOTHING, table
from cudadoctor.knowledge import Knowledge
from cudadoctor.model.machine import Gpu, Machine, OptStr, Strings

Standing = Literal["expected", "measured", "not advised"]
STANDINGS: tuple[Standing, ...] = ("measured", "expected", "not advised")
"""In the order in which they are shown."""
SMALL_BYTES, SMALL_SHM_BYTES = 4_000_000_000, 1 << 30
_LAPTOP = ("laptop", "mobile", "max-q", "notebook")

EXPECTED = "expected to help; run cudadoctor bench to measure the gain on this machine"
ASSUMED = "expected, not measured"
MEASURED = {
    "faster": "measured here on {date}: {ratio}x faster ({workload})",
    "slower": "measured here on {date}: slower, {ratio}x the baseline speed ({workload})",
    "same": "measured here on {date}: equal within {within}% ({workload})",
    "undecided": "measured here on {date}: not decided ({workload})",
    "loss-differs": "measured here on {date}: the loss differs ({workload})",
    "failed": "measured here on {date}: failed ({workload})",
}
NOT_ADVISED = "Not recommended here: {technique}"
NOT_ADVISED_WHY = (
    "This usually helps on machines like this one, but a measurement here showed no gain."
)
IN_BEST = "part of the fastest combination measured here on {date} ({workload})"
TOGETHER = "Use {techniques} together"
TOGETHER_WHY = "cudadoctor bench found this combination to be the fastest here."
FOUND = "Use {techniques}"
FOUND_WHY = "cudadoctor bench measured an improvement on this machine."


class Row(Struct, frozen=True, kw_only=True):
    """What is expected of a machine. when: see `conditions`.

    pays_in: "time" is taken back where the bench found no gain.
    """

    id: str
    when: str
    text: str
    why: str
    recipe: OptStr = None
    techniques: Strings = ()
    pays_in: Literal["time", "memory", "care"] = "time"


ROWS = table("advice", Row)


class Figure(Struct, frozen=True, kw_only=True):
    """What the bench measured of it on one workload of this machine."""

    technique: str
    workload: str
    date: str
    verdict: str
    ratio: Amount = None
    low: Amount = None
    high: Amount = None
    within: Amount = None


class Advice(Struct, frozen=True, kw_only=True):
    """One piece of advice.

    recipe: the script that shows it, a path of the project's repository. expected: how sure it is,
    a sentence for each workload that was measured. standing: "not advised" where it was expected
    and did not help.
    """

    id: str
    text: str
    why: str
    recipe: OptStr = None
    expected: Strings
    standing: Standing
    technique: OptStr = None
    measured: tuple[Figure, ...] = ()


def advise(
    machine: Machine, kb: Knowledge, kept: tuple[Kept, ...] = (), cpu: OptStr = None
) -> tuple[Advice, ...]:
    """The advice for a machine; kept: results of the bench; cpu: the name of the CPU, if known."""
    here = [result for result in kept if _of_this_machine(result, machine, cpu)]
    gpus = [_known(gpu, kb) for gpu in machine.gpus or ()]
    true = conditions(machine, gpus)
    rows = [row for row in ROWS if true[row.when]]
    values = {
        "gpu": ", ".join(dict.fromkeys(name for name, _, _ in gpus)),
        "count": str(len(gpus)),
        "size": f"{(machine.limits.shm_bytes or 0) / 2**20:.0f} MiB",
        "cpus": str(machine.limits.cpus or ""),
    }
    expected = {name for row in rows for name in row.techniques}
    advice = [*_measured(here, expected), *(_expected(row, values, here) for row in rows)]
    return tuple(sorted(advice, key=lambda piece: STANDINGS.index(piece.standing)))


Known = tuple[str, Version | None, bool | None]
"""Of a GPU: its name, its compute capability, and whether it has tensor cores; None not known."""


def conditions(machine: Machine, gpus: list[Known]) -> dict[str, bool]:
    """What the rows ask of a machine; what is asked of GPUs must be known of every one."""
    known = sorted(capability for _, capability, _ in gpus if capability is not None)
    whole = bool(gpus) and len(known) == len(gpus)
    tensor_cores = {cores for _, _, cores in gpus}
    memory = [gpu.memory_bytes for gpu in machine.gpus or ()]
    limits, system = machine.limits, machine.platform.system
    cpu = machine.gpus == ()
    return {
        "gpu": bool(gpus),
        "several gpus": len(gpus) > 1,
        "bf16": whole and known[0] >= Version("8.0"),
        "fp8": whole and known[0] >= Version("8.9"),
        "triton": whole and known[0] >= Version("7.0"),
        "tensor cores": tensor_cores == {True},
        "no tensor cores": tensor_cores == {False},
        "fp16 only": whole and tensor_cores == {True} and known[-1] < Version("8.0"),
        "small memory": bool(memory) and all(size and size < SMALL_BYTES for size in memory),
        "laptop": any(word in name.lower() for name, _, _ in gpus for word in _LAPTOP),
        "wsl": bool(machine.platform.wsl),
        "windows": system == "Windows",
        "little shm": system == "Linux"
        and limits.shm_bytes is not None
        and 0 <= limits.shm_bytes < SMALL_SHM_BYTES,
        "cpu": cpu,
        "known cpus": cpu and limits.cpus is not None,
    }


def _known(gpu: Gpu, kb: Knowledge) -> Known:
    model = kb.gpu_by_name(gpu.name or "")
    if model is None and gpu.device_id:
        same = kb.gpus_by_pci(gpu.device_id)
        model = same[0] if len(same) == 1 else None
    name = gpu.name or (model.name if model else "GPU")
    capability = gpu.capability or (model.capability if model else None)
    cores = model.tensor_cores if model else None
    # Of 7.5 some have none, so that only a known model decides.
    if cores is None and capability is not None and capability.release[:2] != (7, 5):
        cores = capability >= Version("7.0")
    return name, capability, cores


def _of_this_machine(kept: Kept, machine: Machine, cpu: OptStr) -> bool:
    """The same GPU, driver and torch: what another of them did says nothing here."""
    if kept.torch != machine.torch.text:
        return False
    if not kept.gpus:
        return not machine.gpus and cpu is not None and kept.cpu == cpu
    names = {gpu.name for gpu in machine.gpus or ()}
    driver = machine.driver
    drivers = {str(known) for known in (driver.kernel, driver.library, driver.reported) if known}
    return set(kept.gpus) <= names and kept.driver in drivers


def _expected(row: Row, values: dict[str, str], here: list[Kept]) -> Advice:
    """A row's advice, or what was measured against it.

    It is taken back only where every figure denies it, and no best combination holds it.
    """
    figures = _figures(row.techniques, here)
    text, why = row.text.format_map(values), row.why.format_map(values)
    verdicts = {figure.verdict for figure in figures}
    in_best = [kept for kept in here if _best(kept) and {*kept.best} & {*row.techniques}]
    standing: Standing = "expected" if verdicts <= {"undecided"} else "measured"
    if in_best or (row.pays_in == "time" and "faster" in verdicts):
        standing = "measured"
    elif row.pays_in == "time" and "undecided" in verdicts:
        standing = "expected"
    elif row.pays_in == "time" and figures:
        names = dict.fromkeys(figure.technique for figure in figures)
        text, why = NOT_ADVISED.format(technique=", ".join(names)), NOT_ADVISED_WHY
        standing = "not advised"
    together = tuple(
        IN_BEST.format(workload=kept.workload, date=kept.dates.get(BEST, kept.date))
        for kept in in_best
    )
    return Advice(
        id=row.id,
        text=text,
        why=why,
        recipe=f"recipes/train/{row.recipe}.py" if row.recipe else None,
        expected=(*together, *_words(figures)) or (EXPECTED if row.techniques else ASSUMED,),
        standing=standing,
        technique=row.techniques[0] if row.techniques else None,
        measured=figures,
    )


def _figures(techniques: Iterable[str], here: list[Kept]) -> tuple[Figure, ...]:
    gains = ((kept, {gain.technique: gain for gain in kept.gains}) for kept in here)
    return tuple(
        _figure(kept, known[name]) for kept, known in gains for name in techniques if name in known
    )


def _figure(kept: Kept, gain: Gain, name: str = "") -> Figure:
    date = kept.dates.get(name or gain.technique, kept.date)
    return convert({**asdict(kept), **asdict(gain), "date": date}, Figure)


def _best(kept: Kept) -> Gain | None:
    """What several techniques together were proven to be worth."""
    gain = kept.best_gain
    return gain if len(kept.best) > 1 and gain and gain.verdict == "faster" else None


def _words(figures: Iterable[Figure]) -> Strings:
    """Measured figures, a sentence each."""
    return tuple(
        MEASURED.get(figure.verdict, MEASURED["failed"]).format(
            ratio=f"{figure.ratio or 0:.2f}",
            workload=figure.workload,
            date=figure.date,
            within=f"{100 * (figure.within or 0):.0f}",
        )
        for figure in figures
    )


def _measured(here: list[Kept], expected: set[str]) -> Iterator[Advice]:
    """The best combination of each workload, and what helped although no row expected it."""
    for kept in here:
        if gain := _best(kept):
            proven = (_figure(kept, gain, BEST),)
            yield Advice(
                id=f"best-{kept.workload}",
                text=TOGETHER.format(techniques=", ".join(kept.best)),
                why=TOGETHER_WHY,
                expected=_words(proven),
                standing="measured",
                measured=proven,
            )
    faster = {gain.technique for kept in here for gain in kept.gains if gain.verdict == "faster"}
    for name in sorted(faster - expected - {NOTHING}):
        known = BY_NAME.get(name)
        figures = _figures((name,), here)
        yield Advice(
            id=f"measured-{name}",
            text=FOUND.format(techniques=name),
            why=FOUND_WHY,
            recipe=known.script if known and known.recipe else None,
            expected=_words(figures),
            standing="measured",
            technique=name,
            measured=figures,
        )
