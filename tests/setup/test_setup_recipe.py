"""What is run and written for each tool, how much it takes, and what is told: all of it values."""

from __future__ import annotations

from typing import Any

import pytest
from scenario_reader import healthy_machine, machine_like

from cudadoctor import knowledge
from cudadoctor.installers.tool import Recipe
from cudadoctor.model.machine import Machine
from cudadoctor.repair.setup import command, saying
from cudadoctor.repair.setup.choosing import Chosen, Known, choose
from cudadoctor.repair.setup.command import Setup, document
from cudadoctor.repair.setup.making import clean, name_of, recipe
from cudadoctor.repair.setup.saying import Room, room
from cudadoctor.repair.words import MOST_LINES, error_lines

KB = knowledge.load()
TOOLS = {"uv": "/usr/bin/uv", "conda": "/opt/conda/bin/mamba", "pixi": "/usr/bin/pixi"}
FOLDER = "/home/ada/my env"


def made(tool: str | None = None, machine: Machine | None = None) -> tuple[Chosen, Recipe]:
    here = machine or machine_like(
        "rtx4090-linux",
        {"python": {"executable": "/usr/bin/python3", "ensurepip": True, "version": "3.12.1"}},
    )
    chosen = choose(Known(machine=here, tools=TOOLS, tool=tool), KB)
    assert isinstance(chosen, Chosen)
    return chosen, recipe(chosen, FOLDER, TOOLS, KB)


def text(lines: Any) -> str:
    return "\n".join(line.text for line in lines)


def test_pip_fills_a_venv_by_the_path_of_its_own_python() -> None:
    chosen, found = made()
    build = chosen.choice.build
    assert build is not None
    venv, install = found.commands
    assert venv == ("/usr/bin/python3", "-m", "venv", FOLDER)
    assert install[:4] == (f"{FOLDER}/bin/python", "-m", "pip", "install")
    assert f"torch=={build.torch}" in install
    assert f"torchvision=={build.torchvision}" in install
    assert found.python == f"{FOLDER}/bin/python"


def test_nothing_of_the_examined_environment_is_uninstalled() -> None:
    for tool in ("pip", "uv", "conda", "pixi"):
        words = [word for command in made(tool)[1].commands for word in command]
        assert "uninstall" not in words
        assert "remove" not in words


def test_a_uv_project_is_a_file_and_a_sync() -> None:
    _, found = made("uv")
    assert found.commands == (
        ("/usr/bin/uv", "sync", "--project", FOLDER, "--python", "/usr/bin/python3"),
    )
    assert "torch==" in found.files["pyproject.toml"]
    assert found.python == f"{FOLDER}/.venv/bin/python"


def test_conda_makes_the_folder_itself() -> None:
    _, found = made("conda")
    (command,) = found.commands
    assert command[:5] == ("/opt/conda/bin/mamba", "create", "-y", "-p", FOLDER)
    assert "python=3.12" in command
    assert any(word.startswith("pytorch-gpu") for word in command)
    assert found.alone


def test_conda_takes_from_the_channel_that_ended_what_it_alone_has() -> None:
    here = machine_like(
        "rtx4090-linux",
        {"python": {"executable": "/usr/bin/python3", "ensurepip": True, "version": "3.11.4"}},
    )
    chosen = choose(Known(machine=here, tools=TOOLS, tool="conda", torch="2.2.2"), KB)
    assert isinstance(chosen, Chosen)
    (command,) = recipe(chosen, FOLDER, TOOLS, KB).commands
    assert command[5:9] == ("-c", "pytorch", "-c", "nvidia")
    assert "pytorch==2.2.2" in command


def test_a_companion_without_a_wheel_is_neither_made_nor_promised() -> None:
    here = machine_like(
        "rtx4090-linux",
        {"python": {"executable": "/usr/bin/python3", "ensurepip": True, "version": "3.13.1"}},
    )
    chosen = choose(Known(machine=here, tools=TOOLS, torch="2.5.1", named=True), KB)
    assert isinstance(chosen, Chosen)
    found = recipe(chosen, FOLDER, TOOLS, KB)
    shown = text(saying.plan(chosen, found, room(chosen.choice.build, KB), None, 80))  # type: ignore[arg-type]
    assert "torch 2.5.1" in shown
    assert "torchvision" not in shown


def test_a_pixi_project_is_a_file_and_an_install() -> None:
    _, found = made("pixi")
    manifest = f"{FOLDER}/pixi.toml"
    assert found.commands == (("/usr/bin/pixi", "install", "--manifest-path", manifest),)
    assert "torch" in found.files["pixi.toml"]
    assert found.python == f"{FOLDER}/.pixi/envs/default/bin/python"


def test_on_windows_the_paths_are_those_of_windows() -> None:
    chosen = choose(Known(machine=healthy_machine("rtx4090-windows"), tools=TOOLS), KB)
    assert isinstance(chosen, Chosen)
    found = recipe(chosen, "C:\\work\\env", TOOLS, KB)
    assert found.python == "C:\\work\\env\\Scripts\\python.exe"
    lines = saying.activation(found)
    assert lines == {"powershell": "& 'C:\\work\\env\\Scripts\\Activate.ps1'"}


def test_activation_is_quoted_for_each_shell() -> None:
    assert saying.activation(made()[1]) == {
        "bash": "source '/home/ada/my env/bin/activate'",
        "fish": "source '/home/ada/my env/bin/activate.fish'",
    }


@pytest.mark.parametrize("name", ["$(id)", "`id`", "it's", 'a"b', "a\\b"])
def test_a_name_that_activation_scripts_would_run_is_not_activated(name: str) -> None:
    chosen, _ = made()
    found = recipe(chosen, f"/home/ada/{name}", TOOLS, KB)
    assert saying.activation(found) == {}
    words = text(saying.use(found, 80))
    assert "Run this environment's Python by its full path" in words


@pytest.mark.parametrize(
    ("tool", "line"),
    [
        ("conda", "conda activate '/home/ada/my env'"),
        ("pixi", "pixi shell --manifest-path '/home/ada/my env/pixi.toml'"),
        ("uv", "uv run --project '/home/ada/my env' python"),
    ],
)
def test_each_tool_says_how_it_is_used(tool: str, line: str) -> None:
    assert line in text(saying.use(made(tool)[1], 80))


def test_the_plan_names_machine_build_reasons_commands_and_size() -> None:
    chosen, found = made()
    size = Room(download_bytes=2_500_000_000, installed_bytes=5_700_000_000, free_bytes=10**10)
    words = text(saying.plan(chosen, found, size, None, 100))
    for word in ("  Driver    ", "  GPU       ", "  Build     torch ", "  Why  "):
        assert word in words
    assert "about 2.5 GB to download, about 5.7 GB on disk; 10.0 GB free" in words
    assert "/usr/bin/python3 -m venv ~/'my env'" in words


def test_sixty_columns_hold_every_line_but_the_commands() -> None:
    chosen, found = made()
    size = Room(download_bytes=None, installed_bytes=None)
    for line in saying.plan(chosen, found, size, None, 60):
        assert len(line.text) <= 60


def test_a_build_for_the_cpu_says_what_it_proves() -> None:
    chosen, found = made(machine=healthy_machine("cpu-linux"))
    size = Room(download_bytes=None, installed_bytes=None)
    assert "the training step shows that torch works" in text(
        saying.plan(chosen, found, size, None, 80)
    )


def test_a_disk_is_too_small_only_where_both_numbers_are_known() -> None:
    full = Room(download_bytes=1, installed_bytes=10, free_bytes=9)
    assert full.too_small
    for size in (
        Room(download_bytes=1, installed_bytes=10, free_bytes=10),
        Room(download_bytes=None, installed_bytes=None, free_bytes=0),
        Room(download_bytes=1, installed_bytes=10),
    ):
        assert not size.too_small


def test_sizes_of_real_files_count_before_those_of_the_tables() -> None:
    build = made()[0].choice.build
    assert build is not None
    counted = room(build, KB, (1000, 2000))
    assert (counted.download_bytes, counted.counted) == (3000, True)
    assert not room(build, KB, (1000, None)).counted
    supposed = room(build, KB).download_bytes
    assert supposed is None or supposed > 10**9


def test_errors_are_shown_and_warnings_are_not() -> None:
    said = (
        "Looking in indexes: file:///index",
        "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError(<x>:"
        " Failed to establish a new connection: [Errno -2] Name or service not known)'",
        "ERROR: No matching distribution found for torch==2.14.1",
    )
    assert error_lines(said) == said[2:]
    assert command.reason(said) == "a package index could not be reached"


def test_without_a_line_that_is_an_error_the_last_ones_are_shown() -> None:
    said = tuple(f"line {number}" for number in range(20))
    assert error_lines(said) == said[-MOST_LINES:]
    assert command.reason(said) is None


def test_a_full_disk_is_named() -> None:
    said = ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left",)
    assert command.reason(said) == "the disk is full"


def test_variables_that_lead_an_installation_astray_are_left_out() -> None:
    env = {"PATH": "/bin", "PYTHONPATH": "/x", "PIP_TARGET": "/y", "PIP_INDEX_URL": "https://i/"}
    found = clean(env)
    assert found.keys() & env.keys() == {"PATH", "PIP_INDEX_URL"}
    assert (found["PATH"], found["PIP_INDEX_URL"]) == ("/bin", "https://i/")
    assert (found["PIP_NO_INPUT"], found["PIP_DISABLE_PIP_VERSION_CHECK"]) == ("1", "1")


def test_temporary_files_go_where_the_user_says_else_beside_the_rest() -> None:
    assert clean({}, "/env/tmp")["TMPDIR"] == "/env/tmp"
    assert clean({"TMPDIR": "/scratch"}, "/env/tmp")["TMPDIR"] == "/scratch"


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (("/e/bin/python", "-m", "pip", "install", "torch"), "pip"),
        (("/usr/bin/python3", "-m", "venv", "-m"), "venv"),
        (("/usr/bin/uv", "sync"), "uv"),
    ],
)
def test_what_is_waited_for_has_the_name_of_the_tool(argv: tuple[str, ...], name: str) -> None:
    assert name_of(argv) == name


def test_a_setup_that_made_nothing_has_a_whole_document_too() -> None:
    report = document(Setup(outcome="no-build", folder="/x", why=("None.",)))
    assert report["environment"] is None
    assert report["build"] is None
    assert report["smoke"] is None
