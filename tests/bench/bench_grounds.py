"""Machines on which the bench might measure."""

from __future__ import annotations

from packaging.version import Version

from cudadoctor.bench.techniques import Ground

CPU = Ground(gpu=False, torch=Version("2.13"), compiler=True, cores=4, cpu_bf16=True)
H200 = Ground(
    gpu=True,
    capability=Version("9.0"),
    torch=Version("2.14"),
    compiler=True,
    triton=True,
    cores=16,
)
