"""Text of nvidia-smi -> facts: its table, its CSV, its list of GPUs and its words of failure.

Functions of text only: the probe gives what the program printed, the report reader what was pasted.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar, get_type_hints

from msgspec import Struct
from packaging.version import Version

from cudadoctor.model.machine import Gpu, OptBool, OptDriverVersion, OptInt, OptStr, OptVersion
from cudadoctor.model.versions import driver_of, whole

T = TypeVar("T")
_Texts = dict[str, str]
Fields = dict[str, Any]
"""The fields of a GPU that a text states."""
LONGEST_LINE = 1000
"""A line of nvidia-smi has 100 characters; an endless one would be searched for ever."""

FULL_QUERY = (
    "index,name,uuid,pci.bus_id,pci.device_id,driver_version,memory.total,memory.used,"
    "compute_mode,persistence_mode,mig.mode.current,mig.mode.pending,ecc.mode.current,"
    "ecc.mode.pending,ecc.errors.uncorrected.volatile.total,"
    "ecc.errors.uncorrected.aggregate.total,pstate,utilization.gpu,temperature.gpu,power.draw,"
    "power.limit,power.default_limit,clocks.sm,clocks.max.sm,pcie.link.width.current,"
    "pcie.link.width.max,pcie.link.gen.current,pcie.link.gen.max,compute_cap"
)
SMALL_QUERY = "index,name,uuid,pci.bus_id,driver_version,memory.total,memory.used,compute_mode"
"""What every driver since 375 knows; newer fields make an old nvidia-smi refuse the whole call."""


class SmiOutput(Struct, frozen=True, kw_only=True):
    """What one output of nvidia-smi says.

    gpus: () only where it says that there are none. message: its first line where that is a
    failure. code: NVML's code for that failure, None where the words are not known.
    """

    driver: OptDriverVersion = None
    cuda: OptVersion = None
    gpus: tuple[Gpu, ...] | None = None
    message: OptStr = None
    code: OptInt = None


MEANINGS: tuple[tuple[str, int], ...] = (
    ("driver/library version mismatch", 18),
    ("couldn't communicate with the nvidia driver", 9),
    ("driver not loaded", 9),
    ("driver is not loaded", 9),
    ("couldn't find libnvidia-ml", 12),
    ("couldn't find nvml.dll", 12),
    ("no devices were found", 6),
    ("insufficient permissions", 4),
    ("gpu is lost", 15),
    ("gpu requires reset", 16),
    ("gpu requires restart", 16),
    ("blocked by the operating system", 17),
    ("gpu access blocked", 17),
    ("interrupt request issue", 11),
    ("insufficient external power", 8),
    ("unknown error", 999),
)
"""Words of a failure, in lower case, and NVML's code behind them; the last may be anybody's."""

_OPENINGS = ("failed to initialize nvml", "unable to determine the device handle", "field ")
_ITS_OWN = (
    "driver/library version mismatch",
    "couldn't communicate with the nvidia driver",
    "couldn't find libnvidia-ml",
    "couldn't find nvml.dll",
    "no devices were found",
)
"""Only nvidia-smi says these; "unknown error" alone may be anybody's."""


def cleaned(text: str) -> str:
    """The text without colours, null bytes of UTF-16, byte order marks and carriage returns."""
    text = re.sub(r"\x1b\[[0-9;?]*[ -/]*[@-~]", "", text.replace("\x00", ""))
    return text.replace("\ufeff", "").replace("\ufffd", "").replace("\r", "").replace("’", "'")


def parse_smi(text: str) -> SmiOutput:
    """Everything in an output of nvidia-smi, whichever of its forms it is."""
    text = "\n".join(line[:LONGEST_LINE] for line in cleaned(text).splitlines())
    message, code = first_message(text)
    rows = _rows(text)
    listed = [_row_gpu(position, row) for position, row in enumerate(rows)]
    found = listed or _table(text) or _pages(text) or _list(text) or _lost(text)
    gpus = tuple(Gpu(**fields) for fields in found)
    return SmiOutput(
        driver=_driver(text, rows),
        cuda=_cuda(text),
        gpus=gpus or (() if code == 6 else None),
        message=message,
        code=code,
    )


def first_message(text: str) -> tuple[OptStr, OptInt]:
    """The first line of words of a failure, and NVML's code for it."""
    for line in text.splitlines():
        low = line.strip().lower()
        if low.startswith(_OPENINGS) or any(words in low for words in _ITS_OWN):
            code = next((code for words, code in MEANINGS if words in low), None)
            return line.strip()[:300], code
    return None, None


def unknown_field(text: str) -> bool:
    """Whether an older nvidia-smi refused a field of the query."""
    return "is not a valid field to query" in text.lower()


def _driver(text: str, rows: list[_Texts]) -> OptDriverVersion:
    """From 610 on the banner says KMD Version in place of Driver Version."""
    found = re.search(r"(?i)\b(?:Driver|KMD) Version\s*:\s*(\d[\d.]+)", text)
    if found and (version := driver_of(found[1].strip("."))):
        return version
    named = next(filter(None, (row.get("driver_version") for row in rows)), "")
    found = re.match(r"\s*(\d[\d.]+)\s*$", named)
    return driver_of(found[1].strip(".")) if found else None


def _cuda(text: str) -> OptVersion:
    """The newest CUDA that the driver runs; drivers before 410 do not tell, some print N/A."""
    found = re.search(r"(?ai)\bCUDA (?:UMD )?Version\s*:\s*(\d{1,2}\.\d{1,2})\b", text)
    return Version(found[1]) if found else None


class _Labels(Struct, frozen=True):
    """The tables of smi.toml, which says what each means."""

    columns: _Texts
    pages: _Texts
    throttle: dict[str, int]


_types = cache(get_type_hints)


@cache
def labels() -> _Labels:
    """The tables, read when the first output is."""
    from cudadoctor.knowledge.wording import wording  # a fast check reads none

    return wording("smi", _Labels)


# --- CSV of --query-gpu ---------------------------------------------------------------------


def _rows(text: str) -> list[_Texts]:
    """Rows of the CSV by column, units taken from the names; [] where there is no such header."""
    lines = text.splitlines()
    for start, line in enumerate(lines):
        names = [name.split("[")[0].strip() for name in line.split(",")]
        if len(names) > 1 and {"name", "uuid", "index", "driver_version"} & set(names):
            # what stands behind an empty line is another output
            blank = (n for n in range(start + 2, len(lines)) if not lines[n].strip())
            rows = map(_cells, lines[start + 1 : next(blank, len(lines))])
            return [dict(zip(names, row, strict=False)) for row in rows if len(row) == len(names)]
    return []


def _cells(line: str) -> list[str]:
    """Each line is a row of its own: a quote that nobody closes must not swallow the others."""
    import csv  # a fast check reads none

    return next(csv.reader([line], skipinitialspace=True), [])


def _row_gpu(position: int, row: _Texts) -> Fields:
    fields = _known(row, labels().columns)
    unsupported = tuple(
        field
        for column, field in labels().columns.items()
        if field not in fields and row.get(column, "").strip(" []").lower() in _UNSUPPORTED
    )
    index = _whole(row.get("index", ""))
    fields["index"] = position if index is None else index
    return fields | {"unsupported": unsupported}


_UNSUPPORTED = ("n/a", "not supported", "not available")


def _known(texts: _Texts, columns: _Texts) -> Fields:
    """The fields of a GPU that the texts state; of several for one field the first."""
    fields: Fields = {}
    for column, field in columns.items():
        read = _OF_FIELD.get(field) or _OF_TYPE[_types(Gpu)[field]]
        text = texts.get(column)
        if text and (value := read(text)) is not None:
            fields.setdefault(field, value)
    return fields


def _reading(pattern: str, convert: Callable[[str], T]) -> Callable[[str], T | None]:
    """A reader of texts in which a pattern stands: what its group is."""
    search = re.compile(pattern).search
    return lambda text: convert(found[1]) if (found := search(text)) else None


_whole = _reading(r"^\s*(\d{1,18})(?:[\s%x]|MiB|$)", int)
_watts = _reading(r"^\s*(\d{1,5}(?:[.,]\d+)?)", lambda text: float(text.replace(",", ".")))
_bus = _reading(r"(?i)\b((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])\b", str.lower)


def _mebibytes(text: str) -> OptInt:
    number = _whole(text)
    return None if number is None or number > 1 << 24 else number << 20


_SWITCH = {"enabled": True, "on": True, "yes": True, "disabled": False, "off": False, "no": False}


def _words(text: str) -> OptStr:
    text = text.strip()[:100]
    unknown = text.lower() in ("", "n/a", "unknown error", "err!") or text.startswith("[")
    return text if text.isprintable() and not unknown else None


def _compute_mode(text: str) -> OptStr:
    low = text.strip().lower().replace(".", "").replace("_", " ")
    if low.startswith(("exclusive", "e ")):
        return "exclusive"
    return low if low in ("default", "prohibited") else None


_FABRIC = {"completed": 3, "in progress": 2, "not started": 1}
_OF_TYPE: dict[Any, Callable[[str], object]] = {
    OptStr: _words,
    OptInt: _whole,
    float | None: _watts,
    OptBool: lambda text: _SWITCH.get(text.strip().lower()),
    OptVersion: _reading(r"^\s*(\d{1,2}\.\d)\s*$", Version),
}
"""Type of a field of a GPU -> what a text means; None if it says nothing."""
_OF_FIELD: dict[str, Callable[[str], object]] = {
    "bus_id": _bus,
    "device_id": _reading(r"(?i)^\s*0x([0-9a-f]{4})10de\s*$", str.lower),
    "memory_bytes": _mebibytes,
    "memory_used_bytes": _mebibytes,
    "memory_reserved_bytes": _mebibytes,
    "compute_mode": _compute_mode,
    "performance_state": _reading(r"^\s*P(\d{1,2})\s*$", int),
    "fabric_state": lambda text: _FABRIC.get(text.lower()),
}
"""The same for fields that need more than their type."""

# --- the table ------------------------------------------------------------------------------

_FIRST = re.compile(
    r"^\|\s*(?P<index>\d{1,3})\s+(?P<name>\S.*?)\s+"
    r"(?:(?P<persistence>On|Off|N/A|WDDM|TCC|MCDM)\s*)?\|"
    r"\s*(?P<bus_id>(?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])"
    r"(?:\s+(?P<display>On|Off|N/A))?\s*(?:\|\s*(?P<errors>\S+)?|$)"
)
_FIRST_CUT = re.compile(
    r"\|\s*(?P<index>\d{1,3})\s+(?P<name>(?!N/A)\S.{2,40}?)\s+"
    r"(?P<persistence>On|Off|N/A|WDDM|TCC|MCDM)"
    r"\s*\|?\s*[0-9A-Fa-f:.]{0,14}$"
)
_SECOND = re.compile(
    r"(?P<temperature_c>\d{1,3})C\s+(?P<performance_state>P\d{1,2})\s+(?P<power_w>\d+W|N/A|ERR!)?"
    r"[^|]*?(?:/ *(?P<power_limit_w>\d+W))?\s*\|\s*(?P<memory_used_bytes>\d+)\s*MiB"
    r"\s*/\s*(?P<memory_bytes>\d+)\s*MiB\s*"
    r"(?:\|\s*(?P<utilization>\d+%|N/A)?\s*(?P<compute_mode>[\w. ]+?)?\s*(?:\||$)|$)"
)
_MEMORY = re.compile(r"\|\s*(?P<memory_used_bytes>\d+)\s*MiB\s*/\s*(?P<memory_bytes>\d+)\s*MiB")


_RUN_ON = re.compile(r"\|\s(?=\|\s{0,4}\d{1,3}\s{1,4}\S|\|\s{0,4}(?:\d{1,3}%|N/A|ERR!)\s)")
"""Where a table that lost its line breaks had one, before a row."""


def _table(text: str) -> list[Fields]:
    """GPUs of the plain table; names that it cuts keep their dots."""
    found = []
    lines = text.splitlines()
    apart = "\n".join(_RUN_ON.sub("|\n", line) if line.count("|") > 8 else line for line in lines)
    for line in apart.splitlines():
        first = _FIRST.search(line.strip()) or _FIRST_CUT.match(line.strip())
        if first:
            found.append(_first_fields(first))
        elif found and "memory_bytes" not in found[-1]:
            found[-1] |= _converted(_SECOND.search(line) or _MEMORY.search(line))
        elif found and re.search(r"\|\s*(Enabled|Disabled)\*?\s*\|\s*$", line):
            found[-1].setdefault("mig", "Enabled" in line)
        if found and re.search(r"^\|\s*Processes", line.strip()):
            break
    return found


def _first_fields(first: re.Match[str]) -> Fields:
    """Where the driver has lost a GPU, ERR! stands in the place of its name."""
    fields = _converted(first) | {"index": int(first["index"])}
    name = re.sub(r"\s+(On|Off|N/A)$", "", first["name"]).strip()
    if name in ("ERR!", "Unknown Error", "GPU is lost"):
        fields |= {"name": None, "code": 15 if name == "GPU is lost" else 999}
    else:
        fields["name"] = name
    ecc = first.groupdict().get("errors")
    if ecc == "N/A":
        fields["unsupported"] = ("ecc",)
    elif ecc == "Off":
        fields["ecc"] = False
    elif (errors := whole(ecc or "")) is not None:
        fields |= {"ecc": True, "ecc_uncorrected": errors}
    return fields


def _converted(found: re.Match[str] | None) -> Fields:
    """The groups that are named as fields of a GPU."""
    groups = found.groupdict() if found else {}
    return _known(groups, {name: name for name in groups.keys() - {"index", "errors"}})


# --- nvidia-smi -L, and GPUs that it only complains about --------------------------------------

_LISTED = re.compile(r"^\s*GPU (\d{1,3}): (.*?)(?: \(UUID: ([^)]+)\))?\s*$")
_INSTANCE = re.compile(r"^\s+MIG .*\(UUID: (MIG-[^)]+)\)")
_LOST = re.compile(
    r"(?i)unable to determine the device handle for GPU ?(?:(\d{1,4}): )?([0-9a-f:.]+)"
)


def _list(text: str) -> list[Fields]:
    found: list[Fields] = []
    for line in text.splitlines():
        listed, instance = _LISTED.match(line), _INSTANCE.match(line)
        if listed and (listed[3] or "UUID" not in line):
            found.append({"index": int(listed[1]), "name": listed[2], "uuid": listed[3]})
        elif instance and found:
            devices = (*found[-1].get("mig_devices", ()), instance[1])
            found[-1] |= {"mig_devices": devices, "mig": True}
    return found


def _lost(text: str) -> list[Fields]:
    """GPUs whose handle failed: one line, and no table for the others."""
    rows = ((line, _LOST.search(line)) for line in text.splitlines())
    found = [(line, row) for line, row in rows if row]
    return [
        {"index": int(row[1] or n), "bus_id": _bus(row[2]), "code": first_message(line)[1] or 999}
        for n, (line, row) in enumerate(found)
    ]


# --- nvidia-smi -q: pages of indented labels ----------------------------------------------------

_LONGEST_FIELD = 300
_PAGE = re.compile(
    r"\s{0,8}GPU ((?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])\s*$"
)
_LABEL = re.compile(
    r"(?P<indent>\s{0,40})(?P<label>[A-Za-z][\w ()./-]{0,60}?)\s{0,60}(?::\s(?P<value>.{0,200}))?$"
)


def _pages(text: str) -> list[Fields]:
    """The GPUs of a whole -q or of a part of it."""
    pages: list[_Texts] = []
    heads: dict[int, str] = {}
    for line in text.splitlines() if "Product Name" in text else ():
        if len(line) > _LONGEST_FIELD:
            continue
        gpu = _PAGE.match(line)
        if gpu or (not pages and "Product Name" in line):
            pages.append({"bus": gpu[1].lower()} if gpu else {})
            heads = {}
        if not pages or not (found := _LABEL.match(line)):
            continue
        # A value stands under the heads that are indented less than it.
        indent, label = len(found["indent"].expandtabs(8)), found["label"].strip().lower()
        heads = {place: head for place, head in heads.items() if place < indent}
        if found["value"] is None:
            heads[indent] = label
        else:
            value, head = found["value"].strip(), next(reversed(heads.values()), "")
            pages[-1].setdefault(label, value)
            pages[-1].setdefault(f"{head}/{label}", value)
    return [_page_gpu(n, page) for n, page in enumerate(pages) if "product name" in page]


def _page_gpu(index: int, page: _Texts) -> Fields:
    reasons = {
        bit
        for label, bit in labels().throttle.items()
        for head in ("clocks throttle reasons", "clocks event reasons")
        if page.get(f"{head}/{label}", "").lower() == "active"
    }
    known = any(path.startswith(("clocks throttle", "clocks event")) for path in page)
    own = {"index": index, "bus_id": page.get("bus"), "throttle": sum(reasons) if known else None}
    return own | _known(page, labels().pages)
