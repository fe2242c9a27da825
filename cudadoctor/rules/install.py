"""Is the installation whole, the only one, and the one that is run?"""

from __future__ import annotations

import re

from msgspec.structs import replace
from packaging.version import Version

from cudadoctor.knowledge import Knowledge
from cudadoctor.knowledge.tables import table
from cudadoctor.model.findings import (
    ERROR,
    INFO,
    LIKELY,
    POSSIBLE,
    WARNING,
    Remedies,
)
from cudadoctor.model.machine import Machine, Strings, TorchCopy
from cudadoctor.model.requirements import EXTENSIONS, TORCH_FAMILY
from cudadoctor.model.rule import Answer, Found, need, rule
from cudadoctor.model.trust import acting
from cudadoctor.model.variables import in_notebook
from cudadoctor.model.versions import version_of
from cudadoctor.plan.remedies import (
    by_hand,
    install_packages,
    install_torch,
    reinstall_torch,
    remove_system_torch,
    rename_file,
    set_variables,
    unset_variables,
    vc_runtime,
)
from cudadoctor.rules.evidence.libraries import META, Pin, import_fails, library_pins, need_import
from cudadoctor.rules.evidence.signs import WORDS, error_with, variable
from cudadoctor.solver.builds import best_build
from cudadoctor.solver.demand import listed, platform_of

FEW = 3
"""Where more wheels than these are damaged, the whole installation is doubtful."""


def libraries_again(m: Machine, kb: Knowledge, damaged: Strings) -> Remedies:
    """Only the wheels that these files belong to; () where one of them is torch's own.

    damaged: relative paths or the names under which the loader looked for them.
    """
    if m.packages is None or not (m.torch.requires or m.look == "report"):
        return ()
    if m.look == "report" and (platform_of(m) is None or m.torch.cuda is None):
        return ()
    pins = library_pins(m, kb)
    found = dict.fromkeys(_wheel_of(path, pins) for path in damaged)
    wheels = [pin for pin in found if pin is not None]
    if not wheels or None in found or len(wheels) > FEW:
        return ()
    again = (
        f"{pin.name}=={pin.installed}" if pin.installed and pin.met else pin.requirement
        for pin in wheels
    )
    present = tuple(pin.name for pin in wheels if pin.installed)
    names = listed([pin.name for pin in wheels])
    title = f"Reinstall {names}" if present else f"Install {names}, which torch requires"
    return install_packages("reinstall-libraries", title, *again, remove=present)


def _wheel_of(path: str, pins: tuple[Pin, ...]) -> Pin | None:
    """By how the library's file begins after "lib": the product in its wheel's name."""
    name = re.split(r"[/\\]", path)[-1].lower().removeprefix("lib")
    if path.startswith(("torch/", "torch\\")):
        return None
    for start, product in table("rules/wheel_products", dict[str, str]).items():
        if name.startswith(start):
            named = re.compile(rf"nvidia-{product}(-cu\d+)?")
            return next((pin for pin in pins if named.fullmatch(pin.name)), None)
    return None


PYNVML_OF_NVIDIA = Version("12")
"""From this release on pynvml brings no module of its own and requires nvidia-ml-py."""
_OWN = re.compile(r"lib(c10|torch|cu(?!da\b|dnn_)|nv(?!idia|cuvid)|nccl)")
"""What torch is linked with. Of cuDNN's parts, loaded later, cudnn-missing-sublib tells."""
_NO_METADATA = "its metadata (dist-info) is missing"
_UNKNOWN_TO_PIP = (
    "pip does not list torch, and components that torch locates through its package metadata "
    "are missing."
)
_STILL_IMPORTS = "torch can still be imported, but fails as soon as it needs a damaged file."
_SPOKEN_FOR = WORDS["spoken-for"]
"""Words of import errors that other rules know the cause of, or that a limit of memory has."""
_NO_MODULE = re.compile(r"No module named '([A-Za-z]\w*)[.']")
"""The package of a module that was looked for and not found."""
_FROM_OUTSIDE = (9, 24)
"""SIGKILL and SIGXCPU: somebody, the out-of-memory killer or a limit ended it; no file does."""


@rule(
    "torch-install-corrupt",
    title="The torch installation is incomplete: {what}",
    essential=False,
)
def torch_install_corrupt(m: Machine, kb: Knowledge) -> Answer:
    """Files that torch needs are missing, empty or truncated, so `import torch` fails.

    A torch installation is incomplete if pip was killed or the disk filled up during the
    installation, if files were deleted, or if torch was installed with --no-deps, which leaves out
    the CUDA library wheels. cudadoctor compares the installed files with torch's RECORD file, the
    installed CUDA wheels with torch's metadata, and the libraries that torch needs with those that
    the loader finds.

    Look-alikes: if the wrong versions of the CUDA wheels are installed, the cause is
    nvidia-wheels-mixed. If the failing file is in another package's folder, the cause is
    torch-extension-abi.

    Fix: reinstall the same torch release with its dependencies, in the same environment.
    """
    found = _damage(m, kb)
    if found is None:
        need(() if m.torch.installed is False else m.torch.missing_files, "torch.missing_files")
        return None
    what, evidence, sure = found
    return Found(
        why=_UNKNOWN_TO_PIP if what == _NO_METADATA else _STILL_IMPORTS if _imports(m) else None,
        evidence=tuple(dict.fromkeys((evidence, "torch.path"))),
        values={"what": what},
        sure=sure,
        severity=WARNING if _works(m, what) else None,
        remedies=_made_whole(m, kb),
    )


def _made_whole(m: Machine, kb: Knowledge) -> Remedies:
    """Only what is damaged, where that is a library's wheel; else torch and all it requires."""
    torch = m.torch
    gone = tuple(name for name in m.libraries.missing or () if _OWN.match(name))
    files = (torch.missing_files, torch.empty_files, torch.short_files, gone)
    damaged = tuple(name for names in files for name in names or ())
    whole = (reinstall_torch(m, kb) if torch.installed else ()) or install_torch(m, kb)
    return libraries_again(m, kb, damaged) + whole


def _works(m: Machine, what: str) -> bool:
    """Whether the damage has done no harm yet: a stage of the training that failed is harm."""
    if any(stage.status == "failed" for stage in (m.smoke.stages if m.smoke else ())):
        return False
    # Libraries that torch loads only when it needs them.
    gone = m.torch.missing_files or ()
    other = m.torch.empty_files or m.torch.short_files or m.libraries.missing
    later = gone and all(name.startswith("nvidia/") for name in gone) and not other
    return _imports(m) or what == _NO_METADATA or bool(later and m.libraries.predicted)


def _imports(m: Machine) -> bool:
    return m.torch.imported is not None and m.torch.imported.ok is True


def _damage(m: Machine, kb: Knowledge) -> tuple[str, str, bool] | None:
    """What is damaged, the fact that shows it, and whether that is sure."""
    if m.torch.installed is False:
        stopped = any(name.startswith(("~orch", "~rch")) for name in m.torch.leftovers or ())
        return ("pip was interrupted", "torch.leftovers", False) if stopped else None
    for field, state in (("missing", "missing"), ("empty", "empty"), ("short", "truncated")):
        if files := getattr(m.torch, f"{field}_files"):
            more = f" and {len(files) - 1} more" if len(files) > 1 else ""
            verb = "are" if more else "is"
            return f"{files[0]}{more} {verb} {state}", f"torch.{field}_files", True
    gone = [name for name in m.libraries.missing or () if _OWN.match(name)]
    fails = m.torch.build == "cuda" and not _imports(m)
    if fails and gone:
        return f"{gone[0]} is missing", "libraries.missing", True
    # Wheels that torch requires count unless the loader misses nothing.
    found = m.libraries.missing is not None and m.libraries.predicted
    if fails and m.torch.requires and m.packages is not None and not found:
        pins = [pin for pin in library_pins(m, kb) if pin.installed is None and pin.name != META]
        if pins:
            names, verb = ", ".join(pin.name for pin in pins), "are" if len(pins) > 1 else "is"
            return f"{names} {verb} not installed", "packages", False
    # Of a torch in site-packages that pip knows nothing of, parts are found by metadata.
    site, path = m.python.site_packages, m.torch.path
    known = m.look == "report" or m.packages is None or m.package("torch") or m.torch.requires
    if not known and site and path and path.startswith(site) and not m.torch.installer:
        return _NO_METADATA, "torch.path", True
    return None


@rule(
    "torch-install-corrupt",
    title="import torch fails: {what}",
)
def torch_import_fails(m: Machine, kb: Knowledge) -> Answer:
    """torch's own files are complete. A package that torch needs is missing or broken, or a file
    was changed after installation.

    Error messages that point to another cause (GLIBCXX, nvJitLink, a Windows DLL, a cuDNN or NCCL
    symbol) are reported under that cause. If Python crashes without a message, cudadoctor reports
    torch-install-corrupt only as a possibility, because the CPU, the memory or another library may
    be at fault instead.
    """
    imported = m.torch.imported
    if m.torch.installed is False or (imported is None and m.look == "fast") or _shadows(m):
        return None
    imported = need(imported, "torch.imported.ok")
    error, killed = imported.error or "", imported.signal
    if (
        need(imported.ok, "torch.imported.ok")
        or _damage(m, kb)
        or killed in _FROM_OUTSIDE
        or any(words in error for words in _SPOKEN_FOR)
    ):
        return None
    if (symbol := _OF_MKL.search(error)) and _has_newer_mkl(m):
        mkl = m.package("mkl")
        return Found(
            title="import torch fails: MKL {mkl} is too new for torch {torch}"
            if mkl
            else "import torch fails: the installed MKL is too new for torch {torch}",
            why="This torch build needs the symbol {symbol}, which MKL 2024.1 removed. Replacing "
            "MKL is enough; torch can stay as it is.",
            evidence=("torch.imported.error", "packages" if mkl else None),
            values={
                "mkl": mkl.version if mkl else "",
                "torch": m.torch.version or "",
                "symbol": symbol[1],
            },
            sure=mkl,
            remedies=tuple(
                replace(step, note=_pinned(m))
                for step in install_packages(
                    "older-mkl", "Install an MKL older than 2024.1", _OLD_MKL
                )
            )
            + (reinstall_torch(m, kb) or install_torch(m, kb)),
        )
    return Found(
        evidence=("torch.imported.signal" if killed else "torch.imported.error", "torch.path"),
        values={
            "what": f"the process was killed by signal {killed}" if killed else _last_line(error)
        },
        confidence=POSSIBLE if killed else LIKELY,
        remedies=_broken_beside(m, error) + (reinstall_torch(m, kb) or install_torch(m, kb)),
    )


_OLD_MKL = "mkl<2024.1"


def _pinned(m: Machine) -> str | None:
    """What keeps the next update of a conda environment from bringing the newer one back."""
    prefix = m.python.prefix or ""
    if m.redacted or not re.fullmatch(r"/[\w./-]+", prefix):
        return None
    file = f"{prefix}/conda-meta/pinned"
    return f"To keep `conda update --all` from undoing this, run `echo '{_OLD_MKL}' >> {file}`."


_OF_MKL = re.compile(r"libtorch\w*\.so: undefined symbol: (iJIT_\w+|__itt_\w+|mkl_\w+)")
"""Functions of Intel's that conda's builds of torch up to 2.3 expect in MKL."""


def _has_newer_mkl(m: Machine) -> bool:
    """Whether conda's torch may have met an MKL without them; pip's torch contains its own."""
    mkl = m.package("mkl")
    version = version_of(mkl.version) if mkl else None
    conda = (m.python.kind or "").startswith("conda") and m.torch.installer == "conda"
    return conda and (version is None or version >= Version("2024.1"))


def _broken_beside(m: Machine, error: str) -> Remedies:
    """The package beside torch that is gone or lacks a module of its own, once more."""
    lost = _NO_MODULE.findall(error)
    name = lost[-1].lower().replace("_", "-") if lost else ""
    if name.startswith("torch"):
        return ()
    if package := m.package(name):
        title, pinned = f"Reinstall {name} {package.version}", f"{name}=={package.version}"
        return install_packages(f"reinstall-{name}", title, pinned, remove=(name,))
    required = (re.match(r"[\w.-]+", line) for line in m.torch.requires or ())
    names = {found[0].lower().replace("_", "-") for found in required if found}
    if m.packages is None or name not in names:
        return ()
    return install_packages(f"install-{name}", f"Install {name}, which torch requires", name)


def _last_line(error: str) -> str:
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    return lines[-1][:160] if lines else "no error message"


def _shadows(m: Machine) -> Strings:
    return (m.torch.imported.shadows if m.torch.imported else None) or ()


_BY_NAME = ("python.shadows",)


@rule(
    "module-shadowed",
    title="Your file {path} hides the module {name}",
)
def module_shadowed(m: Machine) -> Answer:
    """torch imports {name}. Python finds your file first, because it searches the program's folder
    and PYTHONPATH before its own modules.

    A file named random.py, queue.py or numpy.py in the program's folder or on PYTHONPATH hides the
    module of the same name from every package. The error says "cannot import name ... from",
    "partially initialized module" or "module ... has no attribute". cudadoctor recognizes such a
    file in the current folder by its name and runs nothing in that folder. In the folders on
    PYTHONPATH, it recognizes the file by the traceback or by the name in the error.

    Look-alikes: if the file that hides the module is named torch, the cause is torch-duplicate.

    Fix: rename the file that hides the module. Reinstalling torch has no effect.
    """
    traced = _shadows(m)
    files = traced or m.python.shadows or ()
    if not files or m.torch.installed is False:
        return None
    return Found(
        evidence=("torch.imported.shadows", "torch.imported.error") if traced else _BY_NAME,
        sure=traced,
        values={"path": files[0], "name": re.split(r"[/\\]", files[0])[-1].partition(".")[0]},
        remedies=rename_file(m, files[0]),
    )


@rule(
    "not-environment",
    title="The current folder has been deleted",
    severity=INFO,
)
def in_a_deleted_folder(m: Machine) -> Answer:
    """Programs started from this folder cannot find their files, and some builds of torch fail to
    load.

    The shell is still in a folder that was deleted or recreated: `ls` shows nothing, and `pwd` may
    still print the folder's name. Libraries that look up their own path, such as Intel's MKL in
    torch, then stop with an error about a file that does exist. cudadoctor therefore tests torch
    from another folder.

    Fix: change to an existing folder. If the folder was recreated, `cd "$PWD"` is enough.
    """
    if not m.python.nowhere:
        return None
    return Found(
        evidence=("python.nowhere",),
        remedies=by_hand(
            "change-folder",
            "Change to an existing folder",
            "Run `cd ~` and start the program from there. If the folder has been recreated, `cd "
            '"$PWD"` is enough.',
        ),
    )


_YOURS = (
    "Python searches the program's folder and PYTHONPATH before its installed packages, so your "
    "file comes first."
)


@rule("torch-duplicate", title="{what}", essential=False)
def torch_duplicate(m: Machine, kb: Knowledge) -> Answer:
    """Python imports the first torch on its search path, but pip may report a different one.

    If you start the program in a folder that contains a torch.py file or torch folder of your own,
    Python imports your file or folder instead of the installed torch. Python can also find two
    copies of torch if conda and pip both installed torch into the same environment, or if
    PYTHONPATH, the user site directory and the environment each contain a copy. In these cases, pip
    reports one copy, but Python imports a different one. If all copies have the same version,
    cudadoctor shows only a warning. Check by hand: run `python -c "import torch;
    print(torch.__file__)"`.

    Look-alikes: if two Python installations each have their own torch, the cause is
    wrong-interpreter.

    Fix: remove the unwanted copy with the package manager that installed it, or remove its folder
    from Python's search path. Never delete folders in site-packages by hand.
    """
    copies = need(m.torch.copies, "torch.copies")
    real = [copy for copy in copies if copy.kind != "local"]
    shadowed = bool(copies) and copies[0].kind == "local"
    if not shadowed and len(real) < 2:
        return None
    releases = {
        copy.version.partition("+")[0] if copy.kind == "conda" and copy.version else copy.version
        for copy in real
    }
    first = copies[0]
    taken = f"{first.version or 'the one'} from {first.where or first.path}"
    what = f"{len(real)} copies of torch are installed; Python imports {taken}"
    if shadowed:
        what = f"Your own {first.path} is imported instead of torch"
    return Found(
        evidence=("torch.copies",),
        values={"what": what},
        why=_YOURS if shadowed else None,
        severity=None if shadowed or len(releases) > 1 or import_fails(m) else WARNING,
        remedies=_one_copy(m, kb, copies),
    )


def _one_copy(m: Machine, kb: Knowledge, copies: tuple[TorchCopy, ...]) -> Remedies:
    """The way out by the kind of the copy that is in the way."""
    first = copies[0]
    if first.kind == "local":
        return by_hand(
            "rename-local-torch",
            f"Rename {first.path}",
            f"Rename {first.path}, or start the program from another folder. `python -P` makes "
            "Python ignore the script's own folder.",
        )
    mark = ";" if m.platform.system == "Windows" else ":"
    named = variable(m, "PYTHONPATH").split(mark)
    if any(_holds(entry, first.path) for entry in named):
        rest = [entry for entry in named if entry and not _holds(entry, first.path)]
        if not rest:
            return unset_variables(m, "PYTHONPATH")
        title = (
            f"Remove {listed([entry for entry in named if _holds(entry, first.path)])} from "
            "PYTHONPATH"
        )
        return set_variables("trim-pythonpath", title, {"PYTHONPATH": mark.join(rest)})
    user = m.python.user_site
    if user and any(copy.path.startswith(user) for copy in copies):
        values = {"PYTHONNOUSERSITE": "1"}
        (ignored,) = set_variables(
            "no-user-site", "Ignore packages in the user site-packages folder", values
        )
        mine = first.path.startswith(user) and first.kind == "distribution"
        return (replace(ignored, note=_for_good(m, user)) if mine else ignored,)
    if len({copy.path for copy in copies}) == 1:
        return reinstall_torch(m, kb) or install_torch(m, kb)
    kept = m.python.site_packages or first.path
    others = [copy.where or copy.path for copy in copies if not copy.path.startswith(kept)]
    systems = all(folder.startswith("/usr/lib/python3/dist-packages") for folder in others)
    return (remove_system_torch(m) if others and systems else ()) or by_hand(
        "remove-other-torch",
        "Keep only one copy of torch",
        f"Keep the copy in {kept}. Uninstall the copy in {listed(others)} with the Python that "
        "it belongs to, or remove that folder from Python's search path.",
    )


def _for_good(m: Machine, user: str) -> str:
    """How the copies in the user site-packages folder go: all that belong to torch at once."""
    there = (package for package in m.packages or () if (package.location or "").startswith(user))
    beside = {package.name for package in there} & {*TORCH_FAMILY, *EXTENSIONS, "triton"}
    names = " ".join(("torch", *sorted(beside - {"torch"})))
    return (
        f"To delete the other copy instead, run `python -m pip uninstall {names}` in a shell where "
        "PYTHONNOUSERSITE is not set. Check the folder that pip shows before you confirm; all "
        "Python installations of this version share that copy."
    )


def _holds(entry: str, path: str) -> bool:
    return bool(entry) and path.startswith(entry.rstrip("/\\") + ("\\" if "\\" in entry else "/"))


@rule(
    "wrong-interpreter",
    title="The pip on PATH installs packages for {pip}, not for {python}",
    severity=INFO,
)
def wrong_interpreter(m: Machine, kb: Knowledge) -> Answer:
    """Packages installed with this pip are not visible to the Python that was checked.

    Each Python has its own packages, and each pip command belongs to one Python. In a notebook,
    under sudo, or when no environment is active, pip and python often belong to different
    installations. Environments without pip are normal (uv creates them); in such an environment,
    this finding is for information only.

    Look-alikes: if one Python finds two copies of torch, the cause is torch-duplicate.

    Fix: install packages with `python -m pip install`, using the Python that runs your program. In
    a notebook, choose a kernel that uses this Python.
    """
    python = need(m.python.executable, "python.executable")
    pip = need(m.python.pip_python, "python.pip_python")
    prefix = (m.python.prefix or "").rstrip("/\\").lower()
    own = (f"{prefix}/bin", f"{prefix}\\scripts", prefix) if prefix else ()
    # What was named by its path: what PATH holds is beside the point, but not for `!pip` in a cell.
    named = m.python.chosen_by in ("--python", "own") and not in_notebook(m.env)
    if not pip or named or _folder(pip) in (_folder(python), *own):
        return None
    missed = m.look == "report" and m.torch.installed is False
    return Found(
        evidence=("python.executable", "python.pip_python"),
        values={"pip": pip, "python": python},
        # A mere difference is a hint: it must not explain a torch that was never installed.
        confidence=LIKELY if missed else POSSIBLE,
        severity=ERROR if missed else INFO,
        remedies=(install_torch(m, kb) if missed else ()) + _own_pip(m),
    )


def _own_pip(m: Machine) -> Remedies:
    """pip of the Python that runs, by its path or after the environment is active."""
    from cudadoctor.installers.tool import interpreter

    m = acting(m)
    kind, prefix = m.python.kind or "", m.python.prefix or ""
    text = f"Use `{interpreter(m)} -m pip install` instead of `pip install`."
    if prefix.startswith("/") and kind in ("venv", "uv", "poetry"):
        text += f" Or activate the environment first: `source {prefix}/bin/activate`."
    elif prefix.startswith("/") and kind.startswith("conda"):
        text += f" Or activate the environment first: `conda activate {prefix}`."
    return by_hand("use-own-pip", "Use this Python's pip", text)


def _folder(path: str) -> str:
    folder = re.split(r"[/\\][^/\\]*$", path)[0].lower()
    return f"/usr{folder}" if folder in ("/bin", "/sbin") else folder


@rule(
    "disk-full",
    title="Not enough disk space to install torch: {free} free in {place}",
    severity=INFO,
)
def disk_full(m: Machine, kb: Knowledge) -> Answer:
    """The torch wheel alone is {wheel}. pip downloads it to the temporary folder and unpacks it,
    with the CUDA libraries, into the environment.

    "No space left on device" (errno 28) often means that the temporary folder is full. cudadoctor
    checks the free disk space only if torch is not installed yet, and compares it with the size of
    the torch wheel. The unpacked libraries need several times as much space as the wheel. Check by
    hand: run `df -h`.

    Look-alikes: if DataLoader workers are killed by a bus error, the cause is shm-too-small.

    Fix: point TMPDIR to a larger disk, free up some space, or create the environment on a larger
    disk.
    """
    if need(m.torch.installed, "torch.installed"):
        return None
    build = best_build(m, kb).build
    wheel = build.download_bytes if build else None
    if wheel is None:
        return None
    temporary = need(m.limits.tmp_free_bytes, "limits.tmp_free_bytes")
    environment = need(m.limits.env_free_bytes, "limits.env_free_bytes")
    if min(temporary, environment) >= wheel:
        return None
    tight = temporary < wheel
    free, place = (temporary, "the temporary folder") if tight else (environment, "the environment")
    return Found(
        evidence=("limits.tmp_free_bytes" if tight else "limits.env_free_bytes",),
        values={"free": _megabytes(free), "place": place, "wheel": _megabytes(wheel)},
        remedies=_room(m, temporary_only=tight and environment >= wheel, wheel=wheel),
    )


def _room(m: Machine, *, temporary_only: bool, wheel: int) -> Remedies:
    """The environment's own disk for the temporary files, where that one has room."""
    m = acting(m)
    prefix = m.python.prefix or ""
    if temporary_only and (prefix.startswith("/") or prefix[1:3] == ":\\"):
        return set_variables(
            "tmpdir", f"Let pip use {prefix} for its temporary files", {"TMPDIR": prefix}
        )
    need_free = f"Free up {_megabytes(wheel)} or more on the environment's disk"
    if temporary_only:
        text = (
            "Set TMPDIR to a folder on the environment's disk, which has enough space, and try "
            "again."
        )
        return by_hand("tmpdir", "Let pip use a larger disk for its temporary files", text)
    return by_hand(
        "free-disk",
        "Free up disk space for torch",
        f"{need_free}, or create the environment on a larger disk: `df -h` lists all disks. "
        "`pip cache purge` and `conda clean --all` delete downloaded packages.",
    )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.0f} MB"


@rule(
    "pynvml-conflict",
    title="pynvml {pynvml} and nvidia-ml-py {nvml} both install the module pynvml",
    severity=WARNING,
)
def pynvml_conflict(m: Machine) -> Answer:
    """The package that was installed last overwrites the other's module, and programs that query
    the GPU may then fail. Training needs neither package.

    Before release 12, the pynvml package installed its own pynvml.py, a file that nvidia-ml-py also
    installs. If both packages are installed, uninstalling either one deletes the file that the
    other needs. Since release 12, pynvml no longer installs this file. If an old pynvml is
    installed without nvidia-ml-py, the finding is for information only.

    Fix: uninstall pynvml and nvidia-ml-py, then install nvidia-ml-py again.
    """
    need(m.packages, "packages")
    old, other = m.package("pynvml"), m.package("nvidia-ml-py")
    version = version_of(old.version) if old else None
    if version is None or version >= PYNVML_OF_NVIDIA:
        return None
    both = ("pynvml", "nvidia-ml-py") if other else ("pynvml",)
    return Found(
        evidence=("packages",),
        values={"pynvml": version, "nvml": other.version if other else ""},
        severity=None if other else INFO,
        title=None if other else "pynvml {pynvml} is an outdated copy of nvidia-ml-py",
        remedies=install_packages("pynvml", "Keep only nvidia-ml-py", "nvidia-ml-py", remove=both),
    )


@rule("windows-runtime-dll", title="A DLL that torch needs could not be loaded", essential=False)
def windows_runtime_dll(m: Machine) -> Answer:
    """Windows reports the DLL that torch tried to load, not the DLL that is missing. The missing
    DLL is usually part of the Visual C++ runtime.

    The error is "WinError 126", "WinError 1114" or "DLL load failed". For some torch releases, the
    missing file is libomp140.x86_64.dll.

    Fix: install the Visual C++ Redistributable. Do not copy individual DLLs from websites.
    """
    if m.platform.system != "Windows" or m.torch.installed is False:
        return None
    fact = error_with(m, "WinError 126", "WinError 1114", "DLL load failed", pasted=False)
    if fact is None:
        need_import(m)
        return None
    return Found(
        evidence=(fact, "platform.system"),
        sure=False,
        remedies=vc_runtime(),
    )
