"""What a wish for a release of torch costs, as sentences with their values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudadoctor.solver.refusals import on_ptx

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cudadoctor.knowledge import Knowledge, TorchBuild
    from cudadoctor.solver.build_reasons import Case

_ALWAYS = ("torchvision", "torchaudio")
_WHERE_INSTALLED = ("torchtext", "xformers", "flash-attn", "triton-windows", "vllm")


def costs(build: TorchBuild, free: TorchBuild | None, case: Case) -> Iterator[str]:
    """What is given up for the wish. free: what would be chosen without it."""
    if free is None or (free.torch, free.variant) == (build.torch, build.variant):
        yield "The wish costs nothing: without it the same build would be chosen."
        return
    yield f"Without the wish it would be torch {free.torch} {free.variant}."
    lost = [text for text in (_releases(build, free, case), *_lost(build, free, case)) if text]
    yield from lost
    if not lost:
        yield "The wish gives up nothing that the tables know of."


def _releases(build: TorchBuild, free: TorchBuild, case: Case) -> str | None:
    """How many releases are given up."""
    passed = {
        one.torch for one in case.builds if build.torch < one.torch <= free.torch and one.published
    }
    if not passed:
        return None
    many = f"{len(passed)} newer releases" if len(passed) > 1 else "one newer release"
    since = f"{build.released} to {free.released}"
    return f"The wish gives up {many}, up to torch {free.torch} ({since})."


def _lost(build: TorchBuild, free: TorchBuild, case: Case) -> Iterator[str]:
    here, there = (on_ptx(one, case.demand, case.knowledge) for one in (build, free))
    slow = [str(one) for one in here if one not in there]
    if slow and build.cuda is not None:
        yield (
            f"The wish costs machine code: capability {', '.join(slow)} runs on PTX, where torch "
            f"{free.torch} {free.variant} has code of its own."
        )
    for name in (*_ALWAYS, *_installed(case)):
        has, had = (_companion(name, one, case.knowledge) for one in (build, free))
        if had is not None and has is None:
            yield f"No {name} is known for torch {build.torch}; torch {free.torch} has {had}."
    if build.archs_uncertain and not free.archs_uncertain:
        yield f"What torch {build.torch} has code for is less certain than for {free.torch}."


def _installed(case: Case) -> tuple[str, ...]:
    names = {one.name for one in case.machine.packages or ()}
    return tuple(name for name in _WHERE_INSTALLED if name in names)


def _companion(name: str, build: TorchBuild, knowledge: Knowledge) -> str | None:
    if name == "torchvision":
        return build.torchvision
    if name == "torchaudio":
        return build.torchaudio
    return next(iter(knowledge.companion(name, build.torch)), None)
