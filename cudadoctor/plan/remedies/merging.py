"""Many prescriptions -> one list in which nothing stands twice and nothing undoes another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from cudadoctor.model.findings import PackageChange, Remedy
from cudadoctor.model.requirements import COMPANIONS, EXTENSIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cudadoctor.knowledge import Knowledge, TorchBuild

_TORCH_STEPS = ("install-torch", "jetson-torch", "reinstall-torch")
_PART_OF_TORCH = ("nvidia-", "cuda-", "triton", "pytorch-triton")


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """A remedy with its place: alternatives share a group, whose first one is preferred."""

    remedy: Remedy
    group: str
    cures: tuple[str, ...]


def merged(
    prescribed: Sequence[tuple[str, tuple[Remedy, ...]]],
    knowledge: Knowledge,
    build: TorchBuild | None,
) -> tuple[Planned, ...]:
    """The prescriptions of all causes (the gravest first) as steps.

    A cause of "" is none: the user asked for it. build: the torch that is going to be installed,
    where that is known.
    """
    entries = _collected(prescribed)
    preferred = [one for one in entries if one.group == one.remedy.id]
    main = next((one for name in _TORCH_STEPS for one in preferred if one.remedy.id == name), None)
    if main is not None:
        entries = _absorbed(entries, main, knowledge, build)
    order = list(dict.fromkeys(one.group for one in entries))
    ranked = sorted(entries, key=lambda one: (order.index(one.group), one.remedy.id != one.group))
    return tuple(ranked)


def _collected(prescribed: Iterable[tuple[str, tuple[Remedy, ...]]]) -> list[Planned]:
    """Each remedy once, with all that it cures. What some cause prefers is nobody's alternative."""
    prescribed = [(cause, remedies) for cause, remedies in prescribed if remedies]
    found: dict[str, Planned] = {}
    for cause, remedies in prescribed:
        _add(found, remedies[0], remedies[0].id, cause)
    for cause, remedies in prescribed:
        for remedy in remedies[1:]:
            _add(found, remedy, remedies[0].id, cause)
    return list(found.values())


def _add(found: dict[str, Planned], remedy: Remedy, group: str, cause: str) -> None:
    known = found.get(remedy.id)
    if known is None:
        found[remedy.id] = Planned(remedy=remedy, group=group, cures=(cause,) if cause else ())
    elif cause and cause not in known.cures:
        found[remedy.id] = msgspec.structs.replace(known, cures=(*known.cures, cause))


def _absorbed(
    entries: list[Planned], main: Planned, knowledge: Knowledge, build: TorchBuild | None
) -> list[Planned]:
    """The other preferred package changes, made part of the step that installs torch."""
    change = main.remedy.packages
    if change is None:
        return entries
    cures, kept, gone = list(main.cures), [], set()
    for one in entries:
        other = one.remedy.packages
        if one is main or other is None or one.group != one.remedy.id:
            kept.append(one)
            continue
        change = _joined(change, other, knowledge, build)
        gone.add(one.group)
        cures += [cause for cause in one.cures if cause not in cures]
    remedy = msgspec.structs.replace(main.remedy, packages=change)
    merged = Planned(remedy=remedy, group=main.group, cures=tuple(cures))
    kept = [merged if one is main else one for one in kept]
    return [
        msgspec.structs.replace(one, group=main.group) if one.group in gone else one
        for one in kept
        if one.remedy.id not in gone
    ]


def _joined(
    change: PackageChange, other: PackageChange, knowledge: Knowledge, build: TorchBuild | None
) -> PackageChange:
    """A change of torch together with another change of the same environment."""
    from cudadoctor.plan.remedies.torch import matching

    install = {_name(one): one for one in change.install}
    then = {_name(one): one for one in change.then}
    for requirement in (*other.install, *other.then):
        name = _name(requirement)
        if name == "torch" or name.startswith(_PART_OF_TORCH):
            continue
        if name in COMPANIONS:
            fitting = matching(name, build, knowledge) if build else None
            install.setdefault(name, f"{name}=={fitting}" if fitting else requirement)
        elif name in install or name in then:
            continue  # The change of torch has its release already.
        elif name in EXTENSIONS and build is not None:
            fitting = next(iter(knowledge.companion(name, build.torch)), None)
            if fitting is not None or name not in change.remove:
                then[name] = f"{name}=={fitting}" if fitting else name
        else:
            then[name] = requirement
    return msgspec.structs.replace(
        change,
        install=tuple(install.values()),
        then=tuple(then.values()),
        remove=tuple(dict.fromkeys(change.remove + other.remove)),
    )


def _name(requirement: str) -> str:
    from cudadoctor.installers.pip import name_of

    return name_of(requirement)
