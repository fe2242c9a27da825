"""The second reading of what stands beside a torch: what is lost, what moves, what asks for what.

It shares nothing with the solver but the tables: requirements are read clause by clause here, and
which release of a companion works beside a build comes straight from the rows of the JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from packaging.markers import Marker
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from second_reading import Plain, Reading, Row, numbers

LAST_AUDIO = "2.11.0"
"""The last torchaudio declares no torch: whoever has it may keep it beside later releases."""

FAMILY = ("torchvision", "torchaudio", "torchtext")
JUDGED = (
    "xformers",
    "flash-attn",
    "bitsandbytes",
    "triton",
    "triton-windows",
    "torchao",
    "torchcodec",
    "torch-tensorrt",
)
"""Packages that have rows of their own, or that nobody can say anything of."""

COMPILED = ("vllm", "transformer-engine")
"""Packages with code that is bound to the torch they were built for."""

FLOORS = {"vllm": (7, 0)}
"""Package -> the oldest GPU that it serves, by its own documentation."""


class Line(NamedTuple):
    """A requirement of a package or of a file: what it asks of which package."""

    name: str
    specifier: str


class Cost(NamedTuple):
    """What a build costs, the gravest first.

    unmet: files of the project that ask for another. lost: no release works beside it; moved:
    another release would.
    """

    unmet: list[str]
    lost: list[str]
    moved: list[str]


def cost(key: tuple[str, str], plain: Plain, reading: Reading) -> Cost:
    """The installed packages and the lines of the project that do not work beside a build.

    Beside the build that is there, nothing is lost: what does not work, did not work before.
    """
    here = plain["installed"]
    if key == (here["torch"], here["variant"]):
        return Cost([], [], [])
    row = reading.row(*key, plain["platform"])
    assert row is not None
    found = Cost([], [], [])
    end = dict(_end(row, plain, reading))
    for name, version in here["packages"].items():
        if name in FAMILY or name in JUDGED:
            if not lives(name, version, row, plain, reading):
                found.lost.append(name)
            continue
        gpus = [numbers(gpu) for gpu in plain["capabilities"]]
        if gpus and max(gpus) < FLOORS.get(name, ()):
            continue  # It runs on none of the GPUs, whichever torch is there.
        lines = list(lines_of(name, version, plain, reading))
        refused = any(not _admitted(line, end) for line in lines)
        if refused or _is_bound(name, lines, row, plain, reading):
            known = any(_moves(name, row, plain, reading))
            (found.moved if known else found.lost).append(name)
    for name, lines in plain.get("files", ()):
        unmet = [line for line in read(lines, plain) if not _admitted(line, end)]
        found.unmet.extend([name] * len(unmet))
    return found


def _end(row: Row, plain: Plain, reading: Reading) -> Iterator[tuple[str, str | None]]:
    """Torch and those of its family that are installed -> the release there, None for none."""
    yield "torch", installed_as(row)
    for name in FAMILY:
        version = plain["installed"]["packages"].get(name) or _brought(name, plain, reading)
        if version is not None:
            alive = lives(name, version, row, plain, reading)
            release = row[name] or (LAST_AUDIO if name == "torchaudio" else None)
            yield name, release if alive else None


def _brought(name: str, plain: Plain, reading: Reading) -> str | None:
    """What a package of a terse report pins beside the torch that is there, and so brought."""
    here = plain["installed"]
    for package, version in here["packages"].items() if plain["kind"] == "terse" else ():
        lines = list(lines_of(package, version, plain, reading))
        if all(admits(line.specifier, here["torch"]) for line in lines if line.name == "torch"):
            for line in lines:
                if line.name == name and re.fullmatch(r"==[\d.]+", line.specifier):
                    return line.specifier[2:]
    return None


def installed_as(row: Row) -> str:
    """The version of the wheel: that of torch's own index bears its variant."""
    return row["torch"] if row["default"] else f"{row['torch']}+{row['variant']}"


def _is_bound(name: str, lines: list[Line], row: Row, plain: Plain, reading: Reading) -> bool:
    """Whether a program was compiled for another torch: one that it does not name exactly."""
    exact = [line.specifier for line in lines if line.name == "torch" and "==" in line.specifier]
    made = _is_usual(row, reading) and any(admits(text, row["torch"]) for text in exact)
    return name in COMPILED and not same_code(row, plain) and not made


def _is_usual(row: Row, reading: Reading) -> bool:
    """Whether a build has the CUDA major of its torch's default build for CUDA there, if any."""
    same = [one for one in reading.builds if one["torch"] == row["torch"] and one["default"]]
    usual = [one["cuda"] for one in same if one["cuda"] and one["platform"] == row["platform"]]
    return not usual or bool(row["cuda"] and numbers(usual[0])[0] == numbers(row["cuda"])[0])


def _admitted(line: Line, end: dict[str, str | None]) -> bool:
    version = end.get(line.name, "")
    return version == "" or (version is not None and admits(line.specifier, version))


def _moves(name: str, row: Row, plain: Plain, reading: Reading) -> Iterator[Row]:
    """The releases of a program that work with a build's torch and come here.

    What an old release leaves open ends with the first torch that a later one pins. What is bound
    to a CUDA has its wheels for the default build of that torch alone.
    """
    if name in (*COMPILED, "torch-tensorrt") and not _is_usual(row, reading):
        return
    pinned = None
    for release in reversed(reading.releases(name)):
        wanted = release["torch"]
        if wanted and re.fullmatch(r"==[\d.]+", wanted):
            pinned = numbers(wanted[2:])
        open_ended = pinned is not None and numbers(row["torch"]) > pinned
        fits = wanted and admits(wanted, row["torch"]) and not open_ended
        if fits and comes(release, row, plain) and _pins_come(name, release, row, plain, reading):
            yield release


def _pins_come(name: str, release: Row, row: Row, plain: Plain, reading: Reading) -> bool:
    """Whether what a release pins exactly beside torch has wheels here, as far as it is known."""
    exact = {
        line.name: line.specifier.removeprefix("==")
        for line in asked_by(name, release["version"], plain, reading)
        if line.specifier.startswith("==") and line.name not in ("torch", *FAMILY)
    }
    return all(
        comes(one, row, plain)
        for pinned, version in exact.items()
        for one in reading.releases(pinned)
        if one["version"] == version
    )


def lines_of(name: str, version: str, plain: Plain, reading: Reading) -> Iterator[Line]:
    """What an installed package asks for: by its metadata, else by the tables."""
    told = plain["installed"].get("requires", {}).get(name)
    return read(told, plain) if told else asked_by(name, version, plain, reading)


def asked_by(name: str, version: str, plain: Plain, reading: Reading) -> Iterator[Line]:
    """What a release asks for by the tables; nothing where that is not known."""
    release = next((one for one in reading.releases(name) if one["version"] == version), None)
    if release is None or not release["torch"]:
        return iter(())
    rows = reading.around["pins"]
    pins = [row["requires"] for row in rows if (row["package"], row["version"]) == (name, version)]
    return read((f"torch{release['torch']}", *(pins[0] if pins else ())), plain)


def read(lines: Iterable[str], plain: Plain) -> Iterator[Line]:
    """The lines that count on this machine: no extras, and markers that hold."""
    windows, python = plain["platform"].startswith("windows"), plain["python"] or "3.11"
    machine = "aarch64" if plain["platform"] == "linux_aarch64" else "x86_64"
    variables = {
        "sys_platform": "win32" if windows else "linux",
        "platform_system": "Windows" if windows else "Linux",
        "platform_machine": "AMD64" if windows else machine,
        "python_version": python.rstrip("t"),
    }
    for line in lines:
        asked, _, marker = line.partition(";")
        if "extra" in marker or (marker and not Marker(marker).evaluate(variables)):
            continue
        found = re.match(r"\s*([\w-]+)\s*(.*)", asked)
        assert found is not None
        yield Line(found[1].lower().replace("_", "-"), found[2].strip())


def same_code(row: Row, plain: Plain) -> bool:
    """Whether code that was compiled for the installed torch runs with a build."""
    here = plain["installed"]
    majors = [numbers(cuda)[0] if cuda else None for cuda in (here["cuda"], row["cuda"])]
    minors = [numbers(torch)[:2] for torch in (here["torch"], row["torch"])]
    return majors[0] == majors[1] and minors[0] == minors[1]


def lives(name: str, version: str, row: Row, plain: Plain, reading: Reading) -> bool:
    """Whether an installed companion works beside a build, in its release or in another one."""
    if name == "torchaudio" and numbers(row["torch"]) > numbers(LAST_AUDIO):
        last = reading.row(LAST_AUDIO, row["variant"], plain["platform"])
        pythons = last["pythons"] if last else ()
        return bool(
            last and (last["default"] or not row["default"]) and plain["python"] in (None, *pythons)
        )
    if name in FAMILY:
        return row[name] is not None and not reading.without_wheel(name, row[name], plain)
    stays = same_code(row, plain)
    if name == "flash-attn":
        return stays or _has_flash(row, plain, reading)
    known = reading.releases(name)
    if name == "triton-windows":
        minor = row["torch"].rpartition(".")[0]
        wanted = reading.around["triton_windows"].get(minor)
        same = [one for one in known if wanted and admits(wanted, one["version"].split(".post")[0])]
        return stays or any(comes(one, row, plain) for one in same)
    if name == "torch-tensorrt":
        lines = lines_of(name, version, plain, reading)
        met = all(admits(line.specifier, row["torch"]) for line in lines if line.name == "torch")
        return (met and (stays or _is_usual(row, reading))) or any(
            _moves(name, row, plain, reading)
        )
    if name not in ("xformers", "bitsandbytes"):
        return True
    if name == "xformers":
        made = reading.around["xformers"]
        if stays and (row["cuda"] is None or all(version not in one["versions"] for one in made)):
            return True
        # What asks for "torch or newer" keeps to torch's stable ABI.
        asked = {release["version"]: release["torch"] or "" for release in known}
        stable = {name for name, torch in asked.items() if torch.startswith(">=")}
        fits = [
            one["versions"][0]
            for one in made
            if (
                admits(asked[one["versions"][0]], row["torch"])
                if one["versions"][0] in stable
                else one["torch"] == row["torch"]
            )
            and row["platform"] in one["platforms"]
            and row["cuda"] in (None, *one["cuda"])
        ]
        if stays and version in fits:
            return True
        # Torch's own index has more platforms than the package index.
        return any(
            comes({**release, "platforms": None}, row, plain)
            for release in known
            if release["version"] in fits
        )
    return any(
        comes(release, row, plain)
        and not list(companion_against(name, release["version"], row, plain, reading))
        for release in [*(one for one in known if one["torch"]), {"version": version}]
    )


def comes(release: Row, row: Row, plain: Plain) -> bool:
    """Whether a release has a wheel for this platform and Python, as far as it is known."""
    places, python, named = (release.get(field) for field in ("platforms", "python", "pythons"))
    here = places is None or row["platform"] in places or "any" in places
    if plain["python"] is None:
        return here
    mine, threaded = numbers(plain["python"].rstrip("t")), plain["python"].endswith("t")
    abi3 = [numbers(one[:-1]) for one in named or () if one.endswith("+")]
    wheel = named is None or bool({"any", plain["python"]} & {*named})
    wheel = wheel or (not threaded and any(first <= mine for first in abi3))
    return here and wheel and (not python or admits(python, plain["python"].rstrip("t")))


def _has_flash(row: Row, plain: Plain, reading: Reading) -> bool:
    if plain["platform"] != "linux_x86_64" or not row["cuda"] or not plain["python"]:
        return False
    if plain["python"].endswith("t"):
        return False
    minor, python = row["torch"].rpartition(".")[0], numbers(plain["python"])
    return any(
        minor in release["torch"]
        and release["cuda_major"] == numbers(row["cuda"])[0]
        and numbers(release["python"].partition("-")[0])
        <= python
        <= numbers(release["python"].rpartition("-")[2])
        for release in reading.around["flash_attn"]
    )


def companion_against(
    name: str, version: str, row: Row, plain: Plain, reading: Reading
) -> Iterator[str]:
    """Why a release of a companion does not work with a build of torch."""
    known = [release for release in reading.releases(name) if release["version"] == version]
    wanted = known[0]["torch"] if known else None
    if wanted and not admits(wanted, row["torch"]):
        yield f"it requires torch{wanted}"
    python = known[0]["python"] if known else None
    if python and plain["python"] and not admits(python, plain["python"].rstrip("t")):
        yield f"it requires Python {python}"
    yield from _of_prebuilt(name, version, row, reading)


def _of_prebuilt(name: str, version: str, row: Row, reading: Reading) -> Iterator[str]:
    minor = row["torch"].rpartition(".")[0]
    if name == "flash-attn":
        made = [
            release for release in reading.around["flash_attn"] if release["version"] == version
        ]
        if made and not any(minor in release["torch"] for release in made):
            yield "it was not built for this torch"
    own = [
        binaries
        for binaries in (reading.around[name] if name in ("xformers", "bitsandbytes") else ())
        if Version(binaries["versions"][0]) <= Version(version) <= Version(binaries["versions"][-1])
    ]
    here = [cuda for one in own if row["platform"] in one["platforms"] for cuda in one["cuda"]]
    if own and row["cuda"] not in (None, *here):
        yield f"its binaries are for CUDA {here}"


def admits(specifier: str, version: str) -> bool:
    """Whether a specifier admits a version; a wildcard or ~= compares only the first numbers."""
    if "post" in specifier + version:
        return SpecifierSet(specifier).contains(version)
    here, local = numbers(version.partition("+")[0]), version.partition("+")[2]
    for clause in specifier.split(",") if specifier else ():
        found = re.fullmatch(r"\s*(==|!=|>=|<=|~=|>|<)\s*([\d.]+)(\.\*)?(\+\w+)?\s*", clause)
        if found is None or (found[4] and found[4] != f"+{local}"):
            return False
        sign, wanted = found[1], numbers(found[2].strip("."))
        length = max(len(here), len(wanted))
        padded, bound = _filled(here, length), _filled(wanted, length)
        if not _holds(sign, padded, bound, wanted, bool(found[3])):
            return False
    return True


def _holds(
    sign: str, padded: tuple[int, ...], bound: tuple[int, ...], wanted: tuple[int, ...], star: bool
) -> bool:
    if sign == "~=":
        return padded >= bound and padded[: len(wanted) - 1] == wanted[:-1]
    if star:
        return (padded[: len(wanted)] == wanted) == (sign == "==")
    # Only the major and minor of the Python are known: 3.14 does not count as 3.14.1.
    order = {
        "==": padded == bound,
        "!=": padded != bound,
        ">=": padded >= bound,
        "<=": padded <= bound,
    }
    return order.get(sign, padded > bound if sign == ">" else padded < bound)


def _filled(parts: tuple[int, ...], length: int) -> tuple[int, ...]:
    return parts + (0,) * (length - len(parts))
