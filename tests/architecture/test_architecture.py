"""The direction of the imports, the doors to the world, and the fast path, read from source.

cli -> pipeline -> probes -> host                   looks at the world
pipeline -> rules, plan -> solver -> model          judges plain values
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from imports_read import ROOT, Module, circles, modules, ours

REPOSITORY = ROOT.parent

CORE = (
    *("model", "knowledge", "reports", "rules", "solver", "plan", "privacy", "locale", "render"),
    *("pipeline", "cli.options", "installers.conda", "installers.docker", "installers.pip"),
    *("installers.pixi", "installers.uv", "installers.projects", "installers.registry"),
    *("installers.question", "installers.stack"),
    *("bench.techniques", "bench.judging", "bench.search", "bench.results", "bench.page"),
    *("bench.advice", "bench.script.stacks", "bench.script.starved"),
    *("health.measured", "health.judging", "health.page"),
    *("cluster.differences", "cluster.judging", "cluster.launch", "cluster.page"),
)
"""What judges and shows: values in, values out. A package stands for all its modules."""

SHELL = frozenset(
    {"__main__", "probes.examine", "smoke", "cli.commands", "cli.group", "cli.fast"}
    | {"cli.output", "cli.speech", "cli.printing", "cli.looking", "cli.saved", "cli.renewing"}
    | {"cli.formats"}
    | {"bench.store", "bench.command", "bench.conditions", "bench.heats", "bench.stable"}
    | {"bench.script"}
    | {"health.command"}
    | {"cluster.command"}
)
"""What may touch the world: the door, and what stands between it and the user."""

SHELL_PACKAGES = ("host", "repair", "installers.verify")
"""Packages that change an environment or ask a package index, with all their modules."""

WORLD = frozenset(
    {"os", "subprocess", "click", "torch", "threading", "time", "random", "socket"}
    | {"shutil", "tempfile", "signal", "rich", "multiprocessing", "urllib.request", "ctypes"}
)
MAY = {
    "knowledge.tables": {"os"},  # reads the tables that lie beside it
    # An update asks the package index and writes files; its readers do not.
    "knowledge.update.writing": {"os", "tempfile"},
    "knowledge.update.fetching": {"time"},
    # Probes reckon with time and run beside each other; paths are text to them.
    "probes": {"os", "time", "threading", "signal"},
    "smoke.reading": {"signal"},  # its names only
    "bench.page": {"rich"},  # it draws into a string
}
PURE_OF_OS = frozenset(
    {"path.join", "path.split", "path.dirname", "path.basename", "sep", "pathsep", "devnull"}
    | {"path.abspath", "path.expanduser"}
)
"""What a probe may take from os: of the world, the working folder and the home only."""

DIRECTION = {
    "model.versions": set[str](),
    "model.machine": {"model"},
    "model.factfile": {"model"},
    "model.findings": {"model"},
    "knowledge": {"knowledge", "model"},
    "reports": {"model", "knowledge", "reports"},
    "probes": {"host", "knowledge", "model", "probes", "reports", "smoke"},
    "smoke": {"host", "model", "probes", "smoke"},
    "solver": {"knowledge", "model", "solver"},
    "rules": {"rules", "reports", "knowledge", "model", "solver", "plan.remedies", "installers"},
    "plan": {"plan", "solver", "installers", "knowledge", "model", "render.shells"},
    "render": {"render", "locale", "model", "installers", "knowledge.wording"},
}
"""Whom a module may import at most; a package stands for all its modules, `probes` not for more."""

UPWARD = frozenset(
    {
        "cli.commands",
        "cli.group",
        "cli.printing",
        "cli.saved",
        "cli.looking",
        "cli.renewing",
        "cli.output",
        "host",
        "probes",
    }
    | {"smoke", *SHELL_PACKAGES}
)
"""Whom the core never imports."""


def within(name: str, *places: str) -> bool:
    return any(name == place or name.startswith(f"{place}.") for place in places)


def is_inside(name: str) -> bool:
    return ".inside" in name


def outside() -> list[Module]:
    """All modules but the scripts that other interpreters run."""
    return [module for name, module in modules().items() if not is_inside(name)]


def test_no_module_is_imported_in_a_circle_at_its_start() -> None:
    graph = {name: ours(module.early) - {name} for name, module in modules().items()}
    assert circles(graph) == []


def test_no_module_is_imported_in_a_circle() -> None:
    """Imports inside functions count: a circle behind one is a circle."""
    graph = {name: ours(module.all) - {name} for name, module in modules().items()}
    assert circles(graph) == []


def test_a_circle_would_be_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set[str]()}
    assert circles(graph) == [["b", "c", "b"]]


def test_the_core_names_only_modules_that_exist() -> None:
    assert not {*CORE, *SHELL, *SHELL_PACKAGES, *DIRECTION, *UPWARD} - modules().keys()


def allowed(name: str) -> set[str]:
    return {module for place, modules in MAY.items() if within(name, place) for module in modules}


def test_the_core_touches_no_world_and_imports_nothing_that_looks() -> None:
    for name, module in modules().items():
        if within(name, *CORE):
            assert not module.foreign & WORLD - allowed(name), name
            assert not [other for other in ours(module.all) if within(other, *UPWARD)], name


@pytest.mark.parametrize("place", sorted(DIRECTION))
def test_imports_go_one_way(place: str) -> None:
    for name, module in modules().items():
        if within(name, place) and not is_inside(name):
            strange = [other for other in ours(module.all) if not within(other, *DIRECTION[place])]
            assert not strange, name


def test_only_the_shell_touches_the_world() -> None:
    for module in outside():
        if module.name not in SHELL and not within(module.name, *SHELL_PACKAGES):
            assert not module.foreign & WORLD - allowed(module.name), module.name


def test_only_the_shell_opens_files() -> None:
    """locale.language and the tables read what is part of the package."""
    for module in outside():
        if module.name in {*SHELL, "locale.language"}:
            continue
        if within(module.name, "knowledge", *SHELL_PACKAGES):
            continue
        calls = (node for node in ast.walk(tree(module.path)) if isinstance(node, ast.Call))
        assert "open" not in {call.func.id for call in calls if isinstance(call.func, ast.Name)}
        assert "pathlib" not in module.foreign, module.name


def test_a_probe_takes_only_the_grammar_of_paths_from_os() -> None:
    for module in outside():
        if within(module.name, "probes"):
            assert used_of_os(tree(module.path)) <= PURE_OF_OS, module.name


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def used_of_os(source: ast.Module) -> set[str]:
    """The names that are used from the module `os`, such as `path.join` and `environ`."""
    whole = {ast.unparse(node) for node in ast.walk(source) if isinstance(node, ast.Attribute)}
    names = {name.removeprefix("os.") for name in whole if re.fullmatch(r"os(\.\w+)+", name)}
    return names - {"path"}


# --- the scripts that run in other interpreters ---------------------------------------------

OWN = (
    *("probes.inside.nvml", "probes.inside.cuda", "probes.inside.nodes"),
    "bench.script.inside.sampler",
)
"""Run by the doctor's own Python, to be left behind where they hang."""


def scripts() -> list[Module]:
    return [module for module in modules().values() if is_inside(module.name)]


def foreign_scripts() -> list[Module]:
    return [script for script in scripts() if script.name not in OWN]


def test_a_script_for_other_interpreters_is_python_3_6() -> None:
    for module in foreign_scripts():
        ast.parse(module.path.read_text(encoding="utf-8"), feature_version=(3, 6))


def test_the_oldest_interpreter_compiles_every_script() -> None:
    python = Path.home() / ".pyenv" / "versions" / "3.6.15" / "bin" / "python"
    if not python.exists():
        pytest.skip("no Python 3.6 here")
    code = "import sys\nfor path in sys.argv[1:]:\n compile(open(path, 'rb').read(), path, 'exec')"
    paths = [str(script.path) for script in foreign_scripts()]
    ran = subprocess.run([python, "-c", code, *paths], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_script_for_other_interpreters_needs_no_package() -> None:
    """The standard library alone; what trains imports torch too, and its own folder."""
    for module in scripts():
        trains = within(module.name, "smoke.inside", "cluster.inside")
        more = {"torch", "numpy"} if trains else set[str]()
        asks = {*OWN, "smoke.inside.measuring", "smoke.inside.health"}
        more |= {"pynvml"} if module.name in asks else set()
        assert not module.foreign - sys.stdlib_module_names - more, module.name
        assert all(trains and within(other, "smoke.inside") for other in ours(module.all))


# --- names ------------------------------------------------------------------------


def python_files() -> list[Path]:
    folders = (ROOT, REPOSITORY / "tests", REPOSITORY / "benchmarks", REPOSITORY / "recipes")
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


def test_no_module_is_a_drawer_for_everything() -> None:
    names = {path.stem.lower().strip("_") for path in python_files()}
    assert not names & {"util", "utils", "helper", "helpers", "common", "manager", "misc"}


def test_what_contributing_names_is_there() -> None:
    text = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    paths = set(re.findall(r"\]\(([\w./-]+)\)", text))
    paths |= {f"cudadoctor/{name}" for name in re.findall(r"`(\w+/(?:\w+\.(?:py|toml))?)`", text)}
    assert len(paths) > 20
    there = [path for path in paths if (REPOSITORY / path).exists()]
    beside = [path for path in paths if (REPOSITORY / path.partition("/")[2]).exists()]
    assert paths - {*there, *beside} == set()


# --- what a fast check loads -----------------------------------------------------------------

MOST_MODULES = 215
"""Imports are counted: of what a fast check on an environment with torch has loaded at its end."""

LOADED = """\
import sys
sys.argv[0] = "cudadoctor"
from cudadoctor import __main__
__main__._leave = lambda code: None
__main__.main()
sys.stdout.flush()
import json
sys.stderr.write(json.dumps(sorted(sys.modules)))
"""


def loaded(code: str, *words: str, **variables: str) -> set[str]:
    """The modules of a process of its own after this code."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("COVERAGE")}
    env |= variables
    argv = [sys.executable, "-I", "-c", code, *words]
    ran = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=120, env=env)
    return set(json.loads(ran.stderr.splitlines()[-1]))


def test_the_command_line_alone_loads_nothing_heavy() -> None:
    code = (
        "import sys, json, cudadoctor.cli.group\nsys.stderr.write(json.dumps(sorted(sys.modules)))"
    )
    assert not loaded(code) & {"torch", "rich", "pynvml", "numpy", "asyncio", "email", "ssl"}


def test_a_fast_check_loads_nothing_heavy_and_its_imports_are_counted(
    python_cpu: str, tmp_path: Path
) -> None:
    # A folder of its own: what killed processes left in a shared one is swept, with shutil.
    words = ("check", "--fast", "--json", "--python", python_cpu)
    names = loaded(LOADED, *words, TMPDIR=str(tmp_path))
    heavy = {"torch", "rich", "pynvml", "click", "numpy", "elftools", "importlib.metadata"}
    assert not names & {*heavy, "tomllib", "asyncio", "email", "ssl", "urllib.request"}
    assert "cudadoctor.rules.registry" in names
    assert len(names) <= MOST_MODULES
    ours_too = [modules()[name] for name in modules() if f"cudadoctor.{name}" in names]
    path_first = {"cli.fast", "__main__"}  # nothing may be imported before the path is settled
    evaluated = [
        module.name
        for module in ours_too
        if module.early and "__future__" not in module.early and module.name not in path_first
    ]
    assert not evaluated, "add `from __future__ import annotations`: evaluating them costs time"
