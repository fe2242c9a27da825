"""Driver libraries made of C for tests: they load, answer, refuse, hang and crash by a scenario."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from cudadoctor.host.local import LocalHost

SOURCES = Path(__file__).parent.parent / "standins"


class StandIns:
    """Builds each library once. `environment` puts them before all others for a child."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def nvml(self, *flags: str) -> Path:
        """The folder with a libnvidia-ml.so.1; flags: -DR450 or -DR450 -DANCIENT."""
        return self._built("nvml.c", "libnvidia-ml", *flags)

    def cuda(self, *flags: str) -> Path:
        """The folder with a libcuda.so.1."""
        return self._built("cuda.c", "libcuda", *flags)

    def _built(self, source: str, name: str, *flags: str) -> Path:
        folder = self.folder / "-".join([name, *(flag.lstrip("-") for flag in flags)])
        library = folder / f"{name}.so.580.95.05"
        if not library.exists():
            compiler = shutil.which("gcc") or shutil.which("cc")
            if compiler is None:
                pytest.skip("no C compiler for the stand-in libraries")
            folder.mkdir(parents=True, exist_ok=True)
            made = folder / "made.so"
            soname = f"-Wl,-soname,{name}.so.1"
            argv = [compiler, "-shared", "-fPIC", "-O1", "-w", *flags, soname, "-o", str(made)]
            subprocess.run([*argv, str(SOURCES / source)], check=True)
            (folder / f"{name}.so.1").symlink_to(library.name)
            made.rename(library)
        return folder

    def environment(self, scenario: str, *folders: Path) -> dict[str, str]:
        """The variables for a child that finds these libraries and plays this scenario."""
        file = self.folder / f"scenario-{abs(hash(scenario)):x}.txt"
        if not file.exists():  # a child may be reading it
            written = file.with_suffix(f".{threading.get_ident()}")
            written.write_text(scenario)
            written.rename(file)
        paths = os.pathsep.join(map(str, folders))
        return {**os.environ, "LD_LIBRARY_PATH": paths, "CUDADOCTOR_STANDIN": str(file)}


class HostWith(LocalHost):
    """This machine with other environment variables."""

    def __init__(self, env: dict[str, str]) -> None:
        super().__init__()
        self._env = env

    @property
    def env(self) -> dict[str, str]:
        return self._env

    def which(self, name: str) -> str | None:
        return shutil.which(name, path=self._env.get("PATH", ""))


@pytest.fixture(scope="session")
def standins(tmp_path_factory: pytest.TempPathFactory) -> StandIns:
    """Stand-in driver libraries, compiled in this test run."""
    return StandIns(tmp_path_factory.mktemp("standins"))
