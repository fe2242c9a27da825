"""What the training step is ordered to do, as words on its command line, and on which devices."""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

Fields = Dict[str, Any]
"""Of one line, or of an order."""

EARLY = (
    *("allocate", "matmul", "conv", "attention", "train-fp32", "amp-fp16", "amp-bf16"),
    "cuda-graph",
)
# They import torch._dynamo, which takes as long as all early stages do.
LATE = ("optimizer", "checkpoint")
# Only where it is asked for: a cold compilation takes longer than all other stages together.
COMPILE = "compile"

IN_USE = "% of the GPU's memory is in use"
"""How the reason ends why a full GPU is left alone."""
FULL = 0.8

# The ranks again without a transport of NCCL, each by its variable: NVLink SHARP, peer to peer, and
# InfiniBand.
WITHOUT = {
    "ddp-without-nvls": ("NCCL_NVLS_ENABLE", "0"),
    "ddp-without-p2p": ("NCCL_P2P_DISABLE", "1"),
    "ddp-without-ib": ("NCCL_IB_DISABLE", "1"),
}

# Seconds a stage may take. The first look at CUDA can need half a minute where no persistence
# mode keeps the driver awake; cuDNN and NCCL load hundreds of megabytes at first use.
LIMITS = {
    "cuda": 60.0,
    "numpy": 20.0,
    "companion": 60.0,
    "allocate": 40.0,
    "matmul": 20.0,
    "conv": 40.0,
    "attention": 30.0,
    "train-fp32": 30.0,
    "amp-fp16": 20.0,
    "amp-bf16": 20.0,
    "cuda-graph": 30.0,
    "optimizer": 30.0,
    "checkpoint": 20.0,
    COMPILE: 120.0,
    "ddp": 60.0,
}


class Spec:
    """The orders of one child, which are the words of its command line too.

    mode: import or full. device: "", cpu, cuda or cuda:N. ranks: 0 means as many as fit.
    scratch: the only folder it may write to, "" none. until: seconds it has in all.
    limit: a lower limit for every stage, 0 none. skip: (bus id, position, reason) of GPUs.
    careful: nobody knows who else uses the GPUs. start: fork or spawn, "" by system.
    compile: also try torch.compile.
    dynamo: why torch._dynamo could not be imported.
    Of health, nvml: the folder of pynvml; soak: further seconds; only: the one part to measure.
    For tests, plant: faults, "stage:fault,stage:fault"; pretend: so many GPUs that the CPU plays;
    without: a late stage to leave out.
    """

    mode = "full"
    device = scratch = plant = start = dynamo = nvml = only = without = ""
    ranks = pretend = careful = compile = 0
    until, limit, soak = 600.0, 0.0, 0.0
    skip: Tuple[Any, ...] = ()

    def __init__(self, words: Sequence[str]) -> None:
        self.words = words
        for word in words:
            name, _, value = word.partition("=")
            if name == "skip":
                self.skip += (value.split("|", 2),)
            else:
                setattr(self, name, type(getattr(self, name))(value))

    def limit_s(self, stage: str) -> float:
        """Seconds that this stage may take."""
        usual = LIMITS["ddp"] if stage in WITHOUT else LIMITS.get(stage.split(" ")[0], 30.0)
        return min(usual, self.limit or usual)

    def late(self) -> List[List[str]]:
        """The late stages, those of each process together."""
        stages = [stage for stage in LATE if stage != self.without]
        return [stages, [COMPILE]] if self.compile else [stages]

    def fault(self, stage: str) -> str:
        """The fault that is to be planted in this stage, "" none."""
        return dict(word.split(":") for word in self.plant.split(",") if word).get(stage, "")


class Task(NamedTuple):
    """What one worker does. rank: None outside of distributed training."""

    stages: Sequence[str]
    device: str = "cpu"
    rank: Optional[int] = None
    world: int = 1


class Chosen(NamedTuple):
    """devices: indexes in torch's order, () the CPU. skipped: (index, why) of those left alone.

    error: why the device that was asked for cannot be had, "" where it can.
    """

    devices: Tuple[int, ...] = ()
    skipped: Tuple[Tuple[int, str], ...] = ()
    error: str = ""

    def device(self, rank: int = 0) -> str:
        """The device of a rank, as torch names it."""
        return "cuda:%d" % self.devices[rank] if self.devices else "cpu"

    def world(self, ranks: int) -> int:
        """How many ranks fit: one a GPU, or two and more on the CPU."""
        there = len(self.devices)
        return min(ranks or there, there) if there else ranks or 2


def choose(device: str, skip: Sequence[Any], look: Fields) -> Chosen:
    """The GPUs to use: the one that was asked for, else all that nobody else is using.

    skip: (bus id, position, reason) of GPUs to leave alone. look: what torch says of CUDA.
    """
    count = int(look.get("count") or 0) if look.get("available") else 0
    if device == "cpu" or not (device or count):
        return Chosen()
    if device and not count:
        why = str(look.get("error") or "the first CUDA check did not finish")
        if look and not look.get("built"):
            why = "this torch build is CPU-only"
        return Chosen(error="torch sees no GPU: " + why)
    if device == "cuda":
        return Chosen(tuple(range(count)))
    if device:
        index = int(device.partition(":")[2])
        if index >= count:
            text = "there is no %s; number of GPUs visible to torch: %d"
            return Chosen(error=text % (device, count))
        return Chosen((index,))
    devices = {gpu["index"]: gpu for gpu in look.get("devices") or []}
    by_bus = {gpu["bus_id"]: index for index, gpu in devices.items() if gpu.get("bus_id")}
    reasons = {}
    for bus, position, reason in skip:
        # Without an address the position is the best guess that does not disturb somebody.
        index = by_bus.get(bus, -1) if by_bus else int(position)
        gpu = devices.get(index, {})
        # NVML counts as used what the system would give back.
        free = (gpu.get("unified_bytes") or 0) / float(gpu.get("total_bytes") or 1)
        if not (reason.endswith(IN_USE) and free >= 1 - FULL):
            reasons[index] = reason
    return Chosen(
        tuple([index for index in range(count) if index not in reasons]),
        tuple([(index, reasons[index]) for index in range(count) if index in reasons]),
    )
