"""What each command does, between the command line and the core. The docstrings are its help."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from cudadoctor.cli.looking import look_of, passed, this_machine
from cudadoctor.cli.options import (
    EXIT,
    Options,
    cause_of,
    refuse,
    refuse_contradictions,
    refuse_device,
)
from cudadoctor.cli.output import SHORTER, Waiting, painted, signs, width, written
from cudadoctor.render import Checked

if TYPE_CHECKING:
    from cudadoctor.bench.advice import Advice
    from cudadoctor.cli.saved import Saved
    from cudadoctor.model.machine import Machine, OptStr
    from cudadoctor.render import Report

FAILED = 4
GATHERED = ("github", "sarif", "junit", "prometheus")
"""Forms in which several documents are one."""
_ORDER = (0, 3, 1, EXIT, FAILED)
"""Exit codes from the best to the worst: unreadable outranks broken, broken undecided."""


class Source(Struct, frozen=True):
    """A machine to judge, and how long the look at it took (None: it is not this one)."""

    machine: Machine
    seconds: float | None = None


def check(options: Options) -> int:
    """Find out what is wrong with this machine and how to fix it.

    --from reads saved facts, the output of another tool or an error log from a file, a folder or
    standard input (-).

    If torchrun starts it on several ranks, it does the same as `cudadoctor cluster`.

    Exit code: 0 if healthy or if there are only warnings, 1 if broken, 2 for a usage error, 3 if
    there is not enough information to decide.
    """
    refuse_contradictions(options)
    if options.saved:
        return _check_saved(options)
    if "TORCHELASTIC_RUN_ID" in os.environ and is_one_of_many():
        if is_gathered(options):
            refuse(
                "under torchrun, check does the same as cudadoctor cluster, which has no --format "
                "and no --html"
            )
        return cluster(replace(options, as_json=options.form == "json"))
    started = monotonic()
    machine = this_machine(options)
    code, shown = _checked(Source(machine, seconds=monotonic() - started), options)
    checked = Checked(shown=shown)
    if is_gathered(options):
        from cudadoctor.cli import formats

        formats.write((checked,), options)
    if options.form not in GATHERED:
        written(_rendered(shown, options, checked.name, many=False), options.output)
    return code


def is_gathered(options: Options) -> bool:
    """Whether something is written that shows all documents together."""
    return options.form in GATHERED or options.html is not None


def is_one_of_many() -> bool:
    """Whether every rank of a job runs this check."""
    from cudadoctor.cluster.launch import is_rank_of_torchrun

    return is_rank_of_torchrun(os.environ)


def _checked(source: Source, options: Options) -> tuple[int, Report]:
    """The exit code for a machine, and what is shown of it."""
    from cudadoctor import pipeline

    judged = pipeline.judge(pipeline.with_options(source.machine, options), ignore=options.ignore)
    shown = pipeline.report(judged, full=options.full, seconds=source.seconds)
    return pipeline.exit_code(judged.diagnosis, strict=options.strict), shown


def _check_saved(options: Options) -> int:
    """Judge what --from names, and print each result as soon as it is there; the worst code."""
    from cudadoctor.cli import saved

    gc.enable()  # many documents are no short life
    many = saved.are_many(options.saved)
    worst, gathered = 0, []
    try:
        with _sink(options, many=many) as write:
            for found in saved.machines(options.saved):
                code, checked = _judged(found, options, many=many)
                if options.form not in GATHERED:
                    write(_line_of(checked, options, many=many))
                if is_gathered(options):
                    gathered.append(checked)
                worst = max(worst, code, key=_ORDER.index)
    except saved.SavedError as error:
        refuse(str(error))
    if is_gathered(options):
        from cudadoctor.cli import formats

        formats.write(gathered, options)
    return worst


def _line_of(checked: Checked, options: Options, *, many: bool) -> str:
    """A document among others; of one that could not be judged only JSON has a line."""
    if checked.shown is not None:
        return _rendered(checked.shown, options, checked.name, many=many)
    if options.form != "json":
        return ""
    from cudadoctor.render import json_v1

    return json_v1.line({"schema": 1, "source": checked.name, "error": checked.error}) + "\n"


def _judged(found: Saved, options: Options, *, many: bool) -> tuple[int, Checked]:
    code, why = EXIT, found.error or ""
    if found.machine is not None:
        try:
            code, shown = _checked(Source(found.machine), options)
            return code, Checked(name=found.name, shown=shown)
        except Exception as error:
            if not many:
                raise
            code = FAILED
            why = f"{found.name}: cudadoctor itself failed ({type(error).__name__}: {error})"
    from cudadoctor.render import inert

    # The reason for a missing verdict goes to stderr and, with --json, among the other lines.
    sys.stderr.write(f"cudadoctor: {inert(' '.join(why.split()))}\n")
    return code, Checked(name=found.name, error=why)


@contextmanager
def _sink(options: Options, *, many: bool) -> Iterator[Callable[[str], None]]:
    """Where results go: stdout or one file, which all results share."""
    output = options.output
    if output is None or not many or options.form in GATHERED:
        yield lambda text: written(text, output)
        return
    try:
        with open(output, "w", encoding="utf-8") as file:  # noqa: PTH123 - as elsewhere
            yield lambda text: print(text, end="", file=file)
    except OSError as error:
        refuse("cannot write to {path}: {reason}", path=output, reason=error.strerror)


def fix(options: Options) -> int:
    """Fix the environment that you are using, or print the fix.

    Shows the steps, asks for confirmation, saves the state of the environment, applies the steps
    that do not need root, and runs the training step again. If the fix does not help, everything is
    restored.

    --print prints the fix as a script; --as prints it as a project file (pixi, environment,
    pyproject, requirements, dockerfile). Neither option changes anything.

    Exit code: 0 if fixed or if there is nothing to fix (--print: if there is a command to run), 1
    if not, 2 for a usage error or if --yes is missing and cudadoctor cannot ask for confirmation.
    """
    refuse_contradictions(options)
    if options.printed or options.kind:
        from cudadoctor.cli import printing

        return printing.fix(options)
    from cudadoctor.repair import fix as repairing

    return repairing.fix(options)


def setup(folder: str, options: Options) -> int:
    """Create a new environment in DIR with the best PyTorch build for this machine.

    Shows the steps, asks for confirmation, installs the packages, and verifies the environment with
    the training step. If the installation fails, everything that was created is removed.

    DIR becomes a virtual environment by default, a project with --with uv or --with pixi, or a
    conda environment with --with conda.

    Exit code: 0 if the training step passed and nothing is broken, 1 if not or if nothing was
    created, 2 for a usage error or if --yes is missing and cudadoctor cannot ask for confirmation.
    """
    from cudadoctor.repair.setup import command

    return command.setup(folder, options)


def smoke(options: Options) -> int:
    """Run only the training step: the forward and backward passes of a small model, stage by stage.

    Exit code: 0 if every stage passed, 1 if one failed, 2 for a usage error.
    """
    from cudadoctor import __version__

    refuse_device(options)
    machine = this_machine(options)
    if options.as_json:
        from cudadoctor.render import json_v1

        about = {"schema": 1, "cudadoctor": __version__, "examined": machine.python.executable}
        sys.stdout.write(json_v1.dumps({**about, "smoke": json_v1.smoke(machine)}) + "\n")
    else:
        from cudadoctor.cli.speech import current
        from cudadoctor.render import summary

        sys.stdout.writelines(f"{line}\n" for line in summary.stage_lines(machine, current()))
    return 0 if machine.smoke and passed(machine.smoke) else 1


def bench(options: Options) -> int:
    """Measure how much each known technique speeds up training on this machine.

    Trains three small models (an image classifier, a transformer encoder and a small language
    model) unmodified, with each technique alone, and with the best combination. A technique is
    called faster only if at least three pairs of fresh processes leave no doubt.

    To measure your own training command instead, add it after --. It runs unchanged and is sampled
    for the time set with --minutes; what keeps the GPU waiting is reported on stderr (or in the
    --output file). The command then keeps running, unless --stop is given.

    Exit code: 0 if something was measured, 1 if nothing could be measured, 2 for a usage error.
    With a command: that command's exit code, or 0 if --stop ended it.
    """
    from cudadoctor.bench import command

    return command.run(options)


def health(options: Options) -> int:
    """Measure how fast and how sound the GPUs are, in about 30 seconds and without root.

    Products by data type, copies, links and all-reduces are compared between equal GPUs, then with
    the data sheet at the measured clock. Repeated products must have the same bits, and no error
    counter may grow. GPUs in use are left alone.

    Examples: `cudadoctor health --json -o gpus.json` for your provider; `cudadoctor health --soak
    600` to look longer for silent errors; `cudadoctor health --prometheus FILE.prom` for the
    textfile collector.

    Exit code: 0 if healthy or if there are only warnings (with --strict: 1), 1 if something is
    broken, 2 for a usage error, 3 if no GPU could be measured.
    """
    from cudadoctor.health import command

    return command.run(options)


def explain(options: Options) -> int:
    """Explain a cause: what you see, how to check for it, and how to fix it.

    TEXT is the name of a cause, an error text or a part of one, or an error number such as "Xid
    79". If it can have several causes, they are listed with what separates them. Without TEXT, list
    all causes.
    """
    from cudadoctor.cli.speech import current, say
    from cudadoctor.render import inert, pages
    from cudadoctor.rules.registry import explained_rules

    text = " ".join(options.words)
    if not text:
        sys.stdout.write(pages.listing(current()))
        return 0
    cause = cause_of(text)
    hits: tuple[tuple[str, str], ...] = ()
    if cause is None:
        from cudadoctor import knowledge
        from cudadoctor.rules.pasted.search import search

        hits = tuple((hit.cause, hit.alike) for hit in search(text, knowledge.load()))
        if not hits:
            refuse(
                "no known error text is like '{text}'. For a list of causes, run: cudadoctor "
                "explain. To have a whole log read, run: cudadoctor check --from FILE",
                text=text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…",
            )
    elif cause != text:
        shown = say("Showing {cause}.", cause=cause)
        sys.stderr.write(f"cudadoctor: {inert(shown)}\n")
    language = current("explain")
    if len(hits) > 1:
        sys.stdout.write(pages.found(hits, language, width()))
    else:
        name = cause or hits[0][0]
        sys.stdout.write(pages.page(name, explained_rules(), language, width()))
    return 0


_LONGEST = 60
"""Characters of a text that are quoted back."""


def facts(options: Options) -> int:
    """Print the facts about this machine as a document that `check --from` can read.

    Names, secrets and identifiers are replaced unless --full is given.
    """
    from cudadoctor.model import factfile
    from cudadoctor.privacy.redact import Redactor

    refuse_device(options)
    machine = this_machine(options)
    shown = machine if options.full else Redactor(machine).machine(machine)
    written(factfile.dumps(shown) + "\n", options.output)
    return 0


def compare(options: Options) -> int:
    """Compare the facts of several hosts and name the hosts that differ.

    FILE is a document that `cudadoctor facts` saved on a host, or a folder of them. A value that
    more than half of the hosts have counts as usual; the other hosts are named. Use
    `cudadoctor facts --full` to see host names instead of file names.

    Exit code: 0 if the hosts do not differ, 1 if they do, 2 for a usage error or if a file cannot
    be read.
    """
    from cudadoctor.cluster import command

    return command.compare(options.words, options)


def cluster(options: Options) -> int:
    """Check every rank of a launched job: what differs between the hosts, and whether they can
    train together.

    Start it as you start your training, with torchrun, srun or mpirun, for example: torchrun
    --nnodes 2 --nproc-per-node 8 -m cudadoctor cluster. Rank 0 prints one report; the other ranks
    print nothing and end with 0.

    Exit code of rank 0: 0 if all ranks can train together, 1 if not, 2 for a usage error, 3 if the
    answers could not be gathered.
    """
    from cudadoctor.cluster import command

    return command.cluster(options)


def record(folder: str, options: Options) -> int:
    """Write the raw query results from this machine to DIR, for a bug report that can be turned
    into a test.

    DIR must be new or empty. Names, secrets and identifiers are replaced unless --full is given.
    """
    from cudadoctor.cli.speech import say, spoken
    from cudadoctor.host import local, recording
    from cudadoctor.probes import examine
    from cudadoctor.render import inert

    refuse_contradictions(options)
    try:
        recording.prepare(folder)
        host = recording.RecordingHost(local.this_host())
        with Waiting(SHORTER) as progress:
            machine = examine.examine_host(host, look_of(options), progress)
        number = recording.write(folder, host, look_of(options), machine, full=options.full)
    except (recording.RecordError, examine.NoInterpreter) as error:
        refuse(spoken(str(error)))
    finally:
        local.close_host()
    hidden = say(
        "Nothing is hidden; share the recording only with people you trust."
        if options.full
        else "Names, secrets and identifiers have been replaced; review the recording before you "
        "share it."
    )
    count = say(
        "Wrote {number} query results from this machine to {folder}.", number=number, folder=folder
    )
    sys.stdout.write(f"{inert(count)} {hidden}\n")
    if lacking := recording.lacking(folder):
        lack = say("The recording is incomplete: {what} was not recorded.", what=lacking[0])
        sys.stderr.write(f"cudadoctor: {inert(lack)}\n")
    return 0


def _rendered(shown: Report, options: Options, name: OptStr, *, many: bool) -> str:
    if options.form == "json":
        from cudadoctor.render import json_v1

        document = json_v1.report(shown)
        if options.advice:
            document["advice"] = to_builtins(_advice(shown, options))
        if many:
            return json_v1.line(document | {"source": name}) + "\n"
        return json_v1.dumps(document) + "\n"
    from cudadoctor.cli.speech import current

    language = current()
    shown = replace(shown, diagnosis=language.diagnosis(shown.diagnosis))
    if options.form == "markdown":
        from cudadoctor import pipeline
        from cudadoctor.render import markdown

        text = markdown.report(shown if options.full else pipeline.shareable(shown), language)
        if options.advice:
            text += markdown.advice_list(_advice(shown, options), language)
        return f"## {markdown.code(name or '')}\n\n{text}\n" if many else text
    from cudadoctor.render import inert, terminal

    layout = terminal.Layout(
        width=sys.maxsize if options.quiet else width(),
        verbose=options.verbose > 0,
        quiet=options.quiet,
        signs=signs() and not options.output,
        say=language,
    )
    lines = terminal.report(shown, layout)
    if options.advice and not options.quiet:
        lines += terminal.advice_lines(_advice(shown, options), layout)
    heading = f"== {inert(name or '')}\n" if many else ""
    return heading + painted(lines, to_file=bool(options.output))


def _advice(shown: Report, options: Options) -> tuple[Advice, ...]:
    """Loaded only where it is asked for. What the bench kept is of this machine, not of a file."""
    import os

    from cudadoctor import knowledge
    from cudadoctor.bench import advice, store
    from cudadoctor.cli.speech import say

    found = store.Read() if options.saved else store.read(os.environ)
    for text in found.ignored:
        left = say("saved benchmark results not used for the advice: {why}", why=text)
        sys.stderr.write(f"cudadoctor: {left}\n")
    cpu = None if options.saved else store.cpu_name()
    return advice.advise(shown.machine, knowledge.load(), found.kept, cpu)


def update(options: Options) -> int:
    """Update the compatibility tables, which say what each PyTorch release runs on.

    Reads what PyPI, PyTorch, NVIDIA, conda-forge and Docker Hub say about new releases, and saves
    it in your home folder, where all commands find it. No other command downloads tables.

    For a machine without internet access, run `cudadoctor update -o FILE` on another machine and
    copy the file. To use it, pass --knowledge FILE, or set CUDADOCTOR_KNOWLEDGE to its absolute
    path.

    Exit code: 0 if the tables are up to date, 1 if --check found a newer PyTorch release, 2 for a
    usage error, 3 if PyPI could not be read.
    """
    from cudadoctor.cli import renewing

    refuse_contradictions(options)
    return renewing.update(options)


def version() -> int:
    """Print the version of cudadoctor and the date of its knowledge tables."""
    from cudadoctor import __version__, knowledge
    from cudadoctor.cli.speech import say

    kb = knowledge.load()
    about = say("knowledge base of {date}", date=kb.date)
    about += f" ({say('updated by cudadoctor update')})" if kb.is_renewed else ""
    sys.stdout.write(f"cudadoctor {__version__}, {about}\n")
    return 0
