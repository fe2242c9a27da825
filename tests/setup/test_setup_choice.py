"""Which Python, tool and build a new environment gets: machines as values, nothing is run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version
from scenario_reader import machine_like

from cudadoctor import knowledge
from cudadoctor.host.local import LocalHost
from cudadoctor.model.machine import Machine
from cudadoctor.repair.setup import choosing
from cudadoctor.repair.setup.choosing import (
    Base,
    Chosen,
    Known,
    NoWay,
    choose,
    launched,
    parse_answer,
    suffices,
)

KB = knowledge.load()
UV = {"uv": "/usr/bin/uv"}


def machine(name: str = "rtx4090-linux", **python: Any) -> Machine:
    plain = {"executable": "/usr/bin/python3", "ensurepip": True, "kind": "system", **python}
    return machine_like(name, {"python": plain})


def base(version: str, *, pip: bool | None = True) -> Base:
    return Base(path=f"/opt/{version}", version=Version(version), pip=pip)


def chosen(known: Known) -> Chosen:
    found = choose(known, KB)
    assert isinstance(found, Chosen), found
    return found


def refused(known: Known) -> NoWay:
    found = choose(known, KB)
    assert isinstance(found, NoWay), found
    return found


def build_of(found: Chosen) -> str:
    assert found.choice.build is not None
    return f"{found.choice.build.torch} {found.choice.build.variant}"


def test_the_own_python_and_pip_are_taken_where_they_serve() -> None:
    known = Known(machine=machine(version="3.12.1"), tools=UV, others=(base("3.13.0"),))
    found = chosen(known)
    assert (found.tool, found.python, found.because) == ("pip", "3.12", ())
    assert found.base is not None
    assert found.base.path == "/usr/bin/python3"


def test_the_torch_that_is_installed_is_no_wish_for_the_new_environment() -> None:
    old = machine_like(
        "rtx4090-linux",
        {"torch": {"version": "2.6.0", "text": "2.6.0+cu124", "cuda": "12.4"}},
    )
    newest = build_of(chosen(Known(machine=old)))
    assert newest == build_of(chosen(Known(machine=machine())))
    assert not newest.startswith("2.6.0")


def test_a_wish_for_a_release_is_kept() -> None:
    assert build_of(chosen(Known(machine=machine(), torch="2.6"))).startswith("2.6.0 ")


@pytest.mark.parametrize("version", ["3.5.10", "3.16.0"])
def test_the_nearest_other_python_stands_in_for_one_without_builds(version: str) -> None:
    others = (base("3.11.7"), base("3.12.1"), base("3.13.0"))
    found = chosen(Known(machine=machine(version=version), others=others))
    nearest = others[1] if version.startswith("3.5") else others[2]
    assert found.base == nearest
    assert found.tool == "pip"
    assert f"Python {version.rpartition('.')[0]}" in found.because[0]


def test_of_two_pythons_the_one_for_the_newer_torch_is_taken() -> None:
    found = chosen(Known(machine=machine(version="3.5.10"), others=(base("3.8.1"), base("3.13.0"))))
    assert found.python == "3.13"


def test_an_old_python_gives_way_to_one_here_that_gets_a_newer_torch() -> None:
    known = Known(machine=machine(version="3.6.15"), others=(base("3.12.1"),))
    assert not suffices(known, KB)
    found = chosen(known)
    assert found.python == "3.12"
    assert "The newest torch you can use with Python 3.6.15 is 1.10" in found.because[0]


def test_no_python_is_preferred_for_a_torch_that_is_only_announced() -> None:
    builds = KB.builds_on("linux_x86_64")
    seen = {python for build in builds if build.published for python in build.pythons}
    known = Known(machine=machine("cpu-linux", version="3.5.10"), tools=UV)
    assert chosen(known).python in seen
    announced = [python for build in builds for python in build.pythons if python not in seen]
    others = tuple(base(f"{python}.0") for python in announced if python[-1].isdigit())
    kept = chosen(Known(machine=machine("cpu-linux", version="3.13.1"), others=others))
    assert kept.python == "3.13"


def test_an_old_python_that_is_named_or_alone_is_kept() -> None:
    old = machine(version="3.6.15")
    assert chosen(Known(machine=old, tools=UV)).python == "3.6"
    assert chosen(Known(machine=old, named=True, others=(base("3.12.1"),))).python == "3.6"


def test_of_equal_pythons_one_that_brings_pip_is_taken() -> None:
    others = (base("3.11.7", pip=False), base("3.12.1"))
    assert chosen(Known(machine=machine(version="3.5.10"), others=others)).python == "3.12"


def test_a_wish_chooses_the_python_too() -> None:
    others = (base("3.13.0"), base("3.8.1"))
    known = Known(machine=machine(version="3.14.1"), torch="1.13.1", others=others)
    assert chosen(known).python == "3.8"


def test_uv_fetches_a_python_where_none_here_fits() -> None:
    found = chosen(Known(machine=machine(version="3.5.10"), tools=UV))
    assert (found.tool, found.base) == ("uv", None)
    assert found.base is None
    assert Version(found.python) >= Version("3.9")


def test_conda_fetches_it_where_there_is_no_uv() -> None:
    found = chosen(Known(machine=machine(version="3.5.10"), tools={"conda": "/opt/conda"}))
    assert (found.tool, found.base) == ("conda", None)


def test_where_nothing_can_fetch_a_python_the_way_out_names_one() -> None:
    found = refused(Known(machine=machine(version="3.5.10")))
    assert "or install uv, which downloads Python for you" in found.ways_out[-1]


def test_a_named_python_is_never_changed_for_another() -> None:
    known = Known(machine=machine(version="3.5.10"), named=True, tools=UV, others=(base("3.12.1"),))
    assert "--python" in refused(known).ways_out[-1]


def test_a_python_without_pip_is_served_by_uv() -> None:
    found = chosen(Known(machine=machine(ensurepip=False), tools=UV))
    assert found.tool == "uv"
    assert found.base is not None
    assert "no ensurepip" in found.because[0]


def test_a_python_without_pip_gives_way_to_one_that_has_it() -> None:
    found = chosen(Known(machine=machine(ensurepip=False), others=(base("3.12.1"),)))
    assert (found.tool, found.base) == ("pip", base("3.12.1"))


def test_without_pip_uv_and_others_the_missing_package_is_named() -> None:
    found = refused(Known(machine=machine(ensurepip=False, version="3.11.2")))
    assert "python3.11-venv" in found.ways_out[0]


def test_a_wish_for_uv_keeps_the_own_python() -> None:
    found = chosen(Known(machine=machine(), tools=UV, tool="uv"))
    assert found.tool == "uv"
    assert found.base is not None


@pytest.mark.parametrize("tool", ["conda", "pixi"])
def test_conda_and_pixi_bring_their_own_python_of_the_same_version(tool: Any) -> None:
    found = chosen(Known(machine=machine(version="3.12.1"), tool=tool))
    assert (found.tool, found.base, found.python) == (tool, None, "3.12")


def test_a_machine_without_a_gpu_gets_the_cpu_build() -> None:
    assert build_of(chosen(Known(machine=machine("cpu-linux")))).endswith(" cpu")


def test_a_gpu_without_a_driver_gets_the_build_for_the_driver_to_come() -> None:
    bare = machine_like(
        "rtx4090-linux",
        {
            "driver": {"installed": False, "loaded": False},
            "python": {"executable": "/usr/bin/python3", "ensurepip": True},
        },
        ("driver.kernel", "driver.library", "driver.reported", "driver.cuda", "gpus"),
    )
    found = chosen(Known(machine=bare))
    assert found.choice.build is not None
    assert found.choice.build.cuda is not None
    assert any("driver" in reason.lower() for reason in found.choice.why)


def test_a_gpu_that_no_build_serves_is_told_with_its_ways_out() -> None:
    old = machine_like(
        "rtx4090-linux",
        {
            "gpus": {"0": {"name": "Tesla M2090", "capability": "2.0", "device_id": None}},
            "pci": None,
            "driver": {"kernel": "390.157", "library": "390.157", "reported": "390.157"},
        },
        ("driver.cuda", "torch.imported"),
    )
    found = refused(Known(machine=old))
    assert found.why


def test_other_pythons_are_looked_for_only_where_they_are_needed() -> None:
    assert suffices(Known(machine=machine()), KB)
    assert suffices(Known(machine=machine(version="3.5.10"), named=True), KB)
    assert suffices(Known(machine=machine(ensurepip=False), tools=UV), KB)
    assert not suffices(Known(machine=machine(ensurepip=False)), KB)
    assert not suffices(Known(machine=machine(version="3.5.10"), tools=UV), KB)


@pytest.mark.parametrize(
    ("answer", "version"),
    [
        ("3.12.1 cpython 64 1 0 1\n", "3.12.1"),
        ("3.12.1 cpython 64 1 1 1\n", None),  # free-threaded
        ("3.12.1 cpython 32 1 0 1\n", None),
        ("3.10.12 pypy 64 1 0 1\n", None),
        ("3.12.1 cpython 64 1 0 0\n", None),  # an environment
        ("", None),
    ],
)
def test_only_a_common_python_of_64_bits_is_taken(answer: str, version: str | None) -> None:
    found = parse_answer(answer, "/x")
    assert (str(found.version) if found else None) == version


def test_the_launcher_of_windows_tells_paths() -> None:
    text = (
        " -V:3.13 *        C:\\Users\\Ada Lovelace\\Python313\\python.exe\r\n"
        " -V:3.11          C:\\Python311\\python.exe\r\n"
        " -3.9-64\tD:\\py\\python.exe\r\n"
    )
    assert launched(text) == [
        "C:\\Users\\Ada Lovelace\\Python313\\python.exe",
        "C:\\Python311\\python.exe",
        "D:\\py\\python.exe",
    ]


def test_a_variable_that_names_a_program_of_the_current_folder_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "mamba"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CONDA_EXE", raising=False)
    monkeypatch.setenv("MAMBA_EXE", "mamba")
    assert "conda" not in choosing.tools(LocalHost())
    monkeypatch.setenv("MAMBA_EXE", str(program))
    assert choosing.tools(LocalHost())["conda"] == str(program)
