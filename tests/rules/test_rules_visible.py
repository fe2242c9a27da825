"""How CUDA reads CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudadoctor.rules.process import Visible, read_visible

TWO = ("GPU-aaaa-1", "GPU-aabb-2")


@pytest.mark.parametrize(
    ("value", "indexes"),
    [
        ("0,1", (0, 1)),
        ("1,0", (1, 0)),
        (" 1 , 0 ", (1, 0)),
        ("1gpu", (1,)),
        ("+1", (1,)),
        ("0,7,1", (0,)),
        ("2", ()),
        ("0,-1,1", (0,)),
        ("-1", ()),
        ("", ()),
        ("0,,1", (0,)),
        ("0,", (0,)),
        ("0,0", ()),
        ('"0"', ()),
        ("'0,1'", ()),
        ("NoDevFiles", ()),
        ("all", ()),
        ("GPU-aaaa", (0,)),
        ("gpu-aaaa", ()),
        ("GPU-AABB", (1,)),
        ("GPU-aa", ()),
        ("GPU-cc,0", ()),
        ("GPU-aabb-2,GPU-aaaa-1", (1, 0)),
        ("GPU-aaaa,GPU-aaaa-1", ()),
    ],
)
def test_the_list_ends_at_its_first_invalid_entry(value: str, indexes: tuple[int, ...]) -> None:
    assert read_visible(value, TWO).indexes == indexes


def test_what_ended_the_list_is_named() -> None:
    assert read_visible("0,7,1", TWO) == Visible(indexes=(0,), stop="out of range")
    assert read_visible("GPU-aa", TWO).stop == "ambiguous"
    assert read_visible("0,0", TWO).stop == "twice"


def test_a_mig_instance_is_found_among_the_instances() -> None:
    assert read_visible("MIG-b", ("MIG-a1", "MIG-b2")).indexes == (1,)
    assert read_visible("MIG-c", ("MIG-a1", "MIG-b2")).stop == "unknown"


def test_a_uuid_counts_where_the_only_gpu_has_none_that_is_known() -> None:
    assert read_visible("GPU-1234", ("",)).indexes == (0,)


@given(st.text(alphabet="0123456789,-+ GPUMIx\"'", max_size=24), st.integers(0, 4))
def test_any_value_leaves_different_gpus_that_exist(value: str, count: int) -> None:
    left = read_visible(value, tuple(f"GPU-{n}" for n in range(count)))
    assert len(set(left.indexes)) == len(left.indexes)
    assert all(0 <= index < count for index in left.indexes)
    assert bool(left.stop) or left.indexes
