"""Limits of the process."""

from __future__ import annotations

import pytest
from recorded_host import RecordedHost

from cudadoctor.host.local import LocalHost, Space
from cudadoctor.model.machine import Limits
from cudadoctor.probes.limits import parse_cpu_list, parse_limits, read_limits

LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max open files            1024                 1048576              files
Max locked memory         65536                unlimited            bytes
"""


def limits(host: RecordedHost) -> Limits:
    found = read_limits(host).facts["limits"]
    assert isinstance(found, Limits)
    return found


def test_all_limits_are_read() -> None:
    host = RecordedHost(
        files={
            "/proc/self/limits": LIMITS,
            "/proc/meminfo": "MemTotal:       16384 kB\nMemFree: 1 kB\n",
            "/proc/self/status": "Cpus_allowed_list:\t0-3,8\n",
            "/proc/self/cgroup": "0::/user.slice/job\n",
            "/sys/fs/cgroup/user.slice/job/memory.max": "max\n",
            "/sys/fs/cgroup/user.slice/memory.max": "4096\n",
            "/sys/fs/cgroup/user.slice/job/cpu.max": "250000 100000\n",
        },
        spaces={
            "/dev/shm": Space(total_bytes=64 << 20, free_bytes=1 << 20),
            "/scratch": Space(total_bytes=9, free_bytes=5),
        },
        env={"TMPDIR": "/scratch"},
    )
    assert read_limits(host).facts["limits"] == Limits(
        shm_bytes=64 << 20,
        shm_free_bytes=1 << 20,
        memlock_bytes=65536,
        memlock_hard_bytes=-1,
        nofile=1024,
        memory_bytes=16384 * 1024,
        cgroup_memory_bytes=4096,
        cpus=3,
        tmp_free_bytes=5,
    )


def test_the_limit_of_cgroup_v1_is_read_from_the_root_of_a_container() -> None:
    files = {
        "/proc/self/cgroup": "4:memory:/docker/abc\n1:name=systemd:/docker/abc\n",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes": "2147483648\n",
    }
    assert limits(RecordedHost(files=files)).cgroup_memory_bytes == 2 << 30


def test_the_largest_number_of_cgroup_v1_means_no_limit() -> None:
    files = {"/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}
    assert limits(RecordedHost(files=files)).cgroup_memory_bytes == -1


def test_without_control_groups_nothing_is_known_of_them() -> None:
    assert limits(RecordedHost()).cgroup_memory_bytes is None


@pytest.mark.parametrize(
    ("text", "count"), [("0", 1), ("0-3", 4), ("0-3,8,10-11", 7), ("", None), ("x", None)]
)
def test_a_list_of_processors_is_counted(text: str, count: int | None) -> None:
    assert parse_cpu_list(text) == count


def test_unlimited_is_minus_one() -> None:
    assert parse_limits(LIMITS, hard=True)["Max locked memory"] == -1


@pytest.mark.parametrize("system", ["Linux", "Windows", "Darwin"])
def test_a_machine_that_says_nothing_does_not_end_the_probe(system: str) -> None:
    assert limits(RecordedHost(system=system)).shm_bytes is None


def test_windows_counts_its_processors_in_a_variable() -> None:
    host = RecordedHost(system="Windows", env={"NUMBER_OF_PROCESSORS": "16"})
    assert limits(host).cpus == 16


def test_this_machine_has_limits() -> None:
    found = read_limits(LocalHost()).facts["limits"]
    assert found.tmp_free_bytes is not None
    assert found.cpus


def test_interfaces_are_read_where_a_variable_names_one() -> None:
    folders = {"/sys/class/net": ("lo", "ens5")}
    asked = RecordedHost(folders=folders, env={"NCCL_SOCKET_IFNAME": "ib0"})
    assert limits(asked).interfaces == ("ens5", "lo")
    assert limits(RecordedHost(folders=folders)).interfaces is None
