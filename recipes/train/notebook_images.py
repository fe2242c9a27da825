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

import importlib.metadata
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from proof import Proof, apart, main

# --- Copy from here ------------------------------------------------------------------------------

# Not `pip freeze`: in NVIDIA and conda images, it prints `numpy @ file:///...`.
ONLY = "grep -E '^(torch|triton|numpy|nvidia)'"
PINS = f"python -m pip list --format=freeze | {ONLY} > constraints.txt"
REST = "python -m pip install -c constraints.txt -r requirements.txt"


def save(checkpoint: Path, model: Any, optimizer: Any, step: int) -> None:
    """Save everything that the next session needs; the file is always complete."""
    parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    new = checkpoint.with_suffix(".new")
    torch.save({**parts, "random": torch.get_rng_state(), "random_cuda": cuda}, new)
    new.replace(checkpoint)  # if the session ends while saving, the old file stays


def resume(checkpoint: Path, model: Any, optimizer: Any) -> int:
    """Continue where the last session saved; returns the next step, 0 if nothing is saved."""
    if not checkpoint.exists():
        return 0
    saved = torch.load(checkpoint, map_location="cpu", weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])  # its state matters as much as the weights
    torch.set_rng_state(saved["random"])  # so that dropout and data continue, too
    torch.cuda.set_rng_state_all(saved["random_cuda"])  # the GPU has its own generators
    return int(saved["step"])


# --- Copy to here. The rest is the proof. --------------------------------------------------------

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
KEPT = ("torch", "torchvision", "torchaudio", "triton", "numpy")
TOLERANCE = {"cpu": 0.0, "cuda": 1e-5}  # relative to the first loss of a resumed session


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


SESSIONS = (  # simulated: variables, what torch and the machine have, place, first step
    ("COLAB_RELEASE_TAG COLAB_GPU", "cuda gpu works", "Google Colab", PINS),
    ("COLAB_RELEASE_TAG KAGGLE_KERNEL_RUN_TYPE", "cuda", "Kaggle", "Kaggle: select a GPU"),
    ("NVIDIA_PYTORCH_VERSION RUNPOD_POD_ID", "cuda gpu", "RunPod", "cudadoctor check"),
    ("NVIDIA_PYTORCH_VERSION", "cuda gpu works", "an NVIDIA image", PINS),
    ("DATABRICKS_RUNTIME_VERSION", "gpu", "Databricks", "cudadoctor fix"),
    ("PATH", "", "unknown image", PINS),
)


def recommended(variables: str, has: str, place: str, first: str) -> bool:
    """Whether a simulated session gets the right place and steps."""
    found, _ = place_of(dict.fromkeys(variables.split(), "1"))
    steps = steps_for(found, cuda_build="cuda" in has, gpu="gpu" in has, works="works" in has)
    return found == place and steps[0].startswith(first) and steps[-2:] == [PINS, REST]


def train(
    device: str, checkpoint: Path, end: int, start: Callable[[Path, Any, Any], int]
) -> list[float]:
    """One session: train to step `end` and save; returns its losses."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Dropout(0.2), torch.nn.Linear(32, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses: list[float] = []
    for _ in range(start(checkpoint, model, optimizer), end):
        x = torch.randn(64, 32)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x.to(device)), x[:, :1].to(device))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    save(checkpoint, model, optimizer, end)
    return losses


def from_scratch(checkpoint: Path, model: Any, optimizer: Any) -> int:
    """A session that does not resume."""
    return 0


def survives(checkpoint: Path) -> bool:
    """Whether the checkpoint stays readable if the session ends while saving."""
    before, write = checkpoint.read_bytes(), torch.save

    def ends(_parts: Any, path: Path) -> None:
        path.write_bytes(before[:100])
        raise KeyboardInterrupt

    model = torch.nn.Linear(1, 1)
    torch.save = ends
    try:
        save(checkpoint, model, torch.optim.SGD(model.parameters()), 0)
    except KeyboardInterrupt:
        return checkpoint.read_bytes() == before
    finally:
        torch.save = write
    return False


def wheel(folder: Path, name: str, version: str, needs: str = "") -> None:
    """A package without content, for pip to choose."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    tag = "Wheel-Version: 1.0\nGenerator: recipe\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as file:
        file.writestr(f"{info}/METADATA", metadata + (f"Requires-Dist: {needs}\n" if needs else ""))
        file.writestr(f"{info}/WHEEL", tag)
        file.writestr(f"{info}/RECORD", "")


def chosen(folder: Path, command: str) -> str:
    """What pip would install if the newest version of a package needs a torch of tomorrow."""
    wheel(folder, "torch", "99.0")
    wheel(folder, "plots", "1.0", "torch")
    wheel(folder, "plots", "2.0", "torch>=99")
    (folder / "requirements.txt").write_text("plots\n")
    options = "--dry-run --no-index --find-links . --disable-pip-version-check"
    said = shell(f"{command} {options}", folder)
    lines = [line for line in said.splitlines() if line.startswith("Would install ")]
    return lines[-1].removeprefix("Would install ") if lines else "nothing"


def shell(command: str, folder: Path) -> str:
    """Run a recommended command here, with this Python."""
    command = command.replace("python ", f"{shlex.quote(sys.executable)} ", 1)
    done = subprocess.run(
        command, shell=True, cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    return done.stdout + done.stderr


def prove(proof: Proof) -> None:
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
    start = proof.technique(resume, instead=from_scratch)
    half = proof.steps // 2
    with tempfile.TemporaryDirectory() as made:
        here = Path(made)
        whole = train(proof.device, here / "whole.pt", proof.steps, from_scratch)
        first = train(proof.device, here / "parts.pt", half, start)
        second = train(proof.device, here / "parts.pt", proof.steps, start)
        complete = survives(here / "parts.pt")
        off, limit = apart(first + second, whole), TOLERANCE[proof.device]
        proof.same(
            off <= limit and whole[-1] < whole[0],
            f"losses of two sessions within {off:.0e} of one session (tolerance {limit:.0e})",
        )
        proof.active(
            len(second) == proof.steps - half,
            f"the second session trained {len(second)} of {proof.steps} steps",
        )
        right = sum(recommended(*session) for session in SESSIONS)
        proof.purpose(
            complete and right == len(SESSIONS),
            f"{'a complete' if complete else 'no complete'} checkpoint after a session that ended"
            f" while saving; the right steps for {right} of {len(SESSIONS)} simulated sessions",
        )
        if not (importlib.util.find_spec("pip") and shutil.which("grep") and "torch" in there):
            print("skipped: the constraints file, which needs pip, grep and an installed torch")
            return
        shell(PINS, here)
        kept = chosen(here, proof.technique(REST, instead=REST.replace("-c constraints.txt ", "")))
        proof.purpose(
            kept == "plots-1.0",
            f"where the newest plots-2.0 needs torch 99, pip would install {kept}",
        )


if __name__ == "__main__":
    main(__doc__, prove, steps=(60, 20))
