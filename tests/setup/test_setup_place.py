"""Where an environment may be made: real folders, and places as values."""

from __future__ import annotations

from pathlib import Path

import pytest

from cudadoctor.repair.setup.making import MARKER, Place, looked_at, refusal


def test_a_folder_that_is_not_there_yet_is_taken(tmp_path: Path) -> None:
    assert refusal(looked_at(str(tmp_path / "new"))) is None


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    assert refusal(looked_at(str(tmp_path))) is None


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    assert "is not empty (thesis.tex)" in str(refusal(looked_at(str(tmp_path))))


def test_a_folder_that_a_killed_setup_left_is_taken(tmp_path: Path) -> None:
    (tmp_path / MARKER).touch()
    (tmp_path / "bin").mkdir()
    found = looked_at(str(tmp_path))
    assert found.ours
    assert refusal(found) is None


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "is a file" in str(refusal(looked_at(str(tmp_path / "file"))))


@pytest.mark.parametrize("there", [True, False])
def test_a_link_is_refused_whatever_it_leads_to(tmp_path: Path, there: bool) -> None:
    if there:
        (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    assert "is a link to" in str(refusal(looked_at(str(tmp_path / "link"))))


def test_a_missing_parent_is_named(tmp_path: Path) -> None:
    assert f"{tmp_path}/no does not exist;" in str(refusal(looked_at(str(tmp_path / "no" / "env"))))


def test_a_parent_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "does not exist" in str(refusal(looked_at(str(tmp_path / "file" / "env"))))


def test_site_packages_of_an_environment_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "lib" / "site-packages"
    folder.mkdir(parents=True)
    assert "site-packages folder of an environment" in str(refusal(looked_at(str(folder / "new"))))


def test_a_folder_inside_of_another_environment_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pyvenv.cfg").touch()
    assert "is inside the environment" in str(refusal(looked_at(str(tmp_path / "new"))))


def test_an_environment_beside_others_of_conda_is_no_environment_inside_of_one(
    tmp_path: Path,
) -> None:
    (tmp_path / "conda-meta").mkdir()
    (tmp_path / "envs").mkdir()
    assert refusal(looked_at(str(tmp_path / "envs" / "new"))) is None
    assert "is inside the environment" in str(refusal(looked_at(str(tmp_path / "new"))))


@pytest.mark.parametrize(
    "path",
    ["/usr/lib/env", "/usr/local/bin/env", "/etc/env", "/proc/env", "/lib64/x", "/dev/env"],
)
def test_folders_of_the_system_are_refused(path: str) -> None:
    assert "belongs to the system" in str(refusal(Place(path=path, real=path)))


@pytest.mark.parametrize("path", ["/usr/src/app/.venv", "/venv", "/opt/env", "/dev/shm/env"])
def test_folders_that_images_and_users_keep_environments_in_are_not(path: str) -> None:
    assert refusal(Place(path=path, real=path)) is None


@pytest.mark.parametrize("path", ["C:\\Windows\\env", "c:\\Program Files\\env"])
def test_folders_of_windows_are_refused(path: str) -> None:
    assert "belongs to the system" in str(refusal(Place(path=path, real=path)))


def test_a_drive_letter_is_no_separator() -> None:
    path = "D:\\work\\env"
    assert refusal(Place(path=path, real=path)) is None


def test_a_link_on_the_way_into_the_system_does_not_hide_it() -> None:
    found = refusal(Place(path="/home/ada/env", real="/usr/lib/env"))
    assert "belongs to the system" in str(found)


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[31m", "a\u202eb"])
def test_a_name_that_no_terminal_shows_is_refused_without_showing_it(name: str) -> None:
    path = f"/home/ada/{name}"
    found = str(refusal(Place(path=path, real=path)))
    assert "contains unprintable characters" in found
    assert found.isprintable()


def test_a_name_that_would_split_path_is_refused() -> None:
    assert "separates folders" in str(refusal(Place(path="/home/a:b", real="/home/a:b")))


@pytest.mark.parametrize("name", ["it's", "$(id)", "ümlaut 东京", "-p", "with space", '"q"'])
def test_other_names_are_taken(tmp_path: Path, name: str) -> None:
    assert refusal(looked_at(str(tmp_path / name))) is None


def test_root_makes_nothing_in_the_folder_of_somebody_else() -> None:
    found = refusal(Place(path="/home/ada/env", real="/home/ada/env", user=0, parent_owner=1000))
    assert "belongs to user 1000" in str(found)


def test_a_parent_that_may_not_be_written_to_is_refused() -> None:
    place = Place(path="/mnt/ro/env", real="/mnt/ro/env", parent="/mnt/ro", parent_writable=False)
    assert "you cannot write to /mnt/ro" in str(refusal(place))


def test_a_path_that_is_too_long_is_a_sentence(tmp_path: Path) -> None:
    assert "cannot access" in str(refusal(looked_at(str(tmp_path / ("n" * 300)))))
