"""What each command does, between the command line and the core."""

from __future__ import annotations

import contextlib
import datetime
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click
import msgspec

from cudadoctor import checkup
from cudadoctor.rules import CATALOGUE, RULES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cudadoctor.asked import Asked
    from cudadoctor.facts import Machine
    from cudadoctor.plan import Plan, Wishes
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
    _refuse_contradictions(asked)
    codes, texts = [], []
    sources = list(_sources(asked))
    for source in sources:
        judged = checkup.judge(
            _as_of(_with_wishes(source.machine, asked), asked), ignore=asked.ignore
        )
        shown = checkup.report(judged, full=asked.full, seconds=source.seconds)
        codes.append(checkup.exit_code(judged.diagnosis, strict=asked.strict))
        texts.append(_rendered(shown, asked, source, many=len(sources) > 1))
    _written("".join(texts), asked.output)
    return _worst(codes)


def fix(asked: Asked) -> int:
    """Print the plan as a script, or as JSON."""
    _refuse_contradictions(asked)
    if not asked.printed:
        _refuse("fix prints the repair and does not apply it: add --print")
    sources = list(_sources(asked))
    if len(sources) != 1:
        _refuse("fix --print takes one --from file: name one")
    machine = _as_of(_with_wishes(sources[0].machine, asked), asked)
    judged = checkup.judge(machine, _wishes(asked), ignore=asked.ignore)
    if asked.as_json:
        from cudadoctor.render import json_v1

        shown = checkup.report(judged, full=asked.full)
        _written(json_v1.dumps(json_v1.report(shown)) + "\n", asked.output)
    else:
        from cudadoctor import __version__, knowledge
        from cudadoctor.render.script import script

        text = script(
            judged.plan,
            judged.machine,
            judged.diagnosis,
            shell=asked.shell,
            version=__version__,
            knowledge=knowledge.load().date,
        )
        _written(text, asked.output)
    return 0 if judged.plan.steps or judged.diagnosis.verdict == "healthy" else 1


def smoke(asked: Asked) -> int:
    """Run the training step alone and print its stages."""
    from cudadoctor import __version__

    _refuse_device(asked)
    machine = _examined(asked, ranks=asked.ranks)
    run = machine.smoke
    if asked.as_json:
        from cudadoctor.render import json_v1

        click.echo(json_v1.dumps(json_v1.smoke_alone(machine, __version__)))
    else:
        from cudadoctor.render import stages

        for line in stages.lines(machine):
            click.echo(line)
    passed = run is not None and all(one.status in ("passed", "skipped") for one in run.stages)
    return 0 if passed and run is not None and run.stages else 1


def explain(cause: str | None) -> int:
    """Print the page of a cause, or the list of causes."""
    from cudadoctor.render import pages

    if cause is None:
        click.echo(pages.listing(CATALOGUE, RULES), nl=False)
        return 0
    if cause not in CATALOGUE:
        close = checkup.nearest(cause, CATALOGUE)
        meant = f"; did you mean {close}" if close else ""
        _refuse(f"there is no cause {cause!r}{meant} (cudadoctor explain lists them)")
    click.echo(pages.page(cause, RULES), nl=False)
    return 0


def facts(asked: Asked) -> int:
    """Print the facts of this machine, redacted unless --full."""
    from cudadoctor import factfile
    from cudadoctor.redact import Redactor

    _refuse_device(asked)
    machine = _examined(asked)
    shown = machine if asked.full else Redactor(machine).machine(machine)
    _written(factfile.dumps(shown) + "\n", asked.output)
    return 0


def _sources(asked: Asked) -> Iterator[Source]:
    """The machines to judge: saved ones where --from names any, else this one."""
    if asked.saved:
        from cudadoctor import saved

        try:
            for name, machine in saved.machines(asked.saved):
                yield Source(machine, name)
        except saved.SavedError as error:
            _refuse(str(error))
        return
    started = time.monotonic()
    machine = _examined(asked)
    yield Source(machine, seconds=time.monotonic() - started)


def _examined(asked: Asked, ranks: int | None = None) -> Machine:
    from cudadoctor import examine
    from cudadoctor.progress import shown_on_stderr

    look = examine.Look(
        python=asked.python,
        depth="fast" if asked.fast else "no-smoke" if asked.no_smoke else "full",
        device=asked.device,
        ranks=ranks,
        timeout_s=asked.timeout,
    )
    try:
        with shown_on_stderr() as progress:
            return examine.examine(look, progress)
    except examine.NoInterpreter as error:
        _refuse(str(error))


def _with_wishes(machine: Machine, asked: Asked) -> Machine:
    """The machine with --compile told as a fact: something will be compiled here."""
    if not asked.compiles:
        return machine
    needed = (*(machine.build.needed_by or ()), "--compile")
    build = msgspec.structs.replace(machine.build, needed_by=needed)
    return msgspec.structs.replace(machine, build=build)


def _as_of(machine: Machine, asked: Asked) -> Machine:
    return msgspec.structs.replace(machine, date=asked.as_of) if asked.as_of else machine


def _wishes(asked: Asked) -> Wishes:
    from cudadoctor.plan import Wishes

    return Wishes(manager=asked.manager, torch=asked.torch, shell=asked.shell)


def _rendered(shown: Report, asked: Asked, source: Source, *, many: bool) -> str:
    if asked.as_json:
        from cudadoctor.render import json_v1

        document = json_v1.report(shown)
        if many:
            return json_v1.line(document | {"source": source.name}) + "\n"
        return json_v1.dumps(document) + "\n"
    from cudadoctor.language import language

    say = language(asked.lang)
    shown = msgspec.structs.replace(shown, diagnosis=say.diagnosis(shown.diagnosis))
    if asked.markdown:
        from cudadoctor.render import markdown

        placed = _placeheld(shown, source.machine, full=asked.full)
        return markdown.report(msgspec.structs.replace(shown, plan=placed), say)
    return _terminal(shown, asked, source, many=many)


def _placeheld(shown: Report, machine: Machine, *, full: bool) -> Plan:
    if full:
        return shown.plan
    return checkup.addressed_by_placeholder(shown.plan, machine.python.executable)


def _terminal(shown: Report, asked: Asked, source: Source, *, many: bool) -> str:
    from cudadoctor import painting
    from cudadoctor.language import language
    from cudadoctor.render import inert, terminal

    layout = terminal.Layout(
        width=painting.width(NARROWEST, WIDEST),
        verbose=asked.verbose > 0,
        say=language(asked.lang),
    )
    for line in terminal.not_checked(shown, layout) if asked.verbose else ():
        click.echo(line, err=True)
    heading = f"== {inert(source.name or '')}\n" if many else ""
    return heading + painting.painted(terminal.report(shown, layout), to_file=bool(asked.output))


def _written(text: str, output: str | None) -> None:
    if output is None:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        _refuse(f"cannot write {output}: {error.strerror}")


def _worst(codes: list[int]) -> int:
    """Broken outranks undecided, undecided outranks healthy."""
    order = {1: 2, 3: 1, 0: 0}
    return max(codes, key=lambda code: order.get(code, 3), default=0)


def _refuse_contradictions(asked: Asked) -> None:
    if asked.saved:
        for name in ("python", "fast", "no-smoke", "device"):
            if getattr(asked, name.replace("-", "_")):
                _refuse(f"--from judges saved facts, so --{name} has nothing to act on: drop one")
    if asked.as_json and asked.markdown:
        _refuse("--json and --markdown exclude each other: choose one")
    if asked.fast and asked.device:
        _refuse("--fast runs no training step, so --device has nothing to act on: drop one")
    _refuse_device(asked)
    _refuse_strangers(asked)
    _refuse_date(asked)


def _refuse_device(asked: Asked) -> None:
    if asked.device and not checkup.device_is_sound(asked.device):
        _refuse(f"--device {asked.device!r} is no device: use cpu, cuda or cuda:N")


def _refuse_strangers(asked: Asked) -> None:
    for cause in asked.ignore:
        if cause not in CATALOGUE:
            close = checkup.nearest(cause, CATALOGUE)
            meant = f"; did you mean {close}" if close else ""
            _refuse(f"--ignore {cause!r} is no cause{meant} (cudadoctor explain lists them)")
    if asked.torch:
        from packaging.version import InvalidVersion, Version

        try:
            Version(asked.torch)
        except InvalidVersion:
            _refuse(f"--torch {asked.torch!r} is no version: give one such as 2.6 or 2.6.0")


def _refuse_date(asked: Asked) -> None:
    if asked.as_of:
        with contextlib.suppress(ValueError):
            datetime.date.fromisoformat(asked.as_of)
            return
        _refuse(f"--as-of {asked.as_of!r} is no date: write it as YYYY-MM-DD")


def _refuse(sentence: str) -> NoReturn:
    raise click.UsageError(sentence)
