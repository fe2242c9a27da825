"""The answers of ranks: each planted fault is named, and the ranks that only waited are not."""

from __future__ import annotations

from typing import Any

import pytest

from cudadoctor.cluster.judging import judge, names_one
from cudadoctor.cluster.launch import launch_of


def _facts(world: int) -> dict[int, dict[str, Any]]:
    return {
        rank: {"host": f"n{rank}", "node": rank, "table": {}, "env": {}, "interfaces": ["eth0"]}
        for rank in range(world)
    }


def _results(world: int) -> dict[int, dict[str, Any]]:
    own = {"phase": "done", "at": 5, "pairs": [], "code": 0, "digest": "a", "own_s": 1.0}
    return {rank: dict(own) for rank in range(world)}


def _kinds(facts: dict[int, Any], results: dict[int, Any], world: int = 4) -> list[Any]:
    judged = judge(world, facts, results, nccl=False)
    return [(problem.kind, problem.ranks) for problem in judged.problems]


def test_a_job_without_a_fault_has_no_problem() -> None:
    assert _kinds(_facts(4), _results(4)) == []


def test_other_gradients_on_one_rank() -> None:
    results = _results(4)
    results[2]["digest"] = "b"
    assert _kinds(_facts(4), results) == [("gradients", (2,))]


def test_the_rank_that_hangs_is_named_and_not_those_that_wait() -> None:
    results = _results(4)
    for rank, own in results.items():
        own |= {"hung": True, "at": 2 if rank == 3 else 3, "digest": None, "code": None}
    assert _kinds(_facts(4), results) == [("hung", (3,))]


def test_where_all_hang_in_one_place_nobody_is_accused() -> None:
    results = _results(4)
    for own in results.values():
        own |= {"hung": True, "at": 3, "phase": "all_reduce", "digest": None, "code": None}
    judged = judge(4, _facts(4), results, nccl=False)
    (problem,) = judged.problems
    assert problem.kind == "hung"
    assert "{ranks}" not in problem.template


def test_the_rank_that_died_is_named_and_not_those_whose_connection_broke() -> None:
    results = _results(4)
    for rank, own in results.items():
        own.update({"code": -9} if rank == 1 else {"error": "connection closed", "at": 2})
    assert _kinds(_facts(4), results) == [("died", (1,))]


def test_missing_ranks_are_told_apart() -> None:
    facts, results = _facts(4), _results(4)
    del facts[3], results[3], results[2]
    assert _kinds(facts, results) == [("never-arrived", (3,)), ("lost", (2,))]


def test_a_cut_node_is_named_by_its_pairs() -> None:
    results = _results(4)
    for rank, own in results.items():
        own["pairs"] = [
            {"other": rank ^ step, "why": "timeout" if 2 in (rank, rank ^ step) else None}
            for step in (1, 2)
        ]
    assert _kinds(_facts(4), results) == [("cut", (2,))]


def test_a_cut_node_explains_why_all_ranks_stop_in_one_phase() -> None:
    results = _results(4)
    for rank, own in results.items():
        own |= {"phase": "group", "at": 2, "hung": True, "digest": None}
        own["pairs"] = [
            {"other": rank ^ step, "why": "timeout" if 3 in (rank, rank ^ step) else None}
            for step in (1, 2)
        ]
    assert _kinds(_facts(4), results) == [("cut", (3,))]


def test_a_pair_whose_partner_gave_up_accuses_nobody() -> None:
    results = _results(4)
    for rank, own in results.items():
        own["pairs"] = [{"other": rank ^ 1, "why": None}]
    results[2]["pairs"].append({"other": 0, "why": "timeout"})
    assert _kinds(_facts(4), results) == []


def test_an_interface_that_one_host_lacks() -> None:
    facts = _facts(4)
    facts[1]["env"] = {"env.NCCL_SOCKET_IFNAME": "ib0"}
    judged = judge(4, facts, _results(4), nccl=False)
    assert [(problem.kind, problem.ranks) for problem in judged.problems] == [
        ("wrong-interface", (1,))
    ]


@pytest.mark.parametrize(
    ("value", "named"), [("eth", True), ("=eth", False), ("^eth", False), ("^docker", True)]
)
def test_nccl_reads_prefixes(value: str, named: bool) -> None:
    assert names_one(value, ["lo", "eth0"], prefixes=True) is named


def test_a_straggler_begins_above_the_threshold() -> None:
    results = _results(4)
    results[0]["own_s"] = 1.5
    assert _kinds(_facts(4), results) == []
    results[0]["own_s"] = 1.51
    assert _kinds(_facts(4), results) == [("slow", (0,))]


def test_launchers_are_found_by_their_variables() -> None:
    assert launch_of({"PATH": "/bin", "RANK": "3"}) is None
    assert launch_of({"RANK": "3", "WORLD_SIZE": "3"}) is None
    slurm = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_NODEID": "1"}
    found = launch_of({**slurm, "SLURM_JOB_ID": "7", "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1"})
    assert found is not None
    assert (found.launcher, found.rank, found.node, found.port) == ("srun", 5, 1, 20007)
    agent = {"RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    by_agent = launch_of(agent)
    assert by_agent is not None
    assert not by_agent.hosts_store
