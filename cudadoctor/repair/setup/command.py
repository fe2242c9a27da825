"""`setup DIR`: a new environment with the best build for this machine.

It looks at the machine, chooses, shows what it will do, asks, makes the environment and proves it
by the training step. If installing fails or is interrupted, what was made is removed. If it is
installed and the step fails (no driver yet, say), it is kept: the report says what is wrong.

The JSON document, printed once at the end:
{"schema": 1, "cudadoctor", "knowledge",
 "outcome": "proven"       the training step passed in the new environment
          | "unproven"     it is installed and kept, and something is still wrong: see verdict
          | "failed"       a command failed; what was made is removed
          | "interrupted"  so did the user; what was made is removed
          | "declined" | "no-room" | "unresolved" | "no-build",   nothing was made
 "why": sentences, none where it is proven, "ways_out": sentences,
 "environment": the folder | null where none is left, "python": its interpreter | null,
 "base": the interpreter that it is made from | null where the tool fetches one,
 "tool": "pip" | "uv" | "conda" | "pixi" | null,
 "build": as in the plan of `check` | null, "commands": [[argv..]], "files": {name: text},
 "size": {"download_bytes", "installed_bytes", "free_bytes", "counted": from the real files},
 "verified": true | false | null not asked or not known,
 "activate": {shell or tool: line},
 "verdict", "primary": of the new environment | null, "smoke": as in `check` | null}
Fields may be added, none change or go.
"""

import re
import sys
from collections.abc import Iterable
from typing import Literal

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from cudadoctor import __version__, knowledge, pipeline
from cudadoctor.cli.looking import passed, this_machine
from cudadoctor.cli.options import Options, refuse, refuse_contradictions
from cudadoctor.cli.output import Waiting, asked, painted, signs, width, written
from cudadoctor.cli.speech import current, say, spoken
from cudadoctor.host import local
from cudadoctor.host.local import LocalHost
from cudadoctor.host.signals import Interrupts, end_now
from cudadoctor.installers.question import UNREACHED
from cudadoctor.installers.registry import BY_NAME
from cudadoctor.installers.tool import Recipe
from cudadoctor.installers.verify import verify
from cudadoctor.knowledge import Knowledge
from cudadoctor.model.machine import Json, Machine, OptBool, OptInt, OptStr, Strings
from cudadoctor.pipeline import Judged
from cudadoctor.plan.planner import build_choice
from cudadoctor.render import inert, json_v1, terminal
from cudadoctor.render.terminal import Line
from cudadoctor.repair.session import Failed
from cudadoctor.repair.setup import choosing, making, saying
from cudadoctor.repair.setup.choosing import Chosen, Known, NoWay
from cudadoctor.repair.setup.making import Place, Workplace
from cudadoctor.repair.setup.saying import Room
from cudadoctor.repair.words import error_lines
from cudadoctor.solver.demand import capabilities_of

Outcome = Literal[
    "proven",
    "unproven",
    "failed",
    "interrupted",
    "declined",
    "no-room",
    "unresolved",
    "no-build",
]


class Plan(Struct, frozen=True, kw_only=True):
    """What is to be made. verified: by a resolver; None not asked or not known. finding: how so."""

    chosen: Chosen
    recipe: Recipe
    room: Room
    verified: OptBool = None
    finding: OptStr = None


class Setup(Struct, kw_only=True):
    """One setup, from the choice to its outcome.

    folder: where the environment is to be, absolute.
    """

    folder: str
    options: Options = Options()
    outcome: Outcome = "declined"
    why: Strings = ()
    ways_out: Strings = ()
    plan: Plan | None = None
    judged: Judged | None = None

    def ended(self, outcome: Outcome, *why: str, last: OptStr = None, code: OptInt = None) -> int:
        """The document or the last sentence, and the exit code."""
        self.outcome, self.why = outcome, why
        if self.options.as_json:
            written(json_v1.dumps(document(self)) + "\n", None)
        elif sentence := last or " ".join(why):
            sys.stderr.write(f"cudadoctor: {inert(sentence)}\n")
        return code if code is not None else int(outcome != "proven")

    def say(self, lines: Iterable[Line], *, aloud: bool = False) -> None:
        """Lines on stdout; where a document goes there, on stderr if they must be read (aloud)."""
        if not self.options.as_json:
            written(painted(list(lines)), None)
        elif aloud:
            sys.stderr.write(painted(list(lines), to_file=True))

    def made(self, place: Place, plan: Plan) -> int:
        """Make it with the signals in our hands; then prove it with them given back."""
        recipe = plan.recipe
        with Interrupts(on_next=end_now) as interrupts:
            try:
                workplace = Workplace(place, alone=recipe.alone)
            except making.Busy:
                refuse(
                    "another cudadoctor setup is running in {folder}; wait until it finishes",
                    folder=place.path,
                )
            except OSError as error:
                reason = error.strerror or error
                refuse("cannot create {folder}: {reason}", folder=place.path, reason=reason)
            try:
                with Waiting() as waiting:
                    making.make(workplace, recipe, waiting, interrupts)
            except Failed as error:
                return self._unmade(error, workplace, interrupts)
            except BaseException:
                workplace.remove()
                raise
            workplace.finish()
        sys.stderr.write(
            f"{say('Installed. Running the training step to verify the installation.')}\n"
        )
        look = replace(self.options, python=recipe.python, fast=False, no_smoke=False)
        self.judged = pipeline.judge(this_machine(look))
        shown = pipeline.report(self.judged, full=True)
        shown = replace(shown, diagnosis=current().diagnosis(shown.diagnosis))
        healthy = self.judged.diagnosis.verdict == "healthy"
        layout = terminal.Layout(width=width(), signs=signs(), quiet=healthy, say=current())
        self.say([Line(()), *terminal.report(shown, layout), Line(())])
        self.say(saying.use(recipe, width()))
        return self._proven(self.judged)

    def _unmade(self, error: Failed, workplace: Workplace, interrupts: Interrupts) -> int:
        """Remove what was made, and say why."""
        stopped, lines = interrupts(), error_lines(error.tail)
        for line in () if stopped or self.options.as_json else lines:
            sys.stderr.write(f"  {inert(line)}\n")
        left = workplace.remove()
        template = "The unfinished environment was removed."
        if left:
            template = "The unfinished environment was removed, except for {path}."
        end = say(template, path=left)
        if stopped:
            return self.ended(
                "interrupted", say("Interrupted. {end}", end=end), code=interrupts.code
            )
        behind = reason(error.tail)
        why = say("Failed: {why}. {end}", why=f"{error} ({behind})" if behind else error, end=end)
        return self.ended("failed", why, *lines, last=why)

    def _proven(self, judged: Judged) -> int:
        """Proven if the step passed and the verdict is no worse than warnings; else only kept."""
        smoke, name = judged.machine.smoke, self.folder
        if smoke is None or smoke.ended or not passed(smoke):
            template = (
                "The environment in {folder} is installed, but the training step did not pass."
            )
            return self.ended("unproven", say(template, folder=name))
        if judged.diagnosis.verdict in ("healthy", "warnings"):
            return self.ended("proven")
        template = (
            "The environment in {folder} is installed, but not everything works yet; see above."
        )
        return self.ended("unproven", say(template, folder=name))


def setup(folder: str, options: Options) -> int:
    """Make the environment and prove it. 0 if the training step passed in it, else 1."""
    refuse_contradictions(options)
    if options.manager and BY_NAME[options.manager].new is None:
        refuse(
            "setup creates a folder, not an image. For a Dockerfile, run: cudadoctor fix "
            "--as dockerfile"
        )
    if not folder.strip():
        refuse("DIR is an empty string; specify a folder for the new environment")
    place = making.looked_at(folder)
    if sentence := making.refusal(place):
        refuse(sentence)
    kb = knowledge.load()
    known = _known(options, kb)
    chosen = choosing.choose(known, kb)
    work = Setup(folder=place.path, options=options)
    if isinstance(chosen, NoWay):
        work.say(saying.no_way(chosen, known.machine, width()))
        work.ways_out = chosen.ways_out
        nothing = say("Nothing was created.")
        return work.ended("no-build", *chosen.why, nothing, last=nothing)
    recipe = making.recipe(chosen, place.path, known.tools, kb)
    plan = work.plan = _planned(chosen, recipe, place, kb, verify_it=options.verify)
    shown = saying.plan(chosen, recipe, plan.room, plan.finding, width())
    work.say(shown, aloud=not options.yes)
    if plan.verified is False:
        finding = spoken(plan.finding or "")
        return work.ended("unresolved", finding, say("Nothing was created."))
    if plan.room.too_small:
        return work.ended("no-room", saying.too_small(plan.room, place.path))
    if not options.yes and not _agreed(place):
        return work.ended("declined", say("Nothing was created."))
    return work.made(place, plan)


def _known(options: Options, kb: Knowledge) -> Known:
    """The machine, its tools, and more of its Pythons if its own does not do."""
    machine = _machine(options, kb)
    host = local.this_host()
    try:
        tools = choosing.tools(host)
        tool = options.manager
        if tool is not None and tool != "pip" and tool not in tools:
            names = ", ".join(BY_NAME[tool].programs)
            refuse(
                "--with {tool}: {names} not found on PATH; install it first",
                tool=tool,
                names=names,
            )
        named = options.python is not None
        known = Known(machine=machine, tools=tools, torch=options.torch, tool=tool, named=named)
        if choosing.suffices(known, kb):
            return known
        with Waiting() as progress:
            progress("the search for Python installations", True)
            return replace(known, others=choosing.found(host))
    finally:
        local.close_host()


def _machine(options: Options, kb: Knowledge) -> Machine:
    """This machine without its torch; a driver that is slow to answer is asked once more."""
    quick = replace(options, fast=True, device=None)
    machine = this_machine(quick)
    if machine.driver.nvml.hung or capabilities_of(machine, kb) is None:
        machine = this_machine(replace(quick, fast=False, no_smoke=True))
    return machine


def _planned(
    chosen: Chosen, recipe: Recipe, place: Place, kb: Knowledge, *, verify_it: bool
) -> Plan:
    """The whole plan; with --verify a resolver is asked for the files behind it."""
    answer = None
    if verify_it:
        try:
            with Waiting() as progress:
                progress("the package resolver", True)
                here = chosen.base is not None
                answer = verify(
                    recipe.wanted.change, chosen.machine, kb, here=here, tool_name=chosen.tool
                )
        finally:
            local.close_host()
    sizes = [file.size_bytes for file in answer.files] if answer else ()
    space = LocalHost().space(place.path if place.kind == "folder" else place.parent)
    assert chosen.build is not None
    return Plan(
        chosen=chosen,
        recipe=recipe,
        room=saying.room(chosen.build, kb, sizes, space.free_bytes if space else None),
        verified=answer.resolves if answer else None,
        finding=answer.why if answer else None,
    )


def _agreed(place: Place) -> bool:
    """Whether the user lets it be made; if nobody can be asked, that is wrong use."""
    if not sys.stdin.isatty():
        refuse("cannot prompt without a terminal; add --yes to create the environment")
    template = "Create this environment?"
    if place.ours:
        template = "{folder} is left over from an unfinished setup. Replace it?"
    return asked("\n" + inert(say(template, folder=place.path)))


def document(work: Setup) -> Json:
    """The JSON document as plain data."""
    plan, judged = work.plan, work.judged
    found: Json = {
        "schema": 1,
        "cudadoctor": __version__,
        "knowledge": knowledge.load().date,
        "outcome": work.outcome,
        "why": list(work.why),
        "ways_out": list(work.ways_out),
        "environment": None,
        "python": None,
        "activate": {},
        **dict.fromkeys(("base", "tool", "build")),
        "commands": [],
        "files": {},
        **dict.fromkeys(("size", "verified", "verdict", "primary", "smoke")),
    }
    if plan:
        chosen, recipe = plan.chosen, plan.recipe
        found |= {
            "base": chosen.base and chosen.base.path,
            "tool": chosen.tool,
            "build": to_builtins(build_choice(chosen.machine, chosen.choice)),
            "commands": [list(command) for command in recipe.commands],
            "files": recipe.files,
            "size": to_builtins(plan.room),
            "verified": plan.verified,
        }
        if work.outcome in ("proven", "unproven"):
            activation = saying.activation(recipe)
            found |= {
                "environment": work.folder,
                "python": recipe.python,
                "activate": activation,
            }
    if judged:
        found |= {
            "verdict": judged.diagnosis.verdict,
            "primary": judged.diagnosis.primary,
            "smoke": json_v1.smoke(judged.machine),
        }
    return found


_FULL = re.compile(r"(?i)no space left on device|disk quota exceeded|file too large|errno 28\b")


def reason(lines: Strings) -> OptStr:
    """What lies behind it, where that is known: no network, or no room."""
    text = "\n".join(lines)
    if _FULL.search(text):
        return say("the disk is full")
    if re.search(UNREACHED, text):
        return say("a package index could not be reached")
    return None
