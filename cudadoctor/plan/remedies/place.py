"""Where a remedy is to be taken: on which kind of machine, and by whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from cudadoctor.model.findings import Where
    from cudadoctor.model.machine import Machine, Number

Side = Literal["jetson", "wsl", "container", "cluster", "windows", "macos", "dgx", "linux"]
Family = Literal["ubuntu", "debian", "rhel", "amazon", "fedora", "suse", "arch", "nixos", "other"]

_FAMILIES: dict[str, Family] = {
    "ubuntu": "ubuntu",
    "linuxmint": "ubuntu",
    "pop": "ubuntu",
    "debian": "debian",
    "rhel": "rhel",
    "rocky": "rhel",
    "almalinux": "rhel",
    "centos": "rhel",
    "ol": "rhel",
    "amzn": "amazon",
    "fedora": "fedora",
    "suse": "suse",
    "opensuse": "suse",
    "opensuse-leap": "suse",
    "opensuse-tumbleweed": "suse",
    "sles": "suse",
    "arch": "arch",
    "nixos": "nixos",
}


def side_of(m: Machine) -> Side:
    """What kind of machine this is for somebody who would change its driver.

    A container on WSL counts as WSL and one on a Jetson as a Jetson: there the driver comes from
    Windows or from JetPack, whatever box is around the process.
    """
    if m.platform.jetson:
        return "jetson"
    if m.platform.wsl or m.container.dxg or m.container.wsl_libs:
        return "wsl"
    if m.container.kind:
        return "container"
    if m.container.scheduler:
        return "cluster"
    if m.platform.system == "Windows":
        return "windows"
    if m.platform.system == "Darwin":
        return "macos"
    if "dgx" in (m.platform.product or "").lower():
        return "dgx"
    return "linux"


def notebook_of(m: Machine) -> Literal["colab", "kaggle"] | None:
    """The service whose notebook this process belongs to: there the machine is only lent."""
    names = m.env or {}
    if "KAGGLE_KERNEL_RUN_TYPE" in names:
        return "kaggle"  # its images are made from Colab's and keep COLAB_RELEASE_TAG
    return "colab" if "COLAB_RELEASE_TAG" in names or "COLAB_GPU" in names else None


def keeper_of(m: Machine) -> Where:
    """Who may change the system under this process."""
    side = side_of(m)
    if m.container.scheduler or m.container.kind == "kubernetes":
        return "admin"
    if side == "wsl":
        return "windows"
    return "host" if m.container.kind else "here"


def family_of(m: Machine) -> Family:
    """The distribution's family, by its own id first, then by what it is like."""
    for name in (m.platform.distro, *(m.platform.distro_like or ())):
        if name in _FAMILIES:
            return _FAMILIES[name]
    return "other"


def major_of(m: Machine) -> Number:
    """The distribution's major release: 9 for 9.4."""
    head = (m.platform.distro_version or "").split(".")[0]
    return int(head) if head.isdigit() else None


def is_cloud(m: Machine) -> bool:
    """Whether this looks like a provider's virtual machine, whose image brings its own driver."""
    product = (m.platform.product or "").lower()
    return bool(m.platform.virtual) and (
        product in {"google compute engine", "virtual machine"} or "." in product
    )


def has_virtual_gpu(m: Machine) -> bool:
    """Whether a GPU is a share that a hypervisor gives out: those need the provider's driver."""
    return any(gpu.virtualization == "vgpu" for gpu in m.gpus or ())
