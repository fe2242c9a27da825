"""Every sentence that a user reads has its translation, with the same values in it."""

from __future__ import annotations

import ast
import inspect
import re
import string
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from packaging.version import Version
from scenario_reader import read_scenario, scenario_paths

import cudadoctor
from cudadoctor import knowledge, pipeline
from cudadoctor.bench.command import FALSIFIED
from cudadoctor.bench.script.starved import CAUSES, KINDS
from cudadoctor.bench.techniques import TECHNIQUES, Ground, why_not
from cudadoctor.cli import group, options, output
from cudadoctor.knowledge.symptoms import symptoms
from cudadoctor.locale.language import _BOUNDARY, Language, language
from cudadoctor.model.catalogue import AREAS
from cudadoctor.model.findings import Severity
from cudadoctor.model.machine import Stage
from cudadoctor.render import evidence, pages, summary
from cudadoctor.rules import registry as rules
from cudadoctor.rules.diagnose import diagnose
from cudadoctor.rules.registry import RULES, explained_rules
from cudadoctor.solver.builds import best_build

PACKAGE = Path(cudadoctor.__file__).parent
SAYS = {
    **dict.fromkeys(
        ("say", "refuse", "english", "doing", "progress", "_shown", "ask", "agreed"), 0
    ),
    **dict.fromkeys(("unknown", "refuse_unknown"), 2),
}
"""The names under which the language is called -> which argument is the template."""
SPEAKING = (
    "render",
    "cli",
    "repair",
    "bench/command.py",
    "bench/page.py",
    "bench/script/__init__.py",
    "health",
    "installers/verify.py",
    "probes/examine.py",
    "__main__.py",
)
"""Where they are called so."""
ENDS = ("passed", "failed", "skipped", "timed-out")
DYNAMIC = (
    *(severity.label for severity in Severity),
    *("healthy", "warnings", "broken", "undecided"),
    *("open", "proprietary"),
    *ENDS,
    *("ok", "undecided", "1 error", "{count} errors", "1 warning", "{count} warnings"),
    *("1 NVIDIA GPU on the PCI bus", "{count} NVIDIA GPUs on the PCI bus"),
    *(area for area in AREAS if area not in ("driver", "GPU", "torch")),
    *(output.SHORTER, "waiting for {what}"),
    *summary.LEADS.values(),
    *summary.CHOSEN.values(),
    *(place for place in summary.PLACES.values() if place not in ("WSL", "/dev/shm")),
    *summary.SURENESS.values(),
)
"""What renderers say by a value, not by a constant."""


def _constants(node: ast.AST | None, names: _Names | None = None) -> Iterator[str]:
    """The strings an expression may come to; conditions and arguments are not among them.

    names: the values that the names of its file are given; a row of a table is any of its rows.
    """
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from _constants(node.body, names)
        yield from _constants(node.orelse, names)
    elif isinstance(node, ast.Dict):
        for value in node.values:
            yield from _constants(value, names)
    elif isinstance(node, ast.Subscript):
        yield from _constants(node.value, names)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        yield from _constants(node.func.value if node.func.attr == "get" else None, names)
    elif isinstance(node, ast.Name) and names is not None:
        for value in names.pop(node.id, []):
            yield from _constants(value, names)


_Names = dict[str, list[ast.expr]]


def _names(tree: ast.AST) -> _Names:
    """What the names of a file are assigned."""
    found: _Names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                pairs: list[tuple[ast.expr, ast.expr]] = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(target.elts, node.value.elts, strict=True))
                for name, value in pairs:
                    if isinstance(name, ast.Name):
                        found.setdefault(name.id, []).append(value)
    return found


def _calls(file: Path) -> Iterator[ast.Call]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _name_of(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _said() -> set[str]:
    """The fixed phrases of the renderers."""
    found: set[str] = set(DYNAMIC)
    for file in (file for place in SPEAKING for file in _files(PACKAGE / place)):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for call in _calls(file):
            number = SAYS.get(_name_of(call), len(call.args))
            for given in call.args[number : number + 1]:
                found |= set(_constants(given, _names(tree)))
    found |= {sentence for _, _, sentence in options._WITHOUT_EFFECT}
    for node in ast.walk(ast.parse(inspect.getsource(summary.cost_of))):
        if isinstance(node, ast.Return) and node.value is not None:
            found |= set(_constants(node.value))
        if isinstance(node, ast.Dict):
            found |= {text for value in node.values for text in _constants(value)}
    return found


def _files(place: Path) -> Iterator[Path]:
    return place.rglob("*.py") if place.is_dir() else iter([place])


def _helped() -> set[str]:
    """What --help shows."""
    found = {"Usage: ", group._HELP, *(text for _, text in group._EXAMPLES)}
    for command in (group.main, *group.main.commands.values()):
        assert isinstance(command, group._Speaking)
        context = command.make_context("cudadoctor", [], resilient_parsing=True)
        found |= {
            command.collect_usage_pieces(context)[0],
            command.short_help or "",
            *command.groups,
        }
        found |= {" ".join(part.split()) for part in (command.help or "").split("\n\n")}
        shown = [option for option in command.params if isinstance(option, click.Option)]
        found |= {option.help for option in shown if option.help and not option.hidden}
    return found - {""}


_SAME = {"cgroup", "containerd", "dmesg", "dkms", "df", "import", "ip", "libcuda", "link", "pid"}
_SAME |= {"lspci", "pip", "root", "status", "ulimit", "uname"}
"""Words of commands and names, which are the same in every language."""


def _evidence_texts() -> set[str]:
    """Labels of evidence and the words of its values, but for those that are names alone."""
    found = set(evidence.facts().source.values())
    for shown in evidence.facts().fact.values():
        found |= {shown.label, shown.single, shown.text, shown.one, shown.group, shown.source}
        found |= {*shown.words.values(), *(part.rpartition("]")[2] for part in shown.item)}
    return {
        text
        for text in found
        if {*re.findall(r"(?<![\w/.-])[a-z]{2,}(?![\w/.(-])", re.sub(r"\{\w+\}", "", text))} - _SAME
    }


def _told() -> set[str]:
    """The titles and reasons of all rules, and those that a rule gives in their place."""
    found = {text for rule in RULES for text in (rule.title, rule.why)}
    for file in Path(rules.__file__).parent.rglob("*.py"):
        for call in _calls(file):
            if _name_of(call) == "Found":
                given = [word.value for word in call.keywords if word.arg in ("title", "why")]
                found |= {text for value in given for text in _constants(value)}
    found |= {text for cause in symptoms().causes.values() for text in (cause.title, cause.why)}
    meanings = [meaning for row in symptoms().rows for meaning in row.means]
    found |= {text for meaning in meanings for text in (meaning.title, meaning.why) if text}
    kb = knowledge.load()
    for path in scenario_paths():
        for finding in diagnose(read_scenario(path).machine, kb).findings:
            found |= set(finding.templates)
    return found - {"{what}", "{what}."}


def _fields(template: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}


def _table(name: str, *parts: str) -> dict[str, str]:
    table = language(name, *parts)._table
    assert table
    return table


def _paragraphs() -> set[str]:
    """Those of the pages of explain, but for those that are commands alone."""
    texts = [*pages.PAGES.values()]
    texts += [rule.page for rule in explained_rules() if rule.cause not in pages.PAGES]
    found = {shown for text in texts for _, shown in pages._sections(text)}
    table = pages.separated()
    found |= {*table.decide.values(), *(near.text for near in table.apart)}
    return {text for text in found if re.search("[a-z]", re.sub("`[^`]+`", "", text))}


@pytest.mark.parametrize("name", ["es"])
def test_every_sentence_is_translated(name: str) -> None:
    every = _said() | _helped() | _told() | _evidence_texts()
    missing = sorted(every - {"", "?", "PyTorch"} - set(_table(name)))
    assert not missing, "without a translation:\n" + "\n".join(missing)


@pytest.mark.parametrize("name", ["es"])
def test_the_pages_of_explain_are_translated(name: str) -> None:
    own = set(_table(name, "explain")) - set(_table(name))
    missing = sorted(_paragraphs() - set(_table(name, "explain")))
    assert not missing, "without a translation:\n" + "\n".join(missing)
    stale = sorted(own - _paragraphs())
    assert not stale, "on no page:\n" + "\n".join(stale)


@pytest.mark.parametrize("name", ["es"])
def test_a_page_quotes_the_same_commands_and_messages(name: str) -> None:
    for text in _paragraphs():
        quoted, translated = (
            sorted(set(re.findall(r"`[^`]+`|\"[^\"]+\"", shown)))
            for shown in (text, _table(name, "explain")[text])
        )
        assert quoted == translated, text


def _reasons() -> set[str]:
    """The sentences for and against builds of torch, on the machines of the scenarios."""
    kb, found = knowledge.load(), set[str]()
    for path in scenario_paths():
        machine = read_scenario(path).machine
        for keep in (None, "2.4.1", ">=2.9", "2.7+cu128"):
            choice = best_build(machine, kb, keep=keep)
            texts = [*choice.why, *(other.reason for other in choice.why_not)]
            texts += [other.text for other in choice.alternatives]
            found |= set(texts)
    return found


def _english(texts: set[str], say: Language) -> list[str]:
    """The sentences of these texts that the language leaves as they are."""
    left = [{*_BOUNDARY.split(text)} & {*_BOUNDARY.split(say.spoken(text))} for text in texts]
    return sorted(set[str]().union(*left) - {""})


@pytest.mark.parametrize("name", ["es"])
def test_the_reasons_for_a_build_are_translated(name: str) -> None:
    missing = _english(_reasons(), language(name))
    assert not missing, "without a translation:\n" + "\n".join(missing)


@pytest.mark.parametrize("name", ["es"])
def test_the_steps_of_plans_are_translated(name: str) -> None:
    found: set[str] = set()
    for path in scenario_paths():
        for step in pipeline.judge(read_scenario(path).machine).plan.steps:
            told = (step.title, step.manual, step.note, step.resolution)
            found |= {text for text in told if text}
    missing = _english(found, language(name))
    assert not missing, "without a translation:\n" + "\n".join(missing)


@pytest.mark.parametrize("name", ["es"])
def test_what_the_bench_says_is_translated(name: str) -> None:
    said = {*CAUSES, *KINDS.values()}
    said |= {
        text for cause in CAUSES.values() for tip in cause.tips for text in (tip.why, tip.text)
    }
    said |= {f"{setting} is set: {why}" for setting, why in FALSIFIED.items()}
    grounds = [
        Ground(
            gpu=gpu,
            capability=Version(capability),
            torch=Version(torch),
            compiler=compiler,
            triton=triton,
            cores=cores,
        )
        for gpu, capability in ((True, "6.1"), (True, "9.0"), (False, "0"))
        for torch in ("1.13", "2.14")
        for compiler, cores in ((False, 1), (True, 8))
        for triton in (False, True)
    ]
    said |= {
        why_not(technique, ground, workload)
        for technique in TECHNIQUES
        for ground in grounds
        for workload in ("cnn", "decoder", "mlp")
    }
    missing = _english(said, language(name))
    assert not missing, "without a translation:\n" + "\n".join(missing)


@pytest.mark.parametrize("name", ["es"])
def test_a_translation_holds_the_same_values(name: str) -> None:
    for template, translated in _table(name, "explain").items():
        assert _fields(template) == _fields(translated), template


@pytest.mark.parametrize("name", ["es"])
def test_a_translation_ends_as_its_sentence_does(name: str) -> None:
    for template, translated in _table(name, "explain").items():
        assert template.endswith(".") == translated.endswith("."), template
        assert template.endswith(" ") == translated.endswith(" "), template


def test_a_filled_text_is_translated_by_its_template() -> None:
    say = Language({"Install the {kind} build of torch {torch}": "Instalar torch {torch} ({kind})"})
    assert say.spoken("Install the cu126 build of torch 2.14.1") == "Instalar torch 2.14.1 (cu126)"
    assert say.spoken("Something else") == "Something else"


def test_a_value_never_holds_the_sentences_after_it() -> None:
    text = (
        "No single build supports all GPUs in this machine; this one does not support the Tesla "
        "K80 (GPU 0). "
    )
    text += "Run your programs with /a/python. A sentence without a translation."
    spoken = language("es").spoken(text)
    assert "deja fuera la Tesla K80 (GPU 0). Ejecute" in spoken
    assert spoken.endswith("/a/python. A sentence without a translation.")


def test_values_with_braces_stay_as_they_are() -> None:
    say = Language({"Rename the file {path}": "Cambiar el nombre de {path}"})
    assert say.spoken("Rename the file /a/{b}/{0}") == "Cambiar el nombre de /a/{b}/{0}"


def test_what_has_no_translation_stays_english() -> None:
    assert Language({})("not run ({why})", why="--fast") == "not run (--fast)"
    assert Language({"a": "b"}).spoken("never seen before") == "never seen before"


def test_the_stages_have_a_word_for_each_end() -> None:
    status = Stage.__annotations__["status"]
    assert all(f"'{end}'" in str(status) or f'"{end}"' in str(status) for end in ENDS)
