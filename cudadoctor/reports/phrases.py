"""Sentences in which programs and authors name facts: one row each.

The named groups of a row's pattern are facts (GROUPS); `also` is what the sentence itself proves.
"""

import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import NamedTuple

from packaging.version import Version

from cudadoctor.model.machine import Distribution, Gpu
from cudadoctor.reports import values
from cudadoctor.reports.document import Document
from cudadoctor.reports.said import Facts, Rank, Said, gated, stated

AUTHOR = "the author"


class Phrase(NamedTuple):
    """A sentence that states facts.

    words: in lower case; without one of them ("|" between) the pattern is not tried. pattern: with
    re.M it sees the lines, else the text in one line. source: who prints it. also: what follows
    from the sentence itself. unless: matches that mean something else. once: of the rows with the
    same mark only the first that stands in the text counts.
    """

    words: str
    pattern: str
    source: str = "a program's own line"
    rank: Rank = Rank.TOOL
    also: Facts | None = None
    unless: Callable[[re.Match[str]], bool] | None = None
    once: str = ""


def read_table(doc: Document, phrases: tuple[Phrase, ...]) -> Iterator[Said]:
    """What the first place of each phrase states."""
    done: set[str] = set()
    for phrase in phrases:
        if phrase.once in done or not doc.mentions(*phrase.words.split("|")):
            continue
        pattern = _compiled(phrase.pattern)
        by_line = bool(pattern.flags & re.M)
        found = pattern.search(doc.text if by_line else doc.flat)
        if found is None or (phrase.unless and phrase.unless(found)):
            continue
        if phrase.once:
            done.add(phrase.once)
        line = doc.line_in_text(found.start()) if by_line else doc.line_of(found)
        facts = (phrase.also or {}) | values.facts_of(found)
        yield from stated(line, phrase.source, facts, phrase.rank)


_SEEN = {"torch.imported.ok": True, "torch.imported.cuda_available": True}
_UNSEEN = {"torch.imported.ok": True, "torch.imported.cuda_available": False}
_CUDA_BUILD = {"torch.build": "cuda"}
_DOCKER = {"container.kind": "docker"}
_WINDOWS = {"platform.system": "Windows"}

_compiled = cache(re.compile)


def _of_a_program(found: re.Match[str]) -> bool:
    """Whether this is the compiler with which a kernel or a module was built."""
    before = found.string[max(0, found.start() - 160) : found.start()]
    return any(words in before for words in ("Linux version", "NVRM", "Kernel Module"))


# --- the rows ------------------------------------------------------------------------------------

_KERNEL = (
    r"\bKernel(?: Version| Release)?: (?:Linux )?(?P<kernel>\d\.\d{1,3}\.\d{1,3}[\w.+~-]{0,80})"
)
_OS_NAME = r"\b(?:PRETTY_NAME=\"|Description:\s{1,20}|Operating System: )(?P<os>[^\"\n]{4,80})"
_WINDOWS_WORDS = (
    r"Microsoft Windows \[\w{4,12} \d{1,2}\.\d\.\d{4,6}|OS Name:\s{1,40}Microsoft Windows .{2,40}"
)
_WINDOWS_PYTHON = r"(?i)\\Python(?:\\?Python)?(?P<windows_python>3\d{1,2})(?:-32)?\\"
_GLIBC = (
    r"(?i)(?:\bldd \((?:Ubuntu |Debian |GNU )?(?:GLIBC|EGLIBC|libc)[^)]{0,40}\)"
    r"|GNU C Library .{0,60}?version) (?P<glibc>\d\.\d{1,2})"
)
_VERSION_FILE = r"(?<![\w-])CUDA Version (?P<toolkit>\d{1,2}\.\d)\.\d{1,4}\b"

_torch = partial(Phrase, source="torch", rank=Rank.MESSAGE)
_config = partial(Phrase, "pytorch built with|nvcc architecture flags", source="torch.__config__")
_nvcc = partial(Phrase, source="nvcc --version", also={"build.used": "nvcc"}, once="nvcc")
_compilers = partial(
    Phrase,
    "gcc |g++ |c++ |clang version|cc (",
    rank=Rank.MESSAGE,
    unless=_of_a_program,
    once="compiler",
)
_message = partial(Phrase, rank=Rank.MESSAGE)
_author = partial(Phrase, source=AUTHOR, rank=Rank.PROSE)

_STAMP = r"(?: (?:\[ {0,8}\d{1,8}\.\d{3,6}\] )?NVRM:)?"
_kernel = partial(Phrase, "kernel module", source="the kernel module")

KERNEL_MODULE: tuple[Phrase, ...] = (
    _kernel(
        r"(?i)NVIDIA UNIX (?P<open_module>Open )?(?:\w{2,12} )?Kernel Module(?: for \w{2,12})?"
        r" {1,2}(?P<kernel_side>\d{2,4}(?:\.\d{1,4}){1,2})\b",
        also={"driver.flavour": "proprietary", "driver.loaded": True},
    ),
    _kernel(
        r"(?i)API mismatch: the client(?: '[^']{1,80}' \(pid \d{1,9}\))? has the version"
        rf" (?P<library>\d{{2,4}}(?:\.\d{{1,4}}){{1,2}}),?{_STAMP}(?: but)?{_STAMP} this kernel"
        rf" module has the{_STAMP} version (?P<kernel_side>\d{{2,4}}(?:\.\d{{1,4}}){{1,2}})"
    ),
)

TOOLCHAIN: tuple[Phrase, ...] = (
    _nvcc(
        "cuda compilation|build cuda_|, v",
        r"(?i)Cuda compilation tools,? {1,3}release {1,3}(?P<nvcc>\d{1,2}\.\d{1,2})",
    ),
    _nvcc("build cuda_", r"(?i)Build cuda_(?P<nvcc>\d{1,2}\.\d{1,2})\.r"),
    _nvcc(", v", r"(?i)\brelease (?P<nvcc>\d{1,2}\.\d), V(?P=nvcc)\.\d{1,4}"),
    _message("cuda version ", _VERSION_FILE, "the toolkit's version file", once="version file"),
    _message(
        '"cuda sdk"',
        r'"name" ?: ?"CUDA SDK", "version" ?: ?"(?P<toolkit>\d{1,2}\.\d)',
        "the toolkit's version file",
        once="version file",
    ),
    _message(
        "container image copyright",
        r"(?<![\w-])CUDA Version \d{1,2}\.\d\.\d{1,4}\b",
        "NVIDIA's image",
        also=_DOCKER,
    ),
    _compilers(
        (
            r"\b(?:gcc|g\+\+|c\+\+|cc)(?:-\d{1,2})?(?:\.exe)?"
            r" \([^()\n]{1,80}(?:\([^()\n]{1,40}\)[^()\n]{0,40})?\)"
            r" (?P<gcc>\d{1,2}\.\d{1,2}(?:\.\d{1,2})?)"
        ),
        source="g++",
    ),
    _compilers(r"\bgcc version (?P<gcc>\d{1,2}\.\d{1,2}(?:\.\d{1,2})?) ", source="g++"),
    _compilers(r"\bclang version (?P<clang>\d{1,2}\.\d{1,2}\.\d{1,2})", source="clang++"),
    _compilers(
        (
            r"Microsoft \(R\) C/C\+\+ .{0,40}?(?:Version )?"
            r"(?P<msvc>19\.\d{2}(?:\.\d{1,6}){0,2}) "
        ),
        source="cl",
    ),
)

BANNERS: tuple[Phrase, ...] = (
    # torch.__config__.show()
    _config(r"NVCC architecture flags: ?(?P<flags>[-\w=;, .]{4,2000})"),
    _config(r"- CUDA Runtime (?P<torch_cuda>\d{1,2}\.\d{1,2})"),
    _config(r"\bTORCH_VERSION=(?P<torch_alone>\d\.\d{1,2}\.\d{1,3})"),
    _config(
        r"(?i)use_cuda=(?:off|0)",
        also={"torch.build": "cpu"},
        unless=lambda found: "use_rocm=on" in found.string.lower(),
    ),
    # programs that name what they run with
    Phrase(
        " torch-|yolov5",
        (
            r"(?:Python-(?P<python>3\.\d{1,2}(?:\.\d{1,2})?) )?"
            r"torch[- ](?P<torch>\d\.\d{1,2}\.\d{1,2}\S{0,40}) (?:CPU\b"
            r"|(?P<seen>CUDA:[\d,]{1,20}) \((?P<gpu>[^,()]{3,60}), (?P<memory>\d{3,6})"
            r"(?:Mi?B|\.0MB)\))"
        ),
    ),
    Phrase(
        "torch backend: nvidia",
        r"(?i)Torch backend: nVidia CUDA (?P<torch_cuda>\d{1,2}\.\d)",
    ),
    Phrase(
        "torch detected gpu",
        (
            r"Torch detected GPU: (?P<gpu>.{3,60}?) VRAM (?P<memory>\d{3,6})"
            r"(?: Arch \((?P<cc>\d{1,2}, \d)\))?"
        ),
    ),
    Phrase(
        "settings found: cuda_version",
        (
            r"(?i)PyTorch settings found: CUDA_VERSION=(?P<torch_cuda>\d{2,3}),"
            r" Highest Compute Capability: \(?(?P<capability>\d{1,2}(?:\.|, )\d)"
        ),
        also=_SEEN,
    ),
    Phrase(
        "max memory",
        (
            r"(?i)(?P<seen>GPU): (?P<gpu>[^.]{3,60})\.(?: Num GPUs = (?P<count>\d{1,2})\.)?"
            r" Max memory"
            r".{0,120}?(?:Py)?Torch: (?P<torch>\d\.\d{1,2}\.\d\S{0,20}?)\."
            r" CUDA(?: =|:) (?P<cc>\d{1,2}\.\d)"
        ),
    ),
    _message(
        "computecapability:",
        r"pciBusID: \S{6,16} name: (?P<gpu>.{3,60}?) computeCapability: (?P<cc>\d{1,2}\.\d)",
    ),
    Phrase(
        "_cudadeviceproperties(",
        r"_CudaDeviceProperties\(name='(?P<gpu>[^']{3,60})', major=(?P<cc>\d{1,2}, minor=\d)",
    ),
    Phrase(
        "library=cuda",
        (
            r"library=cuda .{0,60}?compute=(?P<cc>\d{1,2}\.\d) .{0,60}?"
            r"driver=(?P<driver_cuda>\d{1,2}\.\d) .{0,60}?name=\"(?P<gpu>[^\"]{3,60})\""
        ),
    ),
    Phrase(
        "cuda driver version / runtime version",
        r"CUDA Driver Version / Runtime Version (?P<driver_cuda>\d{1,2}\.\d) / \d{1,2}\.\d",
    ),
    Phrase(
        "cuda driver version|cudadriverversion",
        (
            r"(?i)(?:CUDA Driver Version ?: ?|cudaDriverVersion )"
            r"(?P<driver_cuda>[5-9]\d{3}|1\d{4}|(?:[5-9]|1\d)\.\d)(?![\d.])"
        ),
    ),
    Phrase("nccl version ", r"(?i)NCCL version (?P<nccl>2\.\d{1,2}\.\d{1,2})"),
    Phrase("__cuda=", r"__cuda==?(?P<driver_cuda>\d{1,2}\.\d)(?![\d.])"),
    Phrase("__glibc=", r"__glibc==?(?P<glibc>2\.\d{1,2})"),
    _message(
        "kernel reported version is",
        r"(?i)kernel reported version is:? (?P<kernel_side>\d{3}\.[\d.]{2,9})",
    ),
    _message(
        "libcuda reported version is",
        r"(?i)libcuda reported version is:? (?P<library>\d{3}\.[\d.]{2,9})",
    ),
    _message(
        "or later, but version",
        (
            r"(?i)NVIDIA Driver Release \S{3,12} or later, but version"
            r" (?P<driver>\d{3}\.[\d.]{2,9}) was detected"
        ),
        also=_DOCKER,
    ),
    Phrase(
        "nvidia release ",
        r"NVIDIA Release \S{4,8} .{0,60}?PyTorch Version (?P<torch>\d\.\d{1,2}\S{0,40})",
        also=_CUDA_BUILD | _DOCKER,
    ),
    Phrase(
        "using ",
        (
            r"Using (?:CPython|Python) (?P<python>3\.\d{1,2}\.\d{1,2}) "
            r"(?:interpreter at|environment at)"
        ),
    ),
    Phrase(
        "device 0 compute capability",
        (
            r"Device 0 Name ?: (?P<gpu>.{3,60}?) Device 0 Compute Capability ?: "
            r"(?P<cc>\d{2,3})(?!\d)"
        ),
    ),
    Phrase(
        "[supported] compute capability",
        (
            r"(?i)id \d{1,2} b'(?P<gpu>[^']{3,60})' \[SUPPORTED\] Compute Capability: "
            r"(?P<cc>\d{1,2}\.\d)"
        ),
    ),
)

MESSAGES: tuple[Phrase, ...] = (
    # torch's own messages
    _torch(
        "(found version",
        r"(?i)too old \(found version (?P<driver_cuda>[5-9]\d{3}|1\d{4})\)",
        also=_CUDA_BUILD | _UNSEEN,
    ),
    _torch(
        "with cuda capability sm_",
        (
            r"(?:^|[\s'\"])(?P<gpu>(?:NVIDIA |GeForce |Tesla |Quadro |TITAN |[GR]TX |[AHLB]\d|GB\d"
            r"|Orin)[^:\n]{0,50}?) with CUDA capability sm_(?P<cc>\d{2,3})[af]? is not compatible"
        ),
        also=_CUDA_BUILD,
    ),
    _torch(
        "supports cuda capabilities",
        (
            r"(?i)PyTorch install(?:ation)? supports CUDA capabilities"
            r" (?P<archs>(?:(?:sm|compute)_\d{2,3}[af]?[\s,.]{0,3}){1,40})"
        ),
        also=_CUDA_BUILD,
    ),
    _torch(
        "'sm_",
        r"\[(?P<archs>(?:['\"](?:sm|compute)_\d{2,3}[af]?['\"],? ?){1,40})\]",
        also=_CUDA_BUILD,
    ),
    _torch(
        "found gpu",
        (
            r"(?i)Found GPU ?(?P<index>\d{1,2}) (?P<gpu>.{3,60}?) which "
            r"(?:is of (?:cuda|compute) capability(?: \(CC\))? |requires "
            r"|is (?:too old|supported)[^.]{0,60}?)(?P<cc>\d{1,2}\.\d)?"
        ),
        also=_CUDA_BUILD,
    ),
    # Builds for ROCm count as compiled with CUDA in these words; those for Macs do not.
    _torch(
        "not compiled with cuda|not linked with support for cuda",
        (
            r"(?i)Torch not compiled with CUDA enabled|not linked with support for cuda devices"
            r"|PyTorch was compiled without CUDA|built without CUDA support|"
            r"torch\.cuda\.is_available\(\) is False.{0,40}CPU-only (?:build|version)"
        ),
        also={"torch.build": "cpu", "torch.installed": True, "torch.imported.ok": True},
    ),
    _torch(
        "compiled with different cuda",
        (
            r"(?i)PyTorch and torchvision were compiled with different CUDA(?: major)? versions\."
            r" PyTorch has CUDA Version[= ](?P<torch_cuda>\d{1,2}\.\d) and torchvision has CUDA"
            r" Version[= ]\d{1,2}\.\d"
        ),
    ),
    _torch(
        "used to compile pytorch",
        (
            r"(?i)detected CUDA version \((?P<nvcc_used>\d{1,2}\.\d{1,2})\)"
            r" (?:mismatches|has a minor version mismatch with) the version that was used"
            r" to compile PyTorch \((?P<torch_cuda>\d{1,2}\.\d{1,2})\)"
        ),
    ),
    _torch(
        "found no nvidia driver on your system",
        r"(?i)Found no NVIDIA driver on your system",
        also=_CUDA_BUILD | _UNSEEN,
    ),
    # the operating system
    Phrase(
        "gnu/linux",
        (
            r"\bLinux \S{1,80} (?P<kernel>\d\.\d{1,3}\.\d{1,3}\S{0,80})"
            r" .{0,120}?\b(?P<machine>x86_64|aarch64|ppc64le|i686|armv7l)\b"
        ),
        "uname",
    ),
    Phrase(
        "linux version",
        r"\bLinux version (?P<kernel>\d\.\d{1,3}\.\d{1,3}\S{0,80})",
        "/proc/version",
    ),
    Phrase("kernel: ", _KERNEL, "hostnamectl"),
    Phrase("kernel version: ", _KERNEL, "docker info"),
    Phrase(
        "wslg version",
        r"Kernel version: \d\.\d{1,3}\.\d{1,3}\S{0,40}",
        "wsl --version",
        also={"platform.wsl": 2, "platform.system": "Linux"},
    ),
    Phrase(
        "name state version",
        r"NAME STATE VERSION(?P<wsl_rows>(?: \*? ?[\w.-]{2,40} (?:Running|Stopped) [12]){1,12})",
        "wsl --list",
        Rank.PROSE,
    ),
    Phrase("pretty_name=", _OS_NAME, "os-release"),
    Phrase("description: ", _OS_NAME, "lsb_release"),
    Phrase("operating system: ", _OS_NAME, "hostnamectl"),
    Phrase(
        "architecture: ",
        r"\bArchitecture: (?P<machine>x86[-_]64|arm64|aarch64|amd64)\b",
        "hostnamectl",
    ),
    Phrase(
        "virtualization: ",
        (
            r"\bVirtualization: "
            r"(?P<virtual>kvm|vmware|microsoft|oracle|xen|wsl|docker|lxc|none)\b"
        ),
        "hostnamectl",
    ),
    Phrase("microsoft windows [", _WINDOWS_WORDS, "Windows", also=_WINDOWS),
    Phrase("os name:", _WINDOWS_WORDS, "systeminfo", also=_WINDOWS),
    Phrase("ldd (|gnu c library", _GLIBC, "ldd --version"),
    Phrase(
        "musl",
        r"\bmusl libc \(\w{4,10}\)|ld-musl-\w{4,10}\.so",
        "ldd --version",
        also={"platform.libc": "musl"},
    ),
    Phrase(
        "(release), revision:",
        r"# R(?P<l4t>\d{2} \(release\), REVISION: \d{1,2}(?:\.\d{1,2})?)",
        "/etc/nv_tegra_release",
        also={"platform.machine": "aarch64"},
    ),
    Phrase("version_id=", r"(?m)^ID=\"?(?P<distro>[\w.-]{2,30})\"?$", "os-release"),
    Phrase(
        "version_id=",
        r"(?m)^VERSION_ID=\"?(?P<distro_version>[\d.]{1,10})\"?",
        "os-release",
    ),
    _message(
        "python 3.|python 2.",
        r"(?m)^[ \t]{0,8}Python (?P<python>[23]\.\d{1,2}\.\d{1,2}\S{0,6}(?: .{0,160})?)$",
        "python --version",
    ),
    # the kernel's side of the driver, and inventories
    Phrase(
        "secureboot ",
        r"(?i)secureboot (?P<secure_boot>enabled|disabled)",
        "mokutil",
    ),
    Phrase(
        "modinfo: ",
        r"(?i)modinfo: error: module nvidia not found",
        "modinfo",
        also={"driver.module_files": ()},
    ),
    Phrase(
        "nvidia-fabricmanager",
        r"(?i)nvidia-fabricmanager\.service could not be found",
        "systemctl",
        also={"driver.fabric.manager": "absent"},
        once="fabric manager",
    ),
    Phrase(
        "nvidia-fabricmanager",
        (
            r"(?i)nvidia-fabricmanager\S{0,10} .{0,240}?active: "
            r"(?P<fabric>active|inactive|failed|activating)"
        ),
        "systemctl",
        once="fabric manager",
    ),
    Phrase(
        "device-",
        (
            r"(?i)Device-\d: NVIDIA .{3,80}? driver: (?P<bound>nvidia|nouveau|N/A)"
            r"(?: v: (?P<driver>\d{3}[\d.]{2,12}))?"
        ),
        "inxi",
    ),
    Phrase(
        "vendor: nvidia",
        (
            r"vendor: NVIDIA Corporation .{0,400}?configuration: .{0,60}?"
            r"driver=(?P<bound>nvidia|nouveau)"
        ),
        "lshw",
    ),
    # How Windows counts the releases of NVIDIA's driver; those of other makers look otherwise.
    _message(
        ".0.1",
        r"(?<![\w.])(?P<driver>3\d\.0\.1\d\.\d{4})(?!\d)",
        "Windows",
        also=_WINDOWS,
        unless=lambda found: "nvidia" not in found.string.lower(),
    ),
    Phrase(
        "nvrm version: ",
        (
            r"NVRM version: (?P<driver>\d{3}[\d.]{2,12}) CUDA version: (?P<driver_cuda>\d{1,2}\.\d)"
            r"(?:.{0,80}?Model: (?P<gpu>.{3,60}?) Brand:)?"
            r"(?:.{0,200}?Architecture: (?P<cc>\d{1,2}\.\d))?"
        ),
        "nvidia-container-cli",
    ),
    Phrase(
        "nvml library version",
        r"(?i)NVML library version: (?P<library>\d{3,4}\.\d{1,3}(?:\.\d{1,3})?)",
        "nvidia-smi",
    ),
    Phrase(
        "(-n)",
        r"(?i)open files \(-n\) (?P<nofile>\d{1,9}|unlimited)",
        "ulimit",
    ),
    Phrase(
        "-l)",
        r"(?i)max locked memory \(kbytes, -l\) (?P<memlock>\d{1,12}|unlimited)",
        "ulimit",
    ),
    # two versions of one driver, as the CUDA library tells them
    _message(
        "does not match dso",
        (
            r"(?i)kernel version (?P<kernel_side>\d{3}\.[\d.]{1,8}\d) does not match DSO version"
            r" (?P<library>\d{3}\.[\d.]{1,8}\d)"
        ),
        "the driver's message",
    ),
)

_INSTANCES = {
    "Tesla K80": r"(?i)\bp2\.\d{0,2}xlarge\b|\bNC6\b",
    "Tesla V100-SXM2-16GB": r"(?i)\bp3\.\d{0,2}xlarge\b",
    "Tesla T4": r"(?i)\bg4dn\.\w{5,8}\b|\bNC\d{1,2}as_T4",
    "NVIDIA A10G": r"(?i)\bg5\.\d{0,2}xlarge\b",
    "NVIDIA L4": r"(?i)\bg6\.\d{0,2}xlarge\b|\bg2-standard",
    "NVIDIA A100-SXM4-40GB": r"(?i)\bp4d\.24xlarge\b|\ba2-highgpu",
    "NVIDIA H100 80GB HBM3": r"(?i)\bp5\.48xlarge\b|\ba3-highgpu",
    "Tesla M60": r"(?i)\bg3s?\.\d{0,2}xlarge\b",
}
"""GPU -> the cloud machines that have it."""
_BUILDS = "nvcc|failed building|setup.py|error compiling|error building|gcc"
_authors_nvcc = partial(
    _author,
    _BUILDS,
    unless=lambda found: "compilation tools" in found.string.lower(),
    once="nvcc",
)

BOARDS: tuple[Phrase, ...] = (
    _author(
        "nvidia-smi",
        (
            r"(?i)nvidia-smi\b(?:[^.]|\.(?=\S)){0,50}\bcuda(?: version)?[ :=]{1,3}"
            r"(?P<driver_cuda>\d{1,2}\.\d)\b"
        ),
    ),
    _author(
        "l4t|(release), revision",
        (
            r"(?i)\b(?:L4T|R)[ :]{0,2}(?:release )?R?(?P<l4t>3[2-9]\.\d(?:\.\d)?)\b"
            r"|\bR(?P<l4t_release>3[2-9] \(release\), REVISION: \d\.\d)"
        ),
    ),
    *(
        _author(
            "xlarge|-highgpu|g2-standard|_t4|nc6",
            pattern,
            also={"gpus": (Gpu(index=0, name=name),)},
        )
        for name, pattern in _INSTANCES.items()
    ),
)

AUTHORS: tuple[Phrase, ...] = (
    # paths and prompts
    Phrase("\\python", _WINDOWS_PYTHON, "a path in the text", Rank.PROSE),
    _message(
        "\\python",
        r"(?i)\\Python(?:\\?Python)?3\d{1,2}(?P<bits32>-32)?\\",
        "a path in the text",
        also=_WINDOWS,
    ),
    _message(
        "root@",
        r"\broot@[0-9a-f]{12}:[/~#]",
        "the shell's prompt",
        also=_DOCKER,
        once="prompt",
    ),
    _message(
        "root@",
        r"\broot@[a-z][a-z0-9-]{5,50}-[a-z0-9]{5,10}-[a-z0-9]{5}:[/~]",
        "the shell's prompt",
        also={"container.kind": "kubernetes"},
        once="prompt",
    ),
    # In a report about a build: "nvcc 9.1", "gcc: 7.4", the nvcc in a command that failed.
    _authors_nvcc(
        r"(?i)\bnvcc(?:[ _-]?version)?(?: is| ver\.?)?[ :=`\"'-]{1,4}v?"
        r"(?P<nvcc>\d{1,2}\.\d)(?:\.\d{1,3})?\b"
    ),
    _authors_nvcc(
        r"(?i)(?:/usr/local/cuda-|CUDA[\\/]{1,2}v)(?P<nvcc>\d{1,2}\.\d)[\\/]{1,2}bin[\\/]{1,2}nvcc"
        r"(?:\.exe)?['\"]? (?:failed|-D)"
    ),
    _authors_nvcc(r"(?i)(?<![\w.])cuda(?: ?toolkit)?\s?[:=]{1,2}\s?v?(?P<nvcc>\d{1,2}\.\d)\b"),
    _author(
        _BUILDS,
        (
            r"(?i)\b(?:gcc|g\+\+)(?:[ _-]?version)?(?: is| ver\.?)?[ :=`\"'-]{1,4}v?"
            r"(?P<gcc>(?:[4-9]|1\d)(?:\.\d{1,2}){0,2})\b"
        ),
    ),
)


def read_kernel_module(doc: Document) -> Iterator[Said]:
    """The loaded kernel module: /proc/driver/nvidia/version, its log, or a mismatch it names."""
    return read_table(doc, KERNEL_MODULE)


def read_compilers(doc: Document) -> Iterator[Said]:
    """nvcc, toolkits, gcc, clang and Microsoft's compiler by what they print."""
    return read_table(doc, TOOLCHAIN)


def read_banners(doc: Document) -> Iterator[Said]:
    """What programs say of the torch, CUDA and GPU that they run with."""
    yield from _xformers(doc)
    yield from read_table(doc, BANNERS)
    yield from _listed(doc)


def read_messages(doc: Document) -> Iterator[Said]:
    """What torch's messages say, and the tools of the operating system."""
    return read_table(doc, MESSAGES)


def read_boards(doc: Document) -> Iterator[Said]:
    """What authors say of boards and machines of the cloud."""
    return read_table(doc, BOARDS)


def read_authors(doc: Document) -> Iterator[Said]:
    """What authors say of compilers; paths and prompts."""
    return read_table(doc, AUTHORS)


_COMPUTE = re.compile(
    r"(?:[Dd]evice:? (?P<index>\d{1,2})[:,] )(?:name: )?(?P<gpu>[^,:\n]{3,60}),"
    r"(?: pci bus id: [\w:.]{6,16},)?"
    r" compute capability:? (?P<cc>\d{1,2}\.\d)"
)


@gated("compute capability")
def _listed(doc: Document) -> Iterator[Said]:
    """Each GPU on a line of its own, as llama.cpp and TensorFlow log them."""
    places = list(_COMPUTE.finditer(doc.flat))
    gpus: dict[int, Gpu] = {}
    for found in places:
        for gpu in values.gpus_of(found.groupdict()):
            gpus.setdefault(gpu.index, gpu)
    if gpus:
        line = doc.line_of(places[0])
        facts = {"gpus": tuple(gpus.values())}
        yield from stated(line, "a program's own line", facts, Rank.MESSAGE)


_XFORMERS = re.compile(
    r"xformers was built for:? ?-? ?PyTorch (?P<built>\d\S{2,40})"
    r"(?: with CUDA (?P<cuda>\d{4}|None))? \(you have (?P<have>\d\S{2,40}?)\)",
    re.I,
)
_XFORMERS_RELEASE = re.compile(r"\bxformers[ =:v]{1,3}(0\.0\.\d{1,3}\S{0,30})", re.I)


@gated("xformers was built for")
def _xformers(doc: Document) -> Iterator[Said]:
    """xformers names the torch that it was built for beside the one that is there."""
    found = _XFORMERS.search(doc.flat)
    if found is None:
        return
    facts = values.torch_facts(found["have"].rstrip(")"))
    release = _XFORMERS_RELEASE.search(doc.flat)
    torch = values.torch_version(found["built"])
    number = found["cuda"] or ""
    if release and torch:
        cuda = Version(f"{int(number) // 100}.{int(number) % 100}") if number.isdigit() else None
        package = Distribution(name="xformers", version=release[1], torch=torch, cuda=cuda)
        facts["packages"] = (package,)
    yield from stated(doc.line_of(found), "xformers", facts, Rank.MESSAGE)
