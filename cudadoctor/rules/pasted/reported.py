"""Rules out of the table of symptoms: one for each cause that an error text can mean.

They judge pasted reports only. A text alone is likely or possible; where the facts of the report
prove the same cause, the rule that judges hosts finds it too, and says it with certainty.
"""

from collections.abc import Callable
from typing import NamedTuple

from cudadoctor.knowledge import Knowledge
from cudadoctor.knowledge.symptoms import CauseText, Meaning, SymptomRow, symptoms
from cudadoctor.model.catalogue import HARMLESS
from cudadoctor.model.findings import (
    POSSIBLE,
    Candidate,
    Confidence,
    Finding,
    Remedies,
    Severity,
    ranked,
)
from cudadoctor.model.machine import Machine, Strings, Symptom
from cudadoctor.model.rule import Answer, Found, Judge, Rule
from cudadoctor.plan.remedies import (
    by_hand,
    device_groups,
    grant_gpu,
    install_driver,
    install_packages,
    install_torch,
    jetson_torch,
    load_driver,
    open_modules,
    proprietary_modules,
    reboot,
    reinstall_torch,
    unset_variables,
    upgrade_driver,
    wsl_driver,
)
from cudadoctor.rules.container import with_compute
from cudadoctor.rules.driver import Reason, each_once
from cudadoctor.rules.evidence.signs import driver_system
from cudadoctor.rules.pasted.conditions import holds, refuted

VERDICT = "cudadoctor-verdict"
"""The symptom that is a verdict of this doctor; its cause stands among its values."""


class Seen(NamedTuple):
    """A symptom of the report with the meaning that fits. place: its number in the machine."""

    place: int
    symptom: Symptom
    row: SymptomRow
    meaning: Meaning


def reported_rules(deeper: dict[str, Strings]) -> tuple[Rule, ...]:
    """One rule a cause of the table. deeper: cause -> causes that explain it away."""
    return tuple(
        Rule(
            name=f"reported-{cause}",
            cause=cause,
            title=text.title,
            severity=Severity[text.severity.upper()],
            judge=_judge(cause, text),
            yields_to=tuple(dict.fromkeys((*deeper.get(cause, ()), *text.yields_to))),
            why=text.why,
            page="",
        )
        for cause, text in symptoms().causes.items()
    )


def _judge(cause: str, text: CauseText) -> Judge:
    keys = symptoms().meaning.get(cause, frozenset())

    def judge(m: Machine, kb: Knowledge) -> Answer:
        seen = [sign for sign in _seen(keys, m, kb) if sign.meaning.cause == cause]
        seen += _retold(cause, m)
        if not seen:
            return None
        best = min(seen, key=_worth)
        return _found(best, seen, text, m, kb)

    return judge


def _worth(one: Seen) -> tuple[Confidence, int, bool, int]:
    """The surest text counts, of equals the first; of one line what has words of its own."""
    sure = Confidence[one.meaning.confidence.upper()]
    return sure, one.symptom.line or 0, one.meaning.title is None, one.place


def _seen(keys: frozenset[str], m: Machine, kb: Knowledge) -> list[Seen]:
    table = symptoms().by_key
    out = []
    for place, symptom in enumerate(m.symptoms or ()):
        if symptom.key in keys:
            row = table[symptom.key]
            meaning = meaning_of(row, m, kb)
            if meaning is not None:
                out.append(Seen(place, symptom, row, meaning))
    return out


def _retold(cause: str, m: Machine) -> list[Seen]:
    """What this doctor itself said of that machine, in a text that somebody pasted."""
    row = symptoms().by_key[VERDICT]
    return [
        Seen(
            place,
            one,
            row,
            Meaning(
                cause=cause,
                confidence="possible"
                if one.values.get("sure", "").strip().lower() == "possible"
                else "likely",
            ),
        )
        for place, one in enumerate(m.symptoms or ())
        if one.key == VERDICT and one.values.get("cause") == cause
    ]


def meaning_of(row: SymptomRow, m: Machine, kb: Knowledge) -> Meaning | None:
    """The first meaning whose conditions all hold."""
    for meaning in row.means:
        if all(holds(condition, m, kb) for condition in meaning.when):
            return meaning
    return None


def candidates_in(
    m: Machine, kb: Knowledge, findings: tuple[Finding, ...]
) -> tuple[Candidate, ...]:
    """The causes that a report leaves open, the likeliest first.

    score: 0.6 for what is likely to be no matter of the environment, 0.5 for what was found to be
    possible; below it what the same error texts mean in other circumstances, in the order of the
    table.
    """
    scores = {
        finding.cause: 0.5 if finding.confidence is POSSIBLE else 0.6
        for finding in findings
        if not finding.because_of and finding.cause != "unknown"
    }
    table = symptoms().by_key
    for symptom in m.symptoms or ():
        row = table.get(symptom.key)
        still = [one for one in row.means if not refuted(one.when, m, kb)] if row else []
        for number, meaning in enumerate(still):
            scores.setdefault(meaning.cause, round(0.3 / (number + 1), 2))
    return ranked(scores)


def complaints(m: Machine, kb: Knowledge) -> tuple[Symptom, ...]:
    """The error texts that mean something here: dumps hold other words, too, that mean nothing."""
    table = symptoms().by_key
    return tuple(
        symptom
        for symptom in m.symptoms or ()
        if (row := table.get(symptom.key))
        and (meaning := meaning_of(row, m, kb))
        and (meaning.cause not in HARMLESS or meaning.confidence != "possible")
    )


def commands_in(m: Machine, kb: Knowledge) -> tuple[tuple[str, Strings], ...]:
    """Causes that the report's error texts can mean, each with the command that would tell."""
    table = symptoms().by_key
    rows = [row for symptom in m.symptoms or () if (row := table.get(symptom.key)) and row.next]
    meant = [(meaning_of(row, m, kb), row.next) for row in rows]
    return tuple((meaning.cause, command) for meaning, command in meant if meaning)


def _found(best: Seen, seen: list[Seen], text: CauseText, m: Machine, kb: Knowledge) -> Found:
    meaning = best.meaning
    return Found(
        evidence=(*_lines((best, *seen)), *meaning.shows),
        values=dict(best.symptom.values),
        confidence=Confidence[meaning.confidence.upper()],
        severity=Severity[meaning.severity.upper()] if meaning.severity else None,
        title=meaning.title,
        why=meaning.why,
        remedies=cures(meaning.cause, meaning.cure or text.cure, m, kb),
    )


def _lines(seen: tuple[Seen, ...]) -> Strings:
    """The texts that are shown, of each line one: a sentence often holds several symptoms."""
    first: dict[object, str] = {}
    for sign in seen:
        first.setdefault(sign.symptom.line or sign.place, f"symptoms.{sign.place}.text")
    return tuple(first.values())[:3]


def cures(cause: str, words: str, m: Machine, kb: Knowledge) -> Remedies:
    """The ways out for this cause: the remedies of hosts if the report's facts suffice for them.

    Those know the platform, and prescribe no driver inside a container, WSL or a Jetson.
    words: the cure as the table of symptoms says it.
    """
    seen = frozenset(symptom.key for symptom in m.symptoms or ())
    if cause in _AS_ON_HOSTS and (ways := _AS_ON_HOSTS[cause](m, kb, seen)):
        return ways
    title, _, rest = words.partition(". ")
    return by_hand(f"cure-{cause}", title.rstrip("."), rest or words)


def _old_driver(m: Machine, kb: Knowledge, _: frozenset[str]) -> Remedies:
    floor = kb.driver_floor(m.torch.cuda, driver_system(m)) if m.torch.cuda else None
    newer = upgrade_driver(m, kb, floor.driver.branch) if floor else ()
    return each_once(*install_torch(m, kb), *newer)


def _unloaded(m: Machine, kb: Knowledge, seen: frozenset[str]) -> Remedies:
    reasons: dict[str, Reason] = {
        "module-not-signed": "secure-boot",
        "gpu-without-its-driver": "nouveau",
        "module-not-built": "not-built",
        "after-kernel-update": "not-built",
    }
    told = (reason for key, reason in reasons.items() if key in seen)
    return load_driver(m, next(told, "modprobe"))


_ABOUT_RELEASES = {"triton-of-another-release", "triton-not-there", "triton-does-not-compile"}
_COMPILER = {"compiler-not-found", "python-headers-missing", "toolkit-in-pieces"}
_COMPILER_WORDS = ("failed to find c compiler", "cl is not found", "find msvc", "c++ compiler")


def _triton(m: Machine, kb: Knowledge, seen: frozenset[str]) -> Remedies:
    """Triton of its own for Windows; on Linux the one that torch pins. A compiler needs words."""
    texts = " ".join(symptom.text.lower() for symptom in m.symptoms or ())
    if (
        not seen & _ABOUT_RELEASES
        or seen & _COMPILER
        or any(words in texts for words in _COMPILER_WORDS)
    ):
        return ()
    if m.platform.system == "Windows":
        return install_packages("triton-windows", "Install Triton for Windows", "triton-windows")
    return reinstall_torch(m, kb) if m.torch.version and m.platform.system == "Linux" else ()


def _shown(m: Machine, _: Knowledge, __: frozenset[str]) -> Remedies:
    """A job's own list is the scheduler's to change."""
    return grant_gpu(m) if m.container.scheduler else unset_variables(m, "CUDA_VISIBLE_DEVICES")


_AS_ON_HOSTS: dict[str, Callable[[Machine, Knowledge, frozenset[str]], Remedies]] = {
    "driver-too-old": _old_driver,
    "driver-not-installed": lambda m, kb, _: install_driver(m, kb),
    "driver-not-loaded": _unloaded,
    # Inside a container a reboot is not the only way, which the words say.
    "driver-library-mismatch": lambda m, *_: () if m.container.kind else reboot(m),
    "driver-wrong-flavour": lambda m, kb, seen: (
        proprietary_modules(m, kb) if "needs-proprietary-modules" in seen else open_modules(m, kb)
    ),
    "device-permission": lambda m, *_: device_groups(m),
    "container-no-gpu": lambda m, *_: grant_gpu(m),
    "container-driver-caps": lambda m, *_: with_compute(m),
    "scheduler-no-gpu": lambda m, *_: grant_gpu(m),
    "wsl-setup": lambda m, *_: wsl_driver(m),
    "jetson-build": lambda m, kb, _: jetson_torch(m, kb),
    "torch-arch-unsupported-new": lambda m, kb, _: install_torch(m, kb),
    "torch-arch-unsupported-old": lambda m, kb, _: install_torch(m, kb),
    "visible-devices-hides-gpu": _shown,
    "torch-missing": lambda m, kb, _: (
        install_torch(m, kb) if m.platform.system and m.gpus and m.python.version else ()
    ),
    "triton-broken": _triton,
    "arch-list-wrong": lambda m, _, seen: (
        unset_variables(m, "TORCH_CUDA_ARCH_LIST")
        if "TORCH_CUDA_ARCH_LIST" in (m.env or {}) and "architecture-list-empty" not in seen
        else ()
    ),
}
