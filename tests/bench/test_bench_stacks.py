"""From the stacks of Python to kinds of time and lines: pure, on stacks as py-spy prints them."""

from __future__ import annotations

from typing import Any

import pytest

from cudadoctor.bench.script import stacks
from cudadoctor.bench.script.stacks import Stacks

TORCH = "/v/lib/python3.11/site-packages/torch/"
BACKWARD = [TORCH + "autograd/__init__.py", 395, "backward"]
STEP = [TORCH + "optim/sgd.py", 130, "SGD.step"]
LINEAR = [TORCH + "nn/modules/linear.py", 125, "Linear.forward"]
FETCH = [TORCH + "utils/data/_utils/fetch.py", 54, "_MapDatasetFetcher.fetch"]
NEXT = [TORCH + "utils/data/dataloader.py", 725, "_BaseDataLoaderIter.__next__"]
GET = [TORCH + "utils/data/dataloader.py", 1291, "_MultiProcessingDataLoaderIter._try_get_data"]
POLL = ["/usr/lib/python3.11/selectors.py", 415, "_PollLikeSelector.select"]
SCRIPT = """\
import torch
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_file("t.json")
download()
def features(rows):
    return [sum(row) for row in rows]
def train():
    for epoch in range(9):
        for batch, labels in loader:
            ids = tokenizer.encode_batch(batch)
            for one in batch:
                loss = loss + model(one)
            loss.backward()
            optimizer.step()
            total += loss.item()
            x = features(batch)
            write_log(total)
            batch = batch.to("cuda")
            image = read_image(path)
        evaluate(model)
train()
plot()
"""


def at(line: int, function: str = "train") -> list[list[Any]]:
    outer = [] if function == "<module>" else [["train.py", 21, "<module>"]]
    return [["train.py", line, function], *outer]


def look(
    t: float,
    *frames: Any,
    active: bool = True,
    gil: bool = False,
    worker: bool = False,
    main: bool = True,
) -> dict[str, Any]:
    thread = {"main": main, "active": active, "gil": gil, "frames": list(frames)}
    return {"kind": "stacks", "t": t, "pid": 8 if worker else 7, "worker": worker} | {
        "threads": [thread]
    }


def read(*lines: dict[str, Any], text: str = SCRIPT) -> Stacks:
    return stacks.read(lines, {"train.py": text} if text else {})


def only(line: dict[str, Any]) -> str:
    """The kind of one look."""
    (kind,) = read(line).shares
    return kind


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (look(1, POLL, GET, NEXT, *at(9), active=False), "workers"),
        (look(1, *at(6, "load"), FETCH, NEXT, *at(9)), "load"),
        (look(1, *at(6, "load"), FETCH, NEXT, *at(9), active=False), "load-wait"),
        (look(1, BACKWARD, *at(13)), "torch"),
        (look(1, BACKWARD, *at(13), active=False), "torch-wait"),
        (look(1, *at(15), active=False), "sync"),
        (look(1, *at(15)), "sync"),
        (look(1, *at(15), gil=True), "python"),
        (look(1, ["train.py", 6, "features"], *at(16), gil=True), "python"),
        (look(1, *at(10)), "library"),
        (look(1, ["/v/lib/python3.11/site-packages/PIL/Image.py", 9, "load"], *at(17)), "library"),
        (look(1, ["/usr/lib/python3.11/json/decoder.py", 9, "decode"], *at(17)), "python"),
        (look(1, *at(17), active=False), "wait"),
        (look(1, *at(18)), "copy"),
        (look(1, *at(19), active=False), "load-wait"),
        (look(1, [TORCH + "distributed/distributed_c10d.py", 1, "wait"], *at(16), active=False),
         "ranks"),
        (look(1, [TORCH + "serialization.py", 1, "save"], *at(17), active=False), "wait"),
    ],
)  # fmt: skip
def test_what_a_thread_does(line: dict[str, Any], kind: str) -> None:
    assert only(line) == kind


def test_compiling_counts_for_nothing() -> None:
    compiling = look(1, [TORCH + "_dynamo/convert_frame.py", 1, "compile"], *at(12))
    assert read(compiling, look(2, BACKWARD, *at(13))).shares == {"torch": 1.0}


def test_only_the_loop_around_the_steps_is_training() -> None:
    found = read(
        look(1, *at(4, "<module>"), active=False),
        look(20, BACKWARD, *at(13)),
        look(25, *at(20)),
        look(26, *at(22, "<module>")),
    )
    assert (found.began, found.ended, found.looks, found.all_looks) == (20, 25, 2, 4)


def test_a_step_too_short_to_be_seen_is_found_in_the_text() -> None:
    """Also where the loop only calls the function that computes the gradients."""
    text = "def step(x):\n    loss(x).backward()\nfor x in data:\n    y = slow(x)\n    step(y)\n"
    found = read(look(1, *at(4, "<module>"), gil=True), text=text)
    assert (found.seen, found.looks) == ("training", 1)


def test_without_the_text_the_line_that_steps_is_the_training() -> None:
    found = read(look(1, STEP, *at(14)), look(2, *at(4, "<module>")), text="")
    assert (found.seen, found.looks) == ("training", 1)


def test_a_script_without_steps_has_not_trained() -> None:
    found = read(look(1, LINEAR, *at(1, "<module>")), text="model(x)\n")
    assert (found.seen, found.looks, found.all_looks) == ("", 0, 1)
    assert found.busiest is not None and found.busiest.line == 1


def test_a_trainer_of_a_library_trains_at_its_line() -> None:
    text = "trainer = Trainer(model)\ntrainer.fit(model)\n"
    library = ["/v/lib/python3.11/site-packages/lightning/loop.py", 9, "run"]
    found = read(look(1, library, *at(2, "<module>")[:1]), text=text)
    assert found.seen == "training"


def test_a_loop_over_samples_is_python_code_though_torch_computes() -> None:
    """Each operation is short: what is seen are torch's frames, and now and then the GIL."""
    inside = [look(t, LINEAR, *at(12), gil=t % 4 == 0) for t in range(1, 9)]
    backward = [look(t, BACKWARD, *at(13)) for t in range(9, 15)]
    found = read(*inside, *backward)
    assert found.shares == {"python": 1.0}
    assert found.lines["python"].line == 12


def test_large_operations_in_a_loop_are_no_python_code() -> None:
    assert read(*(look(t, LINEAR, *at(12)) for t in range(1, 9))).shares == {"torch": 1.0}


def test_an_epoch_is_no_loop_over_samples() -> None:
    looks = [look(t, LINEAR, *at(20), gil=True) for t in range(1, 9)]
    assert read(*looks, look(9, BACKWARD, *at(13))).shares == {"torch": 1.0}


def test_the_workers_name_the_line_of_the_loading() -> None:
    mains = [look(t, POLL, GET, NEXT, *at(9), active=False) for t in range(1, 9)]
    loads = [look(t, *at(6, "load")[:1], FETCH, worker=True, active=t > 2) for t in range(1, 9)]
    idle = look(5, POLL, [TORCH + "utils/data/_utils/worker.py", 1, "_worker_loop"], worker=True)
    found = read(*mains, *loads, idle)
    assert found.lines["workers"].line == 6
    assert (found.worker_looks, found.loading_busy) == (8, 0.75)


def test_a_training_in_another_thread_than_the_main_one_is_seen() -> None:
    waits = look(1, POLL, *at(4, "<module>"), active=False)
    trains = look(1, BACKWARD, *at(13), main=False)
    waits["threads"] += trains["threads"]
    assert read(waits).shares == {"torch": 1.0}


def test_a_file_that_cannot_be_parsed_is_no_error() -> None:
    assert read(look(1, BACKWARD, *at(13)), text="def (:").shares == {"torch": 1.0}


@pytest.mark.parametrize(
    ("file", "theirs"),
    [
        ("/home/ana/train.py", True),
        ("/tmp/ipykernel_7/123.py", True),
        ("/home/ana/.venv/lib/python3.12/site-packages/torch/_tensor.py", False),
        ("/usr/lib/python3/dist-packages/numpy/core.py", False),
        ("/usr/lib/python3.11/threading.py", False),
        ("<frozen importlib._bootstrap>", False),
        ("/tmp/torchinductor_ana/ab/cd.py", False),
    ],
)
def test_which_files_are_the_users(file: str, theirs: bool) -> None:
    assert (file in stacks.user_files([look(1, [file, 1, "f"])])) == theirs


def test_what_refuses_to_be_read_is_said() -> None:
    no = {"kind": "no-stacks", "pid": 7, "worker": False, "why": "Permission Denied"}
    assert read(no).refused == "Permission Denied"
    workers = read(look(1, BACKWARD, *at(13)), {**no, "worker": True})
    assert (workers.refused, workers.refused_workers) == ("", "Permission Denied")
