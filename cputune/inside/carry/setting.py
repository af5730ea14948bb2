"""What the parts share that set a plan in the objects of a script."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from cputune.inside.carry.force import Force


class Setting:
    """A plan on its way into the objects of a script, as the script makes them.

    Attributes:
        force: what is set.
        refuse: gets the reason why the script cannot be run as the plan asks, and ends the process.
        changes: what was set and not yet told, in words.
        has_trainer: whether the script has made a Trainer, which is given its batch by arguments.
        trains: whether a loop over an Accelerator has taken its first step.
        pretends: whether a loss is being computed, which asks for the number of ranks as typed.
        did: what each part has changed so far, by the part's name. What is not there changed
            nothing, and need not be written into a launch.
    """

    def __init__(
        self, force: Force, refuse: Callable[[str], NoReturn], say: Callable[[str], None]
    ) -> None:
        self.force = force
        self.refuse = refuse
        self._say = say
        self.changes: dict[str, str] = {}
        self.has_trainer = self.trains = self.pretends = False
        self.did: dict[str, list[str]] = {}

    def note(self, part: str, what: str) -> None:
        """Note that a part changed something, once."""
        found = self.did.setdefault(part, [])
        if what not in found:
            found.append(what)

    def set(self, args: object, name: str, value: object) -> None:
        """Set a field; one that this version does not have is left."""
        before = getattr(args, name, value)
        if before != value:
            self.note("trainer", name)
            setattr(args, name, value)
            self.changes[name] = f"{name}={value} (was {before})"

    def tell(self) -> None:
        """Say once what was set before the training began."""
        if self.changes:
            self._say("set for the plan: " + ", ".join(self.changes.values()))
            self.changes.clear()
            self._say = lambda text: None
