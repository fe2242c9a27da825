"""What in a text opens a door or names a machine: its patterns, each compiled when first needed.

Names of people and hosts are no pattern: identities.py learns them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from functools import cache

from msgspec import Struct
from msgspec.structs import replace

SECRET = "<secret>"
_IPV4 = r"\d{1,3}(?:\.\d{1,3}){3}"
_OPEN = r"(?:127\.|0\.0\.0\.0|255\.)"
_HEX = r"[0-9A-Fa-f]"
_VALUE = r"""(?:"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|[^\s"'&<>|]+)"""
_NOTHING = (
    r"""(?!(?:\d{1,7}|true|false|none|null|yes|no)\b|["']{2}|[/\\][\w.]+[/\\]"""
    r"""|["']?(?:<[a-z-]+\d*>|\$[{(A-Z_]))"""
)
"""What is no secret: numbers, words, paths, names of variables, what is already replaced."""


class Sign(Struct, frozen=True, kw_only=True):
    """A pattern, words of which one must be there for it, and what takes the place of a find.

    words: in lower case; hint: a pattern that is quick to look for and must be found too.
    other: a template, or what makes it of a find; where it is "", the group `it` (else the whole
    find) gets a numbered pseudonym of that kind.
    """

    words: tuple[str, ...]
    pattern: str
    kind: str = ""
    hint: str = ""
    other: str | Callable[[re.Match[str]], str] = ""

    def can_be_in(self, text: str, small: str) -> bool:
        """Whether a search is worth its time. small: the text in lower case."""
        for word in self.words:
            if word in small:
                return not self.hint or compiled(self.hint).search(text) is not None
        return False

    def within(self, small: str) -> Sign:
        """The sign for parts of a text, with the words that are there."""
        return replace(self, words=tuple(word for word in self.words if word in small))


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


CREDENTIALS = Sign(
    words=("://",),
    hint="@",
    # A password may hold an @ or, wrongly, a slash: all up to the last @ of the authority goes.
    # The bounds keep the search of a long text short.
    pattern=r"""(?x)(?<=://)(?:
      [^/\s:@"'<>]{0,200}:(?!\d{1,5}/)[^\s@"'<>]{0,2000}@(?:[^/\s"'<>]{0,400}@)?
    | [^/\s"'<>]{1,2000}@ )""",
    other="<credentials>@",
)


def bare(text: str) -> str:
    """A text without the users and passwords of its URLs."""
    return compiled(CREDENTIALS.pattern).sub("", text) if "://" in text else text


TOKEN = Sign(
    words=(
        *(
            "hf_",
            "ghp_",
            "gho_",
            "ghu_",
            "ghs_",
            "ghr_",
            "github_pat_",
            "sk-",
            "k_live_",
            "k_test_",
            "akia",
        ),
        *("asia", "eyj", "glpat-", "pypi-", "xox", "nvapi-", "aiza", "ya29.", "npm_", "api_org_"),
        *("dckr_pat_", "wandb_v1_", "/t/", "cloudsmith", "bearer ", "basic ", "x-amz-"),
    ),
    pattern=r"""(?x)
    (?<![A-Za-z0-9])(?:
      (?:hf|api_org)_(?:[A-Za-z0-9]{16,}|(?=[a-z]*[0-9A-Z])[A-Za-z0-9]{8,})
    | gh[pousr]_[A-Za-z0-9]{16,} | github_pat_\w{16,} | glpat-[\w-]{16,} | pypi-[\w-]{16,}
    | sk-[\w-]{16,} | [rs]k_(?:live|test)_\w{8,} | (?:AKIA|ASIA)[0-9A-Z]{12,}
    | eyJ[\w-]{10,}\.[\w-]{10,}(?:\.[\w-]*)? | xox[abeprs]-[\w-]{10,} | nvapi-[\w-]{16,}
    | AIza[\w-]{30,} | ya29\.[\w-]{16,} | npm_[A-Za-z0-9]{20,} | dckr_pat_[\w-]{16,}
    | wandb_v1_\w{16,} )
    | (?<=/t/)[\w-]{8,}(?=/) | (?<=dl\.cloudsmith\.io/)(?!public/|basic/)[\w-]{8,}(?=/)
    | (?i:(?<=bearer\ )|(?<=basic\ ))(?=[^\s"'<]*[0-9A-Z=])[A-Za-z0-9+/=._~-]{8,}
    | (?i:(?<=X-Amz-Credential=)|(?<=X-Amz-Signature=))[^&\s"'<>]+
    """,
    other=SECRET,
)
PRIVATE_KEY = Sign(
    words=("private key-----",),
    pattern=r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    other=SECRET,
)
_KEYS = ("token", "secret", "passw", "passphr", "key", "credential", "auth", "sig=", "_pwd")
ASSIGNED = Sign(
    words=_KEYS,
    # "tokenizers==0.19" is a requirement and "max_tokens=512" a number: neither is a secret.
    pattern=rf"""(?xi)
    ( (?: token(?!i[sz]) | secret | passw(?:or)?d | passphrase | (?:api|access|private)[-_]?key
        | credential | authorization | _pwd | _?auth_? | \bsig )
      [\w-]{{0,40}}["']?\s{{0,8}}
      (?: (?<![=<>!~])=(?!=) | :(?=\s{{0,8}}["']) | (?:(?<=passwd)|(?<=password)):(?!:)
        | :(?!:)(?=\s{{0,8}}\S{{0,80}}\d)
        | (?<=-token)\s(?=\s*\S) | (?<=-password)\s | (?<=-key)\s )
      \s{{0,8}} (?:(?:bearer|basic|token)\s+)? )
    {_NOTHING}{_VALUE}""",
    other=r"\g<1><secret>",
)
BARE_ADDRESS = Sign(kind="address", words=(".",), pattern=rf"(?<![\w.])(?!{_OPEN}){_IPV4}(?![\w.])")
"""Versions look like addresses: only variables are searched for these."""

SECRETS = (PRIVATE_KEY, CREDENTIALS, ASSIGNED, TOKEN)
_FOUR = r"\.\d{1,3}\.\d{1,3}\.\d"
SIGNS = (
    *SECRETS,
    Sign(
        kind="gpu-uuid",
        words=("gpu-", "mig-"),
        pattern=rf"(?<![A-Za-z0-9])(?:GPU|MIG)-{_HEX}{{2,}}(?:-{_HEX}+)*(?:/\d+/\d+)?(?![\w-])",
    ),
    Sign(
        kind="uuid",
        words=("-",),
        hint=rf"-{_HEX}{{4}}-",
        pattern=rf"(?<![\w-]){_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}(?![\w-])",
    ),
    Sign(
        kind="id",
        words=(
            *("docker-", "docker/", "containerd", "cri-", "machine-id", "machine_id", "kubepods"),
            *("libpod", "overlay2", "sha256:"),
        ),
        pattern=r"(?<![\w])(?:[0-9a-f]{64}|[0-9a-f]{32})(?![\w])",
    ),
    Sign(
        kind="mac",
        words=(":", "-"),
        hint=rf"[:-]{_HEX}{{2}}[:-]{_HEX}{{2}}[:-]",
        pattern=rf"(?<![\w:-])(?:{_HEX}{{2}}:){{5,19}}{_HEX}{{2}}(?![\w:])"
        rf"|(?<![\w:-])(?:{_HEX}{{2}}-){{5}}{_HEX}{{2}}(?![\w-])",
    ),
    Sign(
        kind="mac",
        words=("enx", "wlx", "wwx", "ibx", "slx"),
        pattern=rf"(?<![A-Za-z0-9])(?:en|wl|ww|ib|sl)x(?P<it>{_HEX}{{6,12}})(?![A-Za-z0-9])",
    ),
    Sign(
        words=("serial", "gpu pdi", "gpu_pdi"),
        pattern=r"(?i)(\b(?:serial(?:[ _-]?(?:number|no\.?))?|gpu[ _]pdi)[\"']?\s*[:=]\s*[\"']?)"
        r"(?!N/A\b|none\b|<)(?=[\w-]*\d)[\w-]{4,}",
        other=r"\g<1><serial>",
    ),
    Sign(
        kind="email",
        words=("@",),
        pattern=r"(?<![\w.@+/-])(?!git@)[A-Za-z][\w.+-]*@(?:[A-Za-z0-9-]+\.)+[A-Za-z]{2,}(?![\w-])",
    ),
    Sign(
        kind="address",
        words=("192.168.", "169.254.", "172."),
        hint=_FOUR,
        pattern=r"(?<![\w.])(?:192\.168|169\.254|172\.(?:1[6-9]|2\d|3[01]))(?:\.\d{1,3}){2}(?![\w.]*\d)",
    ),
    Sign(
        kind="address",
        words=(".",),
        hint=r"\.\d{1,3}(?::\d\d|<\d|\]:)",
        pattern=rf"(?<![\w.])(?!{_OPEN}){_IPV4}(?=:\d{{2,5}}(?!\d)|<\d+>|\]:\d)",
    ),
    Sign(
        kind="address",
        words=(
            *(
                "addr",
                "inet",
                "host",
                "peer",
                "endpoint",
                "connect",
                "route to",
                "listening",
                " ip ",
            ),
            *("ip:", "ip=", "ping ", "ssh ", "via ", "://", "@"),
        ),
        hint=r"[ :=/@(\"'\[]\d{1,3}\.\d{1,3}\.\d{1,3}\.\d",
        # Versions look like addresses: only the words before tell them apart.
        pattern=rf"""(?xi)
    (?: ://|@|\b(?:ip|addr|address|inet|host|peer|master_addr|endpoint|rdzv[_-]endpoint)
          ["']?[\ :=("'\[]{{1,3}}
        | \b(?:connect(?:ed|ing|ion)?|route|listening)\ (?:to|from|on)\ \[?
        | \b(?:ping|ssh|via)\ )
      (?!{_OPEN})(?P<it>{_IPV4})(?![\w.]*\d)""",
    ),
    Sign(
        kind="address",
        words=(":",),
        hint=rf":{_HEX}{{0,4}}:",
        pattern=rf"""(?x)(?<![\w:.])(?:
      (?:{_HEX}{{1,4}}:){{7}}{_HEX}{{1,4}}
    | (?:fe80|f[cdCD]{_HEX}{{2}}|[23]{_HEX}{{3}})(?=[0-9A-Fa-f:]*::)
      (?::{{1,2}}{_HEX}{{1,4}})+(?:::)?
    )(?![\w:]*[g-zG-Z_]|:)""",
    ),
    Sign(
        kind="host", words=("ip-",), pattern=r"(?<![\w-])ip-\d{1,3}(?:-\d{1,3}){3}(?:\.[\w.-]*\w)?"
    ),
)

_HELD = {
    "secret": r"(?i)token|secret|passw|passphrase|credential|api_?key|access_?key|_key$|_auth$"
    r"|_pwd$|_pass$|_dsn$|cookie",
    "host": r"\A(MASTER_ADDR|HOSTNAME|HOST|COMPUTERNAME|SLURMD_NODENAME|SLURM_(JOB_)?NODELIST"
    r"|SLURM_LAUNCH_NODE_IPADDR|SLURM_SUBMIT_HOST|SLURM_TOPOLOGY_ADDR|LSB_HOSTS|PBS_O_HOST)\Z",
    "user": r"\A(USER|LOGNAME|USERNAME|SUDO_USER|SLURM_JOB_(USER|ACCOUNT)|PBS_O_LOGNAME"
    r"|CONDA_USER)\Z",
}
"""What a variable holds, by its name."""
_COMMAND_NAME = r"CC|CXX|CPP|CUDACXX|CUDAHOSTCXX|NVCC|NVCC_CCBIN|\w*FLAGS"
_DEFINED = r"(?s)\A((?:-D|/D|--define-macro=)?['\"]?\w+=)(?!\d{0,7}$).+\Z"
"""-DNAME=value of a compiler, or NAME=value before it: a number is not a secret."""


def without_definitions(variable: str, value: str) -> str:
    """The value of a variable without what it defines, if it holds words for a compiler."""
    if "=" not in value or not compiled(_COMMAND_NAME).fullmatch(variable):
        return value
    try:
        words = shlex.split(value, posix="\\" not in value)
    except ValueError:  # a quote without its other half
        return SECRET
    hidden = [compiled(_DEFINED).sub(rf"\1{SECRET}", word) for word in words]
    return value if hidden == words else " ".join(hidden)


SECRET_KEYS = frozenset(
    {"password", "passwd", "passphrase", "secret", "token", "api_key", "apikey", "access_token"}
)
"""Keys of data from elsewhere, as they are written in small letters."""


def held_by(variable: str) -> str:
    """What a variable of that name holds: secret, host, user or "" (anything else)."""
    held = (what for what, pattern in _HELD.items() if compiled(pattern).search(variable))
    return next(held, "")
