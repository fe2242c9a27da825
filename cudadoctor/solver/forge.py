"""Whether a build of conda-forge serves a machine: other compilers, other lists of GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.version import Version

from cudadoctor.solver.refusals import runs, served

if TYPE_CHECKING:
    from cudadoctor.knowledge import Knowledge
    from cudadoctor.solver.demand import Demand

_STRICTEST_GLIBC = Version("2.28")
"""What counts where the glibc of a build is not known: no build of conda-forge asks for more."""


def forge_cuda(torch: Version, demand: Demand, knowledge: Knowledge) -> Version | None:
    """The CUDA of conda-forge's build of that torch which serves every GPU as machine code.

    None where there is none, or where the tables do not prove it.
    """
    made = knowledge.conda_cuda("conda-forge", torch, demand.platform) or ()
    for cuda in sorted(made, reverse=True):
        if _serves(torch, cuda, demand, knowledge):
            return cuda
    return None


def _serves(torch: Version, cuda: Version, demand: Demand, knowledge: Knowledge) -> bool:
    codes = knowledge.conda_archs(cuda, demand.platform) or ()
    how = [served(codes, one, torch, cuda, knowledge) for one in demand.capabilities]
    if not codes or not all(one is not None and one[0] == "native" for one in how):
        return False
    if demand.system == "Linux" and demand.glibc is not None:
        known = knowledge.conda_glibc(cuda) if demand.platform == "linux_x86_64" else None
        if demand.glibc < (known or _STRICTEST_GLIBC):
            return False
    return runs(cuda, demand, knowledge)
