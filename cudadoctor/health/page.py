"""What was measured of the GPUs, as it is read: on a terminal, as JSON, by Prometheus. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from msgspec import Struct, to_builtins

from cudadoctor.health.judging import MEASURED
from cudadoctor.health.measured import Anomaly, Board, Measurements, Speed, Verdict
from cudadoctor.model.machine import Json, OptStr
from cudadoctor.render import inert
from cudadoctor.render.prometheus import Labels, Sample, exposition
from cudadoctor.render.terminal import Layout, Line

MOST_PAIRED = 8
"""GPUs whose copies to each other fit a table of 80 columns."""
_SIGNS = {"healthy": ("✓", "ok"), "warnings": ("!", "warning"), "broken": ("✗", "error")}
_STYLE = {"healthy": "bold green", "warnings": "bold yellow", "broken": "bold red"}


class Health(Struct, frozen=True, kw_only=True):
    """A whole measurement, judged. date: ISO 8601. examined: the interpreter. unjudged: GPUs whose
    speed could be compared with nothing.
    """

    cudadoctor: str
    date: str
    verdict: Verdict
    examined: OptStr
    driver: OptStr
    measured: Measurements
    anomalies: tuple[Anomaly, ...]
    unjudged: tuple[int, ...] = ()


# --- JSON ---------------------------------------------------------------------------------------


def document(health: Health) -> Json:
    """Schema 1: plain data, without the GPUs' UUIDs, so that it can be shown to anybody."""
    measured: Json = to_builtins(health.measured)
    for board in measured["boards"]:
        board.pop("uuid", None)
    gpus = measured.pop("boards")
    about = {"schema": 1, "cudadoctor": health.cudadoctor, "date": health.date}
    about |= {"verdict": health.verdict, "examined": health.examined, "driver": health.driver}
    about |= {"unjudged": list(health.unjudged)}
    return {**about, "anomalies": to_builtins(health.anomalies), "gpus": gpus, **measured}


# --- terminal -----------------------------------------------------------------------------------


def report(health: Health, layout: Layout) -> list[Line]:
    """The answer, what is wrong, and the figures."""
    measured, say = health.measured, layout.say
    sign, word = _SIGNS.get(health.verdict, ("?", "?"))
    sign = sign if layout.signs else say(word)
    style = _STYLE.get(health.verdict, "bold")
    lines = [Line(spans=((f"{sign} {_answer(health, layout)}", style),))]
    for anomaly in health.anomalies:
        label = say(anomaly.severity) + ": "
        text = inert(say.spoken(anomaly.text))
        lines += _wrapped(f"{label}{text[:1].upper()}{text[1:]}.", layout.width, "  ")
    for index, why in measured.skipped:
        told = say("GPU {gpu} is not used: {why}", gpu=index, why=say.spoken(why))
        lines += _wrapped(inert(told), layout.width, "  ")
    for index in health.unjudged:
        told = say(
            "GPU {gpu}: its speed was not judged: no equal GPU here, and no data sheet or clock",
            gpu=index,
        )
        lines += _wrapped(told, layout.width, "  ")
    if not measured.boards:
        return lines
    lines += [_plain("")] + [_plain(inert(text)) for text in _table(measured, layout)]
    lines += [_plain(text) for text in _pairs(measured, layout)]
    lines += [_plain(text) for text in _reduced(measured, layout)]
    about: list[object] = [f"torch {measured.torch}", measured.cuda and f"CUDA {measured.cuda}"]
    about += [health.driver and f"driver {health.driver}", f"cudadoctor {health.cudadoctor}"]
    about += [health.date[:10], measured.seconds and f"{measured.seconds:.0f} s"]
    joined = " · " if layout.signs else " - "
    return [*lines, _plain(""), _plain("  " + inert(joined.join(map(str, filter(None, about)))))]


def _plain(text: str) -> Line:
    return Line(spans=((text, ""),))


def _wrapped(text: str, width: int, indent: str) -> list[Line]:
    found = textwrap.wrap(text, max(width, 20), initial_indent=indent, subsequent_indent=indent * 2)
    return list(map(_plain, found))


def _answer(health: Health, layout: Layout) -> str:
    measured, say = health.measured, layout.say
    if not measured.boards:
        why = say.spoken(measured.error) or say("all GPUs are in use")
        return say("No GPU was measured: {why}", why=inert(" ".join(why.split())))
    if measured.pretended:
        return say("Measured on a CPU that plays GPUs; this says nothing about a GPU.")
    count = len(measured.boards)
    numbers = {"errors": 0, "warnings": 0}
    for anomaly in health.anomalies:
        numbers[f"{anomaly.severity}s"] += 1
    if health.anomalies:
        return say(
            "GPUs measured: {count}. Errors: {errors}. Warnings: {warnings}.",
            count=count,
            **numbers,
        )
    if health.verdict == "undecided":
        return say("GPUs measured: {count}, but not completely.", count=count)
    if health.unjudged:
        return say("GPUs measured: {count}. Repeatable results, no new errors.", count=count)
    if count == 1:
        return say("The GPU is healthy: expected speed, repeatable results, no new errors.")
    return say(
        "All {count} GPUs are healthy: same speed, same results, no new errors.", count=count
    )


def _table(measured: Measurements, layout: Layout) -> Iterator[str]:
    """A line for each GPU: TFLOP/s of products, GB/s of copies, and NVML's words meanwhile."""
    names = [dtype or what for what, dtype in MEASURED]
    heads = "".join(f"{name:>7}" for name in names)
    yield f"  GPU {heads}   MHz    W  {'°C' if layout.signs else ' C'}"
    last = ""
    for board in measured.boards:
        if board.name != last:
            last = board.name
            yield f"  {board.name} ({board.sms} SM)"
        cells = [measured.speed(board.index, what, dtype) for what, dtype in MEASURED]
        figures = "".join(f"{_number(cell):>7}" for cell in cells)
        yield f"  {board.index:>3} {figures}{_load(cells)}"
    yield "  " + layout.say("products in TFLOP/s; copies in GB/s (h2d, d2h: one GPU at a time)")


def _number(speed: Speed | None) -> str:
    if speed is None:
        return "-"
    value = speed.value
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def _load(cells: list[Speed | None]) -> str:
    """Of the product of the narrowest type: it draws the most power."""
    load = next((cell.load for cell in reversed(cells) if cell and cell.what == "gemm"), None)
    if load is None:
        return ""
    watts = None if load.power_mw is None else round(load.power_mw / 1e3)
    values = (load.clock_mhz, watts, load.temperature_c)
    told = ["-" if value is None else str(value) for value in values]
    return f"{told[0]:>6}{told[1]:>5}{told[2]:>4}"


def _pairs(measured: Measurements, layout: Layout) -> Iterator[str]:
    between = {
        (speed.gpu, speed.peer): speed.value for speed in measured.speeds if speed.what == "p2p"
    }
    if not between:
        return
    yield ""
    low, high = min(between.values()), max(between.values())
    title = layout.say("copies between GPUs in GB/s (from row to column)")
    indexes = [board.index for board in measured.boards]
    if len(indexes) > MOST_PAIRED:
        yield f"  {title}: {low:.1f} - {high:.1f}"
        return
    yield f"  {title}"
    yield "      " + "".join(f"{index:>7}" for index in indexes)
    for row in indexes:
        cells = [
            "-" if row == column else f"{between.get((row, column), 0):.1f}" for column in indexes
        ]
        yield f"  {row:>3} " + "".join(f"{cell:>7}" for cell in cells)


def _reduced(measured: Measurements, layout: Layout) -> Iterator[str]:
    sums = [speed for speed in measured.speeds if speed.what == "allreduce"]
    if not sums:
        return
    sizes = sorted({speed.size or 0 for speed in sums})
    yield ""
    yield "  " + layout.say("all-reduce over all GPUs, bus bandwidth in GB/s by size")
    yield "      " + "".join(f"{_size(size):>8}" for size in sizes)
    for nvls in (True, False):
        row = {speed.size: speed.value for speed in sums if speed.nvls is nvls}
        if row:
            cells = [f"{row[size]:.3g}" if size in row else "-" for size in sizes]
            name = "" if nvls else layout.say("without NVLS")
            yield "      " + "".join(f"{cell:>8}" for cell in cells) + (name and f"  {name}")


def _size(size: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit}{name}"
    return f"{size}B"


# --- Prometheus ---------------------------------------------------------------------------------

_HELP = {
    "gemm_flops": "Floating-point operations a second of a large product",
    "copy_bytes_per_second": "Copy inside a GPU (copy), from the host (h2d) and to it (d2h)",
    "p2p_bytes_per_second": "Copy from one GPU to another",
    "allreduce_bus_bytes_per_second": "Bus bandwidth of an all-reduce over all GPUs",
    "sm_clock_hertz": "Median SM clock while the GPU multiplied",
    "power_watts": "Median power while the GPU multiplied",
    "temperature_celsius": "Median temperature while the GPU multiplied",
    "anomalies": "Number of anomalies by severity",
    "measured_timestamp_seconds": "When it was measured",
}


def prometheus(health: Health, timestamp_s: float) -> str:
    """The text format of Prometheus, for the textfile collector of its node exporter."""
    boards = {board.index: board for board in health.measured.boards}
    rows: dict[str, list[Sample]] = {name: [] for name in _HELP}
    for speed in health.measured.speeds:
        name, labels = _metric(speed)
        rows[name].append((_of_gpu(boards.get(speed.gpu)) | labels, speed.value * _scale(speed)))
        load = speed.load
        if speed.what == "gemm":
            labels = _of_gpu(boards.get(speed.gpu)) | labels
            loads = {"sm_clock_hertz": (load.clock_mhz, 1e6), "power_watts": (load.power_mw, 1e-3)}
            loads["temperature_celsius"] = (load.temperature_c, 1.0)
            for metric, (value, unit) in loads.items():
                if value is not None:
                    rows[metric].append((labels, value * unit))
    for severity in ("error", "warning"):
        count = sum(anomaly.severity == severity for anomaly in health.anomalies)
        rows["anomalies"].append(({"severity": severity}, count))
    rows["measured_timestamp_seconds"].append(({}, timestamp_s))
    return exposition(_HELP, rows)


def _metric(speed: Speed) -> tuple[str, Labels]:
    if speed.what == "gemm":
        return "gemm_flops", {"dtype": speed.dtype}
    if speed.what == "p2p":
        return "p2p_bytes_per_second", {"peer": speed.peer}
    if speed.what == "allreduce":
        nvls = str(speed.nvls).lower()
        return "allreduce_bus_bytes_per_second", {"size": speed.size, "nvls": nvls}
    return "copy_bytes_per_second", {"kind": speed.what, "together": str(speed.together).lower()}


def _scale(speed: Speed) -> float:
    return 1e12 if speed.what == "gemm" else 1e9


def _of_gpu(board: Board | None) -> Labels:
    if board is None:
        return {}
    return {"gpu": board.index, "uuid": board.uuid or "", "name": board.name}
