"""The toolkit probe on planted toolkits, wrapper scripts and compilers."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from packaging.version import Version

from cudadoctor import knowledge
from cudadoctor.host.local import LocalHost
from cudadoctor.model.machine import Distribution, Toolkit
from cudadoctor.probes import Looked
from cudadoctor.probes.toolkit import family, parse_nvcc, parse_version, read_toolkits

NVCC_13 = """nvcc: NVIDIA (R) Cuda compiler driver
Copyright (c) 2005-2025 NVIDIA Corporation
Built on Wed_Aug_20_01:58:59_PM_PDT_2025
Cuda compilation tools, release 13.0, V13.0.88
Build cuda_13.0.r13.0/compiler.36424714_0
"""


class Planted(LocalHost):
    """This machine, with the usual folders of toolkits replaced by planted ones."""

    def __init__(self, *usual: Path) -> None:
        super().__init__()
        self.usual = tuple(str(path) for path in usual)

    def glob(self, pattern: str) -> tuple[str, ...]:
        return self.usual if pattern == "/usr/local/cuda*" else ()


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def toolkit(folder: Path, release: str, *, file: str = "version.json", nvcc: bool = True) -> Path:
    """A toolkit whose nvcc is no script, so that its files are read."""
    folder.mkdir(parents=True)
    if nvcc:
        (folder / "bin").mkdir()
        (folder / "bin/nvcc").write_bytes(b"\x7fELF")
        (folder / "bin/nvcc").chmod(0o755)
    if file == "version.json":
        rows = {"cuda": {"name": "CUDA SDK", "version": f"{release}.1"}}
        (folder / file).write_text(json.dumps(rows))
    elif file == "version.txt":
        (folder / file).write_text(f"CUDA Version {release}.243\n")
    elif file:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        major, minor = release.split(".")
        text = f"/* */\n#define CUDART_VERSION  {int(major) * 1000 + int(minor) * 10}\n"
        (folder / file).write_text(text)
    return folder


def read(*usual: Path, fast: bool = True, **env: str) -> Looked:
    return read_toolkits(Planted(*usual), {"PATH": "/nowhere", **env}, None, (), (), fast)


def toolkits(looked: Looked) -> tuple[Toolkit, ...]:
    found = looked.facts["build.toolkits"]
    assert isinstance(found, tuple)
    return found


def test_nvcc_tells_its_release() -> None:
    assert parse_nvcc(NVCC_13) == Version("13.0")
    assert parse_nvcc("nvcc fatal   : No input files specified") is None


@pytest.mark.parametrize("file", ["version.json", "version.txt", "include/cuda_runtime_api.h"])
def test_files_of_a_toolkit_tell_its_release(tmp_path: Path, file: str) -> None:
    home = toolkit(tmp_path / "cuda-12.4", "12.4", file=file)
    (found,) = toolkits(read(home))
    assert found == Toolkit(
        path=str(home), origin="/usr/local", cuda=Version("12.4"), nvcc=f"{home}/bin/nvcc"
    )


def test_links_to_one_toolkit_are_one_toolkit(tmp_path: Path) -> None:
    home = toolkit(tmp_path / "cuda-12.4", "12.4")
    (tmp_path / "cuda").symlink_to(home)
    looked = read(tmp_path / "cuda", home, CUDA_HOME=str(tmp_path / "cuda"))
    (found,) = toolkits(looked)
    assert (found.path, found.origin) == (str(home), "CUDA_HOME")
    assert looked.facts["build.used"] == str(home)


def test_cuda_home_wins_over_nvcc_on_path(tmp_path: Path) -> None:
    old, new = toolkit(tmp_path / "old", "11.8"), toolkit(tmp_path / "new", "13.0")
    looked = read(CUDA_HOME=str(old), PATH=f"{new}/bin")
    assert looked.facts["build.used"] == str(old)
    assert [installed.origin for installed in toolkits(looked)] == ["CUDA_HOME", "PATH"]


def test_cuda_path_counts_where_cuda_home_is_empty(tmp_path: Path) -> None:
    home = toolkit(tmp_path / "cuda", "12.4")
    looked = read(CUDA_HOME="", CUDA_PATH=str(home))
    assert looked.facts["build.used"] == looked.facts["build.cuda_home"] == str(home)
    assert looked.origins["build.cuda_home"] == "CUDA_PATH"


def test_a_cuda_home_that_points_nowhere_is_used_all_the_same(tmp_path: Path) -> None:
    looked = read(toolkit(tmp_path / "cuda", "12.4"), CUDA_HOME=f"{tmp_path}/gone")
    assert looked.facts["build.used"] == f"{tmp_path}/gone"
    assert looked.facts["build.cuda_home_exists"] is False


def test_nothing_at_all_is_known_to_be_absent() -> None:
    looked = read()
    assert toolkits(looked) == ()
    assert looked.facts["build.cuda_home"] == ""
    assert looked.facts["build.cuda_home_exists"] is False
    assert not [gap for gap in looked.gaps if gap.fact.startswith("build.toolkits")]


def test_a_wrapper_script_leads_to_the_toolkit_behind_it(tmp_path: Path) -> None:
    home = tmp_path / "cuda-12.6"
    program(home / "bin/nvcc", "echo 'Cuda compilation tools, release 12.6, V12.6.20'")
    wrapper = program(tmp_path / "local/bin/nvcc", f'exec {home}/bin/nvcc "$@"')
    looked = read(home, PATH=str(wrapper.parent))
    (found,) = toolkits(looked)
    assert found == Toolkit(path=str(home), origin="PATH", cuda=Version("12.6"), nvcc=str(wrapper))
    assert looked.facts["build.used"] == str(home)


def test_a_script_in_the_place_of_nvcc_is_believed_more_than_the_files(tmp_path: Path) -> None:
    home = toolkit(tmp_path / "cuda", "13.0", nvcc=False)
    program(home / "bin/nvcc", "echo 'Cuda compilation tools, release 11.8, V11.8.89'")
    assert toolkits(read(home))[0].cuda == Version("11.8")


@pytest.mark.parametrize("text", ["exit 1", "echo garbage", "kill -SEGV $$"])
def test_an_nvcc_that_does_not_answer_is_a_gap(tmp_path: Path, text: str) -> None:
    script = program(tmp_path / "bin/nvcc", text)
    looked = read(PATH=str(script.parent))
    assert toolkits(looked)[0].cuda is None
    assert "build.toolkits.0.cuda" in [gap.fact for gap in looked.gaps]


def test_an_nvcc_that_cannot_run_falls_back_to_its_files(tmp_path: Path) -> None:
    home = toolkit(tmp_path / "cuda", "12.4")
    assert toolkits(read(home, fast=False))[0].cuda == Version("12.4")


def test_a_file_that_may_not_be_executed_is_no_nvcc_on_path(tmp_path: Path) -> None:
    home = toolkit(tmp_path / "cuda", "12.4")
    (home / "bin/nvcc").chmod(0o644)
    looked = read(PATH=f"{home}/bin")
    assert toolkits(looked) == ()


def test_a_runtime_without_nvcc_is_listed_without_one(tmp_path: Path) -> None:
    (found,) = toolkits(read(toolkit(tmp_path / "cuda", "12.4", nvcc=False)))
    assert (found.nvcc, found.cuda) == (None, Version("12.4"))


def test_scripts_that_run_each_other_end(tmp_path: Path) -> None:
    first, second = tmp_path / "a/bin/nvcc", tmp_path / "b/bin/nvcc"
    program(first, f"# {second}")
    program(second, f"# {first}")
    assert len(toolkits(read(PATH=f"{first.parent}:{second.parent}"))) == 2


@pytest.mark.parametrize("text", ["[]", "{", "null", '{"cuda": 7}', '{"cuda": {"version": null}}'])
def test_a_version_file_of_another_shape_says_nothing(tmp_path: Path, text: str) -> None:
    home = toolkit(tmp_path / "cuda", "12.4")
    (home / "version.json").write_text(text)
    (found,) = toolkits(read(home))
    assert found.cuda is None


def test_wheels_and_conda_bring_toolkits(tmp_path: Path) -> None:
    toolkit(tmp_path / "site/nvidia/cu13", "13.0", file="include/cuda.h")
    conda = toolkit(tmp_path / "conda", "12.8", file="targets/x86_64-linux/include/cuda.h")
    toolkit_header = conda / "targets/x86_64-linux/include/cuda_runtime_api.h"
    toolkit_header.write_text("#define CUDART_VERSION  12080\n")
    sites = (str(tmp_path / "site"),)
    looked = read_toolkits(Planted(), {"PATH": "/nowhere"}, str(conda), sites, (), True)
    found = {installed.origin: installed.cuda for installed in toolkits(looked)}
    assert found == {"conda": Version("12.8"), "wheel": Version("13.0")}


def test_packages_that_compile_at_run_time_are_named(tmp_path: Path) -> None:
    (tmp_path / "flashinfer_python-0.6.0.dist-info").mkdir()
    packages = (Distribution(name="DeepSpeed", version="0.18.0"),)
    known = knowledge.load().compiles_at_run_time
    looked = read_toolkits(Planted(), {}, None, (str(tmp_path),), packages, True, known)
    assert looked.facts["build.needed_by"] == ("deepspeed", "flashinfer-python")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("c++ (Debian 12.2.0-14+deb12u1) 12.2.0\nCopyright", ("g++", "12.2.0")),
        ("g++ (GCC) 11.5.0 20240719 (Red Hat 11.5.0-5)\n", ("g++", "11.5.0")),
        ("Ubuntu clang version 18.1.3 (1ubuntu1)\nTarget: x", ("clang++", "18.1.3")),
        ("x86_64-conda-linux-gnu-c++ (conda-forge gcc 14.3.0-4) 14.3.0\n", ("g++", "14.3.0")),
        (
            "Microsoft (R) C/C++ Optimizing Compiler Version 19.44.35211 for x64\n",
            ("cl", "19.44.35211"),
        ),
        ("", (None, None)),
    ],
)
def test_compilers_tell_their_version(text: str, expected: tuple[str | None, ...]) -> None:
    name, version = parse_version(text)
    assert (name, version and str(version)) == expected


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/usr/bin/x86_64-linux-gnu-g++-12", "g++"),
        ("/usr/lib/llvm-18/bin/clang++", "clang++"),
        ("C:\\VC\\bin\\cl.exe", "cl"),
        ("/usr/bin/c++", None),
    ],
)
def test_the_family_follows_from_the_name(path: str, name: str | None) -> None:
    assert family(path) == name


def test_a_compiler_that_cxx_names_and_is_absent_is_not_present() -> None:
    looked = read(CXX="ccache /nowhere/g++-99 -O2")
    assert looked.facts["build.compiler.present"] is False
    assert looked.facts["build.compiler.name"] == "/nowhere/g++-99"


def test_the_compiler_in_cxx_is_asked_in_full_mode_only(tmp_path: Path) -> None:
    said = "echo 'g++ (GCC) 9.4.0'"
    compiler = program(tmp_path / "bin/my-g++", said)
    full = read(CXX=f"'{compiler}' -O2", fast=False)
    assert full.facts["build.compiler.version"] == Version("9.4.0")
    quick = read(CXX=str(compiler))
    assert quick.facts["build.compiler.name"] == "g++"
    assert [gap.asked for gap in quick.gaps if gap.fact == "build.compiler.version"] == [False]


@pytest.mark.parametrize("value", ["\0", "x" * 9000, "'", "/dev/null", "~", "/proc/self/mem"])
def test_odd_values_never_raise(value: str) -> None:
    env = {"CUDA_HOME": value, "PATH": value, "CXX": value}
    looked = read_toolkits(Planted(Path("/nowhere")), env, value, (value,), None, False)
    assert isinstance(looked.facts["build.toolkits"], tuple)


def test_two_hundred_thousand_folders_on_path_are_no_trouble() -> None:
    looked = read(PATH=":".join(f"/nowhere/{n}" for n in range(200_000)))
    assert toolkits(looked) == ()


def test_this_machine_can_be_read() -> None:
    looked = read_toolkits(LocalHost(), dict(os.environ), None, (), (), True)
    assert isinstance(looked.facts["build.used"], str)


@pytest.mark.parametrize(
    ("body", "asked"),
    [
        ('exec {nvcc} "$@"\n', False),
        ('# a comment\nexec "{nvcc}" "$@"\n', False),
        ('exec {nvcc} "$@" --extra\n', True),
        ('export X=1\nexec {nvcc} "$@"\n', True),
    ],
)
def test_a_fast_look_runs_a_wrapper_only_where_its_text_leaves_doubt(
    tmp_path: Path, body: str, asked: bool
) -> None:
    home = tmp_path / "cuda-12.6"
    (home / "bin").mkdir(parents=True)
    (home / "version.json").write_text('{"cuda": {"version": "12.6.3"}}')
    nvcc = home / "bin" / "nvcc"
    nvcc.write_text("#!/bin/sh\necho release 11.1\n")
    nvcc.chmod(0o755)
    wrapper = tmp_path / "bin" / "nvcc"
    wrapper.parent.mkdir()
    wrapper.write_text("#!/bin/sh\n" + body.format(nvcc=nvcc))
    wrapper.chmod(0o755)
    seen = read_toolkits(LocalHost(), {"PATH": str(wrapper.parent)}, None, (), (), fast=True)
    toolkit = next(
        installed for installed in seen.facts["build.toolkits"] if "12.6" in installed.path
    )
    assert str(toolkit.cuda) == ("11.1" if asked else "12.6")
