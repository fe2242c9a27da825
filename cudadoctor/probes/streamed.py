"""The lines that a script of inside/ printed before it ended, hung or died."""

from __future__ import annotations

import msgspec

from cudadoctor.host import Ran


class Streamed(msgspec.Struct, frozen=True, kw_only=True):
    """What a child said, and how it ended.

    call: the last call that it announced and did not come back from. done: it came to its end.
    hung: no answer within the limit. signal: what killed it. why: any other bad end.
    """

    lines: tuple[dict[str, object], ...] = ()
    call: str | None = None
    done: bool = False
    hung: bool = False
    signal: int | None = None
    why: str | None = None

    def of(self, kind: str) -> tuple[dict[str, object], ...]:
        """The lines of one kind, in order."""
        return tuple(line for line in self.lines if line["kind"] == kind)

    def last(self, kind: str) -> dict[str, object]:
        """The last line of a kind, empty where there is none."""
        found = self.of(kind)
        return found[-1] if found else {}


def streamed(ran: Ran) -> Streamed:
    """The lines of a child that ran; whatever is no line of ours is left out."""
    lines = _lines(ran.stdout)
    done = bool(lines) and lines[-1]["kind"] == "done"
    last = lines[-1] if lines else {}
    call = last.get("call") if last.get("kind") == "calling" else None
    return Streamed(
        lines=tuple(lines),
        call=str(call) if call else None,
        done=done,
        hung=ran.timed_out and not done,
        signal=None if done else ran.signal,
        why=None if done else _bad_end(ran),
    )


def _lines(text: str) -> list[dict[str, object]]:
    found = []
    for raw in text.splitlines():
        if not raw.startswith("{"):
            continue
        try:
            line = msgspec.json.decode(raw)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            continue
        if isinstance(line, dict) and isinstance(line.get("kind"), str):
            found.append(line)
    return found


def _bad_end(ran: Ran) -> str | None:
    if ran.why is not None:
        return ran.why
    if ran.missing:
        return "the interpreter of cudadoctor cannot be started"
    if ran.signal is not None:
        return f"the process was killed by signal {ran.signal}"
    words = [line for line in ran.stderr.splitlines() if line.strip()]
    return words[-1].strip()[:200] if words else f"exit status {ran.code} without a result"
