"""How busy the machine is: what is read before and after, and what is said about it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from recorded_host import RecordedHost

from cudadoctor.bench import conditions
from cudadoctor.bench.results import Conditions
from cudadoctor.host.local import Answer


class Ticking(RecordedHost):
    """A host whose /proc/stat moves on each time that it is read."""

    def __init__(self, ticks: list[str], **files: str) -> None:
        super().__init__(
            files={f"/{name.replace('__', '/')}": text for name, text in files.items()}
        )
        self.ticks: Iterator[str] = iter(ticks)

    def read(self, path: str, limit: int = 1 << 20, offset: int = 0) -> Answer:
        if path == "/proc/stat":
            self.files[path] = next(self.ticks)
        return super().read(path, limit, offset)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, "LOOK_S", 0.0)


def test_what_others_use_is_seen_before_it_begins() -> None:
    """Of 200 ticks in between 60 were idle and 20 waited for a disk."""
    host = Ticking(
        ["cpu  100 0 0 800 100 0 0 0 0 0\n", "cpu  200 0 20 860 120 0 0 0 0 0\n"],
        proc__loadavg="1.52 0.80 0.40 3/200 999\n",
    )
    found = conditions.before(host, 8, 8)
    assert (found.busy, found.load, found.quota_cores) == (0.6, 1.52, None)


def test_a_quota_below_the_cores_is_seen() -> None:
    host = Ticking(["", ""])
    found = conditions.before(host, 64, 4)
    assert (found.busy, found.quota_cores) == (None, 4)
    (said,) = conditions.warnings(found, gpu=False, cores=64)
    assert "4 of 64 cores" in said and "OMP_NUM_THREADS=4" in said


@pytest.mark.parametrize(
    ("busy", "gpu", "cores", "warned"),
    [
        (0.1, False, 2, False),
        (0.5, False, 2, True),
        (0.5, False, 64, True),
        (0.5, True, 64, False),  # enough is left to feed a GPU
        (0.5, True, 2, True),
        (0.0, True, 1, False),
    ],
)
def test_a_machine_that_is_too_busy_is_told(
    busy: float, gpu: bool, cores: int, warned: bool
) -> None:
    said = conditions.warnings(Conditions(busy=busy), gpu=gpu, cores=cores)
    assert bool(said) is warned


def test_what_stopped_or_slowed_the_rounds_is_kept_and_told() -> None:
    host = RecordedHost(
        files={
            "/proc/self/cgroup": "0::/\n",
            "/sys/fs/cgroup/cpu.stat": "usage_usec 5\nnr_throttled 130\n",
        }
    )
    rounds = [
        {"clock_mhz": 1980, "power_mw": 690_400, "throttle": 0x4},
        {"clock_mhz": 1410, "power_mw": 300_000, "throttle": 0x1},
        {},
    ]
    found = conditions.after(Conditions(), 10, host, rounds)
    assert found == Conditions(
        throttled=120, clock_mhz=(1410, 1980), power_w=(300, 690), throttle=("power cap",)
    )
    said = conditions.warnings(found, gpu=True, cores=8)
    assert ["120 periods" in said[0], "power cap" in said[1]] == [True, True]


def test_what_was_never_slowed_is_no_sentence() -> None:
    found = conditions.after(Conditions(busy=0.0), None, RecordedHost(), [])
    assert found == Conditions(busy=0.0)
    assert conditions.warnings(found, gpu=True, cores=8) == []
