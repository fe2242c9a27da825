"""Which GPUs a guest leaves alone: pure, from what the driver says of them."""

from __future__ import annotations

from cudadoctor.model.machine import Gpu

FULL = 0.8

# They hold a little memory on every machine with a screen, and no training stands in their way.
SCREEN = frozenset(
    {
        *("Xorg", "X", "Xwayland", "Xvnc", "gnome-shell", "gnome-session", "mutter", "kwin_x11"),
        *("kwin_wayland", "plasmashell", "cinnamon", "sway", "Hyprland", "weston", "xfwm4"),
        *("compiz", "gdm", "sddm", "dwm.exe", "explorer.exe", "csrss.exe"),
    }
)


def avoided(gpus: tuple[Gpu, ...]) -> dict[int, str]:
    """By position in the tuple, why a GPU is not to be used."""
    reasons = {position: _reason(gpu) for position, gpu in enumerate(gpus)}
    return {position: reason for position, reason in reasons.items() if reason}


def as_words(gpus: tuple[Gpu, ...] | None) -> tuple[str, ...]:
    """The same as orders for the child: the PCI address, the position and the reason."""
    if gpus is None:
        return ("careful=1",)
    return tuple(
        f"skip={short_bus_id(gpus[position].bus_id)}|{position}|{reason}"
        for position, reason in avoided(gpus).items()
    )


def short_bus_id(bus_id: str | None) -> str:
    """0000:41:00.0, as CUDA writes it, of NVML's 00000000:41:00.0; "" where it is not known."""
    domain, colon, rest = (bus_id or "").partition(":")
    return f"{domain[-4:]}{colon}{rest}".lower()


def _reason(gpu: Gpu) -> str:
    if gpu.code:
        return "the driver cannot reach it"
    if gpu.compute_mode in ("exclusive", "prohibited"):
        return f"its compute mode is {gpu.compute_mode}"
    others = [one for one in gpu.processes or () if not _of_the_screen(one.name)]
    if others:
        named = ", ".join(f"{one.name or 'a process'} ({one.pid})" for one in others[:3])
        return f"other processes use it: {named}"
    if gpu.memory_bytes and gpu.memory_used_bytes is not None:
        used = gpu.memory_used_bytes / gpu.memory_bytes
        if used > FULL:
            return f"{used:.0%} of its memory is in use"
    return ""


def _of_the_screen(name: str | None) -> bool:
    return (name or "").replace("\\", "/").rpartition("/")[2].split(" ")[0] in SCREEN
