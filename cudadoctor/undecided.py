"""Where the facts do not suffice: which causes remain, and what to run next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudadoctor.findings import Candidate, Confidence

if TYPE_CHECKING:
    from cudadoctor.findings import Finding, Undecided

_COMMAND = {
    "driver": ("nvidia-smi",),
    "gpus": ("nvidia-smi", "-q"),
    "pci": ("lspci", "-nn"),
    "torch": ("python", "-m", "torch.utils.collect_env"),
    "python": ("python", "-m", "pip", "--version"),
    "libraries": ("python", "-c", "import torch; print(open('/proc/self/maps').read())"),
    "smoke": ("cudadoctor", "check"),
}


def candidates_of(
    findings: tuple[Finding, ...], undecided: tuple[Undecided, ...]
) -> tuple[Candidate, ...]:
    """The causes that are still possible, the likeliest first.

    score: 0.5 for a finding that is only possible, 0.2 for a cause that nothing speaks for yet.
    """
    hinted = [f.cause for f in findings if f.confidence is Confidence.POSSIBLE and not f.because_of]
    open_causes = [one.cause for one in undecided if one.matters]
    scores = dict.fromkeys(open_causes, 0.2) | dict.fromkeys(hinted, 0.5)
    ranked = sorted(scores.items(), key=lambda pair: -pair[1])
    return tuple(Candidate(cause=cause, score=score) for cause, score in ranked)


def command_for(undecided: tuple[Undecided, ...], python: str | None) -> tuple[str, ...] | None:
    """The command whose output would decide most, None where no missing fact has one.

    python: the examined interpreter, which is the one to ask.
    """
    for one in undecided:
        if one.matters and (command := _COMMAND.get(one.missing.split(".")[0])):
            return tuple((python or word) if word == "python" else word for word in command)
    return None
