"""Which indexes an install searched, and what it asked them for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from cudadoctor.knowledge.offers import PYPI
from cudadoctor.model.versions import version_of

if TYPE_CHECKING:
    from cudadoctor.model.machine import Install

ALL = "all"
"""The root of torch's index, which lists the builds of every variant."""
NIGHTLY = "nightly"
OTHER = "other"
"""An index of somebody else: what it has is not known."""

CONDA = frozenset({"conda", "mamba", "micromamba"})


class Searched(NamedTuple):
    """indexes: names of variants, "pypi", "all", "nightly", "other".

    told: the report shows them; else they are supposed.
    """

    indexes: frozenset[str]
    told: bool


class Wanted(NamedTuple):
    """A requirement in its parts. local: the variant it names (cu118), "" none."""

    name: str
    specifier: SpecifierSet
    text: str
    local: str

    @property
    def pinned(self) -> bool:
        return any(one.operator in ("==", "===", "~=") for one in self.specifier)

    @property
    def version(self) -> Version | None:
        """The one release that it asks for."""
        for one in self.specifier:
            if one.operator in ("==", "===") and not one.version.endswith("*"):
                return version_of(one.version)
        return None

    @property
    def nightly(self) -> str | None:
        """The day of the nightly build that it asks for."""
        found = re.search(r"dev(\d{8})", self.text)
        return found[1] if found else None


_VARIANT = re.compile(r"(?:^|[/_.=-])(cu\d{2,3}|cpu)(?:$|[/_.-])")
_ROOT = re.compile(
    r"(?:^|//)download\.pytorch\.org/whl/?(?:torch_stable\.html|torch/?)?$|torch_stable\.html$"
)
_PYPI = re.compile(r"pypi|/simple/?$|pythonhosted|mirrors?\.|douban|tuna", re.I)


def index_of(url: str) -> str:
    """The index behind a URL, or the name that uv and poetry give it."""
    url = url.partition("=")[2] if re.match(r"[\w-]{1,40}=https?:", url) else url
    low = url.lower().rstrip("/")
    if "nightly" in low or "/test" in low:
        return NIGHTLY
    if "rocm" in low or "xpu" in low or "jetson" in low or "/lts/" in low:
        return OTHER
    if found := _VARIANT.search(low):
        return found[1]
    if _ROOT.search(low):
        return ALL
    return PYPI if _PYPI.search(low) else OTHER


def searched_by(one: Install) -> Searched:
    """The indexes that an install asked. pip's own report of them counts as it stands."""
    named = frozenset(index_of(url) for url in one.indexes)
    offered = {local for text in one.offered or () if (local := text.partition("+")[2])}
    hinted = frozenset(name for name in offered if re.fullmatch(r"cu\d+|cpu", name))
    if len(hinted) > 2:  # the root of torch's index lists them all
        hinted = frozenset({ALL})
    if not named:
        plain = not offered or not one.offered or any("+" not in text for text in one.offered)
        return Searched(hinted | ({PYPI} if plain else set()), told=bool(offered))
    alone = "--index-url" in one.options or PYPI in named
    return Searched(named | (frozenset() if alone else {PYPI}), told=True)


_REQUIREMENT = re.compile(r"([A-Za-z][\w.-]*?)(?:\[[^\]]*\])?\s*@?\s*((?:[=<>~!^].*|\d.*)?)$")


def wanted_by(text: str) -> Wanted | None:
    """A requirement as pip reads it, None for what is none."""
    found = _REQUIREMENT.match(text.strip())
    if found is None:
        return None
    spec = found[2].replace("^", ">=").strip()
    spec = f"=={spec}" if spec[:1].isdigit() else spec
    spec = re.sub(r"^=(?=\d)", "==", spec)
    try:
        specifier = SpecifierSet(spec)
        local = re.search(r"\+(\w+)", spec)
        return Wanted(
            name=re.sub(r"[-_.]+", "-", found[1]).lower(),
            specifier=specifier,
            text=text.strip(),
            local=local[1].lower() if local else "",
        )
    except ValueError:
        return None


def without_local(wanted: Wanted) -> Wanted:
    """The same release in any build."""
    plain = SpecifierSet(re.sub(r"\+\w+", "", str(wanted.specifier)))
    return wanted._replace(specifier=plain, local="")


def releases(versions: tuple[str, ...], oldest: tuple[int, ...] = (1,)) -> frozenset[Version]:
    """The final releases from the oldest on among versions that were offered."""
    found: set[Version] = set()
    for text in versions:
        try:
            one = Version(text)
        except ValueError:
            continue
        if not one.is_prerelease and one.release >= oldest and one.post is None:
            found.add(Version(one.base_version))
    return frozenset(found)


def nightlies(versions: tuple[str, ...]) -> tuple[str, ...]:
    """The days of the nightly builds among versions that were offered."""
    return tuple(sorted(m[1] for text in versions if (m := re.search(r"dev(\d{8})", text))))
