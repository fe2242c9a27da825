"""The report as one web page that needs nothing else: no network, no font, no file beside it.

The tree is built of elements, so whatever stands in a value is text: nothing of it is markup.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple
from xml.etree import ElementTree as ET

from cudadoctor.locale.language import Language
from cudadoctor.model.catalogue import CATALOGUE, area_of
from cudadoctor.model.findings import Finding, Severity, Step
from cudadoctor.model.machine import Gpu, GpuPair, Machine, OptStr
from cudadoctor.render import Checked, Report, inert, summary
from cudadoctor.render.evidence import (
    NBSP,
    EvidenceRow,
    errors_of,
    evidence_rows,
    gib,
    gpu_list,
    model_name,
)
from cudadoctor.render.page_style import SCRIPT, STYLE
from cudadoctor.render.shells import (
    command_lines,
    edits_by_hand,
    edits_lead,
    is_for_cell,
    step_lines,
)

MOST_PAIRED = 16
"""GPUs whose links fit a table."""
_SIGNS = {"ok": "✓", "error": "✗", "warning": "!", "undecided": "?", "unknown": "–", "info": "i"}
_CODE = re.compile(r"`([^`]+)`")
Node = ET.Element | str


def page(checks: Sequence[Checked], say: Language, lang: str = "en") -> str:
    """The whole page: the report, or one after the other behind a list of their answers."""
    answers = [_answer(checked, say) for checked in checks]
    many = len(checks) != 1
    title = say("{count} reports", count=len(checks)) if many else answers[0].text
    main = _e("main")
    if many:
        main.append(_e("h1", title))
        main.append(_overview(checks, answers, say))
    for number, (checked, answer) in enumerate(zip(checks, answers, strict=True), 1):
        article = _e("article", id=f"report-{number}")
        main.append(article)
        if many:
            article.append(_e("p", checked.name or "", class_="source"))
        article.append(_heading("h2" if many else "h1", answer, say))
        if checked.shown is not None:
            article.extend(_Article(checked.shown, say, 3 if many else 2).parts())
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src '{_hash(SCRIPT)}'"
    head = _e(
        "head",
        _e("meta", charset="utf-8"),
        _e("meta", name="viewport", content="width=device-width, initial-scale=1"),
        _e("meta", name="color-scheme", content="light dark"),
        _e("meta", name="referrer", content="no-referrer"),
        _e("meta", http_equiv="Content-Security-Policy", content=policy),
        _e("title", f"cudadoctor: {title}"),
        _e("style", STYLE),
    )
    body = _e("body", main, _e("script", SCRIPT))
    root = _e("html", head, body, lang=lang)
    return "<!DOCTYPE html>\n" + ET.tostring(root, encoding="unicode", method="html") + "\n"


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _e(tag: str, *children: Node, **attributes: str) -> ET.Element:
    """An element. A name of Python's has a _ behind it, and - is written _."""
    names = {name: name.rstrip("_").replace("_", "-") for name in attributes}
    element = ET.Element(tag, {names[name]: value for name, value in attributes.items()})
    for child in children:
        if not isinstance(child, str):
            element.append(child)
            continue
        text = child if tag in ("style", "script") else _plain(child)
        last = element[-1] if len(element) else None
        if last is None:
            element.text = (element.text or "") + text
        else:
            last.tail = (last.tail or "") + text
    return element


def _plain(text: str) -> str:
    return "\n".join(map(inert, text.replace(NBSP, " ").split("\n")))


def _prose(text: str) -> list[Node]:
    """A text in which what stands between backticks is code."""
    parts = _CODE.split(text)
    return [_e("code", part) if place % 2 else part for place, part in enumerate(parts)]


def _answer(checked: Checked, say: Language) -> summary.Headline:
    if checked.shown is None:
        return summary.Headline("undecided", checked.error or "")
    return summary.headline(checked.shown, say)


def _sign(sign: str, say: Language) -> ET.Element:
    """The sign, which is also read out."""
    word = say("unknown" if sign == "unknown" else sign)
    return _e("span", _SIGNS[sign], class_=f"sign {sign}", role="img", aria_label=word)


def _heading(tag: str, answer: summary.Headline, say: Language) -> ET.Element:
    return _e(tag, _sign(answer.sign, say), " ", answer.text, class_="answer")


def _overview(
    checks: Sequence[Checked], answers: Sequence[summary.Headline], say: Language
) -> ET.Element:
    listed = _e("ol", class_="overview")
    for number, (checked, answer) in enumerate(zip(checks, answers, strict=True), 1):
        link = _e("a", checked.name or "", href=f"#report-{number}")
        listed.append(_e("li", _sign(answer.sign, say), " ", link, ": ", answer.text))
    return listed


class _Article:
    """One report. level: of its headings below the answer."""

    def __init__(self, shown: Report, say: Language, level: int) -> None:
        self.shown, self.say, self.level = shown, say, level
        self.first = summary.first_finding(shown)

    def parts(self) -> Iterator[ET.Element]:
        yield from self._deciding()
        if self.first is not None:
            yield from self._body(self.first)
        yield from self._stack()
        yield from self._others()
        yield from self._gpus()
        yield from self._links()
        yield from self._training()
        yield from self._details()

    def title(self, text: str, more: int = 0) -> ET.Element:
        return _e(f"h{self.level + more}", text)

    def _deciding(self) -> Iterator[ET.Element]:
        shown, say = self.shown, self.say
        if told := summary.candidates(shown, say):
            yield _e("p", told)
        if asked := shown.diagnosis.next_commands:
            yield _e("p", summary.to_find_out(shown, say))
            yield self._code(command_lines(asked, shown.machine))

    # --- a finding ------------------------------------------------------------------------------

    def _body(self, finding: Finding) -> Iterator[ET.Element]:
        """What to type, why, what shows it; then what else would do."""
        say, shown = self.say, self.shown
        steps = list(summary.steps_for(finding, shown.plan))
        for step in (step for word, step in steps if word == "do"):
            yield from self._step(step, "")
        if finding.why:
            yield _e("p", *_prose(finding.why))
        build = shown.plan.build
        if finding is self.first and build and any(step.packages for _, step in steps):
            yield _e("p", *_prose(" ".join(map(say.spoken, build.why[:2]))))
        if finding is self.first and (missing := summary.without_build(shown, say)):
            yield _e("p", *_prose(missing))
        if rows := evidence_rows(finding, say):
            yield self._evidence(rows)
        others = [step for word, step in steps if word == "or"]
        if others:
            more = _e("details", _e("summary", say("Other ways to fix it")))
            for step in others:
                more.extend(self._step(step, say("Or")))
            yield more
        more_command = f"cudadoctor explain {finding.cause}"
        yield _e("p", *_prose(say("To read more, run: {command}", command=f"`{more_command}`")))

    def _step(self, step: Step, word: str) -> Iterator[ET.Element]:
        say, machine = self.say, self.shown.machine
        lines, leads = step_lines(step, machine), edits_lead(step)
        title = say.spoken(step.title)
        if word:
            lead = f"{word}: {title} ({say(summary.cost_of(step))})"
        elif lines and not leads:
            lead = summary.lead_of(step, say, cell=is_for_cell(step, machine))
        else:
            lead = title
        colon = ":" if lines or edits_by_hand(step) else "."
        yield _e("p", *_prose(lead + colon), class_="lead")
        manual, before = summary.manual_of(step), summary.precedes(step)
        if leads:
            yield from self._edits(step)
        if manual and before:
            yield _e("p", *_prose(say.spoken(manual)))
        if lines:
            yield self._code(lines)
        if manual and not before:
            yield _e("p", *_prose(say.spoken(manual)))
        if not leads:
            yield from self._edits(step)
        for remark in filter(None, (step.note, step.resolution)):
            yield _e("p", *_prose(say.spoken(remark)), class_="note")

    def _edits(self, step: Step) -> Iterator[ET.Element]:
        for edit in edits_by_hand(step):
            yield _e("p", self.say("In {file}:", file=edit.file))
            yield self._code(edit.what.splitlines())

    def _code(self, lines: Iterable[str]) -> ET.Element:
        """Lines to copy; without a script, one click selects them."""
        button = _e("button", self.say("Copy"), type="button", hidden="hidden")
        button.set("data-done", self.say("Copied"))
        return _e("div", _e("pre", _e("code", "\n".join(lines))), button, class_="command")

    def _evidence(self, rows: list[EvidenceRow]) -> ET.Element:
        say = self.say
        heads = [_capital(say(name)) for name in ("fact", "value", "source")]
        body: list[list[Node]] = [[row.label, _e("code", row.value), row.source] for row in rows]
        return self._table(say("Evidence"), heads, body)

    def _table(
        self, name: str, heads: Sequence[str], rows: Iterable[Sequence[Node]], *, class_: str = ""
    ) -> ET.Element:
        """A table that scrolls in its own box; the first cell of a row is its head."""
        rows = [*rows]
        # A column in which nothing stands takes room that a phone does not have.
        used = [0, *(n for n in range(1, len(heads)) if any(row[n] != "" for row in rows))]
        heads = [heads[place] for place in used]
        rows = [[row[place] for place in used] for row in rows]
        head = _e("tr", *(_e("th", text, scope="col") if text else _e("td") for text in heads))
        body = [
            _e("tr", _e("th", row[0], scope="row"), *(_e("td", cell) for cell in row[1:]))
            for row in rows
        ]
        table = _e("table", _e("caption", name), _e("thead", head), _e("tbody", *body))
        box = _e("div", table, class_=f"table {class_}".strip(), role="group", tabindex="0")
        box.set("aria-label", name)
        return box

    # --- the stack ------------------------------------------------------------------------------

    def _stack(self) -> Iterator[ET.Element]:
        """Driver, runtime, cuDNN and torch on the GPU, with what does not fit marked."""
        shown, say = self.shown, self.say
        layers = _layers(shown, say)
        if not any(layer.known for layer in layers):
            return
        roots = [found for found in shown.diagnosis.roots if found.severity < Severity.INFO]
        marked: dict[str, Severity] = {}
        meeting = [keys for keys in map(_touched, roots) if len(keys) > 1]
        for finding in roots:
            for key in _touched(finding):
                marked[key] = min(finding.severity, marked.get(key, Severity.INFO))
        listed = _e("ol", class_="stack")
        for place, layer in enumerate(layers):
            sign = marked[layer.key].label if layer.key in marked else layer.sign
            item = _e(
                "li",
                _e("span", _sign(sign, say), " ", layer.name, class_="layer"),
                _e("span", layer.text, class_="version"),
                class_=sign,
            )
            below = layers[place - 1].key if place else ""
            if any({below, layer.key} <= keys for keys in meeting):
                item.set("class", f"{sign} broken")
                item.insert(0, _e("span", say("does not match"), class_="gap"))
            far = [
                other.name
                for number, other in enumerate(layers)
                if abs(number - place) > 1
                and any({layer.key, other.key} <= keys for keys in meeting)
            ]
            if far:
                text = say("does not match {layers}", layers=", ".join(far))
                item.append(_e("span", text, class_="against"))
            listed.append(item)
        yield self.title(say("The stack, from the GPU up"))
        yield listed
        names = {layer.key: layer.name for layer in layers}
        for finding in roots:
            keys = _touched(finding)
            if len(keys) > 1:
                between = " ↔ ".join(name for key, name in names.items() if key in keys)
                text = f"{between}: {summary.finding_sentence(finding, say)}"
                yield _e("p", _sign(finding.severity.label, say), " ", text, class_="mismatch")

    # --- everything else ------------------------------------------------------------------------

    def _others(self) -> Iterator[ET.Element]:
        shown, say = self.shown, self.say
        others = [
            finding
            for finding in summary.shown_findings(shown)
            if finding is not self.first and not finding.because_of
        ]
        if others:
            yield self.title(say("Other findings"))
        for finding in others:
            head = _e("summary", _sign(finding.severity.label, say), " ")
            head.append(_e("strong", summary.finding_sentence(finding, say)))
            more = _e("details", head, *self._body(finding))
            if finding.severity is Severity.ERROR:
                more.set("open", "open")
            yield more
        if behind := [finding for finding in shown.diagnosis.findings if finding.because_of]:
            titles = "; ".join(summary.inside(finding.title) for finding in behind)
            text = say("Also reported, probably caused by the above: {titles}.", titles=titles)
            yield _e("p", text)

    def _gpus(self) -> Iterator[ET.Element]:
        machine, say = self.shown.machine, self.say
        if not machine.gpus:
            return
        columns = _columns(machine.gpus, say)
        rows = [
            [f"GPU {gpu.index}", *(text[place] for text in columns.values())]
            for place, gpu in enumerate(machine.gpus)
        ]
        yield self.title(say("GPUs"))
        yield self._table(say("GPUs"), ["", *columns], rows)

    def _links(self) -> Iterator[ET.Element]:
        machine, say = self.shown.machine, self.say
        pairs = {frozenset((pair.first, pair.second)): pair for pair in machine.driver.pairs or ()}
        indexes = sorted({index for pair in pairs for index in pair})
        if not pairs or len(indexes) > MOST_PAIRED:
            return
        rows = [
            [f"GPU {row}"]
            + [
                "" if row == column else _link(pairs.get(frozenset((row, column))), say)
                for column in indexes
            ]
            for row in indexes
        ]
        heads = ["", *(f"GPU {index}" for index in indexes)]
        yield self.title(say("Links between GPUs"))
        yield self._table(say("Links between GPUs"), heads, rows, class_="links")

    def _training(self) -> Iterator[ET.Element]:
        machine, say = self.shown.machine, self.say
        smoke = machine.smoke
        if smoke is None or not smoke.stages:
            return
        where = say("the CPU") if smoke.device == "cpu" else smoke.device
        signs = {"passed": "ok", "failed": "error", "timed-out": "error", "skipped": "unknown"}
        rows: list[list[Node]] = []
        for stage in smoke.stages:
            figures = ", ".join(f"{name} {value}" for name, value in stage.figures.items())
            result = _e("span", _sign(signs[stage.status], say), " ", say(stage.status))
            took = "" if stage.seconds is None else f"{stage.seconds:.2f} s"
            detail = say.spoken(self.shown.shade(stage.detail)) if stage.detail else ""
            rows.append([stage.name, result, took, "; ".join(filter(None, (detail, figures)))])
        title = say("Training step on {device}", device=where)
        heads = [_capital(say(name)) for name in ("stage", "result", "time", "details")]
        yield self.title(title)
        yield self._table(title, heads, rows)
        if smoke.ended:
            yield _e("p", say("The training step ended early: {why}", why=say.spoken(smoke.ended)))

    def _details(self) -> Iterator[ET.Element]:
        shown, say = self.shown, self.say
        diagnosis = shown.diagnosis
        yield self.title(_capital(say("machine details")))
        facts = _e("dl")
        for label, text in summary.machine_rows(shown.machine, say):
            facts.extend((_e("dt", label), _e("dd", shown.shade(text))))
        cites = dict.fromkeys(key for finding in diagnosis.findings for key in finding.cites)
        for key in cites:
            if cited := shown.sources.get(key):
                facts.extend((_e("dt", say("Source")), _e("dd", cited)))
        yield facts
        reasons: dict[str, list[str]] = {}
        for undecided in diagnosis.undecided:
            reasons.setdefault(undecided.why, []).append(undecided.cause)
        if reasons:
            listed = [
                _e("li", f"{say.spoken(why)}: {', '.join(dict.fromkeys(causes))}")
                for why, causes in reasons.items()
            ]
            yield _e("details", _e("summary", _capital(say("not checked"))), _e("ul", *listed))
        if diagnosis.passed:
            passed = _e("p", ", ".join(diagnosis.passed))
            yield _e("details", _e("summary", say("Ruled out")), passed)
        if stale := summary.stale(shown, say):
            yield _e("p", stale, class_="note")
        made = f"cudadoctor {shown.version}, {say('knowledge base of')} {shown.knowledge}"
        parts = [*summary.counts(shown, say), made]
        yield _e("footer", " · ".join(parts))


# --- the layers -----------------------------------------------------------------------------------


class _Layer(NamedTuple):
    """A layer of the stack. known: whether anything is known of it."""

    key: str
    name: str
    text: str
    known: bool
    absent: bool = False

    @property
    def sign(self) -> str:
        return "ok" if self.known and not self.absent else "unknown"


def _layers(shown: Report, say: Language) -> list[_Layer]:
    machine = shown.machine
    torch, driver = machine.torch, machine.driver
    unknown = say("not known")
    built = say("built with CUDA {cuda}", cuda=torch.cuda) if torch.cuda else ""
    runtime = _library(machine, "libcudart") or built
    cudnn = (torch.imported and torch.imported.cudnn) or _library(machine, "libcudnn.")
    plain = torch.build == "cpu"
    none = say("none: torch is a CPU build")
    newest = say("supports CUDA up to {cuda}", cuda=driver.cuda) if driver.cuda else ""
    version = ", ".join(filter(None, (str(driver.version or ""), newest)))
    missing = say("not installed")
    return [
        _Layer(
            "gpu",
            say("GPU"),
            gpu_list(machine.gpus, say)
            if machine.gpus
            else say("no NVIDIA GPU")
            if machine.gpus == () and not machine.pci
            else unknown,
            known=machine.gpus is not None,
            absent=not machine.gpus,
        ),
        _Layer(
            "driver",
            say("NVIDIA driver"),
            version or (missing if driver.installed is False else unknown),
            known=driver.version is not None or driver.installed is False,
            absent=driver.version is None,
        ),
        _Layer(
            "runtime",
            say("CUDA runtime"),
            runtime or (none if plain else unknown),
            known=bool(runtime) or plain,
            absent=not runtime,
        ),
        _Layer(
            "cudnn",
            "cuDNN",
            cudnn or (none if plain else unknown),
            known=bool(cudnn) or plain,
            absent=not cudnn,
        ),
        _Layer(
            "torch",
            "torch",
            torch.named or (missing if torch.installed is False else unknown),
            known=bool(torch.named) or torch.installed is False,
            absent=not torch.named,
        ),
    ]


def _library(machine: Machine, soname: str) -> OptStr:
    """The version of a library: of the one in a process, else of the one that the loader takes."""
    libraries = machine.libraries
    for every in (libraries.mapped, libraries.predicted, libraries.copies):
        for library in every or ():
            if library.soname.startswith(soname) and library.version:
                return library.version
    return None


_OF_FACTS = {
    "gpus": "gpu",
    "pci": "gpu",
    "driver": "driver",
    "torch.cuda": "runtime",
    "torch": "torch",
}
_OF_AREAS = {"driver": "driver", "GPU": "gpu", "torch": "torch", "CUDA libraries": "runtime"}


def _touched(finding: Finding) -> set[str]:
    """The layers that a finding is about, by the facts that show it, else by its cause."""
    found = set()
    for seen in finding.evidence:
        path = seen.fact
        if path.startswith("libraries") and "cudnn" in f"{finding.cause} {seen.value}".lower():
            found.add("cudnn")
        elif path.startswith("libraries"):
            found.add("runtime")
        while path and path not in _OF_FACTS:
            path = path.rpartition(".")[0]
        found |= {_OF_FACTS[path]} if path else set()
    if not found and finding.cause in CATALOGUE:
        area = area_of(finding.cause)
        found |= {_OF_AREAS[area]} if area in _OF_AREAS else set()
    return found


# --- GPUs -----------------------------------------------------------------------------------------


def _columns(gpus: Sequence[Gpu], say: Language) -> dict[str, list[str]]:
    """Head -> what stands there for each GPU; without those of which nothing is known."""

    def memory(gpu: Gpu) -> str:
        if gpu.memory_bytes is None:
            return ""
        used = gpu.memory_used_bytes
        whole = gib(gpu.memory_bytes)
        return whole if used is None else say("{used} of {size}", used=gib(used), size=whole)

    def power(gpu: Gpu) -> str:
        if gpu.power_w is None:
            return ""
        limit = f" / {gpu.power_limit_w:.0f} W" if gpu.power_limit_w else ""
        return f"{gpu.power_w:.0f} W{limit}"

    def pcie(gpu: Gpu) -> str:
        if gpu.pcie_width is None:
            return ""
        now = f"{gpu.pcie_generation or '?'} × {gpu.pcie_width}"
        most = f"{gpu.pcie_generation_max or '?'} × {gpu.pcie_width_max or '?'}"
        return now if now == most else say("{used} of {size}", used=now, size=most)

    def clock(gpu: Gpu) -> str:
        most = f" / {gpu.sm_clock_max_mhz}" if gpu.sm_clock_max_mhz else ""
        return "" if gpu.sm_clock_mhz is None else f"{gpu.sm_clock_mhz}{most} MHz"

    columns = {
        say("name"): [model_name(gpu) for gpu in gpus],
        say("state"): [", ".join(errors_of(gpu, say)) for gpu in gpus],
        say("memory"): list(map(memory, gpus)),
        say("compute capability"): [str(gpu.capability or "") for gpu in gpus],
        say("temperature"): [
            "" if gpu.temperature_c is None else f"{gpu.temperature_c} °C" for gpu in gpus
        ],
        say("power"): list(map(power, gpus)),
        say("SM clock"): list(map(clock, gpus)),
        "PCIe": list(map(pcie, gpus)),
    }
    return {_capital(head): texts for head, texts in columns.items() if any(texts)}


def _link(pair: GpuPair | None, say: Language) -> str:
    if pair is None or pair.p2p is None:
        return say("not known")
    if pair.nvlink:
        return "NVLink"
    return "PCIe P2P" if pair.p2p == "ok" else say("no P2P")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
