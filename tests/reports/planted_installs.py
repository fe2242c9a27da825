"""Logs of pip as an install with one planted fault would print them, out of the tables."""

from __future__ import annotations

import random
from typing import NamedTuple

from packaging.version import Version

from cudadoctor.knowledge import Knowledge
from cudadoctor.knowledge.offers import PYPI, PYTHON_RELEASED, Offer, Offers

HEADS = {
    "linux_x86_64": "user@box:~$ ",
    "windows_amd64": "PS C:\\Users\\user> ",
    "linux_aarch64": "ubuntu@grace:~$ uname -m\naarch64\nubuntu@grace:~$ ",
    "macos_arm64": "user@MacBook-Pro ~ % ",
    "macos_x86_64": "user@iMac ~ % ",
}
TOLD = {
    "linux_x86_64": "OS: Linux x86_64",
    "windows_amd64": "OS: Windows 11 (64-bit)",
    "linux_aarch64": "OS: Linux aarch64",
    "macos_arm64": "OS: macOS 14.5 (arm64)",
    "macos_x86_64": "OS: macOS 12.6 (x86_64)",
}
_URL = "https://download.pytorch.org/whl/"


class Planted(NamedTuple):
    """A log, the cause that was planted, and what the log was made of."""

    text: str
    cause: str
    wanted: str
    place: str
    platform: str
    python: str


def planted_logs(kb: Knowledge, count: int, seed: int, *, told: bool) -> list[Planted]:
    """That many logs. told: the report names the Python and the system too."""
    chance, offers = random.Random(seed), Offers(kb)
    out: list[Planted] = []
    while len(out) < count:
        makers = (_wrong_python, _wrong_index, _wrong_platform)
        made = makers[len(out) % 3](offers, chance)
        if made is not None:
            out.append(_written(made, offers, chance, told=told))
    return out


Fault = tuple[str, Offer, str, str, str]
"""The cause, the build that is asked for, the index that is asked, the platform and the Python."""


def _any(offers: Offers, chance: random.Random) -> Offer:
    return chance.choice([one for one in offers.torch if one.release >= Version("1.7")])


def _wrong_python(offers: Offers, chance: random.Random) -> Fault | None:
    one = _any(offers, chance)
    same = [o for o in offers.torch if o.version == one.version and o.platform == one.platform]
    others = [
        name
        for name in PYTHON_RELEASED
        if not any(name in other.pythons for other in same) and name not in ("2.7", "3.5")
    ]
    if not others:
        return None
    return "torch-python-unsupported", one, one.place, one.platform, chance.choice(others)


def _wrong_index(offers: Offers, chance: random.Random) -> Fault | None:
    one = _any(offers, chance)
    python = chance.choice(one.pythons)
    here = [o for o in offers.torch if o.platform == one.platform and python in o.pythons]
    places = sorted({o.place for o in here})
    lacking = [
        place
        for place in places
        if not any(o.place == place and o.release == one.release for o in here)
    ]
    if not lacking or python.endswith("t"):
        return None
    return "torch-index-wrong", one, chance.choice(lacking), one.platform, python


def _wrong_platform(offers: Offers, chance: random.Random) -> Fault | None:
    one = _any(offers, chance)
    others = [
        name
        for name in HEADS
        if not any(o.platform == name and o.version == one.version for o in offers.torch)
        and not any(o.platform == name and o.release == one.release for o in offers.torch)
    ]
    python = chance.choice(one.pythons)
    if not others or python.endswith("t"):
        return None
    return "platform-unsupported", one, one.place, chance.choice(others), python


def _written(made: Fault, offers: Offers, chance: random.Random, *, told: bool) -> Planted:
    cause, one, place, platform, python = made
    wanted = f"torch=={one.release}"
    if cause != "torch-index-wrong" and one.version.local and chance.random() < 0.4:
        wanted = f"torch=={one.version}"
    day = max(one.released, PYTHON_RELEASED.get(python, ""))
    day = max(day, chance.choice([day, "2024-06-01", "2025-06-01", "2026-09-01"]))
    listed = offers.listed("torch", frozenset({place}), platform, python)
    shown = [str(o.version) for o in listed if o.released <= day]
    shown = list(dict.fromkeys(shown))
    url = "" if place == PYPI else f" --index-url {_URL}{place}"
    looked = "" if place == PYPI else f"Looking in indexes: {_URL}{place}\n"
    offered = ", ".join(shown) or "none"
    head = f"Python {python}\n{TOLD[platform]}\n" if told else ""
    text = (
        f"{head}{HEADS[platform] if told else '$ '}pip install {wanted}{url}\n{looked}"
        f"ERROR: Could not find a version that satisfies the requirement {wanted} "
        f"(from versions: {offered})\nERROR: No matching distribution found for {wanted}\n"
    )
    return Planted(text, cause, wanted, place, platform, python)
