"""Parts of a report that speak of two installations of torch -> those that speak of one.

People paste the environment that works beside the one that does not, and the list from before the
upgrade. A CUDA version or a build of the one must not be taken for the other's.
"""

from __future__ import annotations

from packaging.version import Version

from cudadoctor.reports.telling import Said

OF_ONE_BUILD = ("torch.text", "torch.build", "torch.cuda", "torch.hip", "torch.installer")
"""Facts that are told together with the release that they belong to."""


def of_one_torch(said: list[Said]) -> list[Said]:
    """Without what was told of another release than the one that will be believed."""
    releases = [one for one in said if one.path == "torch.version" and one.value is not None]
    if len({_release(one.value) for one in releases}) < 2:
        return said
    best = min(releases, key=lambda one: one.rank)
    theirs = {
        (one.source, one.line) for one in releases if _release(one.value) != _release(best.value)
    }
    return [
        one for one in said if one.path not in OF_ONE_BUILD or (one.source, one.line) not in theirs
    ]


def _release(version: Version) -> tuple[int, ...]:
    return version.release
