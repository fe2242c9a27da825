"""Whole files of a project that hold one build of torch: for pip, conda, uv, pixi and docker.

Each is text, made from the tables alone: it names no path, no host and no user, and can be
committed as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from cudadoctor.installers.files import dockerfile, environment, pixi, pyproject, requirements
from cudadoctor.installers.files.heading import comments
from cudadoctor.installers.files.stack import Hashes, stack_for

if TYPE_CHECKING:
    from cudadoctor.installers.files.stack import Stack
    from cudadoctor.knowledge import Knowledge, TorchBuild
    from cudadoctor.model.machine import Machine

__all__ = ["NAMES", "Hashes", "Kind", "project_file", "refusal", "why_not", "written"]

Kind = Literal["requirements", "environment", "pyproject", "pixi", "dockerfile"]

NAMES: dict[Kind, str] = {
    "requirements": "requirements.txt",
    "environment": "environment.yml",
    "pyproject": "pyproject.toml",
    "pixi": "pixi.toml",
    "dockerfile": "Dockerfile",
}
"""The name under which each kind of file is looked for by its tool."""


def project_file(
    kind: Kind,
    m: Machine,
    kb: Knowledge,
    build: TorchBuild,
    *,
    python: str | None,
    then: tuple[str, ...] = (),
    hashes: Hashes | None = None,
) -> str:
    """The whole file that gives this machine that build.

    python: "3.11", the one to fix; None leaves it to what the build is made for. then: further
    requirements, from the default index. hashes: (name, version) -> SHA-256 digests of every file
    that was resolved; with them a requirements file pins all of it.
    """
    return written(kind, stack_for(kind, m, kb, build, python=python, then=then), kb, hashes)


def refusal(reasons: tuple[str, ...]) -> str:
    """Why there is no file, as comments of every kind of file."""
    return "\n".join(comments(*reasons)) + "\n"


def written(kind: Kind, stack: Stack, kb: Knowledge, hashes: Hashes | None = None) -> str:
    """The file of that kind for a stack."""
    if kind == "requirements":
        return requirements.text(stack, kb, hashes)
    if kind == "environment":
        return environment.text(stack, kb)
    if kind == "pyproject":
        return pyproject.text(stack, kb)
    return pixi.text(stack, kb) if kind == "pixi" else dockerfile.text(stack, kb)


def why_not(kind: Kind, m: Machine, kb: Knowledge, build: TorchBuild) -> str | None:
    """Why there can be no file of that kind for that build, None where there can."""
    if kind == "dockerfile":
        return dockerfile.why_not(stack_for(kind, m, kb, build, python=None), kb)
    return None
