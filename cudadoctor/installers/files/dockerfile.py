"""Dockerfile: torch's wheels in an environment of their own on an nvidia/cuda image.

The wheels bring their own CUDA libraries, so the smallest image (base) is enough; what is compiled
against torch needs nvcc (devel). What counts of the image is the driver that it asks for.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import msgspec

from cudadoctor.installers.files.heading import PLATFORM_NAMES, heading
from cudadoctor.installers.files.requirements import torch_lines
from cudadoctor.installers.files.stack import IN_DOCKER
from cudadoctor.installers.images import PLAIN, Image, image_for
from cudadoctor.installers.pip import split_compiled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cudadoctor.installers.files.stack import Stack
    from cudadoctor.knowledge import Knowledge, TorchBuild

_ENVIRONMENT = "/opt/venv"


def text(stack: Stack, kb: Knowledge) -> str:
    """The whole file."""
    stack = _for_linux(stack)
    image = _image(stack, kb) or Image(name=PLAIN, python="3.12")
    lines = ["# syntax=docker/dockerfile:1", *heading(stack, kb, *_notes(stack, image))]
    lines += ["", f"FROM {image.name}", "", *_run(stack, image)]
    lines += ["", f"ENV VIRTUAL_ENV={_ENVIRONMENT} PATH={_ENVIRONMENT}/bin:$PATH"]
    return "\n".join(lines) + "\n"


def why_not(stack: Stack, kb: Knowledge) -> str | None:
    """Why no image can hold the stack, None where one can."""
    lead = stack.lead
    if not lead.platform.startswith("linux"):
        name = PLATFORM_NAMES[lead.platform]
        known = f"torch {lead.torch} {lead.variant} is known for {name}, not for Linux"
        return f"An image holds Linux, and {known}.{_other_release(lead, kb)}"
    if _image(stack, kb) is None and split_compiled(stack.then)[1]:
        return f"No nvidia/cuda image for CUDA {lead.cuda} with nvcc is known for it."
    return None


def _other_release(lead: TorchBuild, kb: Knowledge) -> str:
    """The newest release of that variant which is known for Linux."""
    rows = kb.builds_on(IN_DOCKER.get(lead.platform, lead.platform))
    found = next((one for one in rows if one.variant == lead.variant and one.published), None)
    return f" With --torch {found.torch} there is a file." if found else ""


def _for_linux(stack: Stack) -> Stack:
    """The stack without the platforms that no image has."""
    builds = tuple(one for one in stack.builds if one.platform.startswith("linux"))
    return msgspec.structs.replace(stack, builds=builds or stack.builds)


def _image(stack: Stack, kb: Knowledge) -> Image | None:
    if stack.lead.cuda is None:
        return Image(name=PLAIN, python="3.12")
    needs_nvcc = split_compiled(stack.then)[1]
    return image_for(
        kb,
        stack.lead.cuda,
        runs=stack.driver_cuda,
        python=stack.python,
        flavour="devel" if needs_nvcc else "base",
    )


def _notes(stack: Stack, image: Image) -> Iterator[str]:
    name, cuda = stack.name, stack.lead.cuda
    gpus = "--gpus all " if cuda else ""
    yield f"Build it with: docker build -t {name} ."
    yield f"Use it with: docker run --rm -it {gpus}{name} python"
    if cuda is not None and image.cuda is None:
        known = f"No nvidia/cuda image for CUDA {cuda} is known that suits, and the wheels bring"
        yield f"{known} their own libraries: a plain one serves."
    if image.cuda is not None:
        asked = f"The image asks for a driver that runs CUDA {image.cuda} (NVIDIA_REQUIRE_CUDA)"
        yield f"{asked}; an older one starts it on data-centre GPUs only."


def _run(stack: Stack, image: Image) -> Iterator[str]:
    """The environment and what goes into it, as one layer."""
    packages = ["python3", "python3-venv"]
    wheels, compiled = split_compiled(stack.then)
    if compiled:
        packages += ["g++", "python3-dev"]
    yield "# Versions follow the distribution of the image."
    yield "# hadolint ignore=DL3008"
    yield "RUN apt-get update \\"
    yield f"    && apt-get install --yes --no-install-recommends {' '.join(packages)} \\"
    yield "    && rm -rf /var/lib/apt/lists/* \\"
    pip = f"{_ENVIRONMENT}/bin/python -m pip install --no-cache-dir"
    index = [f"--extra-index-url {stack.index}"] if stack.index else []
    wanted = map(shlex.quote, (*torch_lines(stack), *wheels))
    steps = [*_made(stack, image), " \\\n        ".join((pip, *index, *wanted))]
    if compiled:
        steps.append(f"{pip} --no-build-isolation {shlex.join(compiled)}")
    yield "    && " + " \\\n    && ".join(steps)


def _made(stack: Stack, image: Image) -> list[str]:
    """An environment with the wanted Python: the image's own, else one that uv brings."""
    wanted = stack.python or _fitting(stack, image)
    if wanted == image.python:
        return [f"python3 -m venv {_ENVIRONMENT}"]
    return [
        "python3 -m venv /opt/uv",
        "/opt/uv/bin/python -m pip install --no-cache-dir 'uv>=0.5'",
        f"/opt/uv/bin/uv venv --seed --python {wanted} {_ENVIRONMENT}",
    ]


def _fitting(stack: Stack, image: Image) -> str:
    """The image's own Python where the build is made for it."""
    return image.python if image.python in stack.pythons else stack.one_python
