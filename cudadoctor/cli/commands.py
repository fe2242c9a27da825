"""What each command does, between the command line and the core."""

from __future__ import annotations

import contextlib
import importlib
import sys
import time
from typing import TYPE_CHECKING

import msgspec

from cudadoctor.cli.usage import refuse, refuse_contradictions, refuse_device, refuse_strange_cause

if TYPE_CHECKING:
    from cudadoctor.bench.advice import Advice
    from cudadoctor.cli.options import Asked
    from cudadoctor.model.machine import Machine
    from cudadoctor.probes.examine import Look
    from cudadoctor.render import Report

WIDEST = 100
NARROWEST = 40


class Source(msgspec.Struct, frozen=True):
    """A machine to judge, and the file it came from (None: this machine)."""

    machine: Machine
    name: str | None = None  # as --from named it
    seconds: float | None = None


def check(asked: Asked) -> int:
    """Judge this machine or saved ones, and print it."""
    refuse_contradictions(asked)
    if asked.saved:
        from cudadoctor.cli import triage

        return triage.check(asked)
    machine, seconds = this_machine(asked)
    # Imported after the look has begun: its children work while the rules are being loaded.
    code, text = checked(Source(machine, seconds=seconds), asked)
    written(text, asked.output)
    return code


def checked(source: Source, asked: Asked, *, many: bool = False) -> tuple[int, str]:
    """The exit code for a machine, and what is shown of it."""
    from cudadoctor import pipeline as checkup

    machine = told(source.machine, asked)
    judged = checkup.judge(machine, ignore=asked.ignore)
    shown = checkup.report(judged, full=asked.full, seconds=source.seconds)
    code = checkup.exit_code(judged.diagnosis, strict=asked.strict)
    return code, _rendered(shown, asked, source, many=many)


def fix(asked: Asked) -> int:
    """Print the repair as a script, or apply it to the examined environment."""
    refuse_contradictions(asked)
    if asked.printed or asked.kind:
        from cudadoctor.cli import printing

        return printing.fix(asked)
    from cudadoctor import repair

    return repair.fix(asked)


def setup(folder: str, asked: Asked) -> int:
    """Make a new environment with the best build for this machine."""
    from cudadoctor.repair import setup as making

    return making.setup(folder, asked)


def smoke(asked: Asked) -> int:
    """Run the training step alone and print its stages."""
    from cudadoctor import __version__

    refuse_device(asked)
    machine = examined(asked, ranks=asked.ranks)
    run = machine.smoke
    if asked.as_json:
        from cudadoctor.render import json_v1

        sys.stdout.write(json_v1.dumps(json_v1.smoke_alone(machine, __version__)) + "\n")
    else:
        from cudadoctor.render import stages

        for line in stages.lines(machine):
            sys.stdout.write(line + "\n")
    passed = run is not None and all(one.status in ("passed", "skipped") for one in run.stages)
    return 0 if passed and run is not None and run.stages else 1


def bench(asked: Asked) -> int:
    """Measure the known techniques of faster training on this machine."""
    from cudadoctor import bench as measuring

    return measuring.bench(asked)


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


def facts(asked: Asked) -> int:
    """Print the facts of this machine, redacted unless --full."""
    from cudadoctor.model import factfile
    from cudadoctor.privacy.redact import Redactor

    refuse_device(asked)
    machine = examined(asked)
    shown = machine if asked.full else Redactor(machine).machine(machine)
    written(factfile.dumps(shown) + "\n", asked.output)
    return 0


def record(folder: str, asked: Asked) -> int:
    """Write the raw answers of this machine into a folder, redacted unless --full."""
    from cudadoctor.cli.progress import SHORTER, shown_on_stderr
    from cudadoctor.host import local, recording, replay
    from cudadoctor.probes import examine

    refuse_contradictions(asked)
    try:
        recording.prepare(folder)
        host = recording.RecordingHost(local.this_host())
        with shown_on_stderr(SHORTER) as progress:
            machine = examine.examine_host(host, _look(asked), progress)
        number = recording.write(folder, host, _look(asked), machine, full=asked.full)
    except (recording.RecordError, examine.NoInterpreter) as error:
        refuse(str(error))
    finally:
        local.close_host()
    redacted = "names, secrets and identifiers are replaced; look through it before you share it"
    hidden = "nothing is redacted: share it only with whom you trust" if asked.full else redacted
    from cudadoctor.render import inert

    sys.stdout.write(f"{number} answers of this host written to {inert(folder)}; {hidden}\n")
    if lacking := replay.lacking(folder):
        lack = "its replay asks what was not recorded, and judges less"
        sys.stderr.write(f"cudadoctor: {lack}: {lacking[0]}\n")
    return 0


def this_machine(asked: Asked) -> tuple[Machine, float]:
    """This machine as the probes see it, and how long they looked, in seconds."""
    started = time.monotonic()
    machine = examined(asked)
    return machine, time.monotonic() - started


def examined(asked: Asked, ranks: int | None = None) -> Machine:
    """This machine as the probes see it; no interpreter to examine is wrong use."""
    from cudadoctor.cli.progress import SHORTER, shown_on_stderr
    from cudadoctor.probes import examine

    try:
        with shown_on_stderr(SHORTER) as progress:
            return examine.examine(_look(asked, ranks), progress, meanwhile=_load_the_core)
    except examine.NoInterpreter as error:
        refuse(str(error))


def _look(asked: Asked, ranks: int | None = None) -> Look:
    from cudadoctor.probes.examine import Look

    return Look(
        python=asked.python,
        depth="fast" if asked.fast else "no-smoke" if asked.no_smoke else "full",
        device=asked.device,
        ranks=ranks,
        timeout_s=asked.timeout,
    )


def _load_the_core() -> None:
    """Import what judges, while the probes wait for their children."""
    for name in ("rules.registry", "pipeline", "render.json_v1"):
        importlib.import_module(f"cudadoctor.{name}")


def _with_wishes(machine: Machine, asked: Asked) -> Machine:
    """The machine with --compile told as a fact: something will be compiled here."""
    if not asked.compiles:
        return machine
    needed = (*(machine.build.needed_by or ()), "--compile")
    build = msgspec.structs.replace(machine.build, needed_by=needed)
    return msgspec.structs.replace(machine, build=build)


def told(machine: Machine, asked: Asked) -> Machine:
    """The machine with what only the command line tells of it."""
    machine = _with_wishes(machine, asked)
    return msgspec.structs.replace(machine, date=asked.as_of) if asked.as_of else machine


def _rendered(shown: Report, asked: Asked, source: Source, *, many: bool) -> str:
    if asked.as_json:
        from cudadoctor.render import json_v1

        document = json_v1.report(shown)
        if asked.advice:
            from cudadoctor.render import advised

            document["advice"] = advised.plain(_advice(shown, asked))
        if many:
            return json_v1.line(document | {"source": source.name}) + "\n"
        return json_v1.dumps(document) + "\n"
    from cudadoctor.locale.language import language

    say = language(asked.lang)
    shown = msgspec.structs.replace(shown, diagnosis=say.diagnosis(shown.diagnosis))
    if asked.markdown:
        from cudadoctor import pipeline as checkup
        from cudadoctor.render import markdown

        text = markdown.report(shown if asked.full else checkup.shareable(shown), say)
        if asked.advice:
            from cudadoctor.render import advised

            text += advised.markdown(_advice(shown, asked), say)
        return f"## {markdown.code(source.name or '')}\n\n{text}\n" if many else text
    return _terminal(shown, asked, source, many=many)


def _terminal(shown: Report, asked: Asked, source: Source, *, many: bool) -> str:
    from cudadoctor.cli import painting
    from cudadoctor.locale.language import language
    from cudadoctor.render import inert, terminal

    layout = terminal.Layout(
        width=painting.width(NARROWEST, WIDEST),
        verbose=asked.verbose > 0,
        say=language(asked.lang),
    )
    with contextlib.suppress(OSError):  # a full disk behind stderr changes no verdict
        for line in terminal.not_checked(shown, layout):
            sys.stderr.write(line + "\n")
    heading = f"== {inert(source.name or '')}\n" if many else ""
    lines = terminal.report(shown, layout)
    if asked.advice:
        from cudadoctor.render import advised

        lines += advised.lines(_advice(shown, asked), layout)
    return heading + painting.painted(lines, to_file=bool(asked.output))


def _advice(shown: Report, asked: Asked) -> tuple[Advice, ...]:
    """Loaded only where it is asked for. What the bench kept is of this machine, not of a file."""
    import os

    from cudadoctor import knowledge
    from cudadoctor.bench import advice, store

    found = store.Read() if asked.saved else store.read(os.environ)
    for text in found.ignored:
        sys.stderr.write(f"not used for the advice: {text}\n")
    cpu = None if asked.saved else store.cpu_name()
    return advice.advise(shown.machine, knowledge.load(), found.kept, cpu)


def written(text: str, output: str | None) -> None:
    """Write a result to stdout, or to the file of --output."""
    if output is None:
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            refuse(f"cannot write to stdout: {error.strerror}")
        return
    try:
        with open(output, "w", encoding="utf-8") as file:  # noqa: PTH123 - pathlib costs 3 ms
            file.write(text)
    except OSError as error:
        refuse(f"cannot write {output}: {error.strerror}")
