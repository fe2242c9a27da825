"""pip: commands, requirements.txt, and `pip install --dry-run --report` as a resolver.

Always as `<interpreter> -m pip`: the pip on PATH may belong to another Python.
"""

import re
from collections.abc import Iterator
from typing import Any

import msgspec
from packaging.version import Version

from cudadoctor.installers.index import Source, host_in, is_official, options, pinned, source_for
from cudadoctor.installers.question import (
    SWITCHED_OFF,
    UNREACHED,
    Answer,
    File,
    Question,
    Target,
    bare_url,
    is_source,
    named_host,
    without_index,
)
from cudadoctor.installers.requirement import marker_of, sound, split_compiled
from cudadoctor.installers.stack import Stack, heading
from cudadoctor.installers.tool import (
    Command,
    Hashes,
    Recipe,
    Tool,
    Wanted,
    Written,
    interpreter,
    venv_package,
    within,
)
from cudadoctor.knowledge import Knowledge
from cudadoctor.model.findings import PackageChange
from cudadoctor.model.machine import Json, Machine, OptInt, OptStr, OptVersion, Strings
from cudadoctor.model.requirements import cut, normal
from cudadoctor.model.versions import version_of

OLDEST = Version("22.2")
"""The first pip that can report what it would install."""
READ_TIMEOUT_S = 15
_BUILD_NEEDS = ("setuptools", "wheel", "packaging", "ninja", "psutil")
"""What the setup.py of such packages import, which nobody else installs without isolation."""
_MOST_NAMED = 5
_ON_TORCHS_INDEX = ("torch", "torchvision", "torchaudio")


# --- commands ----------------------------------------------------------------------------------


def write(m: Machine, _: Knowledge, change: PackageChange) -> Written:
    """The change in the examined environment."""
    python = interpreter(m)
    ensured: tuple[Command, ...] = ()
    system: tuple[Command, ...] = ()
    manual = None
    if m.python.pip is False and m.python.ensurepip is False:
        system = venv_package(m)
        if not system:
            manual = (
                f"First install pip for {python} with the system's package manager, or use uv "
                "instead."
            )
    if m.python.pip is False and manual is None:
        ensured = ((python, "-m", "ensurepip", "--upgrade"),)
    installed = install(m, change, python)
    removed = sound(change.remove)
    uninstall = ((python, "-m", "pip", "uninstall", "-y", *removed),) if removed else ()
    asked = (rehearsed(installed.commands[0], "--ignore-installed"),) if change.ask else ()
    commands = (*ensured, *asked, *uninstall, *installed.commands)
    return Written(tool="pip", commands=commands, manual=manual, note=installed.note, system=system)


def rehearsed(command: Command, *more: str) -> Command:
    """The same installation, only resolved: it fails before anything is removed."""
    verb = command.index("install") + 1
    return (*command[:verb], "--dry-run", *more, *command[verb:])


def install(m: Machine, change: PackageChange, python: str) -> Written:
    """The installing half of the change, into any interpreter's environment."""
    source = source_for(m, change, "pip")
    commands = installs(
        (python, "-m", "pip", "install"), change, source, options(source), "--no-cache-dir"
    )
    return Written(tool="pip", commands=commands, note=source.note)


def installs(
    start: Command, change: PackageChange, source: Source, options: Command, *compiling: str
) -> tuple[Command, ...]:
    """Commands for what comes as wheels, and then for what is compiled against torch."""
    links = ("--find-links", change.find_links) if change.find_links else ()
    commands = []
    first = options if change.then else (*options, *links)
    parts = ((pinned(sound(change.install), source), first), (sound(change.then), links))
    for wanted, more in parts:
        wheels, compiled = split_compiled(wanted)
        if wheels:
            commands.append((*start, *wheels, *more))
        if compiled:
            commands.append((*start, *_BUILD_NEEDS))
            commands.append((*start, "--no-build-isolation", *compiling, *compiled))
    return tuple(commands)


# --- requirements.txt --------------------------------------------------------------------------


def text(stack: Stack, kb: Knowledge, hashes: Hashes | None = None) -> str:
    """requirements.txt, for pip and for uv; with hashes, every file that was resolved is pinned.

    torch's own index is an extra one and torch is pinned with its local version. So pip and uv find
    the same wheel, although pip takes the highest version of all indexes and uv the first index
    that has the package, extra ones first.
    """
    use = (
        "Install it with: pip install --require-hashes -r requirements.txt"
        if hashes
        else "Install it with: pip install -r requirements.txt"
        " (uv: uv pip install -r requirements.txt)"
    )
    lines = [*heading(stack, kb, use), ""]
    if stack.index:
        lines.append(f"--extra-index-url {stack.index}")
    lines += _pinned(stack, hashes) if hashes else [*torch_lines(stack), *stack.then]
    return "\n".join(lines) + "\n"


def torch_lines(stack: Stack) -> Iterator[str]:
    """torch and its companions as requirements, with markers where platforms differ."""
    torch, *companions = stack.pins
    plain = [platform for platform in stack.platforms if platform not in stack.tagged]
    for pin, platforms in ((f"{torch}+{stack.lead.variant}", stack.tagged), (torch, plain)):
        if platforms:
            marker = marker_of(platforms, stack.platforms)
            yield f"{pin} ; {marker}" if marker else pin
    # pip and uv both prefer what torch's index has; it does not tag them on every platform.
    yield from companions


def _pinned(stack: Stack, hashes: Hashes) -> Iterator[str]:
    """Every resolved release with its digests, torch and what belongs to it first."""
    first = ["torch", *(name for name, _ in stack.companions)]
    found = sorted((normal(name), version, some) for (name, version), some in hashes.items())
    found.sort(key=lambda row: first.index(row[0]) if row[0] in first else len(first))
    for name, version, digests in found:
        hashed = (f"--hash=sha256:{digest}" for digest in sorted(set(digests)))
        yield " \\\n    ".join((f"{name}=={version}", *hashed))


# --- as a resolver -----------------------------------------------------------------------------


def version_in(text: str) -> OptVersion:
    """pip's own version, from `pip --version`."""
    found = re.search(r"pip (\d[\w.]*) from ", text)
    return version_of(found[1]) if found else None


def argv(target: Target, question: Question, *, report: str, log: str, here: bool) -> Strings:
    """pip's words. report, log: files that it writes."""
    words = ["install", "--dry-run", "--ignore-installed", "--quiet", "--no-input", "--no-user"]
    words += ["--disable-pip-version-check", "--retries", "1", "--timeout", str(READ_TIMEOUT_S)]
    # Never an archive of source: to look into one is to run its setup.py.
    words += ["--only-binary=:all:", "--use-feature=fast-deps", "--report", report, "--log", log]
    words += ["--target", f"{report}.never", "--python-version", target.release]
    words += ["--implementation", "cp", "--abi", target.abi]
    words += [word for tag in target.tags for word in ("--platform", tag)]
    words += ["--index-url", question.index] if question.index else []
    words += [word for url in question.extra for word in ("--extra-index-url", url)]
    words += ["--no-index"] if without_index("pip", question, here=here) else []
    return (*words, *question.first)


VARIABLES: dict[str, OptStr] = {
    "PIP_REQUIRE_VIRTUALENV": "0",
    **dict.fromkeys(("PIP_PYTHON", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_TARGET")),
}
"""Settings of the user's that an answer without an installation cannot be had with."""


def read(code: OptInt, report: str, stderr: str, log: str, abi: str) -> Answer:
    """What pip said. log: what it wrote down on the way. abi: the target's (cp312)."""
    if code == 0:
        files = _files(report)
        if files is None:
            return Answer(kind="unfit", text="pip returned no report")
        return Answer(kind="resolved", files=files)
    output = re.sub(r"(?m)^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[,.]\d+ ", "", log) + "\n" + stderr
    if unreached := _unreached(output):
        return unreached
    if "Ignoring indexes: " in output:
        return Answer(kind="unreached", text=SWITCHED_OFF)
    if found := re.search(r"(?m)No matching distribution found for (.+?)(?: \(from .*)?$", output):
        return _absent(found[1].strip(), output, abi)
    if conflict := re.search(r"(?s)The conflict is caused by:\s*\n(.+?)\n\s*\n", output):
        return Answer(kind="refused", text=_conflict(conflict[1]))
    if "ResolutionImpossible" in output or "conflicting dependencies" in output:
        first = next((line for line in stderr.splitlines() if line.startswith("ERROR:")), stderr)
        return Answer(kind="refused", text=first.removeprefix("ERROR: "))
    last = [line for line in stderr.splitlines() if line.strip()][-1:]
    return Answer(kind="unfit", text="".join(last).removeprefix("ERROR: "))


def _unreached(output: str) -> Answer | None:
    """The index that gave no answer. A page that is not there (404) is an answer."""
    for url, why in re.findall(r"(?m)Could not fetch URL (\S+): (.+?)(?: - skipping)?$", output):
        # torch's own says 403 in place of 404; of torch itself that would be a lie: a refusal.
        package = url.rstrip("/").rpartition("/")[2]
        others = is_official(url) and package not in _ON_TORCHS_INDEX
        if "404 Client Error" not in why and not (others and "403 Client Error" in why):
            return Answer(kind="unreached", host=host_in(url) or named_host(why))
    if untrusted := re.search(r"located at (\S+) is not a trusted or secure host", output):
        how = "is served without TLS, so pip refuses to use it"
        return Answer(kind="unreached", host=untrusted[1], how=how)
    broken = [line for line in output.splitlines() if re.search(UNREACHED, line)]
    host = next(filter(None, map(named_host, broken)), "")
    return Answer(kind="unreached", host=host) if broken else None


def _absent(requirement: str, output: str, abi: str) -> Answer:
    """Why nothing satisfies a requirement, from what pip passed over."""
    asked = cut(requirement)
    name = asked.name if asked else normal(requirement)
    pin = requirement.partition("==")[2]
    sources = re.findall(r"Skipping link: No sources permitted for ([\w.-]+): (\S+)", output)
    if any(normal(of) == name and (not pin or f"-{pin}." in url) for of, url in sources):
        return Answer(kind="source", text=name)
    python = re.search(r"following versions that require a different python version: (.+)", output)
    releases = python[1].split("; ") if python else []
    if of_it := [release for release in releases if not pin or release.startswith(f"{pin} ")]:
        return Answer(
            kind="refused", text=f"{requirement} does not support this Python version: {of_it[-1]}"
        )
    if made := _made_for(name, pin, output, abi):
        return Answer(
            kind="refused", text=f"the available wheels for {requirement} are built for {made}"
        )
    offered = re.search(r"satisfies the requirement \S.*? \(from versions: (.*)\)", output)
    if offered is None or offered[1] in ("", "none"):
        return Answer(kind="refused", text=f"no versions of {requirement} are available")
    last = ", ".join(offered[1].split(", ")[-_MOST_NAMED:])
    return Answer(
        kind="refused", text=f"{requirement} is not available; the newest versions are {last}"
    )


def _made_for(name: str, pin: str, output: str, abi: str) -> str:
    """What the wheels are for that are there: other platforms, else other Pythons."""
    skipped = r"Skipping link: none of the wheel's tags \(([^)]*)\) are compatible.*: (\S+)"
    found = set()
    for tags, url in re.findall(skipped, output):
        parts = url.rpartition("/")[2].replace("%2B", "+").split("-")
        if normal(parts[0]) == name and (not pin or parts[1:2] == [pin]):
            found.add(tags.split(", ")[0])
    same = sorted(tag.split("-", 2)[2] for tag in found if f"-{abi}-" in tag)
    pythons = sorted({tag.split("-", 1)[0] for tag in found}, key=lambda tag: (len(tag), tag))
    return ", ".join((same or pythons)[:_MOST_NAMED])


def _conflict(block: str) -> str:
    """pip's two kinds of lines: what the command asked for, and what packages depend on."""
    asked = r"^The user requested (?:\(constraint\) )?(.+)"
    lines = [
        re.sub(asked, r"\1 is requested", line.strip())
        for line in block.splitlines()
        if line.strip()
    ]
    return " and ".join(filter(None, (", ".join(lines[:-1]), *lines[-1:])))


def _files(report: str) -> tuple[File, ...] | None:
    try:
        found: Any = msgspec.json.decode(report)
        files = tuple(map(_file, found["install"]))
    except (msgspec.DecodeError, UnicodeError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return files if not any(is_source(file.url) for file in files) else None


def _file(row: Json) -> File:
    download = row["download_info"]
    archive = download.get("archive_info") or {}
    plain = str(archive.get("hash") or "").partition("sha256=")[2] or None
    return File(
        url=bare_url(download["url"]),
        name=normal(row["metadata"]["name"]),
        version=str(row["metadata"]["version"]),
        sha256=(archive.get("hashes") or {}).get("sha256") or plain,
    )


def new(wanted: Wanted) -> Recipe:
    """A virtual environment of the given Python."""
    assert wanted.base is not None, "pip fetches no Python"
    python = within(wanted.machine, wanted.folder)
    installed = install(wanted.machine, wanted.change, python)
    commands = ((wanted.base, "-m", "venv", wanted.folder), *installed.commands)
    return Recipe(wanted=wanted, python=python, commands=commands, note=installed.note)


TOOL = Tool(
    name="pip",
    programs=("pip",),
    fits=lambda _: True,
    write=write,
    kind="requirements",
    file="requirements.txt",
    text=text,
    new=new,
    makes="a virtual environment",
)
