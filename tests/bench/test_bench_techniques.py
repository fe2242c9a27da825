"""The catalogue of techniques: where each can be tried, what excludes what, and in which order."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from bench_grounds import CPU, H200
from packaging.version import Version

from cudadoctor.bench import techniques
from cudadoctor.bench.results import Kind
from cudadoctor.bench.techniques import Ground


def why_not(name: str, ground: Ground, workload: str = "cnn") -> str:
    return techniques.why_not(techniques.KNOWN[name], ground, workload)


def test_on_a_cpu_nothing_of_cuda_is_tried() -> None:
    tried = {
        technique.name for technique in techniques.TECHNIQUES if not why_not(technique.name, CPU)
    }
    assert not tried & {"amp-fp16", "cuda-graphs", "pinned-memory", "prefetch-to-device"}
    assert {"amp-bf16", "compile", "channels-last", "loader-workers"} <= tried


def test_a_missing_compiler_is_a_reason() -> None:
    bare = msgspec.structs.replace(CPU, compiler=False)
    assert "C++ compiler" in why_not("compile", bare)
    without = msgspec.structs.replace(H200, triton=False)
    assert "triton" in why_not("compile", without)


@pytest.mark.parametrize(("capability", "tried"), [("7.5", False), ("8.0", True)])
def test_tf32_begins_with_ampere(capability: str, tried: bool) -> None:
    ground = msgspec.structs.replace(H200, capability=Version(capability))
    assert (why_not("tf32", ground) == "") is tried


def test_every_recipe_that_is_named_lies_in_the_folder() -> None:
    folder = Path(techniques.__file__).parents[2] / "recipes" / "train"
    missing = {technique.recipe for technique in techniques.TECHNIQUES if technique.recipe} - {
        path.name for path in folder.glob("*.py")
    }
    assert not missing


def test_checkpointing_says_that_it_costs_time() -> None:
    assert "takes longer" in techniques.KNOWN["activation-checkpointing"].cost


def test_groups_and_clashes_exclude_each_other() -> None:
    assert not techniques.fits("amp-fp16", ("amp-bf16",))
    assert not techniques.fits("cuda-graphs", ("amp-fp16",))
    assert not techniques.fits("amp-fp16", ("cuda-graphs",))
    assert techniques.fits("sdpa", ("amp-bf16", "compile"))


def order(kind: Kind, ground: Ground, workload: str) -> list[str]:
    names = tuple(
        technique.name
        for technique in techniques.TECHNIQUES
        if not why_not(technique.name, ground, workload)
    )
    return list(techniques.ordered(names, kind, ground))


def test_what_helps_comes_first_then_compile_and_what_takes_long_late() -> None:
    found = order("compute", H200, "encoder")
    assert found[:5] == ["amp-bf16", "tf32", "sdpa", "shorter-sequences", "compile"]
    late = ["amp-fp16", "compile-reduce-overhead", "cuda-graphs", "larger-batch"]
    assert found[-7:-3] == late
    assert found[-3:] == [
        "compile-max-autotune",
        "gradient-accumulation",
        "activation-checkpointing",
    ]


def test_where_the_host_is_slow_graphs_come_early() -> None:
    found = order("host overhead", H200, "decoder")
    assert {"cuda-graphs", "fused-optimizer"} <= set(found[:4])
    assert found.index("compile") < found.index("compile-reduce-overhead") < found.index("sdpa")


def test_without_tensor_cores_for_bf16_half_precision_comes_early() -> None:
    turing = msgspec.structs.replace(H200, capability=Version("7.5"))
    found = order("compute", turing, "decoder")
    assert found.index("amp-fp16") < found.index("compile") < found.index("amp-bf16")


def test_medium_precision_of_products_is_no_technique_of_a_gpu() -> None:
    assert "same thing as tf32" in why_not("matmul-precision", H200)
    assert why_not("matmul-precision", CPU) == ""


def test_on_a_cpu_the_quick_ones_come_before_compile() -> None:
    found = order("not known", CPU, "encoder")
    assert found.index("loader-workers") < found.index("compile") < found.index("larger-batch")
