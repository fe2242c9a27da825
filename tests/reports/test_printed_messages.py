"""What pip, uv, conda, Docker, NCCL, torch and others print, family by family: the cause of each."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest
from told_fixtures import root_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MESSAGES = tomllib.loads(Path(__file__).with_name("printed.toml").read_text("utf-8"))["message"]
FAMILIES = {
    *("pip", "uv", "conda", "mamba", "docker", "podman", "nvidia-container-cli", "NCCL"),
    *("torch", "triton", "nvidia-smi", "dkms", "CUDA runtime", "NVML", "kernel module"),
}


def named(message: dict[str, str]) -> str:
    return f"{message['of']}: {' '.join(message['text'].split())[:60]}"


@pytest.mark.parametrize("message", MESSAGES, ids=named)
def test_a_message_means_its_cause(message: dict[str, str]) -> None:
    assert root_of(message["text"]) == message["cause"]


def test_every_family_is_there_and_no_message_twice() -> None:
    assert {message["of"] for message in MESSAGES} >= FAMILIES
    assert [text for text, n in Counter(m["text"] for m in MESSAGES).items() if n > 1] == []
