"""What this doctor printed on another machine, as people paste it: terminal or Markdown.

Its facts are read again, and the cause that it named is told to the rules as a symptom.
"""

import re

from cudadoctor.model.machine import Gpu, OptStr
from cudadoctor.reports import values
from cudadoctor.reports.document import Document, Line
from cudadoctor.reports.statements import Facts, Statements, stated

SOURCE = "cudadoctor"
_COUNTS = re.compile(r" {0,4}\d{1,3} (?:(?:error|warning)s?(?: ·|,) \S|causes ruled out\b)")
"""What ends a page on a terminal; up to 0.1 the verdict did."""
_END = re.compile(
    r"(?:healthy|warnings|broken) {2,6}\S|undecided the |"
    rf"cudadoctor \d{{1,3}}\.\d.{{0,40}}, knowledge of \d|{_COUNTS.pattern}"
)
_GATE: tuple[str, ...] = (
    "healthy  ",
    "warnings  ",
    "broken  ",
    "undecided the ",
    ", knowledge of ",
)
_GATE += (" causes ruled out", "cudadoctor explain ")
_ANSWER = re.compile(r"(?:[✓✗!?·]|(?:ok|error|warning|undecided|info):) \S")
"""How each finding begins on a terminal, the answer first."""
_UNSURE = {"Probably": "Likely", "Possibly": "Possible", "Not enough": "Possible"}
"""The words of an answer -> how sure its cause is."""
_START = re.compile(
    r"(?:examined|report) {2,4}\S|\*\*\S|(?:(?:Likely |Possible )?Root cause|Warning): \S"
)
_EVIDENCE = re.compile(r" {2}(?:seen|Evidence)  |\| ")
_CAUSE = r"(?P<cause>[a-z0-9]{2,20}(?:-[a-z0-9]{1,20}){0,5})"
_NAMED = (
    re.compile(rf"(?:broken|warnings) {{2,6}}cure {_CAUSE}\b"),
    re.compile(
        rf"\W{{0,4}}(?P<sure>Likely |Possible )?(?:[Rr]oot cause|Warning): .{{1,600}} "
        rf"\('?{_CAUSE}'?\)"
    ),
    re.compile(
        rf"\*\*(?!The report shows)(?P<sure>{'|'.join(_UNSURE)})?.{{1,600}}\*\* \('?{_CAUSE}'?\)"
    ),
)
_MORE_ON = re.compile(rf" {{2}}More +cudadoctor explain {_CAUSE}$")
_POSSIBLE = re.compile(rf"(?:error|warning) .{{1,200}} {{2,80}}{_CAUSE}, (?P<sure>possible)$")
"""The heading of a finding; it counts where the verdict behind it is undecided."""
_TAIL = re.compile(r" {10}\S|run {3,8}\S")
_MOST, _LONGEST = 20, 600
"""Reports of one text, and lines of one report."""
_AFTER = 4
"""Lines behind the verdict that may belong to it."""
_ROW = re.compile(
    r"^(?:- )?(examined|system|driver|gpu|torch|python)(?::| {1,8}) {0,2}(\S.{0,400})$"
)
_MORE = re.compile(r"^ {10}(\S.{0,400})$")
_ESCAPED = re.compile(r"\\([^A-Za-z0-9\s])")
_GPU = re.compile(r"(?:(\d{1,3}) [x×] )?([^,;]{2,80}?)(?:, (\d{1,4}) GiB)?(?:, sm_(\d{2,3}))?$")
LABELS = {
    "loaded kernel module": "driver.kernel",
    "driver library": "driver.library",
    "driver supports CUDA up to": "driver.cuda",
    "torch CUDA version": "torch.cuda",
}
"""Labels of evidence whose value is the plain fact."""
_SEEN = re.compile(
    r"^(?: {2}(?:seen|Evidence)| {6}| {12}|\|) {0,4}"
    rf"'?(driver\.(?:kernel|library|cuda)|torch\.cuda|{'|'.join(LABELS)})'?[ |]{{2,40}}"
    r"'?(\d{1,3}(?:\.\d{1,3}){1,2})\b"
)
_MARKED = re.compile(r" {2}(?:[✓✗!–]|ok|error|warning|-) \S")
_MARK = re.compile(
    r"(?:^ {2}| {3})(?:[✓✗!–]|ok|error|warning|-) "
    r"(?:(driver|GPU|torch) ((?:(?! {3}).){1,300})|(no driver|no NVIDIA GPU)\b)"
)
"""A part of the machine with its sign; parts stand three spaces apart."""
_ABSENT = {"no driver": ("driver", "none is installed"), "no NVIDIA GPU": ("gpu", "no NVIDIA GPU")}


def read_doctor(doc: Document) -> Statements:
    """The rows about the machine, and the plain facts among the evidence."""
    if not _verdicts(doc):
        return
    for label, text, number in _rows(doc):
        yield from stated(number, SOURCE, _READ[label](text) or {})
    for number, found in doc.rows(_SEEN):
        yield from stated(number, SOURCE, {LABELS.get(found[1], found[1]): found[2]})


def _verdicts(doc: Document) -> list[int]:
    """The places of the lines that end what it printed."""
    if not any(words in doc.text for words in _GATE):
        return []
    return [place for place, line in enumerate(doc.lines) if _END.match(line.text)]


def without_own_words(doc: Document) -> Document:
    """The document without the sentences of this doctor, which speak of errors as errors do.

    Evidence stays, since it quotes other programs, and so does the verdict.
    """
    ends = _verdicts(doc)
    if not ends:
        return doc
    lines = list(doc.lines)
    for end, before in zip(ends[:_MOST], (-1, *ends), strict=False):
        start, sure = _answer(doc, end, before)
        named = (_POSSIBLE,) if lines[end].text.startswith("undecided") else _NAMED
        named = named if sure is None else (_MORE_ON,)
        seen = False
        for place in range(start, min(end + _AFTER, len(lines))):
            text = lines[place].text
            seen = _EVIDENCE.match(text) is not None or (seen and text.startswith(" " * 8))
            after = place > end and not _TAIL.match(text)
            if not (seen or after):
                lines[place] = Line(lines[place].number, _named(text, named, sure))
    return Document(tuple(lines), doc.day)


def _answer(doc: Document, end: int, before: int) -> tuple[int, OptStr]:
    """Where the page begins that ends there, and how sure its answer is; None if that says not.

    before: where the page above ends.
    """
    texts = [line.text for line in doc.lines]
    above = range(end, max(before, end - _LONGEST), -1)
    if _COUNTS.match(texts[end]):
        answers = [place for place in above if _ANSWER.match(texts[place])]
        if answers:
            first = texts[answers[-1]].partition(" ")[2]
            sure = next((sure for words, sure in _UNSURE.items() if words in first), "")
            return answers[-1], sure
    return next((place for place in above if _START.match(texts[place])), end), None


def _named(text: str, patterns: tuple[re.Pattern[str], ...], sure: OptStr) -> str:
    """The verdict in the words of the table of symptoms, "" for any other sentence."""
    found = next((found for pattern in patterns if (found := pattern.match(text))), None)
    if found is None:
        return ""
    sure = sure or (found.groupdict().get("sure") or "").strip()
    sure = _UNSURE.get(sure, sure)
    words = f"{sure} root cause" if sure else "root cause"
    return f"cudadoctor: {words} {found['cause']}"


def _rows(doc: Document) -> list[tuple[str, str, int]]:
    """Label and text of each row, with the lines into which a narrow terminal broke it."""
    rows: list[tuple[str, str, int]] = []
    goes_on = False
    for line in doc.lines:
        plain = _ESCAPED.sub(r"\1", line.text)
        if goes_on and (more := _MORE.match(plain)):
            label, text, number = rows[-1]
            rows[-1] = label, f"{text} {more[1]}", number
            continue
        if _MARKED.match(plain):
            marks = ((found[3], found[1], found[2]) for found in _MARK.finditer(plain))
            for absent, label, value in marks:
                rows.append((*_ABSENT.get(absent, (str(label).lower(), value)), line.number))
        found = _ROW.match(plain)
        goes_on = found is not None
        if found:
            rows.append((found[1], found[2], line.number))
    return rows


def _system(text: str) -> Facts:
    words = text.partition(",")[0].split()
    name = " ".join(word for word in words if word not in values.MACHINES)
    facts = values.os_facts(name) or {"platform.system": name}
    machines = [values.MACHINES[word] for word in words if word in values.MACHINES]
    facts |= {"platform.machine": machines[0]} if machines else {}
    return facts | values.found_in(
        text,
        r"\bWSL (?P<wsl>[12])\b",
        r"\bin (?P<container>docker|podman|kubernetes|containerd|apptainer)\b",
        r"(?P<jetson>, Jetson)",
    )


def _gpus(text: str) -> Facts:
    if text.startswith("no NVIDIA GPU"):
        return {"gpus": ()}
    gpus: list[Gpu] = []
    for part in text.split("; ")[:64]:
        found = _GPU.match(part)
        if found is None or not values.is_nvidia(found[2]):
            return {}
        count, name, memory, code = found.groups()
        size = int(memory) << 30 if memory else None
        capability = values.dotted(code) if code else None
        places = range(len(gpus), len(gpus) + min(int(count or 1), 64))
        gpus += [Gpu(index=n, name=name, memory_bytes=size, capability=capability) for n in places]
    return {"gpus": tuple(gpus)}


def _torch(text: str) -> Facts:
    if text.startswith("not installed"):
        return {"torch.installed": False}
    facts = values.torch_facts(text.partition(",")[0])
    return facts and facts | values.found_in(
        text,
        r"(?P<cpu_build>, a CPU build|\(CPU build\))",
        r"(?:, built with |\()CUDA (?P<torch_cuda>\d\d\.\d)\b",
        r" for (?P<archs>(?:(?:sm|compute)_\d{2,3}[af]? ?){1,40})",
    )


_READ: dict[str, values.TextReader] = {
    **values.matchers("doctor"),
    "system": _system,
    "gpu": _gpus,
    "torch": _torch,
    "python": values.python_facts,
}
