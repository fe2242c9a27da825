"""Environment variables for shells and for conda's activation, run by the real shells."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from cudadoctor.model.machine import Interpreter, Machine, Platform
from cudadoctor.render import shells
from cudadoctor.render.shells import ShellName, shell_of

HOSTILE = (
    "plain",
    "with space",
    "quote'single",
    'quote"double',
    "$(touch injected)",
    "`touch injected`",
    ";touch injected;",
    "line\ntouch injected\n",
    '"$_cudadoctor_newline"',
    "\n",
    "carriage\rreturn",
    "escape\x1b[31mred",
    "bidi\u202eevil",
    "back\\slash\\",
    "$HOME",
    "*?[x]{a,b}~",
    "#hash",
    "'",
    "",
    "\u00fc \u4e2d",
)
POSIX = [shell for shell in ("sh", "bash", "dash", "zsh") if shutil.which(shell)]
SHELLS: list[tuple[str, ShellName]] = [(shell, "bash") for shell in POSIX]
SHELLS += [("fish", "fish")] if shutil.which("fish") else []
SHELLS += [("pwsh", "powershell")] if shutil.which("pwsh") else []
SHOW = {
    "bash": "{ printf '%s' \"${NAME-unset}\"; printf '\\0'; } >> said\n",
    "fish": "begin; if set -q NAME; printf '%s' $NAME; else; printf unset; end; printf '\\0'; end "
    ">> said\n",
    "powershell": '[IO.File]::AppendAllText("$PWD/said", '
    "$(if (Test-Path Env:NAME) { $env:NAME } else { 'unset' }) + \"`0\")\n",
}


def run(shell: str, text: str, folder: Path, **env: str) -> list[str]:
    """The value of NAME at each place where SHOW stands in the text."""
    script = folder / "script"
    script.write_bytes(text.encode())
    words = [shell, *(["-File"] if shell == "pwsh" else []), "script"]
    home = {"PATH": "/usr/bin:/bin", "HOME": str(folder / "home"), "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        words, cwd=folder, env=home | env, capture_output=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    script.unlink()
    left = {path.name for path in folder.iterdir()} - {"home"}
    assert left == {"said"}, left
    return (folder / "said").read_bytes().decode().split("\0")[:-1]


@pytest.mark.parametrize(("shell", "name"), SHELLS)
def test_a_variable_gets_exactly_its_value(tmp_path: Path, shell: str, name: ShellName) -> None:
    files = (shells.activation_files("/x", {"NAME": value}, name)[0] for value in HOSTILE)
    text = "".join(entered + SHOW[name] for _, entered in files)
    assert run(shell, text, tmp_path) == list(HOSTILE)


@pytest.mark.parametrize("before", [None, "earlier 'value'", ""])
@pytest.mark.parametrize(("shell", "name"), SHELLS)
def test_activation_sets_and_deactivation_restores(
    tmp_path: Path, shell: str, name: ShellName, before: str | None
) -> None:
    text = "set -eu\n" if name == "bash" else ""
    for value in HOSTILE:
        (_, entered), (_, left) = shells.activation_files(
            "/opt/conda/envs/x", {"NAME": value}, name
        )
        text += entered + SHOW[name] + left + SHOW[name]
    env = {} if before is None else {"NAME": before}
    restored = "unset" if before is None else before
    expected = [shown for value in HOSTILE for shown in (value, restored)]
    assert run(shell, text, tmp_path, **env) == expected


@pytest.mark.parametrize("before", [None, "earlier"])
@pytest.mark.parametrize(("shell", "name"), SHELLS)
def test_a_variable_that_is_to_go_comes_back_afterwards(
    tmp_path: Path, shell: str, name: ShellName, before: str | None
) -> None:
    (_, entered), (_, left) = shells.activation_files("/opt/conda/envs/x", {"NAME": None}, name)
    text = entered + SHOW[name] + left + SHOW[name]
    env = {} if before is None else {"NAME": before}
    assert run(shell, text, tmp_path, **env) == ["unset", before or "unset"]


@pytest.mark.parametrize(("shell", "name"), SHELLS)
def test_nothing_of_ours_is_left_behind(tmp_path: Path, shell: str, name: ShellName) -> None:
    (_, entered), (_, left) = shells.activation_files("/x", {"NAME": "a\nb"}, name)
    text = entered + left + "env > said\nprintf '\\0' >> said\n"
    said = "\0".join(run(shell, text, tmp_path, NAME="was"))
    assert "NAME=was" in said
    assert "CUDADOCTOR" not in said and "_cudadoctor" not in said


@pytest.mark.parametrize(("shell", "name"), SHELLS)
def test_a_list_of_folders_stays_one(tmp_path: Path, shell: str, name: ShellName) -> None:
    """fish holds variables that end in PATH as lists."""
    ours = {"LD_LIBRARY_PATH": "/a b:/c"}
    (_, entered), (_, left) = shells.activation_files("/x", ours, name)
    show = SHOW[name].replace("NAME", "LD_LIBRARY_PATH")
    show = show.replace("printf '%s' $LD", 'printf "%s" "$LD')
    show = show.replace('"$LD_LIBRARY_PATH; else', '"$LD_LIBRARY_PATH"; else')
    found = run(shell, entered + show + left + show, tmp_path, LD_LIBRARY_PATH="/x:/y z")
    assert found == ["/a b:/c", "/x:/y z"]


@pytest.mark.parametrize("shell", ["bash", "fish", "powershell"])
def test_a_prefix_or_a_name_from_outside_acts_in_no_file(shell: ShellName) -> None:
    evil = "/x\ntouch injected\r\u202e"
    for path, text in shells.activation_files(evil, {"A; touch injected": "v"}, shell):
        assert path.startswith("etc/conda/") and path.endswith(shell_of(shell).suffix)
        assert all(line.startswith("#") for line in text.splitlines())
        assert text.isascii()


def conda(kind: str = "conda", prefix: str | None = "/opt/conda/envs/x") -> Machine:
    return Machine(platform=Platform(system="Linux"), python=Interpreter(kind=kind, prefix=prefix))


def test_a_conda_environment_keeps_what_is_to_last() -> None:
    found = shells.kept_by_conda(conda(), {"LD_LIBRARY_PATH": None}, "bash")
    assert [edit.file for edit in found] == [
        "/opt/conda/envs/x/etc/conda/activate.d/cudadoctor-ld-library-path.sh",
        "/opt/conda/envs/x/etc/conda/deactivate.d/cudadoctor-ld-library-path.sh",
    ]
    assert "unset LD_LIBRARY_PATH" in found[0].what.splitlines()


@pytest.mark.parametrize(
    "name", ["NCCL_P2P_DISABLE", "CUDA_LAUNCH_BLOCKING", "CUDA_VISIBLE_DEVICES", "RANK"]
)
def test_what_belongs_to_one_job_or_slows_others_is_never_set_for_good(name: str) -> None:
    assert shells.kept_by_conda(conda(), {name: "1"}, "bash") == ()


@pytest.mark.parametrize("m", [conda("venv"), conda(prefix=None), conda(prefix="~/envs/x")])
def test_elsewhere_conda_keeps_nothing(m: Machine) -> None:
    assert shells.kept_by_conda(m, {"CUDA_HOME": "/usr/local/cuda"}, "bash") == ()
