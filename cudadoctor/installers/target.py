"""The interpreter that packages are sought for, as its tags and markers say it."""

from collections.abc import Iterator

import msgspec
from packaging.tags import mac_platforms
from packaging.version import Version

from cudadoctor.model.machine import Machine, Strings, Text
from cudadoctor.model.requirements import marker_variables

_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
"""Older names of the tags for glibc 2.x; the last two on x86 alone, where tags begin with 2.5."""
_USUAL_GLIBC = 28
"""The glibc 2.x that is taken where the facts do not name one."""
_UV_GLIBC = (17, 28, *range(31, 41))
_NEWEST_MUSL = 2
_USUAL_MACOS = (15, 0)
_FIRST_DARWIN, _RENAMED_DARWIN = 20, 25


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """An interpreter by its tags. tags: platform tags, the best first. uv: its name for uv.

    markers: what an environment marker is judged by. executable: where it may be asked itself.
    """

    python: Version
    abi: str
    tags: Strings
    uv: Text
    markers: dict[str, str]
    executable: Text = None

    @property
    def free_threaded(self) -> bool:
        return self.abi.endswith("t")

    @property
    def macos(self) -> Text:
        """The release of macOS ("15.0"), None elsewhere."""
        mark, *parts = self.tags[0].split("_")
        return ".".join(parts[:2]) if mark == "macosx" else None

    @property
    def release(self) -> str:
        """The Python's release alone: resolvers take no "3.15.0rc1"."""
        return ".".join(map(str, self.python.release[:3]))


def target_of(m: Machine, *, here: bool) -> Target | str:
    """The examined interpreter; a reason where too little is known of it."""
    python, platform = m.python.version, m.platform
    if python is None:
        return "the version of the Python is not known"
    if (m.python.implementation or "cpython").lower() != "cpython":
        return f"{m.python.implementation} is no CPython"
    tags = tuple(_tags(m))
    if not tags:
        return f"no wheel platform is known for {platform.system} on {platform.machine}"
    threaded = bool(m.python.free_threaded)
    path = m.python.executable if here and not m.redacted else None
    return Target(
        python=python,
        abi=f"cp{python.major}{python.minor}{'t' if threaded else ''}",
        tags=tags,
        uv=_uv_platform(m),
        markers=marker_variables(m),
        executable=path if path and not path.startswith(("~", "<", "$")) else None,
    )


def _arch(m: Machine) -> Text:
    if m.python.bits == 32 and m.platform.machine == "x86_64":
        return "i686"
    return m.platform.machine


def _tags(m: Machine) -> Iterator[str]:
    arch = _arch(m)
    if arch is None:
        return
    if m.platform.system == "Windows":
        yield {"x86_64": "win_amd64", "i686": "win32"}.get(arch, "win_arm64")
    elif m.platform.system == "Darwin":
        yield from mac_platforms(_macos(m), "arm64" if arch in ("arm64", "aarch64") else arch)
    elif m.platform.system == "Linux":
        yield from _linux_tags(m, arch)


def _macos(m: Machine) -> tuple[int, int]:
    """The release of macOS, from the kernel's: 20 to 24 are 11 to 15, and 25 is 26."""
    major = (m.platform.kernel or "").partition(".")[0]
    if not major.isdecimal() or int(major) < _FIRST_DARWIN:
        return _USUAL_MACOS
    return (int(major) - 9 if int(major) < _RENAMED_DARWIN else int(major) + 1, 0)


def _linux_tags(m: Machine, arch: str) -> Iterator[str]:
    if m.platform.libc == "musl":
        yield from (f"musllinux_1_{minor}_{arch}" for minor in range(_NEWEST_MUSL, -1, -1))
    else:
        oldest = min(_LEGACY) if arch in ("x86_64", "i686") else max(_LEGACY)
        for minor in range(_glibc(m), oldest - 1, -1):
            yield f"manylinux_2_{minor}_{arch}"
            if minor in _LEGACY:
                yield f"{_LEGACY[minor]}_{arch}"
    yield f"linux_{arch}"


def _glibc(m: Machine) -> int:
    found = m.platform.glibc
    return found.minor if found is not None and found.major == 2 else _USUAL_GLIBC


def _uv_platform(m: Machine) -> Text:
    """uv's name for the platform; None if it has none."""
    arch = "aarch64" if m.platform.machine == "arm64" else _arch(m)
    if arch not in ("x86_64", "aarch64"):
        return None
    if m.platform.system == "Windows":
        return f"{arch}-pc-windows-msvc"
    if m.platform.system == "Darwin":
        return f"{arch}-apple-darwin"
    if m.platform.libc == "musl":
        return f"{arch}-unknown-linux-musl"
    glibc = max((minor for minor in _UV_GLIBC if minor <= _glibc(m)), default=None)
    return f"{arch}-manylinux_2_{glibc}" if glibc else None
