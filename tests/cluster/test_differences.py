"""What differs between hosts: the odd ones are named, unknown values accuse nobody."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace
from scenario_reader import healthy_machine

from cudadoctor.cli import group
from cudadoctor.cluster.differences import Tally, table_of
from cudadoctor.model import factfile
from cudadoctor.model.machine import Machine
from cudadoctor.model.versions import DriverVersion


def _host(name: str, **changes: object) -> Machine:
    machine = healthy_machine("rtx4090-linux")
    return replace(machine, identity=replace(machine.identity, host=name), **changes)


def _found(*machines: Machine) -> dict[str, tuple[str | None, dict[str, tuple[str, ...]]]]:
    tally = Tally()
    for machine in machines:
        tally.add(machine.identity.host or "", table_of(machine))
    return {
        each.fact: (each.usual, {odd.value: odd.hosts for odd in each.odd})
        for each in tally.differences()
    }


def test_equal_hosts_do_not_differ() -> None:
    assert _found(_host("a"), _host("b"), _host("c")) == {}


def test_another_driver_on_one_host_is_named() -> None:
    own = _host("a")
    other = replace(own.driver, kernel=DriverVersion("535.104.05"))
    found = _found(own, _host("b"), _host("c", driver=other))
    assert found == {"driver.kernel": (str(own.driver.kernel), {"535.104.05": ("c",)})}


def test_a_variable_that_only_one_host_sets_is_absent_on_the_others() -> None:
    found = _found(*(_host(n, env={}) for n in "ab"), _host("c", env={"NCCL_IB_DISABLE": "1"}))
    assert found == {"env.NCCL_IB_DISABLE": ("not set", {"1": ("c",)})}


def test_what_is_not_known_never_differs() -> None:
    own = _host("a")
    unknown = replace(own.driver, kernel=None)
    found = _found(own, _host("b"), _host("c", driver=unknown, env=None, packages=None))
    assert found == {}


def test_a_variable_of_a_rank_is_no_difference() -> None:
    hosts = (_host(n, env={"CUDA_VISIBLE_DEVICES": n, "RANK": n}) for n in "ab")
    assert _found(*hosts) == {}


def test_half_of_the_hosts_are_no_majority() -> None:
    """Exactly half: nobody is odd, both values are named."""
    found = _found(_host("a", env={"NCCL_DEBUG": "INFO"}), _host("b", env={"NCCL_DEBUG": "WARN"}))
    assert found == {"env.NCCL_DEBUG": (None, {"INFO": ("a",), "WARN": ("b",)})}


def test_the_gpus_of_a_host_are_one_row() -> None:
    own = _host("a")
    assert own.gpus
    two = tuple(replace(own.gpus[0], index=number, ecc=number == 0) for number in range(2))
    both = tuple(replace(gpu, ecc=True) for gpu in two)
    found = _found(_host("a", gpus=both), _host("b", gpus=both), _host("c", gpus=two))
    assert found == {"gpus.ecc": ("2 × on", {"1 × on, 1 × off": ("c",)})}


def _saved(folder: Path, *machines: Machine) -> list[str]:
    paths = []
    for machine in machines:
        path = folder / f"{machine.identity.host}.json"
        path.write_text(factfile.dumps(machine), encoding="utf-8")
        paths.append(str(path))
    return paths


def test_the_command_names_the_odd_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hosts = (_host("n1", env={}), _host("n2", env={}), _host("n3", env={"NCCL_IB_DISABLE": "1"}))
    files = _saved(tmp_path, *hosts)
    assert group.run(["compare", *files]) == 1
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "1 difference between 3 hosts:"
    assert "n3: 1" in out
    assert group.run(["compare", "--json", str(tmp_path)]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == 1
    assert document["hosts"] == ["n1", "n2", "n3"]
    assert document["differences"] == [
        {
            "fact": "env.NCCL_IB_DISABLE",
            "usual": "not set",
            "count": 2,
            "odd": [{"value": "1", "hosts": ["n3"]}],
            "known": 3,
        }
    ]
    assert group.run(["compare", *files[:2]]) == 0


def test_two_documents_of_one_host_are_told_apart_by_their_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (first,) = _saved(tmp_path, _host("n1"))
    assert group.run(["compare", "--json", first, first]) == 0
    assert json.loads(capsys.readouterr().out)["hosts"] == ["n1", first]


@pytest.mark.parametrize("words", [["compare"], ["compare", "/no/such/file"], ["compare", "one"]])
def test_wrong_use_is_one_sentence(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = [*_saved(tmp_path, _host("n1"))] if words[-1] == "one" else words[1:]
    assert group.run(["compare", *named]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1


def test_a_file_that_tells_nothing_is_no_equal_host(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (first,) = _saved(tmp_path, _host("n1"))
    empty, prose = tmp_path / "empty.txt", tmp_path / "prose.txt"
    empty.write_text("root:x:0:0:root\n", encoding="utf-8")
    prose.write_text("GPU: RTX 3090\n", encoding="utf-8")
    assert group.run(["compare", first, str(empty)]) == 2
    assert f"{empty} tells nothing about a machine" in capsys.readouterr().err
    # Between hosts that know nothing of the same facts, equality is not known.
    torch = tmp_path / "torch.txt"
    torch.write_text("PyTorch version: 2.7.1+cu126\n", encoding="utf-8")
    assert group.run(["compare", str(prose), str(torch)]) == 2
    assert "no known fact in common" in capsys.readouterr().err


def test_a_pasted_list_may_be_a_part_of_the_packages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = ("[pip3] torch==2.7.1\n[pip3] triton==3.3.1\n", "[pip3] torch==2.7.1\n")
    files = [tmp_path / f"{number}.txt" for number in range(2)]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text, encoding="utf-8")
    assert group.run(["compare", *map(str, files)]) == 0
    assert "No differences between 2 hosts" in capsys.readouterr().out
