"""Plans of drawn machines, resolved by uv: can what will be installed be together on PyPI?

    python benchmarks/uv_resolves.py [PLANS] [UV]

The machines are those of grid_machines, with companions and programs beside torch. The state after
the plan is written as requirements, every package with its release, and `uv pip compile` resolves
it for the Python and the platform of that machine, against https://pypi.org/simple and with wheels
alone. Left out are what has no wheel there (flash-attn, deepspeed: they are compiled at home), what
the plan itself says may not work, what did not work with the old torch either, and what was there
and does not resolve by itself. A plan that names torch's own index is resolved in the same releases
without the variant, where PyPI has them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from grid import Prescription, prescribed
from grid_machines import machines
from measuring import saved
from second_keeping import admits, comes, lines_of
from second_reading import Plain, Reading, numbers, of_tables

from cudadoctor import knowledge

PLANS = 150
SEED = 41
PYPI = "https://pypi.org/simple"
LIMIT_S = 120
FLOORS = ((2, 17), (2, 28), *((2, minor) for minor in range(31, 41)))
"""What uv knows of glibc as a platform."""

NOT_ON_PYPI = ("house-models",)
FROM_SOURCE = ("torch-tensorrt",)
"""What requires a package that comes as a source (tensorrt, which fetches its wheels elsewhere)."""

OLD = {"3.6": "3.6.15", "3.7": "3.7.17"}
"""The last release of a Python whose first one is older than what packages ask for."""


class Plan(NamedTuple):
    """A plan to resolve: what it installs, and what stays. own: it names torch's own index."""

    plain: Plain
    wanted: tuple[str, ...]
    stays: tuple[str, ...]
    own: bool


def plans(count: int, reading: Reading) -> Iterator[Plan]:
    """So many plans that change packages of an environment with companions."""
    tables = knowledge.load()
    for machine, plain in machines(count * 40, SEED):
        threaded = (plain["python"] or "t").endswith("t")
        if threaded or not plain["installed"] or not plain["installed"]["packages"]:
            continue
        found = prescribed(machine, plain, tables)
        plan = after(found, reading)
        if plan is not None and len(plan.wanted) + len(plan.stays) > 1:
            yield plan
            count -= 1
        if not count:
            return


def after(found: Prescription, reading: Reading) -> Plan | None:
    """The state after a plan as requirements; None where nothing changes, or PyPI lacks it."""
    remedy, plain = found.remedy, found.plain
    if remedy is None or remedy.packages is None or found.choice.build is None:
        return None
    change = remedy.packages
    if any(reading.without_wheel(*_pin(one), plain, pypi=True) for one in change.install):
        return None
    rows = [row for row in reading.builds if row["torch"] == str(found.choice.build.torch)]
    if not any(row["default"] and row["platform"] == plain["platform"] for row in rows):
        return None
    wanted = (*change.install, *change.then)
    names = {re.split(r"[=<>]", requirement)[0] for requirement in wanted}
    note, row = remedy.note or "", rows[0] | {"platform": plain["platform"]}
    stays = [
        f"{name}=={version}"
        for name, version in plain["installed"]["packages"].items()
        if name not in (*names, *change.remove, *NOT_ON_PYPI, "triton")
        and f"{name} {version}" not in note
        and not _worked_never(name, version, plain, reading)
    ]
    wheels = [
        tuple(one for one in each if _is_wheel(one, row, plain, reading))
        for each in (wanted, stays)
    ]
    return Plan(plain, wheels[0], wheels[1], own=change.index is not None)


def _pin(requirement: str) -> tuple[str, str]:
    name, _, version = requirement.partition("==")
    return name, version


def _worked_never(name: str, version: str, plain: Plain, reading: Reading) -> bool:
    """Whether an installed package asks for something else than what is there now."""
    here = {**plain["installed"]["packages"], "torch": plain["installed"]["torch"]}
    known = [one for one in reading.releases(name) if one["version"] == version]
    told = {**plain, "installed": {**plain["installed"], "requires": {}}}
    return not known or any(
        line.name in here and not admits(line.specifier, here[line.name])
        for line in lines_of(name, version, told, reading)
    )


def _is_wheel(requirement: str, row: Plain, plain: Plain, reading: Reading) -> bool:
    """Whether PyPI has that release as a wheel here; what the tables do not know is tried."""
    name, _, version = requirement.partition("==")
    known = [one for one in reading.releases(name) if one["version"] == version]
    if name in FROM_SOURCE:
        return False
    return not known or name in ("torchvision", "torchaudio") or comes(known[0], row, plain)


def platform_of(plain: Plain) -> str:
    """The platform as uv names it."""
    if plain["platform"] == "windows_amd64":
        return "x86_64-pc-windows-msvc"
    processor = plain["platform"].removeprefix("linux_")
    floor = max(one for one in FLOORS if one <= numbers(plain["glibc"]))
    return f"{processor}-manylinux_{floor[0]}_{floor[1]}"


def resolved(requirements: Iterable[str], plain: Plain, uv: str, folder: Path) -> str:
    """ "" where uv finds a solution, else its reason."""
    file = folder / "requirements.in"
    file.write_text("\n".join(requirements) + "\n", encoding="utf-8")
    argv = [uv, "pip", "compile", "-q", "--no-header", "--no-annotate", "--only-binary", ":all:"]
    argv += [
        "--default-index",
        PYPI,
        "--python-version",
        str(OLD.get(plain["python"], plain["python"])),
    ]
    argv += ["--python-platform", platform_of(plain), str(file)]
    ran = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    said = " ".join(ran.stderr.split())
    return "" if ran.returncode == 0 else said.partition("cause:")[2][:400] or said[:400]


def measured(count: int, uv: str) -> dict[str, Any]:
    """How many of the plans resolve, and why the others do not."""
    reading, faults = of_tables(), []
    kinds: dict[str, Counter[str]] = {"PyPI": Counter(), "torch's own index": Counter()}
    packages: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for plan in plans(count, reading):
            every = (*plan.wanted, *plan.stays)
            why = resolved(every, plan.plain, uv, Path(folder))
            if why:
                alone = [one for one in plan.stays if resolved([one], plan.plain, uv, Path(folder))]
                dropped.update(alone)
                every = tuple(one for one in every if one not in alone)
                why = resolved(every, plan.plain, uv, Path(folder)) if alone else why
            kind = "torch's own index" if plan.own else "PyPI"
            kinds[kind]["does not resolve" if why else "resolves"] += 1
            packages.update(re.split(r"[=<>]", one)[0] for one in every)
            print(f"{sum(map(sum, (c.values() for c in kinds.values())))}", file=sys.stderr)
            if why:
                here = f"Python {plan.plain['python']}, {platform_of(plan.plain)}"
                faults.append(f"{' '.join(every)} ({here}): {why}")
                print(faults[-1], file=sys.stderr)
    total = sum(sum(found.values()) for found in kinds.values())
    return {
        "plans": total,
        "resolved": total - len(faults),
        "by_index": {kind: dict(found) for kind, found in kinds.items()},
        "packages": dict(packages.most_common()),
        "there_and_not_resolved_by_themselves": dict(dropped),
        "do_not_resolve": faults,
    }


def main(arguments: list[str]) -> int:
    uv = arguments[1] if len(arguments) > 1 else shutil.which("uv")
    if uv is None:
        print("uv is not on PATH")
        return 2
    figures = measured(int(arguments[0]) if arguments else PLANS, uv)
    if figures["plans"] >= PLANS:
        saved("uv_resolves", figures)
    else:
        print(figures)
    return 1 if figures["do_not_resolve"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
