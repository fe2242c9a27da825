"""Redaction of raw answers: what is told of a host stays true in its grammar, without its names.

Facts are shown to people, so redact.py writes `~` and `<gpu-uuid-1>`. Raw answers are parsed once
more: here a home stays an absolute path, an identifier keeps its form, and a name is replaced by
one of the same length, so that it can be replaced inside of binary files too.
"""

import json
import re

from cudadoctor.model.machine import Machine
from cudadoctor.privacy import identities, patterns
from cudadoctor.privacy.patterns import compiled
from cudadoctor.privacy.redact import Redactor

_HOMES_IN_BYTES = re.compile(rb"([/\\](?:home|[Uu]sers)[/\\]+)([A-Za-z_][\w.-]*)")
_SETTINGS = re.compile(r"\.(?:conf|ini|toml|cfg|ya?ml)$|rc$|cmdline$")
_ASSIGNED = re.compile(r"(?i)((?:token|secret|passw(?:or)?d)[\w-]*[ \t]*[=:][ \t]*)(?!<)[^\s&]{4,}")
_LOG = re.compile(r"kmsg$|dmesg|journalctl|cmdline$")
_MACHINE_WIDE = re.compile(
    r"\b(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}\b"
    r"|\b[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}\b"
    r"|(?<![\w.])(?!127\.|0\.0\.0\.0|255\.)(?:\d{1,3}\.){3}\d{1,3}(?![\w.])"
)
_ACCOUNTS = frozenset({"/etc/passwd", "/etc/group"})
_BOMS = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}


class Concealer(Redactor):
    """The redactor of raw answers; made from the machine that they describe.

    more: raw text that may name somebody whom the facts do not name.
    """

    def __init__(self, machine: Machine, more: str = "") -> None:
        super().__init__(machine, more)
        names = self._names
        self._users = {user: self._user(user) for user in names.own_users + names.users}
        self._hosts = {host: self._host(host) for host in names.own_hosts + names.hosts}
        # Raw answers hold more than the facts that were made of them: all is searched for, but for
        # the home, which stays an absolute path.
        where = (sign for sign in self._where() if sign.other != "~")
        self._signs = (*patterns.SIGNS, *where)
        self._bytes = [
            (re.compile(rb"(?<=[/\\])" + re.escape(_encoded(name)) + rb"(?![\w-])"), other.encode())
            for name, other in self._users.items()
        ]
        whole = {**self._hosts, **{uuid: "x" * len(uuid) for uuid in self._known}}
        self._bytes += [
            (re.compile(_encoded(_whole(name))), _sized(other, name).encode())
            for name, other in whole.items()
        ]

    def _key(self, name: str) -> str:
        """A name in a raw answer may be anybody's."""
        return self.text(name)

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
        if coding := _BOMS.get(data[:2]):
            text = data[2:].decode(coding, "replace")
            return data[:2] + self.output(text).encode(coding, "replace")
        for pattern, other in self._bytes:
            data = pattern.sub(other, data)
        data = _HOMES_IN_BYTES.sub(lambda found: found[1] + self._named(found[2].decode()), data)
        return data if b"\0" in data else _crossed_out(data)

    def _named(self, name: str) -> bytes:
        return _sized(self._user(name), name).encode()

    def _line(self, line: str) -> str:
        try:
            found = json.loads(line) if line.startswith("{") else None
        except (ValueError, RecursionError):
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
        names = [self._users.get(name, name) for name in field.split(",")]
        own = [name for name in names if name in self._users.values()]
        return names[0] if len(names) == 1 else ",".join(own)

    def _user(self, name: str) -> str:
        return name if name.lower() in identities.KEPT else self._stand("user", name)

    def _host(self, name: str) -> str:
        return self._stand("host", name.partition(".")[0])

    def _stand(self, kind: str, value: str) -> str:
        """The stand-in for a value; a value that is a stand-in already is left as it is."""
        return value if value in self._given.values() else super()._stand(kind, value)

    def _form(self, kind: str, value: str, number: int) -> str:
        """A stand-in that the same parsers accept."""
        if kind in ("user", "host"):
            return self._of_that_length(kind, value)
        if kind == "mac":
            digits = iter(f"{number:0{sum(map(str.isalnum, value))}x}")
            return "".join(next(digits) if char.isalnum() else char for char in value)
        forms = {
            "gpu-uuid": f"GPU-00000000-0000-0000-0000-{number:012d}",
            "mig-uuid": f"MIG-00000000-0000-0000-0000-{number:012d}",
            "uuid": f"00000000-0000-0000-0000-{number:012d}",
            "address": f"2001:db8::{number:x}" if ":" in value else f"192.0.2.{number % 255}",
            "email": f"user{number}@example.org",
            "id": f"{number:0{len(value)}d}",
        }
        return forms.get(kind) or super()._form(kind, value, number)

    def _of_that_length(self, kind: str, name: str) -> str:
        """A stand-in of as many bytes, another one for each name as long as there are some."""
        size = len(_encoded(name))
        base = kind.ljust(size, "0")[:size]
        taken = set(self._given.values())
        numbered = (base[: size - len(str(n))] + str(n) for n in range(1, 10 ** min(size, 3)))
        return next((stand_in for stand_in in (base, *numbered) if stand_in not in taken), base)


def _encoded(name: str) -> bytes:
    """The bytes of a name: those of a variable or a file may be no text."""
    try:
        return name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return name.encode("utf-8", "replace")


def _whole(name: str) -> str:
    # The host of a container is the beginning of its long name.
    if re.fullmatch(r"[0-9a-f]{12}", name):
        return name
    return rf"(?<![\w.-]){re.escape(name)}(?![\w-]|\.\w)"


def _sized(other: str, name: str) -> str:
    """Cut or filled to the length that the name has in bytes."""
    size = len(_encoded(name))
    return other.ljust(size, "0")[:size]


def _crossed_out(data: bytes) -> bytes:
    """Settings in an old encoding: every secret in them as so many x."""
    text = data.decode("latin-1")
    for sign in patterns.SECRETS:
        text = compiled(sign.pattern).sub(lambda found: "x" * len(found[0]), text)
    return text.encode("latin-1")
