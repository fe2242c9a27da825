"""`fix --print`: the plan as a script, as JSON, or as a file of a project."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from cudadoctor.cli.looking import this_machine
from cudadoctor.cli.options import Options, refuse
from cudadoctor.cli.output import Waiting, written
from cudadoctor.cli.speech import say, spoken
from cudadoctor.model.trust import acting

if TYPE_CHECKING:
    from cudadoctor.installers.verify import Verdict
    from cudadoctor.model.findings import PackageChange, Wishes
    from cudadoctor.model.machine import Machine
    from cudadoctor.model.trust import Foreign
    from cudadoctor.pipeline import Judged


def fix(options: Options) -> int:
    """Print the plan, or a file of a project. 0 where there is one or nothing to cure, else 1."""
    found = saved_machine(options) if options.saved else this_machine(options)
    from cudadoctor import pipeline

    machine = pipeline.with_options(found, options)
    if options.kind is not None:
        return _project_file(acting(machine), options, options.kind)
    wishes = pipeline.wishes_of(options, machine)
    judged = pipeline.judge(machine, wishes, ignore=options.ignore)
    if options.verify:
        judged = _verified(judged, wishes, here=not options.saved)
    written(_rendered(judged, options, wishes), options.output)
    from cudadoctor.installers.verify import holds
    from cudadoctor.render.shells import has_lines

    steps = judged.plan.steps
    if not steps:
        return 1 if judged.diagnosis.verdict in ("broken", "undecided") else 0
    # Also those for root: they stand in the script, to be pasted.
    some = any(map(has_lines, steps))
    return 0 if some and holds(judged.plan) else 1


def _verified(judged: Judged, wishes: Wishes, *, here: bool) -> Judged:
    """The plan after a resolver was asked about its packages; 60 s for all of its steps."""
    import time

    import msgspec

    from cudadoctor import knowledge
    from cudadoctor.installers.verify import LIMIT_S, verified, verify

    kb, end = knowledge.load(), time.monotonic() + LIMIT_S

    def ask(change: PackageChange) -> Verdict:
        machine, limit_s = acting(judged.machine), max(0.0, end - time.monotonic())
        tool_name = wishes.manager
        return verify(
            change, machine, kb, limit_s=limit_s, here=here, tool_name=tool_name, sized=False
        )

    with Waiting() as progress:
        progress("the package resolver", True)
        return msgspec.structs.replace(judged, plan=verified(judged.plan, ask))


def _project_file(machine: Machine, options: Options, kind: str) -> int:
    """Print the build for this machine as a file of a project; 1 and the reasons where none is."""
    from cudadoctor import knowledge
    from cudadoctor.installers import registry
    from cudadoctor.installers.verify import LIMIT_S, digests, verify_file
    from cudadoctor.render import summary
    from cudadoctor.solver.builds import best_build
    from cudadoctor.solver.demand import python_of

    kb, here = knowledge.load(), not options.saved
    choice = best_build(machine, kb, keep=options.torch)
    build, hashes = choice.build, None
    if build is None:
        reasons = summary.rejection_reasons(choice.why_not)
        ways = [alternative.text for alternative in choice.alternatives]
        written(registry.refusal((*choice.why, *reasons, *ways)), options.output)
        return 1
    if against := registry.why_not(kind, machine, kb, build):
        written(registry.refusal((against,)), options.output)
        return 1
    if options.hashes or options.verify:
        with Waiting() as progress:
            progress("the package resolver", True)
            if options.hashes:
                verdict, hashes = digests(machine, kb, build, limit_s=LIMIT_S, here=here)
            else:
                verdict = verify_file(kind, machine, kb, build, limit_s=LIMIT_S, here=here)
        lacking = options.hashes and not hashes
        if lacking and not verdict.tool:
            refuse(
                "--hashes needs pip or uv to resolve the packages: {why}", why=spoken(verdict.why)
            )
        none = lacking or verdict.resolves is False
        why = spoken(verdict.why) + (say("; the project file was not printed") if none else "")
        sys.stderr.write(f"cudadoctor: {why}\n")
        if none:
            return 1
    text = registry.project_file(
        kind, machine, kb, build, python=python_of(machine), hashes=hashes or None
    )
    written(text, options.output)
    return 0


def _rendered(judged: Judged, options: Options, wishes: Wishes) -> str:
    if options.as_json:
        from cudadoctor import pipeline
        from cudadoctor.render import json_v1

        return json_v1.dumps(json_v1.report(pipeline.report(judged, full=options.full))) + "\n"
    from cudadoctor import __version__, knowledge
    from cudadoctor.cli.speech import current
    from cudadoctor.render.script import script

    return script(
        judged.plan,
        judged.machine,
        judged.diagnosis,
        shell=wishes.shell,
        version=__version__,
        knowledge=knowledge.load().date,
        say=current(),
    )


def saved_machine(options: Options) -> Foreign:
    """The one machine behind --from."""
    from cudadoctor.cli import saved

    if saved.are_many(options.saved):
        refuse("fix --print needs a single report; specify one file with --from")
    try:
        machine = next(saved.machines(options.saved)).machine
    except saved.SavedError as error:
        refuse(str(error))
    assert machine is not None, "a single file that cannot be read raises"
    return machine
