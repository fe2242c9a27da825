"""Another Python as the way out, where torch is not made for the examined one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from packaging.version import Version

from cudadoctor.installers import environment
from cudadoctor.model.findings import Remedy, Risk
from cudadoctor.plan.remedies.build import remedy_for
from cudadoctor.solver.builds import best_build

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cudadoctor.knowledge import Knowledge
    from cudadoctor.model.machine import Machine


def install_python(
    m: Machine, kb: Knowledge, versions: Iterable[str], keep: str | None = None
) -> tuple[Remedy, ...]:
    """A new environment with the nearest of these Pythons ("3.12"), and torch in it.

    keep: a wish for a release of torch.
    """
    wanted = _nearest(m, [Version(one) for one in versions if not one.endswith("t")])
    if wanted is None:
        return ()
    changed = emptied(m, wanted)
    build = best_build(changed, kb, keep=keep).build
    change = remedy_for(build, changed, kb).packages if build else None
    made = environment.new_environment(m, str(wanted), change)
    return (
        Remedy(
            id="install-python",
            title=f"Make a new environment with Python {wanted}",
            risk=Risk.ENVIRONMENT,
            commands=made.commands,
            manual=made.manual,
            tool=made.tool,
            note=made.note,
        ),
    )


def emptied(m: Machine, python: Version | None = None) -> Machine:
    """The same machine with an empty environment: no torch, no packages.

    python: its Python where it is another than the examined one, then a common 64-bit one. What
    the old torch saw of the GPUs stays known.
    """
    own = m.python
    if python is not None:
        own = msgspec.structs.replace(
            own, version=python, free_threaded=False, bits=64, implementation="CPython"
        )
    torch = type(m.torch)(installed=False, imported=m.torch.imported)
    return msgspec.structs.replace(m, python=own, torch=torch, packages=())


def _nearest(m: Machine, versions: list[Version]) -> Version | None:
    """The closest to the present Python: the newest below it, else the oldest above it."""
    present = m.python.version
    if not versions:
        return None
    if present is None:
        return max(versions)
    same = Version(f"{present.major}.{present.minor}")
    below = [one for one in versions if one <= same]
    return max(below) if below else min(versions)
