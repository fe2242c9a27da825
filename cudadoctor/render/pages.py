"""The pages of `cudadoctor explain`."""

import re
import textwrap
from collections.abc import Sequence

from cudadoctor.locale.language import Language
from cudadoctor.model.rule import Rule

PAGES: dict[str, tuple[str, str]] = {
    "torch-bug": (
        "This release of torch has a fault of its own",
        """\
Another torch release works on the same machine, and nothing else changed. Told from
not-environment, where the behaviour is documented, and from env-var-misconfigured, where a
documented variable cures it in the same release.

Cured by another release of torch.""",
    ),
    "torch-index-wrong": (
        "The package index has no such build of torch",
        """\
pip says "No matching distribution found" or lists only old versions: the cuXXX of the index
never existed for this release or was withdrawn, or a table of uv or Poetry points elsewhere. Told
from torch-python-unsupported, where this Python is what the index lacks.

Cured by the index of a variant that was published for the release.""",
    ),
    "build-isolation": (
        "An extension is built where torch cannot be imported",
        """\
pip builds packages in an environment of their own, without the torch that is installed. The
words are "No module named 'torch'" in the middle of a build, although torch is installed.

Cured by installing torch first and then the package with --no-build-isolation.""",
    ),
    "fork-after-init": (
        "CUDA was used before the process was forked",
        """\
A forked child cannot use the CUDA of its parent. The words are "Cannot re-initialize CUDA in
forked subprocess"; workers of a DataLoader whose dataset touches the GPU give them too.

Cured by the start method "spawn" or "forkserver", or by touching CUDA in the children only.""",
    ),
    "nccl-version-skew": (
        "The ranks run different releases of NCCL or torch",
        """\
"Mismatched NCCL version detected", or a collective that fails with ncclInvalidUsage at the
start. Each node has an environment of its own, and they differ.

Cured by the same torch on every node.""",
    ),
    "ddp-rank-device": (
        "Several ranks use one GPU",
        """\
"Duplicate GPU detected" up to NCCL 2.29, "Multiple Ranks are using the same GPU" from 2.30 on:
there are GPUs enough, and the program does not choose by its rank. Told from ddp-launch, where
there are more processes than GPUs.

Cured by torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before the first use of CUDA, not by
NCCL_MULTI_RANK_GPU_ENABLE.""",
    ),
    "slow-dataloader": (
        "Loading the data starves the GPU",
        """\
The GPU waits while batches are made: its utilisation is low and that of the processors high.
Told by a measurement only: the same step with one batch kept in memory is much faster.

Cured by more workers, pinned memory and data that is decoded beforehand.""",
    ),
    "cpu-bound": (
        "The host cannot launch work as fast as the GPU does it",
        """\
Many small kernels, or much Python between them: one processor is busy and the GPU is not. Told
from slow-dataloader by the same measurement without a data loader.

Cured by larger batches, torch.compile or CUDA graphs.""",
    ),
    "not-environment": (
        "The environment is not to blame",
        """\
The program itself, or behaviour that is documented: shapes that do not fit, a device that was
never set, results that differ within the precision. Other environments show the same.

Cured in the program.""",
    ),
}
"""Causes that no rule judges yet: they show in a program's own output, not on a machine.

Each is a title and a text: how it shows, what it is told from, what cures it.
"""


def listing(catalogue: Sequence[str], rules: Sequence[Rule], say: Language) -> str:
    """Every cause with the title of its page, or of its first rule."""
    titles = {cause: say(title) for cause, (title, _) in PAGES.items()}
    for rule in rules:
        titles.setdefault(rule.cause, _opening(rule, say)[0].rstrip("."))
    widest = max(map(len, catalogue))
    return "".join(f"{cause:<{widest}}  {titles[cause]}\n" for cause in catalogue)


def page(cause: str, rules: Sequence[Rule], say: Language, width: int = 80) -> str:
    """What a cause is, how it is told and what cures it, in lines of that width."""
    parts = [say(part) for part in PAGES.get(cause, ())]
    for rule in (rule for rule in rules if rule.cause == cause):
        parts += [*_opening(rule, say), rule.page.strip()]
        if rule.yields_to:
            parts.append(say("Not reported beside: {causes}.", causes=", ".join(rule.yields_to)))
    paragraphs = [one for part in parts for one in part.split("\n\n") if one.strip()]
    laid_out = (_laid_out(paragraph, say, width) for paragraph in paragraphs)
    return "\n\n".join([cause, *laid_out]) + "\n"


def _laid_out(paragraph: str, say: Language, width: int) -> str:
    """A paragraph in lines of that width; one that holds lines of its own stays as it is."""
    if re.search(r"(?m)^(?:[ \t]|[-*] )", paragraph):
        return paragraph
    text = say(" ".join(paragraph.split()))
    return textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)


def _opening(rule: Rule, say: Language) -> tuple[str, ...]:
    """The title, if it is not made of values alone, and what the user reads below it."""
    why = _without_values(say(rule.why))
    return (why,) if rule.title == "{what}" else (_without_values(say(rule.title)), why)


def _without_values(text: str) -> str:
    """Placeholders as words: {driver} reads <driver>; those that may be empty are left out."""
    text = re.sub(r"(?<=[\w}])\{\w+\}", "", text)
    return text.replace("{", "<").replace("}", ">")
