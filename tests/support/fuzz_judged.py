"""Outside text inside of facts: rules read variables and messages, pages show them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

from cudadoctor import pipeline
from cudadoctor.cli import output
from cudadoctor.locale import language
from cudadoctor.model import factfile
from cudadoctor.model.machine import Distribution, Gap, Identity, Machine
from cudadoctor.privacy.redact import Redactor
from cudadoctor.render import json_v1, markdown, terminal
from cudadoctor.render.script import script

_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCH_CUDA_ARCH_LIST",
    "CUDA_MODULE_LOADING",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "NCCL_SOCKET_IFNAME",
    "OMP_NUM_THREADS",
    "CUDA_HOME",
    "PIP_INDEX_URL",
)


_BESIDE = ("bitsandbytes", "xformers", "torchaudio", "flash-attn", "numpy", "pynvml", "triton")


@cache
def _healthy() -> Machine:
    path = Path(__file__).parent.parent / "machines" / "rtx4090-linux.json"
    return factfile.loads(path.read_bytes())


def machine_with(text: str) -> Machine:
    """A healthy machine with parts of the text wherever a fact is free text."""
    m, parts = _healthy(), [*text.split("\x1d"), text]
    variables = {name: parts[n % len(parts)][:4096] for n, name in enumerate(_VARIABLES)}
    lines = tuple(line[:400] for line in text.splitlines()[:40])
    assert m.torch.imported is not None
    imported = msgspec.structs.replace(m.torch.imported, cuda_error=parts[0], error=parts[-1])
    torch = msgspec.structs.replace(m.torch, imported=imported, requires=lines)
    extra = Distribution(name=parts[0][:60], version=parts[-1][:60], requires=lines)
    return msgspec.structs.replace(
        m,
        env=variables,
        torch=torch,
        packages=(*_with_versions(m, parts), extra),
        driver=msgspec.structs.replace(m.driver, log=lines),
        identity=Identity(user=parts[0][:20], home="/home/" + parts[-1][:80], host=parts[0][:30]),
        gaps=(Gap(fact="smoke", why=parts[0][:300]),),
    )


def _with_versions(m: Machine, parts: list[str]) -> tuple[Distribution, ...]:
    """The packages of a machine and common companions, every other with a part as its version."""
    known = list(m.packages or ()) + [Distribution(name=name, version="1.0") for name in _BESIDE]
    kept = parts[0][:60] or "1.0"
    return tuple(
        msgspec.structs.replace(package, version=kept) if n % 2 else package
        for n, package in enumerate(known)
    )


def judged(text: str) -> object:
    """Diagnosis, plan and every page of such a machine."""
    return shown_of(machine_with(text))


def shown_of(machine: Machine) -> tuple[str, ...]:
    """Every page about a machine."""
    found = pipeline.judge(machine)
    shown = pipeline.report(found)
    plan, words = found.plan, found.diagnosis
    return (
        json_v1.dumps(json_v1.report(shown)),
        markdown.report(shown, language.language("en")),
        output.painted(terminal.report(shown, terminal.Layout(width=80))),
        script(plan, found.machine, words, shell="bash", version="0", knowledge="0"),
    )


def redacted(text: str) -> object:
    """The text as it may be shown, and the machine that holds it."""
    machine = machine_with(text)
    redactor = Redactor(machine)
    return redactor.text(text), redactor.valued("env.MASTER_ADDR", text), redactor.machine(machine)
