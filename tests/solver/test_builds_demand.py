"""What a machine demands: which driver counts, which GPUs count, and the thresholds between."""

from __future__ import annotations

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
from cudadoctor.solver.builds import best_build
from cudadoctor.solver.demand import Drive, capabilities_of, demand_of

KB = knowledge.load()
LINUX = Platform(system="Linux", machine="x86_64", libc="glibc", glibc=Version("2.35"))
ARM = Platform(system="Linux", machine="aarch64", libc="glibc", glibc=Version("2.35"))
PYTHON = Interpreter(version=Version("3.12.3"), implementation="CPython", bits=64)
GTX_1080, RTX_5090, K80, RTX_3090 = "1b80", "2b85", "102d", "2204"


def on_the_bus(*device_ids: str, driver: str | None = None, installed: bool = True) -> Machine:
    """A machine whose GPUs are seen on the PCI bus only."""
    return Machine(
        platform=LINUX,
        python=PYTHON,
        driver=Driver(installed=installed, kernel=DriverVersion(driver) if driver else None),
        pci=tuple(
            PciGpu(address=f"0000:0{n}:00.0", vendor="nvidia", device_id=device_id)
            for n, device_id in enumerate(device_ids)
        ),
        gpus=(),
    )


def drive(machine: Machine) -> Drive:
    return demand_of(machine, KB).drive


@pytest.mark.parametrize(
    ("device", "driver", "counted"),
    [
        (GTX_1080, "580.95.05", "580.95.05"),
        (GTX_1080, "590.48.01", "580.65.06"),
        (K80, "470.256.02", "470.256.02"),
        (K80, "495.29.05", "470"),
        (RTX_5090, "570.124.06", "570.124.06"),
        (RTX_5090, "565.57.01", "580.65.06"),
        (RTX_3090, "615.71.09", "615.71.09"),
        (RTX_3090, "455.32.00", "455.32.00"),
        (RTX_3090, "450.80.02", "580.65.06"),
    ],
)
def test_a_driver_that_does_not_know_the_gpu_makes_room_for_one_that_does(
    device: str, driver: str, counted: str
) -> None:
    found = drive(on_the_bus(device, driver=driver))
    assert str(found.version) == counted
    assert (found.supposed is None) == (driver == counted)


def test_a_gpu_that_the_driver_names_is_supported_whatever_the_tables_say() -> None:
    machine = Machine(
        platform=LINUX,
        python=PYTHON,
        driver=Driver(kernel=DriverVersion("590.48.01")),
        gpus=(Gpu(index=0, capability=Version("6.1")),),
    )
    assert drive(machine).supposed is None


@pytest.mark.parametrize(
    ("devices", "counted"),
    [
        ((GTX_1080,), "580.65.06"),
        ((RTX_5090,), "580.65.06"),
        ((K80,), "470"),
        ((K80, GTX_1080), "470"),
        ((GTX_1080, RTX_3090), "580.65.06"),
    ],
)
def test_without_a_driver_the_one_to_come_supports_all_gpus(
    devices: tuple[str, ...], counted: str
) -> None:
    assert str(drive(on_the_bus(*devices, installed=False)).version) == counted


@pytest.mark.parametrize(
    ("devices", "counted"),
    [((GTX_1080,), "525.60.13"), ((RTX_5090,), "570"), ((K80,), "470")],
)
def test_an_unknown_driver_is_an_old_one_that_supports_the_gpu(
    devices: tuple[str, ...], counted: str
) -> None:
    found = drive(on_the_bus(*devices))
    assert str(found.version) == counted
    assert found.supposed is not None


def test_an_unknown_driver_under_windows_counts_by_the_numbers_of_windows() -> None:
    windows = Platform(system="Windows", machine="x86_64")
    machine = Machine(platform=windows, gpus=(Gpu(index=0, capability=Version("8.6")),))
    assert drive(machine) == Drive(
        version=DriverVersion("528.33"),
        cuda=Version("12.0"),
        numbers="Windows",
        supposed="The driver version is unknown; this recommendation assumes 528.33 or newer.",
    )


def test_a_torch_that_found_nothing_proves_nothing() -> None:
    for seen in (None, Imported(ok=True, device_count=0, cuda_available=False)):
        torch = Torch(version=Version("2.14.1"), cuda=Version("13.0"), imported=seen)
        machine = Machine(
            platform=LINUX, torch=torch, gpus=(Gpu(index=0, capability=Version("8.6")),)
        )
        assert str(drive(machine).version) == "525.60.13"


def test_the_library_of_the_driver_stands_in_for_its_module() -> None:
    machine = Machine(
        platform=LINUX,
        driver=Driver(library=DriverVersion("535.183.01")),
        gpus=(Gpu(index=0, capability=Version("8.6")),),
    )
    assert str(drive(machine).version) == "535.183.01"


def test_a_known_cuda_level_is_enough() -> None:
    gpu = (Gpu(index=0, capability=Version("8.6")),)
    for level, release in (("13.0", "2.15.0"), ("12.9", "2.14.1"), ("11.0", "2.7.1")):
        machine = Machine(
            platform=LINUX, python=PYTHON, driver=Driver(cuda=Version(level)), gpus=gpu
        )
        build = best_build(machine, KB).build
        assert build is not None
        assert str(build.torch) == release


@pytest.mark.parametrize(("code", "level"), [(0, "12.8"), (803, "12.8")])
def test_a_higher_minor_is_believed_and_lifts_no_floor(code: int, level: str) -> None:
    machine = Machine(
        platform=LINUX,
        driver=Driver(
            kernel=DriverVersion("535.183.01"),
            cuda=Version("12.8"),
            libcuda=Libcuda(code=code),
        ),
        gpus=(Gpu(index=0, capability=Version("9.0")),),
    )
    found = drive(machine)
    assert found.cuda == Version(level)
    assert not found.decides


@pytest.mark.parametrize(
    ("l4t", "cuda", "runs"),
    [
        ("36.4.3", "12.6", False),
        ("37.9", "13.0", False),
        ("38.2", "13.0", True),
        (None, "13.0", True),
        (None, "12.6", False),
        (None, None, False),
    ],
)
def test_server_builds_run_on_a_jetson_from_jetpack_7_on(
    l4t: str | None, cuda: str | None, runs: bool
) -> None:
    platform = Platform(
        system="Linux",
        machine="aarch64",
        libc="glibc",
        jetson=True,
        l4t=Version(l4t) if l4t else None,
    )
    machine = Machine(
        platform=platform,
        driver=Driver(cuda=Version(cuda) if cuda else None, reported=DriverVersion("580.00")),
        gpus=(Gpu(index=0, capability=Version("11.0")),),
    )
    assert (demand_of(machine, KB).tegra is None) is runs


def test_a_gpu_that_was_given_to_a_virtual_machine_does_not_count() -> None:
    given = PciGpu(address="0000:01:00.0", vendor="nvidia", device_id=GTX_1080, bound="vfio-pci")
    ours = PciGpu(address="0000:02:00.0", vendor="nvidia", device_id=RTX_5090, bound="nvidia")
    assert capabilities_of(Machine(pci=(given, ours)), KB) == (Version("12.0"),)
    assert capabilities_of(Machine(pci=(given,)), KB) == (Version("6.1"),)


def test_what_torch_saw_tells_gpus_that_nobody_else_named() -> None:
    seen = Torch(imported=Imported(capabilities=(Version("12.0"),)))
    assert capabilities_of(Machine(torch=seen), KB) == (Version("12.0"),)
    unnamed = (Gpu(index=0),)
    assert capabilities_of(Machine(torch=seen, gpus=unnamed), KB) == (Version("12.0"),)
    assert capabilities_of(Machine(torch=seen, gpus=(*unnamed, Gpu(index=1))), KB) is None


def test_contested_code_of_the_installed_release_gives_way_to_certain_code_of_another() -> None:
    torch = Torch(installed=True, version=Version("2.6.0+cu124"), build="cuda")
    kepler = Machine(
        platform=LINUX,
        python=Interpreter(version=Version("3.12.3")),
        driver=Driver(kernel=DriverVersion("470.256.02")),
        gpus=(Gpu(index=0, capability=Version("3.7")),),
        torch=torch,
    )
    build = best_build(kepler, KB).build
    assert build is not None
    assert str(build.torch) == "2.3.1"


def test_contested_code_is_the_last_resort_and_is_marked() -> None:
    kepler = Machine(
        platform=LINUX,
        python=Interpreter(version=Version("3.13.1")),
        driver=Driver(kernel=DriverVersion("470.256.02")),
        gpus=(Gpu(index=0, capability=Version("3.7")),),
    )
    choice = best_build(kepler, KB, keep="2.6")
    assert choice.build is not None
    assert choice.build.variant == "cu118"
    assert "sm_37" in choice.build.contested
    assert any("not from the wheel" in text for text in choice.why)


def test_a_server_without_gpu_keeps_an_installed_release_that_has_no_known_cpu_build() -> None:
    torch = Torch(installed=True, version=Version("2.15.0+cu132"), build="cuda")
    machine = Machine(platform=ARM, python=PYTHON, pci=(), gpus=(), torch=torch)
    build = best_build(machine, KB).build
    assert build is not None
    assert (str(build.torch), build.variant) == ("2.15.0", "cu132")


def test_two_changes_together_are_named_where_one_does_not_help() -> None:
    machine = Machine(
        platform=LINUX,
        python=Interpreter(version=Version("3.16")),
        driver=Driver(kernel=DriverVersion("390.157")),
        gpus=(Gpu(index=0, capability=Version("8.6")),),
    )
    ways = best_build(machine, KB).alternatives
    assert [way.text for way in ways] == [
        "With driver 580 or newer and Python 3.11 to 3.15, you can use torch 2.15.0 cu132."
    ]


def test_the_last_branch_of_a_gpu_is_named_as_the_last() -> None:
    machine = Machine(
        platform=LINUX,
        python=Interpreter(version=Version("3.10.1")),
        driver=Driver(kernel=DriverVersion("390.157")),
        gpus=(Gpu(index=0, capability=Version("3.7")),),
    )
    ways = best_build(machine, KB).alternatives
    assert [way.text for way in ways] == [
        "With driver 470, the last one that supports this GPU, you can use torch 2.3.1 cu118."
    ]
