"""What the child was told to do, as plain words on its command line."""

import time

TYPE_CHECKING = False  # a typing.py beside the user's program must hit torch, not this
if TYPE_CHECKING:
    from typing import Dict, List, Tuple

EARLY = ("allocate", "matmul", "conv")
LATE = ("train-fp32", "amp-fp16", "amp-bf16", "checkpoint")

# Seconds a stage may take. The first look at CUDA can need half a minute where no persistence
# mode keeps the driver awake; cuDNN and NCCL load hundreds of megabytes at first use.
LIMITS = {
    "cuda": 60.0,
    "numpy": 20.0,
    "companion": 60.0,
    "allocate": 40.0,
    "matmul": 20.0,
    "conv": 40.0,
    "train-fp32": 30.0,
    "amp-fp16": 20.0,
    "amp-bf16": 20.0,
    "checkpoint": 20.0,
    "ddp": 60.0,
}


class Spec:
    """The orders of one child.

    mode: import or full. device: "", cpu, cuda or cuda:N. ranks: 0 means as many as fit.
    scratch: the only folder it may write to, "" none. until_s: seconds it has in all.
    limit_s: a lower limit for every stage, 0 none. skip: (bus id, position, reason) of GPUs.
    careful: nobody knows who else uses the GPUs. start: fork or spawn, "" by system.
    only: for a spawned worker, its task. dynamo: why torch._dynamo could not be imported.
    For tests, plant: faults, "stage:fault,stage:fault"; pretend: so many GPUs that the CPU plays.
    """

    def __init__(self, words: "List[str]") -> None:
        self.began = time.monotonic()
        given: Dict[str, str] = {}
        self.skip: "List[Tuple[str, int, str]]" = []
        for word in words:
            name, _, value = word.partition("=")
            if name == "skip":
                bus, position, reason = value.split("|", 2)
                self.skip.append((bus, int(position), reason))
            else:
                given[name] = value
        self.words = list(words)
        self.mode = given.get("mode", "full")
        self.device = given.get("device", "")
        self.ranks = int(given.get("ranks", "0"))
        self.scratch = given.get("scratch", "")
        self.until_s = float(given.get("until", "600"))
        self.limit_s = float(given.get("limit", "0"))
        self.plant = given.get("plant", "")
        self.start = given.get("start", "")
        self.only = given.get("only", "")
        self.pretend = int(given.get("pretend", "0"))
        self.dynamo = ""
        self.careful = given.get("careful", "") == "1"

    def limit(self, stage: str) -> float:
        """Seconds that this stage may take."""
        usual = LIMITS.get(stage.split(" ")[0], 30.0)
        return min(usual, self.limit_s) if self.limit_s else usual

    def fault(self, stage: str) -> str:
        """The fault that is to be planted in this stage, "" none."""
        for one in self.plant.split(","):
            name, _, fault = one.partition(":")
            if name == stage:
                return fault
        return ""
