"""Results that are kept: by machine and workload, whole or not at all, and nothing private."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest
from bench_results_made import cpu_result, decoder, gain, gpu_result

from cudadoctor.bench import store
from cudadoctor.bench.results import Gain


def test_what_is_kept_is_read_again(tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path)}
    assert store.keep(gpu_result(), env) is None
    assert store.keep(cpu_result(), env) is None
    found = store.read(env)
    assert found.ignored == ()
    assert {(kept.gpus, kept.torch, kept.workload) for kept in found.kept} == {
        (("NVIDIA GeForce RTX 4090",), "2.14.1+cu130", "decoder"),
        ((), "2.13.0+cpu", "decoder"),
    }


def test_the_newest_result_of_a_machine_takes_the_place_of_the_last(tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path)}
    later = msgspec.structs.replace(gpu_result(), date="2026-12-24T10:00:00")
    other = msgspec.structs.replace(gpu_result(), driver="590.1")
    for result in (gpu_result(), later, other):
        store.keep(result, env)
    assert sorted(kept.date for kept in store.read(env).kept) == ["2026-11-21", "2026-12-24"]


def later(tmp_path: Path, *gains: Gain) -> store.Kept:
    """What is kept after a second bench measured only these, some days later."""
    env = {"XDG_STATE_HOME": str(tmp_path)}
    store.keep(gpu_result(), env)
    workload = msgspec.structs.replace(decoder(), alone=gains, best=(), best_gain=None)
    second = msgspec.structs.replace(
        gpu_result(), date="2026-12-24T10:00:00", workloads=(workload,)
    )
    store.keep(second, env)
    (kept,) = store.read(env).kept
    return kept


def test_what_was_not_measured_again_stays_with_its_day(tmp_path: Path) -> None:
    kept = later(tmp_path, gain("cuda-graphs", 1.3, 1.2, 1.4))
    verdicts = {one.technique: one.verdict for one in kept.gains}
    assert (verdicts["amp-bf16"], verdicts["cuda-graphs"]) == ("faster", "faster")
    assert (kept.date, kept.dates["amp-bf16"]) == ("2026-12-24", "2026-11-21")
    assert "cuda-graphs" not in kept.dates
    assert kept.best == ("amp-bf16", "compile")
    assert kept.dates[store.BEST] == "2026-11-21"


@pytest.mark.parametrize("verdict", ["same", "slower", "undecided", "failed"])
def test_a_gain_that_does_not_hold_again_is_lost_also_in_combinations(
    tmp_path: Path, verdict: str
) -> None:
    kept = later(tmp_path, gain("compile", 1.0, 0.97, 1.03, verdict))
    verdicts = {one.technique: one.verdict for one in kept.gains}
    assert verdicts["compile"] == verdict
    assert verdicts["amp-bf16"] == "faster"
    assert (kept.best, kept.best_gain) == ((), None)


def test_a_process_or_two_deny_nothing(tmp_path: Path) -> None:
    few = Gain(technique="compile", verdict="undecided", ratio=0.99, pairs=(0.99,))
    kept = later(tmp_path, few)
    assert {one.verdict for one in kept.gains if one.technique == "compile"} == {"faster"}
    assert kept.best == ("amp-bf16", "compile")


def test_results_of_the_earlier_method_advise_nothing(tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path)}
    old = msgspec.structs.replace(gpu_result(), method="rounds")
    store.keep(old, env)
    found = store.read(env)
    assert found.kept == ()
    assert "run it again" in found.ignored[0]
    store.keep(gpu_result(), env)
    assert [kept.dates for kept in store.read(env).kept] == [{}], "nothing of it is merged"


def test_only_the_named_facts_are_kept(tmp_path: Path) -> None:
    private = Gain(technique="compile", verdict="failed", why="/home/ada/secret/train.py: no g++")
    workload = msgspec.structs.replace(decoder(), alone=(private,))
    result = msgspec.structs.replace(gpu_result(), workloads=(workload,), notes=("host engine",))
    env = {"XDG_STATE_HOME": str(tmp_path)}
    store.keep(result, env)
    (path,) = (tmp_path / "cudadoctor" / "bench").iterdir()
    document = json.loads(path.read_text())
    assert set(document) == {
        *("schema", "workload", "torch", "date", "gpus", "driver", "cpu"),
        *("gains", "best", "best_gain", "dates", "method"),
    }
    assert document["schema"] == 1
    for word in ("ada", "secret", "engine", "Ryzen"):
        assert word not in path.read_text()


@pytest.mark.parametrize(
    "text", [b"", b"{", b"\xff\xfe", b"[]", b'{"schema": 2}', b'{"schema":1,"workload":3}']
)
def test_an_unreadable_file_is_left_out_with_a_word(tmp_path: Path, text: bytes) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path)}
    store.keep(gpu_result(), env)
    bad = tmp_path / "cudadoctor" / "bench" / "bad.json"
    bad.write_bytes(text)
    found = store.read(env)
    assert len(found.kept) == 1
    assert len(found.ignored) == 1 and str(bad) in found.ignored[0]


def test_another_schema_is_left_out(tmp_path: Path) -> None:
    (kept,) = store.from_result(gpu_result())
    assert store.decoded(msgspec.json.encode(kept)) == kept
    assert store.decoded(msgspec.json.encode(msgspec.structs.replace(kept, schema=2))) is None


def test_a_pipe_in_the_folder_is_not_opened(tmp_path: Path) -> None:
    place = tmp_path / "cudadoctor" / "bench"
    place.mkdir(parents=True)
    os.mkfifo(place / "a.json")
    assert store.read({"XDG_STATE_HOME": str(tmp_path)}).ignored


def test_a_place_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    complaint = store.keep(gpu_result(), {"XDG_STATE_HOME": str(file)})
    assert complaint is not None and str(file) in complaint
    assert store.keep(gpu_result(), {}) is not None
    assert store.read({}) == store.Read()


def test_nothing_half_written_stays(tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path)}
    (kept,) = store.from_result(gpu_result())
    (tmp_path / "cudadoctor" / "bench" / kept.name).mkdir(parents=True)  # cannot be replaced
    assert store.keep(gpu_result(), env) is not None
    assert not list((tmp_path / "cudadoctor" / "bench").glob(".new-*"))


@pytest.mark.parametrize(
    ("env", "place"),
    [
        ({"XDG_STATE_HOME": "/x", "HOME": "/h"}, "/x/cudadoctor/bench"),
        ({"XDG_STATE_HOME": "relative", "HOME": "/h"}, "/h/.local/state/cudadoctor/bench"),
        ({"XDG_STATE_HOME": "", "HOME": "/h"}, "/h/.local/state/cudadoctor/bench"),
    ],
)
def test_the_place_follows_the_variables(env: dict[str, str], place: str) -> None:
    assert str(store.folder(env)) == place


def test_a_baseline_that_was_not_measured_is_not_kept() -> None:
    workload = decoder()
    failed = msgspec.structs.replace(workload.baseline, rounds=())
    broken = msgspec.structs.replace(workload, baseline=failed)
    assert store.from_result(msgspec.structs.replace(gpu_result(), workloads=(broken,))) == ()
