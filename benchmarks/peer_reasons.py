"""Why each peer's answer differs from ours, class by class: who is right, and by which fact.

A class of a peer that is not here was never thought through, and the comparison fails.
"""

from __future__ import annotations

UV, LTT, RUNTIME = "uv --torch-backend=auto", "light-the-torch", "torchruntime"
ENV, GAFF, GPU, TORCH = "env-doctor", "gaff", "gpu-installer", "torch-installer"
PRE, DOCTOR, PIP, CONDA = "preflight-gpu", "gpu-doctor", "pip install torch", "conda-forge (__cuda)"

_BANNER = (
    'Ours: from branch 610 on nvidia-smi prints "CUDA UMD Version", which its pattern does not '
    "find, so it sees no CUDA"
)
_TEGRA = (
    "Ours: a Jetson with L4T before R38 needs a torch build that NVIDIA made for JetPack; it "
    "does not tell a Jetson from a server."
)
_NONE_FITS = (
    "Both: nothing serves the GPU there, so what is left runs without it; we name what stands in "
    "the way."
)
_CONTESTED = (
    "Ours is certain, theirs may run: one source lists that code and another denies it, so we "
    "take it as a last resort only."
)
_CUDNN = (
    "Ours: from 2.4.0 on the cu118 wheels bring cuDNN 9.1, which serves 5.0 and newer only; those "
    "before bring 8.7, which still runs Kepler."
)
_PYPI_WINS = (
    "Ours: the index is named beside PyPI (--extra-index-url), and PyPI's newer default build wins"
)

EXPLAINED: dict[tuple[str, str], str] = {
    (UV, "other variant"): (
        "Both run: it takes the newest CUDA that the driver may use, we what PyPI has as default "
        "(one index for all packages), or the newest that the driver brings itself."
    ),
    (UV, "older"): (
        "Ours is newer: uv takes the newest CUDA index first, and cu129 ended with 2.13.0 (on "
        "Windows with 2.9.0) while cu126 went on to 2.14.1."
    ),
    (UV, "no code"): (
        "Ours: uv looks at the driver and not at the GPU, and the newest index has no code for "
        "older generations (on Linux cu128 and later never had Maxwell or Pascal)."
    ),
    (UV, "jetson"): _TEGRA,
    (UV, "cpu, ours none"): _NONE_FITS,
    (UV, "contested"): _CONTESTED,
    (UV, "cudnn"): _CUDNN,
    (LTT, "other variant"): (
        "Both run: it takes the newest CUDA up to 13.1, we the default of PyPI, or the newest that "
        "the driver brings itself."
    ),
    (LTT, "older"): (
        "Ours is newer: it compares versions as text, where 2.9.1 is above 2.14.1, and takes the "
        "highest CUDA before the newest release."
    ),
    (LTT, "no code"): "Ours: it looks at the driver and not at the GPU.",
    (LTT, "jetson"): _TEGRA,
    (LTT, "nothing there"): (
        "Ours: its table ends at CUDA 13.1, and the only CUDA builds for this Python are of 13.2."
    ),
    (LTT, "cpu, ours none"): _NONE_FITS,
    (LTT, "contested"): _CONTESTED,
    (LTT, "cudnn"): _CUDNN,
    (RUNTIME, "other variant"): "Both run: cu124 or cu128 by the chip, ours by default and driver.",
    (RUNTIME, "older"): (
        "Ours is newer: cu124 ended with 2.6.0 and cu128 with 2.11.0; with this driver newer "
        "releases run."
    ),
    (RUNTIME, "no code"): (
        "Ours: of several chips the newest decides, a family is no capability (Kepler is 3.0 to "
        "3.7, and cu118 of the newest releases has none of it; cu128 has no 7.5 on aarch64), and "
        "under WSL lspci shows no GPU, so that PyPI's default comes."
    ),
    (RUNTIME, "driver"): (
        "Ours: it never looks at the driver; cu124 and cu128 need one of CUDA 12, and PyPI's "
        "default (under WSL) one of CUDA 13."
    ),
    (RUNTIME, "jetson"): (
        "Ours: lspci lists no GPU of a Jetson, so it installs from PyPI, whose aarch64 wheels are "
        "made for servers."
    ),
    (RUNTIME, "nothing there"): (
        "Ours: cu124 (2.4.0 to 2.6.0) and cu128 (2.7.0 to 2.11.0) have nothing for this Python or "
        "this C library, other indexes have."
    ),
    (RUNTIME, "cpu, ours none"): _NONE_FITS,
    (RUNTIME, "cudnn"): _CUDNN,
    (
        RUNTIME,
        "contested",
    ): _CONTESTED,
    (ENV, "contested"): _CONTESTED,
    (ENV, "other variant"): (
        "Both run: where its pin (or, from branch 590 on, the newest of cu130) is as new as ours, "
        "it differs in the CUDA alone."
    ),
    (ENV, "older"): (
        "Ours is newer: its table of 2026-06 pins one release per branch (2.9.1 and before) and "
        "does not count on minor-version compatibility, so that branch 535 gets cu121."
    ),
    (ENV, "no code"): "Ours: the pin follows the driver alone, whatever the GPU is.",
    (ENV, "driver"): (
        "Ours: below its table it falls back to cu117, and for CUDA 11.0 to a build that needs "
        "450.80.02; these drivers run CUDA 10 or just not 11."
    ),
    (ENV, "python"): "Ours: the pinned release has no wheel for this Python, and others have.",
    (ENV, "nothing there"): "Ours: cu130 begins with 2.9.0 and Python 3.10.",
    (ENV, "not published"): (
        "Ours: the pins are those of Linux x86-64. None of them before 2.8.0 was built for "
        "aarch64, and that of CUDA 11.1 is not known on Windows."
    ),
    (ENV, "cpu"): _BANNER + ", counts the driver as absent and installs from PyPI: CPU on Windows.",
    (ENV, "cpu, ours none"): _NONE_FITS,
    (GAFF, "contested"): _CONTESTED,
    (GAFF, "other variant"): "Both run: the highest CUDA of the banner, ours the default.",
    (GAFF, "older"): (
        "Ours is newer: it stays below the banner's CUDA, although any minor of a major runs, and "
        "so ends in indexes that are no longer filled (cu121, cu124, cu128) or lack the newest "
        "release (cu130)."
    ),
    (GAFF, "no code"): "Ours: it looks at the driver and not at the GPU.",
    (GAFF, "jetson"): _TEGRA,
    (GAFF, "nothing there"): (
        "Ours: the one index that it takes has nothing for this Python, platform or C library, "
        "older ones have."
    ),
    (GAFF, "cpu"): _BANNER + " and takes the CPU index.",
    (GAFF, "cpu, ours none"): _NONE_FITS,
    (GAFF, "declined"): (
        "Ours: below CUDA 11.8 it asks for a newer driver, although cu118 runs from 450.80.02 on, "
        "and older builds on older drivers."
    ),
    (GPU, "other variant"): "Both run: the nearest tag to the banner's CUDA, ours the default.",
    (GPU, "older"): "Ours is newer: cu126, cu128 and cu130 are pinned to 2.11.0, cu124 to 2.5.1.",
    (GPU, "no code"): "Ours: it looks at the driver and not at the GPU.",
    (GPU, "driver"): (
        _PYPI_WINS + "; and where no tag is low enough it takes the lowest of six, cu124."
    ),
    (GPU, "jetson"): _TEGRA,
    (GPU, "python"): "Ours: the pinned release has no wheel for this Python, and others have.",
    (GPU, "cpu"): _BANNER + " and installs from PyPI; or " + _PYPI_WINS[6:] + ": CPU on Windows.",
    (GPU, "cpu, ours none"): _NONE_FITS,
    (GPU, "contested"): _CONTESTED,
    (TORCH, "other variant"): "Both run: the nearest tag to the banner's CUDA, ours the default.",
    (TORCH, "no code"): _PYPI_WINS + ", whatever code it has for the GPU.",
    (TORCH, "driver"): _PYPI_WINS + ", whatever the driver runs.",
    (TORCH, "jetson"): _TEGRA,
    (TORCH, "cpu"): _PYPI_WINS + "; on Windows that is the CPU build.",
    (TORCH, "cpu, ours none"): _NONE_FITS,
    (PRE, "other variant"): (
        "Both run: its tag follows the branch, ours is the default or what the driver brings."
    ),
    (PRE, "older"): (
        "Ours is newer: below 560 it takes cu124, which ended with 2.6.0, although cu126 runs from "
        "525.60.13 on; and cu130 of 2.15.0 is only announced."
    ),
    (PRE, "no code"): "Ours: but for the GeForce RTX 50 it looks at the driver alone.",
    (PRE, "driver"): "Ours: every driver before 560 gets cu124, also those of CUDA 11 and 10.",
    (PRE, "jetson"): _TEGRA,
    (PRE, "nothing there"): (
        "Ours: cu124, cu126 or cu130 have nothing for this Python, platform or C library, others "
        "have."
    ),
    (PRE, "contested"): _CONTESTED,
    (DOCTOR, "older"): "Ours is newer: cu121 ended with 2.5.1.",
    (DOCTOR, "no code"): "Ours: cu121 ended before Blackwell, and has nothing below 5.0.",
    (DOCTOR, "driver"): "Ours: CUDA 12.1 needs 525.60.13, and the driver is not looked at.",
    (DOCTOR, "nothing there"): (
        "Ours: cu121 (2.1.0 to 2.5.1) has no aarch64 builds and nothing for Python 3.6, 3.7 and "
        "3.14; others have."
    ),
    (DOCTOR, "declined"): (
        "Ours: on Windows it installs torch-directml (or the CPU build), although CUDA builds fit."
    ),
    (PIP, "no code"): (
        "Ours: PyPI has one CUDA per release for all GPUs; since 2.11 it starts at Turing, on "
        "aarch64 at Ampere."
    ),
    (PIP, "driver"): "Ours: PyPI's default needs R580 since 2.11; another index fits this driver.",
    (PIP, "jetson"): "Ours: PyPI's aarch64 wheels are made for servers and L4T from R38 on.",
    (PIP, "cpu"): (
        "Ours: on Windows, and on aarch64 up to 2.10, PyPI has CPU builds only; the CUDA builds "
        "lie on pytorch.org's indexes."
    ),
    (PIP, "cpu, ours none"): _NONE_FITS,
    (CONDA, "other channel"): (
        "Both run: conda-forge's newest in the tables is 2.13.0, built for more generations at "
        "once; ours is as new or newer."
    ),
    (CONDA, "channel newer"): (
        "The peer: conda-forge's 2.13.0 has CUDA 12.8 for Windows, where wheels with it ended with "
        "2.11.0, serves 5.0 to 12.0 in one build, and needs glibc 2.17 only. Our solver chooses "
        "among the wheels of PyPI and pytorch.org."
    ),
    (CONDA, "channel only"): (
        "The peer: conda-forge compiles for 7.5 on aarch64, and for 5.0 to 12.0 in one build, "
        "which no wheel does. Our solver knows the wheels of PyPI and pytorch.org only."
    ),
    (CONDA, "no code"): (
        "Ours: __cuda tells the driver's CUDA and not the GPU, so the newest CUDA is solved for; "
        "13.0 starts at 7.5, and cuda-version=12.9 would have to be asked for."
    ),
    (CONDA, "driver"): "Ours: __cuda >= 12 admits drivers below the floor of 525.60.13.",
    (
        CONDA,
        "declined",
    ): "Ours: conda-forge has nothing for this platform and driver in the tables.",
    (CONDA, "not judged"): (
        "Open: what conda-forge compiled for before CUDA 12.8, for Jetson, and for other Pythons "
        "than 3.10 to 3.13 is not in the tables."
    ),
}
