"""The architectures compiled into torch, read from libraries made by gcc for the test."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from cudadoctor.host.local import Host, LocalHost
from cudadoctor.probes.installed import archs_of, binding, flags_in, pe_section

gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc to make a library with")


def read_archs(host: Host, torch: str, prefix: str | None = None) -> tuple[str, ...] | None:
    path = binding(host, torch, prefix)
    return archs_of(host, path) if path else None


def library(folder: Path, text: str, name: str = "libtorch_python.so") -> Path:
    """A shared library that holds a text among its constants, as torch's binding does."""
    source = folder / "flags.c"
    source.write_text(f'const char *flags(void) {{ return "{text}"; }}\n')
    built = folder / name
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", built, source], check=True)
    return built


@gcc
@pytest.mark.parametrize(
    ("text", "archs"),
    [
        ("sm_75 sm_80 sm_90 compute_90", ("sm_75", "sm_80", "sm_90", "compute_90")),
        ("sm_90", ("sm_90",)),
        ("sm_90a sm_100f", ("sm_90a", "sm_100f")),
        ("sm_37;sm_50;compute_50", ("sm_37", "sm_50", "compute_50")),
        ("gfx900 gfx90a gfx942", ("gfx900", "gfx90a", "gfx942")),
        ("sm_fast is no list", None),
        ("built for sm_75 sm_80 and such", ("sm_75", "sm_80")),
        ("sm_75 and sm_80", None),
        ("std::string ipc_hsm_70 sm_75 sm_120", ("sm_70", "sm_75", "sm_120")),
    ],
)
def test_the_list_is_the_text_that_torch_was_compiled_with(
    tmp_path: Path, text: str, archs: tuple[str, ...] | None
) -> None:
    assert archs_of(LocalHost(), str(library(tmp_path, text))) == archs


@gcc
def test_a_library_without_section_headers_is_searched_as_a_whole(tmp_path: Path) -> None:
    path = library(tmp_path, "sm_80 sm_90")
    data = bytearray(path.read_bytes())
    data[40:48] = bytes(8)  # e_shoff: where the section headers begin
    data[60:64] = bytes(4)  # e_shnum, e_shstrndx
    path.write_bytes(data)
    assert archs_of(LocalHost(), str(path)) == ("sm_80", "sm_90")


@gcc
def test_the_binding_lies_beside_torch_or_in_the_prefix(tmp_path: Path) -> None:
    host, torch, prefix = LocalHost(), tmp_path / "torch", tmp_path / "prefix"
    (torch / "lib").mkdir(parents=True)
    (prefix / "lib").mkdir(parents=True)
    assert binding(host, str(torch), str(prefix)) is None
    assert read_archs(host, str(torch), str(prefix)) is None
    library(prefix / "lib", "sm_80")
    assert read_archs(host, str(torch), str(prefix)) == ("sm_80",)
    library(torch / "lib", "sm_90")
    assert read_archs(host, str(torch), str(prefix)) == ("sm_90",)


def test_the_longest_list_wins_over_single_names() -> None:
    assert flags_in(b"\0sm_90\0..\0sm_75 sm_80\0") == ("sm_75", "sm_80")
    assert flags_in(b"sm_75 sm_80\0") is None
    assert flags_in(b"") is None


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"\x7fELF\x02\x01\x01" + b"\xff" * 200])
def test_garbage_holds_no_list(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "libtorch_python.so").write_bytes(data)
    assert archs_of(LocalHost(), str(tmp_path / "libtorch_python.so")) is None
    assert archs_of(LocalHost(), str(tmp_path / "absent.so")) is None


def windows_library(flags: bytes) -> bytes:
    """The parts of a Windows library that lead to its constants."""
    head = bytearray(0x400)
    struct.pack_into("<I", head, 0x3C, 0x80)
    head[0x80:0x84] = b"PE\0\0"
    struct.pack_into("<H", head, 0x86, 2)
    struct.pack_into("<H", head, 0x94, 0xF0)
    first = 0x80 + 24 + 0xF0
    head[first : first + 8] = b".text\0\0\0"
    head[first + 40 : first + 48] = b".rdata\0\0"
    struct.pack_into("<II", head, first + 56, len(flags), 0x400)
    return bytes(head) + flags


def test_a_windows_library_is_read_by_its_own_sections(tmp_path: Path) -> None:
    data = windows_library(b"..\0sm_75 sm_86\0..")
    found = pe_section(data[:1024], b".rdata")
    assert found is not None
    assert (found.offset, found.size) == (0x400, 17)
    assert pe_section(b"MZ", b".rdata") is None
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "torch_python.dll").write_bytes(data)
    assert read_archs(LocalHost(), str(tmp_path)) == ("sm_75", "sm_86")
