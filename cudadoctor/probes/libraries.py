"""Which libraries torch would get, by the loader's rules and without running anything."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from posixpath import normpath

from cudadoctor.host.children import Environment
from cudadoctor.host.local import Host
from cudadoctor.model.machine import Library, OptStr, SearchFolder, Strings, StrPair
from cudadoctor.probes import Looked, extract
from cudadoctor.probes.elf import Elf, read_elf
from cudadoctor.probes.loader import ABSENT, CACHED, MOST_FOLDERS, Mapped, Process, Search
from cudadoctor.probes.torch_order import Import, parse_order, replay

TRACKED = re.compile(
    r"lib(cudnn(_\w+)?|cublas(Lt)?|cudart|nvrtc(-builtins)?|nvJitLink|cusparse(Lt)?|cufft|curand"
    r"|cusolver|nccl|cupti|nvToolsExt|nvshmem_host|cufile|cuda|stdc\+\+|gcc_s|gomp|iomp5|mkl_rt"
    r"|c10(_cuda)?|torch(_cpu|_cuda|_cuda_linalg|_python)?)\.so(\.[\d.]+)?"
)


def read_libraries(  # noqa: PLR0917
    host: Host,
    torch_dir: OptStr,
    site_packages: Strings,
    prefix: OptStr,
    env: Environment,
    python: OptStr = None,
) -> Looked:
    """Predict each library's file, and list all copies of those that come in many copies.

    torch_dir: the folder of the torch package. prefix: sys.prefix of the examined interpreter;
    python: its executable. env: the environment that its programs run with.
    """
    notes = Looked()
    if host.system != "Linux":
        notes.gap("libraries", "library loading is only checked on Linux", asked=False)
        return notes
    owners = Owners(host, torch_dir, site_packages, prefix, env)
    notes.fact("libraries.own", owners.own, "folders of the examined environment")
    search = Search(host, _executable(host, python, prefix, torch_dir), env)
    folders = tuple(
        SearchFolder(entry=printable(folder), real=printable(real))
        for folder in search.named
        if (real := host.stat(folder).real)
    )
    notes.fact("libraries.search", folders, "LD_LIBRARY_PATH")
    if search.too_many:
        notes.gap(
            "env.LD_LIBRARY_PATH",
            f"only the first {MOST_FOLDERS} folders in LD_LIBRARY_PATH were checked",
        )
    if "musl" in search.interpreter:
        notes.gap("libraries.predicted", "library loading is not checked on musl systems")
    elif torch_dir is None:
        notes.gap("libraries.predicted", "torch is not installed")
    else:
        _predict(notes, search, torch_dir, owners)
    notes.fact("libraries.copies", find_copies(search, owners), "folders and the loader's cache")
    return notes


def _predict(notes: Looked, search: Search, torch_dir: str, owners: Owners) -> None:
    names = sorted(search.names(torch_dir) or ())
    extension = next((name for name in names if re.fullmatch(r"_C\.[\w.-]*so", name)), None)
    if extension is None:
        notes.gap("libraries.predicted", f"{torch_dir} does not contain the extension module _C")
        return
    version = search.host.read(f"{torch_dir}/version.py", 1 << 16).text
    cuda = extract(r"(?m)^cuda\b[^=\n]*=\s*['\"]([\d.]+)['\"]", version)
    job = Import(
        torch=torch_dir,
        extension=extension,
        paths=owners.sites,
        major=(cuda or "").partition(".")[0],
        order=parse_order(search.host.read(f"{torch_dir}/__init__.py").text, cuda),
        global_deps=not search.env.get("TORCH_USE_RTLD_GLOBAL"),
    )
    process = Process(search)
    missing = replay(process, job)
    source = "ELF tags, the environment and ld.so.cache by the loader's rules"
    found = (mapped for mapped in process.loaded if TRACKED.fullmatch(mapped.title))
    notes.fact("libraries.predicted", tuple(map(owners.library, found)), source)
    notes.fact("libraries.missing", tuple(map(printable, missing)), source)


def mapped_libraries(owners: Owners, maps: Iterable[str]) -> tuple[Library, ...]:
    """The tracked libraries among files that are mapped in a real process, as facts."""
    paths = dict.fromkeys(path for path in maps if TRACKED.fullmatch(path.rpartition("/")[2]))
    return tuple(
        owners.library(Mapped(path, path, read_elf(owners.host, path) or ABSENT, how="mapped"))
        for path in paths
    )


def printable(text: str) -> str:
    """Names of files can hold any byte; facts are text."""
    return text.encode("utf-8", "replace").decode()


def _executable(host: Host, python: OptStr, prefix: OptStr, torch_dir: OptStr) -> Mapped:
    """The program that loads torch: its own DT_RPATH counts for all libraries."""
    beside = (f"{prefix}/bin/python3", f"{prefix}/bin/python") if prefix else ()
    for path in filter(None, (python, *beside)):
        real = host.stat(path).real or path
        if (elf := read_elf(host, real)) and not elf.why:
            return Mapped(path, real, elf)
    # For an interpreter that cannot be read: a program of the processor that torch is for.
    elf = read_elf(host, f"{torch_dir}/lib/libc10.so") or ABSENT
    if not elf.why:
        elf = Elf(bits=elf.bits, little=elf.little, machine=elf.machine)
    return Mapped("/usr/bin/python3", "/usr/bin/python3", elf)


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
        torch_dir: OptStr,
        site_packages: Strings,
        prefix: OptStr,
        env: Environment,
    ) -> None:
        self.host = host
        self.sites = site_packages
        self._dists: dict[str, dict[str, list[str]]] = {}
        prefixes = (folder for folder in (prefix, env.get("CONDA_PREFIX")) if folder)
        conda = (folder for folder in prefixes if host.stat(f"{folder}/conda-meta").is_dir)
        self.conda = next((folder.rstrip("/") for folder in conda), None)
        self.toolkits = tuple(_toolkit_folders(host, env))
        self.own = tuple(self._own(torch_dir, prefix))
        self._roots = {
            "torch": self._both((torch_dir,) if torch_dir else ()),
            "wheel": self._both(site_packages),
            "conda": (f"{self.conda}/",) if self.conda else (),
            "toolkit": self._both(self.toolkits),
            "system": _SYSTEM,
        }

    def _both(self, folders: Strings) -> Strings:
        """Each folder as it was named and without symbolic links."""
        both = (name for path in folders for name in (path, self.host.stat(path).real or path))
        return tuple(dict.fromkeys(name.rstrip("/") + "/" for name in both))

    def _own(self, torch_dir: OptStr, prefix: OptStr) -> Iterable[str]:
        host = self.host
        folders = [f"{torch_dir}/lib"] if torch_dir else []
        for site in self.sites:
            names = host.listing(f"{site}/nvidia").names
            folders += [f"{site}/nvidia/{name}/lib" for name in names]
            folders.append(f"{site}/cusparselt/lib")
        if prefix and prefix == self.conda:
            names = host.listing(f"{prefix}/conda-meta").names
            if any(re.match(r"(pytorch|libtorch)-\d.*\.json", name) for name in names):
                folders.append(f"{prefix}/lib")
        real: dict[str, None] = {}
        for folder in dict.fromkeys(folders):
            found = host.stat(folder)
            if found.is_dir:
                real |= dict.fromkeys((found.real, self._linked(folder) or found.real))
        return real

    def _linked(self, folder: str) -> OptStr:
        """The real folder of the libraries there: uv can install links into its cache."""
        names = self.host.listing(folder).names
        name = next((name for name in names if ".so" in name and name.startswith("lib")), None)
        real = self.host.stat(f"{folder}/{name}").real if name else ""
        return real.rpartition("/")[0] or None

    def library(self, mapped: Mapped) -> Library:
        """A mapped file as a fact. The first of a soname answers to it."""
        return Library(
            soname=printable(mapped.title),
            path=printable(mapped.real),
            how=mapped.how,
            via=printable(mapped.via) if mapped.via else None,
            owner=self.owner(mapped.real, mapped.path),
            version=self.version(mapped.title, mapped.path, mapped.real),
        )

    def owner(self, real: str, path: str) -> str:
        """torch, wheel, conda, toolkit, system or other.

        A file that is a link out of site-packages (uv can install so) belongs where the link is.
        """
        for place in (real, normpath(path)):
            for name, roots in self._roots.items():
                if place.startswith(roots):
                    return name
        return "other"

    def version(self, soname: str, path: str, real: str) -> OptStr:
        """From the wheel that brought it, else from the name of the real file."""
        if found := self._wheel_version(soname, path) or self._wheel_version(soname, real):
            return found
        full = real.rpartition("/")[2].partition(".so.")[2]
        known = full != soname.partition(".so.")[2] if full.count(".") == 1 else "." in full
        return full if known and re.fullmatch(r"[\d.]+", full) else None

    def _wheel_version(self, soname: str, path: str) -> OptStr:
        site, found, inner = path.rpartition("/nvidia/")
        stem = soname.removeprefix("lib").partition(".so")[0]
        if not found or inner.count("/") < 2:
            return None
        stem = "cudnn" if stem.startswith("cudnn") else stem
        dists = self._wheels(site).get(_WHEELS.get(stem, stem), [])
        if len(dists) > 1:
            dists = [dist for dist in dists if self._wrote(site, dist, f"nvidia/{inner}")]
        return dists[0].rpartition("-")[2] if len(dists) == 1 else None

    def _wheels(self, site: str) -> dict[str, list[str]]:
        """The nvidia distributions of a site-packages folder: short name -> name-version."""
        if site not in self._dists:
            known = self._dists[site] = {}
            for name in self.host.listing(site).names:
                found = re.fullmatch(r"(nvidia_(\w+?)(_cu\d+)?-[\w.+]+)\.dist-info", name)
                if found:
                    known.setdefault(found[2], []).append(found[1])
        return self._dists[site]

    def _wrote(self, site: str, dist: str, path: str) -> bool:
        """The file is as long as that RECORD says: the wheels of two CUDAs overwrite each other."""
        record = self.host.read(f"{site}/{dist}.dist-info/RECORD").text
        row = next((line for line in record.splitlines() if line.startswith(path + ",")), "")
        return row.rpartition(",")[2] == str(self.host.stat(f"{site}/{path}").size)


def find_copies(search: Search, owners: Owners) -> tuple[Library, ...]:
    """Every copy of the libraries that come in many copies, each file once."""
    seen = {}
    for path, how in _candidates(search, owners):
        real = search.real(path)
        if real not in seen:
            seen[real] = owners.library(Mapped(path, real, search.elf(path) or ABSENT, how=how))
    return tuple(seen.values())


def _candidates(search: Search, owners: Owners) -> Iterator[StrPair]:
    insides = ("lib64", "lib", "extras/CUPTI/lib64")
    folders = [(folder, "own") for folder in owners.own]
    folders += [(f"{owners.conda}/lib", "conda")] if owners.conda else []
    folders += [(folder, "LD_LIBRARY_PATH") for folder in search.path]
    folders += [(f"{root}/{inside}", "toolkit") for root in owners.toolkits for inside in insides]
    for folder, how in folders:
        for name in sorted(search.names(folder) or ()):
            if COPIED.fullmatch(name) and search.host.stat(f"{folder}/{name}").exists:
                yield f"{folder}/{name}", how
    for name, paths in search.cached.items():
        if COPIED.fullmatch(name):
            yield from ((path, CACHED) for path in paths if search.elf(path) is not None)


def _toolkit_folders(host: Host, env: Environment) -> Iterator[str]:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        folder = env.get(name, "").rstrip("/")
        if folder not in ("", "/usr", "/usr/local"):
            yield folder
    for pattern in _TOOLKITS:
        yield from host.glob(pattern)
