"""What a repair says: its plan before, its outcome after. Pure."""

import re
import textwrap
from collections.abc import Iterator, Sequence

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from cudadoctor import pipeline
from cudadoctor.cli.speech import say, spoken
from cudadoctor.model.findings import Step
from cudadoctor.model.machine import Json, Machine, OptStr, Strings, StrPair
from cudadoctor.model.trust import typed
from cudadoctor.pipeline import Judged
from cudadoctor.render import inert, json_v1, terminal
from cudadoctor.render.shells import edits_by_hand, shell_of, step_lines
from cudadoctor.render.terminal import Layout, Line
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


def unchanged(why: OptStr = None) -> Outcome:
    """A call that changed nothing and cured nothing."""
    text = say("Nothing was changed: {why}.", why=why) if why else say("Nothing was changed.")
    return Outcome(kind="unchanged", code=1, why=text)


def plan(judged: Judged, chosen: Chosen, place: Place | None, layout: Layout) -> Iterator[Line]:
    """The plan as it is shown before it is asked about: the answer, what is done, what is not."""
    machine, width = judged.machine, layout.width
    shown = pipeline.report(judged, full=True)
    spoken_of = replace(shown, diagnosis=layout.say.diagnosis(shown.diagnosis))
    yield from terminal.report(spoken_of, replace(layout, quiet=True))
    if chosen.steps:
        heading = "cudadoctor will run these steps in {folder}:"
        if place is None:
            heading = "Run these steps yourself:"
        elif place.made:
            heading = "cudadoctor will create a new environment in {folder}:"
        yield from _text("")
        text = say(heading, folder=place.prefix if place else "")
        yield from _text(text, width, style="bold")
    for number, step in enumerate(chosen.steps, 1):
        yield from _step(f"{number}. ", step, machine, width)
    if chosen.shell:
        yield from _text("")
        yield from _text(say(_SHELL), width, style="bold")
        for step in chosen.shell:
            yield from _step("", step, machine, width)
    yield from _left(chosen.left, machine, width)
    if chosen.steps and place is not None:
        yield from _text("")
        yield from _text(say(_PROMISE), width)
        yield from _text(
            say("To undo this fix later: {command}", command="cudadoctor fix --undo"), width
        )


_SHELL = "cudadoctor cannot set your shell's variables, so run this in your shell:"
_PROMISE = (
    "cudadoctor saves the environment first and restores everything if a step fails or "
    "nothing improves."
)
LEFT = {
    "root": "These steps need root. Run them yourself:",
    "host": "Run these steps on the host:",
    "container": "Change how the container is started:",
    "windows": "Run these steps in Windows:",
    "admin": "Only an administrator can do this:",
    "cloud": "Run these steps in your provider's cloud shell:",
    "hand": "Do this by hand:",
    "more": "This affects more than this Python environment, so run it yourself:",
    "unresolved": "These packages cannot be installed together, so this step is skipped:",
    "other": "This step is for a different environment, so run it yourself:",
}
"""Why a step is left -> what stands above it."""


def _left(some: tuple[Left, ...], machine: Machine, width: int) -> Iterator[Line]:
    """The steps that the user takes: why it is the user, and what to type or to do."""
    for why in [*LEFT]:
        steps = [left.step for left in some if left.why == why]
        if steps:
            yield from _text("")
            yield from _text(say(LEFT[why]), width, style="bold")
        for step in steps:
            yield from _step("- ", step, machine, width)


def _step(mark: str, step: Step, machine: Machine, width: int) -> Iterator[Line]:
    """A step: its title and what it costs, what to do by hand, its commands."""
    hang = len(mark)
    title = inert(spoken(step.title))
    if step.packages and (size := step.packages.download_bytes):
        title += say(
            " (downloads about {download}; takes up {installed} on disk)",
            download=as_size(size),
            installed=as_size(unpacked(size)),
        )
    yield from _text(mark + title, width, 2, hang)
    lines = step_lines(step, machine, width - 6)
    by_hand = step.manual if edits_by_hand(step) or not lines else None
    for text in (by_hand, step.note, step.resolution):
        if text and text.rstrip(".") != step.title:
            yield from _text(inert(spoken(text)), width, 2 + hang)
    for edit in edits_by_hand(step):
        yield from _text(say("In {file}:", file=inert(edit.file)), width, 2 + hang)
        for line in edit.what.splitlines():
            yield from _text(f"      {inert(line)}")
    for line in lines:
        yield from _text(f"      {inert(line)}", style="green")


def what_remains(judged: Judged, chosen: Chosen) -> str:
    """Why nothing is applied where something is wrong."""
    diagnosis = judged.diagnosis
    if chosen.shell or chosen.left:
        return say("Nothing was changed. After completing the steps above, run: cudadoctor check")
    if diagnosis.verdict == "undecided":
        return say(
            "Nothing was changed: there is not enough information. For details, run: cudadoctor "
            "check"
        )
    return say(
        "Nothing was changed: there is no known fix. For details, run: cudadoctor explain {cause}",
        cause=diagnosis.primary or "unknown",
    )


def outcome(ended: Outcome, before: Opinion | None, width: int) -> Iterator[Line]:
    """The last words: what the tool said, how it ended, what proves it, the way back."""
    if ended.tail:
        yield from _text(say("Last lines of the tool's output:"))
        for line in error_lines(ended.tail):
            yield from _text(f"  {inert(line)[:LONGEST]}", width, 0, 4)
    yield from _text(inert(ended.why), width, style="bold")
    proved = proof(before, ended.after) if before and ended.after else None
    for text in filter(None, (proved, *ended.notes)):
        yield from _text(inert(text), width)


def proof(before: Opinion, after: Opinion) -> OptStr:
    """What the training step did before and after; None where it ran neither time."""
    ran_before, ran = ((*seen.smoke_passed, *seen.smoke_failed) for seen in (before, after))
    if not ran:
        return None
    passed = say(
        "The training step passes {passed} of {stages} stages",
        passed=len(after.smoke_passed),
        stages=len(ran),
    )
    if not ran_before:
        return passed + say(" (before: it did not run).")
    return passed + say(
        " (before: {passed} of {stages}).", passed=len(before.smoke_passed), stages=len(ran_before)
    )


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


def lost(packages: Strings, paths: int, folder: str) -> str:
    """What an undo takes away besides the repair. folder: where the user's own files are kept."""
    about = named(packages, 8)
    changed = say(
        "1 file has changed since the fix"
        if paths == 1
        else "{count} files have changed since the fix",
        count=paths,
    )
    if about:
        changed += say(" (packages: {names})", names=inert(about))
    kept = say(
        "Undoing the fix removes packages installed since the fix and moves your own changed "
        "files to {folder}.",
        folder=folder,
    )
    return f"{changed}. {kept}"


def kept_aside(paths: Sequence[str], folder: str) -> Strings:
    """A note on files that an undo has moved away."""
    if not paths:
        return ()
    template = "{count} files that you had changed are now in {folder}: {names}."
    if len(paths) == 1:
        template = "1 file that you had changed is now in {folder}: {names}."
    return (say(template, count=len(paths), folder=folder, names=named(paths, 3)),)


def named(names: Sequence[str], most: int) -> str:
    """The first few names."""
    more = len(names) - most
    return ", ".join(names[:most]) + (say(" and {count} more", count=more) if more > 0 else "")


def _text(
    text: str, width: int = 0, indent: int = 0, hang: int = 0, style: str = ""
) -> Iterator[Line]:
    """Words on lines of that width (0: one line); a long word such as a path is never cut."""
    lines = wrapped(text, width, indent, hang) if width else [text]
    return (Line(((line, style),)) for line in lines or [""])


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
