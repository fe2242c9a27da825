"""Results of the bench that tests show, keep and draw."""

from __future__ import annotations

import msgspec

from cudadoctor.bench.results import (
    BenchResult,
    Bottleneck,
    Conditions,
    Gain,
    Measured,
    WorkloadResult,
    config,
)

BASE_S = 0.0412


def loads(text: str) -> BenchResult:
    """The result that a document holds."""
    return msgspec.json.decode(text, type=BenchResult)


def measured(workload: str, *techniques: str, ratio: float = 1.0) -> Measured:
    step_s = BASE_S / ratio
    return Measured(
        config=config(workload, *techniques),
        rounds=(step_s * 0.99, step_s, step_s * 1.01),
        steps=20,
        samples_a_step=8,
        peak_bytes=3 << 30,
        losses=(4.1, 4.0),
    )


def gain(technique: str, ratio: float, low: float, high: float, verdict: str = "") -> Gain:
    judged = verdict or ("faster" if low > 1.01 else "slower" if high < 0.99 else "same")
    within = round(max(high, 1 / low) - 1, 2) if judged == "same" else None
    return Gain(
        technique=technique,
        verdict=judged,  # type: ignore[arg-type]
        why="the interval says so",
        ratio=ratio,
        low=low,
        high=high,
        within=within,
        pairs=(ratio,) * 4,
    )


def decoder() -> WorkloadResult:
    best = gain("amp-bf16 + compile", 3.42, 3.38, 3.46)
    return WorkloadResult(
        name="decoder",
        samples_unit="sequences",
        shape="a small GPT: 6 layers, width 512, 256 tokens, batch 8",
        baseline=measured("decoder"),
        bottleneck=Bottleneck(kind="compute", why="61 % of the fp32 peak of this GPU"),
        alone=(
            gain("amp-bf16", 2.1, 2.05, 2.15),
            gain("compile", 1.42, 1.38, 1.46),
            gain("channels-last", 1.0, 0.98, 1.02),
            gain("activation-checkpointing", 0.78, 0.76, 0.8),
            gain("sdpa", 1.07, 0.9, 1.27, "undecided"),
            Gain(technique="amp-fp16", verdict="loss-differs", why="4.9 after 20 steps, not 4.1"),
            Gain(technique="cuda-graphs", verdict="failed", why="out of memory"),
            Gain(
                technique="fp8",
                verdict="not-here",
                why="needs a GPU with capability 8.9 or newer",
            ),
        ),
        best=("amp-bf16", "compile"),
        best_gain=best,
        noise=1.008,
        conditions=Conditions(busy=0.03, load=0.4, clock_mhz=(2520, 2610), power_w=(380, 402)),
    )


def gpu_result() -> BenchResult:
    return BenchResult(
        cudadoctor="0.1.0",
        date="2026-11-21T10:00:00",
        device="cuda:0",
        gpu="NVIDIA GeForce RTX 4090",
        capability="8.9",
        driver="580.95.05",
        torch="2.14.1+cu130",
        cuda="13.0",
        python="3.12.3",
        cpu="AMD Ryzen 9 7950X",
        cores=32,
        minutes=10.0,
        seconds=571.0,
        workloads=(decoder(),),
        method="processes",
    )


def cpu_result() -> BenchResult:
    return BenchResult(
        cudadoctor="0.1.0",
        date="2026-11-21T10:00:00",
        device="cpu",
        torch="2.13.0+cpu",
        python="3.11.9",
        cpu="Intel Xeon Platinum 8480+",
        cores=2,
        minutes=2.0,
        seconds=118.0,
        workloads=(decoder(),),
        complete=False,
        notes=("other programs used the CPU while it was measured",),
        method="processes",
    )
