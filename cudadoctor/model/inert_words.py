"""The grammar of what may act although it was read: the words of a foreign machine's commands.

Closed lists, of what the remedies and the writers of package managers say themselves. What comes
out of a document gets through only as a number, a version, a known project or a usual place.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cudadoctor.knowledge import Knowledge

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,80}[A-Za-z0-9])?")
_NUMBER = r"\d{1,9}"
_LOCAL = r"(?:pt\d{2,3})?(?:cu\d{2,3}|cpu|xpu|rocm\d(?:\.\d{1,2}){1,2})"
_VERSION = (
    rf"{_NUMBER}(?:\.{_NUMBER}){{0,6}}(?:\.?(?:a|b|rc|post|dev){_NUMBER}){{0,2}}"
    rf"(?:\.\*)?(?:\+{_LOCAL})?"
)
_REQUIREMENT = re.compile(
    rf"(?P<name>[a-z0-9][a-z0-9._-]*)"
    rf"(?:(?:[=!<>~]=|[=<>]){_VERSION}(?:,(?:[=!<>~]=|[<>]){_VERSION})*)?",
    re.I,
)
_HOSTS = frozenset({"download.pytorch.org", "data.pyg.org", "pypi.jetson-ai-lab.io", "pypi.org"})
_HOST = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,62}\.){0,8}[a-z0-9-]{0,62}", re.I)
_ADDRESS = re.compile(r"https://(?P<host>[a-z.-]+)(?:/[A-Za-z0-9.+-]+)*/?")

_FLAVOURS = (
    "amd64|arm64|x86_64|aarch64|generic|lowlatency|cloud|rt|pae|hwe|lts|edge|aws|azure|gcp|gke|gkeop"
    "|oracle|ibm|kvm|oem|raspi|nvidia|tegra|intel|bluefield|64k|pve|zen|hardened|arch|default|WSL2"
    r"|microsoft|standard|cachyos|xanmod|liquorix|bpo|deb|el\d{1,2}|fc\d{2}|amzn\d{1,4}|cm\d|lp\d{6}"
    r"|arch\d|rc\d|uek|debug|server|desktop|cos|coreos|linuxkit|mvl\d{1,2}"
)
_KERNEL_TEXT = rf"\d{{1,2}}\.\d{{1,3}}(?:\.\d{{1,3}})?(?:[-.+~_](?:\d{{1,6}}|{_FLAVOURS}))*\+?"
_KERNEL = re.compile(_KERNEL_TEXT)
_PARTS = (
    "nvidia|libnvidia|cuda|driver|drivers|server|open|compute|utils|dkms|kmp|default|preempt|azure"
    "|signed|akmod|kmod|xorg|x11|xserver|drv|video|firmware|kernel|source|common|modprobe|legacy"
    "|settings|persistenced|gl|cfg1|decode|encode|extra|fbc1|ifr1|headless|no|latest|gfx|tesla|libs"
    "|current|alternative|linux|lts|headers|proxmox|cloud|generic|amd64|arm64|python3|venv|smi|devel"
)
_SYSTEM = re.compile(
    rf"(?:{_PARTS})\d{{0,3}}(?:-(?:{_PARTS}|G0\d|\d{{1,3}}(?:\.\d{{1,3}}){{0,2}}(?:xx)?))*"
    rf"(?::(?:amd64|arm64|i386))?|(?:linux|proxmox|kernel)-(?:headers|devel)-{_KERNEL_TEXT}"
)
_MODPROBE = re.compile(r"/(?:etc|usr/lib|lib|run|usr/local/lib)/modprobe\.d/[A-Za-z0-9_.-]+\.conf")

_NEW = r"\.venv-torch(?:-conda|-py\d{2,3})?"
_MADE = re.compile(rf"{_NEW}(?:/bin/python|\\Scripts\\python\.exe|\\python\.exe)?")
_PYTHON = re.compile(r"python\d\.\d{1,2}")
_PROGRAMS = frozenset(
    """
    $PYTHON py uv pip conda mamba micromamba pixi poetry pdm cudadoctor apt-get dnf zypper pacman
    mhwd ubuntu-drivers nixos-rebuild modprobe nvidia-modprobe nvidia-smi systemctl dkms akmods
    mokutil kmodgenca update-initramfs dracut dracut-rebuild mkinitcpio ldconfig wsl.exe
    """.split()  # noqa: SIM905
)
_ARGUMENTS = frozenset(
    """
    $PYTHON -C -P -R -Syu -a -c -i -m -n -p -r -u -y --allow-existing --find-links --force --gpgpu
    --gpu-reset --import --index --index-url --default-index --extra-index-url --manifest-path
    --dry-run --ignore-installed --reinstall
    --no-build-isolation --no-cache-dir --python --refresh --shutdown --upgrade
    pip venv ensurepip install uninstall remove create add sync update upgrade full-upgrade refresh
    module reset enable versionlock autoinstall boot reboot check conda-forge pytorch nvidia torch
    nvidia_uvm pci nonfree linux-headers python python3-venv
    /var/lib/shim-signed/mok/MOK.der /var/lib/dkms/mok.pub /etc/pki/akmods/certs/public_key.der
    """.split()  # noqa: SIM905
)
_VALUE = re.compile(
    r"\d{1,4}|-?\d\.\d{1,2}|\*nvidia\*\d{3}\*|nvidia-driver:(?:\d{3}|latest|open)-?(?:open|dkms)"
)
_CONDA = frozenset(
    {"pytorch", "pytorch-gpu", "pytorch-cpu", "pytorch-cuda", "cudatoolkit", "cuda-version"}
    | {"cudnn", "mkl", "python", "opencv", "faiss"}
)
_OTHERS = frozenset(
    {"numpy", "pynvml", "nvidia-ml-py", "triton-windows", "typing-extensions", "filelock", "fsspec"}
    | {"jinja2", "mpmath", "networkx", "setuptools", "sympy"}
)
"""What remedies name, and what every torch requires beside NVIDIA's wheels."""

_UUID = r"(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_LIBRARIES = (
    r"/(?:usr/)?(?:local/)?lib(?:32|64)?(?:/(?:x86_64|aarch64)-linux-gnu)?|/usr/lib/wsl/lib"
    r"|/usr/local/nvidia/lib(?:64)?"
    r"|/usr/local/cuda(?:-\d{1,2}\.\d{1,2})?/(?:lib64|lib|compat|extras/CUPTI/lib64"
    r"|targets/(?:x86_64|sbsa|aarch64)-linux/lib)"
)
_SETTING = re.compile(
    r"\d{1,9}(?:,\d{1,4})*|PCI_BUS_ID|FASTEST_FIRST|/var/tmp|/path/to/a/larger/disk"
    rf"|{_UUID}(?:,{_UUID})*|(?:{_LIBRARIES})(?::(?:{_LIBRARIES}))*"
    r"|/usr|/opt/cuda|/usr/lib/cuda|/usr/local/cuda(?:-\d{1,2}(?:\.\d{1,2})?)?"
    r"|C:\\Program Files\\NVIDIA GPU Computing Toolkit\\CUDA\\v\d{1,2}\.\d{1,2}"
)


def is_name(text: str) -> bool:
    """Whether it can be the name of a distribution (PEP 508)."""
    return bool(_NAME.fullmatch(text))


def is_kernel(text: str) -> bool:
    """Whether it is the release of a kernel, of the words that distributions make them of."""
    return bool(_KERNEL.fullmatch(text))


def is_system_package(text: str) -> bool:
    """Whether it can be a distribution's package of the driver or of a kernel's headers."""
    return bool(_SYSTEM.fullmatch(text))


def is_settings_file(text: str) -> bool:
    """Whether it is a file of modprobe's settings."""
    return bool(_MODPROBE.fullmatch(text))


def is_address(text: str) -> bool:
    """Whether it lies on a host that the tables name."""
    found = _ADDRESS.fullmatch(text)
    return found is not None and found["host"] in _HOSTS


def is_host(text: str) -> bool:
    """Whether it can be the name of a host, to be shown."""
    return bool(_HOST.fullmatch(text))


def is_requirement(text: str, knowledge: Knowledge) -> bool:
    """Whether it is a project of the tables, with or without a version (PEP 440)."""
    found = _REQUIREMENT.fullmatch(text)
    return found is not None and found["name"].lower() in _projects(knowledge)


def is_command(argv: tuple[str, ...], knowledge: Knowledge) -> bool:
    """Whether a program of the list is run, with words that cannot lead it astray."""
    program, *others = argv or ("",)
    if not (program in _PROGRAMS or _PYTHON.fullmatch(program) or _MADE.fullmatch(program)):
        return False
    return all(_is_argument(word, knowledge) for word in others)


def is_setting(name: str, value: str | None) -> bool:
    """Whether a variable may be set to that or, with None, be unset."""
    from cudadoctor.reports.variables import NAMES, PREFIXES

    known = name in NAMES or name == "TMPDIR" or name.startswith(PREFIXES)
    return known and (value is None or bool(_SETTING.fullmatch(value)))


def _is_argument(word: str, knowledge: Knowledge) -> bool:
    if word in _ARGUMENTS or is_requirement(word, knowledge) or is_address(word):
        return True
    return any(one.fullmatch(word) for one in (_VALUE, _MADE, _SYSTEM))


@cache
def _projects(knowledge: Knowledge) -> frozenset[str]:
    """All that a command may install or remove: of the tables, and what our remedies name."""
    from cudadoctor.installers.pip import COMPILED_HERE
    from cudadoctor.plan.remedies.caveats import EXTENSIONS
    from cudadoctor.plan.remedies.companions import JUDGED
    from cudadoctor.plan.remedies.wheels import TORCH_FAMILY

    own = (*TORCH_FAMILY, *EXTENSIONS, *JUDGED, *COMPILED_HERE, *_CONDA, *_OTHERS)
    return knowledge.projects | frozenset(own)
