"""The lines that a script of inside/ printed before it ended, hung or died."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from cudadoctor.host.children import Environment, Ran
from cudadoctor.host.local import Host
from cudadoctor.model.machine import Json, OptBool, OptFloat, OptInt, OptStr, is_start

SLOW = "with persistence mode off, a machine with many GPUs can take 30 s to initialize them"
Progress = Callable[[str, bool], None]
"""Called as progress(what, going): something was started or has ended."""


class Shown:
    """Shows the one thing that is waited for now."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._what: OptStr = None

    def now(self, what: OptStr) -> None:
        """The one before has ended, and this was started; None for nothing."""
        if self._what:
            self._progress(self._what, False)
        self._what = what
        if what:
            self._progress(what, True)


def no_progress(_: str, __: bool) -> None:
    """Report no progress."""


class Patience(Struct, frozen=True, kw_only=True):
    """How long to wait for the driver, in seconds.

    start_s, call_s: the time after which silence means a sick driver: of the load and the init,
    which may start every GPU, and of each call after them. The others stop the wait and prove
    nothing. nvml_s: for the child that asks NVML, and the one that asks libcuda. smi_s: for
    nvidia-smi, which is started beside an NVML that is silent for beside_s. total_s: for all.
    """

    start_s: float = 60.0
    call_s: float = 10.0
    nvml_s: float = 72.0
    smi_s: float = 62.0
    beside_s: float = 1.5
    total_s: float = 74.0

    def capped(self, timeout_s: OptFloat) -> Patience:
        """With the user's own limit for each probe."""
        limit_s = math.inf if timeout_s is None else timeout_s
        return replace(
            self,
            nvml_s=min(self.nvml_s, limit_s),
            smi_s=min(self.smi_s, limit_s),
            beside_s=min(self.beside_s, limit_s / 2),
            total_s=min(self.total_s, limit_s + 1),
        )

    def of(self, call: str) -> float:
        """How long a call may be silent before that proves anything."""
        return self.start_s if is_start(call) else self.call_s


class Streamed(Struct, frozen=True, kw_only=True):
    """What a child said, and how it ended.

    call: the last call that it announced and did not come back from; gpu: which GPU that was about.
    done: it came to its end. timed_out: it was given up. hung: so long after its call that the
    driver is sick. signal: what killed it. why: any bad end, in words.
    """

    lines: tuple[Json, ...] = ()
    call: OptStr = None
    gpu: OptInt = None
    done: bool = False
    timed_out: bool = False
    hung: bool = False
    signal: OptInt = None
    why: OptStr = None

    def of(self, kind: str) -> tuple[Json, ...]:
        """The lines of one kind, in order."""
        return tuple(line for line in self.lines if line["kind"] == kind)

    def last(self, kind: str) -> Json:
        """The last line of a kind, empty where there is none."""
        return ({}, *self.of(kind))[-1]

    def text(self, kind: str, field: str) -> OptStr:
        """A field of the last line of a kind, None where there is none."""
        value = self.last(kind).get(field)
        return str(value) if value else None

    @property
    def unloaded(self) -> OptStr:
        """Why the loader found no such library, in its words; None where it was not heard."""
        line = self.last("not-loaded")
        return str(line.get("why")) if line else None

    @property
    def loads(self) -> OptBool:
        """Whether the library was loaded."""
        return True if self.last("loaded") else False if self.unloaded is not None else None

    @property
    def unsure(self) -> bool:
        """Whether it was cut off so that nobody knows if the driver hangs."""
        return not (self.done or self.hung or self.signal)

    @property
    def fatal_gpu(self) -> bool:
        """Whether a question about one GPU ended it: without that one it may go further."""
        return self.gpu is not None and (self.hung or not self.timed_out)

    def stopped(self, process: str) -> str:
        """Where and why it did not come to its end, as a sentence. process: what it is for."""
        where = self.call or process
        of_gpu = "" if self.gpu is None else f" of GPU {self.gpu}"
        slow = f"; {SLOW}" if self.timed_out and not self.hung else ""
        return f"{where}{of_gpu}: {self.why}{slow}"


def asked(
    host: Host,
    script: str,
    *args: str,
    patience: Patience,
    timeout_s: float,
    env: Environment | None = None,
    progress: Progress = no_progress,
) -> Streamed:
    """Run a script that announces each call to the driver. timeout_s: for all of it."""
    shown = Shown(progress)

    def on_line(text: str) -> float:
        """Shows what is waited for, and gives each call its time."""
        call = _call(line_of(text) or {})
        shown.now(f"the driver: {call}" if call else None)
        return patience.of(call) if call else patience.start_s

    try:
        ran = host.inside(script, *args, timeout_s=timeout_s, env=env, on_line=on_line)
    finally:
        shown.now(None)
    return streamed(ran, patience)


def streamed(ran: Ran, patience: Patience = Patience()) -> Streamed:  # noqa: B008 - immutable
    """The lines of a child that ran; whatever is no line of ours is left out."""
    lines = tuple(filter(None, map(line_of, ran.stdout.splitlines())))
    last = lines[-1] if lines else {}
    done = last.get("kind") == "done"
    call, gpu = _call(last), last.get("gpu")
    timed_out = ran.timed_out and not done
    silent_s = ran.silent_s or 0.0
    return Streamed(
        lines=lines,
        call=call,
        gpu=gpu if call and type(gpu) is int else None,
        done=done,
        timed_out=timed_out,
        hung=timed_out and call is not None and silent_s >= patience.of(call),
        signal=None if done else ran.signal,
        why=None if done else _bad_end(ran),
    )


def _call(line: Mapping[str, Any]) -> OptStr:
    """The call that a line announces."""
    return str(line.get("call") or "") or None if line.get("kind") == "calling" else None


def line_of(raw: str | bytes) -> Json | None:
    """What a child of ours says in a line; None where it is cut off, or none of ours."""
    try:
        line = msgspec.json.decode(raw, type=dict[str, Any])
    except (ValueError, RecursionError):
        return None
    return line if isinstance(line.get("kind"), str) else None


def _bad_end(ran: Ran) -> str:
    if ran.why is not None:
        return ran.why
    if ran.missing:
        return "cudadoctor's own Python interpreter cannot be started"
    if ran.signal is not None:
        return f"the process was killed by signal {ran.signal}"
    words = list(filter(None, map(str.strip, ran.stderr.splitlines())))
    return words[-1][:200] if words else f"exit status {ran.code} without a result"
