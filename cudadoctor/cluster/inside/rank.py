"""Runs on every rank in the examined interpreter: gathers over the c10d store, then works.

`rank.py` reads one line of JSON (the order) from stdin and answers with JSON lines. It keeps the
store and watches a process of its own (`rank.py work`) that does all that can hang: pairs of
ranks, the group of all, DDP. Standard library and torch, Python 3.6.
"""

# mypy: allow-untyped-defs, allow-untyped-calls

import datetime
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import zlib

GROUP = 64
"""Ranks whose facts one of them hands on together: rank 0 reads few, large values."""
OUT_S = 30.0
"""How long a rank waits for the report behind its deadline."""


def say(**values):
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def seconds(number):
    return datetime.timedelta(seconds=max(0.1, number))


def reach(order):
    """Resolve and dial the master; the sentence of what failed, None where it answers."""
    try:
        found = socket.getaddrinfo(order["master"], order["port"], type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return {"failed": "resolve", "why": str(error)}
    if order["hosts_store"]:
        return None
    until, why = time.time() + order["dial_s"], ""
    while True:
        for family, kind, protocol, _, address in found:
            with socket.socket(family, kind, protocol) as dialled:
                dialled.settimeout(3.0)
                try:
                    dialled.connect(address)
                    return None
                except OSError as error:
                    why = str(error)
        if time.time() > until:
            return {"failed": "dial", "why": why}
        time.sleep(0.2)


def open_store(order):
    from torch.distributed import PrefixStore, TCPStore

    store = TCPStore(
        order["master"],
        order["port"],
        order["world"],
        order["hosts_store"],
        timeout=seconds(order["dial_s"]),
        wait_for_workers=False,
    )
    return PrefixStore("cudadoctor/" + order["attempt"], store)


def awaited(store, keys, until):
    """Those of the keys that are there by then."""
    try:
        store.wait(keys, seconds(until - time.time()))
        return keys
    except Exception:
        return [key for key in keys if store.check([key])]


def gathered(store, name, order, until):
    """rank -> what it set under that name: leaders of groups hand theirs on, rank 0 reads those."""
    rank, world = order["rank"], order["world"]
    if rank % GROUP == 0:
        members = range(rank, min(rank + GROUP, world))
        there = awaited(store, ["%s/%d" % (name, each) for each in members], until)
        found = {key.rsplit("/", 1)[1]: store.get(key).decode() for key in there}
        store.set("%s/of/%d" % (name, rank), zlib.compress(json.dumps(found).encode(), 1))
    if rank:
        return {}
    leaders = ["%s/of/%d" % (name, each) for each in range(0, world, GROUP)]
    there = awaited(store, leaders, until + 2)
    whole = {}
    for key in leaders:
        if key in there:
            found = json.loads(zlib.decompress(store.get(key)).decode())
        else:
            first = int(key.rsplit("/", 1)[1])
            keys = ["%s/%d" % (name, each) for each in range(first, min(first + GROUP, world))]
            found = {
                each.rsplit("/", 1)[1]: store.get(each).decode()
                for each in keys
                if store.check([each])
            }
        whole.update({member: json.loads(text) for member, text in found.items()})
    return whole


def main():
    order = json.loads(sys.stdin.readline())
    failed = reach(order)
    if failed:
        say(**failed)
        return
    try:
        store = open_store(order)
    except Exception as error:
        say(failed="store", why=str(error).splitlines()[0])
        return
    rank = order["rank"]
    store.set("facts/%d" % rank, json.dumps(order["facts"]))
    until = time.time() + order["gather_s"]
    facts = gathered(store, "facts", order, until)
    if order["plant"] == "gone":
        os._exit(1)
    if rank == 0:
        store.set("go", repr(time.time()))
    awaited(store, ["go"], until + 5)
    skew = time.time() - float(store.get("go").decode()) if store.check(["go"]) else None
    result = watched(order)
    result["skew_s"] = skew
    store.set("result/%d" % rank, json.dumps(result))
    results = gathered(store, "result", order, time.time() + 3 + (order["work_s"] * 0.1))
    if rank == 0:
        say(gathered=True, facts=facts, results=results)
        sys.stdin.readline()  # the report is out
        store.set("out", "1")
        until = time.time() + 3
        while time.time() < until and store.add("left", 0) < len(results) - 1:
            time.sleep(0.05)
    else:
        awaited(store, ["out"], time.time() + OUT_S)
        store.add("left", 1)


def watched(order):
    """What the working process did until its end or the deadline."""
    argv = [sys.executable, os.path.abspath(__file__), "work"]
    folder = tempfile.mkdtemp(prefix="cudadoctor-")
    log = os.path.join(folder, "nccl.log")
    child = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=with_log(os.environ, log)
    )
    result = {"phase": "start", "at": 0, "pairs": []}

    assert child.stdin is not None
    assert child.stdout is not None
    lines = child.stdout

    def read():
        for line in lines:
            try:
                result.update(json.loads(line.decode()))
            except ValueError:
                pass

    reader = threading.Thread(target=read)
    reader.daemon = True
    reader.start()
    child.stdin.write(json.dumps(order).encode())
    child.stdin.close()
    until = time.time() + order["work_s"]
    while child.poll() is None and time.time() < until:
        time.sleep(0.05)
    if child.poll() is None:
        child.kill()
        result["hung"] = True
    else:
        reader.join(2.0)
        result["code"] = child.returncode
    try:
        with open(log, errors="replace") as lines_of_nccl:
            result.update(transports(lines_of_nccl))
    except OSError:
        pass
    shutil.rmtree(folder, ignore_errors=True)
    return dict(result)


def with_log(env, path):
    """The variables with NCCL's log on; what a user sends to a file of their own stays there."""
    if "NCCL_DEBUG_FILE" in env:
        return dict(env)
    own = {name: value for name, value in env.items() if name != "NCCL_DEBUG_SUBSYS"}
    own.update(NCCL_DEBUG="INFO", NCCL_DEBUG_FILE=path)
    return own


def transports(lines):
    """What NCCL's log says of its ways: {"network": its plugin, "via": {way: [channels, of them
    with GPUDirect RDMA]}, "warn": the first warning}; only what it does say.

    A channel is `... 1[0] -> 8[0] [send] via NET/IB/0/GDRDMA`, a plugin `Using network IB`.
    """
    found = {}  # type: dict[str, object]
    via = {}  # type: dict[str, list[int]]
    for line in lines:
        text = line.partition(" NCCL INFO ")[2].strip()
        if text.startswith("Using network "):
            found["network"] = text[len("Using network ") :][:40]
        elif text.startswith("Channel ") and " via " in text:
            words = text.rpartition(" via ")[2].split("/")
            way = "/".join(words[:2])[:40] if words[0] == "NET" else words[0].split()[0][:40]
            count = via.setdefault(way, [0, 0])
            count[0] += 1
            count[1] += "GDRDMA" in text
        elif " NCCL WARN " in line and "warn" not in found:
            found["warn"] = line.partition(" NCCL WARN ")[2].strip()[:300]
    if via:
        found["via"] = via
    return found


# --- the working process -------------------------------------------------------------------------


class Work:
    def __init__(self, order):
        self.order = order
        self.at = 0
        self.pairs = []
        self.store = None

    def phase(self, name):
        self.at += 1
        say(phase=name, at=self.at)

    def run(self):
        import torch
        import torch.distributed as dist

        self.torch, self.dist = torch, dist
        order = self.order
        cuda = order["backend"] == "nccl"
        self.device = "cuda:%d" % order["local"] if cuda else "cpu"
        if cuda:
            torch.cuda.set_device(order["local"])
        torch.set_num_threads(1)
        self.store = open_store(dict(order, hosts_store=False))
        if order["plant"] == "late":
            time.sleep(order["pair_s"] * 1.5)
        self.phase("pairs")
        step = 1
        while step < order["world"]:
            self.pair(step)
            step *= 2
        if order["plant"] == "hang":
            time.sleep(1e6)
        self.phase("group")
        if order["plant"] == "die":
            os.kill(os.getpid(), 9)
        self.begin("all", order["rank"], order["world"], order["work_s"])
        self.phase("all_reduce")
        ones = torch.ones(1 << 16, device=self.device)
        dist.all_reduce(ones)
        if float(ones.min()) != order["world"] or float(ones.max()) != order["world"]:
            say(wrong_sum=float(ones.min()))
        self.train()
        say(phase="done", at=self.at + 1)

    def begin(self, name, rank, size, limit_s):
        self.dist.init_process_group(
            self.order["backend"],
            store=self.dist.PrefixStore(name, self.store),
            rank=rank,
            world_size=size,
            timeout=seconds(limit_s),
        )

    def pair(self, step):
        """An all-reduce with one other rank; ranks without a partner in this round sit out.

        Both first say over the store that they are there: of a partner that is late or dead the
        network is not known, so that such a pair is not counted.
        """
        rank = self.order["rank"]
        other = rank ^ step
        if other >= self.order["world"]:
            return
        assert self.store is not None
        self.store.set("round/%d/%d" % (step, rank), "1")
        partner = "round/%d/%d" % (step, other)
        if not awaited(self.store, [partner], time.time() + self.limit_s(step)):
            return
        began, why = time.time(), None
        try:
            low = min(rank, other)
            self.begin("pair/%d/%d" % (step, low), int(rank > other), 2, self.order["pair_s"])
            value = self.torch.ones(1 << 10, device=self.device)
            self.dist.all_reduce(value)
            if float(value.sum()) != 2 << 10:
                why = "wrong sum"
        except Exception as error:
            why = str(error).splitlines()[0][:300]
        try:
            self.dist.destroy_process_group()
        except Exception:
            pass
        self.pairs.append({"other": other, "why": why, "seconds": time.time() - began})
        say(pairs=self.pairs)

    def limit_s(self, step):
        """The partner may have lost the time limit of every earlier round to a dead rank."""
        return self.order["pair_s"] * step.bit_length()

    def train(self):
        torch = self.torch
        self.phase("ddp")
        torch.manual_seed(0)
        layers = (torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
        model = torch.nn.Sequential(*layers).to(self.device)
        ids = [self.order["local"]] if self.device != "cpu" else None
        trained = torch.nn.parallel.DistributedDataParallel(model, device_ids=ids)
        torch.manual_seed(1 + self.order["rank"])
        own = []
        for step in range(5):
            data = torch.randn(32, 64, device=self.device)
            began = time.time()
            square = torch.randn(512, 512, device=self.device)
            for _ in range(10):
                square = (square @ square).clamp(-1, 1)
            float(square.sum())
            own.append(time.time() - began)
            model.zero_grad()
            trained(data).pow(2).mean().backward()
            if self.order["plant"] == "gradients" and step == 4:
                model[0].weight.grad[0, 0] += 1
            with torch.no_grad():
                for part in model.parameters():
                    part -= 0.1 * part.grad
        digest = hashlib.sha256()
        for part in model.parameters():
            digest.update(part.grad.detach().cpu().contiguous().numpy().tobytes())
        say(digest=digest.hexdigest()[:16], own_s=sorted(own)[len(own) // 2])


def flight_record():
    """The last collectives of this rank as torch's flight recorder has them; None without one."""
    try:
        from torch._C._distributed_c10d import _dump_nccl_trace_json

        entries = json.loads(_dump_nccl_trace_json()).get("entries", [])
        return ["%s %s" % (each.get("profiling_name"), each.get("state")) for each in entries[-3:]]
    except Exception:
        return None


def work():
    order = json.loads(sys.stdin.read())

    def dump():
        time.sleep(max(1.0, order["work_s"] - 2.0))
        recorded = flight_record()
        if recorded:
            say(flight=recorded)

    if order["backend"] == "nccl":
        watcher = threading.Thread(target=dump)
        watcher.daemon = True
        watcher.start()
    try:
        Work(order).run()
    except Exception as error:
        say(error=str(error).splitlines()[0][:500], kind=type(error).__name__)
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    work() if sys.argv[1:] == ["work"] else main()
