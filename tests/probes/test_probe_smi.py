"""nvidia-smi: its text as facts, and the program as it is asked."""

from __future__ import annotations

import pytest
from packaging.version import Version
from recorded_host import RecordedHost, cut_short

from cudadoctor.host.children import Ran
from cudadoctor.host.local import Stat
from cudadoctor.model.machine import Smi
from cudadoctor.probes import Looked, driver
from cudadoctor.probes.driver import find_smi
from cudadoctor.probes.smi import read_smi
from cudadoctor.reports.smi import FULL_QUERY, SMALL_QUERY, SmiOutput, parse_smi

TABLE_530 = """\
Fri Nov 20 10:00:00 2026
+---------------------------------------------------------------------------------------+
| NVIDIA-SMI 530.41.03              Driver Version: 530.41.03    CUDA Version: 12.1     |
|-----------------------------------------+----------------------+----------------------+
| GPU  Name                  Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp  Perf            Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |
|                                         |                      |               MIG M. |
|=========================================+======================+======================|
|   0  NVIDIA A100-SXM4-80GB           On | 00000000:40:00.0 Off |                    0 |
| N/A   27C    P0               61W / 400W|    512MiB / 81920MiB |     12%      Default |
|                                         |                      |             Disabled |
+-----------------------------------------+----------------------+----------------------+
|   1  NVIDIA A100-SXM4-80GB           On | 00000000:47:00.0 Off |                   On |
| N/A   29C    P0               31W / 400W|      0MiB / 81920MiB |     N/A   E. Process |
|                                         |                      |              Enabled |
+-----------------------------------------+----------------------+----------------------+
| Processes:                                                                            |
|  GPU   GI   CI        PID   Type   Process name                            GPU Memory |
|    0   N/A  N/A      4242      C   python                                      400MiB |
+---------------------------------------------------------------------------------------+
"""
TABLE_610 = """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 610.43.02      KMD Version: 610.43.02      CUDA UMD Version: 13.3             |
+-----------------------------------------+------------------------+----------------------+
|   0  NVIDIA GeForce RTX 5090        Off |   00000000:01:00.0  On |                  N/A |
|  0%   41C    P8             21W /  575W |     812MiB /  32607MiB |      3%      Default |
+-----------------------------------------+------------------------+----------------------+
"""
TABLE_375 = """\
| NVIDIA-SMI 375.39                 Driver Version: 375.39                    |
|   0  TITAN X (Pascal)    Off  | 0000:01:00.0      On |                  N/A |
| 23%   27C    P8    10W / 250W |     63MiB / 12186MiB |      0%      Default |
"""
CSV = """\
index, name, uuid, pci.bus_id, pci.device_id, driver_version, memory.total [MiB], \
memory.used [MiB], compute_mode, persistence_mode, mig.mode.current, ecc.mode.current, \
ecc.errors.uncorrected.volatile.total, pstate, power.draw [W], power.limit [W], compute_cap, \
clocks.current.sm [MHz]
0, NVIDIA H100 80GB HBM3, GPU-1, 00000000:18:00.0, 0x233010DE, 550.54.15, 81559 MiB, 3 MiB, \
Default, Enabled, Disabled, Enabled, 0, P0, 71.52 W, 700.00 W, 9.0, 1980 MHz
1, NVIDIA GeForce RTX 4090, GPU-2, 00000000:2A:00.0, 0x268410DE, 550.54.15, 24564 MiB, 1 MiB, \
Exclusive_Process, Disabled, [N/A], [Not Supported], [N/A], P8, [Unknown Error], [N/A], 8.9, 210 MHz
"""
LIST = """\
GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-5d2f)
  MIG 3g.40gb     Device  0: (UUID: MIG-aa)
  MIG 3g.40gb     Device  1: (UUID: MIG-bb)
GPU 1: Tesla T4 (UUID: GPU-77)
"""
MISMATCH = """\
Failed to initialize NVML: Driver/library version mismatch
NVML library version: 580.95
"""
BROKEN = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running.\n"
)


def test_the_table_of_two_gpus_is_read() -> None:
    said = parse_smi(TABLE_530)
    assert (str(said.driver), said.cuda, said.message) == ("530.41.03", Version("12.1"), None)
    first, second = said.gpus or ()
    assert (first.name, first.bus_id) == ("NVIDIA A100-SXM4-80GB", "00000000:40:00.0")
    assert (first.memory_bytes, first.memory_used_bytes) == (81920 << 20, 512 << 20)
    assert (first.power_w, first.power_limit_w, first.utilization) == (61.0, 400.0, 12)
    assert (first.mig, second.mig, second.compute_mode) == (False, True, "exclusive")
    assert first.ecc_uncorrected == 0


def test_the_banner_of_610_names_the_parts_of_the_driver() -> None:
    said = parse_smi(TABLE_610)
    assert (str(said.driver), said.cuda) == ("610.43.02", Version("13.3"))
    assert [gpu.name for gpu in said.gpus or ()] == ["NVIDIA GeForce RTX 5090"]


def test_a_banner_before_410_names_no_cuda() -> None:
    said = parse_smi(TABLE_375)
    assert (str(said.driver), said.cuda) == ("375.39", None)
    assert [gpu.name for gpu in said.gpus or ()] == ["TITAN X (Pascal)"]


@pytest.mark.parametrize("cuda", ["N/A", "", "ERR!"])
def test_a_cuda_version_that_is_not_told_is_not_known(cuda: str) -> None:
    text = f"| NVIDIA-SMI 410.78  Driver Version: 410.78  CUDA Version: {cuda}  |"
    assert parse_smi(text).cuda is None
    assert str(parse_smi(text).driver) == "410.78"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: "\ufffd\ufffd" + "\x00".join(text) + "\x00",
        lambda text: "\x1b[32m" + text.replace("530", "\x1b[1m530") + "\x1b[0m",
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "Fr 20. Nov 10:00:00 CET 2026: Warnung\n" + text,
    ],
    ids=["utf-16", "colours", "windows", "localised"],
)
def test_spoiled_text_says_the_same(spoil: object) -> None:
    assert callable(spoil)
    assert parse_smi(spoil(TABLE_530)) == parse_smi(TABLE_530)


def test_a_table_that_was_cut_keeps_what_it_has() -> None:
    for length in range(0, len(TABLE_530), 7):
        said = parse_smi(TABLE_530[:length])
        assert len(said.gpus or ()) <= 2
    assert parse_smi(TABLE_530[: TABLE_530.index("Memory-Usage")]).gpus is None


def test_the_csv_gives_values_and_what_is_not_supported() -> None:
    said = parse_smi(CSV)
    first, second = said.gpus or ()
    assert str(said.driver) == "550.54.15"
    assert (first.capability, first.device_id) == (Version("9.0"), "2330")
    assert (first.power_w, first.sm_clock_mhz, first.performance_state) == (71.52, 1980, 0)
    assert (first.ecc, first.ecc_uncorrected) == (True, 0)
    assert (second.compute_mode, second.persistence, second.power_w) == ("exclusive", False, None)
    assert second.unsupported == ("mig", "ecc", "ecc_uncorrected", "power_limit_w")


def test_the_list_gives_uuids_and_mig_instances() -> None:
    first, second = parse_smi(LIST).gpus or ()
    assert (first.uuid, first.mig, first.mig_devices) == ("GPU-5d2f", True, ("MIG-aa", "MIG-bb"))
    assert (second.name, second.uuid, second.mig_devices) == ("Tesla T4", "GPU-77", None)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (MISMATCH, 18),
        (BROKEN, 9),
        (BROKEN.replace("'", "’"), 9),
        ("Failed to initialize NVML: Unknown Error\n", 999),
        ("Failed to initialize NVML: Insufficient Permissions\n", 4),
        ("Failed to initialize NVML: GPU access blocked by the operating system\n", 17),
        ("Failed to initialize NVML: GPU is lost\n", 15),
        ("Failed to initialize NVML: GPU requires reset\n", 16),
        ("Failed to initialize NVML: something new\n", None),
        ("No devices were found\n", 6),
    ],
)
def test_words_of_failure_have_their_code(text: str, code: int | None) -> None:
    said = parse_smi(text)
    assert (said.code, said.message) == (code, text.splitlines()[0].replace("’", "'"))


def test_somebody_elses_unknown_error_is_not_nvidia_smis() -> None:
    assert parse_smi("RuntimeError: CUDA unknown error - this may be due to ...") == SmiOutput()


@pytest.mark.parametrize(
    ("line", "index", "code"),
    [
        ("Unable to determine the device handle for GPU 0000:65:00.0: GPU is lost.  Reboot", 0, 15),
        ("Unable to determine the device handle for GPU2: 0000:65:00.0: Unknown Error", 2, 999),
    ],
)
def test_a_lost_gpu_hides_the_table_but_names_itself(line: str, index: int, code: int) -> None:
    (gpu,) = parse_smi(line).gpus or ()
    assert (gpu.index, gpu.bus_id, gpu.code) == (index, "0000:65:00.0", code)


@pytest.mark.parametrize("text", ["", "\n\n", "command not found", "{}", "|||", "a,b,c\n1,2"])
def test_text_of_others_says_nothing(text: str) -> None:
    assert parse_smi(text) == SmiOutput()


# --- the program -------------------------------------------------------------------------------

PATH = "/usr/bin/nvidia-smi"
FULL = (PATH, f"--query-gpu={FULL_QUERY}", "--format=csv")
SMALL = (PATH, f"--query-gpu={SMALL_QUERY}", "--format=csv")
REFUSED = Ran(code=2, stdout='Field "mig.mode.current" is not a valid field to query.\n')
UNKNOWN = Ran(code=1, stderr="unknown option\n")


def host(**runs: Ran | str) -> RecordedHost:
    keys = {"full": FULL, "small": SMALL, "plain": (PATH,), "listed": (PATH, "-L")}
    return RecordedHost(
        programs={"nvidia-smi": PATH},
        runs={keys[name]: said for name, said in runs.items()},
        otherwise=UNKNOWN,
    )


def smi(seen: Looked) -> Smi:
    found = seen.facts["driver.smi"]
    assert isinstance(found, Smi)
    return found


def test_query_and_banner_are_put_together() -> None:
    seen = read_smi(host(full=CSV, plain=TABLE_530), PATH, driver.FULL)
    assert (smi(seen).code, smi(seen).message, smi(seen).hung) == (0, None, False)
    assert seen.facts["driver.cuda"] == Version("12.1")
    assert [gpu.uuid for gpu in seen.facts["gpus"]] == ["GPU-1", "GPU-2"]


def test_an_old_program_that_refuses_a_field_is_asked_for_less() -> None:
    csv = "index, name, driver_version\n0, Tesla V100, 418.87.00\n"
    seen = read_smi(host(full=REFUSED, small=csv, plain=TABLE_375), PATH, driver.FULL)
    assert [gpu.name for gpu in seen.facts["gpus"]] == ["Tesla V100"]
    assert str(seen.facts["driver.reported"]) == "418.87.00"
    assert smi(seen).code == 0


def test_a_program_that_knows_the_plain_call_only_is_heard() -> None:
    seen = read_smi(host(plain=TABLE_530), PATH, driver.FULL)
    assert str(seen.facts["driver.reported"]) == "530.41.03"
    assert len(seen.facts["gpus"]) == 2
    assert (smi(seen).code, smi(seen).message) == (0, None)


def test_a_program_that_prints_its_table_whatever_it_is_asked_is_asked_once() -> None:
    asked = RecordedHost(programs={"nvidia-smi": PATH}, otherwise=Ran(code=0, stdout=TABLE_530))
    seen = read_smi(asked, PATH, driver.FULL)
    assert len(seen.facts["gpus"]) == 2
    assert len(asked.asked) == 1


def test_a_program_that_lists_only_is_heard() -> None:
    seen = read_smi(host(listed=LIST), PATH, driver.FULL)
    assert [gpu.uuid for gpu in seen.facts["gpus"]] == ["GPU-5d2f", "GPU-77"]


def test_a_refusal_of_the_driver_is_not_asked_again() -> None:
    asked = host(full=Ran(code=18, stdout=MISMATCH))
    seen = read_smi(asked, PATH, driver.FULL)
    assert (smi(seen).code, smi(seen).message) == (18, MISMATCH.splitlines()[0])
    assert len(asked.asked) == 1
    assert "gpus" not in seen.facts


def test_no_devices_is_a_known_none() -> None:
    seen = read_smi(
        RecordedHost(
            programs={"nvidia-smi": PATH}, otherwise=Ran(code=6, stdout="No devices were found\n")
        ),
        PATH,
        driver.FULL,
    )
    assert seen.facts["gpus"] == ()
    assert (smi(seen).code, smi(seen).message) == (6, "No devices were found")


def test_silence_is_a_hang_after_a_long_wait_and_a_gap_after_a_short_one() -> None:
    hosts = [
        RecordedHost(programs={"nvidia-smi": PATH}, otherwise=cut_short(silent_s=silent_s))
        for silent_s in (60.0, 15.0)
    ]
    sure, unsure = (read_smi(recorded, PATH, driver.FULL) for recorded in hosts)
    assert (smi(sure).hung, smi(unsure).hung) == (True, None)
    assert "30 s" in unsure.gaps[0].why
    assert [len(recorded.asked) for recorded in hosts] == [1, 1]


def test_it_is_found_where_wsl_puts_it() -> None:
    wsl = "/usr/lib/wsl/lib/nvidia-smi"
    assert find_smi(RecordedHost(files={wsl: ""})) == wsl
    assert find_smi(RecordedHost()) is None


def test_it_is_found_on_windows_outside_path() -> None:
    path = "D:/Win/System32/nvidia-smi.exe"
    windows = RecordedHost(
        system="Windows", env={"WINDIR": "D:/Win"}, stats={path: Stat(exists=True)}
    )
    assert find_smi(windows) == path
