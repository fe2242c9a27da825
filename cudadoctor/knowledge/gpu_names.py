"""The many spellings of a GPU's name.

nvidia-smi says "NVIDIA GeForce RTX 3090", torch says the same, older drivers leave the vendor out,
lists of PCI ids write "Tesla V100 SXM2 16GB" where the driver writes "Tesla V100-SXM2-16GB".
"""

from __future__ import annotations

import re

_MEMORY = re.compile(r"\d+g(?:b|$)")
_VIRTUAL = re.compile(r"-\d+[qcab]$")


def spellings(name: str) -> tuple[str, ...]:
    """The name in its plain spelling, then without its memory size where it has one."""
    text = name.lower().partition(" mig ")[0].replace("(nvgpu)", " ")
    text = _VIRTUAL.sub("", text.strip())
    text = text.replace("with max-q design", "max-q")
    words = [word for word in re.split(r"[\s\-_]+", text) if word not in ("", "nvidia", "gpu")]
    exact = " ".join(words)
    short = " ".join(word for word in words if not _MEMORY.match(word))
    return (exact, short) if short and short != exact else (exact,)
