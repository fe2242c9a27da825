"""Functions that look like parsers of outside text and are none."""

from __future__ import annotations

NOT_PARSERS = {
    "knowledge.patterns.lower": "is str.lower, kept to one length",
    "knowledge.patterns.alternatives": "splits the patterns of our own tables",
    "knowledge.patterns.search": "runs under every reader of reports, which are tested",
    "knowledge.patterns.finditer": "runs under every reader of reports, which are tested",
    "knowledge.symptoms.pattern_of": "compiles the patterns of our own tables",
    "cli.looking.note": "shows our own text",
    "knowledge.renewed.newest_first": "orders versions that a pattern admitted",
    "probes.streamed.on_line": "looks for the call that a line of our own child announces",
    "repair.words.wrapped": "lays out our own text",
    "bench.command.say": "prints our own text",
    "knowledge.update.torch_rows.pinned_version": "reads what packaging printed",
    "plan.remedies.process.commands_in": "splits the commands of our own tables",
    "cli.speech.spoken": "shows our own text, through the language that is tested",
    "cli.group.parse_args": "is click's own reading of the arguments, and our refusal of the rest",
    "repair.setup.saying.heading": "lays out our own text",
    "locale.language.spoken": "shows our own text",
    "knowledge.update.index.handle_data": "is called by the reader that is tested",
    "cli.output.line": "shows a line of a tool",
    "repair.snapshot.loads": "its refusals are tested in tests/repair",
    "cluster.command.line": "passes over what is no object of our own script",
    "health.command.on_line": "begins with streamed.line_of, which is registered",
    "solver.demand.is_met": "begins with constraint_of, which is registered",
    "solver.demand.allowed": "begins with constraint_of, which is registered",
    "cli.output.written": "writes our own text",
    "cli.output.replaced": "writes our own text",
    "knowledge.tables.version": "reads our own tables",
    "knowledge.symptoms.mark_of": "reads the search texts of our own table",
    "probes.driver.read_driver": "joins probes that are registered one by one",
    "repair.setup.choosing.parse_answer": "reads what our own question to a Python printed",
    "host.recording.is_text": "looks for control characters",
    "host.recording.written": "writes",
    "host.recording.store": "writes",
}
"""Functions that look like parsers of outside text, and why they are none."""
