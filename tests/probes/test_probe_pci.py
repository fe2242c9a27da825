"""GPUs on the PCI bus."""

from __future__ import annotations

import pytest
from recorded_host import RecordedHost

from cudadoctor.host.local import Answer, Listing
from cudadoctor.model.machine import PciGpu
from cudadoctor.probes import Looked
from cudadoctor.probes.pci import BUS, read_pci, redirects

BARS = """\
0x00000000fa000000 0x00000000faffffff 0x0000000000040200
0x000000f800000000 0x000000fbffffffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x000000fc00000000 0x000000fc01ffffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x000000000000e000 0x000000000000e07f 0x0000000000040101
"""
HOPPER_BARS = """\
0x0000600042000000 0x0000600042ffffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x0000600000000000 0x0000601fffffffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x0000602000000000 0x0000602001ffffff 0x000000000014220c
"""


def device(
    address: str, ident: str, class_id: str, driver: str = "", **files: str | bytes
) -> dict[str, str | bytes | Answer]:
    uevent = f"PCI_CLASS={class_id}\nPCI_ID={ident}\nPCI_SLOT_NAME={address}\n"
    if driver:
        uevent = f"DRIVER={driver}\n{uevent}"
    found: dict[str, str | bytes | Answer] = {f"{BUS}/{address}/uevent": uevent}
    found |= {f"{BUS}/{address}/{name}": text for name, text in files.items()}
    return found


def pci(seen: Looked) -> tuple[PciGpu, ...]:
    found: tuple[PciGpu, ...] = seen.facts["pci"]
    return found


def test_a_healthy_gpu_has_all_facts() -> None:
    files = device(
        "0000:01:00.0",
        "10DE:2684",
        "30000",
        "nvidia",
        power_state="D0\n",
        config=b"\xde\x10\x84\x26",
        resource=BARS,
    )
    assert pci(read_pci(RecordedHost(files=files))) == (
        PciGpu(
            address="0000:01:00.0",
            vendor="nvidia",
            device_id="2684",
            class_id="0300",
            bound="nvidia",
            lost=False,
            power="D0",
            bars_missing=False,
        ),
    )


def test_what_is_no_gpu_is_left_out() -> None:
    files = {
        **device("0000:01:00.0", "10DE:2684", "30000"),
        **device("0000:01:00.1", "10DE:22BA", "40300"),
        **device("0000:05:00.0", "10DE:22A3", "68000"),
        **device("0000:06:00.0", "10DE:22A3", "68000"),
        **device("0000:03:00.0", "1A03:2000", "30000", "ast"),
        **device("0000:41:00.0", "1002:740F", "38000", "amdgpu"),
        **device("0000:42:00.0", "8086:0BD5", "120000", "xe"),
        **device("000f:01:00.0", "10DE:2E12", "30200"),
    }
    seen = read_pci(RecordedHost(files=files))
    assert [(found.address, found.vendor, found.class_id) for found in pci(seen)] == [
        ("0000:01:00.0", "nvidia", "0300"),
        ("0000:03:00.0", "1a03", "0300"),
        ("0000:41:00.0", "amd", "0380"),
        ("0000:42:00.0", "intel", "1200"),
        ("000f:01:00.0", "nvidia", "0302"),
    ]
    assert seen.facts["driver.fabric.nvswitches"] == 2


def test_a_bus_without_uevent_is_read_by_its_files() -> None:
    folder = f"{BUS}/0000:01:00.0"
    driver = "/sys/bus/pci/drivers/nouveau"
    host = RecordedHost(
        files={
            f"{folder}/vendor": "0x10de\n",
            f"{folder}/device": "0x1b80\n",
            f"{folder}/class": "0x030000\n",
            f"{driver}/module": "",
        },
        links={f"{folder}/driver": driver},
    )
    (gpu,) = pci(read_pci(host))
    assert (gpu.device_id, gpu.class_id, gpu.bound) == ("1b80", "0300", "nouveau")


def test_a_configuration_of_ones_is_a_lost_gpu() -> None:
    files = device("0000:01:00.0", "10DE:2330", "30200", "nvidia", config=b"\xff" * 64)
    assert pci(read_pci(RecordedHost(files=files)))[0].lost is True


def test_a_sleeping_gpu_is_left_asleep_and_not_lost() -> None:
    files = device(
        "0000:01:00.0", "10DE:2520", "30200", power_state="D3cold\n", config=b"\xff" * 64
    )
    files[f"{BUS}/0000:01:00.0/power/runtime_status"] = "suspended\n"
    (gpu,) = pci(read_pci(RecordedHost(files=files)))
    assert (gpu.lost, gpu.power) == (False, "D3cold")


def test_a_configuration_that_cannot_be_read_says_nothing() -> None:
    files = device("0000:01:00.0", "10DE:2330", "30200")
    files[f"{BUS}/0000:01:00.0/config"] = Answer(why="EACCES: Permission denied")
    assert pci(read_pci(RecordedHost(files=files)))[0].lost is None


@pytest.mark.parametrize(
    ("bars", "missing"),
    [
        (BARS, False),
        (HOPPER_BARS, False),
        (
            BARS.replace("0x000000f800000000 0x000000fbffffffff", "0x0000000000000000 0x3ffffffff"),
            True,
        ),
        (
            BARS.replace("0x000000f800000000 0x000000fbffffffff 0x000000000014220c", "0x0 0x0 0x0"),
            True,
        ),
        (
            HOPPER_BARS.replace(
                "0x0000600000000000 0x0000601fffffffff 0x000000000014220c", "0x0 0x0 0x0"
            ),
            True,
        ),
        ("", None),
        ("garbage\n" * 6, None),
    ],
)
def test_a_range_without_an_address_is_seen(bars: str, missing: bool | None) -> None:
    files = device("0000:01:00.0", "10DE:2330", "30200", resource=bars)
    assert pci(read_pci(RecordedHost(files=files)))[0].bars_missing is missing


def test_an_empty_bus_is_a_known_none() -> None:
    assert pci(read_pci(RecordedHost(folders={BUS: ()}))) == ()


@pytest.mark.parametrize(
    "host",
    [
        RecordedHost(),
        RecordedHost(folders={BUS: Listing(why="EACCES: Permission denied")}),
        RecordedHost(system="Windows"),
        RecordedHost(system="Darwin"),
    ],
)
def test_a_bus_that_cannot_be_read_is_a_gap(host: RecordedHost) -> None:
    seen = read_pci(host)
    assert "pci" not in seen.facts
    assert seen.gaps[0].fact == "pci"


def test_a_device_of_garbage_is_left_out_beside_a_gpu_that_is_known() -> None:
    files = device("0000:01:00.0", "10DE:2684", "30000") | {f"{BUS}/x/vendor": "zzz"}
    assert [found.vendor for found in pci(read_pci(RecordedHost(files=files)))] == ["nvidia"]


@pytest.mark.parametrize("said", [b"\x00\xff\xfe", b"", b"DRIVER=nvidia\nPCI_CL", b"PCI_ID=x:y\n"])
def test_a_device_that_does_not_say_what_it_is_leaves_the_bus_unknown(said: bytes) -> None:
    seen = read_pci(RecordedHost(files={f"{BUS}/0000:01:00.0/uevent": said}))
    assert "pci" not in seen.facts
    assert seen.gaps[0].fact == "pci"
    assert "0000:01:00.0" in seen.gaps[0].why


def _config(*capabilities: tuple[int, int]) -> bytes:
    """A configuration space with these extended capabilities: (id, the control of ACS)."""
    space = bytearray(4096)
    place = 0x100
    for number, (kind, control) in enumerate(capabilities):
        following = place + 0x40 if number + 1 < len(capabilities) else 0
        space[place : place + 4] = (following << 20 | 1 << 16 | kind).to_bytes(4, "little")
        space[place + 6 : place + 8] = control.to_bytes(2, "little")
        place = following
    return bytes(space)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (_config((0x0001, 0), (0x000D, 0x1D)), True),
        (_config((0x000D, 0x04)), True),
        (_config((0x000D, 0x11)), False),
        (_config((0x0001, 0xFF)), False),
        (bytes(4096), False),
        (b"\xff" * 4096, False),
        (bytes(64), None),
        (b"", None),
    ],
)
def test_a_bridge_redirects_where_its_acs_says_so(config: bytes, expected: bool | None) -> None:
    assert redirects(config) is expected


def _two(kind: str | None, cmdline: str = "") -> tuple[PciGpu, ...]:
    first = device("0000:01:00.0", "10DE:2684", "30000", "nvidia", numa_node="0\n")
    second = device("0000:02:00.0", "10DE:2684", "30000", "nvidia", numa_node="-1\n")
    groups = {f"{BUS}/0000:0{n}:00.0/iommu_group/type": kind for n in (1, 2) if kind is not None}
    groups |= {f"{BUS}/0000:0{n}:00.0/iommu_group/name": "" for n in (1, 2) if kind == ""}
    files = first | second | groups | {"/proc/cmdline": cmdline}
    return pci(read_pci(RecordedHost(files=files)))


@pytest.mark.parametrize(
    ("kind", "cmdline", "expected"),
    [
        (None, "", "off"),
        ("DMA-FQ\n", "", "translated"),
        ("DMA\n", "iommu=pt", "translated"),
        ("identity\n", "", "identity"),
        ("", "quiet iommu=pt", "identity"),
        ("", "quiet", None),
        ("something new\n", "", None),
    ],
)
def test_the_iommu_is_told_by_the_group_of_the_gpu(
    kind: str | None, cmdline: str, expected: str | None
) -> None:
    seen = _two(kind, cmdline)
    assert [found.iommu for found in seen] == [expected] * 2
    assert [found.numa for found in seen] == [0, -1]


def test_one_gpu_alone_is_not_asked_for_its_surroundings() -> None:
    files = device("0000:01:00.0", "10DE:2684", "30000", "nvidia", numa_node="0\n")
    assert pci(read_pci(RecordedHost(files=files)))[0].numa is None
