"""A damaged installation: the smallest repair first, and harm told from what fails only later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scenario_reader import machine_like

from cudadoctor.host.local import LocalHost
from cudadoctor.model.findings import Severity
from cudadoctor.pipeline import Judged, judge
from cudadoctor.probes.installed import compare_wheels

CUBLAS, CUSOLVER = "libcublas.so.13", "nvidia/cu13/lib/libcusolver.so.12"


def _damaged(**torch: Any) -> Judged:
    gone = torch.pop("gone", [])
    changes = {"torch": torch, "libraries": {"missing": gone}}
    return judge(machine_like("rtx4090-linux", changes, ("smoke", "torch.imported")))


def _steps(judged: Judged) -> list[str]:
    return [step.id for step in judged.plan.steps]


def _words(judged: Judged) -> set[str]:
    return {word for argv in judged.plan.steps[0].commands for word in argv}


def test_one_library_that_is_gone_renews_one_wheel() -> None:
    judged = _damaged(gone=[CUBLAS])
    assert _steps(judged) == ["reinstall-libraries", "reinstall-torch"]
    pinned = next(
        package for package in judged.machine.packages or () if package.name == "nvidia-cublas"
    )
    assert {"nvidia-cublas", f"nvidia-cublas=={pinned.version}"} <= _words(judged)
    assert not _words(judged) & {"torch", "nvidia-cudnn-cu13"}


def test_damage_to_torch_itself_renews_torch() -> None:
    both = _damaged(gone=[CUBLAS], missing_files=["torch/lib/libtorch_cuda.so"])
    assert _steps(both) == ["reinstall-torch"]


def test_many_damaged_wheels_make_the_whole_installation_doubtful() -> None:
    names = ("libcublas.so.13", "libcufft.so.12", "libcurand.so.10", "libnvrtc.so.13")
    assert _steps(_damaged(gone=list(names))) == ["reinstall-torch"]
    assert _steps(_damaged(gone=list(names[:3])))[0] == "reinstall-libraries"


def test_a_library_that_is_loaded_only_when_needed_is_a_warning() -> None:
    later = _damaged(missing_files=[CUSOLVER]).diagnosis.findings[0]
    assert (later.cause, later.severity) == ("torch-install-corrupt", Severity.WARNING)
    at_once = _damaged(missing_files=[CUSOLVER], gone=[CUBLAS]).diagnosis.findings[0]
    assert at_once.severity is Severity.ERROR


def test_a_library_that_its_wheel_lists_and_nobody_has_is_told(tmp_path: Path) -> None:
    info = tmp_path / "nvidia_cusolver-12.0.4.66.dist-info"
    info.mkdir()
    lines = (f"{CUSOLVER},sha256=x,100", "nvidia/cudnn/lib/libcudnn_adv.so.9,sha256=x,100")
    (info / "RECORD").write_text("\n".join(lines) + "\n")
    damage = compare_wheels(LocalHost(), [(str(tmp_path), info.name)])
    assert (damage.missing, damage.empty) == ((CUSOLVER,), ())
