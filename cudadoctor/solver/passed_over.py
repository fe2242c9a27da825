"""Why the other variants were passed over: of the chosen release, and of every newer one."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from cudadoctor.model.findings import Refusal
from cudadoctor.solver.refusals import block, reason

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cudadoctor.knowledge import TorchBuild
    from cudadoctor.solver.build_reasons import Case


def passed_over(chosen: TorchBuild, case: Case) -> tuple[Refusal, ...]:
    """Each other variant once, with its reason in the chosen release and in its newest release."""
    # The builds come newest first.
    since = list(takewhile(lambda one: one.torch >= chosen.torch, case.builds))
    same = {one.variant: one for one in since if one.torch == chosen.torch}
    newer = _newest_of_each(
        one for one in since if one.variant not in same or one.torch > chosen.torch
    )
    texts: dict[str, list[str]] = {}
    for variant, one in same.items():
        texts[variant] = [_of_same(one, chosen, case)]
    for variant, one in newer.items():
        text = _of_newer(one, case)
        said = texts.setdefault(variant, [])
        if not said or text != said[0]:
            said.append(_with_release(text, one))
    texts.pop(chosen.variant, None)
    return tuple(Refusal(variant=name, reason=" ".join(said)) for name, said in texts.items())


def none_taken(case: Case) -> tuple[Refusal, ...]:
    """Where nothing fits: each variant that was asked for once, by its newest release.

    Of the newest release that was asked for, all variants: a wish may have named one only.
    """
    newest = case.asked[0].torch
    named = _newest_of_each(case.asked)
    beside = {one.variant: one for one in case.builds if one.torch == newest}
    return tuple(
        Refusal(
            variant=variant,
            reason=_of_newer(one, case)
            if one.torch == newest
            else _with_release(_of_newer(one, case), one),
        )
        for variant, one in (beside | named).items()
    )


def announced(chosen: TorchBuild, case: Case) -> str | None:
    """That something newer would fit and was only announced; None where nothing was."""
    waiting = [
        one
        for one in case.asked
        if one.torch > chosen.torch and one.published is None and not _unfit_anyway(one, case)
    ]
    if not waiting:
        return None
    newest = [one for one in waiting if one.torch == waiting[0].torch]
    names = " and ".join(one.variant for one in newest)
    verb = "is" if len(newest) == 1 else "are"
    past = "was" if len(newest) == 1 else "were"
    return (
        f"torch {newest[0].torch} {names} {verb} announced and {past} not seen published: "
        "what exists for certain comes first."
    )


def _unfit_anyway(one: TorchBuild, case: Case) -> bool:
    return block(one, case.demand, case.knowledge, ignoring=frozenset({"announced"})) is not None


def _newest_of_each(builds: Iterable[TorchBuild]) -> dict[str, TorchBuild]:
    """Variant -> its newest release that was published, else the newest that is spoken of."""
    found: dict[str, TorchBuild] = {}
    for one in builds:
        known = found.setdefault(one.variant, one)
        if one.published and not known.published:
            found[one.variant] = one
    return found


def _of_same(one: TorchBuild, chosen: TorchBuild, case: Case) -> str:
    why = _against(one, case)
    if why is not None:
        return why
    if one not in case.asked:
        return f"It fits, and the wish is for {case.wish}."
    better = "the default of this platform" if chosen.default else "preferred"
    return f"It fits too; {chosen.variant} is {better}."


def _of_newer(one: TorchBuild, case: Case) -> str:
    why = _against(one, case)
    if why is not None:
        return why
    if case.wish is not None:
        return f"It fits, and the wish is for {case.wish}."
    return "It fits too; the installed release is kept."


def _against(one: TorchBuild, case: Case) -> str | None:
    """Why it does not fit; a build for GPUs is held against them, also where none is to be used."""
    demand = case.demand if one.cuda is None else case.whole or case.demand
    return reason(one, demand, case.knowledge)


def _with_release(text: str, one: TorchBuild) -> str:
    """The sentence with the release in place of "It"."""
    if text.startswith("It "):
        return f"torch {one.torch} {text.removeprefix('It ')}"
    if text.startswith("Its "):
        return f"torch {one.torch}: its {text.removeprefix('Its ')}"
    return f"torch {one.torch}: {text}"
