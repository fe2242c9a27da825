"""Environments that belong to a uv, pdm or poetry project: the project is changed, not they."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from cudadoctor import knowledge, pipeline
from cudadoctor.host.local import LocalHost
from cudadoctor.installers import registry
from cudadoctor.installers.tool import Written
from cudadoctor.model import factfile
from cudadoctor.model.findings import PackageChange
from cudadoctor.model.machine import Machine
from cudadoctor.model.trust import typed
from cudadoctor.probes.interpreter import NONE, project_of
from cudadoctor.render import terminal
from cudadoctor.render.shells import shell_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MACHINES = Path(__file__).parent.parent / "machines"
KB = knowledge.load()
CU126 = "https://download.pytorch.org/whl/cu126"
TO_CU126 = PackageChange(
    install=("torch==2.14.1", "torchvision==0.29.1"),
    remove=("torch",),
    index=CU126,
    variant="cu126",
    cuda="12.6",
)
DEFAULT = PackageChange(install=("torch==2.14.1",), variant="cu130", cuda="13.0")


def project(tool: str, **more: Any) -> Machine:
    """A machine whose environment belongs to a project of that tool."""
    data = json.loads((MACHINES / "rtx4090-linux.json").read_text(encoding="utf-8"))
    data["python"] |= {
        "prefix": "/home/ada/work/.venv",
        "executable": "/home/ada/work/.venv/bin/python",
        "project": "/home/ada/work",
        "project_tool": tool,
        "managers": [{"name": "uv", "path": "/usr/bin/uv"}],
    } | more
    return factfile.from_plain(data)


def written(tool: str, change: PackageChange = TO_CU126, wish: str | None = None) -> Written:
    return registry.write(project(tool), KB, change, wish)


def edit(made: Written) -> dict[str, Any]:
    (file_edit,) = made.edits
    assert file_edit.file == "/home/ada/work/pyproject.toml"
    found: dict[str, Any] = tomllib.loads(file_edit.what)
    return found


@pytest.mark.parametrize("wish", [None, "uv"])
def test_a_uv_project_is_changed_and_synced(wish: str | None) -> None:
    made = written("uv", wish=wish)
    assert made.commands == (("/usr/bin/uv", "sync", "--project", "/home/ada/work"),)
    table = edit(made)
    assert table["project"]["dependencies"] == list(TO_CU126.install)
    (index,) = table["tool"]["uv"]["index"]
    assert index == {"name": "pytorch-cu126", "url": CU126, "explicit": True}
    for name in ("torch", "torchvision"):
        sources = table["tool"]["uv"]["sources"][name]
        assert {source["index"] for source in sources} == {"pytorch-cu126"}
        markers = [source["marker"] for source in sources]
        assert markers == ["sys_platform == 'linux'", "sys_platform == 'win32'"]
    assert max(map(len, made.edits[0].what.splitlines())) <= 68  # fits a terminal of 80


def test_the_lines_of_a_file_are_not_broken_on_a_narrow_terminal() -> None:
    m = project("uv")
    data = json.loads(factfile.dumps(m))
    data["torch"] = {"installed": False}
    data["packages"] = []
    data["driver"] |= {"kernel": "550.54.15", "library": "550.54.15", "cuda": "12.4"}
    shown = pipeline.report(pipeline.judge(factfile.from_plain(data)), full=True)
    text = "\n".join(line.text for line in terminal.report(shown, terminal.Layout(width=60)))
    start = " " * 10  # a file below its name, which stands below the commands
    lines = [line.removeprefix(start) for line in text.splitlines() if line.startswith(start)]
    first, last = lines.index("[tool.uv.sources]"), lines.index("explicit = true")
    table = tomllib.loads("\n".join(lines[first:last]))
    sources = table["tool"]["uv"]["sources"]["torch"]
    assert {source["index"] for source in sources} == {"pytorch-cu126"}


def test_the_default_build_leads_nowhere_else() -> None:
    made = written("uv", DEFAULT)
    assert "tool" not in edit(made)
    assert "another index or source" in (made.note or "")


def test_an_index_that_the_project_names_is_led_past() -> None:
    index = {"extra": ["https://download.pytorch.org/whl/cpu"], "origin": "x"}
    made = registry.write(project("uv", index=index), KB, DEFAULT)
    table = edit(made)["tool"]["uv"]
    assert table["sources"]["torch"] == [{"index": "pytorch-cu130"}]
    assert table["index"][0]["url"].endswith("/whl/cu130")


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        ("uv", ("add", "--project", "/home/ada/work", "numpy<2")),
        ("pdm", ("add", "-p", "/home/ada/work", "numpy<2")),
        ("poetry", ("-C", "/home/ada/work", "add", "numpy<2")),
    ],
)
def test_a_package_without_an_index_is_added_by_the_tool_itself(
    tool: str, words: tuple[str, ...]
) -> None:
    made = written(tool, PackageChange(install=("numpy<2",)))
    assert made.commands[0][1:] == words and not made.edits


def test_wheels_of_a_pixi_project_stay_with_pixi() -> None:
    prefix = "/home/ada/work/.pixi/envs/default"
    pixi = [{"name": "pixi", "path": "/usr/bin/pixi"}]
    m = project("pixi", kind="conda", prefix=prefix, pip=False, managers=pixi)
    made = registry.write(m, KB, PackageChange(install=("torchvision==0.29.1",)))
    words = ("add", "--manifest-path", "/home/ada/work", "--pypi", "torchvision==0.29.1")
    assert made.commands == (("/usr/bin/pixi", *words),)


def test_a_pdm_project_gets_a_source_for_torch_alone() -> None:
    made = written("pdm")
    table = edit(made)
    (source,) = table["tool"]["pdm"]["source"]
    assert source["include_packages"] == ["torch", "torchvision"]
    assert made.commands[0][1:4] == ("update", "-p", "/home/ada/work")


def test_a_poetry_project_gets_an_explicit_source() -> None:
    made = written("poetry")
    table = edit(made)["tool"]["poetry"]
    assert table["source"] == [{"name": "pytorch-cu126", "url": CU126, "priority": "explicit"}]
    assert table["dependencies"]["torch"]["source"] == "pytorch-cu126"
    assert made.commands[0][:4] == ("poetry", "-C", "/home/ada/work", "update")


def test_a_poetry_environment_whose_project_is_not_known_says_so() -> None:
    prefix = "/home/ada/.cache/pypoetry/virtualenvs/x-py3.11"
    m = project("", kind="poetry", prefix=prefix, project=None)
    made = registry.write(m, KB, TO_CU126)
    assert "in the project folder" in (made.manual or "")
    assert made.commands == (("poetry", "update", "torch", "torchvision"),)


def test_a_redacted_project_is_never_an_argument() -> None:
    m = project("uv", project="~/work", prefix="~/work/.venv", executable="~/work/.venv/bin/python")
    made = registry.write(m, KB, TO_CU126)
    assert made.commands == (("/usr/bin/uv", "sync"),)
    assert made.edits[0].file == "pyproject.toml"


def test_a_folder_from_outside_acts_in_no_script(tmp_path: Path) -> None:
    evil = f"{tmp_path}/a b'$(touch injected)\ntouch injected\n"
    m = project("uv", project=evil, prefix=f"{evil}/.venv")
    (command,) = registry.write(m, KB, TO_CU126).commands
    line = shell_of("bash").command(typed(*command))
    assert "\n" not in line
    start = "\n".join(shell_of("bash").start(line))
    ran = subprocess.run(
        ["sh"],
        input=f"{start}\nset -- {line}\nprintf '%s' \"$4\"",
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == evil and not list(tmp_path.iterdir())


def test_a_wish_for_pip_is_heard_and_told_that_it_does_not_last() -> None:
    made = written("uv", wish="pip")
    assert made.tool == "pip" and "will undo this change" in (made.note or "")


def test_what_is_only_removed_is_removed_in_place() -> None:
    made = written("uv", PackageChange(install=(), remove=("pynvml",)))
    assert made.commands[0][1:3] == ("-m", "pip") and not made.edits


def test_an_environment_elsewhere_is_no_part_of_the_project() -> None:
    m = project("uv", prefix="/home/ada/.venvs/torch")
    assert registry.write(m, KB, TO_CU126).tool == "pip"


@pytest.mark.parametrize(
    ("files", "name", "found"),
    [
        ({"pyproject.toml": "[project]\n", "uv.lock": ""}, ".venv", "uv"),
        ({"pyproject.toml": "[project]\n[tool.uv]\n"}, ".venv", "uv"),
        ({"pyproject.toml": "[[tool.uv.index]]\n"}, ".venv", "uv"),
        ({"pyproject.toml": "[tool.uv]\nmanaged = false\n"}, ".venv", ""),
        ({"pyproject.toml": "[project]\n", "pdm.lock": ""}, ".venv", "pdm"),
        ({"pyproject.toml": "[tool.poetry]\n"}, ".venv", "poetry"),
        ({"pyproject.toml": "[project]\n"}, ".venv", ""),
        ({"pyproject.toml": "# [tool.uv]\n"}, ".venv", ""),
        ({"pyproject.toml": "[project]\n", "uv.lock": ""}, "venv", ""),
        ({"uv.lock": ""}, ".venv", ""),
        ({}, ".venv", ""),
    ],
)
def test_a_project_is_told_by_its_files(
    tmp_path: Path, files: dict[str, str], name: str, found: str
) -> None:
    for file, text in files.items():
        (tmp_path / file).write_text(text, encoding="utf-8")
    owner = project_of(LocalHost(), str(tmp_path / name), "venv")
    assert owner == ((str(tmp_path), found) if found else NONE)


def test_pixi_owns_what_lies_in_its_folder() -> None:
    assert project_of(LocalHost(), "/w/p/.pixi/envs/default", "conda") == ("/w/p", "pixi")


def wheel(folder: Path, name: str, version: str) -> None:
    """A small real wheel."""
    folder.mkdir(exist_ok=True)
    info = f"{name}-{version}.dist-info"
    lines = {
        f"{name}/__init__.py": f"version = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as file:
        for path, text in lines.items():
            file.writestr(path, text)
        record = "".join(f"{path},,\n" for path in (*lines, f"{info}/RECORD"))
        file.writestr(f"{info}/RECORD", record)


def listed(folder: Path) -> Path:
    """A simple index beside the folder, with a page for each of its wheels."""
    for file in folder.glob("*.whl"):
        page = folder.parent / "simple" / file.name.partition("-")[0] / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(f'<a href="{file.as_uri()}">{file.name}</a>', encoding="utf-8")
    return folder.parent / "simple"


def test_uv_itself_takes_torch_from_the_explicit_index_and_the_rest_from_the_default(
    tmp_path: Path,
) -> None:
    """The two indexes are folders of small wheels; both have a torch and a numpy."""
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists():
        pytest.skip("no uv here")
    for name, release in (("torch", "2.14.1"), ("torchvision", "0.29.1"), ("numpy", "2.0.0")):
        wheel(tmp_path / "pypi", name, release)
        wheel(tmp_path / "cu126", name, "3.0.0" if name == "numpy" else f"{release}+cu126")
    text = written("uv").edits[0].what
    text = text.replace("[project]", '[project]\nname = "p"\nversion = "1"')
    text = text.replace(
        "dependencies = [", 'requires-python = ">=3.10"\ndependencies = [\n"numpy",'
    )
    text = text.replace(f'"{CU126}"', f'"{(tmp_path / "cu126").as_uri()}"\nformat = "flat"')
    simple = listed(tmp_path / "pypi").as_uri()
    text += f'\n[[tool.uv.index]]\nname = "pypi"\nurl = "{simple}"\ndefault = true\n'
    (tmp_path / "pyproject.toml").write_text(text, encoding="utf-8")
    words = [str(uv), "sync", "--project", str(tmp_path), "--python", sys.executable, "--offline"]
    home = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    ran = subprocess.run(
        [*words, "--cache-dir", str(tmp_path / "cache")],
        capture_output=True,
        text=True,
        check=False,
        env=home,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    site = next((tmp_path / ".venv").glob("lib/python*/site-packages"))
    names = {path.name for path in site.glob("*.dist-info")}
    assert names == {
        "torch-2.14.1+cu126.dist-info",
        "torchvision-0.29.1+cu126.dist-info",
        "numpy-2.0.0.dist-info",
    }
