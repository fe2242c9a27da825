"""What the gathered answers of all ranks say: which node, which rank, and what of it is broken."""

from __future__ import annotations

from collections import Counter
from typing import Any

from msgspec import Struct

from cudadoctor.cluster.differences import Difference, Tally
from cudadoctor.model.machine import Json, Strings

SLOW = 1.5
"""A rank that needs so many times the median for the same product is a straggler."""
SKEW_S = 5.0


class Problem(Struct, frozen=True, kw_only=True):
    """One thing that is wrong. template, values: its sentence. broken: the job cannot run so."""

    kind: str
    template: str
    values: dict[str, str]
    ranks: tuple[int, ...] = ()
    broken: bool = True


class Judged(Struct, frozen=True, kw_only=True):
    """All that is said of a job. ranks: how many were to come. nccl: it was tested.

    transports: by which ways NCCL's channels went, as its log names them.
    """

    ranks: int
    hosts: Strings
    problems: tuple[Problem, ...]
    differences: tuple[Difference, ...]
    nccl: bool
    transports: Strings = ()

    @property
    def broken(self) -> bool:
        return any(problem.broken for problem in self.problems)


def judge(world: int, facts: dict[int, Json], results: dict[int, Json], *, nccl: bool) -> Judged:
    """Judge what the ranks said. facts, results: rank -> its answer; who is missing said nothing.

    facts: {"host", "node", "table", "env", "interfaces"}.
    """
    names = _names(facts, world)
    nodes, ranks = Tally(), Tally()
    for rank in sorted(facts):
        if table := facts[rank].get("table"):
            nodes.add(names[rank].partition(", ")[2] or names[rank], table)
        network = (results.get(rank) or {}).get("network")
        chosen = {"nccl.network": network} if network else {}
        ranks.add(names[rank], {**(facts[rank].get("env") or {}), **chosen})
    missing = _missing(world, facts, results, names)
    problems = [*missing, *_wrong_interfaces(facts, names)]
    stopped = () if missing else _stopped(results, names)  # the others wait for those
    named = [problem for problem in (*problems, *stopped) if len(problem.ranks) < world]
    cut = _cut(results, facts, names, {rank for problem in named for rank in problem.ranks})
    problems += [
        # Where a node is cut off, all ranks stop in the group that it cannot join.
        *(problem for problem in stopped if problem in named or not cut),
        *cut,
        *_gradients(results, names),
        *_networks(results, facts, names),
        *_slow(results, names),
        *_clocks(results, names),
    ]
    return Judged(
        ranks=world,
        hosts=tuple(nodes.hosts),
        problems=tuple(problems),
        differences=nodes.differences() + ranks.differences(),
        nccl=nccl,
        transports=_transports(results),
    )


def _names(facts: dict[int, Json], world: int) -> dict[int, str]:
    """rank -> "rank 3, host"; a host that stands for several nodes gets the node's number."""
    nodes: dict[str, set[int]] = {}
    for each in facts.values():
        nodes.setdefault(each["host"], set()).add(each["node"])
    found = {}
    for rank in range(world):
        own = facts.get(rank)
        if own is None:
            found[rank] = f"rank {rank}"
            continue
        many = len(nodes[own["host"]]) > 1
        found[rank] = f"rank {rank}, {own['host']}" + (f"#{own['node']}" if many else "")
    return found


def _listed(ranks: list[int], names: dict[int, str]) -> str:
    shown = "; ".join(names[rank] for rank in ranks[:8])
    return shown if len(ranks) <= 8 else f"{shown}; …"


def _problem(
    kind: str, template: str, ranks: list[int], names: dict[int, str], **more: Any
) -> Problem:
    broken = bool(more.pop("broken", True))
    values = {"ranks": _listed(ranks, names), **{key: str(value) for key, value in more.items()}}
    return Problem(kind=kind, template=template, values=values, ranks=tuple(ranks), broken=broken)


def _missing(
    world: int, facts: dict[int, Json], results: dict[int, Json], names: dict[int, str]
) -> list[Problem]:
    never = [rank for rank in range(world) if rank not in facts and rank not in results]
    lost = [rank for rank in range(world) if rank in facts and rank not in results]
    found = []
    if never:
        found.append(_problem("never-arrived", "Never arrived: {ranks}.", never, names))
    if lost:
        found.append(_problem("lost", "Arrived, but gave no result: {ranks}.", lost, names))
    return found


def _wrong_interfaces(facts: dict[int, Json], names: dict[int, str]) -> list[Problem]:
    found = []
    for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
        wrong: dict[str, list[int]] = {}
        for rank, own in sorted(facts.items()):
            value, there = (own.get("env") or {}).get(f"env.{variable}"), own.get("interfaces")
            if value and there and not names_one(value, there, prefixes=variable[0] == "N"):
                wrong.setdefault(value, []).append(rank)
        found += [
            _problem(
                "wrong-interface",
                "{variable}={value} names no network interface of: {ranks}.",
                *(ranks, names),
                variable=variable,
                value=value,
            )
            for value, ranks in wrong.items()
        ]
    return found


def names_one(value: str, there: list[str], *, prefixes: bool) -> bool:
    """Whether an interface variable matches one that is there; NCCL takes prefixes, ^ and =."""
    exclude = prefixes and value.startswith("^")
    exact = not prefixes or value.lstrip("^").startswith("=")
    words = [word.partition(":")[0] for word in value.lstrip("^=").split(",") if word]

    def matches(name: str) -> bool:
        return any(name == word if exact else name.startswith(word) for word in words)

    return any(matches(name) != exclude for name in there if name != "lo" or "lo" in words)


def _stopped(results: dict[int, Json], names: dict[int, str]) -> list[Problem]:
    """Ranks that died, and of those that hang the ones that all others wait for."""
    died = [rank for rank, own in sorted(results.items()) if own.get("code")]
    found = [
        _problem(
            "died",
            "Died in the phase '{phase}' ({how}): {ranks}.",
            *([rank], names),
            phase=results[rank]["phase"],
            how=_how(results[rank]["code"]),
        )
        for rank in died
    ]
    open_ = [
        rank
        for rank, own in sorted(results.items())
        if rank not in died and (own.get("hung") or own.get("error"))
    ]
    if not open_:
        return found
    least = min(results[rank]["at"] for rank in open_)
    furthest = max(own["at"] for own in results.values())
    first = [rank for rank in open_ if results[rank]["at"] == least]
    hung = [rank for rank in first if results[rank].get("hung")]
    if died:
        return found  # the others waited for those
    phase = results[first[0]]["phase"]
    errors = [results[rank]["error"] for rank in first if results[rank].get("error")]
    flight = [line for rank in first for line in results[rank].get("flight") or ()]
    if errors and (len(errors) >= len(hung) or least == furthest):
        template = "Failed in the phase '{phase}' ({why}): {ranks}."
        failed = [rank for rank in first if results[rank].get("error")]
        found.append(_problem("failed", template, failed, names, phase=phase, why=errors[0]))
    elif len(hung) == len(results):
        template = "All ranks hung in the phase '{phase}'; which one is at fault is not known."
        found.append(_problem("hung", template, hung, names, phase=phase))
    elif hung:
        why = f" ({flight[-1]})" if flight else ""
        template = "Hung in the phase '{phase}'{why}: {ranks}."
        found.append(_problem("hung", template, hung, names, phase=phase, why=why))
    return found


def _how(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _cut(
    results: dict[int, Json], facts: dict[int, Json], names: dict[int, str], accused: set[int]
) -> list[Problem]:
    """The fewest nodes that explain the pairs that failed: each time the one in most of them.

    A pair counts where both of its ranks tell of it: one whose partner gave up was alone.
    """
    told = {(rank, pair["other"]) for rank, own in results.items() for pair in own.get("pairs", ())}
    where = {rank: names[rank].partition(", ")[2] for rank in facts}
    failed, passed = [], Counter[str]()
    for rank, own in results.items():
        for pair in own.get("pairs") or ():
            ends = (where.get(rank, ""), where.get(pair["other"], ""))
            alone = (pair["other"], rank) not in told
            if alone or ends[0] == ends[1] or accused & {rank, pair["other"]}:
                continue
            if pair["why"]:
                failed.append((ends, pair["why"].partition(", keys:")[0]))
            else:
                passed.update(ends)
    found = []
    while failed:
        count = Counter(end for ends, _ in failed for end in ends)
        worst = max(sorted(count), key=lambda node: (count[node], -passed[node]))
        why = next(why for ends, why in failed if worst in ends)
        ranks = [rank for rank, node in sorted(where.items()) if node == worst]
        sure = len({end for ends, _ in failed if worst in ends for end in ends}) > 2
        template = (
            "Cannot communicate with the other nodes ({why}): {ranks}."
            if sure or not passed[worst]
            else "Cannot communicate with one other node ({why}): {ranks}."
        )
        found.append(_problem("cut", template, ranks, names, why=why))
        failed = [(ends, text) for ends, text in failed if worst not in ends]
    return found


def _gradients(results: dict[int, Json], names: dict[int, str]) -> list[Problem]:
    digests = {rank: own["digest"] for rank, own in results.items() if own.get("digest")}
    if len(set(digests.values())) < 2:
        return []
    usual, count = Counter(digests.values()).most_common(1)[0]
    odd = sorted(rank for rank, digest in digests.items() if digest != usual)
    if 2 * count <= len(digests):
        odd = sorted(digests)
    template = "Gradients after DDP are not those of the other ranks: {ranks}."
    return [_problem("gradients", template, odd, names)]


def _networks(
    results: dict[int, Json], facts: dict[int, Json], names: dict[int, str]
) -> list[Problem]:
    """Ways that work and are slow: TCP beside an active InfiniBand, InfiniBand through the host."""
    tcp: dict[str, list[int]] = {}
    staged = []
    for rank, own in sorted(results.items()):
        via = own.get("via") or {}
        ports = (facts.get(rank) or {}).get("infiniband")
        if ports and "NET/Socket" in via and not any(way.startswith("NET/IB") for way in via):
            tcp.setdefault(", ".join(ports), []).append(rank)
        with_ib = [count for way, count in via.items() if way.startswith("NET/IB")]
        if with_ib and not any(direct for _, direct in with_ib):
            staged.append(rank)
    found = []
    for ports, ranks in tcp.items():
        off = {_variable(facts[rank], "NCCL_IB_DISABLE") for rank in ranks}
        template = (
            "NCCL used TCP because NCCL_IB_DISABLE is set; InfiniBand is active ({ports}): {ranks}."
            if off == {"1"}
            else "NCCL used TCP, although InfiniBand is active ({ports}): {ranks}."
        )
        found.append(_problem("idle-infiniband", template, ranks, names, ports=ports, broken=False))
    if staged:
        template = "NCCL used InfiniBand without GPUDirect RDMA: {ranks}."
        found.append(_problem("no-gpudirect", template, staged, names, broken=False))
    return found


def _variable(facts: Json, name: str) -> str:
    return str((facts.get("env") or {}).get(f"env.{name}", ""))


def _transports(results: dict[int, Json]) -> Strings:
    ways = set()
    for own in results.values():
        for way, (_, direct) in (own.get("via") or {}).items():
            ways.add(f"{way} (GPUDirect RDMA)" if direct else way)
    return tuple(sorted(ways))


def _slow(results: dict[int, Json], names: dict[int, str]) -> list[Problem]:
    times = {rank: own["own_s"] for rank, own in results.items() if own.get("own_s")}
    if len(times) < 3:
        return []
    median = sorted(times.values())[len(times) // 2]
    slow = [rank for rank, took in sorted(times.items()) if took > SLOW * median]
    if not slow:
        return []
    worst = max(times[rank] for rank in slow) / median
    template = "Slow, reason not known (up to {times} times the median of all ranks): {ranks}."
    return [_problem("slow", template, slow, names, times=f"{worst:.1f}", broken=False)]


def _clocks(results: dict[int, Json], names: dict[int, str]) -> list[Problem]:
    off = [rank for rank, own in sorted(results.items()) if abs(own.get("skew_s") or 0) > SKEW_S]
    template = "The clock differs from that of rank 0 by more than {seconds} s: {ranks}."
    return (
        [_problem("clock", template, off, names, seconds=f"{SKEW_S:g}", broken=False)]
        if off
        else []
    )
