"""Public tables: conda-forge's files, CUDA's release notes, Docker Hub, torch's matrix."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import partial

from msgspec import Struct
from packaging.version import Version

from cudadoctor.knowledge.renewed import variant_of
from cudadoctor.knowledge.update.fetching import NotRead
from cudadoctor.knowledge.update.index import Html, decoded, text_of
from cudadoctor.knowledge.update.rows import Update
from cudadoctor.knowledge.update.torch_rows import minor_of, watched
from cudadoctor.model.machine import OptStr, StrPair
from cudadoctor.model.versions import DriverVersion, version_of

# --- conda-forge: which release with which CUDA on which platform -------------------------------

CONDA_FORGE_URL = "https://api.anaconda.org/package/conda-forge/pytorch/files"
PLATFORMS = {"linux-64": "linux_64", "linux-aarch64": "linux_aarch64", "win-64": "win_64"}

_CONDA_CUDA = re.compile(
    r"cuda-version >=(\d{1,2}\.\d{1,2}),<\d{1,2}(?:\.0a0)?|cuda_?(\d{1,2})(\d)(?!\d).*", re.ASCII
)
"""The CUDA version of a build, in its requirements or in its name."""


class _Attributes(Struct):
    subdir: str
    build: str
    depends: list[str] = []


class _File(Struct):
    version: str
    attrs: _Attributes


def conda_forge(update: Update) -> None:
    """Releases and CUDA versions that the tables lack."""
    listed = defaultdict(set)
    for file in decoded(update.get(CONDA_FORGE_URL), list[_File], CONDA_FORGE_URL):
        build, platform = file.attrs.build, PLATFORMS.get(file.attrs.subdir)
        version = version_of(file.version)
        # A requirement knows better than a name.
        found = map(_CONDA_CUDA.fullmatch, (*file.attrs.depends, build))
        cuda = next(filter(None, found), None) if build.startswith("cuda") else None
        if cuda and platform and version and not version.is_prerelease:
            listed[file.version].add(f"{platform}:{cuda[1] or f'{cuda[2]}.{cuda[3]}'}")
    if not listed:
        raise NotRead(f"{CONDA_FORGE_URL!a} lists no CUDA build of pytorch.")
    oldest = min(Version(row["torch"]) for row in update.tables["conda"]["conda_forge"])
    enter = partial(update.enter, "conda-forge", CONDA_FORGE_URL, "conda.conda_forge")
    for torch, builds in listed.items():
        if Version(torch) >= oldest:
            enter({"torch": torch}, {"cuda": builds})


# --- NVIDIA's release notes: the driver that belongs to each toolkit ----------------------------

CUDA_NOTES_URL = "https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/index.html"

_RELEASE = re.compile(r"(?i)CUDA (\d{1,2}\.\d{1,2})(?:\.\d{1,2})?(?: (?:GA|Update (\d{1,2})))?")
_FLOOR = re.compile(r">= ?(\d{3}(?:\.\d{1,3}){1,2})", re.ASCII)


def cuda_notes(update: Update) -> None:
    """Drivers of toolkits that the tables lack; a contradiction is only remarked."""
    listed = list(_drivers(Html(update.get(CUDA_NOTES_URL), CUDA_NOTES_URL).rows))
    if not listed:
        raise NotRead(f"{CUDA_NOTES_URL!a} has no table of toolkits and drivers.")
    known = {row["toolkit"]: row for row in update.tables["drivers"]["toolkits"]}
    minors = {minor_of(name) for name in known}
    levels: dict[int, list[str]] = defaultdict(list)
    enter = partial(update.enter, "cuda-notes", CUDA_NOTES_URL, "drivers.toolkits", fills=True)
    for toolkit, linux, windows in listed:
        row = known.get(toolkit)
        if row is None and toolkit.endswith(".0") and minor_of(toolkit) in minors:
            continue  # the first release of a minor need not have been its .0
        if row and row["linux"] and DriverVersion(row["linux"]) != DriverVersion(linux):
            update.remarks.append(
                f"The release notes of CUDA {toolkit} name driver {linux}, "
                f"the tables {row['linux']}."
            )
        else:
            levels[DriverVersion(linux).branch].append(minor_of(toolkit))
        guessed = {} if row else {"uncertain": True}
        enter({"toolkit": toolkit}, {"linux": linux, "windows": windows, **guessed})
    _enter_branches(update, levels)


def _enter_branches(update: Update, levels: Mapping[int, Iterable[str]]) -> None:
    """The branches newer than the tables: each runs the newest CUDA that it came with.

    Whether a branch still gets updates the notes do not say, so it is no target of an upgrade yet.
    """
    newest = update.tables["drivers"]["branches"][0]["branch"]
    enter = partial(update.enter, "cuda-notes", CUDA_NOTES_URL, "drivers.branches")
    for branch, cuda in levels.items():
        if branch > newest:
            enter({"branch": branch}, {"cuda": max(cuda, key=Version)})


def _drivers(rows: list[list[str]]) -> Iterator[tuple[str, str, OptStr]]:
    """Toolkit, its oldest driver on Linux and on Windows, None not named; CUDA 12 and later."""
    for cells in rows:
        name, *texts = [" ".join(cell.split()) for cell in cells] or [""]
        release, floors = _RELEASE.fullmatch(name), [*map(_FLOOR.fullmatch, texts[:2]), None, None]
        if release and floors[0] and int(release[1].partition(".")[0]) > 11:
            windows = floors[1] and floors[1][1]
            yield f"{release[1]}.{release[2] or 0}", floors[0][1], windows


# --- Docker Hub: tags of nvidia/cuda, page by page ----------------------------------------------

DOCKER_HUB_URL = "https://hub.docker.com/v2/repositories/nvidia/cuda/tags?page_size=100"
MOST_PAGES = 60

_TAG = re.compile(
    r"(\d{1,2}\.\d{1,2}\.\d{1,3})"
    r"-((?:cudnn\d?-|tensorrt-)?(?:base|runtime|devel))"
    r"-([a-z]{2,20}\d[\d.]{0,7})",
    re.ASCII,
)


class _Tag(Struct):
    name: str


class TagPage(Struct):
    """One page of tags. next: the address of the page after it, None for the last."""

    results: list[_Tag]
    next: OptStr = None


def docker_hub(update: Update) -> None:
    """Tags that the tables lack, out of all pages. A tag that is gone stays in them."""
    listed: dict[StrPair, set[str]] = defaultdict(set)
    url: OptStr = DOCKER_HUB_URL
    for _ in range(MOST_PAGES):
        if url is None:
            break
        page = decoded(update.get(url), TagPage, url)
        url = page.next
        for tag in filter(None, (_TAG.fullmatch(tag.name) for tag in page.results)):
            listed[tag[1], tag[3]].add(tag[2])
    if url or not listed:
        why = "has no last page" if url else "lists no tag of a CUDA release"
        raise NotRead(f"{DOCKER_HUB_URL!a} {why}.")
    enter = partial(update.enter, "docker-hub", DOCKER_HUB_URL)
    for (cuda, distro), flavours in listed.items():
        enter("images.tags", {"cuda": cuda, "distro": distro}, {"flavours": flavours})
    newest = max((cuda for cuda, _ in listed), key=Version)
    if Version(newest) > Version(update.tables["images"]["complete_to"]):
        enter("images", {}, {"complete_to": newest})


# --- torch's RELEASE.md: CUDA versions per minor release; announced, not seen --------------------

RELEASE_MATRIX_URL = "https://raw.githubusercontent.com/pytorch/pytorch/main/RELEASE.md"

_CUDA = re.compile(r"CUDA (\d{1,2}\.\d)\b(?: ?\(CUDNN (\d[\d.]*\d)\))?", re.IGNORECASE | re.ASCII)


def release_matrix(update: Update) -> None:
    """Builds that are announced for the newest releases and that the tables lack."""
    announced = dict(_matrix(text_of(update.get(RELEASE_MATRIX_URL))))
    if not announced:
        raise NotRead(f"{RELEASE_MATRIX_URL!a} has no matrix of CUDA versions per release.")
    enter = partial(update.enter, "release-md", RELEASE_MATRIX_URL, "torch.builds")
    for torch in watched(update.tables):
        rows = [row for row in update.tables["torch"]["builds"] if row["torch"] == torch]
        glibc = {row["platform"]: row["glibc"] for row in reversed(rows)}
        for cuda, cudnn in announced.get(minor_of(torch), ()):
            variant = variant_of(cuda)
            known = {row["platform"] for row in rows if row["variant"] == variant}
            for platform in sorted(glibc.keys() - known - {"windows_arm64"}):
                if not platform.startswith("macos"):
                    key = {"torch": torch, "variant": variant, "platform": platform}
                    values = {"cuda": cuda, "glibc": glibc[platform]}
                    values |= {"cudnn": cudnn} if platform.startswith("linux") else {}
                    enter(key, values)


def _matrix(text: str) -> Iterator[tuple[str, list[tuple[str, OptStr]]]]:
    """Minor release -> the CUDA versions of its row, with their cuDNN."""
    columns = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if "pytorch version" in cells[0].lower():
            columns = [at for at, cell in enumerate(cells) if "cuda" in cell.lower()]
        elif columns and re.fullmatch(r"\d+\.\d+", cells[0]):
            found = [cell for at, cell in enumerate(cells) if at in columns]
            yield cells[0], [(cuda[1], cuda[2]) for cell in found for cuda in _CUDA.finditer(cell)]
