"""Extensions whose projects publish wheels for some builds of torch: the wheel comes, or torch moves."""

from __future__ import annotations

import pytest

from cudadoctor import knowledge
from cudadoctor.model.trust import foreign
from cudadoctor.pipeline import judge
from cudadoctor.reports.reading import read_report

KB = knowledge.load()
HOST = "Ubuntu 22.04, RTX 3090, driver 550.90.07, Python 3.9"
MMCV = "https://download.openmmlab.com/mmcv/dist"
NO_OPS = "ModuleNotFoundError: No module named 'mmcv._ext'"
SYMBOL = "undefined symbol: _ZNK2at6Tensor7reshapeEN3c108ArrayRefIlEE"


def typed(text: str) -> list[str]:
    steps = judge(foreign(read_report(text, KB))).plan.steps
    return [" ".join(argv) for argv in steps[0].commands] if steps else []


def pasted(error: str, *packages: str, host: str = HOST) -> str:
    return "\n".join((host, "", error, "", "pip list:", *packages, ""))


@pytest.mark.parametrize(
    ("packages", "page"),
    [
        # torch 2.4 has a wheel of 2.2.0 alone: for 2.1.0 torch goes back to the nearest that has.
        (("mmcv 2.1.0", "torch 2.4.1", "torchvision 0.19.1"), "cu121/torch2.1.0"),
        (("mmcv 2.2.0", "torch 2.5.1+cu121", "torchvision 0.20.1+cu121"), "cu121/torch2.4.0"),
        (("mmcv 2.0.1", "torch 2.1.2+cu118", "torchvision 0.16.2+cu118"), "cu118/torch2.0.0"),
    ],
)
def test_torch_moves_to_the_wheel_of_an_extension(packages: tuple[str, ...], page: str) -> None:
    *_, torch, last = typed(pasted(NO_OPS, *packages))
    wanted = page.partition("/torch")[2].removesuffix(".0")
    assert f"torch=={wanted}." in torch
    assert "torchvision==0." in torch
    name, _, release = packages[0].partition(" ")
    assert f"{name}=={release}" in last
    assert last.endswith(f"--find-links {MMCV}/{page}/index.html")
    assert "--no-build-isolation" not in last


def test_torch_stays_where_its_own_wheel_is_published() -> None:
    packages = ("mmcv 2.1.0", "torch 2.1.2+cu118", "torchvision 0.16.2+cu118")
    away, comes = typed(pasted(NO_OPS, *packages))
    assert away.endswith("pip uninstall -y mmcv")
    assert "torch==" not in comes
    assert comes.endswith(f"mmcv==2.1.0 --find-links {MMCV}/cu118/torch2.1.0/index.html")


def test_no_wheel_is_named_for_a_python_or_gpu_that_has_none() -> None:
    packages = ("mmcv 2.1.0", "torch 2.4.1", "torchvision 0.19.1")
    newer = pasted(NO_OPS, *packages, host=HOST.replace("3.9", "3.12"))
    blackwell = pasted(NO_OPS, *packages, host=HOST.replace("RTX 3090", "RTX 5090"))
    assert not any("openmmlab" in line for text in (newer, blackwell) for line in typed(text))


def test_the_wheel_of_a_page_is_named_with_its_tag() -> None:
    file = (
        "ImportError: /env/lib/python3.9/site-packages/detectron2/_C.cpython-39-x86_64-linux-gnu.so"
    )
    packages = ("detectron2 0.6+cu113", "torch 1.11.0+cu113", "torchvision 0.12.0+cu113")
    *_, torch, last = typed(pasted(f"{file}: {SYMBOL}", *packages))
    assert "torch==1.10.2 torchvision==0.11.3" in torch
    assert "detectron2==0.6+cu113" in last
    assert "/detectron2/wheels/cu113/torch1.10/index.html" in last


LIBRARY = (
    "ImportError: libcudart.so.11.0: cannot open shared object file: No such file or directory"
)


def test_a_wheel_of_another_cuda_gives_way_to_the_flavour_of_torch() -> None:
    packages = ("auto-gptq 0.7.1+cu118", "torch 2.2.1+cu121", "transformers 4.39.3")
    lines = typed(pasted(f"{LIBRARY}\n  import exllama_kernels  # auto_gptq", *packages))
    assert [line.partition("pip ")[2] for line in lines] == [
        "uninstall -y auto-gptq",
        "install auto-gptq==0.7.1",
    ]


OLD = (
    "RuntimeError: The NVIDIA driver on your system is too old (found version 12020). Please update"
)


@pytest.mark.parametrize(
    ("release", "moves"),
    [("0.11.0", True), ("0.11.0+cpu", False), ("0.11.1", False)],
)
def test_torchcodec_of_one_cuda_comes_from_torchs_index(release: str, moves: bool) -> None:
    # PyPI has 0.11.0 for CUDA 13 and 0.11.1 for the CPU.
    packages = ("torch==2.11.0", "torchvision==0.26.0", f"torchcodec=={release}")
    host = HOST.replace("550.90.07", "535.183.01").replace("3.9", "3.12")
    last = typed(pasted(OLD, *packages, host=host))[-1]
    assert "torch==2.11.0" in last
    assert ("torchcodec==0.11.0" in last) is moves


@pytest.mark.parametrize(("release", "kept"), [("0.0.35", True), ("0.0.34", False)])
def test_xformers_of_the_stable_abi_holds_no_torch_back(release: str, kept: bool) -> None:
    host = HOST.replace("3.9", "3.12")
    packages = ("torch 2.14.1", "torchvision 0.29.2", f"xformers {release}")
    last = typed(pasted(OLD, *packages, host=host))[-1]
    assert ("torch==2.14.1" in last and f"xformers=={release}" in last) is kept


def test_triton_alone_goes_back_where_only_it_differs() -> None:
    error = "ImportError: cannot import name 'AttrsDescriptor' from 'triton.compiler.compiler'"
    packages = ("torch 2.5.1+cu121", "torchvision 0.20.1+cu121", "triton 3.3.0")
    (line,) = typed(pasted(error, *packages))
    assert line.endswith("pip install triton==3.1.0")
    as_pinned = typed(pasted(error, *packages[:2], "triton 3.1.0"))
    assert not any("install triton" in line for line in as_pinned)


def test_bitsandbytes_for_windows_has_a_release() -> None:
    file = "C:\\venv\\lib\\site-packages\\bitsandbytes\\libbitsandbytes_cpu.so"
    packages = ("torch 2.2.2+cu121", "bitsandbytes 0.41.1")
    host = "Windows 10, RTX 2070 Super, Python 3.10.6"
    lines = typed(pasted(f"CUDA SETUP: Loading binary {file}...", *packages, host=host))
    assert lines[-1].endswith("pip install bitsandbytes==0.43.3")


@pytest.mark.parametrize(
    ("words", "models"),
    [
        ("RTX 6000", ["RTX 6000"]),
        ("RTX 6000 Pro", ["RTX PRO 6000 Blackwell"]),
        ("RTX PRO 6000", ["RTX PRO 6000 Blackwell"]),
        ("Quadro RTX 6000", ["Quadro RTX 6000"]),
        ("RTX 4000 SFF Ada", ["RTX 4000 SFF Ada Generation"]),
    ],
)
def test_a_number_of_several_boards_is_none_of_them(words: str, models: list[str]) -> None:
    machine = read_report(f"torch 2.4.1+cu121 on my {words}, Ubuntu 22.04: no kernel image", KB)
    assert [gpu.name for gpu in machine.gpus or ()] == models
    assert (len(KB.gpus_by_name(models[0])) > 1) is (words == "RTX 6000")


def test_what_a_listed_package_pins_beside_torch_moves_along() -> None:
    error = (
        "NVIDIA GeForce RTX 5070 Ti with CUDA capability sm_120 is not compatible with the current "
        "PyTorch installation."
    )
    packages = ("audiocraft==1.3.0", "torch==2.1.0", "torchaudio==2.1.0")
    host = "Ubuntu 22.04, RTX 5070 Ti, driver 570.169, Python 3.10"
    last = typed(pasted(error, *packages, host=host))
    assert any("torchvision==0.22" in line for line in last)
    alone = typed(pasted(error, *packages[1:], host=host))
    assert not any("torchvision" in line for line in alone)
