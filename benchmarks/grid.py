"""Thousands of made-up machines: every prescription is checked by a second, independent reading.

    python benchmarks/grid.py [MACHINES]

The machines are those of grid_machines. The second reading is that of second_reading: it reads the
JSON of the tables, and where the collected facts lie beside the repository, it first holds every
build, floor and rule of the tables against them, so that both are one reading. What is checked
stands in prescription_check. Each machine is solved, its change of packages is made, and both are
checked. All of it runs on one core; the seconds are those of this process.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import Any, NamedTuple

from grid_machines import Plain, machines
from measuring import saved
from prescription_check import facts_folder, faults
from second_conda import conda_faults
from second_reading import Reading, disagreements, of_facts, of_tables

from cudadoctor import knowledge
from cudadoctor.installers.registry import write
from cudadoctor.installers.tool import Written
from cudadoctor.knowledge import Knowledge
from cudadoctor.model.findings import Remedy
from cudadoctor.model.machine import Machine
from cudadoctor.plan.remedies.torch import remedy_for
from cudadoctor.solver.builds import Choice, best_build

MACHINES = 50_000
LIMIT_S = 240.0


class Prescription(NamedTuple):
    """What was prescribed for one machine."""

    plain: Plain
    choice: Choice
    remedy: Remedy | None
    written: Written | None = None


def prescribed(machine: Machine, plain: Plain, tables: Knowledge) -> Prescription:
    """The solver's choice and the change that follows from it."""
    choice = best_build(machine, tables, keep=plain["wish"])
    remedy = None if choice.build is None else remedy_for(choice.build, machine, tables)
    change = remedy.packages if remedy and plain.get("conda") else None
    written = write(machine, tables, change) if change else None
    return Prescription(plain, choice, remedy, written)


def found(prescription: Prescription, reading: Reading) -> list[str]:
    """The faults of one prescription."""
    change = None if prescription.remedy is None else prescription.remedy.packages
    note = "" if prescription.remedy is None else prescription.remedy.note or ""
    lines = faults(prescription.choice, change, note, prescription.plain, reading)
    made, build = prescription.written, prescription.choice.build
    if made is not None and build is not None:
        row = reading.row(str(build.torch), build.variant, prescription.plain["platform"])
        wanted = change.install if change else ()
        lines += conda_faults(made.commands, made.note or "", wanted, row or {}, prescription.plain)
    return lines


def readings() -> tuple[Reading, list[str], list[str]]:
    """The reading, where it was read, and in what the tables differ from the collected facts."""
    tables, folder = of_tables(), facts_folder()
    if folder is None:
        return tables, ["tables"], []
    return tables, ["tables", "facts"], disagreements(tables, of_facts(folder))


def grid(count: int) -> tuple[dict[str, Any], list[str]]:
    """Figures of the whole grid, and a line for each fault."""
    made = list(machines(count))
    tables = knowledge.load()
    started = time.process_time()
    all_of = [prescribed(machine, plain, tables) for machine, plain in made]
    solved_s = time.process_time() - started
    reading, read, lines = readings()
    for prescription in all_of:
        lines += [
            f"{fault} ({_said(prescription.plain)})" for fault in found(prescription, reading)
        ]
    total_s = time.process_time() - started
    return _figures(all_of, read, lines, solved_s, total_s), lines


def _figures(
    all_of: list[Prescription], read: list[str], lines: list[str], solved_s: float, total_s: float
) -> dict[str, Any]:
    built = [prescription for prescription in all_of if prescription.choice.build is not None]
    kinds = Counter(prescription.plain["kind"] for prescription in all_of)
    with_build = Counter(prescription.plain["kind"] for prescription in built)
    return {
        "machines": len(all_of),
        "with_a_build": len(built),
        "share_with_a_build": round(len(built) / len(all_of), 4),
        "by_kind": {
            kind: {"machines": kinds[kind], "with_a_build": with_build[kind]}
            for kind in sorted(kinds)
        },
        "with_a_wish": sum(prescription.plain["wish"] is not None for prescription in all_of),
        "with_torch_installed": sum(
            prescription.plain["installed"] is not None for prescription in all_of
        ),
        "with_companions": sum(
            bool((prescription.plain["installed"] or {}).get("packages")) for prescription in all_of
        ),
        "with_a_project": sum(bool(prescription.plain["files"]) for prescription in all_of),
        "in_conda": sum(prescription.plain["conda"] for prescription in all_of),
        "free_threaded": sum(
            (prescription.plain["python"] or "").endswith("t") for prescription in all_of
        ),
        "with_gpus_of_two_kinds": sum(
            len(set(prescription.plain["names"])) > 1 for prescription in all_of
        ),
        "different_builds": len(_names(built)),
        "read_again_in": read,
        "faults": dict(Counter(line.partition(":")[0] for line in lines)),
        "solved_s": round(solved_s, 2),
        "checked_s": round(total_s - solved_s, 2),
        "total_s": round(total_s, 2),
        "limit_s": LIMIT_S,
    }


def _names(built: list[Prescription]) -> set[tuple[str, str, str]]:
    found = (prescription.choice.build for prescription in built)
    return {
        (str(build.torch), build.variant, build.platform) for build in found if build is not None
    }


def _said(plain: Plain) -> str:
    """A machine in one line."""
    shown = ("kind", "names", "driver", "python", "glibc", "installed", "wish")
    return ", ".join(f"{name} {plain[name]}" for name in shown if plain[name])


def main(arguments: list[str]) -> int:
    """Prints figures and the first faults; returns 1 where there is one, or it took too long."""
    figures, lines = grid(int(arguments[0]) if arguments else MACHINES)
    if figures["machines"] >= MACHINES:
        saved("grid", figures)
    else:
        print(figures)
    print("\n".join(lines[:20]))
    return 1 if lines or figures["total_s"] > LIMIT_S else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
