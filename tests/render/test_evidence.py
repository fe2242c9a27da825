"""Evidence in the words of people: every fact that a rule names, and how its value reads."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import get_args, get_type_hints

import msgspec
import pytest
from msgspec import Struct
from scenario_reader import HERE, healthy_machine, read_scenario, scenario_paths

from cudadoctor import knowledge
from cudadoctor.knowledge.wording import wording
from cudadoctor.locale.language import Language, language
from cudadoctor.model.findings import Confidence, Diagnosis, Evidence, Finding, Severity
from cudadoctor.model.machine import Gpu, Machine
from cudadoctor.render import evidence
from cudadoctor.render.evidence import (
    LONGEST_VALUE,
    NBSP,
    EvidenceRow,
    arch_list,
    errors_of,
    evidence_rows,
    facts,
    gib,
    gpu_list,
    gpu_name,
)
from cudadoctor.reports.reading import read_report
from cudadoctor.reports.smi import MEANINGS
from cudadoctor.rules import registry
from cudadoctor.rules.diagnose import diagnose

ENGLISH, SPANISH = Language({}), language("es")
QUOTED: tuple[str, ...] = (
    "report",
    "import error",
    "torch message",
    "nvidia-smi message",
    "kernel log",
)
QUOTED += ("Xid error", "Xid errors", "training step")
"""Labels of what others said, in their own words."""


def _texts(plain: object) -> Iterator[str]:
    if isinstance(plain, dict):
        yield from _texts(list(plain.values()))
    elif isinstance(plain, list):
        for part in plain:
            yield from _texts(part)
    elif isinstance(plain, str):
        yield plain


@cache
def _findings() -> tuple[Finding, ...]:
    """The findings of all scenarios and of all reports that the tests hold."""
    kb = knowledge.load()

    def found(diagnosis: Diagnosis) -> tuple[Finding, ...]:
        return tuple(finding for finding in diagnosis.findings if finding.evidence)

    hosts = [found(diagnose(read_scenario(path).machine, kb)) for path in scenario_paths()]
    files = sorted((HERE / "reports").rglob("*.toml"))
    texts = [text for file in files for text in _texts(_toml(file)) if len(text) > 15]
    reports = [found(diagnose(read_report(text, kb), kb)) for text in dict.fromkeys(texts)]
    return tuple(finding for findings in (*hosts, *reports) for finding in findings)


def _toml(file: Path) -> object:
    return msgspec.toml.decode(file.read_text(encoding="utf-8"))


def _rows(say: Language, *, whole: bool = False) -> Iterator[EvidenceRow]:
    for finding in _findings():
        yield from evidence_rows(finding, say, whole=whole)


def _finding(*facts: Evidence, title: str = "A title") -> Finding:
    return Finding(
        cause="unknown",
        rule="unknown",
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        title=title,
        why="A reason.",
        values={},
        evidence=facts,
    )


def _row(fact: str, value: str, source: str | None = None, *, whole: bool = False) -> EvidenceRow:
    finding = _finding(Evidence(fact=fact, value=value, source=source))
    (row,) = evidence_rows(finding, ENGLISH, whole=whole)
    return row


def _value(fact: str, value: str) -> str:
    return _row(fact, value).value.replace(NBSP, " ")


def _named_by_rules() -> Iterator[str]:
    """The fact paths that stand in the source of rules behind `evidence=`."""
    for file in Path(registry.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "evidence":
                for part in ast.walk(node.value):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        yield part.value


def test_every_fact_that_is_evidence_has_a_label() -> None:
    paths = {fact.fact for finding in _findings() for fact in finding.evidence}
    fields = set(Machine.__struct_fields__)
    paths |= {path for path in _named_by_rules() if path.partition(".")[0] in fields}
    paths -= {path for path in paths if path.endswith(".")}  # of f"installs.{place}.refused"
    assert len(paths) > 130
    known = set(map(id, facts().fact.values()))
    assert sorted(path for path in paths if id(evidence._shown(path)[0]) not in known) == []


@pytest.mark.parametrize("whole", [False, True])
def test_no_value_is_written_for_a_program(whole: bool) -> None:
    raw = re.compile(r"[\[{]['\"{]|['\"][\]}]|\b(None|True|False|nan)\b|_bytes\b|\bsymptoms\.")
    rows = [row for row in _rows(ENGLISH, whole=whole) if row.label not in QUOTED]
    strange = [row for row in rows if raw.search(row.value) and "training step" not in row.label]
    assert strange == []
    # A module is called by its name: "import flash_attn".
    labels = {row.label for row in rows if not row.label.startswith("import ")}
    assert not [label for label in labels if re.search(r"\w\.\d+\.|_", label) and label.islower()]


def test_a_value_is_short_and_ends_with_a_whole_word() -> None:
    long = {row.label: row.value for row in _rows(ENGLISH) if len(row.value) > LONGEST_VALUE}
    assert long == {}
    whole = [row.value for row in _rows(ENGLISH, whole=True)]
    assert any(len(value) > LONGEST_VALUE for value in whole)
    text = "cannot load the library " * 6
    cut = _row("symptoms.0.text", text).value
    assert cut.endswith(f"{NBSP}…")
    assert set(cut[:-2].split()) <= set(text.split())
    assert _row("symptoms.0.text", text, whole=True).value == text


def test_the_words_of_a_message_come_before_its_place_and_its_folders() -> None:
    place = "/opt/conda/lib/python3.10/site-packages/torch/cuda/__init__.py:107: "
    words = "UserWarning: CUDA initialization: The NVIDIA driver on your system is too old"
    assert _value("symptoms.0.text", place + words) == words
    library = "ImportError: /opt/conda/envs/training/lib/libstdc++.so.6"
    needer = "/home/ada/venv/lib/python3.12/site-packages/torch/lib/c.so"
    needed = f"{library}: version 'GLIBCXX_3.4.30' not found (required by {needer})"
    assert _value("torch.imported.error", needed).endswith("(required by /home/ada/…/lib/c.so)")


def test_every_number_with_a_unit_keeps_it() -> None:
    loose = re.compile(r"\d (GiB|MiB|KiB|TiB|°C|W|MHz|%|links?)\b|\d %")
    assert not [
        row for row in _rows(ENGLISH) if row.label not in QUOTED and loose.search(row.value)
    ]


@pytest.mark.parametrize(
    ("fact", "value", "shown"),
    [
        ("driver.nvml.code", "18", "18 (driver/library version mismatch)"),
        ("driver.libcuda.code", "802", "802 (system not yet initialized)"),
        ("driver.libcuda.clean_code", "0", "none"),
        ("driver.nvml.code", "12345", "12345"),
        ("gpus.3.remap_pending", "yes", "pending"),
        ("gpus.0.temperature_c", "93", "93 °C"),
        ("gpus.0.power_limit_w", "450.0", "450 W"),
        ("gpus.0.throttle", "136", "HW Slowdown, HW Power Brake Slowdown"),
        ("gpus.0.throttle", "0", "none"),
        ("gpus.0.nvlink_down", "1", "1 link down"),
        ("gpus.0.nvlink_down", "2", "2 links down"),
        ("gpus.0.memory_used_bytes", "42198040576", "39.3 GiB"),
        ("gpus.0.name", "NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("limits.shm_bytes", "67108864", "64 MiB"),
        ("limits.memlock_bytes", "-1", "unlimited"),
        ("limits.nofile", "256", "256"),
        ("driver.loaded", "no", "not loaded"),
        ("torch.build", "cpu", "CPU only"),
        ("python.bits", "32", "32-bit"),
        ("env.LD_LIBRARY_PATH", "/usr/local/cuda/lib64", "=/usr/local/cuda/lib64"),
        ("env.CUDA_VISIBLE_DEVICES", '""', "set, but empty"),
        ("driver.log", "NVRM: one part, NVRM: of a message", "NVRM: one part of a message"),
    ],
)
def test_a_value_reads_as_people_say_it(fact: str, value: str, shown: str) -> None:
    assert _value(fact, value) == shown


@pytest.mark.parametrize(
    ("fact", "value", "shown"),
    [
        (
            "driver.nodes",
            '[{"path":"/dev/nvidiactl","errno":13,"group":"video"},'
            '{"path":"/dev/nvidia0","errno":13,"group":"video"},{"path":"/dev/nvidia1","errno":0}]',
            "/dev/nvidiactl, /dev/nvidia0: permission denied (EACCES), group video; "
            "/dev/nvidia1: accessible",
        ),
        (
            "pci.0",
            '{"address":"0000:01:00.0","vendor":"nvidia","device_id":"2684","bound":"","lost":true}',
            "NVIDIA GPU (10de:2684) at 0000:01:00.0, no driver in use, does not respond",
        ),
        ("pci", '[{"address":"","vendor":"amd","device_id":""}]', "AMD GPU"),
        (
            "gpus.0.processes",
            '[{"pid":31337,"name":"python3","memory_bytes":8589934592},{"pid":4}]',
            "pid 31337 (python3), 8 GiB; pid 4",
        ),
        ("build.compiler", '{"present":false,"name":"g++"}', "not installed"),
        ("driver.fabric", '{"nvswitches":4,"manager":"absent"}', "not installed, NVSwitches: 4"),
        (
            "driver.pairs.2",
            '{"first":0,"second":1,"p2p":"chipset","nvlink":false,"level":"node"}',
            "GPU 0 – GPU 1: P2P not supported by the chipset, same NUMA node",
        ),
        ("smoke.stages.0", '{"name":"ddp","status":"timed-out"}', "ddp: timed out"),
    ],
)
def test_an_item_of_a_table_reads_as_people_say_it(fact: str, value: str, shown: str) -> None:
    assert _value(fact, value) == shown


@pytest.mark.parametrize(
    ("fact", "value", "label"),
    [
        ("gpus", '[{"index":0,"name":"Tesla K80"}]', "GPU"),
        ("gpus", '[{"index":0},{"index":1}]', "GPUs"),
        ("gpus.3", '{"index":3}', "GPU 3"),
        ("gpus.3.mig_devices", "MIG-a", "GPU 3 MIG device"),
        ("gpus.3.mig_devices", "MIG-a, MIG-b", "GPU 3 MIG devices"),
        ("driver.xids", "none", "Xid errors"),
    ],
)
def test_a_label_agrees_with_the_number_of_things(fact: str, value: str, label: str) -> None:
    assert _row(fact, value).label.replace(NBSP, " ") == label


def test_two_folders_are_never_shortened_to_the_same_text() -> None:
    user, own = "/home/ada/.local/lib", "/home/ada/miniforge3/envs/a-rather-long-name/lib"
    rest = "python3.12/site-packages"
    value = f"torch 2.5.1+cu124 in {user}/{rest}; torch 2.14.1+cu130 in {own}/{rest}"
    assert _value("driver.log", value).count("/home/ada/") == 2
    assert user in _value("driver.log", value)
    assert own in _value("driver.log", value)


def test_of_a_table_the_items_that_the_finding_names_are_shown() -> None:
    names = ("torch", "numpy", "one", "two", "three", "four")
    value = ",".join(f'{{"name":"{name}","version":"1.0"}}' for name in names)
    fact = Evidence(fact="packages", value=f"[{value}]")
    shown = [
        evidence_rows(_finding(fact, title=title), ENGLISH, whole=whole)[0].value
        for title, whole in (("numpy is too new", False), ("It", False), ("It", True))
    ]
    rest = "torch 1.0; numpy 1.0; one 1.0; two 1.0; "
    assert shown == ["numpy 1.0", f"{rest}2{NBSP}more", f"{rest}three 1.0; four 1.0"]


def test_a_requirement_of_torch_is_shown_without_its_conditions() -> None:
    value = 'cuda-toolkit[cublas,cudart]==13.0.3; platform_system == "Linux", nvidia-nccl-cu12==2.7'
    fact = Evidence(fact="torch.requires", value=value)
    (row,) = evidence_rows(_finding(fact, title="nvidia-nccl-cu12 is of another build"), ENGLISH)
    assert row.value == "nvidia-nccl-cu12==2.7"
    assert _value("torch.requires", value) == "cuda-toolkit==13.0.3, nvidia-nccl-cu12==2.7"


@pytest.mark.parametrize(
    ("fact", "source", "shown"),
    [
        ("symptoms.0.text", "line 12", "line 12"),
        ("torch.cuda", "the author, line 3", "report, line 3"),
        ("driver.nvml.code", "nvidia-smi, line 2", "nvidia-smi, line 2"),
        ("driver.kernel", "/proc/driver/nvidia/version", "/proc/driver/nvidia/version"),
        ("torch.text", "/home/ada/venv/lib/site-packages/torch/version.py", "torch/version.py"),
        ("limits.nofile", "this process", "ulimit -n"),
        ("limits.nofile", "the author, line 3", "report, line 3"),
        ("limits.nofile", None, ""),
        ("env.RANK", "environment", "environment"),
        ("smoke.stages.0.detail", "smoke step", ""),
    ],
)
def test_a_source_is_named_as_people_know_it(fact: str, source: str | None, shown: str) -> None:
    assert _row(fact, "x", source).source.replace(NBSP, " ") == shown


def test_only_a_variable_of_a_host_that_was_looked_at_is_not_set() -> None:
    assert _row("env.RANK", "not known", "environment").value == "not set"
    assert _row("env.RANK", "not known").value == "not known"
    rank = Evidence(fact="env.RANK", value="8", source="environment")
    size = Evidence(fact="env.WORLD_SIZE", value="not known", source="environment")
    assert [row.value for row in evidence_rows(_finding(rank, size), ENGLISH)] == ["=8", "not set"]


def test_a_source_that_is_the_value_is_not_said_again() -> None:
    assert _row("python.executable", "/usr/bin/python3", "/usr/bin/python3").source == ""


def test_a_fact_that_no_row_knows_is_said_in_words() -> None:
    row = _row("driver.new_thing.7.size_of{x}", '[{"some_field":true,"rest":[1],"name":"a"}]')
    assert (row.label, row.value) == ("driver new thing 7 size ofx", "some field yes, name a")
    assert _value("driver.new_bytes", "1536") == "1.5 KiB"


def test_what_is_not_known_is_shown_only_alone() -> None:
    known, unknown = (Evidence(fact="torch.cuda", value=value) for value in ("12.4", "not known"))
    assert [row.value for row in evidence_rows(_finding(known, unknown), ENGLISH)] == ["12.4"]
    assert [row.value for row in evidence_rows(_finding(unknown), SPANISH)] == ["no se sabe"]
    assert len(evidence_rows(_finding(known, unknown), ENGLISH, whole=True)) == 2


def test_text_from_outside_stays_inert_and_has_no_say_in_the_wording() -> None:
    row = _row("env.{n}\x1b[2J", "{value}\n\x1b[31m\u202e", "{source}\x07, line 3")
    assert row.label.startswith("{n}\\x1b")
    assert row.value == "={value}\\n\\x1b[31m\\u202e"
    assert row.source == f"{{source}}\\x07, line{NBSP}3"
    hostile = '[{"name":"{version}\x07","version":"{0}"}]'.replace("\x07", "\\u0007")
    assert _value("packages", hostile) == "{version}\\x07 {0}"
    assert _value("env", '{"self":"1","text":"2"}') == "self 1, text 2"


# --- the table -----------------------------------------------------------------------------


def test_the_table_is_read_as_its_type() -> None:
    assert wording("facts", evidence.Facts) == facts()
    assert len(facts().fact) > 130


def test_every_part_names_a_field_of_its_item() -> None:
    for path, shown in facts().fact.items():
        parts = "".join((*shown.item, shown.group))
        fields = set(re.findall(r"\{(\w+)\}|\[(\w+)", parts))
        named = {name for pair in fields for name in pair if name}
        named |= {key.partition(".")[0] for key in shown.words if "." in key and shown.item}
        if shown.item:
            assert named <= _fields(path), path


def _fields(path: str) -> set[str]:
    kind: object = Machine
    for part in path.split("."):
        kind = kind if part == "*" else _structs(kind)[part]
    return set(_structs(kind))


def _structs(kind: object) -> dict[str, object]:
    """The fields of the struct that a type holds, by name."""
    inner = [part for sort in (kind, *get_args(kind)) for part in (sort, *get_args(sort))]
    for sort in inner:
        if isinstance(sort, type) and issubclass(sort, Struct):
            return get_type_hints(sort)
    raise AssertionError(kind)


def test_every_path_of_the_table_is_a_fact() -> None:
    for path in facts().fact:
        kind: object = Machine
        for part in path.split("."):
            if kind in (str, bool, int) or part == "*":
                continue
            if part != "n":
                assert part in _structs(kind), path
                kind = _structs(kind)[part]


def test_every_code_that_nvidia_smi_says_has_its_words() -> None:
    assert {str(code) for _, code in MEANINGS} <= set(facts().code["nvml"])


# --- GPUs, sizes, architectures ------------------------------------------------------------


def _gpu(index: int = 0, name: str = "NVIDIA H100 80GB HBM3", **more: object) -> Gpu:
    return Gpu(index=index, name=name, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (67108864, "64 MiB"),
        (42198040576, "39.3 GiB"),
        (25757220864, "24 GiB"),
        (1 << 41, "2 TiB"),
    ],
)
def test_a_size_has_the_unit_that_suits_it(count: int, shown: str) -> None:
    assert gib(count).replace(NBSP, " ") == shown


@pytest.mark.parametrize(
    ("gpu", "shown"),
    [
        (_gpu(name="NVIDIA GeForce RTX 4090", memory_bytes=25757220864), "RTX 4090, 24 GiB"),
        (_gpu(name="NVIDIA GeForce RTX 5090", memory_bytes=34190917632), "RTX 5090, 32 GiB"),
        (_gpu(memory_bytes=85520809984), "H100 80GB"),
        (_gpu(name="NVIDIA A100-SXM4-80GB", memory_bytes=85899345920), "A100-SXM4-80GB"),
        (_gpu(name="Tesla K80"), "K80"),
        (Gpu(index=0), ""),
    ],
)
def test_a_gpu_has_the_name_that_people_use(gpu: Gpu, shown: str) -> None:
    assert gpu_name(gpu).replace(NBSP, " ") == shown


def test_gpus_that_are_alike_stand_together() -> None:
    eight = [_gpu(n, code=15 if n == 3 else None) for n in range(8)]
    shown = gpu_list(eight, ENGLISH)
    assert shown.replace(NBSP, " ") == "7 × H100 80GB; GPU 3 does not respond"
    assert gpu_list(eight, SPANISH).replace(NBSP, " ") == "7 × H100 80GB; GPU 3 no responde"
    assert (
        gpu_list(healthy_machine("h100x8-linux").gpus or (), ENGLISH) == f"8{NBSP}×{NBSP}H100 80GB"
    )
    mixed = [_gpu(), _gpu(1, "Tesla K80", remap_failed=True, ecc_uncorrected=1)]
    expected = "H100 80GB; GPU 1: K80, 1 uncorrected ECC error, row remapping failed"
    assert gpu_list(mixed, ENGLISH).replace(NBSP, " ") == expected
    alone = _gpu(compute_mode="prohibited", mig=True, mig_devices=("MIG-a",))
    assert gpu_list([alone], ENGLISH) == "H100 80GB"
    detailed = gpu_list([alone], ENGLISH, details=True)
    assert detailed == "H100 80GB, compute mode: prohibited, MIG: MIG-a"


def test_the_errors_of_a_gpu_are_said_with_their_number() -> None:
    assert errors_of(_gpu(), ENGLISH) == []
    assert errors_of(_gpu(ecc_uncorrected=3), ENGLISH) == [f"3{NBSP}uncorrected ECC errors"]
    assert errors_of(_gpu(failed=999), SPANISH) == ["no responde"]
    assert errors_of(_gpu(code=0, failed=0), ENGLISH) == []


@pytest.mark.parametrize(("code", "said"), [(4, "is not accessible"), (15, "does not respond")])
def test_a_gpu_that_rules_keep_closed_is_not_called_dead(code: int, said: str) -> None:
    assert gpu_list([_gpu(), _gpu(1, code=code)], ENGLISH) == f"H100 80GB; GPU{NBSP}1 {said}"
    assert gpu_list([_gpu(code=code)], ENGLISH) == f"H100 80GB, {said}"


@pytest.mark.parametrize(
    ("archs", "shown"),
    [
        ("sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90", "sm_50 … sm_90"),
        ("sm_80 sm_90 compute_90", "sm_80, sm_90, compute_90 (PTX)"),
        ("sm_80 sm_86 sm_90 sm_120", "sm_80 … sm_90, sm_120"),
        ("sm_75 sm_80 sm_90 sm_100 sm_120", "sm_75 … sm_120"),
        ("sm_75 sm_86 sm_89 sm_90a", "sm_75, sm_86 … sm_90a"),
        ("gfx906 gfx90a gfx942", "gfx906, gfx90a, gfx942"),
        ("", ""),
    ],
)
def test_a_run_of_architectures_hides_no_gap(archs: str, shown: str) -> None:
    assert arch_list(archs.split()).replace(NBSP, " ") == shown
    assert arch_list(["sm_80", "sm_90", "sm_100", "sm_120"], "Your Thor is sm_110") == (
        "sm_80, sm_90, sm_100, sm_120"
    )


LONG = "DistBackendError: NCCL error in: torch/csrc/distributed/c10d/NCCLUtils.cpp, " * 3


@pytest.mark.parametrize(
    ("text", "last"),
    [
        (
            f"{LONG}Process 48211 has 22.90 GiB memory in use. Of the allocated memory 0 bytes",
            "Process 48211 has 22.90 GiB memory in use",
        ),
        (
            f"{LONG}Last error: Call to ibv_reg_mr failed with error Cannot allocate memory",
            "Call to ibv_reg_mr failed with error Cannot allocate memory",
        ),
        (f"{LONG}Processes have memory in use", NBSP + "…"),
    ],
)
def test_the_part_that_decides_is_not_cut(text: str, last: str) -> None:
    shown = evidence._shortened(text)
    assert shown.endswith(last)
    assert shown.startswith("DistBackendError")
    assert len(shown) <= LONGEST_VALUE
