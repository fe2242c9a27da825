"""The index of the recipes: as new as scripts and results, and no figure that nobody measured."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import msgspec
import pytest
from recipe_runs import SCRIPTS, TRAIN

from cudadoctor.bench import results, techniques
from cudadoctor.bench.results import BenchResult, Bottleneck, Gain, Measured, WorkloadResult, config

RECIPES = TRAIN.parent
README = RECIPES / "README.md"


def loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("recipes_index", RECIPES / "index.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


INDEX = loaded()


def result(gpu: str | None, capability: str | None, *gains: Gain) -> BenchResult:
    """What a bench of one workload would give."""
    best = Gain(technique="amp-bf16 + compile", verdict="faster", why="", ratio=3.456)
    workload = WorkloadResult(
        name="encoder",
        samples_unit="sequences",
        baseline=Measured(config=config("encoder")),
        bottleneck=Bottleneck(kind="compute", why=""),
        alone=gains,
        best=("amp-bf16", "compile"),
        best_gain=best,
    )
    return BenchResult(
        cudadoctor="0.1.0",
        date="2026-11-20T10:00:00+00:00",
        device="cuda:0" if gpu else "cpu",
        torch="2.14.1",
        python="3.11.7",
        cpu="A CPU",
        minutes=10,
        workloads=(workload,),
        gpu=gpu,
        capability=capability,
        method="processes",
    )


FASTER = Gain(
    technique="amp-bf16",
    verdict="faster",
    why="",
    ratio=1.849,
    low=1.801,
    high=1.9,
    memory_ratio=0.61,
)


def rows(text: str) -> dict[str, list[str]]:
    """Name of the technique -> its cells, in the order of the columns."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0].split(": ")[-1]: row[1:] for row in cells}


def test_the_page_is_what_scripts_and_results_give_byte_for_byte() -> None:
    """Where this fails, scripts or results have changed: python recipes/index.py writes it anew."""
    text = INDEX.readme(RECIPES, INDEX.read(INDEX.RESULTS))
    assert README.read_text(encoding="utf-8") == text


def test_every_script_has_a_section_and_is_in_the_table_or_a_list() -> None:
    grouped = [script for scripts in INDEX.GROUPS.values() for script in scripts]
    assert sorted(grouped) == sorted(SCRIPTS)
    text = README.read_text(encoding="utf-8")
    for script in grouped:
        assert f"\n[train/{script}.py](train/{script}.py)\n\nWhat it does: " in text, script
        listed = f"- [{script}](train/{script}.py)" in text
        assert listed or f"| [{script}](train/{script}.py)" in text, script


def test_a_script_that_the_bench_does_not_try_is_in_a_list() -> None:
    tried = {technique.recipe.removesuffix(".py") for technique in techniques.TECHNIQUES}
    text = INDEX.readme(RECIPES, [])
    for script in set(SCRIPTS) - tried:
        assert f"\n- [{script}](train/{script}.py)\n" in text


def test_only_what_was_measured_has_a_row_and_the_rest_is_a_list() -> None:
    open_ = Gain(technique="tf32", verdict="undecided", ratio=1.1, pairs=(1.1, 1.1))
    text = INDEX.readme(RECIPES, [("a.json", result("H200", "9.0", FASTER, open_))])
    assert rows(text).keys() == {"technique", "---", "amp-bf16", "best combination"}
    assert rows(text)["technique"] == ["Hopper"]
    listed = {line.split(": ")[-1] for line in text.splitlines() if line.startswith("- [")}
    assert {technique.name for technique in techniques.TECHNIQUES} - listed == {"amp-bf16", "sdpa"}
    assert "\n- sdpa\n" in text.replace("no script: ", "")


def test_what_an_earlier_method_claimed_is_not_shown() -> None:
    old = msgspec.structs.replace(result("H200", "9.0", FASTER), method="rounds")
    text = INDEX.readme(RECIPES, [("a.json", old)])
    assert rows(text) == {}
    assert "a.json" not in text


def test_every_link_of_the_page_leads_somewhere() -> None:
    text = README.read_text(encoding="utf-8")
    targets = {part.split(")")[0] for part in text.split("](")[1:]}
    assert {"train", "install", "triage", "install/cu130"} <= targets
    own = {target for target in targets if not target.startswith("https://")}
    assert [target for target in own if not (RECIPES / target).exists()] == []


@pytest.mark.parametrize(
    ("gpu", "capability", "column"),
    [
        (None, None, "CPU"),
        ("GTX 1080", "6.1", "old GPU"),
        ("V100", "7.0", "old GPU"),
        ("T4", "7.5", "T4/Turing"),
        ("A100", "8.0", "Ampere"),
        ("L4", "8.9", "Ampere"),
        ("H200", "9.0", "Hopper"),
        ("B200", "10.0", "Blackwell"),
        ("RTX 5090", "12.0", "Blackwell"),
    ],
)
def test_a_figure_stands_only_in_the_column_of_its_hardware(
    gpu: str | None, capability: str | None, column: str
) -> None:
    text = INDEX.readme(RECIPES, [("bench.json", result(gpu, capability, FASTER))])
    assert rows(text)["technique"] == [column]
    assert rows(text)["amp-bf16"] == ["encoder 1.85x (1.80 to 1.90), memory 0.61x [1]"]
    assert f"\n1. {gpu or 'A CPU'}, torch 2.14.1, 2026-11-20 ([bench.json](" in text


def test_only_a_difference_is_a_figure() -> None:
    same = Gain(technique="tf32", verdict="same", ratio=1.01, low=0.9, high=1.4, within=0.03)
    open_ = Gain(technique="sdpa", verdict="undecided", ratio=1.1, low=0.9, high=1.3)
    differs = Gain(technique="compile", verdict="loss-differs", why="", ratio=2.0)
    failed = Gain(technique="amp-fp16", verdict="failed", why="it crashed")
    absent = Gain(technique="cuda-graphs", verdict="not-here", why="no GPU")
    gains = (same, open_, differs, failed, absent)
    text = INDEX.readme(RECIPES, [("a.json", result(None, None, *gains))])
    found = rows(text)
    assert found["tf32"][0] == "encoder equal within 3% [1]"
    assert found["sdpa"][0] == "encoder not decided [1]"
    assert found["compile"][0] == "encoder different loss [1]"
    assert found["amp-fp16"][0] == "encoder failed [1]"
    assert "cuda-graphs" not in found
    assert found["best combination"][0] == "encoder 3.46x [1]: amp-bf16 + compile"


def test_two_results_of_a_class_stand_beside_each_other() -> None:
    pair = [(name, result("H200", "9.0", FASTER)) for name in ("a.json", "b.json")]
    cells = rows(INDEX.readme(RECIPES, pair))["amp-bf16"]
    assert cells[0].count("encoder 1.85x") == 2
    assert cells[0].endswith("[2]")


def test_files_of_other_benchmarks_are_left(tmp_path: Path) -> None:
    (tmp_path / "bench.json").write_text(results.dumps(result(None, None)), encoding="utf-8")
    (tmp_path / "grid.json").write_text('{"rows": [1]}', encoding="utf-8")
    (tmp_path / "list.json").write_text("[]", encoding="utf-8")
    assert [name for name, _ in INDEX.read(tmp_path)] == ["bench.json"]


def test_a_result_of_another_schema_is_not_passed_over(tmp_path: Path) -> None:
    text = results.dumps(result(None, None)).replace('"schema": 1', '"schema": 2')
    (tmp_path / "bench.json").write_text(text, encoding="utf-8")
    with pytest.raises(msgspec.ValidationError):
        INDEX.read(tmp_path)


def test_the_generator_writes_what_differs(tmp_path: Path) -> None:
    copy = tmp_path / "recipes"
    shutil.copytree(RECIPES, copy, ignore=shutil.ignore_patterns("__pycache__", ".*_cache"))
    (copy / "README.md").write_text("old", encoding="utf-8")
    said = [
        subprocess.run(
            [sys.executable, copy / "index.py"], capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    ]
    assert said == ["README.md changed\n", "README.md is up to date\n"]
