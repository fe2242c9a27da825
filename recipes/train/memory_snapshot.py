"""Memory snapshots: what holds GPU memory, what is only reserved, and expandable segments.

What it does: torch does not give freed GPU memory back to the driver, but keeps it as reserved
memory. The snapshot records every allocation with its line of Python; open the file at
https://pytorch.org/memory_viz (the page runs in the browser and uploads nothing). With expandable
segments, the allocator grows one region instead of reserving a new one for each larger tensor.

When it helps: "CUDA out of memory" although nvidia-smi or memory_allocated() shows enough free
memory, memory that grows from step to step, and batches whose sizes vary.

When it hurts: recording every allocation makes training slower and the file large; record a few
steps. Expandable segments need a driver and a platform with virtual memory management: not on
Windows. Sharing CUDA tensors between processes may not work with them.

How to check: compare torch.cuda.memory_reserved() with torch.cuda.memory_allocated(), or print
torch.cuda.memory_summary(). nvidia-smi shows the reserved memory plus the CUDA context.

Troubleshooting:
- "If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=
  expandable_segments:True to avoid fragmentation": set the variable in the shell, before Python
  starts, as this script does for its child processes. torch 2.9 and newer also read
  PYTORCH_ALLOC_CONF.
- "expandable_segments not supported on this platform": a warning; the setting has no effect.
- nvidia-smi shows much more memory than memory_allocated(): the rest is reserved memory and the
  CUDA context. torch.cuda.empty_cache() gives unused reserved memory back to other processes; it
  does not give your own process more.
- Memory grows in every step: something keeps tensors with their graph, such as total += loss. Add
  loss.item() or loss.detach().
- The snapshot shows no stack traces: recording was started after the allocations.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from proof import Proof, main, skip

# --- Copy from here ------------------------------------------------------------------------------
EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}  # set it before Python starts


@contextlib.contextmanager
def recorded(file: Path) -> Iterator[None]:
    """Writes a snapshot of all allocations in the block; open it at pytorch.org/memory_viz."""
    torch.cuda.memory._record_memory_history(max_entries=100_000)
    try:
        yield
    finally:  # also after an out-of-memory error
        torch.cuda.memory._dump_snapshot(str(file))
        torch.cuda.memory._record_memory_history(enabled=None)


def reserved_only() -> int:
    """Bytes that torch holds, but that no tensor uses."""
    return int(torch.cuda.memory_reserved() - torch.cuda.memory_allocated())


# --- Copy to here. The rest is the proof. --------------------------------------------------------
MIB = 2**20
CHILD = """
import torch
for mib in range(20, {largest}, 20):  # each one larger than all before, which are free again
    tensor = torch.ones(mib << 20, dtype=torch.uint8, device="cuda")
    total = int(tensor[::4096].sum())
    del tensor
print(torch.cuda.memory_reserved(), torch.cuda.memory_stats()["segment.all.allocated"], total)
"""


def reserved_after(largest: int, variables: dict[str, str]) -> list[int]:
    """Reserved bytes, the number of segments and a sum, after growing tensors in a new process."""
    kept = {name: text for name, text in os.environ.items() if "ALLOC_CONF" not in name}
    command = [sys.executable, "-c", CHILD.format(largest=largest)]
    child = subprocess.run(
        command, env=kept | variables, capture_output=True, text=True, timeout=100, check=True
    )
    return [int(word) for word in child.stdout.split()]


def prove(proof: Proof) -> None:
    if proof.device != "cuda":
        skip("memory snapshots need a GPU that torch can use")
    record: Any = proof.technique(recorded, instead=lambda _file: contextlib.nullcontext())
    variables = proof.technique(EXPANDABLE, instead={})
    largest = proof.largest
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "snapshot.pickle"
        with record(file):
            tensor = torch.ones(32 * MIB, dtype=torch.uint8, device="cuda")
        found: Any = pickle.loads(file.read_bytes()) if file.exists() else {}
    events = [event for trace in found.get("device_traces", []) for event in trace]
    ours = [
        event["frames"]
        for event in events
        if event["action"] == "alloc" and event["size"] == tensor.nbytes
    ]
    named = any(frame["filename"] == __file__ for frames in ours for frame in frames)
    del tensor
    proof.active(
        len(ours) == 1 and named,
        f"the snapshot has {len(events)} events, and {len(ours)} allocation of 32 MiB"
        f" {'with' if named else 'without'} the line of this script",
    )
    only = reserved_only()
    proof.purpose(
        only >= 32 * MIB, f"after del, {only / MIB:.0f} MiB are reserved and used by no tensor"
    )
    plain, expanded = reserved_after(largest, {}), reserved_after(largest, variables)
    proof.same(plain[2] == expanded[2], "equal sums with expandable segments")
    proof.purpose(
        expanded[0] < 0.7 * plain[0],
        f"after tensors of up to {largest - 20} MiB, {expanded[0] / MIB:.0f} MiB are reserved"
        f" instead of {plain[0] / MIB:.0f} MiB",
    )


if __name__ == "__main__":
    main(__doc__, prove, largest=(401, 201))
