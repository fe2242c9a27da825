"""The training step: torch imported once in the examined interpreter, then proven in stages.

The child is started with `python -c` in the user's own environment, and in a folder of the
doctor's: a torch.py or a numpy.py beside the user is reported by its name, and never run. It writes
to the scratch folder only.

The tests have no GPU: what only a GPU runs (its share of memory, NCCL, formats by generation) is
not exercised by them; the order of things is, with a CPU in its place.
"""

import contextlib
import tempfile
from collections.abc import Callable, Mapping
from math import inf
from pathlib import Path
from typing import Literal

from cudadoctor.host.local import Host, LocalHost
from cudadoctor.model.machine import Gpu, Json, OptInt, OptStr
from cudadoctor.probes import Looked
from cudadoctor.smoke.inside.spec import FULL, IN_USE
from cudadoctor.smoke.inside.wire import BOOT
from cudadoctor.smoke.reading import Start, read, read_line

INSIDE = Path(__file__).parent / "inside"
Progress = Callable[[str], None]
BUSY_PERCENT = 25
"""A screen, a browser or a video use less of a GPU; training uses more."""
HELD = 0.2
"""So much of a GPU's memory is held by work, where nobody says how busy it is."""
MPS_SERVER = "nvidia-cuda-mps-server"


def run_smoke(
    host: Host,
    python: str,
    *,
    mode: Literal["import", "full"],
    device: OptStr = None,
    ranks: OptInt = None,
    compiles: bool = False,
    gpus: tuple[Gpu, ...] | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 60.0,
    on_line: Progress | None = None,
    **planted: object,
) -> Looked:
    """Import torch in `python` and, in mode "full", run the stages.

    Fills torch.imported, libraries.mapped and smoke, whatever happens to the child.

    device: cpu, cuda or cuda:N; None takes what is free. gpus: what the driver says of them, so
    that GPUs in use are left alone; None where it says nothing. compiles: also try torch.compile.
    on_line: called with the name of
    what begins ("import", "matmul", ...). For tests, planted: what else a Spec knows, as `plant`,
    "stage:fault", to see a stage fail.
    """
    with contextlib.ExitStack() as stack:
        folder = ""
        with contextlib.suppress(OSError):  # a full or read-only disk: stages that need it say so
            made = tempfile.TemporaryDirectory(
                prefix="cudadoctor-smoke-",
                dir=getattr(host, "scratch", None) or None,
                ignore_cleanup_errors=True,
            )
            folder = stack.enter_context(made)
        options = {
            "mode": mode,
            "until": f"{max(1.0, timeout_s - 1.0):g}",
            "scratch": folder,
            "device": device,
            "ranks": ranks,
            "compile": int(compiles),
            **planted,
            "careful": int(gpus is None or any(gpu.mig for gpu in gpus)),
        }
        words = [f"{name}={value}" for name, value in options.items() if value]
        words += [f"skip={bus}|{position}|{reason}" for bus, position, reason in skipped(gpus)]
        own = dict(host.env if env is None else env)
        if folder:
            # Where torch and CUDA keep what they compile: some make the folder at import.
            names = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH")
            own |= {name: f"{folder}/{name.lower()}" for name in names}
        more: Json = {}
        if on_line is not None and isinstance(host, LocalHost):
            more["on_line"] = stages_begun(on_line)
        argv = (python, "-c", BOOT, str(INSIDE), *words)
        ran = host.run(*argv, timeout_s=timeout_s, env=own, **more)
    return read(ran, mode, python)


def stages_begun(say: Progress) -> Progress:
    """Of the child's lines, pass on the name of every stage that begins."""

    def on_line(line: str) -> None:
        found = read_line(line)
        if isinstance(found, Start) and not found.rank:
            say(found.stage)

    return on_line


# --- which GPUs a guest leaves alone --------------------------------------------------------------


def skipped(gpus: tuple[Gpu, ...] | None) -> tuple[tuple[str, int, str], ...]:
    """The PCI address, the position in the tuple and the reason of each GPU to leave alone."""
    return tuple(
        (short_bus_id(gpu.bus_id), position, reason)
        for position, gpu in enumerate(gpus or ())
        if (reason := _reason(gpu))
    )


def short_bus_id(bus_id: OptStr) -> str:
    """0000:41:00.0, as CUDA writes it, of NVML's 00000000:41:00.0; "" where it is not known."""
    domain, colon, rest = (bus_id or "").partition(":")
    return f"{domain[-4:]}{colon}{rest}".lower()


def _reason(gpu: Gpu) -> str:
    if gpu.code:
        return "the driver cannot reach the GPU"
    if gpu.compute_mode == "prohibited":
        return "the GPU's compute mode is prohibited"
    if gpu.mig:
        return ""  # what its other slices do is theirs; the child looks at its own
    others = gpu.processes or ()
    # Its server is how several programs share a GPU that takes only one.
    shared = any(other.name == MPS_SERVER for other in others)
    named = ", ".join(f"{other.name or 'a process'} ({other.pid})" for other in others[:3])
    by = f" by {named}" if named else ""
    if gpu.compute_mode == "exclusive" and others and not shared:
        return f"the GPU's compute mode is exclusive, and it is used{by}"
    if gpu.utilization is not None and gpu.utilization > BUSY_PERCENT:
        return f"the GPU is busy ({gpu.utilization}%{by})"
    held = sum(other.memory_bytes or 0 for other in others)
    if gpu.utilization is None and held > HELD * (gpu.memory_bytes or inf):
        return f"the GPU's memory is used{by}"
    if gpu.memory_bytes and gpu.memory_used_bytes is not None:
        used = gpu.memory_used_bytes / gpu.memory_bytes
        if used > FULL:
            return f"{100 * used:.0f}{IN_USE}"
    return ""
