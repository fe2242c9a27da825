"""Where no wheel of torch can be installed at all: the nearest environment where one can."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from packaging.version import Version

from cudadoctor.solver.demand import platform_of

if TYPE_CHECKING:
    from cudadoctor.knowledge import Knowledge
    from cudadoctor.model.machine import Machine

_ORDINARY = ("CPython", "cpython", None)


def past_the_wall(m: Machine, kb: Knowledge) -> tuple[Machine, str] | None:
    """The same hardware without the wall, and the change in words; None where none is known."""
    words: list[str] = []
    if m.platform.libc == "musl":
        m = _replaced(m, "platform", libc="glibc", glibc=None)
        words.append("in a container with glibc, such as python:3.12-slim")
    if platform_of(m) is None:
        return None
    python = m.python
    if python.bits == 32:
        words.append("with a 64-bit Python")
        m = _replaced(m, "python", bits=64)
    if python.implementation not in _ORDINARY:
        words.append("with CPython")
        m = _replaced(m, "python", implementation="CPython")
    if not words:
        return None
    if (newest := _newest_python(m, kb)) is not None:
        # That Python is yet to be installed: any version will do.
        words[-1] += f" ({newest})" if not words[-1].endswith("slim") else ""
        m = _replaced(m, "python", version=Version(newest), free_threaded=False)
    text = " and ".join(words)
    return m, f"{text[0].upper()}{text[1:]}"


def last_word(m: Machine) -> str | None:
    """What is nearest where no other environment of the same system helps; None for no word."""
    if m.platform.system is None or m.platform.machine is None or platform_of(m) is not None:
        return None
    return (
        "Nobody publishes one: torch would have to be built from source, and the nearest way is a "
        "64-bit system on an x86-64 or ARM processor."
    )


def _newest_python(m: Machine, kb: Knowledge) -> str | None:
    """The Python to take in place of one that no build is made for; None where its own will do."""
    platform, version = platform_of(m), m.python.version
    builds = kb.builds_on(platform) if platform else ()
    known = {name for one in builds for name in one.pythons if not name.endswith("t")}
    present = f"{version.major}.{version.minor}" if version else None
    if present in known or not known:
        return None
    return max(known, key=Version)


def _replaced(m: Machine, part: str, **values: object) -> Machine:
    changed = msgspec.structs.replace(getattr(m, part), **values)
    return msgspec.structs.replace(m, **{part: changed})
