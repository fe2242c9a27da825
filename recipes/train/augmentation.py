"""Mixup and RandAugment: more out of few images.

What it does: Mixup trains on weighted averages of two images, with the same average of their
labels. RandAugment applies a few randomly chosen operations (shift, rotation, brightness and so
on) of one common strength to every image. Both run on whole batches here, on a CPU or a GPU.

When it helps: you have few samples, and the model fits the training data perfectly while the
validation loss rises. RandAugment shows the model what must not matter. Mixup keeps it from
memorizing single images and from being overconfident.

When it hurts: with plenty of data or few epochs, augmentation only slows down learning. An
operation that changes the label does harm: flipped digits, rotated road signs, colors of fruit.
With very noisy images, Mixup can raise the validation loss. It blurs small objects and is not meant
for detection or segmentation. Augmentation on the CPU can starve the GPU (dataloader.py).

How to check: compare the validation loss at the end with and without augmentation; the training
loss is higher with it and says nothing. Look at a few augmented images. Do not augment validation
data.

Troubleshooting:
- The training accuracy is below the validation accuracy: this is normal with Mixup and RandAugment,
  because augmented images are harder.
- "Expected floating point type for target with class probabilities": cross_entropy accepts mixed
  labels only as floating-point probabilities (torch 1.10 or newer). Use functional.one_hot(y,
  classes).float(), as below.
- The augmented images are the same in every epoch or in all DataLoader workers: NumPy's random
  numbers start equal in every worker. Draw with torch.
- Augmentation makes the result worse: lower the strength, or leave out operations that change the
  label. Train longer: augmented data needs more epochs.
- "Default grid_sample and affine_grid behavior has changed": pass align_corners=False.
- torchvision.transforms.v2 has RandAugment, MixUp and CutMix ready-made: RandAugment there is for
  uint8 images or PIL, MixUp for whole batches (a collate_fn of the DataLoader).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from proof import Proof, main
from torch.nn import functional

# --- Copy from here ------------------------------------------------------------------------------


def mixup(x: torch.Tensor, y: torch.Tensor, classes: int, alpha: float = 0.4) -> Any:
    """Mix each image and its label with another one; cross_entropy takes the mixed labels."""
    share = torch.distributions.Beta(alpha, alpha).sample((len(x),)).to(x.device)
    other, soft = torch.randperm(len(x), device=x.device), functional.one_hot(y, classes).float()
    own = share.view(-1, 1, 1, 1)
    return own * x + (1 - own) * x[other], share[:, None] * soft + (1 - share[:, None]) * soft[
        other
    ]


def moved(x: torch.Tensor, strength: float) -> torch.Tensor:
    """Turn and shift each image by up to 45 degrees and a quarter of its size."""
    angle, right, down = (strength * (2 * torch.rand(len(x)) - 1) for _ in range(3))
    angle, right, down = angle * math.pi / 4, right / 2, down / 2  # the width is 2
    rows = [angle.cos(), -angle.sin(), right, angle.sin(), angle.cos(), down]
    grid = functional.affine_grid(torch.stack(rows, 1).view(-1, 2, 3), x.shape, align_corners=False)
    return functional.grid_sample(x, grid.to(x), align_corners=False)


def brighter(x: torch.Tensor, strength: float) -> torch.Tensor:
    return x * (1 + strength * (2 * torch.rand(len(x), 1, 1, 1) - 1)).to(x)


def noisy(x: torch.Tensor, strength: float) -> torch.Tensor:
    return x + 0.5 * strength * torch.randn_like(x)


def rand_augment(x: torch.Tensor, count: int = 2, strength: float = 0.7) -> torch.Tensor:
    """Apply `count` random operations; choose operations that do not change your labels."""
    operations = (moved, brighter, noisy)
    for number in torch.randint(len(operations), (count,)).tolist():
        x = operations[number](x, strength)
    return x


# --- Copy to here. The rest is the proof. --------------------------------------------------------
CLASSES, SIZE = 10, 16
Data = tuple[torch.Tensor, torch.Tensor]


def images(count: int, seed: int, device: str) -> Data:
    """Ten smooth shapes, turned and shifted a little, each in front of a smooth background."""
    fixed = torch.Generator().manual_seed(7)
    coarse = torch.randn(CLASSES, 1, 5, 5, generator=fixed)
    shapes = functional.interpolate(coarse, (SIZE, SIZE), mode="bilinear")
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % CLASSES
    angle, right, down = (torch.rand(count, generator=draw) - 0.5 for _ in range(3))
    rows = [angle.cos(), -angle.sin(), 0.2 * right, angle.sin(), angle.cos(), 0.2 * down]
    grid = functional.affine_grid(
        torch.stack(rows, 1).view(-1, 2, 3), [count, 1, SIZE, SIZE], align_corners=False
    )
    x = functional.grid_sample(shapes[y], grid, align_corners=False)
    behind = torch.randn(count, 1, 5, 5, generator=draw)
    x = x + functional.interpolate(behind, (SIZE, SIZE), mode="bilinear")
    return x.to(device), y.to(device)


def network(device: str) -> torch.nn.Sequential:
    torch.manual_seed(0)
    first = torch.nn.Conv2d(1, 16, 3, 2, 1), torch.nn.ReLU()
    second = torch.nn.Conv2d(16, 32, 3, 2, 1), torch.nn.ReLU(), torch.nn.Flatten()
    return torch.nn.Sequential(*first, *second, torch.nn.Linear(512, CLASSES)).to(device)


def train(model: Any, known: Data, steps: int, change: Any) -> Any:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        chosen = torch.randint(len(known[0]), (50,)).to(known[0].device)
        x, y = change(known[0][chosen], known[1][chosen])
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()


def same_images(x: torch.Tensor, y: torch.Tensor) -> Any:
    return x, y


@torch.no_grad()  # type: ignore[untyped-decorator, unused-ignore]
def judged(model: Any, fresh: Data) -> tuple[float, float]:
    """Loss and accuracy."""
    scores = model(fresh[0])
    right = (scores.argmax(1) == fresh[1]).float().mean()
    return float(functional.cross_entropy(scores, fresh[1])), float(right)


def prove(proof: Proof) -> None:
    few, fresh = images(proof.samples, 1, proof.device), images(1_500, 2, proof.device)
    changes = {
        "none": same_images,
        "Mixup": lambda x, y: mixup(x, y, CLASSES),
        "RandAugment": lambda x, y: (rand_augment(x), y),
    }
    results, new, losses = {}, {}, {}
    for name, change in changes.items():
        model, seen = network(proof.device), list[torch.Tensor]()
        model.register_forward_pre_hook(lambda _, args, seen=seen: seen.append(args[0]))
        used = proof.technique(change, instead=same_images)
        losses[name] = proof.train(name, train(model, few, proof.steps, used))
        nearest = torch.cdist(torch.cat(seen[:5]).flatten(1), few[0].flatten(1)).min(1)[0]
        new[name] = float((nearest > 0.5).float().mean())
        results[name] = judged(model, fresh)
        print(f"{'':<24} validation loss {results[name][0]:.3f}, accuracy {results[name][1]:.1%}")
    for name in ("Mixup", "RandAugment"):
        proof.active(
            new[name] > 0.5 > new["none"],
            f"{new[name]:.0%} of the images that the model sees with {name} are not in the"
            f" training data; {new['none']:.0%} without",
        )
        outcome = (
            f"with {proof.samples} images, {name} changes the validation loss from"
            f" {results['none'][0]:.3f} to {results[name][0]:.3f} (accuracy"
            f" {results['none'][1]:.1%} and {results[name][1]:.1%})"
        )
        # Whether an augmentation helps depends on the data; on these images, Mixup does.
        if name == "Mixup":
            proof.purpose(results[name][0] < 0.9 * results["none"][0], outcome)
        else:
            print(outcome)


if __name__ == "__main__":
    main(__doc__, prove, steps=(300, 120), samples=300)
