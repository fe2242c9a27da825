"""A machine for a whole check: a GPU and driver made of C, an environment of real files.

Nothing is patched: the check runs as a program of its own and looks through its real probes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from interpreter_fixtures import make_venv, plant, plant_torch, site
from standin_fixtures import HostWith, StandIns

from cudadoctor import pipeline
from cudadoctor.host.local import Answer, Host, Listing, Space, Stat
from cudadoctor.probes.examine import Look, examine_host
from cudadoctor.render import json_v1

ADA = """
name = NVIDIA GeForce RTX 4090
pci_id = 0x268410de
capability = 89
memory = 25757220864
ecc = 0
mig_most = 0
nvlinks = 0
nvmlDeviceGetRemappedRows = 3
nvmlDeviceGetGpuFabricInfoV = 3
pcie_generation = 4
pcie_generation_max = 4
pcie_generation_gpu_max = 4
power_limit = 450000
power_default = 450000
"""
BLACKWELL = ADA.replace("RTX 4090", "RTX 5090").replace("2684", "2b85").replace("= 89", "= 120")
VOLTA = ADA.replace("GeForce RTX 4090", "Tesla V100-SXM2-16GB").replace("2684", "1db1")
VOLTA = VOLTA.replace("= 89", "= 70")
TURING = ADA.replace("GeForce RTX 4090", "Tesla T4").replace("2684", "1eb8").replace("= 89", "= 75")

PINS_OF_2_6 = (
    "nvidia-cublas-cu12==12.4.5.8",
    "nvidia-cudnn-cu12==9.1.0.70",
    "nvidia-cuda-runtime-cu12==12.4.127",
    "nvidia-cusparse-cu12==12.3.1.170",
    "nvidia-nccl-cu12==2.21.5",
    "nvidia-nvjitlink-cu12==12.4.127",
)
"""Of torch 2.6.0 on Linux, those whose libraries are planted here."""
ARCHS_OF_CU124 = "sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90"

SMALL_INIT = """import ctypes, glob, os
_here = os.path.dirname(__file__)
ctypes.CDLL(_here + "/lib/libtorch_global_deps.so", mode=ctypes.RTLD_GLOBAL)
ctypes.CDLL(glob.glob(_here + "/_C.*.so")[0])
"""
_WHEELS = {
    "cublas": ("libcublas.so.12", "libcublasLt.so.12"),
    "cudnn": ("libcudnn.so.9", "libcudnn_graph.so.9", "libcudnn_ops.so.9"),
    "cuda_runtime": ("libcudart.so.12",),
    "cusparse": ("libcusparse.so.12",),
    "nccl": ("libnccl.so.2",),
    "nvjitlink": ("libnvJitLink.so.12",),
}
_NEEDS = {
    "libcublas.so.12": ("libcublasLt.so.12",),
    "libcusparse.so.12": ("libnvJitLink.so.12",),
}


class Report(dict[str, Any]):
    """The JSON document of a check."""

    @property
    def told(self) -> list[str]:
        """Causes of the errors and warnings that nothing explains, the gravest first."""
        grave = (finding for finding in self["findings"] if finding["severity"] != "info")
        return [finding["cause"] for finding in grave if not finding["because_of"]]

    @property
    def infos(self) -> list[str]:
        return [finding["cause"] for finding in self["findings"] if finding["severity"] == "info"]

    def folded(self, cause: str) -> list[str]:
        """What explains a finding away."""
        because: list[str] = self.finding(cause)["because_of"]
        return because

    def finding(self, cause: str) -> dict[str, Any]:
        found: dict[str, Any] = next(f for f in self["findings"] if f["cause"] == cause)
        return found

    def evidence(self, cause: str) -> dict[str, str]:
        """Fact -> value, as shown."""
        return {evidence["fact"]: evidence["value"] for evidence in self.finding(cause)["evidence"]}


class Bench:
    """Runs the check on this machine with a GPU and a driver that are not there."""

    def __init__(self, standins: StandIns, folder: Path) -> None:
        self.standins = standins
        self.folder = folder

    def check(
        self,
        python: Path | str | None,
        *options: str,
        gpu: str | None = ADA,
        ahead: Sequence[Path] = (),
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Report:
        """The report of `check --json --fast`. gpu: scenario of the driver, None for no driver.

        ahead: folders before the driver's on LD_LIBRARY_PATH. options: in place of --fast.
        """
        argv = [
            sys.executable,
            "-m",
            "cudadoctor",
            "check",
            "--json",
            "--full",
            *(options or ("--fast",)),
        ]
        argv += ["--python", str(python)] if python else []
        own = {**self.environment(gpu, *ahead), **(env or {})}
        place = cwd or self._empty()
        ran = subprocess.run(
            argv, env=own, cwd=place, capture_output=True, text=True, check=False, timeout=60
        )
        assert ran.returncode in (0, 1, 3), ran.stderr
        return Report(json.loads(ran.stdout))

    def environment(self, gpu: str | None, *ahead: Path) -> dict[str, str]:
        """The variables of a user who has set none but those of the stand-ins."""
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        plain = {"HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
        folders = list(ahead)
        if gpu is not None:
            folders += [self.standins.nvml(), self.standins.cuda()]
            plain["CUDADOCTOR_STANDIN"] = self.standins.environment(gpu)["CUDADOCTOR_STANDIN"]
        if folders:
            plain["LD_LIBRARY_PATH"] = os.pathsep.join(map(str, folders))
        return plain

    def check_on(self, host: Host, python: Path | str) -> Report:
        """The report of a fast look through another door than the machine's own."""
        look = Look(python=str(python), depth="fast")
        judged = pipeline.judge(examine_host(host, look, lambda *_: None))
        return Report(json_v1.report(pipeline.report(judged, full=True)))

    def host(self, *programs: str, gpu: str | None = ADA, **env: str) -> Lacking:
        """This machine without any toolkit, with these of its programs on PATH and no other."""
        folder = self.folder / "bin"
        folder.mkdir(exist_ok=True)
        for name in programs:
            (folder / name).symlink_to(shutil.which(name) or pytest.skip(f"no {name} here"))
        plain = {**self.environment(gpu), "PATH": str(folder), **env}
        return Lacking(plain)

    def small_torch(self, tag: str = "runpath") -> Path:
        """An environment with a torch 2.6.0 of hollow libraries; tag: how they are linked."""
        model = self.standins.folder / f"small-{tag}"
        if not model.exists():
            small_torch(model, tag)
        venv = make_venv(self.folder / f"small-{tag}")
        shutil.copytree(model, site(venv), symlinks=True, dirs_exist_ok=True)
        return venv

    def _empty(self) -> Path:
        folder = self.folder / "work"
        folder.mkdir(exist_ok=True)
        return folder


class Lacking(HostWith):
    """This machine without the toolkits that it may have.

    tmp_free: room in its temporary folder. bus: a folder in the place of the PCI bus.
    """

    tmp_free: int | None = None
    bus: Path | None = None

    def read(self, path: str, limit: int = 1 << 20, offset: int = 0) -> Answer:
        path = self._moved(path)
        return Answer(missing=True) if _is_toolkit(path) else super().read(path, limit, offset)

    def stat(self, path: str) -> Stat:
        return Stat(exists=False) if _is_toolkit(path) else super().stat(path)

    def listing(self, path: str) -> Listing:
        path = self._moved(path)
        return Listing(missing=True) if _is_toolkit(path) else super().listing(path)

    def glob(self, pattern: str) -> tuple[str, ...]:
        return tuple(path for path in super().glob(pattern) if not _is_toolkit(path))

    def _moved(self, path: str) -> str:
        return path if self.bus is None else path.replace("/sys/bus/pci/devices", str(self.bus))

    def space(self, path: str) -> Space | None:
        if self.tmp_free is not None and path == self.env.get("TMPDIR", "/tmp"):
            return Space(total_bytes=self.tmp_free, free_bytes=self.tmp_free)
        return super().space(path)


def _is_toolkit(path: str) -> bool:
    return path.startswith(("/usr/local/cuda", "/opt/cuda", "/opt/nvidia", "/usr/lib/cuda"))


def toolkit(folder: Path, release: str) -> Path:
    """A CUDA toolkit as far as one looks into it."""
    nvcc = folder / "bin/nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.48'\n")
    nvcc.chmod(0o755)
    (folder / "version.json").write_text(json.dumps({"cuda": {"version": f"{release}.1"}}))
    return folder


@pytest.fixture(name="bench")
def a_bench(standins: StandIns, tmp_path: Path) -> Bench:
    """A machine with an RTX 4090 and driver 580.95.05, unless a test says otherwise."""
    return Bench(standins, tmp_path)


class Twin:
    """An environment whose files are hard links to those of a real one.

    Files may be removed or replaced here, and must never be written into.
    """

    def __init__(self, real: str, folder: Path) -> None:
        source = Path(real).parent.parent
        base = subprocess.run(
            [real, "-Ic", "import sys; print(sys.base_prefix, *sys.version_info[:2])"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        self.folder = make_venv(folder, f"{base[0]}/bin/python{base[1]}.{base[2]}")
        self.python = self.folder / "bin/python"
        self.site = site(self.folder)
        shutil.rmtree(self.site)
        # Half of all files, which nothing looks at.
        unseen = shutil.ignore_patterns("__pycache__", "include", "sympy", "networkx", "mpmath")
        try:
            shutil.copytree(site(source), self.site, True, unseen, copy_function=os.link)
        except (OSError, shutil.Error) as error:
            pytest.skip(f"{source} and {folder} share no file system: {error}")

    def remove(self, *names: str) -> None:
        """Remove a wheel with all its files, as `pip uninstall` would."""
        for name in names:
            folder = self.info(name)
            for line in (folder / "RECORD").read_text().splitlines():
                (self.site / line.rsplit(",", 2)[0]).unlink(missing_ok=True)
            shutil.rmtree(folder)

    def info(self, name: str) -> Path:
        """The dist-info of a distribution."""
        return next(self.site.glob(f"{name.replace('-', '_')}-[0-9]*.dist-info"))

    def rename(self, name: str, version: str) -> None:
        """Say that another version of a distribution is installed."""
        old = self.info(name)
        text = (old / "METADATA").read_text()
        before = old.name.removesuffix(".dist-info").rpartition("-")[2]
        new = old.with_name(old.name.replace(f"-{before}.", f"-{version}."))
        old.rename(new)
        (new / "METADATA").unlink()
        changed = text.replace(f"\nVersion: {before}\n", f"\nVersion: {version}\n", 1)
        (new / "METADATA").write_text(changed)


@pytest.fixture(name="twin")
def a_twin(python_cu130: str, tmp_path: Path) -> Iterator[Twin]:
    """The real CUDA 13.0 environment once more, to be broken."""
    yield Twin(python_cu130, tmp_path / "twin")
    shutil.rmtree(tmp_path / "twin")


def library(
    path: Path, *needs: str, tag: str = "", search: str = "", text: str = "", code: str = ""
) -> Path:
    """A library whose soname is its name; tag: rpath or runpath; text: a constant within."""
    path.parent.mkdir(parents=True, exist_ok=True)
    flags = [f"-Wl,-soname,{path.name}", "-Wl,--no-as-needed", "-Wl,--allow-shlib-undefined"]
    if tag:
        kind = "enable" if tag == "runpath" else "disable"
        flags += [f"-Wl,--{kind}-new-dtags", f"-Wl,-rpath,{search}"]
    hollow = path.parent / ".hollow"
    for name in needs:
        if not (hollow / name).exists():
            library(hollow / name)
    links = [str(hollow / name) for name in needs]
    code = f'const char stands_here[] = "{text}";' if text else code
    argv = [_compiler(), "-shared", "-fPIC", "-o", str(path), *flags, "-x", "c", "-", "-x", "none"]
    subprocess.run([*argv, *links], input=code, text=True, check=True)
    return path


def asks(symbol: str) -> str:
    """Code that does not load without a function of another library."""
    return f"void {symbol}(void); void (*asked)(void) = {symbol};"


def has(symbol: str) -> str:
    """Code with that function."""
    return f"void {symbol}(void) {{}}"


def numbered(folder: Path, soname: str, rest: str) -> Path:
    """A library by its soname, a link to the file that has its whole version in its name."""
    library(folder / soname)
    real = (folder / soname).rename(folder / f"{soname}.{rest}")
    (folder / soname).symlink_to(real.name)
    return real


def _compiler() -> str:
    found = shutil.which("gcc") or shutil.which("cc")
    if found is None:
        pytest.skip("no C compiler for the stand-in libraries")
    return found


def small_torch(place: Path, tag: str) -> None:
    """A torch of hollow libraries with its wheels, linked as the released ones are."""
    pinned = tuple(f'{pin}; platform_system == "Linux"' for pin in PINS_OF_2_6)
    torch = plant_torch(place, "2.6.0+cu124", "12.4", *pinned)
    (torch / "__init__.py").write_text(SMALL_INIT)
    for folder in _WHEELS:
        small_wheel(place, folder)
    search = ":".join(f"$ORIGIN/../../nvidia/{folder}/lib" for folder in _WHEELS)
    lib, both = torch / "lib", {"tag": tag, "search": f"$ORIGIN:{search}"}
    firsts = ("libcudart.so.12", "libcublas.so.12", "libcudnn.so.9", "libcusparse.so.12")
    library(lib / "libtorch_global_deps.so", *firsts, **both)
    library(lib / "libtorch_cuda.so", *firsts, "libnccl.so.2", **both)
    library(lib / "libtorch_python.so", "libtorch_cuda.so", text=ARCHS_OF_CU124, **both)
    own = f"$ORIGIN/lib:{search.replace('/../../', '/../')}"
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    library(torch / f"_C{suffix}", "libtorch_python.so", tag=tag, search=own)


def small_wheel(place: Path, folder: str, version: str | None = None, cuda: int = 12) -> Path:
    """A wheel of hollow libraries, in the version that torch 2.6.0 pins; its dist-info."""
    name = f"nvidia-{folder.replace('_', '-')}-cu12"
    pinned = next(pin.partition("==")[2] for pin in PINS_OF_2_6 if pin.startswith(f"{name}=="))
    for soname in _WHEELS[folder]:
        beside = ":".join(f"$ORIGIN/../../{other}/lib" for other in (folder, "nvjitlink"))
        path = place / "nvidia" / folder / "lib" / soname
        library(path, *_NEEDS.get(soname, ()), tag="runpath", search=f"$ORIGIN:{beside}")
    return plant(place, name.replace("cu12", f"cu{cuda}"), version or pinned)


def python_of(venv: Path) -> Path:
    return venv / "bin/python"
