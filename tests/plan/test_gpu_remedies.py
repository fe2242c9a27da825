"""Which GPU a command names, and when a GPU can be reset at all."""

from __future__ import annotations

from typing import Any

import pytest
from scenario_reader import machine_like

from cudadoctor import knowledge
from cudadoctor.model.findings import Remedies
from cudadoctor.model.machine import GpuPair, Machine
from cudadoctor.model.rule import Found
from cudadoctor.plan import remedies
from cudadoctor.rules.health import gpu_not_started
from cudadoctor.rules.speed import power_brake, thermal_throttle


def reset(m: Machine, index: int = 0) -> Remedies:
    return remedies.reset_gpus(m, (m.gpus or ())[index])


@pytest.mark.parametrize(
    ("container", "gpu", "where"),
    [
        ({}, "3", "here"),
        ({"kind": "docker"}, "00000000:04:00.0", "host"),
        ({"kind": "kubernetes"}, "00000000:04:00.0", "admin"),
        ({"kind": "docker", "scheduler": "slurm"}, "00000000:04:00.0", "admin"),
    ],
)
def test_indexes_of_a_box_or_a_job_are_not_those_of_the_host(
    container: dict[str, Any], gpu: str, where: str
) -> None:
    (found,) = reset(machine_like("h100x8-linux", {"container": container}), 3)
    assert ("nvidia-smi", "--gpu-reset", "-i", gpu) in found.commands
    assert found.where == where
    assert found.needs_root


@pytest.mark.parametrize(("capability", "together"), [("7.0", "0,1"), ("8.0", "0")])
def test_before_ampere_nvlink_peers_are_reset_together(capability: str, together: str) -> None:
    pair = {"first": 0, "second": 1, "nvlink": True}
    far = {"first": 0, "second": 2, "nvlink": False}
    changes = {"gpus": {"0": {"capability": capability}}, "driver": {"pairs": [pair, far]}}
    m = machine_like("h100x8-linux", changes)
    assert isinstance((m.driver.pairs or ())[0], GpuPair)
    (found,) = reset(m)
    assert ("nvidia-smi", "--gpu-reset", "-i", together) in found.commands


@pytest.mark.parametrize("gpu", [{"display": True}, {"virtualization": "vgpu"}])
def test_a_gpu_that_cannot_be_reset_is_not(gpu: dict[str, Any]) -> None:
    assert reset(machine_like("rtx4090-linux", {"gpus": {"0": gpu}})) == ()


def test_the_programs_to_stop_are_named() -> None:
    held = [{"pid": 31337, "name": "python3"}, {"pid": 4}]
    (found,) = reset(machine_like("rtx4090-linux", {"gpus": {"0": {"processes": held}}}))
    assert found.note == "First stop python3 (pid 31337): a GPU cannot be reset while it is in use."


def _around_the_reset(like: str, **changes: Any) -> list[str]:
    commands = reset(machine_like(like, {"gpus": {"0": {"persistence": True}}} | changes))[
        0
    ].commands
    return [" ".join(argv) for argv in commands if argv[0] == "systemctl"]


def test_the_services_that_hold_a_gpu_stop_for_its_reset() -> None:
    """Those that are known to: of a DGX more, and none where the GPU stays initialized for none."""
    one = ["systemctl stop nvidia-persistenced", "systemctl start nvidia-persistenced"]
    assert _around_the_reset("rtx4090-linux") == one
    assert _around_the_reset("h100x8-linux") == [f"{line} nvsm nvidia-dcgm" for line in one]
    assert _around_the_reset("rtx4090-linux", gpus={"0": {"persistence": False}}) == []


def test_the_fabric_manager_stays_for_a_reset() -> None:
    m = machine_like("h100x8-linux", {"driver": {"fabric": {"nvswitches": 6}}})
    (found,) = reset(m)
    assert not any("fabricmanager" in word for argv in found.commands for word in argv)
    assert "Leave nvidia-fabricmanager running" in (found.note or "")
    (bare,) = reset(machine_like("h100x8-linux", {"driver": {"fabric": {"nvswitches": 0}}}))
    assert "fabricmanager" not in (bare.note or "")


@pytest.mark.parametrize(
    ("capability", "steps"),
    [("9.0", ["mig-at-boot", "mig-instances", "mig-off"]), ("12.0", ["mig-off"])],
)
def test_an_instance_is_made_only_of_a_profile_that_is_known(
    capability: str, steps: list[str]
) -> None:
    m = machine_like("h100x8-linux", {"gpus": {"0": {"capability": capability}}})
    assert [step.id for step in remedies.mig_instances(m, [(m.gpus or ())[0]])] == steps


def test_a_worn_out_gpu_is_left_out_until_it_is_replaced() -> None:
    m = machine_like("h100x8-linux", {"redacted": True})
    without, _ = remedies.replace_gpus(m, (m.gpus or ())[2])
    assert without.variables["CUDA_VISIBLE_DEVICES"] == "0,1,3,4,5,6,7"
    job = machine_like("h100x8-linux", {"container": {"scheduler": "slurm"}})
    found = [step.id for step in remedies.replace_gpus(job, (job.gpus or ())[2])]
    assert found == ["another-node", "replace-gpu"]


@pytest.mark.parametrize(
    ("platform", "first", "last"),
    [
        (
            {"virtual": "microsoft", "product": "Virtual Machine", "kernel": "6.8.0-1041-azure"},
            "az vm deallocate --resource-group GROUP --name node1",
            "az vm start --resource-group GROUP --name node1",
        ),
        (
            {"virtual": "kvm", "product": "p4d.24xlarge"},
            "aws ec2 stop-instances --instance-ids INSTANCE",
            "aws ec2 start-instances --instance-ids INSTANCE",
        ),
        (
            {"virtual": "kvm", "product": "Google Compute Engine"},
            "gcloud compute instances stop node1",
            "gcloud compute instances start node1",
        ),
        # Hyper-V of one's own has the same name.
        (
            {"virtual": "microsoft", "product": "Virtual Machine", "kernel": "5.14.0-427.el9"},
            "",
            "",
        ),
    ],
)
def test_a_rented_machine_gets_other_hardware_by_a_stop_and_a_start(
    platform: dict[str, Any], first: str, last: str
) -> None:
    m = machine_like("h100x8-linux", {"platform": platform, "identity": {"host": "node1"}})
    found = {step.id: step for step in remedies.replace_gpus(m, (m.gpus or ())[2])}
    assert [*found] == ["hide-gpu", "move-vm"]
    moved = found["move-vm"]
    assert "RMA" not in f"{moved.manual} {moved.note}"
    assert "support" in (moved.note or "")
    said = [" ".join(argv) for argv in moved.commands]
    assert (said[0], said[-1]) == (first, last) if first else moved.manual and not said


@pytest.mark.parametrize(
    "changes",
    [
        {"platform": {"virtual": "kvm", "product": "Standard PC (Q35 + ICH9, 2009)"}},
        {"platform": {"product": "PowerEdge C4140"}},
    ],
)
def test_hardware_of_ones_own_is_replaced_by_its_vendor(changes: dict[str, Any]) -> None:
    m = machine_like("h100x8-linux", changes)
    found = [step.id for step in remedies.replace_gpus(m, (m.gpus or ())[2])]
    assert found == ["hide-gpu", "replace-gpu"]


def test_a_job_can_move_to_another_node() -> None:
    job = machine_like("h100x8-linux", {"container": {"scheduler": "slurm"}})
    own, restart = remedies.restart(job)
    assert restart.where == "admin"
    assert "sbatch --exclude=" in (own.manual or "")
    boxed = machine_like("h100x8-linux", {"container": {"scheduler": "slurm", "kind": "docker"}})
    assert "$SLURMD_NODENAME" in (remedies.restart(boxed)[0].manual or "")
    slurm: dict[str, Any] = {"container": {"scheduler": "slurm"}}
    named = machine_like("h100x8-linux", slurm | {"env": {"SLURMD_NODENAME": "node7"}})
    assert "--exclude=node7" in (remedies.restart(named)[0].manual or "")


@pytest.mark.parametrize(
    ("scheduler", "drain", "back"),
    [
        ("slurm", "scontrol update NodeName=gpu7 State=DRAIN Reason=faulty-GPU", "State=RESUME"),
        ("lsf", "badmin hclose gpu7", "badmin hopen gpu7"),
        ("pbs", "pbsnodes -o gpu7", "pbsnodes -r gpu7"),
    ],
)
def test_a_node_is_drained_before_it_is_reset_or_restarted(
    scheduler: str, drain: str, back: str
) -> None:
    changes = {"container": {"scheduler": scheduler}, "identity": {"host": "gpu7.cluster.example"}}
    job = machine_like("h100x8-linux", changes)
    _, *ways = remedies.reset_or_restart(job, (job.gpus or ())[3])
    assert [way.id for way in ways] == ["reset-gpu", "reboot"]
    for way, told in zip(
        ways, ("--gpu-reset -i 00000000:04:00.0", "systemctl reboot"), strict=True
    ):
        assert way.commands == (tuple(drain.split()),)
        assert not way.reboot
        assert told in (way.note or "")
        assert back in (way.note or "")


def _in_mig_mode(**changes: Any) -> Remedies:
    env = {"CUDA_VISIBLE_DEVICES": "MIG-5c5ae1a2-3f21-5b1c-9d0e-7a4c1b2d8e11"}
    m = machine_like("h100x8-linux", {"env": env} | changes)
    return remedies.mig_instances(m, [(m.gpus or ())[0]])


def test_a_stale_instance_is_forgotten_in_the_same_step() -> None:
    at_boot, made, left = _in_mig_mode()
    unset = {"CUDA_VISIBLE_DEVICES": None}
    assert made.variables == at_boot.variables == left.variables == unset
    assert "ExecStart=-/usr/bin/nvidia-smi mig -i 0 -cgi 0 -C" in at_boot.edits[0].what
    others = _in_mig_mode(env={"CUDA_VISIBLE_DEVICES": "0"})
    assert [way.id for way in others] == ["mig-at-boot", "mig-instances", "mig-off"]
    assert not any(way.variables for way in others)


def test_on_a_host_of_others_neither_its_boot_nor_a_shell_is_changed() -> None:
    boxed = _in_mig_mode(container={"kind": "docker"})
    assert [way.id for way in boxed] == ["mig-instances", "mig-off"]
    assert not any(way.variables for way in boxed)
    assert "CUDA_VISIBLE_DEVICES" in (boxed[0].note or "")


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("Tesla T4", ["cool-gpu", "lower-power-limit"]),
        ("NVIDIA A100 80GB PCIe", ["cool-gpu", "lower-power-limit"]),
        ("NVIDIA GeForce RTX 4090", ["cool-gpu"]),
        ("Tesla K40c", ["cool-gpu"]),
        ("NVIDIA Unheard-of 9000", ["cool-gpu"]),
    ],
)
def test_a_card_without_a_fan_gets_air_and_no_clean_fans(name: str, steps: list[str]) -> None:
    gpu = {"name": name, "throttle": 0x40, "processes": [{"pid": 18722, "name": "python"}]}
    m = machine_like("rtx4090-linux", {"gpus": {"0": gpu}})
    answer = thermal_throttle.judge(m, knowledge.load())
    assert isinstance(answer, Found)
    assert [way.id for way in answer.remedies] == steps
    cool = answer.remedies[0]
    assert ("no fan of its own" in (cool.manual or "")) is (len(steps) == 2)
    assert ("pid 18722" in (cool.note or "")) is (len(steps) == 2)


RENTED = {"platform": {"virtual": "kvm", "product": "g5.xlarge"}}


@pytest.mark.parametrize(
    ("rule", "gpu", "own"),
    [
        (thermal_throttle, {"throttle": 0x40}, "cool-gpu"),
        (power_brake, {"throttle": 0x80}, "check-power"),
        (gpu_not_started, {"code": 8}, "gpu-on-its-board"),
    ],
)
def test_nobody_opens_a_rented_machine(rule: Any, gpu: dict[str, Any], own: str) -> None:
    def first(changes: dict[str, Any]) -> str:
        m = machine_like("rtx4090-linux", {"gpus": {"0": gpu}} | changes)
        return str(rule.judge(m, knowledge.load()).remedies[0].id)

    assert first(RENTED) == "move-vm"
    assert first({}) == own
