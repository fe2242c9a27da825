"""Remedies that change one process or that only a person can carry out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudadoctor.model.findings import PackageChange, Remedy, Risk
from cudadoctor.plan.remedies.place import keeper_of, side_of

if TYPE_CHECKING:
    from cudadoctor.model.findings import Where
    from cudadoctor.model.machine import Machine

_DEFAULT_GROUPS = ("video", "render")
EACCES = 13


def by_hand(
    id: str,  # noqa: A002
    title: str,
    text: str,
    where: Where = "here",
    risk: Risk = Risk.PROCESS,
) -> tuple[Remedy, ...]:
    """Anything else, as a sentence."""
    return (Remedy(id=id, title=title, where=where, risk=risk, manual=text),)


def unset_variables(m: Machine, *names: str) -> tuple[Remedy, ...]:
    """Take variables out of the environment of the program.

    A scheduler's choice of GPUs is never overridden: there the way out is to ask it for GPUs.
    """
    from cudadoctor.plan.remedies.container import grant_gpu

    kept = tuple(name for name in names if not (name == "CUDA_VISIBLE_DEVICES" and _scheduled(m)))
    if not kept:
        return grant_gpu(m) if names else ()
    return (
        Remedy(
            id="unset-" + "-".join(name.lower().replace("_", "-") for name in kept),
            title=f"Unset {_listed(kept)}",
            risk=Risk.PROCESS,
            variables=dict.fromkeys(kept),
            note="Lasts for this shell; to keep it, remove the line that sets it from the shell's "
            "start-up file or the job script.",
        ),
    )


def set_variables(
    m: Machine,  # noqa: ARG001
    id: str,  # noqa: A002
    title: str,
    variables: dict[str, str],
) -> tuple[Remedy, ...]:
    """Set variables for the program."""
    values: dict[str, str | None] = dict(variables)
    return (Remedy(id=id, title=title, risk=Risk.PROCESS, variables=values),)


def install_packages(
    m: Machine,  # noqa: ARG001
    id: str,  # noqa: A002
    title: str,
    *requirements: str,
    remove: tuple[str, ...] = (),
) -> tuple[Remedy, ...]:
    """A change to the packages of the environment that does not touch torch."""
    if not requirements and not remove:
        return ()
    change = PackageChange(install=requirements, remove=remove)
    return (Remedy(id=id, title=title, risk=Risk.ENVIRONMENT, packages=change),)


def remove_packages(
    m: Machine,
    id: str,  # noqa: A002
    title: str,
    *names: str,
) -> tuple[Remedy, ...]:
    """Uninstall packages from the environment."""
    return install_packages(m, id, title, remove=names)


def device_groups(m: Machine) -> tuple[Remedy, ...]:
    """Let the user open the GPU's device nodes."""
    side = side_of(m)
    if side in ("windows", "macos"):
        return ()
    if m.container.kind or side == "cluster":
        where = keeper_of(m)
        how = "`--group-add` with the group that owns the nodes, when the container is started"
        how = how if m.container.kind else "membership of the group that owns the nodes"
        text = f"Ask for access to /dev/nvidia* for this user: {how}."
        return by_hand("device-groups", "Get access to the GPU's device nodes", text, where)
    groups = _groups(m)
    user = m.identity.user
    known = bool(user) and not m.redacted
    return (
        Remedy(
            id="device-groups",
            title=f"Add this user to the {_listed(groups)} group{'s'[: len(groups) > 1]}",
            needs_root=True,
            commands=(("usermod", "-aG", ",".join(groups), user),) if known and user else (),
            manual=None if known else f"Add the user to {_listed(groups)} with usermod -aG.",
            tool="usermod",
            note="Takes effect after logging out and in again. It opens the GPU to this user only.",
        ),
    )


def _groups(m: Machine) -> tuple[str, ...]:
    """The groups that own the nodes which could not be opened; else the customary ones."""
    refused = [node.group for node in m.driver.nodes or () if node.errno == EACCES]
    named = tuple(dict.fromkeys(group for group in refused if group and group != "root"))
    return named or _DEFAULT_GROUPS


def _scheduled(m: Machine) -> bool:
    return bool(m.container.scheduler) or m.container.kind == "kubernetes"


def _listed(names: tuple[str, ...]) -> str:
    return " and ".join(names) if len(names) < 3 else f"{', '.join(names[:-1])} and {names[-1]}"
