"""A cure works when it is pasted, says how long it lasts, and takes nothing away that was there."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import asdict, replace
from scenario_reader import HERE, machine_like, merged, read_scenario

from cudadoctor import knowledge, pipeline
from cudadoctor.model import factfile, trust
from cudadoctor.model.findings import Remedy, Step, Wishes
from cudadoctor.model.machine import Machine
from cudadoctor.model.trust import typed
from cudadoctor.plan import remedies
from cudadoctor.render.shells import step_lines
from cudadoctor.render.summary import cost_of

KB = knowledge.load()
OLD_DRIVER = "driver-too-old--cu130-on-branch-575"


def scenario(name: str, **changes: Any) -> Machine:
    plain = json.loads(factfile.dumps(read_scenario(HERE / "scenarios" / f"{name}.toml").machine))
    return factfile.from_plain(merged(plain, changes))


def of_remedy(remedy: Remedy) -> Step:
    """A remedy as the step of a plan."""
    return Step(**asdict(remedy) | {"commands": tuple(typed(*argv) for argv in remedy.commands)})


def planned(machine: Machine) -> tuple[Step, ...]:
    return pipeline.judge(machine).plan.steps


def of(machine: Machine, id: str) -> Step:  # noqa: A002
    return next(step for step in planned(machine) if step.id == id)


# --- containers that start from an image again ---------------------------------------------------


@pytest.mark.parametrize("kind", ["docker", "podman", "containerd", "kubernetes"])
def test_packages_of_a_container_go_into_its_image_too(kind: str) -> None:
    machine = scenario(OLD_DRIVER, container={"kind": kind})
    first, image = of(machine, "install-torch"), of(machine, "install-torch-in-image")
    assert "lost with the container" in (first.note or "")
    assert image.group == first.group
    assert image.where == "container"
    lines = image.edits[0].what.replace(" \\\n    ", " ").split("\n")
    assert lines == [f"RUN {' '.join(argv)}" for argv in first.commands]


@pytest.mark.parametrize("kind", [None, "lxc", "apptainer"])
def test_what_a_container_keeps_needs_no_image(kind: str | None) -> None:
    machine = scenario(OLD_DRIVER, container={"kind": kind})
    assert not any(step.id.endswith("-in-image") for step in planned(machine))
    assert "lost with the container" not in (of(machine, "install-torch").note or "")


def test_a_variable_of_a_container_is_one_of_its_image() -> None:
    name = "cuda-compat-conflict--older-than-the-driver"
    path = {"LD_LIBRARY_PATH": "/usr/local/cuda/compat:/usr/local/cuda/lib64"}
    machine = scenario(name, container={"kind": "podman"}, env=path)
    image = of(machine, "trim-ld-library-path-in-image")
    assert image.edits[0].what == "ENV LD_LIBRARY_PATH=/usr/local/cuda/lib64"


def test_no_image_knows_the_gpus_of_a_host() -> None:
    taken = {"gpus": {"0": {"memory_used_bytes": 85_500_000_000}}, "container": {"kind": "docker"}}
    steps = planned(machine_like("h100x8-linux", taken))
    assert not any(step.id.endswith("-in-image") for step in steps)


# --- lists of folders ----------------------------------------------------------------------------


def test_a_list_of_folders_is_extended() -> None:
    env = {"LD_LIBRARY_PATH": "/usr/local/nvidia/lib64"}
    old = dict.fromkeys(("kernel", "reported", "library"), "535.230.02")
    changes = {"container": {"kind": "kubernetes"}, "driver": old, "torch": {"cuda": "13.0"}}
    machine = machine_like("a100-docker", changes | {"env": env})
    (step,) = remedies.forward_compat(machine, KB, machine.torch.cuda)
    wanted = "LD_LIBRARY_PATH=/usr/local/cuda-13.0/compat:/usr/local/nvidia/lib64"
    assert wanted in (step.manual or "")
    bare = machine_like("a100-docker", changes)
    (step,) = remedies.forward_compat(bare, KB, bare.torch.cuda)
    assert "LD_LIBRARY_PATH=/usr/local/cuda-13.0/compat in the image" in (step.manual or "")


# --- another driver has the GPU ------------------------------------------------------------------

HELD = "driver-not-loaded--not-built-and-nouveau-has-the-gpu"


def test_a_gpu_that_nouveau_has_needs_a_reboot() -> None:
    machine = scenario(HELD)
    lines = step_lines(of(machine, "load-driver"), machine)
    assert lines[-1] == "sudo reboot"
    assert not any("modprobe" in line for line in lines)
    (found,) = pipeline.judge(machine).diagnosis.findings
    assert any("nouveau" in row.value for row in found.evidence)


def test_a_free_gpu_is_taken_without_a_reboot() -> None:
    machine = scenario(HELD, pci={"0": {"bound": ""}})
    lines = step_lines(of(machine, "load-driver"), machine)
    assert lines[-2:] == ["sudo modprobe nvidia", "sudo modprobe nvidia_uvm"]


def test_on_a_host_of_a_container_modprobe_needs_the_gpu_too() -> None:
    held = machine_like("a100-docker", {"pci": {"0": {"bound": "nouveau"}}})
    (step,) = remedies.load_driver(held, "modprobe")
    assert not step.commands
    assert "nouveau holds the GPU" in (step.manual or "")
    (step,) = remedies.load_driver(machine_like("a100-docker", {}), "modprobe")
    assert step.commands == (("modprobe", "nvidia"),)


# --- memory that no listed process has -----------------------------------------------------------


def test_a_busy_gpu_is_no_leftover_of_a_crash() -> None:
    machine = scenario("out-of-memory--of-another-container")
    judged = pipeline.judge(machine)
    (found,) = judged.diagnosis.findings
    assert found.title == "Another container or the host is using the memory of GPU 0"
    assert any(row.value == "97" or "97" in row.value for row in found.evidence)
    step = of(machine, "free-memory")
    assert "lxc/ID" in (step.note or "")
    assert "crash" not in (step.note or "")
    assert step_lines(step, machine)[0] == "nvidia-smi"


def test_an_idle_gpu_may_be() -> None:
    machine = scenario("out-of-memory--left-by-a-crash-in-a-container")
    (found,) = pipeline.judge(machine).diagnosis.findings
    assert "no process is listed" in found.title
    note = of(machine, "free-memory").note or ""
    assert "a crashed process probably left" in note
    assert "ends everything that runs on the machine and all of its containers" in note


def test_only_the_shell_of_a_proxmox_host_is_roots() -> None:
    kernel = {"kernel": "6.8.0-90-generic"}
    other = scenario("out-of-memory--of-another-container", platform=kernel)
    assert step_lines(of(other, "free-memory"), other)[0] == "sudo nvidia-smi"


# --- memory errors -------------------------------------------------------------------------------


def test_a_contained_error_makes_no_results_wrong() -> None:
    machine = scenario("gpu-ecc--contained-and-waits-for-a-reset")
    (found,) = pipeline.judge(machine).diagnosis.findings
    assert found.title == "A row remapping is pending on GPU 3, which needs a reset"
    assert "Results can be wrong" not in found.why
    assert "it stopped only the program" in found.why
    assert "`nvidia-smi -q -i 3 -d ROW_REMAPPER`" in (of(machine, "reset-gpu").note or "")


def test_an_uncontained_one_does() -> None:
    (found,) = pipeline.judge(
        scenario("gpu-ecc--uncontained-beside-a-contained-one")
    ).diagnosis.findings
    assert "uncorrectable memory errors" in found.title
    assert found.why.startswith("Results can be wrong")


# --- MIG instances -------------------------------------------------------------------------------


def test_the_instances_of_each_boot_come_first() -> None:
    machine = machine_like("h100x8-linux", {})
    gpus = list((machine.gpus or ())[:2])
    lasting, now, off = remedies.mig_instances(machine, gpus)
    assert (lasting.id, now.id, off.id) == ("mig-at-boot", "mig-instances", "mig-off")
    assert now.title.endswith("until the next reboot")
    assert "RemainAfterExit=yes" in lasting.edits[0].what
    assert "can use only one MIG instance" in (lasting.note or "")
    one = remedies.mig_instances(machine, gpus[:1])[0]
    assert "can use only one" not in (one.note or "")


def test_device_files_that_a_boot_removes_are_there_after_the_next_one() -> None:
    nodes = {"nodes": [{"path": "/dev/nvidiactl", "errno": 0}], "modules": ["nvidia"]}
    machine = machine_like("rtx4090-linux", {"driver": nodes})
    (step,) = remedies.reload_uvm(machine)
    assert [edit.file for edit in step.edits] == ["/etc/modules-load.d/nvidia-uvm.conf"]
    assert step_lines(of_remedy(step), machine)[-1] == "sudo nvidia-modprobe -u -c 0"
    job = machine_like("rtx4090-linux", {"driver": nodes, "container": {"scheduler": "slurm"}})
    (step,) = remedies.reload_uvm(job)
    assert not step.edits


# --- jobs, channels, daemons ---------------------------------------------------------------------


def test_a_variable_of_a_job_belongs_into_its_script() -> None:
    name = "container-no-gpu--nodes-without-libraries"
    job = {"kind": "apptainer", "scheduler": "slurm"}
    machine = scenario(name, container=job, env={"SLURM_JOB_GPUS": "0"})
    step = next(step for step in planned(machine) if step.variables)
    assert "For a batch job, put this command in the job script." in (step.note or "")
    alone = scenario(name, container={"kind": "apptainer", "scheduler": None})
    step = next(step for step in planned(alone) if step.variables)
    assert "job script" not in (step.note or "")


def test_several_variables_are_searched_for_together() -> None:
    machine = machine_like("rtx4090-linux", {})
    (step,) = remedies.unset_variables(machine, "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
    assert "-e NCCL_SOCKET_IFNAME -e GLOO_SOCKET_IFNAME ~/.bashrc" in (step.note or "")
    (one,) = remedies.unset_variables(machine, "NCCL_SOCKET_IFNAME")
    assert "grep -n NCCL_SOCKET_IFNAME" in (one.note or "")


def test_a_build_of_a_channel_has_no_name_of_a_wheel() -> None:
    name = "torch-cpu-build--gpu-on-the-bus"
    pip = pipeline.judge(scenario(name)).plan.build
    conda = pipeline.judge(scenario(name), Wishes(manager="conda")).plan.build
    assert pip
    assert conda
    assert f"its {pip.variant} build" in " ".join(pip.why)
    assert f"its {conda.variant} build" not in " ".join(conda.why)
    assert "its CUDA 1" in " ".join(conda.why)


def test_a_daemon_outlives_its_shell() -> None:
    machine = machine_like("rtx4090-linux", {"env": {"CUDA_MPS_PIPE_DIRECTORY": "/home/a/pipe"}})
    (step,) = remedies.start_mps(machine)
    assert cost_of(of_remedy(step)) == "until the next reboot"
    other = replace(step, commands=(("ulimit", "-n", "65536"),))
    assert cost_of(of_remedy(other)) == "this shell only"


def test_what_came_with_the_driver_leaves_wsl_with_it() -> None:
    own = "580.95.05-0ubuntu1"
    packages = [("nvidia-driver-580", own), ("libnvidia-ptxjitcompiler1", own)]
    packages += [("nvidia-container-toolkit", "1.17.8-1")]
    found = [{"name": name, "version": version, "manager": "dpkg"} for name, version in packages]
    machine = scenario("wsl-setup--linux-driver-inside", driver={"packages": found})
    (step,) = planned(machine)
    taken_out = {word for argv in step.commands for word in argv}
    assert {"nvidia-driver-580", "libnvidia-ptxjitcompiler1"} < taken_out
    assert "nvidia-container-toolkit" not in taken_out


def test_the_gpu_that_the_build_serves_can_be_used_alone() -> None:
    machine = scenario("torch-arch-unsupported-old--old-card-beside-a-new-one")
    uuid = (machine.gpus or ())[0].uuid
    assert of(machine, "hide-gpu").variables == {"CUDA_VISIBLE_DEVICES": uuid}
    assert of(machine, "hide-gpu").group == "install-torch"


def test_a_pin_keeps_the_older_mkl() -> None:
    machine = scenario("torch-install-corrupt--mkl-is-too-new")
    assert "/conda-meta/pinned" in (of(machine, "older-mkl").note or "")


# --- what no rule knows --------------------------------------------------------------------------


def test_the_package_that_is_missing_is_named() -> None:
    name = "torch-extension-abi--not-what-the-package-itself-lacks"
    (found,) = pipeline.judge(scenario(name)).diagnosis.findings
    assert found.title == "flash-attn cannot be imported: No module named 'einops'"
    (step,) = found.remedies
    assert step.packages is not None
    assert step.packages.install == ("einops",)
    # Words of a stranger name no package.
    foreign = pipeline.judge(trust.foreign(scenario(name)))
    assert not any(argv for step in foreign.plan.steps for argv in step.commands)
    other = {"flash_attn": "ModuleNotFoundError: No module named 'strange'"}
    machine = scenario(name, torch={"imported": {"companion_errors": other}})
    (found,) = pipeline.judge(machine).diagnosis.findings
    assert found.title == "flash-attn cannot be imported: No module named 'strange'"
    assert not found.remedies


def test_an_unknown_error_is_quoted() -> None:
    name = "torch-extension-abi--an-error-that-nobody-knows"
    (found,) = pipeline.judge(scenario(name)).diagnosis.findings
    assert found.title.endswith(
        "cannot be imported: RuntimeError: the registry of operators is closed"
    )


def test_the_log_that_was_read_is_not_asked_for() -> None:
    judged = pipeline.judge(scenario("unknown--with-the-drivers-own-words"))
    (found,) = judged.diagnosis.findings
    assert {"driver.xids", "driver.log"} <= {row.fact for row in found.evidence}
    (step,) = judged.plan.steps
    assert "dmesg" not in (step.manual or "")
    (step,) = pipeline.judge(scenario("unknown--cuinit-304")).plan.steps
    assert "dmesg" in (step.manual or "")
