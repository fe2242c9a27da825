"""A host whose driver never answers, the command on it, and the processes it leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from standin_fixtures import StandIns

SILENT_SMI = """\
#!/bin/sh
trap '' TERM INT HUP
while :; do sleep 60; done
"""
MARK = "CUDADOCTOR_TEST_MARK"


class Sick(NamedTuple):
    """The variables of a process on that host; every process under it carries the mark."""

    env: dict[str, str]
    mark: str
    scratch: Path

    def processes(self) -> dict[int, str]:
        """Whatever runs with the mark: process id -> its command line."""
        wanted = f"{MARK}={self.mark}".encode()
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    line = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                    found[int(folder.name)] = line.decode("utf-8", "replace")
            except OSError:
                continue
        return found

    def child(self, word: str, limit_s: float = 60) -> int:
        """The process id of the child with that word in its command line, once it runs."""
        return until(
            lambda: [pid for pid, line in self.processes().items() if word in line], limit_s
        )[0]

    def left(self) -> dict[int, str]:
        """What still runs after a few seconds' grace: killed processes need a moment to go."""
        end = time.monotonic() + 10
        while (running := self.processes()) and time.monotonic() < end:
            time.sleep(0.05)
        return running

    def started(self, *words: str) -> subprocess.Popen[bytes]:
        """The command, in a process group of its own as a terminal would start it."""
        return subprocess.Popen(
            [sys.executable, "-m", "cudadoctor", *words],
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def end(self) -> None:
        """Nothing of a failed test runs on."""
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)


def until(found: Callable[[], list[int]], limit_s: float) -> list[int]:
    """What is found as soon as there is something."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if some := found():
            return some
        time.sleep(0.01)
    raise AssertionError("the awaited process did not start")


def sick_host(standins: StandIns, folder: Path, scenario: str, *, silent_smi: bool = True) -> Sick:
    """NVML and libcuda made of C that play the scenario; an nvidia-smi that never ends."""
    env = standins.environment(scenario, standins.nvml(), standins.cuda())
    programs, scratch = folder / "bin", folder / "scratch"
    programs.mkdir()
    scratch.mkdir()
    if silent_smi:
        (programs / "nvidia-smi").write_text(SILENT_SMI)
        (programs / "nvidia-smi").chmod(0o755)
    mark = uuid.uuid4().hex
    path = os.pathsep.join([str(programs), env.get("PATH", os.defpath)])
    return Sick(env | {"PATH": path, "TMPDIR": str(scratch), MARK: mark}, mark, scratch)
