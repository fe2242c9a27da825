"""For whom packages are sought, and where: tags, markers, indexes."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import msgspec
import pytest
from index_fixtures import GLIBC, Shelf, Wheel, served
from packaging import tags
from packaging.markers import default_environment
from packaging.version import Version
from resolver_fixtures import asked, machine, wanted

from cudadoctor import knowledge
from cudadoctor.installers.docker import inside
from cudadoctor.installers.question import (
    File,
    Target,
    environment,
    is_plain,
    question_of,
    target_of,
)
from cudadoctor.installers.verify import Verdict, holds, verified, verify, with_sizes
from cudadoctor.model.findings import PackageChange, Plan, Step
from cudadoctor.model.machine import Index, Machine
from cudadoctor.model.requirements import marker_holds, marker_variables
from cudadoctor.model.trust import typed


def changed(m: Machine, section: str, **values: object) -> Machine:
    part = msgspec.structs.replace(getattr(m, section), **values)
    return msgspec.structs.replace(m, **{section: part})


def target(m: Machine) -> Target:
    found = target_of(m, here=False)
    assert isinstance(found, Target)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="the tags of Linux are compared")
def test_the_tags_are_those_that_pip_would_reckon_with() -> None:
    own = [tag for tag in tags.platform_tags() if tag.startswith(("manylinux", "linux"))]
    newest = next((tag for tag in own if tag.startswith("manylinux_2_")), "")
    if not newest.endswith("x86_64"):
        pytest.skip("this machine has no glibc on x86_64")
    glibc = Version(newest.removeprefix("manylinux_").rpartition("_x86")[0].replace("_", "."))
    # Older releases of packaging put the plain platform last, newer ones first.
    assert set(target(changed(machine(), "platform", glibc=glibc)).tags) == set(own)


@pytest.mark.parametrize(
    ("where", "tag", "uv"),
    [
        ({"glibc": Version("2.41")}, "manylinux_2_41_x86_64", "x86_64-manylinux_2_40"),
        ({"glibc": Version("2.28")}, "manylinux_2_28_x86_64", "x86_64-manylinux_2_28"),
        ({"glibc": Version("2.27")}, "manylinux_2_27_x86_64", "x86_64-manylinux_2_17"),
        ({"glibc": None}, "manylinux_2_28_x86_64", "x86_64-manylinux_2_28"),
        ({"glibc": Version("3.1")}, "manylinux_2_28_x86_64", "x86_64-manylinux_2_28"),
        ({"glibc": Version("2.12")}, "manylinux_2_12_x86_64", None),
        ({"machine": "aarch64"}, "manylinux_2_39_aarch64", "aarch64-manylinux_2_39"),
        ({"libc": "musl"}, "musllinux_1_2_x86_64", "x86_64-unknown-linux-musl"),
        ({"system": "Windows"}, "win_amd64", "x86_64-pc-windows-msvc"),
        ({"system": "Darwin", "machine": "arm64"}, "macosx_15_0_arm64", "aarch64-apple-darwin"),
    ],
)
def test_each_platform_has_its_own_words(
    where: dict[str, object], tag: str, uv: str | None
) -> None:
    found = target(changed(machine(), "platform", **where))
    assert (found.tags[0], found.uv) == (tag, uv)


@pytest.mark.parametrize(
    ("section", "values", "why"),
    [
        ("python", {"version": None}, "the Python version is unknown"),
        ("python", {"implementation": "PyPy"}, "PyPy is not CPython"),
        ("platform", {"machine": None}, "there is no known wheel platform tag for Linux on None"),
    ],
)
def test_too_little_known_of_the_target_is_said(
    section: str, values: dict[str, object], why: str
) -> None:
    assert target_of(changed(machine(), section, **values), here=False) == why


def test_a_python_of_which_the_maker_is_not_known_is_taken_for_cpython() -> None:
    assert target(changed(machine(), "python", implementation=None)).abi == "cp312"


def test_the_tags_on_musl_end_with_the_first_release_that_has_some() -> None:
    found = target(changed(machine(), "platform", libc="musl")).tags
    musl = [f"musllinux_1_{minor}_x86_64" for minor in (2, 1, 0)]
    assert found == (*musl, "linux_x86_64")


def test_the_variables_of_markers_are_those_that_packaging_finds_here() -> None:
    here = default_environment()
    python = {"version": Version(platform.python_version()), "implementation": "CPython"}
    m = changed(
        changed(machine(), "python", **python),
        "platform",
        system=platform.system(),
        machine=platform.machine(),
        kernel=platform.release(),
    )
    expected = {**here, "platform_version": ""}
    assert target(m).markers == marker_variables(m) == expected
    windows = machine("rtx4090-windows")
    unknown = changed(windows, "python", implementation=None)
    assert marker_variables(unknown) == marker_variables(windows)


def test_an_interpreter_of_a_redacted_document_is_not_run() -> None:
    redacted = msgspec.structs.replace(machine(), redacted=True)
    assert target(redacted).executable is None
    found = target_of(redacted, here=True)
    assert isinstance(found, Target)
    assert found.executable is None


def test_markers_are_those_of_the_target() -> None:
    windows = target(machine("rtx4090-windows")).markers
    assert (windows["sys_platform"], windows["platform_machine"]) == ("win32", "AMD64")
    linux = changed(machine(), "python", version=Version("3.12.4"))
    markers = target(linux).markers
    assert (markers["python_version"], markers["python_full_version"]) == ("3.12", "3.12.4")
    assert markers["implementation_version"] == "3.12.4"
    assert marker_holds('python_full_version >= "3.12.4" and python_version <= "3.12"', markers)
    assert not marker_holds('python_full_version < "3.12.4"', markers)
    # One that cannot be read holds, whatever it is.
    for odd in ('python_version ~= "abc"', "(" * 3000, "nobody == '1'", "; rm"):
        assert marker_holds(odd, markers)


def test_settings_of_pip_reach_uv_by_variables_that_no_list_of_processes_shows() -> None:
    settings = Index(url="https://ada:secret@mirror.example.org/simple", origin="/etc/pip.conf")
    m = changed(machine(), "python", index=settings)
    question = question_of(m, PackageChange(install=("torch==2.14.1",)), "pip")
    assert environment("uv", question, here=True)["UV_INDEX_URL"] == settings.url
    assert "PIP_INDEX_URL" not in environment("pip", question, here=True)
    assert environment("pip", question, here=False)["PIP_INDEX_URL"] == settings.url


def test_settings_of_uv_stay_uvs_where_the_plan_is_for_uv() -> None:
    settings = Index(url="https://mirror.example.org/simple", origin="UV_INDEX_URL")
    m = changed(machine(), "python", index=settings)
    question = question_of(m, PackageChange(install=("torch==2.14.1",)), "uv")
    assert environment("uv", question, here=True) == {}


@pytest.mark.parametrize(
    ("requirement", "plain"),
    [
        ("torch", True),
        ("torch==2.14.1+cu126", True),
        ("numpy>=1.26,<2", True),
        ("ray[default,tune]~=2.9", True),
        ('triton==3.1.0;sys_platform=="linux"', True),
        ("torch@https://example.org/torch.whl", False),
        ("git+https://example.org/torch", False),
        ("folder/package", False),
        ("evil.zip", False),
        ("evil-1.0.tar.gz", False),
        ("./here", False),
        ("-r", False),
        ("--index-url=https://example.org", False),
        ("torch==1\nevil", False),
    ],
)
def test_only_releases_of_an_index_are_asked_for(requirement: str, plain: bool) -> None:
    assert is_plain(requirement) is plain


def test_a_requirement_that_would_be_built_is_not_asked_for() -> None:
    change = PackageChange(install=("torch==2.14.1", "evil@file:///tmp/evil"))
    found = verify(change, machine(), knowledge.load(), here=False)
    assert found.why == (
        "the packages could not be checked: evil@file:///tmp/evil does not come from a package "
        "index"
    )


def test_folders_of_another_machine_are_not_searched() -> None:
    settings = Index(
        extra=("file:///opt/simple", "https://mirror.example.org/simple"),
        find_links=("/opt/wheels",),
        origin="/etc/pip.conf",
    )
    m = changed(machine(), "python", index=settings)
    question = question_of(m, PackageChange(install=("torch==2.14.1",)), "pip")
    assert environment("pip", question, here=False) == {
        "PIP_EXTRA_INDEX_URL": "https://mirror.example.org/simple"
    }


def test_an_image_has_a_python_and_a_libc_of_its_own() -> None:
    change = PackageChange(install=("torch==2.14.1",), variant="cu130", cuda="13.0")
    found = inside(machine("rtx4090-windows"), knowledge.load(), change)
    assert target(found).tags[0].startswith("manylinux_2_3")
    assert found.python.executable is None


def test_the_examined_interpreter_answers_for_itself() -> None:
    own = Version(".".join(map(str, sys.version_info[:3])))
    here = changed(machine(), "python", executable=sys.executable, version=own)
    shelf = Shelf(Wheel("young", "1.0", python=">=3.99"), Wheel("parts", "1.0", python=f">={own}"))
    with served(shelf) as url:
        assert asked("uv", wanted(url, "parts"), here, here=True).resolves is True
        assert asked("uv", wanted(url, "young"), here, here=True).resolves is False


@pytest.mark.parametrize("name", ["UV_DEFAULT_INDEX", "UV_INDEX", "UV_EXTRA_INDEX_URL"])
def test_no_variable_of_uv_leads_a_plan_for_uv_to_another_variant(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other = (Shelf(Wheel("torch", f"2.6.0+{variant}")) for variant in ("cu126", "cu118"))
    with served(own) as url, served(other) as elsewhere:
        monkeypatch.setenv(name, elsewhere)
        found = asked("uv", wanted(url, "torch==2.6.0"), here=True, planned="uv")
    assert found.found == (("torch", "2.6.0+cu126"),), found.why


def test_a_mac_is_taken_by_its_own_release() -> None:
    shelf = Shelf(Wheel("torch", "2.14.1", tag="cp312-cp312-macosx_14_0_arm64"))
    mac = changed(machine("macbook"), "python", version=Version("3.12.4"))
    with served(shelf) as url:
        for kind in ("uv", "pip"):
            assert asked(kind, wanted(url, "torch==2.14.1"), mac).resolves is True
            old = changed(mac, "platform", kernel="22.6.0")
            assert target(old).macos == "13.0"
            assert asked(kind, wanted(url, "torch==2.14.1"), old).resolves is False


def test_an_interpreter_that_is_gone_is_sought_for_by_its_tags() -> None:
    with served(Shelf(Wheel("torch", "2.14.1", tag=f"cp312-cp312-{GLIBC}"))) as url:
        found = asked("uv", wanted(url, "torch==2.14.1"), machine(), here=True)
    assert found.resolves is True


@pytest.mark.parametrize("wish", ["conda", "pixi"])
def test_a_plan_for_a_channel_stays_unverified(wish: str) -> None:
    change = PackageChange(install=("torch==2.13.0",), variant="cu130", cuda="13.0")
    found = verify(change, machine(), knowledge.load(), here=True, tool_name=wish)
    why = f"the packages could not be checked: uv and pip cannot check packages for {wish}"
    assert found == Verdict(resolves=None, why=why)


def test_the_whole_verdict_has_sizes(tmp_path: Path) -> None:
    shelf = Shelf(Wheel("torch", "2.14.1"))
    folder = shelf.in_folder(tmp_path / "simple")
    with served(shelf) as url:
        for index in (url, folder):
            found = verify(wanted(index, "torch==2.14.1"), machine(), knowledge.load(), here=False)
            raw = shelf.raw(Wheel("torch", "2.14.1").file)
            assert raw is not None
            assert [file.size_bytes for file in found.files] == [len(raw)]


def test_a_size_that_is_not_told_is_not_known() -> None:
    with served(Shelf(), "hanging") as url:
        files = (File(url=f"{url}/a", name="a", version="1"), File(url="", name="b", version="1"))
        assert [file.size_bytes for file in with_sizes(files, 0.5)] == [None, None]


# --- the plan ----------------------------------------------------------------------------------


def step(name: str, group: str, change: PackageChange | None) -> Step:
    return Step(
        id=name,
        title=name,
        group=group,
        where="here",
        risk="environment",  # type: ignore[arg-type]
        needs_root=False,
        reboot=False,
        commands=(typed("pip", "install", name),),
        manual=None,
        variables={},
        edits=(),
        cures=(),
        tool="pip",
        packages=change,
    )


def test_the_next_way_is_taken_where_the_first_does_not_resolve() -> None:
    first, second = (PackageChange(install=(pin,)) for pin in ("a==1", "b==1"))
    plan = Plan(steps=(step("a", "g", first), step("b", "g", second)))
    said = {first: Verdict(resolves=False, why="no"), second: Verdict(resolves=True, why="yes")}
    found = verified(plan, said.__getitem__)
    assert [(planned.verified, planned.resolution) for planned in found.steps] == [
        (False, "no"),
        (True, "yes"),
    ]
    assert holds(found)
    assert not holds(Plan(steps=found.steps[:1]))
    assert holds(plan)


def test_an_index_that_was_silent_is_not_asked_twice() -> None:
    index = "https://download.pytorch.org/whl/cu126"
    changes = [PackageChange(install=(pin,), index=index) for pin in ("a==1", "b==1")]
    plan = Plan(steps=tuple(step(f"s{n}", f"g{n}", change) for n, change in enumerate(changes)))
    questions: list[PackageChange] = []

    def ask(change: PackageChange) -> Verdict:
        questions.append(change)
        return Verdict(resolves=None, why="silent", unreached="download.pytorch.org")

    found = verified(plan, ask)
    assert questions == changes[:1]
    assert [planned.resolution for planned in found.steps] == ["silent", "silent"]


def test_steps_without_packages_to_install_are_not_asked_about() -> None:
    plan = Plan(
        steps=(step("a", "g", None), step("b", "h", PackageChange(install=(), remove=("x",))))
    )
    found = verified(plan, lambda _: pytest.fail("asked"))
    assert found == plan
