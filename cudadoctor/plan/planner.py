"""Findings and wishes -> ordered steps: each remedy once, and none that undoes another."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from msgspec.structs import asdict, replace
from packaging.version import Version

from cudadoctor.installers import environment, registry
from cudadoctor.installers.index import TAGGED, is_foreign, own_host
from cudadoctor.installers.requirement import name_of, pin_of
from cudadoctor.installers.tool import BESIDE, joined
from cudadoctor.knowledge import Knowledge, TorchBuild
from cudadoctor.knowledge.companions import NUMPY_2_SINCE
from cudadoctor.model.findings import (
    BuildChoice,
    Diagnosis,
    Edit,
    Finding,
    NoBuild,
    PackageChange,
    Plan,
    Remedies,
    Remedy,
    Risk,
    Severity,
    Step,
    Wishes,
)
from cudadoctor.model.machine import IN_FILE, Machine, OptBool, OptStr
from cudadoctor.model.requirements import COMPANIONS, EXTENSIONS
from cudadoctor.model.trust import NOT_TAKEN, PLACEHOLDER, Exit, acting, typed
from cudadoctor.model.variables import OF_LOADER
from cudadoctor.plan.remedies.process import (
    another_node,
    in_notebook_note,
    keeper_of,
    lasting,
    notebook_of,
)
from cudadoctor.plan.remedies.torch import (
    NEWEST,
    install_torch,
    installed_row,
    installed_variant,
    wished_torch,
    with_own_torch,
)
from cudadoctor.render import shells
from cudadoctor.solver.builds import Choice, best_build
from cudadoctor.solver.demand import is_met, platform_blocker, platform_of, python_of
from cudadoctor.solver.reasons import companion_of
from cudadoctor.solver.supposed import supposed

Prescribed = list[tuple[str, Remedies]]
"""Causes with their remedies; "" where something was asked for that cures no cause."""

_TORCH_STEPS = ("install-torch", "jetson-torch", "reinstall-torch")
_BUILD_DECIDES = frozenset(
    {"torch-missing", "torch-cpu-build", "torch-arch-unsupported-new", "torch-arch-unsupported-old"}
    | {"torch-index-wrong", "torch-python-unsupported", "platform-unsupported", "jetson-build"}
)
"""Causes that another build of torch cures."""
_PART_OF_TORCH = ("nvidia-", "cuda-", "triton", "pytorch-triton")
_NEEDED = (
    "There is no known {wanted} wheel for this Python version on this system, so the installed "
    "torch is not replaced. Create a new environment with a Python version for which a wheel "
    "exists."
)


def plan(
    machine: Machine, knowledge: Knowledge, diagnosis: Diagnosis, wishes: Wishes | None = None
) -> Plan:
    """The steps that cure what nothing deeper explains, in causal order, each only once.

    Package changes that belong together are one step, so that none undoes another.
    """
    wishes = wishes or Wishes()
    way_out, machine = Exit(machine, knowledge, own_host(machine)), acting(machine)
    prescribed = [
        (
            finding.cause,
            elsewhere(finding, machine) + harmless(finding.remedies, machine, knowledge),
        )
        for finding in diagnosis.roots
    ]
    cures = any(remedy.id == "install-torch" for _, found in prescribed for remedy in found)
    choice = None
    about = any(finding.cause in _BUILD_DECIDES for finding in diagnosis.roots)
    if cures or (wishes.torch and is_met(wishes.torch, machine.torch) is not True):
        choice = best_build(machine, knowledge, keep=wishes.torch)
    pinned = next((release for _, found in prescribed if (release := _release_of(found))), None)
    free = None if wishes.torch or choice is None else choice.build
    if pinned and free and pinned not in (str(free.torch), f"{free.torch}+{free.variant}"):
        # A package asks for this build, not the user: there is no choice to give reasons for.
        choice = replace(best_build(machine, knowledge, keep=pinned), why=())
    if wishes.torch and choice:
        wished = wished_torch(machine, knowledge, choice, wishes.torch)
        wanted = harmless(wished, machine, knowledge)
        prescribed = [
            (
                cause,
                _each_once(
                    new
                    for remedy in found
                    for new in (wanted if remedy.id == "install-torch" else (remedy,))
                ),
            )
            for cause, found in prescribed
        ]
        prescribed += [] if cures else [("", wanted)]
    errors = {finding.cause for finding in diagnosis.roots if finding.severity is Severity.ERROR}
    steps = _one_reboot(merged(prescribed, knowledge, choice.build if choice else None), errors)
    left = no_build(choice or best_build(machine, knowledge)) if about or choice else None
    if left is not None:
        steps = [_without_guess(step, knowledge, left) for step in steps]
    channel = any(
        step.packages
        and not registry.write(machine, knowledge, step.packages, wishes.manager).wheels
        for step in steps
        if step.id == "install-torch"
    )
    return Plan(
        steps=tuple(
            made for step in steps for made in _steps(step, machine, knowledge, wishes, way_out)
        ),
        build=build_choice(machine, choice, by_channel=channel) if choice else None,
        no_build=left,
    )


def no_build(choice: Choice) -> NoBuild | None:
    """Why no build was chosen, and the command that prints what is missing; None if one was."""
    if choice.build is not None:
        return None
    asks = typed(*choice.asks) if choice.asks else None
    return NoBuild(reason=choice.why[0], next_command=asks)


def _without_guess(remedy: Remedy, kb: Knowledge, left: NoBuild) -> Remedy:
    """The remedy in words where it would have pip choose what the solver could not.

    An index of another maker or of one JetPack holds what fits there, of whichever release.
    """
    change = remedy.packages
    guesses = (
        argv for argv in remedy.commands if "install" in argv and not any(map(_is_another, argv))
    )
    words = set(chain.from_iterable(guesses))
    if change is not None:
        words.update(() if change.index else (*change.install, *change.then))
    if not words & {"torch", *kb.companion_names}:
        return remedy
    manual = joined(_ASK_FIRST if left.next_command else _NONE_FITS, remedy.manual)
    return replace(remedy, commands=(), packages=None, manual=manual)


def _is_another(word: str) -> bool:
    return word.startswith("http") and is_foreign(word)


_ASK_FIRST = (
    "Which build fits depends on facts that are missing here. Find them out first, then check "
    "again: the plan will include the exact command."
)
_NONE_FITS = "There is no command for this step, because no known torch build fits this machine."


_OF_ONE_NODE = frozenset(
    {"driver-library-mismatch", "driver-not-loaded", "fabric-manager", "gpu-ecc", "gpu-excluded"}
    | {"gpu-lost", "gpu-unhealthy-hardware", "mig-misconfigured", "nvlink-down"}
    | {"pci-bar-bios", "pcie-degraded", "thermal-throttle", "uvm-not-loaded"}
)
"""Causes of one node of a cluster: what all nodes share, a job meets on the next one too."""


def elsewhere(finding: Finding, m: Machine) -> Remedies:
    """What the user of a job can do where only the administrator can cure the node."""
    cures = [remedy for remedy in finding.remedies if remedy.id != "another-node"]
    theirs = bool(cures) and all(remedy.where == "admin" for remedy in cures)
    return another_node(m) if theirs and finding.cause in _OF_ONE_NODE else ()


def _release_of(remedies: Remedies) -> OptStr:
    """The build of torch that the preferred one of these remedies installs."""
    change = remedies[0].packages if remedies and remedies[0].id == "install-torch" else None
    release = pin_of(change.install).partition("+")[0] if change else None
    return f"{release}+{change.variant}" if change and change.variant and release else release


def _each_once(remedies: Iterable[Remedy]) -> Remedies:
    found: dict[str, Remedy] = {}
    for remedy in remedies:
        found.setdefault(remedy.id, remedy)
    return tuple(found.values())


def build_choice(
    machine: Machine, choice: Choice, *, by_channel: bool = False
) -> BuildChoice | None:
    """The solver's answer in the contract's shape; None where no build fits.

    by_channel: a channel's own build is installed, for which the variants of wheels are no names.
    """
    build, why = choice.build, choice.why
    if build is None:
        return None
    if by_channel and build.cuda:
        kind = f"its CUDA {build.cuda.major} build"
        named = (text.replace(f"its {build.variant} build", kind) for text in why)
        why = tuple(text.replace(f"+{build.variant}", "") for text in named)
    return BuildChoice(
        torch=str(build.torch),
        variant=build.variant,
        torchvision=build.torchvision,
        torchaudio=build.torchaudio,
        python=python_of(machine) or "",
        index=build.index,
        why=why,
        why_not=choice.why_not,
    )


def _steps(
    remedy: Remedy, machine: Machine, knowledge: Knowledge, wishes: Wishes, way_out: Exit
) -> Iterator[Step]:
    """The step of a remedy, after the one that gets a package of the system for it."""
    fields = asdict(remedy)
    wanted, edits, notes = fields.pop("commands"), fields.pop("edits"), [fields.pop("note")]
    change, asked = fields.pop("packages"), fields.pop("variables")
    if change and (change := way_out.change(change)):
        if environment.is_apart(machine):
            change = with_own_torch(change, machine, knowledge)
        written = registry.write(machine, knowledge, change, wishes.manager)
        wanted, edits = wanted + written.commands, edits + written.edits
        if written.system and (first := way_out.commands(written.system)):
            yield Step(
                id="install-venv",
                title="Install the venv module for this Python",
                group="install-venv",
                where="admin" if keeper_of(machine) == "admin" else "here",
                risk=Risk.SYSTEM,
                needs_root=True,
                commands=first,
                cures=remedy.cures,
            )
        if not written.commands:
            # Only a file is written: where pip unpacks is up to what reads it.
            asked = {name: value for name, value in asked.items() if name != "TMPDIR"}
        if not written.wheels:
            # A channel has builds of its own: the tables' release and variant are not what comes.
            change = replace(change, download_bytes=None)
            if remedy.id == "install-torch" and change.variant:
                kind = f"CUDA {change.cuda.partition('.')[0]}" if change.cuda else "CPU"
                fields["title"] = f"Install a {kind} build of torch with {written.tool}"
        fields |= {"tool": written.tool, "manual": remedy.manual or written.manual}
        notes += (
            written.note,
            _in_file(machine, change) if not written.edits else None,
            way_out.own_index if change.install or change.then else None,
        )
    if asked and remedy.where == "here":
        notes.append(shells.activation_note(machine, asked, wishes.shell))
    if remedy.where == "here":
        notes += _lasting(machine, asked, joined(*notes) or "")
        notes.append(in_notebook_note(machine, packages=bool(change), variables=asked))
    if asked and remedy.where in ("here", "container"):
        in_job = machine.container.scheduler and "job script" not in (joined(*notes) or "")
        notes.append(_IN_JOB if in_job else None)
    commands, variables = way_out.commands(wanted), way_out.variables(asked)
    if commands is None or variables is None or (remedy.packages and change is None):
        commands, variables, edits, change = (), {}, (), None
        notes.append(NOT_TAKEN)
    step = Step(
        **fields,
        commands=commands,
        variables=variables,
        edits=way_out.edits(edits),
        packages=change,
        note=joined(*notes),
    )
    lines = _in_image(step, machine)
    lost = _LOST if lines and step.commands else None
    yield replace(step, note=joined(step.note, lost))
    if lines:
        edit = Edit(file="Dockerfile", what="\n".join(lines))
        yield Step(
            id=f"{step.id}-in-image",
            title="Make this change in the image",
            group=step.group,
            where="container",
            edits=(edit,),
            cures=step.cures,
            manual=_BUILD_POD if machine.container.kind == "kubernetes" else _BUILD,
        )


def _in_file(machine: Machine, change: PackageChange) -> OptStr:
    """The lines of a requirements file that a report shows, without which its next use undoes it.

    Beside PyPI a package of torch's index is named with its variant, or pip takes another.
    """
    wanted = [*change.install, *change.then]
    if not wanted or not any(IN_FILE in asked.options for asked in machine.installs or ()):
        return None
    own, names = machine.torch.version, {*map(name_of, wanted)}
    if own and "torch" not in names and names & {*TAGGED}:
        wanted.insert(0, f"torch=={own.public}")  # as it is there: a newer one would come
    tag = f"+{change.variant}" if change.index and change.variant else ""
    pins = [f"{pin}{tag}" if name_of(pin) in TAGGED else pin for pin in wanted]
    lines = ([f"--extra-index-url {change.index}"] if change.index else []) + pins
    named = ", ".join(f"`{line}`" for line in lines)
    return (
        f"In requirements.txt, put these lines in place of its index and these packages: {named}."
    )


_INTERFACES = frozenset({"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"})
_IMAGES = ("docker", "podman", "containerd", "kubernetes")
"""Kinds of containers that each new start makes from an image again."""
_IN_JOB = "For a batch job, put this command in the job script."
_LOST = (
    "Unless it is on a volume, this change is lost with the container: make it in the image too."
)
_STARTED_WITH = ("driver-on-path",)
"""Steps with an alternative that says how the container is started with the variable."""
_ROOM = 64
_NOT_THERE = (PLACEHOLDER, BESIDE)
"""What commands call an interpreter that is not known, and a new folder of the reader's."""
_OF_A_HOST = {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", *_INTERFACES}
"""Variables whose values an image cannot know."""
_BUILD = "Add these lines to the Dockerfile, build the image, and start a new container from it."
_BUILD_POD = "Add these lines to the Dockerfile, build the image, and deploy the pod again."


def _in_image(step: Step, m: Machine) -> tuple[str, ...]:
    """The lines of a Dockerfile that make a step last; () where a container keeps what it has."""
    preferred = step.id == step.group and step.where == "here"
    if not preferred or m.container.kind not in _IMAGES or notebook_of(m):
        return ()
    if step.id in _STARTED_WITH:
        return ()
    process = bool(step.commands) and (step.risk is Risk.PROCESS or step.reboot)
    # A report does not say which Python its image has; a new folder of the reader's is not in it.
    usual = [tuple("python" if w == PLACEHOLDER else w for w in argv) for argv in step.commands]
    if process or any(own in word for argv in usual for word in argv for own in _NOT_THERE):
        return ()
    before, after = (
        [f"{name}={value}" for name, value in pairs.items() if value and name not in _OF_A_HOST]
        for pairs in shells.around(step)
    )
    wanted = [("RUN", *before, *argv) for argv in usual]
    wanted += [("ENV", setting) for setting in (after if step.commands else (*before, *after))]
    words = shells.shell_of("bash")
    typing = (words.arguments(typed(*argv)) for argv in wanted)
    return tuple(line for typed_words in typing for line in words.folded(typed_words, _ROOM))


_STALE = OF_LOADER | _INTERFACES | {"TORCH_CUDA_ARCH_LIST"}
"""Variables whose wrong value stands in a line of the user's, and not in one of a job or launch."""


def _lasting(m: Machine, asked: Mapping[str, OptStr], said: str) -> Iterator[str]:
    """Where the line of a variable stands that gets another value, unless that was said."""
    if not said:
        yield from (lasting(m, name) for name in asked if name in _STALE and name in (m.env or {}))


# --- many prescriptions as one list -------------------------------------------------------------


def merged(prescribed: Prescribed, knowledge: Knowledge, build: TorchBuild | None) -> list[Remedy]:
    """The prescriptions of all causes (the gravest first) as steps.

    Alternatives share a group, whose first one is preferred.
    build: the torch that is going to be installed, where that is known.
    """
    found: dict[str, Remedy] = {}
    entries = [
        (cause, remedies[0].id, remedy) for cause, remedies in prescribed for remedy in remedies
    ]
    # What some cause prefers is nobody's alternative.
    for cause, group, remedy in sorted(entries, key=lambda entry: entry[1] != entry[2].id):
        step = found.setdefault(remedy.id, replace(remedy, group=group))
        if cause and cause not in step.cures:
            found[remedy.id] = replace(step, cures=(*step.cures, cause))
    _without_a_key(found)
    names = (name for name in _TORCH_STEPS if name in found and found[name].group == name)
    main, gone = next(names, ""), set[str]()
    if main and (change := found[main].packages):
        # The other preferred package changes become part of the step that installs torch.
        cures = found[main].cures
        for step in list(found.values()):
            if step.packages and step.group == step.id != main:
                change = _joined(change, step.packages, knowledge, build)
                cures += found.pop(step.id).cures
                gone.add(step.id)
        cures = tuple(dict.fromkeys(cures))
        found[main] = replace(found[main], packages=change, cures=cures)
    steps = [replace(step, group=main) if step.group in gone else step for step in found.values()]
    order = list(dict.fromkeys(step.group for step in steps))
    return sorted(steps, key=lambda step: (order.index(step.group), step.id != step.group))


def _without_a_key(found: dict[str, Remedy]) -> None:
    """No key is enrolled where another step brings modules that the distribution signed."""
    key = found.get("load-driver")
    for step in [*found.values()] if key and key.tool == "mokutil" and key.group == key.id else ():
        words = (word for argv in step.commands for word in argv)
        if step.group == step.id and any("linux-modules-nvidia-" in word for word in words):
            cures = (*step.cures, *found.pop("load-driver").cures)
            found[step.id] = replace(step, cures=tuple(dict.fromkeys(cures)))
            return


def _one_reboot(steps: list[Remedy], errors: set[str]) -> list[Remedy]:
    """The steps that cure errors here with one reboot for all of them, after the last.

    They all stand with the first error: a reboot between them would only be one too many.
    """
    waiting = [
        step
        for step in steps
        if step.reboot and step.commands and step.where == "here" and step.group == step.id
        if errors.intersection(step.cures)
    ]
    if len(waiting) < 2:
        return steps
    # One that does nothing else comes last.
    waiting.sort(key=lambda step: all("reboot" in argv for argv in step.commands))
    first = waiting[0].cures
    joined = {
        step.id: replace(
            step,
            reboot=step is waiting[-1],
            cures=tuple(dict.fromkeys((*step.cures, *first))),
        )
        for step in waiting
    }
    order = iter(joined[step.id] for step in waiting)
    moved = [next(order) if step.id in joined else step for step in steps]
    groups = list(dict.fromkeys(step.group for step in moved if step.group == step.id))
    return sorted(moved, key=lambda step: (groups.index(step.group), step.id != step.group))


def _joined(
    change: PackageChange, other: PackageChange, knowledge: Knowledge, build: TorchBuild | None
) -> PackageChange:
    """A change of torch together with another change of the same environment."""
    install = {name_of(requirement): requirement for requirement in change.install}
    then = {name_of(requirement): requirement for requirement in change.then}
    for requirement in (*other.install, *other.then):
        name = name_of(requirement)
        if name == "torch" or name.startswith(_PART_OF_TORCH):
            continue
        if name == "numpy" and build and build.torch >= NUMPY_2_SINCE:
            continue  # The new torch takes both.
        fitting = companion_of(name, build, knowledge) if build else None
        pin = f"{name}=={fitting}" if fitting else None
        if build and not pin and name in change.remove and name in COMPANIONS:
            continue  # No release of it fits the new torch.
        if name in COMPANIONS:
            install.setdefault(name, pin or requirement)
        elif name in install or name in then:
            continue  # The change of torch has its release already.
        elif name not in EXTENSIONS or build is None:
            then[name] = requirement
        elif pin or name not in change.remove:
            then[name] = pin or name
    return replace(
        change,
        install=tuple(install.values()),
        then=tuple(then.values()),
        remove=tuple(dict.fromkeys(change.remove + other.remove)),
    )


# --- no torch is given up for one that cannot be had, nor for the very same one ------------------


def harmless(remedies: Remedies, m: Machine, kb: Knowledge) -> Remedies:
    """The remedies of one cause without what would harm, or leave all as it is.

    Every package change is asked here, so that no single rule has to answer for it.
    """
    found = _each_once(sound for remedy in remedies for sound in _harmless(remedy, m, kb))
    preferred = any(remedy.id == "install-torch" for remedy in found[:1])
    return tuple(remedy for remedy in found if preferred or remedy.id != NEWEST)


def _harmless(remedy: Remedy, m: Machine, kb: Knowledge) -> Remedies:
    change = remedy.packages
    if change is None or "torch" not in map(name_of, change.install):
        return (remedy,)
    release, (here, *_) = pin_of(change.install), supposed(m, kb).machines
    platform = platform_of(here)
    row = bool(release and platform and change.variant)
    build = kb.build_of(Version(release), change.variant or "", platform or "") if row else None
    if remedy.id == "install-torch" and build and _is_there(build, m):
        return _beside_it(remedy, change, m)
    if build or is_foreign(change.index):
        sure = _installable(change, build, m, kb)
    else:
        sure = False if row and Version(release) in kb.torch_releases() else None
    if m.platform.system and m.platform.machine and platform_blocker(m):
        sure = False
    if sure or "torch" not in change.remove:
        return (remedy,)
    if sure is None:
        return (replace(remedy, packages=replace(change, ask=True)),)
    text = _NEEDED.format(wanted=f"torch {release}".rstrip())
    others = install_torch(m, kb) if remedy.id == "reinstall-torch" else ()
    return others or (replace(remedy, packages=None, manual=text),)


def _beside_it(remedy: Remedy, change: PackageChange, m: Machine) -> Remedies:
    """Without torch, which is there already, what goes with it in another release; else ()."""
    present = {package.name: package.version.partition("+")[0] for package in m.packages or ()}
    moving = [pin for pin in change.then if "==" in pin and name_of(pin) in present]
    rest = tuple(pin for pin in moving if present[name_of(pin)] != pin.partition("==")[2])
    if not rest:
        return ()
    title = f"Install {', '.join(rest)} for torch {pin_of(change.install)}".replace("==", " ")
    left = PackageChange(install=rest, variant=change.variant, cuda=change.cuda)
    return (replace(remedy, id="install-companion", title=title, packages=left),)


def _installable(
    change: PackageChange, build: TorchBuild | None, m: Machine, kb: Knowledge
) -> OptBool:
    """Whether the tables have this torch as a wheel for this interpreter and system.

    None where a fact that decides is missing. What the wheel that is installed needs is there:
    that stands in for an unknown Python and an unknown glibc.
    """
    python, board = python_of(m), m.platform.l4t
    if build is None or is_foreign(change.index):
        made = kb.jetson_build(board.major) if board else None
        return python == made.python if made and python else None
    own = installed_row(m, kb) if m.torch.installed else None
    pythons = {python} if python else set(own.pythons if own else ())
    glibc = m.platform.glibc or (own.glibc if own else None)
    old = build.glibc is not None and (glibc is None or glibc < build.glibc)
    if build.published and pythons and pythons <= set(build.pythons) and not old:
        return True
    refused = python not in (None, *build.pythons) or (old and m.platform.glibc is not None)
    return False if refused or build.published is False else None


def _is_there(build: TorchBuild, m: Machine) -> bool:
    """Whether exactly this torch is installed; one with other code than the tables' is another."""
    version, archs = m.torch.version, m.torch.archs
    if m.torch.installed is False or version is None or version.public != build.torch.public:
        return False
    unsure = build.archs_uncertain or None in (build.archs, archs)
    same = unsure or set(build.archs or ()) == set(archs or ())
    return same and installed_variant(m) == build.variant
