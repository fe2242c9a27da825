"""How busy the machine is, before and while it is measured: other programs, quota, clocks."""

from collections.abc import Iterable
from time import sleep

from msgspec.structs import replace

from cudadoctor.bench.results import Amount, Conditions, Line
from cudadoctor.host.local import Host
from cudadoctor.model.machine import OptInt
from cudadoctor.probes import extract
from cudadoctor.probes.limits import group_files

LOOK_S = 0.5
BUSY = 0.2
"""Part of the cores that others use: from here on a CPU's figures scatter too much."""
FEED_CORES = 2.0
"""Cores that a training on a GPU needs for itself."""
OFTEN = 10
"""Periods of a tenth of a second in which a quota stopped the processes, to be worth a word."""
REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""What lowers the clocks of a GPU that works, by NVML's bits; idle and set clocks are no such."""


def before(host: Host, cores: OptInt, allowed: OptInt) -> Conditions:
    """What others use while nothing of ours runs. cores: by affinity. allowed: by quota too."""
    first = _ticks(host)
    sleep(LOOK_S)
    last = _ticks(host)
    busy = None
    if first and last and last[0] > first[0]:
        busy = round(1 - (last[1] - first[1]) / (last[0] - first[0]), 3)
    less = allowed if allowed and cores and allowed < cores else None
    return Conditions(busy=busy, load=_load(host), quota_cores=less)


def after(
    begun: Conditions, throttled_before: OptInt, host: Host, live: Iterable[Line]
) -> Conditions:
    """With what happened while it was measured. live: what NVML said in each round."""
    lines = list(live)
    now, then = throttled(host), throttled_before
    bits = 0
    for line in lines:
        bits |= line.get("throttle", 0)
    clocks = [line["clock_mhz"] for line in lines if "clock_mhz" in line]
    powers = [round(line["power_mw"] / 1e3) for line in lines if "power_mw" in line]
    return replace(
        begun,
        throttled=None if now is None or then is None else now - then,
        clock_mhz=(min(clocks), max(clocks)) if clocks else None,
        power_w=(min(powers), max(powers)) if powers else None,
        throttle=tuple(name for bit, name in REASONS.items() if bits & bit),
    )


def warnings(found: Conditions, *, gpu: bool, cores: int) -> list[str]:
    """Sentences about what keeps the figures from being decided."""
    said = []
    if found.busy is not None:
        free = (1 - found.busy) * cores
        if (free < FEED_CORES and found.busy >= BUSY) if gpu else found.busy >= BUSY:
            said.append(
                f"the machine is busy: other programs use {found.busy:.0%} of the CPU, so small"
                " gains cannot be measured; stop them first"
            )
    if found.quota_cores:
        said.append(
            f"the CPU quota (cpu.max) allows {found.quota_cores} of {cores} cores; torch starts"
            f" more threads than that unless you set OMP_NUM_THREADS={found.quota_cores}"
        )
    if (found.throttled or 0) >= OFTEN:
        said.append(
            f"the CPU quota (cpu.max) stopped the processes in {found.throttled} periods while"
            " they were measured"
        )
    if found.throttle:
        said.append(
            f"the GPU lowered its clocks while it was measured: {', '.join(found.throttle)}"
        )
    return said


def throttled(host: Host) -> OptInt:
    """Periods in which the quota of a control group stopped its processes so far."""
    counts = (
        extract(r"(?m)^nr_throttled (\d{1,18})$", text) for text in group_files(host, "cpu.stat")
    )
    return max((int(count) for count in counts if count), default=None)


def _load(host: Host) -> Amount:
    found = extract(r"^(\d+\.\d+) ", host.read("/proc/loadavg").text)
    return float(found) if found else None


def _ticks(host: Host) -> tuple[int, int] | None:
    """Of all cores together since the start of the system: all, and those that were idle."""
    line = host.read("/proc/stat").text.partition("\n")[0].split()
    if line[:1] != ["cpu"] or not all(word.isdigit() for word in line[1:]):
        return None
    counts = [int(word) for word in line[1:9]]
    return sum(counts), sum(counts[3:5])
