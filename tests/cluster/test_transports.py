"""NCCL's own log tells by which way the data went; slow ways are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cudadoctor.cluster.command import active_infiniband
from cudadoctor.cluster.inside import rank as script
from cudadoctor.cluster.judging import judge
from cudadoctor.cluster.page import cluster_lines
from cudadoctor.locale.language import language

RANK: Any = script
CHANNEL = "n0:5183:5236 [4] NCCL INFO Channel 00/0 : 1[1] -> 8[0] [send] via {}\n"


@pytest.mark.parametrize(
    ("ways", "found"),
    [
        (["NET/IB/0/GDRDMA", "NET/IB/1"], {"NET/IB": [2, 1]}),
        (["NET/IBext_v8/2"], {"NET/IBext_v8": [1, 0]}),
        (["NET/Socket/0", "P2P/CUMEM/read"], {"NET/Socket": [1, 0], "P2P": [1, 0]}),
        (["NET/AWS Libfabric/0/GDRDMA"], {"NET/AWS Libfabric": [1, 1]}),
        (["SHM/direct/direct"], {"SHM": [1, 0]}),
    ],
)
def test_the_channels_are_counted_by_their_way(ways: list[str], found: dict[str, Any]) -> None:
    assert RANK.transports(CHANNEL.format(way) for way in ways) == {"via": found}


def test_the_network_and_the_first_warning_are_kept() -> None:
    log = [
        "n0:1:2 [0] NCCL INFO Using network IB\n",
        "n0:1:2 [0] misc/ibvwrap.cc:262 NCCL WARN Call to ibv_modify_qp failed\n",
        "n0:1:2 [0] NCCL WARN a later one\n",
        "a line of a user's: Channel via NET/IB\n",
    ]
    assert RANK.transports(log) == {"network": "IB", "warn": "Call to ibv_modify_qp failed"}


def test_a_log_that_the_user_keeps_stays_theirs() -> None:
    own = {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "/home/ada/nccl.log"}
    assert RANK.with_log(own, "/tmp/x") == own
    asked = RANK.with_log({"NCCL_DEBUG_SUBSYS": "COLL"}, "/tmp/x")
    assert asked == {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": "/tmp/x"}


def _judged(via: dict[str, Any], ports: list[str], **env: str) -> Any:
    table = {f"env.{name}": value for name, value in env.items()}
    facts = {
        rank: {"host": f"n{rank}", "node": rank, "table": {}, "env": table, "infiniband": ports}
        for rank in range(2)
    }
    done = {"phase": "done", "at": 5, "code": 0, "digest": "a", "own_s": 1.0, "via": via}
    return judge(2, facts, {0: done, 1: done}, nccl=True)


IB, TCP = ["mlx5_0:1"], {"NET/Socket": [4, 0]}


@pytest.mark.parametrize(
    ("via", "ports", "kinds"),
    [
        (TCP, IB, ["idle-infiniband"]),
        (TCP, [], []),
        ({"NET/IB": [4, 0]}, IB, ["no-gpudirect"]),
        ({"NET/IB": [4, 2]}, IB, []),
        ({"NET/Socket": [1, 0], "NET/IB": [4, 2]}, IB, []),
        ({"P2P": [8, 0]}, IB, []),
    ],
)
def test_a_slow_way_is_a_warning(via: dict[str, Any], ports: list[str], kinds: list[str]) -> None:
    judged = _judged(via, ports)
    assert [problem.kind for problem in judged.problems] == kinds
    assert not judged.broken


def test_the_variable_that_turns_infiniband_off_is_named() -> None:
    lines = cluster_lines(_judged(TCP, IB, NCCL_IB_DISABLE="1"), 120, language("en"))
    assert lines[1].startswith("  NCCL used TCP because NCCL_IB_DISABLE is set; InfiniBand is")
    assert "NCCL's channels: NET/Socket." in lines


def test_ranks_with_another_network_differ() -> None:
    facts = {r: {"host": f"n{r}", "node": r, "table": {}, "env": {}} for r in range(3)}
    done = {"phase": "done", "at": 5, "code": 0, "digest": "a", "own_s": 1.0, "network": "IB"}
    results = {0: done, 1: done, 2: {**done, "network": "Socket"}}
    (odd,) = judge(3, facts, results, nccl=True).differences
    assert (odd.fact, odd.usual, odd.odd[0].value) == ("nccl.network", "IB", "Socket")


def test_only_active_infiniband_counts(tmp_path: Path) -> None:
    for name, state, layer in (
        ("mlx5_0", "4: ACTIVE", "InfiniBand"),
        ("mlx5_1", "1: DOWN", "InfiniBand"),
        ("mlx5_2", "4: ACTIVE", "Ethernet"),
    ):
        port = tmp_path / name / "ports" / "1"
        port.mkdir(parents=True)
        (port / "state").write_text(f"{state}\n", encoding="utf-8")
        (port / "link_layer").write_text(f"{layer}\n", encoding="utf-8")
    assert active_infiniband(tmp_path) == ["mlx5_0:1"]
    assert active_infiniband(tmp_path / "none") == []
