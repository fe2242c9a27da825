"""Every call of libcuda with every failure: its code is kept, and what is not known has its reason.

The fixed part of the product; a sample goes through the real child and a library of C.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping

import pytest
from recorded_host import RecordedHost, cut_short, lines
from standin_fixtures import HostWith, StandIns

from cudadoctor.host.children import Ran
from cudadoctor.model.machine import Libcuda, gap_of
from cudadoctor.probes import Looked
from cudadoctor.probes.driver import FAST, FULL
from cudadoctor.probes.examine import assembled
from cudadoctor.probes.libcuda import read_libcuda
from cudadoctor.probes.streamed import Patience

CODES = (1, 2, 3, 34, 46, 100, 101, 201, 205, 214, 304, 800, 801, 802, 803, 804, 999)
"""What cuInit has been seen to answer, and what other calls may."""

LOADED = {"kind": "loaded", "path": "/usr/lib/libcuda.so.580.95.05"}
ANSWERS: dict[str, tuple[Mapping[str, object], Mapping[str, object]]] = {
    "cuDriverGetVersion": (
        {"kind": "value", "name": "version", "value": 13000},
        {"kind": "value", "name": "version-code"},
    ),
    "cuInit": ({"kind": "value", "name": "code", "value": 0}, {"kind": "value", "name": "code"}),
    "cuDeviceGetCount": (
        {"kind": "value", "name": "count", "value": 2},
        {"kind": "value", "name": "count-code"},
    ),
}
"""Each call: the line of its success, and that of a failure without its code."""

FACT = {"cuDriverGetVersion": "version", "cuInit": "code", "cuDeviceGetCount": "count"}


def said(call: str, failure: Mapping[str, object] | None) -> list[Mapping[str, object]]:
    """What the child prints when this call fails that way; with None, nothing follows the call."""
    printed: list[Mapping[str, object]] = [LOADED]
    for name, (success, _) in ANSWERS.items():
        printed.append({"kind": "calling", "call": name})
        if name == call:
            printed += [failure] if failure is not None else []
            if failure is None or name == "cuInit":
                break
        else:
            printed.append(success)
    return printed


def judged(ran: Ran, patience: Patience = FULL) -> tuple[Libcuda, Looked]:
    looked = read_libcuda(RecordedHost(inside={"cuda.py": ran}), patience)
    return looked.facts["driver.libcuda"], looked


def unexplained(looked: Looked) -> list[str]:
    machine = assembled([looked])
    found = machine.driver.libcuda
    names = [name for name in ("code", "count", "version") if getattr(found, name) is None]
    return [name for name in names if gap_of(machine, f"driver.libcuda.{name}") is None]


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("call", ANSWERS)
def test_a_failure_keeps_its_code_and_says_why(call: str, code: int) -> None:
    found, looked = judged(lines(*said(call, {**ANSWERS[call][1], "value": code})))
    assert (found.code, found.count_code) == (
        code if call == "cuInit" else 0,
        code if call == "cuDeviceGetCount" else None,
    )
    assert found.count == (2 if call == "cuDriverGetVersion" else None)
    assert (found.hung, found.signal) == (None, None)
    assert not unexplained(looked)
    assert any(f"{call} failed with {code}" in gap.why for gap in looked.gaps)


@pytest.mark.parametrize("call", ANSWERS)
def test_silence_is_a_hang_only_after_the_time_that_no_healthy_driver_needs(call: str) -> None:
    enough = 10.0 if call == "cuDeviceGetCount" else 60.0
    for silent_s, hung in ((4.0, None), (enough - 0.1, None), (enough, call)):
        found, looked = judged(cut_short(*said(call, None), silent_s=silent_s))
        assert not unexplained(looked)
        assert ("30 s" in looked.gaps[0].why) == (found.hung is None)
        assert found.hung == hung
        open_still = any(gap.fact == "driver.libcuda.hung" for gap in looked.gaps)
        assert open_still == (hung is None)


@pytest.mark.parametrize("call", ANSWERS)
@pytest.mark.parametrize("number", [6, 9, 11])
def test_a_signal_is_told_with_its_call(call: str, number: int) -> None:
    found, looked = judged(cut_short(*said(call, None), signal=number))
    assert (found.signal, found.hung) == (number, None)
    assert not unexplained(looked)
    assert f"{call}: the process was killed by signal {number}" in looked.gaps[0].why


@pytest.mark.parametrize("value", [-1, 257, 0x7FFFFFFF, 0x5EADBEEF])
@pytest.mark.parametrize("call", ["cuDriverGetVersion", "cuDeviceGetCount"])
def test_an_answer_that_cannot_be_is_none_and_says_so(call: str, value: int) -> None:
    found, looked = judged(lines(*said(call, {**ANSWERS[call][0], "value": value})))
    assert getattr(found, FACT[call]) is None
    assert any("which cannot be" in gap.why for gap in looked.gaps)


@pytest.mark.parametrize("call", ANSWERS)
def test_a_library_without_the_call_says_so(call: str) -> None:
    printed = [line for line in said(call, {"kind": "nothing"}) if line.get("call") != call]
    _, looked = judged(lines(*printed))
    assert not unexplained(looked)
    assert any(f"libcuda has no {call}" in gap.why for gap in looked.gaps)


def test_a_process_that_never_spoke_says_nothing_of_the_driver() -> None:
    found, looked = judged(cut_short(silent_s=72.0))
    assert found.hung is None
    assert not unexplained(looked)


@pytest.mark.skipif(sys.platform != "linux", reason="the stand-ins are made for Linux")
@pytest.mark.skipif(not (shutil.which("gcc") or shutil.which("cc")), reason="no C compiler")
@pytest.mark.parametrize(
    "does", ["100", "802", "999", "crash", "hang", "ones", "zeros", "noise", "open"]
)
@pytest.mark.parametrize("call", ANSWERS)
def test_the_real_child_says_the_same(standins: StandIns, call: str, does: str) -> None:
    host = HostWith(standins.environment(f"{call} = {does}", standins.cuda()))
    # Long for the sound calls before it; a second look, in a clean environment, finds no library.
    looked = read_libcuda(host, Patience(start_s=2.0, call_s=2.0))
    found = looked.facts["driver.libcuda"]
    assert not unexplained(looked)
    assert found.signal == (11 if does == "crash" else None)
    assert found.hung == (call if does == "hang" else None)
    if does.isdecimal():
        code = {"cuInit": found.code, "cuDeviceGetCount": found.count_code}.get(call, int(does))
        assert code == int(does)


def test_a_fast_look_never_calls_it_a_hang(standins: StandIns) -> None:
    host = HostWith(standins.environment("cuDeviceGetCount = hang", standins.cuda()))
    looked = read_libcuda(host, FAST.capped(1))
    assert looked.facts["driver.libcuda"].hung is None
    assert gap_of(assembled([looked]), "driver.libcuda.count") is not None
