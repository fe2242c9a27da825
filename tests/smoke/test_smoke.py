"""The smoke step in real interpreters, on the CPU, which also plays the GPU."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cudadoctor.host.local import LocalHost
from cudadoctor.model.machine import Gpu, Imported, Library, Smoke, Stage
from cudadoctor.probes import Looked
from cudadoctor.smoke import run_smoke
from cudadoctor.smoke.reading import STAGES

pytestmark = pytest.mark.torch

ON_CPU = {stage: "skipped" if stage == "cuda-graph" else "passed" for stage in STAGES}


def smoke_of(looked: Looked) -> Smoke:
    found = looked.facts["smoke"]
    assert isinstance(found, Smoke)
    return found


def stages_of(looked: Looked) -> dict[str, Stage]:
    return {stage.name: stage for stage in smoke_of(looked).stages}


def imported_of(looked: Looked) -> Imported:
    found = looked.facts["torch.imported"]
    assert isinstance(found, Imported)
    return found


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.fixture(scope="module")
def homely(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("smoke")
    folders = {name: base / name for name in ("home", "tmp", "cwd", "scratch")}
    for folder in folders.values():
        folder.mkdir()
    return folders


@pytest.fixture(scope="module")
def begun() -> list[str]:
    return []


@pytest.fixture(scope="module")
def healthy(python_cu130: str, homely: dict[str, Path], begun: list[str]) -> Looked:
    """A whole run, in the plainest locale, with a home and a temporary folder of its own."""
    env = {"PATH": os.environ["PATH"], "LC_ALL": "C", "HOME": str(homely["home"])}
    env["TMPDIR"] = str(homely["tmp"])
    host = LocalHost(scratch=str(homely["scratch"]))
    return run_smoke(host, python_cu130, mode="full", env=env, on_line=begun.append)


def test_every_stage_passes_on_a_healthy_cpu(healthy: Looked) -> None:
    stages = stages_of(healthy)
    assert {name: stage.status for name, stage in stages.items()} == ON_CPU
    assert stages["cuda-graph"].detail == "CUDA graphs exist only on a GPU"
    assert smoke_of(healthy).device == "cpu"
    assert smoke_of(healthy).ended is None


def test_a_run_on_the_cpu_says_that_it_proves_no_gpu(healthy: Looked) -> None:
    detail = stages_of(healthy)["allocate"].detail
    assert detail == "on the CPU: this tests torch, not the GPU"


def test_the_import_says_why_a_cuda_build_sees_no_gpu(healthy: Looked) -> None:
    imported = imported_of(healthy)
    assert (imported.ok, imported.cuda_available, imported.device_count) == (True, False, 0)
    assert "no NVIDIA driver" in (imported.cuda_error or "")
    assert imported.cudnn and imported.nccl
    assert (imported.numpy_error, imported.companion_errors) == ("", {})


def test_the_libraries_of_the_process_are_read_from_its_maps(healthy: Looked) -> None:
    mapped: tuple[Library, ...] = healthy.facts["libraries.mapped"]
    owners = {library.soname: library.owner for library in mapped}
    assert owners["libcudnn.so.9"] == "wheel"
    assert owners["libtorch_cuda.so"] == "torch"
    assert all(Path(library.path).is_absolute() for library in mapped)


def test_nothing_is_left_behind_and_nothing_is_written_elsewhere(
    healthy: Looked, homely: dict[str, Path]
) -> None:
    # torch makes this one at import, in the scratch folder where it was told to.
    homely["scratch"].joinpath("torchinductor_cache_dir").rmdir()
    assert {name: tree(folder) for name, folder in homely.items()} == {name: [] for name in homely}


def test_what_begins_is_told_as_it_begins(healthy: Looked, begun: list[str]) -> None:
    assert begun[0] == "import"
    assert set(STAGES) <= set(begun)


def test_without_a_smoke_torch_is_imported_and_looked_at_only(
    python_cpu: str, tmp_path: Path
) -> None:
    broken = {
        "torchvision": "raise RuntimeError('operator torchvision::nms does not exist')",
        "torchaudio": "import os; os.kill(os.getpid(), 6)",
        "numpy": "raise ModuleNotFoundError('numpy.core.multiarray')",
    }
    for name, text in broken.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(text)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    looked = run_smoke(LocalHost(), python_cpu, mode="import", env=env)
    imported = imported_of(looked)
    errors = imported.companion_errors or {}
    assert (imported.ok, imported.cuda_error) == (True, "")
    assert errors["torchvision"] == "RuntimeError: operator torchvision::nms does not exist"
    assert errors["torchaudio"].startswith("killed by SIGABRT")
    assert "numpy.core.multiarray" in (imported.numpy_error or "")
    assert "smoke" not in looked.facts


def test_an_asked_for_gpu_that_is_not_there_fails_with_the_words_of_cuda(python_cu130: str) -> None:
    looked = run_smoke(LocalHost(), python_cu130, mode="full", device="cuda:0")
    stages = stages_of(looked)
    assert stages["allocate"].status == "failed"
    assert "no NVIDIA driver" in (stages["allocate"].detail or "")
    assert {stages[name].status for name in STAGES[1:]} == {"skipped"}
    assert smoke_of(looked).device == "cuda:0"


def test_a_full_disk_skips_what_needs_a_file_and_says_so(python_cpu: str, tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nulimit -f 0\nexec {python_cpu} "$@"\n')
    script.chmod(0o755)
    stages = stages_of(run_smoke(LocalHost(), str(script), mode="full"))
    assert {name for name, stage in stages.items() if stage.status == "skipped"} == {
        *("ddp", "checkpoint", "cuda-graph"),
    }
    assert "cannot write to the temporary folder" in (stages["checkpoint"].detail or "")
    assert stages["train-fp32"].status == "passed"


def test_without_any_temporary_folder_the_rest_still_runs(python_cpu: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    host = LocalHost(scratch=str(tmp_path / "file" / "folder"))
    stages = stages_of(run_smoke(host, python_cpu, mode="full"))
    assert stages["matmul"].status == "passed"
    # Its caches cannot be made either, and the first words about that are kept.
    assert "import torch._dynamo: NotADirectoryError" in (stages["optimizer"].detail or "")
    assert stages["checkpoint"].detail == "there is no writable temporary folder"


def test_where_there_is_no_fork_every_worker_starts_anew(python_cpu: str) -> None:
    looked = run_smoke(LocalHost(), python_cpu, mode="full", start="spawn", plant="conv:crash")
    stages = stages_of(looked)
    assert stages["conv"].status == "failed"
    assert "SIGSEGV" in (stages["conv"].detail or "")
    others = {name: stage.status for name, stage in stages.items() if name != "conv"}
    assert others | {"conv": "passed"} == ON_CPU


def test_three_ranks_can_be_asked_for(python_cpu: str) -> None:
    looked = run_smoke(LocalHost(), python_cpu, mode="full", device="cpu", ranks=3)
    assert stages_of(looked)["ddp"].detail == "gloo, 3 ranks"


def test_gpus_in_use_are_left_alone_and_named(python_cpu: str) -> None:
    gpus = (Gpu(index=0, compute_mode="prohibited"), Gpu(index=1), Gpu(index=2))
    looked = run_smoke(LocalHost(), python_cpu, mode="full", gpus=gpus, pretend=3)
    stages = stages_of(looked)
    assert smoke_of(looked).device == "cuda:1"
    assert stages["gpu-0"].detail == "GPU 0 was not used: the GPU's compute mode is prohibited"
    assert stages["ddp"].detail == "gloo, 2 ranks"
    assert {name: stages[name].status for name in STAGES} == ON_CPU


@pytest.mark.parametrize(
    ("plant", "bad", "skipped"),
    [
        (
            "conv:crash,matmul:elsewhere,amp-fp16:error",
            *({"conv", "matmul", "amp-fp16"}, {"cuda-graph"}),
        ),
        ("conv:hang", {"conv"}, set(STAGES[3:])),
        ("allocate:error", {"allocate"}, set(STAGES[1:])),
    ],
)
def test_on_a_gpu_the_stages_go_on_after_a_crash_and_stop_at_a_hang(
    python_cpu: str, plant: str, bad: set[str], skipped: set[str]
) -> None:
    limit = 2.0 if "hang" in plant else None
    looked = run_smoke(LocalHost(), python_cpu, mode="full", pretend=1, plant=plant, limit=limit)
    stages = stages_of(looked)
    assert {
        name for name, stage in stages.items() if stage.status in ("failed", "timed-out")
    } == bad
    assert {name for name, stage in stages.items() if stage.status == "skipped"} == skipped


NCCL = """
import os, torch.distributed as distributed
of = distributed.all_reduce
def all_reduce(buffer, **named):
    if os.environ.get({name!r}) != {value!r}:
        with open(os.environ["NCCL_DEBUG_FILE"], "a") as log:
            log.write("host:1:2 [0] transport/nvls.cc:158 NCCL WARN Cuda failure 'broken'\\n")
        raise RuntimeError("NCCL error in: ProcessGroupNCCL.cpp, unhandled cuda error")
    of(buffer, **named)
distributed.all_reduce = all_reduce
"""


@pytest.mark.parametrize(
    ("name", "value", "again"),
    [
        ("NCCL_NVLS_ENABLE", "0", {"nvls": "passed"}),
        ("NCCL_P2P_DISABLE", "1", {"nvls": "failed", "p2p": "passed"}),
        ("NCCL_IB_DISABLE", "1", {"nvls": "failed", "p2p": "failed", "ib": "passed"}),
        ("NCCL_NOTHING", "1", {"nvls": "failed", "p2p": "failed", "ib": "failed"}),
    ],
)
def test_ranks_that_fail_run_again_without_one_transport_after_the_other(
    python_cpu: str, tmp_path: Path, name: str, value: str, again: dict[str, str]
) -> None:
    (tmp_path / "sitecustomize.py").write_text(NCCL.format(name=name, value=value))
    env = {key: text for key, text in os.environ.items() if not key.startswith("NCCL_")}
    env["PYTHONPATH"] = str(tmp_path)
    looked = run_smoke(LocalHost(), python_cpu, mode="full", env=env, pretend=2)
    stages = stages_of(looked)
    assert {
        stage.removeprefix("ddp-without-"): found.status
        for stage, found in stages.items()
        if stage.startswith("ddp-without-")
    } == again
    assert stages["ddp"].status == "failed"
    assert "; NCCL: Cuda failure 'broken'" in (stages["ddp"].detail or "")


def test_torch_compile_is_tried_where_it_is_asked_for(
    python_cpu: str, homely: dict[str, Path]
) -> None:
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler")
    env = {"PATH": os.environ["PATH"], "HOME": str(homely["home"]), "TMPDIR": str(homely["tmp"])}
    host = LocalHost(scratch=str(homely["scratch"]))
    more = {"env": env, "device": "cpu", "timeout_s": 180.0}
    looked = run_smoke(host, python_cpu, mode="full", compiles=True, **more)  # type: ignore[arg-type]
    stages = {name: stage.status for name, stage in stages_of(looked).items()}
    assert stages == {**ON_CPU, "compile": "passed"}
    assert not [path for folder in ("home", "tmp") for path in tree(homely[folder])]


def test_where_nothing_may_be_compiled_that_is_said(python_cpu: str) -> None:
    env = {**os.environ, "TORCH_COMPILE_DISABLE": "1"}
    more = {"env": env, "device": "cpu", "compiles": True}
    looked = run_smoke(LocalHost(), python_cpu, mode="full", **more)  # type: ignore[arg-type]
    stage = stages_of(looked)["compile"]
    assert (stage.status, stage.detail) == ("skipped", "TORCH_COMPILE_DISABLE is set")


MUTE = """
#include <dlfcn.h>
#include <unistd.h>
int cuInit(unsigned flags) { for (;;) pause(); return (int)flags; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuGetProcAddress(const char *name, void **found, int version, unsigned long long flags) {
  (void)version; (void)flags;
  *found = dlsym(dlopen("libcuda.so.1", RTLD_LAZY), name);
  return *found ? 0 : 500;
}
int cuGetProcAddress_v2(const char *name, void **found, int v, unsigned long long f, void *s) {
  (void)s;
  return cuGetProcAddress(name, found, v, f);
}
"""


def test_a_driver_that_never_answers_is_said_and_nothing_waits_for_it(
    python_cu130: str, tmp_path: Path
) -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler to make a driver that blocks")
    (tmp_path / "mute.c").write_text(MUTE)
    made = ["cc", "-shared", "-fPIC", "-o", "libcuda.so.1", "mute.c", "-ldl"]
    subprocess.run(made, cwd=tmp_path, check=True, capture_output=True)
    env = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    looked = run_smoke(LocalHost(), python_cu130, mode="full", env=env, limit=1.5)
    stages = stages_of(looked)
    assert imported_of(looked).hung is True
    assert (stages["allocate"].status, stages["ddp"].status) == ("timed-out", "skipped")
    assert {gap.fact for gap in looked.gaps} == {"torch.imported.cuda_available"}


LOCAL = {
    "killed": ("import os; os.kill(os.getpid(), 11)", "import torch: killed by SIGSEGV"),
    "raising": ("import json.nothing", "ModuleNotFoundError: No module named 'json.nothing'"),
    "leaving": ("raise SystemExit(3)", "SystemExit: 3"),
}


def first(folder: Path) -> dict[str, str]:
    """An environment in which a folder comes first on the path."""
    return {**os.environ, "PYTHONPATH": str(folder)}


@pytest.mark.parametrize("kind", LOCAL)
def test_a_torch_py_on_pythonpath_is_what_python_imports(tmp_path: Path, kind: str) -> None:
    text, error = LOCAL[kind]
    (tmp_path / "torch.py").write_text(text)
    looked = run_smoke(LocalHost(), sys.executable, mode="full", env=first(tmp_path))
    assert (imported_of(looked).ok, (imported_of(looked).error or "")[: len(error)]) == (
        False,
        error,
    )
    assert [gap.fact for gap in looked.gaps] == ["smoke"]


def test_a_file_that_is_no_torch_is_named_as_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("print('hello'); x = 1\n")
    imported = imported_of(run_smoke(LocalHost(), sys.executable, mode="full", env=first(tmp_path)))
    assert imported.ok is False
    assert str(tmp_path / "torch.py") in (imported.error or "")


def test_an_import_that_never_ends_is_known_to_hang(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import time; time.sleep(600)")
    looked = run_smoke(LocalHost(), sys.executable, mode="full", env=first(tmp_path), timeout_s=1.0)
    assert imported_of(looked).hung is True
    assert {gap.fact for gap in looked.gaps} == {"torch.imported.cuda_available", "smoke"}


def test_a_json_py_of_the_user_does_not_silence_the_child(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise RuntimeError('the json.py of the user')")
    (tmp_path / "torch.py").write_text("import json")
    imported = imported_of(
        run_smoke(LocalHost(), sys.executable, mode="import", env=first(tmp_path))
    )
    assert imported.error == "RuntimeError: the json.py of the user"


@pytest.mark.parametrize("python", ["/nonexistent/python", "/bin/true", "/etc/passwd"])
def test_what_is_no_python_is_a_gap(python: str) -> None:
    looked = run_smoke(LocalHost(), python, mode="full")
    assert looked.facts == {}
    assert [gap.fact for gap in looked.gaps] == ["torch.imported", "smoke"]
