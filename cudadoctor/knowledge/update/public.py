"""Public tables -> rows: conda-forge's files, CUDA's release notes, Docker Hub, torch's matrix."""

import re
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser

import msgspec
from packaging.version import Version

from cudadoctor.knowledge.update.fetching import Fetcher
from cudadoctor.knowledge.update.index import Unreadable, decoded, fed, text_of
from cudadoctor.knowledge.update.rows import Reading, Row, Tables, build_row, row_of
from cudadoctor.knowledge.update.torch_rows import WATCHED, minor_of, variant_of
from cudadoctor.model.versions import DriverVersion, version_of

# --- conda-forge: which release with which CUDA on which platform -------------------------------

CONDA_FORGE = "conda-forge"
CONDA_FORGE_URL = "https://api.anaconda.org/package/conda-forge/pytorch/files"
PLATFORMS = {"linux-64": "linux_64", "linux-aarch64": "linux_aarch64", "win-64": "win_64"}


class _Attributes(msgspec.Struct):
    subdir: str
    build: str
    depends: list[str] = []


class _File(msgspec.Struct):
    version: str
    attrs: _Attributes


def conda_forge(body: bytes, tables: Tables, url: str = CONDA_FORGE_URL) -> Reading:
    """Releases and CUDA versions that the tables lack."""
    listed: dict[str, set[str]] = {}
    for file in decoded(body, list[_File], f"{url!a}"):
        cuda, platform = _conda_cuda(file.attrs), PLATFORMS.get(file.attrs.subdir)
        version = version_of(file.version)
        if cuda and platform and version and not version.is_prerelease:
            listed.setdefault(file.version, set()).add(f"{platform}:{cuda}")
    if not listed:
        raise Unreadable(f"{url!a} lists no CUDA build of pytorch.")
    oldest = min(Version(row["torch"]) for row in tables["conda"]["conda_forge"])
    rows = (
        Row(
            table="conda.conda_forge",
            key={"torch": torch},
            values={"cuda": found},
            source=CONDA_FORGE,
            url=url,
        )
        for torch, found in listed.items()
        if Version(torch) >= oldest
    )
    return Reading(rows=tuple(_widened(tables, row) for row in rows))


def _conda_cuda(attributes: _Attributes) -> str | None:
    """The CUDA version of a build, by its requirement, else by its name; None for a CPU build."""
    if not attributes.build.startswith("cuda"):
        return None
    version = r"cuda-version >=([0-9]{1,2}\.[0-9]{1,2}),<[0-9]{1,2}(?:\.0a0)?"
    for wanted in attributes.depends:
        if found := re.fullmatch(version, wanted):
            return found[1]
    named = re.match(r"cuda_?([0-9]{2,3})(?![0-9])", attributes.build)
    return f"{named[1][:-1]}.{named[1][-1]}" if named else None


def _widened(tables: Tables, row: Row) -> Row:
    """The row with what its lists hold in the tables too: a place that forgets is no news."""
    name, _, part = row.table.partition(".")
    there = row_of(tables[name][part], row.key) or {}
    values = {
        column: sorted({*found, *there.get(column, ())}) for column, found in row.values.items()
    }
    return msgspec.structs.replace(row, values=values)


# --- NVIDIA's release notes: the driver that belongs to each toolkit ----------------------------

CUDA_NOTES = "cuda-notes"
CUDA_NOTES_URL = "https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/index.html"

_RELEASE = re.compile(
    r"CUDA (\d{1,2}\.\d{1,2})(?:\.\d{1,2})?(?: (?:GA|Update (\d{1,2})))?", re.IGNORECASE
)
_FLOOR = re.compile(r">= ?(\d{3}(?:\.\d{1,3}){1,2})", re.ASCII)


class _Cells(HTMLParser):
    """The cells of every row of every table."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: object) -> None:  # noqa: ARG002
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th") and self.rows:
            self.rows[-1].append("")
        self._inside = self._inside or tag in ("td", "th")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th", "tr", "table"):
            self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside and self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


def cuda_notes(body: bytes, tables: Tables, url: str = CUDA_NOTES_URL) -> Reading:
    """Drivers of toolkits that the tables lack; a contradiction is only remarked."""
    page = _Cells()
    fed(page, body, f"{url!a}")
    listed = dict(_drivers(page.rows))
    if not listed:
        raise Unreadable(f"{url!a} has no table of toolkits and drivers.")
    known = {row["toolkit"]: row for row in tables["drivers"]["toolkits"]}
    minors = {minor_of(name) for name in known}
    rows, remarks = [], []
    for toolkit, (linux, windows) in listed.items():
        there = known.get(toolkit)
        if there is None and toolkit.endswith(".0") and minor_of(toolkit) in minors:
            continue  # the first release of a minor need not have been its .0
        if there and there["linux"] and DriverVersion(there["linux"]) != DriverVersion(linux):
            remarks.append(
                f"The release notes of CUDA {toolkit} name driver {linux}, "
                f"the tables {there['linux']}."
            )
        values: dict[str, object] = {"linux": linux}
        if there is None:
            values |= {"windows": windows, "bundled": None, "uncertain": True}
        elif windows:
            values["windows"] = windows
        rows.append(
            Row(
                table="drivers.toolkits",
                key={"toolkit": toolkit},
                values=values,
                source=CUDA_NOTES,
                url=url,
                fills=True,
            )
        )
    return Reading(rows=tuple(rows), remarks=tuple(remarks))


def _drivers(rows: list[list[str]]) -> Iterator[tuple[str, tuple[str, str | None]]]:
    """Toolkit -> oldest driver on Linux and on Windows, None not named; CUDA 12 and later."""
    for cells in rows:
        texts = [" ".join(cell.split()) for cell in cells]
        release = _RELEASE.fullmatch(texts[0]) if len(texts) > 1 else None
        floors = [_FLOOR.fullmatch(text) for text in texts[1:3]]
        if release and floors[0] and int(release[1].partition(".")[0]) > 11:
            windows = floors[1][1] if len(floors) > 1 and floors[1] else None
            yield f"{release[1]}.{release[2] or 0}", (floors[0][1], windows)


# --- Docker Hub: tags of nvidia/cuda, page by page ----------------------------------------------

DOCKER_HUB = "docker-hub"
DOCKER_HUB_URL = "https://hub.docker.com/v2/repositories/nvidia/cuda/tags?page_size=100"
MOST_PAGES = 60

_TAG = re.compile(
    r"(\d{1,2}\.\d{1,2}\.\d{1,3})"
    r"-((?:cudnn\d?-|tensorrt-)?(?:base|runtime|devel))"
    r"-([a-z]{2,20}\d[\d.]{0,7})",
    re.ASCII,
)


class _Tag(msgspec.Struct):
    name: str


class TagPage(msgspec.Struct):
    """One page of tags. next: the address of the page after it, None for the last."""

    results: list[_Tag]
    next: str | None = None


def docker_hub(fetch: Fetcher, tables: Tables) -> Reading:
    """Tags that the tables lack, out of all pages."""
    names: list[str] = []
    url = DOCKER_HUB_URL
    for _ in range(MOST_PAGES):
        page = decoded(fetch.get(url).body, TagPage, f"{url!a}")
        names += [tag.name for tag in page.results]
        if page.next is None:
            return docker_tags(names, tables)
        url = page.next
    raise Unreadable(f"{DOCKER_HUB_URL!a} has no last page.")


def docker_tags(names: Iterable[str], tables: Tables, url: str = DOCKER_HUB_URL) -> Reading:
    """Tags that the tables lack. A tag that is gone stays in them."""
    listed: dict[tuple[str, str], set[str]] = {}
    for tag in filter(None, map(_TAG.fullmatch, names)):
        listed.setdefault((tag[1], tag[3]), set()).add(tag[2])
    if not listed:
        raise Unreadable(f"{url!a} lists no tag of a CUDA release.")
    rows = [
        _widened(
            tables,
            Row(
                table="images.tags",
                key={"cuda": cuda, "distro": distro},
                values={"flavours": found},
                source=DOCKER_HUB,
                url=url,
            ),
        )
        for (cuda, distro), found in listed.items()
    ]
    newest = max((cuda for cuda, _ in listed), key=Version)
    if Version(newest) > Version(tables["images"]["complete_to"]):
        values = {"complete_to": newest}
        rows.append(Row(table="images", key={}, values=values, source=DOCKER_HUB, url=url))
    return Reading(rows=tuple(rows))


# --- torch's RELEASE.md: CUDA versions per minor release; announced, not seen --------------------

RELEASE_MATRIX = "release-md"
RELEASE_MATRIX_URL = "https://raw.githubusercontent.com/pytorch/pytorch/main/RELEASE.md"

_CUDA = re.compile(r"CUDA (\d{1,2}\.\d)\b(?: ?\(CUDNN (\d[\d.]*\d)\))?", re.IGNORECASE | re.ASCII)


def release_matrix(body: bytes, tables: Tables, url: str = RELEASE_MATRIX_URL) -> Reading:
    """Builds that are announced for the newest releases and that the tables lack."""
    announced = dict(_matrix(text_of(body)))
    if not announced:
        raise Unreadable(f"{url!a} has no matrix of CUDA versions per release.")
    return Reading(
        rows=tuple(
            row
            for release in tables["torch"]["releases"][:WATCHED]
            for cuda, cudnn in announced.get(minor_of(release["torch"]), ())
            for row in _announced(release["torch"], cuda, cudnn, tables, url)
        )
    )


def _matrix(text: str) -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    """Minor release -> the CUDA versions of its row, with their cuDNN."""
    columns: list[int] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if "pytorch version" in cells[0].lower():
            columns = [at for at, cell in enumerate(cells) if "cuda" in cell.lower()]
        elif columns and re.fullmatch(r"\d+\.\d+", cells[0]):
            found = [cell for at, cell in enumerate(cells) if at in columns]
            yield cells[0], [(cuda[1], cuda[2]) for cell in found for cuda in _CUDA.finditer(cell)]


def _announced(torch: str, cuda: str, cudnn: str | None, tables: Tables, url: str) -> Iterator[Row]:
    variant = variant_of(cuda)
    there = [row for row in tables["torch"]["builds"] if row["torch"] == torch]
    known = {row["platform"] for row in there if row["variant"] == variant}
    for platform in sorted({row["platform"] for row in there} - known - {"windows_arm64"}):
        if not platform.startswith("macos"):
            values = {
                "cuda": cuda,
                "cudnn": cudnn if platform.startswith("linux") else None,
                "glibc": next(row["glibc"] for row in there if row["platform"] == platform),
            }
            build = (torch, variant, platform)
            yield build_row(build, values, RELEASE_MATRIX, url, new=True)
