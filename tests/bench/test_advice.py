"""Advice for faster training: expected by the class of the GPU, corrected by what was measured."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from bench_results_made import gain, gpu_result
from packaging.version import Version

from cudadoctor import knowledge
from cudadoctor.bench import advice, store
from cudadoctor.bench.advice import Advice
from cudadoctor.bench.results import Gain
from cudadoctor.bench.store import Kept
from cudadoctor.locale.language import language
from cudadoctor.model import factfile
from cudadoctor.model.machine import Gpu, Machine
from cudadoctor.render import markdown, terminal
from cudadoctor.render.terminal import Layout

REPOSITORY = Path(__file__).parent.parent.parent
MACHINES = Path(__file__).parent.parent / "machines"
KB = knowledge.load()
TEXTS = (
    *(advice.EXPECTED, advice.ASSUMED, *advice.MEASURED.values()),
    *(advice.NOT_ADVISED, advice.NOT_ADVISED_WHY, advice.IN_BEST),
    *(advice.TOGETHER, advice.TOGETHER_WHY, advice.FOUND, advice.FOUND_WHY),
    *(text for row in advice.ROWS for text in (row.text, row.why)),
)
"""Every template that a user may read."""


def machine(name: str) -> Machine:
    return factfile.loads((MACHINES / f"{name}.json").read_text())


def with_gpu(name: str | None, capability: str | None, gib: float = 16, count: int = 1) -> Machine:
    gpus = tuple(
        Gpu(
            index=index,
            name=name,
            capability=Version(capability) if capability else None,
            memory_bytes=int(gib * 2**30),
        )
        for index in range(count)
    )
    return msgspec.structs.replace(machine("rtx4090-linux"), gpus=gpus)


def ids(here: Machine) -> set[str]:
    return {tip.id for tip in advice.advise(here, KB)}


PRECISION = {"bf16", "tf32", "fp16", "fp16-for-memory", "fp8"}


@pytest.mark.parametrize(
    ("name", "capability", "expected"),
    [
        ("NVIDIA GeForce GTX 1650", "7.5", {"fp16-for-memory"}),
        ("NVIDIA GeForce GTX 1080", "6.1", {"fp16-for-memory"}),
        ("Tesla K80", "3.7", {"fp16-for-memory"}),
        ("Tesla T4", "7.5", {"fp16"}),
        ("Tesla V100-SXM2-16GB", "7.0", {"fp16"}),
        ("NVIDIA GeForce RTX 2080 Ti", "7.5", {"fp16"}),
        ("NVIDIA A100-SXM4-80GB", "8.0", {"bf16", "tf32"}),
        ("NVIDIA GeForce RTX 3090", "8.6", {"bf16", "tf32"}),
        ("NVIDIA H100 80GB HBM3", "9.0", {"bf16", "tf32", "fp8"}),
        ("NVIDIA B200", "10.0", {"bf16", "tf32", "fp8"}),
        ("NVIDIA GeForce RTX 5090", "12.0", {"bf16", "tf32", "fp8"}),
        ("A card that no table has", "8.6", {"bf16", "tf32"}),
        ("A card that no table has", "7.5", set()),
        ("A card that no table has", None, set()),
        (None, None, set()),
    ],
)
def test_each_class_of_gpu_has_its_precision(
    name: str | None, capability: str | None, expected: set[str]
) -> None:
    assert ids(with_gpu(name, capability)) & PRECISION == expected


def test_gpus_of_two_classes_get_only_what_both_can() -> None:
    old, new = with_gpu("Tesla T4", "7.5").gpus, with_gpu("NVIDIA A100-SXM4-80GB", "8.0").gpus
    assert old and new
    both = msgspec.structs.replace(machine("rtx4090-linux"), gpus=(*old, *new))
    assert not ids(both) & PRECISION
    assert "several-gpus" in ids(both)


@pytest.mark.parametrize(
    ("gib", "small"), [(2, True), (3, True), (3.9, False), (4, False), (16, False)]
)
def test_a_card_with_less_than_4_gb_gets_small_batches(gib: float, small: bool) -> None:
    assert ("small-memory" in ids(with_gpu("GeForce GTX 1050", "6.1", gib))) is small


def test_several_gpus_get_ddp_and_one_does_not() -> None:
    assert "several-gpus" in ids(machine("h100x8-linux"))
    assert "several-gpus" not in ids(machine("rtx4090-linux"))


def test_systems_have_their_loader_caveats() -> None:
    assert "wsl-files" in ids(machine("rtx3060-wsl"))
    assert "windows-loader" in ids(machine("rtx4090-windows"))
    assert "laptop" in ids(with_gpu("NVIDIA GeForce RTX 4060 Laptop GPU", "8.9", 8))
    little = msgspec.structs.replace(
        machine("rtx4090-linux").limits, shm_bytes=64 << 20, shm_free_bytes=64 << 20
    )
    docker = msgspec.structs.replace(machine("rtx4090-linux"), limits=little)
    tips = {tip.id: tip for tip in advice.advise(docker, KB)}
    assert "64 MiB" in tips["little-shm"].why
    assert not {"wsl-files", "windows-loader", "little-shm"} & ids(machine("rtx4090-linux"))


def test_no_gpu_gets_what_helps_on_a_cpu_and_unknown_gpus_get_neither() -> None:
    cpu = {"cpu-threads", "cpu-compile", "cpu-channels-last", "cpu-bf16"}
    assert cpu <= ids(machine("cpu-linux"))
    unknown = msgspec.structs.replace(machine("cpu-linux"), gpus=None)
    assert not ids(unknown)
    assert not ids(Machine())


# --- corrected by what was measured ------------------------------------------------------------


def kept_on(here: Machine, *gains: Gain, workload: str = "decoder") -> Kept:
    assert here.gpus and here.gpus[0].name
    return Kept(
        workload=workload,
        torch=here.torch.text or "",
        date="2026-11-21",
        gpus=(here.gpus[0].name,),
        driver=str(here.driver.version),
        gains=gains,
    )


def outcome(technique: str, verdict: str, ratio: float | None) -> Gain:
    within = 0.03 if verdict == "same" else None
    return Gain(technique=technique, verdict=verdict, ratio=ratio, within=within)  # type: ignore[arg-type]


def told_of(here: Machine, id_: str, *results: Kept) -> Advice:
    return next(tip for tip in advice.advise(here, KB, results) if tip.id == id_)


def test_without_a_measurement_no_number_is_told() -> None:
    tip = told_of(machine("rtx4090-linux"), "bf16")
    assert tip.expected == (advice.EXPECTED,)
    assert tip.standing == "expected"
    for text in TEXTS:
        assert not any(word in text for word in ("2x", "3x", "times faster"))


def test_a_measured_gain_takes_the_place_of_the_expectation() -> None:
    here = machine("rtx4090-linux")
    tip = told_of(here, "bf16", kept_on(here, outcome("amp-bf16", "faster", 1.42)))
    assert tip.standing == "measured"
    assert tip.expected == ("measured here on 2026-11-21: 1.42x faster (decoder)",)


def test_what_was_not_decided_takes_nothing_back() -> None:
    here = machine("rtx4090-linux")
    open_ = outcome("compile", "undecided", 0.97)
    tip = told_of(here, "compile", kept_on(here, open_))
    assert (tip.standing, tip.text) == ("expected", "Try torch.compile")
    assert tip.expected == ("measured here on 2026-11-21: not decided (decoder)",)
    mixed = (kept_on(here, open_), kept_on(here, outcome("compile", "slower", 0.9), workload="cnn"))
    assert told_of(here, "compile", *mixed).standing == "expected"


def test_a_part_of_the_best_combination_is_not_also_taken_back() -> None:
    """Alone compile gained nothing, but it is in what is fastest: one list, not two."""
    here = machine("rtx4090-linux")
    best = Gain(technique="amp-bf16 + compile", verdict="faster", ratio=2.5)
    result = msgspec.structs.replace(
        kept_on(here, outcome("compile", "same", 1.0), outcome("amp-bf16", "faster", 2.0)),
        best=("amp-bf16", "compile"),
        best_gain=best,
    )
    tips = advice.advise(here, KB, (result,))
    named = [tip for tip in tips if "compile" in tip.text or tip.technique == "compile"]
    assert {tip.standing for tip in named} == {"measured"}
    words = "part of the fastest combination measured here on 2026-11-21 (decoder)"
    assert words in told_of(here, "compile", result).expected


@pytest.mark.parametrize("seed", range(30))
def test_every_technique_stands_in_one_list_only(seed: int) -> None:
    chance = random.Random(seed)
    here = machine("rtx4090-linux")
    names = ["amp-bf16", "tf32", "compile", "compile-max-autotune", "channels-last", "sdpa"]
    verdicts = ["faster", "slower", "same", "undecided", "loss-differs", "failed"]
    results = []
    for workload in ("cnn", "encoder", "decoder"):
        gains = [outcome(name, chance.choice(verdicts), 1.2) for name in names]
        best = tuple(sorted(chance.sample(names, 2)))
        result = kept_on(here, *gains, workload=workload)
        together = outcome(" + ".join(best), chance.choice(verdicts), 1.4)
        results.append(msgspec.structs.replace(result, best=best, best_gain=together))
    lists: dict[str, set[str]] = {}
    for tip in advice.advise(here, KB, tuple(results)):
        denied = tip.standing == "not advised"
        told = [*(figure.technique for figure in tip.measured), tip.text]
        for name in names:
            if any(name in re.split(r"[ ,:]+", text) for text in told):
                lists.setdefault(name, set()).add("not advised" if denied else "advised")
    assert {name for name, found in lists.items() if len(found) > 1} == set()


@pytest.mark.parametrize("verdict", ["same", "slower", "loss-differs", "failed"])
def test_what_did_not_help_here_is_not_advised_and_says_so(verdict: str) -> None:
    here = machine("rtx4090-linux")
    tip = told_of(here, "compile", kept_on(here, outcome("compile", verdict, 0.97)))
    assert tip.standing == "not advised"
    assert tip.text == "Not recommended here: compile"
    assert tip.expected[0].startswith("measured here on ")
    assert advice.advise(here, KB, (kept_on(here, outcome("compile", verdict, 0.97)),))[-1] == tip


def test_one_workload_that_it_helps_is_enough_and_all_are_told() -> None:
    here = machine("rtx4090-linux")
    results = (
        kept_on(here, outcome("compile", "same", 1.0), workload="cnn"),
        kept_on(here, outcome("compile", "faster", 1.3)),
    )
    tip = told_of(here, "compile", *results)
    assert tip.standing == "measured"
    assert len(tip.expected) == 2


def test_what_saves_memory_is_not_taken_back_for_being_slower() -> None:
    here = with_gpu("NVIDIA GeForce GTX 1080", "6.1")
    tip = told_of(here, "fp16-for-memory", kept_on(here, outcome("amp-fp16", "slower", 0.9)))
    assert tip.standing == "measured"
    assert tip.text == "Use fp16 to save memory, not time"


@pytest.mark.parametrize(
    "change",
    [
        {"gpus": ("NVIDIA GeForce RTX 3090",)},
        {"driver": "535.1"},
        {"driver": None},
        {"torch": "2.1.0"},
        {"gpus": (), "driver": None, "cpu": "any"},
    ],
)
def test_what_another_machine_driver_or_torch_did_says_nothing(change: dict[str, object]) -> None:
    here = machine("rtx4090-linux")
    result = kept_on(here, outcome("amp-bf16", "same", 1.0))
    other = msgspec.structs.replace(result, **change)
    assert told_of(here, "bf16", other).standing == "expected"


def test_a_result_of_a_cpu_counts_on_that_cpu_only() -> None:
    here = machine("cpu-linux")
    result = Kept(
        workload="cnn",
        torch=here.torch.text or "",
        date="2026-11-21",
        cpu="Xeon",
        gains=(outcome("channels-last", "faster", 1.2),),
    )
    for cpu, standing in (("Xeon", "measured"), ("EPYC", "expected"), (None, "expected")):
        found = {tip.id: tip for tip in advice.advise(here, KB, (result,), cpu)}
        assert found["cpu-channels-last"].standing == standing


def test_the_best_combination_and_what_nobody_expected_are_told_first() -> None:
    here = machine("rtx4090-linux")
    (result,) = store.from_result(gpu_result())
    result = msgspec.structs.replace(
        result,
        torch=here.torch.text,
        driver=str(here.driver.version),
        gains=(*result.gains, outcome("cuda-graphs", "faster", 1.2)),
    )
    tips = advice.advise(here, KB, (result,))
    assert {tips[0].id, tips[1].id} == {"best-decoder", "measured-cuda-graphs"}
    assert tips[0].text == "Use amp-bf16, compile together"
    assert "3.42x" in tips[0].expected[0]


def test_each_recipe_is_there() -> None:
    folder = REPOSITORY / "recipes" / "train"
    named = {row.recipe for row in advice.ROWS if row.recipe}
    assert not {recipe for recipe in named if not (folder / f"{recipe}.py").exists()}


def test_ids_are_unique() -> None:
    names = [row.id for row in advice.ROWS]
    assert len(names) == len(set(names))


# --- as it is shown ----------------------------------------------------------------------------


def test_every_text_has_its_spanish() -> None:
    table = language("es")._table
    assert not [text for text in TEXTS if text not in table]


@pytest.mark.parametrize("name", sorted(path.stem for path in MACHINES.glob("*.json")))
def test_filled_texts_are_spoken_in_spanish(name: str) -> None:
    say = language("es")
    for tip in advice.advise(machine(name), KB):
        for text in (tip.text, tip.why, *tip.expected):
            assert say.spoken(text) != text, text


@pytest.mark.parametrize("width", [40, 80, 100])
def test_lines_keep_to_the_width(width: int) -> None:
    tips = advice.advise(machine("h100x8-linux"), KB)
    lines = [line.text.rstrip() for line in terminal.advice_lines(tips, Layout(width=width))]
    assert not [line for line in lines if len(line) > width and " " in line.strip()]
    assert any(line.endswith(" Train in bf16 with autocast") for line in lines)


def test_markdown_names_the_recipes() -> None:
    text = markdown.advice_list(advice.advise(machine("rtx4090-linux"), KB), language("en"))
    assert "`recipes/train/amp_bf16.py`" in text
    assert markdown.advice_list((), language("en")) == ""


# --- the command -------------------------------------------------------------------------------


def check(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "cudadoctor", "check", *words]
    return subprocess.run(
        argv,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "COLUMNS": "100", **env},
    )


FROM = ("--from", str(MACHINES / "rtx4090-linux.json"))


def test_advice_changes_neither_verdict_nor_exit_code_and_is_only_told_when_asked() -> None:
    plain, asked = check(*FROM), check(*FROM, "--advice")
    assert asked.returncode == plain.returncode == 0
    assert asked.stdout.startswith(plain.stdout)
    assert "recipes/train/amp_bf16.py" in asked.stdout
    assert "recipes/" not in plain.stdout


def test_the_document_gains_a_list_and_nothing_else() -> None:
    plain = json.loads(check(*FROM, "--json").stdout)
    asked = json.loads(check(*FROM, "--json", "--advice").stdout)
    tips = asked.pop("advice")
    assert asked == plain
    assert set(tips[0]) == {
        *("id", "text", "why", "recipe", "expected", "standing", "technique", "measured")
    }
    assert "bf16" in {tip["id"] for tip in tips}


def test_markdown_and_spanish_have_it_too() -> None:
    text = check(*FROM, "--markdown", "--advice", "--lang", "es").stdout
    assert "### Consejos para entrenar más rápido" in text


def test_a_saved_machine_is_not_corrected_by_results_of_this_one(tmp_path: Path) -> None:
    here = machine("rtx4090-linux")
    result = msgspec.structs.replace(
        gpu_result(),
        gpu=here.gpus[0].name if here.gpus else "",
        torch=here.torch.text,
        driver=str(here.driver.version),
    )
    store.keep(result, {"XDG_STATE_HOME": str(tmp_path)})
    ran = check(*FROM, "--advice", XDG_STATE_HOME=str(tmp_path))
    assert "measured here: " not in ran.stdout


def test_a_check_reads_what_the_bench_kept_and_writes_nothing(
    tmp_path: Path, python_cpu: str
) -> None:
    cpu = store.cpu_name()
    assert cpu
    result = msgspec.structs.replace(
        gpu_result(), gpu=None, driver=None, cuda=None, cpu=cpu, torch="2.13.0+cpu"
    )
    workload = msgspec.structs.replace(
        result.workloads[0], alone=(gain("channels-last", 1.0, 0.98, 1.02),), best=()
    )
    state = tmp_path / "state"
    store.keep(
        msgspec.structs.replace(result, workloads=(workload,)), {"XDG_STATE_HOME": str(state)}
    )
    bad = state / "cudadoctor" / "bench" / "bad.json"
    bad.write_text("{")
    before = sorted(path.name for path in state.rglob("*"))
    words = ("--fast", "--advice", "--python", python_cpu)
    ran = check(*words, XDG_STATE_HOME=str(state))
    if "no NVIDIA GPU" not in ran.stdout:
        pytest.skip("a GPU is here: the result of a CPU does not count")
    assert "Not recommended here: channels-last" in ran.stdout
    assert "measured here on 2026-11-21: equal within 2% (decoder)" in ran.stdout
    assert str(bad) in ran.stderr
    assert sorted(path.name for path in state.rglob("*")) == before


def test_a_check_without_it_loads_none_of_it(python_cpu: str) -> None:
    code = (
        "import sys\nsys.argv[0] = 'cudadoctor'\nfrom cudadoctor import __main__\n"
        "__main__._leave = lambda code: None\n__main__.main()\n"
        "sys.stderr.write('\\n' + ' '.join(sys.modules))"
    )

    def loaded(*words: str) -> set[str]:
        argv = [sys.executable, "-I", "-c", code, "check", "--fast", "--python", python_cpu, *words]
        ran = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=120)
        return set(ran.stderr.splitlines()[-1].split())

    parts = {"cudadoctor.bench.advice", "cudadoctor.bench.store"}
    assert not loaded() & {*parts, "cudadoctor.bench"}
    assert parts <= loaded("--advice")
