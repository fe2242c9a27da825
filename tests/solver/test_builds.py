"""The solver on prescriptions that were worked out by hand, and on the edges of its rules."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from packaging.version import Version

from cudadoctor import knowledge
from cudadoctor.model.machine import (
    Driver,
    Gpu,
    Imported,
    Interpreter,
    Libcuda,
    Machine,
    PciGpu,
    Platform,
    Torch,
)
from cudadoctor.model.versions import DriverVersion
from cudadoctor.solver.builds import Alternative, Choice, best_build
from cudadoctor.solver.demand import capabilities_of, serves_all

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TABLE = Path(__file__).parent.parent / "prescriptions.toml"
PRESCRIPTIONS = tomllib.loads(TABLE.read_text(encoding="utf-8"))["prescription"]
KB = knowledge.load()


def machine_of(row: dict[str, Any]) -> Machine:
    """The machine of a prescription."""
    driver = row.get("driver")
    reported = row.get("reported", driver)
    linux = row.get("system", "Linux") == "Linux"
    kernel = driver if linux else None
    return Machine(
        platform=_platform(row, linux=linux),
        driver=Driver(
            installed=reported is not None,
            kernel=DriverVersion(kernel) if kernel else None,
            reported=DriverVersion(reported) if reported else None,
            cuda=Version(row["cuda"]) if "cuda" in row else None,
        ),
        gpus=tuple(
            Gpu(index=n, name=gpu["name"], capability=Version(gpu["capability"]))
            for n, gpu in enumerate(row["gpus"])
        ),
        python=Interpreter(
            version=Version(row.get("python", "3.12.3")),
            implementation="CPython",
            free_threaded=row.get("free_threaded", False),
            bits=64,
        ),
        torch=_torch(row.get("installed")),
    )


def _platform(row: dict[str, Any], *, linux: bool) -> Platform:
    libc = row.get("libc", "glibc")
    return Platform(
        system=row.get("system", "Linux"),
        machine=row.get("machine", "x86_64"),
        libc=libc if linux else None,
        glibc=Version(row.get("glibc", "2.39")) if linux and libc == "glibc" else None,
        wsl=row.get("wsl", 0),
        jetson="jetson" in row,
        l4t=Version(row["jetson"]) if "jetson" in row else None,
    )


def _torch(installed: dict[str, Any] | None) -> Torch:
    if installed is None:
        return Torch(installed=False)
    cuda = Version(installed["cuda"]) if "cuda" in installed else None
    return Torch(
        installed=True, version=Version(installed["version"]), build=installed["build"], cuda=cuda
    )


def prescribed(choice: Choice) -> str:
    """A choice as the table writes it."""
    build = choice.build
    if build is None:
        return "none"
    vision, audio = build.torchvision or "-", build.torchaudio or "-"
    return f"{build.torch} {build.variant} {vision} {audio}"


def led_to(way: Alternative) -> str:
    """What would fit then, as the table writes it."""
    return f"{way.build.torch} {way.build.variant}" if way.build else "-"


@pytest.mark.parametrize("row", PRESCRIPTIONS, ids=[row["story"] for row in PRESCRIPTIONS])
def test_the_prescription_is_the_one_worked_out_by_hand(row: dict[str, Any]) -> None:
    choice = best_build(machine_of(row), KB, keep=row.get("keep"))
    assert prescribed(choice) == row["build"], choice.why
    assert choice.why
    reasons = {rejection.variant: rejection.reason for rejection in choice.why_not}
    for variant, part in row.get("because", {}).items():
        assert part in reasons[variant]
    if "ways" in row:
        assert [way.kind for way in choice.alternatives] == row["ways"]
    if "leads_to" in row:
        assert [led_to(way) for way in choice.alternatives] == row["leads_to"]
    why = " ".join(choice.why)
    for part in row.get("says", ()):
        assert part in why
    for part in row.get("silent", ()):
        assert part not in why
    branches = {way.branch for way in choice.alternatives if way.branch is not None}
    assert branches == ({row["branch"]} if "branch" in row else set())


def test_at_least_twenty_prescriptions_are_written_down() -> None:
    assert len(PRESCRIPTIONS) >= 20


@pytest.mark.parametrize("row", PRESCRIPTIONS, ids=[row["story"] for row in PRESCRIPTIONS])
def test_nothing_unpublished_is_prescribed(row: dict[str, Any]) -> None:
    build = best_build(machine_of(row), KB, keep=row.get("keep")).build
    assert build is None or build.published is True


@pytest.mark.parametrize("row", PRESCRIPTIONS, ids=[row["story"] for row in PRESCRIPTIONS])
def test_every_variant_that_was_passed_over_has_a_reason(row: dict[str, Any]) -> None:
    choice = best_build(machine_of(row), KB, keep=row.get("keep"))
    if choice.build is not None:
        since = [
            build
            for build in KB.builds_on(choice.build.platform)
            if build.torch >= choice.build.torch
        ]
        variants = {build.variant for build in since} - {choice.build.variant}
        assert sorted(rejection.variant for rejection in choice.why_not) == sorted(variants)
        for rejection in choice.why_not:
            newest = next(build for build in since if build.variant == rejection.variant)
            # A variant that only a newer release has is rejected by that release's name.
            assert newest.torch == choice.build.torch or len(rejection.reason) > 10
    assert all(rejection.reason.endswith(".") for rejection in choice.why_not)
    assert all(text.endswith(".") for text in choice.why)


RTX_4090 = {
    "driver": "580.95.05",
    "gpus": [{"name": "NVIDIA GeForce RTX 4090", "capability": "8.9"}],
}


def changed(machine: Machine, **parts: Any) -> Machine:
    return msgspec.structs.replace(machine, **parts)


def test_a_libcuda_older_than_the_kernel_driver_decides() -> None:
    row = {**RTX_4090, "cuda": "12.2"}
    assert prescribed(best_build(machine_of(row), KB)) == "2.14.1 cu126 0.29.1 -"


def test_a_compat_library_that_starts_lifts_the_driver() -> None:
    row = {**RTX_4090, "driver": "535.183.01", "cuda": "13.0"}
    machine = machine_of(row)
    works = msgspec.structs.replace(machine.driver, libcuda=Libcuda(code=0))
    assert prescribed(best_build(changed(machine, driver=works), KB)) == "2.15.0 cu132 0.29.2 -"


def test_a_compat_library_that_does_not_start_lifts_nothing() -> None:
    row = {**RTX_4090, "driver": "535.183.01", "cuda": "13.0"}
    machine = machine_of(row)
    fails = msgspec.structs.replace(machine.driver, libcuda=Libcuda(code=804))
    assert prescribed(best_build(changed(machine, driver=fails), KB)) == "2.14.1 cu126 0.29.1 -"


def test_an_unknown_driver_is_supposed_to_run_cuda_12_and_that_is_said() -> None:
    machine = changed(machine_of(RTX_4090), driver=Driver())
    choice = best_build(machine, KB)
    assert prescribed(choice) == "2.14.1 cu126 0.29.1 -"
    assert any("is unknown" in text and "525.60.13" in text for text in choice.why)


def test_an_unknown_driver_of_a_blackwell_is_at_least_branch_570() -> None:
    row = {"driver": None, "gpus": [{"name": "NVIDIA GeForce RTX 5090", "capability": "12.0"}]}
    machine = changed(machine_of(row), driver=Driver())
    assert prescribed(best_build(machine, KB)) == "2.13.0 cu129 0.28.0 -"


def test_a_torch_that_found_a_gpu_proves_the_unknown_driver() -> None:
    torch = Torch(
        installed=True,
        version=Version("2.11.0+cu130"),
        build="cuda",
        cuda=Version("13.0"),
        imported=Imported(ok=True, device_count=1),
    )
    row = {"gpus": [{"name": "NVIDIA GeForce GTX 1660", "capability": "7.5"}]}
    machine = changed(machine_of(row), driver=Driver(), torch=torch)
    choice = best_build(machine, KB)
    assert prescribed(choice) == "2.11.0 cu130 0.26.0 2.11.0"
    assert any("580.65.06" in text for text in choice.why)


def test_without_a_driver_a_current_one_is_counted_on() -> None:
    machine = Machine(
        platform=machine_of(RTX_4090).platform,
        driver=Driver(installed=False),
        pci=(PciGpu(address="0000:01:00.0", vendor="nvidia", device_id="2684"),),
        gpus=(),
        python=Interpreter(version=Version("3.12.3")),
    )
    choice = best_build(machine, KB)
    assert prescribed(choice) == "2.15.0 cu132 0.29.2 -"
    assert "No driver is installed yet. This recommendation assumes driver 580." in choice.why


def test_a_driver_that_dropped_the_gpu_counts_as_the_last_one_that_had_it() -> None:
    machine = Machine(
        platform=machine_of(RTX_4090).platform,
        driver=Driver(installed=True, kernel=DriverVersion("580.95.05"), cuda=Version("13.0")),
        pci=(PciGpu(address="0000:01:00.0", vendor="nvidia", device_id="102d"),),
        gpus=(),
        python=Interpreter(version=Version("3.10.3")),
    )
    choice = best_build(machine, KB)
    assert prescribed(choice) == "2.3.1 cu118 0.18.1 2.3.1"
    assert any("branch 470 is the last" in text for text in choice.why)


def test_unknown_gpus_get_no_prescription() -> None:
    machine = changed(machine_of(RTX_4090), gpus=None)
    choice = best_build(machine, KB)
    assert choice.build is None
    assert "could not determine" in choice.why[0]


def test_a_pci_bus_without_nvidia_is_no_gpu_except_where_it_hides_them() -> None:
    amd = (PciGpu(address="0000:03:00.0", vendor="amd", device_id="744c"),)
    machine = changed(machine_of({"gpus": []}), gpus=None, pci=amd)
    assert prescribed(best_build(machine, KB)) == "2.14.1 cpu 0.29.1 -"
    wsl = changed(machine, platform=msgspec.structs.replace(machine.platform, wsl=2))
    assert best_build(wsl, KB).build is None


def test_a_gpu_without_a_capability_is_told_by_its_pci_id_then_by_its_name() -> None:
    by_id = Gpu(index=0, name="NVIDIA Graphics Device", device_id="1B80")
    by_name = Gpu(index=0, name="Tesla P100-PCIE-16GB")
    twofold = Gpu(index=0, name="NVIDIA GeForce GT 1030")
    assert capabilities_of(Machine(gpus=(by_id,)), KB) == (Version("6.1"),)
    assert capabilities_of(Machine(gpus=(by_name,)), KB) == (Version("6.0"),)
    assert capabilities_of(Machine(gpus=(twofold,)), KB) is None


def test_a_lost_gpu_does_not_count_while_others_work() -> None:
    lost = Gpu(index=0, code=15)
    works = Gpu(index=1, capability=Version("9.0"))
    assert capabilities_of(Machine(gpus=(lost, works)), KB) == (Version("9.0"),)


def test_an_installed_variant_that_fits_is_kept() -> None:
    row = {**RTX_4090, "installed": {"version": "2.14.1+cu126", "build": "cuda", "cuda": "12.6"}}
    assert prescribed(best_build(machine_of(row), KB)) == "2.14.1 cu126 0.29.1 -"


def test_an_unknown_wish_is_answered_with_a_sentence() -> None:
    for wish in ("9.9", "no version", ""):
        choice = best_build(machine_of(RTX_4090), KB, keep=wish)
        assert choice.build is None
        assert choice.why[0].startswith(
            f"There is no known torch release for linux_x86_64 that matches {wish}."
        )


def test_a_wish_can_name_the_variant() -> None:
    choice = best_build(machine_of(RTX_4090), KB, keep="2.14.1+cu126")
    assert prescribed(choice) == "2.14.1 cu126 0.29.1 -"


def test_ptx_needs_a_driver_of_the_builds_own_cuda() -> None:
    # Nothing has machine code for a future 13.0; cu129 of 2.11.0 and cu128 of 2.7.1 carry PTX.
    future = {"gpus": [{"name": "NVIDIA Future", "capability": "13.0"}], "driver": "575.57.08"}
    assert prescribed(best_build(machine_of(future), KB)) == "2.11.0 cu129 0.26.0 2.11.0"
    oldest = {**future, "driver": "570.124.06", "cuda": "12.8"}
    assert prescribed(best_build(machine_of(oldest), KB)) == "2.7.1 cu128 0.22.1 2.7.1"


def test_ptx_below_the_newest_code_does_not_count() -> None:
    archs = ("sm_37", "sm_86", "sm_90", "compute_37")
    assert not serves_all(archs, (Version("12.0"),), Version("2.6.0"), Version("11.8"), KB)
    assert serves_all((*archs, "compute_90"), (Version("12.0"),), None, None, KB)


def test_a_python_that_torchvision_refuses_is_named() -> None:
    row = {**RTX_4090, "python": "3.14.1"}
    choice = best_build(machine_of(row), KB)
    assert "torchvision 0.29.2 does not support Python 3.14.1." in choice.why


@pytest.mark.parametrize(
    ("python", "part"),
    [
        (Interpreter(version=Version("3.11"), implementation="PyPy"), "CPython"),
        (Interpreter(version=Version("3.11"), bits=32), "32-bit"),
    ],
)
def test_a_python_without_wheels_is_named(python: Interpreter, part: str) -> None:
    choice = best_build(changed(machine_of(RTX_4090), python=python), KB)
    assert choice.build is None
    assert part in choice.why[0]


def test_the_sickest_machine_gets_a_sentence() -> None:
    choice = best_build(Machine(), KB)
    assert choice.build is None
    assert choice.why
