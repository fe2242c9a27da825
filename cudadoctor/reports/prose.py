"""What the author of a report says in words: the GPU, the driver, the versions, the system.

The weakest of all sources: anything that a program printed counts more.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from msgspec import Struct
from packaging.version import Version

from cudadoctor.knowledge.patterns import Pattern
from cudadoctor.knowledge.wording import wording
from cudadoctor.model.machine import Gpu, OptStr
from cudadoctor.model.variables import allowed
from cudadoctor.reports import values
from cudadoctor.reports.document import Document, Line
from cudadoctor.reports.mentions import affirmed
from cudadoctor.reports.packages import KNOWN, distribution
from cudadoctor.reports.phrases import AUTHOR, read_table
from cudadoctor.reports.statements import Rank, Statements, gated, stated

if TYPE_CHECKING:
    from cudadoctor.knowledge import Knowledge

_LINES = 1500
"""People write at the beginning; what comes later is a log."""


def read_prose(doc: Document, knowledge: Knowledge) -> Statements:
    """Everything that the author's own words tell."""
    part = affirmed(Document(doc.lines[:_LINES]))
    yield from _gpus(part, knowledge)
    yield from read_table(part, "boards")
    yield from _releases(part)
    yield from _enumerated(part)
    yield from _unversioned(part)
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


_PERSON = re.compile(
    r"(?i)(?<![\w'/-])(?:i|my|mine|we|our|@[\w-]{1,40}|yo|mi|mis|tengo|eu|meu|minha|je|j'ai|mon|ma"
    r"|same (?:here|for|with|issue|problem|error)|me too|ich|mein\w{0,2}|я|мой|моя|моей|у меня)"
    r"(?![\w/-])|[我私]|저는|제 |내 "
)
"""What a person writes of herself or to somebody, and programs hardly ever do."""
_SIGNATURE = 5
"""Lines of the longest signature, with the dashes that begin it."""


def authors_own(doc: Document) -> Document:
    """The document without the words of others that it quotes, and without a signature.

    What a program printed stays: terminals and mails put a `>` before that, too. Where most is
    quoted, the report itself was.
    """
    written = [line for line in doc.lines if line.text.strip()]
    whole = 2 * sum(line.number in doc.quoted for line in written) > len(written)
    others, before, left, lines = False, "", 0, list[Line]()
    for line in doc.lines:
        text = line.text.strip()
        goes_on = others and text and not _LABEL.match(text) and not before.endswith(":")
        quoted = line.number in doc.quoted and not whole
        others = quoted and bool(goes_on or _PERSON.search(text))
        left = _SIGNATURE if text == "--" and not before else left - 1 if text else 0
        hidden = (others or left > 0) and not _FAILURE.search(text)
        lines.append(Line(line.number, "") if hidden else line)
        before = text
    return Document(tuple(lines), doc.day)


# --- GPUs ----------------------------------------------------------------------------------------

_COUNT = (
    r"(?:(?<!\w)(?P<count>\d{1,2}) ?[x×*] ?(?:nvidia )?|\b(?P<words>two|four|eight|dual) |(?<!\w))"
)
_SUFFIX = (
    r"(?:[ -]?(?:ti|super|d|max-q|laptop|mobile|gpu|pro|sff|ada|blackwell|xp|rtx|black"
    r"|pcie|sxm\d?|\d{2,3}gb)\b){0,4}"
)
_BRANDED = (
    r"(?:nvidia )?(?:geforce |quadro )?(?:rtx pro|rtx|gtx|gt|mx|titan|quadro|tesla|nvs)[ -]?"
    r"(?:pro |a)?[0-9xvkpmt]\w{0,6}" + _SUFFIX
)
_CHIP = (
    r"(?:nvidia )?(?:tesla )?(?!k8s)(?:[akpmvtlh]\d{1,3}|a[2456][05]00|gh200|gb200|gb300|gb10"
    r"|b[123]00|h200|h20|h800|a800|a10g|l40s|dgx spark)"
    r"(?:[ -](?:pcie|sxm\d?|nvl|hbm\d?|\d{2,3}gb?)){0,3}"
)
_NUMBER = (
    r"(?:nvidia )?(?:[345]0[5-9]0|10[3-8]0|16[56]0|20[678]0|9[5-8]0)"
    r"(?:[ -]?(?:ti|super|laptop|mobile|d)\b){0,3}"
)
_MODEL = re.compile(
    rf"(?i){_COUNT}(?P<name>{_BRANDED}|{_CHIP}|{_NUMBER})s?(?!\w| series)"
    r"(?: ?[x×*] ?(?P<times>\d{1,2})\b)?"
)
_ABOUT_GPU = re.compile(
    r"(?i)\b(?:gpus?|graphics?|cards?|video|nvidia|geforce|device|vga|rtx|gtx|tesla|quadro|[dh]gx|tarjeta"
    r"|grafikkarte|carte graphique|placa de v[ií]deo|видеокарт\w{1,3})\b|显卡|顯卡|顯示卡|グラボ"
    r"|グラフィック|그래픽"
)
_SHORT = re.compile(r"(?i)[akpmvtlhb]\d{1,3}$|\d{3,4}$")
"""Letters and numbers that mean a GPU only where the line speaks of one."""
_BESIDE_TORCH = re.compile(r"(?i)torch|\bcuda|\bcu1\d\d\b")
_PLAIN = re.compile(r"[AHKPV]\d{2,3}m?|[TLB]\d{2,3}|[TLP]4")
"""Letters and numbers of a board as NVIDIA writes them."""
_HAS = re.compile(
    r"(?i)(?:^|[\s(])(?:(?P<my>my|our|mine|meine|我的) |(?:with|on|has|have|having|using|use|mit"
    r"|con|com|avec|sur|auf|einer?)"
    r"(?P<one> an?| my| our| one| eine[rm]?| une?| una| uma| mi| two)?(?: the| el| la)? "
    r")(?:nvidia )?$"
)
_ON_BOARD = re.compile(r"(?i)\b(?:[dh]gx|sxm\d?|nvswitch\w{0,2})\b")
"""What tells that the GPUs are modules of a board, not PCIe cards."""
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
            name = _named(match, knowledge, first=not found)
            if name and not any(gpu.name == name for gpu in found):
                count = int(match["count"] or match["times"] or 0) or _MANY.get(
                    (match["words"] or "").lower(), 1
                )
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


def _named(found: re.Match[str], knowledge: Knowledge, *, first: bool) -> OptStr:
    """The name as the driver would say it; None where these letters mean no GPU."""
    text, line = found["name"], found.string
    if _SHORT.fullmatch(text) and not _ABOUT_GPU.search(line):
        near = _HAS.search(line, max(0, found.start() - 40), found.start("name"))
        counted = found["count"] or found["words"] or found["times"]
        beside = near or _BESIDE_TORCH.search(line)
        alone = (_PLAIN.fullmatch(text) and beside) or (near and (near["one"] or near["my"]))
        # A second model is another machine's more often than of the same.
        if not counted and not (first and alone):
            return None
    return _model(" ".join(text.split()), _ON_BOARD.search(line) is not None, knowledge)


_NAMES = (
    *("{0}", "geforce {0}", "tesla {0}", "quadro {0}", "geforce rtx {0}", "geforce gtx {0}"),
    *("rtx {0}", "{0} gpu", "geforce {1} laptop gpu", "{1}", "geforce {1}", "geforce rtx {1}"),
    *(
        "{0} blackwell",
        "geforce gtx {1}",
        "tesla {2}m",
        "{2} pcie",
        "tesla {2} pcie 16gb",
        "{2} sxm2 16gb",
    ),
)
"""Names to try for what somebody wrote (0), that without "laptop" (1), and its last word (2)."""
_BOARD_NAMES = ("{2} sxm4", "tesla {2} sxm2 16gb", "{2} sxm2 16gb")


@lru_cache(maxsize=4096)
def _model(text: str, on_board: bool, knowledge: Knowledge) -> OptStr:
    spaced = re.sub(r"(?i)\b(rtx|gtx|gt|mx)[ -]?(?=\d)", r"\1 ", text)
    spaced = re.sub(r"(?i)(?<=\d)[ -]?(ti|super)\b", r" \1", spaced)
    spaced = re.sub(r"(?i)\brtx (\d{4}) (?:pro|blackwell)\b", r"rtx pro \1", spaced)
    plain = re.sub(r"(?i)\b(?:nvidia|geforce)\s|(?<!laptop) gpu$", "", spaced)
    number = re.sub(r"(?i)\s?(?:laptop|mobile)(?: gpu)?$", "", plain)
    if len(knowledge.gpus_by_name(plain)) > 1:
        return plain
    for template in (*(_BOARD_NAMES if on_board else ()), *_NAMES):
        name = template.format(plain, number, plain.split()[-1])
        if model := knowledge.gpu_by_name(name):
            return model.name if "/" not in model.name else name
    return None


# --- versions ------------------------------------------------------------------------------------


class Thing(Struct, frozen=True, forbid_unknown_fields=True):
    """Something that has a release; releases.toml says what each field means."""

    names: str
    release: str
    group: str = ""
    tight: bool = False

    def pattern(self, gap: str, behind: str) -> Pattern:
        """The release behind the name, or before it: version 2.1 of X, the 535.54 driver."""
        gap = f"(?:{gap})?" if self.tight else gap
        before = f"versi(?:on|ón|ão) (?P<of>{self.release}){behind}"
        if self.group.startswith("driver"):
            before += r"|(?P<the>[2-6]\d\d\.\d{2,3}(?:\.\d{2})?)\s"
        return Pattern(
            rf"(?i)(?<![A-Za-z0-9_.\\-])(?<!(?<!\.\d)/)(?:(?P<name>{self.names}){gap}"
            rf"(?P<v>{self.release})|(?:{before})(?P<named>{self.names})(?!\w))"
        )


class Releases(Struct, frozen=True, forbid_unknown_fields=True):
    """The table of releases.toml."""

    gap: str
    behind: str
    thing: tuple[Thing, ...]


_RELEASES = wording("releases", Releases)
_THINGS = [
    (thing.group, thing.pattern(_RELEASES.gap, _RELEASES.behind)) for thing in _RELEASES.thing
]
_FLASH = re.compile(r"(?i)flash.att(?:entio)?n")
_SPOKEN_OF = re.compile(
    r"(?i)requir|depend|tried|(?<!pip )(?<!pip3 )(?<!conda )(?<!mamba )install(?!ed|iert|é|ad[oa]"
    r"|at[oa])|need|should|must|[<>~!]=|compatib|grade|latest|from versions|\bsince\b|no matching"
    r"|not find"
)
"""What stands in a sentence that speaks of a release rather than of what is there."""
_SENTENCES = re.compile(r"(?<=[.!?;]) | -> ")
_NOT_FOUND = ("requirement ", "found for ", "version of ")
"""What stands in a log before a requirement that has no release."""
_BESIDE = re.compile(r"(?<![\w-])(?P<name>torchvision|torchaudio)(?![\w-])(?!\W{0,3}[=<>~]=?)")
_LACKING = re.compile(
    r"(?i)no module named|not found|no matching|missing|requirement|from versions"
)
_REFUSED = re.compile(
    r"(?:requirements? |distribution (?:found for |')|you require |because |no versions? of |match "
    r")'?$|trained with $"
)
"""What stands before a release that was not found, or that a checkpoint was made with."""


def _releases(doc: Document) -> Statements:
    for group, pattern in _THINGS:
        for match in pattern.finditer(doc.told, doc.low_told):
            said = match.groupdict()
            release = said.get("v") or said.get("of") or said.get("the") or ""
            name = said["name"] or said["named"]
            line = doc.line_at(match.start())
            if group:
                facts = values.of_group(group, release)
                told = not _REFUSED.search(doc.low[max(0, match.start() - 24) : match.start()])
            else:
                facts = {"packages": (distribution(_FLASH.sub("flash-attn", name), release),)}
                asked = f"{name}=={release}".lower()
                told = not any(f"{words}{asked}" in doc.low for words in _NOT_FOUND)
                told = told and not _SPOKEN_OF.search(_sentence(line.text, match[0]))
            if told:
                yield from stated(line.number, AUTHOR, facts, Rank.PROSE)


def _unversioned(doc: Document) -> Statements:
    """torch's own pair where it is named without a release: it is there, in one that is unknown."""
    for number, text in doc.lines:
        names = {found["name"] for found in _BESIDE.finditer(text) if not _LACKING.search(text)}
        if packages := [distribution(name, "") for name in sorted(names)]:
            yield from stated(number, AUTHOR, {"packages": packages}, Rank.PROSE)


def _sentence(text: str, words: str) -> str:
    """The sentence of a line that holds these words."""
    pieces = _SENTENCES.split(" ".join(text.split()))
    return next((piece for piece in pieces if words in piece), text)


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


def _value(text: str) -> str:
    """A value without its quotes, and without the mark that ends a sentence."""
    bare = text.strip("\"'").rstrip("\\`,")
    return bare[:-1] if re.search(r"[\w/]\.$", bare) else bare


_IN_CODE = re.compile(r"environ(?:\.get)?\s?[\[(]\s?[\"']?$|setenv\(\s?[\"']?$")


def _is_expression(setting: re.Match[str]) -> bool:
    """Whether a program sets it to something that only runs tell: os.environ[name] = value."""
    before = setting.string[max(0, setting.start("name") - 24) : setting.start("name")]
    return setting["value"][:1] not in ("'", '"') and _IN_CODE.search(before) is not None


@gated("cuda", "nccl", "gloo", "torch", "nvidia_", "ld_", "omp_", "master_", "pip_", "xla_")
def read_assignments(doc: Document) -> Statements:
    """Variables of the allow-list: `export X=1`, `X=1 python`, os.environ["X"] = "1", `X: 1` ..."""
    before = ""
    for number, text in doc.lines:
        above, before = before, text[-80:]
        if "_" not in text or len(text) > 2000:
            continue
        found = {
            setting["name"]: _value(setting["value"])
            for pattern in (_SET, _FISH)
            for setting in pattern.finditer(text)
            if setting["value"] not in _NO_VALUE and "$" not in setting["value"][:1]
            if not _is_expression(setting)
            if not _ADVICE.search(f"{above} {text[: setting.start()]}"[-120:])
        }
        if known := allowed(found):
            yield from stated(number, "a setting in the text", {"env": known}, Rank.COMMAND)
