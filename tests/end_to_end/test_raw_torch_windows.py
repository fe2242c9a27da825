"""From the answers of a recorded Windows host through every probe to a DLL that is missing."""

from __future__ import annotations

import json

from raw_torch_fixtures import (
    ADA,
    Bench,
    Report,
    a_bench,  # noqa: F401
)
from recorded_host import NOTHING, RecordedHost, lines
from standin_fixtures import HostWith

from cudadoctor import pipeline
from cudadoctor.host.children import Ran
from cudadoctor.host.local import Stat
from cudadoctor.probes.examine import Look, examine_host
from cudadoctor.render import json_v1

VENV = r"C:\Users\ada\venv"
SITE = rf"{VENV}\Lib\site-packages"
NAMED = "/c/Users/ada/venv/Scripts/python.exe"
"""As a shell of Windows may write it."""
PYTHON: dict[str, object] = {
    "executable": rf"{VENV}\Scripts\python.exe",
    "version": "3.12.10",
    "implementation": "cpython",
    "free_threaded": False,
    "bits": 64,
    "prefix": VENV,
    "base_prefix": r"C:\Program Files\Python312",
    "site_packages": SITE,
    "user_site": "",
    "pyvenv": "home = C:\\Program Files\\Python312\n",
    "conda": False,
    "conda_base": False,
    "embedded": False,
    "externally_managed": False,
    "abi": "cp312-win_amd64",
    "headers": True,
    "ensurepip": True,
    "env_free_bytes": 1 << 38,
}
VERSION_PY = (
    "__version__ = '2.6.0+cu124'\ncuda: Optional[str] = '12.4'\nhip: Optional[str] = None\n"
)
MISSING = (
    "OSError: [WinError 126] The specified module could not be found. Error loading "
    '"C:\\Users\\ada\\venv\\Lib\\site-packages\\torch\\lib\\fbgemm.dll" or one of its dependencies.'
)


def look_output(*said: dict[str, object]) -> Ran:
    """What inside/look.py prints: these lines, and the line that marks the end."""
    return Ran(code=0, stdout="".join(json.dumps(line) + "\n" for line in (*said, {"kind": "end"})))


def windows(bench: Bench, imported: dict[str, object]) -> RecordedHost:
    """A Windows with an RTX 4090 whose torch answers so when it is imported."""
    dist = {"name": "torch", "version": "2.6.0+cu124", "entry": SITE, "installer": "pip"}
    metadata = {"folder": "torch-2.6.0+cu124.dist-info", "requires": [], "texts": {}}
    copy = {"path": rf"{SITE}\torch", "entry": SITE, "origin": "own", "shape": "package"}
    beside = [{"folder": "torch-2.6.0+cu124.dist-info", "version": "2.6.0+cu124"}]
    look = look_output(
        {"kind": "python", **PYTHON},
        {"kind": "path", "entries": [[SITE, "own"]]},
        {"kind": "dist", **dist, **metadata},
        {"kind": "copy", **copy, "dists": beside, "text": VERSION_PY, "lib": True},
        {"kind": "pip", "entry": SITE},
    )
    real = HostWith(bench.environment(ADA))
    archs = b"\0sm_50 sm_60 sm_61 sm_70 sm_75 sm_80 sm_86 sm_90\0"
    return RecordedHost(
        system="Windows",
        env={"PROCESSOR_ARCHITECTURE": "AMD64", "USERPROFILE": r"C:\Users\ada"},
        files={NAMED: b"MZ", f"{SITE}\\torch/lib/torch_python.dll": archs},
        stats={NAMED: Stat(exists=True, mode=0o755)},
        inside={
            "look.py": look,
            "nvml.py": lambda *args: real.inside("nvml.py", *args, timeout_s=20),
            "cuda.py": lambda *args: real.inside("cuda.py", *args, timeout_s=20),
            "nodes.py": NOTHING,
        },
        otherwise=lines({"kind": "start", "stage": "import"}, {"kind": "torch", **imported}),
    )


def look_at(host: RecordedHost) -> Report:
    machine = examine_host(host, Look(python=NAMED, depth="no-smoke"), lambda *_: None)
    return Report(json_v1.report(pipeline.report(pipeline.judge(machine), full=True)))


def test_a_dll_that_windows_does_not_find_is_told(bench: Bench) -> None:
    report = look_at(windows(bench, {"ok": False, "error": MISSING, "seconds": 1.5}))
    assert report.told == ["windows-runtime-dll"]
    shown = report.evidence("windows-runtime-dll")
    assert shown["platform.system"] == "Windows"
    assert "WinError 126" in shown["torch.imported.error"]
    assert report["plan"]["steps"][0]["where"] == "here"


def test_an_import_that_succeeds_misses_no_dll(bench: Bench) -> None:
    report = look_at(windows(bench, {"ok": True, "error": "", "seconds": 1.5}))
    assert report.told == []
