"""Which libraries torch would get, by the loader's rules and without running anything."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from cudadoctor.host.local import Host
from cudadoctor.model.machine import Library, SearchFolder
from cudadoctor.probes import Looked, Notes
from cudadoctor.probes.copies import Owners, find_copies
from cudadoctor.probes.elf import Broken, Elf, read_elf
from cudadoctor.probes.linkmap import Process
from cudadoctor.probes.loader import MOST_FOLDERS, Mapped, Search
from cudadoctor.probes.torch_order import Import, parse_order, replay

TRACKED = re.compile(
    r"lib(cudnn(_\w+)?|cublas(Lt)?|cudart|nvrtc(-builtins)?|nvJitLink|cusparse(Lt)?|cufft|curand"
    r"|cusolver|nccl|cupti|nvToolsExt|nvshmem_host|cufile|cuda|stdc\+\+|gcc_s|gomp|iomp5|mkl_rt"
    r"|c10(_cuda)?|torch(_cpu|_cuda|_cuda_linalg|_python)?)\.so(\.[\d.]+)?"
)


def read_libraries(  # noqa: PLR0917
    host: Host,
    torch_dir: str | None,
    site_packages: tuple[str, ...],
    prefix: str | None,
    env: Mapping[str, str],
    python: str | None = None,
) -> Looked:
    """Predict each library's file, and list all copies of those that come in many copies.

    torch_dir: the folder of the torch package. prefix: sys.prefix of the examined interpreter;
    python: its executable. env: the environment that its programs run with.
    """
    notes = Notes()
    if host.system != "Linux":
        notes.gap("libraries", "the loader's rules are known for Linux only", asked=False)
        return notes.looked()
    owners = Owners(host, torch_dir, site_packages, prefix, env)
    notes.fact("libraries.own", owners.own, "folders of the examined environment")
    search = Search(host, _executable(host, python, prefix, torch_dir), env)
    notes.fact("libraries.search", _searched(host, search), "LD_LIBRARY_PATH")
    if search.too_many:
        notes.gap("env.LD_LIBRARY_PATH", f"only its first {MOST_FOLDERS} folders were looked at")
    if "musl" in search.interpreter:
        notes.gap("libraries.predicted", "musl's loader has rules of its own")
    elif torch_dir is None:
        notes.gap("libraries.predicted", "there is no torch to load libraries")
    else:
        _predict(notes, search, torch_dir, site_packages, owners)
    notes.fact("libraries.copies", find_copies(search, owners), "folders and the loader's cache")
    return notes.looked()


def _searched(host: Host, search: Search) -> tuple[SearchFolder, ...]:
    """The folders that the user named for the loader, with their links followed."""
    reals = ((folder, host.stat(folder).real) for folder in search.named)
    return tuple(
        SearchFolder(entry=printable(folder), real=printable(real))
        for folder, real in reals
        if real
    )


def _predict(
    notes: Notes, search: Search, torch_dir: str, site_packages: tuple[str, ...], owners: Owners
) -> None:
    names = search.names(torch_dir) or frozenset()
    extension = next((n for n in sorted(names) if re.fullmatch(r"_C\.[\w.-]*so", n)), None)
    if extension is None:
        notes.gap("libraries.predicted", f"{torch_dir} has no extension module _C")
        return
    job = _job(search, torch_dir, extension, site_packages)
    process = Process(search)
    missing = replay(process, job)
    found = tuple(library_of(one, owners) for one in process.loaded if TRACKED.fullmatch(one.title))
    source = "ELF tags, the environment and ld.so.cache by the loader's rules"
    notes.fact("libraries.predicted", found, source)
    notes.fact("libraries.missing", tuple(printable(name) for name in missing), source)


def _job(search: Search, torch_dir: str, extension: str, paths: tuple[str, ...]) -> Import:
    host = search.host
    version = host.read(f"{torch_dir}/version.py", 1 << 16).text
    named = re.search(r"^cuda\b[^=\n]*=\s*['\"]([\d.]+)['\"]", version, re.M)
    cuda = named[1] if named else None
    return Import(
        torch=torch_dir,
        extension=extension,
        paths=paths,
        major=(cuda or "").partition(".")[0],
        order=parse_order(host.read(f"{torch_dir}/__init__.py").text, cuda),
        global_deps=not search.env.get("TORCH_USE_RTLD_GLOBAL"),
    )


def mapped_libraries(  # noqa: PLR0917
    host: Host,
    maps: Iterable[str],
    torch_dir: str | None,
    site_packages: tuple[str, ...],
    prefix: str | None,
    env: Mapping[str, str],
) -> tuple[Library, ...]:
    """The tracked libraries among files that are mapped in a real process, as facts."""
    owners = Owners(host, torch_dir, site_packages, prefix, env)
    found: dict[str, Library] = {}
    for path in maps:
        if not TRACKED.fullmatch(path.rpartition("/")[2]) or path in found:
            continue
        elf = read_elf(host, path)
        soname = (elf.soname if isinstance(elf, Elf) else None) or path.rpartition("/")[2]
        one = Mapped(soname, path, path, elf or Broken("gone"), how="mapped")
        found[path] = library_of(one, owners)
    return tuple(found.values())


def library_of(one: Mapped, owners: Owners) -> Library:
    """A mapped file as a fact. The first of a soname answers to it."""
    return Library(
        soname=printable(one.title),
        path=printable(one.real),
        how=one.how,
        via=printable(one.via) if one.via else None,
        owner=owners.owner(one.real, one.path),
        version=owners.version(one.title, one.path, one.real),
    )


def printable(text: str) -> str:
    """Names of files can hold any byte; facts are text."""
    return text.encode("utf-8", "replace").decode()


def _executable(
    host: Host, python: str | None, prefix: str | None, torch_dir: str | None
) -> Mapped:
    """The program that loads torch: its own DT_RPATH counts for all libraries."""
    for path in _interpreters(python, prefix):
        real = host.stat(path).real or path
        elf = read_elf(host, real)
        if isinstance(elf, Elf):
            return Mapped("", path, real, elf)
    return Mapped("", "/usr/bin/python3", "/usr/bin/python3", _any_elf(host, torch_dir))


def _interpreters(python: str | None, prefix: str | None) -> Iterator[str]:
    if python:
        yield python
    if prefix:
        yield from (f"{prefix}/bin/python3", f"{prefix}/bin/python")


def _any_elf(host: Host, torch_dir: str | None) -> Elf | Broken:
    """For an interpreter that cannot be read: a program of the processor that torch is for."""
    elf = read_elf(host, f"{torch_dir}/lib/libc10.so")
    if not isinstance(elf, Elf):
        return Broken("no interpreter to read")
    return Elf(bits=elf.bits, little=elf.little, machine=elf.machine)
