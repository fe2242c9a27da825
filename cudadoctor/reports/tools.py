"""Outputs of tools that tell of the driver and the GPUs: nvidia-smi and its neighbours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cudadoctor.reports.document import Document
from cudadoctor.reports.smi import parse_smi
from cudadoctor.reports.telling import Rank, Said

if TYPE_CHECKING:
    from cudadoctor.knowledge import Knowledge


def read_nvidia_smi(doc: Document, _: Knowledge) -> Iterator[Said]:
    """Driver, newest CUDA version and GPUs out of nvidia-smi in any of its forms."""
    if "nvidia-smi" not in doc.low and "nvml" not in doc.low:
        return
    smi = parse_smi(doc.text)
    line = next((one.number for one in doc.lines if "NVIDIA-SMI" in one.text), 1)
    for path, value in (
        ("driver.reported", smi.driver),
        ("driver.cuda", smi.cuda),
        ("gpus", smi.gpus),
        ("driver.smi.message", smi.message),
        ("driver.nvml.code", smi.code),
    ):
        yield Said(path, value, line, Rank.TOOL, "nvidia-smi")
