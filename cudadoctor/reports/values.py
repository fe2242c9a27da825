"""Values as programs print them -> facts: versions of torch and Python, names of systems.

Every function hands back facts by their paths, {} if the text says nothing. What a named group of a
pattern means is the same in every reader (GROUPS).
"""

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from packaging.version import Version

from cudadoctor.knowledge.wording import wording
from cudadoctor.model.machine import Gpu, Node, OptDriverVersion, OptInt, OptStr, OptVersion
from cudadoctor.model.versions import DriverVersion, cuda_from_int, cuda_from_tag, version_of
from cudadoctor.reports.statements import Facts

TextReader = Callable[[str], Facts | None]
"""What a text states: {} if nothing, None if it is of another form."""
NOTHING = re.compile(
    r"|none|n/?a|no|not found|not available|unknown|no cuda|null|could not collect|cannot collect"
    r"|not installed|<not set>|not set|<fill in>|failed to import|-|\?|false"
)
"""What stands in the place of a value where there is none."""

_TORCH = re.compile(
    r"(?i)v?(\d{1,2}\.\d{1,2}(?:\.\d{1,3})?(?:\.?(?:a|b|rc|post|dev)\d{0,10}){0,3}"
    r"(?:\+[a-z0-9]{1,40}(?:[._-][a-z0-9]{1,40}){0,6})?)(?![\w+])",
)
_CUDA_TAG = re.compile(r"cu(\d{2,3})(?!\d)")
_DRIVER = re.compile(r"(?<![\w.])(\d{3,4}\.\d{1,3}(?:\.\d{1,3})?)(?![\w.]*\d)")
_WINDOWS_DRIVER = re.compile(r"(?<![\w.])(?:2\d|3\d)\.\d{1,2}\.1(\d)\.(\d)(\d{3})(?!\d)")


class Words(Struct, frozen=True, forbid_unknown_fields=True):
    """The tables of words.toml, which says what each means."""

    groups: dict[str, Facts]
    choices: dict[str, dict[str, Facts]]
    machines: dict[str, str]
    distributions: dict[str, str]
    python: dict[str, Facts]
    systems: dict[str, str]
    subdirs: dict[str, Facts]
    owners: dict[str, str]
    questions: dict[str, str]
    patterns: dict[str, dict[str, str]]


WORDS = wording("words", Words)
MACHINES = WORDS.machines


def is_nothing(text: str) -> bool:
    """Whether a program says with this that it has no value."""
    return NOTHING.fullmatch(text.strip(" .'\"()").lower()) is not None


def torch_version(text: str) -> OptVersion:
    """The version of torch at the beginning of a text."""
    found = _TORCH.match(text.strip().strip("'\""))
    return version_of(found[1].replace("_", ".")) if found else None


def cuda_of_tag(text: str) -> OptVersion:
    """CUDA out of a tag such as cu118, cu92 or cu130."""
    found = _CUDA_TAG.search(text.lower())
    return cuda_from_tag(found[1]) if found else None


def dotted(digits: str) -> Version:
    """A version of two numbers, written in any way: 118 is 11.8, "8, 6" is 8.6."""
    return Version(re.sub(r"\D{0,8}(\d)$", r".\1", digits))


def torch_facts(text: str) -> Facts:
    """Release and build out of what torch.__version__ is."""
    version = torch_version(text)
    if version is None or version.major > 3:
        return {}
    known = {"torch.version": version, "torch.text": str(version), "torch.installed": True}
    return known | build_facts(version.local or "")


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


def driver_version(text: str) -> OptDriverVersion:
    """A driver release in a text; 31.0.15.3623 is how Windows counts 536.23."""
    windows = _WINDOWS_DRIVER.search(text)
    if windows:
        return DriverVersion(f"{windows[1]}{windows[2]}{windows[3][0]}.{windows[3][1:]}")
    found = _DRIVER.search(text)
    return DriverVersion(found[1]) if found else None


# --- Python ------------------------------------------------------------------------------------

_PYTHON = re.compile(r"(?i)(?:c?python\s{0,3})?v?(\d\.\d{1,2}(?:\.\d{1,2})?)(?:(rc|a|b)(\d+))?")


def python_facts(text: str) -> Facts:
    """What sys.version or a shorter form of it says."""
    found = _PYTHON.match(text.strip())
    if found is None or not 2 <= int(found[1][0]) <= 3:
        return {}
    low = text.lower()
    known = {"python.version": Version(found[1])}
    for words, facts in WORDS.python.items():
        if words in low:
            known = facts | known
    if "[msc v." in low:
        known |= found_in(low, r"(?P<windows>msc)", r"\((?P<machine>amd64|arm64)\)")
    return known


# --- systems -----------------------------------------------------------------------------------

_LINUX = re.compile(
    r"Linux[- ](?P<kernel>\d\.\d{1,3}[\w.+~#-]{0,80}?)-"
    r"(?P<machine>x86_64|aarch64|arm64|ppc64le|i686|armv7l|amd64|riscv64)(?:-with-(?P<libc>[\w.-]{1,60}))?"
)
_WINDOWS = re.compile(
    r"(?i)(?P<windows>Windows)-(?:XP|7|8|8\.1|10|11|20\d\d\w{0,8})-[\d.]{3,20}(?:-SP\d)?"
)
_MAC = re.compile(r"(?i)(?P<mac>macOS|Darwin)-[\d.]{2,12}-(?P<machine>arm64|x86_64|i386)")
OLDEST_GLIBC = Version("2.17")
"""Older ones are misread out of Python's own file: no system of today has them."""


def platform_facts(text: str) -> Facts:
    """What platform.platform() says: system, kernel, processor, C library, WSL, Jetson."""
    if linux := _LINUX.search(text):
        # glibc2.31 of newer Pythons; ubuntu-18.04-bionic of older ones
        libc = found_in(
            (linux["libc"] or "").lower(),
            r"^glibc(?P<glibc>[\s-]*\d\.\d{1,2})",
            r"^(?P<distro>ubuntu|centos|fedora|redhat)-(?P<distro_version>\d{1,2}(?:\.\d{1,2})?)",
            r"^(?P<musl>musl)",
        )
        return linux_facts(linux["kernel"]) | of_group("machine", linux["machine"]) | libc
    return facts_of(found) if (found := _WINDOWS.search(text) or _MAC.search(text)) else {}


def linux_facts(kernel: str) -> Facts:
    """What the release of a kernel tells besides itself."""
    return {"platform.system": "Linux", "platform.kernel": kernel} | found_in(
        kernel.lower(),
        r"(?P<wsl2>microsoft|wsl2)",
        r"^(?:3\.|4\.4\.)(?!.*wsl2).*(?P<wsl1>microsoft)",
        r"-(?P<jetson>tegra)$",
    )


def glibc_facts(text: str) -> Facts:
    """The C library's version, unless it is one that no system has."""
    found = re.match(r"[\s-]*(\d\.\d{1,2})", text)
    if found is None or Version(found[1]) < OLDEST_GLIBC:
        return {}
    return {"platform.libc": "glibc", "platform.glibc": Version(found[1])}


def os_facts(text: str) -> Facts:
    """What the name of an operating system tells: Ubuntu 22.04.3 LTS (x86_64)."""
    low = text.lower()
    machine = found_in(low, r"\((?P<machine>x86_64|amd64|aarch64|arm64|ppc64le|i686)\)")
    other = found_in(
        low, r"^(?P<windows>win|.*microsoft windows)", r"^(?P<mac>macos|mac os|darwin|os x)"
    )
    linux = {"platform.system": "Linux"}
    words = next((words for words in WORDS.distributions if words in low), None)
    if other or words is None:
        return other | machine if other else linux | machine if low.startswith("linux") else {}
    version = r"^\D{0,30}?v?(?P<distro_version>\d{1,2}(?:\.\d{1,2})?)(?!\d)"
    return (
        {**machine, **linux, "platform.distro": WORDS.distributions[words]}
        | found_in(low.partition(words)[2], version)
        | found_in(low, r"\b(?P<wsl2>wsl\s?2?)\b")
        | (of_group("musl", words) if words == "alpine" else {})
    )


# --- GPUs --------------------------------------------------------------------------------------

_MEMORY_OF_NAME = re.compile(
    r"(?i)[,;(]?\s{1,4}\(?\d{1,3}\s?(?:GB|GiB|G|MiB|MB)\b.{0,40}$|\s{1,4}\(?[x*×]\s?\d{1,2}\)?$"
)
_BEFORE_NAME = re.compile(r"(?i)^(?:\d{1,2}\s?[x*×]\s{0,2}|(?:cuda:)?\d{1,2}[:.)]\s{1,4})")
_AFTER_NAME = re.compile(
    r"(?i)\s{0,4}(?:\(UUID|\(arch=|\(compute|, compute|, sm_|\s-\s|,\s?\d{3,6}\s?MiB|\s\s|\[|:\s)"
    r".{0,400}$",
)


_NVIDIA = re.compile(
    r"(?i)nvidia|geforce|tesla|quadro|rtx|gtx|titan|\b(?:g?[ahlvptkmb]|gb)\d{1,3}\b"
)


def is_nvidia(name: str) -> bool:
    """Whether a name is one of NVIDIA's products."""
    return _NVIDIA.search(name) is not None


def gpu_name(text: str) -> OptStr:
    """The name of a GPU without counts, memory, UUID or capability around it."""
    name = _BEFORE_NAME.sub("", text.strip(" \t'\"`|,;.*"))
    name = _AFTER_NAME.sub("", name)
    name = _MEMORY_OF_NAME.sub("", name).strip(" \t'\"`|,;.*(")
    if is_nothing(name) or not 2 <= len(name) <= 80 or not re.search(r"[A-Za-z]", name):
        return None
    return name


# --- named groups of patterns --------------------------------------------------------------------


def facts_of(found: re.Match[str]) -> Facts:
    """What the named groups of a match state."""
    groups = {name: text for name, text in found.groupdict().items() if text}
    facts = {"gpus": gpus} if (gpus := gpus_of(groups)) else {}
    for name, text in groups.items():
        facts |= of_group(name, text)
    return facts


def of_group(name: str, text: str) -> Facts:
    """What the text of one named group states."""
    facts: Facts = _filled(WORDS.groups.get(name, {}), text)
    chosen = WORDS.choices.get(name, {}).get(text.lower(), {})
    return facts | chosen | (GROUPS[name](text) if name in GROUPS else {})


def _filled(template: Any, text: str) -> Any:
    """The template with the text for every "$" in it."""
    if isinstance(template, dict):
        return {name: _filled(part, text) for name, part in template.items()}
    if isinstance(template, list):
        return [_filled(part, text) for part in template]
    return text if template == "$" else template


def found_in(text: str, *patterns: str) -> Facts:
    """What the first match of each of these patterns states."""
    matches = (re.search(pattern, text) for pattern in patterns)
    return {path: fact for found in matches if found for path, fact in facts_of(found).items()}


def matching(pattern: str) -> TextReader:
    """What a value states that begins with a pattern; None if it does not."""
    compiled = re.compile(pattern)
    return lambda text: facts_of(found) if (found := compiled.match(text)) else None


def matchers(table: str) -> dict[str, TextReader]:
    """The same for each pattern of a table of words.toml."""
    return {name: matching(pattern) for name, pattern in WORDS.patterns[table].items()}


def gpus_of(groups: dict[str, str], place: int = 0) -> tuple[Gpu, ...]:
    """The GPUs of the groups gpu (or name, as it stands), cc, memory (MiB), count and index.

    place: the index of one that has none.
    """
    name = gpu_name(groups.get("gpu", "")) or groups.get("name")
    if name is None:
        return ()
    gpu = Gpu(
        index=place,
        name=name,
        capability=dotted(groups["cc"]) if "cc" in groups else None,
        memory_bytes=_mebibytes(groups.get("memory")),
        memory_used_bytes=_mebibytes(groups.get("memory_used")),
    )
    numbers = map(int, groups["index"].split(",")) if "index" in groups else range(place, place + 1)
    numbers = range(int(groups["count"])) if "count" in groups else numbers
    return tuple(replace(gpu, index=number) for number in numbers)


def _mebibytes(text: OptStr) -> OptInt:
    return int(text) << 20 if text else None


def entries(found: re.Match[str], place: int) -> Iterable[object]:
    """What a match adds to a fact of several parts: GPUs, device nodes, or its own text."""
    groups = {name: text for name, text in found.groupdict().items() if text}
    if "mode" in groups:
        bits = sum(1 << (8 - place) for place, mark in enumerate(groups["mode"]) if mark != "-")
        return (Node(path=groups["path"], mode=bits, group=groups["group"]),)
    return gpus_of(groups, place) if groups else (found[0].strip(),)


def _archs(text: str, pattern: str = r"(?:sm|compute)_\d{2,3}[af]?") -> Facts:
    return {"torch.archs": tuple(dict.fromkeys(re.findall(pattern, text)))}


def _driver_cuda(text: str) -> Facts:
    """A number such as 12020, or 12.2 where a program has made a version of it."""
    return {"driver.cuda": Version(text) if "." in text else cuda_from_int(int(text))}


def _cudnn(text: str) -> Facts:
    major, rest = divmod(int(text), 10000 if int(text) >= 90000 else 1000)
    return {"torch.imported.cudnn": f"{major}.{rest // 100}.{rest % 100}"}


def _wsl_rows(text: str) -> Facts:
    versions = set(re.findall(r"(?:Running|Stopped) ([12])", text))
    return {"platform.wsl": int(versions.pop())} if len(versions) == 1 else {}


def _l4t(text: str) -> Facts:
    return {"platform.jetson": True, "platform.l4t": Version(re.sub(r"[^\d.]+", ".", text))}


_SCALE = {"B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def _distribution(text: str) -> str:
    return WORDS.distributions.get(text.lower(), text.lower())


_SIZE = re.compile(r"([0-9]{1,14}(?:\.[0-9]{1,6})?) ?([KMGTB]?)i?$")


def _size(path: str) -> Callable[[str], Facts]:
    """Blocks of 1 KiB if the number has no letter: df without -h."""

    def read(text: str) -> Facts:
        found = _SIZE.match(text)
        return {path: int(float(found[1]) * _SCALE[found[2] or "K"])} if found else {}

    return read


def _limit(path: str, unit: int) -> Callable[[str], Facts]:
    return lambda text: {path: int(text) * unit} if text.isdecimal() else {}


def _fact(path: str, convert: Callable[[str], object] = str) -> Callable[[str], Facts]:
    return lambda text: {path: convert(text)}


GROUPS: dict[str, Callable[[str], Facts]] = {
    "torch": torch_facts,
    "torch_cuda": lambda text: {"torch.build": "cuda", "torch.cuda": dotted(text)},
    "cudnn": _cudnn,
    "archs": _archs,
    "flags": partial(_archs, pattern=r"code=\[?((?:sm|compute)_\d{2,3}[af]?)"),
    "capability": lambda text: {"torch.imported.capabilities": (dotted(text),)},
    "python": python_facts,
    "windows_python": lambda text: {"python.version": Version(f"{text[0]}.{text[1:]}")},
    "driver": _fact("driver.reported", driver_version),
    "kernel_side": _fact("driver.kernel", driver_version),
    "library": _fact("driver.library", driver_version),
    "torch_tag": build_facts,
    "wheel_tag": build_facts,
    "driver_cuda": _driver_cuda,
    "driver_supports": _driver_cuda,
    "kernel": lambda text: linux_facts(text.rstrip(",;")),
    "machine": _fact("platform.machine", lambda text: MACHINES[text.lower().replace("-", "_")]),
    "os": os_facts,
    "distro": _fact("platform.distro", _distribution),
    "glibc": glibc_facts,
    "wsl_rows": _wsl_rows,
    "l4t": _l4t,
    "l4t_release": _l4t,
    "nofile": _limit("limits.nofile", 1),
    "memlock": _limit("limits.memlock_bytes", 1024),
    "shm": _size("limits.shm_bytes"),
    "shm_free": _size("limits.shm_free_bytes"),
    "tmp_free": _size("limits.tmp_free_bytes"),
    "env_free": _size("limits.env_free_bytes"),
    "memory_size": _size("limits.memory_bytes"),
}
"""Named group of a pattern -> the facts in its text."""
