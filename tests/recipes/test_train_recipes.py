"""Every recipe proves its technique as it is, and notices when its technique does nothing."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from recipe_runs import (
    FOR_GPUS,
    LIMIT_S,
    OWN_CODE,
    QUIET,
    SCRIPTS,
    SWITCHED_OFF,
    TRAIN,
    UNTRIED,
    Asked,
    Ran,
    every_run,
    ran_all,
)

pytestmark = pytest.mark.timeout(1500)  # one fixture runs every recipe three times
SMALL = ("--small",)
STAND_IN = Path(__file__).with_name("cuda_stand_in.py")
SECTIONS = (
    "What it does:",
    "When it helps:",
    "When it hurts:",
    "How to check:",
    "Troubleshooting:",
)
COPY, PROOF = "# --- Copy from here ", "# --- Copy to here. The rest is the proof. "


@pytest.fixture(scope="module")
def runs(python_cpu: str, tmp_path_factory: pytest.TempPathFactory) -> Mapping[Asked, Ran]:
    return ran_all(python_cpu, tmp_path_factory.mktemp("recipes"), every_run(SMALL))


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_recipe_proves_its_technique(runs: Mapping[Asked, Ran], script: str) -> None:
    ran = runs[Asked(script, SMALL)]
    assert (ran.code, ran.verdict) in {(0, "proved"), (0, "skipped")}, (ran.lines, ran.errors)


@pytest.mark.parametrize("script", SCRIPTS)
def test_without_its_technique_a_recipe_proves_nothing(
    runs: Mapping[Asked, Ran], script: str
) -> None:
    ran = runs[Asked(script, (*SMALL, "--off"))]
    assert (ran.code, ran.verdict) in {(1, "not proved"), (0, "skipped")}, (ran.lines, ran.errors)
    skipped = runs[Asked(script, SMALL)].verdict == "skipped"
    assert (ran.verdict == "skipped") == skipped


@pytest.mark.parametrize("script", SWITCHED_OFF)
def test_a_technique_whose_calls_do_nothing_is_noticed(
    runs: Mapping[Asked, Ran], script: str
) -> None:
    ran = runs[Asked(script, SMALL, SWITCHED_OFF[script])]
    skipped = runs[Asked(script, SMALL)].verdict == "skipped"
    expected = (0, "skipped") if skipped else (1, "not proved")
    assert (ran.code, ran.verdict) == expected, (ran.lines, ran.errors)


def test_every_recipe_has_a_way_to_switch_its_calls_off() -> None:
    needed = {script for script in SCRIPTS if not script.startswith("with_")}
    assert needed == {*SWITCHED_OFF, *OWN_CODE, *FOR_GPUS, *UNTRIED}


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_recipe_is_built_like_the_others(script: str) -> None:
    text = (TRAIN / f"{script}.py").read_text(encoding="utf-8")
    described = ast.get_docstring(ast.parse(text)) or ""
    places = [described.find(f"\n{section}") for section in SECTIONS]
    assert -1 not in places and places == sorted(places), SECTIONS
    assert not re.search(r"\d\s*(x|times) (faster|slower)", described), "it promises a speed"
    before, _, rest = text.partition(COPY)
    technique, _, proof = rest.partition(PROOF)
    assert technique and proof, "the two marks around what people copy"
    assert not re.search(r"^(def|class) ", before, re.M), "the technique comes first"
    assert "proof." not in technique, "the technique needs nothing of proof.py"
    assert re.search(r"\n    main\(__doc__, prove\b.*\)\n$", text, re.S)


@pytest.mark.parametrize("script", FOR_GPUS)
@pytest.mark.parametrize(("options", "verdict"), [((), "proved"), (("--off",), "not proved")])
def test_a_recipe_for_gpus_is_proved_with_a_stand_in(
    python_cpu: str, script: str, options: tuple[str, ...], verdict: str
) -> None:
    child = subprocess.run(
        [python_cpu, "-B", str(STAND_IN), script, *options],
        env={**os.environ, **QUIET},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert child.stdout.splitlines()[-1].partition(":")[0] == verdict, child.stdout + child.stderr
