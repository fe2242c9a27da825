"""NVML and libcuda through real libraries made of C, loaded by the real nvidia-ml-py."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.version import Version
from recorded_host import RecordedHost, cut_short
from standin_fixtures import HostWith, StandIns

from cudadoctor.host.children import Ran
from cudadoctor.host.recording import RecordingHost
from cudadoctor.model.machine import Gpu, Libcuda, Nvml
from cudadoctor.model.versions import DriverVersion
from cudadoctor.probes import Looked
from cudadoctor.probes.driver import FULL
from cudadoctor.probes.libcuda import file_version, read_libcuda
from cudadoctor.probes.nvml import gpu_from, library_version, read_nvml
from cudadoctor.probes.streamed import Patience

LONG = 60.0


def asked(
    standins: StandIns, scenario: str, *flags: str, limit_s: float = LONG, sure: bool = True
) -> Looked:
    host = HostWith(standins.environment(scenario, standins.nvml(*flags)))
    return read_nvml(
        host, Patience(start_s=limit_s, call_s=limit_s) if sure else Patience(nvml_s=limit_s)
    )


def nvml(seen: Looked) -> Nvml:
    found = seen.facts["driver.nvml"]
    assert isinstance(found, Nvml)
    return found


def gpus(seen: Looked) -> tuple[Gpu, ...]:
    found: tuple[Gpu, ...] = seen.facts["gpus"]
    return found


def gaps(seen: Looked) -> dict[str, str]:
    return {gap.fact: gap.why for gap in seen.gaps}


def test_a_healthy_gpu_is_described_whole(standins: StandIns) -> None:
    seen = asked(standins, "")
    gpu = gpus(seen)[0]
    assert gpu.name == "NVIDIA H100 80GB HBM3"
    assert gpu.capability == Version("9.0")
    assert (gpu.bus_id, gpu.device_id) == ("00000000:a0:00.0", "2330")
    assert (gpu.memory_bytes, gpu.memory_reserved_bytes) == (85520809984, 314572800)
    assert (gpu.ecc, gpu.mig, gpu.persistence, gpu.compute_mode) == (True, False, True, "default")
    assert (gpu.power_limit_w, gpu.pcie_width_max, gpu.pcie_generation_gpu_max) == (700.0, 16, 5)
    assert (gpu.fabric_state, gpu.nvlink_down, gpu.virtualization) == (3, 0, "none")
    unknown = [name for name in gpu.__struct_fields__ if getattr(gpu, name) is None]
    assert unknown == ["code", "failed", "mig_devices"]
    assert not seen.gaps


def test_the_driver_is_named_with_its_library_and_cuda(standins: StandIns) -> None:
    seen = asked(standins, "driver = 535.104.05\nversion = 12.535.104.05\ncuda = 12020")
    assert str(seen.facts["driver.reported"]) == "535.104.05"
    assert seen.facts["driver.cuda"] == Version("12.2")
    assert str(nvml(seen).version) == "535.104.05"
    assert str(nvml(seen).path).endswith("/libnvidia-ml/libnvidia-ml.so.580.95.05")
    assert (nvml(seen).loads, nvml(seen).code, nvml(seen).count) == (True, 0, 1)


@pytest.mark.parametrize("count", [0, 1, 8, 64])
def test_all_gpus_are_told(standins: StandIns, count: int) -> None:
    seen = asked(standins, f"count = {count}")
    assert [gpu.index for gpu in gpus(seen)] == list(range(count))
    assert len({gpu.uuid for gpu in gpus(seen)}) == count


@pytest.mark.parametrize("code", [4, 9, 12, 15, 17, 18, 999])
def test_a_failing_init_gives_its_code_and_the_library_version(
    standins: StandIns, code: int
) -> None:
    seen = asked(standins, f"nvmlInitWithFlags = {code}")
    assert (nvml(seen).code, nvml(seen).call) == (code, "nvmlInitWithFlags")
    assert nvml(seen).message
    assert str(nvml(seen).version) == "580.95.05"
    assert "gpus" not in seen.facts
    assert f"failed with {code}" in gaps(seen)["gpus"]


def test_a_dead_gpu_does_not_hide_the_healthy_ones(standins: StandIns) -> None:
    seen = asked(standins, "count = 8\ngpu3.nvmlDeviceGetHandleByIndex_v2 = 15")
    assert [gpu.code for gpu in gpus(seen)] == [None, None, None, 15, None, None, None, None]
    assert [gpu.name is None for gpu in gpus(seen)].count(True) == 1


@pytest.mark.parametrize(
    ("codes", "found"),
    [
        ((0, 15, 15), 15),
        ((0, 16, 16), 16),
        ((0, 15, 16), 15),
        ((0, 15, 0), 15),
        ((0, 0, 16), 16),
        ((0, 999, 999), None),
        ((16, 16), 16),
    ],
)
def test_a_gpu_that_any_answer_calls_gone_is_gone(
    codes: tuple[int, ...], found: int | None
) -> None:
    """The one code is of a lost GPU, the other of one that waits for a reset."""
    fields = ("name", "power_w", "temperature_c")
    lines = [{"field": field, "code": code} for field, code in zip(fields, codes, strict=False)]
    assert gpu_from(0, lines)[0].code == found


def test_a_count_that_fails_decides_in_place_of_the_init(standins: StandIns) -> None:
    seen = asked(standins, "nvmlDeviceGetCount_v2 = 999")
    assert (nvml(seen).code, nvml(seen).call) == (999, "nvmlDeviceGetCount_v2")
    assert "gpus" not in seen.facts


def test_a_library_that_hangs_in_c_names_the_call(standins: StandIns) -> None:
    seen = asked(standins, "nvmlInitWithFlags = hang", limit_s=1.5)
    assert nvml(seen).hung == "nvmlInit"
    assert nvml(seen).loads is True
    assert str(nvml(seen).version) == "580.95.05"
    assert "no response within 1.5 s" in gaps(seen)["gpus"]


def test_a_short_wait_is_a_gap_and_never_a_hang(standins: StandIns) -> None:
    seen = asked(standins, "nvmlInitWithFlags = hang", limit_s=1.0, sure=False)
    assert nvml(seen).hung is None
    assert "many GPUs can take 30 s" in gaps(seen)["driver.nvml.code"]
    assert gaps(seen)["driver.nvml.hung"] == gaps(seen)["driver.nvml.code"]


def test_a_gpu_that_is_slow_in_a_short_wait_leaves_open_whether_it_hangs(
    standins: StandIns,
) -> None:
    seen = asked(standins, "gpu0.nvmlDeviceGetPowerUsage = hang", limit_s=1.5, sure=False)
    assert (nvml(seen).hung, gpus(seen)[0].name) == (None, "NVIDIA H100 80GB HBM3")
    assert (
        "nvmlDeviceGetPowerUsage of GPU 0: no response within 1.5 s"
        in gaps(seen)["driver.nvml.hung"]
    )


def test_a_hang_in_one_gpu_keeps_what_all_are(standins: StandIns) -> None:
    seen = asked(standins, "count = 4\ngpu2.nvmlDeviceGetPowerUsage = hang", limit_s=2.5)
    assert nvml(seen).hung == "nvmlDeviceGetPowerUsage"
    assert all(gpu.capability == Version("9.0") for gpu in gpus(seen))
    assert nvml(seen).hung_gpu == 2
    assert [gpu.power_w for gpu in gpus(seen)] == [70.0, 70.0, None, 70.0]
    assert gaps(seen) == {
        "gpus.2": "nvmlDeviceGetPowerUsage of GPU 2: no response within 2.5 s",
        "driver.pairs": "NVML did not answer every query",
    }


def test_a_crash_names_its_signal_and_call(standins: StandIns) -> None:
    seen = asked(standins, "nvmlInitWithFlags = crash")
    assert (nvml(seen).signal, nvml(seen).call) == (11, "nvmlInit")
    assert "killed by signal 11" in gaps(seen)["gpus"]


def test_an_old_driver_answers_through_its_older_functions(standins: StandIns) -> None:
    gpu = gpus(asked(standins, "processes = 2", "-DR450"))[0]
    assert gpu.memory_bytes == 85520809984
    assert gpu.memory_reserved_bytes is None
    assert (gpu.throttle, gpu.temperature_c) == (1, 38)
    assert gpu.unsupported == (
        "memory_reserved_bytes",
        "pcie_generation_gpu_max",
        "fabric_state",
        "processes",
    )


def test_a_driver_without_versioned_names_is_asked_by_the_plain_ones(standins: StandIns) -> None:
    seen = asked(standins, "count = 2\ncuda = 10020\ndriver = 440.33.01", "-DR450", "-DANCIENT")
    assert (nvml(seen).code, nvml(seen).call, nvml(seen).count) == (0, "nvmlInit_v2", 2)
    assert seen.facts["driver.cuda"] == Version("10.2")
    assert [gpu.capability for gpu in gpus(seen)] == [Version("9.0")] * 2


def test_what_a_gpu_does_not_have_is_unsupported_and_no_gap(standins: StandIns) -> None:
    scenario = "nvmlDeviceGetEccMode = 3\nnvmlDeviceGetTotalEccErrors = 3\nnvlinks = 0"
    seen = asked(standins, scenario)
    assert gpus(seen)[0].unsupported == (
        "ecc",
        "ecc_pending",
        "ecc_uncorrected",
        "ecc_aggregate",
        "nvlink_down",
    )
    assert not seen.gaps


def test_a_refusal_with_another_code_is_a_gap(standins: StandIns) -> None:
    seen = asked(standins, "nvmlDeviceGetPowerUsage = 999")
    assert gpus(seen)[0].power_w is None
    assert "999" in gaps(seen)["gpus.0.power_w"]
    assert "power_w" not in gpus(seen)[0].unsupported


def test_impossible_values_are_refused(standins: StandIns) -> None:
    scenario = "memory = 99999999999999999\npcie_width = 255\ntemperature = 4000000000\ncount = 1"
    seen = asked(standins, scenario)
    gpu = gpus(seen)[0]
    assert (gpu.memory_bytes, gpu.pcie_width, gpu.temperature_c) == (None, None, None)
    assert "cannot be" in gaps(seen)["gpus.0.memory_bytes"]


def test_an_impossible_number_of_gpus_is_refused(standins: StandIns) -> None:
    seen = asked(standins, "count = 4000000000")
    assert "gpus" not in seen.facts
    assert nvml(seen).count is None
    assert "cannot be" in gaps(seen)["driver.nvml.count"]


def test_a_list_of_larger_entries_is_asked_again_in_the_older_form(standins: StandIns) -> None:
    gpu = gpus(asked(standins, "processes = 3\nlarger_processes = 1"))[0]
    assert [process.pid for process in gpu.processes or ()] == [4242, 4243, 4244]
    assert {process.name for process in gpu.processes or ()} == {"python3"}


def test_mig_instances_are_named(standins: StandIns) -> None:
    gpu = gpus(asked(standins, "mig = 1\nmig_devices = 2"))[0]
    assert gpu.mig is True
    assert len(gpu.mig_devices or ()) == 2


def test_a_pending_change_of_mig_or_ecc_is_kept(standins: StandIns) -> None:
    gpu = gpus(asked(standins, "mig = 0\nmig_pending = 1\necc = 0\necc_pending = 1"))[0]
    assert (gpu.mig, gpu.mig_pending, gpu.ecc, gpu.ecc_pending) == (False, True, False, True)


def test_a_missing_library_gives_the_loaders_own_words(tmp_path: Path) -> None:
    seen = read_nvml(HostWith({"PATH": "/usr/bin", "LD_LIBRARY_PATH": str(tmp_path)}), FULL)
    if nvml(seen).loads:
        pytest.skip("this machine has a driver")
    assert "libnvidia-ml.so.1" in str(nvml(seen).why)
    assert "cannot be loaded" in gaps(seen)["gpus"]


def test_a_library_that_is_no_library_does_not_load(tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_text("no library")
    seen = read_nvml(HostWith({"LD_LIBRARY_PATH": str(tmp_path)}), FULL)
    assert nvml(seen).loads is False
    assert nvml(seen).why


def test_noise_between_the_lines_is_left_out() -> None:
    text = '{"kind": "loaded", "path": "/x"}\nnoise\n{"kind": "calling", "call": "f"}\n{"broken'
    seen = read_nvml(RecordedHost(inside={"nvml.py": Ran(code=-11, stdout=text)}), FULL)
    assert (nvml(seen).path, nvml(seen).signal, nvml(seen).call) == ("/x", 11, "f")


@pytest.mark.parametrize("value", [None, "", [], {}, -1, 1 << 70, "x" * 999, True, [None], 1.5])
def test_no_answer_however_odd_breaks_a_gpu(value: object) -> None:
    fields = ("name", "pci", "memory", "capability", "remap", "nvlinks", "processes", "ecc")
    lines = [{"field": field, "value": value} for field in (*fields, "power_w", "virtualization")]
    gpu, _ = gpu_from(0, lines)
    assert gpu.index == 0


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("13.580.95.05", "580.95.05"),
        ("12.535.54", "535.54"),
        ("580.65.06", "580.65.06"),
        ("11.450.51.06", "450.51.06"),
    ],
)
def test_the_library_version_comes_after_cudas_major(text: str, version: str) -> None:
    assert str(library_version(text)) == version


@pytest.mark.parametrize("text", ["", "garbage", "13", "...."])
def test_no_library_version_is_made_up(text: str) -> None:
    assert library_version(text) is None


# --- libcuda -------------------------------------------------------------------------------------


def cuda(standins: StandIns, scenario: str, limit_s: float = LONG, **env: str) -> Libcuda:
    host = HostWith({**standins.environment(scenario, standins.cuda()), **env})
    found = read_libcuda(host, Patience(start_s=limit_s)).facts["driver.libcuda"]
    assert isinstance(found, Libcuda)
    return found


def test_libcuda_starts_and_counts(standins: StandIns) -> None:
    found = cuda(standins, "count = 2\ncuda = 12080")
    assert (found.loads, found.code, found.count, found.version) == (True, 0, 2, Version("12.8"))
    assert found.file_version == DriverVersion("580.95.05")
    assert found.clean_code is None


@pytest.mark.parametrize("code", [34, 100, 802, 803, 804, 999])
def test_a_failing_start_keeps_code_and_version(standins: StandIns, code: int) -> None:
    found = cuda(standins, f"cuInit = {code}")
    assert (found.code, found.version, found.count) == (code, Version("13.0"), None)


def test_a_second_look_leaves_the_users_variables_out(standins: StandIns) -> None:
    host = HostWith(
        {
            **standins.environment("cuInit_with_LD_LIBRARY_PATH = 804", standins.cuda()),
            "LD_PRELOAD": str(standins.cuda() / "libcuda.so.1"),
        }
    )
    found = read_libcuda(host, FULL).facts["driver.libcuda"]
    assert found.code == 804
    assert found.clean_path != found.path


def test_hidden_gpus_are_asked_for_again(standins: StandIns) -> None:
    asked_twice = cuda(standins, "count = 1", CUDA_VISIBLE_DEVICES="-1")
    assert (asked_twice.code, asked_twice.count) == (0, 0)
    assert asked_twice.loads is True


def test_libcuda_that_hangs_or_dies_is_a_fact(standins: StandIns) -> None:
    assert cuda(standins, "cuInit = hang", limit_s=1.5).hung == "cuInit"
    assert cuda(standins, "cuInit = crash").signal == 11


def test_a_child_that_is_cut_short_keeps_its_lines() -> None:
    said = cut_short(
        {"kind": "loaded", "path": "/x/libcuda.so.1"}, {"kind": "calling", "call": "cuInit"}
    )
    found = read_libcuda(RecordedHost(inside={"cuda.py": said}), FULL).facts["driver.libcuda"]
    assert (found.path, found.hung) == ("/x/libcuda.so.1", "cuInit")


@pytest.mark.parametrize(
    ("path", "version"),
    [("/a/libcuda.so.580.95.05", "580.95.05"), ("/a/libcuda.so.1", "None"), ("", "None")],
)
def test_the_release_stands_in_the_real_name(path: str, version: str) -> None:
    assert str(file_version(path)) == version


def test_what_lies_between_every_two_gpus_is_told(standins: StandIns) -> None:
    said = "count = 3\np2p = 0\np2p_nvlink = 5\ntopology = 30\ngpu1.p2p = 1\n"
    looked = read_nvml(HostWith(standins.environment(said, standins.nvml())), FULL)
    pairs = looked.facts["driver.pairs"]
    assert [(pair.first, pair.second, pair.p2p) for pair in pairs] == [
        (0, 1, "ok"),
        (0, 2, "ok"),
        (1, 2, "chipset"),
    ]
    assert {pair.level for pair in pairs} == {"bridge"}
    assert [pair.nvlink for pair in pairs] == [False, False, None]


def test_between_many_gpus_nothing_is_asked_and_that_is_said(standins: StandIns) -> None:
    looked = read_nvml(HostWith(standins.environment("count = 17", standins.nvml())), FULL)
    assert "driver.pairs" not in looked.facts
    assert [gap.why for gap in looked.gaps] == ["too many GPUs to check every pair (17)"]
    whole = read_nvml(HostWith(standins.environment("count = 16", standins.nvml())), FULL)
    assert len(whole.facts["driver.pairs"]) == 120


def test_a_hang_between_two_gpus_takes_nothing_from_what_was_told(standins: StandIns) -> None:
    said = "count = 2\nnvmlDeviceGetP2PStatus = hang\n"
    looked = read_nvml(HostWith(standins.environment(said, standins.nvml())), Patience(call_s=1.5))
    assert looked.facts["driver.nvml"].hung == "nvmlDeviceGetP2PStatus"
    assert [gpu.name for gpu in looked.facts["gpus"]] == ["NVIDIA H100 80GB HBM3"] * 2
    assert "driver.pairs" not in looked.facts


def test_excluded_gpus_and_confidential_computing_are_told(standins: StandIns) -> None:
    said = "excluded = 2\nconfidential = 1\nconfidential_ready = 0\n"
    facts = read_nvml(HostWith(standins.environment(said, standins.nvml())), FULL).facts
    assert (facts["driver.excluded"], facts["driver.confidential"]) == (2, True)
    assert facts["driver.confidential_ready"] is False


@pytest.mark.parametrize("code", [3, 13, 25])
def test_what_every_gpu_has_is_never_unsupported(standins: StandIns, code: int) -> None:
    calls = ("Name", "UUID", "PciInfo_v3", "CudaComputeCapability")
    seen = asked(standins, "\n".join(f"nvmlDeviceGet{call} = {code}" for call in calls))
    fields = ("name", "uuid", "bus_id", "device_id", "capability")
    assert gpus(seen)[0].unsupported == ()
    assert gaps(seen) == {f"gpus.0.{field}": f"NVML error {code}" for field in fields}


def test_a_gpu_without_memory_of_its_own_says_so_by_not_supported_alone(
    standins: StandIns,
) -> None:
    both = "nvmlDeviceGetMemoryInfo = {0}\nnvmlDeviceGetMemoryInfo_v2 = {0}"
    shared = asked(standins, both.format(3))
    assert "memory_bytes" in gpus(shared)[0].unsupported
    assert not shared.gaps
    assert "gpus.0.memory_bytes" in gaps(asked(standins, both.format(13)))


def test_a_hang_is_seen_through_a_recording_as_well(standins: StandIns) -> None:
    env = standins.environment("gpu0.nvmlDeviceGetName = hang", standins.nvml())
    seen = read_nvml(RecordingHost(HostWith(env)), Patience(call_s=1.5))
    assert (nvml(seen).hung, nvml(seen).hung_gpu) == ("nvmlDeviceGetName", 0)


def test_the_instances_of_a_gpu_are_not_known_where_one_is_refused(standins: StandIns) -> None:
    seen = asked(standins, "mig = 1\nmig_devices = 2\nnvlinks = 0\ngpu1.nvmlDeviceGetUUID = 999")
    assert gpus(seen)[0].mig_devices is not None
    refused = asked(standins, "mig = 1\nmig_devices = 2\nnvmlDeviceGetMigDeviceHandleByIndex = 4")
    assert gpus(refused)[0].mig_devices is None
    assert "error 4" in gaps(refused)["gpus.0.mig_devices"]


def test_links_after_one_that_is_refused_are_not_taken_for_missing(standins: StandIns) -> None:
    seen = asked(standins, "nvmlDeviceGetNvLinkState = 23")
    assert gpus(seen)[0].nvlink_down is None
    assert "error 23" in gaps(seen)["gpus.0.nvlink_down"]


@pytest.mark.parametrize("code", [3, 23], ids=["not supported", "refused"])
def test_what_is_refused_between_two_gpus_has_its_reason(standins: StandIns, code: int) -> None:
    seen = asked(standins, f"count = 2\nnvmlDeviceGetP2PStatus = {code}")
    assert seen.facts["driver.pairs"][0].p2p is None
    assert gaps(seen) == {"driver.pairs.0.p2p": f"NVML error {code}"}


@pytest.mark.parametrize("scenario", ["", "gpu0.nvmlDeviceGetName = hang", "nvmlInit = crash"])
def test_whoever_waits_is_told_of_each_call_and_of_its_end(
    standins: StandIns, scenario: str
) -> None:
    notes: list[tuple[str, bool]] = []
    host = HostWith(standins.environment(scenario, standins.nvml()))
    read_nvml(host, Patience(call_s=1.5), lambda *note: notes.append(note))
    assert ("the driver: nvmlInit", True) in notes
    begun = [what for what, going in notes if going]
    assert sorted(begun) == sorted(what for what, going in notes if not going)
