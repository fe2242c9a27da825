"""Text of a kernel log -> its lines about the driver, and its Xids.

Any of the usual forms: dmesg with seconds or dates, journalctl, syslog, /dev/kmsg.
"""

from __future__ import annotations

import math
import re

from msgspec import Struct

from cudadoctor.model.machine import OptFloat, Strings, Xid

MOST_LINES = 200
LONGEST_LINE = 1000

_WORDS = (
    "nvrm",
    "nvidia",
    "nouveau",
    "nova_core",
    "xid",
    "module verification failed",
    "loading of module",
    "loading of unsigned module",
    "lockdown: ",
    "out of memory: kill",
    "oom-kill:",
    "blocked for more than ",
    "pm: suspend exit",
    "fabricmanager",
)
_MATTERS = re.compile(
    r"aer: .*(?:uncorrected|fatal|multiple)|pcieport .*aer|bar \d+.*(?:no space|failed to assign)"
    r"|io_page_fault|dmar: \[dma "
)
_MAYBE = ("aer", "bar ", "io_page_fault", "dmar: [dma ")
"""A long log has a hundred thousand lines: plain words are looked for before any pattern."""

_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?(?P<bus>[0-9a-fA-F:.]+)\): (?P<code>\d{1,4})(?:, \s*"
    r"(?:pid='?(?:(?P<pid>\d{1,9})|<unknown>)'?(?:, name=(?P<name>[^,]*))?(?:, )?)?(?P<text>.*))?$"
)
_SINCE_BOOT = re.compile(r"\[\s*(\d+\.\d+)\]")
_KMSG = re.compile(r"^\d+,\d+,(\d{1,18}),[^;]*;(.*)$")


class KernelLog(Struct, frozen=True, kw_only=True):
    """The lines of a kernel log that matter, and the kinds of Xid in it, the newest first."""

    lines: Strings = ()
    xids: tuple[Xid, ...] = ()


def parse_kernel_log(text: str, uptime_s: OptFloat = None) -> KernelLog:
    """What a kernel log says about GPUs. uptime_s: to tell how old a line is, where it can."""
    whole = text.lower()
    if not any(word in whole for word in (*_WORDS, *_MAYBE)):
        return KernelLog(lines=(), xids=())
    lines = (line[:LONGEST_LINE] for line in text.splitlines())
    matters = [_plain(line) for line in lines if _matters(line.lower())]
    return KernelLog(
        lines=tuple(line[:400] for line in matters[-MOST_LINES:]),
        xids=_xids(matters, uptime_s),
    )


def _matters(low: str) -> bool:
    if any(word in low for word in _WORDS):
        return True
    return any(word in low for word in _MAYBE) and _MATTERS.search(low) is not None


def _plain(line: str) -> str:
    """A record of /dev/kmsg written as dmesg writes it; other lines as they are."""
    record = _KMSG.match(line)
    if record is None:
        return line.rstrip()
    return f"[{int(record[1]) / 1e6:12.6f}] {record[2]}"


def _xids(lines: list[str], uptime_s: OptFloat) -> tuple[Xid, ...]:
    """One entry for each code of each GPU: its newest line, and how often it came."""
    newest: dict[tuple[int, str], Xid] = {}
    for line in lines:
        if found := _XID.search(line):
            code, bus = int(found["code"]), found["bus"].lower()
            before = newest.pop((code, bus), None)
            name = (found["name"] or "").strip()
            newest[code, bus] = Xid(
                code=code,
                bus_id=bus,
                count=before.count + 1 if before else 1,
                age_s=_age(line, uptime_s),
                pid=int(found["pid"]) if found["pid"] else None,
                process=name if name and name != "<unknown>" else None,
                text=(found["text"] or "").strip()[:200] or None,
            )
    return tuple(reversed(newest.values()))


def _age(line: str, uptime_s: OptFloat) -> OptFloat:
    since_boot = _SINCE_BOOT.search(line)
    if since_boot is None or uptime_s is None or not math.isfinite(uptime_s):
        return None
    return max(0.0, uptime_s - float(since_boot[1]))
