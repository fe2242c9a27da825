"""The only door to the network: one page or a part of a file, with limits on time and size."""

from __future__ import annotations

import io
import time
import zlib
from http.client import HTTPException
from typing import Any, Protocol
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import (
    BaseHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
)

import msgspec

AGENT = "cudadoctor-knowledge-update"
MOST_BYTES = 64 << 20
LIMIT_S = 30.0
_SILENT_S = 10.0
_PIECE = 1 << 16
_JSON_FIRST = (
    "application/vnd.pypi.simple.v1+json, application/json;q=0.9, text/html;q=0.5, */*;q=0.1"
)


class NotRead(Exception):  # noqa: N818
    """A page could not be had: one sentence that names it."""


class Unreachable(NotRead):
    """Nobody answered at all: the next page of that server would fare no better."""


class Page(msgspec.Struct, frozen=True):
    """An answer. total_bytes: of the whole file where a part was asked for."""

    body: bytes
    kind: str = ""
    total_bytes: int | None = None


class Fetcher(Protocol):
    """Who answers for the network."""

    def get(self, url: str, part: str | None = None) -> Page:
        """A page, or the bytes that `part` names ("0-99", "-500"). Raises NotRead."""
        ...


class Web:
    """http and https, nothing else: an index cannot send the reader to a file of this machine."""

    def __init__(
        self, *, limit_s: float = LIMIT_S, most_bytes: int = MOST_BYTES, agent: str = AGENT
    ) -> None:
        self._limit_s, self._most, self._agent = limit_s, most_bytes, agent
        self._opener = OpenerDirector()
        for handler in (ProxyHandler, HTTPHandler, HTTPSHandler):
            self._opener.add_handler(handler())
        self._opener.add_handler(_WebRedirects())
        self._opener.add_handler(HTTPErrorProcessor())
        self._opener.add_handler(_Refusals())

    def get(self, url: str, part: str | None = None) -> Page:
        """A page, or a part of it. Raises NotRead."""
        if not is_web(url):
            raise NotRead(f"{url!a} is no address on the web.")
        headers = {"User-Agent": self._agent, "Accept": _JSON_FIRST, "Accept-Encoding": "gzip"}
        if part is not None:
            headers |= {"Range": f"bytes={part}", "Accept-Encoding": "identity"}
        try:
            return self._asked(Request(url, headers=headers), part is not None)
        except HTTPError as error:
            raise NotRead(f"{url!a} answered {error.code}.") from error
        except OSError as error:
            why = str(getattr(error, "reason", error))
            raise Unreachable(f"{url!a} could not be reached: {why[:200]!a}.") from error
        except (HTTPException, zlib.error, ValueError) as error:
            raise NotRead(f"{url!a} could not be read: {str(error)[:200]!a}.") from error

    def _asked(self, request: Request, partly: bool) -> Page:
        started = time.monotonic()
        answer = self._opener.open(request, timeout=min(_SILENT_S, self._limit_s))
        if answer is None:
            raise NotRead(f"{request.full_url!a} gave no answer.")
        with answer:
            if partly and answer.status != 206:
                raise NotRead(f"{request.full_url!a} does not hand out parts of a file.")
            body = self._body(answer, request.full_url, started)
            coding = answer.headers.get("Content-Encoding", "")
            if coding == "gzip":
                body = self._unpacked(body, request.full_url)
            total = str(answer.headers.get("Content-Range", "")).rpartition("/")[2]
            kind = answer.headers.get_content_type()
        return Page(body, kind, int(total) if total.isascii() and total.isdigit() else None)

    def _body(self, answer: Any, url: str, started: float) -> bytes:
        found = bytearray()
        while piece := answer.read1(_PIECE):
            found += piece
            if len(found) > self._most:
                raise NotRead(f"{url!a} is larger than {self._most >> 20} MiB.")
            if time.monotonic() - started > self._limit_s:
                raise NotRead(f"{url!a} took longer than {self._limit_s:g} s.")
        promised = str(answer.headers.get("Content-Length", ""))
        if promised.isascii() and promised.isdigit() and int(promised) != len(found):
            raise NotRead(f"{url!a} ended after {len(found)} of {promised} bytes.")
        return bytes(found)

    def _unpacked(self, body: bytes, url: str) -> bytes:
        unpacking = zlib.decompressobj(wbits=31)
        found = unpacking.decompress(body, self._most + 1)
        if len(found) > self._most:
            raise NotRead(f"{url!a} is larger than {self._most >> 20} MiB.")
        if not unpacking.eof:
            raise NotRead(f"{url!a} ended too early.")
        return found


class _WebRedirects(HTTPRedirectHandler):
    """Follows to the web only."""

    def redirect_request(self, req: Request, *answer: Any) -> Request | None:
        """The next request. answer: the rest as urllib hands it over, the new address last."""
        if not is_web(str(answer[-1])):
            raise NotRead(f"{req.full_url!a} leads away from the web.")
        return super().redirect_request(req, *answer)


class _Refusals(BaseHandler):
    """Every answer but 2xx and a redirect is an error."""

    def http_error_default(self, req: Request, *answer: Any) -> None:
        """answer: body, code, words and headers."""
        raise HTTPError(req.full_url, int(answer[1]), "refused", answer[3], answer[0])


def is_web(url: str) -> bool:
    """Whether that is an http or https address with a host."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


class RemoteFile(io.RawIOBase):
    """A file on the web that is read in parts, as a seekable file. Raises NotRead."""

    def __init__(self, fetch: Fetcher, url: str) -> None:
        super().__init__()
        self._fetch, self._url, self._at = fetch, url, 0
        end = fetch.get(url, f"-{_PIECE}")
        if end.total_bytes is None:
            raise NotRead(f"{url!a} does not say how large it is.")
        self._size = end.total_bytes
        self._end = end.body[-self._size :] if self._size else b""

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, origin + offset)
        return self._at

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        data = self._bytes(self._at, min(self._at + len(buffer), self._size))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def _bytes(self, start: int, stop: int) -> bytes:
        if start >= stop:
            return b""
        kept = self._size - len(self._end)
        if start >= kept:
            return self._end[start - kept : stop - kept]
        data = self._fetch.get(self._url, f"{start}-{stop - 1}").body
        if len(data) != stop - start:
            raise NotRead(f"{self._url!a} handed out another part than was asked for.")
        return data
