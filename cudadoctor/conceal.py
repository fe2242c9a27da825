"""Redaction of raw answers: what is told of a host stays true in its grammar, without its names.

Facts are shown to people, so redact.py writes `~` and `<gpu-uuid-1>`. Raw answers are parsed once
more: here a home stays an absolute path, an identifier keeps its form, and a name is replaced by
one of the same length, so that it can be replaced inside of binary files too.
"""

from __future__ import annotations

import json
import re
from typing import Any

from cudadoctor.facts import Machine
from cudadoctor.redact import Redactor

_KEPT = frozenset(
    """
    linuxbrew Public Default Shared root user nobody admin ubuntu debian fedora centos rocky
    alma arch suse opensuse ec2-user azureuser jovyan vagrant docker nvidia cuda torch pytorch
    jetson tegra-ubuntu dgx localhost local dev lib lib64 bin sbin usr home etc var tmp opt data
    share include src test tests python proc sys run mnt media srv boot kernel module modules
    driver drivers class bus pci devices host python3 conda miniconda3 anaconda3 venv envs
    versions work workspace app code build gpu node pip uv
    """.split()  # noqa: SIM905
)
"""Names that identify nobody, and that the system itself uses for its folders."""

_HOME = r"([/\\](?:home|Users)[/\\]+)([A-Za-z_][\w.-]*)"
_HOMES = re.compile(_HOME)
_HOMES_IN_BYTES = re.compile(_HOME.encode())
_END = r"(?![\w-]|\.\w)"
_ASSIGNED = re.compile(
    r"(?i)([\w-]*(?:token|secret|password|passwd|api[-_]?key)[\w-]*[\"']?[ \t]*[=:][ \t]*[\"']?)"
    r"[^\s\"'&<]{4,}"
)
_SETTINGS = re.compile(r"\.(?:conf|ini|toml|cfg|ya?ml)$|rc$|cmdline$")
_LOG = re.compile(r"kmsg$|dmesg|journalctl|cmdline$")
_MACHINE_WIDE = re.compile(
    r"\b(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}\b"
    r"|\b[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}\b"
    r"|(?<![\w.])(?!127\.|0\.0\.0\.0|255\.)(?:\d{1,3}\.){3}\d{1,3}(?![\w.])"
)
_ACCOUNTS = frozenset({"/etc/passwd", "/etc/group"})
_SHORTEST = 3


class Concealer(Redactor):
    """The redactor of raw answers; made from the machine that they told of."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        who = machine.identity
        home = re.split(r"[/\\]", (who.home or "").rstrip("/\\"))[-1]
        self._users = _stand_ins("user", who.user, home)
        host = who.host or ""
        self._hosts = _stand_ins("host", host, host.partition(".")[0])
        self._places = [_component(one, other) for one, other in self._users.items()]
        self._places += [_whole(one, other) for one, other in self._hosts.items()]
        self._bytes = [
            (re.compile(rb"(?<=[/\\])" + re.escape(name.encode()) + rb"(?![\w-])"), other.encode())
            for name, other in self._users.items()
        ]
        whole = {**self._hosts, **{uuid: "x" * len(uuid) for uuid in self._known}}
        self._bytes += [
            (re.compile(_whole(one, "")[1].pattern.encode()), other.encode())
            for one, other in whole.items()
        ]
        for uuid in self._known:
            self._pseudonym(uuid)

    def text(self, text: str) -> str:
        """The text without what identifies, nor the names of other users' homes."""
        text = super().text(text)
        if "home" in text or "Users" in text:
            text = _HOMES.sub(lambda found: found[1] + _stranger(found[2]), text)
        return text

    def plain(self, value: Any, key: str = "") -> Any:
        """The same for plain JSON data, its keys too."""
        if isinstance(value, dict):
            return {self.text(name): self.plain(one, name) for name, one in value.items()}
        return super().plain(value, key)

    def valued(self, path: str, value: str) -> str:
        """The value of a variable: a user's or a host's bare name too."""
        return (self._users | self._hosts).get(value) or super().valued(path, value)

    def output(self, text: str, source: str = "") -> str:
        """What a program printed or a file holds; lines of JSON stay lines of JSON."""
        lines = text.split("\n")
        if any(line.startswith("{") for line in lines):
            return "\n".join(self._line(line) for line in lines)
        if source in _ACCOUNTS:
            return self._accounts(text)
        if _SETTINGS.search(source):
            text = _ASSIGNED.sub(r"\g<1><secret>", text)
        if _LOG.search(source):
            text = _MACHINE_WIDE.sub("<identifier>", text)
        return self.text(text)

    def data(self, data: bytes) -> bytes:
        """Bytes that are no text: every place keeps its length, since offsets point into them."""
        for pattern, other in self._bytes:
            data = pattern.sub(other, data)
        return _HOMES_IN_BYTES.sub(
            lambda found: found[1] + _stranger(found[2].decode()).encode(), data
        )

    def _line(self, line: str) -> str:
        try:
            found = json.loads(line) if line.startswith("{") else None
        except ValueError:
            found = None
        if not isinstance(found, dict):
            return self.text(line)
        return json.dumps(self.plain(found))

    def _accounts(self, text: str) -> str:
        """Of the accounts, those that matter: root's, the user's, and the groups of devices."""
        kept = []
        for line in text.splitlines():
            fields = [self._members(field) for field in line.split(":")]
            account = len(fields) > 4
            if not account or fields[0] == "root" or fields[0] in self._users.values():
                fields[4:5] = [""] if account else []
                kept.append(":".join(self.text(field) for field in fields))
        return "".join(line + "\n" for line in kept)

    def _members(self, field: str) -> str:
        """The names of a field; of those that are listed, only the user's own is told."""
        names = field.split(",")
        ours = [self._users.get(name, name) for name in names]
        return (
            ours[0]
            if len(ours) == 1
            else ",".join(one for one in ours if one in self._users.values())
        )

    def _pseudonym(self, uuid: str) -> str:
        given = super()._pseudonym(uuid)
        number = int(re.sub(r"\D", "", given.rpartition("-")[2]) or 0)
        kind = "GPU" if "gpu" in given else "MIG"
        return f"{kind}-00000000-0000-0000-0000-{number:012d}"


def _stand_ins(kind: str, *names: str | None) -> dict[str, str]:
    """For every name that identifies, one of the same length in bytes, the longest first."""
    telling = {one for one in names if one and one not in _KEPT and len(one) >= _SHORTEST}
    return {one: _stand_in(kind, one) for one in sorted(telling, key=len, reverse=True)}


def _stranger(name: str) -> str:
    return name if name in _KEPT else _stand_in("user", name)


def _stand_in(kind: str, name: str) -> str:
    """One of the same length in bytes."""
    size = len(name.encode())
    return kind.ljust(size, "0")[:size]


def _component(name: str, other: str) -> tuple[str, re.Pattern[str], str]:
    return name, re.compile(rf"(?<=[/\\~]){re.escape(name)}{_END}"), other


def _whole(name: str, other: str) -> tuple[str, re.Pattern[str], str]:
    # The host of a container is the beginning of its long name.
    if re.fullmatch(r"[0-9a-f]{12}", name):
        return name, re.compile(name), other
    return name, re.compile(rf"(?<![\w.-]){re.escape(name)}{_END}"), other
