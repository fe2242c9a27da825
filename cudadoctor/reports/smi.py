"""Text of nvidia-smi -> facts: its table, its CSV, its list of GPUs and its words of failure.

Functions of text only: the probe gives what the program printed, the report reader what was pasted.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec
from packaging.version import Version

from cudadoctor.model.machine import Gpu
from cudadoctor.model.versions import DriverVersion, driver_of, version_of, whole

MIB = 1 << 20
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


class SmiSaid(msgspec.Struct, frozen=True, kw_only=True):
    """What one output of nvidia-smi says.

    gpus: () only where it says that there are none. message: its first line where that is a
    failure. code: NVML's code for that failure, None where the words are not known.
    """

    driver: DriverVersion | None = None
    cuda: Version | None = None
    gpus: tuple[Gpu, ...] | None = None
    message: str | None = None
    code: int | None = None


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


def parse_smi(text: str) -> SmiSaid:
    """Everything in an output of nvidia-smi, whichever of its forms it is."""
    text = "\n".join(line[:LONGEST_LINE] for line in cleaned(text).splitlines())
    message, code = first_message(text)
    gpus = _rows(text) or _table(text) or _pages(text) or _list(text) or _lost(text)
    if gpus is None and code == 6:
        gpus = ()
    return SmiSaid(
        driver=_driver(text),
        cuda=_cuda(text),
        gpus=gpus,
        message=message,
        code=code,
    )


def first_message(text: str) -> tuple[str | None, int | None]:
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


def _version(pattern: str, text: str) -> DriverVersion | None:
    found = re.search(pattern, text)
    return driver_of(found[1].strip(".")) if found else None


def _driver(text: str) -> DriverVersion | None:
    """From 610 on the banner says KMD Version in place of Driver Version."""
    said = _version(r"(?i)\b(?:Driver|KMD) Version\s*:\s*(\d[\d.]+)", text)
    if said is not None:
        return said
    for row in _dicts(text):
        if row.get("driver_version"):
            return _version(r"^\s*(\d[\d.]+)\s*$", row["driver_version"])
    return None


def _cuda(text: str) -> Version | None:
    """The newest CUDA that the driver runs; drivers before 410 do not tell, some print N/A."""
    found = re.search(r"(?ai)\bCUDA (?:UMD )?Version\s*:\s*(\d{1,2}\.\d{1,2})\b", text)
    return Version(found[1]) if found else None


# --- CSV of --query-gpu ---------------------------------------------------------------------


def _dicts(text: str) -> list[dict[str, str]]:
    """Rows of the CSV by column, units taken from the names; [] where there is no such header."""
    lines = text.splitlines()
    for start, line in enumerate(lines):
        names = [name.split("[")[0].strip() for name in line.split(",")]
        if len(names) > 1 and {"name", "uuid", "index", "driver_version"} & set(names):
            rows = [_cells(line) for line in _until_blank(lines[start + 1 :])]
            return [dict(zip(names, row, strict=False)) for row in rows if len(row) == len(names)]
    return []


def _until_blank(lines: list[str]) -> list[str]:
    """The lines up to an empty one: what stands behind it is another output."""
    end = next((n for n, line in enumerate(lines) if n and not line.strip()), len(lines))
    return lines[:end]


def _cells(line: str) -> list[str]:
    """Each line is a row of its own: a quote that nobody closes must not swallow the others."""
    import csv  # a fast check reads none

    return next(csv.reader([line], skipinitialspace=True), [])


def _rows(text: str) -> tuple[Gpu, ...] | None:
    rows = _dicts(text)
    gpus = [_row_gpu(position, row) for position, row in enumerate(rows)]
    return tuple(gpus) if gpus else None


def _row_gpu(position: int, row: dict[str, str]) -> Gpu:
    fields = _known(row, _COLUMNS)
    unsupported = tuple(
        field
        for column, field in _COLUMNS.items()
        if field not in fields and row.get(column, "").strip(" []").lower() in _UNSUPPORTED
    )
    index = _whole(row.get("index", ""))
    return Gpu(index=position if index is None else index, unsupported=unsupported, **fields)


_UNSUPPORTED = ("n/a", "not supported", "not available")


def _known(texts: dict[str, str], columns: dict[str, str]) -> dict[str, Any]:
    """The fields of a GPU that the texts state; of several for one field the first."""
    fields: dict[str, Any] = {}
    for column, field in columns.items():
        text = texts.get(column)
        if text and (value := _CONVERTED[field](text)) is not None:
            fields.setdefault(field, value)
    return fields


def _whole(text: str) -> int | None:
    found = re.match(r"\s*(\d{1,18})(?:[\s%x]|MiB|$)", text)
    return int(found[1]) if found else None


def _watts(text: str) -> float | None:
    found = re.match(r"\s*(\d{1,5}(?:[.,]\d+)?)", text)
    return float(found[1].replace(",", ".")) if found else None


def _mebibytes(text: str) -> int | None:
    number = _whole(text)
    return None if number is None or number > 1 << 24 else number * MIB


def _switch(text: str) -> bool | None:
    return _SWITCH.get(text.strip().lower())


_SWITCH = {"enabled": True, "on": True, "yes": True, "disabled": False, "off": False, "no": False}


def _words(text: str) -> str | None:
    text = text.strip()[:100]
    unknown = text.lower() in ("", "n/a", "unknown error", "err!") or text.startswith("[")
    return text if text.isprintable() and not unknown else None


def _capability(text: str) -> Version | None:
    found = re.fullmatch(r"\s*(\d{1,2}\.\d)\s*", text)
    return version_of(found[1]) if found else None


def _bus(text: str) -> str | None:
    found = re.search(r"(?i)\b(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]\b", text)
    return found[0].lower() if found else None


def _device_id(text: str) -> str | None:
    found = re.fullmatch(r"(?i)\s*0x([0-9a-f]{4})10de\s*", text)
    return found[1].lower() if found else None


def _compute_mode(text: str) -> str | None:
    low = text.strip().lower().replace(".", "").replace("_", " ")
    if low.startswith(("exclusive", "e ")):
        return "exclusive"
    return low if low in ("default", "prohibited") else None


def _state(text: str) -> int | None:
    found = re.fullmatch(r"\s*P(\d{1,2})\s*", text)
    return int(found[1]) if found else None


def _fabric(text: str) -> int | None:
    return {"completed": 3, "in progress": 2, "not started": 1}.get(text.lower())


_CONVERTED: dict[str, Callable[[str], object]] = {
    "name": _words,
    "uuid": _words,
    "bus_id": _bus,
    "device_id": _device_id,
    "memory_bytes": _mebibytes,
    "memory_used_bytes": _mebibytes,
    "capability": _capability,
    "compute_mode": _compute_mode,
    "persistence": _switch,
    "mig": _switch,
    "mig_pending": _switch,
    "ecc": _switch,
    "ecc_pending": _switch,
    "ecc_uncorrected": _whole,
    "ecc_aggregate": _whole,
    "performance_state": _state,
    "utilization": _whole,
    "temperature_c": _whole,
    "power_w": _watts,
    "power_limit_w": _watts,
    "power_default_w": _watts,
    "sm_clock_mhz": _whole,
    "sm_clock_max_mhz": _whole,
    "pcie_width": _whole,
    "pcie_width_max": _whole,
    "pcie_generation": _whole,
    "pcie_generation_max": _whole,
    "memory_reserved_bytes": _mebibytes,
    "slowdown_c": _whole,
    "pcie_generation_gpu_max": _whole,
    "remap_pending": _switch,
    "remap_failed": _switch,
    "retired_pending": _switch,
    "display": _switch,
    "fabric_state": _fabric,
}
"""Field of a GPU -> what its text means; None if it says nothing."""
_COLUMNS = {
    "name": "name",
    "uuid": "uuid",
    "pci.bus_id": "bus_id",
    "pci.device_id": "device_id",
    "memory.total": "memory_bytes",
    "memory.used": "memory_used_bytes",
    "compute_cap": "capability",
    "compute_mode": "compute_mode",
    "persistence_mode": "persistence",
    "mig.mode.current": "mig",
    "mig.mode.pending": "mig_pending",
    "ecc.mode.current": "ecc",
    "ecc.mode.pending": "ecc_pending",
    "ecc.errors.uncorrected.volatile.total": "ecc_uncorrected",
    "ecc.errors.uncorrected.aggregate.total": "ecc_aggregate",
    "pstate": "performance_state",
    "utilization.gpu": "utilization",
    "temperature.gpu": "temperature_c",
    "power.draw": "power_w",
    "power.limit": "power_limit_w",
    "power.default_limit": "power_default_w",
    "clocks.current.sm": "sm_clock_mhz",
    "clocks.sm": "sm_clock_mhz",
    "clocks.max.sm": "sm_clock_max_mhz",
    "pcie.link.width.current": "pcie_width",
    "pcie.link.width.max": "pcie_width_max",
    "pcie.link.gen.current": "pcie_generation",
    "pcie.link.gen.max": "pcie_generation_max",
}
"""Column of the CSV -> field of a GPU."""

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


def _table(text: str) -> tuple[Gpu, ...] | None:
    """GPUs of the plain table; names that it cuts keep their dots. None where there is no table."""
    found: list[dict[str, Any]] = []
    for line in _rows_apart(text).splitlines():
        first = _FIRST.search(line.strip()) or _FIRST_CUT.match(line.strip())
        if first:
            found.append(_first_fields(first))
        elif found and "memory_bytes" not in found[-1]:
            found[-1] |= _converted(_SECOND.search(line) or _MEMORY.search(line))
        elif found and re.search(r"\|\s*(Enabled|Disabled)\*?\s*\|\s*$", line):
            found[-1].setdefault("mig", "Enabled" in line)
        if found and re.search(r"^\|\s*Processes", line.strip()):
            break
    return tuple(Gpu(**fields) for fields in found) or None


_RUN_ON = re.compile(r"\|\s(?=\|\s{0,4}\d{1,3}\s{1,4}\S|\|\s{0,4}(?:\d{1,3}%|N/A|ERR!)\s)")


def _rows_apart(text: str) -> str:
    """A table that lost its line breaks has them again before each row."""
    return "\n".join(
        _RUN_ON.sub("|\n", line) if line.count("|") > 8 else line for line in text.splitlines()
    )


def _first_fields(first: re.Match[str]) -> dict[str, Any]:
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


def _converted(found: re.Match[str] | None) -> dict[str, Any]:
    """The groups that are named as fields of a GPU."""
    return _known(found.groupdict(), {name: name for name in _CONVERTED}) if found else {}


# --- nvidia-smi -L, and GPUs that it only complains about --------------------------------------

_LISTED = re.compile(r"^\s*GPU (\d{1,3}): (.*?)(?: \(UUID: ([^)]+)\))?\s*$")
_INSTANCE = re.compile(r"^\s+MIG .*\(UUID: (MIG-[^)]+)\)")
_LOST = re.compile(
    r"(?i)unable to determine the device handle for GPU ?(?:(\d{1,4}): )?([0-9a-f:.]+)"
)


def _list(text: str) -> tuple[Gpu, ...] | None:
    found: list[dict[str, Any]] = []
    for line in text.splitlines():
        listed, instance = _LISTED.match(line), _INSTANCE.match(line)
        if listed and (listed[3] or "UUID" not in line):
            found.append({"index": int(listed[1]), "name": listed[2], "uuid": listed[3]})
        elif instance and found:
            devices = (*found[-1].get("mig_devices", ()), instance[1])
            found[-1] |= {"mig_devices": devices, "mig": True}
    return tuple(Gpu(**fields) for fields in found) or None


def _lost(text: str) -> tuple[Gpu, ...] | None:
    """GPUs whose handle failed: one line, and no table for the others."""
    found: list[Gpu] = []
    for line in text.splitlines():
        words = _LOST.search(line)
        if words:
            code = first_message(line)[1]
            index = int(words[1]) if words[1] else len(found)
            found.append(Gpu(index=index, bus_id=_bus(words[2]), code=code or 999))
    return tuple(found) or None


# --- nvidia-smi -q: pages of indented labels ----------------------------------------------------

_LONGEST_FIELD = 300
_PAGE = re.compile(
    r"\s{0,8}GPU ((?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])\s*$"
)
_FIELD = re.compile(
    r"(?P<indent>\s{0,40})(?P<label>[A-Za-z][\w ()./-]{0,60}?)\s{0,60}:\s(?P<value>.{0,200})$"
)
_HEAD = re.compile(r"(?P<indent>\s{0,40})(?P<label>[A-Za-z][\w ()./-]{0,60}?)\s*$")
_THROTTLE = {
    "idle": 0x1,
    "applications clocks setting": 0x2,
    "sw power cap": 0x4,
    "hw slowdown": 0x8,
    "sync boost": 0x10,
    "sw thermal slowdown": 0x20,
    "hw thermal slowdown": 0x40,
    "hw power brake slowdown": 0x80,
    "display clock setting": 0x100,
}
"""NVML's bits of the reasons for which the clocks are held down."""


def _pages(text: str) -> tuple[Gpu, ...] | None:
    """The GPUs of a whole -q or of a part of it; None where there is none of it."""
    if "Product Name" not in text:
        return None
    pages: list[dict[str, str]] = []
    heads: list[tuple[int, str]] = []
    for line in text.splitlines():
        if len(line) > _LONGEST_FIELD:
            continue
        gpu = _PAGE.match(line)
        if gpu or (not pages and "Product Name" in line):
            pages.append({"bus": gpu[1].lower()} if gpu else {})
            heads = []
        if pages and not gpu:
            _note(line, pages[-1], heads)
    found = (_page_gpu(n, page) for n, page in enumerate(pages) if "product name" in page)
    return tuple(found) or None


def _note(line: str, page: dict[str, str], heads: list[tuple[int, str]]) -> None:
    """A value under the path of the heads above it, by their indentation."""
    found = _FIELD.match(line) or _HEAD.match(line)
    if found is None:
        return
    indent = len(found["indent"].expandtabs(8))
    while heads and heads[-1][0] >= indent:
        heads.pop()
    label = found["label"].strip().lower()
    if found.re is _HEAD:
        heads.append((indent, label))
        return
    value = found["value"].strip()
    page.setdefault(label, value)
    page.setdefault(f"{heads[-1][1] if heads else ''}/{label}", value)


def _page_gpu(index: int, page: dict[str, str]) -> Gpu:
    reasons = {
        bit
        for label, bit in _THROTTLE.items()
        for head in ("clocks throttle reasons", "clocks event reasons")
        if page.get(f"{head}/{label}", "").lower() == "active"
    }
    known = any(path.startswith(("clocks throttle", "clocks event")) for path in page)
    throttle = sum(reasons) if known else None
    return Gpu(index=index, bus_id=page.get("bus"), throttle=throttle, **_known(page, _PATHS))


_PATHS = {
    "product name": "name",
    "gpu uuid": "uuid",
    "pci/device id": "device_id",
    "compute capability": "capability",
    "/persistence mode": "persistence",
    "persistence mode": "persistence",
    "compute mode": "compute_mode",
    "mig mode/current": "mig",
    "mig mode/pending": "mig_pending",
    "ecc mode/current": "ecc",
    "ecc mode/pending": "ecc_pending",
    "current ecc/current": "ecc",
    "fb memory usage/total": "memory_bytes",
    "fb memory usage/used": "memory_used_bytes",
    "fb memory usage/reserved": "memory_reserved_bytes",
    "performance state": "performance_state",
    "utilization/gpu": "utilization",
    "temperature/gpu current temp": "temperature_c",
    "temperature/gpu slowdown temp": "slowdown_c",
    "power readings/power draw": "power_w",
    "gpu power readings/power draw": "power_w",
    "gpu power readings/instantaneous power draw": "power_w",
    "gpu power readings/average power draw": "power_w",
    "power readings/power limit": "power_limit_w",
    "gpu power readings/current power limit": "power_limit_w",
    "power readings/default power limit": "power_default_w",
    "gpu power readings/default power limit": "power_default_w",
    "clocks/sm": "sm_clock_mhz",
    "max clocks/sm": "sm_clock_max_mhz",
    "pcie generation/current": "pcie_generation",
    "pcie generation/max": "pcie_generation_max",
    "pcie generation/device max": "pcie_generation_gpu_max",
    "link width/current": "pcie_width",
    "link width/max": "pcie_width_max",
    "remapped rows/pending": "remap_pending",
    "remapped rows/remapping failure occurred": "remap_failed",
    "retired pages/pending page blacklist": "retired_pending",
    "volatile/dram uncorrectable": "ecc_uncorrected",
    "aggregate/dram uncorrectable": "ecc_aggregate",
    "display active": "display",
    "fabric/state": "fabric_state",
}
"""Label of a page behind the head above it -> field of a GPU."""
