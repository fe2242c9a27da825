"""What a GPU can at most: arithmetic by type and memory bandwidth, as its maker says."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from cudadoctor.knowledge.build.sources import keys
from cudadoctor.knowledge.gpu_names import spellings

Facts = Callable[[str], dict[str, Any]]


def peaks(read: Facts) -> dict[str, Any]:
    """Rows, and each spelling of a name that means one row only."""
    rows = [_row(read, row) for row in read("gpu_peaks")["gpus"]]
    names: dict[str, int] = {}
    for rank in range(2):
        taken = set(names)
        for number, row in enumerate(rows):
            shapes = spellings(re.sub(r"\s*\(.*\)", "", row["name"]))
            if rank < len(shapes) and shapes[rank] not in taken:
                names[shapes[rank]] = -1 if shapes[rank] in names else number
    return {"rows": rows, "names": dict(sorted(names.items()))}


def _row(read: Facts, row: dict[str, Any]) -> dict[str, Any]:
    tflops = row["dense_tflops"]
    return {
        "name": row["name"],
        "fp32_tflops": tflops["fp32"],
        "tf32_tflops": tflops["tf32"],
        "bf16_tflops": tflops["bf16"],
        "fp16_tflops": tflops["fp16"],
        "bandwidth_gb_s": row["memory_bandwidth_gb_s"],
        "sources": keys(read, "peaks", row["source"]),
    }
