"""The kernel's side of the driver: version, modules, packages, log, nodes, fabric manager."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from recorded_host import RecordedHost, cut_short, lines

from cudadoctor.host.children import Ran
from cudadoctor.host.local import Answer, LocalHost, Stat
from cudadoctor.model.driver_packages import is_driver
from cudadoctor.model.machine import Fabric, ModuleFile, Node, SystemPackage, Xid
from cudadoctor.model.versions import DriverVersion
from cudadoctor.probes import Looked
from cudadoctor.probes.kernel import (
    DPKG,
    PROC_VERSION,
    dkms_lines,
    modinfo,
    module_files,
    note_fabric,
    note_packages,
    parse_dpkg,
    parse_proc_version,
    parse_unit,
    read_kernel,
    stuck_processes,
)
from cudadoctor.reports.kernel_log import parse_kernel_log

Files = dict[str, str | bytes | Answer]

OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.158.01  Release Build  "
    "(dvs-builder@U22-I3-B10-02-5)  Mon Jun  2 13:13:04 UTC 2025\n"
    "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)\n"
)
CLOSED = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"
    "GCC version:  gcc version 12.3.0\n"
)
LOG = """\
[    1.000000] Linux version 6.8.0
[    3.597360] NVRM: GPU 0000:01:00.0: rm_init_adapter failed, device minor number 0
[ 1843.308145] NVRM: Xid (PCI:0000:41:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off
[ 1900.000000] NVRM: Xid (PCI:0000:b3:00): 13, pid=4242, name=python3, Graphics Exception: ESR
[ 1950.000000] NVRM: Xid (PCI:0000:b3:00): 13, pid=4243, name=python3, Graphics Exception: ESR
"""


def kernel(fast: bool = True, **answers: object) -> Looked:
    given = {"otherwise": Ran(missing=True), **answers}
    return read_kernel(RecordedHost(**given), fast=fast)  # type: ignore[arg-type]


def why(seen: Looked, fact: str) -> str:
    return next(gap.why for gap in seen.gaps if gap.fact == fact)


# --- version and modules ------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "version", "flavour"),
    [
        (OPEN, "570.158.01", "open"),
        (CLOSED, "535.104.05", "proprietary"),
        ("NVRM version: NVIDIA UNIX aarch64 Kernel Module  540.4.0  x", "540.4.0", "proprietary"),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.65.06  x",
            "580.65.06",
            "open",
        ),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  390.157  Wed", "390.157", "proprietary"),
        ("", "None", None),
        ("NVRM version: something new", "None", None),
        ("GCC version: gcc 12.3.0", "None", None),
    ],
)
def test_version_and_flavour_stand_in_one_line(
    text: str, version: str, flavour: str | None
) -> None:
    found, kind = parse_proc_version(text)
    assert (str(found), kind) == (version, flavour)


def test_the_loaded_module_is_known_by_proc() -> None:
    seen = kernel(files={PROC_VERSION: OPEN})
    assert str(seen.facts["driver.kernel"]) == "570.158.01"
    assert seen.facts["driver.flavour"] == "open"
    assert seen.origins["driver.kernel"] == PROC_VERSION


def test_the_loaded_module_is_known_by_sys_where_proc_is_hidden() -> None:
    seen = kernel(files={"/sys/module/nvidia/version": "550.54.15\n"})
    assert str(seen.facts["driver.kernel"]) == "550.54.15"
    assert "driver.flavour" not in seen.facts


def test_no_module_is_a_gap_of_its_version_only() -> None:
    seen = kernel(files={"/proc/modules": "xfs 1 0 - Live 0x0\n"})
    assert "no NVIDIA kernel module is loaded" in why(seen, "driver.kernel")
    assert seen.facts["driver.modules"] == ()


def test_loaded_modules_that_matter_are_named() -> None:
    text = "nvidia_uvm 1 0 - Live 0x0\nnvidia 1 2 nvidia_uvm, Live 0x0\nxfs 1 0 - Live 0x0\n"
    seen = kernel(files={"/proc/modules": text, "/sys/module/nouveau/initstate": "live"})
    assert seen.facts["driver.modules"] == ("nouveau", "nvidia", "nvidia_uvm")


def module(version: str, licence: str) -> bytes:
    """A kernel object with a section .modinfo and nothing else."""
    info = f"version={version}\0license={licence}\0vermagic=6.8.0\0".encode()
    names = b"\0.modinfo\0.shstrtab\0"
    header = b"\x7fELF\x02\x01\x01" + bytes(33)
    table = 64 + len(info) + len(names)
    header += struct.pack("<Q", table) + bytes(10) + struct.pack("<HHH", 64, 3, 2)
    rows = bytes(64)
    for name, offset, size in ((1, 64, len(info)), (10, 64 + len(info), len(names))):
        rows += struct.pack("<IIQQQQIIQQ", name, 1, 0, 0, offset, size, 0, 0, 1, 0)
    return header + info + names + rows


def test_module_files_of_every_kernel_are_found() -> None:
    base = "/lib/modules"
    host = RecordedHost(
        files={
            f"{base}/6.8.0-87/updates/dkms/nvidia.ko": module("580.95.05", "Dual MIT/GPL"),
            f"{base}/6.8.0-87/updates/dkms/nvidia-uvm.ko": b"",
            f"{base}/6.8.0-90/kernel/nvidia-570srv-open/nvidia.ko": b"x",
            f"{base}/6.1.0-1/updates/dkms/nvidia-current.ko.xz": b"x",
            f"{base}/6.1.0-1/kernel/drivers/net/nvidia.ko": b"x",
        }
    )
    assert module_files(host, ask=False) == (
        ModuleFile(
            path=f"{base}/6.1.0-1/updates/dkms/nvidia-current.ko.xz",
            kernel="6.1.0-1",
        ),
        ModuleFile(
            path=f"{base}/6.8.0-87/updates/dkms/nvidia.ko",
            kernel="6.8.0-87",
            version=DriverVersion("580.95.05"),
            flavour="open",
        ),
        ModuleFile(
            path=f"{base}/6.8.0-90/kernel/nvidia-570srv-open/nvidia.ko",
            kernel="6.8.0-90",
            flavour="open",
        ),
    )


def test_a_compressed_module_is_opened_by_modinfo() -> None:
    path = "/lib/modules/6.8/extra/nvidia.ko.zst"
    host = RecordedHost(
        files={path: b"\x28\xb5"},
        programs={"modinfo": "/sbin/modinfo"},
        runs={("modinfo", path): "version:        535.183.01\nlicense:        NVIDIA\n"},
    )
    (found,) = module_files(host, ask=True)
    assert (str(found.version), found.flavour) == ("535.183.01", "proprietary")


@pytest.mark.parametrize("cut", [0, 10, 63, 64, 90, 140, 200])
def test_a_module_that_was_cut_says_nothing(cut: int) -> None:
    data = module("580.95.05", "NVIDIA")[:cut]
    assert modinfo(RecordedHost(files={"/x.ko": data}), "/x.ko").get("version") in (
        None,
        "580.95.05",
    )


def test_a_real_module_of_another_driver_is_read(tmp_path: Path) -> None:
    file = tmp_path / "nvidia.ko"
    file.write_bytes(module("550.54.15", "NVIDIA"))
    assert modinfo(LocalHost(), str(file))["license"] == "NVIDIA"


def test_dkms_is_read_from_its_folders() -> None:
    base = "/var/lib/dkms/nvidia"
    host = RecordedHost(
        files={
            f"{base}/580.95.05/6.8.0-87/x86_64/module/nvidia.ko": "",
            f"{base}/580.95.05/6.8.0-90/x86_64/log/make.log": "",
            f"{base}/580.95.05/source": "",
            f"{base}/535.1/build/make.log": "",
        },
        links={f"{base}/kernel-6.8.0-87-x86_64": f"{base}/580.95.05/6.8.0-87/x86_64"},
    )
    assert dkms_lines(host) == (
        "nvidia/535.1: added",
        "nvidia/580.95.05, 6.8.0-87, x86_64: installed",
        "nvidia/580.95.05, 6.8.0-90, x86_64: failed",
    )


@pytest.mark.parametrize(
    ("text", "keeps"),
    [
        ("blacklist nvidia\n", True),
        ("# off\n  alias nvidia off\n", True),
        ("install nvidia /bin/false\n", True),
        ("blacklist nvidia # by hand\n", True),
        ("blacklist nvidiafb\nblacklist nouveau\n", False),
        ("# blacklist nvidia\n", False),
        ("alias nvidia nvidia-current\n", False),
    ],
)
def test_files_that_keep_the_driver_out_are_named(text: str, keeps: bool) -> None:
    path = "/etc/modprobe.d/x.conf"
    found = kernel(files={path: text}).facts["driver.blacklisted_by"]
    assert found == ((path,) if keeps else ())


def test_the_boot_line_can_keep_the_driver_out() -> None:
    seen = kernel(files={"/proc/cmdline": "ro quiet modprobe.blacklist=nouveau,nvidia\n"})
    assert seen.facts["driver.blacklisted_by"] == ("/proc/cmdline",)


# --- packages -----------------------------------------------------------------------

STATUS = b"""\
Package: nvidia-driver-580-open
Status: install ok installed
Version: 580.95.05-0ubuntu1

Package: libnvidia-compute-535
Status: deinstall ok config-files
Version: 535.183.01-0ubuntu1

Package: bash
Status: install ok installed
Version: 5.2

Package: libcudnn9-cuda-13
Status: hold ok installed
Version: 9.13.0.50-1

Package: nvidia-container-toolkit
Status: install ok installed
Version: 1.17.8-1
"""


def test_installed_packages_of_dpkg_are_read() -> None:
    assert [(package.name, package.version) for package in parse_dpkg(STATUS)] == [
        ("nvidia-driver-580-open", "580.95.05-0ubuntu1"),
        ("libcudnn9-cuda-13", "9.13.0.50-1"),
        ("nvidia-container-toolkit", "1.17.8-1"),
    ]


def test_the_first_and_the_last_package_of_the_file_count() -> None:
    paragraph = b"Package: libcuda1\nStatus: install ok installed\nVersion: 1"
    assert len(parse_dpkg(paragraph)) == 1
    assert len(parse_dpkg(paragraph + b"\n\n" + paragraph)) == 2
    assert parse_dpkg(b"") == parse_dpkg(b"Package: nvidia-driver-580") == ()


@pytest.mark.parametrize(
    ("name", "driver"),
    [
        ("nvidia-driver-580-open", True),
        ("libnvidia-compute-580", True),
        ("kmod-nvidia-open-dkms", True),
        ("nvidia-580xx-dkms", True),
        ("nvidia-open", True),
        ("cuda-drivers-580", True),
        ("nvidia-container-toolkit", False),
        ("libnvidia-container1", False),
        ("libcudnn9-cuda-13", False),
        ("cuda-toolkit-13-0", False),
        ("nvidia-fabricmanager-570", False),
    ],
)
def test_a_driver_is_told_from_what_lies_on_top_of_it(name: str, driver: bool) -> None:
    assert is_driver(SystemPackage(name=name, version="1", manager="dpkg")) is driver


def packages(host: RecordedHost, fast: bool) -> Looked:
    notes = Looked()
    note_packages(notes, host, fast=fast)
    return notes


def test_packages_of_pacman_are_folder_names() -> None:
    folder = "/var/lib/pacman/local"
    files: Files = {f"{folder}/nvidia-open-dkms-590.44-2/desc": "", f"{folder}/bash-5.2-1/desc": ""}
    seen = packages(RecordedHost(files=files), True)
    assert seen.facts["driver.packages"] == (
        SystemPackage(name="nvidia-open-dkms", version="590.44-2", manager="pacman"),
    )


def test_rpm_is_asked_with_time_only() -> None:
    argv = ("rpm", "-qa", "--qf", r"%{NAME} %{VERSION}-%{RELEASE}\n")
    host = RecordedHost(
        files={"/var/lib/rpm/rpmdb.sqlite": ""},
        runs={argv: "bash 5.1-1\nkmod-nvidia-open-dkms 580.95.05-1.el9\n"},
    )
    assert [package.name for package in packages(host, False).facts["driver.packages"]] == [
        "kmod-nvidia-open-dkms"
    ]
    quick = packages(host, True)
    assert quick.gaps[0].asked is False


def test_a_system_without_a_known_database_is_a_gap() -> None:
    assert packages(RecordedHost(), False).gaps[0].fact == "driver.packages"


def test_dpkg_that_cannot_be_read_is_a_gap() -> None:
    seen = packages(RecordedHost(files={DPKG: Answer(why="EACCES: Permission denied")}), False)
    assert "EACCES" in seen.gaps[0].why


# --- log ----------------------------------------------------------------------------


def test_xids_are_grouped_with_the_newest_first() -> None:
    assert parse_kernel_log(LOG, uptime_s=2000.0).xids == (
        Xid(
            code=13,
            bus_id="0000:b3:00",
            count=2,
            age_s=50.0,
            pid=4243,
            process="python3",
            text="Graphics Exception: ESR",
        ),
        Xid(
            code=79,
            bus_id="0000:41:00",
            count=1,
            age_s=156.69185500000003,
            text="GPU has fallen off",
        ),
    )


@pytest.mark.parametrize(
    "line",
    [
        "Jul 01 22:55:07 gpu kernel: NVRM: Xid (PCI:0000:41:00): 79, GPU has fallen off",
        "[Sun May 17 15:55:50 2026] NVRM: Xid (0000:41:00): 79, GPU has fallen off",
        "4,123,1843308145,-;NVRM: Xid (PCI:0000:41:00): 79, GPU has fallen off",
        "NVRM: Xid (PCI:0000:41:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off",
        "[ 1.5] NVRM: Xid (PCI:0000:41:00): 79, pid=<unknown>, GPU has fallen off",
    ],
)
def test_an_xid_is_read_in_every_form_of_the_log(line: str) -> None:
    (xid,) = parse_kernel_log(line).xids
    assert (xid.code, xid.bus_id, xid.pid, xid.text) == (
        79,
        "0000:41:00",
        None,
        "GPU has fallen off",
    )


def test_lines_of_others_are_left_out() -> None:
    assert parse_kernel_log("[ 1.0] usb 1-1: new device\n[ 2.0] eth0: link up\n").lines == ()


def test_what_an_iommu_refused_is_kept_without_nvidias_name() -> None:
    amd = "[ 9.1] AMD-Vi: Event logged [IO_PAGE_FAULT device=0000:c1:00.0 domain=0x0021]"
    intel = "[ 9.2] DMAR: [DMA Write NO_PASID] Request device [c1:00.0] fault addr 0x2004e000000"
    other = "[ 0.1] DMAR: IOMMU enabled"
    assert parse_kernel_log("\n".join((other, amd, intel))).lines == (amd, intel)


def test_the_log_comes_from_dmesg() -> None:
    seen = kernel(
        programs={"dmesg": "/bin/dmesg"}, runs={"dmesg": LOG}, files={"/proc/uptime": "2000.0 1\n"}
    )
    assert len(seen.facts["driver.log"]) == 4
    assert seen.facts["driver.xids"][0].age_s == 50.0
    assert seen.origins["driver.log"] == "dmesg"


def test_the_log_comes_from_the_device_where_dmesg_is_refused() -> None:
    refused = Ran(code=1, stderr="dmesg: read kernel buffer failed: Operation not permitted")
    seen = kernel(
        programs={"dmesg": "/bin/dmesg"},
        runs={"dmesg": refused},
        files={"/dev/kmsg": "4,1,1843308145,-;NVRM: Xid (PCI:0000:41:00): 79, x\n"},
    )
    assert [xid.code for xid in seen.facts["driver.xids"]] == [79]


def test_a_log_that_cannot_be_read_is_never_no_errors() -> None:
    seen = kernel(files={"/dev/kmsg": Answer(why="EPERM: Operation not permitted")})
    assert "driver.log" not in seen.facts
    assert "EPERM" in why(seen, "driver.xids")


def test_journalctl_is_asked_with_time_only() -> None:
    argv = "journalctl -k -b --no-pager -o short-monotonic -n 20000"
    answers = {"programs": {"journalctl": "/bin/journalctl"}, "runs": {argv: LOG}}
    assert "driver.log" not in kernel(True, **answers).facts
    assert len(kernel(False, **answers).facts["driver.log"]) == 4


# --- device nodes -------------------------------------------------------------------


def nodes(said: Ran, *names: str) -> Looked:
    stats = {f"/dev/{name}": Stat(exists=True, mode=0o660, gid=44) for name in names}
    return kernel(
        files={"/etc/group": "root:x:0:\nvideo:x:44:ada\n"}, stats=stats, inside={"nodes.py": said}
    )


def test_nodes_are_opened_in_a_child_with_the_control_node_first() -> None:
    said = lines(
        {"kind": "node", "path": "/dev/nvidiactl", "errno": 0},
        {"kind": "node", "path": "/dev/nvidia-uvm", "errno": 6},
        {"kind": "node", "path": "/dev/nvidia0", "errno": 13},
    )
    seen = nodes(said, "nvidia0", "nvidiactl", "nvidia-uvm", "null")
    assert seen.facts["driver.nodes"] == (
        Node(path="/dev/nvidiactl", errno=0, mode=0o660, group="video"),
        Node(path="/dev/nvidia-uvm", errno=6, mode=0o660, group="video"),
        Node(path="/dev/nvidia0", errno=13, mode=0o660, group="video"),
    )


def test_a_node_that_blocks_is_named() -> None:
    said = cut_short(
        {"kind": "node", "path": "/dev/nvidiactl", "errno": 0},
        {"kind": "calling", "call": "open /dev/nvidia0"},
    )
    seen = nodes(said, "nvidiactl", "nvidia0")
    assert [node.errno for node in seen.facts["driver.nodes"]] == [0, None]
    assert "open /dev/nvidia0" in why(seen, "driver.nodes.1.errno")


def test_without_nodes_no_child_is_started() -> None:
    assert kernel(stats={"/dev/null": Stat(exists=True)}).facts["driver.nodes"] == ()


def test_real_nodes_are_opened(tmp_path: Path) -> None:
    (tmp_path / "there").touch()
    ran = LocalHost().inside(
        "nodes.py", str(tmp_path / "there"), str(tmp_path / "absent"), timeout_s=30
    )
    assert '"errno": 0' in ran.stdout
    assert '"errno": 2' in ran.stdout


# --- fabric manager and stuck processes ---------------------------------------------


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("ActiveState=active\nLoadState=loaded\n", "active"),
        ("ActiveState=failed\nLoadState=loaded\n", "failed"),
        ("ActiveState=inactive\nLoadState=not-found\n", "absent"),
        ("ActiveState=activating\nLoadState=loaded\n", "inactive"),
        ("", None),
    ],
)
def test_the_state_of_the_unit_is_read(text: str, state: str | None) -> None:
    assert parse_unit(text) == state


def fabric(host: RecordedHost, *found: SystemPackage) -> Fabric:
    notes = Looked()
    note_fabric(notes, host, found, fast=False)
    facts = notes.facts
    return Fabric(**{name.rpartition(".")[2]: value for name, value in facts.items()})


def test_the_fabric_manager_has_state_and_version() -> None:
    show = "systemctl show nvidia-fabricmanager -p ActiveState,LoadState"
    host = RecordedHost(
        files={"/usr/bin/nv-fabricmanager": ""}, runs={show: "ActiveState=active\nLoadState=loaded"}
    )
    package = SystemPackage(name="nvidia-fabricmanager-570", version="570.172.08-1", manager="dpkg")
    assert fabric(host, package) == Fabric(manager="active", version=DriverVersion("570.172.08"))


def test_no_fabric_manager_is_absent() -> None:
    assert fabric(RecordedHost()) == Fabric(manager="absent")


def test_a_process_stuck_in_the_driver_is_named() -> None:
    host = RecordedHost(
        files={
            "/proc/42/stat": "42 (python (x)) D 1 42",
            "/proc/43/stat": "43 (cp) D 1 43",
            "/proc/44/stat": "44 (python) S 1 44",
            "/dev/nvidia0": "",
            "/proc/43/fd/3": "",
        },
        links={"/proc/42/fd/5": "/dev/nvidia0"},
    )
    assert stuck_processes(host) == ("python (x) (42)",)


@pytest.mark.parametrize("fast", [True, False])
def test_the_sickest_machine_is_gaps_and_no_error(fast: bool) -> None:
    seen = kernel(fast)
    assert {gap.fact for gap in seen.gaps} >= {"driver.kernel", "driver.modules", "driver.log"}
    assert seen.facts["driver.module_files"] == ()


@pytest.mark.parametrize("system", ["Windows", "Darwin"])
def test_elsewhere_there_is_no_such_kernel(system: str) -> None:
    assert kernel(system=system).gaps[0].fact == "driver.kernel"
