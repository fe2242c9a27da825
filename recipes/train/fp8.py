"""fp8 training with torchao: the matrix multiplications of linear layers in 8 bits.

What it does: convert_to_float8_training() replaces torch.nn.Linear. Before every matrix
multiplication, forward and backward, the new layer scales both inputs so that their largest value
fits and rounds them to fp8 (e4m3 with 3 bits after the leading one, e5m2 with 2 for gradients). The
results, the weights and the optimizer stay in bf16 or fp32.

When it helps: you have a GPU with fp8 tensor cores (Ada, Hopper, Blackwell; compute capability 8.9
or newer), the linear layers are wide (several thousand inputs and outputs, and as many tokens per
step), and the model is compiled: torch.compile fuses scaling and rounding with other operations.

When it hurts: without torch.compile, or with narrow layers, scaling and rounding take more time
than fp8 saves. Training needs about the same memory, because the weights and most of what
backward() needs stay in bf16. Every product has an error of a few percent; the losses of a long run
can drift. fp8 does not run on older GPUs. On a CPU it runs, but only to try it out.

How to check: profile a step and look for aten::_scaled_mm in place of aten::mm, compare the loss
curve with bf16, and measure the time per step of the compiled model. torchao must be installed (pip
install torchao); this script was tried with torchao 0.18.0 and torch 2.13 on a CPU.

Troubleshooting:
- "torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 or 8.9, or ROCm
  MI300+": this GPU has no fp8 tensor cores. Use bf16.
- "Expected trailing dimension of mat1 to be divisible by 16", "mat2 shape ... must be divisible by
  16": leave out layers whose sizes are not multiples of 16 with module_filter_fn, and pad the batch
  to a multiple of 16.
- fp8 is slower than bf16: call torch.compile(model) after the conversion, and convert only wide
  layers.
- The loss is nan or worse than in bf16: leave the first and the last layer in bf16, and try
  Float8LinearConfig.from_recipe_name("rowwise"), with one scale per row (compute capability 9.0 or
  newer).
- "Failed to load .../torchao/_C_...so": torchao's own kernels were built for another version of
  torch. fp8 training does not need them.
- fp8 under FSDP2 or DDP: convert the model first, then call fully_shard() or wrap it in DDP.
"""

from __future__ import annotations

from typing import Any

import torch
from proof import Proof, main, skip

# --- Copy from here ------------------------------------------------------------------------------


def in_fp8(model: torch.nn.Module) -> torch.nn.Module:
    """Convert the wide linear layers; on a GPU, compile the model afterwards."""
    from torchao.float8 import convert_to_float8_training  # pip install torchao

    def wanted(layer: torch.nn.Module, name: str) -> bool:
        sizes = getattr(layer, "in_features", 0), getattr(layer, "out_features", 0)
        return min(sizes) >= 64 and not any(size % 16 for size in sizes)

    return convert_to_float8_training(model, module_filter_fn=wanted)


# --- Copy to here. The rest is the proof. --------------------------------------------------------
TOLERANCE = 0.05  # relative to the first loss: e4m3 rounds each value by up to 6%
CLASSES = 10


def network(width: int, device: str) -> torch.nn.Module:
    """Two layers for fp8, and a last one with too few outputs."""
    torch.manual_seed(0)
    sizes = ((width, 2 * width), (2 * width, width))
    hidden = [part for size in sizes for part in (torch.nn.Linear(*size), torch.nn.GELU())]
    return torch.nn.Sequential(*hidden, torch.nn.Linear(width, CLASSES)).to(device, torch.bfloat16)


def train(model: Any, steps: int, width: int, device: str) -> Any:
    draw = torch.Generator().manual_seed(0)
    teacher = torch.randn(width, CLASSES, generator=draw)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    for _ in range(steps):
        x = torch.randn(128, width, generator=draw)
        y = (x @ teacher).argmax(1).to(device)
        scores = model(x.to(device, torch.bfloat16))
        loss = torch.nn.functional.cross_entropy(scores.float(), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()


def fp8_products(model: Any, width: int, device: str) -> int:
    """How many matrix multiplications of one step had inputs in fp8."""
    with torch.profiler.profile() as profile:
        list(train(model, 1, width, device))
    return sum(event.name == "aten::_scaled_mm" for event in profile.events())


def prove(proof: Proof) -> None:
    device = proof.device
    try:
        import torchao.float8  # noqa: F401
    except ImportError as missing:
        skip(f"{missing} (pip install torchao)")
    if device == "cuda" and torch.cuda.get_device_capability() < (8, 9):
        skip(f"{torch.cuda.get_device_name()} cannot multiply in fp8: it takes Ada or newer")
    try:
        eye = torch.eye(16, device=device).to(torch.float8_e4m3fn)
        one = torch.ones((), device=device)
        torch._scaled_mm(eye, eye.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    except (RuntimeError, NotImplementedError) as refused:
        skip(f"torch {torch.__version__} cannot multiply in fp8 on this device ({refused})")
    convert: Any = proof.technique(in_fp8, instead=lambda model: model)
    plain = network(proof.width, device)
    in_bf16 = proof.train("bf16", train(plain, proof.steps, proof.width, device))
    model = convert(network(proof.width, device))
    ours = proof.train("fp8", train(model, proof.steps, proof.width, device))
    off = abs(ours[-1] - in_bf16[-1]) / in_bf16[0]
    proof.same(
        off <= TOLERANCE and ours[-1] < 0.9 * ours[0],
        f"the final loss is within {off:.1%} of bf16, relative to the first"
        f" (tolerance {TOLERANCE:.0%})",
    )
    before, after = (fp8_products(some, proof.width, device) for some in (plain, model))
    proof.active(
        before == 0 and after >= 5,
        f"one step runs {after} matrix multiplications in fp8, {before} without the conversion;"
        " two of three linear layers are wide enough",
    )


if __name__ == "__main__":
    main(__doc__, prove, steps=(60, 30), width=(256, 128))
