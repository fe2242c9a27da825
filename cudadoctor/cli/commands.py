"""What each command does, between the command line and the core. The docstrings are its help."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from cudadoctor.cli.looking import look_of, passed, this_machine
from cudadoctor.cli.options import (
    EXIT,
    Options,
    refuse,
    refuse_contradictions,
    refuse_device,
    refuse_unknown_cause,
)
from cudadoctor.cli.output import SHORTER, Waiting, painted, width, written

if TYPE_CHECKING:
    from cudadoctor.bench.advice import Advice
    from cudadoctor.cli.saved import Saved
    from cudadoctor.model.machine import Machine, OptStr
    from cudadoctor.render import Report

FAILED = 4
_ORDER = (0, 3, 1, EXIT, FAILED)
"""Exit codes from the best to the worst: unreadable outranks broken, broken undecided."""


class Source(Struct, frozen=True):
    """A machine to judge, and the file it came from (None: this machine)."""

    machine: Machine
    name: str | None = None  # as --from named it
    seconds: float | None = None


def check(options: Options) -> int:
    """Say what is wrong with this machine, and what cures it.

    Exits with 0 where it is healthy or has warnings, 1 where it is broken, 3 where that cannot be
    told, 2 on wrong use.
    """
    refuse_contradictions(options)
    if options.saved:
        return _check_saved(options)
    started = monotonic()
    code, text = _checked(Source(this_machine(options), seconds=monotonic() - started), options)
    written(text, options.output)
    return code


def _checked(source: Source, options: Options, *, many: bool = False) -> tuple[int, str]:
    """The exit code for a machine, and what is shown of it."""
    from cudadoctor import pipeline

    judged = pipeline.judge(pipeline.with_options(source.machine, options), ignore=options.ignore)
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
            for found in saved.machines(options.saved):
                code, text = _judged(found, options, many=many)
                write(text)
                worst = max(worst, code, key=_ORDER.index)
    except saved.SavedError as error:
        refuse(str(error))
    return worst


def _judged(found: Saved, options: Options, *, many: bool) -> tuple[int, str]:
    code, why = EXIT, found.error or ""
    if found.machine is not None:
        try:
            return _checked(Source(found.machine, found.name), options, many=many)
        except Exception as error:
            if not many:
                raise
            code = FAILED
            why = f"{found.name}: cudadoctor itself failed ({type(error).__name__}: {error})"
    # The reason for a missing verdict goes to stderr and, with --json, among the other lines.
    plain = " ".join(why.split()).encode("ascii", "backslashreplace").decode()
    sys.stderr.write(f"cudadoctor: {plain}\n")
    if not options.as_json:
        return code, ""
    from cudadoctor.render import json_v1

    return code, json_v1.line({"schema": 1, "source": found.name, "error": why}) + "\n"


@contextmanager
def _sink(output: OptStr, *, many: bool) -> Iterator[Callable[[str], None]]:
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
    """Repair the examined environment; --print prints the repair as a script instead.

    Shows the plan, asks, applies what needs no root, checks again with the training step, and
    brings everything back where it did not help. --print and --as change nothing.

    Exits with 0 where it is cured or nothing is to be done (--print: where there is a plan), 1
    where not, 2 on wrong use or where nobody can be asked and --yes is missing.
    """
    refuse_contradictions(options)
    if options.printed or options.kind:
        from cudadoctor.cli import printing

        return printing.fix(options)
    from cudadoctor.repair import fix as repairing

    return repairing.fix(options)


def setup(folder: str, options: Options) -> int:
    """Make a new environment in DIR with the best build for this machine, proven by the smoke.

    Shows what it will do, asks, makes DIR and runs the training step in it. Where installing fails
    or is interrupted, what was made is removed. --python names the interpreter that it is made
    from; else a fitting one of this machine is taken. --with uv or pixi makes a project in DIR,
    --with conda a conda environment; else it is a virtual environment, filled by pip.

    Exits with 0 where the training step passed and nothing is broken, 1 where not or where nothing
    was made, 2 on wrong use or where nobody can be asked and --yes is missing.
    """
    from cudadoctor.repair.setup import command

    return command.setup(folder, options)


def smoke(options: Options) -> int:
    """Run the training step alone. Exits with 1 where a stage failed."""
    from cudadoctor import __version__

    refuse_device(options)
    machine = this_machine(options)
    if options.as_json:
        from cudadoctor.render import json_v1

        about = {"schema": 1, "cudadoctor": __version__, "examined": machine.python.executable}
        sys.stdout.write(json_v1.dumps({**about, "smoke": json_v1.smoke(machine)}) + "\n")
    else:
        from cudadoctor.render import summary

        sys.stdout.writelines(f"{line}\n" for line in summary.stage_lines(machine))
    return 0 if machine.smoke and passed(machine.smoke) else 1


def bench(options: Options) -> int:
    """Measure on this machine what each known technique of faster training is worth.

    Trains three small models (an image classifier, a transformer encoder, a small language model)
    as they are, with each technique alone, and with the best combination that is found. A gain
    is claimed only where it is more than the noise.

    After --, a command of your own that trains: it is run and sampled for --minutes, nothing in it
    is changed, and what starves the GPU is told on stderr (or in --output): stdout is the
    command's. It runs on after the minutes unless --stop.

    Exits with 0 where something was measured, 1 where nothing could be, 2 on wrong use; with a
    command, as that does, and with 0 where --stop ended it.
    """
    from cudadoctor.bench import command

    return command.run(options)


def explain(cause: OptStr) -> int:
    """Say what a cause is, how it is told and what cures it; without a name, list them."""
    from cudadoctor.model.catalogue import CATALOGUE
    from cudadoctor.render import pages
    from cudadoctor.rules.registry import explained_rules

    if cause is not None:
        refuse_unknown_cause(cause, f"there is no cause {cause!r}")
    rules = explained_rules()
    sys.stdout.write(pages.listing(CATALOGUE, rules) if cause is None else pages.page(cause, rules))
    return 0


def facts(options: Options) -> int:
    """Print what is known of this machine as a document that --from can read."""
    from cudadoctor.model import factfile
    from cudadoctor.privacy.redact import Redactor

    refuse_device(options)
    machine = this_machine(options)
    shown = machine if options.full else Redactor(machine).machine(machine)
    written(factfile.dumps(shown) + "\n", options.output)
    return 0


def record(folder: str, options: Options) -> int:
    """Write the raw answers of this host into DIR, for a bug report that becomes a test.

    DIR is made; one that is not empty is refused. Names, secrets and identifiers are replaced
    unless --full.
    """
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
            document["advice"] = to_builtins(_advice(shown, options))
        if many:
            return json_v1.line(document | {"source": source.name}) + "\n"
        return json_v1.dumps(document) + "\n"
    from cudadoctor.locale.language import language

    say = language(options.lang)
    shown = replace(shown, diagnosis=say.diagnosis(shown.diagnosis))
    if options.markdown:
        from cudadoctor import pipeline
        from cudadoctor.render import markdown

        text = markdown.report(shown if options.full else pipeline.shareable(shown), say)
        if options.advice:
            text += markdown.advice_list(_advice(shown, options), say)
        return f"## {markdown.code(source.name or '')}\n\n{text}\n" if many else text
    from cudadoctor.render import inert, terminal

    layout = terminal.Layout(width=width(), verbose=options.verbose > 0, say=say)
    with suppress(OSError):  # a full disk behind stderr changes no verdict
        sys.stderr.writelines(f"{line}\n" for line in terminal.not_checked(shown, layout))
    lines = terminal.report(shown, layout)
    if options.advice:
        lines += terminal.advice_lines(_advice(shown, options), layout)
    heading = f"== {inert(source.name or '')}\n" if many else ""
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


def version() -> int:
    """Print the version and the day of the knowledge."""
    from cudadoctor import __version__, knowledge

    sys.stdout.write(f"cudadoctor {__version__}, knowledge of {knowledge.load().date}\n")
    return 0
