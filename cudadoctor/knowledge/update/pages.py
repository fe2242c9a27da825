"""Texts from the network as data, or Unreadable: whatever a page holds, nothing else is raised."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import TypeVar
from urllib.parse import unquote, urljoin, urlsplit

import msgspec

T = TypeVar("T")


class Unreadable(Exception):  # noqa: N818
    """A text is not of the shape that its reader knows: one sentence."""


def decoded(body: bytes, kind: type[T], what: str) -> T:
    """JSON of a known shape. what: names the page in the sentence."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Unreadable(f"{what} is JSON of another shape: {str(error)[:120]!a}.") from error


def fed(parser: HTMLParser, text: str, what: str) -> None:
    """Hand a whole page to a parser of HTML."""
    try:
        parser.feed(text)
    except (AssertionError, ValueError, RecursionError) as error:  # broken declarations
        raise Unreadable(f"{what} is no HTML that can be read.") from error


def text_of(body: bytes) -> str:
    """The text of a page; bytes that are no UTF-8 become marks."""
    return body.decode("utf-8", "replace")


def address(base: str, link: str) -> str:
    """The whole address of a link on a page, "" where it is none."""
    try:
        return urljoin(base, link)
    except ValueError:
        return ""


def last_name(link: str) -> str:
    """The last name in the path of a link, "" where there is none."""
    try:
        return unquote(urlsplit(link).path.rstrip("/").rpartition("/")[2])
    except ValueError:
        return ""
