"""The step that installs the torch which the user asked for, or says why it cannot be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudadoctor.model.findings import Remedy, Risk
from cudadoctor.plan.remedies.build import remedy_for
from cudadoctor.plan.remedies.instead import instead

if TYPE_CHECKING:
    from cudadoctor.knowledge import Knowledge
    from cudadoctor.model.machine import Machine
    from cudadoctor.solver.builds import Choice

_BACKENDS = {"rocm": "ROCm", "xpu": "Intel XPU"}
_MOST_REASONS = 6


def wished_torch(m: Machine, kb: Knowledge, choice: Choice, wish: str) -> tuple[Remedy, ...]:
    """Alternatives that keep to the wish, the preferred one first."""
    backend = _BACKENDS.get(m.torch.build or "")
    if backend is not None and not (choice.build and choice.build.cuda):
        return (_of_another_maker(wish, backend),)
    if choice.build is not None:
        return (remedy_for(choice.build, m, kb),)
    keeping = [one for one in choice.ways_out if one.kind not in ("release", "cpu", "jetson")]
    ways = instead(m, kb, keeping, wish)
    if any(one.id == "install-torch" for one in ways):
        return ways
    return (_impossible(wish, choice), *ways)


def _impossible(wish: str, choice: Choice) -> Remedy:
    """Why the wish cannot be, and what would help, as words: another release is nobody's wish."""
    reasons = [f"{one.variant}: {one.reason}" for one in choice.why_not[:_MOST_REASONS]]
    more = len(choice.why_not) - len(reasons)
    reasons += [f"{more} older variants do not fit either."] if more > 0 else []
    texts = [*choice.why[:1], *reasons, *(one.text for one in choice.ways_out)]
    return Remedy(
        id="install-torch",
        title=f"No build of torch {wish} fits this machine",
        risk=Risk.ENVIRONMENT,
        manual=f"Give up the wish for torch {wish}, or change what stands against it. "
        + " ".join(texts),
    )


def _of_another_maker(wish: str, backend: str) -> Remedy:
    text = f"This environment has a {backend} build, and the tables hold builds for NVIDIA's GPUs "
    text += f"and for the CPU only: take torch {wish} from the {backend} index of PyTorch."
    return Remedy(
        id="install-torch",
        title=f"Install the {backend} build of torch {wish}",
        risk=Risk.ENVIRONMENT,
        manual=text,
    )
