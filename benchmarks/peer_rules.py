"""Against the rules of other installers: who chooses what, and who is right.

    python benchmarks/peer_rules.py [--check]

Over a seeded sample of plausible machines each rule of peer_choosers, our solver and the second
reading of the tables are asked. Where a peer's answer is not ours, the difference falls into a
class (peer_classes), and each class of each peer has a reason, written by hand (peer_reasons); a
class without one ends with 1, and so does a wheel of a peer's that is better than ours. The result
is results/peer_rules.md, a function of the tables and the code alone. --check: nothing is written,
and a result that is not current ends with 1.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from grid_machines import Plain, machines
from peer_choosers import LEFT_OUT, PEERS, READ, Answer, Peer, Shelf
from peer_classes import AS_NEW, CLASSES, FAULTS, RUNS, Ours, facts_of, outcome
from peer_reasons import EXPLAINED
from second_reading import Reading, of_tables

from cudadoctor import knowledge
from cudadoctor.solver.builds import best_build

RESULT = Path(__file__).parent / "results" / "peer_rules.md"
MACHINES = 2_000
SEED = 20


class Difference(NamedTuple):
    """One machine for which a peer's answer was put beside ours."""

    peer: str
    kind: str
    plain: Plain
    answer: Answer
    ours: Ours


def plausible(count: int) -> Iterator[tuple[Plain, Ours]]:
    """Machines without a wish and without a torch, none absurd, with our answer for each."""
    tables = knowledge.load()
    found = 0
    for machine, plain in machines(count * 4, SEED):
        lifted = plain["by_level"] and plain["kind"] != "jetson"
        if plain["absurd"] or plain["installed"] or plain["wish"] or lifted:
            continue
        if not plain["capabilities"] or plain["python"] is None:
            continue
        build = best_build(machine, tables).build
        yield plain, None if build is None else (str(build.torch), build.variant)
        found += 1
        if found == count:
            return


def differences(count: int, reading: Reading) -> list[Difference]:
    """Every peer asked about every machine."""
    shelf = Shelf(reading)
    found = []
    for plain, ours in plausible(count):
        for peer in PEERS:
            answer = peer.choose(plain, shelf)
            kind = outcome(answer, ours, plain, reading)
            found.append(Difference(peer.name, kind, plain, answer, ours))
    return found


def unexplained(found: list[Difference]) -> list[str]:
    """A line for each class of answers of a peer that is unexplained or a fault of ours."""
    seen = dict.fromkeys((difference.peer, difference.kind) for difference in found)
    return [
        f"{peer}: {kind}: {_example(found, peer, kind)}"
        for peer, kind in seen
        if kind in FAULTS or (kind != "agree" and (peer, kind) not in EXPLAINED)
    ]


def _example(found: list[Difference], peer: str, kind: str) -> str:
    example = next(
        difference for difference in found if (difference.peer, difference.kind) == (peer, kind)
    )
    return f"{_machine(example.plain)}; {_answer(example.answer)}; ours {_ours(example.ours)}"


def document(found: list[Difference], reading: Reading) -> str:
    """The whole table as Markdown."""
    return "\n".join(
        (
            *_head(found),
            *_counts(found),
            *(line for peer in PEERS for line in _of_peer(peer, found, reading)),
            *_left_out(),
            "",
        )
    )


def _head(found: list[Difference]) -> Iterator[str]:
    count = len(found) // len(PEERS)
    with_build = len({id(difference.plain) for difference in found if difference.ours is not None})
    yield "# Which torch: the rules of other installers beside ours"
    yield ""
    yield (
        "Made by `python benchmarks/peer_rules.py`, not by hand, with the tables of "
        f"{knowledge.load().date}. The peers' sources were read on {READ}, and their rules written "
        "again in benchmarks/peer_choosers.py."
    )
    yield ""
    yield (
        f"Asked about {count:,} plausible machines, {with_build:,} of them with a build: Linux, "
        "Windows, WSL, aarch64 servers, DGX Spark and Jetson; GPUs since Kepler with a driver that "
        "supports them, a system and a Python of that time, nothing installed. An index holds what "
        "our tables know to be published, and only torch is compared. Whether a build runs is "
        "decided by the second reading of the tables, which shares no code with our solver."
    )


def _counts(found: list[Difference]) -> Iterator[str]:
    yield ""
    yield "## Counts"
    yield ""
    seen = {difference.kind for difference in found}
    names = [name for name in CLASSES if name in seen]
    yield "| peer | runs | as new | " + " | ".join(names) + " |"
    yield "|---|" + "---:|" * (len(names) + 2)
    for peer in PEERS:
        mine = [difference for difference in found if difference.peer == peer.name]
        kinds = [difference.kind for difference in mine]
        cells = " | ".join(str(kinds.count(name) or "") for name in names)
        yield f"| {peer.name} | {_share(mine, RUNS)} | {_share(mine, AS_NEW)} | {cells} |"
    yield ""
    yield (
        "- **runs**, **as new**: of the machines that have a build (and for which its own can be "
        "judged), the share for which its answer runs, and for which it is as new as ours too."
    )
    for name in names:
        yield f"- **{name}**: {CLASSES[name]}"
    yield ""


def _share(mine: list[Difference], kinds: frozenset[str]) -> str:
    """Of the machines for which we have a build, the share whose answer is in these classes."""
    judged = [
        difference
        for difference in mine
        if difference.ours is not None and difference.kind != "not judged"
    ]
    those = [difference.kind in kinds for difference in judged]
    return f"{sum(those) / len(those):.0%}"


def _of_peer(peer: Peer, found: list[Difference], reading: Reading) -> Iterator[str]:
    mine = [difference for difference in found if difference.peer == peer.name]
    yield f"## {peer.name} ({peer.version})"
    yield ""
    yield f"{peer.rule} Source: [{peer.source}]({peer.url}), read {READ}."
    yield ""
    yield "| class | machines | for example | its answer | ours | by the tables | why |"
    yield "|---|---:|---|---|---|---|---|"
    for kind in CLASSES:
        those = [difference for difference in mine if difference.kind == kind]
        if those and kind != "agree":
            yield _row(kind, those, reading)
    yield ""


def _row(kind: str, those: list[Difference], reading: Reading) -> str:
    example = min(those, key=_plainness)
    cells = (
        kind,
        str(len(those)),
        _machine(example.plain),
        _answer(example.answer),
        _ours(example.ours),
        facts_of(kind, example.answer, example.ours, example.plain, reading),
        EXPLAINED.get((example.peer, kind), "not explained"),
    )
    return "| " + " | ".join(cells) + " |"


def _plainness(difference: Difference) -> tuple[int, bool, int]:
    """Sort key that puts the easiest example first: few GPUs, a usual Python, plain Linux."""
    kinds = ("linux", "windows", "spark", "arm", "wsl", "jetson", "vgpu", "terse")
    return (
        len(difference.plain["names"]),
        difference.plain["python"] not in ("3.10", "3.11", "3.12", "3.13"),
        kinds.index(difference.plain["kind"]),
    )


def _machine(plain: Plain) -> str:
    names = list(dict.fromkeys(plain["names"]))
    capabilities = ", ".join(dict.fromkeys(plain["capabilities"]))
    system = {"windows": "Windows", "wsl": "WSL", "spark": "Linux aarch64", "arm": "Linux aarch64"}
    where = system.get(plain["kind"], "Linux")
    if plain["kind"] == "jetson":
        where = f"Jetson R{plain['l4t']}"
    glibc = f", glibc {plain['glibc']}" if plain["glibc"] else ""
    gpus, driver, python = " + ".join(names), plain["driver"], plain["python"]
    return f"{gpus} ({capabilities}), driver {driver}, {where}{glibc}, Python {python}"


def _answer(answer: Answer) -> str:
    if answer.variant is None:
        return "none"
    channel = f" of {answer.channel}" if answer.channel else ""
    return f"{answer.variant}, {answer.torch or 'where nothing fits'}{channel}"


def _ours(ours: Ours) -> str:
    return "none" if ours is None else f"{ours[1]}, {ours[0]}"


def _left_out() -> Iterator[str]:
    yield "## Not compared"
    yield ""
    for name, url, why in LEFT_OUT:
        yield f"- [{name}]({url}): {why}."


def main(arguments: list[str]) -> int:
    """Writes the table, or checks that it is current; 1 where a class has no reason."""
    reading = of_tables()
    found = differences(MACHINES, reading)
    lines = unexplained(found)
    print("\n".join(islice(lines, 40)))
    text = document(found, reading)
    if "--check" in arguments:
        current = RESULT.exists() and RESULT.read_text(encoding="utf-8") == text
        print("current" if current else f"{RESULT.name} is not current: run {Path(__file__).name}")
        return 0 if current and not lines else 1
    RESULT.write_text(text, encoding="utf-8")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
