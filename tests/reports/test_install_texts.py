"""Excerpts about installing and compiling, as threads show them: the cause that is named.

Each is written for this test around the words that the program prints.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cudadoctor.knowledge import load
from cudadoctor.model.findings import Severity
from cudadoctor.reports.reading import read_report
from cudadoctor.rules.diagnose import by_rules

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

KB = load()
FILE = Path(__file__).with_name("install_texts.toml")
TEXTS = [
    (excerpt["cause"], excerpt["text"])
    for excerpt in tomllib.loads(FILE.read_text("utf-8"))["excerpt"]
]
HARMLESS = (
    "pip install torch\nSuccessfully installed torch-2.6.0\nEverything works, thank you.",
    "A matching Triton is not available, some optimizations will not be enabled.\n"
    "Error caught was: No module named 'triton'",
    "nvcc warning : The 'compute_35', 'compute_37' architectures are deprecated",
    "Cuda compilation tools, release 12.4, V12.4.131\nBuild cuda_12.4.r12.4/compiler.34097967_0",
    "WARNING: Running pip as the 'root' user can result in broken permissions",
    "[pip3] torch==2.6.0\n[pip3] triton==3.2.0\n[pip3] numpy==1.26.4",
    "UserWarning: The detected CUDA version (12.2) has a minor version mismatch with the version "
    "that was used to compile PyTorch (12.1). Most likely this shouldn't be a problem.",
)


def named(text: str) -> str | None:
    """The root cause, or what the report shows instead of one."""
    found = by_rules(read_report(text, KB), KB)
    infos = [finding.cause for finding in found.findings if finding.severity is Severity.INFO]
    return found.primary or next(iter(infos), None)


@pytest.mark.parametrize(("cause", "text"), TEXTS)
def test_the_cause_of_an_excerpt_is_named(cause: str, text: str) -> None:
    assert named(text) == cause


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_no_fault_is_not_called_one(text: str) -> None:
    found = by_rules(read_report(text, KB), KB)
    assert found.primary is None, found.findings
