"""Packages of the operating system that belong to the driver, CUDA, cuDNN or NCCL."""

from __future__ import annotations

import re

from cudadoctor.host.local import Host
from cudadoctor.model.driver_packages import MATTERS, Manager, is_driver
from cudadoctor.model.machine import SystemPackage
from cudadoctor.probes import Notes

__all__ = ["DPKG", "is_driver", "note_packages", "parse_dpkg"]

DPKG = "/var/lib/dpkg/status"
PACMAN = "/var/lib/pacman/local"
RPM = ("/var/lib/rpm", "/usr/lib/sysimage/rpm")

_LONGEST = 1 << 16
"""Of the words on one package."""


def note_packages(notes: Notes, host: Host, *, fast: bool) -> tuple[SystemPackage, ...] | None:
    """The packages, from whichever database this system has; () where it has none that matters."""
    dpkg = host.read(DPKG, 64 << 20)
    if dpkg.known and dpkg.data:
        found = parse_dpkg(dpkg.data)
        notes.fact("driver.packages", found, DPKG)
        return found
    names = host.listing(PACMAN).names
    if names:
        found = _pacman(names)
        notes.fact("driver.packages", found, PACMAN)
        return found
    if any(host.listing(path).names for path in RPM):
        return _note_rpm(notes, host, fast=fast)
    notes.gap("driver.packages", dpkg.why or "no package database of dpkg, rpm or pacman is here")
    return None


def parse_dpkg(data: bytes) -> tuple[SystemPackage, ...]:
    """The installed packages that matter, out of dpkg's status file."""
    found = []
    for start in re.finditer(rb"\nPackage: ([^\n]*(?:nv|cud|nccl)[^\n]*)", b"\n" + data):
        name = start[1].decode("ascii", "replace")
        # One byte was put before the data, so that the first package also follows a line end.
        begin = start.end() - 1
        end = data.find(b"\n\n", begin, begin + _LONGEST)
        stanza = data[begin : end if end >= 0 else begin + _LONGEST]
        version = re.search(rb"^Version: (\S+)", stanza, re.MULTILINE)
        installed = re.search(rb"^Status: \S+ \S+ (?!config-files|not-installed)", stanza, re.M)
        if version and installed and MATTERS.fullmatch(name):
            found.append(_package(name, version[1].decode("ascii", "replace"), "dpkg"))
    return tuple(found)


def _package(name: str, version: str, manager: Manager) -> SystemPackage:
    return SystemPackage(name=name, version=version, manager=manager)


def _pacman(names: tuple[str, ...]) -> tuple[SystemPackage, ...]:
    """A folder name-version-release for each package."""
    parts = (name.rsplit("-", 2) for name in names)
    return tuple(
        _package(part[0], f"{part[1]}-{part[2]}", "pacman")
        for part in parts
        if len(part) == 3 and MATTERS.fullmatch(part[0])
    )


def _note_rpm(notes: Notes, host: Host, *, fast: bool) -> tuple[SystemPackage, ...] | None:
    if fast:
        notes.gap("driver.packages", "rpm is not asked with --fast", asked=False)
        return None
    ran = host.run("rpm", "-qa", "--qf", r"%{NAME} %{VERSION}-%{RELEASE}\n", timeout_s=10.0)
    if not ran.ok:
        notes.gap("driver.packages", f"rpm: {ran.why or f'exit status {ran.code}'}")
        return None
    rows = (line.split() for line in ran.stdout.splitlines())
    found = tuple(
        _package(row[0], row[1], "rpm")
        for row in rows
        if len(row) == 2 and MATTERS.fullmatch(row[0])
    )
    notes.fact("driver.packages", found, "rpm")
    return found
