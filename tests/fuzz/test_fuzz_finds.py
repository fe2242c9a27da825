"""What the fuzzers found: each text that once broke a parser, or never let it come back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fuzz_host import BabblingHost
from fuzz_judged import judged
from fuzz_parser import check
from packaging.version import Version
from recorded_host import RecordedHost

from cudadoctor import knowledge
from cudadoctor.cli import options as cli_options
from cudadoctor.cli.options import Options
from cudadoctor.host import recording
from cudadoctor.host.children import Ran
from cudadoctor.host.local import Stat
from cudadoctor.locale import language
from cudadoctor.model import factfile, requirements
from cudadoctor.model.machine import Identity, Index, Machine
from cudadoctor.model.versions import (
    DriverVersion,
    driver_of,
    torch_from_tag,
    version_of,
    whole,
)
from cudadoctor.privacy.conceal import Concealer
from cudadoctor.privacy.redact import Redactor
from cudadoctor.probes import Looked, installed, kernel, limits, nvml, toolkit
from cudadoctor.probes.indexes import ini_section, read_index
from cudadoctor.probes.installed import assigned
from cudadoctor.probes.installed import parse as told_of
from cudadoctor.probes.kernel import note_fabric
from cudadoctor.probes.streamed import Streamed, streamed
from cudadoctor.reports.kernel_log import parse_kernel_log
from cudadoctor.reports.reading import read_report
from cudadoctor.reports.smi import parse_smi
from cudadoctor.smoke import stages_begun
from cudadoctor.smoke.reading import Torch, read_line

DEEP = "[" * 100_000
ENDLESS = "9" * 5000
BLANKS = 100_000


# --- numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["²", "٣", "", "-1", "1.5", ENDLESS, "0x10", "1_000"])
def test_what_is_no_number_of_ours_is_none(text: str) -> None:
    assert whole(text) is None


@pytest.mark.parametrize("text", ["", "x", "٣.٤", f"{ENDLESS}.1", "1.²"])
def test_a_version_in_other_digits_or_without_end_is_none(text: str) -> None:
    assert version_of(text) is None
    assert version_of(text) is None


@pytest.mark.parametrize("text", ["٥٨٠.٦٥", "570.12345", "5", ENDLESS])
def test_a_driver_in_other_digits_or_of_too_many_is_none(text: str) -> None:
    assert driver_of(text) is None
    assert nvml.library_version(text) is None


def test_other_digits_are_no_version_of_nvcc_or_of_a_compiler() -> None:
    assert toolkit.parse_nvcc("Cuda compilation tools, release ١٣.٠, V13") is None
    assert toolkit.parse_version("g++ (Debian) ٣.٨.0") == ("g++", None)
    assert torch_from_tag("x²") is None


def test_a_fabric_manager_of_no_driver_release_has_no_version() -> None:
    notes = Looked()
    host = RecordedHost(
        stats={"/usr/bin/nv-fabricmanager": Stat(exists=True)},
        otherwise=Ran(code=0, stdout="Fabric Manager version is : 570.123456"),
    )
    note_fabric(notes, host, (), fast=False)
    assert "driver.fabric.version" not in notes.facts


def test_a_size_in_record_that_is_no_number_is_not_known() -> None:
    lines = f"torch/lib/a.so,sha256=x,²\ntorch/lib/b.so,sha256=x,{ENDLESS}\n"
    assert dict(installed.expected_sizes(lines.encode())) == {
        "torch/lib/a.so": 0,
        "torch/lib/b.so": 0,
    }


@pytest.mark.parametrize("text", ["²", ENDLESS, "0-" + ENDLESS, "5-1", "0-99999999"])
def test_a_list_of_processors_that_cannot_be_is_not_known(text: str) -> None:
    assert limits.parse_cpu_list(text) is None


@pytest.mark.parametrize("data", ["²".encode(), ENDLESS.encode(), b"9 9 9", b"\xff"])
def test_limits_that_are_no_numbers_are_not_known(data: bytes) -> None:
    check(limits.read_limits(BabblingHost(data)))


def test_a_group_with_a_number_that_is_none_is_passed_over() -> None:
    node = Stat(exists=True, mode=0o660, gid=44)
    host = RecordedHost(
        files={"/etc/group": "odd:x:²:\nvideo:x:44:\n"},
        folders={"/dev": ["nvidiactl"]},
        stats={"/dev/nvidiactl": node},
        otherwise=Ran(missing=True),
        inside={"nodes.py": ""},
    )
    nodes = kernel.read_kernel(host, fast=True).facts["driver.nodes"]
    assert [entry.group for entry in nodes] == ["video"]


def test_a_visible_device_without_end_is_out_of_range() -> None:
    judged(ENDLESS)


def test_an_uptime_that_is_no_time_gives_no_age() -> None:
    line = "[    5.1] NVRM: Xid (PCI:0000:41:00): 79, pid=7, name=python, GPU has fallen off"
    for uptime in (float("nan"), float("inf")):
        assert parse_kernel_log(line, uptime).xids[0].age_s is None


def test_a_record_of_the_kernel_log_with_an_endless_time_is_kept_as_it_is() -> None:
    line = f"6,1,{ENDLESS[:800]},-;NVRM: loading NVIDIA UNIX"
    assert parse_kernel_log(line).lines == (line[:400],)


def test_a_torch_that_is_asked_for_by_an_endless_number_is_wrong_use() -> None:
    with pytest.raises(cli_options.WrongUse, match="is not a valid version"):
        cli_options.refuse_contradictions(Options(torch=ENDLESS))


# --- nvidia-smi -----------------------------------------------------------------------------------

HEAD = "index, name, uuid, driver_version, memory.total [MiB]\n"


def test_a_quote_that_nobody_closes_swallows_no_other_gpu() -> None:
    rows = '0, "Tesla T4, GPU-1, 550.54, 15360 MiB\n1, Tesla T4, GPU-2, 550.54, 15360 MiB\n'
    gpus = parse_smi(HEAD + rows).gpus
    assert gpus is not None
    assert gpus[-1].uuid == "GPU-2"


def test_a_cell_without_end_is_no_error_of_the_reader() -> None:
    assert parse_smi(HEAD + '0, "' + "x" * 200_000).gpus is None


def test_memory_that_no_gpu_has_is_not_known() -> None:
    table = (
        "|   0  Tesla T4            On   | 00000000:00:1E.0 Off |                   ² |\n"
        f"| N/A   34C    P8    9W /  70W | {'9' * 30}MiB / {'9' * 30}MiB |      0%      Default |\n"
    )
    gpus = parse_smi(table).gpus
    assert gpus is not None
    assert (gpus[0].memory_bytes, gpus[0].ecc_uncorrected) == (None, None)


# --- depth ----------------------------------------------------------------------------------------


def test_a_document_of_endless_depth_is_refused_as_none() -> None:
    with pytest.raises(factfile.FactsError, match="can be nested at most 40 levels deep"):
        factfile.loads(DEEP)


def test_a_line_of_endless_depth_is_none_of_a_childs() -> None:
    line = '{"kind": ' + DEEP
    assert streamed(Ran(code=0, stdout=line)).lines == ()
    assert told_of(line).python is None
    assert read_line(line) is None


def test_settings_of_endless_depth_are_none() -> None:
    host = RecordedHost(files={"/etc/uv/uv.toml": "index = " + DEEP}, env={"HOME": "/home/ada"})
    assert read_index(host, "/work", True) == Index(no_index=False)


def test_a_recording_of_endless_depth_is_refused(tmp_path: Path) -> None:
    (tmp_path / "recording.json").write_text(DEEP)
    with pytest.raises(recording.ReplayError, match="is not a recording"):
        recording.ReplayHost(str(tmp_path))


# --- lines of a child that are not whole ----------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        {"kind": "torch"},
        {"kind": "torch", "ok": True, "error": None, "seconds": "1"},
        {"kind": "end", "stage": "matmul", "status": "odd", "detail": "", "figures": {}},
        {"kind": "maps", "paths": [1], "torch": "", "prefix": "", "conda": False},
        {"kind": []},
        [],
    ],
)
def test_a_line_of_the_training_step_that_is_not_whole_is_left_out(line: object) -> None:
    assert read_line(json.dumps(line)) is None


def test_a_figure_that_is_no_number_of_json_is_left_out() -> None:
    line = {"kind": "end", "stage": "matmul", "status": "passed", "seconds": 1.0, "detail": ""}
    assert read_line(json.dumps(line | {"figures": {"loss": float("nan")}})) is None
    assert read_line(json.dumps(line | {"figures": {}})[:-1] + ', "signal": 1e999}') is None


def test_seconds_are_a_number_that_a_document_gives_back() -> None:
    line = {"kind": "torch", "ok": True, "error": "", "seconds": 1 << 70}
    found = read_line(json.dumps(line))
    assert isinstance(found, Torch)
    assert isinstance(found.seconds, float)


def test_the_progress_survives_a_line_that_is_not_whole() -> None:
    begun: list[str] = []
    twice = '{"kind": "start", "kind": "broken", "error": ""}'
    for line in (
        twice,
        '{"kind": "start"',
        '{"kind": "start"}',
        '{"kind": "start", "stage": "matmul"}',
    ):
        stages_begun(begun.append)(line)
    assert begun == ["matmul"]


def test_answers_of_nvml_that_have_no_sense_become_no_facts() -> None:
    lines: tuple[dict[str, object], ...] = (
        {"kind": "system", "name": ["driver"], "value": {}},
        {"kind": "system", "name": "count", "value": True},
        {"kind": "init", "code": True, "call": []},
        {"kind": "gpu", "index": True, "field": "handle", "code": "x"},
        {"kind": "gpu", "index": 0, "field": "handle", "code": [9]},
        {"kind": "gpu", "index": 0, "field": "memory", "value": {"total": 1 << 30, "used": 0}},
    )
    check(nvml.nvml_facts(Streamed(lines=lines, done=True)))
    assert nvml.pair_from({"first": False, "second": True}) is None


# --- searches that never came back ----------------------------------------------------------------


def test_a_script_in_the_place_of_nvcc_may_begin_with_blank_lines() -> None:
    script = "#!/bin/sh\n" + "\n" * 2000 + "echo"
    host = RecordedHost(
        files={"/opt/cuda/bin/nvcc": script, "/opt/cuda/version.txt": "CUDA Version 12.4.1"},
        otherwise=Ran(code=0, stdout="release 13.0, V13.0.48"),
    )
    looked = toolkit.read_toolkits(host, {"CUDA_HOME": "/opt/cuda"}, None, (), (), fast=True)
    assert [kit.cuda for kit in looked.facts["build.toolkits"]] == [Version("13.0")]


def test_a_requirement_full_of_blanks_is_cut_at_once() -> None:
    assert requirements.cut("torch" + " " * BLANKS + "((") is None
    asked = requirements.cut("torch" + " " * BLANKS + "[all] (>=2.0)" + " " * BLANKS + "; x")
    assert asked == requirements.Asked("torch", ("all",), ">=2.0", "x")


def test_a_specifier_with_an_endless_number_admits_what_it_does_not_refuse() -> None:
    release = Version("2.14.1")
    assert requirements.admits(f"<{ENDLESS}", release) in (True, False)
    assert requirements.admits("==3.5.٣", release) is True


def test_settings_full_of_blanks_are_read_at_once() -> None:
    text = "[global]\nindex-url" + " " * BLANKS + "x\nno-index \t= 1\n"
    assert ini_section(text, "global") == {"no-index": "1"}


def test_an_assignment_behind_blanks_or_lines_is_read_at_once() -> None:
    assert assigned("a:" + " " * BLANKS + "\n" * BLANKS + "cuda : X = '13.0'\n") == {"cuda": "13.0"}


def test_lines_full_of_blanks_are_read_at_once() -> None:
    assert limits.parse_limits("Max open files" + " " * BLANKS + "x\n") == {}
    assert parse_smi("GPU 0: x" + " " * BLANKS + "y\n").gpus is not None
    assert parse_kernel_log("aer: " * BLANKS).lines == ()


def test_a_blacklist_of_blank_lines_is_read_at_once() -> None:
    text = "\n" * 60_000 + "  blacklist nvidia # no\n"
    host = RecordedHost(files={"/etc/modprobe.d/no.conf": text}, otherwise=Ran(missing=True))
    found = kernel.read_kernel(host, fast=True).facts["driver.blacklisted_by"]
    assert found == ("/etc/modprobe.d/no.conf",)


def test_a_text_that_is_no_sentence_of_ours_is_not_translated() -> None:
    text = "The GPU (" * 2000
    assert language.language("es").spoken(text) == text


@pytest.mark.parametrize("name", ["torchvision", "bitsandbytes", "xformers"])
def test_a_release_that_is_no_version_has_no_known_requirement(name: str) -> None:
    tables = knowledge.load()
    assert tables.companion_torch(name, "torch-scatter") is None
    assert tables.companion_cuda(name, "torch-scatter") is None


# --- redaction ------------------------------------------------------------------------------------


def test_a_user_whose_name_is_no_text_is_concealed() -> None:
    machine = Machine(identity=Identity(user="ad\udc9a", home="/home/ad\udc9a", host="h\ud800t"))
    found = Concealer(machine).data(b"/home/ad\x9a/x\0")
    assert len(found) == len(b"/home/ad\x9a/x\0")
    assert b"ad\x9a" not in found


def test_a_home_full_of_separators_is_found_at_once() -> None:
    home = "/home/ada" + "\\" * 40 + "x"
    machine = Machine(identity=Identity(home=home))
    assert Redactor(machine).text(f"see {home}/lib") == "see ~/lib"
    assert "ada" not in Redactor(machine).text(home[:-1] + "y")


def test_a_line_of_endless_depth_is_concealed_as_text() -> None:
    line = '{"kind": ' + DEEP
    assert Concealer(Machine()).output(line) == line


# --- pages and reports ----------------------------------------------------------------------------


@pytest.mark.parametrize("text", ['[{"a": 1}, 5]', "[{" + "[" * 5000, '{"\udc92": 1}', "[{}]"])
def test_a_variable_that_looks_like_json_is_shown_as_it_is(text: str) -> None:
    judged(text)


def test_digits_of_other_scripts_in_a_report_are_read_as_ours() -> None:
    text = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  ٥٨٠.65.06  Sun\n"
    machine = read_report(text, knowledge.load())
    assert machine.driver.kernel == DriverVersion("580.65.06")
    assert not [gap.why for gap in machine.gaps if "failed" in gap.why]
