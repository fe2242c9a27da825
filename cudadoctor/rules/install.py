"""Is the installation whole, the only one, and the one that is run?"""

from __future__ import annotations

import re

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
from cudadoctor.model.rule import Answer, Found, need, rule
from cudadoctor.model.trust import acting
from cudadoctor.model.versions import version_of
from cudadoctor.plan.remedies import (
    by_hand,
    install_packages,
    install_torch,
    reinstall_torch,
    set_variables,
    unset_variables,
)
from cudadoctor.rules.evidence.libraries import META, Pin, import_fails, library_pins, need_import
from cudadoctor.rules.evidence.signs import WORDS, error_with, variable
from cudadoctor.solver.builds import best_build

FEW = 3
"""Where more wheels than these are damaged, the whole installation is doubtful."""


def libraries_again(m: Machine, kb: Knowledge, damaged: Strings) -> Remedies:
    """Only the wheels that these files belong to; () where one of them is torch's own.

    damaged: relative paths or the names under which the loader looked for them.
    """
    if m.packages is None or not m.torch.requires:
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
    verb = "again" if present else "as torch requires"
    title = f"Install {' and '.join(pin.name for pin in wheels)} {verb}"
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
_NO_METADATA = "its metadata (dist-info) is gone"
_UNKNOWN_TO_PIP = "pip does not know of it, and what torch itself finds by metadata is not found."
_STILL_IMPORTS = "It still imports, and fails where it needs a file that is not whole."
_SPOKEN_FOR = WORDS["spoken-for"]
"""Words of import errors that other rules know the cause of, or that a limit of memory has."""
_NO_MODULE = re.compile(r"No module named '([A-Za-z]\w*)[.']")
"""The package of a module that was looked for and not found."""
_FROM_OUTSIDE = (9, 24)
"""SIGKILL and SIGXCPU: somebody, the out-of-memory killer or a limit ended it; no file does."""


@rule(
    "torch-install-corrupt",
    title="The torch in {place} is incomplete: {what}",
    essential=False,
)
def torch_install_corrupt(m: Machine, kb: Knowledge) -> Answer:
    """Files that torch needs are missing, empty or cannot be loaded, so it does not import.

    pip was killed or the disk was full in the middle, files were deleted, or torch was installed
    with --no-deps, which leaves out the wheels that hold CUDA's libraries. The files are held
    against torch's RECORD, the wheels against its metadata, the libraries against the loader.

    Told from nvidia-wheels-mixed, where the wheels are there in the wrong version, and from
    torch-extension-abi, where the file that fails lies in another package's folder. Cured by the
    same release once more with its dependencies, in the same environment.
    """
    found = _damage(m, kb)
    if found is None:
        need(() if m.torch.installed is False else m.torch.missing_files, "torch.missing_files")
        return None
    what, evidence, sure = found
    return Found(
        why=_UNKNOWN_TO_PIP if what == _NO_METADATA else _STILL_IMPORTS if _imports(m) else None,
        evidence=tuple(dict.fromkeys((evidence, "torch.path"))),
        values={"what": what, "place": m.torch.path or m.python.site_packages or "this Python"},
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
        return (
            ("pip was stopped in the middle of it", "torch.leftovers", False) if stopped else None
        )
    for field, state in (("missing", "missing"), ("empty", "empty"), ("short", "cut short")):
        if files := getattr(m.torch, f"{field}_files"):
            more = f" and {len(files) - 1} more" if len(files) > 1 else ""
            return f"{files[0]}{more} {state}", f"torch.{field}_files", True
    gone = [name for name in m.libraries.missing or () if _OWN.match(name)]
    fails = m.torch.build == "cuda" and not _imports(m)
    if fails and gone:
        return f"nothing provides {gone[0]}", "libraries.missing", True
    # Wheels that torch requires count unless the loader misses nothing.
    found = m.libraries.missing is not None and m.libraries.predicted
    if fails and m.torch.requires and m.packages is not None and not found:
        pins = [pin for pin in library_pins(m, kb) if pin.installed is None and pin.name != META]
        if pins:
            return f"{', '.join(pin.name for pin in pins)} not installed", "packages", False
    # Of a torch in site-packages that pip knows nothing of, parts are found by metadata.
    site, path = m.python.site_packages, m.torch.path
    known = m.look == "report" or m.packages is None or m.package("torch") or m.torch.requires
    if not known and site and path and path.startswith(site) and not m.torch.installer:
        return _NO_METADATA, "torch.path", True
    return None


@rule(
    "torch-install-corrupt",
    title="torch does not import: {what}",
)
def torch_import_fails(m: Machine, kb: Knowledge) -> Answer:
    """torch's files look whole, and yet the import fails with words that nothing else explains.

    Mostly a package that torch itself requires is missing or broken, or a file was changed after
    the installation. Words that name another cause (GLIBCXX, nvJitLink, a DLL of Windows, a symbol
    of cuDNN or NCCL) are judged under that cause. A crash without words is a mere possibility: the
    processor, the memory or another library may be behind it.

    Cured by the same release once more with its dependencies, in the same environment.
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
    return Found(
        evidence=("torch.imported.signal" if killed else "torch.imported.error", "torch.path"),
        values={"what": f"signal {killed} ends it" if killed else _last_line(error)},
        confidence=POSSIBLE if killed else LIKELY,
        remedies=_broken_beside(m, error) + (reinstall_torch(m, kb) or install_torch(m, kb)),
    )


def _broken_beside(m: Machine, error: str) -> Remedies:
    """The package beside torch that is gone or lacks a module of its own, once more."""
    lost = _NO_MODULE.findall(error)
    name = lost[-1].lower().replace("_", "-") if lost else ""
    if name.startswith("torch"):
        return ()
    if package := m.package(name):
        title, pinned = f"Install {name} {package.version} again", f"{name}=={package.version}"
        return install_packages(f"reinstall-{name}", title, pinned, remove=(name,))
    required = (re.match(r"[\w.-]+", line) for line in m.torch.requires or ())
    names = {found[0].lower().replace("_", "-") for found in required if found}
    if m.packages is None or name not in names:
        return ()
    return install_packages(f"install-{name}", f"Install {name}, which torch requires", name)


def _last_line(error: str) -> str:
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    return lines[-1][:160] if lines else "no words"


def _shadows(m: Machine) -> Strings:
    return (m.torch.imported.shadows if m.torch.imported else None) or ()


_BY_NAME = ("python.shadows",)


@rule(
    "module-shadowed",
    title="{path} is imported in place of the real {name}",
)
def module_shadowed(m: Machine) -> Answer:
    """torch imports {name}, and a program that starts in this folder gets the file {path} instead.

    Python looks into the folder where a program starts, and into PYTHONPATH, before its own
    library: a random.py, queue.py or numpy.py there hides the module of that name from every
    package. The words are "cannot import name ... from", "partially initialized module" or
    "module ... has no attribute". In the current folder the name of the file tells, and nothing
    there is run; elsewhere on PYTHONPATH the traceback, or the name in the error.

    Cured by another name for that file. Installing torch again changes nothing. torch-duplicate
    is where the file is named torch.
    """
    traced = _shadows(m)
    files = traced or m.python.shadows or ()
    if not files or m.torch.installed is False:
        return None
    return Found(
        evidence=("torch.imported.shadows", "torch.imported.error") if traced else _BY_NAME,
        sure=traced,
        values={"path": files[0], "name": re.split(r"[/\\]", files[0])[-1].partition(".")[0]},
        remedies=by_hand(
            "rename-file",
            f"Rename {files[0]}",
            "Any name will do that no module of Python has. Or start programs in another folder.",
        ),
    )


@rule(
    "not-environment",
    title="The folder in which this runs was deleted",
    severity=INFO,
)
def in_a_deleted_folder(m: Machine) -> Answer:
    """A program that starts there finds none of its files, and some builds of torch do not load.

    The shell stays in a folder that somebody removed or made anew; `ls` shows it empty and `pwd`
    may still print its name. Libraries that look for themselves (Intel's MKL in torch among them)
    then end the process with words about a file that is there. torch was tried from another folder.

    Cured by changing to a folder that exists; where it was made anew, `cd "$PWD"` does.
    """
    if not m.python.nowhere:
        return None
    return Found(
        evidence=("python.nowhere",),
        remedies=by_hand(
            "change-folder",
            "Leave the deleted folder",
            "Change to a folder that exists, such as `cd ~`, and start the program there.",
        ),
    )


@rule("torch-duplicate", title="{what}", essential=False)
def torch_duplicate(m: Machine, kb: Knowledge) -> Answer:
    """Python imports the first torch on its path ({first}), whatever pip reports of the others.

    A file torch.py or a folder torch of your own is found first where a program starts in its
    folder. Otherwise two managers (conda and pip) wrote into one environment, or PYTHONPATH, the
    user site and the environment each hold a copy; metadata then speaks of one and code runs of
    the other. Copies of one and the same version are a warning.

    Told from wrong-interpreter, where two interpreters have one torch each. Cured by removing the
    copy that is not wanted with the manager that installed it, or by taking its folder from the
    path. Never by deleting folders in site-packages by hand.
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
    found = (f"{copy.version or 'unknown'} in {copy.where or copy.path}" for copy in real)
    what = f"{len(real)} copies of torch are on the path: {', '.join(found)}"
    if shadowed:
        what = f"{copies[0].path} is imported in place of torch"
    return Found(
        evidence=("torch.copies",),
        values={"what": what, "first": copies[0].path},
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
            f"Rename {first.path}, or start programs in another folder (python -P leaves the "
            "folder of the script out of the path).",
        )
    named = variable(m, "PYTHONPATH").replace(";", ":").split(":")
    if any(entry and first.path.startswith(entry.rstrip("/") + "/") for entry in named):
        return unset_variables(m, "PYTHONPATH")
    user = m.python.user_site
    if user and any(copy.path.startswith(user) for copy in copies):
        values = {"PYTHONNOUSERSITE": "1"}
        return set_variables("no-user-site", "Leave the user site out of the path", values)
    if len({copy.path for copy in copies}) == 1:
        return reinstall_torch(m, kb) or install_torch(m, kb)
    return by_hand(
        "remove-other-torch",
        "Remove the other copies of torch",
        f"Uninstall every copy but the one in {m.python.site_packages or first.path}, each with "
        "the manager and the interpreter that installed it.",
    )


@rule(
    "wrong-interpreter",
    title="pip on PATH installs for {pip}, and the examined Python is {python}",
    severity=INFO,
)
def wrong_interpreter(m: Machine) -> Answer:
    """What this pip installs lands in another environment than the one that runs.

    Each Python has packages of its own, and the program named pip belongs to one of them. In a
    notebook, with sudo, or with an environment that is not active, that is another one than
    python's. An environment without a pip (those of uv) is normal, so this alone is information.

    Told from torch-duplicate, where one interpreter finds two copies. Cured by
    `python -m pip install` with the Python that is to run, and in notebooks by a kernel of it.
    """
    python = need(m.python.executable, "python.executable")
    pip = need(m.python.pip_python, "python.pip_python")
    prefix = (m.python.prefix or "").rstrip("/\\").lower()
    own = (f"{prefix}/bin", f"{prefix}\\scripts", prefix) if prefix else ()
    # What was named by its path: what PATH holds is beside the point.
    named = m.python.chosen_by in ("--python", "own")
    if not pip or named or _folder(pip) in (_folder(python), *own):
        return None
    missed = m.look == "report" and m.torch.installed is False
    from cudadoctor.installers.tool import interpreter

    return Found(
        evidence=("python.executable", "python.pip_python"),
        values={"pip": pip, "python": python},
        # A mere difference is a hint: it must not explain a torch that was never installed.
        confidence=LIKELY if missed else POSSIBLE,
        severity=ERROR if missed else INFO,
        remedies=by_hand(
            "use-own-pip",
            "Call pip through the Python that runs",
            f"Install with `{interpreter(acting(m))} -m pip install`.",
        ),
    )


def _folder(path: str) -> str:
    folder = re.split(r"[/\\][^/\\]*$", path)[0].lower()
    return f"/usr{folder}" if folder in ("/bin", "/sbin") else folder


@rule(
    "disk-full",
    title="{free} free in {place}: too little room to install torch",
    severity=INFO,
)
def disk_full(m: Machine, kb: Knowledge) -> Answer:
    """The wheel of torch alone takes {wheel}, and it is unpacked beside the CUDA libraries.

    pip downloads to the temporary folder and unpacks into the environment: both need room, and
    "No space left on device" (errno 28) often means the temporary folder. Judged only where torch
    is still to be installed, by the size of its wheel; the unpacked libraries need several times
    that. A bus error of workers is shm-too-small.

    Cured by TMPDIR on a larger disk, or by an environment there.
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
    values = {"TMPDIR": "/path/to/a/larger/disk"}
    return Found(
        evidence=("limits.tmp_free_bytes" if tight else "limits.env_free_bytes",),
        values={"free": _megabytes(free), "place": place, "wheel": _megabytes(wheel)},
        remedies=set_variables("tmpdir", "Let pip unpack on a larger disk", values)
        if tight
        else by_hand(
            "free-disk",
            "Make room for torch",
            "Free some room, or make the environment on a larger disk.",
        ),
    )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.0f} MB"


@rule(
    "pynvml-conflict",
    title="pynvml {pynvml} and nvidia-ml-py {nvml} both own the module pynvml",
    severity=WARNING,
)
def pynvml_conflict(m: Machine) -> Answer:
    """The old package hides NVIDIA's own module, and programs that ask for the GPU's state fail.

    Until release 12 the package pynvml brought a pynvml.py of its own, the file that nvidia-ml-py
    installs too: the last one installed wins, and uninstalling one deletes the file of both.
    Release 12 and later leave the file to nvidia-ml-py. The old package alone is information.

    Cured by removing both and installing nvidia-ml-py. Training itself does not need either.
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
        title=None if other else "pynvml {pynvml} is an old copy of nvidia-ml-py",
        remedies=install_packages("pynvml", "Keep nvidia-ml-py alone", "nvidia-ml-py", remove=both),
    )


@rule("windows-runtime-dll", title="A DLL that torch loads is missing", essential=False)
def windows_runtime_dll(m: Machine) -> Answer:
    """Windows did not find a DLL that one of torch's own needs, so torch does not import.

    WinError 126 names the DLL that was asked for, not the one that is missing below it: mostly the
    Visual C++ runtime, for some releases libomp140.x86_64.dll.

    Cured by the Visual C++ redistributable. Copying single DLLs from web pages is not a cure.
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
        remedies=by_hand(
            "vc-runtime",
            "Install the Visual C++ redistributable",
            "Install https://aka.ms/vs/17/release/vc_redist.x64.exe, then start a new shell.",
            where="windows",
        ),
    )
