"""The readers of fix, setup, --verify, --torch and the bench, for the registry."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fuzz_parser import Parser, of_text

from cudadoctor.probes import interpreter
from cudadoctor.probes.streamed import line_of


def _shown(parse: Callable[[str], object]) -> Callable[[str], object]:
    """Values of other kinds than facts are held to one thing: they come, whatever is read."""
    return lambda text: repr(parse(text))


def of_repairs() -> Iterator[tuple[str, Parser]]:
    """What `fix`, `setup`, `--verify`, `--torch` and the bench read: one of them each."""
    from cudadoctor.bench import store
    from cudadoctor.installers import pip, question, verify
    from cudadoctor.repair import journal, session, snapshot
    from cudadoctor.repair.setup import choosing
    from cudadoctor.solver import demand

    texts: tuple[tuple[str, Callable[[str], object]], ...] = (
        ("bench.store.decoded", lambda text: store.decoded(text.encode("utf-8", "replace"))),
        (
            "probes.streamed.line_of",
            lambda text: list(map(line_of, text.encode("utf-8", "replace").splitlines())),
        ),
        ("probes.interpreter.parse_journal", interpreter.parse_journal),
        ("repair.session.parse_stat", session.parse_stat),
        ("repair.snapshot.parse_record", lambda text: tuple(snapshot.parse_record(text))),
        ("repair.session.parse_maps", session.parse_maps),
        ("installers.pip.version_in", pip.version_in),
        ("installers.question.named_host", question.named_host),
        ("installers.verify.shortened", verify.shortened),
        ("repair.setup.choosing.launched", choosing.launched),
        ("solver.demand.constraint_of", demand.constraint_of),
    )
    for name, parse in texts:
        yield name, Parser((name,), of_text(_shown(parse)))
    yield (
        "repair.journal.read",
        Parser(
            ("repair.journal.read",), lambda data: repr(journal.read(data)), (journal.JournalError,)
        ),
    )
