"""Packages with code for one torch that are installed: what becomes of each when torch changes.

The release that the tables hold for the new torch goes into the same change. Where they hold none,
a package whose code is bound to the old torch is taken out (its import would end in an error) or,
with the fitting nvcc at hand, built anew; a sentence says which.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from cudadoctor.model.requirements import admits
from cudadoctor.model.versions import version_of
from cudadoctor.solver.builds import python_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from cudadoctor.knowledge import Knowledge, TorchBuild
    from cudadoctor.model.machine import Distribution, Machine

PYG = ("pyg-lib", "torch-cluster", "torch-scatter", "torch-sparse", "torch-spline-conv")
"""The compiled parts of torch-geometric, which itself is plain Python and stays."""

PYG_PAGE = "https://data.pyg.org/whl/torch-{minor}.0+{variant}.html"


class Fate(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of one package. pin: to install; with_torch: from torch's index, in one go.

    leaves: the old one must go first. find_links: the page that has the wheel.
    """

    pin: str | None = None
    with_torch: bool = False
    leaves: bool = False
    find_links: str | None = None
    note: str | None = None


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """One installed package beside the torch that is to come."""

    one: Distribution
    build: TorchBuild
    machine: Machine
    kb: Knowledge

    @property
    def changes(self) -> bool:
        """Whether compiled code of the old torch will not run with the new one."""
        old = self.machine.torch
        if old.version is None:
            return False
        other_cuda = _major(old.cuda) != _major(self.build.cuda)
        return other_cuda or old.version.release[:2] != self.build.torch.release[:2]

    def runs_here(self, release: str) -> bool:
        """Whether a release takes this Python and has wheels for this platform, as far as known."""
        if not self.takes_python(release):
            return False
        places = self.kb.companion_platforms(self.one.name, release)
        return places is None or self.build.platform in places or "any" in places

    def takes_python(self, release: str) -> bool:
        """Whether a release takes this Python, as far as that is known."""
        wanted = self.kb.companion_python(self.one.name, release)
        python = self.machine.python.version
        return not wanted or python is None or admits(wanted, python)

    def serves_cuda(self, release: str) -> bool | None:
        """Whether a release has binaries for the build's CUDA, None where that is not known."""
        known = self.kb.companion_cuda(self.one.name, release)
        if self.build.cuda is None or known is None:
            return None if known is None else True
        return self.build.cuda in known


def fate_of(one: Distribution, build: TorchBuild, m: Machine, kb: Knowledge) -> Fate | None:
    """What becomes of an installed package, None for one that is nobody's companion here."""
    judge = _JUDGES.get(one.name)
    if judge is None:
        return None
    return judge(Question(one=one, build=build, machine=m, kb=kb))


def _xformers(q: Question) -> Fate:
    """One release for one torch; its builds for each CUDA lie on torch's own index."""
    made_for = q.kb.built_against("xformers", q.one.version)
    if not q.changes and (made_for is None or q.build.cuda is None):
        return Fate(note=_stays(q))
    if not q.changes and made_for == q.build.torch and q.serves_cuda(q.one.version):
        return Fate()
    for release in q.kb.companion("xformers", q.build.torch):
        if q.serves_cuda(release) and q.runs_here(release):
            return Fate(pin=f"xformers=={release}", with_torch=True, leaves=True)
    return _gone(q)


def _flash_attn(q: Question) -> Fate:
    """Source on PyPI; its installation fetches a wheel where one was made for torch and CUDA."""
    if not q.changes:
        known = q.one.version in q.kb.companion("flash-attn", q.build.torch)
        return Fate() if known and q.takes_python(q.one.version) else Fate(note=_stays(q))
    python, cuda = python_of(q.machine), q.build.cuda
    if q.build.platform == "linux_x86_64" and python is not None and cuda is not None:
        release = q.kb.prebuilt_flash(q.build.torch, cuda, python)
        if release is not None:
            return Fate(pin=f"flash-attn=={release}", leaves=True)
    return _anew(q) or _gone(q)


def _compiled(q: Question) -> Fate:
    """Source only, and no table of wheels."""
    if not q.changes:
        return Fate()
    return _anew(q) or _gone(q)


def _bitsandbytes(q: Question) -> Fate:
    """One wheel with binaries for many CUDA releases: it stays while it has the right one."""
    wanted = q.kb.companion_torch("bitsandbytes", q.one.version)
    serves = q.serves_cuda(q.one.version)
    admitted = wanted is None or admits(wanted, q.build.torch)
    if wanted is None and serves is None:
        return Fate(note=_stays(q)) if q.changes else Fate()
    if admitted and serves is not False and q.runs_here(q.one.version):
        return Fate()
    for release in q.kb.companion("bitsandbytes", q.build.torch):
        if q.serves_cuda(release) is not False and q.runs_here(release):
            return Fate(pin=f"bitsandbytes=={release}", leaves=True)
    return _gone(q)


def _triton_windows(q: Question) -> Fate:
    """On Windows triton is a project of its own, and one minor release belongs to one torch."""
    fitting = [one for one in q.kb.companion("triton-windows", q.build.torch) if q.runs_here(one)]
    minor = q.one.version.split(".")[:2]
    if any(one.split(".")[:2] == minor for one in fitting):
        return Fate()
    if fitting:
        return Fate(pin=f"triton-windows=={max(fitting, key=_order)}", leaves=True)
    if not q.changes:
        return Fate(note=_stays(q))
    text = f"{_named(q)} is taken out: none is known for torch {q.build.torch}, and torch.compile "
    return Fate(leaves=True, note=f"{text}does not work without it.")


def _torchao(q: Question) -> Fate:
    """It declares no torch, and so does every release of it."""
    return Fate(note=_stays(q)) if q.changes else Fate()


def _pyg(q: Question) -> Fate:
    """Wheels for each torch and variant on a page of PyG's own."""
    if not q.changes:
        return Fate()
    minor = f"{q.build.torch.major}.{q.build.torch.minor}"
    page = PYG_PAGE.format(minor=minor, variant=q.build.variant)
    python = python_of(q.machine)
    for wheel in q.kb.pyg_wheels(q.build.torch, q.build.variant):
        here = q.build.platform in wheel.platforms and python in wheel.pythons
        if wheel.package == q.one.name and here:
            tag = f"pt{minor.replace('.', '')}{q.build.variant}"
            return Fate(pin=f"{q.one.name}=={wheel.version}+{tag}", leaves=True, find_links=page)
    text = f"{_named(q)} is taken out: no wheel of it for torch {q.build.torch} {q.build.variant} "
    text += f"was seen. Where {page} has one, install it with --find-links and that address."
    return Fate(leaves=True, note=text)


def _anew(q: Question) -> Fate | None:
    """Compiled here, where an nvcc of the new CUDA's major is at hand."""
    cuda = q.build.cuda
    nvcc = next(
        (
            one.cuda
            for one in q.machine.build.toolkits or ()
            if one.cuda and _major(one.cuda) == _major(cuda)
        ),
        None,
    )
    if nvcc is None or q.build.platform.startswith("windows"):
        return None
    text = (
        f"{q.one.name} {q.one.version} is built anew for torch {q.build.torch} with nvcc {nvcc}, "
    )
    return Fate(
        pin=f"{q.one.name}=={_public(q.one.version)}",
        leaves=True,
        note=f"{text}which can take an hour.",
    )


def _gone(q: Question) -> Fate:
    kind = "the CPU" if q.build.cuda is None else f"CUDA {q.build.cuda}"
    text = f"{_named(q)} is taken out: its code is bound to another torch, and none is known for "
    return Fate(leaves=True, note=f"{text}torch {q.build.torch} with {kind} on this platform.")


def _named(q: Question) -> str:
    return f"{q.one.name} {q.one.version}"


def _stays(q: Question) -> str:
    return f"Whether {_named(q)} fits torch {q.build.torch} is not in the tables: it stays."


def _major(version: object) -> int | None:
    return getattr(version, "major", None)


def _public(text: str) -> str:
    return text.partition("+")[0]


def _order(text: str) -> tuple[int, ...]:
    version = version_of(text)
    return (*version.release, version.post or 0) if version else ()


_JUDGES: dict[str, Callable[[Question], Fate]] = {
    "bitsandbytes": _bitsandbytes,
    "causal-conv1d": _compiled,
    "flash-attn": _flash_attn,
    "mamba-ssm": _compiled,
    "torchao": _torchao,
    "triton-windows": _triton_windows,
    "xformers": _xformers,
    **dict.fromkeys(PYG, _pyg),
}

JUDGED = frozenset(_JUDGES)
"""Packages whose fate is decided here; of others with compiled code a sentence warns."""
