"""NVSwitch's daemon, the fabric manager: whether it is there, runs, and which version it is."""

from __future__ import annotations

import re
from typing import Literal

from cudadoctor.host.local import Host
from cudadoctor.model.machine import SystemPackage
from cudadoctor.model.versions import DriverVersion, driver_of
from cudadoctor.probes import Notes

UNIT = "nvidia-fabricmanager"
PROGRAM = "/usr/bin/nv-fabricmanager"
UNITS = tuple(f"{folder}/systemd/system/{UNIT}.service" for folder in ("/usr/lib", "/lib", "/etc"))

State = Literal["absent", "inactive", "failed", "active"]


def note_fabric(
    notes: Notes, host: Host, packages: tuple[SystemPackage, ...] | None, *, fast: bool
) -> None:
    """State and version of the fabric manager of this system; a container cannot see the host's."""
    there = any(host.stat(path).exists for path in (PROGRAM, *UNITS))
    version = _of_package(packages or ())
    if not there and version is None:
        notes.fact("driver.fabric.manager", "absent", PROGRAM)
        return
    notes.fact("driver.fabric.version", version or _of_program(host, fast=fast), UNIT)
    state = _state(host, 1.0 if fast else 5.0)
    notes.fact("driver.fabric.manager", state, f"systemctl show {UNIT}")
    if state is None:
        notes.gap("driver.fabric.manager", "systemd does not answer here")


def _of_package(packages: tuple[SystemPackage, ...]) -> DriverVersion | None:
    for one in packages:
        found = re.search(r"\d{3}\.\d+(?:\.\d+)?", one.version)
        if found and re.fullmatch(r"nvidia-fabric-?manager(-\d+)?", one.name):
            return driver_of(found[0])
    return None


def _of_program(host: Host, *, fast: bool) -> DriverVersion | None:
    if fast:
        return None
    ran = host.run(PROGRAM, "--version", timeout_s=3.0)
    found = re.search(r"version is\s*:?\s*(\d{3}\.\d+(?:\.\d+)?)", ran.stdout + ran.stderr, re.I)
    return driver_of(found[1]) if found else None


def _state(host: Host, limit_s: float) -> State | None:
    ran = host.run("systemctl", "show", UNIT, "-p", "ActiveState,LoadState", timeout_s=limit_s)
    return parse_unit(ran.stdout) if ran.ok else None


def parse_unit(text: str) -> State | None:
    """The state in the lines of `systemctl show`."""
    words = dict(line.partition("=")[::2] for line in text.splitlines())
    if words.get("LoadState") == "not-found":
        return "absent"
    states: dict[str, State] = {
        "active": "active",
        "reloading": "active",
        "failed": "failed",
        "inactive": "inactive",
        "activating": "inactive",
        "deactivating": "inactive",
    }
    return states.get(words.get("ActiveState", ""))
