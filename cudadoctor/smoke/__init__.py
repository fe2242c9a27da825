"""The training step: torch imported once in the examined interpreter, then proven in stages.

The child is started with `python -c` in the user's own environment, and in a folder of the
doctor's: a torch.py or a numpy.py beside the user is reported by its name, and never run. It writes
to the scratch folder only.

The tests have no GPU: what only a GPU runs (its share of memory, NCCL, formats by generation) is
not exercised by them; the order of things is, with a CPU in its place.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from cudadoctor.host.local import Host, LocalHost
from cudadoctor.model.machine import Gpu
from cudadoctor.probes import Looked
from cudadoctor.smoke.inside.boot import BOOT
from cudadoctor.smoke.lines import read_line
from cudadoctor.smoke.manners import as_words
from cudadoctor.smoke.reading import read

INSIDE = Path(__file__).parent / "inside"
Progress = Callable[[str], None]


def run_smoke(
    host: Host,
    python: str,
    *,
    mode: Literal["import", "full"],
    device: str | None = None,
    ranks: int | None = None,
    gpus: tuple[Gpu, ...] | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 60.0,
    on_line: Progress | None = None,
    stage_limit_s: float | None = None,
    plant: str | None = None,
    pretend: int = 0,
    start: Literal["fork", "spawn"] | None = None,
) -> Looked:
    """Import torch in `python` and, in mode "full", run the stages.

    Fills torch.imported, libraries.mapped and smoke, whatever happens to the child.

    device: cpu, cuda or cuda:N; None takes what is free. gpus: what the driver says of them, so
    that GPUs in use are left alone; None where it says nothing. on_line: called with the name of
    what begins ("import", "matmul", ...). stage_limit_s: a lower limit for every stage.
    start: how workers begin; None decides by system. For tests, plant: "stage:fault", to see a
    stage fail; pretend: so many GPUs that the CPU plays.
    """
    scratch = getattr(host, "scratch", None) or ""
    with _Folder(scratch) as folder:
        words = [f"mode={mode}", f"until={max(1.0, timeout_s - 1.0):g}", f"scratch={folder}"]
        words += [f"device={device}"] if device else []
        words += [f"ranks={ranks}"] if ranks else []
        words += [f"limit={stage_limit_s:g}"] if stage_limit_s else []
        words += [f"plant={plant}"] if plant else []
        words += [f"start={start}"] if start else []
        words += [f"pretend={pretend}"] if pretend else []
        argv = (python, "-c", BOOT, str(INSIDE), *words, *as_words(gpus))
        own = {**(host.env if env is None else env), **_caches(folder)}
        if on_line is not None and isinstance(host, LocalHost):
            tell = told_by(on_line)
            ran = host.run(*argv, timeout_s=timeout_s, env=own, on_line=tell)
        else:
            ran = host.run(*argv, timeout_s=timeout_s, env=own)
    return read(ran, mode, python)


class _Folder:
    """A folder of its own below the scratch folder, "" where none can be made."""

    def __init__(self, parent: str) -> None:
        self._parent = parent or None
        self._made: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> str:
        try:
            self._made = tempfile.TemporaryDirectory(
                prefix="cudadoctor-smoke-", dir=self._parent, ignore_cleanup_errors=True
            )
        except OSError:
            # A full or read-only disk: the stages that need a file say so.
            return ""
        return self._made.name

    def __exit__(self, *_: object) -> None:
        if self._made is not None:
            self._made.cleanup()


def _caches(folder: str) -> dict[str, str]:
    """Where torch and CUDA keep what they compile: some make the folder at import."""
    names = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH")
    return {name: f"{folder}/{name.lower()}" for name in names} if folder else {}


def told_by(tell: Progress) -> Progress:
    """Of the child's lines, pass on the name of every stage that begins."""

    def on_line(line: str) -> None:
        found = read_line(line) if line.startswith('{"kind": "start"') else None
        if found and found["kind"] == "start" and not found.get("rank"):
            tell(found["stage"])

    return on_line
