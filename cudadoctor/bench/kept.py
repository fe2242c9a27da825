"""What is kept of a result for later advice, and only that: no path, no user, no host. Pure."""

from __future__ import annotations

import hashlib

import msgspec

from cudadoctor.bench.results import BenchResult, Gain, Verdict, WorkloadResult

SCHEMA = 1


class KeptGain(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a technique, without the words that an error may have brought."""

    technique: str
    verdict: Verdict
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    memory_ratio: float | None = None


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """One workload measured on one machine.

    gpus: names of the GPUs that were measured on, () for a CPU; cpu: its name, then only. driver:
    None on a CPU. date: a day, ISO 8601. best: what was proven in fresh processes, else ().
    """

    workload: str
    torch: str
    date: str
    gpus: tuple[str, ...] = ()
    driver: str | None = None
    cpu: str | None = None
    gains: tuple[KeptGain, ...] = ()
    best: tuple[str, ...] = ()
    best_gain: KeptGain | None = None
    schema: int = SCHEMA

    @property
    def name(self) -> str:
        """A file name that tells machine, torch and workload apart and names none of them."""
        parts = (*self.gpus, self.driver or "", self.torch, self.cpu or "", self.workload)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20] + ".json"

    def of(self, technique: str) -> KeptGain | None:
        """What was measured of that technique alone."""
        return next((one for one in self.gains if one.technique == technique), None)


def from_result(result: BenchResult) -> tuple[Kept, ...]:
    """What to keep: of each workload whose baseline was measured."""
    return tuple(_kept(result, one) for one in result.workloads if one.baseline.rounds)


def _kept(result: BenchResult, one: WorkloadResult) -> Kept:
    return Kept(
        workload=one.name,
        torch=result.torch,
        date=result.date[:10],
        gpus=(result.gpu,) if result.gpu is not None else (),
        driver=result.driver,
        cpu=result.cpu if result.gpu is None else None,
        gains=tuple(_gain(gain) for gain in one.alone if gain.verdict != "not-here"),
        best=one.best if one.unproven is None else (),
        best_gain=_gain(one.best_gain) if one.best_gain is not None else None,
    )


def _gain(one: Gain) -> KeptGain:
    return KeptGain(
        technique=one.technique,
        verdict=one.verdict,
        ratio=one.ratio,
        low=one.low,
        high=one.high,
        memory_ratio=one.memory_ratio,
    )


def dumps(one: Kept) -> bytes:
    return msgspec.json.encode(one)


def loads(text: bytes) -> Kept | None:
    """What `dumps` wrote; None for anything else, and for another schema."""
    try:
        found = msgspec.json.decode(text, type=Kept)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return found if found.schema == SCHEMA else None
