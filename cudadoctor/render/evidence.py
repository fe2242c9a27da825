"""What a finding rests on, in the words of people: label, value and source of each fact.

The table wording/facts.toml says how each fact reads. A number is tied to its unit with NBSP,
which a renderer replaces by a space once the lines are broken.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import pairwise
from typing import Literal

import msgspec
from msgspec import Struct

from cudadoctor.locale.language import Language
from cudadoctor.model.factfile import FactsError, from_plain
from cudadoctor.model.findings import Evidence, Finding
from cudadoctor.model.machine import Gpu, Json, Strings
from cudadoctor.render import inert

NBSP = "\u00a0"
LONGEST_VALUE = 120
MOST_ITEMS = 4

Kind = Literal[
    "text",
    "number",
    "bytes",
    "variable",
    "list",
    "requirements",
    "architectures",
    "gpus",
    "gpu",
    "log",
    "throttle",
    "nvml",
    "cuda",
]


class Shown(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one fact is shown.

    label: {n} stands for what the star of its path is. single: the label of one thing alone.
    words: value -> what is said for it; of a field of an item "field.value". unit: behind a
    number. text: around a value that is {value}, or {count} of a number of things (one: around 1).
    item: the parts of one item of a table. A part in which a field is not known is left out, and
    so is one that begins with [field] or [field=value] where that is not so; `group` stands before
    it, and items that are alike but for it share a part. source: where it is looked up on a host,
    if its origin does not say that ("-": nowhere that needs a name).
    """

    label: str
    single: str = ""
    kind: Kind = "text"
    words: dict[str, str] = {}
    unit: str = ""
    text: str = ""
    one: str = ""
    group: str = ""
    item: Strings = ()
    source: str = ""


class Facts(Struct, frozen=True, forbid_unknown_fields=True):
    """fact: fact path -> how it is shown. source: origin -> what is shown for it.

    code: kind of number -> number -> NVIDIA's own words. throttle: likewise of each bit.
    """

    fact: dict[str, Shown]
    source: dict[str, str]
    code: dict[str, dict[str, str]]
    throttle: dict[str, str]


@cache
def facts() -> Facts:
    """The table."""
    from cudadoctor.knowledge.wording import wording  # a healthy machine needs none

    return wording("facts", Facts)


class EvidenceRow(Struct, frozen=True):
    """One fact as it is shown, inert. source: "" if not known or if it says the same as value."""

    label: str
    value: str
    source: str


def evidence_rows(finding: Finding, say: Language, *, whole: bool = False) -> list[EvidenceRow]:
    """What a finding rests on, each fact once. whole: nothing is shortened.

    What is not known proves nothing: it is shown only where nothing else is.
    """
    view = _View(say, f"{finding.title} {finding.why}", whole=whole)
    rows = list(dict.fromkeys(map(view.row, finding.evidence)))
    return rows if whole else [row for row in rows if row.value != say("not known")] or rows


_PLAIN = ("not known", "none", "yes", "no")
_BEFORE = re.compile(r"(?:\S+\.(?:py|cpp|cc|cu|cuh|h):\d+:|\[ *\d+\.\d+\]|NVRM:) (?=\S)")
"""What stands before the words of a message: the place in a source file, the time."""
_INNER = re.compile(
    r"((?:[A-Za-z]:)?(?:[/\\][\w.+~-]+){2})(?:[/\\][\w.+~-]+){2,}((?:[/\\][\w.+~-]+){2})"
)
"""A path with more folders in it than tell it from others."""
_DECISIVE = re.compile(
    r"Process \d+ has [\d.]+ [KMG]iB memory in use|(?<=Last error: )(?!\s).{5,70}\Z"
)
"""What counts most of a long message and stands near its end."""
_LINE = re.compile(r"(?:(.*), )?line (\d+)")
_PACKAGES = re.compile(r".*[/\\](?:site|dist)-packages[/\\](?=.)")
_PART = re.compile(r"(?:\[(\w+)(?:=(\w*))?\])?(.*)", re.DOTALL)
_FIELD = re.compile(r"\{(\w+)\}")


class _View(Struct, frozen=True):
    """How the evidence of one finding is shown. about: what the finding says."""

    say: Language
    about: str
    whole: bool

    def row(self, evidence: Evidence) -> EvidenceRow:
        path, value = evidence.fact, evidence.value
        shown, number = _shown(path)
        # What a host's environment does not hold is not set, as opposed to a report's.
        unset = (
            shown.kind == "variable" and value == "not known" and evidence.source == "environment"
        )
        text = self.say("not set") if unset else self._value(shown, value)
        if not self.whole:
            text = _shortened(text)
        source = "" if value.startswith(evidence.source or " ") else self._source(shown, evidence)
        label = self.say(shown.single if shown.single and _is_single(value) else shown.label)
        label = label.format_map({"n": number}).replace(f"GPU {number}", f"GPU{NBSP}{number}")
        return EvidenceRow(*map(_harmless, (label, text, source)))

    def _source(self, shown: Shown, evidence: Evidence) -> str:
        source = evidence.source or ""
        if found := _LINE.fullmatch(source):
            name = facts().source.get(found[1], found[1]) if found[1] else "report"
            line = self.say("line {line}", line=found[2]).replace(" ", NBSP)
            return line if name == shown.label else f"{self.say(name)}, {line}"
        if shown.source and source:
            return "" if shown.source == "-" else self.say(shown.source)
        source = source if self.whole else _PACKAGES.sub("", source)
        return self.say(facts().source.get(source, source))

    def _value(self, shown: Shown, value: str) -> str:
        if value in shown.words:
            return self.say(shown.words[value])
        if value in _PLAIN:
            return self.say(value)
        if shown.kind == "variable":
            return self.say("set, but empty") if value == '""' else f"={value}"
        if value.startswith(("{", "[{")) and (items := _items(value)):
            return self._table(shown, items)
        text = _KINDS[shown.kind](self, value) if shown.kind in _KINDS else value
        if shown.one:
            template = shown.one if text == "1" else shown.text
            return self.say(template, count=text).replace(f"{text} ", f"{text}{NBSP}")
        text = self.say(shown.text, value=text) if shown.text else text
        return f"{text}{NBSP}{shown.unit}" if shown.unit else text

    def _table(self, shown: Shown, items: list[Json]) -> str:
        if shown.kind == "gpus":
            gpus = _gpus(items)
            return gpu_list(gpus, self.say, details=True) if gpus else str(len(items))
        named = [item for item in items if self._is_named(str(item.get("name") or ""))]
        alike: dict[str, list[str]] = {}
        for item in named or items:
            leads = alike.setdefault(self._joined(shown.item or _any(item), shown, item), [])
            leads += [lead] if (lead := self._part(shown.group, shown, item)) else []
        texts = (f"{', '.join(dict.fromkeys(leads))}{text}" for text, leads in alike.items())
        return self._listed(list(filter(None, texts)), "; ")

    def _listed(self, texts: list[str], between: str = ", ") -> str:
        """The first of them, and how many more there are."""
        if len(texts) > MOST_ITEMS and not self.whole:
            more = self.say("{count} more", count=len(texts) - MOST_ITEMS)
            texts = [*texts[:MOST_ITEMS], more.replace(" ", NBSP)]
        return between.join(texts)

    def _joined(self, parts: Iterable[str], shown: Shown, item: Json) -> str:
        return "".join(self._part(part, shown, item) for part in parts).removeprefix(", ").strip()

    def _part(self, part: str, shown: Shown, item: Json) -> str:
        field, wanted, text = _PART.fullmatch(part).groups()  # type: ignore[union-attr]
        if field and (not item.get(field) if wanted is None else _word(item.get(field)) != wanted):
            return ""
        named = {name: item.get(name) for name in _FIELD.findall(text)}
        if any(value in (None, "", []) for value in named.values()):
            return ""
        values = {name: self._field(shown, name, value) for name, value in named.items()}
        return self.say(text).format_map(values)

    def _field(self, shown: Shown, name: str, value: object) -> str:
        if word := shown.words.get(f"{name}.{_word(value)}"):
            return self.say(word)
        if isinstance(value, list):
            return self._listed([_word(part) for part in value])
        if name.endswith("_bytes") and isinstance(value, int):
            return gib(value)
        return _word(value)

    def _is_named(self, name: str) -> bool:
        """Whether the finding speaks of it."""
        return bool(name) and bool(
            re.search(rf"(?i)(?<![\w-]){re.escape(name)}(?![\w-])", self.about)
        )

    # --- values by their kind -----------------------------------------------------------------

    def listed(self, value: str) -> str:
        return self._listed(value.split(", "))

    def requirements(self, value: str) -> str:
        """Those that the finding names, without their conditions."""
        lines = [re.sub(r"\[.*\]", "", line.partition(";")[0]) for line in value.split(", ")]
        named = [line for line in lines if self._is_named(re.split(r"[^\w.-]", line)[0])]
        return self._listed(list(dict.fromkeys(named or lines)))

    def architectures(self, value: str) -> str:
        return arch_list(value.split(", "), self.about)

    def size(self, value: str) -> str:
        count = int(value) if value.lstrip("-").isdigit() else None
        return value if count is None else self.say("unlimited") if count < 0 else gib(count)

    def number(self, value: str) -> str:
        try:
            return f"{float(value):.10g}"
        except ValueError:
            return value

    def throttle(self, value: str) -> str:
        bits = int(value) if value.isdigit() else 0
        return ", ".join(
            text for bit, text in facts().throttle.items() if bits & int(bit, 16)
        ) or self.say("none")

    def gpu(self, value: str) -> str:
        return gpu_name(Gpu(index=0, name=value))

    def log(self, value: str) -> str:
        """Lines of the kernel log; a message of several lines is one."""
        return re.sub(
            r"[.,]+ NVRM: (?=[A-Za-z])", lambda found: found[0][0].strip(",") + " ", value
        )

    def nvml(self, value: str) -> str:
        return _coded("nvml", value)

    def cuda(self, value: str) -> str:
        return _coded("cuda", value)


_KINDS: dict[str, Callable[[_View, str], str]] = {
    "list": _View.listed,
    "requirements": _View.requirements,
    "architectures": _View.architectures,
    "bytes": _View.size,
    "number": _View.number,
    "gpu": _View.gpu,
    "log": _View.log,
    "throttle": _View.throttle,
    "nvml": _View.nvml,
    "cuda": _View.cuda,
}


def _shown(path: str) -> tuple[Shown, str]:
    """How the fact at a path is shown, and what stands for its star."""
    known, parts = facts().fact, path.split(".")
    for place in (*(n for n, part in enumerate(parts) if part.isdigit()), len(parts) - 1):
        pattern = ".".join((*parts[:place], "*", *parts[place + 1 :]))
        whole = pattern.removesuffix(".*")
        if shown := known.get(path) or known.get(pattern) or known.get(whole):
            return shown, parts[place]
    words = re.sub(r"[._]+", " ", path.replace("{", "").replace("}", ""))
    return Shown(label=words, kind="bytes" if path.endswith("_bytes") else "text"), ""


def _harmless(text: str) -> str:
    """Inert, but for the spaces that hold a number and its unit together."""
    return NBSP.join(map(inert, text.split(NBSP)))


def _shortened(text: str) -> str:
    """At most LONGEST_VALUE characters: the end goes last, and never within a word."""
    if len(text) > LONGEST_VALUE:
        text = _BEFORE.sub("", text)
    paths = {found[0]: _INNER.sub(r"\1/…\2", found[0]) for found in _INNER.finditer(text)}
    if len(text) > LONGEST_VALUE and len({*paths.values()}) < len(paths) <= MOST_ITEMS:
        return text  # The folders in the middle are what tells them apart.
    if len(text) > LONGEST_VALUE:
        text = _INNER.sub(r"\1/…\2", text)
    if len(text) <= LONGEST_VALUE:
        return text
    decisive = _DECISIVE.search(text)
    last = f"{NBSP}… {decisive[0]}" if decisive and decisive.end() > LONGEST_VALUE - 2 else ""
    room = LONGEST_VALUE - 2 - len(last)
    ends = (max(text.rfind(mark, 0, room + 1) for mark in marks) for marks in (" ", ",;:/"))
    end = next((end for end in ends if end > room // 2), room)
    return text[:end].rstrip(" ,;:(") + (last or f"{NBSP}…")


def _is_single(value: str) -> bool:
    """Whether a list or table holds one item."""
    return (
        len(_items(value)) == 1
        if value.startswith("[{")
        else not (", " in value or value in _PLAIN)
    )


def _items(value: str) -> list[Json]:
    """The items of a table in evidence, [] if it is none."""
    try:
        plain = msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return []
    items = plain if isinstance(plain, list) else [plain]
    return items if all(isinstance(item, dict) for item in items) else []


def _any(item: Json) -> Iterator[str]:
    """The parts of an item that no row describes: each of its simple fields."""
    for name, value in item.items():
        if not isinstance(value, (dict, list)) and re.fullmatch(r"\w+", name):
            yield f", {name.replace('_', ' ')} {{{name}}}"


def _word(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _coded(kind: str, value: str) -> str:
    """A number with NVIDIA's own words for it."""
    meaning = facts().code[kind].get(value)
    return f"{value}{NBSP}({meaning})" if meaning else value


_FOLLOWS = {*pairwise((1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12)), (10, 12)}
"""Major numbers of compute capabilities, each with its next; 11 is that of Jetsons only."""


def arch_list(archs: Iterable[str], about: str = "") -> str:
    """Architectures with long runs shortened: sm_50 … sm_90.

    A run holds every card between its ends: it goes on with the first chip of the next generation.
    about: where this names another one from between the ends, all are shown.
    """
    every = list(archs)
    codes = [int(code) for code in re.findall(r"\bsm_(\d+)", " ".join(every))]
    named = {int(code) for code in re.findall(r"\bsm_(\d+)", about)} - {*codes}
    whole = any(min(codes, default=0) < code < max(codes, default=0) for code in named)
    runs: list[list[str]] = []
    last = 0
    for arch in every:
        found = re.fullmatch(r"sm_(\d+)(\d)[af]?", arch)
        major, minor = (int(found[1]), found[2]) if found and not whole else (0, "")
        follows = minor == "0" and (last, major) in _FOLLOWS
        if major and (major == last or follows):
            runs[-1].append(arch)
        else:
            runs.append([f"{arch} (PTX)" if arch.startswith("compute_") else arch])
        last = major
    return ", ".join(
        f"{run[0]}{NBSP}…{NBSP}{run[-1]}" if len(run) > 2 else ", ".join(run) for run in runs
    )


# --- GPUs and sizes, for the machine's lines too ---------------------------------------------


def gib(count: int, digits: int = 1) -> str:
    """A number of bytes in the unit that suits it."""
    for unit, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size * 0.999:
            number = f"{count / size:.{digits}f}"
            return f"{number.removesuffix('.0')}{NBSP}{unit}"
    return f"{count}{NBSP}{'byte' if count == 1 else 'bytes'}"


def model_name(gpu: Gpu) -> str:
    """A GPU as people call it: RTX 4090, H100 80GB."""
    return re.sub(r"(?i)^(?:NVIDIA )?(?:GeForce |Tesla )?|(?<=GB) HBM\w*$", "", gpu.name or "")


def gpu_name(gpu: Gpu) -> str:
    """The same with its memory, unless the name holds that: RTX 4090, 24 GiB."""
    name = model_name(gpu)
    in_name = re.search(r"\d ?Gi?B\b", name)
    memory = gib(gpu.memory_bytes, 0) if gpu.memory_bytes and not in_name else ""
    return ", ".join(filter(None, (name, memory)))


_CLOSED = (4, 17, 999)
"""NVML's codes for a GPU that rules of a job may keep closed: it need not be broken."""


def errors_of(gpu: Gpu, say: Language) -> list[str]:
    """What NVML says is wrong with a GPU, the gravest first: it does not respond, memory errors."""
    count, closed = gpu.ecc_uncorrected or 0, gpu.code in _CLOSED
    single = say("1 uncorrected ECC error")
    errors = single if count == 1 else say("{count} uncorrected ECC errors", count=count)
    return [
        text
        for text, so in (
            (say("is not accessible"), closed),
            (say("does not respond"), not closed and (gpu.code or gpu.failed)),
            (errors.replace(" ", NBSP, 1), count),
            (say("row remapping failed"), gpu.remap_failed),
            (say("row remapping pending"), gpu.remap_pending),
            (say("page retirement pending"), gpu.retired_pending),
        )
        if so
    ]


def _modes(gpu: Gpu, say: Language) -> list[str]:
    """The modes of a GPU that are not the usual ones."""
    mode = {"exclusive": say("exclusive mode"), "prohibited": say("compute mode: prohibited")}
    words = [mode[gpu.compute_mode]] if gpu.compute_mode in mode else []
    if gpu.mig:
        devices = ", ".join(gpu.mig_devices or ())
        words.append(say("MIG: {devices}", devices=devices) if devices else say("MIG on"))
    return words


def gpu_list(gpus: Iterable[Gpu], say: Language, *, details: bool = False) -> str:
    """GPUs, those that are alike together: 7 × H100 80GB; GPU 3 does not respond.

    details: the compute capability and the modes of each too.
    """
    alike: dict[tuple[str, str], list[Gpu]] = {}
    silent: dict[str, list[int]] = {}
    every = tuple(gpus)
    for gpu in every:
        errors = errors_of(gpu, say)
        if (gpu.code or gpu.failed) and len(every) > 1:
            silent.setdefault(errors[0], []).append(gpu.index)
            continue
        code = f"sm_{gpu.capability}".replace(".", "") if details and gpu.capability else ""
        name = ", ".join(filter(None, (gpu_name(gpu) or say("GPU"), code)))
        remarks = errors + (_modes(gpu, say) if details else [])
        alike.setdefault((name, ", ".join(remarks)), []).append(gpu)
    texts = []
    for (name, said), same in alike.items():
        lead = f"GPU{NBSP}{same[0].index}: " if said and len(every) > 1 else ""
        lead = f"{len(same)}{NBSP}×{NBSP}" if len(same) > 1 else lead
        texts.append(lead + ", ".join(filter(None, (name, said))))
    for error, indexes in silent.items():
        named = f"GPU{NBSP}{', '.join(map(str, indexes))}"
        texts.append(f"{named}: {error}" if indexes[1:] else f"{named} {error}")
    return "; ".join(texts)


def _gpus(items: list[Json]) -> tuple[Gpu, ...]:
    """GPUs out of evidence, () if they are none."""
    try:
        return from_plain({"gpus": items}).gpus or ()
    except FactsError:
        return ()
