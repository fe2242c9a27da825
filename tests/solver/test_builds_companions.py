"""What becomes of the packages beside torch when another torch is installed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from packaging.version import Version
from remedy_fixtures import KB, machine

from cudadoctor.installers import registry
from cudadoctor.knowledge import TorchBuild
from cudadoctor.model.findings import PackageChange, Remedy
from cudadoctor.model.machine import Machine
from cudadoctor.plan import remedies
from cudadoctor.plan.remedies.torch import remedy_for
from cudadoctor.solver.builds import best_build
from cudadoctor.solver.companions import moved_along

LINUX, ARM, WINDOWS = "linux_x86_64", "linux_aarch64", "windows_amd64"


def holding(*packages: str, torch: str = "2.8.0+cu128", cuda: str = "12.8", **more: Any) -> Machine:
    """A machine with that torch and these packages ("xformers 0.0.32.post2")."""
    named = [package.split(" ") for package in (f"torch {torch}", *packages)]
    installed = [{"name": name, "version": version} for name, version in named]
    parts: dict[str, Any] = {
        "torch": {"version": torch, "text": torch, "cuda": cuda, "build": "cuda"},
        "packages": installed,
    }
    return machine(**(parts | more))


def moved(m: Machine, torch: str, variant: str, platform: str = LINUX) -> Remedy:
    build = KB.build_of(Version(torch), variant, platform)
    assert build is not None
    return remedy_for(build, m, KB)


def change_of(remedy: Remedy) -> PackageChange:
    assert remedy.packages is not None
    return remedy.packages


def test_xformers_moves_to_the_one_release_for_the_new_torch_on_torchs_own_index() -> None:
    # 0.0.33.post2 was built against 2.9.1, for CUDA 12.6, 12.8 and 13.0.
    change = change_of(moved(holding("xformers 0.0.32.post2"), "2.9.1", "cu128"))
    assert "xformers==0.0.33.post2" in change.install
    assert change.index == "https://download.pytorch.org/whl/cu128"
    assert "xformers" in change.remove


def test_xformers_without_a_build_for_the_new_cuda_is_taken_out_and_that_is_said() -> None:
    # For 2.9.1 there is none for CUDA 12.9.
    remedy = moved(holding("xformers 0.0.32.post2"), "2.9.1", "cu129")
    assert "xformers" in change_of(remedy).remove
    assert not [
        requirement
        for requirement in change_of(remedy).install
        if requirement.startswith("xformers")
    ]
    assert "xformers 0.0.32.post2 will be removed" in (remedy.note or "")


def test_xformers_that_fits_stays_untouched() -> None:
    m = holding("xformers 0.0.32.post2")
    change = change_of(moved(m, "2.8.0", "cu128"))
    assert "xformers" not in change.remove
    assert not [requirement for requirement in change.install if requirement.startswith("xformers")]


def test_no_xformers_has_wheels_for_arm() -> None:
    m = holding("xformers 0.0.32.post2", platform={"machine": "aarch64"})
    change = change_of(moved(m, "2.10.0", "cu130", ARM))
    assert "xformers" in change.remove
    assert not [requirement for requirement in change.install if requirement.startswith("xformers")]


def test_xformers_from_before_torchs_own_index_comes_from_the_package_index() -> None:
    m = holding("xformers 0.0.32.post2", python={"version": "3.10.12"})
    change = change_of(moved(m, "2.0.1", "cu118"))
    assert change.then == ("xformers==0.0.22", "numpy<2")
    assert change.index == "https://download.pytorch.org/whl/cu118"
    # Its next release was the first on torch's own index.
    later = change_of(moved(m, "2.1.0", "cu118"))
    assert "xformers==0.0.22.post7" in later.install


def test_xformers_is_not_pinned_to_a_release_without_a_wheel_for_this_python() -> None:
    def after(python: str) -> PackageChange:
        m = holding("xformers 0.0.32.post2", python={"version": python})
        return change_of(moved(m, "2.5.1", "cu121"))

    assert "xformers==0.0.29.post1" in after("3.12.3").install
    gone = after("3.13.1")
    assert "xformers" in gone.remove
    assert not [pin for pin in (*gone.install, *gone.then) if pin.startswith("xformers")]


def test_xformers_on_windows_has_the_builds_of_windows() -> None:
    m = holding("xformers 0.0.32.post2", platform={"system": "Windows", "machine": "x86_64"})
    with_124 = change_of(moved(m, "2.5.1", "cu124", WINDOWS))
    assert "xformers==0.0.29.post1" in with_124.install
    assert "xformers" in change_of(moved(m, "2.5.1", "cu121", WINDOWS)).remove
    with_121 = change_of(moved(m, "2.5.1", "cu121", WINDOWS))
    assert not [pin for pin in with_121.install if pin.startswith("xformers")]


def test_an_old_torch_gets_the_bitsandbytes_of_its_day() -> None:
    m = holding("bitsandbytes 0.50.0", python={"version": "3.10.12"})
    change = change_of(moved(m, "2.2.2", "cu121"))
    assert "bitsandbytes==0.47.0" in change.then


def test_a_release_without_a_wheel_for_this_python_is_not_proposed_alone() -> None:
    def pins(python: str) -> list[str]:
        m = holding("xformers 0.0.20", torch="2.5.1+cu121", cuda="12.1", python={"version": python})
        found = remedies.install_companion(m, KB, "xformers")
        return [pin for remedy in found for pin in change_of(remedy).install]

    assert pins("3.12.3") == ["xformers==0.0.29.post1"]
    assert pins("3.13.1") == []


def test_old_xformers_alone_comes_from_the_package_index() -> None:
    m = holding("xformers 0.0.16", torch="2.0.1+cu118", cuda="11.8", python={"version": "3.10.12"})
    (remedy,) = remedies.install_companion(m, KB, "xformers")
    assert change_of(remedy).install == ("xformers==0.0.22",)
    assert change_of(remedy).index is None


@pytest.mark.parametrize(
    ("python", "pinned"),
    # For torch 2.7 and CUDA 12: Python 3.9 to 3.13.
    [("3.9.5", True), ("3.13.1", True), ("3.14.0", False)],
)
def test_flash_attn_is_pinned_where_a_wheel_is_known_for_this_python(
    python: str, pinned: bool
) -> None:
    m = holding("flash-attn 2.8.1", torch="2.4.1+cu124", cuda="12.4", python={"version": python})
    change = change_of(moved(m, "2.7.1", "cu126"))
    assert ("flash-attn==2.8.1" in change.then) is pinned
    assert "flash-attn" in change.remove


def test_flash_attn_is_built_anew_where_the_right_nvcc_is_here() -> None:
    toolkits = [{"path": "/usr/local/cuda-13.0", "origin": "/usr/local", "cuda": "13.0"}]
    with_nvcc = holding("flash-attn 2.8.3", build={"toolkits": toolkits})
    remedy = moved(with_nvcc, "2.14.1", "cu130")
    assert "flash-attn==2.8.3" in change_of(remedy).then
    assert "rebuilt for torch 2.14.1 with nvcc 13.0" in (remedy.note or "")
    without = moved(holding("flash-attn 2.8.3", build={"toolkits": []}), "2.14.1", "cu130")
    assert change_of(without).then == ()
    assert "flash-attn" in change_of(without).remove


def test_bitsandbytes_stays_while_it_has_binaries_for_the_cuda() -> None:
    # 0.48.1 has binaries up to 13.0, 0.50.2 also for 13.2.
    stays = change_of(moved(holding("bitsandbytes 0.48.1"), "2.14.1", "cu130"))
    assert "bitsandbytes" not in stays.remove
    moves = change_of(moved(holding("bitsandbytes 0.48.1"), "2.14.1", "cu132"))
    assert "bitsandbytes==0.50.2" in moves.then


def test_bitsandbytes_is_not_pinned_to_a_release_that_refuses_this_python() -> None:
    # From 0.49.0 on it needs Python 3.10, and nothing older has 13.2; torch 2.14 has no 3.9 either,
    # so this is the rule alone.
    m = holding("bitsandbytes 0.48.1", python={"version": "3.9.9"})
    change = change_of(moved(m, "2.14.1", "cu132"))
    assert not [
        requirement for requirement in change.then if requirement.startswith("bitsandbytes")
    ]
    assert "bitsandbytes" in change.remove


def test_on_windows_triton_is_triton_windows_of_the_right_minor() -> None:
    # 2.10 and 2.11 take 3.6; the newest post-release of it is 26. For 2.15 none is known.
    m = holding(
        "triton-windows 3.4.0.post20", platform={"system": "Windows", "libc": None, "glibc": None}
    )
    change = change_of(moved(m, "2.11.0", "cu128", WINDOWS))
    assert "triton-windows==3.6.0.post26" in change.then
    assert not [
        requirement
        for requirement in (*change.install, *change.then)
        if requirement.startswith("triton==")
    ]
    same = holding("triton-windows 3.6.0.post24", platform={"system": "Windows"})
    assert change_of(moved(same, "2.11.0", "cu128", WINDOWS)).then == ()


def test_pygs_parts_come_from_their_own_page_where_a_wheel_was_seen() -> None:
    # PyG's page for torch 2.12.0 and cu130 has torch-scatter and torch-sparse, no torch-cluster.
    m = holding("torch-scatter 2.1.2+pt28cu128", "torch-cluster 1.6.3+pt28cu128")
    remedy = moved(m, "2.12.1", "cu130")
    change = change_of(remedy)
    assert change.then == ("torch-scatter==2.1.2+pt212cu130",)
    assert change.find_links == "https://data.pyg.org/whl/torch-2.12.0+cu130.html"
    assert {"torch-scatter", "torch-cluster"} <= {*change.remove}
    assert "torch-cluster 1.6.3+pt28cu128 will be removed: there is no known wheel" in (
        remedy.note or ""
    )


@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_the_page_of_wheels_stands_in_the_command(tool: Any) -> None:
    m = holding("torch-scatter 2.1.2+pt28cu128")
    change = change_of(moved(m, "2.12.1", "cu130"))
    last = registry.write(m, KB, change, tool).commands[-1]
    assert last[last.index("--find-links") + 1] == change.find_links
    assert "torch-scatter==2.1.2+pt212cu130" in last


@pytest.mark.parametrize(
    ("package", "torch", "variant", "platform", "python", "release"),
    [
        ("torch-scatter", "2.6.0", "cu124", LINUX, "3.11", "2.1.2+pt26cu124"),
        ("torch-scatter", "2.6.0", "cu124", None, None, "2.1.2+pt26cu124"),
        ("torch-cluster", "1.13.1", "cu117", WINDOWS, "3.10", "1.6.1+pt113cu117"),
        ("pyg-lib", "2.7.1", "cu128", WINDOWS, "3.12", "0.5.0+pt27cu128"),
        ("torch-sparse", "2.8.0", "cpu", LINUX, "3.12", "0.6.18+pt28cpu"),
        ("torch-scatter", "2.6.0", "cu121", LINUX, "3.11", None),
        ("torch-scatter", "2.6.0", "cu124", ARM, "3.11", None),
        ("torch-scatter", "2.6.0", "cu124", LINUX, "3.14", None),
        ("torch-scatter", "2.6.0", "cu124", LINUX, "3.13t", None),
        ("pyg-lib", "2.2.0", "cu121", WINDOWS, "3.11", None),
        ("torch-cluster", "2.12.0", "cu130", LINUX, "3.12", None),
        ("torch-geometric", "2.6.0", "cu124", LINUX, "3.11", None),
    ],
)
def test_the_release_of_a_part_of_pyg(
    package: str, torch: str, variant: str, platform: Any, python: Any, release: Any
) -> None:
    assert KB.pyg_release(package, Version(torch), variant, platform, python) == release


def test_a_wheel_from_a_page_is_not_compiled() -> None:
    m = holding("torch-scatter 2.1.2+pt22cu121", torch="2.6.0+cu124", cuda="12.4")
    (remedy,) = remedies.install_companion(m, KB, "torch-scatter")
    change = change_of(remedy)
    found = registry.write(m, KB, change, "pip").commands[-1]
    assert found[1:] == (
        *("-m", "pip", "install", "torch-scatter==2.1.2+pt26cu124"),
        *("--find-links", "https://data.pyg.org/whl/torch-2.6.0+cu124.html"),
    )
    (edit,) = registry.write(m, KB, change, "docker").edits
    assert "torch-scatter==2.1.2+pt26cu124 --find-links" in edit.what
    for tool in ("conda", "pixi"):
        assert registry.write(m, KB, change, tool).commands[-1] == found


@pytest.mark.parametrize(("torch", "known"), [("2.5.1", True), ("2.6.0", False)])
def test_pygs_wheels_are_not_for_the_torch_of_conda_forge(torch: str, *, known: bool) -> None:
    m = holding("torch-scatter 2.1.2+pt22cu121", torch=torch, cuda="12.4")
    m = msgspec.structs.replace(m, torch=msgspec.structs.replace(m.torch, installer="conda"))
    assert bool(remedies.install_companion(m, KB, "torch-scatter")) is known


def test_a_uv_project_gets_them_by_pip() -> None:
    python = {"project": "/p", "project_tool": "uv", "prefix": "/p/.venv"}
    torch: Any = {"torch": "2.6.0+cu124", "cuda": "12.4"}
    m = holding("torch-scatter 2.1.2+pt22cu121", python=python, **torch)
    (remedy,) = remedies.install_companion(m, KB, "torch-scatter")
    made = registry.write(m, KB, change_of(remedy))
    assert "--find-links" in made.commands[-1]
    assert "uv sync" in (made.note or "")


def test_conda_does_not_ask_for_a_wheel_by_its_tag() -> None:
    m = holding("torch-scatter 2.1.2+pt28cu128")
    made = registry.write(m, KB, change_of(moved(m, "2.10.0", "cu128")), "conda")
    assert not any("+pt" in word for command in made.commands for word in command)
    assert "they are not made for conda's torch" in (made.note or "")


def test_pygs_parts_stay_where_torch_keeps_its_minor_release_and_cuda() -> None:
    m = holding("torch-scatter 2.1.2+pt28cu128")
    assert change_of(moved(m, "2.8.0", "cu129")).then == ()
    assert "torch-scatter" not in change_of(moved(m, "2.8.0", "cu129")).remove


def test_plain_python_stays() -> None:
    m = holding("torch-geometric 2.7.0", "accelerate 1.15.0", "numpy 2.1.0")
    remedy = moved(m, "2.14.1", "cu130")
    assert not {"torch-geometric", "accelerate", "numpy"} & {*change_of(remedy).remove}


def test_what_declares_no_torch_stays_and_is_named() -> None:
    remedy = moved(holding("torchao 0.13.0"), "2.14.1", "cu130")
    assert "torchao" not in change_of(remedy).remove
    assert "torchao 0.13.0 will be kept, but it may not work with torch 2.14.1" in (
        remedy.note or ""
    )


def test_torchvision_is_left_out_where_it_refuses_this_very_python() -> None:
    # 0.29.2 excludes Python 3.14.1 alone.
    for python, pinned in (("3.14.0", True), ("3.14.1", False), ("3.14.2", True)):
        m = holding("torchvision 0.23.0", python={"version": python})
        change = change_of(moved(m, "2.14.1", "cu130"))
        assert ("torchvision==0.29.1" in change.install) is pinned


def test_the_old_ones_go_before_the_new_come() -> None:
    m = holding("xformers 0.0.32.post2", "flash-attn 2.8.3")
    commands = registry.write(m, KB, change_of(moved(m, "2.9.1", "cu128"))).commands
    assert "uninstall" in commands[0]
    assert {"xformers", "flash-attn"} <= {*commands[0]}


def test_a_companion_without_a_wheel_for_this_python_is_left_out_and_named() -> None:
    # PyPI has torch 2.5.1 for Python 3.13, and torchvision 0.20.1 only up to 3.12.
    for python, pinned in (("3.12.3", True), ("3.13.1", False)):
        m = holding("torchvision 0.23.0", python={"version": python})
        remedy = moved(m, "2.5.1", "cu124")
        assert ("torchvision==0.20.1" in change_of(remedy).install) is pinned
        assert ("No wheel of torchvision 0.20.1" in (remedy.note or "")) is not pinned
        assert pinned or "torchvision" in change_of(remedy).remove


def test_xformers_alone_comes_for_the_cuda_of_the_installed_torch() -> None:
    # 0.0.32.post2 has builds for CUDA 12.6, 12.8 and 12.9, which lie on torch's own index.
    (remedy,) = remedies.install_companion(holding("xformers 0.0.31.post1"), KB, "xformers")
    change = change_of(remedy)
    assert change.install == ("xformers==0.0.32.post2",)
    assert change.index == "https://download.pytorch.org/whl/cu128"
    other = holding("xformers 0.0.31.post1", torch="2.9.1+cu129", cuda="12.9")
    assert remedies.install_companion(other, KB, "xformers") == ()


@pytest.mark.parametrize(
    ("torch", "numpy", "pinned"),
    # torch before 2.3 was compiled for numpy 1 alone.
    [
        ("2.2.2", "numpy 2.1.0", True),
        ("2.2.2", "numpy 1.26.4", False),
        ("2.3.0", "numpy 2.1.0", False),
    ],
)
def test_a_torch_of_numpy_1_gets_one(torch: str, numpy: str, pinned: bool) -> None:
    m = holding(numpy, python={"version": "3.11.4"})
    assert ("numpy<2" in change_of(moved(m, torch, "cu121")).then) is pinned


# --- the smallest change that cures ---------------------------------------------------------------

BLACKWELL: dict[str, Any] = {
    "gpus": [{"index": 0, "name": "NVIDIA GeForce RTX 5090", "capability": "12.0"}],
    "driver": {"kernel": "580.95.05", "library": "580.95.05", "cuda": "13.0"},
}


def chosen(*packages: str, torch: str, cuda: str, **more: Any) -> tuple[str, tuple[str, ...]]:
    """The build that is prescribed, and what is installed with it, without torch."""
    m = holding(*packages, torch=torch, cuda=cuda, **(BLACKWELL | more))
    remedy = remedies.install_torch(m, KB)[0]
    change = change_of(remedy)
    return f"{change.install[0]}+{change.variant}", (*change.install[1:], *change.then)


def test_the_next_release_that_keeps_every_companion_is_preferred_to_the_newest() -> None:
    packages = ("torchvision 0.21.0", "torchaudio 2.6.0", "xformers 0.0.29.post2")
    torch, others = chosen(*packages, torch="2.6.0+cu124", cuda="12.4")
    assert torch == "torch==2.7.1+cu128"
    assert {"torchvision==0.22.1", "torchaudio==2.7.1", "xformers==0.0.31.post1"} <= {*others}
    # Nothing keeps it where it is: without a torch, the newest comes.
    empty = {"installed": False, "version": None, "build": None, "cuda": None, "text": None}
    fresh = machine(**(BLACKWELL | {"torch": empty, "packages": []}))
    (newest,) = remedies.install_torch(fresh, KB)
    assert newest.packages is not None
    assert newest.packages.install[0] > "torch==2.14"


def wanting(m: Machine, name: str, *requires: str) -> Machine:
    """The machine with another package that requires this."""
    assert m.packages is not None
    other = type(m.packages[0])(name=name, version="1.0", requires=requires)
    return msgspec.structs.replace(m, packages=(*m.packages, other))


ON_2_6: dict[str, Any] = {"torch": "2.6.0+cu124", "cuda": "12.4", **BLACKWELL}


def test_a_nearer_release_gives_way_to_one_that_keeps_more() -> None:
    m = wanting(holding("xformers 0.0.29.post2", **ON_2_6), "vllm", "torch==2.8.0")
    first, newest = remedies.install_torch(m, KB)
    assert change_of(first).install[0] == "torch==2.8.0"
    assert newest.id == "install-newest-torch"
    why = best_build(m, KB).why[0]
    assert why.startswith("torch 2.7.1+cu128 is closer to your installed version")
    assert "you could not keep vllm unchanged; 2.8.0+cu128 is" in why


def test_what_no_build_can_keep_decides_nothing() -> None:
    # torchtext ended with torch 2.3.
    torch, _ = chosen("torchtext 0.18.0", torch="2.3.1+cu121", cuda="12.1")
    assert torch == "torch==2.7.1+cu128"


def test_a_companion_keeps_the_release_that_another_package_pins() -> None:
    m = holding("xformers 0.0.29.post2", **ON_2_6)
    assert "xformers==0.0.31.post1" in change_of(remedies.install_torch(m, KB)[0]).install
    pinned = wanting(m, "vllm", "torch==2.8.0", "xformers==0.0.32.post2")
    assert "xformers==0.0.32.post2" in change_of(remedies.install_torch(pinned, KB)[0]).install


def test_a_program_that_pins_torch_moves_to_its_release_for_the_new_torch() -> None:
    m = holding("xformers 0.0.28.post3", "vllm 0.6.6", "torchvision 0.20.1", **ON_2_6)
    first = remedies.install_torch(m, KB)[0]
    change = change_of(first)
    assert change.install == ("torch==2.7.1", "torchvision==0.22.1", "xformers==0.0.31")
    assert change.then == ("vllm==0.10.1.1",)
    assert "vllm 0.6.6 will be replaced with 0.10.1.1" in (first.note or "")
    # Its release for 2.8 is installed: then torch goes there, and it stays.
    m = holding("xformers 0.0.28.post3", "vllm 0.10.2", **ON_2_6)
    first = remedies.install_torch(m, KB)[0]
    assert change_of(first).install[0] == "torch==2.8.0"
    assert change_of(first).then == ()
    # With another CUDA major than that of its wheels it would not load.
    other, moved = moved_along(build_of("2.7.1", "cu118"), m, KB)
    assert (other, moved) == (m, ())


def test_a_program_that_refuses_the_new_torch_comes_in_a_release_for_it() -> None:
    m = holding("accelerate 1.9.0", "lightning 2.6.6", torch="2.8.0+cu128", cuda="12.8")
    remedy = moved(m, "1.13.1", "cu117")
    (accelerate, lightning) = (pin for pin in change_of(remedy).then if pin != "numpy<2")
    assert (accelerate, lightning) == ("accelerate==1.2.1", "lightning==2.2.5")
    assert "accelerate 1.9.0 will be replaced with 1.2.1" in (remedy.note or "")
    # A near miss: one that takes both stays as it is.
    assert change_of(moved(m, "2.9.1", "cu128")).then == ()


def test_a_program_comes_in_the_release_that_a_companion_pins() -> None:
    m = holding("torchtext 0.16.0", "torchdata 0.7.0", torch="2.1.0+cu121", cuda="12.1")
    change = change_of(moved(m, "2.0.1", "cu118"))
    assert "torchtext==0.15.2" in change.install
    assert "torchdata==0.6.1" in change.then
    # Without torchtext it is the nearest that takes this torch.
    m = holding("torchdata 0.7.0", torch="2.1.0+cu121", cuda="12.1")
    assert change_of(moved(m, "2.0.1", "cu118")).then == ("numpy<2", "torchdata==0.7.1")


def test_a_program_that_nothing_brings_along_is_named() -> None:
    # Its wheels for 2.7 are for CUDA 12.
    m = holding("torch-tensorrt 2.8.0")
    note = moved(m, "2.7.1", "cu118").note or ""
    assert "torch-tensorrt 2.8.0 will be removed: it was compiled for a different torch" in note
    assert "torch-tensorrt==2.7.0" in change_of(moved(m, "2.7.1", "cu126")).then
    own = wanting(holding("torchvision 0.23.0"), "house", "torchvision==0.23.0")
    assert "house 1.0 requires torchvision==0.23.0; it" in (moved(own, "2.9.1", "cu128").note or "")
    assert "house" not in (moved(own, "2.8.0", "cu129").note or "")
    # What it refuses already is nothing new.
    never = wanting(holding("torchvision 0.23.0"), "house", "torchvision==0.20.0")
    assert "house" not in (moved(never, "2.9.1", "cu128").note or "")


def test_a_pin_with_a_variant_is_met_by_that_variant_alone() -> None:
    m = wanting(holding(torch="2.8.0+cu129", cuda="12.9"), "house", "torch==2.8.0+cu129")
    assert "house" not in (moved(m, "2.8.0", "cu129").note or "")
    # The default build lies on PyPI, where versions bear no variant.
    assert "house 1.0 requires torch==2.8.0+cu129" in (moved(m, "2.8.0", "cu128").note or "")
    asked = [{"name": "requirements.txt", "requires": ["torch==2.8.0+cu126"]}]
    project = holding(python={"files": asked})
    assert "requirements.txt" not in (moved(project, "2.8.0", "cu126").note or "")
    assert "requirements.txt requires" in (moved(project, "2.8.0", "cu129").note or "")


def build_of(torch: str, variant: str) -> TorchBuild:
    build = KB.build_of(Version(torch), variant, LINUX)
    assert build is not None
    return build


def test_what_an_extra_or_another_system_asks_for_is_no_demand() -> None:
    lines = ("torch==2.9.0; extra == 'all'", "torch==2.9.0; sys_platform == 'win32'")
    m = wanting(holding(**ON_2_6), "somebody", *lines)
    assert change_of(remedies.install_torch(m, KB)[0]).install[0] == "torch==2.7.1"
    here = wanting(holding(**ON_2_6), "somebody", "torch==2.9.0; sys_platform == 'linux'")
    assert change_of(remedies.install_torch(here, KB)[0]).install[0] == "torch==2.9.0"


def test_a_file_of_the_project_is_a_demand_like_a_package() -> None:
    asked = [{"name": "requirements.txt", "requires": ["torch>=2.8,<2.10", "rich"]}]
    m = holding(**ON_2_6, python={"files": asked})
    first = remedies.install_torch(m, KB)[0]
    assert change_of(first).install[0] == "torch==2.8.0"
    assert "requirements.txt" not in (first.note or "")
    assert "could not keep requirements.txt unchanged; 2.8.0+cu128 is" in best_build(m, KB).why[0]
    # Where no build can meet it, the file has to change; a project's own tool rewrites its file.
    asked = [{"name": "requirements.txt", "requires": ["torch==2.6.0"]}]
    m = holding(**ON_2_6, python={"files": asked})
    first = remedies.install_torch(m, KB)[0]
    assert change_of(first).install[0] == "torch==2.7.1"
    assert "requirements.txt requires torch==2.6.0: change that requirement" in (first.note or "")
    locked = holding(**ON_2_6, python={"files": [asked[0] | {"name": "uv.lock"}]})
    note = remedies.install_torch(locked, KB)[0].note or ""
    assert "uv.lock pins torch==2.6.0: update it as well." in note
    owned = holding(**ON_2_6, python={"files": asked, "project_tool": "uv", "project": "/home/p"})
    assert "change that requirement" not in (remedies.install_torch(owned, KB)[0].note or "")


def test_an_empty_environment_gets_the_newest_that_its_project_allows() -> None:
    nothing = {"installed": False, "version": None, "build": None, "cuda": None, "text": None}
    asked = [{"name": "pyproject.toml", "requires": ["torch~=2.7.0"]}]
    m = machine(torch=nothing, packages=[], python={"files": asked}, **BLACKWELL)
    assert change_of(remedies.install_torch(m, KB)[0]).install[0] == "torch==2.7.1"


def test_another_variant_of_the_same_release_comes_before_another_release() -> None:
    volta = [{"index": 0, "name": "Tesla V100", "capability": "7.0"}]
    torch, _ = chosen(torch="2.14.1+cu130", cuda="13.0", gpus=volta)
    assert torch == "torch==2.14.1+cu126"


def test_an_older_release_is_taken_only_where_no_newer_one_fits() -> None:
    kepler = [{"index": 0, "name": "Tesla K80", "capability": "3.7"}]
    old = {"kernel": "470.256.02", "library": "470.256.02", "cuda": "11.4"}
    torch, _ = chosen(torch="2.5.1+cu121", cuda="12.1", gpus=kepler, driver=old)
    assert torch.startswith("torch==2.") and torch < "torch==2.5"
