"""The environment variables that can change what torch, CUDA, pip or the loader do."""

from __future__ import annotations

from cudadoctor.host.local import Host
from cudadoctor.model.variables import allowed
from cudadoctor.probes import Looked, Notes

__all__ = ["allowed", "read_environment"]


def read_environment(host: Host) -> Looked:
    """The variables of the allow-list that are set; nothing that looks like a secret."""
    notes = Notes()
    notes.fact("env", allowed(host.env), "environment")
    return notes.looked()
