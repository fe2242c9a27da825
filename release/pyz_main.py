# -*- coding: utf-8 -*-
"""Start of cudadoctor.pyz: unpack the wheels for this Python, run the doctor, and remove them.

Any Python from 2.7 on reads this file, so that those for which there are no wheels can say so.
"""

import json
import os
import platform
import signal
import sys
import zipfile

try:
    from typing import Any, Dict, Iterator, List, Optional
except ImportError:  # Python 2
    pass
try:
    from shlex import quote
except ImportError:  # Python 2
    from pipes import quote

HERE = os.path.dirname(os.path.abspath(__file__))  # the zip file
NEEDS = {
    "en": "cudadoctor.pyz does not run on {this}. It needs CPython {pythons} on Linux with glibc "
    "({machines}). Run it with such a Python, and name the one to check:\n"
    "    python3.12 cudadoctor.pyz check --python {python}",
    "es": "cudadoctor.pyz no funciona con {this}. Necesita CPython {pythons} en Linux con glibc "
    "({machines}). Ejecútelo con uno de esos Python e indique cuál revisar:\n"
    "    python3.12 cudadoctor.pyz check --python {python}",
}
BROKEN = {
    "en": "cudadoctor.pyz cannot load its packages ({why}). Copy the file again: it may be "
    "damaged.",
    "es": "cudadoctor.pyz no puede cargar sus paquetes ({why}). Copie el archivo de nuevo; puede "
    "estar dañado.",
}
NO_ROOM = {
    "en": "cudadoctor.pyz found no folder to unpack into ({why}). Set TMPDIR to a folder with 20 "
    "MB of free space from which programs may be loaded (not mounted noexec).",
    "es": "cudadoctor.pyz no encontró ninguna carpeta donde desempaquetar ({why}). Asigne a TMPDIR "
    "una carpeta con 20 MB libres desde la que se puedan cargar programas (montada sin noexec).",
}
FORWARDED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")


def main():
    # type: () -> int
    with zipfile.ZipFile(HERE) as archive:
        sets = json.loads(archive.read("sets.json").decode("utf-8"))
        wheels = sets.get(this())
        if wheels is None:
            return refuse(NEEDS, **described(sets))
        folder = None  # type: Optional[str]
        why = "TMPDIR"
        for parent in places():
            try:
                folder = made(parent)
                unpack(archive, wheels, folder)
                break
            except OSError as error:
                why = "{}: {}".format(parent, error.strerror)
                remove(folder)
                folder = None
    if folder is None:
        return refuse(NO_ROOM, why=why)
    try:
        return run(folder)
    finally:
        remove(folder)  # its lock ends with this process


def this():
    # type: () -> str
    """The key of this Python among the sets of wheels, as "cp312-linux-x86_64"."""
    implementation = {"CPython": "cp"}.get(platform.python_implementation(), "other")
    name = "{}{}{}".format(implementation, *sys.version_info[:2])
    # A free-threaded Python has an ABI of its own.
    name += getattr(sys, "abiflags", "").replace("d", "")
    system = sys.platform.replace("linux2", "linux")
    if system == "linux" and sys.version_info >= (3,) and not glibc():
        system = "musl"
    bits = "" if sys.maxsize > 2**32 else "-32bit"
    machine = {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    return "{}-{}-{}{}".format(name, system, machine, bits)


def described(sets):
    # type: (Dict[str, List[str]]) -> Dict[str, str]
    """What the refusal says of this Python and of those that there are wheels for."""
    keys = [key.split("-") for key in sets]
    pythons = sorted({int(python[3:]) for python, _, _ in keys})
    return {
        "this": "{} {} ({})".format(
            platform.python_implementation(), platform.python_version(), this().partition("-")[2]
        ),
        "pythons": ", ".join("3.{}".format(minor) for minor in pythons),
        "machines": ", ".join(sorted({machine for _, _, machine in keys})),
        "python": quote(sys.executable or "python3"),
    }


def glibc():
    # type: () -> Optional[str]
    try:
        return os.confstr("CS_GNU_LIBC_VERSION")
    except (AttributeError, OSError, ValueError):
        return None


def refuse(texts, **values):
    # type: (Dict[str, str], **object) -> int
    names = ("CUDADOCTOR_LANG", "LC_ALL", "LC_MESSAGES", "LANG")
    chosen = [os.environ[name] for name in names if os.environ.get(name)]
    language = (chosen or ["en"])[0][:2]
    text = texts.get(language, texts["en"]).format(**values) + "\n"
    data = text if isinstance(text, bytes) else text.encode("utf-8")  # bytes in Python 2
    stream = getattr(sys.stderr, "buffer", sys.stderr)  # type: Any
    stream.write(data)
    return 2


def places():
    # type: () -> Iterator[str]
    """Where to unpack, the best first: programs can be loaded from there."""
    home = os.path.expanduser("~")
    named = [os.environ.get("TMPDIR"), "/tmp", "/var/tmp", "/dev/shm"]
    named += [os.environ.get("XDG_CACHE_HOME"), os.path.join(home, ".cache"), home]
    for parent in named:
        try:
            if parent and not os.statvfs(parent).f_flag & os.ST_NOEXEC:
                yield os.path.abspath(parent)
        except OSError:
            continue


def made(parent):
    # type: (str) -> str
    """A new folder and a lock on it.

    Both are named and held as the doctor's own temporary folders are: a later start removes those
    that nobody holds any more, also this one if it is killed.
    """
    import fcntl

    path = os.path.join(parent, "cudadoctor-" + os.urandom(8).hex())
    os.mkdir(path, 0o700)
    lock = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        pass  # a file system without locks: nobody sweeps there either
    return path


def unpack(archive, wheels, folder):
    # type: (zipfile.ZipFile, List[str], str) -> None
    for wheel in wheels:
        with archive.open("wheels/" + wheel) as stored, zipfile.ZipFile(stored) as packed:
            packed.extractall(folder)


def run(folder):
    # type: (str) -> int
    """Run the doctor in a child of its own, which may end in any way, and return its exit code."""
    child = os.fork()
    if child == 0:
        sys.path[0] = folder
        sys.argv[0] = "cudadoctor"
        setattr(sys, "frozen", True)  # no environment is the doctor's own
        try:
            from cudadoctor.__main__ import main as doctor
        except ImportError as error:
            os._exit(refuse(BROKEN, why=error))
        doctor()
        os._exit(0)  # never reached: the doctor ends its process by itself
    # The doctor tidies up at the first signal; a second one, as the terminal sends, does no harm.
    for name in FORWARDED:
        signal.signal(getattr(signal, name), lambda number, _: os.kill(child, number))
    status = os.waitpid(child, 0)[1]
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def remove(folder):
    # type: (Optional[str]) -> None
    import shutil

    if folder:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
