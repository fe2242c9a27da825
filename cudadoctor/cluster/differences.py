"""What differs between machines that should be equal: the few against the many.

A machine becomes a short table, fact -> value, of what matters to a job on all of them. An unknown
value never differs from anything; a variable that is not set, or a package that is not installed,
is a value where the others are known.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from cudadoctor.model.machine import Gpu, Machine, OptStr, Strings, lookup

ABSENT = "not set"
"""The value of a variable that is not set, and of a package that is not installed."""
_LONGEST = 300

_PLAIN = (
    *("platform.kernel", "platform.distro", "platform.distro_version", "platform.glibc"),
    *("platform.machine", "platform.product", "platform.virtual", "container.kind"),
    *("driver.kernel", "driver.reported", "driver.library", "driver.flavour", "driver.cuda"),
    *("driver.fabric.manager", "driver.fabric.version", "driver.fabric.nvswitches"),
    *("driver.confidential", "driver.excluded"),
    *("python.version", "torch.text", "torch.build", "torch.cuda", "torch.imported.nccl"),
    *("torch.imported.cudnn", "limits.nofile", "limits.memlock_bytes", "limits.shm_bytes"),
    *("limits.cpus", "limits.cgroup_memory_bytes", "limits.memory_bytes"),
)
_OF_A_GPU = (
    *("name", "memory_bytes", "ecc", "mig", "compute_mode", "persistence", "power_limit_w"),
    *("sm_clock_set_mhz", "sm_clock_max_mhz", "pcie_width", "pcie_generation_max"),
    *("nvlink_down", "fabric_state", "virtualization", "code"),
)
_ENV = re.compile(
    r"(?:NCCL|CUDA|GLOO|UCX|FI|OMPI_MCA|TORCH|TORCHDYNAMO|PYTORCH|LD|NVIDIA|OMP|MKL|TP)_\w+"
    r"|PYTHONPATH|MASTER_(?:ADDR|PORT)|WORLD_SIZE"
)
_OF_ONE_RANK = re.compile(r"TORCHELASTIC_\w+|OMPI_COMM_\w+|CUDA_VISIBLE_DEVICES|NVIDIA_VISIBLE_\w+")
FAMILIES = ("env", "packages", "mounts")
"""Tables of which a whole is known or not: what one machine lacks and another has is absent."""


class Odd(Struct, frozen=True):
    """A value that is not the usual one, and the machines that have it."""

    value: str
    hosts: Strings


class Difference(Struct, frozen=True, kw_only=True):
    """A fact that is not the same everywhere.

    usual: what more than half of the machines that know it have, None where there is no majority.
    count: how many have it. odd: the other values, the rarest last. known: machines that know it.
    """

    fact: str
    usual: OptStr
    count: int
    odd: tuple[Odd, ...]
    known: int


def table_of(machine: Machine) -> dict[str, str]:
    """What of a machine's facts must be equal on all machines of a job: fact -> value."""
    values = {path: lookup(machine, path) for path in _PLAIN}
    found = {path: _shown(value) for path, value in values.items() if value is not None}
    for name in ("limits.memory_bytes", "limits.shm_bytes", "limits.cgroup_memory_bytes"):
        if (number := found.get(name)) and int(number) > 0:
            found[name] = f"{int(number) / 2**30:.2g} GiB"  # a kernel keeps a little more or less
    whole = machine.look != "report"  # a pasted list may be a part of it
    if machine.gpus is not None:
        found["gpus"] = str(len(machine.gpus))
        for field in _OF_A_GPU:
            found |= _of_gpus(machine.gpus, field)
    if machine.packages is not None:
        found |= {"packages": ""} if whole else {}
        found |= {f"packages.{each.name}": each.version for each in reversed(machine.packages)}
    if machine.env is not None:
        found |= {"env": ""} if whole else {}
        found |= {
            f"env.{name}": _shown(value)
            for name, value in machine.env.items()
            if _ENV.fullmatch(name) and not _OF_ONE_RANK.fullmatch(name)
        }
    return found


def _of_gpus(gpus: tuple[Gpu, ...], field: str) -> dict[str, str]:
    """One row for all GPUs of a machine: 8 × on, or 7 × on, 1 × off."""
    values = [getattr(gpu, field) for gpu in gpus]
    if field == "memory_bytes":
        values = [value and round(value / 2**30) * 2**30 for value in values]
    if field == "code":
        values = [value or 0 for value in values]
    if not values or any(value is None for value in values):
        return {}
    counted = Counter(map(_shown, values)).most_common()
    return {f"gpus.{field}": ", ".join(f"{number} × {value}" for value, number in counted)}


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)[:_LONGEST]


class Tally:
    """Counts the values of every fact, machine by machine; linear in their number."""

    def __init__(self) -> None:
        self.hosts: list[str] = []
        self._values: dict[str, dict[str, list[int]]] = {}

    def add(self, host: str, table: Mapping[str, str]) -> None:
        """One more machine. table: of `table_of`, or of a rank."""
        number = len(self.hosts)
        self.hosts.append(host)
        for fact, value in table.items():
            self._values.setdefault(fact, {}).setdefault(value, []).append(number)

    def shared(self) -> int:
        """How many facts at least two machines know: only these can differ."""
        return sum(sum(map(len, values.values())) > 1 for values in self._values.values())

    def differences(self) -> tuple[Difference, ...]:
        """The facts that differ, those with a majority and the fewest odd machines first."""
        found = [self._difference(fact) for fact in self._values]
        kept = [difference for difference in found if difference is not None]
        kept.sort(key=lambda one: (one.usual is None, one.known - one.count, _rank(one.fact)))
        return tuple(kept)

    def _difference(self, fact: str) -> Difference | None:
        values = dict(self._values[fact])
        family, _, member = fact.partition(".")
        if member and family in FAMILIES:
            having = {number for numbers in values.values() for number in numbers}
            knowing = self._values.get(family, {}).get("", [])
            if lacking := [number for number in knowing if number not in having]:
                values[ABSENT] = lacking
        if len(values) < 2:
            return None
        known = sum(map(len, values.values()))
        ordered = sorted(values, key=lambda value: (-len(values[value]), value))
        most = len(values[ordered[0]])
        usual = ordered[0] if 2 * most > known else None
        others = ordered[1:] if usual is not None else ordered
        odd = tuple(
            Odd(value, tuple(self.hosts[number] for number in values[value])) for value in others
        )
        return Difference(
            fact=fact, usual=usual, count=most if usual is not None else 0, odd=odd, known=known
        )


_GRAVE = re.compile(r"driver\.|gpus|torch\.|env\.(?:NCCL|LD)_")


def _rank(fact: str) -> tuple[bool, str]:
    return (_GRAVE.match(fact) is None, fact)
