"""GitHub Actions: workflow commands for its log, Markdown for the summary of a job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cudadoctor.locale.language import Language
from cudadoctor.model.findings import Finding, Severity
from cudadoctor.render import Checked, Report, inert, markdown, summary
from cudadoctor.render.shells import command_lines

MOST_BYTES = 1 << 20
"""What GitHub takes of a summary; a larger one is refused as a whole."""
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


def commands(checks: Sequence[Checked], say: Language) -> str:
    """An annotation for each finding, or one that says how it went."""
    return "".join(line for checked in checks for line in _annotations(checked, say))


def _annotations(checked: Checked, say: Language) -> Iterator[str]:
    about = f" ({checked.name})" if checked.name else ""
    shown = checked.shown
    if shown is None:
        yield _command("error", f"cudadoctor{about}", checked.error or "")
        return
    findings = [finding for finding in summary.shown_findings(shown) if not finding.because_of]
    if shown.diagnosis.verdict in ("healthy", "undecided"):
        level = "notice" if shown.diagnosis.verdict == "healthy" else "error"
        yield _command(level, f"cudadoctor{about}", "\n".join(_answer(shown, say)))
        findings = [finding for finding in findings if finding.severity is not Severity.ERROR]
    for finding in findings:
        text = summary.finding_text(finding, shown, say)
        yield _command(_level(finding), f"cudadoctor: {finding.cause}{about}", text)


def _answer(shown: Report, say: Language) -> Iterator[str]:
    yield summary.headline(shown, say).text
    if told := summary.candidates(shown, say):
        yield told
    if asked := shown.diagnosis.next_commands:
        yield summary.to_find_out(shown, say)
        yield from command_lines(asked, shown.machine)


def _level(finding: Finding) -> str:
    return _LEVELS[finding.severity]


def _command(level: str, title: str, text: str) -> str:
    """One line, whatever stands in the text: nothing of it begins a command of its own."""
    lines = "\n".join(map(inert, text.splitlines()))
    return f"::{level} title={_property(inert(title))}::{_data(lines)}\n"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def job_summary(checks: Sequence[Checked], say: Language) -> str:
    """The reports as Markdown, as many as the summary of a job takes."""
    pieces: list[str] = []
    used, left = 0, 0
    for checked in checks:
        heading = f"## {markdown.code(checked.name)}\n\n" if checked.name else ""
        body = (
            markdown.report(checked.shown, say)
            if checked.shown
            else f"{markdown.escaped(checked.error or '')}\n"
        )
        piece = f"{heading}{body}\n"
        size = len(piece.encode(errors="backslashreplace"))
        if used + size > MOST_BYTES // 2:
            left += 1
            continue
        used += size
        pieces.append(piece)
    text = "".join(pieces)
    more = say("Not shown here: {count} more reports.", count=left)
    return text + (f"{more}\n" if left else "")


def outputs(checks: Sequence[Checked]) -> str:
    """What later steps of the job read: the verdict and the root cause of this machine."""
    if len(checks) != 1 or (shown := checks[0].shown) is None:
        return ""
    diagnosis = shown.diagnosis
    return f"verdict={diagnosis.verdict}\nprimary={diagnosis.primary or ''}\n"
