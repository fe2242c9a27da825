"""`cudadoctor bench -- python train.py ...`: run a user's training and say what starves the GPU.

The script runs as it is; stdout is the script's, so the report goes to stderr, or to the file of
--output. After --minutes the report is printed and the script runs on, not sampled any more,
unless --stop ends it then. The exit code is the script's; one that --stop ended gives 0.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from cudadoctor.bench import sampled_page as bench_script
from cudadoctor.bench.script import samples, starting, starved
from cudadoctor.cli.usage import refuse

if TYPE_CHECKING:
    from cudadoctor.cli.options import Asked


def run(words: tuple[str, ...], asked: Asked) -> int:
    """Run the command under the sampler, report, and pass on its exit code."""
    _refuse(asked)
    try:
        script = starting.start(words)
    except starting.NoStart as error:
        _tell(f"cudadoctor: {error}\n")
        return error.code
    with starting.passing_signals_on(script):
        try:
            sampler = starting.Sampler(script.pid)
        except OSError as error:
            _tell(f"cudadoctor: the script runs without samples: {error.strerror}\n")
            return starting.exit_code(script.wait())
        watched = starting.watch(script, sampler, asked.minutes * 60)
        _report(_told(watched, stop=asked.stop), asked)
        if watched.code is not None:
            return starting.exit_code(watched.code)
        if asked.stop:
            starting.stop(script)
            return 0
        return starting.exit_code(script.wait())


def _refuse(asked: Asked) -> None:
    """What belongs to the bench's own workloads has nothing to act on here."""
    for name in ("workloads", "only", "chart", "python", "device"):
        if getattr(asked, name):
            option = name.removesuffix("s")
            refuse(f"--{option} is for the bench's own workloads, not for a command: drop one")
    if asked.as_json and asked.markdown:
        refuse("--json and --markdown exclude each other: choose one")


def _told(watched: starting.Watched, *, stop: bool) -> bench_script.Told:
    figures = samples.figures(samples.parsed(watched.lines))
    return bench_script.Told(
        figures=figures,
        starved=starved.judge(figures),
        code=None if watched.code is None else starting.exit_code(watched.code),
        stopped=stop and watched.code is None,
    )


def _report(told: bench_script.Told, asked: Asked) -> None:
    """A report that cannot be written never ends the script."""
    from cudadoctor.cli import painting

    if asked.as_json:
        text = bench_script.dumps(told)
    elif asked.markdown:
        text = bench_script.markdown(told)
    else:
        text = "".join(f"{line}\n" for line in bench_script.lines(told, painting.width(40, 100)))
    if asked.output is None:
        _tell(text)
        return
    try:
        Path(asked.output).write_text(text, encoding="utf-8")
    except OSError as error:
        _tell(f"cudadoctor: cannot write {asked.output}: {error.strerror}\n{text}")


def _tell(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()
