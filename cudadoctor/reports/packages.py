"""Lists of Python packages as pip, uv, conda and poetry print them, and names of wheels.

A row alone proves less than a list: one `torch==2.1.0` on a line may be a requirement. Rows count
as a list behind a list's head, behind the command that prints it, or where several stand together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import unquote

from msgspec.structs import replace
from packaging.version import Version

from cudadoctor.model.machine import Distribution, OptStr, OptVersion, Strings
from cudadoctor.model.versions import tagged_for, version_of
from cudadoctor.reports import values
from cudadoctor.reports.document import Document
from cudadoctor.reports.statements import Facts, Rank, Statements, gated, stated

MOST = 600
"""Packages that are kept of one list."""

KNOWN = re.compile(
    r"(?i)torch(vision|audio|text|data|rec|metrics|ao|tune|sde|diffeq|-\w+)?|pytorch(-\w+)*|triton(-\w+)*"
    r"|xformers|flash[-_]attn|numpy|nvidia[-_](?!smi\b)[\w-]+|cuda[-_][\w-]+|cudatoolkit|cudnn|cupy[\w-]*|nccl"
    r"|(lib)?(cublas|cufft|curand|cusolver|cusparse|nvjitlink)[\w-]*|vllm|sglang|deepspeed|accelerate"
    r"|transformers|diffusers|bitsandbytes|apex|mmcv[\w-]*|detectron2|tensorflow[\w-]*|jax(lib|-cuda1\d-[a-z]+)?"
    r"|auto[-_]gptq|autoawq|exllamav2|onnxruntime[\w-]*|numba|cpuonly|libtorch|peft|sentence-transformers"
    r"|ctranslate2|faster-whisper|opencv[\w-]*|lightning|fastai|ultralytics|unsloth[\w-]*|trl|whisperx|lmdeploy"
    r"|pyannote[\w-]*|open[-_]clip[\w-]*|tokenizers|timm|intel[-_]\w+|magma[\w-]*",
)
"""Names that a row without any list around it must have."""

_FREEZE = re.compile(
    r"\s{0,8}[\"']?([A-Za-z0-9][\w.-]{0,80})(?:\[(?:(cuda1\d)|[\w,-]{1,60})\])?"
    r"={2,3}([0-9][\w.+!*-]{0,60})[\"']?,?\s*(?:[;#\\].{0,300})?$"
)
_DIRECT = re.compile(r"\s{0,8}([A-Za-z0-9][\w.-]{0,80}) @ (\S{4,400})\s*$")
_ROW = re.compile(
    r"[\s│├└─|*+-]{0,20}([A-Za-z0-9][\w.-]{0,80})(?:\[[\w,-]{1,60}\])?"
    r"[ \t|]{1,80}v?([0-9][\w.+!-]{0,60})"
    r"(?:[ \t|]{1,60}(?:(?P<location>(?:/|[A-Za-z]:\\)\S(?:.{0,298}\S)?)|\S.{0,300}))?\s*$"
)


class Row(NamedTuple):
    """A package as a list shows it, with the number of its line."""

    package: Distribution
    line: int
    build: str = ""


def distribution(
    name: str, version: str, location: OptStr = None, installer: OptStr = None
) -> Distribution:
    """A distribution by its normalised name, with what its version tells of its build."""
    name = re.sub(r"[-_.]+", "-", name).lower().strip("-")
    name = "torch" if name == "pytorch" else name
    cuda, torch = tagged_for(version)
    return Distribution(
        name=name,
        version=version,
        location=location,
        installer=installer,
        cuda=cuda if name != "torch" else None,
        torch=torch,
    )


def _said_of(rows: list[Row], rank: Rank, source: str) -> Statements:
    """The packages, and what the one that is torch tells."""
    if rows:
        packages = [row.package for row in rows[:MOST]]
        yield from stated(rows[0].line, source, {"packages": packages}, rank)
    for package, line, build in rows:
        if package.name.startswith("jax-cuda"):  # its wheels are for Linux only
            yield from stated(line, source, {"platform.system": "Linux"}, Rank.PROSE)
        if package.name == "torch":
            facts = values.torch_facts(package.version)
            kind = {"torch.installer": "conda", "python.kind": "conda"}
            of_conda = kind if package.installer == "conda" else {}
            yield from stated(line, source, facts, rank)
            yield from stated(line, source, build_of_conda(build) | of_conda, rank)


def build_of_conda(build: str) -> Facts:
    """The build of conda's torch: py3.9_cuda11.3_cudnn8.2.0_0, cpu_mkl_py311h..._100."""
    low = build.lower()
    if found := re.search(r"cuda(\d{1,2}\.\d{1,2}|\d{2,3}(?=_|py|$))", low):
        cuda = Version(found[1]) if "." in found[1] else values.dotted(found[1])
        return {"torch.build": "cuda", "torch.cuda": cuda}
    if "cuda" in low or low.startswith("gpu_"):
        return {"torch.build": "cuda"}
    return {"torch.build": "cpu"} if re.search(r"(?:^|_)cpu", low) else {}


# --- rows ----------------------------------------------------------------------------------------


def _freeze_row(text: str, line: int) -> Row | None:
    """A line of pip freeze: name==version, or name @ address of a wheel."""
    if "==" in text:
        found = _FREEZE.match(text)
        if found is None:
            return None
        # jax has its CUDA from the plugin, which is of the same release.
        plugin = f"jax-{found[2]}-plugin" if found[1] == "jax" and found[2] else found[1]
        return Row(distribution(plugin, found[3]), line)
    direct = _DIRECT.match(text) if " @ " in text else None
    wheel = Wheel.of(direct[2]) if direct else None
    return Row(distribution(direct[1], wheel.version), line) if direct and wheel else None


def _list_row(text: str, line: int) -> Row | None:
    """A row of pip list, uv pip list, uv pip tree or poetry show."""
    found = _ROW.match(text)
    if found is None or version_of(found[2]) is None:
        return None
    return Row(distribution(found[1], found[2], found["location"]), line)


CONDA_NAMES = {"pytorch": "torch", "pytorch-gpu": "", "pytorch-cpu": "", "libtorch": "libtorch"}


def _conda_row(text: str, line: int) -> Row | None:
    """A row of conda list: name, version, build, channel."""
    words = text.split()
    if not 2 <= len(words) <= 5 or not words[1][:1].isdigit():
        return None
    name, version, build = (*words, "")[:3]
    if not re.fullmatch(r"[A-Za-z0-9_][\w.-]{0,80}", name) or version_of(version) is None:
        return None
    if build.startswith("pypi_") or words[-1] == "pypi" or build == "<pip>":
        return Row(distribution(name, version, None, "pip"), line)
    name = CONDA_NAMES.get(name, name)
    return Row(distribution(name, version, None, "conda"), line, build) if name else None


# --- names of wheels: torch-2.3.0+cu121-cp310-cp310-win_amd64.whl --------------------------------

_WHEEL = re.compile(
    r"(?P<name>[A-Za-z][\w.]{1,60})-(?P<version>\d[\w.+!%]{0,60})(?:-\d\w{0,10})?"
    r"-(?P<python>(?:cp|py|pp)[\w.]{1,30})-(?P<abi>[\w.]{2,30})-(?P<platform>[\w.]{2,120}?)"
    r"\.whl"
)
_CPYTHON = re.compile(r"cp(\d)(\d{1,2})")
_CHOSEN = re.compile(
    r"(?:downloading|using cached|obtaining dependency information|saved|processing)\b"
)


class Wheel(NamedTuple):
    """A wheel by its name. chosen: pip took it, so it fits the Python and the platform there."""

    name: str
    version: str
    pythons: Strings
    abi: str
    platforms: Strings
    chosen: bool

    @classmethod
    def of(cls, text: str) -> Wheel | None:
        """The first wheel that a text names."""
        return next(cls.all_in(text), None)

    @classmethod
    def all_in(cls, text: str) -> Iterator[Wheel]:
        """Every wheel that a text names."""
        if ".whl" in text:
            chosen = _CHOSEN.search(text.lower()) is not None
            for found in _WHEEL.finditer(unquote(text)):
                name, version, pythons, abi, platforms = found.groups()
                name = name.lower().replace("_", "-")
                yield cls(
                    name, version, (*pythons.split("."),), abi, (*platforms.split("."),), chosen
                )

    @property
    def python(self) -> OptVersion:
        """The one Python that it is made for, None where it is made for several."""
        found = _CPYTHON.fullmatch(self.pythons[0])
        if found is None or "abi3" in self.abi or len(self.pythons) > 1:
            return None
        return Version(f"{found[1]}.{found[2]}")


def system_of_tag(tag: str) -> tuple[OptStr, OptStr]:
    """System and processor of a platform tag; None each if it is for any."""
    if tag.startswith(("manylinux", "linux", "musllinux")):
        found = re.search(r"(x86_64|aarch64|i686|armv\dl|ppc64le|s390x|riscv64)$", tag)
        return "Linux", found[1] if found else None
    if tag.startswith("win"):
        machines = {"win_amd64": "x86_64", "win32": "x86", "win_arm64": "aarch64"}
        return "Windows", machines.get(tag)
    if tag.startswith("macosx"):
        found = re.search(r"(x86_64|arm64)$", tag)
        return "Darwin", found[1] if found else None
    return None, None


# --- lists ---------------------------------------------------------------------------------------

_ENOUGH = 4
"""Rows that stand together before they are a list without a head."""
_COMPLETE = 8
"""Rows from which on a list with its head shows that torch is absent."""
_MISSES = 3
"""Lines that are no rows end a list."""
_HEAD = re.compile(r"(?i)[\s|]{0,8}Package[\s|]{1,60}Version(?:[\s|]{1,60}\w.{0,60})?[\s|]{0,8}$")
_CONDA_HEAD = re.compile(
    r"(?i)#? {0,4}(?:Name\s{1,60}Version\s{1,60}Build|packages in environment at)"
)
_RULE = re.compile(r"[\s|+:─━=-]{3,200}$")
_COMMAND = re.compile(r"(?i)\b(?:pip3?|uv pip|poetry|conda|mamba|pixi) (?:list|freeze|show|tree)\b")
_BUILD = re.compile(r"py\d|cuda|cpu_|gpu_|h[0-9a-f]{6,}|pypi_|<pip>|mkl|nompi|(?:^|_)\d{1,4}$")
_DIGIT = re.compile(r"\d")
_EXPORTED = re.compile(r"\s{0,8}- ([\w.-]{1,80})=([\w.+!]{1,60})=([\w.]{1,80})\s*$")
_TAGGED = re.compile(r"\[(pip3?|conda)\] ([^\[\n]{3,200})")
_TORCH_IN_CONDA = re.compile(r"\s{0,8}\[conda\] (?:py)?torch\s")
_SHOWN = re.compile(r"\s{0,8}(Name|Version|Location|Requires|Required-by):\s{0,8}(.{0,2000})$")
_LOCKED = re.compile(r"\s{0,8}(name|version) = \"([^\"]{1,80})\"\s*$")
_ABSENT = re.compile(r"Package\(s\) not found: ([\w ,.-]{1,200})")


class Lists(NamedTuple):
    """What a walk over the lines has gathered. rows by rank; full: lists with a head."""

    sure: list[Row]
    maybe: list[Row]
    full: list[list[Row]]

    def settle(self, run: list[Row], asked: int) -> None:
        """Rows without a head: a list where there are several or a command asked for them."""
        if run:
            listed = len(run) >= _ENOUGH or 0 <= run[0].line - asked <= 3
            wheels = all(row.build or "+" in row.package.version for row in run)
            (self.sure if listed or wheels else self.maybe).extend(run)


@gated("torch", "nvidia-", "numpy", "package version", "name version build", "triton", "xformers")
def read_packages(doc: Document) -> Statements:
    """pip list and freeze, uv, poetry, conda list and export, and the lists of collect_env."""
    lists = _walked(doc)
    source = "the list of packages"
    yield from _said_of([*_tagged(doc), *lists.sure[:MOST]], Rank.TOOL, source)
    # collect_env asks conda for the active environment: torch is in that one.
    if in_conda := doc.rows(_TORCH_IN_CONDA, "[conda]"):
        yield from stated(in_conda[0][0], source, {"python.kind": "conda"}, Rank.MESSAGE)
    rank = Rank.MESSAGE if _COMMAND.search(doc.flat) else Rank.PROSE
    yield from _said_of(lists.maybe[:MOST], rank, "a row of a list of packages")
    for rows in lists.full:
        if _without_torch(rows):
            yield from stated(rows[0].line, source, {"torch.installed": False})


def _tagged(doc: Document) -> Iterator[Row]:
    """[pip3] torch==1.7.1 and [conda] pytorch 1.7.1 py3.8_cuda11.0 pytorch of collect_env."""
    for found in _TAGGED.finditer(doc.text) if doc.mentions("[pip", "[conda]") else ():
        line, body = doc.line_of(found), found[2].strip()
        first = _conda_row if found[1] == "conda" else _freeze_row
        if row := first(body, line) or _list_row(body, line):
            yield row


def _without_torch(rows: list[Row]) -> bool:
    """Whether a list that goes from before to behind torch's place in the alphabet lacks it."""
    names = [row.package.name for row in rows]
    whole = len(names) >= _COMPLETE and names == sorted(names) and "pip" in names
    return whole and names[-1] > "torch" and not any("torch" in name for name in names)


def _walked(doc: Document) -> Lists:
    found = Lists([], [], [])
    mode, misses, asked = "", 0, -9
    run: list[Row] = []
    for number, text in doc.lines:
        if not text.strip() or len(text) > 600:
            continue
        if head := _head(text):
            mode, misses = head, 0
            found.full.append([])
            continue
        if _COMMAND.search(text):
            asked = number
        row = _row(text, number, mode)
        if row and mode:
            misses = 0
            found.full[-1].append(row)
            found.sure.append(row)
        elif row:
            if run and number - run[-1].line > 2:
                found.settle(run, asked)
                run = []
            run.append(row)
        elif mode:
            misses = 0 if _RULE.match(text) or text.startswith("#") else misses + 1
            mode = "" if misses >= _MISSES or text.startswith(("$", "(")) else mode
    found.settle(run, asked)
    return found


def _head(text: str) -> str:
    low = text.lower()
    if "version" in low and _HEAD.match(text):
        return "pip"
    conda = ("name" in low or "environment at" in low) and _CONDA_HEAD.match(text)
    return "conda" if conda else ""


def _row(text: str, line: int, mode: str) -> Row | None:
    """A row in the form of the list that it stands in; without one, only of a known package."""
    if mode == "pip":
        return _list_row(text, line) or _freeze_row(text, line)
    if mode == "conda":
        return None if text.startswith("#") else _conda_row(text, line)
    if "==" in text or " @ " in text:
        return _freeze_row(text.lstrip(" -"), line)
    if _DIGIT.search(text) is None:
        return None
    if text.count("=") == 2 and (exported := _EXPORTED.match(text)):
        return _conda_row(" ".join(exported.groups()), line)
    bare = text.strip()
    words = text.strip(" │├└─|*+-\t").split(None, 3)
    if len(words) < 2 or "." not in words[1] or not KNOWN.fullmatch(words[0].partition("[")[0]):
        return None
    if len(words) >= 3 and len(text.split()) <= 4 and _BUILD.search(words[2]):
        return _conda_row(bare, line)
    spaced = re.search(r"  |\t|\|", bare) or words[1].startswith("v")
    return _list_row(text, line) if spaced else None


# --- pip show and pip check ----------------------------------------------------------------------


@gated("[[package]]")
def read_lock(doc: Document) -> Statements:
    """Packages of a lock of uv, poetry or pdm: its tool installs exactly these."""
    yield from _said_of(list(_blocks(doc, _LOCKED)), Rank.MESSAGE, "the lock file")


@gated("not found:", "name: ")
def read_pip_show(doc: Document) -> Statements:
    """Blocks of Name, Version, Location and Requires; and what pip did not find."""
    for found in _ABSENT.finditer(doc.flat):
        if "torch" in re.split(r"[ ,]+", found[1]):
            facts = {"torch.installed": False}
            yield from stated(doc.line_of(found), "pip show", facts, Rank.MESSAGE)
    shown = list(_blocks(doc, _SHOWN))
    yield from _said_of(shown, Rank.TOOL, "pip show")
    for package, line, _ in shown:
        if package.name == "torch" and package.location:
            folder = package.location.rstrip("/\\")
            torch = folder + ("\\torch" if "\\" in folder else "/torch")
            paths = {"torch.path": torch, "python.site_packages": folder}
            yield from stated(line, "pip show", paths)


def _blocks(doc: Document, field: re.Pattern[str]) -> Iterator[Row]:
    blocks: list[tuple[int, dict[str, str]]] = [(0, {})]
    for number, found in doc.rows(field):
        if found[1].title() == "Name":
            blocks.append((number, {}))
        blocks[-1][1].setdefault(found[1].title(), found[2].strip())
    for number, block in blocks:
        name, version = block.get("Name", ""), block.get("Version", "")
        if re.fullmatch(_NAME, name) and re.fullmatch(r"\d[\w.+!-]{0,60}", version):
            yield Row(distribution(name, version, block.get("Location") or None), number)


_NAME = r"[A-Za-z0-9][\w.-]{0,60}"
_NUMBER = r"\d[\w.+!]{0,40}"
_CONFLICT = re.compile(
    rf"(?<![\w.-])(?P<name>{_NAME}) (?P<version>{_NUMBER}) (?:has requirement|requires)"
    rf" (?P<wanted>{_NAME}(?:\[[\w,]{{1,40}}\])?[^;'\"]{{0,80}}?)(?:;[^;]{{0,120}}?)?,?"
    rf" but you(?:'ll)? have (?P<other>{_NAME}) (?P<there>{_NUMBER})"
)
_UNMET = re.compile(
    rf"(?<![\w.-])(?P<name>{_NAME}) (?P<version>{_NUMBER}) requires (?P<wanted>{_NAME})"
    r"[^;'\"]{0,80}?, which is not installed"
)
_MOST_CONFLICTS = 60


@gated("but you", "which is not installed")
def read_pip_check(doc: Document) -> Statements:
    """torchvision 0.15.2 requires torch==2.0.1, but you have torch 2.1.0 which is incompatible.

    pip's resolver says so behind an installation, `pip check` when it is asked.
    """
    found: dict[str, Distribution] = {}
    places = [*_CONFLICT.finditer(doc.flat), *_UNMET.finditer(doc.flat)][:_MOST_CONFLICTS]
    facts: Facts = {}
    for place in places:
        words = place.groupdict()
        wanted = words["wanted"].strip(" ,")
        package = distribution(words["name"], words["version"])
        asked = (*found.get(package.name, package).requires, wanted)
        found[package.name] = replace(package, requires=asked)
        if "other" in words:
            other = distribution(words["other"], words["there"].rstrip("."))
            found.setdefault(other.name, other)
        elif wanted.lower() == "torch":
            facts["torch.installed"] = False
    if torch := found.get("torch"):
        requires = {"torch.requires": torch.requires or None}
        facts = values.torch_facts(torch.version) | facts | requires
    if found:
        facts["packages"] = list(found.values())
        yield from stated(doc.line_of(places[0]), "pip", facts, Rank.MESSAGE)
