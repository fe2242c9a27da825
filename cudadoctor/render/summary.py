"""The few lines that say what was looked at and what follows, shared by terminal and Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudadoctor.model.findings import Confidence, Severity
from cudadoctor.rules.healthy import is_doctors_own

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cudadoctor.locale.language import Language
    from cudadoctor.model.findings import Finding, Step
    from cudadoctor.model.machine import Gpu, Machine, Smoke
    from cudadoctor.render import Report

_MANY_GPUS = 3
_HARMLESS = ("not-environment", "torch-bug")
"""Causes that lie outside of the environment."""


def rows(machine: Machine, say: Language) -> Iterator[tuple[str, str]]:
    """Label and text of each line about the machine."""
    if machine.look == "report":
        yield from _reported(machine, say)
        return
    yield say("examined"), _examined(machine, say)
    yield say("driver"), _driver(machine, say)
    yield say("gpu"), _gpus(machine, say)
    yield say("torch"), _torch(machine, say)
    yield say("smoke"), _smoke(machine, say)


def _reported(machine: Machine, say: Language) -> Iterator[tuple[str, str]]:
    """What a pasted report tells: only what stands in it."""
    yield say("report"), _read(machine, say)
    known = (
        (say("system"), machine.platform.system or machine.container.kind, _system),
        (say("driver"), machine.driver.version, _driver),
        (say("gpu"), machine.gpus or machine.pci, _gpus),
        (say("torch"), machine.torch.version or machine.torch.installed is False, _torch),
    )
    for label, told, text in known:
        if told:
            yield label, text(machine, say)
    if machine.python.version:
        yield say("python"), str(machine.python.version)


def _read(machine: Machine, say: Language) -> str:
    """Which programs' output a report holds, and the day that it is judged for."""
    tellers = dict.fromkeys(one.partition(", line ")[0] for one in machine.origins.values())
    names = [say(one) for one in tellers if one and not one.startswith("line ")]
    text = ", ".join(names) if names else say("no output of a tool that is known")
    return text + (say(", as of {date}", date=machine.date) if machine.date else "")


def _system(machine: Machine, say: Language) -> str:
    platform, box = machine.platform, machine.container.kind
    words = [platform.distro or platform.system, platform.distro_version, platform.machine]
    name = " ".join(word for word in words if word)
    marks = [f"WSL {platform.wsl}" if platform.wsl else "", "Jetson" if platform.jetson else ""]
    inside = say("in {box}", box=box) if box and box != "none" else ""
    return ", ".join(word for word in (name, *marks, inside) if word)


def told(shown: Report) -> tuple[Finding, ...]:
    """The findings that are worth telling.

    That the program or torch may be at fault takes away from a root cause that was found, and
    where it is no more than possible it stands among the candidates.
    """
    found = shown.diagnosis.verdict == "broken" and shown.diagnosis.primary is not None
    return tuple(
        one
        for one in shown.diagnosis.findings
        if one.cause not in _HARMLESS or not (found or one.confidence is Confidence.POSSIBLE)
    )


def sureness(finding: Finding, say: Language) -> str:
    """How sure a finding is, "" where it is certain."""
    if finding.confidence is Confidence.CERTAIN:
        return ""
    return say("possible") if finding.confidence is Confidence.POSSIBLE else say("likely")


def cost_of(step: Step) -> str:
    """What a step touches and who must take it, in a few words (English, to be translated)."""
    if step.where == "windows":
        return "on the Windows side"
    if step.where == "admin":
        return "for the administrator"
    if step.where == "host":
        return "on the host"
    if step.where == "container":
        return "outside the container"
    if step.reboot:
        return "needs root and a reboot" if step.needs_root else "needs a reboot"
    if step.needs_root:
        return "needs root"
    if not (step.commands or step.variables):
        return "by hand"
    if makes_anew(step):
        return "makes a new environment"
    return {
        "process": "this shell only",
        "environment": "changes this environment",
        "system": "changes this system",
    }[step.risk.value]


def makes_anew(step: Step) -> bool:
    """Whether a step makes an environment of its own and leaves the examined one as it is."""
    first = step.commands[0] if step.commands else ()
    return "venv" in first[:3] or "create" in first[:2]


def manual_of(step: Step) -> str | None:
    """What is done by hand, where the title does not say it all."""
    return None if step.manual and step.manual.rstrip(".") == step.title else step.manual


def conclusion(shown: Report, say: Language) -> str:
    """The sentence behind the verdict."""
    diagnosis = shown.diagnosis
    took = say(" ({seconds:.1f} s)", seconds=shown.seconds) if shown.seconds is not None else ""
    if diagnosis.verdict == "healthy":
        return _healthy(shown.machine, say) + took
    if cause := outside(shown):
        if cause == "not-environment":
            return say("the report shows an error of the program and none of the environment")
        return say("the report shows a fault of torch itself and none of the environment")
    if diagnosis.verdict == "undecided":
        return _undecided(shown, say, took)
    return _first(shown, say) + took


def outside(shown: Report) -> str | None:
    """Which cause outside of the environment a report is likely to show, where it has no other."""
    if shown.machine.look != "report" or shown.diagnosis.primary is not None:
        return None
    likely = {one.cause for one in shown.diagnosis.findings if one.confidence <= Confidence.LIKELY}
    return next((one for one in _HARMLESS if one in likely), None)


def _first(shown: Report, say: Language) -> str:
    """What to do first where something is wrong."""
    primary = shown.diagnosis.primary or ""
    roots = [one for one in shown.diagnosis.findings if not one.because_of]
    if primary == "unknown":
        return say("something failed that no known cause explains")
    if sum(one.severity < Severity.INFO for one in roots) > 1:
        return say("cure {cause} first", cause=primary)
    return say("cure {cause}", cause=primary)


def _healthy(machine: Machine, say: Language) -> str:
    if machine.look == "report":
        return say("no environment fault in what was pasted")
    device = machine.smoke.device if machine.smoke else ""
    if device.startswith("cuda"):
        return say("nothing is wrong; the training step ran on {device}", device=device)
    if device == "cpu":
        return say("nothing is wrong; the training step ran on the CPU: it proves torch, not a GPU")
    return say("nothing is wrong in what was looked at; no training step was run")


def _undecided(shown: Report, say: Language, took: str) -> str:
    if is_doctors_own(shown.machine):
        return say("this is cudadoctor's own environment; which Python do you train with?") + took
    causes = [one.cause for one in shown.diagnosis.candidates][:4]
    text = say("the facts do not suffice") + took
    if causes:
        text += say("; still possible: {causes}", causes=", ".join(causes))
    return text


def _examined(machine: Machine, say: Language) -> str:
    python = machine.python
    if python.executable is None:
        return say("no interpreter is known")
    words = [f"Python {python.version}" if python.version else "", python.kind or ""]
    if python.chosen_by:
        words.append(say("chosen by {chosen}", chosen=python.chosen_by))
    words.extend(python.passed_over or ())
    if python.repair == "unfinished":
        words.append(say("a repair was cut off: cudadoctor fix --undo takes it back"))
    inside = ", ".join(word for word in words if word)
    return f"{python.executable} ({inside})" if inside else python.executable


def _driver(machine: Machine, say: Language) -> str:
    driver = machine.driver
    if driver.version is None:
        if driver.installed is False:
            return say("none is installed here")
        idle = driver.installed and driver.loaded is False and not machine.platform.wsl
        text = say("installed, not loaded") if idle else say("not known")
    else:
        text = str(driver.version)
    if driver.version and driver.flavour:
        text += f" ({say(driver.flavour)})"
    if driver.cuda:
        text += say(", runs CUDA up to {cuda}", cuda=driver.cuda)
    return text


def _gpus(machine: Machine, say: Language) -> str:
    gpus = machine.gpus
    if not gpus:
        on_bus = [gpu for gpu in machine.pci or () if gpu.vendor == "nvidia"]
        if on_bus:
            return say("{count} on the PCI bus, none named by the driver", count=len(on_bus))
        silent = gpus is None and (machine.pci is None or machine.driver.nvml.loads)
        return say("not known") if silent else say("no NVIDIA GPU")
    names = [_gpu(gpu) for gpu in gpus]
    if len(names) > _MANY_GPUS and len(set(names)) == 1:
        return f"{len(names)} x {names[0]}"
    return "; ".join(names)


def _gpu(gpu: Gpu) -> str:
    words = [gpu.name or "?"]
    if gpu.memory_bytes:
        words.append(f"{gpu.memory_bytes / 2**30:.0f} GiB")
    if gpu.capability:
        words.append(f"sm_{str(gpu.capability).replace('.', '')}")
    return ", ".join(words)


def _torch(machine: Machine, say: Language) -> str:
    torch = machine.torch
    if torch.installed is False:
        return say("not installed")
    if torch.version is None:
        return say("not known")
    text = torch.text or str(torch.version)
    if torch.build == "cuda":
        text += say(", built with CUDA {cuda}", cuda=torch.cuda or "?")
    elif torch.build:
        text += say(", a {build} build", build={"cpu": "CPU"}.get(torch.build, torch.build))
    if torch.archs:
        text += say(" for {archs}", archs=" ".join(torch.archs))
    return text


def _smoke(machine: Machine, say: Language) -> str:
    if machine.smoke is None:
        asked = {"fast": "--fast", "no-smoke": "--no-smoke"}.get(machine.look)
        return say("not run ({why})", why=asked) if asked else say("not run")
    return _stages(machine.smoke, say)


def _stages(smoke: Smoke, say: Language) -> str:
    by: dict[str, list[str]] = {}
    for stage in smoke.stages:
        with_reason = stage.status != "passed" and stage.detail
        by.setdefault(stage.status, []).append(
            f"{stage.name} ({stage.detail})" if with_reason else stage.name
        )
    texts = [f"{say(status)}: {', '.join(names)}" for status, names in by.items()]
    return say("on {device}: ", device=smoke.device) + "; ".join(texts)
