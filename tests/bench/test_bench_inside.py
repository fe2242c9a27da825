"""The pieces that run in the examined interpreter: room, ends, what is told, what old torch lacks.

No GPU here: what only CUDA does is seen through what is asked of torch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cudadoctor.bench.stable import Stable
from cudadoctor.smoke import INSIDE
from cudadoctor.smoke.inside.wire import BOOT

CNN = {"image": 16, "width": 8, "blocks": [1, 1], "classes": 4, "batch": 8, "samples": 64}
TEXT = {"length": 32, "width": 32, "heads": 2, "layers": 1, "vocabulary": 100, "batch": 4}
TEXT = {**TEXT, "samples": 64}
MB = 1_000_000
TRAINING = (
    "measuring, room, training, workloads\n"
    "from cudadoctor_inside.workloads import Order\nimport torch"
)
BEGIN = """\
import sys, json
home = type(sys)("cudadoctor_inside")
home.__path__ = [sys.argv[1]]
sys.modules["cudadoctor_inside"] = home
from cudadoctor_inside import %s
def order(workload, shape, **more):
    return Order(dict({"id": 1, "workload": workload, "shape": shape}, **more))
"""


def inside(python: str, names: str, code: str, **env: str) -> Any:
    """What a piece of code prints as JSON, in that interpreter, beside the bench's own scripts."""
    whole = BEGIN % names + code
    found = subprocess.run(
        (python, "-c", whole, str(INSIDE)),
        capture_output=True,
        text=True,
        timeout=90,
        env={**os.environ, "OMP_NUM_THREADS": "1", **env},
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


SERVED = """
import os
for line in sys.stdin:
    asked = json.loads(line)
    child = os.fork()
    if not child:
        os.environ.update(asked["env"])
        try:
            exec(asked["code"], globals())
        except BaseException as error:
            print(json.dumps({"raised": repr(error)}))
        finally:
            sys.stdout.flush()
            os._exit(0)
    os.waitpid(child, 0)
"""
Asking = Callable[..., Any]


@pytest.fixture(scope="module")
def trained(python_cpu: str) -> Iterator[Asking]:
    """Asks what `inside` asks, in forks of one interpreter that has imported torch."""
    argv = (python_cpu, "-c", BEGIN % TRAINING + SERVED, str(INSIDE))
    with subprocess.Popen(
        argv, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        asking, answers = server.stdin, server.stdout

        def ask(code: str, **env: str) -> Any:
            asking.write(json.dumps({"code": code, "env": env}) + "\n")
            asking.flush()
            found = json.loads(answers.readline())
            assert not (isinstance(found, dict) and "raised" in found), found
            return found

        yield ask
        asking.close()


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", **more}


# --- workers of a loader, and the room for their batches ------------------------------------------


ROOM = [
    ((8, 19 * MB, 16_000 * MB, 64_000 * MB), 8),
    ((8, 19 * MB, 16 * MB, 64_000 * MB), 0),
    ((8, 19 * MB, 160 * MB, 64_000 * MB), 3),
    ((8, 1 * MB, 16 * MB, 64_000 * MB), 7),
    ((8, 500 * MB, None, 16_000 * MB), 3),
    ((8, 500 * MB, 16_000 * MB, 2_000 * MB), 0),
    ((8, 500 * MB, None, 0), 8),
    ((0, 500 * MB, 1 * MB, 1 * MB), 0),
    ((8, 500 * MB, 16 * MB, 64_000 * MB), 0),
    ((8, 500 * MB, 64_000 * MB, 1_000 * MB), 0),
]
"""Asked, bytes of a batch, of /dev/shm and of memory; workers."""


def test_workers_are_as_many_as_their_batches_have_room(trained: Asking) -> None:
    asked = [numbers for numbers, _ in ROOM]
    code = f"print(json.dumps([training.workers_that_fit(*one) for one in {asked!r}]))"
    found = trained(code)
    assert [workers for workers, _ in found] == [workers for _, workers in ROOM]
    for (wanted, *_), (workers, why) in zip(asked, found, strict=True):
        assert bool(why) is (wanted > 0 and workers == 0)
    assert (
        found[1][1]
        == "/dev/shm does not have enough space for workers that prepare 19.0 MB batches"
    )
    assert found[-1][1].startswith("memory does not have enough space")


NVML = """
def nvmlInit(): pass
def nvmlDeviceGetHandleByPciBusId(bus): return bus.decode()
def nvmlDeviceGetClockInfo(gpu, kind): return 1410
def nvmlDeviceGetPowerUsage(gpu): return 300000 if gpu == "0000:3b:00.0" else 0
def nvmlDeviceGetCurrentClocksThrottleReasons(gpu): return 4
"""


def test_clocks_of_the_rounds_are_those_of_the_gpu_that_trains(
    trained: Asking, tmp_path: Path
) -> None:
    """By its address, since NVML counts otherwise; what this NVML lacks is left out."""
    (tmp_path / "pynvml.py").write_text(NVML)
    code = f"""
from cudadoctor_inside import looks
usual, looks.device = looks.device, lambda index: {{"bus_id": "0000:3b:00.0"}}
asked = order("cnn", {{}}, device="cuda:1", nvml={str(tmp_path)!r})
gpu = measuring._watched(asked)
looks.device = usual
on_a_cpu = measuring._watched(order("cnn", {{}}, nvml={str(tmp_path)!r}))
without = measuring._watched(order("cnn", {{}}, device="cuda:1", nvml="/nowhere"))
print(json.dumps([gpu.index, gpu.sample(), on_a_cpu, without]))
"""
    live = {"clock_mhz": 1410, "power_mw": 300_000, "throttle": 4}
    assert trained(code) == [1, live, None, None]


def test_a_container_has_no_more_memory_than_its_limit(trained: Asking, tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
folder = Path({str(tmp_path)!r})
most, used = folder / "memory.max", folder / "memory.current"
found = []
def look():
    found.append(room.allowed_bytes([(str(most), str(used), "inactive_file")]))
look()
most.write_text("max\\n")
used.write_text("3000\\n")
look()
most.write_text("4000\\n")
look()
(folder / "memory.stat").write_text("anon 2500\\ninactive_file 400\\n")
look()
print(json.dumps(found))
"""
    assert trained(code) == [None, None, 1000, 1400]


def test_a_batch_is_as_large_as_it_is_told(trained: Asking) -> None:
    code = f"""
found = []
for workload, shape in (("cnn", {CNN!r}), ("encoder", {TEXT!r}), ("decoder", {TEXT!r})):
    batch = training.Feed(order(workload, shape)).next()
    size = sum(one.numel() * one.element_size() for one in batch)
    found.append([size, training.batch_bytes(order(workload, shape))])
print(json.dumps(found))
"""
    found = trained(code)
    for size, counted in found:
        assert size <= counted <= 1.1 * size


# --- how processes end ---------------------------------------------------------------------------


def children(pid: int) -> set[int]:
    """Of a process and of theirs."""
    found: set[int] = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid:
            found |= {int(folder.name)} | children(int(folder.name))
    return found


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def with_workers(stable: Stable) -> tuple[int, set[int]]:
    """A runner that is ready, and the worker processes of its loader."""
    settings = {"workers": 2}
    number = stable.start(what="train", workload="cnn", shape=CNN, settings=settings, warm_s=0.2)
    line = stable.hear(number, 90.0) or {}
    assert (line["kind"], line["workers"], line["why_no_workers"]) == ("ready", 2, "")
    assert stable._common is not None
    assert stable._common._process is not None
    runners = [child for child in children(stable._common._process.pid) if children(child)]
    return number, children(runners[0])


@pytest.fixture(scope="module")
def stable(python_cpu: str) -> Iterator[Stable]:
    """One torch, imported once; each runner is forked from it."""
    found = Stable(python_cpu, environment())
    yield found
    found.end()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="workers are forked on Linux")
def test_workers_are_gone_before_a_runner_says_that_it_is_done(stable: Stable) -> None:
    number, workers = with_workers(stable)
    assert len(workers) == 2
    stable.send(number, "stop")
    assert (stable.hear(number, 20.0) or {})["kind"] == "done"
    assert not [pid for pid in workers if lives(pid)]
    assert (stable.hear(number, 20.0) or {}) == {"kind": "over", "id": number, "detail": ""}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="workers are forked on Linux")
def test_workers_end_with_a_runner_that_is_killed(stable: Stable) -> None:
    """Otherwise they would check for it every five seconds and hold the GPU's memory meanwhile."""
    number, workers = with_workers(stable)
    stable.kill(number)
    until = time.monotonic() + 3.0
    while any(map(lives, workers)) and time.monotonic() < until:
        time.sleep(0.02)
    assert not [pid for pid in workers if lives(pid)]


# --- before the forks ----------------------------------------------------------------------------

STAND_IN = {
    "__init__.py": "import os\n__version__ = os.environ['PYTORCH_NVML_BASED_CUDA_CHECK']\n",
    "utils/__init__.py": "",
    "utils/data.py": "",
    "cuda.py": "import torch\ntorch.cuda = __import__('sys').modules[__name__]\n"
    "def is_initialized(): return BEGUN\n",
}


def stand_in(tmp_path: Path, *, begun: bool) -> str:
    """A torch that tells how the environment was when it was imported, as its version."""
    for name, text in STAND_IN.items():
        path = tmp_path / "torch" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("BEGUN", str(begun)))
    (tmp_path / "torch" / "_dynamo.py").write_text("import torch.cuda\n")
    return str(tmp_path)


@pytest.mark.parametrize("before", [None, "0"])
def test_an_import_is_kept_from_beginning_cuda(before: str | None, tmp_path: Path) -> None:
    env = {"PYTHONPATH": stand_in(tmp_path, begun=False)}
    if before is not None:
        env["PYTORCH_NVML_BASED_CUDA_CHECK"] = before
    code = """
import os
error = entry._with_torch()
import torch
print(json.dumps([error, torch.__version__, os.environ.get(entry.BY_NVML)]))
"""
    assert inside(sys.executable, "entry", code, **env) == ["", "1", before]


@pytest.mark.parametrize(("how", "begun"), [("fork", True), ("one", False)])
def test_cuda_that_is_begun_all_the_same_is_told_before_any_fork(
    how: str, begun: bool, tmp_path: Path
) -> None:
    found = subprocess.run(
        (sys.executable, "-c", BOOT, str(INSIDE), how),
        input=b'{"id": 1, "do": "start", "what": "look"}\n' if begun else b"",
        capture_output=True,
        timeout=30,
        env=environment(PYTHONPATH=stand_in(tmp_path, begun=True)),
        check=False,
    )
    lines = [json.loads(line) for line in found.stdout.splitlines()]
    assert [(line["kind"], line["begun"]) for line in lines] == [("torch", begun)]


def test_where_cuda_is_begun_each_runner_gets_a_process(python_cpu: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "if open('/proc/self/cmdline').read().endswith('fork\\0'):\n"
        "    import torch\n"
        "    torch.cuda.is_initialized = lambda: True\n"
    )
    stable = Stable(python_cpu, environment(PYTHONPATH=str(tmp_path)), forks=True)
    try:
        assert (stable.hear(stable.start(what="look"), 90.0) or {})["kind"] == "look"
        assert stable.forks is False
        order = {"what": "train", "workload": "decoder", "shape": TEXT, "warm_s": 0.1}
        first, second = stable.start(**order), stable.start(**order)
        for number in (first, second):
            assert (stable.hear(number, 90.0) or {})["kind"] == "ready"
            stable.send(number, "stop")
            assert (stable.hear(number, 20.0) or {})["kind"] == "done"
    finally:
        stable.end()


def test_who_makes_its_images_itself_makes_fewer(stable: Stable, python_cpu: str) -> None:
    alone = Stable(python_cpu, environment(), forks=False)
    try:
        for one, samples in ((stable, 512), (alone, 256)):
            number = one.start(what="size", workload="cnn", tiers=["cpu"])
            assert (one.hear(number, 90.0) or {})["shape"]["samples"] == samples
    finally:
        alone.end()


# --- what is told of the machine -----------------------------------------------------------------


def test_compilers_and_variables_that_falsify_are_told(trained: Asking, tmp_path: Path) -> None:
    (tmp_path / "cc").symlink_to("/bin/true")
    env = {"PATH": str(tmp_path), "CUDA_LAUNCH_BLOCKING": "1", "NVIDIA_TF32_OVERRIDE": "1"}
    found = trained("\nprint(json.dumps(measuring.look()))\n", **env)
    assert (found["compiler"], found["c_compiler"]) == ("", str(tmp_path / "cc"))
    assert found["environment"] == ["CUDA_LAUNCH_BLOCKING=1"]


# --- what is asked of a GPU ----------------------------------------------------------------------


def test_the_largest_batch_is_sought_in_half_of_the_room(trained: Asking) -> None:
    """No GPU: torch is told how much is free, and that nothing fits."""
    code = f"""
import torch
asked = []
def full(): raise RuntimeError("CUDA out of memory")
torch.cuda._lazy_init = full
torch.cuda.set_device = torch.cuda.reset_peak_memory_stats = lambda *_: None
torch.cuda.mem_get_info = lambda _: (80, 100)
torch.cuda.set_per_process_memory_fraction = lambda part, _: asked.append(round(part, 3))
found = measuring.largest(order("encoder", {TEXT!r}, device="cuda:0"))
print(json.dumps([found, asked]))
"""
    found = trained(code)
    assert found == [1, [0.36, 0.72]]


def test_every_model_can_be_made_on_its_device(trained: Asking) -> None:
    code = f"""
import torch
places = set()
for workload, shape in (("cnn", {CNN!r}), ("encoder", {TEXT!r}), ("decoder", {TEXT!r})):
    with torch.device("meta"):
        model = workloads.build(workload, shape, order(workload, shape).settings)
    places |= {{str(one.device) for one in list(model.parameters()) + list(model.buffers())}}
print(json.dumps(sorted(places)))
"""
    assert trained(code) == ["meta"]


def test_a_scale_that_overflows_nowhere_leaves_out_no_step(trained: Asking) -> None:
    code = f"""
scales = []
for workload, shape in (("cnn", {CNN!r}), ("encoder", {TEXT!r}), ("decoder", {TEXT!r})):
    one = order(workload, shape, settings={{"amp": "float16"}})
    trained, feed = training.Training(one), training.Feed(one)
    for _ in range(6):
        trained.step(feed.next())
    scales.append(trained.scaler.get_scale())
print(json.dumps(scales))
"""
    assert trained(code) == [1024.0] * 3


def test_what_replays_keeps_the_peak_of_its_recording(trained: Asking) -> None:
    code = f"""
found = []
for mode in ("", "default", "reduce-overhead", "max-autotune"):
    one = order("decoder", {TEXT!r}, settings={{"compile": mode}})
    found.append(training.Training(one).replays)
print(json.dumps(found))
"""
    assert trained(code) == [False, False, True, True]


def test_a_torch_without_the_mark_of_a_step_needs_none(trained: Asking) -> None:
    code = """
import torch
del torch.compiler
training._mark_step()
print(json.dumps(sorted(training._this_thread_alone())))
"""
    assert trained(code) == ["capture_error_mode"]


def test_wide_models_take_small_steps(trained: Asking) -> None:
    """By the rate of narrow ones their losses jump, and bf16 seems to compute something else."""
    code = """
found = {}
for tier, shape in measuring.SHAPES["encoder"].items():
    model = torch.nn.Linear(2, 2)
    one = training._optimizer(order("encoder", shape), model)
    found[tier] = one.param_groups[0]["lr"]
print(json.dumps(found))
"""
    found = trained(code)
    assert (found["cpu"], found["tiny"]) == (3e-4, 3e-4)
    assert found["large"] < 2e-6 < found["small"] < 1e-4
