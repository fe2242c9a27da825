"""What a diagnosis is made of, and the plan that answers it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum
from typing import Literal

from msgspec import Struct

from cudadoctor.model.machine import OptBool, OptInt, OptStr, Strings, StrPair
from cudadoctor.model.trust import Command, Word


class Level(IntEnum):
    """A grade with its name in small letters; the lowest number is the gravest."""

    @property
    def label(self) -> str:
        return self.name.lower()


class Severity(Level):
    """What a finding means to somebody who wants to train."""

    ERROR = 0
    """Training cannot run, or is silently wrong."""
    WARNING = 1
    """Slower, fragile, or fails as soon as it is used."""
    INFO = 2
    """Worth knowing."""


class Confidence(Level):
    """How sure the doctor is: CERTAIN is proven by facts, POSSIBLE is a hint."""

    CERTAIN = 0
    LIKELY = 1
    POSSIBLE = 2


class Risk(str, Enum):
    """What a step touches."""

    PROCESS = "process"
    ENVIRONMENT = "environment"
    SYSTEM = "system"


class Standing(IntEnum):
    """Where in a pasted report a cause stands."""

    COMPLAINT = 0
    """In its title or in its last error."""
    TOLD = 1
    """In other words of it, or in its facts."""
    PASSING = 2
    """In a warning, or in the error of a program whose child failed."""


ERROR, WARNING, INFO = Severity
CERTAIN, LIKELY, POSSIBLE = Confidence
Where = Literal["here", "host", "container", "windows", "admin", "cloud"]


class Edit(Struct, frozen=True, kw_only=True):
    """A change to a file.

    mode: "write" makes what the whole file, "append" adds it at the end; both are printed as a
    command that can be pasted. With "by hand" what describes the change, which the user makes.
    """

    file: str
    what: str
    mode: Literal["by hand", "write", "append"] = "by hand"


class PackageChange(Struct, frozen=True, kw_only=True):
    """A change to the examined environment, not yet written in the words of a package manager.

    remove: distributions to uninstall first. install: requirements such as "torch==2.14.1".
    index: URL of the package index for torch's own builds, None for the user's default index.
    then: requirements to install afterwards from the user's own default index.
    variant: CUDA variant (cu126) or cpu; cuda: its CUDA version as text, for conda.
    download_bytes: about what all the wheels take to download. find_links: a page with more wheels
    for `then`, None for none. ask: no table proves that the wheels exist for this interpreter, so
    the resolver has its say before anything goes.
    """

    install: Strings
    remove: Strings = ()
    index: OptStr = None
    then: Strings = ()
    variant: OptStr = None
    cuda: OptStr = None
    download_bytes: OptInt = None
    find_links: OptStr = None
    ask: bool = False


class Remedy(Struct, frozen=True, kw_only=True):
    """A way out that a rule prescribes.

    Remedies of one finding are alternatives, the least invasive first. Equal ids of several
    findings are one step that cures them all.

    where: "here" the examined environment or this shell, "host" outside the container, "container"
    how it is started, "windows" the Windows side of WSL, "admin" whoever runs the machine,
    "cloud" the shell of a provider's console.
    commands: argument vectors without sudo. variables: to set, None to unset.
    packages: in place of commands where a package manager does it (the dialect writes them).
    note: a sentence that is shown beside it (what it costs, when it does not help).
    group, cures: filled by the plan; remedies of the same group are alternatives.
    verified: whether its packages can be had, None not tried.
    """

    id: str
    title: str
    group: str = ""
    where: Where = "here"
    risk: Risk = Risk.SYSTEM
    needs_root: bool = False
    reboot: bool = False
    commands: tuple[Strings, ...] = ()
    manual: OptStr = None
    variables: Mapping[str, OptStr] = {}
    edits: tuple[Edit, ...] = ()
    cures: Strings = ()
    tool: OptStr = None
    verified: OptBool = None
    note: OptStr = None
    packages: PackageChange | None = None


Remedies = tuple[Remedy, ...]
"""Alternatives, the least invasive first."""


class Evidence(Struct, frozen=True, kw_only=True):
    """One fact that a finding rests on, as it is shown: its path, value and origin."""

    fact: str
    value: str
    source: OptStr = None


class Finding(Struct, frozen=True, kw_only=True):
    """A cause that fits this machine.

    rule: name of the rule that found it (several rules may share a cause).
    because_of: causes of other findings that explain this one away.
    templates: the English title and why before their values were filled in, for translation.
    """

    cause: str
    rule: str
    severity: Severity
    confidence: Confidence
    title: str
    why: str
    values: dict[str, str]
    evidence: tuple[Evidence, ...]
    cites: Strings = ()
    because_of: Strings = ()
    remedies: Remedies = ()
    templates: StrPair = ("", "")


class Undecided(Struct, frozen=True, kw_only=True):
    """A cause that could be neither found nor ruled out, and the fact that is missing for it.

    matters: whether it keeps the verdict from being healthy.
    """

    cause: str
    missing: str
    why: str
    matters: bool


class Candidate(Struct, frozen=True, kw_only=True):
    """A cause that is still possible where the verdict is undecided; score from 0 to 1."""

    cause: str
    score: float


def ranked(scores: dict[str, float]) -> tuple[Candidate, ...]:
    """The causes that are still possible, the likeliest first."""
    return tuple(
        Candidate(cause=cause, score=score)
        for cause, score in sorted(scores.items(), key=lambda pair: -pair[1])
    )


Verdict = Literal["healthy", "warnings", "broken", "undecided"]


class Diagnosis(Struct, frozen=True, kw_only=True):
    """All that the rules said of one machine. findings: gravest first.

    passed: causes that facts decided and that do not fit. beside: commands whose output belongs to
    that of next_command.
    """

    verdict: Verdict
    primary: OptStr
    findings: tuple[Finding, ...]
    passed: Strings
    undecided: tuple[Undecided, ...]
    candidates: tuple[Candidate, ...] = ()
    next_command: Command | None = None
    beside: tuple[Command, ...] = ()

    @property
    def next_commands(self) -> tuple[Command, ...]:
        """All that is to be run next."""
        return (self.next_command, *self.beside) if self.next_command else ()

    @property
    def roots(self) -> tuple[Finding, ...]:
        """Findings that a plan answers: nothing deeper explains them away."""
        return tuple(
            finding
            for finding in self.findings
            if not finding.because_of and finding.severity < Severity.INFO
        )


class Rejection(Struct, frozen=True, kw_only=True):
    """A variant of torch that was passed over, and why."""

    variant: str
    reason: str


class Wishes(Struct, frozen=True, kw_only=True):
    """What the user asked of the plan. manager None: the one that fits the examined environment."""

    manager: OptStr = None
    torch: OptStr = None
    shell: Literal["bash", "fish", "powershell"] = "bash"


class Step(Remedy, frozen=True, kw_only=True):
    """A remedy in its place in the plan, with words that may be run; the contract's shape.

    commands: fully expanded. packages: the change behind the commands, where it is one of packages;
    no part of the contract.
    resolution: what a resolver said of it, as a sentence; None where none was asked.
    """

    commands: tuple[Command, ...] = ()
    variables: Mapping[str, Word | None] = {}
    resolution: OptStr = None


class BuildChoice(Struct, frozen=True, kw_only=True):
    """The torch build that the solver chose for this machine, the contract's shape."""

    torch: str
    variant: str
    torchvision: OptStr
    torchaudio: OptStr
    python: str
    index: str
    why: Strings
    why_not: tuple[Rejection, ...]


class NoBuild(Struct, frozen=True, kw_only=True):
    """Why no build could be chosen. next_command: prints what is missing; None if nothing is."""

    reason: str
    next_command: Command | None = None


class Plan(Struct, frozen=True, kw_only=True):
    """The steps in the order they are to be taken, and the build that they install.

    no_build: where torch is at fault and no build could be chosen.
    """

    steps: tuple[Step, ...] = ()
    build: BuildChoice | None = None
    no_build: NoBuild | None = None
