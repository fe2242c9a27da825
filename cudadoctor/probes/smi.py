"""What nvidia-smi says; the driver probe asks it only where NVML gave no answer of its own."""

import re
from time import monotonic
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from cudadoctor.host.children import Ran
from cudadoctor.host.local import Host
from cudadoctor.model.machine import Gpu, OptInt, OptStr, Smi
from cudadoctor.probes import Looked
from cudadoctor.probes.streamed import SLOW, Patience
from cudadoctor.reports.smi import (
    FULL_QUERY,
    SMALL_QUERY,
    SmiOutput,
    cleaned,
    parse_smi,
    unknown_field,
)

SOURCE = "nvidia-smi"
NO_START = "the program cannot be started"
MOST_TEXT = 1 << 18
"""The table of 256 GPUs is a quarter of it, and megabytes of noise take seconds to read."""


_S = TypeVar("_S", bound=Struct)


class _Answers(Struct, kw_only=True):
    """What all calls of nvidia-smi so far answered."""

    output: SmiOutput = SmiOutput()
    worked: bool = False
    code: OptInt = None
    words: OptStr = None
    silent: OptStr = None
    silent_s: float = 0.0


def read_smi(host: Host, path: str, patience: Patience) -> Looked:
    """Ask nvidia-smi for what NVML left open; the limit is for all calls together.

    The full query, the small one, the banner, the list: as far as they are needed.
    """
    answers, deadline = _Answers(), monotonic() + patience.smi_s

    def ask(*options: str) -> Ran | None:
        """Make one call and add its output to the answers; None if no time is left for it."""
        left = deadline - monotonic()
        if answers.silent or left <= 0:
            return None
        ran = host.run(path, *options, timeout_s=left)
        _take(answers, ran)
        return ran

    ran = ask(f"--query-gpu={FULL_QUERY}", "--format=csv")
    if ran is not None and unknown_field(ran.stdout + ran.stderr):
        answers.output = replace(answers.output, message=None, code=None)
        ask(f"--query-gpu={SMALL_QUERY}", "--format=csv")
    refused = answers.output.code not in (None, 6)
    if not refused and None in (answers.output.cuda, answers.output.driver):
        ask()
    if not refused and answers.output.gpus is None:
        ask("-L")
    notes = Looked()
    hung = answers.silent_s >= patience.start_s
    smi = Smi(
        found=True,
        path=path,
        code=answers.code,
        message=None if answers.worked else answers.words,
        hung=True if hung else None if answers.silent_s else False,
    )
    notes.fact("driver.smi", smi, path)
    notes.section("driver", SOURCE, reported=answers.output.driver, cuda=answers.output.cuda)
    notes.fact("gpus", answers.output.gpus, SOURCE)
    if answers.silent:
        slow = f"; {SLOW}" if answers.silent_s and not hung else ""
        unsure = () if hung else ("driver.smi.hung",)
        for fact in ("driver.smi.code", *unsure, "driver.reported", "driver.cuda", "gpus"):
            notes.gap(fact, f"nvidia-smi: {answers.silent}{slow}")
    return notes


def _take(answers: _Answers, ran: Ran) -> None:
    text = f"{ran.stdout[:MOST_TEXT]}\n{ran.stderr[:MOST_TEXT]}"
    output = parse_smi(text)
    answers.output = _joined(answers.output, output)
    if ran.why or ran.missing or ran.signal:
        # Ended from outside, it has said nothing: neither that the driver works nor that it fails.
        answers.silent = ran.why or (f"killed by signal {ran.signal}" if ran.signal else NO_START)
        answers.silent_s = ran.silent_s or 0.0
    elif ran.code is not None:
        worked = ran.code == 0 and output.code is None
        answers.worked |= worked
        answers.code = 0 if answers.worked else ran.code if answers.code is None else answers.code
        if not worked:
            answers.words = answers.words or output.message or _first_words(text)


def _joined(old: SmiOutput, new: SmiOutput) -> SmiOutput:
    """Both outputs together; the query knows a GPU better than the table does."""
    return replace(_filled(old, new), gpus=joined_gpus(old.gpus, new.gpus))


def joined_gpus(old: tuple[Gpu, ...] | None, new: tuple[Gpu, ...] | None) -> tuple[Gpu, ...] | None:
    """The GPUs of the first, with what only the second knew about each."""
    if not old or not new:
        return old or (old if new is None else new)
    more = {gpu.index: gpu for gpu in new}
    found = []
    for gpu in old:
        whole = _filled(gpu, more.get(gpu.index, gpu))
        known = tuple(name for name in gpu.unsupported if getattr(whole, name) is None)
        found.append(replace(whole, unsupported=known))
    return tuple(found)


def _filled(first: _S, second: _S) -> _S:
    """The first, with what only the second knew."""
    lacking = (name for name in first.__struct_fields__ if getattr(first, name) is None)
    return replace(first, **{name: getattr(second, name) for name in lacking})


def _first_words(text: str) -> OptStr:
    """The first line with a word in it that is no part of the table, nor the date above it."""
    for line in map(str.strip, cleaned(text).splitlines()):
        date = re.fullmatch(r"\w+ \w+ +\d+ [\d:]+ \d{4}", line)
        if any(map(str.isalpha, line)) and not line.startswith(("|", "+")) and date is None:
            return line[:300]
    return None
