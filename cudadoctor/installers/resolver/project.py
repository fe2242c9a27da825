"""What a resolver says of a project's file, and the digests of all that it comes to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from cudadoctor.installers.resolver.question import Question, Sources
from cudadoctor.installers.resolver.verdict import Verdict

if TYPE_CHECKING:
    from cudadoctor.installers.files import Hashes, Kind
    from cudadoctor.knowledge import Knowledge, TorchBuild
    from cudadoctor.model.findings import Dialect
    from cudadoctor.model.machine import Machine

_TOOLS: dict[Kind, Dialect] = {
    "requirements": "pip",
    "environment": "conda",
    "pyproject": "uv",
    "pixi": "pixi",
    "dockerfile": "docker",
}


def verify_file(
    kind: Kind, m: Machine, kb: Knowledge, build: TorchBuild, *, limit_s: float, here: bool
) -> Verdict:
    """Whether the packages of a project's file can be had for a new environment of this machine."""
    from cudadoctor.installers.resolver import verify
    from cudadoctor.installers.resolver.verdict import unverified
    from cudadoctor.plan.remedies.torch import emptied, remedy_for

    fresh = emptied(m)
    change = remedy_for(build, fresh, kb).packages
    if change is None:
        return unverified("nothing is installed")
    wish = _TOOLS[kind]
    here = here and wish in ("pip", "uv")  # the others make an environment of their own
    return verify(change, fresh, kb, limit_s=limit_s, here=here, wish=wish, sized=False)


def digests(
    m: Machine, kb: Knowledge, build: TorchBuild, *, limit_s: float, here: bool
) -> tuple[Verdict, Hashes]:
    """The digests of every file that a requirements file of that build comes to.

    Searched as the file is: torch's own index beside the default one. Files without a digest make
    the verdict None: pip takes digests for all packages or for none.
    """
    from cudadoctor.host import local
    from cudadoctor.installers.files.stack import stack_for
    from cudadoctor.installers.resolver import by_wheels
    from cudadoctor.installers.resolver.asking import Clock, Setting
    from cudadoctor.installers.resolver.verdict import unverified
    from cudadoctor.solver.builds import python_of

    stack = stack_for("requirements", m, kb, build, python=python_of(m))
    tag = f"+{build.variant}" if stack.index else ""
    pins = (f"torch=={stack.torch}{tag}", *(f"{name}=={one}" for name, one in stack.companions))
    asked = Question(
        first=pins,
        sources=Sources(extra=(stack.index,) if stack.index else ()),
        settings=None if m.redacted else m.python.index,
    )
    found = by_wheels(Setting(local.this_host(), m, Clock(limit_s), here), asked)
    if found.resolves and (bare := [one.name for one in found.files if not one.sha256]):
        reason = f"the index names no digest for {', '.join(bare)}"
        return msgspec.structs.replace(unverified(reason, found.tool), unreached="index"), {}
    return found, {(one.name, one.version): (one.sha256 or "",) for one in found.files}
