"""What is wrong with GPUs, judged from figures alone: near misses stand on the threshold."""

from __future__ import annotations

import pytest

from cudadoctor import knowledge
from cudadoctor.health import judging
from cudadoctor.health.judging import EVENTS, FEW, REASONS, SENTENCES, judge, new_xids, verdict_of
from cudadoctor.health.measured import Board, Measurements, read, sound
from cudadoctor.locale.language import language
from cudadoctor.model.machine import Json, Xid

A100 = {"name": "NVIDIA A100-SXM4-80GB", "sms": 108, "capability": "8.0"}
CLOCK = 1410
PEAK = 108 * 2048 * CLOCK / 1e6  # TFLOP/s of bf16 at that clock
LINK = {"generation": 4, "width": 16}


def gpu(index: int, **more: object) -> Json:
    most = {"generation_max": 4, "width_max": 16, "power_limit_w": 400.0}
    return {"kind": "gpu", "index": index, **A100, **most, **more}


def figure(index: int, value: float, what: str = "gemm", **more: object) -> Json:
    load = {"clock_mhz": CLOCK, "throttle": 0, **LINK, **more.pop("load", {})}  # type: ignore[dict-item]
    dtype = {"dtype": "bf16"} if what == "gemm" else {}
    return (
        {"kind": "figure", "what": what, "gpu": index, "value": value, "load": load} | dtype | more
    )


def kinds(*lines: Json, ended: str = "") -> dict[str, str]:
    """Kind of what is wrong, with its GPU -> the sentence."""
    found = judge(read(lines, ended=ended), knowledge.load())
    return {f"{anomaly.kind} {anomaly.gpu}": anomaly.text for anomaly in found}


def four(*values: float, what: str = "gemm", **last: object) -> list[Json]:
    """Equal GPUs with a figure each; `last` is what is special of the last one."""
    figures = [figure(index, value, what) for index, value in enumerate(values)]
    figures[-1] = figure(len(values) - 1, values[-1], what, **last)
    return [*map(gpu, range(len(values))), *figures]


def test_equal_figures_are_fine() -> None:
    assert kinds(*four(250, 251, 249, 250)) == {}


@pytest.mark.parametrize(
    ("what", "usual", "slow", "near"),
    [("gemm", 260, 246.9, 247.0), ("copy", 1700, 1614.9, 1615), ("h2d", 24, 21.59, 21.6)],
)
def test_a_straggler_is_below_its_share_of_the_median(
    what: str, usual: float, slow: float, near: float
) -> None:
    found = kinds(*four(usual, usual, usual, slow, what=what))
    assert list(found) == ["straggler 3"]
    assert found["straggler 3"].endswith(judging.NOT_KNOWN)
    assert kinds(*four(usual, usual, usual, near, what=what)) == {}


@pytest.mark.parametrize(
    ("load", "says"),
    [
        ({"throttle": 0x40, "temperature_c": 93}, "overheating (93 °C)"),
        ({"throttle": 0x20, "temperature_c": 93}, "overheating (93 °C)"),
        ({"throttle": 0x80}, "power brake"),
        ({"throttle": 0x8}, "hardware slows"),
        ({"throttle": 0x2}, "somebody set its clocks"),
        ({"throttle": 0x4, "clock_mhz": 1200}, "power limit at 1200 MHz, its equals run at 1410"),
        ({"clock_mhz": 1200}, "clock is 1200 MHz, that of its equals 1410 MHz"),
        ({"throttle": 0x4}, judging.NOT_KNOWN),
        ({"throttle": 0x1}, judging.NOT_KNOWN),
    ],
)
def test_the_reason_is_what_nvml_said_in_that_window(load: Json, says: str) -> None:
    found = kinds(*four(260, 260, 260, 200, load=load))
    assert says in found["straggler 3"]


def test_a_lower_power_limit_is_a_reason() -> None:
    lines = [*map(gpu, range(2)), gpu(2, power_limit_w=250.0)]
    lines += [figure(0, 260), figure(1, 260), figure(2, 200)]
    assert "its power limit is 250 W, that of its equals 400 W" in kinds(*lines)["straggler 2"]


def test_other_boards_are_no_equals() -> None:
    lines = [gpu(0), gpu(1), gpu(2, name="NVIDIA L4", sms=58), gpu(3, sms=98)]
    lines += [
        figure(0, 260),
        figure(1, 260),
        figure(2, 60, load={"clock_mhz": None}),
        figure(3, 240),
    ]
    assert kinds(*lines) == {}


def test_the_data_sheet_counts_at_the_measured_clock() -> None:
    near = 0.6 * PEAK
    assert kinds(*four(near, near)) == {}
    assert list(kinds(*four(near - 1, near - 1))) == ["slow 0", "slow 1"]
    # Half of the clock promises half of the figure.
    slow = [gpu(0), figure(0, near / 2, load={"clock_mhz": CLOCK // 2})]
    assert kinds(*slow) == {}
    assert kinds(gpu(0), figure(0, 10, load={"clock_mhz": None})) == {}
    assert kinds(gpu(0, name="NVIDIA A100 MIG 1g.10gb"), figure(0, 10)) == {}
    assert kinds(gpu(0, name="a newer board"), figure(0, 10)) == {}


def test_the_operations_a_clock_fit_the_figures_of_the_sheet() -> None:
    """One clock of the board explains all its figures; Hopper names two, 8 % apart."""
    for row in knowledge.load()._peaks.rows:
        given = {"fp32": row.fp32_tflops, "tf32": row.tf32_tflops}
        clocks = [
            tflops / row.per_clock[name]
            for name, tflops in given.items()
            if tflops and name in row.per_clock
        ]
        assert not clocks or max(clocks) < 1.15 * min(clocks), row.name


def test_a_link_is_judged_as_it_was_under_load() -> None:
    assert kinds(gpu(0), figure(0, 18.95, "h2d")) == {}
    assert list(kinds(gpu(0), figure(0, 18.85, "h2d"))) == ["slow-link 0"]
    narrow = kinds(gpu(0), figure(0, 6, "h2d", load={"width": 4}))
    assert "runs at PCIe 4.0 x4 under load, but PCIe 4.0 x16 is possible" in narrow["narrow-link 0"]
    # A virtual machine names a link that its copies are faster than.
    assert kinds(gpu(0), figure(0, 24, "h2d", load={"generation": 1, "width": 4})) == {}


def test_a_slow_link_names_the_link_of_its_equals() -> None:
    found = kinds(*four(24, 24, 24, 6, what="h2d", load={"width": 4}))
    assert "its PCIe link is PCIe 4.0 x4, that of its equals PCIe 4.0 x16" in found["straggler 3"]


def test_a_pair_is_compared_only_where_the_others_are_alike() -> None:
    def pairs(slow: int, rest: float) -> list[Json]:
        found = [gpu(index) for index in range(4)]
        for one in range(4):
            for other in range(4):
                if one != other:
                    value = 100.0 if slow in (one, other) else rest
                    found.append(figure(one, value, "p2p", peer=other, direct=True))
        return found

    assert list(kinds(*pairs(1, 270.0))) == ["straggler 1"]
    assert kinds(*pairs(1, 100.0)) == {}


def digest(index: int, counts: dict[str, int], dtype: str = "bf16") -> Json:
    return {"kind": "digest", "gpu": index, "dtype": dtype, "counts": counts}


def test_results_that_change_are_wrong() -> None:
    good = {"7": 24}
    assert kinds(*map(gpu, range(3)), *(digest(index, good) for index in range(3))) == {}
    odd = kinds(gpu(0), digest(0, {"7": 23, "8": 1}), digest(0, {"3": 9}, "fp32"))
    assert list(odd) == ["wrong-results 0"]
    assert "(bf16)" in odd["wrong-results 0"]
    # Once in a soak is enough, however often the same came before.
    assert list(kinds(gpu(0), digest(0, good), digest(0, {"8": 24}))) == ["wrong-results 0"]


def test_the_majority_of_equals_is_right() -> None:
    lines = [*map(gpu, range(3)), digest(0, {"7": 1}), digest(1, {"7": 1}), digest(2, {"8": 1})]
    assert list(kinds(*lines)) == ["different-results 2"]
    assert list(kinds(gpu(0), gpu(1), digest(0, {"7": 1}), digest(1, {"8": 1}))) == [
        "results-disagree None"
    ]
    other = gpu(1, name="NVIDIA L4", sms=58)
    assert kinds(gpu(0), other, digest(0, {"7": 1}), digest(1, {"8": 1})) == {}


@pytest.mark.parametrize(
    ("name", "before", "after", "kind"),
    [
        ("ecc-uncorrected", 2, 3, "ecc-uncorrected 0"),
        ("ecc-uncorrected", 2, 2, None),
        ("ecc-uncorrected", 3, 2, None),
        ("pcie-replays", 5, 6 + FEW, "new-events 0"),
        ("pcie-replays", 5, 5 + FEW, None),
        ("rows-uncorrected", 0, 1, "new-events 0"),
        ("remap-pending", 1, 1, "remap-pending 0"),
        ("remap-failed", 1, 1, "remap-failed 0"),
        ("remap-failed", 0, 0, None),
    ],
)
def test_counters_may_not_grow(name: str, before: int, after: int, kind: str | None) -> None:
    lines: list[Json] = [
        {"kind": "counters", "when": when, "gpu": 0, "counts": {name: count}}
        for when, count in (("before", before), ("after", after))
    ]
    assert list(kinds(gpu(0), *lines)) == ([kind] if kind else [])


def test_what_is_lost_is_named() -> None:
    lost: Json = {"kind": "lost", "what": "gemm fp32", "gpus": [1], "why": "CUDA error"}
    assert kinds(gpu(0), gpu(1), lost) == {"lost 1": "GPU 1 failed during gemm fp32: CUDA error"}
    doing: Json = {"kind": "doing", "what": "copy", "gpus": [0, 1]}
    assert list(kinds(gpu(0), gpu(1), doing, ended="killed")) == ["not-finished None"]
    done: Json = {"kind": "done", "seconds": 9.0}
    assert kinds(gpu(0), doing, done, ended="killed") == {}
    lacking: Json = {"kind": "lacking", "what": "all-reduce", "gpus": [0], "why": "NCCL"}
    assert list(kinds(gpu(0), lacking)) == ["not-measured None"]


def test_a_gpu_is_named_with_its_address() -> None:
    lost: Json = {"kind": "lost", "what": "copy", "gpus": [0], "why": "it"}
    found = kinds(gpu(0, bus_id="0000:41:00.0"), lost)
    assert found["lost 0"].startswith("GPU 0 (0000:41:00.0) failed")


def test_only_new_xids_of_measured_gpus_count() -> None:
    boards = (Board(index=2, name="", sms=1, capability="8.0", bus_id="0000:41:00.0"),)
    before = [Xid(code=13, bus_id="0000:41:00", count=2)]
    after = [
        Xid(code=13, bus_id="0000:41:00", count=3),
        Xid(code=79, bus_id="0000:41:00"),
        Xid(code=48, bus_id="0000:c1:00"),
    ]
    assert new_xids(before, after, boards) == ((2, 13), (2, 79))
    assert new_xids(before, before, boards) == ()
    assert new_xids(None, after, boards) == ()
    found = judge(read([gpu(2)]), knowledge.load(), xids=[(2, 79)])
    assert [anomaly.kind for anomaly in found] == ["xid"]


def verdict(*lines: Json, pretended: bool = False) -> str:
    found = read(lines, pretended=pretended)
    return verdict_of(found, judge(found, knowledge.load()))


def test_healthy_needs_a_figure_of_every_gpu() -> None:
    assert verdict(gpu(0), figure(0, 250)) == "healthy"
    assert verdict(gpu(0), gpu(1), figure(0, 250)) == "undecided"
    assert verdict() == "undecided"
    assert verdict(gpu(0), figure(0, 250), pretended=True) == "undecided"
    assert verdict(gpu(0), figure(0, 10)) == "warnings"
    assert verdict(gpu(0), digest(0, {"1": 1, "2": 1})) == "broken"


def test_one_window_of_two_may_be_disturbed_but_of_many_the_usual_counts() -> None:
    def value(*values: float) -> tuple[float, float | None, int]:
        (speed,) = read([gpu(0), *(figure(0, each) for each in values)]).speeds
        return speed.value, speed.lowest, speed.windows

    assert value(200, 250) == (250, 200, 2)
    assert value(100, 240, 250) == (240, 100, 3)


def test_a_line_that_the_child_did_not_say_is_left_out() -> None:
    assert sound(gpu(0))
    assert not sound(None)
    assert not sound({"kind": "gpu"})
    assert not sound({"kind": "figure", "what": "gemm", "value": "nan", "gpu": 0})
    assert sound({"kind": "of torch's own"})


def test_every_sentence_has_its_translation() -> None:
    table = language("es")._table
    texts = {text for _, text in SENTENCES.values()} | {*REASONS.values(), *EVENTS.values()}
    assert texts - set(table) == set()
    said = kinds(*four(260, 260, 260, 200, load={"throttle": 0x40, "temperature_c": 93}))
    spoken = language("es").spoken(said["straggler 3"])
    assert "más lenta" in spoken
    assert "sobrecalienta (93 °C)" in spoken


def test_nothing_measured_is_no_measurement() -> None:
    assert read([]) == Measurements()
