"""Which rank of which job this process is, by the variables of its launcher."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from cudadoctor.model.machine import OptInt, OptStr


class Launch(Struct, frozen=True, kw_only=True):
    """A rank as its launcher numbered it.

    local: its number on its node. master, port: of the c10d store. hosts_store: this rank has to
    open the store (torchrun's agent does it for its ranks). attempt: tells restarts apart.
    """

    launcher: str
    rank: int
    world: int
    local: int
    node: int
    master: OptStr
    port: OptInt
    hosts_store: bool
    attempt: str = "0"


_LAUNCHERS = (
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK"),
    ("srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NODEID"),
    ("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", ""),
    ("mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", ""),
)
FIRST_PORT = 20_000


def launch_of(env: Mapping[str, str]) -> Launch | None:
    """The rank that these variables describe; None where no launcher has set them."""
    for launcher, rank, world, local, node in _LAUNCHERS:
        numbers = [_number(env, name) for name in (rank, world, local, node)]
        if numbers[0] is None or not numbers[1] or numbers[0] >= numbers[1]:
            continue
        local_rank = numbers[2] or 0
        master, port = env.get("MASTER_ADDR"), _number(env, "MASTER_PORT")
        if launcher == "srun":
            master = master or env.get("SLURM_LAUNCH_NODE_IPADDR")
            job = _number(env, "SLURM_JOB_ID")
            port = port or (None if job is None else FIRST_PORT + job % 20_000)
        agent = env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        return Launch(
            launcher=launcher,
            rank=numbers[0],
            world=numbers[1],
            local=local_rank,
            node=numbers[3] if numbers[3] is not None else numbers[0] - local_rank,
            master=master,
            port=port,
            hosts_store=numbers[0] == 0 and not agent,
            attempt=env.get("TORCHELASTIC_RESTART_COUNT", "0"),
        )
    return None


def is_rank_of_torchrun(env: Mapping[str, str]) -> bool:
    """Whether torchrun has started this process beside others: a `check` is one of all ranks then.

    Only torchrun's own mark counts. A pod of a training operator sets RANK for whatever is run in
    it, and a check that somebody starts there by hand would wait for ranks that never come.
    """
    found = launch_of(env) if "TORCHELASTIC_RUN_ID" in env else None
    return found is not None and found.world > 1


def _number(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name, "")
    return int(text) if text.isdecimal() and len(text) < 10 else None
