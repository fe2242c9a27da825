"""Lists of Python packages as pip, uv, conda and poetry print them.

A row alone proves less than a list: one `torch==2.1.0` on a line may be a requirement. Rows count
as a list behind a list's head, behind the command that prints it, or where several stand together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from packaging.version import Version

from cudadoctor.model.machine import Distribution
from cudadoctor.reports import values
from cudadoctor.reports.document import Document
from cudadoctor.reports.telling import Rank, Said

MOST = 600
"""Packages that are kept of one list."""

KNOWN = re.compile(
    r"torch(vision|audio|text|data|rec|metrics|ao|tune|sde|diffeq|-\w+)?|pytorch(-\w+)*|triton(-\w+)*"
    r"|xformers|flash[-_]attn|numpy|nvidia[-_](?!smi\b)[\w-]+|cuda[-_][\w-]+|cudatoolkit|cudnn|cupy[\w-]*|nccl"
    r"|(lib)?(cublas|cufft|curand|cusolver|cusparse|nvjitlink)[\w-]*|vllm|sglang|deepspeed|accelerate"
    r"|transformers|diffusers|bitsandbytes|apex|mmcv[\w-]*|detectron2|tensorflow[\w-]*|jax(lib)?"
    r"|auto[-_]gptq|autoawq|exllamav2|onnxruntime[\w-]*|numba|cpuonly|libtorch|peft|sentence-transformers"
    r"|lightning|fastai|ultralytics|unsloth[\w-]*|intel[-_]\w+|magma[\w-]*",
    re.I,
)
"""Names that a row without any list around it must have."""

_FREEZE = re.compile(
    r"\s{0,8}([A-Za-z0-9][\w.-]{0,80})(?:\[[\w,-]{1,60}\])?={2,3}([0-9][\w.+!*-]{0,60})"
    r"\s*(?:[;#\\].{0,300})?$"
)
_DIRECT = re.compile(r"\s{0,8}([A-Za-z0-9][\w.-]{0,80}) @ (\S{4,400})\s*$")
_ROW = re.compile(
    r"[\s│├└─|*+-]{0,20}([A-Za-z0-9][\w.-]{0,80})(?:\[[\w,-]{1,60}\])?"
    r"[ \t|]{1,80}v?([0-9][\w.+!-]{0,60})"
    r"(?:[ \t|]{1,60}(\S.{0,300}))?\s*$"
)
_WHEEL = re.compile(
    r"(?<![\w.])([A-Za-z][\w.]{0,60}?)-(\d[\w.!]{0,40}(?:(?:\+|%2B)[\w.]{1,40})?)-(?:(\d\w{0,10})-)?"
    r"((?:cp|py|pp)\w{1,20}(?:\.\w{1,10}){0,3})-(\w{2,20})-([\w.]{3,80})\.whl",
    re.I,
)


class Row(NamedTuple):
    """A package as a list shows it. place: of its line among the lines."""

    one: Distribution
    place: int
    build: str = ""


def distribution(
    name: str, version: str, location: str | None = None, installer: str | None = None
) -> Distribution:
    """A distribution by its normalised name, with what its version tells of its build."""
    name = re.sub(r"[-_.]+", "-", name).lower().strip("-")
    name = "torch" if name == "pytorch" else name
    tag = version.partition("+")[2].lower()
    torch = re.search(r"torch(\d\.\d{1,2})(?!\d)", tag)
    return Distribution(
        name=name,
        version=version,
        location=location,
        installer=installer,
        cuda=_cuda(tag) if name != "torch" else None,
        torch=Version(torch[1]) if torch else None,
    )


def _cuda(tag: str) -> Version | None:
    """cu118 is 11.8, cu12 the whole major."""
    major = re.match(r"cu(\d\d)(?!\d)", tag)
    if major and int(major[1]) in range(10, 20):
        return Version(major[1])
    return values.cuda_of_tag(tag)


def said_of(rows: list[Row], doc: Document, rank: Rank, source: str) -> Iterator[Said]:
    """The packages, and what the one that is torch tells."""
    if not rows:
        return
    line = doc.lines[rows[0].place].number
    yield Said("packages", tuple(row.one for row in rows[:MOST]), line, rank, source)
    for row in rows:
        if row.one.name == "torch":
            where = doc.lines[row.place].number
            for path, value in (*values.torch_facts(row.one.version), *build_of_conda(row.build)):
                yield Said(path, value, where, rank, source)
            if row.one.installer == "conda":
                yield Said("torch.installer", "conda", where, rank, source)


def build_of_conda(build: str) -> values.Pairs:
    """The build of conda's torch: py3.9_cuda11.3_cudnn8.2.0_0, cpu_mkl_py311h..._100."""
    low = build.lower()
    dotted = re.search(r"cuda(\d{1,2}\.\d{1,2})", low)
    tag = re.search(r"cuda(\d{2,3})(?=_|py|$)", low)
    if dotted or tag:
        text = dotted[1] if dotted else f"{tag[1][:-1]}.{tag[1][-1]}" if tag else ""
        return (("torch.build", "cuda"), ("torch.cuda", Version(text)))
    if "cuda" in low or low.startswith("gpu_"):
        return (("torch.build", "cuda"),)
    return (("torch.build", "cpu"),) if re.search(r"(?:^|_)cpu", low) else ()


# --- rows --------------------------------------------------------------------------------------


def freeze_row(text: str, index: int) -> Row | None:
    """A line of pip freeze: name==version, or name @ address of a wheel."""
    if "==" in text:
        found = _FREEZE.match(text)
        return Row(distribution(found[1], found[2]), index) if found else None
    direct = _DIRECT.match(text) if " @ " in text else None
    if direct is None:
        return None
    wheel = wheel_in(direct[2])
    version = wheel[1] if wheel else None
    return Row(distribution(direct[1], version), index) if version else None


def wheel_in(text: str) -> tuple[str, str, str, str] | None:
    """Name, version, Python tag and platform tag of the file name of a wheel in a text."""
    found = _WHEEL.search(text) if ".whl" in text else None
    if found is None:
        return None
    return found[1], re.sub("%2b", "+", found[2], flags=re.I), found[4], found[6]


def list_row(text: str, index: int) -> Row | None:
    """A row of pip list, uv pip list, uv pip tree or poetry show."""
    found = _ROW.match(text)
    if found is None or values.version_of(found[2]) is None:
        return None
    place = (found[3] or "").strip()
    location = place if re.match(r"/|[A-Za-z]:\\", place) else None
    return Row(distribution(found[1], found[2], location), index)


CONDA_NAMES = {"pytorch": "torch", "pytorch-gpu": "", "pytorch-cpu": "", "libtorch": "libtorch"}


def conda_row(text: str, index: int) -> Row | None:
    """A row of conda list: name, version, build, channel."""
    words = text.split()
    if not 2 <= len(words) <= 5 or not words[1][:1].isdigit():
        return None
    name, version, build = words[0], words[1], words[2] if len(words) > 2 else ""
    if not re.fullmatch(r"[A-Za-z0-9_][\w.-]{0,80}", name) or values.version_of(version) is None:
        return None
    pip = build.startswith("pypi_") or words[-1] == "pypi" or build == "<pip>"
    name = name if pip else CONDA_NAMES.get(name, name)
    installer = "pip" if pip else "conda"
    if not name:
        return None
    return Row(distribution(name, version, None, installer), index, "" if pip else build)
