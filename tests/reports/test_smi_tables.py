"""nvidia-smi as people paste it -> facts."""

from __future__ import annotations

import pytest
from packaging.version import Version
from reader_fixtures import shown

from cudadoctor.knowledge import load
from cudadoctor.model.versions import DriverVersion

OLD = """\
+-----------------------------------------------------------------------------+
| NVIDIA-SMI 375.26                 Driver Version: 375.26                    |
|-------------------------------+----------------------+----------------------+
| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |
|===============================+======================+======================|
|   0  GeForce GTX 105...  Off  | 0000:01:00.0      On |                  N/A |
| 35%   31C    P8    N/A /  75W |    310MiB /  4038MiB |      0%      Default |
"""
ERRORS = """\
| NVIDIA-SMI 535.86.05              Driver Version: 535.86.05    CUDA Version: 12.2     |
|   0  NVIDIA GeForce RTX 3090        On  | 00000000:01:00.0 Off |                  N/A |
| 30%   45C    P8              25W / 350W |      1MiB / 24576MiB |      0%      Default |
|   1  ERR!                           On  | 00000000:02:00.0 Off |                 ERR! |
|ERR!  ERR! ERR!             ERR! / ERR!  |      0MiB / 24576MiB |    ERR!         ERR! |
"""
QUERY = """\
Driver Version                            : 535.104.05
CUDA Version                              : 12.2

Attached GPUs                             : 1
GPU 00000000:01:00.0
    Product Name                          : NVIDIA A100-PCIE-40GB
    MIG Mode
        Current                           : Disabled
        Pending                           : Enabled
    PCI
        Device Id                         : 0x20F110DE
        GPU Link Info
            Link Width
                Max                       : 16x
                Current                   : 8x
    Clocks Event Reasons
        Idle                              : Not Active
        SW Power Cap                      : Active
        HW Slowdown                       : Active
            HW Thermal Slowdown           : Active
    FB Memory Usage
        Total                             : 40960 MiB
        Used                              : 3 MiB
    ECC Errors
        Volatile
            DRAM Uncorrectable            : 7
    Remapped Rows
        Pending                           : Yes
    Power Readings
        Power Draw                        : 41.20 W
"""


def test_a_driver_that_does_not_tell_cuda_is_read() -> None:
    m = shown(OLD)
    assert (m.driver.reported, m.driver.cuda) == (DriverVersion("375.26"), None)
    assert m.gpus is not None
    assert (m.gpus[0].name, m.gpus[0].memory_bytes) == ("GeForce GTX 105...", 4038 << 20)


def test_a_name_that_the_table_cuts_off_is_known_where_all_models_are_alike() -> None:
    model = load().gpu_by_name("GeForce GTX 105...")
    assert model is not None
    assert model.capability == Version("6.1")
    assert load().gpu_by_name("NVIDIA GeForce ...") is None


def test_a_gpu_of_which_only_errors_are_told_is_lost() -> None:
    m = shown(ERRORS)
    assert [(gpu.name, gpu.code) for gpu in m.gpus or ()] == [
        ("NVIDIA GeForce RTX 3090", None),
        (None, 999),
    ]


def test_a_table_without_line_breaks_is_read() -> None:
    assert shown(" ".join(ERRORS.split())).gpus == shown(ERRORS).gpus


def test_rows_whose_right_side_is_cut_are_read() -> None:
    for width, bus in ((66, "00000000:01:00.0"), (52, None)):
        m = shown("\n".join(line[:width].rstrip() for line in ERRORS.splitlines()))
        assert m.gpus is not None
        assert (m.gpus[0].name, m.gpus[0].bus_id) == ("NVIDIA GeForce RTX 3090", bus)


@pytest.mark.parametrize(
    ("text", "driver", "cuda"),
    [
        ("NVIDIA-SMI 465.19.01 Driver Version: 465.19.01 CUDA Version: 11.3", "465.19.01", "11.3"),
        ("| NVIDIA-SMI 610.12  KMD Version: 610.12  CUDA UMD Version: 13.3 |", "610.12", "13.3"),
        ("nvidia-smi says\nDriver Version: 525.60.13\nCUDA Version: 12.0", "525.60.13", "12.0"),
    ],
)
def test_the_banner_alone_is_enough(text: str, driver: str, cuda: str) -> None:
    m = shown(text)
    assert (m.driver.reported, m.driver.cuda) == (DriverVersion(driver), Version(cuda))


def test_a_driver_without_libcuda_is_told_by_its_banner() -> None:
    m = shown("| NVIDIA-SMI 535.54.03   Driver Version: 535.54.03   CUDA Version: N/A      |")
    assert (m.driver.cuda, m.driver.libcuda.loads) == (None, False)


def test_a_page_of_labels_is_read() -> None:
    m = shown(QUERY)
    assert (m.driver.reported, m.driver.cuda) == (DriverVersion("535.104.05"), Version("12.2"))
    assert m.gpus is not None
    gpu = m.gpus[0]
    assert (gpu.name, gpu.device_id, gpu.bus_id) == (
        "NVIDIA A100-PCIE-40GB",
        "20f1",
        "00000000:01:00.0",
    )
    assert (gpu.mig, gpu.mig_pending, gpu.ecc_uncorrected) == (False, True, 7)
    assert (gpu.pcie_width, gpu.pcie_width_max, gpu.throttle) == (8, 16, 0x4C)
    assert (gpu.remap_pending, gpu.power_w, gpu.memory_bytes) == (True, 41.2, 40960 << 20)


def test_a_csv_with_and_without_its_head_is_read() -> None:
    head = shown(
        "name, driver_version, memory.total [MiB]\nTesla T4, 535.54.03, 15360 MiB\n\nTesla T4, 8, 9"
    )
    assert head.driver.reported == DriverVersion("535.54.03")
    assert [gpu.memory_bytes for gpu in head.gpus or ()] == [15360 << 20]
    asked = "$ nvidia-smi --query-gpu=name,compute_cap --format=csv,noheader\n"
    bare = shown(asked + "NVIDIA L4, 8.9\nNVIDIA L4, 8.9\n")
    assert [gpu.capability for gpu in bare.gpus or ()] == [Version("8.9"), Version("8.9")]


def test_a_list_of_gpus_is_read_and_its_mig_instances() -> None:
    m = shown(
        "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-11)\n  MIG 3g.20gb     Device  0: (UUID: MIG-22)\n"
        "GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-33)\n"
    )
    assert [gpu.mig for gpu in m.gpus or ()] == [True, None]


def test_a_line_that_only_looks_like_a_list_is_none() -> None:
    assert shown("nvidia-smi shows it\nGPU 0: out of memory\n").gpus is None


def test_a_mismatch_tells_the_version_of_the_library() -> None:
    m = shown(
        "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.113"
    )
    assert (m.driver.nvml.code, m.driver.library) == (18, DriverVersion("535.113"))


def test_no_devices_is_an_answer() -> None:
    assert shown("$ nvidia-smi\nNo devices were found\n").gpus == ()


def test_a_page_about_no_gpu_says_nothing() -> None:
    m = shown("nvidia-smi: command not found")
    assert (m.gpus, m.driver.reported) == (None, None)


def test_a_program_and_a_driver_of_different_numbers_are_wsl() -> None:
    m = shown("| NVIDIA-SMI 535.104.05   Driver Version: 537.34   CUDA Version: 12.2     |")
    assert (m.platform.wsl, m.platform.system) == (2, "Linux")
    native = shown("| NVIDIA-SMI 535.104.05   Driver Version: 535.104.05   CUDA Version: 12.2 |")
    assert native.platform.wsl is None


def test_a_column_for_the_drivers_model_is_windows() -> None:
    m = shown(
        "| NVIDIA-SMI 531.61     Driver Version: 531.61     CUDA Version: 12.1     |\n"
        "| GPU  Name            TCC/WDDM | Bus-Id        Disp.A | Volatile Uncorr. ECC |\n"
    )
    assert m.platform.system == "Windows"


def test_windows_counts_drivers_in_its_own_way() -> None:
    m = shown("Name: NVIDIA GeForce RTX 3060\nDriverVersion : 31.0.15.3623\n")
    assert (m.driver.reported, m.platform.system) == (DriverVersion("536.23"), "Windows")
    assert shown("NVIDIA and Intel UHD 31.0.101.4502").driver.reported is None
