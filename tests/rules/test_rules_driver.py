"""The thresholds of the rules about driver, GPU, container and process, one by one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from scenario_reader import HERE, machine_like, merged, read_scenario

from cudadoctor import knowledge
from cudadoctor.model.findings import WARNING
from cudadoctor.model.machine import Machine, PciGpu, Xid
from cudadoctor.model.rule import Found, NotKnown
from cudadoctor.rules.container import shm_too_small
from cudadoctor.rules.diagnose import diagnose
from cudadoctor.rules.driver import (
    driver_library_mismatch,
    driver_not_installed,
    driver_not_loaded,
    driver_too_old,
)
from cudadoctor.rules.evidence.signs import gpu_present
from cudadoctor.rules.gpu import (
    driver_unsupported_gpu,
    driver_wrong_flavour,
    gpu_not_detected,
    pci_bar_bios,
)
from cudadoctor.rules.health import gpu_ecc, gpu_lost
from cudadoctor.rules.libcuda import cuda_compat_conflict
from cudadoctor.rules.modes import compute_mode, mig_misconfigured
from cudadoctor.rules.process import memory_held_by_others, too_few_files

UNASKED = ("torch.imported", "smoke", "driver.libcuda.code", "driver.libcuda.count")
MIB = 1 << 20


def _found(rule: Any, machine: Machine) -> Found | None:
    answer: Found | None = rule.judge(machine, knowledge.load())
    return answer


@pytest.mark.parametrize(
    ("level", "cuda", "fires"),
    [
        ("12.9", "13.0", True),
        ("13.0", "13.2", False),
        ("12.0", "12.8", False),
        ("11.8", "12.1", True),
        ("11.0", "11.8", False),
        ("10.2", "11.0", True),
        ("10.1", "10.2", True),
        ("10.2", "10.2", False),
        ("11.4", "10.2", False),
    ],
)
def test_a_driver_runs_its_own_major_and_all_before(level: str, cuda: str, fires: bool) -> None:
    unknown = (*UNASKED, "driver.kernel", "driver.reported")
    machine = machine_like(
        "rtx4090-linux", {"driver": {"cuda": level}, "torch": {"cuda": cuda}}, unknown
    )
    assert (_found(driver_too_old, machine) is not None) is fires


@pytest.mark.parametrize(
    ("like", "driver", "cuda", "fires"),
    [
        ("rtx4090-linux", "580.65.06", "13.0", False),
        ("rtx4090-linux", "580.65.05", "13.0", True),
        ("rtx4090-linux", "525.60.13", "12.8", False),
        ("rtx4090-linux", "525.60.12", "12.8", True),
        ("rtx4090-linux", "450.80.02", "11.8", False),
        ("rtx4090-linux", "450.80.01", "11.8", True),
        ("rtx4090-windows", "528.33", "12.6", False),
        ("rtx4090-windows", "528.32", "12.6", True),
        ("rtx3060-wsl", "528.33", "12.6", False),
        ("rtx3060-wsl", "528.32", "12.6", True),
        ("rtx3060-wsl", "579.99", "13.0", True),
    ],
)
def test_the_floor_is_that_of_the_major(like: str, driver: str, cuda: str, fires: bool) -> None:
    named = {"reported": driver} | ({"kernel": driver} if like == "rtx4090-linux" else {})
    machine = machine_like(like, {"driver": named, "torch": {"cuda": cuda}}, UNASKED)
    assert (_found(driver_too_old, machine) is not None) is fires


def test_torch_itself_names_the_level_where_nothing_else_does() -> None:
    said = "The NVIDIA driver on your system is too old (found version 11040). Please update"
    failed = {"cuda_available": False, "device_count": 0, "cuda_error": said}
    machine = machine_like(
        "rtx4090-linux",
        {"look": "report", "torch": {"imported": failed}},
        ("driver", "torch.cuda", "torch.build", "platform", "container", "gpus", "pci", "smoke"),
    )
    found = _found(driver_too_old, machine)
    assert found is not None
    assert str(found.values["level"]) == "11.4"


@pytest.mark.parametrize(("libcuda", "fires"), [("13.0", False), ("13.1", False), ("12.9", True)])
def test_a_forward_compatible_libcuda_counts_with_its_own_major(libcuda: str, fires: bool) -> None:
    driver = {"kernel": "535.261.03", "libcuda": {"code": 0, "version": libcuda}}
    machine = machine_like("a100-docker", {"driver": driver}, ("torch.imported", "smoke"))
    assert (_found(driver_too_old, machine) is not None) is fires


def test_no_newer_driver_is_offered_where_it_would_drop_the_gpu() -> None:
    driver = {"kernel": "470.256.02", "reported": "470.256.02"}
    kepler = {"name": "Tesla K80", "device_id": "102d", "capability": "3.7"}
    machine = machine_like(
        "gtx1080-linux",
        {"driver": driver, "gpus": {"0": kepler}, "pci": {"0": {"device_id": "102d"}}},
        UNASKED,
    )
    found = _found(driver_too_old, machine)
    assert found is not None
    assert "upgrade-driver" not in [remedy.id for remedy in found.remedies]


@pytest.mark.parametrize(
    ("device", "version", "fires"),
    [
        ("1b80", "580.95.05", False),
        ("1b80", "590.44.01", True),
        ("102d", "470.256.02", False),
        ("102d", "495.46", True),
        ("2b85", "570.86.16", False),
        ("2b85", "565.77", True),
        ("2684", "520.61.05", False),
        ("2684", "515.65.01", True),
        ("2684", "615.71.09", False),
    ],
)
def test_a_branch_supports_a_generation_from_its_first_to_its_last(
    device: str, version: str, fires: bool
) -> None:
    silent = {"pci": {"0": {"device_id": device}}, "gpus": [], "driver": {"kernel": version}}
    machine = machine_like("rtx4090-linux", silent, UNASKED)
    found = _found(driver_unsupported_gpu, machine)
    assert (found is not None) is fires


@pytest.mark.parametrize(
    ("device", "flavour", "fires"),
    [
        ("2b85", "proprietary", True),
        ("2b85", "open", False),
        ("1b80", "open", True),
        ("1b80", "proprietary", False),
        ("1e87", "open", False),
        ("1e87", "proprietary", False),
        ("2684", "proprietary", False),
    ],
)
def test_a_flavour_is_wrong_for_some_generations_only(
    device: str, flavour: str, fires: bool
) -> None:
    silent = {"pci": {"0": {"device_id": device}}, "gpus": [], "driver": {"flavour": flavour}}
    machine = machine_like("rtx4090-linux", silent, UNASKED)
    assert (_found(driver_wrong_flavour, machine) is not None) is fires


@pytest.mark.parametrize(
    ("size", "visible", "severity"),
    [
        (64 * MIB, 0, "info"),
        (64 * MIB, 1, "info"),
        (64 * MIB, 2, "warning"),
        (64 * MIB + 1, 2, None),
    ],
)
def test_docker_s_default_of_shm_is_a_warning_from_two_gpus_on(
    size: int, visible: int, severity: str | None
) -> None:
    changes = {"limits": {"shm_bytes": size}, "driver": {"libcuda": {"count": visible}}}
    found = _found(shm_too_small, machine_like("h100x8-linux", changes))
    assert (found.severity.label if found and found.severity is not None else None) == severity


@pytest.mark.parametrize(
    ("nofile", "fires"), [(-1, False), (0, True), (1023, True), (1024, False), (1048576, False)]
)
def test_fewer_than_1024_files_are_few(nofile: int, fires: bool) -> None:
    machine = machine_like("rtx4090-linux", {"limits": {"nofile": nofile}})
    assert (_found(too_few_files, machine) is not None) is fires


@pytest.mark.parametrize(("used", "fires"), [(900, False), (901, True), (1000, True)])
def test_more_than_nine_tenths_of_the_memory_is_full(used: int, fires: bool) -> None:
    memory = {"memory_bytes": 1000 * MIB, "memory_used_bytes": used * MIB}
    machine = machine_like("rtx4090-linux", {"gpus": {"0": memory}})
    assert (_found(memory_held_by_others, machine) is not None) is fires


def test_one_full_gpu_of_eight_is_information() -> None:
    memory = {"memory_bytes": 1000, "memory_used_bytes": 1000}
    found = _found(memory_held_by_others, machine_like("h100x8-linux", {"gpus": {"3": memory}}))
    assert found is not None
    assert found.severity is not None
    assert found.severity.label == "info"
    assert [path for path in found.evidence if path] == ["gpus.3.memory_used_bytes"]


def test_exclusive_mode_matters_where_every_gpu_is_taken() -> None:
    taken = {"compute_mode": "exclusive", "processes": [{"pid": 7}]}
    seven = {str(index): taken for index in range(7)}
    assert _found(compute_mode, machine_like("h100x8-linux", {"gpus": seven})) is None
    eight = {str(index): taken for index in range(8)}
    assert _found(compute_mode, machine_like("h100x8-linux", {"gpus": eight})) is not None


def test_one_gpu_without_mig_instances_beside_others_is_a_warning() -> None:
    changes = {
        "gpus": {"0": {"mig": True, "mig_devices": []}},
        "driver": {"libcuda": {"code": 100}},
    }
    machine = machine_like("h100x8-linux", changes, ("torch.imported", "smoke"))
    found = _found(mig_misconfigured, machine)
    assert found is not None
    assert found.severity is not None
    assert found.severity.label == "warning"


@pytest.mark.parametrize(
    ("fields", "severity"),
    [
        ({"ecc_uncorrected": 1}, "error"),
        ({"remap_failed": True}, "error"),
        ({"remap_pending": True}, "warning"),
        ({"retired_pending": True}, "warning"),
        ({"ecc_aggregate": 99, "remapped_rows": 8}, None),
    ],
)
def test_only_what_is_open_in_the_memory_counts(
    fields: dict[str, object], severity: str | None
) -> None:
    found = _found(gpu_ecc, machine_like("a100-docker", {"gpus": {"0": fields}}))
    assert (found.severity.label if found and found.severity is not None else None) == severity


def test_an_ecc_xid_is_history_where_nvml_says_that_all_is_well() -> None:
    seen = {"driver": {"xids": [{"code": 63, "bus_id": "0000:01:00"}]}}
    assert _found(gpu_ecc, machine_like("a100-docker", seen)) is None
    untold = ("gpus.0.remap_pending", "gpus.0.ecc_uncorrected")
    assert _found(gpu_ecc, machine_like("a100-docker", seen, untold)) is not None


def test_a_lost_gpu_is_named_by_its_index_or_its_place() -> None:
    gone = _found(gpu_lost, machine_like("h100x8-linux", {"gpus": {"5": {"code": 15}}}))
    assert gone is not None
    assert gone.values["which"] == "5"
    dead = _found(gpu_lost, machine_like("rtx4090-linux", {"pci": {"0": {"lost": True}}}))
    assert dead is not None
    assert dead.values["which"] == "0000:01:00.0"


def test_a_gpu_that_waits_for_a_reset_is_reset_before_a_reboot() -> None:
    found = _found(gpu_lost, machine_like("h100x8-linux", {"gpus": {"2": {"code": 16}}}))
    assert found is not None
    assert [remedy.id for remedy in found.remedies][:2] == ["reset-gpu", "reboot"]


UNLOADED = {
    "driver": {"loaded": False, "nvml": {"loads": True, "code": 9, "count": None}},
    "gpus": None,
}
QUIET = (*UNASKED, "driver.kernel", "driver.reported", "driver.smi", "driver.nvml.count")


@pytest.mark.parametrize("bound", ["vfio-pci", "pci-stub"])
def test_a_gpu_that_is_kept_for_a_virtual_machine_lacks_no_driver(bound: str) -> None:
    machine = machine_like(
        "rtx4090-linux", merged(UNLOADED, {"pci": {"0": {"bound": bound}}}), QUIET
    )
    found = _found(driver_not_loaded, machine)
    assert found is not None
    assert [remedy.id for remedy in found.remedies] == ["use-guest", "release-gpu"]
    none = merged(UNLOADED, {"pci": {"0": {"bound": bound}}, "driver": {"installed": False}})
    assert _found(driver_not_installed, machine_like("rtx4090-linux", none, QUIET)) is None
    bare = _found(driver_not_loaded, machine_like("rtx4090-linux", none, QUIET))
    assert bare is not None, "a hypervisor needs no driver: the cause is known without one"
    assert bare.remedies == found.remedies
    free = merged(none, {"pci": {"0": {"bound": ""}}})
    assert _found(driver_not_installed, machine_like("rtx4090-linux", free, QUIET)) is not None


def test_a_gpu_kept_for_a_virtual_machine_beside_a_free_one_excuses_no_driver() -> None:
    free = {"pci": {"0": {"bound": "pci-stub"}, "1": {"bound": ""}}}
    found = _found(driver_not_loaded, machine_like("h100x8-linux", merged(UNLOADED, free), QUIET))
    assert found is not None
    assert "release-gpu" not in [remedy.id for remedy in found.remedies]


def test_a_bus_that_was_not_read_does_not_say_that_there_is_no_gpu() -> None:
    """Neither the GPU is missed nor its driver excused, where the module is not loaded."""
    machine = machine_like("rtx4090-linux", UNLOADED, (*QUIET, "pci"))
    assert _found(driver_not_loaded, machine) is not None
    unheard = machine_like("rtx4090-linux", UNLOADED, (*QUIET, "pci", "driver.nvml"))
    assert gpu_present(unheard) is None
    with pytest.raises(NotKnown, match="pci"):
        _found(gpu_not_detected, unheard)
    assert gpu_present(machine_like("rtx4090-linux", {**UNLOADED, "pci": []}, QUIET)) is False


@pytest.mark.parametrize(("code", "first"), [(15, "reboot"), (16, "reset-gpu")])
def test_only_a_gpu_that_waits_for_a_reset_is_reset(code: int, first: str) -> None:
    for name in ("h100x8-linux", "rtx4090-linux"):
        found = _found(gpu_lost, machine_like(name, {"gpus": {"0": {"code": code}}}))
        assert found is not None
        assert found.remedies[0].id == first
        assert found.sure


@pytest.mark.parametrize(
    ("like", "address", "reset"),
    [
        ("h100x8-linux", "0000:05:00", "4"),
        ("h100x8-linux", "0000:77:00", None),
        ("rtx4090-linux", "0000:77:00", "0"),
    ],
)
def test_no_gpu_is_reset_on_a_guess(like: str, address: str, reset: str | None) -> None:
    """The log names an address: of eight GPUs the one at it is reset, and else none."""
    xids = (Xid(code=48, bus_id=address),)
    m = machine_like(like, {})
    gpus = tuple(msgspec.structs.replace(gpu, ecc_uncorrected=None) for gpu in m.gpus or ())
    driver = msgspec.structs.replace(m.driver, xids=xids)
    found = _found(gpu_ecc, msgspec.structs.replace(m, gpus=gpus, driver=driver))
    assert found is not None
    commands = (argv for remedy in found.remedies for argv in remedy.commands)
    resets = [argv for argv in commands if "--gpu-reset" in argv]
    assert resets == ([("nvidia-smi", "--gpu-reset", "-i", reset)] if reset else [])


def test_where_a_restart_cannot_help_none_is_prescribed() -> None:
    """The module on disk decides: of this kernel, or of one that the restart may bring."""
    file = {"path": "/x/nvidia.ko", "kernel": "6.8.0-87-generic", "version": "575.64.05"}
    other = {"path": "/y/nvidia.ko", "kernel": "6.8.0-90-generic", "version": "580.105.08"}
    sick = {"kernel": "575.64.05", "library": "580.105.08", "libcuda": {"code": 803}}
    sick |= {"nvml": {"code": 18, "version": "580.105.08"}}
    unknown = (*UNASKED[:2], "gpus", "driver.libcuda.count", "driver.nvml.count")
    for files, ways in (
        ([file], ["one-driver-version"]),
        # A reload takes the module of the running kernel, which fits only once it is rebuilt.
        ([file, other], ["reboot"]),
        ([file | {"version": None}], ["reboot"]),
        ([file | {"version": "580.105.08"}], ["reboot", "reload-driver"]),
    ):
        driver = sick | {"module_files": files}
        found = _found(
            driver_library_mismatch, machine_like("rtx4090-linux", {"driver": driver}, unknown)
        )
        assert found is not None
        assert [remedy.id for remedy in found.remedies] == ways


def test_a_driver_alone_is_no_cure_where_torch_has_no_code_for_the_gpu() -> None:
    driver = {"kernel": "575.57.08", "reported": "575.57.08", "cuda": "12.9"}
    torch = {"version": "2.14.1", "text": "2.14.1+cu130", "cuda": "13.0"}
    archs = {"sm_75", "sm_80", "sm_120"}
    machine = machine_like(
        "gtx1080-linux", {"driver": driver, "torch": torch | {"archs": sorted(archs)}}, UNASKED
    )
    found = _found(driver_too_old, machine)
    assert found is not None
    assert [remedy.id for remedy in found.remedies] == ["install-torch"]


def test_a_driver_that_is_not_loaded_is_compared_with_torch_as_if_it_were() -> None:
    """Else its module is built for hours, only to meet "driver too old" next."""
    old = merged(UNLOADED, {"driver": {"library": "535.183.01"}, "torch": {"cuda": "13.0"}})
    machine = machine_like("rtx4090-linux", old, QUIET)
    assert machine.driver.version is None
    found = _found(driver_too_old, machine)
    assert found is not None
    assert found.values["driver"] == machine.driver.library
    new = merged(old, {"driver": {"library": "580.95.05"}})
    assert _found(driver_too_old, machine_like("rtx4090-linux", new, QUIET)) is None
    given = merged(old, {"pci": {"0": {"bound": "vfio-pci"}}})
    assert _found(driver_too_old, machine_like("rtx4090-linux", given, QUIET)) is None


def test_a_gpu_that_the_driver_leaves_out_beside_a_working_one_is_a_warning() -> None:
    pascal = {
        "address": "0000:41:00.0",
        "vendor": "nvidia",
        "device_id": "1b06",
        "bound": "",
    }
    machine = machine_like("rtx4090-linux", {"driver": {"kernel": "590.44.01"}})
    two = msgspec.convert([pascal], tuple[PciGpu, ...])
    machine = msgspec.structs.replace(machine, pci=(*(machine.pci or ()), *two))
    found = _found(driver_unsupported_gpu, machine)
    assert found is not None
    assert found.severity is WARNING
    assert "only if you also need the other GPU" in (found.remedies[0].note or "")
    diagnosis = diagnose(machine, knowledge.load())
    assert diagnosis.verdict == "warnings", diagnosis.undecided


@pytest.mark.parametrize(
    ("compat", "older"), [("550.54.15", True), ("580.95.05", False), ("590.44.01", False)]
)
def test_a_compat_libcuda_is_called_older_only_if_it_is(compat: str, older: bool) -> None:
    libcuda = {
        "path": "/usr/local/cuda/compat/libcuda.so.1",
        "file_version": compat,
        "code": 803,
    }
    machine = machine_like(
        "rtx4090-linux",
        {"driver": {"libcuda": libcuda}, "torch": {"imported": {"cuda_available": False}}},
        ("smoke", "driver.libcuda.count"),
    )
    found = _found(cuda_compat_conflict, machine)
    assert found is not None
    assert (found.title is not None) is older


@pytest.mark.parametrize(
    ("line", "size"),
    [
        ("pci 0000:41:00.0: BAR 1 [mem size 0x2000000000 64bit pref]: no space", "128 GiB"),
        ("pci 0000:41:00.0: BAR 3: [mem size 0x02000000 64bit]: no space", "several gigabytes"),
        ("pci 0000:42:00.0: BAR 1 [mem size 0x2000000000 64bit]: no space", "several gigabytes"),
    ],
)
def test_the_missing_address_space_is_as_large_as_the_kernel_says(line: str, size: str) -> None:
    """Only of the GPU's own large range, not of another device's."""
    path = HERE / "scenarios" / "pci-bar-bios--second-of-two.toml"
    machine = read_scenario(path).machine
    driver = msgspec.structs.replace(machine.driver, log=(line,))
    found = _found(pci_bar_bios, msgspec.structs.replace(machine, driver=driver))
    assert found is not None
    assert (found.values["addresses"], found.values["size"]) == (["0000:41:00.0"], size)
