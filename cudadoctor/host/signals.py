"""The signals that end a program: taken over in one way, and given back.

`take` hands them to a function for good. `Interrupts` is a context in which they are noted, so that
a loop can ask between two steps whether to stop.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

_T = TypeVar("_T")

ENDING = ("SIGINT", "SIGTERM", "SIGHUP")
ENDED_BY = 128
"""Added to the number of the signal in an exit code: Ctrl-C ends with 130."""


def take(
    handler: Callable[[int, FrameType | None], object], names: tuple[str, ...] = ENDING
) -> dict[int, Any]:
    """Hand these signals to a function; returns the handlers that they had before.

    One that is ignored (nohup, a job in the background) stays so. Only the main thread may do this:
    in another one nothing is taken.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    numbers = [number for name in names if (number := getattr(signal, name, None)) is not None]
    heeded = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in heeded}


def end_now(number: int) -> None:
    """End this process at once, as a shell shows a program that the signal ended."""
    os._exit(ENDED_BY + number)


class Interrupts:
    """A context in which signals end nothing; `heard` is the number of the first one.

    on_first, on_next: called with the number of the first signal, and of each later one. Either may
    run in the middle of anything: it writes with os.write, and raises nothing.
    """

    def __init__(
        self,
        on_first: Callable[[int], object] = lambda _: None,
        on_next: Callable[[int], object] = lambda _: None,
        names: tuple[str, ...] = ENDING,
    ) -> None:
        self.received: int | None = None
        self._on_first = on_first
        self._on_next = on_next
        self._names = names
        self._before: dict[int, Any] = {}

    def __call__(self) -> bool:
        """Whether to stop now."""
        return self.received is not None

    @property
    def code(self) -> int:
        """The exit code of a program that such a signal ended."""
        return ENDED_BY + (self.received or signal.SIGINT)

    def __enter__(self) -> Interrupts:
        self._before = take(self._hear, self._names)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def given_back(self, work: Callable[..., _T]) -> Callable[..., _T]:
        """The same work with the signals as they were before: a question that Ctrl-C ends."""

        def done(*words: Any) -> _T:
            self.__exit__()
            try:
                return work(*words)
            finally:
                self.__enter__()

        return done

    def _hear(self, number: int, _: FrameType | None) -> None:
        act = self._on_next if self() else self._on_first
        self.received = self.received or number
        act(number)
