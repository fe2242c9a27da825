"""What the doctor knows of the terminal that it writes to."""

from __future__ import annotations

import sys

import pytest
from terminal_fixtures import in_terminal

_SAYS = (
    "from cudadoctor import __main__ as m; m._escape_unencodable();"
    "from cudadoctor.cli import output; print(output.width(), output.signs(), output.coloured())"
)


def _known(columns: int = 80, /, **env: str) -> list[str]:
    return in_terminal(sys.executable, "-c", _SAYS, columns=columns, env=env).text.split()


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(("columns", "laid_out"), [(20, 40), (72, 72), (140, 100)])
def test_the_width_is_that_of_the_terminal(unbuffered: str, columns: int, laid_out: int) -> None:
    assert _known(columns, PYTHONUNBUFFERED=unbuffered)[0] == str(laid_out)


def test_columns_decides_over_the_terminal() -> None:
    assert _known(72, COLUMNS="60")[0] == "60"
    assert _known(72, COLUMNS="many")[0] == "72"


@pytest.mark.parametrize(
    ("env", "known"),
    [
        ({}, "True"),
        ({"PYTHONUNBUFFERED": "1"}, "True"),
        ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, "False"),
        ({"LC_ALL": "C"}, "False"),
        ({"LC_ALL": "C.UTF-8"}, "True"),
        ({"PYTHONIOENCODING": "latin-1"}, "False"),
        ({"TERM": "linux"}, "False"),
        ({"NO_COLOR": "1"}, "True"),
    ],
)
def test_signs_stand_only_where_they_can_be_shown(env: dict[str, str], known: str) -> None:
    assert _known(**env)[1] == known


def test_no_color_takes_the_colours() -> None:
    assert _known()[2] == "True"
    assert _known(NO_COLOR="1")[2] == "False"
