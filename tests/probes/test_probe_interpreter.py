"""The examined interpreter, its torch and its packages: real environments, planted contents."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import interpreter_fixtures as envs
import pytest
from packaging.version import Version

from cudadoctor.host.local import LocalHost
from cudadoctor.model.machine import Manager, ProjectFile
from cudadoctor.probes.interpreter import no_python, read_target
from cudadoctor.probes.target import Chosen


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working folder and home, and nothing of the caller's Python settings."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_", "XDG_", "PYTHON", "CONDA_", "MAMBA_")):
            monkeypatch.delenv(name)


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    return envs.make_venv(tmp_path / "venv")


def test_an_empty_venv_has_no_torch_and_no_pip(venv: Path) -> None:
    facts = envs.look(venv).facts
    assert facts["torch.installed"] is False
    assert facts["torch.copies"] == ()
    assert facts["packages"] == ()
    assert facts["python.pip"] is False
    assert facts["python.kind"] == "venv"
    assert facts["python.executable"] == f"{venv}/bin/python"
    assert facts["python.prefix"] == str(venv)
    assert facts["python.site_packages"] == str(envs.site(venv))
    assert facts["python.version"] == Version(".".join(map(str, sys.version_info[:3])))
    assert facts["python.externally_managed"] is False
    assert facts["python.user_site"] == ""
    assert facts["limits.env_free_bytes"] > 0


def test_a_cuda_build_is_read_from_its_files(venv: Path) -> None:
    envs.plant_torch(envs.site(venv), "2.6.0", "12.4", "nvidia-cudnn-cu12==9.1.0.70", "jinja2")
    version_py = envs.site(venv) / "torch" / "version.py"
    version_py.write_text(version_py.read_text().replace("'2.6.0'", "'2.6.0+cu124'"))
    looked = envs.look(venv)
    assert looked.facts["torch.version"] == Version("2.6.0+cu124")
    assert looked.facts["torch.text"] == "2.6.0+cu124"
    assert looked.facts["torch.build"] == "cuda"
    assert looked.facts["torch.cuda"] == Version("12.4")
    assert looked.facts["torch.requires"] == ("nvidia-cudnn-cu12==9.1.0.70",)
    assert looked.facts["torch.installer"] == "pip"
    assert looked.facts["torch.path"] == str(version_py.parent)
    assert looked.origins["torch.cuda"] == str(version_py)
    assert envs.copies(looked) == [("distribution", "2.6.0+cu124")]
    assert [gap.fact for gap in looked.gaps] == ["torch.archs"]


@pytest.mark.parametrize(
    ("version", "cuda", "hip", "build"),
    [
        ("2.13.0+cpu", None, None, "cpu"),
        ("2.6.0+rocm6.2", None, "6.2.41133", "rocm"),
        ("2.6.0+xpu", None, None, "xpu"),
        ("2.6.0", "12.4", None, "cuda"),
    ],
)
def test_the_device_of_a_build_is_told_by_version_py(
    venv: Path, version: str, cuda: str | None, hip: str | None, build: str
) -> None:
    envs.plant_torch(envs.site(venv), version, cuda, hip=hip)
    facts = envs.look(venv).facts
    assert facts["torch.build"] == build
    assert facts["torch.hip"] == (hip or "")
    assert ("torch.cuda" in facts) is (build == "cuda")


def test_a_broken_version_py_leaves_the_version_of_the_metadata(venv: Path) -> None:
    folder = envs.plant_torch(envs.site(venv), "2.6.0")
    (folder / "version.py").write_bytes(b"\xff\x00 garbage")
    looked = envs.look(venv)
    assert looked.facts["torch.text"] == "2.6.0"
    assert "torch.build" not in looked.facts
    assert "torch.build" in {gap.fact for gap in looked.gaps}


def test_metadata_of_a_torch_whose_files_are_gone_is_a_damaged_torch(venv: Path) -> None:
    dist = envs.plant(envs.site(venv), "torch", "2.6.0")
    facts = envs.look(venv).facts
    assert facts["torch.installed"] is True
    assert facts["torch.missing_files"] == ("torch/__init__.py",)
    (dist / "RECORD").write_text("torch/version.py,sha256=x,10\ntorch/lib/libc10.so,sha256=x,5\n")
    facts = envs.look(venv).facts
    assert facts["torch.missing_files"] == ("torch/version.py", "torch/lib/libc10.so")


def test_empty_and_shortened_files_of_the_record_are_told(venv: Path) -> None:
    folder = envs.plant_torch(envs.site(venv), "2.6.0")
    (folder / "lib" / "libc10.so").write_bytes(b"")
    (folder / "lib" / "libtorch.so").write_bytes(b"x" * 9)
    (folder / "__init__.py").write_text("")
    (folder / "cuda").mkdir()
    (folder / "cuda" / "__init__.py").write_text("")
    record = [
        "torch/__init__.py,sha256=a,4000",
        "torch/cuda/__init__.py,sha256=a,0",
        "torch/lib/libc10.so,sha256=a,1600",
        "torch/lib/libtorch.so,sha256=a,10",
        "torch/lib/libtorch_cpu.so,sha256=a,10",
        "torch/nn/modules/deep/__init__.py,sha256=a,10",
        "../../../bin/torchrun,sha256=a,10",
    ]
    (envs.site(venv) / "torch-2.6.0.dist-info" / "RECORD").write_text("\n".join(record))
    facts = envs.look(venv).facts
    assert facts["torch.empty_files"] == ("torch/__init__.py", "torch/lib/libc10.so")
    assert facts["torch.missing_files"] == ("torch/lib/libtorch_cpu.so",)
    assert facts["torch.short_files"] == ("torch/lib/libtorch.so",)


def test_what_a_killed_pip_left_is_no_torch(venv: Path) -> None:
    site = envs.site(venv)
    for name in ("~orch", "~orch-2.5.0.dist-info", "~umpy", "~-rch"):
        (site / name).mkdir()
    facts = envs.look(venv).facts
    assert facts["torch.installed"] is False
    assert facts["torch.leftovers"] == ("~-rch", "~orch", "~orch-2.5.0.dist-info")


def test_a_folder_named_torch_is_not_an_installed_torch(venv: Path) -> None:
    (Path.cwd() / "torch").mkdir()
    (envs.site(venv) / "torch" / "share").mkdir(parents=True)
    facts = envs.look(venv).facts
    assert facts["torch.installed"] is False
    assert facts["torch.copies"] == ()


@pytest.mark.parametrize("module", [True, False])
def test_a_local_file_or_package_named_torch_shadows_the_installed_one(
    venv: Path, module: bool
) -> None:
    envs.plant_torch(envs.site(venv))
    if module:
        Path("torch.py").write_text("")
    else:
        Path("torch").mkdir()
        Path("torch/__init__.py").write_text("")
    looked = envs.look(venv)
    assert envs.copies(looked) == [("local", None), ("distribution", "2.6.0+cu124")]
    assert looked.facts["torch.build"] == "cuda"
    assert looked.facts["torch.path"] == str(envs.site(venv) / "torch")


def test_a_safe_path_takes_the_working_folder_out(
    venv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("torch.py").write_text("")
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    assert envs.copies(envs.look(venv)) == []


def test_a_torch_on_pythonpath_comes_before_the_installed_one(
    venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    envs.plant_torch(envs.site(venv), "2.6.0")
    envs.plant_files(tmp_path / "other", "2.1.0", "11.8")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}/nowhere{os.pathsep}{tmp_path}/other")
    looked = envs.look(venv)
    assert envs.copies(looked) == [("folder", "2.1.0"), ("distribution", "2.6.0")]
    assert looked.facts["torch.cuda"] == Version("11.8")
    assert str(tmp_path / "other") in looked.facts["python.path"]


def test_two_metadata_of_torch_in_one_folder_are_two_copies(venv: Path) -> None:
    envs.plant_torch(envs.site(venv), "2.10.0")
    envs.plant(envs.site(venv), "torch", "2.9.0", "triton==3.5.0")
    looked = envs.look(venv)
    assert sorted(envs.copies(looked)) == [("distribution", "2.10.0"), ("distribution", "2.9.0")]
    assert looked.facts["torch.requires"] == ()


def test_a_conda_record_beside_pips_torch_is_a_second_copy(venv: Path) -> None:
    envs.plant_torch(envs.site(venv), "2.6.0")
    (venv / "conda-meta").mkdir()
    (venv / "conda-meta" / "pytorch-2.5.1-cpu_generic_py311_0.json").write_text("{}")
    looked = envs.look(venv)
    assert envs.copies(looked) == [("distribution", "2.6.0"), ("conda", "2.5.1")]
    pytorch = envs.machine(looked).package("pytorch")
    assert pytorch is not None
    assert pytorch.installer == "conda"
    assert "cpu_generic" in str(pytorch.location)


def test_a_torch_of_conda_is_one_copy(venv: Path) -> None:
    envs.plant_torch(envs.site(venv), "2.5.1", installer="conda")
    (venv / "conda-meta").mkdir()
    (venv / "conda-meta" / "pytorch-2.5.1-cuda126_generic_py311_0.json").write_text("{}")
    assert envs.copies(envs.look(venv)) == [("conda", "2.5.1")]


def test_the_packages_are_those_that_matter(venv: Path) -> None:
    site = envs.site(venv)
    envs.plant(site, "requests", "2.0")
    envs.plant(site, "my-model", "1.0", "torch (>=2)", "numpy; extra == 'a'", "requests")
    envs.plant(site, "nvidia-cublas-cu12", "12.4.5.8", installer="uv")
    envs.plant(site, "pandas", "2.2", "numpy")
    envs.plant(site, "numpy", "2.1.0", installer=None)
    m = envs.machine(envs.look(venv))
    assert {package.name for package in m.packages or ()} == {
        "my-model",
        "nvidia-cublas-cu12",
        "numpy",
    }
    model = m.package("my-model")
    assert model is not None
    assert model.requires == ("torch (>=2)", "numpy; extra == 'a'")
    cublas, numpy = m.package("nvidia-cublas-cu12"), m.package("numpy")
    assert cublas is not None
    assert cublas.installer == "uv"
    assert numpy is not None
    assert numpy.installer is None


def test_broken_metadata_ends_nothing(venv: Path) -> None:
    site = envs.site(venv)
    (site / "torch-2.6.0.dist-info").mkdir()
    (site / "torchvision-0.21.0.dist-info").mkdir()
    (site / "torchvision-0.21.0.dist-info" / "METADATA").write_bytes(b"\xff\xfe\x00")
    (site / "triton-3.2.0-py3.11.egg-info").write_text("Name: triton\nVersion: 3.2.0\n")
    (site / "xformers.egg-info").mkdir()
    (site / "xformers.egg-info" / "PKG-INFO").write_text("Name: xformers\nVersion: 0.0.29\n")
    (site / "xformers.egg-info" / "requires.txt").write_text("torch==2.6.0\n[dev]\nnumpy\n")
    m = envs.machine(envs.look(venv))
    assert {package.name: package.version for package in m.packages or ()} == {
        "torch": "2.6.0",
        "torchvision": "0.21.0",
        "triton": "3.2.0",
        "xformers": "0.0.29",
    }
    xformers = m.package("xformers")
    assert xformers is not None
    assert xformers.requires == ("torch==2.6.0",)


def test_companions_tell_what_they_were_built_for(venv: Path) -> None:
    site = envs.site(venv)
    envs.plant(site, "torchvision", "0.21.0", "torch==2.6.0")
    (site / "torchvision").mkdir()
    (site / "torchvision" / "version.py").write_text("__version__ = '0.21.0+cu124'\n")
    envs.plant(site, "xformers", "0.0.30")
    (site / "xformers").mkdir()
    library = '{"version": {"cuda": 1208, "hip": null, "torch": "2.7.0+cu128"}}'
    (site / "xformers" / "cpp_lib.json").write_text(library)
    envs.plant(site, "torch-scatter", "2.1.2+pt24cu121")
    envs.plant(site, "flash-attn", "2.7.4.post1+cu12torch2.6cxx11abiFALSE")
    m = envs.machine(envs.look(venv))
    built_for = {
        package.name: (str(package.cuda), str(package.torch)) for package in m.packages or ()
    }
    assert built_for == {
        "torchvision": ("12.4", "None"),
        "xformers": ("12.8", "2.7.0+cu128"),
        "torch-scatter": ("12.1", "2.4"),
        "flash-attn": ("12", "2.6"),
    }


def test_the_user_site_counts_where_the_interpreter_would_use_it(
    venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUSERBASE", str(tmp_path / "base"))
    version = "python{}.{}".format(*sys.version_info[:2])
    user = tmp_path / "base" / "lib" / version / "site-packages"
    envs.plant_torch(user, "2.1.0")
    assert envs.copies(envs.look(venv)) == []
    shared = envs.make_venv(tmp_path / "shared", sys.executable, "--system-site-packages")
    envs.plant_torch(envs.site(shared), "2.6.0")
    looked = envs.look(shared)
    assert looked.facts["python.user_site"] == str(user)
    assert envs.copies(looked) == [("distribution", "2.6.0"), ("distribution", "2.1.0")]
    monkeypatch.setenv("PYTHONNOUSERSITE", "1")
    assert envs.look(shared).facts["python.user_site"] == ""


def test_a_pth_file_adds_its_folders(venv: Path, tmp_path: Path) -> None:
    envs.plant_torch(tmp_path / "checkout", "2.7.0a0")
    (envs.site(venv) / "dev.pth").write_text(f"# mine\n{tmp_path}/checkout\n")
    assert envs.copies(envs.look(venv)) == [("distribution", "2.7.0a0")]


def test_the_kind_of_environment_is_told_by_its_files(venv: Path, tmp_path: Path) -> None:
    cfg = venv / "pyvenv.cfg"
    cfg.write_text(cfg.read_text() + "uv = 0.13.8\n")
    assert envs.look(venv).facts["python.kind"] == "uv"
    pipx = envs.make_venv(tmp_path / "pipx" / "venvs" / "tool")
    assert envs.look(pipx).facts["python.kind"] == "pipx"
    project = envs.make_venv(tmp_path / "project" / ".venv")
    (tmp_path / "project" / "poetry.lock").write_text("")
    assert envs.look(project).facts["python.kind"] == "poetry"


def test_files_of_the_project_say_which_torch_they_require(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    venv = envs.make_venv(folder / ".venv")
    assert envs.look(venv).facts["python.files"] == ()
    (folder / "requirements.txt").write_text(
        "# torch==1.0\n--extra-index-url https://example.org/torch\nrich\n"
        "torch >=2.6,<2.9  # as trained\nxformers==0.0.31; python_version < '4'\n"
        "torchvision==0.21.0 \\\n    --hash=sha256:00\ntorchaudio==2.6.0 --hash=sha256:00\n"
    )
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "torch"\ndependencies = ["torch~=2.7.0", "rich"]\n'
        '[project.optional-dependencies]\ncpu = ["torch==2.1"]\n'
        '[tool.poetry.dependencies]\npython = "^3.10"\ntorchvision = "^0.22.1"\n'
        'torchaudio = {version = "2.7.*", optional = true}\nvllm = "*"\ndeepspeed = "~0.17"\n'
    )
    assert envs.look(venv).facts["python.files"] == (
        ProjectFile(
            name="pyproject.toml",
            requires=(
                *("torch~=2.7.0", "torchvision>=0.22.1,<0.23", "torchaudio==2.7.*", "vllm"),
                "deepspeed>=0.17,<0.18",
            ),
        ),
        ProjectFile(
            name="requirements.txt",
            requires=(
                *("torch >=2.6,<2.9", "xformers==0.0.31; python_version < '4'"),
                *("torchvision==0.21.0", "torchaudio==2.6.0"),
            ),
        ),
    )
    (folder / "pyproject.toml").write_text("torch = [")
    package = '[[package]]\nname = "{}"\nversion = "{}"\n'.format
    held = (("rich", "14.0"), ("torch", "2.7.1"), ("torch", "2.7.1+cu128"))
    (folder / "uv.lock").write_text("".join(package(*row) for row in held))
    forked = (*held, ("torchvision", "0.22.1"), ("torch", "2.6.0"))
    (folder / "poetry.lock").write_text("\r\n".join(package(*row) for row in forked))
    found = envs.look(venv).facts["python.files"]
    assert isinstance(found, tuple)
    assert [(file.name, file.requires) for file in found[1:]] == [
        ("uv.lock", ("torch==2.7.1",)),
        ("poetry.lock", ("torchvision==0.22.1",)),
    ]


def test_the_programs_that_can_install_there_are_found(
    venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (envs.site(venv) / "pip").mkdir()
    (envs.site(venv) / "pip" / "__init__.py").write_text("")
    envs.plant(envs.site(venv), "pip", "26.0")
    for name in ("uv", "conda"):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert envs.look(venv).facts["python.managers"] == (
        Manager(name="pip", path=f"{venv}/bin/python", version="26.0"),
        Manager(name="uv", path=f"{tmp_path}/bin/uv"),
    )


def test_a_pip_on_path_that_belongs_to_another_python_is_told(
    venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert envs.look(venv).facts["python.pip_python"] == ""
    (tmp_path / "bin").mkdir()
    pip = tmp_path / "bin" / "pip"
    pip.write_text("#!/opt/other/bin/python3\n")
    pip.chmod(0o755)
    assert envs.look(venv).facts["python.pip_python"] == "/opt/other/bin/python3"
    pip.write_text(f"#!{venv}/bin/python3\n")
    assert envs.look(venv).facts["python.pip_python"] == f"{venv}/bin/python"


def examined(path: Path, text: str, timeout_s: float = 20) -> tuple[str, dict[str, object]]:
    """The gap of a stand-in for an interpreter, and the facts."""
    path.write_text(text)
    path.chmod(0o755)
    chosen = Chosen(executable=str(path), by="--python")
    looked = read_target(LocalHost(), chosen, timeout_s)
    whys = {gap.why for gap in looked.gaps if gap.fact in ("python", "torch", "packages")}
    assert len(whys) == 1
    assert bool(no_python(looked.gaps)) is ("not a working Python" in min(whys))
    return whys.pop(), looked.facts


def test_a_program_that_is_no_python_is_wrong_usage(tmp_path: Path) -> None:
    fake = tmp_path / "python"
    assert "not a working Python" in examined(fake, "#!/bin/sh\necho hello; exit 0\n")[0]
    assert "not a working Python" in examined(fake, "#!/nowhere/python\n")[0]
    assert "not a working Python" in examined(fake, "no program at all")[0]


def test_an_interpreter_that_hangs_is_a_gap(tmp_path: Path) -> None:
    why, _ = examined(tmp_path / "python", "#!/bin/sh\ntrap '' TERM\nsleep 30\n", 0.3)
    assert "no response within 0.3 s" in why
    assert "not a working Python" not in why


def test_an_interpreter_that_dies_or_floods_is_a_gap(tmp_path: Path) -> None:
    fake = tmp_path / "python"
    assert "killed by SIGSEGV" in examined(fake, "#!/bin/sh\nkill -SEGV $$\n")[0]
    assert "MiB of output" in examined(fake, "#!/bin/sh\nexec yes\n")[0]


def test_an_interpreter_that_cannot_start_is_a_gap_with_its_own_words(tmp_path: Path) -> None:
    sick = """#!/bin/sh
if [ "$1" = --version ]; then echo Python 3.11.7; exit 0; fi
echo "Fatal Python error: init_fs_encoding: failed" >&2
exit 1
"""
    why, facts = examined(tmp_path / "python", sick)
    assert "does not start: exit status 1, Fatal Python error" in why
    assert facts["python.version"] == Version("3.11.7")


def test_an_answer_that_was_cut_off_leaves_torch_and_packages_unknown(tmp_path: Path) -> None:
    script = f'#!/bin/sh\n{sys.executable} "$@" | grep -v \'"kind": "end"\'\n'
    why, facts = examined(tmp_path / "python", script)
    assert "stopped early" in why
    assert "python.version" in facts
    assert "packages" not in facts


def test_noise_of_a_sitecustomize_does_not_matter(venv: Path) -> None:
    noise = "import sys; sys.stdout.write('hello {\"kind\": 7}')\n"
    (envs.site(venv) / "sitecustomize.py").write_text(noise)
    envs.plant_torch(envs.site(venv))
    assert envs.look(venv).facts["torch.build"] == "cuda"


def test_python_2_is_told_by_its_version(tmp_path: Path) -> None:
    old = envs.oldest("2.7")
    looked = envs.look(old)
    assert looked.facts["python.version"] < Version("3")
    assert no_python(looked.gaps) is None
    assert any("too old" in gap.why for gap in looked.gaps)


def test_a_real_cuda_build_is_read_whole(python_cu130: str) -> None:
    looked = envs.look(python_cu130)
    facts = looked.facts
    assert facts["torch.text"] == "2.14.1+cu130"
    assert facts["torch.cuda"] == Version("13.0")
    assert facts["torch.archs"] == ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
    assert facts["torch.missing_files"] == facts["torch.empty_files"] == ()
    assert facts["torch.short_files"] == ()
    assert envs.copies(looked) == [("distribution", "2.14.1+cu130")]
    assert any(
        requirement.startswith("nvidia-cudnn-cu13==") for requirement in facts["torch.requires"]
    )
    assert envs.machine(looked).package("nvidia-nccl-cu13") is not None


def test_a_real_cpu_build_has_no_gpu_code(python_cpu: str) -> None:
    facts = envs.look(python_cpu).facts
    assert facts["torch.build"] == "cpu"
    assert facts["torch.archs"] == ()
    assert "torch.cuda" not in facts
