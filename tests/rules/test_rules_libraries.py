"""Which copy of a library is older, whose it is, and how bad a stranger's one is."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from scenario_reader import machine_like

from cudadoctor.model.machine import Library
from cudadoctor.rules.evidence.libraries import Foreign, Use, compared, gravity, in_use, is_own

OTHER = "/usr/local/cuda/lib64/libcudart.so.13"


@pytest.mark.parametrize(
    ("text", "other", "parts", "expected"),
    [
        ("13.0.48", "13.0.96", 4, -1),
        ("13.0.96", "13.0.96", 4, 0),
        ("13.1", "13.0.96", 4, 1),
        ("13.0", "13.0.96", 4, 0),
        ("9.24.0.43", "9.24.0.44", 4, -1),
        ("9.24.0.43.1", "9.24.0.43.2", 4, 0),
        ("9.24.0.43", "9.20.0.43", 1, 0),
        ("9.24.0.43", "9.20.0.43", 2, 1),
        ("2025.3.1", "13.0", 4, None),
        ("13.0", "2025.3.1", 4, None),
        ("2025.3.1", "2025.3.2", 4, -1),
        (None, "13.0", 4, None),
        ("13.0", None, 4, None),
        ("no version", "13.0", 4, None),
    ],
)
def test_versions_of_libraries_are_compared_as_far_as_both_are_told(
    text: str | None, other: str | None, parts: int, expected: int | None
) -> None:
    assert compared(text, other, parts) == expected


def test_four_parts_of_a_version_are_compared_unless_fewer_are_asked_for() -> None:
    assert compared("1.2.3.4.5", "1.2.3.4.6") == 0
    assert compared("1.2.3.4", "1.2.3.5") == -1


@pytest.mark.parametrize(
    ("owner", "path", "own"),
    [
        ("torch", "/elsewhere/libtorch.so", True),
        ("wheel", "/elsewhere/libcudart.so.13", True),
        ("system", OTHER, False),
        ("system", "/own/libcudart.so.13", True),
        ("conda", "/own/deeper/libcudart.so.13", False),
    ],
)
def test_a_library_is_torchs_own_by_its_owner_or_its_folder(
    owner: str, path: str, own: bool
) -> None:
    machine = machine_like("rtx4090-linux", {"libraries": {"own": ["/own"]}})
    plain = {"soname": "libcudart.so.13", "path": path, "owner": owner}
    assert is_own(machine, msgspec.convert(plain, Library)) is own


@pytest.mark.parametrize(
    ("version", "imports", "severity"),
    [
        ("13.0.48", True, "warning"),
        ("13.0.48", False, "error"),
        ("13.0.96", True, None),
        ("13.0.96", False, None),
        ("13.1", True, "warning"),
        ("13.1", False, "error"),
        (None, True, "warning"),
        (None, False, "error"),
    ],
)
def test_a_stranger_of_the_same_version_harms_nobody(
    version: str | None, imports: bool, severity: str | None
) -> None:
    """Where torch imports, it has gone through a whole training step on this machine."""
    changes: dict[str, Any] = {} if imports else {"torch": {"imported": {"ok": False}}}
    machine = machine_like("rtx4090-linux", changes)
    library = Library(soname="libcudart.so.13", path=OTHER, version=version)
    found = gravity(machine, Foreign(Use("libraries.mapped.0", library, True), "13.0.96"))
    assert (found.label if found is not None else None) == severity


def test_what_is_mapped_needs_no_prediction() -> None:
    machine = machine_like("rtx4090-linux", {}, ("libraries.predicted",))
    assert [use.proven for use in in_use(machine)]
    assert all(use.proven for use in in_use(machine))
