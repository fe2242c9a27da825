"""Refused requirements and chosen builds: the cause that was planted is the one that is named."""

from __future__ import annotations

import msgspec
import pytest
from planted_installs import planted_logs
from share import WHOLE

from cudadoctor.knowledge import load
from cudadoctor.model.findings import Confidence, Diagnosis
from cudadoctor.reports.reading import read_report
from cudadoctor.rules.diagnose import by_rules, diagnose

KB = load()
INDEX = "https://download.pytorch.org/whl"


def diagnosis_of(text: str) -> Diagnosis:
    return by_rules(read_report(text, KB), KB)


def refused(wanted: str, offered: str = "none") -> str:
    return (
        f"ERROR: Could not find a version that satisfies the requirement {wanted} (from versions: "
        f"{offered})\nERROR: No matching distribution found for {wanted}\n"
    )


def test_a_planted_fault_is_named_where_python_and_system_are_told() -> None:
    logs = planted_logs(KB, 600 if WHOLE else 150, seed=11, names_system=True)
    wrong = [log for log in logs if diagnosis_of(log.text).primary != log.cause]
    assert len(wrong) <= 0.01 * len(logs), wrong[:3]


def test_a_planted_fault_of_python_or_index_is_mostly_named_without_them() -> None:
    logs = [
        log
        for log in planted_logs(KB, 600 if WHOLE else 150, seed=12, names_system=False)
        if log.cause != "platform-unsupported"
    ]
    wrong = [log for log in logs if diagnosis_of(log.text).primary != log.cause]
    assert len(wrong) <= 0.1 * len(logs), wrong[:3]


CU128 = "2.9.0+cu128, 2.9.1+cu128, 2.10.0+cu128, 2.11.0+cu128"
OLD = (
    "1.11.0, 1.12.0, 1.12.1, 1.13.0, 1.13.1, 2.0.0, 2.0.1, 2.1.0, 2.1.1, 2.1.2, 2.2.0, 2.2.1, 2.2.2"
)
CASES = {
    "a release before the first of this Python": (
        refused("torch==1.7.1+cu110", OLD),
        "torch-python-unsupported",
    ),
    "an index that has the release for older Pythons only": (
        f"pip install torch==2.7.0 --index-url {INDEX}/cu128\n" + refused("torch==2.7.0", CU128),
        "torch-python-unsupported",
    ),
    "nothing at all for this Python": (
        "C:\\Users\\u> pip install torch\n" + refused("torch"),
        "torch-python-unsupported",
    ),
    "an index that never was": (
        f"pip install torch --index-url {INDEX}/cu120\n" + refused("torch"),
        "torch-index-wrong",
    ),
    "a CUDA build on PyPI": (
        "pip install torch==2.1.0+cu118\n" + refused("torch==2.1.0+cu118", OLD),
        "torch-index-wrong",
    ),
    "a variant that never was": (
        refused("torch==2.3.0+cu122", OLD + ", 2.3.0"),
        "torch-index-wrong",
    ),
    "a nightly build of a day that is gone": (
        refused("torch==2.3.0.dev20240101+cu121", "2.6.0.dev20240901+cu121"),
        "torch-index-wrong",
    ),
    "an index that ended before the release": (
        f"pip install torch==2.6.0 --index-url {INDEX}/cu121\n"
        + refused("torch==2.6.0", "2.4.0+cu121, 2.4.1+cu121, 2.5.0+cu121, 2.5.1+cu121"),
        "torch-index-wrong",
    ),
    "a Mac with an Intel processor": (
        "macOS 13 on an Intel Mac, Python 3.11\n" + refused("torch==2.3.0", OLD),
        "platform-unsupported",
    ),
    "Python of 32 bits": (
        "Windows 10, 32-bit Python 3.8\n" + refused("torch==1.9.0"),
        "platform-unsupported",
    ),
    "a companion of a release before this Python": (
        refused("torchvision==0.8.2+cu110", "0.12.0, 0.13.0, 0.13.1, 0.14.0, 0.14.1, 0.15.1"),
        "torch-python-unsupported",
    ),
    "a channel of conda without that CUDA": (
        "PackagesNotFoundError: The following packages are not available from current channels:\n"
        "  - pytorch-cuda=12.6\n",
        "torch-index-wrong",
    ),
    "a wheel of another Python": (
        "ERROR: torch-1.8.1+cu111-cp38-cp38-win_amd64.whl is not a supported wheel on this "
        "platform.",
        "torch-python-unsupported",
    ),
    "an index that never was, beside PyPI, on Windows": (
        f"Windows 11\npip install torch --extra-index-url {INDEX}/cu122\n"
        "AssertionError: Torch not compiled with CUDA enabled",
        "torch-index-wrong",
    ),
    "an index that gave nothing, beside PyPI": (
        f"pip3 install torch -f {INDEX}/nightly/cu112/torch_nightly.html\n"
        "Collecting torch\nSuccessfully installed torch-1.8.1\n",
        "torch-index-wrong",
    ),
    "a package that torch needs, which its index lacks": (
        f"pip install torch==2.10.0 --index-url {INDEX}/cu130\n"
        + refused('cuda-bindings==13.0.3; platform_system == "Linux" (from torch)', "12.9.2"),
        "torch-index-wrong",
    ),
    "conda that found no solution": (
        "conda install pytorch==1.8.1 torchaudio==0.8.1 cpuonly -c pytorch\n"
        "UnsatisfiableError: The following specifications were found to be incompatible\n"
        "Package pytorch conflicts for:\n",
        "torch-index-wrong",
    ),
    "the oldest source release under a 32-bit Python": (
        "C:\\Users\\u\\Programs\\Python\\Python38-32\\python.exe -u -c bdist_wheel\n"
        'File "C:\\Temp\\torch\\setup.py", line 225: setup(name="torch", version="0.1.2.post2",',
        "platform-unsupported",
    ),
    "PyPI on Windows": (
        "Windows 11\npip install torch\nAssertionError: Torch not compiled with CUDA enabled",
        "torch-cpu-build",
    ),
    "the index for the CPU": (
        f"pip install torch --index-url {INDEX}/cpu\nTorch not compiled with CUDA enabled",
        "torch-cpu-build",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_cause_is_named(name: str) -> None:
    text, cause = CASES[name]
    assert diagnosis_of(text).primary == cause


def test_a_broken_network_says_nothing_of_versions() -> None:
    text = (
        "WARNING: Retrying after connection broken by 'SSLError(SSLCertVerificationError(1, "
        "'[SSL: CERTIFICATE_VERIFY_FAILED]'))': /simple/torch/\n" + refused("torch")
    )
    assert diagnosis_of(text).primary is None


def test_tables_make_it_certain_where_python_and_system_are_known() -> None:
    text = "Python 3.12.1\nLinux x86_64\npip install torch==2.0.1\n" + refused(
        "torch==2.0.1", "2.2.0"
    )
    found = diagnosis_of(text).findings[0]
    assert (found.cause, found.confidence) == ("torch-python-unsupported", Confidence.CERTAIN)
    assert "3.8, 3.9, 3.10, 3.11" in found.why


def test_without_python_and_system_nothing_is_certain() -> None:
    found = diagnosis_of(refused("torch==2.0.1", "2.2.0, 2.2.1")).findings[0]
    assert found.confidence is not Confidence.CERTAIN


ARM = "pip install torch\nuname -m: aarch64, Linux\n>>> torch.cuda.is_available()\nFalse\n"


def test_a_variant_that_came_in_is_no_fault() -> None:
    text = f"pip3 install torch -f {INDEX}/nightly/cu112/torch_nightly.html\n"
    for came in ("1.9.0.dev20210401+cu112", "1.9.0.dev20210401"):
        diagnosis = diagnosis_of(text + f"Successfully installed torch-{came}\n")
        assert "variant-not-given" not in [found.rule for found in diagnosis.findings]


def test_plain_pip_on_arm_depends_on_the_day() -> None:
    undated = next(
        finding for finding in diagnosis_of(ARM).findings if finding.rule == "cpu-build-chosen"
    )
    assert undated.confidence is Confidence.POSSIBLE
    assert "this report is undated" in undated.why
    early = read_report(ARM, KB)
    for day, fires in (("2025-05-01", True), ("2026-06-01", False)):
        rules = [
            finding.rule
            for finding in diagnose(msgspec.structs.replace(early, date=day), KB).findings
        ]
        assert ("cpu-build-chosen" in rules) is fires
