"""Scripts of `fix --print`, without what they print at their end."""

from __future__ import annotations

import re

from cudadoctor.render.shells import ShellName


def without_printing(lines: list[str], name: ShellName) -> list[str]:
    """The lines without those that print what is left to do, each proven to do just that."""
    lines = [line for line in lines if not GUARD.fullmatch(line)]
    if name == "bash":
        begins = [number for number, line in enumerate(lines) if line.startswith("cat <<'END")]
        if not begins:
            return lines
        end = lines[begins[0]].removeprefix("cat <<'").removesuffix("'")
        # The first line that is the word ends it, and the script ends there.
        assert lines[lines.index(end, begins[0]) :][:3] in ([end, "exit 1", ""], [end, "exit 1"])
        return lines[: begins[0]]
    command = "printf '%s\\n' " if name == "fish" else "Write-Output "
    printing = [line for line in lines if line.startswith(command)]
    assert all(QUOTED[name].fullmatch(line.removeprefix(command)) for line in printing)
    return [line for line in lines if line not in printing]


QUOTED = {
    "fish": re.compile(r"[A-Za-z0-9_./:=+,@-]+|'(?:[^'\\]|\\['\\])*'"),
    "powershell": re.compile(r"'(?:[^'\u2018-\u201b]|''|\u2018\u2018|\u2019\u2019)*'"),
}
GUARD = re.compile(
    r"(?:\"\$PYTHON\"|\$PYTHON|[\w./-]+) -c 'import ensurepip' 2>/dev/null"
    r"(?: \|\| \{ |; or begin; )"
    r"printf '%s\\n' (?:[\w./-]+ |'(?:[^'\\]|'\"'\"')*' )*>&2; exit 1; (?:\}|end)"
)
"""What ends a script before a step that cannot work yet: one line that only prints."""
