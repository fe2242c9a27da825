"""What kind of environment it is, and what damage its torch has: values in, values out."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from packaging.version import Version

from cudadoctor.host.local import LocalHost
from cudadoctor.model.versions import cuda_from_tag, tagged_for, torch_from_tag
from cudadoctor.probes.installed import (
    InsideLook,
    PythonLine,
    assigned,
    build_of,
    expected_sizes,
)
from cudadoctor.probes.interpreter import is_pixi, kind_of, managers

PLAIN = PythonLine(
    executable="/opt/py/bin/python",
    version="3.12.3",
    implementation="cpython",
    free_threaded=False,
    bits=64,
    prefix="/opt/py",
    base_prefix="/opt/py",
    site_packages="/opt/py/lib/python3.12/site-packages",
    user_site="",
    pyvenv=None,
    conda=False,
    conda_base=False,
    embedded=False,
    externally_managed=False,
    abi=None,
    headers=True,
    ensurepip=True,
    env_free_bytes=1,
)


@pytest.mark.parametrize(
    ("differences", "kind"),
    [
        ({}, "user"),
        ({"prefix": "/usr", "base_prefix": "/usr"}, "system"),
        ({"externally_managed": True}, "system"),
        (
            {
                "prefix": "/h/.local/share/uv/python/cpython-3.12",
                "base_prefix": "/h/.local/share/uv/python/cpython-3.12",
                "externally_managed": True,
            },
            "user",
        ),
        ({"conda": True}, "conda"),
        ({"conda": True, "conda_base": True}, "conda-base"),
        ({"embedded": True}, "embedded"),
        ({"prefix": "/h/v", "pyvenv": "home = /opt/py/bin\n"}, "venv"),
        ({"prefix": "/h/v", "pyvenv": "home = /opt/py/bin\nuv = 0.13.8\n"}, "uv"),
        ({"prefix": "/h/v", "conda": True}, "venv"),
        ({"prefix": "/h/pipx/venvs/tool", "pyvenv": "uv = 0.13.8\n"}, "pipx"),
        ({"prefix": "/h/.cache/pypoetry/virtualenvs/x-py3.12", "pyvenv": ""}, "poetry"),
    ],
)
def test_the_kind_of_an_environment(differences: dict[str, object], kind: str) -> None:
    assert kind_of(LocalHost(), msgspec.structs.replace(PLAIN, **differences)) == kind


def stand_in(folder: Path, *names: str) -> None:
    folder.mkdir()
    for name in names:
        (folder / name).write_text("#!/bin/sh\nexit 1\n")
        (folder / name).chmod(0o755)


def test_conda_installs_into_its_own_environments_and_pixi_into_pixis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CONDA_EXE", "MAMBA_EXE"):
        monkeypatch.delenv(name, raising=False)
    stand_in(tmp_path / "bin", "conda", "mamba", "micromamba", "pixi", "poetry", "pipx")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("HOME", str(tmp_path))

    def names(python: PythonLine, kind: str) -> list[str]:
        return [manager.name for manager in managers(LocalHost(), InsideLook(), python, kind)]

    conda = msgspec.structs.replace(PLAIN, conda=True)
    assert names(conda, "conda") == ["conda", "mamba", "micromamba"]
    pixi = msgspec.structs.replace(conda, prefix="/p/.pixi/envs/default")
    assert is_pixi(pixi)
    assert names(pixi, "conda") == ["pixi"]
    assert names(PLAIN, "poetry") == ["poetry"]
    assert names(PLAIN, "venv") == []


@pytest.mark.parametrize(
    ("text", "build"),
    [
        ("__version__ = '1.10.0+cu113'\ncuda = '11.3'\nhip = None\n", "cuda"),
        ("__version__ = '1.7.0'\ndebug = False\ncuda = None\n", "cpu"),
        ('__version__ = "2.1"\ncuda: str | None = "12.1"\n', "cuda"),
        ("__version__ = '2.4.0+rocm6.0'\ncuda = None\nhip = '6.0.3'\n", "rocm"),
        ("__version__ = '2.9.0'\ncuda = None\nhip = None\nxpu = '20250201'\n", "xpu"),
        ("__version__ = '2.9.0'\n", None),
        ("", None),
    ],
)
def test_the_device_of_a_build_in_every_form_of_version_py(text: str, build: str | None) -> None:
    assert build_of(assigned(text)) == build


@pytest.mark.parametrize(
    ("text", "torch"),
    [("2.6", "2.6"), ("24", "2.4"), ("210", "2.10"), ("113", "1.13"), ("260", "2.6.0")],
)
def test_the_torch_of_a_tag(text: str, torch: str) -> None:
    assert torch_from_tag(text) == Version(torch)


def test_tags_that_are_cut_short_mean_what_they_say() -> None:
    assert torch_from_tag("2100") == Version("2.10.0")
    assert torch_from_tag("2") is None
    assert cuda_from_tag("12") == Version("12")
    assert cuda_from_tag("118") == Version("11.8")
    assert cuda_from_tag("92") == Version("9.2")


@pytest.mark.parametrize(
    ("text", "cuda", "torch"),
    [
        ("2.1.2+pt22cu121", "12.1", "2.2"),
        ("0.6.17+pt113cu117", "11.7", "1.13"),
        ("0.7.0+pt212cu130", "13.0", "2.12"),
        ("2.1.2+pt26cpu", None, "2.6"),
        ("2.5.8+cu12torch2.4cxx11abiFALSE", "12", "2.4"),
        ("0.21.0+cu124", "12.4", None),
        ("2.1.2", None, None),
        ("pt22-cu121", None, None),
        ("2.1.2+pt٢٢cu121", "12.1", None),
    ],
)
def test_what_a_version_was_built_for(text: str, cuda: str | None, torch: str | None) -> None:
    found = tuple(part and str(part) for part in tagged_for(text))
    assert found == (cuda, torch)


def test_only_what_every_import_needs_is_looked_at() -> None:
    record = b"""../bin/torchrun,sha256=a,1
torch/__init__.py,sha256=a,100
torch/nn/__init__.py,sha256=a,5
torch/nn/modules/__init__.py,sha256=a,5
torch/nn/functional.py,sha256=a,5
torch/_C.cpython-311-x86_64-linux-gnu.so,sha256=a,20
torch/lib/libgomp.so.1,sha256=a,x
torch/../../escape.so,sha256=a,1
functorch/__init__.py,sha256=a,1
torch/version.py,sha256=a,7"""
    assert dict(expected_sizes(record)) == {
        "torch/version.py": 7,
        "torch/__init__.py": 100,
        "torch/nn/__init__.py": 5,
        "torch/_C.cpython-311-x86_64-linux-gnu.so": 20,
        "torch/lib/libgomp.so.1": 0,
    }
    assert dict(expected_sizes(b"torch\\lib")) == {}
    assert dict(expected_sizes(b"torch/lib/c10.dll,a,3", "Windows")) == {"torch/lib/c10.dll": 3}
