"""The printed script: safe in a real shell whatever paths and names hold."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from powershell_grammar import commands, mistakes

from cudadoctor.model.findings import (
    Confidence,
    Diagnosis,
    Edit,
    Finding,
    Plan,
    Risk,
    Severity,
    Step,
)
from cudadoctor.model.machine import Interpreter, Machine
from cudadoctor.model.trust import typed
from cudadoctor.render.script import BEGIN, END, script
from cudadoctor.render.shells import Fish, PowerShell, ShellName, comment, shell_of

HOSTILE = (
    "with space",
    "quote'single",
    'quote"double',
    "$(touch injected)",
    "`touch injected`",
    ";touch injected;",
    "line\ntouch injected\n",
    "carriage\rreturn",
    "escape\x1b[31mred",
    "bidi\u202eevil",
    "separator\u2028touch injected",
    "back\\slash",
    "trailing\\",
    "$HOME",
    "a|b&c>d<e",
    "*?[x]{a,b}~",
    "-leading-dash",
    "#hash",
    "!bang",
    "\u2019; touch injected; \u2018",
    "tab\there",
    "=ls",
    "A=b",
    "",
    "e\u0301 \u00fc \u4e2d \U0001f600",
)
SHELLS = [shell for shell in ("sh", "bash", "dash", "zsh") if shutil.which(shell)]


def step(**given: object) -> Step:
    blank = {
        "id": "install-torch",
        "title": "Install torch",
        "group": "install-torch",
        "where": "here",
        "risk": Risk.ENVIRONMENT,
        "needs_root": False,
        "reboot": False,
        "commands": (),
        "manual": None,
        "variables": {},
        "edits": (),
        "cures": ("torch-missing",),
        "tool": "pip",
    }
    return Step(**(blank | given))  # type: ignore[arg-type]


def finding(**given: object) -> Finding:
    blank = {
        "cause": "torch-missing",
        "rule": "torch-missing",
        "severity": Severity.ERROR,
        "confidence": Confidence.CERTAIN,
        "title": "torch is not installed",
        "why": "Nothing can be trained without it.",
        "values": {},
        "evidence": (),
    }
    return Finding(**(blank | given))  # type: ignore[arg-type]


def diagnosis(*findings: Finding) -> Diagnosis:
    return Diagnosis(
        verdict="broken" if findings else "healthy",
        primary=findings[0].cause if findings else None,
        findings=findings,
        passed=(),
        undecided=(),
    )


def machine(executable: str = "/venv/bin/python") -> Machine:
    return Machine(python=Interpreter(executable=executable))


def written(*steps: Step, python: str = "/venv/bin/python", shell: ShellName = "bash") -> str:
    return script(
        Plan(steps=steps),
        machine(python),
        diagnosis(finding()),
        shell=shell,
        version="0.1.0",
        knowledge="2026-11-15",
    )


def run(text: str, folder: Path, shell: str = "sh") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [shell], input=text.encode(), cwd=folder, capture_output=True, check=False, timeout=20
    )


def stub(folder: Path, name: str = "python") -> Path:
    """A program that appends its arguments, each ended by a NUL, to the file `said`."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text('#!/bin/sh\nprintf \'%s\\0\' "$@" >> "$SAID"\n', encoding="utf-8")
    file.chmod(0o755)
    return file


@pytest.mark.parametrize("shell", SHELLS)
def test_hostile_words_reach_the_program_unchanged_and_run_nothing(
    tmp_path: Path, shell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAID", str(tmp_path / "said"))
    folder = tmp_path / "a b 'c' \"d\" $(touch injected) ; touch injected;\nnew\nline \u202e"
    python = stub(folder)
    argv = (str(python), "-m", "pip", *HOSTILE)
    done = run(written(step(commands=(argv,)), python=str(python)), tmp_path, shell)
    assert done.returncode == 0, done.stderr
    said = (tmp_path / "said").read_bytes().decode().split("\0")[:-1]
    assert said == ["-m", "pip", *HOSTILE]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([folder.name, "said"])


@pytest.mark.parametrize("shell", SHELLS)
def test_hostile_texts_stay_in_their_comments(tmp_path: Path, shell: str) -> None:
    evil = "x\ntouch injected\r\ntouch injected\u2028touch injected\x85touch injected\x0btouch y"
    hostile = step(
        id=evil,
        title=evil,
        manual=evil,
        note=evil,
        cures=(evil,),
        edits=(Edit(file=evil, what=evil),),
        variables={"A B": evil},
        needs_root=True,
        commands=(("rm", evil),),
    )
    names: tuple[ShellName, ...] = ("bash", "fish", "powershell")
    for name in names:
        text = script(
            Plan(steps=(hostile,)),
            machine(evil),
            diagnosis(finding(title=evil, why=evil, cause=evil)),
            shell=name,
            version="0.1.0",
            knowledge=evil,
        )
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        start = shell_of(name).start("")
        assert lines[: len(start)] == list(start)
        assert lines[-1] == "exit 1"
        printing = {"bash": "cat <<'END'", "fish": "printf '%s\\n' ", "powershell": "Write-Output "}
        assert lines[len(start)].startswith(printing[name])
        assert name == "bash" or all(
            line.startswith(printing[name]) for line in lines[len(start) : -1]
        )
        assert text.isascii()
    done = run(written(hostile, python=evil), tmp_path, shell)
    assert (done.returncode, done.stderr) == (1, b"")
    assert b"touch injected" in done.stdout  # shown, not run
    assert not list(tmp_path.iterdir())


def test_a_failing_command_ends_the_script(tmp_path: Path) -> None:
    later = ("touch", str(tmp_path / "later"))
    done = run(written(step(commands=(("false",), later))), tmp_path)
    assert done.returncode != 0
    assert not (tmp_path / "later").exists()


def test_a_bytes_path_that_is_no_utf8_is_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAID", str(tmp_path / "said"))
    python = stub(tmp_path)
    text = written(step(commands=((str(python), "caf\udce9"),)))
    assert text.isascii()
    assert run(text, tmp_path).returncode == 0
    assert (tmp_path / "said").read_bytes() == b"caf\xe9\0"


def test_only_harmless_steps_of_the_user_are_commands() -> None:
    ours = step(commands=(("/venv/bin/python", "-m", "pip", "install", "torch==2.14.1"),))
    root = step(
        id="upgrade-driver",
        group="upgrade-driver",
        title="Install NVIDIA driver 580",
        needs_root=True,
        reboot=True,
        commands=(("apt-get", "install", "nvidia-driver-580-open"),),
    )
    text = written(ours, root)
    lines = text.partition("cat <<'END'")[0].splitlines()
    assert "/venv/bin/python -m pip install torch==2.14.1" in lines
    assert "# sudo apt-get install nvidia-driver-580-open" in lines
    started = shell_of("bash").start("", apart=True)
    assert [line for line in lines if line and not line.startswith("#")] == [
        *(line for line in started if line and not line.startswith("#")),
        "/venv/bin/python -m pip install torch==2.14.1",
    ]


@pytest.mark.parametrize("shell", SHELLS)
def test_steps_for_root_stand_last_and_are_printed_to_be_pasted(tmp_path: Path, shell: str) -> None:
    done = tmp_path / "done"
    root = step(
        id="root",
        title="Load the module",
        group="root",
        needs_root=True,
        edits=(Edit(file="/etc/modprobe.d/x.conf", what="options x\n", mode="write"),),
        commands=(("modprobe", "x"),),
    )
    text = written(root, step(commands=(("touch", str(done)),)))
    ran = run(text, tmp_path, shell)
    assert (ran.returncode, done.exists()) == (1, True)
    begin, end = text.index(f"# {BEGIN}\n"), text.index(f"# {END}\n")
    block = [line.removeprefix("# ") for line in text[begin:end].splitlines()[1:]]
    assert block == ran.stdout.decode().splitlines()[1:]
    assert [line for line in block if not line.startswith("#")] == [
        "echo 'options x' | sudo tee /etc/modprobe.d/x.conf >/dev/null",
        "sudo modprobe x",
    ]


def test_a_script_whose_steps_all_ran_ends_well(tmp_path: Path) -> None:
    assert run(written(step(commands=(("true",),))), tmp_path).returncode == 0
    by_hand = step(id="by-hand", group="by-hand", manual="Seat the GPU anew.")
    done = run(written(step(commands=(("true",),)), by_hand), tmp_path)
    assert (done.returncode, b"Seat the GPU anew." in done.stdout) == (1, True)


@pytest.mark.parametrize("where", ["host", "container", "windows", "admin"])
def test_steps_elsewhere_are_comments(where: str) -> None:
    text = written(step(where=where, commands=(("modprobe", "nvidia"),)))
    assert "#      modprobe nvidia" in text.splitlines()
    assert "modprobe nvidia" not in text.splitlines()


def test_an_alternative_that_the_user_may_take_is_run_where_the_preferred_one_needs_root() -> None:
    root = step(id="reboot", group="reboot", needs_root=True, commands=(("reboot",),))
    own = step(id="x", group="reboot", risk=Risk.ENVIRONMENT, commands=(("pip", "install", "x"),))
    lines = written(root, own).splitlines()
    assert "pip install x" in lines
    assert "#      sudo reboot" in lines
    assert "exit 1" not in lines
    # Only the reader can set a variable of a shell: the preferred one stays first.
    set_x = step(id="set-x", group="reboot", risk=Risk.PROCESS, variables={"X": "1"})
    lines = written(root, set_x).splitlines()
    assert "sudo reboot" in lines
    assert "export X=1" not in lines


def test_what_must_not_be_typed_as_root_is_not_said_to_need_it() -> None:
    build = (("pacman", "-Syu"), ("makepkg", "-siD", "nvidia-580xx-utils"))
    alone = step(id="a", group="a", needs_root=True, commands=build)
    assert "as your own user: only the lines with sudo need root" in written(alone)
    plain = step(id="a", group="a", needs_root=True, commands=build[:1])
    assert "These steps need root. Run them yourself:" in written(plain)


def test_what_is_pasted_for_root_reboots_once_and_last() -> None:
    first = step(id="a", group="a", needs_root=True, reboot=True, commands=(("dracut", "--force"),))
    alone = step(id="b", group="b", needs_root=True, reboot=True, commands=(("reboot",),))
    after = step(id="c", group="c", needs_root=True, commands=(("ldconfig",),))
    lines = [line for line in written(first, alone, after).splitlines() if line.startswith("sudo")]
    assert lines == ["sudo ldconfig", "sudo dracut --force", "sudo reboot"]


def test_variables_are_exported_and_unset_for_what_follows(tmp_path: Path) -> None:
    see = ("sh", "-c", 'printf "%s|%s" "${GONE-none}" "$HERE"')
    text = written(
        step(variables={"GONE": None, "HERE": "a 'b'\n$(touch injected)"}, commands=(see,))
    )
    done = run("GONE=1; export GONE\n" + text, tmp_path)
    assert done.stdout.decode() == "none|a 'b'\n$(touch injected)"
    assert not list(tmp_path.iterdir())


def test_unsetting_what_is_not_set_does_not_fail(tmp_path: Path) -> None:
    assert run(written(step(variables={"NOT_SET_ANYWHERE": None})), tmp_path).returncode == 0


def test_the_placeholder_is_the_readers_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAID", str(tmp_path / "said"))
    monkeypatch.delenv("PYTHON", raising=False)
    text = written(step(commands=(("$PYTHON", "-m", "pip"),)), python="$PYTHON")
    assert (
        "# The Python to repair. To repair a Python other than python3, set PYTHON first." in text
    )
    own, usual = str(stub(tmp_path / "sp ace")), tmp_path / "bin"
    usual.mkdir()
    (usual / "python3").symlink_to(own)
    path = os.environ["PATH"]
    monkeypatch.setenv("PATH", f"{usual}{os.pathsep}{path}")
    assert run(text, tmp_path).returncode == 0
    assert (tmp_path / "said").read_bytes() == b"-m\0pip\0"
    monkeypatch.setenv("PATH", path)
    monkeypatch.setenv("PYTHON", own)
    assert run(text, tmp_path).returncode == 0
    assert (tmp_path / "said").read_bytes() == b"-m\0pip\0" * 2


def test_the_check_afterwards_looks_at_the_new_environment() -> None:
    made = ("/usr/bin/python3", "-m", "venv", "/home/ada/.venvs/torch")
    new = "/home/ada/.venvs/torch/bin/python"
    text = written(step(commands=(made, (new, "-m", "pip", "install", "torch"))))
    assert text.splitlines()[-1].endswith(f"cudadoctor check --python {new}")
    uv = ("/usr/bin/uv", "venv", "--python", "3.12", "/home/ada/.venvs/torch")
    text = written(step(commands=(uv, ("/usr/bin/uv", "pip", "install", "--python", new, "torch"))))
    assert text.splitlines()[-1].endswith(f"cudadoctor check --python {new}")


def test_a_healthy_machine_gets_a_script_that_does_nothing(tmp_path: Path) -> None:
    text = script(
        Plan(), machine(), diagnosis(), shell="bash", version="0.1.0", knowledge="2026-11-15"
    )
    assert all(line.startswith("#") or not line for line in text.splitlines())
    assert run(text, tmp_path).returncode == 0


def test_the_header_says_what_is_wrong_and_how_old_the_knowledge_is() -> None:
    folded = msgspec.structs.replace(finding(title="folded"), because_of=("driver-too-old",))
    text = script(
        Plan(steps=(step(),)),
        machine(),
        diagnosis(finding(), folded),
        version="0.1.0",
        knowledge="2026-11-15",
    )
    assert "# cudadoctor 0.1.0, knowledge base of 2026-11-15" in text
    assert "# error: torch is not installed" in text
    assert "folded" not in text


def test_fish_ends_at_the_first_failure_and_escapes_quotes_and_backslashes() -> None:
    assert Fish().command(typed("it's", "a\\b")) == "'it\\'s' 'a\\\\b'; or exit $status"
    assert Fish().quoted("x\ny\u202e") == "'x'\\X0a'y'\\Xe2\\X80\\Xae"
    assert Fish().quoted("$(touch x)") == "'$(touch x)'"
    assert Fish().quoted("") == "''"
    assert Fish().variable("A", "b c") == "set -gx A 'b c'"
    assert Fish().variable("A", None) == "set -e A"


def test_powershell_doubles_every_quote_it_knows_and_checks_the_exit_code() -> None:
    shell = PowerShell()
    assert shell.command(typed("C:\\a b\\python.exe", "-m")) == (
        "& 'C:\\a b\\python.exe' '-m'; if ($LASTEXITCODE) { exit $LASTEXITCODE }"
    )
    assert shell.quoted("a'b\u2019c\u2018d\u201ae\u201bf") == (
        "'a''b\u2019\u2019c\u2018\u2018d\u201a\u201ae\u201b\u201bf'"
    )
    assert shell.quoted("a\nb") == "('' + 'a' + [char]10 + 'b')"
    assert shell.quoted("$(x) `y") == "'$(x) `y'"
    assert shell.quoted("") == "''"
    assert shell.variable("A", "b") == "$env:A = 'b'"
    assert shell.variable("A", None) == "Remove-Item Env:A -ErrorAction SilentlyContinue"


def test_hostile_words_are_words_of_one_command_in_powershell() -> None:
    text = PowerShell().command(typed("C:\\a b\\python.exe", *HOSTILE))
    assert mistakes(text) == []
    assert commands(text) == 1


@pytest.mark.skipif(not shutil.which("fish"), reason="fish is not installed")
def test_hostile_words_reach_the_program_unchanged_in_fish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAID", str(tmp_path / "said"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    folder = tmp_path / "a b 'c' \"d\" $(touch injected) ; touch injected;\nnew\nline \u202e"
    python = stub(folder)
    argv = (str(python), "-m", "pip", *HOSTILE)
    text = written(step(commands=(argv,), variables={"GONE": None, "HERE": "a'b\\"}), shell="fish")
    done = run(text, tmp_path, "fish")
    assert done.returncode == 0, done.stderr
    said = (tmp_path / "said").read_bytes().decode().split("\0")[:-1]
    assert said == ["-m", "pip", *HOSTILE]
    assert not (tmp_path / "injected").exists()


@pytest.mark.skipif(not shutil.which("pwsh"), reason="PowerShell is not installed")
def test_hostile_words_reach_the_program_unchanged_in_powershell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAID", str(tmp_path / "said"))
    python = stub(tmp_path / "a b 'c' $(touch injected)")
    argv = (str(python), "-m", "pip", *HOSTILE)
    file = tmp_path / "plan.ps1"
    file.write_text(written(step(commands=(argv,)), shell="powershell"), encoding="utf-8")
    done = subprocess.run(
        ["pwsh", "-NoProfile", str(file)], cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    said = (tmp_path / "said").read_bytes().decode().split("\0")[:-1]
    assert said == ["-m", "pip", *HOSTILE]


def test_a_comment_is_one_line_that_begins_with_its_mark() -> None:
    for text in HOSTILE:
        assert len(comment(text).splitlines()) == 1
        assert comment(text).startswith("#")


@pytest.mark.parametrize("shell", [*SHELLS, *(["fish"] if shutil.which("fish") else [])])
def test_a_program_with_an_equals_sign_is_no_assignment(tmp_path: Path, shell: str) -> None:
    name: ShellName = "fish" if shell == "fish" else "bash"
    text = written(step(commands=(("PATH=x/python", "touch", "injected"),)), shell=name)
    done = run(text, tmp_path, shell)
    assert done.returncode != 0
    assert not list(tmp_path.iterdir())


# --- the folder in which a script is started --------------------------------------------------


def in_shell(name: str, text: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a folder, from a file; skipped where the shell is not installed."""
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    file = folder.parent / "script.ps1"
    file.write_text(text)
    argv = [name, "-NoProfile", str(file)] if name == "pwsh" else [name, str(file)]
    variables = {**os.environ, "TMPDIR": str(folder.parent), **env}
    return subprocess.run(
        argv, cwd=folder, env=variables, capture_output=True, text=True, timeout=60, check=False
    )


NAMES: dict[str, ShellName] = {"fish": "fish", "pwsh": "powershell"}
PROGRAMS = pytest.mark.parametrize("program", ["sh", "bash", "dash", "zsh", "fish", "pwsh"])


@PROGRAMS
@pytest.mark.parametrize("path", [None, ".", ""])
def test_a_script_runs_no_module_and_no_program_of_the_folder_it_is_started_in(
    tmp_path: Path, program: str, path: str | None
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    for name in ("planted.py", "sitecustomize.py", "site.py"):
        (here / name).write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    env = {"PATH": f".:{os.environ['PATH']}"} | ({} if path is None else {"PYTHONPATH": path})
    stub(here, "planted").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    shell = NAMES.get(program, "bash")
    for argv in ((sys.executable, "-m", "planted"), ("planted",)):
        ran = in_shell(program, written(step(commands=(argv,)), shell=shell), here, **env)
        assert ran.returncode != 0, ran
        assert not (tmp_path / "ran").exists()


@PROGRAMS
def test_a_script_leaves_no_folder_and_keeps_its_exit_code(tmp_path: Path, program: str) -> None:
    here = tmp_path / "here"
    here.mkdir()
    shell = NAMES.get(program, "bash")
    leave = (sys.executable, "-c", "import os; print(os.listdir()); raise SystemExit(7)")
    ran = in_shell(program, written(step(commands=(leave,)), shell=shell), here)
    assert (ran.returncode, ran.stdout.strip()) == (7, "[]")
    if program != "pwsh":
        assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "script.ps1"]


@PROGRAMS
def test_a_new_environment_beside_the_reader_is_made_there(tmp_path: Path, program: str) -> None:
    here = tmp_path / "he re"
    here.mkdir()
    make = (sys.executable, "-c", "import os, sys; os.mkdir(sys.argv[1])", ".venv-torch")
    ran = in_shell(program, written(step(commands=(make,)), shell=NAMES.get(program, "bash")), here)
    assert ran.returncode == 0, ran
    assert [path.name for path in here.iterdir()] == [".venv-torch"]


@PROGRAMS
def test_a_python_named_from_where_the_script_is_started_is_found(
    tmp_path: Path, program: str
) -> None:
    here = tmp_path / "here"
    said = tmp_path / "said"
    stub(here / "bin")
    text = written(step(commands=(("$PYTHON", "-m", "pip"),)), shell=NAMES.get(program, "bash"))
    for python in ("bin/python", str(here / "bin" / "python")):
        ran = in_shell(program, text, here, PYTHON=python, SAID=str(said))
        assert ran.returncode == 0, ran
    assert said.read_text() == "-m\0pip\0" * 2


def test_a_script_that_only_sets_variables_stays_where_it_is() -> None:
    text = written(step(commands=(), variables={"CUDA_HOME": "/usr/local/cuda"}))
    assert "cd " not in text
    assert "mktemp" not in text
