"""The command line: parse, call, print, exit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import click

from cudadoctor import __version__
from cudadoctor.cli import commands
from cudadoctor.cli.options import EXIT, Options, WrongUse, seconds
from cudadoctor.model.findings import Dialect, FileKind

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAM = "cudadoctor"


def run(argv: list[str] | None = None) -> int:
    """Run a command and return the exit code. Wrong use is one sentence on stderr and a 2."""
    try:
        answer = main.main(args=argv, prog_name=PROGRAM, standalone_mode=False)
    except click.exceptions.Abort:
        return 130
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return EXIT
    except click.ClickException as error:
        return WrongUse(error.format_message()).told()
    except WrongUse as error:
        return error.told()
    return answer if isinstance(answer, int) else 0


def _options(*decorators: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def decorate(function: Any) -> Any:
        for one in reversed(decorators):
            function = one(function)
        return function

    return decorate


_python = click.option(
    "--python",
    metavar="PATH",
    help="The interpreter to examine: a python, or a venv or conda folder.",
)
_fast = click.option("--fast", is_flag=True, help="Do not import torch and run no training step.")
_no_smoke = click.option("--no-smoke", is_flag=True, help="Import torch but run no training step.")
_device = click.option("--device", help="Device of the training step: cpu, cuda or cuda:N.")
_timeout = click.option(
    "--timeout",
    callback=lambda _, __, text: seconds(text),
    metavar="S",
    help="Limit for each probe, in seconds.",
)
_full = click.option(
    "--full", is_flag=True, help="Hide nothing: names, paths and identifiers stay."
)
_output = click.option(
    "--output", type=click.Path(dir_okay=False), metavar="FILE", help="Write there, not to stdout."
)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON (schema 1).")
_manager = click.option(
    "--with",
    "manager",
    type=click.Choice(get_args(Dialect)),
    help="Package manager for the commands.",
)
_torch = click.option(
    "--torch", metavar="VERSION", help="Keep to this release of torch (2.6, 2.6.0, >=2.6,<2.8)."
)
_verify = click.option(
    "--verify", is_flag=True, help="Ask a real resolver first whether the packages can be had."
)
_looking = _options(_python, _fast, _no_smoke, _device, _timeout)
_judging = _options(
    click.option(
        "--from",
        "saved",
        multiple=True,
        metavar="FILE",
        help="Judge saved facts, not this machine: a file, a folder or - (repeatable).",
    ),
    click.option("--as-of", metavar="DATE", help="Judge a report as of this day (YYYY-MM-DD)."),
    click.option(
        "--ignore", multiple=True, metavar="CAUSE", help="Leave this cause out (repeatable)."
    ),
    click.option("--compile", "compiles", is_flag=True, help="Extensions will be compiled here."),
    click.option("--lang", type=click.Choice(("en", "es")), default="en", help="Language."),
    _full,
    _output,
    _json,
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name=PROGRAM)
def main() -> None:
    """Says why PyTorch does not use the GPU, shows the evidence and prints the repair.

    Start with `cudadoctor check`.
    """


@main.command()
@_looking
@_judging
@click.option("--markdown", is_flag=True, help="Print Markdown, for an issue.")
@click.option("--strict", is_flag=True, help="Warnings exit with 1 too.")
@click.option(
    "--advice", is_flag=True, help="Say too what is expected to make training faster here."
)
@click.option(
    "-v", "--verbose", count=True, help="Show more: infos, explained findings, all values."
)
def check(**options: Any) -> int:
    """Say what is wrong with this machine, and what cures it.

    Exits with 0 where it is healthy or has warnings, 1 where it is broken, 3 where that cannot be
    told, 2 on wrong use.
    """
    return commands.check(Options(**options))


@main.command()
@_looking
@_judging
@click.option("--print", "printed", is_flag=True, help="Print the plan as a shell script.")
@_manager
@click.option(
    "--shell",
    type=click.Choice(("bash", "fish", "powershell")),
    help="Shell; that of the machine where none is named.",
)
@_torch
@click.option(
    "--as",
    "kind",
    type=click.Choice(get_args(FileKind)),
    help="Print the build for this machine as a file of a project.",
)
@click.option("--hashes", is_flag=True, help="With --as requirements: with the files' hashes.")
@_verify
@click.option("--yes", is_flag=True, help="Apply without asking.")
@click.option("--undo", is_flag=True, help="Bring back what was there before the last repair.")
@click.option("--resume", is_flag=True, help="Go on with a repair that was interrupted.")
@click.option("--forget", is_flag=True, help="Remove what --undo would bring back.")
@click.option(
    "--allow-shared",
    "shared",
    is_flag=True,
    help="Apply also to the system's Python or conda's base, which others share.",
)
def fix(**options: Any) -> int:
    """Repair the examined environment; --print prints the repair as a script instead.

    Shows the plan, asks, applies what needs no root, checks again with the training step, and
    brings everything back where it did not help. --print and --as change nothing.

    Exits with 0 where it is cured or nothing is to be done (--print: where there is a plan), 1
    where not, 2 on wrong use or where nobody can be asked and --yes is missing.
    """
    return commands.fix(Options(**options))


@main.command()
@click.argument("folder", metavar="DIR")
@_options(_python, _device, _timeout, _manager, _torch, _verify, _json)
@click.option("--yes", is_flag=True, help="Make it without asking.")
def setup(folder: str, **options: Any) -> int:
    """Make a new environment in DIR with the best build for this machine, proven by the smoke.

    Shows what it will do, asks, makes DIR and runs the training step in it. Where installing fails
    or is interrupted, what was made is removed. --python names the interpreter that it is made
    from; else a fitting one of this machine is taken. --with uv or pixi makes a project in DIR,
    --with conda a conda environment; else it is a virtual environment, filled by pip.

    Exits with 0 where the training step passed and nothing is broken, 1 where not or where nothing
    was made, 2 on wrong use or where nobody can be asked and --yes is missing.
    """
    return commands.setup(folder, Options(**options))


@main.command()
@_options(_python, _device, _timeout, _json)
@click.option("--ranks", type=click.IntRange(1, 64), help="Processes of the DDP stage.")
def smoke(**options: Any) -> int:
    """Run the training step alone. Exits with 1 where a stage failed."""
    return commands.smoke(Options(**options))


@main.command()
@click.argument("words", nargs=-1, metavar="[-- COMMAND ...]")
@_options(_python, _device, _output, _json)
@click.option(
    "--minutes",
    type=click.FloatRange(0.05, 1440.0),
    default=10.0,
    show_default=True,
    help="Time for all of it.",
)
@click.option(
    "--workload",
    "workloads",
    multiple=True,
    type=click.Choice(("cnn", "encoder", "decoder")),
    help="Measure this workload only (repeatable).",
)
@click.option(
    "--only", multiple=True, metavar="TECHNIQUE", help="Try this technique only (repeatable)."
)
@click.option("--markdown", is_flag=True, help="Print Markdown.")
@click.option(
    "--chart", type=click.Path(dir_okay=False), metavar="FILE", help="Draw a chart: .svg or .png."
)
@click.option(
    "--stop", is_flag=True, help="With a command: end it after --minutes, else it runs on."
)
@click.option("--scale", type=click.Choice(("tiny",)), hidden=True)
@click.option("--plant", multiple=True, hidden=True)
def bench(**options: Any) -> int:
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
    return commands.bench(Options(**options))


@main.command()
@click.argument("cause", required=False)
def explain(cause: str | None) -> int:
    """Say what a cause is, how it is told and what cures it; without a name, list them."""
    return commands.explain(cause)


@main.command()
@_options(_looking, _full, _output)
def facts(**options: Any) -> int:
    """Print what is known of this machine as a document that --from can read."""
    return commands.facts(Options(**options))


@main.command()
@click.argument("folder", metavar="DIR")
@_options(_looking, _full)
def record(folder: str, **options: Any) -> int:
    """Write the raw answers of this host into DIR, for a bug report that becomes a test.

    DIR is made; one that is not empty is refused. Names, secrets and identifiers are replaced
    unless --full.
    """
    return commands.record(folder, Options(**options))


@main.command()
def version() -> int:
    """Print the version and the day of the knowledge."""
    from cudadoctor import knowledge

    click.echo(f"{PROGRAM} {__version__}, knowledge of {knowledge.load().date}")
    return 0
