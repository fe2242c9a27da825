"""The commands `compare` and `cluster`: gather the facts of machines, show what differs."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from subprocess import Popen
from time import monotonic

from cudadoctor.cli import saved
from cudadoctor.cli.looking import note
from cudadoctor.cli.options import Options, refuse
from cudadoctor.cli.output import width, written
from cudadoctor.cli.speech import current, say
from cudadoctor.cluster import judging, page
from cudadoctor.cluster.differences import Tally, table_of
from cudadoctor.cluster.launch import Launch, launch_of
from cudadoctor.host import children, local
from cudadoctor.model.machine import Json, Machine, Strings
from cudadoctor.probes.examine import Look, examine


def compare(files: Strings, options: Options) -> int:
    """0 where the machines behind the files do not differ, 1 where they do."""
    gc.enable()  # many documents are no short life
    tally = Tally()
    unread = 0
    seen: set[str] = set()
    try:
        for found in saved.machines(files):
            if found.machine is None:
                unread += 1
                note(found.error or found.name)
                continue
            table = table_of(found.machine)
            if not table:
                unread += 1
                note(say("{name} tells nothing about a machine", name=found.name))
                continue
            host = found.machine.identity.host
            name = host if host and host not in seen else found.name
            seen.add(name)
            tally.add(name, table)
    except saved.SavedError as error:
        refuse(str(error))
    if len(tally.hosts) < 2:
        refuse("compare needs the facts of at least two hosts; save them with: cudadoctor facts")
    if not tally.shared():
        refuse("these hosts have no known fact in common; save them with: cudadoctor facts")
    differences = tally.differences()
    if options.as_json:
        from cudadoctor.render import json_v1

        written(json_v1.dumps(page.document(differences, tally.hosts)) + "\n", options.output)
    else:
        count = len(tally.hosts)
        lines = [page.alike(count, tally.shared(), current())]
        if differences:
            lines = [page.headline(differences, count, current())]
            lines += page.rows(differences, width(), current())
        written("".join(f"{line}\n" for line in lines), options.output)
    sys.stdout.flush()
    return 2 if unread else int(bool(differences))


# --- a launched job ------------------------------------------------------------------------------

SCRIPT = Path(__file__).parent / "inside" / "rank.py"
LIMIT_S = 120.0
"""Without --timeout, how long the work of all ranks may take; half of it for their arrival."""


def cluster(options: Options) -> int:
    """On rank 0: 0 healthy, 1 broken, 3 nobody answered. The other ranks end with 0."""
    found = launch_of(os.environ)
    if found is None:
        refuse(
            "cluster runs on every rank of a job; start it with a launcher, for example: "
            "torchrun --nproc-per-node 2 -m cudadoctor cluster"
        )
    if found.master is None or found.port is None:
        refuse("set MASTER_ADDR and MASTER_PORT: {launcher} does not", launcher=found.launcher)
    work_s = options.timeout or LIMIT_S
    machine = examine(Look(python=options.python, depth="fast"), lambda *_: None)
    own = order_of(found, machine, work_s)
    names = dict(part.partition(":")[::2] for part in options.plant)
    own["plant"] = next((kind for kind, rank in names.items() if rank == str(found.rank)), "")
    session = _Session(found, options)
    host = local.this_host()
    child = children.start(
        [machine.python.executable or sys.executable, "-u", str(SCRIPT)],
        env=dict(os.environ),
        cwd=host.place,
        stdin=subprocess.PIPE,
    )
    session.child = child
    assert child.stdin is not None
    child.stdin.write((json.dumps(own) + "\n").encode())
    child.stdin.flush()
    ran = children.collected(child, monotonic(), 3 * work_s + 60, None, session.line)
    if session.code is not None:
        return options_code(session.code, options)
    if session.failed:
        return options_code(session.say_failed(), options) if found.rank == 0 else 0
    if found.rank == 0:
        why = ran.why or " ".join(ran.stderr.strip().splitlines()[-1:]) or f"exit code {ran.code}"
        note(say("rank 0 could not gather the answers: {why}", why=why))
        return options_code(3, options)
    return 0


def options_code(code: int, options: Options) -> int:
    """The code of rank 0, or 0 for a launcher that must not see it."""
    return 0 if options.exit_zero else code


def order_of(found: Launch, machine: Machine, work_s: float) -> Json:
    """What the rank's script is to do, with the facts that it hands on."""
    table = table_of(machine)
    with suppress(OSError):
        table |= rank_facts()
    env = {fact: value for fact, value in table.items() if fact.partition(".")[0] == "env"}
    for fact in env:
        del table[fact]
    interfaces: list[str] = []
    with suppress(OSError):
        interfaces = [path.name for path in sorted(Path("/sys/class/net").iterdir())]
    works = machine.torch.build == "cuda" and len(machine.gpus or ()) > found.local
    return {
        "rank": found.rank,
        "world": found.world,
        "local": found.local,
        "master": found.master,
        "port": found.port,
        "hosts_store": found.hosts_store,
        "attempt": found.attempt,
        "backend": "nccl" if works else "gloo",
        "dial_s": max(5.0, work_s / 4),
        "gather_s": work_s / 2,
        "pair_s": min(10.0, work_s / 8),
        "work_s": work_s,
        "facts": {
            "host": machine.identity.host or "?",
            "node": found.node,
            "backend": "nccl" if works else "gloo",
            "table": table if found.local == 0 else None,
            "env": env,
            "interfaces": interfaces,
            "infiniband": active_infiniband(),
        },
    }


def rank_facts() -> dict[str, str]:
    """What only matters beside other nodes: the driver of the network cards, network mounts."""
    found = {}
    version = Path("/sys/module/mlx5_core/version")
    if version.exists():
        found["mlx5_core"] = version.read_text(encoding="utf-8").strip()[:100]
    found["mounts"] = ""
    for line in Path("/proc/mounts").read_text(encoding="utf-8", errors="replace").splitlines():
        words = line.split()
        if len(words) > 2 and words[2] in _NETWORK_FILE_SYSTEMS:
            found[f"mounts.{words[1]}"] = f"{words[2]} {words[0]}"[:200]
    return found


def active_infiniband(root: Path = Path("/sys/class/infiniband")) -> list[str]:
    """The InfiniBand ports that are active ("mlx5_0:1"). RoCE is left out: it may be a host's only
    Ethernet, which nobody wants NCCL to take."""
    found = []
    with suppress(OSError):
        for port in sorted(root.glob("*/ports/*")):
            state = (port / "state").read_text(encoding="utf-8")
            layer = (port / "link_layer").read_text(encoding="utf-8")
            if "ACTIVE" in state and layer.strip() == "InfiniBand":
                found.append(f"{port.parent.parent.name}:{port.name}")
    return found


_NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "fuse.sshfs", "wekafs", "9p"}
)


class _Session:
    """Rank 0's answers, and what becomes of them."""

    def __init__(self, found: Launch, options: Options) -> None:
        self.found = found
        self.options = options
        self.child: Popen[bytes] | None = None
        self.code: int | None = None
        self.failed: Json = {}

    def line(self, text: str) -> float | None:
        """A line of the rank's script; the report is printed before the other ranks are let go."""
        try:
            said = json.loads(text)
        except ValueError:
            return None
        if not isinstance(said, dict):
            return None  # torch may print there too
        if said.get("failed"):
            self.failed = said
            if self.found.local == 0 and self.found.rank:
                self.say_failed()
        if said.get("gathered"):
            self._report(said)
            if self.child is not None and self.child.stdin is not None:
                with suppress(OSError):
                    self.child.stdin.write(b"out\n")
                    self.child.stdin.flush()
        return None

    def say_failed(self) -> int:
        master, port = self.found.master, self.found.port
        template = {
            "resolve": "rank {rank} ({host}): MASTER_ADDR '{master}' cannot be resolved: {why}",
            "dial": "rank {rank} ({host}): cannot connect to {master}, port {port}: {why}",
        }.get(self.failed["failed"], "rank {rank} ({host}): cannot open the store: {why}")
        host = os.uname().nodename
        values = {"rank": self.found.rank, "host": host, "master": master, "port": port}
        note(say(template, **values, why=self.failed["why"]))
        return 1

    def _report(self, said: Json) -> None:
        facts = {int(rank): own for rank, own in said["facts"].items()}
        results = {int(rank): own for rank, own in said["results"].items()}
        nccl = bool(facts) and all(own.get("backend") == "nccl" for own in facts.values())
        judged = judging.judge(self.found.world, facts, results, nccl=nccl)
        self.code = int(judged.broken)
        if self.options.as_json:
            from cudadoctor.render import json_v1

            text = json_v1.dumps(page.cluster_document(judged)) + "\n"
        else:
            lines = page.cluster_lines(judged, width(), current())
            text = "".join(f"{line}\n" for line in lines)
        written(text, self.options.output)
