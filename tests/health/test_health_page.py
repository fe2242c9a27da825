"""How it reads: the answer first, and nothing claimed that was not compared."""

from __future__ import annotations

from test_health_judging import figure, gpu

from cudadoctor import knowledge
from cudadoctor.health import judging, page
from cudadoctor.health.measured import read
from cudadoctor.model.machine import Json
from cudadoctor.render.terminal import Layout


def shown(*lines: Json) -> tuple[str, page.Health]:
    found, kb = read(lines), knowledge.load()
    anomalies = judging.judge(found, kb)
    health = page.Health(
        cudadoctor="1",
        date="2026-11-24T03:00:00",
        verdict=judging.verdict_of(found, anomalies),
        examined=None,
        driver="580.95.05",
        measured=found,
        anomalies=anomalies,
        unjudged=judging.unjudged(found, kb),
    )
    return "\n".join(line.text for line in page.report(health, Layout())), health


def test_the_answer_of_sound_gpus() -> None:
    one = shown(gpu(0), figure(0, 250))[0]
    assert one.startswith("✓ The GPU is healthy: expected speed")
    many = shown(gpu(0), gpu(1), figure(0, 250), figure(1, 250))[0]
    assert many.startswith("✓ All 2 GPUs are healthy: same speed")


def test_a_speed_that_nothing_was_compared_with_is_not_praised() -> None:
    text, health = shown(gpu(0, name="a newer board"), figure(0, 250))
    assert health.unjudged == (0,)
    assert text.startswith("✓ GPUs measured: 1. Repeatable results")
    assert "its speed was not judged" in text
    text, health = shown(gpu(0), figure(0, 250, load={"clock_mhz": None}))
    assert health.unjudged == (0,)


def test_escape_codes_of_a_name_are_shown_and_not_obeyed() -> None:
    text, _ = shown(gpu(0, name="\x1b[31mGPU"), figure(0, 250))
    assert "\x1b" not in text


def test_what_is_shared_holds_no_uuid_and_the_metrics_are_escaped() -> None:
    _, health = shown(gpu(0, uuid="GPU-1", name='a "b\\c'), figure(0, 250))
    assert "GPU-1" not in str(page.document(health))
    text = page.prometheus(health, 5.0)
    assert 'uuid="GPU-1",name="a \\"b\\\\c",dtype="bf16"} 2.5e+14' in text
    assert "cudadoctor_measured_timestamp_seconds 5\n" in text


def test_many_gpus_have_no_matrix() -> None:
    lines = [gpu(index) for index in range(9)]
    lines += [figure(0, 20.0, "p2p", peer=1), figure(1, 30.0, "p2p", peer=0)]
    assert "(from row to column): 20.0 - 30.0" in shown(*lines)[0]
