"""The command line: wrong use is one sentence and a 2, and JSON keeps its word."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenario_reader import HERE, healthy_machine, machine_like, read_scenario

from cudadoctor import __version__
from cudadoctor.cli import fast, speech
from cudadoctor.cli import group as cli
from cudadoctor.cli.options import Options
from cudadoctor.locale.language import language
from cudadoctor.model import factfile

COMMAND = [sys.executable, "-m", "cudadoctor"]


def _run(
    *args: str, stdin: str | bytes | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    data = stdin.encode() if isinstance(stdin, str) else stdin
    ran = subprocess.run(
        [*COMMAND, *args], input=data, capture_output=True, env=env, timeout=120, check=False
    )
    return subprocess.CompletedProcess(
        ran.args, ran.returncode, ran.stdout.decode(), ran.stderr.decode()
    )


def _refused(*args: str, stdin: str | bytes | None = None) -> str:
    ran = _run(*args, stdin=stdin)
    assert ran.returncode == 2, ran
    assert ran.stdout == ""
    assert len(ran.stderr.strip().splitlines()) == 1, ran.stderr
    assert "Traceback" not in ran.stderr
    return ran.stderr


def _document(name: str = "rtx4090-linux") -> str:
    return factfile.dumps(healthy_machine(name))


@pytest.mark.parametrize(
    "args",
    [
        ("check", "--from", "-", "--fast"),
        ("check", "--from", "-", "--no-smoke"),
        ("check", "--from", "-", "--python", "python3"),
        ("check", "--from", "-", "--device", "cpu"),
        ("check", "--json", "--markdown"),
        ("fix", "--from", "-"),
        ("fix",),
        ("explain", "a recipe for pizza"),
        ("check", "--ignore", "no-such-cause"),
        ("check", "--knowledge", "/no/such/file"),
        ("setup", "folder", "--knowledge", "/etc"),
        ("update", "--check", "--output", "file"),
        ("update", "--output", "/etc"),
        ("check", "--device", "tpu"),
        ("check", "--as-of", "yesterday"),
        ("check", "--lang", "xx"),
        ("check", "--timeout", "-1"),
        ("check", "--nonsense"),
        ("nonsense",),
        ("fix", "--print", "--torch", "newest"),
        ("check", "--python", "/no/such/python"),
        ("check", "--fast", "--python", "/etc/hostname"),
        ("check", "--fast", "--python", "/bin/true"),
    ],
)
def test_wrong_use_is_one_sentence_and_exit_2(args: tuple[str, ...]) -> None:
    _refused(*args)


def test_a_near_name_is_suggested() -> None:
    assert "driver-too-old" in _refused("check", "--ignore", "driver-to-old")


@pytest.mark.parametrize(
    "data", [b"", b"   ", b'{"schema": 1', b'{"schema": "x"}', b"\xff\xfe\x00", b"\x00" * 100]
)
def test_a_document_that_is_none_is_refused(data: bytes) -> None:
    _refused("check", "--from", "-", stdin=data)


@pytest.mark.parametrize("data", [b"{", b"[]", b"nonsense", b'{"a": 1}', b"Traceback (most re"])
def test_a_text_that_says_nothing_is_undecided(data: bytes) -> None:
    ran = _run("check", "--from", "-", "--json", stdin=data)
    assert (ran.returncode, json.loads(ran.stdout)["verdict"]) == (3, "undecided")


def test_a_missing_and_an_oversized_document_are_refused(tmp_path: Path) -> None:
    _refused("check", "--from", str(tmp_path / "none.json"))
    big = tmp_path / "big.json"
    with big.open("wb") as file:
        file.truncate(33 << 20)
    assert "neither text" in _refused("check", "--from", str(big))


def test_of_an_endless_text_the_beginning_and_the_end_are_read(tmp_path: Path) -> None:
    big = tmp_path / "big.log"
    with big.open("w", encoding="utf-8") as file:
        file.write("NVIDIA-SMI 470.57.02 Driver Version: 470.57.02 CUDA Version: 11.4\n")
        file.writelines("step of many, and one more like it\n" * 1024 for _ in range(1 << 10))
        file.write("The NVIDIA driver on your system is too old (found version 11040).\n")
    ran = _run("check", "--from", str(big), "--json")
    document = json.loads(ran.stdout)
    assert (ran.returncode, document["primary"]) == (1, "driver-too-old")
    assert document["facts"]["driver"]["reported"] == "470.57.02"


def test_a_bad_file_among_many_does_not_stop_the_others(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"\x00\x01" * 99)
    (tmp_path / "b.txt").write_text("nvcc fatal", encoding="utf-8")
    ran = _run("check", "--from", str(tmp_path), "--json")
    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    assert ran.returncode == 2
    assert [line["source"].rpartition("/")[2] for line in lines] == ["a.bin", "b.txt"]
    assert "neither text" in lines[0]["error"]
    assert lines[1]["verdict"] == "undecided"


def test_json_has_every_field_of_the_contract() -> None:
    ran = _run("check", "--from", "-", "--json", stdin=_document())
    assert ran.returncode == 0
    assert set(json.loads(ran.stdout)) >= {
        "schema",
        "cudadoctor",
        "knowledge",
        "verdict",
        "primary",
        "findings",
        "undecided",
        "examined",
        "candidates",
        "next_command",
        "plan",
        "smoke",
        "facts",
    }


def test_many_documents_give_a_line_each_and_the_worst_exit_code(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(_document(), encoding="utf-8")
    broken = machine_like("rtx4090-linux", {"torch": {"installed": False}, "packages": []})
    (tmp_path / "b.json").write_text(factfile.dumps(broken), encoding="utf-8")
    ran = _run("check", "--json", "--from", str(tmp_path))
    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [Path(line["source"]).name for line in lines] == ["a.json", "b.json"]
    assert ran.returncode == 1


def test_a_healthy_document_prints_calm_lines_in_plain_ascii() -> None:
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ran = _run("check", "--from", "-", stdin=_document(), env=env)
    assert ran.returncode == 0
    assert ran.stdout.isascii()
    assert "\x1b" not in ran.stdout
    assert len(ran.stdout.splitlines()) < 16


def test_no_line_of_words_is_wider_than_the_terminal() -> None:
    env = {**os.environ, "COLUMNS": "60"}
    ran = _run("check", "--from", "-", stdin=_document(), env=env)
    assert all(len(line) <= 60 for line in ran.stdout.splitlines()), ran.stdout


def test_stdout_closed_early_is_no_failure() -> None:
    document = HERE / "machines" / "rtx4090-linux.json"
    command = f"'{sys.executable}' -m cudadoctor check --json --from {document} | head -c 10"
    ran = subprocess.run(["bash", "-c", command], capture_output=True, timeout=60, check=False)
    assert b"Traceback" not in ran.stderr
    assert b"BrokenPipe" not in ran.stderr


def test_output_goes_to_the_file(tmp_path: Path) -> None:
    there = tmp_path / "report.json"
    ran = _run("check", "--from", "-", "--json", "--output", str(there), stdin=_document())
    assert ran.stdout == ""
    assert json.loads(there.read_text(encoding="utf-8"))["verdict"] == "healthy"
    _refused("check", "--from", "-", "--output", str(tmp_path / "no" / "x"), stdin=_document())


def test_text_from_outside_cannot_act_on_the_terminal() -> None:
    evil = "\x1b]0;owned\x07[red]x[/red]\n$(id)"
    machine = machine_like("rtx4090-linux", {"gpus": {"0": {"name": evil}}})
    for option in ("--markdown", "-v"):
        ran = _run("check", option, "--from", "-", stdin=factfile.dumps(machine))
        assert "\x1b" not in ran.stdout
        assert "\x07" not in ran.stdout


def test_explain_lists_every_cause_and_shows_a_page() -> None:
    assert "driver-too-old" in _run("explain").stdout
    assert _run("explain", "driver-too-old").returncode == 0


def test_explain_takes_a_misspelled_name_an_error_number_and_words_without_quotes() -> None:
    ran = _run("explain", "driver-to-old")
    assert ran.stdout.startswith("driver-too-old\n")
    assert "Showing driver-too-old." in ran.stderr
    assert _run("explain", "NVML", "error", "18").stdout.startswith("driver-library-mismatch\n")


def test_explain_says_what_separates_the_causes_of_an_error_text() -> None:
    text = _run("explain", "no kernel image is available").stdout
    assert {"torch-arch-unsupported-new:", "torch-arch-unsupported-old:"} <= {*text.split()}
    assert "\nHow to tell them apart\n" in text
    spanish = _run("explain", "--lang", "es", "error 803").stdout
    assert "\nCómo distinguirlas\n  Ambas pueden causar el error 803." in spanish


def test_version_says_how_old_the_knowledge_is() -> None:
    assert "knowledge base of 20" in _run("version").stdout


@given(
    st.lists(
        st.sampled_from(
            ["--fast", "--json", "--no-smoke", "--python", "/x", "--full", "--strict", "-v", "--zz"]
        ),
        max_size=5,
    )
)
def test_the_plain_words_mean_what_click_reads(words: list[str]) -> None:
    quick = fast.options_of(["check", *words])
    if quick is None:
        return
    context = cli.main.commands["check"].make_context("check", list(words))
    assert msgspec.convert(quick, Options) == Options(**context.params)


def test_comments_on_many_reports_say_which_is_which(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("CUDA not available", encoding="utf-8")
    ran = _run("check", "--markdown", "--from", str(tmp_path))
    heads = [line for line in ran.stdout.splitlines() if line.startswith("## ")]
    assert heads == [f"## `{tmp_path / name}`" for name in ("a.txt", "b.txt")]


def test_a_cause_that_is_not_to_be_heard_of_is_no_candidate() -> None:
    text = 'docker: could not select device driver "" with capabilities: [[gpu]].'
    ran = _run("check", "--json", "--from", "-", "--ignore", "container-no-gpu", stdin=text)
    document = json.loads(ran.stdout)
    assert document["primary"] is None
    assert "container-no-gpu" not in [candidate["cause"] for candidate in document["candidates"]]


# --- the words of the command line --------------------------------------------------------------


def test_a_call_without_a_command_is_a_check() -> None:
    assert cli.with_command([]) == ["check"]
    assert cli.with_command(["--fast", "--json"]) == ["check", "--fast", "--json"]
    assert cli.with_command(["--lang", "es"]) == ["check", "--lang", "es"]
    for words in (["fix"], ["--help"], ["-V"], ["--lang", "es", "fix"], ["--lang=es", "-h"]):
        assert cli.with_command(words) == words
    assert fast.options_of([]) == fast.options_of(["check"]) == {}
    assert fast.options_of(["--fast"]) == {"fast": True}
    assert fast.options_of(["-V"]) is None


def test_the_version_is_printed_by_its_short_name_too() -> None:
    assert _run("-V").stdout == _run("--version").stdout == f"cudadoctor {__version__}\n"


def test_quiet_prints_the_answer_and_nothing_else() -> None:
    narrow = {**os.environ, "COLUMNS": "40"}  # one line all the same, for whoever reads it by line
    ran = _run("check", "-q", "--from", "-", stdin=_document(), env=narrow)
    assert (ran.returncode, len(ran.stdout.splitlines()), ran.stderr) == (0, 1, "")


@pytest.mark.parametrize("lang", speech.LANGUAGES)
@pytest.mark.parametrize("name", ["", *cli.main.commands])
def test_help_is_readable_on_a_small_terminal(name: str, lang: str) -> None:
    env = {**os.environ, "COLUMNS": "80", "CUDADOCTOR_LANG": lang}
    lines = _run(*filter(None, [name]), "--help", env=env).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    command = cli.main.commands.get(name, cli.main)
    say = language(lang)
    texts = [option.help for option in command.params if isinstance(option, click.Option)]
    texts += [command.short_help]
    assert all(len(say(text)) <= 45 for text in texts if text)
    headed = [option for group in command.groups.values() for option in group]  # type: ignore[attr-defined]
    assert all(option in headed for option in command.params if isinstance(option, click.Option))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("check", "--lang", "xx"), "'xx' is not a valid value for --lang: choose one of en, es"),
        (("fix", "--with", "poetry"), "choose one of pixi, conda, uv, pip, docker"),
        (
            ("smoke", "--ranks", "0"),
            "'0' is not a valid value for --ranks: enter a number from 1 to 64",
        ),
        (("bench", "--minutes", "soon"), "enter a number from 0.05 to 1440"),
        (("check", "--fats"), "'--fats' is not an option of this command; did you mean --fast?"),
        (("chekc",), "'chekc' is not a cudadoctor command; did you mean check?"),
        (("check", "--python"), "--python needs a value. See: cudadoctor check --help"),
        (("check", "--fast=1"), "--fast does not take a value. See: cudadoctor check --help"),
        (("setup",), "The DIR argument is missing. See: cudadoctor setup --help"),
        (("check", "it"), "unexpected argument 'it'. See: cudadoctor check --help"),
        (("check", "-o", "."), ". is a folder; specify a file"),
        (("check", "--json", "-q"), "--quiet and --json cannot be combined: choose one"),
        (("fix", "--undo", "--forget"), "--undo and --forget cannot be combined: choose one"),
        (
            ("fix", "--print", "--yes"),
            "--yes cannot be used with --print or --as, which change nothing",
        ),
    ],
)
def test_a_refusal_says_what_is_valid(words: tuple[str, ...], said: str) -> None:
    assert said in _refused(*words)


@pytest.mark.parametrize(
    ("words", "env", "lang"),
    [
        ([], {}, "en"),
        ([], {"LANG": "es_ES.UTF-8"}, "es"),
        ([], {"LANG": "es_ES.UTF-8", "LC_MESSAGES": "de_DE"}, "en"),
        ([], {"LC_MESSAGES": "es_MX", "LC_ALL": ""}, "es"),
        ([], {"LC_ALL": "C", "LANG": "es_ES"}, "en"),
        ([], {"LC_ALL": "C.UTF-8", "CUDADOCTOR_LANG": "es"}, "es"),
        ([], {"LANG": "est_EE"}, "en"),
        (["--lang", "en"], {"CUDADOCTOR_LANG": "es"}, "en"),
        (["check", "--lang=es"], {"LANG": "C"}, "es"),
        (["check", "--lang=es", "--json"], {}, "en"),
        (["bench", "--", "train", "--lang", "es", "--json"], {}, "en"),
        (["bench", "--lang", "es", "--", "train", "--json"], {}, "es"),
    ],
)
def test_the_language_is_that_of_the_nearest_wish(
    words: list[str], env: dict[str, str], lang: str
) -> None:
    assert speech.chosen(words, env) == lang


def test_a_refusal_speaks_the_language_of_the_locale() -> None:
    ran = _run("check", "--device", "tpu", env={**os.environ, "LC_ALL": "es_ES.UTF-8"})
    assert ran.stderr.startswith("cudadoctor: 'tpu' no es un dispositivo válido")


def test_json_is_english_in_every_locale() -> None:
    env = {**os.environ, "LC_ALL": "es_ES.UTF-8"}
    words = ("check", "--json", "--from", "-")
    broken = factfile.dumps(machine_like("rtx4090-linux", {"torch": {"installed": False}}))
    assert _run(*words, stdin=broken, env=env).stdout == _run(*words, stdin=broken).stdout


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("cudadoctor exp", "plain,explain"),
        ("cudadoctor explain fabric", "plain,fabric-manager"),
        ("cudadoctor bench --only channels", "plain,channels-last"),
        ("cudadoctor check --from my", "file,my"),
        ("cudadoctor fix --with p", "plain,pixi plain,pip"),
    ],
)
def test_a_shell_that_asks_for_completions_gets_no_check(typed: str, completed: str) -> None:
    """The program's name is not the module's, so this runs the entry point as installed."""
    entry = "import sys; sys.argv[:] = ['cudadoctor']; from cudadoctor.__main__ import main; main()"
    asked = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
    ran = subprocess.run(
        [sys.executable, "-c", entry],
        env=os.environ | asked | {"_CUDADOCTOR_COMPLETE": "bash_complete"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stdout.decode().split()) == (0, completed.split())


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("torch-companion-mismatch--torchvision-for-2-13", 0),  # commands
        ("uvm-not-loaded--never-loaded", 0),  # commands for root alone
        ("gpu-lost--bus-reads-all-ones", 0),
        ("gpu-lost--not-asleep", 0),  # nothing to cure
        ("gpu-unhealthy-hardware--no-power-cable", 1),  # a hand is needed
    ],
)
def test_a_printed_fix_is_a_success_if_it_holds_a_command(
    name: str, code: int, tmp_path: Path
) -> None:
    machine = read_scenario(HERE / "scenarios" / f"{name}.toml").machine
    file = tmp_path / "facts.json"
    file.write_text(factfile.dumps(machine), encoding="utf-8")
    assert _run("fix", "--print", "--from", str(file)).returncode == code


def test_an_undecided_report_prints_no_fix() -> None:
    assert _run("fix", "--print", "--from", "-", stdin="nonsense").returncode == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--python", "/no/such"), "--python /no/such: no existe ese archivo o carpeta."),
        (("--python", __file__), "no es ejecutable"),
        (("--python", "/etc"), "la carpeta no contiene Python"),
        (("--python", ""), "--python no tiene valor"),
        (("--from", "/no/such"), "no se puede leer /no/such"),
    ],
)
def test_refusals_of_the_probes_are_translated_too(words: tuple[str, str], said: str) -> None:
    env = {**os.environ, "CUDADOCTOR_LANG": "es"}
    ran = _run("check", *words, env=env)
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1)
    assert said in ran.stderr


@pytest.mark.parametrize(
    "args",
    [
        ("--format", "sarif", "--json"),
        ("--markdown", "--format=json"),
        ("--format", "junit", "--quiet"),
        ("--format", "prometheus", "--advice"),
        ("--format", "xml"),
        ("--html", "/etc"),
        ("--html", "/no/such/folder/page.html"),
    ],
)
def test_forms_that_contradict_each_other_are_refused(args: tuple[str, ...]) -> None:
    _refused("check", "--from", "-", *args, stdin=_document())


@pytest.mark.parametrize("form", ["json", "markdown"])
def test_a_form_and_its_flag_are_the_same(form: str) -> None:
    by_name = _run("check", "--from", "-", "--format", form, f"--{form}", stdin=_document())
    by_flag = _run("check", "--from", "-", f"--{form}", stdin=_document())
    assert by_name.stdout == by_flag.stdout
    assert by_name.returncode == by_flag.returncode == 0


def test_several_documents_are_one_log_with_the_worst_code(tmp_path: Path) -> None:
    (tmp_path / "good.json").write_text(_document(), encoding="utf-8")
    (tmp_path / "bad.json").write_bytes(b"\0\1\2")
    page = tmp_path / "report.html"
    ran = _run("check", "--from", str(tmp_path), "--format", "sarif", "--html", str(page))
    assert ran.returncode == 2
    runs = json.loads(ran.stdout)["runs"]
    assert [run["invocations"][0]["executionSuccessful"] for run in runs] == [False, True]
    text = page.read_text(encoding="utf-8")
    assert text.count("<article") == 2
    assert "neither text nor saved facts" in text


def test_github_reads_annotations_a_summary_and_the_verdict(tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT")}
    files["GITHUB_STEP_SUMMARY"].write_text("# Earlier\n", encoding="utf-8")
    env = {**os.environ, **{name: str(file) for name, file in files.items()}}
    report = b"RuntimeError: The NVIDIA driver on your system is too old (found version 11040)."
    ran = _run("check", "--from", "-", "--format", "github", stdin=report, env=env)
    assert ran.returncode == 1
    assert ran.stdout.startswith("::error title=cudadoctor%3A driver-too-old")
    assert files["GITHUB_OUTPUT"].read_text("utf-8") == "verdict=broken\nprimary=driver-too-old\n"
    written = files["GITHUB_STEP_SUMMARY"].read_text(encoding="utf-8")
    assert written.startswith("# Earlier\n")
    assert "driver-too-old" in written
    env["GITHUB_STEP_SUMMARY"] = str(tmp_path)
    page = tmp_path / "page.html"
    words = ("--format", "github", "--html", str(page), "--lang", "es")
    again = _run("check", "--from", "-", *words, stdin=report, env=env)
    assert (again.returncode, again.stdout[:40]) == (1, ran.stdout[:40])
    assert '<html lang="es">' in page.read_text(encoding="utf-8")


def test_the_schema_is_printed_without_a_check() -> None:
    ran = _run("check", "--json-schema")
    assert (ran.returncode, json.loads(ran.stdout)["title"]) == (0, "cudadoctor check --json")
