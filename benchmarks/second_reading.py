"""A second reading of the tables: which builds fit a machine, and whether a prescription is right.

It shares nothing with the solver but the numbers. The rows are read as they lie in the JSON files
of the knowledge, or, where somebody has the collected facts that those were built from, from these;
versions are compared as tuples of numbers; every build is tried. What it reads of a machine are
the plain values of `grid_machines`, and what it reads of a prescription are its texts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

Plain = dict[str, Any]
Row = dict[str, Any]
Numbers = tuple[int, ...]

TABLES = Path(__file__).parent.parent / "cudadoctor" / "knowledge" / "tables"
INDEX = "https://download.pytorch.org/whl"
LIFTED = ((2, 15), (13, 2), {"70", "80", "86"})
"""From this torch with this CUDA on, such code runs on Tegra too (facts: compatibility)."""

OLD_TAG_GLIBC = "2.17"
"""manylinux1 promises glibc 2.5, which wheels up to 2.6.0 do not keep (facts, known traps)."""


class Reading:
    """All builds, and what a machine must have for each."""

    def __init__(
        self, builds: list[Row], drivers: Row, generations: Row, around: Row, libraries: Row
    ) -> None:
        self.builds = builds
        self.floors: dict[int, Row] = {row["major"]: row for row in drivers["floors"]}
        self.toolkits: list[Row] = drivers["toolkits"]
        self.branches = sorted(
            ((int(row["branch"]), row["cuda"]) for row in drivers["branches"] if row["cuda"]),
        )
        self.current = [row["branch"] for row in drivers["branches"] if row["current"]]
        self.serving = generations["serving"]
        self.last = {
            capability: row["last_branch"]
            for row in generations["generations"]
            for capability in row["capabilities"]
        }
        self.around = around
        self.cudnn: list[Row] = libraries["cudnn"]
        self.no_wheel: list[Row] = libraries["no_wheel"]
        self._rows = {(row["torch"], row["variant"], row["platform"]): row for row in builds}
        self._releases: dict[str, list[Row]] = {}
        for release in around["releases"]:
            self._releases.setdefault(release["package"], []).append(release)
        self._on: dict[str, list[int]] = {}
        self._of: dict[tuple[str, str], list[int]] = {}
        for number, row in enumerate(builds):
            self._on.setdefault(row["platform"], []).append(number)
            self._of.setdefault((row["platform"], row["torch"]), []).append(number)
        self._cudas = {numbers(row["cuda"]) for row in builds if row["cuda"]}
        self._soft: dict[tuple[Any, ...], list[tuple[int, Numbers, set[str]]]] = {}
        self._cuda_of = [numbers(row["cuda"]) if row["cuda"] else () for row in builds]
        self._oldest: dict[tuple[str, str], str | None] = {}
        self._code: dict[tuple[int, str, bool], str] = {}
        self._coded: dict[tuple[str, tuple[str, ...]], dict[int, set[str]]] = {}
        self._key: tuple[Any, ...] = ()
        self._found: dict[int, set[str]] = {}

    def row(self, torch: str, variant: str, platform: str) -> Row | None:
        return self._rows.get((torch, variant, platform))

    def releases(self, name: str) -> list[Row]:
        """The releases of a package beside torch, oldest first."""
        return self._releases.get(name, [])

    def number(self, torch: str, variant: str, platform: str) -> int:
        """The place of a build among all. It must be there."""
        here = self._of[platform, torch]
        return next(number for number in here if self.builds[number]["variant"] == variant)

    def fitting(self, plain: Plain) -> dict[tuple[str, str], str]:
        """Each build that fits -> "sound", or a last resort and the doubt that it is under.

        "cudnn": its own cuDNN refuses a GPU; "contested": sources disagree on its code.

        Without a GPU the CPU builds are sound, and the default build is a last resort.
        """
        return {
            (self.builds[number]["torch"], self.builds[number]["variant"]): how
            for number, against in self._against(plain).items()
            if (how := self._how(number, against))
        }

    def _how(self, number: int, against: set[str]) -> str:
        """ "sound", "cudnn", "contested", or "" where the build does not fit."""
        if against <= {"cudnn"}:
            return "cudnn" if against else "sound"
        if against <= {"contested", "cudnn"}:
            return "contested"
        default = self.builds[number]["default"]
        return "contested" if against == {"no-gpu"} and default else ""

    def reasons(self, torch: str, plain: Plain) -> dict[str, set[str]]:
        """Each variant of a release on this platform -> all that stands against it here."""
        against = self._against(plain)
        here = self._of.get((plain["platform"], torch), [])
        return {self.builds[number]["variant"]: against[number] for number in here}

    def _against(self, plain: Plain) -> dict[int, set[str]]:
        """Everything that stands against each build of the platform on a machine."""
        key = (
            *(plain[name] for name in ("platform", "python", "glibc", "driver", "level")),
            *(plain["numbers"], plain["by_level"], plain["told"], plain.get("l4t")),
            plain["capabilities"],
        )
        if key != self._key:
            self._key, self._found = key, dict(self._tried(plain))
        return self._found

    def _tried(self, plain: Plain) -> Iterator[tuple[int, set[str]]]:
        runs = {cuda: self.runs(cuda, plain) for cuda in self._cudas}
        level = self.level(plain)
        coded = self._hardware(plain) if plain["capabilities"] else {}
        tegra = bool(plain.get("l4t")) and numbers(plain["l4t"]) < (38,)
        for number, cuda, software in self._software(plain):
            if not coded:
                yield number, software | {"no-gpu"} if cuda else software
            elif not cuda:
                yield number, software | {"cpu"}
            elif coded[number] or tegra or not runs[cuda]:
                found = software | (coded[number] - {"ptx"})
                found |= {"tegra"} if tegra else set()
                found |= set() if runs[cuda] else {"driver"}
                yield (
                    number,
                    found | ({"ptx"} if "ptx" in coded[number] and level < cuda else set()),
                )
            else:
                yield number, software

    def _software(self, plain: Plain) -> list[tuple[int, Numbers, set[str]]]:
        """What stands against each build of the platform whatever the GPU and the driver are."""
        key = (plain["platform"], plain["python"], plain["glibc"])
        if key not in self._soft:
            self._soft[key] = [
                (number, self._cuda_of[number], self._in_software(number, plain))
                for number in self._on[plain["platform"]]
            ]
        return self._soft[key]

    def _in_software(self, number: int, plain: Plain) -> set[str]:
        row, found = self.builds[number], set()
        if row["published"] is not True:
            found.add("absent" if row["published"] is False else "announced")
        if plain["python"] not in (None, *row["pythons"]):
            found.add("python")
        if row["glibc"] and plain["glibc"] and numbers(plain["glibc"]) < numbers(row["glibc"]):
            found.add("glibc")
        return found

    def _hardware(self, plain: Plain) -> dict[int, set[str]]:
        """What the code of each build of the platform lacks; "ptx" where it rests on PTX."""
        key = (plain["platform"], tuple(sorted(set(plain["capabilities"]))))
        if key not in self._coded:
            gpus = self.counting(plain)
            self._coded[key] = {number: self._lacks(number, gpus) for number in self._on[key[0]]}
        return self._coded[key]

    def _lacks(self, number: int, gpus: list[str]) -> set[str]:
        sound = [self.code(number, gpu, sound=True) for gpu in gpus]
        all_of = [self.code(number, gpu, sound=False) for gpu in gpus]
        found = {"archs"} if "" in all_of else {"contested"} if "" in sound else set()
        found |= {"ptx"} if "ptx" in all_of else set()
        return found | ({"cudnn"} if self.cudnn_refuses(number, gpus) else set())

    def cudnn_refuses(self, number: int, gpus: list[str]) -> list[str]:
        """The GPUs below the lowest that the build's own cuDNN serves."""
        own = self.cudnn_of(self.builds[number])
        if own is None:
            return []
        release = numbers(own)[:3]
        rules = [row for row in self.cudnn if numbers(row["first"]) <= release]
        rule = max(rules, key=lambda row: numbers(row["first"]), default=None)
        if rule is None:
            return []
        return [gpu for gpu in gpus if numbers(gpu) < numbers(rule["lowest"])]

    def without_wheel(
        self, name: str, version: str | None, plain: Plain, *, pypi: bool = False
    ) -> bool:
        """Whether a companion is known to have no wheel for this Python and platform.

        pypi: on the package index; else on torch's own either.
        """
        return any(
            row["package"] == name
            and version in row["versions"]
            and row["platform"] == plain["platform"]
            and (not row["pythons"] or plain["python"] in row["pythons"])
            and (pypi or not row.get("indexed"))
            for row in self.no_wheel
        )

    def cudnn_of(self, row: Row) -> str | None:
        """The cuDNN of a build; a wheel for Windows brings that of the same build for Linux."""
        linux = self.row(row["torch"], row["variant"], "linux_x86_64") or {}
        found: str | None = row["cudnn"] or linux.get("cudnn")
        return found

    def counting(self, plain: Plain) -> list[str]:
        """The GPUs that some build of the platform has code for; all GPUs if there are none."""
        here = [n for n in self._on[plain["platform"]] if self.builds[n]["published"]]
        wanted = sorted(set(plain["capabilities"]))
        served = [gpu for gpu in wanted if any(self.code(n, gpu, sound=False) for n in here)]
        return served or wanted

    def code(self, number: int, capability: str, *, sound: bool) -> str:
        """ "native", "ptx", or "" where the build has nothing for this GPU."""
        key = (number, capability, sound)
        if key not in self._code:
            row = self.builds[number]
            archs = row["archs"] or []
            listed = [arch for arch in archs if not (sound and arch in row["contested"])]
            self._code[key] = self._served(listed, row, numbers(capability))
        return self._code[key]

    def _served(self, listed: list[str], row: Row, gpu: Numbers) -> str:
        """One major, a minor no newer than the GPU's; or PTX of the build's newest code."""
        machine = [_capability(arch) for arch in listed if arch.startswith("sm_")]
        ptx = [_capability(arch) for arch in listed if arch.startswith("compute_")]
        name = ".".join(map(str, gpu))
        for high, low in machine:
            code = f"{high}{low}"
            barred = name in self.serving["exclusions"].get(code, []) and not _lifted(row, code)
            if name in self.serving["aliases"].get(code, []):
                return "native"
            if high == gpu[0] and low <= gpu[1] and not barred:
                return "native"
        newest = max(machine + ptx, default=(0, 0))
        return (
            "ptx" if any(capability == newest and capability <= gpu for capability in ptx) else ""
        )

    def runs(self, cuda: Numbers, plain: Plain) -> bool:
        """Whether the driver runs this CUDA: any minor of its major from 11 on."""
        if not plain["capabilities"]:
            return False
        level = self.level(plain)
        if plain["by_level"]:
            return level[0] >= cuda[0] if cuda[0] >= 11 else level >= cuda
        floor = self.floor(".".join(map(str, cuda)), plain["numbers"])
        return floor is not None and numbers(plain["driver"]) >= numbers(floor)

    def floor(self, cuda: str, system: str) -> str | None:
        """The oldest driver of a CUDA version: of its major from 11 on, else of its last update."""
        key = (cuda, system)
        if key not in self._oldest:
            self._oldest[key] = self._read_floor(cuda, system)
        return self._oldest[key]

    def _read_floor(self, cuda: str, system: str) -> str | None:
        row = self.floors.get(numbers(cuda)[0])
        if row is not None:
            return str(row[system])
        rows = [toolkit for toolkit in self.toolkits if toolkit["toolkit"].startswith(f"{cuda}.")]
        known = [str(toolkit[system]) for toolkit in rows if toolkit[system]]
        return max(known, key=numbers, default=None)

    def level(self, plain: Plain) -> Numbers:
        """The newest CUDA that the driver brings itself: as it told, else by its branch."""
        if plain["told"] or plain["by_level"]:
            return numbers(plain["level"])
        branch = numbers(plain["driver"])[0]
        below = [cuda for number, cuda in self.branches if number <= branch]
        return numbers(below[-1]) if below else (0,)


def of_tables() -> Reading:
    """The tables that come with cudadoctor."""
    torch = _json(TABLES / "torch.json")
    releases = {row["torch"]: row for row in torch["releases"]}
    builds = [
        {
            **row,
            "pythons": releases[row["torch"]]["pythons"].get(row["platform"], []),
            "torchvision": releases[row["torch"]]["torchvision"],
            "torchaudio": releases[row["torch"]]["torchaudio"],
            "torchtext": releases[row["torch"]]["torchtext"],
        }
        for row in torch["builds"]
    ]
    names = ("drivers", "architectures", "companions")
    drivers, generations, around = (_json(TABLES / f"{name}.json") for name in names)
    libraries = _json(TABLES / "libraries.json") | _json(TABLES / "practice.json")
    return Reading(builds, drivers, generations, around, libraries)


def of_facts(folder: Path) -> Reading:
    """A reading of the collected facts: builds, code, floors and companions.

    What they say in words only (disputed code) and what was decided by hand (the glibc of one
    build) is taken from the tables.
    """
    tables = of_tables()
    releases = _json(folder / "torch_releases.json")["releases"]
    lists = _json(folder / "arch_lists.json")
    archs = {(row["torch"], row["variant"], row["platform"]): row for row in lists["rows"]}
    builds = [fact for row in releases for fact in _fact_rows(row, archs, tables)]
    drivers = _json(TABLES / "drivers.json")
    driver_facts = _json(folder / "cuda_driver.json")
    floors = driver_facts["minor_version_compatibility"]
    drivers["floors"] = [{**row, "major": int(row["major"])} for row in floors if row["linux"]]
    drivers["toolkits"] = [
        {"toolkit": row["toolkit"], "linux": row["linux_x86_64"], "windows": row["windows"]}
        for row in driver_facts["toolkits"]
    ]
    generations = _json(TABLES / "architectures.json")
    rule = lists["compatibility"]
    generations["serving"] = {"exclusions": rule["exclusions"], "aliases": rule["aliases"]}
    return Reading(builds, drivers, generations, tables.around, vars(tables))


def disagreements(tables: Reading, facts: Reading) -> list[str]:
    """A line for each build, floor or rule that the tables have otherwise than the facts.

    Where there is none, reading the facts is reading the tables. The tables may know more builds.
    """
    found = []
    for row in facts.builds:
        ours = tables.row(row["torch"], row["variant"], row["platform"])
        other = [name for name in row if ours is None or ours[name] != row[name]]
        if other:
            where = f"{row['torch']} {row['variant']} for {row['platform']}"
            found.append(f"facts: {where}: {', '.join(other)} differ")
    for system in ("linux", "windows"):
        for cuda in sorted({row["cuda"] for row in facts.builds if row["cuda"]}):
            if tables.floor(cuda, system) != facts.floor(cuda, system):
                found.append(f"facts: the floor of CUDA {cuda} on {system} differs")
    for name in ("exclusions", "aliases"):
        if tables.serving[name] != facts.serving[name]:
            found.append(f"facts: {name} differ")
    return found


def _fact_rows(row: Row, archs: dict[tuple[str, str, str], Row], tables: Reading) -> Iterable[Row]:
    for variant, facts in row["variants"].items():
        for platform, state in facts["platforms"].items():
            code = archs.get((row["torch"], variant, platform))
            build = {"cuda": facts["cuda"], "published": state["published"]}
            build["cudnn"] = facts["cudnn_linux"] if platform.startswith("linux") else None
            build["archs"] = None if code is None else code["sass"] + code["ptx"]
            yield build | _shared(row, variant, platform, tables)
    for platform in row["python"]:
        known = tables.row(row["torch"], "cpu", platform)
        if known is not None:
            build = {"cuda": None, "cudnn": None, "published": known["published"], "archs": []}
            yield build | _shared(row, "cpu", platform, tables)


def _shared(row: Row, variant: str, platform: str, tables: Reading) -> Row:
    """What the builds of a release have in common, and what was decided by hand."""
    by_hand = tables.row(row["torch"], variant, platform) or {}
    tag = (row["glibc"].get(platform) or {}).get("tag_glibc")
    floor = OLD_TAG_GLIBC if tag and numbers(tag) < (2, 17) else tag
    floors = [version for version in (floor, by_hand.get("glibc")) if version]
    return {
        "torch": row["torch"],
        "variant": variant,
        "platform": platform,
        "contested": by_hand.get("contested", []),
        "glibc": max(floors, key=numbers, default=None),
        "default": row["pypi_default"].get(platform, {}).get("variant") == variant,
        "pythons": row["python"].get(platform, []),
        "torchvision": row["companions"]["torchvision"],
        "torchaudio": row["companions"]["torchaudio"],
        "torchtext": row["companions"]["torchtext"],
    }


@lru_cache(maxsize=4096)
def numbers(text: str) -> Numbers:
    """A version as numbers: 535.104.05 is (535, 104, 5)."""
    return tuple(int(part) for part in str(text).split("."))


def _lifted(row: Row, code: str) -> bool:
    torch, cuda, codes = LIFTED
    return numbers(row["torch"]) >= torch and numbers(row["cuda"]) >= cuda and code in codes


def _capability(code: str) -> Numbers:
    digits = code.partition("_")[2].rstrip("af")
    return int(digits[:-1]), int(digits[-1])


def _json(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found
