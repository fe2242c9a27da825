"""The only door to the network: one page or a part of a file, with limits on time and size."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from http.client import HTTPException
from time import monotonic
from typing import Protocol
from urllib.error import HTTPError
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    UnknownHandler,
)

from msgspec import Struct

AGENT = "cudadoctor-knowledge-update"
MOST_BYTES = 64 << 20
LIMIT_S = 30.0
SILENT_S = 10.0
_PIECE = 1 << 16
_PART = 1 << 20
_JSON_FIRST = (
    "application/vnd.pypi.simple.v1+json, application/json;q=0.9, text/html;q=0.5, */*;q=0.1"
)


class NotRead(Exception):  # noqa: N818
    """A page could not be had, or is not of the shape that its reader knows: one sentence."""


class Unreachable(NotRead):
    """Nobody answered at all: the next page of that server would fare no better."""


class Page(Struct, frozen=True):
    """An answer. total_bytes: of the whole file where a part was asked for."""

    body: bytes
    total_bytes: int


class Fetcher(Protocol):
    """Who answers for the network."""

    def get(self, url: str, part: str | None = None) -> Page:
        """A page, or the bytes that `part` names ("0-99"). Raises NotRead."""
        ...


class Web:
    """http and https, nothing else: an index cannot send the reader to a file of this machine."""

    def __init__(
        self,
        *,
        limit_s: float = LIMIT_S,
        silent_s: float = SILENT_S,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._limit_s, self._silent_s, self._most = limit_s, silent_s, most_bytes
        self._opener = OpenerDirector()
        for handler in (
            *(ProxyHandler, HTTPHandler, HTTPSHandler, HTTPRedirectHandler, UnknownHandler),
            *(HTTPErrorProcessor, HTTPDefaultErrorHandler),
        ):
            self._opener.add_handler(handler())

    def get(self, url: str, part: str | None = None) -> Page:
        """A page, or a part of it. Raises NotRead."""
        with _sentences(url):
            request = Request(url, headers={"User-Agent": AGENT, "Accept": _JSON_FIRST})
            if part is not None:
                request.add_header("Range", f"bytes={part}")
            ends = monotonic() + self._limit_s
            with self._opener.open(request, timeout=min(self._silent_s, self._limit_s)) as answer:
                if part is not None and answer.status != 206:
                    raise NotRead(f"{url!a} does not hand out parts of a file.")
                body = bytearray()
                while piece := answer.read1(_PIECE):
                    body += piece
                    if len(body) > self._most:
                        raise NotRead(f"{url!a} is larger than {self._most >> 20} MiB.")
                    if monotonic() > ends:
                        raise NotRead(f"{url!a} took longer than {self._limit_s:g} s.")
                promised = int(answer.headers.get("Content-Length", len(body)))
                if promised != len(body):
                    raise NotRead(f"{url!a} ended after {len(body)} of {promised} bytes.")
                total = answer.headers.get("Content-Range", f"/{promised}").rpartition("/")[2]
                return Page(bytes(body), int(total))


@contextmanager
def _sentences(url: str) -> Iterator[None]:
    """Whatever goes wrong on the way to a page as one sentence."""
    try:
        yield
    except HTTPError as error:
        raise NotRead(f"{url!a} answered {error.code}.") from error
    except OSError as error:
        why = str(getattr(error, "reason", error))
        raise Unreachable(f"{url!a} could not be reached: {why[:200]!a}.") from error
    except (HTTPException, ValueError) as error:
        raise NotRead(f"{url!a} could not be read: {str(error)[:200]!a}.") from error


class RemoteFile:
    """A file on the web that is read in parts, as zipfile reads files. Raises NotRead."""

    def __init__(self, fetch: Fetcher, url: str) -> None:
        def part(number: int) -> bytes:
            start = number * _PART
            return fetch.get(url, f"{start}-{min(start + _PART, self._size) - 1}").body

        self._url, self._at, self._part = url, 0, lru_cache(maxsize=2)(part)
        self._size = fetch.get(url, "0-0").total_bytes

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = max(0, (0, self._at, self._size)[whence] + offset)
        return self._at

    def read(self, count: int = -1) -> bytes:
        found = bytearray()
        stop = self._size if count < 0 else min(self._at + count, self._size)
        while self._at < stop:
            number, start = divmod(self._at, _PART)
            piece = self._part(number)[start : start + stop - self._at]
            if not piece:
                raise NotRead(f"{self._url!a} handed out another part than was asked for.")
            found += piece
            self._at += len(piece)
        return bytes(found)
