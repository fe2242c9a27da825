"""Whether an environment is better after a repair than before. Pure."""

from __future__ import annotations

from typing import Any

from cudadoctor.repair.records import Opinion

_RANK = {"broken": 0, "undecided": 1, "warnings": 2, "healthy": 3}
_GRAVE = ("error", "warning")


def opinion(document: dict[str, Any]) -> Opinion:
    """A check in short, from its JSON document."""
    grave = [one for one in document["findings"] if one["severity"] in _GRAVE]
    stages = (document.get("smoke") or {}).get("stages", ())

    def stage_names(*statuses: str) -> tuple[str, ...]:
        return tuple(one["name"] for one in stages if one["status"] in statuses)

    return Opinion(
        verdict=document["verdict"],
        primary=document["primary"],
        grave=_once(one["cause"] for one in grave),
        told=_once(one["cause"] for one in grave if not one["because_of"]),
        undecided=_once(one["cause"] for one in document["undecided"]),
        smoke_passed=stage_names("passed"),
        smoke_failed=stage_names("failed", "timed-out"),
    )


def _once(words: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(words))


def better(before: Opinion, after: Opinion, cured: tuple[str, ...]) -> tuple[bool, str]:
    """Whether the repair is worth keeping, and why; cured: what its steps were to cure."""
    failing = [one for one in after.smoke_failed if one not in before.smoke_failed]
    lost = [one for one in failing if one in before.smoke_passed]
    if lost:
        return False, f"the training step fails now: {', '.join(lost)}"
    if before.smoke_passed and not (after.smoke_passed or after.smoke_failed):
        return False, "the training step ran before and does not run now"
    new = [one for one in after.told if one not in before.grave]
    if new:
        return False, f"there is a new finding: {', '.join(new)}"
    there = (*after.grave, *after.undecided)
    still = [one for one in cured if one in there and one in before.grave]
    gone = [one for one in before.grave if one not in there]
    # From undecided to more may be a fact that was not told before: no merit of the repair.
    by_chance = before.verdict == "undecided" and still and not set(gone) & set(cured)
    if not by_chance and _RANK[after.verdict] > max(_RANK[before.verdict], _RANK["undecided"]):
        return True, f"the verdict was {before.verdict} and is {after.verdict}"
    if not still and gone:
        return True, f"{', '.join(gone)} is cured"
    if set(gone) & set(cured):
        return True, f"{', '.join(gone)} is cured, {', '.join(still)} is not"
    if still:
        return False, f"{', '.join(still)} is still there"
    return False, f"the verdict is {after.verdict}, as before"
