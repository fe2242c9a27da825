"""What the texts of several resolvers have in common."""

from __future__ import annotations

import re
from urllib.parse import urlsplit, urlunsplit

_URL = re.compile(r"https?://[^\s)\"'`,]+")
_HOST = re.compile(r"host='([^']+)'")
_ARCHIVES = (".tar.gz", ".zip", ".tar.bz2", ".tar.xz", ".tgz")


def named_host(text: str) -> str:
    """The host that an error is about: of the last URL, since causes follow one another."""
    if named := _HOST.search(text):
        return named[1]
    urls = [one for one in _URL.findall(text) if host_in(one)]
    return host_in(urls[0]) if urls else ""


def host_in(url: str) -> str:
    """The host of a URL, without credentials or port; "" where it has none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def bare_url(url: str) -> str:
    """The URL without credentials and without its fragment."""
    try:
        parts = urlsplit(url)
        place = parts.netloc.rpartition("@")[2]
        return urlunsplit((parts.scheme, place, parts.path, parts.query, ""))
    except ValueError:
        return ""


def is_source(url: str) -> bool:
    """Whether a file is an archive of source, which had to be built."""
    return url.partition("#")[0].partition("?")[0].endswith(_ARCHIVES)
