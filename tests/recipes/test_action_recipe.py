"""The action that checks a runner: its step as GitHub would run it, and the hook of pre-commit."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from cudadoctor.cli import group

ROOT = Path(__file__).resolve().parents[2]
REPORT = "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).\n"


def step(tmp_path: Path, **inputs: str) -> tuple[int, dict[str, str], str]:
    """The exit code of the action's check, its outputs, and the job summary."""
    action = yaml.safe_load((ROOT / "recipes/action/action.yml").read_text(encoding="utf-8"))
    check = action["runs"]["steps"][-1]
    program = tmp_path / "cudadoctor" / "bin" / "cudadoctor"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m cudadoctor "$@"\n')
    program.chmod(0o755)
    given = {name: str(value["default"]) for name, value in action["inputs"].items()} | inputs
    files = {name: str(tmp_path / name) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    named = {
        name: given[value.removeprefix("${{ inputs.").removesuffix(" }}")]
        for name, value in check["env"].items()
    }
    env = {**os.environ, **files, **named, "RUNNER_TEMP": str(tmp_path)}
    ran = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", check["run"]],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    lines = Path(files["GITHUB_OUTPUT"]).read_text(encoding="utf-8").splitlines()
    outputs = dict(line.split("=", 1) for line in lines)
    assert set(action["outputs"]) <= set(outputs)
    return ran.returncode, outputs, Path(files["GITHUB_STEP_SUMMARY"]).read_text(encoding="utf-8")


@pytest.mark.parametrize(("fail", "code"), [("true", 1), ("false", 0)])
def test_the_action_writes_the_summary_and_fails_only_if_asked(
    tmp_path: Path, fail: str, code: int
) -> None:
    report = tmp_path / "report.txt"
    report.write_text(REPORT, encoding="utf-8")
    ended, outputs, summary = step(tmp_path, options=f"--from {report}", fail=fail)
    assert ended == code
    assert (outputs["verdict"], outputs["primary"]) == ("broken", "driver-too-old")
    assert "driver-too-old" in summary
    assert "<h1" in Path(outputs["page"]).read_text(encoding="utf-8")


def test_the_hook_of_pre_commit_is_a_call_that_the_command_line_takes() -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    named: list[str] = hook["args"]
    program, command, *words = shlex.split(hook["entry"]) + named
    assert (program, command) == ("cudadoctor", "check")
    context = group.main.commands[command].make_context(command, words)
    assert context.params["fast"]
    assert context.params["python"] == ".venv"
