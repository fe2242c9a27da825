"""pyproject.toml of a uv project."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from cudadoctor.installers.files.heading import heading
from cudadoctor.installers.files.markers import marker, marker_of
from cudadoctor.installers.pip import name_of, split_compiled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cudadoctor.installers.files.stack import Stack
    from cudadoctor.knowledge import Knowledge


def text(stack: Stack, kb: Knowledge) -> str:
    """The whole file."""
    lines = heading(stack, kb, _use(stack))
    lines += ["", "[project]", f"name = {quoted(stack.name)}", 'version = "0.1.0"']
    lines += [f"requires-python = {quoted(requires_python(stack))}", "dependencies = ["]
    lines += [f"    {quoted(one)}," for one in _dependencies(stack)]
    lines += ["]", "", "[tool.uv]", "package = false", "environments = ["]
    lines += [f"    {quoted(marker(one))}," for one in stack.platforms]
    lines.append("]")
    if compiled := split_compiled(stack.then)[1]:
        names = ", ".join(quoted(name_of(one)) for one in compiled)
        lines.append(f"no-build-isolation-package = [{names}]")
    return "\n".join((*lines, *sources(stack, stack.platforms))) + "\n"


def _use(stack: Stack) -> str:
    python = stack.python or ""
    return f"Make it with: uv sync{f' --python {python}' if python.endswith('t') else ''}"


def sources(stack: Stack, among: tuple[str, ...]) -> Iterator[str]:
    """The tables that lead torch and its companions to torch's own index, nothing else.

    among: all platforms of the project; the others keep to the default index.
    """
    if stack.index is None:
        return
    where = marker_of(stack.indexed, among)
    index = f"pytorch-{stack.lead.variant}"
    yield from ("", "[tool.uv.sources]")
    for name, _ in stack.pins:
        yield from led_to(name, index, where)
    yield from ("", "[[tool.uv.index]]", f"name = {quoted(index)}")
    yield from (f"url = {quoted(stack.index)}", "explicit = true")


def led_to(name: str, index: str, where: str | None) -> Iterator[str]:
    """The lines that lead a package to an index on some platforms; where: their marker.

    A line for each platform, so that none is too long to be copied from a terminal.
    """
    if where is None:
        yield f"{name} = [{{ index = {quoted(index)} }}]"
        return
    yield f"{name} = ["
    for one in where.split(" or "):
        marker = one.removeprefix("(").removesuffix(")")
        yield f"    {{ index = {quoted(index)}, marker = {quoted(marker)} }},"
    yield "]"


def requires_python(stack: Stack) -> str:
    """The Pythons of the project: the fixed one, else all that the builds are made for."""
    if stack.python:
        return f"=={stack.python.removesuffix('t')}.*"
    made = stack.pythons
    if not made:
        return ">=3.10"
    major, minor = made[-1].split(".")
    return f">={made[0]},<{major}.{int(minor) + 1}"


def _dependencies(stack: Stack) -> tuple[str, ...]:
    return (*(f"{name}=={release}" for name, release in stack.pins), *stack.then)


def quoted(word: str) -> str:
    """The word as a basic string of TOML; JSON's escapes are a part of those."""
    return json.dumps(word.replace("\x7f", ""))
