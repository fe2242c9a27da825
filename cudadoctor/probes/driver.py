"""The driver as a whole: NVML, libcuda, nvidia-smi and the kernel's side, asked side by side."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from cudadoctor.host.children import start_thread
from cudadoctor.host.local import Host
from cudadoctor.model.driver_packages import is_driver
from cudadoctor.model.machine import Gap, Libcuda, Nvml, Smi, is_start
from cudadoctor.model.versions import DriverVersion
from cudadoctor.probes import Looked
from cudadoctor.probes.kernel import read_kernel
from cudadoctor.probes.libcuda import file_version
from cudadoctor.probes.loader import parse_cache
from cudadoctor.probes.platform import wsl_of
from cudadoctor.probes.streamed import Patience, Progress, unheard

_REFUSALS = frozenset({4, 15, 16, 17, 18})
"""NVML's codes for no permission, lost, reset required, blocked and version mismatch."""
NOT_THERE = "cannot open shared object file: No such file or directory"


FAST = Patience(nvml_s=4.0, smi_s=3.4, total_s=5.2)
"""Shorter than any silence that would prove something: what has not answered is a gap."""
FULL = Patience()


CACHE = "/etc/ld.so.cache"
NAMES = ("libnvidia-ml.so.1", "libcuda.so.1")
SEARCHED = (
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
    "/usr/local/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
)
ELSEWHERE = (
    "/usr/lib/wsl/lib",
    "/usr/local/nvidia/lib64",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu/nvidia",
    "/usr/lib/aarch64-linux-gnu/tegra",
    "/run/opengl-driver/lib",
)
"""Where drivers also lie; the loader finds them there by its cache or by LD_LIBRARY_PATH only."""


class DriverFiles:
    """Paths of the driver's libraries, by name, the loader's own choice first."""

    def __init__(self, host: Host) -> None:
        self.host = host
        cache = host.read(CACHE, 16 << 20)
        self.cached = cache.known
        found: dict[str, list[str]] = {name: [] for name in NAMES}
        for entry in parse_cache(cache.data):
            if entry.name in found:
                found[entry.name].append(entry.path)
        for name, paths in found.items():
            places = (f"{folder}/{name}" for folder in (*SEARCHED, *ELSEWHERE))
            paths += [path for path in places if path not in paths and host.stat(path).exists]
        self.paths = found

    @property
    def any(self) -> bool:
        """Whether a library of a driver is here; copies for linking and for newer CUDA are none."""
        return any(is_real(path) for paths in self.paths.values() for path in paths)

    @property
    def version(self) -> tuple[DriverVersion | None, str]:
        """The release in the name of the first real file, and that file."""
        for name in NAMES:
            for path in self.paths[name]:
                real = self.host.stat(path).real
                version = file_version(real) if is_real(real) else None
                if version is not None:
                    return version, real
        return None, ""

    def may_load(self, name: str) -> bool:
        """Whether the loader could find it. False is certain, and saves starting a process."""
        host, env = self.host, self.host.env
        if host.system == "Darwin":
            return False
        if host.system != "Linux" or not self.cached or self.paths[name]:
            return True
        if env.get("LD_PRELOAD") or host.stat("/etc/ld.so.preload").exists:
            return True
        own = (f"{prefix}/lib" for prefix in dict.fromkeys((sys.prefix, sys.base_prefix)))
        named = env.get("LD_LIBRARY_PATH", "").replace(";", ":").split(":")
        names = (name, "glibc-hwcaps", "tls", "x86_64", "haswell")
        return any(
            host.stat(f"{folder}/{name}").exists is not False
            for folder in (*own, *named)
            if folder
            for name in names
        )


def is_real(path: str) -> bool:
    """Not a stub for linking, nor a compatibility copy of a newer driver."""
    return "/stubs/" not in path and "/compat/" not in path


PLACES = (
    "/usr/lib/wsl/lib/nvidia-smi",
    "/usr/bin/nvidia-smi",
    "/usr/local/nvidia/bin/nvidia-smi",
    "/run/current-system/sw/bin/nvidia-smi",
    "/opt/bin/nvidia-smi",
)
"""Where it also lies, outside PATH: WSL, GKE, NixOS, CoreOS."""


def find_smi(host: Host) -> str | None:
    """The program on PATH, else where WSL, Windows and clouds put it."""
    found = host.which("nvidia-smi")
    if found is not None or host.system == "Darwin":
        return found
    places: tuple[str, ...] = PLACES
    if host.system == "Windows":
        windows = host.env.get("WINDIR", "C:/Windows")
        programs = host.env.get("ProgramFiles", "C:/Program Files")
        places = (
            f"{windows}/System32/nvidia-smi.exe",
            f"{programs}/NVIDIA Corporation/NVSMI/nvidia-smi.exe",
        )
    return next((path for path in places if host.stat(path).exists), None)


class _Task:
    """A probe in a thread of its own; its children have deadlines, so it ends."""

    def __init__(self, probe: Callable[[], Looked]) -> None:
        self.answer: Looked | None = None
        self._probe = probe
        self._thread = start_thread(self._run)
        if self._thread is None:
            self._run()  # one after the other, where no thread may be started

    def _run(self) -> None:
        try:
            self.answer = self._probe()
        except Exception as error:
            why = f"the probe itself failed: {type(error).__name__}: {error}"
            self.answer = Looked(gaps=(Gap(fact="driver", why=why),))

    def wait(self, until: float) -> Looked | None:
        """Its answer, None where it has none by that time."""
        if self._thread is not None:
            self._thread.join(max(0.0, until - time.monotonic()))
        return self.answer


def read_driver(
    host: Host,
    fast: bool,
    timeout_s: float | None = None,
    patience: Patience | None = None,
    progress: Progress = unheard,
) -> Looked:
    """All facts under `driver`, and `gpus`. timeout_s: caps each wait."""
    patience = (patience or (FAST if fast else FULL)).capped(timeout_s)
    started = time.monotonic()
    until = started + patience.total_s
    files = DriverFiles(host)
    limit_s = min(patience.nvml_s, patience.start_s)
    kernel = _Task(lambda: read_kernel(host, fast=fast, limit_s=limit_s))
    cuda = _Task(lambda: _cuda(host, files, patience, progress))
    nvml = _Task(lambda: _nvml(host, files, patience, progress))
    first = nvml.wait(started + patience.beside_s)
    smi = None
    if first is None or needs_smi(first):
        smi = _Task(lambda: _smi(host, patience))
    answered = nvml.wait(until) or _late("driver.nvml", "gpus")
    parts = [
        kernel.wait(until) or _late("driver.kernel"),
        cuda.wait(until) or _late("driver.libcuda"),
    ]
    if smi is not None and needs_smi(answered):
        # Beside a driver that started and then hung, it would only hang in its turn.
        hung = answered.facts.get("driver.nvml", Nvml()).hung
        enough = until if not hung or is_start(hung) else time.monotonic() + patience.beside_s
        parts.append(smi.wait(min(until, enough)) or _late("driver.smi"))
    else:
        path = find_smi(host)
        parts.append(Looked(facts={"driver.smi": Smi(found=path is not None, path=path)}))
    return _derived(host, _merged([*parts, answered]), files)


def needs_smi(nvml: Looked) -> bool:
    """Whether NVML left open what nvidia-smi may still tell."""
    said = nvml.facts.get("driver.nvml", Nvml())
    whole = said.code == 0 and said.signal is None and said.hung is None
    gpus = nvml.facts.get("gpus")
    named = gpus is not None and all(gpu.name or gpu.code for gpu in gpus)
    return not (whole and named and "driver.reported" in nvml.facts)


def _nvml(host: Host, files: DriverFiles, patience: Patience, progress: Progress) -> Looked:
    if files.may_load("libnvidia-ml.so.1"):
        from cudadoctor.probes.nvml import read_nvml

        return read_nvml(host, patience, progress)
    why = f"libnvidia-ml.so.1: {NOT_THERE}"
    gap = Gap(fact="gpus", why=f"NVML cannot be loaded: {why}")
    return Looked(facts={"driver.nvml": Nvml(loads=False, why=why)}, gaps=(gap,))


def _cuda(host: Host, files: DriverFiles, patience: Patience, progress: Progress) -> Looked:
    if files.may_load("libcuda.so.1"):
        from cudadoctor.probes.libcuda import read_libcuda

        return read_libcuda(host, patience, progress)
    absent = Libcuda(loads=False, why=f"libcuda.so.1: {NOT_THERE}")
    return Looked(facts={"driver.libcuda": absent})


def _smi(host: Host, patience: Patience) -> Looked:
    path = find_smi(host)
    if path is None:
        return Looked(facts={"driver.smi": Smi(found=False)}, origins={"driver.smi": "PATH"})
    # Its parsers are loaded where there is something to parse: not on a machine without a GPU.
    from cudadoctor.probes.smi import read_smi

    return read_smi(host, path, patience)


def _late(*paths: str) -> Looked:
    return Looked(gaps=tuple(Gap(fact=path, why="no answer in time") for path in paths))


def _merged(parts: list[Looked]) -> Looked:
    """All together; what comes later is the better source, but never loses a GPU or a field."""
    facts: dict[str, Any] = {}
    origins: dict[str, str] = {}
    gaps: list[Gap] = []
    for part in parts:
        before = facts.get("gpus")
        facts.update(part.facts)
        origins.update(part.origins)
        gaps = [*part.gaps, *gaps]
        if before and "gpus" in part.facts:
            facts["gpus"] = _both(part.facts["gpus"], before)
    return Looked(facts=facts, origins=origins, gaps=tuple(gaps))


def _both(better: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
    from cudadoctor.probes.smi import joined_gpus

    more = joined_gpus(better, other) or ()
    known = {gpu.index for gpu in more}
    rest = (gpu for gpu in other if gpu.index not in known)
    return tuple(sorted((*more, *rest), key=lambda gpu: gpu.index))


def _derived(host: Host, seen: Looked, files: DriverFiles) -> Looked:
    """Add what only all of it together says: library, newest CUDA, loaded, installed."""
    facts, origins = dict(seen.facts), dict(seen.origins)
    nvml: Nvml = facts.get("driver.nvml", Nvml())
    cuda: Libcuda = facts.get("driver.libcuda", Libcuda())
    smi: Smi = facts.get("driver.smi", Smi())
    version, file = files.version
    if nvml.version is not None and is_real(nvml.path or ""):
        version, file = nvml.version, nvml.path or "NVML"
    if version is not None:
        facts["driver.library"], origins["driver.library"] = version, file
    # A copy without a driver behind it names a version too, which says nothing here.
    speaks = cuda.code in (0, 100) or (cuda.code is not None and "driver.kernel" in facts)
    real = cuda.version is not None and is_real(cuda.path or "")
    if "driver.cuda" not in facts and real and speaks:
        facts["driver.cuda"], origins["driver.cuda"] = cuda.version, "libcuda"
    answers = _answers(facts, nvml, cuda, smi)
    loaded = _loaded(host, facts, nvml, smi, answers)
    if loaded is not None:
        facts["driver.loaded"] = loaded
    installed = bool(
        loaded
        or answers
        or facts.get("driver.module_files")
        or files.any
        or any(path and is_real(path) for path in (nvml.path, cuda.path))
        or any(is_driver(package) for package in facts.get("driver.packages") or ())
    )
    # Where nvidia-smi was waited for in vain, nothing shows that there is no driver.
    if installed or not smi.found or smi.code is not None:
        facts["driver.installed"] = installed
        if not installed and loaded is False and "gpus" not in facts:
            facts["gpus"], origins["gpus"] = (), "no driver is installed"
    return Looked(facts=facts, origins=origins, gaps=seen.gaps)


def _answers(facts: dict[str, Any], nvml: Nvml, cuda: Libcuda, smi: Smi) -> bool:
    """Whether something that talks to the kernel module got an answer."""
    # 15, 16 and 18 are words of the kernel module too: a GPU lost, a reset due, a mismatch.
    spoke = nvml.started or nvml.code in (15, 16, 18)
    counted = cuda.code == 0 and (cuda.count or 0) > 0
    return spoke or counted or (smi.code == 0 and "driver.reported" in facts)


def _loaded(host: Host, facts: dict[str, Any], nvml: Nvml, smi: Smi, answers: bool) -> bool | None:
    if host.system == "Darwin":
        return False
    if host.system == "Windows":
        return True if answers else False if nvml.loads is False else None
    if wsl_of(host, host.read("/proc/sys/kernel/osrelease").text.strip()):
        return False
    # A refusal that nothing but a loaded kernel module gives.
    refused = nvml.code in _REFUSALS or "version mismatch" in (smi.message or "").lower()
    if answers or refused or facts.get("driver.kernel") is not None:
        return True
    modules = facts.get("driver.modules")
    return None if modules is None else "nvidia" in modules or "nvgpu" in modules
