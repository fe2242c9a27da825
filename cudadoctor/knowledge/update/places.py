"""Whom an update asks, one after the other, and what it then knows."""

from collections.abc import Callable, Iterator
from contextlib import suppress

from cudadoctor.knowledge.renewed import Tables, Values
from cudadoctor.knowledge.update import public, torch_rows
from cudadoctor.knowledge.update.rows import GivenUp, Update
from cudadoctor.model.machine import Gap, Strings

INDEX = "pypi"
PLACES = {
    "conda-forge": public.conda_forge,
    "cuda-notes": public.cuda_notes,
    "docker-hub": public.docker_hub,
    "release-md": public.release_matrix,
    "torch-index": torch_rows.torch_index,
}
"""Whom to ask after the package index. Of two that speak of one build the later knows better."""
NAMES = {
    "pypi": "PyPI",
    "conda-forge": "conda-forge",
    "cuda-notes": "NVIDIA's release notes",
    "docker-hub": "Docker Hub",
    "release-md": "PyTorch's release table",
    "torch-index": "PyTorch's package index",
}
"""What a user calls them."""


def ask(update: Update, begin: Callable[[str], object] = str) -> None:
    """Ask the places one after the other; one that fails takes nothing from the others.

    begin: called with the short name of each place.
    """
    if not update.only or {*update.only} - PLACES.keys():
        with suppress(GivenUp), update.at(INDEX):
            begin(INDEX)
            torch_rows.package_index(update)
    for name, read in PLACES.items():
        if update.wants(name):
            begin(name)
            with suppress(GivenUp), update.at(name), update.reading():
                read(update)


def gaps(tables: Tables) -> Iterator[Gap]:
    """What nobody said of the builds that only an update has seen, by their columns.

    A build is not prescribed where what is not known of it decides.
    """
    for row in tables["torch"]["builds"]:
        unknown = [column for column in _columns(row) if row[column] is None]
        if unknown and row["published"] is not False and all(map(_seen, row["sources"])):
            build = " ".join(("torch", row["torch"], row["variant"], row["platform"]))
            why = "no place that was read says it"
            yield Gap(fact=f"{build}: {', '.join(unknown)}", why=why)


def _seen(source: str) -> bool:
    return source.startswith("seen.")


def _columns(build: Values) -> Strings:
    """What is to be known of a build before it can be prescribed, or judged."""
    linux = build["platform"].startswith("linux")
    return (
        "published",
        *(("archs", "toolkit") if build["cuda"] else ()),
        *(("cudnn",) if build["cuda"] and linux else ()),
        *(("glibc",) if linux else ()),
    )
