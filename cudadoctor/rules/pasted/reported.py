"""Rules out of the table of symptoms: one for each cause that an error text can mean.

They judge pasted reports only. A text alone is likely or possible; where the facts of the report
prove the same cause, the rule that judges hosts finds it too, and says it with certainty.
"""

import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace
from packaging.version import Version

from cudadoctor.installers.requirement import name_of
from cudadoctor.knowledge import Knowledge
from cudadoctor.knowledge.symptoms import CauseText, Meaning, symptoms
from cudadoctor.model.catalogue import HARMLESS
from cudadoctor.model.findings import (
    Confidence,
    Remedies,
    Remedy,
    Risk,
    Severity,
    Standing,
)
from cudadoctor.model.machine import Distribution, Machine, OptStr, Strings, Symptom
from cudadoctor.model.requirements import BUILT_AS, COMPANIONS, EXTENSIONS, cut
from cudadoctor.model.rule import Answer, Found, NotKnown, Rule, remembered
from cudadoctor.model.trust import PLACEHOLDER, acting
from cudadoctor.model.versions import version_of
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
from cudadoctor.plan.remedies.torch import extension_wheel, remedy_for
from cudadoctor.rules.build import torch_arch_unsupported_new, torch_arch_unsupported_old
from cudadoctor.rules.companions import built_for_other
from cudadoctor.rules.container import with_compute
from cudadoctor.rules.driver import TOLD, each_once
from cudadoctor.rules.evidence.libraries import (
    Need,
    apart,
    others_needing,
    release_beside,
    releases_beside,
    torch_beside,
)
from cudadoctor.rules.evidence.signs import WORDS, driver_system, gpu_present, in_passing
from cudadoctor.rules.install import libraries_again
from cudadoctor.rules.modes import start_fabric
from cudadoctor.rules.pasted.conditions import (
    cudnn_pin,
    holds,
    named_in,
    refuted,
    toolkit_used,
    torch_asked,
)
from cudadoctor.rules.toolkit import fitting_toolkit
from cudadoctor.solver.builds import best_build
from cudadoctor.solver.companions import FROM_SOURCE, PYG, rebuilt
from cudadoctor.solver.demand import capabilities_of, demand_of, platform_of
from cudadoctor.solver.fit import block
from cudadoctor.solver.supposed import as_listed, begins, supposed

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
    signs = _signs(m, kb).get(cause)
    if not signs:
        return None
    best = min(signs, key=_worth)
    meaning, values = best.meaning, dict(best.symptom.values)
    about = None if meaning.title else _about_package(cause, m)
    # Of each line one text is shown: a sentence often holds several symptoms.
    lines: dict[object, str] = {}
    for sign in (best, *signs):
        lines.setdefault(sign.symptom.line or sign.place, f"symptoms.{sign.place}.text")
    ways = (
        _known_release(cause, m, kb)
        or _own(cause, meaning.cure, m)
        or cures(cause, text.cure, m, kb)
    )
    # What a step refuses for a program is not said of torch.
    unserved = ways[:1] and ways[0].id == "other-gpu"
    return Found(
        evidence=(*tuple(lines.values())[:3], *meaning.shows),
        values={**values, **(about or {})},
        confidence=Confidence[meaning.confidence.upper()],
        severity=Severity[meaning.severity.upper()] if meaning.severity else None,
        title=_TOO_OLD_FOR_IT
        if unserved
        else _TITLES[cause, "version" in about]
        if about
        else meaning.title,
        why=_OF_ITS_OWN if unserved else meaning.why,
        remedies=ways,
    )


_TOO_OLD_FOR_IT = "The GPU is too old for this program"
_OF_ITS_OWN = "The program's own kernels have no code for this GPU, whichever torch is installed."


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
    known = {"package": named[0], "torch": m.torch.named}
    return known | ({"version": listed.version} if listed and listed.version else {})


def _worth(sign: Sign) -> tuple[Confidence, int, bool, int]:
    """The surest text counts, of equals the first; of one line what has words of its own."""
    sure = Confidence[sign.meaning.confidence.upper()]
    return sure, sign.symptom.line or 0, sign.meaning.title is None, sign.place


@remembered
def _signs(m: Machine, kb: Knowledge) -> dict[str, list[Sign]]:
    """Cause -> its signs in a report, then those in a pasted verdict of this doctor."""
    signs, repeated = list[Sign](), list[Sign]()
    for place, symptom in enumerate(m.symptoms or ()):
        meaning = meaning_of(symptom, m, kb)
        possible = meaning and meaning.confidence == "possible"
        if meaning and not (possible and contradicted(meaning.cause, m, kb)):
            signs.append(Sign(place, symptom, meaning))
        if symptom.key == VERDICT and (cause := symptom.values.get("cause")):
            unsure = symptom.values.get("sure", "").strip().lower() == "possible"
            verdict = Meaning(cause=cause, confidence="possible" if unsure else "likely")
            repeated.append(Sign(place, symptom, verdict))
    found: dict[str, list[Sign]] = {}
    for sign in signs + repeated:
        found.setdefault(sign.meaning.cause, []).append(sign)
    return found


_CONTRADICTED = {
    **dict.fromkeys(
        (
            *("container-no-gpu", "scheduler-no-gpu", "gpu-not-detected", "driver-not-loaded"),
            *("driver-library-mismatch", "torch-missing", "torch-wrong-backend", "wsl-setup"),
        ),
        "cuda-available",
    ),
    "torch-cpu-build": "torch-cuda",
    "driver-not-installed": "driver-answers",
    "torch-arch-unsupported-new": "build-serves-gpu",
    "torch-arch-unsupported-old": "build-serves-gpu",
}
"""Causes that words make possible at most, where the facts of the report show the contrary."""


_BOUND_TO = {"jetson-build": "jetson", "wsl-setup": "wsl", "windows-runtime-dll": "windows"}
"""Causes that there are on one kind of system only."""


def contradicted(cause: str, m: Machine, kb: Knowledge) -> bool:
    fact, system = _CONTRADICTED.get(cause), _BOUND_TO.get(cause)
    elsewhere = cause == "platform-unsupported" and m.platform.system in ("Linux", "Windows")
    return (
        (fact is not None and holds(fact, m, kb))
        or (system is not None and refuted((system,), m, kb))
        or (elsewhere and not holds("no-builds-here", m, kb))
    )


def meaning_of(symptom: Symptom, m: Machine, kb: Knowledge) -> Meaning | None:
    """Its first meaning whose conditions all hold, of a symptom of this machine."""
    return _meanings(m, kb)[symptom.key]


@remembered
def _meanings(m: Machine, kb: Knowledge) -> dict[str, Meaning | None]:
    """The same of each symptom's key."""
    rows = {symptom.key: symptoms().by_key.get(symptom.key) for symptom in m.symptoms or ()}
    return {
        key: next(
            (
                meaning
                for meaning in (row.means if row else ())
                if meaning.confidence != "open"
                and all(holds(condition, m, kb) for condition in meaning.when)
            ),
            None,
        )
        for key, row in rows.items()
    }


def standings(causes: Iterable[str], m: Machine, kb: Knowledge) -> dict[str, Standing]:
    """Where in the report the texts stand that name these causes, of those that texts name."""
    standing = _standing_of(m, kb)
    signs = _signs(m, kb)
    return {
        cause: min(standing(sign.symptom) for sign in signs[cause])
        for cause in causes
        if cause in signs
    }


@remembered
def _standing_of(m: Machine, kb: Knowledge) -> Callable[[Symptom], Standing]:
    """Where in this report a symptom stands.

    Of its errors the last counts: not one that a program caught, nor that a child failed.
    """
    told = [symptom for symptom in m.symptoms or () if meaning_of(symptom, m, kb)]
    errors = [s.line or 0 for s in told if _ERROR.search(s.text) and not in_passing(s.text)]
    complaint = {1, max(errors, default=1)}

    def standing(symptom: Symptom) -> Standing:
        if in_passing(symptom.text):
            return Standing.PASSING
        framed = symptom.text.startswith("File ")
        return Standing.COMPLAINT if symptom.line in complaint and not framed else Standing.TOLD

    return standing


_ERROR = re.compile(r"(?:^|[\s.:\]])\w{0,40}(?:Error|Exception)\b ?:|^(?:ERROR|error|fatal)\b:?")


@remembered
def complaints(m: Machine, kb: Knowledge) -> tuple[Symptom, ...]:
    """The error texts that mean something here: dumps hold other words, too, that mean nothing."""
    return tuple(
        symptom
        for symptom in m.symptoms or ()
        if (meaning := meaning_of(symptom, m, kb))
        and (meaning.cause not in HARMLESS or meaning.confidence != "possible")
    )


@remembered
def complains_of_no_environment(m: Machine, kb: Knowledge) -> bool:
    """Whether the report tells an error of a program, or asks for something else than its GPU.

    A text that makes it likely suffices. One that makes it no more than possible has to be the
    complaint, with nothing in the report that could be a fault of the environment: torch uses the
    GPU, or nobody speaks of one. Where torch does, the dump of a program suffices beside a title
    that does not speak of it either.
    """
    meant = [way for symptom in m.symptoms or () if (way := meaning_of(symptom, m, kb))]
    failed = any(install.failed for install in m.installs or ())
    if failed or any(meaning.cause not in HARMLESS for meaning in meant):
        return False
    if any(meaning.confidence != "possible" for meaning in meant):
        return True
    imported, standing = m.torch.imported, _standing_of(m, kb)
    used = imported is not None and imported.cuda_available is True
    seen = {symptom.key: standing(symptom) for symptom in m.symptoms or ()}
    asks = any(seen.get(key) is Standing.COMPLAINT for key in WORDS["asks-for-no-cure"])
    (named,) = WORDS["speaks-of-environment"]
    if used:
        titled = seen.get(named) is Standing.COMPLAINT
        return asks or ("tracker-of-a-program" in seen and not titled)
    return asks and named not in seen


_DUMPED = re.compile(
    r"(?:- )?'?(?:(?:PyTorch|DeepSpeed|Tensorflow|Nvidia driver|cuDNN|Python) version|OS: |GPU \d|"
    r"CUDA used to build|ROCM used|Is CUDA available|CUDA runtime|GPU models|CUDA_MODULE_LOADING|"
    r"Is XNNPACK|Python platform|Collecting environment|\[(?:pip|conda)\d?\])",
    re.IGNORECASE,
)
"""Lines of collect_env and transformers-cli: facts, of which nobody complains."""


def dumped(text: str) -> bool:
    """Whether a line belongs to the dump of an environment, not to what the author tells."""
    return _DUMPED.match(text) is not None


@remembered
def complains_of_something_else(m: Machine, kb: Knowledge) -> bool:
    """Whether a program's own error or a question is the complaint, whatever the facts show.

    What stands in a dump is none. A text that makes it no more than possible has to be the title or
    the last error, and nothing else that the author says may point to the environment.
    """
    standing = _standing_of(m, kb)
    told = [symptom for symptom in m.symptoms or () if not dumped(symptom.text)]
    meant = [way for symptom in told if (way := meaning_of(symptom, m, kb))]
    failed = any(install.failed for install in m.installs or ())
    if failed or any(meaning.cause not in HARMLESS for meaning in meant):
        return False
    if any(meaning.confidence != "possible" for meaning in meant):
        return True
    complaint = {symptom.key for symptom in told if standing(symptom) is Standing.COMPLAINT}
    rows = [symptoms().by_key[symptom.key] for symptom in told if symptom.key in symptoms().by_key]
    open_ones = any(way.confidence == "open" for row in rows for way in row.means)
    spoken = open_ones or not complaint.isdisjoint(WORDS["speaks-of-environment"])
    keys = {symptom.key for symptom in told}
    asks = not complaint.isdisjoint(WORDS["asks-for-no-cure"])
    return not spoken and (asks or ("tracker-of-a-program" in keys and "traceback" not in keys))


def commands_in(m: Machine, kb: Knowledge) -> tuple[tuple[str, Strings], ...]:
    """Causes that the report's texts can mean, each with the command that would tell."""
    rows = [(symptom, symptoms().by_key.get(symptom.key)) for symptom in m.symptoms or ()]
    return tuple(
        (meaning.cause, row.next)
        for symptom, row in rows
        if row and row.next
        for meaning in (meaning_of(symptom, m, kb), *row.means)
        if meaning and (meaning.confidence == "open" or meaning is meaning_of(symptom, m, kb))
    )


def _known_release(cause: str, m: Machine, kb: Knowledge) -> Remedies:
    """The exact release of an extension that runs here: better than any words of a text."""
    if cause == "platform-unsupported":
        return _replaced(m, kb, *_in_texts(EXTENSIONS, _texts(m, "linux-library-on-windows")))
    torch = m.torch.version
    if cause != "torch-extension-abi" or torch is None or m.torch.build == "cpu":
        return ()
    packages = (package for package in m.packages or () if package.name in EXTENSIONS)
    off = [package.name for package in packages if built_for_other(m, kb, package, torch)]
    names = _extensions(m) or tuple(off)
    if m.platform.system is None and ".so" in _texts(m, "extension-wants-library"):
        m = replace(m, platform=replace(m.platform, system="Linux"))
    return extension_wheel(m, kb, names[0]) if len(names) == 1 else ()


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
    if cause == "torch-companion-mismatch" and m.platform.jetson:
        return jetson_torch(m, kb)
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


_IS_SET = (
    "Run `printenv {name}`. If it prints anything, run `unset {name}` in the same shell and start "
    "the program again."
)


def _are_named(m: Machine, names: Iterable[str]) -> bool:
    """Whether a report shows one of these variables, or an error text what it leads to.

    That is its name, or a library in a folder of no package.
    """
    texts = [symptom.text for symptom in m.symptoms or ()]
    if any(_FROM_ELSEWHERE.search(text) for text in texts):
        return True
    return any(name in (m.env or {}) or any(name in text for text in texts) for name in names)


_FROM_ELSEWHERE = re.compile(
    r"(?<![\w./-])/(?![\w./-]{0,200}(?:site|dist)-packages)[\w./-]{1,200}\.so\b"
)


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
        if not _are_named(m, argvs[0][1:]):
            text = f"{_IS_SET.format(name=argvs[0][1])} {rest}".rstrip()
            return by_hand(name, f"Check whether {argvs[0][1]} is set", text)
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
    pin = cudnn_pin(m, kb)
    if pin is None or (m.python.kind or "").startswith("conda") or m.platform.jetson:
        return ()
    name, others = pin.partition("==")[0], others_needing(m, kb, pin)
    if holds("cudnn-of-another-major", m, kb) or _as_pinned_for_others(m, kb):
        return _for_cudnn(m, kb, others, pin)
    if m.platform.system == "Windows":
        return ()
    moves = releases_beside(m, kb, others, pin)
    again = install_packages("reinstall-cudnn", "Reinstall cuDNN", pin, *moves, remove=(name,))
    if moves:
        return again
    if any(need.wanted.startswith("==") for need in others):
        again = _all_libraries(m, kb, pin) or again
    return torch_beside(m, kb, others) + tuple(replace(way, note=apart(others)) for way in again)


def _all_libraries(m: Machine, kb: Knowledge, pin: str) -> Remedies:
    """Every library that torch pins, where its usual build has that pin.

    Who pins one of them exactly, as tensorflow[and-cuda] does, replaced all.
    """
    place = platform_of(m) or "linux_x86_64"
    lines = map(cut, (m.torch.version and kb.default_pins(m.torch.version, place)) or ())
    named = [line for line in lines if line and line.name.startswith("nvidia-")]
    pins = [f"{line.name}{line.specifier}" for line in named]
    listed = tuple(line.name for line in named if m.package(line.name))
    title = f"Reinstall the CUDA libraries that torch {m.torch.named} pins"
    return install_packages("reinstall-cudnn", title, *pins, remove=listed) if pin in pins else ()


def _as_pinned_for_others(m: Machine, kb: Knowledge) -> bool:
    """Whether torch's own cuDNN is there, and another program needs another one."""
    as_pinned = not holds("cudnn-not-as-pinned", m, kb)
    return as_pinned and holds("program-needs-another-cudnn", m, kb)


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
    others = holds("program-needs-another-cudnn", m, kb)
    return _missing_wheels(m, kb) or (_cudnn(m, kb) if others else ())


def _missing_wheels(m: Machine, kb: Knowledge) -> Remedies:
    """The wheels whose files the error texts miss, where the report lists them."""
    missing = tuple(name for name in named_in(m, "library") if name.startswith("lib"))
    return libraries_again(m, kb, missing)


def _for_cudnn(m: Machine, kb: Knowledge, others: tuple[Need, ...], pin: str) -> Remedies:
    """The release of another program that works with torch's cuDNN; else the torch for both."""
    major = pin.partition("==")[2].partition(".")[0]
    listed = {need.program.name for need in others}
    for program in _loading_cudnn(m, kb, listed):
        if requirement := release_beside(m, kb, program, pin):
            named = re.sub("==|>=", " ", requirement).replace(",<", " to below ")
            title = f"Install {named}, which works with torch's cuDNN {major}"
            return install_packages("program-for-cudnn", title, requirement)
    if beside := torch_beside(m, kb, others):
        return beside
    title = f"Install a release of the program that works with torch's cuDNN {major}"
    text = (
        "Reinstalling torch or its cuDNN does not help: the program, not torch, asks for another "
        "cuDNN. If it has no such release, install it in a separate environment."
    )
    return by_hand("program-for-cudnn", title, text)


def _loading_cudnn(m: Machine, kb: Knowledge, listed: Collection[str]) -> Iterator[str]:
    """The programs that ask for another cuDNN: by their listed releases, else by their names.

    What pins another one comes before it.
    """
    texts = "\n".join(symptom.text.lower().replace("_", "-") for symptom in m.symptoms or ())
    asked = {name_of(line) for install in m.installs or () for line in install.requirements}
    for name in dict.fromkeys([*kb.brings, *listed]):
        if name in listed:
            yield name
            if name in kb.companion_names:  # it holds what it brings, too
                return
        elif name in asked or name in texts:
            yield kb.brings[name]


def _extension(m: Machine, kb: Knowledge) -> Remedies:
    """The releases for the report's torch, of the extension that an error text names.

    With it those that their versions show to be for the same other torch.
    """
    named, torch = _extensions(m) if m.torch.build == "cuda" else (), m.torch.version
    if torch is None or not (len(named) == 1 or {*named} & {*PYG}):
        return pinned_torch(m, kb)
    present = (package for package in m.packages or () if package.name in EXTENSIONS)
    off = {package.name for package in present if built_for_other(m, kb, package, torch)}
    ways = pinned_torch(m, kb) + _replaced(m, kb, *dict.fromkeys((*named, *sorted(off))))
    # Of these there are no wheels anywhere.
    return ways or (
        rebuild_extension(m, *named[:1]) if named[0] in BUILT_AS else _anew(named[0], m, kb)
    )


def _anew(name: str, m: Machine, kb: Knowledge) -> Remedies:
    """The command that compiles an extension for the torch that will be there."""
    torch, cuda = m.torch.version, m.torch.cuda
    package = m.package(name) or m.package(f"{name}-full")
    if torch is None or _of_another_maker(m) or name not in FROM_SOURCE:
        return ()
    moves = holds("gpu-newer-than-build", m, kb) or holds("gpu-older-than-build", m, kb)
    if moves and (build := best_build(m, kb).build):
        torch, cuda = build.torch, build.cuda
    release = package.version.partition("+")[0] if package else ""
    how = rebuilt(name, release, torch, cuda, m)
    title = f"Install {name} again for torch {torch.public}"
    return by_hand("rebuild-extension", title, f"{how[0].upper()}{how[1:]}")


def _newer_torch(m: Machine, kb: Knowledge) -> Remedies:
    """The nearest torch that the program of an error text accepts."""
    names = ("transformers",) if named_in(m, "transformers") else named_in(m, "asker")
    name = next(iter(names), _UNNAMED)
    who = m.package(name) or Distribution(name=name, version="")
    asks = replace(who, requires=(*who.requires, f"torch>={torch_asked(m)}"))
    others = (package for package in m.packages or () if package.name != name)
    ways = pinned_torch(replace(m, packages=(*others, asks)), kb)
    ways = ways or install_torch(m, kb, str(torch_asked(m)))
    return tuple(replace(way, title=way.title.replace(_UNNAMED, "your program")) for way in ways)


_UNNAMED = "your-program"


def _companion(m: Machine, kb: Knowledge) -> Remedies:
    """The companions that the error texts name, and those of another torch by the tables.

    All of them where none stands out.
    """
    if holds("torch-older-than-asked", m, kb):
        return _newer_torch(m, kb)
    torch = Version(m.torch.version.public) if m.torch.version else None
    listed = [package for package in map(m.package, _PAIRED) if package and package.version]
    off = [
        package.name
        for package in listed
        if torch and package.version.partition("+")[0] not in kb.companion(package.name, torch)
    ]
    names = dict.fromkeys((*_companions(m), *off)) or [package.name for package in listed]
    return pinned_torch(m, kb) or _replaced(m, kb, *names)


_PAIRED = ("torchvision", "torchaudio", "torchcodec")


def _replaced(m: Machine, kb: Knowledge, *names: str) -> Remedies:
    """The releases for this torch; what no list shows goes first: pip would keep its release."""
    listed = {package.name for package in m.packages or () if package.version}
    unlisted = tuple(name for name in names if name not in listed)
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
    """A newer toolkit, where nvcc does not know this GPU; another list; what torch's kernels need.

    The last where no build is named: a program that runs on no such GPU, or that moves with torch.
    """
    used = toolkit_used(m)
    known = kb.nvcc_capabilities(used) if used else None
    lacks = known is not None and not set(capabilities_of(m, kb) or ()) <= set(known)
    if "architecture-unknown-to-nvcc" in seen and lacks:
        return install_toolkit(m)
    listed = "TORCH_CUDA_ARCH_LIST" in (m.env or {}) and "architecture-list-empty" not in seen
    if listed:
        return unset_variables(m, "TORCH_CUDA_ARCH_LIST")
    own = {"arch-list-named", "built-from-source", "extension-failed"}
    return install_torch(m, kb) if "no-kernel-image" in seen and not own & seen else ()


def _torch(m: Machine, kb: Knowledge) -> Remedies:
    """The build that fits, where the report says for what; on a Mac there is only one."""
    if m.platform.system == "Darwin":
        return install_packages("install-torch", "Install torch", "torch")
    return install_torch(m, kb) if m.gpus else ()


_NO_NVIDIA = (
    "The report names no NVIDIA GPU, and CUDA builds of torch need one. Without it, the CPU build "
    "is the right one."
)


def _gpu_build(m: Machine, kb: Knowledge, seen: frozenset[str]) -> Remedies:
    """The build for the GPU that the report names, whoever makes it; none where there is none."""
    ways = _other_maker(m, kb, seen) or _torch(m, kb)
    none = seen & {"no-nvidia-owned", "no-gpu-owned"} and not gpu_present(m)
    return ways or (by_hand("cpu-build", "Train on the CPU", _NO_NVIDIA) if none else ())


def _unloaded(m: Machine, _: Knowledge, seen: frozenset[str]) -> Remedies:
    return load_driver(m, next((TOLD[key] for key in TOLD if key in seen), "modprobe"))


def _other_toolkit(m: Machine, kb: Knowledge) -> Remedies:
    """A toolkit of torch's CUDA; also the build of that torch for the toolkit, if there is one."""
    told = [s.values for s in m.symptoms or () if s.key == "toolkit-differs-from-torch"]
    said = next((values for values in told if values), {})
    cuda = version_of(said.get("built") or said.get("torch")) or m.torch.cuda
    used = version_of(said.get("nvcc") or said.get("toolkit")) or toolkit_used(m)
    if cuda is None or m.platform.system is None:
        return ()
    (here, *_) = supposed(replace(m, torch=replace(m.torch, cuda=cuda)), kb).machines
    demand, torch = demand_of(here, kb), m.torch.version
    builds = (
        build
        for build in kb.builds_on(platform_of(here) or "")
        if torch and begins(build.torch, torch) and used and build.cuda == used
    )
    own = (remedy_for(build, here, kb) for build in builds if block(build, demand) is None)
    return (*fitting_toolkit(here, kb), *tuple(own)[:1])


_ABOUT_RELEASES = {"triton-of-another-release", "triton-not-there", "triton-does-not-compile"}
_COMPILER_WORDS = ("failed to find c compiler", "cl is not found", "find msvc", "c++ compiler")
_HEADERS = (
    "Install Python's headers. On Ubuntu and Debian, run `sudo apt-get install python3-dev` (for "
    "another Python version, install python3.12-dev or similar). On Fedora and RHEL, run `sudo dnf "
    "install python3-devel`. uv and conda environments already include the headers."
)
_BRINGS_COMPILER = (
    "From 3.2.0.post13 on, triton-windows includes a C compiler. Install the release for your "
    "torch: 3.1 for torch 2.5, 3.2 for 2.6, 3.3 for 2.7, 3.4 for 2.8, 3.5 for 2.9, 3.6 for 2.10 "
    "and 2.11, 3.7 for 2.12 and 2.13, 3.8 for 2.14."
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
        words = by_hand("triton-windows", "Install the right triton-windows", _BRINGS_COMPILER)
        return install_companion(m, kb, "triton-windows") or words
    if lacking:
        ways = c_compiler(m) if linux else ()
        return ways if any(way.commands for way in ways) else ()
    if "toolkit-in-pieces" in seen or not seen & _ABOUT_RELEASES:
        return ()
    if m.torch.version is None or not linux:
        return ()
    own = m.package("triton")
    alone = install_companion(m, kb, "triton") if own and own.version else ()
    pins = (way.packages.install for way in alone if way.packages)
    differs = own is not None and (f"triton=={own.version}",) not in pins
    return alone if alone and differs else reinstall_torch(m, kb)


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
    "torch-install-corrupt": lambda m, kb: _missing_wheels(m, kb) or reinstall_torch(m, kb),
    "cudnn-missing-sublib": _cudnn,
    "cudnn-shadowed": lambda m, kb: (
        _cudnn(m, kb) if holds("cudnn-not-as-pinned", m, kb) or _as_pinned_for_others(m, kb) else ()
    ),
    "nvidia-wheels-mixed": _mixed,
    "toolkit-torch-mismatch": _other_toolkit,
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
    "torch-cpu-build": _gpu_build,
    "arch-list-wrong": _arch_list,
}
