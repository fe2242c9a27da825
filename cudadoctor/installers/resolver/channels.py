"""conda and pixi as resolvers, where the plan is written for them and they are there.

Both are asked in a way that leaves the environment and the project alone.
"""

# Paths are texts for children here.
# ruff: noqa: PTH118

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

from cudadoctor.installers import conda
from cudadoctor.installers.address import manager
from cudadoctor.installers.resolver import conda_reading, pixi_reading
from cudadoctor.installers.resolver.verdict import (
    Answer,
    Verdict,
    refused,
    resolved,
    unanswered,
    unverified,
)

if TYPE_CHECKING:
    from cudadoctor.installers.resolver.asking import Clock, Setting
    from cudadoctor.knowledge import Knowledge
    from cudadoctor.model.findings import PackageChange

CHANNEL_HOST = "conda.anaconda.org"


def verify(
    at: Setting, dialect: Literal["conda", "pixi"], change: PackageChange, kb: Knowledge
) -> Verdict:
    """Whether the channels' packages for the change can be had together."""
    channels, specs = conda.packages_of(at.machine, kb, change)
    if dialect == "pixi":
        specs = conda.specs_of(at.machine, kb, change)
    if not specs:
        return unverified("nothing is installed")
    names = ("pixi",) if dialect == "pixi" else ("mamba", "micromamba", "conda")
    known = manager(at.machine, *names) if at.here else None
    program = known or next((one for name in names if (one := at.door.which(name))), None)
    if program is None:
        return unverified(f"there is no {dialect} here to ask")
    if dialect == "pixi":
        answer = _ask_pixi(at, program, specs, change)
    else:
        answer = _ask_conda(at, program, (*channels, *specs), change)
    return _verdict(answer, os.path.basename(program), at.clock)  # noqa: PTH119


def _ask_conda(at: Setting, program: str, wanted: tuple[str, ...], change: PackageChange) -> Answer:
    folder = at.door.scratch or "."
    words = conda_reading.argv(
        program,
        wanted,
        at.machine,
        os.path.join(folder, "conda-env"),
        here=at.here and conda.is_condas(at.machine),
    )
    env = dict(at.door.env) | conda_reading.variables(at.machine, change, here=at.here)
    env["CONDA_PKGS_DIRS"] = os.path.join(folder, "conda-pkgs")
    ran = at.door.run(*words, timeout_s=at.clock.left_s, env=env)
    if ran.timed_out:
        return Answer(kind="unreached", how=f"did not answer within {at.clock.told} s")
    return conda_reading.read(ran.stdout, ran.stderr)


def _ask_pixi(at: Setting, program: str, specs: tuple[str, ...], change: PackageChange) -> Answer:
    folder = os.path.join(at.door.scratch or ".", f"pixi-{os.urandom(4).hex()}")
    manifest = os.path.join(folder, "pixi.toml")
    try:
        os.mkdir(folder)  # noqa: PTH102
        with open(manifest, "w", encoding="utf-8") as file:  # noqa: PTH123
            file.write(pixi_reading.project(specs, at.machine, change))
    except OSError as error:
        return Answer(kind="unfit", text=f"{manifest}: {error.strerror}")
    env = dict(at.door.env) | {"PIXI_CACHE_DIR": os.path.join(folder, "cache")}
    ran = at.door.run(
        program, "lock", "--manifest-path", manifest, timeout_s=at.clock.left_s, env=env, cwd=folder
    )
    if ran.timed_out:
        return Answer(kind="unreached", how=f"did not answer within {at.clock.told} s")
    lock = at.door.read(os.path.join(folder, "pixi.lock"), 4 << 20).text
    return pixi_reading.read(ran.code, lock, ran.stderr)


def _verdict(answer: Answer, tool: str, clock: Clock) -> Verdict:
    if answer.kind == "resolved":
        return resolved(answer.files, tool)
    if answer.kind == "refused":
        return refused(answer.text, tool)
    if answer.kind == "unreached":
        host = answer.host or CHANNEL_HOST
        text = unanswered(host, answer.how or "did not answer")
        return unverified(text, tool, unreached=host)
    late = "" if clock.left_s else " in time"
    return unverified(f"{tool} gave no answer{late}: {answer.text}", tool)
