"""Where no build of torch fits: the ways out that the solver knows, as remedies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from cudadoctor.model.findings import Remedy, Risk
from cudadoctor.solver.demand import wall_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cudadoctor.knowledge import Knowledge
    from cudadoctor.model.machine import Machine
    from cudadoctor.solver.ways_out import WayOut


def instead(
    m: Machine, kb: Knowledge, ways: Iterable[WayOut], keep: str | None = None
) -> tuple[Remedy, ...]:
    """A remedy for each way out that is one; each id once, the solver's order kept.

    keep: the wish that the ways out are for.
    """
    found: dict[str, Remedy] = {}
    for way in ways:
        for remedy in _as_remedies(way, m, kb, keep):
            named = remedy
            if remedy.id in found and way.kind == "one-gpu" and way.build is not None:
                named = msgspec.structs.replace(remedy, id=f"install-torch-{way.build.variant}")
            found.setdefault(named.id, named)
    return tuple(found.values())


def _as_remedies(way: WayOut, m: Machine, kb: Knowledge, keep: str | None) -> tuple[Remedy, ...]:
    from cudadoctor.plan.remedies.compat import forward_compat
    from cudadoctor.plan.remedies.driver import upgrade_driver
    from cudadoctor.plan.remedies.interpreter import install_python
    from cudadoctor.plan.remedies.left_out import for_some_gpus

    if way.kind == "one-gpu" and wall_of(m) is None:
        return for_some_gpus(way, m, kb)
    if way.kind == "driver" and way.branch is not None:
        newer = upgrade_driver(m, kb, way.branch)
        return tuple(_noted(one, way) for one in newer)
    if way.kind == "python":
        return install_python(m, kb, way.pythons, keep)
    if way.kind == "compat" and way.build is not None:
        return tuple(_noted(one, way) for one in forward_compat(m, kb, way.build.cuda))
    if way.kind == "conda" and way.cuda is not None:
        return (_from_conda_forge(way, m, kb),)
    if way.kind == "platform" and m.platform.libc != "musl" and way.build is not None:
        return install_python(m, kb, way.build.pythons, keep)
    if way.kind in ("glibc", "platform", "one-gpu"):
        title = "Run torch on a system that has builds"
        return (Remedy(id="other-platform", title=title, where="admin", manual=way.text),)
    return _on_the_cpu(way, m, kb) if way.kind == "cpu" else ()


def _on_the_cpu(way: WayOut, m: Machine, kb: Knowledge) -> tuple[Remedy, ...]:
    """What is left where nothing serves the GPU; an installed torch runs on the CPU as it is."""
    from cudadoctor.plan.remedies.build import remedy_for

    if way.build is None or m.torch.installed is not False:
        title = "Train without this GPU"
        return (Remedy(id="other-gpu", title=title, risk=Risk.ENVIRONMENT, manual=way.text),)
    return (_noted(remedy_for(way.build, m, kb), way),)


def _from_conda_forge(way: WayOut, m: Machine, kb: Knowledge) -> Remedy:
    """An environment of its own, with the build of another publisher."""
    from cudadoctor.installers.address import manager

    torch = kb.newest_on_conda("conda-forge")
    conda = manager(m, "mamba", "micromamba", "conda")
    specs = (f"pytorch-gpu={torch}", f"cuda-version={way.cuda}")
    argv = (conda or "conda", "create", "-y", "-n", "torch", "-c", "conda-forge", *specs)
    return Remedy(
        id="conda-torch",
        title=f"Make a conda environment with conda-forge's torch {torch} and CUDA {way.cuda}",
        risk=Risk.ENVIRONMENT,
        commands=(argv,) if conda else (),
        manual=None if conda else f"With conda or mamba (Miniforge): {' '.join(argv)}",
        tool="conda",
        note=way.text,
    )


def _noted(remedy: Remedy, way: WayOut) -> Remedy:
    """The remedy with what it makes possible: torch itself is the step after it."""
    note = " ".join(text for text in (way.text, remedy.note) if text)
    return msgspec.structs.replace(remedy, note=note)
