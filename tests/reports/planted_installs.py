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


def planted_logs(kb: Knowledge, count: int, seed: int, *, names_system: bool) -> list[Planted]:
    """That many logs; with names_system, each also names the Python and the system."""
    chance, offers = random.Random(seed), Offers(kb)
    out: list[Planted] = []
    while len(out) < count:
        makers = (_wrong_python, _wrong_index, _wrong_platform)
        made = makers[len(out) % 3](offers, chance)
        if made is not None:
            out.append(_written(made, offers, chance, names_system=names_system))
    return out


Fault = tuple[str, Offer, str, str, str]
"""The cause, the requested build, the index, the platform and the Python."""


def _any(offers: Offers, chance: random.Random) -> Offer:
    return chance.choice([offer for offer in offers.torch if offer.release >= Version("1.7")])


def _wrong_python(offers: Offers, chance: random.Random) -> Fault | None:
    offer = _any(offers, chance)
    same = [
        other
        for other in offers.torch
        if other.version == offer.version and other.platform == offer.platform
    ]
    others = [
        name
        for name in PYTHON_RELEASED
        if not any(name in other.pythons for other in same) and name not in ("2.7", "3.5")
    ]
    if not others:
        return None
    return "torch-python-unsupported", offer, offer.place, offer.platform, chance.choice(others)


def _wrong_index(offers: Offers, chance: random.Random) -> Fault | None:
    offer = _any(offers, chance)
    python = chance.choice(offer.pythons)
    here = [
        other
        for other in offers.torch
        if other.platform == offer.platform and python in other.pythons
    ]
    places = sorted({other.place for other in here})
    lacking = [
        place
        for place in places
        if not any(other.place == place and other.release == offer.release for other in here)
    ]
    if not lacking or python.endswith("t"):
        return None
    return "torch-index-wrong", offer, chance.choice(lacking), offer.platform, python


def _wrong_platform(offers: Offers, chance: random.Random) -> Fault | None:
    offer = _any(offers, chance)
    others = [
        name
        for name in HEADS
        if not any(
            other.platform == name and other.version == offer.version for other in offers.torch
        )
        and not any(
            other.platform == name and other.release == offer.release for other in offers.torch
        )
    ]
    python = chance.choice(offer.pythons)
    if not others or python.endswith("t"):
        return None
    return "platform-unsupported", offer, offer.place, chance.choice(others), python


def _written(made: Fault, offers: Offers, chance: random.Random, *, names_system: bool) -> Planted:
    cause, offer, place, platform, python = made
    wanted = f"torch=={offer.release}"
    if cause != "torch-index-wrong" and offer.version.local and chance.random() < 0.4:
        wanted = f"torch=={offer.version}"
    day = max(offer.released, PYTHON_RELEASED.get(python, ""))
    day = max(day, chance.choice([day, "2024-06-01", "2025-06-01", "2026-09-01"]))
    listed = offers.listed("torch", frozenset({place}), platform, python)
    shown = [str(row.version) for row in listed if row.released <= day]
    shown = list(dict.fromkeys(shown))
    url = "" if place == PYPI else f" --index-url {_URL}{place}"
    looked = "" if place == PYPI else f"Looking in indexes: {_URL}{place}\n"
    offered = ", ".join(shown) or "none"
    head = f"Python {python}\n{TOLD[platform]}\n" if names_system else ""
    text = (
        f"{head}{HEADS[platform] if names_system else '$ '}pip install {wanted}{url}\n{looked}"
        f"ERROR: Could not find a version that satisfies the requirement {wanted} "
        f"(from versions: {offered})\nERROR: No matching distribution found for {wanted}\n"
    )
    return Planted(text, cause, wanted, place, platform, python)
