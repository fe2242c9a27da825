"""What was read chooses no program, no index and no package, in whichever form it is written."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forged
import msgspec
import pytest
from imports_read import modules
from markdown_it import MarkdownIt
from scenario_reader import HERE, read_scenario

from cudadoctor import knowledge, pipeline
from cudadoctor.cli import saved
from cudadoctor.host import recording
from cudadoctor.installers.index import is_official
from cudadoctor.model import factfile
from cudadoctor.model.findings import Edit, Wishes
from cudadoctor.model.machine import Machine
from cudadoctor.model.trust import NOT_TAKEN, PLACEHOLDER, Exit, Foreign, acting, foreign
from cudadoctor.render import markdown
from cudadoctor.render.script import script
from cudadoctor.reports.reading import read_report

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FIELDS = forged.fields()
SHARDS = 8


@pytest.mark.parametrize("shard", range(SHARDS))
def test_no_field_of_a_document_acts_on_any_page(shard: int) -> None:
    """Each text and version of the facts, with another payload and on another machine each time."""
    bases = forged.bases()
    read = 0
    for turn in range(shard, len(FIELDS) * 3, SHARDS):
        path, kind = FIELDS[turn % len(FIELDS)]
        payloads = forged.PAYLOADS_OF[kind]
        base = bases[turn * 7 % len(bases)]
        plain = forged.planted(base, path, payloads[turn % len(payloads)], turn % 6)
        try:
            machine = foreign(factfile.from_document(plain))
        except factfile.FactsError:
            continue
        read += 1
        assert forged.faults_of(machine, turn) == []
    assert read > len(FIELDS) * 3 // SHARDS // 2


def test_documents_with_many_payloads_and_wrong_types_act_nowhere() -> None:
    for turn, plain in enumerate(forged.documents(120, seed=12)):
        try:
            machine = foreign(factfile.from_document(plain))
        except factfile.FactsError as error:
            assert "\n" not in str(error)
            continue
        assert forged.faults_of(machine, turn) == []


def test_without_the_boundary_the_payloads_would_act(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check of the check: if a foreign machine counts as our own, faults of each kind appear."""
    from cudadoctor.plan import planner as plan
    from cudadoctor.render import script as scripts

    class Open(Exit):
        def __init__(self, machine: Machine, knowledge: Any, own_host: str | None) -> None:
            super().__init__(acting(machine), knowledge, own_host)

    monkeypatch.setattr("cudadoctor.model.trust.acting", lambda machine: machine)
    monkeypatch.setattr(scripts, "acting", lambda machine: machine)
    monkeypatch.setattr(plan, "Exit", Open)
    monkeypatch.setattr(plan, "acting", lambda machine: machine)
    index = {"url": "https://evil.example/simple"}
    changes = {"executable": "/evil/python", "index": index, "pip": True}
    kinds = set()
    for base in forged.bases()[::6]:
        plain = base | {"python": base.get("python", {}) | changes, "redacted": False}
        if isinstance(base.get("packages"), list):
            plain["packages"] = [package | {"version": "1+evil"} for package in base["packages"]]
        kinds |= {
            fault.kind for fault in forged.faults_of(foreign(factfile.from_document(plain)), 1)
        }
    assert kinds >= {"host", "program", "mark"}


def test_a_sound_document_keeps_its_commands() -> None:
    """The grammar accepts what remedies say; few cures need what a document must not choose."""
    lost = set()
    for turn, base in enumerate(forged.bases()):
        machine = factfile.from_document(base)
        for manager in {None, forged.DIALECTS[turn % len(forged.DIALECTS)]}:
            own = pipeline.judge(machine, Wishes(manager=manager)).plan
            read = pipeline.judge(foreign(machine), Wishes(manager=manager)).plan
            # The step for the image repeats the commands of its step.
            steps = [step for step in own.steps if not step.id.endswith("-in-image")]
            others = [step for step in read.steps if not step.id.endswith("-in-image")]
            for step, other in zip(steps, others, strict=True):
                assert step.id == other.id
                if bool(step.commands or step.variables) != bool(other.commands or other.variables):
                    lost.add(step.id)
    assert lost == {
        *(
            "guest-driver",
            "libcuda-away",
            "mig-uuid",
            "newer-libstdcxx",
            "rename-file",
            "restart-container",
        ),
        "trim-ld-library-path",
        # A container's name, and other folders on the loader's path.
        *("driver-on-path", "grant-gpu", "grant-gpu-incus", "pass-uvm-incus", "pass-uvm-lxc"),
        # The name of a cluster's node, which is drained first.
        "reboot",
    }


# --- every way in ----------------------------------------------------------------------------


def document(**python: Any) -> dict[str, Any]:
    """A machine without torch: its plan installs it."""
    base = json.loads((HERE / "machines" / "rtx4090-linux.json").read_text())
    base["torch"], base["packages"] = {"installed": False}, []
    base["python"] |= python
    return dict(base)


EVIL = {
    "executable": "\\\\evil\\share\\python.exe",
    "index": {"url": "https://evil.example/simple", "origin": "/etc/pip.conf"},
    "managers": [{"name": "uv", "path": "/dev/shm/evil/uv"}],
}


def test_every_way_in_gives_a_foreign_machine(tmp_path: Path) -> None:
    facts = json.dumps(document())
    texts = {
        "facts.json": facts,
        "check.json": json.dumps({"verdict": "healthy", "facts": json.loads(facts)}),
        "thread.md": f"Help!\n\n```json\n{facts}\n```\n",
        "quoted.md": "> " + json.dumps(document(), indent=1).replace("\n", "\n> "),
        "report.txt": "RuntimeError: CUDA error: no kernel image is available\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    found = list(saved.machines((str(tmp_path),)))
    assert {type(entry.machine) for entry in found} == {Foreign}
    assert [entry.name.rpartition("/")[2] for entry in found] == sorted(texts)


def test_a_recording_is_foreign_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "recording.json").write_text("{}")
    own = factfile.from_document(document(**EVIL))
    monkeypatch.setattr(recording, "replay", lambda *_, **__: own)
    machine = next(saved.machines((str(tmp_path),))).machine
    assert isinstance(machine, Foreign)
    assert forged.faults_of(machine, 1) == []


def test_nothing_takes_the_mark_back() -> None:
    import msgspec

    machine = foreign(factfile.from_document(document(**EVIL)))
    assert isinstance(msgspec.structs.replace(machine, date="2026-01-01"), Foreign)
    assert foreign(machine) is machine
    assert not isinstance(acting(machine), Foreign)
    assert acting(acting(machine)) == acting(machine)
    own = factfile.from_document(document())
    assert acting(own) is own


def test_facts_stay_facts() -> None:
    """A path is judged and shown as it was read; it is no word of a command."""
    machine = foreign(factfile.from_document(document(**EVIL)))
    judged = pipeline.judge(machine)
    assert judged.machine.python.executable == EVIL["executable"]
    assert acting(machine).python.executable == PLACEHOLDER
    (step, *_) = judged.plan.steps
    assert {argv[0] for argv in step.commands} == {PLACEHOLDER}


def test_the_index_of_a_company_is_named_in_a_comment_only() -> None:
    machine = foreign(factfile.from_document(document(**EVIL)))
    judged = pipeline.judge(machine)
    text = script(judged.plan, machine, judged.diagnosis, version="0", knowledge="0")
    lines = [line for line in text.split("\n") if "evil.example" in line]
    assert lines
    assert all(line.startswith("#") for line in lines)
    shown = markdown.report(pipeline.report(judged))
    assert "does not use the package index in the saved report" in shown


def test_a_step_that_needs_a_word_of_the_document_is_left_to_be_done_by_hand() -> None:
    plans = (pipeline.judge(foreign(factfile.from_document(base))).plan for base in forged.bases())
    steps = [step for made in plans for step in made.steps if step.id == "trim-ld-library-path"]
    left = [step for step in steps if not step.variables]
    assert left
    assert all(not step.commands and NOT_TAKEN in (step.note or "") for step in left)


SWAPS = (
    ("download.pytorch.org", "evil.example"),
    ("pytorch.org", "pytorch.org.evil.example"),
    ("nvidia-", "nvidia-evil-"),
    ("==", "==1.0+evil."),
    (" install ", " install evil-package "),
    ("/usr", "/usr/evil"),
    ("torch", "torchevil"),
)


def test_pasted_reports_choose_nothing_either() -> None:
    rows = tomllib.loads((HERE / "reports" / "install_texts.toml").read_text(encoding="utf-8"))
    texts = sorted(set(strings(rows)))[::6]
    for turn, text in enumerate(texts):
        for old, new in SWAPS:
            machine = foreign(read_report(text.replace(old, new).encode(), knowledge.load()))
            found = forged.faults_of(machine, turn)
            # The commands that ask for more facts are rows of the tables and have their own words.
            assert not [fault for fault in found if fault.kind in ("mark", "host", "package")]


def strings(plain: Any) -> Iterator[str]:
    if isinstance(plain, str) and len(plain) > 40:
        yield plain
    elif isinstance(plain, (dict, list)):
        for value in plain.values() if isinstance(plain, dict) else plain:
            yield from strings(value)


# --- hosts, types, limits --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "official"),
    [
        ("https://download.pytorch.org/whl/cu126", True),
        ("https://pytorch.org/x", True),
        ("https://DOWNLOAD.PyTorch.org./whl", True),
        ("https://evilpytorch.org/whl/cu126", False),
        ("https://download.pytorch.org.evil.com/whl/cu126", False),
        ("https://download.pytorch.org@evil.com/whl", False),
        ("https://evil.com/pytorch.org", False),
        ("https://[evil/pytorch.org", False),
        ("", False),
    ],
)
def test_hosts_are_compared_label_by_label(url: str, official: bool) -> None:
    assert is_official(url) is official


def cudadoctor(*words: str, stdin: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "cudadoctor", *words, "--from", "-"]
    return subprocess.run(
        argv, input=stdin, capture_output=True, text=True, timeout=120, check=False
    )


DEEP = '{"schema": 1, "env": ' + "[" * 60 + "]" * 60 + "}"
MANY = json.dumps({"schema": 1, "pci": [{}] * (factfile.MOST_IN_ONE + 1)})
WIDE = json.dumps({"schema": 1, "env": [[0] * 15_000] * 20})
LARGE = json.dumps({"schema": 1, "env": {"A": "x" * factfile.MOST_BYTES}})
SENTENCES = {
    "symptoms": (json.dumps({"schema": 1, "symptoms": [{}] * 201}), "at most 200 symptoms"),
    "deep": (DEEP, "nested at most 40 levels deep"),
    "many": (MANY, "at most 20000 entries"),
    "wide": (WIDE, "at most 200000 values"),
    "large": (LARGE, "at most 32 MiB in size"),
    "version": ('{"schema": 1, "torch": {"version": {"reported": {}}}}', "version as text"),
    "driver": ('{"schema": 1, "driver": {"kernel": [535]}}', "version as text"),
    "long": (json.dumps({"schema": 1, "torch": {"version": "1." * 300 + "1"}}), "version as text"),
}


@pytest.mark.parametrize("case", SENTENCES)
def test_a_document_beyond_its_limits_is_refused_in_one_sentence(case: str) -> None:
    text, words = SENTENCES[case]
    for command in (("check",), ("fix", "--print")):
        ran = cudadoctor(*command, stdin=text)
        assert (ran.returncode, ran.stdout) == (2, "")
        assert words in ran.stderr
        assert ran.stderr.count("\n") == 1
        assert len(ran.stderr) < 300


@pytest.mark.parametrize("number", ["1" + "0" * 30, "-1e300", "9223372036854775808"])
def test_a_number_beyond_64_bits_is_not_known(number: str) -> None:
    text = f'{{"schema": 1, "limits": {{"nofile": {number}, "cpus": 8}}}}'
    limits = factfile.loads(text).limits
    assert (limits.nofile, limits.cpus) == (None, 8)


@pytest.mark.parametrize("wrong", forged.WRONG, ids=ascii)
def test_a_wrong_type_is_a_gap_or_refused_and_never_our_failure(wrong: Any) -> None:
    for path, _ in FIELDS[:: len(FIELDS) // 12]:
        plain = forged.planted(forged.bases()[0], path, wrong)
        try:
            factfile.from_document(json.loads(json.dumps(plain)))
        except factfile.FactsError as error:
            assert str(error)


ANSWERS: dict[str, list[Any]] = {
    "read": [{"text": 5}, {"file": 5}, {"why": {}}, [], None],
    "stat": [{"exists": "yes"}, {"size": "1"}, {"mode": "x"}, None],
    "listing": [{"names": [1]}, {"names": "ab"}, []],
    "run": [{"code": "0"}, {"stdout": "text"}, {"stdout": {"text": []}}, {"seconds": "1"}],
    "inside": [{"stdout": {"base64": 5}}],
    "space": [{"total_bytes": "1", "free_bytes": 1}, {"total_bytes": 1}, []],
    "glob": [[1], "ab", {}],
    "which": [5, [], {}],
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_an_answer_of_a_recording_that_none_ever_gave_is_no_answer(
    kind: str, tmp_path: Path
) -> None:
    for plain in ANSWERS[kind]:
        with pytest.raises(ValueError, match=r"Expected|missing"):
            recording.decoded(kind, plain, tmp_path)


def test_a_recording_shows_no_file_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    secret = tmp_path / "secret"
    secret.write_text("hunter2")
    (tmp_path / "texts" / "1.txt").symlink_to(secret)
    for name in ("1.txt", "../secret", str(secret), "texts"):
        with pytest.raises(OSError, match="not a regular file in the recording folder"):
            recording.decoded("read", {"file": name}, tmp_path)


# --- the type --------------------------------------------------------------------------------


def test_only_the_boundary_makes_words() -> None:
    """mypy keeps texts out of commands; nobody else may call what makes a text a word."""
    for name, module in modules().items():
        calls = (node for node in ast.walk(ast.parse(module.path.read_text())))
        named = {node.id for node in calls if isinstance(node, ast.Name)}
        assert "Word" not in named or name in ("model.trust", "model.findings", "pipeline"), name
    package = Path(pipeline.__file__).parent
    for path in (
        *(package / "rules").rglob("*.py"),
        *(package / "plan" / "remedies").rglob("*.py"),
    ):
        text = path.read_text()
        assert "ours(" not in text, path
        assert path.name == "diagnose.py" or "typed(" not in text, path


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("torch", "archs"), ["sm_²"]),
        (("torch", "archs"), ["sm_" + "9" * 5000]),
        (("driver", "log"), ["NVRM: supported through the NVIDIA " + "9" * 5000 + ".xx Legacy"]),
        (("torch", "requires"), ["nvidia-cudnn-cu13==" + "9" * 5000]),
        (("torch", "requires"), ['numpy; python_full_version < "3.' + "9" * 5000 + '"']),
        (("identity", "user"), "sm_90 " * 40),
    ],
)
def test_no_number_or_name_of_a_document_ends_the_doctor(
    path: tuple[str, str], value: object
) -> None:
    base = json.loads((HERE / "machines" / "rtx4090-linux.json").read_text())
    base[path[0]][path[1]] = value
    judged = pipeline.judge(foreign(factfile.from_document(base)))
    pipeline.report(judged)


def test_no_page_mentions_anybody() -> None:
    base = document()
    base["torch"] = {"installed": True}
    base["python"]["shadows"] = ["\\`@somebody\\`@somebody"]
    shown = pipeline.report(pipeline.judge(foreign(factfile.from_document(base))))
    html = MarkdownIt("commonmark").render(markdown.report(pipeline.shareable(shown)))
    assert "@somebody" in html
    assert "@somebody" not in re.sub(r"<code[^>]*>.*?</code>", "", html, flags=re.S)


def test_a_list_of_gpus_and_a_name_have_limits() -> None:
    base = document()
    base["gpus"] = [{"index": number} for number in range(257)]
    with pytest.raises(factfile.FactsError, match="256 GPUs"):
        factfile.from_document(base)
    with pytest.raises(factfile.FactsError, match="4,096 characters"):
        factfile.from_document(document() | {"identity": {"user": "a" * 4097}})


@pytest.mark.parametrize("group", ["sudo", "docker", "wheel", "disk", "video,wheel"])
def test_no_document_makes_its_reader_join_a_group_that_is_as_good_as_root(group: str) -> None:
    path = HERE / "scenarios" / "device-permission--user-not-in-video.toml"
    machine = read_scenario(path).machine
    nodes = [msgspec.structs.replace(node, group=group) for node in machine.driver.nodes or ()]
    driver = msgspec.structs.replace(machine.driver, nodes=tuple(nodes))
    own = msgspec.structs.replace(machine, driver=driver)
    for shown in (foreign(own), own):
        judged = pipeline.judge(shown)
        assert "device-permission" in {finding.cause for finding in judged.diagnosis.findings}
        if isinstance(shown, Foreign) or "," not in group:
            words = [word for step in judged.plan.steps for argv in step.commands for word in argv]
            assert group not in words
        titles = " ".join(f"{step.title} {step.manual} {step.note}" for step in judged.plan.steps)
        assert "," in group or not re.search(rf"\b{group}\b", titles)


@pytest.mark.parametrize(
    ("file", "what", "mode"),
    [
        ("/etc/modprobe.d/blacklist-nouveau.conf", "blacklist nouveau", "write"),
        ("/etc/modprobe.d/x.conf", "install nvidia /bin/sh -c evil", "by hand"),
        ("/etc/sudoers.d/x", "blacklist nouveau", "by hand"),
        ("/etc/ld.so.preload", "", "by hand"),
        ("/etc/default/grub", 'GRUB_CMDLINE_LINUX="init=/bin/sh"', "by hand"),
    ],
)
def test_a_document_has_only_known_lines_written_into_known_files(
    file: str, what: str, mode: str
) -> None:
    way_out = Exit(foreign(Machine()), knowledge.load(), None)
    (found,) = way_out.edits((Edit(file=file, what=what, mode="write"),))
    assert found.mode == mode
