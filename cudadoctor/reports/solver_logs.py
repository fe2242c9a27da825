"""Logs of the programs that resolve before they install: uv, poetry, conda and mamba."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cudadoctor.reports.document import Document


class Piece(NamedTuple):
    """A part of a log: where it begins in the flat text, whose it is, and the fields it tells."""

    place: int
    tool: str
    fields: dict[str, Any]


def name_of(requirement: str) -> str:
    found = re.match(r"[\w.-]+", requirement)
    return found[0].lower().replace("_", "-") if found else ""


def ours(requirement: str) -> bool:
    """Whether a requirement of conda is torch, a companion of it, or a library of NVIDIA's."""
    return re.match(r"(?:[\w.-]+::)?(?:py)?torch|cuda|nvidia", requirement) is not None


_UV_NONE = re.compile(
    r"because (?:there (?:is|are) no versions? of (?P<a>[\w.-]{2,60}(?:\{[^}]{1,200}\})?"
    r"(?:==[\w.+*]{1,40})?)|(?P<b>[\w.-]{2,60}) was not found in the (?:package registry|cache|"
    r"provided package locations))"
)
_UV_LIST = re.compile(
    r"(?:only (?:the following versions of )?(?P<what>[\w.-]{2,60}(?:\{[^}]{1,200}\})?) "
    r"(?:is|are) available:? ?|only (?P<one>[\w.-]{2,60})(?P<op><=?|>=?|==)(?P<bound>[\w.+]{1,40}) "
    r"is available)"
    r"(?P<list>(?:[\w.-]{2,60}(?:\{[^}]{1,200}\})?(?:==|<=|>=|<|>)[\w.+,<>=]{1,40} ){0,80})"
)
_UV_PYTHON = re.compile(
    r"does not satisfy python[<>=\d., ]{2,30} and (?P<what>torch(?:vision|audio)?"
    r"(?:[=<>]{1,2}[\w.+,<>=]{1,60})?) depends on python"
)
_UV_TAG = re.compile(
    r"(?P<what>[\w.-]{2,60}(?:\{[^}]{1,200}\})?(?:[=<>]=?[\w.+,<>=]{1,60})?) has no "
    r"(?:wheels with a matching (?P<kind>python abi|python version|python implementation|platform)"
    r" tag|wheels (?P<usable>are usable|for the current platform))"
)
_UV_HINT = re.compile(
    r"(?:wheels are (?:only )?available for |we only found wheels for |but )"
    r"'?(?P<what>[\w.-]{2,60})'?"
    r" \(v(?P<version>[\w.+]{1,40})\) (?:only has wheels )?(?:on|with|for) the following "
    r"(?P<kind>platforms?|python abi tags?|python implementation tags?|python version tags?): "
    r"(?P<tags>(?:'?[\w.]{2,40}'?(?:,? |$)){1,40})"
)
UV_HERE = re.compile(
    r"you require (?P<name>cpython|pypy)? ?(?P<python>3\.\d{1,2})|"
    r"you're (?:on|using) (?P<os>[^,;]{2,40}?) \('?(?P<platform>[\w.]{4,40})'?\)"
    r"|you're using cpython (?P<using>3\.\d{1,2})"
)
_UV_WANTED = re.compile(
    r"(?:you require|depends on|requires) (?P<what>(?:torch|torchvision|torchaudio|triton|xformers)"
    r"(?:\{[^}]{1,200}\})?(?:[=<>~!]{1,2}[\w.+*,<>=~!]{1,60})?)(?=[ ,]|$)"
)
_UV_LOCKED = re.compile(
    r"distribution '?(?P<what>[\w.-]{2,60}==[\w.+]{1,40})"
    r" @ registry\+(?P<index>\S{8,200}?)'? can't be "
    r"installed because it doesn't have a source distribution or wheel for the current platform"
)
_POETRY = re.compile(
    r"unable to find installation candidates for (?P<what>[\w.-]{2,60}) "
    r"\((?P<version>[\w.+]{1,40})\)"
    r"|depends on (?P<name>[\w.-]{2,60}) \((?P<spec>[^()]{1,60})\) which doesn't match any versions"
    r"|(?:because|and) no versions of (?P<other>[\w.-]{2,60}) match "
    r"(?P<range>[\w.+<>=!,^~* ]{1,60})"
)
_STILL_PYTHON = re.compile(
    r"(?P<what>torch(?:vision|audio|text)?) requires python (?P<range>[<>=!][\w.<>=!, ]{1,40})"
    r",? so it will not"
)
_CONDA_GONE = re.compile(
    r"(?:packagesnotfounderror: |the following packages (?:are not available|are missing))"
    r"[^-]{0,200}"
    r"((?:- [\w.:-]{2,60}[=<>!\[][^ ]{0,60} |- [\w.:-]{2,60} ){1,20})"
    r"(?:current channels: ((?:- \S{8,120} ?){1,20}))?"
)
_MAMBA_GONE = re.compile(
    r"nothing provides (?:requested )?(?P<a>[a-z][\w.-]{1,60}(?:[ =<>]{1,3}[\w.*=<>|+-]{1,60})?)"
    r"|(?P<b>[a-z][\w.-]{1,60}(?:[ =<>]{1,3}[\w.*=<>|+-]{1,60}){0,2}),? (?:which )?does not exist"
)
CONDA_PYTHON = re.compile(r"your python: python=?=?(?P<python>3\.\d{1,2}|2\.7)")
_CONDA_SPEC = re.compile(
    r"- (?P<what>(?:pytorch|torchvision|torchaudio|pytorch-cuda|pytorch-gpu)"
    r"[=<>\[ \w.*'-]{0,80}?) -> python"
)


_EXTRA = re.compile(r"\{[^}]{1,200}\}")


def uv_refusals(doc: Document) -> Iterator[Piece]:
    for found in _UV_NONE.finditer(doc.low):
        what = _EXTRA.sub("", found["a"] or found["b"])
        lacks = "release" if "==" in what else None
        yield Piece(found.start(), "uv", {"refused": what, "lacks": lacks, "failed": True})
    for found in _UV_LIST.finditer(doc.low):
        what = _EXTRA.sub("", found["what"] or found["one"])
        listed = re.findall(r"==([\w.+]{1,40})", found["list"] or "")
        listed += [found["bound"]] if found["bound"] and "=" in found["op"] else []
        wanted = _UV_WANTED.search(doc.low, found.end())
        if wanted and name_of(wanted["what"]) == name_of(what):
            what = _EXTRA.sub("", wanted["what"]).rstrip(",")
        # uv lists all versions of an index, whatever the Python.
        told: dict[str, Any] = {"refused": what, "offered": tuple(listed), "lacks": "release"}
        yield Piece(found.start(), "uv", told | {"failed": True})
    for found in _UV_PYTHON.finditer(doc.low):
        fields: dict[str, Any] = {"refused": found["what"], "lacks": "python", "failed": True}
        yield Piece(found.start(), "uv", fields)
    for found in _UV_TAG.finditer(doc.low):
        lacks = "platform" if found["kind"] == "platform" else "python" if found["kind"] else None
        what = _EXTRA.sub("", found["what"])
        yield Piece(found.start(), "uv", {"refused": what, "lacks": lacks, "failed": True})
    for found in _UV_HINT.finditer(doc.low):
        tags = tuple(tag.strip("', ") for tag in found["tags"].split() if len(tag) > 3)
        lacks = "platform" if "platform" in found["kind"] else "python"
        what = f"{found['what']}=={found['version']}"
        fields = {"refused": what, "made_for": tags, "lacks": lacks, "failed": True}
        yield Piece(found.start(), "uv", fields)
    for found in _UV_LOCKED.finditer(doc.low):
        fields = {"refused": found["what"], "failed": True, "looked": (found["index"],)}
        yield Piece(found.start(), "uv", fields)


def poetry_refusals(doc: Document) -> Iterator[Piece]:
    for found in _POETRY.finditer(doc.low):
        name = found["what"] or found["name"] or found["other"]
        spec = found["version"] or found["spec"] or found["range"] or ""
        plain = re.fullmatch(r"[\w.+]+", spec)
        what = f"{name}=={spec}" if plain else f"{name}{spec}" if spec[:1] in "<>=!" else name
        lacks = None if found["what"] else "release"  # its list of versions is of every Python
        yield Piece(found.start(), "poetry", {"refused": what, "lacks": lacks, "failed": True})
    for found in _STILL_PYTHON.finditer(doc.low):
        yield Piece(found.start(), "poetry", {"refused": found["what"], "lacks": "python"})


def conda_refusals(doc: Document) -> Iterator[Piece]:
    for found in _CONDA_GONE.finditer(doc.low):
        names = [one.strip(" -") for one in found[1].split(" - ")]
        first = sorted((one for one in names if one), key=ours, reverse=True)[0]
        channels = tuple(re.findall(r"- (\S{8,120})", found[2] or ""))
        fields: dict[str, Any] = {"refused": first, "failed": True, "offered": ()}
        if channels:
            fields["looked"] = channels
        yield Piece(found.start(), "conda", fields)
    for found in _MAMBA_GONE.finditer(doc.low):
        what = (found["a"] or found["b"]).replace(" ", "=").rstrip("=-*")
        if ours(what):
            fields = {"refused": what, "failed": True, "lacks": "release"}
            yield Piece(found.start(), "conda", fields)
    if CONDA_PYTHON.search(doc.low):
        for found in _CONDA_SPEC.finditer(doc.low):
            fields = {"refused": found["what"].strip(), "failed": True, "lacks": "python"}
            yield Piece(found.start(), "conda", fields)


_CONDA_BUILD = re.compile(
    r"(?:^|[\s:/+])(?P<name>pytorch|torchvision|torchaudio|pytorch-cuda|cudatoolkit|cpuonly|libtorch|"
    r"pytorch-gpu|pytorch-cpu|pytorch-mutex|libcusparse|cuda-cudart)[-\s]+(?P<version>\d[\w.]{0,20})"
    r"[-\s|]+(?P<build>[\w.*]{1,60})"
)


def conda_builds(doc: Document) -> Iterator[Piece]:
    """What a solver chose: pytorch-2.1.0 | py3.11_cuda12.1_cudnn8_0, + pytorch 2.0.1 cpu_py310."""
    put, first = [], -1
    for line in doc.lines:
        found = _CONDA_BUILD.search(line.text) if "torch" in line.text or "c" in line.text else None
        if found and re.search(r"py|cuda|cpu|_\d$|^h?[0-9a-f]{6,}|^\d$", found["build"]):
            put.append(f"{found['name']}=={found['version']}={found['build']}")
            first = line.number if first < 0 else first
    if put:
        yield Piece(_place(doc, first), "conda", {"installed": tuple(dict.fromkeys(put))})


def _place(doc: Document, number: int) -> int:
    index = next((i for i, line in enumerate(doc.lines) if line.number == number), 0)
    return doc.flat.find(" ".join(doc.lines[index].text.split()))
