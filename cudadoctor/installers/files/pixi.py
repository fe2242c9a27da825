"""pixi.toml: from conda-forge where it is known to have the stack, else torch's own wheels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudadoctor.installers.conda import conda_name
from cudadoctor.installers.files import forge
from cudadoctor.installers.files.environment import conda_python, not_there
from cudadoctor.installers.files.heading import heading
from cudadoctor.installers.files.markers import CONDA
from cudadoctor.installers.files.pyproject import quoted
from cudadoctor.installers.pip import name_of, split_compiled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cudadoctor.installers.files.stack import Stack
    from cudadoctor.knowledge import Knowledge


def text(stack: Stack, kb: Knowledge) -> str:
    """The whole file."""
    found = forge.specs(stack, kb)
    notes = (not_there(stack, "pixi takes"),) if found is None else ()
    told = stack if found is None else forge.as_made(stack, kb)
    lines = heading(told, kb, "Make it with: pixi install", *notes)
    platforms = ", ".join(quoted(CONDA[one]) for one in stack.platforms)
    lines += ["", "[workspace]", f"name = {quoted(told.name)}", 'channels = ["conda-forge"]']
    lines += [f"platforms = [{platforms}]", *_system(told)]
    lines += ["", "[dependencies]", "{} = {}".format(*_python(stack))]
    lines += _wheels(stack) if found is None else _forge(stack, found)
    return "\n".join(lines) + "\n"


def _python(stack: Stack) -> tuple[str, str]:
    name, _, constraint = conda_python(stack.one_python).partition("=")
    return name, quoted(constraint)


def _system(stack: Stack) -> Iterator[str]:
    """The driver and C library that pixi takes for granted when it solves."""
    glibc = [build.glibc for build in stack.builds if build.glibc]
    if stack.lead.cuda is None and not glibc:
        return
    yield from ("", "[system-requirements]")
    if stack.lead.cuda is not None:
        yield f'cuda = "{stack.lead.cuda.major}"'
    if glibc:
        yield f'libc = {{ family = "glibc", version = "{max(glibc)}" }}'


def _forge(stack: Stack, found: dict[str, str]) -> Iterator[str]:
    wanted = found | dict.fromkeys(forge.companions(stack), "*")
    for one in stack.then:
        name = name_of(one)
        wanted[conda_name(name)] = one[len(name) :] or "*"
    yield from (f"{key(name)} = {quoted(constraint)}" for name, constraint in wanted.items())


def _wheels(stack: Stack) -> Iterator[str]:
    own = [one for one in stack.platforms if stack.index and not one.startswith("macos")]
    wheels, compiled = split_compiled(stack.then)
    alike = not own or own == list(stack.platforms)
    if alike or wheels or compiled:
        yield from ("", "[pypi-dependencies]")
    if alike:
        yield from _pins(stack, own=bool(own))
    for one in (*wheels, *compiled):
        name = name_of(one)
        yield f"{key(name)} = {quoted(one[len(name) :] or '*')}"
    if not alike:
        for platform in stack.platforms:
            yield from ("", f"[target.{CONDA[platform]}.pypi-dependencies]")
            yield from _pins(stack, own=platform in own)
    if compiled:
        names = ", ".join(quoted(name_of(one)) for one in compiled)
        yield from ("", "[pypi-options]", f"no-build-isolation = [{names}]")


def _pins(stack: Stack, *, own: bool) -> Iterator[str]:
    for name, release in stack.pins:
        pin = quoted(f"=={release}")
        yield f"{name} = " + (
            f"{{ version = {pin}, index = {quoted(stack.index or '')} }}" if own else pin
        )


def key(name: str) -> str:
    """A name as a key of TOML: a dot would open a table."""
    return quoted(name) if "." in name else name
