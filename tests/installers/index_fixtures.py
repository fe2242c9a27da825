"""A package index of the test's own: tiny real wheels, served over HTTP or from a folder."""

from __future__ import annotations

import base64
import hashlib
import io
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

GLIBC = "manylinux_2_28_x86_64"


class Wheel(NamedTuple):
    """A wheel that a pip takes. yanked: the index says so; python: Requires-Python."""

    name: str
    version: str
    requires: tuple[str, ...] = ()
    tag: str = "py3-none-any"
    python: str | None = None
    yanked: bool = False

    @property
    def file(self) -> str:
        return f"{self.name.replace('-', '_')}-{self.version}-{self.tag}.whl"

    def built(self) -> bytes:
        """The file, the same bytes every time."""
        inside = f"{self.name.replace('-', '_')}-{self.version}.dist-info"
        files = {
            f"{self.name.replace('-', '_')}/__init__.py": "",
            f"{inside}/METADATA": self.metadata(),
            f"{inside}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\n"
            f"Tag: {self.tag}\n",
        }
        rows = [f"{name},{_digest(text)},{len(text)}" for name, text in files.items()]
        files[f"{inside}/RECORD"] = "\n".join([*rows, f"{inside}/RECORD,,"]) + "\n"
        whole = io.BytesIO()
        with zipfile.ZipFile(whole, "w") as archive:
            for name, text in files.items():
                archive.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), text)
        return whole.getvalue()

    def metadata(self) -> str:
        lines = ["Metadata-Version: 2.1", f"Name: {self.name}", f"Version: {self.version}"]
        lines += [f"Requires-Dist: {requirement}" for requirement in self.requires]
        if self.python:
            lines.append(f"Requires-Python: {self.python}")
        return "\n".join(lines) + "\n"


def _digest(text: str) -> str:
    raw = hashlib.sha256(text.encode()).digest()
    return "sha256=" + base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


class Shelf:
    """What an index offers: wheels, and other files by their name alone (a setup.py's archive)."""

    def __init__(self, *wheels: Wheel, others: dict[str, tuple[str, bytes]] | None = None) -> None:
        self.files: dict[str, dict[str, tuple[bytes, str]]] = {}
        for wheel in wheels:
            raw = wheel.built()
            marks = f' data-requires-python="{_html(wheel.python)}"' if wheel.python else ""
            marks += ' data-yanked=""' if wheel.yanked else ""
            self.files.setdefault(wheel.name, {})[wheel.file] = (raw, marks)
        for file, (name, raw) in (others or {}).items():
            self.files.setdefault(name, {})[file] = (raw, "")

    def page(self, name: str, base: str) -> bytes | None:
        """The simple page of a package (PEP 503), None where it has none."""
        if name not in self.files:
            return None
        rows = [
            f'<a href="{base}/{file}#sha256={hashlib.sha256(raw).hexdigest()}"{marks}>{file}</a>'
            for file, (raw, marks) in self.files[name].items()
        ]
        return ("<!DOCTYPE html><html><body>" + "\n".join(rows) + "</body></html>").encode()

    def sha256(self, file: str) -> str:
        return hashlib.sha256(self.raw(file) or b"").hexdigest()

    def raw(self, file: str) -> bytes | None:
        return next((files[file][0] for files in self.files.values() if file in files), None)

    def in_folder(self, folder: Path) -> str:
        """The same as an index of plain files; its URL."""
        for name, files in self.files.items():
            (folder / name).mkdir(parents=True)
            for file, (raw, _) in files.items():
                (folder / file).write_bytes(raw)
            (folder / name / "index.html").write_bytes(self.page(name, "..") or b"")
        return folder.as_uri()


def _html(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


@contextmanager
def served(shelf: Shelf, manner: str = "well") -> Iterator[str]:
    """The shelf as an index on this machine; its URL.

    manner: well, 403, 404 or 500 for every page, hanging, cut (half of a page), redirected.
    """
    over = threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(shelf, manner, over))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/simple"
    finally:
        over.set()
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(shelf: Shelf, manner: str, over: threading.Event) -> type[BaseHTTPRequestHandler]:
    class Answering(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            if manner == "hanging":
                over.wait(60)
                return
            if manner.isdigit():
                self._answer(int(manner), b"no")
            elif manner == "redirected" and self.path.startswith("/simple/"):
                self.send_response(302)
                self.send_header("Location", "/moved/" + self.path.removeprefix("/simple/"))
                self.end_headers()
            else:
                self._page()

        def _page(self) -> None:
            parts = [part for part in self.path.split("?")[0].split("/") if part]
            if parts[0] == "files":
                raw = shelf.raw(parts[-1].replace("%2B", "+"))
            else:
                raw = shelf.page(parts[-1], "/files")
            if raw is None:
                self._answer(404, b"no such page")
            else:
                self._answer(200, raw)

        def _answer(self, status: int, raw: bytes) -> None:
            self.send_response(status)
            kind = "text/html" if self.path.endswith("/") else "application/octet-stream"
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(raw[: len(raw) // 2] if manner == "cut" else raw)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    return Answering
