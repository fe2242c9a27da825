"""environment.yml, for conda, mamba and micromamba.

From conda-forge where it is known to have the release for these GPUs, else Python from conda-forge
and torch's own wheels by pip.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from cudadoctor.installers.conda import conda_name
from cudadoctor.installers.files import forge
from cudadoctor.installers.files.heading import heading
from cudadoctor.installers.files.requirements import torch_lines
from cudadoctor.installers.pip import name_of, split_compiled

if TYPE_CHECKING:
    from cudadoctor.installers.files.stack import Stack
    from cudadoctor.knowledge import Knowledge

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_.=<>,*+-]*")
"""What YAML takes for a text without quotes: no space, no # and no colon in it."""


def not_there(stack: Stack, what_is_done: str) -> str:
    """Why torch's own wheels are taken."""
    of = " for all of these GPUs" if stack.lead.cuda else ""
    return (
        f"conda-forge is not known to have this release{of}, so {what_is_done} torch's own wheels."
    )


def text(stack: Stack, kb: Knowledge) -> str:
    """The whole file."""
    found = forge.specs(stack, kb)
    told = stack if found is None else forge.as_made(stack, kb)
    lines = heading(
        told, kb, "Make it with: conda env create -f environment.yml", *_notes(stack, found)
    )
    lines += ["", f"name: {told.name}", "channels:", "  - conda-forge", "  - nodefaults"]
    lines += ["dependencies:", f"  - {conda_python(stack.one_python)}"]
    return "\n".join(lines + (_from_pip(stack) if found is None else _forge(stack, found))) + "\n"


def _notes(stack: Stack, found: dict[str, str] | None) -> tuple[str, ...]:
    if found is None:
        return (not_there(stack, "pip installs"),)
    if stack.lead.cuda is None:
        return ()
    cuda = re.sub(r"^>=|,.*", "", found["cuda-version"])
    return (
        "Where no driver is seen while this is installed (a login node, CI), put "
        f"{forge.OVERRIDE}={cuda} before the command.",
    )


def _forge(stack: Stack, found: dict[str, str]) -> list[str]:
    names = [f"{name}{joined(constraint)}" for name, constraint in found.items()]
    others = [conda_name(name_of(one)) + one[len(name_of(one)) :] for one in stack.then]
    wanted = (*names, *forge.companions(stack), *others)
    return [f"  - {scalar(one)}" for one in wanted]


def conda_python(version: str) -> str:
    """conda-forge's package of that Python; the free-threaded one has a name of its own."""
    name = "python-freethreading" if version.endswith("t") else "python"
    return f"{name}={version.removesuffix('t')}.*"


def joined(constraint: str) -> str:
    """A constraint as it follows a name: 2.13.0.* needs an equals sign."""
    return constraint if constraint.startswith((">", "<")) else f"={constraint}"


def _from_pip(stack: Stack) -> list[str]:
    wheels, compiled = split_compiled(stack.then)
    lines = ["  - pip", "  - pip:"]
    if stack.index:
        lines.append(f"      - {scalar(f'--extra-index-url {stack.index}')}")
    lines += [f"      - {scalar(one)}" for one in (*torch_lines(stack), *wheels)]
    lines += [f"      # then: pip install --no-build-isolation {one}" for one in compiled]
    return lines


def scalar(word: str) -> str:
    """The word as YAML: plain where that is safe, else in double quotes as JSON writes them."""
    return word if _PLAIN.fullmatch(word) else json.dumps(word)
