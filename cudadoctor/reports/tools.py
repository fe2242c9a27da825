"""Outputs of tools that tell of the driver and the GPUs: nvidia-smi and its neighbours."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from packaging.version import Version

from cudadoctor.model.machine import Gpu, Xid
from cudadoctor.model.versions import DriverVersion
from cudadoctor.reports import values
from cudadoctor.reports.document import Document
from cudadoctor.reports.kernel_log import parse_kernel_log
from cudadoctor.reports.smi import parse_smi
from cudadoctor.reports.telling import Rank, Said

if TYPE_CHECKING:
    from cudadoctor.knowledge import Knowledge

_SMI_GATE = (
    "nvidia-smi",
    "nvml",
    "driver version",
    "kmd version",
    "uuid: gpu-",
    "uuid: mig-",
    "mib /",
    "mib |",
    "driver_version",
    "memory.total",
    "no devices were found",
    "device handle for gpu",
    "persistence-m",
    "product name",
)
_BANNER = re.compile(
    r"(?:Driver|KMD) Version\s?:\s?(?P<driver>\d{3,4}(?:\.\d{1,3}){1,2})"
    r"(?:[\s|]{1,6}CUDA (?:UMD )?Version\s?:\s?(?P<cuda>\d{1,2}\.\d{1,2}|N/A|ERR!|Not Found))?",
    re.I,
)
_TOOL = re.compile(r"NVIDIA-SMI(?: version\s?:)? {1,3}(\d{3,4}(?:\.\d{1,3}){1,2})(?!\d)", re.I)
_LIBRARY = re.compile(r"NVML library version: (\d{3,4}\.\d{1,3}(?:\.\d{1,3})?)", re.I)


def read_nvidia_smi(doc: Document, _: Knowledge) -> Iterator[Said]:
    """Driver, newest CUDA version and GPUs out of nvidia-smi in any of its forms."""
    if not any(words in doc.low for words in _SMI_GATE):
        return
    said = list(_banner(doc))
    yield from said
    smi = parse_smi(_with_names(doc) if "noheader" in doc.low else doc.text)
    line = next((one.number for one in doc.lines if "NVIDIA-SMI" in one.text), 1)
    for path, value in (
        ("driver.reported", None if said or _only_of_collect_env(doc) else smi.driver),
        ("gpus", _believed(smi.gpus, smi.code)),
        ("driver.smi.message", smi.message),
        ("driver.nvml.code", smi.code),
    ):
        yield Said(path, value, line, Rank.TOOL, "nvidia-smi")
    mismatch = _LIBRARY.search(doc.flat)
    if mismatch:
        where = doc.line_at(mismatch.start()).number
        yield Said("driver.library", DriverVersion(mismatch[1]), where, Rank.TOOL, "nvidia-smi")


def _only_of_collect_env(doc: Document) -> bool:
    """Whether each "driver version" is that of collect_env's label, which has its own reader."""
    return 0 < doc.low.count("driver version") == doc.low.count("nvidia driver version")


_QUERY = re.compile(r"--query-gpu[= ]([\w.,]{4,400})")


def _with_names(doc: Document) -> str:
    """A CSV without its head has it again: the command names the columns."""
    out: list[str] = []
    for line in doc.lines:
        query = _QUERY.search(line.text) if "--query-gpu" in line.text else None
        out.append(query[1] if query and "noheader" in line.text else line.text)
    return "\n".join(out)


def _believed(gpus: tuple[Gpu, ...] | None, code: int | None) -> tuple[Gpu, ...] | None:
    """Without the lines that only look like one of a list: "GPU 0: out of memory"."""
    if not gpus:
        return gpus if code == 6 else None
    kept = tuple(one for one in gpus if one.uuid or one.bus_id or one.code or _is_name(one.name))
    return kept or None


def _is_name(name: str | None) -> bool:
    return name is not None and len(name) < 60 and values.is_nvidia(name)


def _banner(doc: Document) -> Iterator[Said]:
    """The versions in the table's head, in -q, or in one line of either that was quoted."""
    own = "nvidia-smi" in doc.low or "product name" in doc.low or "| driver version" in doc.low
    for found in _BANNER.finditer(doc.flat):
        before = doc.low[max(0, found.start() - 60) : found.start()]
        if before.endswith(("nvidia ", "cuda ")) and "smi" not in before:
            continue  # collect_env's own label, and the CUDA driver API's number
        rank = Rank.TOOL if own or found["cuda"] else Rank.PROSE
        line = doc.line_at(found.start()).number
        yield Said("driver.reported", DriverVersion(found["driver"]), line, rank, "nvidia-smi")
        yield from _cuda(found["cuda"], line, rank)
        yield from _system(doc, found, line)
        return
    tool = _TOOL.search(doc.flat)
    if tool and "failed" not in doc.low[tool.end() : tool.end() + 40]:
        line = doc.line_at(tool.start()).number
        yield Said("driver.reported", DriverVersion(tool[1]), line, Rank.MESSAGE, "nvidia-smi")


def _system(doc: Document, banner: re.Match[str], line: int) -> Iterator[Said]:
    """In WSL the program is Linux's and the driver is Windows', so their numbers differ.

    On Windows the table has a column for the driver's model.
    """
    tool = _TOOL.search(doc.flat, max(0, banner.start() - 60), banner.start())
    table = doc.low[banner.start() : banner.start() + 400]
    if "tcc/wddm" in table or "driver-model" in table:
        yield Said("platform.system", "Windows", line, Rank.TOOL, "nvidia-smi")
    elif tool and DriverVersion(tool[1]) != DriverVersion(banner["driver"]):
        yield Said("platform.system", "Linux", line, Rank.MESSAGE, "nvidia-smi")
        yield Said("platform.wsl", 2, line, Rank.MESSAGE, "nvidia-smi")


def _cuda(text: str | None, line: int, rank: Rank) -> Iterator[Said]:
    if text and text[0].isdigit():
        yield Said("driver.cuda", Version(text), line, rank, "nvidia-smi")
    elif text:
        why = f"nvidia-smi finds no libcuda (CUDA Version: {text})"
        yield Said("driver.libcuda.loads", False, line, rank, "nvidia-smi")
        yield Said("driver.libcuda.why", why, line, rank, "nvidia-smi")


# --- the kernel's log, and its module -----------------------------------------------------------

_OF_A_LOG = re.compile(
    r"\s{0,4}(?:<\d{1,3}>)?\[\s{0,8}\d{1,8}\.\d{3,6}\]|.{0,60}\bkernel: |.{0,80}\bNVRM: "
)
_LOG_GATE = ("nvrm", "kernel:", "nvidia-nvlink", "nvidia: ", "nouveau", "xid")
_XID = re.compile(r"\bxid(?: errors?)?(?: code)?[ :#=]{1,3}(\d{1,3})(?![\d.])")


def read_kernel_log(doc: Document, _: Knowledge) -> Iterator[Said]:
    """Lines of dmesg or the journal about the driver, and Xids, also those only spoken of."""
    if not any(word in doc.low for word in _LOG_GATE):
        return
    lines = [line for line in doc.lines if _OF_A_LOG.match(line.text)]
    log = parse_kernel_log("\n".join(line.text for line in lines)) if lines else None
    first = lines[0].number if lines else 1
    if log is not None:
        yield Said("driver.log", log.lines or None, first, Rank.TOOL, "kernel log")
        yield Said("driver.xids", log.xids or None, first, Rank.TOOL, "kernel log")
    known = {one.code for one in log.xids} if log else set()
    for found in _XID.finditer(doc.low):
        if int(found[1]) not in known:
            known.add(int(found[1]))
            xid = Xid(code=int(found[1]), bus_id="")
            line = doc.line_at(found.start()).number
            yield Said("driver.xids", (xid,), line, Rank.PROSE, "an Xid by its number")


_MODULE = re.compile(
    r"NVIDIA UNIX (?:Open )?(?:\w{2,12} )?Kernel Module(?: for \w{2,12})? {1,2}"
    r"(\d{2,4}(?:\.\d{1,4}){1,2})\b",
    re.I,
)
_API_MISMATCH = re.compile(
    r"API mismatch: the client(?: '[^']{1,80}' \(pid \d{1,9}\))? has the version"
    r" (\d{2,4}(?:\.\d{1,4}){1,2}),?(?: NVRM:)?(?: but)?(?: NVRM:)? this kernel module has the"
    r"(?: NVRM:)? version (\d{2,4}(?:\.\d{1,4}){1,2})",
    re.I,
)


def read_proc_version(doc: Document, _: Knowledge) -> Iterator[Said]:
    """The loaded kernel module: /proc/driver/nvidia/version, its log, or a mismatch it told of."""
    if "kernel module" not in doc.low:
        return
    found = _MODULE.search(doc.flat)
    if found:
        line = doc.line_at(found.start()).number
        flavour = "open" if "open" in found[0].lower() else "proprietary"
        source = "the kernel module"
        yield Said("driver.kernel", DriverVersion(found[1]), line, Rank.TOOL, source)
        yield Said("driver.flavour", flavour, line, Rank.TOOL, source)
        yield Said("driver.loaded", True, line, Rank.TOOL, source)
    told = _API_MISMATCH.search(re.sub(r"\[ {0,8}\d{1,8}\.\d{3,6}\] ", "", doc.flat))
    if told:
        place = doc.low.find("api mismatch")
        line = doc.line_at(place).number
        yield Said("driver.library", DriverVersion(told[1]), line, Rank.TOOL, "the kernel module")
        yield Said("driver.kernel", DriverVersion(told[2]), line, Rank.TOOL, "the kernel module")
