"""The door to the network against a real server on this machine: limits, parts, refusals."""

from __future__ import annotations

import io
import socket
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from update_fixtures import bytes_of, copied, project, torch_files, torch_wheel

from cudadoctor.knowledge.update.__main__ import NOT_ASKED, main
from cudadoctor.knowledge.update.fetching import NotRead, RemoteFile, Web

MOST = 1 << 20
WHEEL = torch_wheel("2.16.0", "13.3")


class _Index(BaseHTTPRequestHandler):
    """Pages by their path; each misbehaves in its own way."""

    def do_GET(self) -> None:
        act = getattr(self, f"_{self.path.strip('/').replace('/', '_').replace('.', '_')}", None)
        if act is None:
            self.send_error(404)
        else:
            act()

    def _answer(self, body: bytes, code: int = 200, **headers: str) -> None:
        self.send_response(code)
        for name, value in {"Content_Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def _good(self) -> None:
        self._answer(b'{"files": []}')

    def _agent(self) -> None:
        self._answer(self.headers["User-Agent"].encode())

    def _cut(self) -> None:
        self._answer(b"half of it", Content_Length="20")

    def _chunks(self) -> None:
        self.protocol_version = "HTTP/1.1"
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"ff\r\nhalf of it")
        self.close_connection = True

    def _huge(self) -> None:
        self._answer(bytes(MOST + 1))

    def _endless(self) -> None:
        self.send_response(200)
        self.end_headers()
        try:
            while True:
                self.wfile.write(bytes(1 << 16))
        except OSError:
            return

    def _dripping(self) -> None:
        self.send_response(200)
        self.end_headers()
        try:
            while not self.server.stopping.wait(0.01):  # type: ignore[attr-defined]
                self.wfile.write(b".")
        except OSError:
            return

    def _silent(self) -> None:
        self.server.stopping.wait(20)  # type: ignore[attr-defined]

    def _away(self) -> None:
        self._answer(b"", 302, Location="file:///etc/passwd")

    def _elsewhere(self) -> None:
        self._answer(b"", 302, Location="ftp://127.0.0.1/elsewhere")

    def _round(self) -> None:
        self._answer(b"", 302, Location="/round")

    def _moved(self) -> None:
        self._answer(b"", 301, Location="/good")

    def _wheel_whl(self) -> None:
        wanted = self.headers.get("Range", "").removeprefix("bytes=")
        first, _, last = wanted.partition("-")
        start = int(first) if first else max(0, len(WHEEL) - int(last))
        stop = int(last) + 1 if first and last else len(WHEEL)
        total = f"bytes {start}-{stop - 1}/{len(WHEEL)}"
        self._answer(WHEEL[start:stop], 206, Content_Range=total)

    def _whole_whl(self) -> None:
        self._answer(WHEEL)

    def _broken(self) -> None:
        self.wfile.write(b"\x00\x01 no http at all\r\n\r\n")

    def _simple_torch(self) -> None:
        self._answer(project(*torch_files()))

    def log_message(self, *words: object) -> None:
        """Nothing: a test is quiet."""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of a server that misbehaves."""
    found = ThreadingHTTPServer(("127.0.0.1", 0), _Index)
    found.daemon_threads = True
    found.stopping = threading.Event()  # type: ignore[attr-defined]
    thread = threading.Thread(target=found.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{found.server_address[1]}"
    found.stopping.set()  # type: ignore[attr-defined]
    found.shutdown()
    found.server_close()
    thread.join(5)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def web() -> Web:
    return Web(most_bytes=MOST, limit_s=5)


def test_a_page_that_moved_is_followed(server: str, web: Web) -> None:
    assert web.get(f"{server}/moved").body == b'{"files": []}'


def test_the_reader_says_who_it_is(server: str, web: Web) -> None:
    assert web.get(f"{server}/agent").body.startswith(b"cudadoctor")


@pytest.mark.parametrize(
    "path",
    [
        *("nothing", "cut", "chunks", "huge", "endless", "away", "elsewhere", "round", "broken"),
    ],
)
def test_what_cannot_be_had_whole_is_not_read(server: str, web: Web, path: str) -> None:
    with pytest.raises(NotRead, match=path):
        web.get(f"{server}/{path}")


@pytest.mark.parametrize("path", ["dripping", "silent"])
def test_a_server_that_does_not_end_is_left(server: str, path: str) -> None:
    with pytest.raises(NotRead, match=path):
        Web(limit_s=0.2).get(f"{server}/{path}")


@pytest.mark.parametrize(
    "url",
    [
        *("file:///etc/passwd", "ftp://127.0.0.1/x", "data:,x", "/etc/passwd", "", "http://"),
        *("http://[x", "https://a b/\r\nX: 1", "javascript:1"),
    ],
)
def test_only_the_web_is_read(url: str, web: Web) -> None:
    with pytest.raises(NotRead):
        web.get(url)


def test_nobody_listening_is_one_sentence(web: Web) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(NotRead) as caught:
        web.get(f"http://127.0.0.1:{port}/simple/torch/")
    assert "\n" not in str(caught.value)


def test_a_wheel_is_read_in_parts(server: str, web: Web) -> None:
    remote = RemoteFile(web, f"{server}/wheel.whl")
    with zipfile.ZipFile(remote) as wheel:
        assert "torch/version.py" in wheel.namelist()
        assert wheel.read("torch/lib/libtorch_python.so").startswith(b"\x7fELF")
    with zipfile.ZipFile(io.BytesIO(WHEEL)) as same:
        assert same.testzip() is None


def test_a_server_without_parts_is_not_asked_for_the_whole_wheel(server: str, web: Web) -> None:
    with pytest.raises(NotRead, match="parts"):
        RemoteFile(web, f"{server}/whole.whl")


def test_the_command_reads_a_real_server(server: str, tmp_path: Path) -> None:
    folder = copied(tmp_path)
    assert main(["--check", "--index", f"{server}/simple"], folder=folder / "tables") == 0


def test_the_command_without_an_index_changes_nothing(server: str, tmp_path: Path) -> None:
    folder = copied(tmp_path)
    before = bytes_of(folder)
    words = ["--only", "torch,xformers", "--write", "--index", f"{server}/lost"]
    assert main(words, folder=folder / "tables") == NOT_ASKED
    assert bytes_of(folder) == before
