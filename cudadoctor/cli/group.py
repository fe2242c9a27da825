"""The command line: parse, call, print, exit."""

from __future__ import annotations

import inspect
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from cudadoctor import __version__
from cudadoctor.cli import commands, looking, speech
from cudadoctor.cli.options import (
    FORMS,
    Options,
    WrongUse,
    refuse,
    refuse_unknown,
    seconds,
    unknown,
)
from cudadoctor.cli.output import width
from cudadoctor.cli.speech import say
from cudadoctor.installers import registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from click.shell_completion import CompletionItem

PROGRAM = "cudadoctor"
_OF_THE_GROUP = ("-h", "--help", "-V", "--version", "--lang")


def run(argv: list[str] | None = None) -> int:
    """Run a command and return the exit code. Wrong use is one sentence on stderr and a 2."""
    words = sys.argv[1:] if argv is None else argv
    speech.speak(speech.chosen(words, os.environ))
    try:
        answer = main.main(
            args=with_command(words),
            prog_name=PROGRAM,
            standalone_mode=False,
            terminal_width=width() - 2,
        )
    except click.exceptions.Abort:
        return 130
    except click.ClickException as error:
        return WrongUse(_sentence(error)).report()
    except WrongUse as error:
        return error.report()
    return answer if isinstance(answer, int) else 0


def with_command(argv: Sequence[str]) -> list[str]:
    """The words with the command that a call without one means: a check."""
    words = list(argv)
    rest = words
    while rest[:1] and rest[0].partition("=")[0] == "--lang":
        rest = rest[1:] if "=" in rest[0] else rest[2:]
    bare = not rest or (rest[0].startswith("-") and rest[0] not in _OF_THE_GROUP)
    return ["check", *words] if bare else words


# --- what is wrong with the words ---------------------------------------------------------------


def _sentence(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    command = context.command_path if context else PROGRAM
    match error:
        case click.NoSuchOption():
            parameters = context.command.get_params(context) if context else []
            known = [name for parameter in parameters for name in parameter.opts]
            return unknown(
                error.option_name,
                known,
                "'{name}' is not an option of this command",
                f"{command} --help",
            )
        case click.BadOptionUsage() if error.message.endswith("argument."):
            text = say("{option} needs a value.", option=error.option_name)
        case click.BadOptionUsage():
            text = say("{option} does not take a value.", option=error.option_name)
        case click.MissingParameter():
            metavar = error.param.human_readable_name if error.param else "?"
            text = say("The {argument} argument is missing.", argument=metavar)
        case _:
            text = error.format_message()
    return text + say(" See: {command}", command=f"{command} --help")


def _one_of(*choices: str) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Refuses any other word."""

    def checked(_: click.Context, option: click.Parameter, value: Any) -> Any:
        for word in value if isinstance(value, tuple) else (value,):
            if word not in (None, *choices):
                refuse(
                    "'{value}' is not a valid value for {option}: choose one of {choices}",
                    value=word,
                    option=option.opts[-1],
                    choices=", ".join(choices),
                )
        return value

    return checked


def _number(
    kind: type[int] | type[float], least: float, most: float
) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Refuses what is no number within these limits."""

    def checked(_: click.Context, option: click.Parameter, value: Any) -> Any:
        if value is None:
            return None
        try:
            number = kind(value)
        except ValueError:
            number = kind(least - 1)
        if not least <= number <= most:
            refuse(
                "'{value}' is not a valid value for {option}: enter a number from {least} to "
                "{most}",
                value=value,
                option=option.opts[-1],
                least=f"{least:g}",
                most=f"{most:g}",
            )
        return number

    return checked


def _file(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """Refuses a folder before the work is done, not after it."""
    if value is not None and os.path.isdir(value):  # noqa: PTH112
        refuse("{path} is a folder; specify a file", path=value)
    return value


def _new_file(ctx: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """The same, and a folder that does not exist."""
    if value is not None and not os.path.isdir(os.path.dirname(os.path.abspath(value))):  # noqa: PTH100, PTH112, PTH120
        refuse("cannot write to {path}: the folder does not exist", path=value)
    return _file(ctx, option, value)


# --- shell completion ---------------------------------------------------------------------------


def _words(names: Callable[[], Iterable[str]]) -> Callable[..., list[str]]:
    """Completes with those of the names that begin so."""

    def complete(_: click.Context, __: click.Parameter, begun: str) -> list[str]:
        return [name for name in names() if name.startswith(begun)]

    return complete


def _paths(kind: str) -> Callable[..., list[CompletionItem]]:
    """Leaves it to the shell to complete a file or a folder ("dir")."""

    def complete(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        return [CompletionItem(begun, type=kind)]

    return complete


def _causes() -> Iterable[str]:
    from cudadoctor.model.catalogue import CATALOGUE

    return CATALOGUE


def _techniques() -> Iterable[str]:
    from cudadoctor.bench.techniques import ORDER

    return ORDER


def _choice(*choices: str) -> dict[str, Any]:
    """A value that is one of these words."""
    return {"callback": _one_of(*choices), "shell_complete": _words(lambda: choices)}


_COMPLETED = {
    **dict.fromkeys(("FILE", "FILE...", "PATH"), _paths("file")),
    "DIR": _paths("dir"),
    **dict.fromkeys(("CAUSE", "[TEXT]"), _words(_causes)),
    "TECHNIQUE": _words(_techniques),
}
"""What stands for a value -> how a shell completes it."""


def _tables(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    """Reads the tables that every command judges with, before it begins."""
    if not ctx.resilient_parsing:
        looking.use_tables(value)


# --- help ---------------------------------------------------------------------------------------

_Groups = dict[str, tuple[click.Option, ...]]
_HELP = "Show this help"


class _Speaking(click.Command):
    """A command whose help is translated, and whose options stand under headings."""

    groups: Mapping[str, tuple[click.Option, ...]]

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        pieces = " ".join(self.collect_usage_pieces(ctx))
        formatter.write_usage(ctx.command_path, pieces, prefix=say("Usage: "))

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        own, *others = super().collect_usage_pieces(ctx)
        return [say(own), *others]

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        for paragraph in (self.help or "").split("\n\n"):
            formatter.write_paragraph()
            formatter.write_text(say(" ".join(paragraph.split())))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups = {heading: [*options] for heading, options in self.groups.items()}
        if own := self.get_help_option(ctx):
            groups[list(groups)[-1]].append(own)
        records = {
            heading: list(filter(None, [option.get_help_record(ctx) for option in options]))
            for heading, options in groups.items()
        }
        column = max(len(names) for group in records.values() for names, _ in group)
        for heading, group in records.items():
            with formatter.section(say(heading)):
                formatter.write_dl([(names.ljust(column), say(text)) for names, text in group])

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        found = super().get_help_option(ctx)
        if found is not None:
            found.help = _HELP
        return found

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            rest = super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise
        if ctx.args and not isinstance(self, click.Group):
            refuse(
                "unexpected argument '{word}'. See: {command}",
                word=ctx.args[0],
                command=f"{ctx.command_path} --help",
            )
        return rest


class _Command(_Speaking):
    """One command."""

    def __init__(self, groups: _Groups, **attributes: Any) -> None:
        self.groups = groups
        super().__init__(**attributes, context_settings={"allow_extra_args": True})


class _Program(_Speaking, click.Group):
    """The program, whose commands stand in the order of their use."""

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return [say("[COMMAND] [OPTIONS]")]

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if self.get_command(ctx, args[0]) is None:
            refuse_unknown(
                args[0],
                list(self.commands),
                "'{name}' is not a cudadoctor command",
                f"{PROGRAM} --help",
            )
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section(say("Commands")):
            formatter.write_dl(
                [(name, say(command.short_help or "")) for name, command in self.commands.items()]
            )
        super().format_options(ctx, formatter)
        with formatter.section(say("Examples")):
            formatter.write_dl(
                [(line, say(text)) for line, text in _EXAMPLES],
                col_max=40 if formatter.width >= 60 else 20,
            )


_EXAMPLES = (
    ("cudadoctor", "Check the Python that you are using"),
    ("cudadoctor check --python ~/venv", "Check another environment"),
    ("cudadoctor check --from log.txt", "Read a report or an error log"),
    ("cudadoctor fix", "Show the fix, then ask before applying it"),
)


def _option(*names: str, **attributes: Any) -> click.Option:
    attributes.setdefault("shell_complete", _COMPLETED.get(attributes.get("metavar", "")))
    return click.Option(names, **attributes)


def _argument(name: str, metavar: str, **attributes: Any) -> click.Argument:
    return click.Argument(
        [name], metavar=metavar, shell_complete=_COMPLETED.get(metavar), **attributes
    )


def _version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(f"{PROGRAM} {__version__}")
        ctx.exit()


def _json_schema(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from cudadoctor.render import json_schema

        click.echo(json_schema.dumps(), nl=False)
        ctx.exit()


# Not passed on: `speech` reads it from the words, before anything is parsed.
_lang = _option(
    "--lang",
    **_choice(*speech.LANGUAGES),
    metavar="|".join(speech.LANGUAGES),
    expose_value=False,
    help="Language (default: your locale's)",
)
_own = (
    _option(
        *("-V", "--version"),
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_version,
        help="Print the version",
    ),
    _lang,
)

main = _Program(
    PROGRAM,
    params=list(_own),
    help="Find out why PyTorch does not use your GPU, and fix it.\n\nWithout a command, "
    "cudadoctor runs `cudadoctor check`.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
main.groups = {"Options": _own}


def _add(work: Callable[..., int], short: str, *arguments: click.Argument, **groups: Any) -> None:
    """Add a command: its name and its help are those of the function that does it.

    The function gets the values of its arguments, then its options. groups: key of a heading ->
    its options.
    """
    named = {"folder"} & {parameter.name for parameter in arguments}
    headed = {_HEADINGS[key]: tuple(options) for key, options in groups.items()}

    def call(**given: Any) -> int:
        return work(*[given.pop(name) for name in named], *([Options(**given)] if given else ()))

    options = [option for group in headed.values() for option in group]
    main.add_command(
        _Command(
            headed,
            name=work.__name__,
            params=[*arguments, *options],
            callback=call,
            help=inspect.cleandoc(work.__doc__ or ""),
            short_help=short,
        )
    )


_HEADINGS = {
    "look": "What to examine",
    "judge": "Diagnosis",
    "cure": "How to fix it",
    "make": "What to install",
    "measure": "What to measure",
    "instead": "Print the fix instead of applying it",
    "earlier": "Previous fixes",
    "show": "Output",
    "other": "Options",
}

_folder = _argument("folder", "DIR")
_python = _option("--python", metavar="PATH", help="Python or environment to examine")
_device = _option("--device", metavar="DEVICE", help="Where to train: cpu, cuda or cuda:N")
_torch_compile = _option(
    "--torch-compile", is_flag=True, help="Also try torch.compile in the training step"
)
_timeout = _option(
    "--timeout",
    callback=lambda _, __, text: seconds(text),
    metavar="SECONDS",
    help="Time limit for each probe",
)
_full = _option("--full", is_flag=True, help="Do not hide names, paths or identifiers")
_output = _option("-o", "--output", callback=_file, metavar="FILE", help="Write to a file")
_json = _option("--json", "as_json", is_flag=True, help="Print JSON")
_markdown = _option("--markdown", is_flag=True, help="Print Markdown for an issue or a chat")
_manager = _option(
    "--with",
    "manager",
    **_choice(*registry.BY_NAME),
    metavar="TOOL",
    help="pip, uv, conda, pixi or docker",
)
_torch = _option("--torch", metavar="VERSION", help="Stay on this torch release, e.g. 2.6")
_verify = _option("--verify", is_flag=True, help="Check first that the packages resolve")
_yes = _option("--yes", is_flag=True, help="Do not ask for confirmation")
_saved = _option(
    "--from",
    "saved",
    multiple=True,
    metavar="FILE",
    help="Read a report or error log instead",
)
_looking = (
    _python,
    _option("--fast", is_flag=True, help="Skip importing torch and the training step"),
    _option("--no-smoke", is_flag=True, help="Import torch, but skip the training step"),
    _device,
    _timeout,
)
_knowledge = _option(
    "--knowledge",
    callback=_tables,
    metavar="FILE",
    expose_value=False,
    help="Use the tables in this file",
)
_judging = (
    _option("--ignore", multiple=True, metavar="CAUSE", help="Ignore a cause (repeatable)"),
    _option("--compile", "compiles", is_flag=True, help="Assume you will compile CUDA extensions"),
    _option("--as-of", metavar="YYYY-MM-DD", help="Evaluate the report as of this date"),
    _knowledge,
)

_add(
    commands.check,
    "Find what is wrong and how to fix it",
    look=(_python, _saved, *_looking[1:-1], _torch_compile, _timeout),
    judge=(
        *_judging,
        _option("--strict", is_flag=True, help="Exit with code 1 for warnings too"),
        _option("--advice", is_flag=True, help="Also suggest how to speed up training"),
    ),
    show=(
        _option("-v", "--verbose", count=True, help="Show every check, value and source"),
        _option("-q", "--quiet", is_flag=True, help="Print only a one-line answer"),
        *(_output, _json, _markdown),
        _option(
            "--format",
            callback=_one_of(*FORMS),
            metavar="FORMAT",
            help="github, sarif, junit or prometheus",
        ),
        _option("--html", callback=_new_file, metavar="FILE", help="Also write a web page"),
        _option(
            "--json-schema",
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_json_schema,
            help="Print the JSON schema of --json",
        ),
        *(_full, _lang),
    ),
)
_add(
    commands.fix,
    "Apply the fix (you can undo it)",
    look=(_python, _saved, *_looking[1:]),
    judge=_judging,
    cure=(
        *(_manager, _torch, _verify),
        _option(
            "--allow-shared",
            "shared",
            is_flag=True,
            help="Also change a shared Python installation",
        ),
        _yes,
    ),
    earlier=(
        _option("--undo", is_flag=True, help="Undo the last fix"),
        _option("--resume", is_flag=True, help="Finish a fix that was interrupted"),
        _option("--forget", is_flag=True, help="Delete undo data to free space"),
    ),
    instead=(
        _option("--print", "printed", is_flag=True, help="Print a shell script"),
        _option(
            "--shell",
            **_choice("bash", "fish", "powershell"),
            metavar="SHELL",
            help="bash, fish or powershell",
        ),
        _option(
            "--as",
            "kind",
            **_choice(*registry.BY_KIND),
            metavar="KIND",
            help="Print a project file of this kind",
        ),
        _option("--hashes", is_flag=True, help="With --as requirements: add hashes"),
    ),
    show=(_output, _json, _full, _lang),
)
_add(
    commands.setup,
    "Create a working environment",
    _folder,
    make=(
        _option("--python", metavar="PATH", help="Python to create the environment with"),
        *(_manager, _torch, _verify, _knowledge, _device, _timeout, _yes),
    ),
    show=(_json, _lang),
)
_add(
    commands.smoke,
    "Run only the training step",
    look=(
        *(_python, _device, _timeout),
        _option(
            "--ranks", callback=_number(int, 1, 64), metavar="N", help="Number of DDP processes"
        ),
        _torch_compile,
    ),
    show=(_json, _lang),
)
_add(
    commands.bench,
    "Measure what makes training faster",
    _argument("words", "[-- COMMAND ...]", nargs=-1),
    measure=(
        *(_python, _device),
        _option(
            "--minutes",
            callback=_number(float, 0.05, 1440),
            default="10",
            metavar="N",
            help="Total time in minutes (default: 10)",
        ),
        _option(
            "--workload",
            "workloads",
            multiple=True,
            **_choice("cnn", "encoder", "decoder"),
            metavar="NAME",
            help="Only cnn, encoder or decoder (repeatable)",
        ),
        _option(
            "--only", multiple=True, metavar="TECHNIQUE", help="Only this technique (repeatable)"
        ),
        _option("--stop", is_flag=True, help="Stop the command at the time limit"),
        _option("--scale", type=click.Choice(("tiny",)), hidden=True),
        _option("--plant", multiple=True, hidden=True),
    ),
    show=(
        *(_output, _json, _markdown),
        _option("--chart", callback=_file, metavar="FILE", help="Draw a chart (.svg or .png)"),
        _lang,
    ),
)
_add(
    commands.health,
    "Measure the speed and soundness of the GPUs",
    measure=(
        _python,
        _option("--device", metavar="DEVICE", help="Which GPU: cuda or cuda:N (default: all)"),
        _option(
            "--soak",
            callback=_number(float, 0, 86400),
            default="0",
            metavar="SECONDS",
            help="Go on multiplying for this long",
        ),
        _option("--plant", multiple=True, hidden=True),
    ),
    show=(
        *(_output, _json),
        _option(
            "--prometheus", callback=_file, metavar="FILE", help="Also write metrics to a file"
        ),
        _option("--strict", is_flag=True, help="Exit with code 1 for warnings too"),
        _lang,
    ),
)
_add(
    commands.explain,
    "Explain an error text or a cause",
    _argument("words", "[TEXT]", nargs=-1),
    other=(_lang,),
)
_add(
    commands.facts,
    "Save the facts about this machine",
    look=_looking,
    show=(_full, _output, _lang),
)
_add(
    commands.compare,
    "Show what differs between hosts",
    _argument("words", "FILE...", nargs=-1, required=True),
    show=(_json, _output, _lang),
)
_add(
    commands.cluster,
    "Check all ranks of a launched job",
    look=(
        *(_python, _timeout),
        _option("--exit-zero", is_flag=True, help="Always exit with code 0"),
        _option("--plant", multiple=True, hidden=True),
    ),
    show=(_json, _output, _lang),
)
_add(
    commands.record,
    "Record raw data for a bug report",
    _folder,
    look=_looking,
    show=(_full, _lang),
)
_add(
    commands.update,
    "Update the compatibility tables",
    other=(
        _option("--check", "newer", is_flag=True, help="Only check for a newer PyTorch release"),
        _option("-o", "--output", callback=_file, metavar="FILE", help="Save all tables to a file"),
        _option("-q", "--quiet", is_flag=True, help="Print only a one-line answer"),
        _lang,
    ),
)
_add(commands.version, "Print the version", other=(_knowledge, _lang))
