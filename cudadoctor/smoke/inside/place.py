"""Where a stage runs, and what must be true of it."""

import os
from typing import Any

import torch


class Skip(Exception):
    """This torch, device or system cannot do it; the text says why."""


class Wrong(Exception):
    """It ran and the answer is wrong; the text says by how much."""


class Place:
    """The device of a stage, and the folder it may write to.

    device: where it has to run. careful: nobody has looked yet whether others use it.
    fault: what a test planted, "" nothing.
    """

    def __init__(
        self, device: str, scratch: str, rank: int = 0, world: int = 1, careful: bool = False
    ) -> None:
        self.device = torch.device(device)
        self.gpu = self.device.type == "cuda"
        self.scratch = scratch
        self.rank = rank
        self.world = world
        self.careful = careful
        self.limit_s = 30.0
        self.fault = ""
        self._ready = False

    def begin(self, limit_s: float, fault: str) -> None:
        """Before each stage; the first one finds out whether the device can be had at all."""
        self.limit_s, self.fault = limit_s, fault
        if not self._ready:
            self._prepare()
            self._ready = True

    def _prepare(self) -> None:
        """Exact arithmetic, one thread, and on a GPU no more than a guest's share."""
        torch.set_num_threads(1)
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
        if self.gpu:
            torch.cuda.set_device(self.device)
            total = torch.cuda.get_device_properties(self.device).total_memory
            self._polite()
            # Half a GiB is left for the context, cuDNN and NCCL, which the allocator cannot count.
            torch.cuda.set_per_process_memory_fraction(min(1.0, (512 << 20) / total), self.device)

    def _polite(self) -> None:
        """Where nobody could say beforehand how full the GPU is, look before taking any of it."""
        if self.careful and hasattr(torch.cuda, "mem_get_info"):
            free, total = torch.cuda.mem_get_info(self.device)
            if free < total * 0.2:
                raise Skip("%d %% of its memory is in use" % (100 - 100 * free // total))

    def computes(self, name: str) -> bool:
        """Whether a GPU of this generation has that format; a CPU is asked elsewhere."""
        if not self.gpu or torch.version.hip:
            return True
        capability = torch.cuda.get_device_capability(self.device)
        return bool(capability >= {"bf16": (8, 0), "fp16": (5, 3)}.get(name, (0, 0)))

    def proven(self, *tensors: Any) -> None:
        """Fail a stage whose result lies elsewhere than on the device that it was to prove."""
        claimed = torch.device("cuda:0") if self.fault == "elsewhere" else self.device
        for one in tensors:
            if one.device != claimed:
                raise Wrong("the result lies on %s, not on %s" % (one.device, claimed))

    def settle(self) -> None:
        """Wait for the GPU, so that a fault shows in the stage that made it."""
        if self.gpu:
            torch.cuda.synchronize(self.device)

    def room(self, size: int = 1 << 20) -> str:
        """The scratch folder, after proving that it takes a file."""
        if not self.scratch:
            raise Skip("there is no temporary folder that can be written to")
        path = os.path.join(self.scratch, "room-%d" % os.getpid())
        try:
            with open(path, "wb") as handle:
                handle.write(b"\0" * size)
            os.remove(path)
        except OSError as problem:
            _removed(path)
            raise Skip(
                "the temporary folder %s takes no file: %s" % (self.scratch, problem.strerror)
            ) from None
        return self.scratch


def _removed(path: str) -> None:
    try:
        os.remove(path)
    except OSError:
        return
