"""The libraries probe on planted environments, and on an older torch that is really imported."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from functools import cache
from pathlib import Path

import pytest

from cudadoctor.host.local import LocalHost
from cudadoctor.model.machine import Library
from cudadoctor.probes import Looked
from cudadoctor.probes.libraries import Owners, mapped_libraries, read_libraries
from cudadoctor.probes.torch_order import Wheel, parse_order

needs_gcc = pytest.mark.skipif(
    not shutil.which("gcc") or sys.platform != "linux", reason="needs gcc on Linux"
)
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX") or ".so"

# The shape of torch 2.0 to 2.5: the wheels' libraries are opened only when the first opening fails.
INIT_OLD = """
import ctypes, glob, os, sys
def _preload_cuda_deps(lib_folder, lib_name):
    for path in sys.path:
        found = glob.glob(os.path.join(path, "nvidia", lib_folder, "lib", lib_name))
        if found:
            ctypes.CDLL(found[0])
            return
    raise ValueError(lib_name)
def _load_global_deps():
    here = os.path.dirname(os.path.abspath(__file__)) + "/lib/libtorch_global_deps.so"
    try:
        ctypes.CDLL(here, mode=ctypes.RTLD_GLOBAL)
    except OSError as err:
        cuda_libs = {
            "cublas": "libcublas.so.*[0-9]",
            "cuda_runtime": "libcudart.so.*[0-9]",
            "nvjitlink": "libnvJitLink.so.*[0-9]",
            "cusparse": "libcusparse.so.*[0-9]",
        }
        if not any(lib.split(".")[0] in err.args[0] for lib in cuda_libs.values()):
            raise err
        for lib_folder, lib_name in cuda_libs.items():
            _preload_cuda_deps(lib_folder, lib_name)
        ctypes.CDLL(here, mode=ctypes.RTLD_GLOBAL)
_load_global_deps()
ctypes.CDLL(glob.glob(os.path.dirname(__file__) + "/_C.*")[0])
"""
# The shape of torch 2.6 and 2.7: nvJitLink is opened early where CUDA and the wheels are such.
INIT_EARLY = INIT_OLD.replace(
    "    except OSError as err:",
    """        from torch import version
        if version.cuda not in ["12.4", "12.6"]:
            return
        try:
            with open("/proc/self/maps") as f:
                _maps = f.read()
            if "nvidia/cuda_runtime/lib/libcudart.so" not in _maps:
                return
            _preload_cuda_deps("nvjitlink", "libnvJitLink.so.*[0-9]")
        except Exception:
            pass
    except OSError as err:""",
)


# Torch 2.6 as it was released: the same conditions the other way round.
INIT_POSITIVE = INIT_OLD.replace(
    "    except OSError as err:",
    """        from torch import version
        if version.cuda in ["12.4", "12.6"]:
            with open("/proc/self/maps") as f:
                _maps = f.read()
            if "nvidia/cuda_runtime/lib/libcudart.so" in _maps:
                _preload_cuda_deps("nvjitlink", "libnvJitLink.so.*[0-9]")
    except OSError as err:""",
)
INITS = {"torch-2.5": INIT_OLD, "torch-2.6": INIT_POSITIVE, "torch-2.7": INIT_EARLY}


def library(path: Path, *needs: str, tag: str = "", search: str = "") -> Path:
    """A library that needs others by soname, with DT_RPATH or DT_RUNPATH."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(linked(path.name, needs, tag, search))
    path.chmod(0o755)
    return path


@cache
def linked(soname: str, needs: tuple[str, ...], tag: str, search: str) -> bytes:
    """The bytes of such a library, which holds no trace of where it was linked."""
    flags = [f"-Wl,-soname,{soname}", "-Wl,--no-as-needed"]
    if tag:
        new = "enable" if tag == "runpath" else "disable"
        flags += [f"-Wl,--{new}-new-dtags", f"-Wl,-rpath,{search}"]
    with tempfile.TemporaryDirectory() as folder:
        links = [str(library(Path(folder, "needs", name))) for name in needs]
        made = Path(folder, soname)
        command = ["gcc", "-shared", "-fPIC", "-o", str(made), *flags, "-x", "c", "-", "-x", "none"]
        subprocess.run([*command, *links], input="", text=True, check=True)
        return made.read_bytes()


class Planted:
    """A site-packages with a torch and wheels, small enough to build in a second."""

    def __init__(self, site: Path, init: str, tag: str, cuda: str = "12.4") -> None:
        self.site = site
        self.torch = site / "torch"
        wheels = {
            "cublas": ("libcublas.so.12", ()),
            "cuda_runtime": ("libcudart.so.12", ()),
            "nvjitlink": ("libnvJitLink.so.12", ()),
            "cusparse": ("libcusparse.so.12", ("libnvJitLink.so.12",)),
        }
        for folder, (name, needs) in wheels.items():
            # With DT_RUNPATH, which is not inherited, a wheel needs one of its own.
            own_tag = tag if needs and tag == "runpath" else ""
            path = site / "nvidia" / folder / "lib" / name
            library(path, *needs, tag=own_tag, search="$ORIGIN/../../nvjitlink/lib")
        search = ":".join(f"$ORIGIN/../../nvidia/{folder}/lib" for folder in wheels)
        lib = self.torch / "lib"
        library(lib / "libtorch_global_deps.so", "libcudart.so.12", tag=tag, search=search)
        both = ("libcublas.so.12", "libcusparse.so.12", "libcudart.so.12")
        library(lib / "libtorch_cuda.so", *both, tag=tag, search=search)
        own = f"$ORIGIN/lib:{search}"
        library(self.torch / f"_C{SUFFIX}", "libtorch_cuda.so", tag=tag, search=own)
        (self.torch / "__init__.py").write_text(init)
        (self.torch / "version.py").write_text(f"cuda = '{cuda}'\n")

    def predict(self, **env: str) -> Looked:
        site, prefix = str(self.site), sys.prefix
        return read_libraries(LocalHost(), f"{site}/torch", (site,), prefix, env, sys.executable)

    def imported(self, **env: str) -> dict[str, str] | None:
        """name -> file, of a real import; None where it failed."""
        code = (
            "import sys, json; sys.path.insert(0, sys.argv[1]); import torch;"
            "rows = {l.split(None, 5)[5].strip() for l in open('/proc/self/maps') if '.so' in l};"
            "print(json.dumps(sorted(rows)))"
        )
        command = [sys.executable, "-Ic", code, str(self.site)]
        ran = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        if ran.returncode:
            return None
        return {path.rpartition("/")[2]: path for path in json.loads(ran.stdout)}


def by_soname(looked: Looked, fact: str = "libraries.predicted") -> dict[str, Library]:
    found: dict[str, Library] = {}
    for file in looked.facts[fact]:
        found.setdefault(file.soname, file)
    return found


@needs_gcc
@pytest.mark.parametrize("init", INITS.values(), ids=INITS)
@pytest.mark.parametrize("tag", ["rpath", "runpath", ""])
@pytest.mark.parametrize("shadowed", ["", "libnvJitLink.so.12", "libcudart.so.12"])
@pytest.mark.parametrize("cuda", ["12.4", "12.1"])
def test_older_torches_get_the_predicted_libraries(
    tmp_path: Path, init: str, tag: str, shadowed: str, cuda: str
) -> None:
    planted = Planted(tmp_path / "site", init, tag, cuda)
    env = {}
    if shadowed:
        library(tmp_path / "foreign" / shadowed)
        env["LD_LIBRARY_PATH"] = str(tmp_path / "foreign")
    if not tag:
        env["LD_LIBRARY_PATH"] = f"{env.get('LD_LIBRARY_PATH', '')}:{tmp_path}/site/torch/lib"
    looked = planted.predict(**env)
    real, predicted = planted.imported(**env), by_soname(looked)
    if real is None:
        assert (tag, shadowed) == ("", "libcudart.so.12")  # it loads, so nothing is rescued
        assert looked.facts["libraries.missing"]
        return
    assert looked.facts["libraries.missing"] == ()
    tracked = ("libcublas.so.12", "libcudart.so.12", "libnvJitLink.so.12", "libcusparse.so.12")
    assert {n: real[n] for n in tracked} == {n: predicted[n].path for n in tracked}


@needs_gcc
def test_a_foreign_library_that_shadows_says_by_which_rule(tmp_path: Path) -> None:
    planted = Planted(tmp_path / "site", INIT_OLD, "runpath")
    foreign = library(tmp_path / "foreign/libnvJitLink.so.12")
    found = by_soname(planted.predict(LD_LIBRARY_PATH=str(foreign.parent)))["libnvJitLink.so.12"]
    assert (found.path, found.how, found.owner) == (str(foreign), "LD_LIBRARY_PATH", "other")
    assert found.via == "libcusparse.so.12"


@needs_gcc
def test_dt_rpath_keeps_a_foreign_library_out(tmp_path: Path) -> None:
    planted = Planted(tmp_path / "site", INIT_OLD, "rpath")
    foreign = library(tmp_path / "foreign/libnvJitLink.so.12")
    found = by_soname(planted.predict(LD_LIBRARY_PATH=str(foreign.parent)))["libnvJitLink.so.12"]
    assert (found.how, found.owner) == ("DT_RPATH", "wheel")


@needs_gcc
def test_a_library_that_nothing_provides_is_missing(tmp_path: Path) -> None:
    planted = Planted(tmp_path / "site", INIT_OLD, "rpath")
    shutil.rmtree(tmp_path / "site/nvidia/cublas")
    looked = planted.predict()
    assert looked.facts["libraries.missing"] == ("libcublas.so.12",)
    assert "libcusparse.so.12" in by_soname(looked)


@needs_gcc
def test_an_empty_foreign_file_is_named_although_it_cannot_load(tmp_path: Path) -> None:
    planted = Planted(tmp_path / "site", INIT_OLD, "runpath")
    (tmp_path / "libcublas.so.12").touch()
    found = by_soname(planted.predict(LD_LIBRARY_PATH=str(tmp_path)))["libcublas.so.12"]
    assert found.path == str(tmp_path / "libcublas.so.12")


@needs_gcc
def test_copies_have_their_owner_and_version(tmp_path: Path) -> None:
    planted = Planted(tmp_path / "site", INIT_OLD, "rpath")
    (tmp_path / "site/nvidia_cublas_cu12-12.4.5.8.dist-info").mkdir()
    real = library(tmp_path / "foreign/libcublas.so.12.1.3.1")
    (tmp_path / "foreign/libcublas.so.12").symlink_to(real.name)
    (tmp_path / "conda/conda-meta").mkdir(parents=True)
    library(tmp_path / "conda/lib/libnccl.so.2.21.5")
    env = {"LD_LIBRARY_PATH": str(real.parent), "CONDA_PREFIX": str(tmp_path / "conda")}
    copies = planted.predict(**env).facts["libraries.copies"]
    seen = {(copy.owner, copy.version) for copy in copies if copy.path.startswith(str(tmp_path))}
    assert ("wheel", "12.4.5.8") in seen
    assert ("other", "12.1.3.1") in seen
    assert ("conda", "2.21.5") in seen
    assert len([copy for copy in copies if copy.path == str(real)]) == 1


@needs_gcc
def test_where_two_wheels_claim_a_file_the_one_that_wrote_it_counts(tmp_path: Path) -> None:
    planted = Planted(tmp_path / "site", INIT_OLD, "rpath")
    path = "nvidia/cublas/lib/libcublas.so.12"
    size = (tmp_path / "site" / path).stat().st_size
    for name, length in (("cu11-11.10.3.66", 5), ("cu12-12.4.5.8", size)):
        folder = tmp_path / f"site/nvidia_cublas_{name}.dist-info"
        folder.mkdir()
        (folder / "RECORD").write_text(f"{path},sha256=x,{length}\n")
    assert by_soname(planted.predict())["libcublas.so.12"].version == "12.4.5.8"


@needs_gcc
def test_wheels_that_are_links_into_a_cache_belong_to_the_environment(tmp_path: Path) -> None:
    planted = Planted(tmp_path / "site", INIT_OLD, "rpath")
    inside = tmp_path / "site/nvidia/cublas/lib/libcublas.so.12"
    shutil.move(inside, tmp_path / "cached.so")
    inside.symlink_to(tmp_path / "cached.so")
    looked = planted.predict()
    assert by_soname(looked)["libcublas.so.12"].owner == "wheel"
    assert str(tmp_path) in looked.facts["libraries.own"]


@needs_gcc
def test_mapped_files_become_facts(tmp_path: Path) -> None:
    planted = Planted(tmp_path / "site", INIT_OLD, "rpath")
    foreign = library(tmp_path / "libcudnn.so.9")
    own = tmp_path / "site/nvidia/cublas/lib/libcublas.so.12"
    maps = (str(foreign), str(own), str(own), "/usr/bin/python3", "/gone/libnccl.so.2")
    site = (str(planted.site),)
    owners = Owners(LocalHost(), str(planted.torch), site, None, {})
    found = mapped_libraries(owners, maps)
    assert [(file.soname, file.owner, file.how) for file in found] == [
        ("libcudnn.so.9", "other", "mapped"),
        ("libcublas.so.12", "wheel", "mapped"),
        ("libnccl.so.2", "other", "mapped"),
    ]


def test_no_torch_is_a_gap_and_copies_are_still_found() -> None:
    looked = read_libraries(LocalHost(), None, (), None, {})
    assert "libraries.predicted" not in looked.facts
    assert [gap.fact for gap in looked.gaps] == ["libraries.predicted"]
    assert "libraries.copies" in looked.facts


@pytest.mark.parametrize("path", ["/dev/null", "/proc/self/mem", "\0", "x" * 5000, ":" * 9])
def test_odd_paths_never_raise(tmp_path: Path, path: str) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/_C.so").write_bytes(b"\x7fELF garbage")
    env = {"LD_LIBRARY_PATH": path, "LD_PRELOAD": path, "CUDA_HOME": path, "CONDA_PREFIX": path}
    looked = read_libraries(LocalHost(), f"{tmp_path}/torch", (str(tmp_path), path), path, env)
    assert isinstance(looked.facts["libraries.predicted"], tuple)


def test_a_torch_without_its_extension_module_is_a_gap(tmp_path: Path) -> None:
    looked = read_libraries(LocalHost(), str(tmp_path), (), None, dict(os.environ))
    assert "extension module" in looked.gaps[0].why


def test_the_order_of_recent_torches_is_read_from_their_text() -> None:
    text = """
def _preload_cuda_deps(err=None, required=True):
    cuda_libs = [
        ("cublas", "libcublasLt.so.*[0-9]"),
        ("cublas", "libcublas.so.*[0-9]"),
    ]
    _preload_cuda_lib("nvtx", "libnvToolsExt.so.*[0-9]", required=False)

def _load_global_deps():
    try:
        if "libcudart.so" not in _maps:
            return
        _preload_cuda_deps(CALL)
    except OSError as err:
        _preload_cuda_deps(err)
"""
    strict = parse_order(text.replace("CALL", ""), "13.0")
    assert strict.after == (
        Wheel("cublas", "libcublasLt.so.*[0-9]"),
        Wheel("cublas", "libcublas.so.*[0-9]"),
        Wheel("nvtx", "libnvToolsExt.so.*[0-9]", required=False),
    )
    loose = parse_order(text.replace("CALL", "required=False"), "13.0")
    assert not any(wheel.required for wheel in loose.after)
    assert loose.rescue == strict.rescue


@pytest.mark.parametrize("text", ["", "def _load_global_deps(", "\ndef _load_global_deps():\n"])
def test_a_torch_whose_text_says_nothing_preloads_nothing(text: str) -> None:
    order = parse_order(text, None)
    assert (order.after, order.rescue, order.marker) == ((), (), None)
