"""What a repair says: its plan before, its outcome after. Pure."""

import re
import textwrap
from collections.abc import Iterator, Sequence

from msgspec import Struct, to_builtins

from cudadoctor.model.findings import Step
from cudadoctor.model.machine import Json, Machine, OptStr, Strings, StrPair
from cudadoctor.model.trust import typed
from cudadoctor.pipeline import Judged
from cudadoctor.render import inert, json_v1, shells
from cudadoctor.render.shells import shell_of
from cudadoctor.render.summary import cost_of, manual_of
from cudadoctor.repair.begin import Chosen, Left, Place, unpacked
from cudadoctor.repair.begin import shown as as_size
from cudadoctor.repair.journal import Opinion

LONGEST = 300
MOST_LINES = 8


_NAMES = {"kind": "outcome", "code": "exit", "tail": "tool_said"}
"""Of the document, where they are others."""


class Outcome(Struct, frozen=True, kw_only=True, rename=_NAMES):
    """How a call of `fix` ended. code: its exit code. why: the sentence that is shown.

    tail: the last lines of the tool that failed.
    """

    kind: str
    code: int
    why: str
    after: Opinion | None = None
    applied: Strings = ()
    tail: Strings = ()
    notes: Strings = ()
    journal: OptStr = None


def unchanged(why: str) -> Outcome:
    """A call that changed nothing and cured nothing."""
    return Outcome(kind="unchanged", code=1, why=why)


def plan(judged: Judged, chosen: Chosen, place: Place | None, width: int) -> Iterator[str]:
    """The plan as it is shown before it is asked about."""
    machine, diagnosis = judged.machine, judged.diagnosis
    cause = f": {diagnosis.primary}" if diagnosis.primary else ""
    rows = [
        f"examined  {machine.python.executable or '?'}",
        f"verdict   {diagnosis.verdict}{cause}",
    ]
    if place is not None and place.made:
        rows.append(f"new       {place.prefix}, which an undo removes")
    for row in rows:
        yield from wrapped(row, width, 0, 10)
    for number, step in enumerate((*chosen.steps, *chosen.shell), 1):
        yield ""
        yield from _step(number, step, machine, width)
        if step in chosen.shell:
            yield from wrapped(_SHELL, width, 3)
    yield from left(chosen.left, machine, width)
    if chosen.steps:
        yield ""
        yield from wrapped(_PROMISE, width, 0)


_SHELL = (
    "No program can change the shell that started it, so type this there. The check after a repair"
    " is made with it."
)
_PROMISE = (
    "What is there is recorded before anything changes. It comes back where a step fails or the"
    " check afterwards is not better, and later with cudadoctor fix --undo."
)


def _step(number: int, step: Step, machine: Machine, width: int) -> Iterator[str]:
    yield from wrapped(f"{number}. {inert(step.title)} [{cost_of(step)}]", width, 0, 3)
    yield from wrapped(f"cures {', '.join(step.cures)}", width, 3)
    for text in (manual_of(step), step.note):
        if text:
            yield from wrapped(text, width, 3)
    if step.packages and step.packages.download_bytes:
        size = step.packages.download_bytes
        disk = (
            f"downloads at least {as_size(size)} and takes about {as_size(unpacked(size))} of disk"
        )
        yield from wrapped(disk, width, 3)
    for line in shells.step_lines(step, machine):
        yield f"     {line}"


def left(some: tuple[Left, ...], machine: Machine, width: int) -> Iterator[str]:
    """The steps that the user takes: why it is the user, and what to type or to do."""
    if not some:
        return
    yield ""
    yield "left for you (cudadoctor fix --print shows all of it):"
    for step, why in ((left.step, left.why) for left in some):
        yield from wrapped(f"- {inert(step.title)} [{why}]", width, 0, 2)
        lines = shells.step_lines(step, machine)
        if step.manual and (step.edits or not lines):
            yield from wrapped(step.manual, width, 2)
        for line in lines:
            yield f"     {line}"


def what_remains(judged: Judged, chosen: Chosen, width: int) -> Iterator[str]:
    """Why nothing is applied where something is wrong."""
    diagnosis = judged.diagnosis
    if chosen.shell:
        sentence = "What cures this is typed in your shell, as shown above."
    elif chosen.left:
        sentence = "Nothing of this can be done here without more rights than the doctor takes."
    elif diagnosis.verdict == "undecided":
        sentence = "The facts do not suffice for a repair."
    else:
        sentence = f"No step is known that cures {diagnosis.primary or 'what was found'}."
    yield ""
    yield from wrapped(sentence, width, 0)


def outcome(ended: Outcome, width: int) -> Iterator[str]:
    """The last words."""
    if ended.tail:
        yield "the tool said last:"
        for line in error_lines(ended.tail):
            yield from wrapped(f"  {inert(line)[:LONGEST]}", width, 0, 4)
    for text in (ended.why, *ended.notes):
        yield from wrapped(text, width, 0)


_NOISE = re.compile(r"(?i)\s*(?:warning|info|\[notice\]|hint)\b")
_ERROR = re.compile(r"(?i)\s*(?:error|fatal|\S*error\b|\u00d7|x )")


def error_lines(output: Strings) -> Strings:
    """Of a tool's last lines those worth showing: from the first error on, else the last few."""
    lines = [line for line in output if not _NOISE.match(line)][-MOST_LINES:]
    first = next((number for number, line in enumerate(lines) if _ERROR.match(line)), 0)
    return tuple(lines[first:])


def document(
    outcome: Outcome, judged: Judged | None, before: Opinion | None, versions: StrPair
) -> Json:
    """The JSON document of `fix --json`. versions: the doctor's, and the knowledge's date."""
    return {
        "schema": 1,
        "cudadoctor": versions[0],
        "knowledge": versions[1],
        "examined": judged.machine.python.executable if judged else None,
        "before": to_builtins(before),
        "plan": json_v1.plan(judged.plan) if judged else None,
        **to_builtins(outcome),
    }


def command(word: str, python: str) -> str:
    """How an undo or a resumption of that environment is called; it can be pasted."""
    return shell_of("bash").shown(typed("cudadoctor", "fix", word, "--python", python))


def lost(packages: Strings, paths: int) -> str:
    """What an undo takes away besides the repair."""
    named = ", ".join(packages[:8]) + (" and more" if len(packages) > 8 else "")
    about = f" (packages: {inert(named)})" if packages else ""
    verb = "file has" if paths == 1 else "files have"
    return (
        f"{paths} {verb} changed since the repair{about}; the undo brings back the state before it:"
        " packages that came since go, files of your own are kept beside the journal"
    )


def kept_aside(paths: Sequence[str], folder: str) -> Strings:
    """A note on files that an undo has moved away."""
    if not paths:
        return ()
    named = ", ".join(paths[:3]) + (" and more" if len(paths) > 3 else "")
    number, verb = ("1 file", "lies") if len(paths) == 1 else (f"{len(paths)} files", "lie")
    return (f"{number} of your own, changed since the repair, now {verb} under {folder}: {named}.",)


def wrapped(text: str, width: int, indent: int, hang: int = 0) -> list[str]:
    """Words on lines of that width; a long word such as a path is never cut."""
    return textwrap.wrap(
        inert(text),
        width,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + hang),
        break_long_words=False,
        break_on_hyphens=False,
    )
