"""What is installed in the examined environment: torch, read without importing it, and its kin."""

from __future__ import annotations

import re
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from cudadoctor.host.local import Host, existing
from cudadoctor.model.machine import (
    Distribution,
    Json,
    OptInt,
    OptStr,
    OptStrings,
    OptVersion,
    Strings,
    StrPair,
    TorchCopy,
)
from cudadoctor.model.versions import tagged_for, version_of, whole
from cudadoctor.probes import Looked
from cudadoctor.probes.elf import Section, find_section

# --- the lines of inside/look.py ------------------------------------------------------------------


class PythonLine(Struct, frozen=True):
    """The interpreter itself. pyvenv: text of its pyvenv.cfg, None where there is none."""

    executable: str
    version: str
    implementation: str
    free_threaded: bool
    bits: int
    prefix: str
    base_prefix: str
    site_packages: str
    user_site: str
    pyvenv: OptStr
    conda: bool
    conda_base: bool
    embedded: bool
    externally_managed: bool
    abi: OptStr
    headers: bool
    ensurepip: bool
    env_free_bytes: OptInt


class DistLine(Struct, frozen=True):
    """A distribution. folder: its dist-info. texts: small files that tell what it was built for."""

    name: str
    version: str
    entry: str
    folder: str
    installer: str
    requires: Strings
    texts: dict[str, OptStr]


class CopyLine(Struct, frozen=True):
    """A folder of the path that holds something named torch, or torch's dist-info.

    shape: package, module (torch.py), remains (a package without __init__.py), "" (nothing).
    dists: folder and version of each dist-info. text: its version.py.
    """

    path: str
    entry: str
    origin: str
    shape: str
    dists: tuple[dict[str, str], ...]
    text: OptStr
    lib: bool


class CondaLine(Struct, frozen=True):
    """File names of conda's records: name-version-build.json."""

    folder: str
    records: Strings


class OtherLine(Struct, frozen=True):
    """Any other: path, leftovers, pip, shadows, end.

    entries: the path of the user's programs, (folder, cwd | PYTHONPATH | user | own). nowhere: the
    working folder was deleted. names: what a killed pip left in a folder of the path. files: those
    of the working folder with the names of modules that torch imports.
    """

    entries: tuple[StrPair, ...] = ()
    nowhere: bool = False
    names: Strings = ()
    files: Strings = ()


_LINES: Json = {
    "python": PythonLine,
    "dist": DistLine,
    "copy": CopyLine,
    "conda": CondaLine,
}


class InsideLook(Struct, frozen=True, kw_only=True):
    """What look.py reported. complete False: it was cut off by a crash, a hang or a flood."""

    python: PythonLine | None = None
    path: tuple[StrPair, ...] = ()
    nowhere: bool = False
    dists: tuple[DistLine, ...] = ()
    copies: tuple[CopyLine, ...] = ()
    leftovers: Strings = ()
    conda: CondaLine | None = None
    pip: bool = False
    shadows: OptStrings = None
    complete: bool = False


def parse(stdout: str) -> InsideLook:
    """The lines among whatever else the interpreter printed."""
    lines: dict[str, list[Any]] = defaultdict(list)
    for text in stdout.splitlines():
        if found := re.match(r'\{"kind": "(\w+)"', text):
            shape = _LINES.get(found[1], OtherLine)
            with suppress(msgspec.DecodeError, UnicodeError, RecursionError):
                lines[found[1]].append(msgspec.json.decode(text, type=shape))
    return InsideLook(
        python=next(iter(lines["python"]), None),
        path=next((line.entries for line in lines["path"]), ()),
        nowhere=any(line.nowhere for line in lines["path"]),
        dists=tuple(lines["dist"]),
        copies=tuple(lines["copy"]),
        leftovers=tuple(name for line in lines["leftovers"] for name in line.names),
        conda=next(iter(lines["conda"]), None),
        pip=bool(lines["pip"]),
        shadows=next((line.files for line in lines["shadows"]), None),
        complete=bool(lines["end"]),
    )


# --- torch and its kin ----------------------------------------------------------------------------

_ASSIGNED = re.compile(r"""(?m)^(\w+)(?:[ \t]*:[^=\n]*|[ \t]*)=[ \t]*(?:['"]([^'"]*)['"]|None)""")
# pip renames what it removes: a ~ and more such characters take the place of the first letters.
_OF_TORCH = re.compile(r"~[-~.=%0-9]*(?:orch|rch|ch)(?:-[0-9].*)?$")
_RECORD_NAME = re.compile(r"(.+)-([^-]+)-([^-]+)\.json")

Build = Literal["cuda", "cpu", "rocm", "xpu"]


def note_torch(notes: Looked, host: Host, look: InsideLook, prefix: str) -> None:
    """Note the torch that the path holds: its build, its copies, the state of its files."""
    # The first copy that is torch and no file of the user's by that name.
    real = next((copy for copy in look.copies if kind_of_copy(copy) != "local"), None)
    copies, path = copies_of(look, prefix), real.path if real else None
    notes.section(
        "torch", "the path of the interpreter", copies=copies, installed=real is not None, path=path
    )
    left = tuple(filter(_OF_TORCH.match, look.leftovers))
    notes.fact("torch.leftovers", left, "names in site-packages")
    if real is not None:
        dist = _metadata(look, real)
        _note_metadata(notes, dist, real, copies)
        _note_files(notes, host, look, dist, real)
        _note_archs(notes, host, real, _note_version(notes, real), prefix)


def kind_of_copy(copy: CopyLine) -> Literal["distribution", "folder", "local"]:
    """Whether a copy was installed, lies there without metadata, or is the user's own file."""
    if copy.dists:
        return "distribution"
    whole = copy.shape == "package" and copy.text is not None and copy.lib
    return "folder" if whole or copy.shape == "remains" else "local"


def copies_of(look: InsideLook, prefix: str) -> tuple[TorchCopy, ...]:
    """All copies in the order of the path; two sets of metadata in one folder are two."""
    record = next((version for name, version, _ in conda_records(look) if name == "pytorch"), None)
    copies = []
    for copy in look.copies:
        kind = kind_of_copy(copy)
        text = _version_in(copy.text)
        first = TorchCopy(path=copy.path, kind=kind, version=text, where=copy.entry)
        mine = [first]
        if len(copy.dists) > 1 or (copy.dists and not text):
            versions = (dist.get("version") or None for dist in copy.dists)
            mine = [replace(first, version=version) for version in versions]
        if record and kind != "local" and copy.entry.startswith(prefix):
            dist = _metadata(look, copy)
            by_conda = dist is None or dist.installer in ("conda", "")
            conda = replace(first, kind="conda", version=record)
            mine = [conda] if by_conda else [*mine, conda]
            record = None
        copies += mine
    return tuple(copies)


def conda_records(look: InsideLook) -> list[tuple[str, str, str]]:
    """Name, version and file name of each record of conda that matters."""
    named = map(_RECORD_NAME.fullmatch, look.conda.records if look.conda else ())
    return [(found[1], found[2], found[0]) for found in named if found]


def _metadata(look: InsideLook, copy: CopyLine) -> DistLine | None:
    """torch's distribution beside a copy; of several the one whose version the copy has."""
    beside = [dist for dist in look.dists if dist.name == "torch" and dist.entry == copy.entry]
    text = (_version_in(copy.text) or "").partition("+")[0]
    fitting = (dist for dist in beside if dist.version.partition("+")[0] == text)
    return next(fitting, beside[0] if beside else None)


def _note_metadata(
    notes: Looked, dist: DistLine | None, real: CopyLine, copies: tuple[TorchCopy, ...]
) -> None:
    conda = any(copy.kind == "conda" and copy.path == real.path for copy in copies)
    by, source = "", "conda-meta"
    if dist is not None:
        by, source = dist.installer, f"{dist.entry}/{dist.folder}"
        notes.fact("torch.requires", dist.requires, f"{source}/METADATA")
    else:
        notes.gap("torch.requires", f"{real.path} has no package metadata", asked=False)
    if by or conda:
        notes.fact("torch.installer", by or "conda", source)
    else:
        notes.gap("torch.installer", "torch has no INSTALLER file", asked=False)


def _note_files(
    notes: Looked, host: Host, look: InsideLook, dist: DistLine | None, real: CopyLine
) -> None:
    """What RECORD says of the files; without one, whether the package is there at all."""
    damage = compare(host, dist.entry, dist.folder) if dist else None
    if dist is None or damage is None:
        gone = real.shape == "remains" or (real.shape != "package" and real.text is None)
        missing = ("torch/__init__.py",) if gone else ()
        notes.section("torch", real.path, missing_files=missing, empty_files=())
        return
    wheels = ((dist.entry, dist.folder) for dist in look.dists if dist.name.startswith("nvidia-"))
    below = compare_wheels(host, wheels)
    source = f"{dist.entry}/{dist.folder}/RECORD"
    if below != Damage():
        source = "RECORD of torch and its wheels"
    for name in damage.__struct_fields__:
        notes.fact(f"torch.{name}_files", getattr(damage, name) + getattr(below, name), source)


def _note_version(notes: Looked, real: CopyLine) -> Build | None:
    source = f"{real.path}/version.py"
    found = assigned(real.text or "")
    beside = (dist.get("version") for dist in real.dists)
    text = found.get("__version__") or next(filter(None, beside), None)
    if not text:
        notes.gap("torch.version", f"{source} contains no version")
        notes.gap("torch.build", f"{source} contains no version")
        return None
    version, build = version_of(text), build_of(found)
    notes.fact("torch.text", text, source)
    notes.fact("torch.version", version, source, f"{text} in {source} is not a valid version")
    notes.fact(
        "torch.build", build, source, f"{source} does not say which device torch was built for"
    )
    if build is None:
        return None
    cuda = version_of(found.get("cuda")) if build == "cuda" else None
    notes.section("torch", source, hip=found.get("hip") or "", cuda=cuda)
    return build


def _version_in(text: OptStr) -> OptStr:
    """The version that a version.py assigns."""
    return assigned(text or "").get("__version__")


def assigned(text: str) -> dict[str, OptStr]:
    """The plain assignments of a version.py, read as text: `cuda: Optional[str] = '13.0'`."""
    return {found[1]: found[2] for found in _ASSIGNED.finditer(text)}


def build_of(found: dict[str, OptStr]) -> Build | None:
    """For which device a torch was built, from the assignments of its version.py."""
    text = found.get("__version__") or ""
    if found.get("hip") or "+rocm" in text:
        return "rocm"
    if found.get("cuda"):
        return "cuda"
    if found.get("xpu") or "+xpu" in text:
        return "xpu"
    return "cpu" if "cuda" in found else None


def _note_archs(
    notes: Looked, host: Host, real: CopyLine, build: Build | None, prefix: str
) -> None:
    if build in ("cpu", "xpu"):
        notes.fact("torch.archs", (), f"{real.path}/version.py")
    elif (library := binding(host, real.path, prefix)) is None:
        notes.gap("torch.archs", f"{real.path}/lib does not contain libtorch_python")
    elif (archs := archs_of(host, library)) is None:
        notes.gap("torch.archs", f"{library} contains no list of architectures")
    else:
        notes.fact("torch.archs", archs, library)


def packages(look: InsideLook) -> tuple[Distribution, ...]:
    """The distributions that matter, in order of the path; then what only conda knows."""
    found = [_distribution(dist) for dist in look.dists]
    names = {dist.name for dist in look.dists}
    folder = look.conda.folder if look.conda else ""
    return tuple(found) + tuple(
        Distribution(name=name, version=version, location=f"{folder}/{file}", installer="conda")
        for name, version, file in conda_records(look)
        if name not in names
    )


def _distribution(line: DistLine) -> Distribution:
    cuda, torch = built_for(line)
    return Distribution(
        name=line.name,
        version=line.version,
        location=line.entry,
        installer=line.installer or None,
        requires=line.requires,
        cuda=cuda,
        torch=torch,
    )


def built_for(line: DistLine) -> tuple[OptVersion, OptVersion]:
    """The CUDA and the torch that a compiled package says it was built for.

    A version of one part means that whole major (flash-attn's cu12).
    """
    for file, patterns in BUILT_FOR.items():
        if text := line.texts.get(file):
            table = text.partition("torch_info")[2] or text
            found = (re.search(pattern, table) for pattern in patterns)
            # 0.0 where there was no torch when it was installed.
            releases = [".".join(part.groups()) if part else "" for part in found]
            versions = [None if text == "0.0" else version_of(text) for text in releases]
            return versions[0], versions[1]
    return tagged_for(_version_in(line.texts.get("version.py")) or line.version)


BUILT_FOR = {
    # Of xformers: 1208 is CUDA 12.8.
    "cpp_lib.json": (r'"cuda":\s*(\d{2,3})(\d\d)', r'"torch":\s*"([^"]+)"'),
    # What DeepSpeed noted when it was installed, below torch_info.
    "git_version_info_installed.py": (
        r"""['"]cuda_version['"]:\s*['"]([\d.]+)['"]""",
        r"""['"]version['"]:\s*['"]([\d.]+)['"]""",
    ),
}
"""Files in which a package says for which CUDA and torch it was built."""


# --- the files of torch that every import needs, and of its wheels, compared with their RECORD ---

MOST_RECORD = 16 << 20
NEEDED = (
    "version.py",
    "__init__.py",
    "_tensor.py",
    "nn/__init__.py",
    "cuda/__init__.py",
    "optim/__init__.py",
    "autograd/__init__.py",
    "utils/__init__.py",
    "utils/data/__init__.py",
    "distributed/__init__.py",
    "backends/cudnn/__init__.py",
)
"""Python files that every import of torch, or every training, opens."""
_LIBRARIES = {"Windows": (b".dll,", b".pyd,"), "Darwin": (b".so,", b".dylib,")}


class Damage(Struct, frozen=True, kw_only=True):
    """Files that are absent, empty, or (libraries only) shorter than RECORD says."""

    missing: Strings = ()
    empty: Strings = ()
    short: Strings = ()


def compare(host: Host, entry: str, dist_info: str) -> Damage | None:
    """The damage of the torch in that folder of the path; None where there is no RECORD."""
    data = host.read(f"{entry}/{dist_info}/RECORD", MOST_RECORD).data
    if not data:
        return None
    # A search through RECORD costs more than a look at the file.
    sick = tuple(name for name in NEEDED if not host.stat(f"{entry}/torch/{name}").size)
    sizes = expected_sizes(data, host.system, sick)
    return _compared(host, {(entry, path): size for path, size in sizes})


def compare_wheels(host: Host, records: Iterable[StrPair]) -> Damage:
    """The libraries of NVIDIA's wheels that are gone, empty or cut short, as on a full disk.

    Which parts of cuDNN are gone is for the loader's own look to tell.

    records: folder of the path and dist-info. Two wheels may claim one file: the smaller counts.
    """
    claimed: dict[StrPair, int] = {}
    for entry, dist_info in records:
        data = host.read(f"{entry}/{dist_info}/RECORD", MOST_RECORD).data
        for path, size in _sizes(_lines_with(data, b"/lib/lib"), "nvidia/"):
            if ".so" in path:
                claimed[entry, path] = min(size, claimed.get((entry, path), size))
    damage = _compared(host, claimed)
    missing = tuple(path for path in damage.missing if "libcudnn" not in path)
    return replace(damage, missing=missing)


def _compared(host: Host, expected: dict[StrPair, int]) -> Damage:
    """The files that are not as long as they should be. expected: by folder and path, the size."""
    missing, empty, short = [], [], []
    for (entry, path), size in expected.items():
        found = host.stat(f"{entry}/{path}")
        if found.exists is False:
            missing.append(path)
        elif found.exists and found.size < size:
            if not found.size:
                empty.append(path)
            elif not path.endswith(".py"):
                short.append(path)
    return Damage(missing=tuple(missing), empty=tuple(empty), short=tuple(short))


def expected_sizes(
    data: bytes, system: str = "Linux", needed: Strings = NEEDED
) -> Iterator[tuple[str, int]]:
    """Path and size of the files worth a look: of 15,000 some fifty are needed by every import."""
    wanted = (f"torch/{name},".encode() for name in needed)
    lines = [line for part in wanted for line in _lines_with(data, part)]
    for ending in _LIBRARIES.get(system, (b".so",)):
        lines += _lines_with(data, ending)
    yield from _sizes(lines, "torch/")


def _sizes(lines: Iterable[str], below: str) -> Iterator[tuple[str, int]]:
    for line in dict.fromkeys(lines):
        path, _, rest = line.partition(",")
        if path.startswith(below) and ".." not in path:
            yield path, whole(rest.rpartition(",")[2]) or 0


def _places_of(data: bytes, part: bytes) -> Iterator[int]:
    """Where a text lies, found in C: no pattern looks at each byte."""
    at = data.find(part)
    while at >= 0:
        yield at
        at = data.find(part, at + 1)


def _lines_with(data: bytes, part: bytes) -> list[str]:
    """The lines that hold a text, each once, found without cutting the other lines out."""
    lines: dict[bytes, None] = {}
    for at in _places_of(data, part):
        end = data.find(b"\n", at)
        lines[data[data.rfind(b"\n", 0, at) + 1 : len(data) if end < 0 else end]] = None
    return [line.decode("utf-8", "replace").strip() for line in lines]


# --- the GPU architectures that a torch was compiled for, read from its library ----------------

MOST_CONSTANTS = 32 << 20
MOST_FILE = 256 << 20
_CHUNK = 8 << 20
_LONGEST = 1024

_NAME = rb"(?:(?:sm|compute)_\d{2,3}[a-z]?|gfx[0-9a-f]{3,5}(?:[:+-][a-z+:-]+)?)"
_LOOSE = re.compile(_NAME + rb"(?:[ ;,]" + _NAME + rb")+(?![\w.-])")
_FLAGS = re.compile(rb"\0(" + _NAME + rb"(?:[ ;,]" + _NAME + rb")*)[ ;]?\0")


def binding(host: Host, torch_dir: str, prefix: OptStr = None) -> OptStr:
    """torch's Python binding: beside torch, or in the lib folder of conda or of the system."""
    places = [f"{torch_dir}/lib/libtorch_python.so", f"{torch_dir}/lib/torch_python.dll"]
    if prefix:
        places += [f"{prefix}/lib/libtorch_python.so", f"{prefix}/Library/bin/torch_python.dll"]
    if torch_dir.startswith("/usr/lib/python3/"):
        places += host.glob("/usr/lib/*/libtorch_python.so*")
    return existing(host, places)


def archs_of(host: Host, path: str) -> OptStrings:
    """The list in one library: from its constants, else from wherever it lies in the file.

    The last resort is a list of at least two names within a longer text. torch 2.8 and 2.9 have
    a constant without an end right before the list: its first name begins inside of a word.
    """
    if path.endswith(".dll"):
        part = pe_section(host.read(path, 4096).data, b".rdata")
    else:
        part = find_section(host, path, ".rodata")
    if part is not None:
        data = host.read(path, min(part.size, MOST_CONSTANTS), part.offset).data
        if found := flags_in(data):
            return found
    loose = b""
    for data in _whole(host, path):
        if found := flags_in(data):
            return found
        if b"sm_" in data or b"gfx" in data:
            loose = max([loose, *_LOOSE.findall(data)], key=len)
    return _arch_names(loose) if loose else None


def flags_in(data: bytes) -> OptStrings:
    """The longest list of architectures that stands in these bytes as a text of its own."""
    for mark in (b"sm_", b"compute_", b"gfx"):
        places = (max(0, at - 1) for at in _places_of(data, mark))
        found = (_FLAGS.match(data, place, place + 1 + _LONGEST) for place in places)
        if lists := [flags[1] for flags in found if flags]:
            return _arch_names(max(lists, key=len))
    return None


def _arch_names(flags: bytes) -> Strings:
    return tuple(dict.fromkeys(re.split("[ ;,]", flags.decode("ascii"))))


def pe_section(data: bytes, name: bytes) -> Section | None:
    """Where the section of that name lies in a Windows library, from the library's first bytes."""
    try:
        start = int(struct.unpack_from("<I", data, 0x3C)[0])
        count, optional = struct.unpack_from("<H12xH", data, start + 6)
        if data[start : start + 4] != b"PE\0\0":
            return None
        for row in range(min(count, 96)):
            at = start + 24 + optional + 40 * row
            if data[at : at + 8].rstrip(b"\0") == name:
                size, offset = struct.unpack_from("<II", data, at + 16)
                return Section(offset, size)
    except struct.error:
        return None
    return None


def _whole(host: Host, path: str) -> Iterator[bytes]:
    """The file in pieces that overlap, so that no list is cut in two."""
    for offset in range(0, min(host.stat(path).size, MOST_FILE), _CHUNK):
        data = host.read(path, _CHUNK + _LONGEST, offset).data
        if not data:
            return
        yield data
