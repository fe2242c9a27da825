"""Start of the program: run the command line, and never end in a traceback."""

# ruff: noqa: E402 - the path is settled before anything else is looked for on it

from contextlib import suppress

from cudadoctor.cli import fast

fast.settle()

import errno
import gc
import io
import os
import signal
import sys
import threading
from types import FrameType

from cudadoctor.host import signals

FAILED = 4
TIDYING_S = 2.0


_RECEIVED: list[int] = []
_UNWRITABLE = (errno.ENOSPC, errno.EFBIG, errno.EIO, errno.EDQUOT)
"""What a stream says that takes no more; of all that is written, only stdout may still say it."""


def main() -> None:
    """Run the command line and exit with its code."""
    # Nothing here makes garbage that matters in so short a life; collecting it costs a tenth.
    gc.disable()
    # Threads that wait for children are heard at once, not after 5 ms of the others' work.
    sys.setswitchinterval(0.0005)
    _fill_closed_streams()
    # Children have sessions of their own: whatever ends the doctor must let it end them.
    signals.take(_interrupt)
    try:
        code = _guarded()
    except KeyboardInterrupt:
        code = _interrupted()
    _leave(code)


def _fill_closed_streams() -> None:
    """Where a stream was closed at the start, no pipe of ours may take its place."""
    if None not in (sys.stdin, sys.stdout, sys.stderr):
        return
    with suppress(OSError):  # a bare chroot without /dev/null
        while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
            pass
        os.close(number)
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, io.TextIOWrapper(io.BytesIO()))


def _interrupt(number: int, _: FrameType | None) -> None:
    """The first signal tidies and ends the process, here: no other disturbs it.

    Nothing is raised. An exception out of the blue is lost in a callback of the interpreter, and
    can crash a library in the middle of its own work.
    """
    _RECEIVED.append(number)
    if len(_RECEIVED) > 1:
        return
    late = threading.Timer(TIDYING_S, os._exit, (_interrupted(),))
    late.daemon = True
    with suppress(RuntimeError):  # no thread may be started: tidy without a limit
        late.start()
    try:
        _tidy()
    finally:
        os._exit(_interrupted())


def _tidy() -> None:
    # Looked up, not imported: the signal may have come in the middle of that import.
    end = getattr(sys.modules.get("cudadoctor.host.local"), "close_host", None)
    if end is not None:
        end()
    if os.isatty(2):
        os.write(2, b"\r\x1b[2K\x1b[?25h")  # the line of the spinner, and the cursor it hid


def _interrupted() -> int:
    return signals.ENDED_BY + (_RECEIVED[0] if _RECEIVED else signal.SIGINT)


def _guarded() -> int:
    from cudadoctor.host import local

    _escape_unencodable()
    try:
        fast.begin_look(sys.argv[1:])
        return _run(sys.argv[1:])
    except KeyboardInterrupt:
        return _interrupted()
    except BrokenPipeError:
        _forget_stdout()
        return 0
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _UNWRITABLE and error.filename is None:
            # A full disk behind stdout is not our failure: one sentence, and the code of wrong use.
            from cudadoctor.cli.options import WrongUse
            from cudadoctor.cli.speech import say

            _forget_stdout()
            reason = error.strerror
            return WrongUse(say("cannot write to stdout: {reason}", reason=reason)).report()
        if os.environ.get("CUDADOCTOR_DEBUG"):
            raise
        from cudadoctor.cli.speech import say
        from cudadoctor.render import inert

        failure = f"{type(error).__name__}: {inert(str(error))}"
        text = say(
            "cudadoctor itself failed ({failure}). Please report this, and include the output "
            "that you get with CUDADOCTOR_DEBUG=1 set.",
            failure=failure,
        )
        with suppress(OSError):  # a full disk behind stderr
            sys.stderr.write(f"{text}\n")
        return FAILED
    finally:
        local.close_host()


def _run(argv: list[str]) -> int:
    options = fast.options_of(argv)
    if options is None:
        from cudadoctor.cli import group

        code = group.run(argv)
        sys.stdout.flush()  # here, where a full disk can still be reported
        return code
    import msgspec

    from cudadoctor.cli import commands, looking
    from cudadoctor.cli.options import Options, WrongUse

    try:
        looking.use_tables()
        return commands.check(msgspec.convert(options, Options))
    except WrongUse as error:
        return error.report()


def _escape_unencodable() -> None:
    """No locale may stop a report: what the stream cannot encode is written as an escape."""
    _buffer_stdout()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _buffer_stdout() -> None:
    """With PYTHONUNBUFFERED, as in many images, half a write on a full disk passes for a whole."""
    stream = sys.stdout
    raw = getattr(stream, "buffer", None)
    if not isinstance(stream, io.TextIOWrapper) or not isinstance(raw, io.RawIOBase):
        return
    encoding, to_terminal = stream.encoding, stream.isatty()
    stream.detach()
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(raw), encoding, line_buffering=to_terminal)


def _forget_stdout() -> None:
    """The reader has gone; Python must not complain of it once more at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _leave(code: int) -> None:
    """End at once: the probes' threads may still stand before a pipe that never closes."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        _forget_stdout()
    os._exit(code)


if __name__ == "__main__":
    main()
