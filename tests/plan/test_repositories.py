"""NVIDIA's repositories: one description for the driver, the toolkit and containers."""

from __future__ import annotations

import pytest
from remedy_fixtures import machine

from cudadoctor.installers.tool import system_packages
from cudadoctor.plan.remedies.repositories import adding, container_toolkits, repository_of

RELEASES = [
    ("ubuntu", [], "24.04", "ubuntu2404/x86_64/cuda-keyring_1.1-1_all.deb"),
    ("neon", ["ubuntu", "debian"], "24.04", "ubuntu2404/x86_64/cuda-keyring_1.1-1_all.deb"),
    ("debian", [], "12", "debian12/x86_64/cuda-keyring_1.1-1_all.deb"),
    ("eurolinux", ["rhel", "fedora"], "9.4", "rhel9/x86_64/cuda-rhel9.repo"),
    ("amzn", ["fedora"], "2023", "amzn2023/x86_64/cuda-amzn2023.repo"),
]


@pytest.mark.parametrize(("distro", "like", "version", "end"), RELEASES)
def test_driver_and_toolkit_come_from_the_same_repository(
    distro: str, like: list[str], version: str, end: str
) -> None:
    platform = {"distro": distro, "distro_like": like, "distro_version": version}
    m = machine(platform=platform | {"machine": "x86_64"})
    driver, toolkit = (adding(m, repository_of(m, toolkit=kind)) for kind in (False, True))
    assert driver == toolkit
    assert end in driver


@pytest.mark.parametrize(
    ("toolkit", "folder"), [(False, "opensuse/leap/15.6"), (True, "opensuse15")]
)
def test_suse_has_one_repository_for_the_driver_and_one_for_toolkits(
    toolkit: bool, folder: str
) -> None:
    m = machine(platform={"distro": "opensuse-leap", "distro_version": "15.6"})
    found = repository_of(m, toolkit=toolkit)
    assert found is not None
    assert found.folder == folder


def test_a_processor_that_nvidia_does_not_build_for_gets_no_repository() -> None:
    m = machine(platform={"distro": "ubuntu", "distro_version": "24.04", "machine": "ppc64le"})
    assert repository_of(m) is not None
    assert adding(m, repository_of(m)) == ""


def test_only_apt_lists_are_refreshed_before_an_installation() -> None:
    assert system_packages("apt-get", "a", "b") == (
        ("apt-get", "update"),
        ("apt-get", "install", "-y", "a", "b"),
    )
    assert system_packages("zypper", "a") == (("zypper", "install", "-y", "a"),)


def test_an_unknown_manager_adds_nothing() -> None:
    assert container_toolkits("") == ((), ())
