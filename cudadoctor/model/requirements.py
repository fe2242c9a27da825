"""Names and requirements of distributions.

Requirements are judged without loading a grammar where their form is usual:
`packaging.requirements` costs 10 ms to import, a seventh of a whole `check --fast`. What is not of
the usual form goes to `packaging`, and a test holds the two against each other.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from packaging.version import Version

from cudadoctor.model.machine import Machine, Strings
from cudadoctor.model.versions import version_of

TORCH_FAMILY = ("torch", "torchvision", "torchaudio", "torchtext")
COMPANIONS = TORCH_FAMILY[1:]
EXTENSIONS = frozenset(
    """
    apex auto-gptq bitsandbytes causal-conv1d deepspeed detectron2 flash-attn mamba-ssm mmcv
    mmcv-full nvdiffrast pyg-lib pytorch3d tinycudann torch-cluster torch-scatter torch-sparse
    torch-spline-conv torch-tensorrt torchao transformer-engine vllm xformers
    """.split()  # noqa: SIM905
)
"""Packages with compiled code against one torch release."""
SHARED = frozenset({"numpy", "transformers"})
"""Packages that many programs share: a program that moves may need another release of them."""
USUAL = SHARED | frozenset(
    """
    aiohttp albumentations av controlnet-aux datasets decord diffusers einops evaluate faiss-cpu
    fastapi faster-whisper ftfy gradio h5py huggingface-hub hydra-core imageio imageio-ffmpeg
    insightface invisible-watermark jupyter jupyterlab kornia librosa lightning-utilities
    llvmlite matplotlib mediapipe moviepy numba omegaconf onnx onnxruntime onnxruntime-gpu
    open-clip-torch openai-whisper opencv-contrib-python opencv-python opencv-python-headless
    pandas peft pillow protobuf pydantic pytest pytorch-lightning pyyaml regex requests rich
    safetensors scikit-image scikit-learn scipy seaborn sentence-transformers sentencepiece
    soundfile streamlit tensorboard tiktoken timm tokenizers torchmetrics tqdm trimesh trl
    ultralytics uvicorn wandb
    """.split()  # noqa: SIM905
)
"""Packages that stand beside torch in many requirements: a new environment gets their pins too."""
BUILT_AS = {"transformer-engine": ("transformer-engine[pytorch]", ("transformer-engine-torch",))}
"""What pip is asked for where that is not the bare name, and the packages that are built then."""

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_EXTRAS = re.compile(r"\[([^\]]*)\]")
_REST = re.compile(r"\(?([^;()@]*)\)?")
_CLAUSE = re.compile(r"(==|!=|>=|<=|~=|>|<)\s*([0-9]{1,9}(?:\.[0-9]{1,9}){0,9})(\.\*)?")
_RUNS = re.compile(r"[-_.]+")


class Asked(NamedTuple):
    """A line of Requires-Dist in its parts. name: normalised. marker: "" where there is none."""

    name: str
    extras: Strings
    specifier: str
    marker: str


def normal(name: str) -> str:
    """The normalised name of a distribution."""
    return _RUNS.sub("-", name).lower()


def exactly(name: str, release: str) -> str:
    """The requirement of that release, with the extra that brings what belongs to torch."""
    return f"{BUILT_AS[name][0] if name in BUILT_AS else name}=={release}"


def cut(line: str) -> Asked | None:
    """The parts of a Requires-Dist line; None for one that is none, or names a URL."""
    # Part by part: one pattern for the whole would try every way to share out the blanks.
    asked, _, marker = line.partition(";")
    named = _NAME.match(asked := asked.strip())
    if named is None or not named[0][-1].isalnum() or not named[0][-1].isascii():
        return None
    asked = asked[named.end() :].lstrip()
    bracket = _EXTRAS.match(asked)
    rest = _REST.fullmatch((asked[bracket.end() :] if bracket else asked).strip())
    if rest is None:
        return None
    extras = sorted(extra.strip() for extra in (bracket[1] if bracket else "").split(","))
    specifier = ",".join(clause.strip() for clause in rest[1].split(",") if clause.strip())
    return Asked(normal(named[0]), tuple(filter(None, extras)), specifier, marker.strip())


def admits(specifier: str, release: Version) -> bool:
    """Whether a specifier (">=2.14.0,<3") admits a release, pre-releases too.

    A text that is no specifier but a version is an exact pin; one that is neither admits all.
    """
    clauses = (
        [_CLAUSE.fullmatch(clause.strip()) for clause in specifier.split(",")] if specifier else []
    )
    # Pre-releases and post-releases have rules of their own; a local tag (+cu126) does not count.
    odd = release.is_prerelease or release.is_postrelease or release.epoch
    if all(clauses) and not odd:
        release = Version(release.public) if release.local else release
        return all(
            _holds(clause[1], clause[2], bool(clause[3]), release) for clause in clauses if clause
        )
    from packaging.specifiers import SpecifierSet

    try:
        return SpecifierSet(specifier).contains(release, prereleases=True)
    except ValueError:  # no specifier, or one with a number that no version has
        exact = version_of(specifier)
        return exact is None or exact == release


def marker_variables(m: Machine) -> dict[str, str]:
    """The variables of environment markers (PEP 508) on that machine; nothing is taken from ours.

    Of a Python whose maker is not known, as of CPython.
    """
    version, system = m.python.version, m.platform.system or "Linux"
    machine = m.platform.machine or ""
    if m.python.bits == 32 and machine == "x86_64":
        machine = "i686"
    if system == "Windows":
        machine = {"x86_64": "AMD64", "i686": "x86", "aarch64": "ARM64"}.get(machine, machine)
    elif system == "Darwin" and machine == "aarch64":
        machine = "arm64"
    name = m.python.implementation or "CPython"
    return {
        "implementation_name": name.lower(),
        "implementation_version": str(version or ""),
        "os_name": "nt" if system == "Windows" else "posix",
        "platform_machine": machine,
        "platform_python_implementation": name,
        "platform_release": m.platform.kernel or "",
        "platform_system": system,
        "platform_version": "",
        "python_full_version": str(version or ""),
        "python_version": f"{version.major}.{version.minor}" if version else "",
        "sys_platform": {"Windows": "win32", "Darwin": "darwin"}.get(system, "linux"),
    }


def marker_holds(marker: str, variables: dict[str, str]) -> bool:
    """Whether an environment marker holds; one that cannot be read does."""
    from packaging.markers import Marker

    try:
        return Marker(marker).evaluate(variables)
    except (ValueError, KeyError, RecursionError):  # packaging's errors are of the first two
        return True


def _holds(operator: str, text: str, any_below: bool, release: Version) -> bool:
    wanted = tuple(int(part) for part in text.split("."))
    if any_below or operator == "~=":
        prefix = wanted if any_below else wanted[:-1]
        have = release.release + (0,) * len(prefix)
        within = have[: len(prefix)] == prefix
        if operator == "~=":
            return within and release >= Version(text)
        return within is (operator == "==")
    other = Version(text)
    return {
        "==": release == other,
        "!=": release != other,
        ">=": release >= other,
        "<=": release <= other,
        ">": release > other,
        "<": release < other,
    }[operator]
