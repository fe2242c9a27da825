"""No torch is given up for one that cannot be had, nor for the very same one.

The plan asks here for every package change, so that no single rule has to answer for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from packaging.version import Version

from cudadoctor.installers.index import is_foreign
from cudadoctor.installers.pip import name_of
from cudadoctor.plan.remedies.torch import install_torch, installed_row, installed_variant
from cudadoctor.solver.builds import platform_of, python_of
from cudadoctor.solver.demand import wall_of

if TYPE_CHECKING:
    from cudadoctor.knowledge import Knowledge, TorchBuild
    from cudadoctor.model.findings import PackageChange, Remedy
    from cudadoctor.model.machine import Machine

_NEEDED = (
    "No wheel of {wanted} is known for this Python and this system, so the torch that is here "
    "stays. Make a new environment with a Python that has one; this environment stays as it is."
)


def harmless(remedies: tuple[Remedy, ...], m: Machine, kb: Knowledge) -> tuple[Remedy, ...]:
    """The remedies of one cause without what would harm, or leave all as it is."""
    found = (sound for one in remedies for sound in _harmless(one, m, kb))
    return tuple({one.id: one for one in reversed(tuple(found))}.values())[::-1]


def _harmless(remedy: Remedy, m: Machine, kb: Knowledge) -> tuple[Remedy, ...]:
    change = remedy.packages
    if change is None or "torch" not in map(name_of, change.install):
        return (remedy,)
    if remedy.id == "install-torch" and _is_there(change, m, kb):
        return ()
    sure = installable(change, m, kb)
    if sure or "torch" not in change.remove:
        return (remedy,)
    if sure is None:
        return (
            msgspec.structs.replace(remedy, packages=msgspec.structs.replace(change, ask=True)),
        )
    others = install_torch(m, kb) if remedy.id == "reinstall-torch" else ()
    text = _NEEDED.format(wanted=_torch_of(change).replace("==", " "))
    return others or (msgspec.structs.replace(remedy, packages=None, manual=text),)


def installable(change: PackageChange, m: Machine, kb: Knowledge) -> bool | None:
    """Whether the tables have this torch as a wheel for this interpreter and system.

    None where they do not know the build, or a fact that decides is missing. What the wheel that
    is installed needs is there: that stands in for an unknown Python and an unknown glibc.
    """
    if m.platform.system and m.platform.machine and wall_of(m):
        return False
    python, release = python_of(m), m.platform.l4t
    if is_foreign(change.index):
        board = kb.jetson_build(release.major) if release else None
        return python == board.python if board and python else None
    build = _build_of(change, m, kb)
    if build is None:
        return False if _is_elsewhere(change, m, kb) else None
    own = installed_row(m, kb) if m.torch.installed else None
    pythons = {python} if python else set(own.pythons if own else ())
    glibc = m.platform.glibc or (own.glibc if own else None)
    old = build.glibc is not None and (glibc is None or glibc < build.glibc)
    if build.published and pythons and pythons <= set(build.pythons) and not old:
        return True
    refused = python not in (None, *build.pythons) or (old and m.platform.glibc is not None)
    return False if refused or build.published is False else None


def _is_there(change: PackageChange, m: Machine, kb: Knowledge) -> bool:
    """Whether exactly this torch is installed; one with other code than the tables' is another."""
    build, version = _build_of(change, m, kb), m.torch.version
    if m.torch.installed is False or build is None or version is None:
        return False
    if version.public != build.torch.public:
        return False
    if installed_variant(m) != build.variant:
        return False
    unsure = build.archs_uncertain or None in (build.archs, m.torch.archs)
    return unsure or set(build.archs or ()) == set(m.torch.archs or ())


def _is_elsewhere(change: PackageChange, m: Machine, kb: Knowledge) -> bool:
    """Whether the tables know this release, and no such build of it for this platform."""
    release, platform = _torch_of(change).partition("==")[2], platform_of(m)
    return bool(release and platform and change.variant) and Version(release) in kb.torch_releases()


def _build_of(change: PackageChange, m: Machine, kb: Knowledge) -> TorchBuild | None:
    release, platform = _torch_of(change).partition("==")[2], platform_of(m)
    if not release or platform is None or change.variant is None:
        return None
    return kb.build_of(Version(release), change.variant, platform)


def _torch_of(change: PackageChange) -> str:
    return next(one for one in change.install if name_of(one) == "torch")
