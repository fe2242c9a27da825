"""Made-up machines as people have them, with a tail of absurd ones: a seeded sample.

A machine is drawn as plain values (what the second reading reads) and written as facts (what the
solver reads). Likely: a GPU, a driver that supports it, a system of that time with its Pythons,
perhaps a torch with what belongs to it, programs that pin it, a project that does, a conda
environment, perhaps a wish. One machine in twelve is drawn without regard to any of that.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace
from packaging.version import Version
from second_keeping import admits

from cudadoctor import knowledge
from cudadoctor.model.machine import (
    Distribution,
    Driver,
    Gpu,
    Interpreter,
    Libcuda,
    Machine,
    Manager,
    Platform,
    ProjectFile,
    Torch,
)
from cudadoctor.model.versions import DriverVersion

Plain = dict[str, Any]

ABSURD = 1 / 12


class Card(NamedTuple):
    """A GPU. first, last: driver branches that support it (0: still does). weight: how common."""

    name: str
    capability: str
    first: int
    last: int = 0
    weight: int = 2


class System(NamedTuple):
    """A Linux system: its C library, the driver branches of its time, its usual Pythons."""

    glibc: str
    first: int
    last: int
    pythons: str
    weight: int = 2


DESKTOP = (
    Card("NVIDIA GeForce GTX 680", "3.0", 304, 470, 1),
    Card("NVIDIA GeForce GTX TITAN Black", "3.5", 331, 470, 1),
    Card("NVIDIA GeForce GTX 970", "5.2", 352, 580),
    Card("NVIDIA GeForce GTX 980 Ti", "5.2", 352, 580),
    Card("NVIDIA GeForce GTX 1060 6GB", "6.1", 384, 580, 3),
    Card("NVIDIA GeForce GTX 1080 Ti", "6.1", 384, 580, 4),
    Card("NVIDIA TITAN V", "7.0", 390, 580, 1),
    Card("NVIDIA GeForce GTX 1660 Ti", "7.5", 418, 0, 3),
    Card("NVIDIA GeForce RTX 2060", "7.5", 418, 0, 4),
    Card("NVIDIA GeForce RTX 2080 Ti", "7.5", 410, 0, 4),
    Card("NVIDIA GeForce RTX 3060", "8.6", 460, 0, 6),
    Card("NVIDIA GeForce RTX 3090", "8.6", 455, 0, 7),
    Card("NVIDIA RTX A6000", "8.6", 455, 0, 3),
    Card("NVIDIA GeForce RTX 4060", "8.9", 530, 0, 5),
    Card("NVIDIA GeForce RTX 4090", "8.9", 525, 0, 8),
    Card("NVIDIA RTX 6000 Ada Generation", "8.9", 525, 0, 2),
    Card("NVIDIA GeForce RTX 5070", "12.0", 570, 0, 4),
    Card("NVIDIA GeForce RTX 5090", "12.0", 570, 0, 6),
)
SERVER = (
    Card("Tesla K40m", "3.5", 319, 470, 1),
    Card("Tesla K80", "3.7", 352, 470, 2),
    Card("Tesla M40", "5.2", 352, 580, 1),
    Card("Tesla P100-PCIE-16GB", "6.0", 375, 580),
    Card("Tesla P40", "6.1", 375, 580),
    Card("Tesla V100-SXM2-16GB", "7.0", 384, 580, 5),
    Card("Tesla T4", "7.5", 410, 0, 6),
    Card("NVIDIA A100-SXM4-80GB", "8.0", 450, 0, 8),
    Card("NVIDIA A30", "8.0", 460, 0, 1),
    Card("NVIDIA A10", "8.6", 460, 0, 3),
    Card("NVIDIA L4", "8.9", 525, 0, 3),
    Card("NVIDIA L40S", "8.9", 535, 0, 4),
    Card("NVIDIA H100 80GB HBM3", "9.0", 525, 0, 8),
    Card("NVIDIA H200", "9.0", 550, 0, 4),
    Card("NVIDIA B200", "10.0", 570, 0, 3),
    Card("NVIDIA B300 SXM6 AC", "10.3", 580, 0, 1),
    Card("NVIDIA RTX PRO 6000 Blackwell Server Edition", "12.0", 570, 0, 2),
)
ARM_SERVER = (
    Card("NVIDIA GH200 480GB", "9.0", 525, 0, 6),
    Card("NVIDIA GB200", "10.0", 570, 0, 4),
    Card("NVIDIA GB300", "10.3", 580, 0, 2),
    Card("NVIDIA A100-PCIE-40GB", "8.0", 470, 0, 2),
    Card("NVIDIA T4G", "7.5", 470, 0, 1),
)
SPARK = (Card("NVIDIA GB10", "12.1", 580),)
ORIN, THOR, XAVIER = (
    Card("Orin", "8.7", 540),
    Card("NVIDIA Thor", "11.0", 580),
    Card("Xavier", "7.2", 460),
)
SHARES = (
    Card("GRID V100D-16Q", "7.0", 418, 580, 2),
    Card("GRID T4-16Q", "7.5", 418, 0, 3),
    Card("GRID RTX6000-24Q", "7.5", 418, 0, 1),
    Card("GRID A100-20C", "8.0", 450, 0, 2),
    Card("NVIDIA A100D-4-40C", "8.0", 460, 0, 1),
    Card("NVIDIA A10-24Q", "8.6", 460, 0, 3),
    Card("NVIDIA A40-48Q", "8.6", 460, 0, 2),
    Card("NVIDIA L4-24Q", "8.9", 525, 0, 2),
    Card("NVIDIA L40S-48Q", "8.9", 535, 0, 3),
    Card("NVIDIA H100XM-80C", "9.0", 535, 0, 2),
    Card("NVIDIA RTX Pro 6000 Blackwell DC-48Q", "12.0", 570, 0, 1),
)
"""Virtual GPUs: a hypervisor's shares of a board."""
EVERY = (*DESKTOP, *SERVER, *ARM_SERVER, *SPARK, Card("NVIDIA Rubin", "10.7", 615))

DRIVERS = """
410.48 10.0     418.39 10.1     418.87.00 10.1  440.33.01 10.2  440.100 10.2    450.51.06 11.0
450.80.02 11.0  455.32.00 11.1  460.91.03 11.2  465.19.01 11.3  470.82.01 11.4  470.256.02 11.4
495.29.05 11.5  510.47.03 11.6  515.65.01 11.7  520.61.05 11.8  525.60.13 12.0  525.147.05 12.0
530.30.02 12.1  535.54.03 12.2  535.104.05 12.2 535.183.01 12.2 545.23.08 12.3  550.54.14 12.4
550.163.01 12.4 555.42.06 12.5  560.35.05 12.6  565.57.01 12.7  570.124.06 12.8 570.195.03 12.8
575.57.08 12.9  580.65.06 13.0  580.95.05 13.0  580.126.09 13.0 590.48.01 13.1  595.71.05 13.2
610.43.02 13.3  615.71.09 13.4
"""
WINDOWS_DRIVERS = """
411.31 10.0  418.96 10.1  441.22 10.2  451.48 11.0  452.39 11.0  456.81 11.1  461.33 11.2
472.50 11.4  472.84 11.4  496.13 11.5  511.65 11.6  516.31 11.7  522.06 11.8  528.33 12.0
531.14 12.1  537.13 12.2  546.12 12.3  551.61 12.4  552.44 12.4  555.85 12.5  561.17 12.6
566.36 12.7  572.61 12.8  573.76 12.8  576.57 12.9  581.57 13.0  581.80 13.0  591.44 13.1
596.49 13.2  610.74 13.3  617.42 13.4
"""
BEFORE_410 = ("375.26 8.0", "384.81 9.0", "390.157 9.1", "396.37 9.2")

SYSTEMS = (
    System("2.17", 410, 550, "3.6 3.8 3.9 3.10 3.11", 2),
    System("2.27", 410, 545, "3.6 3.7 3.8 3.9 3.10", 2),
    System("2.28", 418, 999, "3.6 3.8 3.9 3.11 3.12", 3),
    System("2.31", 440, 580, "3.8 3.9 3.10 3.11 3.12", 6),
    System("2.34", 510, 999, "3.9 3.11 3.12", 3),
    System("2.35", 510, 999, "3.10 3.11 3.12 3.13", 9),
    System("2.36", 525, 999, "3.11 3.12 3.13", 3),
    System("2.39", 550, 999, "3.12 3.12 3.13 3.11 3.14", 9),
    System("2.41", 570, 999, "3.13 3.12 3.14", 3),
    System("2.43", 590, 999, "3.14 3.13 3.15", 1),
)
PYTHONS = (*(f"3.{minor}" for minor in range(6, 17)), "3.13t", "3.14t", "3.15t")
KINDS = {
    "linux": 50,
    "windows": 16,
    "terse": 6,
    "wsl": 8,
    "vgpu": 5,
    "arm": 8,
    "spark": 4,
    "jetson": 5,
    "bare": 3,
}
"""terse: what people paste of a Windows machine names no processor, and often no Python."""
COMPANIONS = {
    "torchvision": 0.6,
    "torchaudio": 0.4,
    "xformers": 0.1,
    "flash-attn": 0.08,
    "bitsandbytes": 0.1,
    "triton": 0.2,
}
PROGRAMS = {
    "accelerate": 0.15,
    "deepspeed": 0.05,
    "lightning": 0.06,
    "torch-tensorrt": 0.03,
    "torchao": 0.05,
    "torchcodec": 0.04,
    "torchdata": 0.04,
    "torchtext": 0.06,
    "transformer-engine": 0.02,
    "triton-windows": 0.25,
    "vllm": 0.1,
}
"""Packages that say in their metadata which torch they need, and for triton-windows it is known."""


class Stock:
    """The releases that somebody may have installed or wish for, read from the tables."""

    def __init__(self) -> None:
        tables = Path(knowledge.__file__).parent / "tables"
        torch = json.loads((tables / "torch.json").read_text(encoding="utf-8"))
        around = json.loads((tables / "companions.json").read_text(encoding="utf-8"))
        self.releases = {row["torch"]: row for row in torch["releases"]}
        self.builds: dict[tuple[str, str], list[Plain]] = {}
        for row in torch["builds"]:
            python = self.releases[row["torch"]]["pythons"].get(row["platform"], [])
            for version in python if row["published"] else ():
                self.builds.setdefault((row["platform"], version), []).append(row)
        self.others: dict[str, list[str]] = {
            name: [row["version"] for row in around["releases"] if row["package"] == name]
            for name in (*COMPANIONS, *PROGRAMS)
        }
        self.rows = {(row["package"], row["version"]): row for row in around["releases"]}
        self.pins = {(row["package"], row["version"]): row["requires"] for row in around["pins"]}
        practice = json.loads((tables / "practice.json").read_text(encoding="utf-8"))
        self.no_wheel: list[Plain] = practice["no_wheel"]
        self.pythons: dict[tuple[str, str], str | None] = {
            (row["package"], row["version"]): row["python"] for row in around["releases"]
        }
        self.flash: dict[str, str] = {
            torch: row["version"]
            for row in reversed(around["flash_attn"])
            for torch in row["torch"]
        }
        self.triton: dict[str, str] = {
            torch: wanted.removeprefix("==")
            for torch, wanted in around["triton"].items()
            if wanted.startswith("==")
        }
        self.xformers = {row["torch"]: row["versions"][0] for row in reversed(around["xformers"])}

    def installs(self, name: str, version: str, python: str | None) -> bool:
        """Whether a release can be there at all, beside this Python."""
        wanted = self.pythons.get((name, version))
        lacking = [row for row in self.no_wheel if row["package"] == name and python]
        if any(version in row["versions"] and python in row["pythons"] for row in lacking):
            return False
        return not wanted or python is None or admits(wanted, python.rstrip("t"))

    def made_for(self, name: str, plain: Plain, torch: str) -> list[str]:
        """The releases of a program that say they work with a torch, and come here as wheels."""
        return [
            version
            for version in self.others[name]
            if (row := self.rows[name, version])["torch"] is not None
            and (not row["torch"] or admits(row["torch"], torch))
            and (not row["platforms"] or {"any", plain["platform"]} & {*row["platforms"]})
            and self.installs(name, version, plain["python"])
        ]

    def metadata(self, name: str, version: str) -> tuple[str, ...]:
        """What a release says in its metadata of torch and what belongs to it."""
        row = self.rows.get((name, version))
        if row is None or row["torch"] is None:
            return ()
        return (f"torch{row['torch']}", *self.pins.get((name, version), ()))


def machines(count: int, seed: int = 7) -> Iterator[tuple[Machine, Plain]]:
    """Machines beside the plain values that the second reading reads."""
    chance, stock = random.Random(seed), Stock()
    for _ in range(count):
        plain = drawn(chance, stock)
        yield machine_of(plain), plain


def drawn(chance: random.Random, stock: Stock) -> Plain:
    """One machine as plain values."""
    absurd = chance.random() < ABSURD
    kind = chance.choices(tuple(KINDS), tuple(KINDS.values()))[0]
    plain = _jetson(chance) if kind == "jetson" else _usual(kind, chance, absurd)
    if absurd:
        plain["python"] = chance.choice(PYTHONS)
        plain["glibc"] = plain["glibc"] and chance.choice(SYSTEMS).glibc
    elif chance.random() < 0.04 and plain["python"] in ("3.13", "3.14", "3.15"):
        plain["python"] += "t"
    if kind == "terse" and chance.random() < 0.5:
        plain["python"] = None
    plain["absurd"] = absurd
    plain["installed"] = _installed(plain, chance, stock) if chance.random() < 0.45 else None
    plain["wish"] = _wish(plain, chance, stock) if chance.random() < 0.2 else None
    plain["files"] = _files(plain["installed"], chance) if chance.random() < 0.3 else ()
    plain["conda"] = kind in ("linux", "windows", "wsl", "vgpu") and chance.random() < 0.12
    return plain


def _usual(kind: str, chance: random.Random, absurd: bool) -> Plain:
    cards = _cards(kind, chance, absurd)
    windows = kind in ("windows", "wsl", "terse")
    driver, level = _driver(cards, windows, chance, absurd)
    branch = int(driver.split(".")[0])
    fitting = [candidate for candidate in SYSTEMS if candidate.first <= branch <= candidate.last]
    system = chance.choices(
        fitting or SYSTEMS, [candidate.weight for candidate in fitting or SYSTEMS]
    )[0]
    if kind in ("wsl", "spark"):
        system = chance.choice(SYSTEMS[5:9] if kind == "wsl" else SYSTEMS[7:8])
    on_windows = kind in ("windows", "terse")
    pythons = "3.9 3.10 3.11 3.12 3.13" if on_windows else system.pythons
    platform = "windows_amd64" if on_windows else "linux_x86_64"
    return {
        "kind": kind,
        "platform": "linux_aarch64" if kind in ("arm", "spark") else platform,
        "glibc": None if on_windows else system.glibc,
        "python": chance.choice(pythons.split()),
        "names": tuple(card.name for card in cards),
        "capabilities": tuple(card.capability for card in cards),
        "driver": driver,
        "level": level,
        "numbers": "windows" if windows else "linux",
        "by_level": False,
        "told": chance.random() < 0.85,
        "unnamed": kind != "terse" and chance.random() < (0.5 if kind == "vgpu" else 0.9),
    } | _lifted(cards, level, chance)


def _cards(kind: str, chance: random.Random, absurd: bool) -> tuple[Card, ...]:
    """One GPU or several alike, or of two kinds; none where kind is "bare"."""
    pools = {
        "linux": (*DESKTOP, *SERVER, *SERVER),
        "windows": DESKTOP,
        "terse": DESKTOP,
        "vgpu": SHARES,
        "wsl": DESKTOP,
        "arm": ARM_SERVER,
        "spark": SPARK,
    }
    if kind == "bare":
        return ()
    pool = EVERY if absurd else pools[kind]
    first = chance.choices(pool, [card.weight for card in pool])[0]
    if kind == "spark" or chance.random() > 0.14:
        return (first,) * (chance.choice((1, 1, 1, 2, 8)))
    # Two kinds in one machine: usually cards that one driver supports.
    together = [card for card in pool if absurd or _overlap(card, first)]
    return (first, chance.choices(together, [card.weight for card in together])[0])


def _overlap(card: Card, other: Card) -> bool:
    return max(card.first, other.first) <= min(card.last or 999, other.last or 999)


def _driver(
    cards: tuple[Card, ...], windows: bool, chance: random.Random, absurd: bool
) -> tuple[str, str]:
    """A driver that supports the cards, preferably a recent one; any driver if `absurd`."""
    rows = (WINDOWS_DRIVERS if windows else DRIVERS).split()
    known = list(zip(rows[::2], rows[1::2], strict=True))
    if absurd:
        old = [] if windows else [tuple(pair.split()) for pair in BEFORE_410]
        return chance.choice([*known, *((pair[0], pair[1]) for pair in old)])
    low = max((card.first for card in cards), default=470)
    high = min((card.last or 999 for card in cards), default=999)
    fitting = [pair for pair in known if low <= int(pair[0].split(".")[0]) <= high + 4]
    return chance.choices(fitting, [1 + index for index, _ in enumerate(fitting)])[0]


def _lifted(cards: tuple[Card, ...], level: str, chance: random.Random) -> Plain:
    """Now and then cuda-compat libraries lift the driver of a data-centre GPU."""
    names = {card.name for card in SERVER[4:]}
    able = bool(cards) and all(card.name in names for card in cards)
    if not able or level not in ("12.2", "12.8") or chance.random() > 0.1:
        return {}
    return {"level": "13.0", "by_level": True, "told": True}


def _jetson(chance: random.Random) -> Plain:
    """Boards as NVIDIA sells them: JetPack 5, 6 and 7; here and there a newer one on an Orin."""
    card, l4t, driver, level, glibc, python = chance.choices(
        (
            (XAVIER, "35.6.0", "35.6.0", "11.4", "2.31", "3.8"),
            (ORIN, "36.4.3", "540.4.0", "12.6", "2.35", "3.10"),
            (THOR, "38.2.0", "580.00", "13.0", "2.39", "3.12"),
            (ORIN, "39.0.0", "595.58", "13.2", "2.39", "3.12"),
        ),
        (1, 3, 3, 2),
    )[0]
    return {
        "kind": "jetson",
        "platform": "linux_aarch64",
        "glibc": glibc,
        "python": python,
        "names": (card.name,),
        "capabilities": (card.capability,),
        "driver": driver,
        "level": level,
        "numbers": "linux",
        "by_level": True,
        "told": True,
        "unnamed": True,
        "l4t": l4t,
    }


def _installed(plain: Plain, chance: random.Random, stock: Stock) -> Plain | None:
    """A torch that has a wheel for this Python here, with companions."""
    there = stock.builds.get((plain["platform"], plain["python"] or "3.10"), [])
    if not there:
        return None
    row = chance.choice(there)
    release = stock.releases[row["torch"]]
    packages: dict[str, str] = {}
    for name, often in COMPANIONS.items():
        version = release.get(name) or stock.xformers.get(
            row["torch"] if name == "xformers" else ""
        )
        if name not in ("torchvision", "torchaudio") and version is None:
            version = _other(name, row["torch"], chance, stock)
        if version and chance.random() < often and stock.installs(name, version, plain["python"]):
            packages[name] = version
    packages |= _programs(plain, row["torch"], chance, stock)
    told = [name for name in packages if name not in COMPANIONS and chance.random() < 0.7]
    requires = {name: stock.metadata(name, packages[name]) for name in told}
    if chance.random() < 0.06:
        packages["house-models"] = "1.0"
        requires["house-models"] = _pins(row, release, chance)
    return {
        "requires": requires,
        "written": _pins(row, release, chance),
        "torch": row["torch"],
        "variant": row["variant"],
        "cuda": row["cuda"],
        "packages": packages,
        "wheels": _wheels(row) if plain["platform"].startswith("linux") else (),
    }


def _programs(plain: Plain, torch: str, chance: random.Random, stock: Stock) -> dict[str, str]:
    """Programs beside a torch: usually a release that works with it, here and there any."""
    found = {}
    for name, often in PROGRAMS.items():
        windows = plain["platform"].startswith("windows")
        if chance.random() > often or (name == "triton-windows" and not windows):
            continue
        made = stock.made_for(name, plain, torch)
        if made and chance.random() < 0.9:
            found[name] = chance.choice(made[-8:])
        elif chance.random() < 0.3:
            found[name] = chance.choice(stock.others[name])
    return found


def _pins(row: Plain, release: Plain, chance: random.Random) -> tuple[str, ...]:
    """What somebody wrote down of the torch that they have: loosely, exactly, for elsewhere."""
    torch = row["torch"]
    major, minor, _ = map(int, torch.split("."))
    lines = [
        "torch",
        f"torch>={major}.{max(minor - 2, 0)}",
        f"torch=={torch}",
        f"torch=={torch}+{row['variant']}",
        f"torch~={major}.{minor}.0",
        f"torch<{major}.{minor + 1}",
        f"torch>={major}.{minor},<{major + 1}",
        f'torch=={torch}; sys_platform == "darwin"',
        f'torch<{major}; extra == "old"',
    ]
    found = [chance.choices(lines, (3, 3, 3, 1, 1, 1, 2, 1, 1))[0]]
    vision = release["torchvision"]
    if vision and chance.random() < 0.3:
        found.append(f"torchvision=={vision}" if chance.random() < 0.6 else "torchvision>=0.5")
    return tuple(found)


def _files(installed: Plain | None, chance: random.Random) -> tuple[Any, ...]:
    """The project's files that say which torch is wanted."""
    if installed is None:
        return ()
    names = chance.choice((("requirements.txt",), ("pyproject.toml",)))
    return tuple((name, installed["written"]) for name in names)


def _wheels(row: Plain) -> tuple[str, ...]:
    """Library wheels of the installed torch that share their folders with another CUDA's."""
    major = row["cuda"] and int(row["cuda"].split(".")[0])
    if major not in (12, 13):
        return ()
    return tuple(f"nvidia-{name}-cu{major}" for name in ("cudnn", "cusparselt", "nccl"))


def _other(name: str, torch: str, chance: random.Random, stock: Stock) -> str | None:
    """A release of another package: usually one of the time of this torch, here and there any."""
    if chance.random() < 0.1:
        return chance.choice(stock.others[name])
    if name == "bitsandbytes":
        return chance.choice(stock.others[name]) if _since(torch, 2, 4) else None
    if name == "flash-attn":
        return stock.flash.get(torch.rpartition(".")[0])
    return stock.triton.get(torch.rpartition(".")[0]) if name == "triton" else None


def _since(torch: str, major: int, minor: int) -> bool:
    parts = torch.split(".")
    return (int(parts[0]), int(parts[1])) >= (major, minor)


def _wish(plain: Plain, chance: random.Random, stock: Stock) -> str:
    """A release, its minor alone, or one build of it; now and then one that does not exist."""
    there = stock.builds.get((plain["platform"], plain["python"] or "3.10"), [])
    if not there or chance.random() < 0.05:
        return chance.choice(("2.6", "2.6.0", "2.6.0+cu124", "3.0", "2.2.9", "1.13"))
    row = chance.choice(there)
    minor = row["torch"].rpartition(".")[0]
    exact = f"{row['torch']}+{row['variant']}"
    return chance.choices((minor, row["torch"], exact), (5, 4, 2))[0]


def machine_of(plain: Plain) -> Machine:
    """The same machine as facts."""
    windows = plain["platform"].startswith("windows")
    here: dict[str, Any] = {
        "system": "Windows" if windows else "Linux",
        "machine": _processor(plain),
        "jetson": plain["kind"] == "jetson",
    }
    if plain["glibc"]:
        here |= {"libc": "glibc", "glibc": Version(plain["glibc"])}
    if plain["kind"] == "wsl":
        here["wsl"] = 2
    if plain.get("l4t"):
        here["l4t"] = Version(plain["l4t"])
    terse = plain["kind"] == "terse"
    return Machine(
        look="report" if terse else "full",
        platform=Platform(**here),
        driver=_driver_facts(plain),
        gpus=tuple(_gpu(n, plain) for n in range(len(plain["capabilities"]))),
        python=_interpreter(plain),
        torch=_torch(plain["installed"], "conda" if plain.get("conda") else None),
        packages=tuple(
            replace(package, installer="conda" if plain.get("conda") else "pip")
            for package in _packages(plain["installed"])
        ),
    )


def _processor(plain: Plain) -> str | None:
    if plain["kind"] == "terse":
        return None
    return "aarch64" if plain["platform"] == "linux_aarch64" else "x86_64"


def _interpreter(plain: Plain) -> Interpreter:
    """The Python, its environment and what the project's files say."""
    python, files = plain["python"], plain.get("files", ())
    known = {} if python is None else {"free_threaded": python.endswith("t"), "bits": 64}
    here: dict[str, Any] = {"kind": "venv"}
    if plain.get("conda"):
        windows = plain["platform"].startswith("windows")
        prefix = "C:\\conda\\envs\\t" if windows else "/opt/conda/envs/t"
        conda = Manager(name="conda", path="conda")
        here = {"kind": "conda", "prefix": prefix, "managers": (conda,)}
        # Where nothing is installed and pip is there, pip is taken: the tables are of wheels.
        here["pip"] = plain["installed"] is not None
    return Interpreter(
        version=python and Version(python.rstrip("t")),
        files=tuple(ProjectFile(name=name, requires=lines) for name, lines in files),
        **known,
        **here,
    )


def _driver_facts(plain: Plain) -> Driver:
    """A driver under WSL is seen from outside only; without a GPU none is installed."""
    if not plain["names"]:
        return Driver(installed=False)
    number = DriverVersion(plain["driver"])
    return Driver(
        installed=True,
        kernel=number if plain["kind"] == "linux" else None,
        reported=number,
        cuda=Version(plain["level"]) if plain["told"] else None,
        libcuda=Libcuda(code=0) if plain["told"] else Libcuda(),
    )


def _gpu(index: int, plain: Plain) -> Gpu:
    """A GPU with its capability; for old drivers often by its name alone."""
    name, capability = plain["names"][index], Version(plain["capabilities"][index])
    known = plain["unnamed"] or name == "NVIDIA Rubin"
    return Gpu(
        index=index,
        name=name,
        capability=capability if known else None,
        virtualization="vgpu" if plain["kind"] == "vgpu" else None,
    )


def _torch(installed: Plain | None, installer: str | None) -> Torch:
    if installed is None:
        return Torch(installed=False)
    cuda = installed["cuda"]
    return Torch(
        installed=True,
        installer=installer,
        version=Version(installed["torch"]),
        text=f"{installed['torch']}+{installed['variant']}",
        build="cuda" if cuda else "cpu",
        cuda=Version(cuda) if cuda else None,
    )


def _packages(installed: Plain | None) -> tuple[Distribution, ...]:
    if installed is None:
        return ()
    wheels, requires = installed["wheels"], installed.get("requires", {})
    torch = Distribution(name="torch", version=installed["torch"], requires=wheels)
    others = {**installed["packages"], **dict.fromkeys(wheels, "1.0")}
    return (
        torch,
        *(
            Distribution(name=name, version=version, requires=tuple(requires.get(name, ())))
            for name, version in others.items()
        ),
    )
