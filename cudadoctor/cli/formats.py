"""The forms of `check` that show all documents together, and where they go."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from cudadoctor import pipeline
from cudadoctor.cli.looking import note
from cudadoctor.cli.options import Options
from cudadoctor.cli.output import replaced, written
from cudadoctor.cli.speech import code, current, say
from cudadoctor.render import Checked


def write(checks: Sequence[Checked], options: Options) -> None:
    """Write what was asked for: the result in its form, the page of --html."""
    shared = [_shareable(checked, options) for checked in checks]
    if options.html is not None:
        from cudadoctor.render import html

        replaced(html.page(_spoken(shared), current(), code()), options.html)
    if (form := _FORMS.get(options.form)) is not None:
        form(shared, options)


def _shareable(checked: Checked, options: Options) -> Checked:
    if checked.shown is None or options.full:
        return checked
    return replace(checked, shown=pipeline.shareable(checked.shown))


def _spoken(checks: Sequence[Checked]) -> list[Checked]:
    """With the diagnosis in the user's language."""
    language = current()
    return [
        checked
        if checked.shown is None
        else replace(
            checked,
            shown=replace(checked.shown, diagnosis=language.diagnosis(checked.shown.diagnosis)),
        )
        for checked in checks
    ]


def _sarif(checks: Sequence[Checked], options: Options) -> None:
    from cudadoctor.render import sarif

    written(sarif.report(checks), options.output)


def _junit(checks: Sequence[Checked], options: Options) -> None:
    from cudadoctor.render import junit

    written(junit.report(checks, strict=options.strict), options.output)


def _prometheus(checks: Sequence[Checked], options: Options) -> None:
    from cudadoctor.render import prometheus

    text = prometheus.report(checks, time.time())
    if options.output is None:
        written(text, None)
    else:
        replaced(text, options.output)


def _github(checks: Sequence[Checked], options: Options) -> None:
    """Annotations go where GitHub reads the log, the rest into the files that it names."""
    from cudadoctor.render import github

    shown, language = _spoken(checks), current()
    written(github.commands(shown, language), options.output)
    _appended("GITHUB_STEP_SUMMARY", github.job_summary(shown, language))
    _appended("GITHUB_OUTPUT", github.outputs(shown))


def _appended(variable: str, text: str) -> None:
    """Add to a file that GitHub names; if it cannot be written, the result stands all the same."""
    path = os.environ.get(variable)
    if not path or not text:
        return
    try:
        with open(path, "a", encoding="utf-8", errors="backslashreplace") as file:  # noqa: PTH123
            file.write(text)
    except OSError as error:
        note(say("cannot write to {path}: {reason}", path=path, reason=error.strerror))


_FORMS: dict[str, Callable[[Sequence[Checked], Options], None]] = {
    "github": _github,
    "sarif": _sarif,
    "junit": _junit,
    "prometheus": _prometheus,
}
