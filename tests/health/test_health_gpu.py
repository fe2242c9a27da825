"""The way of a real GPU through the measuring: NVML by its stand-in, torch.cuda's calls by the CPU.

What this cannot show: speeds, streams, and how NCCL and a driver really answer.
"""

from __future__ import annotations

import inspect
import subprocess
from pathlib import Path
from typing import Any

import pynvml
import pytest
from standin_fixtures import StandIns

from cudadoctor import knowledge
from cudadoctor.health.judging import judge, verdict_of
from cudadoctor.health.measured import Measurements, read, sound
from cudadoctor.probes.nvml import module_folder
from cudadoctor.probes.streamed import line_of
from cudadoctor.smoke import INSIDE

PLAYED = """\
import contextlib, sys, time, types
import torch

home = types.ModuleType("inside")
home.__path__ = [sys.argv[1]]
sys.modules["inside"] = home
from inside import health
from torch.cuda import nccl


class Event:
    def __init__(self, **_):
        pass

    def record(self):
        self.at = time.perf_counter()

    def query(self):
        return True

    def elapsed_time(self, other):
        return max(1e-3, 1e3 * (other.at - self.at))


board = dict(name="NVIDIA H100 80GB HBM3", multi_processor_count=132, major=9, minor=0)
cuda = torch.cuda
cuda.init = lambda: None
cuda.device_count = lambda: 2
cuda.Event = Event
cuda.device = lambda _: contextlib.nullcontext()
cuda.mem_get_info = lambda _: (1 << 26, 1 << 36)
cuda.synchronize = lambda _: None
cuda.get_device_properties = lambda _: types.SimpleNamespace(**board)
cuda.can_device_access_peer = lambda *_: True
torch.version.cuda = "13.0"
torch.Tensor.pin_memory = lambda self: self
nccl.all_reduce = health._summed
# Some processors need seconds for one product of bf16; here its speed is no matter.
torch.mm = lambda one, other, out: out.fill_(float(one[0, 0] * other[0, 0]))
begun = health.Gpu.__init__


def on_the_cpu(self, *given):
    begun(self, *given)
    self.device = "cpu"


health.Gpu.__init__ = on_the_cpu
health.looks.device = lambda index: {"index": index, "bus_id": "0000:%x:00.0" % (0xA0 + index)}
health.DTYPES, health.SIZES = ("fp32", "bf16"), (1 << 10,)
health.WINDOW_S = health.WARM_S = health.LINK_S = 0.01
health.run(sys.argv[2:], time.monotonic())
"""


def measured(standins: StandIns, python: str, scenario: str, *words: str) -> Measurements:
    env = standins.environment(f"count = 2\n{scenario}", standins.nvml())
    argv = [python, "-c", PLAYED, str(INSIDE), f"nvml={module_folder()}", *words]
    ran = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120, env=env)
    assert ran.returncode == 0, ran.stderr
    lines = [line_of(text) for text in ran.stdout.splitlines()]
    assert all(map(sound, lines))
    return read([line for line in lines if line])


@pytest.mark.torch
def test_nvml_is_asked_in_every_window(standins: StandIns, python_cpu: str) -> None:
    said = "sm_clock = 1500\npower = 690000\ntemperature = 71\ngpu1.throttle = 4\nnvlinks = 2"
    found = measured(standins, python_cpu, said)
    assert [board.bus_id for board in found.boards] == ["0000:a0:00.0", "0000:a1:00.0"]
    assert found.boards[0].uuid == "GPU-00000000-1111-2222-3333-444444444444"
    assert not found.troubles
    second = found.speed(1, "gemm", "bf16")
    assert second is not None
    load = second.load
    assert (load.clock_mhz, load.power_mw) == (1500, 690000)
    assert (load.temperature_c, load.throttle) == (71, 4)
    whats = {speed.what for speed in found.speeds}
    assert whats == {"gemm", "copy", "h2d", "d2h", "p2p", "allreduce"}
    assert found.before == found.after
    assert found.before[0]["nvlink-crc"] == 4
    assert {"ecc-uncorrected", "pcie-replays", "remap-failed"} <= found.before[0].keys()
    assert not found.damages
    assert found.seconds is not None


@pytest.mark.torch
def test_a_gpu_in_use_is_left_alone(standins: StandIns, python_cpu: str) -> None:
    found = measured(standins, python_cpu, "", "skip=0000:a0:00.0|0|the GPU is busy (99%)")
    assert [board.index for board in found.boards] == [1]
    assert found.skipped == ((0, "the GPU is busy (99%)"),)


@pytest.mark.torch
def test_a_driver_without_nvml_still_gives_figures(standins: StandIns, python_cpu: str) -> None:
    found = measured(standins, python_cpu, "nvmlInitWithFlags = 999\nnvmlInit_v2 = 999")
    assert [trouble.what for trouble in found.troubles] == ["nvml"]
    assert found.speed(0, "gemm", "fp32") is not None
    anomalies = judge(found, knowledge.load())
    assert "not-measured" in {anomaly.kind for anomaly in anomalies}
    assert verdict_of(found, anomalies) != "healthy"


def test_every_question_is_one_that_pynvml_knows() -> None:
    source = (Path(INSIDE) / "health.py").read_text(encoding="utf-8")
    tables: dict[str, Any] = {}
    for name in ("LIVE", "COUNTED"):
        text = source.partition(f"\n{name} = ")[2].partition("\n}")[0] + "\n}"
        tables |= eval(text)  # rows of literals
    for ways in tables.values():
        for name, *given in ways:
            function = inspect.unwrap(getattr(pynvml, f"nvmlDeviceGet{name}"))
            inspect.signature(function).bind("handle", *given)
