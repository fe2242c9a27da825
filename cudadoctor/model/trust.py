"""What may become a command, as a type.

A machine that the probes looked at is the user's own: its paths and indexes may act. Whatever was
read (--from, a recording, a comparison) is `Foreign`, whoever wrote it and wherever: its facts are
judged and shown as they stand, and choose no program, no index and no package.

- The way in: `foreign` marks a machine once, where documents are read, and nothing takes that back.
- `acting` is the machine as those see it who write commands. A foreign one is parsed into inert
  values: the interpreter is `$PYTHON`, a manager its bare name, an index and a folder not known.
  Rules go on comparing the facts themselves, paths with paths.
- The way out: a step holds `Word`s only, and only this module makes one. `Exit` takes the words of
  the user's own machine as they are. Of a foreign one each must be a word of the grammar in
  `inert_words`; a step with any other word is left to be done by hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NewType

import msgspec

from cudadoctor.model.machine import Distribution, Identity, Interpreter, Machine, Manager
from cudadoctor.model.versions import version_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cudadoctor.knowledge import Knowledge
    from cudadoctor.model.driver_facts import Driver
    from cudadoctor.model.findings import PackageChange

PLACEHOLDER = "$PYTHON"
"""Stands for an interpreter whose path is not known or not to be believed: the reader sets it."""

NOT_TAKEN = (
    "The command needs a name, a path or an address that is not taken from a document; "
    "`cudadoctor fix --print` on that machine prints it."
)

_OWN_INDEX = (
    "The package index of that machine ({host}) is not taken from a document; if the packages "
    "must come from there, add it to the command yourself."
)

Word = NewType("Word", str)
"""A word that a shell may get to see."""
Command = tuple[Word, ...]


class Foreign(Machine, frozen=True, kw_only=True):
    """A machine out of a document, a recording or a pasted report."""


def foreign(machine: Machine) -> Foreign:
    """The machine as one that was read."""
    if isinstance(machine, Foreign):
        return machine
    return Foreign(**{name: getattr(machine, name) for name in machine.__struct_fields__})


def ours(word: str) -> Word:
    """A word of this program's own, or of the machine that it looked at itself."""
    return Word(word)


def typed(*argv: str) -> Command:
    """The same for a whole command."""
    return tuple(map(ours, argv))


# --- the machine as it may act ----------------------------------------------------------------


def acting(machine: Machine) -> Machine:
    """The machine as those see it who write commands: the user's own as it is, a foreign one inert.

    Its paths exist nowhere, as in a redacted document.
    """
    if not isinstance(machine, Foreign):
        return machine
    from cudadoctor.model.inert_words import is_kernel

    fields = {name: getattr(machine, name) for name in machine.__struct_fields__}
    kernel = machine.platform.kernel
    fields |= {
        "redacted": True,
        "identity": Identity(),
        "platform": msgspec.structs.replace(
            machine.platform, kernel=kernel if kernel and is_kernel(kernel) else None
        ),
        "python": _interpreter(machine.python),
        "driver": _driver(machine.driver),
        "packages": _distributions(machine.packages),
    }
    return Machine(**fields)


def _interpreter(python: Interpreter) -> Interpreter:
    """`$PYTHON`, with what else decides how packages are installed there."""
    prefix, project = _folders(python)
    managers = python.managers
    return msgspec.structs.replace(
        python,
        executable=PLACEHOLDER,
        prefix=prefix,
        project=project,
        managers=managers and tuple(Manager(name=one.name, path="") for one in managers),
        index=None,
        base_prefix=None,
        site_packages=None,
        user_site=None,
        pip_python=None,
        path_python=None,
        path=None,
    )


def _folders(python: Interpreter) -> tuple[str | None, str | None]:
    """Prefix and project as a redacted document has them: whose tool owns the environment."""
    prefix, project = python.prefix or "", python.project
    if project and prefix.startswith(project):
        return "~/environment", "~"
    inside_pixi = "/.pixi/envs/" in prefix.replace("\\", "/")
    return "~/.pixi/envs/default" if inside_pixi else None, project and "~"


def _driver(driver: Driver) -> Driver:
    from cudadoctor.model.inert_words import is_settings_file, is_system_package

    packages = driver.packages
    files = driver.blacklisted_by
    return msgspec.structs.replace(
        driver,
        packages=packages and tuple(one for one in packages if is_system_package(one.name)),
        blacklisted_by=files and tuple(one for one in files if is_settings_file(one)),
    )


def _distributions(found: tuple[Distribution, ...] | None) -> tuple[Distribution, ...] | None:
    """Those with a name (PEP 508) and a version (PEP 440)."""
    from cudadoctor.model.inert_words import is_name

    return found and tuple(one for one in found if is_name(one.name) and version_of(one.version))


# --- the way out --------------------------------------------------------------------------------


class Exit:
    """The way out for the commands of one machine.

    own_index: what is said of an index that a foreign machine has of its own.
    """

    def __init__(self, machine: Machine, knowledge: Knowledge) -> None:
        self._foreign = isinstance(machine, Foreign)
        self._knowledge = knowledge
        self.own_index = _own_index(machine) if self._foreign else None

    def commands(self, wanted: tuple[tuple[str, ...], ...]) -> tuple[Command, ...] | None:
        """The commands as words; None where one of them holds what a document may not choose."""
        if self._foreign and not all(self._is_command(argv) for argv in wanted):
            return None
        return tuple(typed(*argv) for argv in wanted)

    def variables(self, wanted: Mapping[str, str | None]) -> dict[str, Word | None] | None:
        """The same for variables that are set or (None) unset."""
        if self._foreign:
            from cudadoctor.model.inert_words import is_setting

            if not all(is_setting(*one) for one in wanted.items()):
                return None
        return {name: None if value is None else ours(value) for name, value in wanted.items()}

    def change(self, wanted: PackageChange) -> PackageChange | None:
        """A change of packages without strangers to remove; None where one is to be installed."""
        if not self._foreign:
            return wanted
        from cudadoctor.model.inert_words import is_address

        addresses = (wanted.index, wanted.find_links)
        sound = all(map(self._is_requirement, (*wanted.install, *wanted.then)))
        if not sound or not all(one is None or is_address(one) for one in addresses):
            return None
        known = tuple(one for one in wanted.remove if self._is_requirement(one))
        return msgspec.structs.replace(wanted, remove=known)

    def _is_command(self, argv: tuple[str, ...]) -> bool:
        from cudadoctor.model.inert_words import is_command

        return is_command(argv, self._knowledge)

    def _is_requirement(self, text: str) -> bool:
        from cudadoctor.model.inert_words import is_requirement

        return is_requirement(text, self._knowledge)


def _own_index(machine: Machine) -> str | None:
    from cudadoctor.installers.index import own_host

    host = own_host(machine)
    return host and _OWN_INDEX.format(host=host)
