"""Where torch's wheels come from, given the package indexes that the user has configured."""

import re
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from cudadoctor.installers.tool import joined
from cudadoctor.knowledge.torch_builds import TORCH_INDEX
from cudadoctor.model.findings import PackageChange
from cudadoctor.model.machine import Index, Machine, OptStr, Strings
from cudadoctor.model.trust import is_host
from cudadoctor.privacy.patterns import TOKEN, bare, compiled
from cudadoctor.solver.demand import platform_of

_VARIANT = re.compile(r"cu\d{2,3}|cpu|xpu|rocm[\d.]+")
TAGGED = ("torch", "torchvision", "torchaudio")
_ALL_TAGGED_ON = ("linux_x86_64", "windows_amd64")
"""Where torch's index gives every wheel of the family its local version; macOS has none."""
_PYPI_HOSTS = frozenset({"pypi.org", "pypi.python.org"})


class Source(Struct, frozen=True, kw_only=True):
    """Options and pins that lead to the right wheel.

    index: in place of the configured one. extra: beside it. tag: the local version to ask for,
    where more than one index has that release; of: the packages that bear it there.
    is_mirror: index is the user's own in place of PyPI, not torch's.
    """

    index: OptStr = None
    extra: OptStr = None
    tag: OptStr = None
    of: Strings = TAGGED
    is_mirror: bool = False
    note: OptStr = None


def source_for(m: Machine, change: PackageChange, tool: str) -> Source:
    """Where this change is installed from.

    A mirror of the user's stays in use; an index for another torch variant is never obeyed.
    """
    configured = m.python.index or Index()
    found = _without_password(_found(change, configured, tool), configured, tool)
    if found.tag is not None:
        # torch's index is sure to tag torch alone, but for the platforms where it tags all.
        platform = platform_of(m) or ""
        sure = 3 if platform in _ALL_TAGGED_ON else 0 if platform.startswith("macos") else 1
        found = replace(found, of=TAGGED[:sure])
    if not configured.no_index:
        return found
    origin = configured.origin or "the configuration"
    note = (
        f"Package indexes are disabled ({origin}): put the wheels in a find-links folder, or "
        "remove the no-index setting."
    )
    return replace(found, note=joined(note, found.note))


def _found(change: PackageChange, configured: Index, tool: str) -> Source:
    if change.variant is None or is_foreign(change.index):
        return Source(index=change.index)
    own = _own_url(configured)
    if own is not None and (variant := _variant_of(own)):
        # A company's copy of torch's index, turned to the variant that is wanted.
        base = own.rstrip("/").rpartition("/")[0]
        same = variant == change.variant
        index = own if same else f"{base}/{change.variant}"
        return Source(index=index, tag=None if same else change.variant)
    if own is not None:
        read = is_read_by(tool, configured)
        # Left where it is for its password: the tool that it is configured for reads it from there,
        # and an image is given to others, so nothing secret may stand in its lines.
        stays = _has_credentials(own) and (tool == "docker" or read)
        if change.index is None:
            return Source(index=None if stays else own, is_mirror=True)
        return Source(
            index=None if read or stays else own,
            is_mirror=True,
            extra=change.index,
            tag=change.variant,
            note=f"Your index ({host_of(own)}) is still used for all other packages. Your index "
            f"may not have the {change.variant} builds, so the command also uses PyTorch's "
            "own index.",
        )
    urls = [url for url in (configured.url, *configured.extra) if url]
    others = {_variant_of(url) for url in urls} - {None, change.variant}
    if others or (change.index is None and any(map(is_official, urls))):
        return Source(
            index=change.index or f"{TORCH_INDEX}/{change.variant}",
            tag=change.variant,
            note="Your configured index has a different build of torch, so the command specifies "
            "the exact build.",
        )
    # Where torch's index lacks the file or is blocked, uv goes on to its default index, and pip
    # to what else is configured: with the tag that fails aloud.
    more = tool == "uv" or configured.extra or configured.find_links
    return Source(index=change.index, tag=change.variant if more and change.index else None)


def options(source: Source) -> Strings:
    """The options of pip for it."""
    index = ("--index-url", source.index) if source.index else ()
    extra = ("--extra-index-url", source.extra) if source.extra else ()
    return (*index, *extra)


def uv_options(source: Source) -> Strings:
    """The options of uv for it.

    uv takes a package from the first index that has it. --index comes before all that is
    configured; --index-url comes last, and the variable UV_DEFAULT_INDEX overrules it.
    """
    mirror = source.index if source.is_mirror else None
    first = source.extra or (None if source.is_mirror else source.index)
    usual = ("--default-index", mirror) if mirror else ()
    return (*usual, *(("--index", first) if first else ()))


def pinned(requirements: Strings, source: Source) -> Strings:
    """The requirements with the local version where it is needed."""
    if source.tag is None:
        return requirements
    return tuple(
        f"{requirement}+{source.tag}"
        if "==" in requirement and requirement.split("==")[0] in source.of
        else requirement
        for requirement in requirements
    )


def host_in(url: str) -> str:
    """The host of a URL, without credentials or port; "" if it has none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def host_of(url: str) -> str:
    """The host of an index, to be shown."""
    return host_in(url) or "the configured index"


def is_official(url: str) -> bool:
    """Whether the host of a URL is pytorch.org or within it, label by label."""
    return host_of(url).lower().rstrip(".").split(".")[-2:] == ["pytorch", "org"]


def own_host(m: Machine) -> OptStr:
    """The host of an index of the user's own in place of PyPI or of torch's; None for none."""
    url = _own_url(m.python.index or Index())
    return host if url is not None and is_host(host := host_of(url)) else None


def _own_url(configured: Index) -> OptStr:
    """The user's main index if it is neither PyPI nor torch's."""
    url = configured.url
    return None if url is None or is_official(url) or host_of(url) in _PYPI_HOSTS else url


def is_foreign(index: OptStr) -> bool:
    """Whether an index is neither the default one nor torch's: NVIDIA's for a Jetson."""
    return index is not None and not is_official(index)


def _variant_of(url: str) -> OptStr:
    last = url.rstrip("/").rpartition("/")[2]
    return last if _VARIANT.fullmatch(last) else None


def _has_credentials(url: str) -> bool:
    return bare(url) != url or _address(url) is None


_BEYOND_AN_ADDRESS = re.compile(r"[?#;@\s]")


def _address(url: str) -> OptStr:
    """The URL without user and password; None if what is left may hold a secret still."""
    plain = bare(url)
    whole = "://" not in plain or re.match(r"https?://[^/]|file:///", plain)
    sound = whole and not _BEYOND_AN_ADDRESS.search(plain)
    return plain if sound and not compiled(TOKEN.pattern).search(f"{plain}/") else None


def _without_password(found: Source, configured: Index, tool: str) -> Source:
    """The same without a password, which no command may show.

    A tool that reads the setting itself takes it from there, also for another path of that host.
    """
    if found.index is None or not _has_credentials(found.index):
        return found
    index, extra, note = _address(found.index), found.extra, found.note
    if is_read_by(tool, configured):
        if found.index == configured.url:
            index = None
        elif tool == "pip":  # --index-url would take the place of the setting, password and all
            index, extra = None, index or extra
    elif index is None:
        note = (
            f"Your index URL ({host_of(found.index)}) contains a secret, so it is not printed; "
            "set the URL in the tool's own configuration."
        )
    else:
        plain = f"The password for {host_of(index)} is not shown: put it in ~/.netrc,"
        note = joined(plain, "where pip and uv can read it.", note)
    return replace(found, index=index, extra=extra, note=note)


def is_read_by(tool: str, configured: Index) -> bool:
    """Whether that tool reads the configuration which this index came from.

    In an image there is none of it.
    """
    for_uv = "uv" in (configured.origin or "").lower()
    return tool != "docker" and for_uv == (tool == "uv")
