"""Colab, Kaggle and cloud images: use what is installed there, and survive the end of a session.

What it does: says where it runs, what is preinstalled and what it would do, and does none of it:
keep a torch that works, held by a constraints file, and checkpoints in the folder that stays.

When it helps: at the top of a notebook, and of a script in a ready-made image.

When it hurts: an image whose torch is too old for the code: then take another image.

How to see it: run it; `pip install --dry-run -c constraints.txt ...` says what would be replaced.

What goes wrong, and the way out:
- "operator torchvision::nms does not exist": a requirement brought another torch than the image's.
- "numpy.dtype size changed, may indicate binary incompatibility": restart the kernel.
- torch.cuda.is_available() is False in a fresh session: no accelerator was chosen. Colab: Runtime >
  Change runtime type. Kaggle: Settings > Accelerator.
- "no kernel image is available for execution on the device": Kaggle's P100. Choose the T4.
- "Temporary failure in name resolution" in pip: Kaggle's Settings > Internet is off.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import os
import platform
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

# Name, the variable that tells it, the folder that outlives the session.
PLACES = (
    ("Google Colab", "COLAB_RELEASE_TAG", "/content/drive/MyDrive"),
    ("Kaggle", "KAGGLE_KERNEL_RUN_TYPE", "/kaggle/working"),
    ("Databricks", "DATABRICKS_RUNTIME_VERSION", "/dbfs"),
    ("RunPod", "RUNPOD_POD_ID", "/workspace"),
    ("a container of NVIDIA", "NVIDIA_PYTORCH_VERSION", "/workspace"),
)
KEPT = ("torch", "torchvision", "torchaudio", "triton", "numpy")
PINS = "python -m pip freeze | grep -E '^(torch|triton|numpy|nvidia)' > constraints.txt"
REST = "python -m pip install -c constraints.txt -r requirements.txt"


@dataclass(frozen=True)
class Situation:
    """torch: its version, None where it is absent. works: torch uses the GPU."""

    place: str
    torch: str | None
    cuda_build: bool
    gpu: bool
    works: bool


def place_of(variables: Mapping[str, str]) -> tuple[str, str]:
    """Where it runs, and the folder that stays."""
    found = [(name, folder) for name, variable, folder in PLACES if variable in variables]
    return found[0] if found else ("no image that is known here", str(Path.cwd()))


def steps_for(now: Situation) -> list[str]:
    """What to do, in order. A torch that is there is replaced in one case only."""
    if now.torch is None:
        return ["python -m pip install torch", "restart the kernel", PINS, REST]
    if now.works or (not now.gpu and not now.cuda_build):
        return [PINS, REST]  # nothing to repair
    if not now.gpu:
        return [f"{now.place}: choose an accelerator in the settings", PINS, REST]
    if now.cuda_build:  # driver, architecture, variables: another torch may not help
        return ["cudadoctor check", PINS, REST]
    return ["cudadoctor fix", "restart the kernel", PINS, REST]  # a CPU build beside a GPU


def violations() -> tuple[int, list[Situation]]:
    """How many situations there are, and those in which `steps_for` does what it never should."""
    flag = (False, True)
    possible = [
        Situation(place[0], version, cuda_build, gpu, works)
        for place, version in itertools.product(PLACES, (None, "2.9.0"))
        for cuda_build, gpu, works in itertools.product(flag, flag, flag)
        if not works or (version and cuda_build and gpu)
    ]

    def wrong(now: Situation) -> bool:
        steps = steps_for(now)
        replaces = bool({"python -m pip install torch", "cudadoctor fix"} & set(steps))
        needed = now.torch is None or (now.gpu and not now.cuda_build)
        return replaces != needed or steps[-2:] != [PINS, REST]

    return len(possible), [now for now in possible if wrong(now)]


def train(device: str, checkpoint: Path, end: int) -> list[float]:
    """One session: from the checkpoint, if there is one, to step `end`; its losses."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Dropout(0.2), torch.nn.Linear(32, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step, losses, new = 0, list[float](), checkpoint.with_suffix(".new")
    if checkpoint.exists():
        saved = torch.load(checkpoint, map_location="cpu", weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])  # its moments are half of the state
        torch.set_rng_state(saved["random"])  # the dropout and the data go on, too
        step = saved["step"]
    for _ in range(step, end):
        x = torch.randn(64, 32)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x.to(device)), x[:, :1].to(device))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save({**parts, "random": torch.get_rng_state(), "step": end}, new)
    new.replace(checkpoint)  # a session that ends while it saves leaves the old one
    return losses


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=["cpu"], default="cpu", help="of the small training")
    parser.add_argument("--steps", type=int, default=60)
    asked = parser.parse_args(argv)
    (place, folder), works = place_of(os.environ), torch.cuda.is_available()
    gpu = works or bool(shutil.which("nvidia-smi"))
    now = Situation(place, torch.__version__, bool(torch.version.cuda), gpu, works)
    print(f"{place}, what stays: {folder}; Python {platform.python_version()}; {now}")
    there = {one.name: one.version for one in importlib.metadata.distributions()}
    print("preinstalled:", *(f"{name}=={there[name]}" for name in KEPT if name in there))
    print("would do:", "\nwould do: ".join(steps_for(now)))
    with tempfile.TemporaryDirectory() as made:
        whole = train(asked.device, Path(made, "whole.pt"), asked.steps)
        parts = train(asked.device, Path(made, "parts.pt"), asked.steps // 2)
        parts += train(asked.device, Path(made, "parts.pt"), asked.steps)
    count, wrong = violations()
    held = not wrong and whole == parts and whole[-1] < whole[0]
    print(
        f"{'proved' if held else 'not proved'}: in {count - len(wrong)} of {count} situations torch"
        f" is installed only where it is absent or a CPU build beside a GPU, the rest under"
        f" constraints; losses of two sessions are {'' if whole == parts else 'not '}those of one"
    )
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
