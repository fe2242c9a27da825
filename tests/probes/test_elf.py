"""The ELF reader against pyelftools, and against files that are none."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from hypothesis import given
from hypothesis import strategies as st

from cudadoctor.host.local import LocalHost
from cudadoctor.probes.elf import Elf, Section, find_section, parse, read_elf, section

HOST = LocalHost()


def libraries() -> list[Path]:
    """Real files of many makers: the system's, the interpreter's, a wheel's, an executable."""
    folders = [Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib/aarch64-linux-gnu")]
    found = [p for f in folders if f.is_dir() for p in sorted(f.glob("lib*.so.*"))[:60]]
    extensions = sorted(Path(msgspec.__file__).parent.glob("*.so"))
    return [*found, *extensions, Path(sys.executable).resolve()]


def by_pyelftools(path: Path) -> tuple[str | None, tuple[str, ...], str | None, str | None]:
    with path.open("rb") as stream:
        dynamic = ELFFile(stream).get_section_by_name(".dynamic")
        assert isinstance(dynamic, DynamicSection)
        tags = list(dynamic.iter_tags())
    last = {t.entry.d_tag: t for t in tags}

    def value(tag: object, attribute: str) -> str:
        return str(getattr(tag, attribute))

    def text(tag: str, attribute: str) -> str | None:
        return value(last[tag], attribute) if tag in last else None

    needed = tuple(value(t, "needed") for t in tags if t.entry.d_tag == "DT_NEEDED")
    soname, rpath = text("DT_SONAME", "soname"), text("DT_RPATH", "rpath")
    return soname, needed, rpath, text("DT_RUNPATH", "runpath")


@pytest.mark.parametrize("path", libraries(), ids=lambda p: p.name)
def test_the_dynamic_section_is_what_pyelftools_reads(path: Path) -> None:
    elf = read_elf(HOST, str(path))
    assert isinstance(elf, Elf)
    assert (elf.soname, elf.needed, elf.rpath, elf.runpath) == by_pyelftools(path)


@pytest.mark.parametrize("name", [".rodata", ".dynamic", ".shstrtab", ".no-such-section"])
def test_sections_lie_where_pyelftools_finds_them(name: str) -> None:
    path = Path(sys.executable).resolve()
    with path.open("rb") as stream:
        expected = ELFFile(stream).get_section_by_name(name)
    found = find_section(HOST, str(path), name)
    assert (found is None) == (expected is None)
    if expected is not None:
        assert found == Section(expected["sh_offset"], expected["sh_size"])


def test_the_executable_names_its_loader() -> None:
    elf = read_elf(HOST, str(Path(sys.executable).resolve()))
    assert isinstance(elf, Elf)
    assert elf.interpreter is not None
    assert Path(elf.interpreter).exists()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "file too short"),
        (b"\x7fELF", "file too short"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "invalid ELF header"),
        (b"INPUT(-lcudnn) /* a linker script, not a library */", "invalid ELF header"),
        (b"\x7fELF\x02\x01\x01" + bytes(60), "ELF file's phentsize not the expected size"),
    ],
)
def test_what_is_no_library_says_why(tmp_path: Path, data: bytes, why: str) -> None:
    (tmp_path / "libx.so").write_bytes(data)
    assert read_elf(HOST, str(tmp_path / "libx.so")) == Elf(why=why)


def test_an_absent_file_a_loop_and_a_folder_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "loop.so").symlink_to("loop.so")
    assert read_elf(HOST, str(tmp_path / "absent.so")) is None
    assert isinstance(elf := read_elf(HOST, str(tmp_path / "loop.so")), Elf)
    assert elf.why
    assert isinstance(elf := read_elf(HOST, str(tmp_path)), Elf)
    assert elf.why


def test_a_named_pipe_does_not_hold_the_reader_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "libcudnn.so.9")
    assert read_elf(HOST, str(tmp_path / "libcudnn.so.9")) == Elf(why="file too short")


REAL = Path(sys.executable).resolve().read_bytes()[: 1 << 16]


@given(st.data())
def test_no_damage_to_a_real_file_raises(data: st.DataObject) -> None:
    damaged = bytearray(REAL[: data.draw(st.integers(0, len(REAL)))])
    for _ in range(data.draw(st.integers(1, 12))):
        if damaged:
            where = data.draw(st.integers(0, min(len(damaged) - 1, 4096)))
            damaged[where] = data.draw(st.integers(0, 255))
    whole = bytes(damaged)

    def at(offset: int, size: int) -> bytes:
        return whole[offset : offset + size]

    assert isinstance(parse(at), Elf)
    section(at, ".rodata")


@given(st.binary(max_size=4096))
def test_garbage_behind_a_good_beginning_never_raises(rest: bytes) -> None:
    whole = b"\x7fELF\x02\x01\x01" + bytes(9) + rest
    assert isinstance(parse(lambda o, n: whole[o : o + n]), Elf)
