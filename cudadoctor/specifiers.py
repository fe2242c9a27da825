"""Requirements of distributions, judged without loading a grammar where their form is usual.

`packaging.requirements` costs 10 ms to import, a seventh of a whole `check --fast`. What is not of
the usual form goes to `packaging`, and a test holds the two against each other.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from packaging.version import InvalidVersion, Version

_LINE = re.compile(
    r"\s*([A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)\s*(?:\[([^\]]*)\])?\s*\(?([^;()@]*)\)?\s*(?:;(.*))?"
)
_CLAUSE = re.compile(r"\s*(==|!=|>=|<=|~=|>|<)\s*(\d+(?:\.\d+)*)(\.\*)?\s*")
_RUNS = re.compile(r"[-_.]+")


class Asked(NamedTuple):
    """A line of Requires-Dist in its parts. name: normalised. marker: "" where there is none."""

    name: str
    extras: tuple[str, ...]
    specifier: str
    marker: str


def normal(name: str) -> str:
    """The normalised name of a distribution."""
    return _RUNS.sub("-", name).lower()


def cut(line: str) -> Asked | None:
    """The parts of a Requires-Dist line; None for one that is none, or names a URL."""
    found = _LINE.fullmatch(line)
    if found is None:
        return None
    extras = tuple(sorted(one.strip() for one in (found[2] or "").split(",") if one.strip()))
    specifier = ",".join(one.strip() for one in found[3].split(",") if one.strip())
    return Asked(normal(found[1]), extras, specifier, (found[4] or "").strip())


def admits(specifier: str, release: Version) -> bool:
    """Whether a specifier (">=2.14.0,<3") admits a release, pre-releases too.

    A text that is no specifier but a version is an exact pin; one that is neither admits all.
    """
    clauses = [_CLAUSE.fullmatch(one) for one in specifier.split(",")] if specifier else []
    # Pre-releases and post-releases have rules of their own; a local tag (+cu126) does not count.
    if all(clauses) and _is_plain(release):
        release = Version(release.public) if release.local else release
        return all(_holds(one[1], one[2], bool(one[3]), release) for one in clauses if one)
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        return SpecifierSet(specifier).contains(release, prereleases=True)
    except InvalidSpecifier:
        try:
            return Version(specifier) == release
        except InvalidVersion:
            return True


def marker_holds(marker: str, variables: dict[str, str]) -> bool:
    """Whether an environment marker holds; one that cannot be read does."""
    from packaging.markers import InvalidMarker, Marker, UndefinedEnvironmentName

    try:
        return Marker(marker).evaluate(variables)
    except (InvalidMarker, UndefinedEnvironmentName):
        return True


def _is_plain(release: Version) -> bool:
    return not (release.is_prerelease or release.is_postrelease or release.epoch)


def _holds(operator: str, text: str, any_below: bool, release: Version) -> bool:
    wanted = tuple(int(part) for part in text.split("."))
    if any_below or operator == "~=":
        prefix = wanted if any_below else wanted[:-1]
        have = release.release + (0,) * len(prefix)
        within = have[: len(prefix)] == prefix
        if operator == "~=":
            return within and release >= Version(text)
        return within is (operator == "==")
    other = Version(text)
    return {
        "==": release == other,
        "!=": release != other,
        ">=": release >= other,
        "<=": release <= other,
        ">": release > other,
        "<": release < other,
    }[operator]
