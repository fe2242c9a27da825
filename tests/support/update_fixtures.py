"""A package index in memory: the releases of the tables, and new ones as small real wheels."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
import zipfile
from pathlib import Path
from typing import Any

from packaging.version import Version

from cudadoctor.knowledge.tables import FOLDER
from cudadoctor.knowledge.update.fetching import NotRead, Page

HERE = Path(FOLDER).parent
"""The tables that the tests rest on: frozen ones."""
INDEX = "https://pypi.org/simple"
FILES = "https://files.pythonhosted.org/packages"
TAGS = {
    "linux_x86_64": "manylinux_2_28_x86_64",
    "linux_aarch64": "manylinux_2_28_aarch64",
    "macos_arm64": "macosx_14_0_arm64",
    "macos_x86_64": "macosx_10_9_x86_64",
    "windows_amd64": "win_amd64",
}
REQUIRES = (
    "filelock",
    'cuda-toolkit[cublas,cudart]==13.3.1; platform_system == "Linux"',
    'nvidia-cudnn-cu13==9.30.0.10; platform_system == "Linux"',
    'nvidia-nccl-cu13==2.31.0; platform_system == "Linux"',
    'triton~=3.10.0; platform_system == "Linux"',
)
CODE = ("sm_75", "sm_80", "sm_90", "sm_120")


class Pages:
    """Answers out of a dictionary; an address that is not in it gives no answer."""

    def __init__(self, pages: dict[str, bytes]) -> None:
        self.pages = pages
        self.asked: list[str] = []

    def get(self, url: str, part: str | None = None) -> Page:
        self.asked.append(url)
        if url not in self.pages:
            raise NotRead(f"{url!a} could not be read: 'no network'.")
        body = self.pages[url]
        first, last = map(int, part.split("-")) if part else (0, len(body))
        return Page(body[first : last + 1], len(body))


def tables() -> dict[str, dict[str, Any]]:
    """The tables of this package, as plain data."""
    return {path.stem: json.loads(path.read_bytes()) for path in (HERE / "tables").glob("*.json")}


def autumn() -> dict[str, dict[str, Any]]:
    """The tables without what came or became known after 2026-11-21."""
    found = tables()
    found["torch"]["collected"] = "2026-11-21"
    for table, part, column, last in (
        ("torch", "releases", "torch", "2.15.0"),
        ("torch", "builds", "torch", "2.15.0"),
        ("images", "tags", "cuda", "13.4.2"),
        ("conda", "conda_forge", "torch", "2.13.0"),
        ("drivers", "toolkits", "toolkit", "13.5.0"),
    ):
        rows = found[table][part]
        found[table][part] = [row for row in rows if Version(row[column]) <= Version(last)]
    found["images"]["complete_to"] = "13.0.0"
    unknown = {"cu132": None, "cu130": None, "cpu": None, "cu126": False}
    found["torch"]["builds"] = [
        row
        for row in found["torch"]["builds"]
        if row["torch"] != "2.15.0" or row["variant"] in unknown
    ]
    for row in found["torch"]["builds"]:
        if row["torch"] == "2.15.0" and not row["default"]:
            row["published"] = unknown[row["variant"]]
        elif (row["variant"], row["platform"]) == ("cu92", "windows_amd64"):
            row["published"] = None
    return found


def copied(folder: Path) -> Path:
    """The tables in a folder of their own."""
    shutil.copytree(HERE / "tables", folder / "tables")
    return folder


def bytes_of(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def wheel_name(name: str, release: str, python: str, platform: str) -> str:
    digits = f"cp{python.rstrip('t').replace('.', '')}"
    return f"{name}-{release}-{digits}-{digits}{'t' * python.endswith('t')}-{TAGS[platform]}.whl"


def listed(name: str, day: str, **more: object) -> dict[str, object]:
    """A file as the index's JSON lists it."""
    file = {"filename": name, "url": f"{FILES}/{name}", "upload-time": f"{day}T10:00:00.1Z"}
    return {**file, **more}


def project(*files: dict[str, object]) -> bytes:
    return json.dumps({"meta": {"api-version": "1.1"}, "name": "x", "files": files}).encode()


def torch_files() -> list[dict[str, object]]:
    """What the index must list for the tables to be right."""
    sizes = {
        (row["torch"], row["platform"]): row["bytes"]
        for row in tables()["torch"]["builds"]
        if row["default"]
    }
    return [
        listed(
            wheel_name("torch", row["torch"], python, platform),
            row["released"],
            size=sizes.get((row["torch"], platform)),
        )
        for row in tables()["torch"]["releases"]
        for platform, pythons in row["pythons"].items()
        for python in pythons
    ]


def known_pages() -> dict[str, bytes]:
    """The package index, as the tables know it."""
    pages = {f"{INDEX}/torch/": project(*torch_files())}
    rows = tables()["companions"]["releases"]
    for package in {row["package"] for row in rows}:
        files = [
            listed(f"{package.replace('-', '_')}-{row['version']}.tar.gz", "2026-01-01")
            for row in rows
            if row["package"] == package
        ]
        pages[f"{INDEX}/{package}/"] = project(*files)
    return pages


def torch_wheel(
    release: str,
    cuda: str | None,
    requires: tuple[str, ...] = REQUIRES,
    newline: str = "\n",
    code: tuple[str, ...] = CODE,
) -> bytes:
    """A wheel of torch with what an update looks at, and much that it does not."""
    local = f"+cu{cuda.replace('.', '')}" if cuda else "+cpu"
    said = ["from typing import Optional", f"__version__ = '{release}{local}'", "debug = False"]
    said += [f"cuda: Optional[str] = {cuda!r}", "hip: Optional[str] = None", ""]
    library = b"\x7fELF" + bytes(5000) + b"\0" + " ".join(code).encode() + b"\0" + bytes(900)
    members = {
        "torch/__init__.py": b"raise SystemExit\n" * 9999,
        "torch/version.py": newline.join(said).encode(),
        "torch/lib/libtorch_python.so": library if cuda else b"",
        f"torch-{release}.dist-info/METADATA": metadata("torch", release, requires),
    }
    return zipped(members)


def metadata(name: str, release: str, requires: tuple[str, ...]) -> bytes:
    lines = ["Metadata-Version: 2.4", f"Name: {name}", f"Version: {release}"]
    lines += [f"Requires-Dist: {requirement}" for requirement in requires]
    return ("\n".join(lines) + "\n\nRequires-Dist: not-one-of-them\n").encode()


def source(name: str, release: str, requires: tuple[str, ...]) -> bytes:
    """A source archive: what its PKG-INFO says, between other files."""
    told = metadata(name, release, requires)
    members = {"LICENSE": b"x" * 999, "PKG-INFO": told, f"{name}.egg-info/PKG-INFO": b"no"}
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for path, data in members.items():
            member = tarfile.TarInfo(f"{name}-{release}/{path}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return file.getvalue()


def zipped(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


NEWEST = Version(tables()["torch"]["releases"][0]["torch"])
NEW = f"{NEWEST.major}.{NEWEST.minor + 1}.0"
NEW_DAY = "2099-12-09"
NEW_CUDA = {
    "linux_x86_64": "13.3",
    "linux_aarch64": "13.3",
    "windows_amd64": None,
    "macos_arm64": None,
}


def new_pages(requires: tuple[str, ...] = REQUIRES) -> dict[str, bytes]:
    """The index after the next torch and a torchvision for it have come out."""
    pages = known_pages()
    files = []
    for platform, cuda in NEW_CUDA.items():
        for python in ("3.12", "3.13", "3.14", "3.14t"):
            name = wheel_name("torch", NEW, python, platform)
            newline = "\r\n" if platform.startswith("windows") else "\n"
            body = torch_wheel(NEW, cuda, requires, newline)
            pages[f"{FILES}/{name}"] = body
            files.append(listed(name, NEW_DAY, size=len(body)))
    pages[f"{INDEX}/torch/"] = project(*torch_files(), *files)
    vision = "torchvision-9.30.0-py3-none-manylinux_2_28_x86_64.whl"
    wanted = metadata("torchvision", "9.30.0", ("numpy", f"torch>={NEW}", 'scipy; extra == "s"'))
    pages[f"{FILES}/{vision}"] = zipped({"torchvision-9.30.0.dist-info/METADATA": wanted})
    known = json.loads(pages[f"{INDEX}/torchvision/"])["files"]
    new = listed(vision, NEW_DAY, **{"requires-python": ">=3.12"})
    pages[f"{INDEX}/torchvision/"] = project(*known, new)
    return pages


ROOT = "https://download.pytorch.org/whl"


def html(*names: str) -> bytes:
    """A page of links, as an index without JSON hands it out."""
    links = "".join(f'<a href="{name.replace("+", "%2B")}">{name}</a><br/>\n' for name in names)
    return f"<!DOCTYPE html>\n<html><body>\n{links}</body></html>\n".encode()


# A release of torch as a file of rows has it.

RELEASE: dict[str, Any] = {
    "torch": "2.99.0",
    "released": "2099-01-01",
    "pythons": {"linux_x86_64": ["3.12"]},
    "torchvision": "0.99.0",
    "torchaudio": None,
    "torchtext": None,
    "sources": ["seen.pypi"],
}
BUILD: dict[str, Any] = {
    "torch": "2.99.0",
    "variant": "cu130",
    "platform": "linux_x86_64",
    "cuda": "13.0",
    "toolkit": "13.0.3",
    "cudnn": "9.30.0.1",
    "published": True,
    "archs": ["sm_80", "sm_90", "sm_120"],
    "uncertain": False,
    "contested": [],
    "glibc": "2.28",
    "default": True,
    "bytes": 5,
    "sources": ["seen.pypi"],
}


def rows(**build: Any) -> dict[str, dict[str, Any]]:
    """A new release with one build, and what differs of it."""
    return {"torch": {"releases": [RELEASE], "builds": [{**BUILD, **build}]}}
