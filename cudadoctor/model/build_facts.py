"""The facts about what is compiled and what is loaded: toolkits, compiler, shared libraries.

The rules of the module facts hold here too; take the names from there.
"""

from __future__ import annotations

from packaging.version import Version

from cudadoctor.model.driver_facts import Section


class Toolkit(Section, frozen=True, kw_only=True):
    """A CUDA toolkit. origin: PATH, CUDA_HOME, CUDA_PATH, /usr/local, conda or wheel."""

    path: str
    origin: str
    cuda: Version | None = None
    nvcc: str | None = None


class Compiler(Section, frozen=True, kw_only=True):
    """The host C++ compiler that nvcc and torch.compile would call. present False: none on PATH."""

    present: bool | None = None
    name: str | None = None
    version: Version | None = None
    path: str | None = None


class Build(Section, frozen=True, kw_only=True):
    """What a compilation of an extension would find.

    toolkits: all that were found. used: path of the toolkit that torch's own search would take
    (CUDA_HOME, CUDA_PATH, nvcc on PATH, /usr/local/cuda), "" none.
    needed_by: installed packages that compile at run time (deepspeed ...), or "--compile".
    headers: Python.h is there for the examined interpreter.
    """

    toolkits: tuple[Toolkit, ...] | None = None
    used: str | None = None
    cuda_home: str | None = None
    cuda_home_exists: bool | None = None
    compiler: Compiler = Compiler()
    needed_by: tuple[str, ...] | None = None
    headers: bool | None = None


class Library(Section, frozen=True, kw_only=True):
    """A shared library: which file answers to a soname, and by which rule of the loader.

    how: "DT_RPATH", "DT_RUNPATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "ld.so.cache", "default",
    "preloaded by torch", "mapped"; of a copy, where it was found. via: the library whose tag
    decided, else the one that asked.
    owner: "torch" (inside the torch package), "wheel" (nvidia-* of the same environment),
    "conda", "system", "toolkit", "other".
    """

    soname: str
    path: str
    how: str | None = None
    via: str | None = None
    owner: str | None = None
    version: str | None = None


class SearchFolder(Section, frozen=True, kw_only=True):
    """A folder of LD_LIBRARY_PATH as it is spelled there, and as it is with all links followed."""

    entry: str
    real: str


class Libraries(Section, frozen=True, kw_only=True):
    """Which libraries torch gets.

    own: directories that belong to the examined torch and its own wheels.
    predicted: by the loader's rules, without running anything. mapped: in a real process.
    copies: every copy found anywhere of cuDNN, cuBLAS, NCCL, nvJitLink ... with its version.
    missing: sonames that nothing provides. search: what LD_LIBRARY_PATH names, as far as it exists.
    """

    own: tuple[str, ...] | None = None
    predicted: tuple[Library, ...] | None = None
    mapped: tuple[Library, ...] | None = None
    copies: tuple[Library, ...] | None = None
    missing: tuple[str, ...] | None = None
    search: tuple[SearchFolder, ...] | None = None
