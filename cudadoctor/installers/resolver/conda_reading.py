"""conda's, mamba's and micromamba's words for a dry run, and what their JSON says."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from cudadoctor.installers.resolver.reading import bare_url, named_host
from cudadoctor.installers.resolver.verdict import Answer, File

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cudadoctor.model.findings import PackageChange
    from cudadoctor.model.machine import Machine

_UNREACHED = re.compile(
    r"CondaHTTPError|CondaSSLError|ProxyError|ConnectionFailed|Max retries exceeded|OfflineError"
    r"|HTTP (?:000|40[137]|407|5\d\d)|Could not (?:connect|resolve host)|Download error"
    r"|[Cc]onnection (?:refused|timed out)|Failed to (?:download|connect)|No route to host"
)
_UNSATISFIED = re.compile(r"Unsatisfiable|PackagesNotFound|ResolvePackageNotFound|NothingProvides")
_MARKS = re.compile(r"[├└│─═▶]+")
_SUBDIR = {
    ("Linux", "x86_64"): "linux-64",
    ("Linux", "aarch64"): "linux-aarch64",
    ("Windows", "x86_64"): "win-64",
    ("Darwin", "arm64"): "osx-arm64",
    ("Darwin", "aarch64"): "osx-arm64",
    ("Darwin", "x86_64"): "osx-64",
}


def subdir(m: Machine) -> str | None:
    """conda's name for the platform, None where it has none."""
    return _SUBDIR.get((m.platform.system or "", m.platform.machine or ""))


def argv(
    program: str, wanted: tuple[str, ...], m: Machine, nowhere: str, *, here: bool
) -> tuple[str, ...]:
    """A dry run in the environment, or of a new one beside the Python that is known of it.

    wanted: the options that name the channels, and the packages. here: it is conda's and on this
    machine. nowhere: a prefix that is not there; a dry run does not make it.
    """
    # The pytorch channel has no Python: that comes from the configured channels.
    alone = ("--override-channels",) if "conda-forge" in wanted else ()
    dry = ("--dry-run", "--json", *alone)
    if here and m.python.prefix:
        return (program, "install", "-p", m.python.prefix, *dry, *wanted)
    python = m.python.version
    pin = (f"python={python.major}.{python.minor}",) if python else ()
    return (program, "create", "-p", nowhere, *dry, *pin, *wanted)


def variables(m: Machine, change: PackageChange, *, here: bool) -> dict[str, str]:
    """What stands for a machine that is not this one."""
    found = {"CONDA_ALWAYS_YES": "false"}
    if change.cuda:
        found["CONDA_OVERRIDE_CUDA"] = str(m.driver.cuda or change.cuda)
    if not here:
        if name := subdir(m):
            found["CONDA_SUBDIR"] = name
        if m.platform.glibc:
            found["CONDA_OVERRIDE_GLIBC"] = str(m.platform.glibc)
    return found


def read(stdout: str, stderr: str) -> Answer:
    """What the JSON of a dry run says."""
    said = _document(stdout)
    text = _reason(said) or stderr
    if said.get("success") is True or (said.get("actions") and not said.get("error")):
        return Answer(kind="resolved", files=tuple(_chosen(said.get("actions"))))
    whole = f"{said.get('exception_name', '')} {text}"
    if _UNREACHED.search(whole):
        return Answer(kind="unreached", host=named_host(whole))
    if said.get("solver_problems") or _UNSATISFIED.search(whole):
        return Answer(kind="refused", text=" ".join(_MARKS.sub(" ", text).split()))
    return Answer(kind="unfit", text=" ".join(text.split())[-200:])


def _document(stdout: str) -> dict[str, Any]:
    """The JSON object in the output; {} where there is none."""
    start = stdout.find("{")
    try:
        found: Any = msgspec.json.decode(stdout[start:]) if start >= 0 else {}
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _reason(said: dict[str, Any]) -> str:
    problems = said.get("solver_problems")
    if isinstance(problems, list) and problems:
        return "; ".join(str(one) for one in problems)
    return str(said.get("message") or said.get("error") or "")


def _chosen(actions: Any) -> Iterator[File]:
    if not isinstance(actions, dict):
        return
    for row in actions.get("FETCH") or actions.get("LINK") or ():
        if isinstance(row, dict) and "name" in row:
            size = row.get("size")
            yield File(
                url=bare_url(str(row.get("url") or "")),
                name=str(row["name"]),
                version=str(row.get("version") or ""),
                sha256=row.get("sha256") if isinstance(row.get("sha256"), str) else None,
                size_bytes=size if isinstance(size, int) else None,
            )
