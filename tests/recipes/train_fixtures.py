"""Runs the scripts of recipes/train as a person would, and copies with a mistake in them."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TRAIN = Path(__file__).resolve().parents[2] / "recipes" / "train"
SECTIONS = (
    "What it does:",
    "When it helps:",
    "When it hurts:",
    "How to check:",
    "Troubleshooting:",
)
LIMIT_S = 240
ABORTED = "terminate called without an active exception"
"""Seldom a process with Gloo ends so, after its last line: a thread of torch outlives its owner."""
HELP = ("--help",)
STRICT = ("error::DeprecationWarning", "error::FutureWarning")
LONGEST = 135  # lines of code after the docstring; a script that is read in one go
ALL_HELP = """
import contextlib, io, json, runpy, sys
said = {}
for script in sys.argv[1:]:
    sys.argv = [script, "--help"]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            runpy.run_path(script, run_name="__main__")
            code = "did not exit"
        except SystemExit as left:
            code = left.code
    said[script] = [code, out.getvalue()]
print(json.dumps(said))
"""
# Importing torch takes longer than most of these runs: one process imports it, each run is a fork.
ALL_RUNS = """
import builtins, json, os, runpy, sys, traceback, warnings
import torch, torch._dynamo

def run(script, options, flags):
    for action, category in (flag.split("::") for flag in flags):
        warnings.filterwarnings(action, category=getattr(builtins, category))
    sys.argv, sys.path[0] = [script, *options], os.path.dirname(script)
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else 2
    except BaseException:
        traceback.print_exc()
        return 70
    return 0

for script, options, flags, out, err in json.load(sys.stdin):
    child = os.fork()
    if not child:
        for number, path in (1, out), (2, err):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), number)
        code = run(script, options, flags)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
# The tests share few cores with other tests: threads that wait for each other cost more.
Asked = tuple[Path, tuple[str, ...], tuple[str, ...]]
"""A script, its options, and which warnings are errors in it."""
QUIET = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1"}


@dataclass(frozen=True, slots=True)
class Ran:
    """What a script left behind: its exit code, its lines on stdout and all of stderr."""

    code: int
    lines: tuple[str, ...]
    errors: str

    @property
    def last(self) -> str:
        return self.lines[-1] if self.lines else ""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A script, small enough for a test, and how its last line begins on a CPU.

    says: further parts of its output.
    warnings: what is an error; a script whose libraries warn names less than the default.
    """

    script: str
    options: tuple[str, ...] = ()
    ends: str = "proved: "
    says: tuple[str, ...] = ()
    warnings: tuple[str, ...] = STRICT


@dataclass(frozen=True, slots=True)
class Mistake:
    """A script with the technique done wrong: what it must then say is `not proved`.

    changes: pieces of its text, each there exactly once, and what stands there instead.
    """

    script: str
    name: str
    changes: tuple[tuple[str, str], ...]
    options: tuple[str, ...] = ()


def ran(
    python: str,
    script: Path,
    options: Sequence[str] = (),
    *,
    warnings: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
) -> Ran:
    """Run a script as a child: one thread, no GPU, caches where the variables say."""
    flags = [word for warning in warnings for word in ("-W", warning)]
    for _ in range(2):
        child = subprocess.run(
            [python, *flags, str(script), *options],
            env={**os.environ, **QUIET, **(variables or {})},
            cwd=script.parent,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        if ABORTED not in child.stderr:
            break
    return Ran(child.returncode, tuple(child.stdout.splitlines()), child.stderr)


def assert_holds(python: str, recipe: Recipe, variables: Mapping[str, str] | None = None) -> Ran:
    """Run a recipe in a process of its own; it must end as its table says."""
    script = TRAIN / recipe.script
    result = ran(python, script, recipe.options, warnings=recipe.warnings, variables=variables)
    assert_ends(result, recipe)
    return result


def assert_ends(result: Ran, recipe: Recipe) -> None:
    """A recipe must end as its table says, with exit code 0 and nothing after it."""
    assert result.code == 0, f"{result.lines}\n{result.errors}"
    assert result.last.startswith(recipe.ends), result.lines
    ends = [line for line in result.lines if line.startswith(("proved: ", "not proved: "))]
    assert len(ends) == recipe.ends.startswith("proved"), result.lines
    for part in recipe.says:
        assert part in "\n".join(result.lines), part


def with_mistake(folder: Path, mistake: Mistake) -> Path:
    """A copy of the script with the mistake in it."""
    text = (TRAIN / mistake.script).read_text(encoding="utf-8")
    for old, new in mistake.changes:
        assert text.count(old) == 1, f"{mistake.script} has {text.count(old)} times {old!r}"
        text = text.replace(old, new)
    copy = folder / mistake.script
    copy.write_text(text, encoding="utf-8")
    return copy


def ran_with(python: str, folder: Path, mistakes: Sequence[Mistake]) -> dict[Mistake, Ran]:
    """Run a copy of its script for each mistake."""
    places = [folder / str(number) for number in range(len(mistakes))]
    for place in places:
        place.mkdir()
    pairs = zip(places, mistakes, strict=True)
    asked = [(with_mistake(place, made), made.options, ()) for place, made in pairs]
    return dict(zip(mistakes, ran_all(python, folder, asked), strict=True))


def ran_as_they_are(python: str, folder: Path, recipes: Sequence[Recipe]) -> dict[Recipe, Ran]:
    """Run each recipe, and each script once more for its --help."""
    every = (*recipes, *(Recipe(script, HELP) for script in sorted({r.script for r in recipes})))
    asked = [(TRAIN / recipe.script, recipe.options, recipe.warnings) for recipe in every]
    return dict(zip(every, ran_all(python, folder, asked), strict=True))


def assert_says_its_options(held: Mapping[Recipe, Ran], script: str) -> None:
    """--help must end well, and list what every recipe takes."""
    result = held[Recipe(script, HELP)]
    text = "\n".join(result.lines)
    assert result.code == 0, result.errors
    assert "--device" in text
    assert "--steps" in text


def ran_all(python: str, folder: Path, asked: Sequence[Asked]) -> Iterator[Ran]:
    """Run scripts one after the other in this folder, each in a fork of one process."""
    paths = [(str(folder / f"{n}.out"), str(folder / f"{n}.err")) for n in range(len(asked))]
    runs = [(str(script), *how, *to) for (script, *how), to in zip(asked, paths, strict=True)]
    kept = {"TMPDIR": str(folder), "TORCHINDUCTOR_CACHE_DIR": str(folder)}
    child = subprocess.run(
        [python, "-c", ALL_RUNS],
        input=json.dumps(runs),
        env={**os.environ, **QUIET, **kept},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    for (out, err), code in zip(paths, child.stdout.split(), strict=True):
        lines = tuple(Path(out).read_text(encoding="utf-8").splitlines())
        yield Ran(int(code), lines, Path(err).read_text(encoding="utf-8"))


def answered(python: str, question: str) -> str:
    """What Python says beside the recipes, where it can import them."""
    child = subprocess.run(
        [python, "-B", "-c", question],
        cwd=TRAIN,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    return child.stdout.strip()


def assert_seen(result: Ran) -> None:
    """A mistake must have made the script say `not proved` and exit with 1."""
    assert result.code == 1, f"{result.lines}\n{result.errors}"
    assert result.last.startswith("not proved: "), f"{result.lines}\n{result.errors}"


def breaches(script: Path) -> list[str]:
    """What a script lacks of what every recipe has: its sections, its length, its main()."""
    text = script.read_text(encoding="utf-8")
    tree = ast.parse(text)
    described = ast.get_docstring(tree) or ""
    places = [described.find(f"\n{section}") for section in SECTIONS]
    found: list[str] = []
    if -1 in places or places != sorted(places):
        found.append(f"the docstring has not {', '.join(SECTIONS)} in this order: {places}")
    lines = len(text.splitlines()) - (tree.body[0].end_lineno or 0)
    if lines > LONGEST:
        found.append(f"{lines} lines of code are more than {LONGEST}")
    if "def main(argv: Sequence[str] | None = None) -> int:" not in text:
        found.append("no main(argv)")
    if not text.rstrip().endswith("raise SystemExit(main())"):
        found.append("does not end with main()")
    siblings = {path.stem for path in script.parent.glob("*.py")}
    found += [f"imports its neighbour {name}" for name in sorted(imported(tree) & siblings)]
    if re.search(r"\d\s*(x|times) (faster|slower)", described):
        found.append("promises a speed")
    return found


def imported(tree: ast.Module) -> set[str]:
    """The first names of the modules that a script imports."""
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
    return {name.split(".")[0] for name in names}


def help_of(python: str, scripts: Iterable[str]) -> dict[str, tuple[object, str]]:
    """Exit code and text of --help of each script; one child, since importing torch is slow."""
    paths = {str(TRAIN / script): script for script in scripts}
    child = subprocess.run(
        [python, "-c", ALL_HELP, *paths],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    said = json.loads(child.stdout)
    return {script: (said[path][0], said[path][1]) for path, script in paths.items()}
