"""The library: what a script, a notebook and pytest get."""

import subprocess
import sys
from typing import Any

import pytest
from msgspec.structs import replace
from remedy_fixtures import machine
from scenario_reader import HERE, read_scenario

import cudadoctor
from cudadoctor import knowledge
from cudadoctor.library import described
from cudadoctor.model.machine import Imported, Machine
from cudadoctor.needs import Needs, unmet
from cudadoctor.probes import examine
from cudadoctor.rules.diagnose import diagnose

pytest_plugins = ["pytester"]
CPU_BUILD = HERE / "scenarios" / "torch-cpu-build--gpu-on-the-bus.toml"
TURING = {"index": 1, "name": "NVIDIA T4", "capability": "7.5", "memory_bytes": 16 << 30}
TURING |= {"uuid": "GPU-11111111-2222-3333-4444-555555555555"}
ADA = {"index": 0, "name": "NVIDIA RTX 4090", "capability": "8.9", "memory_bytes": 24 << 30}
ADA |= {"uuid": "GPU-99999999-2222-3333-4444-555555555555"}
TWENTY: dict[str, Any] = {"min_memory_gb": 20.0}


def with_gpus(*gpus: dict[str, Any], **sections: Any) -> Machine:
    """The machine with those GPUs, as a look sees it that asks NVML alone."""
    there = machine("rtx4090-linux", gpus=list(gpus), look="fast", **sections)
    nvml = replace(there.driver.nvml, count=len(gpus))
    libcuda = replace(there.driver.libcuda, count=None)
    return replace(
        there,
        driver=replace(there.driver, nvml=nvml, libcuda=libcuda),
        torch=replace(there.torch, imported=Imported()),
        smoke=None,
    )


def test_importing_it_loads_nothing() -> None:
    code = "import sys, cudadoctor; print(sorted(n for n in sys.modules if 'cudadoctor.' in n))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("facts", "wanted", "lacks"),
    [
        ({}, {"min_memory_gb": 23, "bf16": True, "ddp": True, "torch": ">=2.0"}, None),
        ({}, {"min_memory_gb": 40}, "40 GiB of GPU memory are needed"),
        ({}, {"torch": ">=99"}, "torch>=99 is needed"),
        ({"gpus": [TURING]}, {"bf16": True}, "the GPU has 7.5"),
        ({"gpus": [TURING]}, {}, None),
        ({"gpus": None}, {"bf16": True, **TWENTY}, None),
        ({"env": {"CUDA_VISIBLE_DEVICES": ""}}, {}, "CUDA_VISIBLE_DEVICES hides every GPU"),
        ({"torch": {"build": "cpu", "text": "2.14.1+cpu", "cuda": None}}, {}, "CPU"),
        ({"torch": {"installed": False}}, {"cuda": False}, "not installed"),
        ({"torch": {"build": "cpu", "text": "2.14.1+cpu", "cuda": None}}, {"cuda": False}, None),
    ],
)
def test_needs_are_held_against_what_is_known(
    facts: dict[str, Any], wanted: dict[str, Any], lacks: str | None
) -> None:
    there = machine("rtx4090-linux", **facts)
    said = unmet(there, diagnose(there, knowledge.load()), Needs(**wanted))
    assert (said is None) if lacks is None else (said is not None and lacks in said), said


@pytest.mark.parametrize(
    ("env", "lacks"),
    [
        ({"CUDA_VISIBLE_DEVICES": "1"}, False),  # CUDA's number 1 may be either
        ({"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, True),
        ({"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, False),
        ({"CUDA_VISIBLE_DEVICES": TURING["uuid"]}, True),
        ({"CUDA_VISIBLE_DEVICES": ADA["uuid"]}, False),
    ],
)
def test_only_the_gpus_that_the_script_sees_count(env: dict[str, str], lacks: bool) -> None:
    there = with_gpus(ADA, TURING, env=env)
    said = unmet(there, diagnose(there, knowledge.load()), Needs(bf16=True, **TWENTY))
    assert (said is not None) is lacks, said


def test_a_gpu_of_unknown_size_may_be_large_enough() -> None:
    there = with_gpus(ADA, {"index": 1, "uuid": TURING["uuid"]})
    assert unmet(there, diagnose(there, knowledge.load()), Needs(min_memory_gb=80)) is None


def test_a_machine_without_a_gpu_says_so() -> None:
    there = machine("cpu-linux")
    said = unmet(there, diagnose(there, knowledge.load()), Needs())
    assert said is not None
    assert "No NVIDIA GPU" in said
    assert unmet(there, diagnose(there, knowledge.load()), Needs(cuda=False)) is None


def test_a_torch_without_nccl_cannot_do_ddp() -> None:
    there = machine("rtx4090-linux")
    found = diagnose(there, knowledge.load())
    assert unmet(there, found, Needs(ddp=True), nccl=False) == "This torch is built without NCCL"
    assert unmet(there, found, Needs(ddp=True), nccl=True) is None
    assert unmet(there, found, Needs(), nccl=False) is None


def test_the_error_ends_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    there = read_scenario(CPU_BUILD).machine
    monkeypatch.setattr(examine, "examine", lambda *_: there)
    with pytest.raises(
        cudadoctor.RequirementError, match=r"(?s)\nTo fix it, run:\n    .*pip install torch=="
    ):
        cudadoctor.require()


def test_another_version_of_torch_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examine, "examine", lambda *_: machine("rtx4090-linux"))
    with pytest.raises(
        cudadoctor.RequirementError, match=r"(?s)torch<2\.7.*\nTo fix it, run:\n.*torch==2\.6\.\d"
    ):
        cudadoctor.require(torch="<2.7,>=2.6")


def test_a_wrong_specifier_is_one_sentence() -> None:
    with pytest.raises(ValueError, match=r"torch='two' is no version specifier; write it as"):
        cudadoctor.require(torch="two")


def test_cuda_is_not_touched_in_the_caller() -> None:
    """A torch in the process whose CUDA half tells on whoever looks at it."""
    code = """
import sys, types
class Bait(types.ModuleType):
    def __getattr__(self, name):
        if name in ("cuda", "version"): raise SystemExit("touched " + name)
        raise AttributeError(name)
sys.modules["torch"] = Bait("torch")
import cudadoctor
try: cudadoctor.require(ddp=True)
except cudadoctor.RequirementError: pass
cudadoctor.explain(RuntimeError("CUDA error: device-side assert triggered"))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_report_of_this_interpreter() -> None:
    shown = cudadoctor.check(depth="fast")
    assert shown.to_json()["facts"]["python"]["chosen_by"] == "--python"
    assert shown.verdict in ("healthy", "warnings", "broken", "undecided")
    assert shown._repr_html_().startswith("<pre>")


def test_no_python_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="no-such-python"):
        cudadoctor.check(python="/no-such-python", depth="fast")


@pytest.mark.parametrize(
    ("like", "error", "cause"),
    [
        ("rtx4090-linux", RuntimeError("Cannot re-initialize CUDA in forked subprocess."), "fork"),
        ("rtx4090-linux", RuntimeError("CUDA error: device-side assert triggered"), "not-env"),
        ("rtx4090-linux", KeyError("weight"), "not-env"),
        ("cpu-linux", RuntimeError("Found no NVIDIA driver on your system."), "gpu-not-detected"),
    ],
)
def test_an_exception_is_explained_by_its_text_and_the_machine(
    like: str, error: Exception, cause: str
) -> None:
    there = described(error, machine(like))
    found = diagnose(there, knowledge.load()).findings
    assert any(finding.cause.startswith(cause) for finding in found)


def test_an_exception_of_the_program_names_no_broken_environment() -> None:
    there = described(KeyError("weight"), machine("rtx4090-linux"))
    assert diagnose(there, knowledge.load()).verdict == "healthy"


@pytest.mark.parametrize(("words", "skipped", "failed"), [((), 1, 0), (("--require-gpu",), 0, 1)])
def test_a_marked_test_is_skipped_or_fails(
    pytester: pytest.Pytester, words: tuple[str, ...], skipped: int, failed: int
) -> None:
    pytester.makepyfile("import pytest\n@pytest.mark.cuda(torch='>=99')\ndef test_it(): pass")
    ran = pytester.runpytest_subprocess(*words)
    counted = ran.parseoutcomes()
    broken = counted.get("failed", 0) + counted.get("errors", 0)
    assert (counted.get("skipped", 0), broken) == (skipped, failed)
