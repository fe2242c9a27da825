"""Judge a machine: all rules run, what explains what is sorted out, and the verdict is drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import cache, lru_cache
from typing import TypedDict

from msgspec import Struct
from msgspec.structs import replace

from cudadoctor.knowledge import Knowledge
from cudadoctor.knowledge.tables import table
from cudadoctor.model.catalogue import CATALOGUE, CATCH_ALLS, HARMLESS
from cudadoctor.model.findings import (
    CERTAIN,
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
    Standing,
    Undecided,
    Verdict,
    ranked,
)
from cudadoctor.model.machine import Machine, OptStr, Strings, gap_of, lookup, origin_of
from cudadoctor.model.rule import Answer, Found, NotKnown, Rule
from cudadoctor.model.trust import Command, acting, is_doctors_own, typed
from cudadoctor.rules.evidence.signs import WORDS, in_passing
from cudadoctor.rules.healthy import shortfalls
from cudadoctor.rules.registry import RULES, pasted_rules, stated_rules
from cudadoctor.solver.supposed import torches


def diagnose(
    machine: Machine,
    knowledge: Knowledge,
    rules: Iterable[Rule] | None = None,
    ignore: Collection[str] = (),
) -> Diagnosis:
    """What is wrong with this machine, in causal order, and what could not be told.

    ignore: causes that the user does not want to hear of.
    """
    said = by_rules(machine, knowledge, rules, ignore)
    return _weighed(said, machine, knowledge, ignore) if machine.look == "report" else said


def by_rules(
    machine: Machine,
    knowledge: Knowledge,
    rules: Iterable[Rule] | None = None,
    ignore: Collection[str] = (),
) -> Diagnosis:
    """What the rules alone say, without the words of a report."""
    found = []
    passed = []
    undecided = []
    ignored_found = False  # whether an ignored cause was found: then what failed is not unexplained
    pasted, builds = machine.look == "report", torches(machine, knowledge)
    if rules is None:  # a pasted report has symptoms to judge as well
        rules = RULES + pasted_rules() if pasted else RULES
    stated = {rule.name for rule in stated_rules()} if pasted else set()
    for rule in rules:
        missing = None
        try:
            answer = rule.judge(machine, knowledge)
        except NotKnown as gap:
            answer, missing = None, gap
        if answer is None and builds:
            answer = _agreed(rule, builds, machine, knowledge)
            stated |= {rule.name} if answer else set()
        if answer is None and missing is not None:
            if rule.cause not in ignore:
                undecided.append(_undecided(rule, missing, machine))
            continue
        if rule.cause in ignore or (rule.cause == "unknown" and ignored_found):
            ignored_found = ignored_found or answer is not None
        elif answer is None:
            if not pasted or _needs_facts(rule, knowledge):
                passed.append(rule.cause)
        else:
            found.append(_finding(rule, answer, machine))
    if pasted:
        found = _beside_the_complaint(found, machine, knowledge)
    explained = _rooted(_explained(found))
    # What is explained is not unknown any more.
    needless = [
        finding for finding in explained if finding.cause == "unknown" and finding.because_of
    ]
    kept = [finding for finding in explained if finding not in needless]
    findings = _in_order(kept, _standing(kept, machine, knowledge), stated)
    causes = {finding.cause for finding in findings}
    passed += [finding.cause for finding in needless]
    return _concluded(
        findings,
        passed=tuple(dict.fromkeys(cause for cause in passed if cause not in causes)),
        undecided=_one_a_cause(gap for gap in undecided if gap.cause not in causes),
        machine=machine,
        knowledge=knowledge,
        ignore=ignore,
    )


@lru_cache(maxsize=1024)
def _needs_facts(rule: Rule, kb: Knowledge) -> bool:
    """Whether the rule leaves an empty report open: else its silence rules nothing out."""
    try:
        return rule.judge(_EMPTY, kb) is not None
    except NotKnown:
        return True


_EMPTY = Machine(look="report")


def _agreed(rule: Rule, builds: tuple[Machine, ...], machine: Machine, kb: Knowledge) -> Answer:
    """What the rule says where it says the same of every build that this torch may be."""
    words = _OF_EVERY_BUILD.get(rule.name)
    if words is None:
        return None
    found = []
    for possible in builds:
        try:
            answer = rule.judge(possible, kb)
        except NotKnown:
            return None
        if answer is None or answer.severity not in (None, ERROR):
            return None
        found.append(answer)
    first, (title, why) = found[0], words
    unsure = all(answer.confidence is POSSIBLE for answer in found)
    torch = machine.torch
    said = torch.named or f"for CUDA {torch.cuda}"
    told = (*first.evidence, "torch.version", "torch.cuda")
    known = (path for path in told if path and lookup(machine, path) is not None)
    return replace(
        first,
        evidence=tuple(dict.fromkeys(known)),
        values={**first.values, "release": said, "torch": f"torch {said}"},
        confidence=POSSIBLE if unsure else LIKELY,
        title=title,
        why=why,
    )


_UNSERVED = (
    "No published CUDA build of torch {release} has code for your {gpu} ({sm}). Kernels fail with "
    '"no kernel image is available for execution on the device".'
)
_OF_EVERY_BUILD: dict[str, tuple[OptStr, str]] = {
    "torch-arch-unsupported-new": (None, _UNSERVED),
    "torch-arch-unsupported-old": (None, _UNSERVED),
    "driver-too-old": (
        "The NVIDIA driver is too old for torch {release}",
        "Every published CUDA build of torch {release} needs driver {floor} or newer.",
    ),
}
"""Rules that turn on the build of torch -> title (None: the rule's own) and why, where it is one of
several that all lead there."""


def _finding(rule: Rule, found: Found, machine: Machine) -> Finding:
    """because_of: all causes that may explain it away."""
    values = {name: _text(value) for name, value in found.values.items()}
    templates = (found.title or rule.title, found.why or rule.why)
    confidence = CERTAIN if found.sure else LIKELY
    title, why = (text.format_map(values) if "{" in text else text for text in templates)
    return Finding(
        cause=rule.cause,
        rule=rule.name,
        severity=rule.severity if found.severity is None else found.severity,
        confidence=confidence if found.confidence is None else found.confidence,
        title=title,
        why=why,
        templates=templates,
        values=values,
        evidence=tuple(_evidence(path, machine) for path in found.evidence if path),
        cites=found.cites,
        because_of=rule.yields_to + found.yields_to,
        remedies=found.remedies,
    )


def _text(value: object) -> str:
    if isinstance(value, (tuple, list)):
        return ", ".join(map(_text, value))
    return str(value).replace("`", "'")  # our sentences mark code by it


def _evidence(path: str, machine: Machine) -> Evidence:
    value = lookup(machine, path)
    first = value[0] if isinstance(value, tuple) and value else value
    if isinstance(value, dict) or isinstance(first, Struct):
        from cudadoctor.model import factfile

        shown = factfile.compact(value)
    elif value == "" and path.startswith("env."):
        shown = '""'  # set and empty, which is not the same as not set
    elif value is None or isinstance(value, bool):
        shown = {None: "not known", True: "yes", False: "no"}[value]
    else:
        shown = "none" if value in ((), "") else _text(value)
    return Evidence(fact=path, value=shown, source=origin_of(machine, path))


def _undecided(rule: Rule, missing: NotKnown, machine: Machine) -> Undecided:
    gap = gap_of(machine, missing.fact)
    return Undecided(
        cause=rule.cause,
        missing=missing.fact,
        why=_why(missing, machine),
        matters=rule.essential and (gap is None or gap.asked),
    )


def _why(missing: NotKnown, machine: Machine) -> str:
    gap = gap_of(machine, missing.fact)
    return missing.why or (gap.why if gap else _no_data(missing.fact))


_NO_DATA = {
    "driver": "no data about the NVIDIA driver",
    "driver.libcuda": "CUDA was not queried",
    "driver.nvml": "NVML was not queried",
    "gpus": "no data about the GPUs",
    "pci": "no data about the PCI bus",
    "container": "no data about containers",
    "torch": "no data about torch",
    "torch.imported": "torch was not imported",
    "torch.requires": "no data about torch's requirements",
    "packages": "no list of installed packages",
    "libraries": "no data about the libraries that torch loads",
    "build": "no data about compilers and CUDA toolkits",
    "python": "no data about Python",
    "platform": "no data about the system",
    "limits": "no data about limits and memory",
    "env": "no data about environment variables",
    "smoke": "the training step was not run",
}
"""What is said of a fact that nobody gave a reason for, by the beginning of its path."""


def _no_data(fact: str) -> str:
    start = fact
    while start and start not in _NO_DATA:
        start = start.rpartition(".")[0]
    return _NO_DATA.get(start, f"{fact} is unknown")


def _one_a_cause(undecided: Iterable[Undecided]) -> tuple[Undecided, ...]:
    """Of several rules of a cause, the first that the verdict turns on; else the first."""
    kept: dict[str, Undecided] = {}
    for gap in undecided:
        if gap.matters > kept.setdefault(gap.cause, gap).matters:
            kept[gap.cause] = gap
    return tuple(kept.values())


def _explained(found: list[Finding]) -> list[Finding]:
    """Leave of the deeper causes those that explain a finding away.

    A mere possibility explains nothing, and neither does what is less grave: an error stays an
    error beside a piece of information.
    """
    gravest: dict[str, Severity] = {}
    for finding in found:
        if finding.confidence <= LIKELY:
            gravest[finding.cause] = min(finding.severity, gravest.get(finding.cause, INFO))
    return [
        replace(
            finding,
            because_of=tuple(
                cause
                for cause in dict.fromkeys(finding.because_of)
                if gravest.get(cause, 9) <= finding.severity and cause != finding.cause
            ),
        )
        for finding in found
    ]


def _rooted(findings: list[Finding]) -> list[Finding]:
    """Break circles of explanations: whoever stands first in them is the root.

    Rules name their deeper causes each for itself; in a circle nobody would be left to cure.
    """
    rooted = {finding.cause for finding in findings if not finding.because_of}
    out = list(findings)
    while open_ones := [finding for finding in out if finding.cause not in rooted]:
        reached = {
            finding.cause for finding in open_ones if rooted.intersection(finding.because_of)
        }
        if not reached:
            first = open_ones[0]
            out[out.index(first)] = replace(first, because_of=())
            reached = {first.cause}
        rooted |= reached
    return out


def _standing(
    findings: list[Finding], machine: Machine, knowledge: Knowledge
) -> Mapping[str, Standing]:
    """Where in a report its causes stand; on a host there is no complaint to stand in."""
    if machine.look != "report":
        return {}
    from cudadoctor.rules.pasted.reported import standings

    return standings({finding.cause for finding in findings}, machine, knowledge)


def _in_order(
    findings: list[Finding], standing: Mapping[str, Standing], stated: Collection[str]
) -> tuple[Finding, ...]:
    """The gravest first. One finding a cause.

    This is the one ranking that there is: primary cause and candidates follow it. By severity;
    what is merely possible after what is likely; catch-alls last; what is proven before what is
    likely; roots before what they explain; what an error text shows before what only compares
    what somebody says (the rules of `stated`); in a report by where it stands (its title and last
    error, then what else it tells, then what warns in passing); by the order of the catalogue.
    """
    place = {cause: index for index, cause in enumerate(CATALOGUE)}
    shown = {finding.cause for finding in findings if finding.rule not in stated}
    first: dict[str, Finding] = {}
    for finding in sorted(
        findings,
        key=lambda finding: (
            finding.severity,
            finding.confidence is POSSIBLE,
            finding.cause in CATCH_ALLS,
            finding.confidence,
            bool(finding.because_of),
            finding.rule in stated and finding.cause not in shown,
            standing.get(finding.cause, Standing.TOLD),
            place.get(finding.cause, 999),
        ),
    ):
        there = first.setdefault(finding.cause, finding)
        if finding.remedies and not there.remedies:
            # The gravest finding tells the cause; another of the same cause may know the cure.
            first[finding.cause] = replace(there, remedies=finding.remedies)
    return tuple(first.values())


def _concluded(
    findings: tuple[Finding, ...],
    *,
    passed: Strings,
    undecided: tuple[Undecided, ...],
    machine: Machine,
    knowledge: Knowledge,
    ignore: Collection[str],
) -> Diagnosis:
    pasted = machine.look == "report"
    roots = [finding for finding in findings if not finding.because_of and finding.severity < INFO]
    if roots and pasted and outweighed(roots, findings, machine, knowledge):
        roots = []
    verdict = _clear_verdict(roots, machine)
    if verdict == "broken" and pasted:
        # What words make possible is no second fault beside one that explains the complaint.
        findings = tuple(
            finding
            for finding in findings
            if finding.confidence is not POSSIBLE or finding.severity is INFO
        )
        roots = [finding for finding in roots if finding in findings]
    if verdict is None:
        # Healthy has to be earned.
        unearned = _unearned(machine, knowledge)
        unsure = is_doctors_own(machine) or any(finding.severity is ERROR for finding in roots)
        matters = any(gap.matters for gap in undecided)
        verdict = "warnings" if roots else "healthy"
        if unearned or unsure or (matters and not pasted):
            verdict = "undecided"
            undecided += () if matters else unearned[:1]
    if verdict == "healthy" and pasted and gap_of(machine, "symptoms") is None:
        # What a dump may be pasted for, nobody has complained of.
        findings = tuple(
            finding
            for finding in findings
            if finding.cause not in HARMLESS or finding.confidence is not POSSIBLE
        )
    # A catch-all stands last, however sure it is.
    primary = min(
        (finding.cause for finding in roots), key=lambda cause: cause == "unknown", default=None
    )
    candidates: tuple[Candidate, ...] = ()
    asked: Strings | None = None
    if verdict == "undecided" and not pasted:
        # 0.5 for a finding that is only possible, 0.2 for a cause that nothing speaks for yet.
        scores = {gap.cause: 0.2 for gap in undecided if gap.matters}
        hinted = [
            finding
            for finding in findings
            if finding.confidence is POSSIBLE and not finding.because_of
        ]
        candidates = ranked(scores | {finding.cause: 0.5 for finding in hinted})
        asked = command_for(acting(machine), undecided)
    return Diagnosis(
        verdict=verdict,
        primary=primary,
        findings=findings,
        passed=passed,
        undecided=undecided,
        candidates=tuple(candidate for candidate in candidates if candidate.cause not in ignore),
        **_asked(asked, machine),
    )


class _Asked(TypedDict):
    next_command: Command | None
    beside: tuple[Command, ...]


def _asked(command: Strings | None, machine: Machine) -> _Asked:
    """The next command, and those without whose output its own tells little."""
    beside = (known.beside for known in _commands() if command and known.run == command)
    return {
        "next_command": typed(*command) if command else None,
        "beside": tuple(typed(*other) for other in beside if _can_tell(other, machine)),
    }


def _weighed(
    said: Diagnosis, machine: Machine, knowledge: Knowledge, ignore: Collection[str]
) -> Diagnosis:
    """What the rules say of a report, weighed against its words.

    What the rules are sure of stands, unless hardly anything else in the report agrees. What they
    leave open is ranked, and named where its chance is even.
    """
    from cudadoctor.rules.pasted.ranking import chances
    from cudadoctor.rules.pasted.reported import commands_in

    chance = chances(machine, knowledge, said.findings, said.primary)
    chance = {cause: share for cause, share in chance.items() if cause not in ignore}
    likeliest, share = next(iter(chance.items()), ("unknown", 0.0))  # all may be ignored
    primary, verdict, findings = said.primary, said.verdict, said.findings
    asked: Strings | None = None
    candidates: tuple[Candidate, ...] = ()
    stands = not machine.likeness or chance.get(_cause_said(said), 1) >= _DOUBTED
    clear = share >= _NAMED and likeliest != "unknown"
    if verdict != "undecided" and not stands and clear and not _proven(said, machine):
        verdict, findings = "undecided", _doubted(findings, likeliest)
    if verdict == "undecided":
        if machine.likeness and share >= _NAMED:
            primary = likeliest if clear else None
        elif not stands:
            primary = None
        if primary in HARMLESS:
            findings = _doubted(findings, primary)
    unsure = machine.likeness and primary is not None and chance.get(primary, 1) < _SURE
    if verdict == "undecided" or unsure:
        others = {
            cause: round(share, 2)
            for cause, share in chance.items()
            if share >= _WORTH_NAMING and cause not in ("unknown", primary)
        }
        candidates = ranked(others)
        if primary is not None:  # it comes first, whatever its chance is
            own = round(chance.get(primary, 0.0), 2)
            candidates = (Candidate(cause=primary, score=own), *candidates)
    if verdict == "undecided":
        # What hardly anything speaks for is not known well enough to ask about.
        best = candidates[0].score if candidates else 0.0
        known = candidates if not machine.likeness or best >= _ASKED_FROM else ()
        asked = command_after(machine, known, commands_in(machine, knowledge))
    left = {gap.cause for gap in said.undecided} | {candidate.cause for candidate in candidates}
    return replace(
        said,
        verdict=verdict,
        primary=primary,
        findings=findings,
        passed=tuple(cause for cause in said.passed if cause not in left),
        candidates=candidates,
        **_asked(asked, machine),
    )


_NAMED = 0.5
"""The chance of a cause that is named although no rule is sure of it."""
_DOUBTED = 0.4
"""With less chance, what the rules say does not stand where another cause is named, nor what they
merely hold possible."""
_SURE = 0.9
"""Below this chance of what the rules are sure of, the others are worth naming to a program."""
_WORTH_NAMING = 0.01
_ASKED_FROM = 0.2
"""The chance from which a candidate is worth a command of its own."""


def _cause_said(said: Diagnosis) -> str:
    """The cause that a verdict about a report stands for."""
    harmless = next((found.cause for found in said.findings if found.cause in HARMLESS), None)
    return said.primary or harmless or "not-environment"


def _proven(said: Diagnosis, machine: Machine) -> bool:
    """Whether the facts of the report alone prove it: its root cause, or that a dump is healthy."""
    complains = gap_of(machine, "symptoms") is not None
    return (said.verdict == "healthy" and not complains) or any(
        finding.cause == said.primary and finding.confidence is CERTAIN for finding in said.findings
    )


def _doubted(findings: tuple[Finding, ...], likeliest: str) -> tuple[Finding, ...]:
    """Findings that the rest of a report speaks against; beside what is harmless no errors."""
    most = WARNING if likeliest in HARMLESS else ERROR
    return tuple(
        finding
        if finding.cause == likeliest
        else replace(finding, confidence=POSSIBLE, severity=max(finding.severity, most))
        for finding in findings
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
    likely = [finding for finding in roots if finding.confidence <= LIKELY]
    if not likely or is_doctors_own(machine):
        return None
    if any(finding.severity is ERROR for finding in likely):
        return "broken"
    # A report shows its complaint, and never all that the rules ask for.
    return "warnings" if machine.look == "report" and likely[0] is roots[0] else None


def _beside_the_complaint(
    found: list[Finding], machine: Machine, knowledge: Knowledge
) -> list[Finding]:
    """What only the facts of a dump show is no error where the report complains of something else.

    Its author's program got as far as an error of its own, or asks for no cure.
    """
    from cudadoctor.rules.pasted.reported import complains_of_something_else

    if not any(finding.severity is ERROR for finding in found) or not (
        complains_of_something_else(machine, knowledge)
    ):
        return found
    return [
        replace(finding, severity=max(finding.severity, WARNING)) if _of_facts(finding) else finding
        for finding in found
    ]


def _of_facts(finding: Finding) -> bool:
    """Whether no text names it but lines of a dump."""
    from cudadoctor.rules.pasted.reported import dumped

    lines = [shown.value for shown in finding.evidence if shown.fact.startswith("symptoms.")]
    return all(map(dumped, lines))


def outweighed(
    roots: list[Finding], findings: tuple[Finding, ...], machine: Machine, knowledge: Knowledge
) -> bool:
    """Whether the complaint of a report is no matter of its environment, and its roots pass by."""
    from cudadoctor.rules.pasted.reported import complains_of_something_else

    aside = all(finding.severity is WARNING and _of_facts(finding) for finding in roots)
    if aside and complains_of_something_else(machine, knowledge):
        return True
    harmless = {
        finding.cause: finding.confidence for finding in findings if finding.cause in HARMLESS
    }
    if min(harmless.values(), default=POSSIBLE) is POSSIBLE:
        failed = any(symptom.key in WORDS["complains"] for symptom in machine.symptoms or ())
        return ("torch-bug" in harmless or (bool(harmless) and failed)) and all(
            finding.severity is WARNING and _in_passing(finding) for finding in roots
        )
    bug = harmless.get("torch-bug", POSSIBLE) <= LIKELY
    return all(
        finding.confidence is POSSIBLE
        or _in_passing(finding)
        # The facts of the machine alone name it, and no text of the report.
        or (
            finding.rule != f"reported-{finding.cause}"
            and (finding.severity is WARNING or (bug and finding.cause in WORDS["costs-no-result"]))
        )
        for finding in roots
    )


def _in_passing(finding: Finding) -> bool:
    """Whether only warnings tell it."""
    lines = [shown.value for shown in finding.evidence if shown.fact.startswith("symptoms.")]
    return bool(lines) and all(map(in_passing, lines))


# --- the next command ------------------------------------------------------------------------


class DecidingCommand(Struct, frozen=True, forbid_unknown_fields=True):
    """A command whose output decides.

    causes: what it tells from its neighbours. facts: beginnings of the paths of facts that it
    shows. origin: how the origins of facts name it, if not by its first word. beside: a command
    without whose output its own tells little.
    """

    run: Strings
    causes: Strings = ()
    facts: Strings = ()
    origin: OptStr = None
    beside: Strings = ()


@cache
def _commands() -> tuple[DecidingCommand, ...]:
    return table("rules/commands", tuple[DecidingCommand, ...])


def command_for(machine: Machine, undecided: tuple[Undecided, ...]) -> Strings | None:
    """The command whose output would decide most, None if no missing fact has one.

    What a fast look did not wait for, a look with all its time decides. Torch is asked in the
    examined interpreter.
    """
    if is_doctors_own(machine):
        return ("cudadoctor", "check", "--python", "PATH")
    python = machine.python.executable
    for fact in (gap.missing for gap in undecided if gap.matters):
        if machine.look == "fast" and fact.startswith(("driver", "gpus")):
            named = machine.python.chosen_by == "--python" and python
            return ("cudadoctor", "check", *(("--python", named) if named else ()))
        if command := _shows(fact, machine):
            return tuple((python or word) if word == "python" else word for word in command)
    return None


def _shows(fact: str, machine: Machine) -> Strings | None:
    if fact == "pci" and machine.platform.system == "Windows":
        return ("powershell", "-Command", "Get-PnpDevice -Class Display")
    if fact.startswith("driver.libcuda") and machine.torch.build != "cuda":
        fact = "driver"  # no torch that could count the GPUs
    shown = {path: command.run for command in _commands() for path in command.facts}
    while fact and fact not in shown:
        fact = fact.rpartition(".")[0]
    return shown.get(fact)


_COLLECT = ("python", "-m", "torch.utils.collect_env")
_SMI = ("nvidia-smi",)
_IMPORT = ("python", "-c", "import torch; print(torch.ones(8).cuda().sum())")
_A_LIST = 15
"""More packages than collect_env lists: a whole list of them."""


def command_after(
    machine: Machine, candidates: tuple[Candidate, ...], hints: tuple[tuple[str, Strings], ...] = ()
) -> Strings | None:
    """The command whose output would decide a report: that tells most of its likeliest candidates.

    hints: causes with the command that tells of them in the words of this report.
    None where the report is likely to be no matter of the environment. What the report holds is not
    asked for again, and nothing that cannot run where it was written.
    """
    causes = [candidate.cause for candidate in candidates]
    if causes and causes[0] in HARMLESS and candidates[0].score > _POSSIBLE:
        return None
    tells = [*hints, *((cause, command.run) for command in _commands() for cause in command.causes)]
    if _smi_is_absent(machine) and machine.platform.wsl:
        return ("ls", "-l", "/dev/dxg", "/usr/lib/wsl/lib")
    told: dict[Strings, set[str]] = {}
    for candidate in candidates[:_ASKED_ABOUT]:
        for run in (run for cause, run in tells if cause == candidate.cause):
            told.setdefault(run, set()).add(candidate.cause)
    scores = {candidate.cause: candidate.score for candidate in candidates}
    made = Counter(run for cause, run in set(hints) if cause in scores)
    # What is made for these words and tells causes apart comes first; of equals the likeliest's.
    for run in sorted(told, key=lambda run: (made[run] < 2, -sum(scores[c] for c in told[run]))):
        if _can_tell(run, machine):
            return run
    imported = machine.torch.imported
    order = [_COLLECT, _IMPORT if imported and imported.cuda_available else _SMI]
    if any(cause in causes[:1] and run in (_SMI, ("dmesg",)) for cause, run in tells[len(hints) :]):
        order.reverse()
    return next((run for run in order if _can_tell(run, machine)), _IMPORT)


_POSSIBLE = 0.5
_ASKED_ABOUT = 3
"""A report names so many candidates; the command has to tell them apart."""


def _can_tell(run: Strings, machine: Machine) -> bool:
    """Whether the command can run on that machine, and would tell more than the report does."""
    programs = {source.partition(", line")[0] for source in machine.origins.values()}
    origins = {command.run: command.origin for command in _commands()}
    elsewhere = machine.platform.system not in (None, "Linux")
    return (
        bool(run)
        and not (
            (run[0] == "nvidia-smi" and _smi_is_absent(machine))
            or (elsewhere and run[0] in WORDS["linux-programs"])
            # The kernel's log and the bus belong to the host.
            or (run[0] in ("dmesg", "lspci") and (machine.container.kind or machine.platform.wsl))
            or (run == _COLLECT and machine.torch.installed is False)
            or (run[-2:] == ("pip", "list") and len(machine.packages or ()) > _A_LIST)
            or (origins.get(run) or run[0]) in programs
        )
    )


def _smi_is_absent(machine: Machine) -> bool:
    """Whether the report shows that nvidia-smi cannot be asked there."""
    seen = {symptom.key for symptom in machine.symptoms or ()}
    return machine.platform.system == "Darwin" or "smi-absent" in seen
