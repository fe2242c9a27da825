"""The classes into which a peer's answer falls beside ours.

`outcome` names the class by the second reading of the tables; `facts_of` says what these hold of
an example. Why a class of a peer happens stands in peer_reasons.
"""

from __future__ import annotations

from peer_choosers import CONDA_PYTHONS, Answer
from second_reading import Plain, Reading, numbers

Ours = tuple[str, str] | None
"""Release and variant, None where no build fits."""

CLASSES = {
    "agree": "the same release and variant, or both have none.",
    "other variant": "the same release in another variant that runs too.",
    "older": "an older release; it runs.",
    "other channel": "a build of conda-forge, of the same release or an older one; it runs.",
    "channel newer": "a release of conda-forge newer than all that fit from the wheel indexes.",
    "contested": "a build that runs only if code is there that one of the sources denies.",
    "cudnn": "a build whose own cuDNN refuses the GPU: convolutions fail.",
    "no code": 'its build has no code for a GPU: "no kernel image is available".',
    "driver": "its build needs a newer driver: torch sees no GPU.",
    "ptx": "its build has only PTX for the GPU, of a CUDA newer than the driver's.",
    "jetson": "its build is made for servers and does not run on this JetPack.",
    "glibc": "its build needs a newer C library: no wheel is found.",
    "python": "it pins a release without a wheel for this Python.",
    "nothing there": "its index holds no torch for this Python or system.",
    "not published": "it names a build that is not known to exist on this platform.",
    "cpu": "it installs the CPU build although a build for the GPU fits.",
    "cpu, ours none": "it installs the CPU build; nothing fits the GPU, and we say that instead.",
    "declined": "it gives no answer although a build fits.",
    "not judged": "the tables do not say enough about its build.",
    "channel only": "conda-forge has a build that runs, and the wheel indexes have none.",
    "ours missed": "its build fits and we have none, or ours is older: a fault of ours.",
}
FAULTS = frozenset({"ours missed"})
AS_NEW = frozenset({"agree", "other variant", "channel newer"})
RUNS = AS_NEW | {"older", "other channel"}

CONDA_CODE = {
    ("13.0", "linux_x86_64"): (("7.5", "8.0", "8.6", "9.0", "10.0", "11.0", "12.0"), "12.0"),
    ("13.0", "linux_aarch64"): (
        ("7.5", "8.0", "8.6", "8.7", "9.0", "10.0", "11.0", "12.0"),
        "12.0",
    ),
    ("12.9", "*"): (("5.0", "6.0", "7.0", "7.5", "8.0", "8.6", "9.0", "10.0", "12.0"), "12.0"),
    ("12.8", "*"): (("5.0", "6.0", "7.0", "7.5", "8.0", "8.6", "9.0", "10.0", "12.0"), "12.0"),
}
"""What conda-forge compiles for, by CUDA and platform, and its PTX: the table of conda builds."""


def outcome(answer: Answer, ours: Ours, plain: Plain, reading: Reading) -> str:
    """The class of a peer's answer beside ours."""
    if answer.variant is None:
        return "agree" if ours is None else "declined"
    if answer.channel:
        return _of_conda(answer, ours, plain, reading)
    if answer.torch is None:
        return "agree" if ours is None else "nothing there"
    row = reading.row(answer.torch, answer.variant, plain["platform"])
    if row is None or row["published"] is not True:
        return "not published"
    if row["cuda"] is None:
        return "cpu, ours none" if ours is None else "cpu"
    if (answer.torch, answer.variant) == ours:
        return "agree"
    against = reading.reasons(answer.torch, plain)[answer.variant]
    for sign, name in _SIGNS:
        if sign in against:
            return name
    return _that_runs(answer, ours)


_SIGNS = (
    ("python", "python"),
    ("glibc", "glibc"),
    ("tegra", "jetson"),
    ("archs", "no code"),
    ("driver", "driver"),
    ("ptx", "ptx"),
    ("cudnn", "cudnn"),
    ("contested", "contested"),
)


def _that_runs(answer: Answer, ours: Ours) -> str:
    if ours is None or answer.torch is None or numbers(answer.torch) > numbers(ours[0]):
        return "ours missed"
    return "other variant" if answer.torch == ours[0] else "older"


def _of_conda(answer: Answer, ours: Ours, plain: Plain, reading: Reading) -> str:
    """conda-forge's own builds: their code and their CUDA, by the tables."""
    cuda = str(answer.variant).partition(" ")[2]
    if plain["python"] not in CONDA_PYTHONS or plain["kind"] == "jetson":
        return "not judged"
    against = conda_against(cuda, plain, reading)
    if against:
        return against
    if ours is None:
        return "channel only"
    newer = numbers(answer.torch or "0") > numbers(ours[0])
    return "channel newer" if newer else "other channel"


def conda_against(cuda: str, plain: Plain, reading: Reading) -> str:
    """Why conda-forge's build for a CUDA does not fit a machine; "" if it does."""
    code = conda_code(cuda, plain["platform"])
    if code is None:
        return "not judged"
    how = [_conda_serves(code, capability) for capability in plain["capabilities"]]
    if "" in how:
        return "no code"
    if not reading.runs(numbers(cuda), plain):
        return "driver"
    return "ptx" if "ptx" in how and reading.level(plain) < numbers(cuda) else ""


def conda_code(cuda: str, platform: str) -> tuple[tuple[str, ...], str] | None:
    """What conda-forge's build for this CUDA has code for, and its PTX; None not known."""
    return CONDA_CODE.get((cuda, platform)) or CONDA_CODE.get((cuda, "*"))


def _conda_serves(code: tuple[tuple[str, ...], str], gpu: str) -> str:
    device = numbers(gpu)
    if any(
        numbers(capability)[0] == device[0] and numbers(capability) <= device
        for capability in code[0]
    ):
        return "native"
    return "ptx" if numbers(code[1]) <= device else ""


def facts_of(kind: str, answer: Answer, ours: Ours, plain: Plain, reading: Reading) -> str:
    """What the tables say about an example, in one sentence."""
    here = f"{answer.torch} {answer.variant}"
    if answer.channel:
        return _facts_of_conda(answer, plain)
    row = reading.row(answer.torch or "", answer.variant or "", plain["platform"])
    if kind == "no code" and row is not None:
        code = " ".join(row["archs"] or [])
        bare = ", ".join(_bare(answer, plain, reading))
        return f"{here} holds {code}: nothing for {bare}."
    if kind in ("driver", "ptx") and row is not None:
        floor = reading.floor(row["cuda"], plain["numbers"])
        return f"CUDA {row['cuda']} needs driver {floor}."
    if kind == "cudnn" and row is not None:
        return f"{here} brings cuDNN {reading.cudnn_of(row)}, which serves 5.0 and newer."
    if kind == "contested" and row is not None:
        return f"Of {here}, sources disagree on {' '.join(row['contested'])}."
    if kind == "python" and row is not None:
        return f"{here} has wheels for {', '.join(row['pythons'])}."
    if kind == "older" and ours is not None:
        return f"{ours[0]} {ours[1]} fits as well and is newer."
    if kind == "other variant":
        return "Both run: same release, both floors are reached."
    if kind == "not published":
        known = "was published" if row is not None and row["published"] is False else "is known"
        return f"No {here} {known} for {plain['platform']}."
    if kind == "nothing there":
        return f"No published {answer.variant} for Python {plain['python']} on {plain['platform']}."
    if kind == "jetson":
        return "Builds for servers run on Jetson from L4T R38 on."
    if ours is not None:
        return f"{ours[0]} {ours[1]} fits."
    return "Nothing that was published fits."


def _facts_of_conda(answer: Answer, plain: Plain) -> str:
    cuda = str(answer.variant).partition(" ")[2]
    code = conda_code(cuda, plain["platform"])
    if code is None:
        return f"What conda-forge compiles for with CUDA {cuda} on Windows is not in the tables."
    return f"conda-forge compiles {answer.variant} for {' '.join(code[0])} and PTX of {code[1]}."


def _bare(answer: Answer, plain: Plain, reading: Reading) -> list[str]:
    number = reading.number(answer.torch or "", answer.variant or "", plain["platform"])
    gpus = reading.counting(plain)
    return [gpu for gpu in gpus if not reading.code(number, gpu, sound=False)]
