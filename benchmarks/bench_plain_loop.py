"""The plain loop that bench_agreement.py holds against the bench: run by the examined Python.

    python bench_plain_loop.py FOLDER WORKLOAD TECHNIQUE DEVICE SHAPE

Models and data are the bench's (FOLDER is cudadoctor/smoke/inside); the loader, the step and the
clock are its own, as somebody would write them. For every number read it does so many steps and
prints the seconds of one.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

TECHNIQUES = ("baseline", "amp-bf16", "sdpa", "channels-last")


def workloads_of(folder: str) -> Any:
    """The module that defines models and data."""
    home = types.ModuleType("bench_parts")
    home.__path__ = [folder]
    sys.modules["bench_parts"] = home
    import importlib

    return importlib.import_module("bench_parts.workloads")


def loader_of(data: Any, workload: str, shape: dict[str, Any]) -> DataLoader:
    collate = None
    if workload == "cnn":
        dataset, lengths = data.Images(shape, False), [1] * int(shape["samples"])
    elif workload == "decoder":
        dataset, lengths = data.Windows(shape), [1] * int(shape["samples"])
    else:
        dataset = data.Texts(shape, False)
        lengths = dataset.lengths
        collate = data.Padding(int(shape["length"]), False, int(shape["length"]))
    batches = data.Batches(lengths, int(shape["batch"]), 0, False)
    return DataLoader(dataset, batch_sampler=batches, collate_fn=collate)


def main() -> None:
    folder, workload, technique, device, text = sys.argv[1:]
    shape = json.loads(text)
    workloads = workloads_of(folder)
    torch.manual_seed(0)
    settings = workloads.Settings({"attention": "sdpa"} if technique == "sdpa" else {})
    model = workloads.build(workload, shape, settings).to(device)
    last = technique == "channels-last"
    if last:
        model = model.to(memory_format=torch.channels_last)
    if workload == "cnn":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.004, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    mixed = technique == "amp-bf16"
    kind = device.partition(":")[0]

    def steps() -> Iterator[None]:
        """The usual training loop: a batch stays alive until the next one arrives."""
        for host in loader_of(workloads, workload, shape):
            batch = [tensor.to(device) for tensor in host]
            if last:
                batch[0] = batch[0].to(memory_format=torch.channels_last)
            optimizer.zero_grad()
            with torch.autocast(kind, torch.bfloat16) if mixed else contextlib.nullcontext():
                loss = workloads.loss_of(workload, model, batch)
            loss.backward()
            optimizer.step()
            yield

    training = steps()

    def synchronised() -> float:
        if kind == "cuda":
            torch.cuda.synchronize()
        return time.monotonic()

    for _ in range(10):
        next(training)
    print("ready", flush=True)
    for line in sys.stdin:
        next(training)
        began = synchronised()
        for _ in range(int(line)):
            next(training)
        print((synchronised() - began) / int(line), flush=True)


if __name__ == "__main__":
    main()
