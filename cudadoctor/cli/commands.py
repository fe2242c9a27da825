"""What each command does, between the command line and the core."""

from __future__ import annotations

import contextlib
import gc
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec

from cudadoctor.cli.looking import look_of, passed, this_machine
from cudadoctor.cli.options import (
    EXIT,
    Options,
    refuse,
    refuse_contradictions,
    refuse_device,
    refuse_strange_cause,
)
from cudadoctor.cli.output import SHORTER, Waiting, painted, width, written

if TYPE_CHECKING:
    from cudadoctor.bench.advice import Advice
    from cudadoctor.cli.saved import Saved
    from cudadoctor.model.machine import Machine
    from cudadoctor.render import Report

FAILED = 4
_ORDER = (0, 3, 1, EXIT, FAILED)
"""Exit codes from the best to the worst: unreadable outranks broken, broken undecided."""


class Source(msgspec.Struct, frozen=True):
    """A machine to judge, and the file it came from (None: this machine)."""

    machine: Machine
    name: str | None = None  # as --from named it
    seconds: float | None = None


def check(options: Options) -> int:
    """Judge this machine or saved ones, and print it."""
    refuse_contradictions(options)
    if options.saved:
        return _check_saved(options)
    started = time.monotonic()
    machine = this_machine(options)
    code, text = _checked(Source(machine, seconds=time.monotonic() - started), options)
    written(text, options.output)
    return code


def _checked(source: Source, options: Options, *, many: bool = False) -> tuple[int, str]:
    """The exit code for a machine, and what is shown of it."""
    from cudadoctor import pipeline

    machine = pipeline.with_options(source.machine, options)
    judged = pipeline.judge(machine, ignore=options.ignore)
    shown = pipeline.report(judged, full=options.full, seconds=source.seconds)
    code = pipeline.exit_code(judged.diagnosis, strict=options.strict)
    return code, _rendered(shown, options, source, many=many)


def _check_saved(options: Options) -> int:
    """Judge what --from names, and print each result as soon as it is there; the worst code."""
    from cudadoctor.cli import saved

    gc.enable()  # many documents are no short life
    many = saved.are_many(options.saved)
    worst = 0
    try:
        with _sink(options.output, many=many) as write:
            for one in saved.machines(options.saved):
                code, text = _judged(one, options, many=many)
                write(text)
                worst = max(worst, code, key=_ORDER.index)
    except saved.SavedError as error:
        refuse(str(error))
    return worst


def _judged(one: Saved, options: Options, *, many: bool) -> tuple[int, str]:
    if one.machine is None:
        return EXIT, _unread(one.name, one.error or "", options)
    source = Source(one.machine, one.name)
    if not many:
        return _checked(source, options)
    try:
        return _checked(source, options, many=True)
    except Exception as error:
        why = f"{one.name}: cudadoctor itself failed ({type(error).__name__}: {error})"
        return FAILED, _unread(one.name, why, options)


def _unread(name: str, why: str, options: Options) -> str:
    """Say why there is no verdict: on stderr and, with --json, as a line among the others."""
    sys.stderr.write(f"cudadoctor: {_plain(why)}\n")
    if not options.as_json:
        return ""
    from cudadoctor.render import json_v1

    return json_v1.line({"schema": 1, "source": name, "error": why}) + "\n"


def _plain(text: str) -> str:
    return " ".join(text.split()).encode("ascii", "backslashreplace").decode()


@contextlib.contextmanager
def _sink(output: str | None, *, many: bool) -> Iterator[Callable[[str], None]]:
    """Where results go: stdout or one file, which all results share."""
    if output is None or not many:
        yield lambda text: written(text, output)
        return
    try:
        with open(output, "w", encoding="utf-8") as file:  # noqa: PTH123 - as elsewhere
            yield lambda text: print(text, end="", file=file)
    except OSError as error:
        refuse(f"cannot write {output}: {error.strerror}")


def fix(options: Options) -> int:
    """Print the repair as a script, or apply it to the examined environment."""
    refuse_contradictions(options)
    if options.printed or options.kind:
        from cudadoctor.cli import printing

        return printing.fix(options)
    from cudadoctor.repair import fix as repairing

    return repairing.fix(options)


def setup(folder: str, options: Options) -> int:
    """Make a new environment with the best build for this machine."""
    from cudadoctor.repair.setup import command

    return command.setup(folder, options)


def smoke(options: Options) -> int:
    """Run the training step alone and print its stages."""
    from cudadoctor import __version__

    refuse_device(options)
    machine = this_machine(options)
    if options.as_json:
        from cudadoctor.render import json_v1

        sys.stdout.write(json_v1.dumps(json_v1.smoke_alone(machine, __version__)) + "\n")
    else:
        from cudadoctor.render import summary

        for line in summary.stage_lines(machine):
            sys.stdout.write(line + "\n")
    return 0 if machine.smoke and passed(machine.smoke) else 1


def bench(options: Options) -> int:
    """Measure the known techniques of faster training on this machine."""
    from cudadoctor.bench import command

    return command.run(options)


def explain(cause: str | None) -> int:
    """Print the page of a cause, or the list of causes."""
    from cudadoctor.model.catalogue import CATALOGUE
    from cudadoctor.render import pages
    from cudadoctor.rules.registry import explained_rules

    if cause is None:
        sys.stdout.write(pages.listing(CATALOGUE, explained_rules()))
        return 0
    refuse_strange_cause(cause, f"there is no cause {cause!r}")
    sys.stdout.write(pages.page(cause, explained_rules()))
    return 0


def facts(options: Options) -> int:
    """Print the facts of this machine, redacted unless --full."""
    from cudadoctor.model import factfile
    from cudadoctor.privacy.redact import Redactor

    refuse_device(options)
    machine = this_machine(options)
    shown = machine if options.full else Redactor(machine).machine(machine)
    written(factfile.dumps(shown) + "\n", options.output)
    return 0


def record(folder: str, options: Options) -> int:
    """Write the raw answers of this machine into a folder, redacted unless --full."""
    from cudadoctor.host import local, recording
    from cudadoctor.probes import examine

    refuse_contradictions(options)
    try:
        recording.prepare(folder)
        host = recording.RecordingHost(local.this_host())
        with Waiting(SHORTER) as progress:
            machine = examine.examine_host(host, look_of(options), progress)
        number = recording.write(folder, host, look_of(options), machine, full=options.full)
    except (recording.RecordError, examine.NoInterpreter) as error:
        refuse(str(error))
    finally:
        local.close_host()
    redacted = "names, secrets and identifiers are replaced; look through it before you share it"
    hidden = "nothing is redacted: share it only with whom you trust" if options.full else redacted
    from cudadoctor.render import inert

    sys.stdout.write(f"{number} answers of this host written to {inert(folder)}; {hidden}\n")
    if lacking := recording.lacking(folder):
        lack = "its replay asks what was not recorded, and judges less"
        sys.stderr.write(f"cudadoctor: {lack}: {lacking[0]}\n")
    return 0


def _rendered(shown: Report, options: Options, source: Source, *, many: bool) -> str:
    if options.as_json:
        from cudadoctor.render import json_v1

        document = json_v1.report(shown)
        if options.advice:
            document["advice"] = msgspec.to_builtins(_advice(shown, options))
        if many:
            return json_v1.line(document | {"source": source.name}) + "\n"
        return json_v1.dumps(document) + "\n"
    from cudadoctor.locale.language import language

    say = language(options.lang)
    shown = msgspec.structs.replace(shown, diagnosis=say.diagnosis(shown.diagnosis))
    if options.markdown:
        from cudadoctor import pipeline
        from cudadoctor.render import markdown

        text = markdown.report(shown if options.full else pipeline.shareable(shown), say)
        if options.advice:
            text += markdown.advice_list(_advice(shown, options), say)
        return f"## {markdown.code(source.name or '')}\n\n{text}\n" if many else text
    return _terminal(shown, options, source, many=many)


def _terminal(shown: Report, options: Options, source: Source, *, many: bool) -> str:
    from cudadoctor.locale.language import language
    from cudadoctor.render import inert, terminal

    layout = terminal.Layout(
        width=width(),
        verbose=options.verbose > 0,
        say=language(options.lang),
    )
    with contextlib.suppress(OSError):  # a full disk behind stderr changes no verdict
        for line in terminal.not_checked(shown, layout):
            sys.stderr.write(line + "\n")
    heading = f"== {inert(source.name or '')}\n" if many else ""
    lines = terminal.report(shown, layout)
    if options.advice:
        lines += terminal.advice_lines(_advice(shown, options), layout)
    return heading + painted(lines, to_file=bool(options.output))


def _advice(shown: Report, options: Options) -> tuple[Advice, ...]:
    """Loaded only where it is asked for. What the bench kept is of this machine, not of a file."""
    import os

    from cudadoctor import knowledge
    from cudadoctor.bench import advice, store

    found = store.Read() if options.saved else store.read(os.environ)
    for text in found.ignored:
        sys.stderr.write(f"not used for the advice: {text}\n")
    cpu = None if options.saved else store.cpu_name()
    return advice.advise(shown.machine, knowledge.load(), found.kept, cpu)
