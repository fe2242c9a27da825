"""Diagnose the text of a new GitHub issue, and post the result as a comment.

action.yml runs this script. The text of the issue is copied from GitHub's event file to a temporary
file. It is never part of a command line, so nothing in it can be executed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

CUDADOCTOR = [sys.executable, "-m", "cudadoctor"]
WORTH_SAYING = 0.7
"""The chance from which a cause that no rule is sure of is worth a comment."""
LIMIT_S = 120


def main() -> int:
    event = json.loads(Path(os.environ["GITHUB_EVENT_PATH"]).read_text(encoding="utf-8"))
    issue = event["issue"]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.txt"
        report.write_text(f"{issue['title']}\n\n{issue.get('body') or ''}\n", encoding="utf-8")
        asked = ["--from", str(report), "--as-of", issue["created_at"][:10]]
        judged = checked([*asked, "--json"])
        if judged is None or not worth_saying(json.loads(judged)):
            sys.stdout.write("No comment posted: no known cause in this issue.\n")
            return 0
        comment = Path(folder) / "comment.md"
        comment.write_text(checked([*asked, "--markdown"]) or "", encoding="utf-8")
        return posted(issue["number"], comment)


def checked(asked: list[str]) -> str | None:
    """The output of `cudadoctor check`; None if the text cannot be read."""
    ran = subprocess.run(
        [*CUDADOCTOR, "check", *asked], capture_output=True, timeout=LIMIT_S, check=False
    )
    sys.stderr.write(ran.stderr.decode("utf-8", "replace"))
    if ran.returncode == 2:
        return None
    if ran.returncode not in (0, 1, 3):
        raise SystemExit(f"cudadoctor failed with exit code {ran.returncode}")
    return ran.stdout.decode("utf-8")


def worth_saying(document: dict[str, Any]) -> bool:
    """Whether a cause was found, or one is likely enough that a command would settle it."""
    likely = {
        candidate["cause"]
        for candidate in document["candidates"]
        if candidate["score"] >= WORTH_SAYING
    } - {"not-environment", "torch-bug"}
    return document["verdict"] in ("broken", "warnings") or bool(likely)


def posted(number: int, comment: Path) -> int:
    """Post the comment; gh authenticates with GH_TOKEN."""
    command = ["gh", "issue", "comment", str(number), "--body-file", str(comment)]
    command += ["--repo", os.environ["GITHUB_REPOSITORY"]]
    return subprocess.run(command, timeout=LIMIT_S, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
