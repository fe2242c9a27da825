"""The stage of CUDA graphs, with a recorder of the CPU's operations in place of a GPU's."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import cudadoctor.smoke
from cudadoctor.smoke.inside.wire import BOOT

pytestmark = pytest.mark.torch

INSIDE = Path(cudadoctor.smoke.__file__).parent / "inside"
RECORDER = """
import contextlib, torch
from torch.utils._python_dispatch import TorchDispatchMode

class Recorder(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = []
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.calls.append((function, args, kwargs or {}, result))
        return result

class CUDAGraph:
    def replay(self):
        with torch._C._AutoDispatchBelowAutograd():
            for function, args, kwargs, old in self.recorder.calls:
                new = function(*args, **kwargs)
                news, olds = [x if isinstance(x, (list, tuple)) else [x] for x in (new, old)]
                for to, made in zip(olds, news):
                    if isinstance(to, torch.Tensor) and to.data_ptr() != made.data_ptr():
                        to.copy_(made)

@contextlib.contextmanager
def recorded(graph):
    # A recording computes nothing that lasts.
    kept = [(x, x.clone()) for x in held()]
    graph.recorder = Recorder()
    with graph.recorder:
        yield
    with torch.no_grad():
        for tensor, before in kept:
            tensor.copy_(before)

def held():
    import gc
    with torch.no_grad():
        kinds = torch.Tensor, torch.nn.Parameter
        return [x.detach() for x in gc.get_objects() if type(x) in kinds]

class Stream:
    def wait_stream(self, other): pass

torch.cuda.CUDAGraph, torch.cuda.graph = CUDAGraph, recorded
torch.cuda.Stream, torch.cuda.current_stream = Stream, Stream
torch.cuda.stream = lambda side: contextlib.nullcontext()
"""
TRY = """
from cudadoctor_inside import spec, stages
place = stages.Place(spec.Task([]), spec.Spec([]))
place.gpu = True
try:
    print("passed", stages.cuda_graph(place))
except stages.Verdict as problem:
    print(problem.status, problem)
"""
BREAKAGES = {
    "sound": ("passed", ""),
    "a replay that does nothing": ("failed", "CUDAGraph.replay = lambda self: None"),
    "a replay that reads the recorded batch only": (
        "failed",
        """
of = torch.Tensor.copy_
torch.Tensor.copy_ = lambda self, other, *more: self if self.shape[:1] == (16,) else of(self, other)
""",
    ),
    "a replay that loses an operation": (
        "failed",
        """
of = CUDAGraph.replay
def replay(self):
    self.recorder.calls = [call for call in self.recorder.calls if "sub_" not in str(call[0])]
    of(self)
CUDAGraph.replay = replay
""",
    ),
    "a torch without graphs": ("skipped", "del torch.cuda.CUDAGraph"),
}


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_replayed_steps_are_compared_with_eager_steps(python_cpu: str, breakage: str) -> None:
    status, lines = BREAKAGES[breakage]
    boot = BOOT.replace("from cudadoctor_inside import entry\nentry.main(sys.argv[2:])\n", "")
    program = "\n".join((boot, RECORDER, lines, TRY))
    done = subprocess.run(
        [python_cpu, "-c", program, str(INSIDE)], capture_output=True, text=True, check=False
    )
    assert done.stdout.split(" ")[0] == status, done
    if status == "failed":
        assert "replayed steps differ from eager steps" in done.stdout
