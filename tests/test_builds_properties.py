"""Whatever the machine: the solver's build passes a second reading that shares no code with it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cudadoctor import knowledge
from cudadoctor.builds import best_build

KB = knowledge.load()


def _grid() -> ModuleType:
    path = Path(__file__).parent.parent / "benchmarks" / "grid.py"
    spec = importlib.util.spec_from_file_location("grid", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["grid"] = module
    spec.loader.exec_module(module)
    return module


GRID = _grid()
CHECK = GRID.Check()


@st.composite
def plain_machines(draw: st.DrawFn) -> dict[str, object]:
    system, processor, platform = draw(st.sampled_from(GRID.SYSTEMS))
    drivers = GRID.WINDOWS_DRIVERS if system == "Windows" else GRID.LINUX_DRIVERS
    return {
        "system": system,
        "processor": processor,
        "platform": platform,
        "python": draw(st.sampled_from(GRID.PYTHONS)),
        "glibc": draw(st.sampled_from(GRID.GLIBCS)) if system == "Linux" else None,
        "capabilities": tuple(
            draw(st.lists(st.sampled_from(GRID.CAPABILITIES), min_size=1, max_size=3))
        ),
        "driver": draw(st.sampled_from(drivers)),
        "installed": draw(st.sampled_from(GRID.RELEASES)),
    }


@settings(max_examples=300, deadline=None)
@given(plain_machines())
def test_a_prescription_passes_the_second_reading(plain: dict[str, object]) -> None:
    machine = GRID._machine(plain["system"], plain["processor"], plain)
    assert GRID.faults(best_build(machine, KB), plain, CHECK) == []


@settings(max_examples=100, deadline=None)
@given(plain_machines())
def test_a_way_out_leads_to_a_build_that_was_published(plain: dict[str, object]) -> None:
    machine = GRID._machine(plain["system"], plain["processor"], plain)
    choice = best_build(machine, KB)
    assert choice.build is None or not choice.ways_out
    assert all(way.build.published is True for way in choice.ways_out)
    if choice.build is None:
        assert choice.why_not


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_sample_of_the_grid_has_no_fault(seed: int) -> None:
    for machine, plain in GRID.machines(300, seed):
        assert GRID.faults(best_build(machine, KB), plain, CHECK) == []


def test_the_second_reading_notices_a_wrong_prescription() -> None:
    for machine, plain in GRID.machines(200, 11):
        choice = best_build(machine, KB)
        fitting = CHECK.fitting(plain)
        if choice.build is not None and len(fitting) > 1:
            worse = next(one for one in KB.builds if one.published is False)
            wrong = type(choice)(build=worse, why=("Wrong.",))
            assert GRID.faults(wrong, plain, CHECK)
            return
    pytest.fail("no machine of the sample has two builds")
