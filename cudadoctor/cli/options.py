"""What the user asked for on the command line, as one typed value."""

from __future__ import annotations

from typing import Literal

import msgspec


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one call; a command leaves those that it does not have at their default.

    saved: what --from named. compiles: --compile. manager: --with. printed: --print.
    timeout: seconds for each probe. ranks: processes of the DDP stage. kind: --as, the file that
    fix --print writes in place of a script. shared: --allow-shared. advice: of check, what makes
    training faster here.
    """

    python: str | None = None
    fast: bool = False
    no_smoke: bool = False
    device: str | None = None
    timeout: float | None = None
    ranks: int | None = None
    saved: tuple[str, ...] = ()
    as_of: str | None = None
    ignore: tuple[str, ...] = ()
    compiles: bool = False
    lang: str = "en"
    full: bool = False
    output: str | None = None
    as_json: bool = False
    markdown: bool = False
    strict: bool = False
    verbose: int = 0
    printed: bool = False
    manager: Literal["pip", "uv", "conda", "pixi", "docker"] | None = None
    shell: Literal["bash", "fish", "powershell"] | None = None
    torch: str | None = None
    verify: bool = False
    kind: Literal["requirements", "environment", "pyproject", "pixi", "dockerfile"] | None = None
    hashes: bool = False
    yes: bool = False
    undo: bool = False
    resume: bool = False
    forget: bool = False
    shared: bool = False
    advice: bool = False
    minutes: float = 10.0
    workloads: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    chart: str | None = None
    words: tuple[str, ...] = ()
    stop: bool = False
    scale: str | None = None
    plant: tuple[str, ...] = ()
