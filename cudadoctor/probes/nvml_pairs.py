"""What lies between every two GPUs, out of NVML's answers."""

from __future__ import annotations

from typing import Any

from cudadoctor.model.machine import Gpu, GpuPair
from cudadoctor.probes import Notes
from cudadoctor.probes.nvml_gpu import UNSUPPORTED, refusal
from cudadoctor.probes.streamed import Streamed

SOURCE = "NVML"
MOST_GPUS = 256
P2P = ("ok", "chipset", "gpu", "topology", "disabled", "unsupported", "unknown")
_FACTS = {"read": "p2p", "write": "p2p", "nvlink": "nvlink", "level": "level"}
LEVELS: dict[int, Any] = {
    0: "internal",
    10: "switch",
    20: "switches",
    30: "bridge",
    40: "node",
    50: "system",
}


def note_pairs(notes: Notes, said: Streamed, gpus: tuple[Gpu, ...] | None) -> None:
    """The pairs, where all were asked; one GPU or none has none."""
    live = [gpu for gpu in gpus or () if gpu.code is None]
    skipped = said.last("no-pairs")
    if gpus is not None and len(live) < 2:
        notes.fact("driver.pairs", (), SOURCE)
    elif skipped:
        notes.gap("driver.pairs", f"between {skipped.get('count')} GPUs it is not asked")
    elif not said.last("all-pairs"):
        notes.gap("driver.pairs", "NVML was not asked to its end") if live else None
    else:
        pairs = [(pair, line) for line in said.of("pair") if (pair := pair_from(line)) is not None]
        notes.fact("driver.pairs", tuple(pair for pair, _ in pairs), SOURCE)
        for place, (_, line) in enumerate(pairs):
            for name, code in dict(line.get("refused") or {}).items():
                if code not in UNSUPPORTED and name in _FACTS:
                    notes.gap(f"driver.pairs.{place}.{_FACTS[name]}", refusal(code))


def pair_from(line: dict[str, Any]) -> GpuPair | None:
    """One pair; what NVML refused, or answered with an impossible number, is not known."""
    first, second = line.get("first"), line.get("second")
    if type(first) is not int or type(second) is not int or not 0 <= first < second < MOST_GPUS:
        return None
    level, nvlink = line.get("level"), line.get("nvlink")
    return GpuPair(
        first=first,
        second=second,
        p2p=_p2p(line.get("read"), line.get("write")),
        nvlink=nvlink == 0 if isinstance(nvlink, int) and 0 <= nvlink < len(P2P) else None,
        level=LEVELS.get(level) if isinstance(level, int) else None,
    )


def _p2p(read: object, write: object) -> Any:
    """Reading decides; where it works and writing does not, writing."""
    states = [one for one in (read, write) if isinstance(one, int)]
    if not states or any(not 0 <= one < len(P2P) for one in states):
        return None
    return P2P[max(states) if states[0] == 0 else states[0]]
