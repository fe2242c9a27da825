"""Real ranks with a real torch: hosts as network namespaces, and torchrun on this one.

A namespace has its own interfaces, addresses and routes, so a cut node is cut. Needs root.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from msgspec import Struct

PORT = "29517"
IP = shutil.which("ip") or "ip"
DOCTOR = (sys.executable, "-m", "cudadoctor")


class Ended(Struct, frozen=True):
    """How a rank ended."""

    code: int
    out: str
    err: str


class Hosts:
    """Namespaces that are joined by a bridge; host n has the address 10.78.0.(n + 1)."""

    def __init__(self, count: int) -> None:
        self.names = [f"cd{os.getpid()}-{number}" for number in range(count)]
        self.hub = f"cd{os.getpid()}-hub"

    def ip(self, *words: str, host: int | None = None) -> None:
        where = () if host is None else ("-n", self.names[host])
        subprocess.run([IP, *where, *words], check=True, capture_output=True, timeout=20)

    def make(self) -> None:
        for name in (self.hub, *self.names):
            self.ip("netns", "add", name)
        self.ip("-n", self.hub, "link", "add", "hub", "type", "bridge")
        self.ip("-n", self.hub, "link", "set", "hub", "up")
        for number, name in enumerate(self.names):
            peer = ("peer", "name", f"port{number}", "netns", self.hub)
            self.ip("-n", name, "link", "add", "eth0", "type", "veth", *peer)
            self.ip("-n", self.hub, "link", "set", f"port{number}", "master", "hub", "up")
            self.ip("addr", "add", f"10.78.0.{number + 1}/24", "dev", "eth0", host=number)
            for link in ("lo", "eth0"):
                self.ip("link", "set", link, "up", host=number)

    def remove(self) -> None:
        for name in (self.hub, *self.names):
            with suppress(subprocess.SubprocessError):
                self.ip("netns", "del", name)

    def cut(self, one: int, other: int) -> None:
        """What these two send to each other is lost without a word."""
        for here, there in ((one, other), (other, one)):
            self.ip("route", "add", "blackhole", f"10.78.0.{there + 1}/32", host=here)

    def run(self, python: str, *odd: dict[str, str]) -> list[Ended]:
        """A rank on each host. odd: variables that a host has of its own."""
        started = []
        for number, name in enumerate(self.names):
            env = {
                **os.environ,
                "RANK": str(number),
                "WORLD_SIZE": str(len(self.names)),
                "LOCAL_RANK": "0",
                "GROUP_RANK": str(number),
                "MASTER_ADDR": "10.78.0.1",
                "MASTER_PORT": PORT,
                "GLOO_SOCKET_IFNAME": "eth0",
                **(odd[number] if number < len(odd) else {}),
            }
            words = (*DOCTOR, "cluster", "--json", "--timeout", "56", "--python", python)
            as_host = (f'hostname node{number} && exec "$@"', "sh")
            started.append(
                subprocess.Popen(
                    [IP, "netns", "exec", name, "unshare", "--uts", "sh", "-c", *as_host, *words],
                    env=env,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        ended = []
        for child in started:
            out, err = child.communicate(timeout=120)
            ended.append(Ended(child.returncode, out, err))
        return ended


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    made = Hosts(4)
    try:
        made.make()
    except (OSError, subprocess.SubprocessError):
        made.remove()
        pytest.skip("no network namespaces: that needs root and `ip`")
    yield made
    made.remove()


def problems(ended: list[Ended]) -> Any:
    """What rank 0 reported; the others must have been quiet and well."""
    assert [(rank.code, rank.out) for rank in ended[1:]] == [(0, "")] * (len(ended) - 1)
    return json.loads(ended[0].out)


def test_sound_hosts_have_no_problem_and_the_odd_variable_is_named(
    hosts: Hosts, python_cpu: str
) -> None:
    ended = hosts.run(python_cpu, {}, {}, {"NCCL_ALGO": "Ring"})
    found = problems(ended)
    assert found["problems"] == []
    assert [row["fact"] for row in found["differences"]] == ["env.NCCL_ALGO"]
    assert ended[0].code == 0


def test_a_host_that_only_reaches_rank_0_is_named(hosts: Hosts, python_cpu: str) -> None:
    hosts.cut(3, 1)
    hosts.cut(3, 2)
    ended = hosts.run(python_cpu)
    found = problems(ended)
    assert ended[0].code == 1
    assert {rank for problem in found["problems"] for rank in problem["ranks"]} == {3}


def test_an_interface_that_one_host_lacks_is_named(hosts: Hosts, python_cpu: str) -> None:
    ended = hosts.run(python_cpu, {}, {}, {"GLOO_SOCKET_IFNAME": "ib0"})
    assert ended[0].code == 1
    named = [problem for problem in problems(ended)["problems"] if "ib0" in str(problem)]
    assert {rank for problem in named for rank in problem["ranks"]} == {2}


def test_an_address_that_does_not_resolve_is_named_by_each_rank(
    hosts: Hosts, python_cpu: str
) -> None:
    wrong = {"MASTER_ADDR": "no-such-host.invalid"}
    ended = hosts.run(python_cpu, wrong, wrong, wrong, wrong)
    assert ended[0].code == 1
    for number, rank in enumerate(ended):
        assert f"(node{number}): MASTER_ADDR 'no-such-host.invalid' cannot be" in rank.err


def test_a_check_under_torchrun_is_one_report_of_all_ranks(python_cpu: str) -> None:
    launcher = [python_cpu, "-m", "torch.distributed.run", "--nproc-per-node", "3", "--no-python"]
    ran = subprocess.run(
        [*launcher, *DOCTOR, "check", "--python", python_cpu],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ran.returncode, ran.stdout.count("DDP passed on all 3 ranks")) == (0, 1), ran.stderr
