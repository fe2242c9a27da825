"""What is known of the world: tables with sources and dates, and one typed loader.

The rows live in JSON files beside this module, kept by `knowledge.update`, and are decoded into the
types that the rules use. No table is read before it is asked for: `check --fast` must not pay for
tables that no rule looks at. A file of the user's can renew some of them: see `knowledge.renewed`.
"""

from __future__ import annotations

from functools import cached_property, lru_cache

from packaging.version import Version

from cudadoctor.knowledge.companions import Companions
from cudadoctor.knowledge.drivers import DriverFault, Drivers
from cudadoctor.knowledge.gpus import Architecture, GpuModel, Gpus
from cudadoctor.knowledge.software import Software
from cudadoctor.knowledge.tables import (
    RENEWED,
    KnowledgeError,
    Row,
    Source,
    kept,
    table,
    version,
)
from cudadoctor.knowledge.torch_builds import TorchBuild
from cudadoctor.model.machine import Strings

__all__ = [
    "Architecture",
    "DriverFault",
    "GpuModel",
    "Knowledge",
    "KnowledgeError",
    "TorchBuild",
    "load",
]


class _Named(Row, frozen=True):
    torch: str


_OF_TOOLKIT = (
    *("cublas", "cuda-cupti", "cuda-runtime", "cufft", "curand", "cusolver", "cusparse"),
    "nvjitlink",
)


class _Dated(Row, frozen=True):
    collected: str
    releases: tuple[_Named, ...]


class Knowledge(Companions, Drivers, Gpus, Software):
    """All tables, one base a subject. Make one with `load()`."""

    _dated = kept("torch", _Dated)

    @cached_property
    def _sources(self) -> dict[str, Source]:
        return table("sources", dict[str, dict[str, Source]])["sources"]

    @property
    def date(self) -> str:
        """The day the tables were collected, ISO 8601."""
        return self._dated.collected

    @property
    def newest_torch(self) -> Version:
        """The newest release in the tables."""
        return version(self._dated.releases[0].torch)

    @property
    def is_renewed(self) -> bool:
        """Whether some tables come from a file of the user's."""
        return bool(RENEWED)

    def source(self, key: str) -> Source:
        """The source behind a key. Raises KnowledgeError for a key that no table has."""
        if key not in self._sources:
            raise KnowledgeError(f"No table names a source {key!r}")
        return self._sources[key]

    def toolkit_pins(self, build: TorchBuild) -> Strings:
        """The wheels of CUDA's toolkit that a build for Linux pins, by what it was compiled with.

        Without those whose patch release some wheels choose for themselves.
        """
        wheels, cuda = self.toolkit_wheels(build.toolkit), build.cuda
        if cuda is None:
            return ()
        names = (
            f"nvidia-{name}" + ("" if cuda.major > 12 else f"-cu{cuda.major}")
            for name in _OF_TOOLKIT
        )
        found = (f"{name}=={wheels[name]}" for name in names if name in wheels)
        # Below CUDA 12.4 torch leaves nvJitLink's release to cuSPARSE.
        return tuple(pin for pin in found if "nvjitlink" not in pin or cuda >= version("12.4"))

    @cached_property
    def projects(self) -> frozenset[str]:
        """The name of every distribution in the tables."""
        return self.pinned_names | self.companion_names | self.library_names | self.program_names


@lru_cache(maxsize=1)
def load() -> Knowledge:
    """The tables of this package. Cheap: every table is read when it is first asked for."""
    return Knowledge()
