"""Which libraries torch would get, by the loader's rules and without running anything."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from posixpath import normpath

from cudadoctor.host.local import Host
from cudadoctor.model.machine import Library, SearchFolder
from cudadoctor.probes import Looked, Notes
from cudadoctor.probes.elf import Broken, Elf, read_elf
from cudadoctor.probes.loader import MOST_FOLDERS, Mapped, Process, Search
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
    reals = ((folder, host.stat(folder).real) for folder in search.named)
    folders = (
        SearchFolder(entry=printable(folder), real=printable(real))
        for folder, real in reals
        if real
    )
    notes.fact("libraries.search", tuple(folders), "LD_LIBRARY_PATH")
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
    beside = (f"{prefix}/bin/python3", f"{prefix}/bin/python") if prefix else ()
    for path in (*((python,) if python else ()), *beside):
        real = host.stat(path).real or path
        if isinstance(elf := read_elf(host, real), Elf):
            return Mapped("", path, real, elf)
    # For an interpreter that cannot be read: a program of the processor that torch is for.
    found = read_elf(host, f"{torch_dir}/lib/libc10.so")
    known: Elf | Broken = Broken("no interpreter to read")
    if isinstance(found, Elf):
        known = Elf(bits=found.bits, little=found.little, machine=found.machine)
    return Mapped("", "/usr/bin/python3", "/usr/bin/python3", known)


# --- whose a library is, which version, and how many copies of it lie around --------------------

COPIED = re.compile(
    r"lib(cudnn(?:_\w+)?|cublas(?:Lt)?|cudart|nvrtc|nvJitLink|cusparse(?:Lt)?|cufft|curand"
    r"|cusolver|nccl|cupti|nvToolsExt|nvshmem_host|stdc\+\+)\.so(?:\.[\d.]+)?"
)
_TOOLKITS = ("/usr/local/cuda*", "/opt/cuda", "/usr/lib/cuda", "/usr/lib/nvidia-cuda-toolkit")
_SYSTEM = ("/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/", "/usr/local/lib/")
# The distributions that bring a library; the suffix -cu12 and the like is cut off.
_WHEELS = {
    "cublasLt": "cublas",
    "cudart": "cuda_runtime",
    "nvrtc": "cuda_nvrtc",
    "nvrtc-builtins": "cuda_nvrtc",
    "nvJitLink": "nvjitlink",
    "cusparseLt": "cusparselt",
    "cupti": "cuda_cupti",
    "nvToolsExt": "nvtx",
    "nvshmem_host": "nvshmem",
}


class Owners:
    """Tells to whom a file belongs, from the folders of the examined environment."""

    def __init__(
        self,
        host: Host,
        torch_dir: str | None,
        site_packages: tuple[str, ...],
        prefix: str | None,
        env: Mapping[str, str],
    ) -> None:
        self.host = host
        self.sites = site_packages
        self.env = env
        self.torch = torch_dir
        self._dists: dict[str, dict[str, list[str]]] = {}
        self.conda = _conda(host, prefix, env)
        self.toolkits = tuple(_toolkit_folders(host, env))
        self.own = tuple(self._own(prefix))
        self._torch_roots = self._roots((torch_dir,) if torch_dir else ())
        self._site_roots = self._roots(site_packages)
        self._toolkit_roots = self._roots(self.toolkits)

    def _roots(self, folders: tuple[str, ...]) -> tuple[str, ...]:
        """Each folder as it was named and without symbolic links."""
        both = (n for f in folders for n in (f, self.host.stat(f).real or f))
        return tuple(dict.fromkeys(name.rstrip("/") + "/" for name in both))

    def _own(self, prefix: str | None) -> Iterator[str]:
        seen: dict[str, None] = {}
        if self.torch:
            seen[f"{self.torch}/lib"] = None
        for site in self.sites:
            for name in self.host.listing(f"{site}/nvidia").names:
                seen[f"{site}/nvidia/{name}/lib"] = None
            seen[f"{site}/cusparselt/lib"] = None
        if prefix and prefix == self.conda and self._torch_is_conda(prefix):
            seen[f"{prefix}/lib"] = None
        real: dict[str, None] = {}
        for folder in seen:
            found = self.host.stat(folder)
            if found.is_dir:
                real[found.real] = None
                real[self._linked(folder) or found.real] = None
        yield from real

    def _linked(self, folder: str) -> str | None:
        """The real folder of the libraries there: uv can install links into its cache."""
        names = self.host.listing(folder).names
        name = next((n for n in names if ".so" in n and n.startswith("lib")), None)
        real = self.host.stat(f"{folder}/{name}").real if name else ""
        return real.rpartition("/")[0] or None

    def _torch_is_conda(self, prefix: str) -> bool:
        names = self.host.listing(f"{prefix}/conda-meta").names
        return any(re.match(r"(pytorch|libtorch)-\d.*\.json", name) for name in names)

    def owner(self, real: str, path: str) -> str:
        """torch, wheel, conda, toolkit, system or other.

        A file that is a link out of site-packages (uv can install so) belongs where the link is.
        """
        found = self._owner(real)
        return self._owner(normpath(path)) if found == "other" else found

    def _owner(self, path: str) -> str:
        conda = (f"{self.conda}/",) if self.conda else ()
        for name, roots in (
            ("torch", self._torch_roots),
            ("wheel", self._site_roots),
            ("conda", conda),
            ("toolkit", self._toolkit_roots),
            ("system", _SYSTEM),
        ):
            if path.startswith(roots):
                return name
        return "other"

    def version(self, soname: str, path: str, real: str) -> str | None:
        """From the wheel that brought it, else from the name of the real file."""
        for one in (path, real):
            found = self._wheel_version(soname, one)
            if found:
                return found
        own = soname.partition(".so.")[2]
        full = real.rpartition("/")[2].partition(".so.")[2]
        known = full != own if full.count(".") == 1 else full.count(".") > 1
        return full if known and re.fullmatch(r"[\d.]+", full) else None

    def _wheel_version(self, soname: str, path: str) -> str | None:
        site, found, inner = path.rpartition("/nvidia/")
        stem = soname.removeprefix("lib").partition(".so")[0]
        if not found or inner.count("/") < 2:
            return None
        stem = "cudnn" if stem.startswith("cudnn") else stem
        dists = self._wheels(site).get(_WHEELS.get(stem, stem), [])
        if len(dists) > 1:
            dists = [one for one in dists if self._wrote(site, one, f"nvidia/{inner}")]
        return dists[0].rpartition("-")[2] if len(dists) == 1 else None

    def _wheels(self, site: str) -> dict[str, list[str]]:
        """The nvidia distributions of a site-packages folder: short name -> name-version."""
        if site not in self._dists:
            known = self._dists[site] = {}
            for name in self.host.listing(site).names:
                found = re.fullmatch(r"nvidia_(\w+?)(_cu\d+)?-([\w.+]+)\.dist-info", name)
                if found:
                    known.setdefault(found[1], []).append(name.removesuffix(".dist-info"))
        return self._dists[site]

    def _wrote(self, site: str, dist: str, path: str) -> bool:
        """The file is as long as that RECORD says: the wheels of two CUDAs overwrite each other."""
        record = self.host.read(f"{site}/{dist}.dist-info/RECORD").text
        row = next((line for line in record.splitlines() if line.startswith(path + ",")), "")
        return row.rpartition(",")[2] == str(self.host.stat(f"{site}/{path}").size)


def find_copies(search: Search, owners: Owners) -> tuple[Library, ...]:
    """Every copy of the libraries that come in many copies, each file once."""
    seen: dict[str, Library] = {}
    for path, how in _candidates(search, owners):
        real = search.real(path)
        if real not in seen:
            one = Mapped("", path, real, search.elf(path) or Broken("gone"), how=how)
            seen[real] = library_of(one, owners)
    return tuple(seen.values())


def _candidates(search: Search, owners: Owners) -> Iterator[tuple[str, str]]:
    for folder, how in _folders(search, owners):
        for name in sorted(search.names(folder) or ()):
            if COPIED.fullmatch(name) and search.host.stat(f"{folder}/{name}").exists:
                yield f"{folder}/{name}", how
    for name, paths in search.cache.items():
        if COPIED.fullmatch(name):
            yield from ((path, "ld.so.cache") for path in paths if search.elf(path) is not None)


def _folders(search: Search, owners: Owners) -> Iterator[tuple[str, str]]:
    yield from ((folder, "own") for folder in owners.own)
    if owners.conda:
        yield f"{owners.conda}/lib", "conda"
    yield from ((folder, "LD_LIBRARY_PATH") for folder in search.path)
    for toolkit in owners.toolkits:
        yield from (
            (f"{toolkit}/{sub}", "toolkit") for sub in ("lib64", "lib", "extras/CUPTI/lib64")
        )


def _conda(host: Host, prefix: str | None, env: Mapping[str, str]) -> str | None:
    for folder in (prefix, env.get("CONDA_PREFIX")):
        if folder and host.stat(f"{folder}/conda-meta").is_dir:
            return folder.rstrip("/")
    return None


def _toolkit_folders(host: Host, env: Mapping[str, str]) -> Iterator[str]:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        folder = env.get(name, "")
        if folder.strip("/") and folder.rstrip("/") not in ("/usr", "/usr/local"):
            yield folder.rstrip("/")
    for pattern in _TOOLKITS:
        yield from host.glob(pattern)
