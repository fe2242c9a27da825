"""Who is named: users and hosts that a machine's own words give away, and how they are found again.

A user's name counts as a component of a path, after a ~ and before an @, never inside a word. The
name of a host counts as a whole word, with the domain behind it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from cudadoctor.model.machine import Machine, OptStr, Strings, StrPair
from cudadoctor.privacy.patterns import compiled

KEPT = frozenset(
    """
    linuxbrew public default shared root user users nobody admin administrator ubuntu debian fedora
    centos rocky alma almalinux rhel arch suse opensuse ec2-user azureuser jovyan vagrant docker
    nvidia cuda torch pytorch jetson tegra-ubuntu dgx localhost local dev lib lib64 bin sbin usr
    home etc var tmp opt data share include src test tests python proc sys run mnt media srv boot
    kernel module modules driver drivers class bus pci devices host python3 conda miniconda3
    anaconda3 venv envs versions work workspace app code build gpu gpus node pip uv linux windows
    darwin server desktop laptop machine glibc musl open proprietary none full fast report passed
    failed skipped distribution folder dpkg rpm pacman inactive absent active wheel system mapped
    default-host cpu rocm xpu mamba micromamba pixi poetry pipx podman kubernetes apptainer lxc
    enroot containerd other slurm lsf pbs nouveau passthrough vgpu exclusive prohibited embedded own
    path environment amd intel apple git site-packages dist-packages smoke train training model
    models cache cluster worker master main program files appdata
    """.split()  # noqa: SIM905
)
"""Names that identify nobody; many are words of the system, of paths and of the facts."""

_SHORTEST_HOST = 3
_PUBLIC = (
    r"(?i:(?:.*\.)?(?:pypi|pytorch|python|pythonhosted|github|githubusercontent|gitlab|anaconda"
    r"|nvidia|huggingface|hf|googleapis|amazonaws|docker|nvcr|quay|ghcr|astral)"
    r"\.(?:org|com|io|co|sh|net))"
)
"""Hosts of everybody."""
_NOBODY = rf"{_PUBLIC}|[\d.]+|sha\d+|.*\.so[.\d]*"
_USER = r"[A-Za-z_][\w.-]*\$?"
_HOST = r"[A-Za-z0-9][\w.-]*"
_ENDING = r"(?:py|so|txt|json|log|sh|exe|dll|cfg|toml|ya?ml|conf|whl|gz|zip|ini|pth?|md|lock|\d)\b"
_DOMAIN = rf"(?:\.(?!{_ENDING})[A-Za-z][A-Za-z0-9-]*)*"

_HOME_NAME = (
    r"(?P<name>(?<=\\)(?!<)[^\\/:*?\"<>|\r\n]{1,64}(?=\\)|(?![<$%{*.~])[^\s/\\:;,'\"<>()\[\]|&*?]+)"
)
HOME = rf"(?i:[/\\](?:home|users)[/\\]+){_HOME_NAME}"
"""Any home below the usual folders; the group `name` is whose it is."""

_NAME_PATTERNS: tuple[StrPair, ...] = (
    # prompts: alice@box:~$  [alice@box dir]$  (venv) root@3f2a9c1b7d5e:/workspace#  alice@box ~ %
    (
        "@",
        r"(?m)^[^\S\n]*(?:\([^)\n]*\)[^\S\n]*)*\[?(?P<user>)@(?P<host>)"
        r"(?:[: ][^\n@]{0,200}?)?\]?[^\S\n]?[$#%>](?:\s|$)",
    ),
    ("@", r"\b(?:ssh|scp|sftp|rsync|mosh|ssh-copy-id)\b[^\n@]{0,200}?(?P<user>)@(?P<host>)"),
    ("@", r"(?<![\w.@/+:-])(?P<user>)@(?P<host>):[~/]"),
    ("] nccl", r"(?<![\w.-])(?P<host>):\d+:\d+(?::\d+)? \[\d+\] NCCL"),
    ("kernel:", r"(?:\d\d:\d\d:\d\d|\d[+-]\d\d:?\d\d|Z) (?P<host>) kernel:"),
    ("linux ", r"\bLinux (?P<host>) \d+\.\d+\.\d+[\w.-]* #"),
    (
        "hostname|host name|host_name|nodename|node name|computer",
        r"(?i)(?<![\w-])(?:host|node|computer)[ _-]?name[\"']?\s*[:=]\s*[\"']?(?P<host>)",
    ),
    ("host  |host :", r"(?m)^\s*host\s+:\s+(?P<host>)\s*$"),
    ("srun", r"\bsrun: error: (?P<host>): task"),
    (
        "connect to|connected to|connecting to",
        r"(?i)\bconnect(?:ed|ing)? to \[?(?P<host>)\]?[:,]\s?\d{2,5}\b",
    ),
    (" gid=", r"\buid=\d+\((?P<user>)\)"),
    (
        "username|user name|logname",
        r"(?i)(?<![\w-])(?:user ?name|logname)[\"']?\s*[:=]\s*[\"']?(?P<user>)",
    ),
)
"""Words of which one must be there (in lower case), and how a name is told with them."""


class Names(NamedTuple):
    """Whom a machine names. user, host: its own first names, the others were learnt from texts."""

    homes: Strings
    own_users: Strings
    own_hosts: Strings
    users: Strings
    hosts: Strings


def names_of(machine: Machine, text: str) -> Names:
    """The names of a machine's identity, and those that its own words (one a line) give away."""
    who = machine.identity
    home = (who.home or "").rstrip("/\\")
    homes = (home,) if len(home) > 1 and home.lower() != "/root" else ()
    last = re.split(r"[/\\]", home)[-1]
    known = KEPT | _vocabulary(machine)
    pairs = tuple(_named_in(text))
    own_users = _identifying((who.user, last, (who.user or "").rpartition("\\")[2]), KEPT)
    own_hosts = _hosts(who.host or "", known)
    users = _identifying((user for user, _ in pairs), known)
    hosts = dict.fromkeys(host for _, name in pairs for host in _hosts(name, known))
    return Names(
        homes,
        own_users,
        own_hosts,
        tuple(user for user in users if user not in own_users),
        tuple(host for host in hosts if host not in own_hosts),
    )


def user_pattern(names: Iterable[str]) -> str:
    """Finds these users: as a component of a path, as ~name, as name@host and in uid=7(name).

    Also in a line of limits.conf, which begins with the name.
    """
    any_name = _either(names)
    return (
        rf"(?i:(?<=[/\\~])(?:{any_name})(?![\w-]|\.\w)|(?<![\w.-])(?:{any_name})(?=@)"
        rf"|(?<![\w.-])(?:{any_name})(?= (?:soft|hard) )"
        rf"|(?<=\d\()(?:{any_name})(?=\)))"
    )


def host_pattern(names: Strings) -> str:
    """Finds these hosts, with the domain behind them.

    The host of a container is the beginning of its long name.
    """
    boxes = [name for name in names if re.fullmatch(r"[0-9a-f]{12}", name)]
    whole = [name for name in names if name not in boxes]
    ways = [rf"(?<![\w.-])(?P<it>{_either(whole)}){_DOMAIN}(?![\w-])"] if whole else []
    ways += [rf"(?P<box>{_either(boxes)})[0-9a-f]*"] if boxes else []
    return rf"(?i:{'|'.join(ways)})"


def home_pattern(home: str) -> str:
    """Finds that home as a whole; a URL of a file has a slash more."""
    # A run of separators is one: each with a + of its own could share them out in endless ways.
    parts = r"[\\/]+".join(re.escape(part) for part in re.split(r"[\\/]+", home))
    fold = "(?i)" if "\\" in home else ""
    return rf"{fold}(?:(?<=file://)|(?<![\w/\\])){parts}(?![\w-]|\.\w)"


def _either(names: Iterable[str]) -> str:
    return "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))


def _identifying(names: Iterable[OptStr], kept: frozenset[str]) -> Strings:
    """Those that identify somebody, each once."""
    stripped = dict.fromkeys(name.strip(".-") for name in names if name)
    return tuple(
        name
        for name in stripped
        if len(name) > 1 and name.lower() not in kept and not compiled(_NOBODY).fullmatch(name)
    )


def _hosts(name: str, kept: frozenset[str]) -> Strings:
    """The name of a host and its first part, if they identify it."""
    if compiled(_PUBLIC).fullmatch(name):
        return ()
    both = _identifying((name, name.partition(".")[0]), kept)
    return tuple(host for host in both if len(host) >= _SHORTEST_HOST)


def _named_in(text: str) -> Iterator[StrPair]:
    small = text.lower()
    for words, pattern in _NAME_PATTERNS:
        if any(word in small for word in words.split("|")):
            named = pattern.replace("user>", f"user>{_USER}").replace("host>", f"host>{_HOST}")
            for found in compiled(named).finditer(text):
                groups = found.groupdict("")
                yield groups.get("user", ""), groups.get("host", "")


def _vocabulary(machine: Machine) -> frozenset[str]:
    """Words of this machine's facts that no name may take away."""
    where, packages = machine.platform, (machine.packages or ()) + (machine.driver.packages or ())
    words = [where.distro, *(where.distro_like or ()), where.machine, where.virtual]
    words += [machine.python.kind, *(machine.driver.modules or ())]
    return frozenset(
        str(word).lower() for word in words + [package.name for package in packages] if word
    )
