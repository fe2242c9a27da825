"""docker: a Dockerfile on an nvidia/cuda image that is known to exist, or lines of one.

torch's wheels bring their own CUDA libraries, so the smallest image (base) is enough; what compiles
against torch needs nvcc (devel). What counts of the image is the driver that it asks for.
"""

import shlex
from collections.abc import Container, Iterator
from operator import itemgetter
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace
from packaging.version import Version

from cudadoctor.installers.index import is_foreign, options, pinned, source_for
from cudadoctor.installers.pip import torch_lines
from cudadoctor.installers.requirement import pin_of, sound, split_compiled
from cudadoctor.installers.stack import IN_DOCKER, PLATFORM_NAMES, Stack, heading
from cudadoctor.installers.tool import Hashes, Tool, Written, joined
from cudadoctor.knowledge import Knowledge, TorchBuild
from cudadoctor.knowledge.torch_builds import TORCH_INDEX
from cudadoctor.model.findings import Edit, PackageChange
from cudadoctor.model.machine import Machine, OptStr, OptVersion
from cudadoctor.solver.demand import driver_level

_PYTHON_OF = {"ubuntu24.04": "3.12", "ubuntu22.04": "3.10", "ubuntu26.04": "3.14"}
"""The Python of each distribution, the preferred distribution first."""
_GLIBC_OF = {"3.12": "2.39", "3.10": "2.35"}
"""glibc of the distribution with that Python, as Ubuntu's packages have it."""
_VENV = "/opt/venv"
_USER, _UID = "app", 10001
_HOME = f"/{_USER}"
_ASKS = "The image needs a driver that supports CUDA {cuda} (NVIDIA_REQUIRE_CUDA)"


# --- images ------------------------------------------------------------------------------------


class Image(Struct, frozen=True, kw_only=True):
    """An image. python: of its distribution; cuda: what it asks a driver for, None for nothing."""

    name: str
    python: str
    cuda: OptVersion = None


PLAIN = Image(name="ubuntu:24.04", python="3.12")


def image_for(
    kb: Knowledge,
    cuda: OptVersion,
    *,
    runs: OptVersion,
    python: OptStr = None,
    pythons: Container[str] | None = None,
    flavour: Literal["base", "devel"] = "base",
) -> Image | None:
    """The image for a build of this CUDA version, None if the tables have none that suits.

    Not newer than the driver's own CUDA (runs): these images refuse to start on an older driver of
    a GeForce, although the wheels in them would run. If the driver is not known, the oldest of
    the major that the preferred distribution has. python: the wished one, which decides if an
    image has it; pythons: those that the build is made for, if only the image's own can be used.
    flavour: "devel" has nvcc.
    """
    if cuda is None:
        return PLAIN
    found = [
        (rank, asks, Image(name=f"nvidia/cuda:{tag}", python=own, cuda=asks))
        for asks in (Version(f"{cuda.major}.{minor}") for minor in range(cuda.minor + 1))
        for rank, (distro, own) in enumerate(_PYTHON_OF.items())
        if (pythons is None or own in pythons)
        and (tag := kb.newest_docker_tag(asks, flavour, distro))
    ]
    found = [row for row in found if row[2].python == python] or found
    if runs is None or runs.major < cuda.major:
        return min(found, key=itemgetter(0, 1), default=(0, cuda, None))[2]
    started = (row for row in found if row[1] <= runs)
    return max(started, key=lambda row: (row[1], -row[0]), default=(0, cuda, None))[2]


def image_of(m: Machine, kb: Knowledge, change: PackageChange) -> Image | None:
    """The image for a change, with a Python that the change's torch is made for."""
    build = _build(m, kb, change)
    cuda = Version(change.cuda) if change.cuda else None
    return image_for(
        kb,
        cuda,
        runs=driver_level(m, kb),
        pythons=build.pythons if build else None,
        flavour="devel" if split_compiled((*change.install, *change.then))[1] else "base",
    )


def inside(m: Machine, kb: Knowledge, change: PackageChange) -> Machine:
    """The machine with the Python and the C library of the image, and nothing installed."""
    image = image_of(m, kb, change) or PLAIN
    python = image.python if image.python in _GLIBC_OF else PLAIN.python
    arch = "aarch64" if m.platform.machine in ("aarch64", "arm64") else "x86_64"
    return replace(
        m,
        platform=replace(
            m.platform,
            system="Linux",
            machine=arch,
            libc="glibc",
            glibc=Version(_GLIBC_OF[python]),
        ),
        python=replace(
            m.python,
            executable=None,
            version=Version(python),
            implementation="CPython",
            free_threaded=False,
            bits=64,
        ),
    )


# --- lines -------------------------------------------------------------------------------------


def write(m: Machine, kb: Knowledge, change: PackageChange) -> Written:
    """The lines that bring the change's packages into an image."""
    pip = ("pip", "install", "--no-cache-dir")
    if is_foreign(change.index):
        # A Jetson's: which of NVIDIA's images it starts from is not in the tables.
        index = ("--index-url", change.index) if change.index else ()
        line = f"RUN {shlex.join((*pip, *sound(change.install), *index))}"
        return Written(
            tool="docker",
            edits=(Edit(file="Dockerfile", what=line),),
            manual="Use NVIDIA's l4t image for this JetPack release as the base image: the "
            "nvidia/cuda images are not made for Jetson. Start the container with `docker "
            "run --runtime nvidia`.",
        )
    if change.variant is not None and m.platform.system not in (None, "Linux"):
        # The Linux in the image may have another build as its default.
        build = _build(m, kb, change)
        index_url = None if build and build.default else f"{TORCH_INDEX}/{change.variant}"
        change = replace(change, index=index_url)
    source = source_for(m, change, "docker")
    image = image_of(m, kb, change)
    asks = f"{_ASKS.format(cuda=image.cuda)}." if image and image.cuda else None
    wheels, compiled = split_compiled(pinned(sound(change.install), source))
    more, last = split_compiled(sound(change.then))
    last = (*compiled, *last)
    lines = [
        f"FROM {(image or PLAIN).name}",
        "RUN apt-get update && apt-get install -y --no-install-recommends python3 python3-venv"
        + (" g++ python3-dev" if last else ""),
        f"RUN python3 -m venv {_VENV}",
        f"ENV PATH={_VENV}/bin:$PATH",
    ]
    links = ("--find-links", change.find_links) if change.find_links else ()
    steps = (
        (*wheels, *options(source), *(() if more else links)) if wheels else (),
        (*more, *links) if more else (),
        ("--no-build-isolation", *last) if last else (),
    )
    lines += [f"RUN {shlex.join((*pip, *words))}" for words in steps if words]
    start = "docker run --gpus all" if change.cuda else "docker run"
    return Written(
        tool="docker",
        edits=(Edit(file="Dockerfile", what="\n".join(lines)),),
        manual="Build the image with `docker build -t torch .` and start a container with "
        f"`{start} -it torch`.",
        note=joined(asks, source.note),
    )


def _build(m: Machine, kb: Knowledge, change: PackageChange) -> TorchBuild | None:
    """The row of the change's torch for Linux, None if the tables have none."""
    release = pin_of(change.install)
    if not release or change.variant is None:
        return None
    arm = (m.platform.machine or "").lower() in ("aarch64", "arm64")
    return kb.build_of(Version(release), change.variant, "linux_aarch64" if arm else "linux_x86_64")


# --- Dockerfile --------------------------------------------------------------------------------


def text(stack: Stack, kb: Knowledge, _: Hashes | None = None) -> str:
    """Dockerfile: torch's wheels in an environment of their own; for Linux alone."""
    linux = tuple(build for build in stack.builds if build.platform.startswith("linux"))
    stack = replace(stack, builds=linux or stack.builds)
    runs, python = stack.driver_cuda, stack.python
    image = image_for(kb, stack.lead.cuda, runs=runs, python=python) or PLAIN
    lines = ["# syntax=docker/dockerfile:1", *heading(stack, kb, *_notes(stack, image))]
    lines += ["", f"FROM {image.name}", "", *_labels(stack), "", *_run(stack, image), ""]
    if image.cuda is not None:
        lines += [
            "# A container can lose its GPUs, for example when systemd is reloaded on the host.",
            "HEALTHCHECK --interval=5m --timeout=30s --start-period=30s \\",
            '    CMD ["nvidia-smi", "--list-gpus"]',
        ]
    lines += [f"WORKDIR {_HOME}", 'CMD ["python"]']
    return "\n".join(lines) + "\n"


def why_not(lead: TorchBuild, kb: Knowledge) -> OptStr:
    """Why no image can hold a build, None if one can."""
    if lead.platform.startswith("linux"):
        return None
    known = (
        f"the only known builds of torch {lead.torch} {lead.variant} are for "
        f"{PLATFORM_NAMES[lead.platform]}"
    )
    rows = kb.builds_on(IN_DOCKER.get(lead.platform, lead.platform))
    same = (build for build in rows if build.variant == lead.variant and build.published)
    other = next((f" To get a Dockerfile, use --torch {build.torch}." for build in same), "")
    return f"A Docker image needs Linux packages, but {known}.{other}"


def _notes(stack: Stack, image: Image) -> Iterator[str]:
    name, cuda = stack.name, stack.lead.cuda
    gpus = "--gpus all --shm-size=1g " if cuda else ""
    yield f"Build it with: docker build -t {name} ."
    yield f"Use it with: docker run --rm -it {gpus}{name}"
    if cuda is not None and image.cuda is None:
        known = f"No suitable nvidia/cuda image is known for CUDA {cuda}. The wheels include"
        yield f"{known} their own CUDA libraries, so a plain base image is enough."
    if image.cuda is not None:
        more = "with an older driver, a container starts only on data center GPUs."
        yield f"{_ASKS.format(cuda=image.cuda)}; {more}"


def _labels(stack: Stack) -> Iterator[str]:
    lead = stack.lead
    holds = f"torch {lead.torch} {f'for CUDA {lead.cuda}' if lead.cuda else 'without CUDA'}"
    yield f'LABEL org.opencontainers.image.title="{stack.name}" \\'
    yield f'      org.opencontainers.image.description="{holds}"'


def _run(stack: Stack, image: Image) -> Iterator[str]:
    """The distribution's packages, then the environment, which belongs to a user without rights.

    With the wanted Python, by default one that the build is made for: the image's own, else one
    that uv brings.
    """
    yield "# Package lists and archives stay in cache mounts; the base image would delete them."
    yield "# Versions come from the distribution."
    yield "# hadolint ignore=DL3008"
    yield "RUN --mount=type=cache,target=/var/cache/apt,sharing=locked \\"
    yield "    --mount=type=cache,target=/var/lib/apt/lists,sharing=locked \\"
    yield "    rm -f /etc/apt/apt.conf.d/docker-clean \\"
    yield "    && apt-get update \\"
    yield "    && apt-get install --yes --no-install-recommends python3 python3-venv \\"
    yield f"    && useradd --create-home --home-dir {_HOME} --uid {_UID} {_USER} \\"
    yield f"    && install --directory --owner {_USER} --group {_USER} {_VENV} {_HOME}/.cache"
    yield ""
    yield f"USER {_UID}"
    yield f"ENV VIRTUAL_ENV={_VENV} PATH={_VENV}/bin:$PATH"
    yield f"RUN --mount=type=cache,target={_HOME}/.cache/pip,uid={_UID},gid={_UID} \\"
    own = image.python if image.python in stack.pythons else stack.one_python
    python = stack.python or own
    steps = [f"python3 -m venv {_VENV}"]
    if python != image.python:
        steps = [
            f"python3 -m venv {_HOME}/.uv",
            f"{_HOME}/.uv/bin/python -m pip install 'uv>=0.5'",
            f"{_HOME}/.uv/bin/uv venv --seed --python {python} {_VENV}",
        ]
    index = [f"--extra-index-url {stack.index}"] if stack.index else []
    wanted = map(shlex.quote, (*torch_lines(stack), *stack.then))
    steps.append(" \\\n        ".join(("python -m pip install", *index, *wanted)))
    yield "    " + " \\\n    && ".join(steps)


TOOL = Tool(
    name="docker",
    programs=("docker",),
    fits=lambda _: False,
    write=write,
    kind="dockerfile",
    file="Dockerfile",
    text=text,
    changed=lambda _: None,
)
