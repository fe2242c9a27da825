"""The pages of `cudadoctor explain`: one for each cause, and the list of them."""

import re
import textwrap
from collections.abc import Iterator, Sequence
from functools import cache
from string import Formatter

from msgspec import Struct
from msgspec.structs import replace

from cudadoctor.knowledge.wording import wording
from cudadoctor.locale.language import Language, language
from cudadoctor.model.catalogue import AREAS
from cudadoctor.model.machine import Strings, StrPair
from cudadoctor.model.rule import Rule

PAGES: dict[str, str] = {
    "torch-bug": """\
The program fails with the installed torch release, but works with another release on the same
machine.

Check by hand: run the program with the newest torch release and with the nightly build. If it
fails with both, search https://github.com/pytorch/pytorch/issues for the error text.

Look-alikes: if PyTorch documents the behavior, the cause is not-environment. If a documented
environment variable fixes the error with the same torch release, the cause is
env-var-misconfigured.

Fix: use a torch release that does not have the bug. If every release has it, report the bug to
PyTorch with a short program that reproduces it and the output of `python -m
torch.utils.collect_env`.""",
    "torch-index-wrong": """\
Each index on download.pytorch.org contains the builds for one CUDA version, such as cu126, and not
every torch release was built for every CUDA version. If the index does not have your torch release,
pip finds no matching version or lists only versions that you did not request. An index entry in the
uv or Poetry configuration can also point to the wrong index.

Check by hand: open https://download.pytorch.org/whl/torch/ and look for a file name that contains
your torch release, your CUDA version (cu126) and your Python version (cp312).

Look-alikes: if your torch release exists, but not for your Python version, the cause is
torch-python-unsupported.

Fix: use the index for a CUDA version that your torch release was built for.""",
    "build-isolation": """\
pip and uv build a package in an isolated environment that contains only the build dependencies that
the package declares. If the package's setup.py imports torch without declaring it, the build fails
even if torch is installed.

Look-alikes: if the error appears when your own program starts, not during a build, the cause is
torch-missing.

Fix: first install torch and the build tools (`python -m pip install setuptools wheel ninja`), then
install the package with `--no-build-isolation`.""",
    "fork-after-init": """\
A forked process inherits its parent's CUDA state, but that state works only in the parent. "Cannot
re-initialize CUDA in forked subprocess" occurs with multiprocessing on Linux, and with DataLoader
workers whose dataset uses the GPU.

Check by hand: look for CUDA calls that run at import time or before the workers start, such as
.cuda() or .to("cuda").

Fix: call torch.multiprocessing.set_start_method("spawn") at the start of the main program, or use
CUDA only in the child processes. In a dataset, return CPU tensors and move the batch to the GPU in
the training loop.""",
    "nccl-version-skew": """\
All ranks of a job must use the same NCCL release. NCCL comes with torch, so if the nodes have
different torch releases, the ranks may be unable to communicate.

Check by hand: run `python -c "import torch; print(torch.__version__, torch.cuda.nccl.version())"`
on every node and compare the output.

Look-alikes: if one node loads a different NCCL than the one that comes with its torch, the cause is
nccl-shadowed.

Fix: install the same torch release on every node, or use one container image for all nodes.""",
    "ddp-rank-device": """\
The machine has enough GPUs, but the program does not select one per rank, so several ranks use the
same GPU, usually GPU 0. NCCL up to 2.29 reports "Duplicate GPU detected"; NCCL 2.30 and newer
report "Multiple Ranks are using the same GPU".

Check by hand: `nvidia-smi` shows several processes of the job on one GPU.

Look-alikes: if there are more processes than GPUs, the cause is ddp-launch.

Fix: call torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before the program uses CUDA for
anything else, and load checkpoints with map_location. Do not set NCCL_MULTI_RANK_GPU_ENABLE: it
hides the mistake.""",
    "slow-dataloader": """\
The GPU waits while the CPU reads and prepares batches: GPU utilization is low, and CPU cores are
busy. Low utilization alone does not prove that data loading is the bottleneck; measure to be sure.

Check by hand: `cudadoctor bench -- python train.py` measures your own training run. You can also
train on one batch that stays in memory: if that is much faster, data loading is the bottleneck.

Look-alikes: if the program stays slow even when the batch is already in memory, the cause is
cpu-bound.

Fix: use more workers, pin_memory=True and persistent_workers=True, decode the data ahead of time,
or move the augmentation to the GPU.""",
    "cpu-bound": """\
The CPU prepares and launches the GPU's work more slowly than the GPU runs it. Common causes are
many small kernels, a lot of Python code per step, or too many threads per process. One CPU core is
at 100% while the GPU waits.

Check by hand: `nvidia-smi dmon -s u` shows low GPU utilization while one CPU core is fully used,
even with a batch that stays in memory.

Look-alikes: if training is fast once the batch is in memory, the cause is slow-dataloader.

Fix: use larger batches, torch.compile or CUDA graphs. If several processes run on one node, set
OMP_NUM_THREADS to the number of cores divided by the number of processes.""",
    "not-environment": """\
The driver, CUDA and torch work. The error comes from the program, its data or its packages, or is
documented behavior: mismatched shapes, a tensor on the wrong device, or results that differ within
floating-point precision. The program would fail in any other environment too.

Check by hand: read the traceback from the bottom up until you reach a line of your own code.

Look-alikes: if another torch release makes the error disappear, the cause is torch-bug.

Fix: fix the program. Reinstalling torch, CUDA or the driver does not help.""",
}
"""Causes that no rule for machines judges: they only show in a program's output."""
SECTIONS = {
    "Errors": "What you see",
    "": "What it means",
    "Check by hand": "How to check by hand",
    "Fix": "How to fix it",
    "Look-alikes": "Look-alikes",
    "Commands": "Commands",
    "Sources": "Sources",
}
"""What a part of a page begins with, and the heading under which it is shown, in their order."""
_BEGINS = re.compile(r"(?:^|(?<=[.:)`\"] ))(?=(?:(?:To c|C)heck by hand|Fix|Look-alikes?): )")
_UNBROKEN = re.compile(r"`[^`]{3,74}`|\d (?:[KMG]i?B|[KMG]?Hz|W|°C|%|s|ms|GPUs?)\b")
"""What a line never ends in: a command, and a number with its unit."""
_ALSO = {"To check by hand": "Check by hand", "Look-alike": "Look-alikes"}
_HEADINGS = {"torch": "PyTorch"}
_KINDS = 3
"""Install tools or distributions that a terminal shows; docs/causes has all of them."""
_MOST = 6
"""A cause that more causes explain is behind everything, and their names would help nobody."""


class Cause(Struct, frozen=True, forbid_unknown_fields=True):
    """What a cause is in a few words, and error texts that users search for."""

    title: str
    errors: Strings = ()


class Explained(Struct, frozen=True, forbid_unknown_fields=True):
    """causes: one for each of the catalogue. examples: values of a rule's sentences, by rule."""

    causes: dict[str, Cause]
    examples: dict[str, dict[str, str]]


class Neighbors(Struct, frozen=True, forbid_unknown_fields=True):
    """Causes that are easily confused, and how to tell them apart."""

    causes: Strings
    text: str


class Link(Struct, frozen=True, forbid_unknown_fields=True):
    """A public page to read more on."""

    title: str
    url: str


class Separated(Struct, frozen=True, forbid_unknown_fields=True):
    """What separates the causes. decide: what shows by hand that it is this one. cites: sources."""

    decide: dict[str, str]
    apart: tuple[Neighbors, ...]
    cites: dict[str, Strings]
    sources: dict[str, Link]


class Commands(Struct, frozen=True, forbid_unknown_fields=True):
    """The commands of a fix on one kind of machine. on: install tools or distributions; "" any."""

    title: str
    on: str
    lines: Strings


class Contents(Struct, frozen=True, kw_only=True):
    """The page of a cause, in the reader's language.

    sections: key of SECTIONS -> its paragraphs, or the error texts.
    """

    cause: str
    title: str
    sections: dict[str, list[str]]
    commands: tuple[Commands, ...]
    links: tuple[Link, ...]


def explained() -> Explained:
    """The table of what is said of causes beside their rules."""
    return wording("explain", Explained)


@cache
def separated() -> Separated:
    """The table of what separates the causes."""
    return wording("causes", Separated)


@cache
def commands() -> dict[str, tuple[Commands, ...]]:
    """Cause -> example commands, as the planner wrote them (docs/make.py)."""
    return wording("commands", dict[str, tuple[Commands, ...]])


def title_of(cause: str, say: Language) -> str:
    """A cause in a few words, without the values of any machine."""
    return say(explained().causes[cause].title)


def listing(say: Language | None = None) -> str:
    """Every cause in a few words, by the part of the machine in which it lies."""
    say, causes = say or language("en"), explained().causes
    widest = max(map(len, causes))
    parts = [
        _heading(say(_HEADINGS.get(area, area)))
        + "".join(f"\n  {cause:<{widest}}  {say(causes[cause].title)}" for cause in names)
        for area, names in AREAS.items()
    ]
    return "\n\n".join([*parts, say("To read more about a cause: cudadoctor explain CAUSE")]) + "\n"


def contents(cause: str, rules: Sequence[Rule], say: Language | None = None) -> Contents:
    """What a cause means, what one sees of it, how to check for it and how to fix it."""
    say, table, apart = say or language("en"), explained(), separated()
    about = table.causes[cause]
    sections: dict[str, list[str]] = {name: [] for name in SECTIONS}
    sections["Errors"] = list(about.errors)
    own = [rule for rule in rules if rule.cause == cause and cause not in PAGES]
    paragraphs = [PAGES.get(cause, "")] + [
        text for rule in own for text in (_lead(rule, len(own) > 1, table, say), rule.page)
    ]
    for name, text in (part for paragraph in paragraphs for part in _sections(paragraph)):
        sections[name].append(say(text))
    sections["Check by hand"].insert(0, say(apart.decide[cause]))
    sections["Look-alikes"] += [say(near.text) for near in apart.apart if cause in near.causes]
    deeper = tuple(dict.fromkeys(name for rule in own for name in rule.yields_to))
    if 0 < len(deeper) <= _MOST:
        consequence = say(
            "This is often only a consequence of another cause: {causes}.", causes=", ".join(deeper)
        )
        sections["Look-alikes"].append(consequence)
    return Contents(
        cause=cause,
        title=_capital(say(about.title)),
        sections=sections,
        commands=tuple(
            replace(found, title=say.spoken(found.title)) for found in commands().get(cause, ())
        ),
        links=tuple(apart.sources[name] for name in apart.cites[cause]),
    )


def page(cause: str, rules: Sequence[Rule], say: Language | None = None, width: int = 80) -> str:
    """The page of a cause for a terminal."""
    say = say or language("en")
    found = contents(cause, rules, say)
    blocks = [f"{cause}\n{found.title}"]
    for name, shown in found.sections.items():
        if shown:
            lines = "\n\n" if name != "Errors" else "\n"
            wrapped = [_wrapped(text, width, listed=name == "Errors") for text in shown]
            blocks.append(f"{say(SECTIONS[name])}\n{lines.join(wrapped)}")
        elif name == "Commands" and found.commands:
            about = _wrapped(say(EXAMPLES), width)
            blocks.append("\n\n".join([f"{say(SECTIONS[name])}\n{about}", *_blocks(found, width)]))
        elif name == "Sources":
            links = (f"  {link.title}:\n    {link.url}" for link in found.links)
            blocks.append("\n".join([say(SECTIONS[name]), *links]))
    return "\n\n".join(blocks) + "\n"


EXAMPLES = "These are examples. `cudadoctor fix --print` prints the commands for your machine."


def _blocks(found: Contents, width: int) -> Iterator[str]:
    """The commands, the most common kinds of machine below the title that they share."""
    for title in dict.fromkeys(example.title for example in found.commands):
        head = [_wrapped(f"{title}:", width)]
        for example in [example for example in found.commands if example.title == title][:_KINDS]:
            on = [f"    # {example.on}"] if example.on else []
            yield "\n".join([*head, *on, *(f"    {line}" for line in example.lines)])
            head = []


def found(hits: Sequence[tuple[str, str]], say: Language | None = None, width: int = 80) -> str:
    """The causes that an error text may have, numbered, and what separates them.

    hits: the causes, the likeliest first, each with the known error text that is most like it.
    """
    say, table = say or language("en"), separated()
    lines = [
        _wrapped(say("This error has more than one possible cause, the likeliest first:"), width, 0)
    ]
    for number, (cause, _) in enumerate(hits, 1):
        lines.append(f"\n{number}. {cause}: {title_of(cause, say)}")
        lines.append(_wrapped(say(table.decide[cause]), width, 3))
    causes = {cause for cause, _ in hits}
    between = [near.text for near in table.apart if len(causes.intersection(near.causes)) > 1]
    if between:
        lines.append(f"\n{say('How to tell them apart')}")
        lines.append("\n\n".join(_wrapped(say(text), width) for text in between))
    lines.append("\n" + say("To read more about a cause: cudadoctor explain CAUSE"))
    return "\n".join(lines) + "\n"


def _lead(rule: Rule, several: bool, table: Explained, say: Language) -> str:
    """The sentences of a finding, with the values of an example."""
    wanted = {name for text in (rule.title, rule.why) for _, name, _, _ in Formatter().parse(text)}
    values = table.examples.get(rule.name, {})
    if not wanted - {None}:
        return f"{say(rule.title)}. {say(rule.why)}" if several else say(rule.why)
    if wanted - {None, *values}:
        return "" if "{" in rule.why else say(rule.why)
    shown = {name: say.spoken(value) for name, value in values.items()}
    title, why = say(rule.title, **shown), say(rule.why, **shown)
    return say("For example: {title}. {why}", title=title, why=why)


def _sections(text: str) -> Iterator[StrPair]:
    """The paragraphs of a text, each as it is shown, with the section that it belongs to."""
    for part in _parts(text):
        name, _, rest = part.partition(": ")
        name = _ALSO.get(name, name)
        known = name in SECTIONS and name != "Errors"
        yield (name, _capital(rest)) if known else ("", part)


def _parts(text: str) -> Iterator[str]:
    """The paragraphs of a text, those with a word of SECTIONS within them parted before it."""
    for paragraph in text.split("\n\n"):
        yield from (part.strip() for part in _BEGINS.split(" ".join(paragraph.split())) if part)


def _wrapped(text: str, width: int, indent: int = 2, *, listed: bool = False) -> str:
    whole = _UNBROKEN.sub(lambda found: found[0].replace(" ", "\xa0"), text)
    lines = textwrap.wrap(
        whole,
        width,
        initial_indent="  - " if listed else " " * indent,
        subsequent_indent="    " if listed else " " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines).replace("\xa0", " ")


def _heading(area: str) -> str:
    return area[:1].upper() + area[1:]


def _capital(text: str) -> str:
    """The first letter of a plain word in upper case; names of causes and commands stay."""
    word = text.partition(" ")[0].rstrip(",")
    return _heading(text) if word.isalpha() and word not in ("torch", "nvcc", "pip") else text
