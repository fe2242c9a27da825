"""The loader's rules against the real loader, on small chains of compiled libraries."""

from __future__ import annotations

import itertools
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from cudadoctor.host.local import LocalHost
from cudadoctor.probes.elf import Elf, read_elf
from cudadoctor.probes.loader import CACHE, Mapped, Process, Search, parse_cache

pytestmark = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or not shutil.which("gcc"), reason="needs glibc and gcc"
)
HOST = LocalHost()
TAGS = {"none": (), "rpath": ("--disable-new-dtags",), "runpath": ("--enable-new-dtags",)}


def build(out: Path, tag: str, search: str, *needs: Path, soname: str | None = None) -> Path:
    """A library (an executable where its name has no .so) with that tag and those needs."""
    out.parent.mkdir(parents=True, exist_ok=True)
    flags = ["-shared", "-fPIC"] if ".so" in out.name else []
    links = [f"-Wl,{option}" for option in TAGS[tag]]
    if tag != "none":
        links.append(f"-Wl,-rpath,{search}")
    if soname:
        links.append(f"-Wl,-soname,{soname}")
    code = "int main(void) { return 0; }" if not flags else ""
    command = ["gcc", *flags, "-o", str(out), "-x", "c", "-", "-Wl,--no-as-needed", *links]
    rest = ["-x", "none", *map(str, needs), "-Wl,--allow-shlib-undefined"]
    subprocess.run([*command, *rest], input=code, text=True, check=True)
    return out


def real_answers(program: Path, env: dict[str, str]) -> dict[str, str | None]:
    """What the loader itself says: name -> file, None where it found none."""
    traced = {**env, "LD_TRACE_LOADED_OBJECTS": "1"}
    ran = subprocess.run([program], env=traced, capture_output=True, text=True, check=False)
    pairs = re.findall(r"^\s*(\S+) => (not found|\S+)", ran.stdout, re.M)
    return {name: None if file == "not found" else os.path.realpath(file) for name, file in pairs}


def predicted_answers(program: Path, env: dict[str, str]) -> dict[str, str | None]:
    path = str(program)
    elf = read_elf(HOST, path)
    assert isinstance(elf, Elf)
    process = Process(Search(HOST, Mapped(path, os.path.realpath(path), elf), env))
    answers: dict[str, str | None] = {library.title: library.real for library in process.loaded[1:]}
    return answers | dict.fromkeys(process.start.missing)


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """main needs liba, liba needs libb, libb needs libc-wanted: each with each kind of tag.

    main, liba and libb are linked by path, so that only the last name is searched for.
    """
    root = tmp_path_factory.mktemp("chain")
    wanted = build(root / "store/libwanted.so.1", "none", "", soname="libwanted.so.1")
    for third in TAGS:
        b = build(root / f"b-{third}.so", third, str(root / "from-b"), wanted)
        for second in TAGS:
            a = build(root / f"a-{second}-{third}.so", second, str(root / "from-a"), b)
            for first in TAGS:
                build(root / f"main-{first}-{second}-{third}", first, str(root / "from-main"), a)
    return root


PLACES = ("from-main", "from-a", "from-b", "from-path")


@pytest.mark.parametrize("filled", [PLACES, PLACES[1:], PLACES[2:], PLACES[::3], ("from-main",)])
def test_inheritance_of_rpath_and_runpath_is_the_loaders(
    chain: Path, filled: tuple[str, ...]
) -> None:
    for place in PLACES:
        shutil.rmtree(chain / place, ignore_errors=True)
        if place in filled:
            (chain / place).mkdir()
            shutil.copy(chain / "store/libwanted.so.1", chain / place)
    for tags in itertools.product(TAGS, repeat=3):
        for path in ("", f"/nowhere:{chain}/from-path"):
            program, env = chain / f"main-{'-'.join(tags)}", {"LD_LIBRARY_PATH": path}
            predicted = predicted_answers(program, env)
            real = real_answers(program, env)
            assert "libwanted.so.1" in real
            for name, file in real.items():
                assert predicted[name] == file, (tags, path, name)


@pytest.fixture(scope="module")
def wants(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program in a folder bin/ that needs libwanted.so.1, with $ORIGIN in its DT_RUNPATH."""
    root = tmp_path_factory.mktemp("wants")
    wanted = build(root / "libs/libwanted.so.1", "none", "", soname="libwanted.so.1")
    build(root / "bin/program", "runpath", "$ORIGIN/../${LIB}:$ORIGIN/../libs", wanted)
    return root


def agrees(program: Path, env: dict[str, str]) -> str | None:
    answer = real_answers(program, env)["libwanted.so.1"]
    assert predicted_answers(program, env)["libwanted.so.1"] == answer
    return answer


def test_origin_is_expanded(wants: Path) -> None:
    assert agrees(wants / "bin/program", {}) == str(wants / "libs/libwanted.so.1")


def test_lib_is_expanded(wants: Path, tmp_path: Path) -> None:
    tree = Path(shutil.copytree(wants, tmp_path / "tree"))
    (tree / "libs").rename(tree / "moved")
    for name in ("lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "lib64", "lib"):
        shutil.copytree(tree / "moved", tree / name, dirs_exist_ok=True)
    assert agrees(tree / "bin/program", {}) is not None


def test_folders_for_newer_processors_come_first(wants: Path, tmp_path: Path) -> None:
    for level in ("x86-64-v2", "x86-64-v3", "x86-64-v9"):
        folder = tmp_path / "glibc-hwcaps" / level
        folder.mkdir(parents=True)
        shutil.copy(wants / "libs/libwanted.so.1", folder)
    agrees(wants / "bin/program", {"LD_LIBRARY_PATH": str(tmp_path)})


def test_a_library_of_another_processor_is_passed_over(wants: Path, tmp_path: Path) -> None:
    data = bytearray((wants / "libs/libwanted.so.1").read_bytes())
    data[18] ^= 0xFF
    (tmp_path / "libwanted.so.1").write_bytes(data)
    answer = agrees(wants / "bin/program", {"LD_LIBRARY_PATH": str(tmp_path)})
    assert answer == str(wants / "libs/libwanted.so.1")


@pytest.mark.parametrize("fault", ["dangling", "folder-missing", "semicolons", "empty-entries"])
def test_odd_library_paths_are_read_as_the_loader_reads_them(
    wants: Path, tmp_path: Path, fault: str
) -> None:
    (tmp_path / "good").mkdir()
    shutil.copy(wants / "libs/libwanted.so.1", tmp_path / "good")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad/libwanted.so.1").symlink_to("nowhere")
    path = {
        "dangling": f"{tmp_path}/bad:{tmp_path}/good",
        "folder-missing": f"{tmp_path}/none:{tmp_path}/good/",
        "semicolons": f"{tmp_path}/none;{tmp_path}/good",
        "empty-entries": f"::{tmp_path}/good::",
    }[fault]
    answer = agrees(wants / "bin/program", {"LD_LIBRARY_PATH": path})
    assert answer == str(tmp_path / "good/libwanted.so.1")


@pytest.mark.parametrize("data", [b"", b"not a library", b"\x7fELF\x02\x01\x01" + bytes(80)])
def test_a_broken_file_is_taken_and_ends_the_start(
    wants: Path, tmp_path: Path, data: bytes
) -> None:
    (tmp_path / "libwanted.so.1").write_bytes(data)
    env = {"LD_LIBRARY_PATH": str(tmp_path)}
    ran = subprocess.run([wants / "bin/program"], env=env, capture_output=True, check=False)
    assert ran.returncode == 127
    answers = predicted_answers(wants / "bin/program", env)
    assert answers["libwanted.so.1"] == str(tmp_path / "libwanted.so.1")


def test_what_is_preloaded_answers_to_its_soname(wants: Path, tmp_path: Path) -> None:
    other = tmp_path / "other-name.so"
    shutil.copy(wants / "libs/libwanted.so.1", other)
    env = {"LD_PRELOAD": f"/nowhere/libabsent.so {other}"}
    assert predicted_answers(wants / "bin/program", env)["libwanted.so.1"] == str(other)
    environment = subprocess.run(
        [wants / "bin/program"], env={**env, "LD_DEBUG": "files"}, capture_output=True, check=True
    )
    assert str(wants / "libs").encode() not in environment.stderr


def test_the_cache_says_what_ldconfig_says() -> None:
    listed = subprocess.check_output(["/sbin/ldconfig", "-p"], text=True)
    expected = re.findall(r"^\t(\S+) \(.*\) => (\S+)$", listed, re.M)
    assert [(e.name, e.path) for e in parse_cache(Path(CACHE).read_bytes())] == expected


@pytest.mark.parametrize("size", [0, 10, 30, 60, 2000])
def test_a_cut_cache_gives_what_is_left(size: int) -> None:
    data = Path(CACHE).read_bytes()[:size]
    assert all(entry.name and entry.path for entry in parse_cache(data))


def test_two_hundred_thousand_folders_are_cut_and_said_so(wants: Path) -> None:
    path = str(wants / "bin/program")
    elf = read_elf(HOST, path)
    assert isinstance(elf, Elf)
    env = {"LD_LIBRARY_PATH": ":".join(f"/nowhere/{n}" for n in range(200_000))}
    search = Search(HOST, Mapped(path, path, elf), env)
    assert search.too_many
    assert Process(search).loaded_as("libwanted.so.1") is not None
