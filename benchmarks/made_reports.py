"""Made-up reports with one planted fault or none: how many are diagnosed correctly, and how fast.

    python benchmarks/made_reports.py [REPORTS] [--wrong]

The documents are written here in the formats of collect_env, nvidia-smi and pip list, out of the
published builds; nothing of the readers is used. Then they are decorated as people paste them.
"""

from __future__ import annotations

import argparse
import random
import re
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from measuring import saved
from packaging.version import Version

from cudadoctor import knowledge
from cudadoctor.knowledge import TorchBuild
from cudadoctor.model.findings import Diagnosis
from cudadoctor.pipeline import judge, report
from cudadoctor.render import json_v1
from cudadoctor.reports.reading import read_report

KB = knowledge.load()


class Card(NamedTuple):
    """A GPU. first, last: the driver branches that support it (last 0: still does)."""

    name: str
    capability: str
    first: int
    last: int = 0


CARDS = (
    Card("Tesla K80", "3.7", 352, 470),
    Card("GeForce GTX 980", "5.2", 352, 580),
    Card("NVIDIA GeForce GTX 1080 Ti", "6.1", 384, 580),
    Card("Tesla P100-PCIE-16GB", "6.0", 375, 580),
    Card("Tesla V100-SXM2-16GB", "7.0", 384, 580),
    Card("Tesla T4", "7.5", 410),
    Card("NVIDIA GeForce RTX 2080 Ti", "7.5", 410),
    Card("NVIDIA A100-SXM4-80GB", "8.0", 450),
    Card("NVIDIA GeForce RTX 3090", "8.6", 455),
    Card("NVIDIA GeForce RTX 4090", "8.9", 525),
    Card("NVIDIA L40S", "8.9", 525),
    Card("NVIDIA H100 80GB HBM3", "9.0", 525),
    Card("NVIDIA GeForce RTX 5090", "12.0", 570),
)
_DRIVERS = """
440.100 10.2      450.80.02 11.0    460.91.03 11.2    470.256.02 11.4   510.47.03 11.6
525.147.05 12.0   535.183.01 12.2   550.54.14 12.4    560.35.05 12.6    570.124.06 12.8
580.95.05 13.0    590.48.01 13.1
"""
DRIVERS = dict(re.findall(r"(\S+) (\S+)", _DRIVERS))
"""Driver release -> the newest CUDA version that it runs."""


class Made(NamedTuple):
    """A report and the cause that was planted, None for none."""

    text: str
    cause: str | None
    kind: str


class Host(NamedTuple):
    """What a report tells of: a card, a driver, a build and a Python that fit each other."""

    card: Card
    driver: str
    build: TorchBuild
    python: str


def runs(host: Host) -> bool:
    """Whether the driver knows the card and runs the build (major by major), and the build too."""
    branch = int(host.driver.split(".")[0])
    if branch < host.card.first or (host.card.last and branch > host.card.last):
        return False
    return driver_serves(host) and serves(host)


def driver_serves(host: Host) -> bool:
    cuda, runs_up_to = host.build.cuda, Version(DRIVERS[host.driver])
    if cuda is None:
        return True
    return cuda <= runs_up_to or (cuda.major == runs_up_to.major >= 11)


def serves(host: Host) -> bool:
    """Whether the build holds machine code for the card: same major, lower or equal minor."""
    major, minor = (int(part) for part in host.card.capability.split("."))
    codes = [arch[3:].rstrip("af") for arch in host.build.archs or () if arch.startswith("sm_")]
    return any(int(code[:-1]) == major and int(code[-1]) <= minor for code in codes)


def builds(dice: random.Random) -> TorchBuild:
    usable = [
        build
        for build in KB.builds_on("linux_x86_64")
        if build.published
        and build.archs
        and build.cuda
        and not build.archs_uncertain
        and build.torchvision
    ]
    return dice.choice(usable)


def hosts(dice: random.Random, wanted: Callable[[Host], bool]) -> Host:
    """A host for which `wanted` holds."""
    while True:
        build = builds(dice)
        python = dice.choice([version for version in build.pythons if not version.endswith("t")])
        host = Host(dice.choice(CARDS), dice.choice(list(DRIVERS)), build, python)
        if wanted(host):
            return host


def old_for_card(host: Host) -> bool:
    branch = int(host.driver.split(".")[0])
    return branch < host.card.first or bool(host.card.last and branch > host.card.last)


# --- the formats ---------------------------------------------------------------------------------


def version_of(build: TorchBuild) -> str:
    return f"{build.torch}+{build.variant}"


def collect_env(host: Host, *, available: bool, packages: dict[str, str], cuda: str) -> str:
    torch = packages["torch"]
    lines = [
        "Collecting environment information...",
        f"PyTorch version: {torch}",
        "Is debug build: False",
        f"CUDA used to build PyTorch: {cuda}",
        "ROCM used to build PyTorch: N/A",
        "",
        "OS: Ubuntu 22.04.4 LTS (x86_64)",
        "GCC version: (Ubuntu 11.4.0-1ubuntu1~22.04) 11.4.0",
        "Clang version: Could not collect",
        "Libc version: glibc-2.35",
        "",
        f"Python version: {host.python}.4 (main, Jun  7 2023, 12:00:00) [GCC 11.4.0]",
        "Python platform: Linux-5.15.0-105-generic-x86_64-with-glibc2.35",
        f"Is CUDA available: {available}",
        "CUDA runtime version: Could not collect",
        f"GPU models and configuration: GPU 0: {host.card.name}",
        f"Nvidia driver version: {host.driver}",
        "cuDNN version: Could not collect",
        "Is XNNPACK available: True",
        "",
        "Versions of relevant libraries:",
        *(f"[pip3] {name}=={version}" for name, version in packages.items()),
        "[conda] Could not collect",
    ]
    return "\n".join(lines)


def smi(host: Host, *, compute_mode: str = "Default", ecc: str = "0", mig: str = "N/A") -> str:
    """The table as drivers from 530 on draw it."""
    driver, cuda = host.driver, DRIVERS[host.driver]
    name = host.card.name[:28]
    return "\n".join(
        [
            "+" + "-" * 77 + "+",
            f"| NVIDIA-SMI {driver:<12} Driver Version: {driver:<12} CUDA Version: {cuda:<9}|",
            "|-------------------------------+----------------------+----------------------+",
            "| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |",
            "| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |",
            "|                               |                      |               MIG M. |",
            "|===============================+======================+======================|",
            f"|   0  {name:<20} Off  | 00000000:01:00.0 Off | {ecc:>20} |",
            "| N/A   34C    P0    25W / 250W |      0MiB / 16160MiB |"
            f"      0% {compute_mode:>12} |",
            f"|                               |                      | {mig:>20} |",
            "+-------------------------------+----------------------+----------------------+",
        ]
    )


def packages_of(host: Host, **other: str) -> dict[str, str]:
    build = host.build
    numpy = "1.26.4" if build.torch < Version("2.3") else "2.1.2"
    found = {"numpy": numpy, "torch": version_of(build), "torchvision": f"{build.torchvision}"}
    return {**found, **other}


def pip_list(packages: dict[str, str]) -> str:
    width = max(len(name) for name in packages) + 1
    rows = [f"{name:<{width}}{version}" for name, version in packages.items()]
    return "\n".join([f"{'Package':<{width}}Version", f"{'-' * (width - 1)} -------", *rows])


def cuda_text(build: TorchBuild) -> str:
    return str(build.cuda)


# --- the plants ----------------------------------------------------------------------------------


def healthy(dice: random.Random) -> Made:
    host = hosts(dice, runs)
    packages = packages_of(host)
    text = collect_env(host, available=True, packages=packages, cuda=cuda_text(host.build))
    return Made(dice.choice([text, f"{text}\n\n{smi(host)}"]), None, "healthy")


def healthy_lists(dice: random.Random) -> Made:
    host = hosts(dice, runs)
    return Made(f"{pip_list(packages_of(host))}\n\n{smi(host)}", None, "healthy lists")


def driver_too_old(dice: random.Random) -> Made:
    host = hosts(
        dice,
        lambda candidate: (
            serves(candidate) and not driver_serves(candidate) and not old_for_card(candidate)
        ),
    )
    if dice.random() < 0.5:
        packages = packages_of(host)
        text = collect_env(host, available=False, packages=packages, cuda=cuda_text(host.build))
    else:
        text = f"{pip_list(packages_of(host))}\n\n{smi(host)}"
    return Made(text, "driver-too-old", "driver too old")


def cpu_build(dice: random.Random) -> Made:
    host = hosts(dice, runs)
    packages = packages_of(host, torch=f"{host.build.torch}+cpu")
    text = collect_env(host, available=False, packages=packages, cuda="Could not collect")
    if dice.random() < 0.5:
        text = f"{pip_list(packages)}\n\n{smi(host)}\nAssertionError: Torch not compiled with CUDA"
        text += " enabled"
    return Made(text, "torch-cpu-build", "CPU build")


def too_new(dice: random.Random) -> Made:
    def wanted(candidate: Host) -> bool:
        codes = [
            int(c[3:].rstrip("af")) for c in candidate.build.archs or () if c.startswith("sm_")
        ]
        newer = int(candidate.card.capability.replace(".", "")) > max(codes) // 10 * 10 + 9
        ptx = any(code.startswith("compute_") for code in candidate.build.archs or ())
        return newer and not ptx and driver_serves(candidate) and not old_for_card(candidate)

    host = hosts(dice, wanted)
    packages = packages_of(host)
    text = collect_env(host, available=True, packages=packages, cuda=cuda_text(host.build))
    if dice.random() < 0.5:
        text = "RuntimeError: CUDA error: no kernel image is available for execution on the device"
        text += f"\n\n{pip_list(packages)}\n\n{smi(host)}"
    return Made(text, "torch-arch-unsupported-new", "GPU too new")


def too_old(dice: random.Random) -> Made:
    def wanted(candidate: Host) -> bool:
        codes = [
            int(c[3:].rstrip("af")) for c in candidate.build.archs or () if c.startswith("sm_")
        ]
        older = int(candidate.card.capability.replace(".", "")) < min(codes)
        return older and driver_serves(candidate) and not old_for_card(candidate)

    host = hosts(dice, wanted)
    packages = packages_of(host)
    text = collect_env(host, available=True, packages=packages, cuda=cuda_text(host.build))
    return Made(text, "torch-arch-unsupported-old", "GPU too old")


def numpy_2(dice: random.Random) -> Made:
    host = hosts(
        dice,
        lambda candidate: (
            runs(candidate) and Version("1.13") < candidate.build.torch < Version("2.3")
        ),
    )
    packages = packages_of(host, numpy="2.0.1")
    text = collect_env(host, available=True, packages=packages, cuda=cuda_text(host.build))
    return Made(text, "numpy-abi", "numpy 2")


def companion(dice: random.Random) -> Made:
    host = hosts(dice, runs)
    other = hosts(dice, lambda candidate: candidate.build.torchvision != host.build.torchvision)
    packages = packages_of(host, torchvision=str(other.build.torchvision))
    text = "RuntimeError: operator torchvision::nms does not exist\n\n" + pip_list(packages)
    return Made(text, "torch-companion-mismatch", "companion")


def mismatch(dice: random.Random) -> Made:
    host = hosts(dice, runs)
    number = host.driver.split(".")[0]
    text = (
        "Failed to initialize NVML: Driver/library version mismatch\n"
        f"NVML library version: {number}.{dice.randrange(10, 99)}\n\n{pip_list(packages_of(host))}"
    )
    return Made(text, "driver-library-mismatch", "library mismatch")


def prohibited(dice: random.Random) -> Made:
    host = hosts(dice, runs)
    text = smi(host, compute_mode="Prohibited") + "\nRuntimeError: CUDA error: all CUDA-capable "
    return Made(f"{text}devices are busy or unavailable", "compute-mode", "compute mode")


PLANTS = (
    *(healthy, healthy, healthy_lists, driver_too_old, cpu_build, too_new, too_old, numpy_2),
    *(companion, mismatch, prohibited),
)


def decorated(text: str, dice: random.Random) -> str:
    """The text as somebody pastes it."""
    lines = text.split("\n")
    way = dice.randrange(7)
    if way == 1:
        lines = [f"> {line}" for line in lines]
    elif way == 2:
        lines = ["```text", *lines, "```"]
    elif way == 3:
        lines = [f"2026-03-01T10:00:00.{n:06d}Z {line}" for n, line in enumerate(lines)]
    elif way == 4:
        lines = [f"\x1b[32m{line}\x1b[0m" for line in lines]
    elif way == 5:
        lines = ["<details><summary>env</summary>", "", *lines, "</details>"]
    elif way == 6:
        return "\r\n".join(["Hello, this is my environment:", "", *lines, "", "Thank you!"])
    return "\n".join(lines)


def primary_of(diagnosis: Diagnosis) -> str | None:
    return diagnosis.primary


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reports", type=int, nargs="?", default=1000)
    parser.add_argument("--wrong", action="store_true", help="show those diagnosed wrongly")
    asked = parser.parse_args()
    dice = random.Random(20261121)
    made = [PLANTS[n % len(PLANTS)](dice) for n in range(asked.reports)]
    texts = [decorated(case.text, dice).encode() for case in made]
    wrong: Counter[str] = Counter()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
    for case, text in zip(made, texts, strict=True):
        judged = judge(read_report(text, KB))
        json_v1.line(json_v1.report(report(judged)))
        said = primary_of(judged.diagnosis)
        if said != case.cause:
            wrong[f"{case.kind}: said {said}"] += 1
            if asked.wrong:
                sys.stdout.write(f"--- planted {case.cause}, said {said}\n{case.text}\n")
    seconds = time.process_time() - started
    result = {
        "reports": asked.reports,
        "right": asked.reports - sum(wrong.values()),
        "wrong": dict(wrong),
        "seconds_on_one_core": round(seconds, 2),
        "memory_grown_mib": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10,
    }
    saved("made_reports", result)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
