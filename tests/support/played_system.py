"""Plays a Python of Windows or macOS, as far as Linux can: python played_system.py SYSTEM WORDS…

The modules, functions and names that this system lacks are gone before the doctor is imported; the
standard library and the requirements, which have their own code for it, are imported before that.
Children are ordinary processes of Linux, and paths are its paths.
"""

# ruff: noqa: F401 - imported so that they are there

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import logging
import multiprocessing
import os
import pathlib
import platform
import shutil
import signal
import site
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.request
import uuid
import zipfile
from importlib.abc import MetaPathFinder
from pkgutil import walk_packages

import click
import msgspec
import packaging.version
import rich.console

NO_MODULES = {
    "win32": ("fcntl", "resource", "termios", "tty", "pty", "pwd", "grp", "syslog", "readline"),
    "darwin": (),
}
NOT_IN_OS = {
    "win32": (
        "fork forkpty geteuid getuid getgid getegid setsid killpg getpgid setpgid uname statvfs "
        "sysconf confstr sched_getaffinity getloadavg mkfifo mknod chown lchown pidfd_open "
        "memfd_create posix_spawn wait3 wait4 waitid nice O_NOFOLLOW O_DIRECTORY O_CLOEXEC "
        "O_NONBLOCK O_NOCTTY O_PATH getxattr listxattr preadv"
    ),
    "darwin": "sched_getaffinity pidfd_open memfd_create O_PATH getxattr listxattr setxattr",
}
NOT_IN_SIGNAL = {
    "win32": "SIGKILL SIGHUP SIGQUIT SIGUSR1 SIGUSR2 SIGPIPE SIGALRM SIGCHLD SIGWINCH SIGTSTP "
    "SIGCONT pthread_sigmask sigwait alarm setitimer",
    "darwin": "",
}


class Lacking(MetaPathFinder):
    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def find_spec(self, name: str, *_: object) -> None:
        if name in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def play(system: str) -> None:
    for name in NO_MODULES[system]:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, Lacking(NO_MODULES[system]))
    for module, names in ((os, NOT_IN_OS[system]), (signal, NOT_IN_SIGNAL[system])):
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    sys.platform = system
    if system == "win32":
        os.name = "nt"
        pathlib.WindowsPath = pathlib.PosixPath  # type: ignore[misc, assignment]


def import_everything() -> None:
    import cudadoctor

    for module in walk_packages(cudadoctor.__path__, "cudadoctor."):
        # What is started as a program of its own, and what pytest imports.
        if not {"inside", "__main__", "pytest_plugin"} & set(module.name.split(".")):
            importlib.import_module(module.name)


if __name__ == "__main__":
    play(sys.argv.pop(1))
    if sys.argv[1:] == ["imports"]:
        import_everything()
    else:
        from cudadoctor.__main__ import main

        main()
