"""Thousands of made-up machines: every prescription is checked by a second, independent reading.

    python benchmarks/grid.py [MACHINES]

The check shares nothing with the solver but the tables as they lie in their files: it re-reads the
JSON, compares versions as tuples of numbers, walks over all builds by brute force, and says for
each machine which builds fit. The solver's build must be among them, none of a newer release may
be, and where the solver says "none" there must be none.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.version import Version

from cudadoctor import knowledge
from cudadoctor.builds import Choice, best_build
from cudadoctor.facts import Driver, Gpu, Interpreter, Machine, Platform, Torch
from cudadoctor.versions import DriverVersion

TABLES = Path(knowledge.__file__).parent / "tables"
FEWEST, MOST = 5_000, 50_000

SYSTEMS = (
    ("Linux", "x86_64", "linux_x86_64"),
    ("Linux", "aarch64", "linux_aarch64"),
    ("Windows", "x86_64", "windows_amd64"),
)
PYTHONS = (
    *(f"3.{minor}" for minor in range(6, 17)),
    *("3.13t", "3.14t", "3.15t"),
    *("3.10", "3.11", "3.12", "3.13") * 3,
)
GLIBCS = ("2.17", "2.27", "2.28", *("2.31", "2.35", "2.39") * 2)
CAPABILITIES = (
    *("3.0", "3.5", "3.7", "5.0", "5.2", "6.0", "6.1", "7.0", "7.5", "8.0", "8.6", "8.9"),
    *("9.0", "10.0", "10.3", "11.0", "12.0", "12.1", "13.0"),
)
LINUX_DRIVERS = (
    *("390.157", "396.37", "410.48", "418.39", "418.87.00", "440.33", "440.100", "450.51.06"),
    *("450.80.02", "455.32.00", "470.82.01", "495.29.05", "510.47.03", "520.61.05", "525.60.12"),
    *("525.60.13", "535.104.05", "550.54.14", "560.35.05", "570.124.06", "575.57.08"),
    *("580.65.05", "580.65.06", "590.48.01", "595.71.05", "610.43.02", "615.71.09"),
)
WINDOWS_DRIVERS = (
    *("391.29", "398.26", "418.96", "441.22", "451.48", "452.38", "452.39", "472.50", "511.65"),
    *("522.06", "528.33", "537.13", "551.61", "561.17", "572.61", "576.57", "581.57", "591.44"),
    *("596.49", "617.42"),
)
RELEASES = (None, "2.15.0", "2.14.1", "2.10.0", "2.8.0", "2.6.0", "2.3.1", "1.13.1", "1.9.0")


def machines(count: int, seed: int = 7) -> Iterator[tuple[Machine, dict[str, Any]]]:
    """Machines beside the plain values that the check reads: a seeded sample of the whole grid."""
    chance = random.Random(seed)
    pairs = [(one,) for one in CAPABILITIES] + list(itertools.combinations(CAPABILITIES, 2))
    for _ in range(count):
        system, processor, platform = chance.choice(SYSTEMS)
        drivers = WINDOWS_DRIVERS if system == "Windows" else LINUX_DRIVERS
        plain = {
            "platform": platform,
            "python": chance.choice(PYTHONS),
            "glibc": chance.choice(GLIBCS) if system == "Linux" else None,
            "capabilities": chance.choice(pairs if chance.random() < 0.25 else pairs[:19]),
            "driver": chance.choice(drivers),
            "installed": chance.choice(RELEASES),
        }
        yield _machine(system, processor, plain), plain


def _machine(system: str, processor: str, plain: dict[str, Any]) -> Machine:
    driver = DriverVersion(plain["driver"])
    free = plain["python"].endswith("t")
    installed = plain["installed"]
    here: dict[str, Any] = {"system": system, "machine": processor}
    if plain["glibc"]:
        here |= {"libc": "glibc", "glibc": Version(plain["glibc"])}
    return Machine(
        platform=Platform(**here),
        driver=Driver(
            installed=True, kernel=driver if system == "Linux" else None, reported=driver
        ),
        gpus=tuple(
            Gpu(index=n, capability=Version(one)) for n, one in enumerate(plain["capabilities"])
        ),
        python=Interpreter(version=Version(plain["python"].rstrip("t")), free_threaded=free),
        torch=Torch(
            installed=installed is not None,
            version=Version(installed) if installed else None,
            build="cpu" if installed else None,
        ),
    )


class Check:
    """The second reading: plain numbers, every build, no shortcut."""

    def __init__(self) -> None:
        torch = _json("torch")
        self.drivers = _json("drivers")
        self.serving = _json("architectures")["serving"]
        pythons = {row["torch"]: row["pythons"] for row in torch["releases"]}
        self.builds = [
            {**row, "pythons": pythons[row["torch"]].get(row["platform"], [])}
            for row in torch["builds"]
            if row["published"] is True and row["cuda"] is not None
        ]
        self._served: dict[tuple[int, tuple[int, ...]], str] = {}

    def fitting(self, plain: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
        """Every build that fits, by release and variant."""
        counting = self.counting(plain)
        return {
            (row["torch"], row["variant"]): row
            for number, row in enumerate(self.builds)
            if row["platform"] == plain["platform"] and self._fits(number, row, plain, counting)
        }

    def counting(self, plain: dict[str, Any]) -> list[tuple[int, ...]]:
        """The GPUs that any build of the platform has code for; all where it is none of them."""
        wanted = [_numbers(one) for one in plain["capabilities"]]
        here = [n for n, row in enumerate(self.builds) if row["platform"] == plain["platform"]]
        return [one for one in wanted if any(self.code(n, one) for n in here)] or wanted

    def _fits(
        self, number: int, row: dict[str, Any], plain: dict[str, Any], gpus: list[tuple[int, ...]]
    ) -> bool:
        if plain["python"] not in row["pythons"]:
            return False
        if row["glibc"] and plain["glibc"] and _numbers(plain["glibc"]) < _numbers(row["glibc"]):
            return False
        how = [self.code(number, one) for one in gpus]
        if "" in how or _numbers(plain["driver"]) < self._floor(row["cuda"], plain["platform"]):
            return False
        return "ptx" not in how or self._level(plain["driver"]) >= _numbers(row["cuda"])

    def code(self, number: int, capability: tuple[int, ...]) -> str:
        """ "native", "ptx", or "" where the build has nothing for this GPU."""
        key = (number, capability)
        if key not in self._served:
            self._served[key] = self._code(self.builds[number], capability)
        return self._served[key]

    def _code(self, row: dict[str, Any], capability: tuple[int, ...]) -> str:
        major, minor = capability[0], capability[1]
        codes = [_numbers(_dotted(one)) for one in row["archs"] if one.startswith("sm_")]
        ptx = [_numbers(_dotted(one)) for one in row["archs"] if one.startswith("compute_")]
        lifted = _numbers(row["torch"]) >= (2, 15) and _numbers(row["cuda"]) >= (13, 2)
        for high, low in codes:
            excluded = self.serving["exclusions"].get(f"{high}{low}", [])
            jetson = f"{major}.{minor}" in excluded and not (lifted and high in (7, 8))
            if high == major and low <= minor and not jetson:
                return "native"
        newest = max(codes + ptx, default=(0, 0))
        return "ptx" if any(one == newest and one <= capability for one in ptx) else ""

    def _floor(self, cuda: str, platform: str) -> tuple[int, ...]:
        numbers = "windows" if platform.startswith("windows") else "linux"
        for row in self.drivers["floors"]:
            if row["major"] == _numbers(cuda)[0]:
                return _numbers(row[numbers])
        rows = [one for one in self.drivers["toolkits"] if one["toolkit"].startswith(f"{cuda}.")]
        return max(_numbers(one[numbers]) for one in rows)

    def _level(self, driver: str) -> tuple[int, ...]:
        branch = _numbers(driver)[0]
        rows = [one for one in self.drivers["branches"] if one["cuda"] and one["branch"] <= branch]
        return _numbers(max(rows, key=lambda one: int(one["branch"]))["cuda"])


def faults(choice: Choice, plain: dict[str, Any], check: Check) -> list[str]:
    """What is wrong with a prescription, by the second reading."""
    fitting = check.fitting(plain)
    if choice.build is None:
        return [f"none, but {min(fitting)} fits"] if fitting else []
    name = (str(choice.build.torch), choice.build.variant)
    if name not in fitting:
        return [f"{name} does not fit"]
    gpus = check.counting(plain)
    if _contested(fitting[name], gpus) and any(not _contested(r, gpus) for r in fitting.values()):
        return [f"{name} rests on contested code although others do not"]
    if name[0] == plain["installed"]:
        return []
    sound = [key for key, row in fitting.items() if not _contested(row, gpus)] or list(fitting)
    kept = [key for key in sound if key[0] == plain["installed"]]
    newer = [key for key in sound if _numbers(key[0]) > _numbers(name[0])]
    return [f"{key} was to be kept" for key in kept] + [f"{key} is newer" for key in newer]


def _contested(row: dict[str, Any], gpus: list[tuple[int, ...]]) -> bool:
    """Whether a GPU would run on code alone that another source denies."""
    sound = [_numbers(_dotted(one)) for one in row["archs"] if one not in row["contested"]]
    return bool(row["contested"]) and any(
        not any(high == gpu[0] and low <= gpu[1] for high, low in sound) for gpu in gpus
    )


def _dotted(code: str) -> str:
    digits = code.partition("_")[2]
    return f"{digits[:-1]}.{digits[-1]}"


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def _json(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((TABLES / f"{name}.json").read_text(encoding="utf-8"))
    return found


def main(arguments: list[str]) -> int:
    """Solve, then check; prints counts and seconds. Returns 1 where a fault was found."""
    count = min(int(arguments[0]) if arguments else FEWEST, MOST)
    made = list(machines(count))
    tables = knowledge.load()
    started = time.perf_counter()
    choices = [best_build(machine, tables) for machine, _ in made]
    solved_s = time.perf_counter() - started
    check = Check()
    found = [
        f"{plain}: {fault}"
        for choice, (_, plain) in zip(choices, made, strict=True)
        for fault in faults(choice, plain, check)
    ]
    checked_s = time.perf_counter() - started - solved_s
    none = sum(choice.build is None for choice in choices)
    print(f"{count} machines, {none} without a build, {len(found)} faults")
    print(f"solved in {solved_s:.2f} s ({solved_s / count * 1e3:.3f} ms each)")
    print(f"checked in {checked_s:.2f} s")
    print("\n".join(found[:20]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
