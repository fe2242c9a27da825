"""What this interpreter is and holds, told by itself in JSON lines.

Runs on every Python from 3.4 on, isolated (-I), with built-in modules only: even re and json would
double its time. Everything installed is read as files; nothing of it is imported. The path that
the user's own programs get (working folder, PYTHONPATH, user site) is rebuilt here as data, since
-I takes those out, and this runs in another folder than they do.
"""

# ruff: noqa: SIM905

import os
import site
import sys

try:
    from _json import encode_basestring_ascii as _quoted
except ImportError:
    from json.encoder import py_encode_basestring_ascii as _quoted

MOST_NAMES = 50000
MOST_HEADER = 1 << 18

PREFIXES = tuple(
    "torch pytorch nvidia- cuda- triton flash-attn flash-attention flashinfer bitsandbytes "
    "lightning xformers jax cupy tensorrt transformer-engine spconv dgl mmcv onnxruntime "
    "tensorflow vllm pyg- intel-".split()
)
NAMES = frozenset(
    "accelerate transformers diffusers peft trl deepspeed apex numpy pynvml detectron2 fairseq "
    "natten mamba-ssm causal-conv1d auto-gptq autoawq exllamav2 sageattention gsplat pytorch3d "
    "kaolin ctranslate2 faster-whisper unsloth sglang timm numba numba-cuda warp-lang cudf cuml "
    "ninja setuptools pip wheel uv ipykernel mkl libtorch cudatoolkit cudnn nccl cpuonly "
    "liger-kernel megatron-core nemo-toolkit fairscale minkowskiengine gpustat nvitop "
    "tiny-cuda-nn".split()
)
NEEDS = ("torch", "pytorch", "nvidia-", "cuda-", "triton", "xformers", "flash-attn")
# What torch imports, with its first optimizer, by 2.13 and 2.14: of Python's own, then of others.
TORCH_IMPORTS = frozenset(
    "argparse array ast asyncio atexit base64 binascii bisect bz2 cProfile calendar cmath "
    "collections colorsys concurrent contextlib contextvars copy copyreg csv ctypes dataclasses "
    "datetime decimal difflib dis email enum errno fcntl fnmatch fractions functools getpass "
    "gettext glob grp gzip hashlib heapq hmac http importlib inspect ipaddress itertools json "
    "keyword linecache locale logging lzma math mmap multiprocessing ntpath numbers opcode "
    "operator pathlib pickle pickletools pkgutil platform pprint profile pstats pwd queue quopri "
    "random re reprlib runpy secrets select selectors shlex shutil signal socket ssl statistics "
    "string struct subprocess sysconfig tarfile tempfile termios textwrap threading timeit token "
    "tokenize traceback types typing unicodedata unittest urllib uuid warnings weakref zipfile "
    "zlib "
    "mpmath numpy sympy torchgen typing_extensions".split()
)
# Python's own start has imported these already: a file of that name comes too late.
STARTED = frozenset(sys.modules)
# Small text files in which a package says for which torch and CUDA it was built.
BUILD_FILES = {
    "torchvision": ("torchvision/version.py",),
    "torchaudio": ("torchaudio/version.py",),
    "torchtext": ("torchtext/version.py",),
    "torchcodec": ("torchcodec/version.py",),
    "xformers": ("xformers/cpp_lib.json",),
    "deepspeed": ("deepspeed/git_version_info_installed.py",),
}


def say(kind, **values):  # type: (str, **object) -> None
    rest = "".join(", " + plain(name) + ": " + plain(value) for name, value in values.items())
    sys.stdout.write('{"kind": ' + plain(kind) + rest + "}\n")
    sys.stdout.flush()


def plain(value):  # type: (object) -> str
    if value is None or value is True or value is False:
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(plain(k) + ": " + plain(v) for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(plain, value)) + "]"
    return str(_quoted(str(value).encode("utf-8", "backslashreplace").decode("utf-8")))


def read(path, limit):  # type: (str, int) -> bytes | None
    """The first bytes of a file, None where there is none to read; a pipe does not hold it up."""
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        handle = os.open(path, flags)
        try:
            return os.read(handle, limit)
        finally:
            os.close(handle)
    except (OSError, ValueError):
        return None


def text_of(path, limit=4096):  # type: (str, int) -> str | None
    data = read(path, limit)
    return None if data is None else data.decode("utf-8", "replace")


def names_in(folder):  # type: (str) -> list[str] | None
    """Sorted names of a folder, at most MOST_NAMES; None where it is no readable folder."""
    try:
        return sorted(os.listdir(folder))[:MOST_NAMES]
    except (OSError, ValueError):
        return None


join = os.path.join
exists = os.path.exists


# --- the interpreter ------------------------------------------------------------------------------


def version():  # type: () -> str
    info = sys.version_info
    text = "{}.{}.{}".format(*info[:3])
    stage = {"alpha": "a", "beta": "b", "candidate": "rc"}.get(info.releaselevel)
    return text + stage + str(info.serial) if stage else text


def base_prefix():  # type: () -> str
    return str(getattr(sys, "real_prefix", None) or sys.base_prefix)


def suffixes():  # type: () -> list[str]
    """The endings of compiled modules, such as .cpython-311-x86_64-linux-gnu.so."""
    try:
        import _imp

        return _imp.extension_suffixes()
    except (ImportError, AttributeError):
        return []


def headers():  # type: () -> bool
    """Python.h, where a compiler would be pointed to."""
    base = join(base_prefix(), "include")
    name = "python{}.{}".format(*sys.version_info[:2]) + getattr(sys, "abiflags", "")
    if exists(join(base, name, "Python.h")):
        return True
    if os.name == "nt" and exists(join(base, "Python.h")):
        return True
    import sysconfig

    folders = {sysconfig.get_path("include"), sysconfig.get_path("platinclude")}
    return any(folder and exists(join(folder, "Python.h")) for folder in folders)


def site_dirs(prefix=None):  # type: (str | None) -> list[str]
    """The folders of installed packages; virtualenv before 20 has a site module without them."""
    try:
        found = site.getsitepackages([prefix] if prefix else None)
    except (AttributeError, TypeError):
        found = []
    return [folder for folder in found or sys.path if folder.rstrip("/\\").endswith("-packages")]


def free_bytes(folder):  # type: (str) -> int | None
    try:
        if hasattr(os, "statvfs"):
            stat = os.statvfs(folder)
            return stat.f_bavail * stat.f_frsize
        import shutil

        return shutil.disk_usage(folder).free
    except (OSError, ValueError):
        return None


def embedded():  # type: () -> bool
    """The embeddable Windows package, whose path stands in a ._pth file."""
    folder = os.path.dirname(sys.executable or "")
    name = "python{}{}._pth".format(*sys.version_info[:2])
    return os.name == "nt" and exists(join(folder, name))


def say_python(user_site):  # type: (str) -> None
    stdlib = os.path.dirname(os.__file__)
    dirs = site_dirs()
    home = next(
        (folder for folder in dirs if os.path.isdir(folder)), dirs[0] if dirs else sys.prefix
    )
    conda = names_in(join(sys.prefix, "conda-meta"))
    say(
        "python",
        executable=sys.executable or "",
        version=version(),
        implementation=sys.implementation.name,
        free_threaded="free-threading" in sys.version,
        bits=64 if sys.maxsize > 2**32 else 32,
        prefix=sys.prefix,
        base_prefix=base_prefix(),
        site_packages=home,
        user_site=user_site,
        pyvenv=text_of(join(sys.prefix, "pyvenv.cfg")),
        conda=conda is not None,
        conda_base=any(name.startswith("conda-") and name[6:7].isdigit() for name in conda or ()),
        embedded=embedded(),
        externally_managed=exists(join(stdlib, "EXTERNALLY-MANAGED")),
        abi="".join(suffixes()[:1]).strip(".").rsplit(".", 1)[0] or None,
        headers=headers(),
        ensurepip=exists(join(stdlib, "ensurepip", "__init__.py")),
        env_free_bytes=free_bytes(home if os.path.isdir(home) else sys.prefix),
    )


# --- the path that programs of the user get -------------------------------------------------------


def user_site_in_use():  # type: () -> str
    """The user site where a Python without -I would use it, else an empty text."""
    if os.environ.get("PYTHONNOUSERSITE") or embedded():
        return ""
    if hasattr(os, "getuid") and (os.geteuid() != os.getuid() or os.getegid() != os.getgid()):
        return ""
    if sys.prefix != base_prefix():
        settings = (text_of(join(sys.prefix, "pyvenv.cfg")) or "").lower().replace(" ", "")
        if "include-system-site-packages=true" not in settings:
            return ""
    try:
        folder = site.getusersitepackages()
    except Exception:  # a foreign site module may lack it or fail in it
        return ""
    return folder if folder and os.path.isdir(folder) else ""


def added_by_pth(folder):  # type: (str) -> list[str]
    """Folders that the .pth files of a site folder put on the path; their code is not run."""
    added = []
    for name in names_in(folder) or ():
        if name.endswith(".pth") and not name.startswith("."):
            text = text_of(join(folder, name), 1 << 16) or ""
            lines = [line.strip() for line in text.splitlines()]
            code = ("#", "import ", "import\t")
            added += [join(folder, line) for line in lines if line and not line.startswith(code)]
    return [entry for entry in added if exists(entry)]


def users_own(name):  # type: (str) -> str
    """A variable as the user has it: the doctor changes it for its children, and keeps the old."""
    return os.environ.get("CUDADOCTOR_OWN_" + name) or ""


def rebuilt_path(user_site):  # type: (str) -> list[tuple[str, str]]
    """(folder, where it comes from): cwd, PYTHONPATH, user, own.

    A PYTHONPATH that leads into the working folder is of the working folder.
    """
    here = users_own("PWD")  # "" where it was deleted
    entries = []
    if here and not users_own("PYTHONSAFEPATH") and not embedded():
        entries.append((here, "cwd"))
    given = users_own("PYTHONPATH")
    for part in given.split(os.pathsep) if given and not embedded() else ():
        if here or os.path.isabs(part):
            folder = os.path.normpath(join(here, part))
            inside = not here or os.path.realpath(part) == os.path.realpath(here)
            away = os.path.isabs(part) and not inside
            entries.append((folder, "PYTHONPATH" if away else "cwd"))
    own = [(entry, "own") for entry in sys.path if entry]
    if user_site:
        base = set(site_dirs(base_prefix()))
        at = next((i for i, pair in enumerate(own) if pair[0] in base), len(own))
        own[at:at] = [(entry, "user") for entry in [user_site] + added_by_pth(user_site)]
    return without_repeats(entries + own)


def without_repeats(entries):  # type: (list[tuple[str, str]]) -> list[tuple[str, str]]
    """Each folder once, where it comes first, by its last origin: the working folder may be one.

    lib64 of a venv is a link to lib.
    """
    seen = {}  # type: dict[object, int]
    kept = []  # type: list[tuple[str, str]]
    for folder, origin in entries:
        try:
            status = os.stat(folder)
        except (OSError, ValueError):
            continue
        mark = (status.st_dev, status.st_ino) if status.st_ino else folder
        if mark in seen:
            kept[seen[mark]] = (kept[seen[mark]][0], origin)
        else:
            seen[mark] = len(kept)
            kept.append((folder, origin))
    return kept


# --- what is installed there ----------------------------------------------------------------------


def normal(name):  # type: (str) -> str
    parts = name.strip().lower().replace("_", "-").replace(".", "-")
    while "--" in parts:
        parts = parts.replace("--", "-")
    return parts


def named(folder):  # type: (str) -> tuple[str, str] | None
    """Name and version that the name of a dist-info or egg-info holds."""
    stem, _, ending = folder.rpartition(".")
    if ending not in ("dist-info", "egg-info") or stem[:1] in ("~", "."):
        return None
    name, version = (stem.split("-") + [""])[:2]
    return normal(name), version


def header(path):  # type: (str) -> list[str]
    """Lines of the header of a METADATA file."""
    for limit in (1 << 14, MOST_HEADER):
        data = read(path, limit) or b""
        text = data.decode("utf-8", "replace").replace("\r\n", "\n")
        if "\n\n" in text or len(data) < limit:
            break
    return text.partition("\n\n")[0].split("\n")


def metadata(folder):  # type: (str) -> tuple[str, str, list[str]]
    """Name, version and requirements as METADATA (PKG-INFO) has them; empty where it is broken."""
    for file in ("METADATA", "PKG-INFO", ""):
        lines = header(join(folder, file) if file else folder)
        if lines != [""]:
            break
    fields = {"Requires-Dist": [], "Name": [], "Version": []}  # type: dict[str, list[str]]
    for line in lines:
        field, _, value = line.partition(":")
        if field in fields:
            fields[field].append(value.strip())
    needs = fields["Requires-Dist"]
    if not needs:
        text = text_of(join(folder, "requires.txt"), 1 << 16) or ""
        needs = [need.strip() for need in text.partition("[")[0].split("\n") if need.strip()]
    name, version = (next(filter(None, fields[field]), "") for field in ("Name", "Version"))
    return normal(name), version, needs


def wanted(requirement):  # type: (str) -> str
    """The normalised name that a requirement asks for."""
    ends = (at for at, letter in enumerate(requirement) if letter in " (<>=!~;[@\t")
    return normal(requirement[: next(ends, None)])


def matters(name):  # type: (str) -> bool
    return name in NAMES or name.startswith(PREFIXES)


def say_distributions(entry, names):  # type: (str, list[str]) -> list[tuple[str, str]]
    """Tell every distribution of a folder that matters; (folder, version) of torch's."""
    torches = []
    for folder in names:
        parts = named(folder) if folder.endswith("-info") else None
        if parts is None:
            continue
        name, version, needs = metadata(join(entry, folder))
        name, version = parts[0] or name, parts[1] or version
        ties = [need for need in needs if wanted(need).startswith(NEEDS)]
        if not (ties or matters(name)):
            continue
        if name == "torch":
            torches.append((folder, version))
        texts = {
            file.rpartition("/")[2]: text_of(join(entry, *file.split("/")))
            for file in BUILD_FILES.get(name, ())
        }
        say(
            "dist",
            name=name,
            version=version,
            entry=entry,
            folder=folder,
            installer=(text_of(join(entry, folder, "INSTALLER"), 100) or "").strip(),
            requires=[need for need in needs if need in ties or wanted(need) == "numpy"],
            texts=texts,
        )
    return torches


# --- torch ----------------------------------------------------------------------------------------


def shape_of(entry, names):  # type: (str, list[str]) -> str
    """What `import torch` would find in this folder: package, module, remains, or nothing."""
    if "torch" in names:
        folder = join(entry, "torch")
        if exists(join(folder, "__init__.py")):
            return "package"
        if os.path.isdir(join(folder, "lib")) and exists(join(folder, "version.py")):
            return "remains"
    return "module" if module_file(names, "torch") else ""


def module_file(names, stem):  # type: (list[str], str) -> str
    """The file that is the module of that name in a folder, "" without one."""
    files = (stem + ending for ending in suffixes() + [".py", ".pyc"])
    return next((file for file in files if file in names), "")


def say_shadows(path):  # type: (list[tuple[str, str]]) -> None
    """Files of the working folder that torch would import in place of what it needs, by name."""
    found = []
    for entry, origin in path:
        if origin != "cwd":
            continue
        names = names_in(entry) or []
        stems = {file.partition(".")[0] for file in names} & TORCH_IMPORTS
        for stem in sorted(stems - STARTED - set(sys.builtin_module_names)):
            name = stem if exists(join(entry, stem, "__init__.py")) else module_file(names, stem)
            if name:
                found.append(join(entry, name))
    say("shadows", files=found)


def say_copy(entry, origin, names, shape, dists):
    # type: (str, str, list[str], str, list[tuple[str, str]]) -> None
    folder = join(entry, module_file(names, "torch") if shape == "module" else "torch")
    say(
        "copy",
        path=folder,
        entry=entry,
        origin=origin,
        shape=shape,
        dists=[{"folder": name, "version": release} for name, release in dists],
        text=text_of(join(folder, "version.py")) if shape != "module" else None,
        lib=os.path.isdir(join(folder, "lib")),
    )


def say_conda():  # type: () -> None
    """The records of conda packages that matter; their names hold version and build."""
    folder = join(sys.prefix, "conda-meta")
    files = [file for file in names_in(folder) or () if file.endswith(".json")]
    records = [file for file in files if file.count("-") > 1 and matters(file.rsplit("-", 2)[0])]
    if records:
        say("conda", folder=folder, records=records)


def say_installed(path):  # type: (list[tuple[str, str]]) -> None
    stdlib = os.path.dirname(os.__file__)
    skipped = (stdlib, join(stdlib, "lib-dynload"))
    for entry, origin in path:
        names = names_in(entry) if entry not in skipped else None
        if names is None:
            continue
        dists = say_distributions(entry, names)
        # Folders that a pip which was killed renamed and could not bring back (~orch).
        left = [name for name in names if name.startswith("~")]
        if left and origin != "cwd":
            say("leftovers", entry=entry, names=left[:50])
        if "pip" in names and exists(join(entry, "pip", "__init__.py")) and origin != "cwd":
            say("pip", entry=entry)
        shape = shape_of(entry, names)
        if shape or dists:
            say_copy(entry, origin, names, shape, dists)


def main():  # type: () -> None
    # What a sitecustomize printed may lack the end of its line.
    sys.stdout.write("\n")
    user_site = user_site_in_use()
    say_python(user_site)
    path = rebuilt_path(user_site)
    say("path", entries=[list(entry) for entry in path], nowhere=not users_own("PWD"))
    say_conda()
    say_shadows(path)
    say_installed(path)
    say("end")


if __name__ == "__main__":
    main()
