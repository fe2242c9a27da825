"""The quick judgement of requirements says what `packaging` says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from cudadoctor.model.requirements import admits, cut, marker_holds

NUMBERS = st.lists(st.integers(0, 3), min_size=1, max_size=4).map(
    lambda parts: ".".join(map(str, parts))
)
ENDS = st.sampled_from(["", "", "", "+cu126", "rc1", ".post1", ".dev3"])
RELEASES = st.builds(str.__add__, NUMBERS, ENDS)
PLAIN = st.builds(str.__add__, st.sampled_from(["==", "!=", ">=", "<=", ">", "<"]), NUMBERS)
BELOW = st.builds("{}{}.*".format, st.sampled_from(["==", "!="]), NUMBERS)
COMPATIBLE = st.builds("~={}.{}".format, NUMBERS, st.integers(0, 3))
SPECIFIERS = st.lists(PLAIN | BELOW | COMPATIBLE, max_size=3).map(",".join)


@given(SPECIFIERS, RELEASES)
def test_a_specifier_admits_what_packaging_admits(specifier: str, release: str) -> None:
    expected = SpecifierSet(specifier).contains(release, prereleases=True)
    assert admits(specifier, Version(release)) is expected


@pytest.mark.parametrize(
    "line",
    [
        "numpy",
        "torch==2.14.1",
        "triton~=3.8.0; platform_system == 'Linux' and python_version < '3.15'",
        "cuda-toolkit[cublas,cudart]==13.0.3; platform_system == 'Linux'",
        "nvidia-nvjitlink<14,>=13.0.88; extra == 'all'",
        "Jinja2 (>=2.0)",
        "typing_extensions >= 4.10.0",
    ],
)
def test_a_line_is_cut_as_packaging_cuts_it(line: str) -> None:
    asked, expected = cut(line), Requirement(line)
    assert asked is not None
    assert asked.name == expected.name.lower().replace("_", "-")
    assert set(asked.extras) == expected.extras
    assert SpecifierSet(asked.specifier) == expected.specifier
    assert bool(asked.marker) is (expected.marker is not None)


@given(st.text(max_size=60))
def test_no_line_ends_in_an_exception(line: str) -> None:
    asked = cut(line)
    if asked is not None:
        admits(asked.specifier, Version("2.0"))
        marker_holds(asked.marker, {"python_version": "3.11", "extra": ""})
