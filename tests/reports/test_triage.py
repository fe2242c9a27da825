"""What a maintainer gets out of a pasted report: a comment, a question, a document to keep."""

from __future__ import annotations

import json

import msgspec
import pytest
from told_fixtures import HARMLESS, HEALTHY

from cudadoctor import knowledge, pipeline
from cudadoctor.locale.language import Language, language
from cudadoctor.model import factfile
from cudadoctor.model.catalogue import CATALOGUE
from cudadoctor.model.findings import Candidate
from cudadoctor.model.machine import Machine
from cudadoctor.render import Report, json_v1, markdown, shells, summary, terminal
from cudadoctor.render.pages import title_of
from cudadoctor.render.script import script
from cudadoctor.reports.likeness import weights
from cudadoctor.reports.reading import read_report
from cudadoctor.rules.diagnose import command_after, diagnose

OLD_DRIVER = "The NVIDIA driver on your system is too old (found version 11040)."
LIST = "Package     Version\n----------- -------\ntorch       2.1.0\ntorchvision 0.17.0\n"
SHAPES = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (32x512 and 768x10)"
SMI = "NVIDIA-SMI 535.154.05  Driver Version: 535.154.05  CUDA Version: 12.2"
UNCLEAR = "torch.distributed: the second machine cannot reach it"
WSL = "Linux box 5.15.153.1-microsoft-standard-WSL2 #1 SMP x86_64 GNU/Linux\n"


def machine_of(text: str) -> Machine:
    return read_report(text, knowledge.load())


def report_of(text: str) -> Report:
    return pipeline.report(pipeline.judge(machine_of(text)))


def comment_on(text: str, lang: str = "en") -> list[str]:
    say = language(lang)
    shown = pipeline.shareable(report_of(text))
    shown = msgspec.structs.replace(shown, diagnosis=say.diagnosis(shown.diagnosis))
    return markdown.report(shown, say).split("\n")


# --- the comment ------------------------------------------------------------------------------------


def test_a_comment_begins_with_the_root_cause_and_how_sure_it_is() -> None:
    assert comment_on(OLD_DRIVER)[0].startswith("**Probably: the NVIDIA driver is too old")
    assert comment_on(OLD_DRIVER)[0].endswith("(`driver-too-old`)")
    certain = f"{LIST}>>> torch.__version__\n'2.1.0+cu121'\n"
    assert "torchvision 0.17.0 does not match torch 2.1.0" in comment_on(certain)[0]
    assert comment_on(OLD_DRIVER, "es")[0].startswith("**Probablemente: ")


def test_a_comment_shows_the_line_that_tells_it_once() -> None:
    rows = [line for line in comment_on(f"Hello\n\n{OLD_DRIVER}") if line.startswith("| report ")]
    assert rows == [f"| report | `{OLD_DRIVER}` | line 3 |"]


def test_a_comment_does_not_doubt_the_root_cause_that_it_names() -> None:
    text = "\n".join(comment_on(f"{OLD_DRIVER}\nAssertionError\n{SHAPES}"))
    assert "not-environment" not in text
    assert "torch-bug" not in text


def test_a_comment_about_the_programs_own_error_asks_for_nothing() -> None:
    lines = comment_on(SHAPES)
    assert lines[0].startswith("**The report shows an error in the program, not in the env")
    assert not [line for line in lines if line.startswith("```")]


def test_a_comment_that_is_undecided_asks_for_one_output() -> None:
    lines = comment_on(UNCLEAR)
    assert "The report does not show the GPU, the driver version" in lines[0]
    assert ".** Possible causes: " in lines[0]
    assert lines.count("```sh") == 1
    assert "gethostbyname" in lines[lines.index("```sh") + 1]


def test_commands_for_others_call_the_python_that_they_have() -> None:
    assert "python -m pip install torchvision==0.16.0" in comment_on(LIST)
    judged = pipeline.judge(machine_of(LIST))
    text = script(judged.plan, judged.machine, judged.diagnosis, version="0", knowledge="0")
    assert '"$PYTHON" -m pip install torchvision==0.16.0' in text.split("\n")
    assert shells.step_lines(judged.plan.steps[0], judged.machine)[0].startswith("python -m pip")


def test_what_is_merely_possible_is_called_so_on_the_terminal() -> None:
    shown = report_of(f"{WSL}$ nvidia-smi\nCommand 'nvidia-smi' not found\n")
    lines = [line.text for line in terminal.report(shown, terminal.Layout(width=80))]
    assert any("Most likely: " in line or line.startswith("! Possibly: ") for line in lines)


# --- the question -----------------------------------------------------------------------------------


def asked(text: str) -> tuple[str, ...] | None:
    return report_of(text).diagnosis.next_command


def after(text: str, cause: str) -> tuple[str, ...] | None:
    return command_after(machine_of(text), (Candidate(cause=cause, score=0.5),))


@pytest.mark.parametrize("cause", ["gpu-not-detected", "compute-mode", "gpu-ecc", "torch-missing"])
def test_what_the_report_holds_is_not_asked_for_again(cause: str) -> None:
    assert after(f"{SMI}\n{HEALTHY}", cause) not in (
        ("nvidia-smi",),
        ("python", "-m", "torch.utils.collect_env"),
    )


@pytest.mark.parametrize("cause", ["gpu-ecc", "cudnn-shadowed", "nccl-other", "driver-bug"])
def test_windows_is_asked_for_nothing_that_it_lacks(cause: str) -> None:
    command = after("C:\\Users\\me> systeminfo\nOS Name: Microsoft Windows 11 Pro\n", cause)
    assert command is not None
    assert command[0] in ("nvidia-smi", "python")


def test_a_container_is_not_asked_for_the_log_of_its_host() -> None:
    inside = "root@6ac1bb3e3f40:/workspace# python train.py\n"
    assert machine_of(inside).container.kind == "docker"
    assert (after("", "gpu-ecc"), after(inside, "gpu-ecc")) == (("dmesg",), ("nvidia-smi",))


def test_wsl_without_nvidia_smi_is_asked_for_its_libraries() -> None:
    text = f"{WSL}$ nvidia-smi\nCommand 'nvidia-smi' not found, but can be installed with:\n"
    assert asked(text) == ("ls", "-l", "/dev/dxg", "/usr/lib/wsl/lib")


def test_an_environment_in_which_nothing_is_wrong_is_healthy() -> None:
    diagnosis = report_of(HEALTHY).diagnosis
    assert (diagnosis.verdict, diagnosis.findings) == ("healthy", ())


@pytest.mark.parametrize(
    "words",
    [
        "Training is much slower than it was last week.",
        "Does anybody know what to do?",
        "RuntimeError: something odd happened",
        "训练到一半就停止了",
    ],
)
def test_a_complaint_that_nobody_understands_is_not_healthy(words: str) -> None:
    diagnosis = report_of(f"{words}\n\n{HEALTHY}").diagnosis
    assert diagnosis.verdict == "undecided"
    harmless = diagnosis.primary in HARMLESS
    command = asked(f"{words}\n\n{HEALTHY}")
    assert (command is None) is harmless
    assert "collect_env" not in (command or [""])[-1]


@pytest.mark.parametrize(
    "words",
    [
        "[Bug]: the loss differs",
        "[Usage]: How do I switch the chat template off?",
        "The evaluation gives a low accuracy",
        "KeyError: 'model'",
        "RuntimeError: Expected all tensors to be on the same device, but found cpu and cuda:0",
    ],
)
def test_a_complaint_of_something_else_is_no_fault_of_the_environment(words: str) -> None:
    shown = report_of(f"{words}\n\n{HEALTHY}")
    assert shown.diagnosis.verdict == "healthy"
    assert {finding.cause for finding in shown.diagnosis.findings} <= {*HARMLESS}
    hidden = report_of(f"{words}\n\n{HEALTHY.replace('available: True', 'available: False')}")
    assert hidden.diagnosis.verdict != "healthy"


@pytest.mark.parametrize(
    ("words", "verdict"),
    [
        ("How do I use a data set of my own?", "healthy"),
        ("How do I use a data set of my own? The driver crashes.", "undecided"),
        ("How do I install CUDA for my card?", "undecided"),
    ],
)
def test_a_question_alone_is_harmless_where_it_names_no_environment(
    words: str, verdict: str
) -> None:
    assert report_of(words).diagnosis.verdict == verdict


@pytest.mark.parametrize(
    ("words", "first", "command"),
    [
        ("torch.cuda.is_available() returns False", "torch-cpu-build", "collect_env"),
        ("torch.cuda.is_available() 返回 False", "torch-cpu-build", "collect_env"),
        ("Found no NVIDIA driver on your system", "driver-not-installed", "nvidia-smi"),
        ("The GPU gets very hot", "thermal-throttle", "PERFORMANCE,TEMPERATURE"),
        ("init_process_group hangs on two nodes", "nccl-network-interface", "gethostname"),
        ("The second run never starts after a driver update", "driver-library-mismatch", "status"),
        ("Building my CUDA extension fails", "toolkit-missing", "--version"),
        ("The RTX 5090 does not work with it", "torch-arch-unsupported-new", "collect_env"),
        ("My 3080 got slow and hot", "thermal-throttle", "PERFORMANCE,TEMPERATURE"),
        ("torch.distributed: the second machine cannot reach it", "nccl-network-interface", "name"),
        ("mmcv ops: build error", "torch-extension-abi", "nvcc"),
        ("My torch does not detect the GPU on Windows 11", "torch-cpu-build", "collect_env"),
    ],
)
def test_a_vague_report_is_asked_for_what_decides(words: str, first: str, command: str) -> None:
    diagnosis = report_of(words).diagnosis
    assert diagnosis.verdict == "undecided"
    assert diagnosis.candidates[0].cause == first
    assert diagnosis.primary in (None, first)
    assert command in " ".join(diagnosis.next_command or ())


@pytest.mark.parametrize(("next_best", "named"), [(0.5, None), (-0.5, "gpu-ecc")])
def test_what_reads_like_two_causes_is_named_neither(next_best: float, named: str | None) -> None:
    said = dict.fromkeys(CATALOGUE, -1.0) | {"gpu-ecc": 0.5, "ulimit": next_best, "unknown": -3}
    start = dict(zip(weights().causes, weights().start, strict=True))
    likeness = {cause: said[cause] - start[cause] for cause in start}
    unclear = msgspec.structs.replace(machine_of("x"), likeness=likeness)
    diagnosis = diagnose(unclear, knowledge.load())
    assert (diagnosis.verdict, diagnosis.primary) == ("undecided", named)
    assert {"gpu-ecc"} <= {candidate.cause for candidate in diagnosis.candidates[:2]}


def test_the_command_tells_the_likeliest_causes_apart() -> None:
    """The first of three is told by dmesg alone, the other two by nvidia-smi."""
    rivals = (("driver-not-loaded", 0.3), ("driver-not-installed", 0.25), ("container-no-gpu", 0.2))
    candidates = tuple(Candidate(cause=cause, score=score) for cause, score in rivals)
    assert command_after(machine_of("x"), candidates) == ("nvidia-smi",)
    assert command_after(machine_of("x"), candidates[:1]) == ("dmesg",)
    # What was written for the words of the report goes first, where it tells two of them apart.
    made = tuple((cause, ("lspci",)) for cause, _ in rivals[:2])
    assert command_after(machine_of("x"), candidates, made) == ("lspci",)
    assert command_after(machine_of("x"), candidates, made[:1]) == ("nvidia-smi",)


def test_the_last_error_comes_before_one_that_only_says_that_a_child_failed() -> None:
    inner = "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error"
    outer = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: NCCL error"
    first = [
        report_of(f"My training\n{text}").diagnosis.primary
        for text in (f"{inner}\n{outer}", f"{outer}\n{inner}")
    ]
    assert first == ["shm-too-small", "shm-too-small"]


def test_a_report_that_does_not_show_torch_on_a_gpu_is_not_healthy() -> None:
    assert (
        report_of(HEALTHY.replace("available: True", "available:")).diagnosis.verdict != "healthy"
    )


def test_no_question_prints_all_variables() -> None:
    from cudadoctor.knowledge.symptoms import symptoms

    assert not [row.key for row in symptoms().rows if row.next in (("env",), ("printenv",))]


def test_what_the_known_system_rules_out_is_no_candidate() -> None:
    complaint = "torch.cuda.is_available() is False"
    windows = report_of(f"Windows 11, RTX 3060\n{complaint}").diagnosis
    assert "jetson-build" not in {candidate.cause for candidate in windows.candidates}
    assert "platform-unsupported" not in {candidate.cause for candidate in windows.candidates}


@pytest.mark.parametrize("name", ["en", "es"])
def test_three_candidates_are_named_in_words_on_both_pages(name: str) -> None:
    shown, say = report_of(UNCLEAR), language(name)
    page = "\n".join(line.text for line in terminal.report(shown, terminal.Layout(say=say)))
    assert max(map(len, page.split("\n"))) <= 80
    comment = markdown.report(shown, say)
    for candidate in shown.diagnosis.candidates[:3]:
        title = summary.inside(title_of(candidate.cause, say))
        assert title in " ".join(page.split())
        assert f"(`{candidate.cause}`)" in comment


def test_the_words_alone_name_the_likeliest_cause() -> None:
    shown = report_of("nvidia-smi fails after the update, NVML says driver library mismatch")
    assert shown.diagnosis.primary == "driver-library-mismatch"
    assert not shown.diagnosis.findings
    answer = summary.headline(shown, Language({})).text
    assert answer.endswith("Most likely: the driver library and kernel module do not match.")


@pytest.mark.parametrize("weight", [0.0, -1.0, float("inf"), float("nan")])
def test_made_up_weights_of_words_speak_for_nothing(weight: float) -> None:
    machine = machine_of("it does not work, why?")
    forged = msgspec.structs.replace(machine, likeness={"torch-missing": weight})
    assert pipeline.judge(forged).diagnosis.primary is None


def test_commands_that_belong_together_are_shown_together() -> None:
    text = "The second run never starts after a driver update"
    shown = report_of(text)
    assert asked(text) == ("dkms", "status")
    assert shown.diagnosis.beside == (("uname", "-r"),)
    fenced = markdown.report(shown).split("```sh\n")[1].split("```")[0]
    assert fenced == "dkms status\nuname -r\n"
    assert report_of(f"{text}\nWindows 11").diagnosis.beside == ()


def test_only_facts_rule_a_cause_out() -> None:
    assert report_of("it does not work, why?").diagnosis.passed == ()
    diagnosis = report_of("it does not work, why?\nPyTorch version: 2.5.0+cu121\n").diagnosis
    assert {"torch-missing", "torch-cpu-build"} <= set(diagnosis.passed)
    left = {gap.cause for gap in diagnosis.undecided} | {
        candidate.cause for candidate in diagnosis.candidates
    }
    assert left.isdisjoint(diagnosis.passed)


# --- the document -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", [OLD_DRIVER, LIST, SHAPES, HEALTHY, SMI, WSL, "CUDA not available"]
)
def test_a_saved_check_of_a_report_gives_the_same_diagnosis(text: str) -> None:
    first = json.loads(json_v1.dumps(json_v1.report(report_of(text))))
    again = pipeline.report(pipeline.judge(factfile.loads(json.dumps(first))))
    second = json.loads(json_v1.dumps(json_v1.report(again)))
    for key in ("verdict", "primary", "findings", "candidates", "next_command"):
        assert first[key] == second[key]
    assert [step["id"] for step in first["plan"]["steps"]] == [
        step["id"] for step in second["plan"]["steps"]
    ]


def test_a_hint_about_speed_is_a_warning_and_no_mystery() -> None:
    diagnosis = report_of("Training is slow: GPU-Util is 5%, SW Thermal Slowdown: Active").diagnosis
    assert (diagnosis.verdict, diagnosis.primary) == ("warnings", "thermal-throttle")
