"""The first stages: memory, a matrix product and a convolution, checked against float64."""

from typing import Any, Dict, List, Tuple

import torch

from .place import Place, Wrong

Said = Tuple[str, Dict[str, Any]]

# The largest error allowed, in units of the root mean square of the exact result. The inputs are
# exact in every format, so what is left is the rounding of sums and of the result.
TOLERANCES = {"fp32": 1e-4, "fp16": 2e-2, "bf16": 8e-2}
FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SIDE = 1024


def allocate(place: Place) -> Said:
    """Memory can be had, written, read back, and holds what was written."""
    sent = torch.arange(1 << 18, dtype=torch.float32)
    there = sent.to(place.device) + 1
    place.proven(there)
    back = there.to("cpu")
    if place.fault == "wrong":
        back[7] += 1
    place.settle()
    differing = int((back != sent + 1).sum())
    if differing:
        raise Wrong("%d of %d numbers came back changed" % (differing, back.numel()))
    if not place.gpu:
        return "on the CPU: this proves torch, not the GPU", {}
    return "", _memory(place)


def matmul(place: Place) -> Said:
    """A product of two matrices of 1024 x 1024 in every format that torch has here."""
    torch.manual_seed(1)
    left, right = _exact(SIDE, SIDE), _exact(SIDE, SIDE)
    return _compared(place, lambda a, b: a @ b, (left, right), (left[:64, :], right[:, :64]))


def conv(place: Place) -> Said:
    """A convolution of 16 to 32 channels."""
    torch.manual_seed(2)
    image, kernel = _exact(8, 16, 32, 32), _exact(32, 16, 3, 3)
    convolve = torch.nn.functional.conv2d
    detail, figures = _compared(
        place, lambda x, w: convolve(x, w, padding=1), (image, kernel), (image[:1], kernel)
    )
    if place.gpu:
        figures["cudnn"] = bool(torch.backends.cudnn.is_acceptable(image.to(place.device)))
    return detail, figures


def trains_in_fp16() -> bool:
    """Whether this torch takes fp16 on the CPU seriously; older ones sum in fp16, and slowly."""
    return hasattr(getattr(torch, "amp", None), "GradScaler")


def _exact(*shape: int) -> Any:
    """Random numbers that bfloat16, float16 and float32 all hold without rounding."""
    return torch.randn(*shape).to(torch.bfloat16).to(torch.float32)


def _compared(place: Place, operation: Any, inputs: Any, fewer: Any) -> Said:
    """Every format against float64 on the CPU; a CPU without half precision gets fewer numbers."""
    figures: Dict[str, Any] = {}
    missing: List[str] = []
    expected = operation(*[one.double() for one in inputs])
    for name, kind in FORMATS.items():
        if not place.gpu and name == "bf16":
            inputs, expected = fewer, operation(*[one.double() for one in fewer])
        if not place.computes(name) or (name == "fp16" and not place.gpu and not trains_in_fp16()):
            missing.append(name)
            continue
        try:
            result = operation(*[one.to(place.device).to(kind) for one in inputs])
        except RuntimeError as problem:
            if place.gpu or name == "fp32" or "not implemented" not in str(problem):
                raise
            missing.append(name)
            continue
        place.proven(result)
        figures["error_" + name] = _error(place, result, expected, name)
    place.settle()
    return ("not done by this torch here: " + ", ".join(missing) if missing else ""), figures


def _error(place: Place, result: Any, expected: Any, name: str) -> float:
    """How far the worst number is off; raises Wrong where that is too far."""
    found = result.to("cpu").double()
    if place.fault == "wrong":
        found[0] += expected.abs().max()
    scale = float(expected.pow(2).mean().sqrt())
    error = float((found - expected).abs().max()) / scale
    if not error <= TOLERANCES[name]:
        raise Wrong("%s is off by %.3g, %.3g is allowed" % (name, error, TOLERANCES[name]))
    return round(error, 9)


def _memory(place: Place) -> Dict[str, Any]:
    figures: Dict[str, Any] = {"name": str(torch.cuda.get_device_name(place.device))}
    if hasattr(torch.cuda, "mem_get_info"):
        free, total = torch.cuda.mem_get_info(place.device)
        figures["free_bytes"], figures["total_bytes"] = int(free), int(total)
    return figures
