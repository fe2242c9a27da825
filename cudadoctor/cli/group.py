"""The command line: parse, call, print, exit."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import click

from cudadoctor import __version__
from cudadoctor.cli import commands
from cudadoctor.cli.options import EXIT, Options, WrongUse, seconds
from cudadoctor.installers import registry

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
        return WrongUse(error.format_message()).report()
    except WrongUse as error:
        return error.report()
    return answer if isinstance(answer, int) else 0


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name=PROGRAM)
def main() -> None:
    """Says why PyTorch does not use the GPU, shows the evidence and prints the repair.

    Start with `cudadoctor check`.
    """


def _add(work: Callable[..., int], *parameters: click.Parameter) -> None:
    """Add a command: its name and its help are those of the function that does it.

    The function gets the values of its arguments, then its options.
    """
    named = {"folder", "cause"} & {parameter.name for parameter in parameters}

    def call(**given: Any) -> int:
        return work(*[given.pop(name) for name in named], *([Options(**given)] if given else ()))

    text = inspect.cleandoc(work.__doc__ or "")
    main.add_command(
        click.Command(work.__name__, params=list(parameters), callback=call, help=text)
    )


def _option(*names: str, **attributes: Any) -> click.Option:
    return click.Option(names, **attributes)


_folder = click.Argument(["folder"], metavar="DIR")
_python = _option(
    "--python",
    metavar="PATH",
    help="The interpreter to examine: a python, or a venv or conda folder.",
)
_device = _option("--device", help="Device of the training step: cpu, cuda or cuda:N.")
_timeout = _option(
    "--timeout",
    callback=lambda _, __, text: seconds(text),
    metavar="S",
    help="Limit for each probe, in seconds.",
)
_full = _option("--full", is_flag=True, help="Hide nothing: names, paths and identifiers stay.")
_output = _option(
    "--output", type=click.Path(dir_okay=False), metavar="FILE", help="Write there, not to stdout."
)
_json = _option("--json", "as_json", is_flag=True, help="Print JSON (schema 1).")
_manager = _option(
    "--with",
    "manager",
    type=click.Choice([*registry.BY_NAME]),
    help="Package manager for the commands.",
)
_torch = _option(
    "--torch", metavar="VERSION", help="Keep to this release of torch (2.6, 2.6.0, >=2.6,<2.8)."
)
_verify = _option(
    "--verify", is_flag=True, help="Ask a real resolver first whether the packages can be had."
)
_looking = (
    _python,
    _option("--fast", is_flag=True, help="Do not import torch and run no training step."),
    _option("--no-smoke", is_flag=True, help="Import torch but run no training step."),
    _device,
    _timeout,
)
_judging = (
    _option(
        "--from",
        "saved",
        multiple=True,
        metavar="FILE",
        help="Judge saved facts, not this machine: a file, a folder or - (repeatable).",
    ),
    _option("--as-of", metavar="DATE", help="Judge a report as of this day (YYYY-MM-DD)."),
    _option("--ignore", multiple=True, metavar="CAUSE", help="Leave this cause out (repeatable)."),
    _option("--compile", "compiles", is_flag=True, help="Extensions will be compiled here."),
    _option("--lang", type=click.Choice(("en", "es")), default="en", help="Language."),
    _full,
    _output,
    _json,
)

_add(
    commands.check,
    *_looking,
    *_judging,
    _option("--markdown", is_flag=True, help="Print Markdown, for an issue."),
    _option("--strict", is_flag=True, help="Warnings exit with 1 too."),
    _option(
        "--advice", is_flag=True, help="Say too what is expected to make training faster here."
    ),
    _option(
        "-v", "--verbose", count=True, help="Show more: infos, explained findings, all values."
    ),
)
_add(
    commands.fix,
    *_looking,
    *_judging,
    _option("--print", "printed", is_flag=True, help="Print the plan as a shell script."),
    _manager,
    _option(
        "--shell",
        type=click.Choice(("bash", "fish", "powershell")),
        help="Shell; that of the machine where none is named.",
    ),
    _torch,
    _option(
        "--as",
        "kind",
        type=click.Choice([*registry.BY_KIND]),
        help="Print the build for this machine as a file of a project.",
    ),
    _option("--hashes", is_flag=True, help="With --as requirements: with the files' hashes."),
    _verify,
    _option("--yes", is_flag=True, help="Apply without asking."),
    _option("--undo", is_flag=True, help="Bring back what was there before the last repair."),
    _option("--resume", is_flag=True, help="Go on with a repair that was interrupted."),
    _option("--forget", is_flag=True, help="Remove what --undo would bring back."),
    _option(
        "--allow-shared",
        "shared",
        is_flag=True,
        help="Apply also to the system's Python or conda's base, which others share.",
    ),
)
_add(
    commands.setup,
    _folder,
    *(_python, _device, _timeout, _manager, _torch, _verify, _json),
    _option("--yes", is_flag=True, help="Make it without asking."),
)
_add(
    commands.smoke,
    *(_python, _device, _timeout, _json),
    _option("--ranks", type=click.IntRange(1, 64), help="Processes of the DDP stage."),
)
_add(
    commands.bench,
    click.Argument(["words"], nargs=-1, metavar="[-- COMMAND ...]"),
    *(_python, _device, _output, _json),
    _option(
        "--minutes",
        type=click.FloatRange(0.05, 1440.0),
        default=10.0,
        show_default=True,
        help="Time for all of it.",
    ),
    _option(
        "--workload",
        "workloads",
        multiple=True,
        type=click.Choice(("cnn", "encoder", "decoder")),
        help="Measure this workload only (repeatable).",
    ),
    _option(
        "--only", multiple=True, metavar="TECHNIQUE", help="Try this technique only (repeatable)."
    ),
    _option("--markdown", is_flag=True, help="Print Markdown."),
    _option(
        "--chart",
        type=click.Path(dir_okay=False),
        metavar="FILE",
        help="Draw a chart: .svg or .png.",
    ),
    _option(
        "--stop", is_flag=True, help="With a command: end it after --minutes, else it runs on."
    ),
    _option("--scale", type=click.Choice(("tiny",)), hidden=True),
    _option("--plant", multiple=True, hidden=True),
)
_add(commands.explain, click.Argument(["cause"], required=False))
_add(commands.facts, *_looking, _full, _output)
_add(commands.record, _folder, *_looking, _full)
_add(commands.version)
