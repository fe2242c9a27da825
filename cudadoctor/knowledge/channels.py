"""Where else torch comes from: container images and conda channels."""

from __future__ import annotations

from typing import Literal

from packaging.version import Version

from cudadoctor.knowledge.tables import Row, table, version

Channel = Literal["pytorch", "conda-forge"]


class ImageRow(Row, frozen=True):
    cuda: str
    distro: str
    flavours: tuple[str, ...]
    sources: tuple[str, ...]


class ImageTable(Row, frozen=True):
    complete_to: str
    tags: tuple[ImageRow, ...]


class CondaRow(Row, frozen=True):
    torch: str
    cuda: tuple[str, ...]


class CondaTable(Row, frozen=True):
    pytorch: tuple[CondaRow, ...]
    pytorch_sources: tuple[str, ...]
    conda_forge: tuple[CondaRow, ...]
    conda_forge_archs: dict[str, tuple[str, ...]]
    conda_forge_glibc: dict[str, str]
    conda_forge_sources: tuple[str, ...]


class Images:
    """Tags of nvidia/cuda images."""

    def __init__(self) -> None:
        read = table("images", ImageTable)
        self._complete_to = version(read.complete_to)
        self._flavours = {(row.cuda, row.distro): row.flavours for row in read.tags}

    def has(self, cuda: str, flavour: str, distro: str) -> bool | None:
        """Whether the tag exists: None for an unlisted one that is newer than the full list."""
        if flavour in self._flavours.get((cuda, distro), ()):
            return True
        return None if version(cuda) > self._complete_to else False

    def newest(self, cuda: Version, flavour: str, distro: str) -> str | None:
        """The newest listed tag of that CUDA major.minor, None where there is none."""
        wanted = (cuda.major, cuda.minor)
        found = [
            release
            for (release, system), flavours in self._flavours.items()
            if system == distro and flavour in flavours and version(release).release[:2] == wanted
        ]
        if not found:
            return None
        return f"{max(found, key=version)}-{flavour}-{distro}"


class Conda:
    """The pytorch channel, which ended, and conda-forge."""

    def __init__(self) -> None:
        self._table = table("conda", CondaTable)

    def cuda(self, channel: Channel, torch: Version, platform: str) -> tuple[Version, ...] | None:
        """CUDA versions of that torch on the channel; None where it does not have the release."""
        rows = self._table.pytorch if channel == "pytorch" else self._table.conda_forge
        row = next((row for row in rows if row.torch == torch.base_version), None)
        if row is None:
            return None
        if channel == "pytorch":
            return tuple(version(text) for text in row.cuda)
        prefix = f"{CONDA_PLATFORMS.get(platform, '')}:"
        found = (text.removeprefix(prefix) for text in row.cuda if text.startswith(prefix))
        return tuple(version(text) for text in found)

    def archs(self, cuda: Version, platform: str) -> tuple[str, ...] | None:
        """What conda-forge compiles its builds of that CUDA for; None where that is not known.

        A row is for several CUDA versions ("12.8 / 12.9"), or for one on one processor.
        """
        processor = "aarch64" if platform.endswith("aarch64") else "x86_64"
        for label, capabilities in self._table.conda_forge_archs.items():
            words = label.split()
            named = {"x86_64", "aarch64"} & set(words)
            if f"{cuda.major}.{cuda.minor}" in words and named <= {processor}:
                return tuple(code for text in capabilities for code in _codes(text))
        return None

    def newest(self, channel: Channel) -> Version:
        rows = self._table.pytorch if channel == "pytorch" else self._table.conda_forge
        return max(version(row.torch) for row in rows)

    def glibc(self, cuda: Version) -> Version | None:
        """The oldest glibc for conda-forge's Linux builds of that CUDA, None not known."""
        text = self._table.conda_forge_glibc.get(str(cuda))
        return version(text) if text else None

    def sources(self, channel: Channel) -> tuple[str, ...]:
        if channel == "pytorch":
            return self._table.pytorch_sources
        return self._table.conda_forge_sources


def _codes(capability: str) -> tuple[str, ...]:
    """12.0+PTX as the code that is compiled for it: sm_120 and compute_120."""
    number = capability.removesuffix("+PTX").replace(".", "")
    return (f"sm_{number}", f"compute_{number}") if "+" in capability else (f"sm_{number}",)


CONDA_PLATFORMS = {
    "linux_x86_64": "linux_64",
    "linux_aarch64": "linux_aarch64",
    "windows_amd64": "win_64",
}
