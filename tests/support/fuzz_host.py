"""A host of which every answer is one and the same outside text, or a part of it.

It lets a probe meet a text wherever it reads one: in a file, in a program's output, as the name of
a file, in a variable. Parts of the text are cut at \\x1d, and every question gets the same part
each time.
"""

# ruff: noqa: ARG002

from __future__ import annotations

import zlib
from collections.abc import Mapping

from cudadoctor.host.children import OnLine, Ran
from cudadoctor.host.local import Answer, Listing, Space, Stat

CUT = b"\x1d"
_VARIABLES = (
    "CXX",
    "PIP_INDEX_URL",
    "PIP_EXTRA_INDEX_URL",
    "UV_INDEX",
    "PYENV_VERSION",
    "CUDA_HOME",
    "LD_LIBRARY_PATH",
    "NUMBER_OF_PROCESSORS",
    "NCCL_SOCKET_IFNAME",
    "HOSTNAME",
)
_MOST_NAMES = 6
_LONGEST_NAME = 255


class BabblingHost:
    """A Host that says the same outside text to whatever it is asked."""

    def __init__(self, data: bytes, system: str = "Linux") -> None:
        self._parts = data.split(CUT)
        self._system = system
        self.folder = "/work"

    def _part(self, question: str) -> bytes:
        return self._parts[zlib.crc32(question.encode("utf-8", "replace")) % len(self._parts)]

    def _text(self, question: str) -> str:
        return self._part(question).decode("utf-8", "replace")

    def _names(self, question: str) -> tuple[str, ...]:
        """File names, which can hold any byte but two."""
        text = self._part(question)[:4096].replace(b"/", b"\n").replace(b"\0", b"\n")
        names = text.decode("utf-8", "surrogateescape").split("\n")
        kept = (name[:_LONGEST_NAME] for name in names if name not in ("", ".", ".."))
        return tuple(sorted(dict.fromkeys(kept)))[:_MOST_NAMES]

    @property
    def env(self) -> Mapping[str, str]:
        variables = {}
        for name in _VARIABLES:
            value = self._part(name)[:4096].replace(b"\0", b"")
            variables[name] = value.decode("utf-8", "surrogateescape")
        return {"HOME": "/home/ada", "PATH": "/usr/bin", **variables}

    @property
    def system(self) -> str:
        return self._system

    def read(self, path: str, limit: int = 1 << 20, offset: int = 0) -> Answer:
        return Answer(data=self._part(path)[offset : offset + limit])

    def listing(self, path: str) -> Listing:
        return Listing(names=self._names(path)) if path.count("/") < 9 else Listing(missing=True)

    def stat(self, path: str) -> Stat:
        is_dir = path.endswith(("lib", "shims", "versions", "conda-meta", "torch", "nvidia"))
        return Stat(exists=True, is_dir=is_dir, mode=0o755, size=len(self._parts[0]), real=path)

    def glob(self, pattern: str) -> tuple[str, ...]:
        return tuple(pattern.replace("*", name) for name in self._names(pattern)[:2])

    def which(self, name: str) -> str | None:
        return f"/usr/bin/{name}"

    def space(self, path: str) -> Space | None:
        return Space(total_bytes=1 << 40, free_bytes=1 << 39)

    def run(
        self,
        *argv: str,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: str | None = None,
        on_line: OnLine | None = None,
    ) -> Ran:
        out, err = self._text(" ".join(argv)), self._text(f"2>{argv[0]}")
        return Ran(code=0, stdout=out, stderr=err)

    def inside(
        self,
        script: str,
        *args: str,
        timeout_s: float,
        python: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        on_line: OnLine | None = None,
    ) -> Ran:
        return Ran(code=0, stdout=self._text(script), stderr=self._text("2>" + script))
