"""NVIDIA's forward-compatibility package as a remedy, where the driver cannot be changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudadoctor.model.findings import Remedy, Risk
from cudadoctor.plan.remedies.place import family_of, keeper_of, side_of
from cudadoctor.solver.builds import capabilities_of, serves_all
from cudadoctor.solver.forward_compat import compat_lifts

if TYPE_CHECKING:
    from packaging.version import Version

    from cudadoctor.knowledge import Knowledge
    from cudadoctor.model.machine import Machine

_TITLE = "Use NVIDIA's forward-compatibility package"
_LIMITS = (
    "It is for data-centre GPUs and for computing only, not for graphics, and its libraries must "
    "come first in the loader's path. After an update of the driver to branch {branch} or newer it "
    "must go again."
)
_IMAGES = ("ubuntu24.04", "ubuntu22.04", "rockylinux9", "ubuntu20.04")
_INSTALL = {
    "ubuntu": ("apt-get", "install"),
    "debian": ("apt-get", "install"),
    "rhel": ("dnf", "install"),
    "amazon": ("dnf", "install"),
    "fedora": ("dnf", "install"),
}


def forward_compat(m: Machine, kb: Knowledge, cuda: Version | None) -> tuple[Remedy, ...]:
    """The package for that CUDA release; () where it does not run on these GPUs or this driver.

    Also () where the installed torch has no code for a GPU: there no driver helps.
    """
    if cuda is None or not compat_lifts(m, kb, cuda) or not _torch_has_code(m, kb, cuda):
        return ()
    side = side_of(m)
    if side == "container":
        return (_image(kb, cuda),)
    if side in ("linux", "dgx"):
        return (_package(m, kb, cuda),)
    text = f"Ask for NVIDIA's package cuda-compat-{cuda.major}-{cuda.minor}; {_folder(cuda)} then "
    text += "comes first in LD_LIBRARY_PATH."
    return (_remedy(kb, cuda, where=keeper_of(m), manual=text),)


def _package(m: Machine, kb: Knowledge, cuda: Version) -> Remedy:
    """On a machine of one's own: a package of NVIDIA's repository."""
    name = f"cuda-compat-{cuda.major}-{cuda.minor}"
    tool = _INSTALL.get(family_of(m))
    text = f"{name} comes from NVIDIA's repository for this system, which must be set up. Programs "
    text += f"that need it are then started with {_folder(cuda)} first in LD_LIBRARY_PATH."
    return _remedy(
        kb,
        cuda,
        needs_root=True,
        commands=((*tool, "-y", name),) if tool else (),
        manual=text,
        tool=tool[0].removesuffix("-get") if tool else None,
    )


def _image(kb: Knowledge, cuda: Version) -> Remedy:
    """In a container the package is part of the image."""
    tags = (kb.newest_docker_tag(cuda, "base", one) for one in _IMAGES)
    tag = next((one for one in tags if one is not None), None)
    image = f"nvidia/cuda:{tag}" if tag else f"an nvidia/cuda image of CUDA {cuda}"
    text = f"Start from {image}, which brings the package, and put {_folder(cuda)} first in "
    text += "LD_LIBRARY_PATH where the container toolkit does not pick it up by itself."
    return _remedy(kb, cuda, where="container", manual=text)


def _remedy(kb: Knowledge, cuda: Version, **more: object) -> Remedy:
    branch = kb.branch_for(cuda)
    note = _LIMITS.format(branch=branch) if branch else _LIMITS.partition(" After")[0]
    given: dict[str, object] = {"id": "cuda-compat", "title": _TITLE, "risk": Risk.SYSTEM}
    return Remedy(**(given | {"note": note} | more))  # type: ignore[arg-type]


def _folder(cuda: Version) -> str:
    return f"/usr/local/cuda-{cuda.major}.{cuda.minor}/compat"


def _torch_has_code(m: Machine, kb: Knowledge, cuda: Version) -> bool:
    """Whether the torch that the package is for would run on every GPU, if the driver let it."""
    archs, capabilities = m.torch.archs, capabilities_of(m, kb)
    if m.torch.cuda != cuda or archs is None or capabilities is None:
        return True
    return serves_all(archs, capabilities, m.torch.version, cuda, kb)
