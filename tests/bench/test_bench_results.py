"""The document of the bench: what goes in comes out, and strangers are refused in a sentence."""

from __future__ import annotations

import json

import pytest
from bench_results_made import loads

from cudadoctor.bench import results
from cudadoctor.bench.results import BenchResult, Bottleneck, Gain, Measured, WorkloadResult, config


def some() -> BenchResult:
    baseline = Measured(
        config=config("cnn"), rounds=(0.2, 0.1, 0.3), samples_a_step=8, losses=(1.0, None)
    )
    gain = Gain(technique="sdpa", verdict="failed", why="out of memory")
    workload = WorkloadResult(
        name="cnn",
        samples_unit="images",
        baseline=baseline,
        bottleneck=Bottleneck(kind="compute", why="told"),
        alone=(gain,),
    )
    return BenchResult(
        cudadoctor="0.1.0",
        date="2026-11-21T10:00:00+00:00",
        device="cpu",
        torch="2.13.0+cpu",
        python="3.11.7",
        cpu="a CPU",
        minutes=1.0,
        workloads=(workload,),
    )


def test_a_result_survives_its_document() -> None:
    assert loads(results.dumps(some())) == some()


def test_the_schema_stands_first() -> None:
    assert next(iter(json.loads(results.dumps(some())))) == "schema"


def test_a_document_from_before_there_was_an_unproven_best_is_read() -> None:
    document = json.loads(results.dumps(some()))
    del document["workloads"][0]["unproven"]
    assert loads(json.dumps(document)) == some()


def test_only_a_proven_best_is_kept_for_advice() -> None:
    import msgspec

    from cudadoctor.bench import store

    found = Gain(technique="sdpa", verdict="faster", why="not measured again", ratio=1.2)
    for unproven, best in ((found, ()), (None, ("sdpa",))):
        workload = msgspec.structs.replace(some().workloads[0], best=("sdpa",), unproven=unproven)
        (stored,) = store.from_result(msgspec.structs.replace(some(), workloads=(workload,)))
        assert stored.best == best


def test_a_document_of_the_earlier_method_says_so() -> None:
    document = json.loads(results.dumps(some()))
    del document["method"]
    assert loads(json.dumps(document)).method == "rounds"


def test_a_step_is_the_median_of_its_rounds() -> None:
    baseline = some().workloads[0].baseline
    assert baseline.step_s == 0.2
    assert list(baseline.spread_s or ()) == pytest.approx([0.15, 0.25])


def test_techniques_of_a_configuration_have_one_order() -> None:
    assert config("cnn", "b", "a", "b") == config("cnn", "a", "b")
