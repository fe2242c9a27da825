"""What the bench measured, as values, and their JSON (schema 1). Pure.

Times are seconds, memory is bytes. A ratio compares samples a second: 1.5 means half as many
again as the baseline of the same workload, on the same device, in processes that took turns.
"""

import statistics
from typing import Any, Literal

import msgspec
from msgspec import Struct

from cudadoctor.model.machine import OptInt, OptStr, Strings

Kind = Literal["data loading", "host overhead", "memory bandwidth", "compute", "not known"]
Verdict = Literal["faster", "slower", "same", "undecided", "loss-differs", "failed", "not-here"]
Method = Literal["rounds", "processes"]
"""What the intervals rest on: rounds of one process, as an earlier bench had it, or processes."""
Amount = float | None
"""None: not known."""
Line = dict[str, Any]
"""A message from a process, with its "kind", or to it, with what to "do"."""


class Config(Struct, frozen=True):
    """What one measurement ran: a workload and techniques, sorted; () is the baseline."""

    workload: str
    techniques: Strings = ()

    @property
    def name(self) -> str:
        return " + ".join(self.techniques) or "baseline"


def config(workload: str, *techniques: str) -> Config:
    """A configuration with its techniques in order, each once."""
    return Config(workload, tuple(sorted(set(techniques))))


class Measured(Struct, frozen=True, kw_only=True):
    """One configuration measured.

    rounds: seconds a step of each round of each of its processes; () where it failed. processes:
    seconds a step of each process, the median of its rounds. steps: steps of a round.
    samples_a_step: of one step of the optimiser. peak_bytes: largest memory that torch had in use
    on a GPU; on a CPU by how much the process grew at most (workers of a loader apart).
    driver_bytes: what the driver says that the process held. compile_s: by how many seconds it was
    ready later than the baseline, of one technique alone that compiles, captures or tunes; None
    where it found kernels that the same bench had compiled before. losses: of the first steps, None
    where not finite. loader_wait_s: seconds of a step in which it waited for its batch. device_s:
    seconds of a step in which the GPU worked, None on a CPU. error: why nothing was measured.
    settings: what was chosen in running, such as the number of workers or the size of the batch.
    """

    config: Config
    rounds: tuple[float, ...] = ()
    steps: int = 0
    samples_a_step: int = 0
    peak_bytes: OptInt = None
    driver_bytes: OptInt = None
    compile_s: Amount = None
    losses: tuple[Amount, ...] = ()
    error: OptStr = None
    loader_wait_s: Amount = None
    device_s: Amount = None
    settings: dict[str, str | int | float | bool] = {}
    processes: tuple[float, ...] = ()

    @property
    def step_s(self) -> Amount:
        """Seconds a step: the median of its rounds."""
        return statistics.median(self.rounds) if self.rounds else None

    @property
    def spread_s(self) -> tuple[float, float] | None:
        """The quartiles of its rounds: half of them lie between. None for one round alone."""
        if len(self.rounds) < 2:
            return None
        low, _, high = statistics.quantiles(self.rounds, n=4, method="inclusive")
        return low, high


class Gain(Struct, frozen=True, kw_only=True):
    """What a technique, or the best combination, is worth against the baseline.

    technique: its name, or several joined by " + ". ratio: samples a second over the baseline's,
    with low and high, the ends of its interval: in 95 % of all benches every interval holds what is
    true. verdict: faster or slower where that interval leaves no doubt; same: equal within `within`
    (0.03: 3 %); undecided: neither could be told; loss-differs: what it computed is not the same
    within its tolerance; failed: it could not be run; not-here: it was not tried, since it cannot
    work here or the time limit was reached. memory_ratio: peak memory over the baseline's.
    measured: the figures behind it. pairs: the ratio of each pair of fresh processes.
    """

    technique: str
    verdict: Verdict
    why: str = ""
    ratio: Amount = None
    low: Amount = None
    high: Amount = None
    memory_ratio: Amount = None
    measured: Measured | None = None
    within: Amount = None
    pairs: tuple[float, ...] = ()


class Conditions(Struct, frozen=True, kw_only=True):
    """How the machine was while a workload was measured.

    busy: part of all cores that other programs used before it began. load: the load average then.
    quota_cores: cores that a control group allows, where these are fewer than there are. throttled:
    periods in which that stopped a process. clock_mhz, power_w: the least and the most of a round
    on a GPU. throttle: what lowered its clocks, by NVML's names.
    """

    busy: Amount = None
    load: Amount = None
    quota_cores: OptInt = None
    throttled: OptInt = None
    clock_mhz: tuple[int, int] | None = None
    power_w: tuple[int, int] | None = None
    throttle: Strings = ()


class Bottleneck(Struct, frozen=True, kw_only=True):
    """Where the time of the baseline goes. figures: what was reckoned, such as tflops."""

    kind: Kind
    why: str
    figures: dict[str, float] = {}


class WorkloadResult(Struct, frozen=True, kw_only=True):
    """One workload: baseline, each technique alone, and the best combination.

    samples_unit: what a sample is (images, sequences). noise: how far two processes of the same
    code usually were apart, as a ratio above 1 (1.02: 2 %). best: its techniques, () the baseline.
    best_gain: of the best, always in fresh processes against the baseline. combined: the other
    combinations that were tried; their technique says against what, if not against the baseline.
    ended: why it was cut short, "" where it was not. shape: what the workload is made of, in a
    sentence. unproven: only in documents of an earlier bench.
    """

    name: str
    samples_unit: str
    baseline: Measured
    bottleneck: Bottleneck
    alone: tuple[Gain, ...] = ()
    best: Strings = ()
    best_gain: Gain | None = None
    noise: Amount = None
    combined: tuple[Gain, ...] = ()
    ended: str = ""
    shape: str = ""
    unproven: Gain | None = None
    conditions: Conditions | None = None


class BenchResult(Struct, frozen=True, kw_only=True):
    """All that one call measured, and on what.

    date: ISO 8601, with the time. device: cpu or cuda:N; gpu, driver and cuda are None on a CPU.
    minutes: the budget that was asked for. seconds: what it took. complete: False where it was
    interrupted or the time ended it. notes: sentences that the reader must know. method: what the
    intervals rest on.
    """

    schema: Literal[1] = 1
    cudadoctor: str
    date: str
    device: str
    torch: str
    python: str
    cpu: str
    minutes: float
    workloads: tuple[WorkloadResult, ...]
    gpu: OptStr = None
    capability: OptStr = None
    driver: OptStr = None
    cuda: OptStr = None
    cores: OptInt = None
    seconds: Amount = None
    complete: bool = True
    notes: Strings = ()
    method: Method = "rounds"

    @property
    def hardware(self) -> str:
        """The name of what was measured: the GPU's, else the CPU's."""
        return self.gpu if self.gpu is not None else self.cpu


def dumps(document: Struct) -> str:
    """As JSON, for --json, for a file and for the store."""
    return msgspec.json.format(msgspec.json.encode(document), indent=1).decode()
