"""Run the probes side by side and put one machine together from what they saw."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import date
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct
from msgspec.structs import asdict, replace

from cudadoctor.host import children, local
from cudadoctor.host.children import start_thread
from cudadoctor.host.local import Host, absolute
from cudadoctor.model.machine import (
    Gap,
    Json,
    Machine,
    OptFloat,
    OptInt,
    OptStr,
    Section,
    Strings,
)
from cudadoctor.model.variables import allowed
from cudadoctor.probes import Looked
from cudadoctor.probes.streamed import Progress, Shown

if TYPE_CHECKING:
    from cudadoctor.probes.target import Chosen

HEAD_START_S = 0.01
HEARING_S = 0.2


class Look(Struct, frozen=True, kw_only=True):
    """How to look. depth: fast (no torch is imported), no-smoke or full.

    device, ranks: of the training step. compiles: it also tries torch.compile. timeout_s: caps each
    probe.
    """

    python: OptStr = None
    depth: Literal["fast", "no-smoke", "full"] = "full"
    device: OptStr = None
    ranks: OptInt = None
    compiles: bool = False
    timeout_s: OptFloat = None


class NoInterpreter(ValueError):  # noqa: N818 - wrong use, told in one sentence
    """What was named as the interpreter to examine is none."""


def examine(
    look: Look, progress: Progress, meanwhile: Callable[[], None] = lambda: None
) -> Machine:
    """Look at this machine. Raises NoInterpreter where --python names no Python."""
    host = local.this_host()
    try:
        return examine_host(host, look, progress, meanwhile=meanwhile)
    finally:
        local.close_host()


def examine_host(
    host: Host,
    look: Look,
    progress: Progress,
    *,
    today: OptStr = None,
    meanwhile: Callable[[], None] = lambda: None,
) -> Machine:
    """Look at any host: the real one or a recording."""
    from cudadoctor.probes import target

    try:
        chosen = target.choose(host, look.python)
    except target.UsageError as error:
        raise NoInterpreter(str(error)) from error
    seen = _side_by_side(host, look, progress, chosen, meanwhile)
    if look.python is not None:
        from cudadoctor.probes.interpreter import no_python

        if sentence := no_python(seen["target"].gaps):
            raise NoInterpreter(f"--python {look.python}: {sentence}")
    if look.depth != "fast":
        seen["smoke"] = _smoke(host, look, progress, assembled(seen.values()))
    machine = assembled(seen.values(), look=look.depth, date=today or date.today().isoformat())
    # What an option left out: a gap that no verdict turns on.
    facts = ["smoke"] if look.depth != "full" and machine.smoke is None else []
    facts += ["torch.imported", "libraries.mapped"] if look.depth == "fast" else []
    left_out = tuple(Gap(fact=fact, why=f"--{look.depth}", asked=False) for fact in facts)
    return replace(machine, gaps=machine.gaps + left_out)


def _side_by_side(
    host: Host, look: Look, progress: Progress, chosen: Chosen, meanwhile: Callable[[], None]
) -> dict[str, Looked]:
    """Every probe that needs no other, while those wait that ask children; each has a deadline.

    meanwhile: our own work, done while the children do theirs.
    """
    seen = {}

    def note(name: str, probe: Callable[..., Looked], *args: Any, **options: Any) -> None:
        """Keep what a probe saw; one that fails of itself is a gap, and the others go on."""
        try:
            seen[name] = probe(*args, **options)
        except Exception as error:
            why = f"the doctor's own probe failed: {type(error).__name__}: {error}"
            seen[name] = Looked(gaps=tuple(Gap(fact=fact, why=why) for fact in _FILLED_BY[name]))

    def driver() -> None:
        from cudadoctor.probes.driver import read_driver

        with _shown("the driver", progress):
            fast = look.depth == "fast"
            note("driver", read_driver, host, fast, look.timeout_s, progress=progress)

    waited = _beside(driver)
    meanwhile()
    with _shown("the system", progress):
        from cudadoctor.probes.limits import read_limits
        from cudadoctor.probes.pci import read_pci
        from cudadoctor.probes.platform import read_platform

        note("platform", read_platform, host)
        note("pci", read_pci, host)
        note("limits", read_limits, host)
        note("environment", read_environment, host)
    with _shown("the Python being checked", progress):
        from cudadoctor.probes.interpreter import read_target

        note("target", read_target, host, chosen, _limit(look, fast_s=5.0, full_s=10.0))
        facts = seen["target"].facts
        folders = _package_folders(facts)
        # Asking nvcc is waiting for it: beside it the libraries are followed.
        asked = _beside(lambda: note("toolkits", _toolkits, host, look, facts, folders))
        note("libraries", _libraries, host, facts, folders)
        _wait_for(asked)
    _wait_for(waited)
    return seen


def _beside(job: Callable[[], None]) -> threading.Thread | None:
    """Start a job in a thread of its own, with a head start.

    Until it waits for a child it computes, and two threads that compute only hinder each other.
    """
    thread = start_thread(job)
    if thread is None:
        job()  # one after the other, where no thread may be started
    else:
        thread.join(HEAD_START_S)
    return thread


def _wait_for(thread: threading.Thread | None) -> None:
    """Wait in short turns: a Ctrl-C that another thread took is heard only between two waits."""
    while thread is not None and thread.is_alive():
        thread.join(HEARING_S)


@contextmanager
def _shown(what: str, progress: Progress) -> Iterator[None]:
    progress(what, True)
    try:
        yield
    finally:
        progress(what, False)


_FILLED_BY = {
    "driver": ("driver", "gpus"),
    "target": ("python", "torch", "packages"),
    "libraries": ("libraries",),
    "toolkits": ("build",),
    "platform": ("platform", "container"),
    "pci": ("pci",),
    "limits": ("limits",),
    "environment": ("env",),
}
"""What is not known where a probe fails of itself."""


def read_environment(host: Host) -> Looked:
    """The variables of the allow-list that are set; nothing that looks like a secret."""
    return Looked(facts={"env": allowed(host.env)}, origins={"env": "environment"})


def _package_folders(facts: Json) -> Strings:
    """Where wheels lie, in the order of the path: torch may be in the user site, or elsewhere."""
    torch = facts.get("torch.path")
    own = {facts.get("python.site_packages"), torch and re.split(r"[/\\][^/\\]+$", torch)[0]}
    path = (*(facts.get("python.path") or ()), *sorted(folder for folder in own if folder))
    ends = ("site-packages", "dist-packages")
    return tuple(dict.fromkeys(folder for folder in path if folder in own or folder.endswith(ends)))


def _libraries(host: Host, facts: Json, folders: Strings) -> Looked:
    from cudadoctor.probes.libraries import read_libraries

    torch, prefix = facts.get("torch.path"), facts.get("python.prefix")
    return read_libraries(host, torch, folders, prefix, host.env, facts.get("python.executable"))


def _toolkits(host: Host, look: Look, facts: Json, folders: Strings) -> Looked:
    from cudadoctor import knowledge
    from cudadoctor.probes.toolkit import read_toolkits

    conda = str(facts.get("python.kind", "")).startswith("conda")
    prefix = facts.get("python.prefix") if conda else None
    fast, known = look.depth == "fast", knowledge.load().compiles_at_run_time
    return read_toolkits(host, host.env, prefix, folders, facts.get("packages"), fast, known)


def _smoke(host: Host, look: Look, progress: Progress, before: Machine) -> Looked:
    """The real import and the training step, in the examined interpreter."""
    from cudadoctor.smoke import run_smoke

    python = before.python.executable
    if python is None or before.python.version is None or before.torch.installed is False:
        why = (
            "torch is not installed"
            if before.torch.installed is False
            else "no usable Python was found"
        )
        return Looked(gaps=(Gap(fact="smoke", why=why, asked=False),))
    shown = Shown(progress)

    def begin_stage(stage: str) -> None:
        shown.now("import torch" if stage == "import" else f"the training step: {stage}")

    driver = before.driver
    # Where the driver has already kept us waiting for its full time, torch gets a last chance.
    hung = driver.nvml.hung or driver.libcuda.hung or driver.smi.hung
    try:
        looked = run_smoke(
            host,
            python,
            mode="full" if look.depth == "full" else "import",
            device=look.device,
            ranks=look.ranks,
            compiles=look.compiles,
            gpus=before.gpus,
            timeout_s=_limit(look, fast_s=60.0, full_s=8.0 if hung else 180.0),
            on_line=begin_stage,
        )
    finally:
        shown.now(None)
    return _with_versions(host, _of_here(host, looked, before) or looked, before)


def _of_here(host: Host, looked: Looked, before: Machine) -> Looked | None:
    """A torch that lies in the current folder is found by name, and not by an import elsewhere."""
    imported = looked.facts.get("torch.imported")
    error = (imported.error if imported else None) or ""
    entry, users = os.path.split(before.torch.path or "")[0], absolute(host, ".")
    path = host.env.get("PYTHONPATH", "")
    named = {absolute(host, folder) for folder in path.split(os.pathsep) if path}
    if "No module named 'torch'" not in error or entry not in {users, *named}:
        return None
    if entry in children.folders_outside(children.path_folders(path), users):
        return None
    why = f"torch is in {entry}, but cudadoctor never runs code from the current folder; start "
    why += f"cudadoctor in another folder with PYTHONPATH={entry}"
    return Looked(gaps=tuple(Gap(fact=fact, why=why) for fact in ("torch.imported", "smoke")))


def _with_versions(host: Host, looked: Looked, before: Machine) -> Looked:
    """A process tells paths only: whose the mapped libraries are, and which versions, is read."""
    mapped = looked.facts.get("libraries.mapped") or ()
    if not mapped or host.system != "Linux":
        return looked
    from cudadoctor.probes.libraries import Owners, mapped_libraries

    torch, python = before.torch.path, before.python
    facts: Json = {"torch.path": torch, "python.path": python.path}
    folders = _package_folders(facts | {"python.site_packages": python.site_packages})
    owners = Owners(host, torch, folders, python.prefix, host.env)
    read = mapped_libraries(owners, (library.path for library in mapped))
    known = {library.path: library for library in read}
    facts = {"libraries.mapped": tuple(known.get(library.path, library) for library in mapped)}
    return replace(looked, facts=looked.facts | facts)


def _limit(look: Look, *, fast_s: float, full_s: float) -> float:
    own = fast_s if look.depth == "fast" else full_s
    return own if look.timeout_s is None else min(own, look.timeout_s)


# --- what the probes saw, merged into one machine -----------------------------------------------


def assembled(seen: Iterable[Looked], **own: Any) -> Machine:
    """One machine out of what each probe saw. own: facts of the examination itself (look, date).

    Raises TypeError for a path that no machine has: that is our own mistake.
    """
    machine = replace(Machine(), **own)
    given: set[str] = set()
    origins: dict[str, str] = {}
    gaps: list[Gap] = []
    for looked in seen:
        for path, value in looked.facts.items():
            machine = _with(machine, path, value)
        given |= looked.facts.keys()
        origins |= looked.origins
        gaps += looked.gaps
    # What one probe could not learn another may know.
    unknown = tuple(gap for gap in gaps if not _is_known(machine, gap.fact, given))
    return replace(machine, origins=origins, gaps=unknown)


def _with(section: Any, path: str, value: Any) -> Any:
    """The section with a value at its path; a section merges with what other probes said of it."""
    name, _, rest = path.partition(".")
    there = getattr(section, name, None)
    if rest:
        value = _with(there, rest, value)
    elif isinstance(value, Section) and isinstance(there, Section):
        known = {field: new for field, new in asdict(value).items() if new is not None}
        value = replace(there, **known)
    return replace(section, **{name: value})


def _is_known(value: Any, path: str, given: set[str]) -> bool:
    """Whether a fact is known; of a section that is always there, whether it was given whole."""
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else getattr(value, part, None)
    return path in given if isinstance(value, Section) else value is not None
