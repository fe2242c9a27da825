"""The job files: their options exist, and they do what they say with stand-ins for the programs."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from cudadoctor.cli.group import main
from cudadoctor.cluster.launch import launch_of

RECIPES = Path(__file__).resolve().parents[2] / "recipes" / "cluster"
DOCTOR = """#!/bin/sh
env | sort > "$SEEN.env"; echo "$@" > "$SEEN"
[ "$CODE" = hang ] && exec sleep 60
echo "the driver is too old"; exit "$CODE"
"""
SRUN = """#!/bin/sh
while [ "${1#--}" != "$1" ]; do shift; done
exec "$@"
"""
MPIRUN = """#!/bin/sh
while [ $# -gt 0 ]; do
    case $1 in
        --hostfile) shift 2 ;;
        -np) export OMPI_COMM_WORLD_SIZE=$2 OMPI_COMM_WORLD_RANK=1; shift 2 ;;
        -x) export "$2"; shift 2 ;;
        *) exec "$@" ;;
    esac
done
"""


def ran(tmp_path: Path, recipe: str, *words: str, code: str = "0", **more: str) -> tuple[int, str]:
    """The exit code and the output of a recipe; what cudadoctor was given stands in `seen`."""
    for name, text in (("cudadoctor", DOCTOR), ("srun", SRUN), ("mpirun", MPIRUN)):
        (tmp_path / name).write_text(text, encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    env = {"PATH": path, "HOME": "/home/ada", "SEEN": str(tmp_path / "seen"), "CODE": code, **more}
    command = ["bash", str(RECIPES / recipe), *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr == ""
    return done.returncode, done.stdout


def seen(tmp_path: Path) -> str:
    return (tmp_path / "seen").read_text(encoding="utf-8").strip()


@pytest.mark.parametrize("code", ["0", "1"])
def test_the_slurm_job_ends_with_the_doctors_code(tmp_path: Path, code: str) -> None:
    assert ran(tmp_path, "check.sbatch", code=code)[0] == int(code)
    assert seen(tmp_path) == "cluster --python /home/ada/venv --timeout 120"


@pytest.mark.parametrize(("code", "lines"), [("0", 0), ("1", 1), ("3", 0)])
def test_the_prolog_speaks_of_a_broken_node_alone_and_fails_no_job(
    tmp_path: Path, code: str, lines: int
) -> None:
    ended, out = ran(tmp_path, "task_prolog.sh", code=code, SLURM_LOCALID="0")
    assert (ended, len(out.splitlines())) == (0, lines)
    assert not lines or re.fullmatch(r"print cudadoctor on \S+: the driver is too old\n", out)


def test_only_the_first_task_of_a_node_runs_the_prolog(tmp_path: Path) -> None:
    assert ran(tmp_path, "task_prolog.sh", code="1", SLURM_LOCALID="1") == (0, "")


def test_the_mpi_job_sets_what_the_launcher_does_not(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("# rack 7\n\nnode4:8\nnode5:8\n", encoding="utf-8")
    assert ran(tmp_path, "mpi.sh", str(hosts), "16", "/opt/venv")[0] == 0
    lines = (tmp_path / "seen.env").read_text(encoding="utf-8").splitlines()
    launch = launch_of(dict(line.split("=", 1) for line in lines if "=" in line))
    assert launch is not None
    assert (launch.rank, launch.world, launch.master, launch.port) == (1, 16, "node4", 29500)


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.*")), ids=lambda path: path.name)
def test_every_option_is_one_that_the_command_has(path: Path) -> None:
    text = re.sub(r"\n\s+- ", " ", path.read_text(encoding="utf-8"))
    called = re.findall(
        r"(?:cudadoctor|CUDADOCTOR\S*\"?) (check|cluster|health)\b((?: [^\s;|]+)*)", text
    )
    for command, words in called:
        known = {word for option in main.commands[command].params for word in option.opts}
        assert set(re.findall(r" (--[a-z-]+)", words)) <= known
    assert called or path.suffix == ".md"
