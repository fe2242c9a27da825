"""Every stage notices a torch that is broken on purpose in the examined process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cudadoctor.host.local import LocalHost
from cudadoctor.model.machine import Smoke, Stage
from cudadoctor.smoke import run_smoke

pytestmark = pytest.mark.torch

BREAKAGES = {
    "memory loses a value": (
        "allocate",
        "came back changed",
        """
        of = torch.Tensor.to
        def to(self, *more, **named):
            result = of(self, *more, **named)
            return result + (result == 7) if self.dtype == result.dtype == torch.float32 else result
        torch.Tensor.to = to
        """,
    ),
    "a product in fp32 computed in bf16": (
        "matmul",
        "fp32 is off by",
        """
        of = torch.matmul
        def matmul(a, b):
            if a.dtype == torch.float32:
                return of(a.bfloat16().float(), b.bfloat16().float())
            return of(a, b)
        torch.matmul = matmul
        """,
    ),
    "a product in fp32 computed in TF32": (
        "matmul",
        "fp32 is off by",
        """
        of = torch.matmul
        def rounded(x):
            bits = x.view(torch.int32)
            return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)
        def matmul(a, b):
            if a.dtype == torch.float32:
                return of(rounded(a), rounded(b))
            return of(a, b)
        torch.matmul = matmul
        """,
    ),
    "one bit of a product turned over, once": (
        "matmul",
        "differ when the same operation runs again",
        """
        of = torch.matmul
        made = []
        def matmul(a, b):
            result = of(a, b)
            if result.dtype == torch.float32:
                made.append(1)
                if len(made) == 2:
                    result.view(torch.int32)[100, 7] ^= 1
            return result
        torch.matmul = matmul
        """,
    ),
    "one number of a product wrong, always": (
        "matmul",
        "fp32 is off by",
        """
        of = torch.matmul
        def matmul(a, b):
            result = of(a, b)
            if result.dtype == torch.float32:
                result[101, 7] *= 1.5
            return result
        torch.matmul = matmul
        """,
    ),
    "a convolution in bf16 half a percent too large": (
        "conv",
        "% too large",
        """
        of = torch.nn.functional.conv2d
        def conv2d(x, *more, **named):
            result = of(x, *more, **named)
            return result * 1.005 if x.dtype == torch.bfloat16 else result
        torch.nn.functional.conv2d = conv2d
        """,
    ),
    "attention without its scale": (
        "attention",
        "attention by default in fp32 is off",
        """
        of = torch.nn.functional.scaled_dot_product_attention
        torch.nn.functional.scaled_dot_product_attention = lambda q, k, v: of(q, k, v, scale=1.0)
        """,
    ),
    "a loss that never changes": (
        "train-fp32",
        "do not decrease",
        """
        torch.Tensor.sub_ = lambda self, other, **named: self
        """,
    ),
    "autocast that leaves fp32": (
        "amp-bf16",
        "autocast left the values in float32",
        """
        import contextlib
        torch.autocast = lambda *more, **named: contextlib.nullcontext()
        """,
    ),
    "overflow detection gone": (
        "amp-fp16",
        "not skipped though its gradients had overflowed",
        """
        of = torch.amp.GradScaler.unscale_
        def unscale_(self, optimizer):
            of(self, optimizer)
            for found in self._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values():
                found.zero_()
        torch.amp.GradScaler.unscale_ = unscale_
        scaled = torch.amp.GradScaler._unscale_grads_
        def _unscale_grads_(self, *more):
            found = scaled(self, *more)
            for flag in found.values():
                flag.zero_()
            return found
        torch.amp.GradScaler._unscale_grads_ = _unscale_grads_
        """,
    ),
    "a scale that stays after an overflow": (
        "amp-fp16",
        "after an overflow the scale is 1024, not 512",
        """
        torch.amp.GradScaler.get_backoff_factor = lambda self: 1.0
        of = torch.amp.GradScaler.__init__
        def __init__(self, *more, **named):
            of(self, *more, **dict(named, backoff_factor=0.999999999))
        torch.amp.GradScaler.__init__ = __init__
        """,
    ),
    "a convolution in fp32 computed in TF32": (
        "conv",
        "fp32 is off by",
        """
        of = torch.nn.functional.conv2d
        def rounded(x):
            return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
        def conv2d(x, w, **named):
            if x.dtype == torch.float32 and len(x) > 1:
                return of(rounded(x), rounded(w), **named)
            return of(x, w, **named)
        torch.nn.functional.conv2d = conv2d
        """,
    ),
    "attention by one backend alone wrong": (
        "attention",
        "attention by flash_attention in fp32 is off",
        """
        of, only = torch.nn.functional.scaled_dot_product_attention, torch.backends.cuda
        def attend(*more):
            return of(*more) * (1.0 if only.math_sdp_enabled() else 1.01)
        torch.nn.functional.scaled_dot_product_attention = attend
        """,
    ),
    "compiled code that is wrong": (
        "compile",
        "compiled steps differ from eager steps",
        """
        of = torch.compile
        def wrong(net):
            made = of(net, backend="eager")
            return lambda images: made(images) * 1.01
        torch.compile = wrong
        """,
    ),
    "a torch.compile that compiles nothing": (
        "compile",
        "torch.compile compiled nothing",
        """
        torch.compile = lambda net: net
        """,
    ),
    "no compiler for torch.compile": (
        "compile",
        "no C++ compiler was found: ",
        """
        import os
        os.environ["CXX"] = "/nowhere/g++"
        """,
    ),
    "no Python.h for torch.compile": (
        "compile",
        "Python.h is missing: ",
        """
        import sysconfig
        of = sysconfig.get_path
        sysconfig.get_path = lambda name, *more, **named: (
            "/nowhere/include" if name == "include" else of(name, *more, **named)
        )
        """,
    ),
    "no Python.h for the launcher of Triton": (
        "compile",
        "Python.h is missing: /nowhere/Python.h does not exist: CalledProcessError",
        """
        import subprocess, sysconfig
        sysconfig.get_path = lambda *more, **named: "/nowhere"
        def refuse(net):
            raise subprocess.CalledProcessError(1, ["/usr/bin/gcc", "main.c"])
        torch.compile = refuse
        """,
    ),
    "no C compiler for Triton": (
        "compile",
        "no C compiler was found: RuntimeError: Failed to find C compiler",
        """
        def refuse(net):
            raise RuntimeError("Failed to find C compiler. Please specify via CC")
        torch.compile = refuse
        """,
    ),
    "no Triton": (
        "compile",
        "triton is not installed: ModuleNotFoundError: No module named 'triton'",
        """
        def refuse(net):
            raise RuntimeError("Cannot find a working triton installation.")
        torch.compile = refuse
        """,
    ),
    "AdamW that forgets the weight decay": (
        "optimizer",
        "adamw (default) is off",
        """
        import torch.optim
        of = torch.optim.AdamW.__init__
        def __init__(self, *more, **named):
            of(self, *more, **dict(named, weight_decay=0.0))
        torch.optim.AdamW.__init__ = __init__
        """,
    ),
    "a checkpoint that loses a value": (
        "checkpoint",
        "the resumed run differs",
        """
        of = torch.save
        def save(whole, path):
            whole["net"] = {name: value + 0.01 for name, value in whole["net"].items()}
            of(whole, path)
        torch.save = save
        """,
    ),
    "a distributed checkpoint that loses a value": (
        "checkpoint",
        "torch.distributed.checkpoint loads values",
        """
        import torch.distributed.checkpoint as distributed
        of = distributed.load
        def load(values, **named):
            of(values, **named)
            next(iter(values.values())).add_(1)
        distributed.load = load
        """,
    ),
    "a sum of the ranks off by one": (
        "ddp",
        "gives 1 wrong sums",
        """
        import torch.distributed as distributed
        of = distributed.all_reduce
        def all_reduce(buffer, **named):
            of(buffer, **named)
            buffer[9] += 1
        distributed.all_reduce = all_reduce
        """,
    ),
    "gradients of one rank that are not shared": (
        "ddp",
        "the gradients differ",
        """
        torch.nn.parallel.DistributedDataParallel = lambda net, **named: net
        """,
    ),
}


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_a_broken_torch_fails_its_stage(python_cpu: str, tmp_path: Path, breakage: str) -> None:
    name, words, lines = BREAKAGES[breakage]
    program = "\n".join(line[8:] for line in lines.splitlines())
    (tmp_path / "sitecustomize.py").write_text(f"import torch\n{program}")
    looked = run_smoke(
        LocalHost(),
        python_cpu,
        mode="full",
        device="cpu",
        compiles=name == "compile",
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    smoke = looked.facts["smoke"]
    assert isinstance(smoke, Smoke)
    stages: dict[str, Stage] = {stage.name: stage for stage in smoke.stages}
    # A CPU that cannot autocast is no failure, but no proof either.
    assert stages[name].status != "passed", stages
    assert words in (stages[name].detail or "")
