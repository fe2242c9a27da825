"""Real pip and real uv, asked about tiny wheels on an index of the test's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from index_fixtures import GLIBC, Shelf, Wheel, served
from packaging.version import Version
from resolver_fixtures import asked, machine, wanted

from cudadoctor.model.machine import Index
from cudadoctor.repair import session

both = pytest.mark.parametrize("kind", ["uv", "pip"])

TORCH = Wheel("torch", "2.14.1+cu126", ("nvidia-thing>=1",), f"cp312-cp312-{GLIBC}")
VISION = Wheel("torchvision", "0.29.1+cu126", ("torch==2.14.1",), f"cp312-cp312-{GLIBC}")
SHELF = Shelf(
    TORCH,
    VISION,
    Wheel("nvidia-thing", "1.5"),
    Wheel("nvidia-thing", "1.6", python=">=3.14"),
    Wheel("young", "1.0", python=">=3.14"),
    Wheel("gone", "1.0", yanked=True),
    Wheel("gone", "0.9"),
    Wheel("rival", "1.0", ("torch==2.13.0",)),
    Wheel("elsewhere", "1.0", tag="cp312-cp312-win_amd64"),
    Wheel("newer-glibc", "1.0", tag="cp312-cp312-manylinux_2_90_x86_64"),
    Wheel("only-linux", "1.0", ('nothing-such; sys_platform == "win32"',)),
    others={"flash_source-1.0.tar.gz": ("flash-source", b"no archive")},
)
PINS = ("torch==2.14.1", "torchvision==0.29.1")


@both
def test_what_can_be_had_together_resolves_with_its_files(kind: str) -> None:
    with served(SHELF) as url:
        found = asked(kind, wanted(url, *PINS))
    assert found.resolves is True
    assert found.found == (
        ("torch", "2.14.1+cu126"),
        ("torchvision", "0.29.1+cu126"),
        ("nvidia-thing", "1.5"),
    )
    assert found.why.startswith(
        "the packages can be installed together: torch 2.14.1+cu126,"
        " torchvision 0.29.1+cu126 and 1 more"
    )
    assert found.tool.startswith(f"{kind} ")
    assert {file.name: file.sha256 for file in found.files} == {
        wheel.name: SHELF.sha256(wheel.file)
        for wheel in (TORCH, VISION, Wheel("nvidia-thing", "1.5"))
    }


@both
def test_an_index_of_plain_files_is_asked_too(kind: str, tmp_path: Path) -> None:
    index = Shelf(Wheel("torch", "2.14.1")).in_folder(tmp_path / "simple")
    found = asked(kind, wanted(index, "torch==2.14.1"))
    assert (found.resolves, found.found) == (True, (("torch", "2.14.1"),))


@both
def test_a_release_that_the_index_does_not_have_does_not_resolve(kind: str) -> None:
    with served(SHELF) as url:
        found = asked(kind, wanted(url, "torch==2.14.2"))
    assert found.resolves is False
    assert found.why.startswith("the packages cannot be installed together: ")
    assert "torch==2.14.2" in found.why


@both
def test_an_index_that_answers_without_the_package_does_not_resolve(kind: str) -> None:
    with served(SHELF) as url:
        assert asked(kind, wanted(url, "unheard-of==1.0")).resolves is False


@both
def test_pins_that_contradict_each_other_are_named(kind: str) -> None:
    with served(SHELF) as url:
        found = asked(kind, wanted(url, "torch==2.14.1", "rival==1.0"))
    assert found.resolves is False
    assert "torch==2.13.0" in found.why


@both
def test_a_release_for_a_newer_python_does_not_resolve(kind: str) -> None:
    with served(SHELF) as url:
        found = asked(kind, wanted(url, "young==1.0"))
    assert found.resolves is False
    assert "3.14" in found.why


@both
def test_wheels_for_another_system_do_not_resolve(kind: str) -> None:
    with served(SHELF) as url:
        found = asked(kind, wanted(url, "elsewhere==1.0"))
    assert found.resolves is False
    assert "elsewhere" in found.why


@both
def test_wheels_for_a_newer_glibc_do_not_resolve(kind: str) -> None:
    with served(SHELF) as url:
        assert asked(kind, wanted(url, "newer-glibc==1.0")).resolves is False


@both
def test_a_glibc_that_is_too_old_decides_by_its_tags(kind: str) -> None:
    found = machine()
    platform = msgspec.structs.replace(found.platform, glibc=Version("2.17"))
    old = msgspec.structs.replace(found, platform=platform)
    with served(SHELF) as url:
        assert asked(kind, wanted(url, *PINS), old).resolves is False
        assert asked(kind, wanted(url, *PINS), found).resolves is True


@both
def test_a_windows_machine_gets_its_wheels_from_a_linux_doctor(kind: str) -> None:
    with served(SHELF) as url:
        windows = machine("rtx4090-windows")
        python = msgspec.structs.replace(windows.python, version=Version("3.12.4"))
        windows = msgspec.structs.replace(windows, python=python)
        found = asked(kind, wanted(url, "elsewhere==1.0"), windows)
        marked = asked(kind, wanted(url, "only-linux==1.0"), windows)
    assert found.resolves is True
    assert marked.resolves is False  # its marker holds on Windows
    with served(SHELF) as url:
        assert asked(kind, wanted(url, "only-linux==1.0")).resolves is True


@both
def test_a_yanked_release_is_taken_only_where_it_is_pinned(kind: str) -> None:
    with served(SHELF) as url:
        assert asked(kind, wanted(url, "gone")).found == (("gone", "0.9"),)
        assert asked(kind, wanted(url, "gone==1.0")).found == (("gone", "1.0"),)
        assert asked(kind, wanted(url, "gone>0.9")).resolves is False


@both
def test_what_comes_only_as_source_is_not_built_and_not_judged(kind: str) -> None:
    with served(SHELF) as url:
        found = asked(kind, wanted(url, "flash-source==1.0"))
    assert found.resolves is None
    assert found.why == (
        "the packages could not be checked: flash-source is available only as source, which this "
        "check does not build"
    )


@both
def test_known_source_packages_are_left_out_and_said(kind: str) -> None:
    with served(SHELF) as url:
        found = asked(kind, wanted(url, *PINS, then=("flash-attn",)))
    assert found.resolves is True
    assert found.why.endswith("; not checked: flash-attn (available only as source)")


@both
@pytest.mark.parametrize("manner", ["403", "500", "cut"])
def test_an_index_that_fails_is_no_verdict(kind: str, manner: str) -> None:
    with served(SHELF, manner) as url:
        found = asked(kind, wanted(url, *PINS))
    assert found.resolves is None
    assert found.why == "the packages could not be checked: the index 127.0.0.1 did not respond"
    assert found.unreached == "127.0.0.1"


@both
def test_an_index_without_any_page_has_answered(kind: str) -> None:
    with served(SHELF, "404") as url:
        assert asked(kind, wanted(url, *PINS)).resolves is False


@both
def test_an_index_that_moved_is_followed(kind: str) -> None:
    with served(SHELF, "redirected") as url:
        assert asked(kind, wanted(url, *PINS)).resolves is True


@both
def test_an_index_that_hangs_is_left_at_the_limit(kind: str) -> None:
    with served(SHELF, "hanging") as url:
        found = asked(kind, wanted(url, *PINS), limit_s=3.0)
    assert found.resolves is None
    assert found.why == (
        "the packages could not be checked: the index 127.0.0.1 did not respond within 3 s"
    )


@both
def test_a_closed_port_is_no_verdict(kind: str) -> None:
    with served(SHELF) as url:
        pass
    found = asked(kind, wanted(url, *PINS))
    assert found.resolves is None
    assert found.unreached == "127.0.0.1"


@both
def test_what_follows_comes_from_the_default_index_beside_the_build_that_was_chosen(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = Shelf(
        Wheel("torch", "2.15.0"),
        Wheel("fast-parts", "2.0", ("torch==2.15.0",)),
        Wheel("fast-parts", "1.0", ("torch>=2.14",)),
        Wheel("far-parts", "1.0", ("torch==2.15.0",)),
    )
    with served(SHELF) as url, served(usual) as default:
        python = msgspec.structs.replace(machine().python, index=Index(url=default, origin="x"))
        m = msgspec.structs.replace(machine(), python=python)
        found = asked(kind, wanted(url, *PINS, then=("fast-parts",)), m)
        far = asked(kind, wanted(url, *PINS, then=("far-parts",)), m)
    assert dict(found.found)["torch"] == "2.14.1+cu126"
    assert dict(found.found)["fast-parts"] == "1.0"
    assert far.resolves is False


@both
def test_a_password_of_an_index_is_not_told(kind: str) -> None:
    with served(SHELF) as url, served(SHELF, "500") as broken:
        for address, pin in (
            (url, "torch==2.14.1"),
            (url, "torch==9"),
            (broken, "torch==2.14.1"),
        ):
            secret = address.replace("127.0.0.1", "ada:hunter2@127.0.0.1")
            found = asked(kind, wanted(secret, pin))
            assert "hunter2" not in found.why + found.unreached
            assert not [file for file in found.files if "hunter2" in file.url]


def test_a_free_threaded_python_is_asked_for_by_its_own_tag() -> None:
    shelf = Shelf(
        Wheel("torch", "2.14.1", tag=f"cp314-cp314t-{GLIBC}"),
        Wheel("other", "1.0", tag=f"cp314-cp314-{GLIBC}"),
    )
    python = msgspec.structs.replace(
        machine().python, version=Version("3.14.0"), free_threaded=True
    )
    m = msgspec.structs.replace(machine(), python=python)
    with served(shelf) as url:
        assert asked("pip", wanted(url, "torch==2.14.1"), m).resolves is True
        assert asked("pip", wanted(url, "other==1.0"), m).resolves is False


def test_uv_that_is_told_to_stay_offline_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_OFFLINE", "1")
    with served(SHELF) as url:
        found = asked("uv", wanted(url, *PINS))
    assert found.resolves is None
    assert found.why == (
        "the packages could not be checked: network access is disabled (UV_OFFLINE)"
    )


@both
def test_settings_for_other_installations_do_not_stop_the_question(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in (
        ("PIP_REQUIRE_VIRTUALENV", "1"),
        ("PIP_USER", "1"),
        ("PIP_TARGET", str(tmp_path / "t")),
        ("PIP_PREFIX", str(tmp_path / "p")),
        ("PIP_NO_BINARY", ":all:"),
        ("UV_NO_INDEX", "1"),
        ("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple"),
    ):
        monkeypatch.setenv(name, value)
    with served(SHELF) as url:
        assert asked(kind, wanted(url, *PINS)).resolves is True
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("own", [{}, {"PIP_NO_INPUT": "0"}])
def test_a_repair_asks_nobody_for_a_password(own: dict[str, str]) -> None:
    """The pip of a step waits for nobody, whatever the user has set."""
    with served(Shelf(), "401") as url:
        ran = subprocess.run(
            (sys.executable, "-m", "pip", "install", "--dry-run", "--index-url", url, "torch"),
            env=session.environment({**os.environ, **own}, {}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    assert ran.returncode != 0
    assert "User for" not in ran.stdout
    assert "No matching distribution found" in ran.stderr
