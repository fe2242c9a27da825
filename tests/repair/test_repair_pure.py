"""What a repair decides, as functions of values: steps, places, verdicts, room, use, records."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from scenario_reader import healthy_machine, machine_like

from cudadoctor import knowledge
from cudadoctor.cli.options import Options
from cudadoctor.installers.question import File
from cudadoctor.installers.verify import Verdict
from cudadoctor.model.findings import Edit, PackageChange, Plan, Risk, Step
from cudadoctor.model.machine import Machine
from cudadoctor.pipeline import Judged
from cudadoctor.render.terminal import Layout
from cudadoctor.repair import begin, session
from cudadoctor.repair.begin import chosen, folder_made, place_of, python_made, tasks_of
from cudadoctor.repair.journal import Opinion, Root
from cudadoctor.repair.session import look_words
from cudadoctor.repair.transaction import better, opinion
from cudadoctor.repair.words import LEFT, error_lines, proof, what_remains
from cudadoctor.repair.words import plan as plan_words
from cudadoctor.rules.diagnose import diagnose

KB = knowledge.load()


def step(id: str, group: str | None = None, **changes: Any) -> Step:  # noqa: A002
    """A step that can be taken, but for what is changed."""
    usual: dict[str, Any] = {
        "title": f"Do {id}",
        "where": "here",
        "risk": Risk.ENVIRONMENT,
        "needs_root": False,
        "reboot": False,
        "commands": (("pip", "install", id),),
        "manual": None,
        "variables": {},
        "edits": (),
        "cures": (f"{id}-cause",),
        "tool": "pip",
    }
    return Step(id=id, group=group or id, **{**usual, **changes})


# --- which steps -------------------------------------------------------------------------------


def test_of_each_group_the_first_step_that_can_be_taken_is_chosen() -> None:
    found = chosen(
        Plan(
            steps=(
                step("driver", needs_root=True),
                step("build", "driver"),
                step("other", "driver"),
                step("variable", commands=(), variables={"CUDA_HOME": None}),
            )
        )
    )
    assert [picked.id for picked in found.steps] == ["build"]
    assert [picked.id for picked in found.shell] == ["variable"]
    assert found.left == ()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"needs_root": True}, "root"),
        ({"needs_root": True, "reboot": True}, "root"),
        ({"where": "host", "needs_root": True}, "host"),
        ({"where": "windows"}, "windows"),
        ({"risk": Risk.SYSTEM}, "more"),
        ({"risk": Risk.PROCESS}, "more"),
        ({"commands": (), "manual": "Look."}, "hand"),
        ({"edits": (Edit(file="pyproject.toml", what="x"),)}, "hand"),
        ({"edits": (Edit(file="/etc/x", what="x", mode="write"),), "needs_root": True}, "root"),
        ({"verified": False}, "unresolved"),
    ],
)
def test_what_needs_more_than_the_environment_is_left(changes: dict[str, Any], why: str) -> None:
    found = chosen(Plan(steps=(step("one", **changes),)))
    assert (found.steps, found.shell) == ((), ())
    assert [(left.step.id, left.why) for left in found.left] == [("one", why)]
    assert why in LEFT


def test_where_a_new_environment_is_made_the_old_one_is_left() -> None:
    new = step("python", commands=(("python3.12", "-m", "venv", "/new"),))
    found = chosen(Plan(steps=(step("old"), new)))
    assert [picked.id for picked in found.steps] == ["python"]
    assert [left.step.id for left in found.left] == ["old"]


def test_a_conda_environment_keeps_variables_in_files_and_others_cannot() -> None:
    python = {"kind": "conda", "prefix": "/envs/a"}
    variable = step("v", commands=(), variables={"CUDA_HOME": "/usr/local/cuda"})
    found = chosen(Plan(steps=(variable,)))
    (kept,) = tasks_of(found, machine_like("rtx4090-linux", {"python": python}), "bash")
    assert [path.rpartition("/etc/")[2] for path, _ in kept.files] == [
        "conda/activate.d/cudadoctor-cuda-home.sh",
        "conda/deactivate.d/cudadoctor-cuda-home.sh",
    ]
    (task,) = tasks_of(found, healthy_machine("rtx4090-linux"), "bash")
    assert (task.files, task.variables) == ((), {"CUDA_HOME": "/usr/local/cuda"})


# --- what is told ------------------------------------------------------------------------------


def judged(*steps: Step) -> Judged:
    machine = healthy_machine("rtx4090-linux")
    diagnosis = diagnose(machine_like("rtx4090-linux", {"gpus": {"0": {"code": 15}}}), KB)
    return Judged(machine=machine, diagnosis=diagnosis, plan=Plan(steps=steps))


def shown(result: Judged, place: begin.Place | None = None) -> list[str]:
    return [line.text for line in plan_words(result, chosen(result.plan), place, Layout())]


def test_a_plan_says_what_is_wrong_what_is_done_what_is_not_and_the_way_back() -> None:
    driver = step("driver", commands=(("apt", "install", "x"),), needs_root=True)
    place = begin.Place(prefix="/v", roots=(), python="/v/bin/python")
    lines = shown(judged(step("torch"), driver), place)
    places = [
        lines.index(text)
        for text in (
            "✗ PyTorch cannot use your GPU: GPU 0 (NVIDIA GeForce RTX 4090) is lost: it no longer",
            "cudadoctor will run these steps in /v:",
            "      pip install torch",
            "These steps need root. Run them yourself:",
            "      sudo apt install x",
            "To undo this fix later: cudadoctor fix --undo",
        )
        if text in lines or "4090" not in text
    ]
    assert places == sorted(places)
    assert lines[0].startswith("✗ ")
    told = " ".join(lines)
    assert not any(word in told for word in ("journal", "forget", "aside", "-cause"))


def test_a_variable_of_the_shell_is_told_with_its_line_and_why_it_is_left() -> None:
    result = judged(step("v", commands=(), variables={"LD_PRELOAD": None}, risk=Risk.PROCESS))
    lines = shown(result)
    assert "      unset LD_PRELOAD" in lines
    assert "cudadoctor cannot set your shell's variables, so run this in your shell:" in lines
    assert what_remains(result, chosen(result.plan)).endswith("run: cudadoctor check")


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"needs_root": True, "commands": (("modprobe", "nvidia"),)}, "      sudo modprobe nvidia"),
        ({"where": "host", "commands": (("modprobe", "x"),)}, "      modprobe x"),
        ({"commands": (), "manual": "Take out the riser."}, "    Take out the riser."),
    ],
)
def test_what_is_left_to_the_user_is_told_with_the_line_to_type(
    changes: dict[str, Any], line: str
) -> None:
    assert line in shown(judged(step("one", **changes)))


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("", "", None),
        ("", "a b", "The training step passes 2 of 2 stages (before: it did not run)."),
        ("-a", "a b", "The training step passes 2 of 2 stages (before: 0 of 1)."),
        ("a -b", "a -b", "The training step passes 1 of 2 stages (before: 1 of 2)."),
    ],
)
def test_the_training_step_is_the_proof(before: str, after: str, told: str | None) -> None:
    def opinion_of(stages: str) -> Opinion:
        words = stages.split()
        return Opinion(
            verdict="broken",
            smoke_passed=tuple(word for word in words if word[0] != "-"),
            smoke_failed=tuple(word for word in words if word[0] == "-"),
        )

    assert proof(opinion_of(before), opinion_of(after)) == told


# --- where -------------------------------------------------------------------------------------


def in_kind(kind: str, prefix: str, **more: Any) -> Machine:
    python = {
        "kind": kind,
        "prefix": prefix,
        "executable": f"{prefix}/bin/python",
        "site_packages": f"{prefix}/lib/python3.11/site-packages",
    }
    return machine_like("rtx4090-linux", {"python": python, **more})


def recorded(machine: Machine, path: str, *, project: bool = False) -> bool:
    """Whether a repair records (and an undo brings back) a path."""
    place = place_of(machine, (), project=project)
    assert place is not None
    below = (
        (root, path.removeprefix(f"{root.path}/"))
        for root in place.roots
        if path.startswith(f"{root.path}/")
    )
    return any(root.has(rest.split("/")[0]) for root, rest in below)


def test_of_a_venv_all_is_recorded_that_package_managers_write() -> None:
    machine = in_kind("venv", "/v")
    for path in ("lib/python3.11/site-packages/torch", "bin/torchrun", "share/man", "pyvenv.cfg"):
        assert recorded(machine, f"/v/{path}")
    assert not recorded(machine, "/v/my-data/one")


def test_in_a_folder_that_is_a_project_too_only_what_is_pythons_is_recorded() -> None:
    machine = in_kind("venv", "/v")
    assert recorded(machine, "/v/lib/python3.11/site-packages/torch", project=True)
    assert recorded(machine, "/v/bin/torchrun", project=True)
    for path in ("share/mine", "lib/mine.js", "etc/mine"):
        assert not recorded(machine, f"/v/{path}", project=True)


def test_of_a_conda_base_the_other_environments_are_not_recorded() -> None:
    machine = in_kind("conda-base", "/opt/conda")
    assert recorded(machine, "/opt/conda/conda-meta/history")
    assert recorded(machine, "/opt/conda/x86_64-conda-linux-gnu/bin/ld")
    for path in ("envs/other/lib", "pkgs/torch"):
        assert not recorded(machine, f"/opt/conda/{path}")


def test_pixi_writes_into_its_project_too() -> None:
    machine = in_kind("conda", "/work/p/.pixi/envs/default")
    assert recorded(machine, "/work/p/pixi.toml")
    assert not recorded(machine, "/work/p/train.py")


def test_of_the_systems_python_only_its_library_and_the_scripts_are_recorded() -> None:
    machine = in_kind("system", "/usr/local")
    assert recorded(machine, "/usr/local/lib/python3.11/site-packages/torch")
    assert not recorded(machine, "/usr/local/lib/python3.12/site-packages/torch")
    assert not recorded(machine, "/usr/local/share/man")


@pytest.mark.parametrize(
    ("argv", "folder"),
    [
        (("/usr/bin/python3", "-m", "venv", "/h/.venvs/torch"), "/h/.venvs/torch"),
        (("uv", "venv", "--allow-existing", "--python", "3.12", "/h/t"), "/h/t"),
        (("conda", "create", "-y", "-p", "/h/c", "-c", "conda-forge", "python=3.12"), "/h/c"),
        (("/v/bin/python", "-m", "pip", "install", "torch"), None),
    ],
)
def test_a_step_that_makes_an_environment_is_seen(argv: tuple[str, ...], folder: str) -> None:
    new_step = step("new", commands=(argv,))
    assert folder_made(new_step) == folder


def test_the_new_environments_python_is_the_one_that_its_commands_name() -> None:
    commands = (("uv", "venv", "/h/t"), ("uv", "pip", "install", "--python", "/h/t/bin/python"))
    assert python_made((step("new", commands=commands),), "/h/t") == "/h/t/bin/python"


# --- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "prefix", "words"),
    [
        ("conda-base", "/opt/conda", "conda's base"),
        ("system", "/usr", "belongs to the system"),
        ("system", "/usr/local", "belongs to the system"),
        ("pipx", "/h/.local/pipx/venvs/a", "reinstall that program with pipx"),
        ("embedded", "/opt/blender", "part of another program"),
        ("venv", "/v", None),
        ("conda", "/envs/a", None),
        ("user", "/h/.pyenv/versions/3.11", None),
    ],
)
def test_what_others_share_is_not_touched(kind: str, prefix: str, words: str | None) -> None:
    machine = in_kind(kind, prefix, container={"kind": "none"})
    place = place_of(machine, ())
    assert place is not None
    refusal = begin.shared(machine, place)
    assert (refusal is None) if words is None else (words in (refusal or ""))


def test_in_an_image_usr_local_is_the_environment() -> None:
    machine = in_kind("system", "/usr/local", container={"kind": "docker"})
    place = place_of(machine, ())
    assert place is not None
    assert begin.shared(machine, place) is None


def test_who_runs_in_it_is_named() -> None:
    assert begin.running([]) is None
    sentence = begin.running([f"python t{number}.py ({number})" for number in range(1, 6)]) or ""
    assert sentence.startswith(
        "python t1.py (1), python t2.py (2), python t3.py (3) and 2 more are running in"
    )


MAPS = """\
55d0 r-xp 00000000 fe:00 1 /usr/bin/python3.11
7f00 r-xp 00000000 fe:00 2 /v/lib/python3.11/site-packages/torch/lib/a b.so (deleted)
7f01 rw-p 00000000 00:00 0
7f02 r-xp 00000000 00:00 0 [vdso]
"""


def test_a_process_is_known_by_its_program_or_by_what_it_has_mapped() -> None:
    root = (Root(path="/v", only=("lib", "bin")),)
    mapped = session.parse_maps(MAPS)
    assert mapped[1] == "/v/lib/python3.11/site-packages/torch/lib/a b.so"
    assert session.runs_in(session.Seen(mapped=mapped), "/v", root)
    assert session.runs_in(session.Seen(argv=("/v/bin/python", "a.py")), "/v", root)
    assert session.runs_in(session.Seen(argv=("bin/python",), folder="/v"), "/v", root)
    assert not session.runs_in(session.Seen(argv=("/w/bin/python",), folder="/v"), "/v", root)
    assert not session.runs_in(session.Seen(argv=("vi", "/v/bin/python")), "/v", root)
    assert not session.runs_in(session.Seen(mapped=("/v/data/set.bin",)), "/v", root)


def test_a_process_with_any_name_is_read() -> None:
    text = "12 (a) b (c)) S 1 12 12 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 777 0 0"
    seen = session.parse_stat(text)
    assert seen is not None
    assert (seen.pid, seen.parent, seen.group, seen.started) == (12, 1, 12, 777)
    assert session.parse_stat("gone") is None


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells when a process started")
def test_a_stranger_under_the_number_of_a_process_that_is_gone_is_left_alone() -> None:
    with subprocess.Popen(("sleep", "60"), start_new_session=True) as stranger:
        seen = session.process(stranger.pid)
        assert seen is not None
        assert session.end_group(stranger.pid, seen.started - 1)
        assert session.end_group(stranger.pid, seen.started + 1)
        assert not session.left_behind(stranger.pid, None)
        assert stranger.poll() is None
        assert session.end_group(stranger.pid, seen.started)
        assert stranger.wait() == -signal.SIGKILL


def test_children_of_the_doctor_do_not_stand_in_its_way() -> None:
    everyone = tuple(
        session.Process(pid=pid, parent=parent, group=0, session=0, started=0, state="S")
        for pid, parent in ((1, 0), (10, 1), (11, 10), (12, 11), (20, 1))
    )
    assert session.family(10, everyone) == {10, 11, 12}


# --- room --------------------------------------------------------------------------------------

CHANGE = PackageChange(install=("torch==2.14.1",), remove=("numpy",), download_bytes=900)
FILES = tuple(
    File(url="u", name=name, version="1", size_bytes=size)
    for name, size in (("torch", 1000), ("numpy", 10), ("nvidia_nccl", 500))
)


def test_only_what_is_not_there_yet_is_downloaded() -> None:
    found = Verdict(resolves=True, files=FILES)
    present = frozenset({"nvidia-nccl==1", "numpy==1"})
    assert begin.download_of(found, CHANGE, present) == 1010  # numpy is removed first


def test_without_sizes_the_plans_own_number_is_the_least() -> None:
    assert begin.download_of(Verdict(resolves=None), CHANGE, frozenset()) == 900


def test_many_wheels_unpack_to_less_than_few() -> None:
    assert begin.unpacked(10**10) == 23 * 10**9
    assert begin.unpacked(10**8) == 45 * 10**7


def test_each_file_system_needs_room_for_what_goes_there() -> None:
    download = 3_000_000_000
    needs = {need.what: need.bytes for need in begin.needs(download, "/v", "/tmp", None, 0)}
    installed = begin.unpacked(3_000_000_000) + begin.SPARE_BYTES
    assert needs == {"packages": installed, "downloads": 3_000_000_000}
    more = begin.needs(download, "/v", "/tmp", "/h/.cache/pip", 7)
    assert {need.what for need in more} - needs.keys() == {
        "copy",
        "cache",
    }


def test_a_disk_that_is_too_small_is_told_with_both_numbers() -> None:
    need = begin.Need(folder="/", bytes=10**18, what="packages")
    sentence = begin.lacking((need,))
    assert sentence is not None
    assert sentence.startswith("1000000000.0 GB is needed in / for the packages, but only ")
    assert begin.lacking((begin.Need(folder="/no/such/folder", bytes=0, what="cache"),)) is None


# --- better or not -----------------------------------------------------------------------------


def seen(verdict: str, *causes: str, failed: str = "", passed: str = "") -> Opinion:
    return Opinion(
        verdict=verdict,
        grave=causes,
        told=causes,
        smoke_failed=tuple(failed.split()),
        smoke_passed=tuple(passed.split()),
    )


@pytest.mark.parametrize(
    ("before", "after", "good"),
    [
        (seen("broken", "a"), seen("healthy"), True),
        (seen("broken", "a"), seen("warnings"), True),
        (seen("broken", "a", "w"), seen("warnings", "w"), True),
        (seen("broken", "a", "driver"), seen("broken", "driver"), True),
        (seen("broken", "a"), seen("undecided"), True),
        (seen("broken", "a"), seen("warnings", "a"), True),
        (seen("undecided", "a"), seen("undecided"), True),
        (seen("undecided", "a"), seen("warnings", "a"), False),
        (seen("undecided", "a"), seen("healthy"), True),
        (seen("undecided"), seen("healthy"), True),
        (seen("broken", "a"), seen("broken", "a"), False),
        (seen("broken", "a"), seen("broken", "b"), False),
        (seen("broken", "a"), seen("warnings", "b"), False),
        (seen("warnings", "a"), seen("warnings", "a"), False),
        (seen("warnings", "a"), seen("broken", "a"), False),
        (seen("healthy"), seen("healthy"), False),
        (seen("broken", "a", passed="import"), seen("healthy", passed="import"), True),
        (seen("broken", "a", passed="import"), seen("healthy", failed="amp"), True),
        (seen("broken", "a", passed="import"), seen("healthy", failed="import"), False),
        (seen("broken", "a", failed="import"), seen("warnings", failed="import"), True),
    ],
)
def test_a_repair_is_kept_only_where_it_is_better(
    before: Opinion, after: Opinion, good: bool
) -> None:
    assert better(before, after, ("a",))[0] is good


def test_what_can_no_longer_be_told_is_not_cured() -> None:
    after = msgspec.structs.replace(seen("undecided"), undecided=("a",))
    assert better(seen("broken", "a"), after, ("a",)) == (False, "a is still reported")


def test_what_a_cured_cause_had_hidden_is_nothing_new() -> None:
    before = Opinion(verdict="broken", grave=("a", "b"), told=("a",))
    assert better(before, seen("broken", "b"), ("a",))[0]


def test_a_check_in_short_is_read_from_its_document() -> None:
    finding = {"cause": "a", "severity": "error", "because_of": []}
    document = {
        "verdict": "broken",
        "primary": "a",
        "findings": [
            finding,
            {**finding, "cause": "b", "because_of": ["a"]},
            {**finding, "cause": "i", "severity": "info"},
        ],
        "undecided": [{"cause": "u"}],
        "smoke": {
            "stages": [
                {"name": "import", "status": "passed"},
                {"name": "amp", "status": "skipped"},
                {"name": "train", "status": "timed-out"},
            ]
        },
    }
    found = opinion(document)
    assert (found.grave, found.told, found.undecided) == (("a", "b"), ("a",), ("u",))
    assert (found.smoke_passed, found.smoke_failed) == (("import",), ("train",))


@pytest.mark.parametrize("smoke", [{}, {"smoke": None}])
def test_a_check_without_a_training_step_is_read_too(smoke: dict[str, Any]) -> None:
    found = opinion(
        {"verdict": "healthy", "primary": None, "findings": [], "undecided": [], **smoke}
    )
    assert (found.verdict, found.smoke_passed, found.smoke_failed) == ("healthy", (), ())


def test_the_second_look_is_like_the_first() -> None:
    options = Options(fast=True, ignore=("a", "b"), device=None, timeout=5.0)
    assert look_words(options, "/v/bin/python")[1:] == [
        *("--full", "--python", "/v/bin/python", "--fast", "--timeout", "5.0"),
        *("--ignore", "a", "--ignore", "b"),
    ]


def test_of_a_tools_last_lines_the_errors_are_told() -> None:
    tail = ("Collecting torch", "WARNING: x", "ERROR: no matching", "ERROR: none found", "done")
    assert error_lines(tail) == tail[2:]
    assert error_lines(("a", "b")) == ("a", "b")


def test_what_pip_installs_beside_debians_python_is_recorded_too() -> None:
    for library in ("/usr/local/lib/python3.10", "/usr/local/lib64/python3.10"):
        python = {"kind": "system", "prefix": "/usr", "executable": "/usr/bin/python"}
        site = {"site_packages": f"{library}/dist-packages"}
        place = place_of(machine_like("rtx4090-linux", {"python": {**python, **site}}), ())
        assert place is not None
        assert [root.path for root in place.roots] == [library, "/usr/bin", "/usr/local/bin"]
