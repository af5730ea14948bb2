"""What parts for objects of a script share."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from cputune.inside.applying.force import Force


class Setting:
    """A plan that is being set in the objects of a script, as the script makes them.

    Attributes:
        refuse: gets the reason why the script cannot run as planned, and ends the process.
        say: prints a sentence, in the first rank.
        changes: what was set and not yet printed.
        has_trainer: the script has made a Trainer, which gets its batch by arguments.
        trains: a loop over an Accelerator has taken its first step.
        prepares_trained: a loop prepares the loader that it trains on.
        pretends: a loss is being computed, which asks for the number of ranks of the current
            launch.
        did: what each part has changed so far, by the part's name; parts without an entry are
            left out of an emitted launch.
    """

    def __init__(
        self, force: Force, refuse: Callable[[str], NoReturn], say: Callable[[str], None]
    ) -> None:
        self.force = force
        self.refuse = refuse
        self.say = say
        self._told = False
        self.changes: dict[str, str] = {}
        self.has_trainer = self.trains = self.pretends = False
        self.prepares_trained = False
        self.did: dict[str, list[str]] = {}

    def note(self, part: str, what: str) -> None:
        """Note that a part changed something, once."""
        noted = self.did.setdefault(part, [])
        if what not in noted:
            noted.append(what)

    def set(self, args: object, name: str, value: object) -> None:
        """Set a field, if this version has it."""
        before = getattr(args, name, value)
        if before != value:
            self.note("trainer", name)
            setattr(args, name, value)
            self.changes[name] = f"{name}={value} (was {before})"

    def tell(self) -> None:
        """Print once what was set before the training began."""
        if self.changes and not self._told:
            self._told = True
            self.say("set for the plan: " + ", ".join(self.changes.values()))
        self.changes.clear()
