"""Nothing of the current folder runs: where a child starts, and what its environment leads to.

A pip.py, a torch.py or a nvidia-smi that lies beside the user is read, named and never executed.
"""

# Paths are texts here, and pathlib would cost 3 ms of a fast check.
# ruff: noqa: PTH100, PTH109, PTH110, PTH117, PTH118, PTH120

from __future__ import annotations

import os
from collections.abc import Mapping

OWN = "CUDADOCTOR_OWN_"
"""Stands before the variables that tell look.py what the user's own programs are started with."""
_TOLD = ("PYTHONPATH", "PYTHONSAFEPATH")
_FILES = (
    *("PIP_CONFIG_FILE", "PIP_CONSTRAINT", "PIP_FIND_LINKS", "PIP_CERT", "PIP_CLIENT_CERT"),
    *("UV_CONFIG_FILE", "UV_CONSTRAINT", "UV_FIND_LINKS", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"),
)
"""Settings that may name a file beside the user, which a child elsewhere would not find."""


_SYSTEM = frozenset({"/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"})
"""Folders of programs that stay on PATH for somebody who stands in them."""


def here() -> str:
    """The current folder, "" if it was deleted."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def nowhere() -> str:
    """Where a child starts if there is no folder of our own: the root holds nobody's programs."""
    return os.path.abspath(os.sep) if os.name == "posix" else os.path.dirname(os.__file__)


def folders(path: str, *, windows: bool = os.name == "nt") -> tuple[str, ...]:
    """The folders of a PATH without those that lead to where one stands: "", ".", bin."""
    if windows:
        from ntpath import isabs
    else:
        from posixpath import isabs
    found = tuple(one for one in path.split(";" if windows else ":") if isabs(one))
    user = here()
    if not user or user in _SYSTEM or os.path.realpath(user) in _SYSTEM:
        return found
    real = os.path.realpath(user)
    return tuple(one for one in found if os.path.realpath(one) != real)


def examined(env: Mapping[str, str], cwd: str) -> dict[str, str]:
    """The same for a child that looks at what the user's own programs would find."""
    told = {OWN + name: env[name] for name in _TOLD if env.get(name)} | {OWN + "PWD": here()}
    return environment(env, cwd) | told | {"PYTHONSAFEPATH": "1"}


def environment(env: Mapping[str, str], cwd: str) -> dict[str, str]:
    """The environment of a child that starts in `cwd`, without what leads into the user's folder.

    What is the user's own and lies elsewhere stays: it is part of what is examined. PYTHONSAFEPATH
    is not for package managers: many a setup.py imports what lies beside it.
    """
    user = here()
    changed = {name: value for name, value in env.items() if not name.startswith(OWN)}
    changed["PATH"] = os.pathsep.join(folders(env.get("PATH") or os.defpath))
    if "PYTHONPATH" in env:
        changed["PYTHONPATH"] = os.pathsep.join(elsewhere(env["PYTHONPATH"], user))
    if not os.path.isabs(env.get("PYTHONHOME") or os.sep):
        del changed["PYTHONHOME"]
    if "PWD" in env:
        changed["PWD"] = cwd
    for name in _FILES:
        if (value := env.get(name)) and not os.path.isabs(value) and os.path.exists(value):
            changed[name] = os.path.join(user, value)
    return changed


def elsewhere(path: str, user: str) -> tuple[str, ...]:
    """The folders of a PYTHONPATH that are not the current one, `user`."""
    real = os.path.realpath(user)
    return tuple(one for one in folders(path) if not user or os.path.realpath(one) != real)
