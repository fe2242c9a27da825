"""What is expected to make training faster on this machine, corrected by what was measured. Pure.

An expectation comes from what the tables know of a GPU; it carries no number. A number stands only
where the bench measured it on this machine, with this driver and this torch: then a technique that
did not help is not advised, and that is said.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Literal

import msgspec
from packaging.version import Version

from cudadoctor.bench.results import Gain
from cudadoctor.bench.store import Kept
from cudadoctor.bench.techniques import BY_NAME, NOTHING, table
from cudadoctor.knowledge import Knowledge
from cudadoctor.model.machine import Gpu, Machine

Standing = Literal["expected", "measured", "not advised"]
STANDINGS: tuple[Standing, ...] = ("measured", "expected", "not advised")
"""In the order in which they are shown."""
SMALL_BYTES = 4_000_000_000
SMALL_SHM_BYTES = 1 << 30
_LAPTOP = ("laptop", "mobile", "max-q", "notebook")

EXPECTED = "expected, not measured here (cudadoctor bench measures it)"
ASSUMED = "expected, not measured here"
MEASURED = {
    "faster": "measured here: {ratio}x on the {workload} workload, {date}",
    "slower": "measured here: slower, {ratio}x on the {workload} workload, {date}",
    "same": "measured here: no difference that can be told on the {workload} workload, {date}",
    "loss-differs": "measured here: the loss differs on the {workload} workload, {date}",
    "failed": "measured here: it failed on the {workload} workload, {date}",
}
NOT_ADVISED = "Not advised here: {technique}"
NOT_ADVISED_WHY = "It is expected to help on such a machine, but it did not where it was measured."
TOGETHER = "Use {techniques} together"
TOGETHER_WHY = "The bench found this combination the fastest for that workload."
FOUND = "Use {techniques}"
FOUND_WHY = "The bench measured that it helps, although nothing else here made it expected."


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What is expected of a machine. when: see `conditions`.

    pays_in: "time" is taken back where the bench found no gain.
    """

    id: str
    when: str
    text: str
    why: str
    recipe: str | None = None
    techniques: tuple[str, ...] = ()
    pays_in: Literal["time", "memory", "care"] = "time"


ROWS = table("advice", Row)
TEXTS = (
    *(EXPECTED, ASSUMED, *MEASURED.values(), NOT_ADVISED, NOT_ADVISED_WHY),
    *(TOGETHER, TOGETHER_WHY, FOUND, FOUND_WHY),
    *(text for row in ROWS for text in (row.text, row.why)),
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
    here = [result for result in kept if _of_this_machine(result, machine, cpu)]
    true = conditions(machine, kb)
    rows = [row for row in ROWS if true[row.when]]
    names = dict.fromkeys(_known(gpu, kb)[0] for gpu in machine.gpus or ())
    values = {
        "gpu": ", ".join(names),
        "count": str(len(machine.gpus or ())),
        "size": f"{(machine.limits.shm_bytes or 0) / 2**20:.0f} MiB",
        "cpus": str(machine.limits.cpus or ""),
    }
    expected = {name for row in rows for name in row.techniques}
    advice = [*_together(here), *_beyond(here, expected)]
    advice += [_expected(row, values, here) for row in rows]
    return tuple(sorted(advice, key=lambda piece: STANDINGS.index(piece.standing)))


def conditions(machine: Machine, kb: Knowledge) -> dict[str, bool]:
    """What the rows ask of a machine; what is asked of GPUs must be known of every one."""
    gpus = [(gpu, *_known(gpu, kb)) for gpu in machine.gpus or ()]

    def every(test: Callable[[Version], bool]) -> bool:
        known = [capability for _, _, capability, _ in gpus]
        return bool(known) and all(one is not None and test(one) for one in known)

    def since(least: str) -> bool:
        return every(lambda capability: capability >= Version(least))

    tensor_cores = {cores for _, _, _, cores in gpus}
    memory = [gpu.memory_bytes for gpu, *_ in gpus]
    shm, system = machine.limits.shm_bytes, machine.platform.system
    cpu = machine.gpus == ()
    return {
        "gpu": bool(gpus),
        "several gpus": len(gpus) > 1,
        "bf16": since("8.0"),
        "fp8": since("8.9"),
        "triton": since("7.0"),
        "tensor cores": tensor_cores == {True},
        "no tensor cores": tensor_cores == {False},
        "fp16 only": tensor_cores == {True} and every(lambda found: found < Version("8.0")),
        "small memory": bool(gpus) and all(one and one < SMALL_BYTES for one in memory),
        "laptop": any(word in name.lower() for _, name, _, _ in gpus for word in _LAPTOP),
        "wsl": bool(machine.platform.wsl),
        "windows": system == "Windows",
        "little shm": system == "Linux" and shm is not None and 0 <= shm < SMALL_SHM_BYTES,
        "cpu": cpu,
        "known cpus": cpu and machine.limits.cpus is not None,
    }


def _known(gpu: Gpu, kb: Knowledge) -> tuple[str, Version | None, bool | None]:
    """The name, the compute capability, and whether there are tensor cores; None not known."""
    model = kb.gpu_by_name(gpu.name) if gpu.name else None
    if model is None and gpu.device_id:
        same = kb.gpus_by_pci(gpu.device_id)
        model = same[0] if len(same) == 1 else None
    name = gpu.name or (model.name if model else "GPU")
    capability = gpu.capability or (model.capability if model else None)
    if model is not None and model.tensor_cores is not None:
        return name, capability, model.tensor_cores
    # Of 7.5 some have none, so that only a known model decides.
    if capability is None or capability.release[:2] == (7, 5):
        return name, capability, None
    return name, capability, capability >= Version("7.0")


def _of_this_machine(kept: Kept, machine: Machine, cpu: str | None) -> bool:
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
    """A row's advice, or what was measured against it."""
    figures = tuple(_figures(row.techniques, here))
    text, why = row.text.format_map(values), row.why.format_map(values)
    standing: Standing = "measured" if figures else "expected"
    helps = any(figure.verdict == "faster" for figure in figures)
    if figures and row.pays_in == "time" and not helps:
        names = dict.fromkeys(figure.technique for figure in figures)
        text, why = NOT_ADVISED.format(technique=", ".join(names)), NOT_ADVISED_WHY
        standing = "not advised"
    return Advice(
        id=row.id,
        text=text,
        why=why,
        recipe=f"recipes/train/{row.recipe}.py" if row.recipe else None,
        expected=_words(figures) or (EXPECTED if row.techniques else ASSUMED,),
        standing=standing,
        technique=row.techniques[0] if row.techniques else None,
        measured=figures,
    )


def _figures(techniques: Iterable[str], here: list[Kept]) -> Iterator[Figure]:
    for kept in here:
        gains = {gain.technique: gain for gain in kept.gains}
        yield from (_figure(kept, gains[name]) for name in techniques if name in gains)


def _figure(kept: Kept, gain: Gain) -> Figure:
    return Figure(
        technique=gain.technique,
        workload=kept.workload,
        date=kept.date,
        verdict=gain.verdict,
        ratio=gain.ratio,
        low=gain.low,
        high=gain.high,
    )


def _words(figures: tuple[Figure, ...]) -> tuple[str, ...]:
    """Measured figures, a sentence each."""
    found = []
    for figure in figures:
        template = MEASURED.get(figure.verdict, MEASURED["failed"])
        if "{ratio}" in template and figure.ratio is None:
            template = MEASURED["same"]
        ratio = f"{figure.ratio or 0:.2f}"
        found.append(template.format(ratio=ratio, workload=figure.workload, date=figure.date))
    return tuple(found)


def _together(here: list[Kept]) -> Iterator[Advice]:
    """The best combination of each workload, if it has more than one technique."""
    for kept in here:
        gain = kept.best_gain
        if len(kept.best) > 1 and gain is not None and gain.verdict == "faster":
            names, figures = ", ".join(kept.best), (_figure(kept, gain),)
            yield _measured(f"best-{kept.workload}", TOGETHER, TOGETHER_WHY, names, figures)


def _beyond(here: list[Kept], expected: set[str]) -> Iterator[Advice]:
    """What was measured to help although no row expected it."""
    faster = {gain.technique for kept in here for gain in kept.gains if gain.verdict == "faster"}
    for name in sorted(faster - expected - {NOTHING}):
        figures = tuple(_figures((name,), here))
        found = _measured(f"measured-{name}", FOUND, FOUND_WHY, name, figures)
        known = BY_NAME.get(name)
        recipe = known.script if known and known.recipe else None
        yield msgspec.structs.replace(found, technique=name, recipe=recipe)


def _measured(
    id_: str, text: str, why: str, techniques: str, figures: tuple[Figure, ...]
) -> Advice:
    return Advice(
        id=id_,
        text=text.format(techniques=techniques),
        why=why,
        recipe=None,
        expected=_words(figures),
        standing="measured",
        measured=figures,
    )
