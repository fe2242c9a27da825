"""Redaction: nothing that identifies is left, and the redacted document still means the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args, get_origin

import msgspec
import pytest
from scenario_reader import healthy_machine, machine_like

from cudadoctor import knowledge
from cudadoctor.model import factfile
from cudadoctor.model.machine import Gap, Machine
from cudadoctor.privacy.redact import Redactor
from cudadoctor.rules.diagnose import diagnose

SECRETS = {
    "HF_TOKEN": "hf_abcdefghijklmnop1234",
    "PIP_INDEX_URL": "https://ada:s3cret@pypi.example.org/simple?token=abc123def",
    "MY_API_KEY": "verysecret",
    "CUDA_VISIBLE_DEVICES": "GPU-00000000-1111",
    "LD_LIBRARY_PATH": "/home/ada/lib:/scratch/ada/cuda:/opt/canada/lib",
    "MASTER_ADDR": "node17.cluster.example.org",
    "NCCL_COMM_ID": "10.20.30.40:5000",
}


def _planted() -> str:
    machine = machine_like("rtx4090-linux", {"env": SECRETS})
    return factfile.dumps(Redactor(machine).machine(machine))


def test_no_secret_and_no_name_is_left() -> None:
    text = _planted()
    for secret in ("hf_abc", "s3cret", "abc123def", "verysecret", "/home/ada", "/scratch/ada"):
        assert secret not in text
    for name in ("node17", "10.20.30.40", "GPU-0000", '"engine"'):
        assert name not in text


def test_a_name_inside_a_word_stays() -> None:
    assert "/opt/canada/lib" in _planted()


def test_the_same_gpu_has_the_same_pseudonym_everywhere() -> None:
    plain = factfile.loads(_planted())
    assert plain.gpus is not None
    assert plain.env is not None
    assert plain.gpus[0].uuid == "<gpu-uuid-1>" == plain.env["CUDA_VISIBLE_DEVICES"]


def test_a_redacted_document_replays_to_the_same_diagnosis() -> None:
    kb = knowledge.load()
    for name in ("rtx4090-linux", "h100x8-linux", "rtx3060-wsl", "rtx4090-windows"):
        machine = healthy_machine(name)
        again = factfile.loads(factfile.dumps(Redactor(machine).machine(machine)))
        assert diagnose(again, kb).verdict == diagnose(machine, kb).verdict
        assert diagnose(again, kb).primary == diagnose(machine, kb).primary


def test_redacting_twice_changes_nothing_more() -> None:
    once = factfile.loads(_planted())
    assert factfile.dumps(Redactor(once).machine(once)) == factfile.dumps(once)


def test_driver_versions_are_no_addresses() -> None:
    machine = healthy_machine("rtx4090-linux")
    text = factfile.dumps(Redactor(machine).machine(machine))
    assert "13.1.1.3" in text
    assert "580.95.05" in text


def _words_of_facts() -> set[str]:
    """Every literal value that a field of the facts may have."""

    def within(kind: object) -> Iterator[str]:
        if get_origin(kind) is Literal:
            yield from (word for word in get_args(kind) if isinstance(word, str))
        elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            for field in msgspec.structs.fields(kind):
                yield from within(field.type)
        else:
            for part in get_args(kind):
                yield from within(part)

    return {word for word in within(Machine) if word}


@pytest.mark.parametrize("host", sorted(_words_of_facts() | {"ubuntu", "fedora", "torch", "numpy"}))
def test_a_host_that_is_called_like_a_word_of_the_facts_takes_none_away(host: str) -> None:
    changes = {"identity": {"host": host, "user": host, "home": f"/home/{host}"}}
    machine = machine_like("rtx4090-linux", changes)
    again = Redactor(machine).machine(machine)
    assert again.platform == machine.platform
    assert again.packages is not None
    assert machine.packages is not None
    assert [package.name for package in again.packages] == [
        package.name for package in machine.packages
    ]
    kb = knowledge.load()
    assert diagnose(again, kb).verdict == diagnose(machine, kb).verdict
    assert diagnose(again, kb).primary == diagnose(machine, kb).primary


def test_a_version_in_a_sentence_is_no_address() -> None:
    text = "nvidia-curand-cu12 10.3.5.147 is there, torch asks for 10.3.9.90 from 9.10.2.21"
    assert Redactor(Machine(gaps=(Gap(fact="packages", why=text),))).text(text) == text


def test_what_only_looks_like_a_name_stays() -> None:
    texts = (
        "memcpy@GLIBC_2.14 python@3.11 nvcr.io/nvidia/pytorch@sha256:0123 std::vector<c10::Half>",
        "tokenizers==0.19.1 max_tokens=4096 use_auth_token=True hf_transfer-0.1.9 0000:41:00.0",
        "/home/ubuntu/x /root/y /usr/local/lib/python3.11 /Users/Shared/z https://pypi.org/simple",
        "Author: PyTorch Team, token: <pad>, key: value, CUDNN_VERSION=9.1.0.70, 12:34:56",
    )
    machine = Machine(gaps=tuple(Gap(fact="packages", why=text) for text in texts))
    redactor = Redactor(machine)
    assert tuple(map(redactor.text, texts)) == texts


def test_one_host_and_one_user_have_one_pseudonym_in_every_spelling() -> None:
    texts = (
        "balder@node7:~$ ssh node7.dc.example.edu",
        "node7:1:2 [0] NCCL INFO",
        "/home/balder/x C:\\Users\\Balder\\y",
    )
    machine = Machine(gaps=tuple(Gap(fact="packages", why=text) for text in texts))
    redactor = Redactor(machine)
    assert tuple(map(redactor.text, texts)) == (
        "<user-1>@<host-1>:~$ ssh <host-1>",
        "<host-1>:1:2 [0] NCCL INFO",
        "/home/<user-1>/x C:\\Users\\<user-1>\\y",
    )
