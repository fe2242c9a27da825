"""What the author of a report says in words: the GPU, the driver, the versions, the system.

The weakest of all sources: anything that a program printed counts more.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from packaging.version import Version

from cudadoctor.model.machine import Gpu, OptStr
from cudadoctor.model.requirements import COMPANIONS
from cudadoctor.model.variables import allowed
from cudadoctor.reports import values
from cudadoctor.reports.document import Document
from cudadoctor.reports.packages import KNOWN, distribution
from cudadoctor.reports.phrases import AUTHOR, read_table
from cudadoctor.reports.statements import Rank, Statements, gated, stated

if TYPE_CHECKING:
    from cudadoctor.knowledge import Knowledge

_LINES = 1500
"""People write at the beginning; what comes later is a log."""


def read_prose(doc: Document, knowledge: Knowledge) -> Statements:
    """Everything that the author's own words tell."""
    part = Document(doc.lines[:_LINES]) if len(doc.lines) > _LINES else doc
    yield from _gpus(part, knowledge)
    yield from _torch(part)
    yield from _companions(part)
    yield from _enumerated(part)
    yield from read_table(part, "prose")


_SENTENCE = re.compile(r"(?:(?<!\S)[^\W\d_]{1,20}['’]?[^\W\d_]{0,3}[,.!?]? ){3,}[^\W\d_]{2,20}")
_WITHOUT_SPACES = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]{4,}")
"""Chinese and Japanese, whose words stand without spaces."""
_PRINTED = re.compile(r"\b(?:True|False) (?:NVIDIA |GeForce |Tesla |Quadro |RTX |GTX )+[\w -]*")
"""What a line of Python prints of a GPU: whether it is there, and its name."""
_LABEL = re.compile(r"\W{0,4}[\w .()/+-]{1,50}[:=|]")
"""How the lines of a program's dump begin, and sentences hardly ever."""
_FAILURE = re.compile(
    r"Traceback|\w(?:Error|Exception|Warning)\b|^(?:Title|Subject): |(?i:\b(?:error|fatal|"
    r"fail(?:s|ed|ure)?|aborted|killed|core dumped|segmentation fault|timed? ?out|warning|bug)\b)"
)


def may_complain(doc: Document) -> bool:
    """Whether somebody wrote something beside what programs dumped, or a program failed."""
    return any(
        _WITHOUT_SPACES.search(line.text)
        or line.text.rstrip().endswith("?")
        or _FAILURE.search(line.text)
        or (_SENTENCE.search(_PRINTED.sub("", line.text)) and not _LABEL.match(line.text))
        for line in doc.lines
    )


# --- GPUs ----------------------------------------------------------------------------------------

_COUNT = (
    r"(?:(?<!\w)(?P<count>\d{1,2}) ?[x×*] ?(?:nvidia )?|\b(?P<words>two|four|eight|dual) |(?<!\w))"
)
_SUFFIX = (
    r"(?:[ -]?(?:ti|super|d|max-q|laptop|mobile|gpu|ada|blackwell|xp|rtx|black"
    r"|pcie|sxm\d?|\d{2,3}gb)\b){0,4}"
)
_BRANDED = (
    r"(?:nvidia )?(?:geforce )?(?:rtx pro|rtx|gtx|gt|mx|titan|quadro|tesla|nvs)[ -]?(?:pro |a)?"
    r"[0-9xvkpmt]\w{0,6}" + _SUFFIX
)
_CHIP = (
    r"(?:nvidia )?(?:tesla )?(?:[akpmvtlh]\d{1,3}|gh200|gb200|gb300|gb10|b[123]00|h200|h20|h800"
    r"|a800|a10g|l40s|dgx spark)(?:[ -](?:pcie|sxm\d?|nvl|hbm\d?|\d{2,3}gb?)){0,3}"
)
_NUMBER = (
    r"(?:nvidia )?(?:[345]0[5-9]0|10[3-8]0|16[56]0|20[678]0|9[5-8]0)"
    r"(?:[ -]?(?:ti|super|laptop|mobile|d)\b){0,3}"
)
_MODEL = re.compile(rf"(?i){_COUNT}(?P<name>{_BRANDED}|{_CHIP}|{_NUMBER})(?!\w)")
_ABOUT_GPU = re.compile(
    r"(?i)\b(?:gpus?|graphics?|card|video|nvidia|geforce|device|vga|rtx|gtx|tesla|quadro)\b"
)
_SHORT = re.compile(r"(?i)[akpmvtlhb]\d{1,3}$|\d{3,4}$")
"""Letters and numbers that mean a GPU only where the line speaks of one."""
_MANY = {"two": 2, "dual": 2, "four": 4, "eight": 8}
_PCI_ID = re.compile(r"(?i)\b10de:([0-9a-f]{4})\b")
MOST_GPUS = 16

_SERIES = re.compile(r"(?i)\b(?:rtx|gtx|geforce|nvidia) (10|20|30|40|50)(?:00|xx)?[- ]series")
_CAPABILITY_OF = {"10": "6.1", "20": "7.5", "30": "8.6", "40": "8.9", "50": "12.0"}


def _gpus(doc: Document, knowledge: Knowledge) -> Statements:
    found = []
    line = 0
    if series := _SERIES.search(doc.flat):
        line = doc.line_of(series)
        found.append(
            Gpu(
                index=0,
                name=f"RTX {series[1]} series",
                capability=Version(_CAPABILITY_OF[series[1]]),
            )
        )
    for number, text in doc.lines:
        for match in _MODEL.finditer(text) if len(text) <= 1000 else ():
            name = _named(match["name"], text, knowledge)
            if name and not any(gpu.name == name for gpu in found):
                count = int(match["count"] or 0) or _MANY.get((match["words"] or "").lower(), 1)
                places = range(len(found), min(len(found) + count, MOST_GPUS))
                found += [Gpu(index=place, name=name) for place in places]
                line = line or number
    if not found:  # the PCI id of a GPU in a line of the kernel or of lspci
        for match in _PCI_ID.finditer(doc.flat):
            if models := knowledge.gpus_by_pci(match[1].lower()):
                found, line = [Gpu(index=0, name=models[0].name)], doc.line_of(match)
                break
    if found:
        yield from stated(line, AUTHOR, {"gpus": tuple(found)}, Rank.PROSE)
    else:
        yield from read_table(doc, "other_vendors")


def _named(text: str, line: str, knowledge: Knowledge) -> OptStr:
    """The name as the driver would say it; None where these letters mean no GPU."""
    if _SHORT.fullmatch(text) and not _ABOUT_GPU.search(line):
        return None
    return _model(" ".join(text.split()), knowledge)


_NAMES = (
    *("{0}", "geforce {0}", "tesla {0}", "quadro {0}", "geforce rtx {0}", "geforce gtx {0}"),
    *("{0} gpu", "geforce {1} laptop gpu", "{1}", "geforce {1}", "geforce rtx {1}"),
    *("geforce gtx {1}", "tesla {2}m", "{2} pcie", "tesla {2} pcie 16gb", "{2} sxm2 16gb"),
)
"""Names to try for what somebody wrote (0), that without "laptop" (1), and its last word (2)."""


@lru_cache(maxsize=4096)
def _model(text: str, knowledge: Knowledge) -> OptStr:
    spaced = re.sub(r"(?i)\b(rtx|gtx|gt|mx)[ -]?(?=\d)", r"\1 ", text)
    spaced = re.sub(r"(?i)(?<=\d)[ -]?(ti|super)\b", r" \1", spaced)
    plain = re.sub(r"(?i)\b(?:nvidia|geforce)\s|(?<!laptop) gpu$", "", spaced)
    number = re.sub(r"(?i)\s?(?:laptop|mobile)(?: gpu)?$", "", plain)
    for template in _NAMES:
        name = template.format(plain, number, plain.split()[-1])
        if model := knowledge.gpu_by_name(name):
            return model.name if "/" not in model.name else name
    return None


# --- versions ------------------------------------------------------------------------------------

_GAP = r"(?: version| ver\.?| v| is| ==?| =|:|=|\s|\(|\*){1,4}\s?v?"
_TORCH = re.compile(
    r"(?i)(?<![\w./-])(?:py)?torch(?:[ -]version)?(?:\.__version__)?" + _GAP + r"[\"']?"
    r"(?P<v>\d\.\d{1,2}(?:\.\d{1,2})?(?:\.?dev\d{8}|a0|rc\d)?(?:\.post\d{1,3})?(?:\+[\w.]{2,20})?)"
    r"(?![\w.]{0,20}-cuda)",
)
_BESIDE = re.compile(
    r"(?i)(?<![\w./-])(?P<name>torchvision|torchaudio|torchtext|vllm|xformers|torchcodec"
    r"|bitsandbytes|flash[-_]attn|deepspeed|torchao|torch[-_]tensorrt|triton-windows|fastai|sglang"
    r"|transformer[-_]engine)"
    r"(?:[ -]version)?(?:\.__version__\)?)?"
    + _GAP
    + r"[\"']?(?P<v>\d\.\d{1,2}\.\d{1,2}(?:\.?dev\d{8}|a0|rc\d)?(?:\.post\d)?(?:\+[\w.]{2,20})?)"
    r"(?![\w.*])",
)
_SEVERAL = re.compile(
    r"(?<![\w.-])[A-Za-z][\w.-]{1,60}[ =]{1,2}v?\d[\w.+]{0,40}, [A-Za-z][\w.-]{1,60}[ =]{1,2}v?\d"
)
"""A list of packages in a sentence: one release alone may be that of a program's bug report."""
_SPOKEN_OF = re.compile(
    r"(?i)requir|depend|tried|install|need|should|must|[<>~]=|compatib|grade|latest|from versions"
)
"""What stands in a line that speaks of a release rather than of what is there."""
_REFUSED = re.compile(
    r"(?:requirements? |distribution (?:found for |')|you require |because |no versions? of |match "
    r")'?$|trained with $"
)
"""What stands before a release that was not found, or that a checkpoint was made with."""


def _torch(doc: Document) -> Statements:
    for match in _TORCH.finditer(doc.flat):
        if not _REFUSED.search(doc.low[max(0, match.start() - 24) : match.start()]):
            yield from stated(
                doc.line_of(match), AUTHOR, values.torch_facts(match["v"]), Rank.PROSE
            )


@gated(
    "torchvision",
    "torchaudio",
    "torchtext",
    "vllm",
    "xformers",
    "torchcodec",
    "bitsandbytes",
    "flash",
    "deepspeed",
    "torchao",
    "tensorrt",
    "triton-windows",
    "fastai",
    "sglang",
)
def _companions(doc: Document) -> Statements:
    for match in _BESIDE.finditer(doc.flat):
        line = doc.line_at(match.start())
        spelled = "version:" in match[0].lower() or line.text.strip() == match[0]
        listed = match["name"].lower() in COMPANIONS or spelled or _SEVERAL.search(line.text)
        if listed and not _SPOKEN_OF.search(line.text):
            facts = {"packages": (distribution(match["name"], match["v"]),)}
            yield from stated(line.number, AUTHOR, facts, Rank.PROSE)


_PARTED = re.compile(r"\s{0,4}(?:[,;|]|\s[/+]\s)\s{0,4}|\s\([^()]{0,200}\)")
_PAIR = re.compile(
    r"(?i)(?P<name>[a-z][\w.-]{1,60})(?:\[[\w,-]{1,60}\])?(?:[ -]version)?(?:==| ?[:=] ?| v?)"
    r"(?P<v>\d{1,4}\.\d[\w.+]{0,40})"
)


def _enumerated(doc: Document) -> Statements:
    """A line of nothing but packages with their releases: transformers 4.57.1, xformers 0.0.32."""
    for number, text in doc.lines:
        if not 6 < len(text) <= 300 or (not text[-1:].isdigit() and text[-1:] != ")"):
            continue
        pieces = [piece for piece in _PARTED.split(text.strip(" -*\t")) if piece]
        pairs = [_PAIR.fullmatch(piece) for piece in pieces]
        found = [pair for pair in pairs if pair and KNOWN.fullmatch(pair["name"])]
        packages = [distribution(pair["name"], pair["v"]) for pair in found if all(pairs)]
        if beside := [package for package in packages if package.name != "torch"]:
            yield from stated(number, AUTHOR, {"packages": beside}, Rank.PROSE)


# --- environment variables that a report sets or shows -------------------------------------------

_SET = re.compile(
    r"(?<![\w.$%{])(?:\$env:|environ(?:\.get)?\(?\[?\s?|setenv\(\s?)?[\"']?"
    r"(?P<name>[A-Z][A-Z0-9_]{3,50})[\"']?\]?"
    r"\s{0,2}(?:=|:\s|,(?=\s?[\"'])|\bis set to\b|\bset to:?)\s{0,2}"
    r"(?P<value>\"[^\"\n]{0,400}\"|'[^'\n]{0,400}'|[^\s;&|)]{0,400})"
)
_FISH = re.compile(r"\bset -g?x (?P<name>[A-Z][A-Z0-9_]{3,50}) (?P<value>\S{0,400})")
_ADVICE = re.compile(
    r"(?i)(?:consider|try|by|must|can|could|please|need to|rerun|run) "
    r"(?:passing|setting|set|with|to set)[^.=]{0,60}$",
)
"""What stands before a setting that a message only proposes."""
_NO_VALUE = frozenset({"N/A", "None", "not", "=", "==", "!="})


@gated("cuda", "nccl", "gloo", "torch", "nvidia_", "ld_", "omp_", "master_", "pip_", "xla_")
def read_assignments(doc: Document) -> Statements:
    """Variables of the allow-list: `export X=1`, `X=1 python`, os.environ["X"] = "1", `X: 1` ..."""
    before = ""
    for number, text in doc.lines:
        above, before = before, text[-80:]
        if "_" not in text or len(text) > 2000:
            continue
        found = {
            setting["name"]: setting["value"].strip("\"'").rstrip("\\`,")
            for pattern in (_SET, _FISH)
            for setting in pattern.finditer(text)
            if setting["value"] not in _NO_VALUE and "$" not in setting["value"][:1]
            if not _ADVICE.search(f"{above} {text[: setting.start()]}"[-120:])
        }
        if known := allowed(found):
            yield from stated(number, "a setting in the text", {"env": known}, Rank.COMMAND)
