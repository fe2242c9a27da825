"""Runs the scripts of recipes/train as a person would, and with their technique switched off."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

TRAIN = Path(__file__).resolve().parents[2] / "recipes" / "train"
SCRIPTS = tuple(sorted(path.stem for path in TRAIN.glob("*.py") if path.stem != "proof"))
LIMIT_S = 240
OTHER_LOADER = """
import torch.utils.data as data
class Plain(data.DataLoader):
    def __init__(self, *args, **options):
        for name in ("num_workers", "persistent_workers", "prefetch_factor", "pin_memory"):
            options.pop(name, None)
        super().__init__(*args, **options)
data.DataLoader = Plain
"""
ATTENTION_BY_HAND = """
import math
def by_hand(q, k, v, is_causal=False, **options):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return (scores.masked_fill(later, -math.inf) if is_causal else scores).softmax(-1) @ v
torch.nn.functional.scaled_dot_product_attention = by_hand
"""
CAUSAL_ONLY = """
import torch.nn.attention.flex_attention as flex
made = flex.create_block_mask
flex.create_block_mask = lambda mask, *args, **options: made(
    lambda b, h, query, key: query >= key, *args, **options
)
"""
PLAIN_DDP = """
import torch.nn.parallel as parallel
class Plain(parallel.DistributedDataParallel):
    def __init__(self, model, **options):
        super().__init__(model, find_unused_parameters=True)
    def no_sync(self):
        return contextlib.nullcontext()
    def register_comm_hook(self, state, hook):
        pass
parallel.DistributedDataParallel = Plain
"""
PLAIN_LOSS = """
import torch.utils.data as data
plain = torch.nn.functional.cross_entropy
def without(scores, labels, weight=None, label_smoothing=0.0, **options):
    return plain(scores, labels, **options)
torch.nn.functional.cross_entropy = without
data.WeightedRandomSampler = lambda weights, count: data.RandomSampler(range(count))
"""
NO_8_BITS = """
with contextlib.suppress(ImportError):
    import bitsandbytes.optim
    bitsandbytes.optim.AdamW8bit = torch.optim.AdamW
"""
NO_FP8 = """
with contextlib.suppress(ImportError):
    import torchao.float8
    torchao.float8.convert_to_float8_training = lambda model, **options: model
"""
NO_MUON = """
if hasattr(torch.optim, "Muon"):
    torch.optim.Muon = lambda weights, lr, **options: torch.optim.AdamW(weights, lr=lr)
"""
SWITCHED_OFF: dict[str, str] = {
    "gpu_against_cpu": (
        "torch.nn.Module.to = torch.Tensor.to = lambda self, *args, **options: self"
    ),
    "inplace_and_init": "torch.nn.init.kaiming_normal_ = lambda tensor, *args, **options: tensor",
    "monitoring": (
        "import threading;"
        " threading.Thread.start = threading.Thread.join = lambda self, *args: None"
    ),
    "pruning": (
        "import torch.nn.utils.prune as prune;"
        " prune.global_unstructured = prune.custom_from_mask = lambda *args, **options: None"
    ),
    "transformer_freezing": "torch.nn.Module.requires_grad_ = lambda self, *args: self",
    "notebook_images": "torch.optim.Optimizer.load_state_dict = lambda *a, **k: None",
    "largest_batch": "import copy; copy.deepcopy = lambda x, *a: x",
    "profiling": "torch.profiler.profile = lambda **k: contextlib.nullcontext()",
    "one_cycle": (
        "import types; "
        "torch.optim.lr_scheduler.OneCycleLR = "
        "lambda *a, **k: types.SimpleNamespace(step=lambda: None)"
    ),
    "gradient_clipping": "torch.nn.utils.clip_grad_norm_ = lambda *a, **k: None",
    "gradient_accumulation": "torch.Tensor.split = lambda self, size, dim=0: (self,)",
    "fused_optimizers": (
        "init = torch.optim.AdamW.__init__; "
        "torch.optim.AdamW.__init__ = lambda self, *a, **k: init(self, *a, **{**k, 'fused': False})"
    ),
    "early_stopping": "torch.nn.Module.load_state_dict = lambda *a, **k: None",
    "channels_last": (
        "to = torch.nn.Module.to; "
        "torch.nn.Module.to = "
        "lambda self, *a, memory_format=None, **k: to(self, *a, **k) if a or k else self"
    ),
    "cached_data": "torch.Tensor.share_memory_ = lambda self: self",
    "activation_checkpointing": (
        "import torch.utils.checkpoint as c; c.checkpoint = lambda f, *a, **k: f(*a)"
    ),
    "amp_bf16": "torch.autocast = lambda *args, **options: contextlib.nullcontext()",
    "amp_fp16": "torch.autocast = lambda *args, **options: contextlib.nullcontext()",
    "attention": ATTENTION_BY_HAND,
    "augmentation": "torch.distributions.Beta.sample = lambda self, shape: torch.ones(shape)",
    "dataloader": OTHER_LOADER,
    "ddp": "torch.nn.parallel.DistributedDataParallel = lambda model, *args, **options: model",
    "ddp_options": PLAIN_DDP,
    "fp8": NO_FP8,
    "freezing": "torch.nn.Module.requires_grad_ = torch.nn.Module.eval = lambda self, *args: self",
    "fsdp2": (
        "import torch.distributed.fsdp as fsdp; fsdp.fully_shard = lambda model, **options: model"
    ),
    "linear_cross_entropy": (
        "f = torch.nn.functional; f.linear_cross_entropy = "
        "lambda x, w, y, **options: f.cross_entropy(x @ w.T, y)"
    ),
    "losses": PLAIN_LOSS,
    "low_bit_optimizers": NO_8_BITS,
    "muon": NO_MUON,
    "optimizers_compared": (
        "torch.optim.AdamW = lambda weights, lr: torch.optim.SGD(weights, lr=lr, momentum=0.9)"
    ),
    "regional_compile": "torch.nn.Module.compile = lambda self, **options: None",
    "selective_checkpointing": (
        "import torch.utils.checkpoint as c; c.checkpoint = lambda block, x, **options: block(x)"
    ),
    "sequence_packing": CAUSAL_ONLY,
    "smaller_model": ("torch.nn.functional.kl_div = lambda own, *args, **options: (0 * own).sum()"),
    "tf32": "torch.set_float32_matmul_precision = lambda name: None",
    "torch_compile": "torch.compile = lambda model, **options: model",
}
"""Recipe -> code that makes what its technique calls do nothing."""
OWN_CODE = ("lr_range_test", "sequence_length", "streaming_data", "synchronizations", "time_left")
"""Recipes whose technique calls no library: only --off switches them off."""
FOR_GPUS = ("cuda_graphs", "prefetch")
"""Recipes that are skipped on a CPU; tests/recipes/cuda_stand_in.py stands in for their GPU."""
UNTRIED = ("memory_snapshot",)
"""Recipes that need a real GPU and have not been run on one."""

RUNS = """
import builtins, contextlib, json, os, runpy, sys, traceback, warnings
import torch, torch._dynamo

def run(script, options, before):
    warnings.filterwarnings("error", category=FutureWarning)
    folder = os.path.dirname(script)
    sys.argv, sys.path[0] = [script, *options], folder
    try:
        exec(before, {"torch": torch, "contextlib": contextlib})
        runpy.run_path(script, run_name="__main__")
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else 2
    except BaseException:
        traceback.print_exc()
        return 70
    return 0

for script, options, before, out, err in json.load(sys.stdin):
    child = os.fork()
    if not child:
        for number, path in (1, out), (2, err):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), number)
        code = run(script, options, before)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
# Importing torch takes longer than most of these runs: one process imports it, each run is a fork.
QUIET = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1"}
# The tests share few cores with other tests: threads that wait for each other cost more.


class Asked(NamedTuple):
    """A run of a recipe. before: Python code that is executed first, in the same process."""

    script: str
    options: tuple[str, ...] = ()
    before: str = ""


class Ran(NamedTuple):
    """What a script left behind: its exit code, its lines on stdout and all of stderr."""

    code: int
    lines: tuple[str, ...]
    errors: str

    @property
    def last(self) -> str:
        return self.lines[-1] if self.lines else ""

    @property
    def verdict(self) -> str:
        """proved, not proved, skipped; anything else is no verdict."""
        return self.last.partition(":")[0]


def every_run(options: tuple[str, ...]) -> list[Asked]:
    """Each recipe as it is, with --off, and with what its technique calls switched off."""
    asked = [Asked(script, options) for script in SCRIPTS]
    asked += [Asked(script, (*options, "--off")) for script in SCRIPTS]
    return asked + [Asked(script, options, code) for script, code in SWITCHED_OFF.items()]


def ran_all(python: str, folder: Path, asked: Sequence[Asked]) -> dict[Asked, Ran]:
    """Run recipes one after the other, each in a fork of one process."""
    return dict(zip(asked, _runs(python, folder, asked), strict=True))


def _runs(python: str, folder: Path, asked: Sequence[Asked]) -> Iterator[Ran]:
    paths = [(str(folder / f"{n}.out"), str(folder / f"{n}.err")) for n in range(len(asked))]
    runs = [
        (str(TRAIN / f"{run.script}.py"), run.options, run.before, *to)
        for run, to in zip(asked, paths, strict=True)
    ]
    kept = {"TMPDIR": str(folder), "TORCHINDUCTOR_CACHE_DIR": str(folder), "HF_HOME": str(folder)}
    child = subprocess.run(
        [python, "-c", RUNS],
        input=json.dumps(runs),
        env={**os.environ, **QUIET, **kept},
        capture_output=True,
        text=True,
        timeout=LIMIT_S + 20 * len(asked),
        check=True,
    )
    for (out, err), code in zip(paths, child.stdout.split(), strict=True):
        lines = tuple(Path(out).read_text(encoding="utf-8").splitlines())
        yield Ran(int(code), lines, Path(err).read_text(encoding="utf-8"))


def ran(
    python: str,
    script: str,
    options: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
) -> Ran:
    """Run a recipe in a process of its own."""
    child = subprocess.run(
        [python, str(TRAIN / f"{script}.py"), *options],
        env={**os.environ, **QUIET, **(variables or {})},
        cwd=TRAIN,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return Ran(child.returncode, tuple(child.stdout.splitlines()), child.stderr)


def answered(python: str, question: str) -> str:
    """What a Python program prints that can import the recipes."""
    child = subprocess.run(
        [python, "-B", "-c", question],
        cwd=TRAIN,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    return child.stdout.strip()
