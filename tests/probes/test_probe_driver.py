"""The driver as a whole: who is asked when, and what all answers together prove."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version
from recorded_host import RecordedHost, cut_short, lines
from standin_fixtures import HostWith, StandIns

from cudadoctor.host.children import Ran
from cudadoctor.host.local import Answer, Stat
from cudadoctor.model.machine import Nvml, Smi
from cudadoctor.probes import Looked
from cudadoctor.probes.driver import FAST, FULL, DriverFiles, read_driver
from cudadoctor.probes.streamed import Patience

SHORT = Patience(start_s=1.5, call_s=1.5, smi_s=2.0, beside_s=0.3, total_s=10.0, nvml_s=9.0)
SILENT = cut_short(silent_s=4.0)
TABLE = """\
| NVIDIA-SMI 550.54.15    Driver Version: 550.54.15    CUDA Version: 12.4  |
|   0  NVIDIA L4                 Off |   00000000:01:00.0 Off |                    0 |
| N/A   41C    P8    12W /  72W |      1MiB /  23034MiB |      0%      Default |
"""
SMI: Any = {"programs": {"nvidia-smi": "/bin/nvidia-smi"}}
NVML_LINES = (
    {"kind": "loaded", "path": "/lib/libnvidia-ml.so.580.95.05"},
    {"kind": "system", "name": "version", "value": "13.580.95.05"},
    {"kind": "init", "call": "nvmlInitWithFlags", "code": 0, "message": ""},
    {"kind": "system", "name": "driver", "value": "580.95.05"},
    {"kind": "system", "name": "cuda", "value": 13000},
    {"kind": "system", "name": "count", "value": 1},
    {"kind": "gpu", "index": 0, "field": "handle", "code": 0},
    {"kind": "gpu", "index": 0, "field": "name", "value": "NVIDIA L4"},
)
NVML_ABSENT = lines({"kind": "not-loaded", "why": "libnvidia-ml.so.1: cannot open"})
CUDA_ABSENT = lines({"kind": "not-loaded", "why": "libcuda.so.1: cannot open"})


def recorded(nvml: Ran = NVML_ABSENT, cuda: Ran = CUDA_ABSENT, **more: Any) -> RecordedHost:
    inside = {"nvml.py": nvml, "cuda.py": cuda}
    return RecordedHost(**{"otherwise": Ran(missing=True), "inside": inside, **more})


def driver(host: RecordedHost, fast: bool = True) -> Looked:
    return read_driver(host, fast)


def nvml(seen: Looked) -> Nvml:
    found = seen.facts["driver.nvml"]
    assert isinstance(found, Nvml)
    return found


# --- who is asked -------------------------------------------------------------------


def test_nvidia_smi_is_not_asked_where_nvml_answers() -> None:
    host = recorded(lines(*NVML_LINES), **SMI)
    seen = driver(host)
    assert seen.facts["driver.smi"] == Smi(found=True, path="/bin/nvidia-smi")
    assert not any("nvidia-smi" in argv[0] for argv in host.asked)
    assert [gpu.name for gpu in seen.facts["gpus"]] == ["NVIDIA L4"]


def test_nvidia_smi_answers_where_nvml_does_not_load() -> None:
    seen = driver(recorded(**SMI, otherwise=Ran(code=0, stdout=TABLE)))
    assert nvml(seen).loads is False
    assert str(seen.facts["driver.reported"]) == "550.54.15"
    assert seen.facts["driver.cuda"] == Version("12.4")
    assert [gpu.name for gpu in seen.facts["gpus"]] == ["NVIDIA L4"]
    assert seen.facts["driver.loaded"] is True
    assert seen.facts["driver.installed"] is True


def test_nvidia_smi_is_heard_where_nvml_fails_to_start() -> None:
    init = {"kind": "init", "call": "nvmlInitWithFlags", "code": 18, "message": "mismatch"}
    said = "Failed to initialize NVML: Driver/library version mismatch\n"
    seen = driver(recorded(lines(NVML_LINES[0], init), **SMI, otherwise=Ran(code=18, stdout=said)))
    assert nvml(seen).code == 18
    assert seen.facts["driver.smi"].message == said.strip()
    assert "gpus" not in seen.facts


def test_nvidia_smi_fills_what_a_crash_of_nvml_left_open() -> None:
    dead = cut_short(*NVML_LINES[:-2], {"kind": "calling", "call": "nvmlDeviceGetName"}, signal=11)
    seen = driver(recorded(dead, **SMI, otherwise=Ran(code=0, stdout=TABLE)))
    assert (nvml(seen).signal, nvml(seen).call) == (11, "nvmlDeviceGetName")
    assert str(seen.facts["driver.reported"]) == "580.95.05"
    assert [gpu.memory_bytes for gpu in seen.facts["gpus"]] == [23034 << 20]


def test_a_library_that_no_folder_holds_costs_no_child() -> None:
    host = recorded(files={"/etc/ld.so.cache": "empty"})
    seen = driver(host)
    assert nvml(seen).loads is False
    assert seen.facts["driver.libcuda"].loads is False
    assert not [argv for argv in host.asked if argv[0].endswith(".py")]


@pytest.mark.parametrize(
    ("files", "env", "may"),
    [
        ({"/etc/ld.so.cache": ""}, {}, False),
        ({}, {}, True),
        ({"/etc/ld.so.cache": "", "/usr/lib64/libcuda.so.1": ""}, {}, True),
        ({"/etc/ld.so.cache": "", "/x/libcuda.so.1": ""}, {"LD_LIBRARY_PATH": "/a:/x"}, True),
        ({"/etc/ld.so.cache": "", "/x/glibc-hwcaps/y": ""}, {"LD_LIBRARY_PATH": "/x"}, True),
        ({"/etc/ld.so.cache": "", "/x/libcublas.so": ""}, {"LD_LIBRARY_PATH": "/x"}, False),
        ({"/etc/ld.so.cache": ""}, {"LD_PRELOAD": "/x/libcuda.so.1"}, True),
        ({"/etc/ld.so.cache": "", "/etc/ld.so.preload": "/x"}, {}, True),
    ],
)
def test_no_child_only_where_the_loader_cannot_find_it(
    files: dict[str, str], env: dict[str, str], may: bool
) -> None:
    assert DriverFiles(RecordedHost(files=files, env=env)).may_load("libcuda.so.1") is may


# --- silence ------------------------------------------------------------------------


def test_silence_within_a_short_wait_is_a_gap_that_says_why() -> None:
    silent = cut_short(NVML_LINES[0], {"kind": "calling", "call": "nvmlInit"}, silent_s=4.0)
    seen = driver(recorded(silent, **SMI, otherwise=SILENT))
    assert nvml(seen).hung is None
    assert seen.facts["driver.smi"].hung is None
    reasons = [gap.why for gap in seen.gaps if gap.fact == "gpus"]
    assert any("nvmlInit: no response within 4 s" in why for why in reasons)
    assert any("nvidia-smi" in why for why in reasons)


def test_silence_after_a_long_wait_is_a_hang() -> None:
    silent = cut_short(NVML_LINES[0], {"kind": "calling", "call": "nvmlInit"})
    seen = driver(recorded(silent, **SMI, otherwise=cut_short()), fast=False)
    assert nvml(seen).hung == "nvmlInit"
    assert seen.facts["driver.smi"].hung is True


def test_a_limit_of_the_users_own_proves_nothing() -> None:
    silent = cut_short(NVML_LINES[0], {"kind": "calling", "call": "nvmlInit"}, silent_s=5.0)
    seen = read_driver(recorded(silent, otherwise=SILENT), False, timeout_s=5)
    assert nvml(seen).hung is None


def test_the_limits_of_a_fast_look_stay_below_the_promise() -> None:
    assert FAST.beside_s + FAST.smi_s < FAST.total_s < 5.5
    assert FULL.nvml_s < FULL.total_s < 75
    assert FULL.capped(90) == FULL
    assert FAST.capped(2).total_s == 3


@pytest.fixture
def stubborn(tmp_path: Path) -> Path:
    """A folder with an nvidia-smi that ignores SIGTERM and never ends."""
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\ntrap '' TERM INT HUP\nwhile :; do sleep 600; done\n")
    program.chmod(0o755)
    return tmp_path


def test_a_library_and_a_program_that_hang_for_ever_are_left_behind(
    standins: StandIns, stubborn: Path
) -> None:
    env = standins.environment("nvmlInitWithFlags = hang", standins.nvml())
    host = HostWith({**env, "PATH": f"{stubborn}:{env['PATH']}"})
    started = time.monotonic()
    seen = read_driver(host, True, patience=SHORT)
    assert time.monotonic() - started < 9
    assert nvml(seen).hung == "nvmlInit"
    assert seen.facts["driver.smi"].hung is True
    assert "gpus" not in seen.facts


def test_a_slow_nvml_wins_over_the_program_started_beside_it(
    standins: StandIns, stubborn: Path
) -> None:
    env = standins.environment("gpu1.nvmlDeviceGetPowerUsage = hang\ncount = 2", standins.nvml())
    host = HostWith({**env, "PATH": f"{stubborn}:{env['PATH']}"})
    seen = read_driver(host, True, patience=SHORT)
    assert nvml(seen).hung == "nvmlDeviceGetPowerUsage"
    assert [gpu.capability for gpu in seen.facts["gpus"]] == [Version("9.0")] * 2


def test_real_libraries_and_a_real_script_make_one_driver(standins: StandIns) -> None:
    folders = (standins.nvml(), standins.cuda())
    host = HostWith(standins.environment("count = 2\ncuda = 13000", *folders))
    seen = read_driver(host, True)
    facts = seen.facts
    assert facts["driver.libcuda"].count == len(facts["gpus"]) == 2
    assert (str(facts["driver.library"]), str(facts["driver.reported"])) == ("580.95.05",) * 2
    assert facts["driver.loaded"] is True


# --- what follows -------------------------------------------------------------------


def test_a_machine_without_a_driver_knows_so() -> None:
    seen = driver(
        recorded(files={"/proc/modules": "xfs 1 0 -\n", "/etc/ld.so.cache": "", "/dev/null": ""})
    )
    facts = seen.facts
    assert (facts["driver.installed"], facts["driver.loaded"]) == (False, False)
    assert facts["gpus"] == ()


def test_a_module_on_disk_is_an_installed_driver_that_is_not_loaded() -> None:
    files: dict[str, str | bytes | Answer] = {
        "/proc/modules": "nouveau 1 0 -\n",
        "/lib/modules/6.8/updates/dkms/nvidia.ko": "",
    }
    facts = driver(recorded(files=files)).facts
    assert (facts["driver.installed"], facts["driver.loaded"]) == (True, False)
    assert "gpus" not in facts


def test_the_library_release_is_read_from_its_name_where_nothing_loads() -> None:
    folder = "/usr/lib64"
    host = recorded(
        files={"/etc/ld.so.cache": "", f"{folder}/libnvidia-ml.so.535.183.01": "x"},
        links={f"{folder}/libnvidia-ml.so.1": f"{folder}/libnvidia-ml.so.535.183.01"},
    )
    seen = driver(host)
    assert str(seen.facts["driver.library"]) == "535.183.01"
    assert seen.facts["driver.installed"] is True


@pytest.mark.parametrize("folder", ["/usr/local/cuda/lib64/stubs", "/usr/local/cuda-13.0/compat"])
def test_stubs_and_compatibility_copies_are_no_driver(folder: str) -> None:
    said = lines(
        {"kind": "loaded", "path": f"{folder}/libcuda.so.580.65.06"},
        {"kind": "value", "name": "version", "value": 13000},
        {"kind": "value", "name": "code", "value": 34},
    )
    seen = driver(recorded(cuda=said, files={"/proc/modules": "xfs 1 0 -\n"}))
    assert seen.facts["driver.installed"] is False
    assert "driver.cuda" not in seen.facts


def test_libcuda_names_the_cuda_version_where_nvml_is_missing() -> None:
    said = lines(
        {"kind": "loaded", "path": "/usr/lib/libcuda.so.535.183.01"},
        {"kind": "value", "name": "version", "value": 12020},
        {"kind": "value", "name": "code", "value": 0},
        {"kind": "value", "name": "count", "value": 1},
    )
    seen = driver(recorded(cuda=said, files={"/proc/modules": "xfs 1 0 -\n"}))
    assert seen.facts["driver.cuda"] == Version("12.2")
    assert seen.facts["driver.loaded"] is True


def test_on_wsl_the_module_is_never_loaded() -> None:
    files = {"/proc/sys/kernel/osrelease": "6.6.87.2-microsoft-standard-WSL2\n"}
    facts = driver(recorded(lines(*NVML_LINES), files=files)).facts
    assert (facts["driver.loaded"], facts["driver.installed"]) == (False, True)


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("system", ["Linux", "Windows", "Darwin"])
def test_the_sickest_machine_is_gaps_and_no_error(fast: bool, system: str) -> None:
    seen = read_driver(RecordedHost(system=system, otherwise=Ran(missing=True)), fast)
    assert seen.facts["driver.smi"] == Smi(found=False)
    assert seen.facts["driver.installed"] is False
    assert not any("probe itself failed" in gap.why for gap in seen.gaps)


@pytest.mark.parametrize(
    "noise",
    [
        lambda *_: Ran(code=0, stdout="\x00" * 999),
        lambda *_: Ran(code=0, stdout='{"kind": 1}\n{"kind": "gpu"}\n{"kind": "system"}\n[]\n{}'),
        lambda *_: Ran(code=0, stdout='{"kind":"gpu","index":"x","field":[],"value":{}}'),
        lambda *_: Ran(code=0, stdout='{"kind":"init"}\n{"kind":"loaded"}\n{"kind":"value"}'),
        lambda *_: Ran(why="EACCES: Permission denied"),
        lambda *_: Ran(code=1, stderr="Traceback\nMemoryError"),
        lambda *_: Ran(why="more than 8 MiB of output"),
    ],
)
def test_noise_in_every_child_is_no_error(noise: Callable[..., Ran]) -> None:
    host = RecordedHost(
        inside={"nvml.py": noise, "cuda.py": noise, "nodes.py": noise},
        stats={"/dev/nvidiactl": Stat(exists=True)},
        programs={"nvidia-smi": "/bin/nvidia-smi", "dmesg": "/bin/dmesg"},
        otherwise=noise(),
    )
    seen = read_driver(host, False)
    assert not any("probe itself failed" in gap.why for gap in seen.gaps)
