"""The recipe for a repository's issues: it comments where it knows something, and runs nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "triage"
GH = """#!/bin/sh
echo "$@" > "$POSTED.words"
while [ $# -gt 0 ]; do [ "$1" = --body-file ] && cp "$2" "$POSTED"; shift; done
"""


def answered(tmp_path: Path, title: str, body: str | None) -> str | None:
    """The comment that the recipe posts on such an issue, None where it posts none."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "gh").write_text(GH, encoding="utf-8")
    (programs / "gh").chmod(0o755)
    issue = {"number": 7, "title": title, "body": body, "created_at": "2026-03-01T10:00:00Z"}
    event = tmp_path / "event.json"
    event.write_text(json.dumps({"issue": issue}), encoding="utf-8")
    posted = tmp_path / "posted"
    ran = subprocess.run(
        [sys.executable, RECIPE / "answer.py"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "GITHUB_EVENT_PATH": str(event),
            "GITHUB_REPOSITORY": "someone/something",
            "POSTED": str(posted),
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return posted.read_text(encoding="utf-8") if posted.exists() else None


def test_a_known_cause_is_answered(tmp_path: Path) -> None:
    body = "```\nThe NVIDIA driver on your system is too old (found version 11040).\n```"
    comment = answered(tmp_path, "torch does not see my GPU", body)
    assert comment is not None
    assert "driver-too-old" in comment


@pytest.mark.parametrize("body", [None, "", "Please add a dark theme.", "\x00\x01" * 200])
def test_an_issue_about_something_else_is_left_alone(tmp_path: Path, body: str | None) -> None:
    assert answered(tmp_path, "A wish", body) is None


def test_nothing_in_an_issue_is_executed(tmp_path: Path) -> None:
    evil = "$(touch PWNED) `touch PWNED`; touch PWNED\n"
    body = evil + "The NVIDIA driver on your system is too old (found version 11040)."
    comment = answered(tmp_path, evil, body)
    assert comment is not None
    assert not (tmp_path / "PWNED").exists()


def test_the_recipe_hands_the_text_of_an_issue_to_no_shell() -> None:
    """An expression in `run:` is pasted into the script before a shell reads it."""
    for name in ("action.yml", "workflow.yml"):
        text = (RECIPE / name).read_text(encoding="utf-8")
        for line in text.splitlines():
            assert "run:" not in line or "${{" not in line
        assert "issue.body" not in text
        assert "issue.title" not in text
