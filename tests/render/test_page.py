"""The page: the answer first, commands that survive being pasted, signs where they can be shown."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from functools import cache
from pathlib import Path

import msgspec
import pytest
from scenario_reader import healthy_machine, read_scenario, scenario_paths

from cudadoctor import pipeline
from cudadoctor.model.findings import Edit, Step
from cudadoctor.model.machine import Identity, Machine, Platform
from cudadoctor.model.trust import typed
from cudadoctor.render import Report, summary, terminal
from cudadoctor.render.shells import command_lines, has_lines, step_lines

PATHS = scenario_paths()


@cache
def report_of(path: Path) -> Report:
    return pipeline.report(pipeline.judge(read_scenario(path).machine), seconds=1.0)


def lines_of(
    shown: Report,
    width: int = 80,
    *,
    quiet: bool = False,
    verbose: bool = False,
    signs: bool = True,
) -> list[terminal.Line]:
    layout = terminal.Layout(width=width, quiet=quiet, verbose=verbose, signs=signs)
    return terminal.report(shown, layout)


def is_command(line: terminal.Line) -> bool:
    return any(style == "green" for _, style in line.spans)


# --- where things stand -------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_the_first_line_answers_and_the_command_is_near(path: Path) -> None:
    shown = report_of(path)
    lines = lines_of(shown)
    sign = {"healthy": "✓ ", "warnings": "! ", "undecided": "? ", "broken": "✗ "}
    assert lines[0].text.startswith(sign[shown.diagnosis.verdict])
    first = summary.first_finding(shown)
    if first is None or shown.diagnosis.verdict == "healthy":
        return
    steps = [step for word, step in summary.steps_for(first, shown.plan) if word == "do"]
    if shown.diagnosis.next_command or any(map(has_lines, steps)):
        assert next(number for number, line in enumerate(lines, 1) if is_command(line)) <= 10


def test_one_line_is_enough_for_those_who_ask_for_quiet() -> None:
    shown = report_of(PATHS[0])
    assert [line.text for line in lines_of(shown, 200, quiet=True)] == [
        lines_of(shown, 200)[0].text
    ]


def test_a_verbose_page_names_every_area_on_a_healthy_machine_too() -> None:
    shown = pipeline.report(pipeline.judge(healthy_machine("rtx4090-linux")))
    text = "\n".join(line.text for line in lines_of(shown, 100, verbose=True))
    assert all(f"{area}: ruled out: " in text for area in ("driver", "GPU", "torch", "speed"))


def test_without_signs_words_stand_and_all_is_ascii() -> None:
    for name in ("rtx4090-linux", "h100x8-linux"):
        shown = pipeline.report(pipeline.judge(healthy_machine(name)), seconds=2.0)
        text = "\n".join(line.text for line in lines_of(shown, signs=False))
        assert text.startswith("ok: ")
        assert text.isascii()


def test_a_number_and_its_unit_never_part() -> None:
    lines = terminal._Lines(terminal.Layout(width=40))
    for width in range(24, 60):
        for line in lines.broken(
            "A page needs 64 MiB and 24 GiB at 93 °C on 8 × H100 in 4 GPUs", width
        ):
            assert not line.endswith(("64", "24", "93", "8", "8 ×", "4")), line


# --- commands -----------------------------------------------------------------------------------


def unfolded(lines: list[str], mark: str) -> str:
    return "\n".join(lines).replace(f" {mark}\n", " ")


@pytest.mark.parametrize("room", [30, 54, 74])
def test_a_folded_command_is_the_same_command(room: int) -> None:
    for path in PATHS:
        machine, plan = read_scenario(path).machine, report_of(path).plan
        for step in plan.steps:
            for argv in step.commands:
                plain = command_lines((argv,), machine)[-1]
                folded = unfolded(command_lines((argv,), machine, "", room), "\\").split("\n")[-1]
                assert shlex.split(folded, posix=False) == shlex.split(plain, posix=False)


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash")
def test_bash_takes_every_command_of_every_page() -> None:
    texts = []
    for path in PATHS:
        shown = report_of(path)
        if shown.machine.platform.system == "Windows":
            continue
        for step in shown.plan.steps:
            texts.append("\n".join(step_lines(step, shown.machine, 60)))
    ran = subprocess.run(
        ["bash", "-n"], input="\n".join(texts), capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")


def step(**given: object) -> Step:
    return msgspec.convert({"id": "x", "title": "Do it", **given}, Step)


def test_a_file_is_written_by_a_command_that_can_be_pasted(tmp_path: Path) -> None:
    file = tmp_path / "a b" / "x.conf"
    file.parent.mkdir()
    for mode, text in (("write", "one\n"), ("append", "$(touch x) `id` EOF\nEOF\n")):
        edits = (Edit(file=str(file), what=text, mode=mode),)  # type: ignore[arg-type]
        lines = [f"      {line}" for line in step_lines(step(edits=edits), Machine(), 40)]
        ran = subprocess.run(["sh"], input="\n".join(lines), text=True, cwd=tmp_path, check=False)
        assert ran.returncode == 0
    assert file.read_text() == "one\n$(touch x) `id` EOF\nEOF\n"
    assert [path.name for path in tmp_path.iterdir()] == ["a b"]


def test_a_cell_of_a_notebook_gets_lines_that_it_runs() -> None:
    cell = Machine(platform=Platform(system="Linux"), env={"JPY_PARENT_PID": "7"})
    pip = step(commands=(("/v/bin/python", "-m", "pip", "install", "torch==2.14.1"),))
    assert step_lines(pip, cell, 30) == [
        "!/v/bin/python -m pip \\",
        "    install torch==2.14.1",
    ]
    unset = step(variables={"CUDA_VISIBLE_DEVICES": None, "OMP_NUM_THREADS": "8"})
    assert step_lines(unset, cell) == [
        'import os; os.environ.pop("CUDA_VISIBLE_DEVICES", None)',
        "%env OMP_NUM_THREADS=8",
    ]


def test_a_cell_is_no_place_for_a_password_or_for_what_the_loader_reads() -> None:
    cell = Machine(platform=Platform(system="Linux"), env={"JPY_PARENT_PID": "7"})
    needs = step(commands=(("apt-get", "install", "-y", "g++"),), needs_root=True)
    assert step_lines(needs, cell) == ["sudo apt-get install -y g++"]
    path = step(variables={"LD_LIBRARY_PATH": None})
    assert step_lines(path, cell) == ["unset LD_LIBRARY_PATH"]
    terminal_of_jupyter = Machine(platform=Platform(system="Linux"), env={})
    pip = step(commands=(("pip", "install", "torch"),))
    assert step_lines(pip, terminal_of_jupyter) == ["pip install torch"]


def test_a_variable_that_names_a_new_program_is_set_after_it_is_there() -> None:
    commands = (("dnf", "install", "-y", "gcc14-c++"),)
    variables = {"TMPDIR": "/v", "CXX": "/usr/bin/g++-14"}
    root = Machine(platform=Platform(root=True))
    assert step_lines(step(commands=commands, variables=variables), root) == [
        "export TMPDIR=/v",
        "dnf install -y gcc14-c++",
        "export CXX=/usr/bin/g++-14",
    ]


def test_root_needs_no_sudo_and_a_restart_comes_last() -> None:
    needs = step(commands=(("modprobe", "nvidia"),), needs_root=True, reboot=True)
    assert step_lines(needs, Machine()) == ["sudo modprobe nvidia", "sudo reboot"]
    root = Machine(platform=Platform(root=True))
    assert step_lines(needs, root) == ["modprobe nvidia", "reboot"]
    only = step(commands=(("systemctl", "reboot"),), needs_root=True, reboot=True)
    assert step_lines(only, root) == ["systemctl reboot"]


def test_a_path_in_the_users_home_is_short() -> None:
    machine = Machine(identity=Identity(home="/home/ada"))
    argv = typed("/home/ada/my env/bin/python", "-m", "pip", "/home/adam/x")
    assert command_lines((argv,), machine) == ["~/'my env/bin/python' -m pip /home/adam/x"]
