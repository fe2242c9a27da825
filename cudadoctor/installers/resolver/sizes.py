"""How large the files are that a resolver chose, asked of their servers side by side."""

from __future__ import annotations

import os
import threading
import time
import urllib.error
import urllib.request
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

import msgspec

from cudadoctor.host.children import start_thread

if TYPE_CHECKING:
    from cudadoctor.installers.resolver.verdict import File

AT_ONCE = 8
MOST_S = 8.0
_EACH_S = 4.0


def with_sizes(files: tuple[File, ...], limit_s: float) -> tuple[File, ...]:
    """The files with their sizes in bytes, as far as they come within the limit (8 s at most)."""
    end = time.monotonic() + min(limit_s, MOST_S)
    wanted: SimpleQueue[str] = SimpleQueue()
    urls = [one.url for one in files if one.size_bytes is None]
    for url in urls:
        wanted.put(url)
    found: dict[str, int] = {}
    threads = [_worker(wanted, found, end) for _ in range(min(AT_ONCE, len(urls)))]
    for thread in threads:
        if thread is not None:
            # Left behind where it hangs: a daemon, whose answer nobody waits for.
            thread.join(max(0.0, end - time.monotonic()))
    known = dict(found)
    return tuple(
        msgspec.structs.replace(one, size_bytes=known[one.url]) if one.url in known else one
        for one in files
    )


def _worker(wanted: SimpleQueue[str], found: dict[str, int], end: float) -> threading.Thread | None:
    def work() -> None:
        while time.monotonic() < end:
            try:
                url = wanted.get_nowait()
            except Empty:
                return
            size = size_of(url, min(_EACH_S, max(0.1, end - time.monotonic())))
            if size is not None:
                found[url] = size

    return start_thread(work)


def size_of(url: str, timeout_s: float) -> int | None:
    """Size of a file behind a URL in bytes; None where it is not told."""
    if url.startswith("file:"):
        path = urllib.request.url2pathname(url.removeprefix("file://"))
        try:
            return os.stat(path).st_size  # noqa: PTH116
        except (OSError, ValueError):
            return None
    if not url.startswith(("https://", "http://")):
        return None
    try:
        asked = urllib.request.Request(url, method="HEAD")
        with urllib.request.urlopen(asked, timeout=timeout_s) as answer:
            told = answer.headers.get("Content-Length")
    except (OSError, ValueError, urllib.error.URLError):
        return None
    return int(told) if told and told.isdecimal() else None
