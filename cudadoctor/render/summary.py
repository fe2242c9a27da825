"""What terminal and Markdown say alike: machine, evidence, steps, the verdict's sentence."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from cudadoctor.locale.language import Language
from cudadoctor.model.findings import (
    Confidence,
    Evidence,
    Finding,
    Plan,
    Rejection,
    Step,
)
from cudadoctor.model.machine import Gpu, Json, Machine, OptStr, StrPair
from cudadoctor.model.trust import is_doctors_own
from cudadoctor.render import Report, inert

_MANY_GPUS = 3
_HARMLESS = ("not-environment", "torch-bug")
"""Causes that lie outside of the environment."""


def machine_rows(machine: Machine, say: Language) -> Iterator[StrPair]:
    """Label and text of each line about the machine; of a pasted report only what stands in it."""
    pasted, torch = machine.look == "report", machine.torch
    for label, shown, text in (
        (say("report"), pasted, _read),
        (say("examined"), not pasted, _examined),
        (say("system"), pasted and (machine.platform.system or machine.container.kind), _system),
        (say("driver"), not pasted or machine.driver.version, _driver),
        (say("gpu"), not pasted or machine.gpus or machine.pci, _gpus),
        (say("torch"), not pasted or torch.version or torch.installed is False, _torch),
        (say("python"), pasted and machine.python.version, lambda m, _: str(m.python.version)),
        (say("smoke"), not pasted, _smoke),
    ):
        if shown:
            yield label, text(machine, say)


def _read(machine: Machine, say: Language) -> str:
    """Which programs' output a report holds, and the day that it is judged for."""
    programs = dict.fromkeys(origin.partition(", line ")[0] for origin in machine.origins.values())
    names = [say(name) for name in programs if name and not name.startswith("line ")]
    text = ", ".join(names) if names else say("no output of a tool that is known")
    return text + (say(", as of {date}", date=machine.date) if machine.date else "")


def _system(machine: Machine, say: Language) -> str:
    platform, box = machine.platform, machine.container.kind
    words = [platform.distro or platform.system, platform.distro_version, platform.machine]
    name = " ".join(word for word in words if word)
    marks = [f"WSL {platform.wsl}" if platform.wsl else "", "Jetson" if platform.jetson else ""]
    inside = say("in {box}", box=box) if box and box != "none" else ""
    return ", ".join(word for word in (name, *marks, inside) if word)


def shown_findings(shown: Report) -> tuple[Finding, ...]:
    """The findings that are worth showing.

    That the program or torch may be at fault takes away from a root cause that was found, and
    where it is no more than possible it stands among the candidates.
    """
    found = shown.diagnosis.verdict == "broken" and shown.diagnosis.primary is not None
    return tuple(
        finding
        for finding in shown.diagnosis.findings
        if finding.cause not in _HARMLESS
        or not (found or finding.confidence is Confidence.POSSIBLE)
    )


def sureness(finding: Finding, say: Language) -> str:
    """How sure a finding is, "" where it is certain."""
    if finding.confidence is Confidence.CERTAIN:
        return ""
    return say("possible" if finding.confidence is Confidence.POSSIBLE else "likely")


_ELSEWHERE = {
    "windows": "on the Windows side",
    "admin": "for the administrator",
    "host": "on the host",
    "container": "outside the container",
}


def cost_of(step: Step) -> str:
    """What a step touches and who must take it, in a few words (English, to be translated)."""
    if step.where in _ELSEWHERE:
        return _ELSEWHERE[step.where]
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


def manual_of(step: Step) -> OptStr:
    """What is done by hand, where the title does not say it all."""
    return None if step.manual and step.manual.rstrip(".") == step.title else step.manual


def conclusion(shown: Report, say: Language) -> str:
    """The sentence behind the verdict."""
    diagnosis, primary = shown.diagnosis, shown.diagnosis.primary or ""
    took = say(" ({seconds:.1f} s)", seconds=shown.seconds) if shown.seconds is not None else ""
    if diagnosis.verdict == "healthy":
        return _healthy(shown.machine, say) + took
    if cause := outside(shown):
        return say(
            "the report shows an error of the program and none of the environment"
            if cause == "not-environment"
            else "the report shows a fault of torch itself and none of the environment"
        )
    if diagnosis.verdict != "undecided":
        if primary == "unknown":
            return say("something failed that no known cause explains") + took
        several = len(diagnosis.roots) > 1
        return say("cure {cause} first" if several else "cure {cause}", cause=primary) + took
    if is_doctors_own(shown.machine):
        return say("this is cudadoctor's own environment; which Python do you train with?") + took
    causes = ", ".join(candidate.cause for candidate in diagnosis.candidates[:4])
    still = say("; still possible: {causes}", causes=causes) if causes else ""
    return say("the facts do not suffice") + took + still


def outside(shown: Report) -> OptStr:
    """Which cause outside of the environment a report is likely to show, where it has no other."""
    if shown.machine.look != "report" or shown.diagnosis.primary is not None:
        return None
    findings = shown.diagnosis.findings
    likely = {finding.cause for finding in findings if finding.confidence <= Confidence.LIKELY}
    return next((cause for cause in _HARMLESS if cause in likely), None)


def _healthy(machine: Machine, say: Language) -> str:
    if machine.look == "report":
        return say("no environment fault in what was pasted")
    device = machine.smoke.device if machine.smoke else ""
    if device.startswith("cuda"):
        return say("nothing is wrong; the training step ran on {device}", device=device)
    if device == "cpu":
        return say("nothing is wrong; the training step ran on the CPU: it proves torch, not a GPU")
    return say("nothing is wrong in what was looked at; no training step was run")


def _examined(machine: Machine, say: Language) -> str:
    python = machine.python
    if python.executable is None:
        return say("no interpreter is known")
    words = [f"Python {python.version}" if python.version else "", python.kind or ""]
    words += [say("chosen by {chosen}", chosen=python.chosen_by)] if python.chosen_by else []
    words += python.passed_over or ()
    if python.repair == "unfinished":
        words.append(say("a repair was cut off: cudadoctor fix --undo takes it back"))
    inside = ", ".join(filter(None, words))
    return f"{python.executable} ({inside})" if inside else python.executable


def _driver(machine: Machine, say: Language) -> str:
    driver = machine.driver
    if driver.version:
        text = str(driver.version) + (f" ({say(driver.flavour)})" if driver.flavour else "")
    elif driver.installed is False:
        return say("none is installed here")
    else:
        idle = driver.installed and driver.loaded is False and not machine.platform.wsl
        text = say("installed, not loaded" if idle else "not known")
    return text + (say(", runs CUDA up to {cuda}", cuda=driver.cuda) if driver.cuda else "")


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
    memory = f"{gpu.memory_bytes / 2**30:.0f} GiB" if gpu.memory_bytes else ""
    code = f"sm_{gpu.capability}".replace(".", "") if gpu.capability else ""
    return ", ".join(filter(None, (gpu.name or "?", memory, code)))


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
    return text + (say(" for {archs}", archs=" ".join(torch.archs)) if torch.archs else "")


def _smoke(machine: Machine, say: Language) -> str:
    smoke = machine.smoke
    if smoke is None:
        asked = {"fast": "--fast", "no-smoke": "--no-smoke"}.get(machine.look)
        return say("not run ({why})", why=asked) if asked else say("not run")
    by: dict[str, list[str]] = {}
    for stage in smoke.stages:
        with_reason = stage.status != "passed" and stage.detail
        by.setdefault(stage.status, []).append(
            f"{stage.name} ({stage.detail})" if with_reason else stage.name
        )
    texts = [f"{say(status)}: {', '.join(names)}" for status, names in by.items()]
    return say("on {device}: ", device=smoke.device) + "; ".join(texts)


# --- evidence: whole tables of facts by what distinguishes them, the rest as it is ---------------

LONGEST_VALUE = 120
MOST_ITEMS = 4

_SHOWN_FIELDS = {
    "build.compiler": "name version | path",
    "build.toolkits": "path | cuda origin",
    "driver.fabric": "| manager version nvswitches",
    "driver.module_files": "version flavour | kernel",
    "driver.nodes": "path | errno group",
    "driver.packages": "name version |",
    "driver.xids": "bus_id | code text",
    "gpus": "name | capability code compute_mode mig"
    " remap_failed remap_pending retired_pending ecc_uncorrected",
    "libraries.mapped": "path | version how",
    "libraries.predicted": "path | version how",
    "packages": "name version |",
    "pci": "address vendor device_id | bound lost bars_missing",
    "smoke.stages": "name status | detail",
    "torch.copies": "version path |",
}
"""Fact -> what is shown of each of its items: bare | by its name. The JSON holds all."""
_USUAL: tuple[object, ...] = (None, False, 0, "", "default", [])
_SYMPTOM = re.compile(r"symptoms\.\d+\.text")


class EvidenceRow(msgspec.Struct, frozen=True):
    """One fact as it is shown, inert. source: "" if not known or if it says the same as value."""

    fact: str
    value: str
    source: str


def evidence_rows(finding: Finding, *, whole: bool = False) -> list[EvidenceRow]:
    """What a finding rests on, each fact once. whole: nothing is shortened or left out.

    What is not known proves nothing: it is shown only where nothing else is.
    """
    about = f"{finding.title} {finding.why}"
    found = list(dict.fromkeys(_row(fact, about, whole=whole) for fact in finding.evidence))
    return found if whole else [row for row in found if row.value != "not known"] or found


def _row(evidence: Evidence, about: str, *, whole: bool) -> EvidenceRow:
    fact = "report" if _SYMPTOM.fullmatch(evidence.fact) else evidence.fact
    value = _readable(fact, evidence.value, about, whole=whole)
    if len(value) > LONGEST_VALUE and not whole:
        value = value[: LONGEST_VALUE - 3] + "..."
    source = "" if evidence.source in (None, evidence.value) else str(evidence.source)
    return EvidenceRow(inert(fact), inert(value), inert(source))


def _readable(fact: str, value: str, about: str, *, whole: bool) -> str:
    if fact.endswith("_bytes") and value.isdigit():
        count = int(value)
        return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
    if not value.startswith(("{", "[{")):
        return value
    try:
        plain = msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return value
    kind = re.sub(r"\.\d+$", "", fact)
    items = plain if isinstance(plain, list) else [plain]
    if not all(isinstance(item, dict) for item in items):
        return value
    chosen = [item for item in items if _is_named(item, about)] or items
    counted = Counter(_item(item, kind) for item in chosen)
    texts = [f"{count} x {text}" if count > 1 else text for text, count in counted.items()]
    if len(texts) > MOST_ITEMS and not whole:
        texts[MOST_ITEMS:] = [f"{len(texts) - MOST_ITEMS} more"]
    return "; ".join(texts)


def _is_named(item: Json, about: str) -> bool:
    """Whether the finding speaks of this one, by its name or version."""
    name = str(item.get("name") or "")
    return bool(name) and re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", about) is not None


def _item(item: Json, kind: str) -> str:
    if item.get("present") is False:
        return "none"
    fields = _SHOWN_FIELDS.get(kind)
    bare, named = map(str.split, fields.split("|")) if fields else ([], list(item))
    parts = [" ".join(str(item[key]) for key in bare if item.get(key) not in _USUAL)]
    for key in named:
        if (value := item.get(key)) not in _USUAL:
            word = key.replace("_", " ")
            parts.append(word if value is True else f"{word} {value}")
    return ", ".join(filter(None, parts))


# --- what else both show ------------------------------------------------------------------------

MOST_REASONS = 6


def rejection_reasons(rejections: Iterable[Rejection]) -> list[str]:
    """Why variants were rejected: those with the same reason together, MOST_REASONS at most."""
    by: dict[str, list[str]] = {}
    for rejection in rejections:
        by.setdefault(rejection.reason, []).append(rejection.variant)
    lines = [f"{', '.join(variants)}: {reason}" for reason, variants in by.items()]
    more = [f"and {len(lines) - MOST_REASONS} more"] if len(lines) > MOST_REASONS else []
    return lines[:MOST_REASONS] + more


def stage_lines(machine: Machine) -> Iterator[str]:
    """The smoke step alone: what each stage did, one a line, then what that proves."""
    run = machine.smoke
    if run is None or not run.stages:
        imported = machine.torch.imported
        gap = next((gap.why for gap in machine.gaps if gap.fact.startswith("smoke")), None)
        why = (imported.error if imported else None) or gap or "torch did not start"
        yield inert(f"no stage ran: {why}")
        return
    for stage in run.stages:
        took = f"{stage.seconds:7.2f} s" if stage.seconds is not None else " " * 9
        detail = f"  {stage.detail}" if stage.detail else ""
        yield inert(f"{stage.status:<9} {stage.name:<12} {took}{detail}")
    if run.ended:
        yield inert(f"ended     {run.ended}")
    if run.device == "cpu":
        yield "The step ran on the CPU: this proves torch, not a GPU."


def steps_for(finding: Finding, plan: Plan) -> Iterator[tuple[str, Step]]:
    """The steps that cure a finding: "do" the first of each group, "or" an alternative of it."""
    group = None
    for step in plan.steps:
        if finding.cause in step.cures:
            yield "or" if step.group == group else "do", step
            group = step.group
