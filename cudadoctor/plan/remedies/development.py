"""Remedies that bring what compiles: a CUDA toolkit, a compiler, Python's headers, a C++ runtime.

System packages by the distribution's own manager; in a conda environment by conda, without root.
"""

from __future__ import annotations

import re
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace
from packaging.version import Version

from cudadoctor.installers import conda
from cudadoctor.installers.tool import manager, system_packages
from cudadoctor.knowledge.tables import table
from cudadoctor.model.findings import Remedies, Remedy, Risk
from cudadoctor.model.machine import Library, Machine, OptInt, OptStr, Strings, Versions
from cudadoctor.model.versions import version_of
from cudadoctor.plan.remedies.driver import has_nvidias_repository
from cudadoctor.plan.remedies.process import (
    by_hand,
    commands_in,
    family_of,
    keep_setting,
    keeper_of,
    major_of,
    set_variables,
)
from cudadoctor.plan.remedies.repositories import adding, repository_of

_ARCHIVE = "https://developer.nvidia.com/cuda-toolkit-archive"
_FORGE_FROM = 12
"""From this CUDA on conda-forge has the toolkit; older ones lie on NVIDIA's channel."""
_HEADERS_OF_OWN = {("rhel", 8): "3.6", ("rhel", 9): "3.9", ("rhel", 10): "3.12"}
"""The distribution's own Python, whose headers bear no minor version in their package's name."""
_NIX_HOME = (
    "In the new shell, set CUDA_HOME to the path that `dirname $(dirname $(which nvcc))` prints."
)
_COMPILERS = {
    "debian 11": (10, 9, 10),
    "debian 12": (12, 11, 12),
    "debian 13": (14, 12, 14),
    "ubuntu 20": (9, 7, 10),
    "ubuntu 22": (11, 9, 12),
    "ubuntu 24": (13, 9, 14),
    "rhel 8": (8, 9, 15),
    "rhel 9": (11, 12, 15),
    "rhel 10": (14, 15, 15),
    "amazon 2023": (11, 14, 14),
}
"""Of a release of a distribution: g++ itself, then the oldest and the newest beside it."""
_OLDEST_FOR_TORCH = 9
"""The oldest g++ that compiles torch's headers."""
_YUM_ONLY = 2
"""Amazon Linux 2 has no dnf, and a C library that no current torch runs with."""


class Packages(NamedTuple):
    """What a distribution calls them. older: g++ of one major version."""

    headers: str
    compiler: str
    older: str
    manager: str


def packages_of(m: Machine) -> Packages | None:
    """By the family of the distribution; None for one that is not known."""
    family = " ".join((m.platform.distro or "", *(m.platform.distro_like or ())))
    rows = table("rules/build_packages", tuple[tuple[str, str, str, str, str], ...])
    if m.platform.distro == "amzn" and major_of(m) == _YUM_ONLY:
        return None
    found = (Packages(*names) for words, *names in rows if re.search(words, family))
    return next(found, None)


def _install(m: Machine, *names: str) -> tuple[Strings, ...]:
    """The commands of the distribution's own manager; () where that is not known."""
    packages = packages_of(m)
    if packages is None:
        return ()
    return system_packages(packages.manager, *names)


def _as_root(
    m: Machine,
    id: str,  # noqa: A002
    title: str,
    commands: tuple[Strings, ...],
    variables: dict[str, OptStr] | None = None,
) -> Remedies:
    """Packages of the system: on a cluster they are its administrator's."""
    # Root of a container needs nobody to install what is lost with it.
    admin = keeper_of(m) == "admin" and not (m.container.kind and m.platform.root)
    note = keep_setting(m) if variables and not m.container.kind else None
    return (
        Remedy(
            id=id,
            title=title,
            where="admin" if admin else "here",
            commands=commands,
            needs_root=True,
            variables=variables or {},
            note=note,
        ),
    )


def _conda(m: Machine, verb: str, *words: str, prefix: OptStr = None) -> Strings:
    """A command of conda's for an environment, by default the examined one."""
    prefix = prefix or m.python.prefix
    where = () if not prefix or prefix.startswith(("~", "<")) else ("-p", prefix)
    return (manager(m, *conda.PROGRAMS) or "conda", verb, "-y", *where, *words)


def _is_conda(m: Machine) -> bool:
    return (m.python.kind or "").startswith("conda")


def _home(m: Machine) -> dict[str, OptStr]:
    """CUDA_HOME for a toolkit in the conda environment; {} where its folder is not known."""
    prefix = m.python.prefix
    return {} if not prefix or prefix.startswith(("~", "<")) else {"CUDA_HOME": prefix}


# --- the CUDA toolkit ----------------------------------------------------------------------------


def install_toolkit(m: Machine, least: Version | None = None) -> Remedies:
    """A toolkit of torch's CUDA, without a driver. least: the oldest that compiles here."""
    cuda = m.torch.cuda or Version("12.8")
    cuda = max(cuda, least or cuda)
    number = f"{cuda.major}.{cuda.minor}"
    step = partial(Remedy, id="install-toolkit", risk=Risk.ENVIRONMENT)
    if _is_conda(m):
        channel = "conda-forge" if cuda.major >= _FORGE_FROM else f"nvidia/label/cuda-{number}.0"
        command = _conda(m, "install", "-c", channel, f"cuda-toolkit={number}")
        title = f"Install the CUDA {number} toolkit in the conda environment"
        return (step(title=title, commands=(command,), variables=_home(m), tool="conda"),)
    if m.platform.jetson:
        return _toolkit(m, cuda, ())
    repository = repository_of(m, toolkit=True)
    nearest = repository and _nearest(cuda, repository.toolkits)
    if nearest and (setup := adding(m, repository)):
        return _toolkit(m, nearest, () if has_nvidias_repository(m) else commands_in(setup))
    if family_of(m) == "arch" and cuda.major >= 13:
        commands = _install(m, "cuda")
        title = f"Install the CUDA {cuda.major} toolkit"
        return _as_root(m, "install-toolkit", title, commands, {"CUDA_HOME": "/opt/cuda"})
    if family_of(m) == "nixos":
        package = f"cudaPackages_{cuda.major}_{cuda.minor}.cudatoolkit"
        text = f"Start a shell that includes this package: `nix-shell -p {package}`. {_NIX_HOME}"
        return by_hand("install-toolkit", f"Use the CUDA {number} toolkit from nixpkgs", text)
    text = f"Download CUDA {number} from {_ARCHIVE} and install the toolkit without the driver."
    if m.platform.system == "Windows":
        text += " In the installer, choose Custom and deselect the driver."
    return by_hand("install-toolkit", f"Install the CUDA {number} toolkit", text)


def _toolkit(m: Machine, cuda: Version, before: tuple[Strings, ...]) -> Remedies:
    number = f"{cuda.major}.{cuda.minor}"
    commands = (*before, *_install(m, f"cuda-toolkit-{cuda.major}-{cuda.minor}"))
    home: dict[str, OptStr] = {"CUDA_HOME": f"/usr/local/cuda-{number}"}
    title = f"Install the CUDA {number} toolkit"
    return _as_root(m, "install-toolkit", title, commands, home)


def _nearest(cuda: Version, toolkits: Strings) -> Version | None:
    """The nearest CUDA of that major among these: the first, and the last if it has ended."""
    nearest = max(cuda, Version(toolkits[0]))
    nearest = min(nearest, *map(Version, toolkits[1:]), nearest)
    return nearest if nearest.major == cuda.major else None


# --- compilers and headers ------------------------------------------------------------------------


def c_compiler(m: Machine) -> Remedies:
    """The distribution's C and C++ compiler."""
    title = "Install a C and C++ compiler"
    if _is_conda(m) and m.platform.system == "Linux":
        command = _conda(m, "install", "-c", "conda-forge", "gcc", "gxx")
        return (Remedy(id="c-compiler", title=title, risk=Risk.ENVIRONMENT, commands=(command,)),)
    packages = packages_of(m)
    if packages is None:
        text = "Install gcc and g++ with your distribution's package manager."
        if family_of(m) == "nixos":
            text = "Start a shell with a compiler: `nix-shell -p gcc`."
        return by_hand("c-compiler", title, text)
    return _as_root(m, "c-compiler", title, _install(m, packages.compiler))


def python_headers(m: Machine) -> Remedies:
    """Python.h of the examined Python."""
    title, packages, python = (
        "Install the headers for this Python",
        packages_of(m),
        m.python.version,
    )
    number = f"{python.major}.{python.minor}" if python else "3"
    if m.platform.system == "Windows":
        text = (
            "The embeddable Python of portable programs does not include the folders `include` "
            f"and `libs`. Copy both from an installed Python {number} into the folder of your "
            "python.exe. Do not change the folder `Lib`: it is not `libs`."
        )
        return by_hand("python-headers", title, text)
    if packages is None:
        text = f"Install your distribution's development files for Python {number}."
        return by_hand("python-headers", title, text)
    if packages.headers == "python":
        text = (
            "On this distribution, the python package includes the headers for the system "
            "Python. For any other Python, create the environment with uv or conda; both include "
            "the headers."
        )
        return by_hand("python-headers", title, text)
    own = _HEADERS_OF_OWN.get((family_of(m), major_of(m) or 0)) == number
    name = packages.headers.format("3" if own else number, number.replace(".", ""))
    return _as_root(m, "python-headers", title, _install(m, name))


def older_compiler(m: Machine, limit: OptInt) -> Remedies:
    """The newest g++ that nvcc accepts, next to the current one; the system's own if that will do.

    torch hands CC to nvcc, compiles C++ with CXX, and nvcc alone reads NVCC_CCBIN.
    """
    if limit is None:
        return c_compiler(m)
    major, packages = limit, packages_of(m)
    title = f"Install g++ {major} and make nvcc use it"
    step = partial(Remedy, id="older-compiler", title=title)
    if _is_conda(m):
        command = _conda(m, "install", "-c", "conda-forge", f"gcc={major}", f"gxx={major}")
        home = _home(m).get("CUDA_HOME")
        named = _compilers(f"{home}/bin/gcc", f"{home}/bin/g++") if home else {}
        changed = partial(step, risk=Risk.ENVIRONMENT, commands=(command,), tool="conda")
        return (changed(variables=dict(named)),)
    if packages is None or not packages.older:
        text = f"Install g++ {major} and set CC, CXX and NVCC_CCBIN to its path."
        if family_of(m) == "nixos":
            text = f"Start a shell that includes this package: `nix-shell -p gcc{major}`."
        return by_hand("older-compiler", title, text)
    own, oldest, newest = _compilers_of(m) or (None, major, major)
    major = min(major, newest)
    title = f"Install g++ {major} and make nvcc use it"
    folder, suffix, package = "/usr/bin", f"-{major}", packages.older.format(major)
    if packages.older.startswith("gcc-toolset"):
        folder, suffix = f"/opt/rh/gcc-toolset-{major}/root/usr/bin", ""
    if own is not None and major < oldest and _OLDEST_FOR_TORCH <= own <= limit:
        folder, suffix, package, major = "/usr/bin", "", packages.compiler, own
        title = f"Install g++ {major} and make nvcc use it"
    elif major < oldest:
        text = f"Install g++ {major} and set CC, CXX and NVCC_CCBIN to its path."
        return by_hand("older-compiler", title, text)
    variables = _compilers(f"{folder}/gcc{suffix}", f"{folder}/g++{suffix}")
    newer = _as_root(m, "older-compiler", title, _install(m, package), dict(variables))
    return _systems_compiler(m, limit) or newer


def older_glibc(m: Machine, limit: OptInt) -> Remedies:
    """A compiler of conda's, which brings headers of an older glibc. limit: the newest g++."""
    cuda = m.torch.cuda
    text = (
        f"Run `conda create -n build -c conda-forge cuda-toolkit={cuda} gcc={limit} gxx={limit}` "
        "and compile in that environment: its compilers use an older glibc."
    )
    known = cuda is not None and cuda.major >= _FORGE_FROM and limit is not None
    return by_hand("older-glibc", "Compile with conda's compilers", text) if known else ()


def _compilers_of(m: Machine) -> tuple[int, int, int] | None:
    return _COMPILERS.get(f"{family_of(m)} {major_of(m)}")


def _compilers(c: str, cxx: str) -> dict[str, str]:
    return {"CC": c, "CXX": cxx, "NVCC_CCBIN": cxx}


def _systems_compiler(m: Machine, limit: int) -> Remedies:
    """/usr/bin/g++, where only another one before it on PATH is too new; () elsewhere."""
    path, known, packages = m.build.compiler.path or "", _compilers_of(m), packages_of(m)
    if known is None or packages is None or not _OLDEST_FOR_TORCH <= known[0] <= limit:
        return ()
    if path.startswith(("/usr/bin/", "/bin/")) or "/" not in path:
        return ()
    toolset = _TOOLSET.match(path)
    name = toolset[1] if toolset else path
    title = f"Use the system's g++ {known[0]} instead of {name}"
    missing = "If /usr/bin/g++ does not exist, ask the administrator to install it."
    if keeper_of(m) != "admin":
        command = " ".join(("sudo", *_install(m, packages.compiler)[-1]))
        missing = f"If /usr/bin/g++ does not exist, run `{command}` first."
    lasting = keep_setting(m)
    if toolset:
        lasting = f"To make this permanent, delete the line in ~/.bashrc that enables {name}."
    (step,) = set_variables("system-compiler", title, _compilers("/usr/bin/gcc", "/usr/bin/g++"))
    return (replace(step, note=f"{missing} {lasting}"),)


_TOOLSET = re.compile(r"/opt/rh/((?:gcc-toolset|devtoolset)-\d+)/")


# --- run-time libraries ---------------------------------------------------------------------------


def vc_runtime() -> Remedies:
    """Microsoft's C++ runtime."""
    return (
        Remedy(
            id="vc-runtime",
            title="Install the Visual C++ Redistributable",
            commands=(("winget", "install", "--id", "Microsoft.VCRedist.2015+.x64"),),
            tool="winget",
            note="Windows will ask for permission. Open a new terminal when the installation is "
            "done. If winget is not available, use https://aka.ms/vs/17/release/vc_redist.x64.exe",
        ),
    )


def _risk(mine: bool) -> Risk:
    """An undo covers the examined environment alone: another one is left to the user."""
    return Risk.ENVIRONMENT if mine else Risk.SYSTEM


_IN_CONDA = re.compile(r".*?/[^/]*(?:conda|forge|mamba)[^/]*(?:/envs/[^/]+)?(?=/lib/)")


def newer_libstdcxx(m: Machine, path: str) -> Remedies:
    """A libstdc++ as new as the libraries that ask for it. path: the old one."""
    title = "Install a newer libstdc++ in the conda environment"
    owner = None if m.redacted else _IN_CONDA.match(path)
    if owner or _is_conda(m):
        words = ("-c", "conda-forge", "libstdcxx-ng>=13")
        command = _conda(m, "install", *words, prefix=owner and owner[0])
        mine = not owner or owner[0] == m.python.prefix
        step = Remedy(id="newer-libstdcxx", title=title, risk=_risk(mine), commands=(command,))
        return (step,)
    return by_hand(
        "newer-libstdcxx",
        "Use a newer libstdc++",
        "Upgrade to a newer release of this distribution or a newer container image, or create a "
        "conda environment, which includes its own libstdc++.",
        note="Do not overwrite the system's libstdc++.so.6 with another copy: that breaks other "
        "programs.",
    )


_LIBCUDNN_FROM = Version("9.10")
"""From this release on conda-forge's package of the library is named libcudnn."""


def remove_conda_library(m: Machine, library: Library) -> Remedies:
    """conda's copy of a library that torch's wheels bring themselves."""
    title, version = f"Remove conda's {library.soname}", version_of(library.version)
    names = table("rules/conda_libraries", dict[str, str])
    name = next((names[start] for start in names if library.soname.startswith(start)), None)
    if name == "cudnn" and version and version >= _LIBCUDNN_FROM:
        name = "libcudnn"
    if name is None:
        text = (
            f"Use `conda list` to find the package that owns {library.path}, then remove it with "
            "conda."
        )
        return by_hand("remove-conda-library", title, text)
    folder = None if m.redacted else library.path.partition("/lib/")[0]
    command = _conda(m, "remove", name, prefix=folder)
    note = (
        "conda also removes its own packages that depend on this library; torch's wheels do not "
        "need conda's copy of the library."
    )
    mine = folder in (None, m.python.prefix)
    step = partial(Remedy, id="remove-conda-library", title=title, risk=_risk(mine))
    return (step(commands=(command,), tool="conda", note=note),)


def remove_system_torch(m: Machine) -> Remedies:
    """Debian's own torch, which every environment with the system's packages sees."""
    packages = packages_of(m)
    if packages is None or packages.manager != "apt-get" or keeper_of(m) == "admin":
        return ()
    return (
        Remedy(
            id="remove-other-torch",
            title="Remove the distribution's torch",
            commands=(("apt-get", "remove", "python3-torch"),),
            needs_root=True,
            note="Your environment's own torch stays installed. apt lists the packages that it "
            "would remove and asks for confirmation.",
        ),
    )


def set_arch_list(capabilities: Versions) -> Remedies:
    """TORCH_CUDA_ARCH_LIST for exactly these GPUs."""
    value = " ".join(map(str, sorted(set(capabilities))))
    title = f"Set TORCH_CUDA_ARCH_LIST to {value}"
    return set_variables("set-torch-cuda-arch-list", title, {"TORCH_CUDA_ARCH_LIST": value})
