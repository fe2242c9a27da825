"""Plugins: found beside the doctor, and asked in processes of their own with a time limit.

Only what is installed where the doctor itself is installed counts, never what the examined
environment or the working folder holds.
"""

from __future__ import annotations

import json
import os
import site
import sys
from typing import TYPE_CHECKING

import cudadoctor
from cudadoctor.cli.looking import note
from cudadoctor.cli.options import Options

if TYPE_CHECKING:
    from cudadoctor.model.findings import Plugged
    from cudadoctor.model.machine import Gap, Json, Machine, Scalar
    from cudadoctor.plugins.answers import Answer, EntryPoint

LIMIT_S = 10.0
BOOT = (
    "import json, sys; request = json.loads(sys.stdin.read()); sys.path[:] = request['path']; "
    "from cudadoctor.plugins.child import main; main(request)"
)
_MARK = b"[cudadoctor."
_INFO = ".dist-info"


def installed(options: Options) -> tuple[EntryPoint, ...]:
    """The entry points of all distributions beside the doctor, without loading any."""
    if options.no_plugins:
        return ()
    texts = [text for folder in _folders() for text in _named(folder)]
    if not texts:
        return ()
    from cudadoctor.plugins import answers

    found = {
        (entry.plugin, entry.group): entry
        for name, text in reversed(texts)
        for entry in answers.entry_points(text, name)
    }
    return tuple(sorted(found.values(), key=lambda entry: (entry.plugin, entry.group)))


def names(options: Options) -> list[str]:
    """The plugins whose causes may be named; looked for only where one is."""
    return [entry.plugin for entry in installed(options)] if options.ignore else []


def _folders() -> list[str]:
    """Where packages of this interpreter are, and where the doctor lies."""
    home = os.path.dirname(os.path.dirname(os.path.abspath(cudadoctor.__file__)))
    named: list[str] = getattr(site, "getsitepackages", list)()
    return list(dict.fromkeys((home, *named)))


def _named(folder: str) -> list[tuple[str, str]]:
    """Distribution -> its entry points, of those that have some for the doctor."""
    found = []
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(_INFO))
    except OSError:
        return []
    for name in names:
        try:
            with open(os.path.join(folder, name, "entry_points.txt"), "rb") as file:
                data = file.read(1 << 16)
        except OSError:
            continue
        if _MARK in data:
            found.append((name.removesuffix(_INFO), data.decode(errors="replace")))
    return found


def with_facts(machine: Machine, options: Options) -> Machine:
    """The machine with the facts that plugins read on this host."""
    entries = [entry for entry in installed(options) if entry.group.endswith(".facts")]
    if not entries:
        return machine
    from msgspec.structs import replace

    facts: dict[str, dict[str, Scalar]] = {}
    gaps: list[Gap] = []
    for entry, answer in _asked(entries, None, options, gaps):
        facts[entry.plugin] = answer.facts
    origins = {f"plugins.{entry.plugin}": entry.distribution for entry in entries}
    return replace(
        machine,
        plugins={**machine.plugins, **facts},
        origins={**machine.origins, **origins},
        gaps=(*machine.gaps, *gaps),
    )


def judged(machine: Machine, options: Options) -> tuple[Machine, Plugged]:
    """What the rules of plugins say; the machine gets a gap for each that failed."""
    entries = [entry for entry in installed(options) if entry.group.endswith(".rules")]
    from cudadoctor.model.findings import Plugged

    if not entries:
        return machine, Plugged()
    from msgspec.structs import replace

    gaps: list[Gap] = []
    answers = [answer for _, answer in _asked(entries, machine, options, gaps)]
    said = Plugged(
        findings=tuple(found for answer in answers for found in answer.findings),
        passed=tuple(cause for answer in answers for cause in answer.passed),
        undecided=tuple(gap for answer in answers for gap in answer.undecided),
    )
    return replace(machine, gaps=(*machine.gaps, *gaps)) if gaps else machine, said


def _asked(
    entries: list[EntryPoint], machine: Machine | None, options: Options, gaps: list[Gap]
) -> list[tuple[EntryPoint, Answer]]:
    """Ask them side by side; what fails is a gap, and said on stderr."""
    from concurrent.futures import ThreadPoolExecutor

    from cudadoctor.cli.speech import say
    from cudadoctor.model import factfile
    from cudadoctor.model.machine import Gap

    plain = None if machine is None else factfile.json_safe(factfile.encode(machine))

    def ask(entry: EntryPoint) -> tuple[Answer, str | None]:
        return _answer(entry, plain, min(LIMIT_S, options.timeout or LIMIT_S))

    with ThreadPoolExecutor(max_workers=8) as pool:
        answers = list(pool.map(ask, entries))
    for entry, (_, why) in zip(entries, answers, strict=True):
        if why is not None:
            gaps.append(Gap(fact=f"plugins.{entry.plugin}", why=why, asked=False))
            note(say("the plugin {name} failed: {why}", name=entry.plugin, why=why))
    return [(entry, answer) for entry, (answer, _) in zip(entries, answers, strict=True)]


def _answer(entry: EntryPoint, machine: Json | None, limit_s: float) -> tuple[Answer, str | None]:
    from cudadoctor.cli import looking
    from cudadoctor.host import local
    from cudadoctor.plugins import answers

    if not answers.is_plugin_name(entry.plugin):
        why = "the name of its entry point is not made of small letters, digits and hyphens"
        return answers.Answer(), why
    request = {
        "path": sys.path,
        "group": entry.group,
        "module": entry.module,
        "attribute": entry.attribute,
        "machine": machine,
        "tables": looking.named_tables(),
    }
    host = local.this_host()
    argv = (sys.executable, "-I", "-c", BOOT)
    ran = host.run(*argv, timeout_s=limit_s, stdin=json.dumps(request))
    lines = ran.stdout.splitlines()
    if ran.why or not lines:
        return answers.Answer(), ran.why or f"its process ended with status {ran.code}"
    return answers.read(lines[-1], entry.plugin)
