"""Recipes for several processes: two on this CPU have the losses of one."""

from __future__ import annotations

import json
import os
import re
import subprocess

import pytest
from train_fixtures import (
    LIMIT_S,
    QUIET,
    STRICT,
    TRAIN,
    Mistake,
    Ran,
    Recipe,
    assert_holds,
    assert_seen,
    breaches,
    help_of,
    with_mistake,
)

# Each process is a Python of its own: it takes what is an error from the environment.
WARNINGS = {"PYTHONWARNINGS": ",".join(STRICT)}
RECIPES = (
    Recipe("ddp.py", says=("alone", "together", "2 processes with 16 samples each")),
    Recipe("fsdp2.py", says=("this one with 6565 of 13130", "in torch.bfloat16")),
)
SCRIPTS = [recipe.script for recipe in RECIPES]
FEW = ("--steps", "2")
POLICY = "    policy = fsdp.MixedPrecisionPolicy("
MISTAKES = (
    Mistake(
        "ddp.py",
        "every epoch has the same order",
        (("        sampler.set_epoch(epoch)  #", "        pass  #"),),
        FEW,
    ),
    Mistake(
        "ddp.py",
        "nobody averages the gradients",
        (("DistributedDataParallel(network(kind))", "network(kind)"),),
        FEW,
    ),
    Mistake(
        "ddp.py",
        "every process sees all of the data",
        (("sampler=sampler, drop_last=True)", "shuffle=True, drop_last=True)"),),
        FEW,
    ),
    Mistake(
        "fsdp2.py",
        "all learn from the same part",
        (("x[EACH * rank : EACH * (rank + 1)]", "x[:EACH]"),),
        FEW,
    ),
    Mistake(
        "fsdp2.py",
        "gradients are added up where they should be averaged",
        (("loss.backward()", "(loss * (2 if len(x) == EACH else 1)).backward()"),),
        FEW,
    ),
    Mistake(
        "fsdp2.py",
        "the optimiser was made before the sharding",
        (
            ("optimizer = torch.optim", "optimizer = vars(model).get('made') or torch.optim"),
            (POLICY, "    model.made = torch.optim.SGD(model.parameters(), lr=0.1)\n" + POLICY),
        ),
        FEW,
    ),
    Mistake(
        "fsdp2.py",
        "nothing is sharded",
        (
            ("        fsdp.fully_shard(block, mesh=mesh, mp_policy=policy)\n", "        pass\n"),
            ("    fsdp.fully_shard(model, mesh=mesh, mp_policy=policy)\n", ""),
            ("weights.to_local().numel()", "weights.numel()"),
        ),
        FEW,
    ),
)


# What torchrun would start: two processes of each script, but forks of one that has torch. Between
# its choice and its use somebody else may take the port: such a pair is ended and starts anew.
PAIRS = """
import json, os, runpy, signal, socket, sys, time, traceback
import torch._dynamo, torch.distributed.checkpoint.state_dict, torch.distributed.run

FRESH = os.O_TRUNC | os.O_APPEND

def run(script, options, rank, port, out):
    for number in 1, 2:
        os.dup2(os.open(f"{out}{rank}", os.O_WRONLY | os.O_CREAT | FRESH, 0o600), number)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    sys.argv = [script, *options]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as left:
        return left.code
    except BaseException:
        traceback.print_exc()
    return 70

def started(script, options, out):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for rank in 0, 1:
        children.append(os.fork())
        if not children[-1]:
            code = run(script, options, rank, port, out)
            sys.stdout.flush()
            os._exit(code)
    return children

def ended(children):
    codes, until = {}, time.monotonic() + 30
    while len(codes) < len(children) and time.monotonic() < until:
        time.sleep(0.02)
        for child in set(children) - codes.keys():
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                codes[child] = os.waitstatus_to_exitcode(status)
    for child in set(children) - codes.keys():
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return [codes.get(child) for child in children]

for asked in json.load(sys.stdin):
    codes = ended(started(*asked))
    if None in codes:
        codes = ended(started(*asked))
    print(70 if None in codes else codes[0], flush=True)
"""


@pytest.fixture(scope="module")
def seen(python_cpu: str, tmp_path_factory: pytest.TempPathFactory) -> dict[Mistake, Ran]:
    """What the first process of each script says with its mistake."""
    places = [tmp_path_factory.mktemp("mistake") for _ in MISTAKES]
    asked = [
        (str(with_mistake(place, made)), made.options, str(place / "out"))
        for made, place in zip(MISTAKES, places, strict=True)
    ]
    child = subprocess.run(
        [python_cpu, "-c", PAIRS],
        input=json.dumps(asked),
        env={**os.environ, **QUIET},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    found: dict[Mistake, Ran] = {}
    for mistake, place, code in zip(MISTAKES, places, child.stdout.split(), strict=True):
        lines = (place / "out0").read_text(encoding="utf-8").splitlines()
        found[mistake] = Ran(int(code), tuple(lines), "")
    return found


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: str(recipe.script))
def test_a_recipe_proves_its_claim_on_a_cpu(python_cpu: str, recipe: Recipe) -> None:
    assert_holds(python_cpu, recipe, WARNINGS)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: f"{m.script}: {m.name}")
def test_a_mistake_is_not_proved(seen: dict[Mistake, Ran], mistake: Mistake) -> None:
    assert_seen(seen[mistake])


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_recipe_keeps_to_the_conventions(script: str) -> None:
    assert breaches(TRAIN / script) == []


def test_every_recipe_says_its_options(python_cpu: str) -> None:
    for script, (code, text) in help_of(python_cpu, SCRIPTS).items():
        assert code == 0, script
        assert "--device" in text, script
        assert "--steps" in text, script


def test_torchrun_starts_the_script_as_its_docstring_says(python_cpu: str) -> None:
    script = TRAIN / "ddp.py"
    text = script.read_text(encoding="utf-8")
    assert "torchrun --standalone --nproc-per-node=gpu ddp.py" in text
    assert re.search(r"torchrun --nnodes=2 --nproc-per-node=8 --rdzv-id=\S+ --rdzv-backend=", text)
    words = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3")
    for _ in range(2):
        child = subprocess.run(
            [python_cpu, "-B", *words, str(script), "--steps", "2"],
            env={**os.environ, **QUIET},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        # On a machine under load, gloo's threads may outlive their owner: torch's fault at the end.
        if "terminate called without an active exception" not in child.stderr:
            break
    assert child.returncode == 0, child.stderr
    assert child.stdout.splitlines()[-1].startswith("proved: 3 processes with 16 samples each")
