"""The command that a pasted report gets, where GPU, driver, Python and torch stand in it."""

from __future__ import annotations

import pytest
from told_fixtures import without_words

from cudadoctor import knowledge
from cudadoctor.model.findings import Plan
from cudadoctor.model.trust import foreign
from cudadoctor.pipeline import Judged, judge
from cudadoctor.reports.reading import read_report

KB = knowledge.load()
LINUX = """OS: Ubuntu 22.04.4 LTS (x86_64)
Python version: 3.11.9 (64-bit runtime)
GPU models and configuration: GPU 0: {gpu}
Nvidia driver version: {driver}
PyTorch version: {torch}
"""


def judged(text: str) -> Judged:
    return judge(foreign(without_words(text)))


def report(
    error: str,
    torch: str = "2.7.1+cu128",
    gpu: str = "NVIDIA GeForce RTX 3090",
    driver: str = "570.86.15",
) -> Judged:
    return judged(LINUX.format(gpu=gpu, driver=driver, torch=torch) + error)


def lines(plan: Plan) -> list[str]:
    """The commands and settings of the first step, then of its alternatives."""
    found = [" ".join(argv) for step in plan.steps for argv in step.commands]
    return found + [
        f"{name}={value}" for step in plan.steps for name, value in step.variables.items()
    ]


def first(of: Judged) -> str:
    return " | ".join(lines(of.plan))


# --- libraries ------------------------------------------------------------------------------------

CUDNN = "[pip3] nvidia-cudnn-cu12=={release}\n[pip3] torch==2.7.1+{variant}\n"


@pytest.mark.parametrize(
    ("variant", "release", "pinned"),
    [
        ("cu126", "9.13.0.50", "9.5.1.17"),
        ("cu128", "9.13.0.50", "9.7.1.26"),
        ("cu126", "9.5.1.17", None),
        ("cu128", "9.7.1.26", None),
    ],
)
def test_pins_apply_to_a_version_with_a_local_part(
    variant: str, release: str, pinned: str | None
) -> None:
    listed = CUDNN.format(release=release, variant=variant)
    error = "RuntimeError: cuDNN error: CUDNN_STATUS_ARCH_MISMATCH"
    gpu = "Tesla V100-SXM2-16GB" if variant == "cu126" else "Tesla T4"
    found = report(listed + error, f"2.7.1+{variant}", gpu, "535.183.01")
    if pinned:
        assert found.diagnosis.primary == "nvidia-wheels-mixed"
        assert f"install nvidia-cudnn-cu12=={pinned}" in first(found)
    else:
        assert found.diagnosis.primary != "nvidia-wheels-mixed"


def test_a_missing_part_of_cudnn_gets_the_release_that_torch_pins() -> None:
    error = "Unable to load any of {libcudnn_engines_precompiled.so.9.7.1, libcudnn_engines_precompiled.so.9}"
    found = first(report(error))
    assert "uninstall -y nvidia-cudnn-cu12" in found
    assert "install nvidia-cudnn-cu12==9.7.1.26" in found
    assert "nvidia-cudnn" not in first(report(error, "2.7.1+cu999"))


GLIBCXX = "ImportError: {path}: version `GLIBCXX_3.4.30' not found (required by /env/lib/x.so)"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/lib/x86_64-linux-gnu/libstdc++.so.6", "newer release of this distribution"),
        ("/usr/lib64/libstdc++.so.6", "newer release of this distribution"),
        ("/opt/other/lib/libstdc++.so.6", "Unset LD_LIBRARY_PATH"),
    ],
)
def test_the_systems_own_libstdcxx_is_not_cured_by_a_variable(path: str, words: str) -> None:
    found = report(GLIBCXX.format(path=path))
    assert found.diagnosis.primary == "libstdcxx-old"
    assert words in found.plan.steps[0].title


def test_condas_libstdcxx_is_loaded_in_place_of_the_systems() -> None:
    path = "/lib/x86_64-linux-gnu/libstdc++.so.6"
    error = "/home/u/miniconda3/envs/t/lib/python3.11/site-packages/t.py\n" + GLIBCXX.format(
        path=path
    )
    step = report(error).plan.steps[0]
    assert "LD_LIBRARY_PATH=$CONDA_PREFIX/lib" in (step.manual or "")


# --- numpy ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "command"),
    [
        (
            "RuntimeError: module compiled against API version 0x10 but this version of numpy is 0xe",
            "pip install --upgrade numpy<2",
        ),
        (
            "RuntimeError: module compiled against API version 0x12 but this version of numpy is 0x10",
            "pip install --upgrade numpy",
        ),
        (
            "ValueError: numpy.dtype size changed, may indicate binary incompatibility. Expected 96 "
            "from C header, got 88 from PyObject",
            "pip install --upgrade numpy",
        ),
        (
            "ValueError: numpy.dtype size changed, may indicate binary incompatibility. Expected 88 "
            "from C header, got 96 from PyObject",
            "pip install numpy<2",
        ),
        (
            "RuntimeError: module compiled against ABI version 0x1000009 but this version of numpy "
            "is 0x2000000",
            "pip install numpy<2",
        ),
    ],
)
def test_the_numbers_say_whether_numpy_is_too_old_or_too_new(error: str, command: str) -> None:
    found = report(error, "2.4.1+cu124")
    assert found.diagnosis.primary == "numpy-abi"
    assert lines(found.plan)[0].endswith(command)


def test_numpy_stays_below_2_for_an_old_torch_of_which_no_package_is_listed() -> None:
    def cured(torch: str) -> str:
        return first(report("AssertionError: Torch not compiled with CUDA enabled", torch))

    assert "numpy<2" in cured("2.2.0+cpu")
    assert "numpy" not in cured("2.7.1+cpu")


# --- compilers ------------------------------------------------------------------------------------


def test_triton_refuses_an_old_gpu_and_the_environment_is_sound() -> None:
    error = (
        "GPUTooOldForTriton: Found Tesla P100-PCIE-16GB which is too old to be supported by the "
        "triton GPU compiler"
    )
    found = report(error, "2.5.1+cu121", "Tesla P100-PCIE-16GB", "550.54.15")
    assert found.diagnosis.verdict == "warnings"
    assert lines(found.plan) == ["TORCHDYNAMO_DISABLE=1"]


GB10 = """OS: Ubuntu 24.04.3 LTS (aarch64)
Python version: 3.12.3 (64-bit runtime)
Is CUDA available: True
GPU models and configuration: GPU 0: NVIDIA GB10
Nvidia driver version: 580.95.05
PyTorch version: 2.9.0+cu130
"""


def test_an_old_ptxas_of_triton_is_replaced_by_a_variable() -> None:
    error = (
        "triton.runtime.errors.PTXASError: PTXAS error: Internal Triton PTX codegen error\n"
        "ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'"
    )
    found = judged(GB10 + error)
    assert found.diagnosis.primary == "triton-broken"
    assert lines(found.plan) == ["TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas"]
    other = judged(GB10 + "RuntimeError: Cannot find a working triton installation.")
    assert not any("PTXAS" in line for line in lines(other.plan))


@pytest.mark.parametrize(("most", "harmless"), [("12.0", True), ("9.0", False)])
def test_the_warning_about_a_gb10_is_harmless(most: str, *, harmless: bool) -> None:
    warning = (
        "UserWarning: Found GPU0 NVIDIA GB10 which is of cuda capability 12.1. Minimum and Maximum "
        f"cuda capability supported by this version of PyTorch is (8.0) - ({most})"
    )
    found = judged(GB10 + warning).diagnosis
    titles = [finding.title for finding in found.findings]
    assert (titles[0] == "torch's warning about compute capability 12.1 is harmless") is harmless
    assert (found.primary is None) is harmless


@pytest.mark.parametrize(("toolkit", "newer"), [("12.4", True), ("12.8", False)])
def test_an_nvcc_that_does_not_know_the_gpu_is_replaced(toolkit: str, *, newer: bool) -> None:
    error = (
        f"Cuda compilation tools, release {toolkit}, V{toolkit}.1\n"
        "nvcc fatal   : Unsupported gpu architecture 'compute_120'"
    )
    found = first(report(error, gpu="NVIDIA GeForce RTX 5090"))
    assert ("cuda-toolkit-12-8" in found) is newer


def test_an_extension_of_the_cache_is_deleted_and_another_is_installed() -> None:
    error = "ImportError: {path}.so: undefined symbol: _ZN3c106detail14torchCheckFailEPKcS2_jRKSs"
    cached = report(error.format(path="/home/u/.cache/torch_extensions/py310_cu121/adam/adam"))
    assert "rm -rf ~/.cache/torch_extensions" in (cached.plan.steps[0].manual or "")
    other = report(error.format(path="/env/lib/python3.11/site-packages/flash_attn_2_cuda"))
    assert "torch_extensions" not in (other.plan.steps[0].manual or "")


# --- companions and extensions --------------------------------------------------------------------

UNDEFINED = "{file}.so: undefined symbol: _ZN3c106detail14torchCheckFailEPKcS2_jRKSs"
PLACE = "/env/lib/python3.11/site-packages"
OF_PYG = "--find-links https://data.pyg.org/whl/torch-2.6.0+cu124.html"


@pytest.mark.parametrize(
    ("module", "torch", "package", "last"),
    [
        (
            "torch_scatter/_version_cuda",
            "2.6.0+cu124",
            "torch-scatter",
            f"pip install torch-scatter==2.1.2+pt26cu124 {OF_PYG}",
        ),
        (
            "flash_attn_2_cuda.cpython-311-x86_64-linux-gnu",
            "2.6.0+cu124",
            "flash-attn",
            "--no-build-isolation --no-cache-dir flash-attn==2.7.4.post1",
        ),
        ("vllm/_C.abi3", "2.6.0+cu124", "vllm", "pip install vllm==0.8.5.post1"),
        (
            "torchaudio/lib/libtorchaudio",
            "2.5.1+cu121",
            "torchaudio",
            "pip install torchaudio==2.5.1 --index-url https://download.pytorch.org/whl/cu121",
        ),
    ],
)
def test_what_an_error_text_names_comes_for_this_torch(
    module: str, torch: str, package: str, last: str
) -> None:
    found = report(UNDEFINED.format(file=f"ImportError: {PLACE}/{module}"), torch)
    title = found.diagnosis.findings[0].title
    assert title.startswith(package)
    assert torch in title
    # No list shows its release: pip would keep one that has the same number.
    commands = lines(found.plan)
    assert commands[0].endswith(f"pip uninstall -y {package}")
    assert commands[-1].endswith(last)


@pytest.mark.parametrize(
    ("module", "torch"),
    [
        ("flash_attn_2_cuda.cpython-311-x86_64-linux-gnu", "2.6.0a0+df5bbc0.nv24.11"),
        ("torch_scatter/_version_cuda", "2.6.0+cu121"),  # no page of PyG's has that variant
        ("vllm/_C.abi3", "2.5.1+cu118"),  # its wheel for that torch has CUDA 12
        ("my_ops/_C", "2.6.0+cu124"),
    ],
)
def test_an_extension_without_a_known_wheel_stays_a_sentence(module: str, torch: str) -> None:
    found = report(UNDEFINED.format(file=f"ImportError: {PLACE}/{module}"), torch)
    assert found.diagnosis.primary == "torch-extension-abi"
    assert found.plan.steps[0].commands == ()


def test_the_package_counts_not_a_part_of_it() -> None:
    part = UNDEFINED.format(file=f"ImportError: {PLACE}/vllm/vllm_flash_attn/_vllm_fa2_C.abi3")
    assert report(part, "2.6.0+cu124").diagnosis.findings[0].title.startswith("vllm was not built")
    both = UNDEFINED.format(file=f"ImportError: xformers: {PLACE}/flash_attn_2_cuda")
    found = report(both, "2.6.0+cu124")
    assert found.plan.steps[0].commands == ()
    assert found.diagnosis.findings[0].title.startswith("A compiled extension")


def test_the_parts_of_pyg_in_a_list_come_together() -> None:
    listed = "[pip3] torch==2.6.0+cu124\n[pip3] torch_scatter==2.1.2+pt22cu121\n"
    listed += "[pip3] torch_sparse==0.6.18+pt22cu121\n"
    found = report(listed, "2.6.0+cu124")
    assert found.diagnosis.findings[0].title == (
        "torch-scatter 2.1.2+pt22cu121 was not built for your torch 2.6.0+cu124"
    )
    uninstall, install = lines(found.plan)[:2]
    assert uninstall.endswith("uninstall -y torch-scatter torch-sparse")
    assert "torch-scatter==2.1.2+pt26cu124 torch-sparse==0.6.18+pt26cu124" in install
    same = report(listed.replace("pt22cu121", "pt26cu124"), "2.6.0+cu124")
    assert same.diagnosis.primary != "torch-extension-abi"


@pytest.mark.parametrize(("tag", "other"), [("pt22cu121", True), ("pt26cu124", False)])
def test_a_wheel_of_pyg_names_its_torch(tag: str, *, other: bool) -> None:
    asked = f"pip install torch_scatter-2.1.2%2B{tag}-cp311-cp311-linux_x86_64.whl\n"
    found = report(asked, "2.6.0+cu124").diagnosis
    assert (found.primary == "torch-extension-abi") is other


TRITON = '  File "/env/lib/python3.11/site-packages/triton/runtime/build.py", line 48, in _build\n'
NO_COMPILER = TRITON + "RuntimeError: Failed to find C compiler. Please specify via CC"
NO_HEADERS = TRITON + "main.c:5:10: fatal error: Python.h: No such file or directory"
PORTABLE = r"""pytorch version: {torch}
Platform: Windows-10-10.0.22631-SP0
Python version: 3.12.9
  File "C:\\ComfyUI\\python_embeded\\Lib\\site-packages\\triton\\runtime\\build.py", line 51, in _build
"""


def test_what_triton_compiles_with_comes_from_the_distribution() -> None:
    assert lines(report(NO_COMPILER).plan)[-1].endswith("apt-get install -y build-essential")
    assert "apt-get install -y python3." in lines(report(NO_HEADERS).plan)[-1]
    unnamed = judged("PyTorch version: 2.7.1+cu128\n" + NO_HEADERS)
    assert unnamed.plan.steps[0].commands == ()
    assert "sudo apt-get install python3-dev" in (unnamed.plan.steps[0].manual or "")


def test_on_windows_no_command_is_for_linux() -> None:
    portable = PORTABLE.format(torch="2.6.0+cu126")
    found = judged(portable + NO_COMPILER.removeprefix(TRITON))
    assert "triton-windows==3.2.0.post21" in lines(found.plan)[-1]
    headers = judged(portable + NO_HEADERS.removeprefix(TRITON)).plan.steps[0]
    assert headers.commands == ()
    assert "an installed Python 3.12" in (headers.manual or "")
    unknown = judged(portable.partition("\n")[2] + NO_COMPILER.removeprefix(TRITON)).plan.steps[0]
    assert unknown.commands == ()
    assert "apt-get" not in (headers.manual or "") + (unknown.manual or "")


# --- drivers and other makers ---------------------------------------------------------------------


def test_ptx_of_a_newer_cuda_asks_for_its_driver_or_an_older_build() -> None:
    error = "RuntimeError: CUDA error: the provided PTX was compiled with an unsupported toolchain."
    found = report(error, "2.8.0+cu129", driver="535.183.01")
    assert found.diagnosis.primary == "driver-too-old"
    driver, build = found.plan.steps
    assert driver.title == "Install NVIDIA driver 580"
    assert build.packages is not None
    assert build.packages.variant in ("cu118", "cu121")
    assert {driver.group, build.group} == {"upgrade-driver"}


HEADERS = """Ubuntu 22.04
NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.
$ uname -r
6.8.0-50-generic
dkms status
nvidia/550.120, 6.8.0-49-generic, x86_64: installed
"""


def test_missing_headers_are_installed_before_the_module_is_built() -> None:
    error = "Error! Your kernel headers for kernel 6.8.0-50-generic cannot be found at /lib/modules"
    found = lines(judged(HEADERS + error).plan)
    assert "apt-get install -y linux-headers-6.8.0-50-generic" in found
    assert "dkms autoinstall" in found
    assert lines(judged(HEADERS).plan)[0] == "modprobe nvidia"


LSPCI = "01:00.0 VGA compatible controller [0300]: NVIDIA Corporation GP104 [GeForce GTX 1080] [10de:1b80]"


@pytest.mark.parametrize(("release", "packaged"), [("9", False), ("12", True)])
def test_a_debian_too_old_for_nvidias_packages_gets_none(release: str, *, packaged: bool) -> None:
    found = judged(
        f'PRETTY_NAME="Debian GNU/Linux {release} (name)"\nx86_64\n{LSPCI}\n'
        "bash: nvidia-smi: command not found\nRuntimeError: Found no NVIDIA driver on your system."
    )
    step = next(step for step in found.plan.steps if step.id == "install-driver")
    assert bool(step.commands) is packaged
    assert ("too old for NVIDIA's driver packages" in (step.manual or "")) is not packaged


@pytest.mark.parametrize(("mode", "switched"), [("TCC", True), ("WDDM", False)])
def test_a_gpu_in_tcc_mode_is_switched_for_wsl(mode: str, *, switched: bool) -> None:
    found = judged(
        f"WSL2, Ubuntu 22.04\n|   0  Tesla P40                {mode:>5} | 00000000:01:00.0 Off |\n"
        "Failed to initialize NVML: GPU access blocked by the operating system"
    )
    assert found.diagnosis.primary == "wsl-setup"
    assert (lines(found.plan)[0] == "nvidia-smi.exe -dm 0") is switched
    assert found.plan.steps[0].where == "windows"


CARD = "03:00.0 VGA compatible controller [0300]: {name}\nGPU: {short}\n"
UNSEEN = "torch.cuda.is_available() False\nRuntimeError: Found no NVIDIA driver on your system."


@pytest.mark.parametrize(
    ("name", "short", "index"),
    [
        (
            "Advanced Micro Devices, Inc. [AMD/ATI] Navi 31 [Radeon RX 7900 XTX] [1002:744c]",
            "AMD Radeon RX 7900 XTX",
            "/whl/rocm",
        ),
        ("Intel Corporation DG2 [Arc A770] [8086:56a0]", "Intel Arc A770", "/whl/xpu"),
    ],
)
def test_a_card_of_another_maker_gets_the_build_for_it(name: str, short: str, index: str) -> None:
    text = "OS: Ubuntu 22.04.4 LTS (x86_64)\nPython version: 3.12.3\nPyTorch version: 2.6.0+cu124\n"
    more = "AssertionError: Torch not compiled with CUDA enabled\n" if "Intel" in short else ""
    found = judged(text + CARD.format(name=name, short=short) + more + UNSEEN)
    assert found.diagnosis.primary == "torch-wrong-backend"
    assert index in lines(found.plan)[-1]


# --- Jetson ---------------------------------------------------------------------------------------

JETSON = "Jetson {board}\nPython 3.10.12\n{sign}\n>>> torch.__version__\n'2.8.0+cpu'\n"


@pytest.mark.parametrize(
    ("board", "sign", "release"),
    [
        ("AGX Orin", "Linux nano 5.15.148-tegra #1 SMP aarch64 aarch64 GNU/Linux", 36),
        ("AGX Orin", "Linux nano 5.10.120-tegra #1 SMP aarch64 aarch64 GNU/Linux", 35),
        ("Orin Nano", "| NVIDIA-SMI 540.4.0  Driver Version: 540.4.0  CUDA Version: 12.6 |", 36),
        ("AGX Orin", "Ubuntu 22.04", 36),
        ("AGX Thor", "", 38),
        ("AGX Orin", "", None),
        ("AGX Orin", "Linux nano 5.15.148-generic #1 SMP aarch64 aarch64 GNU/Linux", None),
    ],
)
def test_linux_for_tegra_is_told_by_kernel_driver_system_or_board(
    board: str, sign: str, release: int | None
) -> None:
    machine = read_report(JETSON.format(board=board, sign=sign), KB)
    assert (machine.platform.l4t.major if machine.platform.l4t else None) == release


def test_a_jetson_gets_its_own_index_and_thor_the_general_build() -> None:
    orin = JETSON.format(board="AGX Orin", sign="Linux o 5.15.148-tegra #1 SMP aarch64 GNU/Linux")
    assert "pypi.jetson-ai-lab.io/jp6" in first(judged(orin + "torch.cuda.is_available() False"))
    thor = judged(JETSON.format(board="AGX Thor", sign="") + "torch.cuda.is_available() False").plan
    assert thor.build is not None
    assert thor.build.variant.startswith("cu13")


def test_what_python_prints_of_a_gpu_is_no_complaint() -> None:
    text = """$ nvidia-smi
| NVIDIA-SMI 570.86.15              Driver Version: 570.86.15      CUDA Version: 12.8     |
|   0  NVIDIA GeForce RTX 3090        Off |   00000000:01:00.0 Off |                  N/A |
$ python -c "import torch; print(torch.__version__, torch.cuda.is_available())"
2.7.1+cu128 12.8 True NVIDIA GeForce RTX 3090
"""
    assert judged(text).diagnosis.verdict == "healthy"
    assert judged(text + "but my program does not work with it\n").diagnosis.verdict == "undecided"


GPUS = """PyTorch version: 2.7.1+cu118
OS: Ubuntu 22.04.4 LTS (x86_64)
GPU models and configuration: {gpus}
Nvidia driver version: 570.86.15
"""


@pytest.mark.parametrize(
    ("gpus", "names"),
    [
        ("GPU 0: NVIDIA GeForce RTX 5090\nGPU 1: NVIDIA GeForce RTX 3090", ["5090", "3090"]),
        ("\nGPU 0: NVIDIA GeForce RTX 5090\nGPU 1: NVIDIA GeForce RTX 3090", ["5090", "3090"]),
        ("NVIDIA GeForce RTX 5090", ["5090"]),
    ],
)
def test_the_first_gpu_may_stand_on_the_labels_line(gpus: str, names: list[str]) -> None:
    machine = read_report(GPUS.format(gpus=gpus), KB)
    assert [(gpu.name or "").split()[-1] for gpu in machine.gpus or ()] == names


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ("[conda] pytorch  2.2.2  py3.10_cpu_0  pytorch", "conda"),
        ("[conda] torch  2.2.2  pypi_0  pypi", "conda"),
        ("[conda] numpy  1.26.4  py310hb13e2d6_0  conda-forge", None),
        ("[conda] Could not collect", None),
    ],
)
def test_rows_of_conda_tell_a_conda_environment(row: str, kind: str | None) -> None:
    machine = read_report(f"PyTorch version: 2.2.2\nPython version: 3.10.13\n{row}\n", KB)
    assert machine.python.kind == kind


@pytest.mark.parametrize(("where", "system"), [("WSL2, Ubuntu 22.04\n", "Linux"), ("", "Windows")])
def test_a_table_of_windows_beside_wsl_is_that_of_the_host(where: str, system: str) -> None:
    table = (
        "| NVIDIA-SMI 551.61         Driver Version: 551.61       CUDA Version: 12.4 |\n"
        "| GPU  Name               TCC/WDDM | Bus-Id      Disp.A |\n"
    )
    machine = read_report(f"{where}torch.cuda.is_available() is False\n{table}", KB)
    assert machine.platform.system == system


def test_torchvision_of_windows_comes_from_torchs_index() -> None:
    found = judged(
        "Windows 10\nPython 3.8.10\nNVIDIA GeForce RTX 2070\nDriver Version: 461.92  CUDA Version: 11.2\n"
        ">>> torch.__version__\n'1.7.1+cpu'\n>>> torch.cuda.is_available()\nFalse\ntorchvision 0.8.2\n"
        "AssertionError: Torch not compiled with CUDA enabled"
    )
    assert "torch==1.7.1 torchvision==0.8.2" in first(found)


_MISMATCH = (
    "RuntimeError: cuDNN version incompatibility: PyTorch was compiled against (9, 1, 0) but found "
    "runtime version (8, 9, 7)."
)


def test_a_variable_that_nothing_shows_is_asked_for_before_it_is_unset() -> None:
    blind = judged(_MISMATCH).plan.steps[0]
    assert not blind.variables and not blind.commands
    assert "printenv LD_LIBRARY_PATH" in (blind.manual or "")
    for shown in (
        "$ echo $LD_LIBRARY_PATH\n/usr/local/cuda-11.8/lib64",
        "Looks like your LD_LIBRARY_PATH contains incompatible version of cudnn.",
    ):
        assert first(judged(f"{_MISMATCH}\n{shown}")) == "LD_LIBRARY_PATH=None"


def test_a_cuda_build_is_only_for_who_has_an_nvidia_gpu() -> None:
    said = "torch 2.6.0+cpu on Windows 11, torch.cuda.is_available() is False. "
    asked = judged(said).plan
    assert asked.steps[0].id == "cure-torch-cpu-build"
    assert asked.no_build is not None
    assert "nvidia-smi" in (asked.no_build.next_command or ())
    for card in ("My card is an AMD Radeon RX 6800.", "I have no NVIDIA GPU."):
        plan = judged(f"{said}{card}").plan
        assert not any("whl/cu" in line for line in lines(plan)), card


def test_a_mac_gets_no_index_of_cuda() -> None:
    refused = "ERROR: No matching distribution found for torch"
    mac = judged(f"MacBook Pro, Intel, macOS 12, x86_64, Python 3.12.3\n{refused}")
    assert "whl/cu" not in first(mac)


def test_a_cudnn_of_another_program_is_replaced_by_the_one_that_torch_pins() -> None:
    missing = "ImportError: libcudnn.so.9: cannot open shared object file: No such file"
    listed = "Package Version\n------- -------\ntorch 2.6.0\nnvidia-cudnn-cu12 8.9.7.29\n"
    assert "install nvidia-cudnn-cu12==9.1.0.70" in first(judged(f"{missing}\n\n{listed}"))


def test_what_leaves_with_the_old_torch_is_not_installed_for_a_second_complaint() -> None:
    complaint = (
        "torchtext==0.18.0\nRTX 5080 with CUDA capability sm_120 is not compatible with the current "
        "PyTorch installation.\nOSError: /venv/lib/python3.11/site-packages/torchtext/lib/"
        "libtorchtext.so: undefined symbol: _ZN5torch3jit17parseSchemaOrNameERKSs\n"
    )
    found = first(report(complaint, "2.3.1+cu121", "NVIDIA GeForce RTX 5080", "575.51"))
    assert "uninstall -y torch torchtext" in found
    assert "torchtext==" not in found
