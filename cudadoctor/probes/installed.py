"""What is installed in the examined environment: torch, read without importing it, and its kin."""

from __future__ import annotations

import re
from typing import Literal

from packaging.version import Version

from cudadoctor.host.local import Host
from cudadoctor.model.machine import Distribution, TorchCopy
from cudadoctor.model.versions import version_of
from cudadoctor.probes import Notes
from cudadoctor.probes.archs import binding, read_archs
from cudadoctor.probes.record import Damage, compare, compare_wheels
from cudadoctor.probes.told import CopyLine, DistLine, Told

_ASSIGNED = re.compile(
    r"""^(\w+)(?:[ \t]*:[^=\n]*|[ \t]*)=[ \t]*(?:['"]([^'"]*)['"]|None)""", re.MULTILINE
)
_CUDA_TAG = re.compile(r"cu([0-9]{2,3})(?!\d)")
_TORCH_TAG = re.compile(r"(?:torch|pt)(\d+(?:\.\d+)*)")
# pip renames what it removes: a ~ and more such characters take the place of the first letters.
_OF_TORCH = re.compile(r"~[-~.=%0-9]*(?:orch|rch|ch)(?:-[0-9].*)?$")
_RECORD_NAME = re.compile(r"(.+)-([^-]+)-([^-]+)\.json")

Build = Literal["cuda", "cpu", "rocm", "xpu"]


def note_torch(notes: Notes, host: Host, told: Told, prefix: str) -> None:
    """Note the torch that the path holds: its build, its copies, the state of its files."""
    copies = copies_of(told, prefix)
    notes.fact("torch.copies", copies, "the path of the interpreter")
    left = tuple(one for one in told.leftovers if _OF_TORCH.match(one))
    notes.fact("torch.leftovers", left, "names in site-packages")
    real = first_real(told.copies)
    notes.fact("torch.installed", real is not None, "the path of the interpreter")
    if real is None:
        return
    notes.fact("torch.path", real.path, "the path of the interpreter")
    _note_metadata(notes, told, real, copies)
    _note_files(notes, host, told, real)
    build = _note_version(notes, real)
    _note_archs(notes, host, real, build, prefix)


def first_real(copies: tuple[CopyLine, ...]) -> CopyLine | None:
    """The first copy that is torch and no file of the user's by that name."""
    return next((one for one in copies if kind_of_copy(one) != "local"), None)


def kind_of_copy(copy: CopyLine) -> Literal["distribution", "folder", "local"]:
    """Whether a copy was installed, lies there without metadata, or is the user's own file."""
    if copy.dists:
        return "distribution"
    if copy.shape == "remains" or (copy.shape == "package" and copy.text is not None and copy.lib):
        return "folder"
    return "local"


def copies_of(told: Told, prefix: str) -> tuple[TorchCopy, ...]:
    """All copies in the order of the path; two sets of metadata in one folder are two."""
    record = _conda_version(told, "pytorch")
    copies: list[TorchCopy] = []
    for copy in told.copies:
        kind = kind_of_copy(copy)
        text = assigned(copy.text or "").get("__version__")
        mine = [TorchCopy(path=copy.path, kind=kind, version=text, where=copy.entry)]
        if len(copy.dists) > 1 or (copy.dists and not text):
            mine = [
                TorchCopy(path=copy.path, kind=kind, version=one.version or None, where=copy.entry)
                for one in copy.dists
            ]
        if record and kind != "local" and copy.entry.startswith(prefix):
            conda = TorchCopy(path=copy.path, kind="conda", version=record, where=copy.entry)
            by_conda = _installer(told, copy) in ("conda", "")
            mine = [conda] if by_conda else [*mine, conda]
            record = None
        copies += mine
    return tuple(copies)


def _conda_version(told: Told, name: str) -> str | None:
    for one in told.conda.records if told.conda else ():
        found = _RECORD_NAME.fullmatch(one)
        if found and found[1] == name:
            return found[2]
    return None


def _metadata(told: Told, copy: CopyLine) -> DistLine | None:
    """torch's distribution beside a copy; of several the one whose version the copy has."""
    beside = [one for one in told.dists if one.name == "torch" and one.entry == copy.entry]
    text = (assigned(copy.text or "").get("__version__") or "").partition("+")[0]
    fitting = [one for one in beside if one.version.partition("+")[0] == text]
    return next(iter(fitting or beside), None)


def _installer(told: Told, copy: CopyLine) -> str:
    found = _metadata(told, copy)
    return found.installer if found else ""


def _note_metadata(notes: Notes, told: Told, real: CopyLine, copies: tuple[TorchCopy, ...]) -> None:
    dist = _metadata(told, real)
    if dist is not None:
        source = f"{dist.entry}/{dist.folder}"
        notes.fact("torch.requires", dist.requires, f"{source}/METADATA")
    else:
        notes.gap("torch.requires", f"{real.path} has no metadata beside it", asked=False)
    conda = any(one.kind == "conda" and one.path == real.path for one in copies)
    by = dist.installer if dist else ""
    by = "conda" if conda and not by else by
    if by:
        notes.fact("torch.installer", by, f"{dist.entry}/{dist.folder}" if dist else "conda-meta")
    else:
        notes.gap("torch.installer", "no INSTALLER file names it", asked=False)


def _note_files(notes: Notes, host: Host, told: Told, real: CopyLine) -> None:
    """What RECORD says of the files; without one, whether the package is there at all."""
    dist = _metadata(told, real)
    damage = compare(host, dist.entry, dist.folder) if dist else None
    if dist is not None and damage is not None:
        source = f"{dist.entry}/{dist.folder}/RECORD"
        wheels = ((one.entry, one.folder) for one in told.dists if one.name.startswith("nvidia-"))
        below = compare_wheels(host, wheels)
        if below != Damage():
            source = "RECORD of torch and its wheels"
        notes.fact("torch.missing_files", damage.missing + below.missing, source)
        notes.fact("torch.empty_files", damage.empty + below.empty, source)
        notes.fact("torch.short_files", damage.short + below.short, source)
        return
    gone = real.shape == "remains" or (real.shape != "package" and real.text is None)
    notes.fact("torch.missing_files", ("torch/__init__.py",) if gone else (), real.path)
    notes.fact("torch.empty_files", (), real.path)


def _note_version(notes: Notes, real: CopyLine) -> Build | None:
    source = f"{real.path}/version.py"
    found = assigned(real.text or "")
    text = found.get("__version__") or next((d.version for d in real.dists if d.version), None)
    if not text:
        notes.gap("torch.version", f"{source} names no version")
        notes.gap("torch.build", f"{source} names no version")
        return None
    notes.fact("torch.text", text, source)
    version = version_of(text)
    notes.fact("torch.version", version, source)
    if version is None:
        notes.gap("torch.version", f"{text} in {source} is no version")
    build = build_of(found)
    if build is None:
        notes.gap("torch.build", f"{source} does not say for which device it was built")
        return None
    notes.fact("torch.build", build, source)
    notes.fact("torch.hip", found.get("hip") or "", source)
    if build == "cuda":
        notes.fact("torch.cuda", version_or_none(found.get("cuda")), source)
    return build


def assigned(text: str) -> dict[str, str | None]:
    """The plain assignments of a version.py, read as text: `cuda: Optional[str] = '13.0'`."""
    return {found[1]: found[2] for found in _ASSIGNED.finditer(text)}


def build_of(found: dict[str, str | None]) -> Build | None:
    """For which device a torch was built, from the assignments of its version.py."""
    text = found.get("__version__") or ""
    if found.get("hip") or "+rocm" in text:
        return "rocm"
    if found.get("cuda"):
        return "cuda"
    if found.get("xpu") or "+xpu" in text:
        return "xpu"
    return "cpu" if "cuda" in found else None


def _note_archs(notes: Notes, host: Host, real: CopyLine, build: Build | None, prefix: str) -> None:
    if build in ("cpu", "xpu"):
        notes.fact("torch.archs", (), f"{real.path}/version.py")
        return
    library = binding(host, real.path, prefix)
    if library is None:
        notes.gap("torch.archs", f"there is no libtorch_python in {real.path}/lib")
        return
    archs = read_archs(host, real.path, prefix)
    if archs is None:
        notes.gap("torch.archs", f"no list of architectures stands in {library}")
        return
    notes.fact("torch.archs", archs, library)


def packages(told: Told) -> tuple[Distribution, ...]:
    """The distributions that matter, in order of the path; then what only conda knows."""
    found = [_distribution(one) for one in told.dists]
    names = {one.name for one in found}
    if told.conda:
        for record in told.conda.records:
            parts = _RECORD_NAME.fullmatch(record)
            if parts and parts[1] not in names:
                place = f"{told.conda.folder}/{record}"
                found.append(
                    Distribution(name=parts[1], version=parts[2], location=place, installer="conda")
                )
    return tuple(found)


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


def built_for(line: DistLine) -> tuple[Version | None, Version | None]:
    """The CUDA and the torch that a compiled package says it was built for.

    A version of one part means that whole major (flash-attn's cu12).
    """
    if text := line.texts.get("cpp_lib.json"):
        return _from_xformers(text)
    if text := line.texts.get("git_version_info_installed.py"):
        return _from_deepspeed(text)
    told = assigned(line.texts.get("version.py") or "").get("__version__") or line.version
    tag = told.partition("+")[2]
    cuda, torch = _CUDA_TAG.search(tag), _TORCH_TAG.search(tag)
    return (
        cuda_from_tag(cuda[1]) if cuda else None,
        torch_from_tag(torch[1]) if torch else None,
    )


def cuda_from_tag(digits: str) -> Version:
    """CUDA 12.1 for 121, CUDA 12 for 12."""
    return Version(f"{digits[:2]}.{digits[2]}" if len(digits) == 3 else digits)


def torch_from_tag(text: str) -> Version | None:
    """torch 2.4 for 2.4 and 24, 2.10 for 210, 2.6.0 for 260, 1.13 for 113, 2.10.0 for 2100."""
    if "." in text:
        return version_or_none(text)
    rest = text[1:]
    if len(rest) == 3 or (len(rest) == 2 and rest[0] != "1"):
        return version_of(f"{text[0]}.{rest[:-1]}.{rest[-1]}")
    return version_of(f"{text[0]}.{rest}") if rest else None


def _from_xformers(text: str) -> tuple[Version | None, Version | None]:
    cuda = re.search(r'"cuda":\s*(\d{4,5})', text)
    torch = re.search(r'"torch":\s*"([^"]+)"', text)
    # 1208 is CUDA 12.8.
    number = int(cuda[1]) if cuda else 0
    return (
        Version(f"{number // 100}.{number % 100}") if number else None,
        version_or_none(torch[1]) if torch else None,
    )


def _from_deepspeed(text: str) -> tuple[Version | None, Version | None]:
    """What its installation noted; 0.0 where torch was not there then."""
    table = text.partition("torch_info")[2]
    cuda = re.search(r"""['"]cuda_version['"]:\s*['"]([\d.]+)['"]""", table)
    torch = re.search(r"""['"]version['"]:\s*['"]([\d.]+)['"]""", table)
    known = [one[1] if one and one[1] != "0.0" else None for one in (cuda, torch)]
    return version_or_none(known[0]), version_or_none(known[1])


def version_or_none(text: str | None) -> Version | None:
    """The version that a text is; None where it is none."""
    return version_of(text)
