"""The command `health`: look, measure in the examined interpreter, judge, show."""

from __future__ import annotations

import datetime
import sys
import time
from pathlib import Path
from typing import Any

from cudadoctor import __version__, knowledge
from cudadoctor.cli.options import Options, refuse, refuse_device
from cudadoctor.cli.output import Waiting, painted, replaced, signs, width, written
from cudadoctor.cli.speech import current, say, spoken
from cudadoctor.health import judging, measured, page
from cudadoctor.host import local
from cudadoctor.host.children import Ran
from cudadoctor.model.machine import Json, Machine
from cudadoctor.model.versions import version_of
from cudadoctor.probes.examine import Look, NoInterpreter, examine
from cudadoctor.probes.nvml import module_folder
from cudadoctor.probes.streamed import Shown, line_of
from cudadoctor.smoke import INSIDE, skipped
from cudadoctor.smoke.inside.wire import BOOT

LIMIT_S = 240.0
"""For all but the soak: many GPUs without persistence mode need half a minute to start."""
SILENT_S, ENDING_S = 120.0, 10.0
"""How long the child may say nothing, and how long it may take to end: a lost GPU can keep it."""
NVLS_SINCE = "9.0"
CODES = {"healthy": 0, "warnings": 0, "broken": 1, "undecided": 3}


def run(asked: Options) -> int:
    """0 healthy or warnings, 1 broken (--strict: or warnings), 3 where no GPU was measured."""
    refuse_device(asked)
    if asked.device == "cpu":
        refuse("health measures GPUs only: use --device cuda or cuda:N")
    for file in (asked.output, asked.prometheus):
        # Told before the measuring, not after it.
        if file and not Path(file).absolute().parent.is_dir():
            refuse("cannot write to {path}: the folder does not exist", path=file)
    before = _examined(asked)
    python = before.python.executable
    if python is None or before.torch.installed is False:
        why = say(
            "torch is not installed in {python}" if python else "no Python found", python=python
        )
        sys.stderr.write(f"cudadoctor: {say('cannot measure: {why}', why=why)}\n")
        return CODES["undecided"]
    found = _measured(asked, before, python)
    after = _examined(asked) if found.boards and not found.pretended else before
    xids = judging.new_xids(before.driver.xids, after.driver.xids, found.boards)
    kb = knowledge.load()
    anomalies = judging.judge(found, kb, xids=xids)
    driver = before.driver.version
    health = page.Health(
        cudadoctor=__version__,
        date=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        verdict=judging.verdict_of(found, anomalies),
        examined=python,
        driver=None if driver is None else str(driver),
        measured=found,
        anomalies=anomalies,
        unjudged=judging.unjudged(found, kb),
    )
    if asked.prometheus:
        replaced(page.prometheus(health, time.time()), asked.prometheus)
    written(_text(health, asked), asked.output)
    if health.verdict == "warnings" and asked.strict:
        return 1
    return CODES[health.verdict]


def _examined(asked: Options) -> Machine:
    try:
        with Waiting() as waiting:
            return examine(Look(python=asked.python, depth="fast", device=asked.device), waiting)
    except NoInterpreter as error:
        refuse(spoken(str(error)))


def _measured(asked: Options, machine: Machine, python: str) -> measured.Measurements:
    """Everything by one child; by a second one what NCCL does without NVLink SHARP."""
    planted = dict(word.partition("=")[::2] for word in asked.plant)
    options: Json = {"device": asked.device, "nvml": module_folder(), "soak": asked.soak, **planted}
    options["until"] = f"{LIMIT_S + asked.soak - 5.0:g}"
    words = [f"{name}={value}" for name, value in options.items() if value]
    words += [f"skip={bus}|{position}|{reason}" for bus, position, reason in skipped(machine.gpus)]
    with Waiting(lead="") as waiting:
        shown = Shown(waiting)
        ran = _child(python, words, LIMIT_S + asked.soak, shown)
        lines = list(filter(measured.sound, map(line_of, ran.stdout.splitlines())))
        found = measured.read(
            [line for line in lines if line], pretended="pretend" in planted, ended=_ended(ran)
        )
        least = version_of(NVLS_SINCE)
        newer = [version_of(board.capability) for board in found.boards]
        if len(newer) > 1 and all(each and least and each >= least for each in newer):
            env = {"NCCL_NVLS_ENABLE": "0"}
            more = _child(python, [*words, "only=reduce"], LIMIT_S, shown, **env)
            again = [line for line in map(line_of, more.stdout.splitlines()) if line]
            sums = [{**line, "nvls": False} for line in again if line["kind"] == "figure"]
            lines += filter(measured.sound, sums)
            found = measured.read(
                [line for line in lines if line], pretended=found.pretended, ended=_ended(ran)
            )
        shown.now(None)
    return found


def _child(python: str, words: list[str], limit_s: float, shown: Shown, **variables: str) -> Ran:
    """Run the child to its end, its deadline, or a silence that no window of work explains."""

    def on_line(text: str) -> float:
        line = line_of(text)
        if line and line["kind"] == "doing":
            shown.now(say("measuring {what}", what=line["what"]))
        return ENDING_S if line and line["kind"] in ("lost", "done") else SILENT_S

    host = local.this_host()
    shown.now(say("import torch"))
    argv: Any = (python, "-c", BOOT, str(INSIDE), "health", *words)
    return host.run(*argv, timeout_s=limit_s, env={**host.env, **variables}, on_line=on_line)


def _ended(ran: Ran) -> str:
    if ran.ok:
        return ""
    last = next(reversed([line for line in ran.stderr.splitlines() if line.strip()]), "")
    return ran.why or f"the Python process ended with status {ran.code} {last[:200]}".strip()


def _text(health: page.Health, asked: Options) -> str:
    if asked.as_json:
        from cudadoctor.render import json_v1

        return json_v1.dumps(page.document(health)) + "\n"
    from cudadoctor.render.terminal import Layout

    shown = Layout(width=width(), signs=signs() and not asked.output, say=current())
    return painted(page.report(health, shown), to_file=asked.output is not None)
