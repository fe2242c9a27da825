"""GPUs by name and by PCI id, generations, and which code serves which GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from cudadoctor.knowledge.build.sources import keys
from cudadoctor.knowledge.gpu_names import spellings

Facts = Callable[[str], dict[str, Any]]

ALSO_DATA_CENTER = ("l2", "l16", "ax800", "t4g")
"""First words of data-center boards that only the list of PCI ids names."""

ALIASES = {"orin": "8.7", "xavier": "7.2", "thor": "11.0", "tegra x2": "6.2", "tegra x1": "5.3"}
"""What the driver calls the GPU of a Jetson board."""

FLAVOURS = {"required": "only", "supported": "both", "not supported": "none"}

GENERATIONS: tuple[tuple[str, tuple[str, ...], int | None, int | None, str], ...] = (
    ("Fermi", ("2.0", "2.1"), None, 390, "none"),
    ("Kepler", ("3.0", "3.2", "3.5", "3.7"), 304, 470, "none"),
    ("Maxwell", ("5.0", "5.2", "5.3"), 331, 580, "none"),
    ("Pascal", ("6.0", "6.1", "6.2"), 367, 580, "none"),
    ("Volta", ("7.0", "7.2"), 384, 580, "none"),
    ("Turing", ("7.5",), 410, None, "both"),
    ("Ampere", ("8.0",), 450, None, "both"),
    ("Ampere", ("8.6", "8.7", "8.8"), 455, None, "both"),
    ("Ada Lovelace", ("8.9",), 520, None, "both"),
    ("Hopper", ("9.0",), 520, None, "both"),
    ("Blackwell", ("10.0", "10.1", "10.3", "12.0", "12.1"), 570, None, "only"),
    ("Blackwell", ("11.0",), 580, None, "only"),
    ("Rubin", ("10.7",), 615, None, "only"),
)
"""Name, capabilities, first branch (approximate), last branch (None: all later), open modules."""


def gpus(read: Facts) -> dict[str, Any]:
    """Models, their names and their PCI ids."""
    models = [_model(read, row) for row in read("gpus")["gpus"]]
    words = {word for model in models if model["data_center"] for word in _first_word(model)}
    words -= {word for model in models if not model["data_center"] for word in _first_word(model)}
    devices: dict[str, list[int]] = {}
    for row in read("gpus_pci")["devices"]:
        found = [_place(name, row, models, words) for name in row["names"]]
        devices[row["device_id"].lower()] = sorted(set(found))
    return {
        "models": models,
        "names": _names(models),
        "devices": dict(sorted(devices.items())),
    }


def architectures(read: Facts) -> dict[str, Any]:
    """Generations with their drivers, and the rule of which code serves which GPU."""
    return {
        "generations": [_generation(*row) for row in GENERATIONS],
        "serving": _serving(read),
    }


def _model(read: Facts, row: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": row["name"],
        "capability": row["compute_capability"],
        "architecture": row["architecture"],
        "data_center": row["forward_compat_allowed"],
        "memory_gb": row["memory_gb"],
        "tensor_cores": row["tensor_cores"],
        "bf16": row["bf16"],
        "tf32": row["tf32"],
        "open_modules": FLAVOURS[row["open_kernel_modules"]],
        "sources": keys(read, "gpus", row["source"]),
    }


def _first_word(model: dict[str, Any]) -> Iterable[str]:
    words = [word for word in spellings(model["name"])[-1].split() if word != "tesla"]
    return words[:1]


def _place(
    name: str, row: dict[str, Any], models: list[dict[str, Any]], data_center: set[str]
) -> int:
    """The model of a PCI name and capability; a new one where no model has that name."""
    capability = row["compute_capability"]
    for number, model in enumerate(models):
        if model["capability"] == capability and model["name"].lower() == name.lower():
            return number
    models.append(_pci_model(name, capability, row, data_center))
    return len(models) - 1


def _pci_model(
    name: str, capability: str, row: dict[str, Any], data_center: set[str]
) -> dict[str, Any]:
    major = int(capability.split(".", maxsplit=1)[0])
    generation = next(one for one in GENERATIONS if capability in one[1])
    first = set(_first_word({"name": name}))
    key = "pci.pci.ids" if str(row["source"]).startswith("pci.ids") else "pci.open-gpu"
    return {
        "name": name,
        "capability": capability,
        "architecture": generation[0],
        "data_center": bool(first & (data_center | set(ALSO_DATA_CENTER))),
        "memory_gb": [],
        "tensor_cores": None if capability == "7.5" else major >= 7,
        "bf16": major >= 8,
        "tf32": major >= 8,
        "open_modules": "only" if "gh200" in name.lower() else generation[4],
        "sources": [key],
    }


def _names(models: list[dict[str, Any]]) -> dict[str, int]:
    """Each spelling -> its model; -1 where GPUs of different capability share it.

    An exact name counts more than one without its memory size: the first spelling of any model
    wins over a shorter spelling of another.
    """
    found: dict[str, int] = {}
    for rank in range(2):
        taken = set(found)
        for number, model in enumerate(models):
            shapes = spellings(model["name"])
            if rank < len(shapes) and shapes[rank] not in taken:
                _enter(found, shapes[rank], number, models)
    for alias, capability in ALIASES.items():
        found[alias] = next(n for n, one in enumerate(models) if one["capability"] == capability)
    return dict(sorted(found.items()))


def _enter(found: dict[str, int], name: str, number: int, models: list[dict[str, Any]]) -> None:
    other = found.get(name, number)
    same = other >= 0 and models[other]["capability"] == models[number]["capability"]
    found[name] = other if same else -1


def _generation(
    name: str, capabilities: tuple[str, ...], first: int | None, last: int | None, modules: str
) -> dict[str, Any]:
    return {
        "name": name,
        "capabilities": list(capabilities),
        "first_branch": first,
        "last_branch": last,
        "open_modules": modules,
        "source": "gpus.legacydrv" if last else "gpus.kmod",
    }


def _serving(read: Facts) -> dict[str, Any]:
    facts = read("arch_lists")["compatibility"]
    return {
        "exclusions": facts["exclusions"],
        "aliases": facts["aliases"],
        "lifted": {"torch": "2.15.0", "cuda": "13.2", "code": ["70", "80", "86"]},
        "sources": keys(read, "archs", facts["source"]),
    }
