"""What paths, prompts and lists of devices tell: the system, its Python, the box, the PCI bus."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from cudadoctor.model.machine import PciGpu
from cudadoctor.reports.telling import Rank, Said

if TYPE_CHECKING:
    from cudadoctor.knowledge import Knowledge
    from cudadoctor.reports.document import Document

_PATH = "a path in the text"
_LIBRARY = re.compile(
    r"(?P<before>(?:/[\w.@+-]{1,60}){0,12}|[A-Za-z]:(?:\\[\w.@+ -]{1,60}){0,12})"
    r"[/\\][Ll]ib(?:64)?[/\\](?:python(?P<python>3\.\d{1,2}t?)[/\\])?(?P<kind>site-packages|dist-packages)[/\\]"
)
_WINDOWS_PYTHON = re.compile(
    r"\\Python\\?Python(?P<major>3)(?P<minor>\d{1,2})(?:-32)?\\|\\Python(?P<major2>3)(?P<minor2>\d{1,2})\\",
    re.I,
)
_MOST = 40
"""Frames of a traceback that are looked at."""
_CONDA = ("conda", "miniforge", "mambaforge", "micromamba")
_VENV = ("/.venv", "/venv", "\\venv", "\\.venv", "virtualenv", "/env/")
_MAC = re.compile(r"(?<![a-z])mac(?:os|book|\b)|\bapple\b|\bm[1-5] (?:pro|max|ultra)\b")
_ROOT_IN_BOX = re.compile(r"\broot@(?P<id>[0-9a-f]{12}):[/~#]")
_POD = re.compile(r"\broot@[a-z][a-z0-9-]{5,50}-[a-z0-9]{5,10}-[a-z0-9]{5}:[/~]")


def read_paths(doc: Document, _: Knowledge) -> Iterator[Said]:
    """System and Python out of the paths of tracebacks, the box out of prompts."""
    if "-packages" in doc.low:
        yield from _of_libraries(doc)
    if found := _WINDOWS_PYTHON.search(doc.flat):
        major, minor = found["major"] or found["major2"], found["minor"] or found["minor2"]
        line = doc.line_at(found.start()).number
        yield Said("python.version", Version(f"{major}.{minor}"), line, Rank.PROSE, _PATH)
        yield Said("platform.system", "Windows", line, Rank.MESSAGE, _PATH)
        if "-32" in found[0]:
            yield Said("python.bits", 32, line, Rank.MESSAGE, _PATH)
    if "root@" in doc.low:
        yield from _of_prompts(doc)


def _of_libraries(doc: Document) -> Iterator[Said]:
    told: set[str] = set()
    for number, found in enumerate(_LIBRARY.finditer(doc.flat)):
        if number >= _MOST:
            return
        line = doc.line_at(found.start()).number
        for path, value in _of_path(found["before"], found["python"], found["kind"]):
            if value == "Linux" and _of_any_unix(found, doc):
                continue
            if path not in told:
                told.add(path)
                yield Said(path, value, line, Rank.MESSAGE, _PATH)


def _of_any_unix(found: re.Match[str], doc: Document) -> bool:
    """Whether a path may be a Mac's too, and the text speaks of one."""
    if not _MAC.search(doc.low):
        return False
    cut = doc.flat[max(0, found.start() - 1) : found.start()].isalnum()
    return cut or found["before"].startswith(("/opt/", "/usr/local"))


def _of_path(before: str, python: str | None, kind: str) -> Iterator[tuple[str, Any]]:
    low = before.lower()
    if python:
        yield "python.version", Version(python.rstrip("t"))
    if re.match(r"[a-z]:", low):
        yield "platform.system", "Windows"
    elif low.startswith(("/users/", "/library/")) or "/opt/homebrew" in low:
        yield "platform.system", "Darwin"
    elif low.startswith("/"):
        yield "platform.system", "Linux"
        if low.startswith("/mnt/c/"):
            yield "platform.wsl", 2
    if any(word in low for word in _CONDA):
        yield "python.kind", "conda" if "envs" in low or "/opt/conda" in low else "conda-base"
    elif any(word in low for word in _VENV):
        yield "python.kind", "venv"
    elif kind == "dist-packages":
        yield "python.kind", "system"


def _of_prompts(doc: Document) -> Iterator[Said]:
    if found := _ROOT_IN_BOX.search(doc.flat):
        line = doc.line_at(found.start()).number
        yield Said("container.kind", "docker", line, Rank.MESSAGE, "the shell's prompt")
    elif found := _POD.search(doc.flat):
        line = doc.line_at(found.start()).number
        yield Said("container.kind", "kubernetes", line, Rank.MESSAGE, "the shell's prompt")


# --- lspci ----------------------------------------------------------------------------------------

_DEVICE = re.compile(
    r"(?P<address>(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) "
    r"(?:VGA compatible controller|3D controller|Display controller|Processing accelerators?)"
    r"(?: \[(?P<id>03\d\d|1200)\])?: (?P<rest>.{5,200})",
    re.I,
)
_IDS = re.compile(r"\[(?P<vendor>10de|1002|8086|1ab8|15ad):(?P<device>[0-9a-f]{4})\]", re.I)
_BOUND = re.compile(r"Kernel driver in use: (?P<driver>[\w-]{2,20})", re.I)
_VENDORS = {"10de": "nvidia", "1002": "amd", "8086": "intel"}
_NAMES = (
    ("nvidia", "nvidia"),
    ("advanced micro devices", "amd"),
    ("ati ", "amd"),
    ("intel", "intel"),
)


def read_lspci(doc: Document, _: Knowledge) -> Iterator[Said]:
    """GPUs on the PCI bus, and the kernel driver that owns each, as lspci lists them."""
    if "controller" not in doc.low and "accelerator" not in doc.low:
        return
    found: list[dict[str, Any]] = []
    first = 0
    for line in doc.lines:
        if len(line.text) > 400:
            continue
        if device := _DEVICE.search(line.text):
            first = first or line.number
            found.append(_device(device))
        elif found and (bound := _BOUND.search(line.text)):
            found[-1].setdefault("bound", bound["driver"].replace("_", "-"))
    if found:
        yield Said("pci", tuple(PciGpu(**one) for one in found), first, Rank.TOOL, "lspci")


def _device(found: re.Match[str]) -> dict[str, Any]:
    rest, ids = found["rest"], _IDS.search(found["rest"])
    low = rest.lower()
    named = next((vendor for word, vendor in _NAMES if word in low), "other")
    fields: dict[str, Any] = {
        "address": found["address"].lower(),
        "vendor": _VENDORS.get(ids["vendor"].lower(), "other") if ids else named,
        "device_id": ids["device"].lower() if ids else "?",
        "class_id": found["id"],
    }
    if "(rev ff)" in low:
        fields["lost"] = True
    return fields
