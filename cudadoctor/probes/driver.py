"""The driver as a whole: NVML, libcuda, nvidia-smi and the kernel's side, asked side by side."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import chain
from time import monotonic

from cudadoctor.host.children import start_thread
from cudadoctor.host.local import Host, existing
from cudadoctor.model.driver_packages import is_driver
from cudadoctor.model.machine import (
    Gap,
    Gpu,
    Json,
    Libcuda,
    Nvml,
    OptBool,
    OptFloat,
    OptStr,
    Smi,
    Strings,
    is_start,
)
from cudadoctor.probes import Looked
from cudadoctor.probes.kernel import read_kernel
from cudadoctor.probes.libcuda import file_version, read_libcuda
from cudadoctor.probes.loader import CACHE, parse_cache
from cudadoctor.probes.platform import wsl_of
from cudadoctor.probes.streamed import Patience, Progress, no_progress

_REFUSALS = frozenset({4, 15, 16, 17, 18})
"""NVML's codes for no permission, lost, reset required, blocked and version mismatch."""
NOT_THERE = "cannot open shared object file: No such file or directory"


FAST = Patience(nvml_s=4.0, smi_s=3.4, total_s=5.2)
"""Shorter than any silence that would prove something: what has not answered is a gap."""
FULL = Patience()


NVML, LIBCUDA = NAMES = ("libnvidia-ml.so.1", "libcuda.so.1")
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
        self.paths: dict[str, list[str]] = {}
        for name in NAMES:
            paths = [entry.path for entry in parse_cache(cache.data) if entry.name == name]
            places = (f"{folder}/{name}" for folder in (*SEARCHED, *ELSEWHERE))
            paths += [path for path in places if path not in paths and host.stat(path).exists]
            self.paths[name] = paths

    @property
    def every(self) -> Iterator[str]:
        return chain.from_iterable(self.paths.values())

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


def find_smi(host: Host) -> OptStr:
    """The program on PATH, else where WSL, Windows and clouds put it."""
    places: Strings = () if host.system == "Darwin" else PLACES
    if host.system == "Windows":
        windows = host.env.get("WINDIR", "C:/Windows")
        programs = host.env.get("ProgramFiles", "C:/Program Files")
        places = (
            f"{windows}/System32/nvidia-smi.exe",
            f"{programs}/NVIDIA Corporation/NVSMI/nvidia-smi.exe",
        )
    return host.which("nvidia-smi") or existing(host, places)


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
            self._thread.join(max(0.0, until - monotonic()))
        return self.answer


def read_driver(
    host: Host,
    fast: bool,
    timeout_s: OptFloat = None,
    patience: Patience | None = None,
    progress: Progress = no_progress,
) -> Looked:
    """All facts under `driver`, and `gpus`. timeout_s: caps each wait."""
    patience = (patience or (FAST if fast else FULL)).capped(timeout_s)
    started = monotonic()
    until = started + patience.total_s
    files = DriverFiles(host)

    def ask_nvml() -> Looked:
        if files.may_load(NVML):
            from cudadoctor.probes.nvml import read_nvml

            return read_nvml(host, patience, progress)
        why = f"{NVML}: {NOT_THERE}"
        seen = Looked(facts={"driver.nvml": Nvml(loads=False, why=why)})
        seen.gap("gpus", f"NVML does not load: {why}")
        return seen

    def ask_cuda() -> Looked:
        if files.may_load(LIBCUDA):
            return read_libcuda(host, patience, progress)
        return Looked(facts={"driver.libcuda": Libcuda(loads=False, why=f"{LIBCUDA}: {NOT_THERE}")})

    def ask_smi() -> Looked:
        path = find_smi(host)
        if path is None:
            return Looked(facts={"driver.smi": Smi(found=False)}, origins={"driver.smi": "PATH"})
        # Its parsers are loaded where there is something to parse: not on a machine without a GPU.
        from cudadoctor.probes.smi import read_smi

        return read_smi(host, path, patience)

    limit_s = min(patience.nvml_s, patience.start_s)
    kernel = _Task(lambda: read_kernel(host, fast=fast, limit_s=limit_s))
    cuda, nvml = _Task(ask_cuda), _Task(ask_nvml)
    first = nvml.wait(started + patience.beside_s)
    smi = _Task(ask_smi) if first is None or needs_smi(first) else None
    answered = nvml.wait(until) or _late("driver.nvml", "gpus")
    parts = [
        kernel.wait(until) or _late("driver.kernel"),
        cuda.wait(until) or _late("driver.libcuda"),
    ]
    if smi is not None and needs_smi(answered):
        # Beside a driver that started and then hung, it would only hang in its turn.
        hung = answered.facts.get("driver.nvml", Nvml()).hung
        enough = until if not hung or is_start(hung) else monotonic() + patience.beside_s
        parts.append(smi.wait(min(until, enough)) or _late("driver.smi"))
    else:
        path = find_smi(host)
        parts.append(Looked(facts={"driver.smi": Smi(found=path is not None, path=path)}))
    return _derived(host, _merged([*parts, answered]), files)


def needs_smi(nvml: Looked) -> bool:
    """Whether NVML left open what nvidia-smi may still tell."""
    library = nvml.facts.get("driver.nvml", Nvml())
    whole = library.code == 0 and library.signal is None and library.hung is None
    gpus = nvml.facts.get("gpus")
    named = gpus is not None and all(gpu.name or gpu.code for gpu in gpus)
    return not (whole and named and "driver.reported" in nvml.facts)


def _late(*paths: str) -> Looked:
    return Looked(gaps=tuple(Gap(fact=path, why="did not respond in time") for path in paths))


def _merged(parts: list[Looked]) -> Looked:
    """All together; what comes later is the better source, but never loses a GPU or a field."""
    whole = Looked()
    for part in parts:
        before, after = whole.facts.get("gpus"), part.facts.get("gpus")
        whole.facts |= part.facts
        whole.origins |= part.origins
        whole.gaps = part.gaps + whole.gaps
        if before and after is not None:
            whole.facts["gpus"] = _both(after, before)
    return whole


def _both(better: tuple[Gpu, ...], other: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    from cudadoctor.probes.smi import joined_gpus

    more = {gpu.index: gpu for gpu in (*other, *(joined_gpus(better, other) or ()))}
    return tuple(more[index] for index in sorted(more))


def _derived(host: Host, seen: Looked, files: DriverFiles) -> Looked:
    """Add what only all of it together says: library, newest CUDA, loaded, installed."""
    facts = seen.facts
    nvml = facts.get("driver.nvml", Nvml())
    cuda = facts.get("driver.libcuda", Libcuda())
    smi = facts.get("driver.smi", Smi())
    if nvml.version is not None and is_real(nvml.path or ""):
        seen.fact("driver.library", nvml.version, nvml.path or "NVML")
    else:
        # The release in the name of the first real file.
        reals = filter(is_real, (host.stat(path).real for path in files.every))
        file = next(filter(file_version, reals), "")
        seen.fact("driver.library", file_version(file), file)
    # A copy without a driver behind it names a version too, which says nothing here.
    speaks = cuda.code in (0, 100) or (cuda.code is not None and "driver.kernel" in facts)
    if "driver.cuda" not in facts and is_real(cuda.path or "") and speaks:
        seen.fact("driver.cuda", cuda.version, "libcuda")
    # Whether something that talks to the kernel module got an answer: 15, 16 and 18 are its words
    # too (a GPU lost, a reset due, a mismatch).
    answers = nvml.started or nvml.code in (15, 16, 18) or (cuda.code == 0 and bool(cuda.count))
    answers = answers or (smi.code == 0 and "driver.reported" in facts)
    loaded = _loaded(host, facts, nvml, smi, answers)
    seen.fact("driver.loaded", loaded)
    installed = bool(
        loaded
        or answers
        or facts.get("driver.module_files")
        or any(map(is_real, files.every))
        or any(path and is_real(path) for path in (nvml.path, cuda.path))
        or any(map(is_driver, facts.get("driver.packages") or ()))
    )
    # Where nvidia-smi was waited for in vain, nothing shows that there is no driver.
    if installed or not smi.found or smi.code is not None:
        seen.fact("driver.installed", installed)
        if not installed and loaded is False and "gpus" not in facts:
            seen.fact("gpus", (), "no driver is installed")
    return seen


def _loaded(host: Host, facts: Json, nvml: Nvml, smi: Smi, answers: bool) -> OptBool:
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
    return None if modules is None else not {"nvidia", "nvgpu"}.isdisjoint(modules)
