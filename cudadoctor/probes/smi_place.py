"""Where nvidia-smi lies; apart from its answers, which most machines need nobody to read."""

from __future__ import annotations

from cudadoctor.host.local import Host

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
