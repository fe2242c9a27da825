"""Take names, secrets and identifiers out of facts and texts, by stable pseudonyms.

The same thing gets the same pseudonym everywhere, so a redacted document still replays to the same
diagnosis. A user's name is cut only as a component of a path, never inside a word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from cudadoctor.model import factfile
from cudadoctor.model.machine import Json, Machine, StrPair
from cudadoctor.privacy import identities, patterns
from cudadoctor.privacy.patterns import Sign, compiled

_NO_HOST = r"localhost|127(\.\d+){3}|::1|0\.0\.0\.0|<.*>|"
"""Values of a host's variable that name none, or not any more."""
Found = re.Match[str]


class Redactor:
    """Replaces what identifies a person, a machine or a secret.

    Made from a machine, whose user, home, host and GPU identifiers it learns, and whomever the
    machine's own texts name: in prompts and logs. more: other text that may name somebody.
    """

    def __init__(self, machine: Machine, more: str = "") -> None:
        self._machine = machine
        self._plain = factfile.encode(machine)
        self._given: dict[StrPair, str] = {}
        self._known = [gpu.uuid for gpu in machine.gpus or () if gpu.uuid]
        self._known += [uuid for gpu in machine.gpus or () for uuid in gpu.mig_devices or ()]
        for uuid in self._known:
            self._uuid(uuid)
        whole = "\n".join(_texts(self._plain))
        small = whole.lower()
        self._names = identities.names_of(machine, f"{whole}\n{more}" if more else whole)
        # All that is shown is made of these texts: what they do not hold is not searched for.
        signs = (*(sign.within(small) for sign in patterns.SIGNS), *self._where())
        self._signs = tuple(sign for sign in signs if sign.can_be_in(whole, small))

    def text(self, text: str) -> str:
        """The text without what identifies."""
        small = text.lower()
        for sign in self._signs:
            if sign.can_be_in(text, small):
                text = self._without(sign, text)
        return text

    def plain(self, value: Any, key: str = "") -> Any:
        """The same for plain JSON data."""
        if isinstance(value, str):
            return self._valued(key, value)
        if isinstance(value, dict):
            return {self._key(name): self.plain(part, name) for name, part in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.plain(part, key) for part in value]
        return value

    def _key(self, name: str) -> str:
        """A name of a field: those of facts identify nobody."""
        return name

    def machine(self, machine: Machine) -> Machine:
        """The machine as it may be shown to others."""
        return factfile.from_plain(self.document(machine))

    def document(self, machine: Machine) -> Json:
        """The same as plain data."""
        whole = self._plain if machine is self._machine else factfile.encode(machine)
        plain: Json = self.plain(whole)
        return plain | {"identity": {}, "redacted": True}

    def valued(self, path: str, value: str) -> str:
        """The value of a fact at that path (env.HF_TOKEN) as it may be shown.

        Evidence of a whole table is a line of JSON, and stays one.
        """
        if value.startswith(("{", "[{")):
            try:
                found = msgspec.json.decode(value)
            except (msgspec.DecodeError, UnicodeError, RecursionError):
                return self.text(value)
            return msgspec.json.encode(factfile.json_safe(self.plain(found))).decode()
        return self._valued(path.rpartition(".")[2], value)

    # --- what stands for it -------------------------------------------------------------------

    def _valued(self, key: str, value: str) -> str:
        if key in ("url", "extra", "find_links") and "://" in value:
            value = re.sub(r"[?#;].*", "", value)  # an index needs none of it, but for a secret
        if not key.isupper() or not value:
            return patterns.SECRET if value and key in patterns.SECRET_KEYS else self.text(value)
        held = patterns.held_by(key)
        if held == "secret":
            return patterns.SECRET
        if held == "host":
            return value if compiled(_NO_HOST).fullmatch(value.lower()) else self._host(value)
        if held == "user":
            return self._user(value)
        value = self.text(patterns.without_definitions(key, value))
        # Versions look like addresses, so only variables are searched for those.
        return value if "VERSION" in key else self._without(patterns.BARE_ADDRESS, value)

    def _without(self, sign: Sign, text: str) -> str:
        other = sign.other or (lambda found: self._replaced(found, sign.kind))
        return compiled(sign.pattern).sub(other, text)

    def _replaced(self, found: Found, kind: str) -> str:
        value = next((text for text in found.groupdict().values() if text), found[0])
        other = self._uuid(value) if kind == "gpu-uuid" else self._stand(kind, value)
        return found[0].replace(value, other)

    def _stand(self, kind: str, value: str) -> str:
        """The pseudonym of a value: always the same one."""
        key = (kind, value.lower())
        if key not in self._given:
            number = sum(given == kind for given, _ in self._given) + 1
            self._given[key] = self._form(kind, value, number)
        return self._given[key]

    def _form(self, kind: str, value: str, number: int) -> str:  # noqa: ARG002 - of any value
        return f"<{kind}-{number}>"

    def _uuid(self, uuid: str) -> str:
        """The pseudonym of a GPU, which may be named by the beginning of its identifier."""
        kind = "gpu-uuid" if uuid.startswith("GPU") else "mig-uuid"
        whole = [known for known in self._known if known.lower().startswith(uuid.lower())]
        return self._stand(kind, whole[0] if len(whole) == 1 else uuid)

    def _user(self, name: str) -> str:
        if name.lower() in identities.KEPT or name.startswith("<"):
            return name
        own = name.lower() in map(str.lower, self._names.own_users)
        return "<user>" if own else self._stand("user", name)

    def _host(self, name: str) -> str:
        """The short name counts: the domain behind it changes nothing."""
        own = {host.lower() for host in self._names.own_hosts}
        short = name.partition(".")[0]
        if {name.lower(), short.lower()} & own:
            return "<host>"
        return self._stand("host", name if short.isdecimal() else short)

    # --- where names stand --------------------------------------------------------------------

    def _where(self) -> Iterator[Sign]:
        for home in self._names.homes:
            last = re.split(r"[/\\]", home)[-1].lower()
            yield Sign(words=(last,), pattern=identities.home_pattern(home), other="~")
        names = self._names
        for named, pattern, other in (
            (
                names.own_users + names.users,
                identities.user_pattern,
                lambda found: self._user(found[0]),
            ),
            (names.own_hosts + names.hosts, identities.host_pattern, self._hosted),
        ):
            if named:
                yield Sign(words=tuple(map(str.lower, named)), pattern=pattern(named), other=other)
        yield Sign(words=("home", "users"), pattern=identities.HOME, other=self._home)

    def _hosted(self, found: Found) -> str:
        groups = found.groupdict("")
        return self._host(groups.get("it") or groups["box"])

    def _home(self, found: Found) -> str:
        return found[0][: found.start("name") - found.start()] + self._user(found["name"])


def _texts(plain: Any) -> Iterator[str]:
    """Every string of plain data, without the keys."""
    if isinstance(plain, str):
        yield plain
    elif isinstance(plain, dict):
        for name, value in plain.items():
            # Requirements name packages of everybody, unless they name an address.
            yield from (
                (requirement for requirement in value if "@" in requirement)
                if name == "requires"
                else _texts(value)
            )
    elif isinstance(plain, (list, tuple)):
        for item in plain:
            yield from _texts(item)
