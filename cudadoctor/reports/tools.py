"""Outputs of tools about the driver, the GPUs, the libraries and the limits of a machine."""

import re

from cudadoctor.model.driver_packages import MATTERS, Manager, is_driver
from cudadoctor.model.machine import Gpu, Json, Library, OptStr, SystemPackage, Xid
from cudadoctor.model.versions import DriverVersion
from cudadoctor.reports import values
from cudadoctor.reports.document import Document, Match
from cudadoctor.reports.kernel_log import parse_kernel_log
from cudadoctor.reports.smi import parse_smi
from cudadoctor.reports.statements import Facts, Rank, Statements, gated, stated

# --- nvidia-smi ----------------------------------------------------------------------------------

SMI = "nvidia-smi"
_BANNER = re.compile(
    r"(?i)(?:Driver|KMD) Version\s?:\s?(?P<driver>\d{3,4}(?:\.\d{1,3}){1,2})"
    r"(?:[\s|]{1,6}CUDA (?:UMD )?Version\s?:\s?(?P<cuda>\d{1,2}\.\d{1,2}|N/A|ERR!|Not Found))?",
)
_TOOL = re.compile(r"(?i)NVIDIA-SMI(?: version\s?:)? {1,3}(\d{3,4}(?:\.\d{1,3}){1,2})(?!\d)")
_QUERY = re.compile(r"--query-gpu[= ]([\w.,]{4,400})")


@gated(
    *(SMI, "nvml", "driver version", "kmd version", "uuid: gpu-", "uuid: mig-", "mib /", "mib |"),
    *("driver_version", "memory.total", "no devices were found", "device handle for gpu"),
    *("persistence-m", "product name"),
)
def read_nvidia_smi(doc: Document) -> Statements:
    """Driver, newest CUDA version and GPUs out of nvidia-smi in any of its forms."""
    banner = list(_banner(doc))
    yield from banner
    text = doc.text
    if "noheader" in doc.low:  # a CSV without its head has it again: the command names the columns
        text = "\n".join(
            query[1]
            if "noheader" in line.text and (query := _QUERY.search(line.text))
            else line.text
            for line in doc.lines
        )
    smi = parse_smi(text)
    line = next((line.number for line in doc.lines if "NVIDIA-SMI" in line.text), 1)
    # Each "driver version" may be that of collect_env's label, which has its own reader.
    labels = doc.low.count("driver version")
    foreign = banner or 0 < labels == doc.low.count("nvidia driver version")
    # Some lines only look like one of a list: "GPU 0: out of memory".
    gpus = [gpu for gpu in smi.gpus or () if gpu.uuid or gpu.bus_id or gpu.code or _is_named(gpu)]
    if gpus and gpus[0].index and "gpu models and configuration" in doc.low:
        gpus = []  # The first one stands on collect_env's label, which has its own reader.
    facts = {
        "driver.reported": None if foreign else smi.driver,
        "gpus": gpus or (None if smi.gpus else smi.gpus),
        "driver.smi.message": smi.message,
        "driver.nvml.code": smi.code,
    }
    yield from stated(line, SMI, facts)


def _is_named(gpu: Gpu) -> bool:
    return gpu.name is not None and len(gpu.name) < 60 and values.is_nvidia(gpu.name)


def _banner(doc: Document) -> Statements:
    """The versions in the table's head, in -q, or in one line of either that was quoted."""
    own = doc.mentions(SMI, "product name", "| driver version")
    found = next((found for found in _BANNER.finditer(doc.flat) if not _is_label(doc, found)), None)
    tool = _TOOL.search(doc.flat)
    if found:
        facts = {"driver.reported": found["driver"]}
        if (cuda := found["cuda"]) and not cuda[0].isdigit():
            why = f"nvidia-smi finds no libcuda (CUDA Version: {cuda})"
            facts |= {"driver.libcuda.loads": False, "driver.libcuda.why": why}
        elif cuda:
            facts["driver.cuda"] = cuda
        line = doc.line_of(found)
        yield from stated(line, SMI, facts, Rank.TOOL if own or cuda else Rank.PROSE)
        yield from _system(doc, found, line)
    elif tool and "failed" not in doc.low[tool.end() : tool.end() + 40]:
        yield from stated(doc.line_of(tool), SMI, {"driver.reported": tool[1]}, Rank.MESSAGE)


def _is_label(doc: Document, banner: Match) -> bool:
    """Whether this is collect_env's own label, or the CUDA driver API's number."""
    before = doc.low[max(0, banner.start() - 60) : banner.start()]
    return before.endswith(("nvidia ", "cuda ")) and "smi" not in before


def _system(doc: Document, banner: Match, line: int) -> Statements:
    """In WSL the program is Linux's and the driver is Windows', so their numbers differ.

    On Windows the table has a column for the driver's model.
    """
    tool = _TOOL.search(doc.flat, max(0, banner.start() - 60), banner.start())
    table = doc.low[banner.start() : banner.start() + 400]
    # Beside WSL it is the table of its host.
    if ("tcc/wddm" in table or "driver-model" in table) and not doc.mentions("wsl2", "wsl 2"):
        yield from stated(line, SMI, {"platform.system": "Windows"})
    elif tool and DriverVersion(tool[1]) != DriverVersion(banner["driver"]):
        yield from stated(line, SMI, {"platform.system": "Linux", "platform.wsl": 2}, Rank.MESSAGE)


# --- the kernel's log, its modules and device nodes ----------------------------------------------

_OF_A_LOG = re.compile(
    r"\s{0,4}(?:<\d{1,3}>)?\[\s{0,8}\d{1,8}\.\d{3,6}\]|.{0,60}\bkernel: |.{0,80}\bNVRM: "
)
_XID = re.compile(r"\bxid(?: errors?)?(?: code)?[ :#=]{1,3}(\d{1,3})(?![\d.])")


@gated("nvrm", "kernel:", "nvidia-nvlink", "nvidia: ", "nouveau", "xid")
def read_kernel_log(doc: Document) -> Statements:
    """Lines of dmesg or the journal about the driver, and Xids, also those only spoken of."""
    lines = [line for line in doc.lines if _OF_A_LOG.match(line.text)]
    log = parse_kernel_log("\n".join(line.text for line in lines))
    if lines:
        facts = {"driver.log": log.lines or None, "driver.xids": log.xids or None}
        yield from stated(lines[0].number, "kernel log", facts)
    known = {xid.code for xid in log.xids}
    for found in _XID.finditer(doc.low):
        if (code := int(found[1])) not in known:
            known.add(code)
            facts = {"driver.xids": (Xid(code=code, bus_id=""),)}
            yield from stated(doc.line_of(found), "an Xid by its number", facts, Rank.PROSE)


_FILE = re.compile(
    r"filename: (?P<path>/lib/modules/(?P<kernel>[^/\s]{3,80})/\S{0,160}nvidia\S{0,30})"
)
_VERSION = re.compile(r"\bversion: (\d{3,4}(?:\.\d{1,4}){1,2})\b")


@gated("filename: ")
def read_module_file(doc: Document) -> Statements:
    """modinfo."""
    if found := _FILE.search(doc.flat):
        version = _VERSION.search(doc.flat, found.end(), found.end() + 400)
        licence = re.search("license: (dual mit/gpl)?", doc.low[found.end() : found.end() + 500])
        module = {
            **found.groupdict(),
            "version": version[1] if version else None,
            "flavour": ("open" if licence[1] else "proprietary") if licence else None,
        }
        facts = {"driver.module_files": [module], "driver.installed": True}
        yield from stated(doc.line_of(found), "modinfo", facts)


# --- GPUs on the PCI bus -------------------------------------------------------------------------

_DEVICE = re.compile(
    r"(?i)(?P<address>(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) "
    r"(?:VGA compatible controller|3D controller|Display controller|Processing accelerators?)"
    r"(?: \[(?P<id>03\d\d|1200)\])?: (?P<rest>.{5,200})",
)
_IDS = re.compile(r"(?i)\[(?P<vendor>10de|1002|8086|1ab8|15ad):(?P<device>[0-9a-f]{4})\]")
_BOUND = re.compile(r"(?i)Kernel driver in use: (?P<driver>[\w-]{2,20})")
_VENDORS = {"10de": "nvidia", "1002": "amd", "8086": "intel"}
_VENDOR_NAMES = {
    "nvidia": "nvidia",
    "advanced micro devices": "amd",
    "ati ": "amd",
    "intel": "intel",
}


@gated("controller", "accelerator")
def read_lspci(doc: Document) -> Statements:
    """GPUs on the PCI bus, and the kernel driver that owns each, as lspci lists them."""
    devices: list[Json] = []
    first = 0
    for line in doc.lines:
        if len(line.text) > 400:
            continue
        if device := _DEVICE.search(line.text):
            first = first or line.number
            devices.append(_device(device))
        elif devices and (bound := _BOUND.search(line.text)):
            devices[-1].setdefault("bound", bound["driver"].replace("_", "-"))
    if devices:
        yield from stated(first, "lspci", {"pci": devices})


def _device(found: Match) -> Json:
    low, ids = found["rest"].lower(), _IDS.search(found["rest"])
    named = next((vendor for word, vendor in _VENDOR_NAMES.items() if word in low), "other")
    return {
        "address": found["address"].lower(),
        "vendor": _VENDORS.get(ids["vendor"].lower(), "other") if ids else named,
        "device_id": ids["device"].lower() if ids else "?",
        "class_id": found["id"],
        "lost": True if "(rev ff)" in low else None,
    }


# --- packages of the operating system ------------------------------------------------------------

_FORMS: dict[str, Manager] = {
    r"\s{0,4}(?:ii|hi|iU|iF)\s{1,8}([a-z][\w.+-]{1,80})(?::\w{3,8})?\s{1,60}(\S{3,60})": "dpkg",
    r"\s{0,4}([a-z][\w.+-]{1,80})/[\w,.+ -]{1,80} (\S{3,60}) \w{3,8} \[[^\]]{0,40}install": "dpkg",
    (
        r"\s{0,4}([a-z][\w.+-]{1,80}?)-(?:\d{1,2}:)?(\d[\w.+~]{1,30}-[\w.~]{1,30})\.(?:x86_64|"
        r"noarch|aarch64|i686)\s{0,4}$"
    ): "rpm",
    (
        r"\s{0,4}([a-z][\w.+-]{1,80})\.(?:x86_64|noarch|aarch64)\s{1,60}(\S{3,60})\s{1,40}@\S{2,60}"
    ): "rpm",
    (
        r"\s{0,4}(?:local/)?([a-z][\w.+-]{1,60}) ((?:\d:)?\d{2,4}\.[\w.]{1,20}-\d{1,3})\s{0,4}$"
    ): "pacman",
}
"""Rows of dpkg -l, apt list --installed, rpm -qa, dnf list installed and pacman -Q."""
_LIBRARIES = re.compile(
    r"libnvidia-compute-\d{3}(?:-server)?|nvidia-utils(?:-\d{3}(?:-server)?)?|libcuda1|nvidia-smi"
    r"|libnvidia-ml1|nvidia-driver-cuda(?:-libs)?|xorg-x11-drv-nvidia-cuda(?:-libs)?"
)
_RELEASE = re.compile(r"(?:\d:)?(\d{3}\.\d{2,3}(?:\.\d{2})?)(?=[-+~_]|$)")
_WORDS = ("nvidia", "cuda", "cudnn", "nccl")


@gated(*_WORDS)
def read_system_packages(doc: Document) -> Statements:
    """Packages of the driver, CUDA, cuDNN and NCCL."""
    lines: dict[SystemPackage, int] = {}
    for number, text in doc.lines:
        if package := _package(text):
            lines.setdefault(package, number)
    if not lines:
        return
    line, source = min(lines.values()), "the list of system packages"
    installed = {"driver.installed": True} if any(map(is_driver, lines)) else {}
    yield from stated(line, source, {"driver.packages": list(lines), **installed})
    # The release of the driver's libraries, if all packages of them are of one.
    libraries = (package for package in lines if _LIBRARIES.fullmatch(package.name))
    releases = {found[1] for package in libraries if (found := _RELEASE.match(package.version))}
    if len(releases) == 1:
        yield from stated(line, source, {"driver.library": releases.pop()}, Rank.MESSAGE)


def _package(text: str) -> SystemPackage | None:
    low = text.lower()
    if len(text) > 400 or not any(word in low for word in _WORDS):
        return None
    for pattern, manager in _FORMS.items():
        if (found := re.match(pattern, text)) and MATTERS.fullmatch(found[1]):
            return SystemPackage(name=found[1], version=found[2], manager=manager)
    return None


# --- shared libraries ----------------------------------------------------------------------------


_LIBRARY_FILE = re.compile(
    r"(?P<soname>lib[\w+-]{2,40}\.so(?:\.(?P<major>\d{1,4}))?)(?P<minor>(?:\.\d{1,4}){0,3})"
    r"|(?P<dll>\w{2,40}\.(?i:dll))"
)


def library_at(path: str, fallback: OptStr = None) -> Library | None:
    """A library by its path: soname and version out of the file's name, owner out of its place."""
    low = path.lower().replace("\\", "/")
    owner = next((owner for words, owner in values.WORDS.owners.items() if words in low), fallback)
    found = _LIBRARY_FILE.fullmatch(re.split(r"[/\\]", path.strip())[-1].rstrip(".,;)'\""))
    if found is None:
        return None
    version = f"{found['major']}{found['minor']}" if found["minor"] else None
    return Library(
        soname=found["soname"] or found["dll"], path=path.strip(), owner=owner, version=version
    )


_LDD = re.compile(
    r"\s{0,12}(?P<soname>lib(?:cudnn|cublas|cudart|nvrtc|nvJitLink|cusparse|cufft|curand|cusolver"
    r"|nccl|cupti|nvToolsExt|nvshmem|cufile|cuda|nvidia-ml|stdc\+\+|c10|torch)[\w+-]{0,40}"
    r"\.so[\d.]{0,12})(?: \([\w,. -]{2,40}\))? => (?P<path>not found|/\S{3,200})"
)


@gated(" => ")
def read_loader_lines(doc: Document) -> Statements:
    """ldd and ldconfig -p: which file answers to a soname, and what nothing provides."""
    rows = doc.rows(_LDD, " => ")
    missing: dict[str, int] = {}
    copies: dict[str, Library] = {}
    for line, row in rows:
        if row["path"] == "not found":
            missing.setdefault(row["soname"], line)
        elif library := library_at(row["path"]):
            copies.setdefault(library.path, library)
    if copies:
        yield from stated(rows[0][0], "ldd", {"libraries.copies": tuple(copies.values())})
    if missing:
        yield from stated(min(missing.values()), "ldd", {"libraries.missing": tuple(missing)})


# --- paths of libraries in tracebacks ------------------------------------------------------------

_PATH = "a path in the text"
_LIBRARY = re.compile(
    r"(?P<before>(?:/[\w.@+-]{1,60}){0,12}|[A-Za-z]:(?:\\[\w.@+ -]{1,60}){0,12})"
    r"[/\\][Ll]ib(?:64)?[/\\](?:python(?P<python>3\.\d{1,2})t?[/\\])?(?P<kind>site-packages|dist-packages)[/\\]"
)
_MOST = 40
"""Frames of a traceback that are looked at."""
_ENVIRONMENTS = (
    r"(?i)(?P<venv>[/\\]\.?venv|virtualenv|/env/)",
    r"(?i)(?P<conda_base>conda|miniforge|mambaforge|micromamba)",
    r"(?i)^(?=.*(?:conda|miniforge|mambaforge|micromamba)).*(?P<conda>envs|/opt/conda)",
    r"^(?P<windows>[A-Za-z]:)",
    r"(?i)(?P<mac>^/(?:users|library)/|^/.*/opt/homebrew|^/opt/homebrew)",
)
"""Kinds of environments and systems by the beginning of a path; the last that fits counts."""
_MAC = re.compile(r"(?<![a-z])mac(?:os|book|\b)|\bapple\b|\bm[1-5] (?:pro|max|ultra)\b")


@gated("-packages")
def read_paths(doc: Document) -> Statements:
    """System and Python out of the paths of tracebacks."""
    known: set[str] = set()
    of_mac = _MAC.search(doc.low) is not None
    for found, _ in zip(_LIBRARY.finditer(doc.flat), range(_MOST), strict=False):
        facts = {
            path: value
            for path, value in _of_path(found, of_mac=of_mac).items()
            if path not in known
        }
        known |= facts.keys()
        yield from stated(doc.line_of(found), _PATH, facts, Rank.MESSAGE)


def _of_path(found: Match, *, of_mac: bool) -> Facts:
    before = found["before"]
    of_system = values.of_group("system_python", "") if found["kind"] == "dist-packages" else {}
    facts = values.facts_of(found) | of_system | values.found_in(before, *_ENVIRONMENTS)
    if before.startswith("/") and "platform.system" not in facts:
        if not (of_mac and _of_any_unix(found)):
            facts["platform.system"] = "Linux"
        facts |= values.found_in(before, r"(?i)^(?P<wsl2>/mnt/c/)")
    return facts


def _of_any_unix(found: Match) -> bool:
    """Whether a path may be a Mac's too."""
    cut = found.string[max(0, found.start() - 1) : found.start()].isalnum()
    return cut or found["before"].startswith(("/opt/", "/usr/local"))
