"""Runs the pip of this interpreter for a question: what would be installed for another target.

Arguments: a JSON table of marker variables, the folder or wheel that holds pip ("" its own place),
then pip's own words. Four things are changed in this process, each only where that pip has it:

- markers are judged by the target (pip judges them by the interpreter that runs it);
- a wheel whose metadata is known is not downloaded (pip does so itself from 25.1 on);
- the end of a wheel, where nothing else describes it, is read in few pieces;
- a page that breaks off is an error and not the end of the page (so from urllib3 2 on).
"""

import importlib
import json
import runpy
import sys
from typing import Any, Dict

PIECE_BYTES = 1 << 18


def main() -> None:
    markers, place, words = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3:]
    sys.path[0] = place or "."
    if not place:
        del sys.path[0]
    for change, *given in (
        (judged_by, markers),
        (metadata_suffices,),
        (large_pieces,),
        (whole_pages,),
    ):
        try:
            change(*given)
        except (ImportError, AttributeError):
            pass
    sys.argv = ["pip"] + words
    runpy.run_module("pip", run_name="__main__", alter_sys=True)


def judged_by(markers: Dict[str, str]) -> None:
    """Environment markers by the target's variables."""
    module = importlib.import_module("pip._vendor.packaging.markers")  # type: Any
    own = module.default_environment

    def target() -> Dict[str, str]:
        return dict(own(), **markers)

    module.default_environment = target


def metadata_suffices() -> None:
    """No download of what the index, or the end of the file, has described."""
    prepare = importlib.import_module("pip._internal.operations.prepare")
    urls = importlib.import_module("pip._internal.utils.direct_url_helpers")
    preparer = prepare.RequirementPreparer
    described = preparer.prepare_linked_requirement

    def known(self: Any, req: Any, parallel_builds: bool = False) -> Any:
        found = described(self, req, parallel_builds)
        if req.needs_more_preparation:
            req.get_dist = lambda: found
            if req.download_info is None:
                req.download_info = urls.direct_url_from_link(req.link)
        return found

    def no_more(self: Any, reqs: Any, parallel_builds: bool = False) -> None:
        return None

    preparer.prepare_linked_requirement = known
    preparer.prepare_linked_requirements_more = no_more


def large_pieces() -> None:
    """The list at the end of a wheel in few requests: pip's own pieces are of 10 KiB."""
    lazy = importlib.import_module("pip._internal.network.lazy_wheel").LazyZipOverHTTP
    if len(lazy.__init__.__defaults__ or ()) == 1:
        lazy.__init__.__defaults__ = (PIECE_BYTES,)


def whole_pages() -> None:
    """A body that is shorter than was announced is an error."""
    response = importlib.import_module("pip._vendor.urllib3.response").HTTPResponse
    begin = response.__init__

    def strict(self: Any, *args: Any, **named: Any) -> None:
        named.setdefault("enforce_content_length", True)
        begin(self, *args, **named)

    response.__init__ = strict


if __name__ == "__main__":
    main()
