"""Reports that complain of a program or of torch, and hold something else in passing."""

from __future__ import annotations

import pytest
from told_fixtures import diagnosis_of

OTHER_DEVICE = (
    "Traceback (most recent call last):\n"
    '  File "train.py", line 9, in <module>\n'
    "RuntimeError: Expected all tensors to be on the same device, but found at least two devices,"
    " cuda:0 and cpu!\n"
)
BUSY = """\
+-----------------------------------------------------------------------------+
| NVIDIA-SMI 418.87.00    Driver Version: 418.87.00    CUDA Version: 10.1     |
|-------------------------------+----------------------+----------------------+
| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |
|===============================+======================+======================|
|   0  Tesla P100-PCIE...  Off  | 00000000:02:00.0 Off |                    0 |
| N/A   47C    P0    33W / 250W |  16181MiB / 16280MiB |      0%      Default |
+-------------------------------+----------------------+----------------------+
"""
WORKERS = (
    "UserWarning: The dataloader, val dataloader 0, does not have many workers which may be a"
    " bottleneck. Consider increasing the value of the `num_workers` argument\n"
)


@pytest.mark.parametrize("passing", [BUSY, WORKERS], ids=["busy", "workers"])
def test_what_stands_in_passing_is_no_root_of_a_programs_own_error(passing: str) -> None:
    assert diagnosis_of(passing + OTHER_DEVICE).primary is None


@pytest.mark.parametrize(
    ("text", "cause"),
    [(BUSY, "out-of-memory"), (WORKERS, "slow-dataloader")],
    ids=["busy", "workers"],
)
def test_alone_it_is_named(text: str, cause: str) -> None:
    assert diagnosis_of(text).primary == cause


def test_an_error_of_the_environment_stays_the_root_beside_a_mistake() -> None:
    error = "ImportError: libcudart.so.11.0: cannot open shared object file: No such file\n"
    assert diagnosis_of(error + OTHER_DEVICE).primary is not None
