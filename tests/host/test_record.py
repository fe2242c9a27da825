"""Recording a host and replaying it: the same diagnosis, and nothing that identifies in between."""

from __future__ import annotations

import base64
import json
import os
import shutil
import stat
import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path

import pytest
from raw_hosts import healthy
from recorded_host import RecordedHost
from standin_fixtures import HostWith, StandIns

from cudadoctor import knowledge
from cudadoctor.host import recording
from cudadoctor.host.children import Ran
from cudadoctor.host.local import Answer, Host, Space, Stat
from cudadoctor.model.findings import Diagnosis
from cudadoctor.model.machine import Gpu, Identity, Machine
from cudadoctor.privacy.conceal import Concealer
from cudadoctor.privacy.redact import Redactor
from cudadoctor.probes.examine import Look, examine_host
from cudadoctor.rules.diagnose import diagnose

USER = "aldarion"
HOST_NAME = "numenor7"
GPU = f"GPU-{uuid.UUID(int=0x5EC12E7)}"
TOKEN = "hf_" + "PlantedPlanted1234"
SECRETS = (USER, HOST_NAME, GPU, TOKEN, "s3cret", "abc123def", "hunter2222", "10.20.30.40")

SMI = f"""\
#!/bin/sh
case "$*" in
*--query-gpu*) echo "Failed to initialize NVML: Driver/library version mismatch"
  echo "NVML library version: 580.95" ; exit 18 ;;
*) echo "Failed to initialize NVML: Driver/library version mismatch for {GPU} on {HOST_NAME}"
  exit 18 ;;
esac
"""
PIP = """\
[global]
index-url = https://ada:s3cret@pypi.example.org/simple?token=abc123def
password = hunter2222
"""


class Planted(HostWith):
    """This machine under a name of its own."""

    def read(self, path: str, limit: int = 1 << 20, offset: int = 0) -> Answer:
        if path == "/proc/sys/kernel/hostname":
            return Answer(data=HOST_NAME.encode() + b"\n")
        return super().read(path, limit, offset)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The home of a user with secrets in the settings of pip and an nvidia-smi that fails."""
    folder = tmp_path / "homes" / USER
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin" / "nvidia-smi"
    program.write_text(SMI)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    settings = folder / ".config" / "pip" / "pip.conf"
    settings.parent.mkdir(parents=True)
    settings.write_text(PIP)
    return folder


def planted_env(home: Path) -> dict[str, str]:
    return {
        "HOME": str(home),
        "USER": USER,
        "PATH": f"{home}/bin{os.pathsep}/usr/bin{os.pathsep}/bin",
        "HF_TOKEN": TOKEN,
        "TORCH_HOME": f"{home}/{TOKEN}",
        "LD_LIBRARY_PATH": f"{home}/lib",
        "CUDA_VISIBLE_DEVICES": GPU,
        "NCCL_COMM_ID": "10.20.30.40:5000",
        "MASTER_ADDR": f"{HOST_NAME}.cluster.example.org",
        "INNOCENT_NAME": "hunter2222",
    }


def judged(machine: Machine) -> Diagnosis:
    return diagnose(machine, knowledge.load())


def record(host: Host, folder: Path, python: str, *, full: bool = False) -> Machine:
    """Record a fast look at an interpreter, and give what it saw."""
    look = Look(python=python, depth="fast")
    recording.prepare(str(folder))
    recorder = recording.RecordingHost(host)
    machine = examine_host(recorder, look, lambda *_: None)
    assert recording.write(str(folder), recorder, look, machine, full=full) > 100
    return machine


def same(machine: Machine, replayed: Machine) -> None:
    first, second = judged(machine), judged(replayed)
    assert (first.verdict, first.primary) == (second.verdict, second.primary)
    assert [found.cause for found in first.findings] == [found.cause for found in second.findings]
    assert {open_.cause for open_ in first.undecided} == {open_.cause for open_ in second.undecided}


def everything(folder: Path) -> bytes:
    """Every byte of the folder; what is in base64 is decoded as well."""
    data = b""
    for path in sorted(entry for entry in folder.rglob("*") if entry.is_file()):
        said = path.read_bytes()
        data += path.name.encode() + said
        data += base64.decodebytes(said) if path.suffix == ".b64" else b""
        if path.suffix == ".jsonl":
            answers = (json.loads(line)["said"] for line in said.splitlines())
            found = (
                answer["base64"]
                for answer in answers
                if isinstance(answer, dict) and "base64" in answer
            )
            data += b"".join(base64.b64decode(text) for text in found)
    return data


# --- the whole way --------------------------------------------------------------------------


def test_this_machine_replays_to_the_same_facts(python_cu130: str, tmp_path: Path) -> None:
    machine = record(HostWith(dict(os.environ)), tmp_path / "said", python_cu130)
    replayed = recording.replay(str(tmp_path / "said"))
    same(machine, replayed)
    assert replayed.torch == machine.torch
    assert replayed.packages == machine.packages
    assert replayed.libraries == machine.libraries
    assert replayed.gaps == machine.gaps


def test_a_broken_host_replays_to_the_same_findings_and_nothing_that_identifies_is_written(
    python_cu130: str, home: Path, tmp_path: Path
) -> None:
    machine = record(Planted(planted_env(home)), tmp_path / "said", python_cu130)
    assert judged(machine).verdict == "broken"
    assert "driver-library-mismatch" in {finding.cause for finding in judged(machine).findings}
    same(machine, recording.replay(str(tmp_path / "said")))
    data = everything(tmp_path / "said")
    assert [secret for secret in SECRETS if secret.encode() in data] == []
    assert b"pypi.example.org" in data
    # A home without a secret is replayed as another absolute path.
    replayed_home = recording.ReplayHost(str(tmp_path / "said")).env["HOME"]
    assert replayed_home == f"{home.parent}/user0000"


def test_full_writes_what_the_host_said_and_no_variable_that_nobody_asked_for(
    python_cu130: str, home: Path, tmp_path: Path
) -> None:
    machine = record(Planted(planted_env(home)), tmp_path / "said", python_cu130, full=True)
    data = everything(tmp_path / "said")
    assert USER.encode() in data
    assert b"s3cret" in data
    assert b"INNOCENT_NAME" not in data
    same(machine, recording.replay(str(tmp_path / "said")))


def test_a_host_with_a_gpu_replays_to_the_same_facts(
    standins: StandIns, python_cu130: str, tmp_path: Path
) -> None:
    machine = record(healthy(standins, python_cu130), tmp_path / "said", python_cu130)
    replayed = recording.replay(str(tmp_path / "said"))
    same(machine, replayed)
    assert machine.gpus
    uuids = [gpu.uuid for gpu in machine.gpus if gpu.uuid]
    assert uuids
    assert not [
        gpu_uuid for gpu_uuid in uuids if gpu_uuid.encode() in everything(tmp_path / "said")
    ]
    first, second = Redactor(machine).document(machine), Redactor(replayed).document(replayed)
    assert first | {"gaps": ()} == second | {"gaps": ()}


# --- a question without an answer -----------------------------------------------------------


@pytest.fixture(scope="module")
def recorded(python_cu130: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One recording of this machine."""
    folder = tmp_path_factory.mktemp("recorded") / "said"
    record(HostWith(dict(os.environ)), folder, python_cu130)
    return folder


@pytest.fixture
def said(recorded: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(recorded, tmp_path / "said"))


def test_a_question_without_an_answer_fails_the_test(said: Path) -> None:
    host = recording.ReplayHost(str(said))
    with pytest.raises(recording.NoAnswer, match="never asked"):
        host.read("/never asked")
    (said / "inside.jsonl").write_text("")
    with pytest.raises(recording.NoAnswer, match=r"look\.py"):
        recording.replay(str(said))


def test_a_question_without_an_answer_is_a_gap_where_a_recording_is_judged(said: Path) -> None:
    (said / "inside.jsonl").write_text("")
    machine = recording.replay(str(said), strict=False)
    assert machine.torch.version is None
    assert any(recording.SILENT in gap.why for gap in machine.gaps)


@pytest.mark.parametrize("kind", recording.KINDS)
@pytest.mark.parametrize("spoilt", ["null", '{"file": "../../gone"}', '{"names": 3, "code": []}'])
def test_a_damaged_answer_never_breaks_the_judgement(said: Path, kind: str, spoilt: str) -> None:
    path = said / f"{kind}.jsonl"
    asked = [json.loads(line)["asked"] for line in path.read_text().splitlines()]
    lines = (f'{{"asked": {json.dumps(question)}, "said": {spoilt}}}\n' for question in asked)
    path.write_text("".join(lines))
    ran = cudadoctor("check", "--from", str(said), "--json")
    assert ran.returncode in (0, 1, 2, 3), ran.stderr
    assert (ran.returncode == 2) == bool(ran.stderr)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"recording": 99}', "\x00"])
def test_a_folder_that_is_no_recording_is_told_in_a_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / recording.ABOUT).write_text(text)
    with pytest.raises(recording.ReplayError, match=r"recording|recorded"):
        recording.replay(str(tmp_path))


# --- the answers ----------------------------------------------------------------------------

BYTES = (b"", b"text\n", b"r\r\n", b"\x7fELF\x00\xff", b"x" * 5000, b"\xff" * 5000, "ü".encode())


def recorded_and_replayed(host: RecordedHost, folder: Path, ask: Mapping[str, str]) -> Host:
    recording.prepare(str(folder))
    recorder = recording.RecordingHost(host)
    for path in ask:
        getattr(recorder, ask[path])(path)
    recording.write(str(folder), recorder, Look(), Machine())
    return recording.ReplayHost(str(folder))


@pytest.mark.parametrize("data", BYTES, ids=range(len(BYTES)))
def test_bytes_come_back_as_they_were(tmp_path: Path, data: bytes) -> None:
    host = RecordedHost(files={"/a": data})
    assert recorded_and_replayed(host, tmp_path / "r", {"/a": "read"}).read("/a").data == data


def test_every_kind_of_answer_comes_back(tmp_path: Path) -> None:
    stats = {"/link": Stat(exists=True, mode=0o755, uid=1, gid=2, size=3, real="/end")}
    host = RecordedHost(
        files={"/d/one": "1", "/shut": Answer(why="EACCES: Permission denied")},
        stats=stats,
        programs={"cc": "/usr/bin/cc"},
        spaces={"/": Space(total_bytes=9, free_bytes=1)},
    )
    ask = {"/d": "listing", "/link": "stat", "/d/*": "glob", "cc": "which", "/": "space"}
    ask |= {"/shut": "read", "/gone": "read", "ld": "which"}
    replayed = recorded_and_replayed(host, tmp_path / "r", ask)
    assert replayed.listing("/d") == host.listing("/d")
    found = replayed.stat("/link")
    assert (found.mode, found.uid, found.gid, found.size) == (0o755, 1, 2, 3)
    assert (found.real, found.is_link) == ("/end", False)
    assert (replayed.glob("/d/*"), replayed.which("cc"), replayed.which("ld")) == (
        ("/d/one",),
        "/usr/bin/cc",
        None,
    )
    assert replayed.space("/") == Space(total_bytes=9, free_bytes=1)
    assert replayed.read("/shut").why == "EACCES: Permission denied"
    assert replayed.read("/gone").missing


@pytest.mark.parametrize(
    "ran",
    [
        Ran(code=0, stdout="out\n", stderr="err"),
        Ran(code=-11, stdout='{"kind": "calling"}\n'),
        Ran(stdout="half", why="no response within 4 s", timed_out=True, seconds=4.0, silent_s=3.5),
        Ran(missing=True),
    ],
)
def test_how_a_program_ended_comes_back(tmp_path: Path, ran: Ran) -> None:
    recorder = recording.RecordingHost(RecordedHost(runs={"nvcc --version": ran}))
    recorder.run("nvcc", "--version", timeout_s=1)
    recording.prepare(str(tmp_path / "r"))
    recording.write(str(tmp_path / "r"), recorder, Look(), Machine())
    replayed = recording.ReplayHost(str(tmp_path / "r"))
    assert replayed.run("nvcc", "--version", timeout_s=2) == ran


# --- words ----------------------------------------------------------------------------------


def words(**who: str) -> Concealer:
    gpus = (Gpu(index=0, uuid=GPU),)
    return Concealer(Machine(identity=Identity(**who), gpus=gpus))


def test_a_system_word_as_a_user_leaves_the_paths_of_the_system_alone() -> None:
    concealer = words(user="nvidia", home="/home/nvidia", host="ubuntu")
    assert concealer.text("/proc/driver/nvidia/version") == "/proc/driver/nvidia/version"
    assert concealer.output("ID=ubuntu\n", "/etc/os-release") == "ID=ubuntu\n"


def test_a_name_in_a_binary_file_keeps_its_length() -> None:
    data = b"\x7fELF\x00/home/aldarion/lib\x00numenor7\x00" + GPU.encode()
    concealed = words(user=USER, home=f"/home/{USER}", host=HOST_NAME).data(data)
    assert len(concealed) == len(data)
    assert not [secret for secret in SECRETS if secret.encode() in concealed]


def test_the_name_of_a_host_inside_a_word_stays() -> None:
    data = b"\x00libcudnn_engines_precompiled.so.9\x00engine\x00"
    concealed = words(host="engine").data(data)
    assert concealed == b"\x00libcudnn_engines_precompiled.so.9\x00host00\x00"


def test_the_home_of_somebody_else_is_not_told_either() -> None:
    concealer = words(user=USER, home=f"/home/{USER}")
    assert concealer.text("/home/elros/train.py /home/linuxbrew/bin") == (
        "/home/user0/train.py /home/linuxbrew/bin"
    )
    assert concealer.text("C:\\Users\\elros\\a") == "C:\\Users\\user0\\a"
    assert concealer.data(b"\x00/home/elros/lib\x00") == b"\x00/home/user0/lib\x00"
    assert concealer.text(concealer.text(f"/home/{USER}/x")) == "/home/user0000/x"


def test_lines_of_json_stay_lines_of_json() -> None:
    concealer = words(user="jürgen", home="/home/jürgen")
    line = json.dumps({"path": "/home/jürgen/x", "url": "https://a:b@c/?token=abc", "n": 1})
    found = json.loads(concealer.output(line + "\n"))
    assert found["path"] == "/home/user000/x"
    assert found["url"] == "https://<credentials>@c/"


def test_of_the_accounts_only_the_own_is_told() -> None:
    concealer = words(user=USER, home=f"/home/{USER}")
    passwd = "root:x:0:0:root:/root:/bin/sh\nelros:x:1:1:E:/home/elros:/bin/sh\n"
    passwd += f"{USER}:x:7:7:A L:/home/{USER}:/bin/sh\n"
    assert concealer.output(passwd, "/etc/passwd") == (
        "root:x:0:0::/root:/bin/sh\nuser0000:x:7:7::/home/user0000:/bin/sh\n"
    )
    assert concealer.output(f"video:x:44:elros,{USER}\n", "/etc/group") == "video:x:44:user0000\n"


# --- the command ----------------------------------------------------------------------------


def cudadoctor(*argv: str) -> subprocess.CompletedProcess[str]:
    whole = [sys.executable, "-m", "cudadoctor", *argv]
    return subprocess.run(whole, capture_output=True, text=True, timeout=60, check=False)


def test_the_command_records_and_check_judges_the_recording(
    python_cu130: str, tmp_path: Path
) -> None:
    folder = str(tmp_path / "deep" / "said")
    wrote = cudadoctor("record", folder, "--fast", "--python", python_cu130)
    assert (wrote.returncode, wrote.stderr) == (0, "")
    assert "replaced" in wrote.stdout
    here = json.loads(cudadoctor("check", "--fast", "--json", "--python", python_cu130).stdout)
    there = json.loads(cudadoctor("check", "--from", folder, "--json").stdout)
    for key in ("verdict", "primary"):
        assert here[key] == there[key]
    assert [finding["cause"] for finding in here["findings"]] == [
        finding["cause"] for finding in there["findings"]
    ]


def test_a_folder_that_is_not_empty_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    ran = cudadoctor("record", str(tmp_path), "--fast")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.count("\n") == 1
    assert "not empty" in ran.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ran = cudadoctor("record", str(tmp_path / "file"), "--fast")
    assert (ran.returncode, ran.stdout) == (2, "")


def test_after_a_wrong_interpreter_the_same_folder_can_be_taken(tmp_path: Path) -> None:
    ran = cudadoctor("record", str(tmp_path), "--fast", "--python", str(tmp_path / "no"))
    assert ran.returncode == 2
    assert not list(tmp_path.iterdir())
