"""Remedies of the causes of installing and compiling that a report shows, where facts suffice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudadoctor.plan.remedies import (
    install_packages,
    install_torch,
    reinstall_torch,
    unset_variables,
)

if TYPE_CHECKING:
    from cudadoctor.knowledge import Knowledge
    from cudadoctor.model.findings import Remedy
    from cudadoctor.model.machine import Machine

_ABOUT_RELEASES = frozenset(
    {"triton-of-another-release", "triton-not-there", "triton-does-not-compile"}
)
_COMPILER = frozenset({"compiler-not-found", "python-headers-missing", "toolkit-in-pieces"})


def install_cures(cause: str, m: Machine, kb: Knowledge) -> tuple[Remedy, ...]:
    """The steps for this cause on this machine, () where only words can be given."""
    if cause == "torch-missing" and m.platform.system and m.gpus and m.python.version:
        return install_torch(m, kb)
    if cause == "triton-broken":
        return _triton(m, kb)
    named = "TORCH_CUDA_ARCH_LIST" in (m.env or {})
    if cause == "arch-list-wrong" and named and not _seen(m, {"architecture-list-empty"}):
        return unset_variables(m, "TORCH_CUDA_ARCH_LIST")
    return ()


def _triton(m: Machine, kb: Knowledge) -> tuple[Remedy, ...]:
    """Triton of its own for Windows; on Linux the one that torch pins. A compiler needs words."""
    if not _seen(m, _ABOUT_RELEASES) or _seen(m, _COMPILER):
        return ()
    compilers = ("failed to find c compiler", "cl is not found", "find msvc", "c++ compiler")
    if any(words in one.text.lower() for one in m.symptoms or () for words in compilers):
        return ()
    if m.platform.system == "Windows":
        title = "Install Triton for Windows"
        return install_packages(m, "triton-windows", title, "triton-windows")
    return reinstall_torch(m, kb) if m.torch.version and m.platform.system == "Linux" else ()


def _seen(m: Machine, keys: frozenset[str] | set[str]) -> bool:
    return any(one.key in keys for one in m.symptoms or ())
