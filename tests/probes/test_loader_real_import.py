"""The predicted libraries against a real `import torch` under settings of the loader."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cudadoctor.host.local import LocalHost
from cudadoctor.model.machine import Library
from cudadoctor.probes.libraries import TRACKED, read_libraries

PYTHON = Path(os.environ.get("CUDADOCTOR_TEST_CU130", "/tmp/envs/cu130/bin/python"))
pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not PYTHON.exists(), reason="no interpreter with a CUDA build of torch"),
]

# Libraries in the order in which they were loaded; an import that failed says so and lists nothing.
LOOK = r"""
import ctypes, json, os, sys
sys.path[:0] = [p for p in os.environ.get("EXTRA_PATHS", "").split(":") if p]
try:
    import torch
    if "cudnn" in sys.argv:
        torch.backends.cudnn.version()
    error = None
except Exception as e:
    error = str(e)
class Info(ctypes.Structure):
    _fields_ = [("addr", ctypes.c_void_p), ("name", ctypes.c_char_p)]
names = []
@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Info), ctypes.c_size_t, ctypes.c_void_p)
def see(info, size, data):
    names.append(os.path.realpath(os.fsdecode(info.contents.name or b"")))
    return 0
ctypes.CDLL(None).dl_iterate_phdr(see, None)
maps = {line.split(None, 5)[5].strip() for line in open("/proc/self/maps") if ".so" in line}
print(json.dumps({"error": error, "order": [n for n in names if n in maps]}))
"""


@pytest.fixture(scope="module")
def site() -> Path:
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(subprocess.check_output([PYTHON, "-Ic", code], text=True).strip())


def look(env: dict[str, str], *args: str) -> tuple[str | None, list[str]]:
    """What a real import says: its error, and the files of the process in loading order."""
    ran = subprocess.run(
        [PYTHON, "-c", LOOK, *args],
        env=env,
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    answer = json.loads(ran.stdout.splitlines()[-1])
    return answer["error"], answer["order"]


def predict(site: Path, env: dict[str, str]) -> tuple[Library, ...]:
    prefix = str(PYTHON.parent.parent)
    looked = read_libraries(LocalHost(), str(site / "torch"), (str(site),), prefix, env)
    predicted = looked.facts["libraries.predicted"]
    assert isinstance(predicted, tuple)
    return predicted


def setting(**changes: str) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("LD_")}
    return env | {"PYTHONDONTWRITEBYTECODE": "1"} | changes


def stubs(folder: Path, *sonames: str) -> Path:
    """Libraries of that name which hold nothing."""
    folder.mkdir(parents=True)
    for soname in sonames:
        build = ["gcc", "-shared", "-fPIC", "-o", str(folder / soname), f"-Wl,-soname,{soname}"]
        subprocess.run([*build, "-x", "c", "-"], input="", text=True, check=True)
    return folder


def wheel_file(site: Path, name: str) -> Path:
    return next(iter(sorted(site.glob(f"nvidia/*/lib/{name}"))))


def system_file(name: str) -> Path:
    listed = subprocess.check_output(["/sbin/ldconfig", "-p"], text=True)
    found = re.search(rf"{re.escape(name)} .*=> (\S+)", listed)
    assert found
    return Path(found[1]).resolve()


def agree(site: Path, env: dict[str, str], *args: str, mapped: str = "") -> tuple[Library, ...]:
    """The import succeeds and loads the predicted libraries in the predicted order.

    mapped: one that must be among them.
    """
    error, order = look(env, *args)
    assert error is None
    real = [path for path in order if TRACKED.fullmatch(soname_of(path))]
    predicted = predict(site, env)
    expected = [library.path for library in predicted if library.path in set(order)]
    assert [path for path in real if path in set(expected)] == expected
    assert sorted(set(real)) == sorted(set(expected))
    assert not mapped or named(predicted, mapped).path in order
    return predicted


def soname_of(path: str) -> str:
    return path.rpartition("/")[2]


def named(predicted: tuple[Library, ...], soname: str) -> Library:
    return next(library for library in predicted if library.soname == soname)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    shutil.rmtree(tmp_path, ignore_errors=True)


def test_without_settings_the_prediction_is_what_the_import_maps(site: Path, folder: Path) -> None:
    """And with folders on the library path that hold nothing, as every import would find."""
    predicted = agree(site, setting())
    assert named(predicted, "libcudnn.so.9").owner == "wheel"
    empty = setting(LD_LIBRARY_PATH=f"{folder}:/nowhere")
    assert predict(site, empty) == predict(site, setting())


def test_a_real_copy_on_the_library_path_is_predicted_as_it_is_mapped(
    site: Path, folder: Path
) -> None:
    """Of what torch asks for by name, and of the C++ library of the system."""
    for name in ("libcublasLt.so.13", "libnccl.so.2", "libcufile.so.0", "libnvrtc.so.13"):
        (folder / name).symlink_to(wheel_file(site, name))
    shutil.copy(wheel_file(site, "libcudart.so.13"), folder)
    shutil.copy(system_file("libstdc++.so.6"), folder / "libstdc++.so.6")
    predicted = agree(site, setting(LD_LIBRARY_PATH=str(folder)))
    assert named(predicted, "libstdc++.so.6").how == "LD_LIBRARY_PATH"


def test_a_preloaded_copy_is_predicted_beside_the_one_that_torch_opens(
    site: Path, folder: Path
) -> None:
    shutil.copy(wheel_file(site, "libcudart.so.13"), folder)
    shutil.copy(wheel_file(site, "libcufile.so.0"), folder)
    env = setting(LD_PRELOAD=f"{folder}/libcudart.so.13:{folder}/libcufile.so.0")
    first = named(agree(site, env), "libcudart.so.13")
    assert (first.path, first.how) == (f"{folder}/libcudart.so.13", "LD_PRELOAD")


def test_where_a_preloaded_stub_ends_the_import_the_prediction_names_it(
    site: Path, folder: Path
) -> None:
    stub = stubs(folder / "stubs", "libcudnn.so.9")
    env = setting(LD_PRELOAD=str(stub / "libcudnn.so.9"))
    error, _ = look(env)
    assert error is not None
    assert named(predict(site, env), "libcudnn.so.9").path == str(stub / "libcudnn.so.9")


def test_stubs_on_the_library_path_reach_neither_what_torch_opens_by_path_nor_parts_of_cudnn(
    site: Path, folder: Path
) -> None:
    names = ("libcudnn.so.9", "libcublas.so.13", "libnvJitLink.so.13", "libcudart.so.13")
    stub = stubs(folder / "stubs", *names, "libcudnn_graph.so.9", "libcublasLt.so.13")
    env = setting(LD_LIBRARY_PATH=str(stub))
    predicted = agree(site, env, "cudnn", mapped="libcudnn_graph.so.9")
    assert not [library for library in predicted if library.path.startswith(str(folder))]
    assert named(predicted, "libcudnn_graph.so.9").how == "DT_RPATH"
