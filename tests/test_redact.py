"""Redaction: nothing that identifies is left, and the redacted document still means the same."""

from __future__ import annotations

from scenario_reader import healthy_machine, machine_like

from cudadoctor import factfile, knowledge
from cudadoctor.diagnose import diagnose
from cudadoctor.redact import Redactor

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
