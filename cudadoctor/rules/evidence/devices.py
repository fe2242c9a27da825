"""What the installed torch was compiled for, and which of this machine's GPUs that serves."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from packaging.version import Version

from cudadoctor.knowledge import Knowledge, TorchBuild
from cudadoctor.model.findings import CERTAIN, LIKELY, POSSIBLE, Confidence
from cudadoctor.model.machine import Gpu, Machine, OptVersion, Strings
from cudadoctor.model.rule import need
from cudadoctor.rules.evidence.signs import live_gpus, nvidia_pci
from cudadoctor.solver.demand import capability_of, platform_of, served

_CODE = re.compile(r"(?:sm|compute)_(\d+)(\d)[af]?")


class Device(NamedTuple):
    """A GPU that torch would use. path: the fact that names it."""

    path: str
    name: str
    capability: Version


class Compiled(NamedTuple):
    """The architectures of the installed build, and how sure they are."""

    archs: Strings
    evidence: str
    confidence: Confidence
    sources: Strings = ()


def devices(m: Machine, kb: Knowledge) -> tuple[Device, ...]:
    """The NVIDIA GPUs with their capability: as the driver told it, else by PCI id or name.

    Where the driver names none, torch's own list counts, then the PCI bus. Ends the rule as
    undecided where the capability of one is not known.
    """
    if live_gpus(m):
        return tuple(
            _device(f"gpus.{number}", gpu, kb)
            for number, gpu in enumerate(m.gpus or ())
            if gpu.code in (None, 0)
        )
    if seen := m.torch.imported and m.torch.imported.capabilities:
        return tuple(
            Device("torch.imported.capabilities", f"GPU {n}", c) for n, c in enumerate(seen)
        )
    found = []
    for number, device in enumerate(() if m.container.kind else m.pci or ()):
        models = kb.gpus_by_pci(device.device_id) if device in nvidia_pci(m) else ()
        if len({model.capability for model in models}) == 1:
            found.append(Device(f"pci.{number}", models[0].name, models[0].capability))
    return tuple(found)


def _device(path: str, gpu: Gpu, kb: Knowledge) -> Device:
    known = capability_of(gpu, kb)
    why = None if known else f"the compute capability of the {gpu.name} is unknown"
    return Device(path, gpu.name or f"GPU {gpu.index}", need(known, f"{path}.capability", why))


def compiled(m: Machine, kb: Knowledge) -> Compiled:
    """What torch was compiled for: read from its library, else from the tables."""
    if m.torch.archs:
        return Compiled(m.torch.archs, "torch.archs", CERTAIN)
    row = row_of(m, kb)
    archs = need(row.archs if row else None, "torch.archs")
    sure = POSSIBLE if row and row.archs_uncertain else LIKELY
    return Compiled(archs, "torch.version", sure, row.sources if row else ())


def row_of(m: Machine, kb: Knowledge) -> TorchBuild | None:
    """The published build that is installed; for a nightly the release that it led to."""
    platform, version, cuda = platform_of(m), m.torch.version, m.torch.cuda
    if m.look == "report" and m.platform.machine is None:
        # A report that does not name the processor is of a PC.
        platform = "windows_amd64" if m.platform.system == "Windows" else "linux_x86_64"
    if platform is None or version is None or cuda is None:
        return None
    return kb.build_of(Version(version.base_version), f"cu{cuda.major}{cuda.minor}", platform)


def refused(cudnn: OptVersion, m: Machine, kb: Knowledge) -> tuple[Device, ...]:
    """The GPUs that this cuDNN refuses to run on, as far as the tables know."""
    if cudnn is None:
        return ()
    return tuple(gpu for gpu in devices(m, kb) if kb.cudnn_refuses(cudnn, gpu.capability))


def code_version(code: str) -> OptVersion:
    """The capability that code is for: 9.0 for sm_90, 12.0 for compute_120."""
    found = _CODE.fullmatch(code)
    return Version(f"{found[1]}.{found[2]}") if found else None


def way_to_run(
    archs: Strings, capability: Version, m: Machine, kb: Knowledge
) -> Literal["native", "ptx"] | None:
    """How the build runs on that GPU, None where it does not.

    PTX is compiled by the driver, which must be as new as the toolkit that made it.
    """
    how = served(archs, capability, m.torch.version, m.torch.cuda, kb)
    newer = m.driver.cuda is None or m.torch.cuda is None or m.driver.cuda >= m.torch.cuda
    return how[0] if how and (how[0] == "native" or newer) else None
