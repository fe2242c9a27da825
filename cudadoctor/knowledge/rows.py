"""The rows of the tables as they lie in the files: words and numbers, versions still as text."""

from __future__ import annotations

import msgspec


class Row(msgspec.Struct, frozen=True):
    """The base of all rows."""


class ReleaseRow(Row):
    torch: str
    released: str
    pythons: dict[str, tuple[str, ...]]
    torchvision: str | None
    torchaudio: str | None
    torchtext: str | None
    sources: tuple[str, ...]


class BuildRow(Row):
    torch: str
    variant: str
    platform: str
    cuda: str | None
    toolkit: str | None
    cudnn: str | None
    published: bool | None
    archs: tuple[str, ...] | None
    uncertain: bool
    contested: tuple[str, ...]
    glibc: str | None
    default: bool
    bytes: int | None
    sources: tuple[str, ...]


class TorchTable(Row):
    collected: str
    releases: tuple[ReleaseRow, ...]
    builds: tuple[BuildRow, ...]


class PinRow(Row):
    torch: str
    platform: str
    requires: tuple[str, ...]
    sources: tuple[str, ...]


class PinTable(Row):
    pins: tuple[PinRow, ...]


class FloorRow(Row):
    major: int
    linux: str
    windows: str
    sources: tuple[str, ...]


class ToolkitRow(Row):
    toolkit: str
    linux: str | None
    windows: str | None
    bundled: str | None
    uncertain: bool
    sources: tuple[str, ...]


class BranchRow(Row):
    branch: int
    cuda: str | None
    note: str | None
    current: bool
    sources: tuple[str, ...]


class WindowsRow(Row):
    driver: str
    cuda: str
    sources: tuple[str, ...]


class CompatRow(Row):
    package: str
    cuda: str
    cells: dict[str, str]


class DriverTable(Row):
    floors: tuple[FloorRow, ...]
    toolkits: tuple[ToolkitRow, ...]
    branches: tuple[BranchRow, ...]
    windows_levels: tuple[WindowsRow, ...]
    forward_compat: tuple[CompatRow, ...]
    forward_compat_sources: tuple[str, ...]


class NvccRow(Row):
    toolkit: str
    capabilities: tuple[str, ...]
    variants: tuple[str, ...]
    default: str | None
    sources: tuple[str, ...]


class HostRow(Row):
    toolkit: str
    gcc_max: int | None
    clang_max: int | None
    msc_min: int | None
    msc_below: int | None
    visual_studio: str | None
    uncertain: bool
    sources: tuple[str, ...]


class CompilerTable(Row):
    nvcc: tuple[NvccRow, ...]
    hosts: tuple[HostRow, ...]


class ModelRow(Row):
    name: str
    capability: str
    architecture: str
    data_center: bool
    memory_gb: tuple[float, ...]
    tensor_cores: bool | None
    bf16: bool | None
    tf32: bool | None
    open_modules: str
    sources: tuple[str, ...]


class GenerationRow(Row):
    name: str
    capabilities: tuple[str, ...]
    first_branch: int | None
    last_branch: int | None
    open_modules: str
    source: str


class Lifted(Row):
    torch: str
    cuda: str
    code: tuple[str, ...]


class Serving(Row):
    exclusions: dict[str, tuple[str, ...]]
    aliases: dict[str, tuple[str, ...]]
    lifted: Lifted
    sources: tuple[str, ...]


class GpuTable(Row):
    models: tuple[ModelRow, ...]
    names: dict[str, int]
    devices: dict[str, tuple[int, ...]]


class ArchitectureTable(Row):
    generations: tuple[GenerationRow, ...]
    serving: Serving


class CompanionRow(Row):
    package: str
    version: str
    torch: str | None
    python: str | None
    sources: tuple[str, ...]


class XformersRow(Row):
    version: str
    torch: str
    cuda: tuple[str, ...]


class FlashRow(Row):
    version: str
    torch: tuple[str, ...]
    cuda_major: int
    python: str


class BitsandbytesRow(Row):
    versions: tuple[str, ...]
    cuda: tuple[str, ...]


class CompanionTable(Row):
    releases: tuple[CompanionRow, ...]
    xformers: tuple[XformersRow, ...]
    flash_attn: tuple[FlashRow, ...]
    bitsandbytes: tuple[BitsandbytesRow, ...]
    triton: dict[str, str]
    triton_windows: dict[str, str]
    prebuilt_sources: tuple[str, ...]


class ImageRow(Row):
    cuda: str
    distro: str
    flavours: tuple[str, ...]
    sources: tuple[str, ...]


class ImageTable(Row):
    complete_to: str
    tags: tuple[ImageRow, ...]


class CondaRow(Row):
    torch: str
    cuda: tuple[str, ...]


class CondaTable(Row):
    pytorch: tuple[CondaRow, ...]
    pytorch_sources: tuple[str, ...]
    conda_forge: tuple[CondaRow, ...]
    conda_forge_archs: dict[str, tuple[str, ...]]
    conda_forge_sources: tuple[str, ...]


class CudnnRow(Row):
    first: str
    last: str | None
    cuda_majors: tuple[int, ...]
    lowest: str
    highest: str | None
    sources: tuple[str, ...]


class NcclRow(Row):
    torch: str
    default_variant: str
    default: str | None
    variants: dict[str, str]
    bundled: str | None
    uncertain: bool
    sources: tuple[str, ...]


class WheelsRow(Row):
    toolkit: str
    packages: dict[str, str]
    ranges: tuple[str, ...]
    sources: tuple[str, ...]


class LibraryTable(Row):
    cudnn: tuple[CudnnRow, ...]
    cudnn_yanked: tuple[str, ...]
    nccl: tuple[NcclRow, ...]
    wheels: tuple[WheelsRow, ...]
