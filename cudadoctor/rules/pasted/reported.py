"""Rules out of the table of symptoms: one for each cause that an error text can mean.

They judge pasted reports only. A text alone is likely or possible; where the facts of the report
prove the same cause, the rule that judges hosts finds it too, and says it with certainty.
"""

import re
import shlex
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace
from packaging.version import Version

from cudadoctor.knowledge import Knowledge
from cudadoctor.knowledge.symptoms import CauseText, Meaning, symptoms
from cudadoctor.model.catalogue import HARMLESS
from cudadoctor.model.findings import (
    POSSIBLE,
    Candidate,
    Confidence,
    Finding,
    Remedies,
    Remedy,
    Risk,
    Severity,
    ranked,
)
from cudadoctor.model.machine import Machine, OptStr, Strings, Symptom
from cudadoctor.model.requirements import BUILT_AS, COMPANIONS, EXTENSIONS, admits
from cudadoctor.model.rule import Answer, Found, NotKnown, Rule
from cudadoctor.model.trust import PLACEHOLDER, acting
from cudadoctor.plan.remedies import (
    by_hand,
    c_compiler,
    container_option,
    device_groups,
    for_other_maker,
    grant_gpu,
    install_companion,
    install_driver,
    install_packages,
    install_toolkit,
    install_torch,
    jetson_torch,
    load_driver,
    older_cuda,
    open_modules,
    pinned_torch,
    proprietary_modules,
    python_headers,
    reboot,
    rebuild_extension,
    reinstall_torch,
    set_variables,
    unset_variables,
    upgrade_driver,
    wsl_driver,
)
from cudadoctor.plan.remedies.process import keeper_of
from cudadoctor.rules.build import torch_arch_unsupported_new, torch_arch_unsupported_old
from cudadoctor.rules.container import with_compute
from cudadoctor.rules.driver import TOLD, each_once
from cudadoctor.rules.evidence.libraries import Need, apart, needs_of_others, torch_beside
from cudadoctor.rules.evidence.signs import driver_system, gpu_present
from cudadoctor.rules.install import libraries_again
from cudadoctor.rules.modes import start_fabric
from cudadoctor.rules.pasted.conditions import holds, named_in, refuted, toolkit_used
from cudadoctor.solver.demand import capabilities_of, platform_of
from cudadoctor.solver.supposed import as_listed

VERDICT = "cudadoctor-verdict"
"""The symptom that is a verdict of this doctor; its cause stands among its values."""


class Sign(NamedTuple):
    """A symptom of the report with the meaning that fits. place: its number in the machine."""

    place: int
    symptom: Symptom
    meaning: Meaning


def reported_rules(deeper: dict[str, Strings]) -> tuple[Rule, ...]:
    """One rule a cause of the table. deeper: cause -> causes that explain it away."""
    return tuple(
        Rule(
            name=f"reported-{cause}",
            cause=cause,
            title=text.title,
            severity=Severity[text.severity.upper()],
            judge=partial(_judge, cause, text),
            yields_to=tuple(dict.fromkeys((*deeper.get(cause, ()), *text.yields_to))),
            why=text.why,
            page="",
        )
        for cause, text in symptoms().causes.items()
    )


def _judge(cause: str, text: CauseText, m: Machine, kb: Knowledge) -> Answer:
    signs = _signs(cause, m, kb)
    if not signs:
        return None
    best = min(signs, key=_worth)
    meaning, values = best.meaning, dict(best.symptom.values)
    about = None if meaning.title else _about_package(cause, m)
    # Of each line one text is shown: a sentence often holds several symptoms.
    lines: dict[object, str] = {}
    for sign in (best, *signs):
        lines.setdefault(sign.symptom.line or sign.place, f"symptoms.{sign.place}.text")
    return Found(
        evidence=(*tuple(lines.values())[:3], *meaning.shows),
        values={**values, **(about or {})},
        confidence=Confidence[meaning.confidence.upper()],
        severity=Severity[meaning.severity.upper()] if meaning.severity else None,
        title=_TITLES[cause, "version" in about] if about else meaning.title,
        why=meaning.why,
        remedies=_own(cause, meaning.cure, m) or cures(cause, text.cure, m, kb),
    )


_TITLES = {
    ("torch-extension-abi", True): "{package} {version} was not built for your torch {torch}",
    ("torch-extension-abi", False): "{package} was not built for your torch {torch}",
    ("torch-companion-mismatch", True): "{package} {version} does not match torch {torch}",
    ("torch-companion-mismatch", False): "{package} does not match torch {torch}",
}
"""By the cause, and whether the report tells the package's release."""


def _about_package(cause: str, m: Machine) -> dict[str, str] | None:
    """What a title says of the one package that the error texts name, beside a torch."""
    packages = _PACKAGES_OF.get(cause)
    named = packages(m) if packages and m.torch.version else ()
    if len(named) != 1:
        return None
    listed = m.package(named[0])
    known = {"package": named[0], "torch": m.torch.text or str(m.torch.version)}
    return known | ({"version": listed.version} if listed else {})


def _worth(sign: Sign) -> tuple[Confidence, int, bool, int]:
    """The surest text counts, of equals the first; of one line what has words of its own."""
    sure = Confidence[sign.meaning.confidence.upper()]
    return sure, sign.symptom.line or 0, sign.meaning.title is None, sign.place


def _signs(cause: str, m: Machine, kb: Knowledge) -> list[Sign]:
    """The signs of this cause in a report, then those in a pasted verdict of this doctor."""
    keys, signs, repeated = symptoms().meaning.get(cause, ()), [], []
    for place, symptom in enumerate(m.symptoms or ()):
        meaning = meaning_of(symptom, m, kb) if symptom.key in keys else None
        if meaning and meaning.cause == cause and not _contradicted(meaning, m, kb):
            signs.append(Sign(place, symptom, meaning))
        if symptom.key == VERDICT and symptom.values.get("cause") == cause:
            unsure = symptom.values.get("sure", "").strip().lower() == "possible"
            verdict = Meaning(cause=cause, confidence="possible" if unsure else "likely")
            repeated.append(Sign(place, symptom, verdict))
    return signs + repeated


_CONTRADICTED = {
    "container-no-gpu": "cuda-available",
    "scheduler-no-gpu": "cuda-available",
    "torch-arch-unsupported-new": "build-serves-gpu",
    "torch-arch-unsupported-old": "build-serves-gpu",
}
"""Causes that a text makes possible at most, where the facts of the report show the contrary."""


def _contradicted(meaning: Meaning, m: Machine, kb: Knowledge) -> bool:
    fact = _CONTRADICTED.get(meaning.cause)
    return fact is not None and meaning.confidence == "possible" and holds(fact, m, kb)


def meaning_of(symptom: Symptom, m: Machine, kb: Knowledge) -> Meaning | None:
    """Its first meaning whose conditions all hold."""
    row = symptoms().by_key.get(symptom.key)
    for meaning in row.means if row else ():
        if all(holds(condition, m, kb) for condition in meaning.when):
            return meaning
    return None


def candidates_in(
    m: Machine, kb: Knowledge, findings: tuple[Finding, ...]
) -> tuple[Candidate, ...]:
    """The causes that a report leaves open, the likeliest first.

    score: 0.6 for what is likely to be no matter of the environment, 0.5 for what was found to be
    possible; below it what the same error texts mean in other circumstances, in the order of the
    table.
    """
    scores = {
        finding.cause: 0.5 if finding.confidence is POSSIBLE else 0.6
        for finding in findings
        if not finding.because_of and finding.cause != "unknown"
    }
    for symptom in m.symptoms or ():
        row = symptoms().by_key.get(symptom.key)
        still = [way for way in row.means if not refuted(way.when, m, kb)] if row else []
        for number, meaning in enumerate(still, 1):
            scores.setdefault(meaning.cause, round(0.3 / number, 2))
    return ranked(scores)


def complaints(m: Machine, kb: Knowledge) -> tuple[Symptom, ...]:
    """The error texts that mean something here: dumps hold other words, too, that mean nothing."""
    return tuple(
        symptom
        for symptom in m.symptoms or ()
        if (meaning := meaning_of(symptom, m, kb))
        and (meaning.cause not in HARMLESS or meaning.confidence != "possible")
    )


def commands_in(m: Machine, kb: Knowledge) -> tuple[tuple[str, Strings], ...]:
    """Causes that the report's error texts can mean, each with the command that would tell."""
    return tuple(
        (meaning.cause, command)
        for symptom in m.symptoms or ()
        if (meaning := meaning_of(symptom, m, kb))
        and (command := symptoms().by_key[symptom.key].next)
    )


def _own(cause: str, words: OptStr, m: Machine) -> Remedies:
    """The cure of this meaning alone: it knows more than what is said of the cause."""
    return _by_words(f"cure-{cause}", words, m) if words else ()


def cures(cause: str, words: str, m: Machine, kb: Knowledge) -> Remedies:
    """The ways out for this cause: the remedies of hosts if the report's facts suffice for them.

    Those know the platform, and prescribe no driver inside a container, WSL or a Jetson.
    words: the cure as the table of symptoms says it.
    """
    m = as_listed(m, kb)
    seen = frozenset(symptom.key for symptom in m.symptoms or ())
    if cause in _BY_MACHINE:
        ways = _BY_MACHINE[cause](m)
    elif cause in _BY_TABLES:
        ways = _BY_TABLES[cause](m, kb)
    else:
        ways = _BY_SYMPTOMS[cause](m, kb, seen) if cause in _BY_SYMPTOMS else ()
    if ways:
        return ways
    if cause == "torch-companion-mismatch" and _of_another_maker(m):
        text = "Use the package index or the container image that your torch came from."
        return by_hand(f"cure-{cause}", "Install torch and its companions together", text)
    return _by_words(f"cure-{cause}", _of_this_release(words, m), m)


def _of_another_maker(m: Machine) -> bool:
    """Whether the report's torch is none of PyTorch's builds for CUDA or the CPU."""
    local = (m.torch.version.local if m.torch.version else None) or ""
    return re.fullmatch(r"(?:cpu|cu\d+)?", local) is None


def _of_this_release(words: str, m: Machine) -> str:
    """The words with torch's release: without it pip takes the newest, which may not run there."""
    torch = m.torch.version
    if torch is None or torch.is_prerelease or _of_another_maker(m):
        return words
    return re.sub(r"(?<=--force-reinstall torch)(?=[` ])", f"=={torch.public}", words)


_COMMANDS = re.compile(r"(?P<title>[^`]+): `(?P<run>.+)`")
"""The first sentence of a cure that ends in commands."""
_RUNS = {
    "nvidia-smi.exe",
    "python",
    "python3",
    ".venv-torch/bin/python",
    "uv",
    "conda",
    "sudo",
    "export",
    "unset",
}
"""What a command begins with that is the same on every machine."""
_OF_A_SHELL = re.compile(r"[|;&>*$]|python3? -c ")


def _by_words(name: str, words: str, m: Machine) -> Remedies:
    """A cure as the table says it: its first sentence is the title, or the title and commands."""
    first, _, rest = words.partition(". ")
    found = _COMMANDS.fullmatch(first.rstrip("."))
    run = found["run"].split("`, then `") if found else []
    if found is None or any("`" in line for line in run):
        return by_hand(name, first.rstrip("."), rest or words)
    title = found["title"]
    argvs = [shlex.split(line) for line in run]
    if _OF_A_SHELL.search(found["run"]) or not {argv[0] for argv in argvs} <= _RUNS:
        return by_hand(name, title, "Run " + words.removeprefix(f"{title}: "))
    if argvs[0][0] == "export":
        pairs = (pair.partition("=") for pair in argvs[0][1:])
        ways = set_variables(name, title, {name: value for name, _, value in pairs})
        return tuple(replace(way, note=rest or None) for way in ways)
    if argvs[0][0] == "unset":
        ways = unset_variables(m, *argvs[0][1:])
        worded = (replace(way, title=title, note=rest or way.note) for way in ways)
        return tuple(worded) if all(way.variables for way in ways) else ways
    root = argvs[0][0] == "sudo"
    python = acting(m).python.executable or PLACEHOLDER
    commands = (argv[1:] if root else argv for argv in argvs)
    return (
        Remedy(
            id=name,
            title=title,
            where="windows" if ".exe" in argvs[0][0] else keeper_of(m) if root else "here",
            risk=Risk.SYSTEM if root else Risk.ENVIRONMENT,
            needs_root=root,
            commands=tuple(
                tuple(python if w == "python" else w for w in argv) for argv in commands
            ),
            note=rest or None,
        ),
    )


def _old_driver(m: Machine, kb: Knowledge) -> Remedies:
    floor = kb.driver_floor(m.torch.cuda, driver_system(m)) if m.torch.cuda else None
    newer = upgrade_driver(m, kb, floor.driver.branch) if floor else ()
    if m.torch.cuda and any(symptom.key == "ptx-newer-than-driver" for symptom in m.symptoms or ()):
        # Any driver of the same major runs the build; its PTX needs one of the same CUDA.
        own = kb.branch_for(m.torch.cuda)
        return each_once(*(upgrade_driver(m, kb, own) if own else newer), *older_cuda(m, kb))
    return each_once(*install_torch(m, kb), *newer)


def _cudnn(m: Machine, kb: Knowledge) -> Remedies:
    """cuDNN as torch pins it, where that is a wheel of its own.

    Before it the torch that also serves a program which wants another release; where that wants
    another major, the program's own release instead.
    """
    pin = kb.cudnn_pin(m.torch.version, m.torch.cuda, platform_of(m))
    if pin is None or (m.python.kind or "").startswith("conda") or m.platform.jetson:
        return ()
    name, _, release = pin.partition("==")
    others = [
        need for need in needs_of_others(m, kb, name) if not admits(need.wanted, Version(release))
    ]
    if holds("cudnn-of-another-major", m, kb):
        return _for_cudnn(kb, others, release)
    again = install_packages("reinstall-cudnn", "Reinstall cuDNN", pin, remove=(name,))
    return torch_beside(m, kb, others) + tuple(replace(way, note=apart(others)) for way in again)


def _as_on_hosts(rule: Rule, m: Machine, kb: Knowledge) -> Remedies:
    """What the rule for hosts prescribes, where the report holds what it asks for."""
    try:
        found = rule.judge(m, kb)
    except NotKnown:
        found = None
    return found.remedies if found and found.remedies else install_torch(m, kb)


def _mixed(m: Machine, kb: Knowledge) -> Remedies:
    """cuDNN as torch pins it; where it is, the wheel whose files are gone, or another torch."""
    if holds("cudnn-not-as-pinned", m, kb) or holds("cudnn-of-another-major", m, kb):
        return _cudnn(m, kb)
    return _missing_wheels(m, kb) or _cudnn(m, kb)[:-1]


def _missing_wheels(m: Machine, kb: Knowledge) -> Remedies:
    """The wheels whose files the error texts miss, where the report lists them."""
    missing = tuple(name for name in named_in(m, "library") if name.startswith("lib"))
    return libraries_again(m, kb, missing)


def _for_cudnn(kb: Knowledge, others: Iterable[Need], release: str) -> Remedies:
    """The releases of other programs that work with torch's cuDNN."""
    major = release.partition(".")[0]
    for need in others:
        for requirement, wanted in kb.releases_needing(need.program.name, need.wheel):
            if admits(wanted, Version(release)):
                named = requirement.replace("==", " ").replace(">=", " ")
                more = " or newer" if ">=" in requirement else ""
                title = f"Install {named}{more}, which works with torch's cuDNN {major}"
                return install_packages("program-for-cudnn", title, requirement)
    title = f"Install a release of the program that works with torch's cuDNN {major}"
    text = (
        "Reinstalling torch or its cuDNN does not help: the program, not torch, asks for another "
        "cuDNN. If it has no such release, install it in a separate environment."
    )
    return by_hand("program-for-cudnn", title, text)


def _extension(m: Machine, kb: Knowledge) -> Remedies:
    """The release for the report's torch, of the extension that an error text names."""
    named = _extensions(m) if m.torch.build == "cuda" else ()
    if len(named) != 1:
        return pinned_torch(m, kb)
    ways = pinned_torch(m, kb) + _replaced(m, kb, *named)
    # Of these there are no wheels anywhere.
    return ways or (rebuild_extension(m, *named) if named[0] in BUILT_AS else ())


def _companion(m: Machine, kb: Knowledge) -> Remedies:
    """The companions of another torch, by the tables; all of them where none stands out.

    Without a list, those that the error texts name.
    """
    torch = Version(m.torch.version.public) if m.torch.version else None
    listed = [package for package in map(m.package, _PAIRED) if package]
    off = [
        package.name
        for package in listed
        if torch and package.version.partition("+")[0] not in kb.companion(package.name, torch)
    ]
    names = off or [package.name for package in listed] or _companions(m)
    return pinned_torch(m, kb) or _replaced(m, kb, *names)


_PAIRED = ("torchvision", "torchaudio", "torchcodec")


def _replaced(m: Machine, kb: Knowledge, *names: str) -> Remedies:
    """The releases for this torch; what no list shows goes first: pip would keep its release."""
    unlisted = tuple(name for name in names if m.package(name) is None)
    return tuple(
        replace(way, packages=replace(way.packages, remove=(*way.packages.remove, *unlisted)))
        if way.packages
        else way
        for way in install_companion(m, kb, *names)
    )


def _extensions(m: Machine) -> Strings:
    """The extensions that the error texts name; else the one in the traceback above them."""
    return _named("torch-extension-abi", EXTENSIONS, m) or _in_texts(
        EXTENSIONS, _texts(m, "extension-in-traceback")
    )


def _companions(m: Machine) -> Strings:
    return _named("torch-companion-mismatch", {*COMPANIONS, *_PAIRED}, m)


_PACKAGES_OF = {"torch-extension-abi": _extensions, "torch-companion-mismatch": _companions}


def _named(cause: str, packages: Iterable[str], m: Machine) -> Strings:
    """The packages that the error texts of that cause name."""
    return _in_texts(packages, _texts(m, *symptoms().meaning.get(cause, ())))


def _texts(m: Machine, *keys: str) -> str:
    return "\n".join(symptom.text.lower() for symptom in m.symptoms or () if symptom.key in keys)


def _in_texts(packages: Iterable[str], texts: str) -> Strings:
    """The packages whose names, or whose modules', stand in the texts."""
    patterns = {name: name.replace("-", "[-_]") for name in sorted(packages)}
    if "torch-tensorrt" in patterns:
        patterns["torch-tensorrt"] += "|libtorchtrt"
    return tuple(
        name
        for name, pattern in patterns.items()
        if re.search(rf"(?<![a-z0-9_])(?:{pattern})", texts)
    )


def _other_maker(m: Machine, kb: Knowledge, seen: frozenset[str]) -> Remedies:
    """The build for the card that the report names, if no NVIDIA card is beside it."""
    makers = [maker for maker in ("amd", "intel") if f"{maker}-card-named" in seen]
    return () if gpu_present(m) or len(makers) != 1 else for_other_maker(m, kb, makers[0])


def _arch_list(m: Machine, kb: Knowledge, seen: frozenset[str]) -> Remedies:
    """A newer toolkit, where nvcc does not know this GPU; else another list."""
    used = toolkit_used(m)
    known = kb.nvcc_capabilities(used) if used else None
    lacks = known is not None and not set(capabilities_of(m, kb) or ()) <= set(known)
    if "architecture-unknown-to-nvcc" in seen and lacks:
        return install_toolkit(m)
    listed = "TORCH_CUDA_ARCH_LIST" in (m.env or {}) and "architecture-list-empty" not in seen
    return unset_variables(m, "TORCH_CUDA_ARCH_LIST") if listed else ()


def _torch(m: Machine, kb: Knowledge) -> Remedies:
    """The build that fits, where the report says for what; on a Mac there is only one."""
    if m.platform.system == "Darwin":
        return install_packages("install-torch", "Install torch", "torch")
    return install_torch(m, kb) if m.gpus else ()


def _unloaded(m: Machine, _: Knowledge, seen: frozenset[str]) -> Remedies:
    return load_driver(m, next((TOLD[key] for key in TOLD if key in seen), "modprobe"))


_ABOUT_RELEASES = {"triton-of-another-release", "triton-not-there", "triton-does-not-compile"}
_COMPILER_WORDS = ("failed to find c compiler", "cl is not found", "find msvc", "c++ compiler")
_HEADERS = (
    "Install Python's headers. On Ubuntu and Debian, run `sudo apt-get install python3-dev` (for "
    "another Python version, install python3.12-dev or similar). On Fedora and RHEL, run `sudo dnf "
    "install python3-devel`. uv and conda environments already include the headers."
)
_BRINGS_COMPILER = (
    "From 3.2.0.post13 on, triton-windows includes a C compiler. Install the release for your "
    "torch: 3.2 for torch 2.6, 3.3 for 2.7, 3.4 for 2.8, 3.5 for 2.9."
)


def _triton(m: Machine, kb: Knowledge, seen: frozenset[str]) -> Remedies:
    """Triton of its own for Windows; on Linux the one that torch pins, and what it compiles with.

    A toolkit in pieces needs words.
    """
    texts = _texts(m, *seen)
    windows, linux = m.platform.system == "Windows", m.platform.system == "Linux"
    if "python-headers-missing" in seen or "failed to find python libs" in texts:
        ways = python_headers(m)
        known = windows or (linux and any(way.commands for way in ways))
        return ways if known else _by_words("cure-triton-broken", _HEADERS, m)
    lacking = "compiler-not-found" in seen or any(words in texts for words in _COMPILER_WORDS)
    if windows and (lacking or seen & _ABOUT_RELEASES):
        title = "Install Triton for Windows"
        usual = install_packages("triton-windows", title, "triton-windows")
        words = by_hand("triton-windows", "Upgrade triton-windows", _BRINGS_COMPILER)
        return install_companion(m, kb, "triton-windows") or (words if lacking else usual)
    if lacking:
        ways = c_compiler(m) if linux else ()
        return ways if any(way.commands for way in ways) else ()
    if "toolkit-in-pieces" in seen or not seen & _ABOUT_RELEASES:
        return ()
    return reinstall_torch(m, kb) if m.torch.version and linux else ()


_BY_MACHINE: dict[str, Callable[[Machine], Remedies]] = {
    # Inside a container a reboot is not the only way, which the words say.
    "driver-library-mismatch": lambda m: () if m.container.kind else reboot(m),
    "device-permission": device_groups,
    "container-no-gpu": grant_gpu,
    "container-driver-caps": with_compute,
    "fabric-manager": start_fabric,
    "scheduler-no-gpu": grant_gpu,
    "shm-too-small": lambda m: container_option(
        m, "shm-size", "Give the container a larger /dev/shm", "--shm-size=8g"
    ),
    "wsl-setup": wsl_driver,
    # A job's own list is the scheduler's to change.
    "visible-devices-hides-gpu": lambda m: grant_gpu(m) if m.container.scheduler else (),
}
_BY_TABLES: dict[str, Callable[[Machine, Knowledge], Remedies]] = {
    "driver-too-old": _old_driver,
    "driver-not-installed": install_driver,
    "jetson-build": jetson_torch,
    "torch-arch-unsupported-new": partial(_as_on_hosts, torch_arch_unsupported_new),
    "torch-arch-unsupported-old": partial(_as_on_hosts, torch_arch_unsupported_old),
    "torch-missing": _torch,
    "torch-cpu-build": _torch,
    "torch-install-corrupt": lambda m, kb: _missing_wheels(m, kb) or reinstall_torch(m, kb),
    "cudnn-missing-sublib": _cudnn,
    "cudnn-shadowed": lambda m, kb: _cudnn(m, kb) if holds("cudnn-not-as-pinned", m, kb) else (),
    "nvidia-wheels-mixed": _mixed,
    "torch-companion-mismatch": _companion,
    "torch-extension-abi": _extension,
}
_BY_SYMPTOMS: dict[str, Callable[[Machine, Knowledge, frozenset[str]], Remedies]] = {
    "driver-not-loaded": _unloaded,
    "driver-wrong-flavour": lambda m, kb, seen: (
        proprietary_modules(m, kb) if "needs-proprietary-modules" in seen else open_modules(m, kb)
    ),
    "triton-broken": _triton,
    "torch-wrong-backend": _other_maker,
    "arch-list-wrong": _arch_list,
}
