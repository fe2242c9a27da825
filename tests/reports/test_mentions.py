"""What an author has is read from sentences, and what he denies, wants or had is not."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "benchmarks"))
import stated

from cudadoctor.knowledge import load
from cudadoctor.reports.document import document
from cudadoctor.reports.mentions import affirmed
from cudadoctor.reports.reading import read_report

KB = load()
DRAWN = 60


@pytest.mark.parametrize("meaning", stated.MEANINGS)
@pytest.mark.parametrize("path", stated.PHRASINGS)
def test_a_fact_is_read_where_it_is_stated_and_only_there(path: str, meaning: str) -> None:
    said = [said for said in stated.sentences() if (said.path, said.meaning) == (path, meaning)]
    written_by = [said for said in said if said.aside is False]
    for drawn in random.Random(f"{path} {meaning}").sample(written_by, min(DRAWN, len(written_by))):
        assert stated.is_right(drawn), drawn.text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("docker is not installed, I run Ubuntu 22.04", "I run Ubuntu 22.04"),
        ("on my MacBook it works, but my desktop with an RTX 3090 hangs", "RTX 3090 hangs"),
        ("I want to install torch 2.1 on Ubuntu 24.04", "on Ubuntu 24.04"),
        ("upgraded from torch 2.0 to torch 2.1", "to torch 2.1"),
        ("torch 2.1.0 does not use the RTX 3090", "RTX 3090"),
        ("CUDA is not available on the RTX 3090", "RTX 3090"),
        ("my GPU (RTX 3090) is not used", "RTX 3090"),
        ("nvidia-smi works fine, driver 535.54", "driver 535.54"),
        ("I would like to use my RTX 3090", "RTX 3090"),
        ("没有检测到 RTX 3090", "RTX 3090"),
        ("läuft nicht auf der RTX 3090", "RTX 3090"),
    ],
)
def test_a_cue_reaches_no_further_than_it_means(text: str, shown: str) -> None:
    assert affirmed(document(text)).text.endswith(shown) or shown in affirmed(document(text)).text


@pytest.mark.parametrize(
    "text",
    [
        "Driver version: e.g. 535.54",
        "- OS: [e.g. Ubuntu 20.04]",
        "- System (Windows / Linux / macOS):",
        "Are you using Docker?",
        "Docker: no",
        'if torch.__version__ >= "2.0":',
        "assert torch.__version__ == '1.13.1'",
        "n = torch.cuda.device_count() - 1\n2",
        "os.environ[CUDA_VISIBLE_DEVICES] = devices",
        "os.environ['CUDA_VISIBLE_DEVICES'] = args.gpu",
        "PyTorch 2.0 or newer",
        "the training took 3090s with torch",
        "trained on 2080 images with torch",
    ],
)
def test_placeholders_and_programs_are_no_evidence(text: str) -> None:
    machine = read_report(text, KB)
    assert {path for path in machine.origins if not path.startswith("symptoms")} == set()


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("4x3090", "gpus", "GeForce RTX 3090"),
        ("2 x A6000", "gpus", "RTX A6000"),
        ("a DGX A100", "gpus", "A100 SXM4"),
        ("a P100 and torch 2.10 cu128", "torch.cuda", "12.8"),
        ("CUDA 12.1 and torch 2.4", "torch.cuda", "None"),
        ("torch2.0.1", "torch.version", "2.0.1"),
        (r"C:\tmp\torch-1.12.1+cu116-cp310-cp310-win_amd64.whl", "torch.version", "None"),
        ("an A100 is needed for torch", "gpus", "None"),
        ("I bought an RTX 5080 to replace my GTX 1080", "gpus", "GeForce RTX 5080"),
        ("since yesterday my 3080 is gone", "gpus", "GeForce RTX 3080"),
        ("I updated the driver to 572.16", "driver.reported", "572.16"),
        ("the wheel needs driver 525.60", "driver.reported", "None"),
        ("our k8s cluster with torch", "gpus", "None"),
        ("gcc (Red Hat 9.2.1-1) on Fedora 30", "platform.distro", "fedora"),
        ("CentOS 7", "platform.distro_version", "7"),
    ],
)
def test_short_forms_are_read(text: str, path: str, value: str) -> None:
    assert (stated.values_at(read_report(text, KB), path) or ["None"])[0] == value


@pytest.mark.parametrize(
    "text", ["RTX 4090 x 2", "2x RTX 4090", "3090*2", "two 3090s", "2 x A6000"]
)
def test_gpus_are_counted_before_and_behind_their_name(text: str) -> None:
    assert len(read_report(f"a box: {text}, torch 2.5", KB).gpus or ()) == 2


def test_the_second_model_that_a_sentence_compares_with_is_not_in_the_same_machine() -> None:
    assert len(read_report("torch 2.5 on a T4 is slower than on an A100", KB).gpus or ()) == 1


@pytest.mark.parametrize("where", ["my Mac", "our Windows", "an Ubuntu", "colab"])
def test_where_it_works_is_another_machine(where: str) -> None:
    text = f"The same project works fine on {where}. Here torch sees no GPU."
    assert read_report(text, KB).platform.system is None


def test_the_sentence_after_a_setting_is_no_part_of_it() -> None:
    machine = read_report("I set CUDA_VISIBLE_DEVICES=0. Then it crashed.", KB)
    assert machine.env == {"CUDA_VISIBLE_DEVICES": "0"}


def test_lines_keep_their_numbers() -> None:
    doc = document("first\n\nI don't have an RTX 3090.\nmy torch 2.1")
    assert [line.number for line in affirmed(doc).lines] == [line.number for line in doc.lines]


REPORT = "torch 2.1.0+cu121 fails on my RTX 3090.\nWhat can I do?\nI use Ubuntu 22.04.\n\n"


@pytest.mark.parametrize(
    "others",
    [
        "> I have the same on an RTX 5090 with torch 2.4",
        "> Same here,\n> RTX 5090 and torch 2.4",
        "> mein Rechner hat eine RTX 5090",
        "&gt; @someone on my RTX 5090 it works",
        "--\nRyzen 9, RTX 5090, 64 GB",
    ],
)
def test_what_others_say_in_quotes_and_a_signature_are_not_the_reporters(others: str) -> None:
    for text in (f"{REPORT}{others}\n", f"{others}\n\n{REPORT}"):
        machine = read_report(text, KB)
        assert [gpu.name for gpu in machine.gpus or ()] == ["GeForce RTX 3090"]
        assert str(machine.torch.version) == "2.1.0+cu121"


@pytest.mark.parametrize(
    ("text", "torch"),
    [
        (f"{REPORT[5:]}> PyTorch version: 2.4.0+cu121\n> Is debug build: False\n", "2.4.0+cu121"),
        ("> I have torch 2.4.0+cu121\n> on an RTX 5090\n\nAny idea?\n", "2.4.0+cu121"),
        ("$ grep -A1 torch list\nnumpy\n--\ntorch 2.4.0+cu121\n", "2.4.0+cu121"),
    ],
)
def test_a_quoted_dump_a_quoted_report_and_dashes_of_grep_are_evidence(
    text: str, torch: str
) -> None:
    assert str(read_report(text, KB).torch.version) == torch


def test_an_error_in_quotes_is_evidence() -> None:
    error = "> I see RuntimeError: no kernel image is available for execution on the device"
    assert read_report(f"{REPORT}{error}\n", KB).symptoms
