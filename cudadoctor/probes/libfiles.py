"""The driver's own libraries as files: where the loader could find them, and their release."""

from __future__ import annotations

import sys

from cudadoctor.host.local import Host
from cudadoctor.model.versions import DriverVersion
from cudadoctor.probes.libcuda import file_version
from cudadoctor.probes.loader import parse_cache

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
        return any(self._may_hold(folder, name) for folder in (*own, *named) if folder)

    def _may_hold(self, folder: str, name: str) -> bool:
        deeper = ("glibc-hwcaps", "tls", "x86_64", "haswell")
        return any(self.host.stat(f"{folder}/{one}").exists is not False for one in (name, *deeper))


def is_real(path: str) -> bool:
    """Not a stub for linking, nor a compatibility copy of a newer driver."""
    return "/stubs/" not in path and "/compat/" not in path
