"""The plan with what a resolver says of each of its steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from cudadoctor.render.script import is_runnable

if TYPE_CHECKING:
    from collections.abc import Callable

    from cudadoctor.installers.resolver.verdict import Verdict
    from cudadoctor.model.findings import PackageChange, Plan, Step


def verified(plan: Plan, ask: Callable[[PackageChange], Verdict]) -> Plan:
    """Every step of packages with its verdict. ask: the resolver; each change is asked of once.

    An index that did not answer is not asked again.
    """
    known: dict[PackageChange, Verdict] = {}
    silent: dict[str | None, Verdict] = {}

    def told(step: Step) -> Step:
        change = step.packages
        if change is None or not (change.install or change.then):
            return step
        verdict = known.get(change) or silent.get(change.index) or ask(change)
        known[change] = verdict
        if verdict.unreached:
            silent[change.index] = verdict
        return msgspec.structs.replace(step, verified=verdict.resolves, resolution=verdict.why)

    return msgspec.structs.replace(plan, steps=tuple(told(step) for step in plan.steps))


def holds(plan: Plan) -> bool:
    """Whether each group whose packages cannot be had has another way that may be taken."""
    failed = {step.group for step in plan.steps if step.verified is False}
    taken = {step.group for step in plan.steps if is_runnable(step)}
    return failed <= taken
