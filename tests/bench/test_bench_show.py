"""A result as it is shown: on terminals of every width, as Markdown, as JSON, as a chart."""

from __future__ import annotations

import itertools
import json
import re
import xml.etree.ElementTree as ElementTree

import msgspec
import pytest
from bench_results_made import cpu_result, decoder, gain, gpu_result, loads, measured
from markdown_it import MarkdownIt

from cudadoctor.bench import page, results
from cudadoctor.bench.page import Layout
from cudadoctor.bench.results import BenchResult, Gain, Measured, WorkloadResult, config
from cudadoctor.bench.techniques import BY_NAME
from cudadoctor.locale.language import language

WIDTHS = (40, 57, 75, 76, 80, 100)


def shown(result: BenchResult, width: int = 80, *, blocks: bool = False) -> str:
    layout = Layout(width=width, blocks=blocks)
    return "\n".join(line.text.rstrip() for line in page.report(result, layout))


def with_workload(workload: WorkloadResult) -> BenchResult:
    return msgspec.structs.replace(gpu_result(), workloads=(workload,))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("result", [gpu_result(), cpu_result()], ids=["gpu", "cpu"])
def test_no_line_is_wider_than_the_terminal_but_what_is_copied(
    width: int, result: BenchResult
) -> None:
    copied = (
        "recipes/",
        "cudadoctor bench --workload",
        *(line for name in ("amp-bf16", "compile") for line in BY_NAME[name].code),
    )
    lines = [
        line for line in shown(result, width).splitlines() if not any(c in line for c in copied)
    ]
    assert not [line for line in lines if len(line) > width]


@pytest.mark.parametrize("width", WIDTHS)
def test_a_plain_terminal_gets_plain_letters(width: int) -> None:
    assert shown(gpu_result(), width).isascii()
    assert not shown(gpu_result(), width, blocks=True).isascii()


def test_each_outcome_has_its_words() -> None:
    text = " ".join(shown(gpu_result(), 100).split())
    for words in (
        "1.42x faster (1.38 to 1.46)",
        "slower: 0.78x (0.76 to 0.80)",
        "equal within 2%",
        "not decided: 1.07x so far, pairs of processes: 4",
        "next faster so far, but not decided: sdpa cudadoctor bench --workload decoder --only sdpa",
        "other programs used 3% of the CPU before it began",
        "GPU clock: 2520 to 2610 MHz GPU power: 380 to 402 W",
        "loss differs: 4.9 after 20 steps, not 4.1",
        "failed: out of memory",
        "skipped needs a GPU with capability 8.9 or newer: fp8",
        "limited by compute: 61 % of the fp32 peak of this GPU",
        "processes that run the same code differ by about 0.8%",
        "amp-bf16 + compile: 3.42x faster (3.38 to 3.46)",
        "recipes/train/amp_bf16.py",
    ):
        assert words in text


def test_a_cpu_run_says_that_it_says_nothing_about_a_gpu() -> None:
    for text in (
        shown(cpu_result(), 100),
        page.markdown(cpu_result()),
        page.svg(cpu_result()),
    ):
        assert page.ON_A_CPU in text
        assert "no GPU used" in text
        assert page.CUT_SHORT in text
    for text in (shown(gpu_result(), 100), page.markdown(gpu_result())):
        assert page.ON_A_CPU not in text


def test_the_settings_that_running_chose_are_told() -> None:
    chosen = msgspec.structs.replace(
        measured("decoder", "amp-bf16"), settings={"workers": 4, "batch": 64}
    )
    best = msgspec.structs.replace(gain("amp-bf16", 2.1, 2.0, 2.2), measured=chosen)
    workload = msgspec.structs.replace(decoder(), best=("amp-bf16",), best_gain=best)
    assert "settings  batch = 64, workers = 4" in shown(with_workload(workload))
    assert "- settings: batch = 64, workers = 4" in page.markdown(with_workload(workload))


def test_a_baseline_that_failed_and_a_bench_without_workloads_are_told() -> None:
    failed = Measured(config=config("cnn"), error="CUDA out of memory")
    workload = msgspec.structs.replace(
        decoder(), baseline=failed, alone=(), best=(), best_gain=None
    )
    assert "not measured: CUDA out of memory" in shown(with_workload(workload))
    nothing = msgspec.structs.replace(gpu_result(), workloads=())
    assert "no workload was measured" in shown(nothing)
    assert "No workload was measured." in page.markdown(nothing)
    ElementTree.fromstring(page.svg(nothing))


def test_no_gain_is_the_baseline_itself() -> None:
    workload = msgspec.structs.replace(decoder(), best=(), best_gain=None)
    text = shown(with_workload(workload), 100)
    assert "no technique was found to be faster than the baseline" in text


def test_what_is_equal_is_drawn_as_far_as_it_may_differ() -> None:
    """Its interval for the whole bench is wider, and no answer to what was asked."""
    close = msgspec.structs.replace(gain("a", 1.0, 0.5, 1.9, "same"), within=0.02)
    assert page.bar(close, 2.0, 10, page.PLAIN) == "====|"


def test_what_was_not_tried_is_told_by_its_reason() -> None:
    why = "this technique needs a GPU"
    alone = tuple(Gain(technique=name, verdict="not-here", why=why) for name in ("a", "b"))
    workload = msgspec.structs.replace(decoder(), alone=alone, best=(), best_gain=None)
    text = shown(with_workload(workload), 100)
    assert f"skipped   {why}: a, b" in text
    assert "not known: no technique could be measured" in text


def test_names_and_errors_from_outside_cannot_act() -> None:
    evil = "x\x1b[31m|<script>`@all`\n"
    failed = Gain(technique=evil, verdict="failed", why=evil)
    workload = msgspec.structs.replace(decoder(), alone=(failed,), ended=evil, shape=evil)
    result = msgspec.structs.replace(with_workload(workload), gpu=evil, notes=(evil,))
    assert "\x1b" not in shown(result)
    html = MarkdownIt("commonmark").enable("table").render(page.markdown(result))
    assert "<script>" not in html
    root = ElementTree.fromstring(page.svg(result))
    assert not root.findall(".//{http://www.w3.org/2000/svg}script")


def test_the_markdown_is_a_table_a_row_a_technique() -> None:
    html = MarkdownIt("commonmark").enable("table").render(page.markdown(gpu_result()))
    tried = [outcome for outcome in decoder().alone if outcome.verdict != "not-here"]
    assert html.count("<tr>") == 1 + len(tried) + 1
    assert "skipped: needs a GPU with capability 8.9 or newer: fp8" in html


@pytest.mark.parametrize(
    ("ratio", "low", "high", "drawn"),
    [
        (2.0, 2.0, 2.0, "====|====="),
        (1.0, 0.8, 1.2, "====|-"),
        (0.4, 0.4, 0.4, "==  |"),
    ],
)
def test_a_bar_marks_the_baseline_and_the_interval(
    ratio: float, low: float, high: float, drawn: str
) -> None:
    assert page.bar(gain("a", ratio, low, high), 2.0, 10, page.PLAIN) == drawn


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(2.5, "2.50 s"), (0.0412, "41.2 ms"), (0.4, "400 ms"), (3.2e-5, "32.0 us"), (0.0, "0.00 us")],
)
def test_durations_keep_the_figures_that_count(seconds: float, text: str) -> None:
    assert page.duration(seconds) == text


# --- JSON -------------------------------------------------------------------------------------

KEYS = {
    "": "schema cudadoctor date device torch python cpu minutes workloads gpu capability driver"
    " cuda cores seconds complete notes method",
    "workloads": "name samples_unit baseline bottleneck alone best best_gain noise combined ended"
    " shape unproven conditions",
    "baseline": "config rounds steps samples_a_step peak_bytes driver_bytes compile_s losses error"
    " loader_wait_s device_s settings processes",
    "config": "workload techniques",
    "bottleneck": "kind why figures",
    "alone": "technique verdict why ratio low high memory_ratio measured within pairs",
}
"""The contract of `bench --json`, schema 1: fields may be added, none change or go."""


def test_the_document_has_its_keys_and_is_read_again() -> None:
    text = results.dumps(gpu_result())
    document = json.loads(text)
    workload = document["workloads"][0]
    objects = {
        "": document,
        "workloads": workload,
        "baseline": workload["baseline"],
        "config": workload["baseline"]["config"],
        "bottleneck": workload["bottleneck"],
        "alone": workload["alone"][0],
    }
    for name, keys in KEYS.items():
        assert set(keys.split()) <= set(objects[name]), name
    assert document["schema"] == 1
    assert loads(text) == gpu_result()


# --- charts -----------------------------------------------------------------------------------

SVG = "{http://www.w3.org/2000/svg}"


def test_the_chart_can_be_read_by_those_who_do_not_see_it() -> None:
    root = ElementTree.fromstring(page.svg(gpu_result()))
    assert root.get("role") == "img"
    title, described = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert title is not None and title.text == "cudadoctor bench: NVIDIA GeForce RTX 4090"
    assert described is not None and described.text is not None
    assert root.get("aria-labelledby") == f"{title.get('id')} {described.get('id')}"
    spoken = " ".join(described.text.split())
    for outcome in decoder().alone:
        if outcome.verdict != "not-here":
            assert page.verdict(outcome) in spoken


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return sum(share * value for share, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(colour: str, other: str) -> float:
    high, low = sorted((luminance(colour), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_words_and_bars_stand_out() -> None:
    for paint in page.PAINTS.values():
        assert contrast(paint, "#ffffff") >= 4.5
    paints = set(re.findall(r"r\d+ { fill: (#[0-9a-f]{6})", page.svg(gpu_result())))
    assert len(paints) >= 5
    for paint in paints:
        assert contrast(paint, "#292929") >= 3


def test_a_chart_asks_no_server() -> None:
    assert "url(" not in re.sub(r"url\(#bench-line-\d+\)", "", page.svg(gpu_result()))


def long_result() -> BenchResult:
    why = "needs a GPU with " + "a great many features that this one lacks, " * 9
    alone = (
        gain("activation-checkpointing", 9.0, 8.0, 10.0),
        Gain(technique="W" * 60, verdict="not-here", why=why),
    )
    workload = msgspec.structs.replace(decoder(), alone=alone)
    return msgspec.structs.replace(
        with_workload(workload), gpu="NVIDIA " + "X" * 200, notes=(why, "w" * 400)
    )


@pytest.mark.parametrize("result", [gpu_result(), cpu_result(), long_result()])
def test_no_text_leaves_the_chart_and_none_runs_into_another(result: BenchResult) -> None:
    root = ElementTree.fromstring(page.svg(result))
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    spans: dict[str, list[tuple[float, float]]] = {}
    for text in root.iter(f"{SVG}text"):
        left, y = float(text.get("x", 0)), text.get("y", "0")
        assert float(y) < height
        spans.setdefault(y, []).append((left, left + float(text.get("textLength", 0))))
    for line in spans.values():
        ordered = sorted(line)
        assert ordered[0][0] >= 0 and ordered[-1][1] <= width
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(ordered))


def test_a_png_shows_the_same_lines() -> None:
    image = pytest.importorskip("PIL.Image", reason="the extra chart is not installed")
    import io

    with image.open(io.BytesIO(page.png(gpu_result()))) as opened:
        assert opened.format == "PNG"
        colours = {colour for _, colour in opened.convert("RGB").getcolors(1 << 20)}
    for paint in ("green", "yellow", "dim"):
        text = page.PAINTS[paint]
        assert tuple(int(text[place : place + 2], 16) for place in (1, 3, 5)) in colours


def test_the_report_is_told_in_spanish_but_for_what_is_copied() -> None:
    layout = page.Layout(width=100, say=language("es"))
    text = "\n".join(line.text for line in page.report(gpu_result(), layout))
    for words in (
        "capacidad",
        "por paso",
        "más rápido",
        "igual con un margen",
        "sin decidir",
        "los procesos",
    ):
        assert words in text
    for words in (
        "per step",
        "faster",
        "equal within",
        "not decided",
        "clock",
        "measured",
        "baseline",
    ):
        assert words not in text
    assert "capacidad" in page.markdown(gpu_result(), language("es"))
