"""TF32 and the precision of fp32 matrix multiplications.

What it does: torch.set_float32_matmul_precision("high") lets tensor cores compute fp32 matrix
multiplications in TF32 (11 bits of precision instead of 24); "medium" lets CPUs use bf16 (8 bits)
and is the same as "high" on CUDA devices. Weights, activations and sums stay in fp32, and the
training code does not change. On CUDA, convolutions use TF32 by default; matrix multiplications do
not.

When it helps: fp32 models with large matrix multiplications run faster on Ampere and newer GPUs. On
most CPUs, set_float32_matmul_precision("high") has no effect, but "medium" uses bf16 if oneDNN
supports it (AMX, AVX512-BF16).

When it hurts: computations that need more than three decimal digits become inaccurate: solvers,
matrix inverses, distances computed from products, long recurrences. Under autocast,
set_float32_matmul_precision() affects only operations that stay in fp32.

How to check: compare the result of a matrix multiplication with the float64 result, as this script
does. Reading back torch's precision settings proves nothing, because they exist on all hardware,
even where they have no effect. The default precision is "highest", or "high" if
TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1 is set, as in NVIDIA's containers.

Troubleshooting:
- "TensorFloat32 tensor cores for float32 matrix multiplication available but not enabled. Consider
  setting `torch.set_float32_matmul_precision('high')`": this is only a suggestion from
  torch.compile, not an error.
- "Current status indicate that you have used mix of the legacy and new APIs to set the matmul
  precision": torch 2.9 added a new setting, torch.backends.cuda.matmul.fp32_precision. After you
  set it to "tf32", reading allow_tf32 or get_float32_matmul_precision() raises this error. Use only
  the old API or only the new API in the whole program, including its libraries;
  set_float32_matmul_precision() works in every version.
- torch.set_float32_matmul_precision("high") changes nothing on an Ampere or newer GPU: the
  environment variable NVIDIA_TF32_OVERRIDE=0 turns TF32 off in all NVIDIA libraries.
- Results differ between two GPUs in the third decimal digit: call
  torch.set_float32_matmul_precision("highest"). For convolutions, also set
  torch.backends.cudnn.allow_tf32 = False (in torch 2.9 and newer,
  torch.backends.cudnn.conv.fp32_precision = "ieee").
"""

from __future__ import annotations

import torch
from proof import Proof, apart, labeled, main, perceptron, skip, train_plain

# --- Copy from here ------------------------------------------------------------------------------


def set_precision(name: str) -> None:
    """Set the precision of fp32 matrix multiplications: "highest", "high" or "medium"."""
    torch.set_float32_matmul_precision(name)


def set_precision_by_backend(name: str) -> None:
    """The same with the settings of torch 2.9 and newer, for each backend."""
    # CUDA has no bf16 setting; the CPU backend is mkldnn (oneDNN).
    torch.backends.cuda.matmul.fp32_precision = "ieee" if name == "highest" else "tf32"
    on_cpu = {"highest": "ieee", "high": "tf32", "medium": "bf16"}[name]
    torch.backends.mkldnn.matmul.fp32_precision = on_cpu


# --- Copy to here. The rest is the proof. --------------------------------------------------------
# Two factors, each rounded to the bits of the setting; for fp32, the rounding of the sum.
LIMIT = {"highest": 2.0**-20, "high": 2 * 2.0**-10, "medium": 2 * 2.0**-7}
TOLERANCE = 0.02  # relative to the first loss


def change_nothing(name: str) -> None:
    pass


def error_of_a_product(width: int, device: str) -> float:
    """The largest error of a product, relative to the sum of its absolute terms."""
    torch.manual_seed(1)
    a, b = torch.randn(width, width, device=device), torch.randn(width, width, device=device)
    error = ((a @ b).double() - a.double() @ b.double()).abs()
    return float((error / (a.double().abs() @ b.double().abs())).max())


def faster_setting(device: str) -> str:
    """The setting that this device can use; skips where it has none."""
    if device == "cuda":
        if torch.version.cuda is not None and torch.cuda.get_device_capability() >= (8, 0):
            return "high"
        skip("this GPU has no TF32: it needs an Ampere or newer GPU")
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        skip("this CPU has neither AMX nor AVX512-BF16: the setting has no effect here")
    return "medium"


def prove(proof: Proof) -> None:
    setting = faster_setting(proof.device)
    ways = [set_precision]
    if hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        ways.append(set_precision_by_backend)
    batches = labeled(proof.steps, proof.width, proof.device, size=128)
    for chosen in ways:
        change = proof.technique(chosen, instead=change_nothing)
        runs, errors = {}, {}
        for name in ("highest", setting):
            change(name)
            errors[name] = error_of_a_product(proof.width, proof.device)
            model = perceptron(proof.width, proof.device)
            runs[name] = proof.train(name, train_plain(model, batches))
        chosen("highest")
        off = apart(runs[setting], runs["highest"])
        proof.same(
            off <= TOLERANCE and errors[setting] <= LIMIT[setting],
            f"losses within {off:.2%} of fp32, relative to the first (tolerance {TOLERANCE:.0%})",
        )
        proof.active(
            errors[setting] > 4 * errors["highest"],
            f'with "{setting}", the error of a product is {errors[setting]:.1e},'
            f' with "highest" {errors["highest"]:.1e}',
        )


if __name__ == "__main__":
    main(__doc__, prove, steps=(80, 10), width=256)
