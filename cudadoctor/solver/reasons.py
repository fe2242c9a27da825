"""The reasons for and against a build of torch, as sentences with their values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import takewhile

from msgspec.structs import replace
from packaging.version import Version

from cudadoctor.knowledge import Knowledge, TorchBuild
from cudadoctor.knowledge.companions import LAST_AUDIO
from cudadoctor.model.findings import Rejection
from cudadoctor.model.machine import OptStr
from cudadoctor.solver.demand import Demand, listed, named, of_capability, seen_gpus, served
from cudadoctor.solver.fit import NO_GPU, Case, block, cudnn_refuses, on_ptx, reason, ways_of
from cudadoctor.solver.supposed import begins

VISION_REFUSES_PYTHON = (3, 14, 1)
"""torchvision excludes one release of Python that breaks it; torch does not."""

_NOTHING_LOST = "There are no other known trade-offs."
_ALWAYS = ("torchvision", "torchaudio")
_WHERE_INSTALLED = ("torchtext", "xformers", "flash-attn", "triton-windows", "vllm")


def why_this(build: TorchBuild, case: Case) -> Iterator[str]:
    """Why this build: its release, its code, its driver, and what was supposed."""
    waiting = _announced(build, case)
    yield _release(build, case, waits=waiting is not None)
    yield from _not_the_usual(build, case)
    if case.keep is not None:
        yield from _costs(build, case.free, case)
    if case.whole and case.whole.gpus == "some":
        yield "You requested the CPU build, so the GPU is not used."
    elif case.gpus == "none":
        on_cuda = "This machine has no NVIDIA GPU; this build also runs on the CPU."
        yield NO_GPU if build.cuda is None else on_cuda
    elif build.cuda is not None:
        yield from _hardware(build, build.cuda, case)
    if case.drive.supposed and case.gpus == "some":
        yield case.drive.supposed
    if build.cuda is not None:
        yield from _left_out(build, case)
    if waiting is not None:
        yield waiting
    if build.archs_uncertain:
        yield "This build's list of architectures comes from build scripts, not from the wheel."
    if case.python is None:
        yield f"The Python version is unknown; this build has {_pythons(build)}."
    python = case.machine.python.version
    refusing = build.torchvision is not None and build.torch.release >= (2, 11)
    if refusing and python is not None and python.release == VISION_REFUSES_PYTHON:
        yield f"torchvision {build.torchvision} does not support Python {python}."


def without_cudnn(build: TorchBuild, demand: Demand) -> OptStr:
    """That its own cuDNN refuses a GPU which the build has code for, and what keeps it away."""
    ways = ways_of(build, demand)
    lost = ", ".join(str(gpu) for gpu in cudnn_refuses(build, demand) if ways[gpu])
    if not lost:
        return None
    refused = f"The cuDNN in this build does not support compute capability {lost}"
    off = "set torch.backends.cudnn.enabled = False to run convolutions without cuDNN"
    return f"{refused}: {off}."


def _label(build: TorchBuild) -> str:
    """The build as pip names it: 2.7.1+cu128."""
    return f"{build.torch}+{build.variant}"


def _pythons(build: TorchBuild) -> str:
    plain = [python for python in build.pythons if not python.endswith("t")]
    if not plain:
        return "no wheel for any known Python version"
    return f"wheels for Python {plain[0]} to {plain[-1]}"


def _release(build: TorchBuild, case: Case, *, waits: bool) -> str:
    """Why this release. waits: a newer one that would fit was announced."""
    version = case.machine.torch.version
    if case.keep is not None:
        return f"torch {build.torch} is the newest release that matches your request ({case.keep})."
    here = case.machine.torch.installed is not False
    if here and version is not None and begins(build.torch, version):
        return (
            f"You can keep torch {build.torch}: its {build.variant} build is compatible with "
            "this machine."
        )
    if version is not None and is_replaced(build, case):
        if case.costs and case.nearer:
            return (
                f"torch {_label(case.nearer)} is closer to your installed version, but with it "
                f"you could not keep {listed(case.costs)} unchanged; {_label(build)} is the "
                "closest compatible build that keeps more."
            )
        return (
            f"No build of torch {version.public} is compatible with this machine; "
            f"{_label(build)} is the closest compatible build."
        )
    if waits:
        return (
            f"torch {_label(build)} is the newest published build that is compatible with this "
            "machine."
        )
    newer = [other for other in case.builds if other.torch > build.torch and other.cuda]
    if not newer or case.gpus == "none":
        return f"torch {_label(build)} is the newest build that is compatible with this machine."
    # Of the release that came next, a variant that was published says most.
    closest = [other for other in newer if other.torch == newer[-1].torch]
    nearest = next((other for other in closest if other.published), closest[0])
    against = _clause(reason(nearest, case) or "")
    return (
        f"{_label(build)} is the newest compatible build; {_label(nearest)} is not compatible: "
        f"{against}"
    )


def is_replaced(build: TorchBuild, case: Case) -> bool:
    """Whether the installed release gives way to another one."""
    torch = case.machine.torch
    if torch.version is None or torch.installed is False or case.gpus != "some" or case.keep:
        return False
    return not begins(build.torch, torch.version)


def _not_the_usual(build: TorchBuild, case: Case) -> Iterator[str]:
    """Why not what `pip install torch` would bring of the same release."""
    same = (other for other in case.builds if other.torch == build.torch and other.default)
    usual = next(same, None)
    if usual is None or usual.variant == build.variant or case.gpus != "some" or case.whole:
        return
    against = reason(usual, case)
    if against is not None and usual.cuda is None:
        yield f"The default build of torch {usual.torch} for this platform is CPU-only."
    elif against is not None:
        yield f"The default build ({usual.variant}) is not compatible: {_clause(against)}"


def _clause(sentence: str) -> str:
    """A reason after a colon: "It has" reads "it has", a name keeps its capital."""
    begins = sentence.startswith(("It ", "Its "))
    sentence = re.sub(r"(compute capability [\d., ]*\d), only .*", r"\1.", sentence)
    return f"{sentence[0].lower()}{sentence[1:]}" if begins else sentence


def _hardware(build: TorchBuild, cuda: Version, case: Case) -> Iterator[str]:
    """Its code for the GPUs, the driver that it needs, and what PTX and its cuDNN cost."""
    knowledge, drive, own = case.knowledge, case.drive, case.drive.cuda
    codes = []
    for gpu in case.capabilities:
        how = served(build.archs or (), gpu, build.torch, cuda, knowledge)
        codes.append(f"{gpu} ({how[1] if how else 'not known'})")
    floor = knowledge.driver_floor(cuda, drive.numbers)
    newer = bool(own and cuda > own and cuda.major == own.major)
    if newer:
        yield (
            f"A {build.variant} build runs on your CUDA {own} driver, as does any CUDA "
            f"{cuda.major} build."
        )
    yield f"This build has code for compute capability {', '.join(codes)}."
    if drive.decides or floor is None or drive.version is None:
        yield f"This build needs CUDA {cuda.major}; your driver supports CUDA {own}."
    elif not drive.supposed:
        yield f"CUDA {cuda} needs driver {floor.driver} or newer; yours is {drive.version}."
    if newer:
        yield f"Your driver cannot load PTX compiled with CUDA {cuda}."
    if slow := ", ".join(map(str, on_ptx(build, case))):
        yield (
            f"GPUs with compute capability {slow} run PTX: the driver compiles the kernels on "
            "first use, which takes minutes, and caches them in ~/.nv/ComputeCache "
            "(CUDA_CACHE_MAXSIZE sets the cache size)."
        )
        fits = (other for other in case.asked if block(other, case) is None)
        native = next((other for other in fits if not on_ptx(other, case)), None)
        if native is None:
            yield f"No compatible build has machine code for compute capability {slow}."
        else:
            yield f"torch {_label(native)} has machine code for this compute capability."
    if off := without_cudnn(build, case):
        yield off


def _left_out(build: TorchBuild, case: Case) -> Iterator[str]:
    """GPUs that the build does not serve; and what an old one keeps from coming."""
    first, *others = case.capabilities or (None,)
    gpus = seen_gpus(case.machine, case.knowledge)
    if case.aside:
        which = named(of_capability(gpus, case.aside))
        yield (
            f"No torch build for {case.platform} has code for compute capability "
            f"{', '.join(map(str, case.aside))}, so GPUs with that compute capability are left "
            "out."
        )
        yield f"To hide {which}, set CUDA_VISIBLE_DEVICES to list only the other GPUs."
    if first is None or not others:
        return
    rest = replace(case, capabilities=tuple(others))
    newer = takewhile(lambda other: other.torch > build.torch, case.asked)
    if found := next((other for other in newer if block(other, rest) is None), None):
        which = named(of_capability(gpus, (first,)))
        yield f"Without {which}, you could use torch {_label(found)}."


def why_none(case: Case) -> Iterator[str]:
    """Why nothing fits, in general; the variants say more."""
    newest, oldest, some = case.asked[0].torch, case.asked[-1].torch, case.gpus == "some"
    known = f"torch {newest}" if newest == oldest else f"torch {oldest} to {newest}"
    parts = []
    if some:
        parts = [f"compute capability {', '.join(map(str, case.capabilities))}"]
        parts += [f"driver {case.drive.version}"] if case.drive.version else []
    parts += [f"Python {case.python}"] if case.python else []
    parts += [f"glibc {case.glibc}"] if case.glibc else []
    yield f"No build of {known} for {case.platform} is compatible with {', '.join(parts)}."
    if case.tegra:
        yield f"{case.tegra[0].upper()}{case.tegra[1:]}."
    if case.drive.supposed and some:
        yield case.drive.supposed
    if len(case.asked) < len(case.builds):
        yield f"You asked for torch {case.keep} only."
    if some and any(build.variant == "cpu" for build in case.builds):
        yield "The CPU build would run, but without using the GPU."


# --- the other variants: of the chosen release, and of every newer one ---------------------------


def rejections(chosen: TorchBuild, case: Case) -> tuple[Rejection, ...]:
    """Each other variant once, with its reason in the chosen release and in its newest release."""
    # The builds come newest first.
    since = list(takewhile(lambda build: build.torch >= chosen.torch, case.builds))
    same = {build.variant: build for build in since if build.torch == chosen.torch}
    newer = _newest_of_each(
        build for build in since if build.variant not in same or build.torch > chosen.torch
    )
    better = "the default for this platform" if chosen.default else "preferred"
    too = f"It would also work, but {chosen.variant} is {better}."
    texts = {
        variant: [_against(build, case, too if build in case.asked else None)]
        for variant, build in same.items()
    }
    for variant, build in newer.items():
        text = _against(build, case, None)
        given = texts.setdefault(variant, [])
        if text not in given:
            given.append(_with_release(text, build))
    texts.pop(chosen.variant, None)
    return tuple(
        Rejection(variant=variant, reason=" ".join(given)) for variant, given in texts.items()
    )


def every_rejection(case: Case) -> tuple[Rejection, ...]:
    """Where nothing fits: each variant that was asked for once, by its newest release.

    Of the newest release that was asked for, all variants: a constraint may have named one only.
    """
    newest = case.asked[0].torch
    beside = {build.variant: build for build in case.builds if build.torch == newest}
    found = beside | _newest_of_each(case.asked)
    texts = {variant: _against(build, case, None) for variant, build in found.items()}
    return tuple(
        Rejection(
            variant=variant,
            reason=texts[variant]
            if build.torch == newest
            else _with_release(texts[variant], build),
        )
        for variant, build in found.items()
    )


def _announced(chosen: TorchBuild, case: Case) -> OptStr:
    """That something newer would fit and was only announced; None where nothing was."""
    waiting = [
        build
        for build in takewhile(lambda build: build.torch > chosen.torch, case.asked)
        if build.published is None and not block(build, case, ignoring=["announced"])
    ]
    if not waiting:
        return None
    names = [build.variant for build in waiting if build.torch == waiting[0].torch]
    which = f"torch {waiting[0].torch} ({' and '.join(names)})"
    return f"{which} has been announced, but no wheel is known to have been published."


def _newest_of_each(builds: Iterable[TorchBuild]) -> dict[str, TorchBuild]:
    """Variant -> its newest release that was published, else the newest that is spoken of."""
    found: dict[str, TorchBuild] = {}
    for build in builds:
        known = found.setdefault(build.variant, build)
        if build.published and not known.published:
            found[build.variant] = build
    return found


def _against(build: TorchBuild, case: Case, too: OptStr) -> str:
    """Why it does not fit, else why it was not taken. too: where it is a matter of preference.

    A build for GPUs is held against them, also where none is to be used.
    """
    demand = case if build.cuda is None else case.whole or case
    kept = "It would also work, but the installed release is kept."
    fits = kept if case.keep is None else f"It would work, but you asked for {case.keep}."
    return reason(build, demand) or too or fits


def _with_release(text: str, build: TorchBuild) -> str:
    """The sentence with the release in place of "It"."""
    if text.startswith("It is not known"):
        return f"It is not known which GPUs torch {build.torch} has code for."
    if text.startswith("It "):
        return f"torch {build.torch} {text.removeprefix('It ')}"
    if text.startswith("Its "):
        return f"torch {build.torch}: its {text.removeprefix('Its ')}"
    if text.startswith("This "):
        return f"torch {build.torch}: this {text.removeprefix('This ')}"
    return f"torch {build.torch}: {text}"


# --- what a constraint on the release costs -------------------------------------------------------


def _costs(build: TorchBuild, free: TorchBuild | None, case: Case) -> Iterator[str]:
    """What is given up for the constraint. free: what would be chosen without it."""
    if free is None or (free.torch, free.variant) == (build.torch, build.variant):
        yield "Without your version constraint, the same build would be chosen."
        return
    yield f"Without your version constraint, torch {_label(free)} would be chosen."
    yield from [*_lost(build, free, case)] or [_NOTHING_LOST]


def _lost(build: TorchBuild, free: TorchBuild, case: Case) -> Iterator[str]:
    newer = (other for other in case.builds if build.torch < other.torch <= free.torch)
    if count := len({other.torch for other in newer if other.published}):
        many = f"{count} newer releases, up to" if count > 1 else "one newer release,"
        yield f"You give up {many} torch {free.torch} (released {free.released})."
    slow = [str(gpu) for gpu in on_ptx(build, case) if gpu not in on_ptx(free, case)]
    if slow and build.cuda is not None:
        yield (
            f"You give up native code: GPUs with compute capability {', '.join(slow)} fall back "
            f"to PTX, while torch {_label(free)} has native code for them."
        )
    installed = {package.name for package in case.machine.packages or ()}
    for name in (*_ALWAYS, *(name for name in _WHERE_INSTALLED if name in installed)):
        has, had = (companion_of(name, either, case.knowledge) for either in (build, free))
        if had is not None and has is None:
            yield (
                f"There is no known {name} release for torch {build.torch}; torch {free.torch} "
                f"works with {name} {had}."
            )
    if build.archs_uncertain and not free.archs_uncertain:
        yield (
            f"The list of supported GPUs is less reliable for torch {build.torch} than for torch "
            f"{free.torch}."
        )


def companion_of(name: str, build: TorchBuild, knowledge: Knowledge) -> OptStr:
    """The release of a companion that belongs to a build, None where there is none."""
    paired = {"torchvision": build.torchvision, "torchaudio": build.torchaudio}
    if name == "torchaudio" and build.torchaudio is None:
        return LAST_AUDIO if last_audio(build, knowledge) else None
    return (
        paired[name] if name in paired else next(iter(knowledge.companion(name, build.torch)), None)
    )


def last_audio(build: TorchBuild, knowledge: Knowledge) -> TorchBuild | None:
    """The build of torch beside which the last torchaudio came out, of the same CUDA and index.

    It runs with every later torch, and refuses another minor version of CUDA.
    """
    own = knowledge.build_of(Version(LAST_AUDIO), build.variant, build.platform)
    later = build.torch > Version(LAST_AUDIO)
    return own if own and later and (own.default or not build.default) else None
