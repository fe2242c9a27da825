"""How long the facts of many ranks take to reach rank 0 over torch's store, and to be compared.

    python benchmarks/cluster_gather.py --python ENV/bin/python [--ranks 64 128 256] [--rounds 5]

The ranks are forked from one parent that has imported torch, on one machine: the import does not
count, everything from opening the store does. Every rank hands on the facts of a node with
eight H100, each as of a node of its own. One rank has another driver, which must be the one
difference. The bar: 256 ranks in 5 s.

torch looks up the host name of every address that connects to its store. Where no name server
answers that, each rank costs a fifth of a second and more; give the addresses of the loopback
interface, ::ffff:127.0.0.1 among them, in /etc/hosts.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RANK = Path(__file__).parents[1] / "cudadoctor" / "cluster" / "inside" / "rank.py"
NODE = Path(__file__).parents[1] / "tests" / "machines" / "h100x8-linux.json"
BAR_S = 5.0
ODD = 7


def main() -> int:
    """Print one JSON document; 1 where the bar is missed or the odd rank is not named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--python", required=True)
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out")
    asked = parser.parse_args()
    own = own_facts()
    rows = [measured(asked.python, ranks, asked.rounds, own) for ranks in asked.ranks]
    document = json.dumps({"bytes_per_rank": len(json.dumps(own)), "rows": rows}, indent=2)
    print(document)
    if asked.out:
        Path(asked.out).write_text(document + "\n", encoding="utf-8")
    return int(any(row["ranks"] == 256 and row["seconds"] > BAR_S for row in rows))


def own_facts() -> Any:
    """What a rank of a node with eight H100 hands on."""
    from cudadoctor.cluster.command import order_of
    from cudadoctor.cluster.launch import Launch
    from cudadoctor.model import factfile

    launch = Launch(
        launcher="torchrun", rank=0, world=2, local=0, node=0, master="", port=1, hosts_store=True
    )
    machine = factfile.from_plain(json.loads(NODE.read_text(encoding="utf-8")))
    return order_of(launch, machine, 120.0)["facts"]


def measured(python: str, ranks: int, rounds: int, own: Any) -> dict[str, Any]:
    from cudadoctor.cluster.judging import judge

    gathering, comparing = [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "answer.json"
            subprocess.run(
                [python, __file__, "inside", str(ranks), str(path)],
                input=json.dumps(own).encode(),
                capture_output=True,
                check=True,
                timeout=300,
            )
            answer = json.loads(path.read_text(encoding="utf-8"))
        began = time.perf_counter()
        judged = judge(
            ranks, {int(rank): facts for rank, facts in answer["facts"].items()}, {}, nccl=False
        )
        comparing.append(time.perf_counter() - began)
        gathering.append(answer["seconds"])
        assert [row.fact for row in judged.differences] == ["driver.kernel"], judged.differences
    both = [one + other for one, other in zip(gathering, comparing, strict=True)]
    return {
        "ranks": ranks,
        "seconds": round(statistics.median(both), 2),
        "gathering_s": round(statistics.median(gathering), 2),
        "comparing_s": round(statistics.median(comparing), 3),
    }


def inside(world: int, answer: str) -> None:
    """In the environment with torch: fork the ranks, and time until rank 0 has everything."""
    own = json.loads(sys.stdin.read())
    import torch.distributed  # noqa: F401 - the import does not count

    spec = importlib.util.spec_from_file_location("rank", RANK)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    order = {"world": world, "master": "127.0.0.1", "port": 29519, "dial_s": 60.0, "attempt": "0"}
    began = time.time()
    for rank in range(1, world):
        if os.fork() == 0:
            shared(script, {**order, "rank": rank, "hosts_store": False}, own)
            os._exit(0)
    facts = shared(script, {**order, "rank": 0, "hosts_store": True}, own)
    taken = time.time() - began
    for _ in range(1, world):
        os.wait()
    Path(answer).write_text(json.dumps({"seconds": taken, "facts": facts}), encoding="utf-8")
    os._exit(0)


def shared(script: Any, order: Any, own: Any) -> Any:
    rank = order["rank"]
    while script.reach(order):
        pass
    store = script.open_store(order)
    table = {**own["table"], "driver.kernel": "570.1" if rank == ODD else "580.95.05"}
    facts = {**own, "host": f"node{rank}", "node": rank, "table": table}
    store.set(f"facts/{rank}", json.dumps(facts))
    found = script.gathered(store, "facts", order, time.time() + 60)
    if rank:
        script.awaited(store, ["out"], time.time() + 60)
    else:
        store.set("out", "1")
    return found


if __name__ == "__main__":
    if sys.argv[1:2] == ["inside"]:
        inside(int(sys.argv[2]), sys.argv[3])
    sys.exit(main())
