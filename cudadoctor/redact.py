"""Take names, secrets and identifiers out of facts and texts, by stable pseudonyms.

The same thing gets the same pseudonym everywhere, so a redacted document still replays to the same
diagnosis. A user's name is cut only as a component of a path, never inside a word.
"""

from __future__ import annotations

import re
from typing import Any

from cudadoctor import factfile
from cudadoctor.facts import Identity, Machine

_UUID = re.compile(r"\b(GPU|MIG)-[0-9A-Fa-f]{2,}(?:-[0-9A-Fa-f]+)*(?:/\d+/\d+)?")
_CREDENTIALS = re.compile(r"(?<=://)[^/\s@]+@")
_QUERY = re.compile(r"(?i)\b(token|password|passwd|secret|api[-_]?key|auth|sig)=[^&\s]+")
_TOKEN = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{8,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|sk-[A-Za-z0-9-]{16,}"
    r"|AKIA[0-9A-Z]{12,}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*|glpat-[\w-]{16,}|pypi-[\w-]{16,}"
    r"|xox[bap]-[\w-]{10,})"
)
_ADDRESS = re.compile(r"(?<![\w.])(?!127\.|0\.0\.0\.0|255\.)(?:\d{1,3}\.){3}\d{1,3}(?![\w.])")
_SHORTEST_TOKEN = 11
_HOST_VARIABLES = frozenset({"MASTER_ADDR", "HOSTNAME", "SLURMD_NODENAME", "SLURM_NODELIST"})
_SECRET_NAME = re.compile(r"(?i)(token|secret|password|passwd|api_?key|credential)")
_COMMON_USERS = frozenset({"", "root", "user", "nobody"})


class Redactor:
    """Replaces what identifies a person, a machine or a secret.

    Made from a machine, whose user, home, host and GPU identifiers it learns.
    """

    def __init__(self, machine: Machine) -> None:
        self._known = [gpu.uuid for gpu in machine.gpus or () if gpu.uuid]
        self._known += [uuid for gpu in machine.gpus or () for uuid in gpu.mig_devices or ()]
        self._given: dict[str, str] = {}
        self._places = _places(machine.identity)

    def text(self, text: str) -> str:
        """The text without what identifies."""
        # Most texts are names and versions; what cannot hold a secret is not searched for one.
        if "://" in text:
            text = _CREDENTIALS.sub("<credentials>@", text)
        if "=" in text:
            text = _QUERY.sub(lambda found: f"{found[1]}=<secret>", text)
        if len(text) >= _SHORTEST_TOKEN:
            text = _TOKEN.sub("<secret>", text)
        if "GPU-" in text or "MIG-" in text:
            text = _UUID.sub(lambda found: self._pseudonym(found[0]), text)
        for word, pattern, short in self._places:
            if word in text:
                text = pattern.sub(short, text)
        return text

    def plain(self, value: Any, key: str = "") -> Any:
        """The same for plain JSON data, keys kept."""
        if isinstance(value, str):
            return self._valued(key, value)
        if isinstance(value, dict):
            return {name: self.plain(one, name) for name, one in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.plain(one, key) for one in value]
        return value

    def machine(self, machine: Machine) -> Machine:
        """The machine as it may be shown to others."""
        return factfile.from_plain(self.document(machine))

    def document(self, machine: Machine) -> dict[str, Any]:
        """The same as plain data."""
        plain: dict[str, Any] = self.plain(factfile.encode(machine))
        return plain | {"identity": {}, "redacted": True}

    def valued(self, path: str, value: str) -> str:
        """The value of a fact at that path (env.HF_TOKEN) as it may be shown."""
        return self._valued(path.rpartition(".")[2], value)

    def _valued(self, key: str, value: str) -> str:
        if not key.isupper():
            return self.text(value)
        if _SECRET_NAME.search(key) and value:
            return "<secret>"
        if key in _HOST_VARIABLES and value:
            return self._numbered(value, "host")
        # Versions look like addresses, so only variables are searched for those.
        return _ADDRESS.sub(lambda found: self._numbered(found[0], "address"), self.text(value))

    def _pseudonym(self, uuid: str) -> str:
        kind = "gpu-uuid" if uuid.startswith("GPU") else "mig-uuid"
        whole = [known for known in self._known if known.startswith(uuid)]
        return self._numbered(whole[0] if len(whole) == 1 else uuid, kind)

    def _numbered(self, value: str, kind: str) -> str:
        if value not in self._given:
            number = sum(given.startswith(f"<{kind}-") for given in self._given.values()) + 1
            self._given[value] = f"<{kind}-{number}>"
        return self._given[value]


def _places(identity: Identity) -> list[tuple[str, re.Pattern[str], str]]:
    """A word to look for, the pattern that takes it as a whole name, and what stands for it."""
    places: list[tuple[str, re.Pattern[str], str]] = []
    end = r"(?![\w.-])"
    home = identity.home or ""
    if len(home) > 1 and home != "/root":
        places.append((home, re.compile(rf"(?<![\w/]){re.escape(home)}{end}"), "~"))
    user = identity.user or ""
    if user not in _COMMON_USERS:
        name = re.compile(rf"(?<=[/\\]){re.escape(user)}(?=[/\\]|$|[\s:;,'\"])")
        places.append((user, name, "<user>"))
    host = identity.host or ""
    if len(host) > 2 and host != "localhost":
        places.append((host, re.compile(rf"(?<![\w.-]){re.escape(host)}{end}"), "<host>"))
    return places
