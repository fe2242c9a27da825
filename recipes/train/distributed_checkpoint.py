"""Distributed checkpoints, and elastic restart: training goes on after a process dies.

What it does: torch.distributed.checkpoint lets each process write its own part of a sharded model.
The checkpoint can be loaded with another number of processes, also with one. torchrun watches the
processes; if one dies, it stops the others and starts all of them again, up to --max-restarts
times. The script then goes on from the newest complete checkpoint:
    torchrun --standalone --nproc-per-node=gpu --max-restarts=3 train.py
    torchrun --nnodes=2:4 --nproc-per-node=8 --max-restarts=3 --rdzv-id=job1 \\
        --rdzv-backend=c10d --rdzv-endpoint=first-host:29500 train.py  # 2 to 4 machines

When it helps: models that do not fit on one GPU (fsdp2.py); long trainings, in which sooner or
later a GPU, a node or a spot instance fails; jobs that continue on another number of GPUs.

When it hurts: for a model that fits on one GPU, torch.save() on rank 0 is simpler. Writing takes
time: save as often as the work that you can afford to lose. With another number of processes, the
batches differ too, so the losses do not match exactly.

How to check: kill one process (kill -9) during a test run, and compare the losses with those of a
run without interruption, as this script does. async_save() copies the state and writes it while
training goes on; it needs a process group for the CPU (init_process_group("cpu:gloo,cuda:nccl")).

Troubleshooting:
- After a restart, training begins at step 0: load the newest checkpoint at the start of the script;
  torchrun only starts it again.
- After a restart, the losses differ from those before: the optimizer, the scheduler, the random
  number generators and the position in the data belong to the checkpoint, too.
- "CheckpointException", ".metadata" not found: the process died while it saved. Only checkpoints
  with a file .metadata are complete; it is written last.
- "Missing key in checkpoint state_dict": the model or optimizer has changed. Pass
  DefaultLoadPlanner(allow_partial_load=True) to load(), if that is intended.
- Saving hangs: all processes must call save(), not only rank 0.
- One process reads no files: the folder must be visible to all machines (NFS, Lustre, S3).
- To get an ordinary file for torch.load(): python -m torch.distributed.checkpoint.format_utils
  dcp_to_torch FOLDER FILE
- "ChildFailedError" without a traceback: put @record from torch.distributed.elastic.multiprocessing
  .errors above main(). Exit code -9 means that the process ran out of memory or was killed.
- "Address already in use": another torchrun runs here. Use --standalone, or --rdzv-endpoint with
  another port.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from fsdp2 import averages
from proof import Proof, apart, main, skip
from torch.distributed import fsdp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

# --- Copy from here ------------------------------------------------------------------------------


def save(folder: str, model: torch.nn.Module, optimizer: Any, step: int) -> None:
    """All processes call it; each writes its own part."""
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=f"{folder}/{step}")


def resume(folder: str, model: torch.nn.Module, optimizer: Any) -> int:
    """Load the newest complete checkpoint; returns the number of steps that are done."""
    complete = [int(file.parent.name) for file in Path(folder).glob("*/.metadata")]
    if not complete:
        return 0
    weights, state = get_state_dict(model, optimizer)  # load() fills these tensors
    dcp.load({"model": weights, "optimizer": state}, checkpoint_id=f"{folder}/{max(complete)}")
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
    return max(complete)


# --- Copy to here. The rest is the proof. --------------------------------------------------------
TOLERANCE = 1e-5  # relative to the first loss
WIDTH, EVERY = 64, 4  # a checkpoint every so many steps


def no_save(*_: Any) -> None:
    pass


def from_the_start(*_: Any) -> int:
    return 0


def network(device: str) -> torch.nn.Module:
    torch.manual_seed(0)
    layers = torch.nn.Linear(WIDTH, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)
    return torch.nn.Sequential(*layers).to(device)


def work(folder: str, device: str, steps: int, dies_at: int, off: bool) -> None:
    """A training of one process; the last rank dies once. Rank 0 writes down every step."""
    rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.set_num_threads(1)
    dist.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo")
    world = dist.get_world_size()
    if not averages(device, world):
        Path(folder, "refused").touch()
        return
    model = network(device)
    fsdp.fully_shard(model, mesh=dist.init_device_mesh(device, (world,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    keep, go_on = (no_save, from_the_start) if off else (save, resume)
    noted = Path(folder, "steps.jsonl") if rank == 0 else Path(os.devnull)
    for step in range(go_on(f"{folder}/kept", model, optimizer), steps):
        draw = torch.Generator().manual_seed(step * world + rank)  # its position in the data
        x = torch.randn(16, WIDTH, generator=draw).to(device)
        loss = torch.nn.functional.cross_entropy(model(x), x[:, :10].argmax(1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with noted.open("a") as file:
            file.write(json.dumps([attempt, step, loss.item()]) + "\n")
        if (step + 1) % EVERY == 0:
            keep(f"{folder}/kept", model, optimizer, step + 1)
        if step == dies_at and rank == world - 1 and attempt == 0:
            os._exit(1)
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    gathered = get_model_state_dict(model, options=options)  # on rank 0, to compare
    if rank == 0:
        torch.save(gathered, f"{folder}/gathered.pt")
    dist.barrier()  # no process may leave while another still needs it
    dist.destroy_process_group()


def launched(processes: int, folder: str, device: str, *args: Any) -> None:
    """What torchrun --standalone --nproc-per-node=N --max-restarts=1 does, with a function."""
    forks = device == "cpu" and sys.platform == "linux"  # they share the import of torch
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        max_restarts=1,
        monitor_interval=0.1,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        run_id=str(os.getpid()),
        start_method="fork" if forks else "spawn",
        logs_specs=DefaultLogsSpecs(log_dir=f"{folder}/logs"),
    )
    elastic_launch(config, work)(folder, device, *args)


def steps_of(folder: str) -> list[tuple[int, int, float]]:
    """Attempt, step and loss of every step."""
    lines = Path(folder, "steps.jsonl").read_text(encoding="utf-8").splitlines()
    return [tuple(json.loads(line)) for line in lines]


def prove(proof: Proof) -> None:
    if not hasattr(fsdp, "fully_shard"):
        skip(f"torch {torch.__version__} has no torch.distributed.fsdp.fully_shard")
    processes = torch.cuda.device_count() if proof.device == "cuda" else 2
    if processes < 2:
        skip("this needs at least two GPUs; to try it on a CPU, pass --device cpu")
    never, dies_at = -1, proof.steps // 2 + 2
    with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as broken:
        launched(processes, whole, proof.device, proof.steps, never, proof.off)
        if Path(whole, "refused").exists():
            skip(f"Gloo in torch {torch.__version__} cannot average gradients")
        launched(processes, broken, proof.device, proof.steps, dies_at, proof.off)
        expected = [loss for _, _, loss in steps_of(whole)]
        noted = steps_of(broken)
        again = [step for attempt, step, _ in noted if attempt]
        last = {step: loss for _, step, loss in noted}  # the later attempt replaces the earlier
        off = apart([last[step] for step in sorted(last)], expected)
        proof.same(
            off <= TOLERANCE and expected[-1] < expected[0],
            f"a process died after step {dies_at}; the losses of all {len(last)} steps are within"
            f" {off:.0e} of those without interruption, relative to the first",
        )
        proof.active(
            again and 0 < again[0] == (dies_at + 1) // EVERY * EVERY,
            f"after the restart, training went on at step {again[0] if again else 'none'}",
        )
        parts = sorted(Path(broken, f"kept/{proof.steps}").glob("*.distcp"))
        sizes = [part.stat().st_size for part in parts]
        proof.active(
            len(sizes) == processes and min(sizes) > 0.5 * max(sizes),
            f"{len(sizes)} processes wrote parts of {sizes} bytes of the last checkpoint",
        )
        alone = network(proof.device)  # in this process, without any other
        optimizer = torch.optim.AdamW(alone.parameters(), lr=1e-2)
        found = from_the_start() if proof.off else resume(f"{broken}/kept", alone, optimizer)
        gathered = torch.load(f"{broken}/gathered.pt")
    equal = all(torch.equal(w.cpu(), gathered[name]) for name, w in alone.state_dict().items())
    moments = sum(len(state) for state in optimizer.state.values())
    proof.purpose(
        len(noted) - proof.steps <= EVERY,
        f"the restart repeated {len(noted) - proof.steps} of {dies_at + 1} steps",
    )
    proof.purpose(
        found == proof.steps and equal and moments,
        f"one process loads what {processes} saved: step {found}, the weights are"
        f" {'equal' if equal else 'not equal'}, {moments} entries of the optimizer's state",
    )


if __name__ == "__main__":
    main(__doc__, prove, steps=(40, 12))
