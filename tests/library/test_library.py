"""The library: what a script, a notebook and pytest get."""

import subprocess
import sys
from typing import Any

import pytest
from packaging.version import Version

import cudadoctor
from cudadoctor.model.machine import Gpu
from cudadoctor.needs import unmet_of_gpus

pytest_plugins = ["pytester"]
OLD = Gpu(index=0, memory_bytes=16 << 30, capability=Version("7.5"))
NEW = Gpu(index=1, memory_bytes=80 << 30, capability=Version("9.0"))
LOST = Gpu(index=2, code=15)


def test_importing_it_loads_nothing() -> None:
    code = "import sys, cudadoctor; print(sorted(n for n in sys.modules if 'cudadoctor.' in n))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("gpus", "visible", "needs", "unmet"),
    [
        ((OLD,), None, {"min_memory_gb": 16}, None),
        ((OLD,), None, {"min_memory_gb": 16.1}, "16.1 GiB"),
        ((OLD, NEW), None, {"min_memory_gb": 80, "bf16": True}, None),
        ((OLD,), None, {"bf16": True}, "bfloat16"),
        ((OLD, Gpu(index=1)), None, {"bf16": True, "min_memory_gb": 20}, None),
        ((LOST,), None, {}, "no usable"),
        ((LOST, NEW), None, {}, None),
        ((), None, {}, "no usable"),
        ((NEW,), "", {}, "hides every GPU"),
        ((NEW,), "-1", {}, "hides every GPU"),
        ((NEW,), "0", {}, None),
        (None, None, {"bf16": True, "min_memory_gb": 20}, None),
        (None, None, {"driver": False}, "no NVIDIA driver"),
    ],
)
def test_the_needs_are_held_against_what_is_known(
    gpus: tuple[Gpu, ...] | None, visible: str | None, needs: dict[str, Any], unmet: str | None
) -> None:
    said = unmet_of_gpus(gpus, visible, **needs)
    assert said is None if unmet is None else said is not None and unmet in said


def test_an_exception_is_explained_by_its_text() -> None:
    error = RuntimeError("CUDA error: no kernel image is available for execution on the device")
    explained = cudadoctor.explain(error)
    assert "torch-arch-unsupported-old" in explained.causes
    assert explained._repr_html_().startswith("<pre>")
    assert explained.to_json()["schema"] == 1


def test_an_exception_of_the_program_names_no_broken_environment() -> None:
    assert cudadoctor.explain(KeyError("weight")).verdict != "broken"


@pytest.mark.parametrize(("words", "skipped", "failed"), [((), 1, 0), (("--require-gpu",), 0, 1)])
def test_a_marked_test_is_skipped_or_fails(
    pytester: pytest.Pytester, words: tuple[str, ...], skipped: int, failed: int
) -> None:
    pytester.makepyfile("import pytest\n@pytest.mark.cuda(torch='>=99')\ndef test_it(): pass")
    ran = pytester.runpytest_inprocess("-p", "cudadoctor.pytest_plugin", *words)
    counted = ran.parseoutcomes()
    assert (counted.get("skipped", 0), counted.get("failed", 0) + counted.get("errors", 0)) == (
        skipped,
        failed,
    )
