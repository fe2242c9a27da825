"""In which order `import torch` opens its libraries, and what that makes of a process.

torch first opens libtorch_global_deps.so by its path, then, by rules that changed from release to
release, some libraries of the nvidia-* wheels by their paths, and then its extension module. What
is opened by path wins over LD_LIBRARY_PATH, so the rules are read from the text of the installed
torch/__init__.py and not from a table of releases.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

from cudadoctor.model.machine import OptStr, Strings
from cudadoctor.probes import extract
from cudadoctor.probes.loader import Mapped, Process

PRELOADED = "preloaded by torch"
_PAIR = re.compile(r'"(\w+)"\s*[:,]\s*"(lib[\w-]+\.so[^"]*)"(\s*,\s*required=False)?')
_CALL = re.compile(r"_preload_cuda_deps\((?!\s*lib_folder)([^()]*)\)")
_MARK = re.compile(r'"([^"]+)"\s+(?:not )?in _maps')
_CUDAS = re.compile(r"version\.cuda (?:not )?in \[([^\[\]]*)\]")


class Wheel(NamedTuple):
    """A library that torch opens by path: its folder under nvidia/ and the pattern of its name."""

    folder: str
    pattern: str
    required: bool = True


class Order(NamedTuple):
    """What torch/__init__.py does before it imports its extension module.

    rescue: opened when libtorch_global_deps.so finds a CUDA library missing.
    after: opened when it loaded and marker stands in the list of mapped files.
    flat: the wheels' libraries may also lie in nvidia/cu13/lib.
    """

    rescue: tuple[Wheel, ...] = ()
    after: tuple[Wheel, ...] = ()
    marker: OptStr = None
    flat: bool = False


def parse_order(init: str, cuda: OptStr) -> Order:
    """The order that the text of torch/__init__.py prescribes for a torch built with that CUDA."""
    first, _, last = _function(init, "_load_global_deps").partition("except OSError")
    rescue = _wheels(_function(init, "_preload_cuda_deps")) or _wheels(last)
    marker = extract(_MARK, first)
    return Order(
        rescue=rescue,
        after=_after(first, rescue, cuda) if marker else (),
        marker=marker,
        flat='f"cu{' in init,
    )


def _after(text: str, table: tuple[Wheel, ...], cuda: OptStr) -> tuple[Wheel, ...]:
    only = extract(_CUDAS, text)
    if only is not None and f'"{cuda}"' not in only:
        return ()
    if named := _wheels(text):
        return named
    call = extract(_CALL, text)
    if call and "False" in call:
        return tuple(wheel._replace(required=False) for wheel in table)
    return () if call is None else table


def _wheels(text: str) -> tuple[Wheel, ...]:
    return tuple(Wheel(m[1], m[2], not m[3]) for m in _PAIR.finditer(text))


def _function(text: str, name: str) -> str:
    """The text of a function at the top level, to the next line that is not indented."""
    start = text.find(f"\ndef {name}(")
    if start < 0:
        return ""
    end = re.compile(r"\n[^\s#)]").search(text, start + 5)
    return text[start : end.start() if end else len(text)]


class Import(NamedTuple):
    """What is imported: the folder of torch, sys.path as far as wheels lie there, CUDA's major."""

    torch: str
    extension: str
    paths: Strings
    major: str
    order: Order
    global_deps: bool = True


def replay(process: Process, job: Import) -> Strings:
    """Let the process do what `import torch` does; what it misses comes back."""
    # Who calls dlopen for ctypes and for imports: libpython, else the executable.
    libpython = (mapped for mapped in process.loaded if mapped.title.startswith("libpython"))
    python = next(libpython, process.loaded[0])
    missing = _global_deps(process, python, job) if job.global_deps else []
    missing += process.open(f"{job.torch}/{job.extension}", python, keep=True).missing
    return tuple(dict.fromkeys(missing + _later(process)))


def _global_deps(process: Process, python: Mapped, job: Import) -> list[str]:
    path, order = f"{job.torch}/lib/libtorch_global_deps.so", job.order
    opened = process.open(path, python)
    if opened.ok:
        if order.marker and any(order.marker in mapped.real for mapped in process.loaded):
            _preload(process, python, job, order.after)
        return []
    blamed = "\n".join((*opened.missing, *opened.broken))
    if any(wheel.pattern.partition(".")[0] in blamed for wheel in order.rescue):
        _preload(process, python, job, order.rescue)
    return process.open(path, python, keep=True).missing


def _preload(process: Process, python: Mapped, job: Import, wheels: tuple[Wheel, ...]) -> None:
    """Open wheels' libraries by path; the first that is required and absent, or fails, ends it."""
    for wheel in wheels:
        path = next(_candidates(process, job, wheel), None)
        if path is None:
            if wheel.required:
                return
        elif not process.open(path, python, how=PRELOADED).ok:
            return


def _candidates(process: Process, job: Import, wheel: Wheel) -> Iterator[str]:
    for path in job.paths:
        flat = [f"{path}/nvidia/cu{job.major}/lib"] if job.order.flat else []
        for folder in (f"{path}/nvidia/{wheel.folder}/lib", *flat, f"{path}/{wheel.folder}/lib"):
            names = sorted(process.search.names(folder) or ())
            yield from (f"{folder}/{name}" for name in names if fnmatchcase(name, wheel.pattern))


def _later(process: Process) -> list[str]:
    """What is opened by name on first use: torch's linear algebra, cuDNN's parts, the driver.

    What is not found here is no fault of the import; of it, parts of cuDNN come back.
    """
    missing = []
    if (cpu := process.loaded_as("libtorch_cpu.so")) is not None:
        for name in ("libtorch_cuda_linalg.so", "libcaffe2_nvrtc.so"):
            process.open(name, cpu, keep=True)
    for mapped in tuple(process.loaded):
        if re.fullmatch(r"libcudnn\.so\.\d+", mapped.title):
            for name in _parts(process, mapped):
                missing += process.open(name, mapped, keep=True).missing
        elif mapped.title.startswith("libcudart.so"):
            process.open("libcuda.so.1", mapped, keep=True)
    return [name for name in missing if name.startswith("libcudnn_")]


def _parts(process: Process, cudnn: Mapped) -> list[str]:
    """Names of cuDNN's parts: those beside it and in the RECORD of its wheel, of the same major."""
    part = re.compile(rf"libcudnn_\w+\.so\.{cudnn.title.rpartition('.')[2]}")
    folder = cudnn.path.rpartition("/")[0]
    names = (process.search.names(folder) or frozenset()) | _recorded(process, folder)
    # The first call of any kind needs the graph (from 9 on) or the operators, all others need them.
    return sorted(
        filter(part.fullmatch, names),
        key=lambda name: ("_graph" not in name, "_ops" not in name, name),
    )


def _recorded(process: Process, folder: str) -> frozenset[str]:
    """What the wheel wrote beside it. Where two wheels did, one may have parts of its own."""
    site, found, _ = folder.rpartition("/nvidia/")
    names = process.search.names(site) if found else None
    wheels = [
        name for name in names or () if re.fullmatch(r"nvidia_cudnn_cu\d+-.+\.dist-info", name)
    ]
    if len(wheels) != 1:
        return frozenset()
    record = process.search.host.read(f"{site}/{wheels[0]}/RECORD").text
    return frozenset(re.findall(r"^nvidia/cudnn/lib/([\w.]+),", record, re.M))
