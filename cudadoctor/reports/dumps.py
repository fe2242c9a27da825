"""Dumps of an environment that label each value: torch's collect_env and those of other projects.

transformers-cli, accelerate and diffusers-cli env; ds_report; bitsandbytes; xformers.info; mmcv and
detectron2's collect_env; Lightning; ComfyUI, A1111 and SD.Next; Ultralytics; unsloth.

The labels are looked for anywhere, so that a dump whose line breaks were lost is read too. A value
ends at its line's end or at the next label. Three answers of collect_env mean different things:
"N/A" that torch could not be asked, "Could not collect" that the program gave nothing, and "No
CUDA" that torch sees no GPU and nvidia-smi and nvcc gave nothing. None of them proves that there is
no hardware.
"""

import re
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice, zip_longest

from msgspec import Struct
from msgspec.structs import replace

from cudadoctor.knowledge.wording import wording
from cudadoctor.model.machine import PciGpu, Strings
from cudadoctor.reports import values
from cudadoctor.reports.document import Document
from cudadoctor.reports.packages import distribution
from cudadoctor.reports.statements import Facts, Rank, Statements, gated, stated
from cudadoctor.reports.tools import library_at

# --- what a value says, by the name of its field -------------------------------------------------


def _torch_line(text: str) -> Facts:
    """2.1.0+cu118 (True): the second says whether a GPU is seen; 1.8.1 @/opt/... where it lies."""
    facts = values.torch_facts(text)
    return facts and facts | values.found_in(
        text,
        r"\((?:(?P<seen>True|CUDA)|(?P<seen_not>False|CPU))\)",
        r"@ ?(?P<torch_path>(?:/|[A-Za-z]:)\S{3,200})",
    )


def _driver(value: str) -> Facts:
    lines = (first_line(value) or value).splitlines()[:20]
    version = next((known for line in lines if (known := values.driver_version(line))), None)
    return {"driver.reported": version} if version else {}


_GPU = re.compile(
    r"GPU[ #]?(?P<index>\d{1,3}(?:,\d{1,3}){0,15})\s?:\s{0,8}"
    r"(?P<gpu>\S.{1,79}?)(?=\s{0,8}GPU[ #]?\d|\n|$)"
)
_MIG = re.compile(r"MIG \d{1,2}[gc]\.[\w.]{1,20}\s{1,20}Device")


def _gpus(value: str) -> Facts:
    found = [gpu for row in _GPU.finditer(value) for gpu in values.gpus_of(row.groupdict())]
    if not found:
        text = first_line(value)
        return _amd(1) if _is_amd(text) else {"gpus": values.gpus_of({"gpu": text}) or None}
    if all(_is_amd(gpu.name or "") for gpu in found):
        return _amd(len(found))
    if _MIG.search(value):
        found[-1] = replace(found[-1], mig=True)
    return {"gpus": found}


def _is_amd(text: str) -> bool:
    low = text.lower()
    return low.startswith("amd ") or any(word in low for word in ("radeon", "(gfx", "instinct"))


def _amd(count: int) -> Facts:
    return {"pci": (PciGpu(address="", vendor="amd", device_id=""),) * count}


_CAPABILITY = re.compile(
    r"(?i)(?:arch ?=|capability|compute|sm_?|Arch \()[ :=(]{0,4}(\d{1,2}[., ]{0,2}\d)(?!\d)"
)


def _one_gpu(text: str) -> Facts:
    """The GPU that a program uses, with its capability if it is named."""
    text = re.sub(r"^cuda(?::\d{1,2})? ", "", text)
    if _is_amd(text):
        return _amd(1)
    capability = _CAPABILITY.search(text)
    known = {"cc": capability[1]} if capability else {}
    gpus = values.gpus_of({"gpu": text, **known})
    return {"gpus": gpus} if gpus and values.is_nvidia(gpus[0].name or "") else {}


def _cudnn(value: str) -> Facts:
    paths = re.findall(r"(?:/|[A-Za-z]:\\)[^\n:*?\"<>|]{3,200}?cudnn[\w.]{2,60}", value)
    copies = tuple(copy for path in paths[:40] if (copy := library_at(path, "system")))
    return {"libraries.copies": copies} if copies else {}


def _allocator(value: str) -> Facts:
    found = dict(re.findall(r"['\"](PYTORCH_\w{3,30})['\"]: ?['\"]([^'\"\n]{1,200})['\"]", value))
    return {"env": found} if found else {}


def _cuda_home(text: str) -> Facts:
    place = re.match(
        r"(?:/|[A-Za-z]:\\)[^\s'\"\]]{0,200}(?: [\w.]{1,20}(?=[\\ ])[^\s'\"\]]{0,200}){0,6}", text
    )
    if place is None:
        return {"build.cuda_home": ""} if text.lower() == "none" else {}
    missing = {"build.cuda_home_exists": False} if "invalid!" in text else {}
    return {"build.cuda_home": place[0].replace(" - invalid!", "").strip(), **missing}


def _package(name: str, text: str) -> Facts:
    """A package by a version that is a value of its own."""
    found = re.match(r"v?(\d{1,4}\.\d{1,4}[\w.+]{0,60})", text)
    return {"packages": (distribution(name, found[1].rstrip(".")),)} if found else {}


def _system(text: str) -> Facts:
    """linux, win32 and darwin of sys.platform, or the name of a system."""
    known = values.WORDS.systems.get(text.lower().split(" ")[0].strip("',\""))
    return {"platform.system": known} if known else values.os_facts(text)


LINES: dict[str, values.TextReader] = {
    **values.matchers("lines"),
    "torch": _torch_line,
    "hypervisor": lambda text: (
        {} if values.is_nothing(text) else {"platform.virtual": text.lower()[:20]}
    ),
    "os": values.os_facts,
    "libc": lambda text: values.glibc_facts(text.removeprefix("glibc")),
    "python": values.python_facts,
    "platform": lambda text: values.platform_facts(text) or _system(text),
    "system": _system,
    "gpu": _one_gpu,
    "cuda home": _cuda_home,
}
"""Field -> what the first line of its value says."""
BLOCKS: dict[str, Callable[[str], Facts]] = {
    "driver": _driver,
    "gpus": _gpus,
    "cudnn": _cudnn,
    "allocator": _allocator,
}
"""Field -> what its whole value says."""


def _field(field: str, value: str) -> Facts:
    if field in BLOCKS:
        return BLOCKS[field](value)
    if field.startswith("package "):
        return _package(field.removeprefix("package "), first_line(value))
    return LINES[field](first_line(value)) or {} if field else {}


def first_line(value: str) -> str:
    """The first line of a value; where it was wrapped behind its label, the next one."""
    first, _, rest = value.partition("\n")
    if first.strip():
        return first.strip()[:400]
    first = rest.partition("\n")[0]
    return "" if ":" in first else first.strip()[:400]


# --- labels with their values, wherever they stand in a text: `PyTorch version : 2.1.0` ----------


class Dump(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A dump by its labels; dumps.toml says what each field means."""

    source: str
    gate: Strings
    sure: dict[str, str] = {}
    marks: frozenset[str] = frozenset()
    common: dict[str, str] = {}
    ends: frozenset[str] = frozenset()
    near: int = 2500
    table: bool = False


COLLECT_ENV, *DUMPS = wording("dumps", dict[str, tuple[Dump, ...]])["dump"]
_COLON = (
    r"['\"]?(?: {1,2}\([^()\n]{1,30}\))?\*{0,2}[ \t]{0,40}"
    r"(?:[:：]|\.{3,40}|=(?=[ \t]))\*{0,2}[ \t]{0,20}"
)
_SPACES = r"[ \t]{2,60}(?=\S)"
_MOST_LABELS = 1000
LONGEST = 4000
"""Of a value more is not read."""
_compiled = cache(re.compile)


def labelled(text: str, dump: Dump) -> Iterator[tuple[str, str, int]]:
    """The fields in order: name, value up to the next label, and where the value begins."""
    certain = {*dump.sure, *dump.marks}
    # of two labels at one place the longer
    labels = sorted(certain.union(dump.common, dump.ends), key=len, reverse=True)
    mark = f"{_COLON}|{_SPACES}" if dump.table else _COLON
    pattern = _compiled(rf"(?<![\w./])({'|'.join(map(re.escape, labels))})(?:{mark})")
    found = list(islice(pattern.finditer(text.replace("İ", "I").lower()), _MOST_LABELS))
    sure = [place.start() for place in found if place[1] in certain]
    near = [
        place for place in found if any(abs(place.start() - start) < dump.near for start in sure)
    ]
    fields = dump.sure | dump.common
    for place, following in zip_longest(near, near[1:]):
        end = following.start() if following else len(text)
        value = text[place.end() : min(end, place.end() + LONGEST)]
        yield fields.get(place[1], ""), value, place.end()


def _read_dump(doc: Document, dump: Dump, rank: Rank = Rank.TOOL) -> Statements:
    known = set()
    for field, value, start in labelled(doc.text, dump):
        for path, fact in _field(field, value).items():
            # No CUDA version is no build for the CPU where another was named.
            if path != "torch.build" or path not in known or fact != "cpu":
                known.add(path)
                weight = Rank.COMMAND if path == "build.used" else rank
                yield from stated(doc.line_in_text(start), dump.source, {path: fact}, weight)


@gated(*COLLECT_ENV.sure, *COLLECT_ENV.marks)
def read_collect_env(doc: Document) -> Statements:
    """Everything that torch's collect_env, or vLLM's or another that is made after it, says."""
    yield from _without_torch(doc)
    # An issue form with these labels is filled in by a person.
    form = doc.mentions("(e.g., ", "how you installed")
    printed = doc.mentions("is debug build", "cuda used to build", "libc version")
    yield from _read_dump(doc, COLLECT_ENV, Rank.PROSE if form and not printed else Rank.TOOL)


_UNASKED = re.compile(r"pytorch version ?: n/a\b")
_LISTED = re.compile(r"\[(?:pip3?|conda)\] (torch==|pytorch )?")


def _without_torch(doc: Document) -> Statements:
    """Where torch could not be imported, the lists of packages tell whether it is there at all."""
    unasked = _UNASKED.search(doc.low)
    listed = [row[1] for row in _LISTED.finditer(doc.low)] if unasked else []
    if unasked and listed and "[pip3] could not collect" not in doc.low:
        path = "torch.imported.ok" if any(listed) else "torch.installed"
        yield from stated(doc.line_of(unasked), COLLECT_ENV.source, {path: False})


# --- the dumps of other projects -----------------------------------------------------------------


def read_environment_dumps(doc: Document) -> Statements:
    """Every dump whose labels are known."""
    for dump in DUMPS:
        if doc.mentions(*dump.gate):
            yield from _read_dump(doc, dump)
