"""Colab, Kaggle and cloud images: keep the installed torch, and survive the end of a session.

What it does: this script prints which notebook service or image it is running in, the preinstalled
packages and the recommended steps, but changes nothing. It recommends a constraints file, which
keeps pip from replacing a working torch, and a folder in which checkpoints persist.

When it helps: you work in a hosted notebook or a ready-made image. Run the script before you
install anything.

When it hurts: the image's torch is too old for your code. In that case, use a different image.

How to check: `pip install --dry-run -c constraints.txt ...` shows what pip would replace.

Troubleshooting:
- "operator torchvision::nms does not exist": when you installed your requirements, pip replaced the
  image's torch. Install them with a constraints file, as this script recommends.
- "numpy.dtype size changed, may indicate binary incompatibility": restart the notebook kernel.
- torch.cuda.is_available() is False in a new session: no accelerator was selected. In Colab, select
  one under Runtime > Change runtime type; in Kaggle, under Settings > Accelerator.
- "no kernel image is available for execution on the device" on Kaggle: the session has a P100,
  which the installed torch was not built for. Select the T4 instead.
- "Temporary failure in name resolution" when pip runs on Kaggle: turn on Settings > Internet.
- "No module named 'torch'" in an AWS, Google Cloud or Azure image: torch is in the environment
  named in the login message. Activate that environment first.
- Files on the disk of an AWS, Google Cloud or Azure VM persist, unlike files in a hosted notebook
  session.
- Your code mistakes Kaggle for Colab: Kaggle's image is based on Colab's image. Check for Kaggle
  first.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

DRIVE = 'from google.colab import drive; drive.mount("/content/drive")'
# Variable that identifies it, name, folder that persists, and when; checked in this order.
PLACES = (
    (
        "KAGGLE_KERNEL_RUN_TYPE",
        "Kaggle",
        "/kaggle/working",
        "with Persistence on, or after Save Version",
    ),
    ("COLAB_RELEASE_TAG", "Google Colab", "/content/drive/MyDrive", f"after `{DRIVE}`"),
    ("DATABRICKS_RUNTIME_VERSION", "Databricks", "/Volumes or /dbfs", "if available"),
    ("RUNPOD_POD_ID", "RunPod", "/workspace", "with a volume"),
    ("NVIDIA_PYTORCH_VERSION", "an NVIDIA image", "/workspace", "if it is mounted"),
)
# Not `pip freeze`: in NVIDIA and conda images, it prints `numpy @ file:///...`.
ONLY = "grep -E '^(torch|triton|numpy|nvidia)'"
PINS = f"python -m pip list --format=freeze | {ONLY} > constraints.txt"
REST = "python -m pip install -c constraints.txt -r requirements.txt"
KEPT = ("torch", "torchvision", "torchaudio", "triton", "numpy")
TOLERANCE = {"cpu": 0.0, "cuda": 1e-5}  # of the loss in a resumed session


def place_of(variables: Mapping[str, str]) -> tuple[str, str]:
    """Name of the place where this runs, and the folder that persists there."""
    for variable, name, folder, condition in PLACES:
        if variable in variables:
            return name, f"{folder} ({condition})"
    return "unknown image", str(Path.cwd())


def steps_for(place: str, *, cuda_build: bool, gpu: bool, works: bool) -> list[str]:
    """What to do, in order. works: torch can use the GPU. Only one case replaces torch."""
    if works or (not gpu and not cuda_build):
        return [PINS, REST]  # nothing to repair
    if not gpu:
        return [f"{place}: select a GPU for this session", PINS, REST]
    if cuda_build:  # driver, architecture or variables: another torch may not help
        return ["cudadoctor check", PINS, REST]
    return ["cudadoctor fix", "restart the kernel", PINS, REST]  # a CPU build, but a GPU exists


def train(device: str, checkpoint: Path, end: int) -> list[float]:
    """One session: train from the checkpoint, if there is one, to step `end`; its losses."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Dropout(0.2), torch.nn.Linear(32, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step, losses, new = 0, list[float](), checkpoint.with_suffix(".new")
    if checkpoint.exists():
        saved = torch.load(checkpoint, map_location="cpu", weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])  # its state matters as much as the weights
        torch.set_rng_state(saved["random"])  # so that dropout and data continue, too
        torch.cuda.set_rng_state_all(saved["random_cuda"])  # the GPU has its own generators
        step = saved["step"]
    for _ in range(step, end):
        x = torch.randn(64, 32)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x.to(device)), x[:, :1].to(device))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": end}
    cuda = torch.cuda.get_rng_state_all() if device == "cuda" else []
    torch.save({**parts, "random": torch.get_rng_state(), "random_cuda": cuda}, new)
    new.replace(checkpoint)  # if the session ends while saving, the old file stays
    return losses


SESSIONS = (  # simulated: variables, what torch and the machine have, place, first step
    ("COLAB_RELEASE_TAG COLAB_GPU", "cuda gpu works", "Google Colab", PINS),
    ("COLAB_RELEASE_TAG KAGGLE_KERNEL_RUN_TYPE", "cuda", "Kaggle", "Kaggle: select a GPU"),
    ("NVIDIA_PYTORCH_VERSION RUNPOD_POD_ID", "cuda gpu", "RunPod", "cudadoctor check"),
    ("NVIDIA_PYTORCH_VERSION", "cuda gpu works", "an NVIDIA image", PINS),
    ("DATABRICKS_RUNTIME_VERSION", "gpu", "Databricks", "cudadoctor fix"),
    ("PATH", "", "unknown image", PINS),
)


def told(variables: str, has: str, place: str, first: str) -> bool:
    """Whether a simulated session gets the right place and steps."""
    found, _ = place_of(dict.fromkeys(variables.split(), "1"))
    steps = steps_for(found, cuda_build="cuda" in has, gpu="gpu" in has, works="works" in has)
    return found == place and steps[0].startswith(first) and steps[-2:] == [PINS, REST]


def main(argv: Sequence[str] | None = None) -> int:
    devices = ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=devices, default=devices[0])
    parser.add_argument("--steps", type=int, default=60)
    asked = parser.parse_args(argv)
    (place, folder), works = place_of(os.environ), torch.cuda.is_available()
    gpu, built = works or bool(shutil.which("nvidia-smi")), torch.version.cuda
    print(
        f"{place}, persistent folder: {folder}; Python {platform.python_version()}, CUDA: {built}"
    )
    there = {
        distribution.name: distribution.version
        for distribution in importlib.metadata.distributions()
    }
    print("preinstalled:", *(f"{name}=={there[name]}" for name in KEPT if name in there))
    for step in steps_for(place, cuda_build=bool(built), gpu=gpu, works=works):
        print("recommended:", step)
    with tempfile.TemporaryDirectory() as made:
        whole = train(asked.device, Path(made, "whole.pt"), asked.steps)
        parts = train(asked.device, Path(made, "parts.pt"), asked.steps // 2)
        parts += train(asked.device, Path(made, "parts.pt"), asked.steps)
    off = max(abs(a - b) for a, b in zip(whole, parts, strict=True))
    right, limit = sum(told(*session) for session in SESSIONS), TOLERANCE[asked.device]
    held = right == len(SESSIONS) and off <= limit and whole[-1] < whole[0]
    print(
        f"{'proved' if held else 'not proved'}: {right} of {len(SESSIONS)} simulated sessions get"
        f" the right place and steps; after resuming, losses differ by at most {off:.0e}"
        f" (tolerance {limit:.0e})"
    )
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
