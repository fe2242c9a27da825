"""The operating system, as uname, os-release, hostnamectl, Windows and WSL tell it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from packaging.version import Version

from cudadoctor.reports import values
from cudadoctor.reports.document import Document
from cudadoctor.reports.telling import Rank, Said

if TYPE_CHECKING:
    from cudadoctor.knowledge import Knowledge

Facts = Callable[["re.Match[str]"], values.Pairs]

_UNAME = re.compile(
    r"\bLinux \S{1,80} (?P<kernel>\d\.\d{1,3}\.\d{1,3}\S{0,80})"
    r" .{0,120}?\b(?P<machine>x86_64|aarch64"
    r"|ppc64le|i686|armv7l)\b"
)
_PROC_VERSION = re.compile(r"\bLinux version (?P<kernel>\d\.\d{1,3}\.\d{1,3}\S{0,80})")
_PRETTY = re.compile(
    r"\b(?:PRETTY_NAME=\"|Description:\s{1,20}|Operating System: )(?P<name>[^\"\n]{4,80})"
)
_ID = re.compile(r"(?:^|\n)ID=\"?(?P<id>[\w.-]{2,30})\"?(?:\n|$)")
_VERSION_ID = re.compile(r"(?:^|\n)VERSION_ID=\"?(?P<version>[\d.]{1,10})\"?")
_KERNEL = re.compile(
    r"\bKernel(?: Version| Release)?: (?:Linux )?(?P<kernel>\d\.\d{1,3}\.\d{1,3}[\w.+~-]{0,80})"
)
_ARCHITECTURE = re.compile(r"\bArchitecture: (?P<machine>x86[-_]64|arm64|aarch64|amd64)\b")
_VIRTUAL = re.compile(
    r"\bVirtualization: (?P<kind>kvm|vmware|microsoft|oracle|xen|wsl|docker|lxc|none)\b"
)
_WINDOWS = re.compile(
    r"Microsoft Windows \[\w{4,12} (?P<build>\d{1,2}\.\d\.\d{4,6})|"
    r"OS Name:\s{1,40}(?P<name>Microsoft Windows .{2,40})"
    r"|OSVersion(?P<more> .{0,20}Win32NT)"
)
_WSL_KERNEL = re.compile(r"Kernel version: (?P<kernel>\d\.\d{1,3}\.\d{1,3}\S{0,40})")
_WSL_LIST = re.compile(
    r"NAME STATE VERSION(?P<rows>(?: \*? ?[\w.-]{2,40} (?:Running|Stopped) [12]){1,12})"
)
_GLIBC = re.compile(
    r"\bldd \((?:Ubuntu |Debian |GNU )?(?:GLIBC|EGLIBC|libc)[^)]{0,40}\) (?P<version>\d\.\d{1,2})"
    r"|GNU C Library .{0,60}?version (?P<other>\d\.\d{1,2})",
    re.I,
)
_MUSL = re.compile(r"\bmusl libc \((?P<machine>\w{4,10})\)|ld-musl-\w{4,10}\.so")
_TEGRA = re.compile(r"# R(?P<major>\d{2}) \(release\), REVISION: (?P<minor>\d{1,2}(?:\.\d{1,2})?)")
_PYTHON = re.compile(
    r"(?:^|\n)\s{0,8}Python (?P<python>[23]\.\d{1,2}\.\d{1,2}\S{0,6}(?: .{0,160})?)(?:\n|$)"
)


def read_system(doc: Document, _: Knowledge) -> Iterator[Said]:
    """Every such output that is known, by a word of it."""
    for gate, pattern, facts, source in _OUTPUTS:
        if gate not in doc.low:
            continue
        found = pattern.search(doc.flat)
        if found is None:
            continue
        line = doc.line_at(found.start()).number
        rank = Rank.PROSE if source == "wsl --list" else Rank.TOOL
        for path, value in facts(found):
            yield Said(path, value, line, rank, source)
    yield from _by_lines(doc)


def _by_lines(doc: Document) -> Iterator[Said]:
    """What is known only by the beginning of its line."""
    if "version_id=" in doc.low:
        for pattern, path in ((_ID, "platform.distro"), (_VERSION_ID, "platform.distro_version")):
            found = pattern.search(doc.text)
            if found:
                line = doc.text.count("\n", 0, found.start() + 1)
                yield Said(path, found[1].lower(), doc.lines[line].number, Rank.TOOL, "os-release")
    if "python 3." in doc.low or "python 2." in doc.low:
        found = _PYTHON.search(doc.text)
        if found:
            line = doc.lines[doc.text.count("\n", 0, found.start("python"))].number
            for path, value in values.python_facts(found["python"]):
                yield Said(path, value, line, Rank.MESSAGE, "python --version")


def _kernel(found: re.Match[str]) -> values.Pairs:
    words = found.groupdict()
    return values.linux_facts(words["kernel"].rstrip(",;"), words.get("machine"))


def _wsl_kernel(_: re.Match[str]) -> values.Pairs:
    return (("platform.wsl", 2), ("platform.system", "Linux"))


def _wsl_list(found: re.Match[str]) -> values.Pairs:
    versions = {
        row.split()[-1] for row in re.findall(r"[\w.-]+ (?:Running|Stopped) [12]", found["rows"])
    }
    return (("platform.wsl", int(versions.pop())),) if len(versions) == 1 else ()


def _pretty(found: re.Match[str]) -> values.Pairs:
    """Docker Desktop is the name of a system too, and tells nothing of this one."""
    return values.os_facts(found["name"])


def _machine(found: re.Match[str]) -> values.Pairs:
    return (("platform.machine", values.MACHINES[found["machine"].replace("-", "_").lower()]),)


def _virtual(found: re.Match[str]) -> values.Pairs:
    kind = found["kind"]
    if kind == "wsl":
        return (("platform.wsl", 2),)
    if kind in ("docker", "lxc"):
        return (("container.kind", kind),)
    return (("platform.virtual", "" if kind == "none" else kind),)


def _windows(_: re.Match[str]) -> values.Pairs:
    return (("platform.system", "Windows"),)


def _glibc(found: re.Match[str]) -> values.Pairs:
    return values.glibc_facts(found["version"] or found["other"])


def _musl(_: re.Match[str]) -> values.Pairs:
    return (("platform.libc", "musl"),)


def _tegra(found: re.Match[str]) -> values.Pairs:
    l4t = Version(f"{found['major']}.{found['minor']}")
    return (("platform.jetson", True), ("platform.l4t", l4t), ("platform.machine", "aarch64"))


_OUTPUTS: tuple[tuple[str, re.Pattern[str], Facts, str], ...] = (
    ("gnu/linux", _UNAME, _kernel, "uname"),
    ("linux version", _PROC_VERSION, _kernel, "/proc/version"),
    ("kernel: ", _KERNEL, _kernel, "hostnamectl"),
    ("kernel version: ", _KERNEL, _kernel, "docker info"),
    ("wslg version", _WSL_KERNEL, _wsl_kernel, "wsl --version"),
    ("name state version", _WSL_LIST, _wsl_list, "wsl --list"),
    ("pretty_name=", _PRETTY, _pretty, "os-release"),
    ("description: ", _PRETTY, _pretty, "lsb_release"),
    ("operating system: ", _PRETTY, _pretty, "hostnamectl"),
    ("architecture: ", _ARCHITECTURE, _machine, "hostnamectl"),
    ("virtualization: ", _VIRTUAL, _virtual, "hostnamectl"),
    ("microsoft windows [", _WINDOWS, _windows, "Windows"),
    ("os name:", _WINDOWS, _windows, "systeminfo"),
    ("ldd (", _GLIBC, _glibc, "ldd --version"),
    ("gnu c library", _GLIBC, _glibc, "ldd --version"),
    ("musl", _MUSL, _musl, "ldd --version"),
    ("(release), revision:", _TEGRA, _tegra, "/etc/nv_tegra_release"),
)
"""A word that must stand there, the output, what it tells, and who prints it."""
