"""Random faults of the driver on simulated hosts: one call fails in one way, of one GPU or of all.

Run: python benchmarks/driver_faults.py PYTHON [NUMBER [SEED]]
PYTHON has a torch of CUDA 13.0 to examine. Each host is asked by the real children through the
libraries of C of tests/standins, with a fast look and one without the training step. Prints each
fault with its verdict, what was found, and what is not known with the reason; a person reads it.
Bar: nothing that was neither known nor explained, and no verdict "healthy" where a call failed
that a verdict needs.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from fault_fixtures import CODES, GARBAGE, functions, standing, unexplained
from raw_hosts import RawHost, healthy
from standin_fixtures import StandIns

from cudadoctor import knowledge
from cudadoctor.probes import Looked
from cudadoctor.rules.diagnose import diagnose

CUDA_CODES = (1, 2, 3, 34, 46, 100, 101, 201, 205, 304, 800, 801, 802, 803, 804, 999)
CUDA_CALLS = ("cuDriverGetVersion", "cuInit", "cuDeviceGetCount")
HANGS = ("nvmlInitWithFlags", "nvmlDeviceGetCount_v2", "nvmlDeviceGetName")
NEEDED = {
    *("nvmlInitWithFlags", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2"),
    *("cuInit", "cuDeviceGetCount"),
}
"""Without an answer to these no host is healthy."""


def two(host: RawHost) -> RawHost:
    host.gpus += "count = 2\n"
    host.on_the_bus("2684", "0000:a1:00.0").node("/dev/nvidia1")
    host.torch_says = {**host.torch_says, "count": 2, "devices": [{"capability": "8.9"}] * 2}
    return host


def sliced(host: RawHost) -> RawHost:
    host.gpus = "name = NVIDIA A100-SXM4-80GB\npci_id = 0x20b210de\ncapability = 80\nmig = 1\n"
    host.gpus += "mig_devices = 1\nnvlinks = 0\nnvmlDeviceGetGpuFabricInfoV = 3\n"
    host.torch_says = {**host.torch_says, "devices": [{"capability": "8.0"}]}
    return host.on_the_bus("20b2", kind="30200")


def vgpu(host: RawHost) -> RawHost:
    host.gpus += "virtualization = 2\nnvmlDeviceGetPowerUsage = 3\n"
    return host


KINDS: dict[str, Callable[[RawHost], RawHost]] = {
    "bare": lambda host: host,
    "two": two,
    "wsl": lambda host: host.in_wsl(),
    "docker": lambda host: host.in_docker(),
    "docker-two": lambda host: two(host).in_docker(),
    "mig": sliced,
    "vgpu": vgpu,
}


class Fault(NamedTuple):
    """A call that does this, of this GPU or (None) of all, on a host of this kind."""

    kind: str
    call: str
    does: str
    gpu: int | None

    def on(self, standins: StandIns, python: str) -> RawHost:
        host = KINDS[self.kind](healthy(standins, python))
        words = f"{self.call} = {self.does}\n"
        if self.call.startswith("cu"):
            host.cuda = words
            count = 2 if "two" in self.kind else 1
            host.gpus += f"count = {count}\n" if "count" not in host.gpus else ""
            if self.call != "cuDriverGetVersion":
                none = {"available": False, "count": 0, "devices": []}
                host.torch_says = {**host.torch_says, **none, "error": f"CUDA error {self.does}"}
        else:
            host.nvml = words if self.gpu is None else f"gpu{self.gpu}.{words}"
        return host

    def expected(self, look: dict[str, Any]) -> list[str]:
        """The verdicts that are correct for this fault, given what the look reported."""
        serious = ["undecided", "broken"]
        if "Init" in self.call and self.does in GARBAGE:
            return ["healthy", *serious]  # these calls return only a code, and the code is success
        unheard = look["ended"] or any("no response" in gap for gap in look["gaps"])
        if self.call in NEEDED or (self.does in ("crash", "hang") and unheard):
            return serious
        return ["healthy", "warnings", "undecided", *(["broken"] if self.does in _GONE else [])]


_GONE = ("15", "16")


def drawn(number: int, seed: int) -> list[Fault]:
    """Different ones by that seed; calls that matter most come up often."""
    dice = random.Random(seed)
    found: dict[Fault, None] = {}
    while len(found) < number:
        kind = dice.choice([*KINDS])
        calls: tuple[str, ...] = dice.choice([functions(), tuple(NEEDED), CUDA_CALLS])
        call = dice.choice(sorted(calls))
        codes = CUDA_CODES if call.startswith("cu") else CODES
        does = dice.choice([*map(str, dice.sample(codes, 4)), "crash", dice.choice(GARBAGE)])
        if call in (*HANGS, *CUDA_CALLS) and dice.random() < 0.2:
            does = "hang"
        about = "Device" in call and "Count" not in call and not call.startswith("cu")
        gpu = dice.choice([0, 1, None]) if about and "two" in kind else None
        found[Fault(kind, call, does, gpu)] = None
    return list(found)


def seen(host: RawHost, depth: Literal["fast", "no-smoke"]) -> dict[str, Any]:
    """What one look at the host found."""
    machine = host.machine(depth)
    found = diagnose(machine, knowledge.load())
    facts = {"driver": machine.driver, "gpus": machine.gpus, "pci": machine.pci}
    looked = Looked(facts={k: v for k, v in facts.items() if v is not None}, gaps=machine.gaps)
    nvml, cuda = machine.driver.nvml, machine.driver.libcuda
    return {
        "verdict": found.verdict,
        "primary": found.primary,
        "standing": standing(found),
        "titles": [finding.title for finding in found.findings if not finding.because_of],
        "undecided": sorted(undecided.cause for undecided in found.undecided if undecided.matters),
        "ended": [end for end in (nvml.signal, nvml.hung, cuda.signal, cuda.hung) if end],
        "nvml": [nvml.code, nvml.call, nvml.count, nvml.hung, nvml.hung_gpu, nvml.signal],
        "libcuda": [cuda.code, cuda.count, cuda.count_code, cuda.hung, cuda.signal],
        "gpus": [(gpu.code, gpu.name, gpu.bus_id) for gpu in machine.gpus or ()],
        "gaps": [f"{gap.fact}: {gap.why}" for gap in machine.gaps if gap.asked],
        "unexplained": unexplained(looked),
    }


def main(python: str, number: int, seed: int) -> int:
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        standins = StandIns(Path(folder))
        for kind in KINDS:
            look = seen(Fault(kind, "nothing", "0", None).on(standins, python), "no-smoke")
            bad += look["verdict"] != "healthy"
            sys.stdout.write(json.dumps({"kind": kind, "call": None, **look}) + "\n")
        for place, fault in enumerate(drawn(number, seed)):
            looks = ("fast",) if fault.does == "hang" and place % 3 else ("fast", "no-smoke")
            for depth in looks:
                look = seen(fault.on(standins, python), depth)  # type: ignore[arg-type]
                expected = fault.expected(look)
                wrong = bool(look["unexplained"]) or look["verdict"] not in expected
                bad += wrong
                row = {**fault._asdict(), "look": depth, "expected": expected, **look}
                sys.stdout.write(json.dumps({"wrong": wrong, **row}) + "\n")
                sys.stdout.flush()
    return 1 if bad else 0


if __name__ == "__main__":
    words = [*sys.argv[1:], "40", "12"]
    raise SystemExit(main(words[0], int(words[1]), int(words[2])))
