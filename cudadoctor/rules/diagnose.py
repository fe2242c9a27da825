"""Judge a machine: all rules run, what explains what is sorted out, and the verdict is drawn."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from cudadoctor.knowledge import Knowledge
from cudadoctor.model.catalogue import CATALOGUE, HARMLESS
from cudadoctor.model.findings import (
    ERROR,
    INFO,
    LIKELY,
    POSSIBLE,
    WARNING,
    Candidate,
    Diagnosis,
    Evidence,
    Finding,
    Severity,
    Texts,
    Undecided,
    Verdict,
)
from cudadoctor.model.machine import Machine, gap_of, lookup, origin_of
from cudadoctor.model.rule import Found, NotKnown, Rule
from cudadoctor.model.trust import acting, is_doctors_own, typed
from cudadoctor.rules.healthy import shortfalls
from cudadoctor.rules.registry import rules_for


def diagnose(
    machine: Machine,
    knowledge: Knowledge,
    rules: Iterable[Rule] | None = None,
    ignore: Collection[str] = (),
) -> Diagnosis:
    """What is wrong with this machine, in causal order, and what could not be told.

    ignore: causes that the user does not want to hear of.
    """
    if rules is None:
        rules = rules_for(machine)
    found: list[tuple[Texts, Finding]] = []
    passed: list[str] = []
    undecided: list[Undecided] = []
    unheard = False  # whether an ignored cause was found: then what failed is not unexplained
    for rule in rules:
        try:
            answer = rule.judge(machine, knowledge)
        except NotKnown as missing:
            if rule.cause not in ignore:
                undecided.append(_undecided(rule, missing, machine))
            continue
        if rule.cause in ignore or (rule.cause == "unknown" and unheard):
            unheard = unheard or answer is not None
        elif answer is None:
            passed.append(rule.cause)
        else:
            deeper = (*rule.yields_to, *answer.yields_to)
            found.append((deeper, _finding(rule, answer, machine)))
    explained = _rooted(_explained(found))
    findings = _in_order([one for one in explained if not _needless(one)])
    passed += [one.cause for one in explained if _needless(one)]
    causes = {finding.cause for finding in findings}
    diagnosis = _concluded(
        findings,
        passed=tuple(dict.fromkeys(cause for cause in passed if cause not in causes)),
        undecided=_one_a_cause(one for one in undecided if one.cause not in causes),
        machine=machine,
        knowledge=knowledge,
    )
    if not ignore:
        return diagnosis
    kept = tuple(candidate for candidate in diagnosis.candidates if candidate.cause not in ignore)
    return msgspec.structs.replace(diagnosis, candidates=kept)


def _finding(one: Rule, found: Found, machine: Machine) -> Finding:
    values = {name: _text(value) for name, value in found.values.items()}
    templates = (found.title or one.title, found.why or one.why)
    return Finding(
        cause=one.cause,
        rule=one.name,
        severity=one.severity if found.severity is None else found.severity,
        confidence=found.confidence,
        title=_filled(templates[0], values),
        why=_filled(templates[1], values),
        templates=templates,
        values=values,
        evidence=tuple(_evidence(path, machine) for path in found.evidence),
        cites=found.cites,
        remedies=found.remedies,
    )


def _filled(text: str, values: dict[str, str]) -> str:
    return text.format_map(values) if "{" in text else text


def _text(value: object) -> str:
    if isinstance(value, (tuple, list)):
        return ", ".join(_text(one) for one in value)
    return str(value).replace("`", "'")  # our sentences mark code by it


def _evidence(path: str, machine: Machine) -> Evidence:
    value = lookup(machine, path)
    if isinstance(value, (msgspec.Struct, dict)) or (
        isinstance(value, tuple) and value and isinstance(value[0], msgspec.Struct)
    ):
        from cudadoctor.model import factfile

        shown = factfile.compact(value)
    elif value == "" and path.startswith("env."):
        shown = '""'  # set and empty, which is not the same as not set
    else:
        shown = _shown(value)
    return Evidence(fact=path, value=shown, source=origin_of(machine, path))


def _shown(value: object) -> str:
    if value is None:
        return "not known"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value in ((), "") else _text(value)


def _undecided(one: Rule, missing: NotKnown, machine: Machine) -> Undecided:
    gap = gap_of(machine, missing.fact)
    asked = gap is None or gap.asked
    return Undecided(
        cause=one.cause,
        missing=missing.fact,
        why=_why(missing, machine),
        matters=one.essential and asked,
    )


def _why(missing: NotKnown, machine: Machine) -> str:
    gap = gap_of(machine, missing.fact)
    return missing.why or (gap.why if gap else f"{missing.fact} is not known")


def _one_a_cause(undecided: Iterable[Undecided]) -> tuple[Undecided, ...]:
    """Of several rules of a cause, the first that the verdict turns on; else the first."""
    kept: dict[str, Undecided] = {}
    for one in undecided:
        if one.matters > kept.setdefault(one.cause, one).matters:
            kept[one.cause] = one
    return tuple(kept.values())


def _explained(found: list[tuple[Texts, Finding]]) -> list[Finding]:
    """Mark what a deeper cause explains away.

    A mere possibility explains nothing, and neither does what is less grave: an error stays an
    error beside a piece of information.
    """
    gravest: dict[str, Severity] = {}
    for _, f in found:
        if f.confidence <= LIKELY:
            gravest[f.cause] = min(f.severity, gravest.get(f.cause, INFO))
    return [
        msgspec.structs.replace(
            finding,
            because_of=tuple(
                cause
                for cause in dict.fromkeys(deeper)
                if gravest.get(cause, 9) <= finding.severity and cause != finding.cause
            ),
        )
        for deeper, finding in found
    ]


def _rooted(findings: list[Finding]) -> list[Finding]:
    """Break circles of explanations: whoever stands first in them is the root.

    Rules name their deeper causes each for itself; in a circle nobody would be left to cure.
    """
    rooted = {f.cause for f in findings if not f.because_of}
    out = list(findings)
    while open_ones := [f for f in out if f.cause not in rooted]:
        reached = {f.cause for f in open_ones if rooted.intersection(f.because_of)}
        if not reached:
            first = out.index(open_ones[0])
            out[first] = msgspec.structs.replace(out[first], because_of=())
            reached = {out[first].cause}
        rooted |= reached
    return out


def _needless(finding: Finding) -> bool:
    """What is explained is not unknown any more."""
    return finding.cause == "unknown" and bool(finding.because_of)


def _in_order(findings: list[Finding]) -> tuple[Finding, ...]:
    """By severity, then confidence, then the order of the catalogue. One finding a cause."""
    place = {cause: index for index, cause in enumerate(CATALOGUE)}
    ranked = sorted(
        findings,
        key=lambda f: (f.severity, f.confidence, bool(f.because_of), place.get(f.cause, 999)),
    )
    first: dict[str, Finding] = {}
    for finding in ranked:
        there = first.setdefault(finding.cause, finding)
        if finding.remedies and not there.remedies:
            # The gravest finding tells the cause; another of the same cause may know the cure.
            first[finding.cause] = msgspec.structs.replace(there, remedies=finding.remedies)
    return tuple(first.values())


def _concluded(
    findings: tuple[Finding, ...],
    passed: Texts,
    undecided: tuple[Undecided, ...],
    machine: Machine,
    knowledge: Knowledge,
) -> Diagnosis:
    roots = [f for f in findings if not f.because_of and f.severity < INFO]
    if roots and machine.look == "report":
        roots = [] if outweighed(roots, findings, machine) else roots
    verdict = _clear_verdict(roots, machine)
    if verdict is None:
        unearned = _unearned(machine, knowledge)
        verdict = _verdict(roots, undecided, unearned, machine)
        if verdict == "undecided" and not any(one.matters for one in undecided):
            undecided += unearned[:1]
    if verdict == "healthy" and machine.look == "report":
        # What a dump may be pasted for, nobody has complained of.
        findings = tuple(finding for finding in findings if finding.cause not in HARMLESS)
    # A catch-all stands last, however sure it is.
    named = [one.cause for one in roots if one.cause != "unknown"] or ["unknown"] * len(roots)
    primary = named[0] if named else None
    candidates: tuple[Candidate, ...] = ()
    asked: Texts | None = None
    if verdict == "undecided" and machine.look == "report":
        from cudadoctor.rules.pasted.reported import candidates_in, commands_in

        candidates = candidates_in(machine, knowledge, findings)
        asked = command_after(machine, candidates, commands_in(machine, knowledge))
    elif verdict == "undecided":
        candidates = candidates_of(findings, undecided)
        asked = command_for(acting(machine), undecided)
    return Diagnosis(
        verdict=verdict,
        primary=primary,
        findings=findings,
        passed=passed,
        undecided=undecided,
        candidates=candidates,
        next_command=typed(*asked) if asked else None,
    )


def _unearned(machine: Machine, knowledge: Knowledge) -> tuple[Undecided, ...]:
    """What keeps this machine from being called healthy: see rules/healthy.py.

    What contradicts is a finding of the rule `unknown`, unless the user ignores that.
    """
    found, missing = shortfalls(machine, knowledge)
    gaps = missing + [NotKnown(shortfall.fact, shortfall.what) for shortfall in found]
    return tuple(
        Undecided(cause="unknown", missing=gap.fact, why=_why(gap, machine), matters=True)
        for gap in gaps
    )


def _clear_verdict(roots: list[Finding], machine: Machine) -> Verdict | None:
    """The verdict of what was found, where it needs no look at what is missing."""
    likely = [f for f in roots if f.confidence <= LIKELY]
    if not likely or is_doctors_own(machine):
        return None
    if any(f.severity is ERROR for f in likely):
        return "broken"
    # A report shows its complaint, and never all that the rules ask for.
    return "warnings" if machine.look == "report" and likely[0] is roots[0] else None


def _verdict(
    roots: list[Finding],
    undecided: tuple[Undecided, ...],
    unearned: tuple[Undecided, ...],
    machine: Machine,
) -> Verdict:
    """The verdict where nothing clear was found: healthy has to be earned."""
    unsure = is_doctors_own(machine) or any(f.severity is ERROR for f in roots)
    matters = machine.look != "report" and any(one.matters for one in undecided)
    if unearned or unsure or matters:
        return "undecided"
    return "warnings" if roots else "healthy"


_ONLY_NO_GPU = frozenset(
    {
        "torch-cpu-build",
        "driver-too-old",
        "driver-not-installed",
        "driver-not-loaded",
        "gpu-not-detected",
        "container-no-gpu",
        "toolkit-missing",
        "toolkit-env-wrong",
        "toolkit-torch-mismatch",
    }
)
"""Causes that keep torch from a GPU, or a compiler from its work, and change no result."""
_PASSING = (
    "userwarning", "warning:", "warning[", "[warning", "[w ", "[w0", "[w1", " w tensorflow",
    " e tensorflow", "w0000", "e0000", "you can ignore", "proceeding without", "processing without",
    "not installed", "will not be enabled", "will not be available", "are unavailable",
    "is unavailable", "without gpu support", "for better performance", "fallback", "falling back",
    "nvcc: not found", "nvcc: command not found", "could not load dynamic library", "can't load",
    "binary at", "consider", " info ", "that has tensor cores", "does not have many workers",
)  # fmt: skip
"""How a line speaks after which its program went on."""


_COMPLAINS = frozenset({"traceback", "called-a-bug"})
"""Symptoms that show that the author asks about an error, not about a hint."""


def outweighed(roots: list[Finding], findings: tuple[Finding, ...], machine: Machine) -> bool:
    """Whether the complaint of a report is no matter of its environment, and its roots pass by."""
    told = [f for f in findings if f.cause in HARMLESS]
    likely = {f.cause for f in told if f.confidence <= LIKELY}
    failed = any(symptom.key in _COMPLAINS for symptom in machine.symptoms or ())
    if not likely:
        bug = any(finding.cause == "torch-bug" for finding in told)
        return (
            bool(told)
            and (bug or failed)
            and all(finding.severity is WARNING and _in_passing(finding) for finding in roots)
        )
    return all(
        f.confidence is POSSIBLE
        or _in_passing(f)
        or (f.severity is WARNING and not _reported(f))
        or ("torch-bug" in likely and f.cause in _ONLY_NO_GPU and not _reported(f))
        for f in roots
    )


def _reported(finding: Finding) -> bool:
    """Whether a text of the report names it, not the facts of the machine alone."""
    return finding.rule == f"reported-{finding.cause}"


def _in_passing(finding: Finding) -> bool:
    """Whether only warnings tell it."""
    lines = [one.value for one in finding.evidence if one.fact.startswith("symptoms.")]
    return bool(lines) and all(
        any(word in f" {line.lower()}" for word in _PASSING) for line in lines
    )


_COMMAND = {
    "driver": ("nvidia-smi",),
    "driver.libcuda": ("python", "-c", "import torch; print(torch.cuda.device_count())"),
    "driver.nodes": ("ls", "-l", "/dev"),
    "gpus": ("nvidia-smi", "-q"),
    "pci": ("lspci", "-nn"),
    "torch": ("python", "-m", "torch.utils.collect_env"),
    "python": ("python", "-m", "pip", "--version"),
    "libraries": ("python", "-c", "import torch; print(open('/proc/self/maps').read())"),
    "smoke": ("cudadoctor", "check"),
    "env": ("printenv", "CUDA_VISIBLE_DEVICES"),
}
"""The command that shows a missing fact, by the beginning of the fact's path."""


def candidates_of(
    findings: tuple[Finding, ...], undecided: tuple[Undecided, ...]
) -> tuple[Candidate, ...]:
    """The causes that are still possible, the likeliest first.

    score: 0.5 for a finding that is only possible, 0.2 for a cause that nothing speaks for yet.
    """
    hinted = [f.cause for f in findings if f.confidence is POSSIBLE and not f.because_of]
    open_causes = [one.cause for one in undecided if one.matters]
    scores = dict.fromkeys(open_causes, 0.2) | dict.fromkeys(hinted, 0.5)
    ranked = sorted(scores.items(), key=lambda pair: -pair[1])
    return tuple(Candidate(cause=cause, score=score) for cause, score in ranked)


def command_for(machine: Machine, undecided: tuple[Undecided, ...]) -> Texts | None:
    """The command whose output would decide most, None if no missing fact has one.

    What a fast look did not wait for, a look with all its time decides. Torch is asked in the
    examined interpreter.
    """
    if is_doctors_own(machine):
        return ("cudadoctor", "check", "--python", "PATH")
    python = machine.python.executable
    for one in undecided:
        if not one.matters:
            continue
        if machine.look == "fast" and one.missing.startswith(("driver", "gpus")):
            named = machine.python.chosen_by == "--python" and python
            return ("cudadoctor", "check", *(("--python", python) if named and python else ()))
        if command := _shows(one.missing, machine):
            return tuple((python or word) if word == "python" else word for word in command)
    return None


_ON_WINDOWS = ("powershell", "-Command", "Get-PnpDevice -Class Display")


def _shows(fact: str, machine: Machine) -> Texts | None:
    if fact == "pci" and machine.platform.system == "Windows":
        return _ON_WINDOWS
    if fact.startswith("driver.libcuda") and machine.torch.build != "cuda":
        fact = "driver"  # no torch that could count the GPUs
    parts = fact.split(".")
    prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((_COMMAND[prefix] for prefix in prefixes if prefix in _COMMAND), None)


_COLLECT = ("python", "-m", "torch.utils.collect_env")
_SMI = ("nvidia-smi",)
_LOG = ("dmesg",)
_PACKAGES = ("python", "-m", "pip", "list")
_IMPORT = ("python", "-c", "import torch; print(torch.ones(8).cuda().sum())")
_LIBRARIES = ("env", "LD_DEBUG=libs", "python", "-c", "import torch; torch.zeros(1).cuda()")
_NVCC = ("nvcc", "--version")
_RANKS = ("env", "NCCL_DEBUG=INFO", "torchrun", "--nproc-per-node=gpu", "train.py")
_VERBOSE = ("nvidia-smi", "-q")
_ON_LINUX = ("dmesg", "env", "printenv", "ls", "lspci", "lscpu", "ldconfig", "df", "g++", "c++")
_A_LIST = 15
"""More packages than collect_env lists: a whole list of them."""
_DECIDES: dict[Texts, Texts] = {
    _SMI: (
        *("gpu-not-detected", "driver-not-installed", "driver-library-mismatch", "compute-mode"),
        *("driver-too-old", "mig-misconfigured", "container-no-gpu", "container-gpu-lost"),
        *("container-driver-caps", "driver-userspace-missing", "scheduler-no-gpu", "wsl-setup"),
        *("out-of-memory", "device-permission", "torch-wrong-backend", "cuda-compat-conflict"),
    ),
    _LOG: (
        *("driver-not-loaded", "driver-wrong-flavour", "driver-unsupported-gpu", "gpu-lost"),
        *("gpu-ecc", "gpu-unhealthy-hardware", "pci-bar-bios", "uvm-not-loaded", "driver-bug"),
    ),
    _PACKAGES: (
        *("torch-companion-mismatch", "torch-extension-abi", "numpy-abi", "nvidia-wheels-mixed"),
        *("pynvml-conflict", "torch-duplicate", "wrong-interpreter", "torch-missing"),
    ),
    _LIBRARIES: (
        *("cudnn-shadowed", "cudnn-missing-sublib", "nvjitlink-mismatch", "cublas-mismatch"),
        *("nccl-shadowed", "cuda-lib-shadowed", "libstdcxx-old", "libcuda-stub"),
    ),
    _NVCC: (
        *("toolkit-missing", "toolkit-torch-mismatch", "toolkit-env-wrong", "arch-list-wrong"),
        "host-compiler-unsupported",
    ),
    _RANKS: (
        *("nccl-network-interface", "nccl-p2p-broken", "nccl-version-skew", "nccl-other"),
        *("ddp-rank-device", "ddp-launch"),
    ),
    _VERBOSE: (
        *("thermal-throttle", "pcie-degraded", "power-limited", "fabric-manager"),
        *("nvlink-down", "mixed-gpus", "persistence-off", "amp-no-benefit"),
    ),
}
"""The command whose output tells these causes from their neighbours."""


def command_after(
    machine: Machine,
    candidates: tuple[Candidate, ...],
    hints: tuple[tuple[str, Texts], ...] = (),
) -> Texts | None:
    """The command whose output would decide a report: that of its likeliest candidate.

    hints: causes with the command that tells of them in the words of this report.
    None where the report is likely to be no matter of the environment. What the report holds is not
    asked for again, and nothing that cannot run where it was written.
    """
    if candidates and candidates[0].cause in HARMLESS and candidates[0].score > _POSSIBLE:
        return None
    for candidate in candidates:
        known = [command for cause, command in hints if cause == candidate.cause]
        known += [command for command, causes in _DECIDES.items() if candidate.cause in causes]
        for command in known:
            if _can_tell(command, machine):
                return command
    if _smi_is_absent(machine) and machine.platform.wsl:
        return _WSL
    imported = machine.torch.imported
    last = _IMPORT if imported and imported.cuda_available else _SMI
    order: tuple[Texts, ...] = (_COLLECT, last)
    if candidates and candidates[0].cause in (*_DECIDES[_SMI], *_DECIDES[_LOG]):
        order = (last, _COLLECT)
    return next((one for one in order if _can_tell(one, machine)), _IMPORT)


_POSSIBLE = 0.5
_WSL = ("ls", "-l", "/dev/dxg", "/usr/lib/wsl/lib")
_TELLERS: dict[Texts, str] = {
    _COLLECT: "collect_env",
    _SMI: "nvidia-smi",
    _LOG: "kernel log",
    _VERBOSE: "nvidia-smi -q",
    _NVCC: "nvcc",
}
"""Commands and how the origins of facts name them."""


def _can_tell(command: Texts, machine: Machine) -> bool:
    """Whether the command can run on that machine, and would tell more than the report does."""
    told = {source.partition(", line")[0] for source in machine.origins.values()}
    if command[0] == "nvidia-smi" and _smi_is_absent(machine):
        return False
    if machine.platform.system not in (None, "Linux") and command[0] in _ON_LINUX:
        return False
    if command[0] in ("dmesg", "lspci") and (machine.container.kind or machine.platform.wsl):
        return False  # the kernel's log and the bus belong to the host
    if command == _COLLECT and machine.torch.installed is False:
        return False
    if command == _PACKAGES and len(machine.packages or ()) > _A_LIST:
        return False
    return _TELLERS.get(command, command[0]) not in told


def _smi_is_absent(machine: Machine) -> bool:
    """Whether the report shows that nvidia-smi cannot be asked there."""
    seen = {symptom.key for symptom in machine.symptoms or ()}
    return machine.platform.system == "Darwin" or "smi-absent" in seen
