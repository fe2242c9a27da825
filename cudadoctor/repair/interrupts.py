"""Signals while an environment is being changed: heard, and acted upon between two steps."""

from __future__ import annotations

import contextlib
import os
import signal
from types import FrameType, TracebackType
from typing import Any

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")


class Interrupts:
    """As a context: no signal ends the doctor in the middle; `heard` says which one came first."""

    def __init__(self) -> None:
        self.heard: int | None = None
        self._before: dict[int, Any] = {}

    def __call__(self) -> bool:
        return self.heard is not None

    def __enter__(self) -> Interrupts:
        for name in _NAMES:
            number = getattr(signal, name, None)
            # One that is ignored (nohup, a job in the background) stays so.
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._hear)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _hear(self, number: int, _: FrameType | None) -> None:
        if self.heard is None:
            self.heard = number
            # Not through sys.stderr, in the middle of whose own work the signal may have come.
            with contextlib.suppress(OSError):
                os.write(2, b"\ncudadoctor: stopping as soon as the environment is whole\n")

    @property
    def code(self) -> int:
        """The exit code of a program that such a signal ended."""
        return 128 + (self.heard or signal.SIGINT)
