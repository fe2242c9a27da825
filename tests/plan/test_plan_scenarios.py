"""The plan of every scenario: sound, mergeable, printable, and never harmful."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace
from powershell_grammar import mistakes
from printed_scripts import without_printing
from remedy_fixtures import never
from scenario_reader import read_scenario, scenario_paths

from cudadoctor import knowledge
from cudadoctor.model.findings import Plan, Step
from cudadoctor.plan.planner import plan
from cudadoctor.render.script import script
from cudadoctor.render.shells import ShellName
from cudadoctor.render.summary import is_runnable
from cudadoctor.rules.diagnose import diagnose

PATHS = scenario_paths()
SHELLS: tuple[ShellName, ...] = ("bash", "fish", "powershell")


def words_of(step: Step) -> str:
    parts = [step.title, step.manual or "", step.note or ""]
    parts += [" ".join(argv) for argv in step.commands]
    parts += [f"{edit.file}: {edit.what}" for edit in step.edits]
    parts += [f"{name}={value}" for name, value in step.variables.items()]
    return "\n".join(parts)


def check_shape(steps: Plan) -> None:
    ids = [step.id for step in steps.steps]
    assert len(ids) == len(set(ids))
    for step in steps.steps:
        assert step.group in ids
        assert step.cures
        assert step.commands or step.manual or step.variables or step.edits, step.id
        assert all(word and "\0" not in word for argv in step.commands for word in argv)
        assert not any(argv[0] == "sudo" for argv in step.commands)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_the_plan_of_a_scenario_is_sound_and_harmless(path: Path) -> None:
    machine = read_scenario(path).machine
    tables = knowledge.load()
    diagnosis = diagnose(machine, tables)
    steps = plan(machine, tables, diagnosis)
    check_shape(steps)
    for step in steps.steps:
        for pattern, why in never(step.id):
            assert not re.search(pattern, words_of(step)), f"{step.id}: {why}: {words_of(step)}"
    for shell in SHELLS:
        text = script(
            steps, machine, diagnosis, shell=shell, version="0.1.0", knowledge=tables.date
        )
        run = "\n".join(without_printing(text.split("\n"), shell))
        assert not re.search(r"(?m)^\s*sudo\b", run)
        if not any(is_runnable(step) for step in steps.steps):
            assert not re.search(r"(?m)^(?!#|set -eu|\$Error|exit 1|$)", run), text


@pytest.mark.parametrize("path", PATHS[::7], ids=lambda path: path.stem)
def test_a_script_for_powershell_is_powershell(path: Path) -> None:
    machine = read_scenario(path).machine
    tables = knowledge.load()
    diagnosis = diagnose(machine, tables)
    steps = plan(machine, tables, diagnosis)
    text = script(
        steps, machine, diagnosis, shell="powershell", version="0.1.0", knowledge=tables.date
    )
    assert mistakes(text) == []


@pytest.mark.skipif(not shutil.which("sh"), reason="no shell")
def test_every_script_is_read_by_a_shell_without_complaint(tmp_path: Path) -> None:
    tables = knowledge.load()
    text = ""
    for path in PATHS:
        machine = read_scenario(path).machine
        diagnosis = diagnose(machine, tables)
        steps = plan(machine, tables, diagnosis)
        text += script(steps, machine, diagnosis, version="0.1.0", knowledge=tables.date)
    done = subprocess.run(
        ["sh", "-n"], input=text, text=True, capture_output=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_errors_that_need_a_reboot_share_one() -> None:
    (path,) = (path for path in PATHS if path.stem.endswith("beside-the-wrong-modules"))
    ubuntu = read_scenario(path).machine
    tables = knowledge.load()
    debian = replace(ubuntu.platform, distro="debian", distro_version="13", distro_like=())
    machine = replace(ubuntu, platform=debian)
    modules, key = plan(machine, tables, diagnose(machine, tables)).steps
    assert (modules.reboot, key.reboot) == (False, True)
    assert modules.cures[0] in key.cures
    (signed,) = plan(ubuntu, tables, diagnose(ubuntu, tables)).steps
    assert signed.reboot
    assert set(key.cures) == set(signed.cures), "signed modules need no key"
