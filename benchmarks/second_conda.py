"""The second reading of a conda command: whether the channel has what it asks for, and it fits.

The rows are read as they lie in the JSON of the tables. Of the builds of conda-forge it is known
which CUDA they were made with; the pytorch channel has what its page lists.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from peer_choosers import CONDA_PLATFORMS
from second_reading import TABLES, Numbers, Plain, Row, numbers

LEADS = ("pytorch", "pytorch-gpu", "pytorch-cpu")


def conda_faults(
    commands: Iterable[Sequence[str]], note: str, wanted: Iterable[str], row: Row, plain: Plain
) -> Iterator[str]:
    """What is wrong with the commands that bring a build of torch into a conda environment.

    wanted: the requirements of the change that they are for.
    """
    installs = [argv for argv in commands if "install" in argv and "--dry-run" not in argv]
    if not installs:
        yield f"conda: nothing is installed: {list(commands)}"
        return
    if "pip" in installs[0]:
        yield from _of_pip(commands, installs[0], note, row, plain)
        return
    words = [_split(word) for word in installs[0]]
    specs = {name: limit for name, limit in words if re.fullmatch(r"[a-z][\w-]+", name)}
    lead = next((name for name in LEADS if name in specs), None)
    if lead is None:
        yield f"conda: no torch among {installs[0]}"
        return
    release = specs[lead].strip("=")
    old = lead == "pytorch"
    if (row["cuda"] is None) != ("cpuonly" in specs if old else lead == "pytorch-cpu"):
        yield f"conda: {lead} for {row['variant']}"
    yield from (_of_pytorch if old else _of_forge)(release, specs, note, row, plain)
    for name in ("torchvision", "torchaudio"):
        if any(requirement.startswith(f"{name}==") for requirement in wanted) and name not in specs:
            yield f"conda: {name} does not come along"


def _of_pip(
    commands: Iterable[Sequence[str]], install: Sequence[str], note: str, row: Row, plain: Plain
) -> Iterator[str]:
    """Wheels, since neither channel has that release; conda's own torch goes first."""
    major = row["cuda"] and numbers(row["cuda"])[0]
    there = [one for one in _rows("conda_forge") if one["torch"] == row["torch"]]
    pairs = [pair.split(":") for one in there for pair in one["cuda"]]
    here = [cuda for where, cuda in pairs if where == CONDA_PLATFORMS[plain["platform"]]]
    past = [
        cuda for one in _rows("pytorch") if one["torch"] == row["torch"] for cuda in one["cuda"]
    ]
    past = past if plain["platform"] in ("linux_x86_64", "windows_amd64") else []
    # Blackwell's code came with CUDA 12.8.
    least = (12, 8) if any(numbers(gpu) >= (10, 0) for gpu in plain["capabilities"]) else ()
    usable = [cuda for cuda in (*here, *past) if not row["cuda"] or numbers(cuda) >= least]
    if any(major in (None, numbers(cuda)[0]) for cuda in usable):
        yield f"conda: a channel has {row['torch']}, yet pip installs it"
    if f"torch=={row['torch']}" not in install or "No conda channel" not in note:
        yield f"conda: pip runs {install}, unsaid"
    removes = [argv for argv in commands if "remove" in argv and "pip" not in argv]
    if plain["installed"] and not any("pytorch" in argv for argv in removes):
        yield "conda: its own torch stays beside the wheel"


def _of_pytorch(
    release: str, specs: dict[str, str], note: str, row: Row, plain: Plain
) -> Iterator[str]:
    made = [one["cuda"] for one in _rows("pytorch") if one["torch"] == release]
    cuda = specs.get("pytorch-cuda", specs.get("cudatoolkit", "")).strip("=")
    if release != row["torch"] or not made or (cuda and cuda not in made[0]):
        yield f"conda: the pytorch channel has no {release} for CUDA {cuda or 'none'}"
    if cuda and row["cuda"] and numbers(cuda)[0] != numbers(row["cuda"])[0]:
        yield f"conda: CUDA {cuda} for {row['variant']}"
    if "discontinued" not in note:
        yield "conda: it is not said that the pytorch channel has ended"
    if plain["platform"] not in ("linux_x86_64", "windows_amd64"):
        yield f"conda: the pytorch channel has nothing for {plain['platform']}"


def _of_forge(
    release: str, specs: dict[str, str], note: str, row: Row, plain: Plain
) -> Iterator[str]:
    place = CONDA_PLATFORMS[plain["platform"]]
    made = {one["torch"]: [pair.split(":") for pair in one["cuda"]] for one in _rows("conda_forge")}
    here = {
        torch: [cuda for where, cuda in pairs if where == place] for torch, pairs in made.items()
    }
    limit = specs.get("cuda-version")
    if row["cuda"] is None:
        if limit:
            yield f"conda: cuda-version{limit} for the CPU"
        if release and not here.get(release):
            yield f"conda: conda-forge has no {release} there"
        return
    found = re.fullmatch(r">=([\d.]+),<(\d+)", limit or "")
    if found is None:
        yield f"conda: cuda-version{limit} for {row['variant']}"
        return
    low, major = numbers(found[1]), numbers(row["cuda"])[0]
    if int(found[2]) != major + 1 or low[0] != major:
        yield f"conda: cuda-version{limit} for {row['variant']}"

    def serves(torch: str) -> bool:
        return any(low <= numbers(cuda) < (major + 1,) for cuda in here.get(torch, ()))

    known = [torch for torch in here if serves(torch)]
    if release and not serves(release):
        yield f"conda: conda-forge has no {release} for cuda-version{limit}"
    if not release and not known:
        return  # Nothing is known of that major there: conda has to see.
    best = release or max(known, key=_order)
    if best != row["torch"] and best not in note:
        yield f"conda: {best} in place of {row['torch']}, unsaid"


def _split(word: str) -> tuple[str, str]:
    found = re.fullmatch(r"([A-Za-z][\w-]*)((?:[=<>!~]).*)?", word)
    return (found[1], found[2] or "") if found else ("", "")


def _order(torch: str) -> Numbers:
    return numbers(torch)


@lru_cache
def _rows(name: str) -> list[Row]:
    found: list[Row] = json.loads((TABLES / "conda.json").read_text(encoding="utf-8"))[name]
    return found
