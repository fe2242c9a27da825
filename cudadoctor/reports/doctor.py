"""What this doctor printed on another machine, as people paste it: terminal or Markdown.

Its facts are read again, and the rules get the cause that it named as a symptom.
"""

import re

from cudadoctor.model.machine import Gpu
from cudadoctor.reports import values
from cudadoctor.reports.document import Document, Line
from cudadoctor.reports.statements import Facts, Statements, stated

SOURCE = "cudadoctor"
_CAUSE = r"(?P<cause>[a-z0-9]{2,20}(?:-[a-z0-9]{1,20}){0,5})"
_GATE = (
    "cudadoctor explain ",
    ", knowledge of ",
    ", knowledge base of ",
    ", conocimientos del ",
    " causes ruled out",
)
_ANSWER = re.compile(
    r"(?:[✓✗!?] |(?:ok|error|warning|undecided): )\S"
    rf"|\W{{0,4}}\w.{{1,600}} \('?{_CAUSE}'?\)(?:\. .{{0,200}})?$"
)
"""The first line of a page; in Markdown it ends with the cause."""
_FINE = re.compile(r"(?:✓|ok:) \S|\W{0,4}(?:PyTorch (?:uses|works) |No (?:problems|environment) )")
_MORE = re.compile(rf"(?: {{2}}\S{{2,8}} {{2,10}}| {{6}})cudadoctor explain {_CAUSE}$")
"""The last line of what a page says of its first cause."""
_END = re.compile(
    r" {2}(?:\d{1,3} (?:errors?|warnings?|errore?s|avisos?)(?: ·|,) |.{0,80}\d{1,3} caus[ea]s )"
    r"|(?:<sub>)?cudadoctor \d{1,3}\.\d.{0,40}, (?:knowledge(?: base)? of|conocimientos del) \d"
)
_SURENESS = (("Probably: ", "likely "), ("Possibly: ", "possible "), ("Most likely: ", "possible "))
_EVIDENCE = re.compile(r" {2}(?:Evidence|Pruebas) {2}|\| ")
_LABELLED = re.compile(r" {0,6}\S")
_MOST, _LONGEST = 20, 600
"""Pages of one text, and lines of one page."""
_ROW = re.compile(r"^(?:- | {2})?(system|driver|gpu|torch|python)(?:: | {2,8})(\S.{0,400})$")
_ON = re.compile(r"^ {12}(\S.{0,400})$")
_ESCAPED = re.compile(r"\\([^A-Za-z0-9\s])")
_GPU = re.compile(r"(?:(\d{1,3}) [x×] )?([^,;]{2,80}?)(?:, (\d{1,4}) GiB)?(?:, sm_(\d{2,3}))?$")
_MARKS = re.compile(
    r"(?:^ {2}| {3})(?:[✓✗!–-]|ok|error|warning) "
    r"(?:driver (?P<driver>\d.{0,40}?)|GPU (?P<gpu>\S.{0,400}?)|torch (?P<torch>\d.{0,60}?)"
    r"|(?P<none>no NVIDIA GPU|no driver|torch not installed))(?= {3}|$)"
)
_UNKNOWN = ("unknown", "not known", "desconocida")
_ABSENT = {
    "no NVIDIA GPU": ("gpus", ()),
    "no driver": ("driver.installed", False),
    "torch not installed": ("torch.installed", False),
}
LABELS = {
    "loaded kernel module": "driver.kernel",
    "driver library": "driver.library",
    "driver supports CUDA up to": "driver.cuda",
    "torch CUDA version": "torch.cuda",
}
"""Labels of evidence whose value is the plain fact."""
_SEEN = re.compile(
    rf"^(?: {{2}}Evidence| {{10}}|\|) {{1,2}}({'|'.join(LABELS)})[ |]{{2,40}}"
    r"'?(\d{1,3}(?:\.\d{1,3}){1,2})\b"
)
_BRANDS = {
    "GeForce": re.compile(r"[RG]TX? \d{3,4}(?: (?:Ti|SUPER|D|Laptop GPU|with Max-Q Design))*"),
    "Tesla": re.compile(r"[VPTKM]\d{1,3}\b.*"),
}
"""Brand -> the names of GPUs that the page shows without it."""
_PYTHON = re.compile(r" ([^\s()]{0,300}python[^\s()]{0,40} \(\d\.\d{1,2}\.\d{1,2})\b")


def read_doctor(doc: Document) -> Statements:
    """What the line of signs, the rows about the machine and plain evidence say."""
    for start, end, _ in _pages(doc):
        lines = doc.lines[start : end + _LONGEST]
        for label, text, number in _rows(lines):
            yield from stated(number, SOURCE, _READ[label](text) or {})
        for line in doc.lines[start : end + 1]:
            for found in _MARKS.finditer(line.text):
                yield from stated(line.number, SOURCE, _of_mark(found))
            if seen := _SEEN.match(line.text):
                yield from stated(line.number, SOURCE, {LABELS[seen[1]]: seen[2]})
        for line in doc.lines[end : end + 2]:
            if python := _PYTHON.search(line.text):
                yield from stated(line.number, SOURCE, _READ["python"](python[1]) or {})


def _of_mark(found: re.Match[str]) -> Facts:
    if found["none"]:
        return dict([_ABSENT[found["none"]]])
    label = next(name for name in ("driver", "gpu", "torch") if found[name])
    return _READ[label](found[label]) or {}


def _pages(doc: Document) -> list[tuple[int, int, str]]:
    """First and last line of each page that this doctor printed, and the cause that it named."""
    if not any(words in doc.text for words in _GATE):
        return []
    pages: list[tuple[int, int, str]] = []
    texts = [line.text for line in doc.lines]
    for end in [place for place, text in enumerate(texts) if _END.match(text)][:_MOST]:
        least = max(pages[-1][1] + 1 if pages else 0, end - _LONGEST)
        more = next((n for n in range(least, end) if _MORE.match(texts[n])), None)
        below = end if more is None else more
        kinds = (_ANSWER, _FINE) if more is None else (_ANSWER,)
        starts = (n for kind in kinds for n in range(below, least - 1, -1) if kind.match(texts[n]))
        start = next(starts, None)
        if start is None:
            continue
        answer = _ANSWER.match(texts[start])
        named = _MORE.match(texts[more]) if more is not None else answer
        pages.append((start, end, (named and named["cause"]) or ""))
    return pages


def without_own_words(doc: Document) -> Document:
    """The document without the sentences of this doctor, which speak of errors as errors do.

    Evidence stays, since it quotes other programs, and so does the cause, in the words of the table
    of symptoms.
    """
    pages = _pages(doc)
    if not pages:
        return doc
    lines = list(doc.lines)
    for start, end, cause in pages:
        answer = lines[start].text
        sure = next((sure for words, sure in _SURENESS if words in answer), "")
        seen = False
        for place in range(start, end + 1):
            text = lines[place].text
            seen = _EVIDENCE.match(text) is not None or (seen and not _LABELLED.match(text))
            if not seen:
                lines[place] = Line(lines[place].number, "")
        if cause:
            lines[start] = Line(lines[start].number, f"cudadoctor: {sure}root cause {cause}")
    return Document(tuple(lines), doc.day)


def _rows(lines: tuple[Line, ...]) -> list[tuple[str, str, int]]:
    """Label and text of each row, with the lines into which a narrow terminal broke it."""
    rows: list[tuple[str, str, int]] = []
    goes_on = False
    for line in lines:
        plain = _ESCAPED.sub(r"\1", line.text)
        if goes_on and (more := _ON.match(plain)):
            label, text, number = rows[-1]
            rows[-1] = label, f"{text} {more[1]}", number
            continue
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
    if text in _UNKNOWN:
        return {}
    gpus: list[Gpu] = []
    for part in text.split("; ")[:64]:
        found = _GPU.match(part)
        if found is None:
            return {}
        count, name, memory, code = found.groups()
        brand = next((brand for brand, short in _BRANDS.items() if short.fullmatch(name)), "")
        name = f"NVIDIA {brand} {name}" if brand else name
        size = int(memory) << 30 if memory else None
        capability = values.dotted(code) if code else None
        places = range(len(gpus), len(gpus) + min(int(count or 1), 64))
        gpus += [Gpu(index=n, name=name, memory_bytes=size, capability=capability) for n in places]
    return {"gpus": tuple(gpus)}


def _torch(text: str) -> Facts:
    if text.startswith("not installed"):
        return {"torch.installed": False}
    facts = values.torch_facts(re.split(r",| \(", text)[0])
    return facts and facts | values.found_in(
        text,
        r"(?P<cpu_build>, a CPU build| \(CPU build)",
        r"(?:, built with | \()CUDA (?P<torch_cuda>\d\d\.\d)\b",
        r" for (?P<archs>(?:(?:sm|compute)_\d{2,3}[af]? ?){1,40})",
    )


_READ: dict[str, values.TextReader] = {
    **values.matchers("doctor"),
    "system": _system,
    "gpu": _gpus,
    "torch": _torch,
}
