"""What terminal and Markdown say alike: machine, evidence, steps, the verdict's sentence."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from cudadoctor.locale.language import Language
from cudadoctor.model.catalogue import area_of
from cudadoctor.model.findings import (
    Confidence,
    Finding,
    Plan,
    Rejection,
    Risk,
    Severity,
    Step,
)
from cudadoctor.model.machine import Gpu, Machine, OptStr, PciGpu, StrPair
from cudadoctor.model.trust import Foreign, is_doctors_own, typed
from cudadoctor.model.variables import in_notebook
from cudadoctor.render import Report, inert
from cudadoctor.render.evidence import NBSP, gpu_list, model_name
from cudadoctor.render.pages import title_of
from cudadoctor.render.shells import command_lines, edits_by_hand, step_lines

_MANY_GPUS = 3
_HARMLESS = ("not-environment", "torch-bug")
"""Causes that lie outside of the environment."""


def machine_rows(machine: Machine, say: Language) -> Iterator[StrPair]:
    """Label and text of each line about the machine; of a pasted report only what stands in it."""
    pasted, torch = machine.look == "report", machine.torch
    for label, shown, text in (
        (say("report"), pasted, _read),
        (say("python"), not pasted or machine.python.version, _examined),
        (say("system"), pasted and (machine.platform.system or machine.container.kind), _system),
        (say("driver"), not pasted or machine.driver.version, _driver),
        (say("gpu"), not pasted or machine.gpus or machine.pci, _gpus),
        (say("torch"), not pasted or torch.version or torch.installed is False, _torch),
        (say("training"), not pasted, _smoke),
    ):
        if shown:
            yield label, text(machine, say)


def _read(machine: Machine, say: Language) -> str:
    """Which programs' output a report holds, and the day that it is judged for."""
    programs = dict.fromkeys(origin.partition(", line ")[0] for origin in machine.origins.values())
    names = [say(name) for name in programs if name and not name.startswith("line ")]
    text = ", ".join(names) if names else say("no recognized tool output")
    return text + (say(", as of {date}", date=machine.date) if machine.date else "")


def _system(machine: Machine, say: Language) -> str:
    platform, box = machine.platform, machine.container.kind
    words = [platform.distro or platform.system, platform.distro_version, platform.machine]
    name = " ".join(word for word in words if word)
    marks = [f"WSL {platform.wsl}" if platform.wsl else "", "Jetson" if platform.jetson else ""]
    inside = say("in {box}", box=box) if box and box != "none" else ""
    return ", ".join(word for word in (name, *marks, inside) if word)


def stale(shown: Report, say: Language) -> OptStr:
    """That the tables are behind this machine, and what to do; None where they are not."""
    if not shown.age.matters:
        return None
    if shown.age.newer:
        return say(
            "The tables are from {date}, and {newer} is newer: cudadoctor update",
            date=shown.knowledge,
            newer=shown.age.newer[0],
        )
    return say(
        "The tables are {days} days old ({date}). Update them: cudadoctor update",
        days=shown.age.days,
        date=shown.knowledge,
    )


def shown_findings(shown: Report) -> tuple[Finding, ...]:
    """The findings that are worth showing.

    That the program or torch may be at fault takes away from a root cause that was found, and
    where it is no more than possible it stands among the candidates.
    """
    diagnosis, machine = shown.diagnosis, shown.machine
    found = diagnosis.verdict == "broken" and diagnosis.primary is not None
    # The answer says it already.
    said = diagnosis.verdict == "healthy" and machine.smoke and machine.smoke.device == "cpu"
    return tuple(
        finding
        for finding in diagnosis.findings
        if not (said and finding.cause == "gpu-not-detected")
        and (
            finding.cause not in _HARMLESS
            or not (found or finding.confidence is Confidence.POSSIBLE)
        )
    )


_ELSEWHERE = {
    "windows": "in Windows",
    "admin": "by the administrator",
    "host": "on the host",
    "container": "outside the container",
    "cloud": "in your provider's cloud shell",
}


_DAEMONS = ("nvidia-cuda-mps-control",)
"""Programs that go on when the shell that started them ends."""


def cost_of(step: Step) -> str:
    """What a step touches and who must take it, in a few words (English, to be translated)."""
    if step.where in _ELSEWHERE:
        return _ELSEWHERE[step.where]
    if step.reboot and not all("reboot" in argv for argv in step.commands):
        return "needs root and a reboot" if step.needs_root else "needs a reboot"
    if step.needs_root:
        return "needs root"
    if not (step.commands or step.variables):
        return "by hand"
    if makes_anew(step):
        return "creates a new environment"
    if any(argv[0] in _DAEMONS for argv in step.commands):
        return "until the next reboot"
    return {
        "process": "this shell only",
        "environment": "changes this environment",
        "system": "changes this system",
    }[step.risk.value]


LEADS = {
    "here": "Run this to {title}",
    "windows": "Run this in Windows to {title}",
    "admin": "Your administrator can run this to {title}",
    "host": "Run this on the host to {title}",
    "container": "Run this outside the container to {title}",
    "cloud": "Run this in your provider's cloud shell to {title}",
}
"""Step.where -> what stands before its commands; the title of a step is an imperative."""


def lead_of(step: Step, say: Language, *, cell: bool = False) -> str:
    """The line before the commands of a step: where to type them, what for and what it costs.

    cell: they are typed into a cell of a notebook.
    """
    title, cost = inside(say.spoken(step.title)), _cost_here(step)
    if cell and cost == "this shell only":
        cost = "this kernel only"
    costs = [] if step.where != "here" else [say(cost)]
    if step.reboot and step.where != "here":
        costs.append(say("needs a reboot"))
    if step.packages and step.packages.download_bytes:
        costs.append(say("downloads about {size}", size=decimal_size(step.packages.download_bytes)))
    after = f" ({'; '.join(filter(None, costs))})" if any(costs) else ""
    return say(LEADS[step.where], title=title) + after


def _cost_here(step: Step) -> str:
    touches = step.needs_root or step.packages or step.risk.value == "environment"
    plain = not touches and not step.variables
    return "" if plain else cost_of(step)


def decimal_size(count: int) -> str:
    """Bytes as downloads are told: 3 GB, 870 MB."""
    return f"{count / 1e9:.0f} GB" if count >= 0.95e9 else f"{max(count / 1e6, 1):.0f} MB"


_WORD = re.compile(r"[A-ZÁÉÍÓÚÑ][a-záéíóúñ]*(?![\w+.=-])")
_NAMES = frozenset(
    """
    Above Ampere Apptainer Blackwell Colab Debian Docker Enroot Fedora Hopper Incus Jetson Kaggle
    Kepler Kubernetes Linux Mac Manjaro Maxwell Pascal Podman Poetry Proxmox Python Secure Slurm
    Tegra Triton Turing Ubuntu Volta Windows Xid X
    """.split()  # noqa: SIM905
)
"""Words with which a title may begin that are written so within a sentence too."""


def inside(title: str) -> str:
    """A title within a sentence: its first letter is small, unless it is that of a name."""
    word = _WORD.match(title)
    return title if word is None or word[0] in _NAMES else title[:1].lower() + title[1:]


_SHARED = ("system", "conda-base", "pipx", "embedded")
"""Kinds of interpreters that `fix` leaves alone, since others use them."""


def offers_fix(step: Step, machine: Machine) -> bool:
    """Whether `cudadoctor fix` on this machine would take that step."""
    own = machine.look != "report" and not isinstance(machine, Foreign) and not machine.redacted
    taken = is_runnable(step) and bool(step.commands) and step.risk is Risk.ENVIRONMENT
    return own and taken and (makes_anew(step) or machine.python.kind not in _SHARED)


def own_fix(machine: Machine) -> str:
    """The call of `fix` for the examined interpreter."""
    named = machine.python.chosen_by == "--python" and machine.python.executable
    # A cell of a notebook has no terminal in which to answer.
    cell = in_notebook(machine.env) and machine.platform.system == "Linux"
    answers = ("--yes",) if cell else ()
    argv = typed("cudadoctor", "fix", *(("--python", named) if named else ()), *answers)
    return command_lines((argv,), machine, "!" if cell else "")[-1]


def is_runnable(step: Step) -> bool:
    """Whether a step may stand in the script as commands.

    An edit goes before the commands of its step: where there are both, a hand is needed. A command
    that changes one shell, or only looks (ulimit, srun, ps), helps nobody in a script.
    """
    barred = step.where != "here" or step.needs_root or step.reboot or step.verified is False
    # What is added to such a project changes its files too, which no undo brings back.
    of_project = step.tool in ("uv", "pdm", "poetry") and any("add" in it for it in step.commands)
    by_hand = step.commands and (step.edits or step.risk is Risk.PROCESS or of_project)
    return not (barred or by_hand) and bool(step.commands or step.variables)


def makes_anew(step: Step) -> bool:
    """Whether a step makes an environment of its own and leaves the examined one as it is."""
    first = step.commands[0] if step.commands else ()
    return "venv" in first[:3] or "create" in first[:2]


def manual_of(step: Step) -> OptStr:
    """What is done by hand, where the title does not say it all."""
    return None if step.manual and step.manual.rstrip(".") == step.title else step.manual


def precedes(step: Step) -> bool:
    """Whether what is done by hand has to be done before the commands."""
    return (step.manual or "").startswith("First ")


class Headline(NamedTuple):
    """The answer. sign: error, warning, undecided or ok."""

    sign: str
    text: str


SURENESS = {
    Confidence.LIKELY: "Probably: {title}",
    Confidence.POSSIBLE: "Possibly: {title}",
}


_OF_NO_ENVIRONMENT = (
    "The error is in the program, not in the environment",
    "This looks like a bug in torch itself",
)
"""Titles that say no more than the sentence for their cause."""


def headline(shown: Report, say: Language) -> Headline:
    """The answer in one sentence: what is wrong, or that nothing is, or what is not known."""
    diagnosis, machine = shown.diagnosis, shown.machine
    if cause := outside(shown):
        named = next(finding for finding in diagnosis.findings if finding.cause == cause)
        if named.templates[0] not in _OF_NO_ENVIRONMENT:
            text = say("Not an environment problem: {title}", title=inside(named.title))
            return Headline("ok", _sentence(text))
        return Headline(
            "ok",
            say(
                "The report shows an error in the program, not in the environment."
                if cause == "not-environment"
                else "The report shows a bug in torch itself, not in the environment."
            ),
        )
    if diagnosis.verdict == "healthy":
        return Headline("ok", _healthy(machine, say))
    first = first_finding(shown)
    if diagnosis.verdict == "undecided":
        return Headline("undecided", _undecided(shown, first, say))
    if first is None or first.cause == "unknown":
        return Headline("error", _sentence(first.title if first else say("Something failed")))
    inner = inside(first.title)
    if first.severity is Severity.WARNING and _works(machine):
        if first.confidence is Confidence.CERTAIN and ", but" not in inner:
            text = say("PyTorch uses your GPU, but {title}", title=inner)
        else:
            text = say("PyTorch uses your GPU. {title}", title=_unsure(first, say, first.title))
        return Headline("warning", _sentence(text))
    if first.severity is not Severity.WARNING and gpu_fails(machine, first):
        text = say("PyTorch cannot use your GPU: {title}", title=inner)
        return Headline("error", _sentence(text))
    return Headline(first.severity.label, finding_sentence(first, say))


def _sentence(text: str) -> str:
    return text if text.endswith((".", "?", "!")) else f"{text}."


def first_finding(shown: Report) -> Finding | None:
    """The finding that the page is about."""
    diagnosis = shown.diagnosis
    sought = diagnosis.primary or outside(shown)
    if sought is None and diagnosis.candidates:
        sought = diagnosis.candidates[0].cause
    return next((finding for finding in diagnosis.findings if finding.cause == sought), None)


_SINGLE = ("driver", "GPU", "torch", "CUDA libraries", "process", "container and system")
"""Areas whose errors keep torch from every GPU."""


def gpu_fails(machine: Machine, finding: Finding) -> bool:
    """Whether torch was seen to reach no GPU although there is one, and this is why."""
    imported, smoke = machine.torch.imported, machine.smoke
    ends = {stage.status for stage in smoke.stages} if smoke else set()
    failed = ends & {"failed", "timed-out"} and "passed" not in ends
    unseen = imported is not None and imported.ok and imported.cuda_available is False
    on_gpu = failed and smoke and smoke.device.startswith("cuda")
    here = machine.gpus or any(device.vendor == "nvidia" for device in machine.pci or ())
    named = re.search(r"(?i)pytorch|cannot use", finding.title)
    inside = area_of(finding.cause) in _SINGLE
    return bool(here and (unseen or on_gpu) and inside and not named)


def _works(machine: Machine) -> bool:
    """Whether training was seen to run on a GPU."""
    smoke = machine.smoke
    if smoke is None or not smoke.device.startswith("cuda") or not smoke.stages:
        return False
    return all(stage.status in ("passed", "skipped") for stage in smoke.stages)


def _undecided(shown: Report, first: Finding | None, say: Language) -> str:
    if is_doctors_own(shown.machine):
        return say("This is cudadoctor's own environment. Which Python do you train with?")
    enough, cause = say("Not enough information for a diagnosis."), shown.diagnosis.primary
    if first is not None or cause is not None:
        title = first.title if first else title_of(cause or "", say)
        likely = say("Most likely: {title}", title=inside(title))
        return f"{enough} {_sentence(likely)}"
    left = ", ".join(say(name) for name, known in _deciding(shown.machine) if not known)
    if left and shown.machine.look == "report":
        return f"{enough} {say('The report does not show {facts}.', facts=left)}"
    return enough


def _deciding(m: Machine) -> tuple[tuple[str, object], ...]:
    """The facts that most diagnoses turn on."""
    return (
        ("the GPU", m.gpus or m.pci),
        ("the driver version", m.driver.version or m.driver.cuda),
        ("the operating system", m.platform.system),
        ("the torch version", m.torch.version or m.torch.installed is False),
    )


def to_find_out(shown: Report, say: Language) -> str:
    """What stands before the command that decides."""
    if shown.machine.container.kind:
        return say("To find out, run this inside the container:")
    return say("To find out, run this:")


MOST_CANDIDATES = 3
WORTH_READING = 0.05
"""The chance below which a candidate is not worth a reader's time."""


def candidates(
    shown: Report, say: Language, written: Callable[[str, str], str] = lambda _, title: title
) -> OptStr:
    """The likeliest causes that the headline does not name; None where the verdict needs none.

    written: a cause and its title as they stand on the page.
    """
    diagnosis, first = shown.diagnosis, first_finding(shown)
    if diagnosis.verdict != "undecided" or outside(shown):
        return None
    told = first.cause if first else diagnosis.primary
    causes = [
        candidate.cause
        for candidate in diagnosis.candidates[:MOST_CANDIDATES]
        if candidate.cause != "unknown" and candidate.score >= WORTH_READING
    ]
    others = [cause for cause in causes if cause != told]
    words = "; ".join(written(cause, inside(title_of(cause, say))) for cause in others)
    template = "Also possible: {causes}." if told else "Possible causes: {causes}."
    return say(template, causes=words) if others else None


def finding_sentence(finding: Finding, say: Language) -> str:
    """A finding that stands below the first one."""
    return _sentence(_unsure(finding, say, finding.title))


def finding_text(finding: Finding, shown: Report, say: Language) -> str:
    """A finding with its cure as plain lines, for a log: what is wrong, why, and what to type."""
    lines = [finding_sentence(finding, say), finding.why]
    if finding.because_of:
        causes = ", ".join(finding.because_of)
        lines.append(say("Probably caused by: {causes}.", causes=causes))
    for step in (step for word, step in steps_for(finding, shown.plan) if word == "do"):
        typed_lines = step_lines(step, shown.machine)
        title = lead_of(step, say) if typed_lines else say.spoken(step.title)
        lines += ["", f"{title}:" if typed_lines else _sentence(title)]
        lines += [f"    {line}" for line in typed_lines]
        for edit in edits_by_hand(step):
            lines += [say("In {file}:", file=edit.file)]
            lines += [f"    {line}" for line in edit.what.splitlines()]
        lines += [say.spoken(text) for text in (manual_of(step), step.note) if text]
    lines += [
        "",
        say("To read more, run: {command}", command=f"cudadoctor explain {finding.cause}"),
    ]
    return "\n".join(line for number, line in enumerate(lines) if line or number > 1)


def _unsure(finding: Finding, say: Language, title: str) -> str:
    """The title behind how sure it is, if it is not certain."""
    if finding.confidence is Confidence.CERTAIN:
        return title
    return say(SURENESS[finding.confidence], title=inside(title))


def outside(shown: Report) -> OptStr:
    """Which cause outside of the environment a report is likely to show, where it has no other."""
    if shown.machine.look != "report" or shown.diagnosis.primary is not None:
        return None
    findings = shown.diagnosis.findings
    likely = {finding.cause for finding in findings if finding.confidence <= Confidence.LIKELY}
    return next((cause for cause in _HARMLESS if cause in likely), None)


def _healthy(machine: Machine, say: Language) -> str:
    if machine.look == "report":
        return say("No environment problem found in the pasted report.")
    smoke = machine.smoke
    if smoke is None or not smoke.stages:
        if machine.torch.installed is False:
            return say("No problems found.")
        text = say("No problems found. The training step was not run")
        option = {"fast": "--fast", "no-smoke": "--no-smoke"}.get(machine.look)
        return f"{text} ({option})." if option else f"{text}."
    if smoke.device == "cpu":
        passed = say("PyTorch works on the CPU: training step passed.")
        known = machine.gpus == () or machine.pci is not None
        none = known and not _on_bus(machine)
        return f"{passed} {say('This machine has no NVIDIA GPU.')}" if none else passed
    number = smoke.device.partition(":")[2]
    named = [gpu for gpu in machine.gpus or () if str(gpu.index) == (number or "0")]
    device = f"{smoke.device} ({model_name(named[0])})" if named and named[0].name else smoke.device
    text = say("PyTorch uses your GPU: training step passed on {device}", device=device)
    details = (stage.detail or "" for stage in smoke.stages if stage.name == "ddp")
    ranks = next((found[1] for text in details if (found := _RANKS.search(text))), None)
    if ranks:
        each = say("1 GPU") if ranks == "1" else say("{count} GPUs", count=ranks)
        text += say(", DDP on {gpus}", gpus=each)
    return f"{text}."


_RANKS = re.compile(r"\b(\d+) ranks")


# --- what is fine and what is not -------------------------------------------------------------


class Mark(NamedTuple):
    """One part of the machine in the line of signs. sign: ok, error, warning or unknown."""

    sign: str
    text: str


PLACES = {
    **dict.fromkeys(
        ("container-no-gpu", "container-driver-caps", "container-gpu-lost"), "container"
    ),
    "cuda-compat-conflict": "cuda-compat",
    "device-permission": "device permissions",
    "wsl-setup": "WSL",
    "scheduler-no-gpu": "job",
    "platform-unsupported": "platform",
    "shm-too-small": "/dev/shm",
    "ulimit": "limits",
    "disk-full": "disk",
    "out-of-memory": "GPU memory",
    **dict.fromkeys(("visible-devices-hides-gpu", "env-var-misconfigured"), "variables"),
}
"""Causes that have a nearer place than their area."""


def status_marks(shown: Report, say: Language) -> list[Mark]:
    """Driver, GPU, torch and the training step, and every other part with an error."""
    machine, roots = shown.machine, shown.diagnosis.roots
    pasted = machine.look == "report"
    worst: dict[str, Severity] = {}
    for finding in roots:
        place = PLACES.get(finding.cause, area_of(finding.cause))
        worst[place] = min(finding.severity, worst.get(place, Severity.INFO))
    if (
        "driver" in worst
        and machine.driver.version is None
        and "driver-too-old" in {finding.cause for finding in roots}
    ):
        worst.setdefault("torch", Severity.ERROR)  # what will be loaded does not run it
    marks = []
    for area, (known, text) in {
        "driver": _driver_mark(machine, say),
        "GPU": _gpu_mark(machine, say, sick="GPU" in worst),
        "torch": _torch_mark(machine, say),
    }.items():
        if known or not pasted:
            sign = worst.pop(area).label if area in worst else "ok" if known else "unknown"
            marks.append(Mark(sign, text))
    marks += [
        Mark(severity.label, say(area)) for area, severity in worst.items() if area != "other"
    ]
    if not pasted:
        marks.append(_step_mark(machine, say))
    return marks


def _driver_mark(machine: Machine, say: Language) -> tuple[bool, str]:
    driver = machine.driver
    if driver.version and not machine.gpus and (driver.nvml.hung or driver.libcuda.hung):
        return False, say("driver {version} is not responding", version=driver.version)
    if driver.version:
        flavour = f" ({say(driver.flavour)})" if driver.flavour else ""
        return True, say("driver {version}", version=f"{driver.version}{flavour}")
    if driver.installed is False:
        return False, say("no driver")
    loaded = driver.installed and driver.loaded is False and not machine.platform.wsl
    return False, say("driver not loaded" if loaded else "driver unknown")


_FENCED = (4, 17, 999)
"""NVML's codes for a GPU that belongs to another job or container."""


def _gpu_mark(machine: Machine, say: Language, *, sick: bool) -> tuple[bool, str]:
    """sick: a GPU is at fault; else those that do not answer belong to somebody else's job."""
    lent = bool(machine.container.kind or machine.container.scheduler)
    gpus = machine.gpus and tuple(
        gpu
        for gpu in machine.gpus
        if not (gpu.code or gpu.failed) or (sick and not (lent and gpu.code in _FENCED))
    )
    if gpus:
        # Their states stand in the evidence, but that one is gone belongs here.
        bare = [
            Gpu(
                index=gpu.index,
                name=gpu.name,
                memory_bytes=gpu.memory_bytes,
                code=gpu.code,
                failed=gpu.failed,
            )
            for gpu in gpus
        ]
        return True, say("GPU {gpus}", gpus=gpu_list(bare, say).replace(NBSP, " "))
    if on_bus := len(_on_bus(machine)):
        text = (
            "1 NVIDIA GPU on the PCI bus" if on_bus == 1 else "{count} NVIDIA GPUs on the PCI bus"
        )
        return False, say(text, count=on_bus)
    silent = gpus is None and (machine.pci is None or machine.driver.nvml.loads)
    return False, say("GPU unknown" if silent else "no NVIDIA GPU")


def _on_bus(machine: Machine) -> list[PciGpu]:
    return [gpu for gpu in machine.pci or () if gpu.vendor == "nvidia"]


def _torch_mark(machine: Machine, say: Language) -> tuple[bool, str]:
    torch = machine.torch
    if torch.installed is False:
        return False, say("torch not installed")
    if torch.version is None:
        return False, say("torch unknown")
    text = torch.named
    if torch.build == "cuda" and "+" not in text and torch.cuda:
        text += f" (CUDA {torch.cuda})"
    elif torch.build == "cpu" and "cpu" not in text:
        text += f" ({say('CPU build')})"
    return True, f"torch {text}"


def _step_mark(machine: Machine, say: Language) -> Mark:
    smoke = machine.smoke
    stages = [stage for stage in smoke.stages if stage.status != "skipped"] if smoke else []
    if smoke is None or not (stages or smoke.ended):
        return Mark("unknown", say("training step not run"))
    passed = sum(stage.status == "passed" for stage in stages)
    if passed < len(stages) or smoke.ended:
        counts = {"passed": passed, "count": len(stages)}
        return Mark("error", say("training step: {passed} of {count} passed", **counts))
    if smoke.device != "cpu":
        return Mark("ok", say("training step passed"))
    # A run on the CPU proves nothing of a GPU that is there.
    there = machine.gpus or _on_bus(machine)
    return Mark("unknown" if there else "ok", say("training step passed on the CPU"))


def counts(shown: Report, say: Language) -> Iterator[str]:
    """What was found, what was ruled out and what was not looked at; the interpreter, the time."""
    diagnosis, machine = shown.diagnosis, shown.machine
    found = Counter(finding.severity for finding in diagnosis.roots)
    for severity, single, several in (
        (Severity.ERROR, "1 error", "{count} errors"),
        (Severity.WARNING, "1 warning", "{count} warnings"),
    ):
        if count := found[severity]:
            yield say(single if count == 1 else several, count=count)
    if machine.look == "report":
        yield shown.shade(_read(machine, say))
        return
    some = {"passed": len(diagnosis.passed), "open": len(diagnosis.undecided)}
    yield say(
        "{passed} causes ruled out, {open} not checked"
        if some["open"]
        else "{passed} causes ruled out",
        **some,
    )
    python = machine.python
    if python.executable:
        guessed = CHOSEN[python.chosen_by] if python.chosen_by in ("PATH", "own") else ""
        about = ", ".join(filter(None, (str(python.version or ""), guessed and say(guessed))))
        yield shown.shade(python.executable) + (f" ({about})" if about else "")
    if shown.seconds is not None:
        yield f"{shown.seconds:.1f} s"


CHOSEN = {
    "--python": "from --python",
    "VIRTUAL_ENV": "active virtual environment",
    "CONDA_PREFIX": "active conda environment",
    "./.venv": "from ./.venv",
    "PATH": "first python3 on PATH",
    "own": "cudadoctor's own",
}
"""Why this interpreter was examined."""


def _examined(machine: Machine, say: Language) -> str:
    python = machine.python
    chosen = CHOSEN.get(python.chosen_by or "")
    words = [str(python.version or ""), python.kind or "", say(chosen) if chosen else ""]
    inside = ", ".join(filter(None, words))
    if python.executable is None:
        return inside or say("not known")
    return f"{python.executable} ({inside})" if inside else python.executable


def _driver(machine: Machine, say: Language) -> str:
    driver = machine.driver
    if driver.version:
        text = str(driver.version) + (f" ({say(driver.flavour)})" if driver.flavour else "")
    elif driver.installed is False:
        return say("not installed")
    else:
        idle = driver.installed and driver.loaded is False and not machine.platform.wsl
        text = say("installed, not loaded" if idle else "not known")
    return text + (say(", supports CUDA up to {cuda}", cuda=driver.cuda) if driver.cuda else "")


def _gpus(machine: Machine, say: Language) -> str:
    gpus = machine.gpus
    if not gpus:
        on_bus = [gpu for gpu in machine.pci or () if gpu.vendor == "nvidia"]
        if on_bus:
            return say("{count} on the PCI bus, not reported by the driver", count=len(on_bus))
        silent = gpus is None and (machine.pci is None or machine.driver.nvml.loads)
        return say("not known") if silent else say("no NVIDIA GPU")
    names = [_gpu(gpu) for gpu in gpus]
    if len(names) > _MANY_GPUS and len(set(names)) == 1:
        return f"{len(names)} x {names[0]}"
    return "; ".join(names)


def _gpu(gpu: Gpu) -> str:
    """With its whole name: these lines are what a maintainer reads, and this doctor again."""
    memory = f"{gpu.memory_bytes / 2**30:.0f} GiB" if gpu.memory_bytes else ""
    code = f"sm_{gpu.capability}".replace(".", "") if gpu.capability else ""
    return ", ".join(filter(None, (gpu.name or "?", memory, code)))


def _torch(machine: Machine, say: Language) -> str:
    torch = machine.torch
    if torch.installed is False:
        return say("not installed")
    if torch.version is None:
        return say("not known")
    text = torch.named
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
    texts = [f"{len(names)} {say(status)}: {', '.join(names)}" for status, names in by.items()]
    return say("on {device}: ", device=smoke.device) + "; ".join(texts)


# --- what else both show ------------------------------------------------------------------------

MOST_REASONS = 6


def without_build(shown: Report, say: Language) -> OptStr:
    """Why no build of torch was chosen, with the command that prints the missing fact."""
    left = shown.plan.no_build
    if left is None or left.next_command is None or shown.diagnosis.next_command:
        return None
    return (
        f"{say.spoken(left.reason)} {say('To find out, run this:')} {' '.join(left.next_command)}"
    )


def rejection_reasons(rejections: Iterable[Rejection]) -> list[str]:
    """Why variants were rejected: those with the same reason together, MOST_REASONS at most."""
    by: dict[str, list[str]] = {}
    for rejection in rejections:
        by.setdefault(rejection.reason, []).append(rejection.variant)
    lines = [f"{', '.join(variants)}: {reason}" for reason, variants in by.items()]
    more = [f"and {len(lines) - MOST_REASONS} more"] if len(lines) > MOST_REASONS else []
    return lines[:MOST_REASONS] + more


def stage_lines(machine: Machine, say: Language) -> list[str]:
    """The training step alone: how it ended and where, then what each stage did, one a line."""
    run = machine.smoke
    if run is None or not run.stages:
        imported = machine.torch.imported
        gap = next((gap.why for gap in machine.gaps if gap.fact.startswith("smoke")), None)
        why = (imported.error if imported else None) or gap or "torch did not start"
        return [inert(say("The training step did not run: {why}", why=say.spoken(why)))]
    by: dict[str, list[str]] = {
        status: [] for status in ("passed", "failed", "timed-out", "skipped")
    }
    for stage in run.stages:
        by[stage.status].append(stage.name)
    bad = [*by["failed"], *by["timed-out"]]
    where = say("the CPU") if run.device == "cpu" else run.device
    template = "Training step on {device}: {passed} of {count} stages passed."
    if bad:
        template = "Training step on {device}: failed at {stages}."
    values = {"device": where, "stages": ", ".join(bad)}
    count = len(run.stages) - len(by["skipped"])
    lines = [say(template, passed=len(by["passed"]), count=count, **values)]
    widest = max(len(say(status)) for status in by)
    for stage in run.stages:
        took = f"{stage.seconds:7.2f} s" if stage.seconds is not None else " " * 9
        detail = f"  {say.spoken(stage.detail)}" if stage.detail else ""
        lines.append(f"  {say(stage.status):<{widest}}  {stage.name:<10} {took}{detail}".rstrip())
    if run.ended:
        lines.append(say("The training step ended early: {why}", why=say.spoken(run.ended)))
    if run.device == "cpu" and not bad:
        lines.append(
            say("On the CPU, the training step shows that torch works, but it does not test a GPU.")
        )
    return list(map(inert, lines))


def steps_for(finding: Finding, plan: Plan) -> Iterator[tuple[str, Step]]:
    """The steps that cure a finding: "do" the first of each group, "or" an alternative of it."""
    group = None
    for step in plan.steps:
        if finding.cause in step.cures:
            yield "or" if step.group == group else "do", step
            group = step.group
