"""What is wrong with a prescription, by the second reading.

A prescription is the solver's choice and the change of packages that follows from it. Each fault
is one line: its kind, a colon, and what was found. The kinds:

- unknown, unfit: the build is in no table, or something stands against it; contested: it rests on
  code that another source denies, or on a cuDNN that refuses the GPU, although others do not.
- newer, kept, wish: a newer build fits, where none is installed; the installed one was to be kept;
  the wish was not. lost, smaller: another build keeps more of the installed packages; another one
  that keeps as much is closer to the installed release.
- missed, way: nothing was chosen although a build fits; a way out does not lead to its build.
- torch, vision, audio, companion, index, variant: the change installs something else, something
  that does not belong to this torch, or from another place. stale: something of the old torch
  stays that a package manager would take for the new, or whose files collide with it.
- needs: a package or a file of the project asks for another release than is there then, unsaid.
- why-not: a variant of the release is not named, or named with a reason that is not true.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from peer_classes import conda_against
from second_keeping import (
    LAST_AUDIO,
    admits,
    asked_by,
    companion_against,
    cost,
    installed_as,
    lines_of,
    read,
)
from second_reading import INDEX, Plain, Reading, Row, numbers

if TYPE_CHECKING:
    from cudadoctor.model.findings import PackageChange, Rejection
    from cudadoctor.solver.builds import Alternative, Choice

LEVELS = ("sound", "cudnn", "contested")
"""From what is certain to what is a last resort."""

SIGNS = (
    ("absent", r"not published|never published|was not built"),
    ("announced", r"announced"),
    ("python", r"no wheel for Python|no wheels for Python"),
    ("glibc", r"needs glibc"),
    ("contested", r"[Ss]ources disagree"),
    ("cudnn", r"cuDNN"),
    ("ptx", r"\bPTX\b.*too new"),
    ("archs", r"no code for compute capability"),
    ("cpu", r"cannot use a GPU"),
    ("no-gpu", r"no NVIDIA GPU"),
    ("tegra", r"built for servers|JetPack"),
    ("driver", r"needs driver|needs CUDA|supports CUDA up to [\d.]+"),
    ("fits", r"\bwould (also )?work\b"),
)
"""The sense of a reason, told by its words; the first that is found counts."""


def faults(
    choice: Choice, change: PackageChange | None, note: str, plain: Plain, reading: Reading
) -> list[str]:
    """All faults of one prescription, () where there is none. note: what is said beside it."""
    allowed = wished(plain, reading)
    if choice.build is None:
        found = [f"missed: {min(allowed)} fits"] if allowed else []
        asked = _asked(plain, reading)
        if asked is not None:
            found += _of_reasons(choice.why_not, asked, None, plain, reading)
        return found + list(_ways(choice.alternatives, plain, reading))
    torch, variant = str(choice.build.torch), choice.build.variant
    row = reading.row(torch, variant, plain["platform"])
    if row is None:
        return [f"unknown: {torch} {variant} is in no table for {plain['platform']}"]
    found = list(_of_build(row, allowed, plain, reading))
    found += _of_reasons(choice.why_not, torch, variant, plain, reading)
    if change is not None:
        found += _of_change(change, note, row, plain, reading)
    return found


def wished(plain: Plain, reading: Reading) -> dict[tuple[str, str], str]:
    """The builds that fit and that the wish allows. Who names the CPU build wants that."""
    wish = plain["wish"]
    if wish is None:
        return reading.fitting(plain)
    release, _, variant = wish.partition("+")
    named = numbers(release)
    fitting = reading.fitting(plain)
    if variant == "cpu" and plain["capabilities"]:
        fitting = reading.fitting({**plain, "capabilities": ()})
    return {
        key: how
        for key, how in fitting.items()
        if numbers(key[0])[: len(named)] == named and variant in ("", key[1])
    }


def _asked(plain: Plain, reading: Reading) -> str | None:
    """The newest release that the wish allows, None where there is none of that name."""
    release, _, variant = (plain["wish"] or "").partition("+")
    named = numbers(release) if release else ()
    rows = [
        row["torch"]
        for row in reading.builds
        if row["platform"] == plain["platform"]
        and numbers(row["torch"])[: len(named)] == named
        and variant in ("", row["variant"])
    ]
    return max(rows, key=numbers, default=None)


def _of_build(
    row: Row, allowed: dict[tuple[str, str], str], plain: Plain, reading: Reading
) -> Iterator[str]:
    """Whether the build fits, and whether there is a better one."""
    name = (row["torch"], row["variant"])
    if name not in allowed:
        against = sorted(reading.reasons(name[0], plain)[name[1]])
        kind = "wish" if name in reading.fitting(plain) else "unfit"
        yield f"{kind}: {name} ({', '.join(against)})"
        return
    sound = [key for key, how in allowed.items() if how == "sound"]
    level = next(candidate for candidate in LEVELS if candidate in allowed.values())
    better = [key for key, how in allowed.items() if how == level]
    if name not in better and not _last_resort(name, plain):
        yield f"contested: {name} although {max(better, key=_order)} is not"
        return
    here = plain["installed"]
    if here and plain["wish"] is None and not _last_resort(name, plain):
        yield from _of_least(name, better, plain, reading)
        kept = [key for key in sound if key[0] == name[0] == here["torch"]]
        if kept:
            yield from _of_kept(name, kept, here)
        return
    newer = [key for key in better if numbers(key[0]) > numbers(name[0])]
    if newer and not _last_resort(name, plain):
        yield f"newer: {max(newer, key=_order)} fits, {name} was chosen"


def _of_kept(name: tuple[str, str], kept: list[tuple[str, str]], here: Plain) -> Iterator[str]:
    same = (here["torch"], here["variant"])
    if same in kept and name != same:
        yield f"kept: {here['variant']} is installed and fits, {name} was chosen"


def _of_least(
    name: tuple[str, str], fitting: list[tuple[str, str]], plain: Plain, reading: Reading
) -> Iterator[str]:
    """Whether the build keeps what can be kept, and is the closest of those that do."""
    here, platform = plain["installed"], plain["platform"]
    minors = sorted({numbers(row["torch"])[:2] for row in reading.builds})
    place = minors.index(numbers(here["torch"])[:2])

    def distance(key: tuple[str, str]) -> tuple[bool, bool, bool, bool, int, int]:
        steps = minors.index(numbers(key[0])[:2]) - place
        number, other = reading.number(*key, platform), key[0] != here["torch"]
        gpus = reading.counting(plain) if plain["capabilities"] else []
        slow = any(reading.code(number, gpu, sound=True) != "native" for gpu in gpus)
        patch = -numbers(key[0])[2]
        return other, other and slow, steps != 0, steps < 0, abs(steps), patch

    costs = {key: cost(key, plain, reading) for key in fitting}
    many = {key: tuple(map(len, found)) for key, found in costs.items()}
    least = min(many.values())
    if many[name] > least:
        best = next(key for key in fitting if many[key] == least)
        yield f"lost: {name} costs {costs[name]}, {best} only {costs[best]}"
        return
    closest = min((key for key in fitting if many[key] == least), key=distance)
    if distance(closest) < distance(name):
        yield f"smaller: {closest} keeps as much, {name} was chosen"


def _last_resort(name: tuple[str, str], plain: Plain) -> bool:
    """Without a GPU an installed release may stay, as its default build, where it has no other."""
    here = plain["installed"]
    return not plain["capabilities"] and bool(here) and here["torch"] == name[0]


def _order(key: tuple[str, str]) -> tuple[int, ...]:
    return numbers(key[0])


def _of_reasons(
    refusals: Iterable[Rejection], torch: str, chosen: str | None, plain: Plain, reading: Reading
) -> Iterator[str]:
    """Every other variant of the release once, each with reasons that are true.

    A reason speaks of this release, and behind "torch X" of the release X. Variants that this
    release never had may be named too, then with another release.
    """
    truth = reading.reasons(torch, plain)
    named = [refusal.variant for refusal in refusals]
    only = (plain["wish"] or "").partition("+")[2] if chosen is None else ""
    for variant in sorted(set(truth) - {chosen} - set(named)):
        if only not in ("", variant):
            continue  # Where nothing fits, only what was asked for needs a reason.
        yield f"why-not: {variant} of {torch} is not named"
    for variant in sorted(
        {refused for refused in named if named.count(refused) > 1 or refused == chosen}
    ):
        yield f"why-not: {variant} is named twice, or is what was chosen"
    for refusal in refusals:
        here, other, there = _parted(refusal.reason)
        if refusal.variant in truth and (here or not other):
            yield from _of_reason(refusal.variant, here, torch, plain, reading)
        elif refusal.variant not in truth and not other:
            yield f"why-not: {refusal.variant} is no variant of {torch}"
        if other:
            yield from _of_reason(refusal.variant, there, other, plain, reading)


def _parted(reason: str) -> tuple[str, str, str]:
    """A reason as what it says of the release at hand, another release, and what it says of it."""
    found = re.search(r"(?:^|(?<=[.;] ))torch (\d+\.\d+\.\d+):? (.*)$", reason)
    if found is None:
        return reason, "", ""
    return reason[: found.start()].strip(), found[1], found[2]


def _of_reason(
    variant: str, reason: str, torch: str, plain: Plain, reading: Reading
) -> Iterator[str]:
    against = reading.reasons(torch, plain).get(variant)
    if against is None:
        yield f"why-not: there is no {variant} of {torch}"
        return
    sense = next((name for name, sign in SIGNS if re.search(sign, reason)), None)
    # Of a build that does not exist nothing else is worth saying.
    true = against & {"absent"} or against or {"fits"}
    if sense is None:
        yield f"why-not: not understood: {torch} {variant}: {reason}"
    elif sense not in true:
        yield f"why-not: {torch} {variant}: {reason!r}, but {', '.join(sorted(true))}"
    elif sense == "archs":
        yield from _of_code(variant, reason, torch, plain, reading)
    elif sense == "driver" and "or newer" in reason:
        yield from _of_floor(variant, reason, torch, plain, reading)


def _of_code(
    variant: str, reason: str, torch: str, plain: Plain, reading: Reading
) -> Iterator[str]:
    """The GPUs that a reason names are those without code, or without code that nobody denies."""
    named = set(re.findall(r"\d+\.\d+", reason.partition("only")[0]))
    gpus = reading.counting(plain)
    number = reading.number(torch, variant, plain["platform"])
    bare = {gpu for gpu in gpus if not reading.code(number, gpu, sound=False)}
    denied = {gpu for gpu in gpus if not reading.code(number, gpu, sound=True)}
    if not named & bare or named - denied:
        yield f"why-not: {torch} {variant} names {sorted(named)}, without code are {sorted(bare)}"


def _of_floor(
    variant: str, reason: str, torch: str, plain: Plain, reading: Reading
) -> Iterator[str]:
    """The driver that a reason names is the floor of the table."""
    other = reading.row(torch, variant, plain["platform"])
    floor = reading.floor(other["cuda"], plain["numbers"]) if other and other["cuda"] else None
    named = re.search(r"driver (\d[\d.]*\d)", reason)
    if floor and named and numbers(named[1]) != numbers(floor):
        yield f"why-not: {torch} {variant} names driver {named[1]}, the table {floor}"


def _of_change(
    change: PackageChange, note: str, row: Row, plain: Plain, reading: Reading
) -> Iterator[str]:
    """Check what is installed, from where, and what stays installed with it."""
    yield from _of_index(change, row, plain, reading)
    if change.variant != row["variant"] or change.cuda != row["cuda"]:
        yield f"variant: {change.variant} of CUDA {change.cuda} for {row['variant']}"
    tagged = [_pin(requirement) for requirement in (*change.install, *change.then)]
    pins = {name: version.partition("+")[0] for name, version in tagged}
    if any(version.partition("+")[2] not in ("", row["variant"]) for _, version in tagged):
        yield f"variant: {tagged} for {row['variant']}"
    if plain["installed"]:
        yield from _of_the_old(change, pins, row, plain["installed"])
    if pins.pop("torch", None) != row["torch"]:
        yield f"torch: {change.install} for {row['torch']}"
    yield from _of_needs(change, note, row, plain, reading)
    here = plain["installed"]["packages"] if plain["installed"] else {}
    for name in ("torchvision", "torchaudio"):
        if reading.without_wheel(name, row[name], plain):
            yield from _of_none(name, change, note, pins, plain["installed"])
        else:
            yield from _of_pair(name, pins, row, plain["installed"])
    for name in sorted({*pins, *here} - {"torchvision", "torchaudio"}):
        if name in pins:
            yield from _of_pin(name, pins[name], row, plain, reading)
        elif name in change.remove or name in note or name.startswith("triton"):
            continue  # It is removed or warned about; torch pins its own triton.
        elif list(companion_against(name, here[name], row, plain, reading)) and not _broken(
            name, here[name], plain, reading
        ):
            yield f"companion: {name} {here[name]} stays beside torch {row['torch']}"


def _broken(name: str, version: str, plain: Plain, reading: Reading) -> bool:
    """Whether a companion does not work with the torch that is there now either."""
    here = plain["installed"]
    row = reading.row(here["torch"], here["variant"], plain["platform"])
    return row is None or bool(list(companion_against(name, version, row, plain, reading)))


def _of_needs(
    change: PackageChange, note: str, row: Row, plain: Plain, reading: Reading
) -> Iterator[str]:
    """What is there afterwards meets what the packages and the project ask for, or it is said."""
    here = plain["installed"]["packages"] if plain["installed"] else {}
    pins = dict(map(_pin, (*change.install, *change.then))) | {"torch": installed_as(row)}
    left = {name: version for name, version in here.items() if name not in change.remove}
    end = left | pins
    before = dict(here)
    if plain["installed"]:
        before["torch"] = f"{plain['installed']['torch']}+{plain['installed']['variant']}"
    for name, version in end.items():
        # A new installation also installs its requirements, unless they are pinned too.
        there = pins if name in pins else end
        ask = asked_by if name in pins else lines_of
        for line in ask(name, version, plain, reading):
            release, was = there.get(line.name), before.get(line.name)
            broken = name in left and was and not admits(line.specifier, was)
            unmet = release and not admits(line.specifier, release)
            gone = name in left and not release and line.name in here
            if (unmet or gone) and not broken and name not in note:
                yield f"needs: {name} {version} asks for {line}, there is {release}"
    for name, lines in plain.get("files", ()):
        for line in read(lines, plain):
            release = end.get(line.name)
            if release and not admits(line.specifier, release) and name not in note:
                yield f"needs: {name} asks for {line}, there is {release}"


def _of_index(change: PackageChange, row: Row, plain: Plain, reading: Reading) -> Iterator[str]:
    """The default build comes from the package index, unless a companion lies on torch's alone."""
    own = f"{INDEX}/{row['variant']}"
    others = [requirement for requirement in change.install if not requirement.startswith("torch")]
    wanted = (None, own) if row["default"] and others else (None,) if row["default"] else (own,)
    pins = [_pin(requirement) for requirement in change.install]
    if any(
        reading.without_wheel(*pin, plain, pypi=True) and not reading.without_wheel(*pin, plain)
        for pin in pins
    ):
        wanted = (own,)
    if change.index not in wanted:
        yield f"index: {change.index} for {row['torch']} {row['variant']}, not {wanted[-1]}"


def _of_none(
    name: str, change: PackageChange, note: str, pins: dict[str, str], installed: Plain | None
) -> Iterator[str]:
    """A companion that has no wheel for this Python: not installed, taken out, and said."""
    there = name in installed["packages"] if installed else name == "torchvision"
    left = installed is not None and there and name not in change.remove
    if name in pins or left or (there and name not in note):
        yield f"{name.removeprefix('torch')}: {name} has no wheel for this Python"


def _of_the_old(
    change: PackageChange, pins: dict[str, str], row: Row, here: Plain
) -> Iterator[str]:
    """What must be uninstalled first, by the traps of the facts.

    2.14.1+cu126 satisfies torch==2.14.1: the same release in another variant has to go, and so do
    companions that keep their version. cuDNN, NCCL and others of two CUDA majors share folders.
    """
    if here["variant"] == row["variant"]:
        return
    old = {"torch": here["torch"], **here["packages"]}
    for name in ("torch", "torchvision", "torchaudio"):
        same = name in old and pins.get(name, row["torch"]) == old[name]
        if same and name not in change.remove:
            yield f"stale: {name} {old[name]} of {here['variant']} would pass for {row['variant']}"
    if row["cuda"] is None or not here["cuda"]:
        return
    if numbers(here["cuda"])[0] != numbers(row["cuda"])[0]:
        left = sorted(set(here["wheels"]) - set(change.remove))
        if left:
            yield f"stale: {left} of {here['variant']} collide with {row['variant']}"


def _of_pair(name: str, pins: dict[str, str], row: Row, installed: Plain | None) -> Iterator[str]:
    """torchvision and torchaudio: the release that came with this torch, where one came.

    An empty environment gets torchvision too.
    """
    fresh, here = installed is None, installed["packages"] if installed else {}
    kind = name.removeprefix("torch")
    allowed = {row[name]} if row[name] else set()
    if name == "torchaudio" and numbers(row["torch"]) > (2, 11, 0):
        allowed = {None, LAST_AUDIO}
    if name in pins and pins[name] not in allowed:
        yield f"{kind}: {name} {pins[name]} for torch {row['torch']}, not {row[name]}"
    if name == "torchvision" and fresh and row[name] and name not in pins:
        yield f"{kind}: {name} {row[name]} is not installed with torch {row['torch']}"
    if name in here and name not in pins and row[name] not in (None, here[name]):
        yield f"{kind}: {name} {here[name]} stays beside torch {row['torch']}"


def _of_pin(name: str, version: str, row: Row, plain: Plain, reading: Reading) -> Iterator[str]:
    against = list(companion_against(name, version, row, plain, reading))
    if against:
        yield f"companion: {name} {version} for torch {row['torch']}: {'; '.join(against)}"


def _ways(ways: Iterable[Alternative], plain: Plain, reading: Reading) -> Iterator[str]:
    """Each way out leads to a published build that fits once it is taken."""
    for way in ways:
        if way.kind == "conda" and (why := conda_against(str(way.cuda), plain, reading)):
            yield f"way: {way.text} Yet: {why}"
        if way.build is None:
            continue
        torch, variant = str(way.build.torch), way.build.variant
        row = reading.row(torch, variant, plain["platform"])
        if row is None or row["published"] is not True:
            yield f"way: {torch} {variant} is not published"
            continue
        changed = _taken(way, plain)
        if changed is not None and (plain["wish"] or "").endswith("+cpu"):
            changed["capabilities"] = ()
        against = set() if changed is None else reading.reasons(torch, changed)[variant]
        if changed is not None and "sound" not in reading.fitting(changed).values():
            against = against - {"cudnn"}  # A last resort, as for the build itself.
        if against - {"contested"}:
            yield f"way: {way.text} Yet: {', '.join(sorted(against))}"


def _taken(way: Alternative, plain: Plain) -> Plain | None:
    """The machine after that change, None if this reading does not know such a change."""
    python = {"python": way.pythons[0]} if way.pythons else {}
    hidden = set(map(str, way.hidden))
    left = tuple(capability for capability in plain["capabilities"] if capability not in hidden)
    newest = {"driver": f"{way.branch}.999", "told": False, "by_level": False, "numbers": "linux"}
    lifted = {"level": str(way.build.cuda) if way.build else "", "by_level": True}
    known: dict[str, Plain] = {
        "python": python,
        "driver": python | newest,
        "glibc": {"glibc": str(way.build.glibc) if way.build else None},
        "one-gpu": {"capabilities": left},
        "compat": lifted,
        "release": {},
        "cpu": {"capabilities": ()},
    }
    return {**plain, **known[way.kind]} if way.kind in known else None


def _pin(requirement: str) -> tuple[str, str]:
    name, _, version = requirement.partition("==")
    return name, version


def facts_folder() -> Path | None:
    """The collected facts, where they lie beside this repository."""
    folder = Path(__file__).parents[2] / "shared" / "facts"
    return folder if (folder / "torch_releases.json").exists() else None
