"""Values as programs print them -> facts: versions of torch and Python, names of systems.

Every function hands back facts by their paths, {} where the text says nothing.
"""

from __future__ import annotations

import re

from packaging.version import Version

from cudadoctor.model.machine import Toolkit
from cudadoctor.model.versions import DriverVersion, version_of
from cudadoctor.reports.said import Facts

NOTHING = frozenset(
    {"", "none", "n/a", "na", "no", "not found", "not available", "unknown", "no cuda", "null"}
    | {"could not collect", "cannot collect", "not installed", "<not set>", "not set", "<fill in>"}
    | {"failed to import", "-", "?", "false"}
)
"""What stands in the place of a value where there is none."""

_TORCH = re.compile(
    r"v?(\d{1,2}\.\d{1,2}(?:\.\d{1,3})?(?:\.?(?:a|b|rc|post|dev)\d{0,10}){0,3}"
    r"(?:\+[a-z0-9]{1,40}(?:[._-][a-z0-9]{1,40}){0,6})?)(?![\w+])",
    re.I,
)
_CUDA_TAG = re.compile(r"cu(\d{2,3})(?!\d)")
_RELEASE = re.compile(r"V?(\d{1,2}\.\d{1,2})(?!\d)")
_DRIVER = re.compile(r"(?<![\w.])(\d{3,4}\.\d{1,3}(?:\.\d{1,3})?)(?![\w.]*\d)")
_WINDOWS_DRIVER = re.compile(r"(?<![\w.])(?:2\d|3\d)\.\d{1,2}\.1(\d)\.(\d)(\d{3})(?!\d)")
MACHINES = {
    "x86_64": "x86_64",
    "amd64": "x86_64",
    "x64": "x86_64",
    "aarch64": "aarch64",
    "arm64": "aarch64",
    "i386": "i686",
    "i686": "i686",
    "x86": "i686",
    "armv7l": "armv7l",
    "ppc64le": "ppc64le",
    "riscv64": "riscv64",
    "s390x": "s390x",
}


def is_nothing(text: str) -> bool:
    """Whether a program says with this that it has no value."""
    return text.strip(" .'\"()").lower() in NOTHING


def torch_version(text: str) -> Version | None:
    """The version of torch at the beginning of a text."""
    found = _TORCH.match(text.strip().strip("'\""))
    return version_of(found[1].replace("_", ".")) if found else None


def cuda_of_tag(text: str) -> Version | None:
    """CUDA out of a tag such as cu118, cu92 or cu130."""
    found = _CUDA_TAG.search(text.lower())
    return dotted(found[1]) if found else None


def dotted(digits: str) -> Version:
    """A version of two numbers, written in any way: 118 is 11.8, "8, 6" is 8.6."""
    return Version(re.sub(r"\D{0,8}(\d)$", r".\1", digits))


def torch_facts(text: str) -> Facts:
    """Release and build out of what torch.__version__ is."""
    version = torch_version(text)
    if version is None or version.major > 3:
        return {}
    said = {"torch.version": version, "torch.text": str(version), "torch.installed": True}
    return said | build_facts(version.local or "")


def build_facts(tag: str) -> Facts:
    """What the local part of a version says of the build."""
    low = tag.lower()
    if cuda := cuda_of_tag(low):
        return {"torch.build": "cuda", "torch.cuda": cuda}
    if low.startswith("rocm"):
        return {"torch.build": "rocm", "torch.hip": low.removeprefix("rocm")}
    if re.search(r"(?:^|\.)nv\d\d", low):
        return {"torch.build": "cuda"}
    return {"torch.build": low[:3]} if low.startswith(("cpu", "xpu")) else {}


def release(text: str) -> Version | None:
    """Major and minor of a CUDA release at the beginning: 11.1.105 is 11.1."""
    found = _RELEASE.match(text.strip())
    return Version(found[1]) if found else None


def toolkit_facts(
    text: str, path: str = "nvcc", origin: str = "PATH", nvcc: str | None = "nvcc"
) -> Facts:
    """A toolkit by its CUDA release; without more, the one of the first nvcc on PATH."""
    return {"build.toolkits": (Toolkit(path=path, origin=origin, cuda=Version(text), nvcc=nvcc),)}


def compiler_facts(name: str, text: str) -> Facts:
    """The host compiler, if the text is a version."""
    version = version_of(text)
    stem = "build.compiler"
    known = {f"{stem}.present": True, f"{stem}.name": name, f"{stem}.version": version}
    return known if version else {}


def driver_version(text: str) -> DriverVersion | None:
    """A driver release in a text; 31.0.15.3623 is how Windows counts 536.23."""
    windows = _WINDOWS_DRIVER.search(text)
    if windows:
        return DriverVersion(f"{windows[1]}{windows[2]}{windows[3][0]}.{windows[3][1:]}")
    found = _DRIVER.search(text)
    return DriverVersion(found[1]) if found else None


def switch(text: str) -> bool | None:
    """Yes or no, in any of the words for it."""
    low = text.strip(" .,;'\"()[]").lower()
    word = re.match(r"[a-z]*", low)
    known = {"true": True, "yes": True, "available": True, "cuda": True}
    known |= {"false": False, "no": False, "not": False}
    return known.get(word[0]) if word else None


# --- Python ------------------------------------------------------------------------------------

_PYTHON = re.compile(r"(?:c?python\s{0,3})?v?(\d\.\d{1,2}(?:\.\d{1,2})?)(?:(rc|a|b)(\d+))?", re.I)


def python_facts(text: str) -> Facts:
    """What sys.version or a shorter form of it says."""
    found = _PYTHON.match(text.strip())
    if found is None or not 2 <= int(found[1][0]) <= 3:
        return {}
    low = text.lower()
    said: Facts = {"python.version": Version(found[1])}
    for words, facts in _PYTHON_WORDS.items():
        if words in low:
            said = facts | said
    if "[msc v." in low:
        said["platform.system"] = "Windows"
        if machine := re.search(r"\((amd64|arm64)\)", low):
            said["platform.machine"] = MACHINES[machine[1]]
    return said


_PYTHON_WORDS: dict[str, Facts] = {
    "64-bit runtime": {"python.bits": 64},
    "64 bit": {"python.bits": 64},
    "32-bit runtime": {"python.bits": 32},
    "32 bit": {"python.bits": 32},
    "conda": {"python.kind": "conda"},
    "free-threading build": {"python.free_threaded": True},
    "pypy": {"python.implementation": "PyPy"},
}


# --- systems -----------------------------------------------------------------------------------

_LINUX = re.compile(
    r"Linux[- ](?P<kernel>\d\.\d{1,3}[\w.+~#-]{0,80}?)-"
    r"(?P<machine>x86_64|aarch64|arm64|ppc64le|i686|armv7l|amd64|riscv64)(?:-with-(?P<libc>[\w.-]{1,60}))?"
)
_WINDOWS = re.compile(r"Windows-(?:XP|7|8|8\.1|10|11|20\d\d\w{0,8})-[\d.]{3,20}(?:-SP\d)?", re.I)
_MAC = re.compile(r"(?:macOS|Darwin)-[\d.]{2,12}-(?P<machine>arm64|x86_64|i386)", re.I)
OLDEST_GLIBC = Version("2.17")
"""Older ones are misread out of Python's own file: no system of today has them."""


def platform_facts(text: str) -> Facts:
    """What platform.platform() says: system, kernel, processor, C library, WSL, Jetson."""
    if linux := _LINUX.search(text):
        return linux_facts(linux["kernel"], linux["machine"]) | _libc(linux["libc"] or "")
    if _WINDOWS.search(text):
        return {"platform.system": "Windows"}
    mac = _MAC.search(text)
    known = {"platform.system": "Darwin"}
    return known | {"platform.machine": MACHINES[mac["machine"]]} if mac else {}


def linux_facts(kernel: str, machine: str | None = None) -> Facts:
    """What the release of a kernel tells besides itself."""
    said: Facts = {"platform.system": "Linux", "platform.kernel": kernel}
    if machine:
        said["platform.machine"] = MACHINES.get(machine.lower(), machine.lower())
    low = kernel.lower()
    if "microsoft" in low or "wsl2" in low:
        first = low.startswith(("3.", "4.4.")) and "wsl2" not in low
        said["platform.wsl"] = 1 if first else 2
    if low.endswith("-tegra"):
        said["platform.jetson"] = True
    return said


def _libc(text: str) -> Facts:
    """glibc2.31 of newer Pythons; ubuntu-18.04-bionic of older ones."""
    if text.startswith("glibc"):
        return glibc_facts(text.removeprefix("glibc"))
    if old := re.match(r"(ubuntu|centos|fedora|redhat)-(\d{1,2}(?:\.\d{1,2})?)", text.lower()):
        name = "rhel" if old[1] == "redhat" else old[1]
        return {"platform.distro": name, "platform.distro_version": old[2]}
    return {"platform.libc": "musl"} if text.startswith("musl") else {}


def glibc_facts(text: str) -> Facts:
    """The C library's version, unless it is one that no system has."""
    found = re.match(r"[\s-]*(\d\.\d{1,2})", text)
    if found is None or Version(found[1]) < OLDEST_GLIBC:
        return {}
    return {"platform.libc": "glibc", "platform.glibc": Version(found[1])}


_DISTROS = {
    "ubuntu": "ubuntu",
    "debian": "debian",
    "red hat enterprise": "rhel",
    "rhel": "rhel",
    "redhat": "rhel",
    "centos": "centos",
    "rocky linux": "rocky",
    "almalinux": "almalinux",
    "oracle linux": "ol",
    "amazon linux": "amzn",
    "fedora": "fedora",
    "manjaro": "manjaro",
    "endeavouros": "endeavouros",
    "cachyos": "cachyos",
    "garuda": "garuda",
    "artix": "artix",
    "arch linux": "arch",
    "archlinux": "arch",
    "opensuse leap": "opensuse-leap",
    "opensuse tumbleweed": "opensuse-tumbleweed",
    "opensuse": "opensuse",
    "suse linux enterprise": "sles",
    "linux mint": "linuxmint",
    "linuxmint": "linuxmint",
    "pop!_os": "pop",
    "pop os": "pop",
    "zorin": "zorin",
    "nixos": "nixos",
    "alpine": "alpine",
    "gentoo": "gentoo",
    "kali": "kali",
    "void linux": "void",
    "azure linux": "azurelinux",
    "common base linux mariner": "mariner",
    "cbl-mariner": "mariner",
    "elementary os": "elementary",
    "clear linux": "clear-linux-os",
    "scientific linux": "scientific",
    "raspbian": "raspbian",
}


def os_facts(text: str) -> Facts:
    """What the name of an operating system tells: Ubuntu 22.04.3 LTS (x86_64)."""
    low = text.lower()
    machine = re.search(r"\((x86_64|amd64|aarch64|arm64|ppc64le|i686)\)", low)
    said: Facts = {"platform.machine": MACHINES[machine[1]]} if machine else {}
    if low.startswith("win") or "microsoft windows" in low:
        return {"platform.system": "Windows"} | said
    if low.startswith(("macos", "mac os", "darwin", "os x")):
        return {"platform.system": "Darwin"} | said
    linux = {"platform.system": "Linux"}
    words = next((words for words in _DISTROS if words in low), None)
    if words is None:
        return linux | said if low.startswith("linux") else {}
    said |= linux | {"platform.distro": _DISTROS[words]}
    behind = low.partition(words)[2]
    if found := re.match(r"\D{0,30}?v?(\d{1,2}(?:\.\d{1,2})?)(?!\d)", behind):
        said["platform.distro_version"] = found[1]
    if re.search(r"\bwsl\s?2?\b", low):
        said["platform.wsl"] = 2
    if words == "alpine":
        said["platform.libc"] = "musl"
    return said


# --- GPUs --------------------------------------------------------------------------------------

_MEMORY_OF_NAME = re.compile(
    r"[,;(]?\s{1,4}\(?\d{1,3}\s?(?:GB|GiB|G|MiB|MB)\b.{0,40}$|\s{1,4}\(?[x*×]\s?\d{1,2}\)?$", re.I
)
_BEFORE_NAME = re.compile(r"^(?:\d{1,2}\s?[x*×]\s{0,2}|(?:cuda:)?\d{1,2}[:.)]\s{1,4})", re.I)
_AFTER_NAME = re.compile(
    r"\s{0,4}(?:\(UUID|\(arch=|\(compute|, compute|, sm_|\s-\s|,\s?\d{3,6}\s?MiB|\s\s|\[|:\s)"
    r".{0,400}$",
    re.I,
)


_NVIDIA = re.compile(
    r"nvidia|geforce|tesla|quadro|rtx|gtx|titan|\b(?:g?[ahlvptkmb]|gb)\d{1,3}\b", re.I
)


def is_nvidia(name: str) -> bool:
    """Whether a name is one of NVIDIA's products."""
    return _NVIDIA.search(name) is not None


def gpu_name(text: str) -> str | None:
    """The name of a GPU without counts, memory, UUID or capability around it."""
    name = _BEFORE_NAME.sub("", text.strip(" \t'\"`|,;.*"))
    name = _AFTER_NAME.sub("", name)
    name = _MEMORY_OF_NAME.sub("", name).strip(" \t'\"`|,;.*(")
    if is_nothing(name) or not 2 <= len(name) <= 80 or not re.search(r"[A-Za-z]", name):
        return None
    return name
